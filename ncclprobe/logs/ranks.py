"""Combine logs that were read one by one: which process is which rank, its host, and its last line."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.logs.job_log import OF_LOCAL, SUMMARY, JobLog, LogEvent, LogStream, RankLog, ReadLog
from ncclprobe.logs.prefix import in_year, names_year
from ncclprobe.model.values import Struct, field, replace

MOST_EVENTS = 200_000
"""For all logs together: each takes some 500 bytes."""
MOST_RANKS = 1 << 20

_INIT = re.compile(r"\brank (\d{1,7}) n[rR]anks (\d{1,7}) .{0,400}- Init (START|COMPLETE)")
_JOINED = re.compile(r"\d{1,7}/(\d{1,7}) clients joined")
_SIZE = re.compile(
    r"\b(?:WORLD_SIZE|[Ww]orld[ _-]?[Ss]ize)['\"]?(?: is|:|=| =| ) {0,2}(\d{1,7})\b(?! {0,2}[!*=])"
    r"|\bGLOBAL_RANK: \d{1,7}, MEMBER: \d{1,7}/(\d{1,7})|\bMPI size: (\d{1,7})"
)
_NCCL = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
_TORCH = re.compile(r"(?:Py)?[Tt]orch version:? ?(\d{1,3}\.\d{1,3}\.\d{1,3})")
_ADDRESS = re.compile(r"Using ?(?:\[\d{1,3}\])?[^\s:\[\]]{1,64}:([0-9A-Fa-f.:%]{3,60})<")
_OF_NAME = re.compile(r"(?:^|[^A-Za-z])(?:global_?)?rank[_.-]?(\d{1,6})(?!\d)")
_TASKS = re.compile(r"tasks? ([\d,-]{1,2000}): ")
"""srun's report about the tasks of one host, after its name."""
_MOST_TASKS = 4096
_OF_SRUN = re.compile(r"tasks? \d|Node failure on ")
_KERNEL_OF_NAME = re.compile(
    r"(?:^|/)(?:dmesg[._-]|kernel\.)(?!(?:log|txt|out)$)([A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,4}?)(?:\.(?:log|txt|out))?$"
)
_NUMBERED = re.compile(
    r"(?:^|[/._-])(?:workerlog|worker|trainer|task|proc(?:ess)?|log|out|stdout|stderr)[_.-]?(\d{1,6})(?!\d)"
)
"""Names of logs that may number ranks, if there are several and no line contradicts them."""
_LOCAL_OF_NAME = re.compile(r"(?:^|/)attempt_\d{1,4}/(\d{1,5})/std(?:out|err)\.log")

OF_SLURM = ("slurmstepd: ", "srun: ")
"""srun labels what its daemon writes with the number of a task too."""
_MOST_SEARCHED = 1024

_Process = tuple[int, str, int | None]
"""A log, a host and a process there: of containers that share a host's name, several may have one number."""
_EVERY_LOG = -1


