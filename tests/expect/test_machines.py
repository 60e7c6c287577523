"""Machine types and GPUs as data: what ships is whole and sourced, and what is wrong in a file is refused."""

import json
import re
import tracemalloc
from importlib import resources
from pathlib import Path

import pytest
import zoo
from conftest import fact_rows
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.expect import composed
from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.machines import MachineType, by_name, find, from_toml, most_GBps, named, table
from ncclprobe.expect.visible import nccl_link_GBps
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import replace
from tests.each_row import each_row, some

FILES = sorted(Path(str(resources.files("ncclprobe.expect.tables").joinpath("machines"))).glob("*.toml"))
OURS = {
    "GB200 NVL72 (compute tray)": "GB200 NVL72", "GB300 NVL72 (compute tray)": "GB300 NVL72",
    "Lambda 1-Click Cluster H100": "Lambda 1CC H100", "Lambda 1-Click Cluster B200": "Lambda 1CC B200",
    "Nebius gpu-h100-sxm / gpu-h200-sxm": "Nebius H100", "CSCS Alps GH200 node": "Alps GH200",
    "ALCF Polaris": "Polaris",
}  # fmt: skip
"""What a type is called here, where the collected facts have a longer name."""
TWO_FUNCTIONS = ("a4x-maxgpu-4g-metal",)
"""Types of which each card shows two NICs."""
UNMEASURED = ("MPCDF Raven GPU node (gpu)", "MPCDF Raven GPU node (gpu-bw)", "tinybox green")
"""Types that no cloud sells and of which no run is published: a description of parts serves them as well."""
GOOD = """name = "box"
vendor = "Maker"
[match]
gpu_names = ["NVIDIA H100 80GB HBM3"]
cloud = "gcp"
[links]
gpus = 8
fabric = "nvswitch"
nics = 8
nic_gbps = 400.0
network = "roce"
source = "a sheet"
[[published]]
op = "all_reduce"
gpus = 8
nodes = 1
min_bytes = "1G"
busbw_GBps = 360.0
source = "a run"
why = "8 GPUs"
[[latency]]
op = "all_reduce"
gpus = 8
nodes = 1
max_bytes = "2K"
time_us = 15.0
source = "a run"
why = "8 GPUs"
"""
PUBLISHED = GOOD[GOOD.index("[[published]]") : GOOD.index("[[latency]]")]


def toml(part: str = "", *, also: str = "", **changes: str | None) -> str:
    """GOOD with `changes` of one part, None leaving a key out; `also` comes behind."""
    lines, here, left = list[str](), "", dict(changes)
    for line in [*GOOD.splitlines(), "[end]"]:
        if line.startswith("["):
            lines += [f"{key} = {value}" for key, value in left.items() if here == part and value is not None]
            left, here = ({} if here == part else left), line.strip("[]")
        key = line.partition(" = ")[0]
        value = left.pop(key, line) if here == part and key in left else line
        lines += [line if value == line else f"{key} = {value}"] if value is not None else []
    return "\n".join([*lines[:-1], also])


def test_a_file_becomes_a_machine_with_its_origin() -> None:
    machine = from_toml(toml(), "box.toml")
    (row,), (small,) = machine.published, machine.latencies
    assert (machine.name, row.ranks, row.busbw_GBps, row.source, small.time_us) == ("box", 8, 360.0, "a run", 15.0)
    system = machine.system()
    assert (system.nvlinks, system.nvlink_GBps, system.domain_gpus, system.nvls) == (18, 20.6, 8, True)
    assert (system.pcie_GBps, system.nics, system.nic_gbps, system.source) == (48.0, 8, 400.0, "a sheet")


