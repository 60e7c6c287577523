"""The commands, one module each, and what they share: names, errors, exit codes."""

import argparse
import codecs
import contextlib
import errno
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from ncclprobe import __version__, signals
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.findings import ExitCode

EXIT_READER_LEFT = 141  # 128 + SIGPIPE

GROUPS = {
    "try it": {
        "demo": "Show an example report, on any machine, in a second.",
    },
    "before a job": {
        "accept": "Check a node or a job, then measure it, and accept or reject it.",
        "doctor": "Check whether this machine, or a captured one, is fit for NCCL.",
        "deploy": "Write launch files for Slurm, Kubernetes, GitHub or Prometheus.",
    },
    "measure": {
        "bandwidth": "Measure collectives across ranks and judge their bandwidth.",
        "pairs": "Measure pairs of ranks; name the slow node, NIC or direction.",
        "rails": "Test the RDMA ports of all nodes pairwise, as NCCL would.",
        "copies": "Measure copies between host and GPU, and between GPUs of a node.",
        "workload": "Replay the collectives of a training step and of its groups.",
    },
    "after or during a job": {
        "attach": "Name the rank that blocks a running job, and the reason.",
        "explain": "Explain why a job failed, from its logs; or explain a check.",
    },
    "compare and keep": {
        "report": "Render a saved JSON report in another form; exit with its code.",
        "compare": "Compare two runs: what is slower beyond noise, new, or gone.",
        "baseline": "Save runs as the reference for later runs on this machine.",
        "fleet": "Keep reports of all nodes; name the nodes that got worse.",
        "capture": "Save what the doctor reads here, to judge it on any machine.",
    },
    "look up": {
        "expect": "Show the rates that a machine should reach, and judge a log.",
        "topo": "Show how GPUs and NICs are connected, and what looks wrong.",
        "checks": "List the checks, all or those of a group such as ib.",
        "mcp": "Serve explain, doctor, expect, judge and lookup to an assistant.",
        "completion": "Print the completion script for bash, zsh or fish.",
    },
}
"""Commands with their purpose, by task."""
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
"""Each command and its purpose. Its module in ncclprobe.commands has a ``main(argv)`` that returns the exit code; only
the requested one is imported.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/reference/exit-codes.md)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    argv = ["--help"] if argv == ["--help-all"] else argv  # as every command has it: here nothing is left out
    _prepare_streams()
    code = _run_and_report_errors(argv)
    if code and "TORCHELASTIC_RUN_ID" in os.environ:
        from ncclprobe.session.ranks.rank_files import explain_exit

        explain_exit(code, fail_on="warn" if {"warn", "--fail-on=warn"} & {*argv} else "fail")
    return code


def _run_and_report_errors(argv: list[str]) -> int:
    """Run one command; turn every error into one line and an exit code."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _say(str(error), ExitCode.USAGE)
    except BrokenPipeError:  # `ncclprobe … | head`: the reader has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READER_LEFT
    except KeyboardInterrupt as interrupted:
        number = getattr(interrupted, "number", signal.SIGINT)
        code = 128 + number  # torchrun ends the other ranks where rank 0 has said what is wrong
        from ncclprobe.session.ranks.rank_files import FOLDER  # this costs only where a run is interrupted

        ended_by_another = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
        silent = ended_by_another or FOLDER in os.environ  # who started the ranks reports
        return code if silent else _say("interrupted; nothing was judged", code)
    except MemoryError:
        return _say(f"{signals.NO_MEMORY}; nothing was judged", ExitCode.INCONCLUSIVE)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # only what a user names can be so
            return _say(f"{os.fsdecode(error.filename or 'a path')[:80]}: {error.strerror}", ExitCode.USAGE)
        if error.errno not in (errno.ENOSPC, errno.EBADF):
            return _say(f"a bug of ncclprobe, not of this machine: {error!r}; {_save_traceback()}", ExitCode.BROKEN)
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _say(
            f"standard output cannot be written: {error.strerror}; the requested output is lost", ExitCode.USAGE
        )
    except Exception as error:  # noqa: BLE001 - a bug of ours must never look like a verdict on the machine
        return _say(f"a bug of ncclprobe, not of this machine: {error!r}; {_save_traceback()}", ExitCode.BROKEN)


