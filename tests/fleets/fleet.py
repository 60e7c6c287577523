"""A simulated fleet behind the call that a real measurement has: pairs in, samples out."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fleets.fabric import Fabric, Link, fair_share
from fleets.faults import Fault
from ncclprobe.localise.pairs.rounds import PairRound
from ncclprobe.localise.pairs.samples import End, Lost, Result, Sample
from ncclprobe.model.values import Struct

TIMEOUT_GBps = 0.01
"""Below this nothing arrives before the deadline."""


Draw = Callable[[End, End, bool, random.Random], float]
"""What one measurement shows of the true rate, as a share, from one end to another that is near or far."""


class Noise(Struct, frozen=True):
    """What a median of several transfers still shows: a relative `sigma`, and now and then a slow one without reason.

    `slow`: the share of samples that get only between `low` and `high` of their rate, independently of each other.
    """

    sigma: float
    slow: float = 0.0
    low: float = 0.5
    high: float = 0.75

    def __call__(self, src: End, dst: End, near: bool, draw: random.Random) -> float:
        """Return one measurement's share."""
        unlucky = draw.random() < self.slow
        return (draw.uniform(self.low, self.high) if unlucky else 1.0) * draw.lognormvariate(0, self.sigma)


NOISES = {
    "quiet": Noise(0.005),
    "usual": Noise(0.02),
    "loud": Noise(0.05),
    "bimodal": Noise(0.02, slow=0.2),
}


@dataclass(slots=True)
class Fleet:
    """`measure` is a search's; `asked` counts what it was asked for. The same seed gives the same samples.

    `crossing`: what every transfer between two leaves gets of its rate, by the fabric's design.
    """

    fabric: Fabric
    noise: Draw
    faults: Sequence[Fault] = ()
    seed: int = 0
    at_once: int = 16
    crossing: float = 1.0
    asked: Counter[str] = field(default_factory=Counter)
    _draw: random.Random = field(init=False)
    _carries: dict[Link, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin at the seed."""
        self._draw = random.Random(self.seed)

    @property
    def rails(self) -> dict[str, range]:
        """The rails of each node, as an inquiry wants them."""
        return {node: range(self.fabric.rails) for node in self.fabric.names}

    def measure(self, meetings: PairRound, step: int) -> Iterator[Result]:
        """One round: `at_once` pairs of nodes at a time, on all of their rails, first one way, then back."""
        self.asked["retests" if step else "tournament"] += 1
        pairs = sorted({(one.node, other.node) for one, other in meetings})
        self._draw.shuffle(pairs)
        numbers = {pair: number for number, pair in enumerate(pairs)}
        for start in range(0, len(pairs), self.at_once):
            now = range(start, start + self.at_once)
            flows = [(one, other) for one, other in meetings if numbers[one.node, other.node] in now]
            yield from self._send(flows, step)
            yield from self._send([(other, one) for one, other in flows], step)

    def _send(self, flows: Sequence[tuple[End, End]], step: int) -> Iterator[Result]:
        routes = [self.fabric.route(src, dst, self._draw) for src, dst in flows]
        for link in {link for route in routes for link in route if link not in self._carries}:
            left = [fault.left for fault in self.faults if fault.slows(link, self.fabric)]
            self._carries[link] = self.fabric.capacity(link) * min(left, default=1.0)
        for (src, dst), rate in zip(flows, fair_share(routes, self._carries), strict=True):
            yield self._sample(src, dst, rate, step)

    def _sample(self, src: End, dst: End, rate: float, step: int) -> Result:
        if rate < TIMEOUT_GBps:
            return Lost(src, dst, step=step)
        near = self.fabric.leaf(src.node) == self.fabric.leaf(dst.node)
        rate *= self.noise(src, dst, near, self._draw) * (1.0 if near else self.crossing)
        return Sample(src, dst, rate, step=step)