WRONG = (
    *("[match\n", "", toml(colour='"red"'), toml(name="3"), toml(name='" "'), toml(name='"a"\nname = "b"')),
    *(toml("match", gpu_names='["NVIDIA H400"]'), toml("match", gpu_names="[]"), toml("match", cloud='"gpc"')),
    *(toml("match", cloud=None), toml("match", by_name_only='"so"')),
    *(toml("match", by_name_only='"so"', cpus='["x"]'), toml("match", product='"x"'), toml("links", nic="400")),
    *(toml("links", nic_gbps='"400"'), toml("links", nic_gbps="nan"), toml("links", nic_gbps="inf")),
    *(toml("links", nic_gbps="9" * 401), toml("links", nics="0"), toml("links", nics="8.5")),
    *(toml("links", gdr='"yes"'), toml("links", nics=None), toml("links", network=None)),
    *(toml("links", fabric='"none"', nvlinks="18"), toml("links", nvlinks="19"), toml("links", domain_gpus="4")),
    *(toml("links", unverified='["colour"]'), toml("links", source=None), toml("published", op='"allreduce"')),
    *(toml("published", busbw="360"), toml("published", busbw_GBps="451.0")),
    *(toml("published", busbw_GBps="701.0", algorithm='"nvls"'), toml("published", busbw_GBps="401.0", nodes="2")),
    toml("published", busbw_GBps="451.0", nodes="2", algorithm='"tree"'),
    toml("published", busbw_GBps="801.0", nodes="2", algorithm='"sharp"'),
    toml("published", op='"all_gather"', busbw_GBps="480.0", algorithm='"nvls"'),
    *(toml("published", op='"all_to_all"', busbw_GBps="94.0", nodes="2"), toml("published", threshold_GBps="361.0")),
    *(toml("published", below_bytes='"1G"'), toml("published", min_bytes='"1T"'), toml("published", min_bytes="-1")),
    *(toml("published", gpus="9"), toml("published", gpus="1"), toml(also=PUBLISHED)),
    *(toml("latency", high_us="14.0"), toml(also="x = " + "[" * 3000), toml(also="a" + ".a" * 3000 + " = 1")),
    *("#" * (2 << 20), toml(also="published = 3")),
)
"""Files that are refused; their messages are in tests/data/command_values/refused.txt."""
SAID = (
    ("", "name", "3", "name: expected a text, got a whole number"), ("", "vendor", "{}", "text, got a table"),
    ("links", "nics", "true", "links: nics: expected a whole number, got true or false"),
    ("links", "nic", "3", "unknown key 'nic'; write nic_gbps: a number needs its unit"),
    ("links", "nvlink", "3", "links: unknown key 'nvlink'; did you mean nvlinks?"))  # fmt: skip
RIGHT = (
    *(toml("published", busbw_GBps="700.0", algorithm='"nvls"'), toml("published", busbw_GBps="450.0")),
    *(toml("published", busbw_GBps=rate, nodes="2", algorithm=name) for rate, name in (
        ("487.0", '"nvlstree"'), ("450.0", '"tree"'), ("800.0", '"sharp"'), ("400.0", None),
    )),
    toml("published", op='"all_to_all"', busbw_GBps="93.0", nodes="2"),
    toml("published", below_bytes='"2G"', also=PUBLISHED.replace('"1G"', '"2G"')),
)  # fmt: skip


@each_row(("part", "key", "value", "words"), SAID)
def test_a_wrong_value_is_refused_in_plain_words(part: str, key: str, value: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        from_toml(toml(part, **{key: value}), "box.toml")


SCALARS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(max_size=9), st.lists(st.text(max_size=3), max_size=3)
)
KEYS = sorted({line.partition(" = ")[0] for line in GOOD.splitlines() if " = " in line})


@given(st.sampled_from(["", "match", "links", "published", "latency"]), st.data(), st.text(max_size=200))
def test_any_value_and_any_text_is_taken_or_refused_in_one_line(part: str, data: st.DataObject, text: str) -> None:
    key = data.draw(st.sampled_from([*KEYS, "nvlinks", "pcie_GBps", "threshold_GBps", "twins", "unverified"]))
    written = json.dumps(data.draw(SCALARS), ensure_ascii=False)
    assert re.fullmatch(r"(box\.toml: .*)?", _refusal(toml(part, **{key: written})))
    assert re.fullmatch(r"box\.toml: .*", _refusal(text))


