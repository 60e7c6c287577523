"""Who am I: what each launcher's variables say, and what is half set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.launcher import Launch, detect

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


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, ("torchrun", 9, 16, 1, 8, 2, 1)),
        (SRUN, ("slurm", 9, 12, 1, 4, 2, 1)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "6(x2)"}, ("slurm", 9, 12, 1, 6, 2, 1)),
        (MPIRUN, ("openmpi", 9, 16, 1, 8, 2, None)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("pmi", 1, 2, None, None, None, None)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("manual", 0, 1, None, None, None, None)),
        ({}, ("none", None, None, None, None, None, None)),
        (SRUN | TORCHRUN, ("torchrun", 9, 16, 1, 8, 2, 1)),
    ],
    ids=["torchrun", "srun", "srun-even", "mpirun", "pmi", "manual", "none", "torchrun-under-srun"],
)
def test_each_launcher_is_recognised(variables: dict[str, str], expected: tuple[object, ...]) -> None:
    seen = detect(variables)
    found = (seen.kind, seen.rank, seen.world_size, seen.local_rank, seen.local_world_size, seen.nnodes, seen.node_rank)
    assert found == expected
    assert seen.problems == ()


def test_the_master_is_where_the_variables_say() -> None:
    assert (detect(TORCHRUN).master_addr, detect(TORCHRUN).master_port) == ("n0", 29500)


@pytest.mark.parametrize(
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
    ],
)
def test_what_is_half_set_or_contradictory_is_named(variables: dict[str, str], subject: str, words: str) -> None:
    assert any(p.subject == subject and words in p.message for p in detect(variables).problems)


@pytest.mark.parametrize(
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
    assert detect(variables) == Launch(
        master_addr=variables.get("MASTER_ADDR"), master_port=29500 if "MASTER_PORT" in variables else None
    )


@given(st.dictionaries(st.sampled_from([*TORCHRUN, *SRUN, *MPIRUN]), st.text(max_size=6)))
def test_any_variables_make_a_launch(variables: dict[str, str]) -> None:
    detect(variables)
