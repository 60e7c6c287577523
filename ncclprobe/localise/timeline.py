"""Who said what when: the moments of a failed job, what became of each rank, and lines that no check knows."""

from collections.abc import Iterator, Sequence

from ncclprobe.facts.files.job_log import JobLog, LogEvent, RankLog
from ncclprobe.model.causes import Moment, NotUnderstood, RankState
from ncclprobe.model.findings import Evidence, Verdict

MOST_MOMENTS = 2000
_FAILED = ("EXCEPTION", "ROOT CAUSE", "FAILURE", "FATAL")


def timeline(log: JobLog, verdicts: Sequence[Verdict]) -> tuple[Moment, ...]:
    """Return the lines that findings rest on, and the last line of each rank, in the order of their times."""
    found: dict[tuple[int, int], Moment] = {}
    for verdict in verdicts:
        for finding in verdict.findings:
            if (o := finding.occurrence) and finding.evidence:
                rank, host = next(iter(o.ranks), None), next(iter(o.hosts), "")
                moment = Moment(o.time_s, rank, host, finding.message, finding.evidence[0], verdict.id)
                found.setdefault((o.stream, o.line), moment)
    for each in log.ranks.values():
        if last := each.last:
            moment = Moment(last.time_s, each.rank, each.host, "its last line", _evidence(log, last))
            found.setdefault((last.stream, last.line), moment)
    moments = [found[key] for key in sorted(found)]
    moments.sort(key=lambda moment: float("inf") if moment.time_s is None else moment.time_s)
    return tuple(moments[:MOST_MOMENTS])


def ranks(log: JobLog) -> tuple[RankState, ...]:
    """Return what became of each rank that a log names."""
    return tuple(
        RankState(each.rank, each.host, each.pid, _evidence(log, each.last) if each.last else None, "", _state(each))
        for each in log.ranks.values()
    )


def _state(rank: RankLog) -> str:
    if rank.last and rank.last.level in _FAILED:
        return "failed"
    if rank.init_started > rank.init_complete:
        return "in the initialisation of a communicator"
    return ""


def _evidence(log: JobLog, event: LogEvent) -> Evidence:
    return Evidence(log.streams[event.stream].name, event.line, event.text)


def not_understood(log: JobLog, verdicts: Sequence[Verdict]) -> Iterator[NotUnderstood]:
    """Yield by log how many lines speak of a failure on which no finding rests, with the first of them."""
    known = {(f.occurrence.stream, f.occurrence.line) for v in verdicts for f in v.findings if f.occurrence}
    first: dict[int, LogEvent] = {}
    count: dict[int, int] = {}
    for event in log.events:
        if event.level in ("WARN", "ERROR", *_FAILED) and (event.stream, event.line) not in known:
            first.setdefault(event.stream, event)
            count[event.stream] = count.get(event.stream, 0) + 1
    for stream, event in first.items():
        yield NotUnderstood(log.streams[stream].name, count[stream], event.line, event.text)
