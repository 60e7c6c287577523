"""List who wrote what when in a failed job, how each rank ended, and what to collect if no cause is named.

If a job reports neither a failure nor its end: the position of its ranks, who is behind, and since when.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice, pairwise
from statistics import median

from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.logs.collectives import Entered, entered
from ncclprobe.logs.job_log import ENDINGS, JobLog, LogEvent, LogStream, Pace, RankLog
from ncclprobe.logs.layers import layer_of
from ncclprobe.logs.outcome import worked_before
from ncclprobe.logs.prefix import names_year
from ncclprobe.logs.torch_lines import timed_out_work
from ncclprobe.model.causes import Cause, LastSeen, Moment, NotUnderstood, RankState, Suspect
from ncclprobe.model.findings import Evidence, Occurrence, Verdict
from ncclprobe.model.hostlist import fold, fold_ranks
from ncclprobe.model.layout import first_of
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import Struct, grouped, replace

_MOST_NAMED = 4
_MINUTE_S = 60.0
_SLURM_JOB = re.compile(r"(?:slurm-|StepId=|STEP |JOB )(\d{1,10})\b")
INFO = (
    "start again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET NCCL_DEBUG_FILE=/tmp/nccl.%h.%p, and "
    "explain these files too"
)
RECORDS = (
    "start again with {size}=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 {file}=/tmp/flight_, and explain /tmp/flight_* of all "
    "ranks"
)
_SINCE_2_9 = {"size": "TORCH_FR_BUFFER_SIZE", "file": "TORCH_FR_DUMP_TEMP_FILE"}
_BEFORE_2_9 = {"size": "TORCH_NCCL_TRACE_BUFFER_SIZE", "file": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
"""How torch names the settings of its flight recorder; later releases take the earlier names too."""


def with_next_steps(found: Sequence[Cause], log: JobLog | None, *, records: bool) -> tuple[Cause, ...]:
    """Return the causes, unnamed ones with what would name them. `records`: flight records were given.

    For ranks that fell silent, their host and minute come first, because the kernel and the scheduler log about those.
    """
    steps = tuple(_steps(found, log, records))
    return tuple(
        replace(each, collect=(*_suspect_steps(each.suspects, log), *(() if named else each.collect + steps)))
        for each in found
        for named in [each.confidence == "named"]
    )


def _suspect_steps(suspects: Sequence[Suspect], log: JobLog | None) -> Iterator[str]:
    for each in suspects[:_MOST_NAMED]:
        span = ""
        if each.time is not None and names_year(each.time):
            begin, end = (datetime.fromtimestamp(each.time + by, timezone.utc) for by in (-_MINUTE_S, 5 * _MINUTE_S))
            span = f" --utc --since '{begin:%Y-%m-%d %H:%M:%S}' --until '{end:%Y-%m-%d %H:%M:%S}'"
        on = f"on {each.host}" if each.host else f"on the host of rank {each.rank}"
        yield f"{on}, as root: `journalctl -k{span} | grep -iE 'oom|killed|xid|segfault|nvrm|mce'`"
    if suspects and log:
        if job := _slurm_job(log):
            yield f"the scheduler's record: `sacct -j {job} -o JobID,State,ExitCode,DerivedExitCode,NodeList,MaxRSS`"
        elif any(host for host in {each.host for each in suspects} if "-worker-" in host or "-master-" in host):
            pods = ", ".join(f"`kubectl describe pod {each.host}`" for each in suspects[:_MOST_NAMED])
            yield f"the scheduler's record: {pods} shows its last state, OOMKilled and exit code"


def _slurm_job(log: JobLog) -> str:
    """Return the number of the Slurm job from a log's name or a line; empty if neither has it."""
    names = (stream.name for stream in log.streams)
    lines = (event.text for event in log.having("slurmstepd: error", "srun: "))
    found = next((each for text in (*names, *lines) if (each := _SLURM_JOB.search(text))), None)
    return found[1] if found else ""


