#!/usr/bin/env python3
"""How well are slow parts found? Two recorded clusters and simulated fleets, with faults planted or none.

    .venv/bin/python scripts/localisation.py [--nodes N ...] [--seeds N] [--jobs N] [--out reports/localise.md]

The cases, written before the rules:

    planted                                loses            where                          what is to be named
    ─────────────────────────────────────  ───────────────  ─────────────────────────────  ─────────────────────────
    one node, two nodes                    5, 10, 15, 20 %  recorded; 8 … 1,024 simulated  the nodes
    one NIC of two; one NIC one way        5, 10, 15, 20 %  simulated                      rail; rail, out or into
    what a node sends                      5, 10, 15, 20 %  recorded                       the node, out
    a pair                                 5, 10, 15, 20 %  both                           the pair
    a dead pair, and a slow node           100 %; as above  both                           both
    all uplinks of a leaf                  5 … 20 %; 40 %   simulated, all pairs at once   uplinks, by the leaf
    a leaf: its NICs and its uplinks       5 … 20 %; 40 %   simulated, all pairs at once   the leaf
    one of the links that flows hash to    5 … 20 %; 40 %   simulated, ECMP                the leaf's uplinks
    nothing: recorded, quiet, loud, one transfer in five slow, ECMP, leaves that cost a tenth by design, uplinks that
    carry a quarter, a third of the nodes of another build                                 nothing

Leaves are never told: nothing tells them to a real run either. The rules were chosen by the sets of one cluster
(tests/fleets/recorded.py, CHOSEN) and the other is held back whole; simulated fleets have the noise of the recorded
sets, where a NIC is a bottleneck and no factor. Every cell stands on the seeds 0 … n - 1, and says how many.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from math import sqrt
from pathlib import Path
from statistics import median
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

from fleets.recorded import CHOSEN, HELD_BACK, recorded_sets
from fleets.trials import (
    BUILDS,
    CROSSING,
    ECMP,
    OVERSUBSCRIBED,
    PER_LEAF,
    Again,
    Outcome,
    Tally,
    Trial,
    play,
    replay,
    tally,
)  # fmt: skip
from tables import table

from ncclprobe.localise.pairs.naming import many
from ncclprobe.model.values import Struct, replace

LOSSES = (0.05, 0.1, 0.15, 0.2)
LARGE = 0.4
SEEDS = {8: 16, 17: 12, 64: 3, 256: 3, 1024: 1}
"""Fleets of a cell by their size, so that the whole page takes minutes."""
KINDS = (
    ("a node", "node", 1), ("two nodes", "node", 2), ("a NIC", "nic", 1), ("a NIC, one way", "direction", 1),
    ("a pair", "pair", 1), ("a dead pair and a node", "dead", 1), ("uplinks", "uplink", 1), ("a leaf", "leaf", 1),
    ("one ECMP link", "link", 1),
)  # fmt: skip
HEALTHY = (
    ("the noise of cluster01", CHOSEN, ""), ("the noise of cluster00", HELD_BACK, ""), ("5 % noise", "loud", ""),
    ("one transfer in five slow", "bimodal", ""), ("ECMP", CHOSEN, ECMP),
    ("leaves cost a tenth", CHOSEN, CROSSING), ("uplinks carry a quarter", CHOSEN, OVERSUBSCRIBED),
    ("a third of another build", CHOSEN, BUILDS),
)  # fmt: skip

LIMITS = (
    "Of the cluster held back one set, all_to_all 8, showed that groups are to be split at the widest gap of rates; no",
    "threshold was chosen by it. Where three nodes of ten are a tenth slower than the others as recorded (cluster01,",
    "sendrecv 4 and 8), a fourth cannot be told from them, and two of them are named where the third differs. One link",
    "of many that flows hash to is not found, nor a leaf that is slow inside as well: its nodes are listed as equally",
    "slow. Uplinks show only while many pairs cross them, and a real run measures 16 pairs at a time.",
)

T = TypeVar("T")


class Runner(Struct, frozen=True):
    """Plays fleets on some processes."""

    pool: Executor
    seeds: int | None

    def fleets(self, trial: Trial) -> list[Outcome]:
        """The fleets of the seeds of a trial."""
        count = self.seeds or SEEDS.get(trial.nodes, 4)
        return self.play(play, [replace(trial, seed=seed) for seed in range(count)])

    def play(self, how: Callable[[T], Outcome], what: Sequence[T]) -> list[Outcome]:
        """The outcomes, in their order."""
        return list(self.pool.map(how, what, chunksize=max(1, len(what) // 8)))


def share(part: int, whole: int) -> str:
    """Counts, and per cent."""
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "–"


def upper(part: int, whole: int) -> str:
    """The upper end of the 95 % interval: E. B. Wilson, JASA 22, 1927."""
    z = 1.96
    middle = (part + z * z / 2) / (whole + z * z)
    return f"{100 * (middle + z / (whole + z * z) * sqrt(part * (whole - part) / whole + z * z / 4)):.1f} %"


def tries(name: str, kind: str, loss: float, seeds: int) -> list[Again]:
    """A recorded set with the fault at each node in turn, with as many seeds."""
    other = {"node": (0,), "nodes": (0, 5), "out": (0,), "pair": (0, 3), "dead": (0, 1, 4)}[kind]
    recorded = recorded_sets()[name]
    found = []
    for number in range(len(recorded.nodes)):
        at = tuple(number + each for each in other)
        one, two = sorted(recorded.nodes[each % len(recorded.nodes)] for each in (at * 2)[:2])
        bad = max(sum(node in pair for pair in recorded.sick()) for node in (one, two))
        alone = not many(bad + 1, len(recorded.nodes) - 1)  # else the node is named, by its recorded pairs and this one
        known = kind not in ("pair", "dead") or (alone and (one, two) in recorded.rates)
        found += [Again(name, kind, loss, at, seed) for seed in range(seeds if known else 0)]
    return found


def recorded_rows(run: Runner, cluster: str) -> Iterator[tuple[object, ...]]:
    """Each fault in every set of a cluster: all sets, the worst and the median one, and who else was blamed."""
    names = [name for name in recorded_sets() if name.startswith(cluster)]
    seeds = run.seeds or 1
    cases = [("a node", "node"), ("two nodes", "nodes"), ("what a node sends", "out"), ("a pair", "pair")]
    for title, kind in (*cases, ("a dead pair and a node", "dead")):
        for loss in LOSSES:
            sets = {name: tally(run.play(replay, tries(name, kind, loss, seeds))) for name in names}
            shares = {name: each.named / each.planted for name, each in sets.items()}
            worst = min(shares, key=shares.__getitem__)
            planted, named = (sum(getattr(each, field) for each in sets.values()) for field in ("planted", "named"))
            wrong, fleets = (sum(getattr(each, field) for each in sets.values()) for field in ("wrong", "fleets"))
            worst_shown = f"{share(sets[worst].named, sets[worst].planted)}: {worst.partition(' ')[2]}"
            middle = f"{100 * median(shares.values()):.0f} %"
            blamed = sorted({name.partition(" ")[2] for name, each in sets.items() if each.wrong})
            yield (
                title,
                f"{loss:.0%}",
                share(named, planted),
                middle,
                worst_shown,
                share(wrong, fleets),
                ", ".join(blamed),
            )


def as_recorded(run: Runner) -> Iterator[tuple[object, ...]]:
    """Each set with nothing planted."""
    seeds = run.seeds or 5
    for name, each in recorded_sets().items():
        seen = run.play(replay, [Again(name, seed=seed) for seed in range(seeds)])
        innocent = sorted({cause for outcome in seen for cause in outcome.innocent})
        sick = len(each.sick())
        yield name, len(each.nodes), len(each.rates), sick, share(tally(seen).wrong, seeds), ", ".join(innocent[:3])


def planted_rows(run: Runner, nodes: int) -> Iterator[tuple[object, ...]]:
    """Each kind of fault in simulated fleets of one size, with the noise of the cluster that was held back."""
    for title, kind, count in KINDS:
        losses = (*LOSSES, LARGE) if kind in ("uplink", "leaf", "link") else LOSSES
        seen = {loss: tally(run.fleets(Trial(nodes, HELD_BACK, kind, loss, count=count))) for loss in losses}
        cells = [f"{each.named} of {each.planted}" for each in seen.values()]
        cells += [""] * (len(LOSSES) + 1 - len(cells))
        placed = " ".join(str(each.placed) for each in seen.values())
        yield nodes, title, *cells, placed, *_sums(list(seen.values()))


def _sums(tallies: Sequence[Tally]) -> tuple[str, str]:
    fleets, wrong = sum(each.fleets for each in tallies), sum(each.wrong for each in tallies)
    return share(wrong, fleets), f"{sum(each.retests for each in tallies) / fleets:.1f}"


def healthy_rows(run: Runner, sizes: Sequence[int]) -> Iterator[tuple[object, ...]]:
    """Fleets in which nothing is planted."""
    for title, noise, fabric in HEALTHY:
        for nodes in sizes:
            seen = run.fleets(Trial(nodes, noise, fabric=fabric))
            each = tally(seen)
            blamed = sorted({cause for outcome in seen for cause in outcome.innocent})
            yield title, nodes, share(each.wrong, each.fleets), upper(each.wrong, each.fleets), ", ".join(blamed[:2])


PLANTED = (
    "nodes", "planted", "5 %", "10 %", "15 %", "20 %", "40 %", "placed", "fleets that blame others", "retest rounds",
)  # fmt: skip


def report(asked: argparse.Namespace, run: Runner) -> Iterator[str]:
    """All tables, and what was run for them."""
    seeds = "one seed each, five where nothing is planted" if asked.seeds is None else f"{asked.seeds} seeds each"
    yield from (
        "# Finding slow parts by pairs",
        "",
        f"Made with `scripts/localisation.py {' '.join(asked.made_with)}`;",
    )
    yield "its docstring lists the cases. Named: kind, node, rail and direction right. Placed: the right node or leaf,"
    yield "maybe under another name. Blaming others: anything confirmed that nothing planted touches, and that was not"
    yield from ("recorded as slow (below 92 % of what its like got).", "", *LIMITS, "")
    yield from ("## Recorded, nothing planted", "")
    head = ("set: cluster, operation, GPUs per node", "nodes", "pairs", "recorded slow", "blame others", "whom")
    yield from table(head, as_recorded(run))
    for cluster, what in (
        (HELD_BACK, "held back: the rules were chosen without it"),
        (CHOSEN, "the rules were chosen by it"),
    ):
        yield from (f"## {cluster}, {what}", "", f"Planted at each node in turn, {seeds}.", "")
        columns = ("planted", "loses", "named", "median set", "worst set", "blame others", "in sets")
        yield from table(columns, recorded_rows(run, cluster))
    told = ", ".join(f"{nodes}: {asked.seeds or SEEDS.get(nodes, 4)}" for nodes in asked.nodes)
    yield from ("## Simulated fleets, two rails, the noise of cluster00", "", f"Fleets per cell, by nodes: {told}.", "")
    yield from table(PLANTED, (row for nodes in asked.nodes for row in planted_rows(run, nodes)))
    yield from ("## Simulated fleets, nothing planted", "")
    yield from table(("fleet", "nodes", "blame others", "at most (95 %)", "whom"), healthy_rows(run, asked.nodes))


def main(argv: Sequence[str] | None = None) -> int:
    """Run all, and write the tables."""
    asked = parse(sys.argv[1:] if argv is None else argv)
    started = time.monotonic()
    with ProcessPoolExecutor(asked.jobs) as pool:
        text = "\n".join(report(asked, Runner(pool, asked.seeds))) + "\n"
    text += f"It took {time.monotonic() - started:.0f} s with {asked.jobs} processes.\n"
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options, or exit code 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--nodes", type=int, nargs="*", default=list(PER_LEAF), metavar="N", help="simulated fleets (default: all)")
    add("--seeds", type=int, metavar="N", help="fleets of each cell (default: by size)")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: %(default)s)")
    add("--out", type=Path, metavar="PATH", help="where the markdown goes (default: stdout)")
    asked = parser.parse_args(argv)
    if (asked.seeds is not None and asked.seeds < 1) or any(size < 8 for size in asked.nodes):
        parser.error("at least one seed and 8 nodes")
    asked.made_with = [word for before, word in zip(["", *argv], argv, strict=False) if "--out" not in (before, word)]
    return asked


if __name__ == "__main__":
    sys.exit(main())
