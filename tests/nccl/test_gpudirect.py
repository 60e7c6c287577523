"""Between GPUs, and between a GPU and a NIC, by NCCL's rules: levels, peers, multicast, GPUDirect RDMA and relays.

Each rule is a row here; all releases, settings and distances are in tests/data/command_values/{gpudirect,peers}.txt.
"""

from typing import Any

from ncclprobe.checks.ib import fixtures
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import PATHS, Flavour, GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus, P2pStatus, PeerAccess
from ncclprobe.facts.software import Version
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.gpudirect import (
    Direct,
    Level,
    PeerTransport,
    decide,
    gdr_level,
    kernel_support,
    maker,
    nvls,
    p2p_level,
    peer_transports,
    supported,
    user_level,
)
from ncclprobe.nccl.paths import PathType, Topology, machine_topology
from tests.each_row import each_row

NV_MEM, NV_MEM_NC, NVIDIA_PEERMEM = PATHS
NONE, CUDA = fixtures.PLAIN, (12, 4)
LOC, NVL, NVB, PIX, PXB, P2C, PHB, SYS = (
    PathType[name] for name in ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PHB", "SYS")
)
SWITCHED = NvLinks(((NvLink(0, "active", remote="switch", remote_pci=""),),) * 4)
UNLINKED = Absent("none")
OLD, NEW, NEWEST = (2, 21, 5), (2, 27, 3), (2, 30, 7)


def having(**variables: str) -> Settings:
    """Settings of NCCL, named without their prefix."""
    found: dict[str, Any] = {}
    for name, value in variables.items():
        found |= fixtures.having(f"NCCL_{name}", value).effective
    return replace(NONE, effective=found)


def modules(*paths: str, driver: Flavour = "proprietary", kernel: tuple[int, int] = (5, 15)) -> GpuDirect:
    return replace(GpuDirect(dict.fromkeys(paths, "1.0"), kernel), driver=driver)


LOADED = "a peer-memory module is loaded"
OPEN = modules(driver="open")


@each_row(
    ("direct", "settings", "version", "cuda", "works", "word"),
    [
        (modules(NV_MEM), NONE, (2, 4, 2), CUDA, True, LOADED),
        (modules(NV_MEM_NC), NONE, (2, 22, 3), CUDA, True, LOADED),
        (modules(NV_MEM_NC), NONE, OLD, CUDA, False, f"NCCL 2.21.5 does not look at {NV_MEM_NC}"),
        (modules(NVIDIA_PEERMEM), NONE, (2, 22, 3), CUDA, False, f"NCCL 2.22.3 does not look at {NVIDIA_PEERMEM}"),
        (OPEN, NONE, (2, 13, 4), (11, 7), True, "DMA-BUF"),
        (OPEN, NONE, (2, 12, 12), CUDA, False, "not known to NCCL 2.12.12"),
        (OPEN, NONE, None, (11, 6), False, "this one is for 11.6"),
        (modules(driver="open", kernel=(5, 4)), NONE, None, CUDA, None, "old kernel"),
        (modules(), NONE, None, CUDA, False, "the proprietary one is loaded"),
        (replace(modules(), driver=None), NONE, None, CUDA, False, "no driver is loaded"),
        (replace(modules(), driver=Absent("denied")), NONE, None, CUDA, None, "denied"),
        (replace(OPEN, kernel=Absent("no uname")), NONE, None, CUDA, None, "no uname"),
        (OPEN, having(DMABUF_ENABLE="0"), None, CUDA, False, "NCCL_DMABUF_ENABLE=0"),
        (replace(modules(), peer_memory=Absent("no /sys")), NONE, None, CUDA, None, "no /sys"),
    ],
)  # fmt: skip
def test_the_kernel_has_a_way_by_a_module_or_by_dma_buf(
    direct: GpuDirect, settings: Settings, version: Version | None, cuda: tuple[int, int], works: bool | None, word: str
) -> None:
    found = kernel_support(direct, settings, version, cuda)
    assert (found.works, word in found.why) == (works, True), found.why


