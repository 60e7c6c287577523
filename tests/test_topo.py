"""`ncclprobe topo`: what a saved matrix yields to the checks, what they say of it, and what is printed."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_topo import Printed
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands import main
from ncclprobe.commands.topo import judged
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.topo_matrix import Matrix, parse
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.from_matrix import facts_of
from ncclprobe.nccl.paths import machine_topology
from tests.each_row import each_row

Links = Sequence[Sequence[str]]
Capsys = pytest.CaptureFixture[str]
Change = dict[tuple[int, int], str]


def server(gpus: int = 8, word: str = "NV18") -> list[list[str]]:
    """The words of a server of two sockets, with a NIC behind the PCIe switch of each GPU."""

    def between(one: int, two: int) -> str:
        if one == two:
            return "X"
        if one < gpus and two < gpus:
            return word
        near = "NODE" if one % gpus * 2 // gpus == two % gpus * 2 // gpus else "SYS"
        return "PXB" if one % gpus == two % gpus else near

    return [[between(one, two) for two in range(2 * gpus)] for one in range(2 * gpus)]


def changed(links: Links, change: Change) -> list[list[str]]:
    found = [list(row) for row in links]
    for (one, two), word in change.items():
        found[one][two] = found[two][one] = word
    return found


def matrix(links: Links, gpus: int) -> Matrix:
    return Printed(gpus, len(links) - gpus, tuple(map(tuple, links)), ((),) * gpus).matrix()


def said(links: Links, gpus: int = 8) -> list[str]:
    """Severity, check, subject and message of what is found."""
    verdicts = judged((matrix(links, gpus),), "FILE")
    assert not [verdict.why for verdict in verdicts if verdict.status is Status.UNKNOWN]
    return [f"{f.severity.value} {v.id} {f.subject}: {f.message}" for v in verdicts for f in v.findings]


def row_of(one: int, count: int, word: str) -> Change:
    return {(one, other): word for other in range(count) if other != one}


EIGHT, FOUR, THREE = server(), server(4, "NV4"), server(3, "SYS")
WEAK = row_of(3, 8, "NV16")


@each_row(
    ("links", "gpus", "wanted"),
    [
        (EIGHT, 8, []),
        (server(2, "SYS"), 2, ["note nvl.links 2 GPUs: no NVLink connects them: every pair is SYS"]),
        # Fewer NVLinks: of a GPU behind NVSwitches, of a pair though no NVSwitch makes such a pair, of a mesh.
        (changed(EIGHT, WEAK), 8, ["fail nvl.links GPU3: 16 NVLinks are up; its siblings have 18"]),
        (changed(EIGHT, {(3, 5): "NV16"}), 8, ["fail nvl.links GPU3: ", "fail nvl.links GPU5: "]),
        (changed(FOUR, row_of(2, 4, "SYS")), 4, ["warn nvl.links GPU2: 0 NVLinks are up; its siblings have 8"]),
        # Linked unequally by design: three of the eight V100s of a server; a pair with a bridge, and one without.
        (changed(THREE, {(0, 1): "NV1", (0, 2): "NV1", (1, 2): "NV2"}), 3, []),
        (changed(THREE, {(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"}), 3, []),
        # A NIC behind the other processor.
        (changed(EIGHT, row_of(11, 16, "SYS")), 8,
         ["warn ib.gdr GPU3: the nearest NIC is mlx5_2 at PHB; most GPUs have a NIC below their own switch"]),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_matrix_is_found_and_nothing_else(links: Links, gpus: int, wanted: list[str]) -> None:
    found = said(links, gpus)
    if wanted == []:
        assert [line for line in found if not line.startswith("note")] == []
    else:
        assert [
            line[: len(words)] if words[-1] == " " else line for line, words in zip(found, wanted, strict=True)
        ] == wanted


def test_what_a_matrix_cannot_show_is_unknown_and_never_passed() -> None:
    part = changed(server(4, "SYS"), {(0, 1): "NV1", (1, 2): "NV2", (2, 3): "NV1", (1, 3): "NV1"})
    assert isinstance(facts_of(matrix(part, 4))[NvLinks], Absent)  # part of a hybrid mesh
    tree = facts_of(matrix(changed(EIGHT, {(0, 9): "PIX", (1, 8): "PIX", (0, 8): "SYS"}), 8))[Pci]
    assert isinstance(tree, Absent)
    assert "no PCI tree has these words" in tree.why
    pcie = replace(matrix(server(8, "SYS"), 8), kind="topo-mp")
    status = {verdict.id: (verdict.status, verdict.why) for verdict in judged((pcie,), "FILE")}
    assert status["nvl.links"] == (Status.UNKNOWN, "a matrix of -mp shows no NVLinks")
    text = Printed(8, 0, tuple(tuple(row[:8]) for row in EIGHT[:8]), ((),) * 8).text()
    (cut,) = parse(text.partition("\nGPU6")[0] + "\n")  # of GPU5 the last cell is unsure
    assert [isinstance(row, Absent) for row in facts_of(cut)[NvLinks].gpus] == [False] * 5 + [True] * 3
    assert not [f for v in judged((cut,), "FILE") for f in v.findings if f.severity is not Severity.NOTE]


P2P = "$ nvidia-smi topo -p2p {}\n \tGPU0\tGPU1\t\n GPU0\tX\t{}\t\n GPU1\t{}\tX\t\n"


def test_tables_and_machines_of_one_text_are_judged_together_or_apart_and_rest_on_the_text() -> None:
    (verdict, *_rest) = judged((matrix(changed(EIGHT, {(0, 1): "NV16"}), 8),), "topo.txt")
    assert {evidence.source for finding in verdict.findings for evidence in finding.evidence} == {"topo.txt"}
    assert all(finding.remedy for finding in verdict.findings)
    bridged = Printed(2, 0, (("X", "NV4"), ("NV4", "X")), ((),) * 2).text()
    verdicts = judged(parse(f"{bridged}\n{P2P.format('r', 'CNS', 'CNS')}"), "FILE")
    assert [v.id for v in verdicts] == ["nvl.links", "ib.gdr", "ib.gdr", "gpu.p2p"]
    (finding,) = verdicts[-1].findings
    assert (finding.severity, finding.subject) == (Severity.FAIL, "GPU0 and GPU1")
    assert judged(parse(f"{bridged}\n{P2P.format('r', 'OK', 'OK')}"), "FILE")[-1].status is Status.PASS
    for letter in "nap":  # another capability denies no access
        (verdict,) = judged(parse(P2P.format(letter, "NS", "NS")), "FILE")
        assert (verdict.status, f"-p2p {letter} does not say" in verdict.why) == (Status.UNKNOWN, True)
    two = judged((matrix(EIGHT, 8), matrix(changed(EIGHT, WEAK), 8)), "FILE")
    assert [(v.node, v.status) for v in two if v.id == "nvl.links"] == [("1", Status.PASS), ("2", Status.FAIL)]


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, list[list[str]]]:
    """The words of a machine whose tree is known: a device's place is its NUMA node, bridge, port and two switches."""
    gpus, nics = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    places = [[draw(st.integers(0, 1)) for _ in range(4)] for _ in range(gpus + nics)]
    words = ("SYS", "NODE", "PHB", "PXB", "PIX")

    def between(one: int, two: int) -> str:
        same = next((n for n in range(4) if places[one][n] != places[two][n]), 4)
        return "X" if one == two else words[same]

    size = range(gpus + nics)
    return gpus, [[between(one, two) for two in size] for one in size]


