"""NVIDIA's kernel driver and the fabric manager, by their own word.

The driver's version is for everyone to read. The fabric manager is a service of the host: in a container neither its
program nor its process can be seen, and that says nothing.

NVIDIA's IMEX service, by which machines of one NVLink rack share memory: which nodes it is told of, and its state.

Its guide (docs.nvidia.com/multi-node-nvlink-systems/imex-guide): nodes_config.cfg has an address per line and must be
the same on all nodes; `nvidia-imex-ctl -q` prints READY once the domain is up. Everyone may read and ask. In a
container the service is usually elsewhere, and neither can be seen.
"""

import re

from ncclprobe import bounds
from ncclprobe.errors import Failed, Missing, ParseError
from ncclprobe.facts.field import attempt, learn
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

NODES = "/etc/nvidia-imex/nodes_config.cfg"
_LONGEST_STATE = 40


class Imex(Struct, frozen=True):
    """`nodes`: the addresses of the domain, in their order. `state` is the service's word, such as READY."""

    nodes: tuple[str, ...] | Absent
    state: str | Absent


@collector
def imex(host: Host, gpus: Gpus) -> Imex:
    """Read nodes_config.cfg and ask nvidia-imex-ctl -q, where a GPU is part of a cluster of machines."""
    if not any(isinstance(gpu.fabric, GpuFabric) and gpu.fabric.cluster.strip("0-") for gpu in gpus.all):
        raise Failed("no GPU is part of a cluster of machines")
    return Imex(learn(host, nodes, "read", NODES), learn(host, state, "run", "nvidia-imex-ctl", "-q"))


def nodes(text: str) -> tuple[str, ...]:
    """Return the addresses in nodes_config.cfg: one a line, # begins a comment. Raises ParseError for too many."""
    found = [line.partition("#")[0].strip() for line in text.splitlines()]
    listed = tuple(line for line in found if line)
    if len(listed) > bounds.IMEX_NODES:
        raise ParseError(f"{NODES}: {len(listed)} nodes")
    return listed


def state(text: str) -> str:
    """Return the last line of ``nvidia-imex-ctl -q``. Raises ParseError where it says nothing."""
    lines = text.strip().splitlines()
    if not lines or len(lines[-1]) > _LONGEST_STATE:
        raise ParseError(f"nvidia-imex-ctl -q: {text[:80]!r}")
    return lines[-1].strip()


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
