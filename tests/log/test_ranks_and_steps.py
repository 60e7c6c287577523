"""Which ranks are silent, since when steps are slow, and how collectives differ: every answer is written by hand."""

from typing import Any

from ncclprobe.logs import answer, timeline
from ncclprobe.logs.job_log import JobLog, LogEvent, LogStream, Pace
from ncclprobe.logs.rank_ends import Clocks, Ends, RankEnd
from ncclprobe.logs.texts import AT_EXIT
from ncclprobe.logs.torch_lines import Hang, TimedOutWork
from ncclprobe.model.causes import Cause
from ncclprobe.model.findings import Evidence, Severity


def end(rank: int, said_s: Any = "", last: LogEvent | None = None, exited: str = "") -> RankEnd:
    """Return a rank that complains at a time, or does not if that is empty."""
    said = None if said_s == "" else LogEvent(rank, 5, "failed", time_s=said_s)
    return RankEnd(rank, last=last, said=said, exit_text=exited)


def test_silent_ranks_are_those_that_did_not_end_after_a_complaint() -> None:
    left, untimed = LogEvent(7, 1, AT_EXIT, time_s=6.0), (LogEvent(0, line, AT_EXIT) for line in (6, 6, 5))
    rows: list[tuple[list[RankEnd], list[int]]] = [
        ([end(0, 5.0), end(1), end(2)], [1, 2]),
        ([end(0), end(1)], []),  # nobody complains
        ([end(0, 5.0), end(1, exited="exitcode: -9"), end(2), end(3, exited="exitcode: -15 (pid: 7)")], [1]),
        ([end(0, 5.0), end(1, exited="task 1: Terminated"), end(2)], [1, 2]),
        ([end(0, 5.0), end(1, last=left), end(2, last=LogEvent(7, 1, "step 7", time_s=6.0))], [2]),
        ([end(0, 6.0), end(1, last=left)], [1]),  # at the same time: it is no consequence
        ([end(0, None), end(1, last=left)], [1]),
        ([end(3, None), end(1, last=next(untimed))], [1]),  # in another log, and without a time
        ([end(0, None), end(2, None), end(1, last=next(untimed))], []),
        ([end(0, None), end(1, last=next(untimed))], [1]),
    ]
    told = [Ends({each.rank: each for each in ranks}).silent for ranks, _ in rows]
    assert [[each.rank for each in silent] for silent in told] == [silent for _, silent in rows]


def test_a_rank_complains_later_than_all_others_by_a_clock_that_all_share() -> None:
    for others, own_s, later in (
        ((5.0, 9.0), 12.0, False), ((5.0, 9.0), 12.1, True), ((5.0, None), 99.0, False), ((5.0, 9.0, None), 12.1, True),
    ):  # fmt: skip
        ends = Ends({8: end(8, own_s), **{rank: end(rank, at_s) for rank, at_s in enumerate(others)}})
        assert (ends.came_later(ends.ranks[8]), others, own_s) == (later, others, own_s)
    at, known, elsewhere = LogEvent(0, 1, "x", host="n1", time_s=50.0), {"n1": 8.0}, {"n2": 8.0}
    rows = ((known, True, 42.0), (known, False, 42.0), (elsewhere, True, 50.0), (elsewhere, False, None))
    assert [Ends({}, ahead_s, one).when(at) for ahead_s, one, _ in rows] == [when for *_, when in rows]


def test_what_a_reader_must_know_of_clocks() -> None:
    by = "communicators that several hosts initialised together"
    for clocks, said in (
        (Clocks({"a": 0.0, "b": 9.0}, 1, 1), ""),
        (Clocks({"a": 0.0, "b": -1.0, "c": 1.0}, 2, 3), f"the clocks of the hosts agree within a second, by 2 {by}"),
        (Clocks({"a": 0.0, "b": 5.0, "c": -40.2, "d": 7.0}, 3, 4), f"the clock of c is 40 s behind, by 3 {by}"),
        (Clocks({"a": 0.0, "b": 1.6}, 2, 2), f"the clock of b is 2 s ahead, by 2 {by}"),
    ):
        assert clocks.in_words() == said


