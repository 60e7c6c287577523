"""What the nodes of a job see at the paths of --path: data that all must read, and read equally fast.

Judged by path. If some nodes differ from the others, they are named; a problem that all nodes have is the job's (a
misspelt path) or the server's.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from ncclprobe.checks import FABRIC, IMAGE, JOB, NODE, Blamed
from ncclprobe.checks.majority import named, unlike
from ncclprobe.facts.data_paths import Content, DataPath, DataPaths, Look, Mount, ReadRate
from ncclprobe.facts.field import missing
from ncclprobe.model.errors import OutOfTime, Unlearned
from ncclprobe.model.findings import Certainty, Finding, fail, note, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Vote, vote
from ncclprobe.model.stats import median
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import replace

NFS = Mount("/data", "nfs4", "fs1:/export")
_FOLDER = Look("folder", "/data", 0, 0, "0755", 1000, 4096, read=True, enter=True)
NAMES = Content(12, "0123456789abcdef", cut=False)
ROW = DataPath("/data", NFS, _FOLDER, NAMES, ReadRate(64 << 20, 0.07, 0.0))


def on_nodes(*rows: DataPath) -> Every[DataPaths]:
    """Return nodes n0, n1 … with one path each."""
    return Every({f"n{i}": DataPaths((row,)) for i, row in enumerate(rows)})


def looking(**changes: Any) -> DataPath:
    return replace(ROW, look=replace(_FOLDER, **changes))


HEALTHY = on_nodes(ROW, ROW, ROW)
HUNG = replace(ROW, look=Absent("/data: stat: no answer within 10 s", "TimedOut"), content=None, rate=None)


def reading(*per_s: float, **changes: Any) -> Every[DataPaths]:
    """Return nodes n0, n1 … that read so many MB/s."""
    rates = [replace(ReadRate(64 << 20, (64 << 20) / (1e6 * each), 0.0), **changes) for each in per_s]
    return on_nodes(*(replace(ROW, rate=rate) for rate in rates))


@applies
def asked(paths: Every[DataPaths | Absent]) -> bool:
    """if --path is given."""
    return any(not isinstance(each, DataPaths) or each.rows for _, each in paths.items())


@applies
def asked_of_several(paths: Every[DataPaths | Absent]) -> bool:
    """if --path is given and there are several nodes."""
    return len(paths) > 1 and any(not isinstance(each, DataPaths) or each.rows for _, each in paths.items())


def _rows_by_path(paths: Every[DataPaths]) -> dict[str, dict[str, DataPath]]:
    """Return each path's rows by node."""
    found: dict[str, dict[str, DataPath]] = {}
    for node, each in paths.items():
        for row in each.rows:
            found.setdefault(row.path, {})[node] = row
    return found


def _node_suffix(nodes: Sequence[str], every: Sized) -> str:
    """Return `` on n1`` or `` on every node``, to end a sentence; empty if `every` node is a single one."""
    if len(every) == 1:
        return ""
    return " on every node" if len(nodes) == len(every) else f" on {named(nodes)}"


def _unasked(fact: object) -> bool:
    """Return whether it was not asked for want of time, threads or memory: that is unknown, and no node's fault."""
    return isinstance(fact, Absent) and fact.refused == OutOfTime.__name__


def _told(found: Sequence[Finding], paths: Every[DataPaths]) -> Iterator[Finding]:
    """Yield what was found; raise Unlearned if nothing was wrong, and some node had no time left to look."""
    yield from found
    late = [n for n, each in paths.items() if any(map(_unasked, (x for r in each.rows for x in _asked_of(r))))]
    if late and all(each.severity.value == "note" for each in found):
        raise Unlearned(f"--timeout left no time to read the path on {fold(late)}")


def _asked_of(row: DataPath) -> tuple[object, ...]:
    return row.look, row.content, row.rate


