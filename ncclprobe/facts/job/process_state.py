"""The activity of a rank's process at one moment, and of the processes that it has started."""

from collections.abc import Sequence

from ncclprobe.model.values import Struct


class ProcessState(Struct, frozen=True):
    """The activity of a process at one moment.

    `call` is the system call that its first thread is in (empty: not known; ``running``: none), with `file` its
    descriptor's; `wchan` is the kernel function in which it sleeps. Counters grow from its start: `cpu_s`, page
    `faults`, `moved_bytes` read and written, `ran_s` that its first thread ran, `queued_s` that it waited to run.
    `awaits` is the process whose end it waits for, 0: none, or any; `holder` the one that holds the file lock that it
    wants. `listens`: it waits for others to connect to it; `stdin`: for its standard input.
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
    queued_s: float = 0.0
    native: bool = False
    listens: bool = False
    ran_s: float = 0.0
    stdin: bool = False


class Child(ProcessState, frozen=True, kw_only=True):
    """A process that a rank has started, such as a worker of a data loader."""

    pid: int
    name: str


class LiveRank(ProcessState, frozen=True, kw_only=True):
    """The activity of a rank's process at one moment, and of the processes that it has started.

    Counters: `switches` that its first thread made voluntarily by waiting, `held_s` by its cgroup's quota, and of this
    cgroup `oom_kills`, and `memory_s` that a process of it waited for memory; `others_ran_s` that the other threads of
    its program ran. `tracer` is the process that traces it, 0: none. `still_s` is how long ago its first thread last
    ran, None: the kernel does not show it; `age_s` how long ago it began.
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
    """Return the processes that a rank has started and waits for, or that cannot go on.

    The one whose end it awaits, or that this one awaits, comes first; then those that share a pipe with it.
    """
    known, pid, awaited = {child.pid: child for child in at.children}, at.awaits, dict[Child, None]()
    while (child := known.pop(pid, None)) is not None:
        awaited, pid = {child: None}, child.awaits
    held = [child for child in at.children if child.state in ASLEEP or (shared(child, at) and _held_up(child, at))]
    return [*(awaited | dict.fromkeys(sorted(held, key=lambda child: not shared(child, at))))][:2]


def _held_up(child: Child, at: LiveRank) -> bool:
    """Return whether a process waits for what is not the rank, or does not take what the rank writes.

    A worker of a data loader without work polls: one that sleeps does not, and one that waits for a lock may have it
    from a fork, for ever. A pipe that the rank does not have is not for work of the rank.
    """
    outside = child.call in OUTSIDE and not (child.file.startswith("pipe:") and child.file in at.pipes)
    held = child.name == LOADER and child.call in ("futex", "nanosleep")
    return outside or held or (at.call in WRITES and at.file in child.pipes)


def shared(child: Child, at: LiveRank) -> bool:
    """Return whether a process shares a pipe with the rank that has started it."""
    return bool({*child.pipes} & {*at.pipes})
