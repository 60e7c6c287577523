"""What a measuring run adds to a report: its rows and notes, and which machine findings count in its exit code.

In a measuring run a machine check that could not look is advisory, and a finding about devices that the run did not use
is a NOTE. All other findings on machines count as the measured ones do. `accept` requires what the doctor requires
(docs/reference/exit-codes.md).

Slow results are related to findings on machines that may explain them; no finding is hidden.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ncclprobe.engine import doctor, inventory
from ncclprobe.engine.collect import Facts, collect
from ncclprobe.engine.diagnose import JudgedNodes, Topic, unchanged
from ncclprobe.engine.judge import conclude, shares, worst
from ncclprobe.expect import copies, expected
from ncclprobe.expect.bands import judge_rows
from ncclprobe.expect.system import Shape
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.run.samples import (
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
    RunRequest,
    Skipped,
    Steps,
)
from ncclprobe.host import Host
from ncclprobe.localise.pairs.intra_node import FEWEST
from ncclprobe.localise.slow_ranks import localise
from ncclprobe.model.errors import ParseError
from ncclprobe.model.findings import Finding, Related, Severity, Status, Verdict
from ncclprobe.model.measurement import Band, Judged, Measurement, SkippedRow
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.report import LaunchRow, NodeEnvironment, NodeRow
from ncclprobe.model.snapshot import Absent, Job, Snapshot, learned
from ncclprobe.model.traffic import CopyRow, LadderRow
from ncclprobe.model.training import climbed
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import grouped, replace
from ncclprobe.nccl.selection import choose

_USED_SHARE = 0.1
"""A NIC that carried at least this share of its node's bytes was used."""


def run_facts(log: Host) -> Facts:
    """Collect the facts from the samples of a run."""
    return collect(log, discover("ncclprobe.facts", Collector, {"run"}))


def concluded(run: Facts) -> Facts:
    """Add to `run` the slow ranks that follow from its samples and expectations. Computed again for each report."""
    measured = run.get(MeasuredPairs)
    if not isinstance(measured, MeasuredPairs):
        return {**run, Localised: measured or Absent("no pair was measured")}
    if not measured.rows and not measured.lost and not measured.complete:
        return {**run, Localised: Absent("the run ended before all pairs were measured", "NotCaptured")}
    try:
        return {**run, Localised: Localised(localise(measured, _least_of_a_pair(run)))}
    except ParseError as error:
        return {**run, Localised: Absent(str(error), "ParseError")}


def _least_of_a_pair(run: Facts) -> float | None:
    """Return the threshold of a pair at the measured size, in GB/s."""
    pairs, expected = _rows(run, MeasuredPairs), learned(run, Expected)
    return expected.least_pair_GBps(pairs[0].nbytes) if expected and pairs else None


def expecting(run: Facts, bands: Sequence[Band], path: str) -> Facts:
    """Return `run` with the `bands` of the file `path` in place of its own expectations."""
    asked = learned(run, RunRequest)
    by_file: Facts = {RunRequest: replace(asked, expect=path, baseline=None)} if asked else {}
    return {**run, **by_file, Expected: Expected(tuple(bands))}


def rejudged(run: Facts, snapshots: Sequence[Snapshot]) -> Facts:
    """Return `run` with expectations from what is now known about its nodes; unchanged for gloo, whose links were
    measured.
    """
    asked, who, notes = learned(run, RunRequest), learned(run, Participants), learned(run, Notes) or Notes()
    if asked is None or who is None or who.backend != "nccl":
        return run
    shape = Shape(tuple(Counter(who.hosts).values()))
    nodes = {s.node: expected.describe(s.facts) for s in snapshots if s.node in who.hosts}
    unseen = expected.Described(None, why="it has no capture")
    nodes |= {host: unseen for host in who.hosts if host not in nodes}
    found = expected.expecting(asked.ops, asked.sizes, asked.itemsize, shape, nodes)
    by_slot = ExpectedCopies({s.node: copies.by_kind(s.facts) for s in snapshots if s.node in who.hosts})
    again = Notes((*notes.texts, f"judged again: {found.note}"))
    bands = (*found.bands, *(found.node_bands if "ladder" in asked.what else ()))
    if pairs := _rows(run, MeasuredPairs):
        bands = (*bands, *expected.expecting_pairs(pairs[0].nbytes, shape, nodes).bands)
    return {**run, Expected: Expected(bands), ExpectedCopies: by_slot, Notes: again}


