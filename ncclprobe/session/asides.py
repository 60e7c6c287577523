"""What a run finds out beside collectives: roads, copies within a node, what the affinity costs. Options and book.

The roads are found on every sweep, unless ``--no-road`` leaves them out; ``--copies`` and ``--affinity`` are measured
instead of a sweep.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ncclprobe.errors import UsageError
from ncclprobe.host import Host
from ncclprobe.model import Absent, Measurement, Report
from ncclprobe.moved import Affinities, AffinityRow, Copies, CopyRow, Road, Roads
from ncclprobe.session.seat import Seat

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Beat, Exchange

Aside = Literal["copies", "affinity"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to `parser`, in a section of their own."""
    group = parser.add_argument_group("within a node, instead of collectives")
    add = group.add_mutually_exclusive_group().add_argument
    add("--copies", dest="aside", action="store_const", const="copies",
        help="between host and GPU and between GPUs, each alone and all together, by NUMA node; without a GPU the "
        "host's own memory")  # fmt: skip
    add("--affinity", dest="aside", action="store_const", const="affinity",
        help="all_reduce with each rank's processors as they are and as its GPU's place asks for, in turn")  # fmt: skip
    parser.add_argument("--no-road", dest="road", action="store_false",
        help="leave out the passes that find out which way the bytes went")  # fmt: skip


def asked(given: argparse.Namespace) -> Aside | None:
    """What `given` asks for. Raises UsageError where it asks for something else too."""
    others = {"--pairs": given.pairs, "--groups": given.groups, "--workload": given.workload}
    for name, value in others.items():
        if given.aside and value is not None:
            raise UsageError(f"--{given.aside} and {name}: give one at a time")
    aside: Aside | None = given.aside
    return aside


def _unchanged(row: Measurement) -> Measurement:
    return row


def play(
    aside: Aside, plan: Any, seat: Seat, name: str, host: Host, exchange: "Exchange", beat: "Beat", book: "Asides"
) -> str:
    """Measure what was asked for, on all ranks alike, into rank 0's `book`; returns what the reader must know.

    Raises ProbeError where a step fails.
    """
    if aside == "copies":
        from ncclprobe.session.copies import Copies as Measuring

        measuring = Measuring(seat, host, exchange, beat, name, plan.device)
        book.copies = measuring.play()
        return measuring.remark
    from ncclprobe.session.affinity import measured

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