def test_products_and_processors_are_known_by_their_names() -> None:
    products = {
        **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA GB200", "NVIDIA RTX 6000 Ada Generation"), True),
        **dict.fromkeys(("NVIDIA GeForce RTX 4090", "NVIDIA TITAN RTX", "NVIDIA GB10"), False),
    }
    assert {name: supported(Gpu(0, name)) for name in products} == products
    makers = {
        ("AMD EPYC 9534 64-Core Processor", "x86_64"): "amd",
        ("INTEL(R) XEON(R) PLATINUM 8570", "x86_64"): "intel",
        ("Intel(R) Xeon(R) Platinum 8480C", "x86_64"): "intel",
        ("ZHAOXIN KaiSheng KH-40000@2.2GHz", "x86_64"): "zhaoxin",
        ("POWER9, altivec supported", "ppc64le"): "power",
        ("", "aarch64"): "arm",
        ("", "x86_64"): "",
    }
    assert {name: maker(Cpus((0,), name[0], ()), name[1]) for name in makers} == makers


def test_a_level_is_named_as_it_was_set_and_disabling_beats_it() -> None:
    found = user_level(having(NET_GDR_LEVEL="2"), "NCCL_NET_GDR_LEVEL", None)
    assert (str(found), found and found.path) == ("NCCL_NET_GDR_LEVEL=2", PXB)
    assert user_level(having(NET_GDR_LEVEL="P2C"), "NCCL_NET_GDR_LEVEL", OLD) is None
    assert {version: gdr_level(NONE, version).path for version in ((2, 28, 9), (2, 29, 2))} == {
        (2, 28, 9): PXB,
        (2, 29, 2): P2C,
    }
    levels = {("amd", 2, None): SYS, ("amd", 3, None): PXB, ("amd", 8, (2, 22, 3)): SYS, ("arm", 8, (2, 22, 3)): PXB}
    made = {(who, gpus, version): p2p_level(NONE, version, who, gpus) for who, gpus, version in levels}  # type: ignore[arg-type]
    assert made == {key: Level(path) for key, path in levels.items()}
    both = having(P2P_LEVEL="SYS", P2P_DISABLE="1")
    assert p2p_level(both, None, "amd", 2) == Level(LOC, "NCCL_P2P_DISABLE=1")


def peers(read: P2pStatus | Absent, write: P2pStatus | Absent | None = None) -> PeerAccess:
    return PeerAccess({(0, 1): read}, {(0, 1): read if write is None else write})


def found_transport(path: PathType | None, access: PeerAccess | Absent, **settings: str) -> PeerTransport:
    two = Topology(gpus={"GPU0": "a", "GPU1": "b"}, paths={("GPU0", "GPU1"): path})
    (found,) = peer_transports(two, access, having(**settings), Level(PXB))
    return found


@each_row(
    ("path", "access", "settings", "transport", "broken"),
    [
        (PXB, peers("OK"), {}, "P2P", False),
        (PHB, peers("OK"), {}, "SHM", False),
        (SYS, peers("OK"), {"SHM_DISABLE": "1"}, "NET", False),
        (NVL, peers("TNS"), {}, "SHM", True),
        (NVL, peers("TNS"), {"IGNORE_DISABLED_P2P": "1"}, "SHM", False),
        (NVL, peers("TNS"), {"IGNORE_DISABLED_P2P": "2"}, "P2P", False),
        (PIX, peers("OK", "CNS"), {}, "SHM", False),  # reading and writing must both be allowed
        (NVB, peers("TNS"), {}, "P2P", False),
        # What NVML does not say is not guessed, but the level decides first.
        (NVL, Absent("no NVML"), {}, None, False),
        (SYS, PeerAccess(), {}, "SHM", False),
        (None, peers("OK"), {}, None, False),
    ],
)  # fmt: skip
def test_near_gpus_whose_peers_nvml_allows_go_directly(
    path: PathType | None, access: PeerAccess, settings: dict[str, str], transport: str | None, broken: bool
) -> None:
    found = found_transport(path, access, **settings)
    assert (found.transport, found.broken) == (transport, broken)
    assert path is not SYS or "SHM_DISABLE" in settings or found.why == "SYS, the default level is PXB"


