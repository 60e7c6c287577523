"""The report as JSON, ``ncclprobe.report/1``: written atomically, read strictly, with its JSON Schema."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Status
from ncclprobe.model.report import SCHEMA, Report, digest

SCHEMA_FILE = Path(__file__).with_name("schema.json")
"""The JSON Schema as shipped. ``ncclprobe report --schema`` prints the current one."""

_CODES = {
    Status.PASS: (ExitCode.OK,),
    Status.WARN: (ExitCode.OK, ExitCode.FAIL),
    Status.FAIL: (ExitCode.FAIL,),
    Status.UNKNOWN: (ExitCode.INCONCLUSIVE,),
}


_ANSWERS = tuple(
    f'{{\n  "schema": "ncclprobe.{kind}/1"'
    for kind in ("checks", "comparison", "expectation", "fleet", "judgement", "topology")
)
"""Beginnings of the output of commands that make no report."""


def render(report: Report) -> str:
    """Return `report` as indented JSON text with real types and a final newline."""
    try:
        text = msgspec.json.encode(report)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_encodable(msgspec.to_builtins(report)))
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _encodable(value: Any) -> Any:
    """Escape lone surrogates: answers in captures may contain them, UTF-8 may not."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list | tuple) else value


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12), generated from the types of :mod:`ncclprobe.model`.

    Keys may be added to reports of the same schema, so none is forbidden, and only what every report has is required.
    """
    found = _tidy(msgspec.json.schema(Report))
    top = found["$defs"]["Report"]
    top["properties"]["schema"] = {"const": SCHEMA}
    top["properties"]["exit_code"] = {"enum": sorted({int(code) for codes in _CODES.values() for code in codes})}
    top["required"] = [*top["required"], "schema"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:{SCHEMA}", **found}


def _tidy(value: Any) -> Any:
    """Dedent the schema's descriptions, as Python itself does with docstrings from 3.13 on."""
    if isinstance(value, dict):
        return {k: cleandoc(v) if k == "description" and isinstance(v, str) else _tidy(v) for k, v in value.items()}
    return [_tidy(each) for each in value] if isinstance(value, list | tuple) else value


def write(report: Report, path: str) -> None:
    """Write `report` to `path`, atomically; ``-`` is standard output. Raises UsageError."""
    if path == "-":
        sys.stdout.write(render(report))
        sys.stdout.flush()
    else:
        files.write(Path(path), render(report), ours=recognises)


def read(path: str) -> Report:
    """Read the report in `path`. Raises UsageError for anything that is not a complete report of this schema."""
    return parse(_read_bounded(Path(path)), path)


def read_with_digest(path: str, refuse: Callable[[os.stat_result], None]) -> tuple[Report, str]:
    """Read the report in `path`, and return it with a unique identifier that does not depend on its JSON layout.

    `refuse` may raise for a file of the wrong owner. Raises UsageError as :func:`read` does.
    """
    text = _read_bounded(Path(path), refuse)
    found = ""
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):  # then parse says why
        found = digest(text)  # before there is a report, which needs memory too
    return parse(text, path), found


def parse(text: str, path: str) -> Report:
    """Parse the report in `text`; `path` is its origin. Raises UsageError."""
    try:
        found = msgspec.json.decode(text, type=_Head).schema
        if found != SCHEMA:
            raise UsageError(f"{path}: its schema is {_excerpt(found)}; this version reads {SCHEMA}")
        _refuse_duplicates(text, path)
        report = msgspec.json.decode(text, type=Report)
        for number, row in enumerate(report.measurements, start=1):
            times = (row.time_us.mean, row.time_us.typical, *(row.interval_us or ()))
            fine = 1 <= row.nodes <= row.ranks <= bounds.JOB_RANKS and 0 <= row.nbytes <= bounds.BYTES
            fine &= all(bounds.LEAST_TIME_US <= time <= bounds.MOST_TIME_US for time in times)
            fine &= min(row.algbw_GBps, row.busbw_GBps) >= 0 and max(row.algbw_GBps, row.busbw_GBps) <= bounds.MOST_GBPS
            if not fine or (row.interval_us and row.interval_us[0] > row.interval_us[1]):
                raise UsageError(
                    f"{path}: row {number} of its measurements holds an impossible number: not from ncclprobe"
                )
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not a complete {SCHEMA} report: {other_kind(text, path, error)}") from None
    explains = (ExitCode.OK,) if report.files else ()  # what explains files is no gate
    if report.exit_code not in (*_CODES.get(report.status, ()), *explains):
        raise UsageError(
            f"{path}: exit code {report.exit_code} contradicts status {report.status.value}: not from ncclprobe"
        )
    if part := _contradiction(report):
        raise UsageError(f"{path}: {part} contradicts status {report.status.value}: not from ncclprobe")
    return report


