"""What `nvidia-smi topo` and its companions print on machines of every age, and what pastes of it look like.

Each text is our own, written after the grammar in docs/maintainers/nccl.md. What drivers from 535 on print, and the
common damage, stands in `fake_topo` and is played in `test_topo_matrix`.
"""

import pytest
from fake_topo import Printed, plain
from zoo import ibstat

from ncclprobe.facts import nvlink
from ncclprobe.facts.topo_matrix import parse
from ncclprobe.model.errors import ParseError
from tests.each_row import each_row


def named(nics: list[str], gpus: int = 2, titles: str = "CPU Affinity", tail: str = "0-31") -> str:
    """A matrix of a driver up to 470, whose columns have the devices' own names."""
    devices = [*(f"GPU{n}" for n in range(gpus)), *nics]
    rows = ["\t" + "\t".join((*devices, titles))]
    for number, device in enumerate(devices):
        cells = ["X" if other == number else "PIX" for other in range(len(devices))]
        rows.append("\t".join((device, *cells, *([tail] if number < gpus else []))))
    return "\n".join(rows) + "\n"


@each_row(
    "nics",
    [
        ["mlx4_0"],
        ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"],  # not in order
        ["mlx5_bond_0", "mlx5_bond_1"],
        ["mlx5_0", "mlx5_bond_0"],
        ["mlx5_ib0", "mlx5_ib1"],
        ["rocep65s0f0", "rocep65s0f1"],
        ["roceP2p1s0f0"],
        ["roceo12399"],
        ["ibp24s0f1"],
    ],
)
def test_nics_have_many_names(nics: list[str]) -> None:
    (matrix,) = parse(named(nics))
    assert matrix.nics == tuple(nics)
    assert matrix.links["GPU1"][nics[-1]] == "PIX"
    assert not matrix.incomplete


def test_drivers_up_to_352_say_soc_where_later_ones_say_sys() -> None:
    text = (
        named(["mlx4_0"]).replace("PIX", "SOC")
        + "\nLegend:\n\n  X   = Self\n  SOC = Path traverses a socket-level link\n"
    )
    assert parse(text)[0].links["GPU0"]["mlx4_0"] == "SOC"


@each_row("gpus", [1, 3, 5, 7, 16])
def test_nodes_have_any_number_of_gpus(gpus: int) -> None:
    (matrix,) = parse(named(["mlx5_0"], gpus))
    assert len(matrix.gpus) == gpus
    assert not matrix.incomplete


def wide(gpus: int = 12, nics: int = 14) -> Printed:
    size = gpus + nics
    links = tuple(tuple("X" if i == j else "NODE" for j in range(size)) for i in range(size))
    return Printed(gpus, nics, links, (("0-95", "0", "N/A"),) * gpus)


def test_names_of_two_digits_leave_one_blank_to_the_next() -> None:
    assert parse(plain(wide().text()).expandtabs(8)) == (wide().matrix(),)


@each_row("cells", ["NODENODE", "NODE NODE"])
def test_cells_of_a_wide_row_are_parted(cells: str) -> None:
    lines = wide().text().splitlines()
    lines[3] = lines[3].replace("NODE\tNODE", cells, 1)
    assert parse("\n".join(lines) + "\n") == (wide().matrix(),)


@each_row(
    ("cpus", "numa", "own"),
    [
        ("0,2,4,6,8,10", "0", "N/A"),
        ("0-0,8-8,16-16", "N/A", "N/A"),  # a desktop: no NUMA node
        ("0", "0", "N/A"),
        ("0,64", "0", "N/A"),
        ("128-255,384-511", "1", "N/A"),
        ("192-238", "1", "N/A"),  # a CPU is offline
        ("0-71", "0,3-9,11-17", "2"),  # coherent memory: the GPU is a node itself
        ("0-79", "0,8,252-255", "N/A"),  # POWER9
        ("0-31", "0-3", "N/A"),  # a job over several nodes
        ("0-71", "0,2-17", "26"),
    ],
)
def test_affinities_are_lists_as_kernels_write_them(cpus: str, numa: str, own: str) -> None:
    text = Printed(1, 0, (("X",),), ((cpus, numa, own),)).text()
    (matrix,) = parse(text)
    assert (*matrix.cpu_affinity, *matrix.numa_affinity, *matrix.gpu_numa_id) == (cpus, numa, own)
    assert not matrix.incomplete


