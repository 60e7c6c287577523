"""The paths given with --path: data that every node must see and read equally fast. proc_pid_mountinfo(5)."""

import json
import re
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeVar

import msgspec

from ncclprobe.facts.field import attempt
from ncclprobe.facts.reach import sample
from ncclprobe.host import Host
from ncclprobe.host.deadlines import at_once
from ncclprobe.model import bounds
from ncclprobe.model.errors import NotCaptured, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

T = TypeVar("T")
_LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "squashfs", "erofs", "vfat")
)
_REMOTE = (
    r"nfs4?|lustre|gpfs|mmfs|beegfs|ceph|glusterfs|fuse\.\S{1,64}|9p|virtiofs|cifs|smb3|afs|orangefs|wekafs|panfs|pvfs2"
)
_IN_MEMORY = 0.1
"""If more than this share was in the node's own memory, the read did not measure the file system."""


class AskedPaths(Struct, frozen=True):
    """Every --path of the command line."""

    paths: Annotated[tuple[str, ...], msgspec.Meta(max_length=bounds.DATA_PATHS)]


class Mount(Struct, frozen=True, tag=True):
    """The file system of a path. `source`: its server or device. `root`: the part of it that is mounted."""

    point: str
    kind: str
    source: str
    root: str = "/"

    @property
    def is_local(self) -> bool:
        """Return whether only this node can have this file system."""
        return self.kind in _LOCAL

    @property
    def is_remote(self) -> bool:
        """Return whether a server, or a program that acts as one, provides this file system."""
        return bool(re.fullmatch(_REMOTE, self.kind))

    def __str__(self) -> str:
        """Return ``nfs4 server:/export``."""
        return f"{self.kind} {self.source}{'' if self.root == '/' else f' ({self.root})'}"


class Look(Struct, frozen=True, tag=True):
    """Results of stat(2) and access(2) for the effective user id `user`."""

    kind: Literal["file", "folder", "other"]
    real: str
    uid: int
    gid: int
    mode: str
    user: int
    nbytes: int
    read: bool
    enter: bool


class Content(Struct, frozen=True, tag=True):
    """A hash of a file's size, head, tail and a sample, or of a folder's names. Empty if `cut`.

    `cut`: the folder has more than bounds.LISTED_ENTRIES entries, so nodes may list different ones.
    """

    entries: int
    digest: str
    cut: bool
    hashed_bytes: int = 0


class ReadRate(Struct, frozen=True, tag=True):
    """The best of a few sequential reads. `why`: the reason if nothing was measured, otherwise empty.

    `resident`: the share of the data that was still in this node's memory just before the read (mincore(2)), after the
    kernel was asked to drop it (posix_fadvise(2)). None: the kernel does not report it.
    """

    nbytes: int = 0
    seconds: float = 0.0
    resident: float | None = None
    why: str = ""

    @property
    def from_memory(self) -> bool:
        """Return whether the data came from this node's memory, not the file system. False if unknown."""
        return (self.resident or 0.0) > _IN_MEMORY

    @property
    def per_s(self) -> float:
        """Return bytes per second; 0: not measured."""
        return self.nbytes / self.seconds if self.seconds > 0 and not self.why else 0.0


class DataPath(Struct, frozen=True):
    """One path on this node. Finding `mount` does not involve its server. Only files and folders are read."""

    path: str
    mount: Mount | Absent
    look: Look | Absent
    content: Content | Absent | None = None
    rate: ReadRate | Absent | None = None


class DataPaths(Struct, frozen=True):
    """Every --path as this node sees it; empty if none was given."""

    rows: tuple[DataPath, ...] = ()


@collector
def data_paths(host: Host) -> DataPaths:
    """Examine all --path arguments in parallel, so that one that hangs does not use up another's deadline."""
    try:
        asked = sample(host, "asked_paths", AskedPaths)
    except NotCaptured:
        return DataPaths()
    mounts = attempt(lambda: parse_mounts(host.ask("read", "/proc/self/mountinfo")))
    seen: dict[str, DataPath] = {}

    def work(path: str) -> None:
        seen[path] = _look_at(host, path, mounts)

    at_once([partial(work, path) for path in asked.paths])
    return DataPaths(tuple(seen[path] for path in asked.paths))


def _look_at(host: Host, path: str, mounts: tuple[Mount, ...] | Absent) -> DataPath:
    look = attempt(lambda: _parse_answer(host.ask("data", "stat", path), Look))
    real = look.real if isinstance(look, Look) else path
    mount = mounts if isinstance(mounts, Absent) else attempt(lambda: mount_of(real, mounts))
    if isinstance(look, Absent) or look.kind == "other":
        return DataPath(path, mount, look)
    content = attempt(lambda: _parse_answer(host.ask("data", "content", path), Content))
    rate = attempt(lambda: _parse_answer(host.ask("data", "rate", path), ReadRate))
    return DataPath(path, mount, look, content, rate)


def _parse_answer(text: str, kind: type[T]) -> T:
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, msgspec.ValidationError) as error:  # a ValueError from msgspec 0.21 on
        raise ParseError(f"{kind.__name__}: {error}") from None


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Parse /proc/self/mountinfo and keep its order. Raises ParseError."""
    return tuple(map(_mount, filter(None, text.splitlines())))


def _mount(line: str) -> Mount:
    place, _, device = line.partition(" - ")
    fields, last = place.split(" "), device.split(" ")
    if len(fields) < 6 or len(last) < 3:
        raise ParseError(f"/proc/self/mountinfo: {line[:120]!r}")
    return Mount(_decode_path(fields[4]), last[0], _decode_path(last[1]), _decode_path(fields[3]))


def _decode_path(text: str) -> str:
    r"""Decode the octal escapes of a path in mountinfo, which writes a space as ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8) & 0xFF), text)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount:
    """Return the mount of an absolute path: the longest mount point above it, the last of equal ones.

    Raises ParseError if there is none.
    """
    above = {str(each) for each in (PurePosixPath(path), *PurePosixPath(path).parents)}
    found = [each for each in mounts if each.point in above]
    if not found:
        raise ParseError(f"/proc/self/mountinfo: no mount has {path[:200]!r}")
    longest = max(len(each.point) for each in found)
    return [each for each in found if len(each.point) == longest][-1]
