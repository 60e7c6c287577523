"""Tables: what was measured apart from collectives and pairs, the checks, versions and settings, and NCCL's choices."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ncclprobe.model.findings import Finding, Severity, Status, Verdict, own_node
from ncclprobe.model.hostlist import expand, fold
from ncclprobe.model.layout import first_of
from ncclprobe.model.nccl_selection import Choices, HcaChoice, Part, PeerChoice
from ncclprobe.model.report import NodeEnvironment, Report
from ncclprobe.model.traffic import (
    CopyRow,
    GroupRow,
    LadderRow,
    NicBytes,
    OperationTraffic,
    ScriptRung,
    StepRow,
)
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report import digest
from ncclprobe.report.html.legible import folded, micros, rate
from ncclprobe.report.rails import RailEnd, ends
from ncclprobe.report.traffic import BY, RUNGS

T = TypeVar("T")
MOST = 200
_LOUD = {"fail": 0, "unknown": 1, "warn": 2, "inconclusive": 3, "unjudged": 4, "pass": 5}


class _Table(Struct, frozen=True):
    """A table with its headline. `heads`: of each column the words, and whether it holds numbers; a row's first cell
    is a status where the first head is ``State``. `more`: rows of the JSON report alone. `muted`: what all rows share.
    """

    title: str
    heads: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    more: int = 0
    muted: str = ""


def tables(report: Report) -> list[_Table]:
    """Return the tables that have rows."""
    copies = sorted(report.copies, key=lambda row: _LOUD[row.status])
    problems = tuple(dict.fromkeys(problem for row in report.groups for problem in row.problems))[:20]
    found = [
        _table("Copies within a node", _COPIES, copies, _copy),
        _rails(report),
        _table("Groups of a parallel job", _GROUPS, report.groups, _group, problems),
        _table("Steps of training", _STEPS, report.steps, _step),
        _table("Ladder of training: the same step on more and more ranks", _LADDER, report.ladder, _rung),
        _table(
            "The own script on more and more ranks",
            _SCRIPT,
            report.script,
            _of_script,
            (BY[report.script[0].by],) if report.script else (),
        ),
        _table("NICs that the bytes took", _NIC_TRAFFIC, list(_nics(report.nic_traffic)), _nic),
    ]
    return [each for each in found if each.rows]


def _table(
    title: str,
    heads: str,
    rows: Sequence[T],
    shown: Callable[[T], Iterable[str]],
    notes: tuple[str, ...] = (),
    muted: str = "",
) -> _Table:
    named = tuple((head.strip(" >"), head.startswith(">")) for head in heads.split("|"))
    return _Table(title, named, tuple(tuple(shown(row)) for row in rows[:MOST]), notes, max(0, len(rows) - MOST), muted)


_COPIES = "State|Node|Copy|Device|NUMA|Concurrent|>Size|>GB/s|>Threshold|>Range"
_WAYS = {
    "h2d": "host to device",
    "d2h": "device to host",
    "bidirectional": "both ways",
    "d2d": "device to device",
    "device": "within the device",
    "host": "host",
}


_RAILS = "State|Rail|>Sends GB/s|>Receives GB/s|>Latency µs|>Partners|Chosen as NCCL would|What is wrong"
_NUMBERS = re.compile(r" rail ([0-9,-]{1,400})")
_MOST_WHY = 300


def _rails(report: Report) -> _Table:
    """Return the rails, first those that findings name; what all of them chose stands above, once."""
    every = ends(report.rails)
    findings = [each for each in report.checks if each.id.startswith("rail.")]
    said = {id(end): [f for v in findings for f in v.findings if _names(f, end)] for end in every}
    chosen = [_chosen(end) for end in every]
    common = [part for part in (chosen[0] if len(chosen) > 1 else ()) if all(part in each for each in chosen)]
    rows = [
        (end, said[id(end)], ", ".join(part for part in parts if part not in common))
        for end, parts in zip(every, chosen, strict=True)
    ]
    rows.sort(key=lambda row: _LOUD[_state(row[0], row[1])])
    return _table("Rails", _RAILS, rows, _rail, muted=f"All rails: {', '.join(common)}." if common else "")


def _chosen(end: RailEnd) -> list[str]:
    """Return what was chosen, without node and device: the rail's name has them."""
    device = end.name.rpartition("(")[2].rstrip(")")
    return end.choices.removeprefix(f"{end.node} {device}").strip().split(", ")


