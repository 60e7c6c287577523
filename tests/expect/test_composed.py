"""A box by its parts: what is understood, what is assumed, what is refused, and that all of it gets a number."""

import pytest

from ncclprobe.errors import UsageError
from ncclprobe.expect.composed import EXAMPLE, composed, is_composed
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.predict import predict
from ncclprobe.expect.system import Shape
from ncclprobe.ops import OPS

GIB = 1 << 30
GPUS = ("L40S", "RTX 4090", "5090", "RTX PRO 6000", "A6000", "RTX 6000 Ada", "A40", "A10", "T4", "H100 PCIe")


def test_the_example_says_every_part() -> None:
    box = composed(EXAMPLE)
    assert (box.gpu, box.gpus, box.sockets, box.p2p) == ("NVIDIA L40S", 8, 2, False)
    assert (box.nics, box.nic_gbps, box.network, box.gdr) == (4, 200, "roce", True)
    assert "P2P" not in box.source


def test_what_is_not_said_is_usual_and_named() -> None:
    box = composed("8x rtx 4090")
    assert (box.sockets, box.p2p, box.nvlinks, box.nics) == (2, False, 0, 0)
    assert "assumed: two sockets, processors of AMD, no P2P" in box.source
    assert composed("2 x A6000").nvlinks == 0
    assert composed("2 x A6000, NVLink bridges").fabric == "pairs"
    assert composed("8 x H100 80GB HBM3").nvls
    assert "NVLinks as on a DGX-1" in composed("8 x V100-SXM2").source
    assert "NVLink" not in composed("8 x V100-SXM2, no NVLink").source
    assert "NICs below the GPUs' PCIe switches" in composed("8 x H200, 8 NICs x 400").source
    assert composed("8 x H200, 8 NICs x 400, NICs at PHB").nic_path == "PHB"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("H200", "NVIDIA H200"),
        ("H200 NVL", "NVIDIA H200 NVL"),
        ("H100 SXM", "NVIDIA H100 80GB HBM3"),
        ("A100 80GB SXM", "NVIDIA A100-SXM4-80GB"),
        ("GB10", "NVIDIA GB10"),
        ("RTX 6000D", "NVIDIA RTX 6000D"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("V100-SXM2", "Tesla V100-SXM2-16GB"),  # and -32GB, which differs in memory alone
        ("GH200", "NVIDIA GH200 120GB"),
    ],
)
def test_a_gpu_goes_by_the_name_that_nvidia_smi_prints_or_by_words_of_it(said: str, meant: str) -> None:
    assert composed(f"2 x {said}").gpu == meant


def test_bridges_of_four_carry_four_gpus_and_no_more() -> None:
    four, eight = (composed(f"{count} x H200 NVL, NVLink bridges of 4") for count in (4, 8))
    inside, across = (predict(box, Shape((box.gpus,)), "all_reduce", GIB) for box in (four, eight))
    half = predict(eight, Shape((4,)), "all_reduce", GIB)
    assert inside is not None
    assert across is not None
    assert half is not None
    assert (inside.bottleneck, half.busbw_GBps) == ("NVLink", inside.busbw_GBps)
    assert across.busbw_GBps < inside.busbw_GBps / 4


@pytest.mark.parametrize("sockets", [1, 2])
@pytest.mark.parametrize("p2p", ["P2P", "no P2P"])
@pytest.mark.parametrize("gpu", GPUS)
def test_every_box_gets_a_number_that_judges_nothing(gpu: str, p2p: str, sockets: int) -> None:
    box = composed(f"8 x {gpu}, {sockets} sockets, {p2p}")
    for op in OPS:
        found = expectation(op, GIB, Shape((8,)), box)
        assert found is not None
        assert 0 < found.value <= box.pcie_GBps
        assert found.worst == "unjudged"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("8 x RTX PRO 6000, 1 socket", 46.4),  # voipmonitor/rtx6kpro, two switches
        ("8 x RTX PRO 6000", 22.2),  # the same, direct on two EPYC, NCCL's own number of channels
        ("8 x 5090", 28.0),  # NVIDIA/nccl#1639
        ("4 x V100-SXM2", 123.9),  # Jean Zay, bigscience-workshop/bigscience experiments/bandwidth
        ("2 x V100 PCIe 32GB", 11.67),  # microsoft/superbench-results
    ],
)
def test_published_boxes_reach_what_is_expected(text: str, seen: float) -> None:
    box = composed(text)
    found = predict(box, Shape((box.gpus,)), "all_reduce", 8 * GIB)
    assert found is not None
    assert found.busbw_GBps == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 x L40S", "1 to 16 GPUs"),
        ("99 x L40S", "1 to 16 GPUs"),
        ("8 x Radeon", "no GPU is called"),
        ("8 x RTX 40", "no GPU is called"),
        ("8 x A100 80GB", "may be NVIDIA A100 80GB PCIe or NVIDIA A100-SXM4-80GB"),
        ("6 x H200 NVL, NVLink bridges of 4", "do not divide"),
        ("8 x H100", "may be"),
        ("8 x L40S, liquid cooled", "no part of a box"),
        ("8 x L40S, 4 NICs x 200 token-ring", "no part of a box"),
        ("8 x L40S, NVLink bridges", "no NVLink bridge fits 2 GPUs"),
    ],
)
def test_what_is_not_understood_is_refused_with_an_example(text: str, why: str) -> None:
    assert is_composed(text)
    with pytest.raises(UsageError, match=why):
        composed(text)


def test_a_name_of_a_type_is_no_box() -> None:
    assert not is_composed("dgx-h100")
    assert not is_composed("p5.48xlarge")
