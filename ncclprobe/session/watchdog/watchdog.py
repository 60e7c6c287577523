"""Heartbeats of every rank in the store, and the end of a run that lost a rank.

The main thread may be in a collective that never returns, so two other threads of each rank watch the run:

* the *heartbeat thread* talks to the store through its own connection. Every period it writes this rank's
  heartbeat; on rank 0 it also reads the others' and decides, elsewhere it reads rank 0's decision.
* the *signal thread* does not use the store, because a stopped server blocks a client past the client's own timeout.
  It wakes on signals and keeps the deadlines, and ends this rank when the heartbeat thread has been stuck too long.

::

    seen                                     thread                  reported                           exit code
    ───────────────────────────────────────  ──────────────────────  ─────────────────────────────────  ─────────────
    a rank never joined, --phase-timeout     rank 0's heartbeat      run.init names it                  4
    it had less time, or its process runs    rank 0's heartbeat      run.init says so                   3
    a rank silent, failed or stuck           rank 0's heartbeat      run.rank-lost: rank, host, phase   4
      but silent while its process runs      rank 0's heartbeat      the same, after --phase-timeout    4
    all ranks stuck in one phase             rank 0's heartbeat      run.rank-lost: the phase, no rank  4
    rank 0 was stopped, and others left      rank 0's heartbeat      run.rank-lost: rank 0 itself       4
    silent or failed in a round-robin        rank 0's heartbeat      the same, when the others finish   4
    a signal to some of the ranks            rank 0's heartbeat      run.rank-lost: these ranks         4
    a signal to all, or --timeout ran out    rank 0's heartbeat      a note                             3
    rank 0 has decided one of these          the others' heartbeat   nothing: rank 0 reports            rank 0's
    rank 0 has fallen silent                 the others' heartbeat   a line, by one rank of each node   4
    the store is gone                        any rank's heartbeat    rank 0 a note, others a line       rank 0 3, 4
    the store does not answer                any rank's signal       rank 0 a note, others a line       rank 0 3, 4
    before the store: --phase-timeout        any rank's signal       rank 0 a note, others a line       rank 0 3, 4
      but rank 0 runs on the same host       any rank's signal       the same, when --timeout ran out   3
    --timeout ran out, rank 0 is silent      any rank's signal       rank 0 a note, others a line       3
    a signal before the store was reached    any rank's signal       rank 0 a note                      3

While pairs are measured the run is *tolerant*: it continues without a rank, which the round-robin excludes as soon as
it cannot answer any more. A signal, the end of the time or rank 0's own failure still end the run.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NoReturn

from ncclprobe.facts.run.samples import FAILED, Attendance, LostRank
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import Struct, asdict
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Store, key
from ncclprobe.session.watchdog.ending import Ending, limit_reporting, lives, running_siblings, runs, wait_for_the_end
from ncclprobe.session.watchdog.heartbeat import (
    BY_SIGNAL,
    DONE,
    PERIOD_S,
    SILENT_PERIODS,
    FailureDetector,
    Heartbeat,
)
from ncclprobe.signals import ENDING, leave

_DECISION_READ_S = 1.5
"""How long rank 0 stays for the others to read its decision: each of them reads once a period."""
_SIGNAL_POLL_S = 0.2
_MOST_PER_POLL_S = 2 * _SIGNAL_POLL_S
"""The most that one turn of the signal thread adds to the age of the last heartbeat: after this process was stopped,
the heartbeat thread runs first.
"""
_STUCK_S = (SILENT_PERIODS + 3) * PERIOD_S
"""After this the signal thread decides: rank 0's heartbeat thread, if it runs, has named a silent rank by then."""
_PAUSED_S = (SILENT_PERIODS - 1) * PERIOD_S
"""If a wait for one period takes this much longer, this process or its node was stopped."""
_LAUNCHER_KILLS_S = 0.6
"""Open MPI sends SIGKILL a second after SIGTERM (odls_base_sigkill_timeout): by then rank 0 must have reported."""
_SPEAK_FIRST_S = 2.0
"""Delay after --timeout: the heartbeat thread knows more than the signal thread, and rank 0 more than the others, so
they report first.
"""


class Limits(Struct, frozen=True):
    """Time limits: of the whole run (a time.monotonic() instant) and of one phase."""

    deadline: float
    phase_s: float


