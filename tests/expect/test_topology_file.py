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


def told(box: NodeSystem) -> str:
    links = f"{box.nvlinks} {box.fabric} of {box.domain_gpus}{' NVLS' if box.nvls else ''}"
    nics = f"{box.nics} x {box.nic_gbps:g} {box.network} at {box.nic_path}{'' if box.gdr else ' no GDR'}"
    slots = f"{box.pcie_GBps:g}{' P2P' if box.p2p else ''}"
    return f"{box.gpus} x {box.gpu}: {links}, {box.sockets} {box.processor}, {slots}, {nics}"


INTEL = 'vendor="GenuineIntel" familyid="6" modelid="143"'
SM90, ALL18 = "GPUs of compute capability 9.0", "18 nvswitch of 8 NVLS, 2 spr, 48 P2P, 8 x 400"
TWO18, MATRIX18 = f"2 x {SM90}: 18 nvswitch of 2 NVLS", "2 x NVIDIA H200: 18 nvswitch of 2 NVLS"
ASSUMED = "slots and P2P as the GPU has them, AMD CPUs"
XML = {
    "InfiniBand": (H100, None, None, f"8 x {SM90}: {ALL18} ib at PIX"),
    "Ethernet": (ETHERNET, None, None, f"8 x {SM90}: {ALL18} roce at PIX"),
    "EFA": (ETHERNET.replace('vendor="0x15b3"', 'vendor="0x1d0f"'), None, None, f"8 x {SM90}: {ALL18} efa at PIX"),
    "interfaces": (H100.replace("mlx5_", "eth"), None, None, f"8 x {SM90}: {ALL18} sockets at PIX no GDR"),
    "no GPUDirect": (H100.replace('6" gdr="1"', '6" gdr="0"'), None, None, f"8 x {SM90}: {ALL18} ib at PIX no GDR"),
    "hosts of one NVLink fabric are one domain": (
        TRAYS, None, None, f"4 x {SM90}: 18 nvswitch of 8 NVLS, 2 arm, 48 P2P, 4 x 400 roce at PIX"
    ),
    "without C2C": (GRACE, "GH200", None, "4 x NVIDIA GH200 120GB: 18 mesh of 4, 4 arm, 48, 4 x 400 roce at NODE"),
    "with C2C": (C2C, "GH200", None, "4 x NVIDIA GH200 120GB: 18 mesh of 4, 4 arm, 400 P2P, 4 x 400 roce at PXB"),
    "a cloud's file without GPUs and speeds": (
        BARE, "H100 SXM", 400, "2 x NVIDIA H100 80GB HBM3: 18 nvswitch of 2 NVLS, 2 spr, 48 P2P, 2 x 400 roce at PIX"
    ),
    "such a file of cards": (
        BARE, "H100 PCIe", 200, "2 x NVIDIA H100 PCIe: 0 none of 0, 2 spr, 48 P2P, 2 x 200 roce at PIX"
    ),
    "no P2P": (
        L40S, "RTX 4090", None, "8 x NVIDIA GeForce RTX 4090: 0 none of 0, 2 spr, 24, 2 x 400 roce at PIX"
    ),
    "interfaces without a wire, and repeated ones": (
        VIRTUAL, "RTX 4090", None, "1 x NVIDIA GeForce RTX 4090: 0 none of 0, 1 skl, 48, 1 x 1 sockets at NODE no GDR"
    ),
    **{
        name: (SMALL.replace(*change), None, None, f"{TWO18}, 2 {name.split()[0]}, 48 P2P, 2 x 400 roce at PIX")
        for name, change in {
            "power9": ('arch="x86_64"', 'arch="ppc64"'),
            "unknown architecture": ('arch="x86_64"', 'arch="riscv"'),
            "unknown vendor": ('vendor="GenuineIntel"', 'vendor="x"'),
            "yongfeng": (INTEL, 'vendor="CentaurHauls" familyid="7" modelid="91"'),
            "zhaoxin": (INTEL, 'vendor="Shanghai" familyid="7" modelid="59"'),
            "emr": ('modelid="143"', 'modelid="207"'),
            "skl": ('modelid="143"', 'modelid="106"'),
        }.items()
    },
}  # fmt: skip
MATRICES = {
    "mlx5": (
        MATRIX, "H200", 400, f"{MATRIX18}, 2 amd, 48 P2P, 1 x 400 ib at PIX; {ASSUMED}, GPUDirect RDMA, InfiniBand"
    ),
    **{
        name: (
            MATRIX.replace("mlx5_0", name), "H200", 400,
            f"{MATRIX18}, 2 amd, 48 P2P, 1 x 400 {network} at PIX; {ASSUMED}, GPUDirect RDMA",
        )
        for name, network in {
            "rocep145s0": "roce", "bnxt_re0": "roce", "rdmap16s0": "efa", "hfi1_0": "opa", "cxi0": "slingshot"
        }.items()
    },
    **{
        path: (
            matrix("NV18", path), "H200", 400,
            f"{MATRIX18}, {1 + (path == 'SYS')} amd, 48 P2P, 1 x 400 ib at {path}"
            + (f"; {ASSUMED}, GPUDirect RDMA" if near else f" no GDR; {ASSUMED}") + ", InfiniBand",
        )
        for path, near in {"PIX": True, "PXB": True, "PHB": False, "NODE": False, "SYS": False}.items()
    },
}  # fmt: skip


