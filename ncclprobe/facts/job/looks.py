"""What the ranks of a node do, looked at twice: what did not change between the looks stands still."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar, cast

from ncclprobe import bounds
from ncclprobe.errors import OutOfTime
from ncclprobe.facts import traffic
from ncclprobe.facts.field import attempt
from ncclprobe.facts.files.flight_child import read
from ncclprobe.facts.files.flight_records import FlightDump, FlightFrame, FlightRecords, records
from ncclprobe.facts.files.ras import RasAnswer, read_answer
from ncclprobe.facts.job.ranks import AskedJob, JobProcess, LocalRanks, decoded
from ncclprobe.facts.traffic import Traffic
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

T = TypeVar("T")
BETWEEN_S, UNTIMED_S = 1.0, 5.0
_RAS, _RAS_DEFAULT = "NCCL_RAS_ADDR", "localhost:28028"
_AT_ONCE = 16


class ProcessState(Struct, frozen=True):
    """What a process does at one moment.

    `call` is the system call that its first thread is in (empty: not known; ``running``: none), with `file` its
    descriptor's; `wchan` is the kernel's function in which it sleeps. Counters grow from its start: `cpu_s`, page
    `faults`, `moved_bytes` read and written, `queued_s` for which its first thread waited for a processor. `awaits` is
    the process whose end it waits for, 0: none, or any.
    """

    state: str
    cpu_s: float
    wchan: str = ""
    call: str = ""
    file: str = ""
    faults: int = 0
    moved_bytes: int = 0
    pipes: tuple[str, ...] = ()
    awaits: int = 0
    queued_s: float = 0.0


class Child(ProcessState, frozen=True, kw_only=True):
    """A process that a rank has started, such as a worker of a data loader."""

    pid: int
    name: str


class LiveRank(ProcessState, frozen=True, kw_only=True):
    """What a rank's process does at one moment, and the processes that it has started.

    Counters: `switches` to which its first thread agreed by waiting, `held_s` by its cgroup's quota, and of
    this cgroup `oom_kills`, and `memory_s` for which a process of it waited for memory. `tracer` is the
    process that traces it, 0: none. `still_s` is how long ago its first thread last ran, None: the kernel does not say.
    """

    time_s: float
    switches: int = 0
    tracer: int = 0
    still_s: float | None = None
    swapped_bytes: int = 0
    children: tuple[Child, ...] = ()
    frozen: bool = False
    held_s: float = 0.0
    oom_kills: int = 0
    memory_s: float = 0.0


class Connection(Struct, frozen=True):
    """A TCP connection of a rank, or of what it has started, as its kernel sees it. Its ends are ``10.0.0.1:4711``.

    `unacknowledged_bytes` were given to it and not acknowledged by the peer, and sent again `retransmits` times, or
    asked after by `probes` of a peer that takes none; `unread_bytes` were not yet read here. `heard_s` is how long ago
    anything last came from the peer.
    """

    pid: int
    local: str
    peer: str
    state: str = "established"
    unacknowledged_bytes: int = 0
    unread_bytes: int = 0
    retransmits: int = 0
    probes: int = 0
    heard_s: float = 0.0
    inode: int = 0
    acknowledged_bytes: int = 0


class JobLook(Struct, frozen=True):
    """One look at the ranks, in their order. `servers`: why a rank's records are not known; empty: they are.

    `stacks` are those of the first threads, innermost frame first, where they were asked for.
    `ras` is what NCCL's RAS says, `traffic` what the node's NICs have counted.
    """

    processes: tuple[LiveRank | Absent, ...] = ()
    records: FlightRecords = FlightRecords(())
    servers: tuple[str, ...] = ()
    stacks: tuple[tuple[FlightFrame, ...] | Absent, ...] = ()
    ras: RasAnswer | Absent = Absent("it was not asked")
    connections: tuple[Connection, ...] | Absent = Absent("they were not asked for")
    traffic: Traffic = Traffic()


class JobLooks(Struct, frozen=True):
    """Two looks at the ranks of a node: a second apart, and longer where nothing tells since when a rank waits.

    `interfaces` are those of the node's addresses.
    """

    first: JobLook
    second: JobLook
    interfaces: Mapping[str, str] | Absent = Absent("they were not asked for")


@collector
def looks(host: Host, here: LocalRanks, asked: AskedJob) -> JobLooks:
    """Look at every rank of the job on this node, wait, and look again."""
    if here.others:
        return JobLooks(JobLook(), JobLook())
    dump = cache(read)  # a rank that stands says the same at both looks
    first = _look(host, here.ranks, 1, asked.stacks, dump)
    timed = first.records.dumps or any(isinstance(p, LiveRank) and p.still_s is not None for p in first.processes)
    host.ask("wait", str(BETWEEN_S if timed else UNTIMED_S))
    second = _look(host, here.ranks, 2, asked.stacks, dump)
    return JobLooks(first, second, attempt(lambda: _interfaces(host.ask("psutil", "net_if_addrs"))))


def _look(
    host: Host, ranks: Sequence[JobProcess], number: int, stacks: bool, dump: Callable[[str], FlightDump | str]
) -> JobLook:
    states = [_in_time(lambda at=rank: _state(host, at, number)) for rank in ranks]  # type: ignore[misc]
    children = [child.pid for state in states if isinstance(state, LiveRank) for child in state.children]
    answers = _each(ranks, lambda rank: _in_time(lambda: host.ask("server", rank.pid, "fr_trace_json", number)))
    return JobLook(
        tuple(states),
        records((_named(rank), dump(said)) for rank, said in zip(ranks, answers, strict=True) if isinstance(said, str)),
        tuple(each.why if isinstance(each, Absent) else "" for each in answers),
        tuple(_each(ranks[: bounds.JOB_STACKS], lambda rank: _stack(host, rank, number))) if stacks else (),
        attempt(lambda: read_answer(f"NCCL RAS, look {number}", _of_ras(host, ranks, number).encode())),
        attempt(lambda: decoded(host.ask("connections", number, *_pids(ranks), *children), tuple[Connection, ...])),
        traffic.read(host, number),
    )


def _in_time(learn: Callable[[], T]) -> T | Absent:
    """Return what is learned of a rank, or why not. Raises OutOfTime: silence that --timeout made accuses no rank."""
    found = attempt(learn)
    if isinstance(found, Absent) and found.refused == OutOfTime.__name__:
        raise OutOfTime(found.why)
    return found


def _interfaces(text: str) -> Mapping[str, str]:
    rows = decoded(text, dict[str, tuple[_Address, ...]])
    return {each.address.partition("%")[0]: name for name, addresses in rows.items() for each in addresses}


def _of_ras(host: Host, ranks: Sequence[JobProcess], number: int) -> str:
    address = next((each.settings[_RAS] for each in ranks if each.settings.get(_RAS)), _RAS_DEFAULT)
    return host.ask("ras", address, number, *_pids(ranks))


def _pids(ranks: Sequence[JobProcess]) -> list[int]:
    return [each.pid for each in ranks[: bounds.NODE_RANKS]]


def _named(rank: JobProcess) -> str:
    return f"records of rank_{rank.rank}" if rank.rank is not None else f"records of process {rank.pid}, rank"


def _each(ranks: Sequence[JobProcess], learn: Callable[[JobProcess], T]) -> list[T]:
    """Return what is learned of each rank, of several at once: one that is stopped answers late."""
    if not ranks:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(ranks))) as pool:
        return list(pool.map(learn, ranks))


def _state(host: Host, rank: JobProcess, number: int) -> LiveRank:
    return cast(LiveRank, decoded(host.ask("process", rank.pid, rank.start, number), LiveRank))


class _Address(Struct, frozen=True):
    address: str


class _Stack(Struct, frozen=True):
    os_thread_id: int | None
    frames: tuple[FlightFrame, ...]


def _stack(host: Host, rank: JobProcess, number: int) -> tuple[FlightFrame, ...] | Absent:
    def read() -> tuple[FlightFrame, ...]:
        threads = cast(tuple[_Stack, ...], decoded(host.ask("stacks", rank.pid, number), tuple[_Stack, ...]))
        return next((thread.frames for thread in threads if thread.os_thread_id == rank.pid), ())

    return attempt(read)