LINKED, BRIDGED = (NvLink(0, "active", remote="switch"),), (NvLink(0, "active", remote="gpu"),)


def hgx(count: int = 8, cuda: tuple[int, int] = CUDA, **changes: Any) -> Gpus:
    made = GpuFabric("completed")
    every = (replace(Gpu(n, "NVIDIA H100", compute=(9, 0), mig=False, fabric=made), **changes) for n in range(count))
    return Gpus(tuple(every), "550.127.08", cuda)


@each_row(
    ("gpus", "row", "version", "available", "word"),
    [
        (hgx(), LINKED, (2, 17, 1), True, "NVSwitches"),
        (hgx(), LINKED, (2, 16, 5), False, "2.17"),
        (hgx(2), LINKED, (2, 28, 9), False, "it takes 3"),
        (hgx(1), LINKED, None, False, "1 GPU:"),
        (hgx(cuda=(12, 0)), LINKED, None, False, "12.1"),
        (hgx(compute=(8, 0)), LINKED, None, False, "compute capability 8.0"),
        (hgx(compute=Absent("not told")), LINKED, None, None, "does not report"),
        (hgx(mig=True), LINKED, None, False, "MIG"),
        (hgx(2), BRIDGED, None, False, "no NVSwitch"),
        (hgx(fabric=GpuFabric("in-progress")), LINKED, None, False, "in-progress"),
        (hgx(fabric=GpuFabric("completed", status=999)), LINKED, None, False, "999"),
    ],
)
def test_multicast_takes_switches_hopper_and_a_healthy_fabric(
    gpus: Gpus, row: Any, version: Version | None, available: bool | None, word: str
) -> None:
    found = nvls(gpus, NvLinks((row,) * len(gpus.all)), NONE, version)
    assert (found.available, word in found.why) == (available, True)


def four(far: tuple[int, ...] = (), links: NvLinks | Absent = UNLINKED) -> tuple[Topology, dict[str, Gpu]]:
    gpus = fixtures.gpus()
    topology = machine_topology(fixtures.pci(far=far), gpus, links, fixtures.fabric())
    return topology, {f"GPU{gpu.index}": gpu for gpu in gpus.all}


def one(made: tuple[Direct, ...], gpu: str, nic: str) -> Direct:
    return next(direct for direct in made if (direct.gpu, direct.nic) == (gpu, nic))


FAR = "mlx5_3 is across the host bridge (PHB or NODE), the default level is PXB"


@each_row(
    ("links", "settings", "version", "pair", "receives", "path", "relay", "why"),
    [
        (UNLINKED, {}, NEW, ("GPU0", "mlx5_0"), True, PIX, "", "mlx5_0 is at PIX, within PXB"),
        (UNLINKED, {}, NEW, ("GPU3", "mlx5_3"), False, PHB, "", FAR),
        # Over NVLink the relay's path decides, unless PXN is off or too new.
        (SWITCHED, {}, NEW, ("GPU3", "mlx5_0"), True, PIX, "GPU0", "mlx5_0 is at PIX through GPU0 (PXN), within PXB"),
        (SWITCHED, {"PXN_DISABLE": "1"}, NEW, ("GPU3", "mlx5_0"), False, SYS, "", ""),
        (SWITCHED, {}, (2, 11, 4), ("GPU3", "mlx5_0"), False, SYS, "", ""),
    ],
)  # fmt: skip
def test_a_nic_below_the_gpus_switch_is_near_enough_or_one_that_another_gpu_reaches(
    links: Any, settings: dict[str, str], version: Version, pair: tuple[str, str], receives: bool, path: PathType,
    relay: str, why: str,
) -> None:  # fmt: skip
    topology, gpus = four(far=(3,), links=links)
    found = one(decide(topology, gpus, topology.nics, having(**settings), version), *pair)
    assert (found.receives, found.path, found.relay) == (receives, path, relay)
    assert why in ("", found.why)