def _problem(row: DataPath) -> str:
    """Return what keeps the job from using the path, as the end of a sentence; empty: nothing seen."""
    look = row.look
    if _unasked(look):
        return ""
    if isinstance(look, Absent):
        mounted = "" if isinstance(row.mount, Absent) else f" ({row.mount})"
        words = {"TimedOut": f"does not respond{mounted}", "Missing": "is missing", "Denied": "is not accessible"}
        return words.get(look.refused) or f"cannot be examined: {look.why}"
    if look.kind == "other":
        return "is neither a file nor a folder"
    allowed = look.read and (look.enter or look.kind != "folder")
    return "" if allowed else f"is not readable by user {look.user} (mode {look.mode}, owned by user {look.uid})"


@check(
    bad=lambda: [(on_nodes(ROW, HUNG, ROW),)],
    good=lambda: [(on_nodes(ROW),)],
    required=True,
    applies=asked,
)
def path(paths: Every[DataPaths]) -> Iterator[Finding]:
    """A path that the job needs is missing, unresponsive or inaccessible.

    Right: Every path that the job needs exists, responds and is accessible.
    Why: every node opens the data, often minutes after the job starts. One node without the data ends the job. If one
    node's file server does not respond, the job waits without a message until the server is back.
    Fix: mount the file system on the nodes that the finding names (findmnt PATH, systemctl status remote-fs.target), or
    correct the path. If access hangs, check the file server and the route to it.
    """
    yield from _told([each for name, rows in _rows_by_path(paths).items() for each in _problems(name, rows)], paths)


def _problems(name: str, rows: Mapping[str, DataPath]) -> Iterator[Finding]:
    problems = {node: words for node, row in rows.items() if (words := _problem(row))}
    for words, nodes in vote(problems).groups.items():
        row = rows[nodes[0]]
        blamed = _blamed(row, everywhere=len(nodes) == len(rows))
        yield fail(name, f"{words}{_node_suffix(nodes, rows)}", nodes=nodes, evidence=_source(row), **blamed)


def _blamed(row: DataPath, *, everywhere: bool) -> Blamed:
    if not everywhere:
        return NODE
    hangs = isinstance(row.look, Absent) and row.look.refused == "TimedOut"
    return FABRIC if hangs else JOB


def _source(row: DataPath) -> str:
    return row.look.why if isinstance(row.look, Absent) else f"stat {row.path}"


@check(
    bad=lambda: [(on_nodes(ROW, ROW, replace(ROW, mount=replace(NFS, source="fs2:/export"))),)],
    good=lambda: [(HEALTHY,)],
    required=True,
    applies=asked_of_several,
)
def file_system(paths: Every[DataPaths]) -> Iterator[Finding]:
    """A path is on different file systems on different nodes.

    Right: Each path is on the same file system on every node.
    Why: if a mount is missing, the path is an ordinary folder on the node's own disk. Reads find old files or none, and
    other nodes do not see what this node writes. Often nobody notices until an incomplete checkpoint is loaded.
    Fix: run findmnt -T PATH on the nodes that the finding names and on a healthy one. Mount what is missing, and use
    the same fstab or automount map on all nodes.
    """
    for name, rows in _rows_by_path(paths).items():
        mounts = {
            node: row.mount for node, row in rows.items() if isinstance(row.mount, Mount) and not missing(row.look)
        }
        local = {node: each for node, each in mounts.items() if each.is_local}
        remote = {node: each for node, each in mounts.items() if each.is_remote}
        if local and remote:
            usual = vote({node: str(each) for node, each in remote.items()}).usual
            message = f"is local to {named(local)} ({_kinds(local)}); the other nodes use {usual}"
            yield fail(name, message, nodes=tuple(local), evidence="/proc/self/mountinfo", **NODE)
        elif local and len(rows) > 1:
            yield note(name, f"is local to each node ({_kinds(local)})", evidence="/proc/self/mountinfo")
        yield from _compared_mounts(name, {n: m for n, m in mounts.items() if n not in local})


