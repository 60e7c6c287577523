"""What the nodes see at each path: whether it is there, on which file system, with which content, whose, how full."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ncclprobe.checks.data import NODE, SERVER, asked, asked_of_several, by_path, on, problem, told, unasked
from ncclprobe.checks.sync import describe, named
from ncclprobe.facts.data_paths import Content, DataPath, DataPaths, DiskQuota, Look, Mount
from ncclprobe.facts.field import missing
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.values import replace
from ncclprobe.units import size

_JOB: dict[str, Any] = {"blame": "job", "action": "fix-job"}
_FULL_BYTES, _NEARLY = 1 << 20, 0.01
_MEANINGFUL = (
    "ro",
    "rw",
    "soft",
    "hard",
    "sync",
    "noac",
    "nolock",
    "nocto",
    "vers=",
    "acregm",
    "acdirm",
    "lookupcache=",
    "sec=",
)
"""Options of a mount that change what a job sees, or what becomes of it when the server is away: nfs(5)."""

_NFS = Mount("/data", "nfs4", "fs1:/export", options=("hard", "rw", "vers=4.2"))
_FOLDER = Look(
    "folder", "/data", 0, 0, "0755", 1000, 4096, 1.7e9, True, True, True, 1 << 40, 1 << 39, 1 << 20, 1 << 19, False
)
_NAMES = Content(12, "0123456789abcdef", cut=False)
_ROW = DataPath("/data", "read", _NFS, _FOLDER, _NAMES)


def _nodes(*rows: DataPath) -> Every[DataPaths]:
    """Return nodes n0, n1 … with one path each."""
    return Every({f"n{i}": DataPaths((row,)) for i, row in enumerate(rows)})


def _looking(**changes: Any) -> DataPath:
    return replace(_ROW, look=replace(_FOLDER, **changes))


_HEALTHY = _nodes(_ROW, _ROW, _ROW)
_HUNG = replace(_ROW, look=Absent("/data: stat: no answer within 10 s", "TimedOut"), content=None)
_FILLED = replace(_looking(available_bytes=0), use="write", content=None)


@check(
    bad=lambda: [(_nodes(_ROW, _HUNG, _ROW),)],
    good=lambda: [(_nodes(_looking(write=False)),)],
    required=True,
    applies=asked,
)
def path(paths: Every[DataPaths]) -> Iterator[Finding]:
    """A path that the job needs is missing, does not answer, or may not be used.

    Right: Every path that the job needs is there, answers, and may be used.
    Why: a job opens its data minutes after its start, on every node; one node without it ends the job, and one whose
    file server does not answer holds it for as long as the server is away, with no message.
    Fix: mount the file system on the nodes named (findmnt PATH, systemctl status remote-fs.target), or correct the
    path; of one that hangs, see the server and the way to it.
    """
    yield from told([each for name, rows in by_path(paths).items() for each in _problems(name, rows)], paths)


def _problems(name: str, rows: Mapping[str, DataPath]) -> Iterator[Finding]:
    problems = {node: words for node, row in rows.items() if (words := problem(row))}
    for words, nodes in vote(problems).groups.items():
        row = rows[nodes[0]]
        blamed = _blamed(row, everywhere=len(nodes) == len(rows))
        yield fail(name, f"{words}{on(nodes, rows)}", nodes=nodes, evidence=_source(row), **blamed)


def _blamed(row: DataPath, *, everywhere: bool) -> dict[str, Any]:
    if not everywhere:
        return NODE
    hangs = isinstance(row.look, Absent) and row.look.refused == "TimedOut"
    return SERVER if hangs else _JOB


def _source(row: DataPath) -> str:
    return row.look.why if isinstance(row.look, Absent) else f"stat {row.path}"


@check(
    bad=lambda: [(_nodes(_ROW, _ROW, replace(_ROW, mount=replace(_NFS, source="fs2:/export"))),)],
    good=lambda: [(_HEALTHY,)],
    required=True,
    applies=asked_of_several,
)
def file_system(paths: Every[DataPaths]) -> Iterator[Finding]:
    """Nodes have different file systems at one path.

    Right: Every node has the same file system at each path.
    Why: where a mount is missing, its mount point is an empty folder of the node's own disk: what is read there is old
    or nothing, and what is written no other node ever sees, until a checkpoint is loaded that is not whole.
    Fix: compare findmnt -T PATH on the nodes named with another's; mount what is missing, from one fstab or automount
    map for all nodes.
    """
    for name, rows in by_path(paths).items():
        mounts = {
            node: row.mount for node, row in rows.items() if isinstance(row.mount, Mount) and not missing(row.look)
        }
        local = {node: each for node, each in mounts.items() if each.is_local}
        remote = {node: each for node, each in mounts.items() if each.is_remote}
        if local and remote:
            usual = vote({node: str(each) for node, each in remote.items()}).usual
            message = f"is local to {named(local)} ({_kinds(local)}); the others have {usual}"
            yield fail(name, message, nodes=tuple(local), evidence="/proc/self/mountinfo", **NODE)
        elif local and len(rows) > 1:
            yield note(name, f"is local to each node ({_kinds(local)})", evidence="/proc/self/mountinfo")
        yield from _compared_mounts(name, {n: m for n, m in mounts.items() if n not in local})


def _kinds(mounts: Mapping[str, Mount]) -> str:
    return ", ".join(sorted({f"{each.kind} of {each.point}" for each in mounts.values()})[:3])


def _compared_mounts(name: str, mounts: Mapping[str, Mount]) -> Iterator[Finding]:
    places = vote({node: str(each) for node, each in mounts.items()})
    options = vote({node: _options(each) for node, each in mounts.items()})
    for ballot, what in ((places, "is another file system"), (options, "is mounted with other options")):
        if not ballot.agreed:
            blamed = NODE if ballot.settled else {"blame": "image", "action": "fix-image"}
            message = f"{what}: {describe(ballot)}"
            yield warn(name, message, nodes=ballot.outliers, evidence="/proc/self/mountinfo", **blamed)


def _options(mount: Mount) -> str:
    return ",".join(each for each in mount.options if each.startswith(_MEANINGFUL))


@check(
    bad=lambda: [(_nodes(_ROW, _looking(kind="file")),)],
    good=lambda: [(_HEALTHY,)],
    required=True,
    applies=asked,
)
def content(paths: Every[DataPaths]) -> Iterator[Finding]:
    """Nodes see different data at one path.

    Right: Every node sees the same data at each path that is read.
    Why: ranks that read other files, or an older copy, train on other data and disagree on the number of batches: the
    job hangs at the end of an epoch, or learns something else, and nothing names the node.
    Fix: on the nodes named, compare ls -la PATH and findmnt -T PATH with another's; copy the data again, remount, or
    drop the node's cache of it (FS-Cache, a local copy).
    """
    found = by_path(paths, "read").items()
    yield from told([each for name, rows in found for each in _differences(name, rows)], paths)


def _differences(name: str, rows: Mapping[str, DataPath]) -> Iterator[Finding]:
    read = {node: row for node, row in rows.items() if isinstance(row.look, Look)}
    yield from _unread(name, read)
    said = {node: _as_seen(row) for node, row in read.items() if isinstance(row.content, Content)}
    ballot = vote(said)
    if not ballot.agreed:
        evidence = [seen(f"{name} on {node}", said[node]) for node in (ballot.outliers or tuple(said))[:3]]
        blamed = NODE if ballot.settled else {"blame": "node", "action": "retest"}
        message = f"is not the same on all nodes: {describe(ballot)}"
        yield fail(name, message, nodes=ballot.outliers, evidence=evidence, **blamed)


def _unread(name: str, rows: Mapping[str, DataPath]) -> Iterator[Finding]:
    unread = {node: row.content for node, row in rows.items() if isinstance(row.content, Absent)}
    reasons = {node: content.why for node, content in unread.items() if not unasked(content)}
    if reasons:
        why = next(iter(reasons.values()))
        message = f"is there, and its content could not be read on {named(reasons)}: {why}"
        yield fail(name, message, nodes=tuple(reasons), evidence=why, **NODE)


def _as_seen(row: DataPath) -> str:
    """Return what two nodes must both say: a folder's count and hash, a file's size and hash."""
    assert isinstance(row.look, Look)
    assert isinstance(row.content, Content)
    if row.look.kind == "folder":
        whole = f"a folder with {row.content.entries} entries, hash {row.content.digest}"
        return "a folder too long to compare" if row.content.cut else whole
    return f"a file of {row.look.nbytes} bytes, hash {row.content.digest}"


@check(
    bad=lambda: [(_nodes(_ROW, _ROW, _looking(user=1001)),)],
    good=lambda: [(_HEALTHY,)],
    applies=asked_of_several,
)
def owner(paths: Every[DataPaths]) -> Iterator[Finding]:
    """Nodes map users differently: one path belongs to different users.

    Right: Each path belongs to one user on all nodes.
    Why: a file server that knows users by number, or an NFSv4 id map that fails (all becomes nobody, 65534), lets one
    node write files that another may not read; the job fails when the first such file is opened.
    Fix: give users one number on all nodes (LDAP, sssd); for NFSv4 compare Domain in /etc/idmapd.conf and run
    nfsidmap -c; look for root_squash at the server.
    """
    for name, rows in by_path(paths).items():
        looks = {node: (row.look, row.mount) for node, row in rows.items() if isinstance(row.look, Look)}
        shared = {n: look for n, (look, mount) in looks.items() if isinstance(mount, Mount) and not mount.is_local}
        every = {node: look for node, (look, _) in looks.items()}
        yield from _differing(name, shared, lambda look: f"owner {look.uid}:{look.gid}", "belongs to different users")
        yield from _differing(name, every, lambda look: f"user {look.user}", "is used by different users")


def _differing(name: str, looks: Mapping[str, Look], say: Callable[[Look], str], what: str) -> Iterator[Finding]:
    ballot = vote({node: say(look) for node, look in looks.items()})
    if not ballot.agreed:
        yield warn(name, f"{what}: {describe(ballot)}", nodes=ballot.outliers, evidence=f"stat {name}", **NODE)


@check(
    bad=lambda: [(_nodes(replace(_FILLED, look=replace(_FOLDER, available_inodes=0))),)],
    good=lambda: [(_nodes(replace(_FILLED, look=_FOLDER)),)],
    required=True,
    applies=asked,
)
def space(paths: Every[DataPaths]) -> Iterator[Finding]:
    """There is no room left where the job writes.

    Right: There is room where the job writes.
    Why: the first checkpoint fails after hours, with a file that is cut; some frameworks have removed the one before by
    then. Inodes run out too: millions of small files.
    Fix: free space or inodes there (df -h PATH, df -i PATH, lfs quota), or write elsewhere.
    """
    for name, rows in by_path(paths, "write", "checkpoint").items():
        looks = {node: row.look for node, row in rows.items() if isinstance(row.look, Look)}
        said = {node: words for node, look in looks.items() if (words := _room(look))}
        for words, nodes in vote(said).groups.items():
            full = words.startswith("is full") or "inodes" in words or "used up" in words
            blamed = _JOB if len(nodes) == len(rows) else NODE
            message = f"{words}{on(nodes, rows)}"
            yield (fail if full else warn)(name, message, nodes=nodes, evidence=f"statvfs {name}", **blamed)


def _room(look: Look) -> str:
    if look.available_bytes < _FULL_BYTES:
        return f"is full: {size(look.available_bytes)} of {size(look.total_bytes)} left to this user"
    if look.inodes and not look.available_inodes:
        return "has no inodes left: no file can be made there"
    for quota in look.quotas:
        if words := _quota(quota):
            return words
    if look.available_bytes < _NEARLY * look.total_bytes:
        return f"is nearly full: less than {_NEARLY:.0%} of {size(look.total_bytes)} left to this user"
    return ""


def _quota(quota: DiskQuota) -> str:
    what, left = f"has a quota of this {quota.kind}", quota.limit_bytes - quota.used_bytes
    if quota.limit_bytes and left < min(_FULL_BYTES, quota.limit_bytes):
        return f"{what} that is used up: {size(max(0, left))} of {size(quota.limit_bytes)} left"
    if quota.limit_files and quota.used_files >= quota.limit_files:
        return f"{what} that is used up: {quota.limit_files} files"
    if quota.limit_bytes and left < _NEARLY * quota.limit_bytes:
        return f"{what} that is nearly used up: {size(left)} of {size(quota.limit_bytes)} left"
    return ""
