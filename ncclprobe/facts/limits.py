"""What this process may lock, share and open: memlock and what lifts it, /dev/shm and its leftovers, device nodes.

All of it is this process's own and needs no privilege. Whether a leftover in /dev/shm is still in use shows in the maps
of its owner's processes, which only that owner and root may read.
"""

import json
from collections.abc import Sequence
from typing import Any

from ncclprobe import bounds
from ncclprobe.errors import Missing
from ncclprobe.facts.field import attempt, learn
from ncclprobe.facts.process import Process, namespace
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

SHM = "/dev/shm"
_IMEX = "/dev/nvidia-caps-imex-channels"
_FIRST_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO, linux/proc_ns.h


class Memlock(Struct, frozen=True):
    """RLIMIT_MEMLOCK of this process in bytes; None: unlimited. `exempt`: CAP_IPC_LOCK lifts it (mlock(2))."""

    soft_bytes: int | None
    exempt: bool = False


class Segment(Struct, frozen=True):
    """One of NCCL's files in /dev/shm: its size, and how long ago it was written.

    `held`: some process has it mapped; False: none has, and it is a leftover; None: not every process that might have
    it could be looked at. NCCL removes the file as soon as the last peer has attached (ncclShmOpen in
    src/misc/shmutils.cc, v2.30.7), so one that stays belongs to a job that just starts, or died. Its name is random.
    """

    name: str
    nbytes: int
    age_s: float
    held: bool | None


class SharedMemory(Struct, frozen=True):
    """The file system at /dev/shm: size and what is still free, in bytes.

    `device` is its number: NCCL takes two ranks for neighbours only where theirs are the same. `segments` are NCCL's
    files, the newest first; None: not known.
    """

    total_bytes: int
    available_bytes: int
    device: int | None = None
    segments: tuple[Segment, ...] | None = None


class DeviceNode(Struct, frozen=True):
    """A device node, and whether its permissions let this process read and write it. A device cgroup still may not."""

    path: str
    usable: bool


class Devices(Struct, frozen=True):
    """Device nodes of the NVIDIA driver, IMEX channels (the first 16), and the RDMA nodes under /dev/infiniband."""

    nvidia: tuple[DeviceNode, ...] | Absent
    imex_channels: tuple[DeviceNode, ...] | Absent
    infiniband: tuple[DeviceNode, ...] | Absent


@collector
def memlock(host: Host, process: Process) -> Memlock:
    """Read the limit, and whether a capability in the first user namespace makes it moot; open to every user."""
    soft, _hard = json.loads(host.ask("rlimit", "RLIMIT_MEMLOCK"))
    return Memlock(soft, exempt="ipc_lock" in process.capabilities and process.first_user_namespace)


@collector
def shared_memory(host: Host) -> SharedMemory:
    """Read statvfs(3) and stat(2) of /dev/shm, and NCCL's files in it. Whether others' are in use takes root to see."""
    seen = json.loads(host.ask("statvfs", SHM))
    device = learn(host, lambda text: int(json.loads(text)["device"]), "stat", SHM)
    segments = attempt(lambda: _segments(host))
    return SharedMemory(
        seen["total"],
        seen["available"],
        device=None if isinstance(device, Absent) else device,
        segments=None if isinstance(segments, Absent) else segments,
    )


def _segments(host: Host) -> tuple[Segment, ...]:
    names = json.loads(host.ask("list", SHM, "nccl-*"))[: bounds.SHM_SEGMENTS]
    if not names:
        return ()
    mapped = json.loads(host.ask("mapped", f"{SHM}/nccl-"))
    everyone = learn(host, namespace, "link", "/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    found = []
    for name in names:
        seen = learn(host, json.loads, "stat", f"{SHM}/{name}")
        if not isinstance(seen, Absent):  # it may be gone by now
            held = is_held(f"{SHM}/{name}", seen["mine"], mapped, everyone)
            found.append(Segment(name, seen["bytes"], seen["age_s"], held))
    return tuple(sorted(found, key=lambda segment: segment.age_s))


def is_held(path: str, mine: bool, mapped: dict[str, Any], everyone: bool) -> bool | None:
    """Return whether a process has `path` mapped, given what could be seen of all of them.

    `everyone`: the processes of all containers can be seen from here. Of one's own file the other users' hidden
    processes do not matter: NCCL makes it for its owner alone (mkstemp(3): mode 0600).
    """
    if path in mapped["paths"]:
        return True
    return False if everyone and (mine or not mapped["hidden"]) else None


@collector
def devices(host: Host) -> Devices:
    """Read names in three folders and access(2) to each, for every user. None is opened: that may wake a GPU."""
    return Devices(
        nvidia=attempt(lambda: _nodes(host, "/dev", "nvidia*", but=("nvidia-caps", _IMEX.rpartition("/")[2]))),
        imex_channels=attempt(lambda: _nodes(host, _IMEX, "channel*", most=bounds.IMEX_CHANNELS)),
        infiniband=attempt(lambda: _nodes(host, "/dev/infiniband", "*", but=("by-path", "by-ibdev"))),
    )


def _nodes(host: Host, folder: str, pattern: str, but: Sequence[str] = (), most: int = 256) -> tuple[DeviceNode, ...]:
    try:
        names = [name for name in json.loads(host.ask("list", folder, pattern)) if name not in but]
    except Missing:  # known to have none
        return ()
    found = []
    for path in (f"{folder}/{name}" for name in names[:most]):
        may = json.loads(host.ask("access", path))
        found.append(DeviceNode(path, usable=may["read"] and may["write"]))
    return tuple(found)
