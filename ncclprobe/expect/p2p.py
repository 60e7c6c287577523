"""all_to_all, gather, scatter and sendrecv: a model from links and hops, because NCCL's own has none of them.

A rank's shares for its own node travel over its NVLinks or slot, those for others over its part of the NICs, both at
once; the slower decides. The latency is that of a ring's launch and one hop, as NCCL's tables have them
(:mod:`.tuning`). Nothing here is NCCL's, and nothing is fitted.
"""

from dataclasses import dataclass

from ncclprobe.expect.constants import LOCAL_GBps, between_sockets_GBps, nvlink_GBps
from ncclprobe.expect.search import islands
from ncclprobe.expect.system import Shape, System, Version
from ncclprobe.expect.tuning import tuning
from ncclprobe.model import Absent
from ncclprobe.ops import OPS

_NARROW = 0.8
"""Of the NICs: Gen5 carries 48 of 400 Gb/s's 50, which nobody would call its fault."""

PAIRED = ("all_to_all", "sendrecv", "gather", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What one rank can send, GB/s in one direction: within its node by `kind` of link, and to others over its NICs.

    `nic_GBps` is what a rank has of the NICs when all of its node send; `alone_GBps` when it alone does. `gate` is
    ``nic``, or ``pcie`` where the slot of the GPU carries far less than the NICs beside it.
    """

    kind: str
    inside_GBps: float
    nic_GBps: float
    alone_GBps: float
    gate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """`time_us` of one call, `base_us` of it the launch and `latency_us` launch and hop; `part` is what decides."""

    time_us: float
    base_us: float
    latency_us: float
    busbw_GBps: float
    part: str


def links(system: System, shape: Shape, version: Version) -> Links:
    """The links of one rank of `shape`."""
    largest = max(islands(system, shape, version))
    per_gpu = system.nics / system.gpus if system.gpus else 0.0
    slot = system.pcie_GBps or LOCAL_GBps
    nic = system.nic_gbps / 8
    kind, inside = _inside(system, largest, version)
    return Links(
        kind=kind,
        inside_GBps=inside,
        nic_GBps=min(slot, nic * per_gpu),
        alone_GBps=min(slot, nic * max(1.0, per_gpu)) if system.nics else 0.0,
        gate="pcie" if slot < _NARROW * nic * max(1.0, per_gpu) else "nic",
    )


def _inside(system: System, gpus: int, version: Version) -> tuple[str, float]:
    link = nvlink_GBps(system.compute_capability, system.nvlink_GBps, version)
    fabric = system.fabric
    if gpus == 1:
        return "local", LOCAL_GBps
    if system.nvlinks and (fabric == "nvswitch" or (fabric == "pairs" and gpus == 2)):
        return "nvlink", system.nvlinks * link
    if system.nvlinks and fabric in ("mesh", "cube-mesh"):
        return "nvlink", system.nvlinks * link * (gpus - 1) / max(1, system.gpus - 1)
    crosses = system.sockets > 1 and gpus > system.gpus / system.sockets
    between = between_sockets_GBps(system.processor, version) if crosses else LOCAL_GBps
    return ("inter-socket", between) if between < system.pcie_GBps else ("pcie", system.pcie_GBps)


def paired(system: System, shape: Shape, op: str, nbytes: int, version: Version) -> Paired | Absent:
    """What `op` of `nbytes` (as nccl-tests prints it) takes; Absent where a link's speed is not known."""
    parts = islands(system, shape, version)
    if shape.ranks < 2:
        return Absent("one rank has nobody to send to")
    have = links(system, shape, version)
    needed = ([have.inside_GBps] if max(parts) > 1 else []) + ([have.nic_GBps] if len(parts) > 1 else [])
    if not all(speed > 0 for speed in needed):
        return Absent(f"the speed of a link of {system.name} is not known")
    base, latency = _latency(have, len(parts) > 1, version)
    inside_us, outside_us = _transfer(have, parts, shape.ranks, op, nbytes)
    time_us = latency + max(inside_us, outside_us)
    part = have.gate if outside_us > inside_us else have.kind
    if time_us < 2 * latency:
        part = "launch" if 2 * base > latency else "latency"
    busbw = nbytes / time_us / 1e3 * OPS[op].bus_factor(shape.ranks)
    return Paired(time_us=time_us, base_us=base, latency_us=latency, busbw_GBps=busbw, part=part)


def _latency(have: Links, network: bool, version: Version) -> tuple[float, float]:
    tuned = tuning(version)
    kind = tuned.net if network else tuned.nvlink if have.kind == "nvlink" else tuned.pci
    return tuned.base["Ring"][2], tuned.base["Ring"][2] + kind["Ring"][2]


def _transfer(have: Links, parts: tuple[int, ...], ranks: int, op: str, nbytes: int) -> tuple[float, float]:
    """Microseconds that the shares within the node take, and those between nodes, for the rank that has most to do."""
    largest, network = max(parts), len(parts) > 1
    if op == "sendrecv":
        # Each sends to the next: one rank per node has its neighbour elsewhere.
        near = nbytes / have.inside_GBps / 1e3 if largest > 1 else 0.0
        return near, nbytes / have.alone_GBps / 1e3 if network else 0.0
    nic = have.alone_GBps if op in ("gather", "scatter") else have.nic_GBps
    inside, outside = nbytes * (largest - 1) / ranks, nbytes * (ranks - min(parts)) / ranks
    return inside / have.inside_GBps / 1e3, outside / nic / 1e3 if network else 0.0
