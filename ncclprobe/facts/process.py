"""This process's limits, permissions, shared resources and container.

Limits, processors, capabilities, namespaces, kind of container, /dev/shm with its leftovers, and device nodes: all are
the process's own and readable by every user. Under srun or in a container, a rank started the same way gets the same
values; from a login shell it does not. The maps of the owner's processes show whether a leftover in /dev/shm is still
in use; only that owner and root may read them.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ncclprobe.facts.cpu import cpu_list
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import attempt, learn
from ncclprobe.facts.machine import System
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

_CAPABILITIES = {  # linux/capability.h: those that decide what a job or this tool may do
    12: "net_admin",
    14: "ipc_lock",
    19: "sys_ptrace",
    21: "sys_admin",
    23: "sys_nice",
    24: "sys_resource",
    34: "syslog",
}
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")
_WHOLE_RANGE = ["0", "0", "4294967295"]

_OF_SLURM = ("SLURM_RLIMIT_NOFILE", "SLURM_RLIMIT_MEMLOCK")
READS = frozenset({"KUBERNETES_SERVICE_HOST", "container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", *_OF_SLURM})
"""Variables read here that NCCL's table of parameters lacks; their values may be recorded too."""

_BY_VARIABLE = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
}
_BY_FILE = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_BY_CGROUP = r"/(kubepods|docker|libpod|lxc|machine\.slice/machine-|containerd|cri-o|enroot)"
_CGROUP_KINDS = {"kubepods": "kubernetes", "libpod": "podman", "machine.slice/machine-": "systemd-nspawn"}


class ResourceLimit(NamedTuple):
    """A resource limit, soft and hard. None: unlimited."""

    soft: int | None
    hard: int | None


class Process(Struct, frozen=True):
    """`cpus` and `memory_nodes` are those it may use; `capabilities` are the relevant effective ones (``ipc_lock``).

    `first_user_namespace`: its capabilities apply to the whole machine, not only to a container. `namespaces` are inode
    numbers by kind: equal numbers on one boot of one kernel are the same namespace. `uid` is the real one.
    """

    nproc: ResourceLimit
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    capabilities: frozenset[str]
    first_user_namespace: bool
    namespaces: dict[str, int | Absent]
    uid: int | None = None


Stack = tuple[str | None, int | None]
"""Identifies a network stack: the machine's boot id and the network namespace. None: unknown."""


def stack_of(system: System | Absent | None, process: Process | Absent | None) -> Stack:
    """Return a node's network stack; nodes on the same machine may share one."""
    namespace = process.namespaces.get("net") if isinstance(process, Process) else None
    return (
        system.boot_id if isinstance(system, System) else None,
        namespace if isinstance(namespace, int) else None,
    )


class Container(Struct, frozen=True):
    """`kind` is docker, podman, kubernetes, lxc, apptainer or similar; empty: no sign of a container. `sign` is the
    evidence.

    A sign can be a leftover: a machine booted from a docker image still has its /.dockerenv.
    """

    kind: str = ""
    sign: str = ""


class OpenFiles(Struct, frozen=True):
    """RLIMIT_NOFILE of this process."""

    soft: int | None
    hard: int | None


@collector
def open_files(host: Host) -> OpenFiles:
    """Read getrlimit(2)."""
    return OpenFiles(*_limit(host, "RLIMIT_NOFILE"))


@collector
def process(host: Host) -> Process:
    """Read getrlimit(2), /proc/self/status, uid_map and the links of /proc/self/ns. Needs no privileges."""
    said = host.ask("read", "/proc/self/status")
    cpus, nodes, capabilities = status(said)
    return Process(
        nproc=_limit(host, "RLIMIT_NPROC"),
        cpus=cpus,
        memory_nodes=nodes,
        capabilities=capabilities,
        first_user_namespace=host.ask("read", "/proc/self/uid_map").split() == _WHOLE_RANGE,
        namespaces={kind: learn(host, namespace, "link", f"/proc/self/ns/{kind}") for kind in _NAMESPACES},
        uid=real_user(said),
    )