def _names(finding: Finding, end: RailEnd) -> bool:
    """Return whether `finding` blames this rail: by its number, or its whole node. A pair's ends are not blamed."""
    subject = finding.subject
    if finding.severity is Severity.NOTE or end.node not in finding.nodes or "->" in subject or "<->" in subject:
        return False
    found = _NUMBERS.search(subject)
    return not found or str(end.rail) in expand(f"[{found[1]}]")


def _state(end: RailEnd, said: Sequence[Finding]) -> str:
    """Return the worst that findings say of a rail; without one, what became of most of its ways."""
    if any(each.severity is Severity.FAIL for each in said):
        return "fail"
    own = {"ok": "pass", "untried": "unknown"}.get(end.state, "fail")
    return "warn" if said and own == "pass" else own


def _rail(row: tuple[RailEnd, Sequence[Finding], str]) -> Iterator[str]:
    end, said, choices = row
    yield _state(end, said)
    yield end.name
    yield from ("–" if each is None else rate(each) for each in (end.rate(end.out), end.rate(end.into)))
    yield "–" if end.latency_us is None else micros(end.latency_us)
    yield str(len({way.dst for way in end.out}))
    yield choices
    yield "; ".join([*dict.fromkeys(each.message for each in said), *_whys(end)])[:_MOST_WHY]


def _whys(end: RailEnd) -> Iterator[str]:
    """Yield why ways of this rail are not ok, each reason once, with the partners."""
    partners: dict[str, dict[str, None]] = {}
    for way in end.bad:
        other = way.dst if way.src == end.node else way.src
        for part in way.why.split("; "):
            reason = part.removeprefix(f"{way.src}: ").removeprefix(f"{way.dst}: ")
            partners.setdefault(reason, {})[other] = None
    yield from (f"{reason} (with {fold(names)})" for reason, names in partners.items() if reason)


def _copy(row: CopyRow) -> Iterator[str]:
    near = {True: " (near)", False: " (far)", None: ""}[row.near]
    yield from (row.status, row.node, _WAYS[row.kind], f"{row.device} to {row.peer}" if row.peer else row.device)
    yield from ("–" if row.numa is None else f"{row.numa}{near}", "all GPUs" if row.concurrent else "alone")
    yield from (
        size(row.nbytes),
        rate(row.GBps),
        rate(row.threshold_GBps),
        f"{rate(row.min_GBps)} – {rate(row.max_GBps)}",
    )


_GROUPS = "Kind|Operation|>Size|>Ranks|>Groups|>Across nodes|>Alone|>GB/s|>Concurrent|>GB/s|>Slower"


def _group(row: GroupRow) -> Iterator[str]:
    yield from (row.kind, row.op, size(row.nbytes), str(row.size), str(row.groups), str(row.crossing))
    yield from (micros(row.alone_us), rate(row.alone_busbw_GBps))
    yield from (micros(row.together_us), rate(row.together_busbw_GBps))
    slower = row.slowdown
    yield (
        "–" if slower is None else f"{slower:.2f} ×" if slower > 1 else "no"
    )  # groups at once lose nothing to each other


_STEPS = "Strategy|Overlap|>Ranks|>Calls|>Bytes|>Compute|>Calls|>Step|>Predicted|>Exposed|>Efficiency"


def _step(row: StepRow) -> Iterator[str]:
    yield from (row.strategy, "yes" if row.overlap else "no", str(row.ranks), str(row.calls), size(row.call_bytes))
    yield from map(micros, (row.compute_us, row.calls_us, row.step_us, row.predicted_us))
    yield micros(row.exposed_us) if row.exposed_us > 0 else "none"  # a step that is no longer than its compute
    yield f"{row.efficiency:.0%}"


