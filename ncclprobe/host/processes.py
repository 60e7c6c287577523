"""Processes of a running job, examined in a child, because a file of /proc may block.

Reading environ, maps or cmdline waits for the lock of that process's memory, which a page fault on a dead file server
may hold forever. Such a read is left to a thread of the child, and the child is killed at the end. Nothing is written,
no signal is sent and nothing is traced: reading these files changes nothing (proc(5)).
"""

import json
import os
import pwd
import re
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ncclprobe.host.command import as_host_error
from ncclprobe.host.deadlines import within
from ncclprobe.host.limited_child import LimitedChild, framed, requests
from ncclprobe.host.settings import recorded
from ncclprobe.host.waits import BLOCKED_S, bytes_of, link_or_empty, text_or_empty, waits
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, Denied, HostError, Missing
from ncclprobe.model.units import USER_HZ

_MOVED = ("rchar", "wchar")
"""Bytes that a program reads and writes. read_bytes also counts pages of its libraries, which come and go with memory
pressure.
"""
_LIBRARIES = re.compile(rb"/(libtorch|libnccl)[a-z_]*\.so")
_INTERPRETER = re.compile(r"python|pt_main_thread|torchrun|pt_elastic")
_OF_LIBRARIES = re.compile(r"pt_(workers|tcpstore|gloo|nccl|comm)|gloo|NCCL|cuda", re.IGNORECASE)
"""Threads that wait for requests, peers or a GPU, and wake up whether or not the program is active."""
_AGENTS = ("torch.distributed.run", "torch.distributed.launch")
AGENT_OPTIONS = ("nnodes", "node_rank", "rdzv_endpoint", "master_addr", "master_port", "rdzv_backend")
FLAGS = ("standalone", "no_python", "m", "module", "run_path")
_EXEC_START = re.compile(r"^se\.exec_start *: *([0-9.]+)$", re.MULTILINE)
_PROCESSOR = 36
"""The processor that a thread last ran on: its index in the fields of proc_pid_stat(5), counted from the state."""
_CGROUPS = Path("/sys/fs/cgroup")
_STALLED = re.compile(r"^some [^\n]{0,80} total=([0-9]+)$", re.MULTILINE)
_OF_KERNEL = 1 << 21
"""PF_KTHREAD (linux/sched.h). In a container the parent of ranks may have pid 2, like the kernel's own thread."""


class ProcessChild:
    """Asks about processes, in a child that the first question starts and that is killed if an answer is late."""

    def __init__(self, recordable: Collection[str]) -> None:
        self._child = LimitedChild(__name__)
        self._recordable = sorted(recordable)

    def ask(self, kind: str, rest: Collection[str], patience_s: float) -> str:
        """Return the child's answer as JSON. Raises the HostError with the reason if there is none."""
        request = {"do": kind, "of": list(rest), "recordable": [] if self._child.started else self._recordable}
        answer = json.loads(self._child.ask(json.dumps(request).encode(), patience_s))
        if "refused" in answer:
            raise REFUSALS[answer["refused"]](answer["why"])
        return json.dumps(answer["said"])

    def close(self) -> None:
        """Kill the child."""
        self._child.close()


def serve() -> None:
    """Answer requests of standard input until it closes."""
    sys.stdout.flush()
    recordable: set[str] = set()
    with os.fdopen(os.dup(0), "rb") as stream, os.fdopen(os.dup(1), "wb") as answers:
        for request in requests(stream, bounds.PLAN_BYTES):
            asked = json.loads(request)
            recordable |= {*asked["recordable"]}
            answers.write(framed(json.dumps(answer_of(asked, recordable)).encode()))
            answers.flush()


