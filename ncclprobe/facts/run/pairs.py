"""Send-recv between pairs of ranks, and what they say of who is slow."""

from ncclprobe.facts.run.samples import any_of, last
from ncclprobe.host import Host
from ncclprobe.model.pair_results import Aside, Localisation, LostTransfer, OwnCollective, PairRow, RankNics
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class MeasuredPairs(Struct, frozen=True):
    """All that was measured of pairs, without conclusions: the rows, and the transfers that brought nothing.

    `ranks`: where they are. `node_all_reduces`: of each node by itself, in turns. `excluded`: the ranks that were
    measured no more, from then on; a rank may be there twice, and the last counts. `complete`: all that was planned
    was tried.
    """

    ranks: RankNics
    rows: tuple[PairRow, ...] = ()
    lost: tuple[LostTransfer, ...] = ()
    node_all_reduces: tuple[OwnCollective, ...] = ()
    excluded: tuple[Aside, ...] = ()
    complete: bool = False


@collector
def pairs(host: Host) -> MeasuredPairs:
    """Read the pairs."""
    return MeasuredPairs(
        last(host, "pair_ranks", RankNics, "no pair was measured"),
        any_of(host, "pair", PairRow),
        any_of(host, "lost_transfer", LostTransfer),
        any_of(host, "node_all_reduce", OwnCollective),
        any_of(host, "excluded", Aside),
        any(any_of(host, "pairs_complete", bool)),
    )


class Localised(Struct, frozen=True):
    """Who is slow, by all pairs that were measured: a conclusion, which no collector reads (`localise.of_run`)."""

    found: Localisation
