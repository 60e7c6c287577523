"""What the checks of GPUs must object to, and what they must accept."""

from typing import Any, get_args

from ncclprobe.checks.gpu.driver import BOX, BUS, FELL, NO_DRIVER, NODES, PAIR, REST, log
from ncclprobe.checks.gpu.siblings import ALL, METAL, NO_LINKS, OTHER, PROTECTED, TREE, TWO, access
from ncclprobe.checks.gpu.state import CAPPED, FULL, GIB, HEALTHY, WELL, box
from ncclprobe.facts.driver import Driver
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine, NamedMachine
from ncclprobe.facts.nvidia_smi import Smi
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus, P2pStatus, PeerAccess
from ncclprobe.facts.pci import NVIDIA, Device, Identity, Pci, PciPosition
from ncclprobe.facts.process import Container, DeviceNode, Devices
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

EIGHT_RANKS = Launch("torchrun", 0, 8, 0, 8, 1)
NO_NVML = Absent("NVML: no libnvidia-ml.so.1", "Missing")
FEWER = Gpus(tuple(Gpu(n, "NVIDIA H200") for n in range(7)), "570.86.15", (12, 8))
ONE_LOST = Gpus((Gpu(0, "NVIDIA H200"), Gpu(1, lost="NVML nvmlDeviceGetName: GPU is lost")), "570.86.15", (12, 8))
_UNASKED = Absent("NVML nvmlDeviceGetP2PStatus: Function Not Found", "Missing")
_SILENT = PeerAccess(*({(0, 1): _UNASKED, (1, 0): _UNASKED} for _ in range(3)))
_ONE_WAY = PeerAccess(access("OK", "OK").read, {**access("OK", "OK").write, (1, 0): "NS"}, access("OK", "OK").nvlink)
_LINKED = NvLinks(tuple((NvLink(0, "active", remote="gpu", remote_pci=f"00000000:0{4 - n}:00.0"),) for n in range(2)))
BARE_HOST, DOCKER = Container(), Container("docker", "/.dockerenv")
EIGHT_NODES = Devices((*NODES.nvidia, DeviceNode("/dev/nvidia7", usable=True)), (), ())
_CLOSED_TO_ONE = Devices((*NODES.nvidia, DeviceNode("/dev/nvidia7", usable=False)), (), ())
_WITHOUT_UVM = Devices(NODES.nvidia[:-1], (), ())


def on_the_bus(driver: str = "", gpus: int = 1) -> Pci:
    """Return the bus of a node with `gpus` GPUs, to which `driver` is bound."""
    identity = Identity(0x030200, NVIDIA, 0x2335, driver=driver)
    slots = [f"0000:{0x17 + n:02x}:00.0" for n in range(gpus)]
    return Pci({slot: Device(slot, identity, PciPosition("pci0000:15", ()), Absent("not asked")) for slot in slots})


_NO_NODES = Devices((), (), ())
_LOADED = Driver("570.86.15", "open")
_GIVEN = Environment({"SLURM_GPUS_ON_NODE": "8"})
_IN_A_PROLOG = Environment({"SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7"})
_PASSED_ON = on_the_bus("vfio-pci")
EIGHT_ON_THE_BUS = on_the_bus("nvidia", 8)
DESKTOP = box(*(replace(gpu, name="NVIDIA GeForce RTX 4090") for gpu in TWO.all))
GUEST = Machine(virtual=True)
WORN = replace(PROTECTED, ecc_ever=9, sram_worn=True)
REPAIRED = replace(PROTECTED, ecc_ever=1)
NO_SUCH_THING = Absent("NVML nvmlDeviceGetRemappedRows: Not Supported", "Failed")
_EXCLUSIVE = replace(HEALTHY, compute_mode="exclusive-process")
BARE = replace(HEALTHY, ecc=False, ecc_pending=False, ecc_since_reset=NO_SUCH_THING, ecc_ever=NO_SUCH_THING)
REFUSED = Absent("NVML nvmlDeviceGetRemappedRows: Unknown Error", "Failed")
_UNTOLD = replace(HEALTHY, throttle=REFUSED)
CLEARED = Event(4000.0, "xid", BUS, "154", "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")
LINK = Event(3600.0, "xid", BUS, "145", "RLW_REMAP Fatal XC0 i0 Link 13", fatal=True)
LINK_SOFT = Event(3600.0, "xid", BUS, "145", "RLW_RXPIPE Nonfatal XC0 i0 Link 13", fatal=False)


