"""Facts of a measuring run: which ranks came and stayed, and the rows that checks judge together."""

from dataclasses import dataclass

from ncclprobe.model.measurement import Measurement


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that ended, fell silent or stood still: where, in which phase it was last seen, and what was seen."""

    rank: int
    host: str
    phase: str
    why: str


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Which ranks came to the start of a run: `expected` is the world size, `missing` the ranks never heard of."""

    expected: int
    missing: tuple[int, ...] = ()
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Attendance:
    """Which ranks stayed to the end of a run.

    `lost` are those that something can be said against. `stalled` is for a run that hangs with nobody to blame: the
    phase that all ranks entered, and none left. Empty: that did not happen.
    """

    ranks: int
    lost: tuple[LostRank, ...] = ()
    stalled: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """The rows of a sweep whose data was compared with what it must be. At least one."""

    rows: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of a sweep for which somebody expected a number. At least one."""

    rows: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """The rows of a sweep in which the ranks' arrivals were noted, at least one, and the host of each rank."""

    rows: tuple[Measurement, ...]
    hosts: tuple[str, ...]
