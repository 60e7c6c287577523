"""Where a rank runs and where it should: NUMA nodes, the processors that it may use, its GPU's place."""

import contextlib
import os
import threading
from collections.abc import Container

from ncclprobe.errors import HostError, ParseError
from ncclprobe.facts.cpu import cpu
from ncclprobe.host import Host

_PCI = "/sys/bus/pci/devices"
_MOST_CPUS = 8192
"""NR_CPUS of the largest kernels; bits of processors that there are not do no harm."""


def numa_nodes(host: Host) -> dict[int, tuple[int, ...]]:
    """By NUMA node, those of its processors that this process may have; all in node 0 where the kernel has none.

    What a control group has taken away stays away; what taskset, srun or mpirun has, a process may give itself back.
    """
    allowed = _allowed()
    try:
        found = {node.id: tuple(c for c in node.cpus if c in allowed) for node in cpu.run(host).numa}
    except (HostError, ParseError):
        found = {}
    return {node: cpus for node, cpus in found.items() if cpus} or {0: tuple(sorted(allowed))}


def _allowed() -> set[int]:
    """What a thread gets that asks for all processors: the kernel leaves out what its control group may not have."""
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
    """Which of `nodes` the GPU ``cuda:1`` hangs on; None where the machine does not say."""
    import torch

    told = torch.cuda.get_device_properties(torch.device(device))
    try:
        address = f"{told.pci_domain_id:04x}:{told.pci_bus_id:02x}:{told.pci_device_id:02x}.0"
        number = int(host.ask("read", f"{_PCI}/{address}/numa_node"))
    except (AttributeError, HostError, ValueError):  # torch tells the address since 2.7
        return None
    return number if number in nodes else None


def gpu_index(number: int) -> int:
    """The node's number of a GPU that this process sees as `number`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    named = visible[number].strip() if number < len(visible) else ""
    return int(named) if named.isdecimal() else number


def gpu_name(number: int) -> str:
    """The name, ``GPU3``, of a GPU that this process sees as `number`."""
    return f"GPU{gpu_index(number)}"
