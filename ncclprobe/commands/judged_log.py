"""``ncclprobe expect --judge FILE``: find the machine that a log was measured on, and judge its rows by it."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.commands import arguments
from ncclprobe.commands.run_files import read_runs, schema_of
from ncclprobe.engine import diagnose
from ncclprobe.expect import assumed, composed, elsewhere, log_findings, topology_text
from ncclprobe.expect.assumed import Assumed, Node
from ncclprobe.expect.elsewhere import Alternative, JudgedRun, Setup
from ncclprobe.expect.log_findings import LARGE, Healthy, LogFinding
from ncclprobe.expect.pinned import NOTHING, pinned
from ncclprobe.expect.predict import LATEST
from ncclprobe.expect.recognise import ExpectationContext
from ncclprobe.expect.system import NodeSystem
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import merge
from ncclprobe.host import files
from ncclprobe.host.pasted_logs import unwrapped
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Severity, Status
from ncclprobe.model.measurement import Fingerprint, Judged, Measurement
from ncclprobe.model.ops import OPS
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.units import printable, size
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl_tests import NOT_GIVEN, Given, Run
from ncclprobe.report import delivery

_MOST_DOMAINS = 4096
_BOARD, _MOST_GPUS = 8, 16
"""GPUs per node: of nearly all nodes, and of the largest. A truncated list shows neither hosts nor GPUs."""
_ONE_LINE = 10_000
_ABOVE = 1 << 18
"""Characters of a text that are searched for the name of a machine."""
_NAMELESS = "not judged, because this log does not name the GPUs; give --machine NAME, or a capture"


class Wanted(Struct, frozen=True):
    """What the user knows of a log: machine, nodes, NVLink domains, NCCL_ALGO, the release; and its `text`."""

    here: ExpectationContext
    named: bool
    nodes: int | None = None
    domains: int | None = None
    algorithm: str = ""
    version: tuple[int, int, int] | None = None
    text: str = ""


def judge(options: argparse.Namespace, here: ExpectationContext, algorithm: str) -> int:
    """Judge the rows of a file, print them, and return the verdict's exit code. Raises UsageError."""
    path = str(options.judge)
    named = bool(options.machine or options.topology or options.file)
    wanted = Wanted(here, named, options.nodes, options.domains, algorithm, options.nccl)
    judged = judged_file(path, wanted, _given(options)).runs
    must = options.require_judged
    code = elsewhere.exit_code(judged, must=must)
    if options.json:
        arguments.write_json(options, "judgement", elsewhere.as_json(judged, [path], must=must))
    if options.html:
        delivery.write("html", _report(judged, path, code), options.html)
    if "-" in (options.json, options.html):
        return code
    text = elsewhere.as_text(judged, [path], width=_ONE_LINE if options.quiet else delivery.width())
    print("\n".join(map(printable, text.split("\n")[: 1 if options.quiet else None])))
    return code


def _report(runs: Sequence[JudgedRun], path: str, code: int) -> Report:
    """Return the judged rows as a report, drawn like that of a measurement."""
    question = diagnose.ask(diagnose.Judging(), ("expect", "--judge", path), Job())
    empty = diagnose.diagnose(replace(question, checks=(), sources=diagnose.MACHINE))
    rows = tuple(row for run in runs for row in run.rows)
    failed = dict.fromkeys(f"the run reports: {run.place.failed}" for run in runs if run.place.failed)
    told = [(run.title, run.place.assumed, *map(str, run.findings)) for run in runs]
    notes = [text for texts in told for text in texts if text]
    count = sum(row.status != "unjudged" for row in rows)
    return replace(
        empty,
        status=_status(runs, code),
        exit_code=code,
        measurements=rows,
        judged=Judged(count, len(rows)),
        notes=tuple(map(printable, ("; ".join([elsewhere.headline(runs), *failed]), *notes))),
    )


def _status(runs: Sequence[JudgedRun], code: int) -> Status:
    """Return the status of the judged rows and the log's findings: unknown if nothing was judged."""
    states = {row.status for run in runs for row in run.rows}
    warned = "warn" in states or any(found.severity is Severity.WARN for run in runs for found in run.findings)
    if code == ExitCode.FAIL:
        return Status.FAIL
    if code == ExitCode.INCONCLUSIVE or states == {"unjudged"}:
        return Status.UNKNOWN
    return Status.WARN if warned else Status.PASS