def _steps(found: Sequence[Cause], log: JobLog | None, records: bool) -> Iterator[str]:
    if log is None:
        yield "explain the logs of the ranks together with these files"
        return
    if missing := missing_ranks(log):
        yield f"explain the logs of {fold_ranks(missing)} too, because their last lines are unknown"
    if not records and any(_waited(each) for each in found):
        named = [release for each in log.versions.get("torch", ()) if (release := _release(each))]
        yield RECORDS.format(**(_SINCE_2_9 if named and min(named) >= (2, 9) else _BEFORE_2_9))
    if not any(event.level == "INFO" and event.pid is not None for event in log.events) and _met_by_nccl(found, log):
        yield INFO
    hosts = [host for host in dict.fromkeys(event.host for event in log.events) if host]
    on = f" on {fold(hosts)}" if 0 < len(hosts) <= _MOST_NAMED else " on every host"
    if any(_may_be_in_the_kernels_log(each) for each in found):
        yield f"explain the kernel log too: `journalctl -k --since -1d > kernel.$(hostname).log`{on}, as root"


_OF_NCCL = ("NCCL error", "NCCL failure", "ncclUniqueId", "ncclCommInit", "ncclSystemError", "ncclInternalError")


def _met_by_nccl(found: Sequence[Cause], log: JobLog) -> bool:
    """Return whether a cause rests on NCCL's lines before the first step: INFO has shown all it can by then."""
    told = {(e.source, e.line) for cause in found if cause.confidence != "named" for e in _rests_on(cause)}
    lines = (event for event in log.events if (log.streams[event.stream].name, event.line) in told)
    own = (e for e in lines if (e.host and e.pid) or any(words in e.text for words in _OF_NCCL))
    return any(not worked_before(log, event) for event in own)


def _rests_on(cause: Cause) -> Iterator[Evidence]:
    yield from cause.evidence[:_MOST_NAMED]
    yield from (each for what in cause.consequences for each in what.evidence[:1])


_OF_PROCESSES = ("launcher", "scheduler", "ray", "nccl", "torch", "store", "network-plugin", "framework")
"""Layers that report the end or the loss of a process; the kernel may know more of it."""


def _may_be_in_the_kernels_log(cause: Cause) -> bool:
    """Return whether a device, a driver or the end of a process is in what a cause rests on."""
    events = (LogEvent(0, 1, each.text) for each in _rests_on(cause))
    return any((own := layer_of(each)).fault == "node" or own.name in _OF_PROCESSES for each in events)


def _release(version: str) -> tuple[int, ...]:
    """Return ``(2, 9)`` of ``2.9.1+cu129``; empty: not a number."""
    parts = version.split(".")[:2]
    return tuple(map(int, parts)) if len(parts) == 2 and all(part.isdecimal() for part in parts) else ()


def missing_ranks(log: JobLog) -> tuple[int, ...]:
    """Return the ranks of the job that have no line, if a line gives the number of ranks."""
    return tuple(rank for rank in range(log.world_size or 0) if rank not in log.ranks)


def _waited(cause: Cause) -> bool:
    """Return whether a line speaks of a collective that took too long."""
    texts = [each.text for each in cause.evidence] + [e.text for c in cause.consequences for e in c.evidence]
    return any(words in text for text in texts for words in ("Watchdog", "ollective", "WorkNCCL", "dump signal"))


MOST_MOMENTS = 2000
MOST_RANKS = 1 << 16
_EMPTY = JobLog((), ())


def timeline(log: JobLog | None, verdicts: Sequence[Verdict], ahead_s: Mapping[str, float]) -> tuple[Moment, ...]:
    """Return the lines that findings rest on, and the last line of each rank, in the order of their times.

    A line without a time is ordered by the lines of its log that have one; in a log without any, a finding comes
    first and a last line last. `ahead_s`: by how much each host's clock is ahead; the times given are without it.
    """
    log = log or _EMPTY
    placed: dict[Evidence, tuple[tuple[float, int, int], Moment]] = {}
    known = grouped((event.stream, (event.line, event.time_s)) for event in log.events if event.time_s is not None)
    for verdict in verdicts:
        for finding in verdict.findings:
            if (o := finding.occurrence) and finding.evidence:
                who, host = next(iter(o.ranks), None), next(iter(o.hosts), "")
                moment = Moment(_when(o, ahead_s), who, host, finding.message, finding.evidence[0], verdict.key)
                placed.setdefault(moment.evidence, (_place(known, moment, o.stream, o.line), moment))
    for each in log.ranks.values():
        if last := each.last:
            when = None if last.time_s is None else last.time_s - ahead_s.get(last.host, 0.0)
            moment = Moment(when, each.rank, each.host, "its last line", log.evidence(last))
            placed.setdefault(moment.evidence, (_place(known, moment, last.stream, last.line), moment))
    return tuple(moment for _, moment in sorted(placed.values(), key=lambda each: each[0])[:MOST_MOMENTS])


