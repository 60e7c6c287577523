"""Texts of several lines that say one thing: Python's tracebacks, and what torchrun says of the ranks that failed.

A traceback becomes one line of level EXCEPTION, such as ``ValueError: no data``, whose place is the frame that raised
it, ``train.py:12 main``. torchrun's summary (torch/distributed/elastic/multiprocessing/errors/__init__.py) becomes one
line of level ROOT CAUSE and some of level FAILURE, such as ``exitcode: -9, Signal 9 (SIGKILL) received by PID 1234``,
each of its rank, host and process.
"""

import re
from collections.abc import Iterable, Iterator

from ncclprobe.facts.files.log_prefix import LogLine
from ncclprobe.facts.files.log_times import time_at_start
from ncclprobe.model.values import replace

_FRAME = re.compile(r' {1,8}File "([^"]{1,512})", line (\d{1,7})(?:, in (\S{1,128}))?')
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,200}(?::|$)")
_MEMBER = re.compile(r" {1,4}(time|host|rank|exitcode|error_file|traceback) {0,8}: (.{0,2000})")
_ITEM = re.compile(r"\[\d{1,6}\]:$")
_OF_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,5})\)")
_EXIT = re.compile(r"(-?\d{1,5}) {1,2}\(pid: (\d{1,10})\)(?: {1,2}\((SIG\w{1,12})\))?")
_TRACEBACK = "Traceback (most recent call last)"
_SUMMARY = "Root Cause (first observed failure)"
_OTHERS = "Failures:"
BEGINS = (_TRACEBACK, _SUMMARY, _OTHERS)


def follows(line: LogLine) -> str:
    """Return which text begins with `line`; empty: none."""
    if line.text.endswith(f"{_TRACEBACK}:"):  # a line of another stream may be cut by it
        return _TRACEBACK
    return next((begin for begin in BEGINS if line.text.lstrip().startswith(begin)), "")


def paragraph(begin: str, first: LogLine, lines: Iterable[tuple[int, LogLine]]) -> Iterator[tuple[int, LogLine]]:
    """Yield what the `lines` after `first`, with their numbers, say together, and in which line it stands."""
    return _exception(first, lines) if begin == _TRACEBACK else _children(lines, root=begin == _SUMMARY)


def _writer(line: LogLine) -> tuple[object, ...]:
    return line.rank, line.local_rank, line.host, line.pid


def _exception(first: LogLine, lines: Iterable[tuple[int, LogLine]]) -> Iterator[tuple[int, LogLine]]:
    """Yield the exception: the first line of the same writer that is not indented. Other writers may come between."""
    indent = len(first.text) - len(first.text.lstrip())
    place = ""
    for number, line in lines:
        if _writer(line) != _writer(first):
            continue
        text = line.text[indent:] if not line.text[:indent].strip() else line.text
        if found := _FRAME.match(text):
            place = f"{found[1]}:{found[2]} {found[3] or ''}".rstrip()
        elif _RAISED.match(text):
            yield number, replace(line, text=text, level="EXCEPTION", place=place)
            return
        elif text.strip() and not text.startswith(" "):
            return


def _children(lines: Iterable[tuple[int, LogLine]], root: bool) -> Iterator[tuple[int, LogLine]]:
    """Yield one line for each rank of the summary, at its exit code; a traceback as the exception it ends with."""
    level, said, at, last = "ROOT CAUSE" if root else "FAILURE", dict[str, str](), 0, LogLine("")
    for number, line in lines:
        border = line.text.startswith(("---", "==="))
        if said and (border or _ITEM.match(line.text.strip())):
            yield at, _child(said, level, last)
            said = {}
        if border or (line.text and not line.text.startswith((" ", "["))):
            return
        if found := _MEMBER.match(line.text):
            said[found[1]], last = found[2].strip(), line
            at = number if not at or found[1] in ("time", "exitcode") else at
        elif said and _RAISED.match(line.text.strip()) and line.text.startswith("  ") and line.text[2:3] != " ":
            said["traceback"] = line.text.strip()
    if said:
        yield at, _child(said, level, last)


def _child(said: dict[str, str], level: str, line: LogLine) -> LogLine:
    rank, code = _OF_RANK.search(said.get("rank", "")), _EXIT.search(said.get("exitcode", ""))
    timed = time_at_start(said.get("time", "").replace("_", " "))
    why = said.get("traceback", "")
    signal = f" ({code[3]})" if code and code[3] else ""
    text = f"exitcode: {code[1] if code else said.get('exitcode', '?')}{signal}, {why}".rstrip(", ")
    return LogLine(
        text,
        int(rank[1]) if rank else line.rank,
        said.get("host", ""),
        int(code[2]) if code else None,
        timed[0] if timed else line.time_s,
        level,
        "",
        int(rank[2]) if rank else None,
    )
