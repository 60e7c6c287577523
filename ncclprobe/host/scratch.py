"""Folders for a run's temporary files: removed at its end, or by the next run if this one was killed.

A folder is locked (flock) for as long as a process of its run lives, however that ends: a folder that another process
can lock is abandoned. Only this user's folders with our name are touched, and none if locks do not work.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ncclprobe.model.values import Struct

_PREFIX = "ncclprobe-scratch-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")  # as mkdtemp ends a name
_YOUNG_S = 60.0  # made, and not locked yet
_MOST_ENTRIES = 10_000


class Scratch(Struct, frozen=True):
    """A folder of this run, private to its owner. `lock`: the file descriptor that locks it; None: locking is
    impossible.
    """

    path: Path
    lock: int | None

    def remove(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)


def make() -> Scratch:
    """Create a folder in TMPDIR, after removing those of killed runs. Raises OSError."""
    root = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        _sweep(root)
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    return Scratch(path, _lock(path))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Create a folder that is removed at the end of the block. Raises OSError."""
    made = make()
    try:
        yield made.path
    finally:
        made.remove()


def _sweep(root: Path) -> None:
    old = time.time() - _YOUNG_S
    with os.scandir(root) as entries:
        ours = [entry for entry in islice(entries, _MOST_ENTRIES) if _OURS.fullmatch(entry.name)]
    for entry in ours:
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if status.st_uid == os.geteuid() and status.st_mtime < old:
                _remove_abandoned(Path(entry.path))


def _remove_abandoned(path: Path) -> None:
    if (lock := _lock(path)) is not None:
        Scratch(path, lock).remove()


def _lock(path: Path) -> int | None:
    """Lock the folder for this process and those that inherit the descriptor; None if that is impossible."""
    handle = None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if handle is not None:
            os.close(handle)
        return None
    return handle
