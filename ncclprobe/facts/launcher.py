"""Which launcher started this process, and which rank it made it: from the variables alone.

Sources: torchrun sets RANK, WORLD_SIZE, LOCAL_*, GROUP_* and TORCHELASTIC_RUN_ID (torch
distributed/elastic/agent/server/local_elastic_agent.py); srun(1) sets SLURM_PROCID … and SLURM_STEP_ID, which
the body of an sbatch script lacks; Open MPI sets OMPI_COMM_WORLD_*; MPICH and PMI-2 set PMI_RANK and PMI_SIZE.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ncclprobe.facts.environment import Environment
from ncclprobe.host import Host
from ncclprobe.registry import collector

_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SLURM = ("STEP_ID", "STEP_NUM_TASKS", "STEP_NUM_NODES", "STEP_TASKS_PER_NODE", "SCRIPT_CONTEXT", "LAUNCH_NODE_IPADDR")

READS = frozenset({"NNODES", "NODE_RANK", *(f"SLURM_{name}" for name in _SLURM)})
"""Variables read here that NCCL's table of parameters does not hold: their values may be recorded too."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is missing from, or contradictory in, the launcher's variables.

    `remedy` where it is not "set all or none of them"; `harmless` to whoever means this process alone.
    """

    subject: str
    message: str
    remedy: str = ""
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Who this process is. None: the launcher did not say. `variables` names what was read."""

    kind: str = "none"
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    variables: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def several_nodes(self) -> bool:
        """Whether the job is known to span more than one node."""
        return (self.nnodes or 1) > 1


@collector
def launcher(host: Host, environment: Environment) -> Launch:
    """Which launcher started this process."""
    return detect(environment.variables)


def detect(variables: Mapping[str, str | None]) -> Launch:
    """Read `variables` as the job would. RANK and WORLD_SIZE win over what an outer launcher set, as in torch."""
    kind, names = _recognise(variables)
    given = {field: name for field, name in names.items() if variables.get(name)}
    numbers: dict[str, Any] = {field: _integer(variables[name]) for field, name in given.items()}
    numbers["master_port"] = _integer(variables.get("MASTER_PORT"))
    if kind == "slurm" and numbers.get("local_world_size") is None:
        numbers["local_world_size"] = _tasks_here(variables, numbers.get("node_rank"))
    known = {field: n for field, n in numbers.items() if n is not None}
    launch = Launch(
        kind=kind,
        master_addr=variables.get("MASTER_ADDR") or None,
        variables=tuple(given.values()),
        **known,
    )
    nnodes = launch.nnodes
    if nnodes is None and launch.world_size and launch.local_world_size:
        nnodes = -(-launch.world_size // launch.local_world_size)
    return replace(launch, nnodes=nnodes, problems=tuple(_problems(launch, names, variables)))


def _recognise(variables: Mapping[str, str | None]) -> tuple[str, dict[str, str]]:
    """The launcher and, per field of Launch, the variable that it uses for it."""
    if any(variables.get(name) for name in _TORCH):
        names = dict(zip(("rank", "world_size", "local_rank", "local_world_size"), _TORCH, strict=True))
        if variables.get("TORCHELASTIC_RUN_ID"):
            return "torchrun", names | {"nnodes": "GROUP_WORLD_SIZE", "node_rank": "GROUP_RANK"}
        return "manual", names | {"nnodes": "NNODES", "node_rank": "NODE_RANK"}
    if variables.get("OMPI_COMM_WORLD_RANK"):
        return "openmpi", {
            "rank": "OMPI_COMM_WORLD_RANK",
            "world_size": "OMPI_COMM_WORLD_SIZE",
            "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
            "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
        }
    if variables.get("SLURM_STEP_ID") and variables.get("SLURM_PROCID"):
        step = "SLURM_STEP_NUM_TASKS" if variables.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        nodes = "SLURM_STEP_NUM_NODES" if variables.get("SLURM_STEP_NUM_NODES") else "SLURM_NNODES"
        return "slurm", {
            "rank": "SLURM_PROCID",
            "world_size": step,
            "local_rank": "SLURM_LOCALID",
            "nnodes": nodes,
            "node_rank": "SLURM_NODEID",
        }
    if variables.get("PMI_RANK"):
        return "pmi", {"rank": "PMI_RANK", "world_size": "PMI_SIZE", "local_rank": "MPI_LOCALRANKID"}
    return "none", {}


def _tasks_here(variables: Mapping[str, str | None], node: int | None) -> int | None:
    """This node's share of ``SLURM_STEP_TASKS_PER_NODE``, written ``8(x3),4``."""
    text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE") or ""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * min(int(times or 1), 1 << 16)
    return counts[node] if node is not None and node < len(counts) else None


def _problems(launch: Launch, names: Mapping[str, str], variables: Mapping[str, str | None]) -> Iterator[Problem]:
    for field, name in names.items():
        text = variables.get(name)
        if text and _integer(text) is None:
            yield Problem(name, f"is {text!r}, not a whole number")
        elif not text and field in ("rank", "world_size"):
            yield Problem(name, f"is not set, though {', '.join(launch.variables)} is")
    if launch.kind == "manual" and (launch.world_size or 1) > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not variables.get(name):
                yield Problem(name, "is not set: nobody knows where rank 0 listens")
    port = variables.get("MASTER_PORT")
    if port and (launch.master_port or 0) not in range(1, 1 << 16):
        yield Problem("MASTER_PORT", f"is {port!r}, not a port from 1 to 65535", "set it to a free port, such as 29500")
    if launch.kind == "none":
        yield from _batch_body(variables)
    yield from _contradictions(launch, names)


def _contradictions(launch: Launch, names: Mapping[str, str]) -> Iterator[Problem]:
    for part, whole in (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "nnodes")):
        index, count = getattr(launch, part), getattr(launch, whole)
        if count is not None and count < 1:
            yield Problem(names[whole], f"is {count}, but there is at least one")
        elif index is not None and count is not None and not 0 <= index < count:
            yield Problem(names[part], f"is {index}, outside 0..{count - 1} ({names.get(whole, whole)}={count})")
    world, local = launch.world_size, launch.local_world_size
    if world and local and (world < local or (launch.nnodes == 1 and world != local)):
        where = " on one node" if launch.nnodes == 1 else ""
        yield Problem(names["world_size"], f"is {world}, but {local} ranks were started here{where}")
    if world and launch.nnodes and world < launch.nnodes:
        yield Problem(names["world_size"], f"is {world}, fewer than the {launch.nnodes} nodes")


def _batch_body(variables: Mapping[str, str | None]) -> Iterator[Problem]:
    """The body of an sbatch script has a job but no step: it runs once, on the first node only."""
    step, context = variables.get("SLURM_STEP_ID"), variables.get("SLURM_SCRIPT_CONTEXT") or ""
    tasks, nodes = (_integer(variables.get(name)) or 1 for name in ("SLURM_NTASKS", "SLURM_NNODES"))
    several = f"{nodes} nodes" if nodes > 1 else f"{tasks} tasks"
    hook = context.startswith(("prolog", "epilog"))
    if variables.get("SLURM_JOB_ID") and not step and not hook and max(tasks, nodes) > 1:
        message = f"is not set: this is the body of a batch script, which runs once in a job of {several}"
        yield Problem("SLURM_STEP_ID", message, "start it with srun, --ntasks-per-node=1 for the doctor", harmless=True)


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,9}", text) else None
