"""All nodes: who is in which state, and the kinds of node that differ in what they are made of or in what ails them."""

from collections import defaultdict
from collections.abc import Sequence

from markupsafe import Markup

from ncclprobe.model.findings import Status
from ncclprobe.model.nccl_selection import NodeTopology
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import folded
from ncclprobe.report.html.pictures import Mark, Marks, part_of, picture
from ncclprobe.report.html.rows import Row, device

MOST_TILES = 4096
NAMED_TILES = 64
"""Up to that many nodes have their name in their tile."""
MOST_KINDS = 4
ORDER = ("fail", "missing", "unknown", "warn", "pass", "skip")
_SIGN = {"fail": "×", "missing": "–", "unknown": "?", "warn": "!"}


class Tile(Struct, frozen=True):
    """One node in the picture of the fleet; `sign` says the state to those who see no colours."""

    name: str
    state: str
    sign: str


class Kind(Struct, frozen=True):
    """Nodes that look the same: same devices, same paths, same marks."""

    nodes: str
    number: int
    topology: NodeTopology
    drawing: Markup | None
    said: tuple[tuple[str, Mark], ...]

    @property
    def others(self) -> list[str]:
        """Return names of GPUs and NICs: the columns of the table of paths."""
        return [each.name for each in (*(self.topology.gpus or ()), *(self.topology.nics or ()))]


def _states(report: Report, found: Sequence[Row]) -> list[tuple[str, str]]:
    """Each node with its own state.

    A comparison that fails stops the whole job, so that all nodes of the report fail. Here a node fails only where a
    finding names it, as long as every failure names a node: otherwise all are red and none stands out.
    """
    named: dict[str, set[str]] = defaultdict(set)
    for row in found:
        for name in row.nodes if row.kind in ("fail", "warn") or (row.kind == "unknown" and row.required) else ():
            named[name].add(row.kind)
    failing = [row for row in found if row.kind == "fail"]
    clear = bool(failing) and all(row.nodes for row in failing)
    told = []
    for node in report.nodes:
        own = next((state for state in ORDER if state in named[node.name]), "pass")
        told.append((node.name, own if clear and node.status is Status.FAIL else node.status.value))
    return told + [(name, "missing") for name in report.missing_nodes]


def tiles(report: Report, found: Sequence[Row]) -> tuple[list[Tile], int]:
    """Return the nodes in the report's order, and how many are not shown. Where not all fit: the loudest first."""
    states = _states(report, found)
    if len(states) > MOST_TILES:
        states.sort(key=lambda each: ORDER.index(each[1]))
    return [Tile(name, state, _SIGN.get(state, "")) for name, state in states[:MOST_TILES]], max(
        0, len(states) - MOST_TILES
    )


def states(report: Report, found: Sequence[Row]) -> list[tuple[str, int, str]]:
    """Return (state, how many, who), the loudest first."""
    by_state: dict[str, list[str]] = defaultdict(list)
    for name, state in _states(report, found):
        by_state[state].append(name)
    return [(state, len(by_state[state]), folded(by_state[state], 400)) for state in ORDER if by_state[state]]


def kinds(report: Report, found: Sequence[Row]) -> tuple[list[Kind], int, int]:
    """Return the kinds of node, what ails first; how many kinds are not shown, and how many nodes these are."""
    marks = _marks(report, found)
    groups: dict[tuple[str, tuple[tuple[str, tuple[Mark, ...]], ...]], list[str]] = defaultdict(list)
    for name, topology in report.topology.items():
        groups[repr(topology), tuple(sorted(marks.get(name, {}).items()))].append(name)
    ranked = sorted(groups.items(), key=lambda each: (not each[0][1], -len(each[1])))
    chosen = ranked[:MOST_KINDS]
    healthy = next((each for each in ranked[MOST_KINDS:] if not each[0][1]), None)
    if healthy and MOST_KINDS:  # of those without a fault always one, to compare with
        chosen = [*chosen[:-1], healthy]
    drawn = [_kind(report, names, dict(key[1])) for key, names in chosen]
    return drawn, len(ranked) - len(drawn), len(report.topology) - sum(each.number for each in drawn)


def _kind(report: Report, names: Sequence[str], marks: Marks) -> Kind:
    topology = report.topology[names[0]]
    said = tuple((name, mark) for name, each in marks.items() for mark in each)
    return Kind(folded(names, 80), len(names), topology, picture(topology, marks), said)


def _marks(report: Report, found: Sequence[Row]) -> dict[str, dict[str, tuple[Mark, ...]]]:
    """By node and device, what failures and warnings say of a device that the node has."""
    devices = {name: _names(topology) for name, topology in report.topology.items()}
    marks: dict[str, dict[str, tuple[Mark, ...]]] = defaultdict(dict)
    for row in found:
        if row.kind not in ("fail", "warn"):
            continue
        mark = Mark(row.kind, part_of(row.id), f"{row.id}: {row.subject} {row.message}")
        for node in row.nodes:
            for name in set(device(row.subject)) & devices.get(node, frozenset()):
                marks[node][name] = (*marks[node].get(name, ()), mark)
    return marks


def _names(topology: NodeTopology) -> frozenset[str]:
    return frozenset(each.name for each in (*(topology.gpus or ()), *(topology.nics or ())))