_LADDER = "State|Rung|>Ranks|>Groups|>Step|>Speed-up|>Efficiency|>Between|>GB/s|>Expected"


def _rung(row: LadderRow) -> Iterator[str]:
    yield from (row.status, RUNGS[row.rung], str(row.ranks), str(row.groups), micros(row.step_us))
    yield "–" if row.speedup is None else f"{row.speedup:.2f} ×"
    yield "–" if row.efficiency is None else f"{row.efficiency:.0%}"
    yield f"{row.interval[0]:.0%} – {row.interval[1]:.0%}" if row.interval and row.rung != "rank" else "–"
    yield from (rate(row.busbw_GBps), rate(row.expectation.value if row.expectation else None))


_SCRIPT = "Script on|>Ranks|>Nodes|>Seconds|>Printed|>Speed-up|>Efficiency|Ended"


def _of_script(row: ScriptRung) -> Iterator[str]:
    yield from (RUNGS[row.rung], str(row.ranks), str(row.nodes), f"{row.seconds:.1f}")
    yield "–" if row.metric is None else f"{row.metric:.4g}"
    yield "–" if row.speedup is None else f"{row.speedup:.2f} ×"
    yield "–" if row.efficiency is None else f"{row.efficiency:.0%}"
    yield row.ended


_NIC_TRAFFIC = "Operation|Node|NIC|Expected|>Sent|>Received|>Share|Remark"


def _nics(traffic: Iterable[OperationTraffic]) -> Iterator[tuple[OperationTraffic, NicBytes]]:
    for row in traffic:
        yield from ((row, nic) for nic in row.nics)


def _nic(of: tuple[OperationTraffic, NicBytes]) -> Iterator[str]:
    row, nic = of
    expected = {True: "yes", False: "no", None: "not known"}[nic.expected]
    yield from (f"{row.op}, {size(row.nbytes)}", nic.node, f"{nic.nic} ({nic.kind})", expected)
    yield from ("–" if moved is None else size(moved) for moved in (nic.sent, nic.received))
    yield from ("–" if nic.share is None else f"{nic.share:.0%}", nic.why)


def fingerprint(report: Report) -> list[tuple[str, str]]:
    """Return what the numbers depend on, by name."""
    mark = report.fingerprint
    if mark is None:
        return []
    told = [*mark.machine.items(), *mark.software.items()]
    return [*told, ("topology", mark.topology)] if mark.topology else told


def pair_notes(report: Report) -> list[str]:
    """Return what spoils or limits the pairs' verdict, in words."""
    found = report.localisation
    if found is None:
        return []
    notes = [f"{each.end} played no more: {each.why}" for each in found.excluded_ranks]
    notes += [f"{each.src_end} to {each.dst_end}: {plural(each.wrong, 'byte')} came out wrong" for each in found.wrong]
    notes += [] if found.complete else ["not all pairs that were planned were tried"]
    return notes[:20] + ([found.intra_node_note] if found.intra_node_note else [])


ORDER = ("fail", "unknown", "warn", "note", "pass", "skip")
"""Kinds of row, the loudest first: what was not looked at comes before what merely costs speed."""


class Row(Struct, frozen=True):
    """One line of the table. `nodes`: those on which it was found; empty, of the run as a whole.

    `kind` is one of ORDER; `required`: the run is inconclusive without it.
    """

    kind: str
    id: str
    title: str
    nodes: tuple[str, ...]
    subject: str = ""
    message: str = ""
    evidence: str = ""
    remedy: str = ""
    blame: str = ""
    required: bool = False
    see_also: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what the row's card knows it by."""
        return self.kind, self.id, self.subject, self.message


def rows(report: Report) -> list[Row]:
    """Return all rows, the loudest first, and of these what is on most nodes first."""
    where_found: dict[Row, list[str]] = defaultdict(list)
    for verdict in report.checks:
        for row, names in _said(verdict):
            where_found[row].extend(names)
    kept = [_on(row, names) for row, names in where_found.items()]
    return sorted(kept, key=lambda row: (ORDER.index(row.kind), not row.required, -len(row.nodes), row.id))


