"""The parser and the options that commands share, and their ``--help``.

``--help`` of a command with many options shows only what a newcomer needs, by task, with an example each;
``--help-all``
shows every option. A command that is not listed here has few options, and shows all of them.
"""

import argparse
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from ncclprobe.commands import output_paths
from ncclprobe.engine.suppressions import NO_FILE
from ncclprobe.host import files
from ncclprobe.model import outcomes
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.layout import columns, wrap
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import Struct
from ncclprobe.report import delivery
from ncclprobe.report.delivery import FORMATS, GITHUB, SUMMARY, Output

if TYPE_CHECKING:
    from ncclprobe.engine.diagnose import Judging
    from ncclprobe.model.report import Report
    from ncclprobe.redact.redactor import Redactor

MOST = 14
"""Maximum number of options in --help, itself included."""


class _Brief(Struct, frozen=True):
    """The options of each task, and commands to copy."""

    tasks: Mapping[str, str]
    examples: tuple[str, ...]


_REPORT = "--json --html --quiet --verbose"

BRIEF: Mapping[str, _Brief] = MappingProxyType(
    {
        "doctor": _Brief(
            {
                "what to check": "--backend --local --path --expect-gpus",
                "several nodes": "--hosts --hostfile --remote-python",
                "what counts": "--ignore",
                "the report": _REPORT,
            },
            (
                "ncclprobe doctor",
                "ncclprobe doctor --hosts n1,n2,n3",
                "srun --ntasks-per-node=1 ncclprobe doctor --path /data",
                "ncclprobe doctor node7.jsonl",
            ),
        ),
        "accept": _Brief(
            {
                "what to measure": "--level --backend --ladder",
                "how it is judged": "--expect-gpus --expect --require-judged",
                "the run": "--timeout --keep",
                "the report": _REPORT,
            },
            (
                "ncclprobe accept",
                "ncclprobe accept --level quick",
                "srun --ntasks-per-node=8 ncclprobe accept --json accept.json --ladder",
            ),
        ),
        "bandwidth": _Brief(
            {
                "what to measure": "--op -b -e -n --backend",
                "how it is judged": "--expect --require-judged",
                "the run": "--nproc --timeout",
                "the report": "--json --quiet --verbose",
            },
            (
                "ncclprobe bandwidth",
                "torchrun --nproc-per-node=gpu -m ncclprobe.bandwidth --op all_gather -e 1G",
                "ncclprobe bandwidth --nproc 8 --expect bands.toml --json report.json",
            ),
        ),
        "pairs": _Brief(
            {
                "what to measure": "-b -e --rounds --backend",
                "how it is judged": "--require-judged",
                "the run": "--nproc --timeout --keep",
                "the report": _REPORT,
            },
            ("srun --ntasks-per-node=8 ncclprobe pairs", "torchrun --nproc-per-node=gpu -m ncclprobe.pairs"),
        ),
        "copies": _Brief(
            {
                "what to measure": "--backend --nproc",
                "how it is judged": "--require-judged",
                "the run": "--timeout --keep",
                "the report": _REPORT,
            },
            ("ncclprobe copies", "ncclprobe copies --nproc 8 --json copies.json"),
        ),
        "workload": _Brief(
            {
                "what to measure": "--params --layers --tokens --groups --backend",
                "the run": "--nproc --timeout --keep",
                "the report": _REPORT,
            },
            (
                "torchrun --nproc-per-node=gpu -m ncclprobe.workload ddp,fsdp --params 7B",
                "srun --ntasks-per-node=8 ncclprobe workload --groups tp=8,dp=2",
            ),
        ),
        "rails": _Brief(
            {
                "what to test": "--full-bisection --force",
                "several nodes": "--hosts --hostfile --nnodes",
                "the run": "--timeout --keep",
                "the report": _REPORT,
            },
            ("srun --ntasks-per-node=1 ncclprobe rails", "ncclprobe rails --hosts node[1-8]"),
        ),
        "expect": _Brief(
            {
                "which machine": "--machine --nodes --gpus-per-node --list",
                "which numbers": "--op -b -e --judge --algo",
                "the report": "--json --html",
            },
            (
                "ncclprobe expect",
                "ncclprobe expect --machine a3-megagpu-8g --nodes 16 --op all_reduce",
                "ncclprobe expect node7.jsonl --op all_gather,all_to_all -b 1M -e 8G",
                "ncclprobe expect --machine '8 x L40S, 2 sockets, no P2P'",
                "ncclprobe expect --judge all_reduce.log",
            ),
        ),
        "explain": _Brief(
            {
                "what counts": "--exit-code --ignore",
                "names and addresses": "--redact --redact-key",
                "the report": "--json --html --markdown --quiet --verbose",
            },
            (
                "ncclprobe explain slurm-4711.out",
                "ncclprobe explain logs/ kernel.log --redact",
                "ncclprobe explain NCCL_IB_TIMEOUT",
            ),
        ),
        "attach": _Brief(
            {
                "what to examine": "--pid --hosts --stacks --dumps --prepare",
                "what counts": "--exit-code",
                "the run": "--keep --timeout",
                "the report": _REPORT,
            },
            (
                "ncclprobe attach",
                "srun --jobid=42 --overlap -N2 --ntasks-per-node=1 ncclprobe attach --keep hang",
                "ncclprobe explain hang",
            ),
        ),
    }
)


