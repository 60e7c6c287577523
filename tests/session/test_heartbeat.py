"""Who is lost: decided from made-up heartbeats, without clocks, stores or processes."""

from collections.abc import Iterable

from ncclprobe.facts.run.samples import Arrivals, Attendance
from ncclprobe.model.values import replace
from ncclprobe.session.watchdog.heartbeat import DONE, OUT_OF_TIME_PERIODS, SILENT_PERIODS, FailureDetector, Heartbeat
from tests.each_row import each_row

PATIENCE = 30


class Ranks:
    """`count` ranks whose heartbeats a test turns into whatever it needs."""

    def __init__(self, count: int) -> None:
        self.detector = FailureDetector(count, PATIENCE)
        self.heartbeats = {rank: Heartbeat(rank, f"host{rank}", 100 + rank, 0, 1, "timing") for rank in range(count)}
        self.detector.receive(self.heartbeats)

    def go_on(self, periods: int, *, silent: Iterable[int] = (), standing: Iterable[int] = ()) -> None:
        """Let time pass; `silent` ranks write nothing, `standing` ones live on in the same phase."""
        for _ in range(periods):
            for rank, heartbeat in self.heartbeats.items():
                if rank not in silent:
                    step = heartbeat.step if rank in standing else heartbeat.step + 1
                    self.heartbeats[rank] = Heartbeat(
                        rank, heartbeat.host, heartbeat.pid, heartbeat.count + 1, step, "timing", heartbeat.left
                    )
            self.detector.receive(self.heartbeats)

    def leaves(self, rank: int, why: str, blames: tuple[int, ...] = ()) -> None:
        heartbeat = self.heartbeats[rank]
        self.heartbeats[rank] = Heartbeat(
            rank, heartbeat.host, heartbeat.pid, heartbeat.count + 1, heartbeat.step, heartbeat.phase, why, blames
        )


def lost(attendance: Attendance | None) -> list[int]:
    return [rank.rank for rank in attendance.lost] if attendance else []


def test_ranks_that_go_on_are_not_lost() -> None:
    ranks = Ranks(3)
    ranks.go_on(100)
    assert ranks.detector.attendance() is None
    assert ranks.detector.arrivals(out_of_time=True) is None


def test_a_rank_whose_heart_stops_is_named_with_host_and_phase() -> None:
    ranks = Ranks(3)
    ranks.go_on(SILENT_PERIODS - 1, silent=[2])
    assert ranks.detector.attendance() is None
    ranks.go_on(1, silent=[2])
    attendance = ranks.detector.attendance()
    assert attendance is not None
    (found,) = attendance.lost
    assert (found.rank, found.host, found.phase) == (2, "host2", "timing")


def test_a_silent_rank_whose_process_runs_is_lost_only_after_a_whole_phase() -> None:
    ranks = Ranks(3)
    ranks.detector = FailureDetector(3, PATIENCE, runs=lambda heartbeat: heartbeat.host == "host2")
    ranks.go_on(SILENT_PERIODS + 1, silent=[2])
    assert ranks.detector.attendance() is None
    ranks.go_on(PATIENCE, silent=[2])
    assert lost(ranks.detector.attendance()) == [2]


def test_one_missed_period_is_forgiven() -> None:
    ranks = Ranks(2)
    for _ in range(10):
        ranks.go_on(SILENT_PERIODS - 1, silent=[1])
        ranks.go_on(1)
    assert ranks.detector.attendance() is None


def test_silence_explains_the_failures_of_the_others() -> None:
    """Rank 2 was killed; the peers only report a connection reset."""
    ranks = Ranks(3)
    ranks.leaves(1, "it failed (Connection reset by peer)")
    ranks.go_on(SILENT_PERIODS, silent=[2])
    assert lost(ranks.detector.attendance()) == [2]


def test_a_failure_without_silence_is_named_after_a_while() -> None:
    ranks = Ranks(2)
    ranks.leaves(1, "it failed (CUDA out of memory)")
    ranks.go_on(SILENT_PERIODS)
    assert ranks.detector.attendance() is None
    ranks.go_on(2)
    attendance = ranks.detector.attendance()
    assert attendance is not None
    assert attendance.lost[0].why == "it failed (CUDA out of memory)"


def test_a_rank_that_is_done_is_not_lost() -> None:
    ranks = Ranks(2)
    ranks.leaves(1, DONE)
    ranks.go_on(3 * SILENT_PERIODS, silent=[1])
    assert ranks.detector.attendance() is None


def test_a_signal_to_all_is_nobodys_loss() -> None:
    ranks = Ranks(2)
    ranks.leaves(1, "signal SIGTERM ended it")
    ranks.go_on(3 * SILENT_PERIODS)
    assert ranks.detector.attendance(signalled=True) is None
    assert lost(ranks.detector.attendance(signalled=False)) == [1]
    assert ranks.detector.gone((1,))


def after_a_signal(ranks: Ranks) -> FailureDetector:
    """Rank 0 was signalled."""
    ranks.leaves(0, "signal SIGTERM ended it")
    ranks.detector.receive(ranks.heartbeats)
    ranks.detector.note_signal()
    return ranks.detector


