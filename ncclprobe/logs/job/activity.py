"""Describe the activity of one rank's process from two looks, and find the connections that are idle."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.meeting import LOOPBACK, Connection
from ncclprobe.facts.job.process_state import (
    ASLEEP,
    OUTSIDE,
    READS,
    WRITES,
    Child,
    LiveRank,
    ProcessState,
    shared,
    suspects,
)
from ncclprobe.facts.job.ranks import JobLook, JobLooks, JobProcess, LocalRanks
from ncclprobe.facts.job.stacks import ThreadPlace
from ncclprobe.facts.traffic import Count, moved
from ncclprobe.logs.collectives import caller
from ncclprobe.logs.job.arguments import of_peer
from ncclprobe.logs.job.reasons import (
    FOR_PROCESSES,
    FOR_THREADS,
    HALTED,
    LOCKS,
    OF_PROCESSES,
    POLLS,
    Doing,
    of_debugger,
    of_stack,
    signalled,
    waits,
)
from ncclprobe.model.findings import Evidence, seen
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Struct, field, grouped, replace

Activity = Literal["gone", "stopped", "idle", "spins", "busy", "unseen"]
_BUSY_CORES, _STARVED_CORES = 0.1, 0.02
"""Processor time of a process at work; answering torch's recorder and waking now and then take less. One that takes
the second and waits for a processor for the rest of the first is at work too, on a node with more to do than it can."""
_BUSY_BYTES_S = 64 << 10
_WAKES, _RAN_EACH_S, _RAN_SHARE = 3, 0.5e-3, 0.005
"""A first thread that wakes so often between the looks, and each time runs as long, computes in small pieces; to ask
again whether something is there takes less."""
_RECEIVED_BYTES_S = 4 << 10
"""What a program receives in a second on a socket of its own that is work: what RAS and heartbeats say is less."""
_WITHOUT_MEMORY_S = 0.1
_MOST_THREADS, _MOST_USERS = 3, 4
_MUCH_SWAP = 64 << 20
_LOOP_FAULTS, _ANSWER_FAULTS = 200, 20
"""A loop that computes nothing new touches no new memory in a second of a processor, and reads and writes nothing;
answering takes some faults."""
_ENDED = ("Z", "X")
_START = "_bootstrap"
"""The function of multiprocessing in which a process begins its own work; around it are frames of its parent's."""
_OF_STATES = {"D": "storage", "T": "stopped", "t": "traced"}
_BY_SIGNAL = "is stopped by a signal"
_CALLS = {
    "nanosleep": "sleep",
    "futex": "lock",
    "wait4": "child",
    "waitid": "child",
    "flock": "file-lock",
    "fcntl": "file-lock",
    "connect": "connect",
    "fsync": "disk",
    **dict.fromkeys(READS, "read"),
    **dict.fromkeys(WRITES, "write"),
    **dict.fromkeys(("pause", "sigsuspend", "sigtimedwait"), "signal"),
}
_FOR_INPUT = ("poll", "select", "epoll_wait")
_FIFO = "wait_for_partner"
"""The kernel function in which open(2) of a FIFO waits (fs/pipe.c)."""
_FOR_A_CHILD = ("wait4", "waitid")
_STORE = "the job's store at"
"""The other end of a connection to it: a client that waits for its answer has asked for a key which nobody has set."""


