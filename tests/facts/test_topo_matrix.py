"""`nvidia-smi topo`: what it prints on machines of every age, what becomes of that, and what is refused by its cause.

Each text is our own, written after the grammar in docs/maintainers/nccl.md; `fake_topo` makes those of drivers from 535
on, and the common damage.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from fake_topo import CARRIERS, FORMS, LEGEND, Printed, on_header, plain, printed, rewrap
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe import commands
from ncclprobe.commands import topo
from ncclprobe.commands.topo import judged
from ncclprobe.facts.topo_matrix import Matrix, parse
from ncclprobe.model.errors import ParseError
from ncclprobe.model.values import replace
from tests.each_row import each_row


def machine(gpus: int, nics: int, link: str, *tails: tuple[str, ...]) -> Printed:
    """Return a machine all of whose devices are linked alike."""
    size = range(gpus + nics)
    links = tuple(tuple("X" if one == other else link for other in size) for one in size)
    return Printed(gpus, nics, links, tails * (gpus if len(tails) == 1 else 1))


PAIR = Printed(2, 1, (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")), (("0-31", "0", "N/A"),) * 2)
THREE, FOUR = machine(2, 3, "PIX", ("0-7", "0")), machine(4, 6, "SYS", ())
WIDE = machine(12, 14, "NODE", ("0-95", "0", "N/A"))
NO_NVLINK = machine(2, 0, "SYS", ("0", "0", "N/A"), ("1", "1", "N/A")).text()
P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n"
Change = Callable[[str], str]


@given(printed(), st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(CARRIERS)))
def test_a_matrix_survives_its_journey(seen: Printed, form: str, carrier: str) -> None:
    assert parse(CARRIERS[carrier](FORMS[form](seen.text()))) == (seen.matrix(),)


@given(printed(blanks=False, least=2), st.data())
def test_rows_are_told_by_their_label_and_cells_that_a_terminal_glued_are_parted(
    seen: Printed, data: st.DataObject
) -> None:
    header, *lines = seen.text().splitlines()
    number = data.draw(st.integers(0, seen.gpus - 1))
    lines[number] = re.sub(r"\t *([A-Z0-9]+) *\t *([A-Z0-9]+)(?=\s|$)", r"\t\1\2", lines[number], count=1)
    shown = lines.index("")
    shuffled = data.draw(st.permutations(lines[:shown]))
    assert parse("\n".join([header, *shuffled, *lines[shown:]]) + "\n") == (seen.matrix(),)


def whole_or_said(seen: Printed, text: str) -> None:
    """A damaged text is refused, or says what is missing, or shows every cell."""
    with suppress(ParseError):
        (found,) = parse(text)
        cells = [[*row.values()] for row in found.links.values()]
        wanted = [[*row.values()] for row in seen.matrix().links.values()]
        assert found.incomplete or (cells == wanted and len(found.nics) == seen.nics)


@given(printed(), st.booleans(), st.data())
def test_a_text_that_is_cut_or_wrapped_is_never_taken_for_whole(
    seen: Printed, legend: bool, data: st.DataObject
) -> None:
    text = replace(seen, legend=legend).text()
    whole_or_said(seen, text[: data.draw(st.integers(0, len(text)))])
    whole_or_said(seen, rewrap(seen.text(), data.draw(st.integers(4, 110))))


@given(printed(blanks=False, least=2), st.data())
def test_one_cell_changed_is_always_found(seen: Printed, data: st.DataObject) -> None:
    one = data.draw(st.integers(0, seen.gpus - 1))
    two = data.draw(st.integers(0, seen.gpus - 1).filter(lambda n: n != one))
    row = list(seen.links[one])
    row[two] = data.draw(st.sampled_from(["X", "NV7", "OK", "FOO", ""]))
    with pytest.raises(ParseError):
        parse(replace(seen, links=(*seen.links[:one], tuple(row), *seen.links[one + 1 :])).text())


def glued(glue: str) -> str:
    """Return THREE with the names of its NICs in the header, and without the blank between two of its words."""
    text = plain(THREE.text()).partition("NIC Legend")[0]
    for label, name in zip(THREE.labels, THREE.names, strict=True):
        text = text.replace(label, name)
    return on_header(lambda line: line.replace(glue, glue.replace("\t", "")))(text)


def in_wide(cells: str) -> str:
    lines = WIDE.text().splitlines()
    lines[3] = lines[3].replace("NODE\tNODE", cells, 1)
    return "\n".join(lines) + "\n"


NIC0 = ("NIC0: mlx5_2", "NIC0:mlx5_2", "NIC0 : mlx5_2", "NIC0 -> mlx5_2", "NIC0 => mlx5_2", "NIC0 = mlx5_2",
        "NIC0: mlx5_2 -> eth2 (rail 0)", "NIC0: mlx5_2->ib0", "NIC0: mlx5_2 → ib0", "NIC0: mlx5_2(ib0), up",
        "NIC0: mlx5_2,", "NIC0: mlx5_2 # of socket 0", "# for the GPUs\n  NIC0: mlx5_2\n  -- for storage")  # fmt: skip
ABOVE = ("+ nvidia-smi topo -m", "== topology ==", "GPU Topology:", "--- Topology at Mon Sep 1 ---")
BETWEEN = ("   ", ", ", "; ", " | ", "\t")
GLUES = ("GPU0\tGPU1", "GPU1\tmlx5_2", "mlx5_2\tmlx5_3", "mlx5_4\tCPU", "Affinity\tNUMA")


@each_row(
    ("seen", "text"),
    [
        *((THREE, THREE.text().replace("NIC0: mlx5_2", entry)) for entry in NIC0),
        *((THREE, THREE.text().replace("mlx5_2\n  NIC1", f"mlx5_2{by}NIC1")) for by in BETWEEN),
        *((THREE, glued(glue)) for glue in GLUES),
        (THREE, on_header(lambda line: re.sub(r"\s", "", line))(plain(THREE.text()))),
        (THREE, THREE.text() + "\n$ nvidia-smi\nNIC0: see above\n"),
        *((PAIR, change(PAIR.text())) for change in (*FORMS.values(), *CARRIERS.values())),
        *((PAIR, f"{line}\n{PAIR.text()}") for line in ABOVE),
        (PAIR, PAIR.text().rstrip("\n") + "\nuser@host:~$ exit\n"),
        (WIDE, plain(WIDE.text()).expandtabs(8)),
        (PAIR, PAIR.text() + "  NIC0: mlx5_2\n"),
        (WIDE, in_wide("NODENODE")),
        (WIDE, in_wide("NODE NODE")),
    ],
)
def test_a_matrix_is_the_same_in_each_form_that_people_give_it(seen: Printed, text: str) -> None:
    assert parse(text) == (seen.matrix(),)


def named(nics: list[str], gpus: int = 2, link: str = "PIX") -> str:
    """A matrix of a driver up to 470, whose columns have the devices' own names."""
    devices = [*(f"GPU{n}" for n in range(gpus)), *nics]
    rows = ["\t" + "\t".join((*devices, "CPU Affinity"))]
    for number, device in enumerate(devices):
        cells = ["X" if other == number else link for other in range(len(devices))]
        rows.append("\t".join((device, *cells, *(["0-31"] if number < gpus else []))))
    return "\n".join(rows) + "\n"


