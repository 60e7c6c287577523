"""Distances between GPUs and NICs, by NCCL's rules and in nvidia-smi's words.

The distances of all machines of `scenes` are kept in tests/data/command_values/paths.txt.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from fake_sysfs import BRIDGE, GPU_3D, INFINIBAND, NVSWITCH, Sysfs, two_sockets

from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.pci import Bridge, Device, Identity, Pci, PciPosition, pci
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.paths import PathType, Topology, connected, machine_topology, topology, tree_word

LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS = PathType
NOT_READ = Absent("not read")
AWAY = "ffff:ff:ff.0"
"""The end of a link to an NVSwitch that this machine does not show."""
Links = Mapping[str, Sequence[str]]


def device(
    address: str, class_code: int, place: PciPosition | Absent, numa: int | Absent = 0, vendor: int = 0x10DE
) -> Device:
    return Device(address, Identity(class_code, vendor, 0), place, NOT_READ, numa)


def nic(address: str, place: PciPosition | Absent, numa: int | Absent = 0) -> Device:
    return device(address, INFINIBAND, place, numa, 0x15B3)


def machine(*devices: Device, bridges: Sequence[Bridge] = ()) -> Pci:
    return Pci({d.address: d for d in devices}, {b.address: b for b in bridges})


def distances(
    *devices: Device, links: Links | None = None, c2c: Sequence[str] = (), bridges: Sequence[Bridge] = ()
) -> Topology:
    """GPUs and NICs of a machine go by the addresses of its devices, in upper case."""
    kinds = {
        kind: {d.address.upper(): d.address for d in devices if d.identity.kind == kind} for kind in ("gpu", "nic")
    }
    return topology(machine(*devices, bridges=bridges), kinds["gpu"], kinds["nic"], links, c2c)


def flat(gpus: int, per_socket: int, nics: int = 0) -> list[Device]:
    """GPUs, each with its own root bus, and `nics` NICs, NIC n behind one switch with GPU n."""
    places = [PciPosition(f"pci{n:04x}:00", (f"r{n}", f"u{n}", f"d{n}")) for n in range(gpus)]
    found = [device(f"g{n}", GPU_3D, place, n // per_socket) for n, place in enumerate(places)]
    below = [place._replace(bridges=(*place.bridges[:2], f"e{n}")) for n, place in enumerate(places[:nics])]
    return found + [nic(f"n{n}", place, n // per_socket) for n, place in enumerate(below)]


def words(seen: Topology, one: str = "G0") -> str:
    """From one device to each other: NCCL's path, the relay of PXN, and the word of nvidia-smi."""
    found = []
    for (a, b), path in seen.paths.items():
        if a == one != b:
            over = f">{seen.relays[a, b]}" if (a, b) in seen.relays else ""
            found.append(f"{b} {path.name if path is not None else None}{over}/{seen.smi[a, b]}")
    return ", ".join(found)


SWITCHES = {f"g{n}": (AWAY,) * 18 for n in range(4)}
LINKS: dict[str, Links] = {
    "no links": {}, "switches": SWITCHES, "a link less": {**SWITCHES, "g3": (AWAY,) * 17},
    "a chain": {"g0": ("g1", "g1"), "g1": ("g0", "g0", "g2"), "g2": ("g1", "g3"), "g3": ("g2",)},
    "pairs": {f"g{n}": (f"g{n ^ 1}",) * 4 for n in range(4)}, "a processor": {f"g{n}": ("npu",) * 3 for n in range(4)},
}  # fmt: skip
NUMA: dict[str, Mapping[str, int | Absent]] = {
    "two nodes": {}, "G0 and N0 not read": {"g0": NOT_READ, "n0": NOT_READ},
    "none read": {f"{kind}{n}": NOT_READ for kind in "gn" for n in range(4)},
    "none named": {f"{kind}{n}": -1 for kind in "gn" for n in range(4)},
}  # fmt: skip
NPU = device("npu", 0x068001, PciPosition("pci0004:00"), vendor=0x1014)


def scenes() -> Iterator[tuple[str, Topology]]:
    """Four GPUs on two sockets with NICs beside them, far from them, or at their root, by links and NUMA nodes."""
    for (linked, links), (read, numa), chips in product(LINKS.items(), NUMA.items(), ((), ("g0", "g1", "g2", "g3"))):
        for where, nics in (("4 NICs", 4), ("1 NIC", 1), ("a far NIC", 1)):
            devices = [replace(d, numa_node=numa.get(d.address, d.numa_node)) for d in flat(4, 2, nics)]
            if where == "a far NIC":
                devices[-1] = replace(devices[-1], place=PciPosition("pci00ff:00", ("r",)))
            name = f"{linked}, {read}, {where}{', C2C' if chips else ''}"
            yield name, distances(*devices, NPU, links=links, c2c=chips)


SCENES = dict(scenes())


def test_pxn_is_a_path_and_the_nearest_nics_are_those_of_the_tree() -> None:
    seen = SCENES["switches, two nodes, 4 NICs"]
    assert [seen.path("G0", f"N{n}") for n in range(4)] == [PIX, PXN, PXN, PXN]
    assert (seen.near("G0"), SCENES["no links, G0 and N0 not read, 4 NICs"].near("G1")) == (("N0",), ("N1",))


