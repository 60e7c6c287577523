"""Whether the driver answers, and for which GPUs."""

from collections.abc import Iterator

from ncclprobe.checks.gpu import gpu_job
from ncclprobe.errors import Unlearned
from ncclprobe.facts.nvidia_smi import Smi
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.model.findings import Finding, fail
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Job

PAIR = Gpus((Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA H200")), driver="570.86.15", cuda=(12, 8))
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
    bad=lambda: [(ONE_LOST, Job()), (PAIR, Job(expect_gpus=8))],
    good=lambda: [(PAIR, Job()), (PAIR, Job(expect_gpus=2))],
    required=True,
    requires="gpu.smi-canary",
    applies=gpu_job,
)
def count(gpus: Gpus, job: Job) -> Iterator[Finding]:
    """A GPU is lost, or the node has fewer than expected.

    Right: All expected GPUs are present.
    Why: the launcher starts a rank per expected GPU; the one without a GPU fails or shares one, and all others wait.
    Fix: drain the node; a lost GPU needs a reset or a reboot, and a repair if it stays away.
    """
    for gpu in gpus.all:
        if gpu.lost:
            yield fail(f"GPU{gpu.index}", gpu.lost, blame="node", action="repair", evidence="NVML")
    alive = sum(not gpu.lost for gpu in gpus.all)
    if job.expect_gpus is not None and alive < job.expect_gpus:
        message = f"{alive} usable, {job.expect_gpus} expected (--expect-gpus)"
        yield fail("GPUs", message, blame="node", action="repair", evidence="NVML")
