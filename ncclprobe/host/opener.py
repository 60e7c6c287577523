"""Open paths that another user can influence, one component at a time.

A path that is checked first and used later can lead elsewhere by then: its owner replaces a file or folder by a link.
So each component is opened inside the folder that is already open, without following links. A link is read from its own
descriptor, its owner is noted, and its target is walked in the same way. Checks apply to what was opened (fstat). The
rules are those of path_resolution(7), openat(2) and readlinkat(2).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_MOST_LINKS = 40
_MOST_PARTS = 2048
_PART = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Place(NamedTuple):
    """The end of a path: a name in an open folder. `makers`: the owners of the links on the way.

    `magic`: the name is a link in /proc that only the kernel can follow, such as /dev/stdin.
    """

    folder: int
    name: str
    makers: frozenset[int] = frozenset()
    magic: bool = False

    def open(self, flags: int, mode: int = 0o600) -> int:
        """Open what is here now. Raises OSError, also if it has become a link."""
        flags |= os.O_CLOEXEC | (0 if self.magic else os.O_NOFOLLOW)
        return os.open(self.name, flags, mode, dir_fd=self.folder)

    def stat(self) -> os.stat_result | None:
        """Return the status of what is here now, without following a link; None if nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=self.magic)
        except FileNotFoundError:
            return None

    def refuse_makers(self, trusted: Collection[int] = ()) -> None:
        """Raise PermissionError if a link on the way belongs to anybody but root, this user and `trusted`."""
        others = sorted(self.makers - {0, os.geteuid(), *trusted})
        if others:
            raise PermissionError(errno.EACCES, f"another user made a link in this path (uid {others[0]})")


@contextlib.contextmanager
def place(path: str | Path, *, root: str = "/", follow: bool = True) -> Iterator[Place]:
    """Yield the place where `path` ends after all links; it need not exist. Raises OSError.

    Without `follow`, a link in the last component is the end itself, which can be removed but not opened. `root`: the
    folder that is / for this path and its links, such as /proc/PID/root for a process in a container. For users other
    than root, only a link in the last component counts: they may pass through folders that colleagues have linked.
    """
    with contextlib.ExitStack() as stack:
        yield _Walk(stack, root, follow).to(os.fspath(path))


def opened(path: str | Path, flags: int, mode: int = 0o600, *, found: bool = False) -> int:
    """Open a file that a user named; `found`: it was found in a folder, so nobody named it. Raises OSError.

    A link may lead to a file of the link's owner. A link to a third user's file would reveal, with the reader's rights,
    what the link's owner may not read: root never follows it, others do if they named it.
    """
    with place(path) as end:
        handle = end.open(flags, mode)
        try:
            if found or os.geteuid() == 0:
                end.refuse_makers({os.fstat(handle).st_uid})
        except OSError:
            os.close(handle)
            raise
        return handle


def copy_below(folder: Path, name: str, to: Path, limit: int) -> Path:
    """Copy a file below `folder` into `to`, at most `limit` bytes. Raises OSError.

    The opened file is checked, wherever its name leads by then.
    """
    handle = opened(name, os.O_RDONLY | os.O_NONBLOCK, found=True)
    try:
        real, found = Path(f"/proc/self/fd/{handle}").readlink(), os.fstat(handle)
        if not (real.is_relative_to(folder) and stat.S_ISREG(found.st_mode) and found.st_size <= limit):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        copy = to / real.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with copy.open("wb") as file:
            while file.tell() < found.st_size and (part := os.read(handle, 1 << 20)):
                file.write(part)
        return copy
    finally:
        os.close(handle)


class _Walk:
    """The open folders on the way, innermost last, and the remaining components, next one last."""

    def __init__(self, stack: contextlib.ExitStack, root: str, follow: bool) -> None:
        self._stack, self._bounded, self._follow_last = stack, root != "/", follow
        self._root = self._keep(os.open(root, _FOLDER))
        self._folders = [self._root]
        self._left: list[str] = []
        self._makers: set[int] = set()
        self._links = 0

    def to(self, path: str) -> Place:
        """Return the place at the end of `path`. Raises OSError."""
        if not path.startswith("/") and not self._bounded:
            self._folders = [self._keep(os.open(".", _FOLDER))]
        self._left = _parts(path)
        for _ in range(_MOST_PARTS):
            if not self._left:
                return self._end(".")
            end = self._step(self._left.pop())
            if end is not None:
                return end
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    def _step(self, part: str) -> Place | None:
        """Advance by one component; return the end if it was the last."""
        if part == "..":
            self._up()
            return None
        try:
            handle = self._keep(os.open(part, _PART, dir_fd=self._folders[-1]))
        except FileNotFoundError:
            if self._left:
                raise
            return self._end(part)
        found = os.fstat(handle)
        if stat.S_ISLNK(found.st_mode) and (self._left or self._follow_last):
            return self._follow(part, handle, found)
        if not self._left:
            return self._end(part)
        self._folders.append(handle)
        return None

    def _follow(self, part: str, handle: int, found: os.stat_result) -> Place | None:
        """Insert the target of the link `handle` before the remaining components."""
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not self._left or os.geteuid() == 0:
            self._makers.add(found.st_uid)
        if found.st_dev == dev_of_proc():
            if not self._left:
                return self._end(part, magic=True)
            self._folders.append(self._keep(os.open(part, _FOLDER, dir_fd=self._folders[-1])))
            return None
        target = os.readlink("", dir_fd=handle)
        if target.startswith("/"):
            self._folders = [self._root]
        self._left += _parts(target)
        return None

    def _up(self) -> None:
        """Leave the innermost folder, but never the root of the walk."""
        if len(self._folders) > 1:
            self._folders.pop()
        elif not self._bounded:
            self._folders = [self._keep(os.open("..", _FOLDER, dir_fd=self._folders[-1]))]

    def _keep(self, handle: int) -> int:
        self._stack.callback(os.close, handle)
        return handle

    def _end(self, name: str, *, magic: bool = False) -> Place:
        return Place(self._folders[-1], name, frozenset(self._makers), magic)


def dev_of_proc() -> int | None:
    """Return the device number of /proc; None if it is not mounted."""
    try:
        return Path("/proc/self").stat().st_dev
    except OSError:
        return None


def _parts(path: str) -> list[str]:
    """Split a path, the first component last. Raises OSError for an empty path or one with a NUL."""
    if not path or "\0" in path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
