"""From what lines of logs mean to why the job failed: which findings explain which others.

A finding explains another where both speak of the same ranks, a rank and its peer, or one communicator, where it is not
later, and where the other is a consequence or echoes its code. What nothing explains is a cause; two independent
faults are two causes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ncclprobe.model.causes import Cause, CauseConfidence, Consequence
from ncclprobe.model.findings import Evidence, Finding, Occurrence, Severity, Verdict
from ncclprobe.model.rules import CauseRule
from ncclprobe.model.values import Struct

UNKNOWN = "unknown"


class Said(Struct, frozen=True):
    """One finding with its check's id and rule."""

    id: str
    rule: CauseRule
    finding: Finding
    occurrence: Occurrence

    @property
    def is_cause(self) -> bool:
        """Return whether the line itself says why; else it follows from something."""
        return bool(self.rule.code or self.occurrence.codes)


def causes(verdicts: Iterable[Verdict], rules: Mapping[str, CauseRule]) -> tuple[Cause, ...]:
    """Return the causes, most likely first, each with its consequences. `rules`: of each check's id."""
    found = sorted(_said(verdicts, rules), key=_order)
    heads: dict[int, int] = {}
    for number, each in enumerate(found):
        explained = [(-_nearness(other, each), place) for place, other in enumerate(found) if explains(other, each)]
        heads[number] = min(explained)[1] if explained else number
    groups: dict[tuple[str, ...], list[Said]] = {}
    echoes: dict[tuple[str, ...], list[Said]] = {}
    for number, each in enumerate(found):
        root = _root(number, heads)
        key = _key(found[root])
        (groups if root == number else echoes).setdefault(key, []).append(each)
    made = [_cause(group, echoes.get(key, [])) for key, group in groups.items()]
    return tuple(sorted(made, key=lambda each: ("named", "narrowed", "unknown").index(each.confidence)))


def explains(one: Said, other: Said) -> bool:
    """Return whether `one` may be why `other` was written."""
    if one is other or not one.is_cause or _later(one.occurrence, other.occurrence):
        return False
    if other.is_cause and not ({one.rule.code, *one.occurrence.codes} & {*other.rule.echoes}):
        return False
    return _nearness(one, other) > 0


def _nearness(one: Said, other: Said) -> int:
    """How much two findings have to do with each other: 0 nothing, then the job, host, communicator, peers, rank."""
    a, b = one.occurrence, other.occurrence
    if {*a.ranks} & {*b.ranks}:
        return 5
    if {*a.ranks} & {*b.peers} or {*a.peers} & {*b.ranks} or {*a.hosts} & {*b.peer_hosts}:
        return 4
    if a.comm and a.comm == b.comm:
        return 3
    if {*a.hosts} & {*b.hosts}:
        return 2
    return 0 if other.is_cause else 1  # a failed rank fails its whole job


def _later(one: Occurrence, other: Occurrence) -> bool:
    """Return whether `one` is certainly later: of one stream by its lines, else by a clock of the same host."""
    if one.stream == other.stream:
        return one.line > other.line
    same = bool({*one.hosts} & {*other.hosts})
    return bool(same and one.time_s is not None and other.time_s is not None and one.time_s > other.time_s)


def _said(verdicts: Iterable[Verdict], rules: Mapping[str, CauseRule]) -> Iterator[Said]:
    for verdict in verdicts:
        for finding in verdict.findings if verdict.id in rules else ():
            if finding.occurrence and finding.severity is not Severity.NOTE:
                yield Said(verdict.id, rules[verdict.id], finding, finding.occurrence)


def _order(each: Said) -> tuple[float, int, int]:
    o = each.occurrence
    return (float("inf") if o.time_s is None else o.time_s, o.stream, o.line)


def _root(number: int, heads: Mapping[int, int]) -> int:
    seen: set[int] = set()
    while heads[number] != number and number not in seen:
        seen.add(number)
        number = heads[number]
    return number


def _key(head: Said) -> tuple[str, ...]:
    """Return what makes findings one cause: the same code; all that nothing explains is one unknown."""
    return (head.rule.code,) if head.rule.code else head.occurrence.codes or (UNKNOWN,)


def _cause(group: Sequence[Said], echoes: Sequence[Said]) -> Cause:
    head, finding = group[0], group[0].finding
    confidence: CauseConfidence = "narrowed" if head.occurrence.codes else "named" if head.is_cause else "unknown"
    return Cause(
        code=head.rule.code or (head.occurrence.codes or (UNKNOWN,))[0],
        id=head.id,
        confidence=confidence,
        message=finding.message,
        ranks=_ranks(group),
        nodes=_nodes(group),
        evidence=_evidence(group),
        blame=finding.blame,
        action=finding.action,
        remedy=finding.remedy,
        could_be=head.occurrence.codes,
        doctor=head.rule.doctor,
        consequences=tuple(_consequences(echoes)),
    )


def _consequences(echoes: Sequence[Said]) -> Iterator[Consequence]:
    by_id: dict[str, list[Said]] = {}
    for each in echoes:
        by_id.setdefault(each.id, []).append(each)
    for name, group in by_id.items():
        message = group[0].finding.message
        yield Consequence(name, message, _ranks(group), _nodes(group), _evidence(group), len(group))


def _ranks(group: Sequence[Said]) -> tuple[int, ...]:
    return tuple(sorted({rank for each in group for rank in each.occurrence.ranks}))


def _nodes(group: Sequence[Said]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for each in group for host in each.occurrence.hosts))


def _evidence(group: Sequence[Said], most: int = 8) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(one for each in group for one in each.finding.evidence))[:most]
