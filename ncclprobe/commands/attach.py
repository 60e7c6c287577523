"""``ncclprobe attach``: the job that stands still, while it stands: which rank, where, since when."""

import argparse
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclprobe import interrupt
from ncclprobe.commands import arguments
from ncclprobe.model.findings import ExitCode

if TYPE_CHECKING:
    from ncclprobe.engine import diagnose
    from ncclprobe.host import Question
    from ncclprobe.model.report import Report

_TIMEOUT_S, _LAST_RESORT_S = 60.0, 5.0
_PREPARE = """\
# In the program, after torch.distributed.init_process_group (torch 2.10 and later).
# Every rank then answers on a port of its node to whoever asks: do so in a network that you trust.
import torch.distributed.debug; torch.distributed.debug.start_debug_server()
"""


def main(argv: Sequence[str]) -> int:
    """Look at the ranks of a job on this node and say how they stand. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.prepare:
        print(_PREPARE, end="")
        return ExitCode.OK
    redactor = arguments.redactor(options)
    interrupt.end_by(options.timeout + _LAST_RESORT_S)
    from ncclprobe.engine import diagnose
    from ncclprobe.model.snapshot import Job
    from ncclprobe.model.values import replace

    question = replace(diagnose.ask(options, ("attach", *argv), Job(), diagnose.LEFT), gates=options.exit_code)
    report = _looked(options, question)
    report = redactor.report(report) if redactor else report
    from ncclprobe.report import delivery

    return delivery.deliver(report, options)


def _looked(options: argparse.Namespace, question: "diagnose.Question") -> "Report":
    from ncclprobe.engine import running
    from ncclprobe.engine.diagnose import diagnose as report_on
    from ncclprobe.engine.observe import observed
    from ncclprobe.host import SAMPLE, files
    from ncclprobe.host.capture import dump
    from ncclprobe.report.progress import Waiting

    asked: dict[Question, str] = {(SAMPLE, "attach"): json.dumps({"pid": options.pid or 0, "stacks": options.stacks})}
    with Waiting("looking at the ranks of the job", wanted=not options.quiet):
        snapshot, answers = observed(running.collectors(), time.monotonic() + options.timeout, asked)
        found = running.stands([snapshot])
    notes = []
    if options.keep:
        files.write(options.keep / files.named_after(snapshot.node), dump(answers | asked, snapshot.node), private=True)
        notes = [f"kept: {options.keep} (ncclprobe explain {options.keep})"]
    return report_on(question, [], notes=notes, left=found)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "attach",
        "Look at a job that runs on this node, and say which rank keeps the others waiting, what it does, and since "
        "when. Nothing is stopped, signalled or written.",
    )
    add = parser.add_argument
    add("--pid", type=arguments.count, metavar="PID",
        help="Look at the job of this process: a rank, or what has started ranks.")  # fmt: skip
    add("--stacks", action="store_true",
        help="Also read the Python stacks with py-spy, without stopping anything (pip install 'ncclprobe[stacks]').",
    )  # fmt: skip
    add("--prepare", action="store_true", help="Print what to put into a program, so that more is seen of it.")
    add("--keep", type=arguments.folder, metavar="DIR",
        help="Keep what was seen in DIR, for `ncclprobe explain DIR` anywhere.")  # fmt: skip
    add("--exit-code", action="store_true",
        help="Exit with 4 where a cause is named, and with 3 where something stands whose cause cannot be told.",
    )  # fmt: skip
    add("--timeout", type=arguments.positive, default=_TIMEOUT_S, metavar="SECONDS",
        help="End after so many seconds (default: %(default)g).")  # fmt: skip
    arguments.arguments(parser, judges=False)
    arguments.selection(parser)
    arguments.redaction(parser)
    parser.set_defaults(fail_on="fail")
    return parser
