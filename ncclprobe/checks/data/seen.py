"""What the nodes see at each path, what each wrote there, and what the others saw of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks import FABRIC, IMAGE, JOB, NODE, Blamed
from ncclprobe.checks.data import asked, asked_of_several, by_path, on, problem, told, unasked
from ncclprobe.checks.sync import named, unlike
from ncclprobe.facts.data_paths import (
    UNWRITTEN,
    Content,
    DataPath,
    DataPaths,
    DataWrites,
    DiskQuota,
    Look,
    Mount,
    Sight,
    Written,
)
from ncclprobe.facts.field import missing
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Vote, vote
from ncclprobe.model.units import size
from ncclprobe.model.values import grouped, replace

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


def _blamed(row: DataPath, *, everywhere: bool) -> Blamed:
    if not everywhere:
        return NODE
    hangs = isinstance(row.look, Absent) and row.look.refused == "TimedOut"
    return FABRIC if hangs else JOB


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
        blamed = NODE if ballot.settled else IMAGE
        yield from _unlike(ballot, name, what, evidence="/proc/self/mountinfo", **blamed)


def _unlike(ballot: Vote[str], name: str, what: str, **details: Any) -> Iterator[Finding]:
    return unlike(ballot, what=f"{name} {what}:", before=f"{what}: ", subject=name, **details)


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
    evidence = [seen(f"{name} on {node}", said[node]) for node in (ballot.outliers or tuple(said))[:3]]
    blamed = NODE if ballot.settled else {"blame": "node", "action": "retest"}
    yield from _unlike(ballot, name, "is not the same on all nodes", tell=fail, evidence=evidence, **blamed)


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
    yield from _unlike(ballot, name, what, evidence=f"stat {name}", **NODE)


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
            blamed = JOB if len(nodes) == len(rows) else NODE
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


_LATE_S = 1.0
"""Files of a shared file system are there for all within milliseconds; caches of attributes keep them for seconds."""
_UNSEEN = {
    "other": "see an old or cut version",
    "unopened": "see its name and cannot open it",
    "no-file": "see the folder, and nothing in it",
    "no-folder": "see nothing of it",
    "denied": "may not read it",
    "hung": "got no answer",
    "refused": "could not look",
}

_OUT = Mount("/out", "nfs4", "fs1:/out")
_LOOK = Look(
    "folder", "/out", 0, 0, "0777", 1000, 4096, 1.7e9, True, True, True, 1 << 40, 1 << 39, 1 << 20, 1 << 19, False
)
_ASKED = Every({f"n{i}": DataPaths((DataPath("/out", "write", _OUT, _LOOK),)) for i in range(3)})
_ALONE = Every({"n0": _ASKED.by_node["n0"]})
_WRITERS = {0: "n0", 1: "n1", 2: "n2"}
_STEPS = {"mkdir": 0.001, "fsync": 0.01, "rename": 0.001, "create": 0.02, "spare": 0.001, "unlink": 0.001}


def _wrote(me: int, *sights: Sight, **changes: Any) -> DataWrites:
    row = Written("/out", "write", "", seconds=_STEPS, digests={"marker": "ab"}, sights=sights)
    return DataWrites(me, _WRITERS, (replace(row, **changes),))


def _writes(
    outcome: str = "ok", seconds: float = 0.0, by: Sequence[int] = (1,), name: str = "marker", of: int = -1
) -> Any:
    """Return three nodes that see each other's files, but that of the nodes `by` see those of `of` (-1: all) so."""

    def sight(me: int, other: int) -> Sight:
        bad = me in by and of in (-1, other)
        return Sight(other, name, outcome if bad else "ok", seconds if bad else 0.01)

    use = "write" if name == "marker" else "checkpoint"
    return Every({
        f"n{me}": _wrote(me, *(sight(me, other) for other in range(3) if other != me), use=use) for me in range(3)
    })  # fmt: skip


_FULL = Every({"n0": _wrote(0), "n1": _wrote(1, failed="fsync", why="No space left on device"), "n2": _wrote(2)})


@applies
def writing(paths: Every[DataPaths | Absent]) -> bool:
    """if --path names what the job writes to."""
    return any(row.use != "read" for row in _rows(paths))


@applies
def writing_together(paths: Every[DataPaths | Absent]) -> bool:
    """if --path names what several nodes write to."""
    return len(paths) > 1 and any(row.use != "read" for row in _rows(paths))


@applies
def saving(paths: Every[DataPaths | Absent]) -> bool:
    """if --path names a folder to which several nodes write checkpoints."""
    return len(paths) > 1 and any(row.use == "checkpoint" for row in _rows(paths))


def _rows(paths: Every[DataPaths | Absent]) -> Iterator[DataPath]:
    for _, each in paths.items():
        yield from each.rows if isinstance(each, DataPaths) else ()


