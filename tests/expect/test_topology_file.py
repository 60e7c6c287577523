"""A machine by its topology alone: NCCL's XML and nvidia-smi's matrix give the links that the machine has."""

import contextlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expect.nccl_machines import Topology, cube, mesh, none, switched
from expect.test_nccl_vectors import FOLDER
from ncclprobe.commands import expect
from ncclprobe.expect.predict import predict
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.expect.topology_text import system_in
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row, known

ETHERNET = Topology("h100", 90, 8, "spr", switched(18), nodes=2, nics=8).xml()
H100 = ETHERNET.replace('class="0x020000"', 'class="0x020700"')
CUBE = Topology("v100", 70, 8, "bdw", cube, below=2, pcie=3, nics=4, nic_gbps=100).xml()
L40S = Topology("l40s", 89, 8, "spr", none, below=4, pcie=4, nics=2).xml()
SMALL = Topology("h100", 90, 2, "spr", switched(18), nics=2).xml()
TRAY = Topology("tray", 90, 4, "arm", switched(18), nics=4).xml()
TRAYS = TRAY.replace("<cpu ", '<cpu host_hash="0xa" ').replace(
    "</system>", TRAY[TRAY.index("<cpu ") :].replace("<cpu ", '<cpu host_hash="0xb" ')
)  # fmt: skip
BARE = re.sub(r"(?s)<(gpu|nic)\b.*?</\1>", "", SMALL)
OWN = Topology("a100", 80, 4, "amd", lambda number, gpus: {number: 12}, sockets=4).xml()
NETS = "".join(
    f'<net name="{name}" dev="{at}" port="0" speed="{speed}"/>'
    for at, (name, speed) in enumerate(
        [("eno1", 1000), *((name, 10000) for name in ("docker0", "veth01", "cali01", "tunl0", "br-1"))]
    )
)
DESKTOP = Topology("rtx4090", 89, 1, "skl", none, sockets=1, below=0).xml()
VIRTUAL = DESKTOP.replace("</cpu>", f'<nic>{NETS}<net name="eno1" dev="0" port="0" speed="1000"/></nic></cpu>')
GRACE = Topology("gh200", 90, 4, "arm", mesh(6), sockets=4, below=0, nics=4).xml()
C2C = GRACE.replace("</gpu>", '<c2c bw="400000" count="1"/></gpu>')
MATRIX = """        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    PIX     0-47    0               N/A
GPU1    NV18     X      SYS     48-95   1               N/A
NIC0    PIX     SYS      X

Legend:
  X = Self

NIC Legend:
  NIC0: mlx5_0
"""
WORDS = [["X" if one == two else "NODE" if one // 4 == two // 4 else "SYS" for two in range(8)] for one in range(8)]
LINES = [f"GPU{n} {' '.join(row)} {48 * (n // 4)}-{48 * (n // 4) + 47} {n // 4} N/A" for n, row in enumerate(WORDS)]
HEADER = " ".join([*(f"GPU{n}" for n in range(8)), "CPU Affinity NUMA Affinity GPU NUMA ID"])
PORT = '<pci busid="0000:01:00.0" class="0x060400">'
CARDS = "\t" + "\n".join([HEADER, *LINES]).replace(" ", "\t")


def matrix(link: str, nic: str) -> str:
    rows = [f"GPU0\tX\t{link}\t{nic}\t0-7", f"GPU1\t{link}\tX\t{nic}\t0-7", f"mlx5_0\t{nic}\t{nic}\tX", ""]
    return "\n".join(["\tGPU0\tGPU1\tmlx5_0\tCPU Affinity", *rows])


def read(text: str, gpu: str | None = None, rate: float | None = None, *, network: bool = True) -> NodeSystem:
    return system_in(text, "topo", gpu, rate, network=network)


ASSUMED = "slots and P2P as the GPU has them, AMD CPUs"
INTEL = 'vendor="GenuineIntel" familyid="6" modelid="143"'
XML: dict[str, tuple[str, str | None, float | None]] = {
    "InfiniBand": (H100, None, None), "Ethernet": (ETHERNET, None, None),
    "EFA": (ETHERNET.replace('vendor="0x15b3"', 'vendor="0x1d0f"'), None, None),
    "interfaces": (H100.replace("mlx5_", "eth"), None, None),
    "no GPUDirect": (H100.replace('6" gdr="1"', '6" gdr="0"'), None, None),
    "hosts of one NVLink fabric are one domain": (TRAYS, None, None), "without C2C": (GRACE, "GH200", None),
    "with C2C": (C2C, "GH200", None), "a cloud's file without GPUs and speeds": (BARE, "H100 SXM", 400),
    "such a file of cards": (BARE, "H100 PCIe", 200), "no P2P": (L40S, "RTX 4090", None),
    "interfaces without a wire, and repeated ones": (VIRTUAL, "RTX 4090", None),
    "power9": (SMALL.replace('arch="x86_64"', 'arch="ppc64"'), None, None),
    "unknown architecture": (SMALL.replace('arch="x86_64"', 'arch="riscv"'), None, None),
    "unknown vendor": (SMALL.replace('vendor="GenuineIntel"', 'vendor="x"'), None, None),
    "yongfeng": (SMALL.replace(INTEL, 'vendor="CentaurHauls" familyid="7" modelid="91"'), None, None),
    "zhaoxin": (SMALL.replace(INTEL, 'vendor="Shanghai" familyid="7" modelid="59"'), None, None),
    **{
        f"model {each}": (SMALL.replace('"143"', f'"{each}"'), None, None) for each in (79, 85, 106, 142, 143, 206, 207)
    },
    "a matrix": (MATRIX, "H200", 400),
    **{
        name: (MATRIX.replace("mlx5_0", name), "H200", 400)
        for name in ("rocep145s0", "bnxt_re0", "rdmap16s0", "hfi1_0", "cxi0")
    },
    **{path: (matrix("NV18", path), "H200", 400) for path in ("PIX", "PXB", "PHB", "NODE", "SYS")},
}  # fmt: skip
"""Files with the GPU and the rate that their users give; their machines are in tests/data/command_values/xml.txt."""


def test_what_a_topology_shows_is_taken_and_what_it_does_not_is_assumed_and_said() -> None:
    found = {name: read(*each) for name, each in XML.items()}
    networks = {"InfiniBand": "ib", "Ethernet": "roce", "EFA": "efa", "interfaces": "sockets", "cxi0": "slingshot"}
    assert {name: found[name].network for name in networks} == networks
    direct = ("InfiniBand", "interfaces", "no GPUDirect", "PXB", "PHB", "SYS")
    assert [found[name].gdr for name in direct] == [True, False, False, True, False, False]
    trays = found["hosts of one NVLink fabric are one domain"]
    assert (trays.gpus, trays.domain_gpus, trays.nics, trays.processor) == (4, 8, 4, "arm")
    assert found["with C2C"].pcie_GBps == 400
    assert found["a matrix"].source == f"topo; assumed: {ASSUMED}, GPUDirect RDMA, InfiniBand"
    assert found["rocep145s0"].source == f"topo; assumed: {ASSUMED}, GPUDirect RDMA"
    assert found["PHB"].source == f"topo; assumed: {ASSUMED}, InfiniBand"


@each_row(
    ("text", "product", "name"),
    [(H100, None, "azure-nd96isr-h100-v5"), (CUBE, None, "dgx-1v"), (L40S, "L40S", "pcie-8xl40s-2switch-spr")],
    ids=["nvswitch", "cube mesh", "two sockets"],
)
def test_the_xml_gives_the_links_of_which_nccls_own_search_is_known(text: str, product: str, name: str) -> None:
    wanted = json.loads((FOLDER / "systems.json").read_text(encoding="utf-8"))[name]["system"]
    found = read(text, product)
    assert {key: getattr(found, key) for key in wanted if key != "network"} | {"network": "ib"} == wanted


def test_of_one_node_nothing_of_the_network_is_assumed_and_some_links_lead_nowhere() -> None:
    bridged = read(MATRIX.replace("NV18", "NV12"), "H100 NVL", network=False)
    assert (bridged.fabric, bridged.nvlinks, bridged.nvls, bridged.nics) == ("pairs", 12, False, 1)
    assert bridged.source == f"topo; assumed: {ASSUMED}"
    cards = read(CARDS, "RTX PRO 6000", network=False)
    seen = known(predict(cards, Shape((8,)), "all_reduce", 8 << 30))
    assert seen.busbw_GBps == pytest.approx(22.2, rel=0.05)  # as '8 x RTX PRO 6000'
    own = read(OWN, "A100 80GB PCIe", network=False)
    assert (own.fabric, own.nvlinks, own.sockets) == ("none", 0, 4)


REFUSED = (
    *((BARE, None), (MATRIX, None), (L40S, None), (BARE, "H100 SXM"), (MATRIX, "H200")),
    *((text, "H200") for text in (
        "", "<graphs/>", "<system><cpu/></system>", "<system><cpu>", "<a>" + " " * bounds.TOPO_BYTES,
        f"<system><cpu>{PORT * 40}{'</pci>' * 40}</cpu></system>", H100.replace('sm="90"', 'sm="nine"', 1),
        H100.replace('sm="90"', 'sm="9"', 1), H100.replace('sm="90"', 'sm="80"', 1), matrix("PIX", "PIX"),
        H100.replace('link_width="16"', 'link_width="-4"'), H100.replace("0000:11:00.0", "here", 1),
        CUBE.replace('target="0000:11:00.0"', 'target="there"', 1), H100.replace('count="18"', 'count="64"'),
        '<!DOCTYPE a [<!ENTITY b "c">]><system/>', Topology("h100", 90, 2, "spr").xml(),
        MATRIX.replace("GPU1    NV18     X      SYS ", "GPU1    NV18     X "),
    )),
)  # fmt: skip
"""Files that are refused; their messages are in tests/data/command_values/refused.txt."""


@given(st.text(max_size=400), st.integers(0, len(H100)), st.integers(0, 40), st.sampled_from([H100, L40S, MATRIX]))
def test_any_text_in_a_topology_gives_a_machine_or_one_line(junk: str, at: int, cut: int, text: str) -> None:
    for damaged in (junk, text[: at % len(text)] + junk[:20] + text[at % len(text) + cut :]):
        with contextlib.suppress(UsageError):
            assert read(damaged, "H200").gpus > 0


def test_the_command_takes_a_topology_and_little_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(H100)
    assert expect.main(["--topology", str(path), "--nodes", "2", "-b", "1G", "-e", "1G"]) == 0
    assert "2 x 8 GPUs of compute capability 9.0" in " ".join(capsys.readouterr().out.split())
    for wrong in (["--gpu", "H200"], ["--topology", str(path), "--machine", "dgx-h100"]):
        with pytest.raises(UsageError, match=r"does not apply|give one"):
            expect.main(wrong)