_MOST_SHOWN = 200
"""Characters of a path in an error message."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fits descriptions to the terminal: fills paragraphs, keeps indented lines, with a hanging indent for lists."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns(80) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        joined = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
        lines = (_filled(line, width) for line in joined.splitlines())
        return "\n".join(indent + line for each in lines for line in each)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap("", " ".join(text.split()), width, whole=True)


def _filled(line: str, width: int) -> list[str]:
    item = re.match(r" +\S+  +", line)
    if not item and (line.startswith(" ") or not line):
        return [line]  # a command or a file to copy
    lead = item[0] if item else ""
    return wrap(lead, line[len(lead) :], width, whole=True)


_OF_ARGPARSE = {
    ": expected one argument": ": its value is missing",
    ": ignored explicit argument ": " takes no value, but was given ",
    ": not allowed with argument ": " cannot be used with ",
}
"""argparse's messages in words for readers who do not know its terms."""


class _Help(argparse.Action):
    """Print the help and exit: all of it for --help-all."""

    def __call__(self, parser: argparse.ArgumentParser, _space: Any, _values: Any, option: str | None = None) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_help() if option == _ALL else parser.format_brief(), end="", flush=True)
        parser.exit()


_ALL = "--help-all"
_CODES = "exit codes:"


class Parser(argparse.ArgumentParser):
    """A command's parser: errors take one line, and options cannot be abbreviated.

    ``--help`` shows the command's _Brief, if it has one, and ``--help-all`` everything. Both end with the exit codes.
    """

    def __init__(self, command: str, description: str, epilog: str = "") -> None:
        self._brief = BRIEF.get(command)
        super().__init__(
            prog=f"ncclprobe {command}",
            description=description,
            epilog="\n\n".join(filter(None, (epilog, outcomes.epilog(command)))),
            allow_abbrev=False,
            add_help=False,
            formatter_class=HelpFormatter,
        )
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="Show the most common options."
                          if self._brief else "Show this help.")  # fmt: skip
        self.add_argument(_ALL, action=_Help, nargs=0, help="Show all options." if self._brief else argparse.SUPPRESS)

    def format_usage(self) -> str:
        """Return the usage as one line; options are listed below it."""
        found = self._get_formatter()
        found.add_usage(None, [each for each in self._actions if not each.option_strings], [])
        return found.format_help().replace(self.prog, f"{self.prog} [OPTION …]", 1)

    def format_help(self) -> str:
        """Return the complete help."""
        found = self._get_formatter()
        found.add_text(self.description)
        for group in self._action_groups:
            found.start_section(group.title)
            found.add_text(group.description)
            found.add_arguments(group._group_actions)
            found.end_section()
        for text in (self._examples(), self.epilog):
            found.add_text(text)
        return f"{self.format_usage()}\n{found.format_help()}"

    def format_brief(self) -> str:
        """Return the help for a newcomer: arguments, options by task, examples, exit codes."""
        if self._brief is None:
            return self.format_help()
        found, options = self._get_formatter(), self._option_string_actions
        found.add_text(self.description)
        arguments = [each for each in self._actions if not each.option_strings]
        tasks = {task: [options[name] for name in names.split()] for task, names in self._brief.tasks.items()}
        for title, actions in {"arguments": arguments, **tasks, "more": [options["-h"], options[_ALL]]}.items():
            found.start_section(title)
            found.add_arguments(actions)
            found.end_section()
        found.add_text(self._examples())
        found.add_text(next((each for each in (self.epilog or "").split("\n\n") if each.startswith(_CODES)), None))
        return f"{self.format_usage()}\n{found.format_help()}"

    def _examples(self) -> str | None:
        return "\n".join(["examples:", *(f"  {each}" for each in self._brief.examples)]) if self._brief else None

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse `args`. Raises UsageError, also for a file that would be overwritten."""
        return output_paths.refused(self, super().parse_args(args))

    def parse_intermixed_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse `args` that may have options between the words of one argument."""
        return output_paths.refused(self, super().parse_intermixed_args(args))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse an empty word, such as an unset variable: it would be taken for the default, or for `.`."""
        if any(not word.strip() for word in arg_strings):
            raise argparse.ArgumentError(action, "the value is empty")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, with the option that may have been meant."""
        helps = f"{self.prog} --help"
        stray = message.partition("unrecognized arguments: ")[2]
        if stray.startswith("-"):
            option = stray.partition(" ")[0].partition("=")[0]
            options = [*self._option_string_actions]
            near = [each for each in options if len(option) > 3 and each.startswith(option)]
            raise unknown(option, f"option of {self.prog}", options, f"`{helps}` lists all options", near)
        if stray:
            raise UsageError(f"{stray.partition(' ')[0]}: unexpected argument; see {helps}")
        missing = message.partition("the following arguments are required: ")[2]
        text = f"{missing} is missing" if missing else message.removeprefix("argument ")
        for theirs, ours in _OF_ARGPARSE.items():
            text = text.replace(theirs, ours)
        raise UsageError(f"{text} See {helps}" if text.endswith("?") else f"{text}; see {helps}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is not among an option's choices, with the usual message for unknown words."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, str(unknown(str(value), "choice", [*map(str, action.choices)])))


