"""Distances between GPUs and NICs, by NCCL's rules and in nvidia-smi's words."""

from collections.abc import Sequence
from pathlib import Path

from fake_sysfs import BRIDGE, GPU_3D, INFINIBAND, NVSWITCH, Sysfs, two_sockets
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.pci import Bridge, Device, Identity, Pci, PciPosition, pci
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.paths import PathType, Topology, machine_topology, topology, tree_word
from tests.each_row import each_row

LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS = PathType
NOT_READ = Absent("not read")
LEGEND = {"PIX": PIX, "PXB": PXB, "PHB": PHB, "NODE": PHB, "SYS": SYS}


def device(
    address: str, class_code: int, place: PciPosition | Absent, numa: int | Absent = 0, vendor: int = 0x10DE
) -> Device:
    return Device(address, Identity(class_code, vendor, 0), place, NOT_READ, numa)


def machine(*devices: Device, bridges: Sequence[Bridge] = ()) -> Pci:
    return Pci({d.address: d for d in devices}, {b.address: b for b in bridges})


def flat(gpus: int, per_socket: int, nics: int = 0) -> tuple[Pci, dict[str, str], dict[str, str]]:
    """GPUs, each with its own root bus, and `nics` NICs, NIC n behind one switch with GPU n."""
    names, cards, found = {}, {}, []
    for n in range(gpus):
        place, numa = PciPosition(f"pci{n:04x}:00", (f"r{n}", f"u{n}", f"d{n}")), n // per_socket
        found.append(device(f"g{n}", GPU_3D, place, numa))
        names[f"GPU{n}"] = f"g{n}"
        if n < nics:
            found.append(device(f"n{n}", INFINIBAND, place._replace(bridges=(f"r{n}", f"u{n}", f"e{n}")), numa, 0x15B3))
            cards[f"mlx5_{n}"] = f"n{n}"
    return machine(*found), names, cards


def nvswitched(gpus: dict[str, str], links: int = 18) -> dict[str, tuple[str, ...]]:
    """Every GPU's links lead to NVSwitches that this machine does not show."""
    return dict.fromkeys(gpus.values(), ("ffff:ff:ff.0",) * links)


def words(seen: Topology, one: str) -> dict[str, str]:
    return {b: f"{path.name}/{seen.smi[a, b]}" for (a, b), path in seen.paths.items() if a == one and path is not None}


def test_a_tree_on_disk_gives_both_sets_of_words(tmp_path: Path) -> None:
    tree = Sysfs(tmp_path)
    names = two_sockets(tree)
    gpus = {name: address for name, address in names.items() if name.startswith("GPU")}
    nics = {name: address for name, address in names.items() if name not in gpus}
    seen = topology(pci.run(tree.finish()), gpus, nics)
    far = dict.fromkeys(("GPU2", "GPU3", "mlx5_2", "mlx5_3"), "SYS/SYS")
    assert words(seen, "GPU0") == {"GPU0": "LOC/X", "GPU1": "PXB/PXB", "mlx5_0": "PIX/PIX", "mlx5_1": "PHB/NODE", **far}
    assert seen.smi["mlx5_0", "mlx5_1"] == "NODE"
    assert seen.smi["mlx5_0", "mlx5_3"] == "SYS"
    assert [seen.near(gpu) for gpu in gpus] == [("mlx5_0",), ("mlx5_0",), ("mlx5_2",), ("mlx5_2",)]


def test_a_guest_that_shows_one_flat_bus_is_phb_everywhere() -> None:
    found = [device(f"0000:00:0{n}.0", GPU_3D, PciPosition("pci0000:00"), -1) for n in (5, 6)]
    seen = topology(machine(*found), {"GPU0": found[0].address, "GPU1": found[1].address}, {})
    assert words(seen, "GPU0") == {"GPU0": "LOC/X", "GPU1": "PHB/PHB"}


def test_two_functions_of_one_card_share_every_bridge() -> None:
    place = PciPosition("pci0000:00", ("r", "u", "d"))
    found = [device(f"c.{n}", INFINIBAND, place, vendor=0x15B3) for n in range(2)]
    assert topology(machine(*found), {}, {"mlx5_0": "c.0", "mlx5_1": "c.1"}).smi["mlx5_0", "mlx5_1"] == "PIX"


