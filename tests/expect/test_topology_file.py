"""A machine by its topology alone: NCCL's XML and nvidia-smi's matrix give the links that the machine has."""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expect.nccl_vectors import FOLDER
from ncclprobe.commands import expect
from ncclprobe.expect.predict import predict
from ncclprobe.expect.system import NodeSystem, Shape
from ncclprobe.expect.topology_text import system_in
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

SWITCH = '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'
INTEL, AMD = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', 'arch="x86_64" vendor="AuthenticAMD"'
CUBE = ((0, 1, 1, 2, 2, 0, 0, 0), (1, 0, 2, 1, 0, 2, 0, 0), (1, 2, 0, 2, 0, 0, 1, 0), (2, 1, 2, 0, 0, 0, 0, 1))
"""Links from the first four GPUs of a DGX-1; the other four mirror them."""


def slot(number: int, inside: str, kind: str = "0x030200", speed: str = "32.0 GT/s PCIe", more: str = "") -> str:
    return (
        f'<pci busid="0000:{number:02x}:00.0" class="{kind}" link_speed="{speed}" link_width="16"{more}>{inside}</pci>'
    )


def gpu(sm: int, links: str = "") -> str:
    return f'<gpu dev="0" sm="{sm}" rank="0" gdr="1">{links}</gpu>'


def nic(name: str, mbps: int, gdr: int = 1) -> str:
    return f'<nic><net name="{name}" dev="0" speed="{mbps}" port="1" gdr="{gdr}"/></nic>'


def machine(*sockets: Sequence[str], cpu: str = INTEL) -> str:
    cpus = (f'<cpu numaid="{n}" {cpu}>{"".join(slots)}</cpu>' for n, slots in enumerate(sockets))
    return f'<system version="1">{"".join(cpus)}</system>'


def switched(first: int, count: int, nics: int, kind: str = "0x020700", links: str = SWITCH) -> list[str]:
    """Switches with a GPU and, below the first `nics` of them, a NIC of 400 Gb/s."""
    return [
        slot(
            first + 4 * n,
            slot(first + 4 * n + 1, gpu(90, links))
            + (slot(first + 4 * n + 2, nic(f"mlx5_{n}", 400000), kind) if n < nics else ""),
            "0x060400",
        )
        for n in range(count)
    ]


H100 = machine(switched(0x10, 4, 4), switched(0x60, 4, 4))
L40S = machine(*(
    [slot(base, "".join(slot(base + n, gpu(89), speed="16.0 GT/s PCIe") for n in range(1, 5))
          + slot(base + 8, nic(f"mlx5_{base}", 400000), "0x020000"), "0x060400")]
    for base in (0x10, 0x60)
))  # fmt: skip
MATRIX = """        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    PIX     0-47    0               N/A
GPU1    NV18     X      SYS     48-95   1               N/A
NIC0    PIX     SYS      X

Legend:
  X = Self

NIC Legend:
  NIC0: mlx5_0
"""


def dgx_1() -> str:
    def links(one: int) -> str:
        row = CUBE[one % 4] if one < 4 else (*CUBE[one % 4][4:], *CUBE[one % 4][:4])
        return "".join(
            f'<nvlink target="0000:{0x10 + other:02x}:00.0" count="{n}" tclass="0x030200"/>'
            for other, n in enumerate(row)
            if n
        )

    def switch(first: int) -> str:
        both = "".join(slot(0x10 + n, gpu(70, links(n)), speed="8.0 GT/s PCIe") for n in (first, first + 1))
        return slot(0x40 + first, both + slot(0x50 + first, nic(f"mlx5_{first}", 100000), "0x020700"), "0x060400")

    return machine([switch(0), switch(2)], [switch(4), switch(6)], cpu=INTEL.replace("143", "79"))


def read(text: str, gpu: str | None = None, rate: float | None = None, *, network: bool = True) -> NodeSystem:
    return system_in(text, "topo", gpu, rate, network=network)


@each_row(
    ("text", "product", "name"),
    [(H100, None, "azure-nd96isr-h100-v5"), (dgx_1(), None, "dgx-1v"), (L40S, "L40S", "pcie-8xl40s-2switch-spr")],
    ids=["nvswitch", "cube mesh", "two sockets"],
)
def test_the_xml_gives_the_links_of_which_nccls_own_search_is_known(text: str, product: str, name: str) -> None:
    known = json.loads((FOLDER / "systems.json").read_text(encoding="utf-8"))[name]["system"]
    found = read(text, product)
    assert {key: getattr(found, key) for key in known if key != "network"} == {
        k: known[k] for k in known.keys() - {"network"}
    }