def test_a_signal_to_rank_zero_alone_is_its_loss_once_the_others_have_gone_on() -> None:
    ranks = Ranks(3)
    detector = after_a_signal(ranks)
    ranks.go_on(SILENT_PERIODS - 1)
    assert (detector.settled(), detector.signalled_alone()) == (False, None)
    ranks.go_on(1)
    assert detector.settled()
    assert lost(detector.signalled_alone()) == [0]


def test_of_signals_to_some_ranks_all_of_them_are_named_and_a_signal_to_all_names_none() -> None:
    ranks = Ranks(3)
    detector = after_a_signal(ranks)
    ranks.leaves(2, "signal SIGTERM ended it")
    ranks.go_on(SILENT_PERIODS)
    assert lost(detector.signalled_alone()) == [0, 2]
    ranks = Ranks(3)
    detector = after_a_signal(ranks)
    ranks.leaves(1, "signal SIGTERM ended it")
    ranks.leaves(2, "signal SIGTERM ended it")
    ranks.go_on(1)
    assert detector.settled()
    assert detector.signalled_alone() is None


def test_a_rank_that_failed_comes_before_those_that_the_launcher_then_ended() -> None:
    """Rank 2 tells NCCL's error and dies; torchrun sends SIGTERM to the others."""
    ranks = Ranks(3)
    ranks.leaves(2, "it failed (ncclUnhandledCudaError)")
    detector = after_a_signal(ranks)
    ranks.leaves(1, "signal SIGTERM ended it")
    ranks.go_on(1)
    assert detector.settled()
    assert detector.signalled_alone() is None
    found = detector.failed()
    assert found is not None
    assert [(each.rank, each.why) for each in found.lost] == [(2, "it failed (ncclUnhandledCudaError)")]


def test_whom_a_failed_rank_waited_for_is_named_and_one_without_which_the_run_goes_on_is_not() -> None:
    ranks = Ranks(3)
    ranks.leaves(2, "it failed (barrier)", blames=(1,))
    ranks.detector.receive(ranks.heartbeats)
    assert lost(ranks.detector.failed()) == [1]
    ranks.detector.exclude([2])
    assert ranks.detector.failed() is None


def test_a_rank_that_died_before_a_signal_to_all_is_no_sign_that_it_was_not_to_all() -> None:
    """The launcher sends SIGTERM because rank 2 was killed."""
    ranks = Ranks(3)
    detector = after_a_signal(ranks)
    ranks.leaves(1, "signal SIGTERM ended it")
    ranks.go_on(SILENT_PERIODS, silent=[2])
    assert detector.signalled_alone() is None
    assert lost(detector.attendance(signalled=True)) == [2]


def test_the_rank_behind_the_others_is_the_one_that_stood_still() -> None:
    ranks = Ranks(3)
    ranks.go_on(1, standing=[1])
    ranks.go_on(PATIENCE, standing=[0, 1, 2])
    assert lost(ranks.detector.attendance()) == [1]


def test_where_nobody_is_behind_nobody_is_blamed() -> None:
    ranks = Ranks(3)
    ranks.go_on(PATIENCE, standing=[0, 1, 2])
    attendance = ranks.detector.attendance()
    assert attendance is not None
    assert (attendance.lost, attendance.stalled) == ((), "timing")


@each_row(("age", "stood_still"), [(OUT_OF_TIME_PERIODS - 1, False), (OUT_OF_TIME_PERIODS, True)])
def test_when_time_runs_out_only_an_old_phase_stood_still(age: int, stood_still: bool) -> None:
    ranks = Ranks(2)
    ranks.go_on(age, standing=[0, 1])
    assert (ranks.detector.attendance(out_of_time=True) is not None) is stood_still


def test_ranks_that_never_came_are_named_once_they_were_waited_for() -> None:
    detector = FailureDetector(4, patience=3)
    heartbeats = {rank: Heartbeat(rank, "h", 1, 0, 1, "wait") for rank in (0, 2)}
    for _ in range(3):
        detector.receive(heartbeats)
        assert detector.arrivals(out_of_time=False) is None
    detector.receive(heartbeats)
    arrivals = detector.arrivals(out_of_time=False)
    assert arrivals is not None
    assert arrivals.missing == (1, 3)


def test_who_took_long_to_prepare_waits_as_much_longer_for_the_others() -> None:
    detector = FailureDetector(2, patience=3)
    for _ in range(3 + 10):
        detector.receive({0: Heartbeat(0, "h", 1, 0, 1, "wait")})
        assert detector.arrivals(out_of_time=False, late=10) is None
    assert detector.arrivals(out_of_time=False) is not None


@each_row(
    ("came", "late"),
    [((1, 1, 2, 17), ((3, 16.0),)), ((1, 1, 1, 15), ()), ((1, 20), ((1, 19.0),)), ((1, 30, 30, 30), ())],
)
def test_a_rank_that_came_long_after_half_of_them_is_told_and_one_that_was_early_makes_none_late(
    came: tuple[int, ...], late: tuple[tuple[int, float], ...]
) -> None:
    detector = FailureDetector(len(came), patience=60)
    for period in range(1, max(came) + 1):
        here = [rank for rank, at in enumerate(came) if at <= period]
        detector.receive({rank: Heartbeat(rank, "h", 1, period, 1, "wait") for rank in here})
    assert detector.late() == late