def job_of(run: Facts, job: Job) -> Job:
    """Return `job` with joined ranks and the measured backend; a node to accept is judged for the intended backend."""
    who, asked = learned(run, Participants), learned(run, RunRequest)
    if who is None:
        return job
    meant = asked.backend or "nccl" if asked and asked.accepts else who.backend
    return replace(job, backend="nccl" if meant == "nccl" else "gloo", met=True)


def weighed(
    verdicts: Sequence[Verdict], checks: Sequence[Check], unused: Mapping[str, frozenset[str]], run: Facts
) -> tuple[Verdict, ...]:
    """Return `verdicts` as they count in this run.

    Those on machines are not required, and findings on `unused` devices (by node) become NOTEs, including the run's own
    about `unused` GPUs, which another job may use. If the machines are to be accepted too, nothing changes.
    """
    if _accepts(run):
        return tuple(verdicts)
    of_run = {check.id for check in checks if check.of_run}
    gpus = {node: frozenset(each for each in names if each.startswith("GPU")) for node, names in unused.items()}
    return tuple(
        _excuse_unused(v, gpus) if v.id in of_run else replace(_excuse_unused(v, unused), required=False)
        for v in verdicts
    )


def _accepts(run: Facts) -> bool:
    asked = learned(run, RunRequest)
    return bool(asked and asked.accepts)


def _excuse_unused(verdict: Verdict, unused: Mapping[str, frozenset[str]]) -> Verdict:
    """Turn findings that concern only devices unused by the run into NOTEs."""
    findings = tuple(replace(f, severity=Severity.NOTE) if is_idle(verdict, f, unused) else f for f in verdict.findings)
    return verdict if findings == verdict.findings else replace(verdict, status=worst(findings), findings=findings)


