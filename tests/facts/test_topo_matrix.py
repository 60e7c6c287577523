"""`nvidia-smi topo`: what it prints, what becomes of that on its way to us, and what must be refused by its cause."""

import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from conftest import answers
from fake_topo import CARRIERS, FORMS, LEGEND, Printed, on_header, plain, printed, rewrap
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.topo_matrix import Matrix, parse, topo_matrix
from ncclprobe.model.errors import Missing, ParseError
from ncclprobe.model.values import replace
from tests.each_row import each_row

PAIR = Printed(2, 1, (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")), (("0-31", "0", "N/A"),) * 2)
WIDE = Printed(
    4, 6, (("X", *["SYS"] * 9), *(("SYS",) * n + ("X",) + ("SYS",) * (9 - n) for n in range(1, 10))), ((),) * 4
)
P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n"


@given(printed(), st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(CARRIERS)))
def test_a_matrix_survives_its_journey(machine: Printed, form: str, carrier: str) -> None:
    assert parse(CARRIERS[carrier](FORMS[form](machine.text()))) == (machine.matrix(),)


@given(printed(blanks=False), st.data())
def test_rows_are_told_by_their_label_not_their_order(machine: Printed, data: st.DataObject) -> None:
    header, *lines = machine.text().splitlines()
    shown = lines.index("")
    shuffled = data.draw(st.permutations(lines[:shown]))
    assert parse("\n".join([header, *shuffled, *lines[shown:]])) == (machine.matrix(),)


@given(printed(blanks=False, least=2), st.data())
def test_cells_that_a_terminal_glued_are_parted(machine: Printed, data: st.DataObject) -> None:
    lines = machine.text().splitlines()
    number = data.draw(st.integers(1, machine.gpus))
    lines[number] = re.sub(r"\t *([A-Z0-9]+) *\t *([A-Z0-9]+)(?=\s|$)", r"\t\1\2", lines[number], count=1)
    assert parse("\n".join(lines) + "\n") == (machine.matrix(),)


def test_several_matrices_are_all_returned_and_keep_their_own_legend() -> None:
    two, one = PAIR.text(), Printed(1, 1, (("X", "PHB"), ("PHB", "X")), (("0-7",),))
    found = parse(f"node-1\n{two}node-2\n{one.text()}\n{P2P}")
    assert found[:2] == (PAIR.matrix(), one.matrix())
    assert [matrix.kind for matrix in found] == ["topo-m", "topo-m", "p2p"]


@each_row("word", ["OK", "CNS", "GNS", "TNS", "NS", "DR", "U"])
def test_a_table_of_peer_to_peer_status_is_told_by_its_words(word: str) -> None:
    matrix = parse(P2P.replace("CNS", word))[0]
    assert matrix == Matrix(
        "p2p", ("GPU0", "GPU1"), (), {"GPU0": {"GPU0": "X", "GPU1": word}, "GPU1": {"GPU0": word, "GPU1": "X"}},
        (None, None), (None, None), (None, None),
    )  # fmt: skip


@each_row("text", ["$ nvidia-smi topo -p2p r\n\tGPU0\nGPU0\tX\n", "\tGPU0\nGPU0\tX\nLegend:\n  OK = Status Ok\n"])
def test_of_one_gpu_the_command_or_the_legend_tells_peer_to_peer_status(text: str) -> None:
    assert parse(text)[0].kind == "p2p"


NO_NVLINK = Printed(2, 0, (("X", "SYS"), ("SYS", "X")), (("0", "0", "N/A"), ("1", "1", "N/A"))).text()
WITHOUT_NV = NO_NVLINK.replace("  NV#  = # NVLinks\n", "")


@each_row(
    ("text", "kind"),
    [
        ("# nvidia-smi topo -mp\n" + NO_NVLINK, "topo-mp"),
        (WITHOUT_NV + "\n", "topo-mp"),  # the legend is there to its end and explains no NV#
        (WITHOUT_NV, "topo-m"),  # the text ends where NV# would stand: it may have been cut
        ("$ nvidia-smi topo -m\n" + WITHOUT_NV + "\n", "topo-m"),
        (NO_NVLINK, "topo-m"),
        (NO_NVLINK.partition("Legend:")[0], "topo-m"),
    ],
)
def test_a_matrix_of_pcie_paths_alone_is_not_taken_for_a_lack_of_nvlink(text: str, kind: str) -> None:
    assert parse(text)[0].kind == kind


@each_row(
    ("titles", "tail", "affinities"),
    [
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "0-7\t0\t\tN/A", ("0-7", "0", "N/A")),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "0-7\t\tN/A\t\tN/A", ("0-7", "N/A", "N/A")),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t1\t\t10", ("", "1", "10")),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t\t\tN/A", ("", "", "N/A")),
        ("CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "0-55 0 N/A", ("0-55", "0", "N/A")),
        ("CPU Affinity\tNUMA Affinity", "0,2,4\t0-1", ("0,2,4", "0-1", None)),
        ("CPU Affinity\tNUMA Affinity", "\t1", ("", "1", None)),
        ("CPU Affinity\tNUMA Affinity", "0-7", ("0-7", "", None)),
        ("CPU Affinity\tNUMA Affinity", "\tN/A", ("", "N/A", None)),
        ("CPU Affinity", "0-0,8-8", ("0-0,8-8", None, None)),
        ("CPU Affinity", "", ("", None, None)),
        ("CPU Affinity\tNUMA", "0\t8", ("0", "8", None)),
        ("", "", (None, None, None)),
        ("", "NUMA 0", (None, None, None)),  # written by hand, under no title
    ],
)
def test_blank_affinities_are_told_from_columns_that_are_not_there(
    titles: str, tail: str, affinities: tuple[str | None, ...]
) -> None:
    matrix = parse(f"\tGPU0\t{titles}\nGPU0\t X \t{tail}\n\nLegend:\n  NV# = links\n")[0]
    assert (*matrix.cpu_affinity, *matrix.numa_affinity, *matrix.gpu_numa_id) == affinities
    assert not matrix.incomplete


