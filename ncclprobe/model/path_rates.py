"""How fast a path of --path was read or written from one node: a sample, and the same as a row of the report."""

from typing import Literal, get_args

from ncclprobe.model.values import Struct

RateKind = Literal["read", "random", "open", "write"]
KINDS: tuple[RateKind, ...] = get_args(RateKind)
_WORDS: dict[RateKind, str] = {
    "read": "sequential reads",
    "random": "random reads",
    "open": "small-file opens",
    "write": "writes with fsync",
}


_IN_MEMORY = 0.1
"""A share of what was read: with more of it in the node's own memory, the file system was not measured."""


class PathRate(Struct, frozen=True):
    """One measurement. `count`: reads or opens, or blocks; `at_once`: nodes that measured this at the same time,
    `together` all of the job's. `typical_s`: the median of single reads or opens; null: of others, which have few.

    `resident`: the share of what was read that this node's memory still held just before (mincore(2)), after the kernel
    was asked to drop it (posix_fadvise(2)); null: it cannot be told, or nothing was read. `why`: why nothing was
    measured; empty: it was; `failed`: because the path gave an error, or no answer. `file_system`: kind and server.
    `node`: empty in a sample.
    """

    path: str
    kind: RateKind
    at_once: int = 1
    together: bool = False
    nbytes: int = 0
    count: int = 0
    seconds: float = 0.0
    typical_s: float | None = None
    resident: float | None = None
    why: str = ""
    failed: bool = False
    file_system: str = ""
    node: str = ""

    @property
    def from_memory(self) -> bool:
        """Return whether this node's memory answered, as far as one can tell, and not the file system."""
        return (self.resident or 0.0) > _IN_MEMORY

    @property
    def per_s(self) -> float:
        """Return bytes or, of small-file opens and random reads, their number in a second; 0: not measured."""
        amount = self.nbytes if self.kind in ("read", "write") else self.count
        return amount / self.seconds if self.seconds > 0 and not self.why else 0.0


def words_of(kind: RateKind) -> str:
    """Return what is measured, in words."""
    return _WORDS[kind]


def shown(kind: RateKind, per_s: float) -> str:
    """Return ``451 MB/s`` (1e6 bytes), or ``3,200 per second``."""
    if kind in ("read", "write"):
        return f"{per_s / 1e6:.3g} MB/s"
    return f"{per_s:,.3g} per second" if per_s < 1000 else f"{per_s:,.0f} per second"


class PathExpectation(Struct, frozen=True):
    """What earlier runs of a site measured at a path. `noise`: the share of it that may be missing."""

    path: str
    kind: RateKind
    at_once: int
    together: bool
    file_system: str
    per_s: float
    noise: float
    runs: int
    source: str = ""

    @property
    def threshold(self) -> float:
        """Return the least that still passes."""
        return self.per_s * (1 - self.noise)

    def __str__(self) -> str:
        """Return ``the baseline of 3 runs has 451 MB/s, less 10 %``."""
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return f"the baseline of {runs} has {shown(self.kind, self.per_s)}, less {self.noise:.0%}"
