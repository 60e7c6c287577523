"""Where a finished report goes: the terminal, and the files that the command line names."""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ncclprobe.errors import UsageError
from ncclprobe.model import Report
from ncclprobe.report import text as as_text

if TYPE_CHECKING:
    from ncclprobe.redact import Redactor


class Parser(argparse.ArgumentParser):
    """A command's parser: its complaints are one line, and no option may be abbreviated."""

    def __init__(self, command: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"ncclprobe {command}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message}; see {self.prog} --help")


def positive(text: str) -> float:
    """A number of seconds above zero, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above zero")
    return number


def count(text: str) -> int:
    """A whole number above zero, for argparse."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is no whole number above zero")
    return int(text)


def destination(text: str) -> str:
    """A path to write to, or - for standard output, for argparse: found out before anything is looked at."""
    folder = Path(text).parent
    if text != "-" and not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: cannot be written: there is no folder {folder}")
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: cannot be written: it is a folder")
    if Path(text).is_fifo() and not text.startswith("/dev/"):
        raise argparse.ArgumentTypeError(f"{text}: is a pipe, which nobody may ever read; use - or a file")
    return text


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that every reporting command has."""
    parser.add_argument(
        "--json", type=destination, metavar="PATH", help="also write the report as JSON; -: to stdout alone"
    )
    parser.add_argument(
        "--fail-on", choices=("warn", "fail"), default="fail", help="exit 4 from this on (default: %(default)s)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="one line only")
    parser.add_argument("-v", "--verbose", action="store_true", help="also versions, settings and each check by name")
    parser.add_argument("--no-color", action="store_true", help="plain text (also NO_COLOR)")


def redaction(parser: argparse.ArgumentParser) -> None:
    """Add the options that replace names and addresses by pseudonyms."""
    add = parser.add_argument
    add("--redact", action="store_true", help="pseudonyms for names, addresses, UUIDs, serials; under a random key")
    add(
        "--redact-key",
        metavar="KEY",
        help="the same, under KEY: equal on every node; long, for whoever knows it guesses",
    )


def redactor(options: argparse.Namespace) -> "Redactor | None":
    """What the options of :func:`redaction` ask for. A random key is told to the user and kept nowhere.

    Raises UsageError for an empty key.
    """
    if not options.redact and options.redact_key is None:
        return None
    from ncclprobe.redact import Redactor, random_key

    if options.redact_key == "":
        raise UsageError("--redact-key: the key is empty; give a long word that nobody guesses, or --redact alone")
    key = options.redact_key or random_key()
    if not options.redact_key:
        print(
            f"ncclprobe: kept nowhere, the same on all nodes if you use it there: --redact-key {key}", file=sys.stderr
        )
    return Redactor(key)


def deliver(report: Report, options: argparse.Namespace) -> None:
    """Write `report` wherever `options` ask for it. Raises UsageError."""
    if options.json != "-":
        show(report, quiet=options.quiet, verbose=options.verbose, no_color=options.no_color)
    if options.json:
        from ncclprobe.report import json as as_json  # msgspec costs as much as all of looking

        as_json.write(report, options.json)


def show(report: Report, *, quiet: bool, verbose: bool, no_color: bool, rows: bool = True) -> None:
    """Print `report` to standard output; without `rows`, its measurements were shown as they came."""
    if quiet:
        text = as_text.quiet(report)
    else:
        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        text = as_text.render(report, rows=rows, verbose=verbose, width=width, style=_style(no_color))
    sys.stdout.write(text)
    sys.stdout.flush()


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
