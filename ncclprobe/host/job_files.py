"""The files of a job that were named on the command line: files, folders, patterns, ``-``; possibly compressed.

They are read sequentially in blocks, never whole.
"""

import codecs
import glob
import importlib
import math
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from ncclprobe.host import opener
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import Struct

STDIN = "-"
BLOCK = 1 << 20
MOST_FILES = 100_000
MOST_INFLATED = 64 << 30
"""Decompressed bytes that are read of one file."""

PIPE_S = 60
"""How long to wait for a pipe's first byte."""

PATIENCE_S, SLOWEST_BYTES = 60.0, 2 << 20
"""A file is read for at most this long, plus one second for each SLOWEST_BYTES of its size: decompressed size is
unbounded.
"""

_ROTATED = re.compile(r"\.(\d{1,4})(?=(?:\.(?:gz|zst|xz|bz2))?$)")
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma", b"\x28\xb5\x2f\xfd": "zstd"}
_LONGEST_MAGIC = 8
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ZSTD = (("compression.zstd", "open"), ("zstandard", "open"), ("pyzstd", "open"))
_BROKEN = (EOFError, OSError, ValueError)


class JobFile(Struct, frozen=True):
    """One file: its name for the user, and its size on disk; 0 for a pipe.

    `once`: a pipe, such as standard input, which can be read only once. `found`: in a folder or by a pattern, so that
    nobody named this file explicitly.
    """

    name: str
    nbytes: int = 0
    once: bool = False
    found: bool = False

    @property
    def patience_s(self) -> float:
        """Return how long reading may take; a pipe is read for as long as it is written to."""
        return math.inf if self.once else PATIENCE_S + self.nbytes / SLOWEST_BYTES


def named(arguments: Sequence[str]) -> tuple[JobFile, ...]:
    """Return the files that `arguments` name, without duplicates; files of folders and patterns in natural order.

    The oldest of rotated logs is first. Raises UsageError for an argument that names nothing readable.
    """
    found: dict[str, JobFile] = {}
    for argument in arguments:
        for path in (argument,) if argument == STDIN else sorted(_paths(argument), key=_age):
            key = path if path == STDIN else os.path.realpath(path)
            once = path == STDIN or not (_is_regular(path) or Path(path).is_dir())
            if once and path != STDIN and Path(os.path.realpath(path)).is_fifo():  # not that of a shell's <(…)
                raise UsageError(f"{path}: cannot be read: not a regular file; give a log, or - for standard input")
            file = JobFile(path, 0 if once else _size(path), once, path != argument)
            found[key] = file if file.found is False else found.get(key, file)
            if len(found) > MOST_FILES:
                raise UsageError(f"{argument}: more than {MOST_FILES} files; name fewer")
    return tuple(found.values())


