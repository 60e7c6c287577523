"""All nodes by state, and the kinds of nodes, with the findings on their devices."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ncclprobe.model.findings import Status
from ncclprobe.model.layout import shorten
from ncclprobe.model.nccl_selection import NodeTopology
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report.digest import node_states
from ncclprobe.report.html.findings import Card
from ncclprobe.report.html.legible import folded
from ncclprobe.report.html.tables import Row, device


class _Mark(Struct, frozen=True):
    """A finding of the check `id` on a device: `kind` is fail or warn, `anchor` its place in the page."""

    kind: str
    id: str
    anchor: str


Marks = Mapping[str, tuple[_Mark, ...]]
MOST_TILES = 4096
NAMED_TILES = 64
"""Tiles have names up to this number of nodes."""
MOST_KINDS = 4
MOST_GROUPS = 40
_LONGEST = 160
Anchors = Mapping[tuple[str, str, str, str], str]
ORDER = ("fail", "missing", "unknown", "warn", "pass", "skip")
_SIGN = {"fail": "×", "missing": "–", "unknown": "?", "warn": "!"}


class _Tile(Struct, frozen=True):
    """One node among the tiles; `sign` shows the state without colours."""

    name: str
    state: str
    sign: str


class _Kind(Struct, frozen=True):
    """Nodes with the same devices, paths and marks."""

    nodes: str
    number: int
    topology: NodeTopology
    said: tuple[tuple[str, _Mark], ...]

    @property
    def others(self) -> list[str]:
        """Return the names of GPUs and NICs, which are the columns of the table of paths."""
        return [each.name for each in (*(self.topology.gpus or ()), *(self.topology.nics or ()))]


def tiles(report: Report) -> tuple[list[_Tile], int]:
    """Return the nodes in the report's order, and how many are not shown. If not all fit, the worst come first."""
    states = list(node_states(report).items())
    if len(states) > MOST_TILES:
        states.sort(key=lambda each: ORDER.index(each[1]))
    return [_Tile(name, state, _SIGN.get(state, "")) for name, state in states[:MOST_TILES]], max(
        0, len(states) - MOST_TILES
    )


class _Group(Struct, frozen=True):
    """Nodes in one state for the same reasons: `why` has an anchor and text for each."""

    state: str
    nodes: str
    number: int
    why: tuple[tuple[str, str], ...]


def groups(report: Report, cards: Sequence[Card]) -> tuple[list[_Group], int]:
    """Group the nodes by state and reasons, worst first; also return how many nodes are left out.

    Within a state, the order is that of the findings. Nodes of a state without their own finding are grouped.
    """
    ailing = grouped((name, card) for card in cards for name in card.names)
    found = grouped(((state, tuple(ailing.get(name, ()))), name) for name, state in node_states(report).items())
    order = {card.anchor: number for number, card in enumerate(cards)}
    ranked = sorted(
        found.items(),
        key=lambda each: (
            ORDER.index(each[0][0]),
            min((order[card.anchor] for card in each[0][1]), default=len(order)),
            -len(each[1]),
        ),
    )
    unseen = [each for each in report.checks if each.required and each.status is Status.UNKNOWN and each.node]
    blind = {name: tuple(ids) for name, ids in grouped((each.node or "", each.id) for each in unseen).items()}
    shown = [_group(state, why, names, blind) for (state, why), names in ranked[:MOST_GROUPS]]
    return shown, sum(len(names) for _, names in ranked[MOST_GROUPS:])


def _sentence(card: Card) -> str:
    """Return the text of a finding; if a card has several, the title of their check."""
    if card.alone is None:
        return card.title
    return shorten(f"{card.alone.subject}: {card.alone.message}", _LONGEST)


def _group(state: str, cards: Sequence[Card], names: Sequence[str], blind: Mapping[str, tuple[str, ...]]) -> _Group:
    why = [(card.anchor, _sentence(card)) for card in cards]
    unseen = dict.fromkeys(each for name in names for each in blind.get(name, ()))
    why += [("blind", f"not checked: {', '.join(list(unseen)[:4])}{' …' if len(unseen) > 4 else ''}")] if unseen else []
    why += [("blind", "did not report to the run")] if state == "missing" else []
    return _Group(state, folded(names, 160 if state == "pass" else 400), len(names), tuple(why))


def kinds(report: Report, found: Sequence[Row], anchors: Anchors) -> tuple[list[_Kind], int, int]:
    """Return the kinds of nodes, affected ones first; also how many kinds are not shown, and how many
    nodes these are.
    """
    # By node and device, what failures and warnings say of a device that the node has:
    devices = {name: _names(topology) for name, topology in report.topology.items()}
    marks: dict[str, dict[str, tuple[_Mark, ...]]] = defaultdict(dict)
    for row in found:
        if row.kind not in ("fail", "warn"):
            continue
        mark = _Mark(row.kind, row.id, anchors.get(row.key, "checks"))
        for node in row.nodes:
            for name in set(device(row.subject)) & devices.get(node, frozenset()):
                marks[node][name] = (*marks[node].get(name, ()), mark)
    groups = grouped(
        ((repr(topology), tuple(sorted(marks.get(name, {}).items()))), name)
        for name, topology in report.topology.items()
    )
    ranked = sorted(groups.items(), key=lambda each: (not each[0][1], -len(each[1])))
    chosen = ranked[:MOST_KINDS]
    healthy = next((each for each in ranked[MOST_KINDS:] if not each[0][1]), None)
    if healthy and MOST_KINDS:  # of those without a fault always one, to compare with
        chosen = [*chosen[:-1], healthy]
    drawn = [_kind(report, names, dict(key[1])) for key, names in chosen]
    return drawn, len(ranked) - len(drawn), len(report.topology) - sum(each.number for each in drawn)


def _kind(report: Report, names: Sequence[str], marks: Marks) -> _Kind:
    topology = report.topology[names[0]]
    said = tuple((name, mark) for name, each in marks.items() for mark in each)
    return _Kind(folded(names, 80), len(names), topology, said)


def _names(topology: NodeTopology) -> frozenset[str]:
    return frozenset(each.name for each in (*(topology.gpus or ()), *(topology.nics or ())))
