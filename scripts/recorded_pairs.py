#!/usr/bin/env python3
"""Make tests/fleets/recorded_pairs.csv: every pair of two real clusters, each measured 6 or 18 times in a row.

    git clone https://github.com/xxrjun/nccl-tests-cluster CHECKOUT     (Apache License 2.0; read at 455de4f8dee2)
    .venv/bin/python scripts/recorded_pairs.py CHECKOUT > tests/fleets/recorded_pairs.csv

Each log is nccl-tests between two H100 nodes, a size after the other, each out of place and in place: repetitions of
one transfer seconds apart. Sizes below 64 MiB are left out: they are bound by latency. A set is a cluster, an
operation and a number of GPUs per node. `busbw_GBps` are in the order of the log, the same for all pairs of a set; a
dash stands for what is missing.
"""

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from ncclprobe.errors import UsageError
from ncclprobe.nccl_tests import Run, parse_text

LEAST = 64 << 20
_LOG = re.compile(r"example-(cluster\d+)/.*/pairwise/.*/nccl_N2_G(\d+)_(\S+)_(\S+)\.log$")
Rates = dict[tuple[int, str], float]


def read(checkout: Path) -> Iterator[tuple[str, str, str, Rates]]:
    """Each pair of each set: its rates by size and place."""
    for path in sorted(checkout.rglob("nccl_N2_*.log")):
        match = _LOG.search(path.as_posix())
        if not match:
            continue
        rates: defaultdict[str, Rates] = defaultdict(dict)
        for run in _runs(path):
            for row in run.rows:
                if row.nbytes >= LEAST and row.busbw_GBps:
                    rates[row.op][row.nbytes, row.place] = row.busbw_GBps
        for op, found in rates.items():
            yield f"{match[1]} {op} {match[2]}", match[3], match[4], found


def _runs(path: Path) -> Sequence[Run]:
    try:
        return parse_text(path.read_text(encoding="utf-8"), path.name)
    except UsageError:  # the pair did not come up: its log ends before any row
        return ()


def main(argv: Sequence[str]) -> int:
    """Write the table to stdout."""
    if len(argv) != 1:
        print("one argument: the checkout", file=sys.stderr)
        return 2
    pairs = list(read(Path(argv[0])))
    columns: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for name, _, _, rates in pairs:
        columns[name] |= rates.keys()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("set", "node_a", "node_b", "busbw_GBps"))
    for name, one, other, rates in sorted(pairs, key=lambda pair: pair[:3]):
        order = sorted(columns[name], key=lambda column: (column[0], column[1] != "out"))
        out.writerow((name, one, other, " ".join(f"{rates[key]:.4g}" if key in rates else "-" for key in order)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