class JobUser(Struct, frozen=True):
    """The user of Slurm's job, if this process runs as another user, as a prolog does; otherwise None.

    `limits`: the user's known limits by the name of getrlimit(2), each with its source.
    """

    uid: str | None = None
    limits: dict[str, tuple[ResourceLimit, str]] = field(default_factory=dict)


@collector
def job_user(host: Host, environment: Environment, process: Process) -> JobUser:
    """Read the submitter's limits that Slurm propagates (SLURM_RLIMIT_*), otherwise the user's lines in limits.d."""
    uid = environment.get("SLURM_JOB_UID")
    if not uid or process.uid is None or uid == str(process.uid):
        return JobUser()
    told = {name.removeprefix("SLURM_"): name for name in _OF_SLURM}
    limits = {
        limit: (ResourceLimit(number, number), f"{name}={text}")
        for limit, name in told.items()
        if (text := environment.get(name)) and (number := _parse_slurm_limit(text)) != -1
    }
    lines = learn(host, parse_limits_conf, "user_limits", uid) if len(limits) < len(told) else {}
    return JobUser(uid, {**({} if isinstance(lines, Absent) else lines), **limits})


def _parse_slurm_limit(text: str) -> int | None:
    """Parse a limit that Slurm propagates (slurmd/slurmstepd/ulimits.c): ``U4096`` if --propagate requested it.

    None: unlimited; -1: not a limit.
    """
    digits = text.removeprefix("U")
    if not digits.isdecimal() or len(digits) > 20:
        return -1
    return None if int(digits) >= (1 << 63) - 1 else int(digits)


_ITEMS = {"nofile": ("RLIMIT_NOFILE", 1), "memlock": ("RLIMIT_MEMLOCK", 1024)}
"""Items of limits.conf(5), their limits, and the size of one unit in bytes or files."""


def parse_limits_conf(text: str) -> dict[str, tuple[ResourceLimit, str]]:
    """Parse the host's rows ``[place, rank, type, item, value]``; the nearest rank wins, and of its rows the last."""
    won: dict[tuple[str, str], tuple[int, int | None, str]] = {}
    for place, rank, kind, item, value in json.loads(text):
        name, unit = _ITEMS.get(item, ("", 0))
        unlimited = value in ("unlimited", "infinity", "-1")
        if not name or not (unlimited or value.isdecimal()):
            continue
        for side in ("soft", "hard") if kind == "-" else (kind,):
            if rank >= won.get((name, side), (0, None, ""))[0]:
                won[name, side] = rank, None if unlimited else int(value) * unit, place
    return {
        name: (ResourceLimit(soft[1], won.get((name, "hard"), soft)[1]), soft[2])
        for name, _ in _ITEMS.values()
        if (soft := won.get((name, "soft")))
    }


def _limit(host: Host, name: str) -> ResourceLimit:
    said = json.loads(host.ask("rlimit", name))
    if not isinstance(said, list) or len(said) != 2 or not all(each is None or type(each) is int for each in said):
        raise ParseError(f"{name}: {said!r:.80} are not two limits")
    return ResourceLimit(*said)


def status(text: str) -> tuple[tuple[int, ...], tuple[int, ...], frozenset[str]]:
    """Parse processors, memory nodes and effective capabilities of /proc/self/status. Raises ParseError.

    A kernel without cpusets shows no memory nodes; the result has none then.
    """
    fields = {
        name: value.strip() for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon
    }
    try:
        cpus, capabilities = fields["Cpus_allowed_list"], int(fields["CapEff"], 16)
    except (KeyError, ValueError):
        raise ParseError(f"/proc/self/status: no Cpus_allowed_list or CapEff: {text[:80]!r}") from None
    held = frozenset(name for bit, name in _CAPABILITIES.items() if capabilities >> bit & 1)
    return cpu_list(cpus), cpu_list(fields.get("Mems_allowed_list", "")), held


def real_user(text: str) -> int | None:
    """Return the real user of /proc/self/status; None: the recorded lines lack it."""
    found = re.search(r"^Uid:\t(\d{1,10})\t", text, re.MULTILINE | re.ASCII)
    return int(found[1]) if found else None


