"""Ranks whose environment does not say their numbers: started by ``mp.spawn``, a fork or a notebook.

Torch's launchers start such ranks in the order of their numbers, and rank 0 has torch's store: it listens there, and
is connected with itself. A program that numbers its ranks otherwise is not numbered here.
"""

from collections.abc import Sequence

from ncclprobe.facts.field import attempt
from ncclprobe.facts.job.meeting import Connection, decoded
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.snapshot import Absent


def own_store(host: Host, pids: Sequence[int]) -> str:
    """Return the address of the store that the first of `pids` serves, as it calls it; empty: another or none does."""
    said = attempt(lambda: host.ask("connections", 0, *pids[: bounds.NODE_RANKS]))
    if isinstance(said, Absent):
        return ""
    found: tuple[Connection, ...] = decoded(said, tuple[Connection, ...])
    owners = {each.local: each.pid for each in found}
    own = {each.peer: each.pid for each in found if owners.get(each.peer) == each.pid}
    called = {end: sum(each.peer == end and each.pid != pid for each in found) for end, pid in own.items()}
    best = max(own, key=lambda end: called[end], default="")
    if best and not called[best] and set(own.values()) == {pids[0]}:  # no other rank has come yet
        best = next((end for end in own if _listens(host, end, pids[0])), "")
    return best if best and own[best] == pids[0] else ""


def _listens(host: Host, end: str, pid: int) -> bool:
    said = attempt(lambda: host.ask("at_port", int(end.rpartition(":")[2]), pid))
    found: tuple[Connection, ...] = () if isinstance(said, Absent) else decoded(said, tuple[Connection, ...])
    return any(each.state == "listening" and each.pid == pid for each in found)