def answer_of(asked: dict[str, Any], recordable: Collection[str]) -> dict[str, Any]:
    """Return what a request asks for as `said`, or why it has no answer."""
    try:
        if asked["do"] == "ranks":
            return {"said": ranks_here(int(asked["of"][0]), asked["of"][1:], recordable)}
        return {"said": state_of_process(*map(int, asked["of"]))}
    except (OSError, HostError, ValueError, LookupError) as error:
        refusal = as_host_error(error, " ".join((asked["do"], *asked["of"][:1])))
        return {"refused": type(refusal).__name__, "why": str(refusal)}


# Which processes may be ranks.


def ranks_here(root: int, names: Collection[str], recordable: Collection[str]) -> dict[str, Any]:
    """Return the processes that have one of the variables `names`, or that are `root` or its descendants.

    `root` 0: none; negative: all Python processes.
    """
    seen = {pid: stat for pid in _pids() if (stat := stat_or_none(f"/proc/{pid}"))}
    parents = {pid: int(stat[1]) for pid, stat in seen.items()}
    beneath = tree_of(root, parents) if root > 0 else set()
    if root < 0:
        beneath = {pid for pid, stat in seen.items() if _INTERPRETER.search(stat[-1])}
    found, hidden, late = [], 0, []
    for pid, parent in parents.items():
        if pid in (os.getpid(), os.getppid()) or int(seen[pid][6]) & _OF_KERNEL:
            continue
        try:
            variables = _variables(pid, seen[pid][0])
            agent = agent_options(_words_or_none(pid)) if _INTERPRETER.search(seen[pid][-1]) else None
            if pid in beneath or agent is not None or not variables.keys().isdisjoint(names):
                kept = {name: recorded(name, value) for name, value in variables.items() if name in recordable}
                found.append({**_candidate(pid, seen[pid], parent, kept), "agent": agent})
        except Denied:
            hidden += bool(_INTERPRETER.search(seen[pid][-1]))
        except Missing:
            continue
        except HostError as refusal:
            late.append(f"{pid} ({seen[pid][-1]}): {refusal}")
    return {"time_s": time.time(), "processes": found, "hidden": hidden, "late": late[:16]}


def _variables(pid: int, state: str) -> dict[str, str]:
    """Return the variables of a process; none of one that has ended, and whose parent has not waited for it."""
    return {} if state == "Z" else within(BLOCKED_S, lambda: environment(pid), f"/proc/{pid}/environ")


def _candidate(pid: int, stat: list[str], parent: int, variables: dict[str, str]) -> dict[str, Any]:
    path = f"/proc/{pid}"
    try:
        library = within(BLOCKED_S, lambda: bool(_LIBRARIES.search(bytes_of(f"{path}/maps"))), f"{path}/maps")
    except HostError:
        library = None
    return {
        "pid": pid,
        "parent": parent,
        "start": int(stat[19]),
        "name": stat[-1],
        "state": stat[0],
        "user": (user := os.stat(path).st_uid),  # noqa: PTH116
        "owner": owner(user),
        "program": program(_words_or_none(pid)),
        "library": library,
        "python": bool(_INTERPRETER.search(stat[-1])),
        "age_s": age_s(int(stat[19])),
        "variables": variables,
    }


def _words_or_none(pid: int) -> list[str]:
    path = f"/proc/{pid}/cmdline"
    try:
        return within(BLOCKED_S, lambda: bytes_of(path), path).decode(errors="replace").split("\0")
    except HostError:
        return []


