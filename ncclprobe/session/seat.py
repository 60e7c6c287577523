"""Who am I among the ranks, and what do I measure with? Pure, and settled before torch is imported."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ncclprobe.errors import UsageError
from ncclprobe.facts.launcher import Launch

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True, slots=True)
class Seat:
    """This process among the ranks of a job, and where they meet. Complete: nothing in it is unknown."""

    kind: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    nnodes: int
    address: str
    port: int
    agent_store: bool = False
    attempt: str = "0"

    @property
    def serves(self) -> bool:
        """Whether this rank hosts the store."""
        return self.rank == 0 and not self.agent_store


def take_seat(launch: Launch, variables: Mapping[str, str]) -> Seat | None:
    """The seat that the launcher's variables give this process; None: no launcher, hence one rank.

    Raises UsageError naming the variable that is missing or contradictory.
    """
    if launch.problems:
        problem = launch.problems[0]
        anew = "start with torchrun, srun, mpirun or --nproc N"
        remedy = anew if problem.harmless else problem.remedy or anew  # a doctor alone needs no step of srun's
        raise UsageError(f"{problem.subject} {problem.message}; {remedy}")
    if launch.rank is None or launch.world_size is None:
        return None
    nnodes = launch.nnodes or 1
    local_ranks = launch.local_world_size or (launch.world_size if nnodes == 1 else 1)
    local_rank = launch.local_rank if launch.local_rank is not None else launch.rank % local_ranks
    return Seat(
        kind=launch.kind,
        rank=launch.rank,
        ranks=launch.world_size,
        local_rank=local_rank,
        local_ranks=local_ranks,
        nnodes=nnodes,
        address=launch.master_addr or _master_address(launch.kind, nnodes, launch.world_size, variables),
        port=launch.master_port or _master_port(variables),
        agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _master_address(kind: str, nnodes: int, ranks: int, variables: Mapping[str, str]) -> str:
    """Where rank 0 is, if nobody said: here on one node, Slurm's first node otherwise."""
    if nnodes == 1 or ranks == 1:
        return "127.0.0.1"
    nodelist = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
    if kind == "slurm" and nodelist:
        return first_host(nodelist)
    raise UsageError(
        f"MASTER_ADDR is not set and {kind} started ranks on {nnodes} nodes; "
        "set MASTER_ADDR to the host of rank 0 (mpirun -x MASTER_ADDR=HOST)"
    )


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: ``gpu[007-010,20],cpu1`` begins with gpu007. Raises UsageError.

    The grammar is the one of ``scontrol show hostnames`` (slurm.conf(5), NodeName): prefixes with bracketed,
    comma-separated numbers and ranges, whose leading zeros count.
    """
    match = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+(?=,|$)", nodelist.strip())
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", match[0]) if match else ""
    if not re.fullmatch(r"[\w.-]+", first):
        raise UsageError(f"SLURM_JOB_NODELIST {nodelist!r} is not understood; set MASTER_ADDR to the host of rank 0")
    return first


def _master_port(variables: Mapping[str, str]) -> int:
    """A port that every rank of this job derives alike and another job on the node hardly shares: 20000-29999.

    Below Linux' ephemeral ports (32768 and up), which the job's own connections use.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PBS_JOBID", "LSB_JOBID")
    job = "/".join(variables.get(name, "") for name in names)
    return 20000 + zlib.crc32(job.encode()) % 10000


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs of this node as this process sees them: `nodes` counts /dev/nvidia<N>, `usable` what torch can use.

    `usable` is None before torch was asked.
    """

    nodes: int
    usable: int | None = None
    torch: str = ""


def choose_backend(asked: Backend | None, kind: str, local_ranks: int, devices: Devices) -> tuple[Backend, str]:
    """What `local_ranks` ranks started by `kind` measure with, and what the reader must be told (empty: nothing).

    Never falls back silently where there is an NVIDIA device. Raises UsageError naming the remedy.
    """
    if asked == "gloo":
        return "gloo", ""
    count = devices.nodes if devices.usable is None else devices.usable
    if devices.usable == 0 and devices.nodes:
        raise UsageError(
            f"this node has NVIDIA devices but torch {devices.torch} can use none; "
            "install a CUDA build of torch and check CUDA_VISIBLE_DEVICES, or ask for --backend gloo"
        )
    if count == 0 and asked is None:
        return "gloo", "no GPU can be seen, so this measured gloo over the CPU; that says nothing about NCCL"
    if count == 0 and devices.usable is not None:
        raise UsageError("--backend nccl needs a GPU per rank and none can be seen; ask for --backend gloo")
    bound_per_rank = count == 1 and kind in ("slurm", "openmpi", "pmi")  # such as srun --gpus-per-task=1
    if 0 < count < local_ranks and not bound_per_rank:
        raise UsageError(
            f"{local_ranks} ranks on this node and {count} GPU{'s' * (count > 1)}: start one rank per GPU "
            "(--nproc-per-node=gpu), or ask for --backend gloo"
        )
    return "nccl", ""


def device_index(seat: Seat, usable: int) -> int:
    """The CUDA index for this rank: its local rank, or the only one that the launcher left visible."""
    return seat.local_rank if seat.local_rank < usable else 0
