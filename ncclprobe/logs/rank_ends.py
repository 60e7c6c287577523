"""Determine how each rank of a job ended: who reports a failure, who fell silent, and how far each got.

A rank that was killed, or hangs, logs nothing: its absence is the evidence. The expected ranks are those of the job's
size, otherwise those that any line or file names; silent ranks are those that do not complain while others do.

Clocks of hosts are compared by moments that their logs share: the ranks of a communicator finish its initialisation
together, after a last exchange with all others (bootstrap.cc, initTransportsRank), a second or less apart. If the logs
of two hosts have no such line, their times are not compared, and the order is known only within each log.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

from ncclprobe.logs.job_log import JobLog, LogEvent, RankLog
from ncclprobe.logs.outcome import lived_on
from ncclprobe.logs.ranks import is_launcher_line
from ncclprobe.logs.texts import AT_EXIT
from ncclprobe.model.causes import Cause, Suspect
from ncclprobe.model.units import plural
from ncclprobe.model.values import Struct, field, grouped, replace

Complains = Literal["", "closed", "timed out", "otherwise"]
"""Kinds of first complaint: a connection that a peer closed, a wait that took too long, something else."""

MOST_SUSPECTS = 8
_OF_RANKS = {"rank-crashed", "timeout-straggler", "collective-desync", "world-size-mismatch", "oom", "gpu-hw-error"}
"""Codes of causes whose culprit may be a silent rank."""
_MOST_RANKS = 1 << 16
_FEW_MISSING = 7
"""Ranks that have to complain for each that no line names, if the number of ranks is unknown."""
_CLOSED = (
    "losed by remote peer", "losed by peer", "eset by peer", "roken pipe", "unexpectedly closed", "Read error [",
    "Write error [", "remote process exited", "likely closed", "onnection refused", "socketProgress: Connection closed",
    "NCCL communicator was aborted", "ncclRemoteError", "*** SIGTERM (@",
)  # fmt: skip
"""The last is glog's word of a process that its launcher ended, because another had."""
_TIMED_OUT = ("imed out", "imeout", "ncclUniqueId from", "detected by watchdog at work")
_OF_LAUNCHERS = (
    "Sending process", "closing signal SIGTERM", "failed (exitcode", "sigkill_handler", "CalledProcessError",
    "ChildFailedError", "srun: error", "srun: Job", "slurmstepd: error", "exited on signal", "got signal: 15",
)  # fmt: skip
DUMP_SIGNAL = "Received a dump signal due to a collective timeout from"
_PASSED_ON = ("dump signal", "preparing to dump", "Stack trace of the failed collective")
"""The message of torch's watchdog when another rank's watchdog gave up."""
_OVER = (
    "Closing env plugin",
    "finish",
    "Finish",
    "done",
    "Done",
    "DONE",
    "complete",
    "Complete",
    "no more data",
    "exiting",
    "Exiting",
    "bye",
)
_LAST_ERROR_LINES = 4
_NO_WORK = re.compile(
    r"\b(?-i:SIG[A-Z]{3,6})\b|\b(?:(?:received|caught|got) (?:a )?signal|signal \d{1,2})\b|\bshut(?:ting)? ?down\b"
    r"|\bterminat(?:ed|ing)\b|\bKeyboardInterrupt\b|\binterrupted\b|\bexit(?:ed|ing)\b|\bcancel(?:l?ed|l?ing)\b"
    r"|\w{0,24}monitor\w{0,16}: |\bheart ?beat\b|\bwatchdog\b|\butil(?:i[sz]ation)?:? {0,2}\d|\bkeep-?alive\b"
    r"|\bhealth[ _-]?check",
    re.IGNORECASE,
)
"""Words of an end that came from outside, and of threads that write whatever their process does."""
_WITHIN = 512
_LATE_S, _LONGEST_S = 3.0, 30 * 86_400.0
"""A rank that learns of the end of others so much later than they say it was not waiting with them."""


