#!/usr/bin/env python3
"""Write what tests keep: the findings of captured machines, the values of bad cases with the edges
of their numbers, and the values of whole commands.

    .venv/bin/python scripts/golden.py

Read the difference before committing: is each line true, and of help?
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from zoo import findings

from tests import command_values
from tests.checks.cases import VALUES, case_values, checks
from tests.checks.edges import EDGES, edges


def main() -> int:
    """Write a file for each capture, and remove those of captures that are gone."""
    wanted = {findings.golden(path): findings.text(path) for path in findings.captures()}
    for stale in set(findings.GOLDEN.rglob("*.txt")) - wanted.keys():
        stale.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path, lines in ((VALUES, case_values(checks())), (EDGES, edges(checks()))):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command_values.KEPT.mkdir(exist_ok=True)
    for name in command_values.FILES:
        (command_values.KEPT / f"{name}.txt").write_text(command_values.text(name), encoding="utf-8")
    print(f"{len(wanted)} machines, {sum(text.count(chr(10)) for text in wanted.values())} findings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
