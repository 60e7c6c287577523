"""Measure pairs: the round-robin, which rank 0 coordinates."""

from collections.abc import Collection

import torch

from ncclprobe.localise.pairs.rounds import Placement, place_ranks
from ncclprobe.model.pair_results import RankNics
from ncclprobe.probes.pairs import PairEndpoint
from ncclprobe.probes.round_robin import DEFAULT_NBYTES, PairContext, RoundRobin, run_worker
from ncclprobe.session.measure import rank_nics
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.watchdog.watchdog import Watchdog


def play(run: RankContext) -> bool:
    """Measure pairs; return whether the group can still be closed cleanly. Every rank must call this."""
    options, identity, device = run.options, run.identity, torch.device(run.device)
    exchange, recorder, watchdog, backend = run.exchange, run.recorder, run.watchdog, run.config.backend
    asked = options.pair_sizes
    sizes = (asked[0], asked[1] if len(asked) > 1 else DEFAULT_NBYTES[backend])
    watchdog.set_phase("pairs, NICs")
    infos = exchange.collect(rank_nics.rank_info(backend, run.host, run.gpu, run.look))
    hosts = tuple(exchange.share(recorder.participants.hosts if recorder else None))
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
        recorder.record(RankNics(hosts, nics))
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
