"""Find the call in which a process waits, and its file, socket, lock or process, from files of /proc,
which may block.
"""

import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ncclprobe.host.deadlines import within
from ncclprobe.host.tcp_sockets import LISTENING, ends, sockets
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError

BLOCKED_S = 0.2
"""Timeout for one file of one process."""
_OF_FD = re.compile("(read|write)v?|(recv|send)(from|to|msg)|connect|accept|flock|fcntl|fsync")
_POLLED, _MOST_POLLED, _MOST_SELECTED = struct.Struct("=i4x"), 64, 1023
"""The size of an entry of poll(2), the most entries that are read, and the highest file of select(2)."""
_TARGET = re.compile(r"^tfd: +([0-9]+) ", re.MULTILINE)
"""A file that epoll_wait(2) waits for, in proc_pid_fdinfo(5)."""
_OF_CHILD = {"wait4": 1, "waitid": 2}
_LOCKS, _FOR_INPUT = ("flock", "fcntl"), ("poll", "epoll_wait", "select")
_OPENED = {"x86_64": {"2": 1, "257": 2}, "aarch64": {"56": 2}}
"""Index of the path's address in /proc/PID/syscall for open(2) and openat(2)."""
_PATH_BYTES, _PAGE = 4096, 4096
_MOST_PIDS = 1 << 22
_OLD_SLEEPS = (35, 101)
"""nanosleep(2). C and C++ sleep for a duration by CLOCK_REALTIME, Python until a time of CLOCK_MONOTONIC."""
SYSCALLS = {
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
"""Names of blocking system calls, by number (asm/unistd.h); variants share a name."""


def waits(path: str) -> dict[str, Any]:
    """Return the system call of a process's first thread, and the file, socket or process it refers to."""
    words = text_or_empty(f"{path}/syscall").split()
    if not words or not words[0].isdecimal():
        return {"call": words[0] if words else ""}
    call = SYSCALLS.get(os.uname().machine, {}).get(int(words[0]), f"system call {words[0]}")
    if call in _OF_CHILD:
        pid = int(words[_OF_CHILD[call]], 16)
        return {"call": call, "awaits": pid if pid < _MOST_PIDS else 0}  # above: -1, which is any
    if call in _LOCKS:
        file = link_or_empty(f"{path}/fd/{int(words[1], 16)}")
        own = path.rpartition("/")[2]
        return {"call": call, "file": file, **_keeper(own, file)}
    if call == "open":
        return {"call": call, "file": _path_at(path, int(words[_OPENED[os.uname().machine][words[0]]], 16))}
    if call == "nanosleep":
        return {"call": call, "native": int(words[0]) in _OLD_SLEEPS or words[1:3] == ["0x0", "0x0"]}
    files = [int(words[1], 16)] if _OF_FD.fullmatch(call) else _awaited_files(path, call, words)
    links = [link_or_empty(f"{path}/fd/{each}") for each in files]
    if (listens := _listening(links)) and call in (*_FOR_INPUT, "accept"):
        return {"call": call, "file": listens, "listens": True}
    return {"call": call, "file": links[0] if len(links) == 1 else "", "stdin": files == [0]}


def _awaited_files(path: str, call: str, words: list[str]) -> list[int]:
    """Return the files that a process waits for in epoll_wait(2) or, if its memory is readable, in poll or select."""
    if call == "epoll_wait":
        return [int(each) for each in _TARGET.findall(text_or_empty(f"{path}/fdinfo/{int(words[1], 16)}"))]
    if call == "select":
        memory = _memory(path, int(words[2], 16), min(int(words[1], 16), _MOST_SELECTED) // 8 + 1)
        return [8 * at + bit for at, byte in enumerate(memory) for bit in range(8) if byte >> bit & 1][:_MOST_POLLED]
    if call != "poll":
        return []
    count = min(int(words[2], 16), _MOST_POLLED)
    memory = _memory(path, int(words[1], 16), count * _POLLED.size)
    return [fd for (fd,) in _POLLED.iter_unpack(memory[: len(memory) // _POLLED.size * _POLLED.size])]


def _listening(links: list[str]) -> str:
    """Return the first of these sockets that accepts connections; empty: none."""
    own = {each for each in links if each.startswith("socket:")}
    with suppress(OSError):
        for family, inode, message in sockets([LISTENING]) if own else ():
            if f"socket:[{inode}]" in own:
                return f"a socket that listens at {ends(family, message)[0]}"
    return ""


def _locks() -> str:
    return text_or_empty("/proc/locks")


def lock_holder(pid: int, text: str) -> int:
    """Return the process that holds the file lock that `pid` waits for, from /proc/locks; 0: unknown."""
    lines = [line.split() for line in text.splitlines()]
    number = next((words[0] for words in lines if len(words) > 5 and words[1] == "->" and words[5] == str(pid)), None)
    holds = (words[4] for words in lines if len(words) > 4 and words[0] == number and words[1] != "->")
    return int(next((each for each in holds if each.isdecimal()), 0))


def _keeper(pid: str, file: str) -> dict[str, Any]:
    """Return who holds the lock that `pid` waits for. Without it in /proc/locks: the only other user of the file.

    /proc/locks names the process that took the lock. A forked child inherits the file and keeps the lock after that
    process has closed it: then that one is the taker, and the users of the file may hold the lock.
    """
    named = lock_holder(int(pid), _locks())
    if named and file in _opened(f"/proc/{named}/fd"):
        return {"holder": named}
    users = _users(pid, file)
    if named:
        return {"taker": named, "users": users}
    return {"holder": users[0] if len(users) == 1 else 0}


def _users(pid: str, file: str) -> list[int]:
    """Return the other processes that have a file open and wait for no lock."""
    found = []
    for other in os.listdir("/proc") if file.startswith("/") else ():  # noqa: PTH208
        if other.isdecimal() and other != pid and file in _opened(f"/proc/{other}/fd"):
            call = (text_or_empty(f"/proc/{other}/syscall").split() or [""])[0]
            if not call.isdecimal() or SYSCALLS.get(os.uname().machine, {}).get(int(call)) not in _LOCKS:
                found.append(int(other))
    return found


def _opened(folder: str) -> set[str]:
    try:
        return {link_or_empty(f"{folder}/{fd}") for fd in os.listdir(folder)[: bounds.JOB_FILES]}  # noqa: PTH208
    except OSError:
        return set()


def _path_at(path: str, address: int) -> str:
    """Read a path argument from a process's memory; empty if that is not permitted."""
    return _memory(path, address, _PATH_BYTES).partition(b"\0")[0].decode(errors="replace")


def _memory(path: str, address: int, size: int) -> bytes:
    """Read `size` bytes of a process's memory, at most to the end of a page; empty if that is not permitted."""
    if address >> 63:  # of the kernel
        return b""

    def read() -> bytes:
        with open(f"{path}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
            return os.pread(memory.fileno(), min(size, _PAGE - address % _PAGE), address)

    try:
        return within(BLOCKED_S, read, f"{path}/mem")
    except HostError:
        return b""


def text_or_empty(path: str) -> str:
    return _or_empty(lambda: bytes_of(path).decode(errors="replace"))


def link_or_empty(path: str) -> str:
    return _or_empty(lambda: os.readlink(path).encode("utf-8", "surrogateescape").decode(errors="replace"))  # noqa: PTH115


def _or_empty(read: Callable[[], str]) -> str:
    try:
        return read()
    except OSError:
        return ""


def bytes_of(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        found = bytearray()
        while len(found) < bounds.ANSWER_BYTES and (chunk := file.read(1 << 16)):
            found += chunk
        return bytes(found)
