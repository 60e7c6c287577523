"""The machine's free memory, and the NUMA nodes that this process allocates from. Needs no privileges.

The numbers are the whole machine's, in a container too; its control group's limits are in
:mod:`ncclprobe.facts.cgroup`.
"""

import re

from ncclprobe.facts.cpu import cpu_list
from ncclprobe.host import Host
from ncclprobe.model.errors import Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

STACK = r"^[0-9a-f]+ .* stack "
_POLICY = re.compile(r"[0-9a-f]+ ([a-z]+)(?:=[a-z]+)?(?: \(many\))?(?::([0-9,-]+))? ")


class Memory(Struct, frozen=True):
    """Bytes. `available` is what the kernel can allocate without swapping: free memory and reclaimable caches."""

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0


class MemoryPolicy(Struct, frozen=True):
    """How this process chooses NUMA nodes (set_mempolicy(2)): ``default``, ``bind``, ``prefer``, ``interleave`` …

    `nodes` are the nodes that the policy names, if any.
    """

    mode: str = "default"
    nodes: tuple[int, ...] = ()


@collector
def memory(host: Host) -> Memory:
    """Read /proc/meminfo. Needs no privileges."""
    return meminfo(host.ask("read", "/proc/meminfo"))


def meminfo(text: str) -> Memory:
    """Parse four lines of /proc/meminfo; a kernel without swap may lack two. Raises ParseError."""
    found = {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d{1,15}) kB$", text, re.M | re.A)}
    try:
        return Memory(found["MemTotal"], found["MemAvailable"], found.get("SwapTotal", 0), found.get("SwapFree", 0))
    except KeyError as missing:
        raise ParseError(f"/proc/meminfo: no {missing.args[0]}: {text[:80]!r}") from None


@collector
def memory_policy(host: Host) -> MemoryPolicy:
    """Read the stack's line of /proc/self/numa_maps: its policy is the process's own."""
    try:
        return policy(host.ask("lines", "/proc/self/numa_maps", STACK))
    except Missing:  # a kernel without NUMA
        return MemoryPolicy()


def policy(text: str) -> MemoryPolicy:
    """Parse the policy on the first line, in the format of the kernel's mpol_to_str (mm/mempolicy.c). Raises
    ParseError.
    """
    match = _POLICY.match(text)
    if not match:
        raise ParseError(f"/proc/self/numa_maps: {text[:80]!r}")
    return MemoryPolicy(match[1], cpu_list(match[2] or ""))
