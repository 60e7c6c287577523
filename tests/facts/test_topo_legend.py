"""The legends of `nvidia-smi topo`: names of NICs as people write them, and legends that are cut."""

import pytest
from fake_topo import Printed

from ncclprobe.facts.topo_matrix import parse
from ncclprobe.model.errors import ParseError
from tests.each_row import each_row

NO_NVLINK = Printed(2, 0, (("X", "SYS"), ("SYS", "X")), (("0", "0", "N/A"), ("1", "1", "N/A"))).text()
THREE = Printed(
    2, 3, (("X", *["PIX"] * 4), *(("PIX",) * n + ("X",) + ("PIX",) * (4 - n) for n in range(1, 5))), (("0-7", "0"),) * 2
)


@each_row(
    "entry",
    [
        "NIC0: mlx5_2",
        "NIC0:mlx5_2",
        "NIC0 : mlx5_2",
        "NIC0 -> mlx5_2",
        "NIC0 => mlx5_2",
        "NIC0 = mlx5_2",
        "NIC0: mlx5_2 -> eth2 (rail 0)",
        "NIC0: mlx5_2->ib0",
        "NIC0: mlx5_2 → ib0",
        "NIC0: mlx5_2(ib0), up",
        "NIC0: mlx5_2,",
        "NIC0: mlx5_2 # of socket 0",
        "# for the GPUs\n  NIC0: mlx5_2\n  -- for storage",
    ],
)
def test_arrows_and_comments_in_the_nic_legend_are_no_part_of_a_name(entry: str) -> None:
    assert parse(THREE.text().replace("NIC0: mlx5_2", entry)) == (THREE.matrix(),)


@each_row("between", ["   ", ", ", "; ", " | ", "\t"])
def test_two_entries_on_a_line_of_the_nic_legend_are_two(between: str) -> None:
    assert parse(THREE.text().replace("mlx5_2\n  NIC1", f"mlx5_2{between}NIC1")) == (THREE.matrix(),)


def test_what_follows_the_nic_legend_is_no_part_of_it() -> None:
    assert parse(THREE.text() + "\n$ nvidia-smi\nNIC0: see above\n") == (THREE.matrix(),)


def test_two_entries_on_a_line_of_the_legend_are_two() -> None:
    text = NO_NVLINK.replace("one bridge\n  NV#", "one bridge    NV#") + "\n"
    assert parse(text)[0].kind == "topo-m"
    assert parse(text.replace(" = ", " -> "))[0].kind == "topo-m"
    assert parse(text.partition("NV#")[0] + "\n\n")[0].kind == "topo-mp"


def test_a_nic_that_the_legend_leaves_out_keeps_its_label_and_is_said() -> None:
    text = THREE.text()
    (matrix,) = parse(text.replace("  NIC1: mlx5_3\n", ""))
    assert (matrix.nics, matrix.incomplete) == (("mlx5_2", "NIC1", "mlx5_4"), ("the NIC Legend does not name NIC1",))
    with pytest.raises(ParseError, match="one name to two devices"):
        parse(text.replace("mlx5_4", "mlx5_2"))


@each_row(
    ("stop", "missing"),
    [
        ("\nNIC0\t", "rows NIC0 to NIC2 are missing"),
        ("\nNIC2\t", "row NIC2 is missing"),
        ("\n\n  X ", "the legend is cut off"),
        ("gend:", "the legend is cut off"),
        ("  PHB", "the legend is cut off after SYS"),
        ("B  = host", "the legend is cut off"),
        ("  NV#", "the NIC Legend is missing: the names of NIC0 to NIC2 are not known"),
        ("\nNIC Legend:", "the NIC Legend is missing: the names of NIC0 to NIC2 are not known"),
        (" Legend:\n\n  NIC0", "the legend is cut off"),
        ("  NIC0: ", "the NIC Legend does not name NIC0 to NIC2"),
        ("  NIC1: ", "the NIC Legend does not name NIC1 to NIC2"),
        ("5_4\n", "the NIC Legend is cut in the name of NIC2"),
    ],
)
def test_a_text_that_stops_early_is_incomplete(stop: str, missing: str) -> None:
    (matrix,) = parse(THREE.text().partition(stop)[0])
    assert missing in matrix.incomplete
    assert matrix.nics[0] in ("mlx5_2", "NIC0")


def test_a_name_that_is_cut_is_not_taken_for_another_nic() -> None:
    text = THREE.text().replace("mlx5_4", "mlx5_25")
    (matrix,) = parse(text[:-2])  # mlx5_2, which is NIC0
    assert matrix.incomplete == ("the NIC Legend is cut in the name of NIC2",)
    assert matrix.nics == ("mlx5_2", "mlx5_3", "NIC2")


def test_a_table_without_any_legend_is_whole() -> None:
    assert parse(THREE.text().partition("\nLegend:")[0])[0].incomplete == ()
