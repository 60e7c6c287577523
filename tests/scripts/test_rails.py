"""A rail that one node has lost is named by facts, whichever way it was lost, and nothing else is blamed for it."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS)]

import rails

MACHINE, LOST = "dgx-a100", "mlx5_7"
"""A machine with two NICs for storage, and a rail in the middle of the others."""
CHECKS = {
    "port DOWN, Polling": {"ib.state", "sync.nic-count"},
    "port DOWN, Disabled": {"ib.state", "sync.nic-count"},
    "one lane of four": {"ib.rate", "sync.nic-count"},
    "half rate": {"ib.rate"},
    "no RDMA device": {"sync.nic-count"},
    "off the PCI bus": {"sync.nic-count"},
    "off the PCI bus at boot, others renamed": {"sync.nic-count"},
    "moved no byte, ACTIVE": {"run.nic-traffic"},
    "moved a tenth, ACTIVE": {"run.nic-traffic"},
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("title", [*rails.PLANTS, *rails.LEFT])
def test_a_lost_rail_is_named_on_its_node_and_no_other_is(title: str, size: int) -> None:
    if title in rails.PLANTS:
        found = rails.planted(MACHINE, rails.PLANTS[title], LOST, size)
    else:
        found = rails.carried(MACHINE, rails.LEFT[title], LOST, size)
    assert {told.check for told in found.named} == CHECKS[title]
    assert found.others == ()


@pytest.mark.parametrize("left", [0.5, 1.0])
def test_a_nic_that_did_half_of_its_part_or_all_is_not_named(left: float) -> None:
    found = rails.carried(MACHINE, left, LOST, 4)
    assert (found.named, found.told, found.others) == ((), (), ())


def test_the_page_counts_what_was_named_and_by_which_checks() -> None:
    found: dict[str, list[rails.Outcome]] = {title: [] for title in (*rails.PLANTS, *rails.LEFT)}
    found["half rate"] = [rails.planted(MACHINE, rails.half_rate, LOST, 2)]
    text = "\n".join(rails.page({MACHINE: found}))
    assert "Named: 1 of 1 (100.0%). Others blamed: 0." in text
    assert "| half rate | 1 / 1 |" in text
    assert "| half rate | FAIL ib.rate 1 |" in text
    assert "| moved no byte, ACTIVE | 0 / 0 |" in text
