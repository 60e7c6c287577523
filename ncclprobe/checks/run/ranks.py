"""Is a rank late by itself?"""

from collections.abc import Iterator
from statistics import median_low

from ncclprobe.checks.run.rows import ROW
from ncclprobe.facts.run.samples import Asked, Participants, Rows
from ncclprobe.model.findings import Certainty, Finding, seen, warn
from ncclprobe.model.measurement import Skew
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.units import plural

_PUNCTUAL = Skew(8, 4000.0, 100.0, 30.0, (10.0,) * 8, (0,) * 8)
_LATECOMER = replace(_PUNCTUAL, late_us=(10.0,) * 7 + (5000.0,), late_rounds=(0,) * 7 + (4,))
_FEWEST_TIMES, _LOST_SHARE, _TIMES_OTHERS = 3, 0.4, 4.0


def _with(skew: Skew) -> tuple[Rows, Participants]:
    return Rows((replace(ROW, skew=skew),)), Participants("torchrun", 8, ("n0",) * 4 + ("n1",) * 4, "nccl")


@applies
def arrivals_noted(asked: Asked, rows: Rows | Absent) -> bool:
    """where collectives short enough for it were measured with a scheduled start."""
    return "collectives" in asked.what and isinstance(rows, Rows) and any(row.skew for row in rows.measured)


@check(bad=lambda: [_with(_LATECOMER)], good=lambda: [_with(_PUNCTUAL)], applies=arrivals_noted)
def straggler(rows: Rows, participants: Participants) -> Iterator[Finding]:
    """A rank comes late to its calls: its host is slow, not a link.

    Right: Every rank comes to its calls in time.
    Why: the other ranks wait inside the collective, so every rank measures the same long time, and it looks like a slow
    network. After a barrier, each rank computes for four milliseconds and calls; one that comes late by itself, having
    lost two fifths of its time, at least three times and four times as much as its fellows, is named.
    Fix: look at the rank's host: other processes on its cores, a CPU limit of its container (cpu.max), all ranks bound
    to the same cores, a processor slowed down by heat or power.
    """
    skews = [row.skew for row in rows.measured if row.skew]
    waited_us = sum(skew.rounds * skew.wait_us for skew in skews)
    rounds = sum(skew.rounds for skew in skews)
    lost_us = [sum(skew.rounds * skew.late_us[rank] for skew in skews) for rank in range(participants.ranks)]
    for rank, lost in enumerate(lost_us):
        times = sum(skew.late_rounds[rank] for skew in skews)
        usual = median_low([*lost_us[:rank], *lost_us[rank + 1 :]])
        if times >= _FEWEST_TIMES and lost >= _LOST_SHARE * (lost + waited_us) and lost >= _TIMES_OTHERS * usual:
            yield warn(
                f"rank {rank}",
                f"on host {participants.hosts[rank]} comes late to collectives: by {lost / rounds / 1e3:.1f} ms on "
                f"average, the other ranks by {usual / rounds / 1e3:.1f} ms",
                blame="node",
                action="retest",
                confidence=Certainty("medium", "measured apart from the transfer"),
                nodes=(participants.hosts[rank],),
                evidence=seen(
                    f"{rounds} rounds over {plural(len(skews), 'row')}",
                    f"late by more than 1 ms in {times} of them; transfers alone took "
                    f"{min(skew.transfer_us for skew in skews):.1f} us and more",
                ),
            )