def test_the_xml_tells_infiniband_ethernet_efa_and_sockets_apart() -> None:
    assert read(H100).network == "ib"
    assert read(machine(switched(0x10, 2, 2, "0x020000"))).network == "roce"
    amazon = H100.replace('class="0x020700"', 'class="0x020000" vendor="0x1d0f"')
    assert read(amazon).network == "efa"
    sockets = read(H100.replace("mlx5_", "eth"))
    assert (sockets.network, sockets.gdr) == ("sockets", False)
    assert not read(H100.replace('port="1" gdr="1"', 'port="1" gdr="0"')).gdr


def test_hosts_of_one_nvlink_fabric_are_one_domain() -> None:
    trays = "".join(
        f'<cpu host_hash="0x{host}" numaid="{n}" arch="arm64">{"".join(switched(0x10 + 0x40 * n, 2, 2))}</cpu>'
        for host in ("a", "b")
        for n in (0, 1)
    )
    found = read(f'<system version="1">{trays}</system>')
    assert (found.gpus, found.domain_gpus, found.nics, found.processor) == (4, 8, 4, "arm")


def test_a_clouds_file_without_gpus_and_speeds_asks_for_both() -> None:
    bare = machine([slot(0x10, slot(0x11, "") + slot(0x12, "", "0x020700"), "0x060400")])
    with pytest.raises(UsageError, match="give --gpu NAME"):
        read(bare)
    with pytest.raises(UsageError, match="give --nic-rate"):
        read(bare, "H100 SXM")
    found = read(bare, "H100 SXM", 400)
    assert (found.nics, found.nic_gbps, found.gpu) == (1, 400, "NVIDIA H100 80GB HBM3")
    two = machine([slot(0x10, slot(0x11, "") + slot(0x13, ""), "0x060400")])
    assert (read(two, "H100 SXM", network=False).nvlinks, read(two, "H100 PCIe", network=False).nvlinks) == (18, 0)


def test_a_matrix_needs_the_gpu_and_between_nodes_a_rate() -> None:
    found = read(MATRIX, "H200", network=False)
    assert (found.gpus, found.nvlinks, found.fabric, found.sockets, found.nics) == (2, 18, "nvswitch", 2, 1)
    bridged = read(MATRIX.replace("NV18", "NV12"), "H100 NVL", network=False)
    assert (bridged.fabric, bridged.nvls) == ("pairs", False)
    assert "assumed" in found.source
    with pytest.raises(UsageError, match="give --gpu NAME"):
        read(MATRIX)
    with pytest.raises(UsageError, match="give --nic-rate"):
        read(MATRIX, "H200")


@each_row(
    ("name", "network", "assumed"),
    [
        ("mlx5_0", "ib", "InfiniBand"),
        ("rocep145s0", "roce", ""),
        ("bnxt_re0", "roce", ""),
        ("rdmap16s0", "efa", ""),
        ("hfi1_0", "opa", ""),
        ("cxi0", "slingshot", ""),
    ],
)
def test_the_name_of_a_nic_in_a_matrix_tells_its_network(name: str, network: str, assumed: str) -> None:
    found = read(MATRIX.replace("mlx5_0", name), "H200", 400)
    assert (found.network, found.nics) == (network, 1)
    assert ("InfiniBand" in found.source) == bool(assumed)
    assert "GPUDirect RDMA" in found.source


