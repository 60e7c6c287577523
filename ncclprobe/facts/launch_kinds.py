"""Which launcher started a process, by the variables that only that launcher sets, and where it says what.

Sources:
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
  pkg/runtime/framework/plugins/torch/torch.go; torch distributed/argparse_util.py). PET_NNODES is ``1:4`` where
  elastic, and then only torchrun numbers the pods.
- DeepSpeed's launcher adds CROSS_RANK, CROSS_SIZE and LOCAL_SIZE (deepspeed/launcher/launch.py, main).
- SLURM_GPUS_ON_NODE is how many GPUs of this node Slurm gave to the job (sbatch(1)); NVIDIA_VISIBLE_DEVICES, where it
  holds UUIDs, which ones Kubernetes gave to the container (NVIDIA/k8s-device-plugin, --device-list-strategy=envvar).
- `accelerate launch` runs several ranks with torchrun's own code; its simple launcher starts one process, which has
  MASTER_ADDR and no RANK where several were asked for (accelerate/utils/launch.py, prepare_simple_launcher_cmd_env).
"""

import re
from collections.abc import Mapping

from ncclprobe.model.values import Struct, field

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
        *("ACCELERATE_MIXED_PRECISION", "MPI_LOCALNRANKS", "SLURM_GPUS_ON_NODE", "NVIDIA_VISIBLE_DEVICES"),
    }
)
"""Variables of launchers that NCCL's table of parameters does not hold: their values may be recorded too."""


class VariableSource(Struct, frozen=True):
    """A launcher, and per field of Launch the variable that it says it in; `fixed`: what it need not say."""

    kind: str
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)


def recognise(variables: Variables) -> VariableSource:
    """Return the innermost launcher: RANK and WORLD_SIZE win over what an outer one has set, as in torch."""
    if _is_pod(variables):
        node = "PET_NODE_RANK" if variables.get("PET_NODE_RANK") or not variables.get("RANK") else "RANK"
        nodes = "PET_NNODES" if variables.get("PET_NNODES") else "WORLD_SIZE"
        names = {"rank": node, "world_size": nodes, "node_rank": node, "nnodes": nodes}
        return VariableSource("pytorchjob", names, {"local_rank": 0, "local_world_size": 1})
    if any(variables.get(name) for name in TORCH):
        return _torch(variables)
    if variables.get("OMPI_COMM_WORLD_RANK"):
        tails = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        names = {name: f"OMPI_COMM_WORLD_{tail}" for name, tail in zip(_RANKS, tails, strict=True)}
        return VariableSource("openmpi", names | {"nnodes": "OMPI_MCA_orte_num_nodes"})
    if variables.get("SLURM_PROCID") and is_task(variables):
        step = "SLURM_STEP_NUM_TASKS" if variables.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        nodes = "SLURM_STEP_NUM_NODES" if variables.get("SLURM_STEP_NUM_NODES") else "SLURM_NNODES"
        names = {"rank": "SLURM_PROCID", "world_size": step, "local_rank": "SLURM_LOCALID"}
        return VariableSource("slurm", names | {"nnodes": nodes, "node_rank": "SLURM_NODEID"})
    if variables.get("PMI_RANK"):
        names = {"rank": "PMI_RANK", "world_size": "PMI_SIZE", "local_rank": "MPI_LOCALRANKID"}
        return VariableSource("pmi", names | {"local_world_size": "MPI_LOCALNRANKS"})
    return VariableSource("single")


def _torch(variables: Variables) -> VariableSource:
    names = dict(zip(_RANKS, TORCH, strict=True))
    if variables.get("TORCHELASTIC_RUN_ID"):
        return VariableSource("torchrun", names | {"nnodes": "GROUP_WORLD_SIZE", "node_rank": "GROUP_RANK"})
    if variables.get("CROSS_RANK") and variables.get("CROSS_SIZE"):
        deepspeed = {"local_world_size": "LOCAL_SIZE", "nnodes": "CROSS_SIZE", "node_rank": "CROSS_RANK"}
        return VariableSource("environment", names | deepspeed)
    return VariableSource("environment", names | {"nnodes": "NNODES", "node_rank": "NODE_RANK"})


def _is_pod(variables: Variables) -> bool:
    """Return whether this is the one process that Kubeflow starts in a pod, and nothing in between has started
    ranks.
    """
    if any(variables.get(name) for name in ("LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK")):
        return False
    if variables.get("PET_NNODES"):
        return any(variables.get(name) for name in ("PET_NODE_RANK", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"))
    older = all(variables.get(name) for name in ("KUBERNETES_SERVICE_HOST", "RANK", "WORLD_SIZE"))
    return older and (variables.get("MASTER_ADDR") or "").endswith("-master-0")


def is_task(variables: Variables) -> bool:
    """Return whether srun started this process as a task, rather than salloc or `srun --pty` a shell to type into."""
    step = variables.get("SLURM_STEP_ID")
    if not step or (step.isdecimal() and int(step[:10]) >= _FIRST_SPECIAL_STEP):
        return False
    return not (variables.get("SLURM_PTY_PORT") and variables.get("SLURM_STEP_NUM_TASKS") == "1")


def run_id(kind: str, variables: Variables) -> str:
    """Return what the launcher calls this very run, the same for all its ranks; empty where it has no name.

    Only of variables that all ranks share: under Slurm, mpirun's first ranks are no tasks of a step and the others are.
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
    """Return Slurm's tasks of each node, ``8(x3),4``: 8, 8, 8, 4. Empty where it is not written so."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,5})\))?", part)
        if not match:
            return ()
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)
