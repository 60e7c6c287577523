"""What the dynamic loader reads of a shared library and of its own cache: elf(5) and /etc/ld.so.cache.

Read without running or mapping anything, so that it works for libraries of which the rest is missing.
"""

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ncclprobe import bounds
from ncclprobe.errors import Failed

CACHE = "/etc/ld.so.cache"
_MAGIC = b"\x7fELF"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"  # struct cache_file_new, glibc sysdeps/generic/dl-cache.h
_OLD_CACHE_MAGIC = b"ld.so-1.7.0"  # glibc before 2.32 puts its old format first, and the new one behind it
_CACHE_HEADER, _CACHE_ENTRY = 48, struct.Struct("=iIIIQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 14, 15, 29


class Dynamic(NamedTuple):
    """The dynamic section of a library: its name, what it needs, and where it says to look for that."""

    soname: str
    needed: tuple[str, ...]
    rpath: str
    runpath: str


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def dynamic(path: str) -> Dynamic:
    """Return the dynamic section of a 64-bit ELF file. Raises OSError; Failed where the file is no such thing.

    Read, not mapped: a page of a dead NFS server would be waited for with the interpreter's lock held.
    """
    with Path(path).open("rb") as file:
        try:
            return _dynamic(file)
        except (struct.error, ValueError, OverflowError):
            raise Failed(f"{path}: not a whole 64-bit ELF file") from None


def _dynamic(file: BinaryIO) -> Dynamic:
    header = file.read(64)
    if header[:5] != _MAGIC + b"\x02":
        raise ValueError
    order = "<" if header[5] == 1 else ">"
    segments = _segments(file, header, order)
    tags: dict[int, list[int]] = {}
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            tags = _tags(_at(file, segment.offset, min(segment.size, bounds.ELF_TABLE)), order)
    if _DT_STRTAB not in tags:  # an executable without a loader
        return Dynamic("", (), "", "")
    strings = _offset(segments, tags[_DT_STRTAB][0])

    def texts(tag: int) -> list[str]:
        return [_string(_at(file, strings + at, bounds.ELF_STRING), 0) for at in tags.get(tag, [])]

    return Dynamic(
        soname="".join(texts(_DT_SONAME)[:1]),
        needed=tuple(texts(_DT_NEEDED)),
        rpath="".join(texts(_DT_RPATH)[:1]),
        runpath="".join(texts(_DT_RUNPATH)[:1]),
    )


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _segments(file: BinaryIO, header: bytes, order: str) -> list[_Segment]:
    (start,) = struct.unpack_from(f"{order}Q", header, 32)
    size, count = struct.unpack_from(f"{order}HH", header, 54)
    table = _at(file, start, min(size * count, bounds.ELF_TABLE))
    found = []
    for number in range(count):
        kind, _flags, offset, address, _physical, nbytes = struct.unpack_from(f"{order}IIQQQQ", table, number * size)
        found.append(_Segment(kind, offset, address, nbytes))
    return found


def _tags(section: bytes, order: str) -> dict[int, list[int]]:
    tags: dict[int, list[int]] = {}
    for tag, value in struct.iter_unpack(f"{order}qQ", section[: len(section) // 16 * 16]):
        if tag == _DT_NULL:
            break
        tags.setdefault(tag, []).append(value)
    return tags


def _offset(segments: list[_Segment], address: int) -> int:
    """Return where in the file a virtual address lies."""
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            return segment.offset + address - segment.address
    raise ValueError


def _string(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + bounds.ELF_STRING)
    if end < 0:
        raise ValueError
    return data[start:end].decode(errors="replace")


def cached(*prefixes: str, path: str = CACHE) -> list[tuple[str, str]]:
    """Return the (soname, file) pairs of the loader's cache whose soname starts with one of `prefixes`, the preferred
    first.

    Raises OSError; Failed where the file is not what glibc writes.
    """
    with Path(path).open("rb") as file:
        data = file.read(bounds.LD_CACHE_BYTES)
    start = data.find(_CACHE_MAGIC) if data.startswith(_OLD_CACHE_MAGIC) else 0
    if start < 0 or not data.startswith(_CACHE_MAGIC, start):
        raise Failed(f"{path}: not the cache of glibc's loader")
    try:
        return _entries(data[start:], [prefix.encode() for prefix in prefixes])
    except (struct.error, ValueError):
        raise Failed(f"{path}: truncated") from None


def _entries(cache: bytes, prefixes: list[bytes]) -> list[tuple[str, str]]:
    (count,) = struct.unpack_from("=I", cache, len(_CACHE_MAGIC))
    table = cache[_CACHE_HEADER : _CACHE_HEADER + count * _CACHE_ENTRY.size]
    if len(table) != count * _CACHE_ENTRY.size:
        raise ValueError
    found = []
    for _flags, key, value, _version, _hwcap in _CACHE_ENTRY.iter_unpack(table):
        if any(cache.startswith(prefix, key) for prefix in prefixes):
            found.append((_string(cache, key), _string(cache, value)))
    return found
