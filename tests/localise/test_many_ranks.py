"""A running job of many ranks is told in classes, and why stacks were not read is told with it."""

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import JobState
from ncclprobe.logs.job import merged
from ncclprobe.model.causes import RankClass
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row
from tests.localise.test_job import IDLE, later, looked

RANKS = 64
CALLS = dict.fromkeys((0, 1), "all_reduce@960 all_reduce*@970") | dict.fromkeys(range(2, RANKS), "all_reduce@960")
Both = tuple[LiveRank | Absent, LiveRank | Absent]


def at_work(rank: int) -> Both:
    return IDLE, later(IDLE, moved_bytes=100_000_000 + rank * 1_000_000)


def with_a_loader_in_d_state(rank: int) -> Both:
    pipe = (f"pipe:[1{rank}]",)
    child = Child("D", 1.0, "nfs_wait", "read", "/data/x", pid=5000 + rank, name="pt_data_worker", pipes=pipe)
    state = replace(IDLE, call="poll", wchan="", pipes=pipe, children=(child,))
    return state, later(state)


def denied(rank: int) -> Both:
    return (Absent(f"process {100 + rank}: permission denied", "Denied"),) * 2


def ended(rank: int) -> Both:
    return IDLE, Absent(f"process {100 + rank}: it has ended", "Missing")


def reading_a_shard(rank: int) -> Both:
    state = replace(IDLE, call="read", file=f"/data/shard-{rank}")
    return state, later(state)


def stand_of(state: object) -> JobState:
    assert callable(state)
    states = {rank: (IDLE, later(IDLE)) if rank < 2 else state(rank) for rank in range(RANKS)}
    return looked(states, recorded(CALLS, backend="gloo"))


@each_row("state", [at_work, with_a_loader_in_d_state, denied, ended, reading_a_shard])
def test_ranks_that_do_the_same_are_one_row(state: object) -> None:
    found = stand_of(state)
    assert len(found.classes) == 2
    row = next(each for each in found.classes if len(each.ranks) == RANKS - 2)
    assert f"{RANKS - 3} more alike" in row.doing


def test_ranks_that_wait_in_different_calls_stay_apart() -> None:
    rows = [
        RankClass("waiting", (rank,), doing=f"is waiting in all_reduce #{51 + rank % 2} for rank 9")
        for rank in range(4)
    ]
    assert [each.ranks for each in merged(iter(rows))] == [(0, 2), (1, 3)]


def test_why_stacks_were_not_read_is_said() -> None:
    why = Absent("py-spy is not installed; run `pip install py-spy`", "Missing")
    unseen = (Absent("process 102: permission denied", "Denied"),) * 2
    states = {0: (IDLE, later(IDLE)), 1: unseen}
    found = looked(states, stacks={0: (why, why), 1: (why, why)})  # type: ignore[dict-item]
    assert "py-spy is not installed" in found.answer.prepare
    assert "--stacks reads" not in found.answer.prepare
    assert any("py-spy is not installed" in each.text for row in found.classes for each in row.evidence)


def test_without_being_asked_for_stacks_are_offered() -> None:
    found = looked({0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE))})
    assert "--stacks` shows the lines" in found.answer.prepare


def test_stacks_that_were_read_are_not_asked_for_again() -> None:
    frames = (FlightFrame("step", "/home/u/train.py", 40),)
    found = looked({rank: (IDLE, later(IDLE)) for rank in (0, 1)}, stacks=dict.fromkeys((0, 1), (frames, frames)))
    assert "stacks" not in found.answer.prepare
