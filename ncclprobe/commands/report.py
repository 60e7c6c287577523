"""``ncclprobe report FILE``: render a saved report again; exits with the code the report carries."""

import argparse
import json
import sys
from collections.abc import Sequence

from ncclprobe.commands import arguments
from ncclprobe.errors import UsageError
from ncclprobe.report import delivery
from ncclprobe.report import json as as_json


def main(argv: Sequence[str]) -> int:
    """Render the report and return its own exit code. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.schema:
        json.dump(as_json.schema(), sys.stdout, indent=2)
        print()
        return 0
    redactor = arguments.redactor(options)
    if not options.file:
        raise UsageError("report: name a JSON report, or ask for --schema")
    arguments.refuse_input(options, options.file)
    report = as_json.read(options.file)
    report = redactor.report(report) if redactor else report
    if options.nccl_tests:
        from ncclprobe.nccl_tests.writer import save

        save(report, options.nccl_tests)
    delivery.deliver(report, options)
    return report.exit_code


def _file(text: str) -> str:
    """Return a destination that is a file: of several operations each is a file of its own."""
    if text == "-":
        raise argparse.ArgumentTypeError("name a file; several operations become several files next to it")
    return arguments.destination(text)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("report", "Render a saved JSON report, and exit with the code of its verdict.")
    parser.add_argument("file", nargs="?", metavar="FILE", help="Read this report, written with --json.")
    parser.add_argument("--schema", action="store_true", help="Print the JSON Schema of reports, and end.")
    parser.add_argument("--nccl-tests", type=_file, action=arguments.Place, metavar="PATH",
                        help="Also write its rows in the format of nccl-tests: JSON (-J), or a table where PATH "
                        "ends in .txt or .log; one file per operation.")  # fmt: skip
    arguments.arguments(parser, judges=False)
    arguments.redaction(parser)
    return parser
