"""How a running job stands, from two looks at its ranks."""

from collections.abc import Mapping
from typing import Any

import pytest

from ncclprobe.checks.log.fixtures import recorded
from ncclprobe.facts.files.flight_records import FlightFrame, FlightRecords
from ncclprobe.facts.job.looks import Child, JobLook, JobLooks, ProcessState
from ncclprobe.facts.job.ranks import JobProcess, LocalRanks
from ncclprobe.facts.job.standing import Stand
from ncclprobe.facts.launcher import Launch
from ncclprobe.localise.job import stand
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

NOW_S = 1000.0
NOTHING = FlightRecords(())
IDLE = ProcessState(NOW_S, "S", 5.0, "futex_do_wait", "futex", switches=7)
SLEEPS = ProcessState(NOW_S, "S", 5.0, "hrtimer_nanosleep", "nanosleep", switches=7)
STOPPED = ProcessState(NOW_S, "T", 5.0, "do_signal_stop")
ENDED = ProcessState(NOW_S, "Z", 5.0)
GONE = Absent("process 102: it has ended", "Missing")
UNSEEN = Absent("process 102: permission denied", "Denied")
WAIT_OF_51 = {0: "all_reduce@960 all_reduce*@970", 1: "all_reduce@960 all_reduce*@970", 2: "all_reduce@960"}
IN_ALL_REDUCE = (
    FlightFrame("all_reduce", "/v/torch/distributed/distributed_c10d.py", 3000),
    FlightFrame("step", "/home/u/train.py", 40),
)
IN_LOADER = (FlightFrame("recv", "/usr/lib/python3.11/connection.py", 3), FlightFrame("step", "/home/u/train.py", 12))


def later(state: ProcessState, **changes: Any) -> ProcessState:
    """Return a state a second later."""
    return replace(state, time_s=state.time_s + 1.0, **changes)


def looked(
    states: Mapping[int, tuple[ProcessState | Absent, ProcessState | Absent]],
    first: FlightRecords = NOTHING,
    second: FlightRecords | None = None,
    stacks: Mapping[int, tuple[tuple[FlightFrame, ...], tuple[FlightFrame, ...]]] | None = None,
    world: int = 0,
    absent: tuple[int, ...] = (),
) -> Stand:
    """Return how a job stands whose ranks, all on one node, were seen so."""
    launch = Launch("torchrun", world_size=world or len(states))
    ranks = tuple(JobProcess(100 + rank, 1, "python", rank, launch) for rank in states)
    read = [tuple(both[at] for both in stacks.values()) if stacks else () for at in (0, 1)]
    looks = JobLooks(
        JobLook(tuple(both[0] for both in states.values()), first, ("",) * len(states), read[0]),
        JobLook(tuple(both[1] for both in states.values()), second or first, ("",) * len(states), read[1]),
    )
    return stand({"n1": (LocalRanks(ranks, absent), looks)})


def waits_for_2(first: ProcessState | Absent, second: ProcessState | Absent) -> Stand:
    waiting = (IDLE, later(IDLE))
    return looked({0: waiting, 1: waiting, 2: (first, second)}, recorded(WAIT_OF_51, backend="gloo"))


def classes(found: Stand) -> dict[str, tuple[int, ...]]:
    return {each.name: each.ranks for each in found.classes}


@pytest.mark.parametrize(
    ("first", "second", "name", "words"),
    [
        (SLEEPS, later(SLEEPS), "stuck outside", "sleeps (nanosleep)"),
        (IDLE, later(IDLE), "stuck outside", "waits for a lock or for another thread (futex)"),
        (STOPPED, later(STOPPED), "stuck outside", "is stopped by a signal"),
        (IDLE, GONE, "dead or gone", "has ended (process 102)"),
        (IDLE, ENDED, "dead or gone", "has ended (process 102)"),
        (UNSEEN, UNSEEN, "cannot tell", "is not known: process 102: permission denied"),
        (IDLE, later(IDLE, cpu_s=5.9, faults=9000), "slow, not stuck", "is at work (0.9 cores)"),
        (IDLE, later(IDLE, moved_bytes=300_000_000), "slow, not stuck", "is at work (0.0 cores, 300 MB/s"),
        (IDLE, later(IDLE, held_s=0.8), "slow, not stuck", "held back by the quota of its cgroup"),
        (IDLE, later(IDLE, cpu_s=5.9), "slow, not stuck", "as an endless loop does"),
    ],
)
def test_a_rank_for_which_others_wait_is_stuck_only_if_it_does_nothing(
    first: Any, second: Any, name: str, words: str
) -> None:
    found = waits_for_2(first, second)
    assert classes(found) == {name: (2,), "waiting": (0, 1)}
    assert words in found.classes[0].doing
    assert (
        found.answer.message == "2 of 3 ranks wait in all_reduce #2 (group 0 (default_pg)) since 31 s for rank 2 on n1"
    )
    assert found.answer.word == {"slow, not stuck": "SLOW", "cannot tell": "CANNOT TELL"}.get(name, "STUCK")