def test_a_matrix_of_one_node_assumes_nothing_of_the_network_and_has_processors_as_a_box_of_parts() -> None:
    found = read(MATRIX, "H200", network=False)
    assert found.source == "topo; assumed: slots and P2P as the GPU has them, AMD CPUs"
    words = [["X" if one == two else "NODE" if one // 4 == two // 4 else "SYS" for two in range(8)] for one in range(8)]
    lines = [f"GPU{n} {' '.join(row)} {48 * (n // 4)}-{48 * (n // 4) + 47} {n // 4} N/A" for n, row in enumerate(words)]
    header = " ".join([*(f"GPU{n}" for n in range(8)), "CPU Affinity NUMA Affinity GPU NUMA ID"])
    box = read("\t" + "\n".join([header, *lines]).replace(" ", "\t"), "RTX PRO 6000", network=False)
    seen = predict(box, Shape((8,)), "all_reduce", 8 << 30)
    assert (box.sockets, box.processor) == (2, "amd")
    assert seen is not None
    assert seen.busbw_GBps == pytest.approx(22.2, rel=0.05)  # as '8 x RTX PRO 6000'


def test_where_nvlink_does_not_join_all_and_products_differ_in_p2p_the_gpu_is_asked_for() -> None:
    with pytest.raises(UsageError, match="not all of these models support P2P"):
        read(L40S)
    assert not read(L40S, "RTX 4090").p2p
    assert read(H100).gpu == "GPUs of compute capability 9.0"


@each_row(
    ("text", "said"),
    [
        ("", "neither NCCL's XML"),
        ("<graphs/>", "not <system> with <cpu>"),
        ("<system><cpu/></system>", "shows 0 GPUs"),
        ("<system><cpu>", "no XML"),
        (H100.replace('sm="90"', 'sm="nine"', 1), 'sm="nine"'),
        (H100.replace('sm="90"', 'sm="9"', 1), 'sm="9"'),
        (H100.replace('link_width="16"', 'link_width="-4"'), 'link_width="-4"'),
        (H100.replace("0000:11:00.0", "here", 1), "not a PCI address"),
        (dgx_1().replace('target="0000:11:00.0"', 'target="there"', 1), "not a PCI address"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "no XML|document type"),
        (MATRIX.replace("GPU1    NV18     X      SYS ", "GPU1    NV18     X "), "nvidia-smi"),
        (machine([slot(1, gpu(90)), slot(2, gpu(90))]), "shows no NIC"),
        (H100.replace('count="18"', 'count="64"'), "shows 64 NVLinks of each GPU; NVIDIA H200 has 18"),
    ],
)
def test_what_is_no_topology_is_refused_in_one_line_that_names_the_file(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^topo: .*({said})[^\n]*$"):
        read(text, "H200")


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
    assert "2 x 8 GPUs of compute capability 9.0" in " ".join(capsys.readouterr().out.split())
    for wrong in (["--gpu", "H200"], ["--topology", str(path), "--machine", "dgx-h100"]):
        with pytest.raises(UsageError, match=r"does not apply|give one"):
            expect.main(wrong)


def test_a_link_that_leads_back_to_its_own_gpu_joins_nothing() -> None:
    own = (f'<nvlink target="0000:{number:02x}:00.0" count="12" tclass="0x030200"/>' for number in range(4))
    slots = [[slot(number, gpu(80, link))] for number, link in enumerate(own)]
    box = system_in(machine(*slots, cpu=AMD), "ncv4.xml", "A100 80GB PCIe", None, network=False)
    assert (box.fabric, box.nvlinks, box.sockets) == ("none", 0, 4)


def test_interfaces_without_a_wire_and_repeated_ones_are_no_nics() -> None:
    names = ("eno1", 1000), ("docker0", 10000), ("veth01", 10000), ("cali01", 10000), ("tunl0", 10000), ("br-1", 10000)
    nets = "".join(
        f'<net name="{name}" dev="{at}" port="0" speed="{speed}"/>' for at, (name, speed) in enumerate(names)
    )
    twice = '<net name="eno1" dev="0" port="0" speed="1000"/>'
    text = (
        '<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">'
        '<pci busid="0000:17:00.0" class="0x030200" vendor="0x10de" device="0x2684"><gpu dev="0" sm="89"/></pci>'
        f"<nic>{nets}{twice}</nic></cpu></system>"
    )
    system = system_in(text, "topo.xml", "RTX 4090", None, network=True)
    assert (system.nics, system.nic_gbps, system.network) == (1, 1.0, "sockets")


def test_a_matrix_of_a_board_without_nvlinks_is_refused_and_a_far_nic_has_no_gpudirect() -> None:
    def matrix(link: str, nic: str) -> str:
        rows = [f"GPU0\tX\t{link}\t{nic}\t0-7", f"GPU1\t{link}\tX\t{nic}\t0-7", f"mlx5_0\t{nic}\t{nic}\tX", ""]
        return "\n".join(["\tGPU0\tGPU1\tmlx5_0\tCPU Affinity", *rows])

    with pytest.raises(UsageError, match="NVIDIA H200 has 18 NVLinks; this matrix shows none"):
        system_in(matrix("PIX", "PIX"), "topo.txt", "H200", 400.0, network=True)
    for nic, gdr in (("PIX", True), ("PXB", True), ("PHB", False), ("NODE", False), ("SYS", False)):
        assert system_in(matrix("NV18", nic), "topo.txt", "H200", 400.0, network=True).gdr is gdr, nic