def namespace(link: str) -> int:
    """Parse the inode number in ``ipc:[4026531839]``. Raises ParseError."""
    match = re.fullmatch(r"\w+:\[(\d{1,20})\]", link.strip(), re.ASCII)
    if not match:
        raise ParseError(f"/proc/self/ns: {link[:60]!r}")
    return int(match[1])


@collector
def container(host: Host, environment: Environment | Absent) -> Container:
    """Look for signs of container engines: variables, two files, process 1's control groups. Needs no privileges."""
    variables = {} if isinstance(environment, Absent) else environment.variables
    for name, kind in _BY_VARIABLE.items():
        if variables.get(name):
            return Container(kind, name)
    for path, kind in _BY_FILE.items():
        if not isinstance(learn(host, str, "stat", path), Absent):
            return Container(kind, path)
    if named := variables.get("container"):  # systemd's convention, kept by podman, lxc and nspawn
        return Container(named, "container")
    try:
        match = re.search(_BY_CGROUP, host.ask("read", "/proc/1/cgroup"))
    except HostError:  # hidepid: the other marks were looked for
        return Container()
    return Container(_CGROUP_KINDS.get(match[1], match[1]), "/proc/1/cgroup") if match else Container()


SHM = "/dev/shm"
_IMEX = "/dev/nvidia-caps-imex-channels"
_FIRST_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO, linux/proc_ns.h


class Memlock(Struct, frozen=True):
    """RLIMIT_MEMLOCK of this process in bytes; None: unlimited. `exempt`: CAP_IPC_LOCK lifts it (mlock(2))."""

    soft_bytes: int | None
    exempt: bool = False


class Segment(Struct, frozen=True):
    """One of NCCL's files in /dev/shm: its size and age.

    `held`: a process has it mapped; False: none has, so it is a leftover; None: not every process that might have it
    was visible. NCCL removes the file as soon as the last peer has attached (ncclShmOpen in src/misc/shmutils.cc,
    v2.30.7), so a file that remains belongs to a job that is just starting, or died. Its name is random.
    """

    name: str
    nbytes: int
    age_s: float
    held: bool | None


class SharedMemory(Struct, frozen=True):
    """The file system at /dev/shm: total and free bytes.

    `device` is its number: NCCL treats two ranks as neighbours only if their numbers are equal. `segments` are NCCL's
    files, newest first; None: unknown.
    """

    total_bytes: int
    available_bytes: int
    device: int | None = None
    segments: tuple[Segment, ...] | None = None


class DeviceNode(Struct, frozen=True):
    """A device node, and whether its permissions allow reading and writing. A device cgroup may still forbid it."""

    path: str
    usable: bool


class Devices(Struct, frozen=True):
    """Device nodes of the NVIDIA driver, IMEX channels (the first 16), and RDMA nodes under /dev/infiniband."""

    nvidia: tuple[DeviceNode, ...] | Absent
    imex_channels: tuple[DeviceNode, ...] | Absent
    infiniband: tuple[DeviceNode, ...] | Absent


@collector
def memlock(host: Host, process: Process | Absent) -> Memlock:
    """Read the limit, and whether CAP_IPC_LOCK in the first user namespace lifts it. Needs no privileges."""
    soft, _hard = json.loads(host.ask("rlimit", "RLIMIT_MEMLOCK"))
    held = isinstance(process, Process) and "ipc_lock" in process.capabilities and process.first_user_namespace
    return Memlock(soft, exempt=held)


@collector
def shared_memory(host: Host) -> SharedMemory:
    """Read statvfs(3) and stat(2) of /dev/shm, and NCCL's files in it. Only root sees whether other users'
    are in use.
    """
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
    """Return whether a process has `path` mapped; None: unknown, because some processes are hidden.

    `everyone`: the processes of all containers are visible from here. For the caller's own file, hidden processes of
    other users do not matter: NCCL makes it only for its owner (mkstemp(3): mode 0600).
    """
    if path in mapped["paths"]:
        return True
    return False if everyone and (mine or not mapped["hidden"]) else None


@collector
def devices(host: Host) -> Devices:
    """List three folders and check access(2) of each node. Needs no privileges. Opens none: that may wake a GPU."""
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
