"""What one GPU of a node has otherwise than its siblings, and whether they reach each other's memory."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ncclprobe.checks import JOB, NODE
from ncclprobe.checks.gpu import ERRORS_GROUP, MODE_GROUP, blanks, named, shown, unread
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.expect.tables import gpus as gpu_table
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus, P2pStatus, PeerAccess, unsupported
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from ncclprobe.nccl.paths import PathType, machine_topology

_WORDS = {
    "CNS": "not supported by the chipset",
    "GNS": "not supported by the GPU",
    "TNS": "not supported by the topology",
    "DR": "disabled by a driver registry key",
    "NS": "not supported",
    "U": "unknown to the driver",
}
_GPU_CLASS = Identity(0x030200, 0x10DE, 0x2335)
ADDRESSES = ("0000:03:00.0", "0000:04:00.0")
_PLACES = [PciPosition("pci0000:00", ("0000:00:01.0", "0000:01:00.0", f"0000:02:0{n}.0")) for n in (0, 1)]
_LINK = PcieLink(32.0, 16, 32.0, 16)
TREE = Pci({a: Device(a, _GPU_CLASS, place, _LINK) for a, place in zip(ADDRESSES, _PLACES, strict=True)})
TWO = box(*(replace(HEALTHY, pci=f"0000{address}") for address in ADDRESSES))
METAL, NO_LINKS = Machine(virtual=False), NvLinks(((), ()))


def access(status: P2pStatus, nvlink: P2pStatus) -> PeerAccess:
    """Return NVML's answer about two GPUs, for examples."""
    both = ((0, 1), (1, 0))
    return PeerAccess(*(dict.fromkeys(both, said) for said in (status, status, nvlink)))