def judged_file(path: str, wanted: Wanted, given: Given = NOT_GIVEN) -> elsewhere.JudgedLog:
    """Return the tables in a file with their verdicts. Raises UsageError."""
    found = read_runs(path, given)
    if all(not run.rows and not run.missing for run in found):
        raise UsageError(f"{path}: holds no row to judge")
    text = "" if wanted.named else unwrapped(files.read(Path(path), limit=bounds.RUN_FILE_BYTES))[:_ABOVE]
    wanted = replace(wanted, text="" if text.lstrip().startswith("{") else text)
    runs = _named_alike([_add_gpus_of_text(run, wanted.text) for run in found])
    judged = [judged_run(run, wanted, path, several=len(runs) > 1) for run in runs]
    if any(run.log.died or not run.rows for run in runs):
        judged[0] = replace(judged[0], findings=(*_causes(path), *judged[0].findings))
    return elsewhere.JudgedLog(path, tuple(judged))


def _causes(path: str) -> Iterator[LogFinding]:
    """Yield the cause that `ncclprobe explain` finds for a failed run."""
    from ncclprobe.engine.explain import explain  # and what reads the logs of jobs
    from ncclprobe.host import job_files
    from ncclprobe.report import json as as_json

    question = diagnose.ask(diagnose.Judging(), ("explain", path), Job(), diagnose.LEFT)
    for cause in explain(question, job_files.named([path]), as_json.read).causes[:1]:
        yield LogFinding(cause.severity, "; ".join(filter(None, (f"the cause: {cause.message}", cause.remedy))))


def _add_gpus_of_text(run: Run, text: str) -> Run:
    """Complete `run` with the GPUs that a sentence around it names, if it lists no device."""
    gpu, count = assumed.gpus_in(text) if run.rows and not run.fingerprint else ("", 0)
    if not gpu:
        return run
    ranks = run.rows[0].ranks
    nodes = ranks // count if ranks % count == 0 else 1
    rows = tuple(replace(row, nodes=max(nodes, row.nodes, 1)) for row in run.rows)
    about = f"no device is listed: {count} x {gpu} are named in the text around the table"
    fingerprint = Fingerprint({"gpu": f"{count} x {gpu}"}, None, {})
    return replace(run, rows=rows, fingerprint=fingerprint, log=replace(run.log, about=about))


def _named_alike(runs: Sequence[Run]) -> list[Run]:
    """Name the GPUs that the driver could not name as in the other tables."""
    names = {gpu for run in runs if run.rows and (gpu := _gpus(run)[0]) not in ("", *assumed.UNNAMED)}
    unnamed = [bool(run.rows) and len(names) == 1 and _gpus(run)[0] in assumed.UNNAMED for run in runs]
    return [_rename_gpus(run, *names) if each else run for run, each in zip(runs, unnamed, strict=True)]


def _rename_gpus(run: Run, name: str) -> Run:
    """Return `run` with its GPUs called `name`."""
    assert run.fingerprint
    machine = {"gpu": f"{_gpus(run)[1] or 1} x {name}"}
    said = f"the driver called these GPUs {_gpus(run)[0]!r}: taken for {name}, which another table in this log names"
    return replace(run, fingerprint=replace(run.fingerprint, machine=machine), log=replace(run.log, about=said))


def _given(options: argparse.Namespace) -> Given:
    """Return what the user knows of the rows. Raises UsageError for several operations."""
    if options.op is None and not options.ranks:
        return NOT_GIVEN
    if options.op is not None and options.op not in OPS:
        raise UsageError(f"--op {options.op[:40]!r}: with --judge give one of {', '.join(OPS)}")
    return Given(options.op or "", options.ranks or 0)


