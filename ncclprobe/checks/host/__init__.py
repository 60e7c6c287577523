"""What the host or container lets a job have, and how many ranks share it."""

from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace


def ranks_here(launch: Launch, gpus: Gpus | Absent, job: Job) -> int:
    """Return the ranks that this node gets: as many as the launcher said, else one per GPU of an NCCL job, else one."""
    if launch.local_world_size:
        return launch.local_world_size
    return len(gpus.all) if isinstance(gpus, Gpus) and job.backend == "nccl" else 1


@applies
def exchanging(launch: Launch, gpus: Gpus | Absent, job: Job) -> bool:
    """where ranks exchange data: several here, or on several nodes."""
    started_alone = replace(launch, local_world_size=None)  # the doctor may be one process per node
    return launch.several_nodes or max(ranks_here(each, gpus, job) for each in (launch, started_alone)) > 1
