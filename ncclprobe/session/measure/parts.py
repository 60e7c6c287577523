"""The parts of a run, one after the other: first calls, collectives, pairs, copies, affinity, training, ladder."""

from collections.abc import Sequence

from ncclprobe.facts.run.samples import What
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.session.measure import intra_node, training
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.look import Look
from ncclprobe.session.measure.nic_traffic import TransportDetection

_LEAST_SHARE = 0.2
"""The share of --timeout that must be left for one of several parts: with less it is skipped."""


def too_late(part: What, left_s: float, whole_s: float) -> SkippedRow | None:
    """Return why `part` is skipped with `left_s` of `whole_s` seconds left; None: it may begin."""
    least_s = _LEAST_SHARE * whole_s
    if left_s >= least_s:
        return None
    why = f"{max(0.0, left_s):.0f} s were left of {whole_s:g}, and it is given {least_s:.0f} or more"
    return SkippedRow(part, None, "time", why)


def without_all(part: What) -> SkippedRow:
    """Return why `part` is skipped after pairs whose ranks did not all take part to the end."""
    return SkippedRow(part, None, "lost", "it takes all ranks, and a pair before it brought nothing")


def first_calls(context: RankContext, group_s: float) -> None:
    """Open the communicator and the first pairs, in phases of their own, and record what that takes.

    `group_s` is what torch took to make the group.
    """
    import torch

    from ncclprobe.probes import first_call
    from ncclprobe.probes.clock import clock_of

    device = torch.device(context.device)
    cost = first_call.first_calls(group_s, device, clock_of(device), context.exchange, context.watchdog.set_phase)
    if context.recorder:
        context.recorder.first_calls(cost)


def measure(part: What, context: RankContext, hostname: str) -> bool:
    """Measure one part; return whether the group can still be closed in good order. Every rank must call this."""
    if part == "pairs":
        from ncclprobe.session.measure import pairs

        return pairs.play(context)
    if part == "training":
        _train(context)
    elif part == "collectives":
        _sweep(context, context.look_at(hostname))
    elif part == "ladder":
        _climb(context)
    else:
        look, phase = context.look_at(hostname), context.watchdog.set_phase
        plan, identity = context.plan(), context.identity
        intra_node.play(part, plan, identity, look, context.host, context.exchange, phase, context.recorder)
    return True


def _train(context: RankContext) -> None:
    """Measure groups and steps of training."""
    asked, phase = context.options.training, context.watchdog.set_phase
    assert asked
    for row in training.play(asked, context.plan(), context.hosts, context.host, context.exchange, phase):
        if context.recorder:
            context.recorder.add_trained(row)


def _climb(context: RankContext) -> None:
    """Measure the rungs from one rank to the whole job."""
    from ncclprobe.session.measure import ladder

    options, phase = context.options, context.watchdog.set_phase
    rows = ladder.play(context.plan(), context.hosts, context.host, options.timeout_s, context.exchange, phase)
    if context.recorder:
        context.recorder.add_ladder(rows)


def _sweep(context: RankContext, look: Look) -> None:
    """Measure collectives, and which NICs they use."""
    from ncclprobe.session.measure import retest

    plan, options, recorder = context.plan(), context.options, context.recorder
    exchange, phase, backend = context.exchange, context.watchdog.set_phase, context.config.backend
    detection = TransportDetection(context.identity, context.host, exchange, phase, backend, look, context.hosts)
    if options.transport:
        detection.before(plan, options.phase_timeout_s / 2)
        if recorder:
            recorder.with_transport = detection.with_transport
    retest.sweep(plan, exchange, phase, context.host, recorder, options.repeat)
    if options.transport:
        counted = detection.count(plan)
        if recorder and _spans_nodes(context.hosts):
            recorder.add_traffic(counted)
    if detection.note and recorder:
        recorder.note(detection.note)


def _spans_nodes(hosts: Sequence[str]) -> bool:
    return len(set(hosts)) > 1
