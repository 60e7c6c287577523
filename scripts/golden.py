#!/usr/bin/env python3
"""Write what tests keep: the findings of captured machines, the values of bad cases with the edges
of their numbers, the values of whole commands and functions, and the signs of causes that ncclprobe ships.

    .venv/bin/python scripts/golden.py [captures | cases | edges | changes | mixes | signs | FILE of command_values …]

Without a name: all of it. Read the difference before committing: is each line true, and of help?
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from child import fail
from zoo import findings

from ncclprobe.engine.diagnose import LEFT, every_check
from tests import command_values
from tests.checks.cases import VALUES, case_values, checks
from tests.checks.changes import CHANGES, changes
from tests.checks.edges import EDGES, edges
from tests.checks.mixes import MIXES, mixes


def main() -> int:
    """Write what is named, or everything; leave with 1 at a name that is none."""
    parts: dict[str, Callable[[], None]] = {
        "captures": write_captures,
        "cases": lambda: write_lines(VALUES, case_values(checks())),
        "signs": lambda: write_lines(SIGNS, signs()),
        "edges": lambda: write_lines(EDGES, edges(checks())),
        "changes": lambda: write_lines(CHANGES, changes(checks())),
        "mixes": lambda: write_lines(MIXES, mixes(checks())),
        **{name: partial(write_values, name) for name in command_values.FILES},
    }
    for name in sys.argv[1:] or parts:
        if name not in parts:
            fail(f"{name} is none of {', '.join(parts)}")
        parts[name]()
    return 0


SIGNS = ROOT / "ncclprobe" / "logs" / "signs.txt"
"""One of these stands in each line that a check on logs may examine; texts without any need no such check."""


def signs() -> list[str]:
    """Return the signs of all checks on the logs of a job."""
    return sorted({sign for check in every_check(LEFT) if check.cause for sign in check.cause.signs})


def write_captures() -> None:
    """Write a file for each captured machine, and remove those of captures that are gone."""
    wanted = {findings.golden(path): findings.text(path) for path in findings.captures()}
    for stale in set(findings.GOLDEN.rglob("*.txt")) - wanted.keys():
        stale.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_values(name: str) -> None:
    """Write the values of one file of commands or functions."""
    command_values.KEPT.mkdir(exist_ok=True)
    (command_values.KEPT / f"{name}.txt").write_text(command_values.text(name), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
