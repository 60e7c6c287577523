"""What the checks of NVLink must object to, and what they must accept."""

from itertools import product

from ncclprobe.checks.env.fixtures import NO_NCCL, having
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.nvl import (
    CHANNELS,
    CLUSTER,
    FULL,
    H200S,
    JOINED,
    LINKS,
    METAL,
    NO_CHANNEL,
    NO_CLUSTER,
    NO_LOG,
    REFUSED,
    SHORT,
    SWITCHES,
    TRAY,
    TWO_TRAYS,
    UNSAID,
    WAITING,
    Row,
    links_of,
)
from ncclprobe.expect.tables.gpus import nvlink_products
from ncclprobe.facts.driver import FabricManager
from ncclprobe.facts.kernel_log import KernelLog
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import GpuLinks, NvLinks, NvlinkStatus, parse
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


_SILENT = tuple(replace(link, speed_MBps=Absent("Not Supported")) for link in FULL)
_APART = replace(TRAY.all[3], fabric=replace(CLUSTER, clique=1))
_LOST = Absent("GPU is lost")
_ALL_8 = f"FAIL link: {', '.join(f'GPU{n}' for n in range(8))}"
_FEW_BRIDGES = ("NVIDIA A100 80GB PCIe", "NVIDIA A30", "NVIDIA H100 NVL", "NVIDIA RTX A6000")


def _boxed(name: str, *rows: Row, machine: Machine = METAL) -> tuple[object, ...]:
    """Return facts of one GPU of this name for each row of links."""
    return (box(*(replace(HEALTHY, name=name) for _ in rows)), NvLinks(rows), UNSAID, machine, UNSAID)


def _rated(name: str, speed: int) -> tuple[object, ...]:
    """Return facts of two GPUs of this name, all of whose links say this speed."""
    gpus, links, *_ = _boxed(name, *[links_of(nvlink_products()[name].nvlinks, speed=speed)] * 2)
    return (gpus, links, UNSAID)


_fm_service = rows_of(
    pci=SWITCHES, manager=FabricManager("535.104.05", running=False), gpus=box(NO_FABRIC), container=Container()
)


def printed(name: str, active: int, speed: str = "25 GB/s", gpu: int = 0, count: int = 12) -> str:
    """Return what `nvidia-smi nvlink -s` prints of one GPU, of whose links so many are active."""
    states = (f"\t Link {n}: {speed if n < active else '<inactive>'}\n" for n in range(count))
    return f"GPU {gpu}: {name} (UUID: GPU-1)\n{''.join(states)}"


