"""Ranks whose environment lacks their numbers: started by ``mp.spawn``, a fork or a notebook.

py-spy reads the number from a variable of their program. Otherwise the order of start gives the numbers, as torch's
launchers start ranks in order. This holds if rank 0 has torch's store (it listens there, and is connected to itself)
and none is missing: an exited rank still counts until its parent has waited for it, and torch's records show how many
there are.
"""

from collections.abc import Collection, Mapping, Sequence
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
    """Rank numbers by process (empty: unknown), the number of ranks (0: unknown), and their store.

    `ended` are numbers without a process. They are fewer than the living ranks, and one parent started all of them.
    """

    numbers: Mapping[int, int]
    world: int = 0
    address: str = ""
    ended: tuple[int, ...] = ()


def numbering(host: Host, living: Sequence[int], started: Sequence[int], parent: int, stacks: bool) -> Numbering:
    """Return the numbers of the `living` ranks among all that `parent` has `started`, both in the order of start."""
    numbers, world, all_here = _numbers_in_programs(host, living, parent) if stacks else ({}, 0, False)
    world = world or _recorded_world(host, living[0])
    if numbers:
        first = sorted(numbers, key=numbers.__getitem__)
        by_start = all(started.index(pid) == number for pid, number in numbers.items())
        world, all_here = (len(started), True) if by_start and not world else (world, all_here)
        missing = tuple(number for number in range(world) if number not in {*numbers.values()})
        ended = missing if all_here and len(missing) < len(numbers) else ()  # else they may be on other nodes
        return Numbering(numbers, world, own_store(host, first) if numbers[first[0]] == 0 else "", ended)
    started = living if world == len(living) else started  # what has exited beside them was no rank
    address = own_store(host, living) if started[0] == living[0] else ""
    if not address or world > len(started):
        return Numbering({}, world, address)
    return Numbering({pid: started.index(pid) for pid in living}, world or len(started), address)


def _numbers_in_programs(host: Host, pids: Sequence[int], parent: int) -> tuple[dict[int, int], int, bool]:
    """Return the ranks' numbers from variables of one name, the world size (0: ambiguous), and whether the parent has
    it too.

    The world size is the one value that all ranks share.
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
        if numbers and len(numbers) == len({*numbers.values()}):
            least = max(max(numbers.values()) + 1, len(numbers))
            worlds = {each[of] for each in said.values() for of in WORLDS if each.get(of, 0) >= least}
            one = len(worlds) == 1
            if len(numbers) < len(pids) and worlds != {len(numbers)}:  # else the others are helpers
                continue
            return numbers, worlds.pop() if one else 0, one and bool(said[parent].keys() & {*WORLDS})
    return {}, 0, False


def _recorded_world(host: Host, pid: int) -> int:
    """Return the size of the largest group in torch's records of a process; 0: unknown."""
    said = attempt(lambda: host.ask("server", pid, "fr_trace_json", 0))
    found = "" if isinstance(said, Absent) else read(said)
    return max((len(group.ranks) for group in found.groups), default=0) if isinstance(found, FlightDump) else 0


def members(host: Host, pids: Sequence[int]) -> Collection[int]:
    """Return which of the processes `pids` are ranks: those that are connected with the store that one of them serves.

    That is known once two ranks are connected with each other; until then, all are returned. The others are helpers,
    which serve metrics or fetch data.
    """
    said = attempt(lambda: host.ask("connections", 0, *pids[: bounds.NODE_RANKS]))
    found: tuple[Connection, ...] = () if isinstance(said, Absent) else decoded(said, tuple[Connection, ...])
    owners = {each.local: each.pid for each in found}
    stores = {each.peer for each in found if owners.get(each.peer) == each.pid}
    joined = {each.pid for each in found if each.peer in stores}
    between = [each for each in found if not {each.local, each.peer} & stores]
    meshed = any({each.pid, owners.get(each.peer, each.pid)} <= joined and each.pid != owners.get(each.peer, each.pid)
                 for each in between)  # fmt: skip
    return joined if meshed else pids


def own_store(host: Host, pids: Sequence[int]) -> str:
    """Return the address of the store that the first of `pids` serves, as it names it; empty: another or none does."""
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
