"""Python stacks of a job's processes, as ``py-spy dump`` writes them, as text or with ``--json``.

    Process 14310: python -u train.py --local_rank=3
    Python v3.11.9 (/usr/bin/python3.11)

    Thread 14310 (idle): "MainThread"
        wait (threading.py:320)
        <module> (train.py:12)

One file may hold many processes; if the lines that begin them are lost, each has one main thread, whose number is that
of the process. The rank of a process is taken from the file's name, a line before the process, its command line, or a
log that names its pid.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.ranks import rank_of_name
from ncclprobe.model.errors import ParseError
from ncclprobe.model.values import Struct

MOST_PROCESSES, MOST_FRAMES = 4096, 512
_PROCESS = re.compile(r"Process (\d{1,10}): (.{0,4000})")
_THREAD = re.compile(r"Thread ((?:0x)?[0-9A-Fa-f]{1,16}) \([\w+]{1,24}\)(?:: \"(.{0,200})\")?")
_MAIN = "MainThread"
_FRAME = re.compile(r"\s{2,16}(\S.{0,400}?) \(([^()]{1,400})\)$")
_LIBRARY = re.compile(r"[\w.+-]{1,200}\.so[\d.]{0,40}$")
"""The place of a frame of `py-spy dump --native`, which has no line."""
_RANK_OF_TP = re.compile(r"(?:^|[^A-Za-z])TP[ _]?(\d{1,6})\b")
_MORE_THAN_TP = re.compile(r"(?:^|[^A-Za-z])(?:DP|PP)[ _]?[1-9]")
_OF_CUDA = re.compile(r"(?:cu(?:da)?[A-Z]|p?nccl[A-Z])\w{2,60}$")
_SAID = re.compile(r"\brank[ _=:]{0,2}(\d{1,6})\b|--(?:local|global|node)?[_-]?rank[= ](\d{1,6})\b", re.IGNORECASE)
_C10D = "torch/distributed/distributed_c10d.py"
_WITHOUT_NAME = ("wrapper", "inner", "_fn")
"""What the decorators of torch.distributed are called."""


class ProcessStack(Struct, frozen=True):
    """One process: the stack of its first thread, or of the thread that is in a call of torch.distributed.

    `line` is the line of its stack in the file; frames are innermost first. `title`: its command line, or its own name
    for itself; empty: not known.
    """

    source: str
    line: int
    pid: int
    rank: int | None = None
    frames: tuple[FlightFrame, ...] = ()
    title: str = ""

    @property
    def call(self) -> str:
        """Return the function of torch.distributed that it is in: the outermost; empty: it is in none."""
        names = [frame.name for frame in self.frames if frame.filename.endswith(_C10D)]
        return next((name for name in reversed(names) if name not in _WITHOUT_NAME), "")

    @property
    def own(self) -> FlightFrame | None:
        """Return the innermost frame of the program itself: py-spy leaves out the folders of libraries."""
        main = next((frame for frame in reversed(self.frames) if frame.name == "<module>"), None)
        python = [frame for frame in self.frames if frame.line]
        outer = main or (python[-1] if python and "/" in python[-1].filename else None)
        top = outer.filename.partition("/")[0] if outer and "/" in outer.filename else None
        mine = (frame for frame in self.frames if frame.line and _is_own(frame.filename, top))
        return next(mine, main or (self.frames[-1] if self.frames else None))

    @property
    def where(self) -> str:
        """Describe its position: the call, or the innermost function, and the program's own line."""
        native = (frame.name for frame in self.frames if not frame.line and _OF_CUDA.match(frame.name))
        inner = next(native, self.frames[0].name if self.frames else "")
        return f"{self.call or inner} ({self.own or ''})"


class Stacks(Struct, frozen=True):
    """The stacks of a job's processes."""

    processes: tuple[ProcessStack, ...]