_LOST = replace(HEALTHY, lost="NVML nvmlDeviceGetMemoryInfo: GPU is lost")
_GRAVE_XIDS = ("48", "64", "74", "79", "95", "119", "120", "140")
_OTHER_XIDS = ("13", "31", "43", "45", "63", "121", "999")
_NAMES = enumerate(("GPU-8a31-0", "GPU-8b31-1", "GPU-8c31-2"))
_UNLIKE = box(*(replace(HEALTHY, name="V100" if n == 1 else "H100", uuid=uuid) for n, uuid in _NAMES))
_SEEING_TWO = ("0,2", "GPU-8a31,GPU-8c", "GPU-8a31-0,GPU-8c31-2")


def _nvlink(code: int, fatal: bool = True) -> Event:
    """Return what a Blackwell reports of an NVLink."""
    return Event(7000.0 if fatal else 7100.0, "xid", BUS, str(code), "", fatal=fatal)


_TOLD_APART = replace(PAIR, all=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in PAIR.all))

_count = rows_of(
    gpus=FEWER, job=Job(), launch=Launch(), devices=_NO_NODES, pci=EIGHT_ON_THE_BUS, driver=_LOADED,
    environment=Environment(), container=BARE_HOST,
)  # fmt: skip
_NOTHING_SEEN: dict[str, Any] = {"gpus": NO_NVML, "driver": NO_DRIVER, "pci": _PASSED_ON}
_SHUT = Devices((DeviceNode("/dev/nvidia-uvm", usable=False),), (), ())
_SEE_ALL = [Environment({"NVIDIA_VISIBLE_DEVICES": each}) for each in ("", "all")]
_SECOND_PAIR = PeerAccess({(0, 1): "OK", (0, 2): "NS"}, {(1, 0): "OK", (2, 0): "NS"}, {})
_GRACES = ("GH200 480GB", "NVIDIA GB200", "NVIDIA GB300")
_IN_A_CONTAINER = Environment({"NVIDIA_VISIBLE_DEVICES": "GPU-8a31,GPU-8c31,MIG-1"})
_p2p = rows_of(gpus=TWO, peers=access("CNS", "NS"), pci=TREE, links=NO_LINKS, machine=METAL)
_SLOWED = replace(HEALTHY, throttle=("hw-thermal-slowdown",))
_TWINS = Gpus(tuple(replace(gpu, uuid="GPU-1") for gpu in PAIR.all), "570", (12, 8))
_REFUSED = [access(each, "NS") for each in get_args(P2pStatus) if each not in ("OK", "GNS")]
_UNSEEN_USE = replace(HEALTHY, memory_used_bytes=REFUSED, processes=REFUSED)
_OTHERS, _SLOWDOWNS = ("processes", "memory_bytes"), ("hw", "hw-thermal", "hw-power-brake", "sw-thermal")
_MUTE: dict[str, Any] = {"temperature_C": REFUSED, "hot_s": REFUSED, "clock_MHz": REFUSED, "power_limit_W": REFUSED}
_OLDER = [replace(each, name="NVIDIA A100") for each in (FULL, CAPPED)]
CASES: Cases = {
    "gpu.smi-canary": [("FAIL node: nvidia-smi", Smi(gpus=1), PAIR), (Smi(gpus=2), PAIR)],
    "gpu.count": [
        _count("FAIL image: /dev/nvidia-uvm", PAIR, _SHUT, Pci()), _count(PAIR, NODES, pci=Absent("no sysfs")),
        _count(PAIR, Devices(Absent("hidden"), (), ()), Pci()), _count("FAIL node: GPUs", EIGHT_NODES),
        _count("NOTE unknown: GPUs", EIGHT_NODES, container=Absent("hidden")), _count(PAIR, _WITHOUT_UVM, Pci()),
        _count("FAIL node: GPUs", Environment({"SLURM_GPUS_ON_NODE": "0", "SLURM_JOB_GPUS": "0,1"}), **_NOTHING_SEEN),
        _count("FAIL node: GPUs", Environment({"NVIDIA_VISIBLE_DEVICES": "GPU-8a31, MIG-8c31,0"}), **_NOTHING_SEEN),
        *(_count("FAIL node: GPUs", EIGHT_NODES, environment=each) for each in (*_SEE_ALL, Absent("hidden"))),
        _count("NOTE unknown: GPUs", EIGHT_NODES, Environment({"NVIDIA_VISIBLE_DEVICES": "0,1"})),
        _count("NOTE unknown: GPUs", EIGHT_NODES, Environment({"HOME": "/root", "SLURM_JOB_ID": "7"})),
        *(_count(PAIR, nodes, Pci(), container=Absent("hidden")) for nodes in (_WITHOUT_UVM, _NO_NODES)),
        ("FAIL node: GPUs", FEWER, Job(), Launch(), NODES, *REST, NamedMachine("DGX H100")), _count(_CLOSED_TO_ONE),
        ("FAIL node: GPUs", PAIR, Job(), Launch(), NODES, *REST, NamedMachine("DGX H100", gpus=4)),
        (PAIR, Job(), Launch(), NODES, *REST, NamedMachine("DGX H100", gpus=2)), _count(EIGHT_NODES, DOCKER),
        (PAIR, Job(), Launch(), NODES, *REST, NamedMachine("DGX H100", partial=True)), _count(EIGHT_NODES, _GIVEN),
        _count("FAIL node: GPUs", _PASSED_ON, _IN_A_CONTAINER, gpus=NO_NVML, driver=NO_DRIVER),
        ("FAIL node: GPU1", ONE_LOST, Job(), Launch(), NODES, *REST), (_TOLD_APART, Job(), Launch(), NODES, *REST),
        ("FAIL node: GPUs", FEWER, Job(), EIGHT_RANKS, NODES, *REST), _count(EIGHT_NODES, on_the_bus("vfio-pci", 8)),
        ("FAIL node: GPUs", NO_NVML, Job(), EIGHT_RANKS, NODES, *REST),
        ("FAIL node: GPUs", NO_NVML, Job(expect_gpus=1), Launch(), _NO_NODES, *REST),
        _count("FAIL node: GPUs", on_the_bus(), gpus=NO_NVML, driver=NO_DRIVER),
        _count("FAIL job: GPUs", on_the_bus("nvidia"), gpus=NO_NVML),
        _count("FAIL node: GPUs", _PASSED_ON, _GIVEN, gpus=NO_NVML, driver=NO_DRIVER),
        _count("FAIL node: GPUs", _PASSED_ON, _IN_A_PROLOG, gpus=NO_NVML, driver=NO_DRIVER),
        _count("FAIL image: /dev/nvidia-uvm", PAIR, _WITHOUT_UVM, Pci(), DOCKER),
        ("WARN node: GPU0, GPU1", _TWINS, Job(), Launch(), NODES, *REST),
        (PAIR, Job(expect_gpus=2), Launch("torchrun", 0, 2, 0, 2, 1), NODES, *REST),
        (Gpus(PAIR.all[:1], "570.86.15", (12, 8)), Job(), EIGHT_RANKS, NODES, *REST),
        (replace(PAIR, instead_of_nvml="NVML: no libnvidia-ml.so.1"), Job(), Launch(), NODES, *REST),
    ],
    "gpu.p2p": [
        _p2p("FAIL node: GPU0 and GPU2", box(*[HEALTHY] * 8), _SECOND_PAIR, pci=Absent("hidden")),
        _p2p("NOTE unknown: GPUs", box(replace(TWO.all[0], name="NVIDIA TITAN RTX"), TWO.all[1])),
        _p2p("WARN node: GPU0 and GPU1; NOTE unknown: GPUs", box(*TWO.all, DESKTOP.all[0])),
        _p2p("UNKNOWN: the first", PeerAccess({(0, 1): Absent("the first"), (1, 0): Absent("the last")}, {}, {})),
        _p2p("FAIL node: GPU0 and GPU1", box(*[HEALTHY] * 8), pci=Absent("hidden")),
        *(_p2p("NOTE unknown: GPUs", box(*each), pci=Absent("hidden"))
            for each in ([HEALTHY] * 7, [DESKTOP.all[0]] * 8)),
        _p2p("NOTE unknown: GPUs", box(*(replace(gpu, name="NVIDIA TITAN RTX") for gpu in TWO.all))),
        _p2p("WARN node: GPU0 and GPU1; NOTE unknown: GPUs"), _p2p("FAIL node: GPU0 and GPU1", _ONE_WAY),
        _p2p("FAIL node: GPU0 and GPU1", access("NS", "NS"), _LINKED),  # no way through host memory: NCCL gives up
        _p2p("UNKNOWN: NVML nvmlDeviceGetP2PStatus: Function Not Found", _SILENT),
        *(_p2p("WARN node: GPU0 and GPU1; NOTE unknown: GPUs", each) for each in _REFUSED),
        _p2p("NOTE unknown: GPUs", access("GNS", "NS")), _p2p(GUEST), _p2p(Pci()), _p2p(DESKTOP),
    ],
    "gpu.errors/ecc": [
        (box(PROTECTED, replace(PROTECTED, ecc_ever=REFUSED)),), (box(PROTECTED, REPAIRED),), (box(BARE, PROTECTED),),
        ("FAIL node: GPU1; NOTE unknown: GPU1", box(PROTECTED, WORN)),
    ],
    "gpu.mode/ecc-mode": [
        ("WARN node: GPU0", box(replace(BARE, ecc_pending=True), BARE), ALL),
        ("WARN node: GPU2", box(PROTECTED, PROTECTED, BARE), ALL), (box(BARE, BARE), ALL),
        (box(BARE, PROTECTED), Environment({"CUDA_VISIBLE_DEVICES": "1"})),
        (box(PROTECTED, replace(HEALTHY, ecc=NO_SUCH_THING, name="NVIDIA T400")), ALL),
    ],
    "gpu.model": [
        ("UNKNOWN: no GPU's model is known", box(*[replace(HEALTHY, name="")] * 2), ALL), (box(_LOST, _LOST), ALL),
        ("WARN node: GPU1", _UNLIKE, Environment({"CUDA_VISIBLE_DEVICES": "9"})),  # it names none of them
        ("WARN node: GPU1", _UNLIKE, ALL),
        *((_UNLIKE, Environment({"CUDA_VISIBLE_DEVICES": text})) for text in _SEEING_TWO),
        ("WARN job: GPUs", box(HEALTHY, OTHER), ALL),
        ("WARN node: GPU2", box(HEALTHY, HEALTHY, replace(HEALTHY, memory_bytes=70 << 30)), ALL), (WELL, ALL),
        (box(HEALTHY, HEALTHY, replace(HEALTHY, memory_bytes=REFUSED)), ALL),
        (box(HEALTHY, HEALTHY, replace(HEALTHY, name="NVIDIA DGX Display", memory_bytes=4 << 30)), ALL),
    ],
    "gpu.clocks/throttle": [
        *(("WARN node: GPU0", box(replace(HEALTHY, throttle=(f"{each}-slowdown",)))) for each in _SLOWDOWNS),
        ("NOTE unknown: GPU1", box(HEALTHY, replace(HEALTHY, throttle=NO_SUCH_THING))),
        ("WARN node: GPU0", box(replace(HEALTHY, throttle=("hw-slowdown", "hw-power-brake-slowdown")))),
        ("WARN node: GPU0", box(replace(HEALTHY, throttle=("hw-slowdown",)))),
        ("NOTE unknown: GPU1, GPU2", box(HEALTHY, _UNTOLD, _UNTOLD)),
        ("UNKNOWN: no GPU could be looked at", box(_LOST, _LOST)),
        ("WARN node: GPU0; NOTE unknown: GPU1", box(_SLOWED, _UNTOLD, HEALTHY)),
        ("UNKNOWN: NVML nvmlDeviceGetRemappedRows: Unknown Error", box(_UNTOLD)),
        (box(replace(HEALTHY, throttle=("sw-power-cap",)), replace(HEALTHY, throttle=REFUSED)),),
    ],
    "gpu.errors/remap": [
        ("UNKNOWN: Unknown Error", box(replace(HEALTHY, remap_pending=REFUSED, remap_failed=REFUSED))),
        ("UNKNOWN: no GPU could be looked at", box(_LOST, _LOST)),
        ("FAIL node: GPU1", box(HEALTHY, replace(HEALTHY, remap_failed=True))),
        (box(HEALTHY, replace(HEALTHY, remap_pending=NO_SUCH_THING, remap_failed=NO_SUCH_THING)),),
    ],
    "gpu.busy": [
        ("WARN unknown: GPU2; NOTE unknown: GPU1", box(HEALTHY, _UNSEEN_USE, replace(HEALTHY,
            memory_used_bytes=70 * GIB))),
        *(("WARN unknown: GPU0", box(replace(HEALTHY, memory_used_bytes=70 * GIB, **{each: REFUSED})))
            for each in _OTHERS),
        ("UNKNOWN: no GPU could be looked at", box(_LOST, _LOST)),
        ("WARN unknown: GPU1", box(HEALTHY, replace(HEALTHY, memory_used_bytes=70 * GIB, processes=(70 * GIB,)))),
        ("FAIL unknown: GPU1", box(HEALTHY, replace(HEALTHY, memory_used_bytes=141 * GIB))),
        ("FAIL unknown: GPU0", box(replace(HEALTHY, memory_bytes=513 << 20, memory_used_bytes=0))),
        ("WARN unknown: GPU0", box(replace(HEALTHY, memory_used_bytes=40 * GIB))),
        ("NOTE unknown: GPU0", box(replace(HEALTHY, processes=(None, 30 << 20)))),
        *((box(replace(HEALTHY, name=each, memory_used_bytes=141 * GIB)),) for each in _GRACES),
    ],
    "gpu.mode/mig": [
        ("WARN node: GPU0, GPU2", box(*(replace(HEALTHY, mig=n != 1) for n in range(3))), Launch()),
        ("UNKNOWN: no GPU could be looked at", box(_LOST, _LOST), Launch()),
        ("WARN node: GPU0", box(replace(HEALTHY, mig=True)), Launch("torchrun", 0, 2, 0, 2, 1)),
        ("WARN node: GPU1", box(HEALTHY, replace(HEALTHY, mig_pending=True)), Launch()),
        ("WARN node: GPU0", box(replace(HEALTHY, mig=True), HEALTHY), Launch()),
        (box(replace(HEALTHY, mig=True), replace(HEALTHY, mig=True)), Launch()),
    ],
    "gpu.mode/persistence": [
        ("NOTE unknown: GPU1", box(HEALTHY, replace(HEALTHY, persistence=NO_SUCH_THING))),
        (box(replace(HEALTHY, persistence=False), replace(HEALTHY, persistence=False)),),
    ],
    "gpu.mode/compute-mode": [
        ("NOTE unknown: GPU1", box(HEALTHY, replace(HEALTHY, compute_mode=NO_SUCH_THING)), Job()),
        ("FAIL unknown: GPU0", box(replace(_EXCLUSIVE, processes=(600 << 20,))), Job()),
        ("WARN unknown: GPU0", box(replace(_EXCLUSIVE, processes=(None,))), Job()), (box(_EXCLUSIVE), Job()),
        (box(replace(_EXCLUSIVE, processes=(30 << 20,))), Job()),  # the server of MPS
    ],
    "gpu.errors/xid": [
        ("FAIL node: GPU0; NOTE unknown: GPU0", log(FELL, Event(4000.0, "xid", BUS, "31", "jumped to 0x0")), BOX),
        ("FAIL node: 0000:07:00", log(FELL), box(replace(HEALTHY, pci=""))),
        ("FAIL node: a GPU", log(replace(FELL, device="", text="x" * 99 + " y" * 99)), BOX),
        ("FAIL node: GPU0; NOTE unknown: 0000:17:00", log(FELL, replace(CLEARED, device="0000:17:00")), BOX),
        ("NOTE unknown: NVSwitch 0000:07:00", log(Event(9.0, "sxid", BUS, "20034", "Link 44", False)), BOX),
        ("WARN node: GPU0", log(replace(CLEARED, text="from 0x0 (None to do) to 0x1 (GPU Reset Required).")), BOX),
        ("FAIL node: GPU0", log(_nvlink(144), _nvlink(144, fatal=False)), BOX),
        ("FAIL node: GPU0", log(Event(7000.0, "lost", BUS, "", "GPU is lost")), BOX),
        # less than a minute ago
        ("FAIL node: GPU0", log(Event(7000.0, "xid", BUS, "79", "off"), uptime_s=7030.0), BOX),
        *(("FAIL node: GPU0", log(Event(7000.0, "xid", BUS, code, "text")), BOX) for code in _GRAVE_XIDS),
        *(("WARN node: GPU0", log(Event(7000.0, "xid", BUS, code, "text")), BOX) for code in ("62", "92", "94", "109")),
        *(("NOTE unknown: GPU0", log(Event(7000.0, "xid", BUS, code, "text")), BOX) for code in _OTHER_XIDS),
        *(("FAIL node: GPU0", log(_nvlink(code), _nvlink(code, fatal=False)), BOX) for code in range(144, 151)),
        *((log(_nvlink(code, fatal=False)), BOX) for code in range(144, 151)), ("FAIL node: GPU0", log(LINK), BOX),
        ("FAIL node: NVSwitch 0000:07:00", log(Event(9.0, "sxid", BUS, "20034", "Fatal, Link 44", True)), BOX),
        ("WARN node: GPU0", log(replace(FELL, at_s=100.0), uptime_s=300_000.0), BOX),
        ("FAIL node: GPU0; NOTE unknown: GPU0", log(FELL, CLEARED, replace(FELL, at_s=5000.0)), BOX),
        ("FAIL node: GPU0", log(*(replace(FELL, at_s=3600.0 + n) for n in range(50)), uptime_s=7300.0), BOX),
        ("NOTE unknown: kernel log", replace(log(uptime_s=100_000.0), oldest_s=90_000.0), BOX),
        (log(LINK_SOFT), BOX), (log(FELL, CLEARED), BOX), (log(Event(9.0, "xid", BUS, "31", "pid=1, MMU Fault")), BOX),
    ],
    "gpu.clocks/limits": [
        ("NOTE unknown: GPU1", box(FULL, replace(FULL, **_MUTE))), (box(FULL, replace(FULL, temperature_C=86)),),
        (box(replace(FULL, temperature_C=95, slowdown_C=REFUSED)),), ("WARN image: GPU0", box(CAPPED)),
        ("WARN node: GPU3, GPU1", box(FULL, CAPPED, *_OLDER)), (box(*(replace(FULL, hot_s=5400) for _ in range(3))),),
        ("NOTE image: GPU0", box(replace(FULL, power_limit_W=420))),
        ("WARN node: GPU2", box(*(replace(FULL, hot_s=each) for each in (5, 5, 61)))),
        ("WARN node: GPU1", box(FULL, replace(FULL, temperature_C=87))),
        ("WARN image: GPU0, GPU1, GPU2", box(*(replace(FULL, clock_MHz=345),) * 3)),
        ("WARN node: GPU1", box(FULL, replace(FULL, temperature_C=89))),
        ("WARN node: GPU2", box(FULL, FULL, replace(FULL, clock_MHz=990))),
        ("WARN node: GPU2", box(FULL, FULL, replace(FULL, hot_s=5400))),
        (box(*(replace(FULL, power_limit_W=500) for _ in range(8))),),
        (box(FULL, replace(FULL, power_default_W=Absent("NVML: Not Supported"), temperature_C=60)),),
    ],
    "gpu.errors/replays": [
        (box(replace(FULL, pcie_replays=5000)),),
        ("NOTE unknown: GPU1", box(FULL, replace(FULL, pcie_replays=REFUSED))),
    ],
}  # fmt: skip
