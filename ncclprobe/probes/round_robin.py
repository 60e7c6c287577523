"""The tournament played by real ranks: rank 0 plans and decides, all play, in step over the store.

One step is one kind of transfer of all pairs of a round. Rank 0 shares who plays, everybody hands back what it saw;
nothing of that goes over the group that is measured. Ranks inside several nodes play first, every node by itself; then
nodes play, rail with rail. Who ends his part, and whose else::

    a pair                             set aside                         the others
    ─────────────────────────────────  ────────────────────────────────  ──────────────────────────────────────────
    hangs (path, or a rank stands)     both ranks, when the step's       never notice: nobody sends to these two
                                       deadline has run out              again
    breaks, and a rank is gone         that rank; with NCCL both         with gloo its partner plays on
    is free, and a rank is gone        that rank, once its heartbeat     its partners to come have a bye
                                       or its answer is missing
    brings wrong bytes                 nobody                            play on; the bytes are named
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from ncclprobe.localise.pairs import intra_node, search, suspects
from ncclprobe.localise.pairs.rails import Seating
from ncclprobe.localise.pairs.retests import Meetings
from ncclprobe.localise.pairs.rounds import AT_ONCE, Round
from ncclprobe.localise.pairs.samples import End, Lost, Result, Rules, Sample
from ncclprobe.model.pair_results import Aside, Inside, Localisation, PairRow, WrongBytes
from ncclprobe.probes.localisation import told
from ncclprobe.probes.pairs import Kind, Timed, Wire, as_json, from_json
from ncclprobe.probes.plan import Exchange

DEFAULT_NBYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Bytes of the bandwidth's messages where nobody said, by backend: where pairs are no longer bound by latency."""
Keep = Callable[[PairRow], None]
_PATIENCE = 1.5
"""For an answer, in deadlines of a step: who plays has one for all of his transfers, and says then that it ran out."""
_AGAIN = 2
"""So often is measured again who is slow inside a node."""


class Steps(Exchange, Protocol):
    """An exchange in which ranks may go missing."""

    def gather(self, value: Any, deadline_s: float, gone: Callable[[], Collection[int]] = tuple) -> Any:
        """The values by rank, on rank 0, of those that answered in time and were not gone before."""
        ...


@dataclass(slots=True)
class Table:
    """Where a rank plays: what it is, with what, and how it speaks with the others.

    `sizes`: bytes of the latency's and of the bandwidth's messages. `deadline_s` holds for one step; `beat` says which.
    `gone` (on rank 0): the ranks that are known to answer no more.
    """

    rank: int
    wire: Wire
    exchange: Steps
    beat: Callable[[str], None]
    sizes: tuple[int, int]
    deadline_s: float
    gone: Callable[[], Collection[int]] = tuple

    def step(self, said: Any) -> dict[int, Timed] | None:
        """Play what rank 0 `said` to play; on rank 0 what each rank that answered told. Every rank must come here."""
        own = Timed()
        self.beat(f"pairs, {said['name']}: {said['kind']}")
        for first, second in said["pairs"]:
            if self.rank in (first, second):
                own = self.wire.play(said["kind"], first, second, self.deadline_s)
        rows = self.exchange.gather(as_json(own), _PATIENCE * self.deadline_s, self.gone)
        return {rank: from_json(row) for rank, row in rows.items()} if rows is not None else None


def follow(table: Table) -> bool:
    """Every rank but 0: play until rank 0 says that it is over; whether all are fit to end in good order."""
    while "over" not in (said := table.exchange.share(None)):
        table.step(said)
    return bool(said["over"])


