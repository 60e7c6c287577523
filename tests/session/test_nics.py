"""Which NIC carries each rank's bytes, and what the counters that ranks report say of the transport."""

from typing import Any

import pytest

from ncclprobe.checks.run import traffic as checks
from ncclprobe.facts.run.samples import NicTraffic
from ncclprobe.facts.traffic import Count, Traffic
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.nic_traffic import operation_traffic
from ncclprobe.session.measure import nic_traffic

MIB = 1 << 20
HOSTS = ("a", "a", "b", "b")


def told(**sent: int) -> dict[str, Any]:
    return nic_traffic.packed(Traffic({name: Count(nbytes, nbytes) for name, nbytes in sent.items()}))


def card(expected: list[str] | None, below: dict[str, list[str]] | None = None) -> dict[str, Any]:
    return {"expected": expected, "below": below}


CARDS = [card(["eth0"], {}), card(["eth1"]), card(["eth0"], {}), card(["eth1"])]


def test_the_nics_of_a_node_are_those_of_all_its_ranks_and_one_that_does_not_know_leaves_it_unknown() -> None:
    both = [[told(eth0=5), told(eth0=9, eth1=4)], [None, None]] * 2
    first, second = nic_traffic.bytes_by_node(CARDS, both, HOSTS)
    assert (first.node, second.node, first.expected) == ("a", "b", frozenset({"eth0", "eth1"}))
    assert first.ethernet["eth0"] == Count(4, 4)
    assert isinstance(first.ethernet["eth1"], Absent)  # it was not there before
    found = nic_traffic.bytes_by_node([CARDS[0], card(None), *CARDS[2:]], both, HOSTS)
    assert [each.expected for each in found] == [None, {"eth0", "eth1"}]
    assert nic_traffic.bytes_by_node([CARDS[0]] * 2, [both[0]] * 2, ("a", "a")) == [], "two nodes of one name"


def test_a_counter_that_is_set_back_meanwhile_leaves_the_number_without_a_transport() -> None:
    both = [[told(eth0=900 * MIB), told(eth0=3 * MIB)], [told(eth0=0), told(eth0=66 * MIB)]]
    found = operation_traffic(
        "all_reduce", 64 * MIB, nic_traffic.bytes_by_node([card(["eth0"], {})] * 2, both, ("a", "b"))
    )
    assert [(nic.node, nic.sent) for nic in found.nics] == [("a", None), ("b", 66 * MIB)]
    assert "reset" in found.nics[0].why
    with pytest.raises(Unlearned, match="eth0 on a"):
        list(checks.nic_traffic.run(NicTraffic((found,))))


def test_counters_survive_the_way_to_rank_zero() -> None:
    seen = Traffic({"eth0": Count(1, 2), "eth1": Absent("permission denied")}, {"mlx5_0:1": Count(4, 8)})
    assert nic_traffic.unpacked(nic_traffic.packed(seen)) == seen
