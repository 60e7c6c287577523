"""The paths of --path: data that every node must see, and folders that checkpoints go to. proc_pid_mountinfo(5).

How fast each path of --path was from this node: samples of --path-rates, which the cluster part measures.
"""

import json
import re
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeVar

import msgspec

from ncclprobe.facts.field import attempt
from ncclprobe.facts.reach import sample
from ncclprobe.host import Host
from ncclprobe.host.patience import at_once
from ncclprobe.model import bounds
from ncclprobe.model.errors import NotCaptured, ParseError
from ncclprobe.model.measurement import PathRate, RateKind
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent, Snapshot, learned
from ncclprobe.model.values import Struct, field, replace

T = TypeVar("T")
Use = Literal["read", "write", "checkpoint"]
_LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "squashfs", "erofs", "vfat")
)
_REMOTE = (
    r"nfs4?|lustre|gpfs|mmfs|beegfs|ceph|glusterfs|fuse\.\S{1,64}|9p|virtiofs|cifs|smb3|afs|orangefs|wekafs|panfs|pvfs2"
)
_NOT_COMPARED = r"(?:clientaddr|mountaddr|local_lock|fd|user_id|group_id|port|mountport)=.{0,255}|relatime"
"""Options that each node has for itself, or that say nothing of what is seen."""


UNWRITTEN = "unwritten: "
"""How the outcome of a Sight begins where a node could not write the file; then it says why."""


class AskedPath(Struct, frozen=True):
    """One --path. `use`: what a job does there."""

    path: str
    use: Use = "read"


class AskedPaths(Struct, frozen=True):
    """Every --path of the command line. `rate_bytes`: of --path-rates, for one measurement; 0: no rates are asked."""

    paths: Annotated[tuple[AskedPath, ...], msgspec.Meta(max_length=bounds.DATA_PATHS)]
    rate_bytes: Annotated[int, msgspec.Meta(ge=0, le=bounds.MOST_RATE_BYTES)] = 0


class Mount(Struct, frozen=True):
    """The file system that a path is on. `source`: its server or device; `root`: the part of it that is mounted."""

    point: str
    kind: str
    source: str
    root: str = "/"
    options: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Return whether it can only be this node's own."""
        return self.kind in _LOCAL

    @property
    def is_remote(self) -> bool:
        """Return whether a server has it, or a program that stands for one."""
        return bool(re.fullmatch(_REMOTE, self.kind))

    def __str__(self) -> str:
        """Return ``nfs4 server:/export``."""
        return f"{self.kind} {self.source}{'' if self.root == '/' else f' ({self.root})'}"


class DiskQuota(Struct, frozen=True):
    """A hard limit of this user or of its group on a file system, and what is used of it; a limit of 0 is none."""

    kind: Literal["user", "group"]
    limit_bytes: int
    used_bytes: int
    limit_files: int = 0
    used_files: int = 0


class Look(Struct, frozen=True):
    """What stat(2), access(2) and statvfs(3) say, asked as `user`: an effective user id.

    `quotas`: as far as quotactl(2) has any; a file server's own are not asked.
    """

    kind: Literal["file", "folder", "other"]
    real: str
    uid: int
    gid: int
    mode: str
    user: int
    nbytes: int
    mtime_s: float
    read: bool
    write: bool
    enter: bool
    total_bytes: int
    available_bytes: int
    inodes: int
    available_inodes: int
    read_only: bool
    quotas: tuple[DiskQuota, ...] = ()


class Content(Struct, frozen=True):
    """A hash of a file's size, head, tail and a sample, or of a folder's names; empty where `cut`.

    `cut`: the folder has more than bounds.LISTED_ENTRIES entries, of which each node may list others.
    """

    entries: int
    digest: str
    cut: bool
    hashed_bytes: int = 0


class DataPath(Struct, frozen=True):
    """One path on this node. `mount` is known without asking its server. `content` is asked for use read; else None."""

    path: str
    use: Use
    mount: Mount | Absent
    look: Look | Absent
    content: Content | Absent | None = None


class DataPaths(Struct, frozen=True):
    """The paths of --path, as this node sees them; none where none was asked for. `rate_bytes`: as asked."""

    rows: tuple[DataPath, ...] = ()
    rate_bytes: int = 0


class Sight(Struct, frozen=True):
    """When this node saw a file of node `of`: `seconds` after it looked first, `outcome` in the end.

    ``ok``; ``other``: cut, or not what was written; ``unopened``: listed, and does not open; ``no-file``;
    ``no-folder``; ``denied``; ``hung``; ``refused``. ``unwritten: why``: this node could not write it there.
    """

    of: int
    name: str
    outcome: str
    seconds: float


class Written(Struct, frozen=True):
    """What this node wrote under one path, in `folder`, and what it saw of the others.

    `seconds`: of each step that worked; ``until COMPLETE``: on node 0, after the others began to look for it. `failed`:
    the step that did not; empty: none. `left`: the folder could not be removed. `swept`: what killed runs had left.
    `digests` are of its marker and shard.
    """

    path: str
    use: Use
    folder: str = ""
    failed: str = ""
    why: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    sights: tuple[Sight, ...] = ()
    left: bool = False
    swept: tuple[str, ...] = ()


