"""The limit that the nodes' NICs impose on a collective, and the share that healthy clusters reach: no search, no
algorithm.

With g ranks per node, n ranks in all and L the NICs of one node together, the least traffic through those NICs is
``busbw (n-g)/(n-1)`` in an all-reduce, whatever the algorithm, so ``busbw <= L (n-1)/(n-g)`` in every run, healthy or
not. A ring crosses each node's NICs once per direction and stays below L itself. With two nodes a tree comes close to
the first limit and exceeds the second: 21 published two-node runs are above L, and none of three nodes or more is.

If one NVLink fabric joins several nodes, they count as one node here.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from ncclprobe.expect.system import Network, NodeSystem, Shape
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import Struct

Confidence = Literal["high", "medium", "low"]

_PCIE_PAYLOAD = 1.1
"""A slot's rate relative to NCCL's figure: copies reach 26.3 for 24, and 52.8 for 48
(https://github.com/NVIDIA/nvbandwidth, README).
"""
_THROUGH_HOST, _THROUGH_HOST_GBps = 0.7, 25.0
"""Without GPUDirect: 8.8 of 12.5 GB/s if the slot carries hardly more than the NIC (p3dn), 12.4 of 12.5 if it carries
four times as much (2 g7e.8xlarge), but never more than 25 per NIC (46 aligned: OCI GB200, Azure GB300).
"""
_GRACE_SLOT_GBps = 56.0
"""A Gen5 x16 slot of a Grace, whatever NIC is in it: one and two NICs of 800 Gb/s reach 56 and 112 GB/s
(https://github.com/kubernetes-sigs/dranet, Azure GB300), copies over such a slot 51 to 57.
"""
_NEEDS_GDR = ("ib", "roce", "efa", "slingshot", "opa")


class _Fraction(Struct, frozen=True):
    """The share of the NICs' line rate that healthy clusters reach with one kind of network."""

    value: float
    confidence: Confidence
    source: str


_GCP = "https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth"
_TUNED = (
    "https://github.com/Azure/aks-rdma-infiniband: 187 of 200 GB/s; "
    "https://github.com/NVIDIA/nccl-tests/issues/29: 48 of 50; https://github.com/dstackai/dstack: 703 of 750"
)
_CLOUD_ROCE = (
    "https://cloud.google.com/ai-hypercomputer/docs: A4 366 to 375 of 400 GB/s; "
    "https://github.com/oracle-quickstart/oci-hpc: 190 of 200; https://github.com/xxrjun/nccl-tests-cluster: 48.9 of 50"
)
_AWS = (
    "https://github.com/stas00/ml-engineering, network: 382 (p6-b200) of 400 GB/s with 4 nodes; "
    "https://github.com/aws-samples/awsome-distributed-training: p4de 42 of 50"
)
_TCPX = f"{_GCP}: 71 of 100 GB/s; https://github.com/dstackai/dstack: 50 of 100"
_TCPXO = f"{_GCP}: 188 of 200 GB/s; https://github.com/GoogleCloudPlatform/cluster-health-scanner accepts 150"
_ALPS = "https://github.com/NVIDIA/nccl/issues/1272: 92.5 of 100 GB/s"

FRACTIONS: Mapping[Network | None, _Fraction] = MappingProxyType(
    {
        "ib": _Fraction(0.94, "high", _TUNED),
        "roce": _Fraction(0.94, "medium", _CLOUD_ROCE),
        "efa": _Fraction(0.94, "high", _AWS),
        "tcpx": _Fraction(0.71, "medium", _TCPX),
        "tcpxo": _Fraction(0.94, "high", _TCPXO),
        "slingshot": _Fraction(0.92, "medium", _ALPS),
        "opa": _Fraction(0.85, "low", "as for an unknown network, because no healthy run over Omni-Path is published"),
        None: _Fraction(0.85, "low", "the range of published runs over all fabrics, 0.59 to 0.98 of line rate"),
    }
)
"""Shares for machines whose own NVLinks are not the limit: a ring of H100 by itself reaches the 365 GB/s of eight NICs.
Sockets are in :mod:`ncclprobe.expect.sockets`.
"""

_ON_A100: Mapping[Network | None, _Fraction] = MappingProxyType(
    {
        "efa": _Fraction(0.91, "high", f"{_AWS}; https://github.com/kubernetes-sigs/dranet: p4d 11.35 of 12.5"),
        "slingshot": _Fraction(
            0.65,
            "low",
            "https://github.com/NVIDIA/nccl-tests/issues/139: 64 of 100 GB/s; Polaris: 28.5 of 50 by an old plugin",
        ),
    }
)
"""Hosts with A100: the first EFA, and four nodes of Perlmutter and of Polaris, which do not reach Grace's share."""
SENDRECV = _Fraction(0.92, "medium", "https://github.com/NVIDIA/nccl/issues/1272: 24.2 of 25 GB/s")
"""A share of one NIC: each rank sends to the next. Published runs that reach 0.30 to 0.52 do not claim
to be healthy.
"""
ALL_TO_ALL = _Fraction(0.90, "medium", "https://github.com/xxrjun/nccl-tests-cluster: 45.3 of 50 GB/s")
_COREWEAVE = "https://github.com/coreweave/nccl-tests/blob/cb86553328f8/README.md"
_ORACLE_RACKS = "Oracle GB300 onboarding document; https://github.com/oracle-quickstart/oci-hpc-oke, GB200 document"
TWO_RACKS = _Fraction(0.85, "low", f"{_COREWEAVE}: 810 of 834 GB/s; {_ORACLE_RACKS}: 738 of 930, 684 of 840")
MORE_RACKS = _Fraction(0.49, "low", f"{_COREWEAVE}: 20 racks 405 of 834 GB/s")
"""A share of one rack's rate. Two racks each send their sum once; with three or more, most racks forward others' data
up and down the tree through the same NICs.
"""
RACKS_ALL_TO_ALL = _Fraction(
    0.24, "low", f"{_ORACLE_RACKS}: 47.7 GB/s of two NICs of 50 per GPU, called expected there"
)


class Limit(Struct, frozen=True):
    """The network's limit for a collective, as bus bandwidth in GB/s.

    `hard_GBps`: a faster run was not measured on this network. `value_GBps`: what a healthy cluster reaches. `rule` is
    ``ring``, ``two nodes``, ``all to all``, ``one NIC``, ``racks`` or ``one node``.
    """

    hard_GBps: float
    value_GBps: float
    rule: str
    why: str
    source: str
    confidence: Confidence


class Domains(Struct, frozen=True):
    """The job as the network sees it: `count` groups of nodes joined by NVLink, with `fewest` to `ranks` ranks each.

    `line_GBps` is the rate of the poorest group's NICs within its slots, `nic_GBps` the share of one of its ranks,
    `nics_GBps` the line rate of the NICs without slots.
    """

    count: int
    fewest: int
    ranks: int
    line_GBps: float
    nic_GBps: float
    nics_GBps: float

    def reached(self, share: _Fraction) -> float:
        """Return what healthy clusters reach: `share` of the NICs' line rate, but at most the payload rate of the
        slots.
        """
        return min(self.line_GBps, self.nics_GBps * share.value)


@lru_cache(maxsize=256)
def domains(system: NodeSystem, shape: Shape) -> Domains:
    """Split `shape` into groups that only the network connects."""
    together = max(1, system.domain_gpus // system.gpus) if system.gpus else 1
    groups = [shape.gpus[at : at + together] for at in range(0, shape.nodes, together)]
    lines = [sum(_line_GBps(system, gpus) for gpus in group) for group in groups]
    poorest = min(range(len(groups)), key=lines.__getitem__)
    sizes = [sum(group) for group in groups]
    nics = system.nics * system.nic_gbps / 8 * sum(min(1.0, gpus / system.gpus) for gpus in groups[poorest])
    return Domains(len(groups), min(sizes), max(sizes), lines[poorest], lines[poorest] / max(1, sizes[poorest]), nics)


def _line_GBps(system: NodeSystem, gpus: int) -> float:
    """Return the rate of the NICs near the `gpus` in use, limited by those GPUs' slots."""
    line = system.nics * min(1.0, gpus / system.gpus) * _nic_GBps(system)
    return min(line, gpus * system.to_nic_GBps * _PCIE_PAYLOAD) if system.gdr else line


def _nic_GBps(system: NodeSystem) -> float:
    """Return the line rate of one NIC, limited by its own slot."""
    line = system.nic_gbps / 8
    return min(line, _GRACE_SLOT_GBps) if system.processor == "arm" else line


def _fraction(system: NodeSystem) -> _Fraction:
    old = system.compute_capability < 90
    return (_ON_A100 if old else FRACTIONS).get(system.network) or FRACTIONS[system.network]


def slots_decide(system: NodeSystem) -> bool:
    """Return whether the GPUs' slots carry less than the NICs behind them."""
    return system.gdr and system.nics * _nic_GBps(system) > system.gpus * system.to_nic_GBps * _PCIE_PAYLOAD


def limit(
    system: NodeSystem, shape: Shape, op: str, node_GBps: float | None = None, *, ring: bool = False
) -> Limit | None:
    """Return the limit of the network for `op`; None if the call does not use it, or the network is unknown.

    `node_GBps` is what one node reaches by itself, which no number of nodes exceeds. `ring`: the call uses a ring.
    """
    parts = domains(system, shape)
    if parts.count < 2 or not parts.line_GBps or system.network == "sockets":
        return None
    share, racks = _fraction(system), system.domain_gpus > system.gpus
    direct, divided = OPS[op].direct, OPS[op].divided
    if direct and not divided:  # each rank to its neighbour
        found = _one_nic(system, SENDRECV)
    elif direct:
        own = min(share, ALL_TO_ALL, key=lambda each: each.value)
        found = _all_to_all(shape, parts, RACKS_ALL_TO_ALL if racks else own)
    elif op == "all_reduce" and parts.count == 2 and not ring:
        found = _two_nodes(shape, parts, share)
    else:
        found = _ring(shape, parts, share)
    slowed = _limit_without_gdr(found, system)
    return _rack_limit(slowed, parts, node_GBps) if racks and not direct else _cap_to_node(slowed, node_GBps)


def _ring(shape: Shape, parts: Domains, share: _Fraction) -> Limit:
    line, value = parts.line_GBps, parts.reached(share)
    why = f"{line:g} GB/s of NICs per node; {value / line:.2g} of it is normal"
    return Limit(line * crossing(shape, parts), value, "ring", why, share.source, share.confidence)


def _two_nodes(shape: Shape, parts: Domains, share: _Fraction) -> Limit:
    """Return the limit of two nodes: each side's sum must reach the other once. Filling the pipeline costs extra."""
    twice = 2 * (shape.ranks - 1) / shape.ranks
    line, value = parts.line_GBps, parts.reached(share)
    why = (
        f"{line:g} GB/s of NICs per node, which two nodes cross with {1 / twice:.2f} "
        f"of the bus bandwidth, {value / line:.2g} of that"
    )
    return Limit(line * twice, value * twice, "two nodes", why, share.source, share.confidence)


def _all_to_all(shape: Shape, parts: Domains, share: _Fraction) -> Limit:
    hard = parts.nic_GBps * crossing(shape, parts)
    why = f"{parts.nic_GBps:g} GB/s of NIC per GPU, which carries the traffic to other nodes, {share.value:.2g} of that"
    return Limit(hard, hard * share.value, "all to all", why, share.source, share.confidence)


def _one_nic(system: NodeSystem, share: _Fraction) -> Limit:
    nic = _nic_GBps(system)
    why = f"one {nic:g} GB/s NIC; {share.value:.2g} of it is normal"
    return Limit(nic, nic * share.value, "one NIC", why, share.source, share.confidence)


def crossing(shape: Shape, parts: Domains) -> float:
    """Return bus bandwidth per byte that crosses the NICs of the smallest group, which sends most: (n-1)/(n-g)."""
    return (shape.ranks - 1) / (shape.ranks - parts.fewest)


def _limit_without_gdr(found: Limit, system: NodeSystem) -> Limit:
    """Reduce the limit if NICs cannot access GPU memory directly. TCPX and TCPXO can, without GPUDirect RDMA."""
    if system.gdr or system.unified or system.network not in _NEEDS_GDR:
        return found
    nic = system.nic_gbps / 8
    slow = min(1.0 if 2 * nic <= system.pcie_GBps else _THROUGH_HOST, _THROUGH_HOST_GBps / nic)
    value = found.value_GBps * slow
    why = f"{found.why}, and {slow:.2g} of that because without GPUDirect every byte passes through host memory"
    return Limit(found.hard_GBps, value, found.rule, why, found.source, "low")


def _rack_limit(found: Limit, parts: Domains, rack_GBps: float | None) -> Limit:
    """Return the limit between NVLink racks: never what their NICs allow together, but a share of one rack's rate."""
    share = TWO_RACKS if parts.count == 2 else MORE_RACKS
    if rack_GBps is None or rack_GBps * share.value >= found.value_GBps:
        return found
    many = "two racks" if parts.count == 2 else f"{parts.count} racks"
    why = f"{many}: published runs reach {share.value:.2g} of one rack's {rack_GBps:.4g} GB/s"
    value = min(rack_GBps * share.value, found.hard_GBps)
    return Limit(found.hard_GBps, value, "racks", why, share.source, share.confidence)


def _cap_to_node(found: Limit, node_GBps: float | None) -> Limit:
    if node_GBps is None or node_GBps >= found.value_GBps:
        return found
    why = f"limited by a single node, {node_GBps:.4g} GB/s: the network would allow {found.value_GBps:.4g}"
    return Limit(found.hard_GBps, node_GBps, "one node", why, found.source, found.confidence)
