"""From the bytes of logs to a :class:`~ncclprobe.facts.files.job_log.JobLog`.

Logs are large and nearly all of what they hold says nothing: a line is looked at only if it holds one of the texts that
checks search for (:attr:`ncclprobe.model.rules.CauseRule.signs`) or that this module needs itself.
"""

import re
from collections.abc import Collection, Iterable, Iterator

from ncclprobe.facts.files.job_log import JobLog, LogEvent, LogStream, RankLog
from ncclprobe.facts.files.log_prefix import LogLine, cleaned
from ncclprobe.model.values import Struct, field, replace

NamedBytes = tuple[str, Iterable[bytes]]
"""A log: its name, and its bytes in blocks of any length."""

FAILURES = ("NCCL WARN", "rror", "ERROR", "Traceback", "ailed", "ailure", "imed out", "imeout", "atal", "FATAL", "bort")
"""Texts of lines that may speak of a failure, whatever program wrote them."""

_OWN = ("NCCL version", "Init START", "Init COMPLETE", "Bootstrap", "NET/Socket : Using", "NET/IB : Using")
_RANK = re.compile(r"\brank (\d{1,7}) nranks (\d{1,7})\b")
_VERSION = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
_ADDRESS = re.compile(r"Using ?(?:\[\d+\])?[^\s:]{1,64}:([0-9A-Fa-f.:]{3,45})<")


def read(logs: Iterable[NamedBytes], signs: Collection[str] = ()) -> JobLog:
    """Return what `logs` say: of each the lines that hold one of `signs` or speak of a failure. Never fails."""
    reading = _Reading(tuple(dict.fromkeys((*signs, *FAILURES, *_OWN))))
    for name, blocks in logs:
        reading.take(name, blocks)
    return reading.done()


class _Reading(Struct):
    """Logs as far as they have been read. `ranks` by the host and process that wrote ``Init START``."""

    signs: tuple[str, ...]
    streams: list[LogStream] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    versions: dict[str, dict[str, None]] = field(default_factory=dict)
    world_size: int | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    ranks: dict[tuple[str, int | None], int] = field(default_factory=dict)

    def take(self, name: str, blocks: Iterable[bytes]) -> None:
        """Read one log."""
        stream, number = len(self.streams), 0
        for number, raw in enumerate(lines(blocks), start=1):
            line = cleaned(raw)
            if any(sign in line.text or sign in line.level for sign in self.signs) or line.level == "WARN":
                self._learn(line)
                self.events.append(_event(stream, number, line))
        self.streams.append(LogStream(name, number))

    def _learn(self, line: LogLine) -> None:
        if found := _RANK.search(line.text):
            self.ranks[line.host, line.pid] = int(found[1])
            self.world_size = max(self.world_size or 0, int(found[2]))
        if found := _VERSION.search(line.text):
            self.versions.setdefault("nccl", {})[found[1]] = None
        if line.host and (found := _ADDRESS.search(line.text)):
            self.addresses[found[1]] = line.host

    def done(self) -> JobLog:
        """Return it all, every event with the rank of its process."""
        events = tuple(self._of_rank(event) for event in self.events)
        versions = {name: tuple(found) for name, found in self.versions.items()}
        ranks = {e.rank: RankLog(e.rank, e.host, e.pid, e) for e in events if e.rank is not None}
        return JobLog(tuple(self.streams), events, ranks, versions, self.world_size, self.addresses)

    def _of_rank(self, event: LogEvent) -> LogEvent:
        rank = self.ranks.get((event.host, event.pid)) if event.host else None
        return event if rank is None else replace(event, rank=rank)


def _event(stream: int, number: int, line: LogLine) -> LogEvent:
    return LogEvent(stream, number, line.text, line.rank, line.host, line.pid, line.time_s, line.level, line.place)


def lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends; a last one without an end too."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    if rest:
        yield rest