def judged_run(run: Run, wanted: Wanted, path: str, *, several: bool) -> JudgedRun:
    """Return `run` with its verdicts. Raises UsageError."""
    said = {**_reported(path), **run.log.settings}
    if wanted.algorithm:
        said["NCCL_ALGO"] = wanted.algorithm
    version = wanted.version or wanted.here.nccl
    settings = pinned(merge(Environment(said), ()), version or LATEST)
    base = Setup(None, None, wanted.nodes, settings, run.failed, wanted.version)
    if not run.rows:
        place = Setup(None, None, None, NOTHING, run.failed, not_judged="not judged")
        return JudgedRun((), place, (LogFinding(Severity.FAIL if run.failed else Severity.WARN, run.missing),))
    run = _assume_full_boards(run, wanted)
    place, healthy = _setups_of(run, wanted, base, path)
    tcp = log_findings.lost_settings(said)
    if tcp and place.system and place.system.network in ("ib", "roce", "opa"):
        place = replace(place, system=replace(place.system, network="sockets", gdr=False), machine=None)
    missing = run.log.no_multicast and place.system is not None and place.system.nvls
    if missing and place.system:
        place = replace(place, system=replace(place.system, nvls=False), machine=None)
    rows = elsewhere.judge(run.rows, place)
    found = [*_findings_of_log(run, rows)]
    if place.assumed and place.system and not tcp:
        node = replace(_node(run, wanted), gpu=place.system.gpu, count=place.system.gpus)
        found += log_findings.tcp_instead(run.log.network, assumed.fabric(node))
    inside = (wanted.nodes or run.rows[0].nodes) == 1  # between nodes it may be the NICs as well
    if inside and wanted.named and place.machine is None and place.system and elsewhere.refuted(rows):
        found += _report_too_fast(run, place, place.system)
    if healthy and (named := tcp or str(settings) or "the lack of NVLS multicast" * missing):
        shapes = [elsewhere.shape_of(row, place) for row in rows]
        found += log_findings.settings_cost(rows, shapes, named, healthy)
    about = f": {run.log.command}" if run.log.command else ""
    title = f"{run.rows[0].op} on {run.rows[0].ranks or '?'} ranks, line {run.log.line}{about}" if several else ""
    return JudgedRun(rows, place, tuple(found), title)


