"""What is measured within nodes: copies, and what the ranks' affinity costs."""

from typing import TYPE_CHECKING, Any, Literal

from ncclprobe.host import Host
from ncclprobe.session.ranks.identity import Seat

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Exchange, SetPhase
    from ncclprobe.session.measure.look import Look
    from ncclprobe.session.measure.recorder import Recorder

Aside = Literal["copies", "affinity"]


def play(
    aside: Aside,
    plan: Any,
    seat: Seat,
    look: "Look",
    host: Host,
    exchange: "Exchange",
    beat: "SetPhase",
    recorder: "Recorder | None",
) -> None:
    """Measure what was asked for, on all ranks at the same time; rank 0 records. Raises ProbeError."""
    if aside == "copies":
        from ncclprobe.session.measure.copies import Copies as Measuring

        measuring = Measuring(seat, host, exchange, beat, look, plan.device)
        found = measuring.play()
        note = measuring.remark
        if recorder:
            recorder.add_copies(found, measuring.expected)
    else:
        from ncclprobe.session.measure.affinity import measured

        rows, note = measured(plan, seat, look.node, host, exchange, beat)
        if recorder:
            recorder.add_affinity(rows)
    if note and recorder:
        recorder.note(note)