def _is_own(filename: str, top: str | None) -> bool:
    if filename.startswith("<") or "-packages/" in filename:
        return False
    if "/" in filename:
        return filename.partition("/")[0] == top
    return filename.removesuffix(".py") not in sys.stdlib_module_names


def read_stacks(name: str, data: bytes) -> tuple[ProcessStack, ...]:
    """Return the processes of a file. Raises ParseError if it holds none."""
    text = data.decode("utf-8", "replace")
    found = tuple(_parse_json(name, data) if text.lstrip()[:1] == "[" else _parse_text(name, text))
    if not found:
        raise ParseError("contains no process stack")
    return found


def _parse_text(name: str, text: str) -> Iterator[ProcessStack]:
    pid, title, rank, said, at = -1, "", rank_of_name(name), None, 0
    threads: list[tuple[str, int, list[FlightFrame]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _PROCESS.match(line):
            yield from _process(name, pid, title, rank, threads)
            pid, title, threads, at = int(found[1]), found[2], [], at + 1
            rank = _first((said, _rank_in(found[2]), rank_of_name(name)))
            said = None
            if at > MOST_PROCESSES:
                return
        elif thread := _THREAD.match(line):
            if thread[2] == _MAIN and (pid < 0 or any(title == _MAIN for title, _, _ in threads)):
                yield from _process(name, pid, title, rank, threads)
                pid, title, threads, at = int(thread[1]) if thread[1].isdecimal() else -1, "", [], at + 1
                rank, said = _first((said, rank_of_name(name))), None
                if at > MOST_PROCESSES:
                    return
            threads.append((thread[2] or "", number, []))
        elif threads and (frame := _frame(line)):
            if len(threads[-1][2]) < MOST_FRAMES:
                threads[-1][2].append(frame)
        elif not line.startswith((" ", "Python v")):
            said = _first((_rank_in(line), said))
    yield from _process(name, pid, title, rank, threads)


def _frame(line: str) -> FlightFrame | None:
    """Return the frame that a line is: of Python with its line, of a library without; None: it is none."""
    found = _FRAME.match(line)
    path, _, number = found[2].rpartition(":") if found else ("", "", "")
    if found and path and number.isdecimal() and len(number) <= 7:
        return FlightFrame(found[1], path, int(number))
    return FlightFrame(found[1], found[2], 0) if found and _LIBRARY.match(found[2]) else None


def _process(
    name: str, pid: int, title: str, rank: int | None, threads: Sequence[tuple[str, int, list[FlightFrame]]]
) -> Iterator[ProcessStack]:
    """Yield the process whose threads these are."""
    made = [ProcessStack(name, line, pid, rank, tuple(frames), title) for _, line, frames in threads if frames]
    main = [each for each, (title, _, _) in zip(made, (t for t in threads if t[2]), strict=True) if title == _MAIN]
    yield from [*(each for each in made if each.call), *main, *made][:1]


def _parse_json(name: str, data: bytes) -> Iterator[ProcessStack]:
    try:
        threads = msgspec.json.decode(data, type=list[dict[str, Any]])
        made = [(str(each.get("thread_name") or ""), 1, [*_frames(each["frames"])]) for each in threads]
        pid = int(threads[0].get("pid") or -1) if threads else -1
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError) as error:
        raise ParseError(f"no py-spy stacks: {error}") from None
    yield from _process(name, pid, "", rank_of_name(name), made)


def _frames(frames: Iterable[dict[str, Any]]) -> Iterator[FlightFrame]:
    for each in frames:
        path = str(each.get("short_filename") or each["filename"])
        yield FlightFrame(str(each["name"])[:400], path[:400], int(each["line"]))


def _rank_in(text: str) -> int | None:
    if found := _SAID.search(text[:4000]):
        return int(found[1] or found[2])
    named = None if _MORE_THAN_TP.search(text[:4000]) else _RANK_OF_TP.search(text[:4000])
    return int(named[1]) if named else None


def _first(ranks: Iterable[int | None]) -> int | None:
    return next((rank for rank in ranks if rank is not None), None)