def where(row: Row, everywhere: int) -> str:
    """Return the nodes of `row` in words; `everywhere` is how many nodes the report has."""
    if not row.nodes:
        return "whole run"
    if everywhere > 1 and len(row.nodes) == everywhere:
        return f"all {everywhere:,} nodes"
    return folded(row.nodes)


def _on(row: Row, names: Sequence[str]) -> Row:
    return Row(
        row.kind, row.id, row.title, tuple(dict.fromkeys(names)), row.subject, row.message, row.evidence, row.remedy,
        _of_several(row.blame) if len(set(names)) > 1 else row.blame, row.required,
        row.see_also,
    )  # fmt: skip


def _of_several(blame: str) -> str:
    return blame.replace("This node is", "These nodes are").replace("this node", "these nodes")


def _said(verdict: Verdict) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Yield the rows that `verdict` adds to, and the nodes it adds. A finding's row stands for its verdict."""
    own = own_node(verdict)
    for finding in verdict.findings:
        yield _found(verdict, finding), finding.nodes or own
    if verdict.status in (Status.PASS, Status.SKIP, Status.UNKNOWN):
        required = verdict.required and verdict.status is Status.UNKNOWN
        yield (
            Row(verdict.status.value, verdict.id, verdict.title, (), message=verdict.why, required=required),
            own,
        )
    elif not verdict.findings:  # a report of ours has none such; one that was edited must still show it
        yield Row(verdict.status.value, verdict.id, verdict.title, (), message=verdict.why), own


def _found(verdict: Verdict, finding: Finding) -> Row:
    blame = "" if finding.severity is Severity.NOTE else digest.blamed(finding)
    return Row(
        finding.severity.value, verdict.id, verdict.title, (), finding.subject, finding.message, finding.seen,
        finding.remedy, blame, verdict.required, finding.see_also,
    )  # fmt: skip


def blind(found: Sequence[Row]) -> list[tuple[str, bool, tuple[str, ...], tuple[str, ...]]]:
    """Return what could not be looked at, by reason: (why, whether required, ids, nodes), what is required first."""
    groups: dict[tuple[str, bool], tuple[dict[str, None], dict[str, None]]] = {}
    for row in found:
        if row.kind == "unknown":
            ids, nodes = groups.setdefault((row.message, row.required), ({}, {}))
            ids[row.id] = None
            nodes.update(dict.fromkeys(row.nodes))
    kept = [(why, must, tuple(ids), tuple(nodes)) for (why, must), (ids, nodes) in groups.items()]
    return sorted(kept, key=lambda each: (not each[1], -len(each[3]) * len(each[2])))


def device(subject: str) -> tuple[str, ...]:
    """Return the devices that a finding's subject names: ``mlx5_0:1`` is a port of mlx5_0."""
    return tuple(part.partition(":")[0] for part in re.split(r",|\s+and\s+|\s+", subject) if part)


_OWN = ("RANK", "_PROCID", "_LOCALID", "_NODEID", "_TASK_PID", "_NODENAME")


class _Value(Struct, frozen=True):
    """One value of a name and the nodes that have it. `usual`: most nodes have it."""

    text: str
    nodes: str
    number: int
    usual: bool


class _Name(Struct, frozen=True):
    """A version or setting, with its values from the most frequent on. More than one: the nodes differ."""

    name: str
    values: tuple[_Value, ...]
    more: int = 0

    @property
    def differs(self) -> bool:
        """Return whether nodes differ that could be equal; a rank is each process's own."""
        return len(self.values) > 1 and not self.name.endswith(_OWN)


MOST_VALUES = 8
_UNSET = "not set"


def versions(environment: Mapping[str, NodeEnvironment]) -> list[_Name]:
    """Each version by name; what differs first."""
    return _differing({node: _texts(each.versions) for node, each in environment.items()}, "unknown")