class RankView(Struct, frozen=True):
    """One rank as it was examined: its node, its process at both looks, the stacks of its first thread.

    `rank` is below zero if it is not known: the number of its process. `process` is None if it has none.
    `oom_kills` are those of the cgroups of its node's ranks. `unread`: why its stacks were asked for and not read.
    `of_children` are the stacks of processes that it has started. `gpu` is NVML's report of its GPU, `trouble` why
    this may hold it up. `received_bytes` arrived between the looks on sockets of its own, see :func:`received`;
    `hears`: some of it on the socket at which its first thread waits. `threads` are the positions of the other threads
    of its program.
    """

    rank: int
    node: str
    process: JobProcess | None = None
    first: LiveRank | Absent = Absent("it was not examined")
    second: LiveRank | Absent = Absent("it was not examined")
    silent: str = ""
    stacks: tuple[tuple[FlightFrame, ...], ...] = ()
    oom_kills: int = 0
    unread: str = ""
    of_children: Mapping[int, tuple[FlightFrame, ...]] = field(default_factory=dict)
    gpu: str = ""
    trouble: str = ""
    received_bytes: int = 0
    hears: bool = False
    threads: tuple[ThreadPlace, ...] = ()

    @property
    def times(self) -> tuple[float, ...]:
        """Return when it was looked at."""
        return tuple(each.time_s for each in (self.first, self.second) if not isinstance(each, Absent))

    @property
    def still(self) -> bool:
        """Return whether its first thread did not even wake between the looks."""
        if isinstance(self.first, Absent) or isinstance(self.second, Absent):
            return False
        return self.first.switches == self.second.switches

    @property
    def stack(self) -> tuple[FlightFrame, ...]:
        """Return its last stack, innermost frame first; empty: none was read."""
        return self.stacks[-1] if self.stacks else ()

    @property
    def same_stack(self) -> bool:
        """Return whether its stacks were read twice and are the same."""
        return len(self.stacks) == 2 and bool(self.stacks[0]) and self.stacks[0] == self.stacks[1]


def activity(seen_rank: RankView) -> Activity:
    """Return what a rank does, as far as the kernel shows it."""
    first, second = seen_rank.first, seen_rank.second
    if seen_rank.process is None or (isinstance(second, Absent) and second.refused == "Missing"):
        return "gone"
    if isinstance(first, Absent) or isinstance(second, Absent):
        return "unseen"
    if second.state in _ENDED:
        return "gone"
    if {first.state, second.state} <= {"T", "t"} or (first.frozen and second.frozen):
        return "stopped"
    took_s = max(second.time_s - first.time_s, 1e-3)
    cores, moved = _grown(first, second, "cpu_s") / took_s, _grown(first, second, "moved_bytes") / took_s
    starved = cores >= _STARVED_CORES and cores + _grown(first, second, "queued_s") / took_s >= _BUSY_CORES
    computes = cores >= _BUSY_CORES or first.state == second.state == "R"
    children = _children_growth(first, second, "cpu_s") / took_s >= _STARVED_CORES
    threads = (second.others_ran_s - first.others_ran_s) / took_s >= _STARVED_CORES
    hears = seen_rank.hears or seen_rank.received_bytes / took_s >= _RECEIVED_BYTES_S
    if hears or second.held_s > first.held_s or moved >= _BUSY_BYTES_S:
        return "busy"
    few = max(_LOOP_FAULTS * _grown(first, second, "cpu_s"), _ANSWER_FAULTS)
    if computes and _grown(first, second, "faults") < few and not children:
        return "spins"
    return "busy" if computes or starved or children or threads or _works_in_pieces(first, second) else "idle"


def _works_in_pieces(first: LiveRank, second: LiveRank) -> bool:
    """Return whether a first thread computes a little, sleeps, and so on: no share of a processor shows that."""
    wakes, ran_s = second.switches - first.switches, second.ran_s - first.ran_s
    return wakes >= _WAKES and ran_s >= max(_RAN_EACH_S * wakes, _RAN_SHARE * (second.time_s - first.time_s))


def _grown(first: LiveRank, second: LiveRank, name: str) -> float:
    """Return by how much a counter has grown, of a rank and of the processes that it has started."""
    return float(getattr(second, name) - getattr(first, name) + _children_growth(first, second, name))


def _children_growth(first: LiveRank, second: LiveRank, name: str) -> float:
    before = {child.pid: getattr(child, name) for child in first.children}
    return float(max(sum(getattr(child, name) - before.get(child.pid, 0) for child in second.children), 0))


