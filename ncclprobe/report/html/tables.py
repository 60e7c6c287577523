"""Tables of what was measured apart from collectives and pairs: copies, groups, training steps, processors, NICs."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.hostlist import expand, fold
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import AffinityRow, CopyRow, GroupRow, LadderRow, NicBytes, OperationTraffic, StepRow
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import micros, rate
from ncclprobe.report.rails import RailEnd, ends
from ncclprobe.units import plural, size

T = TypeVar("T")
MOST = 200
_LOUD = {"fail": 0, "unknown": 1, "warn": 2, "inconclusive": 3, "unjudged": 4, "pass": 5}


class Table(Struct, frozen=True):
    """A table with its headline. `heads`: of each column the words, and whether it holds numbers; a row's first cell
    is a status where the first head is ``State``. `more`: rows that are in the JSON report alone. `muted`: what holds
    for all rows.
    """

    title: str
    heads: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    more: int = 0
    muted: str = ""


def tables(report: Report) -> list[Table]:
    """Return the tables that have rows."""
    copies = sorted(report.copies, key=lambda row: _LOUD[row.status])
    problems = tuple(dict.fromkeys(problem for row in report.groups for problem in row.problems))[:20]
    found = [
        _table("Copies within a node", _COPIES, copies, _copy),
        _rails(report),
        _table("Groups of a parallel job", _GROUPS, report.groups, _group, problems),
        _table("Steps of training", _STEPS, report.steps, _step),
        _table("Ladder of training: the same step on more and more ranks", _LADDER, report.ladder, _rung),
        _table("Ranks on other processors", _AFFINITY, report.affinity, _affinity),
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
) -> Table:
    named = tuple((head.strip(" >"), head.startswith(">")) for head in heads.split("|"))
    return Table(title, named, tuple(tuple(shown(row)) for row in rows[:MOST]), notes, max(0, len(rows) - MOST), muted)


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


def _rails(report: Report) -> Table:
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
_RUNGS = {"rank": "one rank", "pair": "two ranks", "node": "one node", "job": "all nodes"}


def _rung(row: LadderRow) -> Iterator[str]:
    yield from (row.status, _RUNGS[row.rung], str(row.ranks), str(row.groups), micros(row.step_us))
    yield "–" if row.speedup is None else f"{row.speedup:.2f} ×"
    yield "–" if row.efficiency is None else f"{row.efficiency:.0%}"
    yield f"{row.interval[0]:.0%} – {row.interval[1]:.0%}" if row.interval and row.rung != "rank" else "–"
    yield from (rate(row.busbw_GBps), rate(row.expectation.value if row.expectation else None))


_AFFINITY = ">Rank|Node|Processors|Better|>As it is|>Better|>Ratio|What to do"


def _affinity(row: AffinityRow) -> Iterator[str]:
    within = f" ({row.interval[0]:.2f} – {row.interval[1]:.2f})" if row.interval else ""
    yield from (str(row.rank), row.node, row.cpus, row.better_cpus, micros(row.as_is_us), micros(row.better_us))
    yield from (f"{row.ratio:.2f}{within}", row.words)


_NIC_TRAFFIC = "Operation|Node|NIC|Expected|>Sent|>Received|>Share|Remark"


def _nics(traffic: Iterable[OperationTraffic]) -> Iterator[tuple[OperationTraffic, NicBytes]]:
    for row in traffic:
        yield from ((row, nic) for nic in row.nics)


def _nic(of: tuple[OperationTraffic, NicBytes]) -> Iterator[str]:
    row, nic = of
    expected = {True: "yes", False: "no", None: "not known"}[nic.expected]
    stray = "carried bytes meant for another NIC" if f"{nic.node} {nic.nic}" in row.stray else ""
    yield from (f"{row.op}, {size(row.nbytes)}", nic.node, f"{nic.nic} ({nic.kind})", expected)
    yield from ("–" if moved is None else size(moved) for moved in (nic.sent, nic.received))
    yield from ("–" if nic.share is None else f"{nic.share:.0%}", stray or nic.why)


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
