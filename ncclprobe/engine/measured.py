"""What a measuring run adds to a report: its rows and notes, and which machine findings count in its exit code.

In a measuring run a machine check that could not look is advisory, and what is found of devices that the run did not
use is a NOTE; all else that is found of the machines counts as what was measured does. `accept` requires what the
doctor requires (docs/reference/exit-codes.md).

Slow results are related to findings on machines that may explain them; no finding is hidden.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ncclprobe.engine.collect import Facts, collect
from ncclprobe.engine.judge import shares, worst
from ncclprobe.errors import ParseError
from ncclprobe.expect import copies, expected, expected_of_run
from ncclprobe.expect.bands import judge_rows
from ncclprobe.expect.system import Shape
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.run.samples import (
    Affinities,
    Asked,
    Copies,
    Expected,
    ExpectedCopies,
    FirstCalls,
    Groups,
    Ladder,
    Localised,
    MeasuredOn,
    MeasuredPairs,
    NicTraffic,
    Notes,
    Participants,
    Rows,
    Skipped,
    Steps,
)
from ncclprobe.host import Host
from ncclprobe.localise.of_run import localise
from ncclprobe.localise.pairs.peers import FEWEST
from ncclprobe.model.findings import Finding, Related, Severity, Status, Verdict
from ncclprobe.model.measurement import Band, Judged, Measurement, SkippedRow
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.report import LaunchRow, NodeEnvironment, NodeRow
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import replace
from ncclprobe.nccl.selection import choose
from ncclprobe.training.ladder import climbed
from ncclprobe.units import plural, size

T = TypeVar("T")
_USED_SHARE = 0.1
"""A NIC that carried this share of its node's bytes was used."""


def run_facts(log: Host) -> Facts:
    """The facts that the samples of a run make."""
    return collect(log, discover("ncclprobe.facts", Collector, {"run"}))


def concluded(run: Facts) -> Facts:
    """`run` with what follows from its samples and its expectations: who is slow. Made anew for each report."""
    measured = run.get(MeasuredPairs)
    if not isinstance(measured, MeasuredPairs):
        return {**run, Localised: measured or Absent("no pair was measured")}
    if not measured.rows and not measured.lost and not measured.complete:
        return {**run, Localised: Absent("the run ended before all pairs were measured", "NotCaptured")}
    try:
        return {**run, Localised: Localised(localise(measured, _expected_pair_GBps(run, measured)))}
    except ParseError as error:
        return {**run, Localised: Absent(str(error), "ParseError")}


def _expected_pair_GBps(run: Facts, measured: MeasuredPairs) -> float | None:
    """The least that is expected of a pair at the size that was measured."""
    expected = run.get(Expected)
    if not isinstance(expected, Expected) or not measured.rows:
        return None
    return expected.least_pair_GBps(measured.rows[0].nbytes)


def expecting(run: Facts, bands: Sequence[Band], path: str) -> Facts:
    """`run` judged by `bands` of the file `path`, and not by what it expected of itself."""
    asked = run.get(Asked)
    by_file: Facts = {Asked: replace(asked, expect=path, baseline=None)} if isinstance(asked, Asked) else {}
    return {**run, **by_file, Expected: Expected(tuple(bands))}


def rejudged(run: Facts, snapshots: Sequence[Snapshot]) -> Facts:
    """`run` judged by what its nodes are now known to reach; of gloo, for which links were measured, as it was."""
    asked, who = run.get(Asked), run.get(Participants)
    if not isinstance(asked, Asked) or not isinstance(who, Participants) or who.backend != "nccl":
        return run
    shape = Shape(tuple(Counter(who.hosts).values()))
    nodes = {s.node: expected_of_run.describe(s.facts) for s in snapshots if s.node in who.hosts}
    missing = {
        host: expected_of_run.Described(None, why="there is no capture of it")
        for host in who.hosts
        if host not in nodes
    }
    found = expected_of_run.expecting(asked.ops, asked.sizes, asked.itemsize, shape, {**nodes, **missing})
    told = run.get(Notes)
    texts = told.texts if isinstance(told, Notes) else ()
    by_slot = ExpectedCopies({s.node: copies.by_kind(s.facts) for s in snapshots if s.node in who.hosts})
    again = Notes((*texts, f"judged again: {found.note}"))
    bands = (*found.bands, *(found.node_bands if "ladder" in asked.what else ()))
    measured = run.get(MeasuredPairs)
    if isinstance(measured, MeasuredPairs) and measured.rows:
        bands = (*bands, *expected_of_run.expecting_pairs(measured.rows[0].nbytes, shape, {**nodes, **missing}).bands)
    return {**run, Expected: Expected(bands), ExpectedCopies: by_slot, Notes: again}


