"""Whether the driver answers, and for which GPUs."""

import re
from collections.abc import Iterator, Sequence

from ncclprobe.checks.gpu import gpu_job
from ncclprobe.errors import Unlearned
from ncclprobe.facts.driver import Driver
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.limits import DeviceNode, Devices
from ncclprobe.facts.nvidia_smi import Smi
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.layout import first_of
from ncclprobe.model.findings import Evidence, Finding, fail, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Job

PAIR = Gpus((Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200")), driver="570.86.15", cuda=(12, 8))
NODES = Devices(tuple(DeviceNode(f"/dev/nvidia{n}", usable=True) for n in (*range(7), "ctl", "-uvm")), (), ())

_NO_DRIVER = Absent("no module", "Missing")
_REST = Pci(), _NO_DRIVER, Environment()
NO_SMI = Absent("nvidia-smi: not there", "Missing")


_TO_A_GUEST, _MOST_SHOWN = "vfio-pci", 4
_CUDA_NODE = "/dev/nvidia-uvm"
_START_WITH_GPUS = (
    "the driver is loaded, and this process was started without its devices: start the container with GPUs (`docker "
    "run --gpus all`, nvidia.com/gpu in its resources, `srun --gpus-per-node`)"
)
_LOAD_DRIVER = (
    "load NVIDIA's driver, or install it: `modprobe nvidia`, then `nvidia-smi`; on a node whose GPUs no job uses: "
    "--backend gloo"
)


@check(
    bad=lambda: [(Smi(wedged="nvidia-smi -L: no answer within 60 s"), Absent("not asked"))],
    good=lambda: [(NO_SMI, PAIR)],
    required=True,
    applies=gpu_job,
)
def smi_canary(smi: Smi | Absent, gpus: Gpus | Absent) -> Iterator[Finding]:
    """nvidia-smi does not return.

    Right: nvidia-smi returns.
    Why: a wedged driver lets every CUDA call of a job hang in the same way, without a message. Up to 3 s per GPU are
    normal without persistence mode, so that only a minute without an answer counts. Containers that lack nvidia-smi are
    as well served by NVML, which answers through the same driver.
    Fix: look for Xid messages (`dmesg | grep -i xid`), then drain the node and reboot it.
    """
    if isinstance(smi, Absent):
        if smi.refused != "Missing" or isinstance(gpus, Absent):
            raise Unlearned(smi.why)
    elif smi.wedged:
        yield fail("nvidia-smi", smi.wedged, blame="node", action="repair", evidence="nvidia-smi -L")


@check(
    bad=lambda: [(PAIR, Job(expect_gpus=8), Launch(), NODES, *_REST)],
    good=lambda: [(PAIR, Job(), Launch(), NODES, *_REST)],
    required=True,
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def count(
    gpus: Gpus | Absent,
    job: Job,
    launch: Launch | Absent,
    devices: Devices | Absent,
    pci: Pci | Absent,
    driver: Driver | Absent,
    environment: Environment | Absent,
) -> Iterator[Finding]:
    """A GPU is lost, or the node has fewer than expected.

    Right: All expected GPUs are present.
    Why: the launcher starts a rank per expected GPU; the one without a GPU fails or shares one, and all others wait.
    Where a process sees one GPU only, each may have been given its own (srun --gpus-per-task, Ray). A node on which
    none can be used fails if something says that it has one: --expect-gpus, an NVIDIA GPU on the PCI bus that is not
    handed on to a guest, SLURM_GPUS_ON_NODE, or NVIDIA_VISIBLE_DEVICES with UUIDs.
    Fix: drain the node; a lost GPU needs a reset or a reboot, and a repair if it stays away. Where more ranks than GPUs
    were asked for: --nproc-per-node=gpu.
    """
    ranks = (launch.local_world_size or 0) if isinstance(launch, Launch) else 0
    if isinstance(gpus, Absent):
        nodes = _numbered(devices)
        if 1 < len(nodes) < ranks:
            yield _too_few(len(nodes), ranks, "/dev/nvidia[0-9]*")
        elif not nodes and isinstance(devices, Devices) and (signs := tuple(_signs(job, pci, environment))):
            yield _none_usable(signs, gpus.why, driver)
        else:
            raise Unlearned(gpus.why)
        return
    if gpus.instead_of_nvml:
        yield note("NVML", f"could not be asked, and nvidia-smi was: {gpus.instead_of_nvml}", evidence="nvidia-smi")
    for gpu in gpus.all:
        if gpu.lost:
            message = f"is lost, as NVML says ({gpu.lost})"
            yield fail(f"GPU{gpu.index}", message, blame="node", action="repair", evidence="NVML")
    yield from _closed(devices)
    yield from _twins(gpus)
    alive = sum(not gpu.lost for gpu in gpus.all)
    if job.expect_gpus is not None and alive < job.expect_gpus:
        message = f"{alive} usable, {job.expect_gpus} expected (--expect-gpus)"
        yield fail("GPUs", message, blame="node", action="repair", evidence="NVML")
    elif 1 < alive < ranks:
        yield _too_few(alive, ranks, "NVML")


def _closed(devices: Devices | Absent) -> Iterator[Finding]:
    """Yield that CUDA's own device node is closed to this process, which NVML and nvidia-smi do without."""
    nodes = () if isinstance(devices, Absent) or isinstance(devices.nvidia, Absent) else devices.nvidia
    for node in nodes:
        if node.path == _CUDA_NODE and not node.usable:
            message = "may not be read and written by this process: CUDA does not start, though NVML sees the GPUs"
            yield fail(node.path, message, blame="image", action="fix-image", evidence=f"access(2) {node.path}")


def _twins(gpus: Gpus) -> Iterator[Finding]:
    """Yield that GPUs have one UUID: what names a GPU by it, as CUDA_VISIBLE_DEVICES, may mean either."""
    uuids = {
        gpu.uuid: [f"GPU{each.index}" for each in gpus.all if each.uuid == gpu.uuid] for gpu in gpus.all if gpu.uuid
    }
    for uuid, names in uuids.items():
        if len(names) > 1:
            message = f"have one UUID, {uuid}: one of them is counted twice, or their driver is wrong"
            yield warn(", ".join(names), message, blame="node", action="repair", evidence="NVML")


def _signs(job: Job, pci: Pci | Absent, environment: Environment | Absent) -> Iterator[tuple[str, Evidence]]:
    """What says that this node has GPUs, each in words and as it was seen."""
    if job.expect_gpus:
        yield f"{job.expect_gpus} expected", seen("command line", f"--expect-gpus {job.expect_gpus}")
    bus = () if isinstance(pci, Absent) else pci.of("gpu")
    if mine := [gpu for gpu in bus if gpu.identity.driver != _TO_A_GUEST]:
        shown = first_of((gpu.address for gpu in mine), _MOST_SHOWN)
        yield f"{len(mine)} on the PCI bus", seen("/sys/bus/pci/devices", shown)
    variables = Environment() if isinstance(environment, Absent) else environment
    given = variables.get("SLURM_GPUS_ON_NODE") or ""
    if re.fullmatch(r"[0-9]{1,4}", given) and int(given):
        yield f"{int(given)} given by Slurm", seen("environment", f"SLURM_GPUS_ON_NODE={given}")
    listed = variables.get("NVIDIA_VISIBLE_DEVICES") or ""
    if uuids := [word for word in listed.split(",") if word.strip().startswith(("GPU-", "MIG-"))]:
        yield f"{len(uuids)} given to this container", seen("environment", "NVIDIA_VISIBLE_DEVICES holds UUIDs")


def _none_usable(signs: Sequence[tuple[str, Evidence]], why: str, driver: Driver | Absent) -> Finding:
    """Return that no GPU can be used: the driver is loaded and hidden from this process, or it is not there."""
    hidden = isinstance(driver, Driver)
    return fail(
        "GPUs",
        f"none usable, {', '.join(word for word, _ in signs)}",
        blame="job" if hidden else "node",
        action="fix-job" if hidden else "repair",
        evidence=[*(each for _, each in signs), seen("NVML", why)],
        remedy=_START_WITH_GPUS if hidden else _LOAD_DRIVER,
    )


def _too_few(gpus: int, ranks: int, evidence: str) -> Finding:
    return fail(
        "GPUs", f"{gpus} usable, for {ranks} ranks of this node", blame="node", action="repair", evidence=evidence
    )


def _numbered(devices: Devices | Absent) -> tuple[str, ...]:
    """Return the device nodes of GPUs: /dev/nvidia0 …, not those of the driver's parts."""
    nodes = () if isinstance(devices, Absent) or isinstance(devices.nvidia, Absent) else devices.nvidia
    return tuple(node.path for node in nodes if node.path.removeprefix("/dev/nvidia").isdecimal())
