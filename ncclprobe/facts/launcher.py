"""Detect which launcher started this process and which rank it has, from the variables or the command line only.

Each launcher sets variables that only it sets, and stores its ranks in some of them. Sources:
- torchrun sets RANK, WORLD_SIZE, LOCAL_*, GROUP_* and TORCHELASTIC_*, whatever the rendezvous (torch 2.13
  distributed/elastic/agent/server/local_elastic_agent.py, _start_workers).
- srun(1) sets SLURM_PROCID … and SLURM_STEP_ID, which the body of an sbatch script lacks. The step of salloc's shell
  has one of the ids above any real one (slurm.h: SLURM_INTERACTIVE_STEP 0xfffffffa … SLURM_PENDING_STEP 0xfffffffd).
- Open MPI sets OMPI_COMM_WORLD_*, and up to 4.1 OMPI_MCA_orte_num_nodes and OMPI_MCA_ess_base_jobid; 5 sets
  PMIX_NAMESPACE. MPICH and PMI-2 set PMI_RANK and PMI_SIZE, and the mpiexec of MPICH and Intel MPI MPI_LOCALRANKID
  and MPI_LOCALNRANKS as well.
- A PyTorchJob's pod has RANK (the pod's index) and WORLD_SIZE (pods, since 1.7 times the processes of each); both it
  and Trainer v2, which sets no RANK, give torchrun its defaults as PET_* (kubeflow/training-operator
  pkg/controller.v1/pytorch/{envvar,master,elastic}.go at ee1162919; kubeflow/trainer
  pkg/runtime/framework/plugins/torch/torch.go; torch distributed/argparse_util.py). PET_NNODES is ``1:4`` if
  elastic, and then only torchrun numbers the pods.
- DeepSpeed's launcher adds CROSS_RANK, CROSS_SIZE and LOCAL_SIZE (deepspeed/launcher/launch.py, main).
- SLURM_GPUS_ON_NODE is the number of this node's GPUs that Slurm gave to the job (sbatch(1)). SLURM_JOB_GPUS lists
  them in a prolog or epilog (Prolog and Epilog Guide). NVIDIA_VISIBLE_DEVICES, if it holds UUIDs, lists the GPUs that
  Kubernetes gave to the container (NVIDIA/k8s-device-plugin, --device-list-strategy=envvar).
- `accelerate launch` runs several ranks with torchrun's own code; its simple launcher starts one process, which has
  MASTER_ADDR and no RANK if several were asked for (accelerate/utils/launch.py, prepare_simple_launcher_cmd_env).
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from ncclprobe.facts.environment import Environment
from ncclprobe.host import SAMPLE, Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError
from ncclprobe.model.hostlist import expand
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field, replace

Variables = Mapping[str, str | None]

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_RANKS = ("rank", "world_size", "local_rank", "local_world_size")
_FIRST_SPECIAL_STEP = 0xFFFFFFFA

READS = frozenset(
    {
        *("NNODES", "NODE_RANK", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "KUBERNETES_SERVICE_HOST"),
        *("OMPI_MCA_orte_num_nodes", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PBS_JOBID", "LSB_JOBID"),
        *("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT", "PET_RDZV_ID"),
        *("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE"),
        *("SLURM_STEP_NODELIST", "SLURM_SCRIPT_CONTEXT", "SLURM_PTY_PORT"),
        *("ACCELERATE_MIXED_PRECISION", "MPI_LOCALNRANKS", "NVIDIA_VISIBLE_DEVICES"),
        *("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_JOB_UID"),
    }
)
"""Launcher variables that NCCL's table of parameters lacks; their values may be recorded too."""


class _VariableSource(Struct, frozen=True):
    """A launcher, and its variable for each field of Launch. `fixed`: fields that need no variable."""

    kind: str
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)


