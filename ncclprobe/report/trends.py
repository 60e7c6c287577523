"""Several reports in the order of their time: what each said, how fast each operation was, and since when a node fails.

The newest report is the one that is shown; of the others only what a series needs is kept.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise

from ncclprobe.model.findings import Severity, Status, nodes_of
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import shorten
from ncclprobe.model.measurement import Conditions, Fingerprint, Measurement, changes, conditions, operation
from ncclprobe.model.report import Report, looked_at, placed, when
from ncclprobe.model.units import plural, printable, size
from ncclprobe.model.values import Struct, grouped, replace
from ncclprobe.report import digest

CLASSES = ((64 << 10, "small"), (16 << 20, "medium"), (1 << 62, "large"))
"""Up to how many bytes a call is of which class. Small calls are shown by their time, which is latency."""
_MOST_NAMED = 60
_MOST_SINCE = 12


class Past(Struct, frozen=True):
    """What a series keeps of the report in the file `source`.

    `states`: of each node its own state; grey where no number was judged. `faults`: (id of a check, node) of what fails
    or warns, the node empty where it is said of the whole run. `looked`: the same of all checks that had something to
    judge there. `unjudged`: how many rows were measured where none was judged. `rows`: without their samples.
    """

    source: str
    time_s: float
    duration_s: float
    when: str
    status: Status
    headline: str
    states: dict[str, str]
    faults: frozenset[tuple[str, str]]
    looked: frozenset[tuple[str, str]]
    unjudged: str
    rows: tuple[Measurement, ...]
    fingerprint: Fingerprint | None = None

    @property
    def verdict(self) -> str:
        """Return the status in a word; a run that passes and in which no number was judged is no success."""
        return "not judged" if self.unjudged and self.status is Status.PASS else self.status.value


class _Point(Struct, frozen=True):
    """One row of a series, by the place of its report in the history."""

    place: int
    row: Measurement


class Series(Struct, frozen=True):
    """One operation at one size over the reports; `kind` is its size class, and small ones count in microseconds."""

    op: str
    kind: str
    nbytes: int
    like: Conditions
    points: tuple[_Point, ...]

    @property
    def timed(self) -> bool:
        """Return whether time per call is what counts, rather than bandwidth."""
        return self.kind == CLASSES[0][1]

    def value(self, row: Measurement) -> float:
        """Return what is drawn of `row`: microseconds, or GB/s."""
        return row.time_us.typical if self.timed else row.busbw_GBps


class Since(Struct, frozen=True):
    """From which report on something fails without a break. `open`: the first report has it already, so that it may be
    older. `good`: the last report before it in which the same check looked there and found nothing; empty: there is
    none. `blind`: earlier reports are there and did not look: the check was skipped, absent or could not.
    """

    when: str
    open: bool
    good: str = ""
    blind: bool = False

    def __str__(self) -> str:
        """Return ``since 2026-11-20 10:00 UTC``, and what is known of the time before."""
        if self.blind:
            return f"first looked for at {self.when}; earlier reports did not look"
        return f"{'at least ' if self.open else ''}since {self.when}{f'; not on {self.good}' if self.good else ''}"


def past(report: Report, source: str) -> Past:
    """Return what a series keeps of `report`. Raises UsageError where it has no place in one."""
    time_s, looked = placed(report, source), {*looked_at(report)}
    looked |= {(check, "") for check, _ in looked}
    return Past(
        source, time_s, report.duration_s, f"{when(time_s)} UTC", report.status, digest.headline(report),
        digest.node_states(report), frozenset(_faults(report)), frozenset(looked), digest.none_judged(report),
        tuple(replace(row, samples=None, skew=None) for row in report.measurements), report.fingerprint,
    )  # fmt: skip


def _faults(report: Report) -> Iterator[tuple[str, str]]:
    for verdict in report.checks:
        for finding in verdict.findings:
            if finding.severity is not Severity.NOTE:
                yield from ((verdict.id, node) for node in nodes_of(verdict, finding) or ("",))


def since(history: Sequence[Past]) -> dict[tuple[str, str], Since]:
    """Return since when the newest of `history`, oldest first, has each of its faults.

    A report that did not look, because it lacks the node or because the check was absent, skipped or unknown there,
    neither shows nor ends a fault.
    """
    return {fault: _since(fault, history) for fault in history[-1].faults} if len(history) > 1 else {}


def _since(fault: tuple[str, str], history: Sequence[Past]) -> Since:
    looked = [each for each in history if fault in each.looked or fault in each.faults]
    first = looked[-1]
    for each in reversed(looked):
        if fault not in each.faults:
            return Since(first.when, False, each.when)
        first = each
    return Since(first.when, True, blind=first is not history[0])


def names(history: Sequence[Past]) -> list[str]:
    """Return of each report what tells it from the others: day, minute or second of its start, else its file."""
    times = [datetime.fromtimestamp(each.time_s, timezone.utc) for each in history]
    days = len({time.date() for time in times}) == len(times)
    for form in ("%m-%d", "%m-%d %H:%M", "%m-%d %H:%M:%S")[not days :]:
        told = [time.strftime(form) for time in times]
        if len(set(told)) == len(told):
            return told
    short = [time.strftime("%m-%d %H:%M") for time in times]
    return [each.source if short.count(word) > 1 else word for each, word in zip(history, short, strict=True)]


def series(history: Sequence[Past]) -> list[Series]:
    """Return the series of the newest report's operations: of each size class the size that most reports have.

    Rows are of one series where they were measured in the same way.
    """
    last = [{(row.op, conditions(row), row.nbytes): row for row in past.rows if row.nbytes > 0} for past in history]
    found = grouped((key, _Point(place, row)) for place, rows in enumerate(last) for key, row in rows.items())
    chosen: dict[tuple[str, str], Series] = {}
    for (op, like, nbytes), points in found.items():
        if points[-1].place == len(history) - 1:
            kind = next(name for most, name in CLASSES if nbytes <= most)
            one = Series(operation(op, like.redop), kind, nbytes, like, tuple(points))
            chosen[one.op, kind] = max(chosen.get((one.op, kind), one), one, key=_weight)
    order = [name for _, name in CLASSES]
    ops = list(dict.fromkeys(op for op, _ in chosen))
    return sorted(chosen.values(), key=lambda each: (ops.index(each.op), -order.index(each.kind)))


def _weight(one: Series) -> tuple[int, int]:
    return len(one.points), -one.nbytes if one.timed else one.nbytes


def changed(history: Sequence[Past]) -> list[tuple[str, str]]:
    """Return when something changed that numbers depend on, and what."""
    pairs = pairwise(history)
    found = ((new.when, "; ".join(changes(old.fingerprint, new.fingerprint))) for old, new in pairs)
    return [each for each in found if each[1]]


def lines(history: Sequence[Past], width: int) -> Iterator[str]:
    """Yield the history as text: a line per report, one per operation and size class, and since when what fails."""
    for each in history:
        line = f"{each.when}  {each.verdict.upper():<7}  {_nodes(each)}  {printable(each.headline)}"
        yield shorten(line, width)
    for one in series(history):
        unit = "us" if one.timed else "GB/s"
        told = {point.place: f"{one.value(point.row):.4g}" for point in one.points}
        values = ", ".join(told.get(place, "-") for place in range(len(history)))
        yield f"{one.op} {size(one.nbytes)}, {unit}: {values}"
    for at, words in changed(history):
        yield f"changed by {at}: {printable(words)}"
    yield from _failing(history)


def _nodes(each: Past) -> str:
    fine = sum(state in ("pass", "skip") for state in each.states.values())
    return f"{fine:,} of {plural(len(each.states), 'node')} without a finding"


def _failing(history: Sequence[Past]) -> Iterator[str]:
    """Yield a line for what fails on the same nodes since the same time."""
    groups = grouped(((check, begun), node) for (check, node), begun in sorted(since(history).items()))
    for (check, begun), nodes in list(groups.items())[:_MOST_SINCE]:
        named = fold(filter(None, nodes))
        where = named if len(named) <= _MOST_NAMED else plural(len(nodes), "node")
        yield f"{check}{f' on {where}' if where else ''}: {begun}"
    if len(groups) > _MOST_SINCE:
        yield f"and {plural(len(groups) - _MOST_SINCE, 'other fault')}; --html shows all"
