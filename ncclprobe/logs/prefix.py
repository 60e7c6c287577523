"""Split a line of a log into its prefix (launcher, container, time, colour, NCCL's own head) and the program's words.

Log shippers write a JSON object for each line, with the program's line in one of its members: docker's json-file driver
(``log``, ``time``), journalctl -o json (``MESSAGE``, ``_HOSTNAME``), fluentd and fluent-bit (``log`` or ``message``,
``kubernetes``), Google Cloud Logging (``textPayload``, ``resource.labels``), Loki (``line``), CloudWatch (``message``,
``timestamp`` in ms).

Sources: torch/distributed/elastic/multiprocessing/tail_log.py (``[default3]:``, a local rank), torch's excepthook
(``[rank3]: ``, a global one), srun(1) ``--label``, mpirun(1) ``--tag-output``, Kubernetes' CRI log format, ``kubectl
logs --prefix``, ``docker compose logs``, Ray's driver; NCCL's src/debug.cc.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec

from ncclprobe.logs.job_log import LogEvent
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import Struct, replace

NO_YEAR = 1970
"""The year of a time that names none; :func:`in_year` puts it into the year that other lines name."""

_NAMES = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MONTHS = {name: n for n, name in enumerate(_NAMES.split("|"), start=1)}
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,:](?P<fraction>\d{1,9}))?"
_ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? {1,2})?"
_MONTH = rf"(?P<month>{_NAMES})"
_FORMS = tuple(
    re.compile(rf"\[?{form}\]?(?= |$|[^\w.])")
    for form in (
        rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ,]{_CLOCK} ?{_ZONE}",
        rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}}) {_CLOCK}",
        rf"{_WEEKDAY}{_MONTH} {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK} (?P<year>\d{{4}})",
        rf"{_WEEKDAY}(?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_CLOCK}",
        rf"{_MONTH} {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK}",
        r"(?P<epoch>1\d{9})(?:\.(?P<fraction>\d{1,9}))?",
    )
)
_GLOG = re.compile(
    r"\[?(?P<level>[IWEFC]) ?(?P<month>\d{1,2})(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))? {1,8}(?:\d{1,20} {1,4})?(?P<place>[^\s\]]{1,200}:\d{1,6})\] ?"
)
"""glog, c10 and torch's Python logging: ``[E1122 10:00:00.123456789 ProcessGroupNCCL.cpp:607] `` and
``W1122 10:00:00.123000 139 torch/distributed/run.py:792] ``; c10 writes February as ``2``.
"""
_C10 = re.compile(r"\[?(?P<level>[IWEFC]) (?P<place>[^\s\]]{1,200}:\d{1,6})\] ?")
"""c10 until torch 2.2, without a time: ``[W socket.cpp:601] ``; XLA and TensorFlow, after their time."""
_LEVEL_FIRST = re.compile(
    rf"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} "
    r"\[?(?P<place>[^\s\]]{1,200}:\d{1,6})\] ?"
)
"""vLLM and SGLang: ``ERROR 12-04 11:46:29 [core.py:843] ``."""
_NAMED = re.compile(
    rf"\[[A-Z]\w{{1,24}} (?P<level>[DIWEFC]) (?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} "
    r"(?P<place>[^\s\]]{1,200}:\d{1,6})\] ?"
)
"""NeMo: ``[NeMo E 2026-01-18 07:39:42 exp_manager:423] ``."""

LEVELS = {"D": "DEBUG", "I": "INFO", "W": "WARN", "E": "ERROR", "F": "FATAL", "C": "ERROR"}


def time_at_start(text: str) -> tuple[float, int] | None:
    """Return seconds since 1970 (UTC if no zone is named) and how many characters the time takes; None: no time."""
    if not text[:1] or text[0] not in "[0123456789JFMASOND" + "TW":
        return None
    for form in _FORMS:
        if found := form.match(text):
            when = seconds(found.groupdict())
            return None if when is None else (when, found.end())
    return None


def glog_at_start(text: str) -> tuple[float | None, str, str, int] | None:
    """Return time, level, place and length of glog's head of a line; None: it has none."""
    if found := _GLOG.match(text) or _LEVEL_FIRST.match(text) or _NAMED.match(text):
        return seconds(found.groupdict()), LEVELS[found["level"][0]], found["place"], found.end()
    if found := _C10.match(text):
        return None, LEVELS[found["level"]], found["place"], found.end()
    return None


