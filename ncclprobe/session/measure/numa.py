"""NUMA nodes, the processors of a rank, and the NUMA node of its GPU."""

import contextlib
import os
import threading
from collections.abc import Container
from typing import Any

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

    try:
        address = _address(torch.cuda.get_device_properties(torch.device(device)))
        number = int(host.ask("read", f"{_PCI}/{address}/numa_node"))
    except (HostError, ValueError):
        return None
    return number if number in nodes else None


def gpu_identity(number: int) -> str:
    """Return the PCI address of the GPU that is `number` to CUDA in this process, or its UUID where torch lacks it.

    CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, control groups and MIG change CUDA's numbers and not these, by which
    `Gpus.names` finds what NVML calls it.
    """
    import torch

    properties = torch.cuda.get_device_properties(number)
    return _address(properties) or str(getattr(properties, "uuid", f"cuda:{number}"))


def _address(properties: Any) -> str:
    """Return the PCI address of a GPU; empty before torch 2.7, which brings it."""
    if not hasattr(properties, "pci_bus_id"):
        return ""
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
