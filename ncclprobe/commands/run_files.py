"""Runs in files that users name: our own reports, and nccl-tests' output."""

from collections.abc import Sequence
from pathlib import Path

from ncclprobe.expect import bands
from ncclprobe.host import files
from ncclprobe.host.pasted_logs import unwrapped
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Band
from ncclprobe.model.units import printable
from ncclprobe.nccl_tests import NOT_GIVEN, Given, Run, parse_json, parse_text


def whole_runs(path: str) -> tuple[Run, ...]:
    """Return the runs in a file. Raises UsageError if one lacks its operation or ranks."""
    runs = read_runs(path)
    for run in runs:
        if run.missing:
            raise UsageError(f"{path}: {run.missing}")
    return runs


def read_runs(path: str, given: Given = NOT_GIVEN) -> tuple[Run, ...]:
    """Return the runs in one of our reports, or in nccl-tests' JSON or text, completed by what the user has `given`.

    Raises UsageError.
    """
    text = unwrapped(files.read(Path(path), limit=bounds.RUN_FILE_BYTES))
    if not text.lstrip().startswith("{"):
        return parse_text(text, path, given)
    if schema_of(text, path) == "nccl-tests":
        return (parse_json(text, path),)
    from ncclprobe.report import json as as_json

    report = as_json.read(path)
    return (Run(path, report.started, report.measurements, report.fingerprint),)


def schema_of(text: str, path: str) -> str:
    """Return the schema of JSON text, or ``nccl-tests``; empty if it is not JSON of either. Raises UsageError."""
    import msgspec

    class Head(msgspec.Struct):
        schema: str = ""
        results: msgspec.Raw = msgspec.Raw(b"")

    try:
        head = msgspec.json.decode(text, type=Head)
    except (msgspec.DecodeError, RecursionError) as error:
        from ncclprobe.report.json import other_kind

        raise UsageError(f"{path}: not whole JSON: {other_kind(text, path, error)}") from None
    return head.schema or ("nccl-tests" if bytes(head.results) else "")


def printable_lines(lines: Sequence[str]) -> str:
    """Escape whatever a file may have smuggled into `lines`."""
    return "\n".join(map(printable, lines))


def expected_bands(path: str | None, tolerance: float = bands.TOLERANCE) -> tuple[Band, ...]:
    """Return the bands in the file at `path`: an earlier report if it is JSON, otherwise TOML. Raises UsageError."""
    if path is None:
        return ()
    text = files.read(Path(path), limit=bounds.EXPECT_BYTES)
    if not text.lstrip().startswith("{"):
        return bands.from_toml(text, path, tolerance)
    from ncclprobe.report import json as as_json

    return bands.from_report(as_json.read(path), path, tolerance)
