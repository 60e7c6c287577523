"""Why a rank does not go on, and what to do about it: a table of reasons by their kind, ``reasons.tsv``.

:func:`of_stack` finds the kind by the functions of libraries that a rank is in; other modules find it by the state of
its process, or by the calls of all ranks. The kind goes with the rank into the report, and :func:`advice` goes by it.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.collectives import caller
from ncclprobe.model.causes import RankClass
from ncclprobe.model.findings import Blame
from ncclprobe.model.values import Struct

_TABLE = Path(__file__).with_name("reasons.tsv")
_OF_CHILD, _STOPPED = re.compile(r"its process ([0-9]{1,9}) "), ("is stopped", "are stopped")
_LOOK = "Look at the named line of the program; `py-spy dump --pid PID` shows all of its threads."


class Reason(Struct, frozen=True):
    """Why a rank does not go on: its kind, who is at fault, in words as the rest of a sentence about it, what to do.

    `waits` is empty if only numbers of the rank say it. `frames` are functions of libraries that show it: a part of the
    path, and after ``=`` their names, if other functions there do not.
    """

    kind: str
    blame: Blame
    waits: str
    advice: str
    frames: str = ""


class Doing(Struct, frozen=True):
    """What a rank does, as the rest of a sentence about it, and the kind of why it does not go on; empty: unknown."""

    text: str
    reason: str = ""

    def but(self, text: str) -> "Doing":
        """Return the same with further words."""
        return Doing(f"{self.text}{text}", self.reason)


@cache
def reasons() -> Mapping[str, Reason]:
    """Return the table of reasons by their kind."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    names = ("kind", "blame", "waits", "advice", "frames")
    found = (dict(zip(names, line.split("\t"), strict=True)) for line in lines if line[:1] != "#")
    return {each["kind"]: msgspec.convert(each, Reason) for each in found}


@cache
def _of_libraries() -> Sequence[tuple[str, frozenset[str], str]]:
    """Return path, names of functions, empty: all, and the reason that they show; those with names first."""
    known = [(*frame.partition("=")[::2], each.kind) for each in reasons().values() for frame in each.frames.split()]
    found = [(path, frozenset(names.split("|")) - {""}, kind) for path, names, kind in known]
    return sorted(found, key=lambda each: not each[1])


def waits(kind: str) -> str:
    """Return what a rank waits for, as the rest of a sentence about it."""
    return reasons()[kind].waits


FOR_THREADS = ("thread-item", "thread-queue-full", "thread-event", "thread-condition")
"""Waits for other threads of the program."""
LOCKS = ("extension-build", "lock-file", "process-lock")
"""Waits for what another rank may hold."""
FOR_PROCESSES = ("program", "process-end", "pool", "polls-process")
"""Waits for processes that it has started."""
OF_PROCESSES = (
    *("process-item", "process-queue-full", "process-message", "process-event", "process-lock", "pipe-full"),
    *("data-loader", *FOR_PROCESSES),
)
"""Waits that a process which has ended may explain."""
HALTED = ("storage", "stopped", "traced", "frozen")
"""States from which only somebody else can release a process."""
POLLS = "polls-"
"""What a loop with pauses asks again and again: the beginning of these kinds."""
OTHER_GROUPS = "these may be different groups that are waiting for each other in a circle"
"""About ranks that are in one call of groups which the program made."""


def of_call(call: str) -> str:
    """Return the reason why ranks stay in a call whose arguments have to be equal, or that all have to make equally
    often; empty: it is another call.
    """
    kind = f"in-{call.replace('_', '-')}"
    return kind if kind in reasons() else ""


def of_stack(stack: Sequence[FlightFrame]) -> str:
    """Return the reason by the functions of libraries inside the program's innermost one: of the outermost that is
    known; empty: none is.

    In the program itself that is an operation of torch, or what a loop with pauses asks for.
    """
    own = caller(stack)
    if own is None:
        return ""
    package = "-packages/" in own.filename and "/torch/" not in own.filename
    inner = stack if own.of_library and not package else stack[: [*stack].index(own)]
    for frame in reversed(inner):
        for path, names, reason in _of_libraries():
            if path in frame.filename and (not names or names & {frame.name, frame.function}):
                return reason
    values: Mapping[str, str] = getattr(own, "values", {}) if not inner else {}
    return values.get("asks", "") or ("awaited-operation" if values.get("work") else "")


_DEBUGS = ("pdb", "debugger", "set_trace", "post_mortem")
"""How parts of a function's name end that starts a debugger, such as ``SocketPdb.__init__``."""


def of_debugger(stack: Sequence[FlightFrame]) -> str:
    """Return the reason if a process that waits for a connection is in a debugger, by its program's innermost frame and
    those inside it; empty: it is not, as far as known.
    """
    found, own = of_stack(stack), caller(stack)
    inner = stack[: [*stack].index(own) + 1] if own else ()
    named = any(part.lower().endswith(_DEBUGS) for frame in inner for part in frame.name.split("."))
    return found if found == "debugpy" else "debugger-port" if named or found == "debugger" else ""


def signalled(stack: Sequence[FlightFrame]) -> str:
    """Return that a rank is in the handler of a signal; empty: it is not, as far as known."""
    return "signal-handler" if any("signal" in getattr(frame, "values", {}) for frame in stack) else ""


def advice(row: RankClass) -> tuple[Blame, str]:
    """Return who is at fault by what was seen of ranks, and what to do about just that; empty: what usually helps."""
    found = reasons().get(row.reason)
    if found is not None:
        return found.blame, _of_these(found.advice, row, found.waits)
    if row.name == "desync":
        return "job", ""
    return "job", _of_these(_LOOK, row) if row.processes and row.name in ("stuck outside", "not arrived") else ""


def _of_these(text: str, row: RankClass, waits: str = "") -> str:
    """Return an advice with the process that it is about in place of ``PID``: the rank's, or a child in the row's text.

    Of several ranks it is the first, unless they are on several nodes; `kill -CONT` gets all. `waits` is the text
    of the reason.
    """
    text = text.replace("ONE_RANK", f"rank {row.ranks[0]}" if row.ranks else "one rank")
    pids = [process.rpartition(":")[2] for process in row.processes]
    children = [*_OF_CHILD.finditer(row.doing)]
    of_child = waits and children and row.doing.find(waits) > children[0].start()
    if children and (of_child or "pstree" in text or (row.reason in HALTED and not row.doing.startswith(_STOPPED))):
        pids = [children[0].group(1)]
    if not pids or len(row.nodes) > 1:
        return text
    text = text.replace("-CONT PID", f"-CONT {' '.join(pids)}").replace("-p PID", f"-p {','.join(pids)}")
    return text.replace("PID", pids[0])