def job_of(run: Facts, job: Job) -> Job:
    """`job` whose ranks have met, with the backend that was measured; a node that is to be accepted is judged for the
    one that was meant.
    """
    who, asked = run.get(Participants), run.get(Asked)
    if not isinstance(who, Participants):
        return job
    meant = asked.backend or "nccl" if isinstance(asked, Asked) and asked.accepts else who.backend
    return replace(job, backend="nccl" if meant == "nccl" else "gloo", met=True)


def weighed(
    verdicts: Sequence[Verdict], checks: Sequence[Check], unused: Mapping[str, frozenset[str]], run: Facts
) -> tuple[Verdict, ...]:
    """`verdicts` as they count in this run: those on machines are not required, and of `unused` devices (by node) there
    are only NOTEs. Where the machines are to be accepted too, they stay as they are.
    """
    if _accepts(run):
        return tuple(verdicts)
    of_run = {check.id for check in checks if check.of_run}
    return tuple(v if v.id in of_run else replace(_of_used(v, unused), required=False) for v in verdicts)


def _accepts(run: Facts) -> bool:
    asked = run.get(Asked)
    return isinstance(asked, Asked) and asked.accepts


def _of_used(verdict: Verdict, unused: Mapping[str, frozenset[str]]) -> Verdict:
    """Return `verdict` with a NOTE for each finding about devices alone that the run did not use."""
    findings = tuple(replace(f, severity=Severity.NOTE) if is_idle(verdict, f, unused) else f for f in verdict.findings)
    return verdict if findings == verdict.findings else replace(verdict, status=worst(findings), findings=findings)


def is_idle(verdict: Verdict, finding: Finding, unused: Mapping[str, frozenset[str]]) -> bool:
    """Whether a finding is only about devices that the run did not use, on each node that it is about."""
    nodes = [verdict.node] if verdict.node is not None else finding.nodes
    return bool(nodes) and all(about_only(finding, unused.get(node, frozenset())) for node in nodes)


def counted(verdicts: Sequence[Verdict], checks: Sequence[Check], run: Facts) -> tuple[Verdict, ...]:
    """The verdicts that make the status of a run: its own, and all that was found of the machines.

    A machine on which nothing is wrong makes no run pass that measured nothing, unless it is to be accepted too.
    """
    of_run = {check.id for check in checks if check.of_run}
    found = (Status.FAIL, Status.WARN)
    return tuple(v for v in verdicts if v.id in of_run or v.status in found or _accepts(run))


def about_only(finding: Finding, devices: frozenset[str]) -> bool:
    """Whether all devices that the finding's subject names, at least one, are among `devices`."""
    named = [word.rstrip(":,") for word in re.split(r"[\s,]+", finding.subject)]
    hits = [word for word in named if word in devices or word.partition(":")[0] in devices]
    others = [word for word in named if word not in hits and re.match(r"(GPU|mlx|eth|en|ib|bond)", word)]
    return bool(hits) and not others


