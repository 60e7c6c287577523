"""Extract from a report the data about each of its nodes: findings, and numbers that belong to one node.

A collective of several nodes is as slow as the slowest, and is no evidence about any single one. Between nodes a number
is the median over partners, so that a faulty partner does not make another node look faulty.
"""

import contextlib
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median

from ncclprobe.fleet.drift import PARTNERS
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import TREND, Finding, Severity, Status, Verdict, Weight, nodes_of, weight
from ncclprobe.model.fleet import PAIRS, RAILS, Fault, NodeReport, Number, Reading
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import NodeEnvironment, Report, looked_at, placed, when
from ncclprobe.model.units import printable, size
from ncclprobe.model.values import replace
from ncclprobe.redact.pseudonyms import PSEUDONYM

_MACHINE = ("driver", "NIC firmware", "kernel", "distribution", "cuda")
"""Versions of a node that may cause a change; torch, NCCL and settings make another series."""
_SIGMAS = 1.96
"""Standard deviations from the middle of a 95 % interval to its end."""
_MAD_TO_SIGMA = 1.4826
_SUBJECT, _MESSAGE, _HOW = 100, 200, 500


def told(report: Report, source: str) -> list[NodeReport]:
    """Return the data about each node in `report`, from the file `source`. Raises UsageError if it has none."""
    time_s = placed(report, source)
    names = [node.name for node in report.nodes]
    if not names or not all(0 < len(name) <= bounds.NAME_CHARACTERS for name in names):
        raise UsageError(f"{source}: names no node")
    if len(set(names)) < len(names):
        raise UsageError(f"{source}: names a node twice, so ncclprobe did not write it")
    if report.status is Status.UNKNOWN and any("ended by SIG" in verdict.why for verdict in report.checks):
        raise UsageError(f"{source}: a signal ended its run, so it proves nothing about its nodes")
    faults: dict[str, list[Fault]] = {name: [] for name in names}
    looked: dict[str, set[str]] = {name: set() for name in names}
    known = [verdict for verdict in report.checks if not verdict.id.startswith(TREND)]  # that the store says itself
    for name, fault in (each for verdict in known for each in _faults(verdict, names)):
        if name in faults:
            faults[name].append(fault)
    for check, name in looked_at(report):
        if name in looked and not check.startswith(TREND):
            looked[name].add(check)
    numbers: dict[str, dict[Number, Reading]] = {name: {} for name in names}
    for name, number, reading in _numbers(report):
        fits = name in numbers and len(numbers[name]) < bounds.FLEET_NUMBERS
        number = Number(_clean(number.part), _clean(number.name), number.unit, _clean(number.how, _HOW))
        if fits and bounds.LEAST_GBPS <= reading.value <= bounds.MOST_GBPS:
            noise = min(max(reading.noise, 0.0), 1.0)
            numbers[name][number] = replace(reading, time_s=time_s, noise=noise)
    return [
        NodeReport(
            node.name, time_s, tuple(faults[node.name][: bounds.FLEET_FAULTS]), tuple(sorted(looked[node.name])),
            node.status is Status.UNKNOWN, numbers[node.name], _machine(report, node.name),
            *_counters(report.environment.get(node.name, NodeEnvironment())),
        )
        for node in report.nodes
    ]  # fmt: skip


def _faults(verdict: Verdict, names: Sequence[str]) -> Iterator[tuple[str, Fault]]:
    """Yield (node, fault). A fault of a run of several nodes belongs to none of them."""
    for finding in verdict.findings:
        if finding.severity is Severity.NOTE:
            continue
        about = nodes_of(verdict, finding) or (names if len(names) == 1 else ())
        fault = Fault(
            _clean(verdict.id), _clean(finding.subject), finding.severity, finding.blame, _weight(finding),
            _clean(finding.message, _MESSAGE),
        )  # fmt: skip
        yield from ((name, fault) for name in about)


def _weight(finding: Finding) -> Weight:
    """Return what a finding makes of a node over time: a settled hardware warning is a state to watch."""
    settled = finding.action != "retest" and finding.confidence.level != "low"
    warned = finding.severity is Severity.WARN and settled and finding.blame in ("node", "link")
    return weight(finding) or ("unsure" if warned else "")


def _clean(text: str, most: int = _SUBJECT) -> str:
    """Shorten and clean a text of a report for the store: no row of ours can be forged with it."""
    return printable(text[:most])


def _machine(report: Report, node: str) -> dict[str, str]:
    versions = report.environment[node].versions if node in report.environment else {}
    return {name: _clean(version, _MESSAGE) for name in _MACHINE if (version := versions.get(name))}


def _counters(seen: NodeEnvironment) -> tuple[str, dict[str, int], str]:
    """Return the boot's id, and the counters read in it."""
    first = dict(islice(seen.counters.items(), bounds.FLEET_NUMBERS))
    counts = {_clean(name): count for name, count in first.items() if 0 <= count <= bounds.BYTES}
    return _clean(seen.boot), counts, _clean(seen.gpus)


