"""The watch: heartbeats of every rank in the store, and the end of a run that lost one.

The main thread may sit in a collective that never returns, so everything here runs beside it. Two threads per rank:

* the *pulse* talks to the store through a connection of its own. Every period it writes this rank's beat; on rank 0
  it also reads the others' and decides, elsewhere it reads rank 0's decision.
* the *guard* touches no store, because a stopped server blocks a client past the client's own timeout. It wakes on
  signals, and it ends this rank when the pulse has been stuck too long.

::

    seen                                     seen by             said                                 exit code
    ───────────────────────────────────────  ──────────────────  ───────────────────────────────────  ─────────────
    a rank never came                        rank 0's pulse      run.init names it                    4
    a rank silent, failed or standing still  rank 0's pulse      run.rank-lost: rank, host, phase     4
    all ranks stuck in one phase             rank 0's pulse      run.rank-lost: the phase, no rank    4
    rank 0 stood still, and others left      rank 0's pulse      run.rank-lost: rank 0 itself         4
    silent or failed in a tournament         rank 0's pulse      the same, when the others are done   4
    a signal, or --timeout ran out           rank 0's pulse      a remark                             3
    rank 0 has decided one of these          the others' pulses  nothing: rank 0 speaks               rank 0's
    rank 0 has fallen silent                 the others' pulses  a line, by one rank of each node     4
    the store is gone                        any pulse           rank 0 a remark, others a line       rank 0 3, 4
    the store does not answer                any guard           rank 0 a remark, others a line       rank 0 3, 4
    before the store: --phase-timeout        any guard           rank 0 a remark, others a line       rank 0 3, 4
    --timeout ran out, rank 0 says nothing   any guard           rank 0 a remark, others a line       3
    a signal before the store was reached    any guard           rank 0 a remark                      3

While pairs are measured the run is *tolerant*: it goes on without a rank, which the tournament sets aside as soon as it
knows that no answer will come. A signal, the end of the time or rank 0's own failure end it as ever.
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
from typing import NoReturn

from ncclprobe.facts.run.ranks import Arrivals, Attendance, LostRank
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import Struct, asdict
from ncclprobe.session.ranks.identity import Seat
from ncclprobe.session.ranks.store import Store, key
from ncclprobe.session.watchdog.heartbeat import DONE, PERIOD_S, SILENT_PERIODS, Beat, Register

_FAREWELL_S = 1.5
"""How long rank 0 stays for the others to read its decision: every one of them looks once a period."""
_GUARD_POLL_S = 0.2
_MOST_PER_POLL_S = 2 * _GUARD_POLL_S
"""What one turn of the guard adds to the pulse's age: after a stop of this process, the pulse gets its turn first."""
_PULSE_STUCK_S = (SILENT_PERIODS + 3) * PERIOD_S
"""After this the guard takes over: rank 0's pulse, if it still beats, has named a silent rank by then."""
_ABSENT_S = (SILENT_PERIODS - 1) * PERIOD_S
"""A wait for one period that took so much longer: this process was stopped, or its node was."""
_LAUNCHER_KILLS_S = 0.6
"""Open MPI sends SIGKILL a second after SIGTERM (odls_base_sigkill_timeout): by then rank 0 must have reported."""
_SPEAK_FIRST_S = 2.0
"""After --timeout: the pulse knows more than the guard, and rank 0 more than the others, so they go first."""
_REPORTING_S = 10.0
"""For writing the report: a file system that hangs must not keep the ranks."""


class Ending(Struct, frozen=True):
    """Why a run ends before its last row. `why` is empty where the facts say it all.

    `code` is for the ranks that must leave without hearing rank 0's: somebody is lost, unless it says otherwise.
    """

    arrivals: Arrivals | None = None
    attendance: Attendance | None = None
    why: str = ""
    code: ExitCode = ExitCode.FAIL


class Limits(Struct, frozen=True):
    """How long things may take: the whole run (a time.monotonic() instant) and one phase of it."""

    deadline: float
    phase_s: float


class Voices(Struct, frozen=True):
    """Whom a watch tells what it knows.

    `conclude` is called at most once, on rank 0 only, from whichever thread sees the end first; it reports what there
    is and returns the exit code. `save` keeps, on rank 0, what would be reported if this process were killed now.
    `phase` hears of each new phase of this rank, and `words` why it leaves where rank 0 cannot say so. `abort` frees
    what this process holds on its device and its peers, once all is said; it returns within seconds.
    """

    conclude: Callable[[Ending], int]
    save: Callable[[Ending], None] = lambda ending: None
    phase: Callable[[str], None] = lambda phase: None
    words: Callable[[str], None] | None = None
    abort: Callable[[], None] = lambda: None