def test_a_loop_is_stuck_when_others_have_waited_for_a_minute() -> None:
    texts = {0: "all_reduce@900 all_reduce*@910", 1: "all_reduce@900 all_reduce*@910", 2: "all_reduce@900"}
    loop = (IDLE, later(IDLE, cpu_s=5.9))
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: loop}
    assert classes(looked(states, recorded(texts, backend="gloo")))["stuck outside"] == (2,)
    other = (IN_LOADER[1], IN_LOADER[0])
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (IN_LOADER, other)}
    assert "stuck outside" not in classes(looked(states, recorded(texts, backend="gloo"), stacks=stacks))


def test_a_child_at_work_is_work_of_its_rank() -> None:
    compiler = Child(7, "cc1plus", "R", 3.0)
    first = later(IDLE, children=(compiler,))
    found = waits_for_2(IDLE, first)
    assert classes(found)["slow, not stuck"] == (2,)


def test_a_worker_that_cannot_go_on_is_named_and_its_pipe() -> None:
    worker = Child(4242, "pt_data_worker", "D", 3.0, "nfs_wait_on_request", "read", "/data/7.tar", pipes=("pipe:[9]",))
    polls = ProcessState(NOW_S, "S", 5.0, "do_poll", "poll", pipes=("pipe:[9]",), children=(worker,))
    (outside, _) = waits_for_2(polls, later(polls)).classes
    wanted = "its process 4242 (pt_data_worker), which shares a pipe with it, is in uninterruptible sleep"
    assert f"waits for input (poll); {wanted} (nfs_wait_on_request, /data/7.tar)" in outside.doing


def test_no_rank_is_named_for_whom_others_wait_no_longer_than_usual() -> None:
    texts = dict.fromkeys((0, 1), "all_reduce@900 all_reduce@950 all_reduce*@998") | {
        2: "all_reduce@900 all_reduce@950"
    }
    found = looked(dict.fromkeys(range(3), (IDLE, later(IDLE))), recorded(texts, backend="gloo"))
    assert found.answer.word == "SLOW"


def test_ranks_that_move_between_the_looks_stand_nowhere() -> None:
    first = recorded({0: "all_reduce all_reduce*", 1: "all_reduce"}, backend="gloo")
    second = recorded({0: "all_reduce all_reduce all_reduce*", 1: "all_reduce all_reduce"}, backend="gloo")
    found = looked(dict.fromkeys(range(2), (IDLE, later(IDLE))), first, second)
    assert (found.answer.word, classes(found)) == ("WORKING", {"working": (0, 1)})


def test_ranks_in_other_collectives_wait_for_each_other() -> None:
    texts = {
        0: "all_reduce@970 all_reduce*@971",
        1: "all_reduce@970 all_gather*@971",
        2: "all_reduce@970 all_reduce*@971",
    }
    found = looked(dict.fromkeys(range(3), (IDLE, later(IDLE))), recorded(texts, backend="gloo"))
    assert (found.answer.word, classes(found)) == ("STUCK", {"desync": (1,), "waiting": (0, 2)})
    assert "rank 1 called all_gather" in found.answer.message


def test_ranks_that_wait_in_groups_whose_members_are_not_known_wait_for_each_other() -> None:
    texts = dict.fromkeys(range(3), "all_reduce@970 all_reduce*@971") | {1: "all_reduce@970 1/all_reduce*@971"}
    dumps = recorded(texts, backend="gloo").dumps
    unknown = [[replace(g, ranks=(), desc=g.desc or "undefined") for g in each.groups] for each in dumps]
    records = tuple(replace(each, groups=tuple(own)) for each, own in zip(dumps, unknown, strict=True))
    found = looked(dict.fromkeys(range(3), (IDLE, later(IDLE))), FlightRecords(records))
    assert (found.answer.word, classes(found)) == ("STUCK", {"desync": (1,), "waiting": (0, 2)})