def seconds(part: dict[str, str | None]) -> float | None:
    """Return seconds since 1970 for the parts of a time; None if there is no such day or hour."""
    fraction = float(f"0.{part.get('fraction') or 0}")
    if part.get("epoch"):
        return int(part["epoch"] or 0) + fraction
    month = part.get("month") or "1"
    day, hour, minute, second = (int(part.get(name) or 0) for name in ("day", "hour", "minute", "second"))
    year = int(part.get("year") or NO_YEAR)
    try:
        when = datetime(year, _MONTHS.get(month) or int(month), day, hour, minute, min(second, 59), tzinfo=timezone.utc)
        return when.timestamp() + fraction - _offset(part.get("zone") or "Z").total_seconds()
    except (ValueError, OverflowError):
        return None


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return timedelta()
    sign = -1 if zone[0] == "-" else 1
    return sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))


def names_year(when: float) -> bool:
    """Return whether a time came with its year."""
    return when >= 366 * 86400


def in_year(when: float, other: float) -> float:
    """Return a time that came without its year in that of `other`."""
    if names_year(when) or not names_year(other):
        return when
    first, year = datetime.fromtimestamp(when, timezone.utc), datetime.fromtimestamp(other, timezone.utc).year
    try:
        return first.replace(year=year).timestamp()
    except ValueError:  # 29 February
        return when


MOST_JSON = 1 << 20
"""Bytes of one object that are decoded; a longer line is read as plain text."""
_MESSAGES = ("log", "message", "msg", "MESSAGE", "textPayload", "line", "@message", "_raw", "text", "event", "body")
_WHY, _LEVEL_NAMES = ("error", "err", "exception", "reason"), ("level", "severity", "levelname")
"""What a logger that names each part of a line has beside its message: why, and how bad."""
_OF_ANYBODY = ("text", "event", "body")
"""Accepted only beside a time, a host or a level: rows of data sets have them too."""
_WITHIN = ("jsonPayload", "fields", "data", "result", "_source", "attributes")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "__REALTIME_TIMESTAMP", "receiveTimestamp", "asctime")
_HOSTS = ("_HOSTNAME", "hostname", "host", "node", "node_name", "nodename", "instance")
_HOSTS_WITHIN = (("kubernetes", "host"), ("kubernetes", "node_name"), ("kubernetes", "pod_name"), ("labels", "node"))


class _ShippedLine(Struct, frozen=True):
    """The program's own line, and the fields of the shipper, or of the program's logger, about it."""

    text: str
    host: str = ""
    time_s: float | None = None
    level: str = ""


def shipped_record(raw: bytes) -> _ShippedLine | None:
    """Return the line in a JSON object; None: this is not an object, or has no line in it."""
    if len(raw) > MOST_JSON:
        return None
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    inner = next((value for name in _WITHIN if isinstance(value := found.get(name), dict)), {})
    text = _string(found, _MESSAGES) or _string(inner, _MESSAGES)
    labels = {*found, *inner}
    anybody = not labels & {*_MESSAGES} - {*_OF_ANYBODY}
    if not text or (anybody and not labels & {*_TIMES, *_HOSTS, "level", "severity"}):
        return None
    host = _string(found, _HOSTS)
    for outer, name in _HOSTS_WITHIN:
        part = found.get(outer)
        host = host or (_string(part, (name,)) if isinstance(part, dict) else "")
    why = _string(found, _WHY) or _string(inner, _WHY)
    level = _string(found, _LEVEL_NAMES).upper()
    level = _AS_LEVELS.get(level, level)
    return _ShippedLine(
        f"{text}: {why}" if why and why not in text else text,
        host[:253],
        _time({**inner, **found}),
        level if level in _LEVELS else "",
    )


def _string(found: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := found.get(name), str) and value.strip()), "")


