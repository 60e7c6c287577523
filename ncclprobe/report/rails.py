"""Rails as a person reads them: a row for each node, a column for each rail, and what is not as the others."""

from collections.abc import Iterator, Sequence
from statistics import median

from ncclprobe.model.rail_results import RailWay
from ncclprobe.model.values import Struct, field

MOST_NODES = 24
"""Rows of the grid; of more nodes those with dead rails and the slowest are shown."""
_MOST_RAILS = 9
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
        """Return the state of most of what it sends, or receives; a few bad ways are their partners'."""
        for ways in (self.out, self.into):
            bad = [way.state for way in ways if way.state != "ok"]
            if 2 * len(bad) > len(ways):
                return max(bad, key=bad.count)
        return "ok"

    def rate(self, ways: Sequence[RailWay]) -> float | None:
        """Return the median of what these ways carry, GB/s."""
        known = [way.GBps for way in ways if way.GBps is not None]
        return median(known) if known else None

    @property
    def latency_us(self) -> float | None:
        """Return the median over its partners."""
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
    """Yield the grid of rates, and in words how many ways were tried."""
    every = ends(rows)
    if not every:
        return
    bad = [way for way in rows if way.state != "ok"]
    tried = f"rails: {len(rows)} ways tried, {len(rows) - len(bad)} carry data"
    cross = sum(way.src_rail != way.dst_rail for way in rows)
    yield [tried + (f"; {cross} of them between rails of different numbers" if cross else "")]
    numbers = sorted({each.rail for each in every})[: max(1, min(_MOST_RAILS, (width - 20) // 13))]
    yield _grid(every, numbers)


def _grid(every: Sequence[RailEnd], numbers: Sequence[int]) -> list[str]:
    by_node: dict[str, dict[int, RailEnd]] = {}
    for each in every:
        by_node.setdefault(each.node, {})[each.rail] = each
    shown = list(by_node)
    if len(shown) > MOST_NODES:
        shown = sorted(shown, key=lambda node: _worst(by_node[node]))[:MOST_NODES]
    wide = max(len(node) for node in shown)
    lines = ["GB/s sent / received, median over partners, all rails of two nodes at work"]
    lines.append(" " * wide + "".join(f"{f'rail {number}':>13}" for number in numbers))
    for node in shown:
        lines.append(f"{node:<{wide}}" + "".join(f"{_cell(by_node[node].get(n)):>13}" for n in numbers))
    left = len(by_node) - len(shown)
    return [*lines, *([f"{left} more nodes, all of whose rails carry data"] if left else [])]


def _worst(rails: dict[int, RailEnd]) -> tuple[bool, float]:
    rates = [each.rate(each.out) or 0.0 for each in rails.values()]
    return all(each.state == "ok" for each in rails.values()), min(rates)


def _cell(end: RailEnd | None) -> str:
    if end is None:
        return "-"
    if end.state != "ok":
        return _WORDS[end.state]
    return " / ".join(f"{rate:#.3g}" if rate is not None else "-" for rate in (end.rate(end.out), end.rate(end.into)))
