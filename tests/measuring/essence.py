"""What of a measuring run's JSON report must stay: rows, run checks, findings, remarks; no time, no speed, no host.

This is the only place that knows the report's keys. A key that is renamed is renamed here, and the goldens stay.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

ROW = ("op", "place", "mode", "nbytes", "count", "ranks", "nodes", "dtype", "redop", "wrong", "status")
FINDING = ("check", "severity", "subject", "blame", "action", "message")
SKIPPED = ("op", "nbytes", "cause")
PREFIX = "run."
FREE = "of its speed"
"""Stands for what a busy machine changes."""
SPOILED_BY_OTHERS = "run.straggler"
"""Advisory, and it warns of a host whose processors are busy, as those of a machine that runs tests."""

_QUANTITY = re.compile(
    r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
    r"(?: ?(?P<time>ns|us|ms|s|seconds?)\b| ?(?P<speed>[MG]B/s)| ?(?P<share>%))"
)
_FRACTION = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?![\w.])")
_CHANGING = (
    (re.compile(r"phase '[^']*'"), "phase '…'"),
    (re.compile(r"( is gone) \([^)]*\)"), r"\1 (…)"),  # the kernel's word for it depends on the moment
    (re.compile(r"( was skipped): .*"), r"\1: …"),  # torch's words
)
_TORCHS_OWN = "the flight recorder of "
"""Begins a remark that is there if torch had time to dump, and is in torch's words."""


def plain(text: str, own: Mapping[str, str]) -> str:
    """`text` without quantities, phases and others' words; `own` says what stands for this machine's names."""
    for name, stands_for in own.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stands_for, text)
    text = _QUANTITY.sub(lambda m: "# s" if m["time"] else "# GB/s" if m["speed"] else "#%", text)
    text = _FRACTION.sub("#", text)
    for pattern, stands_for in _CHANGING:
        text = pattern.sub(stands_for, text)
    return text


def of_report(report: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    """The comparable part of `report`."""
    checks = [check for check in report["checks"] if check["id"].startswith(PREFIX)]
    rows, first_call = [_row(row, own) for row in report["measurements"]], report["first_call"]
    return {
        "status": _status(report["status"], checks),
        "exit_code": report["exit_code"],
        "launch": report["launch"],
        "nodes": len(report["nodes"]),
        "missing_nodes": len(report["missing_nodes"]),
        "checks": [_check(check, own, bool(rows) and check["id"] == SPOILED_BY_OTHERS) for check in checks],
        "findings": [
            _only(FINDING, {"check": check["id"], **finding}, own)
            for check in checks if check["id"] != SPOILED_BY_OTHERS for finding in check["findings"]
        ],
        "rows": rows,
        "skipped_rows": [_only(SKIPPED, row, own) for row in report["skipped_rows"]],
        "notes": [plain(note, own) for note in report["notes"] if not note.startswith(_TORCHS_OWN)],
        **({"first_call": sorted(first_call)} if first_call else {}),
    }  # fmt: skip


def _status(status: str, checks: Iterable[Mapping[str, Any]]) -> str:
    """Of the report; a warning that comes from a busy machine alone counts as passed."""
    warned = any(check["status"] == "warn" for check in checks if check["id"] != SPOILED_BY_OTHERS)
    return "pass" if status == "warn" and not warned else status


def _check(check: Mapping[str, Any], own: Mapping[str, str], either: bool) -> dict[str, Any]:
    return {
        "id": check["id"],
        "status": FREE if either else check["status"],
        "required": check["required"],
        "of": "the run" if check["node"] is None else "a node",
        "why": FREE if either else plain(check["why"], own),
    }


def _row(row: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    expected = row["expectation"]
    return {**_only(ROW, row, own), "expected_by": expected and expected["basis"]}


def _only(keys: Iterable[str], row: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, Any]:
    return {key: plain(row[key], own) if isinstance(row[key], str) else row[key] for key in keys}
