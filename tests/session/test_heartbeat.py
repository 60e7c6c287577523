"""Who is lost: decided from made-up heartbeats, without clocks, stores or processes."""

from collections.abc import Callable, Iterable

from ncclprobe.facts.run.samples import Arrivals, Attendance
from ncclprobe.model.values import replace
from ncclprobe.session.watchdog.heartbeat import DONE, OUT_OF_TIME_PERIODS, SILENT_PERIODS, FailureDetector, Heartbeat
from tests.each_row import each_row

PATIENCE, S = 30, SILENT_PERIODS
SIGTERM = "signal SIGTERM ended it"


class Ranks:
    """Three ranks whose heartbeats a test turns into whatever it needs. On a host of `running` processes are seen."""

    def __init__(self, running: Iterable[str] = ()) -> None:
        self.detector = FailureDetector(3, PATIENCE, lambda heartbeat: heartbeat.host in running)
        self.heartbeats = {rank: Heartbeat(rank, f"h{rank}", 100 + rank, 0, 1, "timing") for rank in range(3)}
        self.detector.receive(self.heartbeats)

    def leaves(self, rank: int, why: str, *blames: int) -> None:
        old = self.heartbeats[rank]
        self.heartbeats[rank] = replace(old, count=old.count + 1, left=why, blames=blames)


Step = Callable[[Ranks], object]


def on(periods: int, silent: Iterable[int] = (), standing: Iterable[int] = ()) -> Step:
    """Time passes; `silent` ranks write nothing, `standing` ones live on in the same phase."""

    def step(ranks: Ranks) -> None:
        for _ in range(periods):
            for rank, old in ranks.heartbeats.items():
                if rank not in silent:
                    ranks.heartbeats[rank] = replace(old, count=old.count + 1, step=old.step + (rank not in standing))
            ranks.detector.receive(ranks.heartbeats)

    return step


def leaves(rank: int, why: str, *blames: int) -> Step:
    return lambda ranks: ranks.leaves(rank, why, *blames)


def signalled(*others: int) -> Step:
    """Rank 0 was signalled, and then `others`."""

    def step(ranks: Ranks) -> None:
        ranks.leaves(0, SIGTERM)
        ranks.detector.receive(ranks.heartbeats)
        ranks.detector.note_signal()
        for rank in others:
            ranks.leaves(rank, SIGTERM)

    return step


def paused(ranks: Ranks) -> None:
    ranks.detector.paused(10.0)


def exclude(*gone: int) -> Step:
    return lambda ranks: ranks.detector.exclude(gone)


def told(found: Attendance | None) -> str:
    """Whoever is lost, with the reason; or the phase in which all stand still."""
    if found is None:
        return ""
    assert all((each.host, each.phase) == (f"h{each.rank}", "timing") for each in found.lost)
    return f"stalled in {found.stalled}" if found.stalled else "; ".join(f"{e.rank} {e.why}" for e in found.lost)


SILENT = "its heartbeat stopped 5 s ago"
AWAY = "this rank itself was stopped for 10 s, and the others went on without it"
BEHIND = "it was stopped while the others went on"
BARRIER = "it did not reach a barrier of all ranks"


@each_row(
    ("steps", "lost"),
    [
        ([on(100)], ""),
        ([on(S - 1, silent=[2])], ""),
        ([on(S, silent=[2])], f"2 {SILENT}"),
        ([on(S, silent=[1, 2])], f"1 {SILENT}; 2 {SILENT}"),
        ([on(S - 1, silent=[1]), on(1)] * 10, ""),  # one missed period is forgiven
        # Silence explains the failures of the others, which only report a connection reset.
        ([leaves(1, "it failed (reset)"), on(S, silent=[2])], f"2 {SILENT}"),
        ([leaves(1, "it failed (no memory)"), on(S + 1)], ""),
        ([leaves(1, "it failed (no memory)"), on(S + 2)], "1 it failed (no memory)"),
        ([leaves(1, DONE), on(3 * S, silent=[1])], ""),
        ([leaves(1, SIGTERM), on(3 * S)], f"1 {SIGTERM}"),
        # Whom a rank waited for in vain is lost, and not the rank that says so; ranks that blame each other are.
        ([leaves(0, "it failed (barrier)", 2), on(S + 2)], f"2 {BARRIER}"),
        ([leaves(0, "it failed", 1), leaves(1, "it failed", 0), on(S + 2)], "0 it failed; 1 it failed"),
        ([leaves(0, "it failed", 9), on(S + 2)], "0 it failed"),
        # The rank behind the others is the one that stood still; where nobody is behind, nobody is blamed.
        ([on(1, standing=[1]), on(PATIENCE, standing=[0, 1, 2])], f"1 {BEHIND}"),
        ([on(1, standing=[1]), on(PATIENCE - 1, standing=[0, 1, 2])], ""),
        ([on(2, standing=[1]), on(1, standing=[2]), on(PATIENCE, standing=[0, 1, 2])], f"1 {BEHIND}"),
        ([on(PATIENCE, standing=[0, 1, 2])], "stalled in timing"),
        ([on(PATIENCE, standing=[1, 2])], ""),
        # A rank 0 that was stopped itself accuses nobody: what one sent last may have lain in the wire meanwhile.
        ([paused, on(S, silent=[1, 2])], f"0 {AWAY}"),
        ([paused, on(1), on(S, silent=[1, 2])], f"0 {AWAY}"),
        ([paused, on(2), on(S, silent=[1, 2])], f"0 {AWAY}"),
        ([paused, on(3), on(S, silent=[2])], f"2 {SILENT}"),
        ([leaves(1, "rank 0 had fallen silent for 5 s"), paused, on(S + 2)], f"0 {AWAY}"),
        # A run that goes on without a rank.
        ([on(S, silent=[2]), exclude(2)], ""),
        ([exclude(2), on(PATIENCE + 2, silent=[2], standing=[0, 1])], "stalled in timing"),
    ],
)
def test_who_is_lost_is_told_with_the_reason(steps: list[Step], lost: str) -> None:
    ranks = Ranks()
    for step in steps:
        step(ranks)
    assert told(ranks.detector.attendance()) == lost


