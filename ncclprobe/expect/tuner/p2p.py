"""The links that one rank can send over: what pairs of ranks, of which NCCL's model says nothing, are held to."""

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.constants import LOCAL_GBps, between_sockets_GBps, nvlink_GBps
from ncclprobe.expect.tuner.search import nvlink_domains
from ncclprobe.model.values import Struct

_NARROW = 0.8
"""Of the NICs: Gen5 carries 48 of 400 Gb/s's 50, which is no fault of it."""


class RankLinks(Struct, frozen=True, kw_only=True):
    """What one rank can send, GB/s in one direction: within its node by `kind` of link, and to others over its NICs.

    `gate` is ``nic``, or ``pcie`` where the slot of the GPU carries far less than its NICs.
    """

    kind: str
    inside_GBps: float
    gate: str


def links(system: NodeSystem, shape: Shape, version: NcclVersion) -> RankLinks:
    """Return the links of one rank of `shape`."""
    largest = max(nvlink_domains(system, shape))
    per_gpu = system.nics / system.gpus if system.gpus else 0.0
    slot = system.to_nic_GBps or LOCAL_GBps
    nic = system.nic_gbps / 8
    kind, inside = _inside(system, largest, version)
    return RankLinks(
        kind=kind,
        inside_GBps=inside,
        gate="pcie" if slot < _NARROW * nic * max(1.0, per_gpu) else "nic",
    )


def _inside(system: NodeSystem, gpus: int, version: NcclVersion) -> tuple[str, float]:
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
