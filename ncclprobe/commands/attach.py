"""``ncclprobe attach``: examine a job while it hangs: which rank, in which call, since when."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ncclprobe import signals
from ncclprobe.commands import arguments, hosts
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode

if TYPE_CHECKING:
    from ncclprobe.engine import diagnose
    from ncclprobe.host import Question
    from ncclprobe.host.capture import Answers
    from ncclprobe.logs.read import JobFiles
    from ncclprobe.model.report import Report
    from ncclprobe.model.snapshot import Snapshot
    from ncclprobe.redact.redactor import Redactor

_TIMEOUT_S, _WATCH_S, _LAST_RESORT_S = 60.0, 3600.0, 5.0
_AGAIN_S = 15.0
"""Time left of --timeout that is needed to look at the ranks again."""
_BETWEEN_S = 1.0
"""From the second look of a watch to the first of the next: each makes the ranks dump all that they recorded."""
PREPARE = """\
# At the top level of the program (torch 2.10 and later): each rank then reports the
# collectives that it has called to programs of its own node. torch.distributed.debug.start_debug_server() reports
# them to every node, and ends a program that has not installed what its web page needs.
try:
    from torch._C._distributed_c10d import _WorkerServer

    records_for_attach = _WorkerServer("127.0.0.1", 0)
except (ImportError, RuntimeError) as error:
    print("ncclprobe attach will see less of this rank:", error)
"""


def main(argv: Sequence[str]) -> int:
    """Examine the ranks of a job on this node and report their state. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.pid and options.prepare:
        raise UsageError("--prepare examines no process; leave --pid out")
    if options.pid and not Path(f"/proc/{options.pid}").exists():
        raise UsageError(f"--pid {options.pid}: no such process on this node; `ps -ef` lists all processes")
    if options.prepare:
        print(PREPARE, end="")
        return ExitCode.OK
    if options.watch and options.watch < 1:
        raise UsageError("--watch: the shortest interval is 1 second")
    options.timeout = options.timeout or (_WATCH_S if options.watch else _TIMEOUT_S)
    redactor = arguments.redactor(options)
    signals.end_by(options.timeout + _LAST_RESORT_S)
    from ncclprobe.engine import diagnose
    from ncclprobe.model.snapshot import Job
    from ncclprobe.report import delivery

    question = diagnose.ask(arguments.judging(options), ("attach", *argv), Job(), diagnose.LEFT)
    end = time.monotonic() + options.timeout
    options.redactor = redactor
    if (where := hosts.named(options)).names:
        return delivery.deliver(
            _attach_to_hosts(options, where, ("attach", *argv), question), arguments.output(options)
        )
    report = _watch(options, question, end) if options.watch else _examine(options, question, end)
    report = redactor.report(report) if redactor else report
    return delivery.deliver(report, arguments.output(options))


def _watch(options: argparse.Namespace, question: "diagnose.Question", end: float) -> "Report":
    """Look repeatedly, one line on stderr per look, until the answer changes or time is up."""
    from ncclprobe.model.values import replace
    from ncclprobe.report.causes import Watch

    watch = Watch()
    while True:
        next_look = time.monotonic() + options.watch
        try:
            report = _examine(options, question, end)
        except UsageError as error:
            if watch.last is None:
                raise
            return replace(watch.last, notes=(*watch.last.notes, f"the watch ended: {error}", *watch.notes()))
        line = watch.add(report)
        if not options.quiet:
            print(line, file=sys.stderr, flush=True)
        next_look = max(next_look, time.monotonic() + _BETWEEN_S)
        if watch.changed or next_look > end:
            return replace(report, notes=(*report.notes, *watch.notes()))
        time.sleep(max(next_look - time.monotonic(), 0.0))


def asked_of(options: argparse.Namespace, stacks: bool) -> dict[str, object]:
    """Return the non-default requests of a look; defaults are omitted, as in captures by older versions."""
    return {"pid": options.pid or 0, "stacks": stacks, **({"dumps": True} if options.dumps else {})}


def _examine(options: argparse.Namespace, question: "diagnose.Question", end: float) -> "Report":
    """Return the report on a job; on one that makes no progress with stacks, if py-spy is installed."""
    from ncclprobe.engine.diagnose import diagnose as report_on
    from ncclprobe.facts.job.ranks import JobState
    from ncclprobe.host import files, py_spy
    from ncclprobe.host.capture import dump
    from ncclprobe.report.progress import Waiting

    with Waiting("examining the ranks of the job", wanted=not (options.quiet or options.watch)):
        snapshot, answers, found = _look(options, end, options.stacks)
        works = found.facts[JobState].answer.word == "WORKING"
        if not (works or options.stacks) and end - time.monotonic() > _AGAIN_S and py_spy.installed():
            with contextlib.suppress(UsageError):  # the job has ended meanwhile: the first look stands
                snapshot, answers, found = _look(options, end, True)
    notes = []
    if options.keep:
        kept, node = dump(answers, snapshot.node), snapshot.node
        if options.redactor:
            kept = options.redactor.capture(kept)
            node = options.redactor.text(node)
        files.write(options.keep / files.named_after(node), kept, private=True)
        notes = [f"kept: {options.keep} (ncclprobe explain {options.keep})"]
    return report_on(question, facts={type(found): found}, notes=notes)