def _known(writes: Every[DataWrites | Absent], paths: Every[DataPaths]) -> dict[str, dict[str, Written]]:
    """Return what nodes wrote, by path and node, without what data.path says already: that a node may not write."""
    asked = by_path(paths, "write", "checkpoint")
    found: dict[str, dict[str, Written]] = {}
    for node, each in writes.items():
        for row in each.rows if isinstance(each, DataWrites) else ():
            known = asked.get(row.path, {}).get(node)
            unable = known is not None and problem(known)
            found.setdefault(row.path, {})[node] = _without_failures(row) if unable else row
    return found


def _without_failures(row: Written) -> Written:
    told = tuple(sight for sight in row.sights if not sight.outcome.startswith(UNWRITTEN))
    return replace(row, failed="", why="", sights=told)


def _told(found: Sequence[Finding], writes: Every[DataWrites | Absent], paths: Every[DataPaths]) -> Iterator[Finding]:
    """Yield what was found; raise Unlearned where nothing was, and a node that could look at a path does not say."""
    yield from found
    able = [
        node
        for node, each in paths.items()
        if any(row.use != "read" and isinstance(row.look, Look) for row in each.rows)
    ]
    silent = [node for node in able if not isinstance(writes.by_node.get(node), DataWrites)]
    if silent and not found:
        raise Unlearned(f"it is not known what {named(silent)} could write there, and what others saw of it")


@check(
    bad=lambda: [(_FULL, _ASKED)],
    good=lambda: [(Every({"n0": _wrote(0, left=True, swept=(".ncclprobe-n0-1.2-3",))}), _ALONE)],
    required=True,
    applies=writing,
)
def write(writes: Every[DataWrites | Absent], paths: Every[DataPaths]) -> Iterator[Finding]:
    """A file cannot be written where the job writes.

    Right: Files can be made, written to the disk, renamed and removed where the job writes.
    Why: frameworks write a checkpoint under another name, fsync and rename it; where one of these fails, the job ends
    hours after its start, at its first checkpoint.
    Fix: do the same by hand as the same user on the nodes named (touch, sync, mv, rm); see space, quota (quota -s, lfs
    quota), the mount's options and the server's log.
    """
    yield from _told(
        [each for path, rows in _known(writes, paths).items() for each in _written(path, rows)], writes, paths
    )


def _written(path: str, rows: Mapping[str, Written]) -> Iterator[Finding]:
    failed = {node: f"{row.failed} failed: {row.why}" for node, row in rows.items() if row.failed}
    for words, nodes in vote(failed).groups.items():
        blamed = FABRIC if len(nodes) == len(rows) > 1 else NODE
        yield fail(path, f"{words}{on(nodes, rows)}", nodes=nodes, evidence=f"a folder of ours in {path}", **blamed)
    left = {node: row.folder for node, row in rows.items() if row.left}
    for node, folder in left.items():
        yield note(path, f"{folder} could not be removed on {node}; remove it", nodes=(node,))
    swept = [name for row in rows.values() for name in row.swept]
    if swept:
        yield note(path, f"removed what a killed run had left: {', '.join(swept[:3])}")


@check(
    bad=lambda: [(_writes(seconds=4.0), _ASKED)],
    good=lambda: [(_writes(), _ASKED)],
    required=True,
    applies=writing_together,
)
def shared(writes: Every[DataWrites | Absent], paths: Every[DataPaths]) -> Iterator[Finding]:
    """A node does not see, or sees late, what other nodes write.

    Right: Every node sees within a second what the others write.
    Why: a checkpoint is read by other nodes than those that wrote it: after a restart, or at once where one rank checks
    that all shards are there. What is late is taken for missing.
    Fix: mount one file system on all nodes (findmnt -T PATH on the nodes named); where it is one and late, lower its
    caching of attributes (nfs(5): actimeo, lookupcache=none), or let the framework wait.
    """
    names, found = _named(writes), list[Finding]()
    for path, rows in _known(writes, paths).items():
        together = _without(_local_ones(by_path(paths, "write", "checkpoint").get(path, {})), rows, names)
        found += _seen_by(path, together, {"marker"}, names, "what others write")
    yield from _told(found, writes, paths)


@check(
    bad=lambda: [(_writes(seconds=5.0, name="COMPLETE"), _ASKED)],
    good=lambda: [(_writes(name="COMPLETE"), _ASKED)],
    required=True,
    applies=saving,
)
def checkpoint(writes: Every[DataWrites | Absent], paths: Every[DataPaths]) -> Iterator[Finding]:
    """A checkpoint that is marked complete is not whole, or not there in time, for every node.

    Right: Once a checkpoint is marked complete, every node sees all of it.
    Why: frameworks write all shards, then the manifest, then a marker, and load what has the marker. A node that sees
    the marker and not the shards loads a checkpoint that is cut, or starts again from nothing.
    Fix: as for data.shared; where only shards are late, let the ranks meet (a barrier) after fsync of files and folder
    and before the marker is written.
    """
    names, found = _named(writes), list[Finding]()
    for path, rows in _known(writes, paths).items():
        able = {node: _without_failures(row) if row.failed else row for node, row in rows.items()}  # data.write says it
        apart = _local_ones(by_path(paths, "write", "checkpoint").get(path, {})) | _blind(_sights(rows, {"marker"}))
        files = {sight.name for row in rows.values() for sight in row.sights} - {"marker"}
        found += _seen_by(path, _without(apart, able, names), files, names, "a checkpoint")
    yield from _told(found, writes, paths)


