"""The one door through which everything is looked at, and its replacements.

A *question* is a tuple such as ``("read", "/proc/cpuinfo")``, ``("list", "/sys/class/net")``,
``("run", "nvidia-smi", "-L")`` or ``("nvml", "nvmlDeviceGetName", 0)``. The answer is text, JSON where it has
structure, so that a capture can be searched and compared with ordinary tools.

A *capture* is JSON lines (contract.md): a header, then one question and its answer or refusal per line.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from ncclprobe import __version__
from ncclprobe.errors import REFUSALS, HostError, NotCaptured, UsageError

Question = tuple[str | int, ...]
MAX_CAPTURE_BYTES = 256 << 20


class Host(Protocol):
    """Whatever answers questions: a machine, a recording of one, or a test's own dictionary."""

    def ask(self, *question: str | int) -> str:
        """The answer, as text. Raises the HostError that says why there is none."""
        ...


class Recorder:
    """Passes questions on to `host` and keeps every answer and refusal, each question asked once, by any thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turns: dict[Question, threading.Lock] = {}
        self.answers: dict[Question, str | HostError] = {}

    def ask(self, *question: str | int) -> str:
        """The host's answer; the second time, the first one."""
        with self._turns.setdefault(question, threading.Lock()):
            if question not in self.answers:
                try:
                    self.answers[question] = self._host.ask(*question)
                except HostError as refusal:
                    self.answers[question] = refusal
        return _answer(self.answers[question])


class Replay:
    """Answers as a capture says the machine did."""

    def __init__(self, answers: Mapping[Question, str | HostError], node: str = "captured") -> None:
        self._answers = answers
        self.node = node

    def ask(self, *question: str | int) -> str:
        """The captured answer or refusal; NotCaptured for a question that the capture does not hold."""
        if question not in self._answers:
            raise NotCaptured(f"the capture does not hold {' '.join(map(str, question))}")
        return _answer(self._answers[question])


def _answer(said: str | HostError) -> str:
    if isinstance(said, HostError):
        raise type(said)(str(said))
    return said


def dump(answers: Mapping[Question, str | HostError], node: str, origin: str = "real") -> str:
    """The text of a capture: header with the number of rows, then one row per question, in alphabetical order."""
    taken = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rows = sorted(answers.items(), key=lambda row: [str(part) for part in row[0]])
    header = {"capture": 1, "node": node, "taken": taken, "tool": __version__, "origin": origin, "rows": len(rows)}
    return "".join(json.dumps(row) + "\n" for row in (header, *map(_row, rows)))


def _row(item: tuple[Question, str | HostError]) -> dict[str, Any]:
    question, said = item
    if isinstance(said, HostError):
        return {"ask": question, "refused": type(said).__name__, "why": str(said)}
    return {"ask": question, "said": said}


def load(path: Path) -> Replay:
    """The capture in `path`, with the captures it is ``like``. Raises UsageError naming file and line."""
    header, answers = _load(path, ())
    return Replay(answers, node=str(header.get("node") or path.stem))


def _load(path: Path, above: tuple[Path, ...]) -> tuple[dict[str, Any], dict[Question, str | HostError]]:
    if path.resolve() in above:
        raise UsageError(f"{path}: this capture is like itself; remove one of the 'like' rows")
    rows = _rows(path)
    header = rows[0]
    if header.get("capture") != 1:
        raise UsageError(f'{path}: not a capture: its first line lacks "capture": 1; take one with `ncclprobe capture`')
    if header.get("rows", len(rows) - 1) != len(rows) - 1:
        raise UsageError(f"{path}: truncated: {len(rows) - 1} rows of {header['rows']}; copy it again")
    answers: dict[Question, str | HostError] = {}
    for number, row in enumerate(rows[1:], start=2):
        if "like" in row:
            answers = _load(path.parent / str(row["like"]), (*above, path.resolve()))[1] | answers
        elif "sample" not in row:
            question, said = _parse_row(row, f"{path}:{number}")
            answers[question] = said
    return header, answers


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.stat().st_size > MAX_CAPTURE_BYTES:
            raise UsageError(f"{path}: larger than {MAX_CAPTURE_BYTES >> 20} MiB: not a capture of ours")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a capture: it is not UTF-8 text") from None
    rows = [_object(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    if not rows:
        raise UsageError(f"{path}: empty; take a capture with `ncclprobe capture`")
    return rows


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: truncated or not a capture: this line is not JSON") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not a capture: this line is not a JSON object")
    return row


def _parse_row(row: dict[str, Any], where: str) -> tuple[Question, str | HostError]:
    ask, said, refused = row.get("ask"), row.get("said"), row.get("refused")
    if not (isinstance(ask, list) and ask and all(isinstance(part, str | int) for part in ask)):
        raise UsageError(f"{where}: unknown row: no question in it (keys: {_names(row)})")
    if isinstance(said, str):
        return tuple(ask), said
    if isinstance(refused, str) and refused in REFUSALS:
        return tuple(ask), REFUSALS[refused](str(row.get("why", "")))
    raise UsageError(f"{where}: unknown row: neither an answer nor a refusal we know (keys: {_names(row)})")


def _names(row: Iterable[str]) -> str:
    return ", ".join(sorted(row))[:80]
