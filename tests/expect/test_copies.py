"""Copies and TCP: published numbers of healthy machines lie in their bands, those of sick ones below."""

import pytest

from ncclprobe.expect import bands, copies, sockets
from ncclprobe.expect.sockets import SocketInterface, SocketLink
from ncclprobe.expect.system import NodeSystem
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import replace
from tests.each_row import each_row

from .boxes import A100, H100


@each_row(("generation", "GBps"), [(3, 12.2), (3, 13.1), (4, 25.9), (4, 26.3), (5, 51), (5, 55.4)])
def test_a_published_copy_from_the_host_is_in_the_band(generation: int, GBps: float) -> None:
    assert _low(copies.host_copy(generation, 16)) <= GBps <= 1.1 * _value(copies.host_copy(generation, 16))


@each_row(("generation", "GBps"), [(3, 3.8), (4, 12.9), (5, 26)])
def test_half_a_slot_or_the_wrong_numa_node_is_not(generation: int, GBps: float) -> None:
    assert GBps < _low(copies.host_copy(generation, 16))


def test_a_slot_of_x8_carries_half() -> None:
    assert _value(copies.host_copy(4, 8)) == pytest.approx(_value(copies.host_copy(4, 16)) / 2)


def test_no_generation_no_number() -> None:
    assert copies.host_copy(9, 16) is None
    assert copies.host_copy(4, 0) is None
    assert copies.generation("Unknown") is None
    assert copies.slot(17.0) is None


def test_the_kernels_words_and_nccls_count_name_the_same_slot() -> None:
    assert copies.generation("32.0 GT/s PCIe") == 5
    assert copies.slot(48.0) == (5, 16)


def test_two_gpus_of_one_grace_share_its_link_and_that_is_normal() -> None:
    assert _low(copies.c2c_copy(2, 100)) < 193 < _value(copies.c2c_copy(1, 100))
    assert copies.c2c_copy(1, 80) is None


@each_row(("links", "system", "GBps"), [(12, A100, 276), (18, H100, 396)])
def test_a_published_copy_over_nvlink_is_in_the_band(links: int, system: NodeSystem, GBps: float) -> None:
    found = copies.nvlink_copy(replace(system, nvlinks=links))
    assert _low(found) <= GBps <= 1.02 * _value(found)


def test_in_a_mesh_a_pair_has_its_share_of_the_links() -> None:
    raven = replace(A100, gpus=4, domain_gpus=4, fabric="mesh", nvlinks=12)
    assert _value(copies.nvlink_copy(raven)) == pytest.approx(100 * 0.92)
    assert copies.nvlink_copy(replace(A100, nvlinks=0)) is None


@each_row(("same_socket", "p2p", "GBps"), [(True, True, 53), (False, True, 39), (False, False, 36)])
def test_a_published_copy_between_gpus_over_pcie_is_in_the_band(same_socket: bool, p2p: bool, GBps: float) -> None:
    found = copies.p2p_pcie_copy(5, 16, same_socket=same_socket, p2p=p2p)
    assert _low(found) <= GBps <= 1.15 * _value(found)


def test_the_slowest_interface_of_all_nodes_decides() -> None:
    interfaces = [SocketInterface("a", "eth0", 25), SocketInterface("b", "eth1", 10), SocketInterface("c", "eth0", 25)]
    assert sockets.slowest(interfaces) == SocketLink(10, "eth1 of b", "reported")


@each_row(
    "interface",
    [
        SocketInterface("b", "veth1", 10, virtual=True),
        SocketInterface("b", "eth0", None),
        SocketInterface("b", "x", 1, None),
    ],
)
def test_an_interface_whose_speed_is_not_known_leaves_the_whole_unknown(interface: SocketInterface) -> None:
    assert sockets.slowest([SocketInterface("a", "eth0", 25), interface]) is None
    assert sockets.slowest([]) is None


