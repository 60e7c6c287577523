#!/usr/bin/env python3
"""Write the captures of the zoo's synthetic machines again, after a change of tests/zoo or of what collectors ask.

    .venv/bin/python scripts/write_captures.py [NAME ...]

Writes tests/captures/NAME.jsonl, of a sick machine tests/captures/sick/NAME.jsonl; without a name those of all. Read
the difference before committing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import zoo
from zoo import sick


def main(argv: Sequence[str] | None = None) -> int:
    """Write the captures named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="machines (default: all)")
    options = parser.parse_args(argv)
    every = {**zoo.MACHINES, **sick.PLANTS}
    if unknown := set(options.names) - every.keys():
        parser.error(f"no such machine: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    for name in options.names or every:
        healthy = zoo.MACHINES.get(name)
        text = zoo.capture(healthy) if healthy else sick.capture(sick.PLANTS[name])
        folder = zoo.CAPTURES if healthy else sick.CAPTURES
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(f"{name}: {text.count(chr(10)) - 1} rows, {len(text) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
