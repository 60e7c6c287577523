"""Results of measured pairs: a row per direction, and the localisation of slow parts. Also one way of one rail."""

from typing import Literal

from ncclprobe.model.measurement import Mismatch
from ncclprobe.model.values import Struct, field

RailState = Literal["ok", "dead", "late", "unusable", "wrong", "untried"]


class RailWay(Struct, frozen=True, kw_only=True):
    """The transfer from rail `src_rail` of node `src` to rail `dst_rail` of node `dst`, over all tests of this run.

    `src_end` and `dst_end` name them with their ports: ``n0 rail 1 (mlx5_1:1)``. `state`: ``late``: data arrived, but
    not all in time; ``unusable``: an end failed by itself; ``wrong``: bytes arrived that were not sent; ``untried``:
    the two ends never connected. `GBps` (1e9 bytes/s) is the median of `tests` while all rails of the two nodes sent
    one way, `alone_GBps` while no other rail of them did, `both_GBps` while both ways were used, `gpu_GBps` with a
    GPU's memory; None: not measured. `latency_us`: half the median round trip. `src_choices` and `dst_choices` are the
    choices of NCCL's rules at both ends, `why` the failure.
    """

    src: str
    dst: str
    src_rail: int
    dst_rail: int
    src_end: str
    dst_end: str
    state: RailState
    tests: int
    GBps: float | None = None
    alone_GBps: float | None = None
    both_GBps: float | None = None
    gpu_GBps: float | None = None
    latency_us: float | None = None
    src_choices: str = ""
    dst_choices: str = ""
    why: str = ""


PAIRS = "pairs"
"""A band names this operation to give the expected rate of one transfer between two ranks."""
ONE_WAY, BOTH_WAYS, ONE_WAY_INSIDE = "one way", "both ways at once", "inside a node, one way"
"""The levels of transfers, between nodes and inside them."""


class PairRow(Struct, frozen=True, kw_only=True):
    """The transfer from rank `src` to rank `dst` in one round; `src_end` and `dst_end` name node, rail and NIC.

    `nbytes` took `time_us` (the median of `samples_us`, from the call to the last byte), which is `GBps` (1e9 bytes/s).
    `latency_us` is half the median round trip of `latency_nbytes`, the same both ways. `both`: the other direction ran
    at the same time. `step` is 0 in the round-robin and counts the rounds of retests from 1. `inside`: both ranks are
    on the same one of several nodes, with no network between them. `wrong` counts the wrong bytes of an extra transfer
    after the timed ones, None: not verified; `mismatch` is the first of them.
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
    inside: bool = False
    wrong: int | None = None
    mismatch: Mismatch | None = None


class LostTransfer(Struct, frozen=True):
    """Rank `dst` received nothing, or not all, from rank `src` before the deadline; `step` and `inside` as in rows."""

    src: int
    dst: int
    why: str
    step: int = 0
    inside: bool = False


class Nic(Struct, frozen=True):
    """The NIC of a rank: its `name` as NCCL spells it, and its `index` among those in use on this node."""

    name: str
    index: int


class RankNics(Struct, frozen=True):
    """The place of each rank of a pairs run: its host and its NIC (None: unknown; empty: no NIC)."""

    hosts: tuple[str, ...]
    nics: tuple[Nic | None, ...] = ()


class Blamed(Struct, frozen=True):
    """A cause weighed by :mod:`ncclprobe.localise.pairs.suspects`; `where` is its place: ``out of n3 rail 1 (mlx5_1)``.

    `ratio`: the remaining share of the usual bandwidth. `slow` of `tests` results confirm it; `retests` of these were
    made after it became suspect, with `partners` different nodes. `hosts` are the nodes concerned; `nodes` are those of
    the round-robin; on a single node these are its ranks. `several`: many, but not all, of its pairs are slow; with
    more than two nodes, the path between them and the others is slow, and the path between themselves is not.
    """

    where: str
    kind: Literal["node", "rail", "pair"]
    nodes: tuple[str, ...]
    rail: int | None
    direction: Literal["both", "out", "into"]
    ratio: float
    confidence: float
    slow: int
    tests: int
    retests: int
    partners: int
    hosts: tuple[str, ...] = ()
    several: bool = False


class LostPair(Struct, frozen=True):
    """Node `dst` received nothing, or not all, from `src` before the deadline."""

    src: str
    dst: str
    why: str
    step: int = 0


class Aside(Struct, frozen=True):
    """A rank that dropped out, its place, and why: its pair was lost, or (`gone`) it did not answer at all."""

    rank: int
    end: str
    why: str
    gone: bool = False


class Inside(Struct, frozen=True):
    """Something slow inside one node, compared with its equals, without a network in between.

    `kind`: most pairs of the `node`'s ranks; those of one `rank`; one `pair` of ranks. `ratio`: the remaining share of
    `usual_GBps`. It was slow in each of `tests` consecutive tests.
    """

    where: str
    kind: Literal["node", "rank", "pair"]
    node: str
    ranks: tuple[int, ...]
    ratio: float
    usual_GBps: float
    tests: int


class WrongBytes(Struct, frozen=True):
    """`wrong` bytes of one transfer from rank `src` to rank `dst` differ from those sent; `first` is the
    first of them.
    """

    src: int
    dst: int
    src_end: str
    dst_end: str
    wrong: int
    first: Mismatch


class Localisation(Struct, frozen=True):
    """The slow parts, if any: `culprits` are confirmed by retests, `suspects` are not, `cleared` were slow only once.

    `nodes` took part (the ranks of a single node count as nodes). `level_GBps` is the usual rate, by way; `all_slow`:
    that rate is itself below the expected one. `tests` counts all samples and lost pairs, `steps` the rounds of
    retests. `intra_node` is what is slow within a node. `excluded_ranks` dropped out before the end. `wrong` is data
    that arrived corrupted. `slow_rails`: rails that are slow between nearly all nodes, with the remaining share of the
    usual rate. `complete`: all planned pairs were tried, except those of a rank that was gone.
    """

    nodes: int
    kind: str
    culprits: tuple[Blamed, ...] = ()
    suspects: tuple[Blamed, ...] = ()
    cleared: tuple[str, ...] = ()
    lost: tuple[LostPair, ...] = ()
    level_GBps: dict[str, float] = field(default_factory=dict)
    all_slow: bool = False
    tests: int = 0
    steps: int = 0
    confidence: float = 0.99
    intra_node: tuple[Inside, ...] = ()
    excluded_ranks: tuple[Aside, ...] = ()
    wrong: tuple[WrongBytes, ...] = ()
    complete: bool = True
    slow_rails: dict[int, float] = field(default_factory=dict)

    @property
    def usual(self) -> str:
        """Return the usual rates: ``0.0511 GB/s one way, 0.0497 GB/s both ways at once``."""
        return ", ".join(f"{rate:.3g} GB/s {way}" for way, rate in self.level_GBps.items())

    def usual_GBps(self, *, inside: bool, both: bool = False) -> float | None:
        """Return the usual rate inside nodes or between them, one way or with `both` ways at once.

        Other rates are compared with it. None: nothing arrived, or it was not measured.
        """
        way = ONE_WAY_INSIDE if inside else BOTH_WAYS if both else ONE_WAY
        return None if inside and both else self.level_GBps.get(way)