def test_the_settings_of_the_flight_recorder_have_the_names_of_the_earliest_release_that_a_log_names() -> None:
    cause = Cause("x", "log.x", "unknown", "m", evidence=(Evidence("a.log", 1, "a collective hangs"),))
    for versions, newer in (("", 0), ("2.8.1", 0), ("2.9.0", 1), ("2.10.1 2.9.1+cu129", 1), ("3.0.0 2.8.0", 0),
                            ("nightly 2.9.0", 1), ("2 2.x.1", 0)):  # fmt: skip
        log = JobLog((), (), versions={"torch": tuple(versions.split())})
        (found,) = timeline.with_next_steps([cause], log, records=False)
        size = "TORCH_FR_BUFFER_SIZE" if newer else "TORCH_NCCL_TRACE_BUFFER_SIZE"
        assert [(step.split()[3], versions) for step in found.collect] == [(f"{size}=2000", versions)]
        assert timeline.with_next_steps([cause], log, records=True)[0].collect == ()


def test_each_trouble_has_an_answer() -> None:
    fails, slows = (Cause("x", "log.x", "named", "m", each) for each in (Severity.FAIL, Severity.WARN))
    rows: list[tuple[list[Cause], Any, Any, list[str], str]] = [
        ([fails], "failed", None, [], "failed/named/True hung/none/False slow/none/False"),
        ([slows], "failed", "slow", ["x"], "slow/named/True hung/line/False"),
        ([], "unknown", "hung", ["x", "y"], "hung/line/True slow/none/False"),
        ([slows], "failed", "failed", [], "slow/named/False failed/none/True hung/none/False"),
        ([slows, fails], "ended-well", None, [], ""),
        ([], "ended-well", "failed", [], "failed/none/True"),
        ([], "", None, [], ""),
        ([slows, fails], "ended-well", "slow", ["x"], "slow/named/True"),
    ]
    told = [answer.answers(*row[:4]) for row in rows]
    assert [" ".join(f"{e.when}/{e.kind}/{e.known}" for e in each) for each in told] == [row[4] for row in rows]


def test_steps_are_slow_from_the_first_on_after_which_all_take_three_times_as_long() -> None:
    slow = ("slow since step 14 (a.log:24): a step takes 3.5 s, 4 times as long as the 1 s before",)
    for took, said in (
        ((1, 1, 1, 3.5, 3.1, 3.9), slow), ((1, 9, 1, 3.5, 3.5, 3.5), slow), ((1, 1, 1, 3.0, 3.5, 3.5), ()),
        ((1, 1, 1, 3.5, 3.5), ()), ((1, 1, 3.5, 3.5, 3.5), ()),
    ):  # fmt: skip
        paces = tuple(Pace(10 + at, 100.0 + sum(took[:at]), 20 + at) for at in range(len(took) + 1))
        found = timeline.standing_still(JobLog((LogStream("a.log", paces=paces),), ()), ())
        assert (found, took) == (said, took)


def test_how_the_collectives_differ_that_ranks_gave_up() -> None:
    equal = ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER")
    for works, differ, odd, certain in (
        ("ALLREDUCE:7:4 ALLREDUCE:7:4 BROADCAST:7:4", "operations differ: ALLREDUCE, BROADCAST", (2,), True),
        ("BROADCAST:7:4 ALLREDUCE:7:4", "operations differ: ALLREDUCE, BROADCAST", (), True),
        *((f"{op}:7:8 {op}:7:4 {op}:7:4", f"sizes of {op} differ", (0,), True) for op in equal),
        ("_REDUCE_SCATTER_BASE:7:8 _REDUCE_SCATTER_BASE:7:4", "sizes of _REDUCE_SCATTER_BASE differ", (), True),
        *((f"{op}:7:8 {op}:7:4 {op}:7:4", "", (0,), False) for op in ("GATHER", "SCATTER", "ALLTOALL_BASE")),
        *((f"{op}:7:8 REDUCE:7:4 REDUCE:7:4", "", (0,), False) for op in ("SEND", "RECV", "COALESCED", "UNKNOWN")),
        ("ALLREDUCE:9:4 ALLREDUCE:8:4 ALLREDUCE:7:8", "some are at collective 7, others at 9", (2,), False),
    ):
        given = [each.split(":") for each in works.split()]
        hang = Hang("0", {at: TimedOutWork(at, int(seq), op, int(size)) for at, (op, seq, size) in enumerate(given)})
        assert (works, hang.differ, hang.odd, hang.certain) == (works, differ, odd, certain)
        assert not Hang("", hang.works).certain