@dataclass(slots=True)
class Leader:
    """Rank 0's book of the rounds. `dropped` hears of the ranks that do not answer any more, as they go."""

    table: Table
    seats: Seating
    keep: Keep
    expected_GBps: float | None = None
    dropped: Callable[[Collection[int]], None] = lambda ranks: None
    rules: Rules = field(default_factory=Rules)
    _rounds: int = 0
    _rank_of: dict[End, int] = field(default_factory=dict)
    _names: dict[End, str] = field(default_factory=dict)
    _latency_s: dict[tuple[End, End], float] = field(default_factory=dict)
    _aside: dict[int, Aside] = field(default_factory=dict)
    _results: list[Result] = field(default_factory=list)
    _lost_inside: list[Lost] = field(default_factory=list)
    _inside: tuple[Inside, ...] = ()
    _inside_GBps: dict[str, float] = field(default_factory=dict)
    _wrong: list[WrongBytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Give every rank its end, and another name for when it plays inside its node."""
        for rank, (end, host) in enumerate(zip(self.seats.ends, self.seats.hosts, strict=True)):
            within = f"rank {rank}" + ("" if self.seats.single else f" on {host}")
            self._rank_of |= {_within(rank): rank, end: rank}
            self._names |= {_within(rank): within, end: self.seats.names[end]}

    def play(self, count: int | None = None) -> Localisation:
        """Everything: inside nodes, between them, and again who is suspected. All ranks must follow."""
        if not self.seats.single:
            self._play_inside(count)
        found = search.inquire(
            self.seats.rails, self._between, self.seats.layout, self.rules,
            count=count, expected_GBps=self.expected_GBps, aside=self._out,
        )  # fmt: skip
        self.table.exchange.share({"over": not self._aside})
        return self._report(found)

    def so_far(self) -> Localisation:
        """What can be said of a tournament that ends before its time; from any thread."""
        results = tuple(self._results)
        return self._report(
            suspects.verdict(results, self.seats.layout, self.rules, self.expected_GBps), complete=False
        )

    def _report(self, found: suspects.Localisation, complete: bool = True) -> Localisation:
        return told(
            found, self.seats, self._names, self.rules,
            lost_inside=tuple(self._lost_inside),
            inside_GBps=dict(self._inside_GBps),
            inside=self._inside,
            aside=tuple(self._aside[rank] for rank in sorted(self._aside)),
            wrong=tuple(self._wrong),
            complete=complete,
        )  # fmt: skip

    def _out(self, _results: Sequence[Result]) -> frozenset[End]:
        """The ends that play no more."""
        return frozenset(end for end, rank in self._rank_of.items() if rank in self._aside)

    def _between(self, meetings: Meetings, step: int) -> list[Result]:
        """One round of nodes, in pieces of no more than AT_ONCE pairs of them."""
        found: list[Result] = []
        for piece in _pieces(meetings):
            left = self._left(piece)
            got = self._piece(left, step)
            self._results += got
            found += got
        return found

    def _left(self, meetings: Sequence[tuple[End, End]]) -> list[tuple[End, End]]:
        out = self._out(())
        return [pair for pair in meetings if out.isdisjoint(pair)]

    def _play_inside(self, count: int | None) -> None:
        """Each node's ranks among themselves, all nodes at once, and again whoever is slow beside its peers."""
        nodes, rates = self.seats.nodes, dict[intra_node.Way, float]()
        rounds = intra_node.plan(nodes, count)
        for matches in rounds:
            rates |= self._one_way(self._within(matches, 0))
        ratios = intra_node.suspects(rates, nodes, self.rules)
        for step in range(1, _AGAIN + 1):
            once_more = dict[intra_node.Way, float]()
            for matches in intra_node.again(rounds, ratios) if ratios else ():
                once_more |= self._one_way(self._within(matches, step))
            slow = intra_node.suspects(once_more, nodes, self.rules)
            ratios = {way: max(ratio, slow[way]) for way, ratio in ratios.items() if way in slow}
        self._inside = tuple(
            Inside(_where(each), each.kind, each.node, each.ranks, each.ratio, each.usual_GBps, 1 + _AGAIN)
            for each in intra_node.named(ratios, rates, nodes)
        )
        if rates:
            self._inside_GBps = {"inside a node, one way": round(median(rates.values()), 6)}

    def _within(self, matches: Round, step: int) -> list[Result]:
        pairs = [(_within(match.first), _within(match.second)) for match in matches]
        results = self._piece(self._left(pairs), step)
        self._lost_inside += [each for each in results if isinstance(each, Lost)]
        return results

    def _one_way(self, results: Sequence[Result]) -> Mapping[intra_node.Way, float]:
        samples = (each for each in results if isinstance(each, Sample) and not each.both)
        return {(self._rank_of[each.src], self._rank_of[each.dst]): each.GBps for each in samples}

    def _piece(self, meetings: Sequence[tuple[End, End]], step: int) -> list[Result]:
        """Latency, there, back, and in the tournament both ways at once."""
        self._rounds += 1
        playing, results = list(meetings), list[Result]()
        kinds: tuple[Kind, ...] = ("latency", "forth", "back", "both")
        for kind in kinds[: 3 if step else 4]:
            rows = self._play(kind, playing, step) if playing else {}
            for first, second in tuple(playing):
                found = self._read(kind, (first, second), rows, step)
                results += found
                if any(isinstance(each, Lost) for each in found):
                    playing.remove((first, second))
        return results

    def _play(self, kind: Kind, playing: Sequence[tuple[End, End]], step: int) -> dict[int, Timed]:
        name = f"round {self._rounds}" + (f", retest {step}" if step else "")
        pairs = [[self._rank_of[first], self._rank_of[second]] for first, second in playing]
        rows = self.table.step(self.table.exchange.share({"name": name, "kind": kind, "pairs": pairs}))
        assert rows is not None, "rank 0 collects"
        ranks = range(len(self.seats.hosts))
        silent = [rank for rank in ranks if rank not in rows and not (rank in self._aside and self._aside[rank].gone)]
        for rank in silent:
            self._set_aside(rank, f"it did not answer after {name}: {kind}", gone=True)
        if silent:
            self.dropped(silent)
        return rows

    def _set_aside(self, rank: int, why: str, gone: bool = False) -> None:
        before = self._aside.get(rank)
        self._aside[rank] = Aside(rank, self._names[self.seats.ends[rank]], before.why if before else why, gone)

    def _read(self, kind: Kind, pair: tuple[End, End], rows: Mapping[int, Timed], step: int) -> list[Result]:
        first, second = pair
        ways = {"forth": [(first, second)], "back": [(second, first)]}.get(kind, [(first, second), (second, first)])
        why = self._why_lost(pair, rows)
        if why:
            return [Lost(src, dst, why, step) for src, dst in ways]
        if kind == "latency":
            [self._latency_s[pair]] = rows[self._rank_of[first]].seconds
            return []
        return [self._row(pair, way, kind == "both", step, rows) for way in ways]

    def _why_lost(self, pair: tuple[End, End], rows: Mapping[int, Timed]) -> str:
        """Why nothing came of `pair`, whose ranks are then set aside, but for one whose peer alone is gone."""
        ranks = [self._rank_of[end] for end in pair]
        missing = [rank for rank in ranks if rank not in rows]
        answered = [(rank, rows[rank]) for rank in ranks if rank in rows]
        whys = [row.why for _, row in answered if row.why]
        whys += [f"{self._names[self.seats.ends[rank]]} did not answer" for rank in missing]
        if not whys:
            return ""
        for rank, row in answered:
            if not (missing and row.fit):
                self._set_aside(rank, whys[0])
        return whys[0]

    def _row(
        self, pair: tuple[End, End], way: tuple[End, End], both: bool, step: int, rows: Mapping[int, Timed]
    ) -> Sample:
        """Enter one direction. A word that came back is taken off: it is the latency measured just before."""
        src, dst = way
        latency_s, nbytes = self._latency_s[pair], self.table.sizes[1]
        seconds, came = rows[self._rank_of[dst if both else src]].seconds, rows[self._rank_of[dst]]
        net = seconds if both else [max(each - latency_s, each / 2) for each in seconds]
        middle = median(net)
        row = PairRow(
            src=self._rank_of[src],
            dst=self._rank_of[dst],
            src_end=self._names[src],
            dst_end=self._names[dst],
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
            inside=not self.seats.single and src == _within(self._rank_of[src]),
            wrong=came.wrong,
            mismatch=came.mismatch,
        )
        if came.wrong and came.mismatch:
            self._wrong.append(WrongBytes(row.src, row.dst, row.src_end, row.dst_end, came.wrong, came.mismatch))
        self.keep(row)
        return Sample(src, dst, row.GBps, both, step)


def _within(rank: int) -> End:
    """What a rank is when it plays inside its node."""
    return End(f"rank {rank}")


def _where(slow: intra_node.Slow) -> str:
    if slow.kind == "node":
        return f"inside {slow.node}"
    return " with ".join(f"rank {rank}" for rank in slow.ranks) + f" inside {slow.node}"


def _pieces(meetings: Meetings) -> Iterator[list[tuple[End, End]]]:
    """`meetings`, all rails of two nodes together."""
    by_nodes: dict[tuple[str, str], list[tuple[End, End]]] = {}
    for first, second in meetings:
        by_nodes.setdefault((first.node, second.node), []).append((first, second))
    matches = list(by_nodes.values())
    for start in range(0, len(matches), AT_ONCE):
        yield [pair for match in matches[start : start + AT_ONCE] for pair in match]


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
