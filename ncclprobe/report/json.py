"""The report as JSON, ``ncclprobe.report/1``: written atomically, read back strictly, with its JSON Schema."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe import files
from ncclprobe.errors import UsageError
from ncclprobe.model import SCHEMA, ExitCode, Report, Status

MAX_REPORT_BYTES = 256 << 20

_CODES = {
    Status.PASS: (ExitCode.OK,),
    Status.WARN: (ExitCode.OK, ExitCode.FAIL),
    Status.FAIL: (ExitCode.FAIL,),
    Status.UNKNOWN: (ExitCode.INCONCLUSIVE,),
}


def render(report: Report) -> str:
    """`report` as indented JSON text with real types and a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema, generated from the types of :mod:`ncclprobe.model`."""
    return msgspec.json.schema(Report)


def write(report: Report, path: str) -> None:
    """Write `report` to `path`; ``-`` is standard output. A reader never sees half a file. Raises UsageError."""
    if path == "-":
        sys.stdout.write(render(report))
        sys.stdout.flush()
    else:
        files.write(Path(path), render(report))


def read(path: str) -> Report:
    """The report in `path`. Raises UsageError for anything that is not a whole report of this schema."""
    try:
        report = msgspec.json.decode(files.read(Path(path), limit=MAX_REPORT_BYTES), type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a whole {SCHEMA} report: {error}") from None
    if report.schema != SCHEMA:
        raise UsageError(f"{path}: its schema is {report.schema!r}; this version reads {SCHEMA}")
    if report.exit_code not in _CODES.get(report.status, ()):
        raise UsageError(f"{path}: exit code {report.exit_code} contradicts status {report.status.value}: not ours")
    return report