def _refusal(text: str) -> str:
    try:
        from_toml(text, "box.toml")
    except UsageError as refused:
        return str(refused)
    return ""


def test_an_absurd_file_takes_no_memory() -> None:
    wrong = toml(also="".join(f"[[published]]\nop = {n}\n" for n in range(1500)))
    tracemalloc.start()
    with pytest.raises(UsageError, match="published: expected a list of length <= 1000"):
        from_toml(wrong, "box.toml")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


@each_row("path", FILES, ids=lambda path: path.stem)
def test_a_type_is_whole_every_number_has_its_source_and_its_file_has_its_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    machine = from_toml(text, path.name)
    name, system, links = machine.name, machine.system(), machine.links
    assert path.stem == re.sub(r"[^a-z0-9.]+", "-", name.lower())
    assert named(name.upper().replace("-", "_")) == table()[name]
    assert not re.search(r"published_results|file id|/shared/|machines\.csv", text)
    assert (bool(links.source), system.gpu in gpus.table(), system.pcie_GBps > 0) == (True, True, True)
    assert (system.network is None) == (system.nics == 0)
    for source, why, op in [(row.source, row.why, row.op) for row in (*machine.published, *machine.latencies)]:
        assert (bool(source), bool(why), op in OPS) == (True, True, True)
    for row in machine.published:
        assert row.busbw_GBps <= most_GBps(row, links, gpus.table()[machine.gpu])


def test_no_type_of_the_collected_facts_is_missing() -> None:
    for row in some(fact_rows("machine_types.csv")):
        if row["machine_type"] in UNMEASURED:
            continue
        machine = table()[OURS.get(row["machine_type"]) or row["machine_type"]]
        assert machine.links.gpus == int(row["gpus"])
        assert row["gpu_model"].split(" / ")[0] in machine.match.gpu_names
        nics, gbps = machine.links.nics, machine.links.nic_gbps
        if row["gpu_nics"] and row["gpu_nic_gbps"] and machine.name != "DGX Spark" and nics and gbps:
            assert nics * gbps == int(row["gpu_nics"]) * float(row["gpu_nic_gbps"])
            assert machine.name in TWO_FUNCTIONS or nics == int(row["gpu_nics"])


def test_the_numbers_of_a_board_hold_for_one_node_unless_a_machine_has_its_own() -> None:
    board, mega, p5 = find("HGX H100"), find("a3-megagpu-8g"), find("p5.48xlarge")
    lent = [row for row in mega.published if row.nodes == 1]
    assert len(lent) == len(board.published)
    assert all(row.why.endswith("(same baseboard as HGX H100)") for row in lent)
    own = {row.busbw_GBps for row in p5.published if row.nodes == 1 and row.op == "all_reduce"}
    assert own == {443.0, 476.0, 482.0}
    assert len({row.op for row in p5.published if row.nodes == 1}) > 1


def test_a_name_is_found_whatever_its_case_and_a_wrong_one_gets_similar_ones() -> None:
    assert find("A3-MegaGPU-8g").name == "a3-megagpu-8g"
    assert find("dgx-a100").name == find("DGX_A100").name == "DGX A100"
    assert named("../machines/dgx-h100") is None  # a path names no type
    with pytest.raises(UsageError, match=r"'a3-mega-8g' is not a known machine type; did you mean a3-megagpu-8g"):
        find("a3-mega-8g")
    with pytest.raises(UsageError, match="is not a known machine type; `ncclprobe expect --list`"):
        find("x" * 10_000)


BOX = from_toml(toml(), "a")