def _place(
    known: Mapping[int, list[tuple[int, float]]], moment: Moment, stream: int, line: int
) -> tuple[float, int, int]:
    """Return what sorts a moment: its time, otherwise that of the line before it in its log, or of the one after."""
    if moment.time_s is not None:
        return moment.time_s, stream, line
    timed = known.get(stream, [])
    at = bisect_right(timed, (line, float("inf")))
    if timed:
        return timed[at - 1 if at else 0][1], stream, line
    return float("-inf") if moment.id else float("inf"), stream, line


def _when(o: Occurrence, ahead_s: Mapping[str, float]) -> float | None:
    return None if o.time_s is None else o.time_s - next((ahead_s[host] for host in o.hosts if host in ahead_s), 0.0)


def ranks(log: JobLog | None, records: FlightRecords | None) -> tuple[RankState, ...]:
    """Return the end of each rank that has a log or a dump, or should have one."""
    log = log or _EMPTY
    dumps = {dump.rank: dump for dump in records.dumps if dump.rank is not None} if records else {}
    waiting = _waiting(log)
    found = []
    for rank in sorted({*log.ranks, *dumps, *missing_ranks(log)})[:MOST_RANKS]:
        own = log.ranks.get(rank, RankLog(rank))
        dump = dumps.get(rank)
        last = entered(dump, len(dump) - 1) if dump else None
        collective = f"{last.call.op} number {last.seq} of group {last.group}" if last else waiting.get(rank, "")
        where = log.evidence(own.last) if own.last else Evidence(dump.source) if dump else None
        state = _state(own, last, rank in waiting) if where else "it has no log"
        found.append(RankState(rank, own.host, own.pid, where, collective, state))
    return tuple(found)


def _waiting(log: JobLog) -> Mapping[int, str]:
    """Return the collective that each rank's watchdog gave up first."""
    found: dict[int, str] = {}
    for event in log.events:
        work = timed_out_work(event.text)
        rank = event.rank if work is None or work.rank is None else work.rank
        if work and rank is not None:
            found.setdefault(rank, str(work))
    return found


def _state(rank: RankLog, last: Entered | None, waited: bool) -> str:
    if rank.last and rank.last.level in ENDINGS:
        return "failed"
    if last is not None and last.state != "completed":
        return f"in a collective, {last.state}"
    if waited:
        return "timed out in a collective"
    if rank.init_started > rank.init_complete:
        return "in the initialisation of a communicator"
    return "its log ends" if last is None else "between collectives"


def not_understood(
    log: JobLog, verdicts: Sequence[Verdict], understood: Callable[[LogEvent], bool]
) -> Iterator[NotUnderstood]:
    """Yield for each log how many unrecognised lines report a failure and support no finding, and the first of them."""
    known = cited_lines(verdicts)
    loud = (e for e in log.events if e.level in ("WARN", "ERROR", *ENDINGS) and (e.stream, e.line) not in known)
    for stream, events in grouped((event.stream, event) for event in loud if not understood(event)).items():
        yield NotUnderstood(log.streams[stream].name, len(events), events[0].line, events[0].text)


def cited_lines(verdicts: Sequence[Verdict]) -> frozenset[tuple[int, int]]:
    """Return the lines that findings rest on: index of the log, and number."""
    return frozenset((o.stream, o.line) for v in verdicts for f in v.findings if (o := f.occurrence))


_MOST_GROUPS = 6
_BRIDGE = re.compile(r"Using ?(?:\[\d{1,3}\])?((?:docker|virbr|lxcbr|cni)\d{1,4}|br-[0-9a-f]{6,12}):([0-9.]{7,15})<")
_SILENT_S = 60.0
_SLOWER, _FEWEST_PACES = 3.0, 3
_NO_DIGITS = str.maketrans("", "", "0123456789")


