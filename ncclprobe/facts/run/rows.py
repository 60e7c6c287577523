"""Measured rows, and what they are compared with."""

from ncclprobe.facts.run.samples import any_of, every
from ncclprobe.host import Host
from ncclprobe.model.measurement import Band, Disturbance, Measurement
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class Expected(Struct, frozen=True):
    """What the run expected of its rows; empty: of none."""

    bands: tuple[Band, ...] = ()

    def least_pair_GBps(self, nbytes: int) -> float | None:
        """The threshold of the first band that speaks of pairs, or of a sendrecv, at so many bytes; 0: it has none."""
        bands = [band for op in (PAIRS, "sendrecv") for band in self.bands if band.op == op]
        found = (band.expectation.threshold for band in bands if band.low_bytes <= nbytes <= band.high_bytes)
        return next(found, None)


@collector
def expected(host: Host) -> Expected:
    """Read the expectations that the run used, those of the user first."""
    return Expected(any_of(host, "expected", Band))


class Rows(Struct, frozen=True):
    """The rows of a run, at least one, without verdicts.

    `retests`: rows that were measured again; `disturbances`: what else slowed the run down.
    """

    measured: tuple[Measurement, ...]
    retests: tuple[Measurement, ...] = ()
    disturbances: tuple[Disturbance, ...] = ()


@collector
def rows(host: Host) -> Rows:
    """Read the rows."""
    measured = every(host, "row", Measurement, "no row was measured")
    return Rows(measured, any_of(host, "retest", Measurement), any_of(host, "disturbance", Disturbance))
