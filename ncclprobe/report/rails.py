"""Rails as text: a row for each node, a column for each rail, and what differs from the others."""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.model.pair_results import RailWay
from ncclprobe.model.stats import median
from ncclprobe.model.units import three_digits
from ncclprobe.model.values import Struct, field

MOST_NODES = 24
"""Rows of the grid; with more nodes, those with dead rails and the slowest are shown."""
_EQUAL = 0.1
_TITLE = "GB/s sent (/ received, if it differs): the median over partners, with all rails of two nodes at work"
_WORDS = {"dead": "DEAD", "late": "LATE", "unusable": "FAILS", "wrong": "WRONG", "untried": "untried"}


class RailEnd(Struct):
    """One rail of one node with all its partners: what it sends and receives, and the ways that are not ok."""

    node: str
    rail: int
    name: str
    choices: str
    out: list[RailWay] = field(default_factory=list)
    into: list[RailWay] = field(default_factory=list)

    @property
    def bad(self) -> list[RailWay]:
        """Return the ways that are not ok."""
        return [way for way in (*self.out, *self.into) if way.state != "ok"]

    @property
    def state(self) -> str:
        """Return the state of most of its outgoing, or incoming, ways; a few bad ways are the partners' fault."""
        for ways in (self.out, self.into):
            bad = [way.state for way in ways if way.state != "ok"]
            if 2 * len(bad) > len(ways):
                return max(bad, key=bad.count)
        return "ok"

    def rate(self, ways: Sequence[RailWay]) -> float | None:
        """Return the median rate of these ways, GB/s."""
        known = [way.GBps for way in ways if way.GBps is not None]
        return median(known) if known else None

    @property
    def latency_us(self) -> float | None:
        """Return the median latency over its partners."""
        known = [way.latency_us for way in self.out if way.latency_us is not None]
        return median(known) if known else None


def ends(rows: Sequence[RailWay]) -> list[RailEnd]:
    """Return the rails of all nodes, by node and rail; tests between rails of different numbers are left out."""
    found: dict[tuple[str, int], RailEnd] = {}
    for way in rows:
        if way.src_rail == way.dst_rail:
            src = found.setdefault(
                (way.src, way.src_rail), RailEnd(way.src, way.src_rail, way.src_end, way.src_choices)
            )
            dst = found.setdefault(
                (way.dst, way.dst_rail), RailEnd(way.dst, way.dst_rail, way.dst_end, way.dst_choices)
            )
            src.out.append(way)
            dst.into.append(way)
    return list(found.values())


def blocks(rows: Sequence[RailWay], width: int) -> Iterator[list[str]]:
    """Yield the grid of rates, and a description of how many ways were tried."""
    every = ends(rows)
    if not every:
        return
    carry, late = (sum(way.state == state for way in rows) for state in ("ok", "late"))
    tried = f"rails: {len(rows)} paths tested, {carry} carry data" + (
        f", {late} too slowly to end in time" if late else ""
    )
    cross = sum(way.src_rail != way.dst_rail for way in rows)
    yield [tried + (f"; {cross} of them between different rails" if cross else "")]
    nodes = by_node(every)
    kept = shown(nodes)
    cells = {(node, rail): _cell(nodes[node].get(rail)) for node in kept for rail in {e.rail for e in every}}
    head, column = max(map(len, kept)), max(8, 2 + max(map(len, cells.values())))
    rails, fit = sorted({each.rail for each in every}), max(1, (width - head) // column)
    for start in range(0, len(rails), fit):
        part = rails[start : start + fit]
        lines = [_TITLE] if not start else []
        lines.append(" " * head + "".join(f"{f'rail {rail}':>{column}}" for rail in part))
        lines += [f"{node:<{head}}" + "".join(f"{cells[node, rail]:>{column}}" for rail in part) for node in kept]
        left = len(nodes) - len(kept)
        yield [*lines, *([f"{left} more {'node is' if left == 1 else 'nodes are'} not worse"] if left else [])]


def by_node(every: Sequence[RailEnd]) -> dict[str, dict[int, RailEnd]]:
    """Return the rails of each node by their numbers."""
    nodes: dict[str, dict[int, RailEnd]] = {}
    for each in every:
        nodes.setdefault(each.node, {})[each.rail] = each
    return nodes


def shown(nodes: Mapping[str, Mapping[int, RailEnd]]) -> list[str]:
    """Return the nodes to show: all, or those with dead rails and the slowest."""
    if len(nodes) <= MOST_NODES:
        return list(nodes)
    return sorted(nodes, key=lambda node: _worst(nodes[node]))[:MOST_NODES]


def _worst(rails: Mapping[int, RailEnd]) -> tuple[bool, float]:
    rates = [each.rate(each.out) or 0.0 for each in rails.values()]
    return all(each.state == "ok" for each in rails.values()), min(rates)


def _cell(end: RailEnd | None) -> str:
    """Return the rate that a rail sends, and the rate that it receives if that differs."""
    if end is None:
        return "-"
    if end.state != "ok":
        return _WORDS[end.state]
    out, into = end.rate(end.out), end.rate(end.into)
    if out is None or into is None:
        return "-"
    equal = abs(out - into) <= _EQUAL * max(out, into)
    return three_digits(out) if equal else f"{three_digits(out)} / {three_digits(into)}"
