"""The expected rate of a copy between a GPU and its host, or between two GPUs: link rate times payload share."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ncclprobe.expect.evidence import GROSS_FROM, GROSS_SHARE
from ncclprobe.expect.network import Confidence
from ncclprobe.expect.recognise import expectation_context
from ncclprobe.expect.system import NodeSystem
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import replace

_NVBANDWIDTH = "https://github.com/NVIDIA/nvbandwidth, README"
_GTS: Mapping[int, float] = MappingProxyType({1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0})
"""Gigatransfers per second and lane of each generation (PCI Express Base Specification)."""
_CODE: Mapping[int, float] = MappingProxyType(
    {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 0.945}
)
"""Share of bits left after line coding; for Gen6 after its flits: 242 of 256 bytes."""
_PAYLOAD = {
    3: (0.83, 0.77, "P100 12.2 to 12.9, 2080 Ti 13.1 of 15.75 GB/s"),
    4: (
        0.83,
        0.78,
        "A100 25.9 to 26.3 of 31.5 GB/s, mean of 1,939 nodes (https://github.com/microsoft/superbench-results)",
    ),
    5: (0.86, 0.79, "H100 and H200 51 to 55.4 of 63 GB/s (https://github.com/Azure/AI-benchmarking-guide)"),
}
"""The payload share of a slot after packet headers and flow control, copying pinned memory of the near NUMA node."""
_UNSEEN = (0.82, 0.70, "generations 3 to 5 reach 0.77 to 0.90; nothing is published for this one")
_WRONG_NODE = "memory of the wrong NUMA node costs up to two thirds, so allocate near the GPU"

_C2C = {
    (1, 9): (
        450.0,
        344.0,
        330.0,
        "Grace Hopper: 342 to 346 of 450 GB/s (https://github.com/NVIDIA/nvbandwidth/issues/23)",
    ),
    (1, 10): (
        450.0,
        368.0,
        345.0,
        "one GPU per Grace: 359 to 377 of 450 GB/s (https://github.com/stas00/ml-engineering)",
    ),
    (2, 10): (450.0, 202.0, 185.0, "two GPUs share one Grace: 193 to 211 of 450 GB/s is normal (Azure and OCI)"),
}
"""By GPUs per Grace and major compute capability: link, value, threshold, source."""

_WITH_C2C = re.compile(r"\b(GH200|GB200|GB300)\b")

_COPY_ENGINE = {
    8: (0.92, 0.86, "A100 276 of 300 GB/s (https://github.com/NVIDIA/nccl-tests/issues/212)"),
    9: (0.88, 0.80, f"H200 396 of 450 GB/s ({_NVBANDWIDTH})"),
    10: (0.84, 0.77, "GB200 and GB300 746 to 776 of 900 GB/s (Oracle's GB300 results)"),
}
"""NVLink between GPUs, by major compute capability: share of the datasheet's rate in one direction."""
_DATASHEET_LINK: Mapping[int, float] = MappingProxyType({7: 25.0, 8: 25.0, 9: 25.0, 10: 50.0})


def pcie_line_GBps(generation: int, width: int) -> float | None:
    """Return a slot's rate in one direction before packet headers: 31.5 for Gen4 x16. None: unknown generation."""
    rate = _GTS.get(generation)
    return None if rate is None or width <= 0 else rate * width * _CODE[generation] / 8


def host_copy(generation: int, width: int) -> Expectation | None:
    """Expect a copy from or to pinned host memory, one direction at a time, over a slot of this generation
    and width.
    """
    line = pcie_line_GBps(generation, width)
    if line is None:
        return None
    value, low, seen = _PAYLOAD.get(generation, _UNSEEN)
    why = f"PCIe Gen{generation} x{width} carries {line:.4g} GB/s, {value:g} of it payload; {_WRONG_NODE}"
    confidence: Confidence = "high" if generation in _PAYLOAD and width == 16 else "medium"
    return Expectation(line * value, line * low, "GB/s", "datasheet", why, seen, confidence)


