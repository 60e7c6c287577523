"""Machines around what tools printed somewhere, so that all checks can look at it.

Around a matrix of ``nvidia-smi topo``: the tree, the NVLinks and the NUMA nodes follow from the words. Around ibstat:
its ports. Everything else is a healthy server's. GPUs are of no known product, NICs of a matrix all alike.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

from ncclprobe.facts.ibstat import Adapter
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.model.values import replace
from zoo import changes, parts
from zoo.changes import Change
from zoo.description import Firmware, GpuModel, Machine, Nic, Processors, Root, Software, Switch

_RANKS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
_SAME_SWITCH, _SAME_ROOT, _SAME_BRIDGE, _SAME_NODE, _APART = range(5)
_MOST_LINKS = 18  # of a GPU known so far
_GPU = GpuModel("GPU of some kind", 0x2000, (8, 0), 80, 4, link_mbps=25000, link_version=5, mig=True)
Ranks = Mapping[tuple[str, str], int]


def machine(name: str, matrix: Matrix) -> Machine:
    """The machine. Raises ValueError for a matrix that no tree has."""
    names = (*matrix.gpus, *matrix.nics)
    words = {pair: matrix.links.get(pair[0], {}).get(pair[1]) for pair in combinations(names, 2)}
    words |= {(a, b): matrix.links.get(b, {}).get(a) for (a, b), word in words.items() if word is None}
    homes = {gpu: node for gpu, node in zip(matrix.gpus, matrix.numa_affinity, strict=True) if (node or "").isdigit()}
    ranks = {pair: _rank(pair, word or "SYS", homes) for pair, word in words.items()}
    tree = tuple(_roots(names, ranks))
    cells = {**words, **{(b, a): word for (a, b), word in words.items()}}
    rows = [[one, *("X" if one == other else cells[one, other] or "SYS" for other in names)] for one in names]
    remotes = _remotes(matrix.gpus, {pair: word or "" for pair, word in cells.items()})
    nodes = sorted({root.numa for root in tree})
    return Machine(
        name=name,
        title=name,
        sources=(),
        processors=Processors("Some server", {n: f"{64 * n}-{64 * n + 63}" for n in nodes}),
        tree=tree,
        firmware=Firmware("Some vendor", "Server", "Board"),
        software=Software("550.127.08", 12040, True, bool(remotes), "2.6.0+cu124", "12.4", "2.21.5"),
        gpu=replace(_GPU, links=max(map(len, remotes), default=0)),
        matrix="\n".join(" ".join(row) for row in ([*names], *rows)),
        nics=tuple(Nic(parts.CONNECTX_6, nic, rate="200 Gb/sec (4X HDR)") for nic in matrix.nics),
        remotes=remotes,
        peer_memory=True,
    )


def with_ports(name: str, adapters: Sequence[Adapter]) -> tuple[Machine, tuple[Change, ...]]:
    """A machine without GPUs with the ports that ibstat has printed, and what makes their state that of the text."""
    known = [(adapter, port) for adapter in adapters for port in adapter.ports if port.number == 1]
    nics = tuple(
        Nic(
            replace(parts.CONNECTX_7, hca=adapter.type or "", board=adapter.type or ""),
            adapter.name,
            f"net{number}",
            f"{port.rate_gbps or 0:g} Gb/sec (4X)",
            port.link_layer or "InfiniBand",
            mtu=9000,
            address=f"10.{number}.0.11/24",
        )
        for number, (adapter, port) in enumerate(known)
    )
    roots = tuple(Root(f"{number:04x}:00", 0, (nic.place,)) for number, nic in enumerate(nics))
    processors, firmware = Processors("Some server", {0: "0-63"}), Firmware("Some vendor", "Server", "Board")
    states = {"Active": "4: ACTIVE", "Down": "1: DOWN", "Initializing": "2: INIT", "ACTIVE": "4: ACTIVE"}
    physical = {"LinkUp": "5: LinkUp", "Polling": "2: Polling", "Disabled": "3: Disabled"}
    folders = {adapter.name: (f"/sys/class/infiniband/{adapter.name}/ports/1", port) for adapter, port in known}
    told = [changes.file(f"{at}/state", states[port.state or "Active"]) for at, port in folders.values()]
    told += [
        changes.file(f"{at}/phys_state", physical[port.physical_state or "LinkUp"]) for at, port in folders.values()
    ]
    return Machine(name, name, (), processors, roots, firmware, nics=nics), tuple(told)


def _rank(pair: tuple[str, str], word: str, homes: Mapping[str, str | None]) -> int:
    """How far two devices are apart. An NVLink hides it, and the NUMA nodes tell."""
    if not word.startswith("NV"):
        return _RANKS[word]
    one, other = (homes.get(name) for name in pair)
    return _SAME_NODE if one is not None and one == other else _APART


def _roots(names: Sequence[str], ranks: Ranks) -> list[Root]:
    """One root bus for each host bridge, and below each of its ports a device or switches."""
    roots = []
    for node, of_node in enumerate(_clusters(names, ranks, _SAME_NODE)):
        for of_bridge in _clusters(of_node, ranks, _SAME_BRIDGE):
            ports = [_below(cluster, ranks) for cluster in _clusters(of_bridge, ranks, _SAME_ROOT)]
            roots.append(Root(f"{len(roots):04x}:00", node, tuple(ports)))
    return roots


def _below(names: Sequence[str], ranks: Ranks) -> str | Switch:
    groups = [group[0] if len(group) == 1 else Switch(tuple(group)) for group in _clusters(names, ranks, _SAME_SWITCH)]
    if len(groups) == 1:
        return groups[0]
    return Switch(tuple(group if isinstance(group, Switch) else Switch((group,)) for group in groups))


def _clusters(names: Sequence[str], ranks: Ranks, rank: int) -> list[list[str]]:
    """Groups of devices that are not farther apart than `rank`, directly or through others."""
    groups: list[list[str]] = []
    for name in names:
        near = [g for g in groups if any(ranks.get((o, name), ranks.get((name, o), _APART)) <= rank for o in g)]
        groups = [group for group in groups if group not in near]
        groups.append([*(member for group in near for member in group), name])
    return groups


def _remotes(gpus: Sequence[str], words: Mapping[tuple[str, str], str]) -> tuple[tuple[str, ...], ...]:
    """For each GPU where its links lead: to NVSwitches where it would have too many for a direct link each."""
    counts = {pair: int(word[2:]) for pair, word in words.items() if word.startswith("NV")}
    direct = tuple(tuple(b for b in gpus for _ in range(counts.get((a, b), 0))) for a in gpus)
    if max(map(len, direct), default=0) <= _MOST_LINKS:
        return direct if counts else ()
    return tuple(("switch",) * max((counts.get((a, b), 0) for b in gpus), default=0) for a in gpus)
