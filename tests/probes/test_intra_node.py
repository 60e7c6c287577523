"""Every node's own collective, judged beside the others': rank 0's side, with made-up times.

planted                    turns  named
─────────────────────────  ─────  ─────────────────────────────────
nothing                        1  nobody
a slow node, each time         3  that node
a slow node, once              2  nobody
another one each time          2  nobody
two nodes                      1  nobody, and it is said why
one rank on each node          0  nothing is measured, and that is said
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_pairs import measured

from ncclprobe.localise.pairs.samples import Rules
from ncclprobe.localise.slow_ranks import localise

pytest.importorskip("torch")

from ncclprobe.session.measure.pairs import measure_intra_node
from tests.each_row import each_row

NBYTES = 1 << 20


class Fleet:
    """All ranks but 0: `seconds` says what a call takes on a rank in a turn."""

    def __init__(self, hosts: Sequence[str], seconds: Callable[[str, int], float]) -> None:
        self.hosts, self.seconds, self.turns = hosts, seconds, 0

    def share(self, value: Any) -> Any:
        return value

    def collect(self, value: Any) -> list[Any]:
        self.turns += 1
        alone = {host for host in self.hosts if self.hosts.count(host) == 1}
        return [[] if host in alone else [self.seconds(host, self.turns)] * 7 for host in self.hosts]


@each_row(
    ("hosts", "seconds", "turns", "named"),
    [
        ("aabbccdd", lambda host, turn: 1e-3, 1, []),
        ("aabbccdd", lambda host, turn: 4e-3 if host == "c" else 1e-3, 3, ["c"]),
        ("aabbccdd", lambda host, turn: 4e-3 if (host, turn) == ("c", 1) else 1e-3, 2, []),
        ("aabbccdd", lambda host, turn: 4e-3 if host == " cdb"[turn] else 1e-3, 2, []),
        ("aabb", lambda host, turn: 4e-3 if host == "a" else 1e-3, 1, []),
        ("abcd", lambda host, turn: 1e-3, 0, []),
    ],
)
def test_a_node_is_named_that_is_slow_alone_every_time(
    hosts: str, seconds: Callable[[str, int], float], turns: int, named: list[str]
) -> None:
    fleet = Fleet(list(hosts), seconds)
    rows = measure_intra_node(list(hosts), lambda: [1.0], fleet, NBYTES, Rules())
    found = localise(measured(list(hosts), [], rows))
    slow = found.intra_node
    assert fleet.turns == turns
    assert [each.node for each in slow] == named
    assert [(row.node, row.turn) for row in rows] == [(h, 1 + n) for n in range(turns) for h in sorted({*hosts})]
    assert [row.turn for row in found.intra_node_all_reduce] == [turns] * (len({*hosts}) if turns else 0)
    assert bool(found.intra_node_note) is (hosts in ("aabb", "abcd"))
    if named:
        assert (slow[0].kind, slow[0].where, slow[0].ranks, slow[0].tests) == ("collective", "inside c", (4, 5), 3)
        assert slow[0].ratio == pytest.approx(0.25)


def test_a_row_is_the_bus_bandwidth_of_the_nodes_own_ranks() -> None:
    hosts = ["a", "a", "a", "a", "b", "b", "c"]
    rows = measure_intra_node(hosts, lambda: [1.0], Fleet(hosts, lambda host, turn: 1e-3), NBYTES, Rules())
    assert [(row.node, row.ranks, row.time_us) for row in rows] == [("a", 4, 1000.0), ("b", 2, 1000.0)]
    assert [row.busbw_GBps for row in rows] == pytest.approx([1.5 * NBYTES / 1e6, NBYTES / 1e6])
