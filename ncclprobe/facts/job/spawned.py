"""Ranks whose environment does not say their numbers: started by ``mp.spawn``, a fork or a notebook.

Their program has a variable for it, which py-spy reads. Otherwise the order of start gives the numbers, for so torch's
launchers start ranks, if rank 0 has torch's store (it listens there, and is connected with itself) and none is missing:
one that has ended counts as long as its parent has not waited for it, and torch's records say how many there are.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ncclprobe.facts.field import attempt
from ncclprobe.facts.files.flight_child import read
from ncclprobe.facts.files.flight_records import FlightDump
from ncclprobe.facts.job.meeting import Connection, decoded
from ncclprobe.host import Host
from ncclprobe.host.py_spy import RANKS, WORLDS
from ncclprobe.model import bounds
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_AT_ONCE = 16


class Numbering(Struct, frozen=True):
    """The numbers of ranks by process, empty: not known; how many ranks there are, 0: not known; and their store.

    `ended` are the numbers that no process has any more: fewer than those that live, as their parent has started all.
    """

    numbers: Mapping[int, int]
    world: int = 0
    address: str = ""
    ended: tuple[int, ...] = ()


def numbering(host: Host, living: Sequence[int], started: Sequence[int], parent: int, stacks: bool) -> Numbering:
    """Return the numbers of the ranks `living`, of all that `parent` has `started`, both in the order of start."""
    numbers, world, all_here = _told(host, living, parent) if stacks else ({}, 0, False)
    world = world or _recorded(host, living[0])
    if numbers:
        first = sorted(living, key=numbers.__getitem__)
        missing = tuple(number for number in range(world) if number not in {*numbers.values()})
        ended = missing if all_here and len(missing) < len(living) else ()  # else they may be on other nodes
        return Numbering(numbers, world, own_store(host, first) if numbers[first[0]] == 0 else "", ended)
    address = own_store(host, living) if started[0] == living[0] else ""
    if not address or world > len(started):
        return Numbering({}, world, address)
    return Numbering({pid: started.index(pid) for pid in living}, world or len(started), address)


def _told(host: Host, pids: Sequence[int], parent: int) -> tuple[dict[int, int], int, bool]:
    """Return the numbers that processes have in variables of one name, the one value of those for all ranks, 0: there
    are several, and whether their parent has it too.
    """

    def variables(pid: int) -> Mapping[str, int]:
        said = attempt(lambda: host.ask("numbers", pid))
        found: Mapping[str, int] = {} if isinstance(said, Absent) else decoded(said, dict[str, int])
        return found

    asked = (*pids[: bounds.JOB_STACKS], parent)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        said = dict(zip(asked, pool.map(variables, asked), strict=True))
    for name in RANKS:
        numbers = {pid: said[pid][name] for pid in pids if name in said.get(pid, ())}
        if len(numbers) == len({*numbers.values()}) == len(pids):
            least = max(max(numbers.values()) + 1, len(pids))
            worlds = {each[of] for each in said.values() for of in WORLDS if each.get(of, 0) >= least}
            one = len(worlds) == 1
            return numbers, worlds.pop() if one else 0, one and bool(said[parent].keys() & {*WORLDS})
    return {}, 0, False


def _recorded(host: Host, pid: int) -> int:
    """Return how many ranks the largest group has that torch has recorded of a process; 0: not known."""
    said = attempt(lambda: host.ask("server", pid, "fr_trace_json", 0))
    found = "" if isinstance(said, Absent) else read(said)
    return max((len(group.ranks) for group in found.groups), default=0) if isinstance(found, FlightDump) else 0


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
