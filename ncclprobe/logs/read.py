"""Read the files that a job left into facts. The content of each file decides its kind.

People choose a file's name, so the name does not. Logs are read on all cores.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import msgspec

from ncclprobe.facts.files.flight_records import MAX_DUMP_BYTES, FlightRecords, is_dump, read_dumps
from ncclprobe.facts.files.ras import RasStatus, read_answer
from ncclprobe.host.job_files import STDIN, Blocks, JobFile
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.logs.job_log import JobLog, LogStream, ReadLog
from ncclprobe.logs.ranks import MOST_EVENTS, joined
from ncclprobe.logs.reader import Reader
from ncclprobe.logs.reader_child import LogRequest, answered
from ncclprobe.logs.stacks import Stacks, read_stacks
from ncclprobe.model.causes import NotUnderstood, When
from ncclprobe.model.errors import HostError, ParseError, UsageError
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct

FileKind = Literal["document", "log", "flight-recorder", "ras", "stacks", "capture", "report", "binary", "empty"]

KINDS: dict[FileKind, str] = {
    "log": "log",
    "document": "document",
    "flight-recorder": "flight-recorder dump",
    "ras": "RAS answer",
    "stacks": "py-spy dump",
    "capture": "ncclprobe capture",
    "report": "ncclprobe report",
    "binary": "file without text",
    "empty": "empty file",
}
"""Each kind as a person reads it."""

_STACKS = re.compile(
    rb"(?:[^\n]{0,400}\n){0,24}(?:Process \d{1,10}: [^\n]{1,4000}\n(?:Python v[^\n]{1,400}\n)?\s{0,8}Thread "
    rb"|Thread \d{1,10} \((?:idle|active)[\w+]{0,12}\): \"MainThread\")"
)
_QUOTES = re.compile(rb"(?ms)^(?:```|~~~).*?(?:^(?:```|~~~)[ \t]*$|\Z)|^(?: {4}|\t|>)[^\n]*$")
"""What a document quotes: between fences, indented or behind ``>``."""
_WRITTEN = re.compile(
    rb"(?m)\A#!|\A# [A-Z][^\n]{0,200}\n[ \t]*\n|^(?:#{2,6} \S|```|- \[.\] )|^\|[^\n]{0,400}\|[ \t]*$"
    rb"|\A(?:#[^\n]{0,400}\n|---\n|[ \t\n])*(?:apiVersion|kind|version|name): "
)
_LOGGED = re.compile(
    rb"(?mi)^\W{0,3}(?:\d{4}[-/]\d\d[-/]\d\d|\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:|[IWEF]\d{4} "
    rb"|(?:rank|default)? ?\d{1,6}\]|\S{1,64}:\d{1,9}:\d{1,9} \[|Traceback \(|(?:INFO|WARN|ERROR|DEBUG|FATAL)\b"
    rb"|WARNING\b|'loss'|(?:step|iteration|epoch|iter)\W|(?:srun|slurmstepd|mpirun): )"
)
"""How a person's text and a line of a log begin."""
HEAD = 64 << 10
"""Bytes of the beginning that :func:`kind_of` wants to see."""