def is_idle(verdict: Verdict, finding: Finding, unused: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a finding concerns only devices that the run did not use, on each of its nodes."""
    nodes = [verdict.node] if verdict.node is not None else finding.nodes
    return bool(nodes) and all(concerns_only(finding, unused.get(node, frozenset())) for node in nodes)


def counted(verdicts: Sequence[Verdict], checks: Sequence[Check], run: Facts) -> tuple[Verdict, ...]:
    """Return the verdicts that determine the status of a run: its own, and all findings on the machines.

    A healthy machine does not make a run pass that measured nothing, unless it is to be accepted too.
    """
    of_run = {check.id for check in checks if check.of_run}
    found = (Status.FAIL, Status.WARN)
    return tuple(v for v in verdicts if v.id in of_run or v.status in found or _accepts(run))


def concerns_only(finding: Finding, devices: frozenset[str]) -> bool:
    """Return whether all devices that the finding's subject names, at least one, are among `devices`."""
    named = [word.rstrip(":,") for word in re.split(r"[\s,]+", finding.subject)]
    hits = [word for word in named if word in devices or word.partition(":")[0] in devices]
    others = [word for word in named if word not in hits and re.match(r"(GPU|mlx|eth|en|ib|bond)", word)]
    return bool(hits) and not others


def unused_devices(snapshot: Snapshot, run: Facts) -> frozenset[str]:
    """Return the GPUs, ports and interfaces of a node that the run did not use; empty if unknown.

    GPUs are unknown until the ranks of an NCCL job have reported theirs.
    """
    who, gpus = learned(run, Participants), learned(snapshot.facts, Gpus)
    if who is None or snapshot.node not in who.hosts:
        return frozenset()
    told = who.backend != "nccl" or who.gpus
    names = {f"GPU{gpu.index}" for gpu in gpus.all} if gpus and told else set()
    return frozenset((names | _nics(snapshot)) - _used(snapshot, gpus.names if gpus else {}, who, run))


def _nics(snapshot: Snapshot) -> set[str]:
    fabric, interfaces = learned(snapshot.facts, Fabric), learned(snapshot.facts, Interfaces)
    ports = {port.name for port in fabric.ports} if fabric else set()
    return ports | ({each.name for each in interfaces.all} if interfaces else set())


def _used(snapshot: Snapshot, names: Mapping[str, str], who: Participants, run: Facts) -> set[str]:
    mine = [gpu for gpu, host in zip(who.gpus, who.hosts, strict=False) if host == snapshot.node]
    used = {names.get(gpu, gpu) if isinstance(gpu, str) else f"GPU{gpu}" for gpu in mine}
    if who.nodes < 2:
        return used
    carried = [nic for row in _rows(run, NicTraffic) for nic in row.nics]
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
    return used | _nics(snapshot)


def node_rows(run: Facts, verdicts: Sequence[Verdict]) -> tuple[NodeRow, ...]:
    """Return one row per host of the ranks; a finding on the run that names nodes counts only for these."""
    who = learned(run, Participants)
    hosts = dict.fromkeys(who.hosts) if who else {}
    each = shares(list(hosts), verdicts, "fail")
    return tuple(NodeRow(host, rank, host, each[host].status) for rank, host in enumerate(hosts))


def environments(run: Facts, looked: dict[str, NodeEnvironment]) -> dict[str, NodeEnvironment]:
    """Return versions and settings by node; rank 0's begin with those of the measured libraries."""
    who = learned(run, Participants)
    if who is None or not who.hosts:
        return looked
    first = who.hosts[0]
    seen = looked.get(first, NodeEnvironment())
    measured = {name: value for name, value in who.versions.items() if value is not None or name not in seen.versions}
    return {
        first: replace(seen, versions={**seen.versions, **measured}),
        **{k: v for k, v in looked.items() if k != first},
    }


def rows_of(run: Facts) -> tuple[Measurement, ...]:
    """Return the rows of a run with their verdicts; empty if it measured none."""
    rows = learned(run, Rows)
    return judge_rows(rows, learned(run, Expected) or Expected()) if rows else ()


def copies_of(run: Facts) -> tuple[CopyRow, ...]:
    """Return the copies of a run with their verdicts; empty if it measured none."""
    nodes = (learned(run, ExpectedCopies) or ExpectedCopies()).nodes
    return tuple(copies.judged(row, nodes.get(row.node, {})) for row in _rows(run, Copies))


def _ladder(run: Facts) -> tuple[LadderRow, ...]:
    return climbed(_rows(run, Ladder), (learned(run, Expected) or Expected()).bands)


def sections(run: Facts) -> dict[str, Any]:
    """Return the report's fields for the measurements."""
    first, printed, found = learned(run, FirstCalls), learned(run, MeasuredOn), learned(run, Localised)
    rows = rows_of(run)
    return {
        "measurements": rows,
        "judged": judged(run),
        "pairs": _rows(run, MeasuredPairs),
        "localisation": found.found if found else None,
        "nic_traffic": _rows(run, NicTraffic),
        "copies": copies_of(run),
        "groups": _rows(run, Groups),
        "steps": _rows(run, Steps),
        "ladder": _ladder(run),
        "skipped_rows": _rows(run, Skipped),
        "first_call": first.cost if first else None,
        "fingerprint": printed.fingerprint if printed else None,
    }


def judged(run: Facts) -> Judged | None:
    """Count the numbers of a run that have a verdict; None if it measured nothing.

    Pairs are compared with each other: with fewer than three nodes either of two may be the slow one, so that only an
    expectation judges them. Groups and steps are never judged.
    """
    pairs, found = _rows(run, MeasuredPairs), learned(run, Localised)
    compared = bool(_least_of_a_pair(run)) or bool(found and found.found.nodes >= FEWEST)
    rated = [*(row.status for row in rows_of(run)), *(row.status for row in copies_of(run))]
    rated += [row.status for row in _ladder(run) if row.busbw_GBps is not None]
    shown = len(_rows(run, Groups)) + len(_rows(run, Steps))
    sure = len(pairs) * compared
    of = len(rated) + len(pairs) + shown
    return Judged(sum(state != "unjudged" for state in rated) + sure, of) if of else None


def describe_run(run: Facts) -> str:
    """Summarise what was measured and judged: ``13 rows, 9 judged · 56 pairs``."""
    rows, pairs, copies = rows_of(run), _rows(run, MeasuredPairs), _rows(run, Copies)
    judged = sum(row.status != "unjudged" for row in rows)
    ways = {(row.src, row.dst) for row in pairs}
    parts = [f"{plural(len(rows), 'row')}, {judged or 'none'} judged"] if rows else []
    parts += [plural(len({frozenset(way) for way in ways}), "pair")] if ways else []
    parts += ["1 copy" if len(copies) == 1 else f"{len(copies)} copies"] if copies else []
    return " · ".join(parts)


def _rows(run: Facts, kind: type[Any]) -> tuple[Any, ...]:
    fact = learned(run, kind)
    return tuple(fact.rows) if fact else ()


def notes(run: Facts) -> Iterator[str]:
    """Yield notes on the run: how the request was understood, what was found out, what was not reached."""
    asked, rows = learned(run, RunRequest), rows_of(run)
    yield from asked.notes if asked else ()
    yield from (learned(run, Notes) or Notes()).texts
    yield from _left_out(_rows(run, Skipped))
    yield from imprecise(rows, accepts=_accepts(run))
    # One batch that took so much longer than the others that something must have stopped meanwhile:
    for row in rows:
        batches = row.samples.by_batch if row.samples else ()
        usual_us = median(batches) if batches else 0.0
        longest_us = max(batches, default=0.0)
        longer_s = (longest_us - usual_us) * row.iters / 1e6
        if longer_s >= _STOPPED_S and longest_us > 2 * usual_us:
            yield (
                f"{row.op} {size(row.nbytes)}: batch {batches.index(longest_us) + 1} of {len(batches)} took "
                f"{longer_s:.1f} s longer than this row usually takes; a rank, its host or a link stalled"
            )
    yield from _judged_by(asked, rows) if asked else ()


def _left_out(rows: Sequence[SkippedRow]) -> Iterator[str]:
    """Describe what was not measured, by reason."""
    yield from (f"{each.op} was skipped: {each.why}" for each in rows if each.cause == "small")
    left = [each for each in rows if each.cause in ("time", "lost", "alone", "unable")]
    reasons = grouped((each.why, f"{each.op}{f' {size(each.nbytes)}' if each.nbytes else ''}") for each in left)
    for why, names in reasons.items():
        yield f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} left out: {why}"


