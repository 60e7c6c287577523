#!/usr/bin/env python3
"""Reads damaged flight-recorder dumps in a child, as `ncclprobe explain` does, and counts what became of them.

    scripts/fuzz_dumps.py COUNT [SEED] DUMP…    COUNT mutations of the given dumps, and of hostile pickles made here

Prints how many were read, refused, and ended the child; the longest time of one, and the most memory of a child. A
mutation that executes something would write the file it names: the exit code is 1 if that file is there.
"""

import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from facts.hostile_pickles import hostile, mutated

from ncclprobe.facts.files.flight_records import FlightDump, read_dump
from ncclprobe.host.limited_child import LimitedChild


def main() -> int:
    """Fuzz; 1 where something was executed."""
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    given = [Path(name).read_bytes() for name in sys.argv[3:]]
    with tempfile.TemporaryDirectory() as folder, LimitedChild("ncclprobe.facts.files.flight_child") as child:
        mark = Path(folder) / "executed"
        seeds = [*given, *hostile(mark).values()]
        outcomes, slowest_s, reasons = play(child, seeds, count, random.Random(seed))
        executed = mark.exists()
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{count} mutations of {len(seeds)} dumps, seed {seed}: {dict(outcomes)}")
    print(f"slowest {slowest_s:.3f} s, most memory of a child {peak_mib:.0f} MiB, executed: {executed}")
    for reason, number in reasons.most_common(12):
        print(f"{number:8} {reason}")
    return int(executed)


def play(
    child: LimitedChild, seeds: list[bytes], count: int, dice: random.Random
) -> tuple[Counter[str], float, Counter[str]]:
    """Return what became of `count` mutations, the longest time of one, and why they were refused."""
    outcomes, reasons, slowest_s = Counter[str](), Counter[str](), 0.0
    for _ in range(count):
        data = mutated(dice.choice(seeds), dice)
        begun = time.perf_counter()
        found = read_dump(child, data)
        slowest_s = max(slowest_s, time.perf_counter() - begun)
        if isinstance(found, FlightDump):
            outcomes["read"] += 1
        else:
            outcomes["child ended" if "the process" in found else "refused"] += 1
            reasons[found[:60]] += 1
    return outcomes, slowest_s, reasons


if __name__ == "__main__":
    sys.exit(main())
