"""What NICs, copies and TCP allow, against published runs of machines that were healthy, and of some that were not.

All values are in tests/data/command_values/{network,copies,sockets}.txt.
"""

import pytest

from expect.boxes import A100, ALPS, B200, GB300, H100, HIGH, MEGA, P4DE, PAIR
from ncclprobe.expect import bands, copies, sockets
from ncclprobe.expect.network import Limit, domains, limit
from ncclprobe.expect.sockets import SocketLink
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import replace
from tests.each_row import each_row, known

HEALTHY = {
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


def limit_of(system: NodeSystem, gpus: tuple[int, ...], op: str, node: float | None = None) -> Limit:
    return known(limit(system, Shape(gpus), op, node))


@each_row(("system", "nodes", "op", "busbw", "node"), [*HEALTHY.values(), *SICK.values()], ids=[*HEALTHY, *SICK])
def test_a_sick_run_lies_far_below_healthy(system: NodeSystem, nodes: int, op: str, busbw: float, node: float) -> None:
    found = limit_of(system, (system.gpus,) * nodes, op, node)
    share = busbw / found.value_GBps
    if (system, nodes, op, busbw, node) in SICK.values():
        assert share < 0.6
    else:
        assert share == pytest.approx(1, abs=0.12)
        assert busbw <= found.hard_GBps


def test_one_node_one_nvlink_fabric_sockets_and_unknown_nics_have_no_limit() -> None:
    for system, gpus in ((H100, (8,)), (GB300, (4,) * 16), (replace(H100, network="sockets"), (8, 8))):
        assert limit(system, Shape(gpus), "all_reduce") is None
    assert limit(replace(H100, nics=0, nic_gbps=0.0, network=None), PAIR, "all_reduce") is None
    assert domains(GB300, Shape((4,) * 32)).ranks == 64


SLOTS = {generation: copies.host_copy(generation, 16) for generation in (3, 4, 5)}


def gbit(rate: float) -> SocketLink:
    return SocketLink(rate, "eth0", "reported")


@each_row(
    ("found", "published", "over"),
    [
        *((SLOTS[generation], rate, 1.1) for generation, rate in (
            (3, 12.2), (3, 13.1), (4, 25.9), (4, 26.3), (5, 51), (5, 55.4),
        )),
        (copies.nvlink_copy(A100), 276, 1.02),
        (copies.nvlink_copy(H100), 396, 1.02),
        (copies.p2p_pcie_copy(5, 16), 53, 1.15),
        (copies.p2p_pcie_copy(5, 16, same_socket=False), 39, 1.15),
        (copies.p2p_pcie_copy(5, 16, same_socket=False, p2p=False), 36, 1.15),
        (copies.c2c_copy(2, 100), 193, 1.15),  # two GPUs of one Grace share its link, and that is normal
        *((sockets.nccl("all_reduce", gbit(gbps)), rate, 1.25) for gbps, rate in (
            (100, 4.5), (100, 5.2), (32, 2.4), (10, 0.96), (200, 3.2),
        )),
    ],
)  # fmt: skip
def test_a_published_rate_is_in_the_band(found: Expectation | None, published: float, over: float) -> None:
    band = known(found)
    assert band.why
    assert band.source
    assert band.threshold < band.value
    assert max(band.threshold, 0.5 * band.value) <= published <= over * band.value


@each_row(("gbps", "GBps", "status"), [(1, 0.02, "fail"), (1, 0.1, "unjudged"), (100, 0.2, "unjudged")])
def test_gloo_below_a_third_of_its_interface_fails_and_shared_cores_do_not(
    gbps: float, GBps: float, status: str
) -> None:
    assert bands.once((GBps, GBps), known(sockets.gloo("all_reduce", 64 << 20, gbit(gbps)))).status == status
    for op, nbytes in (("all_reduce", 32 << 20), ("broadcast", 64 << 20)):
        assert known(sockets.gloo(op, nbytes, gbit(gbps))).gross is None
    assert [op for op in OPS if sockets.gloo(op, 1 << 20, gbit(gbps))] == ["all_reduce", "broadcast", "sendrecv"]
    assert {op for op in OPS if not sockets.nccl(op, gbit(gbps))} == {"all_to_all", "gather", "scatter"}


def test_the_kernels_words_for_a_links_speed_are_a_generation() -> None:
    words = {"2.5 GT/s PCIe": 1, "5.0 GT/s PCIe": 2, "8.0 GT/s": 3, "16.0 GT/s PCIe": 4, "32.0 GT/s PCIe": 5}
    words |= {"64.0 GT/s PCIe": 6, "7 GT/s": None, "Unknown": None}  # type: ignore[dict-item]
    assert {text: copies.generation(text) for text in words} == words
    assert [copies.pcie_line_GBps(*slot) for slot in ((4, 16), (4, 0), (7, 16))] == [
        pytest.approx(31.5, 0.01), None, None,
    ]  # fmt: skip
