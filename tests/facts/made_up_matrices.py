"""Matrices of `nvidia-smi topo`, whole, cut and damaged: `texts-matrices.txt` keeps what is read of each."""

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from fake_topo import Printed, on_header, plain, rewrap

from ncclprobe.commands import main
from ncclprobe.commands.topo import judged
from ncclprobe.facts.topo_matrix import Matrix, parse
from ncclprobe.model.values import replace
from tests.test_topo import Change, changed, matrix, row_of, server


def machine(gpus: int, nics: int, link: str, *tails: tuple[str, ...]) -> Printed:
    """Return a machine all of whose devices are linked alike."""
    size = range(gpus + nics)
    links = tuple(tuple("X" if one == other else link for other in size) for one in size)
    return Printed(gpus, nics, links, tails * (gpus if len(tails) == 1 else 1))


TAIL = ("0-55,112-167", "0", "N/A")
PAIR = Printed(2, 1, (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X")), (("0-31", "0", "N/A"),) * 2)
THREE, FOUR = machine(2, 3, "PIX", ("0-7", "0")), machine(4, 6, "SYS", ())
WIDE = machine(12, 14, "NODE", ("0-95", "0", "N/A"))
NO_NVLINK = machine(2, 0, "SYS", ("0", "0", "N/A"), ("1", "1", "N/A")).text()
P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n"


WITHOUT_NV = NO_NVLINK.replace("  NV#  = # NVLinks\n", "")
TWO = "\tGPU0\nGPU0\tX\n"
ALL, OLDER = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID", "CPU Affinity\tNUMA Affinity"


def without(line: int) -> Callable[[str], str]:
    return lambda text: "\n".join(text.splitlines()[:line] + text.splitlines()[line + 1 :])


def stops(at: str) -> str:
    return THREE.text().partition(at)[0]


HEAD, ROW = PAIR.text().partition("\n")[0] + "\n", "GPU0\t X \tNV18\tPIX\t0\t0\t\tN/A\n"
UNNAMED = "the NIC Legend is missing: the names of NIC0 to NIC2 are not known"


def named(nics: list[str], gpus: int = 2, link: str = "PIX") -> str:
    """A matrix of a driver up to 470, whose columns have the devices' own names."""
    devices = [*(f"GPU{n}" for n in range(gpus)), *nics]
    rows = ["\t" + "\t".join((*devices, "CPU Affinity"))]
    for number, device in enumerate(devices):
        cells = ["X" if other == number else link for other in range(len(devices))]
        rows.append("\t".join((device, *cells, *(["0-31"] if number < gpus else []))))
    return "\n".join(rows) + "\n"


def _titled(titles: str, tail: str) -> object:
    return parse(f"\tGPU0\t{titles}\nGPU0\t X \t{tail}\n\nLegend:\n  NV# = links\n")


MACHINE = Printed(2, 1, PAIR.links, (("0-7", "0"), ("8-15", "1")))
THREE_GPUS = replace(MACHINE, gpus=3, nics=0, tails=(("0-7", "0"),) * 3,
                     links=(("X", "NV16", "NV16"), ("NV16", "X", "NV18"), ("NV16", "NV18", "X")))  # fmt: skip
_EIGHT, _FOUR, _THREE = server(), server(4, "NV4"), server(3, "SYS")
_WEAK = changed(_EIGHT, row_of(3, 8, "NV16"))
_NEAR: Change = {(0, 4): "NODE", (1, 3): "NODE", (0, 3): "PIX", (1, 4): "PIX"}
_FAR_NIC = Printed(
    3, 3, tuple(map(tuple, changed(server(3, "NODE"), row_of(5, 6, "SYS") | _NEAR))), (("0-7", "0"),) * 3
)
_BRIDGED = Printed(2, 0, (("X", "NV4"), ("NV4", "X")), ((),) * 2).text()
_PEERS = "$ nvidia-smi topo -p2p {}\n \tGPU0\tGPU1\t\n GPU0\tX\t{}\t\n GPU1\t{}\tX\t\n"


def _judged(*matrices: Matrix) -> object:
    return [(each.id, each.node, each.status.value, each.why, [(found.severity.value, found.subject, found.message,
                                                                found.seen,
             bool(found.remedy)) for found in each.findings]) for each in judged(matrices, "FILE")]  # fmt: skip


def _printed(text: str | None, *options: str) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"COLUMNS": "200"}):
        path, out = Path(folder, "topo.txt"), io.StringIO()
        if text is not None:
            path.write_text(text, encoding="latin-1")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["topo", str(path), *options])
    return code, out.getvalue().replace(str(path), "FILE")


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    pair, before = PAIR.text(), plain(PAIR.text()).split("\n\n")
    cut = Printed(8, 0, tuple(tuple(row[:8]) for row in _EIGHT[:8]), ((),) * 8).text().partition("\nGPU6")[0]
    return {
        "kinds of matrices": (lambda text: parse(text), [(each,) for each in (*(P2P.replace("CNS", word) for word in (
            "OK", "CNS", "GNS", "TNS", "NS", "DR", "U")), *(P2P + behind for behind in ("\nLegend:\n",
            "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n")), *(f"$ nvidia-smi topo -p2p {letter}\n{P2P}" for
            letter in "rwnap"), f"$ nvidia-smi topo -p2p x\n{P2P}", f"$ nvidia-smi topo -p2p\n{P2P}",
            f"$ nvidia-smi topo -p2p r\n{TWO}", f"{TWO}Legend:\n  OK = Status Ok\n", "# nvidia-smi topo -mp\n" +
            NO_NVLINK, WITHOUT_NV + "\n", WITHOUT_NV, "$ nvidia-smi topo -m\n" + WITHOUT_NV + "\n", NO_NVLINK,
            NO_NVLINK.partition("Legend:")[0], NO_NVLINK.replace("one bridge\n  NV#", "one bridge    NV#") + "\n",
            NO_NVLINK.replace("one bridge\n  NV#", "one bridge    NV#").replace(" = ", " -> ") + "\n",
            NO_NVLINK.partition("NV#")[0] + "\n\n", NO_NVLINK.partition("Legend:")[0] +
            "\nLegend:\n  X = Self  SYS = far\n  PIX  = near\n", re.sub(" += ", ": ", WITHOUT_NV) + "\n")]),
        "matrices of older drivers": (lambda *nics: parse(named([*nics], 16 if nics[1:] else 2)), [("mlx4_0",),
            ("mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"), ("mlx5_bond_0", "mlx5_bond_1"), ("mlx5_0", "mlx5_bond_0"),
            ("mlx5_ib0", "mlx5_ib1"), ("rocep65s0f0", "rocep65s0f1"), ("roceP2p1s0f0",), ("roceo12399",),
            ("ibp24s0f1", )]),
        "several matrices": (lambda text: parse(text), [(each,) for each in (
            f"node-1\n{pair}node-2\n{machine(1, 1, 'PHB', ('0-7',)).text()}\n{P2P}",
            "\n\n".join((*before[1:], before[0])) + "\n", named(["mlx4_0"], link="SOC") + "\nLegend:\n\n  X   = Self\n",
            "| GPU0 | GPU1 |\n|---|---|---|\n| GPU0 | X | NV4 |\n| GPU1 | NV4 | X |\n",
            "| CPU Affinity |  | GPU0 | mlx5_0 |\n|---|---|---|---|\n"
            "| 0-7 | GPU0 | X | PIX |\n|  | mlx5_0 | PIX | X |\n",
            pair + "\n" + P2P.replace("CNS", "OK").replace("X\tOK", "X\tPIX", 1),
            P2P.replace("X\tCNS", "X\tSYS").replace("CNS\tX", "NV4\tX"), f"$ nvidia-smi topo -p2p rwnap\n{P2P}",
            f"p2p status\n{P2P}", f"{P2P}\nLegend:\n\n  X = Self\n  U = Unknown",
            f"{P2P}\nLegend:\n\n  X = Self\n  GNS = no", pair.replace("\tCPU Affinity", "\tCPU Affinity\tCPU Affinity"),
            "   NVIDIA-SMI has failed" + "x" * 300, pair.replace("\tNIC0\tCPU", "\tNIC0\tNIC0\tCPU"),
            NO_NVLINK.replace("  SYS ", "  NODE = one\n  SYS "), pair.replace("NV18", "NV"),
            pair.replace("\tGPU1", "", 1), pair.replace("GPU1", "GPU0"))]),
        "boards that lack GPUs": (lambda gpus, link: _judged(*parse(machine(gpus, 0, link, TAIL).text())), [
            *((gpus, link) for gpus in (2, 3, 4, 6, 7, 8) for link in ("NV18", "SYS"))]),
        "judged matrices": (lambda *given: _judged(*(matrix(links, gpus) for links, gpus in given)), [((_EIGHT, 8),), ((
            server(2, "SYS"), 2),), ((_WEAK, 8),), ((changed(_EIGHT, {(3, 5): "NV16"}), 8),), ((changed(_FOUR, row_of(2,
            4, "SYS")), 4),), ((changed(_THREE, {(0, 1): "NV1", (0, 2): "NV1", (1, 2): "NV2"}), 3),), ((changed(_THREE,
            {(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"}), 3),), ((changed(_EIGHT, row_of(11, 16, "SYS")), 8),), ((
            _EIGHT, 8), (_WEAK, 8)), ((changed(_EIGHT, {(0, 1): "NV16"}), 8),), ((changed(server(4, "SYS"), {(0,
            1): "NV1", (1, 2): "NV2", (2, 3): "NV1", (1, 3): "NV1"}), 4),), ((changed(_EIGHT, {(0, 9): "PIX", (1,
            8): "PIX", (0, 8): "SYS"}), 8),)]),
        "texts that are judged": (lambda text: _judged(*parse(text)), [(each,) for each in (*(
            f"{_BRIDGED}\n{_PEERS.format('r', word, word)}" for word in ("CNS", "OK")), *(_PEERS.format(letter, "NS",
            "NS") for letter in "nap"), "$ nvidia-smi topo -mp\n" + Printed(8, 8, tuple(map(tuple, server(8, "SYS"))),
            ((),) * 8).text(), cut + "\n")]),
        "matrices that are printed": (_printed, [(machine(7, 0, "NV18", TAIL).text(),), (MACHINE.text(),),
            (MACHINE.text(), "--json", "-"), (THREE_GPUS.text(),), (THREE_GPUS.text(), "--json", "-"),
            (_FAR_NIC.text(),), (_FAR_NIC.text(), "--fail-on", "warn"), ("\n".join(MACHINE.text().splitlines()[:2]) +
            "\n",), ("",), ("\0\xff",), (None,), ("Failed to run topology matrix\n",)]),
        "affinities of a matrix": (_titled, [(ALL, "0-7\t0\t\tN/A"), (ALL, "0-7\t\tN/A\t\tN/A"), (ALL, "\t1\t\t10"),
            (ALL, "\t\t\tN/A"), (ALL, "0-55 0 N/A"), (ALL, "0,64\t0\t\tN/A"), (ALL, "0,2,4,6,8,10\t0\t\tN/A"),
            (ALL, "0-0,8-8,16-16\t\tN/A\t\tN/A"), (ALL, "128-255,384-511\t1\t\tN/A"), (ALL, "0-71\t0,3-9,11-17\t\t2"),
            (ALL, "0-79\t0,8,252-255\t\tN/A"), (ALL, "0-55,112-1670\t\tN/A"), (ALL, "56-111,168-2231\t\tN/A"),
            (ALL, "0-55,112-167 0N/A"), (OLDER, "0,2,4\t0-1"), (OLDER, "\t1"), (OLDER, "0-7"), (OLDER, "\tN/A"),
            ("CPU Affinity", "0-0,8-8"), ("CPU Affinity", ""), ("CPU Affinity\tNUMA", "0\t8"), ("", ""),
            ("", "NUMA 0")]),
        "matrices that lack something": (lambda text: parse(text), [(each,) for each in (stops("\nNIC0\t"),
            stops("\nNIC2\t"), stops("\n\n  X "), stops("gend:"), stops("  PHB"), stops("B  = host"), stops("  NV#"),
            stops("\nNIC Legend:"), stops(" Legend:\n\n  NIC0"), stops("  NIC0: "), stops("  NIC1: "), stops("5_4\n"),
            THREE.text().replace("mlx5_4", "mlx5_25")[:-2], THREE.text().replace("  NIC1: mlx5_3\n", ""),
            stops("\nLegend:"), PAIR.text() + "  NIC1: mlx5_9\n", replace(PAIR, nic_rows=False).text(),
            "\n".join(line for line in PAIR.text().splitlines() if "GPU" in line) + "\n",
            "76 NICs found in the topology, only displaying 56\n" + PAIR.text(), *(PAIR.text().replace("0-31", value, 1)
            for value in ("132-127", "8,0-3", "0-3,2", "1234567890", "0-", "a", "0-31,64-951-2")), HEAD + ROW,
            f"{HEAD}{ROW}GPU1\tNV18\t X ", f"{HEAD}{ROW}GPU1\tNV1", f"{HEAD}{ROW}GPU1\tNV18\t X \tSY",
            f"{HEAD}{ROW}GPU1\tNV18\t X \tSYS\t0\t0", f"{HEAD}{ROW}GPU1\tNV18\t X \tSYS\t0\t0\t\tN/A\nNIC0\t")]),
        "matrices that are refused": (lambda text: parse(text), [(each,) for each in ("", "GPU0 is fine\n", without(0)(
            pair), "NIC1\tPIX\tSYS\t X \n" + pair, pair.replace("\nNIC0", "\n"), pair.partition("\n")[0],
            "NVIDIA-SMI has failed because it could not reach the driver.",
            "hwloc: Topology does not contain any PU, aborting!\n", pair.partition("\n")[0] +
            "\nFailed to run topology matrix\n", "No devices were found\n",
            "-i command line argument must be used in conjunction with -n or -p.\n", on_header(lambda
            line: line.replace("\tNIC0", "\tNIC0NIC1"))(pair), pair.replace("\tNV18", "", 1), pair.replace("\tPIX",
            "\tPIX\tPIX", 1), pair.replace("PIX", "PINK", 1), pair.replace("\tPIX\t0", "\tPIX0", 1), pair.replace(
            " X \tNV18", "NV18\t X ", 1), pair.replace("NV18\t X ", " X \tNV18", 1), pair.replace("NV18", "NV4", 1),
            without(1)(pair), without(2)(pair), pair.replace("GPU1\tNV18", "GPU0\tNV18"), pair.replace("\nGPU1",
            "\nGPU7"), re.sub(r"(\nGPU0.*)", r"\1\1", pair), re.sub(r"(.*\n)", r"\1\1", pair), pair.replace("\nGPU1",
            "\nkernel: mlx5_core 0000:4a:00.0\nGPU1"), rewrap(pair, 40), *(rewrap(FOUR.text(), width) for width in (24,
            40, 64, 80)), re.sub(r"(\nNIC0.*)", r"\1 0-31", pair), re.sub(r"\n(\w+\d\t.*)", lambda m: "\n" + re.sub(
            r"\s", "", m[1]), pair), plain(pair).replace("\t", "").replace(" ", ""), pair.replace("NV18",
            "SYS").replace("PIX", "OK"), pair + "  NIC0: mlx5_9\n", THREE.text().replace("mlx5_4", "mlx5_2"),
            " PPU0 X ICN2\n PPU1 ICN2 X\n", f"{HEAD}{ROW}GPU1\t X \tSY",
            "\tPPU0\tPPU1\nPPU0\tX\tICN4\nPPU1\tICN4\tX\n", "GPU0 0 XGMI\n",
            "| GP0 | GP1 |\n")]),
    }  # fmt: skip