def kind_of(head: bytes) -> FileKind:
    """Return the kind of a file that begins with `head`."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if not text:
        return "binary" if head else "empty"
    if is_dump(head):
        return "flight-recorder"
    if text[:1] == b"{":
        start = text[:4096]
        if b'"ncclprobe.report/' in start:
            return "report"
        if b'"capture"' in start[:64]:
            return "capture"
        if b'"nccl_version"' in start and b'"communicators"' in text:
            return "ras"
        return "log"
    if _STACKS.match(text[:4096]) or (text[:1] == b"[" and b'"owns_gil"' in text):
        return "stacks"
    if b"Job summary\n===" in text[:8192] or b"] PEER_" in text[:8192]:
        return "ras"
    return "binary" if _binary(head) else "log"


def is_document(head: bytes) -> bool:
    """Return whether a text is written by a person, as notes, scripts and manifests are: by its form no log.

    It may quote one, between fences or indented.
    """
    return bool(_WRITTEN.search(head)) and not _LOGGED.search(_QUOTES.sub(b"", head))


def _binary(head: bytes) -> bool:
    """Return whether this is not text: many control characters other than NUL, which broken logs hold too."""
    sample = head[:4096]
    odd = sum(byte < 32 and byte not in b"\0\t\n\r\x0b\x0c\x1b\x08\x07" for byte in sample)
    return odd > len(sample) // 10 or head.startswith((b"\x7fELF", b"\x89PNG", b"PK\x03\x04", b"%PDF"))


_ALONE_BYTES = 48 << 20
"""Logs of no more than this together are read here: starting processes takes longer."""
_LAST_WORDS_S = 30.0  # for what was read, once the time for reading is over
_FEWEST_EVENTS = 64
_SHOW_EVERY_S = 1.0
_OF_NO_RANK = "a flight-recorder dump with an unknown rank; name it NAME_rank_N"

Show = Callable[[str], None]
T = TypeVar("T")


class JobFiles(Struct, frozen=True):
    """The content of files: facts of the given kinds only; `kinds` in words; the `reports` among them.

    `asked`: the user's own knowledge of the job, whatever its logs show. `left_out`: files in folders that do not have
    the form of a log.
    """

    facts: dict[type, Any]
    kinds: tuple[str, ...]
    not_understood: tuple[NotUnderstood, ...] = ()
    reports: tuple[str, ...] = ()
    captures: tuple[str, ...] = ()
    asked: When | None = None
    left_out: tuple[str, ...] = ()


def looked_at(files: Sequence[JobFile], signs: Sequence[str], show: Show = lambda _: None) -> JobFiles:
    """Return what `files` say, with `signs` the texts that checks search for. Raises UsageError if none is read."""
    odd: list[NotUnderstood] = []
    by_kind = _group_by_kind(files, odd)
    facts: dict[type, Any] = {}
    if logs := by_kind.get("log"):
        read = _read_logs(logs, signs, show)
        odd += [
            NotUnderstood(each.name, 1, None, each.cut.removeprefix(f"{each.name}: "))
            for each in (log.stream for log in read if _unread(log))
        ]
        if some := [each for each in read if not _unread(each)]:
            facts[JobLog] = joined(some)
    if dumps := by_kind.get("flight-recorder"):
        records = read_dumps(_whole(dumps, show), os.cpu_count() or 1)
        odd += [NotUnderstood(each.source, 1, None, each.why) for each in records.unread]
        odd += [NotUnderstood(each.source, 1, None, _OF_NO_RANK) for each in records.unplaced]
        if records.dumps or records.unplaced:
            facts[FlightRecords] = records
    if answers := _parsed(by_kind.get("ras", ()), read_answer, odd, show):
        facts[RasStatus] = RasStatus(tuple(answers))
    if stacks := _parsed(by_kind.get("stacks", ()), read_stacks, odd, show):
        facts[Stacks] = Stacks(tuple(process for each in stacks for process in each))
    for kind in ("binary", "empty"):
        odd += [NotUnderstood(file.name, 1, None, KINDS[kind]) for file in by_kind.get(kind, ())]
    return JobFiles(
        facts,
        tuple(f"{plural(len(found), KINDS[kind])}" for kind, found in by_kind.items()),
        tuple(odd),
        tuple(file.name for file in by_kind.get("report", ())),
        tuple(file.name for file in by_kind.get("capture", ())),
        left_out=tuple(file.name for file in by_kind.get("document", ())),
    )


def _group_by_kind(files: Sequence[JobFile], odd: list[NotUnderstood]) -> dict[FileKind, list[JobFile]]:
    """Return the files of each kind; an unreadable one is listed in `odd`. Raises UsageError if it is the only one."""
    by_kind: dict[FileKind, list[JobFile]] = {}
    for file in files:
        try:
            by_kind.setdefault("log" if file.once else _kind(file), []).append(file)
        except UsageError as error:
            if len(files) == 1:
                raise
            odd.append(NotUnderstood(file.name, 1, None, str(error).removeprefix(f"{file.name}: ")))
    if "log" in by_kind and "empty" in by_kind:  # of a rank that wrote nothing
        empty = by_kind.pop("empty")
        by_kind["log"] = [file for file in files if file in by_kind["log"] or file in empty]
    return by_kind


def _unread(log: ReadLog) -> bool:
    return bool(log.stream.cut) and not log.stream.nbytes


def _parsed(
    files: Sequence[JobFile], parse: Callable[[str, bytes], T], odd: list[NotUnderstood], show: Show
) -> list[T]:
    """Return the result of `parse` for each file; one that it does not understand is listed in `odd`."""
    found = []
    for name, data in _whole(files, show):
        try:
            found.append(parse(name, data))
        except ParseError as error:
            odd.append(NotUnderstood(name, 1, None, str(error)))
    return found


def _kind(file: JobFile) -> FileKind:
    """Return the kind of a file. Raises UsageError if it cannot be read."""
    head = next(iter(Blocks(file)), b"")[:HEAD]
    kind = kind_of(head)
    return "document" if kind == "log" and file.found and is_document(head) else kind


def _whole(files: Sequence[JobFile], show: Show) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file; of one that is too large as much as shows that it is."""
    for number, file in enumerate(files, start=1):
        data = b""
        for block in Blocks(file):
            data += block
            if len(data) > MAX_DUMP_BYTES:
                break
        yield file.name, data
        show(f"read {number} of {plural(len(files), 'file')}")


