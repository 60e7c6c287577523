"""What this process may lock and share: memlock, /dev/shm, and the capability that lifts the first."""

import json
import re
from dataclasses import dataclass

from ncclprobe.errors import ParseError
from ncclprobe.host import Host
from ncclprobe.registry import collector

_CAP_IPC_LOCK = 14  # linux/capability.h


@dataclass(frozen=True, slots=True)
class Memlock:
    """RLIMIT_MEMLOCK of this process in bytes; None: unlimited. `exempt`: CAP_IPC_LOCK lifts it (mlock(2))."""

    soft_bytes: int | None
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The file system at /dev/shm: size and what is still free, in bytes."""

    total_bytes: int
    available_bytes: int


@collector
def memlock(host: Host) -> Memlock:
    """The limit, and whether a capability in the initial user namespace makes it moot."""
    soft, _hard = json.loads(host.ask("rlimit", "RLIMIT_MEMLOCK"))
    capable = may_lock(host.ask("read", "/proc/self/status"))
    initial = host.ask("read", "/proc/self/uid_map").split() == ["0", "0", "4294967295"]
    return Memlock(soft, exempt=capable and initial)


def may_lock(text: str) -> bool:
    """Whether /proc/self/status shows CAP_IPC_LOCK among the effective capabilities."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", text, re.MULTILINE)
    if not match:
        raise ParseError(f"/proc/self/status: no CapEff in {text[:80]!r}")
    return bool(int(match[1], 16) >> _CAP_IPC_LOCK & 1)


@collector
def shared_memory(host: Host) -> SharedMemory:
    """statvfs(3) of /dev/shm."""
    seen = json.loads(host.ask("statvfs", "/dev/shm"))
    return SharedMemory(seen["total"], seen["available"])