def doing(rank: RankView, what: Activity) -> Doing:
    """Return what a rank does, and why it does not go on."""
    at = rank.second
    place = _frame(rank.stack)
    if what == "gone":
        killed = f"; its cgroup counts {plural(rank.oom_kills, 'kill')} because memory ran out"
        ended = "no longer has a process" if rank.process is None else f"has ended (process {rank.process.pid})"
        return Doing(f"{ended}{killed if rank.oom_kills else ''}")
    if isinstance(at, Absent):
        return Doing(f"is not known: {at.why}")
    if what == "stopped":
        return _describe_stop(at).but(place)
    if rank.trouble:
        place += f"; {rank.trouble}"
    suspects_of = _describe_suspects(rank, at)
    if what == "spins":
        gpu = ", or a wait for its GPU" if rank.gpu else ""
        text = f"keeps a CPU busy but reads and writes nothing: an endless loop or long work{gpu}{place}"
        return Doing(text, "spin")
    if what == "busy":
        return Doing(f"is at work{_describe_work(rank)}{place}{suspects_of.text}")
    found = _describe_wait(rank, at)
    reason = suspects_of.reason or found.reason
    place += ", in the handler of a signal" if signalled(rank.stack) and reason != "signal-handler" else ""
    if reason == "lock" and rank.threads:
        reason = "lock-in-collective" if any(each.call for each in rank.threads) else "lock-of-thread"
    return Doing(f"{found.text}{place}{_describe_threads(rank, at)}{suspects_of.text}", reason)


def _describe_stop(at: LiveRank) -> Doing:
    if at.frozen:
        return Doing(waits("frozen"), "frozen")
    return (
        Doing(f"is stopped by process {at.tracer}, a debugger", "traced") if at.tracer else Doing(_BY_SIGNAL, "stopped")
    )


def _describe_wait(rank: RankView, at: LiveRank) -> Doing:
    """Return what a rank waits for: by its stack, unless its kernel knows better."""
    found = (signalled(rank.stack) if at.call == "futex" else None) or of_stack(rank.stack)
    if _is_other_threads_stack(rank):
        first = waits("program-end") if at_its_end(rank) else "is waiting for a thread"
        text = f"{first}{f', which {waits(found)}{of_peer(rank.stack)}' if found else ''}"
        return Doing(text, "program-end" if at_its_end(rank) else found or "thread-end")
    if (at.listens or at.call == "accept") and (debugger := of_debugger(rank.stack)):
        return Doing(_words(rank.stack, debugger, f"{at.call} of {at.file}" if at.file else at.call), debugger)
    if not found or at.state in ASLEEP or at.listens or at.holder or at.taker or at.file.startswith(_STORE):
        return _waits(at)
    return Doing(_words(rank.stack, found, f"{at.call} of {at.file}" if at.file else ""), found)


def _words(stack: Sequence[FlightFrame], found: str, call: str = "") -> str:
    """Return a reason in words, with the peer of an awaited operation, or the call that a loop of the program asks."""
    peer = of_peer(stack) if found == "awaited-operation" else ""
    details = "; ".join(filter(None, (getattr(stack[0], "values", {}).get("asked", ""), call)))
    return f"{waits(found)}{peer}{f' ({details})' if details else ''}"


def at_its_end(rank: RankView) -> bool:
    """Return whether a rank has come to the end of its program, and waits there for one of its threads."""
    return of_stack(rank.stack) == "program-end" or any(
        each.first and each.frame.name == "_shutdown" for each in rank.threads
    )


def _is_other_threads_stack(rank: RankView) -> bool:
    """Return whether its stack is that of a thread that its first one waits for."""
    return any(each.first for each in rank.threads)


def _describe_threads(rank: RankView, at: LiveRank) -> str:
    """Return where the other threads of a program are, if one of them may have to act."""
    found = of_stack(rank.stack)
    if at.call != "futex" or (found and found not in ("awaited-operation", *FOR_THREADS)):
        return ""
    if rank.threads:
        known = [(each, of_stack(each.frames)) for each in rank.threads[:_MOST_THREADS]]
        return "".join(f"; {each}{f', {waits(why)}' if why and not each.first else ''}" for each, why in known)
    return "; no other thread of the program is left" if found in FOR_THREADS else ""


