"""What stands before a program's own words in a line of a log: launcher, container, time, colour, NCCL's own head.

Sources: torch/distributed/elastic/multiprocessing/tail_log.py (``[default3]:``, a local rank), torch's excepthook
(``[rank3]: ``, a global one), srun(1) ``--label``, mpirun(1) ``--tag-output``, Kubernetes' CRI log format, ``kubectl
logs --prefix``, ``docker compose logs``, Ray's driver; NCCL's src/debug.cc.
"""

import re
from collections.abc import Iterator, Sequence

from ncclprobe.facts.files import log_shippers, log_times
from ncclprobe.model.values import Struct, replace
from ncclprobe.units import whole_words

MOST_TEXT = 4096
"""Characters of a line that are kept: NCCL cuts its own at 1,023 bytes."""
_MOST_PREFIXES = 10
_MOST_HEADS = 32

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])")
_RANK = re.compile(r"\[(?:rank|RANK):? ?(?P<rank>\d{1,7})\]:? ?")
_TORCHRUN = re.compile(r"\[(?P<role>[A-Za-z_][\w-]{0,40}?)(?P<local>\d{1,5})\]: ?")
_MPIRUN = re.compile(r"\[(?:[^\[\],\s]{1,256}@)?\d{1,10},(?P<rank>\d{1,7})\](?:\[[^\]\s]{0,256}\])?<std\w{3,4}>: ?")
_CRI = re.compile(r"std(?:out|err) [FP] ")
_POD = re.compile(r"\[pod/(?P<host>[^\s/\]]{1,253})/[^\s\]]{1,253}\] ?")
_COMPOSE = re.compile(r"(?P<host>[A-Za-z0-9][\w.@-]{0,252}) {1,64}\| ")
_WORKER = re.compile(
    r"\((?:Worker_TP|VllmWorker rank=|\w{1,64}\[rank=)(?P<rank>\d{1,7})(?:_EP\d{1,7}|\])? pid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<host>[0-9A-Fa-f.:]{3,45}))?\) ?"
)
"""Of vLLM's workers, which are named by their ranks where there is tensor parallelism alone, and of NeMo's."""
_SRUN = re.compile(r"srun: error: (?P<host>[A-Za-z0-9][\w.-]{0,252}): (?=tasks? \d)")
_LOST = re.compile(r"srun: error: (?=Node failure on (?P<host>[A-Za-z0-9][\w-]{0,252}))")
_TESTED = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,252}): (?=Test (?:CUDA|NCCL|HIP) failure )")
_INDENTED = ("File ", "time ", "host ", "rank ", "exitcode ", "error_file", "traceback ")
_RAY = re.compile(r"\([^\s()]{1,128} pid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[0-9A-Fa-f.:]{3,45}))?\) ?")
_SYSLOG = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,252}) [\w./@-]{1,64}(?:\[(?P<pid>\d{1,10})\])?: ")
_KERNEL = re.compile(r"\[ {0,8}\d{1,10}\.\d{6}\](?:\[ ?[TC]\d{1,10}\])? ?")
_GROUP_RANK = re.compile(r"\[(?:PG [^\]]{1,120} )?Rank (?P<rank>\d{1,7})\]")
_SPOKEN_RANK = re.compile(r" {0,4}[Rr]ank[ =_#]?(?P<rank>\d{1,7})(?:/\d{1,7})? ?(?:[:|>] ?|- )")
"""What programs themselves write before their words: ``rank 3: step 7``, ``Rank 3/8 | step 7``."""
_BARE_RANK = re.compile(r" {0,6}(?:\[(?P<one>\d{1,7})\]:? ?|(?P<two>\d{1,7}): ?)")
_BARE_HOST = re.compile(r"(?P<host>[A-Za-z][\w.-]{0,252}): ")
_LEVEL = re.compile(r"(?:- )?\[?(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_HEADS = ("NCCL INFO ", "NCCL WARN ", "NCCL TRACE ", "NCCL CALL ", "NCCL ERROR ")


class LogLine(Struct, frozen=True):
    """One line without what stood before it; :class:`ncclprobe.facts.files.job_log.LogEvent` explains the fields.

    `local_rank` is the number on its node that torchrun's prefix names.
    """

    text: str
    rank: int | None = None
    host: str = ""
    pid: int | None = None
    time_s: float | None = None
    level: str = ""
    place: str = ""
    local_rank: int | None = None


class Habit(Struct, frozen=True):
    """Prefixes that only their repetition gives away: a number (`srun --label`, Hydra), a host's or container's name
    before a colon (pdsh, clush) or a bar (docker compose).
    """

    ranks: bool = False
    hosts: bool = False
    bars: bool = False


def habit_of(head: bytes) -> Habit:
    """Return which of these prefixes nearly all lines of the start of a log have."""
    lines = [line for line in _text(head[: 64 << 10]).split("\n") if line.strip()][:400]
    enough = max(2, 0.8 * len(lines))
    return Habit(
        sum(bool(_BARE_RANK.match(line)) for line in lines) >= enough,
        *(_names(form, lines) >= enough for form in (_BARE_HOST, _COMPOSE)),
    )


def _names(form: "re.Pattern[str]", lines: Sequence[str]) -> int:
    """Return how many lines begin with a name, if it is a few names over and over and none of them is a level."""
    found = [match["host"] for line in lines if (match := form.match(line))]
    few = len(set(found)) <= max(1, len(found) // 3)
    return len(found) if few and not {*found} & {"INFO", "WARNING", "ERROR", "DEBUG"} else 0


def cleaned(raw: bytes, habit: Habit = Habit()) -> Iterator[LogLine]:  # noqa: B008 - frozen
    """Yield what one line says and who wrote it: of a line in which half lines of several writers meet, each of them.

    Never fails. What stands before a carriage return is a line of its own: a progress bar that was overwritten.
    """
    if raw[:1] == b"{" and (record := log_shippers.record(raw)):
        outer = LogLine("", None, record.host, None, record.time_s)
        texts = record.text
    else:
        outer, texts = LogLine(""), _text(raw)
    for text in texts.replace("\n", "\r").split("\r")[:_MOST_HEADS]:
        outer = _prefixes(replace(outer, text=whole_words(text, 4 * MOST_TEXT)), habit)
        yield from _messages(outer)


def _text(raw: bytes) -> str:
    text = raw[: 8 * MOST_TEXT].decode("utf-8", "replace").replace("\0", "").lstrip("\ufeff")
    return (_ESCAPES.sub("", text) if "\x1b" in text else text).rstrip()


def _prefixes(line: LogLine, habit: Habit) -> LogLine:
    """Return `line` without its prefixes: who wrote it stays where a prefix does not say otherwise."""
    for _ in range(_MOST_PREFIXES):
        shorter = _shorter(line, habit)
        if shorter is None:
            break
        line = shorter
    if line.rank is None and (found := _GROUP_RANK.match(line.text)):
        line = replace(line, rank=int(found["rank"]))
    if not line.level and (found := _LEVEL.match(line.text)):
        line = replace(line, level={"WARNING": "WARN", "CRITICAL": "ERROR"}.get(found[1], found[1]))
    return line


def _shorter(line: LogLine, habit: Habit) -> LogLine | None:
    """Return `line` without its first prefix; None: it has none."""
    text = line.text
    if text[:1] in (" ", "\t", ">") and (inner := text.lstrip(" \t>")):  # quoted in a mail or an issue
        return _shorter(replace(line, text=inner), habit) if inner[0] in "[({0123456789" else None
    if found := log_times.glog_at_start(text):
        when, level, place, length = found
        return replace(line, text=text[length:], time_s=_first(line.time_s, when), level=level, place=place)
    if timed := log_times.time_at_start(text):
        when, length = timed
        rest = text[length:].lstrip(" ")
        rest = rest[2:] if rest.startswith(("- ", "| ", ": ")) else rest
        if rest.startswith(_INDENTED) and text.startswith("   ", length):
            rest = text[length + 1 :]  # of a traceback or torchrun's summary, which are told by it
        line = replace(line, text=rest, time_s=_first(line.time_s, when))
        if found_log := _SYSLOG.match(rest):
            line = _taken(line, found_log)
        return line
    for form in (_RANK, _TORCHRUN, _MPIRUN, _CRI, _POD, _WORKER, _RAY, _KERNEL, _SRUN, _LOST, _TESTED):
        if found_at := form.match(text):
            return _taken(line, found_at)
    if habit.ranks and (found_at := _BARE_RANK.match(text)):
        rank = int(found_at["one"] or found_at["two"])
        return replace(line, text=text[found_at.end() :], rank=rank if line.rank is None else line.rank)
    for form, usual in ((_BARE_HOST, habit.hosts), (_COMPOSE, habit.bars)):
        if usual and not line.host and (found_at := form.match(text)):
            return _taken(line, found_at)
    if line.rank is None and (found_at := _SPOKEN_RANK.match(text)):
        return _taken(line, found_at)
    return None


def _taken(line: LogLine, found: "re.Match[str]") -> LogLine:
    """Return `line` without the prefix that was found, and with what it says."""
    said = found.groupdict()
    return replace(
        line,
        text=line.text[found.end() :],
        rank=int(said["rank"]) if said.get("rank") else line.rank,
        local_rank=int(said["local"]) if said.get("local") else line.local_rank,
        host=said.get("host") or line.host,
        pid=int(said["pid"]) if said.get("pid") else line.pid,
    )


def _first(one: float | None, other: float | None) -> float | None:
    """Return the outer time where there is one: it names its zone more often, and is one clock for all writers."""
    return other if one is None else one


def _messages(line: LogLine) -> Iterator[LogLine]:
    """Yield the message of each head of NCCL's in a line, and what stands before the first."""
    text, start = line.text, 0
    current = line
    for _ in range(_MOST_HEADS):
        at, head = _next_head(text, start)
        if at < 0:
            break
        begin, found = _head(text, at, head, line)
        before = text[start:begin].strip()
        if before:
            yield replace(current, text=whole_words(before, MOST_TEXT))
        current, start = found, at + len(head)
    rest = text[start:].strip() if start else text.rstrip()  # tracebacks and torchrun's summary tell by indentation
    if rest or current is not line:
        yield replace(current, text=whole_words(rest, MOST_TEXT))


def _next_head(text: str, start: int) -> tuple[int, str]:
    if text.find("NCCL ", start) < 0:
        return -1, ""
    places = [(at, head) for head in _HEADS if (at := text.find(head, start)) >= 0]
    return min(places, default=(-1, ""))


def _head(text: str, at: int, head: str, line: LogLine) -> tuple[int, LogLine]:
    """Return where the head ``host:pid:tid [dev] file:line (func) `` before `at` begins, and whose it is."""
    begin, place = at, ""
    for _ in range(6):
        begin = text.rfind(" ", 0, max(begin - 1, 0)) + 1
        word = text[begin:at].partition(" ")[0]
        host, _, ids = word.partition(":")
        pid, _, tid = ids.partition(":")
        if host and pid.isdecimal() and tid.isdecimal() and len(pid) <= 10:
            time_s, host = line.time_s, host.lstrip("[]>")
            if timed := log_times.time_at_start(text[max(begin - 22, 0) : begin].lstrip()):
                time_s, begin = _first(time_s, timed[0]), max(begin - 22, 0)
            return begin, replace(
                line, host=host[:253], pid=int(pid), time_s=time_s, level=head.split()[1], place=place
            )
        name, _, number = word.rpartition(":")
        if name and number.isdecimal():
            place = word[:256]
        if begin == 0:
            break
    return at, replace(line, level=head.split()[1], place=place)
