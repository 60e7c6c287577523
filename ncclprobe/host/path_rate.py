"""Measures how fast a file system reads, opens and writes: in the child of path_child.py, bounded in bytes and seconds.

What is read are the user's files below the path, or at a path for checkpoints the file that we wrote there ourselves:
each node, and each turn, begins elsewhere. Just before, the kernel is asked to drop their pages from this node's memory
(posix_fadvise(2), POSIX_FADV_DONTNEED), and mincore(2) says how many stayed. Since Linux 5.2 mincore calls all pages of
a file resident that the caller neither owns nor may write: of those it cannot be told.
"""

import ctypes
import itertools
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ncclprobe.model import bounds
from ncclprobe.model.values import Struct

BLOCK = 1 << 20
"""Of sequential reads and writes."""
SAMPLE = 128 << 10
"""Of a random read: an image or a few thousand tokens."""
SMALL = 4 << 10
"""Of a file that is opened: read of it at most."""
_LEAST = BLOCK
"""What less says is noise."""
_SAMPLES_PER_BYTE = 1 / BLOCK
_READ_FILES, _OPENED_FILES, _WALKED = 64, 512, 4096
"""Files of which the size is asked, files that may be opened, entries that are looked at to find them."""
_OPENS = 64
_DEPTH = 8
RATE_FILE = "rate"
_SPARE = 4
"""Times what is written must be free."""
_PAGE = mmap.PAGESIZE


class _Extent(Struct, frozen=True):
    """Bytes of an open file."""

    fd: int
    start: int
    length: int


class _Data(Struct, frozen=True):
    """Files below a path: `read` with their sizes; `opened`: others, of which nothing was asked so far."""

    read: tuple[tuple[str, int], ...]
    opened: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Return what `read` holds."""
        return sum(size for _, size in self.read)


_FOUND: dict[str, _Data] = {}


def rate(path: str, kind: str, folder: str, nbytes: int, seconds: float, place: int, at_once: int) -> dict[str, Any]:
    """Measure `kind` once: at most `nbytes`, for about `seconds`. `place`: tells nodes and turns apart.

    `folder`: ours, below `path`, to write in; empty: the user's files are read. ``find`` only looks for these.
    """
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "find": lambda: {"nbytes": _data(path).nbytes},
        "read": lambda: _sequential(_own(path, folder) or _data(path), nbytes, seconds, place),
        "random": lambda: _random(_data(path), nbytes, seconds, place),
        "open": lambda: _opens(_data(path), seconds, place),
        "write": lambda: _written(Path(path, folder, RATE_FILE), nbytes, seconds, at_once),
    }
    return work[kind]()


def _own(path: str, folder: str) -> _Data | None:
    if not folder:
        return None
    own = Path(path, folder, RATE_FILE)
    return _Data(((str(own), own.stat().st_size),), ())


def _data(path: str) -> _Data:
    """Find files below `path`, by name, without links; the same on every node that sees the same."""
    if path not in _FOUND:
        names = [path] if Path(path).is_file() else list(_walk(path))
        sized = [(name, os.stat(name).st_size) for name in names[:_READ_FILES]]  # noqa: PTH116
        _FOUND[path] = _Data(tuple(each for each in sized if each[1]), tuple(names[_READ_FILES:]))
    return _FOUND[path]


def _walk(path: str) -> Iterator[str]:
    left, found, folders = _WALKED, 0, [(path, 0)]
    while folders and left > 0 and found < _READ_FILES + _OPENED_FILES:
        folder, depth = folders.pop(0)
        names, inner = _listed(folder, left)
        left -= len(names) + len(inner)
        folders += [(each, depth + 1) for each in inner if depth < _DEPTH]
        for name in names[: _READ_FILES + _OPENED_FILES - found]:
            found += 1
            yield name


def _listed(folder: str, most: int) -> tuple[list[str], list[str]]:
    """Return files and folders in `folder`, sorted; kinds are of the listing, which asks nothing of each."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= min(most, bounds.LISTED_ENTRIES):
                break
            if not entry.name.startswith("."):
                files += [entry.path] * entry.is_file(follow_symlinks=False)
                folders += [entry.path] * entry.is_dir(follow_symlinks=False)
    return sorted(files), sorted(folders)


def _sequential(data: _Data, nbytes: int, seconds: float, place: int) -> dict[str, Any]:
    """Read on and on from a place of this node's own."""
    amount = min(nbytes, data.nbytes)
    if amount < _LEAST:
        return _too_little(data)
    with _opened(data) as files:
        extents = list(_stretch(files, place * nbytes % data.nbytes, amount))
        resident = _dropped(extents)
        began, done, blocks = time.monotonic(), 0, 0
        until = began + seconds
        for each in extents:
            at, end = each.start, each.start + each.length
            while at < end and time.monotonic() < until:
                got = len(os.pread(each.fd, min(BLOCK, end - at), at))
                at, done, blocks = at + got, done + got, blocks + 1
                if not got:
                    break  # it was cut meanwhile
        took = time.monotonic() - began
    return {"nbytes": done, "count": blocks, "seconds": took, "resident": resident}


