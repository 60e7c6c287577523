"""CPUs, NUMA nodes and clock scaling, from sysfs. Every user may read them; few virtual machines have cpufreq."""

import json
import re

from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

POLICY = "/sys/devices/system/cpu/cpu0/cpufreq"


class Scaling(Struct, frozen=True):
    """Driver and governor of the first processor; every tool sets all processors alike.

    Both empty: firmware or a hypervisor sets the clock, not this kernel.
    """

    driver: str = ""
    governor: str = ""


@collector
def cpufreq(host: Host) -> Scaling:
    """Read the scaling driver and governor of the first processor. Needs no privileges."""
    try:
        return Scaling(
            host.ask("read", f"{POLICY}/scaling_driver").strip(), host.ask("read", f"{POLICY}/scaling_governor").strip()
        )
    except Missing:
        return Scaling()


ROOT = "/sys/devices/system"


class NumaNode(Struct, frozen=True):
    """One NUMA node: its CPUs and its distance to every online node (ACPI SLIT: 10 is itself)."""

    id: int
    cpus: tuple[int, ...]
    distances: tuple[int, ...]


class Cpus(Struct, frozen=True):
    """Online CPUs, the model name, and the NUMA nodes (empty: a kernel without NUMA support)."""

    online: tuple[int, ...]
    model: str
    numa: tuple[NumaNode, ...]


@collector
def cpu(host: Host) -> Cpus:
    """Read the kernel's lists of processors and NUMA nodes."""
    online = cpu_list(host.ask("read", f"{ROOT}/cpu/online"))
    try:
        entries = json.loads(host.ask("list", f"{ROOT}/node"))
    except Missing:  # CONFIG_NUMA is off: known to have none
        entries = []
    numbers = sorted(int(entry[4:]) for entry in entries if re.fullmatch(r"node\d+", entry))
    return Cpus(online, model_name(host.ask("read", "/proc/cpuinfo")), tuple(_node(host, n) for n in numbers))


def _node(host: Host, number: int) -> NumaNode:
    folder = f"{ROOT}/node/node{number}"
    distances = tuple(map(int, host.ask("read", f"{folder}/distance").split()))
    return NumaNode(number, cpu_list(host.ask("read", f"{folder}/cpulist")), distances)


def cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format, ``0-3,8,10-11``. Empty: a node with memory only."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if not match:
            raise ParseError(f"CPU list: {text[:80]!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ParseError(f"CPU list: {text[:80]!r}: {part} runs backwards")
        if len(cpus) + last - first >= bounds.LISTED_NUMBERS:
            raise ParseError(f"CPU list: {text[:80]!r}: more than {bounds.LISTED_NUMBERS} processors")
        cpus += range(first, last + 1)
    return tuple(cpus)


def model_name(text: str) -> str:
    """Return the first processor's name in /proc/cpuinfo: "model name" on x86, "cpu" on POWER; Arm gives none."""
    match = re.search(r"^(?:model name|cpu)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else ""