def test_nics_have_many_names_and_nodes_any_number_of_gpus() -> None:
    names = [["mlx4_0"], ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"], ["mlx5_bond_0", "mlx5_bond_1"],
             ["mlx5_0", "mlx5_bond_0"], ["mlx5_ib0", "mlx5_ib1"], ["rocep65s0f0", "rocep65s0f1"], ["roceP2p1s0f0"],
             ["roceo12399"], ["ibp24s0f1"]]  # fmt: skip
    rows = [(nics, gpus) for nics in names for gpus in (2, 16)]
    assert [((found := parse(named(*row))[0]).nics, len(found.gpus), found.incomplete) for row in rows] == [
        (tuple(nics), gpus, ()) for nics, gpus in rows
    ]
    assert parse(named(["mlx4_0"], link="SOC") + "\nLegend:\n\n  X   = Self\n")[0].links["GPU0"]["mlx4_0"] == "SOC"


def test_several_matrices_are_all_returned_and_keep_their_own_legend() -> None:
    one = machine(1, 1, "PHB", ("0-7",))
    found = parse(f"node-1\n{PAIR.text()}node-2\n{one.text()}\n{P2P}")
    assert found[:2] == (PAIR.matrix(), one.matrix())
    assert [matrix.kind for matrix in found] == ["topo-m", "topo-m", "p2p"]
    before, _, legend = plain(PAIR.text()).partition("\n\n")
    assert parse(f"{legend}\n{before}\n")[0].links["GPU0"]["GPU1"] == "NV18"