def _describe_work(rank: RankView) -> str:
    first, second = rank.first, rank.second
    if isinstance(first, Absent) or isinstance(second, Absent):
        return ""
    took_s = max(second.time_s - first.time_s, 1e-3)
    cores, moved = _grown(first, second, "cpu_s") / took_s, _grown(first, second, "moved_bytes") / took_s
    queued = ", waiting for a processor" if _grown(first, second, "queued_s") / took_s >= _BUSY_CORES else ""
    held = ", held back by the quota of its cgroup" if second.held_s > first.held_s else ""
    data = f", {moved / 1e6:.0f} MB/s read and written" if moved >= 1e6 else ""
    came = f", {size(int(rank.received_bytes / took_s))}/s received" if rank.received_bytes else ""
    pieces = ", between sleeps" if cores < _BUSY_CORES and _works_in_pieces(first, second) else ""
    return f" ({cores:.1f} cores{pieces}{queued}{data}{came}{held})"


def _describe_suspects(rank: RankView, at: LiveRank) -> Doing:
    """Return what the processes do that a rank has started and may wait for, and why the first does not go on."""
    reason = of_stack(rank.stack)
    held_up = [child for child in suspects(at) if child.state != "Z" or reason in ("", *OF_PROCESSES)]
    found = [child for child in held_up if child.state in ASLEEP]
    if not found and reason in OF_PROCESSES:  # with a timeout, no call names it
        able = [child for child in at.children if reason in FOR_PROCESSES or at.file in child.pipes]
        found = [child for child in able if _in_program(rank.of_children.get(child.pid, ()))][:2]
    held = [
        (_child(child, at, own), _frame(own))
        for child in found or held_up or (at.children[:1] if reason in FOR_PROCESSES else ())
        for own in [_in_program(rank.of_children.get(child.pid, ()))]
    ]
    known = (each.reason for each, place in held if each.reason in HALTED or (place and each.reason != "lock"))
    return Doing("".join(f"; {each.text}{place}" for each, place in held), next(known, ""))


def _in_program(stack: Sequence[FlightFrame]) -> Sequence[FlightFrame]:
    """Return the frames of a process's own work, without those that a fork has left; empty: it is in no program's.

    A worker without work is in a library's function alone.
    """
    start = next((at for at, frame in enumerate(stack) if frame.function == _START), len(stack))
    own = caller(stack[:start])
    return stack[:start] if own and not own.of_library and "/torch/" not in own.filename else ()


def _waits(at: ProcessState) -> Doing:
    """Return what a process that does nothing waits for, as the rest of a sentence about it."""
    if at.state in ASLEEP:
        where = ", ".join(filter(None, (at.wchan, at.file))) if at.state == "D" else ""
        return Doing(f"is {ASLEEP[at.state]}{f' ({where})' if where else ''}", _OF_STATES.get(at.state, ""))
    if at.state == "R" or at.call == "running":
        return Doing("is computing")
    call = at.call
    where = f" ({call or at.wchan}{f' of {at.file}' if at.file else ''})" if call or at.wchan else ""
    reason = _CALLS.get(call, "sleep" if not call and at.wchan == "hrtimer_nanosleep" else "")
    text = waits(reason) if reason else "is waiting for input" if call in _FOR_INPUT else "is waiting"
    if call == "open":
        text, reason = (waits("fifo"), "fifo") if at.wchan == _FIFO else ("is opening a file", "")
    if at.holder or at.taker:
        reason = "lock-held" if at.holder else "lock-inherited"
    for applies, found in (
        (at.stdin and call in (*READS, *_FOR_INPUT), "stdin"),
        (at.listens, "requests"),
        (at.file.startswith(_STORE), "store-key"),
    ):
        if applies:
            text, reason = waits(found), found
    return Doing(f"{text}{where}", reason)


def waits_outside(rank: RankView) -> bool:
    """Return whether a rank waits for something other than a rank; a lock or a socket may belong to a collective."""
    at = rank.second
    return not isinstance(at, Absent) and (at.state == "D" or at.call in ("nanosleep", *_FOR_A_CHILD, *OUTSIDE))


def child_naps(rank: RankView) -> bool:
    """Return whether a rank waits for processes one of which ran between the looks, and sleeps: it may go on."""
    first, second = rank.first, rank.second
    if isinstance(first, Absent) or isinstance(second, Absent):
        return False
    before = {child.pid: child.ran_s for child in first.children}
    return any(
        child.call == "nanosleep" and child.ran_s > before.get(child.pid, child.ran_s) and not _polls(rank, child)
        for child in second.children
    )


