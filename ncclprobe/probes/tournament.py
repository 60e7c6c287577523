"""The tournament played by real ranks: rank 0 plans and decides, all play, in step over the store.

One step is one kind of transfer of all pairs of a round. Rank 0 shares who plays, everybody hands back what it saw;
nothing of that goes over the group that is measured. A pair that is lost plays no more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ncclprobe.paired import Blamed, Localisation, LostPair, PairRow
from ncclprobe.pairs import culprit, inquiry
from ncclprobe.pairs.effects import Way
from ncclprobe.pairs.retests import Meetings
from ncclprobe.pairs.rounds import AT_ONCE
from ncclprobe.pairs.samples import End, Lost, Result, Rules, Sample
from ncclprobe.probes.pairs import Kind, Timed, Wire
from ncclprobe.probes.plan import Exchange

DEFAULT_NBYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Bytes of the bandwidth's messages where nobody said, by backend: where pairs are no longer bound by latency."""
Keep = Callable[[PairRow], None]


def ends(hosts: Sequence[str]) -> tuple[End, ...]:
    """The end that each rank is, by rank: node and rail; on a single node each rank plays for itself."""
    if len(set(hosts)) == 1:
        return tuple(End(f"rank {rank}") for rank in range(len(hosts)))
    return tuple(End(host, hosts[:rank].count(host)) for rank, host in enumerate(hosts))


@dataclass(slots=True)
class Table:
    """Where a rank plays: what it is, with what, and how it speaks with the others.

    `sizes`: bytes of the latency's and of the bandwidth's messages. `deadline_s` holds for one step; `beat` says which.
    """

    rank: int
    wire: Wire
    exchange: Exchange
    beat: Callable[[str], None]
    sizes: tuple[int, int]
    deadline_s: float

    def step(self, said: Any) -> list[Timed] | None:
        """Play what rank 0 `said` to play; all ranks' results on rank 0. Every rank must come here."""
        told = Timed()
        self.beat(f"pairs, {said['name']}: {said['kind']}")
        for first, second in said["pairs"]:
            if self.rank in (first, second):
                told = self.wire.play(said["kind"], first, second, self.deadline_s)
        rows = self.exchange.collect(asdict(told))
        return [Timed(tuple(row["seconds"]), row["why"]) for row in rows] if rows is not None else None


def follow(table: Table) -> None:
    """Every rank but 0: play until rank 0 says that it is over."""
    while (said := table.exchange.share(None)) is not None:
        table.step(said)


def lead(
    table: Table, hosts: Sequence[str], keep: Keep, count: int | None = None, expected_GBps: float | None = None
) -> Localisation:
    """Rank 0: all pairs or `count` rounds of them, then retests; each row goes to `keep` as it comes.

    `hosts` are those of the ranks, in their order; `expected_GBps` is what a healthy pair reaches, if anybody knows.
    Raises ValueError for fewer than two ranks.
    """
    players = ends(hosts)
    rails: dict[str, list[int]] = {}
    for end in players:
        rails.setdefault(end.node, []).append(end.rail)
    rules = Rules()
    host = _Host(table, {end: rank for rank, end in enumerate(players)}, keep)
    found = inquiry.inquire(rails, host.measure, None, rules, count=count, expected_GBps=expected_GBps)
    table.exchange.share(None)
    return told(found, len(rails), rules)


