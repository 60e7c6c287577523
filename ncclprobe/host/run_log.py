"""The samples of a measuring run: appended to ``run.jsonl`` as they arise, and read like any other answer.

A run log is a capture (docs/reference/files.md) whose header has ``"run": 1`` instead of a node's name. Each further
line is ``{"sample": {NAME: VALUE}}``; many lines may have the same name, and the answer to ``("sample", NAME)`` is the
list of their values. Its last line is ``{"end": {"why": …}}``: a log without it belongs to a run that was cut short. A
partial last line, left by a killed process, is dropped. Ranks found lost after the end are added, followed by the end
again.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ncclprobe import __version__
from ncclprobe.host import SAMPLE, files, opener
from ncclprobe.model import bounds
from ncclprobe.model.errors import NotCaptured, UsageError

FILE = "run.jsonl"
_END, _FORESEEN = "end", "foreseen"
CUT_SHORT = "the run log has no end: the run was cut short"


class RunLog:
    """The samples so far. Thread-safe. `path` None: they are only in memory."""

    def __init__(self, path: Path | None = None) -> None:
        """Create the log. Raises UsageError if `path` cannot be written."""
        self._samples: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self._file: int | None = None if path is None else _create(path)
        self.end: str | None = None
        """Why the run ended (empty: it was complete); null: the log has no end."""
        self.foreseen = CUT_SHORT
        """Why the run ends if nothing more is appended."""
        taken = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._append({"capture": 1, "run": 1, "taken": taken, "tool": __version__, "origin": "real"})

    def add(self, name: str, value: Any) -> None:
        """Append one sample: any JSON value."""
        text = json.dumps(value, allow_nan=False)
        with self._lock:
            self._samples.setdefault(name, []).append(text)
            sample = f'{{"sample": {{{json.dumps(name)}: {text}}}}}'
            self._write(sample if self.end is None else f"{sample}\n{self._end_row()}")

    def close(self, why: str = "") -> None:
        """Append the end, unless there is one. `why`: why the run ended early; empty: it was complete."""
        with self._lock:
            if self.end is None:
                self.end = why
                self._write(self._end_row())

    def foresee(self, why: str) -> None:
        """Append the reason for the end in case this is the last line."""
        self.add(_FORESEEN, why)
        self.foreseen = why

    def ask(self, *question: str | int) -> str:
        """Return the values of ``("sample", NAME)`` as a JSON list. Raises NotCaptured if the run has none."""
        if question[0] == SAMPLE and question[1] == _END:
            return json.dumps([self.foreseen if self.end is None else self.end])
        with self._lock:
            texts = self._samples.get(str(question[1])) if question[0] == SAMPLE else None
        if texts is None:
            raise NotCaptured(f"the run contains no {' '.join(map(str, question))}")
        return f"[{', '.join(texts)}]"

    def _end_row(self) -> str:
        return json.dumps({_END: {"why": self.end}})

    def _append(self, row: dict[str, Any]) -> None:
        self._write(json.dumps(row))

    def _write(self, line: str) -> None:
        """Write a line in one call, so that a killed process leaves at most one partial line. A full disk ends
        no run.
        """
        if self._file is None:
            return
        try:
            os.write(self._file, f"{line}\n".encode())
        except OSError:
            self._file = None

    @classmethod
    def read(cls, path: Path) -> "RunLog":
        """Read the run log in `path`. Raises UsageError naming file and line."""
        found = cls()
        for number, row in _rows(files.read(path, limit=bounds.RUN_LOG_BYTES), str(path)):
            sample, end = row.get(SAMPLE), row.get(_END)
            if isinstance(sample, dict):
                for name, value in sample.items():
                    _take(found, name, value, f"{path}:{number}")
                found.foreseen = str(sample.get(_FORESEEN, found.foreseen))
            elif isinstance(end, dict) and isinstance(end.get("why"), str):
                found.end = end["why"]
            else:
                raise UsageError(f"{path}:{number}: unknown row: neither a sample nor the end of a run")
        return found

    @classmethod
    def resume(cls, path: Path) -> "RunLog":
        """Read the run log in `path` and append further lines to it. Raises UsageError."""
        found = cls.read(path)
        text = files.read(path, limit=bounds.RUN_LOG_BYTES)
        try:
            found._file = opener.opened(path, os.O_WRONLY | os.O_APPEND)
            whole, _, half = text.rpartition("\n")
            if _parses(half):
                os.write(found._file, b"\n")
            elif half:
                os.ftruncate(found._file, len(f"{whole}\n".encode()) if whole else 0)
        except OSError:
            found._file = None
        return found


def _take(log: RunLog, name: str, value: Any, where: str) -> None:
    """Add a sample that was read. Raises UsageError for an infinite or invalid number."""
    try:
        log.add(name, value)
    except ValueError:
        raise UsageError(f"{where}: sample {name[:40]!r} contains a number that is infinite or NaN") from None


def ends(path: Path) -> bool:
    """Return whether the log in `path` already has its end. Cheap: reads only its last bytes."""
    try:
        with os.fdopen(opener.opened(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return False
    return bool(lines) and _END in (_object(lines[-1]) or {})


def is_run_log(path: Path) -> bool:
    """Return whether the first line of `path` marks a run log. Raises UsageError if it cannot be read."""
    head = files.read_start(path, limit=4096).partition("\n")[0]
    try:
        row = json.loads(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and row.get("run") == 1


def remove(path: Path) -> None:
    """Remove the log of an earlier run. Raises UsageError for a file that is not one, and OSError."""
    with opener.place(path, follow=False) as end:
        _remove(path, end)


def _remove(path: Path, end: opener.Place) -> None:
    files.refuse_makers(path, end)
    files.refuse_content(path, end, _is_whole)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(end.name, dir_fd=end.folder)


def _is_whole(text: str) -> bool:
    """Return whether `text` is a run log, possibly of a run that was cut short."""
    try:
        return (_object(text.partition("\n")[0]) or {}).get("run") == 1 and all(
            {SAMPLE, _END} & row.keys() for _, row in _rows(text, "")
        )
    except UsageError:
        return False


def _create(path: Path) -> int:
    """Create the file, accessible only to its owner, as captures are. Raises UsageError if that fails.

    An existing file is removed first: in a shared folder it may be a link, a pipe, or a file that all can read.
    """
    try:
        with opener.place(path, follow=False) as end:
            _remove(path, end)
            return end.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; name a folder that can be written") from None


def _rows(text: str, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows after the header with their line numbers, without a partial last line."""
    lines = text.split("\n")
    whole, half = lines[:-1], lines[-1]
    for number, line in enumerate([*whole, half] if _parses(half) else whole, start=1):
        row = _object(line)
        if row is None:
            raise UsageError(f"{name}:{number}: truncated or not a run log: this line is not a JSON object")
        if number > 1:
            yield number, row


def _parses(line: str) -> bool:
    return _object(line) is not None


def _object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
