"""The variables that launchers set."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks import JOB
from ncclprobe.checks.launch import RANKS_GROUP, TWO_NODES, VARS_GROUP, part_of_a_job
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.launcher import TORCH, Launch, Problem, detect
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Job

_OF_TORCH = (*TORCH, "TORCHELASTIC_RUN_ID")

STEP = {"SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "16"}
TASK_3 = Environment({**STEP, "SLURM_PROCID": "3", "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NODEID": "0"})

EIGHT = Gpus(tuple(Gpu(index) for index in range(8)), "570.1", (12, 8))


@check(
    group=VARS_GROUP,
    bad=lambda: [(Launch("environment", 0, problems=(Problem("WORLD_SIZE", "is not set, though RANK is"),)),)],
    good=lambda: [(TWO_NODES,)],
    required=True,
    applies=part_of_a_job,
)
def vars(launch: Launch) -> Iterator[Finding]:
    """The launcher's variables are incomplete or contradict each other.

    Right: The launcher's variables are complete and consistent.
    Why: every rank waits for all others. If one rank expects a different number, all wait until the rendezvous times
    out.
    Fix: let torchrun, srun or mpirun set either all or none of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
    MASTER_PORT.
    """
    for problem in launch.problems:
        tell = warn if problem.harmless else fail
        yield tell(problem.subject, problem.message, evidence="environment", remedy=problem.remedy, **JOB)


@check(
    group=VARS_GROUP,
    bad=lambda: [
        (
            Launch("environment", 0, 16, 0, 8, 2),
            TASK_3,
        ),  # RANK=$SLURM_PROCID, written into the body of the batch script
    ],
    good=lambda: [(Launch("environment", 3, 16, 3, 8, 2), TASK_3)],
    requires="launch.vars/vars",
    applies=part_of_a_job,
)
def slurm_agree(launch: Launch, environment: Environment) -> Iterator[Finding]:
    """torchrun's variables and those of Slurm or MPI describe different jobs.

    Right: torchrun's variables and those of Slurm or MPI describe the same job.
    Why: torch trusts RANK and WORLD_SIZE. If srun or mpirun started a different number of processes, ranks wait for
    others that never start. If each process started its own torchrun, several separate jobs run.
    Fix: set RANK and WORLD_SIZE from SLURM_PROCID and SLURM_NTASKS inside the task (in the body of a batch script these
    describe the script). Give torchrun --nnodes=$SLURM_JOB_NUM_NODES with one task per node.
    """
    inner = {name: value for name, value in environment.variables.items() if name not in _OF_TORCH}
    outer = detect(inner)
    if launch.kind not in ("torchrun", "environment") or outer.kind == "single":
        return
    for subject, message in _differences(launch, outer, _number(environment.get("SLURM_JOB_NUM_NODES"))):
        yield warn(subject, message, **JOB, evidence="environment")


@applies
def torchrun_on_gpus(launch: Launch, job: Job) -> bool:
    """under torchrun, in jobs on GPUs."""
    return launch.kind == "torchrun" and job.backend == "nccl"


@check(
    group=RANKS_GROUP,
    bad=lambda: [(Launch("torchrun", 0, 1, 0, 1, 1), EIGHT, Environment({}))],
    good=lambda: [
        (Launch("torchrun", 0, 2, 0, 1, 2), EIGHT, Environment({})),  # all that the doctor needs: a note
    ],
    requires="launch.vars/vars",
    applies=torchrun_on_gpus,
)
def one_rank(launch: Launch, gpus: Gpus, environment: Environment) -> Iterator[Finding]:
    """torchrun started only one rank on a node with several GPUs.

    Right: torchrun started one rank for every GPU.
    Why: --nproc-per-node is 1 by default (torch/distributed/run.py), and the other GPUs then stay idle without a
    message. The doctor itself needs only one rank on each of several nodes, so this is only a note there. A single
    process on one node does not need torchrun.
    Fix: run `torchrun --nproc-per-node=gpu`.
    """
    usable = len([gpu for gpu in gpus.all if not gpu.lost])
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        usable = min(usable, len([entry for entry in visible.split(",") if entry.strip()]))
    if launch.local_world_size == 1 and usable > 1:
        message = f"is 1 on a node with {usable} GPUs, so the job uses only one of them"
        details: dict[str, Any] = {
            "evidence": ("environment", "NVML"),
            "remedy": "start the job with --nproc-per-node=gpu",
        }
        if launch.several_nodes:
            yield note("LOCAL_WORLD_SIZE", f"{message}; for the doctor this is enough", **details)
        else:
            yield warn("LOCAL_WORLD_SIZE", message, **JOB, **details)


def _differences(launch: Launch, outer: Launch, nodes: int | None) -> Iterator[tuple[str, str]]:
    """Yield subject and message of each contradiction. `nodes` is what Slurm has allocated."""
    if nodes and (launch.nnodes or 1) > nodes:
        yield "nnodes", f"is {launch.nnodes}, but Slurm has allocated {nodes} nodes"
    elif launch.kind == "torchrun" and launch.nnodes == 1 and outer.several_nodes:
        yield (
            "nnodes",
            f"is 1, but {outer.kind} started torchrun on {outer.nnodes} nodes: each of them starts a separate job",
        )
    elif launch.kind == "environment" and outer.local_world_size and outer.local_world_size == launch.local_world_size:
        if launch.world_size != outer.world_size:
            yield "WORLD_SIZE", f"is {launch.world_size}, but {outer.kind} started {outer.world_size} tasks"
        elif launch.rank != outer.rank:
            kind = {"slurm": "Slurm"}.get(outer.kind, outer.kind)
            yield "RANK", f"is {launch.rank}, but this is {kind} task {outer.rank}"


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None
