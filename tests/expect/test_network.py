"""What NICs allow, against published runs of clusters that were healthy, and of some that were not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.expect.network import FRACTIONS, domains, limit
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.model.values import replace
from tests.each_row import each_row, some

H100 = NodeSystem(
    name="8x H100",
    gpu="NVIDIA H100 80GB HBM3",
    compute_capability=90,
    gpus=8,
    nvlinks=18,
    nvlink_GBps=20.6,
    fabric="nvswitch",
    domain_gpus=8,
    nvls=True,
    pcie_GBps=48,
    nics=8,
    nic_gbps=400,
    network="ib",
    gdr=True,
    source="test",
)
B200 = replace(H100, name="8x B200", gpu="NVIDIA B200", compute_capability=100, nvlink_GBps=40.1)
A100 = replace(
    H100,
    name="8x A100",
    gpu="NVIDIA A100-SXM4-40GB",
    compute_capability=80,
    nvlinks=12,
    nvlink_GBps=20.0,
    nvls=False,
    pcie_GBps=24,
    nic_gbps=200,
)
MEGA = replace(H100, name="A3 Mega", nic_gbps=200, network="tcpxo")
HIGH = replace(H100, name="A3 High", nics=4, nic_gbps=200, network="tcpx")
P4DE = replace(A100, name="p4de", nics=4, nic_gbps=100, network="efa")
ALPS = replace(H100, name="Alps", gpus=4, domain_gpus=4, nics=4, nic_gbps=200, network="slingshot")
GB300 = replace(B200, name="GB300", gpus=4, domain_gpus=64, nics=4, nic_gbps=800, pcie_GBps=96)

PUBLISHED = {
    "nccl-tests#309, 4x8 H100": (H100, 4, "all_reduce", 365.8, 480),
    "nccl-tests#309, 2x8 H100 is held by NVLink": (H100, 2, "all_reduce", 470, 480),
    "Lambda, 2x8 B200": (B200, 2, "all_reduce", 702.9, 840),
    "AWS, 4x8 B200": (replace(B200, network="efa"), 4, "all_reduce", 381.8, 840),
    "Azure, 2x8 A100": (A100, 2, "all_gather", 187.2, 235),
    "Google, A3 Mega all-gather": (MEGA, 2, "all_gather", 188.6, 361),
    "Google, A3 Mega two-node tree": (MEGA, 2, "all_reduce", 338.8, 480),
    "Google, A3 High": (HIGH, 2, "all_gather", 71, 361),
    "AWS, p4de with the plugin's tuner": (P4DE, 2, "all_reduce", 78.3, 235),
    "Alps, 64 nodes": (ALPS, 64, "all_reduce", 92.5, 360),
    "Alps, two nodes": (ALPS, 2, "all_reduce", 158, 360),
    "xxrjun, 2x8 H100 alltoall": (H100, 2, "all_to_all", 91.9, 348),
    "xxrjun, 10x8 H100 alltoall": (H100, 10, "all_to_all", 50.5, 348),
}
SICK = {
    "A3 Mega without TCPXO": (MEGA, 2, "all_reduce", 4, 480),
    "4x200G A100 by one HCA with ACS": (replace(A100, nics=4), 2, "all_reduce", 9.84, 235),
    "OCI A100 with 16 HCAs listed to an old NCCL": (replace(A100, network="roce"), 2, "all_reduce", 71.6, 235),
    "4-NIC H200 passed through to a VM": (replace(H100, nics=4), 2, "all_reduce", 184.3, 480),
}


@each_row("name", PUBLISHED)
def test_a_healthy_published_run_lies_near_what_is_normal_and_below_the_limit(name: str) -> None:
    system, nodes, op, busbw, node = PUBLISHED[name]
    found = limit(system, Shape((system.gpus,) * nodes), op, node)
    assert found is not None
    assert busbw <= found.hard_GBps
    assert busbw / found.value_GBps == pytest.approx(1, abs=0.12)


@each_row("name", SICK)
def test_a_sick_published_run_lies_far_below_what_is_normal(name: str) -> None:
    system, nodes, op, busbw, node = SICK[name]
    found = limit(system, Shape((system.gpus,) * nodes), op, node)
    assert found is not None
    assert busbw < 0.6 * found.value_GBps


def test_one_node_and_one_nvlink_fabric_have_no_network() -> None:
    assert limit(H100, Shape((8,)), "all_reduce") is None
    assert limit(GB300, Shape((4,) * 16), "all_reduce") is None
    assert domains(GB300, Shape((4,) * 32)).ranks == 64


@each_row(("racks", "busbw"), [(2, 738), (20, 405 * 930 / 834)])
def test_several_racks_reach_a_share_of_one_rack(racks: int, busbw: float) -> None:
    shape = Shape((4,) * 16 * racks)
    found = limit(GB300, shape, "all_reduce", 930)
    assert found is not None
    assert found.rule == "racks"
    assert busbw / found.value_GBps == pytest.approx(1, abs=0.08)
    exchange = limit(replace(GB300, nics=8, nic_gbps=400), shape, "all_to_all", 660)
    assert exchange is not None
    assert exchange.rule == "all to all", "pairs are not a share of what a rack reduces"


def test_what_a_gb300_sends_is_held_by_the_slot_of_its_nic() -> None:
    lone = replace(GB300, gpus=1, domain_gpus=1, nics=1, pcie_GBps=170, processor="arm")
    for nics, seen in ((1, 56), (2, 112)):
        found = limit(replace(lone, nics=nics), Shape((1, 1)), "all_reduce")
        assert found is not None
        assert found.value_GBps == pytest.approx(seen)


def test_a_rank_that_sends_to_the_next_fills_its_nic() -> None:
    found = limit(replace(ALPS, gpus=1, domain_gpus=1, nics=1), Shape((1,) * 4), "sendrecv")
    assert found is not None
    assert found.value_GBps == pytest.approx(24.2, rel=0.06)


def test_nothing_is_expected_of_nics_that_nobody_knows() -> None:
    assert limit(replace(H100, nics=0, nic_gbps=0.0, network=None), Shape((8, 8)), "all_reduce") is None


def test_an_unknown_fabric_still_gets_a_number_and_says_how_little_it_is_worth() -> None:
    found = limit(replace(H100, network=None), Shape((8,) * 4), "all_reduce")
    assert found is not None
    assert found.confidence == "low"
    assert found.value_GBps == pytest.approx(0.85 * 400)


@each_row(("gbps", "slot", "aligned", "seen"), [(100, 12, 11.35, 8.8), (100, 12, 11.35, 6.04), (400, 48, 46, 25)])
def test_without_gpudirect_the_host_is_in_the_way(gbps: float, slot: float, aligned: float, seen: float) -> None:
    lone = replace(A100, gpus=1, nics=1, nic_gbps=gbps, domain_gpus=1, pcie_GBps=slot)
    direct, through_host = (limit(replace(lone, gdr=gdr), Shape((1, 1)), "all_gather") for gdr in (True, False))
    assert direct is not None
    assert through_host is not None
    assert 0.9 * direct.value_GBps <= aligned
    assert 0.6 * through_host.value_GBps <= seen <= 1.2 * through_host.value_GBps
    assert through_host.value_GBps < 0.9 * aligned
    assert "GPUDirect" in through_host.why


def test_a_slot_of_four_times_the_nic_hides_the_way_through_the_host_and_one_memory_has_none() -> None:
    lone = replace(A100, gpus=1, nics=1, nic_gbps=100, domain_gpus=1, pcie_GBps=48, gdr=False)
    spark = replace(lone, compute_capability=121, nics=2, pcie_GBps=12, network="roce")
    seen = (12.4, 22.9)  # two g7e.8xlarge over EFA, two Dell Pro Max GB10: public GitHub files 51806320406, 62349863523
    for system, reached in zip((lone, spark), seen, strict=True):
        found = limit(system, Shape((1, 1)), "all_gather")
        assert found is not None
        assert found.value_GBps == pytest.approx(reached, rel=0.1)


def test_the_node_with_the_fewest_gpus_sets_the_pace() -> None:
    even, uneven = (limit(H100, Shape(gpus), "all_gather") for gpus in ((8, 8, 8), (8, 8, 4)))
    assert even is not None
    assert uneven is not None
    assert uneven.value_GBps == pytest.approx(even.value_GBps / 2)


def test_a_slot_carries_no_more_than_itself() -> None:
    slow = limit(replace(H100, pcie_GBps=24), Shape((8,) * 4), "all_gather")
    assert slow is not None
    assert slow.value_GBps == pytest.approx(8 * 24 * 1.1), "what a slot carries is payload already"


def test_the_first_efa_reaches_less_of_its_rate_than_the_later_ones() -> None:
    old, new = (limit(replace(each, network="efa"), Shape((8,) * 4), "all_gather") for each in (A100, B200))
    assert old is not None
    assert new is not None
    assert (old.value_GBps / old.hard_GBps, new.value_GBps / new.hard_GBps) == pytest.approx((0.705, 0.728), abs=0.001)


def test_every_fraction_is_a_share_and_has_a_source() -> None:
    for fraction in some(FRACTIONS.values()):
        assert 0 < fraction.value < 1
        assert fraction.source


@given(
    st.sampled_from([H100, A100, MEGA, HIGH, P4DE, ALPS, GB300, replace(H100, network=None, gdr=False)]),
    st.lists(st.integers(1, 4), min_size=2, max_size=40),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv", "gather"]),
)
def test_what_is_normal_is_below_the_hard_limit(system: NodeSystem, gpus: list[int], op: str) -> None:
    found = limit(system, Shape(tuple(gpus)), op)
    if found is not None:
        assert 0 < found.value_GBps <= found.hard_GBps
