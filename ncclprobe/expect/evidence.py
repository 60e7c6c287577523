"""The errors of expectations on held-out sources, and so what these expectations may decide.

This is the one place that turns (path, size, expectation) into a threshold, or into a row that is shown but not judged.
The errors are data, ``tables/errors.csv``, made by ``scripts/accuracy.py --errors`` from published runs: each source is
compared with numbers made without it. A FAIL needs :data:`FEWEST_SOURCES` sources and :data:`FEWEST_ROWS` rows for the
basis, the path of the bytes and the size. The threshold is what 99 of 100 further sources reach with all of their rows.
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal, get_args

from ncclprobe.expect import network
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.search import rank_links
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.ops import DIRECT_OPS
from ncclprobe.model.units import size
from ncclprobe.model.values import Struct, replace

PathClass = Literal[
    "nvlink", "mnnvl", "racks", "pcie", "sockets", "host", "ib", "roce", "rdma", "efa", "slingshot", "opa", "tcpx",
    "tcpxo", "tcp", "unknown",
]  # fmt: skip
"""The path that decides. Within a node: NVLink, PCIe, the link between sockets, or host memory if GPUs may not copy
directly. Across nodes: NVLink, the NICs between such racks, or the network. Each has its own errors. ``rdma`` is
InfiniBand and RoCE together, which share NICs and NCCL's own plugin: it is used if one of them has too few runs.

