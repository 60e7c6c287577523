"""Detect lost ranks from heartbeats. Pure: no clock, no store, no thread.

Silence is counted in periods of rank 0, never in wall time: a rank 0 that was itself stopped for a minute has missed
its own periods as well, and reports no rank as lost.
"""

from collections.abc import Callable, Collection, Mapping

from ncclprobe.facts.run.samples import FAILED, Arrivals, Attendance, LostRank
from ncclprobe.model.values import Struct

PERIOD_S = 1.0
SILENT_PERIODS = 5
DONE = "done"
BY_SIGNAL = "signal "  # begins why a rank leaves
OUT_OF_TIME_PERIODS = 10  # a phase this old when the time runs out stood still; a younger one was cut off
LATE_PERIODS = 15
_SILENT_AT_THE_END = 3  # when the time has run out, less silence must do


class Heartbeat(Struct, frozen=True):
    """A rank's heartbeat, written each period. `step` counts phases, `left` is why it is exiting (empty: it is not).

    `blames` are the ranks that did not reach a barrier, if it exits for that reason.
    """

    rank: int
    host: str
    pid: int
    count: int
    step: int
    phase: str
    left: str = ""
    blames: tuple[int, ...] = ()


class FailureDetector:
    """Detects lost ranks from the heartbeats that rank 0 reads. `receive` is called once a period and is the clock."""

    def __init__(self, ranks: int, patience: int, runs: Callable[[Heartbeat], bool] = lambda heartbeat: False) -> None:
        """Create a detector; `patience` is the number of periods that a phase may last.

        `runs` returns whether the process that sent a heartbeat is seen to run: on a busy machine it may be silent for
        long, and is lost only after a whole phase.
        """
        self.ranks, self.patience, self._runs = ranks, patience, runs
        self.last: dict[int, Heartbeat] = {}
        self._silent_periods: dict[int, int] = {}
        self._same_phase_periods: dict[int, int] = {}
        self._waited = 0
        self._came: dict[int, int] = {}
        self._since_symptom = 0
        self._unconfirmed: dict[int, int | None] = {}
        self._absence_s = 0.0
        self._at_signal: dict[int, int] = {}
        self.excluded: set[int] = set()
        """The ranks that the run goes on without: they are not reported again."""

    def receive(self, heartbeats: Mapping[int, Heartbeat]) -> None:
        """Process the heartbeats of one period."""
        self._waited += 1
        for rank, heartbeat in heartbeats.items():
            old = self.last.get(rank)
            self._silent_periods[rank] = self._silent_periods[rank] + 1 if old and old.count == heartbeat.count else 0
            self._same_phase_periods[rank] = (
                self._same_phase_periods[rank] + 1 if old and old.step == heartbeat.step else 0
            )
            self.last[rank] = heartbeat
            self._came.setdefault(rank, self._waited)
            self._confirm(heartbeat)
        self._since_symptom = self._since_symptom + 1 if self._leaving() else 0

    def paused(self, seconds: float) -> None:
        """Note that rank 0 itself was stopped for `seconds`: ranks that exit before their next heartbeat do so for
        that.
        """
        self._unconfirmed = dict.fromkeys((rank for rank in self.last if rank), None)
        self._absence_s = seconds

    def _confirm(self, heartbeat: Heartbeat) -> None:
        """After a pause, count a rank as present after two more heartbeats: one may have been in flight."""
        if heartbeat.rank in self._unconfirmed:
            enough = self._unconfirmed[heartbeat.rank]
            if enough is None:
                self._unconfirmed[heartbeat.rank] = heartbeat.count + 2
            elif heartbeat.count >= enough and not heartbeat.left:
                del self._unconfirmed[heartbeat.rank]

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that never sent a heartbeat."""
        return tuple(rank for rank in range(self.ranks) if rank not in self.last)

    def gone(self, ranks: tuple[int, ...]) -> bool:
        """Return whether each of `ranks` has announced that it exits."""
        return all(rank in self.last and self.last[rank].left for rank in ranks)

    def arrivals(
        self, out_of_time: bool, late: int = 0, running: Callable[[], Collection[int]] = tuple
    ) -> Arrivals | None:
        """Return the ranks that never joined, after a phase's time and `late` more periods; None before.

        `running` are the ranks whose processes are known to run; it is called only then. These may join until the run
        is out of time.
        """
        missing, allowed = self.missing(), self.patience + late
        if not missing or not (out_of_time or self._waited > allowed):
            return None
        alive = tuple(rank for rank in running() if rank in missing)
        found = Arrivals(self.ranks, missing, self._waited * PERIOD_S, allowed * PERIOD_S, alive)
        return found if out_of_time or found.lost else None

    def late(self) -> tuple[tuple[int, float], ...]:
        """Return the ranks that joined LATE_PERIODS or more after half of all ranks, and how many seconds later."""
        usual = sorted(self._came.values())[(len(self._came) - 1) // 2] if self._came else 0
        return tuple((r, (at - usual) * PERIOD_S) for r, at in self._came.items() if at - usual >= LATE_PERIODS)

    def unreachable(self) -> frozenset[int]:
        """Return the ranks other than 0 that are silent or have announced their exit, excluded or not."""
        return frozenset((*self.silent(SILENT_PERIODS), *self._leaving())) - {0}

    def exclude(self, ranks: Collection[int]) -> tuple[LostRank, ...]:
        """Continue without `ranks`; return what was last known of each."""
        self.excluded |= {*ranks}
        silent = self.silent(SILENT_PERIODS)

        def why(heartbeat: Heartbeat) -> str:
            stopped = f"its heartbeat stopped {self._silent_periods[heartbeat.rank] * PERIOD_S:.0f} s ago"
            return heartbeat.left or (
                stopped if heartbeat.rank in silent else "it did not answer, though its heartbeat goes on"
            )

        return self._lost([rank for rank in ranks if rank in self.last], why).lost

    def attendance(
        self, *, signalled: bool = False, out_of_time: bool = False, tolerant: bool = False
    ) -> Attendance | None:
        """Return the lost ranks, or None while no rank is lost. The first of three symptoms decides.

        1. Silence: a heartbeat that does not change. It explains the others' failures, because a killed rank breaks its
           peers' connections immediately; so a failure counts only once silence has had time to show.
        2. Exit: a rank that reported why it exits. An exit by signal is not a loss if rank 0 was `signalled` as well.
        3. No progress: all heartbeats continue, but no rank has entered a new phase for too long. The ranks in the
           earliest phase hold up the others; if all are in the same one, no rank is blamed (`stalled`).

        A symptom between a pause of rank 0 and the next heartbeats of the others is blamed on rank 0. `tolerant`: the
        run can continue without the others, so 1 and 2 count only for rank 0.
        """
        exempt = {*self.last} - {0} if tolerant and not self._unconfirmed else self.excluded
        found = self._symptoms(signalled, out_of_time, exempt)
        if found and self._unconfirmed:
            why = f"this rank itself was stopped for {self._absence_s:.0f} s, and the others went on without it"
            return self._lost([0], lambda heartbeat: why)
        return found

    def note_signal(self) -> None:
        """Note that rank 0 was signalled: their further heartbeats show whether the others were as well."""
        self._at_signal = {rank: heartbeat.count for rank, heartbeat in self.last.items() if rank}

    def settled(self) -> bool:
        """Return whether each other rank has exited, or has shown that it was not signalled."""
        known = {*self.unsignalled(), *self.excluded}
        return all(rank in known or self.gone((rank,)) for rank in range(1, self.ranks))

    def unsignalled(self) -> tuple[int, ...]:
        """Return the ranks that have continued for 5 periods since rank 0 was signalled."""
        return tuple(
            rank
            for rank, count in self._at_signal.items()
            if not self.last[rank].left and self.last[rank].count >= count + SILENT_PERIODS
        )

    def failed(self) -> Attendance | None:
        """Return the ranks that exited because they had failed: a launcher that sees one exit signals the others."""
        left = [rank for rank, heartbeat in self.last.items() if heartbeat.left.startswith(FAILED)]
        left = [rank for rank in left if rank not in self.excluded]
        return self._lost(self._blamed(left), _why_failed) if left else None

    def signalled_alone(self) -> Attendance | None:
        """Return the ranks that a signal ended while others continue: a launcher, or Ctrl-C, signals all."""
        if not self.unsignalled():
            return None
        left = [rank for rank, heartbeat in self.last.items() if heartbeat.left.startswith(BY_SIGNAL)]
        return self._lost([rank for rank in left if rank not in self.excluded], lambda heartbeat: heartbeat.left)

    def unresponsive(self, before: Mapping[int, Heartbeat], dead: Collection[int]) -> Attendance | None:
        """Return the ranks without a new heartbeat since `before`, when all were signalled: a living rank reacts.

        The last heartbeat of a `dead` rank may have arrived since.
        """
        unchanged = [
            rank
            for rank, heartbeat in before.items()
            if not self.last[rank].left and (rank in dead or self.last[rank].count == heartbeat.count)
        ]
        return (
            self._lost(unchanged, lambda heartbeat: "it had fallen silent when the run was ended")
            if unchanged
            else None
        )

    def _symptoms(self, signalled: bool, out_of_time: bool, exempt: Collection[int]) -> Attendance | None:
        periods = _SILENT_AT_THE_END if out_of_time else SILENT_PERIODS
        silent = [rank for rank in self.silent(periods) if rank not in exempt]
        if silent:
            return self._lost(silent, lambda heartbeat: f"its heartbeat stopped {periods * PERIOD_S:.0f} s ago")
        leavers = [rank for rank in self._leaving() if not (signalled and self.last[rank].left.startswith(BY_SIGNAL))]
        leavers = [rank for rank in leavers if rank not in exempt]
        if leavers and (out_of_time or self._since_symptom > SILENT_PERIODS + 1):
            return self._lost(self._blamed(leavers), _why_failed)
        return self._stuck(OUT_OF_TIME_PERIODS if out_of_time else self.patience)

    def silent(self, periods: int) -> list[int]:
        """Return the ranks whose heartbeat has not changed for `periods` periods and that did not announce
        their exit.
        """
        found = {rank: quiet for rank, quiet in self._silent_periods.items() if quiet >= periods}
        gone = [rank for rank, quiet in found.items() if quiet >= self.patience or not self._runs(self.last[rank])]
        return [rank for rank in gone if not self.last[rank].left]

    def _leaving(self) -> list[int]:
        return [rank for rank, heartbeat in self.last.items() if heartbeat.left not in ("", DONE)]

    def _blamed(self, leavers: list[int]) -> list[int]:
        """Return the ranks that did not join `leavers`, or otherwise the leavers themselves."""
        blamed = {rank for leaver in leavers for rank in self.last[leaver].blames if rank in self.last}
        return sorted(blamed - set(leavers)) or leavers

    def _stuck(self, periods: int) -> Attendance | None:
        same = [count for rank, count in self._same_phase_periods.items() if rank not in self.excluded]
        if self.missing() or min(same, default=0) < periods:
            return None
        steps = {rank: heartbeat.step for rank, heartbeat in self.last.items() if rank not in self.excluded}
        behind = [rank for rank, step in steps.items() if step < max(steps.values())]
        if not behind:
            return Attendance(self.ranks, stalled=self.last[0].phase)
        slowest = [rank for rank in behind if steps[rank] == min(steps.values())]
        return self._lost(slowest, lambda heartbeat: "it was stopped while the others went on")

    def _lost(self, ranks: list[int], why: Callable[[Heartbeat], str]) -> Attendance:
        heartbeats = [self.last[rank] for rank in sorted(ranks)]
        return Attendance(self.ranks, tuple(LostRank(b.rank, b.host, b.phase, why(b)) for b in heartbeats))


def _why_failed(heartbeat: Heartbeat) -> str:
    return heartbeat.left or "it did not reach a barrier of all ranks"
