"""Heartbeats and the register that tells from them who is lost. Pure: no clock, no store, no thread.

Silence is counted in periods of our own, never in wall time: a rank 0 that was itself stopped for a minute has missed
its own periods as well, and accuses nobody.
"""

from collections.abc import Callable, Collection, Mapping

from ncclprobe.facts.run.ranks import Arrivals, Attendance, LostRank
from ncclprobe.model.values import Struct

PERIOD_S = 1.0
SILENT_PERIODS = 5
DONE = "done"
OUT_OF_TIME_PERIODS = 10  # a phase this old when the time runs out stood still; a younger one was cut off
_SILENT_AT_THE_END = 3  # when the time has run out, less silence must do


class Beat(Struct, frozen=True):
    """What a rank says of itself each period. `step` counts phases, `left` says why it is leaving (empty: it stays).

    `blames`: whom it waited for in vain, if it leaves for that.
    """

    rank: int
    host: str
    pid: int
    count: int
    step: int
    phase: str
    left: str = ""
    blames: tuple[int, ...] = ()


class Register:
    """What rank 0 heard of every rank, and what follows from it. `hear` is called once a period, and is its clock."""

    def __init__(self, ranks: int, patience: int) -> None:
        """`patience`: the periods that a phase may last."""
        self.ranks, self.patience = ranks, patience
        self.last: dict[int, Beat] = {}
        self._quiet: dict[int, int] = {}
        self._same: dict[int, int] = {}
        self._waited = 0
        self._since_symptom = 0
        self._estranged: dict[int, int | None] = {}
        self._absence_s = 0.0
        self.aside: set[int] = set()
        """The ranks that nobody waits for any more: whatever becomes of them is no news."""

    def hear(self, beats: Mapping[int, Beat]) -> None:
        """Take in what one period brought."""
        self._waited += 1
        for rank, beat in beats.items():
            old = self.last.get(rank)
            self._quiet[rank] = self._quiet[rank] + 1 if old and old.count == beat.count else 0
            self._same[rank] = self._same[rank] + 1 if old and old.step == beat.step else 0
            self.last[rank] = beat
            self._reconcile(beat)
        self._since_symptom = self._since_symptom + 1 if self._leavers() else 0

    def absent(self, seconds: float) -> None:
        """Rank 0 itself stood still so long. If the others go before they were heard again, that is why."""
        self._estranged = dict.fromkeys((rank for rank in self.last if rank), None)
        self._absence_s = seconds

    def _reconcile(self, beat: Beat) -> None:
        """After an absence, two beats more than the first heard show that `beat`'s rank stays: one lay in the wire."""
        if beat.rank in self._estranged:
            enough = self._estranged[beat.rank]
            if enough is None:
                self._estranged[beat.rank] = beat.count + 2
            elif beat.count >= enough and not beat.left:
                del self._estranged[beat.rank]

    def missing(self) -> tuple[int, ...]:
        """The ranks never heard of."""
        return tuple(rank for rank in range(self.ranks) if rank not in self.last)

    def gone(self, ranks: tuple[int, ...]) -> bool:
        """Whether each of `ranks` has said that it leaves."""
        return all(rank in self.last and self.last[rank].left for rank in ranks)

    def arrivals(self, out_of_time: bool, late: int = 0) -> Arrivals | None:
        """The ranks that never came, once they have been waited for long enough: a phase, and `late` periods more."""
        missing = self.missing()
        if missing and (out_of_time or self._waited > self.patience + late):
            return Arrivals(self.ranks, missing, self._waited * PERIOD_S)
        return None

    def deserted(self) -> frozenset[int]:
        """The ranks but 0 that are silent or have said that they leave, set aside or not."""
        return frozenset((*self.silent(SILENT_PERIODS), *self._leavers())) - {0}

    def set_aside(self, ranks: Collection[int]) -> tuple[LostRank, ...]:
        """Wait for `ranks` no more; what was last known of each."""
        self.aside |= {*ranks}
        silent = self.silent(SILENT_PERIODS)

        def why(beat: Beat) -> str:
            stopped = f"its heartbeat stopped {self._quiet[beat.rank] * PERIOD_S:.0f} s ago"
            return beat.left or (stopped if beat.rank in silent else "it did not answer, though its heart beats")

        return self._lost([rank for rank in ranks if rank in self.last], why).lost

    def attendance(
        self, *, signalled: bool = False, out_of_time: bool = False, tolerant: bool = False
    ) -> Attendance | None:
        """Who was lost, or None: so far nobody. Of three symptoms the first that shows is the answer.

        1. Silence: a heartbeat that does not change. It explains the others' failures, for a killed rank breaks its
           peers' connections at once; so a failure is not believed before silence has had time to show.
        2. A farewell: a rank that said why it leaves. By signal it is no loss where rank 0 was `signalled` as well.
        3. Standing still: all hearts beat, but no rank has entered a new phase for too long. The ranks in the
           earliest phase hold up the others; where all are in the same one, nobody is blamed (`stalled`).

        Whatever shows after rank 0 itself was absent, and before the others have come through that, is its own doing.
        `tolerant`: the run can do without the others, so that 1 and 2 count of rank 0 alone.
        """
        spared = {*self.last} - {0} if tolerant and not self._estranged else self.aside
        found = self._symptoms(signalled, out_of_time, spared)
        if found and self._estranged:
            why = f"this rank itself stood still for {self._absence_s:.0f} s, and the others went on without it"
            return self._lost([0], lambda beat: why)
        return found

    def unanswered(self, before: Mapping[int, Beat]) -> Attendance | None:
        """Who has said nothing since `before`, when all were signalled: a living rank answers a signal at once."""
        dumb = [rank for rank, beat in before.items() if not beat.left and self.last[rank].count == beat.count]
        return self._lost(dumb, lambda beat: "it had fallen silent when the run was ended") if dumb else None

    def _symptoms(self, signalled: bool, out_of_time: bool, spared: Collection[int]) -> Attendance | None:
        periods = _SILENT_AT_THE_END if out_of_time else SILENT_PERIODS
        silent = [rank for rank in self.silent(periods) if rank not in spared]
        if silent:
            return self._lost(silent, lambda beat: f"its heartbeat stopped {periods * PERIOD_S:.0f} s ago")
        leavers = [rank for rank in self._leavers() if not (signalled and self.last[rank].left.startswith("signal"))]
        leavers = [rank for rank in leavers if rank not in spared]
        if leavers and (out_of_time or self._since_symptom > SILENT_PERIODS + 1):
            return self._lost(self._culprits(leavers), lambda beat: beat.left or "it did not come to a barrier of all")
        return self._stuck(OUT_OF_TIME_PERIODS if out_of_time else self.patience)

    def silent(self, periods: int) -> list[int]:
        """The ranks whose beat has not changed for so many periods, though they did not say that they leave."""
        return [rank for rank, quiet in self._quiet.items() if quiet >= periods and not self.last[rank].left]

    def _leavers(self) -> list[int]:
        return [rank for rank, beat in self.last.items() if beat.left not in ("", DONE)]

    def _culprits(self, leavers: list[int]) -> list[int]:
        """Those of whom `leavers` say that they waited for them in vain, or else the leavers themselves."""
        blamed = {rank for leaver in leavers for rank in self.last[leaver].blames if rank in self.last}
        return sorted(blamed - set(leavers)) or leavers

    def _stuck(self, periods: int) -> Attendance | None:
        same = [count for rank, count in self._same.items() if rank not in self.aside]
        if self.missing() or min(same, default=0) < periods:
            return None
        steps = {rank: beat.step for rank, beat in self.last.items() if rank not in self.aside}
        behind = [rank for rank, step in steps.items() if step < max(steps.values())]
        if not behind:
            return Attendance(self.ranks, stalled=self.last[0].phase)
        slowest = [rank for rank in behind if steps[rank] == min(steps.values())]
        return self._lost(slowest, lambda beat: "it stood still while the others went on")

    def _lost(self, ranks: list[int], why: Callable[[Beat], str]) -> Attendance:
        beats = [self.last[rank] for rank in sorted(ranks)]
        return Attendance(self.ranks, tuple(LostRank(b.rank, b.host, b.phase, why(b)) for b in beats))