def _polls(rank: RankView, child: Child) -> bool:
    """Return whether a process does nothing but ask for something again and again."""
    return of_stack(rank.of_children.get(child.pid, ())).startswith(POLLS)


def pauses(rank: RankView) -> bool:
    """Return whether a rank sleeps, and woke between the looks."""
    at = rank.second
    return isinstance(at, LiveRank) and at.call == "nanosleep" and not rank.still


def waits_for_key(rank: RankView) -> bool:
    """Return whether a rank waits for an answer of the job's store."""
    return isinstance(rank.second, LiveRank) and rank.second.file.startswith(_STORE)


def may_wait_for_work(rank: RankView) -> bool:
    """Return whether a rank may wait for what another rank works at: it sleeps, or wants a lock."""
    at = rank.second
    return isinstance(at, LiveRank) and (at.call in ("nanosleep", "flock", "fcntl") or of_stack(rank.stack) in LOCKS)


def _child(child: Child, at: LiveRank, stack: Sequence[FlightFrame]) -> Doing:
    by_pipe = ", which shares a pipe with it," if shared(child, at) else ""
    found, known = _waits(child), of_stack(stack)
    if known and found.reason in ("lock", "sleep", ""):
        found = Doing(_words(stack, known), known)
    return Doing(f"its process {child.pid} ({child.name}){by_pipe} {found.text}", found.reason)


def asleep_s(rank: RankView) -> float:
    """Return for how long a rank is known to have been in uninterruptible sleep."""
    first, second = rank.first, rank.second
    if isinstance(first, Absent) or isinstance(second, Absent) or not first.state == second.state == "D":
        return 0.0
    return second.still_s or 0.0


def blocked_s(rank: RankView) -> float:
    """Return for how long a rank is known to have waited for a lock that another process holds, or at a pipe which
    nobody reads or opens: nothing of the job lets it go on."""
    at = rank.second
    if isinstance(at, Absent):
        return 0.0
    fifo, full = at.call == "open" and at.wchan == _FIFO, at.call in WRITES and at.file.startswith("pipe:")
    return at.still_s or 0.0 if at.holder or at.taker or fifo or full else 0.0


def _frame(stack: Sequence[FlightFrame]) -> str:
    """Return the position of a program: ``, in next, train.py:212 in step``; empty if unknown."""
    own = caller(stack)
    if own is None:
        return ""
    inner = f", in {stack[0].name}" if stack[0] != own else ""
    return f"{inner}, {own.place} in {own.name}"


def evidence(rank: RankView) -> Iterator[Evidence]:
    """Yield what was read of a rank."""
    at = rank.second
    if rank.process is not None and not isinstance(at, Absent):
        for_s = f"for {at.still_s:.0f} s" if at.still_s is not None and at.still_s >= 1 else ""
        first_s = at.memory_s if isinstance(rank.first, Absent) else rank.first.memory_s
        memory = f"{at.memory_s - first_s:.1f} s without memory" if at.memory_s - first_s >= _WITHOUT_MEMORY_S else ""
        swapped = f"{size(at.swapped_bytes)} of it in swap" if at.swapped_bytes >= _MUCH_SWAP else ""
        words = [f"state {at.state}", at.wchan, at.call, at.file, for_s, memory, swapped]
        yield seen(f"{rank.node}:/proc/{rank.process.pid}", ", ".join(dict.fromkeys(filter(None, words))))
    if rank.gpu:
        yield seen(f"{rank.node}:NVML", rank.gpu)
    if rank.silent and rank.process is not None:
        yield seen(f"{rank.node}:worker server", rank.silent)
    if rank.unread and not rank.stacks and rank.process is not None:
        yield seen(f"py-spy --pid {rank.process.pid}", rank.unread)
    if rank.process is not None and (own := caller(rank.stack)):
        yield seen(f"py-spy --pid {rank.process.pid}", str(own))


_RAS_PORT = ":28028"


