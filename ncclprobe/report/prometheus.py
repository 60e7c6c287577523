"""The report as metrics for node_exporter's textfile collector: gauges with help and unit, without time stamps.

Each file replaces the one before, so obsolete series disappear. Labels are bounded whatever the report holds: a maximum
of rows and checks, and no host names, which the collector adds itself. Names and labels are an interface:
docs/reference/report.md has them all, and the rules in ncclprobe/deploy/prometheus/ are written against them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import chain
from typing import TYPE_CHECKING

from ncclprobe.model.findings import Status
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.units import printable
from ncclprobe.report import digest

if TYPE_CHECKING:
    from prometheus_client import Metric

MOST_SERIES = 2000
"""Rows of a sweep, and pairs of check and status. All operations at thirty sizes in both places are 540."""
_MOST_CHARACTERS = 128
_ROW = ("op", "nbytes", "place")
_PER_S = "bytes_per_second"
_Series = Iterable[tuple[tuple[str, ...], float]]


class _Collector:
    """The collector that prometheus-client expects."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> "Iterable[Metric]":
        """Yield the report's metrics, each labelled with its command: two files of one folder must not share a
        series.
        """
        report, command = self._report, _command(self._report.command)
        for metric in chain(_run(report), _rows(report.measurements), _copies(report.copies)):
            metric.samples = [each._replace(labels={"command": command, **each.labels}) for each in metric.samples]
            yield metric


def render(report: Report) -> str:
    """Render `report` in Prometheus' text format."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(report))
    return generate_latest(registry).decode()


def recognises(text: str) -> bool:
    """Return whether `text` is a complete output of `render`: no line belongs to another's metric."""
    return all(line.startswith(("# HELP ncclprobe_", "# TYPE ncclprobe_", "ncclprobe_")) for line in text.splitlines())


def _gauge(name: str, about: str, series: _Series, labels: Sequence[str] = (), unit: str = "") -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"ncclprobe_{name}", about, labels=labels, unit=unit)
    shown: dict[tuple[str, ...], float] = {}  # what differs beyond the cut is one series: two of a name spoil the file
    for values, number in series:
        shown.setdefault(tuple(printable(value)[:_MOST_CHARACTERS] for value in values), number)
    for labelled, number in shown.items():
        family.add_metric(labelled, number)
    return family


def _run(report: Report) -> "Iterator[Metric]":
    who = (report.tool.version, digest.launcher(report.launch.kind), report.status.value)
    about = "The last run: who wrote it, how the ranks were started, its verdict. Always 1."
    yield _gauge("run_info", about, [(who, 1)], ("version", "launcher", "status"))
    about = "The transport that NCCL will use, and why, if that was checked. Always 1."
    way = digest.transport(report)
    yield _gauge("transport_info", about, [((way,), 1)] if way else [], ("transport",))
    began = [((), began_s)] if (began_s := _began_s(report.started)) is not None else []
    yield _gauge("last_run", "When the last run began, in seconds since 1970.", began, unit="timestamp_seconds")
    yield _gauge("run_duration", "How long the last run took.", [((), report.duration_s)], unit="seconds")
    yield _gauge("exit_code", "Exit code of the last run: 0 go, 3 inconclusive, 4 stop.", [((), report.exit_code)])
    nodes = Counter(node.status.value for node in report.nodes) + Counter({"missing": len(report.missing_nodes)})
    states = (*(status.value for status in Status), "missing")
    about = "Nodes of the last run by status; missing: they did not report."
    yield _gauge("nodes", about, [((state,), nodes[state]) for state in states], ("status",))
    judged = [verdict for verdict in report.checks if verdict.status is not Status.SKIP]  # on one node most skip
    verdicts = sorted(Counter((verdict.id, verdict.status.value) for verdict in judged).items())
    about = "Verdicts of the last run by check and status, without those that did not apply."
    yield _gauge("verdicts", about, verdicts[:MOST_SERIES], ("check", "status"))


def _rows(rows: Iterable[Measurement]) -> "Iterator[Metric]":
    """Yield metrics of the slowest of the rows with equal labels."""
    seen: dict[tuple[str, ...], Measurement] = {}
    for row in sorted(rows, key=lambda row: row.busbw_GBps):
        seen.setdefault((row.op, str(row.nbytes), row.place), row)
    kept = sorted(seen.items(), key=lambda item: (item[0][0], item[1].nbytes, item[0][2]))[:MOST_SERIES]
    speeds = [(key, row.busbw_GBps * 1e9) for key, row in kept]
    yield _gauge("busbw", "Bus bandwidth as nccl-tests counts it, from the median time.", speeds, _ROW, _PER_S)
    times = [(key, row.time_us.typical / 1e6) for key, row in kept]
    yield _gauge("latency", "Time of one call: the median over batches, otherwise the mean.", times, _ROW, "seconds")
    judged = [((*key, e.basis), e) for key, row in kept if (e := row.expectation) and e.unit == "GB/s"]
    by = (*_ROW, "basis")
    expected = [(key, e.value * 1e9) for key, e in judged]
    yield _gauge("expected_busbw", "Bus bandwidth that a healthy machine reaches.", expected, by, _PER_S)
    least = [(key, e.threshold * 1e9) for key, e in judged if e.worst == "fail"]
    yield _gauge("threshold_busbw", "Bus bandwidth below which a row fails.", least, by, _PER_S)
    verdicts = Counter((row.status,) for _, row in kept)
    yield _gauge("rows", "Measured rows of the last run by verdict.", sorted(verdicts.items()), ("status",))


def _copies(rows: Iterable[CopyRow]) -> "Iterator[Metric]":
    """Yield metrics of the slowest copy of each kind: devices and nodes are many."""
    slowest: dict[tuple[str, ...], float] = {}
    for row in rows:
        key = (row.kind, "yes" if row.concurrent else "no")
        slowest[key] = min(row.GBps * 1e9, slowest.get(key, float("inf")))
    yield _gauge(
        "copy", "Slowest copy of its kind within a node.", sorted(slowest.items()), ("kind", "concurrent"), _PER_S
    )


def _command(line: str) -> str:
    """Return ``doctor`` for ``ncclprobe doctor --local``; empty if the line names no command."""
    word = next(iter(line.split()[1:2]), "")
    return word if word.isascii() and word.isalpha() and len(word) <= _MOST_CHARACTERS else ""


def _began_s(text: str) -> float | None:
    """Return seconds since 1970; None if the text is not a time."""
    try:
        began = datetime.fromisoformat(text)
        return (began if began.tzinfo else began.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
