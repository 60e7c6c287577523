"""``ncclprobe capture``: everything the doctor asks this machine and what it answered, as one file."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ncclprobe import output
from ncclprobe.doctor import observed
from ncclprobe.errors import UsageError
from ncclprobe.model import Collector
from ncclprobe.registry import discover


def main(argv: Sequence[str]) -> int:
    """Write a capture of this machine and return 0. Raises UsageError."""
    options = _parser().parse_args(argv)
    deadline = time.monotonic() + options.timeout
    snapshot, text = observed(discover("ncclprobe.facts", Collector), deadline)
    if options.output == "-":
        sys.stdout.write(text)
        return 0
    path = Path(options.output or f"{snapshot.node}.jsonl")
    _write(path, text)
    print(f"{path}: {text.count(chr(10)) - 1} answers of {snapshot.node}; judge it with `ncclprobe doctor {path}`")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = output.Parser("capture", "Write all that the doctor asks this machine, and the answers, as one file.")
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="where to (default: HOSTNAME.jsonl; - is standard output)"
    )
    parser.add_argument(
        "--timeout", type=output.positive, default=120.0, metavar="SECONDS", help="whole run (default: %(default)g)"
    )
    return parser


def _write(path: Path, text: str) -> None:
    """All of `text` or nothing; readable by its owner only, for it describes a machine."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise UsageError(f"{path}: cannot be written: {error.strerror}; choose another --output") from None