def waited(periods: int, *, running: Iterable[int] = (), out_of_time: bool = False) -> Arrivals | None:
    """What is said of ranks 1 and 2, which have not come after so many periods, of 3 that they are given."""
    detector = FailureDetector(3, patience=3)
    for _ in range(periods):
        detector.receive({0: Heartbeat(0, "h", 1, 0, 1, "wait")})
    return detector.arrivals(out_of_time, running=lambda: tuple(running))


def test_who_had_not_the_whole_of_the_wait_is_not_lost() -> None:
    """Rank 0 imported torch for so long that the run was over when it had waited for two seconds."""
    found = waited(2, out_of_time=True)
    assert found
    assert (found.missing, found.lost, found.waited_s, found.allowed_s) == ((1, 2), (), 2.0, 3.0)


def test_who_runs_beside_rank_zero_is_waited_for_until_the_time_is_over_and_is_not_lost() -> None:
    assert waited(100, running=[1, 2]) is None
    found = waited(100, running=[1, 2], out_of_time=True)
    assert found
    assert (found.missing, found.running, found.lost) == ((1, 2), (1, 2), ())


def test_who_is_gone_is_lost_though_another_still_runs() -> None:
    found = waited(4, running=[1])
    assert found
    assert found.lost == (2,)


def test_a_rank_zero_that_was_stopped_itself_accuses_nobody() -> None:
    """It was away for an hour; of that, its register saw one period."""
    ranks = Ranks(2)
    ranks.go_on(1, silent=[1])
    assert ranks.detector.attendance() is None


@each_row("last_beats", [0, 1])
def test_ranks_that_left_while_rank_zero_stood_still_are_not_to_blame(last_beats: int) -> None:
    """What one of them sent last may have lain in the wire meanwhile."""
    ranks = Ranks(3)
    ranks.detector.paused(10.0)
    ranks.go_on(last_beats)
    ranks.go_on(SILENT_PERIODS, silent=[1, 2])
    attendance = ranks.detector.attendance()
    assert attendance is not None
    (found,) = attendance.lost
    assert found.rank == 0
    assert found.why.startswith("this rank itself was stopped for 10 s")


def test_a_rank_that_left_because_rank_zero_was_silent_is_not_to_blame() -> None:
    ranks = Ranks(2)
    ranks.leaves(1, "rank 0 had fallen silent for 5 s")
    ranks.detector.paused(10.0)
    ranks.go_on(SILENT_PERIODS + 2)
    assert lost(ranks.detector.attendance()) == [0]


def test_after_an_absence_that_all_came_through_a_lost_rank_is_lost_again() -> None:
    ranks = Ranks(3)
    ranks.detector.paused(10.0)
    ranks.go_on(3)
    ranks.go_on(SILENT_PERIODS, silent=[2])
    assert lost(ranks.detector.attendance()) == [2]


def test_who_does_not_answer_a_signal_that_all_got_is_lost() -> None:
    ranks = Ranks(3)
    before = {rank: ranks.heartbeats[rank] for rank in (1, 2)}
    ranks.leaves(1, "signal SIGTERM ended it")
    ranks.detector.receive(ranks.heartbeats)
    assert lost(ranks.detector.unresponsive(before, ())) == [2]
    assert ranks.detector.unresponsive({1: before[1]}, ()) is None
    assert ranks.detector.unresponsive({1: before[1]}, {1}) is None
    ranks.go_on(1)
    assert ranks.detector.unresponsive(before, ()) is None
    assert lost(ranks.detector.unresponsive(before, {2})) == [2]  # its last heartbeat came late


def test_whom_a_rank_waited_for_in_vain_is_lost_and_not_the_rank_that_says_so() -> None:
    detector = FailureDetector(3, patience=60)
    heartbeats = {rank: Heartbeat(rank, f"h{rank}", 1, 0, 3, "meet") for rank in range(3)}
    heartbeats[0] = replace(heartbeats[0], left="it failed (Ranks 2 failed to pass monitoredBarrier)", blames=(2,))
    for count in range(10):
        detector.receive({rank: replace(heartbeat, count=count) for rank, heartbeat in heartbeats.items()})
    found = detector.attendance()
    assert found is not None
    assert [(lost.rank, lost.why) for lost in found.lost] == [(2, "it did not reach a barrier of all ranks")]


def test_ranks_that_leave_and_blame_each_other_are_all_lost() -> None:
    detector = FailureDetector(2, patience=60)
    for count in range(10):
        left = {rank: Heartbeat(rank, "h", 1, count, 3, "meet", "it failed", (1 - rank,)) for rank in range(2)}
        detector.receive(left)
    found = detector.attendance()
    assert found is not None
    assert [lost.rank for lost in found.lost] == [0, 1]