def _kinds(mounts: Mapping[str, Mount]) -> str:
    return ", ".join(sorted({f"{each.kind} of {each.point}" for each in mounts.values()})[:3])


def _compared_mounts(name: str, mounts: Mapping[str, Mount]) -> Iterator[Finding]:
    ballot = vote({node: str(each) for node, each in mounts.items()})
    blamed = NODE if ballot.settled else IMAGE
    yield from _unlike(
        ballot, name, "is not the same file system on all nodes", evidence="/proc/self/mountinfo", **blamed
    )


def _unlike(ballot: Vote[str], name: str, what: str, **details: Any) -> Iterator[Finding]:
    return unlike(ballot, what=f"{name} {what}:", before=f"{what}: ", subject=name, **details)


@check(
    bad=lambda: [(on_nodes(ROW, looking(kind="file")),)],
    good=lambda: [(HEALTHY,)],
    required=True,
    applies=asked,
)
def content(paths: Every[DataPaths]) -> Iterator[Finding]:
    """Nodes see different data at the same path.

    Right: Every node sees the same data at each path that is read.
    Why: ranks that read different files, or an older copy, train on different data and count different numbers of
    batches. The job hangs at the end of an epoch or trains on the wrong data, and no message names the node.
    Fix: run ls -la PATH and findmnt -T PATH on the nodes that the finding names and on a healthy one. Copy the data
    again, remount, or clear the node's cache of it (FS-Cache, a local copy).
    """
    found = _rows_by_path(paths).items()
    yield from _told([each for name, rows in found for each in _differences(name, rows)], paths)


def _differences(name: str, rows: Mapping[str, DataPath]) -> Iterator[Finding]:
    read = {node: row for node, row in rows.items() if isinstance(row.look, Look)}
    yield from _unread(name, read)
    said = {node: _content_of(row) for node, row in read.items() if isinstance(row.content, Content)}
    ballot = vote(said)
    evidence = [seen(f"{name} on {node}", said[node]) for node in (ballot.outliers or tuple(said))[:3]]
    blamed = NODE if ballot.settled else {"blame": "node", "action": "retest"}
    yield from _unlike(ballot, name, "is not the same on all nodes", tell=fail, evidence=evidence, **blamed)


def _unread(name: str, rows: Mapping[str, DataPath]) -> Iterator[Finding]:
    unread = {node: row.content for node, row in rows.items() if isinstance(row.content, Absent)}
    reasons = {node: content.why for node, content in unread.items() if not _unasked(content)}
    if reasons:
        why = next(iter(reasons.values()))
        message = f"exists, but its content could not be read on {named(reasons)}: {why}"
        yield fail(name, message, nodes=tuple(reasons), evidence=why, **NODE)


def _content_of(row: DataPath) -> str:
    """Return what two nodes must both say: a folder's count and hash, a file's size and hash."""
    assert isinstance(row.look, Look)
    assert isinstance(row.content, Content)
    if row.look.kind == "folder":
        whole = f"a folder with {row.content.entries} entries, hash {row.content.digest}"
        return "a folder too long to compare" if row.content.cut else whole
    return f"a file of {row.look.nbytes} bytes, hash {row.content.digest}"


_SLOW = 0.4
"""A share of what the others reach: a node at a third of them is found whatever a fifth of noise adds."""
_SHORT_S = 0.02
"""What took less is decided by a moment of the scheduler's, and names no node."""


@check(
    slows=True,
    bad=lambda: [(reading(900, 300, 900, 900),)],
    good=lambda: [(reading(900, 700, 900, 900),)],
    required=True,
    requires="data.content",
    applies=asked,
)
def rate(paths: Every[DataPaths]) -> Iterator[Finding]:
    """A node reads a path far more slowly than the others.

    Right: No node reads far more slowly than the others.
    Why: in each step every rank waits for the slowest one, so one slow mount slows the whole job. It looks like a slow
    network, but the network counters show nothing.
    Fix: compare the mount options (findmnt -T PATH shows nconnect, rsize and wsize) and the route to the server with
    those of a healthy node. Check the node's link to the storage network (ethtool, ip -s link), and look for other
    processes that read on the node.
    """
    yield from _told([each for name, rows in _rows_by_path(paths).items() for each in _rates(name, rows)], paths)


