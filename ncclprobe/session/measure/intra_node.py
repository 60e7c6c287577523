"""The measurements within nodes: copies, and the cost of the ranks' affinity."""

from typing import TYPE_CHECKING, Any, Literal

from ncclprobe.host import Host
from ncclprobe.session.ranks.identity import RankIdentity

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Exchange, SetPhase
    from ncclprobe.session.measure.look import Look
    from ncclprobe.session.measure.recorder import Recorder

IntraNodePart = Literal["copies", "affinity"]


def play(
    part: IntraNodePart,
    plan: Any,
    identity: RankIdentity,
    look: "Look",
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