def test_nvswitches_make_every_pair_nvl_and_count_the_links() -> None:
    tree, gpus, _ = flat(8, 4)
    links = nvswitched(gpus)
    links["g3"] = links["g3"][:17]
    seen = topology(tree, gpus, {}, links)
    assert {seen.paths["GPU0", f"GPU{n}"] for n in range(1, 8)} == {NVL}
    assert (seen.smi["GPU0", "GPU7"], seen.smi["GPU0", "GPU3"], seen.smi["GPU3", "GPU0"]) == ("NV18", "NV17", "NV17")


def test_nvswitches_on_the_bus_are_the_same_one_to_nccl(tmp_path: Path) -> None:
    tree = Sysfs(tmp_path)
    switches = [tree.pci(f"pci0000:00/0000:00:0{n}.0", NVSWITCH) for n in (1, 2)]
    gpus = [tree.pci(f"pci0000:00/0000:00:0{n}.0", GPU_3D) for n in (3, 4)]
    links = {gpus[0]: (switches[0],) * 6, gpus[1]: (switches[1],) * 6}
    seen = topology(pci.run(tree.finish()), {"GPU0": gpus[0], "GPU1": gpus[1]}, {}, links)
    assert words(seen, "GPU0")["GPU1"] == "NVL/NV6"


def test_a_cube_mesh_relays_over_one_gpu_but_no_further() -> None:
    tree, gpus, _ = flat(4, 2)
    chain = {"g0": ("g1", "g1"), "g1": ("g0", "g0", "g2"), "g2": ("g1", "g3"), "g3": ("g2",)}
    seen = topology(tree, gpus, {}, chain)
    assert words(seen, "GPU0") == {"GPU0": "LOC/X", "GPU1": "NVL/NV2", "GPU2": "NVB/SYS", "GPU3": "SYS/SYS"}


def test_power9_reaches_its_cpu_over_nvlink_and_the_other_socket_over_both() -> None:
    npu = device("npu", 0x068001, PciPosition("pci0004:00"), vendor=0x1014)
    tree, gpus, _ = flat(3, 2)
    seen = topology(machine(*tree.devices.values(), npu), gpus, {}, dict.fromkeys(gpus.values(), ("npu",) * 3))
    assert words(seen, "GPU0") == {"GPU0": "LOC/X", "GPU1": "NVL/NODE", "GPU2": "SYS/SYS"}


def test_a_nic_of_another_gpu_is_reached_over_nvlink() -> None:
    tree, gpus, nics = flat(4, 2, nics=4)
    seen = topology(tree, gpus, nics, nvswitched(gpus))
    assert words(seen, "GPU0") | {"GPU0": ""} == {
        "GPU0": "",
        **dict.fromkeys(("GPU1", "GPU2", "GPU3"), "NVL/NV18"),
        "mlx5_0": "PIX/PIX",
        "mlx5_1": "PHB/NODE",
        "mlx5_2": "SYS/SYS",
        "mlx5_3": "SYS/SYS",
    }
    assert [seen.path("GPU0", f"mlx5_{n}") for n in range(4)] == [PIX, PXN, PXN, PXN]
    assert seen.relays["GPU0", "mlx5_3"] == "GPU3"
    assert seen.near("GPU0") == ("mlx5_0",)


def test_without_nvlink_there_is_no_relay() -> None:
    tree, gpus, nics = flat(4, 2, nics=4)
    seen = topology(tree, gpus, nics)
    assert seen.relays == {}
    assert seen.path("GPU0", "mlx5_3") is SYS


def test_a_gpu_too_far_from_the_nic_is_no_relay() -> None:
    tree, gpus, nics = flat(2, 2, nics=1)
    lone = replace(tree.devices["n0"], place=PciPosition("pci00ff:00", ("r",)))
    seen = topology(machine(*{**tree.devices, "n0": lone}.values()), gpus, nics, nvswitched(gpus))
    assert (seen.relays, seen.path("GPU0", "mlx5_0")) == ({}, PHB)


def test_a_gpu_that_shares_a_switch_with_the_nic_needs_no_relay() -> None:
    near, deep = PciPosition("pci0000:00", ("r", "u", "d")), PciPosition("pci0000:00", ("r", "u", "e", "v", "f"))
    found = [device("g0", GPU_3D, near), device("g1", GPU_3D, deep), device("n", INFINIBAND, near, vendor=0x15B3)]
    gpus = {"GPU0": "g0", "GPU1": "g1"}
    seen = topology(machine(*found), gpus, {"mlx5_0": "n"}, nvswitched(gpus))
    assert (seen.relays, seen.path("GPU1", "mlx5_0")) == ({}, PXB)


