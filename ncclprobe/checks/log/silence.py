"""Ranks that stopped writing while others went on: what is not said tells as well."""

from collections.abc import Iterator, Mapping
from statistics import median

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import failed
from ncclprobe.facts.files.job_log import JobLog, RankLog
from ncclprobe.localise.clocks import clocks
from ncclprobe.model.findings import Finding, Severity

_FEWEST_RANKS = 3
_SILENT_S = 60.0
_ENDS_A_RANK = ("oom", "gpu-hw-error", "rank-crashed", "timeout-straggler", "fd-limit", "shm-too-small", "memlock")


def _example(*minutes: int) -> str:
    lines = [f"2026-11-22 10:{minute:02d}:00,000 [rank{rank}]: step 7" for rank, minute in enumerate(minutes)]
    end = "2026-11-22 10:{m:02d}:30,000 [rank{r}]: RuntimeError: NCCL error: remote process exited or there was"
    return "\n".join([*lines, *(end.format(m=m, r=rank) for rank, m in enumerate(minutes) if m == max(minutes))])


@cause(
    echoes=_ENDS_A_RANK,
    bad=lambda: [_example(30, 30, 12, 30)],
    good=lambda: [_example(30, 30, 30, 30), _example(12, 30), "\n".join(_example(30, 30, 12, 30).split("\n")[:4])],
)
def rank_fell_silent(log: JobLog) -> Iterator[Finding]:
    """A rank wrote nothing while the others went on.

    Right: All ranks wrote until the job ended.
    Why: where the other ranks still write, and one is silent for a minute and longer, it hangs or is dead: they wait
    for it, and what they report is what follows. Its own last line, and its host's, say where it was.
    Fix: look at the last line of that rank; if its process is still there, `py-spy dump --pid PID`; else the kernel's
    log of its host: `journalctl -k | grep -iE 'oom|xid|killed'`.
    """
    if not failed(log):
        return
    last = _last_times(log)
    if len(last) < _FEWEST_RANKS:
        return
    usual = median(last.values())
    silent = [rank for rank, when in last.items() if usual - when > _SILENT_S]
    for rank in silent if 2 * len(silent) < len(last) else ():
        event = log.ranks[rank].last
        if event is not None:
            yield said(
                log,
                event,
                f"rank {rank} wrote nothing in the last {usual - last[rank]:.0f} s, while the others went on",
                severity=Severity.WARN,
                codes=("rank-crashed", "timeout-straggler"),
                blame="unknown",
                action="retest",
            )


def _last_times(log: JobLog) -> Mapping[int, float]:
    """Return when each rank whose clock can be compared wrote last, by one clock."""
    ahead = clocks(log).ahead_s
    ranks = [each for each in log.ranks.values() if each.last and each.last.time_s is not None]
    one_clock = len({_clock(log, each) for each in ranks}) <= 1
    return {
        each.rank: each.last.time_s - ahead.get(each.host, 0.0)
        for each in ranks
        if each.last and each.last.time_s is not None and (one_clock or each.host in ahead)
    }


def _clock(log: JobLog, rank: RankLog) -> str:
    """Return whose clock a rank's times are of: its host's; of one log of several ranks, whatever gathered it."""
    stream = log.streams[rank.last.stream] if rank.last else None
    return rank.host or (stream.host or (stream.name if stream.rank is None else "") if stream else "")
