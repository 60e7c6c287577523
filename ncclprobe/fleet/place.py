"""Check the place of a store before SQLite opens anything, because SQLite acts on files that it finds there.

A rollback journal beside the store is played back by whoever opens the store next, and it may name a further file (a
"super-journal"), by an absolute path, that SQLite then removes. So only the store's owner may be able to put a file
there: the store, what SQLite keeps beside it, and every folder on the way belong to the caller or root, and nobody else
may write them. A folder with the sticky bit is refused too: the name of the journal is free for anybody to take there.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ncclprobe.host import files
from ncclprobe.model.errors import UsageError

BESIDE = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside the store."""
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""How a journal ends that names a super-journal: https://www.sqlite.org/fileformat2.html, section 3."""
_VERSIONS_AT = 18
"""Offset of the write and read versions in the store's first page: 2 is write-ahead logging, which no store of ours
uses.
"""
_SPOOL = (
    "; keep it where only its owner writes, and let others leave reports for `ncclprobe fleet add` (docs/history.md)"
)


@contextlib.contextmanager
def guarded(path: Path, *, create: bool) -> Iterator[Path]:
    """Yield the resolved path of a store once only its owner and root can change what SQLite will find there.

    Until the end, root has the rights of the store's owner, or of the folder's if there is no store yet. With `create`,
    a
    missing store is made here, writable by its owner. Raises UsageError for any other place, before it is changed.
    """
    store = _resolve(path)
    with _act_as_owner(store):
        there = _exists_safely(store)
        _refuse_open_to_others(store.parent)
        if not there and not create:
            raise UsageError(
                f"{path}: cannot be read: No such file or directory; `ncclprobe fleet add REPORT` creates one"
            )
        if not there:
            _make_store(store)
        for end in BESIDE:
            _exists_safely(store.with_name(store.name + end))
        _refuse_journal(store)
        yield store


def _resolve(path: Path) -> Path:
    """Return the store's path without links. Raises UsageError for another user's link, or a missing folder."""
    try:
        return files.without_links(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror}") from None


@contextlib.contextmanager
def _act_as_owner(store: Path) -> Iterator[None]:
    """Let root act as the owner of the store, or of its folder: a file that the owner cannot remove stays."""
    owner = _lstat(store) or _lstat(store.parent)
    if os.geteuid() != 0 or owner is None or owner.st_uid == 0:
        yield
        return
    before, groups = os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(before)
        os.setgroups(groups)


def _refuse_open_to_others(folder: Path) -> None:
    """Refuse a folder in which another user can put a file, or which another user can replace. Raises UsageError."""
    files.refuse_foreign(folder, folder.stat(), hint=_SPOOL)
    for each in folder.parents:
        found = each.stat()
        if not (found.st_uid == 0 and found.st_mode & stat.S_ISVTX):  # what is in it cannot be replaced by others
            files.refuse_foreign(each, found, hint=_SPOOL)


def _exists_safely(path: Path) -> bool:
    """Return whether a file exists. Raises UsageError unless only the caller and root can change it."""
    found = _lstat(path)
    if found is None:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path}: cannot be read: not a regular file")
    if found.st_nlink != 1:
        raise UsageError(f"{path}: not trusted, because it has another name too (a hard link); copy it to a new file")
    files.refuse_foreign(path, found, hint=_SPOOL)
    return True


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _make_store(store: Path) -> None:
    """Make an empty store, writable by its owner and readable by all, whatever the umask."""
    try:
        os.close(os.open(store, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        _exists_safely(store)  # another process of the owner made it at this moment
    except OSError as error:
        raise UsageError(
            f"{store}: cannot be opened: {error.strerror}; check that you can write to its folder"
        ) from None


def _refuse_journal(store: Path) -> None:
    """Refuse a store with write-ahead logging, and a journal that names a file to remove. Raises UsageError."""
    logs = [store.with_name(store.name + end) for end in ("-wal", "-shm")]
    if 2 in _part(store, _VERSIONS_AT, 2) or any(_lstat(each) for each in logs):
        raise UsageError(
            f"{store}: is in WAL mode, which nodes cannot share: turn it off with PRAGMA journal_mode=DELETE"
        )
    journal = store.with_name(f"{store.name}-journal")
    found = _lstat(journal)
    if found and _part(journal, max(0, found.st_size - len(_SUPER_JOURNAL)), len(_SUPER_JOURNAL)) == _SUPER_JOURNAL:
        raise UsageError(
            f"{journal}: names another file for SQLite to remove, which ncclprobe never writes; move it away"
        )


def _part(path: Path, at: int, nbytes: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.pread(handle, nbytes, at)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
