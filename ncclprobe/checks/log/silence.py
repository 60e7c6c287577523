"""Ranks that say nothing while the others complain: what is not said tells as well."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.log import cause, said
from ncclprobe.facts.files.job_log import Explained, JobLog
from ncclprobe.facts.files.log_reader import read
from ncclprobe.facts.files.torch_lines import timed_out_work
from ncclprobe.localise.rank_ends import Ends, RankEnd, rank_ends
from ncclprobe.model.findings import Finding

_DIED, _LATE, _DESYNC = "rank-crashed", "timeout-straggler", "collective-desync"
_OPEN = {_DIED, _LATE, _DESYNC, "peer-unreachable"}
"""What is left open where peers only lost a rank, or were refused by its host."""
_MOST_SILENT = 3
_WAITED = "[rank{r}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv"


def _example(*complaints: str, size: int = 0) -> tuple[JobLog, Explained]:
    """Return a log and what is known of it: each rank makes a step, and then says what is given, if anything."""
    texts = {
        f"rank{rank}": "\n".join([f"step 7 of a job of world size {size or len(complaints)}", text.format(r=rank)])
        for rank, text in enumerate(complaints)
    }
    log = read(((name, [text.encode()]) for name, text in texts.items()), ("RuntimeError",))
    return log, Explained(failing=frozenset((e.stream, e.line) for e in log.events if "RuntimeError" in e.text))


@cause(
    code=_DIED,
    echoes=("oom", "gpu-hw-error", "fd-limit", "shm-too-small", "memlock", _DIED, _LATE),
    bad=lambda: [_example(_WAITED, "")],
    good=lambda: [_example("", "")],
)
def rank_fell_silent(log: JobLog, explained: Explained) -> Iterator[Finding]:
    """A rank said nothing while the others lost it, or waited for it.

    Right: No rank fell silent while others complained.
    Why: a rank that is killed writes nothing, and one that hangs nothing either: those that complain are the others.
    A process that ends closes its connections, so where they were closed it has ended; where the others only waited,
    it may live still.
    Fix: look at the last line of that rank and, of its host and that minute, at `journalctl -k | grep -iE
    'oom|killed|xid|segfault'` and the scheduler's record (`sacct -j JOB -o JobID,State,ExitCode,NodeList`, `kubectl
    describe pod`); if its process is still there, `py-spy dump --pid PID`.
    """
    if explained.codes or not {*explained.could_be} <= _OPEN:
        return
    ends = rank_ends(log, explained.failing)
    if ends.unattributed:
        return  # it may be of a rank that seems to say nothing
    if ends.latecomer:
        yield _late(log, ends, ends.latecomer)
    elif _few(ends) or _one_host(ends):
        yield _silent(log, ends)


def _few(ends: Ends) -> bool:
    """Return whether few say nothing. A rank of which there is no log may be one whose log was not given: of two ranks
    the other one is at fault all the same if it closed its connections.
    """
    known = len(ends.complaining) > 1 or any(each.has_log for each in ends.silent) or ends.of_what == {"closed"}
    return 0 < len(ends.silent) <= min(_MOST_SILENT, len(ends.complaining)) and known


def _one_host(ends: Ends) -> str:
    """Return the host that all silent ranks share and no other rank: it was lost."""
    hosts = {each.host for each in ends.silent}
    lost = next(iter(hosts)) if len(hosts) == 1 else ""
    return "" if any(each.host in ("", lost) for each in ends.complaining) else lost


def _late(log: JobLog, ends: Ends, rank: RankEnd) -> Finding:
    surely = ends.came_later(rank)
    message = f"rank {rank.rank} came when the others had waited until their time was over"
    codes = (_LATE,) if surely else (_LATE, _DESYNC)
    assert rank.said
    return said(log, rank.said, message, codes=codes, blame="job", action="fix-job")


def _silent(log: JobLog, ends: Ends) -> Finding:
    silent, host = ends.silent, _one_host(ends)
    ranks = tuple(each.rank for each in silent)
    names = ", ".join(map(str, ranks[:8]))
    first = silent[0]
    line = first.last or ends.complaining[0].said
    assert line
    details: dict[str, Any] = {"blame": "unknown", "action": "retest"}
    subject = f"rank {names}" if len(ranks) == 1 else f"ranks {names}"
    message, codes = _why(ends, subject, first)
    if len(ranks) > 1 and host:
        message, codes = f"no rank of {host} says anything: ranks {names}", (_DIED, "peer-unreachable")
    return said(log, line, message, ranks=ranks, codes=codes, subject=subject, **details)


def _why(ends: Ends, subject: str, first: RankEnd) -> tuple[str, tuple[str, ...]]:
    """Return what is known of ranks that say nothing, and which causes are left."""
    one, lost = len(ends.silent) == 1, "closed" in ends.of_what and "timed out" not in ends.of_what
    if one and first.rank == ends.first_out and first.by_itself:
        return f"{subject} ended first and wrote no reason: {first.exit_text}", (_DIED,)
    if one and first.alive:
        return f"{subject} had not come to {_awaited(ends)}, and its process lived", (_LATE,)
    if one and first.over:
        return f"{subject} came to its end while the others went on", (_DESYNC, _DIED)
    if not lost:
        codes = (_LATE, _DIED) if first.has_log else (_LATE, _DIED, _DESYNC)  # it may have waited in another call
        return f"{subject} did not come to {_awaited(ends)}, and said nothing", codes
    if not one:
        return f"{subject} say nothing, and the others lost connections", (_DIED, _LATE)
    if not first.has_log:
        return f"{subject} ended, and there is no log of it", (_DIED, "oom", "gpu-hw-error")
    return f"{subject} ended without a word: its log just ends, and the others lost it", (_DIED,)


def _awaited(ends: Ends) -> str:
    """Return what the first rank that complains waited for."""
    text = next((each.said.text for each in ends.complaining if each.said), "")
    work = timed_out_work(text)
    if work is None:
        return "what the others waited for"
    return f"{work.op} number {work.seq}" if work.seq is not None else work.op