def refuse(nodes: Sequence[NodeReport], source: str, now_s: float) -> None:
    """Refuse reports whose clock was ahead or reset, and nodes without names. Raises UsageError."""
    if (begun := nodes[0].time_s) > now_s + bounds.FLEET_AHEAD_S:
        raise UsageError(f"{source}: began at {when(begun)} UTC, in the future; set that machine's clock")
    if begun < bounds.FLEET_SINCE_S:
        raise UsageError(f"{source}: began before the year 2000; set that machine's clock")
    if all(re.fullmatch(PSEUDONYM, node.node) for node in nodes):
        raise UsageError(f"{source}: its names are pseudonyms; add the report that is not redacted")


def by() -> str:
    """Return who adds: ``user@host``."""
    user = f"uid {os.geteuid()}"
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    return f"{user}@{os.uname().nodename}"


_Found = tuple[str, Number, Reading]


def _numbers(report: Report) -> Iterator[_Found]:
    """Yield each number with its node, its value and its noise as a share; its time is the report's."""
    yield from _collectives(report)
    yield from _copies(report)
    yield from _rates_between_nodes(report)


def _conditions(report: Report, *words: str, library: bool = True) -> str:
    """Return the conditions of a measurement: `words`, the type of machine, and the settings of a `library`."""
    known = report.fingerprint
    machine = [known.machine[name] for name in ("product", "gpu") if name in known.machine] if known else []
    software = known.software.items() if known and library else ()
    used = [f"{name} {value}" for name, value in software if name != "driver"]
    return ", ".join(filter(None, (*words, *machine, *used)))


def _collectives(report: Report) -> Iterator[_Found]:
    """Yield the largest size of each operation within one node: small ones are latency, and scatter more."""
    largest: dict[tuple[str, ...], Measurement] = {}
    for row in report.measurements if len(report.nodes) == 1 else ():
        if row.nodes == 1 and row.status != "inconclusive" and not row.wrong:
            key = (row.op, row.redop or "", row.dtype, row.mode, row.backend)
            largest[key] = max(largest.get(key, row), row, key=lambda each: (each.nbytes, each.place == "out"))
    for row in largest.values():
        way = f"{row.ranks} ranks, {row.dtype} {row.redop or ''}".rstrip()
        how = _conditions(report, way, f"{row.place} of place" if row.place == "out" else "in place", row.mode,
                   f"{row.library.name} {row.library.version}")  # fmt: skip
        number = Number("", f"{row.op} {size(row.nbytes)}", "GB/s", how)
        yield report.nodes[0].name, number, Reading(0.0, row.busbw_GBps, (row.precision or 0.0) / _SIGMAS)


def _copies(report: Report) -> Iterator[_Found]:
    for row in report.copies:
        if row.status != "inconclusive" and row.GBps > 0:
            where = [f"memory of node {row.numa}"] if row.numa is not None else []
            how = _conditions(report, size(row.nbytes), *where, "all GPUs at once" * row.concurrent, library=False)
            noise = (row.max_GBps - row.min_GBps) / row.GBps / 4 / max(row.samples, 1) ** 0.5
            peer = f"-{row.peer}" if row.peer else ""
            yield row.node, Number(f"{row.device}{peer}", row.kind, "GB/s", how), Reading(0.0, row.GBps, noise)


def _rates_between_nodes(report: Report) -> Iterator[_Found]:
    """Yield what each rail, or node, sent to and received from the others: the median over its partners.

    With one or two partners it is another number, which names them: a plan for idle nodes measures this one.
    """
    ends: dict[tuple[str, str, str], dict[str, list[float]]] = {}

    def add(kind: str, one: str, other: str, rate: float, way: str) -> None:
        ends.setdefault((one, f"{kind} {way}", kind), {}).setdefault(other, []).append(rate)

    for pair in report.pairs:
        if not (pair.both or pair.inside or pair.step) and pair.GBps > 0:
            add(f"{PAIRS} {size(pair.nbytes)}", pair.src_end, pair.dst_end, pair.GBps, "out")
            add(f"{PAIRS} {size(pair.nbytes)}", pair.dst_end, pair.src_end, pair.GBps, "in")
    for rail in report.rails:
        if rail.state == "ok" and rail.GBps:
            add(RAILS, rail.src_end, rail.dst_end, rail.GBps, "out")
            add(RAILS, rail.dst_end, rail.src_end, rail.GBps, "in")
    for (end, name, kind), partners in ends.items():
        others = tuple(sorted({other.partition(" ")[0] for other in partners}))
        few = len(others) < PARTNERS
        node, _, part = end.partition(" ")  # n3 rail 1 (mlx5_1)
        rates = [median(each) for each in partners.values()]
        value = median(rates)
        noise = _MAD_TO_SIGMA * median(abs(rate - value) for rate in rates) / value / len(rates) ** 0.5
        how = _conditions(report, library=kind != RAILS)
        name = f"{name} with {('one', 'two')[len(others) - 1]} more" if few else name
        yield node, Number(part, name, "GB/s", how), Reading(0.0, value, noise, partners=others if few else ())