def _judged_by(asked: RunRequest, rows: Sequence[Measurement]) -> Iterator[str]:
    """Say how many rows have a verdict, if not all have one."""
    judged = sum(row.status != "unjudged" for row in rows)
    if rows and not judged and not (asked.expect or asked.baseline):
        yield f"{plural(len(rows), 'row')} measured, none judged{_why_none(rows)}"
    elif 0 < judged < len(rows):
        by = asked.expect or asked.baseline or "the expectations for this machine"
        yield f"{judged} of {plural(len(rows), 'row')} judged by {by}"


def _why_none(rows: Sequence[Measurement]) -> str:
    known = [row.expectation.known for row in rows if row.expectation]
    if known:
        return f"; the last of them: {known[-1]}" if known[-1] else ""
    return ": there is nothing to compare them with; pass --expect FILE or --baseline PATH"


def imprecise(rows: Sequence[Measurement], accepts: bool) -> Iterator[str]:
    """Name the rows that missed the requested precision, and the precision that they reached."""
    short = [row for row in rows if row.precision_asked and (row.precision or 1.0) > row.precision_asked]
    if short:
        worst = max(short, key=lambda row: row.precision or 1.0)
        reached = "unknown" if worst.precision is None else f"±{100 * worst.precision:.3g} %"
        more = "--level long gives each row more time" if accepts else "raise --budget, or relax --precision"
        yield (
            f"{len(short)} of {plural(len(rows), 'row')} did not reach the requested "
            f"±{100 * (worst.precision_asked or 0):.3g} % in time; the worst is {worst.op} {size(worst.nbytes)}, "
            f"{reached} after {worst.batches} batches of {worst.iters}: {more}"
        )


