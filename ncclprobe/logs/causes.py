"""Decide which findings explain which others, from what lines mean to why the job failed.

A finding explains another if the other is its consequence or repeats its code, if it is not later, and if the two are
related: the same peers, rank, communicator or host; otherwise the same job, which one failed rank ends as a whole. A
finding that nothing explains is a cause; two independent faults are two causes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from ncclprobe.model.causes import Cause, CauseConfidence, Consequence
from ncclprobe.model.findings import Evidence, Finding, Occurrence, Severity, Verdict
from ncclprobe.model.registry import CauseRule
from ncclprobe.model.values import Struct, grouped

K = TypeVar("K", int, str)
UNKNOWN = "unknown"
ANY, SAME_LINE = "*", "="
_SAME_TEXT_LINES = 10
"""Lines after a consequence in which its cause may still appear: torch prints NCCL's last error below its own."""
_BUFFERED_LINES = 100
"""Lines over which a launcher may interleave the output of different ranks."""
_CLOCK_S = 2.0
_MOST_TRIED = 64
_MOST_EVIDENCE = 8
_CONFIDENCES: tuple[CauseConfidence, ...] = ("named", "narrowed", "unknown")


class _Meaning(Struct, frozen=True):
    """One finding with its check's id and rule."""

    id: str
    rule: CauseRule
    finding: Finding
    occurrence: Occurrence

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the code of the cause, or those that are left; empty: it is a consequence."""
        return self.occurrence.codes or ((self.rule.code,) if self.rule.code else ())

    @property
    def line(self) -> tuple[int, int]:
        """Return the position of the line: index of the log, and line number."""
        return self.occurrence.stream, self.occurrence.line

    @property
    def can_explain(self) -> bool:
        """Return whether others may follow from it: a cause, and not one that makes a job slow but ends none."""
        return self.confidence == "narrowed" or (bool(self.codes) and self.finding.severity is Severity.FAIL)

    @property
    def weight(self) -> tuple[int, bool]:
        """Return what sorts causes that explain as much: a named one before a narrowed one."""
        return _CONFIDENCES.index(self.confidence), self.finding.severity is not Severity.FAIL

    @property
    def confidence(self) -> CauseConfidence:
        """Return how much of the reason the line itself gives."""
        return "narrowed" if len(self.codes) > 1 else "named" if self.codes else "unknown"


def causes(
    verdicts: Iterable[Verdict], rules: Mapping[str, CauseRule], clocks: Mapping[str, float] | None = None
) -> tuple[Cause, ...]:
    """Return the causes, most likely first, each with its consequences.

    `rules`: of each check's id. `clocks`: by how many seconds each host's clock is ahead, if that is known; times of
    hosts that it does not hold are compared with nothing.
    """
    found = sorted(_meanings(verdicts, rules), key=_order)
    known = _Causes(found, clocks or {})
    heads = [known.explaining(number, each) for number, each in enumerate(found)]
    groups: dict[tuple[str, ...], list[_Meaning]] = {}
    echoes: dict[tuple[str, ...], list[_Meaning]] = {}
    for number, each in enumerate(found):
        root = _root(number, heads, found)
        (groups if root == number else echoes).setdefault(_key(found[root]), []).append(each)
    made = [_cause(group, echoes.get(key, [])) for key, group in groups.items()]
    return tuple(sorted(made, key=lambda each: (_standing(each), -sum(c.count for c in each.consequences))))


def _standing(cause: Cause) -> int:
    """Return the sort key of a cause: slow operations come after all failures, even failures of unknown reason."""
    slow = cause.confidence == "named" and cause.severity is not Severity.FAIL
    return len(_CONFIDENCES) if slow else _CONFIDENCES.index(cause.confidence)


class _Causes:
    """Findings that give a reason, grouped by the ranks and hosts that they speak of."""

    def __init__(self, found: Sequence[_Meaning], clocks: Mapping[str, float]) -> None:
        self._found, self._clocks = found, clocks
        self._all = sorted((n for n, each in enumerate(found) if each.can_explain), key=lambda n: found[n].weight)
        told = [(number, found[number].occurrence) for number in self._all]
        self._ranks = grouped((rank, number) for number, o in told for rank in o.ranks)
        self._hosts = grouped((host, number) for number, o in told for host in o.hosts)
        self._comms = grouped((o.comm, number) for number, o in told if o.comm)
        self._peers = grouped((rank, number) for number, o in told for rank in o.peers)

    def explaining(self, number: int, other: _Meaning) -> int:
        """Return the number of the finding that explains this one best; its own if none does.

        Among related findings, one that is named comes before one that is one of several.
        """
        best = number
        for tried in self._related_causes(other):
            for one in tried[:_MOST_TRIED] if best == number or tried is not self._all else ():
                if one != number and self._explains(one, number):
                    if self._found[one].confidence == "named":
                        return one
                    best = one if best == number else best
        return best

    def _related_causes(self, other: _Meaning) -> Iterator[list[int]]:
        """Yield causes that have to do with `other`, those that have most to do with it first."""
        o = other.occurrence
        yield _gathered(self._ranks, o.peers)
        yield _gathered(self._hosts, o.peer_hosts)
        yield _gathered(self._ranks, o.ranks)
        yield _gathered(self._peers, o.ranks)
        yield _gathered(self._comms, (o.comm,))
        yield _gathered(self._hosts, o.hosts)
        if not other.codes or other.confidence == "narrowed" or other.rule.echoes:  # one failed rank ends the job
            yield self._all

    def _explains(self, one: int, other: int) -> bool:
        cause, said = self._found[one], self._found[other]
        if SAME_LINE in said.rule.echoes and cause.line == said.line:
            return bool(cause.codes)
        if said.codes:
            echoed = {*said.rule.echoes, *(said.codes if said.confidence == "narrowed" else ())}
            if not echoed & {*cause.codes, ANY} or (cause.codes == said.codes and one > other):
                return False
        return not later(cause.occurrence, said.occurrence, self._clocks)


def _gathered(of: Mapping[K, list[int]], keys: Collection[K]) -> list[int]:
    return [number for key in keys for number in of.get(key, ())]


def later(one: Occurrence, other: Occurrence, clocks: Mapping[str, float]) -> bool:
    """Return whether `one` is certainly later than `other`: by their lines in one log, otherwise by clocks.

    The clock of one host is one clock; times of different hosts are compared only if `clocks` has both.
    """
    if not (one.ordered and other.ordered):
        return False
    if one.stream == other.stream and one.stream >= 0:
        own = one.ranks == other.ranks and one.hosts == other.hosts
        return one.line > other.line + (_SAME_TEXT_LINES if own else _BUFFERED_LINES)
    times = [_time(each, clocks, bool({*one.hosts} & {*other.hosts})) for each in (one, other)]
    return times[0] is not None and times[1] is not None and times[0] > times[1] + _CLOCK_S


def _time(each: Occurrence, clocks: Mapping[str, float], one_host: bool) -> float | None:
    """Return when it was, by the common clock; None: not known."""
    if each.time_s is None or one_host:
        return each.time_s
    ahead = [clocks[host] for host in each.hosts if host in clocks]
    return each.time_s - ahead[0] if ahead else None


def _meanings(verdicts: Iterable[Verdict], rules: Mapping[str, CauseRule]) -> Iterator[_Meaning]:
    for verdict in verdicts:
        for finding in verdict.findings if verdict.key in rules else ():
            if finding.occurrence and finding.severity is not Severity.NOTE:
                yield _Meaning(verdict.key, rules[verdict.key], finding, finding.occurrence)


def _order(each: _Meaning) -> tuple[float, int, int]:
    o = each.occurrence
    return (float("inf") if o.time_s is None else o.time_s, o.stream, o.line)


def _root(number: int, heads: Sequence[int], found: Sequence[_Meaning]) -> int:
    """Return the finding that explains this one in the end; if some explain each other, the most specific one."""
    seen: list[int] = []
    while heads[number] != number and number not in seen:
        seen.append(number)
        number = heads[number]
    circle = seen[seen.index(number) :] if number in seen else [number]
    return min(circle, key=lambda each: (found[each].weight, not found[each].rule.code, each))


def _key(head: _Meaning) -> tuple[str, ...]:
    """Return what makes findings one cause: the same code; all that nothing explains is one unknown."""
    return head.codes or (UNKNOWN,)


def _cause(group: Sequence[_Meaning], echoes: Sequence[_Meaning]) -> Cause:
    """Return the cause for a group of findings of one code.

    Failures come first. Findings that any cause produces come last: a launcher's SIGTERM is the least specific, and a
    finding that nothing else can explain, such as full memory, the most specific.
    """
    ordered = sorted(
        group, key=lambda e: (e.finding.severity is not Severity.FAIL, ANY in e.rule.echoes, bool(e.rule.echoes))
    )
    head, finding = ordered[0], ordered[0].finding
    unknown = head.confidence == "unknown"
    return Cause(
        code=(head.codes or (UNKNOWN,))[0],
        id=head.id,
        confidence=head.confidence,
        message=finding.message,
        severity=finding.severity,
        ranks=_ranks(group),
        nodes=_nodes(group),
        evidence=_evidence(ordered),
        blame=finding.blame,
        action=finding.action,
        remedy=finding.remedy,
        could_be=head.codes if head.confidence == "narrowed" else (),
        doctor="" if unknown else head.rule.doctor,
        consequences=tuple(
            _consequences([*(each for each in group if each.id != head.id), *echoes] if unknown else echoes)
        ),
    )


def _consequences(echoes: Sequence[_Meaning]) -> Iterator[Consequence]:
    alike = grouped(((e.id, tuple(filter(str.isalpha, e.finding.message.split()))), e) for e in echoes)
    for (name, _), group in alike.items():
        message = group[0].finding.message
        yield Consequence(name, message, _ranks(group), _nodes(group), _evidence(group), len(group))


def _ranks(group: Sequence[_Meaning]) -> tuple[int, ...]:
    return tuple(sorted({rank for each in group for rank in each.occurrence.ranks}))


def _nodes(group: Sequence[_Meaning]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for each in group for host in each.occurrence.hosts))


def _evidence(group: Sequence[_Meaning]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(one for each in group for one in each.finding.evidence))[:_MOST_EVIDENCE]
