"""Texts of several lines of a log that say one thing, put together.

A traceback becomes one line of level EXCEPTION, such as ``ValueError: no data``, whose place is the frame that raised
it, ``train.py:12 main``. torchrun's summary (torch/distributed/elastic/multiprocessing/errors/__init__.py) becomes one
line of level ROOT CAUSE and some of level FAILURE, such as ``exitcode: -9, Signal 9 (SIGKILL) received by PID 1234``,
each of its rank, host and process. What torch repeats beneath "Last error:" was NCCL's last warning, and has its level.
What Open MPI explains between two rules of dashes (opal/util/show_help.c) becomes one line, its first sentence.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from ncclprobe.logs.job_log import LogEvent
from ncclprobe.logs.prefix import time_at_start
from ncclprobe.logs.texts import RAISED_CLASS, form_of_failure, was_caught
from ncclprobe.model.values import replace

_FRAME = re.compile(r' {1,8}File "([^"]{1,512})", line (\d{1,7})(?:, in (\S{1,128}))?')
_RAISED = re.compile(
    r"[A-Za-z_][\w.]{0,200}(?::|\(\w{1,40}\): |(?<=Error)$|(?<=Exception)$)|[a-z_]\w{0,80}\.[\w.]{1,120}$"
    r"|[A-Z][a-z]\w{0,60}[A-Z]\w{0,60}$"
)
_TAG = re.compile(r"[\[(<]?(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|std(?:out|err))[\])>]?(?: ?[|:-])? {1,8}")
"""A level that a logger writes before each line of what a process prints."""
_CLASS = re.compile(rf"[A-Za-z_][\w.]{{0,120}}(?:Error|Exception|Interrupt|Exit)(?::|$)|{RAISED_CLASS}")
_OF_RAY = re.compile(r"ray\.exceptions\.|[\w.]{1,80}\(\w{1,40}\): ray::")
_WRAPS = re.compile(r"Original Traceback|-- Process \d{1,6} terminated")
"""The line between an exception and the traceback that is its message."""
_MEMBER = re.compile(r" {1,4}(time|host|rank|exitcode|error_file|traceback) {0,8}: (.{0,2000})")
_ITEM = re.compile(r"\[\d{1,6}\]:$")
_OF_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,5})\)")
_EXIT = re.compile(r"(-?\d{1,5}) {1,2}\(pid: (\d{1,10})\)(?: {1,2}\((SIG\w{1,12})\))?")
TRACEBACK = "Traceback (most recent call last)"
_QUOTED = '"""'  # begins the traceback of another process beneath the exception that brings it, and ends it
_SUMMARY = "Root Cause (first observed failure)"
_OTHERS = "Failures:"
_BEGINS = (TRACEBACK, _SUMMARY, _OTHERS)
LAST_ERROR, _PANICKED, _HANDLED = "Last error:", " panicked at ", "errors.error_handler:{"
_NAMELESS, _HEADING = "error:", re.compile(r"(?:[\w.]{1,40}: )?(?:[Ff]atal |FATAL )?(?:[Ee]rror|ERROR):? ?$")
"""A line with only these words: the next one names the error."""
HELP_RULE = "-" * 74
_HELP_LINES = 40
_PROSE = re.compile(r"[A-Z]?[a-z']{1,24}(?: [\w\"'(),.:/-]{1,64}){5}")
_MESSAGE = re.compile(r" {1,8}\"message\": \"(.{1,2000}?)\",?$")
"""torchelastic's error file, which its handler also logs (distributed/elastic/multiprocessing/errors)."""
STACK = "error stack:"
_CALL = re.compile(r"\s{0,8}[\w:<>~]{1,80}\(\d{1,7}\)\.{0,60}: ?(.{0,1000})")
"""MPICH's calls beneath a line that ends so, the innermost last; some say nothing."""
_NO_CLASS = ("Other MPI error", "Unknown error class")
"""What MPICH says of an error that only its innermost call knows."""
_LISTS = ("issing ranks:", "imed out task names:", "stopped sending heartbeats):")
"""Ends of lines beneath which Horovod and JAX list ranks, one a line."""
_LISTED = re.compile(r" {0,8}(?:/job:\w{1,64}/replica:\d{1,7}/task:)?(\d{1,7})(?:$|: ?\[(.{0,400}))")
OF_EACH_OTHER = "each other's: "
"""The heading of ranks that each lack something that another has submitted."""


