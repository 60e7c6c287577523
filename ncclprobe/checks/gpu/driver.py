"""Whether the driver answers, and for which GPUs."""

from collections.abc import Iterator

from ncclprobe.checks.gpu import gpu_job
from ncclprobe.errors import Unlearned
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.limits import DeviceNode, Devices
from ncclprobe.facts.nvidia_smi import Smi
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.model.findings import Finding, fail, note
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace

PAIR = Gpus((Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200")), driver="570.86.15", cuda=(12, 8))
EIGHT_RANKS, NO_NVML = Launch("torchrun", 0, 8, 0, 8, 1), Absent("NVML: no libnvidia-ml.so.1", "Missing")
NODES = Devices(tuple(DeviceNode(f"/dev/nvidia{n}", usable=True) for n in (*range(7), "ctl", "-uvm")), (), ())
FEWER = Gpus(tuple(Gpu(n, "NVIDIA H200") for n in range(7)), "570.86.15", (12, 8))
ONE_LOST = Gpus((Gpu(0, "NVIDIA H200"), Gpu(1, lost="NVML nvmlDeviceGetName: GPU is lost")), "570.86.15", (12, 8))

NO_SMI = Absent("nvidia-smi: not there", "Missing")


@check(
    bad=lambda: [(Smi(wedged="nvidia-smi -L: no answer within 60 s"), Absent("not asked"))],
    good=lambda: [(Smi(gpus=2), PAIR), (NO_SMI, PAIR)],
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
    bad=lambda: [
        (ONE_LOST, Job(), Launch(), NODES),
        (PAIR, Job(expect_gpus=8), Launch(), NODES),
        (FEWER, Job(), EIGHT_RANKS, NODES),
        (NO_NVML, Job(), EIGHT_RANKS, NODES),
    ],
    good=lambda: [
        (PAIR, Job(), Launch(), NODES),
        (PAIR, Job(expect_gpus=2), Launch("torchrun", 0, 2, 0, 2, 1), NODES),
        (Gpus(PAIR.all[:1], "570.86.15", (12, 8)), Job(), EIGHT_RANKS, NODES),
        (replace(PAIR, instead_of_nvml="NVML: no libnvidia-ml.so.1"), Job(), Launch(), NODES),
    ],
    required=True,
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def count(gpus: Gpus | Absent, job: Job, launch: Launch | Absent, devices: Devices | Absent) -> Iterator[Finding]:
    """A GPU is lost, or the node has fewer than expected.

    Right: All expected GPUs are present.
    Why: the launcher starts a rank per expected GPU; the one without a GPU fails or shares one, and all others wait.
    Where a process sees one GPU only, each may have been given its own (srun --gpus-per-task, Ray).
    Fix: drain the node; a lost GPU needs a reset or a reboot, and a repair if it stays away. Where more ranks than GPUs
    were asked for: --nproc-per-node=gpu.
    """
    ranks = (launch.local_world_size or 0) if isinstance(launch, Launch) else 0
    if isinstance(gpus, Absent):
        nodes = _numbered(devices)
        if 1 < len(nodes) < ranks:
            yield _too_few(len(nodes), ranks, "/dev/nvidia[0-9]*")
            return
        raise Unlearned(gpus.why)
    if gpus.instead_of_nvml:
        yield note("NVML", f"could not be asked, and nvidia-smi was: {gpus.instead_of_nvml}", evidence="nvidia-smi")
    for gpu in gpus.all:
        if gpu.lost:
            yield fail(f"GPU{gpu.index}", gpu.lost, blame="node", action="repair", evidence="NVML")
    alive = sum(not gpu.lost for gpu in gpus.all)
    if job.expect_gpus is not None and alive < job.expect_gpus:
        message = f"{alive} usable, {job.expect_gpus} expected (--expect-gpus)"
        yield fail("GPUs", message, blame="node", action="repair", evidence="NVML")
    elif 1 < alive < ranks:
        yield _too_few(alive, ranks, "NVML")


def _too_few(gpus: int, ranks: int, evidence: str) -> Finding:
    return fail(
        "GPUs", f"{gpus} usable, for {ranks} ranks of this node", blame="node", action="repair", evidence=evidence
    )


def _numbered(devices: Devices | Absent) -> tuple[str, ...]:
    """Return the device nodes of GPUs: /dev/nvidia0 …, not those of the driver's parts."""
    nodes = () if isinstance(devices, Absent) or isinstance(devices.nvidia, Absent) else devices.nvidia
    return tuple(node.path for node in nodes if node.path.removeprefix("/dev/nvidia").isdecimal())
