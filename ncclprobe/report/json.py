"""The report as JSON, ``ncclprobe.report/1``: written atomically, read back strictly, with its JSON Schema."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.errors import UsageError
from ncclprobe.model import SCHEMA, Report

MAX_REPORT_BYTES = 256 << 20


def render(report: Report) -> str:
    """`report` as indented JSON text with real types and a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema, generated from the types of :mod:`ncclprobe.model`."""
    return msgspec.json.schema(Report)


def write(report: Report, path: str) -> None:
    """Write `report` to `path`; ``-`` is standard output. A reader never sees half a file. Raises UsageError."""
    text = render(report)
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.exists() and not target.is_file():  # /dev/stdout, a named pipe: nothing to replace
            target.write_text(text, encoding="utf-8")
            return
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}; choose another path") from None


def read(path: str) -> Report:
    """The report in `path`. Raises UsageError for anything that is not a whole report of this schema."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_REPORT_BYTES:
            raise UsageError(f"{path}: larger than {MAX_REPORT_BYTES >> 20} MiB: not a report of ours")
        report = msgspec.json.decode(file.read_bytes(), type=Report)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a whole {SCHEMA} report: {error}") from None
    if report.schema != SCHEMA:
        raise UsageError(f"{path}: its schema is {report.schema!r}; this version reads {SCHEMA}")
    return report