def test_the_norm_of_measured_paths_is_not_the_sick_one() -> None:
    found = sockets.typical([9.0, 9.4, 0.9, 9.1, 9.3, 0.0])
    assert found is not None
    assert found.gbps == pytest.approx(9.1)
    assert sockets.typical([9.0, 0.9]) is None


def test_gloo_over_a_path_at_a_tenth_of_what_the_others_carry_fails_and_a_healthy_one_passes() -> None:
    found = sockets.gloo("all_reduce", 64 << 20, SocketLink(1, "the median of 6 paths", "measured"))
    assert 0.0125 < _low(found) < 0.11
    assert (found or pytest.fail("nothing expected")).worst == "fail"


def test_what_an_interface_reports_of_itself_judges_no_run_of_gloo() -> None:
    found = sockets.gloo("all_reduce", 64 << 20, SocketLink(1, "eth0 of a", "reported"))
    assert (_low(found), _value(found)) == (0.0, pytest.approx(0.11))
    assert found is not None
    assert found.worst == "unjudged"
    assert "eth0 of a reports 1 Gb/s" in found.why


@each_row("op", ["reduce_scatter", "all_gather", "all_to_all", "gather"])
def test_gloos_other_collectives_are_not_held_to_its_all_reduce(op: str) -> None:
    assert sockets.gloo(op, 64 << 20, SocketLink(10, "eth0", "reported")) is None


def test_nothing_is_expected_of_small_messages_over_tcp() -> None:
    assert sockets.gloo("all_reduce", 4096, SocketLink(10, "eth0", "reported")) is None


@each_row(("gbps", "GBps"), [(100, 4.5), (100, 5.2), (32, 2.4), (10, 0.96), (200, 3.2)])
def test_a_published_run_of_nccl_over_tcp_is_within_a_factor_of_two(gbps: float, GBps: float) -> None:
    found = sockets.nccl("all_reduce", SocketLink(gbps, "eth0", "reported"))
    assert 0.5 * _value(found) <= GBps <= 1.25 * _value(found)


def test_an_all_to_all_over_tcp_is_not_judged() -> None:
    assert sockets.nccl("all_to_all", SocketLink(100, "eth0", "reported")) is None


def _low(found: Expectation | None) -> float:
    assert found is not None
    assert found.why
    assert found.source
    return found.threshold


def _value(found: Expectation | None) -> float:
    assert found is not None
    assert found.threshold < found.value
    return found.value


@each_row(("GBps", "status"), [(9.0, "fail"), (30.0, "unjudged")])
def test_a_copy_both_ways_is_held_to_a_third_of_one_way_and_to_nothing_finer(GBps: float, status: str) -> None:
    row = CopyRow(node="n0", rank=0, kind="bidirectional", device="GPU0", nbytes=1 << 28, GBps=GBps, min_GBps=GBps,
                  max_GBps=GBps, samples=7)  # fmt: skip
    slot = copies.host_copy(5, 16)
    assert slot
    assert copies.judged(row, {"host": slot}).status == status
    assert copies.judged(replace(row, concurrent=True), {"host": slot}).status == "unjudged"
    assert copies.judged(replace(row, near=False), {"host": slot}).status == "unjudged"
    assert copies.judged(replace(row, nbytes=1 << 20), {"host": slot}).status == "unjudged"


@each_row(("gbps", "GBps", "status"), [(1, 0.02, "fail"), (1, 0.1, "unjudged"), (100, 0.2, "unjudged")])
def test_gloo_below_a_third_of_what_its_interface_reports_fails_and_shared_cores_do_not(
    gbps: float, GBps: float, status: str
) -> None:
    link = SocketLink(gbps, "eth0 of n0", "reported")
    expected = sockets.gloo("all_reduce", 64 << 20, link)
    assert expected
    assert bands.once((GBps, GBps), expected).status == status
    for op, nbytes in (("all_reduce", 32 << 20), ("broadcast", 64 << 20)):
        small = sockets.gloo(op, nbytes, link)
        assert small
        assert small.gross is None