def owner(user: int) -> str:
    """Return the user's name, or the number if it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # as in a container
        return str(user)


def program(words: list[str]) -> str:
    """Return the program name of a command line, without folder, interpreter and options."""
    rest = words[1:] if _INTERPRETER.search(Path(words[0]).name if words else "") else words
    first = next((word for word in rest if word and (not word.startswith("-") or word == "-c")), "")
    return Path(first).name[: bounds.NAME_CHARACTERS]


def agent_options(words: list[str]) -> dict[str, str] | None:
    """Return the rendezvous options of the torchrun agent with this command line; None: it is not one.

    Returns nothing about the program that it starts, nor its arguments.
    """
    start = next((n for n, word in enumerate(words[1:6], 1) if word in _AGENTS or Path(word).name == "torchrun"), 0)
    if not start:
        return None
    found, rest = dict[str, str](), iter(words[start + 1 :])
    for word in rest:
        if not word.startswith("-"):
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        value = value if equals or name in FLAGS else next(rest, "")
        if name in AGENT_OPTIONS:
            found[name] = recorded(name.upper(), value)
    return found


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208


def tree_of(root: int, parents: dict[int, int]) -> set[int]:
    """Return `root` and all its descendants."""
    found, more = set(), {root} & parents.keys()
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in found} - found
    return found


def environment(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with."""
    texts = bytes_of(f"/proc/{pid}/environ").decode("utf-8", "surrogateescape").split("\0")
    return {name: value for name, equals, value in (each.partition("=") for each in texts) if equals}


# What one process does.


def state_of_process(pid: int, start: int, look: int = 0) -> dict[str, Any]:
    """Return the activity of process `pid`, which started at tick `start`. Raises Missing if it is gone.

    A cgroup that ranks share is read once per `look`.
    """
    path = f"/proc/{pid}"
    stat = stat_or_none(path)
    if stat is None or int(stat[19]) != start:
        raise Missing(f"process {pid}: it has ended{' and its number is of another' if stat else ''}")
    status = numbers(f"{path}/status")
    return {
        "time_s": time.time(),
        **activity(path, stat),
        "switches": status.get("voluntary_ctxt_switches", 0),
        "tracer": status.get("TracerPid", 0),
        "still_s": still_s(path, stat, look),
        "age_s": age_s(start),
        "swapped_bytes": status.get("VmSwap", 0) << 10,
        "children": list(children(path, tids := threads(path))),
        "others_ran_s": sum(ran_s(f"{path}/task/{tid}") for tid in tids if tid != str(pid)),
        **group_state(text_or_empty(f"{path}/cgroup"), look),
    }


def ran_s(path: str) -> float:
    """Return the CPU time of a thread of the program; 0 for threads of torch, NCCL or CUDA."""
    own = _OF_LIBRARIES.match(text_or_empty(f"{path}/comm"))
    return 0.0 if own else int((text_or_empty(f"{path}/schedstat").split() or ["0"])[0]) / 1e9


def activity(path: str, stat: list[str]) -> dict[str, Any]:
    """Return a process's activity, what it waits for, and its counters."""
    written = numbers(f"{path}/io")
    ran_ns, queued_ns, *_ = *text_or_empty(f"{path}/schedstat").split(), 0, 0
    return {
        "state": stat[0],
        "cpu_s": (int(stat[11]) + int(stat[12])) / USER_HZ,
        "wchan": text_or_empty(f"{path}/wchan").strip("0\n"),
        **waits(path),
        "faults": int(stat[7]) + int(stat[9]),
        "moved_bytes": sum(written.get(name, 0) for name in _MOVED),
        "pipes": sorted(_pipes(path)),
        "queued_s": int(queued_ns) / 1e9,
        "ran_s": int(ran_ns) / 1e9,
    }


def still_s(path: str, stat: list[str], look: int) -> float | None:
    """Return the time since a process's first thread last ran (CONFIG_SCHED_DEBUG); None: unknown."""
    ran = _EXEC_START.search(text_or_empty(f"{path}/sched"))
    behind_s = (
        _scheduler_lag_s(int(stat[_PROCESSOR]), look) if ran and float(ran[1]) and len(stat) > _PROCESSOR else None
    )
    return round(max(time.monotonic() - behind_s - float(ran[1]) / 1e3, 0.0), 3) if ran and behind_s else None


