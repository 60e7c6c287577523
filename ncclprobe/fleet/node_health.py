"""The state of a node from its whole history: failing, degraded, flapping, watched, unknown or ok, and why.

A node fails if its newest report has a settled fault of the node or its links, by the rule of --nodes-out. A fault that
is
not settled, or whose culprit is not known, makes it watched. It flaps if the same fault appeared FLAPS times within
WINDOW_S and was looked for and not found in between, or if a rate was lost and recovered as often.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ncclprobe.fleet.drift import BURN_IN, SIBLINGS
from ncclprobe.model import bounds
from ncclprobe.model.findings import Severity
from ncclprobe.model.fleet import (
    STATES,
    Day,
    Fault,
    FaultCourse,
    NodeCourse,
    NodeEvent,
    NodeReport,
    NodeStanding,
    NodeState,
    Series,
    Sum,
)
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Fingerprint, changes
from ncclprobe.model.report import when
from ncclprobe.model.units import plural, three_digits
from ncclprobe.model.values import replace

DAY_S = 86400.0
FLAPS, WINDOW_S = 3, 30 * DAY_S
COUNTER = "counter"
"""In place of a check: an event that a node's own counters show between two reports, already over."""
_MOST_CAME = 64


def step(course: NodeCourse, told: NodeReport) -> NodeCourse:
    """Return `course` after one more report, which is not older than those before."""
    found = {f"{each.check} {each.subject}": each for each in told.faults if each.weight}
    faults = {
        key: each if key in found or each.fault.check not in told.looked else replace(each, there=False)
        for key, each in course.faults.items()
        if each.there or told.time_s - each.came[-1] < WINDOW_S
    }
    for key, fault in found.items():
        known = faults.get(key)
        if known and known.there:
            faults[key] = replace(known, fault=fault, tests=known.tests + 1)
        elif known or len(faults) < bounds.FLEET_FAULTS:
            came = (*(known.came if known else ()), told.time_s)[-_MOST_CAME:]
            faults[key] = FaultCourse(fault, True, told.time_s, came=came)
    for name, more in _rises(course.boot, course.counters, told):
        key, fault = f"{COUNTER} {name}", Fault(COUNTER, name, Severity.WARN, "unknown", "", f"had risen by {more}")
        since = faults[key].came if key in faults else ()
        if since or len(faults) < bounds.FLEET_FAULTS:
            faults[key] = FaultCourse(fault, False, told.time_s, came=(*since, told.time_s)[-_MOST_CAME:])
    counted = _merge_counters(course.boot, course.counters, told)
    boot, gpus = told.boot or course.boot, told.gpus or course.gpus
    return NodeCourse(course.tests + 1, told.time_s, told.unknown, faults, boot, counted, gpus)


def _merge_counters(boot: str, before: dict[str, int], told: NodeReport) -> dict[str, int]:
    """Return the known counters after this report: of the same boot also those that were not read again."""
    return {**before, **told.counters} if told.boot in ("", boot) else told.counters


def _rises(boot: str, before: dict[str, int], told: NodeReport) -> Iterator[tuple[str, int]]:
    """Yield the counters that rose since the previous report of the same boot; missing ones were 0."""
    for name, count in told.counters.items() if told.boot and told.boot == boot else ():
        if count > before.get(name, 0):
            yield name, count - before.get(name, 0)


class Reason(NamedTuple):
    """One reason for a state, since when (None: unknown), and its description. `of`: what it concerns, `subject`: which
    one.
    """

    state: NodeState
    since_s: float | None
    words: str
    of: str = ""
    subject: str = ""


def standing(name: str, course: NodeCourse, series: Sequence[Series]) -> NodeStanding:
    """Return the state of the node `name` from its history: the worst that is known, and since when."""
    reasons = [*fault_reasons(course), *series_reasons(course, series), *_incomplete_reasons(course, series)]
    state = min((each.state for each in reasons), key=STATES.index)
    why = [each for each in reasons if each.state == state]
    more = Counter(each.of for each in why[1:] if each.of)
    words = [why[0].words[: bounds.FLEET_EVIDENCE], *(f"and {number} more {of}{'s' * (number > 1)}"
             for of, number in more.items())]  # fmt: skip
    return NodeStanding(name, state, why[0].since_s, "; ".join(words), course.tests, course.last_s)


_OLD = "not tested for 30 days; add a newer report of it"


def aged(stands: NodeStanding, now_s: float) -> NodeStanding:
    """Return the state of a node now: unknown if the node was not tested for long, or if its newest report is from a
    future
    day, after which no other counts.
    """
    if stands.last_s > now_s + bounds.FLEET_AHEAD_S:
        ahead = f"its newest report is of {when(stands.last_s)} UTC, in the future: set its clock, and forget the node"
        return replace(stands, state="unknown", since_s=None, evidence=ahead)
    if now_s - stands.last_s <= WINDOW_S:
        return stands
    was = f"was {stands.state}: {stands.evidence}; " if stands.state not in ("ok", "unknown") else ""
    return replace(stands, state="unknown", since_s=stands.last_s, evidence=f"{was}{_OLD}")


