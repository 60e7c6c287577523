"""``ncclprobe capture``: everything that the doctor asks this machine, with the answers, in one file."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ncclprobe import signals
from ncclprobe.commands import arguments
from ncclprobe.engine.collect import observed
from ncclprobe.host.capture import dump, save
from ncclprobe.model.errors import OutOfTime
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import Collector, discover


def main(argv: Sequence[str]) -> int:
    """Write a capture of this machine and return 0, or 3 if --timeout cut it. Raises UsageError."""
    options = _parser().parse_args(argv)
    redactor = arguments.redactor(options)
    deadline = signals.began() + options.timeout
    snapshot, answers = observed(discover("ncclprobe.facts", Collector, {"machine"}), deadline)
    text, node = dump(answers, snapshot.node), snapshot.node
    if redactor:
        text, node = redactor.capture(text), redactor.text(node)
    if options.output == "-":
        sys.stdout.write(text)
        return ExitCode.OK
    path = Path(options.output or re.sub(r"[^\w.-]", "_", node) + ".jsonl")
    save(path, text)
    late = sum(isinstance(said, OutOfTime) for said in answers.values())
    if late:
        print(f"{path}: incomplete: {late} questions were not asked: time, threads or memory ran out", file=sys.stderr)
        return ExitCode.INCONCLUSIVE
    print(f"{path}: {len(answers)} answers; judge them with `ncclprobe doctor {path}`")
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "capture",
        "Save everything that `ncclprobe doctor` reads from this machine in one file, a capture.",
    )
    parser.add_argument("-o", "--output", type=arguments.destination, metavar="PATH",
        help="Write to PATH; use - for standard output (default: HOSTNAME.jsonl).")  # fmt: skip
    parser.add_argument(
        "--timeout",
        type=arguments.positive,
        default=120.0,
        metavar="SECONDS",
        help="End after this many seconds (default: %(default)g).",
    )
    arguments.redaction(parser)
    return parser
