"""Numbers that are lower than they were, and faults that come back: by the reports that a store keeps of a node."""

from collections.abc import Iterator

from ncclprobe.fleet.drift import BURN_IN
from ncclprobe.fleet.node_health import Reason, fault_reasons, series_reasons
from ncclprobe.model.findings import Certainty, Finding, Severity, note, warn
from ncclprobe.model.fleet import Drift, Fault, FaultCourse, History, NodeCourse, Number, Series, Sum
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import when

_STORE = "the reports of this node that --fleet keeps"
DAY_S, NOW_S = 86400.0, 1_790_000_000.0
_DOWN = Fault("ib.state", "mlx5_3:1", Severity.FAIL, "link", "bad", "is DOWN; its siblings are ACTIVE")
GOOD = NodeCourse(40, NOW_S)


def series_of(own: Sum) -> tuple[Series, ...]:
    drift = Drift(tests=40, count=28, mean=3.9, recent=(44.5, 44.1), own=own)
    return (Series(Number("rail 3", "rails out", "GB/s", ""), drift, 0.0, NOW_S, ("NIC firmware 28.43 → 28.45",)),)


def faults_of(*came: float, there: bool = True) -> NodeCourse:
    course = FaultCourse(_DOWN, there, came[-1], tests=3, came=tuple(NOW_S - days * DAY_S for days in came))
    return NodeCourse(40, NOW_S, faults={"ib.state mlx5_3:1": course})


LOST = Sum("degraded", 9.0, 12, lost=-0.1, most=-0.1, since_s=NOW_S - 12 * DAY_S)


@applies
def measured(history: History) -> bool:
    """if the store has enough numbers for the node."""
    return any(
        each.drift.count >= BURN_IN or each.drift.own.height or each.drift.siblings_first is not None
        for each in history.series
    )


@applies
def known(history: History) -> bool:
    """if the store has earlier reports of the node."""
    return history.course.tests > 1


@check(
    bad=lambda: [(History(GOOD, series_of(LOST)),)],
    good=lambda: [(History(GOOD, series_of(Sum())),)],
    applies=measured,
)
def rate(history: History) -> Iterator[Finding]:
    """A rate of the node is lower than before, or lower than on its siblings.

    Right: The node is as fast as before, and as its siblings.
    Why: a node that loses a few percent still meets every expectation, but slows every collective. Only many reports
    together distinguish a small loss from noise, and the date when it began helps to find the cause.
    Fix: find out what changed on the node at that time (`ncclprobe fleet node NAME`). Test it again after the repair,
    or accept its current rate as normal with `ncclprobe fleet accept NAME`.
    """
    for each in series_reasons(history.course, history.series):
        yield _finding(each, blame="node", action="retest")


@check(
    bad=lambda: [(History(faults_of(20.0, 9.0, 1.0)),)],
    good=lambda: [(History(faults_of(20.0, 1.0)),)],
    applies=known,
)
def flapping(history: History) -> Iterator[Finding]:
    """The node has an intermittent fault.

    Right: The node has no intermittent fault.
    Why: each time the fault disappears, jobs return to the node, and the fault ends the next one.
    Fix: do not reset the part, but replace it: the cable and its module, the GPU, or the NIC.
    """
    blames = {f"{each.fault.check} {each.fault.subject}": each.fault.blame for each in history.course.faults.values()}
    for each in fault_reasons(history.course):
        if each.state == "flapping":
            yield _finding(each, blame=blames[each.subject], action="repair")
        elif (since := _value_before(history.course, each)) is not None:
            yield note(each.subject, f"was first reported at {when(since)} UTC", evidence=_STORE)


def _value_before(course: NodeCourse, reason: Reason) -> float | None:
    """Return since when a fault is there, if it was there before the newest report."""
    return reason.since_s if reason.since_s is not None and reason.since_s < course.last_s else None


def _finding(reason: Reason, **details: str) -> Finding:
    since = f" since {when(reason.since_s)} UTC" if reason.since_s is not None else ""
    lead = {"watch": f"may have been lower{since}: ", "flapping": f"{since}: ".lstrip(" :")}
    message = lead.get(reason.state, f"has been lower{since}: ") + reason.words.removeprefix(f"{reason.subject}: ")
    if reason.state == "watch":
        return note(reason.subject, message, evidence=_STORE, action="retest")
    how = Certainty("medium", "by many reports of this node")
    return warn(reason.subject, message, confidence=how, evidence=_STORE, **details)
