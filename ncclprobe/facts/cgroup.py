"""Limits that control groups (version 1 and 2) put on this process: processor time, memory and threads.

A limit may be set at any level above the process, and the smallest one applies. Every user may read them. A container
with its own cgroup namespace cannot see the levels above its root, so the limits of its pod are hidden. Source:
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ in the kernel.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from ncclprobe.facts.field import attempt
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_UNLIMITED = 1 << 60  # version 1 writes the greatest multiple of a page for "no limit"


class Throttling(NamedTuple):
    """How often the quota stopped this group: periods seen, periods throttled, and seconds summed over its threads."""

    periods: int
    throttled: int
    seconds: float


class Quota(Struct, frozen=True):
    """The narrowest limit on processor time, in processors, and how often it has throttled the group."""

    cpus: float
    group: str
    throttling: Throttling | Absent


class MemoryLimit(Struct, frozen=True):
    """The narrowest memory limit in bytes, and its current use including the page cache."""

    nbytes: int
    group: str
    used_bytes: int | Absent


class PidsLimit(Struct, frozen=True):
    """The limit on processes and threads that leaves the least room, and the current count."""

    most: int
    group: str
    used: int | Absent

    @property
    def left(self) -> int:
        """Return how many more may start. Never negative: a group may already exceed a limit that was set later."""
        return max(0, self.most - (0 if isinstance(self.used, Absent) else self.used))


class Cgroup(Struct, frozen=True):
    """The tightest visible limit of each kind. None: no level sets one."""

    cpu: Quota | Absent | None
    memory: MemoryLimit | Absent | None
    pids: PidsLimit | Absent | None = None


class _CgroupNames(NamedTuple):
    """File names that one version of control groups uses."""

    quota: str
    period: str
    memory: str
    used: str


V1 = _CgroupNames("cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes", "memory.usage_in_bytes")
V2 = _CgroupNames("cpu.max", "", "memory.max", "memory.current")


class CgroupFolders(NamedTuple):
    """One controller's folders, from this process's own group up to the topmost mounted one."""

    names: _CgroupNames
    folders: tuple[str, ...]


NOWHERE = CgroupFolders(V2, ())


@collector
def cgroup(host: Host) -> Cgroup:
    """Read /proc/self/cgroup and mountinfo, then one or two files per level and controller. Needs no privileges."""
    where = places(host.ask("read", "/proc/self/cgroup"), host.ask("read", "/proc/self/mountinfo"))
    return Cgroup(
        attempt(lambda: _quota(host, where["cpu"])),
        attempt(lambda: _memory(host, where["memory"])),
        attempt(lambda: _pids(host, where["pids"])),
    )


def places(groups: str, mounts: str) -> dict[str, CgroupFolders]:
    """Return the folders that hold the ``cpu``, ``memory`` and ``pids`` limits, given two files of /proc/self.

    A controller without folders is not mounted here. In a hybrid hierarchy, version 1 has the controllers. Raises
    ParseError.
    """
    own = _groups(groups)
    found = dict.fromkeys(("cpu", "memory", "pids"), NOWHERE)
    for root, point, kind, controllers in _mounts(mounts):
        names = V1 if kind == "cgroup" else V2
        for controller in found:
            group = own.get(controller if names is V1 else "")
            wanted = controller in controllers if names is V1 else controller not in own
            if wanted and group and found[controller] is NOWHERE:
                found[controller] = CgroupFolders(names, tuple(_upwards(point, _path_below_mount(root, group))))
    return found


def _groups(text: str) -> dict[str, str]:
    """Map each controller to its group; version 2 has the empty name."""
    own: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\d+:([^:]*):(/.*)", line)
        if not match:
            raise ParseError(f"/proc/self/cgroup: {line[:120]!r}")
        own |= dict.fromkeys(match[1].split(","), match[2])
    return own


def _mounts(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield root, mount point, type and super options of each cgroup file system (proc_pid_mountinfo(5))."""
    for line in text.splitlines():
        place, _, device = line.partition(" - ")
        fields, super_fields = place.split(" "), device.split(" ")
        if len(fields) < 5 or len(super_fields) < 3:
            raise ParseError(f"/proc/self/mountinfo: {line[:120]!r}")
        if super_fields[0] in ("cgroup", "cgroup2"):
            yield fields[3], fields[4], super_fields[0], super_fields[2].split(",")