def _time(found: dict[str, Any]) -> float | None:
    """Return seconds since 1970, of a text or of a number of seconds, milliseconds, micro- or nanoseconds."""
    value = next((found[name] for name in _TIMES if isinstance(found.get(name), str | int | float)), None)
    if isinstance(value, str):
        timed = time_at_start(value)
        if timed:
            return timed[0]
        value = int(value) if value.isdecimal() and len(value) < 20 else None
    if value is None or not 1e9 < value < 1e20:
        return None
    return float(value) / 1000.0 ** ((len(str(int(value))) - 8) // 3 if value >= 1e11 else 0)


MOST_TEXT = 4096
"""Characters of a line that are kept: NCCL cuts its own at 1,023 bytes."""
_MOST_PREFIXES = 10
_MOST_HEADS = 32

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])")
_RANK = re.compile(r"\[(?:rank|RANK):? ?(?P<rank>\d{1,7})\]:? ?")
_TORCHRUN = re.compile(
    r"\[(?!(?:[A-Za-z]|node|host|gpu|server)\d)(?P<role>[A-Za-z_][\w-]{0,40}?)(?P<local>\d{1,5})\]: ?"
)
_MPIRUN = re.compile(
    r"\[(?:[^\[\],\s]{1,256}@)?(?:\d{1,10},)?(?:mpirank:)?(?P<rank>\d{1,7})(?:,(?P<host>[\w.-]{1,253}))?\]"
    r"(?:\[[^\]\s]{0,256}\])?<std\w{3,4}>: ?"
)
"""Open MPI, and SageMaker on it: ``[1,mpirank:7,algo-1]<stderr>:``."""
_PLACE = re.compile(r"\[(?P<place>[\w./-]{1,120}\.(?:py|cc|cpp|cu|h):\d{1,6})\] (?=\S)")
"""vLLM's lines without time and level: ``[multiproc_executor.py:492] ``."""
_CRI = re.compile(r"std(?:out|err) [FP] ")
_POD = re.compile(r"\[pod/(?P<host>[^\s/\]]{1,253})/[^\s\]]{1,253}\] ?")
_COMPOSE = re.compile(r"(?P<host>[A-Za-z0-9][\w.@-]{0,252}) {1,64}\| ")
_WORKER = re.compile(
    r"\((?:Worker_TP|(?:[\w.-]{1,64},? )?rank=|\w{1,64}\[rank=)(?P<rank>\d{1,7})(?:_EP\d{1,7}|\])?,? "
    r"pid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[0-9A-Fa-f.:]{3,45}))?\) ?"
)
"""vLLM's workers, named by their ranks if only tensor parallelism is used; NeMo's and SkyPilot's."""
_SRUN = re.compile(r"srun: error: (?P<host>[A-Za-z0-9][\w.-]{0,252}): (?=tasks? \d)")
_LOST = re.compile(r"srun: error: (?=Node failure on (?P<host>[A-Za-z0-9][\w-]{0,252}))")
_TESTED = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,252}): (?=Test (?:CUDA|NCCL|HIP) failure )")
_PYXIS = re.compile(
    r"slurmstepd(?:-[\w.-]{1,253})?: error: (?P<place>pyxis): {2,8}(?:\[(?P<level>INFO|WARN|ERROR)\] )?(?=\S)"
)
"""enroot's message, as pyxis repeats it."""
_INDENTED = ("File ", "time ", "host ", "rank ", "exitcode ", "error_file", "traceback ")
_RAY = re.compile(
    r"\((?:[^\s()]{1,128} )?(?:pid=(?P<pid>\d{1,10})|raylet|gcs_server|autoscaler[^()]{0,24})"
    r"(?:, ip=(?P<host>[0-9A-Fa-f.:]{3,45}))?\) ?"
)
_OPENMPI = re.compile(
    r"\[(?P<host>[A-Za-z][\w.-]{0,252}):(?P<pid>\d{1,10})\] ?(?=\*\*\* |Signal|\[ ?\d{1,3}\] |PMIX|OPAL|ORTE|PRTE|\[\[)"
)
_BEFORE_2_3 = re.compile(
    r"(?P<host>[A-Za-z0-9][\w.-]{0,252}):(?P<pid>\d{1,10}):\d{1,10} \[-?\d{1,3}\] "
    r"(?:(?P<place>[^\s:]{1,128}:\d{1,6}) )?(?P<level>WARN|INFO) "
)
"""NCCL before it wrote its name in every line."""
_LIBFABRIC = re.compile(r"(?P<place>libfabric):(?P<pid>\d{1,10}):[^<>\s]{1,200}<(?P<level>warn|info|critical)> ?")
_QUOTED = re.compile(r"[ \t>]{0,64}\| ?")
"""A bar at the left: of exception groups, and of tools that show the output of what they ran."""
_NO_LEVEL = r"(?!(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE)\b)"
_SYSLOG = re.compile(
    rf"{_NO_LEVEL}(?P<host>[A-Za-z0-9][\w.-]{{0,252}}) {_NO_LEVEL}"
    r"[\w./@-]{1,64}(?:\[(?P<pid>\d{1,10})\])?: "
)
_KERNEL = re.compile(r"\[ {0,8}\d{1,10}\.\d{6}\](?:\[ ?[TC]\d{1,10}\])? ?")
_OF_A_RANK = ("[Rank ", "[rank")
_GLUED = re.compile(r"(?<=[^\s\[])(?=\[(?:Rank \d{1,7}\] |rank\d{1,7}\]:))")
"""Between the words of two ranks if the line of the first has no end of its own."""
_BAR = re.compile(r"(?:it/s|s/it)(?:, [^\]]{0,120})?\](?=\S)")
"""The end of tqdm's progress bar behind which another writer goes on in the same line."""
_GROUP_RANK = re.compile(r"\[(?:PG [^\]]{1,120} )?Rank (?P<rank>\d{1,7})\]")
_LOGGER = re.compile(
    r"\[(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\|)?[A-Za-z][\w.:/-]{0,80}\] "
    r"(?=\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)"
)
"""torchtitan and transformers: the logger, before the time."""
_LAUNCH = re.compile(
    r"(?:[A-Z]{2,16} |\[[\w.-]{2,40}\]\[)(?P<level>DEBUG|INFO|WARNING|ERROR)"
    r"(?:\] |(?= \d{4}-\d\d-\d\d \d\d:\d\d:\d\d)) ?"
)
"""Paddle's launcher and TensorRT-LLM: ``LAUNCH ERROR 2026-01-02 03:04:05,678 ``, ``[TensorRT-LLM][INFO] ``."""
_PROCESS = re.compile(r"(?P<rank>\d{1,7}) - (?=[A-Za-z_][\w.]{0,120} - )")
"""levanter, after the time: the number of JAX's process, before the logger's name."""
_SPOKEN_RANK = re.compile(r" {0,4}[Rr]ank[ =_#]?(?P<rank>\d{1,7})(?:/\d{1,7})? ?(?:[:|>] ?|- )")
"""What programs themselves write before their words: ``rank 3: step 7``, ``Rank 3/8 | step 7``."""
_LOGGED_WITHIN = 100
"""Characters of a line in which a logger's own words may precede those."""
_BARE_RANK = re.compile(r" {0,6}(?:\[(?P<one>\d{1,7})\](?!<std):? ?|(?P<two>\d{1,7}): ?|r(?P<three>\d{1,5})[ :] ?)")
_BARE_HOST = re.compile(r"(?P<host>[A-Za-z][\w.-]{0,252}|\d{1,3}(?:\.\d{1,3}){3}): ")
_SPOKEN_OF = ("arrier", "GLOBAL_RANK: ", "MPI size: ")
_BARRIER_RANK = re.compile(
    r"(?:store based barrier (?:to initialize process group for|on) rank:?|"
    r"Added key: store_based_barrier_key:\d{1,9} to store for rank:|GLOBAL_RANK:|MPI size: \d{1,7}, MPI local size: "
    r"\d{1,7}, rank:) (?P<rank>\d{1,7})\b"
)
"""Whose process writes of the barrier at the start (torch/distributed/distributed_c10d.py until 2.2), or of how it
joins the others (Lightning, TensorRT-LLM)."""
_LETTER = re.compile(r"(?P<level>[DIWEFC]) (?P<pid>\d{1,10}) \d{1,10}\] ")
"""Ray's processes in C++, after the time: ``[2026-01-02 03:04:05,678 C 39 39] ``."""
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARN", "E": "ERROR", "F": "FATAL", "C": "FATAL"}
_LEVEL = re.compile(r"(?:- )?\[?(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_LEVELS = ("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL", "NOTE")
_COUNTED = ("PROCESS", "RANK", "WORKER", "TASK", "NODE", "GPU", "DEVICE", "STEP", "EPOCH", "ITERATION", "TRAIN", "TEST")
_NO_HOSTS = {*_LEVELS, *_COUNTED, "SRUN", "SLURMSTEPD", "MPIRUN", "MPIEXEC", "KERNEL"}
"""Words before a colon that are not hosts: a level, a launcher, the kernel, what is counted."""
_OF_KERNEL = ("NVRM", "NFS", "DMAR")
"""Parts of the kernel, as it writes them before a colon; a host may well be called nfs."""
_AS_LEVEL = {"WARNING": "WARN", "CRITICAL": "ERROR"}
_AS_LEVELS = {**_AS_LEVEL, **_LETTERS}
_HEADS = ("NCCL INFO ", "NCCL WARN ", "NCCL TRACE ", "NCCL CALL ", "NCCL ERROR ")


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
    if head[:1] == b"{":
        lines = [record.text for line in lines[:-1] if (record := shipped_record(line.encode()))] or lines
    enough = max(2, 0.8 * len(lines))
    return Habit(
        sum(bool(_BARE_RANK.match(line)) for line in lines) >= enough,
        *(_names(form, lines) >= enough for form in (_BARE_HOST, _COMPOSE)),
    )


def _names(form: "re.Pattern[str]", lines: Sequence[str]) -> int:
    """Return how many lines begin with a name, if it is a few names over and over and none of them is a level, nor the
    title of progress bars.
    """
    named = [(match["host"], line) for line in lines if (match := form.match(line))]
    found = [name for name, _ in named]
    few = len(set(found)) <= max(1, len(found) // 3) and not all("%|" in line for _, line in named)
    return len(found) if few and not any(name.upper() in _NO_HOSTS or name in _OF_KERNEL for name in {*found}) else 0


def cleaned(raw: bytes, habit: Habit = Habit(), number: int = 0) -> Iterator[LogEvent]:  # noqa: B008 - frozen
    """Yield the message of line `number` and its writer; if half lines of several writers meet in it, each of them.

    Never fails. Text before a carriage return is a line of its own: a progress bar that was overwritten.
    """
    if raw[:1] == b"{" and (record := shipped_record(raw)):
        outer = LogEvent(0, number, "", host=record.host, time_s=record.time_s, level=record.level)
        texts = record.text
    else:
        outer, texts = LogEvent(0, number, ""), _text(raw)
    if texts.startswith(_OF_A_RANK):
        texts = _GLUED.sub("\r", texts)
    elif "it/s" in texts or "s/it" in texts:
        texts = _BAR.sub("\\g<0>\r", texts)
    for text in texts.replace("\n", "\r").split("\r")[:_MOST_HEADS]:
        rank = None if text.startswith(_OF_A_RANK) else outer.rank
        outer = _prefixes(replace(outer, text=whole_words(text, 4 * MOST_TEXT), rank=rank), habit)
        yield from _messages(outer)


def _text(raw: bytes) -> str:
    text = raw[: 8 * MOST_TEXT].decode("utf-8", "replace").replace("\0", "").lstrip("\ufeff")
    return (_ESCAPES.sub("", text) if "\x1b" in text else text).rstrip()


def _prefixes(line: LogEvent, habit: Habit) -> LogEvent:
    """Return `line` without its prefixes: who wrote it stays if a prefix does not say otherwise."""
    for _ in range(_MOST_PREFIXES):
        shorter = _shorter(line, habit)
        if shorter is None:
            break
        line = shorter
    if line.rank is None and (found := _GROUP_RANK.match(line.text)):
        line = replace(line, rank=int(found["rank"]))
    if (
        line.rank is None
        and any(w in line.text for w in _SPOKEN_OF)
        and (found := _BARRIER_RANK.search(line.text[:512]))
    ):
        line = replace(line, rank=int(found["rank"]))
    if line.rank is None and (at := line.text.find("ank", 1, _LOGGED_WITHIN)) > 1:
        found = _SPOKEN_RANK.match(line.text, at - 1) if _is_logged(line.text[: at - 1]) else None
        line = replace(line, rank=int(found["rank"])) if found else line
    if not line.level and (found := _LEVEL.match(line.text)):
        line = replace(line, level=_AS_LEVEL.get(found[1], found[1]))
    return line


def _is_logged(before: str) -> bool:
    """Return whether a logger's words end before a message, and no error's, which may speak of another rank."""
    return before.endswith(("- ", ": ", "| ", "] ")) and "rror" not in before and "xception" not in before


def _shorter(line: LogEvent, habit: Habit) -> LogEvent | None:
    """Return `line` without its first prefix; None: it has none."""
    text = line.text
    if "|" in text[:65] and (quoted := _QUOTED.match(text)):
        return replace(line, text=text[quoted.end() :])
    if text[:1] in (" ", "\t", ">") and (inner := text.lstrip(" \t>")):  # quoted in a mail or an issue
        return _shorter(replace(line, text=inner), habit) if inner[0] in "[({0123456789" else None
    if found := glog_at_start(text):
        when, level, place, length = found
        return replace(line, text=text[length:], time_s=_first(line.time_s, when), level=level, place=place)
    if timed := time_at_start(text):
        when, length = timed
        rest = text[length:].lstrip(" \t")
        rest = rest[2:] if rest.startswith(("- ", "| ", ": ")) else rest
        if rest.startswith(_INDENTED) and text.startswith("   ", length):
            rest = text[length + 1 :]  # of a traceback or torchrun's summary, which are told by it
        line = replace(line, text=rest, time_s=_first(line.time_s, when))
        syslog = _SYSLOG.match(rest)
        if syslog and not (syslog["pid"] or text[0].isalpha() or text[10:11] == "T"):
            syslog = None  # two words and a colon of anybody's
        if found_after := syslog or _PROCESS.match(rest) or _LETTER.match(rest):
            line = _taken(line, found_after)
        return line
    for form in (_RANK, _LOGGER, _LAUNCH, _TORCHRUN, _MPIRUN, _PLACE, _CRI, _POD, _WORKER, _RAY, _KERNEL, _SRUN, _LOST,
                 _PYXIS, _TESTED, _OPENMPI, _BEFORE_2_3, _LIBFABRIC):  # fmt: skip
        if found_at := form.match(text):
            return _taken(line, found_at)
    if habit.ranks and (found_at := _BARE_RANK.match(text)):
        rank = int(found_at["one"] or found_at["two"] or found_at["three"])
        return replace(line, text=text[found_at.end() :], rank=rank if line.rank is None else line.rank)
    for form, usual in ((_BARE_HOST, habit.hosts), (_COMPOSE, habit.bars)):
        if usual and not line.host and (found_at := form.match(text)):
            return _taken(line, found_at)
    if line.rank is None and (found_at := _SPOKEN_RANK.match(text)):
        return _taken(line, found_at)
    return None


def _taken(line: LogEvent, found: "re.Match[str]") -> LogEvent:
    """Return `line` without the prefix that was found, with the prefix's fields."""
    said = found.groupdict()
    return replace(
        line,
        text=line.text[found.end() :],
        rank=int(said["rank"]) if said.get("rank") else line.rank,
        local_rank=int(said["local"]) if said.get("local") else line.local_rank,
        host=said.get("host") or line.host,
        pid=int(said["pid"]) if said.get("pid") else line.pid,
        level=_AS_LEVELS.get(level := (said.get("level") or "").upper(), level) or line.level,
        place=said.get("place") or line.place,
    )


def _first(one: float | None, other: float | None) -> float | None:
    """Return the outer time if there is one: it names its zone more often, and is one clock for all writers."""
    return other if one is None else one


def _messages(line: LogEvent) -> Iterator[LogEvent]:
    """Yield the message of each of NCCL's heads in a line, and the text before the first."""
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


def _head(text: str, at: int, head: str, line: LogEvent) -> tuple[int, LogEvent]:
    """Return the start of the head ``host:pid:tid [dev] file:line (func) `` before `at`, and whose it is."""
    begin, place = at, ""
    for _ in range(6):
        begin = text.rfind(" ", 0, max(begin - 1, 0)) + 1
        word = text[begin:at].partition(" ")[0]
        host, _, ids = word.partition(":")
        pid, _, tid = ids.partition(":")
        if host and pid.isdecimal() and tid.isdecimal() and len(pid) <= 10:
            time_s, host = line.time_s, host.lstrip("[]>")
            if timed := time_at_start(text[max(begin - 22, 0) : begin].lstrip()):
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
