"""Who a process is, what it measures with, and how ranks exchange numbers: without torch."""

import json
from typing import Any

import pytest
from conftest import answers

from ncclprobe.facts.launcher import detect
from ncclprobe.model.errors import ProbeError, UsageError
from ncclprobe.session.ranks.identity import Devices, RankIdentity, choose_backend, device_index, identify
from ncclprobe.session.ranks.identity import devices as counted
from ncclprobe.session.ranks.store import Exchange, key
from tests.each_row import each_row

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n0", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-7",
}  # fmt: skip


def identified(variables: dict[str, str]) -> RankIdentity:
    found = identify(detect(variables), variables)
    assert found is not None
    return found


def test_under_torchrun_the_agent_serves_the_store() -> None:
    here = identified(TORCHRUN)
    assert (here.rank, here.ranks, here.local_rank, here.local_ranks, here.nnodes) == (5, 8, 1, 4, 2)
    assert (here.address, here.port, here.agent_store, here.serves) == ("n0", 29500, True, False)
    assert not identified(TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}).serves


def test_under_srun_the_first_host_of_the_step_serves_it() -> None:
    here = identified(SLURM)
    assert (here.rank, here.ranks, here.local_rank, here.local_ranks, here.address) == (3, 4, 1, 2, "gpu007")
    assert 20000 <= here.port < 30000
    assert here.port == identified(SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}).port
    assert here.port != identified(SLURM | {"SLURM_STEP_ID": "1"}).port


def test_under_mpirun_on_one_node_no_address_is_needed() -> None:
    here = identified(OPENMPI)
    assert (here.rank, here.ranks, here.address, here.serves) == (1, 2, "127.0.0.1", False)


def test_a_node_list_that_nobody_understands_gives_no_address() -> None:
    with pytest.raises(UsageError, match="MASTER_ADDR is not set and slurm started ranks on 2 nodes"):
        identified(SLURM | {"SLURM_STEP_NODELIST": "gpu[007-"})


