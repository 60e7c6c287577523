"""Machine types as data: what ships is whole and sourced, and what is wrong in a file is refused with its reason."""

import re
import tracemalloc
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from conftest import fact_rows
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.machines import MachineType, by_name, find, from_toml, most_GBps, named, table
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import replace
from tests.each_row import each_row, some

FILES = sorted(Path(str(resources.files("ncclprobe.expect.tables").joinpath("machines"))).glob("*.toml"))
every_type = each_row("machine", table().values(), ids=lambda machine: machine.name)

OURS = {
    "GB200 NVL72 (compute tray)": "GB200 NVL72",
    "GB300 NVL72 (compute tray)": "GB300 NVL72",
    "Lambda 1-Click Cluster H100": "Lambda 1CC H100",
    "Lambda 1-Click Cluster B200": "Lambda 1CC B200",
    "Nebius gpu-h100-sxm / gpu-h200-sxm": "Nebius H100",
    "CSCS Alps GH200 node": "Alps GH200",
    "ALCF Polaris": "Polaris",
}
"""What a type is called here, where the collected facts have a longer name."""
TWO_FUNCTIONS = ("a4x-maxgpu-4g-metal",)
"""Types of which each card shows two NICs."""
UNMEASURED = ("MPCDF Raven GPU node (gpu)", "MPCDF Raven GPU node (gpu-bw)", "tinybox green")
"""Types that no cloud sells and of which no run is published: a description of parts serves them as well."""

GOOD: dict[str, dict[str, Any]] = {
    "": {"name": '"box"', "vendor": '"Maker"'},
    "match": {"gpu_names": '["NVIDIA H100 80GB HBM3"]', "cloud": '"gcp"'},
    "links": {
        "gpus": "8",
        "fabric": '"nvswitch"',
        "nics": "8",
        "nic_gbps": "400.0",
        "network": '"roce"',
        "source": '"a sheet"',
    },
    "published": {
        "op": '"all_reduce"',
        "gpus": "8",
        "nodes": "1",
        "min_bytes": '"1G"',
        "busbw_GBps": "360.0",
        "source": '"a run"',
        "why": '"8 GPUs"',
    },
    "latency": {
        "op": '"all_reduce"',
        "gpus": "8",
        "nodes": "1",
        "max_bytes": '"2K"',
        "time_us": "15.0",
        "source": '"a run"',
        "why": '"8 GPUs"',
    },
}


def toml(part: str = "", *, also: str = "", **changes: Any) -> str:
    """GOOD with `changes` of one part, None leaving a key out; `also` comes behind."""
    lines = []
    for name, keys in GOOD.items():
        heading = "" if not name else f"[[{name}]]" if name in ("published", "latency") else f"[{name}]"
        said = {**keys, **(changes if name == part else {})}
        lines += [heading, *(f"{key} = {value}" for key, value in said.items() if value is not None)]
    return "\n".join([*lines, also])


def text(table_: Mapping[str, str], **changes: str) -> str:
    return "[[published]]\n" + "\n".join(f"{key} = {value}" for key, value in {**table_, **changes}.items())


def test_a_file_becomes_a_machine_with_its_origin() -> None:
    machine = from_toml(toml(), "box.toml")
    (row,), (small,) = machine.published, machine.latencies
    assert (machine.name, row.ranks, row.busbw_GBps, row.source, small.time_us) == ("box", 8, 360.0, "a run", 15.0)
    system = machine.system()
    assert (system.nvlinks, system.nvlink_GBps, system.domain_gpus, system.nvls) == (18, 20.6, 8, True)
    assert (system.pcie_GBps, system.nics, system.nic_gbps, system.source) == (48.0, 8, 400.0, "a sheet")