def unused_devices(snapshot: Snapshot, run: Facts) -> frozenset[str]:
    """GPUs, ports and interfaces of a node that the run did not use; empty where that is not known."""
    who = run.get(Participants)
    if not isinstance(who, Participants) or snapshot.node not in who.hosts:
        return frozenset()
    gpus = _all(snapshot, Gpus, lambda fact: [f"GPU{gpu.index}" for gpu in fact.all])
    nics = _all(snapshot, Fabric, lambda fact: [port.name for port in fact.ports])
    interfaces = _all(snapshot, Interfaces, lambda fact: [each.name for each in fact.all])
    return frozenset({*gpus, *nics, *interfaces} - _used(snapshot, who, run))


def _all(snapshot: Snapshot, kind: type[T], names: Any) -> list[str]:
    fact = snapshot.facts.get(kind)
    return list(names(fact)) if isinstance(fact, kind) else []


def _used(snapshot: Snapshot, who: Participants, run: Facts) -> set[str]:
    gpus = snapshot.facts.get(Gpus)
    names = gpus.names if isinstance(gpus, Gpus) else {}
    mine = [gpu for gpu, host in zip(who.gpus, who.hosts, strict=False) if host == snapshot.node]
    used = {names.get(gpu, gpu) if isinstance(gpu, str) else f"GPU{gpu}" for gpu in mine}
    if who.nodes < 2:
        return used
    traffic = run.get(NicTraffic)
    carried = [nic for row in traffic.rows for nic in row.nics] if isinstance(traffic, NicTraffic) else []
    seen = {
        nic.nic for nic in carried if nic.node == snapshot.node and (nic.expected or (nic.share or 0) >= _USED_SHARE)
    }
    if seen:
        return used | seen
    if who.backend == "nccl":
        made = choose(snapshot)
        chosen = [each.port for each in made.hcas.chosen or ()] or [each.name for each in made.sockets.chosen or ()]
        if chosen:
            return used | set(chosen)
    fabric, interfaces = snapshot.facts.get(Fabric), snapshot.facts.get(Interfaces)
    ports = {port.name for port in fabric.ports} if isinstance(fabric, Fabric) else set()
    return used | ports | ({i.name for i in interfaces.all} if isinstance(interfaces, Interfaces) else set())


def launch_row(run: Facts) -> LaunchRow:
    """How the ranks were started."""
    who = run.get(Participants)
    return LaunchRow(who.kind, who.nnodes, who.ranks) if isinstance(who, Participants) else LaunchRow()


def node_rows(run: Facts, verdicts: Sequence[Verdict]) -> tuple[NodeRow, ...]:
    """A row per host of the ranks; a finding on the run that names nodes is these nodes' alone."""
    who = run.get(Participants)
    hosts = dict.fromkeys(who.hosts) if isinstance(who, Participants) else {}
    each = shares(list(hosts), verdicts, "fail")
    return tuple(NodeRow(host, rank, host, each[host].status) for rank, host in enumerate(hosts))


def environments(run: Facts, looked: dict[str, NodeEnvironment]) -> dict[str, NodeEnvironment]:
    """Versions and settings by node; on rank 0's those of the libraries that were measured come first."""
    who = run.get(Participants)
    if not isinstance(who, Participants) or not who.hosts:
        return looked
    first = who.hosts[0]
    seen = looked.get(first, NodeEnvironment())
    measured = {name: value for name, value in who.versions.items() if value is not None or name not in seen.versions}
    return {
        first: NodeEnvironment({**seen.versions, **measured}, seen.settings),
        **{k: v for k, v in looked.items() if k != first},
    }


def rows_of(run: Facts) -> tuple[Measurement, ...]:
    """The rows of a run with their verdicts; none where it measured none."""
    rows, expected = run.get(Rows), run.get(Expected)
    if not isinstance(rows, Rows):
        return ()
    return judge_rows(rows, expected if isinstance(expected, Expected) else Expected())


def copies_of(run: Facts) -> tuple[CopyRow, ...]:
    """The copies of a run with their verdicts; none where it measured none."""
    expected = run.get(ExpectedCopies)
    nodes = expected.nodes if isinstance(expected, ExpectedCopies) else {}
    return tuple(copies.judged(row, nodes.get(row.node, {})) for row in _rows(run, Copies))