def c2c_copy(gpus_per_host: int, compute_capability: int) -> Expectation | None:
    """Expect a copy over NVLink-C2C between a GPU and its Grace, one direction; None without published numbers."""
    known = _C2C.get((gpus_per_host, compute_capability // 10))
    if known is None:
        return None
    line, value, low, source = known
    why = f"NVLink-C2C of {line:g} GB/s, shared by {gpus_per_host} of the Grace's GPUs"
    return Expectation(value, low, "GB/s", "published", why, source, "medium")


def nvlink_copy(system: NodeSystem) -> Expectation | None:
    """Expect a copy by the copy engine between two GPUs over all their NVLinks, one direction.

    In a mesh a pair of GPUs has only its share of the links. None without NVLink, or for an unknown generation.
    """
    major = system.compute_capability // 10
    if system.nvlinks < 1 or major not in _COPY_ENGINE or system.fabric in ("none", "cube-mesh"):
        return None
    peers = system.neighbours if system.fabric == "mesh" else 1
    links = system.nvlinks // max(1, peers)
    line = links * _DATASHEET_LINK[major]
    value, low, source = _COPY_ENGINE[major]
    why = f"{links} NVLinks of {_DATASHEET_LINK[major]:g} GB/s to one peer; a copy engine reaches {value:g} of that"
    return Expectation(line * value, line * low, "GB/s", "datasheet", why, source, "medium")


def p2p_pcie_copy(generation: int, width: int, *, same_socket: bool = True, p2p: bool = True) -> Expectation | None:
    """Expect a copy between GPUs without NVLink: over PCIe, across sockets, or (`p2p` false) through host memory."""
    line = pcie_line_GBps(generation, width)
    if line is None:
        return None
    if not p2p:
        value, low, how = 0.60, 0.50, "through host memory, because the driver offers no P2P"
        source = "RTX 4090, 5090 and H100 with P2P off: 18 to 22 and 36 to 39 GB/s (p2pBandwidthLatencyTest)"
    elif same_socket:
        value, low, how = 0.84, 0.78, "P2P below one socket"
        source = "A6000, RTX PRO 6000: 25.8 of 31.5, 53 to 56.6 of 63 GB/s (https://github.com/voipmonitor/rtx6kpro)"
    else:
        value, low, how = 0.70, 0.60, "P2P across sockets"
        source = "20.6 to 22.6 of 31.5, 39 to 51 of 63 GB/s (https://github.com/voipmonitor/rtx6kpro)"
    why = f"PCIe Gen{generation} x{width} carries {line:.4g} GB/s, {value:g} of it {how}"
    return Expectation(line * value, line * low, "GB/s", "datasheet", why, source, "medium")


def slot(pcie_GBps: float) -> tuple[int, int] | None:
    """Return generation and width of the x16 slot that NCCL counts as `pcie_GBps` (x16: 3, 6, 12, 24, 48, 96).

    A narrower slot of a newer generation has the same count and rate. None: no slot has this count.
    """
    counted = {3 * 2**n: n + 1 for n in range(6)}
    return (counted[int(pcie_GBps)], 16) if pcie_GBps in counted else None


_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")


def generation(speed: str) -> int | None:
    """Return the PCIe generation of the kernel's link speed (``16.0 GT/s PCIe``); None for other words."""
    found = _SPEED.match(speed)
    return next((g for g, rate in _GTS.items() if found and float(found[1]) == rate), None)


def by_kind(facts: Mapping[type, Any]) -> dict[str, Expectation]:
    """Expect copies on a node with these facts: between host and GPU (``host``), and between GPUs (``d2d``).

    A kind without an expectation is left out.
    """
    system = expectation_context(facts).system
    if isinstance(system, Absent):
        return {}
    place = slot(system.pcie_GBps)
    host = host_copy(*place) if place else None
    if _WITH_C2C.search(system.gpu):
        host = c2c_copy(max(1, system.gpus // max(1, system.sockets)), system.compute_capability)
    peer = nvlink_copy(system) or (p2p_pcie_copy(*place, p2p=system.p2p) if place else None)
    return {kind: each for kind, each in (("host", host), ("d2d", peer)) if each}


def judged(row: CopyRow, expected: Mapping[str, Expectation]) -> CopyRow:
    """Return `row` with the expectation for its kind and with its verdict.

    No numbers are published for copies in both directions at once, from the far NUMA node, or of all GPUs together. The
    first are judged only by the gross threshold. The others may be below it on a healthy machine.
    """
    kind = "d2d" if row.kind == "d2d" else "host"
    ways = ("h2d", "d2h", "d2d", "bidirectional")
    found = expected.get(kind) if row.kind in ways and row.near is not False else None
    if found is None or row.concurrent:
        return row
    if row.kind == "bidirectional":
        gross = found.value * GROSS_SHARE
        if row.nbytes < GROSS_FROM or row.max_GBps >= gross:
            return row
        why = f"a third of what one way reaches: {found.why}"
        found = replace(found, threshold=gross, why=why)
    known = replace(row, expected_GBps=found.value, threshold_GBps=found.threshold, why=found.why, source=found.source)
    if row.GBps >= found.threshold:
        return replace(known, status="pass")
    return replace(known, status="fail" if row.max_GBps < found.threshold else "inconclusive")
