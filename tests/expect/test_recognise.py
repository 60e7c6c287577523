"""A machine seen by its own facts: its links, the one type that it may be, and never a guess.

What each capture shows and is taken for is kept in tests/data/command_values/recognised.txt.
"""

from pathlib import Path
from typing import Any

from expect.boxes import CAPTURES, facts_of, named
from ncclprobe.expect.recognise import MachineFacts, expectation_context, product_named, recognise, seen
from ncclprobe.expect.system import NodeSystem
from ncclprobe.expect.tables.machines import MachineType, table
from ncclprobe.expect.visible import nvlink_fabric, system_of
from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, PeerAccess
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row

KNOWN = {
    "aws-p4d": "p4d.24xlarge", "dgx-1v": "DGX-1V", "dgx-a100": "DGX A100", "dgx-b200": "DGX B200",
    "gb200-tray": "GB200 NVL72", "gcp-a3-mega": "a3-megagpu-8g", "hgx-h100": "DGX H100", "hgx-h100-user": "DGX H100",
    "hgx-h200": "HGX H200",
}  # fmt: skip
"""The captures that are of a known type; all others of tests/captures are not."""
FAULTY = {(), ("DGX H100",), ("DGX A100",), ("GB200 NVL72",), ("DGX-1V",), ("p4d.24xlarge",)}


def ideal(machine: MachineType) -> MachineFacts:
    """Return what a machine of this type shows when nothing is wrong with it."""
    match, links = machine.match, machine.links
    return MachineFacts(
        cloud=match.cloud, vendor=match.vendor or ("Some Vendor" if match.elsewhere else ""),
        product=match.products[0] if match.products else "", cpu=" ".join(match.cpus[:1]),
        gpu_names=match.gpu_names[:1], gpus=links.gpus, nvlinks=links.nvlinks, nics=links.nics, nic_gbps=links.nic_gbps,
    )  # fmt: skip


@each_row("machine", table().values(), ids=lambda machine: machine.name)
def test_a_types_own_facts_recognise_it_and_only_it_whatever_the_order_of_the_table(machine: MachineType) -> None:
    """Two types that fit are an error here, unless each names the other as its twin."""
    found = recognise(ideal(machine))
    assert found == recognise(ideal(machine), list(table().values())[::-1])
    if machine.match.by_name_only:
        assert machine.name not in found.candidates
        return
    assert set(found.candidates) == {machine.name, *machine.match.twins}, found.why
    assert ((found.machine is machine) != bool(machine.match.twins), found.differs) == (True, ())


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_a_capture_is_a_system_or_says_why_and_of_one_type_which_a_fault_does_not_change(path: Path) -> None:
    facts, firmware = facts_of(path)
    found = recognise(seen(facts, firmware))
    if path.parent.name == "sick":
        assert found.candidates in FAULTY
    else:
        assert found.candidates == ((KNOWN[path.stem],) if path.stem in KNOWN else ())
        assert (bool(found.why), found.differs) == (True, ())
    links = system_of(facts)
    if isinstance(facts.gpus, Absent) or path.stem == "gpu-other":  # a GPU unlike its siblings: no number fits it
        assert isinstance(links, Absent)
        assert links.why
    else:
        assert isinstance(links, NodeSystem)
        assert (links.gpus > 0, links.pcie_GBps > 0) == (True, True)
        assert (links.fabric == "none") == (links.nvlinks == 0) == (links.nvlink_GBps == 0)
        assert (links.network is None) == (links.nics == 0)