@each_row(
    ("steps", "how", "lost"),
    [
        ([leaves(1, SIGTERM), on(3 * S)], {"signalled": True}, ""),
        ([signalled(1), on(S, silent=[2])], {"signalled": True}, f"2 {SILENT}"),
        ([leaves(1, "it failed (x)"), on(3 * S)], {"signalled": True}, "1 it failed (x)"),
        ([on(2, silent=[2])], {"out_of_time": True}, ""),
        ([on(3, silent=[2])], {"out_of_time": True}, "2 its heartbeat stopped 3 s ago"),
        ([leaves(1, "it failed (x)"), on(1)], {"out_of_time": True}, "1 it failed (x)"),
        ([on(OUT_OF_TIME_PERIODS - 1, standing=[0, 1, 2])], {"out_of_time": True}, ""),
        ([on(OUT_OF_TIME_PERIODS, standing=[0, 1, 2])], {"out_of_time": True}, "stalled in timing"),
        ([on(S + 3, silent=[2])], {"tolerant": True}, ""),
        ([leaves(2, "it failed (reset)"), on(S + 3)], {"tolerant": True}, ""),
        ([on(S + 1, silent=[0])], {"tolerant": True}, f"0 {SILENT}"),  # rank 0 itself is never spared
        ([paused, leaves(2, "rank 0 had fallen silent"), on(S + 3)], {"tolerant": True}, f"0 {AWAY}"),
    ],
)
def test_a_signal_the_end_of_the_time_and_a_run_that_can_do_without_a_rank_excuse_some(
    steps: list[Step], how: dict[str, bool], lost: str
) -> None:
    ranks = Ranks()
    for step in steps:
        step(ranks)
    assert told(ranks.detector.attendance(**how)) == lost


def test_a_silent_rank_whose_process_runs_is_lost_only_after_a_whole_phase() -> None:
    ranks = Ranks(running=["h2"])
    on(PATIENCE - 1, silent=[2])(ranks)
    assert ranks.detector.attendance() is None
    on(1, silent=[2])(ranks)
    assert told(ranks.detector.attendance()) == f"2 {SILENT}"


FAILED = "it failed (ncclUnhandledCudaError)"


@each_row(
    ("steps", "settled", "alone", "failed"),
    [
        # A signal to rank 0 alone is its loss once the others have gone on; one to all names nobody.
        ([signalled(), on(S - 1)], False, "", ""),
        ([signalled(), on(S)], True, f"0 {SIGTERM}", ""),
        ([signalled(2), on(S)], True, f"0 {SIGTERM}; 2 {SIGTERM}", ""),
        ([signalled(2), exclude(2), on(S)], True, f"0 {SIGTERM}", ""),
        ([signalled(1, 2), on(1)], True, "", ""),
        ([signalled(1), exclude(2), on(1)], True, "", ""),
        # One that died before a signal to all is no sign that it was not to all: the launcher sends it for that.
        ([signalled(1), on(S, silent=[2])], False, "", ""),
        # A rank that failed comes before those that the launcher then ended.
        ([leaves(2, FAILED), signalled(1), on(1)], True, "", f"2 {FAILED}"),
        ([leaves(2, "it failed (barrier)", 1), on(1)], False, "", f"1 {BARRIER}"),
        ([leaves(2, "it failed (barrier)", 1), on(1), exclude(2)], False, "", ""),
    ],
)
def test_a_signal_to_some_ranks_is_told_from_one_to_all(
    steps: list[Step], settled: bool, alone: str, failed: str
) -> None:
    ranks = Ranks()
    for step in steps:
        step(ranks)
    found = ranks.detector
    assert (found.settled(), told(found.signalled_alone()), told(found.failed())) == (settled, alone, failed)


