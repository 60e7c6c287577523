"""Captures: a machine's questions and answers, saved and replayed.

A *capture* is JSON lines (docs/reference/files.md): a header, then one question and its answer or refusal per line.
"""

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from ncclprobe import __version__
from ncclprobe.host import SAMPLE, Host, Question, files
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, HostError, NotCaptured, OutOfTime, UsageError

Answers = Mapping[Question, str | HostError]
_Recorded = dict[tuple[int | None, Question], str | HostError]
"""The content of a capture: by rank that asked (None: the node), then by question."""

NOT_SHOWN = "the pasted texts do not show it"
_CUT = "cut"
_PASTED = "pasted"
"""The name of the node that pasted texts describe."""
_MOST_ROWS = 8192
"""Cached rows: of a node's thousand, all but some dozens are the same on every node of a fleet."""


class Recorder:
    """Forwards questions to `host` and records every answer and refusal; each question is asked once, from
    any thread.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turns: dict[Question, threading.Lock] = {}
        self.answers: dict[Question, str | HostError] = {}

    def ask(self, *question: str | int) -> str:
        """Return the host's answer; repeated questions get the first answer."""
        with self._turns.setdefault(question, threading.Lock()):
            if question not in self.answers:
                try:
                    self.answers[question] = self._host.ask(*question)
                except HostError as refusal:
                    self.answers[question] = refusal
        return _answer(self.answers[question])


_LONGEST_TIME = 40


class Replay:
    """Answers questions from a capture.

    `older`: an older ncclprobe took the capture and could not know every current question. `ranks` are the answers that
    ranks of that node got for themselves. `taken`: when, in ISO 8601; empty if its first line lacks it. `pasted`: the
    answers come from pasted texts. `cut`: how much of the capture is left, if it was cut; what it lacks is then unknown
    for this reason.
    """

    def __init__(
        self,
        answers: Answers,
        node: str = "captured",
        older: bool = True,
        ranks: Mapping[int, Answers] | None = None,
        taken: str = "",
        pasted: bool = False,
        cut: str = "",
    ) -> None:
        self.answers = answers
        self.taken = taken
        self.pasted = pasted
        self.cut = cut
        self._older = older
        self.node = node
        self.ranks = {rank: Replay(own, f"{node} rank {rank}", older, cut=cut) for rank, own in (ranks or {}).items()}

    def with_answers(self, answers: Answers) -> "Replay":
        """Return this capture with other answers of the node."""
        if answers is self.answers:
            return self
        return Replay(answers, self.node, self._older, taken=self.taken, pasted=self.pasted, cut=self.cut)

    def ask(self, *question: str | int) -> str:
        """Return the captured answer. Raises the captured refusal."""
        return _answer(self.recorded(question))

    def recorded(self, question: Question) -> str | HostError:
        """Return the captured answer or refusal.

        A missing question is NotCaptured if an older version took the capture, or if no run measured that sample. It is
        OutOfTime if the capture was cut.
        """
        found = self.answers.get(question)
        if found is not None:
            return found
        asked = " ".join(map(str, question))
        if question[0] == SAMPLE:
            return NotCaptured(f"this run did not try it ({asked}): `ncclprobe doctor` on all nodes does")
        if self.pasted:
            return NotCaptured(NOT_SHOWN)
        if self.cut:
            return OutOfTime(self.cut)
        if self._older:
            return NotCaptured(f"the capture does not contain {asked}")
        return OutOfTime(f"the capture should contain {asked} but does not: it was changed")


def _answer(recorded: str | HostError) -> str:
    if isinstance(recorded, HostError):
        raise type(recorded)(str(recorded))
    return recorded


def dump(answers: Answers, node: str, origin: str = "real", ranks: Mapping[int, Answers] | None = None) -> str:
    """Return the text of a capture: a header with the number of rows, then one row per question, sorted.

    The rows of each rank follow. Questions that were not measured (NotCaptured) have no row.
    """
    taken = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rows = _rows_of(answers) + [row | {"rank": rank} for rank, own in (ranks or {}).items() for row in _rows_of(own)]
    header = {"capture": 1, "node": node, "taken": taken, "tool": __version__, "origin": origin, "rows": len(rows)}
    return "".join(json.dumps(row) + "\n" for row in (header, *rows))


def _rows_of(answers: Answers) -> list[dict[str, Any]]:
    known = [row for row in answers.items() if not isinstance(row[1], NotCaptured)]
    return [_row(row) for row in sorted(known, key=lambda row: [str(part) for part in row[0]])]


def _row(item: tuple[Question, str | HostError]) -> dict[str, Any]:
    question, recorded = item
    if isinstance(recorded, HostError):
        return {"ask": question, "refused": type(recorded).__name__, "why": str(recorded)}
    if question[0] == SAMPLE:
        return {SAMPLE: {str(question[1]): json.loads(recorded)}}
    return {"ask": question, "said": recorded}


