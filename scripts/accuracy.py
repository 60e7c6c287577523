#!/usr/bin/env python3
"""The factors and errors of expectations, from published runs.

    .venv/bin/python scripts/accuracy.py [FOLDER] --fit     what the factors of expect/predict.py should be
    .venv/bin/python scripts/accuracy.py [FOLDER] --errors  make expect/tables/errors.csv

FOLDER: published numbers, as scripts/published.py reads them (tests/data/published). reports/expected-accuracy.md says
what came of it. Errors are those of held_out.py: expectations that the row's own source had no part in.
"""

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ncclprobe.model.values import Struct

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import fitting
import held_out
from held_out import measured
from published import PUBLISHED, Row, outliers, rows

from ncclprobe.expect.predict import LATEST, Prediction, predict

ERRORS = ROOT / "ncclprobe" / "expect" / "tables" / "errors.csv"
LARGE = 8 << 30
PEAK = 256 << 20


class Pair(Struct, frozen=True):
    """A published number beside what is predicted for it."""

    row: Row
    nbytes: int
    found: Prediction

    @property
    def ratio(self) -> float:
        """Predicted by measured."""
        return self.found.busbw_GBps / measured(self.row, self.nbytes)

    @property
    def error(self) -> float:
        """The absolute log of it."""
        return abs(math.log(self.ratio))


def paired(found: Iterable[Row]) -> Iterator[Pair]:
    """Rows beside their predictions, where there is one."""
    for row in found:
        nbytes = row.nbytes or LARGE
        prediction = predict(row.system, row.shape, row.op, nbytes, row.nccl or LATEST, row.forced)
        if prediction:
            yield Pair(row, nbytes, prediction)


def over_sources(pairs: Iterable[Pair], what: Callable[[Sequence[float]], float]) -> tuple[float, int, int]:
    """The mean over sources of `what` of their errors; how many sources and rows."""
    by_family: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        by_family[pair.row.family].append(pair.error)
    values = [what(errors) for errors in by_family.values()]
    return statistics.fmean(values), len(values), sum(map(len, by_family.values()))


def peaks(pairs: Iterable[Pair]) -> list[Pair]:
    """Of each run and operation the row with the highest bandwidth."""
    best: dict[tuple[str, str, str, str], Pair] = {}
    for pair in pairs:
        key = (pair.row.label, pair.row.op, pair.row.family, pair.row.settings)
        if key not in best or measured(pair.row, pair.nbytes) > measured(best[key].row, best[key].nbytes):
            best[key] = pair
    return list(best.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, nargs="?", default=PUBLISHED, metavar="FOLDER")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fit", action="store_true", help="print the factors")
    what.add_argument("--errors", action="store_true", help="write the table that ncclprobe ships")
    options = parser.parse_args()
    odd = outliers(options.published)
    found = [row for row in rows(options.published) if (row.sweep, row.nbytes) not in odd or row.healthy == "no"]
    if options.fit:
        best = fitting.fit(held_out.points(found))
        print(*best.corrections.items(), *best.starts_us.items(), sep="\n")
        return 0
    ERRORS.write_text(held_out.as_csv(held_out.cells(held_out.samples(found))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