def test_an_address_that_was_given_is_taken() -> None:
    assert identified(SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5"}).address == "10.0.0.1"


def test_without_a_launcher_there_is_no_rank() -> None:
    assert identify(detect({}), {}) is None


@each_row(
    ("variables", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8"}, "SLURM_STEP_ID is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "outside 0..1"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun -x MASTER_ADDR=HOST"),
    ],
)
def test_a_half_set_environment_is_refused_with_the_remedy(variables: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        identified(variables)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@each_row(
    ("asked", "kind", "local_ranks", "devices", "chosen"),
    [
        (None, "torchrun", 8, Devices(8, 8), "nccl"),
        (None, "torchrun", 8, Devices(8), "nccl"),
        ("nccl", "torchrun", 2, Devices(8, 8), "nccl"),
        (None, "slurm", 8, Devices(8, 1), "nccl"),  # srun --gpus-per-task=1 shows each rank its own
        (None, "environment", 8, Devices(8, 1), "nccl"),  # so may a script
        (None, "environment", 8, Devices(1), "nccl"),  # or a container
        (None, "slurm", 4, Devices(8, 2), "nccl"),  # srun --gpus-per-task=2
        (None, "torchrun", 4, Devices(8, 1), "nccl"),  # or what torchrun starts: whether they share it, all ranks tell
        ("gloo", "torchrun", 8, Devices(2, 2), "gloo"),
        ("gloo", "torchrun", 2, Devices(8, 0), "gloo"),
    ],
)
def test_a_backend_that_needs_no_comment(
    asked: Any, kind: str, local_ranks: int, devices: Devices, chosen: str
) -> None:
    assert choose_backend(asked, kind, local_ranks, devices) == (chosen, "")


def test_gloo_where_no_gpu_is_says_so() -> None:
    backend, remark = choose_backend(None, "torchrun", 2, Devices(0, 0))
    assert backend == "gloo"
    assert "does not apply to NCCL" in remark


@each_row(
    ("asked", "local_ranks", "devices", "words"),
    [
        (None, 2, Devices(8, 0, "2.13.0+cpu"), "torch 2.13.0+cpu can use none"),
        ("nccl", 2, Devices(8, 0, "2.13.0+cpu"), "--backend gloo"),
        ("nccl", 2, Devices(0, 0), "no GPU is visible"),
        (None, 4, Devices(2), "4 ranks on this node and 2 GPUs"),
        ("nccl", 4, Devices(1), "4 ranks on this node and 1 GPU:"),
        (None, 2, Devices(8, listed=""), "can use none of the 8 GPUs here: check CUDA_VISIBLE_DEVICES="),
        (None, 1, Devices(8, denied=8), "can use none of the 8 GPUs here"),
    ],
)
def test_there_is_no_silent_fallback(asked: Any, local_ranks: int, devices: Devices, words: str) -> None:
    with pytest.raises(UsageError, match="gloo") as refusal:
        choose_backend(asked, "torchrun", local_ranks, devices)
    assert words in str(refusal.value)


@each_row(
    ("devices", "shown"),
    [
        (Devices(8), 8),
        (Devices(8, denied=6), 2),
        (Devices(8, listed="2,3"), 2),
        (Devices(8, listed=" 2, 3 "), 2),
        (Devices(8, listed="0,9,1"), 1),  # CUDA ends the list there
        (Devices(8, listed="GPU-0a,GPU-0b,GPU-0c"), 3),
        (Devices(1, listed="MIG-9a0c,MIG-9a0d"), 1),  # a process sees one instance
        (Devices(8, listed="NoDevFiles"), 0),
        (Devices(8, listed=""), 0),
        (Devices(8, listed="-1"), 0),
        (Devices(8, 4, listed="0,1"), 4),  # torch has been asked
        (Devices(0, listed="0,1"), 0),
    ],
)
def test_the_gpus_that_this_process_may_use_are_counted_without_torch(devices: Devices, shown: int) -> None:
    assert devices.shown == shown


def test_a_device_that_a_control_group_denies_is_counted_as_such() -> None:
    may, must_not = json.dumps({"read": True, "write": True}), json.dumps({"read": False, "write": False})
    files = {("list", "/dev"): json.dumps(["nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"])}
    allowed = {("access", "/dev/nvidia0"): must_not, ("access", "/dev/nvidia1"): may}  # of nvidia2 nothing is known
    found = counted(answers(files | allowed))
    assert (found.nodes, found.denied) == (3, 1)


def test_a_rank_bound_to_one_gpu_uses_it() -> None:
    here = identified(SLURM)
    assert device_index(here, usable=8) == 1
    assert device_index(here, usable=1) == 0


class DictStore(dict[str, str]):
    """A store without a server. Like torch's, it answers in bytes."""

    def set(self, key: str, value: str, /) -> None:
        self[key] = value

    def get(self, key: str, /) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        return [self.get(key) for key in keys]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self for key in keys)

    def delete_key(self, key: str, /) -> bool:
        return self.pop(key, None) is not None


def at(rank: int) -> RankIdentity:
    return RankIdentity("environment", rank, 2, rank, 2, 1, "127.0.0.1", 1)


def test_rank_zero_gathers_everybodys_numbers_in_order_and_tidies_up() -> None:
    store = DictStore()
    zero, one = Exchange(store, at(0), 1.0), Exchange(store, at(1), 1.0)
    for turn in (0.5, 1.5):
        assert one.collect([turn, 2.0]) is None
        assert zero.collect([turn, 1.0]) == [[turn, 1.0], [turn, 2.0]]
    assert not store


def test_rank_zero_decides_for_all() -> None:
    store = DictStore()
    zero, one = Exchange(store, at(0), 1.0), Exchange(store, at(1), 1.0)
    assert zero.share(3.0) == 3.0
    assert one.share(9.0) == 3.0
    one.collect(None)
    zero.collect(None)
    assert not store  # all have read it by now


def test_rank_zero_gives_each_its_own() -> None:
    store = DictStore()
    zero, one = Exchange(store, at(0), 1.0), Exchange(store, at(1), 1.0)
    assert zero.scatter(["a", ["b"]]) == "a"
    assert one.scatter(None) == ["b"]
    one.collect(None)
    zero.collect(None)
    assert not store


def test_a_rank_that_does_not_answer_is_named() -> None:
    with pytest.raises(ProbeError, match="no answer from rank 1 within 0 s"):
        Exchange(DictStore(), at(0), 0.0).collect([1.0])


def test_not_a_number_does_not_travel() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Exchange(DictStore(), at(0), 0.0).collect([float("nan")])


def test_a_second_attempt_of_torchrun_reads_no_key_of_the_first() -> None:
    first, second = identified(TORCHRUN), identified(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert key(first, "end") != key(second, "end")


def test_values_are_json() -> None:
    store = DictStore()
    Exchange(store, at(1), 1.0).collect({"host": "n1"})
    assert [json.loads(value) for value in store.values()] == [{"host": "n1"}]