@lru_cache(bounds.NODE_RANKS)
def _scheduler_lag_s(processor: int, look: int) -> float | None:
    """Return how far a processor's scheduler clock is behind CLOCK_MONOTONIC; None: unreadable.

    It excludes the time of interrupts and the hypervisor: after days, two processors differ by minutes.
    """

    def read() -> float:
        usual = os.sched_getaffinity(0)  # of this thread
        os.sched_setaffinity(0, {processor})
        try:
            now_s = time.monotonic()
            ran = _EXEC_START.search(text_or_empty("/proc/thread-self/sched"))
            return now_s - float(ran[1]) / 1e3 if ran else 0.0
        finally:
            os.sched_setaffinity(0, usual)

    with suppress(HostError):  # not one of ours, or too busy
        return within(BLOCKED_S, read, f"processor {processor}") or None
    return None


def age_s(start: int) -> float:
    """Return the seconds since `start`, a clock tick of the time since boot."""
    return round(max(time.clock_gettime(time.CLOCK_BOOTTIME) - start / USER_HZ, 0.0), 2)


def threads(path: str) -> list[str]:
    """Return the ids of the threads of the process at `path`; empty: it is gone."""
    try:
        return sorted(os.listdir(f"{path}/task"), key=int)[: bounds.JOB_THREADS]  # noqa: PTH208
    except OSError:
        return []


def children(path: str, tids: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the descendants of a process: workers of a data loader, compilers."""
    waiting = [pid for tid in tids for pid in text_or_empty(f"{path}/task/{tid}/children").split()]
    for count, pid in enumerate(waiting):  # grows as it goes
        own = f"/proc/{pid}"
        stat = stat_or_none(own)
        if stat is None or count >= bounds.JOB_CHILDREN:
            continue
        waiting += text_or_empty(f"{own}/task/{pid}/children").split()
        yield {"pid": int(pid), "name": stat[-1], **activity(own, stat)}


def _pipes(path: str) -> set[str]:
    """Return the open pipes and FIFOs of a process, as ``pipe:[123]`` and by path."""
    found = set()
    with suppress(OSError):
        for fd in os.listdir(f"{path}/fd")[: bounds.JOB_FILES]:  # noqa: PTH208
            link = link_or_empty(f"{path}/fd/{fd}")
            if link.startswith("pipe:"):
                found.add(link)
    return found


@lru_cache(256)
def group_state(text: str, look: int) -> dict[str, Any]:
    """Return whether a process's cgroup (v2 or v1) is frozen, throttled, or out of memory."""
    groups = dict(line.split(":", 2)[1:] for line in text.splitlines() if line.count(":") > 1)
    found: dict[str, Any] = {}
    for names, own in groups.items():
        part = _CGROUPS / names if names else _CGROUPS
        folder = f"{part}{own}" if Path(f"{part}{own}").is_dir() else str(part)
        if stat := numbers(f"{folder}/cpu.stat"):
            found["held_s"] = stat.get("throttled_usec", 0) / 1e6 or stat.get("throttled_time", 0) / 1e9
        if numbers(f"{folder}/cgroup.events").get("frozen") or text_or_empty(f"{folder}/freezer.state") == "FROZEN\n":
            found["frozen"] = True
        if events := numbers(f"{folder}/memory.events") or numbers(f"{folder}/memory.oom_control"):
            found["oom_kills"] = events.get("oom_kill", 0)
        if stalled := _STALLED.search(text_or_empty(f"{folder}/memory.pressure")):
            found["memory_s"] = int(stalled[1]) / 1e6
    return found


def stat_or_none(path: str) -> list[str] | None:
    """Return the fields of proc_pid_stat(5) from the state on, and the name last; None: the process is gone."""
    try:
        head, _, tail = bytes_of(f"{path}/stat").decode(errors="replace").rpartition(")")
    except OSError:
        return None
    fields = tail.split()
    return [*fields, head.partition("(")[2]] if len(fields) > 20 else None


def numbers(path: str) -> dict[str, int]:
    """Parse lines of ``name: number`` or ``name number``; empty if the file cannot be read."""
    found = {}
    for line in text_or_empty(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found
