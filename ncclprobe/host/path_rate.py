"""Measure how fast a file system reads: in the child of path_child.py, bounded in bytes and seconds.

Reads the user's files below the path; each turn begins at another place. Just before, the kernel is asked to drop their
pages from this node's memory (posix_fadvise(2), POSIX_FADV_DONTNEED), and mincore(2) reports how many stayed. Since
Linux 5.2 mincore reports all pages of a file as resident if the caller neither owns nor may write it: for those the
share is unknown.
"""

import ctypes
import mmap
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ncclprobe.model import bounds
from ncclprobe.model.values import Struct

_BLOCK = 1 << 20
_TURNS, _TURN_BYTES, _TURN_S = 3, 64 << 20, 0.4
"""The best turn counts: a busy processor may slow a node down once."""
_FILES, _WALKED, _DEPTH = 64, 4096, 8
"""Files that are read, entries that are visited to find them, and nesting of folders."""
_PAGE = mmap.PAGESIZE

_Files = Sequence[tuple[int, int]]
"""Open files, and the size of each."""


class Extent(Struct, frozen=True):
    """Bytes of an open file."""

    fd: int
    start: int
    length: int


def rate(path: str) -> dict[str, Any]:
    """Read the files below `path` in order for about a second, and return the best turn."""
    sized = find_files(path)
    total = sum(size for _, size in sized)
    if total < _BLOCK:
        return {"why": f"the files there contain only {total} bytes: too few to measure reads"}
    with _open_files(sized) as files:
        turns = [_turn(files, total) for _ in range(_TURNS)]
    return max(turns, key=lambda turn: turn["nbytes"] / turn["seconds"])


def find_files(path: str) -> list[tuple[str, int]]:
    """Find files below `path`, by name, without links; nodes with the same files find the same."""
    names = [path] if Path(path).is_file() else list(_walk(path))
    sized = [(name, os.stat(name).st_size) for name in names if os.access(name, os.R_OK)]  # noqa: PTH116
    return [each for each in sized if each[1]]


def _walk(path: str) -> Iterator[str]:
    left, found, folders = _WALKED, 0, [(path, 0)]
    while folders and left > 0 and found < _FILES:
        folder, depth = folders.pop(0)
        try:
            names, inner = list_folder(folder, left)
        except PermissionError:
            continue
        left -= len(names) + len(inner) + 1
        folders += [(each, depth + 1) for each in inner if depth < _DEPTH]
        for name in names[: _FILES - found]:
            found += 1
            yield name


def list_folder(folder: str, most: int) -> tuple[list[str], list[str]]:
    """Return files and folders in `folder`, sorted; the listing includes the kinds, without another request."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= min(most, bounds.LISTED_ENTRIES):
                break
            if not entry.name.startswith("."):
                files += [entry.path] * entry.is_file(follow_symlinks=False)
                folders += [entry.path] * entry.is_dir(follow_symlinks=False)
    return sorted(files), sorted(folders)


@contextmanager
def _open_files(sized: Sequence[tuple[str, int]]) -> Iterator[_Files]:
    """Open the files and yield them with their sizes."""
    with ExitStack() as stack:
        yield [(stack.enter_context(Path(name).open("rb", buffering=0)).fileno(), size) for name, size in sized]


def _turn(files: _Files, total: int) -> dict[str, Any]:
    """Read from a random place until the turn's bytes or seconds are used up."""
    extents = list(stretch(files, random.randrange(total) // _PAGE * _PAGE, min(_TURN_BYTES, total)))
    resident = drop_pages(extents)
    began, done = time.monotonic(), 0
    until = began + _TURN_S
    for each in extents:
        at, end = each.start, each.start + each.length
        while at < end and time.monotonic() < until:
            got = len(os.pread(each.fd, min(_BLOCK, end - at), at))
            at, done = at + got, done + got
            if not got:
                break  # it was cut meanwhile
    return {"nbytes": done, "seconds": max(time.monotonic() - began, 1e-9), "resident": resident}


def stretch(files: _Files, start: int, amount: int) -> Iterator[Extent]:
    """Yield extents of `amount` bytes from `start` in the concatenation of all files, which wraps around."""
    number = 0
    while start >= files[number][1]:
        start -= files[number][1]
        number += 1
    while amount > 0:
        fd, size = files[number % len(files)]
        length = min(amount, size - start)
        yield Extent(fd, start, length)
        amount, start, number = amount - length, 0, number + 1


def drop_pages(extents: Sequence[Extent]) -> float | None:
    """Ask the kernel to drop the pages of `extents`; return the share that stayed, None if unknown."""
    for fd in {each.fd for each in extents}:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    stayed = [_resident_pages(each) for each in extents]
    known = [each for each in stayed if each is not None]
    pages = sum(pages for _, pages in known)
    return sum(held for held, _ in known) / pages if pages and len(known) == len(stayed) else None


def _resident_pages(extent: Extent) -> tuple[int, int] | None:
    """Return how many pages of the extent are in memory, and how many it has; None: unknown."""
    start = extent.start // _PAGE * _PAGE
    length = extent.start + extent.length - start
    pages = -(-length // _PAGE)
    libc = _libc()
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, extent.fd, start)
    if address == ctypes.c_void_p(-1).value:
        return None
    try:
        seen = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), seen):
            return None
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
    held = sum(each & 1 for each in seen)
    return None if held == pages and not _is_reportable(extent.fd) else (held, pages)


def _is_reportable(fd: int) -> bool:
    """Return whether mincore(2) gives this process truthful answers about the file."""
    return os.fstat(fd).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK)


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    return libc
