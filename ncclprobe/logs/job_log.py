"""The lines of a job's logs that say something, and who wrote them: the fact that checks of ``log.`` take.

Lines that differ in digits alone hold the same texts, but for texts that have digits themselves: each text is searched
for once in every form of line, all digits being one there, and not in every line.

Made by :mod:`ncclprobe.logs.reader`.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from ncclprobe.model.findings import Evidence
from ncclprobe.model.values import Same, Struct, field

TALK = ("INFO", "TRACE", "DEBUG")
SUMMARY = ("ROOT CAUSE", "FAILURE")
ENDINGS = ("EXCEPTION", "FATAL", *SUMMARY)
"""Levels of lines: not a failure, torchrun's report of a rank, and those after which a process does not go on."""
_DIGITS = str.maketrans("123456789", "0" * 9)
_KEPT_LOGS, _KEPT_SIGNS, _FEWEST_LINES = 2, 4096, 3


class SignIndex:
    """The numbers of the `texts` that hold a sign, found at its first asking."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._forms: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            self._forms.setdefault(text.translate(_DIGITS), []).append(number)
        self._found: dict[tuple[str, ...], list[int]] = {}

    def having(self, signs: tuple[str, ...]) -> list[int]:
        """Return the numbers of the texts that hold one of `signs`, in their order."""
        found = self._found.get(signs)
        if found is None:
            found = sorted({number for sign in signs for number in self._of(sign)})
            if len(self._found) < _KEPT_SIGNS:
                self._found[signs] = found
        return found

    def _of(self, sign: str) -> list[int]:
        form_of_sign = sign.translate(_DIGITS)
        near = [number for form, numbers in self._forms.items() if form_of_sign in form for number in numbers]
        if not any(char in "0123456789" for char in sign):
            return near
        return [number for number in near if sign in self._texts[number]]


@lru_cache(maxsize=_KEPT_LOGS)
def index_of(events: "Same[tuple[LogEvent, ...]]") -> SignIndex:
    """Return the index of some events, made once for each."""
    return SignIndex([event.text for event in events.value])


class Explained(Struct, frozen=True):
    """`codes` of the causes that were named; `could_be`: those of causes that are narrowed to a few; `open`: ids of the
    checks whose findings leave several causes, or none.

    `lines` are those that a finding rests on: index of the log, and line; `failing`: of them those that speak of a
    failure, and not of what is merely slow.
    """

    codes: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    lines: frozenset[tuple[int, int]] = frozenset()
    failing: frozenset[tuple[int, int]] = frozenset()
    could_be: tuple[str, ...] = ()


class LogEvent(Struct, frozen=True):
    """One line. `text` is what the program wrote: launcher's prefix, time and colours removed, cut at 4,096 characters.

    `stream` is the index of its log in :attr:`JobLog.streams` and `line` its number there, from 1. `time_s` is seconds
    since 1970 by the writer's clock, taken as UTC if the line has no zone. `level` is INFO, WARN, ERROR, FATAL …
    if the line has one; `place` is the source line that NCCL, torch's C++ or glog name, such as
    ``bootstrap.cc:126``. `local_rank` is the number on its node that torchrun's prefix names. None or empty: not known.

    `step` is the last step that its log names shortly before it; None: there is none, or the line is of INFO.

    Texts of several lines are also given as one (:mod:`ncclprobe.logs.paragraphs`): a traceback's exception
    has the level EXCEPTION, OUTER if it only passes on another, CAUGHT if the program reports that it goes on; a
    traceback that ends before its exception has CUT OFF; torchrun's report of a failed rank has ROOT CAUSE or FAILURE.
    """

    stream: int
    line: int
    text: str
    rank: int | None = None
    host: str = ""
    pid: int | None = None
    time_s: float | None = None
    level: str = ""
    place: str = ""
    local_rank: int | None = None
    step: int | None = None


class Pace(Struct, frozen=True):
    """Progress: a program was at `step` at `time_s`, seconds since 1970, by `line` of its log."""

    step: int
    time_s: float
    line: int


class LogStream(Struct, frozen=True):
    """One log as it was given: `name` is its path, ``-`` or a member of an archive.

    `rank`, `host` and `pid` are of the only process that writes it, if that is known. `nlines` lines and `nbytes` bytes
    were read; `cut` gives the reason if not all were. `step` is the last that a line near its end names, in line
    `step_line`; `finished`: a line at its end that reports the end of the job. `cut_short`: its last line has no end,
    as if a process was killed in the middle of a write. `last`: its last line; `paces`: steps of one of its writers
    with their times and lines, if nothing in it reports a failure. `over`: up to this line all belongs to attempts that
    others followed, or that reached a result. `served`: the last line in which a server answers a request. `bars`: the
    progress bars near its end.
    """

    name: str
    nlines: int = 0
    rank: int | None = None
    host: str = ""
    pid: int | None = None
    cut: str = ""
    nbytes: int = 0
    step: int | None = None
    step_line: int = 0
    finished: LogEvent | None = None
    cut_short: bool = False
    last: LogEvent | None = None
    paces: tuple[Pace, ...] = ()
    over: int = 0
    served: int = 0
    bars: tuple[LogEvent, ...] = ()


class RankLog(Struct, frozen=True):
    """What is known of one rank: its host, its log, its last line, and the progress of its communicators.

    `init_started` and `init_complete` count NCCL's ``Init START`` and ``Init COMPLETE`` lines; a log without INFO lines
    has none. `step` is the last that its lines name near the end of its log, in line `step_line`; None: no line names
    one.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    stream: int | None = None
    last: LogEvent | None = None
    init_started: int = 0
    init_complete: int = 0
    step: int | None = None
    step_line: int = 0


