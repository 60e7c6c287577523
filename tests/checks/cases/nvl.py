"""What the checks of NVLink must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import NO_NCCL
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.nvl import (
    CHANNELS,
    FULL,
    H200S,
    JOINED,
    LINKS,
    METAL,
    NO_CHANNEL,
    NO_CLUSTER,
    NO_LOG,
    REFUSED,
    SWITCHES,
    TRAY,
    TWO_TRAYS,
    UNSAID,
    WAITING,
    links_of,
)
from ncclprobe.facts.driver import FabricManager
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import GpuLinks, NvLinks, NvlinkStatus
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.facts.process import Container, DeviceNode, Devices
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

DEGRADED = replace(HEALTHY, fabric=GpuFabric("completed", cluster=NO_CLUSTER, troubles=("degraded-bandwidth",)))
LONELY_TRAY = box(*[replace(JOINED, name="NVIDIA GB200")] * 4)
NO_FABRIC = replace(HEALTHY, fabric=Absent("NVML nvmlDeviceGetGpuFabricInfoV: Not Supported", "Failed"))
OLD_MANAGER = FabricManager("535.104.05", running=True)
CLOSED = Devices((), (DeviceNode(f"{CHANNELS}/channel0", usable=False),), ())
OPEN = Devices((), (DeviceNode(f"{CHANNELS}/channel0", usable=True),), ())
NONE = links_of(0, 18)
ASLEEP = links_of(17, 1, "sleep")
A6000S = box(*(replace(HEALTHY, name="NVIDIA RTX A6000") for _ in range(3)))
BRIDGED = links_of(4, speed=14062, to="gpu")
UNBRIDGED = links_of(0, 4, speed=14062, to="gpu")
V100S = box(*(replace(HEALTHY, name="Tesla V100-SXM2-16GB") for _ in range(4)))
QUARTER = links_of(4, 2, speed=25781, to="gpu")
GUEST = Machine(virtual=True)
PRINTED_NONE = NvlinkStatus({6: GpuLinks("NVIDIA A100-SXM4-80GB", "", {})})


_fm_service = rows_of(
    pci=SWITCHES, manager=FabricManager("535.104.05", running=False), gpus=box(NO_FABRIC), container=Container()
)
CASES = {
    "nvl.fabric/fabric": Cases(
        bad=[
            ("FAIL node: GPU1", box(WAITING, REFUSED), LINKS, NO_LOG),
            ("WARN fabric: GPU1", box(JOINED, DEGRADED), LINKS, NO_LOG),
            ("FAIL node: GPU0", box(replace(WAITING, fabric=GpuFabric("not-started"))), LINKS, NO_LOG),
            ("WARN fabric: GPU0, GPU1, GPU2, GPU3", LONELY_TRAY, LINKS, NO_LOG),
        ],
        good=[
            (TRAY, LINKS, NO_LOG),
            (box(replace(WAITING, fabric=GpuFabric("not-started"))), NvLinks(((),)), NO_LOG),
            (box(replace(JOINED, name="NVIDIA GB300")), NvLinks(((),)), NO_LOG),
        ],
    ),
    "nvl.fabric/fm-service": Cases(
        bad=[
            _fm_service("FAIL node: nv-fabricmanager"),
            _fm_service(
                "WARN image: nv-fabricmanager",
                manager=OLD_MANAGER,
                gpus=Gpus(box(NO_FABRIC).all, "535.183.01", (12, 2)),
            ),
            _fm_service(
                "WARN node: nv-fabricmanager", manager=FabricManager("570.86.15", running=False), gpus=box(JOINED)
            ),
        ],
        good=[_fm_service(manager=FabricManager("570.86.15", running=True))],
    ),
    "nvl.fabric/imex": Cases(
        bad=[("FAIL image: /dev/nvidia-caps-imex-channels", TRAY, CLOSED, Settings(), TWO_TRAYS, NO_NCCL)],
        good=[
            (TRAY, OPEN, Settings(), TWO_TRAYS, NO_NCCL),
            (TRAY, NO_CHANNEL, Settings(), Launch(), NO_NCCL),
        ],
    ),
    "nvl.links": Cases(
        bad=[
            ("FAIL link: GPU0, GPU1, GPU2", H200S, NvLinks((NONE, NONE, NONE)), UNSAID, METAL, UNSAID),
            ("WARN node: GPU0, GPU1, GPU2", H200S, NvLinks((NONE, NONE, NONE)), UNSAID, GUEST, UNSAID),
            ("FAIL link: GPU6", UNSAID, UNSAID, PRINTED_NONE, UNSAID, UNSAID),
            ("WARN link: GPU0", box(V100S.all[0]), NvLinks((QUARTER,)), UNSAID, METAL, UNSAID),
        ],
        good=[
            (H200S, NvLinks((FULL, ASLEEP, Absent("GPU is lost"))), UNSAID, METAL, UNSAID),
            (A6000S, NvLinks((BRIDGED, BRIDGED, UNBRIDGED)), UNSAID, METAL, UNSAID),
            (V100S, NvLinks((QUARTER,) * 4), UNSAID, GUEST, UNSAID),
            (box(HEALTHY), NvLinks((NONE,)), UNSAID, GUEST, UNSAID),
            (box(replace(HEALTHY, name="NVIDIA L40S")), NvLinks(((),)), UNSAID, METAL, UNSAID),
            (UNSAID, UNSAID, NvlinkStatus({}), METAL, UNSAID),
        ],
    ),
    "nvl.rate": Cases(
        bad=[("WARN node: GPU0", box(HEALTHY), NvLinks((links_of(18, speed=13281),)), UNSAID)],
        good=[
            (A6000S, NvLinks((BRIDGED, BRIDGED, UNBRIDGED)), UNSAID),
            (box(replace(HEALTHY, name="NVIDIA L40S")), NvLinks(((),)), UNSAID),
        ],
    ),
}