_A100, _BRIDGED = "NVIDIA A100-SXM4-80GB", "NVIDIA RTX A6000"
_FOUR = "".join(printed(_A100, 12, gpu=n) for n in range(4))
_PAIR = "".join(printed(_BRIDGED, 4, "14.062 GB/s", gpu=n, count=4) for n in range(2))
_IDLE = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
_UNUSED = printed(_BRIDGED, 0, gpu=2, count=0) + _IDLE
_WELL = (printed(_A100, 12, gpu=7), _FOUR, _FOUR.replace("GPU-1", "GPU-redacted"), _PAIR)
_FAILED = replace(HEALTHY, fabric=replace(CLUSTER, status=3))
_OFF = NvLinks((links_of(17, 1, "traffic-disabled"),) * 3)
_QUARTER = NvlinkStatus({3: GpuLinks("NVIDIA H200", "", dict.fromkeys(range(18), 13.281))})
_TWELVE = links_of(12, 0, to="gpu")
_ONE_OPEN = replace(CLOSED, imex_channels=(*CLOSED.imex_channels, *OPEN.imex_channels))
_MNNVL = having(NCCL_MNNVL_ENABLE="1")
_TWO_SLOW = (*FULL[:16], *(replace(FULL[n], speed_MBps=speed) for n, speed in ((16, 9000), (17, 13281))))
CASES: Cases = {
    "nvl.fabric/fabric": [
        ("FAIL node: GPU0", box(_FAILED), LINKS, KernelLog((), 240.0)),
        ("FAIL node: GPU0", box(_FAILED, replace(WAITING, name="NVIDIA GB200")), LINKS, KernelLog((), 3600.0)),
        ("UNKNOWN: GPU0 with the NVLink fabric is in progress, 4 min after", box(WAITING), LINKS, KernelLog((), 240.0)),
        ("UNKNOWN: 60 min after the machine was started: wait", box(WAITING), LINKS, KernelLog((), 3600.0)),
        ("UNKNOWN: 60 min after the machine was started: it is stuck", box(WAITING), LINKS, KernelLog((), 3601.0)),
        ("UNKNOWN: in progress: wait", box(WAITING), LINKS, UNSAID),
        ("FAIL node: GPU1", box(WAITING, REFUSED), LINKS, NO_LOG),
        ("WARN fabric: GPU1", box(JOINED, DEGRADED), LINKS, NO_LOG),
        ("FAIL node: GPU0", box(replace(WAITING, fabric=GpuFabric("not-started"))), LINKS, NO_LOG),
        ("WARN fabric: GPU0, GPU1, GPU2, GPU3", LONELY_TRAY, LINKS, NO_LOG),
        ("WARN fabric: GPUs", replace(TRAY, all=(*TRAY.all[:3], _APART)), LINKS, NO_LOG), (TRAY, LINKS, NO_LOG),
        (box(replace(WAITING, fabric=GpuFabric("not-started"))), NvLinks(((),)), NO_LOG),
        (box(replace(JOINED, name="NVIDIA GB300")), NvLinks(((),)), NO_LOG),
    ],
    "nvl.fabric/fm-service": [
        _fm_service("FAIL node: nv-fabricmanager"), _fm_service(FabricManager("570.86.15", running=True)),
        _fm_service("NOTE unknown: nv-fabricmanager", box(JOINED), container=Absent("hidden")),
        _fm_service("WARN image: nv-fabricmanager", OLD_MANAGER, Gpus(box(NO_FABRIC).all, "535.183.01", (12, 2))),
        _fm_service("WARN node: nv-fabricmanager", FabricManager("570.86.15", running=False), box(JOINED)),
    ],
    "nvl.fabric/imex": [
        ("FAIL image: /dev/nvidia-caps-imex-channels", TRAY, CLOSED, _MNNVL, Launch(), NO_NCCL),
        (TRAY, _ONE_OPEN, Settings(), TWO_TRAYS, NO_NCCL),
        ("FAIL image: /dev/nvidia-caps-imex-channels", TRAY, CLOSED, Settings(), TWO_TRAYS, NO_NCCL),
        (TRAY, OPEN, Settings(), TWO_TRAYS, NO_NCCL), (TRAY, NO_CHANNEL, Settings(), Launch(), NO_NCCL),
    ],
    "nvl.links": [
        ("FAIL link: GPU6", UNSAID, UNSAID, parse(_FOUR + printed(_A100, 0, gpu=6, count=0) + _IDLE), UNSAID, UNSAID),
        ("NOTE unknown: GPU2", UNSAID, UNSAID, parse(_PAIR + _UNUSED), UNSAID, UNSAID),
        *((UNSAID, UNSAID, parse(text), UNSAID, UNSAID) for text in (*_WELL, "")),  # a part without NVLink: no output
        ("FAIL link: GPU0, GPU1, GPU2", H200S, NvLinks((NONE, NONE, NONE)), UNSAID, METAL, UNSAID),
        ("WARN node: GPU0, GPU1, GPU2", H200S, NvLinks((NONE, NONE, NONE)), UNSAID, GUEST, UNSAID),
        ("FAIL link: GPU6", UNSAID, UNSAID, PRINTED_NONE, UNSAID, UNSAID),
        ("WARN link: GPU0", box(V100S.all[0]), NvLinks((QUARTER,)), UNSAID, METAL, UNSAID),
        ("FAIL link: GPU1", H200S, NvLinks((FULL, SHORT, FULL)), UNSAID, METAL, UNSAID),
        ("FAIL link: GPU2; NOTE unknown: GPU0", H200S, NvLinks((_LOST, FULL, SHORT)), UNSAID, METAL, UNSAID),
        # leptonai/gpud#1085
        (_ALL_8, *_boxed("NVIDIA B200", *[links_of(0, 18, speed=53125)] * 8)),
        (_ALL_8, *_boxed("NVIDIA B200", *[links_of(0, 18, speed=53125)] * 8, machine=GUEST)),
        ("WARN link: GPU3", *_boxed("NVIDIA A100 80GB PCIe", *[_TWELVE] * 3, links_of(11, 1, to="gpu"))),
        ("FAIL link: GPU2", *_boxed("NVIDIA H400", FULL, FULL, SHORT)),  # in no table
        ("WARN node: GPU0, GPU1, GPU2, GPU3", *_boxed("NVIDIA GH200 480GB", *[NONE] * 4)),
        ("UNKNOWN: GPU is lost", H200S, NvLinks((_LOST,) * 3), UNSAID, METAL, UNSAID),
        ("NOTE unknown: GPU0, GPU1, GPU2", H200S, NvLinks((ASLEEP,) * 3), UNSAID, METAL, UNSAID),
        ("NOTE unknown: GPU0, GPU1, GPU2", H200S, _OFF, UNSAID, METAL, UNSAID),
        (H200S, NvLinks((FULL, ASLEEP, Absent("GPU is lost"))), UNSAID, METAL, UNSAID),
        (A6000S, NvLinks((BRIDGED, BRIDGED, UNBRIDGED)), UNSAID, METAL, UNSAID),
        (V100S, NvLinks((QUARTER,) * 4), UNSAID, GUEST, UNSAID),
        (box(HEALTHY), NvLinks((NONE,)), UNSAID, GUEST, UNSAID),
        (box(replace(HEALTHY, name="NVIDIA L40S")), NvLinks(((),)), UNSAID, METAL, UNSAID),
        (UNSAID, UNSAID, NvlinkStatus({}), METAL, UNSAID), _boxed("NVIDIA H400", SHORT, SHORT, SHORT),
        _boxed("NVIDIA H400", links_of(4, to="gpu"), links_of(4, to="gpu"), links_of(0, 4, to="gpu")),
        _boxed("NVIDIA H100", *[links_of(12, 6)] * 4),  # which of them this is, the name does not say
        (box(HEALTHY, replace(HEALTHY, name="NVIDIA L40S")), NvLinks((FULL, ())), UNSAID, METAL, UNSAID),
        (box(replace(HEALTHY, mig=True), HEALTHY), NvLinks(((), FULL)), UNSAID, METAL, UNSAID),
        *(_boxed("NVIDIA A100-SXM4-80GB", *[links_of(6, 6)] * count, machine=GUEST) for count in (1, 2, 4)),
        _boxed("NVIDIA GH200 480GB", NONE),
        _boxed("NVIDIA H100 80GB HBM3", tuple(replace(link, version=7) for link in FULL), FULL),  # seen on H100s
        *(_boxed(name, *(links_of(n, 18 - n, to="gpu") for n in (one, one, other, other)))
            for name, one, other in product(_FEW_BRIDGES, (0, 4), (0, 4))),
    ],
    "nvl.rate": [
        ("FAIL link: GPU1", H200S, NvLinks((FULL, _TWO_SLOW, FULL)), UNSAID), _rated("Tesla V100-SXM2-32GB", 25781),
        *((UNSAID, UNSAID, parse(text)) for text in (*_WELL, _PAIR + _UNUSED)), _rated("NVIDIA A100-SXM4-80GB", 25000),
        ("WARN node: GPU0", box(HEALTHY), NvLinks((links_of(18, speed=13281),)), UNSAID), _rated("NVIDIA B200", 53125),
        ("WARN node: GPU3", UNSAID, UNSAID, _QUARTER), (A6000S, NvLinks((BRIDGED, BRIDGED, UNBRIDGED)), UNSAID),
        ("UNKNOWN: NVML does not report the speed of the links", H200S, NvLinks((_SILENT,) * 3), UNSAID),
        ("NOTE unknown: GPU0", H200S, NvLinks((_SILENT, FULL, FULL)), UNSAID),
        (UNSAID, UNSAID, NvlinkStatus({3: GpuLinks("NVIDIA H200", "", dict.fromkeys(range(18), 26.562))})),
        (box(replace(HEALTHY, name="NVIDIA L40S")), NvLinks(((),)), UNSAID),
    ],
}  # fmt: skip
