"""Where the devices of a node stand in its picture: a pure layout that :mod:`ncclprobe.report.html.pictures` draws.

GPUs in the upper row, NICs in the lower, between them the PCIe switch that they share (paths PIX and PXB) or else the
host bridge; around all the NUMA node. Switches are told from paths: no report lists them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology
from ncclprobe.model.values import Struct

COLUMN = 92
_GAP = 14
_PAD = 14
_LEAST = 190
"""Width of a NUMA node that holds its words."""

_SWITCHED = ("PIX", "PXB")
Paths = Mapping[str, Mapping[str, str | None]]


class Placed(Struct, frozen=True):
    """A device with the middle of its column."""

    device: DeviceRow
    x: float


class Cluster(Struct, frozen=True):
    """Devices that hang on one switch, from `left` to `right`; `word` is the nearest path among them."""

    gpus: tuple[Placed, ...]
    nics: tuple[Placed, ...]
    left: float
    right: float
    switch: bool
    word: str


class Domain(Struct, frozen=True):
    """A NUMA node; `id` None: the devices' place is not known."""

    id: int | None
    cpus: str
    clusters: tuple[Cluster, ...]
    left: float
    right: float


def place(topology: NodeTopology) -> tuple[Domain, ...]:
    """Return the NUMA nodes that have devices, from left to right."""
    gpus, nics, paths = topology.gpus or (), topology.nics or (), topology.paths or {}
    by_numa: dict[int | None, list[DeviceRow]] = defaultdict(list)
    for each in (*gpus, *nics):
        by_numa[None if each.numa is None or each.numa < 0 else each.numa].append(each)
    cpus = {row.id: row.cpus for row in topology.numa or ()}
    left, domains = 0.0, []
    for numa in sorted(by_numa, key=lambda each: (each is None, each or 0)):
        domain = _domain(numa, cpus.get(numa, "") if numa is not None else "", by_numa[numa], gpus, paths, left)
        domains.append(domain)
        left = domain.right + _GAP
    return tuple(domains)


def _domain(
    numa: int | None,
    cpus: str,
    devices: Sequence[DeviceRow],
    gpus: Sequence[DeviceRow],
    paths: Paths,
    left: float,
) -> Domain:
    names = {each.name for each in gpus}
    x, clusters = left + _PAD, []
    for members, switch in _clusters(devices, paths):
        cluster = _cluster(members, names, switch, paths, x)
        clusters.append(cluster)
        x = cluster.right + _GAP
    return Domain(numa, cpus, tuple(clusters), left, max(x - _GAP + _PAD, left + _LEAST))


def _clusters(devices: Sequence[DeviceRow], paths: Paths) -> list[tuple[list[DeviceRow], bool]]:
    """Return devices that share a switch, then all others of the NUMA node together."""
    groups: list[list[DeviceRow]] = []
    for each in devices:
        joined = [group for group in groups if any(_path(paths, each.name, o.name) in _SWITCHED for o in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(device for group in joined for device in group), each])
    switched = [group for group in groups if len(group) > 1]
    alone = [device for group in groups if len(group) == 1 for device in group]
    order = {each.name: n for n, each in enumerate(devices)}
    switched.sort(key=lambda group: min(order[each.name] for each in group))
    return [(group, True) for group in switched] + ([(alone, False)] if alone else [])


def _cluster(members: Iterable[DeviceRow], gpu_names: set[str], switch: bool, paths: Paths, left: float) -> Cluster:
    gpus = [each for each in members if each.name in gpu_names]
    nics = [each for each in members if each.name not in gpu_names]
    wide = max(len(gpus), len(nics), 1) * COLUMN
    words = [_path(paths, gpu.name, other.name) for gpu in gpus for other in (*nics, *gpus) if other is not gpu]
    known = [word for word in words if word and word != "NVL"]
    return Cluster(
        _spread(gpus, left, wide), _spread(nics, left, wide), left, left + wide, switch, min(known, default="")
    )


def _spread(devices: Sequence[DeviceRow], left: float, wide: float) -> tuple[Placed, ...]:
    """Return `devices` evenly over `wide`."""
    step = wide / max(1, len(devices))
    return tuple(Placed(each, left + step * (n + 0.5)) for n, each in enumerate(devices))


def _path(paths: Paths, one: str, other: str) -> str | None:
    return paths.get(one, {}).get(other) or paths.get(other, {}).get(one)


def nvlinked(topology: NodeTopology) -> list[tuple[str, str]]:
    """Return pairs of GPUs that NVLinks join."""
    names = [each.name for each in topology.gpus or ()]
    paths = topology.paths or {}
    return [(a, b) for n, a in enumerate(names) for b in names[n + 1 :] if _path(paths, a, b) == "NVL"]


def all_to_all(pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether `pairs` join each of at least three GPUs with each other, as NVSwitches do."""
    ends = {end for pair in pairs for end in pair}
    return len(ends) > 2 and len(pairs) == len(ends) * (len(ends) - 1) // 2
