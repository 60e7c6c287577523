"""Run the round-robin on real ranks: rank 0 plans and decides, all measure, in step over the store.

One step is one kind of transfer of all pairs of a round. Rank 0 shares which pairs measure, every rank returns its
timing; none of that uses the measured group. Ranks inside several nodes measure first, every node by
itself; then nodes measure, rail with rail. The effect of a failing pair, by rank::

    a pair                             set aside                         the others
    ─────────────────────────────────  ────────────────────────────────  ──────────────────────────────────────────
    hangs (path, or a rank stands)     with gloo an end that hung with   connect anew with the two, which measure all
                                       a second partner too; with NCCL   their other pairs; with NCCL never notice
                                       both, at the step's deadline
    breaks, and a rank is gone         that rank; with NCCL both         with gloo its partner goes on
    is free, and a rank is gone        that rank, once its heartbeat     its later partners have a bye
                                       or its answer is missing
    brings wrong bytes                 none                              go on; the bytes are named
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

from ncclprobe.localise.pairs import intra_node, suspects
from ncclprobe.localise.pairs.intra_node import RETESTS, inner_end
from ncclprobe.localise.pairs.rounds import AT_ONCE, PairRound, Placement, Round
from ncclprobe.localise.pairs.samples import End, Lost, Result, Rules, Sample
from ncclprobe.localise.slow_ranks import inner_name
from ncclprobe.model.pair_results import Aside, LostTransfer, PairRow
from ncclprobe.model.units import microseconds
from ncclprobe.model.values import Struct, field, grouped
from ncclprobe.probes.pairs import Kind, PairEndpoint, PairTiming, as_json, from_json
from ncclprobe.probes.plan import Exchange

DEFAULT_NBYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Default bandwidth message in bytes, by backend: large enough that latency does not matter."""
Kept = PairRow | LostTransfer | Aside
Keep = Callable[[Kept], None]
_PATIENCE = 1.5
"""Wait for an answer, in step deadlines: a rank uses one for all its transfers, then reports its timeout."""
_RENEWALS = 8
"""Maximum reconnects in one run: each lost pair costs a deadline and a full mesh."""


class _Steps(Exchange, Protocol):
    """An exchange that ranks may drop out of."""

    def gather(self, value: Any, deadline_s: float, gone: Callable[[], Collection[int]] = tuple) -> Any:
        """Return on rank 0, by rank, the values that arrived in time from ranks that were not gone before."""
        ...


class PairContext(Struct):
    """What a rank needs to measure pairs: its number, its endpoint, and the exchange with the others.

    `sizes`: bytes of the latency and of the bandwidth messages. `deadline_s` holds for one step; `set_phase` names it.
    `gone` (on rank 0) returns the ranks known to be dead. `transfers`: transfers per sample.
    """

    rank: int
    endpoint: PairEndpoint
    exchange: _Steps
    set_phase: Callable[[str], None]
    sizes: tuple[int, int]
    deadline_s: float
    gone: Callable[[], Collection[int]] = tuple
    transfers: int = 1

    def step(self, instruction: Any) -> dict[int, PairTiming] | None:
        """Run rank 0's `instruction`; return each answering rank's timing on rank 0. All ranks must call it."""
        timing = PairTiming()
        self.set_phase(f"pairs, {instruction['name']}: {instruction['kind']}")
        if self.rank in instruction.get("renew", ()):
            timing = self.endpoint.renew(instruction["renew"], self.deadline_s)
        for first, second in instruction["pairs"]:
            if self.rank in (first, second):
                timing = self.endpoint.measure(instruction["kind"], first, second, self.deadline_s)
        rows = self.exchange.gather(as_json(timing), _PATIENCE * self.deadline_s, self.gone)
        return {rank: from_json(row) for rank, row in rows.items()} if rows is not None else None


def run_worker(context: PairContext) -> bool:
    """Serve rank 0's steps (on every other rank) until it ends the run; return whether all can end cleanly."""
    while "over" not in (instruction := context.exchange.share(None)):
        context.step(instruction)
    return bool(instruction["over"])