class RankEnd(Struct, frozen=True):
    """How one rank ended, as far as lines show. `last`: its last line; `said`: its first complaint; None: it has none.

    `has_log`: a log of its own, or a line of it, was given. `exit_text`: torchrun's report of its end.
    `alive`: its watchdog answered when others gave up.
    """

    rank: int
    host: str = ""
    last: LogEvent | None = None
    said: LogEvent | None = None
    complains: Complains = ""
    has_log: bool = False
    step: int | None = None
    exit_text: str = ""
    alive: bool = False

    @property
    def by_itself(self) -> bool:
        """Return whether the launcher saw it end otherwise than by the launcher's own SIGTERM."""
        return bool(self.exit_text) and "-15" not in self.exit_text and "Terminated" not in self.exit_text

    @property
    def over(self) -> bool:
        """Return whether its last line reports the end of its program."""
        return self.last is not None and any(word in self.last.text for word in _OVER)


class Ends(Struct, frozen=True):
    """All ranks that are expected.

    `ahead_s`: by how much the clock of each host is ahead; without it, times of hosts are compared only if `one_clock`
    is set. `first_out`: the rank that a launcher saw end first; None: unknown. `unattributed`: there is an exception
    that no line assigns to a rank.
    """

    ranks: Mapping[int, RankEnd]
    ahead_s: Mapping[str, float] = field(default_factory=dict)
    one_clock: bool = True
    first_out: int | None = None
    unattributed: bool = False

    def when(self, event: LogEvent | None) -> float | None:
        """Return when a line was written, by the clock that all share; None: there is none."""
        if event is None or event.time_s is None or not (self.one_clock or event.host in self.ahead_s):
            return None
        return event.time_s - self.ahead_s.get(event.host, 0.0)

    @property
    def first_s(self) -> float | None:
        """Return when the first of them complained; None: not all lines say when."""
        times = [self.when(each.said) for each in self.complaining]
        return min((each for each in times if each is not None), default=None)

    @property
    def complaining(self) -> tuple[RankEnd, ...]:
        """Return the ranks that speak of a failure."""
        return tuple(each for each in self.ranks.values() if each.said)

    @property
    def silent(self) -> tuple[RankEnd, ...]:
        """Return those that do not, if others do; if a launcher saw some of them end by themselves, only these."""
        quiet = (each for each in self.ranks.values() if not each.said and not self._left_after(each))
        silent = tuple(quiet) if self.complaining else ()
        return tuple(each for each in silent if each.by_itself) or silent

    def _left_after(self, rank: RankEnd) -> bool:
        """Return whether a rank ended by itself, by its last line, once another had complained."""
        if rank.last is None or AT_EXIT not in rank.last.text:
            return False
        own, first_s = self.when(rank.last), self.first_s
        before = (e.said for e in self.complaining if e.said and e.said.stream == rank.last.stream)
        return any(said.line < rank.last.line for said in before) or (
            own is not None and first_s is not None and own > first_s
        )

    def wrote_on(self, rank: RankEnd) -> bool:
        """Return whether a rank that does not complain wrote of its work when another had: it was not stuck."""
        return self.later_than_others(rank.last) and not (rank.last and _NO_WORK.search(rank.last.text[:_WITHIN]))

    def later_than_others(self, event: LogEvent | None) -> bool:
        """Return whether a line was written when another rank had complained, by the clock that all share."""
        own, first_s = self.when(event), self.first_s
        return own is not None and first_s is not None and _LATE_S < own - first_s < _LONGEST_S

    @property
    def complaint_kinds(self) -> frozenset[str]:
        """Return of what ranks complain."""
        return frozenset(each.complains for each in self.complaining)

    @property
    def latecomer(self) -> RankEnd | None:
        """Return the one rank that lost connections when all others had waited until their timeout.

        That it gave up later than the others proves nothing: if all wait for the same thing, the network may have
        failed.
        """
        closed = [each for each in self.complaining if each.complains == "closed"]
        late = len(closed) == 1 and self.complaint_kinds == {"closed", "timed out"} and not self.silent
        return closed[0] if late else None

    def came_later(self, one: RankEnd) -> bool:
        """Return whether a rank complained so much later than all others that it cannot have waited with them."""
        others = [self.when(each.said) for each in self.complaining if each.rank != one.rank]
        known = [when for when in others if when is not None]
        own = self.when(one.said)
        return own is not None and 2 * len(known) > len(others) and own > max(known) + _LATE_S


