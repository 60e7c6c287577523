"""Files that users name: read whole and bounded, written whole or not at all."""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError

_READER_S = 2.0
"""How long a pipe may be without a reader, who may still be starting."""


def read(path: Path, *, limit: int, refuse: Callable[[os.stat_result], None] = lambda _: None) -> str:
    """Return the text of the regular file `path`, at most `limit` bytes of UTF-8. Raises UsageError naming it.

    A pipe or a device is refused: it could keep its reader waiting, or never end. `refuse` may raise for a file of the
    wrong owner or mode: it sees the file that is open, which no rename can replace.
    """
    data = _bytes(path, limit + 1, refuse)
    if len(data) > limit:
        raise UsageError(f"{path}: larger than {limit >> 10} KiB: not a file of this kind")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: cannot be read: it is not UTF-8 text") from None


def trusted_folder(path: Path) -> Path:
    """Return a folder whose files may be run: no user but this one and root can change it, or a folder on the way.

    Raises UsageError for any other, and for a path that depends on the working directory.
    """
    if not path.is_absolute():
        raise UsageError(f"{path}: give the folder in full, from /")
    try:
        folder = path.resolve(strict=True)
        if not folder.is_dir():
            raise UsageError(f"{path}: is no folder")
        refuse_foreign(folder, folder.stat())
        for each in folder.parents:
            found = each.stat()
            sticky = found.st_uid == 0 and found.st_mode & stat.S_ISVTX  # what is in it cannot be replaced by others
            if not sticky:
                refuse_foreign(each, found)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return folder


def refuse_foreign(path: Path, found: os.stat_result, hint: str = "") -> None:
    """Raise UsageError if a user who is neither root nor this one may change `path`; `hint` ends its line."""
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{path}: not trusted, because uid {found.st_uid} owns it{hint}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise UsageError(f"{path}: not trusted, because its mode {mode} lets other users write it{hint}")


def read_start(path: Path, *, limit: int) -> str:
    """Return the first `limit` bytes of the regular file `path` as text, whatever they hold. Raises UsageError."""
    return _bytes(path, limit).decode(errors="replace")


def _bytes(path: Path, most: int, refuse: Callable[[os.stat_result], None] = lambda _: None) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UsageError(f"{path}: cannot be read: not a regular file")
            refuse(os.fstat(handle))
            return file.read(most)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def refuse_other(path: Path, ours: Callable[[str], bool]) -> None:
    """Raise UsageError where a file with content is at `path` that is not, as a whole, what `ours` recognises.

    So a log whose name was typed in the place of a report's is not written over. A file without content may be.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):
        return  # that is said where it is written
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return
    try:
        text = read(path, limit=bounds.REPORT_BYTES)
    except UsageError:
        text = "?"
    if text.strip() and not ours(text):
        why = "not written over, it is not what an earlier run would have written there"
        raise UsageError(f"{path}: {why}; choose another path, or remove it")


def write(path: Path, text: str, *, private: bool = False, ours: Callable[[str], bool] | None = None) -> None:
    """Write `text` so that a reader sees all of it or the file as it was; `private`: for its owner's eyes only.

    What is there stays if it is not what `ours` recognises: see `refuse_other`. What is no regular file (a pipe, a
    device) is written to, never replaced. A link of this user or of root is followed, one of another user refused: see
    `refuse_links`. Raises UsageError.
    """
    try:
        refuse_links(path)
        if ours:
            refuse_other(path, ours)
        target = path.resolve()
        if target.exists() and not target.is_file():
            _write_into(target, text)
            return
        _replace(target, text, 0o600 if private else 0o666)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be written: {why}; choose another path") from None


def refuse_links(path: Path) -> None:
    """Raise UsageError where `path` is a link that another user made: it could lead anywhere.

    For root no folder on the way may be one either. Users may write through links of their colleagues.
    """
    whole = path.absolute()
    for part in (whole, *whole.parents) if os.geteuid() == 0 else (whole,):
        if part.is_symlink() and part.lstat().st_uid not in (0, os.geteuid()):
            where = "" if part == whole else f"{part} is "
            raise UsageError(f"{path}: not followed: {where}a link that another user made; choose another path")


def _write_into(target: Path, text: str) -> None:
    """Write to a pipe or a device. Raises OSError; UsageError for a pipe of another user, who may never read it."""
    handle = _opened(target)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        found = os.fstat(handle)
        if stat.S_ISFIFO(found.st_mode) and found.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{target}: cannot be written: a pipe of another user; choose another path")
        os.set_blocking(handle, True)
        file.write(text)


def _opened(target: Path) -> int:
    """Open a pipe or a device for writing, waiting a moment for the reader of a pipe. Raises OSError without one."""
    end = time.monotonic() + _READER_S
    while True:
        try:
            return os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
            time.sleep(0.02)


def _replace(target: Path, text: str, mode: int) -> None:
    """Write next to `target` under a name that could not be foreseen, in a file that was not there, and rename it."""
    partial = target.with_name(f".{target.name[:100]}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(partial, flags, mode), "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(target)
    except (OSError, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def named_after(node: str) -> str:
    """Return the name of a node's capture, whatever the node is called."""
    return re.sub(r"[^\w.#-]", "_", node)[:100] + ".jsonl"
