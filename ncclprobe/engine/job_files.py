"""From the files that a job left to facts, verdicts, and the sections of a report that say why.

Each file is read by its kind, which it shows by what it holds, since people choose its name; logs on all cores. What a
running job says of itself is judged and told the same way.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import msgspec

from ncclprobe.checks.log.known import harmless, understood
from ncclprobe.engine.collect import Facts
from ncclprobe.engine.diagnose import Known, Topic
from ncclprobe.engine.evidence_excerpts import AROUND, LONGEST_LINE, MOST
from ncclprobe.engine.judge import judge
from ncclprobe.facts.files.flight_records import MAX_DUMP_BYTES, FlightRecords, is_dump, read_dumps
from ncclprobe.facts.files.job_log import Explained, JobLog, LogStream, ReadLog
from ncclprobe.facts.files.log_ranks import MOST_EVENTS, joined
from ncclprobe.facts.files.log_reader import LogRequest, Reader, answered
from ncclprobe.facts.files.ras import RasStatus, read_answer
from ncclprobe.facts.files.stacks import Stacks, read_stacks
from ncclprobe.facts.job.ranks import Stand
from ncclprobe.host.job_files import STDIN, Blocks, JobFile
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.localise.causes import causes
from ncclprobe.localise.outcome import (
    earlier_attempts,
    ended_well,
    events_at,
    likeliest,
    lived_on,
    of_the_last_attempt,
    outcome,
    with_the_unknown_line,
)
from ncclprobe.localise.rank_ends import Clocks, clocks, with_suspects
from ncclprobe.localise.timeline import (
    cited_lines,
    last_seen,
    not_understood,
    ranks,
    stage,
    standing_still,
    timeline,
    with_next_steps,
)
from ncclprobe.model.causes import Cause, NotUnderstood
from ncclprobe.model.errors import HostError, ParseError, UsageError
from ncclprobe.model.findings import Evidence, ExitCode, Severity, Status, Verdict
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import Check
from ncclprobe.model.report import Excerpt
from ncclprobe.model.snapshot import Job, learned
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, replace

FileKind = Literal["log", "flight-recorder", "ras", "stacks", "capture", "report", "binary", "empty"]

KINDS: dict[FileKind, str] = {
    "log": "log",
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
        return _json(text)
    if _STACKS.match(text[:4096]) or (text[:1] == b"[" and b'"owns_gil"' in text):
        return "stacks"
    if b"Job summary\n===" in text[:8192] or b"] PEER_" in text[:8192]:
        return "ras"
    return "binary" if _binary(head) else "log"


def _json(text: bytes) -> FileKind:
    start = text[:4096]
    if b'"ncclprobe.report/' in start:
        return "report"
    if b'"capture"' in start[:64]:
        return "capture"
    if b'"nccl_version"' in start and b'"communicators"' in text:
        return "ras"
    return "log"


def _binary(head: bytes) -> bool:
    """Return whether this is no text: many control characters that are not NUL, which broken logs hold too."""
    sample = head[:4096]
    odd = sum(byte < 32 and byte not in b"\0\t\n\r\x0b\x0c\x1b\x08\x07" for byte in sample)
    return odd > len(sample) // 10 or head.startswith((b"\x7fELF", b"\x89PNG", b"PK\x03\x04", b"%PDF"))


_ALONE_BYTES = 48 << 20
"""Logs of no more than this together are read here: starting processes takes longer."""
_LAST_WORDS_S = 30.0  # for what was read, once the time for reading is over
_FEWEST_EVENTS = 64
_SHOW_EVERY_S = 1.0
_MOST_FILES, _CITED_IN_ONE, _MOST_READ = 12, 4, 64 << 20
"""Logs of which lines are shown, lines of one that are cited, and how many bytes of one are read again for them."""
_OF_NO_RANK = "a flight-recorder dump whose rank is not known: name it NAME_rank_N"

Show = Callable[[str], None]
T = TypeVar("T")


class JobFiles(Struct, frozen=True):
    """What files say: facts of the kinds that were given and no others; `kinds` in words; the `reports` among them.

    `failed`: the user knows that the job failed, whatever its logs say.
    """

    facts: Facts
    kinds: tuple[str, ...]
    not_understood: tuple[NotUnderstood, ...] = ()
    reports: tuple[str, ...] = ()
    captures: tuple[str, ...] = ()
    failed: bool = False


def looked_at(files: Sequence[JobFile], signs: Sequence[str], show: Show = lambda _: None) -> JobFiles:
    """Return what `files` say, with `signs` the texts that checks search for. Raises UsageError where none is read."""
    odd: list[NotUnderstood] = []
    by_kind = _by_kind(files, odd)
    facts: Facts = {}
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
    )


def _by_kind(files: Sequence[JobFile], odd: list[NotUnderstood]) -> dict[FileKind, list[JobFile]]:
    """Return the files of each kind; one that cannot be read is told in `odd`. Raises UsageError for the only one."""
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
    """Return what `parse` makes of each file; one that it does not understand is told in `odd`."""
    found = []
    for name, data in _whole(files, show):
        try:
            found.append(parse(name, data))
        except ParseError as error:
            odd.append(NotUnderstood(name, 1, None, str(error)))
    return found


def _kind(file: JobFile) -> FileKind:
    """Return the kind of a file. Raises UsageError where it cannot be read."""
    head = next(iter(Blocks(file)), b"")
    return kind_of(head[:HEAD])


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
    return _on_cores(files, tuple(signs), most, min(cores, len(files)), _Progress(len(files), show))


class _Progress:
    """Says, once a second, how much was read."""

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


def _on_cores(
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
            idle.put(children.enter_context(LimitedChild("ncclprobe.facts.files.log_reader")))
        return list(pool.map(read, files))


def refuse_nothing_read(found: JobFiles, files: Sequence[JobFile]) -> None:
    """Raise UsageError where no file is of a kind that says why a job failed."""
    if not found.facts:
        if not files:
            raise UsageError("there is no file in what was named; give the job's logs, or the folder that has them")
        shown = "; ".join(f"{each.source}: {each.text}" for each in found.not_understood[:3]) or ", ".join(found.kinds)
        raise UsageError(f"nothing in {plural(len(files), 'file')} says anything of a failed job: {shown}")
    logs = found.facts.get(JobLog)
    if len(found.facts) == 1 and isinstance(logs, JobLog) and not (found.reports or found.captures or logs.known):
        names = ", ".join("standard input" if each.name == STDIN else each.name for each in logs.streams[:3])
        raise UsageError(f"{names}: no line there that is known of NCCL, torch or a launcher; give the job's own logs")


def excerpts(causes: Sequence[Cause], files: Sequence[JobFile]) -> tuple[Excerpt, ...]:
    """Return the lines around those of the logs that causes cite; a pipe cannot be read again."""
    by_name = {file.name: file for file in files if not file.once}
    wanted: dict[str, dict[int, None]] = {}
    for cause in causes:
        for each in (*cause.evidence, *(one for what in cause.consequences for one in what.evidence[:1])):
            if each.source in by_name and each.line is not None:
                wanted.setdefault(each.source, {})[each.line] = None
    found = []
    for name, numbers in list(wanted.items())[:_MOST_FILES]:
        lines = _around(by_name[name], sorted(numbers)[:_CITED_IN_ONE])
        found += [_of_log(name, number, lines) for number in list(numbers)[:_CITED_IN_ONE] if number in lines]
    return tuple(found[:MOST])


def _of_log(name: str, number: int, lines: Mapping[int, str]) -> Excerpt:
    near = [at for at in range(number - AROUND, number + AROUND + 1) if at in lines]
    return Excerpt(
        name, "", f"{name}:{number}", tuple(lines[at].expandtabs(4) for at in near), near[0], (near.index(number),)
    )


def _around(file: JobFile, numbers: Sequence[int]) -> dict[int, str]:
    """Return the lines of `file` around `numbers`, by number, reading no further than they stand."""
    wanted = {at for number in numbers for at in range(number - AROUND, number + AROUND + 1)}
    found: dict[int, str] = {}
    number, rest, read = 1, b"", 0
    try:
        for block in Blocks(file):
            read += len(block)
            *whole, rest = (rest + block).split(b"\n")
            if wanted.isdisjoint(range(number, number + len(whole))):
                number += len(whole)
            else:
                for line in whole:
                    if number in wanted:
                        found[number] = line[:LONGEST_LINE].decode(errors="replace").rstrip("\r")
                    number += 1
            rest = rest[-_MOST_READ:]
            if number > max(wanted) or read > _MOST_READ:
                break
        else:
            if number in wanted and rest:
                found[number] = rest[:LONGEST_LINE].decode(errors="replace")
    except UsageError:
        return found  # it was there when it was read; what is gone cannot be shown
    return found


def judged(checks: Sequence[Check], left: Facts, job: Job) -> tuple[Verdict, ...]:
    """Return what the checks say whose facts were given: evidence that is missing makes no rows."""
    given = [check for check in checks if all(n.fact in left or n.accepts_absent for n in check.needs)]
    given = [check for check in given if any(need.fact in left for need in check.needs)]
    verdicts = judge([], given, job, left)
    last = [check for check in checks if any(need.fact is Explained for need in check.needs)]
    log = left.get(JobLog)
    if not isinstance(log, JobLog):
        return verdicts
    survived = {(e.stream, e.line) for e in events_at(log, _failing(verdicts, checks)) if lived_on(log, e)}
    verdicts = tuple(_without(verdict, survived, checks) for verdict in verdicts)
    for check in last:  # each knows what those before it said
        verdicts = (*verdicts, *judge([], [check], job, left | {Explained: _explained(verdicts, checks)}))
    return verdicts


def _without(verdict: Verdict, survived: Collection[tuple[int, int]], checks: Sequence[Check]) -> Verdict:
    """Return a verdict without findings that rest on lines after which their process went on: they ended nothing."""
    kept = tuple(f for f in verdict.findings if not (o := f.occurrence) or (o.stream, o.line) not in survived)
    if kept == verdict.findings:
        return verdict
    passed = replace(verdict, findings=kept, status=verdict.status if kept else Status.PASS)
    return next(check for check in checks if check.id == verdict.id).titled(passed)


def _explained(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> Explained:
    found = _causes(verdicts, checks, {})
    return Explained(
        tuple(each.code for each in found if each.confidence == "named" and each.severity is Severity.FAIL),
        tuple(each.id for each in found if each.confidence != "named"),
        cited_lines(verdicts),
        _failing(verdicts, checks),
        tuple(dict.fromkeys(code for each in found if each.confidence == "narrowed" for code in each.could_be)),
    )


def _without_the_silent(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Return the verdicts but the one that rests on the last lines of ranks that say nothing."""
    return [verdict for verdict in verdicts if verdict.id != "log.rank-fell-silent"]