_STOPPED_S = 1.0
"""Longer than any scheduler or garbage collector pauses a process."""
_MOST = 8
"""Possible causes that one symptom names; others are ordinary findings of the report."""


def relate(
    verdicts: Sequence[Verdict], checks: Sequence[Check], unused: Mapping[str, frozenset[str]]
) -> tuple[Verdict, ...]:
    """Relate findings on the run to their possible causes.

    A cause is a finding of a check that `slows`, on a node that the symptom names (or on any if it names none), and not
    only about devices that the run did not use (`unused`, by node).
    """
    slowing = {check.key for check in checks if check.slows}
    symptoms = {check.key for check in checks if check.of_run} - slowing
    causes = [(v, f) for v in verdicts if v.key in slowing for f in v.findings if _counts(v, f, unused)]
    return tuple(
        replace(v, findings=tuple(_link_cause(f, causes) for f in v.findings))
        if v.key in symptoms and v.findings
        else v
        for v in verdicts
    )


def _counts(verdict: Verdict, finding: Finding, unused: Mapping[str, frozenset[str]]) -> bool:
    return finding.severity is not Severity.NOTE and not is_idle(verdict, finding, unused)


def _link_cause(finding: Finding, causes: Sequence[tuple[Verdict, Finding]]) -> Finding:
    if finding.severity is Severity.NOTE:
        return finding
    here = [(v, f) for v, f in causes if _same_place(finding, v, f)]
    here.sort(key=lambda each: each[1].severity is not Severity.FAIL)  # what stops a job before what costs speed
    named = dict.fromkeys(Related(v.id, f.subject) for v, f in here)
    return replace(finding, related=(*finding.related, *list(named)[:_MOST]))


def _same_place(symptom: Finding, verdict: Verdict, cause: Finding) -> bool:
    """Return whether both concern a common node; a finding without nodes concerns all."""
    nodes = {verdict.node} if verdict.node is not None else set(cause.nodes)
    return not symptom.nodes or not nodes or not nodes.isdisjoint(symptom.nodes)


def _learn(known: JudgedNodes) -> JudgedNodes:
    run = concluded(known.facts)
    return replace(known, facts=run, job=job_of(run, known.job))


def _weigh(known: JudgedNodes) -> JudgedNodes:
    run, checks = known.facts, known.question.checks
    unused = {s.node: unused_devices(s, run) for s in known.snapshots}
    return replace(known, verdicts=relate(weighed(known.verdicts, checks, unused, run), checks, unused))


def _conclude(known: JudgedNodes) -> dict[str, Any]:
    run, who = known.facts, learned(known.facts, Participants)
    launch = LaunchRow(who.kind, who.nnodes, who.ranks) if who else LaunchRow()
    counting = counted(known.verdicts, known.question.checks, run)
    status, code = conclude(counting, known.question.judging.fail_on)
    shown = doctor.sections(known)
    return {
        **shown,
        **sections(run),
        "status": status,
        "exit_code": code,
        "launch": launch,
        "nodes": node_rows(run, counting),
        "areas": inventory.areas(known.snapshots, known.verdicts, known.job, launch.nnodes, describe_run(run)),
        "environment": environments(run, shown["environment"]),
        "notes": [*shown["notes"], *notes(run)],
    }


TOPIC = Topic(unchanged, _conclude, learn=_learn, weigh=_weigh)
