"""How far expectations that were not measured here were off on sources held back, and so what they may decide.

One place turns (path, size, expectation) into a threshold, or into a row that is shown and not judged. The errors are
data, ``tables/errors.csv``, made by ``scripts/accuracy.py --errors`` from published runs: each source is compared with
numbers made without it. A FAIL needs :data:`FEWEST_SOURCES` sources and :data:`FEWEST_ROWS` rows for the basis, the
path of the bytes and the size. The threshold is what 99 of 100 further sources reach with all of their rows.
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
"""What decides: within a node NVLink, PCIe, the link between sockets, or host memory where GPUs may not copy directly;
NVLink over nodes, the NICs between such racks; otherwise the network between nodes, each with errors of its own.
``rdma`` is InfiniBand and RoCE together, which share NICs and NCCL's own plugin: it is used if one of them has too few
runs.

A word behind a network means that a GPU's path to its NIC decides: ``host`` through host memory, without GPUDirect,
``slot`` by a slot that carries less than the NICs behind it, ``unified`` if both share one memory (GB10), ``cards``
several GPUs of a node that no NVLinks join. Behind NVLink, ``wired`` means that no switch joins the GPUs.
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
"""From this compute capability on nothing is known of GPUs that are wired each to each, as four GH200 are."""
_COUNTED: NcclVersion = (2, 30, 7)
_POOLED: Mapping[str, str] = MappingProxyType({"ib": "rdma", "roce": "rdma"})
GENERATIONS: Mapping[int, str] = MappingProxyType({7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell"})
"""Classes of NVLink, by the major compute capability: NCCL has constants for each, and each has an error of its own."""

FEWEST_SOURCES, FEWEST_ROWS, ROWS_OF_FIVE = 3, 15, 10
"""The mark follows from the sources, and the fewer they are the lower it is; rows only show what each of them is."""
LARGEST_DECADE = 9
"""Sizes from 1 GB on are one class: only bytes decide there."""
LOOSE = 0.5
"""A mark below this: the number is not known within a factor of two, and a slow row is as likely a wrong table. It only
warns, except from 1 GB on, because only bytes decide there: a mark above the gross one counts. Rows that latency
decides only warn too: a wrong table looks like a slow machine there.
"""
GROSS_FROM, GROSS_SHARE = 64 << 20, 1 / 3
"""A row of such a size that is below this share of what is expected fails, whatever is known of its class. Among 308
healthy published rows that no other rule fails one is below it (a send and receive of 64 MiB), among 13 sick ones six
are; each was judged with its own source held back, and without the outliers of scripts/published.py.
"""
FAR = 8
"""Nor does a row of more than so many times the nodes that its class is known of, but by the gross mark: what a network
loses as it grows is not a part of the model. All 39 healthy rows of four to eight times as many pass.
"""
_NO_FAIL_BETWEEN_NODES = 64 << 20
"""Nor does any row up to this size fail between nodes without a baseline or peers."""


class ErrorCell(Struct, frozen=True):
    """What sources held back say of one basis, path and decade of bytes (9: from 1 GB on).

    `median` and `ninety` are of the absolute log of measured by expected, each source counted once. `mark` is the share
    of the expected value below which a row fails; null if too little is known. `nodes` are those of the largest job.
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
    """Whether so much evidence may fail a row: five sources need fewer rows."""
    return sources >= FEWEST_SOURCES and rows >= (FEWEST_ROWS if sources < 5 else ROWS_OF_FIVE)


def path_of(system: NodeSystem, shape: Shape, op: str) -> str:
    """The class of path of one call: ``roce``, ``efa host``, ``nvlink hopper``; operations in pairs: ``pcie pairs``."""
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
    """The class of path whose error a number has: :func:`path_of`, or that of the link inside a node if it decides.

    A network is judged by what is known of its NICs, and of GPUs since Ampere: of older hosts another share is reached.
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
    """The wider class used for `path` if too little is known of it; None: none exists.

    Exchanges in pairs over switches depend only on bytes over links, in every generation of NVLink.
    """
    base, _, rest = path.partition(" ")
    if base == "nvlink" and rest.removesuffix(" pairs") in GENERATIONS.values() and rest.endswith(" pairs"):
        return "nvlink pairs"
    return f"{_POOLED[base]} {rest}".strip() if base in _POOLED else None


_THROUGH_HOST, _LESS = 0.6, 0.8
"""What is reached of a path through host memory; and a node that carries less than this share of its NICs decides."""
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
    """The size as evidence is kept: 6 is 1 MB to 10 MB, 9 is 1 GB and more."""
    return min(LARGEST_DECADE, int(math.log10(max(1, nbytes))))


@cache
def table() -> Mapping[tuple[str, str, int], ErrorCell]:
    """Every cell that comes with ncclprobe, by basis, path and decade."""
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
    """`found` with the threshold that the evidence gives it, and the worst verdict that it may cause.

    `by_time`: latency decides this row, so that it warns at most. `cells`: in place of those that ncclprobe comes with.
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
        f"{found.basis} expectations {where} are off by {cell.median:.0%} in the median, {cell.ninety:.0%} in nine of "
        f"ten rows ({cell.sources} sources held back, {cell.rows} rows)"
    )
    known += f"; known up to {_count(cell.nodes, 'node')}, so {shape.nodes} fail only by the gross mark" if far else ""
    small = path.split()[0] not in IN_NODE and nbytes <= _NO_FAIL_BETWEEN_NODES
    loose = cell.mark < (GROSS_SHARE if decade(nbytes) == LARGEST_DECADE else LOOSE)
    worst: Literal["fail", "warn"] = "warn" if by_time or small or far or loose else "fail"
    return replace(found, threshold=found.value * cell.mark, worst=worst, known=known)


def unjudged(found: Expectation, why: str) -> Expectation:
    """`found` as a number to look at: without a threshold, and why."""
    return replace(found, threshold=0.0, worst="unjudged", known=why)


def _too_little(cell: ErrorCell | None, basis: str, where: str) -> str:
    have = f"from {_count(cell.sources, 'source')} and {_count(cell.rows, 'row')}" if cell else "from no source"
    return (
        f"not judged: how far {basis} expectations {where} are off is known {have}; it takes {FEWEST_SOURCES} sources "
        f"and {FEWEST_ROWS} rows"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _words(path: str) -> str:
    """The class as a reader has it: ``over NVLink in a node (hopper)``."""
    base, *rest = path.split()
    words = next(WORDS[each] for each in get_args(PathClass) if each == base)
    return f"{words} ({', '.join(_WAYS.get(each, each) for each in rest)})" if rest else words
