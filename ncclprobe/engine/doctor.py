"""The doctor's report on this machine alone, and on machines that captures were taken of."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ncclprobe.checks.sync.roster import missing
from ncclprobe.engine.diagnose import Question, diagnose, launch_of
from ncclprobe.engine.observe import observed, replayed
from ncclprobe.errors import OutOfTime
from ncclprobe.host.patience import until
from ncclprobe.model.registry import Collector
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Every


def look_s(timeout_s: float) -> float:
    """Return how much of --timeout may go into looking, so that what was seen by then is judged within it."""
    return timeout_s - min(max(timeout_s / 10, 1.0), timeout_s / 2)


def within(question: Question, timeout_s: float, judge: Callable[[], Report]) -> Report:
    """Return what `judge` makes within --timeout. Raises OutOfTime, and leaves it behind, where time is over."""
    try:
        return until(question.clock + timeout_s, judge)
    except TimeoutError:
        raise OutOfTime("no time was left to judge within --timeout") from None


def of_this_machine(question: Question, collectors: Sequence[Collector], timeout_s: float) -> Report:
    """Look at this machine, and judge it. Raises OutOfTime."""
    snapshot, _ = observed(collectors, question.clock + look_s(timeout_s))
    return within(question, timeout_s, lambda: diagnose(question, [snapshot]))


def of_captures(question: Question, collectors: Sequence[Collector], paths: Sequence[Path]) -> Report:
    """Judge the machines of captures. Raises UsageError."""
    snapshots = replayed(paths, collectors)
    absent = () if question.job.local else missing(Every({s.node: launch_of(s) for s in snapshots}))
    return diagnose(question, snapshots, missing=absent)
