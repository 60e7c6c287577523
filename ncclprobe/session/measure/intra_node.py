"""What a run finds out beside collectives: roads, copies within a node, what the affinity costs. Options and book.

The roads are found on every sweep, unless ``--no-road`` leaves them out; ``--copies`` and ``--affinity`` are measured
instead of a sweep.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ncclprobe.host import Host
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import Affinities, AffinityRow, Copies, CopyRow, Road, Roads
from ncclprobe.session.ranks.identity import Seat

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Exchange, SetPhase

Aside = Literal["copies", "affinity"]


def _unchanged(row: Measurement) -> Measurement:
    return row


def play(
    aside: Aside, plan: Any, seat: Seat, name: str, host: Host, exchange: "Exchange", beat: "SetPhase", book: "Asides"
) -> str:
    """Measure what was asked for, on all ranks alike, into rank 0's `book`; returns what the reader must know.

    Raises ProbeError where a step fails.
    """
    if aside == "copies":
        from ncclprobe.session.measure.copies import Copies as Measuring

        measuring = Measuring(seat, host, exchange, beat, name, plan.device)
        book.copies = measuring.play()
        return measuring.remark
    from ncclprobe.session.measure.affinity import measured

    book.affinity, remark = measured(plan, seat, name, host, exchange, beat)
    return remark


@dataclass(slots=True)
class Asides:
    """Rank 0's book of these. `told` says of a measured row which road it took, as far as it is known."""

    roads: tuple[Road, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    affinity: tuple[AffinityRow, ...] = ()
    told: Callable[[Measurement], Measurement] = _unchanged

    def reopen(self, report: Report) -> None:
        """Go on from what another process's book held."""
        self.roads, self.copies, self.affinity = report.roads, report.copies, report.affinity

    def facts(self) -> dict[type, object]:
        """What there is to judge."""
        return {
            Roads: Roads(self.roads) if self.roads else Absent("no road was counted"),
            Copies: Copies(self.copies) if self.copies else Absent("no copy was measured"),
            Affinities: Affinities(self.affinity) if self.affinity else Absent("no affinity was compared"),
        }

    def unasked(self, aside: Aside | None, *, report_only: bool = False) -> tuple[str, ...]:
        """The ids of the checks that do not apply to this run: numbers need no judge where they are all one wants."""
        rows = ("run.band", "run.data", "run.straggler", "run.pairs") if aside else ()
        lone = report_only and all(row.status == "unjudged" for row in self.copies)
        copies = ("run.copies",) if aside != "copies" or lone else ()
        roads = () if self.roads else ("run.road",)
        return (*rows, *copies, *roads, *(() if self.affinity else ("run.affinity",)))