def test_a_nic_behind_the_gpus_own_switch_is_nearer_than_chip_to_chip() -> None:
    tree, gpus, nics = flat(1, 1, nics=1)
    assert topology(tree, gpus, nics, c2c=gpus.values()).paths["GPU0", "mlx5_0"] is PIX


def test_chip_to_chip_links_bring_the_cpus_nics_near() -> None:
    tree, gpus, _ = flat(2, 1)
    cards = [device(f"n{n}", INFINIBAND, PciPosition(f"pci00f{n}:00", ("r",)), n, 0x15B3) for n in range(2)]
    nics = {"mlx5_0": "n0", "mlx5_1": "n1"}
    seen = topology(machine(*tree.devices.values(), *cards), gpus, nics, c2c=gpus.values())
    assert [seen.paths["GPU0", nic] for nic in nics] == [P2C, SYS]
    assert [seen.paths["GPU1", nic] for nic in nics] == [SYS, P2C]


def broadcom(address: str, chip: int, board: int) -> Bridge:
    return Bridge(address, Identity(BRIDGE, 0x1000, chip, (0x1000, board)))


@each_row(
    ("upper", "lower", "path"),
    [
        ((0xC010, 0xA096), (0xC010, 0xA096), PIX),  # Gen 4: both levels look alike
        ((0xC030, 0x0144), (0xC030, 0x1144), PIX),  # Gen 5: the board's id tells them apart
        ((0xC030, 0x1144), (0xC030, 0x0144), PXB),
        ((0xC010, 0xA096), (0xC030, 0x1144), PXB),
        ((0xC010, 0xB096), (0xC010, 0xB096), PXB),
    ],
)
def test_broadcom_switches_that_only_look_like_two_levels_are_one_to_nccl(
    upper: tuple[int, int], lower: tuple[int, int], path: PathType
) -> None:
    found = [
        device(name, GPU_3D, PciPosition("pci0000:00", ("r", "u", f"d{name}", f"v{name}", f"e{name}"))) for name in "ab"
    ]
    bridges = [broadcom("u", *upper), *(broadcom(f"v{name}", *lower) for name in "ab")]
    seen = topology(machine(*found, bridges=bridges), {"GPU0": "a", "GPU1": "b"}, {})
    assert (seen.paths["GPU0", "GPU1"], seen.smi["GPU0", "GPU1"]) == (path, "PXB")


def test_a_third_level_of_broadcom_switches_stays_a_level() -> None:
    chain = ("r", "u", "d", "v", "e", "w", "f")
    found = [
        device("a", GPU_3D, PciPosition("pci0000:00", chain)),
        device("b", GPU_3D, PciPosition("pci0000:00", chain[:5])),
    ]
    seen = topology(machine(*found, bridges=[broadcom(n, 0xC010, 0xA096) for n in "uvw"]), {"A": "a", "B": "b"}, {})
    assert seen.paths["A", "B"] is PXB


@each_row(
    ("one", "other", "word"),
    [
        (("r", "u", "d"), ("r", "u", "e"), "PIX"),
        (("r", "u", "d"), ("r", "u", "d"), "PIX"),
        (("r", "u", "d"), ("r", "u", "e", "p"), "PXB"),
        (("r",), ("s",), "PHB"),
        ((), (), "PHB"),
    ],
)
def test_bridges_below_the_last_shared_one_are_counted(one: tuple[str, ...], other: tuple[str, ...], word: str) -> None:
    pair = [device("x", GPU_3D, PciPosition("pci0000:00", bridges)) for bridges in (one, other)]
    assert tree_word(*pair) == word


def test_a_numa_node_that_was_not_read_makes_only_far_paths_unknown() -> None:
    tree, gpus, nics = flat(2, 1, nics=2)
    blind = {name: replace(d, numa_node=NOT_READ) if name in ("g0", "n0") else d for name, d in tree.devices.items()}
    seen = topology(machine(*blind.values()), gpus, nics)
    assert [seen.paths["GPU0", other] for other in ("GPU1", "mlx5_0", "mlx5_1")] == [None, PIX, None]
    assert [seen.smi["GPU0", other] for other in ("GPU1", "mlx5_0", "mlx5_1")] == [None, "PIX", None]
    assert (seen.near("GPU0"), seen.near("GPU1")) == (("mlx5_0",), ("mlx5_1",))


