"""A box by its parts: what is understood, and that all of it gets a number.

What is assumed of each box, and why one is refused, is kept in tests/data/command_values/boxes.txt.
"""

import pytest

from ncclprobe.engine.expect_target import machine_of
from ncclprobe.expect.composed import composed
from ncclprobe.expect.expected import expectation
from ncclprobe.expect.predict import predict
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.model.ops import OPS
from tests.each_row import each_row, known, some

GIB = 1 << 30
GPUS = ("L40S", "RTX 4090", "5090", "RTX PRO 6000", "A6000", "RTX 6000 Ada", "A40", "A10", "T4", "H100 PCIe")


@each_row(
    ("typed", "gpus", "links", "least", "most"),
    [
        ("4 x V100-SXM2", 4, 6, 110, 130),  # Jean Zay reaches 124
        ("4 x A100-SXM-64GB", 4, 12, 220, 240),  # a mesh, as Leonardo has it
        ("8 x B200", 8, 18, 700, 850),
        ("4 x H200 NVL bridges of 4", 4, 18, 330, 371),
        ("8 x RTX PRO 6000 behind CX8", 8, 0, 41, 50),  # measured, over one socket and two
        ("8 x H200 NVL, bridges of 4", 8, 18, 50, 90),  # 50 between the sockets
        ("8 x RTX PRO 6000, 2 switches, 2 sockets, amd", 8, 0, 20, 24),
        ("8 x RTX PRO 6000, 2 sockets, 8 x CX8 400", 8, 0, 35, 55),  # a NIC, not the GPUs' switch
        ("2 x H100 NVL bridge", 2, 12, 220, 248),
        ("2 x RTX 3090 NVLink bridge", 2, 4, 38, 48),
        ("8 x A6000 bridged", 8, 4, 15, 25),  # pairs; between them the sockets decide
        ("8 x L40S no P2P on 2 sockets", 8, 0, 13, 16),
        ("8 x RTX PRO 6000", 8, 0, 35, 55),  # two Xeons, as in NVIDIA's reference server
        ("8 x RTX 4090", 8, 0, 13, 16),
        ("NVIDIA GB10", 1, 0, 18.9, 23.7),  # two of them
        ("DGX Spark", 1, 0, 18.9, 23.7),
    ],
)
def test_a_box_as_its_owner_types_it(typed: str, gpus: int, links: int, least: float, most: float) -> None:
    box = machine_of(typed, None).system
    assert isinstance(box, NodeSystem)
    assert (box.gpus, box.nvlinks) == (gpus, links)
    found = known(expectation("all_reduce", GIB, Shape((gpus,) if gpus > 1 else (1, 1)), box))
    assert least < found.value < most


def test_a_spark_with_one_of_its_two_ports_fails_and_healthy_ones_do_not() -> None:
    here = machine_of("GB10", None)
    assert isinstance(here.system, NodeSystem)
    for op in ("all_reduce", "all_gather"):
        found = known(expectation(op, GIB, Shape((1, 1)), here.system, machine=here.machine))
        assert found.worst == "fail"
        assert 12.25 < found.threshold < 18.9  # one port; the slowest healthy pair of NVIDIA's dgx-spark-playbooks


@each_row("sockets", [1, 2])
@each_row("p2p", ["P2P", "no P2P"])
@each_row("gpu", GPUS)
def test_every_box_gets_a_number_that_judges_nothing(gpu: str, p2p: str, sockets: int) -> None:
    box = composed(f"8 x {gpu}, {sockets} sockets, {p2p}")
    for op in some(OPS):
        found = known(expectation(op, GIB, Shape((8,)), box))
        assert 0 < found.value <= box.pcie_GBps
        assert found.worst == "unjudged"


@each_row(
    ("text", "seen"),
    [
        ("8 x RTX PRO 6000, 1 socket", 46.4),  # voipmonitor/rtx6kpro, two switches
        ("8 x RTX PRO 6000, Turin", 22.2),  # the same, direct on two EPYC, NCCL's own number of channels
        ("8 x 5090", 28.0),  # NVIDIA/nccl#1639
        ("2 x V100 PCIe 32GB", 11.67),  # microsoft/superbench-results
    ],
)
def test_published_boxes_reach_what_is_expected(text: str, seen: float) -> None:
    box = composed(text)
    found = known(predict(box, Shape((box.gpus,)), "all_reduce", 8 * GIB))
    assert found.busbw_GBps == pytest.approx(seen, rel=0.05)


PARTS: dict[str, dict[str, object]] = {
    "sockets": {"one socket": 1, "two sockets": 2, "dual socket": 2, "four cpus": 4, "on 1 socket": 1,
                "4 per socket": 2, "8 gpus per cpu": 1, "PCIe switches": 1, "behind CX8": 1},
    "processor": {
        **dict.fromkeys(("Rome", "Milan", "Genoa", "Bergamo", "Turin", "EPYC", "Threadripper", "amd"), "amd"),
        **dict.fromkeys(("Skylake", "Cascade Lake", "Ice Lake", "skl"), "skl"), "Grace": "arm", "Broadwell": "bdw",
        **dict.fromkeys(("Sapphire Rapids", "Granite Rapids"), "spr"), "Emerald Rapids": "emr", "power9": "power9",
    },
    "nic_gbps": {"1 x EDR": 100, "1 x hdr": 200, "1 x NDR": 400, "1 x xdr": 800, "2 x 25": 25, "1 x CX-7 400G": 400},
    "network": {"1 x 100GbE": "roce", "1 x 100": "ib", "1 x 100 infiniband": "ib", "1 x 100 efa": "efa",
                "1 x 100 opa": "opa", "1 x 100 roce": "roce", "1 x 100 sockets": "sockets"},
    "gdr": {**{f"1 x 100 {each}": False for each in ("sockets", "tcpx", "tcpxo")},
            **{f"1 x 100 {each}": True for each in ("ib", "roce", "efa", "opa", "slingshot")}},
    "nic_path": {f"NICs at {each}": each for each in ("PIX", "PXB", "PHB", "NODE", "SYS")},
    "nics": {"8 x 100": 8, "2 NICs per GPU x 100": 16, "8 rails x 400": 8, "64 x 100": 64},
    "domain_gpus": {"bridged": 2, "NVLink bridges": 2, "bridges of 4": 4, "NVL2": 2, "NVL4": 4, "4-way nvlink": 4},
    "p2p": {"P2P": True, "no P2P": False}, "nvlinks": {"NVLink bridge": 12, "no NVLink": 0},
}  # fmt: skip


@each_row(("field", "part", "value"), [(field, *row) for field, rows in PARTS.items() for row in rows.items()])
def test_each_word_for_a_part_means_what_its_owner_means(field: str, part: str, value: object) -> None:
    assert getattr(composed(f"8 x H100 NVL, {part}"), field) == value
