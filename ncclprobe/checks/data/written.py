"""What each node wrote at a path, and what the others saw of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks.data import NODE, SERVER, by_path, on, problem
from ncclprobe.checks.sync import named
from ncclprobe.errors import Unlearned
from ncclprobe.facts.data_paths import UNWRITTEN, DataPath, DataPaths, DataWrites, Look, Mount, Sight, Written
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.values import replace

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

_NFS = Mount("/out", "nfs4", "fs1:/out")
_LOOK = Look(
    "folder", "/out", 0, 0, "0777", 1000, 4096, 1.7e9, True, True, True, 1 << 40, 1 << 39, 1 << 20, 1 << 19, False
)
_ASKED = Every({f"n{i}": DataPaths((DataPath("/out", "write", _NFS, _LOOK),)) for i in range(3)})
_ALONE = Every({"n0": _ASKED.by_node["n0"]})
_NAMES = {0: "n0", 1: "n1", 2: "n2"}
_STEPS = {"mkdir": 0.001, "fsync": 0.01, "rename": 0.001, "create": 0.02, "spare": 0.001, "unlink": 0.001}


def _wrote(me: int, *sights: Sight, **changes: Any) -> DataWrites:
    row = Written("/out", "write", "", seconds=_STEPS, digests={"marker": "ab"}, sights=sights)
    return DataWrites(me, _NAMES, (replace(row, **changes),))


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
    """where --path names what the job writes to."""
    return any(row.use != "read" for row in _rows(paths))


@applies
def writing_together(paths: Every[DataPaths | Absent]) -> bool:
    """where --path names what several nodes write to."""
    return len(paths) > 1 and any(row.use != "read" for row in _rows(paths))


@applies
def saving(paths: Every[DataPaths | Absent]) -> bool:
    """where --path names a folder to which several nodes write checkpoints."""
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
        blamed = SERVER if len(nodes) == len(rows) > 1 else NODE
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
        yield fail(path, message, nodes=tuple(blind), evidence=evidence, blame="job", action="fix-job")
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
        yield warn(path, message, nodes=tuple(slow), evidence=[last], **SERVER if len(slow) == len(looking) else NODE)


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
    found: dict[str, list[tuple[str, Sight]]] = {}
    for node, sights in bad.items():
        for sight in sights:
            found.setdefault(names.get(sight.of, f"node {sight.of}"), []).append((node, sight))
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
