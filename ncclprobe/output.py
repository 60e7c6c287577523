"""Where a finished report goes: the terminal, and the files that the command line names."""

import argparse
import os
import shutil
import sys

from ncclprobe.model import Report
from ncclprobe.report import text as as_text


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every reporting command has."""
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; - is standard output")
    parser.add_argument(
        "--fail-on", choices=("warn", "fail"), default="fail", help="what makes exit code 4 (%(default)s)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="one line only")
    parser.add_argument("-v", "--verbose", action="store_true", help="also versions, settings and skipped checks")
    parser.add_argument("--no-color", action="store_true", help="plain text (also NO_COLOR)")


def deliver(report: Report, options: argparse.Namespace) -> None:
    """Write `report` wherever `options` ask for it. Raises UsageError."""
    if options.json:
        from ncclprobe.report import json as as_json  # msgspec costs as much as all of looking

        as_json.write(report, options.json)
    if options.json != "-":
        show(report, options)


def show(report: Report, options: argparse.Namespace, *, rows: bool = True) -> None:
    """Print `report` as `options` ask; without `rows`, its measurements were shown as they came."""
    sys.stdout.write(as_text.quiet(report) if options.quiet else _full(report, options, rows))
    sys.stdout.flush()


def _full(report: Report, options: argparse.Namespace, rows: bool) -> str:
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    return as_text.render(report, rows=rows, verbose=options.verbose, width=width, style=_style(options.no_color))


def _style(no_color: bool) -> as_text.Style:
    """Colour on a terminal that wants it and where the extra `terminal` is installed."""
    if no_color or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return as_text.unstyled
    try:
        from rich.style import Style
    except ImportError:
        return as_text.unstyled
    colours = {"fail": "bold red", "warn": "bold yellow", "unknown": "bold magenta", "pass": "bold green"}
    return lambda text, status: Style.parse(colours.get(status, "bold")).render(text)
