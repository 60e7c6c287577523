"""Read the bytes of logs into a :class:`~ncclprobe.logs.job_log.JobLog`.

Logs are large and nearly all of their lines are irrelevant: a line is parsed only if it holds one of the texts that
checks search for (:attr:`ncclprobe.model.registry.CauseRule.signs`) or that this module needs itself. Each log is read
by itself, so that processes can share the work (:mod:`ncclprobe.logs.reader_child`); :mod:`ncclprobe.logs.ranks` then
combines them.

:mod:`ncclprobe.logs.paragraphs` joins texts of several lines that form one message.
"""

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from ncclprobe.logs import ranks as log_ranks
from ncclprobe.logs.job_log import ENDINGS, OF_LOCAL, TALK, JobLog, LogEvent, LogStream, Pace, ReadLog
from ncclprobe.logs.lines import has_own_reason
from ncclprobe.logs.paragraphs import HELP_RULE, LAST_ERROR, TRACEBACK, follows, paragraph
from ncclprobe.logs.prefix import Habit, cleaned, habit_of
from ncclprobe.logs.sieve import Whole, sieve
from ncclprobe.logs.texts import (
    ERROR,
    RAISED_CLASS,
    advises,
    begins_anew,
    brings_result,
    claims_end,
    form_of_failure,
    goes_on,
    prints_data,
    refers,
    says_finished,
    was_expected,
)
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import replace

LEAST = 1 << 20
AHEAD = 64 << 10
"""Bytes after a piece that may be looked at: a traceback goes on in the lines that follow."""
_LONG = 16 << 10
_TAIL = 256 << 10
_START, _AROUND = 512, 4096


class _Chunk:
    """The lines of a log that begin before `own`; `data` goes on a little. `first` is the number of the first line."""

    def __init__(self, data: bytes, own: int, first: int) -> None:
        self.data, self.own = data, own
        self._at, self._line = 0, first

    def line_of(self, at: int) -> int:
        """Return the number of the line that begins at `at`, which must not be less than it was before."""
        self._line += self.data.count(b"\n", self._at, at)
        self._at = at
        return self._line

    def following(self, end: int, most: int = 400) -> Iterator[bytes]:
        """Yield the lines after the one that ends at `end`, as far as `data` goes."""
        for _ in range(most):
            begin, end = end + 1, self.data.find(b"\n", end + 1)
            if end < 0:
                if begin < len(self.data):
                    yield self.data[begin:]
                return
            yield window(self.data, begin, end)


class Chunks:
    """The lines of blocks, in pieces of some megabytes; a line longer than that is cut into several pieces.

    After the last piece, `nbytes` and `nlines` say how much there was, and `tail` holds its end.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self.nbytes = self.nlines = 0
        self.tail = b""

    def __iter__(self) -> Iterator[_Chunk]:
        """Yield piece by piece."""
        data, line = b"", 1
        for block in self._blocks:
            self.nbytes += len(block)
            data += block
            if len(data) < LEAST + AHEAD:
                continue
            own = data.rfind(b"\n", 0, len(data) - AHEAD) + 1 or len(data) - AHEAD
            yield (chunk := _Chunk(data, own, line))
            line, data, before = chunk.line_of(own), data[own:], data
            self.tail = b"" if len(data) >= _TAIL else before[own - _TAIL if own > _TAIL else 0 : own]
        data = _unwrapped(data) if line == 1 else data
        self.tail = (self.tail + data)[-_TAIL:]
        if data:
            yield (chunk := _Chunk(data, len(data), line))
            line = chunk.line_of(len(data))
        self.nlines = line - 1 + bool(self.tail and not self.tail.endswith(b"\n"))


_LEAST_WIDTH, _MOST_WIDTH = 60, 260
"""Characters of a window's width."""
_HEADED, _ANY = 2, 3
"""How many lines a window must have cut: of NCCL's and torch's own, and of different ones of any program."""
_MOST = 0.8
"""The share of lines after one of full width that must go on with it."""
_HEAD = r"[\w.-]{1,64}:\d{1,10}:\d{1,10} \[|\[?[IWEFC] ?\d{3,4} \d\d:|\[(?:rank|default)\d{1,6}\]:"
_BEGINS = r"Traceback \(|  File \"|(?:srun|slurmstepd|mpirun): |[\w.]{3,60}(?:Error|Exception|Warning)\b"
_WORD, _BEGINNING = 26, r"(\s*)([^\s\]:|>=,]{0,24}[\]:|>=,]?)"


