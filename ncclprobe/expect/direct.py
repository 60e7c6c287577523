"""All-to-all, sendrecv, gather and scatter: pairs of ranks, of which NCCL's cost model says nothing.

A rank's links carry its own share at once, so the bandwidth is that of one GPU's links (:mod:`.p2p`), less what no
published run reaches of it, and the time before the first byte that of one kernel and one hop.
"""

from ncclprobe import ops
from ncclprobe.expect.network import Confidence
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.p2p import links
from ncclprobe.model.values import Struct

OPS = tuple(op.name for op in ops.OPS.values() if op.direct)
_NVLINK = 0.92
"""Of the NVLinks of a GPU as NCCL counts them: 8 H100 exchange 348 of 370.8 GB/s and send 367 to their neighbour, 4
GB300 exchange 628 of 722 (https://github.com/xxrjun/nccl-tests-cluster, Oracle's GB300 results)."""
_PCIE, _HOST = 0.75, 0.38
"""Of a slot as NCCL counts it, without P2P, where each byte crosses memory: 4.6 of 12 GB/s
(2 RTX 2080 Ti, https://github.com/Anthony-Hoo/Anthony-Hoo.github.io)."""
_HOP_US = 12.0
"""One kernel and one hop: 13 us (2 RTX 2080 Ti, 8 H100), 30 over IB with what a call waits for there."""


class Direct(Struct, frozen=True):
    """What a node reaches in pairs: bus bandwidth in GB/s, the time before it, and why.

    `part` names the link that decides.
    """

    busbw_GBps: float
    latency_us: float
    part: str
    why: str
    source: str
    confidence: Confidence


PARTS = {"nvlink": "NVLink", "pcie": "PCIe", "inter-socket": "inter-socket", "local": "PCIe"}
"""Kinds of link (:mod:`.p2p`) in the field's words."""


def direct(system: NodeSystem, shape: Shape, version: NcclVersion) -> Direct:
    """What pairs of ranks of one node (or NVLink domain) reach."""
    have = links(system, shape, version)
    part = PARTS[have.kind]
    if have.kind == "nvlink":
        why = f"NVLinks of {have.inside_GBps:.4g} GB/s per GPU as NCCL counts them, {_NVLINK:g} of that"
        source = "https://github.com/xxrjun/nccl-tests-cluster: 348 and 367 of 370.8 GB/s"
        return Direct(have.inside_GBps * _NVLINK, _HOP_US, part, why, source, "medium")
    share, how = (_PCIE, "P2P") if system.p2p else (_HOST, "through host memory")
    why = f"a path that NCCL counts as {have.inside_GBps:g} GB/s, {share:g} of that {how}"
    source = "https://github.com/Anthony-Hoo/Anthony-Hoo.github.io: 4.6 of 12 GB/s without P2P"
    return Direct(have.inside_GBps * share, _HOP_US, part, why, source, "low")