def _bands(run: Facts) -> tuple[Band, ...]:
    expected = run.get(Expected)
    return expected.bands if isinstance(expected, Expected) else ()


def sections(run: Facts) -> dict[str, Any]:
    """The report's fields that hold what was measured."""
    first, printed, found = run.get(FirstCalls), run.get(MeasuredOn), run.get(Localised)
    rows = rows_of(run)
    return {
        "measurements": rows,
        "judged": judged(run),
        "published": expected.published_behind(rows),
        "pairs": _rows(run, MeasuredPairs),
        "localisation": found.found if isinstance(found, Localised) else None,
        "nic_traffic": _rows(run, NicTraffic),
        "copies": copies_of(run),
        "affinity": _rows(run, Affinities),
        "groups": _rows(run, Groups),
        "steps": _rows(run, Steps),
        "ladder": climbed(_rows(run, Ladder), _bands(run)),
        "skipped_rows": _rows(run, Skipped),
        "first_call": first.cost if isinstance(first, FirstCalls) else None,
        "fingerprint": printed.fingerprint if isinstance(printed, MeasuredOn) else None,
    }


def judged(run: Facts) -> Judged | None:
    """How many of the numbers of a run have a verdict; None where it measured nothing.

    Pairs are compared with each other: of fewer than three nodes either of two may be the slow one, so that only an
    expectation judges them. Nothing judges groups and steps.
    """
    pairs, found, expected = _rows(run, MeasuredPairs), run.get(Localised), run.get(Expected)
    least = isinstance(expected, Expected) and pairs and expected.least_pair_GBps(pairs[0].nbytes)
    compared = bool(least) or (isinstance(found, Localised) and found.found.nodes >= FEWEST)
    rated = [*(row.status for row in rows_of(run)), *(row.status for row in copies_of(run))]
    rated += [row.status for row in climbed(_rows(run, Ladder), _bands(run)) if row.busbw_GBps is not None]
    shown = len(_rows(run, Groups)) + len(_rows(run, Steps))
    sure = len(pairs) * compared + len(_rows(run, Affinities))
    of = len(rated) + len(pairs) + shown + len(_rows(run, Affinities))
    return Judged(sum(state != "unjudged" for state in rated) + sure, of) if of else None


def in_words(run: Facts) -> str:
    """How much was measured, and of the rows how many have a verdict: ``13 rows, 9 judged · 56 pairs``."""
    rows, pairs, copies = rows_of(run), _rows(run, MeasuredPairs), _rows(run, Copies)
    judged = sum(row.status != "unjudged" for row in rows)
    ways = {(row.src, row.dst) for row in pairs}
    parts = [f"{_count(rows)}, {judged or 'none'} judged"] if rows else []
    parts += [plural(len({frozenset(way) for way in ways}), "pair")] if ways else []
    parts += ["1 copy" if len(copies) == 1 else f"{len(copies)} copies"] if copies else []
    return " · ".join(parts)


def _rows(run: Facts, kind: type[Any]) -> tuple[Any, ...]:
    fact = run.get(kind)
    return tuple(fact.rows) if isinstance(fact, kind) else ()


def notes(run: Facts) -> Iterator[str]:
    """What the reader must know of the run: how it was understood, what was found out, what was not reached."""
    asked, told, rows = run.get(Asked), run.get(Notes), rows_of(run)
    if isinstance(asked, Asked):
        yield from asked.notes
    if isinstance(told, Notes):
        yield from told.texts
    yield from _left_out(_rows(run, Skipped))
    yield from imprecise(rows, accepts=isinstance(asked, Asked) and asked.accepts)
    if isinstance(asked, Asked):
        yield from _judged_by(asked, rows)


def _left_out(rows: Sequence[SkippedRow]) -> Iterator[str]:
    """What was not measured, by reason."""
    reasons: dict[str, list[str]] = {}
    for each in rows:
        if each.cause == "small":
            yield f"{each.op} was skipped: {each.why}"
        if each.cause in ("time", "lost", "alone", "unable"):
            reasons.setdefault(each.why, []).append(f"{each.op}{f' {size(each.nbytes)}' if each.nbytes else ''}")
    for why, names in reasons.items():
        yield f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} left out: {why}"