TWO = Printed(2, 1, (("X", "NV4", "PXB"), ("NV4", "X", "SYS"), ("PXB", "SYS", "X")), (("0-15", "0", "N/A"),) * 2)


def test_a_legend_may_stand_before_the_matrix() -> None:
    matrix, _, legend = plain(TWO.text()).partition("\n\n")
    found = parse(f"{legend}\n{matrix}\n")
    assert found[0].links["GPU0"]["GPU1"] == "NV4"


def test_rows_of_gpus_alone_say_what_is_missing() -> None:
    """As `nvidia-smi topo -m | grep GPU` leaves them."""
    lines = [line for line in TWO.text().splitlines() if "GPU" in line]
    (matrix,) = parse("\n".join(lines) + "\n")
    assert matrix.links["GPU0"] == {"GPU0": "X", "GPU1": "NV4", "NIC0": "PXB"}
    assert matrix.incomplete


def test_a_prompt_may_follow_the_legend_without_an_empty_line() -> None:
    assert parse(TWO.text().rstrip("\n") + "\nuser@host:~$ exit\n")[0].links["GPU1"]["GPU0"] == "NV4"


@each_row("line", ["+ nvidia-smi topo -m", "== topology ==", "GPU Topology:", "--- Topology at Mon Sep 1 ---"])
def test_what_a_script_prints_before_it_is_passed_over(line: str) -> None:
    assert parse(f"{line}\n{TWO.text()}") == (TWO.matrix(),)


def test_a_table_whose_header_lost_its_first_cell_is_read_or_refused_never_shifted() -> None:
    text = "| GPU0 | GPU1 |\n|---|---|---|\n| GPU0 | X | NV4 |\n| GPU1 | NV4 | X |\n"
    assert parse(text)[0].links["GPU0"] == {"GPU0": "X", "GPU1": "NV4"}


P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n"


@each_row("behind", ["", "\nLegend:\n", "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"])
def test_a_legend_of_peer_to_peer_status_may_be_missing_or_cut(behind: str) -> None:
    (matrix,) = parse(P2P + behind)
    assert (matrix.kind, matrix.links["GPU0"]["GPU1"]) == ("p2p", "GNS")


@each_row(
    ("text", "cause"),
    [
        ("-i command line argument must be used in conjunction with -n or -p.\n", "itself failed"),
        (TWO.text().replace("\tPXB\t0-15", "\tPH0-15", 1), "is not a link"),
        (plain(TWO.text()).replace("\t", "").replace(" ", ""), "lost the white space|no link|no row"),
        ("\tPPU0\tPPU1\nPPU0\tX\tICN4\nPPU1\tICN4\tX\n", "ppu-smi"),
    ],
)
def test_what_is_no_matrix_is_refused(text: str, cause: str) -> None:
    with pytest.raises(ParseError, match=cause):
        parse(text)


@each_row("rate", [14.062, 25.0, 25.781, 26.562, 53.125])
def test_links_of_each_generation_have_their_rate(rate: float) -> None:
    text = f"GPU 6: NVIDIA X (UUID: GPU-redacted)\n\t Link 0: {rate:g} GB/s\n\t Link 11: <inactive>\n"
    (gpu,) = nvlink.parse(text).gpus.values()
    assert gpu.links == {0: rate, 11: None}


def test_ibstat_lists_devices_by_letters_and_a_dead_port_has_a_rate() -> None:
    ports = [
        ("mlx5_0", "Active", "LinkUp", 400),
        ("mlx5_10", "Initializing", "LinkUp", 400),
        ("mlx5_2", "Down", "Disabled", 10),
    ]
    text = "".join(
        f"CA '{name}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.1\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tBase lid: 1\n\t\tSM lid: 1\n"
        "\t\tLink layer: InfiniBand\n"
        for name, state, physical, rate in ports
    )
    found = ibstat.parse(text).adapters
    assert [(a.name, a.ports[0].state, a.ports[0].rate_gbps) for a in found] == [
        ("mlx5_0", "Active", 400.0), ("mlx5_10", "Initializing", 400.0), ("mlx5_2", "Down", 10.0)
    ]  # fmt: skip