def rank_ends(log: JobLog, failing: Collection[tuple[int, int]]) -> Ends:
    """Return how the ranks ended. `failing`: the lines, as index of the log and number, that speak of a failure."""
    said = _complaints(log, failing)
    last = {e.rank: e for e in reversed(log.events) if _is_last_error(e, said.get(-1 if e.rank is None else e.rank))}
    told = {e.rank: e.text for e in reversed(log.events) if e.rank is not None and is_launcher_line(e)}
    alive = _alive(log)
    ranks = {
        rank: _end(
            log.ranks.get(rank, RankLog(rank)), said.get(rank), told.get(rank, ""), rank in alive, last.get(rank)
        )
        for rank in _expected(log, said)
    }
    found = clocks(log)
    outs = (e for e in log.events if is_launcher_line(e) and e.level != "FAILURE")
    first_out = next((each.rank for each in outs), None)
    return Ends(ranks, found.ahead_s, found.nhosts < 2, first_out, _unattributed(log))


def _unattributed(log: JobLog) -> bool:
    """Return whether a log of several ranks holds an exception without a rank that is not a launcher's."""
    return any(
        event.level == "EXCEPTION" and event.rank is None and not of_others(event) and not lived_on(log, event)
        for event in log.events
    )


def _is_last_error(event: LogEvent, said: LogEvent | None) -> bool:
    """Return whether a line is NCCL's last error, which torch repeats beneath what NCCL returned."""
    near = said is not None and event.stream == said.stream and 0 < event.line - said.line <= _LAST_ERROR_LINES
    return near and event.level == "WARN" and said is not None and "NCCL error in: " in said.text


def _end(
    rank: RankLog, said: LogEvent | None, exit_text: str, alive: bool, last_error: LogEvent | None = None
) -> RankEnd:
    last = rank.last if rank.last and not is_launcher_line(rank.last) else None
    has_log = last is not None or (rank.stream is not None and rank.last is None)
    kind = _kind(last_error) if last_error and _kind(said) == "otherwise" else _kind(said)
    return RankEnd(rank.rank, rank.host, last, said, kind, has_log, rank.step, exit_text, alive)


def _kind(said: LogEvent | None) -> Complains:
    if said is None:
        return ""
    if any(text in said.text for text in _CLOSED):
        return "closed"
    return "timed out" if any(text in said.text for text in _TIMED_OUT) else "otherwise"


def _expected(log: JobLog, said: Mapping[int, LogEvent]) -> Iterable[int]:
    """Return the ranks of the job: those of its size, otherwise those with a line or a file.

    If nearly all numbers up to the highest complain, the others are expected too.
    """
    known = sorted(rank for rank in {*log.ranks, *said} if rank < _MOST_RANKS)
    if log.world_size and (known[-1] if known else 0) < log.world_size <= _MOST_RANKS:  # else it is of a smaller group
        return range(log.world_size)
    gaps = (known[-1] + 1 if known else 0) - len(known)
    return range(known[-1] + 1) if gaps and gaps * _FEW_MISSING <= len(said) else known


def _complaints(log: JobLog, failing: Collection[tuple[int, int]]) -> Mapping[int, LogEvent]:
    """Return the first line of each rank that speaks of a failure; of lines that no check knows, those near its end."""
    found: dict[int, LogEvent] = {}
    for event in log.events:
        if event.rank is None or event.rank in found or is_launcher_line(event) or of_others(event):
            continue
        known = (event.stream, event.line) in failing
        if known or (event.level in ("EXCEPTION", "FATAL") and not lived_on(log, event)):
            found[event.rank] = event
    return found


def of_others(event: LogEvent) -> bool:
    """Return whether a line only passes on what launchers or other ranks say."""
    return any(text in event.text for text in (*_OF_LAUNCHERS, *_PASSED_ON))


def _alive(log: JobLog) -> frozenset[int]:
    """Return the ranks whose watchdog answered to another rank's time-out: their processes lived then."""
    found = (event for event in log.having(DUMP_SIGNAL) if "this local rank" not in event.text)
    return frozenset(event.rank for event in found if event.rank is not None)


