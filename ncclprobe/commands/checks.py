"""``ncclprobe checks``: every check there is, with what it finds and whether a run depends on it."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from ncclprobe.commands import arguments
from ncclprobe.engine.diagnose import every_check
from ncclprobe.model.rules import Check


def main(argv: Sequence[str]) -> int:
    """Print the catalogue. Raises UsageError."""
    options = _parser().parse_args(argv)
    checks = sorted(every_check(), key=lambda check: check.id)
    print(_json(checks) if options.json else _table(checks))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "checks", "List every check: its id, its two titles, and whether a run is inconclusive without it (required)."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def _table(checks: Sequence[Check]) -> str:
    from tabulate import tabulate

    pairs = (((check.id, check.standing, "fails", check.title), ("", "", "passes", check.right)) for check in checks)
    rows = [row for both in pairs for row in both]
    table: str = tabulate(rows, headers=("id", "", "", "title"), tablefmt="plain")
    return f"{table}\n\n{len(checks)} checks; `ncclprobe explain ID` explains one"


def _json(checks: Sequence[Check]) -> str:
    return json.dumps({"checks": [_row(check) for check in checks]}, indent=2)


def _row(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "title": check.title,
        "right": check.right,
        "why": check.why,
        "fix": check.fix,
        "required": check.required,
        "privilege": check.privilege,
        "requires": check.requires,
        "applies": check.applies.words if check.applies else "",
        "facts": [need.fact.__name__ for need in check.needs],
    }