@dataclass(slots=True)
class _Host:
    """Rank 0's book of the rounds."""

    table: Table
    rank_of: dict[End, int]
    keep: Keep
    rounds: int = 0
    latency_s: dict[tuple[End, End], float] = field(default_factory=dict)

    def measure(self, meetings: Meetings, step: int) -> list[Result]:
        """One round, in pieces of no more than AT_ONCE pairs of nodes."""
        return [result for piece in _pieces(meetings) for result in self._piece(piece, step)]

    def _piece(self, meetings: Sequence[tuple[End, End]], step: int) -> list[Result]:
        """Latency, there, back, and in the tournament both ways at once."""
        self.rounds += 1
        playing, results = list(meetings), list[Result]()
        kinds: tuple[Kind, ...] = ("latency", "forth", "back", "both")
        for kind in kinds[: 3 if step else 4]:
            rows = self._play(kind, playing, step) if playing else []
            for first, second in tuple(playing):
                found = self._read(kind, (first, second), rows, step)
                results += found
                if any(isinstance(each, Lost) for each in found):
                    playing.remove((first, second))
        return results

    def _play(self, kind: Kind, playing: Sequence[tuple[End, End]], step: int) -> list[Timed]:
        name = f"round {self.rounds}" + (f", retest {step}" if step else "")
        pairs = [[self.rank_of[first], self.rank_of[second]] for first, second in playing]
        rows = self.table.step(self.table.exchange.share({"name": name, "kind": kind, "pairs": pairs}))
        assert rows is not None, "rank 0 collects"
        return rows

    def _read(self, kind: Kind, pair: tuple[End, End], rows: Sequence[Timed], step: int) -> list[Result]:
        first, second = pair
        told = [rows[self.rank_of[end]] for end in pair]
        ways = {"forth": [(first, second)], "back": [(second, first)]}.get(kind, [(first, second), (second, first)])
        why = next((each.why for each in told if each.why), "")
        if why:
            return [Lost(src, dst, why, step) for src, dst in ways]
        if kind == "latency":
            [self.latency_s[pair]] = told[0].seconds
            return []
        results: list[Result] = []
        for src, dst in ways:
            measured = rows[self.rank_of[dst if kind == "both" else src]].seconds
            results.append(self._row(pair, (src, dst), measured, kind == "both", step))
        return results

    def _row(
        self, pair: tuple[End, End], way: tuple[End, End], seconds: Sequence[float], both: bool, step: int
    ) -> Sample:
        """Enter one direction. A word that came back is taken off: it is the latency measured just before."""
        src, dst = way
        latency_s, nbytes = self.latency_s[pair], self.table.sizes[1]
        net = seconds if both else [max(each - latency_s, each / 2) for each in seconds]
        middle = median(net)
        row = PairRow(
            src=self.rank_of[src],
            dst=self.rank_of[dst],
            src_end=str(src),
            dst_end=str(dst),
            nbytes=nbytes,
            latency_nbytes=self.table.sizes[0],
            latency_us=_us(latency_s),
            GBps=nbytes / middle / 1e9,
            time_us=_us(middle),
            min_us=_us(min(net)),
            max_us=_us(max(net)),
            samples_us=tuple(map(_us, net)),
            both=both,
            step=step,
        )
        self.keep(row)
        return Sample(src, dst, row.GBps, both, step)


def _pieces(meetings: Meetings) -> Iterator[list[tuple[End, End]]]:
    """`meetings`, all rails of two nodes together."""
    by_nodes: dict[tuple[str, str], list[tuple[End, End]]] = {}
    for first, second in meetings:
        by_nodes.setdefault((first.node, second.node), []).append((first, second))
    matches = list(by_nodes.values())
    for start in range(0, len(matches), AT_ONCE):
        yield [pair for match in matches[start : start + AT_ONCE] for pair in match]


def told(found: culprit.Localisation, nodes: int, rules: Rules) -> Localisation:
    """What was found out, as the report has it."""
    return Localisation(
        nodes=nodes,
        kind=found.kind,
        culprits=tuple(map(_blamed, found.culprits)),
        suspects=tuple(map(_blamed, found.suspects)),
        cleared=tuple(map(str, found.cleared)),
        lost=tuple(LostPair(str(each.src), str(each.dst), each.why, each.step) for each in found.lost),
        level_GBps={_way(key): round(rate, 6) for key, rate in (found.level or {}).items()},
        everything=found.everything,
        tests=found.tests,
        steps=found.steps,
        confidence=rules.confidence,
    )


def _way(key: Way) -> str:
    near, both = key
    return ("below one leaf, " if near else "") + ("both ways at once" if both else "one way")


def _blamed(each: culprit.Culprit) -> Blamed:
    cause = each.cause
    return Blamed(
        str(cause), cause.kind, cause.nodes, cause.rail, cause.direction,
        each.ratio, each.confidence, each.slow, each.tests, each.retests, each.partners,
    )  # fmt: skip


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