def test_tables_of_markdown_are_read_or_refused_never_shifted() -> None:
    text = "| CPU Affinity |  | GPU0 | mlx5_0 |\n|---|---|---|---|\n| 0-7 | GPU0 | X | PIX |\n|  | mlx5_0 | PIX | X |\n"
    (matrix,) = parse(text)
    assert (matrix.cpu_affinity, matrix.links) == (
        ("0-7",), {"GPU0": {"GPU0": "X", "mlx5_0": "PIX"}, "mlx5_0": {"GPU0": "PIX", "mlx5_0": "X"}})  # fmt: skip
    lost = "| GPU0 | GPU1 |\n|---|---|---|\n| GPU0 | X | NV4 |\n| GPU1 | NV4 | X |\n"  # its header lost a cell
    assert parse(lost)[0].links["GPU0"] == {"GPU0": "X", "GPU1": "NV4"}


WITHOUT_NV = NO_NVLINK.replace("  NV#  = # NVLinks\n", "")
TWO = "\tGPU0\nGPU0\tX\n"


@each_row(
    ("text", "kind", "capability"),
    [
        *((P2P.replace("CNS", word), "p2p", "") for word in ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")),
        *((P2P + behind, "p2p", "") for behind in ("\nLegend:\n", "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n")),
        *((f"$ nvidia-smi topo -p2p {letter}\n{P2P}", "p2p", letter) for letter in "rwnap"),
        (f"$ nvidia-smi topo -p2p x\n{P2P}", "p2p", ""), (f"$ nvidia-smi topo -p2p\n{P2P}", "p2p", ""),
        (f"$ nvidia-smi topo -p2p r\n{TWO}", "p2p", "r"), (f"{TWO}Legend:\n  OK = Status Ok\n", "p2p", ""),
        ("# nvidia-smi topo -mp\n" + NO_NVLINK, "topo-mp", ""),
        (WITHOUT_NV + "\n", "topo-mp", ""),  # the legend is there to its end and explains no NV#
        (WITHOUT_NV, "topo-m", ""),  # the text ends where NV# would stand: it may have been cut
        ("$ nvidia-smi topo -m\n" + WITHOUT_NV + "\n", "topo-m", ""), (NO_NVLINK, "topo-m", ""),
        (NO_NVLINK.partition("Legend:")[0], "topo-m", ""),
        (NO_NVLINK.replace("one bridge\n  NV#", "one bridge    NV#") + "\n", "topo-m", ""),  # two entries on a line
        (NO_NVLINK.replace("one bridge\n  NV#", "one bridge    NV#").replace(" = ", " -> ") + "\n", "topo-m", ""),
        (NO_NVLINK.partition("NV#")[0] + "\n\n", "topo-mp", ""),
        (NO_NVLINK.partition("Legend:")[0] + "\nLegend:\n  X = Self  SYS = far\n  PIX  = near\n", "topo-m", ""),
        (re.sub(" += ", ": ", WITHOUT_NV) + "\n", "topo-mp", ""),
    ])  # fmt: skip
def test_a_matrix_of_pcie_paths_or_of_peers_is_not_taken_for_a_lack_of_nvlink(
    text: str, kind: str, capability: str
) -> None:
    found = parse(text)[0]
    assert (found.kind, found.capability) == (kind, capability)
    if kind == "p2p" and "GPU1" in text and "Legend" not in text:
        word = found.links["GPU0"]["GPU1"]
        rows = {"GPU0": {"GPU0": "X", "GPU1": word}, "GPU1": {"GPU0": word, "GPU1": "X"}}
        assert found == Matrix("p2p", ("GPU0", "GPU1"), (), rows, *[(None, None)] * 3, capability=capability)


ALL, OLDER = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "CPU Affinity\tNUMA Affinity"


@each_row(
    ("titles", "tail", "affinities"),
    [
        (ALL, "0-7\t0\t\tN/A", ("0-7", "0", "N/A")), (ALL, "0-7\t\tN/A\t\tN/A", ("0-7", "N/A", "N/A")),
        (ALL, "\t1\t\t10", ("", "1", "10")), (ALL, "\t\t\tN/A", ("", "", "N/A")),
        (ALL, "0-55 0 N/A", ("0-55", "0", "N/A")), (ALL, "0,64\t0\t\tN/A", ("0,64", "0", "N/A")),
        # lists as kernels write them: one by one, a desktop, offline CPUs, coherent memory, POWER9, a job over nodes
        (ALL, "0,2,4,6,8,10\t0\t\tN/A", ("0,2,4,6,8,10", "0", "N/A")),
        (ALL, "0-0,8-8,16-16\t\tN/A\t\tN/A", ("0-0,8-8,16-16", "N/A", "N/A")),
        (ALL, "128-255,384-511\t1\t\tN/A", ("128-255,384-511", "1", "N/A")),
        (ALL, "0-71\t0,3-9,11-17\t\t2", ("0-71", "0,3-9,11-17", "2")),
        (ALL, "0-79\t0,8,252-255\t\tN/A", ("0-79", "0,8,252-255", "N/A")),
        # two that ran into each other
        (ALL, "0-55,112-1670\t\tN/A", ("0-55,112-167", "0", "N/A")),
        (ALL, "56-111,168-2231\t\tN/A", ("56-111,168-223", "1", "N/A")),
        (ALL, "0-55,112-167 0N/A", ("0-55,112-167", "0", "N/A")),
        (OLDER, "0,2,4\t0-1", ("0,2,4", "0-1", None)), (OLDER, "\t1", ("", "1", None)),
        (OLDER, "0-7", ("0-7", "", None)), (OLDER, "\tN/A", ("", "N/A", None)),
        ("CPU Affinity", "0-0,8-8", ("0-0,8-8", None, None)),
        ("CPU Affinity", "", ("", None, None)), ("CPU Affinity\tNUMA", "0\t8", ("0", "8", None)),
        ("", "", (None, None, None)), ("", "NUMA 0", (None, None, None)),  # written by hand, under no title
    ])  # fmt: skip
def test_blank_affinities_are_told_from_columns_that_are_not_there(
    titles: str, tail: str, affinities: tuple[str | None, ...]
) -> None:
    matrix = parse(f"\tGPU0\t{titles}\nGPU0\t X \t{tail}\n\nLegend:\n  NV# = links\n")[0]
    assert (*matrix.cpu_affinity, *matrix.numa_affinity, *matrix.gpu_numa_id) == affinities
    assert not matrix.incomplete


def without(line: int) -> Change:
    return lambda text: "\n".join(text.splitlines()[:line] + text.splitlines()[line + 1 :])


def stops(at: str) -> str:
    return THREE.text().partition(at)[0]


HEAD, ROW = PAIR.text().partition("\n")[0] + "\n", "GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\n"
UNNAMED = "the NIC Legend is missing: the names of NIC0 to NIC2 are not known"


@each_row(
    ("text", "missing"),
    [
        (stops("\nNIC0\t"), "rows NIC0 to NIC2 are missing"), (stops("\nNIC2\t"), "row NIC2 is missing"),
        (stops("\n\n  X "), "the legend is cut off"), (stops("gend:"), "the legend is cut off"),
        (stops("  PHB"), "the legend is cut off after SYS"), (stops("B  = host"), "the legend is cut off"),
        (stops("  NV#"), UNNAMED), (stops("\nNIC Legend:"), UNNAMED),
        (stops(" Legend:\n\n  NIC0"), "the legend is cut off"),
        (stops("  NIC0: "), "the NIC Legend does not name NIC0 to NIC2"),
        (stops("  NIC1: "), "the NIC Legend does not name NIC1 to NIC2"),
        (stops("5_4\n"), "the NIC Legend is cut in the name of NIC2"),
        (THREE.text().replace("mlx5_4", "mlx5_25")[:-2], "the NIC Legend is cut in the name of NIC2"),  # not NIC0's
        (THREE.text().replace("  NIC1: mlx5_3\n", ""), "the NIC Legend does not name NIC1"),
        (stops("\nLegend:"), ""),  # a table without any legend is whole
        (PAIR.text() + "  NIC1: mlx5_9\n", "column NIC1 is missing: the NIC Legend names it"),
        (replace(PAIR, nic_rows=False).text(), "row NIC0 is missing"),
        ("\n".join(line for line in PAIR.text().splitlines() if "GPU" in line) + "\n", "row NIC0 is missing"),
        ("76 NICs found in the topology, only displaying 56\n" + PAIR.text(), "20 of 76 NICs are not shown"),
        *((PAIR.text().replace("0-31", value, 1), f"row GPU0: {value!r} is not a list of CPUs or nodes")
          for value in ("132-127", "8,0-3", "0-3,2", "1234567890", "0-", "a", "0-31,64-951-2")),
        (HEAD + ROW, "row GPU1 is missing"),
        (f"{HEAD}{ROW}GPU1\tNV18\t X ", "row GPU1 is cut after 2 of 3 cells"),
        (f"{HEAD}{ROW}GPU1\tNV1", "row GPU1 is cut after 0 of 3 cells"),  # perhaps of NV18
        (f"{HEAD}{ROW}GPU1\tNV18\t X \tSY", "row GPU1 is cut after 2 of 3 cells"),
        (f"{HEAD}{ROW}GPU1\tNV18\t X \tSYS\t0\t0", "row GPU1: its affinities are missing"),
        (f"{HEAD}{ROW}GPU1\tNV18\t X \tSYS\t0\t0\t\tN/A\nNIC0\t", "row NIC0 is cut after 0 of 3 cells"),
    ])  # fmt: skip
def test_a_text_that_lacks_something_gives_what_is_there_and_says_what_is_missing(text: str, missing: str) -> None:
    (matrix,) = parse(text)
    assert missing in matrix.incomplete if missing else not matrix.incomplete
    assert (matrix.gpus, len(matrix.cpu_affinity)) == (("GPU0", "GPU1"), 2)
    assert matrix.nics[0] in ("mlx5_2", "NIC0")
    assert matrix.links["GPU0"]["GPU1"] in ("NV18", "PIX")


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
        (lambda text: "hwloc: Topology does not contain any PU, aborting!\n", "itself failed: hwloc: Topology"),
        (lambda text: text.partition("\n")[0] + "\nFailed to run topology matrix\n", "Failed to run topology matrix"),
        (lambda text: "No devices were found\n", "itself failed: No devices were found"),
        (lambda text: "-i command line argument must be used in conjunction with -n or -p.\n", "itself failed: -i"),
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
        *((lambda _, width=width: rewrap(FOUR.text(), width), "rap") for width in (24, 40, 64, 80)),
        (lambda text: re.sub(r"(\nNIC0.*)", r"\1 0-31", text), "row NIC0: '0-31' follows a NIC's cells"),
        (lambda text: re.sub(r"\n(\w+\d\t.*)", lambda m: "\n" + re.sub(r"\s", "", m[1]), text), "lost the white space"),
        (lambda text: plain(text).replace("\t", "").replace(" ", ""), "lost the white space"),
        (lambda text: text.replace("NV18", "SYS").replace("PIX", "OK"), "'SYS' in a table of peer-to-peer status"),
        (lambda text: text + "  NIC0: mlx5_9\n", "calls NIC0 both mlx5_2 and mlx5_9"),
        (lambda text: THREE.text().replace("mlx5_4", "mlx5_2"), "one name to two devices"),
        (lambda text: " PPU0 X ICN2\n PPU1 ICN2 X\n", "not nvidia-smi output: it looks like that of ppu-smi"),
        (lambda text: "\tPPU0\tPPU1\nPPU0\tX\tICN4\nPPU1\tICN4\tX\n", "it looks like that of ppu-smi"),
        (lambda text: "GPU0 0 XGMI\n", "not nvidia-smi output: it looks like that of rocm-smi"),
        (lambda text: "| GP0 | GP1 |\n", "not nvidia-smi output: it looks like that of DCGM"),
    ])  # fmt: skip
