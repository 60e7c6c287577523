"""Who a process is, what it measures with, and how ranks exchange numbers: without torch."""

import json
from typing import Any

import pytest
from conftest import answers

from ncclprobe.facts.launcher import detect
from ncclprobe.model import bounds
from ncclprobe.model.errors import ProbeError
from ncclprobe.session.ranks.identity import Devices, RankIdentity, identify
from ncclprobe.session.ranks.identity import devices as counted
from ncclprobe.session.ranks.store import Exchange, key
from session.records import DictStore
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


def identified(variables: dict[str, str]) -> RankIdentity:
    found = identify(detect(variables), variables)
    assert found is not None
    return found


def test_a_port_that_nobody_gave_is_that_of_the_step_on_every_rank() -> None:
    assert identify(detect({}), {}) is None
    here = identified(SLURM)
    assert 20000 <= here.port < 30000
    assert here.port == identified(SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}).port
    assert here.port != identified(SLURM | {"SLURM_STEP_ID": "1"}).port
    again = identified(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert [key(each, "end") for each in (identified(TORCHRUN), again)] == ["ncclprobe/0/end", "ncclprobe/1/end"]


def test_a_device_that_a_control_group_denies_is_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    may = [json.dumps({"read": read, "write": write}) for read in (False, True) for write in (False, True)]
    files = {("list", "/dev"): json.dumps(["nvidia10", *(f"nvidia{n}" for n in range(4)), "nvidiactl", "nvidia-uvm"])}
    found = counted(answers(files | {("access", f"/dev/nvidia{number}"): each for number, each in enumerate(may)}))
    assert found == Devices(5, denied=3, listed="1,0"), "of nvidia10 nothing is known"
    assert counted(answers({})) == Devices(0)


# What ranks exchange.


def exchanges(store: DictStore, ranks: int = 2) -> list[Exchange]:
    seats = [RankIdentity("environment", rank, ranks, rank, ranks, 1, "127.0.0.1", 1) for rank in range(ranks)]
    return [Exchange(store, identity, 0.0) for identity in seats]


def test_rank_zero_gathers_everybodys_numbers_decides_for_all_and_gives_each_its_own() -> None:
    store = DictStore()
    zero, one = exchanges(store)
    for turn in (0.5, 1.5):
        assert one.collect([turn, {"host": "n1"}]) is None
        assert [json.loads(value) for value in store.values()] == [[turn, {"host": "n1"}]]
        assert zero.collect([turn, 1.0]) == [[turn, 1.0], [turn, {"host": "n1"}]]
    assert not store
    assert (zero.share(3.0), one.share(9.0)) == (3.0, 3.0)
    assert (zero.scatter(["a", ["b"]]), one.scatter(None)) == ("a", ["b"])
    one.collect(None)
    zero.collect(None)
    assert not store  # all have read it by now


@each_row(
    ("value", "error", "words"),
    [
        ([1.0], ProbeError, "no answer from rank 1, 2 within 0 s"),
        ([float("nan")], ValueError, "JSON"),
        ("x" * (bounds.STORE_VALUE_BYTES - 2), ProbeError, "use fewer --batches"),
        ("x" * (bounds.STORE_VALUE_BYTES - 3), ProbeError, "no answer"),
    ],
)
def test_a_rank_that_does_not_answer_is_named_and_what_cannot_travel_is_refused(
    value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        exchanges(DictStore(), 3)[0].collect(value)


def test_a_run_that_can_do_without_a_rank_sets_aside_who_is_gone_and_hears_who_had_answered() -> None:
    zero, one, _ = exchanges(DictStore(), 3)
    assert one.gather("one", 60.0) is None
    assert zero.gather("zero", 60.0, lambda: {1, 2}) == {0: "zero", 1: "one"}
    assert zero.excluded == {2}


def test_nobody_waits_for_who_did_not_answer_in_time_nor_hears_it_later() -> None:
    zero, one, two = exchanges(DictStore(), 3)
    two.gather("two", 60.0)
    assert zero.gather("zero", 0.0) == {0: "zero", 2: "two"}
    assert zero.excluded == {1}
    for late in ("late", "here again"):
        one.gather(late, 60.0)
    two.gather("two", 60.0)
    assert zero.gather("zero", 60.0) == {0: "zero", 2: "two"}
    two.collect(2)
    assert zero.collect(0) == [0, None, 2]
    assert (zero.share("code"), two.share(None)) == ("code", "code")
