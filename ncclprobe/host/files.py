"""Files that users name: read whole within a limit, written whole or not at all."""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

from ncclprobe.host import opener
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError

_LONGEST_PATH = 4096
"""PATH_MAX of Linux: longer paths must be created folder by folder, and no program opens them."""
_READER_S = 2.0
"""How long a pipe may lack a reader, which may still be starting."""


def read(path: Path, *, limit: int, refuse: Callable[[os.stat_result], None] = lambda _: None) -> str:
    """Read the regular file `path`, at most `limit` bytes of UTF-8. Raises UsageError naming it.

    A pipe or device is refused: it could block the reader, or never end. `refuse` may raise for a file of the wrong
    owner or mode: it sees the opened file, which no rename can replace.
    """
    data = _bytes(path, limit + 1, refuse)
    if len(data) > limit:
        raise UsageError(f"{path}: larger than {limit >> 10} KiB: too large for this kind of file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: cannot be read: it is not UTF-8 text") from None


def trusted_folder(path: Path) -> Path:
    """Return a folder whose files may be run: only this user and root can change it, or any folder on the way.

    Raises UsageError for any other, and for a path that depends on the working directory.
    """
    if not path.is_absolute():
        raise UsageError(f"{path}: give an absolute path")
    try:
        folder = path.resolve(strict=True)
        if not folder.is_dir():
            raise UsageError(f"{path}: not a folder")
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
    """Raise UsageError if a user other than root or this one may change `path`; `hint` ends the message."""
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{path}: not trusted, because uid {found.st_uid} owns it{hint}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise UsageError(f"{path}: not trusted, because its mode {mode} lets other users write to it{hint}")


def read_start(path: Path, *, limit: int) -> str:
    """Return the first `limit` bytes of the regular file `path` as text, with invalid bytes replaced. Raises
    UsageError.
    """
    return _bytes(path, limit).decode(errors="replace")


def _bytes(path: Path, most: int, refuse: Callable[[os.stat_result], None] = lambda _: None) -> bytes:
    try:
        handle = opener.opened(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UsageError(f"{path}: cannot be read: not a regular file")
            refuse(os.fstat(handle))
            return file.read(most)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def refuse_other(path: Path, ours: Callable[[str], bool]) -> None:
    """Raise UsageError if `path` is a non-empty file that `ours` does not recognise.

    This keeps a log, given by mistake in place of a report, from being overwritten. An empty file may be.
    """
    try:
        with opener.place(path) as end:
            refuse_content(path, end, ours)
    except OSError:
        return  # that is said when it is written


def refuse_content(path: Path, end: opener.Place, ours: Callable[[str], bool]) -> None:
    """Raise UsageError as `refuse_other` does, for the file that is at `end` now."""
    found = end.stat()
    if found is None or not stat.S_ISREG(found.st_mode) or not found.st_size:
        return
    try:
        with os.fdopen(end.open(os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            data = file.read(bounds.REPORT_BYTES + 1)
        text = data.decode() if len(data) <= bounds.REPORT_BYTES else "?"
    except (OSError, ValueError):
        text = "?"
    if text.strip() and not ours(text):
        why = "not overwritten, because it is not the output of an earlier run"
        raise UsageError(f"{path}: {why}; choose another path, or remove it")


def write(path: Path, text: str, *, private: bool = False, ours: Callable[[str], bool] | None = None) -> None:
    """Write `text` atomically; `private`: readable only by its owner.

    An existing file is kept if `ours` does not recognise it: see `refuse_other`. A pipe or device is written to, never
    replaced. A link of this user or of root is followed, one of another user is refused; for root this applies to every
    folder on the way. Raises UsageError.
    """
    try:
        with opener.place(path) as end:
            refuse_makers(path, end)
            if ours:
                refuse_content(path, end, ours)
            found = end.stat()
            if found is None or stat.S_ISREG(found.st_mode):
                _replace(end, text, 0o600 if private else 0o666)
            else:
                _write_into(path, end, text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be written: {why}; choose another path") from None


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its parents if they are missing. Raises OSError, also for other users' links."""
    if len(os.fsencode(path)) >= _LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    for each in (*reversed(path.parents), path):
        with opener.place(each) as end:
            if end.stat() is None or each == path:
                end.refuse_makers()
            if end.stat() is None:
                with contextlib.suppress(FileExistsError):  # another rank has made it
                    os.mkdir(end.name, mode, dir_fd=end.folder)
            found = end.stat()
            if found is None or not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def without_links(path: Path) -> Path:
    """Resolve all links of `path`. Raises OSError, and UsageError as `refuse_links` does."""
    with opener.place(path) as end:
        refuse_makers(path, end)
        return Path(f"/proc/self/fd/{end.folder}").readlink() / end.name


def refuse_links(path: Path) -> None:
    """Raise UsageError if another user's link is on the way to `path`: it could lead anywhere."""
    with contextlib.suppress(OSError), opener.place(path) as end:  # what is not there is said by whoever needs it
        refuse_makers(path, end)


def refuse_makers(path: Path, end: opener.Place) -> None:
    """Raise UsageError as `refuse_links` does, for a path that was already walked to `end`."""
    try:
        end.refuse_makers()
    except PermissionError as error:
        raise UsageError(f"{path}: not followed: {error.strerror}; choose another path") from None


def _write_into(path: Path, end: opener.Place, text: str) -> None:
    """Write to a pipe or device. Raises OSError; UsageError for a pipe of another user, who may never read it."""
    handle = _open_writable(end)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path}: cannot be written: it became a regular file at this moment; try again")
        if stat.S_ISFIFO(found.st_mode) and found.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{path}: cannot be written: a pipe of another user; choose another path")
        os.set_blocking(handle, True)
        file.write(text)


def _open_writable(end: opener.Place) -> int:
    """Open a pipe or device for writing, and wait briefly for a pipe's reader. Raises OSError without one."""
    last = time.monotonic() + _READER_S
    while True:
        try:
            return end.open(os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > last:
                raise
            time.sleep(0.02)


def _replace(end: opener.Place, text: str, mode: int) -> None:
    """Write to a new file with an unpredictable name next to `end`, then rename it."""
    partial = opener.Place(end.folder, f".{end.name[:100]}.{os.urandom(8).hex()}")
    try:
        with os.fdopen(partial.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(partial.name, end.name, src_dir_fd=end.folder, dst_dir_fd=end.folder)
    except (OSError, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            os.unlink(partial.name, dir_fd=end.folder)
        raise


def named_after(node: str) -> str:
    """Return a safe file name for a node's capture."""
    return re.sub(r"[^\w.#-]", "_", node)[:100] + ".jsonl"