@each_row(
    ("version", "settings", "receives"),
    [
        ((2, 26, 2), {}, False),
        ((2, 26, 2), {"NET_GDR_C2C": "1"}, True),
        (NEW, {}, True),
        (NEW, {"NET_GDR_C2C": "0"}, False),
        (NEWEST, {}, True),
        (NEWEST, {"NET_GDR_LEVEL": "PXB"}, False),
    ],
)
def test_a_grace_reaches_the_nics_of_its_cpu(version: Version, settings: dict[str, str], receives: bool) -> None:
    gpu = replace(fixtures.gpus(1).all[0], name="NVIDIA GH200 480GB")
    gpus, pci = Gpus((gpu,), "550.127.08", CUDA), fixtures.pci(1, far=(0,))
    topology = machine_topology(pci, gpus, UNLINKED, fixtures.fabric(count=1))
    assert topology.paths["GPU0", "mlx5_0"] is P2C
    (direct,) = decide(topology, {"GPU0": gpu}, ["mlx5_0"], having(**settings), version)
    assert direct.receives is receives


@each_row(
    ("compute", "version", "value", "links", "sends"),
    [
        ((7, 0), NEWEST, None, False, False),
        ((7, 0), NEWEST, None, True, True),
        ((7, 0), NEWEST, "1", False, True),
        ((8, 0), NEWEST, None, False, True),
        ((8, 0), (2, 18, 6), None, False, False),
        ((8, 0), NEWEST, "0", True, False),
        (None, NEWEST, None, False, None),
    ],
)
def test_what_a_gpu_sends_is_staged_before_ampere_without_nvlink(
    compute: tuple[int, int] | None, version: Version, value: str | None, links: bool, sends: bool | None
) -> None:
    topology, gpus = four(links=SWITCHED if links else UNLINKED)
    gpus = {name: replace(gpu, compute=compute or Absent("not told")) for name, gpu in gpus.items()}
    settings = having(NET_GDR_READ=value) if value else NONE
    direct = one(decide(topology, gpus, topology.nics, settings, version), "GPU0", "mlx5_0")
    assert (direct.receives, direct.sends) == (True, sends)


def test_a_lone_gpu_sends_whatever_its_age_and_unknown_distances_and_desktop_cards_decide_as_they_must() -> None:
    gpu = replace(fixtures.gpus(1).all[0], compute=(7, 5))
    alone = machine_topology(fixtures.pci(1), Gpus((gpu,), "550", CUDA), UNLINKED, fixtures.fabric(count=1))
    assert decide(alone, {"GPU0": gpu}, ["mlx5_0"], NONE)[0].sends is True
    (desktop,) = decide(alone, {"GPU0": replace(gpu, name="NVIDIA GeForce RTX 4090")}, ["mlx5_0"], NONE)
    assert (desktop.receives, desktop.sends, "NVIDIA GeForce RTX 4090" in desktop.why) == (False, False, True)
    topology, gpus = four()
    blind = replace(topology, paths=dict.fromkeys(topology.paths, None), relays={})
    assert {(d.receives, d.sends) for d in decide(blind, gpus, topology.nics, NONE)} == {(None, None)}
    soft = Fabric((fixtures.device(fixtures.port(0), pci=None),))
    assert machine_topology(fixtures.pci(), fixtures.gpus(), UNLINKED, soft).path("GPU0", "mlx5_0") is None
