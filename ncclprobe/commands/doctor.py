"""``ncclprobe doctor``: is this machine fit for an NCCL job? Also ``torchrun -m ncclprobe.doctor``."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ncclprobe import signals
from ncclprobe.commands import arguments, hosts, nodes
from ncclprobe.engine import diagnose, doctor
from ncclprobe.engine.collect import observed, replayed
from ncclprobe.facts.data_paths import AskedPaths
from ncclprobe.facts.launcher import Flags, Launch, detect
from ncclprobe.host import SAMPLE, Question, files
from ncclprobe.host.capture import dump, save
from ncclprobe.host.run_log import RunLog, is_run_log
from ncclprobe.model import bounds
from ncclprobe.model.errors import OutOfTime, UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.model.units import plural
from ncclprobe.model.values import asdict
from ncclprobe.report import delivery
from ncclprobe.report.progress import Waiting

_LONGEST_PATH = 4095  # PATH_MAX, without its end


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options for data paths and their expected speed."""
    add = parser.add_argument
    add("--path", type=data_path, action="append", default=[], dest="paths", metavar="PATH",
        help="Check that every node sees the same file or folder at this path, can read it, and reads it equally fast. "
        "May be given several times.")  # fmt: skip


def refuse(given: argparse.Namespace) -> None:
    """Refuse contradictory options. Raises UsageError."""
    if given.paths and (given.captures or len(given.paths) > bounds.DATA_PATHS):
        why = "and captures cannot be used together" if given.captures else f"may be given {bounds.DATA_PATHS} times"
        raise UsageError(f"--path {why}")


def asked(given: argparse.Namespace) -> AskedPaths:
    """Return the paths to test."""
    return AskedPaths(tuple(dict.fromkeys(given.paths)))


def shared(given: argparse.Namespace) -> Sequence[str]:
    """Return these options as words for every node."""
    return [word for path in given.paths for word in ("--path", path)]


def data_path(text: str) -> str:
    """Return an absolute path, for argparse."""
    if not text or len(text) > _LONGEST_PATH or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{ascii(text)[:80]} is not a path")
    return os.path.abspath(text)  # noqa: PTH100 - asks no file system, which may hang


_TIMEOUT_S = 120.0
_LAST_RESORT_S = 5.0  # after --timeout, for a process that cannot end by itself


def _captures(path: Path) -> list[Path]:
    """Return the captures in a folder of --keep, or `path` itself. Raises UsageError for a folder without any."""
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not found:
        raise UsageError(f"{path}: no capture (*.jsonl) in this folder; `ncclprobe capture` and --keep write them")
    return found


def main(argv: Sequence[str]) -> int:
    """Collect or replay, judge, report; return the exit code. Raises UsageError."""
    options = _parser().parse_args(argv)
    options.captures = [path for each in options.captures for path in _captures(each)]
    if options.expect_gpus and options.backend == "gloo":
        raise UsageError("--expect-gpus and --backend gloo cannot be used together: gloo uses no GPU; leave one out")
    if options.expect_nics and options.backend == "gloo":
        raise UsageError(
            "--expect-nics and --backend gloo cannot be used together: gloo does not use NCCL's NICs; leave one out"
        )
    options.timeout = options.timeout or (math.inf if options.captures else _TIMEOUT_S)
    flags = Flags(options.nnodes, options.node_rank, options.master_addr, options.master_port)
    nodes.refuse_half_given(flags, options)
    if where := nodes.named(options, flags):
        return nodes.over_ssh(where, options, ("doctor", *argv), _question(options, argv))
    launch = detect(os.environ, flags)
    refuse(options)
    if options.fleet and options.captures:
        raise UsageError(
            "--fleet and captures cannot be used together: the store would record the captures under today's date"
        )
    if options.one_job and not options.captures:
        raise UsageError("--one-job needs the captures of several nodes")
    if options.keep and options.captures:
        raise UsageError("--keep and captures cannot be used together: the captures are files already")
    if logs := [path for path in options.captures if is_run_log(path)]:
        return _judge_run(options, argv, logs)
    if options.expect or options.rejudge:
        raise UsageError("--expect and --rejudge need a measured run: add its run.jsonl to the captures")
    signals.end_by(options.timeout + _LAST_RESORT_S)
    doing = f"judging {plural(len(options.captures), 'capture')}" if options.captures else "examining this machine"
    with Waiting(doing, wanted=not options.quiet) as waiting:
        return _look_and_judge(options, argv, flags, launch, waiting)


def _question(options: argparse.Namespace, argv: Sequence[str]) -> diagnose.Question:
    """Return the doctor's question. Raises UsageError."""
    job = Job(options.backend, options.expect_gpus, options.expect_nics, options.local, options.mixed_gpus)
    return diagnose.ask(arguments.judging(options), ("doctor", *argv), job)