def follows(line: LogEvent) -> str:
    """Return which text begins with `line`; empty: none."""
    if line.text.endswith(f"{TRACEBACK}:"):  # a line of another stream may be cut by it
        return TRACEBACK
    if line.text.strip() == LAST_ERROR:
        return LAST_ERROR
    if line.text.endswith(_HANDLED):
        return _HANDLED
    if _PANICKED in line.text and line.text.endswith(":"):
        return _PANICKED
    if line.text.rstrip() == HELP_RULE:
        return HELP_RULE
    if _HEADING.match(line.text):
        return _NAMELESS
    if line.text.endswith(STACK):
        return STACK
    begins = next((begin for begin in _BEGINS if line.text.lstrip().startswith(begin)), "")
    return begins or next((end for end in _LISTS if line.text.endswith(end)), "")


def paragraph(begin: str, first: LogEvent, lines: Iterable[LogEvent]) -> Iterator[LogEvent]:
    """Yield the joined message of the `lines` after `first`, with the number of the line that holds it."""
    if begin in _LISTS:
        return _list(first, lines)
    if begin == HELP_RULE:
        return _help(lines)
    if begin == STACK:
        calls = takewhile(lambda each: _CALL.match(each.text), lines)
        said_more = [each for each in calls if (found := _CALL.match(each.text)) and found[1].strip()]
        head = first.text.removesuffix(STACK).rstrip(", ")
        at = first.line if not head.endswith(_NO_CLASS) else 0
        return (
            replace(each, text=f"{head}: {each.text.strip()}", level="ERROR", line=at or each.line)
            for each in said_more[-1:]
        )
    if begin == _NAMELESS:
        below = (each for each in islice(lines, 1) if each.text.strip() and TRACEBACK not in each.text)
        return (replace(each, text=f"{first.text.rstrip()} {each.text.strip()}", level="ERROR") for each in below)
    if begin == _PANICKED:
        said = ((each.line, f"{first.text} {each.text}") for each in islice(lines, 1))
        return (replace(first, line=at, text=text, level="EXCEPTION") for at, text in said)
    if begin == _HANDLED:
        told = ((each.line, found[1]) for each in islice(lines, 8) if (found := _MESSAGE.match(each.text)))
        return (replace(first, line=at, text=text, level="EXCEPTION") for at, text in islice(told, 1))
    if begin == LAST_ERROR:
        return (replace(each, level=each.level or "WARN") for each in islice(lines, 1))
    return _exception(first, lines) if begin == TRACEBACK else _children(lines, root=begin == _SUMMARY)


def _list(first: LogEvent, lines: Iterable[LogEvent]) -> Iterator[LogEvent]:
    """Yield the line with the ranks that are listed beneath it."""
    ranks, lacking = list[str](), set[str]()
    for each in lines:
        if not (found := _LISTED.match(each.text)):
            break
        ranks.append(found[1])
        lacking.add((found[2] or "").partition(",")[0])
    if ranks:
        whose = OF_EACH_OTHER if len(lacking) == len(ranks) > 1 else ""
        yield replace(first, text=f"{first.text} {whose}{', '.join(ranks)}")


def _help(lines: Iterable[LogEvent]) -> Iterator[LogEvent]:
    """Yield the first sentence above the closing rule, and that rule without text: it begins nothing. What is no
    prose, as a table, or has no closing rule, is none of it.
    """
    told = list[LogEvent]()
    for each in islice(lines, _HELP_LINES):
        if each.text.rstrip() == HELP_RULE:
            text = " ".join(one.text.strip() for one in told).partition(". ")[0]
            if _PROSE.match(text):
                yield replace(told[0], text=text, level="ERROR" if form_of_failure(text) else "")
            yield replace(each, text="")
            return
        told.append(each)


def _writer(line: LogEvent) -> tuple[object, ...]:
    return line.rank, line.local_rank, line.host, line.pid


