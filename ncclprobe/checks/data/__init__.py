"""What the nodes of a job see at the paths of --path: data that all must read, folders that checkpoints go to.

Judged by path. Where some nodes differ from the others, they are named; a problem that all nodes have is the job's (a
misspelt path) or the server's.
"""

from collections.abc import Iterator, Sequence, Sized
from typing import get_args

from ncclprobe.checks.sync import named
from ncclprobe.facts.data_paths import DataPath, DataPaths, Use
from ncclprobe.model.errors import OutOfTime, Unlearned
from ncclprobe.model.findings import Finding
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent, Every


@applies
def asked(paths: Every[DataPaths | Absent]) -> bool:
    """if --path names what the job reads or writes."""
    return any(not isinstance(each, DataPaths) or each.rows for _, each in paths.items())


@applies
def asked_of_several(paths: Every[DataPaths | Absent]) -> bool:
    """if --path names what several nodes read or write."""
    return len(paths) > 1 and any(not isinstance(each, DataPaths) or each.rows for _, each in paths.items())


def by_path(paths: Every[DataPaths], *uses: Use) -> dict[str, dict[str, DataPath]]:
    """Return each path's rows by node, of these uses; where a path has several, one that is written to."""
    found: dict[str, dict[str, DataPath]] = {}
    for node, each in paths.items():
        for row in each.rows:
            if row.use in (uses or get_args(Use)):
                known = found.setdefault(row.path, {})
                if node not in known or row.use != "read":
                    known[node] = row
    return found


def on(nodes: Sequence[str], every: Sized) -> str:
    """Return `` on n1`` or `` on every node``, to end a sentence; empty where `every` node is one alone."""
    if len(every) == 1:
        return ""
    return " on every node" if len(nodes) == len(every) else f" on {named(nodes)}"


def unasked(fact: object) -> bool:
    """Return whether it was not asked for want of time, threads or memory: that is unknown, and no node's fault."""
    return isinstance(fact, Absent) and fact.refused == OutOfTime.__name__


def told(found: Sequence[Finding], paths: Every[DataPaths]) -> Iterator[Finding]:
    """Yield what was found; raise Unlearned where nothing was, and no time was left to look at a path on some node."""
    yield from found
    late = [node for node, each in paths.items() if any(unasked(r.look) or unasked(r.content) for r in each.rows)]
    if late and not found:
        raise Unlearned(f"--timeout left no time to look on {fold(late)}")


def problem(row: DataPath) -> str:
    """Return what keeps the job from using the path, as the end of a sentence; empty: nothing seen."""
    look = row.look
    if unasked(look):
        return ""
    if isinstance(look, Absent):
        mounted = "" if isinstance(row.mount, Absent) else f" ({row.mount})"
        words = {"TimedOut": f"does not answer{mounted}", "Missing": "is missing", "Denied": "may not be reached"}
        return words.get(look.refused) or f"cannot be looked at: {look.why}"
    if row.use == "read":
        allowed = look.read and (look.enter or look.kind != "folder")
        return "" if allowed else f"may not be read by user {look.user} (mode {look.mode} of user {look.uid})"
    if look.kind != "folder":
        return f"is a {look.kind}, not a folder to write to" if look.kind == "file" else "is no folder to write to"
    if look.read_only:
        return "is on a file system that is read-only"
    allowed = look.write and look.enter
    return "" if allowed else f"may not be written by user {look.user} (mode {look.mode} of user {look.uid})"