def _look_and_judge(
    options: argparse.Namespace, argv: Sequence[str], flags: Flags, launch: Launch, waiting: Waiting
) -> int:
    """Return the exit code, once `waiting` has made room for the report. Raises UsageError."""
    question = _question(options, argv)
    if options.captures:
        collectors = discover("ncclprobe.facts", Collector, diagnose.MACHINE)
        from ncclprobe.engine.captures import judge_captures

        judge = partial(judge_captures, question, collectors, options.captures, one_job=options.one_job)
        return _deliver(options, question, judge, waiting)
    given: dict[Question, str] = {(SAMPLE, "flags"): json.dumps(flags.given)} if flags.given else {}
    if options.paths:
        given[SAMPLE, "asked_paths"] = json.dumps(asdict(asked(options)))
    if not nodes.has_peers(launch, options):
        if not launch.speaks_for_node and not launch.problems:
            return ExitCode.OK
        return _judge_alone(options, question, given, waiting)
    return nodes.meet(options, launch, question, given, ("doctor", *shared(options)), waiting=waiting)


def _judge_alone(
    options: argparse.Namespace, question: diagnose.Question, given: Mapping[Question, str], waiting: Waiting
) -> int:
    """Inspect and judge this node; return the exit code. Raises UsageError if --keep cannot be written."""
    if options.keep:
        nodes.make_folder(options.keep)
    collectors = discover("ncclprobe.facts", Collector, diagnose.MACHINE)
    deadline = question.clock + doctor.look_s(options.timeout)
    snapshot, answers = observed(collectors, deadline, given)
    if options.keep:
        save(options.keep / files.named_after(snapshot.node), dump(answers, snapshot.node))
    return _deliver(options, question, partial(diagnose.diagnose, question, [snapshot]), waiting)


def _deliver(
    options: argparse.Namespace, question: diagnose.Question, judge: Callable[[], Report], waiting: Waiting
) -> int:
    """Deliver the report of `judge` within --timeout, and return its exit code."""
    try:
        report = doctor.within(question, options.timeout, judge)
        waiting.end()
    except OutOfTime as late:
        waiting.end()
        print(f"ncclprobe: {late}; nothing was judged", file=sys.stderr, flush=True)
        return ExitCode.INCONCLUSIVE
    code = delivery.deliver(report, arguments.output(options))
    arguments.keep_in_fleet(options, report, question.clock + options.timeout - time.monotonic())
    return code


def _judge_run(options: argparse.Namespace, argv: Sequence[str], logs: Sequence[Path]) -> int:
    """Judge a measured run again, from its log and the captures of its nodes. Raises UsageError."""
    if len(logs) > 1:
        raise UsageError(f"{logs[1]} is a second run log; give one run.jsonl, with the captures of its nodes")
    question = diagnose.ask(arguments.judging(options), ("doctor", *argv), Job(local=options.local), diagnose.MEASURED)
    with Waiting("judging the run", wanted=not options.quiet) as waiting:
        return _deliver(options, question, partial(_report_of_run, options, question, logs[0]), waiting)


def _report_of_run(options: argparse.Namespace, question: diagnose.Question, log: Path) -> Report:
    from ncclprobe.commands.run_files import expected_bands  # imports of what was measured, which others do without
    from ncclprobe.engine import measured

    run = measured.run_facts(RunLog.read(log))
    captures = [path for path in options.captures if path != log]
    snapshots = replayed(captures, discover("ncclprobe.facts", Collector, diagnose.MACHINE))
    if options.expect:
        run = measured.expecting(run, expected_bands(options.expect), options.expect)
    elif options.rejudge:
        run = measured.rejudged(run, snapshots)
    return diagnose.diagnose(question, snapshots, run)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "doctor",
        "Check whether this machine, or a captured one, is fit for an NCCL job. Started on several nodes, by a "
        "launcher or with --nnodes, it also compares the nodes and probes the network between them.",
    )
    add = parser.add_argument
    add("captures", nargs="*", type=Path, metavar="CAPTURE",
        help="Judge these captures instead of this machine, one per node.")  # fmt: skip
    add("--one-job", action="store_true",
        help="Compare the captures as nodes of one job (default: only if their job id, or their master and ranks, "
        "show that they are).")  # fmt: skip
    add("--backend", choices=("nccl", "gloo"), default="nccl",
        help="Check the machine for jobs that use this library (default: %(default)s).")  # fmt: skip
    add("--local", action="store_true", help="Check this node only, even under a launcher.")
    nodes.options(parser)
    options(parser)
    add("--expect-gpus", type=arguments.count, metavar="N", help="Fail if fewer than N GPUs are usable.")
    add("--expect-nics", type=arguments.count, metavar="N",
        help="Fail if NCCL would use fewer than N fast NICs on a node. Over sockets it uses none.")  # fmt: skip
    add("--mixed-gpus", action="store_true", help="Do not fail if nodes have different numbers of GPUs.")
    arguments.selection(parser)
    arguments.fleet_store(parser)
    hosts.options(parser)
    add("--expect", metavar="FILE", help="Judge a run.jsonl by the numbers in FILE: TOML, or an earlier report.")
    add("--rejudge", action="store_true", help="Judge a run.jsonl by this release's expectations.")
    add("--timeout", type=arguments.positive, metavar="SECONDS",
        help=f"End after this many seconds (default: {_TIMEOUT_S:g}; captures: no limit).")  # fmt: skip
    arguments.arguments(parser)
    return parser
