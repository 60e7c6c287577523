"""Read what the dynamic loader reads from a shared library and its cache: elf(5) and /etc/ld.so.cache.

Also read the texts among a library's constants, where NCCL keeps its version. Nothing is run or mapped, so incomplete
libraries can be read too.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed

CACHE = "/etc/ld.so.cache"
_MAGIC = b"\x7fELF\x02\x01"
"""Of 64 bits, the lowest byte first: NCCL exists for no other processor."""
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"  # struct cache_file_new, glibc sysdeps/generic/dl-cache.h
_OLD_CACHE_MAGIC = b"ld.so-1.7.0"  # glibc before 2.32 puts its old format first, and the new one behind it
_CACHE_HEADER, _CACHE_ENTRY = 48, struct.Struct("=iIIIQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 14, 15, 29
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_WEAK = 2  # VER_FLG_WEAK: a warning of the loader's, and no refusal
_RELA, _NOBITS, _DYNSYM = 4, 8, 11  # sh_type
_RELATIVE = (8, 1027)  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE
_OBJECT = 1  # STT_OBJECT
_SYMBOL = "<IBBHQQ"  # Elf64_Sym: name, info, other, section, value, size


class _Dynamic(NamedTuple):
    """The dynamic section of a library: its name, the libraries that it needs, and its search path for them.

    `needs_versions`: the symbol versions (``GLIBC_2.34``) that it requires of each library; `versions`: those that it
    defines.
    """

    soname: str
    needed: tuple[str, ...]
    rpath: str
    runpath: str
    needs_versions: dict[str, tuple[str, ...]]
    versions: tuple[str, ...]


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def dynamic(path: str) -> _Dynamic:
    """Return the dynamic section of a 64-bit ELF file. Raises OSError; Failed if the file is not one.

    The file is read, not mapped: a page fault on a dead NFS server would block while holding the interpreter's lock.
    """
    with Path(path).open("rb") as file:
        try:
            return _dynamic(file)
        except (struct.error, ValueError, OverflowError):
            raise Failed(f"{path}: not a whole 64-bit ELF file") from None


def _dynamic(file: BinaryIO) -> _Dynamic:
    header = file.read(64)
    if header[:6] != _MAGIC:
        raise ValueError
    segments = _segments(file, header)
    tags: dict[int, list[int]] = {}
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            tags = _tags(_read_at(file, segment.offset, min(segment.size, bounds.ELF_TABLE)))
    if _DT_STRTAB not in tags:  # an executable without a loader
        return _Dynamic("", (), "", "", {}, ())
    strings = _offset(segments, tags[_DT_STRTAB][0])

    def texts(tag: int) -> list[str]:
        return [_string(_read_at(file, strings + at, bounds.ELF_STRING), 0) for at in tags.get(tag, [])]

    wants = _version_records(file, segments, tags, (_DT_VERNEED, _DT_VERNEEDNUM), "<HHIII")
    gives = _version_records(file, segments, tags, (_DT_VERDEF, _DT_VERDEFNUM), "<HHHHIII")
    return _Dynamic(
        soname="".join(texts(_DT_SONAME)[:1]),
        needed=tuple(texts(_DT_NEEDED)),
        rpath="".join(texts(_DT_RPATH)[:1]),
        runpath="".join(texts(_DT_RUNPATH)[:1]),
        needs_versions={
            _string(_read_at(file, strings + of_file, bounds.ELF_STRING), 0): tuple(
                _string(_read_at(file, strings + name, bounds.ELF_STRING), 0)
                for _hash, flags, _other, name, _next in _chain(file, at + first, count, "<IHHII")
                if not flags & _WEAK
            )
            for at, (_version, count, of_file, first, _next) in wants
        },
        versions=tuple(
            _string(_read_at(file, strings + name, bounds.ELF_STRING), 0)
            for at, (_version, _flags, _index, _count, _hash, first, _next) in gives
            for name, _next in _chain(file, at + first, 1, "<II")
        ),
    )


Records = list[tuple[int, tuple[int, ...]]]


def _version_records(
    file: BinaryIO, segments: list[_Segment], tags: dict[int, list[int]], where: tuple[int, int], layout: str
) -> Records:
    """Return the records of a version table, each with its offset; empty if there is no such table."""
    if where[0] not in tags or where[1] not in tags:
        return []
    at, found = _offset(segments, tags[where[0]][0]), []
    for _ in range(min(tags[where[1]][0], bounds.ELF_VERSIONS)):
        record = struct.unpack(layout, _read_at(file, at, struct.calcsize(layout)))
        found.append((at, record))
        at += record[-1]
    return found


def _chain(file: BinaryIO, at: int, count: int, layout: str) -> Iterator[tuple[int, ...]]:
    """Yield `count` records starting at `at`; the last member of each is the distance to the next."""
    for _ in range(min(count, bounds.ELF_VERSIONS)):
        record = struct.unpack(layout, _read_at(file, at, struct.calcsize(layout)))
        yield record
        at += record[-1]


class _Section(NamedTuple):
    name: int
    kind: int
    address: int
    offset: int
    size: int
    link: int


def _sections(file: BinaryIO) -> list[_Section]:
    """Return the sections. Raises ValueError if it is not a 64-bit ELF file."""
    header = file.read(64)
    if header[:6] != _MAGIC:
        raise ValueError
    (start,) = struct.unpack_from("<Q", header, 40)
    size, count = struct.unpack_from("<HH", header, 58)
    table = _read_at(file, start, min(size * count, bounds.ELF_TABLE))
    rows = [struct.unpack_from("<IIQQQQI", table, number * size) for number in range(count)]
    return [_Section(name, kind, *rest) for name, kind, _, *rest in rows]


def texts(path: str, beginning: str) -> tuple[str, ...]:
    """Return constants of a library that start with `beginning`, at most 16 of 64 characters each.

    Raises OSError; Failed unless the file is a complete 64-bit ELF file.
    """
    with Path(path).open("rb") as file:
        try:
            sections = _sections(file)
            (names,) = struct.unpack("<H", _read_at(file, 62, 2))
            table = _read_at(file, sections[names].offset, min(sections[names].size, bounds.ELF_TABLE))
            constants = [each for each in sections if _string(table, each.name) == ".rodata"][:1]
            data = [_read_at(file, each.offset, min(each.size, bounds.ELF_CONTENT_BYTES)) for each in constants]
            return tuple(dict.fromkeys(text for each in data for text in _texts(each, beginning)))
        except (struct.error, ValueError, OverflowError, IndexError):
            raise Failed(f"{path}: not a whole 64-bit ELF file") from None


def _texts(data: bytes, beginning: str) -> Iterator[str]:
    mark, at = beginning.encode(), -1
    for _ in range(bounds.ELF_TEXTS):
        at = data.find(mark, at + 1)
        if at < 0:
            return
        end = data.find(b"\0", at, at + bounds.ELF_TEXT)
        yield data[at : end if end >= 0 else at + bounds.ELF_TEXT].decode(errors="replace")


class _Symbols(NamedTuple):
    """Symbols with a common prefix: those that a library defines, and those that it needs from others."""

    defined: tuple[str, ...]
    undefined: tuple[str, ...]


def symbols(path: str, beginning: str) -> _Symbols:
    """Return a library's dynamic symbols with this prefix. Raises OSError, and Failed as `texts`.

    Weak symbols that it needs are left out: the loader continues without them.
    """
    with Path(path).open("rb") as file:
        try:
            sections = _sections(file)
            defined, undefined = set[str](), set[str]()
            for name, info, section, _ in _symbols_with_prefix(file, sections, beginning):
                if section or info >> 4 == 1:
                    (defined if section else undefined).add(name)
            return _Symbols(tuple(sorted(defined)), tuple(sorted(undefined)))
        except (struct.error, ValueError, OverflowError, IndexError):
            raise Failed(f"{path}: not a whole 64-bit ELF file") from None


def objects(path: str, beginning: str) -> dict[str, str]:
    """Return a library's objects with this prefix, each with the text that its first member points to.

    This gives the name of a plugin of NCCL without loading it: ``ncclNetPlugin_v8``, ``AWS Libfabric``. An object whose
    text cannot be read is left out. Raises OSError, and Failed as `texts`.
    """
    with Path(path).open("rb") as file:
        try:
            sections = _sections(file)
            named = _symbols_with_prefix(file, sections, beginning)
            places = {name: value for name, info, section, value in named if section and info & 15 == _OBJECT}
            pointers = _pointers(file, sections, set(places.values()))
            texts = {name: _text_at(file, sections, pointers.get(place, 0)) for name, place in places.items()}
            return {name: text for name, text in sorted(texts.items()) if text}
        except (struct.error, ValueError, OverflowError, IndexError):
            raise Failed(f"{path}: not a whole 64-bit ELF file") from None


def _symbols_with_prefix(
    file: BinaryIO, sections: list[_Section], beginning: str
) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, info, section and value of each dynamic symbol with this prefix."""
    mark, layout = beginning.encode(), struct.Struct(_SYMBOL)
    for table in (each for each in sections if each.kind == _DYNSYM):
        names = _read_at(file, sections[table.link].offset, min(sections[table.link].size, bounds.ELF_CONTENT_BYTES))
        rows = _read_at(file, table.offset, min(table.size, bounds.ELF_CONTENT_BYTES))
        for name, info, _, section, value, _ in layout.iter_unpack(rows[: len(rows) // layout.size * layout.size]):
            if names.startswith(mark, name):
                yield _string(names, name), info, section, value


def _pointers(file: BinaryIO, sections: list[_Section], places: set[int]) -> dict[int, int]:
    """Return what the loader would store at each of these places: by a relocation, otherwise the value in the file."""
    found = dict[int, int]()
    for place in places:
        if data := _read_at_address(file, sections, place, 8)[:8]:
            found[place] = int.from_bytes(data, "little")
    layout = struct.Struct("<QQq")
    for table in (each for each in sections if each.kind == _RELA and places):
        rows = _read_at(file, table.offset, min(table.size, bounds.ELF_CONTENT_BYTES))
        for place, info, target in layout.iter_unpack(rows[: len(rows) // layout.size * layout.size]):
            if place in places and info & 0xFFFFFFFF in _RELATIVE:
                found[place] = target
    return found


def _text_at(file: BinaryIO, sections: list[_Section], address: int) -> str:
    """Return the text at an address; empty if it is not printable."""
    text = _read_at_address(file, sections, address, bounds.ELF_TEXT).partition(b"\0")[0].decode(errors="replace")
    return text if text.isprintable() else ""


def _read_at_address(file: BinaryIO, sections: list[_Section], address: int, size: int) -> bytes:
    for each in sections:
        if each.kind != _NOBITS and 0 < each.address <= address < each.address + each.size:
            return _read_at(file, each.offset + address - each.address, min(size, each.address + each.size - address))
    return b""


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _segments(file: BinaryIO, header: bytes) -> list[_Segment]:
    (start,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    table = _read_at(file, start, min(size * count, bounds.ELF_TABLE))
    found = []
    for number in range(count):
        kind, _flags, offset, address, _physical, nbytes = struct.unpack_from("<IIQQQQ", table, number * size)
        found.append(_Segment(kind, offset, address, nbytes))
    return found


def _tags(section: bytes) -> dict[int, list[int]]:
    tags: dict[int, list[int]] = {}
    for tag, value in struct.iter_unpack("<qQ", section[: len(section) // 16 * 16]):
        if tag == _DT_NULL:
            break
        tags.setdefault(tag, []).append(value)
    return tags


def _offset(segments: list[_Segment], address: int) -> int:
    """Convert a virtual address to a file offset."""
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
    """Return (soname, file) from the loader's cache for sonames with one of these prefixes, the preferred first.

    Raises OSError; Failed if the file is not in glibc's format.
    """
    data = _read_whole(path)
    start = data.find(_CACHE_MAGIC) if data.startswith(_OLD_CACHE_MAGIC) else 0
    if not data.startswith(_CACHE_MAGIC, start):
        raise Failed(f"{path}: not the cache of glibc's loader")
    try:
        return _entries(data[start:], [prefix.encode() for prefix in prefixes])
    except (struct.error, ValueError):
        raise Failed(f"{path}: truncated") from None


def _read_whole(path: str) -> bytes:
    """Read a small file whole; memory is allocated for its actual size, not for the limit. Raises OSError, Failed."""
    with Path(path).open("rb") as file:
        nbytes = min(os.fstat(file.fileno()).st_size, bounds.LD_CACHE_BYTES)
        try:
            return file.read(nbytes)
        except MemoryError:
            raise Failed(f"{path}: this process may not allocate {nbytes >> 10} KiB of memory (ulimit -v)") from None


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