def test_what_is_refused_is_refused_by_its_cause(ruin: Change, cause: str) -> None:
    with pytest.raises(ParseError, match=re.escape(cause)):
        parse(ruin(PAIR.text()))


def test_a_board_that_shows_a_number_of_gpus_that_no_board_has_gets_a_note_and_leaves_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count, link, said in ((7, "NV18", "one is missing"), (6, "NV18", "2 are missing"), (8, "NV18", ""),
                              (7, "SYS", "")):  # fmt: skip
        verdicts = judged(parse(machine(count, 0, link, ("0-55,112-167", "0", "N/A")).text()), "a text")
        notes = [each.message for verdict in verdicts for each in verdict.findings if verdict.id == "nvl.links"]
        assert [said in note for note in notes if "missing" in note] == [True] * bool(said)
    (tmp_path / "topo.txt").write_text(machine(7, 0, "NV18", ("0-55,112-167", "0", "N/A")).text())
    lacking = "all connected by NVSwitch; boards have 4, 8 or 16 GPUs, so one is missing"
    assert topo.main([str(tmp_path / "topo.txt")]) == 0
    assert f"7 GPUs: {lacking}" in " ".join(capsys.readouterr().out.split())
    assert commands.main(["doctor", str(tmp_path / "topo.txt")]) == 0
    assert f"NOTE nvl.links 7 GPUs {lacking}" in " ".join(capsys.readouterr().out.split())
    assert [*LEGEND][-1] == "NV#"  # as nvidia-smi's does: the rows of topo-mp rest on it