def _contradiction(report: Report) -> str:
    """Return a part that is worse than the report's status allows; empty: none."""
    narrowed = report.status is Status.UNKNOWN and report.files  # of a job's files one of several causes is not known
    if report.status is not Status.FAIL and not narrowed:
        failed = [each.id for each in report.checks if each.status is Status.FAIL]
        failed += [each.name for each in report.nodes if each.status is Status.FAIL]
        if failed:
            return f"the fail of {failed[0]}"
    if report.missing_nodes and report.status in (Status.PASS, Status.WARN):
        return f"missing node {report.missing_nodes[0]}"
    return ""


def recognises(text: str) -> bool:
    """Return whether `text` is a complete report, or the --json output of another command."""
    try:
        parse(text, "")
    except UsageError:
        return text.startswith(_ANSWERS)
    return True


def other_kind(text: str, path: str, error: Exception) -> str:
    """Describe what a text seems to be instead of a report, and what reads it."""
    if text.lstrip().startswith('{"capture"'):
        return f"a capture; `ncclprobe doctor {path} --json FILE` turns it into a report"
    if not text.lstrip().startswith("{"):
        return f"a report is a file that --json wrote; for the log of a job, run `ncclprobe explain {path}`"
    return f"{_excerpt(str(error))}; give what --json wrote"


class _Head(msgspec.Struct):
    """The field that distinguishes a report from all other JSON."""

    schema: str


def _read_bounded(path: Path, refuse: Callable[[os.stat_result], None] = lambda _: None) -> str:
    """Read a file; one that is too large is refused before reading. Raises UsageError."""

    def checked(found: os.stat_result) -> None:
        refuse(found)
        if found.st_size > bounds.REPORT_BYTES:
            most = bounds.REPORT_BYTES >> 20
            raise UsageError(f"{path}: {found.st_size >> 20} MiB; a report has at most {most}")

    return files.read(path, limit=bounds.REPORT_BYTES, refuse=checked)


def _refuse_duplicates(text: str, path: str) -> None:
    """Raise UsageError for a duplicate key in an object: programs disagree about which one counts."""

    def looked_at(pairs: Sequence[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise UsageError(f"{path}: the key {_excerpt(twice)} appears twice in one object: not from ncclprobe")

    if text.count("[") + text.count("{") > bounds.REPORT_PARTS:
        raise UsageError(f"{path}: more than {bounds.REPORT_PARTS} lists and objects: not from ncclprobe")
    json.loads(text, object_pairs_hook=looked_at, parse_int=_parse_whole, parse_float=_parse_decimal)


def _parse_whole(text: str) -> int:
    """Parse a whole number. Raises ValueError beyond 64 bits, because arithmetic with decimals would fail."""
    if len(text) > bounds.REPORT_DIGITS or abs(int(text)) >= 1 << 63:
        raise ValueError(f"{text[:20]}… is out of range")
    return int(text)


def _parse_decimal(text: str) -> float:
    """Parse a decimal number. Raises ValueError for one so large that products overflow."""
    number = float(text)
    if not abs(number) <= bounds.REPORT_DECIMAL:
        raise ValueError(f"{text[:20]} is out of range")
    return number


def _excerpt(text: str) -> str:
    """Return a foreign text as one printable line of bounded length."""
    return ascii(text[:80])[1:-1]
