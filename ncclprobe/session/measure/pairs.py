"""Measure pairs: an all_reduce within each node, then the round-robin, which rank 0 coordinates."""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from statistics import median
from typing import Protocol

import torch
import torch.distributed as dist

from ncclprobe.localise.pairs.intra_node import TURNS, slow_each_turn
from ncclprobe.localise.pairs.rounds import Placement, place_ranks
from ncclprobe.localise.pairs.samples import Rules
from ncclprobe.model.pair_results import OwnCollective, RankNics
from ncclprobe.model.units import microseconds
from ncclprobe.model.values import grouped
from ncclprobe.probes.clock import Clock, clock_of
from ncclprobe.probes.pairs import PairEndpoint
from ncclprobe.probes.plan import Exchange, phase
from ncclprobe.probes.round_robin import DEFAULT_NBYTES, PairContext, RoundRobin, run_worker
from ncclprobe.session.measure import rank_nics
from ncclprobe.session.measure.context import TORCH_SLACK_S, RankContext
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.watchdog.watchdog import Watchdog

SAMPLES, _WARM_UPS = 7, 2


def play(run: RankContext) -> bool:
    """Measure pairs; return whether the group can still be closed in good order. Every rank must call this."""
    options, identity, device = run.options, run.identity, torch.device(run.device)
    exchange, recorder, watchdog, backend = run.exchange, run.recorder, run.watchdog, run.config.backend
    asked = options.pair_sizes
    sizes = (asked[0], asked[1] if len(asked) > 1 else DEFAULT_NBYTES[backend])
    watchdog.set_phase("pairs, NICs")
    infos = exchange.collect(rank_nics.rank_info(backend, run.host, run.gpu, run.look))
    hosts = tuple(exchange.share(recorder.participants.hosts if recorder else None))
    turn = turn_of(
        identity.rank,
        hosts,
        sizes[1],
        device,
        clock_of(device),
        watchdog.set_phase,
        options.phase_timeout_s + TORCH_SLACK_S,
    )
    own = measure_intra_node(hosts, turn, exchange, sizes[1], Rules())
    watchdog.set_phase("pairs, buffers")
    endpoint = PairEndpoint(identity.rank, device, sizes)
    context = PairContext(
        identity.rank, endpoint, exchange, watchdog.set_phase, sizes, options.phase_timeout_s / 2,
        watchdog.unreachable, endpoint.transfers
    )  # fmt: skip
    watchdog.tolerant = True
    if infos is None or recorder is None:
        intact = run_worker(context)
    else:
        nics = tuple(rank_nics.nics(hosts, infos))
        recorder.record(RankNics(hosts, nics), *own)
        intact = _coordinate(context, place_ranks(hosts, nics), recorder, watchdog, options.rounds)
    watchdog.tolerant = False
    return intact and not endpoint.lost


def _coordinate(
    context: PairContext,
    placement: Placement,
    recorder: Recorder,
    watchdog: Watchdog,
    rounds: int | None,
) -> bool:
    """Coordinate the round-robin, on rank 0; return whether all ranks took part to its end."""

    def dropped(ranks: Collection[int]) -> None:
        recorder.record(*watchdog.exclude(ranks))

    round_robin = RoundRobin(context, placement, recorder.record, recorder.expected_GBps(context.sizes[1]), dropped)
    intact = round_robin.run(rounds)
    recorder.all_pairs_tried()
    if placement.note:
        recorder.note(placement.note)
    return intact


class Turn(Protocol):
    """This rank's part of one turn: its seconds per call."""

    def __call__(self) -> Sequence[float]:
        """Make the calls; empty if this rank's node has no other."""
        ...


def measure_intra_node(
    hosts: Sequence[str], turn: Turn, exchange: Exchange, nbytes: int, rules: Rules
) -> tuple[OwnCollective, ...]:
    """Measure turns until no node was slow in each of them or TURNS are over; return the rows of all on rank 0.

    All ranks must call it. Returns no row if no node has two ranks.
    """
    nodes = grouped((host, number) for number, host in enumerate(hosts))
    if all(len(ranks) < 2 for ranks in nodes.values()):
        return ()
    turns: list[list[OwnCollective]] = []
    while exchange.share(not turns or (len(turns) < TURNS and bool(_slow(turns, rules)))):
        by_rank = exchange.collect(list(turn())) or ()
        together = {node: ranks for node, ranks in nodes.items() if len(ranks) > 1 and by_rank}
        number = len(turns) + 1
        turns.append([_reduce_row(node, ranks, by_rank, nbytes, number) for node, ranks in together.items()])
    return tuple(row for rows in turns for row in rows)


def _slow(turns: Sequence[Sequence[OwnCollective]], rules: Rules) -> Collection[str]:
    return slow_each_turn([{row.node: row.busbw_GBps for row in rows} for rows in turns], rules)


def _reduce_row(
    node: str, ranks: Sequence[int], by_rank: Sequence[Sequence[float]], nbytes: int, turn: int
) -> OwnCollective:
    per_rank = [by_rank[rank] for rank in ranks]
    samples = [sum(seconds) / len(ranks) for seconds in zip(*per_rank, strict=True)]
    middle, count = median(samples), len(ranks)
    busbw = 2 * (count - 1) / count * nbytes / middle / 1e9
    return OwnCollective(node, count, nbytes, busbw, microseconds(middle), tuple(map(microseconds, samples)), turn)


def turn_of(
    rank: int, hosts: Sequence[str], nbytes: int, device: torch.device, clock: Clock, set_phase: Callable[[str], None],
    timeout_s: float,
) -> Turn:  # fmt: skip
    """Return this rank's part on real torch; the first turn makes its node's group. A turn raises ProbeError."""
    node_ranks = [number for number, host in enumerate(hosts) if host == hosts[rank]]
    groups: list[dist.ProcessGroup] = []

    def turn() -> Sequence[float]:
        with phase(rank, set_phase, "own collective of each node"):
            if not groups:
                wait = timedelta(seconds=timeout_s)
                groups.append(dist.new_group(node_ranks, timeout=wait, use_local_synchronization=True))
            if len(node_ranks) < 2:  # it has opened a group all the same: torch names groups by how many there are
                return ()
            buffer = torch.zeros(max(1, nbytes // 4), device=device)
            seconds = []
            for _ in range(_WARM_UPS + SAMPLES):
                started = clock.now()
                dist.all_reduce(buffer, group=groups[0])
                clock.synchronise()
                seconds.append(clock.now() - started)
        return seconds[_WARM_UPS:]

    return turn