def save(path: Path, text: str) -> None:
    """Write a capture to `path`, readable only by its owner; overwrites only another capture. Raises UsageError."""
    files.write(path, text, private=True, ours=_is_capture)


def _is_capture(text: str) -> bool:
    try:
        parse(text, "")
    except UsageError:
        return False
    return True


def load(path: Path) -> Replay:
    """Load the capture in `path`, with the captures that its ``like`` rows name. Raises UsageError naming file and
    line.
    """
    header, answers = _load(path, (), {})
    return _replay(header, answers, str(header.get("node") or path.stem), str(path), header[_CUT])


def received(path: Path, node: str) -> Replay:
    """Load a capture that another node sent, which may not refer to other files. Raises UsageError naming the line."""
    return parse(files.read(path, limit=bounds.CAPTURE_BYTES), f"the capture of {node}", node)


def is_overlay(path: Path) -> bool:
    """Return whether `path` is a capture with rows of other files. Raises UsageError if it cannot be read."""
    if not files.read_start(path, limit=4096).lstrip().startswith("{"):
        return False
    try:
        _, lines = _lines(files.read(path, limit=bounds.CAPTURE_BYTES), str(path))
    except UsageError:  # JSON of another kind, which `load` refuses as well
        return False
    return any(map(_names_another, lines))


def _names_another(line: str) -> bool:
    try:
        return "like" in _object(line, "")
    except UsageError:  # a damaged row names nothing
        return False


def second(file: str, node: str) -> UsageError:
    """Return the error for a second capture of one node."""
    return UsageError(f"{file}: a second capture of node {node}; `ncclprobe compare OLD NEW` says what changed")


def is_text(path: Path) -> bool:
    """Return whether a file is neither a capture nor a report of ours. Raises UsageError."""
    begins = files.read_start(path, limit=4096).lstrip()
    return not (begins.startswith("{") and ('"capture"' in begins or '"ncclprobe' in begins))


def machines(paths: Iterable[Path]) -> Iterator[tuple[str, Replay]]:
    """Yield each captured machine with its file; pasted texts (`ibstat`, `env` …) together count as one more.

    Raises UsageError for a file that is neither, and for pastes that contradict each other.
    """
    from ncclprobe.host import pasted  # and with it the patterns of all that people paste

    pastes: dict[str, dict[str, dict[Question, str | HostError]]] = {}
    for path in paths:
        shown = pasted.forms(files.read(path, limit=bounds.CAPTURE_BYTES)) if is_text(path) else {}
        if not shown:
            yield str(path), load(path)
        for host, own in shown.items():
            pastes.setdefault(host, {}).update({f"{path} ({form})": answers for form, answers in own.items()})
    for host, parts in pastes.items():
        answers, odd = pasted.joined(parts)
        if odd:
            raise UsageError(f"{odd[0]}: give texts of one machine at one time")
        yield ", ".join(parts), Replay({**pasted.NO_SETTINGS, **answers}, host or _PASTED, pasted=True)


def parse(text: str, name: str, node: str = "") -> Replay:
    """Parse a capture from another process, which may not be a file of ours at all.

    `name` identifies it in a UsageError; `node` is the node's name if the job knows a better one.
    """
    header, lines = _lines(text, name)
    if header[_CUT]:
        raise UsageError(f"{name}: truncated: {header[_CUT]}; copy it again")
    answers: _Recorded = {}
    for number, line in enumerate(lines, start=2):
        answers.update(_parse_line(line) or _parse_row(_object(line, f"{name}:{number}"), f"{name}:{number}"))
    return _replay(header, answers, node or str(header.get("node") or name), name)


def _replay(header: dict[str, Any], recorded: _Recorded, node: str, name: str, cut: str = "") -> Replay:
    """Split a capture called `name` by the rank that asked. Raises UsageError."""
    ranks: dict[int, dict[Question, str | HostError]] = {}
    answers: dict[Question, str | HostError] = {}
    for (rank, question), answer in recorded.items():
        (answers if rank is None else ranks.setdefault(rank, {}))[question] = answer
        if len(ranks) > bounds.CAPTURE_RANKS:
            raise UsageError(f"{name}: has rows of more than {bounds.CAPTURE_RANKS} ranks, more than any node runs")
    return Replay(answers, node, _is_older(header.get("tool")), ranks, _parse_time(header.get("taken")), cut=cut)


def _parse_time(said: object) -> str:
    """Return the time in a header, in UTC; empty if it is unreadable."""
    try:
        time = datetime.fromisoformat(str(said)[:_LONGEST_TIME].replace("Z", "+00:00"))
        return time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return ""


def _is_older(tool: object) -> bool:
    """Return whether `tool`, a version such as 0.1.0, is older than this one."""
    numbers, ours = (re.findall(r"\d{1,6}", str(version)) for version in (tool, __version__))
    return bool(numbers) and list(map(int, numbers)) < list(map(int, ours))


