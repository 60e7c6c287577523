"""The nouns of measured pairs: a row per direction, and what they say together about who is slow."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """What went from rank `src` to rank `dst` in one round; `src_end` and `dst_end` name node and rail.

    `nbytes` took `time_us` (the median of `samples_us`, from the call to the last byte), which is `GBps` (1e9
    bytes/s). `latency_us` is half the median round trip of `latency_nbytes`, the same both ways. `both`: the other
    direction ran at the same time. `step` is 0 in the tournament and counts the rounds of retests from 1.
    """

    op: Literal["sendrecv"] = "sendrecv"
    src: int
    dst: int
    src_end: str
    dst_end: str
    nbytes: int
    latency_nbytes: int
    latency_us: float
    GBps: float
    time_us: float
    min_us: float
    max_us: float
    samples_us: tuple[float, ...]
    both: bool = False
    step: int = 0


@dataclass(frozen=True, slots=True)
class Blamed:
    """A cause as :mod:`ncclprobe.pairs.culprit` weighs it; `where` says it in words: ``out of n3 rail 1``.

    `ratio`: what is left of the usual bandwidth. `slow` of `tests` results speak for it, `retests` of these were taken
    after it was suspected, beside `partners` different nodes.
    """

    where: str
    kind: Literal["node", "rail", "pair", "leaf", "uplink", "plane"]
    nodes: tuple[str, ...]
    rail: int | None
    direction: Literal["both", "out", "into"]
    ratio: float
    confidence: float
    slow: int
    tests: int
    retests: int
    partners: int


@dataclass(frozen=True, slots=True)
class LostPair:
    """Nothing, or not all, came from `src` to `dst` before the deadline; both were set aside."""

    src: str
    dst: str
    why: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class Localisation:
    """Who is slow, or nobody: `culprits` are confirmed by retests, `suspects` are not, `cleared` were slow only once.

    `nodes` took part (the ranks of a single node count as nodes); `level_GBps` is what is usual, by way; `everything`:
    that itself is below what was expected. `tests` counts all samples and lost pairs, `steps` the rounds of retests.
    """

    nodes: int
    kind: str
    culprits: tuple[Blamed, ...] = ()
    suspects: tuple[Blamed, ...] = ()
    cleared: tuple[str, ...] = ()
    lost: tuple[LostPair, ...] = ()
    level_GBps: dict[str, float] = field(default_factory=dict)
    everything: bool = False
    tests: int = 0
    steps: int = 0
    confidence: float = 0.99