def _unwrapped(data: bytes) -> bytes:
    """Return a small log with whole lines again if a terminal, or a copy from it, cut all at one width.

    Every line keeps its number: a line that is joined to the one before it becomes empty.
    """
    if max(map(len, data.split(b"\n"))) > 4 * _MOST_WIDTH:
        return data
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    width = _width(lines)
    cut = (_continued(lines, width) if width else {}) or _unclosed(lines)
    for number, begun in cut.items():
        lines[begun] += lines[number]
        lines[number] = ""
    return "\n".join(lines).encode("utf-8", "surrogateescape") if cut else data


_MOST_JOINED = 3
_TOLD = rf"{_HEAD}|\[Rank \d{{1,6}}\] |\[PG "


def _unclosed(lines: Sequence[str]) -> dict[int, int]:
    """Return the lines that go on with one of NCCL's or torch's that ends within parentheses, at a comma."""
    found: dict[int, int] = {}
    for number, line in enumerate(lines):
        if not line.endswith(",") or number in found or not re.match(_TOLD, line):
            continue
        whole = line
        for at in range(number + 1, min(number + 1 + _MOST_JOINED, len(lines))):
            if whole.count("(") <= whole.count(")") or re.match(f"{_TOLD}|{_BEGINS}", lines[at]):
                break
            found[at], whole = number, whole + lines[at]
    return found


def _width(lines: Sequence[str]) -> int:
    """Return the width that lines may have been cut at: hardly any is longer; 0: there is none."""
    longer, lengths = 0, Counter(map(len, lines))
    for length in sorted(lengths, reverse=True):
        if length <= _MOST_WIDTH and lengths[length] >= _HEADED and 3 * longer <= lengths[length]:
            return length if length >= _LEAST_WIDTH else 0
        longer += lengths[length]
    return 0


def _continued(lines: Sequence[str], width: int) -> dict[int, int]:
    """Return the lines that go on with another one, by number, each with that one; none if nothing was cut.

    A line that begins as others do that follow a shorter one is a line of its own: so rows of a table are.
    """
    after = [number for number in range(1, len(lines)) if len(lines[number - 1]) == width and lines[number]]
    bare = [number for number in after if not (re.match(_HEAD, lines[number]) or re.match(_BEGINS, lines[number]))]
    if _MOST * len(after) > len(bare):
        return {}
    forms = {start: _beginning(start) for start in {line[:_WORD] for line in lines}}
    begun = {forms[lines[0][:_WORD]], *(forms[now[:_WORD]] for before, now in pairwise(lines) if len(before) != width)}
    first: dict[int, int] = {}
    for number in bare:
        if forms[lines[number][:_WORD]] not in begun:
            first[number] = first.get(number - 1, number - 1)
    within = sum(not (lines[number - 1][-1].isspace() or lines[number][0].isspace()) for number in first)
    texts = {"".join(filter(str.isalpha, lines[number - 1])) for number in first}
    headed = len(first) >= _HEADED and all(re.match(_HEAD, lines[number]) for number in first.values())
    is_cut = headed or (len(texts) >= _ANY and 2 * within >= len(first))
    return first if is_cut and len(first) >= _MOST * len(after) else {}


def _beginning(start: str) -> str:
    """Return the form of the first word of a line that begins with this, by which lines of one program are alike."""
    found = re.match(_BEGINNING, start)
    return re.sub(r"\d+", "0", f"{bool(found[1])}{found[2]}") if found else ""