def test_a_rank_that_is_stopped_in_a_call_holds_up_all_that_are_in_it() -> None:
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (STOPPED, later(STOPPED))}
    texts = dict.fromkeys(range(3), "all_reduce@970 all_reduce*@971")
    found = looked(states, recorded(texts, backend="gloo"))
    assert classes(found) == {"stuck inside": (2,), "waiting": (0, 1)}
    assert "for rank 2" in found.answer.message


def test_a_rank_that_answers_nothing_is_named_by_its_silence() -> None:
    texts = {0: "all_reduce@970 all_reduce*@971", 1: "all_reduce@970 all_reduce*@971"}
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (STOPPED, later(STOPPED))}
    found = looked(states, recorded(texts, world=3, backend="gloo"))
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}


@pytest.mark.parametrize(("second", "name"), [(999, "working"), (965, "stuck inside")])
def test_a_collective_with_all_ranks_in_it_stands_after_half_a_minute(second: int, name: str) -> None:
    texts = dict.fromkeys(range(2), f"all_reduce@{second - 5} all_reduce*@{second}")
    found = looked(dict.fromkeys(range(2), (IDLE, later(IDLE))), recorded(texts))
    assert classes(found) == {name: (0, 1)}


def test_ranks_of_a_node_that_was_not_looked_at_are_not_judged() -> None:
    states = dict.fromkeys(range(2), (IDLE, later(IDLE)))
    texts = dict.fromkeys(range(2), "all_reduce@970 all_reduce*@971")
    found = looked(states, recorded(texts, world=4, backend="gloo"), world=4)
    assert (found.answer.word, classes(found)) == ("CANNOT TELL", {"cannot tell": (2, 3), "waiting": (0, 1)})
    assert found.classes[0].doing == "was not looked at: attach on its node too"


def test_stacks_name_the_rank_where_torch_has_recorded_nothing() -> None:
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (IN_LOADER,) * 2}
    five_later = ProcessState(NOW_S + 5.0, "S", 5.0, "futex_do_wait", "futex", switches=7)
    found = looked(dict.fromkeys(range(3), (IDLE, five_later)), stacks=stacks)
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}
    assert found.classes[0].doing.endswith("in recv, train.py:12 in step")


def test_stacks_in_different_calls_wait_for_each_other_where_all_are_in_one() -> None:
    gathers = (replace(IN_ALL_REDUCE[0], name="all_gather"), replace(IN_ALL_REDUCE[1], line=50))
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (gathers,) * 2, 2: (IN_ALL_REDUCE,) * 2}
    states = dict.fromkeys(range(3), (IDLE, later(IDLE)))
    found = looked(states, stacks=stacks)
    assert classes(found) == {"desync": (1,), "waiting": (0, 2)}
    assert "rank 1 in all_gather (train.py:50)" in found.answer.message
    assert looked(states, stacks=stacks, world=6).answer.word == "CANNOT TELL"


def test_waiting_ranks_that_woke_between_the_looks_prove_nothing_by_their_stacks() -> None:
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_LOADER,) * 2}
    woke = ProcessState(NOW_S + 5.0, "S", 5.0, "futex_do_wait", "futex", switches=9)
    found = looked({0: (IDLE, woke), 1: (IDLE, woke)}, stacks=stacks)
    assert found.answer.word == "CANNOT TELL"


def test_without_records_and_stacks_a_stopped_rank_is_named_and_no_other() -> None:
    states = {0: (IDLE, later(IDLE)), 1: (SLEEPS, later(SLEEPS)), 2: (STOPPED, later(STOPPED))}
    found = looked(states)
    assert classes(found)["stuck outside"] == (2,)
    assert {0, 1} <= {rank for each in found.classes if each.name == "cannot tell" for rank in each.ranks}
    assert "--prepare" in found.answer.prepare


def test_a_job_that_starts_or_ends_is_not_stuck_for_its_absent_ranks() -> None:
    at_work = (IDLE, later(IDLE, cpu_s=5.9, faults=9000))
    assert looked({0: at_work}, world=2, absent=(1,)).answer.word == "WORKING"
    assert looked({0: (IDLE, later(IDLE))}, world=2, absent=(1,)).answer.word == "STUCK"


def test_ranks_that_all_do_nothing_outside_of_any_call_are_stuck_after_minutes() -> None:
    texts = dict.fromkeys(range(2), "all_reduce@600 all_reduce@610")
    states = dict.fromkeys(range(2), (SLEEPS, later(SLEEPS)))
    assert classes(looked(states, recorded(texts))) == {"stuck outside": (0, 1)}
    texts = dict.fromkeys(range(2), "all_reduce@600 all_reduce@800")  # they pause as long now and then
    assert classes(looked(states, recorded(texts))) == {"working": (0, 1)}
