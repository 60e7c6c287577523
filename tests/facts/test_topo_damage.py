"""Matrices that lost something on the way: what can be told of them is, and what cannot is said."""

from pathlib import Path

import pytest

from ncclprobe import commands
from ncclprobe.commands import topo
from ncclprobe.commands.topo import judged
from ncclprobe.facts.topo_matrix import parse

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def matrix(count: int, *ends: str, link: str = "NV18", legend: str = LEGEND, above: str = "") -> str:
    """A matrix of `count` GPUs; `ends` are what stands behind the links of each row, the last one for all the rest."""
    names = [f"GPU{number}" for number in range(count)]
    lines = [above, "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for one, name in enumerate(names):
        cells = [" X " if one == two else link for two in range(count)]
        lines.append("\t".join([name, *cells, ends[min(one, len(ends) - 1)]]))
    return "\n".join([*lines, legend])


WHOLE = "0-55,112-167\t0\t\tN/A"


def test_affinities_that_ran_into_each_other_are_taken_apart() -> None:
    glued = {
        "0-55,112-1670\t\tN/A": ("0-55,112-167", "0"),
        "56-111,168-2231\t\tN/A": ("56-111,168-223", "1"),
        "0-55,112-167 0N/A": ("0-55,112-167", "0"),
        "0-31,64-951-2\t\tN/A": None,  # an odd list is said to be one
        WHOLE: ("0-55,112-167", "0"),
    }
    bad = []
    for end, meant in glued.items():
        (found,) = parse(matrix(4, end))
        told = (found.cpu_affinity[0], found.numa_affinity[0])
        if (meant and told != meant) or (meant is None and not found.incomplete):
            bad.append((end, told, found.incomplete))
        if found.links["GPU0"]["GPU1"] != "NV18":
            bad.append((end, "links"))
    assert not bad


def test_nics_that_nvidia_smi_leaves_out_are_counted() -> None:
    (found,) = parse(matrix(4, WHOLE, above="76 NICs found in the topology, only displaying 56"))
    assert found.incomplete == ("20 of 76 NICs are not shown",)
    assert not parse(matrix(4, WHOLE))[0].incomplete


def test_a_legend_written_by_hand_does_not_make_a_matrix_one_of_mp() -> None:
    ours = LEGEND.replace("  NV#  = Connection traversing a bonded set of # NVLinks\n", "")
    for legend, kind in (("\nLegend:\n  X = Self  SYS = far\n  PIX  = near\n", "topo-m"), (ours, "topo-mp")):
        assert parse(matrix(2, WHOLE, link="SYS", legend=f"{legend}\n"))[0].kind == kind


@pytest.mark.parametrize(("count", "link", "missing"), [(7, "NV18", 1), (6, "NV18", 2), (8, "NV18", 0), (7, "SYS", 0)])
def test_a_board_that_shows_a_number_of_gpus_that_no_board_has_gets_a_note(count: int, link: str, missing: int) -> None:
    verdicts = judged(parse(matrix(count, WHOLE, link=link)), "a text")
    notes = [each.message for verdict in verdicts for each in verdict.findings if verdict.id == "nvl.links"]
    said = "one is missing" if missing == 1 else f"{missing} are missing"
    assert [said in note for note in notes if "missing" in note] == [True] * bool(missing)


def test_a_note_on_lacking_gpus_leaves_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(matrix(7, WHOLE))
    lacking = "all connected by NVSwitch; boards have 4, 8 or 16 GPUs, so one is missing"
    assert topo.main([str(path)]) == 0
    assert f"7 GPUs: {lacking}" in " ".join(capsys.readouterr().out.split())
    assert commands.main(["doctor", str(path)]) == 0
    assert f"NOTE nvl.links 7 GPUs {lacking}" in " ".join(capsys.readouterr().out.split())