def _random(data: _Data, nbytes: int, seconds: float, place: int) -> dict[str, Any]:
    if data.nbytes < _LEAST:
        return _too_little(data)
    places, amount = random.Random(place), max(16, int(nbytes * _SAMPLES_PER_BYTE))
    with _opened(data) as files:
        starts = (places.randrange(data.nbytes) // _PAGE * _PAGE for _ in range(amount))  # of pages, as fio's are
        extents = [next(_stretch(files, start, SAMPLE)) for start in starts]
        for fd, _ in files:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        resident = _dropped(extents)
        began = time.monotonic()
        done, ends = 0, [began]
        for each in extents:
            if ends[-1] >= began + seconds:
                break
            done += len(os.pread(each.fd, each.length, each.start))
            ends.append(time.monotonic())
    return {"nbytes": done, **_singly(ends), "resident": resident}


def _opens(data: _Data, seconds: float, place: int) -> dict[str, Any]:
    """Open files that this process has not asked about so far, and read the beginning of each."""
    names = data.opened or tuple(name for name, _ in data.read)
    if len(names) < 2:
        return {"why": "a single file: opens are measured where there are several"}
    first = place * _OPENS % len(names)
    chosen = (names[first:] + names[:first])[:_OPENS]
    began = time.monotonic()
    done, ends = 0, [began]
    for name in chosen:
        if ends[-1] >= began + seconds:
            break
        with Path(name).open("rb", buffering=0) as file:
            done += len(file.read(SMALL))
        ends.append(time.monotonic())
    return {"nbytes": done, **_singly(ends)}


def _singly(ends: Sequence[float]) -> dict[str, Any]:
    """Return the number, the time and the typical time of operations, each of which ended when the next one began."""
    each = sorted(later - earlier for earlier, later in itertools.pairwise(ends))
    return {"count": len(each), "seconds": ends[-1] - ends[0], "typical_s": each[len(each) // 2]}


def _written(path: Path, nbytes: int, seconds: float, at_once: int) -> dict[str, Any]:
    """Write a file and fsync it; first a block alone, which says how much fits into `seconds`."""
    space = os.statvfs(path.parent)
    free = space.f_bavail * space.f_frsize
    if free < _SPARE * nbytes * at_once:
        return {"why": f"{free >> 20} MiB are free, which is too little to write {nbytes * at_once >> 20} MiB"}
    block = os.urandom(BLOCK)
    with path.open("wb", buffering=0) as file:
        first_s = _synced(file.fileno(), block, 1)
        blocks = min(nbytes // BLOCK, int(seconds / max(first_s, 1e-6))) - 1
        took = _synced(file.fileno(), block, blocks) if blocks > 0 else 0.0
    blocks = 1 + max(blocks, 0)
    return {"nbytes": blocks * BLOCK, "count": blocks, "seconds": first_s + took}


def _synced(fd: int, block: bytes, times: int) -> float:
    """Write `block` so many times, fsync, and return the seconds that this took."""
    began = time.monotonic()
    for _ in range(times):
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(fd, rest) :]
    os.fsync(fd)
    return time.monotonic() - began


def _too_little(data: _Data) -> dict[str, Any]:
    return {"why": f"{data.nbytes} bytes in the files that were found: too little to measure reads"}


@contextmanager
def _opened(data: _Data) -> Iterator[Sequence[tuple[int, int]]]:
    """Yield the files of `data`, open, with their sizes."""
    with ExitStack() as stack:
        yield [(stack.enter_context(Path(name).open("rb", buffering=0)).fileno(), size) for name, size in data.read]


def _stretch(files: Sequence[tuple[int, int]], start: int, amount: int) -> Iterator[_Extent]:
    """Yield `amount` bytes from `start` on of all files one after the other; after the last comes the first."""
    number = 0
    while start >= files[number][1]:
        start -= files[number][1]
        number += 1
    while amount > 0:
        fd, size = files[number % len(files)]
        length = min(amount, size - start)
        yield _Extent(fd, start, length)
        amount, start, number = amount - length, 0, number + 1


def _dropped(extents: Sequence[_Extent]) -> float | None:
    """Ask the kernel to drop the pages of `extents`; return the share that stayed, null where it cannot be told."""
    for fd in {each.fd for each in extents}:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    stayed = [_resident(each) for each in extents]
    known = [each for each in stayed if each is not None]
    pages = sum(pages for _, pages in known)
    return sum(held for held, _ in known) / pages if pages and len(known) == len(stayed) else None


def _resident(extent: _Extent) -> tuple[int, int] | None:
    """Return how many pages of it are in memory, and how many it has; None: the kernel does not say."""
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
    return None if held == pages and not _is_ours(extent.fd) else (held, pages)


def _is_ours(fd: int) -> bool:
    """Return whether mincore(2) tells this process the truth of a file that it says is in memory."""
    return os.fstat(fd).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK)


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    return libc
