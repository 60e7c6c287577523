"""What a watch of a running job tells, look by look."""

from argparse import Namespace
from types import SimpleNamespace
from typing import cast

import pytest

from ncclprobe.commands import attach
from ncclprobe.engine.diagnose import Question
from ncclprobe.model.causes import JobVerdict, RankClass
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report.causes import Watch

from .samples import HEALTHY


def look(word: str, *classes: RankClass, calls: int = 0) -> Report:
    return replace(
        HEALTHY, standing=JobVerdict(word, "3 of 4 ranks", "2026-11-23T14:03:11+00:00", 1.0, "", calls), classes=classes
    )


SLOW = RankClass("slow, not stuck", (3,), ("n4",), doing="is at work")
STUCK = RankClass("stuck outside", (3,), ("n4",), doing="sleeps")
WORKING = RankClass("working", (0, 1, 2, 3), ("n4",), doing="is at work")


def test_a_job_that_is_at_work_and_slow_by_turns_has_not_changed() -> None:
    watch = Watch()
    lines = [
        watch.add(each) for each in (look("WORKING", WORKING, calls=5), look("SLOW", SLOW, calls=9), look("SLOW", SLOW))
    ]
    assert not watch.changed
    assert lines[0].endswith("WORKING  3 of 4 ranks")
    assert lines[1].endswith("SLOW  3 of 4 ranks; 4 calls since the previous sample")
    assert watch.notes() == ["watched: 3 looks; others were waiting for rank 3, n4 in 2 of them"]


def test_another_answer_or_another_rank_ends_the_watch() -> None:
    for first, second in (
        (look("WORKING", WORKING), look("STUCK", STUCK)),
        (look("STUCK", STUCK), look("WORKING", WORKING)),
        (look("STUCK", STUCK), look("STUCK", replace(STUCK, ranks=(2,)))),
        (look("CANNOT TELL"), look("WORKING", WORKING)),
    ):
        watch = Watch()
        watch.add(first)
        assert not watch.changed
        watch.add(replace(first, standing=replace(first.standing, message="4 of 4 ranks")))  # type: ignore[type-var]
        assert not watch.changed
        watch.add(second)
        assert watch.changed


def test_a_watch_leaves_the_ranks_alone_for_a_second_however_long_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()
    reports = iter([look("WORKING", WORKING), look("SLOW", SLOW), look("STUCK", STUCK)])

    def looked(*_: object) -> Report:
        now[0] += 1.5
        return next(reports)

    monkeypatch.setattr(attach, "_examine", looked)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: slept.append(round(seconds, 3)))
    monkeypatch.setattr(attach, "time", clock)
    attach._watch(Namespace(watch=1.0, quiet=True), cast(Question, None), 200.0)
    assert slept == [1.0, 1.0]