def _rates(name: str, rows: Mapping[str, DataPath]) -> Iterator[Finding]:
    rates = {node: row.rate for node, row in rows.items() if row.rate is not None}
    known = {node: each for node, each in rates.items() if isinstance(each, ReadRate) and each.per_s}
    yield from _unmeasured(name, rates)
    systems = {node: str(rows[node].mount) for node, each in known.items() if not each.from_memory}
    for nodes in vote(systems).groups.values():
        if len(nodes) > 1:
            yield from _slow(name, {node: known[node] for node in nodes})
    yield from _numbers(name, known)


def _unmeasured(name: str, rates: Mapping[str, ReadRate | Absent]) -> Iterator[Finding]:
    """Yield which nodes got an error, or no answer."""
    bad = {node: each.why for node, each in rates.items() if isinstance(each, Absent) and not _unasked(each)}
    for why, nodes in vote(bad).groups.items():
        blamed = FABRIC if len(rates) == len(nodes) > 1 else NODE
        yield fail(
            name, f"could not be measured{_node_suffix(nodes, rates)}: {why}", nodes=nodes, evidence=why, **blamed
        )
    small = {node: each.why for node, each in rates.items() if isinstance(each, ReadRate) and each.why}
    for why, nodes in vote(small).groups.items():
        yield note(name, why, nodes=nodes)


def _slow(name: str, rates: Mapping[str, ReadRate]) -> Iterator[Finding]:
    others = {node: median(r.per_s for other, r in rates.items() if other != node) for node in rates}
    slow = {n: each for n, each in rates.items() if each.per_s < _SLOW * others[n] and each.seconds >= _SHORT_S}
    if not slow:
        return
    usual = median(each.per_s for node, each in rates.items() if node not in slow)
    worst = min(each.per_s for each in slow.values())
    told = ", ".join(_shown(each.per_s) for each in list(slow.values())[:3])
    message = f"sequential reads reach {told} on {named(slow)}; the others reach {_shown(usual)}"
    evidence = [
        seen(f"sequential reads of {name} on {node}", f"{size(each.nbytes)} in {each.seconds:.3g} s")
        for node, each in list(slow.items())[:3]
    ]
    sure = Certainty("medium" if len(rates) > 2 else "low", "the best of three turns on each node")
    details = {**NODE, "confidence": sure, "loss": round(1 - worst / usual, 3)}
    yield warn(name, message, nodes=tuple(slow), evidence=evidence, **details)


def _numbers(name: str, rates: Mapping[str, ReadRate]) -> Iterator[Finding]:
    """Report what was measured, and what may have come from memory."""
    if not rates:
        return
    usual = _shown(median(each.per_s for each in rates.values()))
    whose = f"the median of {plural(len(rates), 'node')}" if len(rates) > 1 else "only one node was measured"
    yield note(name, f"sequential reads reach {usual}: {whose}", evidence="the best of three turns on each node")
    held = {node: each.resident or 0.0 for node, each in rates.items() if each.from_memory}
    if held:
        message = (
            f"{max(held.values()):.0%} of the data came from the page cache of {named(held)}, so that rate is not "
            "compared"
        )
        yield note(name, message, nodes=tuple(held), evidence="mincore(2) after POSIX_FADV_DONTNEED")
    unknown = [node for node, each in rates.items() if each.resident is None]
    if unknown:
        message = (
            f"reads on {named(unknown)} may have come from the page cache: "
            "the kernel reports that only to a process that may write"
        )
        yield note(name, message, evidence="mincore(2) after POSIX_FADV_DONTNEED")


def _shown(per_s: float) -> str:
    return f"{float(f'{per_s / 1e6:.3g}'):g} MB/s"