def _run(argv: list[str]) -> int:
    if argv[:1] == ["help"]:
        argv = ["--help"] if argv[1:2] in (["help"], ["version"]) else [*argv[1:2], "--help", *argv[2:]]
    if argv == ["version"]:
        argv = ["--version"]
    if argv and argv[0] in COMMANDS:
        command = importlib.import_module(f"ncclprobe.commands.{argv[0]}")
        if "--config" in " ".join(argv) or Path("ncclprobe.toml").is_file():
            from ncclprobe.commands import defaults

            argv = [argv[0], *defaults.words(command._parser(), argv[1:], COMMANDS), *argv[1:]]
        return int(command.main(argv[1:]))
    if argv and argv[0] not in ("-h", "--help", "--version"):
        order = "; options follow the command" if argv[0].startswith("-") else ""
        known = (*COMMANDS, "help", "version", "--help", "--version")
        raise unknown(argv[0], "command", known, f"`ncclprobe --help` lists all commands{order}")
    print(f"ncclprobe {__version__}\n" if argv[:1] == ["--version"] else _help(), end="")
    return ExitCode.OK


_IN_ASCII = {"·": "-", "×": "x", "±": "+-", "…": "...", "–": "-", "•": "*", "µ": "u", "→": "->", "’": "'"}
"""Replacements of our own characters for a stream that cannot encode them."""


def _replace_unprintable(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot encode; an error handler for :func:`codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in found), error.end


class _Closed(io.TextIOBase):
    """Standard output that the caller closed. Printing to it fails instead of being lost silently."""

    def __init__(self) -> None:
        os.open(os.devnull, os.O_WRONLY)  # so that no file gets its number

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


_STEERING = re.compile(
    r"#(?P<hash>#)(?=\[|vso\[)|^[ \t]*(?P<colon>:)(?=:[A-Za-z])"
    r"|(?P<control>[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069])",
    re.MULTILINE,
)
"""Commands to the reader of a stream. A GitHub runner obeys ``##[`` anywhere in a line and ``::word`` at its start, an
Azure
runner also ``##vso[``, a terminal the eight-bit controls of ISO 6429 and marks that change the text direction.
"""


class Screen:
    """A stream for a terminal or a runner: commands to them are escaped as in JSON, so JSON stays JSON.

    It is the last step of all output of a command, on standard output and on standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text` with commands escaped."""
        self._stream.write(_STEERING.sub(_spelled, text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _spelled(match: "re.Match[str]") -> str:
    character = match[match.lastgroup or 0]
    return match[0][: -len(character)] + f"\\u{ord(character):04x}"


def _prepare_streams() -> None:
    """Make all output printable and harmless, and replace a stream that the caller closed."""
    codecs.register_error("plainly", _replace_unprintable)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w") if name == "stderr" else _Closed())  # noqa: SIM115 - it stays
        elif not isinstance(stream, Screen):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="plainly")
            setattr(sys, name, Screen(stream))


def _say(message: str, code: int) -> int:
    """Print one line on standard error, folded on a terminal, with unprintable characters escaped; return `code`."""
    message = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message)
    with contextlib.suppress(OSError):
        lines = [f"ncclprobe: {message}"]
        if sys.stderr.isatty():
            from ncclprobe.model.layout import columns, wrap

            lines = wrap("ncclprobe: ", message, columns(80), whole=True)
        print(*lines, sep="\n", file=sys.stderr, flush=True)
    return code


def _help() -> str:
    from ncclprobe.commands.arguments import HelpFormatter

    width = max(map(len, COMMANDS))
    listing = "\n\n".join(
        "\n".join((f"{title}:", *(f"  {name:<{width}}  {about}" for name, about in group.items())))
        for title, group in GROUPS.items()
    )
    parser = argparse.ArgumentParser(
        prog="ncclprobe",
        usage="ncclprobe COMMAND [OPTION …]",
        description="Check whether NCCL and the interconnect are fit for a job, and name what is at fault.",
        epilog=f"{listing}\n\nStart with `ncclprobe accept`, or after a failure with `ncclprobe explain FILE`. "
        "`ncclprobe help COMMAND` explains one command.",
        add_help=False,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("-h", "--help", action="help", help="Show this help.")
    parser.add_argument("--version", action="version", version=f"ncclprobe {__version__}", help="Show the version.")
    return parser.format_help()


def _save_traceback() -> str:
    """Write the traceback to a file, and say which."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="ncclprobe-", suffix=".traceback", delete=False) as file:
            traceback.print_exc(file=file)
    except OSError:
        return "its traceback could not be written"
    return f"traceback in {file.name}"
