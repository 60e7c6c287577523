"""Two real clusters as a fleet: what every pair got each time it was measured, with faults planted or none.

A transfer gets one of the rates that its own pair was recorded with, so that noise has the shape, the tails and the
differences between pairs that it has in a machine room, and shares no assumption with the rules. recorded_pairs.csv
says where it is from.
"""

import csv
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median

from ncclprobe.localise.pairs.rounds import PairRound
from ncclprobe.localise.pairs.samples import End, Lost, Result, Sample
from ncclprobe.model.values import Struct

PATH = Path(__file__).with_name("recorded_pairs.csv")
HELD_BACK = "cluster00"
"""The cluster whose sets had no part in choosing the rules."""
_LEAVES = {
    "cluster00": ({1, 2, 3, 4, 6, 9, 12, 16, 17}, {5, 7, 8, 10, 11, 13, 14, 15}),
    "cluster01": ({2, 3}, {4, 5, 6, 7, 8, 10, 11}, {9})}  # fmt: skip
"""The numbers of the nodes that are fast with each other when all GPUs send: read off the sets, not documented."""
_ONE_CLASS = {"cluster01 sendrecv 1", "cluster01 sendrecv 2", "cluster01 all_to_all 1", "cluster01 all_to_all 2"}
"""Where one or two GPUs send, some pairs are a tenth faster, whatever leaf they are of."""
Pair = tuple[str, str]
Slowed = Callable[[End, End], float]
"""The share of its bandwidth that a fault leaves a transfer."""


class RecordedSet(Struct, frozen=True):
    """What every pair of `nodes` got each time, GB/s; of some pairs nothing was recorded. `leaf`: where nodes hang."""

    name: str
    rates: Mapping[Pair, Sequence[float]]
    leaf: Mapping[str, int]

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in the order of their names."""
        return tuple(sorted({node for pair in self.rates for node in pair}))


@cache
def recorded_sets() -> Mapping[str, RecordedSet]:
    """Every set by its name.

    Repetitions are of several sizes: each is scaled to one median, near and far pairs apart.
    """
    found: defaultdict[str, dict[Pair, list[float]]] = defaultdict(dict)
    with PATH.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            rates = [float(text) if text != "-" else 0.0 for text in row["busbw_GBps"].split()]
            found[row["set"]][row["node_a"], row["node_b"]] = rates
    leaf = {name: _leaf(name, pairs) for name, pairs in found.items()}
    return {name: RecordedSet(name, _scaled(pairs, leaf[name]), leaf[name]) for name, pairs in found.items()}


def _scaled(pairs: Mapping[Pair, Sequence[float]], leaf: Mapping[str, int]) -> dict[Pair, tuple[float, ...]]:
    scaled: dict[Pair, tuple[float, ...]] = {}
    for near in (True, False):
        like = {pair: got for pair, got in pairs.items() if (leaf[pair[0]] == leaf[pair[1]]) is near}
        if not like:
            continue
        columns = [median(filter(None, column)) for column in zip(*like.values(), strict=True)]
        usual = median(columns)
        for pair, got in like.items():
            scaled[pair] = tuple(rate / column * usual for rate, column in zip(got, columns, strict=True) if rate)
    return scaled


def _leaf(name: str, pairs: Mapping[Pair, object]) -> dict[str, int]:
    leaves = _LEAVES[name.partition(" ")[0]] if name not in _ONE_CLASS else (range(100),)
    numbers = {node: int(node.rpartition("-")[2]) for pair in pairs for node in pair}
    return {node: next(n for n, leaf in enumerate(leaves) if number in leaf) for node, number in numbers.items()}


@dataclass(slots=True)
class Replay:
    """`measure` as a search wants it: every transfer gets one of its pair's recorded rates, and what `slowed` leaves.

    A transfer that is left nothing is lost. The same seed gives the same samples.
    """

    recorded: RecordedSet
    slowed: Slowed = lambda src, dst: 1.0
    seed: int = 0
    _draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the seed."""
        self._draw = random.Random(self.seed)

    @property
    def rails(self) -> dict[str, tuple[int]]:
        """One rail per node."""
        return dict.fromkeys(self.recorded.nodes, (0,))

    def measure(self, pairs: PairRound, step: int) -> Iterator[Result]:
        """Measure one round, each way; a pair of which nothing was recorded gives nothing."""
        for one, other in pairs:
            for src, dst in ((one, other), (other, one)):
                ends = (src.node, dst.node)
                rates = self.recorded.rates.get(ends) or self.recorded.rates.get(ends[::-1])
                if rates:
                    rate = self._draw.choice(rates) * self.slowed(src, dst)
                    yield Sample(src, dst, rate, step=step) if rate else Lost(src, dst, step=step)