class Wire(Struct, frozen=True):
    """A connection of `rank` at both looks. `peer` is the rank at its other end, None: none that was looked at.

    `nic` is the interface of its own address, empty if unknown.
    """

    rank: int
    peer: int | None
    nic: str
    first: Connection
    second: Connection

    @property
    def silent(self) -> bool:
        """Return whether the peer acknowledged nothing between the looks, though the kernel sent it again or asked."""
        states = (self.first, self.second)
        waits = all(each.unacknowledged_bytes or each.state == "connecting" for each in states)
        asked = self.second.retransmits or self.second.probes
        return bool(waits and asked and self.sent_bytes == 0)

    @property
    def sent_bytes(self) -> int:
        """Return what the peer acknowledged between the looks."""
        return self.second.acknowledged_bytes - self.first.acknowledged_bytes

    def __str__(self) -> str:
        """Return what is known of it, as a sentence."""
        at = self.second
        to = f"rank {self.peer}" if self.peer is not None else at.peer
        sent = f"rank {self.rank} sends to {to}{f' over {self.nic}' if self.nic else ''} ({at.local} to {at.peer})"
        if not self.silent:
            return sent
        again = f"the kernel tried again {plural(max(at.retransmits, at.probes), 'time')}"
        waiting = size(at.unacknowledged_bytes)
        return f"{sent}: {waiting} wait, nothing was acknowledged between the two samples, and {again}"


def wires(nodes: Mapping[str, JobLooks], ranks: Mapping[int, RankView]) -> tuple[Wire, ...]:
    """Return the connections of the ranks that were there at both looks."""
    numbers = {(rank.node, rank.process.pid): number for number, rank in ranks.items() if rank.process}
    ends = {
        _ends(node, each.local, each.peer): numbers.get((node, each.pid))
        for node, looks in nodes.items()
        for each in _known(looks.second.connections)
    }
    found = []
    for node, looks in nodes.items():
        before = {(each.pid, each.local, each.peer): each for each in _known(looks.first.connections)}
        for at in _known(looks.second.connections):
            first, number = before.get((at.pid, at.local, at.peer)), numbers.get((node, at.pid))
            if first is not None and number is not None:
                found.append(Wire(number, ends.get(_ends(node, at.peer, at.local)), _nic(looks, at), first, at))
    return tuple(found)


def heard(looks: Sequence[JobLooks], wires: Sequence[Wire]) -> Mapping[int, float]:
    """Return how many seconds ago ranks last exchanged data with another rank, other than through their store, with
    which its rank is connected itself; none of a job with RAS, which talks whether or not the job goes on.
    """
    if not all(isinstance(each.second.ras, Absent) and each.second.ras.refused == "Missing" for each in looks):
        return {}
    stores = {each.second.peer for each in wires if each.peer == each.rank}
    found = grouped(
        (number, each.second.heard_s)
        for each in wires
        if each.peer not in (None, each.rank) and not stores & {each.second.local, each.second.peer}
        for number in (each.rank, each.peer)
        if number is not None
    )
    return {number: min(seconds) for number, seconds in found.items()}


def received(node: str, here: LocalRanks, looks: JobLooks) -> Mapping[int, tuple[int, bool]]:
    """Return the bytes that each rank of a node, with its children, received between the looks on its own sockets, and
    whether some of them came on the socket at which its first thread waits.

    A model, a rollout or data arrives this way, and no counter of /proc shows it. Connections to other ranks, to the
    store and to RAS do not count, and neither do those whose two ends belong to the rank itself.
    """
    owners = {each.pid: each.pid for each in here.ranks}
    for rank, state in zip(here.ranks, looks.second.processes, strict=False):
        owners |= dict.fromkeys((child.pid for child in getattr(state, "children", ())), rank.pid)
    ports = {f":{each.launch.master_port}" for each in here.ranks if each.launch.master_port} | {_RAS_PORT}
    both = [{(each.pid, each.local, each.peer): each for each in _known(look.connections)} for look in _looks(looks)]
    ends = {_ends(node, each.local, each.peer): each.pid for look in both for each in look.values()}
    files = [getattr(state, "file", "") for state in looks.second.processes]
    awaited = dict(zip([rank.pid for rank in here.ranks], files, strict=False))
    found: dict[int, tuple[int, bool]] = {}
    for key, each in both[1].items():
        rank_pid, peer = owners.get(each.pid), ends.get(_ends(node, each.peer, each.local))
        inner = peer is not None and (peer == each.pid or owners.get(peer) != rank_pid)
        if rank_pid is None or inner or any(end.endswith(tuple(ports)) for end in (each.local, each.peer)):
            continue
        came = max(each.received_bytes - (both[0][key].received_bytes if key in both[0] else 0), 0)
        so_far, hears = found.get(rank_pid, (0, False))
        found[rank_pid] = so_far + came, hears or (came > 0 and awaited.get(each.pid) == f"socket:[{each.inode}]")
    return found