class DataWrites(Struct, frozen=True):
    """What node `me` wrote and saw of the others, at each path that a job writes to. `names`: the nodes by rank."""

    me: int
    names: dict[int, str] = field(default_factory=dict)
    rows: tuple[Written, ...] = ()


def writes_to(snapshot: Snapshot) -> tuple[AskedPath, ...]:
    """Return the paths that the job writes to, as far as this node could look at them."""
    rows = (learned(snapshot.facts, DataPaths) or DataPaths()).rows
    return tuple(AskedPath(row.path, row.use) for row in rows if row.use != "read" and isinstance(row.look, Look))


@collector
def data_paths(host: Host) -> DataPaths:
    """Look at each path of --path, all at once: one that hangs takes its deadline from no other."""
    try:
        asked = sample(host, "asked_paths", AskedPaths)
    except NotCaptured:
        return DataPaths()
    mounts = attempt(lambda: parse_mounts(host.ask("read", "/proc/self/mountinfo")))
    seen: dict[AskedPath, DataPath] = {}

    def work(each: AskedPath) -> None:
        seen[each] = _seen(host, each, mounts)

    at_once([partial(work, each) for each in asked.paths])
    return DataPaths(tuple(seen[each] for each in asked.paths), asked.rate_bytes)


@collector
def data_writes(host: Host) -> DataWrites:
    """Read what this node wrote at the paths of --path, and saw of the others."""
    return sample(host, "data_writes", DataWrites)


def _seen(host: Host, asked: AskedPath, mounts: tuple[Mount, ...] | Absent) -> DataPath:
    look = attempt(lambda: _told(host.ask("data", "stat", asked.path), Look))
    real = look.real if isinstance(look, Look) else asked.path
    mount = mounts if isinstance(mounts, Absent) else attempt(lambda: mount_of(real, mounts))
    content: Content | Absent | None = None
    if asked.use == "read" and isinstance(look, Look) and look.kind != "other":
        content = attempt(lambda: _told(host.ask("data", "content", asked.path), Content))
    return DataPath(asked.path, asked.use, mount, look, content)


def _told(text: str, kind: type[T]) -> T:
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise ParseError(f"{kind.__name__}: {error}") from None


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Return the mounts that /proc/self/mountinfo lists, in its order. Raises ParseError."""
    return tuple(map(_mount, filter(None, text.splitlines())))


def _mount(line: str) -> Mount:
    place, dash, device = line.partition(" - ")
    fields, last = place.split(" "), device.split(" ")
    if not dash or len(fields) < 6 or len(last) < 3:
        raise ParseError(f"/proc/self/mountinfo: {line[:120]!r}")
    given = dict.fromkeys((*fields[5].split(","), *last[2].split(",")))
    if "ro" in given:  # the mount may be read-only where the file system is not
        given.pop("rw", None)
    options = tuple(sorted(each for each in given if not re.fullmatch(_NOT_COMPARED, each)))
    return Mount(_plain(fields[4]), last[0], _plain(last[1]), _plain(fields[3]), options)


def _plain(text: str) -> str:
    r"""Return a path of mountinfo, in which a space is ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8) & 0xFF), text)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount:
    """Return the mount that an absolute path is on: the longest mount point above it, and of equal ones the last.

    Raises ParseError where there is none.
    """
    above = {str(each) for each in (PurePosixPath(path), *PurePosixPath(path).parents)}
    found = [each for each in mounts if each.point in above]
    if not found:
        raise ParseError(f"/proc/self/mountinfo: no mount has {path[:200]!r}")
    longest = max(len(each.point) for each in found)
    return [each for each in found if len(each.point) == longest][-1]


KINDS_OF_USE: dict[Use, tuple[RateKind, ...]] = {
    "read": ("read", "random", "open"),
    "write": ("write",),
    "checkpoint": ("write", "read"),
}
"""What is measured at a path by its use: a checkpoint is also read, at a restart."""


class DataRates(Struct, frozen=True):
    """What was measured from this node, in the order in which it was."""

    rows: Annotated[tuple[PathRate, ...], msgspec.Meta(max_length=bounds.PATH_RATES)] = ()


@collector
def data_rates(host: Host, paths: DataPaths) -> DataRates:
    """Read how fast the paths of --path were from this node, each with the file system that it is on."""
    mounts = {row.path: str(row.mount) for row in paths.rows if isinstance(row.mount, Mount)}
    rows = sample(host, "data_rates", DataRates).rows
    return DataRates(tuple(replace(row, file_system=mounts.get(row.path, "")) for row in rows))


def rated(snapshot: Snapshot) -> tuple[AskedPath, ...]:
    """Return the paths of which rates were asked, as far as this node could look at them."""
    seen = learned(snapshot.facts, DataPaths)
    if seen is None or not seen.rate_bytes:
        return ()
    return tuple(AskedPath(row.path, row.use) for row in seen.rows if not isinstance(row.look, Absent))


def rate_bytes(snapshot: Snapshot) -> int:
    """Return how many bytes one measurement may move; 0: none was asked for."""
    seen = learned(snapshot.facts, DataPaths)
    return seen.rate_bytes if seen else 0
