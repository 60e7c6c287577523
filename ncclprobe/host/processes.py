"""Processes of a running job and their TCP connections: in a child, because a file of /proc may block.

Who reads environ, maps or cmdline waits for the lock of that process's memory, which a page fault on a dead file server
may hold for ever; such a read is left to a thread of the child, and the child is killed at the end. Nothing is written,
no signal is sent and nothing is traced: reading these files changes nothing (proc(5)).

What the kernel knows of connections is from sock_diag(7), open to every user and only of one's own network namespace:
inet_diag_req_v2, inet_diag_msg (linux/inet_diag.h) and tcp_info (linux/tcp.h), of which it sends as much as it knows.
"""

import json
import os
import pwd
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ncclprobe.host.command import as_host_error
from ncclprobe.host.limited_child import LimitedChild, framed, requests
from ncclprobe.host.patience import within
from ncclprobe.host.settings import recorded
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, Denied, Failed, HostError, Missing
from ncclprobe.model.units import USER_HZ

_BLOCKED_S = 0.2  # for one file of one process
_MOVED = ("rchar", "wchar")
"""What a program reads and writes; read_bytes counts pages of its libraries too, which come and go with memory."""
_LIBRARIES = re.compile(rb"/(libtorch|libnccl)[a-z_]*\.so")
_INTERPRETER = re.compile(r"python|pt_main_thread|torchrun|pt_elastic")
_AGENTS = ("torch.distributed.run", "torch.distributed.launch")
_AGENT_OPTIONS = ("nnodes", "node_rank", "rdzv_endpoint", "master_addr", "master_port", "rdzv_backend")
_FLAGS = ("standalone", "no_python", "m", "module", "run_path")
_OF_FD = re.compile("(read|write)v?|(recv|send)(from|to|msg)|connect|accept|flock|fcntl|fsync")
_EXEC_START = re.compile(r"^se\.exec_start *: *([0-9.]+)$", re.MULTILINE)
_CGROUPS = Path("/sys/fs/cgroup")
_STALLED = re.compile(r"^some [^\n]{0,80} total=([0-9]+)$", re.MULTILINE)
_OF_CHILD = {"wait4": 1, "waitid": 2}
_LOCKS = ("flock", "fcntl")
_OPENED = {"x86_64": {"2": 1, "257": 2}, "aarch64": {"56": 2}}
"""Which word of /proc/PID/syscall is the address of the path of open(2) and openat(2)."""
_PATH_BYTES, _PAGE = 4096, 4096
_MOST_PIDS = 1 << 22
_OF_KERNEL = 1 << 21
"""PF_KTHREAD (linux/sched.h). In a container the parent of ranks may have the number of the kernel's own, 2."""
_OLD_SLEEPS = (35, 101)
"""nanosleep(2). C and C++ sleep for a while by CLOCK_REALTIME, and Python until a time of CLOCK_MONOTONIC."""
_SYSCALLS = {
    "x86_64": {
        **{0: "read", 1: "write", 7: "poll", 19: "readv", 20: "writev", 23: "select", 24: "sched_yield", 34: "pause"},
        **{35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg"},
        **{61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 202: "futex", 230: "nanosleep", 232: "epoll_wait"},
        **{2: "open", 257: "open", 247: "waitid", 270: "select", 271: "poll", 281: "epoll_wait", 288: "accept"},
        **{17: "read", 18: "write", 128: "sigtimedwait", 130: "sigsuspend", 262: "stat", 332: "stat", 4: "stat"},
    },
    "aarch64": {
        **{63: "read", 64: "write", 65: "readv", 66: "writev", 72: "select", 73: "poll", 22: "epoll_wait"},
        **{115: "nanosleep", 101: "nanosleep", 203: "connect", 202: "accept", 242: "accept", 206: "sendto"},
        **{207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 260: "wait4", 25: "fcntl", 32: "flock", 82: "fsync"},
        **{98: "futex", 56: "open", 95: "waitid", 124: "sched_yield", 67: "read", 68: "write", 79: "stat"},
    },
}
"""Names of the calls in which processes wait, by their numbers (asm/unistd.h); variants of one have its name."""


class ProcessChild:
    """Asks about processes, in a child that starts with the first question and is killed when one is late."""

    def __init__(self, recordable: Collection[str]) -> None:
        self._child = LimitedChild(__name__)
        self._recordable = sorted(recordable)

    def ask(self, kind: str, rest: Collection[str], patience_s: float) -> str:
        """Return the child's answer as JSON. Raises the HostError that says why there is none."""
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
            answers.write(framed(json.dumps(_answer(asked, recordable)).encode()))
            answers.flush()


def _answer(asked: dict[str, Any], recordable: Collection[str]) -> dict[str, Any]:
    try:
        if asked["do"] == "ranks":
            return {"said": _ranks(int(asked["of"][0]), asked["of"][1:], recordable)}
        return {"said": _process(*map(int, asked["of"]))}
    except (OSError, HostError, ValueError, LookupError) as error:
        refusal = as_host_error(error, " ".join((asked["do"], *asked["of"][:1])))
        return {"refused": type(refusal).__name__, "why": str(refusal)}


# Which processes may be ranks.


def _ranks(root: int, names: Collection[str], recordable: Collection[str]) -> dict[str, Any]:
    """Return the processes that have one of the variables `names`, or that `root` is or has started.

    `root` is 0: none, or below: those of Python.
    """
    seen = {pid: stat for pid in _pids() if (stat := stat_or_none(f"/proc/{pid}"))}
    parents = {pid: int(stat[1]) for pid, stat in seen.items()}
    beneath = _beneath(root, parents) if root > 0 else set()
    if root < 0:
        beneath = {pid for pid, stat in seen.items() if _INTERPRETER.search(stat[-1])}
    found, hidden, late = [], 0, []
    for pid, parent in parents.items():
        if pid in (os.getpid(), os.getppid()) or int(seen[pid][6]) & _OF_KERNEL:
            continue
        try:
            variables = within(_BLOCKED_S, lambda at=pid: environment(at), f"/proc/{pid}/environ")  # type: ignore[misc]
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


def _candidate(pid: int, stat: list[str], parent: int, variables: dict[str, str]) -> dict[str, Any]:
    path = f"/proc/{pid}"
    try:
        library = within(_BLOCKED_S, lambda: bool(_LIBRARIES.search(_bytes(f"{path}/maps"))), f"{path}/maps")
    except HostError:
        library = None
    return {
        "pid": pid,
        "parent": parent,
        "start": int(stat[19]),
        "name": stat[-1],
        "user": (user := os.stat(path).st_uid),  # noqa: PTH116
        "owner": _owner(user),
        "program": program(_words_or_none(pid)),
        "library": library,
        "python": bool(_INTERPRETER.search(stat[-1])),
        "age_s": _age_s(int(stat[19])),
        "variables": variables,
    }


def _words_or_none(pid: int) -> list[str]:
    path = f"/proc/{pid}/cmdline"
    try:
        return within(_BLOCKED_S, lambda: _bytes(path), path).decode(errors="replace").split("\0")
    except HostError:
        return []


def _owner(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # as in a container
        return str(user)


def program(words: list[str]) -> str:
    """Return the name of the program of a command line, without its folder, the interpreter and its options."""
    rest = words[1:] if _INTERPRETER.search(Path(words[0]).name if words else "") else words
    first = next((word for word in rest if word and (not word.startswith("-") or word == "-c")), "")
    return Path(first).name[: bounds.NAME_CHARACTERS]


def agent_options(words: list[str]) -> dict[str, str] | None:
    """Return how the agent of torchrun with this command line meets those of other nodes; None: it is not one.

    Nothing is returned of the program that it starts, nor of its words.
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
        value = value if equals or name in _FLAGS else next(rest, "")
        if name in _AGENT_OPTIONS:
            found[name] = recorded(name.upper(), value)
    return found


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208


def _beneath(root: int, parents: dict[int, int]) -> set[int]:
    """Return `root` and all processes that it has started, and that these have."""
    found, more = set(), {root} & parents.keys()
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in found} - found
    return found


def environment(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with."""
    texts = _bytes(f"/proc/{pid}/environ").decode("utf-8", "surrogateescape").split("\0")
    return {name: value for name, equals, value in (each.partition("=") for each in texts) if equals}


# What one process does.


def _process(pid: int, start: int, look: int = 0) -> dict[str, Any]:
    """Return what process `pid`, which began at tick `start`, does now. Raises Missing where it is gone.

    Of ranks in one cgroup this is read once for each `look`.
    """
    path = f"/proc/{pid}"
    stat = stat_or_none(path)
    if stat is None or int(stat[19]) != start:
        raise Missing(f"process {pid}: it has ended{' and its number is of another' if stat else ''}")
    status = _numbers(f"{path}/status")
    return {
        "time_s": time.time(),
        **_state(path, stat),
        "switches": status.get("voluntary_ctxt_switches", 0),
        "tracer": status.get("TracerPid", 0),
        "still_s": _still_s(path),
        "age_s": _age_s(start),
        "swapped_bytes": status.get("VmSwap", 0) << 10,
        "children": list(_children(path, _threads(path))),
        **_cgroup(_text_or_empty(f"{path}/cgroup"), look),
    }


def _state(path: str, stat: list[str]) -> dict[str, Any]:
    """Return what a process does, what it waits for, and its counters."""
    written = _numbers(f"{path}/io")
    return {
        "state": stat[0],
        "cpu_s": (int(stat[11]) + int(stat[12])) / USER_HZ,
        "wchan": _text_or_empty(f"{path}/wchan").strip("0\n"),
        **_waits(path),
        "faults": int(stat[7]) + int(stat[9]),
        "moved_bytes": sum(written.get(name, 0) for name in _MOVED),
        "pipes": sorted(_pipes(path)),
        "queued_s": int((_text_or_empty(f"{path}/schedstat").split() or (0, 0))[1]) / 1e9,
    }


def _waits(path: str) -> dict[str, Any]:
    """Return the call that a process's first thread is in, and the file, socket or process that it was given."""
    words = _text_or_empty(f"{path}/syscall").split()
    if not words or not words[0].isdecimal():
        return {"call": words[0] if words else ""}
    call = _SYSCALLS.get(os.uname().machine, {}).get(int(words[0]), f"system call {words[0]}")
    if call in _OF_CHILD:
        pid = int(words[_OF_CHILD[call]], 16)
        return {"call": call, "awaits": pid if pid < _MOST_PIDS else 0}  # above: -1, which is any
    if call in _LOCKS:
        file = _link_or_empty(f"{path}/fd/{int(words[1], 16)}")
        return {"call": call, "file": file, "holder": lock_holder(int(path.rpartition("/")[2]), _locks())}
    if call == "open":
        return {"call": call, "file": _path_at(path, int(words[_OPENED[os.uname().machine][words[0]]], 16))}
    if call == "nanosleep":
        return {"call": call, "native": int(words[0]) in _OLD_SLEEPS or words[1:3] == ["0x0", "0x0"]}
    return {"call": call, "file": _link_or_empty(f"{path}/fd/{int(words[1], 16)}") if _OF_FD.fullmatch(call) else ""}


def _locks() -> str:
    return _text_or_empty("/proc/locks")


def lock_holder(pid: int, text: str) -> int:
    """Return the process that holds the lock on a file for which `pid` waits, by /proc/locks; 0: it does not say."""
    lines = [line.split() for line in text.splitlines()]
    number = next((words[0] for words in lines if len(words) > 5 and words[1] == "->" and words[5] == str(pid)), None)
    holds = (words[4] for words in lines if len(words) > 4 and words[0] == number and words[1] != "->")
    return int(next((each for each in holds if each.isdecimal()), 0))


def _path_at(path: str, address: int) -> str:
    """Return the path that a process has given to the kernel, from its memory; empty where that may not be read."""

    def read() -> bytes:
        with open(f"{path}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
            return os.pread(memory.fileno(), min(_PATH_BYTES, _PAGE - address % _PAGE), address)

    try:
        return within(_BLOCKED_S, read, f"{path}/mem").partition(b"\0")[0].decode(errors="replace")
    except (OSError, OverflowError, HostError):
        return ""


def _still_s(path: str) -> float | None:
    """Return how long ago a process's first thread last ran (CONFIG_SCHED_DEBUG); None: the kernel does not say."""
    ran = [_EXEC_START.search(_text_or_empty(f"{each}/sched")) for each in ("/proc/self", path)]
    now, last = (float(found[1]) if found else None for found in ran)
    return None if now is None or last is None else round(max(now - last, 0.0) / 1e3, 3)


def _age_s(start: int) -> float:
    return round(max(time.clock_gettime(time.CLOCK_BOOTTIME) - start / USER_HZ, 0.0), 2)


def _threads(path: str) -> list[str]:
    try:
        return sorted(os.listdir(f"{path}/task"), key=int)[: bounds.JOB_THREADS]  # noqa: PTH208
    except OSError:
        return []


def _children(path: str, tids: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the processes that this one has started, and what they have: workers of a data loader, compilers."""
    waiting = [pid for tid in tids for pid in _text_or_empty(f"{path}/task/{tid}/children").split()]
    for count, pid in enumerate(waiting):  # grows as it goes
        own = f"/proc/{pid}"
        stat = stat_or_none(own)
        if stat is None or count >= bounds.JOB_CHILDREN:
            continue
        waiting += _text_or_empty(f"{own}/task/{pid}/children").split()
        yield {"pid": int(pid), "name": stat[-1], **_state(own, stat)}


def _pipes(path: str) -> set[str]:
    """Return the pipes and FIFOs that a process has open, as ``pipe:[123]`` and by their paths."""
    found = set()
    with suppress(OSError):
        for fd in os.listdir(f"{path}/fd")[: bounds.JOB_FILES]:  # noqa: PTH208
            link = _link_or_empty(f"{path}/fd/{fd}")
            if link.startswith("pipe:"):
                found.add(link)
    return found


@lru_cache(256)
def _cgroup(text: str, look: int) -> dict[str, Any]:
    """Return whether a process's cgroup is frozen, held back, or out of memory, of cgroup v2 and v1."""
    groups = dict(line.split(":", 2)[1:] for line in text.splitlines() if line.count(":") > 1)
    found: dict[str, Any] = {}
    for names, own in groups.items():
        part = _CGROUPS / names if names else _CGROUPS
        folder = f"{part}{own}" if Path(f"{part}{own}").is_dir() else str(part)
        if stat := _numbers(f"{folder}/cpu.stat"):
            found["held_s"] = stat.get("throttled_usec", 0) / 1e6 or stat.get("throttled_time", 0) / 1e9
        if _numbers(f"{folder}/cgroup.events").get("frozen") or _text_or_empty(f"{folder}/freezer.state") == "FROZEN\n":
            found["frozen"] = True
        if events := _numbers(f"{folder}/memory.events") or _numbers(f"{folder}/memory.oom_control"):
            found["oom_kills"] = events.get("oom_kill", 0)
        if stalled := _STALLED.search(_text_or_empty(f"{folder}/memory.pressure")):
            found["memory_s"] = int(stalled[1]) / 1e6
    return found


def stat_or_none(path: str) -> list[str] | None:
    """Return the fields of proc_pid_stat(5) from the state on, and last the name; None: it is gone."""
    try:
        head, _, tail = _bytes(f"{path}/stat").decode(errors="replace").rpartition(")")
    except (OSError, Failed):
        return None
    fields = tail.split()
    return [*fields, head.partition("(")[2]] if len(fields) > 20 else None


def _numbers(path: str) -> dict[str, int]:
    """Return the numbers of a file of ``name: number`` or ``name number`` lines; of one that cannot be read none."""
    found = {}
    for line in _text_or_empty(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found


def _text_or_empty(path: str) -> str:
    return _or_empty(lambda: _bytes(path).decode(errors="replace"))


def _link_or_empty(path: str) -> str:
    return _or_empty(lambda: os.readlink(path).encode("utf-8", "surrogateescape").decode(errors="replace"))  # noqa: PTH115


def _or_empty(read: Callable[[], str]) -> str:
    try:
        return read()
    except OSError:
        return ""


def _bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        found = bytearray()
        while len(found) < bounds.ANSWER_BYTES and (chunk := file.read(1 << 16)):
            found += chunk
        return bytes(found)


_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP, _ERROR, _DONE = 4, 20, 0x301, 2, 3
_INFO = 2
ESTABLISHED, LISTENING = 1, 10
_STATES = {ESTABLISHED: "established", 2: "connecting", 8: "closed by its peer"}
_AT_PORT = {ESTABLISHED: "established", LISTENING: "listening"}
_HEADER, _MESSAGE = 16, 72
_MAPPED = "::ffff:"
"""Before an address of IPv4 on a socket of IPv6: the other end of the connection calls it by the rest."""
_ANSWER_S = 1.0


def same_network(process: Path) -> None:
    """Do nothing if a process is in this one's network namespace. Raises Denied where it is in another."""
    if Path("/proc/self/ns/net").readlink() != (process / "ns/net").readlink():
        raise Denied(f"process {process.name} is in another network namespace: attach inside its container")


def connections(pids: Collection[str]) -> str:
    """Return the TCP connections of `pids` as JSON, those first on which something waits."""
    owners: dict[int, str] = {}
    for pid in pids:
        with suppress(OSError):
            same_network(Path(f"/proc/{pid}"))
            owners |= dict.fromkeys(sockets_of(pid, bounds.JOB_FILES), pid)
    if not owners:
        raise Missing("no rank whose sockets can be read")
    found = [
        {"pid": int(owners[inode]), "inode": inode, **_connection(family, message)}
        for family, inode, message in sockets(_STATES)
        if inode in owners
    ]
    found.sort(key=lambda each: -each["unacknowledged_bytes"] - each["unread_bytes"])
    return json.dumps(found[: bounds.JOB_CONNECTIONS])


def at_port(port: int, pids: Collection[str]) -> str:
    """Return as JSON the TCP sockets of this node that listen at `port`, or were accepted there, whoever has them.

    The process is 0 if it is not one of `pids`. Raises Denied if these are in another network namespace.
    """
    owners: dict[int, str] = {}
    for pid in pids:
        same_network(Path(f"/proc/{pid}"))
        owners |= dict.fromkeys(sockets_of(pid, bounds.JOB_FILES), pid)
    found = []
    for family, inode, message in sockets(_AT_PORT, port):
        each = {"pid": int(owners.get(inode, 0)), "inode": inode, **_connection(family, message)}
        found.append({**each, "state": _AT_PORT[message[1]], "unacknowledged_bytes": 0, "unread_bytes": 0})
    return json.dumps(found[: bounds.JOB_CONNECTIONS])


def sockets_of(pid: str, most: int | None = None) -> Iterator[int]:
    """Yield the inodes of the sockets among the first `most` files of a process (None: all); nothing of one that has
    ended or belongs to another user.
    """
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd")[:most]:  # noqa: PTH208
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115
                if link.startswith("socket:["):
                    yield int(link[8:-1])


def sockets(
    states: Collection[int], port: int = 0, peer_port: int = 0
) -> Iterator[tuple[socket.AddressFamily, int, memoryview]]:
    """Yield family, inode and message of each TCP socket in `states` of this network namespace, 0: of every port.

    The kernel chooses: to read /proc/net/tcp it walks its table of all connections, which takes milliseconds each time.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in _dumped(family, sum(1 << state for state in states), port, peer_port):
            yield family, struct.unpack_from("=I", message, 68)[0], message


def _dumped(family: int, states: int, port: int, peer_port: int) -> Iterator[memoryview]:
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), states)
    request += struct.pack("!2H44x", port, peer_port)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asked:
        asked.settimeout(_ANSWER_S)
        asked.sendall(struct.pack("=IHHII", _HEADER + len(request), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + request)
        while True:
            answer = memoryview(asked.recv(1 << 18))
            while answer:
                length, kind = struct.unpack_from("=IH", answer)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", answer, _HEADER)[0]
                    raise OSError(code, os.strerror(code), "sock_diag")
                yield answer[_HEADER:length]
                answer = answer[(length + 3) & ~3 :]


def _connection(family: int, message: memoryview) -> dict[str, Any]:
    state = message[1]
    unread, unacknowledged = struct.unpack_from("=2I", message, 56)
    size = 4 if family == socket.AF_INET else 16
    ports = struct.unpack_from("!2H", message, 4)
    ends = [socket.inet_ntop(family, bytes(message[at : at + size])).removeprefix(_MAPPED) for at in (8, 24)]
    local, peer = (f"[{end}]:{port}" if ":" in end else f"{end}:{port}" for end, port in zip(ends, ports, strict=True))
    info = _tcp_info(message[_MESSAGE:])
    sizes = {"unacknowledged_bytes": unacknowledged, "unread_bytes": unread}
    return {"local": local, "peer": peer, "state": _STATES.get(state, str(state)), **sizes, **info}


def _tcp_info(attributes: memoryview) -> dict[str, Any]:
    """Return what is of use of a tcp_info; a kernel that knows less sends a shorter one."""
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _INFO:
            info = bytes(attributes[4:length]).ljust(136, b"\0")
            data_ms, acknowledgement_ms = struct.unpack_from("=2I", info, 52)
            heard_s = min(data_ms, acknowledgement_ms) / 1e3
            counts = {"retransmits": info[2], "probes": info[3], "heard_s": heard_s}
            acknowledged, received = struct.unpack_from("=2Q", info, 120)
            return {**counts, "acknowledged_bytes": acknowledged, "received_bytes": received}
        attributes = attributes[max((length + 3) & ~3, 4) :]
    return {}
