"""Who am I: what each launcher's variables say, and what is half set."""

from ncclprobe.facts.launcher import Flags, Launch, detect, half_given, no_master
from ncclprobe.model.values import replace
from tests.each_row import each_row

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
STARTED = {"TORCHELASTIC_RUN_ID": "4711", "RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "12",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "8,4",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}

UNEVEN = MPIRUN | {"OMPI_COMM_WORLD_RANK": "8", "OMPI_COMM_WORLD_SIZE": "12", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
TRAINER = {
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
OPERATOR = {
    **{"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "16", "RANK": "1"},
    **{"PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456", "PET_NODE_RANK": "1", "PET_NNODES": "2"},
}
OLD_OPERATOR = {
    **{"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1"},
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}
ELASTIC = {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "job-worker-0:23456", "PET_RDZV_BACKEND": "c10d"}
DEEPSPEED = {
    **{"RANK": "9", "WORLD_SIZE": "14", "LOCAL_RANK": "1", "LOCAL_SIZE": "6", "CROSS_RANK": "1", "CROSS_SIZE": "2"},
    **{"MASTER_ADDR": "n0", "MASTER_PORT": "29500"},
}
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "False", "MASTER_ADDR": "127.0.0.1"}
SALLOC = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    **{"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "1"},
}
HYDRA = {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8"}
PTY = SALLOC | {"SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "40001"}
KUBEFLOW_IDS = (
    *("mpirun-tells-its-nodes", "mpirun-uneven", "trainer-v2", "pytorchjob", "old-pytorchjob"),
    *("torchrun-in-a-pod", "deepspeed"),
)


@each_row(
    ("variables", "expected"),
    [
        (TORCHRUN, ("torchrun", 9, 16, 1, 8, 2, 1)),
        (SRUN, ("slurm", 9, 12, 1, 4, 2, 1)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "6(x2)"}, ("slurm", 9, 12, 1, 6, 2, 1)),
        (MPIRUN, ("openmpi", 9, 16, 1, 8, 2, None)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("pmi", 1, 2, None, None, None, None)),
        (HYDRA, ("pmi", 9, 16, 1, 8, 2, None)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("environment", 0, 1, None, None, None, None)),
        ({}, ("single", None, None, None, None, None, None)),
        (SRUN | TORCHRUN, ("torchrun", 9, 16, 1, 8, 2, 1)),
        (MPIRUN | {"OMPI_MCA_orte_num_nodes": "3"}, ("openmpi", 9, 16, 1, 8, 3, None)),
        (UNEVEN, ("openmpi", 8, 12, 0, 8, None, None)),
        (TRAINER, ("pytorchjob", 1, 4, 0, 1, 4, 1)),
        (OPERATOR, ("pytorchjob", 1, 2, 0, 1, 2, 1)),
        (OLD_OPERATOR, ("pytorchjob", 1, 2, 0, 1, 2, 1)),
        (TRAINER | TORCHRUN, ("torchrun", 9, 16, 1, 8, 2, 1)),
        (DEEPSPEED, ("environment", 9, 14, 1, 6, 2, 1)),
    ],
    ids=[
        "torchrun",
        "srun",
        "srun-even",
        "mpirun",
        "pmi",
        "hydra",
        "environment",
        "single",
        "torchrun-under-srun",
        *KUBEFLOW_IDS,
    ],
)
def test_each_launcher_is_recognised(variables: dict[str, str], expected: tuple[object, ...]) -> None:
    seen = detect(variables)
    found = (seen.kind, seen.rank, seen.world_size, seen.local_rank, seen.local_world_size, seen.nnodes, seen.node_rank)
    assert found == expected
    assert seen.problems == ()


def test_the_master_is_where_the_variables_say() -> None:
    assert (detect(TORCHRUN).master_addr, detect(TORCHRUN).master_port) == ("n0", 29500)


@each_row(
    ("variables", "subject", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE", "is not set, though RANK is"),
        ({"WORLD_SIZE": "2"}, "RANK", "is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR", "is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}, "MASTER_PORT", "is not set"),
        (TORCHRUN | {"RANK": "16"}, "RANK", "outside 0..15"),
        (TORCHRUN | {"LOCAL_RANK": "8"}, "LOCAL_RANK", "outside 0..7"),
        (TORCHRUN | {"WORLD_SIZE": "sixteen"}, "WORLD_SIZE", "'sixteen', not a whole number"),
        (TORCHRUN | {"WORLD_SIZE": "4", "RANK": "1"}, "WORLD_SIZE", "but 8 ranks were started here"),
        (TORCHRUN | {"GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0"}, "WORLD_SIZE", "on one node"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "SLURM_STEP_ID", "body of a batch script"),
        (SALLOC, "SLURM_STEP_ID", "a shell, no task, which runs once in a job of 2 nodes"),
        (PTY, "SLURM_STEP_ID", "a shell, no task"),
        (ACCELERATE, "RANK", "accelerate started one process"),
        ({"LOCAL_RANK": "0", "MASTER_ADDR": "n0"}, "RANK", "is not set, though LOCAL_RANK is"),
        (ELASTIC, "PET_NODE_RANK", "only torchrun numbers these pods"),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "0"} | {"PET_RDZV_ENDPOINT": "x"}, "MASTER_ADDR", "is not set"),
        (TRAINER | {"PET_NODE_RANK": "4"}, "PET_NODE_RANK", "outside 0..3"),
    ],
)
def test_what_is_half_set_or_contradictory_is_named(variables: dict[str, str], subject: str, words: str) -> None:
    assert any(p.subject == subject and words in p.message for p in detect(variables).problems)


@each_row(
    "variables",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"},
        {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"},
        {"NCCL_DEBUG": "INFO"},
    ],
    ids=["one-task-batch", "prolog", "prepared-for-a-later-launch", "unrelated"],
)
def test_what_is_no_half_started_job_is_left_alone(variables: dict[str, str]) -> None:
    port = 29500 if "MASTER_PORT" in variables else None
    assert replace(detect(variables), origins=()) == Launch(master_addr=variables.get("MASTER_ADDR"), master_port=port)


def test_a_shell_in_an_allocation_of_one_node_is_nothing_to_speak_of() -> None:
    assert detect(SALLOC | {"SLURM_JOB_NUM_NODES": "1"}).problems == ()
    assert {detect(SALLOC).kind, detect(PTY).kind} == {"single"}
    assert detect(PTY | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}).kind == "slurm"  # srun, typed into it


def test_accelerates_ranks_are_those_of_whoever_started_them() -> None:
    assert (detect(ACCELERATE | MPIRUN).kind, detect(ACCELERATE | TORCHRUN).kind) == ("openmpi", "torchrun")
    assert detect(ACCELERATE | TORCHRUN).problems == ()
    assert detect({"ACCELERATE_MIXED_PRECISION": "no"}).problems == ()


def test_mpirun_of_unequal_nodes_spans_several_though_nobody_counted_them() -> None:
    launch = detect(UNEVEN)
    assert launch.several_nodes
    assert launch.speaks_for_node
    assert not detect(MPIRUN).speaks_for_node
    assert not detect({}).several_nodes


def test_slurms_nodes_have_names_and_the_first_is_where_to_meet() -> None:
    launch = detect(SRUN | {"SLURM_STEP_NODELIST": "gpu[007-008]"})
    assert launch.names == ("gpu007", "gpu008")
    assert launch.master_addr == "gpu007"
    assert launch.master_port in range(20000, 30000)
    assert dict(launch.origins)["master_addr"] == "the first of SLURM_STEP_NODELIST"
    assert dict(launch.origins)["master_port"] == "derived from the job's id"
    assert dict(launch.origins)["rank"] == "SLURM_PROCID"


@each_row("text", ["gpu[1-", "gpu[1-3]", ""])
def test_a_list_of_other_nodes_than_the_steps_gives_no_names(text: str) -> None:
    launch = detect(SRUN | {"SLURM_JOB_NODELIST": text})
    assert (launch.names, launch.master_addr) == ((), None)
    assert no_master(launch) is not None


def test_what_was_said_wins_over_the_list() -> None:
    launch = detect(SRUN | {"SLURM_STEP_NODELIST": "n[1-2]", "MASTER_ADDR": "n9", "MASTER_PORT": "5"})
    assert (launch.master_addr, launch.master_port, launch.names) == ("n9", 5, ("n1", "n2"))


def test_mpirun_needs_to_be_told_where_to_meet() -> None:
    missing = no_master(detect(MPIRUN))
    assert missing is not None
    assert "mpirun -x MASTER_ADDR=HOST" in missing.remedy
    assert no_master(detect(MPIRUN | {"MASTER_ADDR": "n0"})) is None
    assert no_master(detect(MPIRUN | {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "1"})) is None


def test_an_elastic_pod_meets_at_its_endpoint() -> None:
    launch = detect(ELASTIC)
    assert (launch.master_addr, launch.master_port, launch.nnodes) == ("job-worker-0", 23456, None)
    assert all(problem.harmless for problem in launch.problems)
    assert detect(ELASTIC | {"PET_NNODES": "2:2"}).nnodes == 2


@each_row(
    ("variables", "run"),
    [
        (TORCHRUN, ""),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "4711"}, "4711"),
        (SRUN, "7.0"),
        (MPIRUN | {"PMIX_NAMESPACE": "prterun-1@1"}, "prterun-1@1"),
        (MPIRUN | {"PMIX_NAMESPACE": "5", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "5"),
        (TRAINER, "job-node-0-0.job"),
        ({}, ""),
    ],
)
def test_a_run_is_called_what_all_its_ranks_call_it(variables: dict[str, str], run: str) -> None:
    assert detect(variables).run_id == run


def test_mpiruns_ranks_derive_one_port_though_only_some_are_in_a_step() -> None:
    first = MPIRUN | {"MASTER_ADDR": "n0", "PMIX_NAMESPACE": "5", "SLURM_JOB_ID": "7"}
    assert detect(first).master_port == detect(first | {"SLURM_STEP_ID": "0"}).master_port is not None


def test_the_agents_store_is_told_of() -> None:
    assert detect(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).agent_store
    assert not detect(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_store


ALL_FLAGS = Flags(2, 1, "n0", 29500)


def test_flags_alone_make_a_launch_of_one_process_per_node() -> None:
    launch = detect({}, ALL_FLAGS)
    assert (launch.kind, launch.rank, launch.world_size, launch.nnodes, launch.node_rank) == ("options", 1, 2, 2, 1)
    assert (launch.master_addr, launch.master_port, launch.problems) == ("n0", 29500, ())
    assert dict(launch.origins)["node_rank"] == "--node-rank"


def test_flags_win_over_a_launcher_which_keeps_its_ranks() -> None:
    launch = detect(TORCHRUN, Flags(master_addr="n7"))
    assert (launch.kind, launch.rank, launch.master_addr, launch.master_port) == ("torchrun", 9, "n7", 29500)
    assert detect(TORCHRUN, Flags()) == detect(TORCHRUN)


@each_row("variables", [{"RANK": "0"}, SALLOC, ACCELERATE], ids=["half-set", "salloc", "accelerate"])
def test_complete_flags_need_no_environment(variables: dict[str, str]) -> None:
    launch = detect(variables, ALL_FLAGS)
    assert (launch.kind, launch.node_rank, launch.master_addr, launch.problems) == ("options", 1, "n0", ())
    assert half_given(ALL_FLAGS, variables) == ""


@each_row(
    ("flags", "variables", "words"),
    [
        (Flags(node_rank=1), {}, "--node-rank without --nnodes"),
        (Flags(nnodes=2), {}, "--nnodes without --node-rank"),
        (Flags(master_addr="n0"), {}, "--master-addr without --nnodes"),
        (Flags(2, 0), {}, "without --master-addr, and MASTER_ADDR is not set"),
        (Flags(2, 0, "n0"), {}, "without --master-port, and MASTER_PORT is not set"),
        (Flags(2, 2, "n0", 1), {}, "--node-rank 2 is outside 0..1"),
        (Flags(0), {}, "--nnodes is 0"),
        (Flags(node_rank=1), TORCHRUN, "--node-rank without --nnodes"),
    ],
)
def test_half_given_flags_are_refused(flags: Flags, variables: dict[str, str], words: str) -> None:
    assert words in half_given(flags, variables)


@each_row(
    ("flags", "variables"),
    [
        (Flags(), {}),
        (Flags(1), {}),
        (ALL_FLAGS, {}),
        (Flags(2, 0), {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}),
        (Flags(master_port=1234), TORCHRUN),
    ],
)
def test_flags_that_say_enough_are_not(flags: Flags, variables: dict[str, str]) -> None:
    assert half_given(flags, variables) == ""