@given(trees())
def test_the_tree_of_a_matrix_prints_the_matrix(machine: tuple[int, list[list[str]]]) -> None:
    gpus, links = machine
    shown = matrix(links, gpus)
    facts = facts_of(shown)
    assert isinstance(facts[Pci], Pci)
    assert isinstance(facts[Gpus], Gpus)
    own = machine_topology(facts[Pci], facts[Gpus], facts[NvLinks], facts[Fabric]).smi
    assert {one: {two: own[one, two] for two in row} for one, row in shown.links.items()} == shown.links


MACHINE = Printed(
    2, 1, (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")), (("0-7", "0"), ("8-15", "1"))
)
THREE_GPUS = replace(
    MACHINE, gpus=3, nics=0, tails=(("0-7", "0"),) * 3,
    links=(("X", "NV16", "NV16"), ("NV16", "X", "NV18"), ("NV16", "NV18", "X")),
)  # fmt: skip
FAR = changed(server(3, "NODE"), {**row_of(5, 6, "SYS"), (0, 4): "NODE", (1, 3): "NODE", (0, 3): "PIX", (1, 4): "PIX"})
FAR_NIC = Printed(3, 3, tuple(map(tuple, FAR)), (("0-7", "0"),) * 3)


def printed(tmp_path: Path, capsys: Capsys, text: str | None, *options: str) -> tuple[int, str]:
    path = tmp_path / "topo.txt"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    code = main(["topo", str(path), *options])
    told = capsys.readouterr()
    return code, (told.out or told.err).replace(str(path), "FILE")


def test_json_is_what_the_contract_says(tmp_path: Path, capsys: Capsys) -> None:
    code, out = printed(tmp_path, capsys, MACHINE.text(), "--json", "-")
    assert code == 0
    links = {
        "GPU0": {"GPU0": "X", "GPU1": "NV18", "mlx5_2": "PIX"},
        "GPU1": {"GPU0": "NV18", "GPU1": "X", "mlx5_2": "SYS"},
        "mlx5_2": {"GPU0": "PIX", "GPU1": "SYS", "mlx5_2": "X"},
    }
    own = {"kind": "topo-m", "gpus": ["GPU0", "GPU1"], "nics": ["mlx5_2"], "links": links, "incomplete": []}
    own |= {"cpu_affinity": ["0-7", "8-15"], "numa_affinity": ["0", "1"], "gpu_numa_id": [None, None], "capability": ""}
    whole = {"schema": "ncclprobe.topology/1", "matrices": [own], "findings": [], "unknown": []}
    assert json.loads(out) == {**whole, "status": "pass", "exit_code": 0}
    code, out = printed(tmp_path, capsys, THREE_GPUS.text(), "--json", "-")
    told = json.loads(out)
    (finding,) = told["findings"]
    assert (code, told["status"], told["exit_code"]) == (4, "fail", 4)
    assert (finding["check"], finding["matrix"], finding["subject"]) == ("nvl.links", 1, "GPU0")
    assert finding["evidence"] == [{"source": "FILE", "line": None, "text": ""}]


def test_text_shows_the_matrix_the_nics_near_each_gpu_and_what_looks_wrong(tmp_path: Path, capsys: Capsys) -> None:
    code, text = printed(tmp_path, capsys, MACHINE.text())
    out = text.splitlines()
    assert (code, out[-3:]) == (0, ["  nothing", "", "PASS  (exit 0)"])
    assert out[:3] == ["topo-m: 2 GPUs, 1 NIC", "        GPU0  GPU1  mlx5_2", "GPU0    X     NV18  PIX"]
    assert out[7:9] == ["GPU0  0-7   0     -         PIX: mlx5_2", "GPU1  8-15  1     -         SYS: mlx5_2"]
    code, text = printed(tmp_path, capsys, THREE_GPUS.text())
    told = text.partition("what looks wrong")[2].splitlines()
    assert told[2] == "  FAIL    nvl.links GPU0: 16 NVLinks are up; its siblings have 18"
    assert told[3].startswith("          fix: reset the GPUs")
    assert (code, told[-1]) == (4, "FAIL  (exit 4)")


@each_row(
    ("text", "options", "code", "words"),
    [
        # A warning is 4 only if that is asked for.
        (FAR_NIC.text(), (), 0, "WARN"),
        (FAR_NIC.text(), ("--fail-on", "warn"), 4, "WARN"),
        ("\n".join(MACHINE.text().splitlines()[:2]) + "\n", (), 3, "incomplete: row GPU1 is missing\n"),
        ("", (), 2, "the text is empty"),
        ("Failed to run topology matrix\n", (), 2, "nvidia-smi itself failed"),
        ("\0\xff", (), 2, "no `nvidia"),
        (None, (), 2, "FILE: "),
    ],
)
def test_exit_codes_and_causes(
    text: str | None, options: tuple[str, ...], code: int, words: str, tmp_path: Path, capsys: Capsys
) -> None:
    got, said_ = printed(tmp_path, capsys, text, *options)
    assert (got, words in said_) == (code, True)


def test_folders_and_pipes_are_refused_and_without_a_file_this_machine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path, f"{tmp_path}: cannot be read"), (tmp_path / "pipe", "not a regular file")):
        assert main(["topo", str(path)]) == 2
        assert why in capsys.readouterr().err
    command = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["topo"]) == 2
    assert "give a file" in capsys.readouterr().err
    command.write_text("#!/bin/sh\n[ \"$*\" = 'topo -m' ] && printf '\\tGPU0\\nGPU0\\t X \\n'\n")
    command.chmod(0o755)
    assert main(["topo"]) == 0
    assert capsys.readouterr().out.startswith("topo-m: 1 GPU, 0 NICs")