class _Known(Struct):
    """What lines say of processes. `of`: rank and size of the largest communicator that a process named."""

    of: dict[_Process, tuple[int, int]] = field(default_factory=dict)
    versions: dict[str, dict[str, None]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    locals: dict[tuple[int, int], int] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    tasks: dict[int, str] = field(default_factory=dict)
    tasks_are_ranks: bool = False
    sizes: Counter[int] = field(default_factory=Counter)
    labelled: set[int] = field(default_factory=set)
    has_torchrun: bool = False
    year_of: float = 0.0

    def learn(self, event: LogEvent) -> None:
        """Learn from one line about its process."""
        if event.host:
            self.hosts.add(event.host)
        if event.host and (found := _INIT.search(event.text)):
            rank, size = int(found[1]), int(found[2])
            for stream in (event.stream, _EVERY_LOG):
                if size > self.of.get((stream, event.host, event.pid), (0, 0))[1]:
                    self.of[stream, event.host, event.pid] = rank, size
        if event.host and (found := _ADDRESS.search(event.text)):
            self.addresses.setdefault(found[1].partition("%")[0], event.host)
        for name, form in (("nccl", _NCCL), ("torch", _TORCH)):
            if found := form.search(event.text):
                self.versions.setdefault(name, {})[found[1]] = None
        self.has_torchrun |= event.level in SUMMARY
        head = event.text[:_MOST_SEARCHED]
        for said in (*map("".join, _SIZE.findall(head)), *_JOINED.findall(head)):
            self.sizes[int(said)] += 1
        if event.rank is not None and event.local_rank is not None:
            self.locals[event.stream, event.local_rank] = event.rank
        if event.rank is not None and event.pid is not None and event.level in SUMMARY:
            self.of.setdefault((_EVERY_LOG, event.host, event.pid), (event.rank, 1))
        if event.host and (found := _TASKS.match(event.text)):
            tasks = _listed(found[1])
            self.tasks.update(dict.fromkeys(tasks, event.host))
            self.tasks_are_ranks |= len(tasks) > 1  # with a launcher of its own, such as torchrun, a host has one
        self.learn_year(event)

    def learn_year(self, event: LogEvent) -> None:
        """Learn the latest year that a line names."""
        if event.time_s is not None and names_year(event.time_s):
            self.year_of = max(self.year_of, event.time_s)

    @property
    def one_node(self) -> bool:
        """Return whether ranks on their node are those of the job: no second host is named."""
        return len(self.hosts) <= 1

    def rank_of(self, event: LogEvent) -> int | None:
        """Return the rank of the process that wrote a line, by its own log or by any."""
        for stream in (event.stream, _EVERY_LOG):
            if found := self.of.get((stream, event.host, event.pid)):
                return found[0]
        return None


def joined(logs: Sequence[ReadLog]) -> JobLog:
    """Return logs as one: every event with its stream, and with the rank of its process if any line shows it."""
    known = _Known()
    known.labelled = {number for number, log in enumerate(logs) if log.labelled}
    raw = [[replace(event, stream=number) for event in log.events] for number, log in enumerate(logs)]
    for events in raw:
        for event in events:
            known.learn(event)
    for log in logs:
        for event in log.last.values():
            known.learn_year(event)
    streams = [_stream(number, log, raw[number], known) for number, log in enumerate(logs)]
    streams = _one_each(streams, raw, logs, known)
    done = [_placed(e, streams[e.stream], known) for events in raw for e in events]
    last = {
        (n, writer): _placed(replace(e, stream=n), streams[n], known)
        for n, log in enumerate(logs)
        for writer, e in log.last.items()
    }
    return JobLog(
        streams=tuple(streams),
        events=tuple(done),
        ranks=_add_last_steps(_ranks(done, [*last.values()]), streams, logs, last),
        versions={name: tuple(found) for name, found in known.versions.items()},
        world_size=_world_size(known),
        addresses=known.addresses,
        unread=tuple(_unread(logs)),
    )


def _unread(logs: Sequence[ReadLog]) -> Iterator[str]:
    for log in logs:
        name = log.stream.name
        if log.stream.cut:
            yield f"{name}: {log.stream.cut}"
        if log.dropped:
            yield f"{name}: {log.dropped} lines in the middle were left out, because the log is too long"


def _stream(number: int, log: ReadLog, events: Sequence[LogEvent], known: _Known) -> LogStream:
    """Return a log, with its rank and host if only one process writes it.

    If only one rank has a prefix, the lines without one are not its own: they are its launcher's.
    """
    processes = {(event.host, event.pid): event for event in events if event.host and event.pid is not None}
    ranks = {event.rank for event in events} | {event.local_rank for event in events}
    ranks |= {known.rank_of(event) for event in processes.values()}
    rank = rank_of_name(log.stream.name, known.one_node)
    if rank is None and len(processes) == 1 and len(ranks - {None}) == 1:
        rank = known.rank_of(next(iter(processes.values())))
    told = {event.host for event in events if event.host and _OF_SRUN.match(event.text)}
    hosts = {event.host for event in events if event.host and not _OF_SRUN.match(event.text)}
    hosts |= told if told - hosts and hosts else set()
    host = next(iter(hosts)) if len(hosts) == 1 else _host_of_name(log.stream.name) if not hosts else ""
    pid = next(iter(processes))[1] if len(processes) == 1 else None
    rank = None if ranks - {None, rank} else rank
    finished, last = (event and replace(event, stream=number) for event in (log.stream.finished, log.last.get(-1)))
    step, step_line = log.steps.get(-1, (None, 0))
    last = last and replace(last, time_s=_complete_year(last.time_s, known))
    bars = tuple(replace(event, stream=number) for event in log.stream.bars)
    return replace(
        log.stream,
        rank=rank,
        host=host,
        pid=pid,
        step=step,
        step_line=step_line,
        finished=finished,
        last=last,
        bars=bars,
    )


def _one_each(
    streams: list[LogStream], raw: Sequence[Sequence[LogEvent]], logs: Sequence[ReadLog], known: _Known
) -> list[LogStream]:
    """Return the logs with their ranks if each belongs to another rank: a log without one gets the rank left over.

    This identifies a rank that was killed before it wrote its number. If file names number ranks, a file whose name
    does not is not a rank's.
    """
    named = [{event.rank for event in (*log.events, *log.last.values())} - {None} for log in logs]
    processes = ({known.rank_of(event) for event in events if event.host and event.pid is not None} for events in raw)
    named = [each or of_nccl - {None} for each, of_nccl in zip(named, processes, strict=True)]
    size = _world_size(known)
    numbers = _numbered(logs, named, raw)
    streams = [replace(s, rank=n) if s.rank is None else s for s, n in zip(streams, numbers, strict=True)]
    found = [each or {stream.rank} - {None} for each, stream in zip(named, streams, strict=True)]
    ranks = [rank for each in found for rank in each]
    left = {*range(len(logs))} - {*ranks}
    one_each = len(logs) > 1 and all(len(each) <= 1 for each in found) and len({*ranks}) == len(ranks)
    if not one_each or size not in (None, len(logs)) or len(left) > 1:
        return streams
    spare = set() if any(rank_of_name(log.stream.name) is not None for log in logs) else left
    return [replace(s, rank=next(iter(own or spare), None)) for s, own in zip(streams, found, strict=True)]


def _numbered(
    logs: Sequence[ReadLog], named: Sequence[set[int | None]], raw: Sequence[Sequence[LogEvent]]
) -> list[int | None]:
    """Return the ranks in names such as ``workerlog.3``: if all numbers from 0 are there, and no line objects."""
    numbers = [int(found[1]) if (found := _NUMBERED.search(log.stream.name[-512:].lower())) else None for log in logs]
    local = any(event.local_rank is not None for events in raw for event in events)
    agree = all(each <= {number} for each, number in zip(named, numbers, strict=True))
    all_there = len(logs) > 1 and {*numbers} == {*range(len(logs))}
    return numbers if all_there and agree and not local else [None] * len(logs)


def rank_of_name(name: str, one_node: bool = False) -> int | None:
    """Return the rank in a file's name, such as ``rank_3.log`` or ``logs/rank3/out``; torchrun's folders hold local
    ranks, which are global ones only if there is one node.
    """
    found = [*_OF_NAME.finditer(name[-512:].lower())] or ([*_LOCAL_OF_NAME.finditer(name[-512:])] if one_node else [])
    return int(found[-1][1]) if found else None


def _host_of_name(name: str) -> str:
    """Return the host in the name of a kernel's log, such as ``dmesg.node7.txt``: its lines name none."""
    found = _KERNEL_OF_NAME.search(name[-512:])
    return found[1] if found else ""


def _listed(text: str) -> list[int]:
    """Return the numbers of ``0-3,7``; of a malformed list, or one of more than there can be, none."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return []
        end = int(last or first) + 1
        if end > MOST_RANKS or len(found) + end - int(first) > _MOST_TASKS:
            return []
        found += range(int(first), end)
    return found


def _placed(event: LogEvent, stream: LogStream, known: _Known) -> LogEvent:
    """Return `event` with the rank, host and year that other lines show."""
    rank = event.rank
    if rank is None and event.local_rank is not None:
        rank = known.locals.get((event.stream, event.local_rank))
        if rank is None and known.one_node:
            rank = event.local_rank
    if rank is None and event.pid is not None:
        rank = known.rank_of(event)
    if rank is None and event.local_rank is None and stream.rank is not None and _is_in_stream(event, stream):
        rank = stream.rank
    labelled = event.stream in known.labelled and not known.has_torchrun
    if (
        (known.tasks_are_ranks or labelled)
        and rank is None
        and (found := _TASKS.match(event.text))
        and found[1].isdecimal()
    ):
        rank = int(found[1])
    time_s = _complete_year(event.time_s, known)
    task_host = known.tasks.get(rank, "") if rank is not None and known.tasks_are_ranks else ""
    host = event.host or task_host or stream.host
    if rank == event.rank and host == event.host and time_s == event.time_s:
        return event
    return replace(event, rank=rank, host=host, time_s=time_s)


def _complete_year(time_s: float | None, known: _Known) -> float | None:
    """Return a time without a year in the year that other lines name."""
    return time_s if time_s is None or not known.year_of else in_year(time_s, known.year_of)


def _is_in_stream(event: LogEvent, stream: LogStream) -> bool:
    return event.pid is None or stream.pid is None or event.pid == stream.pid


def _world_size(known: _Known) -> int | None:
    """Return the size of the largest communicator that a line names, otherwise what most lines say of the job."""
    said = max((size for size in known.sizes if size > 1), key=lambda size: (known.sizes[size], size), default=None)
    return max((size for _, size in known.of.values() if size > 1), default=said)


def _add_last_steps(
    ranks: Mapping[int, RankLog],
    streams: Sequence[LogStream],
    logs: Sequence[ReadLog],
    last: Mapping[tuple[int, int], LogEvent],
) -> Mapping[int, RankLog]:
    """Return what is known of each rank with its last step; a log without any line belongs to a rank too."""
    found = dict(ranks)
    for number, (stream, log) in enumerate(zip(streams, logs, strict=True)):
        if stream.rank is not None:
            found.setdefault(stream.rank, RankLog(stream.rank, stream.host, stream.pid, number))
        for writer, (step, line) in log.steps.items():
            own = last.get((number, writer)) if writer <= OF_LOCAL else None
            rank = own.rank if own else stream.rank if writer < 0 else writer
            if rank is not None and rank in found:
                found[rank] = replace(found[rank], step=step, step_line=line)
    return dict(sorted(found.items()))


def is_launcher_line(event: LogEvent) -> bool:
    """Return whether a launcher wrote this line of a rank: torchrun's summary, or srun of a task."""
    return event.level in SUMMARY or bool(_TASKS.match(event.text))


def _is_foreign_line(event: LogEvent) -> bool:
    """Return whether a line is not a word of the rank's program: a launcher's, or a frame of a stack that was asked for
    (faulthandler: ``File "a.py", line 3 in f``, without the comma that a traceback has).
    """
    asked_for = event.text.lstrip().startswith('File "') and ", in " not in event.text
    return asked_for or is_launcher_line(event) or event.text.startswith(OF_SLURM)


def _ranks(events: Sequence[LogEvent], last: Sequence[LogEvent]) -> Mapping[int, RankLog]:
    """Return what is known of each rank that a line names."""
    found: dict[int, RankLog] = {}
    started = Counter(event.rank for event in events if "- Init START" in event.text)
    complete = Counter(event.rank for event in events if "- Init COMPLETE" in event.text)
    for event in (*events, *last):
        if event.rank is None or event.rank >= MOST_RANKS:
            continue
        rank = found.get(event.rank) or RankLog(event.rank)
        newer = rank.last is None or _is_foreign_line(rank.last)
        if rank.last and not newer and not _is_foreign_line(event):
            newer = (event.stream, event.line) >= (rank.last.stream, rank.last.line)
        found[event.rank] = replace(
            rank,
            host=event.host or rank.host,
            pid=event.pid if event.pid is not None else rank.pid,
            stream=event.stream,
            last=event if newer else rank.last,
            init_started=started[event.rank],
            init_complete=complete[event.rank],
        )
    return dict(sorted(found.items()))