@each_row("value", ["132-127", "8,0-3", "0-3,2", "1234567890", "0-", "a"])
def test_an_affinity_that_is_no_list_is_said_and_its_row_kept(value: str) -> None:
    matrix = parse(PAIR.text().replace("0-31", value, 1))[0]
    assert matrix.links == PAIR.matrix().links
    assert matrix.cpu_affinity == (None, "0-31")
    assert matrix.incomplete == (f"row GPU0: {value!r} is not a list of CPUs or nodes",)


def test_a_markdown_table_with_the_affinities_in_front_is_read() -> None:
    text = "| CPU Affinity |  | GPU0 | mlx5_0 |\n|---|---|---|---|\n| 0-7 | GPU0 | X | PIX |\n|  | mlx5_0 | PIX | X |\n"
    matrix = parse(text)[0]
    assert matrix.cpu_affinity == ("0-7",)
    assert matrix.links == {"GPU0": {"GPU0": "X", "mlx5_0": "PIX"}, "mlx5_0": {"GPU0": "PIX", "mlx5_0": "X"}}


THREE = Printed(
    2, 3, (("X", *["PIX"] * 4), *(("PIX",) * n + ("X",) + ("PIX",) * (4 - n) for n in range(1, 5))), (("0-7", "0"),) * 2
)


@each_row("glue", ["GPU0\tGPU1", "GPU1\tmlx5_2", "mlx5_2\tmlx5_3", "mlx5_4\tCPU", "Affinity\tNUMA"])
def test_a_header_that_is_glued_is_parted(glue: str) -> None:
    text = plain(THREE.text()).partition("NIC Legend")[0]
    for label, name in zip(THREE.labels, THREE.names, strict=True):
        text = text.replace(label, name)
    assert parse(on_header(lambda line: line.replace(glue, glue.replace("\t", "")))(text)) == (THREE.matrix(),)


def test_a_header_without_any_blank_is_parted() -> None:
    bare = on_header(lambda line: re.sub(r"\s", "", line))(plain(THREE.text()))
    assert parse(bare) == (THREE.matrix(),)