def with_suspects(found: Sequence[Cause], log: JobLog, failing: Collection[tuple[int, int]]) -> tuple[Cause, ...]:
    """Return the causes, the first with the ranks that say nothing: if it is of them, or of no rank that is known."""
    ends = rank_ends(log, failing)
    whole = len(ends.ranks) > max(ends.ranks, default=-1)
    silent = [each.rank for each in ends.silent] if whole else []
    quiet = silent if 0 < len(silent) <= min(MOST_SUSPECTS, len(ends.complaining)) else []
    if not quiet and ends.latecomer:
        quiet = [ends.latecomer.rank]
    if not found or not quiet or (found[0].could_be and not {*found[0].could_be} & _OF_RANKS):
        return tuple(found)
    first, *rest = found
    if first.confidence == "named":
        quiet = [rank for rank in quiet if rank in first.ranks or _fits(first, ends.ranks[rank])]
    if not quiet:
        return tuple(found)
    return (replace(first, suspects=suspects(log, ends, quiet)), *rest)


def _fits(cause: Cause, rank: RankEnd) -> bool:
    """Return whether a cause that names no rank, such as memory that was full, may have been that of `rank`."""
    return not cause.ranks and (not cause.nodes or rank.host in cause.nodes)


def suspects(log: JobLog, ends: Ends, ranks: Collection[int]) -> tuple[Suspect, ...]:
    """Return what is known of `ranks`, least advanced first."""
    known = [ends.ranks[rank] for rank in ranks if rank in ends.ranks]
    known.sort(key=lambda each: (each.step is None, each.step or 0, each.rank))
    furthest = max((each.step for each in ends.ranks.values() if each.step is not None), default=None)
    return tuple(_suspect(log, each, ends, furthest) for each in known[:MOST_SUSPECTS])


def _suspect(log: JobLog, end: RankEnd, ends: Ends, furthest: int | None) -> Suspect:
    last, when, first_s = end.last, ends.when(end.last), ends.first_s
    return Suspect(
        rank=end.rank,
        host=end.host,
        last_line=last.text if last else "",
        time=last.time_s if last else None,
        source=log.streams[last.stream].name if last else "",
        line=last.line if last else None,
        silent_s=None if when is None or first_s is None else first_s - when,
        step=end.step,
        furthest_step=furthest,
    )


_APART_S = 1.0


class Clocks(Struct, frozen=True):
    """By how many seconds each host's clock is ahead of one of them. `shared`: how many moments that rests on."""

    ahead_s: Mapping[str, float] = field(default_factory=dict)
    shared: int = 0
    nhosts: int = 0

    def in_words(self) -> str:
        """Return what a reader must know of the times; empty: all are of one host."""
        if self.nhosts < 2:
            return ""
        if not self.ahead_s:
            return "times on different hosts are not compared, because no event is in the logs of two of them"
        late = {host: each for host, each in self.ahead_s.items() if abs(each) > _APART_S}
        how = f"by {plural(self.shared, 'communicator')} that several hosts initialised together"
        if not late:
            return f"the clocks of the hosts agree within a second, {how}"
        first, most = max(late.items(), key=lambda each: abs(each[1]))
        return f"the clock of {first} is {abs(most):.0f} s {'ahead' if most > 0 else 'behind'}, {how}"


def clocks(log: JobLog) -> Clocks:
    """Return how far apart the clocks of the hosts in `log` are."""
    hosts = {event.host for event in log.events if event.host and event.time_s is not None}
    moments: dict[str, dict[str, float]] = {}
    for event in log.events:
        if "- Init COMPLETE" in event.text and event.time_s is not None and event.host:
            name = event.text.partition("commId ")[2].partition(" ")[0]
            if name:
                own = moments.setdefault(name, {})
                own[event.host] = max(event.time_s, own.get(event.host, event.time_s))
    shared = [each for each in moments.values() if len(each) > 1]
    if not shared:
        return Clocks(nhosts=len(hosts))
    first = max(shared, key=len)
    base = next(iter(first))
    apart = grouped((host, when - moment[base]) for moment in shared if base in moment for host, when in moment.items())
    return Clocks({host: median(each) for host, each in apart.items()}, len(shared), len(hosts))
