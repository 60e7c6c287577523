"""From the bytes of logs to a :class:`~ncclprobe.facts.files.job_log.JobLog`.

Logs are large and nearly all of what they hold says nothing: a line is looked at only if it holds one of the texts that
checks search for (:attr:`ncclprobe.model.rules.CauseRule.signs`) or that this module needs itself. Each log is read by
itself, so that processes can share the work; :mod:`ncclprobe.facts.files.log_ranks` then puts all together.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator

from ncclprobe.facts.files import log_blocks, log_paragraphs, log_ranks
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.log_prefix import Habit, LogLine, cleaned, habit_of
from ncclprobe.facts.files.log_sieve import Sieve, Whole
from ncclprobe.model.values import Struct, field, replace

NamedBytes = tuple[str, Iterable[bytes]]
"""A log: its name, and its bytes in blocks of any length."""

FAILURES = (
    "NCCL WARN", "rror", "ERROR", "Traceback", "failed", "Failed", "FAILED", "failure", "Failure", "imed out",
    "imeout", "fatal", "Fatal", "FATAL", "abort", "Abort", "Killed", "killed", "terminate called", "xitcode",
    "exit code", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS",
)  # fmt: skip
"""Texts of lines that may speak of a failure, whatever program wrote them."""

_OWN = ("NCCL version", "- Init START", "- Init COMPLETE", "Bootstrap : Using", "Bootstrap: Using",
        "NET/Socket : Using", "NET/IB : Using", "torch version", "PyTorch version")  # fmt: skip
MOST_ALIKE = 32
"""Of lines of one log that differ in digits alone; of those that a check searches for, of which a rank each may say
one, MOST_WANTED."""
MOST_WANTED = 4096
_DIGITS = b"0123456789"
MOST_EVENTS = 20_000
"""Of one log: half of them the first, half the last."""
_FEW_LAST, _MOST_LAST = 40, 2000
_CHARACTERS_EACH = 320
"""Of the texts of a log on average: beyond that, texts are cut to it, so that memory has a bound."""


class ReadLog(Struct):
    """One log as it was read. `more`: lines like others that were left out; `dropped`: lines in its middle. `last`: its
    last line of each rank, and of all under -1.
    """

    name: str
    events: list[LogEvent] = field(default_factory=list)
    nlines: int = 0
    nbytes: int = 0
    cut: str = ""
    more: int = 0
    dropped: int = 0
    last: dict[int, LogEvent] = field(default_factory=dict)


class Reader:
    """Reads logs for the lines that hold one of `signs` or speak of a failure; `most` of each log are kept."""

    def __init__(self, signs: Collection[str] = (), most: int = MOST_EVENTS) -> None:
        self.most = most
        self.signs = Whole((*signs, *_OWN))
        self.sieve = Sieve((*signs, *FAILURES, *_OWN))
        self.any = Whole((*signs, *FAILURES, *_OWN))
        self.shapes = Whole(sign.encode().translate(None, _DIGITS).decode() for sign in (*signs, *_OWN))

    def read_one(self, name: str, blocks: Iterable[bytes]) -> ReadLog:
        """Return what one log says. Never fails on what it holds; raises what `blocks` raise."""
        reading, chunks = _Reading(name, self), log_blocks.Chunks(blocks)
        for chunk in chunks:
            reading.begin(chunk.data)
            for begin, end, hit in self.sieve.lines(chunk.data, chunk.own):
                reading.take(chunk, begin, end, hit)
        reading.end(chunks.tail, chunks.nlines)
        reading.log.nbytes = chunks.nbytes
        return reading.log


class _Reading:
    """One log as far as it has been read."""

    def __init__(self, name: str, reader: Reader) -> None:
        self.log, self._reader = ReadLog(name), reader
        self._habit: Habit | None = None
        self._nchars = 0
        self._raised: set[int] = set()
        """Lines that were read as the end of a traceback: none is told twice."""
        self._late: deque[LogEvent] = deque(maxlen=(reader.most + 1) // 2)
        self._alike: Counter[bytes] = Counter()
        self._shapes: dict[bytes, bool] = {}

    def begin(self, head: bytes) -> None:
        """Learn from the beginning of the log which prefixes its lines have."""
        if self._habit is None:
            self._habit = habit_of(head)

    def take(self, chunk: log_blocks.Chunk, begin: int, end: int, hit: int) -> None:
        """Take one line that may say something."""
        raw = log_blocks.window(chunk.data, begin, end, hit)
        shape = raw.translate(None, _DIGITS)
        self._alike[shape] += 1
        if self._alike[shape] > MOST_ALIKE and (self._alike[shape] > MOST_WANTED or not self._wanted(shape, raw)):
            self.log.more += 1
            return
        number = chunk.line_of(begin)
        if number in self._raised:
            return
        several = [*cleaned(raw, self._habit or Habit())]
        for line in several:
            if len(several) == 1 or line.level or self._reader.any.holds(line.text.encode()):
                self._add(number, line)
            if begins := log_paragraphs.follows(line):
                following = self._lines(enumerate(chunk.following(end), start=number + 1))
                for at, said in log_paragraphs.paragraph(begins, line, following):
                    self._add(at, said)
                    self._raised |= {at} if said.level == "EXCEPTION" else set()

    def _wanted(self, shape: bytes, raw: bytes) -> bool:
        """Return whether a check searches for the line; that none does for lines of its shape is remembered."""
        if shape not in self._shapes:
            self._shapes[shape] = shape[:1] == b"{" or self._reader.shapes.holds(shape)
        return self._shapes[shape] and (raw[:1] == b"{" or self._reader.signs.holds(raw))

    def _lines(self, raws: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, LogLine]]:
        return ((number, line) for number, raw in raws for line in cleaned(raw, self._habit or Habit()))

    def _add(self, number: int, line: LogLine) -> None:
        if not line.text.strip():
            return
        self._nchars += len(line.text)
        if self._nchars > self._reader.most * _CHARACTERS_EACH:
            line = replace(line, text=line.text[:_CHARACTERS_EACH])
        if len(self.log.events) < self._reader.most // 2:
            self.log.events.append(_event(number, line))
        else:  # the first of them and the last: a cause is the one or the other
            self.log.dropped += len(self._late) == self._late.maxlen
            self._late.append(_event(number, line))

    def end(self, tail: bytes, nlines: int) -> None:
        """Note the last line of each rank, and of the log."""
        self.log.nlines = nlines
        self.log.events += self._late
        raws = tail.removesuffix(b"\n").split(b"\n")[-_MOST_LAST:]
        few = raws[-_FEW_LAST:]
        writers = {line.rank for _, line in self._lines(enumerate(few))} | {event.rank for event in self.log.events}
        if len(writers - {None}) > 1:  # several ranks in one log: each has a last line of its own
            few = raws
        for number, line in self._lines(enumerate(few, start=nlines - len(few) + 1)):
            if line.text.strip():
                self.log.last[-1] = event = _event(number, line)
                if line.rank is not None:
                    self.log.last[line.rank] = event


def _event(number: int, line: LogLine) -> LogEvent:
    return LogEvent(
        0, number, line.text, line.rank, line.host, line.pid, line.time_s, line.level, line.place, line.local_rank
    )


def read(logs: Iterable[NamedBytes], signs: Collection[str] = ()) -> JobLog:
    """Return what `logs` say: of each the lines that hold one of `signs` or speak of a failure."""
    reader = Reader(signs)
    return log_ranks.joined([reader.read_one(name, blocks) for name, blocks in logs])
