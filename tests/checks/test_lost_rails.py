"""A rail that one node has lost is named by facts, whichever way it was lost, and nothing else is blamed for it."""

import planted_rails as rails

from tests.each_row import each_row

MACHINE, LOST = "dgx-a100", "mlx5_7"
"""A machine with two NICs for storage, and a rail in the middle of the others."""
CHECKS = {
    "port DOWN, Polling": {"ib.state", "sync.machine"},
    "port DOWN, Disabled": {"ib.state", "sync.machine"},
    "one lane of four": {"ib.rate", "sync.machine"},
    "half rate": {"ib.rate"},
    "no RDMA device": {"sync.machine"},
    "off the PCI bus": {"sync.machine"},
    "off the PCI bus at boot, others renamed": {"sync.machine"},
    "moved no byte, ACTIVE": {"run.nic-traffic"},
    "moved a tenth, ACTIVE": {"run.nic-traffic"},
}


@each_row("size", [2, 4])
@each_row("title", [*rails.PLANTS, *rails.LEFT])
def test_a_lost_rail_is_named_on_its_node_and_no_other_is(title: str, size: int) -> None:
    if title in rails.PLANTS:
        found = rails.planted(MACHINE, rails.PLANTS[title], LOST, size)
    else:
        found = rails.carried(MACHINE, rails.LEFT[title], LOST, size)
    assert {told.check for told in found.named} == CHECKS[title]
    assert found.others == ()


@each_row("left", [0.5, 1.0])
def test_a_nic_that_did_half_of_its_part_or_all_is_not_named(left: float) -> None:
    found = rails.carried(MACHINE, left, LOST, 4)
    assert (found.named, found.told, found.others) == ((), (), ())