def _load(path: Path, above: tuple[Path, ...], loaded: dict[Path, _Recorded]) -> tuple[dict[str, Any], _Recorded]:
    """Load header and answers of `path`. `above` are the captures that led to it by `like` rows; `loaded`
    is the cache.
    """
    if above and path.resolve() in above:
        raise UsageError(f"{path}: its 'like' rows form a circle; remove one")
    if len(above) > bounds.LIKES:
        raise UsageError(f"{path}: more than {bounds.LIKES} captures in a chain of 'like' rows; shorten it")
    header, lines = _lines(files.read(path, limit=bounds.CAPTURE_BYTES), str(path))
    answers: _Recorded = {}
    likes = 0
    for number, line in enumerate(lines, start=2):
        known = _parse_line(line)
        if known:
            answers.update(known)
            continue
        row = _object(line, f"{path}:{number}")
        if "like" in row:
            likes += 1
            other = _neighbouring_capture(path, row["like"], f"{path}:{number}", likes)
            if other.resolve() not in loaded:
                loaded[other.resolve()] = _load(other, (*above, path.resolve()), loaded)[1]
            answers = loaded[other.resolve()] | answers
        else:
            answers.update(_parse_row(row, f"{path}:{number}"))
    return header, answers


def _neighbouring_capture(path: Path, like: object, where: str, number: int) -> Path:
    """Return the capture that a row of `path` names: in the same folder or the one above, never elsewhere."""
    name = str(like).removeprefix("../")
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise UsageError(f"{where}: 'like' names a capture in the same folder or the one above, not {str(like)[:80]!r}")
    if number > bounds.LIKES:
        raise UsageError(f"{path}: more than {bounds.LIKES} 'like' rows; keep the ones that matter")
    return path.parent / str(like)


def _lines(text: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the header of a capture and the complete rows below it; `_CUT` in the header describes what was cut."""
    if text.lstrip().startswith("{\n"):  # indented JSON
        raise UsageError(f"{name} is not a capture; if it is a report, run `ncclprobe report {name}`")
    lines = text.splitlines()
    if not lines:
        raise UsageError(f"{name}: the file is empty; take a capture with `ncclprobe capture`")
    if not lines[0].lstrip().startswith("{"):
        raise UsageError(f"{name} is not a capture; if it is a job's log, run `ncclprobe explain {name}`")
    header = _object(lines[0], f"{name}:1")
    if header.get("capture") != 1:
        raise UsageError(f'{name}: not a capture: its first line lacks "capture": 1; take one with `ncclprobe capture`')
    rows = lines[1:]
    if rows and not text.endswith("\n") and not _is_whole(rows[-1]):
        rows.pop()
        header.setdefault("rows", len(rows) + 1)
    of = header.get("rows", len(rows))
    if not isinstance(of, int) or of < len(rows):
        raise UsageError(
            f"{name}: {len(rows)} rows, and its first line says {of!r}: the file is incomplete or was changed; copy "
            "it again"
        )
    header[_CUT] = f"its capture was cut: {len(rows)} of {of} rows are left" if of > len(rows) else ""
    return header, rows


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@lru_cache(_MOST_ROWS)
def _parse_line(line: str) -> _Recorded | None:
    """Parse the row in `line`, cached for all nodes with an equal row; None: the row needs more context."""
    try:
        row = _object(line, "")
        return None if "like" in row else _parse_row(row, "")
    except UsageError:
        return None


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: truncated or not a capture: this line is not JSON") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not a capture: this line is not a JSON object")
    return row


def _parse_row(row: dict[str, Any], where: str) -> _Recorded:
    """Parse a row: one answer or refusal, or the samples in it. Raises UsageError."""
    ask, recorded, refused, rank = row.get("ask"), row.get("said"), row.get("refused"), row.get("rank")
    if not (rank is None or (type(rank) is int and rank >= 0)):
        raise UsageError(f"{where}: the rank of this row is not a number from 0 up")
    if isinstance(row.get(SAMPLE), dict):
        return {(rank, (SAMPLE, name)): json.dumps(value) for name, value in row[SAMPLE].items()}
    if not (isinstance(ask, list) and ask and all(isinstance(part, str | int) for part in ask)):
        raise UsageError(f"{where}: unknown row: no question in it (keys: {_names(row)})")
    if isinstance(recorded, str):
        return {(rank, tuple(ask)): recorded}
    if isinstance(refused, str) and refused in REFUSALS and refused != NotCaptured.__name__:
        return {(rank, tuple(ask)): REFUSALS[refused](str(row.get("why", "")))}
    raise UsageError(f"{where}: unknown row: neither an answer nor a refusal we know (keys: {_names(row)})")


def _names(row: Iterable[str]) -> str:
    return ascii(", ".join(sorted(row)))[1:-1][:80]