def test_who_does_not_answer_a_signal_that_all_got_is_lost() -> None:
    ranks = Ranks()
    before = {rank: ranks.heartbeats[rank] for rank in (1, 2)}
    ranks.leaves(1, SIGTERM)
    ranks.detector.receive(ranks.heartbeats)
    fallen = "2 it had fallen silent when the run was ended"
    assert told(ranks.detector.unresponsive(before, ())) == fallen
    for dead in ((), {1}):
        assert ranks.detector.unresponsive({1: before[1]}, dead) is None
    on(1)(ranks)
    assert ranks.detector.unresponsive(before, ()) is None
    assert told(ranks.detector.unresponsive(before, {2})) == fallen, "its last heartbeat came late"
    assert [ranks.detector.gone(some) for some in ((1,), (1, 2), ())] == [True, False, True]


@each_row(
    ("left", "silent", "why"),
    [
        ("", [2], f"its heartbeat stopped {S + 3} s ago"),
        ("it failed (reset)", [2], "it failed (reset)"),
        ("", [], "it did not answer, though its heartbeat goes on"),
    ],
)
def test_a_rank_that_is_set_aside_is_told_once_with_what_was_last_known_of_it(
    left: str, silent: list[int], why: str
) -> None:
    ranks = Ranks()
    if left:
        ranks.leaves(2, left)
        ranks.detector.receive(ranks.heartbeats)
    on(S + 3, silent=silent)(ranks)
    gone = frozenset({2} if left or silent else ())
    assert ranks.detector.unreachable() == gone
    assert told(Attendance(3, ranks.detector.exclude([2]))) == f"2 {why}"
    assert ranks.detector.attendance() is None
    on(S, silent=[0, *silent])(ranks)
    assert ranks.detector.unreachable() == gone, "rank 0 itself never is"


# Who has not come yet.


def waited(periods: int, running: tuple[int, ...] = (), out_of_time: bool = False, late: int = 0) -> Arrivals | None:
    """What is said of ranks 1 and 2, which have not come after so many periods, of 3 that they are given."""
    detector = FailureDetector(3, patience=3)
    for _ in range(periods):
        detector.receive({0: Heartbeat(0, "h", 1, 0, 1, "wait")})
    return detector.arrivals(out_of_time, late, running=lambda: running)


@each_row(
    ("found", "missing", "lost", "waited_s", "allowed_s"),
    [
        (waited(4), (1, 2), (1, 2), 4.0, 3.0),
        (waited(14, late=10), (1, 2), (1, 2), 14.0, 13.0),  # as much longer as rank 0 took to prepare
        (waited(2, out_of_time=True), (1, 2), (), 2.0, 3.0),  # rank 0 imported torch for so long
        (waited(100, running=(1, 2), out_of_time=True), (1, 2), (), 100.0, 3.0),
        (waited(4, running=(0, 1)), (1, 2), (2,), 4.0, 3.0),
    ],
)
def test_ranks_that_never_came_are_named_once_they_were_waited_for_and_lost_unless_they_run(
    found: Arrivals, missing: tuple[int, ...], lost: tuple[int, ...], waited_s: float, allowed_s: float
) -> None:
    assert (found.missing, found.lost, found.waited_s, found.allowed_s) == (missing, lost, waited_s, allowed_s)


def test_nobody_is_missing_before_the_wait_is_over_nor_while_all_run_that_are_missing() -> None:
    assert waited(3) is waited(13, late=10) is waited(100, running=(1, 2)) is None
    assert Ranks().detector.arrivals(out_of_time=True) is None


@each_row(
    ("came", "late"),
    [((1, 1, 2, 17), ((3, 16.0),)), ((1, 1, 1, 16), ((3, 15.0),)), ((1, 1, 1, 15), ()), ((1, 20), ((1, 19.0),)),
     ((1, 30, 30, 30), ())],
)  # fmt: skip
def test_a_rank_that_came_long_after_half_of_them_is_told_and_one_that_was_early_makes_none_late(
    came: tuple[int, ...], late: tuple[tuple[int, float], ...]
) -> None:
    detector = FailureDetector(len(came), patience=60)
    for period in range(1, max(came) + 1):
        here = [rank for rank, at in enumerate(came) if at <= period]
        detector.receive({rank: Heartbeat(rank, "h", 1, period, 1, "wait") for rank in here})
    assert detector.late() == late