def _paths(argument: str) -> Iterator[str]:
    try:
        if not Path(argument).exists():
            matches = glob.glob(argument, recursive=True)  # noqa: PTH207 - a pattern may be absolute
            if not matches:
                raise UsageError(f"{argument}: no such file or folder")
            for match in matches:
                yield from _paths(match) if Path(match).is_dir() else (match,) if _is_readable(match) else ()
        elif Path(argument).is_dir():
            closed: list[
                str
            ] = []  # named as any file that cannot be read: passed over, its logs would be missing unseen
            for folder, _, names in os.walk(argument, onerror=lambda error: closed.append(str(error.filename))):
                yield from (os.path.join(folder, name) for name in names if _is_readable(os.path.join(folder, name)))  # noqa: PTH118
            yield from closed
        else:
            yield argument
    except (OSError, ValueError) as error:
        raise UsageError(f"{argument}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _is_regular(path: str) -> bool:
    """Return whether this is a regular file."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def _is_readable(path: str) -> bool:
    """Return whether a file of a folder or pattern may be read: a regular file, not reached by another user's link.

    The opened file is checked again: see `opener.opened`.
    """
    try:
        maker, owner = os.lstat(path).st_uid, os.stat(path).st_uid  # noqa: PTH116
    except OSError:
        return False
    return _is_regular(path) and maker in (owner, os.geteuid(), 0)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _age(path: str) -> tuple[list[tuple[int, str]], int]:
    """Return a sort key: numbers in natural order, and ``x.log.2``, ``x.log.1``, ``x.log`` in the order of writing."""
    rotated = _ROTATED.search(path)
    base = path[: rotated.start()] if rotated else path.removesuffix(".gz").removesuffix(".zst")
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", base) if part]
    return parts, -int(rotated[1]) if rotated else 0


class Blocks:
    """The bytes of one file, in blocks. After the last, `cut` says why the file was not read to its end; empty if it
    was.
    """

    def __init__(self, file: JobFile) -> None:
        self.name, self.cut, self.nbytes = file.name, "", 0
        self._patience_s, self._began, self._is_readable = file.patience_s, time.monotonic(), file.found

    def __iter__(self) -> Iterator[bytes]:
        """Yield block by block. Raises UsageError if even the first cannot be read."""
        try:
            with _standard_input() if self.name == STDIN else _open(self.name, self._is_readable) as raw:
                first = cast(BufferedReader, raw).peek(_LONGEST_MAGIC)
                kind = next((kind for magic, kind in _MAGIC.items() if first.startswith(magic)), "")
                if kind:
                    yield from self._inflated(raw, kind)
                    return
                decoder = codecs.getincrementaldecoder("utf-16")("replace") if first.startswith(_UTF_16) else None
                while (block := raw.read(BLOCK)) and self._in_time():
                    self.nbytes += len(block)
                    yield decoder.decode(block).encode() if decoder else block
        except OSError as error:
            if not self.nbytes:
                raise UsageError(f"{self.name}: cannot be read: {error.strerror or error}") from None
            self.cut = f"could be read only up to {self.nbytes} bytes: {error.strerror or error}"

    def _in_time(self) -> bool:
        seconds = time.monotonic() - self._began
        if seconds > self._patience_s:
            self.cut = f"took longer than {self._patience_s:.0f} s; only {self.nbytes} bytes were read"
        return not self.cut

    def _inflated(self, raw: BinaryIO, kind: str) -> Iterator[bytes]:
        opened = _opener(kind)
        if opened is None:
            why = f"is compressed with {kind}, and no library here reads that: pip install zstandard"
            raise UsageError(f"{self.name}: {why}")
        try:
            with opened(raw, "rb") as file:
                while (block := file.read(BLOCK)) and self._in_time():
                    self.nbytes += len(block)
                    yield block
                    if self.nbytes > MOST_INFLATED:
                        self.cut = f"holds more than {MOST_INFLATED >> 30} GiB; the rest was not read"
                        return
        except _errors(kind) as error:
            self.cut = f"ends early or is damaged after {self.nbytes} bytes of text: {error}"


def _standard_input() -> BinaryIO:
    if sys.stdin is None:  # who started this process closed it
        raise UsageError("-: cannot be read: standard input is closed")
    return sys.stdin.buffer


def _open(path: str, found: bool) -> BufferedReader:
    """Open a file, or a pipe with a writer. Raises OSError, and UsageError for input that may never end.

    `found`: found in a folder, where a pipe may have replaced the file since it was listed.
    """
    handle = opener.opened(path, os.O_RDONLY | os.O_NONBLOCK, found=found)
    raw = os.fdopen(handle, "rb")
    mode = os.fstat(handle).st_mode
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    why = ""
    if found and not stat.S_ISREG(mode):
        why = "no longer a regular file"
    elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        why = "a device, which may have no end; name a file, or - for standard input"
    elif os.fstat(handle).st_dev == opener.dev_of_proc():
        why = "a file of /proc, which may have no end; name a copy of it"
    elif stat.S_ISFIFO(mode) and not waiting.poll(1000 * PIPE_S):
        why = f"a pipe into which no process wrote anything for {PIPE_S} s"
    if why:
        raw.close()
        raise UsageError(f"{path}: cannot be read: {why}")
    os.set_blocking(handle, True)
    return raw


def _opener(kind: str) -> Callable[..., Any] | None:
    """Return the function that opens this kind of compressed file; None: no library supports it."""
    for module, name in ((kind, "open"),) if kind != "zstd" else _ZSTD:
        try:
            return cast(Callable[..., Any], getattr(importlib.import_module(module), name))
        except ImportError:
            continue
    return None


def _errors(kind: str) -> tuple[type[BaseException], ...]:
    """Return the exceptions that a damaged file of this kind raises."""
    import lzma
    import zlib

    own: tuple[type[BaseException], ...] = (zlib.error, lzma.LZMAError)
    if kind == "zstd":
        for module, name in (("compression.zstd", "ZstdError"), ("zstandard", "ZstdError"), ("pyzstd", "ZstdError")):
            if module in sys.modules:
                own = (*own, getattr(sys.modules[module], name))
    return (*_BROKEN, *own)