def test_a_tree_on_disk_gives_both_sets_of_words_and_nvswitches_on_the_bus_are_one(tmp_path: Path) -> None:
    tree = Sysfs(tmp_path / "one")
    names = two_sockets(tree)
    gpus = {name: address for name, address in names.items() if name.startswith("GPU")}
    seen = topology(pci.run(tree.finish()), gpus, {name: names[name] for name in names if name not in gpus})
    far = ", ".join(f"{name} SYS/SYS" for name in ("GPU2", "GPU3", "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"))
    far = far.replace("mlx5_0 SYS/SYS", "mlx5_0 PIX/PIX").replace("mlx5_1 SYS/SYS", "mlx5_1 PHB/NODE")
    assert words(seen, "GPU0") == f"GPU1 PXB/PXB, {far}"
    assert (seen.smi["mlx5_0", "mlx5_1"], seen.smi["mlx5_0", "mlx5_3"]) == ("NODE", "SYS")
    assert [seen.near(gpu) for gpu in gpus] == [("mlx5_0",), ("mlx5_0",), ("mlx5_2",), ("mlx5_2",)]
    tree = Sysfs(tmp_path / "two")
    switches = [tree.pci(f"pci0000:00/0000:00:0{n}.0", NVSWITCH) for n in (1, 2)]
    ends = [tree.pci(f"pci0000:00/0000:00:0{n}.0", GPU_3D) for n in (3, 4)]
    links = {ends[0]: (switches[0],) * 6, ends[1]: (switches[1],) * 6}
    joined = topology(pci.run(tree.finish()), {"GPU0": ends[0], "GPU1": ends[1]}, {}, links)
    assert words(joined, "GPU0") == "GPU1 NVL/NV6"


BUS, NEAR = PciPosition("pci0000:00"), PciPosition("pci0000:00", ("r", "u", "d"))
DEEP = PciPosition("pci0000:00", ("r", "u", "e", "v", "f"))


def broadcom(address: str, chip: int, board: int) -> Bridge:
    return Bridge(address, Identity(BRIDGE, 0x1000, chip, (0x1000, board)))


CHIPS = ((0xC010, 0xA096), (0xC030, 0x0144), (0xC030, 0x1144), (0xC010, 0xB096))


def places() -> Iterator[tuple[str, Topology]]:
    """GPUs and NICs on one flat bus, below one switch, at several depths, or not on the bus; switches of Broadcom."""
    for number, (devices, links) in enumerate((
        ([device("g0", GPU_3D, BUS, -1), device("g1", GPU_3D, BUS, -1)], {}),
        ([device("g0", GPU_3D, NEAR), nic("n0", NEAR), nic("n1", NEAR)], {}),
        ([device("g0", GPU_3D, DEEP), device("g1", GPU_3D, NEAR), nic("n", NEAR)], SWITCHES),
        ([device("g0", GPU_3D, NEAR), nic("n", NOT_READ)], {}),
    )):  # fmt: skip
        yield f"place {number}", distances(*devices, links=links)
    two = [("r", "u", f"d{n}", f"v{n}", f"e{n}") for n in range(2)]
    chain = ("r", "u", "d", "v", "e", "w", "f")
    for upper, lower, (names, ways) in product(CHIPS, CHIPS, (("v0 v1", two), ("v w", [chain, chain[:5]]))):
        pair = [device(f"g{n}", GPU_3D, PciPosition("pci0000:00", way)) for n, way in enumerate(ways)]
        below = [broadcom("u", *upper), *(broadcom(name, *lower) for name in names.split())]
        yield f"Broadcom {upper} {lower} {names}", distances(*pair, bridges=below)


def test_bridges_below_the_last_shared_one_are_counted() -> None:
    for one, other, word in (
        (("r", "u", "d"), ("r", "u", "e"), "PIX"), (("r", "u", "d"), ("r", "u", "d"), "PIX"),
        (("r", "u", "d"), ("r", "u", "e", "p"), "PXB"), (("r",), ("s",), "PHB"), ((), (), "PHB"),
    ):  # fmt: skip
        pair = [device("x", GPU_3D, PciPosition("pci0000:00", bridges)) for bridges in (one, other)]
        assert tree_word(*pair) == word


def test_a_machines_facts_give_names_links_and_chip_to_chip_and_links_join_groups() -> None:
    card = device("0000:01:00.0", GPU_3D, PciPosition("pci0009:00", ("r",)))
    port = nic("0000:02:00.0", PciPosition("pci0000:00", ("s",)))
    other = device("0000:03:00.0", GPU_3D, PciPosition("pci0008:00", ("t",)), numa=1)
    boards = (Gpu(0, "NVIDIA GB200", pci="00000000:01:00.0"), Gpu(1, lost="gone"), Gpu(2, pci="00000000:03:00.0"))
    switched = (NvLink(0, "active", remote="switch", remote_pci=NOT_READ), NvLink(1, "inactive"))
    links = NvLinks((switched, NOT_READ, (NvLink(0, "active", remote="switch", remote_pci="0000FFFF:FF:FF.0"),)))
    fabric = Fabric((RdmaDevice("mlx5_0", pci="0000:02:00.0"), RdmaDevice("rxe0")))
    seen = machine_topology(machine(card, port, other), Gpus(boards, "570", (12, 8)), links, fabric)
    assert (seen.gpus, seen.nics["rxe0"]) == ({"GPU0": "0000:01:00.0", "GPU2": "0000:03:00.0"}, "")
    assert words(seen, "GPU0") == "GPU2 NVL/NV1, mlx5_0 P2C/NODE, rxe0 None/None"
    assert connected([{"a", "b"}, {"c"}, {"d", "e"}, {"b", "d"}]) == [{"c"}, {"a", "b", "d", "e"}]
