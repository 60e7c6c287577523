"""Rails of fleets that are not as the others: garbled answers, unlike rails, faults that come and go."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_rails import FakeNodes, names, played, verdicts, wrong

from ncclprobe.checks.rail.fixtures import World
from ncclprobe.cluster.rails.messages import RailsOrder
from ncclprobe.model.findings import Status

Change = Callable[[dict[str, Any]], None]


class Garbling(FakeNodes):
    """Nodes of which n1 changes what it answers to orders of one kind."""

    def __init__(self, world: World, do: str, change: Change) -> None:
        super().__init__(world)
        self._do, self._change = do, change

    def answer(self, rank: int, order: RailsOrder) -> dict[str, Any]:
        """As the others do, but for n1."""
        said = super().answer(rank, order)
        if rank == 1 and order.do == self._do:
            self._change(said)
        return said


def streams(**changes: Any) -> Change:
    """Return what changes every stream."""

    def change(said: dict[str, Any]) -> None:
        for row in said["rows"]:
            for stream in row["outcome"]["streams"]:
                stream.update(changes)

    return change


@pytest.mark.parametrize(
    ("do", "change"),
    [
        ("test", streams(seconds=1e-320)),
        ("test", streams(nbytes=10**400)),
        ("test", streams(nbytes=-5)),
        ("test", lambda said: said.update(rows="none")),
        ("test", lambda said: [row.update(patience_s=1e-320) for row in said["rows"]]),
        ("list", lambda said: said.update(rates_gbps=[1e308, 1e308], gpus=[True] * 99)),
        ("list", lambda said: [port.update(queue_pairs=10**12) for port in said["ports"]]),
        ("list", lambda said: [port.update(queue_pairs=-3) for port in said["ports"]]),
    ],
)
def test_a_node_whose_numbers_are_absurd_ends_no_run_and_no_other_is_blamed(do: str, change: Change) -> None:
    world = World(names(4))
    found = verdicts(played(world, Garbling(world, do, change)))
    assert not [nodes for _, _, nodes in wrong(found) if nodes != ("n1",)]
    assert Status.PASS in {verdict.status for verdict in found.values()}