def test_a_column_that_only_the_legend_knows_is_missed() -> None:
    matrix = parse(PAIR.text() + "  NIC1: mlx5_9\n")[0]
    assert matrix.incomplete == ("column NIC1 is missing: the NIC Legend names it",)
    assert matrix.nics == ("mlx5_2",)


def without(line: int) -> Callable[[str], str]:
    return lambda text: "\n".join(text.splitlines()[:line] + text.splitlines()[line + 1 :])


def test_a_text_without_rows_of_nics_says_so() -> None:
    assert parse(replace(PAIR, nic_rows=False).text())[0].incomplete == ("row NIC0 is missing",)


@each_row(
    ("ruin", "cause"),
    [
        (lambda text: "", "the text is empty"),
        (lambda text: "GPU0 is fine\n", "no `nvidia-smi topo -m` matrix found"),
        (without(0), "line 1 is a row, but the header above it is missing"),
        (lambda text: "NIC1\tPIX\tSYS\t X \n" + text, "line 1 is a row above the header"),
        (lambda text: text.replace("\nNIC0", "\n"), "line 4 holds cells without a device"),
        (lambda text: text.partition("\n")[0], "no row follows the header in line 1"),
        (lambda text: "NVIDIA-SMI has failed because it could not reach the driver.", "itself failed: NVIDIA-SMI has"),
        (
            lambda text: "hwloc: Topology does not contain any PU, aborting!\n",
            "itself failed: hwloc: Topology does not",
        ),
        (lambda text: text.partition("\n")[0] + "\nFailed to run topology matrix\n", "Failed to run topology matrix"),
        (lambda text: "No devices were found\n", "itself failed: No devices were found"),
        (on_header(lambda line: line.replace("\tNIC0", "\tNIC0NIC1")), "row GPU0: 3 cells, but the header names 4"),
        (lambda text: text.replace("\tNV18", "", 1), "row GPU0: 2 cells, but the header names 3 devices"),
        (lambda text: text.replace("\tPIX", "\tPIX\tPIX", 1), "row GPU0: 4 cells, but the header names 3"),
        (lambda text: text.replace("PIX", "PINK", 1), "row GPU0: 'PINK' under NIC0 is not a link"),
        (lambda text: text.replace("\tPIX\t0", "\tPIX0", 1), "row GPU0: 'PIX0-31' under NIC0 is not a link"),
        (lambda text: text.replace(" X \tNV18", "NV18\t X ", 1), "row GPU0: NV18 under GPU0: X marks"),
        (lambda text: text.replace("NV18\t X ", " X \tNV18", 1), "row GPU1: X under GPU0: X marks"),
        (lambda text: text.replace("NV18", "NV4", 1), "rows disagree: NV4 from GPU0 to GPU1, NV18 from GPU1 to GPU0"),
        (without(1), "row of GPU0 is missing"),
        (without(2), "row of GPU1 is missing"),
        (lambda text: text.replace("GPU1\tNV18", "GPU0\tNV18"), "row GPU0: NV18 under GPU0"),
        (lambda text: text.replace("\nGPU1", "\nGPU7"), "row GPU7: the header does not name this device"),
        (lambda text: re.sub(r"(\nGPU0.*)", r"\1\1", text), "a second row of GPU0: two outputs may be interleaved"),
        (lambda text: re.sub(r"(.*\n)", r"\1\1", text), "header twice in a row: several outputs are interleaved"),
        (lambda text: text.replace("\nGPU1", "\nkernel: mlx5_core 0000:4a:00.0\nGPU1"), "line 3 is between rows"),
        (lambda text: rewrap(text, 40), "wrapped"),
        (lambda text: re.sub(r"(\nNIC0.*)", r"\1 0-31", text), "row NIC0: '0-31' follows a NIC's cells"),
        (lambda text: re.sub(r"\n(\w+\d\t.*)", lambda m: "\n" + re.sub(r"\s", "", m[1]), text), "lost the white space"),
        (lambda text: text.replace("NV18", "SYS").replace("PIX", "OK"), "'SYS' in a table of peer-to-peer status"),
        (lambda text: text + "  NIC0: mlx5_9\n", "calls NIC0 both mlx5_2 and mlx5_9"),
        (lambda text: " PPU0 X ICN2\n PPU1 ICN2 X\n", "not nvidia-smi output: it looks like that of ppu-smi"),
        (lambda text: "GPU0 0 XGMI\n", "not nvidia-smi output: it looks like that of rocm-smi"),
        (lambda text: "| GP0 | GP1 |\n", "not nvidia-smi output: it looks like that of DCGM"),
    ],
)
def test_what_is_refused_is_refused_by_its_cause(ruin: Callable[[str], str], cause: str) -> None:
    with pytest.raises(ParseError, match=re.escape(cause)):
        parse(ruin(PAIR.text()))