def _assume_full_boards(run: Run, wanted: Wanted) -> Run:
    """Assume boards of the usual number of GPUs, if the list of devices was cut before a node's last one."""
    gpu, count = _gpus(run)
    each = assumed.board(gpu) if not count and not wanted.nodes else 0
    row = run.rows[0]
    if not each or row.nodes > 1 or row.ranks % each:
        return run
    rows = tuple(replace(row, nodes=row.ranks // each) for row in run.rows)
    return replace(run, rows=rows, log=replace(run.log, guessed=True))


def _report_too_fast(run: Run, place: Setup, system: NodeSystem) -> Iterator[LogFinding]:
    """Report rows that are faster than the described machine, and which description would fit."""
    usual: dict[str, dict[str, Any]] = {
        "1 socket": {"sockets": 1},
        "P2P": {"p2p": True},
        "P2P, 1 socket": {"p2p": True, "sockets": 1},
    }
    unlike = {words: change for words, change in usual.items() if changed_by(system, change)}
    for words, change in unlike.items():
        other = replace(place, system=replace(system, **change), machine=None)
        rows = elsewhere.judge(run.rows, other)
        if not elsewhere.refuted(rows) and (peak := elsewhere.peak(rows)) and peak.expectation:
            yield LogFinding(
                Severity.WARN,
                f"{peak.busbw_GBps:.4g} GB/s contradict the description: write {words!r} in --machine, and "
                f"{peak.expectation.value:.4g} GB/s are expected",
            )
            return
    yield LogFinding(Severity.WARN, "the rows are much faster than this machine should be: its description is wrong")


def changed_by(system: NodeSystem, change: Mapping[str, Any]) -> bool:
    """Return whether `change` makes another machine of `system`."""
    return bool(replace(system, **change) != system)


def _findings_of_log(run: Run, rows: Sequence[Measurement]) -> Iterator[LogFinding]:
    if run.log.died:
        yield LogFinding(Severity.FAIL, f"the run failed after the row of {size(rows[-1].nbytes)}")
    yield from log_findings.unlike_hosts(run.log.hosts)
    if run.log.about:
        yield LogFinding(Severity.NOTE, run.log.about)
    if run.log.unchecked:
        yield LogFinding(Severity.NOTE, "the data was not checked (validation: 0), so wrong values would not be seen")
    if run.log.wrong and not any(row.wrong for row in rows):
        yield LogFinding(Severity.FAIL, f"the data was wrong: {run.failed}")
    if run.log.shared:
        yield LogFinding(Severity.WARN, run.log.shared)
    yield from (LogFinding(Severity.NOTE, f"not read: {each}") for each in run.log.unread)
    yield from log_findings.steps(rows)
    yield from log_findings.average(rows, run.log.average, run.log.empty)
    yield from log_findings.unfinished(run.log.unfinished)


def _setups_of(run: Run, wanted: Wanted, base: Setup, path: str) -> tuple[Setup, Healthy | None]:
    """Return what judges the rows of `run`, and the same machine without the settings. Raises UsageError."""
    gpu, count = _gpus(run)
    if gpu and (why := assumed.foreign(gpu)) and not (wanted.named and "not an NVIDIA GPU" not in why):
        return replace(base, not_judged=why), None
    if missing := run.missing or run.log.shared:
        return replace(base, not_judged=f"not judged: {missing}"), None
    own = wanted.here.system  # of the machine that this program runs on
    if wanted.named or (isinstance(own, NodeSystem) and (not gpu or composed.same_gpu(gpu, own.gpu))):
        system = _system_of(run, wanted.here, path)
        found = _assume_usual_nics(run, wanted, system)
        machine = None if found else wanted.here.machine
        whole = Assumed(system, machine, "", "") if found is None else replace(found, machine=None)
        return _apply_machine(run, wanted, base, whole)
    row = run.rows[0]
    if not count and row.ranks % row.nodes == 0:
        return replace(base, not_judged="not judged: the text does not show how many GPUs a node has"), None
    if not count:
        return replace(base, not_judged=f"not judged: {row.ranks} ranks on {row.nodes} nodes, unevenly"), None
    if not gpu:
        return replace(base, not_judged=_NAMELESS), None
    machine = assumed.machine_in(wanted.text)
    if machine and composed.same_gpu(gpu, machine.gpu) and count <= machine.links.gpus:
        system = machine.system()
        return _apply_machine(
            run, wanted, base, Assumed(system, machine, machine.name, f"{machine.name}, as the text says")
        )
    return _apply_machine(run, wanted, base, _first_allowed(run, wanted, base, _node(run, wanted)))


def _node(run: Run, wanted: Wanted) -> Node:
    log = run.log
    return Node(*_gpus(run), wanted.nodes or run.rows[0].nodes, log.network, log.nics, log.guessed)


def _first_allowed(run: Run, wanted: Wanted, base: Setup, node: Node) -> Assumed:
    """Return the usual machine, or, if the rows are faster than it can be, the first that allows them."""
    usual = None
    for found in assumed.candidates(node):
        usual = usual or found
        place, _ = _apply_machine(run, wanted, base, found)
        if not elsewhere.refuted(elsewhere.judge(run.rows, place)):
            if found is usual:
                return found
            words = f"{found.words} (the usual, {usual.words}, cannot be so fast)"
            return replace(found, words=words)
    assert usual
    return usual


def _apply_machine(run: Run, wanted: Wanted, base: Setup, found: Assumed) -> tuple[Setup, Healthy]:
    """Return `base` on the machine that was found, with the domains that the user asks for."""
    system, machine, words = found.system, found.machine, found.words
    nodes = wanted.nodes or run.rows[0].nodes
    if wanted.domains:
        if nodes % wanted.domains or wanted.domains > _MOST_DOMAINS:
            raise UsageError(
                f"--domains {wanted.domains}: {nodes} nodes cannot be divided into that many NVLink domains"
            )
        system, machine = replace(system, domain_gpus=system.gpus * (nodes // wanted.domains)), None
        words = words.partition(", all nodes in")[0].partition(", NVLink domains of")[0]
    name = found.described
    if words and nodes > 1:
        name = f"{found.described.partition(',')[0]} on {nodes} nodes"
    place = replace(base, system=system, machine=machine, assumed=words, name=name)
    if system.domain_gpus > system.gpus and nodes > 1 and not wanted.domains:  # a rack
        apart = "the nodes are in different NVLink domains: give --domains N, or set NCCL_MNNVL_ENABLE=0"
        place = replace(place, alternatives=(Alternative(replace(system, domain_gpus=system.gpus), apart),))
    if words and system.nics and nodes > 1:
        place = replace(place, assumed="; ".join([words, *_nics_that_pass(run, place, found)]))
    return place, Healthy(system, machine, wanted.version or wanted.here.nccl or LATEST)


def _nics_that_pass(run: Run, place: Setup, found: Assumed) -> Iterator[str]:
    """Yield the NICs with which the largest failing rows would pass, if any can be that fast."""
    every = elsewhere.judge(run.rows, place)
    judged = [row for row in every if row.status in ("warn", "fail")]
    least = next((each for each in (1 << 30, LARGE) if any(row.nbytes >= each for row in judged)), 0)
    if not place.system or place.system.domain_gpus > place.system.gpus or not least:
        return
    if any(log_findings.steps(judged)):  # which no NIC explains
        return
    bad = [row for row in judged if row.nbytes >= least]
    for other in assumed.weaker(replace(found, system=place.system)):
        weaker = replace(place, system=other.system, machine=None)
        rows = elsewhere.judge(bad, weaker)
        large = [row for row in every if row.nbytes >= least]
        if {row.status for row in rows} == {"pass"} and not elsewhere.above(large, weaker):
            yield f"with {other.described} its rows from {size(least)} would pass (--machine decides)"
            return


def _gpus(run: Run) -> tuple[str, int]:
    """Return the first host's GPUs: name and number per node; empty and 0 if the log does not say."""
    told = run.fingerprint.machine.get("gpu", "") if run.fingerprint else ""
    gpu = told.split(", ")[0].partition(" x ")[2][:80]
    row = run.rows[0]
    listed = sum(map(len, run.log.hosts.values()))
    count = row.ranks // row.nodes if row.nodes and row.ranks % row.nodes == 0 else 0
    return gpu, count if count <= (_BOARD if 0 < listed < row.ranks else _MOST_GPUS) else 0


def _assume_usual_nics(run: Run, wanted: Wanted, system: NodeSystem) -> Assumed | None:
    """Return `system` with the usual NICs if none were given; None if its NICs are known, or no row crosses them."""
    nodes = wanted.nodes or run.rows[0].nodes
    if system.nics or nodes < 2 or composed.capability_of(system.gpu) is None:
        return None
    found = assumed.assume_nics(system, Node(system.gpu, system.gpus, nodes, run.log.network, run.log.nics))
    return replace(found, described=system.name) if found else None


def _system_of(run: Run, here: ExpectationContext, path: str) -> NodeSystem:
    """Return the machine that the rows are judged by. Raises UsageError for none, or one with other GPUs."""
    if isinstance(here.system, Absent):
        raise UsageError(f"--judge {path}: {here.system.why}: give --machine NAME, or a capture")
    told = run.fingerprint.machine.get("gpu", "") if run.fingerprint else ""
    named = tuple(dict.fromkeys(each[:80] for each in told.split(", ") if each))
    other = next((each for each in named if not _fits(each.partition(" x ")[2], here.system)), "")
    if other:
        raise UsageError(
            f"--judge {path}: measured on {other}, but the selected machine has {here.system.gpu}: give "
            f"--machine {other!r}, or a machine type with these GPUs, or leave --machine out"
        )
    return here.system


def _fits(gpu: str, system: NodeSystem) -> bool:
    """Return whether a log's GPU may be the machine's; a topology may show only its compute capability."""
    if system.gpu.startswith(topology_text.CAPABILITY):
        return composed.capability_of(gpu) in (None, system.compute_capability)
    return not gpu or composed.same_gpu(gpu, system.gpu)


def _reported(path: str) -> Mapping[str, str]:
    """Return the NCCL variables that one of our reports lists as set. Raises UsageError."""
    text = unwrapped(files.read(Path(path), limit=bounds.RUN_FILE_BYTES))
    if not text.lstrip().startswith("{") or schema_of(text, path) == "nccl-tests":
        return {}
    from ncclprobe.report import json as as_json

    nodes = as_json.read(path).environment.values()
    return {each.name: each.value for node in list(nodes)[:1] for each in node.settings if each.value is not None}
