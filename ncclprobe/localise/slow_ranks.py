"""Find the slow ranks of a run from its measured pairs, anew whenever the run is judged.

The run log holds rates, lost transfers and the places of the ranks, and no conclusion. Live and replayed runs use this.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ncclprobe.facts.run.samples import MeasuredPairs
from ncclprobe.localise.pairs import intra_node, suspects
from ncclprobe.localise.pairs.effects import Way
from ncclprobe.localise.pairs.intra_node import RETESTS, inner_end
from ncclprobe.localise.pairs.rounds import Placement, place_ranks
from ncclprobe.localise.pairs.samples import End, Lost, Result, Rules, Sample
from ncclprobe.model.errors import ParseError
from ncclprobe.model.pair_results import (
    BOTH_WAYS,
    ONE_WAY,
    ONE_WAY_INSIDE,
    Blamed,
    Inside,
    Localisation,
    LostPair,
    LostTransfer,
    PairRow,
    WrongBytes,
)
from ncclprobe.model.values import replace


def localise(measured: MeasuredPairs, expected_GBps: float | None = None, rules: Rules | None = None) -> Localisation:
    """Return which ranks are slow, if any. `expected_GBps`: the least that a healthy pair reaches.

    Raises ParseError for rows that contradict the placement of the ranks: a log may come from elsewhere.
    """
    rules = rules or Rules()
    try:
        placement = place_ranks(measured.ranks.hosts, measured.ranks.nics)
        results = list(_results(measured, placement))
        gone = {placement.ends[each.rank] for each in measured.excluded if each.gone}
        rates = _rates_inside_nodes(measured.rows, placement)
    except (ValueError, IndexError) as error:
        raise ParseError(f"pairs: {error}") from None
    telling = [each for each in results if isinstance(each, Sample) or gone.isdisjoint((each.src, each.dst))]
    found = suspects.verdict(telling, rules, expected_GBps)  # who has gone tells of no link
    return Localisation(
        nodes=len(placement.rails),
        kind=found.kind,
        culprits=tuple(_blamed(each, placement) for each in found.confirmed),
        suspects=tuple(_blamed(each, placement) for each in found.suspects),
        cleared=tuple(map(str, found.cleared)),
        lost=tuple(_lost(measured.lost, results, placement)),
        level_GBps=_levels(found.level or {}, rates[0]),
        all_slow=found.all_slow,
        tests=len(results),
        steps=found.steps,
        confidence=rules.confidence,
        intra_node=tuple(_slow_pairs(rates, placement, rules)),
        excluded_ranks=tuple({each.rank: each for each in sorted(measured.excluded, key=lambda e: e.rank)}.values()),
        wrong=tuple(_wrong(measured.rows)),
        complete=measured.complete,
        slow_rails={} if placement.note else {rail: round(share, 4) for rail, share in found.slow_rails.items()},
    )


def _results(measured: MeasuredPairs, placement: Placement) -> Iterator[Result]:
    """Yield the results between nodes. Raises ValueError for a rank without a place, and for an invalid rate."""

    def end(rank: int) -> End:
        if not 0 <= rank < len(placement.ends):
            raise ValueError(f"rank {rank} is none of {len(placement.ends)}")
        return placement.ends[rank]

    for row in measured.rows:
        if not row.inside:
            yield Sample(end(row.src), end(row.dst), row.GBps, row.both, row.step)
    for lost in measured.lost:
        if not lost.inside:
            yield Lost(end(lost.src), end(lost.dst), lost.why, lost.step)


def _rates_inside_nodes(rows: Sequence[PairRow], placement: Placement) -> list[dict[intra_node.Way, float]]:
    """Return the one-way rates within nodes: those of the round-robin, then those of each round of retests.

    Raises ValueError for a pair that is not of one node.
    """
    rates: list[dict[intra_node.Way, float]] = [{} for _ in range(1 + RETESTS)]
    for row in rows:
        if row.inside and not row.both and 0 <= row.step < len(rates) and row.GBps > 0:
            hosts = {placement.hosts[rank] for rank in (row.src, row.dst) if 0 <= rank < len(placement.hosts)}
            if len(hosts) != 1 or max(row.src, row.dst) >= len(placement.hosts):
                raise ValueError(f"ranks {row.src} and {row.dst} are not of one node")
            rates[row.step][row.src, row.dst] = row.GBps
    return rates


def _slow_pairs(
    rates: Sequence[Mapping[intra_node.Way, float]], placement: Placement, rules: Rules
) -> Iterator[Inside]:
    nodes = placement.nodes
    ratios = intra_node.slow_each_time(rates, nodes, rules)
    for each in intra_node.name_slow(ratios, rates[0], nodes):
        pair = "" if each.kind == "node" else " with ".join(f"rank {rank}" for rank in each.ranks) + " "
        where = f"{pair}inside {each.node}"
        yield Inside(where, each.kind, each.node, each.ranks, each.ratio, each.usual_GBps, 1 + RETESTS)


def _wrong(rows: Sequence[PairRow]) -> Iterator[WrongBytes]:
    for row in rows:
        if row.wrong and row.mismatch:
            yield WrongBytes(row.src, row.dst, row.src_end, row.dst_end, row.wrong, row.mismatch)


def _lost(lost: Sequence[LostTransfer], results: Sequence[Result], placement: Placement) -> Iterator[LostPair]:
    """Yield the transfers that were lost within nodes, then those between them."""
    for inner in lost:
        if inner.inside:
            src, dst = (inner_name(rank, placement) for rank in (inner.src, inner.dst))
            yield LostPair(src, dst, inner.why, inner.step)
    for each in results:
        if isinstance(each, Lost):
            yield LostPair(placement.names[each.src], placement.names[each.dst], each.why, each.step)


def inner_name(rank: int, placement: Placement) -> str:
    """Return a rank's name for measurements inside its node."""
    host = placement.hosts[rank] if 0 <= rank < len(placement.hosts) else "?"
    return str(inner_end(rank)) + ("" if placement.single else f" on {host}")


def _levels(between: Mapping[Way, float], inside: Mapping[intra_node.Way, float]) -> dict[str, float]:
    """Return the usual rates: between nodes by kind of way, and one way within nodes."""
    found = {BOTH_WAYS if both else ONE_WAY: round(rate, 6) for both, rate in between.items()}
    return {**found, ONE_WAY_INSIDE: round(median(inside.values()), 6)} if inside else found


def _blamed(each: suspects.Suspect, placement: Placement) -> Blamed:
    cause = each.cause
    rank = {end: number for number, end in enumerate(placement.ends)}
    nodes = [placement.hosts[rank[end]] for node in cause.nodes for end in rank if end.node == node]
    blamed = Blamed(
        str(cause), cause.kind, cause.nodes, cause.rail, cause.direction,
        each.ratio, each.confidence, each.slow, each.tests, each.retests, each.partners, tuple(dict.fromkeys(nodes)),
        cause.several,
    )  # fmt: skip
    if cause.kind != "rail" or cause.rail is None:
        return blamed
    end = End(cause.nodes[0], cause.rail)
    nic = placement.names[end].removeprefix(str(end))  # `` (mlx5_1)`` where it is known
    return replace(blamed, where=blamed.where + nic)