class JobLog(Struct, frozen=True):
    """All logs of one job. `events` are in the order of `streams`, and within each in the order of writing.

    `versions`: for ``nccl``, ``torch`` and plugins, every version that a line names, in that order. `world_size`: the
    size of NCCL's largest communicator, otherwise the size in most lines; None: no line has it. `addresses`: the host
    that has an IP address, if a line names both. `unread` counts what the bounds left out, in words.
    """

    streams: tuple[LogStream, ...]
    events: tuple[LogEvent, ...]
    ranks: Mapping[int, RankLog] = field(default_factory=dict)
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    world_size: int | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Return whether any line was understood, or there are enough for a log of some program."""
        enough = any(
            stream.nlines >= _FEWEST_LINES or stream.finished or stream.step is not None for stream in self.streams
        )
        return bool(self.events or self.ranks or self.versions or self.world_size or enough)

    def having(self, *signs: str) -> Iterator[LogEvent]:
        """Yield the events that hold one of `signs`."""
        for number in index_of(Same(self.events)).having(signs):
            yield self.events[number]

    def evidence(self, event: LogEvent) -> Evidence:
        """Return a line as what a finding rests on."""
        return Evidence(self.streams[event.stream].name, event.line, event.text)

    def where(self, event: LogEvent) -> str:
        """Return ``rank 3``, otherwise the host and process, otherwise the log's name: the subject of a finding."""
        if event.rank is not None:
            return f"rank {event.rank}"
        if event.host:
            return f"{event.host}:{event.pid}" if event.pid else event.host
        return self.streams[event.stream].name


OF_LOCAL = -2
"""Added to a local number to make the key of a process of which only that number is known."""


class ReadLog(Struct):
    """One log as it was read: its `stream`, as far as the log itself shows it. `dropped`: lines in its middle.

    `last`: the last line of each rank, and of all under -1; `steps`: the last step that a line names, and that line's
    number, by the same keys. `labelled`: its lines begin with the numbers of srun's tasks.
    """

    stream: LogStream
    events: list[LogEvent] = field(default_factory=list)
    dropped: int = 0
    last: dict[int, LogEvent] = field(default_factory=dict)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    labelled: bool = False
