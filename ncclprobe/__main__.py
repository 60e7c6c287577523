"""The ``ncclprobe`` command: finds the sub-command, and turns what goes wrong into exit codes. No logic of its own."""

import argparse
import atexit
import contextlib
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ncclprobe import __version__
from ncclprobe.errors import UsageError
from ncclprobe.model.findings import ExitCode

EXIT_INTERRUPTED = 130  # as the shell says it: 128 + SIGINT
_OBJECTS_BEFORE_GC = 50_000

COMMANDS = {
    "accept": "is this node, or job, good? doctor, all_reduce, pairs and copies in one launch and one report",
    "doctor": "is this machine, or a captured one, fit for an NCCL job?",
    "bandwidth": "measure collectives across ranks and judge the numbers",
    "pairs": "send-recv between all pairs of ranks: which node, NIC, direction or pair is slow",
    "copies": "what the links between host and GPU, and between GPUs, carry inside a node",
    "affinity": "what the ranks' processors cost, and how to bind them",
    "workload": "the collectives of one training step, and the groups of a hybrid-parallel job",
    "capture": "write what was asked and answered on this machine, to be judged anywhere",
    "topo": "how GPUs and NICs reach each other, as nvidia-smi prints it here or did in a file",
    "expect": "what this machine, a named or a captured one should reach, why, and what a fault costs",
    "checks": "every check there is; --json",
    "explain": "one check: the problem, why it matters, how it is decided, how to fix it",
    "baseline": "keep runs as what this site expects of machines with the same fingerprint",
    "compare": "two runs side by side, judged with their noise: what is slower, new or gone",
    "report": "render a saved JSON report; exits with the report's own code",
}
"""Each command and its purpose. Its module in ncclprobe.commands has a ``main(argv)`` that returns the exit code; only
the one that was asked for is imported."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (contract.md, Exit codes)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    _look_for_cycles_rarely()
    _prepare_streams()
    code = _guarded(argv)
    if code and "TORCHELASTIC_RUN_ID" in os.environ:
        from ncclprobe.session.ranks.torchrun import explain_exit

        explain_exit(code, fail_on="warn" if {"warn", "--fail-on=warn"} & {*argv} else "fail")
    return code


def _look_for_cycles_rarely() -> None:
    """Set the garbage collector for a short life: values hold no cycles, and searching for some was a sixth of a start.

    At the end nothing is searched: the kernel takes all memory back at once.
    """
    gc.set_threshold(_OBJECTS_BEFORE_GC)
    atexit.register(gc.freeze)


def _guarded(argv: list[str]) -> int:
    """Run one command; whatever goes wrong becomes one line and an exit code."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _say(str(error), ExitCode.USAGE)
    except BrokenPipeError:  # `ncclprobe … | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN
    except KeyboardInterrupt:
        return _say("interrupted; nothing was judged", EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _say(f"a bug of ncclprobe, not of this machine: {error!r}; {_kept()}", ExitCode.BROKEN)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _say("standard output cannot be written: no space left; the report is lost", ExitCode.BROKEN)
    except Exception as error:  # noqa: BLE001 - a bug of ours must never look like a verdict on the machine
        return _say(f"a bug of ncclprobe, not of this machine: {error!r}; {_kept()}", ExitCode.BROKEN)


def _run(argv: list[str]) -> int:
    if argv and argv[0] in COMMANDS:
        return int(importlib.import_module(f"ncclprobe.commands.{argv[0]}").main(argv[1:]))
    _parser().parse_args(argv or ["--help"])
    return ExitCode.USAGE


def _prepare_streams() -> None:
    """No text of a machine may be unprintable, and a stream that the caller closed is one that nobody reads."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - it lives as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _say(message: str, code: int) -> int:
    """One line on standard error, if it can be written at all; a file's name may hold more than letters."""
    message = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message)
    with contextlib.suppress(OSError):
        print(f"ncclprobe: {message}", file=sys.stderr, flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="ncclprobe",
        description="NCCL and interconnect diagnostics.",
        epilog=f"commands:\n{listing}\n\n`ncclprobe COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ncclprobe {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    return parser


def _kept() -> str:
    """Write the traceback to a file of its own, and say which."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="ncclprobe-", suffix=".traceback", delete=False) as file:
            traceback.print_exc(file=file)
    except OSError:
        return "its traceback could not be written"
    return f"traceback in {file.name}"


if __name__ == "__main__":
    sys.exit(main())
