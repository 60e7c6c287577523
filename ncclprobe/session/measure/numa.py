"""NUMA nodes, the processors of a rank, and the NUMA node of its GPU."""

import contextlib
import os
import threading
from collections.abc import Container

from ncclprobe.errors import HostError, ParseError
from ncclprobe.facts.cpu import cpu
from ncclprobe.host import Host

_PCI = "/sys/bus/pci/devices"
_MOST_CPUS = 8192
"""NR_CPUS of the largest kernels; bits of absent processors do no harm."""


def numa_nodes(host: Host) -> dict[int, tuple[int, ...]]:
    """Return, by NUMA node, the processors that this process may have; all in node 0 where the kernel has no nodes.

    A control group's limit holds; a process may undo the affinity that taskset, srun or mpirun set.
    """
    allowed = _allowed()
    try:
        found = {node.id: tuple(c for c in node.cpus if c in allowed) for node in cpu.run(host).numa}
    except (HostError, ParseError):
        found = {}
    return {node: cpus for node, cpus in found.items() if cpus} or {0: tuple(sorted(allowed))}


def _allowed() -> set[int]:
    """Ask for all processors in a thread, and return those that the kernel gives: the control group's."""
    got: list[set[int]] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(_MOST_CPUS))
        got.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return got[0]


def of_gpu(device: str, host: Host, nodes: Container[int]) -> int | None:
    """Return which of `nodes` the GPU `device` (such as ``cuda:1``) is attached to; None where it is not known."""
    import torch

    properties = torch.cuda.get_device_properties(torch.device(device))
    try:
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        number = int(host.ask("read", f"{_PCI}/{address}/numa_node"))
    except (AttributeError, HostError, ValueError):  # torch has the address since 2.7
        return None
    return number if number in nodes else None


def gpu_index(number: int) -> int:
    """Return the node's index of a GPU that has index `number` in this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    named = visible[number].strip() if number < len(visible) else ""
    return int(named) if named.isdecimal() else number


def gpu_name(number: int) -> str:
    """Return the name, such as ``GPU3``, of a GPU that has index `number` in this process."""
    return f"GPU{gpu_index(number)}"