@applies
def several_gpus(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs, if there are several."""
    return job.backend == "nccl" and (isinstance(gpus, Absent) or len(gpus.all) > 1)


@check(
    slows=True,
    bad=lambda: [(TWO, access("NS", "OK"), TREE, NO_LINKS, METAL)],
    good=lambda: [(TWO, access("OK", "OK"), TREE, NO_LINKS, METAL)],
    requires="gpu.smi-canary",
    applies=several_gpus,
)
def p2p(
    gpus: Gpus, peers: PeerAccess, pci: Pci | Absent, links: NvLinks | Absent, machine: Machine | Absent
) -> Iterator[Finding]:
    """GPUs cannot access each other's memory, although their connection allows it.

    Right: GPUs can access each other's memory if their connection allows it.
    Why: if NVLink connects two GPUs but NVML reports no peer-to-peer access, NCCL exits (graph/paths.cc, "P2P is
    disabled between NVLINK connected GPUs"). If a PCIe switch connects them, NCCL goes through host memory at about
    half the speed.
    Fix: for NVLink, run `systemctl start nvidia-fabricmanager`; also check whether MIG, confidential computing or a
    driver registry key disables it. For PCIe, turn ACS and IOMMU translation off, or accept the path through host
    memory. Do not set NCCL_IGNORE_DISABLED_P2P: it only hides the fault.
    """
    known = [status for table in (peers.read, peers.write) for status in table.values() if isinstance(status, str)]
    if not known:
        gaps = [status.why for status in peers.read.values() if isinstance(status, Absent)]
        raise Unlearned(gaps[0] if gaps else "NVML reports on no pair of GPUs")
    paths = {} if isinstance(pci, Absent) else machine_topology(pci, gpus, links, Fabric()).paths
    virtual, stops = isinstance(machine, Machine) and machine.virtual is True, False
    for one, other in sorted(peers.read):
        denied = _denied(peers, one, other)
        if one > other or not denied:
            continue
        pair, evidence = f"GPU{one} and GPU{other}", "nvmlDeviceGetP2PStatus (nvidia-smi topo -p2p rw)"
        message = f"peer-to-peer access is {_WORDS[denied]} ({denied})"
        path = paths.get((f"GPU{one}", f"GPU{other}"))
        if _joined(peers, one, other) or path is PathType.NVL or (path is None and _on_board(gpus)):
            stops = True  # NCCL gives up: nothing goes through the host's memory
            yield fail(pair, f"{message}, although NVLink connects them", **NODE, evidence=evidence)
        elif path is None or path > PathType.PXB or virtual or denied == "GNS" or _desktop(gpus, one, other):
            continue  # NCCL would not use it, or only the hypervisor or the product can change it
        else:
            far = f"{message}, although one PCIe switch connects the two ({path.name})"
            yield warn(pair, far, blame="node", action="fix-image", evidence=evidence)
    if not stops:
        yield from _no_access_anywhere(peers)


def _denied(peers: PeerAccess, one: int, other: int) -> str:
    """Return NVML's status of a pair that may not read or write, in one direction or both; otherwise empty."""
    said = [table.get(pair) for table in (peers.read, peers.write) for pair in ((one, other), (other, one))]
    return next((word for word in said if isinstance(word, str) and word != "OK"), "")


def _joined(peers: PeerAccess, one: int, other: int) -> bool:
    return peers.nvlink.get((one, other)) == "OK" and peers.nvlink.get((other, one)) == "OK"


def _on_board(gpus: Gpus) -> bool:
    """Return whether the GPUs are made for a board whose NVLinks join them all."""
    products = [gpu_table.table().get(gpu.name) for gpu in gpus.all]
    return len(products) == _OF_A_BOARD and all(product and product.wiring == "board" for product in products)


def _desktop(gpus: Gpus, *numbers: int) -> bool:
    """Return whether one of them is a product without peer-to-peer access over PCIe (nccl-tests#287)."""
    return any("GeForce" in gpu.name or "TITAN" in gpu.name for gpu in gpus.all if gpu.index in numbers)


def _no_access_anywhere(peers: PeerAccess) -> Iterator[Finding]:
    """Yield one note if no pair has access: NCCL then goes through the host's memory for all of them."""
    words = {_denied(peers, one, other) for one, other in peers.read}
    if words and "" not in words and not any(status == "OK" for status in peers.nvlink.values()):
        message = f"no pair has peer-to-peer access ({', '.join(sorted(words))}), so NCCL uses host memory"
        yield note("GPUs", message, evidence="nvmlDeviceGetP2PStatus (nvidia-smi topo -p2p rw)")


_OF_A_BOARD = 8
_FOR_A_SCREEN = 8
"""A card with this many times less memory than the others is there for a screen, as in a DGX Station A100."""

PROTECTED = replace(HEALTHY, ecc=True, ecc_pending=True, ecc_since_reset=0, ecc_ever=0, sram_worn=False)
STRUCK = replace(PROTECTED, ecc_since_reset=2, ecc_ever=2)
ALL = Environment({})


@applies
def has_ecc(job: Job, gpus: Gpus | Absent) -> bool:
    """to jobs on GPUs whose memory has error correction (ECC)."""
    told = [] if isinstance(gpus, Absent) else [unsupported(gpu.ecc) for _, gpu in named(gpus)]
    return job.backend == "nccl" and not (told and all(told))


@check(
    group=ERRORS_GROUP,
    bad=lambda: [(box(PROTECTED, STRUCK),)],
    good=lambda: [(box(PROTECTED, PROTECTED),)],
    requires="gpu.smi-canary",
    applies=has_ecc,
)
def ecc(gpus: Gpus) -> Iterator[Finding]:
    """A GPU's memory has had uncorrectable errors.

    Right: No GPU's memory has had an uncorrectable error since its last reset.
    Why: such an error ends the whole job that hits it (Xid 48, 94, 95). Errors counted since the last reset are not
    repaired yet: DCGM's health watch and Meta's GCM fail a GPU at the first one. A reset repairs older errors by
    remapping rows or retiring pages. SRAM errors are the exception: NVIDIA replaces a GPU that exceeds its own
    threshold ("SRAM Threshold Exceeded" in nvidia-smi -q).
    Fix: drain the node, reset the GPU (`nvidia-smi --gpu-reset -i N`) and run `dcgmi diag -r 3`. If errors return or
    the SRAM threshold is exceeded, have the GPU replaced.
    """
    for name, gpu in named(gpus):
        if gpu.sram_worn is True:
            message = "its SRAM has had more uncorrectable errors than NVIDIA allows, so have the GPU replaced"
            yield fail(name, message, evidence="nvmlDeviceGetSramEccErrorStatus", **NODE)
        if isinstance(gpu.ecc_since_reset, int) and gpu.ecc_since_reset:
            message = f"its memory has had {_errors(gpu.ecc_since_reset)} since its last reset"
            yield fail(name, message, evidence="nvmlDeviceGetTotalEccErrors (volatile)", **NODE)
        elif isinstance(gpu.ecc_since_reset, int) and isinstance(gpu.ecc_ever, int) and gpu.ecc_ever:
            message = f"its memory has had {_errors(gpu.ecc_ever)} over its lifetime, but none since its last reset"
            yield note(name, message, evidence="nvmlDeviceGetTotalEccErrors (aggregate)")
    yield from unread(gpus, "ecc_since_reset", "nvmlDeviceGetTotalEccErrors")


def _errors(count: int) -> str:
    return f"{count} uncorrectable error{'s' * (count != 1)}"


@check(
    group=MODE_GROUP,
    slows=True,
    bad=lambda: [(box(PROTECTED, replace(PROTECTED, ecc_pending=False)), ALL)],
    good=lambda: [(box(PROTECTED, PROTECTED), ALL)],
    requires="gpu.smi-canary",
    applies=has_ecc,
)
def ecc_mode(gpus: Gpus, environment: Environment | Absent) -> Iterator[Finding]:
    """Error correction (ECC) is off on some GPUs, or will change with the next reset.

    Right: Error correction (ECC) is on for all GPUs of the job, or off for all.
    Why: without ECC a flipped bit silently causes wrong gradients. On cards that store the check bits in ordinary
    memory, ECC also changes the amount of usable memory, so a job that fits one GPU may not fit another. A pending
    change takes effect at the next reset, so the node behaves differently after its next reboot.
    Fix: run `nvidia-smi -e 1` as root for the GPUs that the finding names, then reset them or reboot the node.
    """
    known = {name: gpu for name, gpu in shown(gpus, environment) if isinstance(gpu.ecc, bool)}
    off = [name for name, gpu in known.items() if not gpu.ecc]
    blamed: dict[str, Any] = {"blame": "node", "action": "fix-image", "evidence": "nvmlDeviceGetEccMode"}
    if off and len(off) < len(known):
        yield warn(", ".join(off), "ECC is off here but on for the other GPUs", **blamed)
    changing = [name for name, gpu in known.items() if gpu.ecc_pending is (not gpu.ecc)]
    if changing:
        to = "on" if known[changing[0]].ecc_pending else "off"
        yield warn(", ".join(changing), f"ECC will be {to} after the next reset or reboot", **blamed)
    unknown = {n: g.ecc for n, g in shown(gpus, environment) if isinstance(g.ecc, Absent) and not unsupported(g.ecc)}
    yield from blanks(unknown, len(known) + len(unknown), "nvmlDeviceGetEccMode")


OTHER = replace(HEALTHY, name="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30)
_SCREEN = Environment({"CUDA_VISIBLE_DEVICES": "0,1,2"})


@check(
    slows=True,
    bad=lambda: [(box(HEALTHY, HEALTHY, HEALTHY, OTHER), ALL)],
    good=lambda: [(box(HEALTHY, HEALTHY, HEALTHY, OTHER), _SCREEN)],
    requires="gpu.smi-canary",
    applies=several_gpus,
)
def model(gpus: Gpus, environment: Environment | Absent) -> Iterator[Finding]:
    """A GPU's model or amount of memory differs from the others.

    Right: All GPUs of the job have the same model and amount of memory.
    Why: the slowest GPU sets the pace of every collective, NCCL tunes for the oldest (src/init.cc), and a batch that
    fits the others may not fit the smallest. If one GPU of a uniform machine differs, a repair probably used the wrong
    part.
    Fix: have the GPU that differs replaced, or exclude it: set CUDA_VISIBLE_DEVICES to the numbers of the others.
    """
    ours = dict(shown(gpus, environment))
    if ours and not any(gpu.name for gpu in ours.values()):
        raise Unlearned("no GPU's model is known")
    most = max(map(_gib, ours.values()), default=0)
    small = {name: gpu for name, gpu in ours.items() if isinstance(gpu.memory_bytes, int) and _tiny(gpu, most)}
    for name, gpu in small.items():
        message = f"{gpu.name} with {_gib(gpu)} GiB is meant for a display; exclude it with CUDA_VISIBLE_DEVICES"
        yield note(name, message, evidence="nvmlDeviceGetName")
    ours = {name: gpu for name, gpu in ours.items() if name not in small}
    yield from _unlike(ours, lambda gpu: gpu.name, str, "nvmlDeviceGetName")
    for product in {gpu.name for gpu in ours.values()}:
        sized = {n: g for n, g in ours.items() if g.name == product and isinstance(g.memory_bytes, int)}
        yield from _unlike(sized, _gib, "{} GiB".format, "nvmlDeviceGetMemoryInfo")


def _tiny(gpu: Gpu, most: int) -> bool:
    return _FOR_A_SCREEN * _gib(gpu) < most


def _gib(gpu: Gpu) -> int:
    return (gpu.memory_bytes if isinstance(gpu.memory_bytes, int) else 0) + (1 << 29) >> 30


def _unlike(
    gpus: dict[str, Gpu], read: Callable[[Gpu], Any], say: Callable[[Any], str], evidence: str
) -> Iterator[Finding]:
    """Yield one finding if `read` gives different values: on the few GPUs that differ, or on all if none are few."""
    counted = Counter(map(read, gpus.values())).most_common()
    if len(counted) < 2:
        return
    usual, times = counted[0]
    odd = [name for name, gpu in gpus.items() if read(gpu) != usual]
    if 2 * times > len(gpus):
        values = " and ".join(say(value) for value, _ in counted[1:])
        message = f"{values}, but the other {times} have {say(usual)}"
        yield warn(", ".join(odd), message, **NODE, evidence=evidence)
    else:
        message = "; ".join(f"{count} x {say(value)}" for value, count in counted)
        yield warn("GPUs", f"are not all the same: {message}", **JOB, evidence=evidence)
