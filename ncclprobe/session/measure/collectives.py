"""First calls, the sweep of collectives, the NICs that carry it, and retests of failed rows: one slow row may be
chance.

A job pays for its first calls only at its start, because the first call of each kind opens connections.
"""

import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ncclprobe.model import units
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Disturbance, FirstCall, SkippedRow
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import asdict, replace
from ncclprobe.probes import sweep as probe
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.plan import phase
from ncclprobe.session.measure import interference
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.interference import Heat, Reading
from ncclprobe.session.measure.nic_traffic import TransportDetection

MOST = 64
"""Operations and sizes that are measured again, the largest first. A row beyond these cannot fail."""


def first_calls(run: RankContext, group_s: float) -> None:
    """Time the default group's first collective, a second one, and its first pairs, and record the results.

    One rank has no pair. `group_s` is the time torch took to create the group. Raises ProbeError if a call fails.
    """
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), torch.device(run.device)
    one, other, clock = torch.zeros(1, device=device), torch.zeros(1, device=device), clock_of(device)

    def pairs() -> None:
        """Send and receive between each rank and both its neighbours."""
        to_next = dist.P2POp(dist.isend, one, (rank + 1) % ranks)
        from_previous = dist.P2POp(dist.irecv, other, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([to_next, from_previous]):
            work.wait()

    seconds = [group_s]
    calls = (
        ("communicator (first all_reduce)", lambda: dist.all_reduce(one)),
        ("second all_reduce", lambda: dist.all_reduce(one)),
        ("first pairs", pairs),
    )
    for name, call in calls if ranks > 1 else calls[:2]:
        with phase(rank, run.set_phase, name):
            started = clock.now()
            call()
            clock.synchronise()
            seconds.append(clock.now() - started)
    rows = run.exchange.collect(seconds)
    run.record([slowest(rows)] if rows else ())


def slowest(rows: Sequence[Sequence[float]]) -> FirstCall:
    """Return the slowest rank's seconds of each kind, and its rank."""
    worst = [max((row[kind], -rank) for rank, row in enumerate(rows)) for kind in range(len(rows[0]))]
    (group, collective, second), pair = worst[:3], worst[3] if len(worst) > 3 else (None, 0)
    return FirstCall(group[0], -group[1], collective[0], -collective[1], second[0], pair[0], -pair[1])


def play(run: RankContext) -> bool:
    """Measure the collectives and find the NICs that carry them."""
    plan, options, recorder = run.plan(), run.options, run.recorder
    detection = TransportDetection(run)
    if options.transport:
        detection.before(plan, log_pass_s(options.phase_timeout_s, run.watchdog.left_s()))
        if recorder:
            recorder.with_transport = detection.with_transport
    sweep(run)
    if options.transport:
        counted = detection.count(plan)
        if recorder and len(set(run.hosts)) > 1:
            recorder.add_traffic(counted)
    run.note(detection.note)
    return True


def log_pass_s(phase_s: float, left_s: float) -> float:
    """Return the time for NCCL's own log pass, given a phase's `phase_s` and the run's remaining `left_s`, before any
    row.
    """
    return min(phase_s / 2, left_s / 3)


def sweep(run: RankContext) -> None:
    """Measure on every rank, retest failed rows as often as --repeat asks, and look for disturbances.

    Rows go to rank 0's `recorder`. Raises what :func:`ncclprobe.probes.sweep.run` does.
    """
    plan, recorder, exchange = run.plan(), run.recorder, run.exchange
    before = interference.read(run.host)
    heat = interference.heat(run.host) if plan.backend == "nccl" else None
    if recorder:
        recorder.progress.expect(sum(len(OPS[op].places) for op in plan.ops) * len(plan.sizes))
    reach = recorder.progress.reach if recorder else _show_nothing
    for row in probe.run(plan, exchange, run.set_phase, host=run.host, reach=reach):
        if recorder is None:
            continue
        if isinstance(row, SkippedRow):
            recorder.record(row)
        else:
            recorder.add(row)
    for turn in range(run.options.repeat + 1):
        run.set_phase("decide what to measure again")
        failing = exchange.share(recorder.failing(MOST) if recorder and turn < run.options.repeat else [])
        if not failing:
            break
        for op, nbytes in failing:
            again = replace(plan, ops=(op,), sizes=(nbytes,))
            try:
                for row in probe.run(again, exchange, run.set_phase, host=run.host, reach=reach):
                    if recorder and not isinstance(row, SkippedRow):
                        recorder.add_retest(row)
            except UsageError as error:  # on all ranks: the memory that the row had is no longer free
                run.note(f"{op} {units.size(nbytes)} was not retested: {error}")
    _look_for_disturbances(run, before, heat)


def _show_nothing(_row: str, _precision: float) -> None:
    """Show nothing: only rank 0 shows progress."""


def _look_for_disturbances(run: RankContext, before: Reading | None, heat: Heat | None) -> None:
    """Record the run's disturbances, as every rank sees them, if rows still fail."""
    recorder = run.recorder
    if not run.exchange.share(bool(recorder and recorder.failing(1))):
        return
    run.set_phase("look for disturbances")
    after, here = interference.read(run.host), socket.gethostname()
    gpus = (
        interference.of_gpus(here, heat, interference.heat(run.host), interference.gpus_now(run.host)) if heat else ()
    )
    slowed = [asdict(each) for each in gpus]
    received = run.exchange.collect([here, *(asdict(each) if each else None for each in (before, after)), slowed])
    if received and recorder:
        recorder.disturbed(merge_disturbances(received))


def merge_disturbances(received: Sequence[Any]) -> tuple[Disturbance, ...]:
    """Merge the reports of all ranks: processors by host and GPUs, each once."""
    readings = [
        (name, Reading(**first) if first else None, Reading(**last) if last else None)
        for name, first, last, _ in received
    ]
    gpus = [Disturbance(**each) for *_, slowed in received for each in slowed]
    return tuple(dict.fromkeys([*interference.host_disturbances(readings), *gpus]))
