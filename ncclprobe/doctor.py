"""``ncclprobe doctor``: is this machine fit for an NCCL job? Also ``torchrun -m ncclprobe.doctor``."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ncclprobe import __version__, config, engine, output
from ncclprobe.checks import MEASURED
from ncclprobe.errors import HostError, UsageError
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software
from ncclprobe.facts.system import System
from ncclprobe.host import Question, Recorder, load
from ncclprobe.model import (
    Absent,
    Check,
    Collector,
    ExitCode,
    Job,
    LaunchRow,
    NodeEnvironment,
    NodeRow,
    Report,
    Setting,
    Snapshot,
    Suppression,
    Tool,
    Verdict,
)
from ncclprobe.registry import discover, modules
from ncclprobe.report.text import printable


def main(argv: Sequence[str]) -> int:
    """Collect or replay, judge, report; returns the exit code. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.expect_gpus and options.backend == "gloo":
        raise UsageError("--expect-gpus asks for GPUs and --backend gloo for none; leave one out")
    if not options.captures and _speaks_elsewhere():
        return ExitCode.OK
    started, clock = datetime.now(timezone.utc), time.monotonic()
    collectors, checks = discover("ncclprobe.facts", Collector), doctor_checks(options.select, options.ignore)
    accepted = config.load(options.config, discover("ncclprobe.checks", Check))
    snapshots = replayed(options.captures, collectors)
    if not snapshots:
        snapshots = [observed(collectors, clock + options.timeout)[0]]
    job = Job(options.backend, options.expect_gpus, options.local)
    verdicts, suppressed = engine.suppress(engine.judge(snapshots, checks, job), options.ignore)
    verdicts, lived_with = config.suppress(verdicts, accepted)
    judged = {c.id for c in checks}
    left_out = (c.id for c in doctor_checks(options.select) if c.id not in judged)
    suppressed += (*lived_with, *(Suppression(name, "every subject", "--ignore") for name in left_out))
    launch = _launch(snapshots[0])
    missing = _missing_nodes(launch, len(snapshots), options)
    status, code = engine.conclude(verdicts, options.fail_on, inconclusive=bool(missing))
    report = Report(
        tool=Tool("ncclprobe", __version__),
        started=started.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - clock, 3),
        command=printable(shlex.join(["ncclprobe", "doctor", *argv])),
        status=status,
        exit_code=code,
        launch=LaunchRow(launch.kind, launch.nnodes, launch.world_size),
        nodes=tuple(_node_row(s, rank, verdicts, options.fail_on) for rank, s in enumerate(snapshots)),
        missing_nodes=missing,
        checks=verdicts,
        coverage=engine.coverage(verdicts),
        suppressed=suppressed,
        environment={s.node: _environment(s) for s in snapshots},
        **(_pictures(snapshots, job) if options.verbose or options.json else {}),
        remarks=tuple(_remarks(missing)),
    )
    output.deliver(report, options)
    return code


def _pictures(snapshots: Sequence[Snapshot], job: Job) -> dict[str, Any]:
    """The report's `topology` and `choices`, by node: only made, and imported, where somebody will see them."""
    from ncclprobe.choices import choose
    from ncclprobe.layout import layout

    chosen = {s.node: choose(s) for s in snapshots} if job.backend == "nccl" else {}
    return {"topology": {s.node: layout(s) for s in snapshots}, "choices": chosen}


def _parser() -> argparse.ArgumentParser:
    parser = output.Parser(
        "doctor",
        "Is this machine, or a captured one, fit for an NCCL job?",
        "exit code: 0 nothing fails, 2 wrong usage, 3 something required could not be looked at, 4 something fails",
    )
    add = parser.add_argument
    add("captures", nargs="*", type=Path, metavar="CAPTURE", help="judge these captures instead, one per node")
    add("--backend", choices=("nccl", "gloo"), default="nccl", help="what the job will use (default: %(default)s)")
    add("--local", action="store_true", help="this node only, whatever the launcher says")
    add("--expect-gpus", type=output.count, metavar="N", help="fail with fewer usable GPUs than this")
    add("--select", action="append", default=[], metavar="GLOB", help="only these checks, such as 'env.*'")
    add(
        "--ignore", action="append", default=[], metavar="GLOB", help="not these: 'env.*', or one subject: 'ID=SUBJECT'"
    )
    add("--config", type=Path, metavar="PATH", help="findings to live with, and why (default: ./ncclprobe.toml)")
    add("--timeout", type=output.positive, default=120.0, metavar="SECONDS", help="whole run (default: %(default)g)")
    output.arguments(parser)
    return parser


