"""The activity of a rank's process, and of its child processes, at one moment."""

from collections.abc import Sequence

from ncclprobe.model.values import Struct


class ProcessState(Struct, frozen=True):
    """The activity of a process at one moment.

    `call` is the system call that its first thread is in (empty: unknown; ``running``: none), and `file` that call's
    file descriptor. `wchan` is the kernel function in which it sleeps. Counters since its start: `cpu_s`, page
    `faults`, `moved_bytes` (read and written), `ran_s` (first thread on a CPU), `queued_s` (first thread runnable but
    waiting). `awaits` is the process whose exit it waits for (0: none, or any); `holder` holds the file lock that it
    wants. If `taker` took that lock and no longer has the file open, as far as known, `users` are the processes
    that do. `listens`: it waits for incoming connections. `stdin`: it waits for standard input.
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
    holder: int = 0
    taker: int = 0
    users: tuple[int, ...] = ()
    queued_s: float = 0.0
    native: bool = False
    listens: bool = False
    ran_s: float = 0.0
    stdin: bool = False


class Child(ProcessState, frozen=True, kw_only=True):
    """A process that a rank started, such as a data loader's worker."""

    pid: int
    name: str


class LiveRank(ProcessState, frozen=True, kw_only=True):
    """The activity of a rank's process, and of its child processes, at one moment.

    Counters: `switches` are voluntary context switches of its first thread, `held_s` is throttling by its cgroup's
    quota. Of this cgroup: `oom_kills`, and `memory_s`, the time that one of its processes waited for memory.
    `others_ran_s` is the CPU time of the program's other threads. `tracer` is the process that traces it (0: none).
    `still_s` is the time since its first thread last ran (None: the kernel does not show it); `age_s` is the time since
    it started.
    """

    time_s: float
    switches: int = 0
    tracer: int = 0
    still_s: float | None = None
    swapped_bytes: int = 0
    children: tuple[Child, ...] = ()
    frozen: bool = False
    age_s: float | None = None
    held_s: float = 0.0
    oom_kills: int = 0
    memory_s: float = 0.0
    others_ran_s: float = 0.0


ASLEEP = {"D": "in uninterruptible sleep", "T": "stopped by a signal", "t": "stopped by a debugger", "Z": "ended"}
READS, WRITES = ("read", "readv", "recvfrom", "recvmsg"), ("write", "writev", "sendto", "sendmsg")
OUTSIDE = (*READS, *WRITES, "flock", "fcntl", "open", "connect", "fsync")
LOADER = "pt_data_worker"


def suspects(at: LiveRank) -> Sequence[Child]:
    """Return up to two children that a rank waits for, or that are stuck.

    The child whose exit it awaits (or, transitively, the one that this child awaits) comes first, then children that
    share a pipe with it.
    """
    known, pid, awaited = {child.pid: child for child in at.children}, at.awaits, dict[Child, None]()
    while (child := known.pop(pid, None)) is not None:
        awaited, pid = {child: None}, child.awaits
    held = [child for child in at.children if child.state in ASLEEP or (shared(child, at) and _is_stuck(child, at))]
    return [*(awaited | dict.fromkeys(sorted(held, key=lambda child: not shared(child, at))))][:2]


def _is_stuck(child: Child, at: LiveRank) -> bool:
    """Return whether a child waits for something other than the rank, or does not read what the rank writes.

    An idle worker of a data loader polls. One that sleeps does not, and one that waits for a lock may have inherited it
    locked through a fork. A pipe that the rank does not have carries no work from the rank.
    """
    outside = child.call in OUTSIDE and child.file not in at.pipes
    held = child.name == LOADER and child.call in ("futex", "nanosleep")
    return outside or held or (at.call in WRITES and at.file in child.pipes)


def shared(child: Child, at: LiveRank) -> bool:
    """Return whether a child shares a pipe with its rank."""
    return bool({*child.pipes} & {*at.pipes})