def _incomplete_reasons(course: NodeCourse, series: Sequence[Series]) -> Iterator[Reason]:
    if course.unknown:
        yield Reason("unknown", None, "the newest report could not do all required checks")
    yield Reason("ok", None, _unjudged([each for each in series if not _unmeasured(each, course.last_s)]))


def _unjudged(series: Sequence[Series]) -> str:
    """Return why some rates of a node are not judged, and what would help; empty if all are."""
    if not series:
        return "rates are not judged: its reports have none; add those of `ncclprobe accept`"
    new = [each for each in series if each.drift.count < BURN_IN and each.drift.siblings_first is None]
    if not new:
        return ""
    some = "" if len(new) == len(series) else f"{len(new)} of {len(series)} "
    most = max(each.drift.count + len(each.drift.waiting) for each in new)
    other = f"{SIBLINGS} others measured alike on an earlier day are enough too"
    which = f"{new[0].number.called}, {most}" if some else str(most)
    return f"{some}rates are not judged yet: {which} of {BURN_IN} tests; {other}"


def fault_reasons(course: NodeCourse) -> Iterator[Reason]:
    """Yield the present faults, and those that appeared and disappeared, oldest first."""
    for each in sorted(course.faults.values(), key=lambda each: each.since_s):
        came = [time_s for time_s in each.came if time_s > course.last_s - WINDOW_S]
        name = f"{each.fault.check} {each.fault.subject}"
        if each.there:
            often = f", seen {len(came)} times in 30 days" if len(came) > 1 else ""
            words = f"{name}: {each.fault.message} ({plural(each.tests, 'test')}{often})"
            yield Reason("failing" if each.fault.weight == "bad" else "watch", each.since_s, words, "finding", name)
        if len(came) >= FLAPS:
            words = f"{name} appeared {len(came)} times in 30 days and disappeared in between"
            if each.fault.check == COUNTER:
                words = (
                    f"{each.fault.subject} {each.fault.message} since the previous test, {len(came)} times in 30 days"
                )
            yield Reason("flapping", came[0], words, "finding", name)


def series_reasons(course: NodeCourse, series: Sequence[Series]) -> Iterator[Reason]:
    """Yield the results of the test over time, the greatest loss first, and for each number its greater one."""
    sums = [(each, sum_) for each in series if not _unmeasured(each, course.last_s)
            for sum_ in (each.drift.own, each.drift.siblings)]  # fmt: skip
    told = set()
    for each, sum_ in sorted(sums, key=lambda both: (both[1].lost, both[0].number.called)):
        if sum_.state != "ok" and (sum_.state, each.number) not in told:
            told.add((sum_.state, each.number))
            changed = f"; changed at the same time: {first_of(each.changed, 2)}" if each.changed else ""
            found = [name for name, fault in course.faults.items() if fault.there and _appeared_with_loss(fault, sum_)]
            beside = f"; in the same report {first_of(found, 2)}" if found else ""
            yield Reason(sum_.state, sum_.since_s, _loss(each, sum_) + changed + beside, "number", each.number.called)
        came = [since_s for since_s, end_s, _ in sum_.spells if end_s > course.last_s - WINDOW_S]
        if len(came) >= FLAPS:
            words = f"{each.number.called} was lost {len(came)} times in 30 days, and back"
            yield Reason("flapping", came[0], words, "number", each.number.called)


def _appeared_with_loss(fault: FaultCourse, sum_: Sum) -> bool:
    """Return whether a fault appeared in the report with which a loss begins, or on the day before."""
    return sum_.since_s is not None and 0 <= sum_.since_s - fault.since_s <= DAY_S


def _unmeasured(series: Series, last_s: float) -> bool:
    """Return whether a number was not measured for long though its node was tested: it is no longer evidence."""
    return last_s - series.last_s > WINDOW_S


def _loss(series: Series, sum_: Sum) -> str:
    """Describe a loss: ``rail 3 out: 48.9 → 30.9 GB/s (-37 %, 12 tests)``."""
    drift = series.drift
    usual = drift.mean if sum_ is drift.own else (drift.siblings_first or 0.0) + drift.accepted
    before, beside = math.exp(usual + drift.shared), "" if sum_ is drift.own else " of its siblings"
    now = before * math.exp(sum_.lost)  # by what the newest numbers differed from theirs, each at its own time
    what = f"{series.number.called}: {three_digits(before)}{beside} → {three_digits(now)} {series.number.unit}"
    return f"{what} ({100 * math.expm1(sum_.lost):+.0f} %, {plural(sum_.tests, 'test')})"


def events(tests: Sequence[NodeReport], series: Sequence[Series], more: Sequence[NodeEvent] = ()) -> list[NodeEvent]:
    """Return what changed on a node and when, oldest first: findings, versions, rates, how these are measured."""
    accepted = {each.time_s for each in more}
    found = [*more, *_changed(tests), *_fault_events(tests), *_lost(series, accepted), *_method_events(series)]
    found += [
        NodeEvent(each.last_s + WINDOW_S, f"not measured for 30 days: {each.number.called}")
        for each in {_quantity(each): each for each in sorted(series, key=lambda each: each.last_s)}.values()
        if tests and _unmeasured(each, tests[-1].time_s)
    ]
    return sorted(dict.fromkeys(found), key=lambda each: each.time_s)