class _Writer(Struct, frozen=True):
    """A rank, or a log in which no line names one, and its last line."""

    last: LogEvent
    source: str
    rank: int | None = None
    step: int | None = None


def last_seen(log: JobLog) -> tuple[LastSeen, ...]:
    """Return the ends of ranks, otherwise of logs: equal ends together, least advanced first."""
    found = [_Writer(e.last, log.streams[e.last.stream].name, e.rank, e.step) for e in log.ranks.values() if e.last]
    found = [each for each in found if not _counts_for_all(log.streams[each.last.stream], each)]
    if len(found) < 2 or {each.last.stream for each in found} != {*range(len(log.streams))}:
        of_ranks = [each for each in found if log.streams[each.last.stream].rank == each.rank]
        own = {each.last.stream for each in of_ranks}
        others = [s for number, s in enumerate(log.streams) if number not in own and s.last]
        found = [*of_ranks, *(_Writer(s.last, s.name, None, s.step) for s in others if s.last)]
    groups: Mapping[object, list[_Writer]] = grouped(((e.step, e.last.text.translate(_NO_DIGITS)), e) for e in found)
    if len(groups) > _MOST_GROUPS:
        groups = grouped((each.step, each) for each in found)
    seen = [_seen(group) for group in groups.values()]
    return tuple(sorted(seen, key=lambda each: (each.step is None, each.step or 0, each.time_s or 0.0))[:_MOST_GROUPS])


def _counts_for_all(stream: LogStream, rank: _Writer) -> bool:
    """Return whether a log counts steps by lines that name no rank, and goes on after the last line of `rank`."""
    counts = stream.step is not None and rank.step is None
    return counts and stream.last is not None and stream.last.line > rank.last.line


def _seen(group: Sequence[_Writer]) -> LastSeen:
    last = max(group, key=lambda each: (each.last.time_s or 0.0, each.last.stream, each.last.line))
    ranks = tuple(each.rank for each in group if each.rank is not None)
    sources = tuple(dict.fromkeys(each.source for each in group if each.rank is None))
    where = Evidence(last.source, last.last.line, last.last.text)
    return LastSeen(where, ranks, sources, last.step, last.last.time_s)


def standing_still(log: JobLog, seen: Sequence[LastSeen]) -> tuple[str, ...]:
    """Return what the ends of logs show of a job that may hang: ranks that are behind or missing, and since when."""
    behind = [*_late_ranks(seen)]
    steps = any(each.step is not None for each in seen)
    slow = [text for stream in log.streams if (text := _slower(stream.paces, stream.name))]
    before = [] if steps else [*_init_progress(log)] or [*_not_here(log)]
    return (*behind[:_MOST_GROUPS], *slow[:_MOST_GROUPS], *before)


def _not_here(log: JobLog) -> Iterator[str]:
    """Yield which ranks of the job no line is of, if others have lines."""
    missing = missing_ranks(log)
    if missing and 0 < len(log.ranks) < (log.world_size or 0):
        yield (
            f"{len(log.ranks)} of {log.world_size} ranks wrote a line. There is none from {fold_ranks(missing)}: "
            "they did not join, or their logs are not here"
        )


_STAGES = (
    (
        ("Building extension module", "loading fused kernels", "Loading extension module", "Emitting ninja build"),
        "kernels are being compiled; if a killed build left a `lock` in TORCH_EXTENSIONS_DIR "
        "(~/.cache/torch_extensions), or in the program's build folder, all others wait for it",
    ),
    (
        ("- Init COMPLETE", "Connected all", "Connected NVLS"),
        "NCCL's communicator is complete; next the program calls its first collective, or does other work first",
    ),
    (
        (" via NET/", " via P2P", " via SHM", "Trees [", "Channel 0"),
        "NCCL is connecting its channels; each rank connects to the address of its neighbour's interface",
    ),
    (
        ("processes registered", "is using nccl==", "NCCL version", "Bootstrap : Using", "Using network"),
        "NCCL is setting up its first communicator; all ranks must join and reach rank 0",
    ),
    (
        ("GLOBAL_RANK: ", "store_based_barrier", "store based barrier", "endezvous", "initializing torch distributed"),
        "ranks are joining; those that joined are waiting for the rest",
    ),
    (("Loading safetensors", "oading checkpoint", "Loaded engine"), "weights are being read"),
)
"""What a program does after such a line, the line that it wrote last."""


