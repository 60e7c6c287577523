"""What is expected of one collective: whose number is taken, how low it may be, and what decides it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.expect.expected import expectation
from ncclprobe.expect.predict import CORRECTIONS, LATEST, Correction, corrected_us, predict, start_us, where
from ncclprobe.expect.system import Network, NodeSystem, Shape
from ncclprobe.expect.tables import machines
from ncclprobe.model.measurement import Band, Expectation
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import replace
from tests.each_row import each_row

from .test_network import A100, B200, GB300, H100, MEGA

NODE = Shape((8,))
PAIR = Shape((8, 8))
GIB = 1 << 30
PCIE = replace(A100, name="2x PCIe", gpus=2, nvlinks=0, nvlink_GBps=0.0, fabric="none", domain_gpus=0)
TCP = replace(H100, name="TCP", network="sockets", nics=1, nic_gbps=100, gdr=False)


@each_row(
    ("system", "shape", "op", "busbw"),
    [
        (A100, NODE, "all_reduce", 235),
        (H100, NODE, "all_reduce", 480),
        (H100, NODE, "all_gather", 362),
        (B200, NODE, "all_reduce", 840),
        (H100, Shape((8,) * 4), "all_reduce", 366),
        (MEGA, PAIR, "all_gather", 188),
        (A100, PAIR, "all_reduce", 187),
        (H100, NODE, "all_to_all", 348),
    ],
)
def test_a_published_peak_of_a_healthy_machine_is_expected_and_does_not_fail(
    system: NodeSystem, shape: Shape, op: str, busbw: float
) -> None:
    found, band = predict(system, shape, op, 8 * GIB), expectation(op, 8 * GIB, shape, system)
    assert found is not None
    assert band is not None
    assert band.threshold < busbw
    assert busbw / found.busbw_GBps == pytest.approx(1, abs=0.12)


def test_half_the_nvlinks_fail() -> None:
    whole = expectation("all_gather", 8 * GIB, NODE, A100)
    half = predict(replace(A100, nvlinks=6), NODE, "all_gather", 8 * GIB)
    assert whole is not None
    assert half is not None
    assert half.busbw_GBps < whole.threshold
    assert whole.worst == "fail"


def test_a_published_number_of_several_nodes_is_used_whatever_algorithm_reaches_it() -> None:
    machine = machines.find("a3-megagpu-8g")
    found = expectation("all_reduce", 8 * GIB, PAIR, machine.system(), machine=machine)
    assert found is not None
    assert (found.basis, found.value) == ("published", 339.0)


def test_many_nodes_at_a_size_where_latency_has_a_part_warn_at_most() -> None:
    few, many = (expectation("all_gather", GIB, Shape((8,) * nodes), H100) for nodes in (4, 128))
    assert few is not None
    assert many is not None
    assert (few.worst, many.worst) == ("fail", "warn")


def test_a_published_number_too_loosely_known_takes_the_threshold_of_the_model() -> None:
    machine = machines.find("p5.48xlarge")
    found = expectation("all_reduce", 8 * GIB, PAIR, machine.system(), machine=machine)
    alone = expectation("all_reduce", 8 * GIB, PAIR, machine.system())
    assert found is not None
    assert alone is not None
    assert (found.basis, found.value) == ("published", 479.0)
    assert found.threshold == pytest.approx(alone.threshold, rel=0.02)
    assert "the model expects" in found.known


USERS = Band("all_reduce", GIB, GIB, Expectation(300, 290, "GB/s", "user", "acceptance", "rack 7"))
SITES = Band("all_reduce", GIB, 8 * GIB, Expectation(310, 300, "GB/s", "baseline", "ten runs", "site"))


def test_the_user_comes_before_the_site_before_what_is_published_before_the_model() -> None:
    dgx = machines.find("dgx-h100")
    bases = []
    for given_bands, machine in (((USERS, SITES), dgx), ((SITES,), dgx), ((), dgx), ((), None)):
        found = expectation("all_reduce", GIB, NODE, H100, machine=machine, given=given_bands)
        assert found is not None
        bases.append(found.basis)
    assert bases == ["user", "baseline", "published", "model"]


def test_nobody_who_knows_nothing_is_nobody_who_fails() -> None:
    assert expectation("all_reduce", GIB, NODE, None) is None
    assert expectation("all_reduce", GIB, Shape((1,)), H100) is None
    assert expectation("nonsense", GIB, NODE, H100) is None
    assert expectation("all_reduce", 0, NODE, H100) is None
    nicless = replace(H100, nics=0, nic_gbps=0.0, network=None)
    assert expectation("all_reduce", GIB, PAIR, nicless) is None


def test_a_machine_that_nobody_named_gets_a_band_from_its_links() -> None:
    found = expectation("all_reduce", GIB, Shape((2,)), PCIE)
    assert found is not None
    assert found.basis == "model"
    assert "PCIe that NCCL counts as 24 GB/s" in found.why


def test_nccl_over_tcp_is_expected_by_the_link_and_only_when_large_and_judges_nothing() -> None:
    found = expectation("all_reduce", GIB, PAIR, TCP)
    assert found is not None
    assert found.basis == "datasheet"
    assert 2 <= found.value <= 6
    assert found.worst == "unjudged"
    assert expectation("all_reduce", 1024, PAIR, TCP) is None


def test_small_messages_are_judged_by_time_and_large_ones_by_bandwidth() -> None:
    small, large = (predict(H100, NODE, "all_reduce", nbytes) for nbytes in (64, 8 * GIB))
    assert small is not None
    assert large is not None
    assert (small.judged_by, large.judged_by) == ("time", "bandwidth")
    assert "judged by time" in small.why
    assert small.bottleneck in ("launch", "latency")
    assert large.bottleneck == "NVLink"


@each_row(
    ("ports", "gbps", "network", "version", "rule", "busbw"),
    [
        (16, 100, "roce", (2, 14, 3), "Ring", 180.1),
        (16, 100, "roce", (2, 29, 3), "Ring", 189.6),
        (8, 200, "ib", (2, 30, 7), "Ring", 187.2),
        (4, 100, "efa", (2, 30, 7), "Tree", 78.3),
    ],
)
def test_two_nodes_of_a100_take_what_nccl_s_model_chooses(
    ports: int, gbps: float, network: Network, version: tuple[int, int, int], rule: str, busbw: float
) -> None:
    found = predict(replace(A100, nics=ports, nic_gbps=gbps, network=network), PAIR, "all_reduce", 8 * GIB, version)
    assert found is not None
    assert found.algorithm == rule
    assert found.busbw_GBps == pytest.approx(busbw, rel=0.09)


def test_a_rack_of_blackwell_is_as_fast_by_an_old_release_as_by_a_new_one() -> None:
    rack = replace(H100, compute_capability=100, gpus=4, domain_gpus=72, nvlink_GBps=40.1)
    old, new = (predict(rack, Shape((4,) * 18), "all_reduce", 8 * GIB, each) for each in ((2, 26, 2), (2, 28, 9)))
    assert old is not None
    assert new is not None
    assert old.busbw_GBps == pytest.approx(new.busbw_GBps, rel=0.01)


def test_the_bottleneck_between_nodes_is_the_nic_until_nvlink_is() -> None:
    tuned = predict(A100, Shape((8,) * 4), "all_reduce", 8 * GIB)
    held = predict(H100, PAIR, "all_reduce", 8 * GIB)
    assert tuned is not None
    assert held is not None
    assert (tuned.bottleneck, held.bottleneck) == ("NIC", "NVLink")


def test_bus_bandwidth_above_the_wire_is_said_of_nvls_and_not_of_a_ring() -> None:
    switch, ring = (predict(H100, NODE, "all_reduce", 8 * GIB, algorithm=algorithm) for algorithm in (None, "Ring"))
    assert switch is not None
    assert ring is not None
    assert switch.above_the_wire
    assert not ring.above_the_wire
    assert ring.algorithm == "Ring"


def test_two_nodes_held_to_rings_stay_below_their_nics() -> None:
    free, ring = (predict(MEGA, PAIR, "all_reduce", 8 * GIB, algorithm=algorithm) for algorithm in (None, "Ring"))
    assert free is not None
    assert ring is not None
    assert ring.busbw_GBps < 200 < free.busbw_GBps


@each_row("name", sorted(machines.table()))
def test_every_machine_type_expects_something_of_itself_or_has_one_gpu(name: str) -> None:
    machine = machines.table()[name]
    system = machine.system()
    shape = Shape((system.gpus,))
    if shape.ranks < 2:
        return
    found = expectation("all_reduce", GIB, shape, system, machine=machine)
    assert found is not None
    assert 0 <= found.threshold <= found.value
    assert (found.threshold == 0) == (found.worst == "unjudged")
    assert found.known
    assert found.why
    assert found.source


@given(
    st.sampled_from([H100, A100, B200, MEGA, GB300, PCIE]),
    st.lists(st.integers(1, 8), min_size=1, max_size=12),
    st.sampled_from(sorted(OPS)),
    st.integers(1, 16 * GIB),
)
def test_whatever_is_expected_is_positive_and_its_threshold_below_it_or_missing(
    system: NodeSystem, gpus: list[int], op: str, nbytes: int
) -> None:
    shape = Shape(tuple(min(each, system.gpus) for each in gpus))
    found = expectation(op, nbytes, shape, system)
    assert found is None or 0 <= found.threshold < found.value < 1e5
    assert found is None or (found.threshold == 0) == (found.worst == "unjudged")


def test_the_time_never_falls_as_a_message_grows_by_four() -> None:
    for system, shape in ((H100, NODE), (A100, NODE), (H100, Shape((8,) * 4)), (PCIE, Shape((2,)))):
        found = [predict(system, shape, "all_reduce", 8 << step) for step in range(0, 30, 2)]
        times = [each.time_us for each in found if each]
        assert len(times) == len(found)
        assert all(now >= 0.97 * before for before, now in pairwise(times))


def test_no_correction_is_the_model_itself() -> None:
    assert corrected_us(10, 90, Correction()) == 100
    assert corrected_us(10, 90, Correction(2, 1, 0.5)) == pytest.approx(20 + 90 + 0.5 * (20 * 90) ** 0.5)
    assert corrected_us(10, 90, Correction(filling=1), start=30) == pytest.approx(40 + 90 + 60)


def test_a_call_waits_as_its_path_makes_it_wait() -> None:
    assert start_us("nvlink ampere") > start_us("nvlink hopper"), "a small call takes 35 us on 8 A100, 15 on 8 H100"
    assert start_us("tcpx") > start_us("tcpxo") > start_us("ib") > start_us("pcie") > 0
    assert start_us("nvlink blackwell") == start_us("nvlink"), "a class that has none of its own is as its kind"
    assert start_us("rdma pairs") == start_us("rdma")


def test_operations_of_one_machine_wait_alike() -> None:
    calls = [predict(A100, NODE, op, 1024) for op in ("all_reduce", "broadcast", "all_to_all", "all_gather")]
    times = [call.time_us for call in calls if call]
    assert len(times) == 4
    assert max(times) < 1.6 * min(times)


def test_every_class_has_few_factors_that_are_not_far_from_the_model() -> None:
    for factors in CORRECTIONS.values():
        assert 0.5 <= factors.latency <= 4
        assert 0.7 <= factors.transfer <= 2
        assert 0 <= factors.filling <= 2
    assert where(B200, NODE, "NVLS", LATEST, crosses_network=False) == "nvls-8"
    assert where(GB300, Shape((4,) * 16), "NVLS", LATEST, crosses_network=False) == "nvls"
    assert where(B200, PAIR, "NVLSTree", LATEST, crosses_network=True) == "network trees"
    assert where(B200, PAIR, "Ring", LATEST, crosses_network=True) == "network"
    assert where(PCIE, Shape((2,)), "Ring", LATEST, crosses_network=False) == "pcie"
    assert where(replace(PCIE, gpus=8), NODE, "Ring", LATEST, crosses_network=False) == "pcie"
    assert where(replace(PCIE, p2p=False), Shape((2,)), "Ring", LATEST, crosses_network=False) == "host"


def test_slingshot_on_a100_is_not_expected_at_graces_share() -> None:
    shares = [
        found.busbw_GBps / (system.nics * system.nic_gbps / 8)
        for system in (replace(A100, network="slingshot"), replace(H100, network="slingshot", nvls=False))
        if (found := predict(system, Shape((8,) * 4), "all_gather", 8 * GIB))
    ]
    assert shares == pytest.approx([0.65, 0.92], rel=0.05)