def window(data: bytes, begin: int, end: int, hit: int | None = None) -> bytes:
    """Return a line; if it has more than 16 KiB, its beginning and the text around `hit`."""
    if end - begin <= _LONG:
        return data[begin:end]
    around = begin if hit is None else max(hit - _AROUND // 4, begin + _START)
    until = min(around + _AROUND, end)
    after = data[around:until].partition(b" ")[2]  # whole words: half a secret has no form to be known by
    last = after if until == end else after.rpartition(b" ")[0]
    return data[begin : begin + _START].rpartition(b" ")[0] + b" ... " + last


_PASSED_ON, _DURING = b"direct cause of the following exception", b"During handling of the above exception"
_BETWEEN = 400
"""Bytes before a traceback that say whether it is of an exception that another had brought about."""
NamedBytes = tuple[str, Iterable[bytes]]
"""A log: its name, and its bytes in blocks of any length."""

FAILURES = (HELP_RULE,
    "NCCL WARN", "rror", "ERROR", "Traceback", "failed", "Failed", "FAILED", "failure", "Failure", "imed out",
    "imeout", "fatal", "Fatal", "FATAL", "abort", "Abort", "Killed", "killed", "terminate called", "xitcode",
    "exit code", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS", "xception: ", "what(): ", "CANCELLED", "died",
    "marked dead", "is dead", "is terminated", "issing ranks", "xit with status", "ABORT", "BAD TERMINATION",
    "RUNNING AT ", "not accessible", "non-zero status", "low on resource", "heartbeats)", "are waiting for remainder",
    "not enough slots", "unable to reliably start", "lost communication", "Peer host id:",
    "can't open file", "panic", "--- Logging error ---", "ommand not found", "eceived signal", "orwarding signal",
    "not exist", "xpire", "ndefined symbol", "ncompatible", "o space left", "ot permit", "ot allow", "ot install",
    "ot implement", "ot load", "ot respond", "xhaust", "lready in use", "is requir",
    "annot ", "an't ", "nable to ", "ould not ", "o such ", "ot found", "ot detected", "ot supported", "efused",
    "enied", "xceeds", "nvalid ", "nsufficient", "ot enough", "reempt", "nterruption", "nreachable", "NULL value",
    "us error", "egmentation", "arked as dead", "SIGHUP", "SIGINT", "angup", "nauthorized", "ismatch", "orrupt",
    " WARN ", "Powering off", "<warn>", "navailable", "xceeded", "Evicted",
)  # fmt: skip
"""Texts of lines that may speak of a failure, whatever program wrote them.

A text that ends in a frequent letter is searched for slowly: words are cut before it.
"""
_AGAIN = ("estart", "ttempt", "equeu", "esum", "estoring trial", "xpected ", "be retried")
"""The same of lines that say that something is begun again, or was wanted."""

_OWN = ("NCCL version", "- Init START", "- Init COMPLETE", "Bootstrap : Using", "Bootstrap: Using",
        "NET/Socket : Using", "NET/IB : Using", "torch version", "PyTorch version", "world size", "world_size",
        "World size", "World Size", "WORLD_SIZE", "GLOBAL_RANK: ", "MPI size: ")  # fmt: skip
MOST_ALIKE = 32
"""For lines of one log that differ only in digits; MOST_WANTED for those that a check searches for, since each rank may
write one.
"""
MOST_WANTED = 4096
_DIGITS = b"0123456789"
"""Takes what ranks write differently in one message: their numbers and addresses."""
_COUNTED = r"(?<!-)\b(?:global[ _])?(?:step|iter|iteration|batch|epoch|it)s?[ =:#\[]{1,12}(\d{1,12})\b(?!\.\d|\(factor)"
_STEP, _STEP_BEFORE = re.compile(_COUNTED, re.IGNORECASE), re.compile(_COUNTED.encode(), re.IGNORECASE)
_STEP_WITHIN, _BEFORE = 256, 2048
"""How training programs count: ``step 7``, ``iteration:  120/ 500``, ``[global_step=40]``; within this much of a line,
and this many bytes before one. Slurm's ``STEP 7.0`` is not a step.
"""
_SAYS = re.compile(r"\w")
_BARE = re.compile(
    rf"(?:[A-Za-z_][\w.]{{0,120}}(?:Error|Exception)(?::|$)|{RAISED_CLASS}| {{0,4}}what\(\): |panic: |Uncaught "
    r"|thread '[^']{0,64}'.{0,16} panicked.{0,400}[^:]$|Exception in thread \""
    r"|\S{0,256}python[\d.]{0,8}: (?:Error while finding module specification|No module named )"
    r")"
)
_LAST_RAISED = 60
"""An exception without its traceback, as if a log was cut or a C++ program wrote it: in so many last lines it is
taken for what ended the process.
"""
_IGNORED = ("Exception ignored in", "--- Logging error ---")
_OF_RESULTS = re.compile(rb"train|run_?stop|RESULT,|ENDING|pass|\bOK\b|succe|complete|Tasks", re.IGNORECASE)
"""What a line has that brings a result: most ends of logs have none of it."""
_MOST_ATTEMPTS, _EXPECTED_LINES = 64, 10
_TESTED = re.compile(r"Ran \d{1,6} tests? in \d")  # unittest, before OK or FAILED
_SERVED = re.compile(rb'"(?:POST|PUT) [^"]{1,160}" [24]\d\d\b')
_CUT_BY = re.compile(rf"\[rank(\d{{1,7}})\]: ?(?={re.escape(TRACEBACK)})")
_LOOKUPS = ("KeyError", "LookupError", "StopIteration")
_OF_A_CHAIN = ("EXCEPTION", "OUTER", "CAUGHT")
_LAST_WORDS = 12
"""A program's words at its end, within this many last lines."""
MOST_EVENTS = 20_000
"""For one log: half of them the first, half the last."""
_FEW_LAST, _MOST_LAST = 120, 2000
_MOST_PACES = 64
_CHARACTERS_EACH = 320
"""Average over the texts of a log: beyond it, texts are cut to this length, so that memory has a bound."""


class Reader:
    """Reads logs for the lines that hold one of `signs` or speak of a failure; `most` of each log are kept."""

    def __init__(self, signs: Collection[str] = (), most: int = MOST_EVENTS) -> None:
        self.most = most
        self.signs = Whole((*signs, *_OWN))
        self.sieve = sieve((*signs, *FAILURES, *_AGAIN, *_OWN))
        self.any = Whole((*signs, *FAILURES, *_OWN))
        self.shapes = Whole(sign.encode().translate(None, _DIGITS).decode() for sign in (*signs, *_OWN))

    def read_one(self, name: str, blocks: Iterable[bytes]) -> ReadLog:
        """Return the content of one log. Never fails on its content; raises what `blocks` raise."""
        reading, chunks = _Reading(name, self), Chunks(blocks)
        for chunk in chunks:
            reading.begin(chunk.data)
            for begin, end, hit in self.sieve.lines(chunk.data, chunk.own):
                reading.take(chunk, begin, end, hit)
        return reading.end(chunks.tail, chunks.nlines, chunks.nbytes)


class _Reading:
    """One log as far as it has been read."""

    def __init__(self, name: str, reader: Reader) -> None:
        self.log, self._reader = ReadLog(LogStream(name)), reader
        self._habit: Habit | None = None
        self._nchars = 0
        self._raised: set[int] = set()
        """Lines that were read as the end of a traceback: none is reported twice."""
        self._late: deque[LogEvent] = deque(maxlen=(reader.most + 1) // 2)
        self._alike: Counter[bytes] = Counter()
        self._shapes: dict[bytes, bool] = {}
        self._anew: list[tuple[int, int | None]] = []
        """Lines at which the job was started again, and the last step before each."""
        self._result = 0
        """The last line that reports a result of the job."""
        self._by: int | None = None
        """The rank that wrote it."""
        self._tested = False
        self._bars: list[LogEvent] = []
        """The progress bars near its end."""
        self._finished: LogEvent | None = None
        """The last line that reports the end of the job."""

    def begin(self, head: bytes) -> None:
        """Learn from the beginning of the log which prefixes its lines have."""
        if self._habit is None:
            self._habit = habit_of(head)
            self.log.labelled = self._habit.ranks

    def take(self, chunk: _Chunk, begin: int, end: int, hit: int) -> None:
        """Take one line that may say something."""
        raw = window(chunk.data, begin, end, hit)
        shape = raw.translate(None, _DIGITS)
        self._alike[shape] += 1
        if self._alike[shape] > MOST_ALIKE and (self._alike[shape] > MOST_WANTED or not self._wanted(shape, raw)):
            return
        number = chunk.line_of(begin)
        if number in self._raised:
            return
        several = [*cleaned(raw, self._habit or Habit(), number)]
        if several and (prints_data(several[0].text) or advises(several[0].text)):
            return
        for line in several:
            before = None if line.level in TALK else _step_before(chunk.data, begin)
            begins = follows(line)
            wanted = len(several) == 1 or line.level or self._reader.any.holds(line.text.encode())
            if wanted and begins != HELP_RULE:
                self._add(line, before)
            if begins:
                following = self._lines(chunk.following(end), number + 1)
                if begins == TRACEBACK and not line.text.lstrip().startswith(begins):
                    before = None  # it cuts a line: a block of standard output ended there
                link = chunk.data[max(begin - _BETWEEN, 0) : begin] if begins == TRACEBACK else b""
                passed_on = _PASSED_ON in link
                if _DURING in link:
                    _forget_lookup(self.log.events)
                told = [*paragraph(begins, _cut(line), following)]
                if begins == TRACEBACK and not told and self.log.events and self.log.events[-1].line == number:
                    self.log.events[-1] = replace(self.log.events[-1], level="CUT OFF")
                for said in told:
                    self._add(replace(said, level="OUTER") if passed_on else said, before)
                    if said.level in _OF_A_CHAIN or begins in (LAST_ERROR, HELP_RULE):
                        self._raised.add(said.line)
                    for listed in paragraph(follows(said), said, following) if said.text.endswith(":") else ():
                        self._add(listed, before)

    def _wanted(self, shape: bytes, raw: bytes) -> bool:
        """Return whether a check searches for the line; that none does for lines of its shape is remembered."""
        if shape not in self._shapes:
            self._shapes[shape] = shape[:1] == b"{" or self._reader.shapes.holds(shape)
        return self._shapes[shape] and (raw[:1] == b"{" or self._reader.signs.holds(raw))

    def _lines(self, raws: Iterable[bytes], first: int = 1) -> Iterator[LogEvent]:
        numbered = enumerate(raws, start=first)
        return (line for number, raw in numbered for line in cleaned(raw, self._habit or Habit(), number))

    def _add(self, line: LogEvent, step: int | None) -> None:
        if not line.text.strip():
            return
        if not (line.host and line.pid) and begins_anew(line.text):
            self._anew = [*self._anew[-_MOST_ATTEMPTS:], (line.line, step)]
        self._nchars += len(line.text)
        long = self._nchars > self._reader.most * _CHARACTERS_EACH
        event = replace(line, step=step, text=whole_words(line.text, _CHARACTERS_EACH) if long else line.text)
        if len(self.log.events) < self._reader.most // 2:
            self.log.events.append(event)
        else:  # the first of them and the last: a cause is the one or the other
            self.log.dropped += len(self._late) == self._late.maxlen
            self._late.append(event)

    def end(self, tail: bytes, nlines: int, nbytes: int) -> ReadLog:
        """Return the log, with the last line of each rank and what the end of the log shows about it."""
        self.log.events += self._late
        raws = tail.removesuffix(b"\n").split(b"\n")[-_MOST_LAST:]
        self._take_last(raws, nlines)
        self.log.events.sort(key=lambda each: each.line)
        over = self._history()
        bare = max(nlines - _LAST_RAISED, self._finished.line if self._finished else 0)
        self.log.events[:] = [
            _raised(each) if each.line > bare and _is_bare(each) else each for each in self.log.events
        ]
        at_work = self.log.steps and not self._finished and not any(e.level in ENDINGS for e in self.log.events)
        at = (number for number in range(len(raws), 0, -1) if b"HTTP/" in raws[number - 1])
        served = next((number for number in at if _SERVED.search(raws[number - 1])), 0)
        self.log.stream = replace(
            self.log.stream,
            nlines=nlines,
            nbytes=nbytes,
            cut_short=bool(tail) and not tail.endswith(b"\n"),
            finished=self._finished,
            served=nlines - len(raws) + served,
            over=over,
            paces=tuple(self._paces(raws, nlines)) if at_work else (),
            bars=tuple(self._bars),
        )
        _note_expected(self.log.events)
        _resolved(self.log.events)
        return self.log

    def _take_last(self, raws: Sequence[bytes], nlines: int) -> None:
        """Note the last line of each rank, its last step, and whether a line reports the end of the job."""
        came, taken = 0, {event.line for event in self.log.events}
        hint = _OF_RESULTS.search(b"\n".join(raws[-_FEW_LAST:])) is not None
        for line in self._last_lines(raws, nlines):
            if not _SAYS.search(line.text):
                continue
            late = line.line > nlines - _FEW_LAST
            if late and line.line not in taken and form_of_failure(line.text, line.level) >= ERROR:
                self.log.events.append(replace(line, step=self.log.steps.get(-1, (None,))[0]))
            self._note(line)
            if "/s]" in line.text or "%|" in line.text:
                self._bars.append(line)
            result = late and hint and self._weighed(line)
            if result or (line.line > nlines - _LAST_WORDS and says_finished(line.text)):
                self._finished, came = line, self.log.steps.get(-1, (0, 0))[0]
        furthest, at = self.log.steps.get(-1, (0, 0))
        if self._finished and at > self._finished.line and furthest > came:
            self._finished = None  # of a part: the job went on

    def _last_lines(self, raws: Sequence[bytes], nlines: int) -> Iterable[LogEvent]:
        """Return the last lines, more of them if several ranks write the log: each has a last line of its own."""
        few = [*self._lines(raws[-_FEW_LAST:], nlines - len(raws[-_FEW_LAST:]) + 1)]
        ranks = {rank for each in (*self.log.events, *few) for rank in (each.rank, each.local_rank)}
        return self._lines(raws, nlines - len(raws) + 1) if len(ranks - {None}) > 1 else few

    def _note(self, line: LogEvent) -> None:
        """Note a line, and a step that it names, as the last of its writer so far."""
        own = line.rank if line.rank is not None else -1
        if line.rank is None and line.local_rank is not None:
            own = OF_LOCAL - line.local_rank
        step = _step(line.text[:_STEP_WITHIN])
        for writer in {-1, own} if not line.text.startswith(log_ranks.OF_SLURM) else {-1}:
            self.log.last[writer] = line
            if step:
                self.log.steps[writer] = int(step[1]), line.line

    def _weighed(self, line: LogEvent) -> bool:
        """Return whether a line reports success, and note up to which line it outweighs what precedes it.

        A result does up to itself; a mere claim up to the last step: a program that raised after it may not have gone
        on.
        """
        self._tested |= bool(_TESTED.match(line.text))
        if brings_result(line.text) or (self._tested and line.text.startswith("OK")):
            self._result, self._by = line.line, line.rank
            return True
        claimed = claims_end(line.text, logged=line.level == "INFO" and line.time_s is not None)
        if claimed:
            self._result = max(self._result, self.log.steps.get(-1, (0, 0))[1])
        return claimed

    def _history(self) -> int:
        """Return the last line of an attempt that a later one surpassed, or of tests that passed."""
        finished = self._finished.line if self._finished else 0
        came = max(finished, self.log.steps.get(-1, (0, 0))[1])
        made = [(each.line, each.step) for each in self.log.events if self._anew and each.step is not None]
        again = (at for at, before in self._anew if at < came or any(at < n and s != before for n, s in made))
        return max([min([self._result, *self._refuting()]), *again])

    def _refuting(self) -> Iterator[int]:
        """Yield the line before each exception of another rank than the result's, after which none makes a step."""
        for each in self.log.events:
            other = each.level in ("EXCEPTION", "FATAL") and None not in (self._by, each.rank) and each.rank != self._by
            if other and each.line > self.log.steps.get(-1, (0, 0))[1]:
                yield each.line - 1

    def _paces(self, raws: Sequence[bytes], nlines: int) -> Iterator[Pace]:
        """Yield steps of one writer with their times, evenly taken of the last lines."""
        of_steps = [number for number, raw in enumerate(raws) if _STEP_BEFORE.search(raw, 0, _STEP_WITHIN)]
        writer: tuple[object, ...] | None = None
        for number in of_steps[:: len(of_steps) // _MOST_PACES + 1]:
            for line in cleaned(raws[number], self._habit or Habit()):
                found = _STEP.search(line.text[:_STEP_WITHIN])
                if found and line.time_s is not None and writer in (None, (line.rank, line.host)):
                    writer = line.rank, line.host
                    yield Pace(int(found[1]), line.time_s, nlines - len(raws) + 1 + number)


def _step(text: str) -> "re.Match[str] | None":
    """Return the step that a line names; nccl-tests' sizes and numbers in an error are not steps."""
    found = _STEP.search(text)
    return None if found and ("minBytes" in text or form_of_failure(text) >= ERROR) else found


def _forget_lookup(events: list[LogEvent]) -> None:
    """Take the last exception, if it is of a lookup, for one that its handler answers with a better one."""
    last = next((number for number in range(len(events) - 1, -1, -1) if events[number].level == "EXCEPTION"), None)
    if last is not None and events[last].text.startswith(_LOOKUPS):
        events[last] = replace(events[last], level="OUTER")


def _resolved(events: list[LogEvent]) -> None:
    """Take, instead of an exception that only refers to errors above it, the last exception or error above it."""
    for number, each in enumerate(events):
        if each.level == "EXCEPTION" and refers(each.text):
            near = (n for n in range(number) if 0 < each.line - events[n].line <= _LAST_RAISED)
            found = [n for n in near if _is_error(events[n], events[n + 1])]
            raised = [n for n in found if events[n].level == "EXCEPTION"]
            reasons = [n for n in found if has_own_reason(events[n].text)]
            for n in (raised or reasons or found)[-1:]:
                events[number] = replace(each, level="OUTER")
                events[n] = replace(events[n], level="EXCEPTION")


def _is_error(event: LogEvent, below: LogEvent) -> bool:
    """Return whether a line is an error of its own: no line of a traceback, nor the heading of one."""
    head = (below.line, below.place) == (event.line + 1, event.place) and below.text.endswith(f"{TRACEBACK}:")
    own = event.level not in ("OUTER", "CAUGHT", *TALK) and not event.text.rstrip().endswith(":")
    return own and not head and event.text[:1] != " " and form_of_failure(event.text, event.level) >= ERROR


def _note_expected(events: list[LogEvent]) -> None:
    """Take errors for caught ones that a line shortly beneath them calls expected."""
    ignored = [each for each in events if any(words in each.text for words in _IGNORED)]
    for said in ignored:  # by the interpreter at the end of a process, or by a logger that goes on
        beneath = (n for n, e in enumerate(events) if said.line < e.line <= said.line + _LAST_RAISED)
        last = next((n for n in beneath if form_of_failure(events[n].text, events[n].level) >= ERROR), None)
        if last is not None and (events[last].level == "EXCEPTION" or events[last].line == said.line + 1):
            events[last] = replace(events[last], level="CAUGHT")
    wanted = [each.line for each in events if was_expected(each.text)]
    for number, each in enumerate(events) if wanted else ():
        if each.level not in TALK and any(0 < line - each.line <= _EXPECTED_LINES for line in wanted):
            events[number] = replace(each, level="CAUGHT")


def _cut(line: LogEvent) -> LogEvent:
    """Return a line with the rank of the traceback that begins within it and cuts a line of another stream."""
    found = _CUT_BY.search(line.text)
    return replace(line, rank=int(found[1])) if found and line.rank is None else line


def _is_bare(event: LogEvent) -> bool:
    return not event.level and bool(_BARE.match(event.text)) and not goes_on(event.text, "")


def _raised(event: LogEvent) -> LogEvent:
    return replace(event, text=event.text.lstrip().removeprefix("what():").lstrip(), level="EXCEPTION")


def _step_before(data: bytes, at: int) -> int | None:
    """Return the last step shortly before a line; None: there is none."""
    found = _STEP_BEFORE.findall(data, max(at - _BEFORE, 0), at)
    return int(found[-1]) if found else None


def read(logs: Iterable[NamedBytes], signs: Collection[str] = ()) -> JobLog:
    """Return what `logs` say: of each the lines that hold one of `signs` or speak of a failure."""
    reader = Reader(signs)
    return log_ranks.joined([reader.read_one(name, blocks) for name, blocks in logs])