def _local_ones(rows: Mapping[str, DataPath]) -> set[str]:
    """Return the nodes whose path is local where that of others is not: data.file-system says it."""
    mounts = {node: row.mount for node, row in rows.items() if isinstance(row.mount, Mount)}
    if not any(mount.is_remote for mount in mounts.values()):
        return set()
    return {node for node, mount in mounts.items() if mount.is_local}


def _without(apart: set[str], rows: Mapping[str, Written], names: Mapping[int, str]) -> dict[str, Written]:
    """Return what the other nodes saw of each other."""
    return {
        node: replace(row, sights=tuple(sight for sight in row.sights if names.get(sight.of) not in apart))
        for node, row in rows.items()
        if node not in apart
    }


def _sights(rows: Mapping[str, Written], files: set[str]) -> dict[str, list[Sight]]:
    return {node: [sight for sight in row.sights if sight.name in files] for node, row in rows.items()}


def _blind(told: Mapping[str, Sequence[Sight]]) -> set[str]:
    """Return the nodes that looked, and saw nothing."""
    return {node for node, sights in told.items() if sights and all(sight.outcome != "ok" for sight in sights)}


def _named(writes: Every[DataWrites | Absent]) -> Mapping[int, str]:
    return {each.me: node for node, each in writes.items() if isinstance(each, DataWrites)}


def _seen_by(
    path: str, rows: Mapping[str, Written], files: set[str], names: Mapping[int, str], what: str
) -> Iterator[Finding]:
    """Yield who of the nodes did not see, or saw late, files of these names: one finding for each way it went wrong."""
    told = _sights(rows, files)
    blind = sorted(_blind(told))
    looking = [node for node, sights in told.items() if sights]
    bad = {node: unseen for node in looking if (unseen := [s for s in told[node] if s.outcome != "ok"])}
    evidence = [_evidence(path, node, sights[0], names) for node, sights in bad.items()][:3]
    if blind and len(blind) == len(looking):
        message = f"no node sees {what}: it is not shared"
        yield fail(path, message, nodes=tuple(blind), evidence=evidence, **JOB)
        return
    hung = [node for node in blind if {sight.outcome for sight in told[node]} == {"hung"}]
    said = {"gets no answer any more": hung, "sees nothing of " + what: [each for each in blind if each not in hung]}
    for each, nodes in said.items():
        if nodes:
            message = f"{named(nodes)} {each}; the others do"
            yield fail(path, message, nodes=tuple(nodes), evidence=evidence, **NODE)
    seeing = {node: told[node] for node in looking if node not in blind}
    for message, nodes in _partly({node: bad[node] for node in seeing if node in bad}, blind, names):
        yield fail(path, message, nodes=tuple(nodes), evidence=evidence, **NODE)
    slow = _late(rows, seeing)
    if slow:
        message = f"{named(slow)} saw {what} late: up to {max(slow.values()):.3g} s after it was written"
        node = max(slow, key=lambda each: slow[each])
        last = _evidence(path, node, max(told[node], key=lambda sight: sight.seconds), names)
        yield warn(path, message, nodes=tuple(slow), evidence=[last], **FABRIC if len(slow) == len(looking) else NODE)


def _late(rows: Mapping[str, Written], told: Mapping[str, Sequence[Sight]]) -> dict[str, float]:
    """Return the nodes that saw a file in the end, and how many seconds after it was written; of more than a second."""
    written_s = {"COMPLETE": max((row.seconds.get("until COMPLETE", 0.0) for row in rows.values()), default=0.0)}
    waits = {
        node: max((s.seconds - written_s.get(s.name, 0.0) for s in sights if s.outcome == "ok"), default=0.0)
        for node, sights in told.items()
    }
    return {node: seconds for node, seconds in waits.items() if seconds > _LATE_S}


def _partly(
    bad: Mapping[str, Sequence[Sight]], blind: Sequence[str], names: Mapping[int, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield what of one writer's files some nodes did not see, in words, and these nodes."""
    found = grouped(
        (names.get(sight.of, f"node {sight.of}"), (node, sight)) for node, sights in bad.items() for sight in sights
    )
    for writer, missed in found.items():
        if writer not in blind:  # else its own folder is elsewhere
            nodes, first = sorted({node for node, _ in missed}), missed[0][1]
            words = _UNSEEN.get(first.outcome, first.outcome)
            yield f"{first.name} of {writer}: {named(nodes)} {words}, {first.seconds:.3g} s after looking first", nodes


def _evidence(path: str, node: str, sight: Sight, names: Mapping[int, str]) -> Any:
    whose = names.get(sight.of, f"node {sight.of}")
    return seen(
        f"{sight.name} of {whose} in {path}, looked for on {node}", f"{sight.outcome} after {sight.seconds:.3g} s"
    )