def _judged_by(asked: Asked, rows: Sequence[Measurement]) -> Iterator[str]:
    """How many rows have a verdict, where not all have one."""
    judged = sum(row.status != "unjudged" for row in rows)
    if rows and not judged and not (asked.expect or asked.baseline):
        yield f"{_count(rows)} measured, none judged{_why_none(rows)}"
    elif 0 < judged < len(rows):
        by = asked.expect or asked.baseline or "what is known of this machine"
        yield f"{judged} of {_count(rows)} judged by {by}"


def _why_none(rows: Sequence[Measurement]) -> str:
    known = [row.expectation.known for row in rows if row.expectation]
    if known:
        return f"; the last of them: {known[-1]}" if known[-1] else ""
    return ": nothing is known to judge them by; --expect FILE or --baseline PATH would"


def _count(rows: Sequence[Any]) -> str:
    return f"{len(rows)} row" + "s" * (len(rows) != 1)


def imprecise(rows: Sequence[Measurement], accepts: bool) -> Iterator[str]:
    """Where the precision that was asked for was not reached, and what was."""
    short = [row for row in rows if row.precision_asked and (row.precision or 1.0) > row.precision_asked]
    if short:
        worst = max(short, key=lambda row: row.precision or 1.0)
        reached = "unknown" if worst.precision is None else f"±{100 * worst.precision:.3g} %"
        more = "--level long gives each row more time" if accepts else "give more --budget, or less --precision"
        yield (
            f"±{100 * (worst.precision_asked or 0):.3g} % was asked for, and {len(short)} of {_count(rows)} did not "
            f"reach it in time; the worst is {worst.op} {size(worst.nbytes)}, {reached} after "
            f"{worst.batches} batches of {worst.iters}: {more}"
        )


_MOST = 8
"""Reasons that one symptom names; the others are findings of the report like any."""


def relate(
    verdicts: Sequence[Verdict], checks: Sequence[Check], unused: Mapping[str, frozenset[str]]
) -> tuple[Verdict, ...]:
    """Return `verdicts`, those on the run with what may be their cause.

    A cause is a finding of a check that `slows`, on a node that the symptom names or on any where it names none, and
    not only about devices that the run did not use (`unused`, by node).
    """
    slowing = {check.id for check in checks if check.slows}
    symptoms = {check.id for check in checks if check.of_run} - slowing
    causes = [(v, f) for v in verdicts if v.id in slowing for f in v.findings if _counts(v, f, unused)]
    return tuple(_with_causes(v, causes) if v.id in symptoms and v.findings else v for v in verdicts)


def _counts(verdict: Verdict, finding: Finding, unused: Mapping[str, frozenset[str]]) -> bool:
    return finding.severity is not Severity.NOTE and not is_idle(verdict, finding, unused)


def _with_causes(verdict: Verdict, causes: Sequence[tuple[Verdict, Finding]]) -> Verdict:
    return replace(verdict, findings=tuple(_with_cause(finding, causes) for finding in verdict.findings))


def _with_cause(finding: Finding, causes: Sequence[tuple[Verdict, Finding]]) -> Finding:
    if finding.severity is Severity.NOTE:
        return finding
    here = [(v, f) for v, f in causes if _same_place(finding, v, f)]
    here.sort(key=lambda each: each[1].severity is not Severity.FAIL)  # what stops a job before what costs speed
    named = dict.fromkeys(Related(v.id, f.subject) for v, f in here)
    return replace(finding, related=(*finding.related, *list(named)[:_MOST]))


def _same_place(symptom: Finding, verdict: Verdict, cause: Finding) -> bool:
    """Return whether both are about one node; what names no node is about all."""
    nodes = {verdict.node} if verdict.node is not None else set(cause.nodes)
    return not symptom.nodes or not nodes or not nodes.isdisjoint(symptom.nodes)
