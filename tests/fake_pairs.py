"""Pairs as a run log would hold them, from what a round-robin hands over as it goes."""

from collections.abc import Sequence

from ncclprobe.facts.run.samples import MeasuredPairs
from ncclprobe.model.pair_results import Aside, LostTransfer, Nic, PairRow, RankNics

Kept = PairRow | LostTransfer | Aside


def measured(
    hosts: Sequence[str], kept: Sequence[Kept], nics: Sequence[Nic] = (), complete: bool = True
) -> MeasuredPairs:
    """What is kept of one run."""
    return MeasuredPairs(
        ranks=RankNics(tuple(hosts), tuple(nics)), rows=tuple(each for each in kept if isinstance(each, PairRow)),
        lost=tuple(each for each in kept if isinstance(each, LostTransfer)),
        excluded=tuple(each for each in kept if isinstance(each, Aside)), complete=complete)  # fmt: skip