def settings(environment: Mapping[str, NodeEnvironment]) -> list[_Name]:
    """Each variable with its value and where that comes from; what differs first. A node may lack it."""
    return _differing(
        {
            node: {s.name: f"{'(not recorded)' if s.value is None else s.value}  [{s.origin}]" for s in each.settings}
            for node, each in environment.items()
        },
        _UNSET,
    )


def _texts(told: Mapping[str, str | None]) -> dict[str, str]:
    return {name: "unknown" if value is None else value for name, value in told.items()}


def _differing(by_node: Mapping[str, Mapping[str, str]], lacking: str) -> list[_Name]:
    names = dict.fromkeys(name for told in by_node.values() for name in told)
    found = [_name(name, {node: told.get(name, lacking) for node, told in by_node.items()}) for name in names]
    return sorted(found, key=lambda each: not each.differs)


def _name(name: str, by_node: Mapping[str, str]) -> _Name:
    nodes = grouped((text, node) for node, text in by_node.items())
    ranked = sorted(nodes.items(), key=lambda pair: -len(pair[1]))
    most = len(ranked[0][1])
    alone = sum(len(who) == most for _, who in ranked) == 1
    values = tuple(
        _Value(text, folded(who), len(who), alone and len(who) == most) for text, who in ranked[:MOST_VALUES]
    )
    return _Name(name, values, len(ranked) - len(values))


MOST_KINDS = 4


class _Choice(Struct, frozen=True):
    """One part of the choice: its name, what was chosen, and why."""

    name: str
    chosen: str
    why: str


class _EqualChoices(Struct, frozen=True):
    """Nodes with equal choices, and what they choose by the rules of NCCL `version`."""

    nodes: str
    version: str
    choices: tuple[_Choice, ...]


def equal_choices(report: Report) -> tuple[list[_EqualChoices], int]:
    """Return the kinds of choice, the most frequent first, and of how many nodes nothing is shown."""
    groups = grouped((made, node) for node, made in report.choices.items())
    ranked = sorted(groups.items(), key=lambda each: -len(each[1]))
    left = sum(len(nodes) for _, nodes in ranked[MOST_KINDS:])
    return [
        _EqualChoices(folded(nodes), made.nccl or "", tuple(_rows(made))) for made, nodes in ranked[:MOST_KINDS]
    ], left


def _rows(made: Choices) -> Iterable[_Choice]:
    parts: list[tuple[str, Part[Any], Callable[[Any], str]]] = [
        ("Bootstrap", made.bootstrap, lambda each: f"{each.name} {each.address}"),
        ("Sockets", made.sockets, lambda each: f"{each.name} {each.address}"),
        ("HCAs", made.hcas, _hca),
        ("HCAs left out", made.hcas_left_out, _hca),
        ("GIDs", made.gids, lambda each: f"{each.port} index {each.index} ({each.type or '?'} {each.address})"),
        ("GPUDirect", made.gpudirect, lambda each: f"{each.gpu} {'/'.join(each.nics)}: {digest.yes(each.receives)}"),
        ("GPU pairs", made.p2p, _peers),
    ]
    for name, part, shown in parts:
        if part.chosen or name in ("Bootstrap", "HCAs", "GPUDirect"):
            yield _row(name, part, shown)
    yield _Choice("NVLS", digest.yes(made.nvls.available), made.nvls.why)


def _row(name: str, part: Part[Any], shown: Callable[[Any], str]) -> _Choice:
    if not part.chosen:
        return _Choice(name, "unknown" if part.chosen is None else "none", part.why)
    reasons = dict.fromkeys(filter(None, (part.why, *(each.why for each in part.chosen))))
    return _Choice(name, ", ".join(map(shown, part.chosen)), "; ".join(list(reasons)[:4]))


def _hca(port: HcaChoice) -> str:
    return port.port if port.rate_gbps is None else f"{port.port} ({port.rate_gbps:g} Gb/s)"


def _peers(peers: PeerChoice) -> str:
    return f"{peers.transport or 'unknown'} {first_of(map('-'.join, peers.pairs), 4)}"