def known(option: str, kind: str, given: str, names: Collection[str]) -> None:
    """Check that `given` is one of `names`. Raises UsageError with what may have been meant."""
    if given not in names:
        raise UsageError(f"{option}: {unknown(given, kind, names)}")


def operations(text: str) -> tuple[str, ...]:
    """Return the collectives in the value of --op, without duplicates. Raises UsageError."""
    names = tuple(OPS) if text == "all" else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        known("--op", "operation", name, OPS)
    return names


def invalid(text: str, wanted: str) -> argparse.ArgumentTypeError:
    """Return argparse's error for a value that is not what the option takes."""
    return argparse.ArgumentTypeError(f"must be {wanted}, not {text[:_MOST_SHOWN]!a}")


def positive(text: str) -> float:
    """Parse a positive number, such as seconds, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise invalid(text, "a number above 0 and below 1e9")
    return number


def count(text: str) -> int:
    """Parse a positive integer, for argparse."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise invalid(text, "a whole number above zero")
    return int(text)


def whole(text: str) -> int:
    """Parse a non-negative integer, for argparse."""
    if not (text.isascii() and text.isdecimal()):
        raise invalid(text, "a whole number, 0 or more")
    return int(text)


def destination(text: str) -> str:
    """Check an output path, or - for standard output, for argparse, before the command starts."""
    path = Path(text)
    try:
        if text != "-" and not path.parent.is_dir():
            raise argparse.ArgumentTypeError(
                f"{text}: cannot be written, because the folder {path.parent} does not exist"
            )
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: cannot be written, because it is a folder")
        if path.is_fifo() and not text.startswith("/dev/"):
            raise argparse.ArgumentTypeError(
                f"{text}: cannot be written: a pipe without a reader blocks; give a file, or - for standard output"
            )
        _refuse_closed(text, path.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # too long, not permitted, NUL, links in a circle (up to 3.12)
        raise argparse.ArgumentTypeError(_unwritable(text, error)) from None
    return text


def _refuse_closed(text: str, target: Path) -> None:
    """Refuse an unwritable output before the run; the folder must be writable, because a file is replaced."""
    into = target if target.exists() and not target.is_file() else target.parent
    if text != "-" and not os.access(into, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{text}: cannot be written, because you have no permission for {into}; choose another path"
        )


def _unwritable(text: str, error: Exception) -> str:
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    other = "its name contains a NUL" if isinstance(error, ValueError) else "its links form a loop"
    return f"{shown}: cannot be written: {getattr(error, 'strerror', None) or other}"


def arguments(parser: argparse.ArgumentParser, *, judges: bool = True) -> None:
    """Add the options of every reporting command; `judges`: also those of a command with its own verdict.

    An unwritable path is refused here, before the command starts.
    """
    add = parser.add_argument_group(
        "reports", "For one of them PATH may be -: standard output then contains only that report."
    )
    put = partial(add.add_argument, metavar="PATH")
    for name, about in FORMATS.items():
        put(f"--{name}", type=_markdown if name == "markdown" else destination, help=about)
    put("--nodes-out", type=_node_lists, metavar="DIR",
        help="Write lists of good, bad, unsure and missing nodes to this folder.")  # fmt: skip
    if judges:
        add.add_argument("--fail-on", choices=("warn", "fail"), default="fail",
            help="Exit with 4 at this severity or above (default: %(default)s).")  # fmt: skip
    flag = partial(add.add_mutually_exclusive_group().add_argument, action="store_true")
    flag("-q", "--quiet", help="Print one line only.")
    flag("-v", "--verbose", help="Print versions, settings and every check too.")
    add.add_argument("--no-color", action="store_true",
        help="Print without colours, like NO_COLOR=1 (default: colours on a terminal).")  # fmt: skip


def json_option(parser: argparse.ArgumentParser) -> None:
    """Add --json to a command without a report."""
    parser.add_argument("--json", type=destination, metavar="PATH",
        help="Also write JSON to PATH; use - for standard output, which then has no text report.")  # fmt: skip


def write_json(given: argparse.Namespace, kind: str, told: Mapping[str, Any]) -> None:
    """Write the result of a command without a report to --json. Raises UsageError if it cannot be written."""
    text = json.dumps({"schema": f"ncclprobe.{kind}/1", **told}, indent=2) + "\n"
    delivery.put(text, given.json, ours=delivery.recognises("json"))


def output(given: argparse.Namespace) -> Output:
    """Return the requested outputs, and how they are shown."""
    files = {name: path for name in FORMATS if (path := getattr(given, name))}
    return Output(files, given.nodes_out, given.quiet, given.verbose, given.no_color)


def selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that select checks, and that accept findings."""
    group = parser.add_argument_group("checks")
    add = partial(group.add_argument, action="append", default=[], metavar="GLOB")
    add("--select", help="Run only these checks, such as 'env.*' (default: all).")
    add("--ignore", help="Skip these checks, such as 'env.*', or one subject of a check: 'ID=SUBJECT'.")
    accepted = group.add_mutually_exclusive_group()
    accepted.add_argument("--config", type=Path, metavar="PATH",
        help="Read the findings that this site accepts from PATH (default: ./ncclprobe.toml).")  # fmt: skip
    accepted.add_argument("--no-config", dest="config", action="store_const", const=NO_FILE,
        help="Do not read ./ncclprobe.toml.")  # fmt: skip


def fleet_store(parser: argparse.ArgumentParser) -> None:
    """Add --fleet, for commands whose reports a store keeps."""
    parser.add_argument("--fleet", type=Path, metavar="PATH",
        help="Also judge the nodes by their history in this file of `ncclprobe fleet`, and add this report to "
        "it.")  # fmt: skip


def keep_in_fleet(given: argparse.Namespace, report: "Report", left_s: float) -> None:
    """Add a delivered report to the store of --fleet, if any; report what prevents it."""
    if given.fleet:
        from ncclprobe.engine import history

        history.keep(report, given.fleet, str(given.json or ""), left_s, delivery.complain)


def judging(given: argparse.Namespace) -> "Judging":
    """Return the options that concern judging."""
    from ncclprobe.engine.diagnose import Judging  # and with it all that judges, which `--help` does without

    return Judging(
        select=tuple(given.select),
        ignore=tuple(given.ignore),
        config=given.config,
        fail_on=given.fail_on,
        pictures=bool(given.verbose or given.json or given.html),
        gates=getattr(given, "exit_code", True),
        fleet=getattr(given, "fleet", None),
    )


def folder(text: str) -> Path:
    """Make an owner-only output folder, for argparse, before the command starts."""
    path = Path(text)
    try:
        files.make_folder(path, 0o700)
    except OSError as error:
        raise argparse.ArgumentTypeError(_unwritable(text, error)) from None
    return path


def existing_folder(text: str) -> Path:
    """Return the absolute path of an input folder, for argparse."""
    path = Path(text)
    try:
        if not path.is_dir():
            raise argparse.ArgumentTypeError(f"{ascii(text)[:200]} is not a folder")
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        raise argparse.ArgumentTypeError(f"{ascii(text)[:200]} cannot be read") from None


def _markdown(text: str) -> str:
    if text == GITHUB and not os.environ.get(SUMMARY):
        raise argparse.ArgumentTypeError(f"{GITHUB}: {SUMMARY} is not set, so this is not a GitHub Actions job")
    return text if text == GITHUB else destination(text)


def _node_lists(text: str) -> Path:
    from ncclprobe.report.nodes import NAMES

    folder = Path(text)
    try:
        if folder.exists() and not folder.is_dir():
            raise argparse.ArgumentTypeError(f"{text}: not a folder")
        if not folder.exists() and not folder.parent.is_dir():
            raise argparse.ArgumentTypeError(
                f"{text}: cannot be created, because the folder {folder.parent} does not exist"
            )
    except OSError as error:
        raise argparse.ArgumentTypeError(_unwritable(text, error)) from None
    for name in NAMES if folder.is_dir() else ():  # a pipe of that name would keep the whole run waiting
        destination(str(folder / name))
    return folder


def redaction(parser: argparse.ArgumentParser) -> None:
    """Add the options that replace names and addresses by pseudonyms."""
    add = parser.add_argument
    add("--redact", action="store_true",
        help="Replace names, addresses, UUIDs and serial numbers with pseudonyms, using a random key that is not kept."
    )  # fmt: skip
    add("--redact-key", metavar="KEY",
        help="Like --redact, but with this key, so that every node gets the same pseudonyms. Use a long random key."
    )  # fmt: skip


def redactor(options: argparse.Namespace) -> "Redactor | None":
    """Return the requested redactor, if any. A random key is neither printed nor stored."""
    if not options.redact and options.redact_key is None:
        return None
    from ncclprobe.redact.redactor import Redactor, random_key

    return Redactor(options.redact_key or random_key())