def _path_below_mount(root: str, group: str) -> str:
    """Return the group's path below a mount of `root`, or "." if the group is outside it."""
    try:
        return str(PurePosixPath(group).relative_to(root))
    except ValueError:  # docker without a cgroup namespace: its group is what is mounted
        return "."


def _upwards(point: str, group: str) -> Iterator[str]:
    folder = PurePosixPath(point) / group
    for level in (folder, *folder.parents)[: bounds.CGROUP_LEVELS]:
        yield str(level)
        if str(level) == point:
            return


def _quota(host: Host, place: CgroupFolders) -> Quota | None:
    """Return the level with the least processor time; None: no level sets a limit. Raises Missing if none
    is visible.
    """
    _demand(place, "cpu")
    found = [(cpus, folder) for folder in place.folders if (cpus := _cpus(host, place.names, folder)) is not None]
    if not found:
        return None
    cpus, folder = min(found)
    return Quota(cpus, folder, attempt(lambda: throttling(host.ask("read", f"{folder}/cpu.stat"))))


def _demand(place: CgroupFolders, controller: str) -> None:
    if not place.folders:
        raise Missing(f"control group of {controller}: not mounted here, so its limits cannot be seen")


def _cpus(host: Host, names: _CgroupNames, folder: str) -> float | None:
    try:
        text = host.ask("read", f"{folder}/{names.quota}")
        return quota(text, host.ask("read", f"{folder}/{names.period}") if names.period else "")
    except Missing:  # the root of the hierarchy has no such file, nor a level below which the controller is off
        return None


def quota(text: str, period: str = "") -> float | None:
    """Parse ``cpu.max``, or ``cpu.cfs_quota_us`` and its period, in processors. None: unlimited. Raises ParseError."""
    words = f"{text} {period}".split()
    if words[:1] in (["max"], ["-1"]):
        return None
    if len(words) != 2 or not all(re.fullmatch(r"\d{1,18}", word, re.ASCII) for word in words) or not int(words[1]):
        raise ParseError(f"processor quota: {text[:40]!r} {period[:40]!r}")
    return int(words[0]) / int(words[1])


def throttling(text: str) -> Throttling:
    """Parse ``cpu.stat``; version 1 counts nanoseconds, version 2 microseconds. Raises ParseError."""
    found = counters(text)
    try:
        seconds = found["throttled_usec"] / 1e6 if "throttled_usec" in found else found["throttled_time"] / 1e9
        return Throttling(found["nr_periods"], found["nr_throttled"], seconds)
    except KeyError as missing:
        raise ParseError(f"cpu.stat: no {missing.args[0]}: {text[:80]!r}") from None


def counters(text: str) -> Mapping[str, int]:
    """Parse lines of a name and a number."""
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d{1,20})$", text, re.MULTILINE | re.ASCII)}


def _memory(host: Host, place: CgroupFolders) -> MemoryLimit | None:
    """Return the level with the least memory; None: no level sets a limit. Raises Missing if no level is visible."""
    _demand(place, "memory")
    found = min(_limits(host, place, place.names.memory), default=None)
    return found and MemoryLimit(*found, _used(host, f"{found[1]}/{place.names.used}"))


def _pids(host: Host, place: CgroupFolders) -> PidsLimit | None:
    """Return the level with the least room; None: no level sets a limit. Raises Missing if no level is visible."""
    _demand(place, "pids")
    limits = _limits(host, place, "pids.max")
    found = (PidsLimit(most, folder, _used(host, f"{folder}/pids.current")) for most, folder in limits)
    return min(found, key=lambda limit: limit.left, default=None)


def _used(host: Host, path: str) -> int | Absent:
    return attempt(lambda: nbytes(host.ask("read", path)) or 0)


def _limits(host: Host, place: CgroupFolders, name: str) -> Iterator[tuple[int, str]]:
    """Yield each level's limit and its folder, if it sets one."""
    for folder in place.folders:
        try:
            limit = nbytes(host.ask("read", f"{folder}/{name}"))
        except Missing:  # as above
            continue
        if limit is not None:
            yield limit, folder


def nbytes(text: str) -> int | None:
    """Parse a memory limit in bytes. None: ``max``, or the huge number that version 1 writes. Raises ParseError."""
    if text.strip() == "max":
        return None
    if not re.fullmatch(r"\d{1,20}\s*", text, re.ASCII):
        raise ParseError(f"memory limit: {text[:40]!r}")
    return int(text) if int(text) < _UNLIMITED else None
