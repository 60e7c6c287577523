"""Tables of what was measured apart from collectives and pairs: copies, groups, training steps, processors, NICs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ncclprobe.model.report import Report
from ncclprobe.model.traffic import AffinityRow, CopyRow, GroupRow, LadderRow, NicBytes, OperationTraffic, StepRow
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import micros, rate
from ncclprobe.report.rails import RailEnd, ends
from ncclprobe.units import plural, size

T = TypeVar("T")
MOST = 200
_LOUD = {"fail": 0, "inconclusive": 1, "unjudged": 2, "pass": 3}


class Table(Struct, frozen=True):
    """A table with its headline. `heads`: of each column the words, and whether it holds numbers; a row's first cell
    is a status where the first head is ``State``. `more`: rows that are in the JSON report alone.
    """

    title: str
    heads: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    more: int = 0


def tables(report: Report) -> list[Table]:
    """Return the tables that have rows."""
    copies = sorted(report.copies, key=lambda row: _LOUD[row.status])
    problems = tuple(dict.fromkeys(problem for row in report.groups for problem in row.problems))[:20]
    found = [
        _table("Copies within a node", _COPIES, copies, _copy),
        _table("Rails", _RAILS, sorted(ends(report.rails), key=lambda end: end.state == "ok"), _rail),
        _table("Groups of a parallel job", _GROUPS, report.groups, _group, problems),
        _table("Steps of training", _STEPS, report.steps, _step),
        _table("Ladder of training: the same step on more and more ranks", _LADDER, report.ladder, _rung),
        _table("Ranks on other processors", _AFFINITY, report.affinity, _affinity),
        _table("NICs that the bytes took", _NIC_TRAFFIC, list(_nics(report.nic_traffic)), _nic),
    ]
    return [each for each in found if each.rows]


def _table(
    title: str, heads: str, rows: Sequence[T], shown: Callable[[T], Iterable[str]], notes: tuple[str, ...] = ()
) -> Table:
    named = tuple((head.strip(" >"), head.startswith(">")) for head in heads.split("|"))
    return Table(title, named, tuple(tuple(shown(row)) for row in rows[:MOST]), notes, max(0, len(rows) - MOST))


_COPIES = "State|Node|Copy|Device|NUMA|Concurrent|>Size|>GB/s|>Threshold|>Range"
_WAYS = {
    "h2d": "host to device",
    "d2h": "device to host",
    "bidirectional": "both ways",
    "d2d": "device to device",
    "host": "host",
}


_RAILS = "State|Rail|>Sends GB/s|>Receives GB/s|>Latency µs|>Partners|Chosen as NCCL would|What failed"


def _rail(end: RailEnd) -> Iterator[str]:
    yield "pass" if end.state == "ok" else "fail"
    yield end.name
    yield from ("–" if each is None else rate(each) for each in (end.rate(end.out), end.rate(end.into)))
    yield "–" if end.latency_us is None else micros(end.latency_us)
    yield str(len({way.dst for way in end.out}))
    yield end.choices
    yield "; ".join(dict.fromkeys(way.why for way in end.bad))[:300]


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