class Callbacks(Struct, frozen=True):
    """The functions that a watchdog calls.

    `conclude` is called at most once, on rank 0 only, from the thread that sees the end first; it reports the results
    and returns the exit code. `save` records, on rank 0, what would be reported if this process were killed now.
    `phase` gets each new phase of this rank; `exit_reason` gets why it exits and its exit code, if rank 0 cannot report
    that; `signalled` gets the name of the first signal that this rank received. `abort` frees what this process holds
    on its device and its peers, after the report; it returns within seconds.
    """

    conclude: Callable[[Ending], int]
    save: Callable[[Ending], None] = lambda ending: None
    phase: Callable[[str], None] = lambda phase: None
    exit_reason: Callable[[str, int], None] | None = None
    signalled: Callable[[str], None] = lambda name: None
    abort: Callable[[], None] = lambda: None


class Watchdog:
    """The two threads of a rank, which end a run that cannot end by itself."""

    def __init__(self, identity: RankIdentity, host: str, limits: Limits, callbacks: Callbacks) -> None:
        self._identity, self._limits, self._callbacks = identity, limits, callbacks
        self._host = host
        self._step, self._phase, self._left, self._count = 0, "start", "", 0
        self._blames: tuple[int, ...] = ()
        self._phase_began = time.monotonic()
        self._preparing = True
        self._signal, self._since_signal = "", 0
        self._paused_s = 0.0
        self._unreachable: frozenset[int] = frozenset()
        self._wake, self._over = threading.Event(), threading.Event()
        self._ending = threading.Lock()
        self._heartbeat_age_s = 0.0
        self._heartbeat_thread: threading.Thread | None = None
        self._main_store: Store | None = None
        patience = max(1, round(limits.phase_s / PERIOD_S))
        self._detector = FailureDetector(identity.ranks, patience, self._runs_here)
        self._rank_0 = FailureDetector(1, patience, self._runs_here)  # what the others read of rank 0
        self.tolerant = False
        """Whether the run can go on without a rank: a lost rank is then in :meth:`unreachable` and ends nothing."""
        self.met = False
        """Whether all ranks have met: until then one may join as late as --timeout, if it is known to run."""
        self._look_again = 0.0
        self.late_s = 0.0
        """Seconds that this rank took to prepare: others, on the same file system, may join later by so much."""

    def start(self) -> None:
        """Take over SIGINT, SIGTERM and SIGHUP, and start the signal thread. Main thread only."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)  # the byte in the pipe is what counts: Python may be in C code
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._signal_loop, args=(read,), name="signals", daemon=True).start()

    def attach(self, store: Store, own: Store) -> None:
        """Start the heartbeat thread on `store`, a connection only for it; `own` is the main thread's connection."""
        self._heartbeat_age_s = 0.0
        self._main_store = own
        self._heartbeat_thread = threading.Thread(
            target=self._heartbeat_loop, args=(store,), name="heartbeat", daemon=True
        )
        self._heartbeat_thread.start()

    def prepare(self, phase: str) -> None:
        """Set a phase before this rank can join the others. It may take all of --timeout without blame."""
        self.set_phase(phase)
        self._preparing = True

    def set_phase(self, phase: str) -> None:
        """Set this rank's phase. The main thread calls it before each step that may block.

        In a signalled rank it does not return: that rank measures nothing more, and waits for rank 0 to decide.
        """
        now = time.monotonic()
        if self._preparing:
            self.late_s += now - self._phase_began
        self._phase, self._phase_began, self._preparing = phase, now, False
        self._step += 1
        self._callbacks.phase(phase)
        if self._main_store and not self._left:
            self._write_heartbeat(self._main_store)  # at once, so that a loss is not reported one phase late
            if self._signal:
                wait_for_the_end()

    def left_s(self) -> float:
        """Return the remaining seconds of the run."""
        return max(0.0, self._limits.deadline - time.monotonic())

    def unreachable(self) -> frozenset[int]:
        """Return, on rank 0, the ranks that heartbeats show cannot answer any more."""
        return self._unreachable

    def late(self) -> tuple[tuple[int, float], ...]:
        """Return, on rank 0, the ranks that joined long after the others, and how many seconds later."""
        return self._detector.late()

    def exclude(self, ranks: Collection[int]) -> tuple[LostRank, ...]:
        """Continue without `ranks`, on rank 0, and never report them again; return what was last known of each.

        If rank 0 was signalled, other signalled ranks are not a loss: the launcher ends all of them.
        """
        return tuple(
            rank for rank in self._detector.exclude(ranks) if not (self._signal and rank.why.startswith(BY_SIGNAL))
        )

    def dismiss(self, code: int) -> None:
        """Send `code`, on rank 0, to the excluded ranks that still run, after all other ranks have it."""
        if self._detector.excluded and self._main_store:
            self._send_exit_code(self._main_store, code, sorted(self._detector.excluded - self._unreachable))

    def failed(self, reason: str, blames: tuple[int, ...] = ()) -> NoReturn:
        """Announce that this rank cannot continue, and wait for rank 0 to decide. `blames` are the ranks that it waited
        for.
        """
        self._blames = blames
        self._left = "" if self._signal else f"{FAILED}({reason})"  # told to leave, then failed: its peers left too
        self._wake.set()
        if self._heartbeat_thread is None:
            self._leave(Ending(why=reason))
        wait_for_the_end()

    def stop(self) -> None:
        """Stop watching: the run has ended by itself."""
        self._left = DONE
        self._over.set()
        self._wake.set()
        if self._heartbeat_thread is not None:
            # an interpreter that ends while a thread is in torch's code may abort
            self._heartbeat_thread.join(2 * PERIOD_S)

    def _signal_loop(self, pipe: int) -> None:
        before = time.monotonic()
        while not self._over.is_set():
            if select.select([pipe], [], [], _SIGNAL_POLL_S)[0]:
                number = os.read(pipe, 1)[0]
                if not self._signal and number in ENDING:  # the first one counts: each wake is a period of the detector
                    self._signal = signal.Signals(number).name
                    self._callbacks.signalled(self._signal)
                    self._wake.set()
            now = time.monotonic()
            self._heartbeat_age_s += min(now - before, _MOST_PER_POLL_S)
            self._note_pause(now - before)
            before = now
            ending = self._reason_to_end(now)
            if ending and not self._over.is_set():
                self._leave(ending)

    def _reason_to_end(self, now: float) -> Ending | None:
        """Return why the signal thread must end this rank without the store; None: no reason."""
        attached = self._heartbeat_thread is not None
        if self._signal and not attached:
            return Ending(why=f"ended by {self._signal} {self._where()}", code=ExitCode.INCONCLUSIVE)
        late = now > self._limits.deadline + (_SPEAK_FIRST_S if attached or self._identity.rank else 0.0)
        if attached and self._heartbeat_age_s > (_STUCK_S / 2 if late else _STUCK_S):
            silent = f"{self._store_host()} has not answered for {self._heartbeat_age_s:.0f} s"
            return Ending(why=f"{silent} {self._where()}")
        if late:
            return self._stood_still() or self._out_of_time()
        longest_s = self._limits.phase_s + self.late_s + (_STUCK_S if attached else 0.0)
        if now > self._phase_began + longest_s and not self._preparing and not self._may_come(now, attached):
            return Ending(why=f"no progress in {self._phase!r} for {now - self._phase_began:.0f} s")
        return None

    def _may_come(self, now: float, attached: bool) -> bool:
        """Return whether this rank still waits for others to join, and another one decides that they will not.

        That is rank 0, once it has joined; before, its process may be seen to run on this host. At the deadline rank 0
        exits first.
        """
        if self.met:
            return False
        if now > self._limits.deadline or (attached and (self._identity.rank == 0 or self._rank_0.last)):
            return True
        if now > self._look_again and self._identity.rank and 0 in running_siblings(self._identity):
            self._look_again = now + PERIOD_S
        return now <= self._look_again

    def _out_of_time(self) -> Ending:
        cold = ", which takes minutes from a cold network file system; start again, or raise --timeout"
        why = f"--timeout ran out {self._where()}{cold if self._preparing else ''}"
        return Ending(why=why, code=ExitCode.INCONCLUSIVE)

    def _stood_still(self) -> Ending | None:
        """Return, on rank 0, that it was itself stopped for longer than a phase may last; None: it was not."""
        if self._identity.rank or self._paused_s <= self._limits.phase_s:
            return None
        why = f"this rank itself was stopped for {self._paused_s:.0f} s, and --timeout ran out"
        lost = LostRank(0, self._host, self._phase, why)
        return Ending(attendance=Attendance(self._identity.ranks, (lost,)))

    def _note_pause(self, waited_s: float) -> None:
        """Record how long this process itself was stopped, from how long one of its threads waited to run."""
        if waited_s > _PAUSED_S and not self._preparing:
            self._paused_s = max(self._paused_s, waited_s)

    def _heartbeat_loop(self, store: Store) -> None:
        turn = self._check_all_ranks if self._identity.rank == 0 else self._check_rank_0
        try:
            while not self._over.is_set():
                self._send_heartbeat(store)
                turn(store)
                self._heartbeat_age_s = 0.0
                self._sleep()
        except RuntimeError as error:  # torch's store errors: the server is gone
            time.sleep(PERIOD_S / 2)  # unless the run ended at this moment
            if not self._over.is_set():
                leaving = 0 in self._rank_0.last and self._rank_0.last[0].left
                code = ExitCode.INCONCLUSIVE if leaving and self._signal else ExitCode.FAIL
                gone = f"{self._store_host()} is gone ({first_line(error)})"
                self._leave(Ending(why=f"{gone} {self._where()}", code=code))

    def _runs_here(self, heartbeat: Heartbeat) -> bool:
        """Return whether the heartbeat's rank is seen to run on this host."""
        return heartbeat.host == self._host and runs(heartbeat.pid)

    def _sleep(self) -> None:
        began = time.monotonic()
        self._wake.wait(PERIOD_S)
        self._wake.clear()
        waited_s = time.monotonic() - began
        self._note_pause(waited_s)
        if waited_s > _PAUSED_S:
            self._detector.paused(waited_s)

    def _store_host(self) -> str:
        """Describe the process that serves the store, and the last known phase of rank 0."""
        zero = self._rank_0.last.get(0)
        server = "the store of torchrun's agent" if self._identity.agent_store else "the store of rank 0"
        return f"{server} (rank 0 was on {zero.host}, in phase {zero.phase!r})" if zero else server

    def _where(self) -> str:
        paused = f", after it had itself been stopped for {self._paused_s:.0f} s" if self._paused_s else ""
        return f"while this rank was in phase {self._phase!r}{paused}"

    def _send_heartbeat(self, store: Store) -> None:
        self._count += 1
        self._write_heartbeat(store)

    def _write_heartbeat(self, store: Store) -> None:
        """Write the heartbeat. Only the heartbeat thread increments its count; new phases of the main thread do not."""
        left = self._left or (f"{BY_SIGNAL}{self._signal} ended it" if self._signal else "")
        heartbeat = Heartbeat(
            self._identity.rank, self._host, os.getpid(), self._count, self._step, self._phase, left, self._blames
        )
        store.set(key(self._identity, f"heartbeat/{heartbeat.rank}"), json.dumps(asdict(heartbeat)))

    def _read_heartbeats(self, store: Store, ranks: Sequence[int]) -> dict[int, Heartbeat]:
        names = {rank: key(self._identity, f"heartbeat/{rank}") for rank in ranks}
        if not store.check(list(names.values())):
            names = {rank: name for rank, name in names.items() if store.check([name])}
        texts = store.multi_get(list(names.values())) if names else []
        return {rank: Heartbeat(**json.loads(text)) for rank, text in zip(names, texts, strict=True)}

    def _check_all_ranks(self, store: Store) -> None:
        """Read, on rank 0, all heartbeats, and end the run if it cannot continue."""
        detector, out_of_time = self._detector, time.monotonic() > self._limits.deadline
        detector.receive(self._read_heartbeats(store, range(self._identity.ranks)))
        late = round(self.late_s / PERIOD_S)
        arrivals = detector.arrivals(out_of_time, late, partial(running_siblings, self._identity))
        if arrivals:
            self._leave(Ending(arrivals=arrivals), store)
        self._unreachable = detector.unreachable()
        tolerant = self.tolerant and not (self._signal or out_of_time)
        attendance = detector.attendance(signalled=bool(self._signal), out_of_time=out_of_time, tolerant=tolerant)
        if attendance:
            self._leave(Ending(attendance=attendance), store)
        if out_of_time:
            self._leave(self._stood_still() or Ending(why=f"--timeout ran out in phase {self._phase!r}"), store)
        if self._signal:
            self._end_after_signal(store)

    def _end_after_signal(self, store: Store) -> None:
        """End the run after a signal to rank 0, which a launcher sends to all, such as when a rank has died.

        So first look for ranks that are silent, and for those that were not signalled.
        """
        ending = Ending(why=f"ended by {self._signal} in phase {self._phase!r}")
        self._since_signal += 1
        if self._since_signal == 1:
            self._callbacks.save(ending)
            self._detector.note_signal()
            if self._identity.kind in ("openmpi", "pmi") and self._signal == "SIGTERM":
                self._look_before_the_kill(store)
        if self._since_signal > SILENT_PERIODS + 2 or self._detector.settled():
            first = self._detector.failed() or self._detector.signalled_alone()
            self._leave(Ending(attendance=first) if first else ending, store)

    def _look_before_the_kill(self, store: Store) -> None:
        """End the run for ranks that did not react to a signal to all, before the launcher kills this process too.

        A rank that lives on this host may not have been signalled, so it does not count.
        """
        before, others = dict(self._detector.last), range(1, self._identity.ranks)
        here = {rank: heartbeat.pid for rank, heartbeat in before.items() if rank and heartbeat.host == self._host}
        until = time.monotonic() + _LAUNCHER_KILLS_S
        while True:
            dead = {rank for rank, pid in here.items() if not lives(pid)}
            self._detector.receive(self._read_heartbeats(store, others))  # what one that is dead now has said before
            if time.monotonic() > until or self._detector.gone(tuple(rank for rank in others if rank not in dead)):
                break
            time.sleep(PERIOD_S / 20)
        found = {rank: before[rank] for rank in before if rank and (rank in dead or rank not in here)}
        attendance = self._detector.unresponsive(found, dead)
        if attendance:
            self._leave(Ending(attendance=attendance), store)

    def _check_rank_0(self, store: Store) -> None:
        """On the other ranks, carry out rank 0's decision, or exit if it has fallen silent."""
        verdict = key(self._identity, "end")
        if store.check([verdict]):
            code = int(store.get(verdict))
            self._left = DONE
            self._send_heartbeat(store)
            self._callbacks.abort()
            leave(code)
        self._rank_0.receive(self._read_heartbeats(store, range(1)))
        if self._rank_0.silent(SILENT_PERIODS):
            zero = self._rank_0.last[0]
            self._left = f"rank 0 had fallen silent for {SILENT_PERIODS * PERIOD_S:.0f} s"
            self._send_heartbeat(store)  # where rank 0 does not serve the store, it will read why
            self._leave(Ending(why=f"rank 0 on {zero.host} has fallen silent in phase {zero.phase!r}"))
        self._since_signal += bool(self._signal)
        if self._since_signal > SILENT_PERIODS + 2 and not self._rank_0.last:
            self._leave(Ending(why=f"ended by {self._signal} {self._where()}", code=ExitCode.INCONCLUSIVE))

    def _leave(self, ending: Ending, store: Store | None = None) -> NoReturn:
        """End this process; the first thread to get here does it. Rank 0 reports and sends the others the code."""
        self._ending.acquire()  # held for good: a second caller waits until the process is gone
        limit_reporting()
        if self._identity.rank:
            self._report_reason(ending)
        code = self._callbacks.conclude(ending)
        if store:
            self._send_exit_code(store, code, range(1, self._identity.ranks))
        self._callbacks.abort()
        leave(code)

    def _report_reason(self, ending: Ending) -> NoReturn:
        """Report why a rank other than 0 exits; a mere signal is not reported."""
        if self._signal and ending.code is ExitCode.INCONCLUSIVE:
            leave(ending.code)
        if self._callbacks.exit_reason:
            self._callbacks.exit_reason(ending.why, ending.code)
        elif self._identity.rank == 1 or self._identity.local_rank == 0:  # one line per node is enough
            with contextlib.suppress(OSError):
                sys.stderr.write(f"ncclprobe: rank {self._identity.rank} on {self._host}: {ending.why}\n")
        leave(ending.code)

    def _send_exit_code(self, store: Store, code: int, others: Sequence[int]) -> None:
        """Write the exit code for the `others`, and wait briefly for those that still run to read it."""
        store.set(key(self._identity, "end"), str(code))
        until = time.monotonic() + _DECISION_READ_S
        while time.monotonic() < until:
            heartbeats = self._read_heartbeats(store, others)
            if all(heartbeat.left == DONE for heartbeat in heartbeats.values()):
                return
            time.sleep(PERIOD_S / 10)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, cut to 200 characters."""
    return str(error).strip().partition("\n")[0][:200]
