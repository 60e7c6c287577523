"""Copies and TCP: published numbers of healthy machines lie in their bands, those of sick ones below.

All values are kept in tests/data/command_values/copies.txt and sockets.txt.
"""

from ncclprobe.expect import bands, copies, sockets
from ncclprobe.expect.sockets import SocketLink
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.values import replace
from tests.each_row import each_row, known

from .boxes import A100, H100

RAVEN = replace(A100, gpus=4, domain_gpus=4, fabric="mesh", nvlinks=12)
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
def test_gloo_below_a_third_of_what_its_interface_reports_fails_and_shared_cores_do_not(
    gbps: float, GBps: float, status: str
) -> None:
    assert bands.once((GBps, GBps), known(sockets.gloo("all_reduce", 64 << 20, gbit(gbps)))).status == status
    for op, nbytes in (("all_reduce", 32 << 20), ("broadcast", 64 << 20)):
        assert known(sockets.gloo(op, nbytes, gbit(gbps))).gross is None