def test_two_numa_nodes_that_were_not_read_are_not_taken_for_the_same() -> None:
    tree, gpus, _ = flat(2, 1)
    blind = [replace(d, numa_node=NOT_READ) for d in tree.devices.values()]
    assert topology(machine(*blind), gpus, {}).paths["GPU0", "GPU1"] is None


def test_firmware_that_names_no_numa_node_is_one_cpu_to_nccl_and_no_word_of_nvidia_smi() -> None:
    tree, gpus, _ = flat(2, 1)
    silent = [replace(d, numa_node=-1) for d in tree.devices.values()]
    seen = topology(machine(*silent), gpus, {})
    assert (seen.paths["GPU0", "GPU1"], seen.smi["GPU0", "GPU1"]) == (PHB, None)


def test_devices_that_are_not_on_the_bus_have_no_distance() -> None:
    tree, gpus, _ = flat(1, 1)
    lost = device("n", INFINIBAND, NOT_READ)
    seen = topology(machine(*tree.devices.values(), lost), gpus, {"rxe0": "", "mlx5_0": "n", "mlx5_1": "unheard"})
    assert {seen.paths["GPU0", nic] for nic in seen.nics} == {None}
    assert seen.near("GPU0") == ()


def test_path_types_are_ordered_as_in_nccl() -> None:
    assert LOC < NVL < NVB < C2C < PIX < PXB < P2C < PXN < PHB < SYS


PORTS = st.lists(st.integers(0, 1), max_size=4)
PLACES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), PORTS), min_size=2, max_size=5)


@given(PLACES)
def test_in_any_tree_of_switches_the_two_sets_of_words_agree_by_nvidias_legend(
    places: list[tuple[int, int, list[int]]],
) -> None:
    """NODE of nvidia-smi is NCCL's PHB, the others carry over; paths are symmetric."""
    found = []
    for n, (socket, root, ports) in enumerate(places):
        bridges, way = [f"{socket}.{root}"], f"{socket}.{root}"
        for port in [*ports, f"end{n}"] if ports else []:
            bridges += [f"{way}u", f"{way}u{port}"]
            way = f"{way}u{port}"
        found.append(device(f"g{n}", GPU_3D, PciPosition(f"pci{socket}.{root}", tuple(bridges)), socket))
        if not ports:  # alone below a root port of its own
            found[n] = replace(found[n], place=PciPosition(f"pci{socket}.{root}", (f"{way}.{n}",)))
    gpus = {d.address.upper(): d.address for d in found}
    seen = topology(machine(*found), gpus, {})
    for (one, other), path in seen.paths.items():
        word = seen.smi[one, other]
        assert path is (LOC if one == other else LEGEND[str(word)])
        assert path is seen.paths[other, one]
        assert word == seen.smi[other, one]


def test_a_machines_facts_give_names_links_and_chip_to_chip() -> None:
    card = device("0000:01:00.0", GPU_3D, PciPosition("pci0009:00", ("r",)))
    nic = device("0000:02:00.0", INFINIBAND, PciPosition("pci0000:00", ("s",)), vendor=0x15B3)
    other = device("0000:03:00.0", GPU_3D, PciPosition("pci0008:00", ("t",)), numa=1)
    boards = (Gpu(0, "NVIDIA GB200", pci="00000000:01:00.0"), Gpu(1, lost="gone"), Gpu(2, pci="00000000:03:00.0"))
    gpus = Gpus(boards, "570", (12, 8))
    switched = (NvLink(0, "active", remote="switch", remote_pci=NOT_READ), NvLink(1, "inactive"))
    links = NvLinks((switched, NOT_READ, (NvLink(0, "active", remote="switch", remote_pci="0000FFFF:FF:FF.0"),)))
    fabric = Fabric((RdmaDevice("mlx5_0", pci="0000:02:00.0"), RdmaDevice("rxe0")))
    seen = machine_topology(machine(card, nic, other), gpus, links, fabric)
    assert (seen.gpus, seen.nics["rxe0"]) == ({"GPU0": "0000:01:00.0", "GPU2": "0000:03:00.0"}, "")
    assert words(seen, "GPU0") == {"GPU0": "LOC/X", "GPU2": "NVL/NV1", "mlx5_0": "P2C/NODE"}