@each_row(
    ("types", "why"),
    [
        ([BOX, BOX], "two machine types are called box"),
        ([BOX, replace(BOX, name="BOX")], "two machine types are called BOX"),  # none would find the later
        ([BOX, replace(BOX, name="BOX", origin="x 1")], "called BOX; x 1 has to name its own otherwise"),
        ([from_toml(toml("match", twins='["other"]'), "a")], "twins: 'other' is not a machine type that names it in"),
        ([replace(BOX, board="missing")], "board: 'missing' is not a machine type"),
        ([replace(BOX, board="box")], "board: 'box' is not a machine type"),
    ],
)
def test_names_twins_and_boards_must_exist_and_be_one(types: list[MachineType], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        by_name(types)


@each_row("gpu", gpus.products(), ids=lambda gpu: gpu.name)
def test_a_gpu_has_a_source_and_a_bus_and_nccl_counts_its_links_by_its_architecture(gpu: gpus.GpuProduct) -> None:
    assert gpu.source
    assert gpu.pcie_generation or gpu.c2c_GBps or gpu.name == "NVIDIA GB10"
    assert (gpu.wiring is None) == (not gpu.nvlink_source)
    assert gpus.table()[gpu.name] is gpu
    if gpu.nvlinks:
        assert gpu.nccl_nvlink_GBps == nccl_link_GBps(gpu.compute_capability)
        assert 0.7 < gpu.nccl_nvlink_GBps / gpu.nvlink_GBps < 0.9
    else:
        assert (gpu.nvlink_GBps, gpu.wiring) == (0, None)


def test_the_table_of_gpus_knows_aliases_slots_the_zoo_and_the_collected_facts() -> None:
    assert gpus.table()["H100-SXM5-80GB"].name == "NVIDIA H100 80GB HBM3"
    assert "NVIDIA Graphics Device" not in gpus.table()
    assert gpus.table()["NVIDIA H100"].nvlinks == 0
    for product in gpus.products():  # a name that is whole is not another one that has more words
        assert product.name == "NVIDIA H100" or composed.product_called(product.name).name == product.name
    slots = {(3, 16): 12, (4, 16): 24, (5, 16): 48, (4, 8): 12, (9, 16): 12}
    assert {slot: gpus.nccl_pcie_GBps(*slot) for slot in slots} == slots
    for gpu in some(each.gpu for each in zoo.MACHINES.values() if each.gpu):
        own = gpus.table()[gpu.name]
        assert own.compute_capability == gpu.capability[0] * 10 + gpu.capability[1]
        assert f"{gpu.chip:04X}" in own.pci_ids
    assert set(gpus.nvlink_products()) == {gpu.name for gpu in gpus.products() if gpu.wiring}
    assert gpus.nvlink_products()["NVIDIA H200"].nvlink_GBps == 25
    assert {row["nvml_name"] for row in fact_rows("gpus.csv")} <= {gpu.name for gpu in gpus.products()}


PRINTED = {
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe LC": "NVIDIA A100 80GB PCIe",
    "NVIDIA H20-3e": "NVIDIA H20", "NVIDIA H200 141GB HBM3e": "NVIDIA H200", "NVIDIA B200 192GB": "NVIDIA B200",
    "NVIDIA L40S 48GB": "NVIDIA L40S",
    "GPU 3: NVIDIA H200 (UUID: GPU-8a0e4d1c-0000-1111-2222-333344445555)": "NVIDIA H200",
    "NVIDIA A10-24Q": "NVIDIA A10",
    **{
        text: gpu.name
        for gpu in gpus.products()
        if (gpu.wiring or gpu.pcie_generation) and gpu.name != "NVIDIA H100"  # of several products
        for text in (gpu.name, f"GPU 0: {gpu.name} (UUID: GPU-1-2)")
    },
}  # fmt: skip
"""Names as nvidia-smi -L prints them, with what vendors and virtual machines add, and whose links they have."""


@each_row(("text", "name"), PRINTED.items())
def test_every_name_that_nvidia_smi_prints_is_taken_for_a_gpu_of_its_links(text: str, name: str) -> None:
    found, meant = composed.product_called(text), gpus.table()[name]
    parts = [(each.nvlinks, each.wiring, each.compute_capability) for each in (found, meant)]
    assert parts[0] == parts[1]


@each_row("name", ["NVIDIA RTX 9999", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA Graphics Device"])
def test_another_model_is_not_a_variant(name: str) -> None:
    with pytest.raises(UsageError):
        composed.product_called(name)