def test_bridges_of_four_are_told_from_a_mesh_and_from_a_dgx_1() -> None:
    four = [[peer for peer in range(gpu // 4 * 4, gpu // 4 * 4 + 4) if peer != gpu] for gpu in range(8)]
    shapes = {
        ("mesh", 18, 4): ([each * 6 for each in four], [each * 6 for each in four[:4]]),
        ("pairs", 4, 2): ([[gpu ^ 1] * 4 for gpu in range(8)],),
        ("cube-mesh", 4, 8): ([[*each, gpu ^ 4] for gpu, each in enumerate(four)],),
    }
    facts, _ = named("hgx-h200")
    for wanted, laid in shapes.items():
        for joined in laid:
            rows = ([NvLink(n, "active", remote="gpu", remote_pci=f"{end:02x}") for n, end in enumerate(ends)]
                    for ends in joined)  # fmt: skip
            assert nvlink_fabric(replace(facts, nvlinks=NvLinks(tuple(map(tuple, rows))))) == wanted


def test_gpus_reach_each_other_only_if_nvml_says_so_of_every_pair() -> None:
    facts, words = named("l40s-8")[0], (("OK", "OK"), ("CNS", "OK"), ("OK", "TNS"))
    peers = [PeerAccess({(0, 1): "OK", (1, 0): read}, {(0, 1): "OK", (1, 0): write}) for read, write in words]  # type: ignore[dict-item]
    assert [getattr(system_of(replace(facts, peers=each)), "p2p", None) for each in peers] == [True, False, False]


def test_a_short_name_is_a_board_of_eight_and_a_types_own_number_names_its_gpu() -> None:
    eight = {"h100": "NVIDIA H100 80GB HBM3", "a100": "NVIDIA A100-SXM4-80GB", "v100": "Tesla V100-SXM2-32GB",
             "H200": "NVIDIA H200", "ada": "NVIDIA RTX 6000 Ada Generation", "zzz": "", "": ""}  # fmt: skip
    assert {gpu: product_named(NamedMachine("", gpu), 8) for gpu in eight} == eight
    four = eight | dict.fromkeys(("h100", "a100", "v100"), "")
    assert {gpu: product_named(NamedMachine("", gpu), 4) for gpu in four} == four
    assert [product_named(NamedMachine("dgx-a100", "h200"), n) for n in (8, 4)] == [
        eight["a100"][:-4] + "80GB",
        eight["H200"],
    ]


UNSHOWN = Absent("not shown")
LOOKS = "the firmware names no machine, which has {} of NVIDIA {}; taken by its links as they are now"
BOARD, NICS = "; assumed: the NVLinks of its board", "; assumed: 400 Gb/s NICs"


@each_row(
    ("gpu", "cluster", "port", "known", "nics", "why"),
    [
        ("GB200", "0a-1", {}, "GB200 NVL72", (4, 400.0, "ib", 72), NICS),
        ("GB200", "00-0", {}, None, (0, 0.0, "ib", 0), ""),  # of one machine: no rack
        ("H100 80GB HBM3", "", {}, None, (4, 400.0, "ib", 8), BOARD + NICS),
        ("H100 80GB HBM3", "", {"state": "DOWN"}, None, (4, 400.0, "ib", 8), BOARD + NICS),
        ("H100 80GB HBM3", "", {"rate": Rate(200, 4)}, None, (4, 400.0, "ib", 8), BOARD + NICS),
        ("H100 80GB HBM3", "", {"link_layer": "Ethernet"}, None, (4, 400.0, "roce", 8), BOARD + NICS),
        ("H100 80GB HBM3", "", {"state": "DOWN", "rate": Rate(200, 4)}, None, (0, 0.0, "ib", 8), BOARD),
        ("H100 80GB HBM3", "", {"state": "ACTIVE", "rate": Rate(200, 4)}, None, (4, 200.0, "ib", 8), BOARD),
        ("X", "", {}, None, (0, 0.0, "ib", 0), ""),
    ],
)
def test_nics_that_a_text_only_names_have_the_usual_rate_and_a_rack_is_known_by_its_cluster(
    gpu: str, cluster: str, port: dict[str, Any], known: str | None, nics: tuple[object, ...], why: str
) -> None:
    count, compute = (4, (10, 0)) if gpu == "GB200" else (8, (9, 0))
    of = {"compute": compute, "fabric": GpuFabric("completed", 0, cluster)}
    gpus = [Gpu(n, f"NVIDIA {gpu}", pci=f"0000:{n + 1:02x}:00.0", **of) for n in range(count)]  # type: ignore[arg-type]
    ports = [replace(Port(f"mlx5_{n}", 1, UNSHOWN, "LinkUp", UNSHOWN), **port) for n in range(4)]
    fabric = Fabric(tuple(RdmaDevice(each.device, (each,), UNSHOWN) for each in ports))
    found = expectation_context({Gpus: Gpus(tuple(gpus), "1", (12, 4)), Fabric: fabric, NamedMachine: NamedMachine()})
    machine = found.system
    assert isinstance(machine, NodeSystem)
    assert (machine.nics, machine.nic_gbps, machine.network, machine.domain_gpus) == nics
    assert (found.machine and found.machine.name, found.why) == (known, LOOKS.format(count, gpu) + why)
