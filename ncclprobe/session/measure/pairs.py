"""A run that measures pairs: what each node reaches alone, then the round-robin, which rank 0 leads."""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from ncclprobe.host import Host
from ncclprobe.localise.pairs.rails import Placement, place_ranks
from ncclprobe.localise.pairs.samples import Rules
from ncclprobe.model.pair_results import RankNics
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.intra_node import measure_intra_node, turn_of
from ncclprobe.probes.pairs import PairEndpoint
from ncclprobe.probes.round_robin import DEFAULT_NBYTES, PairContext, RoundRobin, run_worker
from ncclprobe.session.measure import nic_of_rank
from ncclprobe.session.measure.look import Look
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import Backend, Seat
from ncclprobe.session.ranks.store import Exchange
from ncclprobe.session.watchdog.watchdog import Watch

_SLACK_S = 30.0  # torch's own deadlines come this much after ours, so that ours names the rank


@dataclass(frozen=True, slots=True)
class Party:
    """Who this rank is and what it measures with; `gpu` is the identity of its GPU, if it uses one;
    `look` is null on all but one rank of each node."""

    options: Options
    seat: Seat
    host: Host
    gpu: str | None
    backend: Backend
    device: str
    look: Look | None


def play(party: Party, exchange: Exchange, recorder: Recorder | None, watch: Watch) -> bool:
    """This rank's part; whether the group is fit to be closed in good order. Every rank must call this."""
    options, seat, device = party.options, party.seat, torch.device(party.device)
    asked = options.pair_sizes
    sizes = (asked[0], asked[1] if len(asked) > 1 else DEFAULT_NBYTES[party.backend])
    watch.beat("pairs, NICs")
    cards = exchange.collect(nic_of_rank.card(party.backend, party.host, party.gpu, party.look))
    hosts = tuple(exchange.share(recorder.participants.hosts if recorder else None))
    turn = turn_of(seat.rank, hosts, sizes[1], device, clock_of(device), watch.beat, options.phase_timeout_s + _SLACK_S)
    own = measure_intra_node(hosts, turn, exchange, sizes[1], Rules())
    watch.beat("pairs, buffers")
    endpoint = PairEndpoint(seat.rank, device, sizes)
    context = PairContext(seat.rank, endpoint, exchange, watch.beat, sizes, options.phase_timeout_s / 2, watch.deserted)
    watch.tolerant = True
    if cards is None or recorder is None:
        fit = run_worker(context)
    else:
        nics = tuple(nic_of_rank.nics(hosts, cards))
        recorder.add_pair(RankNics(hosts, nics))
        for row in own:
            recorder.add_pair(row)
        fit = _lead(context, place_ranks(hosts, nics), recorder, watch, options.rounds)
    watch.tolerant = False
    return fit and not endpoint.lost


def _lead(
    context: PairContext,
    placement: Placement,
    recorder: Recorder,
    watch: Watch,
    rounds: int | None,
) -> bool:
    """Rank 0's part: the round-robin. Whether all ranks played to its end."""

    def dropped(ranks: Collection[int]) -> None:
        recorder.lose(watch.set_aside(ranks))

    round_robin = RoundRobin(context, placement, recorder.add_pair, recorder.expected_GBps(context.sizes[1]), dropped)
    fit = round_robin.run(rounds)
    recorder.all_pairs_tried()
    if placement.note:
        recorder.note(placement.note)
    return fit