@each_row(("text", "gpu", "rate", "wanted"), [*XML.values(), *MATRICES.values()], ids=[*XML, *MATRICES])
def test_a_topology_of_several_nodes_gives_the_links(text: str, gpu: str, rate: float, wanted: str) -> None:
    box = read(text, gpu, rate)
    assert told(box) + box.source.removeprefix("topo").replace("assumed: ", "") == wanted


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
    assert told(bridged) == "2 x NVIDIA H100 NVL: 12 pairs of 2, 2 amd, 48 P2P, 1 x 0 ib at PIX"
    assert bridged.source == f"topo; assumed: {ASSUMED}"
    cards = read(CARDS, "RTX PRO 6000", network=False)
    seen = known(predict(cards, Shape((8,)), "all_reduce", 8 << 30))
    assert seen.busbw_GBps == pytest.approx(22.2, rel=0.05)  # as '8 x RTX PRO 6000'
    own = read(OWN, "A100 80GB PCIe", network=False)
    assert told(own) == "4 x NVIDIA A100 80GB PCIe: 0 none of 0, 4 amd, 48 P2P, 0 x 0 None at PXB no GDR"


@each_row(
    ("text", "gpu", "said"),
    [
        (BARE, None, "give --gpu NAME"),
        (MATRIX, None, "give --gpu NAME"),
        (BARE, "H100 SXM", "give --nic-rate"),
        (MATRIX, "H200", "give --nic-rate"),
        (L40S, None, "not all of these models support P2P"),
        *((text, "H200", said) for text, said in (
            ("", "neither NCCL's XML"),
            ("<graphs/>", "not <system> with <cpu>"),
            ("<system><cpu/></system>", "shows 0 GPUs"),
            ("<system><cpu>", "no XML"),
            (f"<system><cpu>{PORT * 40}{'</pci>' * 40}</cpu></system>", "shows 0 GPUs"),
            ("<a>" + " " * bounds.TOPO_BYTES, "larger than 16 MiB: not an NCCL topology file"),
            (H100.replace('sm="90"', 'sm="nine"', 1), 'sm="nine"'),
            (H100.replace('sm="90"', 'sm="9"', 1), 'sm="9"'),
            (H100.replace('sm="90"', 'sm="80"', 1), "GPUs of compute capability 8.0; NVIDIA H200 has 9.0"),
            (H100.replace('link_width="16"', 'link_width="-4"'), 'link_width="-4"'),
            (H100.replace("0000:11:00.0", "here", 1), "not a PCI address"),
            (CUBE.replace('target="0000:11:00.0"', 'target="there"', 1), "not a PCI address"),
            ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "no XML|document type"),
            (MATRIX.replace("GPU1    NV18     X      SYS ", "GPU1    NV18     X "), "nvidia-smi"),
            (Topology("h100", 90, 2, "spr").xml(), "shows no NIC"),
            (H100.replace('count="18"', 'count="64"'), "shows 64 NVLinks of each GPU; NVIDIA H200 has 18"),
            (matrix("PIX", "PIX"), "NVIDIA H200 has 18 NVLinks; this matrix shows none"),
        )),
    ],
)  # fmt: skip
def test_what_is_no_topology_or_not_enough_is_refused_in_one_line_that_names_the_file(
    text: str, gpu: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=f"^topo: .*({said})[^\n]*$"):
        read(text, gpu)


@given(st.text(max_size=400), st.integers(0, len(H100)), st.integers(0, 40), st.sampled_from([H100, L40S, MATRIX]))
def test_whatever_is_written_into_a_topology_gives_a_machine_or_one_line(
    junk: str, at: int, cut: int, text: str
) -> None:
    for damaged in (junk, text[: at % len(text)] + junk[:20] + text[at % len(text) + cut :]):
        with contextlib.suppress(UsageError):
            assert read(damaged, "H200").gpus > 0


SPOTS = [(text, *match.span(1)) for text in (H100, L40S) for match in re.finditer(r'="([^"]*)"', text)]
VALUES = ("", "0", "-1", "1", "17", "999999999", "0x068001", "0x030200", "fffffff:ff:ff.0", "eth0", "arm64", "2.5 GT/s")


@given(st.lists(st.tuples(st.sampled_from(SPOTS), st.sampled_from(VALUES)), min_size=1, max_size=3))
def test_whatever_an_attribute_says_a_number_follows_or_one_line(
    changes: list[tuple[tuple[str, int, int], str]],
) -> None:
    text = changes[0][0][0]
    own = {first: (last, value) for (of, first, last), value in changes if of == text}
    for first, (last, value) in sorted(own.items(), reverse=True):
        text = text[:first] + value + text[last:]
    with contextlib.suppress(UsageError):
        found = read(text, "H200")
        predict(found, Shape((found.gpus, found.gpus)), "all_reduce", 1 << 30)


def test_the_command_takes_a_topology_and_refuses_what_does_not_go_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(H100)
    assert expect.main(["--topology", str(path), "--nodes", "2", "-b", "1G", "-e", "1G"]) == 0
    assert f"2 x 8 {SM90}" in " ".join(capsys.readouterr().out.split())
    for wrong in (["--gpu", "H200"], ["--topology", str(path), "--machine", "dgx-h100"]):
        with pytest.raises(UsageError, match=r"does not apply|give one"):
            expect.main(wrong)
