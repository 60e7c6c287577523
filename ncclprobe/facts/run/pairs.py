"""Send-recv between pairs of ranks, and what they say of who is slow."""

from ncclprobe.facts.run.samples import any_of, last
from ncclprobe.host import Host
from ncclprobe.model.pair_results import Localisation, PairRow
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class MeasuredPairs(Struct, frozen=True):
    """The pairs that were measured; empty: none."""

    rows: tuple[PairRow, ...] = ()


@collector
def pairs(host: Host) -> MeasuredPairs:
    """Read the pairs."""
    return MeasuredPairs(any_of(host, "pair", PairRow))


class Localised(Struct, frozen=True):
    """Who is slow, by all pairs that were measured."""

    found: Localisation


@collector
def localised(host: Host) -> Localised:
    """Read the localisation."""
    return Localised(last(host, "localisation", Localisation, "the run ended before all pairs were measured"))