def cells(matrix: Matrix) -> list[list[str]]:
    return [list(row.values()) for row in matrix.links.values()]


def whole_or_said(machine: Printed, text: str) -> None:
    """A damaged text is refused, or says what is missing, or shows every cell."""
    with suppress(ParseError):
        (found,) = parse(text)
        assert found.incomplete or (cells(found) == cells(machine.matrix()) and len(found.nics) == machine.nics)


@given(printed(), st.booleans(), st.data())
def test_a_text_that_is_cut_is_never_taken_for_whole(machine: Printed, legend: bool, data: st.DataObject) -> None:
    text = replace(machine, legend=legend).text()
    whole_or_said(machine, text[: data.draw(st.integers(0, len(text)))])


@given(printed(), st.integers(4, 110))
def test_a_table_that_a_terminal_wrapped_is_never_taken_for_a_narrower_one(machine: Printed, width: int) -> None:
    whole_or_said(machine, rewrap(machine.text(), width))


@each_row("width", [24, 40, 64, 80])
def test_a_table_wrapped_between_two_columns_is_refused(width: int) -> None:
    with pytest.raises(ParseError):
        parse(rewrap(WIDE.text(), width))


@given(printed(blanks=False, least=2), st.data())
def test_one_cell_changed_is_always_found(machine: Printed, data: st.DataObject) -> None:
    one = data.draw(st.integers(0, machine.gpus - 1))
    two = data.draw(st.integers(0, machine.gpus - 1).filter(lambda n: n != one))
    row = list(machine.links[one])
    row[two] = data.draw(st.sampled_from(["X", "NV7", "OK", "FOO", ""]))
    ruined = replace(machine, links=(*machine.links[:one], tuple(row), *machine.links[one + 1 :]))
    with pytest.raises(ParseError):
        parse(ruined.text())


@each_row(
    ("rows", "missing"),
    [
        ("GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\n", "row GPU1 is missing"),
        ("GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\nGPU1\tNV18\t X ", "row GPU1 is cut after 2 of 3 cells"),
        ("GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\nGPU1\tNV1", "row GPU1 is cut after 0 of 3 cells"),  # perhaps of NV18
        ("GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\nGPU1\tNV18\t X \tSY", "row GPU1 is cut after 2 of 3 cells"),
        ("GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t0\t0", "row GPU1: its affinities are missing"),
        (
            "GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t0\t0\t\tN/A\nNIC0\t",
            "row NIC0 is cut after 0 of 3",
        ),
    ],
)
def test_truncated_text_gives_what_is_there_and_says_what_is_missing(rows: str, missing: str) -> None:
    (matrix,) = parse(PAIR.text().partition("\n")[0] + "\n" + rows)
    assert missing in matrix.incomplete[0]
    assert matrix.links["GPU0"] == {"GPU0": "X", "GPU1": "NV18", "NIC0": "PIX"}
    assert len(matrix.gpus) == len(matrix.cpu_affinity) == 2


def test_a_machine_is_asked_once() -> None:
    assert topo_matrix.run(answers({("run", "nvidia-smi", "topo", "-m"): PAIR.text()})) == PAIR.matrix()
    with pytest.raises(Missing):
        topo_matrix.run(answers({("run", "nvidia-smi", "topo", "-m"): Missing("nvidia-smi: not there")}))


def test_the_legend_of_these_tests_explains_nvlink() -> None:
    assert list(LEGEND)[-1] == "NV#"  # as nvidia-smi's does: the test of topo-mp rests on it
