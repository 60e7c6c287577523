"""A run that can do without a rank: nobody waits for it again, nothing that becomes of it is news, the others go on.

rank 0 waits, and a rank …                then
────────────────────────────────────────  ────────────────────────────────────────────────────────
answers                                   its answer counts
is known to be gone, without an answer    it is set aside at once
is known to be gone, and had answered     its answer counts
does not answer in time                   it is set aside
was set aside, and answers later          nobody hears it, nobody waits for it
"""

import pytest

from ncclprobe.model.values import replace
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange
from ncclprobe.session.watchdog.heartbeat import SILENT_PERIODS, FailureDetector, Heartbeat

from .test_identity import DictStore

RANKS, PATIENCE = 3, 30


def exchanges(store: DictStore) -> list[Exchange]:
    seats = [RankIdentity("environment", rank, RANKS, rank, RANKS, 1, "127.0.0.1", 1) for rank in range(RANKS)]
    return [Exchange(store, identity, 1.0) for identity in seats]


def test_who_is_gone_is_set_aside_at_once_and_who_had_answered_is_heard() -> None:
    zero, one, _ = exchanges(DictStore())
    assert one.gather("one", 60.0) is None
    assert zero.gather("zero", 60.0, lambda: {1, 2}) == {0: "zero", 1: "one"}
    assert zero.excluded == {2}


def test_who_does_not_answer_in_time_is_set_aside() -> None:
    zero, _, two = exchanges(DictStore())
    two.gather("two", 60.0)
    assert zero.gather("zero", 0.0) == {0: "zero", 2: "two"}
    assert zero.excluded == {1}


def test_nobody_waits_for_who_is_set_aside_nor_hears_it_later() -> None:
    zero, one, two = exchanges(DictStore())
    two.gather("two", 60.0)
    zero.gather("zero", 0.0)
    one.gather("late", 60.0)
    one.gather("here again", 60.0)
    two.gather("two", 60.0)
    assert zero.gather("zero", 60.0) == {0: "zero", 2: "two"}
    two.collect(2)
    assert zero.collect(0) == [0, None, 2]
    assert zero.share("code") == "code"
    assert two.share(None) == "code"


def periods(
    detector: FailureDetector, count: int, *, silent: int | None = None, same: bool = False, left: str = ""
) -> None:
    """Let time pass; rank `silent` writes nothing any more, or that it leaves."""
    for _ in range(count):
        heartbeats = dict(detector.last) or {
            rank: Heartbeat(rank, f"h{rank}", 100 + rank, 0, 0, "timing") for rank in range(RANKS)
        }
        for rank, heartbeat in heartbeats.items():
            if rank != silent:
                heartbeats[rank] = replace(heartbeat, count=heartbeat.count + 1, step=heartbeat.step + (not same))
            elif left:
                heartbeats[rank] = replace(heartbeat, count=heartbeat.count + 1, left=left)
        detector.receive(heartbeats)


@pytest.fixture
def detector() -> FailureDetector:
    made = FailureDetector(RANKS, PATIENCE)
    periods(made, 1)
    return made


@pytest.mark.parametrize("left", ["", "it failed (reset)"])
def test_a_tolerant_run_is_told_of_a_lost_rank_and_goes_on(detector: FailureDetector, left: str) -> None:
    periods(detector, SILENT_PERIODS + 3, silent=2, left=left)
    assert detector.unreachable() == {2}
    assert detector.attendance(tolerant=True) is None
    assert detector.attendance() is not None
    (lost,) = detector.exclude([2])
    assert (lost.rank, lost.host, lost.phase) == (2, "h2", "timing")
    assert lost.why == (left or f"its heartbeat stopped {SILENT_PERIODS + 3} s ago")
    assert detector.attendance() is None


def test_a_rank_whose_heart_beats_and_that_never_answered_is_said_to_be_so(detector: FailureDetector) -> None:
    (lost,) = detector.exclude([1])
    assert lost.why == "it did not answer, though its heartbeat goes on"


def test_rank_0_itself_is_never_spared(detector: FailureDetector) -> None:
    periods(detector, SILENT_PERIODS + 1, silent=0)
    found = detector.attendance(tolerant=True)
    assert found is not None
    assert [each.rank for each in found.lost] == [0]
    assert detector.unreachable() == frozenset()


def test_after_an_absence_of_rank_0_the_others_are_not_set_aside_for_it(detector: FailureDetector) -> None:
    detector.paused(60.0)
    periods(detector, SILENT_PERIODS + 3, silent=2, left="rank 0 had fallen silent for 5 s")
    found = detector.attendance(tolerant=True)
    assert found is not None
    assert [each.rank for each in found.lost] == [0]


def test_a_tournament_that_stands_still_as_a_whole_is_stalled_all_the_same(detector: FailureDetector) -> None:
    detector.exclude([2])
    periods(detector, PATIENCE + 2, silent=2, same=True)
    found = detector.attendance(tolerant=True)
    assert found is not None
    assert (found.stalled, found.lost) == ("timing", ())
