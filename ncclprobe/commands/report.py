"""``ncclprobe report FILE…``: render saved reports again, in turn; exit with the highest of their codes."""

import argparse
import json
import sys
from collections.abc import Sequence

from ncclprobe.commands import arguments
from ncclprobe.commands.run_files import printable_lines
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.report import delivery
from ncclprobe.report import json as as_json
from ncclprobe.report.delivery import FORMATS


def main(argv: Sequence[str]) -> int:
    """Render the report and return its own exit code. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.schema:
        json.dump(as_json.schema(), sys.stdout, indent=2)
        print()
        return 0
    redactor = arguments.redactor(options)
    if not options.files:
        raise UsageError("report: give a JSON report, or --schema")
    written = [name for name in (*FORMATS, "nodes_out") if getattr(options, name)]
    if len(options.files) > 1 and written:
        raise UsageError(f"--{written[0].replace('_', '-')} takes only one report")
    if len(options.files) > bounds.SERIES_REPORTS:
        raise UsageError(f"{len(options.files)} reports; give {bounds.SERIES_REPORTS} at most")
    codes = []
    for file in options.files:
        report = as_json.read(file)
        report = redactor.report(report) if redactor else report
        if len(options.files) > 1 and not options.quiet:
            print(printable_lines([f"{file}:"]))
        codes.append(delivery.deliver(report, arguments.output(options)))
    return max(codes)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "report",
        "Render a saved JSON report, and exit with the code of its verdict. Several are shown one after the other; the "
        "exit code is the highest.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="Read this report, written with --json.")
    parser.add_argument("--schema", action="store_true", help="Print the JSON Schema of reports.")
    arguments.arguments(parser, judges=False)
    arguments.redaction(parser)
    return parser