def recognise(variables: Variables) -> _VariableSource:
    """Return the innermost launcher: as in torch, RANK and WORLD_SIZE win over an outer launcher's variables."""
    if _is_pod(variables):
        node = "PET_NODE_RANK" if variables.get("PET_NODE_RANK") or not variables.get("RANK") else "RANK"
        nodes = "PET_NNODES" if variables.get("PET_NNODES") else "WORLD_SIZE"
        names = {"rank": node, "world_size": nodes, "node_rank": node, "nnodes": nodes}
        return _VariableSource("pytorchjob", names, {"local_rank": 0, "local_world_size": 1})
    if any(variables.get(name) for name in TORCH):
        return _torch(variables)
    if variables.get("OMPI_COMM_WORLD_RANK"):
        tails = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        names = {name: f"OMPI_COMM_WORLD_{tail}" for name, tail in zip(_RANKS, tails, strict=True)}
        return _VariableSource("openmpi", names | {"nnodes": "OMPI_MCA_orte_num_nodes"})
    if variables.get("SLURM_PROCID") and is_task(variables):
        step = "SLURM_STEP_NUM_TASKS" if variables.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        nodes = "SLURM_STEP_NUM_NODES" if variables.get("SLURM_STEP_NUM_NODES") else "SLURM_NNODES"
        names = {"rank": "SLURM_PROCID", "world_size": step, "local_rank": "SLURM_LOCALID"}
        return _VariableSource("slurm", names | {"nnodes": nodes, "node_rank": "SLURM_NODEID"})
    if variables.get("PMI_RANK"):
        names = {"rank": "PMI_RANK", "world_size": "PMI_SIZE", "local_rank": "MPI_LOCALRANKID"}
        return _VariableSource("pmi", names | {"local_world_size": "MPI_LOCALNRANKS"})
    return _VariableSource("single")


def _torch(variables: Variables) -> _VariableSource:
    names = dict(zip(_RANKS, TORCH, strict=True))
    if variables.get("TORCHELASTIC_RUN_ID"):
        return _VariableSource("torchrun", names | {"nnodes": "GROUP_WORLD_SIZE", "node_rank": "GROUP_RANK"})
    if variables.get("CROSS_RANK") and variables.get("CROSS_SIZE"):
        deepspeed = {"local_world_size": "LOCAL_SIZE", "nnodes": "CROSS_SIZE", "node_rank": "CROSS_RANK"}
        return _VariableSource("environment", names | deepspeed)
    return _VariableSource("environment", names | {"nnodes": "NNODES", "node_rank": "NODE_RANK"})


