"""`ncclprobe topo`: what a saved matrix yields to the checks, what they say of it, and what is printed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_topo import Printed
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands import main
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.model.values import replace
from ncclprobe.nccl.from_matrix import facts_of
from ncclprobe.nccl.paths import machine_topology

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


def row_of(one: int, count: int, word: str) -> Change:
    return {(one, other): word for other in range(count) if other != one}


EIGHT, WEAK = server(), row_of(3, 8, "NV16")
P2P = "$ nvidia-smi topo -p2p {}\n \tGPU0\tGPU1\t\n GPU0\tX\t{}\t\n GPU1\t{}\tX\t\n"
MACHINE = Printed(
    2, 1, (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")), (("0-7", "0"), ("8-15", "1"))
)
THREE_GPUS = replace(
    MACHINE, gpus=3, nics=0, tails=(("0-7", "0"),) * 3,
    links=(("X", "NV16", "NV16"), ("NV16", "X", "NV18"), ("NV16", "NV18", "X")),
)  # fmt: skip
FAR = changed(server(3, "NODE"), {**row_of(5, 6, "SYS"), (0, 4): "NODE", (1, 3): "NODE", (0, 3): "PIX", (1, 4): "PIX"})
FAR_NIC = Printed(3, 3, tuple(map(tuple, FAR)), (("0-7", "0"),) * 3)


def text(links: Links, gpus: int) -> str:
    """What is printed of a machine whose CPUs are not shown."""
    return Printed(gpus, len(links) - gpus, tuple(map(tuple, links)), ((),) * gpus).text()


BRIDGED, LONE = text((("X", "NV4"), ("NV4", "X")), 2), text((("X", "SYS"), ("SYS", "X")), 2)
TEXTS: dict[str, tuple[str, str]] = {
    "with CPUs": (MACHINE.text(), ""), "with CPUs, JSON": (MACHINE.text(), "--json -"),
    "three GPUs": (THREE_GPUS.text(), ""), "three GPUs, JSON": (THREE_GPUS.text(), "--json -"),
    # A warning is 4 only if that is asked for.
    "a far NIC": (FAR_NIC.text(), ""), "a far NIC, gate": (FAR_NIC.text(), "--fail-on warn"),
    "a row less": ("\n".join(MACHINE.text().splitlines()[:2]) + "\n", ""), "nothing": ("", ""),
    "a failure": ("Failed to run topology matrix\n", ""), "no text": ("\0\xff", ""),
    "two machines": (text(EIGHT, 8) + text(changed(EIGHT, WEAK), 8), ""),
    "two machines, JSON": (text(EIGHT, 8) + text(changed(EIGHT, WEAK), 8), "--json -"),
    "one whole, one cut": (MACHINE.text() + "\n".join(MACHINE.text().splitlines()[:2]) + "\n", ""),
    "one cut, one whole": ("\n".join(MACHINE.text().splitlines()[:2]) + "\n" + MACHINE.text(), ""),
    "a pair that cannot": (f"{BRIDGED}\n{P2P.format('r', 'CNS', 'CNS')}", ""),
    "a pair that cannot, JSON": (f"{BRIDGED}\n{P2P.format('r', 'CNS', 'CNS')}", "--json -"),
    "a pair that can": (f"{BRIDGED}\n{P2P.format('r', 'OK', 'OK')}", ""),
    **{f"another capability, {letter}": (P2P.format(letter, "NS", "NS"), "") for letter in "nap"},
    "a table of other GPUs": (f"{text(EIGHT, 8)}\n{P2P.format('r', 'CNS', 'CNS')}", ""),
    "two tables of a pair": (f"{BRIDGED}\n{P2P.format('r', 'OK', 'OK')}\n{P2P.format('r', 'CNS', 'CNS')}", ""),
    "a table, then its machine": (f"{P2P.format('r', 'CNS', 'CNS')}\n{BRIDGED}", ""), "no NIC": (LONE, ""),
    "larger than it may be": ("#" * ((16 << 20) + 1), ""), "as large as it may be": ("#" * (16 << 20), ""),
    **{f"{width} columns": (text(EIGHT, 8), f"COLUMNS={width}") for width in (40, 41, 45, 46, 53, 60, 200)},
}  # fmt: skip
"""What is printed of each, with which options, is in tests/data/command_values/topo-texts.txt."""


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


def test_without_a_file_this_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    command = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["topo"]) == 2
    said = "nvidia-smi: not there; give a file with the output of `nvidia-smi topo -m`"
    assert capsys.readouterr().err == f"ncclprobe: {said}\n"
    command.write_text("#!/bin/sh\n[ \"$*\" = 'topo -m' ] && printf '\\tGPU0\\nGPU0\\t X \\n'\n")
    command.chmod(0o755)
    assert main(["topo"]) == 0
    assert capsys.readouterr().out.startswith("topo-m: 1 GPU, 0 NICs")
