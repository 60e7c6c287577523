"""What nodes would have seen of each other: every path fine, but for what a test says."""

from collections.abc import Callable, Iterable
from typing import Any

from ncclprobe.facts.reach import Path, Paths
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import replace

Change = Callable[[int, int, str], dict[str, Any] | None]
"""What is otherwise on the path from one node to another for a role."""


def fine(role: str, one: int, other: int) -> Path:
    """A path of a healthy network of 10 Gb/s."""
    network = 0 if role == "default" else 1 + int(role[-1])
    source, address = (f"10.{network}.{rank // 250}.{rank % 250 + 1}" for rank in (one, other))
    return Path(other, role, f"eth{network}", source, address, "ok", "", 1, 1e-4, 1500, 9.0, 0, 5800)


def fleet(
    nodes: int, change: Change, roles: Iterable[str] = ("nccl0",), steps: Iterable[int] = (), silent: Iterable[int] = ()
) -> Every[Paths]:
    """Nodes n0, n1, … that try each other, or those at the distances `steps`; the `silent` ones say nothing."""
    names = {rank: f"n{rank}" for rank in range(nodes)}
    ahead = tuple(steps) or range(1, nodes)
    seen = {}
    for me in names:
        rows = []
        for role in roles:
            for other in ((me + step) % nodes for step in ahead):
                rows.append(replace(fine(role, me, other), **change(me, other, role) or {}))
        seen[names[me]] = Paths(me, names, (), tuple(rows))
    return Every({names[me]: seen[names[me]] for me in names if me not in set(silent)})