def _failing(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> frozenset[tuple[int, int]]:
    """Return the lines that speak of a failure: of what fails, and of consequences."""
    consequences = {check.id for check in checks if check.cause and not check.cause.code}
    return frozenset(
        (o.stream, o.line)
        for verdict in verdicts
        for finding in verdict.findings
        if (o := finding.occurrence)
        and (finding.severity is Severity.FAIL or (verdict.id in consequences and finding.severity is Severity.WARN))
    )


def _causes(verdicts: Sequence[Verdict], checks: Sequence[Check], ahead_s: Mapping[str, float]) -> tuple[Cause, ...]:
    found = causes(verdicts, {check.id: check.cause for check in checks if check.cause}, ahead_s)
    return tuple(_with_remedy(each, checks) if each.confidence == "named" else each for each in found)


def _with_remedy(cause: Cause, checks: Sequence[Check]) -> Cause:
    """Return a cause that the table of messages names with the remedy of the one check of the same cause."""
    own = [check for check in checks if check.cause and check.cause.code == cause.code]
    usual = next((check.fix for check in checks if check.id == cause.id), "")
    if cause.id != "log.known-message" or cause.remedy not in ("", usual) or len(own) != 1 or not own[0].cause:
        return cause
    return replace(cause, remedy=own[0].fix, doctor=own[0].cause.doctor)


def _cut_short(log: JobLog) -> Iterator[str]:
    """Yield which logs end within a line of NCCL's, which does not flush what it writes to standard output."""
    cut = {number for number, stream in enumerate(log.streams) if stream.cut_short}
    of_nccl = {event.stream for event in log.events if event.stream in cut and event.host and event.pid}
    names = [log.streams[number].name for number in sorted(of_nccl)]
    if names:
        yield (
            f"{first_of(names, 3)} ends within a line: NCCL does not flush standard output, so that what it "
            "said last is lost; NCCL_DEBUG_FILE=/tmp/nccl.%h.%p keeps it"
        )


def _learn(known: Known) -> Known:
    """Add the facts that files hold, with the files themselves as one of them; of logs what their last attempt says."""
    left = known.facts[JobFiles]
    log = left.facts.get(JobLog)
    last = {JobLog: of_the_last_attempt(log, failed=left.failed)} if isinstance(log, JobLog) else {}
    return replace(known, facts={**known.facts, **left.facts, **last})


def _judge(known: Known) -> Known:
    return replace(known, verdicts=judged(known.question.checks, known.facts, known.job))


_BESIDE = {
    Severity.NOTE: "it may have been slow",
    Severity.WARN: "it may have been slow",
    Severity.FAIL: "this ended nothing, and is worth a look",
}
"""What is said of causes where the job ended well."""


def _conclude(known: Known) -> dict[str, Any]:
    """Return the fields of a report that say why a job failed. One that runs has come to no end."""
    left, verdicts, checks = known.facts[JobFiles], known.verdicts, known.question.checks
    log, records = learned(known.facts, JobLog), FlightRecords in known.facts
    stand = learned(known.facts, Stand)
    times = clocks(log) if log else Clocks()
    found = _causes(verdicts, checks, times.ahead_s)
    failing = _failing(_without_the_silent(verdicts), checks)
    well: tuple[Evidence, ...] = ()
    slow: tuple[str, ...] = ()
    if log and not stand:
        well = () if left.failed or records else ended_well(log, failing)
        slow = tuple(f"{_BESIDE[each.severity]}: {each.message} ({each.code})" for each in found if well)
        if well:
            found = ()
        else:
            likely = likeliest(log, cited_lines(verdicts), failing, harmless, any_level=left.failed, launcher=not found)
            found = with_the_unknown_line(log, found, likely, failing)
    found = with_suspects(found, log, failing) if log else found
    found = found if stand else with_next_steps(found, log, records=records)
    ended = "" if stand else outcome(found, well)
    seen = last_seen(log) if log and not (stand or ended or records) else ()
    stands = standing_still(log, seen) if log and seen else ()
    status, code = _status(found, ended, verdicts, stands=bool(stands))
    return {
        "status": status,
        "exit_code": code if known.question.judging.gates else ExitCode.OK,
        "files": left.kinds,
        "outcome": ended,
        "ended_well": well,
        "last_seen": seen,
        "stands": (*stands, *(stage(log, seen) if log else ())),
        "causes": found,
        "timeline": timeline(log, verdicts, times.ahead_s),
        "ranks": ranks(log, learned(known.facts, FlightRecords)),
        "standing": stand and stand.answer,
        "classes": stand.classes if stand else (),
        "not_understood": (*left.not_understood, *(not_understood(log, verdicts, understood) if log else ())),
        "notes": [*(_of_whole_logs(log, times) if log else ()), *_attempts(left), *slow],
    }


def _status(
    found: Sequence[Cause], ended: str, verdicts: Sequence[Verdict], *, stands: bool
) -> tuple[Status, ExitCode]:
    """Return the status, and the code for ``--exit-code``: of a cause that is named, and of a failure without one."""
    named = {each.severity for each in found if each.confidence == "named"}
    if ended == "ended-well":
        return Status.PASS, ExitCode.OK
    if named:
        return Status.FAIL if Severity.FAIL in named else Status.WARN, ExitCode.FAIL
    if found or stands or any(v.status is Status.UNKNOWN and v.required for v in verdicts):
        return Status.UNKNOWN, ExitCode.INCONCLUSIVE
    return Status.PASS, ExitCode.OK


def _of_whole_logs(log: JobLog, times: Clocks) -> Iterator[str]:
    """Yield what a reader must know of the logs as a whole: whose clocks agree, and what was not read."""
    yield from filter(None, (times.in_words(), *_cut_short(log), *log.unread))


def _attempts(left: JobFiles) -> Iterator[str]:
    log = left.facts.get(JobLog)
    return earlier_attempts(log) if isinstance(log, JobLog) and not left.failed else iter(())


TOPIC = Topic(_judge, _conclude, learn=_learn)