def _is_pod(variables: Variables) -> bool:
    """Return whether this is the one process that Kubeflow starts in a pod, with no launcher in between."""
    if any(variables.get(name) for name in ("LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK")):
        return False
    if variables.get("PET_NNODES"):
        return any(variables.get(name) for name in ("PET_NODE_RANK", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"))
    older = all(variables.get(name) for name in ("KUBERNETES_SERVICE_HOST", "RANK", "WORLD_SIZE"))
    return older and (variables.get("MASTER_ADDR") or "").endswith("-master-0")


def is_task(variables: Variables) -> bool:
    """Return whether srun started this process as a task, not as an interactive shell (salloc, `srun --pty`)."""
    step = variables.get("SLURM_STEP_ID")
    if not step or (step.isdecimal() and int(step[:10]) >= _FIRST_SPECIAL_STEP):
        return False
    return not (variables.get("SLURM_PTY_PORT") and variables.get("SLURM_STEP_NUM_TASKS") == "1")


def run_id(kind: str, variables: Variables) -> str:
    """Return the launcher's name of this run, the same on all ranks; empty if it has none.

    Uses only variables that all ranks share. Under Slurm, mpirun's first ranks are not tasks of a step, but the others
    are.
    """

    def first(*names: str) -> str:
        return next((text for text in map(variables.get, names) if text), "")

    if kind == "torchrun":
        return first("TORCHELASTIC_RUN_ID").removeprefix("none")  # --rdzv-id's default
    if kind == "slurm":
        return f"{first('SLURM_JOB_ID')}.{first('SLURM_STEP_ID')}"
    if kind == "openmpi":
        return first("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
    if kind == "pytorchjob":
        return first("PET_RDZV_ID", "PET_MASTER_ADDR", "MASTER_ADDR", "PET_RDZV_ENDPOINT")
    if kind == "pmi" or (kind == "environment" and is_task(variables)):
        return first("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
    return ""


def counts(text: str) -> tuple[int, ...]:
    """Parse Slurm's tasks per node: ``8(x3),4`` is 8, 8, 8, 4. Empty if the text is malformed."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,5})\))?", part)
        if not match:
            return ()
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


__all__ = ["READS", "Flags", "Launch", "Problem", "derived_port", "detect", "half_given", "launcher", "no_master"]

_RANGE = r"([0-9]{1,9}):([0-9]{1,9})"
_WHOLE = (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "nnodes"))


class Problem(Struct, frozen=True):
    """A missing or contradictory launcher variable.

    `remedy`: set if it differs from "set all or none of them". `harmless`: harmless if only this process matters.
    """

    subject: str
    message: str
    remedy: str = ""
    harmless: bool = False


class Flags(Struct, frozen=True):
    """This process's place in the job as given on the command line, one process per node. None: not given."""

    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Return the flags that were given, by field."""
        fields = ("nnodes", "node_rank", "master_addr", "master_port")
        return {name: getattr(self, name) for name in fields if getattr(self, name) is not None}


class Launch(Struct, frozen=True):
    """This process's place in the job. None: the launcher did not set it. `variables` are the names that were read.

    `kind` is torchrun, slurm, openmpi, pmi, pytorchjob (one process per pod), environment (RANK … by hand), options
    (--nnodes …) or single. `names` are the scheduler's node names by node rank. `run_id` identifies this run and is the
    same on all ranks. `origins` maps each known member to its variable or rule. `visible_gpus` is CUDA_VISIBLE_DEVICES:
    ranks started from here find no other GPUs.
    """

    kind: str = "single"
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
    names: tuple[str, ...] = ()
    agent_store: bool = False
    run_id: str = ""
    origins: tuple[tuple[str, str], ...] = ()
    visible_gpus: str | None = None

    @property
    def several_nodes(self) -> bool:
        """Return whether the job is known to span more than one node."""
        if self.nnodes is None:
            return (self.world_size or 0) > (self.local_world_size or self.world_size or 0)
        return self.nnodes > 1

    @property
    def spans_by_launcher(self) -> bool:
        """Return whether a launcher spread the job over nodes, rather than several nodes being judged together."""
        return self.kind != "single" and self.several_nodes

    @property
    def speaks_for_node(self) -> bool:
        """Return whether this rank reports for its node: local rank 0, or the only one."""
        return self.local_rank in (None, 0)


@collector
def launcher(host: Host, environment: Environment) -> Launch:
    """Detect the launcher from the variables and the command line."""
    try:
        flags = Flags(**json.loads(host.ask(SAMPLE, "flags")))
    except HostError:
        flags = None
    return detect(environment.variables, flags)


def detect(variables: Variables, flags: Flags | None = None) -> Launch:
    """Interpret `variables` as the job would; `flags` take precedence. Never raises: see `problems`, `half_given`."""
    launch = _derive_rendezvous(_read_environment(variables), variables)
    if flags is None or not flags.given:
        return launch
    origins_of = {name: f"--{name.replace('_', '-')}" for name in flags.given}
    if launch.kind == "single" or (launch.problems and not half_given(flags, variables)):
        alone = Launch("options", flags.node_rank, flags.nnodes, 0, 1, flags.nnodes, flags.node_rank)
        if flags.nnodes == 1:
            alone = replace(alone, rank=0, node_rank=0)
        origins_of = {**origins_of, "rank": "--node-rank", "world_size": "--nnodes"}
        meeting: dict[str, Any] = {"master_addr": launch.master_addr, "master_port": launch.master_port}
        old = {name: source for name, source in launch.origins if name in meeting}
        launch = replace(alone, **(meeting | flags.given))
    else:
        old = dict(launch.origins)
        launch = replace(launch, **flags.given)
    launch = replace(launch, origins=tuple((old | origins_of).items()))
    return replace(launch, problems=tuple(dict.fromkeys((*launch.problems, *_contradictions(launch)))))


def half_given(flags: Flags, variables: Variables) -> str:
    """Return why the flags do not fit these variables, as a sentence for the user; empty if they do."""
    launch = _read_environment(variables)
    started = launch.kind not in ("single", "environment", "pytorchjob") and not launch.problems
    nodes, rank = flags.nnodes, flags.node_rank
    if not flags.given or (started and nodes is None and rank is None):
        return ""
    if nodes is None or (nodes > 1 and rank is None):
        missing = "--nnodes" if nodes is None else "--node-rank"
        given = ", ".join(f"--{name.replace('_', '-')}" for name in flags.given)
        return f"{given} without {missing}: give --nnodes, --node-rank, --master-addr and --master-port on every node"
    if not 0 <= (rank or 0) < nodes:
        return f"--node-rank {rank} is outside 0..{nodes - 1}" if nodes >= 1 else f"--nnodes is {nodes}"
    for name in ("master_addr", "master_port"):
        if nodes > 1 and not getattr(flags, name) and not getattr(launch, name):
            flag, variable = f"--{name.replace('_', '-')}", name.upper()
            return f"--nnodes {nodes} without {flag}, and {variable} is not set: the address of node 0 is not known"
    return ""


def no_master(launch: Launch) -> Problem | None:
    """Return the problem if the nodes of `launch` have no address to rendezvous at; otherwise None."""
    if not launch.several_nodes or launch.master_addr:
        return None
    message = f"is not set and {launch.kind} started ranks on {launch.nnodes or 'several'} nodes"
    return Problem("MASTER_ADDR", message, "set MASTER_ADDR to the host of rank 0 (mpirun -x MASTER_ADDR=HOST)")


def _read_environment(variables: Variables) -> Launch:
    """Return every value that the variables give directly; rendezvous and default node count are derived later."""
    source = recognise(variables)
    given = {member: name for member, name in source.names.items() if variables.get(name)}
    numbers: dict[str, Any] = {member: _integer(variables[name]) for member, name in given.items()}
    origins = dict(given) | dict.fromkeys(source.fixed, "one process per pod")
    launch = replace(
        Launch(
            source.kind,
            variables=tuple(dict.fromkeys(given.values())),
            visible_gpus=variables.get("CUDA_VISIBLE_DEVICES"),
        ),
        **(dict(source.fixed) | {member: n for member, n in numbers.items() if n is not None}),
    )
    if source.kind == "slurm" and launch.node_rank is not None:
        name = next((n for n in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if variables.get(n)), "")
        here = counts(variables.get(name) or "")[launch.node_rank : launch.node_rank + 1]
        launch, origins["local_world_size"] = replace(launch, local_world_size=here[0] if here else None), name
    launch = _derive_nodes(launch, origins)
    for member, name, text in _masters(source.kind, variables):
        value: Any = _integer(text) if member == "master_port" else text
        if value is not None and getattr(launch, member) is None:
            launch, origins[member] = replace(launch, **{member: value}), name
    known = tuple((member, origin) for member, origin in origins.items() if getattr(launch, member) is not None)
    agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    launch = replace(launch, origins=known, agent_store=agent, run_id=run_id(source.kind, variables))
    return replace(launch, problems=tuple(_problems(launch, source, variables)))


def _derive_nodes(launch: Launch, origins: dict[str, str]) -> Launch:
    """Fill in the number of nodes and the node's rank if they follow from the other numbers and evenly filled nodes."""
    world, local = launch.world_size, launch.local_world_size
    if launch.nnodes is None and world and local and world % local == 0:
        launch, origins["nnodes"] = replace(launch, nnodes=world // local), "as many ranks on each node as here"
    if launch.node_rank is None and launch.nnodes and launch.rank is not None:
        if launch.rank == 0 or launch.nnodes == 1:
            launch, origins["node_rank"] = replace(launch, node_rank=0), "rank 0's node is node 0"
        elif launch.nnodes == world and local == 1:
            launch, origins["node_rank"] = replace(launch, node_rank=launch.rank), "one rank per node"
    return launch


def _masters(kind: str, variables: Variables) -> Iterator[tuple[str, str, str]]:
    """Yield field, variable and value of each candidate for rank 0's address and port, the best first."""
    pod = ("PET_",) if kind == "pytorchjob" else ()
    for prefix in ("", *pod):
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if text := variables.get(prefix + name):
                yield name.lower(), prefix + name, text
    if pod:
        address, colon, port = (variables.get("PET_RDZV_ENDPOINT") or "").rpartition(":")
        if colon:
            yield "master_addr", "PET_RDZV_ENDPOINT", address
            yield "master_port", "PET_RDZV_ENDPOINT", port


def _derive_rendezvous(launch: Launch, variables: Variables) -> Launch:
    """Fill in the nodes' names and the rendezvous: Slurm's first node and a derived port.

    20000-29999 is below Linux's ephemeral ports (32768 and up), which the job's own connections use.
    """
    origins = list(launch.origins)
    if launch.kind == "slurm":
        source = "SLURM_STEP_NODELIST" if variables.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
        names = _names(variables.get(source) or "")
        launch = replace(launch, names=names if len(names) == launch.nnodes else ())
        if launch.several_nodes and launch.names and not launch.master_addr:
            launch = replace(launch, master_addr=launch.names[0])
            origins.append(("master_addr", f"the first of {source}"))
    scheduled = launch.kind in ("slurm", "openmpi", "pmi")
    if scheduled and launch.master_addr and not variables.get("MASTER_PORT"):
        launch = replace(launch, master_port=derived_port(launch.run_id))
        origins.append(("master_port", "derived from the job's id"))
    return replace(launch, origins=tuple(origins))


def derived_port(run: str) -> int:
    """Return a port in 20000-29999 that every rank of `run` derives alike and another run rarely shares."""
    return 20000 + zlib.crc32(run.encode()) % 10000


def _names(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError:
        return ()


def _problems(launch: Launch, source: _VariableSource, variables: Variables) -> Iterator[Problem]:
    for member, name in source.names.items():
        text = variables.get(name)
        if text and _integer(text) is None and not (name == "PET_NNODES" and re.fullmatch(_RANGE, text) is not None):
            yield Problem(name, f"is {text!r}, not a whole number")
        elif not text and member in ("rank", "world_size") and not _is_withheld(name, variables):
            yield _missing(name, launch)
    if launch.kind in ("environment", "pytorchjob") and (launch.world_size or 1) > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if getattr(launch, name.lower()) is None and not variables.get(name) and not _is_withheld(name, variables):
                yield Problem(name, "is not set: the address of rank 0 is not known")
    port = variables.get("MASTER_PORT")
    if port and (_integer(port) or 0) not in range(1, 1 << 16):
        yield Problem("MASTER_PORT", f"is {port!r}, not a port from 1 to 65535", "set it to a free port, such as 29500")
    if launch.kind == "single":
        yield from _batch_problems(variables)
        if variables.get("ACCELERATE_MIXED_PRECISION") and variables.get("MASTER_ADDR"):
            message = (
                "is not set, though MASTER_ADDR and ACCELERATE_MIXED_PRECISION are: accelerate started one process"
            )
            yield Problem("RANK", message, "start it with accelerate launch --multi_gpu, or torchrun", harmless=True)
    yield from _contradictions(launch)


def _is_withheld(name: str, variables: Variables) -> bool:
    """Return whether a variable may be set, but its value is withheld."""
    return name in variables and variables[name] is None


def _missing(name: str, launch: Launch) -> Problem:
    message = f"is not set, though {', '.join(launch.variables)} is"
    if launch.kind == "pytorchjob":  # elastic: the pods have no numbers before torchrun gives them some
        return Problem(name, f"{message}: only torchrun numbers these pods", "start it with torchrun", harmless=True)
    return Problem(name, message)


_MOST = {"world_size": bounds.JOB_RANKS, "local_world_size": bounds.NODE_RANKS, "nnodes": bounds.HOST_NAMES}


def _contradictions(launch: Launch) -> Iterator[Problem]:
    names = dict(launch.origins)
    for member, most in _MOST.items():
        if (getattr(launch, member) or 0) > most:
            yield Problem(_origin_name(names, member), f"is {getattr(launch, member)}, more than any job has: {most:,}")
    for part, whole in _WHOLE:
        index, count = getattr(launch, part), getattr(launch, whole)
        if count is not None and count < 1:
            yield Problem(names[whole], f"is {count}, but there is at least one")
        elif index is not None and count is not None and not 0 <= index < count:
            yield Problem(names[part], f"is {index}, outside 0..{count - 1} ({_origin_name(names, whole)}={count})")
    world, local = launch.world_size, launch.local_world_size
    if world and local and (world < local or (launch.nnodes == 1 and world != local)):
        where = " on one node" if launch.nnodes == 1 else ""
        yield Problem(names["world_size"], f"is {world}, but {local} ranks were started here{where}")
    if world and launch.nnodes and world < launch.nnodes:
        yield Problem(names["world_size"], f"is {world}, fewer than the {launch.nnodes} nodes")


def _origin_name(names: Mapping[str, str], member: str) -> str:
    """Return the variable or flag that a member comes from; the member itself if a rule derived it."""
    return names[member] if " " not in names[member] else member


def _batch_problems(variables: Variables) -> Iterator[Problem]:
    """Yield the signs of an sbatch script or salloc's shell, which run once, on one node, without a step."""
    step, context = variables.get("SLURM_STEP_ID"), variables.get("SLURM_SCRIPT_CONTEXT") or ""
    tasks, *nodes = (_integer(variables.get(f"SLURM_{name}")) or 1 for name in ("NTASKS", "NNODES", "JOB_NUM_NODES"))
    several = f"{max(nodes)} nodes" if max(nodes) > 1 else f"{tasks} tasks"
    hook = context.startswith(("prolog", "epilog"))
    if variables.get("SLURM_JOB_ID") and not is_task(variables) and not hook and max(tasks, *nodes) > 1:
        what = "is not set: this is the body of a batch script" if not step else f"is {step}: this is a shell, no task"
        message = f"{what}, which runs once in a job of {several}"
        yield Problem("SLURM_STEP_ID", message, "start it with srun, --ntasks-per-node=1 for the doctor", harmless=True)


def _integer(text: str | None) -> int | None:
    """Parse a number; torchrun's node range ``2:2`` is accepted if both ends are equal."""
    match = re.fullmatch(r"(-?[0-9]{1,9})(?::\1)?", text or "")
    return int(match[1]) if match else None