def _read_logs(files: Sequence[JobFile], signs: Sequence[str], show: Show) -> list[ReadLog]:
    most = max(MOST_EVENTS // len(files), _FEWEST_EVENTS)
    nbytes, cores = sum(file.nbytes for file in files), os.cpu_count() or 1
    if nbytes <= _ALONE_BYTES or len(files) == 1 or cores == 1:
        reader = Reader(signs, most)
        return [answered(file, reader) for file in files]
    return _read_on_cores(files, tuple(signs), most, min(cores, len(files)), _Progress(len(files), show))


class _Progress:
    """Report once a second how much was read."""

    def __init__(self, nfiles: int, show: Show) -> None:
        self._nfiles, self._show = nfiles, show
        self._began = self._said = time.monotonic()
        self._lock = threading.Lock()
        self._done = self._bytes = 0

    def add(self, nbytes: int) -> None:
        """Count one more file."""
        with self._lock:
            self._done, self._bytes = self._done + 1, self._bytes + nbytes
            now = time.monotonic()
            if now - self._said >= _SHOW_EVERY_S:
                self._said = now
                rate = self._bytes / 1e6 / (now - self._began)
                self._show(f"read {self._done} of {self._nfiles} logs, {size(self._bytes)}, {rate:.0f} MB/s")


def _read_on_cores(
    files: Sequence[JobFile], signs: tuple[str, ...], most: int, cores: int, progress: _Progress
) -> list[ReadLog]:
    idle: SimpleQueue[LimitedChild] = SimpleQueue()
    knows: set[int] = set()

    def read(file: JobFile) -> ReadLog:
        child = idle.get()
        try:
            request = LogRequest(file, most, None if id(child) in knows else signs)
            knows.add(id(child))
            answer = child.ask(msgspec.msgpack.encode(request), file.patience_s + _LAST_WORDS_S)
            return msgspec.msgpack.decode(answer, type=ReadLog)
        except (HostError, msgspec.DecodeError) as error:
            knows.discard(id(child))  # the next request starts another process
            return ReadLog(LogStream(file.name, cut=f"could not be read: {error}"))
        finally:
            idle.put(child)
            progress.add(file.nbytes)

    with ExitStack() as children, ThreadPoolExecutor(cores) as pool:
        for _ in range(cores):
            idle.put(children.enter_context(LimitedChild("ncclprobe.logs.reader_child")))
        return list(pool.map(read, files))


def refuse_nothing_read(found: JobFiles, files: Sequence[JobFile]) -> None:
    """Raise UsageError if no file is of a kind that can explain a failed job."""
    if not found.facts:
        if not files:
            raise UsageError("no files found there; pass the job's logs, or the folder that contains them")
        shown = "; ".join(f"{each.source}: {each.text}" for each in found.not_understood[:3]) or ", ".join(found.kinds)
        raise UsageError(f"nothing in {plural(len(files), 'file')} mentions a failed job: {shown}")
    logs = found.facts.get(JobLog)
    if len(found.facts) == 1 and isinstance(logs, JobLog) and not (found.reports or found.captures or logs.known):
        names = ", ".join("standard input" if each.name == STDIN else each.name for each in logs.streams[:3])
        raise UsageError(f"{names}: contains no recognised line of NCCL, torch or a launcher; pass the job's own logs")
