"""NVIDIA's kernel driver and the fabric manager, by their own word.

The driver's version is for everyone to read. The fabric manager is a service of the host: in a container neither its
program nor its process can be seen, and that says nothing.
"""

import re

from ncclprobe.errors import Missing, ParseError
from ncclprobe.facts.field import attempt
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

VERSION = "/proc/driver/nvidia/version"
PID_FILE = "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
_PROCESS = "nv-fabricmanager"[:15]  # what the kernel keeps of a name (TASK_COMM_LEN)


class Driver(Struct, frozen=True):
    """The loaded kernel module: its version, and whether it is the open one, which dma-buf needs."""

    version: str
    is_open: bool


class FabricManager(Struct, frozen=True):
    """The fabric manager installed here: its version, and whether its process runs; Absent: it cannot be seen."""

    version: str
    running: bool | Absent


@collector
def driver(host: Host) -> Driver:
    """Read /proc/driver/nvidia/version, open to every user; missing where the module is not loaded, or hidden
    from us.
    """
    return loaded(host.ask("read", VERSION))


def loaded(text: str) -> Driver:
    """Return the "NVRM version" line, of which there are two forms. Raises ParseError.

    ``NVIDIA UNIX x86_64 Kernel Module 535.104.05 Sat Aug …`` and ``NVIDIA UNIX Open Kernel Module for x86_64 570.158.01
    Release Build (…)``.
    """
    match = re.search(r"^NVRM version: (NVIDIA UNIX .*?)\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE | re.ASCII)
    if not match:
        raise ParseError(f"{VERSION}: {text[:120]!r}")
    return Driver(match[2], "Open Kernel Module" in match[1])


@collector
def fabric_manager(host: Host) -> FabricManager:
    """Read ``nv-fabricmanager --version`` and the process that its pid file names; for every user, but in no
    container.
    """
    version = fabric_manager_version(host.ask("run", "nv-fabricmanager", "--version"))
    return FabricManager(version, attempt(lambda: _running(host)))


def fabric_manager_version(text: str) -> str:
    """Parse ``Fabric Manager version is : 535.104.05``. Raises ParseError."""
    match = re.search(r"Fabric Manager version is\s*:\s*(\d+(?:\.\d+)+)", text, re.ASCII)
    if not match:
        raise ParseError(f"nv-fabricmanager --version: {text[:120]!r}")
    return match[1]


def _running(host: Host) -> bool:
    """Return whether the process of the pid file is there and is the fabric manager. No file: it was not started."""
    try:
        pid = int(host.ask("read", PID_FILE))
    except Missing:
        return False
    except ValueError:
        raise ParseError(f"{PID_FILE}: no number") from None
    try:
        return host.ask("read", f"/proc/{pid}/comm").strip() == _PROCESS
    except Missing:
        return False