def doctor_checks(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks that judge a machine, as far as `select` and `ignore` let them.

    Raises UsageError for a pattern that names none: a misspelt one would otherwise judge, or spare, nothing.
    """
    found = [c for c in discover("ncclprobe.checks", Check) if not c.id.startswith(MEASURED)]
    for option, patterns in (("--select", select), ("--ignore", ignore)):
        for pattern in patterns:
            if not engine.selected(found, [pattern.partition("=")[0]]):
                raise UsageError(f"{option} {pattern}: matches no check; ids are such as 'env.bool-word', or 'env.*'")
    return engine.selected(found, select, ignore)


def _speaks_elsewhere() -> bool:
    """Whether another rank of this node speaks for it: under torchrun or srun, its local rank 0."""
    launch = detect(os.environ)
    return bool(launch.local_rank) and not launch.problems


def recordable() -> set[str]:
    """The variables whose value may be recorded: those of the table, and those that a module of facts READS."""
    from ncclprobe.nccl.parameters import table

    read: set[str] = set().union(*(getattr(module, "READS", ()) for module in modules("ncclprobe.facts")))
    return {*table(), *read} - {"SLURM_EXPORT_ENV"}  # what `srun --export=ALL,TOKEN=…` was given


def observed(collectors: Sequence[Collector], deadline: float) -> tuple[Snapshot, Mapping[Question, str | HostError]]:
    """This machine's facts, and every answer that made them. `deadline` is on time.monotonic()."""
    from ncclprobe.live import LiveHost
    from ncclprobe.nccl.parameters import looks_like_ours

    live = LiveHost(recordable(), looks_like_ours, deadline)
    host = Recorder(live)
    try:
        facts = engine.collect(host, collectors, at_once=True)
    finally:
        live.close()
    system = facts[System]
    node = "this node" if isinstance(system, Absent) else system.hostname
    return Snapshot(node, facts), host.answers


def replayed(paths: Sequence[Path], collectors: Sequence[Collector]) -> list[Snapshot]:
    """The facts of captured machines, one per node. Raises UsageError."""
    snapshots: dict[str, Snapshot] = {}
    for path in paths:
        host = load(path)
        if host.node in snapshots:
            raise UsageError(f"{path}: a second capture of node {host.node}; give one per node")
        snapshots[host.node] = Snapshot(host.node, engine.collect(host, collectors))
    return list(snapshots.values())


def _launch(snapshot: Snapshot) -> Launch:
    launch = snapshot.facts.get(Launch)
    return launch if isinstance(launch, Launch) else Launch()


def _missing_nodes(launch: Launch, looked_at: int, options: argparse.Namespace) -> tuple[str, ...]:
    """The nodes of this job that nobody looked at: this version looks at its own node only."""
    if options.local or (launch.nnodes or 1) <= looked_at:
        return ()
    here = launch.node_rank or 0
    return tuple(f"node {rank}" for rank in range(launch.nnodes or 1) if rank != here)


def _remarks(missing: tuple[str, ...]) -> list[str]:
    if not missing:
        return []
    others = "1 other node" if len(missing) == 1 else f"{len(missing)} other nodes"
    return [f"{others} of this job: not looked at; with --local this node is judged alone"]


def _node_row(snapshot: Snapshot, rank: int, verdicts: Sequence[Verdict], fail_on: str) -> NodeRow:
    system = snapshot.facts.get(System)
    own = [verdict for verdict in verdicts if verdict.node == snapshot.node]
    hostname = system.hostname if isinstance(system, System) else snapshot.node
    return NodeRow(snapshot.node, rank, hostname, engine.conclude(own, fail_on)[0])


def _environment(snapshot: Snapshot) -> NodeEnvironment:
    """Versions and settings for the report; what is not known is null."""
    settings = snapshot.facts.get(Settings)
    rows: tuple[Setting, ...] = tuple(settings.effective.values()) if isinstance(settings, Settings) else ()
    return NodeEnvironment(_versions(snapshot), rows)


def _versions(snapshot: Snapshot) -> dict[str, str | None]:
    system, software, gpus = (snapshot.facts.get(kind) for kind in (System, Software, Gpus))
    versions: dict[str, str | None] = {"kernel": None, "torch": None, "nccl": None, "driver": None}
    if isinstance(system, System):
        versions |= {"kernel": system.kernel, "distribution": system.distribution or None}
    if isinstance(software, Software):
        nccl = ".".join(map(str, software.nccl_version or ()))
        versions |= {**software.packages, "nccl": nccl or "none found"}
    if isinstance(gpus, Gpus):
        versions |= {"driver": gpus.driver, "cuda": ".".join(map(str, gpus.cuda))}
    return versions


if __name__ == "__main__":
    from ncclprobe.__main__ import main as run

    sys.exit(run(["doctor", *sys.argv[1:]]))
