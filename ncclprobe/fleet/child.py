"""Access the store from a child process: a dead file system blocks the child, and not the command, which owes a
verdict.

The history is asked for with an unfinished report, which is added once it is written.
"""

import os
import time
from pathlib import Path

import msgspec

from ncclprobe.fleet import store
from ncclprobe.fleet.extract import by, refuse, told
from ncclprobe.host.limited_child import LimitedChild, framed, requests
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError, UsageError
from ncclprobe.model.fleet import Added, History
from ncclprobe.model.report import Report, digest
from ncclprobe.model.values import Struct, field

_START_S = 3.0
"""Time for a child to start on a busy node."""


class _Asked(Struct, frozen=True):
    """A report as JSON; `path` of the store; `source`: the place of the report, which the store keeps."""

    path: str
    source: str
    patience_s: float
    add: bool
    report: msgspec.Raw


class _Answer(Struct, frozen=True):
    refused: str = ""
    past: dict[str, History] = field(default_factory=dict)


def past(report: bytes, path: Path, patience_s: float) -> dict[str, History]:
    """Return what the store at `path` would keep of each node of a report, without adding it.

    Raises UsageError or HostError.
    """
    return _ask_child(report, path, "", patience_s, add=False).past


def add(report: bytes, path: Path, source: str, patience_s: float) -> None:
    """Add a report to the store at `path`. Raises UsageError or HostError."""
    _ask_child(report, path, source, patience_s, add=True)


def _ask_child(report: bytes, path: Path, source: str, patience_s: float, *, add: bool) -> _Answer:
    asked = _Asked(str(path.absolute()), source, max(patience_s - _START_S, patience_s / 2), add, msgspec.Raw(report))
    with LimitedChild(__name__) as child:
        try:
            answer = msgspec.json.decode(child.ask(msgspec.json.encode(asked), patience_s), type=_Answer)
        except HostError as error:
            raise type(error)(f"{path}: {error}") from None
    if answer.refused:
        raise UsageError(answer.refused)
    return answer


def serve() -> None:
    """Answer requests on standard input until it closes."""
    with os.fdopen(os.dup(0), "rb") as stream, os.fdopen(os.dup(1), "wb") as answers:
        for request in requests(stream, bounds.REPORT_BYTES):
            answers.write(framed(msgspec.json.encode(_answer(msgspec.json.decode(request, type=_Asked)))))
            answers.flush()


def _answer(asked: _Asked) -> _Answer:
    text = bytes(asked.report).decode()
    try:
        report = msgspec.json.decode(text, type=Report)
        nodes = told(report, asked.source)
        refuse(nodes, asked.source or "this report", time.time())
        with store.opened(Path(asked.path), asked.patience_s, create=True) as fleet:
            fleet.refuse_behind(nodes)
            if not asked.add:
                return _Answer(past=fleet.preview(nodes))
            command = report.command[: bounds.NAME_CHARACTERS]
            fleet.add(nodes, digest(text), Added(time.time(), by(), asked.source, command))
    except (UsageError, msgspec.MsgspecError) as error:
        return _Answer(str(error))
    except OSError as error:
        return _Answer(f"{asked.path}: {error.strerror or error}")
    return _Answer()