A word after a network means that a GPU's path to its NIC decides: ``host`` through host memory, without GPUDirect;
``slot`` by a slot that carries less than the NICs behind it; ``unified`` if both share one memory (GB10); ``cards``
several GPUs of a node that no NVLinks join. After NVLink, ``wired`` means that no switch joins the GPUs.
"""
WORDS: Mapping[PathClass, str] = MappingProxyType(
    {
        "nvlink": "over NVLink in a node",
        "mnnvl": "over NVLink between nodes",
        "racks": "between racks of NVLink",
        "pcie": "over PCIe in a node",
        "sockets": "across the sockets of a node",
        "host": "through host memory in a node",
        "ib": "over InfiniBand between nodes",
        "roce": "over RoCE between nodes",
        "rdma": "over InfiniBand or RoCE between nodes",
        "efa": "over EFA between nodes",
        "slingshot": "over Slingshot between nodes",
        "opa": "over Omni-Path between nodes",
        "tcpx": "over GPUDirect-TCPX between nodes",
        "tcpxo": "over GPUDirect-TCPXO between nodes",
        "tcp": "over TCP sockets between nodes",
        "unknown": "over a network that is not known",
    }
)
IN_NODE: frozenset[PathClass] = frozenset(("nvlink", "mnnvl", "pcie", "sockets", "host"))
_WAYS = {"wired": "from GPU to GPU", "host": "through host memory", "slot": "slower slots", "unified": "one memory",
         "cards": "GPUs on PCIe"}  # fmt: skip
_SWITCHED = 90
"""From this compute capability on, nothing is known about GPUs that are wired each to each, as four GH200 are."""
_COUNTED: NcclVersion = (2, 30, 7)
_POOLED: Mapping[str, str] = MappingProxyType({"ib": "rdma", "roce": "rdma"})
GENERATIONS: Mapping[int, str] = MappingProxyType({7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell"})
"""Classes of NVLink by major compute capability: NCCL has constants for each, and each has its own error."""

FEWEST_SOURCES, FEWEST_ROWS, ROWS_OF_FIVE = 3, 15, 10
"""The threshold follows from the sources: the fewer there are, the lower it is. Rows only show what each source is."""
LARGEST_DECADE = 9
"""Sizes from 1 GB on are one class: only bandwidth matters there."""
LOOSE = 0.5
"""If the threshold is below this share, the number is uncertain by a factor of two, and a slow row may be due to a
wrong table. It only warns, except from 1 GB on, where only bandwidth matters: there a threshold above the gross one
counts. Rows dominated by latency also only warn: a wrong table looks like a slow machine there.
"""
GROSS_FROM, GROSS_SHARE = 64 << 20, 1 / 3
"""From this size on, a row below this share of the expectation fails, whatever is known about its class. Among 308
healthy published rows that no other rule fails one is below it (a send and receive of 64 MiB), among 13 sick ones
six are; each was judged with its own source held back, and without the outliers of scripts/published.py.
"""
FAR = 8
"""A row with more than this many times the nodes of its class's evidence fails only by the gross threshold: the model
does not cover what a network loses as it grows. All 39 healthy rows of four to eight times as many pass.
"""
_NO_FAIL_BETWEEN_NODES = 64 << 20
"""No row up to this size fails between nodes without a baseline or peers."""


class ErrorCell(Struct, frozen=True):
    """The held-out errors of one basis, path and decade of bytes (9: from 1 GB on).

    `median` and `ninety` are of the absolute log of measured over expected, each source counted once. `mark` is the
    share of the expected value below which a row fails; None if too little is known. `nodes` is the largest job's.
    """

    basis: str
    path: str
    decade: int
    sources: int
    rows: int
    nodes: int
    median: float
    ninety: float
    mark: float | None


def enough(sources: int, rows: int) -> bool:
    """Return whether this evidence may fail a row; with five sources fewer rows are enough."""
    return sources >= FEWEST_SOURCES and rows >= (FEWEST_ROWS if sources < 5 else ROWS_OF_FIVE)


def path_of(system: NodeSystem, shape: Shape, op: str) -> str:
    """Return the path class of a call: ``roce``, ``efa host``, ``nvlink hopper``; for pairwise operations ``pcie
    pairs``.
    """
    found: str = _path(system, shape)
    if found == "nvlink":
        found = f"{found} {GENERATIONS.get(system.compute_capability // 10, 'other')}"
        wired = system.fabric == "mesh" and system.compute_capability >= _SWITCHED
        found = f"{found} wired" if wired else found
    elif found in _RDMA and system.unified:
        found = f"{found} unified"
    elif found in _RDMA and not system.gdr:
        found = f"{found} host"
    elif found in _RDMA and network.slots_decide(system):
        found = f"{found} slot"
    return f"{found} pairs" if op in DIRECT_OPS else found


def deciding(system: NodeSystem, shape: Shape, op: str) -> str:
    """Return the path class whose error applies: :func:`path_of`, or the link inside a node if that is the bottleneck.

    For networks, the errors come from GPUs since Ampere: older hosts reach another share.
    """
    own, most = path_of(system, shape, op), max(shape.gpus)
    base = own.split()[0]
    if base not in _RDMA or not system.nics:
        return own
    node = Shape((most,))
    if most > 1 and not system.joins(most):
        inside = rank_links(system, node, _COUNTED).inside_GBps * (1.0 if system.p2p else _THROUGH_HOST)
        if inside < _LESS * network.domains(system, shape).line_GBps:
            return path_of(system, node, op)
        return own.replace(base, f"{base} cards", 1)
    if base in ("ib", "roce") and system.compute_capability < 80:
        return own.replace(base, f"{base} volta", 1)
    return own


def pooled(path: str) -> str | None:
    """Return the wider class to use if too little is known about `path`; None: there is none.

    Pairwise exchanges over switches depend only on bytes over links, in every generation of NVLink.
    """
    base, _, rest = path.partition(" ")
    if base == "nvlink" and rest.removesuffix(" pairs") in GENERATIONS.values() and rest.endswith(" pairs"):
        return "nvlink pairs"
    return f"{_POOLED[base]} {rest}".strip() if base in _POOLED else None


_THROUGH_HOST, _LESS = 0.6, 0.8
"""The share reached on a path through host memory; and a node decides if it carries less than this
share of its NICs.
"""
_RDMA: tuple[PathClass, ...] = ("ib", "roce", "efa", "slingshot", "opa")


def _path(system: NodeSystem, shape: Shape) -> PathClass:
    if network.domains(system, shape).count > 1:
        if system.domain_gpus > system.gpus:
            return "racks"
        if system.network is None:
            return "unknown"
        return "tcp" if system.network == "sockets" else system.network
    if system.joins(max(shape.gpus)):
        return "mnnvl" if shape.nodes > 1 else "nvlink"
    if not system.p2p and max(shape.gpus) > 1:
        return "host"
    return "sockets" if rank_links(system, shape, _COUNTED).kind == "inter-socket" else "pcie"


def decade(nbytes: int) -> int:
    """Return the decade of a size: 6 is 1 MB to 10 MB, 9 is 1 GB and more."""
    return min(LARGEST_DECADE, int(math.log10(max(1, nbytes))))


@cache
def table() -> Mapping[tuple[str, str, int], ErrorCell]:
    """Return every cell that ships with ncclprobe, by basis, path and decade."""
    text = resources.files("ncclprobe.expect.tables").joinpath("errors.csv").read_text(encoding="utf-8")
    cells = (_cell(row) for row in csv.DictReader(text.splitlines()))
    return MappingProxyType({(cell.basis, cell.path, cell.decade): cell for cell in cells})


def _cell(row: Mapping[str, str]) -> ErrorCell:
    mark = float(row["mark"]) if row["mark"] else None
    counts = int(row["decade"]), int(row["sources"]), int(row["rows"]), int(row["nodes"])
    return ErrorCell(row["basis"], row["path"], *counts, float(row["median"]), float(row["p90"]), mark)


def weighed(
    found: Expectation,
    system: NodeSystem,
    shape: Shape,
    op: str,
    nbytes: int,
    *,
    by_time: bool = False,
    cells: Mapping[tuple[str, str, int], ErrorCell] | None = None,
) -> Expectation:
    """Give `found` the threshold that the evidence supports, and the worst verdict that it may cause.

    `by_time`: latency dominates this row, so it warns at most. `cells`: replaces the cells that ship with ncclprobe.
    """
    own, known_cells = deciding(system, shape, op), table() if cells is None else cells
    tried = [(path, known_cells.get((found.basis, path, decade(nbytes)))) for path in (own, pooled(own)) if path]
    path, cell = next((each for each in tried if each[1] and each[1].mark is not None), tried[0])
    where = f"{_words(path)} at {size(nbytes)}"
    far = cell is not None and shape.nodes > FAR * cell.nodes
    if nbytes >= GROSS_FROM:
        found = replace(found, gross=found.value * GROSS_SHARE)
    if cell is None or cell.mark is None:
        return replace(unjudged(found, _too_little(cell, found.basis, where)), confidence="low")
    known = (
        f"{found.basis} expectations {where} have a median error of {cell.median:.0%}; nine of ten rows are within "
        f"{cell.ninety:.0%} ({cell.sources} sources, {cell.rows} rows)"
    )
    known += (
        f"; known up to {_count(cell.nodes, 'node')}, so {shape.nodes} fail only by the coarse threshold" if far else ""
    )
    small = path.split()[0] not in IN_NODE and nbytes <= _NO_FAIL_BETWEEN_NODES
    loose = cell.mark < (GROSS_SHARE if decade(nbytes) == LARGEST_DECADE else LOOSE)
    worst: Literal["fail", "warn"] = "warn" if by_time or small or far or loose else "fail"
    return replace(found, threshold=found.value * cell.mark, worst=worst, known=known)


def unjudged(found: Expectation, why: str) -> Expectation:
    """Make `found` informative only: no threshold, and the reason why."""
    return replace(found, threshold=0.0, worst="unjudged", known=why)


def _too_little(cell: ErrorCell | None, basis: str, where: str) -> str:
    have = f"from {_count(cell.sources, 'source')} and {_count(cell.rows, 'row')}" if cell else "from no source"
    return (
        f"not judged: the error of {basis} expectations {where} is known {have}; it takes {FEWEST_SOURCES} sources "
        f"and {FEWEST_ROWS} rows"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _words(path: str) -> str:
    """Describe the class to the reader: ``over NVLink in a node (hopper)``."""
    base, *rest = path.split()
    words = next(WORDS[each] for each in get_args(PathClass) if each == base)
    return f"{words} ({', '.join(_WAYS.get(each, each) for each in rest)})" if rest else words
