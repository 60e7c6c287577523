"""The parts of a run, one after the other: first calls, collectives, pairs, copies, affinity, training, ladder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ncclprobe.facts.run.samples import What
from ncclprobe.host import Host
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.traffic import LadderRow
from ncclprobe.session.measure import training
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.nic_traffic import TransportDetection
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.measure.training import room_of
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.training import ladder

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Exchange, SetPhase
    from ncclprobe.session.measure.node_snapshot import NodeSnapshot
    from ncclprobe.session.measure.recorder import Recorder


STEP_BYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Gradients of one step, by backend: of 16 and of 1 million parameters in float32."""
LARGEST = {"nccl": 1 << 30, "gloo": 4 << 20}
"""Of the all_reduce alone: with NCCL the size that can be judged, with gloo one that any network carries in time."""
_SHARE = 1 / 8
_SLACK_S = 30.0  # torch's own deadlines come so much later than ours, which name the rank
_BUFFERS = 6
"""So many messages must fit: the buffers of the steps of two rungs, and that of the all_reduce."""


def play_ladder(
    plan: Any, hosts: Sequence[str], host: Host, timeout_s: float, exchange: Any, set_phase: Any
) -> tuple[LadderRow, ...]:
    """Measure all rungs, on every rank, within a share of the run's `timeout_s`; return the rows on rank 0.

    `plan` is a probes.plan.Plan, `hosts` are those of all ranks, on rank 0. Raises ProbeError.
    """
    from ncclprobe.probes.ladder import LadderSizes, run

    rungs = ladder.plan(exchange.share(list(hosts)), pairs=plan.backend == "gloo")
    room = room_of(plan, host, exchange)

    def fitting(nbytes: int) -> int:
        return nbytes if room is None else max(1 << 20, min(nbytes, room // _BUFFERS // 512 * 512))

    sizes = LadderSizes(
        fitting(STEP_BYTES[plan.backend]), fitting(min(LARGEST[plan.backend], max(plan.sizes))), _SHARE * timeout_s
    )
    return run(plan, rungs, sizes, timeout_s + _SLACK_S, exchange, set_phase)


IntraNodePart = Literal["copies", "affinity"]


def play_intra_node(
    part: IntraNodePart,
    plan: Any,
    identity: RankIdentity,
    look: "NodeSnapshot",
    host: Host,
    exchange: "Exchange",
    set_phase: "SetPhase",
    recorder: "Recorder | None",
) -> None:
    """Measure `part` on all ranks at the same time; rank 0 records. Raises ProbeError."""
    if part == "copies":
        from ncclprobe.session.measure.copies import Copies as Measuring

        measuring = Measuring(identity, host, exchange, set_phase, look, plan.device)
        found = measuring.play()
        note = measuring.note
        if recorder:
            recorder.add_copies(found, measuring.expected)
    else:
        from ncclprobe.session.measure.affinity import measured

        rows, note = measured(plan, identity, look.node, host, exchange, set_phase)
        if recorder:
            recorder.add_affinity(rows)
    if note and recorder:
        recorder.note(note)


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
        play_intra_node(part, plan, identity, look, context.host, context.exchange, phase, context.recorder)
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

    options, phase = context.options, context.watchdog.set_phase
    rows = play_ladder(context.plan(), context.hosts, context.host, options.timeout_s, context.exchange, phase)
    if context.recorder:
        context.recorder.add_ladder(rows)


def _sweep(context: RankContext, look: NodeSnapshot) -> None:
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