def _exception(first: LogEvent, lines: Iterable[LogEvent]) -> Iterator[LogEvent]:
    """Yield the exception: the first line of the same writer that is not indented. Other writers may come between.

    An exception whose message is the traceback of another, from a worker process or one of Ray's tasks, only passes it
    on.
    """
    if _TAG.match(first.text):
        yield from _logged(first, lines)
        return
    indent = len(first.text) - len(first.text.lstrip())
    place, said = "", list[LogEvent]()
    for each in lines:
        if _writer(each) != _writer(first):
            continue
        text = each.text[indent:] if not each.text[:indent].strip() else each.text
        if found := _FRAME.match(text):
            if said and not _OF_RAY.match(said[0].text):
                break
            yield from _relabel("OUTER", said)
            place, said = f"{found[1]}:{found[2]} {found[3] or ''}".rstrip(), []
        elif said:
            raised = said[0]
            bare = raised.text.rstrip().endswith(":")
            wraps = _WRAPS.match(text) or (bare and text.startswith((TRACEBACK, _QUOTED)))
            if bare and text[:1].isalpha() and not wraps and " " not in raised.text.strip():  # its message begins below
                said = [replace(raised, text=f"{raised.text.rstrip()} {text.strip()}")]
            said = [*_relabel("OUTER" if wraps else "CAUGHT" if was_caught(text) else "", said)]
            break
        elif _RAISED.match(text):
            why = _reason(lines, _writer(first)) if "validation error" in text else ""
            said = [replace(each, text=f"{text}{why}", level="EXCEPTION", place=place)]
            if text.endswith(_LISTS):
                break
        elif text.strip() and not text.startswith(" "):
            break
    yield from said


def _logged(first: LogEvent, lines: Iterable[LogEvent]) -> Iterator[LogEvent]:
    """Yield the exception of a traceback each line of which a logger wrote: none is indented."""
    place = ""
    for each in lines:
        text = _TAG.sub("", each.text, count=1).lstrip()
        if _writer(each) != _writer(first):
            continue
        if found := _FRAME.match(f"  {text}"):
            place = f"{found[1]}:{found[2]} {found[3] or ''}".rstrip()
        elif _CLASS.match(text):
            yield replace(each, text=text, level="EXCEPTION", place=place)
            return
        elif not _TAG.match(each.text) or TRACEBACK in text:
            return


def _relabel(level: str, said: Sequence[LogEvent]) -> Iterator[LogEvent]:
    return (replace(each, level=level or each.level) for each in said)


def _reason(lines: Iterable[LogEvent], writer: tuple[object, ...]) -> str:
    """Return the first reason beneath a pydantic ValidationError: ``  Value error, …``, after a field's name or not."""
    own = (each.text for each in islice(lines, 12) if _writer(each) == writer)
    found = next((text.strip() for text in islice(own, 3) if text.startswith("  ") and "[type=" in text), "")
    return f": {found.partition(' [type=')[0]}" if found else ""


def _children(lines: Iterable[LogEvent], root: bool) -> Iterator[LogEvent]:
    """Yield one line for each rank of the summary, at its exit code; a traceback as the exception it ends with."""
    level, said, at, last = "ROOT CAUSE" if root else "FAILURE", dict[str, str](), 0, LogEvent(0, 0, "")
    for line in lines:
        border = line.text.startswith(("---", "==="))
        if said and (border or _ITEM.match(line.text.strip())):
            yield _child(said, level, replace(last, line=at))
            said = {}
        if border or (line.text and not line.text.startswith((" ", "["))):
            return
        if found := _MEMBER.match(line.text):
            said[found[1]], last = found[2].strip(), line
            at = line.line if not at or found[1] in ("time", "exitcode") else at
        elif said and _RAISED.match(line.text.strip()) and line.text.startswith("  ") and line.text[2:3] != " ":
            said["traceback"] = line.text.strip()
    if said:
        yield _child(said, level, replace(last, line=at))


def _child(said: dict[str, str], level: str, line: LogEvent) -> LogEvent:
    rank, code = _OF_RANK.search(said.get("rank", "")), _EXIT.search(said.get("exitcode", ""))
    timed = time_at_start(said.get("time", "").replace("_", " "))
    why = said.get("traceback", "")
    signal = f" ({code[3]})" if code and code[3] else ""
    text = f"exitcode: {code[1] if code else said.get('exitcode', '?')}{signal}, {why}".rstrip(", ")
    return replace(
        line,
        text=text,
        rank=int(rank[1]) if rank else line.rank,
        host=said.get("host", ""),
        pid=int(code[2]) if code else None,
        time_s=timed[0] if timed else line.time_s,
        level=level,
        place="",
        local_rank=int(rank[2]) if rank else None,
    )