def _quantity(series: Series) -> tuple[str, str, str]:
    """Return what is measured, whatever the software or settings, which make another series."""
    return series.number.part, series.number.name, series.number.unit


def _changed(tests: Sequence[NodeReport]) -> Iterator[NodeEvent]:
    known: dict[str, str] = {}
    for test in tests:
        yield from (NodeEvent(test.time_s, each) for each in differences(known, test.machine))
        known |= test.machine


def differences(old: dict[str, str], new: dict[str, str]) -> tuple[str, ...]:
    """Return the changed versions of a machine: ``driver 550.54.15 → 560.28.03``."""
    return tuple(
        each.replace(": ", " ", 1).replace(" -> ", " → ", 1) for each in changes(Fingerprint(old), Fingerprint(new))
    )


def _fault_events(tests: Sequence[NodeReport]) -> Iterator[NodeEvent]:
    """Yield faults that appeared, and faults that are gone because their check looked and did not find them."""
    there: dict[tuple[str, str], Fault] = {}
    boot, counted = "", dict[str, int]()
    for test in tests:
        told = {(each.check, each.subject): each for each in test.faults}
        for key, fault in told.items():
            if key not in there:
                yield NodeEvent(test.time_s, f"{fault.severity} {fault.check} {fault.subject}: {fault.message}")
        gone = [key for key in there if key not in told and key[0] in test.looked]
        yield from (NodeEvent(test.time_s, f"gone: {' '.join(key)}") for key in gone)
        there = {key: fault for key, fault in (there | told).items() if key not in gone}
        yield from (NodeEvent(test.time_s, f"{name} had risen by {more}") for name, more in _rises(boot, counted, test))
        boot, counted = test.boot or boot, _merge_counters(boot, counted, test)


def _lost(series: Sequence[Series], accepted: Collection[float]) -> Iterator[NodeEvent]:
    for each in series:
        for sum_ in (each.drift.own, each.drift.siblings):
            for since_s, end_s, lost in sum_.spells:
                yield NodeEvent(since_s, f"degraded: {each.number.called} ({100 * math.expm1(lost):+.0f} %)")
                yield from [] if end_s in accepted else [NodeEvent(end_s, f"as before: {each.number.called}")]
            if sum_.state == "degraded" and sum_.since_s is not None:
                yield NodeEvent(sum_.since_s, f"degraded: {_loss(each, sum_)}")


def _method_events(series: Sequence[Series]) -> Iterator[NodeEvent]:
    """Yield when a number began to be measured in another way: other software, other settings."""
    by_number: dict[tuple[str, str, str], list[Series]] = {}
    for each in sorted(series, key=lambda each: each.first_s):
        by_number.setdefault(_quantity(each), []).append(each)
    for old, new in (both for those in by_number.values() for both in pairwise(those)):
        before, now = (dict.fromkeys(each.number.how.split(", ")) for each in (old, new))
        was = ", ".join(word for word in before if word not in now)
        is_ = ", ".join(word for word in now if word not in before)
        yield NodeEvent(new.first_s, f"measured with {is_ or 'less'}, before with {was or 'less'}")


def days(tests: Sequence[tuple[NodeReport, str]], series: Sequence[Series]) -> dict[int, Day]:
    """Return what was found on each day of `tests`, each with the file of its report, oldest first."""
    found: dict[int, Day] = {}
    for told, source in tests:
        state: NodeState = "unknown" if told.unknown else "ok"
        words = {f"{each.check} {each.subject}: {each.message}": each.weight for each in told.faults if each.weight}
        state = "failing" if "bad" in words.values() else "watch" if words else state
        day = int(told.time_s // DAY_S)
        before = found.get(day, Day(state, (), told.time_s, source))
        worst = min(state, before.state, key=STATES.index)
        found[day] = Day(worst, tuple(dict.fromkeys((*before.words, *words))), told.time_s, source)
    for since_s, end_s, words_of in _loss_spans(series):
        for day in found.keys() & {*range(int(since_s // DAY_S), int(min(end_s, tests[-1][0].time_s) // DAY_S) + 1)}:
            known = found[day]
            worst = min("degraded", known.state, key=STATES.index)
            found[day] = replace(known, state=worst, words=(*known.words, words_of))
    return found


def _loss_spans(series: Sequence[Series]) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and description of each loss."""
    for each in series:
        for sum_ in (each.drift.own, each.drift.siblings):
            for since_s, end_s, lost in sum_.spells:
                yield since_s, end_s, f"{each.number.called} ({100 * math.expm1(lost):+.0f} %)"
            if sum_.state == "degraded" and sum_.since_s is not None:
                yield sum_.since_s, math.inf, _loss(each, sum_)