class Watch:
    """The two threads, and the only way out of a run that cannot end by itself."""

    def __init__(self, seat: Seat, host: str, limits: Limits, voices: Voices) -> None:
        self._seat, self._limits, self._voices = seat, limits, voices
        self._host = host
        self._step, self._phase, self._left, self._count = 0, "start", "", 0
        self._blames: tuple[int, ...] = ()
        self._phase_began = time.monotonic()
        self._preparing = True
        self._signal, self._since_signal = "", 0
        self._absent_s = 0.0
        self._deserted: frozenset[int] = frozenset()
        self._wake, self._over = threading.Event(), threading.Event()
        self._ending = threading.Lock()
        self._pulse_age_s = 0.0
        self._pulse: threading.Thread | None = None
        self._own: Store | None = None
        patience = max(1, round(limits.phase_s / PERIOD_S))
        self._register = Register(seat.ranks, patience)
        self._zero = Register(1, patience)  # what the others hear of rank 0
        self.tolerant = False
        """Whether the run can do without a rank: who is lost is then said by :meth:`deserted`, and ends nothing."""
        self.late_s = 0.0
        """How long this rank took to prepare: by so much may others come later than it, from the same file system."""

    def start(self) -> None:
        """Take over SIGINT and SIGTERM, and start the guard. Main thread only."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # the byte in the pipe is what counts: Python may be in C code
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._guard, args=(read,), name="guard", daemon=True).start()

    def attach(self, store: Store, own: Store) -> None:
        """Start the pulse on `store`, a connection that nobody else uses; `own` is the caller's."""
        self._pulse_age_s = 0.0
        self._own = own
        self._pulse = threading.Thread(target=self._beat_on, args=(store,), name="pulse", daemon=True)
        self._pulse.start()

    def prepare(self, phase: str) -> None:
        """Say what this rank does before it can meet the others. It may take all of --timeout, at nobody's fault."""
        self.beat(phase)
        self._preparing = True

    def beat(self, phase: str) -> None:
        """Say what this rank does from now on. Called before everything that may block, by the main thread alone."""
        now = time.monotonic()
        if self._preparing:
            self.late_s += now - self._phase_began
        self._phase, self._phase_began, self._preparing = phase, now, False
        self._step += 1
        self._voices.phase(phase)
        if self._own and not self._left:
            self._write(self._own)  # at once, so that a loss is not reported one phase late

    def deserted(self) -> frozenset[int]:
        """On rank 0: the ranks that will answer no more, as far as their hearts show."""
        return self._deserted

    def set_aside(self, ranks: Collection[int]) -> tuple[LostRank, ...]:
        """On rank 0: accuse `ranks` no more, whatever becomes of them; what was last known of each."""
        return self._register.set_aside(ranks)

    def dismiss(self, code: int) -> None:
        """On rank 0, when all that were waited for have `code`: tell it to those set aside, if they still listen."""
        if self._register.aside and self._own:
            self._dismiss(self._own, code, sorted(self._register.aside - self._deserted))

    def failed(self, reason: str, blames: tuple[int, ...] = ()) -> NoReturn:
        """This rank cannot go on: say so, and wait for rank 0 to find out why. `blames`: whom it waited for."""
        self._blames = blames
        self._left = f"it failed ({reason})"
        self._wake.set()
        if self._pulse is None:
            self._leave(Ending(why=reason))
        while True:  # the pulse or the guard ends this process
            time.sleep(PERIOD_S)

    def stop(self) -> None:
        """The run has ended by itself: no more accusations."""
        self._left = DONE
        self._over.set()
        self._wake.set()
        if self._pulse is not None:
            self._pulse.join(2 * PERIOD_S)  # an interpreter that ends beside a thread in torch's code may abort

    def _guard(self, pipe: int) -> None:
        before = time.monotonic()
        while not self._over.is_set():
            if select.select([pipe], [], [], _GUARD_POLL_S)[0]:
                number = os.read(pipe, 1)[0]
                if not self._signal:  # the first one counts: each wake is a period in the register
                    self._signal = signal.Signals(number).name
                    self._wake.set()
            now = time.monotonic()
            self._pulse_age_s += min(now - before, _MOST_PER_POLL_S)
            self._notice(now - before)
            before = now
            ending = self._hopeless(now)
            if ending and not self._over.is_set():
                self._leave(ending)

    def _hopeless(self, now: float) -> Ending | None:
        """Why the guard must end this rank without the store; None: it need not."""
        attached = self._pulse is not None
        if self._signal and not attached:
            return Ending(why=f"ended by {self._signal} {self._here()}", code=ExitCode.INCONCLUSIVE)
        late = now > self._limits.deadline + (_SPEAK_FIRST_S if attached or self._seat.rank else 0.0)
        if attached and self._pulse_age_s > (_PULSE_STUCK_S / 2 if late else _PULSE_STUCK_S):
            return Ending(why=f"{self._server()} has not answered for {self._pulse_age_s:.0f} s {self._here()}")
        if late:
            return self._out_of_time()
        longest_s = self._limits.phase_s + self.late_s + (_PULSE_STUCK_S if attached else 0.0)
        if now > self._phase_began + longest_s and not self._preparing:
            return Ending(why=f"nothing came of {self._phase!r} in {now - self._phase_began:.0f} s")
        return None

    def _out_of_time(self) -> Ending:
        cold = ", which takes minutes from a cold network file system; start again, or raise --timeout"
        why = f"--timeout ran out {self._here()}{cold if self._preparing else ''}"
        return Ending(why=why, code=ExitCode.INCONCLUSIVE)

    def _notice(self, waited_s: float) -> None:
        """A thread of ours waited so long for a moment of its own: was it this process that stood still?"""
        if waited_s > _ABSENT_S and not self._preparing:
            self._absent_s = max(self._absent_s, waited_s)

    def _beat_on(self, store: Store) -> None:
        turn = self._preside if self._seat.rank == 0 else self._follow
        try:
            while not self._over.is_set():
                self._say(store)
                turn(store)
                self._pulse_age_s = 0.0
                self._rest()
        except RuntimeError as error:  # torch's store errors: the server is gone
            time.sleep(PERIOD_S / 2)  # unless the run ended at this moment
            if not self._over.is_set():
                told = 0 in self._zero.last and self._zero.last[0].left  # rank 0 was leaving, and knew why
                code = ExitCode.INCONCLUSIVE if told and self._signal else ExitCode.FAIL
                self._leave(Ending(why=f"{self._server()} is gone ({_first_line(error)}) {self._here()}", code=code))

    def _rest(self) -> None:
        began = time.monotonic()
        self._wake.wait(PERIOD_S)
        self._wake.clear()
        waited_s = time.monotonic() - began
        self._notice(waited_s)
        if waited_s > _ABSENT_S:
            self._register.absent(waited_s)

    def _server(self) -> str:
        """Who serves the store, and what was last heard of rank 0."""
        zero = self._zero.last.get(0)
        server = "the store of torchrun's agent" if self._seat.agent_store else "the store of rank 0"
        return f"{server} (rank 0 was on {zero.host}, in phase {zero.phase!r})" if zero else server

    def _here(self) -> str:
        absent = f", after it had itself stood still for {self._absent_s:.0f} s" if self._absent_s else ""
        return f"while this rank was in phase {self._phase!r}{absent}"

    def _say(self, store: Store) -> None:
        self._count += 1
        self._write(store)

    def _write(self, store: Store) -> None:
        """The count is the pulse's alone: a phase that the main thread adds is no sign of its life."""
        left = self._left or (f"signal {self._signal} ended it" if self._signal else "")
        beat = Beat(self._seat.rank, self._host, os.getpid(), self._count, self._step, self._phase, left, self._blames)
        store.set(key(self._seat, f"beat/{beat.rank}"), json.dumps(asdict(beat)))

    def _hear(self, store: Store, ranks: Sequence[int]) -> dict[int, Beat]:
        names = {rank: key(self._seat, f"beat/{rank}") for rank in ranks}
        if not store.check(list(names.values())):
            names = {rank: name for rank, name in names.items() if store.check([name])}
        texts = store.multi_get(list(names.values())) if names else []
        return {rank: Beat(**json.loads(text)) for rank, text in zip(names, texts, strict=True)}

    def _preside(self, store: Store) -> None:
        """Rank 0: hear everybody, and end the run if it cannot go on."""
        register, out_of_time = self._register, time.monotonic() > self._limits.deadline
        register.hear(self._hear(store, range(self._seat.ranks)))
        arrivals = register.arrivals(out_of_time, late=round(self.late_s / PERIOD_S))
        if arrivals:
            self._leave(Ending(arrivals=arrivals), store)
        self._deserted = register.deserted()
        tolerant = self.tolerant and not (self._signal or out_of_time)
        attendance = register.attendance(signalled=bool(self._signal), out_of_time=out_of_time, tolerant=tolerant)
        if attendance:
            self._leave(Ending(attendance=attendance), store)
        if out_of_time:
            self._leave(Ending(why=f"--timeout ran out in phase {self._phase!r}"), store)
        if self._signal:
            self._wind_up(store)

    def _wind_up(self, store: Store) -> None:
        """Rank 0 was signalled. SIGTERM may mean that a rank has died: launchers send it then. Keep what there is."""
        ending = Ending(why=f"ended by {self._signal} in phase {self._phase!r}")
        self._since_signal += 1
        if self._since_signal == 1:
            self._voices.save(ending)
        if self._seat.kind in ("openmpi", "pmi") and self._signal == "SIGTERM":
            ending = self._hurried(store) or ending
        elif not self._may_go():
            return
        self._leave(ending, store)

    def _may_go(self) -> bool:
        """Whether a signalled rank 0 knows enough: all others have said that they leave, or had the time to."""
        waited = self._since_signal > SILENT_PERIODS + 2
        return waited or self._signal == "SIGINT" or self._register.gone(tuple(range(1, self._seat.ranks)))

    def _hurried(self, store: Store) -> Ending | None:
        """Who does not answer the signal that all got, found out before the launcher ends this process too."""
        before, others = dict(self._register.last), range(1, self._seat.ranks)
        until = time.monotonic() + _LAUNCHER_KILLS_S
        while time.monotonic() < until and not self._register.gone(tuple(others)):
            time.sleep(PERIOD_S / 20)
            self._register.hear(self._hear(store, others))
        attendance = self._register.unanswered({rank: beat for rank, beat in before.items() if rank})
        return Ending(attendance=attendance) if attendance else None

    def _follow(self, store: Store) -> None:
        """The others: do as rank 0 decided, or leave when it has fallen silent."""
        verdict = key(self._seat, "end")
        if store.check([verdict]):
            code = int(store.get(verdict))
            self._left = DONE
            self._say(store)
            self._voices.abort()
            leave(code)
        self._zero.hear(self._hear(store, range(1)))
        if self._zero.silent(SILENT_PERIODS):
            zero = self._zero.last[0]
            self._left = f"rank 0 had fallen silent for {SILENT_PERIODS * PERIOD_S:.0f} s"
            self._say(store)  # where the store is not rank 0's own, it will know why it was left
            self._leave(Ending(why=f"rank 0 on {zero.host} has fallen silent in phase {zero.phase!r}"))
        self._since_signal += bool(self._signal)
        if self._since_signal > SILENT_PERIODS + 2 and not self._zero.last:
            self._leave(Ending(why=f"ended by {self._signal} {self._here()}", code=ExitCode.INCONCLUSIVE))

    def _leave(self, ending: Ending, store: Store | None = None) -> NoReturn:
        """End this process; the first thread to come here does it. Rank 0 reports and tells the others the code."""
        self._ending.acquire()  # held for good: a second caller waits until the process is gone
        threading.Timer(_REPORTING_S, _give_up).start()
        if self._seat.rank:
            self._last_words(ending)
        code = self._voices.conclude(ending)
        if store:
            self._dismiss(store, code, range(1, self._seat.ranks))
        self._voices.abort()
        leave(code)

    def _last_words(self, ending: Ending) -> NoReturn:
        """What a rank says that rank 0 does not speak for: nothing where a signal is all there is to say."""
        if self._signal and ending.code is ExitCode.INCONCLUSIVE:
            leave(ending.code)
        if self._voices.words:
            self._voices.words(ending.why)
        elif self._seat.rank == 1 or self._seat.local_rank == 0:  # one voice per node is enough
            with contextlib.suppress(OSError):
                sys.stderr.write(f"ncclprobe: rank {self._seat.rank} on {self._host}: {ending.why}\n")
        leave(ending.code)

    def _dismiss(self, store: Store, code: int, others: Sequence[int]) -> None:
        """Tell the others to leave with `code`, and give those that still beat a moment to read it."""
        store.set(key(self._seat, "end"), str(code))
        until = time.monotonic() + _FAREWELL_S
        while time.monotonic() < until:
            beats = self._hear(store, others)
            if all(beat.left == DONE for beat in beats.values()):
                return
            time.sleep(PERIOD_S / 10)


def _give_up() -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"ncclprobe: the report could not be written within {_REPORTING_S:.0f} s\n".encode())
    os._exit(ExitCode.BROKEN)


def leave(code: int) -> NoReturn:
    """Leave at once, whatever other threads hold; what was written is flushed first.

    An orderly end would take the signal handlers down first, and torchrun sends SIGTERM as soon as one rank has
    ended: the exit code would be lost.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe: nobody reads any more
            stream.flush()
    os._exit(code)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