def _look(options: argparse.Namespace, end: float, stacks: bool) -> "tuple[Snapshot, Answers, JobFiles]":
    from ncclprobe.engine import running
    from ncclprobe.engine.collect import observed
    from ncclprobe.facts.job.ranks import LocalRanks
    from ncclprobe.host import SAMPLE
    from ncclprobe.model.units import printable

    asked: dict[Question, str] = {(SAMPLE, "attach"): json.dumps(asked_of(options, stacks))}
    snapshot, answers = observed(running.collectors(), min(end, time.monotonic() + _TIMEOUT_S), asked)
    for line in running.jobs(snapshot.facts[LocalRanks]):
        print(printable(line), file=sys.stderr)
    return snapshot, answers | asked, running.stands([snapshot])


def _attach_to_hosts(
    options: argparse.Namespace, where: hosts.Hosts, line: Sequence[str], question: "diagnose.Question"
) -> "Report":
    """Return the report on a job whose hosts each examine their own ranks. Raises UsageError if none has any."""
    from ncclprobe.commands import over_ssh
    from ncclprobe.engine import running
    from ncclprobe.engine.collect import capture_facts
    from ncclprobe.engine.diagnose import diagnose as report_on
    from ncclprobe.host.capture import parse

    if options.watch or options.pid:
        raise UsageError(
            f"{'--watch' if options.watch else '--pid'} examines one node, so it cannot be used with --hosts"
        )
    asked = over_ssh.Started(where, line, options.timeout, arguments.output(options))
    kept, started = over_ssh.look(asked, question)
    snapshots = [capture_facts(parse(text, name), running.collectors()) for name, text in kept.items()]
    if not snapshots:
        words = "; ".join(f"{each.host}: {each.words}" for each in started.failed)
        raise UsageError(f"--hosts: no rank of a job was found on any host{f' ({words})' if words else ''}")
    if options.keep:
        over_ssh.keep(options.keep, _redact_captures(options.redactor, kept), 0)
    found = running.stands(snapshots)
    notes = [f"{each.host} was not examined ({each.words})" for each in started.failed]
    report = over_ssh.add_hosts(report_on(question, facts={type(found): found}, notes=notes), question, started)
    return options.redactor.report(report) if options.redactor else report


def _redact_captures(redactor: "Redactor | None", kept: Mapping[str, str]) -> Mapping[str, str]:
    """Redact the hosts' captures if --redact is given; their files are then numbered."""
    if redactor is None:
        return kept
    return {f"host{number}.jsonl": redactor.capture(text) for number, text in enumerate(kept.values())}


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "attach",
        "Examine a running job on this node, and name the rank that blocks the others, what it is doing, and since "
        "when. No process is stopped or signalled. Without --dumps nothing is written to the job.",
    )
    add = parser.add_argument
    add("--pid", type=arguments.count, metavar="PID",
        help="Examine the job of this process, which is a rank or started the ranks.")  # fmt: skip
    add("--stacks", action="store_true",
        help="Read the Python stacks immediately, with py-spy (pip install py-spy). No process is stopped. "
        "By default stacks are read only if a rank blocks the job.",
    )  # fmt: skip
    add("--dumps", action="store_true",
        help="If a rank has no worker server but has TORCH_NCCL_DEBUG_INFO_PIPE_FILE set, write a byte to that pipe "
        "and read "
        "the flight records that torch then writes.",
    )  # fmt: skip
    add("--prepare", action="store_true", help="Print lines to add to your program, so that attach sees more of it.")
    add("--keep", type=arguments.folder, metavar="DIR",
        help="Save the collected data to DIR; `ncclprobe explain DIR` can read it on any machine.")  # fmt: skip
    add("--exit-code", action="store_true",
        help="Exit with 4 if a cause is named, and with 3 if something hangs for an unknown reason.",
    )  # fmt: skip
    add("--watch", type=arguments.positive, metavar="SECONDS",
        help="Repeat at this interval until the answer changes, and print the number of calls made in between.",
    )  # fmt: skip
    add("--timeout", type=arguments.positive, metavar="SECONDS",
        help=f"End after this many seconds (default: {_TIMEOUT_S:g}, with --watch {_WATCH_S:g}).")  # fmt: skip
    arguments.arguments(parser, judges=False)
    arguments.selection(parser)
    arguments.redaction(parser)
    hosts.options(parser)
    parser.set_defaults(fail_on="fail", fleet=None)
    return parser