@each_row(
    ("wrong", "words"),
    [
        ("[match\n", "not TOML"),
        ("", "name is missing"),
        (toml(colour='"red"'), "unknown key 'colour'"),
        (toml(name="3"), "name: expected a text, got a whole number"),
        (toml(name='" "'), "name: expected a text that is not empty"),
        (toml(also="[links]\n"), "not TOML"),
        (toml(name='"a"\nname = "b"'), "not TOML"),
        (toml("match", gpu_names='["NVIDIA H400"]'), "'NVIDIA H400' is not in the table of GPUs"),
        (toml("match", gpu_names="[]"), "gpu_names: expected a list of length >= 1"),
        (toml("match", cloud='"gpc"'), "cloud: invalid enum value 'gpc'"),
        (toml("match", cloud=None), "GPUs do not identify a machine"),
        (toml("match", by_name_only='"so"'), "by_name_only and cloud cannot be used together"),
        (toml("match", product='"x"'), "did you mean products?"),
        (toml("links", nic="400"), "write nic_gbps: a number needs its unit"),
        (toml("links", pcie="24"), "write pcie_GBps: a number needs its unit"),
        (toml("links", nic_gbps='"400"'), "nic_gbps: expected a number, got a text"),
        (toml("links", nic_gbps="nan"), "nic_gbps: expected a number > 0.0"),
        (toml("links", nic_gbps="inf"), "nic_gbps: expected a number <"),
        (toml("links", nic_gbps="9" * 401), "nic_gbps: number out of range"),
        (toml("links", nic_gbps="-400"), "nic_gbps: expected a number > 0.0"),
        (toml("links", nics="0"), "nics: expected a whole number >= 1"),
        (toml("links", nics="8.5"), "nics: expected a whole number, got a number"),
        (toml("links", gdr='"yes"'), "gdr: expected true or false, got a text"),
        (toml("links", nics=None), "nic_gbps without nics"),
        (toml("links", network=None), "nics without network"),
        (toml("links", fabric='"none"', nvlinks="18"), "fabric is none, and yet there are NVLinks"),
        (toml("links", nvlinks="19"), "nvlinks 19: NVIDIA H100 80GB HBM3 has 18"),
        (toml("links", domain_gpus="4"), "domain_gpus 4 is less than one machine's"),
        (toml("links", unverified='["colour"]'), "'colour' is not a key of links"),
        (toml("links", source=None), "source is missing"),
        (toml("published", op='"allreduce"'), "'allreduce' is not a known operation; did you mean all_reduce?"),
        (toml("published", source=None), "source is missing"),
        (toml("published", busbw="360"), "write busbw_GBps: a number needs its unit"),
        (toml("published", busbw_GBps="true"), "busbw_GBps: expected a number, got true or false"),
        (toml("published", busbw_GBps="480.0"), "above the 450 that the links allow; name the algorithm"),
        (toml("published", busbw_GBps="701.0", algorithm='"nvls"'), "above the 700 that the links allow with nvls"),
        (toml("published", busbw_GBps="480.0", nodes="2"), "above the 400 that the links allow"),
        (toml("published", busbw_GBps="751.0", nodes="2", algorithm='"tree"'), "that the links allow with tree"),
        (toml("published", op='"all_gather"', busbw_GBps="480.0", algorithm='"nvls"'), "above the 450"),
        (toml("published", op='"all_to_all"', busbw_GBps="94.0", nodes="2"), "above the 93.75"),
        (toml("published", threshold_GBps="361.0"), "threshold_GBps 361 is above busbw_GBps 360"),
        (toml("published", below_bytes='"1G"'), "is not below below_bytes"),
        (toml("published", min_bytes='"1T"'), "min_bytes: size '1T'"),
        (toml("published", min_bytes='"' + "1" * 99 + '"'), "is not a size"),
        (toml("published", min_bytes="-1"), "whole number of bytes above zero"),
        (toml("published", gpus="9"), "gpus 9: the machine has 8"),
        (toml("published", gpus="1"), "one rank has no other rank to exchange data with"),
        (toml(also=text(GOOD["published"])), "published 1 and 2 overlap for all_reduce"),
        (toml("latency", high_us="14.0"), "high_us 14 is below time_us 15"),
        (toml("latency", time="3"), "write time_us: a number needs its unit"),
        (toml(also="x = " + "[" * 3000), "nested too deep"),
        (toml(also="a" + ".a" * 3000 + " = 1"), "a line of"),
        ("#" * (2 << 20), "characters"),
        (toml(also="published = 3"), "unknown key 'published'"),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_and_reason(wrong: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_toml(wrong, "box.toml")
    assert str(refused.value).startswith("box.toml: ")
    assert words in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_number_that_its_algorithm_allows_is_taken() -> None:
    for changes in (
        {"busbw_GBps": "480.0", "algorithm": '"nvls"'},
        {"busbw_GBps": "487.0", "nodes": "2", "algorithm": '"nvlstree"'},
        {"busbw_GBps": "450.0"},
        {"op": '"all_to_all"', "busbw_GBps": "93.0", "nodes": "2"},
    ):
        assert from_toml(toml("published", **changes), "box.toml").published


def test_two_sizes_may_stand_side_by_side() -> None:
    machine = from_toml(toml("published", below_bytes='"2G"', also=text(GOOD["published"], min_bytes='"2G"')), "b")
    assert (machine.published[0].min_bytes, machine.published[0].max_bytes) == (1 << 30, (2 << 30) - 1)


SCALARS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(max_size=9), st.lists(st.text(max_size=3), max_size=3)
)


@given(st.sampled_from(["", "match", "links", "published", "latency"]), st.data())
def test_any_value_for_any_key_is_taken_or_refused_in_one_line(part: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([*GOOD[part], "nvlinks", "pcie_GBps", "threshold_GBps", "twins", "unverified"]))
    value = data.draw(SCALARS)
    written = repr(value).lower() if isinstance(value, bool | float) else _quoted(value)
    assert "\n" not in _refusal(toml(part, **{key: written}))


def _refusal(wrong: str) -> str:
    try:
        from_toml(wrong, "box.toml")
    except UsageError as refused:
        return str(refused)
    return ""


def _quoted(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    if not isinstance(value, str):
        return str(value)
    return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value if not 0xD800 <= ord(letter) < 0xE000) + '"'


@given(st.text(max_size=200))
def test_any_text_is_refused_in_one_line(text_: str) -> None:
    with pytest.raises(UsageError, match=r"^box\.toml: .*$"):
        from_toml(text_, "box.toml")


def test_an_absurd_file_takes_no_memory() -> None:
    wrong = toml(also="".join(f"[[published]]\nop = {n}\n" for n in range(1500)))
    tracemalloc.start()
    with pytest.raises(UsageError, match="published: expected a list of length <= 1000"):
        from_toml(wrong, "box.toml")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


@every_type
def test_a_type_is_whole_and_every_number_has_its_source(machine: MachineType) -> None:
    system = machine.system()
    assert machine.links.source
    assert system.gpu in gpus.table()
    assert system.pcie_GBps > 0
    assert (system.network is None) == (system.nics == 0)
    for source, why, op in [(row.source, row.why, row.op) for row in machine.published] + [
        (row.source, row.why, row.op) for row in machine.latencies
    ]:
        assert source
        assert why
        assert op in OPS
    for row in machine.published:
        assert row.busbw_GBps <= most_GBps(row, machine.links, gpus.table()[machine.gpu])


@each_row("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_named_after_its_type_and_names_no_file_of_ours(path: Path) -> None:
    text_ = path.read_text(encoding="utf-8")
    assert path.stem == re.sub(r"[^a-z0-9.]+", "-", from_toml(text_, path.name).name.lower())
    assert not re.search(r"published_results|file id|/shared/|machines\.csv", text_)


@each_row("name", table())
def test_a_type_that_is_asked_for_by_its_name_is_the_one_of_the_table(name: str) -> None:
    assert named(name.upper().replace("-", "_")) == table()[name]


def test_a_name_that_is_a_path_names_no_type() -> None:
    assert named("../machines/dgx-h100") is None


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
    with pytest.raises(UsageError, match=r"'a3-mega-8g' is not a known machine type; did you mean a3-megagpu-8g"):
        find("a3-mega-8g")
    with pytest.raises(UsageError, match="is not a known machine type; `ncclprobe expect --list`"):
        find("x" * 10_000)


def test_names_twins_and_boards_must_exist_and_be_one() -> None:
    one = from_toml(toml(), "a")
    with pytest.raises(UsageError, match="two machine types are called box"):
        by_name([one, one])
    with pytest.raises(UsageError, match="two machine types are called BOX"):  # none would find the later
        by_name([one, replace(one, name="BOX")])
    with pytest.raises(UsageError, match="twins: 'other' is not a machine type that names it in turn"):
        by_name([from_toml(toml("match", twins='["other"]'), "a")])
    for board in ("missing", "box"):
        with pytest.raises(UsageError, match=f"board: '{board}' is not a machine type"):
            by_name([from_toml(toml(board=f'"{board}"'), "a")])