def _looks(looks: JobLooks) -> tuple[JobLook, JobLook]:
    return looks.first, looks.second


def with_peers(at: LiveRank | Absent, look: JobLook, ranks: Sequence[JobProcess]) -> LiveRank | Absent:
    """Return a rank's state with the peers of the sockets in whose calls it and its children are, in place of files,
    and with who holds the lock that they want. `ranks` are those of the node.
    """
    if isinstance(at, Absent):
        return at
    stores = tuple(f":{each.launch.master_port}" for each in ranks if each.launch.master_port)
    numbers = {each.pid: each.rank for each in ranks if each.rank is not None}
    names = {pid: f"rank {number}" for pid, number in numbers.items()}
    for each, state in zip(ranks, look.processes, strict=False):
        for child in getattr(state, "children", ()):
            by = names.get(each.pid, f"process {each.pid}")
            names.setdefault(child.pid, f"process {child.pid} ({child.name}), which {by} started")
    own = {each.local: numbers.get(each.pid) for each in _known(look.connections)}
    peers = {
        f"socket:[{each.inode}]": _name_peer(each, stores, own.get(each.peer)) for each in _known(look.connections)
    }

    def file(of: ProcessState) -> str:
        if of.holder:
            return f"{of.file}, which {names.get(of.holder, f'process {of.holder}')} holds"
        if of.taker:
            return f"{of.file}{_describe_taker(of, names)}"
        return peers.get(of.file, of.file)

    children = tuple(replace(child, file=file(child)) for child in at.children)
    return replace(at, file=file(at), children=children)


def _describe_taker(of: ProcessState, names: Mapping[int, str]) -> str:
    """Return who took a file lock and who may have inherited it; ranks and their children go by `names`."""
    users = [names.get(pid, f"process {pid}") for pid in of.users[:_MOST_USERS]]
    taken = f"; {names.get(of.taker, f'process {of.taker}')} took the lock"
    if not users:
        return f"{taken}, but may not have the file open now"
    kept = "a process that inherited it keeps the lock"
    return f"{taken} and no longer has the file open: {kept}; the file is open in {', '.join(users)}"


def _name_peer(at: Connection, stores: tuple[str, ...], rank: int | None) -> str:
    silent = "which has not answered" if at.state == "connecting" else f"silent for {at.heard_s:.0f} s"
    if at.peer.endswith(stores):
        return f"{_STORE} {at.peer}, {silent}"
    return f"a connection to {f'rank {rank} at ' if rank is not None else ''}{at.peer}, {silent}"


def _known(connections: Sequence[Connection] | Absent) -> Sequence[Connection]:
    return () if isinstance(connections, Absent) else connections


def _ends(node: str, local: str, peer: str) -> tuple[str, str, str]:
    """Return the identity of a connection; a loopback address belongs to one node."""
    return (node if local.startswith(LOOPBACK) else "", local, peer)


def _nic(looks: JobLooks, at: Connection) -> str:
    address = at.local.rpartition(":")[0].strip("[]").removeprefix("::ffff:")
    return "" if isinstance(looks.interfaces, Absent) else looks.interfaces.get(address, "")


def counted(node: str, looks: JobLooks) -> Iterator[Evidence]:
    """Yield how much the NICs of a node moved between the looks."""
    words = [
        f"{name} {size(each.sent + each.received)}" if isinstance(each, Count) else f"{name}: {each.why}"
        for kind in ("ethernet", "rdma")
        for name, each in moved(looks.first.traffic, looks.second.traffic, kind).items()
    ]
    if words:
        yield seen(f"{node}:/sys/class", f"moved between the two samples: {', '.join(words)}")
