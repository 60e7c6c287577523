"""``ncclprobe affinity``: the cost of the processors that ranks run on, and the options that place them better.

A rank with a GPU should run on the processors of the GPU's NUMA node, one without a GPU on those of its share of the
nodes; any of them will do: pinning to one processor only helps where nothing else runs there.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Container, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ncclprobe import stats
from ncclprobe.errors import HostError, ParseError
from ncclprobe.facts.cpu import cpu
from ncclprobe.host import Host
from ncclprobe.model.traffic import AffinityRow
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.topology.node import ranges

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Exchange, SetPhase  # which imports torch

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


def node_of_gpu(device: str, host: Host, nodes: Container[int]) -> int | None:
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


ALREADY = "every rank already has the processors of its NUMA node, so there was nothing to compare"


def measured(
    plan: Any, identity: RankIdentity, name: str, host: Host, exchange: "Exchange", set_phase: "SetPhase"
) -> tuple[tuple[AffinityRow, ...], str]:
    """Return a row for each rank that should have other processors, and a note where there is none; on rank 0.

    All such ranks change their processors at the same time. Raises ProbeError.
    """
    from ncclprobe.probes.affinity import alternate

    set_phase("affinity, NUMA node of each rank")
    nodes, mine = numa_nodes(host), set(os.sched_getaffinity(0))
    node = _node(plan.device, identity, host, sorted(nodes))
    better = None if set(nodes[node]) == mine else nodes[node]
    infos = exchange.collect({"node": name, "local": identity.local_rank, "numa": node, "wrong": better is not None})
    if not exchange.share(any(info["wrong"] for info in infos) if infos else None):
        return (), ALREADY
    sides = alternate(plan, better, exchange, set_phase)
    words = "" if better is None else ranges(better)
    received = exchange.collect([ranges(mine), words, len(nodes), *sides])
    if not received or not infos:
        return (), ""
    return tuple(
        row(rank, info["node"], cpus, wanted, as_is, changed, how(info, infos, wanted, number))
        for rank, (info, (cpus, wanted, number, as_is, changed)) in enumerate(zip(infos, received, strict=True))
        if wanted
    ), ""


def _node(device: str, identity: RankIdentity, host: Host, nodes: Sequence[int]) -> int:
    """Return the NUMA node of the rank's GPU, else its share of the nodes by local rank."""
    of_gpu = node_of_gpu(device, host, nodes) if device.startswith("cuda") else None
    return of_gpu if of_gpu is not None else nodes[identity.local_rank * len(nodes) // max(1, identity.local_ranks)]


def row(
    rank: int, node: str, cpus: str, better: str, as_is: Sequence[float], changed: Sequence[float], words: str
) -> AffinityRow:
    """Make a row from the seconds of each round: medians, and the median of the rounds' ratios with its interval."""
    ratios = [first / last for first, last in zip(as_is, changed, strict=True)]
    interval = stats.median_interval(ratios) if len(ratios) >= stats.MIN_SAMPLES else None
    before_us, after_us = (round(median(each) * 1e6, 3) for each in (as_is, changed))
    rounded = None if interval is None else (round(interval[0], 4), round(interval[1], 4))
    return AffinityRow(rank, node, cpus, better, before_us, after_us, round(median(ratios), 4), rounded, words)


def how(info: dict[str, Any], infos: Collection[dict[str, Any]], cpus: str, nodes: int) -> str:
    """Return the options that give a rank these processors; for Slurm, all ranks of its node."""
    if nodes < 2:
        return f"numactl --physcpubind={cpus} PROGRAM, or srun --cpu-bind=none with all of the node's processors (-c)"
    node = info["numa"]
    here = sorted((each for each in infos if each["node"] == info["node"]), key=lambda each: int(each["local"]))
    domains = ",".join(str(each["numa"]) for each in here)
    return f"numactl --cpunodebind={node} --membind={node} PROGRAM, or srun --cpu-bind=map_ldom:{domains}"
