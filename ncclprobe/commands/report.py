"""``ncclprobe report FILE…``: render a saved report again, or several as a series; exits with the newest one's code."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ncclprobe.commands import arguments
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.report import Report
from ncclprobe.report import delivery, trends
from ncclprobe.report import json as as_json
from ncclprobe.report import text as as_text
from ncclprobe.report.delivery import FORMATS
from ncclprobe.report.trends import Past

if TYPE_CHECKING:
    from ncclprobe.redact.redactor import Redactor


def main(argv: Sequence[str]) -> int:
    """Render the report and return its own exit code. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.schema:
        json.dump(as_json.schema(), sys.stdout, indent=2)
        print()
        return 0
    redactor = arguments.redactor(options)
    if not options.files:
        raise UsageError("report: name a JSON report, or ask for --schema")
    if len(options.files) > 1:
        return _series(options, redactor)
    report = as_json.read(options.files[0])
    report = redactor.report(report) if redactor else report
    if options.nccl_tests:
        from ncclprobe.nccl_tests.writer import save

        save(report, options.nccl_tests)
    return delivery.deliver(report, arguments.output(options))


def _series(options: argparse.Namespace, redactor: "Redactor | None") -> int:
    """Show several reports in the order of their time, and the newest as the page. Raises UsageError."""
    for name in (*FORMATS, "nodes_out", "nccl_tests"):
        if name != "html" and getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} takes one report; of several --html and the terminal show trends"
            )
    if len(options.files) > bounds.SERIES_REPORTS:
        raise UsageError(f"{len(options.files)} reports; give {bounds.SERIES_REPORTS} at most")
    newest, history, notes = _read_series(options.files, redactor)
    for each in notes:
        print(f"ncclprobe: {each}", file=sys.stderr)
    if options.html:
        from ncclprobe.report import html

        delivery.put(html.render(newest, history), options.html)
    if options.html != "-":
        told = [as_text.quiet(newest)] if options.quiet else list(trends.lines(history, delivery.width()))
        print("\n".join(told))
    return newest.exit_code


def _read_series(files: Sequence[str], redactor: "Redactor | None") -> tuple[Report, list[Past], list[str]]:
    """Return the newest report, what a series keeps of each, oldest first, and which files were given twice.

    The others are not held in memory.
    """
    newest, at, first = None, -math.inf, dict[str, str]()
    history, notes = list[Past](), list[str]()
    for file in files:
        report, digest = as_json.read_with_digest(file)
        report = redactor.report(report) if redactor else report
        name = redactor.text(Path(file).name) if redactor else Path(file).name
        if digest in first:
            notes.append(f"{name} is the same report as {first[digest]}: it counts once")
            continue
        first[digest] = name
        history.append(trends.past(report, name))
        if newest is None or history[-1].time_s >= at:
            newest, at = report, history[-1].time_s
    assert newest is not None
    return newest, sorted(history, key=lambda each: each.time_s), notes


def _file(text: str) -> str:
    """Return a destination that is a file: of several operations each is a file of its own."""
    if text == "-":
        raise argparse.ArgumentTypeError("name a file; several operations become several files next to it")
    return arguments.destination(text)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "report",
        "Render a saved JSON report, and exit with the code of its verdict. Of several, show the trends: what each "
        "said, how fast each operation was, since when a node fails; the exit code is the newest one's.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="Read this report, written with --json.")
    parser.add_argument("--schema", action="store_true", help="Print the JSON Schema of reports, and end.")
    parser.add_argument("--nccl-tests", type=_file, metavar="PATH",
                        help="Also write its rows in the format of nccl-tests: JSON (-J), or a table where PATH "
                        "ends in .txt or .log; one file per operation.")  # fmt: skip
    arguments.arguments(parser, judges=False)
    arguments.redaction(parser)
    return parser
