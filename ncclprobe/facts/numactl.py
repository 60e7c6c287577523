"""`numactl -H`: NUMA nodes, where sysfs is not at hand."""

import re

from ncclprobe.errors import ParseError
from ncclprobe.facts.blocks import lines
from ncclprobe.model.values import Struct

_AVAILABLE = re.compile(r"available: ([0-9]{1,4}) nodes.*")
_CPUS = re.compile(r"node ([0-9]{1,4}) cpus:((?: [0-9]{1,6})*)")
_SIZE = re.compile(r"node ([0-9]{1,4}) size: ([0-9]{1,12}) MB")
_HEADER = re.compile(r"node((?:\s+[0-9]{1,4})+)")
_DISTANCES = re.compile(r"([0-9]{1,4}):((?:\s+[0-9]{1,4})+)")


class NumactlNode(Struct, frozen=True):
    """One NUMA node. `cpus` is empty for memory without CPUs, such as a GPU's; `distances` are to all nodes in order.

    None, and no distances, is what the text does not say.
    """

    id: int
    cpus: tuple[int, ...]
    size_mb: int | None
    distances: tuple[int, ...]


class Numactl(Struct, frozen=True):
    """All nodes in the order of the text; `incomplete` says what of them is missing."""

    nodes: tuple[NumactlNode, ...]
    incomplete: tuple[str, ...] = ()


def parse(text: str) -> Numactl:
    """Return what the tool says. Raises ParseError where it names no node, or distances to others than it names."""
    reported_lines = lines(text)
    cpus = {int(m[1]): tuple(map(int, m[2].split())) for m in map(_CPUS.fullmatch, reported_lines) if m}
    sizes = {int(m[1]): int(m[2]) for m in map(_SIZE.fullmatch, reported_lines) if m}
    away = {int(m[1]): tuple(map(int, m[2].split())) for m in map(_DISTANCES.fullmatch, reported_lines) if m}
    header = next((m[1].split() for m in map(_HEADER.fullmatch, reported_lines) if m), [])
    if not cpus:
        raise ParseError(f"not the output of numactl -H: {text.strip()[:120]!r}")
    if len(cpus) < sum(map(bool, map(_CPUS.fullmatch, reported_lines))):
        raise ParseError("numactl -H: a node comes twice: two outputs may be interleaved")
    if any(len(row) != len(header) for row in away.values()):
        raise ParseError("numactl -H: a row of distances has not one number for each node")
    nodes = tuple(NumactlNode(id, own, sizes.get(id), away.get(id, ())) for id, own in cpus.items())
    announced = next((int(m[1]) for m in map(_AVAILABLE.fullmatch, reported_lines) if m), len(nodes))
    lacking = [f"node {n.id}: size" for n in nodes if n.size_mb is None]
    lacking += [f"node {n.id}: distances" for n in nodes if not n.distances]
    lacking += [f"{len(nodes)} nodes of {announced}"] if len(nodes) < announced else []
    return Numactl(nodes, tuple(lacking))