class RoundRobin(Struct):
    """Rank 0's part. `keep` gets samples as they arrive, `dropped` the ranks that stopped answering."""

    context: PairContext
    placement: Placement
    keep: Keep
    expected_GBps: float | None = None
    dropped: Callable[[Collection[int]], None] = lambda ranks: None
    rules: Rules = field(default_factory=Rules)
    _rounds: int = 0
    _rank_of: dict[End, int] = field(default_factory=dict)
    _names: dict[End, str] = field(default_factory=dict)
    _latency_s: dict[tuple[End, End], float] = field(default_factory=dict)
    _excluded: dict[int, Aside] = field(default_factory=dict)
    _unfit: dict[int, str] = field(default_factory=dict)
    _lost_with: dict[int, set[int]] = field(default_factory=dict)
    _renewals: int = 0

    def __post_init__(self) -> None:
        """Name each rank's end, and its other name for measurements within its node."""
        for rank, end in enumerate(self.placement.ends):
            self._rank_of |= {inner_end(rank): rank, end: rank}
            self._names |= {inner_end(rank): inner_name(rank, self.placement), end: self.placement.names[end]}

    def run(self, count: int | None = None) -> bool:
        """Measure within nodes, between them, and retest suspects; return whether all ranks stayed until the end.

        All other ranks must be in run_worker().
        """
        if not self.placement.single:
            # Each node's ranks among themselves, all nodes at once; those that are slow again.
            nodes = self.placement.nodes
            rounds = intra_node.plan(nodes, count)
            rates = [self._measure_within_nodes(rounds, 0)]
            for step in range(1, RETESTS + 1):
                slow = intra_node.slow_each_time(rates, nodes, self.rules)
                rates.append(self._measure_within_nodes(intra_node.retest_rounds(rounds, slow) if slow else (), step))
        suspects.localise_slowness(
            self.placement.rails, self._measure_node_pairs, self.rules,
            count=count, expected_GBps=self.expected_GBps, excluded=self._excluded_ends,
        )  # fmt: skip
        intact = not self._excluded and not self._renewals
        self.context.exchange.share({"over": intact})
        return intact

    def _excluded_ends(self, _results: Sequence[Result]) -> frozenset[End]:
        """Return the ends of excluded ranks."""
        return frozenset(end for end, rank in self._rank_of.items() if rank in self._excluded)

    def _measure_node_pairs(self, pairs: PairRound, step: int) -> list[Result]:
        """Measure one round between nodes, in chunks of at most AT_ONCE node pairs."""
        found: list[Result] = []
        by_nodes = grouped(((first.node, second.node), (first, second)) for first, second in pairs)
        matches = list(by_nodes.values())  # all rails of two nodes together
        for start in range(0, len(matches), AT_ONCE):
            chunk = [pair for match in matches[start : start + AT_ONCE] for pair in match]
            found += self._measure_pairs(self._remaining(chunk), step)
        return found

    def _remaining(self, pairs: Sequence[tuple[End, End]]) -> list[tuple[End, End]]:
        excluded = self._excluded_ends(())
        return [pair for pair in pairs if excluded.isdisjoint(pair)]

    def _measure_within_nodes(self, rounds: Sequence[Round], step: int) -> dict[intra_node.Way, float]:
        """Measure `rounds` within nodes; return one-way rates."""
        rates: dict[intra_node.Way, float] = {}
        for matches in rounds:
            pairs = [(inner_end(match.first), inner_end(match.second)) for match in matches]
            rates |= self._one_way(self._measure_pairs(self._remaining(pairs), step))
        return rates

    def _one_way(self, results: Sequence[Result]) -> Mapping[intra_node.Way, float]:
        samples = (each for each in results if isinstance(each, Sample) and not each.both)
        return {(self._rank_of[each.src], self._rank_of[each.dst]): each.GBps for each in samples}

    def _measure_pairs(self, pairs: Sequence[tuple[End, End]], step: int) -> list[Result]:
        """Measure latency, both one-way directions, and, in the round-robin, both at once."""
        self._rounds += 1
        active, results = list(pairs), list[Result]()
        kinds: tuple[Kind, ...] = ("latency", "forth", "back", "both")
        for kind in kinds[: 3 if step else 4]:
            rows = self._run_step(kind, active, step) if active else {}
            for first, second in tuple(active):
                found = self._read_results(kind, (first, second), rows, step)
                results += found
                if any(isinstance(each, Lost) for each in found):
                    active.remove((first, second))
            if self._unfit:
                self._recover()
                active = self._remaining(active)
        return results

    def _recover(self) -> None:
        """Reconnect all ranks, so that the ends of a lost pair lose no other pair; exclude hopeless ends.

        Those are ends that lost a second partner, which cost a deadline each, and all unfit ends if reconnecting fails.
        """
        unfit, self._unfit = self._unfit, {}
        for rank, why in unfit.items():
            if len(self._lost_with[rank]) >= suspects.LOST_PARTNERS or self._renewals == _RENEWALS:
                self._exclude(rank, why)
        ranks = [rank for rank in range(len(self.placement.hosts)) if rank not in self._excluded]
        if not unfit.keys() - self._excluded.keys() or len(ranks) < 2:
            return
        self._renewals += 1
        rows = self._run_step("latency", (), 0, renew=ranks)
        failed = {rank: rows[rank].why for rank in ranks if rank in rows and not rows[rank].fit}
        for rank, why in {**failed, **unfit}.items() if failed else ():
            if rank not in self._excluded:
                self._exclude(rank, why)

    def _run_step(
        self, kind: Kind, active: Sequence[tuple[End, End]], step: int, renew: Sequence[int] = ()
    ) -> dict[int, PairTiming]:
        """Run one step of all ranks; the ranks in `renew` reconnect before it."""
        name = f"round {self._rounds}" + (f", retest {step}" if step else "")
        pairs = [[self._rank_of[first], self._rank_of[second]] for first, second in active]
        instruction = {"name": name, "kind": kind, "pairs": pairs} | ({"renew": list(renew)} if renew else {})
        rows = self.context.step(self.context.exchange.share(instruction))
        assert rows is not None, "rank 0 collects"
        ranks = range(len(self.placement.hosts))
        silent = [
            rank for rank in ranks if rank not in rows and not (rank in self._excluded and self._excluded[rank].gone)
        ]
        for rank in silent:
            self._exclude(rank, f"it did not answer after {name}: {kind}", gone=True)
        if silent:
            self.dropped(silent)
        return rows

    def _exclude(self, rank: int, why: str, gone: bool = False) -> None:
        before = self._excluded.get(rank)
        self._excluded[rank] = Aside(rank, self._names[self.placement.ends[rank]], before.why if before else why, gone)
        self.keep(self._excluded[rank])

    def _read_results(
        self, kind: Kind, pair: tuple[End, End], rows: Mapping[int, PairTiming], step: int
    ) -> list[Result]:
        first, second = pair
        ways = {"forth": [(first, second)], "back": [(second, first)]}.get(kind, [(first, second), (second, first)])
        why = self._why_lost(pair, rows)
        if why:
            return [self._lose(way, why, step) for way in ways]
        if kind == "latency":
            [self._latency_s[pair]] = rows[self._rank_of[first]].seconds
            return []
        return [self._record(pair, way, kind == "both", step, rows) for way in ways]

    def _lose(self, way: tuple[End, End], why: str, step: int) -> Lost:
        src, dst = way
        inside = self._is_inner(src)
        self.keep(LostTransfer(self._rank_of[src], self._rank_of[dst], why, step, inside))
        return Lost(src, dst, why, step)

    def _is_inner(self, end: End) -> bool:
        """Return whether `end` belongs to a rank that measures within its node."""
        return not self.placement.single and end == inner_end(self._rank_of[end])

    def _why_lost(self, pair: tuple[End, End], rows: Mapping[int, PairTiming]) -> str:
        """Return why `pair` brought nothing; mark its ranks unfit, except one whose peer alone is gone."""
        ranks = [self._rank_of[end] for end in pair]
        missing = [rank for rank in ranks if rank not in rows]
        answered = [(rank, rows[rank]) for rank in ranks if rank in rows]
        reasons = [row.why for _, row in answered if row.why]
        reasons += [f"{self._names[self.placement.ends[rank]]} did not answer" for rank in missing]
        if not reasons:
            return ""
        for rank, row in answered:
            if not (missing and row.fit):
                self._unfit[rank] = reasons[0]
                self._lost_with.setdefault(rank, set()).update(set(ranks) - {rank})
        return reasons[0]

    def _record(
        self, pair: tuple[End, End], way: tuple[End, End], both: bool, step: int, rows: Mapping[int, PairTiming]
    ) -> Sample:
        """Record one direction. The reply's share of a transfer, the latency measured before, is subtracted."""
        src, dst = way
        latency_s, nbytes = self._latency_s[pair], self.context.sizes[1]
        reply_s = latency_s / self.context.transfers
        seconds, receiver = rows[self._rank_of[dst if both else src]].seconds, rows[self._rank_of[dst]]
        net = seconds if both else [max(each - reply_s, each / 2) for each in seconds]
        middle = median(net)
        row = PairRow(
            src=self._rank_of[src],
            dst=self._rank_of[dst],
            src_end=self._names[src],
            dst_end=self._names[dst],
            nbytes=nbytes,
            latency_nbytes=self.context.sizes[0],
            latency_us=microseconds(latency_s),
            GBps=nbytes / middle / 1e9,
            time_us=microseconds(middle),
            min_us=microseconds(min(net)),
            max_us=microseconds(max(net)),
            samples_us=tuple(map(microseconds, net)),
            both=both,
            step=step,
            inside=self._is_inner(src),
            wrong=receiver.wrong,
            mismatch=receiver.mismatch,
        )
        self.keep(row)
        return Sample(src, dst, row.GBps, both, step)
