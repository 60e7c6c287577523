"""What the command lines of all commands share: their parser, their common options, and how a refusal reads."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ncclprobe.engine.suppressions import NO_FILE
from ncclprobe.errors import UsageError
from ncclprobe.report.delivery import FORMATS, GITHUB, SUMMARY

if TYPE_CHECKING:
    from ncclprobe.redact.redactor import Redactor

_MOST_SHOWN = 200
"""Characters of a path in a refusal."""


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
    path = Path(text)
    try:
        if text != "-" and not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: cannot be written: there is no folder {path.parent}")
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: cannot be written: it is a folder")
        if path.is_fifo() and not text.startswith("/dev/"):
            raise argparse.ArgumentTypeError(f"{text}: is a pipe, which may never be read; use - or a file")
        path.resolve()
    except (
        OSError,
        RuntimeError,
    ) as error:  # a name too long, a folder not ours, links in a circle (up to Python 3.12)
        raise argparse.ArgumentTypeError(_unwritable(text, error)) from None
    return text


def _unwritable(text: str, error: Exception) -> str:
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    return f"{shown}: cannot be written: {getattr(error, 'strerror', None) or 'its links lead in a circle'}"


def arguments(parser: argparse.ArgumentParser, *, judges: bool = True) -> None:
    """Add the options that every reporting command has, and that those have which come to a verdict of their own.

    What they lack is found out here, before anything is done.
    """
    add = parser.add_argument
    put = partial(parser.add_argument, action=Place, metavar="PATH")
    put("--json", type=destination, help="also write the report as JSON; -, as with the next four: to stdout alone")
    put("--junit", type=_needing("report", "junitparser"), help="as JUnit XML, for the tests' page of a CI")
    put("--markdown", type=_markdown, help=f"as Markdown; {GITHUB}: as the summary of this job of GitHub Actions")
    put("--html", type=_needing("html", "plotly", "jinja2"), help="as one page that opens offline")
    put("--prometheus", type=_needing("report", "prometheus_client"), help="as NAME.prom for the textfile collector")
    add("--nodes-out", type=_node_lists, action=Place, metavar="DIR",
        help="lists of nodes there: good, bad, unsure, missing")  # fmt: skip
    if judges:
        add("--fail-on", choices=("warn", "fail"), default="fail", help="exit 4 from this on (default: %(default)s)")
    add("-q", "--quiet", action="store_true", help="one line only")
    add("-v", "--verbose", action="store_true", help="also versions, settings and each check by name")
    add("--no-color", action="store_true", help="plain text (also NO_COLOR; FORCE_COLOR is its opposite)")


def selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which checks count, and which findings a site accepts."""
    add = parser.add_argument
    add("--select", action="append", default=[], metavar="GLOB", help="only these checks, such as 'env.*'")
    add(
        "--ignore", action="append", default=[], metavar="GLOB", help="not these: 'env.*', or one subject: 'ID=SUBJECT'"
    )
    accepted = parser.add_mutually_exclusive_group()
    accepted.add_argument(
        "--config", type=Path, metavar="PATH", help="findings to live with, and why (default: ./ncclprobe.toml)"
    )
    accepted.add_argument(
        "--no-config", dest="config", action="store_const", const=NO_FILE, help="leave ./ncclprobe.toml unread"
    )


def folder(text: str) -> Path:
    """A folder to write to, for argparse: made, for its owner alone, before anything is looked at."""
    path = Path(text)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(_unwritable(text, error)) from None
    return path


class Place(argparse.Action):
    """Where one format goes: no two go to the same place, nor to a file that the lists of nodes take."""

    def __call__(self, parser: argparse.ArgumentParser, into: argparse.Namespace, value: Any, _: Any = None) -> None:
        for other in (*FORMATS, "nccl_tests", "nodes_out"):
            taken = set(_files(getattr(into, other, None))) if other != self.dest else set()
            for path in _files(value):
                if path != os.devnull and any(_same(each, path) for each in taken):
                    where = "standard output" if path == "-" else path
                    both = f"--{other} and --{self.dest}".replace("_", "-")
                    parser.error(f"{both}: {where} takes one of them; give the other another path")
        setattr(into, self.dest, value)


def _files(value: str | Path | None) -> tuple[str, ...]:
    """The files that an option writes: of the folder of --nodes-out its lists."""
    if isinstance(value, Path):
        from ncclprobe.report.nodes import NAMES

        return tuple(str(value / name) for name in NAMES)
    return () if value is None else (value,)


def _same(one: str | None, other: str) -> bool:
    """Whether both are one place, however it is written: the later format would replace the earlier one."""
    words = ("-", GITHUB)
    return one == other or (one is not None and not {one, other} & {*words} and
                            os.path.realpath(one) == os.path.realpath(other))  # fmt: skip


def refuse_input(options: argparse.Namespace, path: str) -> None:
    """Raises UsageError where a format would replace the report at `path` that it is made from. JSON may: it is one."""
    for name in (*FORMATS, "nccl_tests"):
        if name != "json" and _same(getattr(options, name, None), path):
            raise UsageError(f"--{name.replace('_', '-')} {path}: that is the report itself; give another path")


def _needing(extra: str, *modules: str) -> Callable[[str], str]:
    """A :func:`destination` of a format that takes `modules`, which the extra `extra` brings."""

    def checked(text: str) -> str:
        _require(extra, *modules)
        return destination(text)

    return checked


def _require(extra: str, *modules: str) -> None:
    """Found out without importing them: that costs as much as all of looking."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise argparse.ArgumentTypeError(f"needs {', '.join(missing)}: pip install 'ncclprobe[{extra}]'")


def _markdown(text: str) -> str:
    if text == GITHUB and not os.environ.get(SUMMARY):
        raise argparse.ArgumentTypeError(f"{GITHUB}: {SUMMARY} is not set, so this is no job of GitHub Actions")
    return text if text == GITHUB else destination(text)


def _node_lists(text: str) -> Path:
    _require("report", "ClusterShell")
    from ncclprobe.report.nodes import NAMES

    folder = Path(text)
    try:
        if folder.exists() and not folder.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: is no folder")
        if not folder.exists() and not folder.parent.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: cannot be made: there is no folder {folder.parent}")
    except OSError as error:
        raise argparse.ArgumentTypeError(_unwritable(text, error)) from None
    for name in NAMES if folder.is_dir() else ():  # a pipe of that name would keep the whole run waiting
        destination(str(folder / name))
    return folder


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
    from ncclprobe.redact.redactor import Redactor, random_key

    if options.redact_key == "":
        raise UsageError("--redact-key: the key is empty; give a long word that cannot be guessed, or --redact alone")
    key = options.redact_key or random_key()
    if not options.redact_key:
        print(
            f"ncclprobe: kept nowhere, the same on all nodes if you use it there: --redact-key {key}", file=sys.stderr
        )
    return Redactor(key)
