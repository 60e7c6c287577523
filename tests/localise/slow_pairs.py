"""Pairs of nodes and ranks of which some are slow or dead: cases of which it is kept whom the search names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from ncclprobe.facts.run.samples import MeasuredPairs
from ncclprobe.localise.pairs import intra_node
from ncclprobe.localise.pairs.effects import polish, slow
from ncclprobe.localise.pairs.rounds import PairRound
from ncclprobe.localise.pairs.samples import End, Lost, Result, Rules, Sample
from ncclprobe.localise.pairs.suspects import Localisation, localise_slowness, verdict
from ncclprobe.localise.slow_ranks import localise
from ncclprobe.model.pair_results import Aside, LostTransfer, PairRow, RankNics

Rate = Callable[[End, End], float]
EIGHT, TWELVE = "abcdefgh", "abcdefghijkl"


def measured(rate: Rate) -> Callable[[PairRound, int], Iterator[Result]]:
    """Return a fleet that gives what `rate` says, and loses what gets 0."""

    def measure(meetings: PairRound, step: int) -> Iterator[Result]:
        for one, other in meetings:
            for src, dst in ((one, other), (other, one)):
                got = rate(src, dst)
                yield Sample(src, dst, got, step=step) if got else Lost(src, dst, step=step)

    return measure


def search(nodes: Sequence[str], rate: Rate, rails: int = 1, expected_GBps: float | None = None) -> Localisation:
    """Return what is found of nodes with so many rails."""
    return localise_slowness(dict.fromkeys(nodes, range(rails)), measured(rate), expected_GBps=expected_GBps)


def halved(bad: Callable[[End, End], bool], factor: float = 0.5) -> Rate:
    """Return the rate of pairs of which some get a part of it."""
    return lambda src, dst: 40.0 * (factor if bad(src, dst) else 1.0)


def both(src: End, dst: End) -> set[str]:
    """Return the nodes of a pair."""
    return {src.node, dst.node}


def _touches(*nodes: str) -> Callable[[End, End], bool]:
    return lambda src, dst: bool({src.node, dst.node} & {*nodes})


def _between(group: str) -> Callable[[End, End], bool]:
    return lambda src, dst: (src.node in group) != (dst.node in group)


def searches() -> Mapping[str, Localisation]:
    """Return what is found of each fleet."""
    b1, bad = End("b", 1), {End("a", 1), End("b", 1)}
    found = {
        "a node": search(EIGHT, halved(_touches("c"))),
        "out of a node": search(EIGHT, halved(lambda s, d: s.node == "c")),
        "into a node": search(EIGHT, halved(lambda s, d: d.node == "c")),
        "a pair": search(EIGHT, halved(lambda s, d: {s.node, d.node} == {"b", "e"})),
        "a direction": search(EIGHT, halved(lambda s, d: (s.node, d.node) == ("e", "b"))),
        "two nodes": search(EIGHT, halved(_touches("a", "f"))),
        "nobody": search(EIGHT, halved(lambda s, d: False)),
        "a rail of a node": search("abcdef", halved(lambda s, d: End("b", 2) in (s, d)), rails=4),
        "a rail of three nodes": search("abc", halved(lambda s, d: s.rail == 1), rails=4),
        "a rail of six nodes": search("abcdef", halved(lambda s, d: s.rail == 1), rails=4),
        "a rail, and one NIC of it": search(
            "abcdef", lambda s, d: (0.5 if s.rail == 1 else 1) * (20 if b1 in (s, d) else 40), rails=4
        ),
        "two NICs on one rail": search("abcd", halved(lambda s, d: bool(bad & {s, d})), rails=4),
        "a rail of two nodes": search("ab", halved(lambda s, d: s.rail == 1), rails=4),
        "a group of four": search(TWELVE, halved(_between("abcd"))),
        "a group of three": search("abcdefghij", halved(_between("abc"))),
        "a node beside a group": search(
            TWELVE, lambda s, d: 40 * (0.5 if _between("abcd")(s, d) else 1) * (0.5 if _touches("h")(s, d) else 1)
        ),
        "several pairs of a node": search(
            TWELVE, halved(lambda s, d: "c" in both(s, d) and bool(both(s, d) & {*"abde"}))
        ),
        "two pairs of a node": search(TWELVE, halved(lambda s, d: both(s, d) in ({"c", "a"}, {"c", "b"}))),
        "no group": search(TWELVE, halved(_touches("a", "b", "c"))),
        "all, and nothing was expected": search("abcd", lambda s, d: 20.0),
        "all below what was expected": search("abcd", lambda s, d: 20.0, expected_GBps=40.0),
        "all above it": search("abcd", lambda s, d: 41.0, expected_GBps=40.0),
        "an expectation that judges nothing": search("abcd", lambda s, d: 20.0, expected_GBps=0.0),
        "one way of two nodes": search("ab", halved(lambda s, d: s.node == "a")),
        "one of three nodes": search("abc", halved(_touches("b"))),
        "a dead node": search(EIGHT, lambda s, d: 0.0 if _touches("b")(s, d) else 40.0),
        "a dead pair": search(EIGHT, lambda s, d: 0.0 if {s.node, d.node} == {"b", "e"} else 40.0),
        "a dead way": search(EIGHT, lambda s, d: 0.0 if (s.node, d.node) == ("b", "e") else 40.0),
    }
    for factor in (0.9, 0.91, 0.94, 0.96):
        found[f"between groups {factor}"] = search(TWELVE, halved(_between("abcd"), factor))
        found[f"a node at {factor}"] = search(EIGHT, halved(_touches("c"), factor))
    return found | _verdicts()


def _verdicts() -> Mapping[str, Localisation]:
    """Return what is found of samples as they are: no retest clears anybody."""
    pairs = [*permutations(EIGHT, 2)]
    first = [Sample(End(s), End(d), 20.0 if "a" in (s, d) else 40.0) for s, d in pairs]
    again = [Sample(End(s), End(d), 20.0, step=1) for s, d in (("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"))]
    fine = [Sample(End(s), End(d), 40.0, step=1) for s, d in (("b", "c"), ("c", "b"))]
    some = [Sample(End(s), End(d), 40.0) for s, d in ("ab", "cd", "ef", "ac", "be", "df")]
    lost = [Lost(End("a"), End("b"), "timed out", 0), Lost(End("b"), End("a"), "timed out", 0)]
    return {
        "the tournament alone": verdict(first), "a retest beside a slow partner": verdict([*first, *again]),
        "a retest with its control": verdict([*first, *again[:2], *fine]),
        "one sample": verdict([Sample(End("a"), End("b"), 1.0)]), "no sample": verdict([]),
        "few samples": verdict(some), "a lost way": verdict(lost[:1]), "a lost pair": verdict(lost),
    }  # fmt: skip


def row(src: int, dst: int, GBps: float, **more: Any) -> PairRow:
    """Return what was measured between two ranks."""
    ends = {"src": src, "dst": dst, "src_end": f"rank {src}", "dst_end": f"rank {dst}", **more}
    return PairRow(**ends, nbytes=4, latency_nbytes=8, latency_us=1.5, GBps=GBps, time_us=1.0, min_us=0.5, max_us=2.0,
                   samples_us=(1.0,))  # fmt: skip


def of_ranks(ranks: int, lost: Sequence[tuple[int, int]], gone: Sequence[int]) -> MeasuredPairs:
    """Return ranks of one node whose pairs are well, but for the `lost`."""
    rows = [row(src, dst, 20.0) for src, dst in permutations(range(ranks), 2) if (src, dst) not in lost]
    transfers = tuple(LostTransfer(src, dst, "timed out", 0, False) for src, dst in lost)
    asides = tuple(Aside(rank, f"rank {rank}", "it did not answer", True) for rank in gone)
    return MeasuredPairs(RankNics(("h",) * ranks, (None,) * ranks), tuple(rows), transfers, asides, True)


def inside(count: int, each: int, rate: Callable[[int, int], float]) -> object:
    """Return whom the search inside nodes of `each` ranks names, where each way has the same rate every time."""
    on = {f"n{number}": list(range(number * each, (number + 1) * each)) for number in range(count)}
    rates = {way: rate(*way) for ranks in on.values() for way in permutations(ranks, 2)}
    suspects = intra_node.suspects(rates, on, Rules())
    return [str(each) for each in intra_node.name_slow(suspects, rates, on)]


def rows() -> Iterator[tuple[str, object]]:
    """Yield all cases with what is kept of them."""
    for name, found in searches().items():
        causes = {
            str(each.cause): [each.ratio, round(each.confidence, 6), each.slow, each.tests, each.retests, each.partners]
            for each in (*found.confirmed, *found.suspects)
        }
        told = [f"{found.kind}/{len(found.confirmed)}/{found.all_slow}/{found.tests}/{found.steps}", causes]
        lost = [f"{each.src}-{each.dst}-{each.why}" for each in found.lost]
        yield name, {"told": told, "cleared": [*map(str, found.cleared)], "lost": lost, "rails": found.slow_rails}
    for ranks in (2, 4):
        silent = [pair for pair in permutations(range(ranks), 2) if ranks - 1 in pair]
        yield f"{ranks} ranks, one stands still", localise(of_ranks(ranks, silent, gone=[ranks - 1]))
    yield "a rank that answers and reaches nobody", localise(of_ranks(4, [(3, 0), (0, 3), (3, 1), (1, 3)], gone=[]))
    for name, (count, each, bad) in {
        "nothing": (4, 4, lambda s, d: False),
        "a way": (4, 4, lambda s, d: (s, d) == (5, 6)),
        "a rank": (4, 4, lambda s, d: 6 in (s, d)),
        "into a rank": (4, 4, lambda s, d: d == 6),
        "a node": (4, 4, lambda s, d: s in (4, 5, 6, 7)),
        "the far places everywhere": (4, 4, lambda s, d: {s % 4, d % 4} == {0, 3}),
        "a pair of two nodes": (2, 4, lambda s, d: {s, d} == {1, 2}),
        "a pair of two": (3, 2, lambda s, d: {s, d} == {2, 3}),
        "one of two": (1, 2, lambda s, d: s > 0),
        "two of seven ways": (3, 8, lambda s, d: (s, d) in ((8, 9), (8, 10))),
        "five of seven ways": (3, 8, lambda s, d: s == 8 and d < 14),
    }.items():  # fmt: skip
        for rate in (3.0, 7.0, 9.0):
            yield (
                f"inside: {name} at {rate}",
                inside(count, each, lambda s, d, bad=bad, low=rate: low if bad(s, d) else 10.0),
            )  # type: ignore[misc]
    yield "inside: the worst first", inside(4, 4, lambda s, d: {(5, 6): 5.0, (8, 9): 2.0}.get((s, d), 10.0))
    one_way = {f"a{other}": 20.0 for other in "bcdef"}
    for name, rates in {"one way out": one_way, "a pair": {"ab": 10.0}, "none": {}}.items():
        found_ = polish([Sample(End(s), End(d), rates.get(s + d, 40.0)) for s, d in permutations("abcdef", 2)])
        low = [slow(found_.out, Rules()), slow(found_.into, Rules()), [round(each, 6) for each in found_.residual]]
        yield f"effects of {name}", low