def stage(log: JobLog, seen: Sequence[LastSeen]) -> Iterator[str]:
    """Yield what a program that has made no step does, by the last lines that it wrote."""
    if any(each.step is not None for each in seen):
        return
    texts = [each.last.text for each in seen] + [stream.last.text for stream in log.streams if stream.last]
    stages = (doing for signs, doing in _STAGES if any(sign in text for text in texts for sign in signs))
    yield from (f"according to its last line, {doing}" for doing in islice(stages, 1))


def _late_ranks(seen: Sequence[LastSeen]) -> Iterator[str]:
    """Yield the ranks that are behind the others, or fell silent long before most."""
    furthest = max((each.step for each in seen if each.step is not None), default=None)
    most = max(seen, key=_nwriters, default=None)
    for each in seen:
        if furthest is not None and each.step is not None and each.step < furthest:
            yield f"{_named(each)} reached step {each.step}, but others reached {furthest}"
        elif most is not None and each is not most and 2 * _nwriters(most) >= sum(map(_nwriters, seen)):
            before = (most.time_s or 0.0) - (each.time_s or 0.0)
            if most.time_s and each.time_s and before >= _SILENT_S:
                yield f"{_named(each)} fell silent {before:.0f} s before most"
            elif furthest is None and not (most.time_s and each.time_s) and _nwriters(most) > 2 * _nwriters(each):
                yield f"the log of {_named(each)} ends at a different line from most: {whole_words(each.last.text, 80)}"


def _nwriters(seen: LastSeen) -> int:
    return len(seen.ranks) + len(seen.sources)


def _named(seen: LastSeen) -> str:
    rest = first_of(seen.sources, 3)
    return ", ".join(filter(None, (fold_ranks(seen.ranks) if seen.ranks else "", rest)))


def _slower(paces: Sequence[Pace], name: str) -> str:
    """Return since which step all steps take three times as long as those before, and more; empty: since none."""
    took = [
        ((after.time_s - one.time_s) / (after.step - one.step), after)
        for one, after in pairwise(paces)
        if after.step > one.step and after.time_s > one.time_s
    ]
    for at in range(_FEWEST_PACES, len(took) - _FEWEST_PACES + 1):
        before, since = median(each for each, _ in took[:at]), took[at:]
        if min(each for each, _ in since) > _SLOWER * before:
            now, first = median(each for each, _ in since), since[0][1]
            return (
                f"slow since step {first.step} ({name}:{first.line}): a step takes {now:.3g} s, {now / before:.0f} "
                f"times as long as the {before:.3g} s before"
            )
    return ""


def _init_progress(log: JobLog) -> Iterator[str]:
    """Yield the progress of NCCL's initialisation if no line names a step."""
    used = log.having("Bootstrap : Using", "NET/Socket : Using")
    bridged = {event.host: found for event in used if (found := _BRIDGE.search(event.text))}
    if len(bridged) > 1:
        port = next(iter(bridged.values()))
        yield (
            f"NCCL uses {port[1]} ({port[2]}) on {first_of([*bridged], 3)}. That is a bridge within each host, "
            "which may not reach other hosts. Set NCCL_SOCKET_IFNAME to the interface that connects the hosts"
        )
    begun = log.having("Bootstrap : Using", "Bootstrap: Using", "- Init START")
    spoke = {(e.host, e.pid): e.rank for e in begun if e.host and e.pid is not None}
    done = {(e.host, e.pid) for e in log.having("- Init COMPLETE")}
    late = [f"{host}:{pid}" for host, pid in sorted(spoke.keys() - done, key=str)]
    if late and len(spoke) > 1:
        yield (
            f"{len(late)} of {len(spoke)} processes that write NCCL lines did not report that initialisation is "
            f"complete: {first_of(late, 4)}"
        )
