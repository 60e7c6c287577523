"""GPUDirect RDMA by NCCL's rules: a way in the kernel, the level, relays, Grace, and what old GPUs do not send."""

from ncclprobe.checks.ib import fixtures
from ncclprobe.facts.driver import PATHS, Flavour, GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.software import Version
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.gpudirect import Direct, decide, gdr_level, kernel_support, supported, user_level
from ncclprobe.nccl.paths import PathType, Topology, machine_topology
from tests.each_row import each_row

NV_MEM, NV_MEM_NC, NVIDIA_PEERMEM = PATHS
NONE = fixtures.PLAIN
CUDA = (12, 4)
SWITCHED = NvLinks(((NvLink(0, "active", remote="switch", remote_pci=""),),) * 4)
UNLINKED = Absent("none")
OLD, NEW, NEWEST = (2, 21, 5), (2, 27, 3), (2, 30, 7)


def modules(*paths: str, driver: Flavour = "proprietary", kernel: tuple[int, int] = (5, 15)) -> GpuDirect:
    return replace(GpuDirect(dict.fromkeys(paths, "1.0"), kernel), driver=driver)


@each_row(
    ("path", "first", "before"),
    [
        (NV_MEM, (2, 4, 2), None),
        (NV_MEM_NC, (2, 22, 3), (2, 21, 5)),
        (NVIDIA_PEERMEM, (2, 23, 4), (2, 22, 3)),
    ],
)
def test_a_module_counts_from_the_version_that_looks_at_its_file(
    path: str, first: Version, before: Version | None
) -> None:
    assert kernel_support(modules(path), NONE, first, CUDA).works
    assert kernel_support(modules(path), NONE, None, CUDA).works
    if before:
        unseen = kernel_support(modules(path), NONE, before, CUDA)
        assert unseen.works is False
        assert f"NCCL {'.'.join(map(str, before))} does not look at {path}" in unseen.why


def test_any_module_that_is_looked_at_is_enough() -> None:
    assert kernel_support(modules(NV_MEM, NVIDIA_PEERMEM), NONE, OLD, CUDA).works


@each_row(
    ("direct", "version", "cuda", "works", "word"),
    [
        (modules(driver="open"), None, CUDA, True, "DMA-BUF"),
        (modules(driver="open"), (2, 13, 4), (11, 7), True, "DMA-BUF"),
        (modules(driver="open"), (2, 12, 12), CUDA, False, "not known to NCCL 2.12.12"),
        (modules(driver="open"), None, (11, 6), False, "this one is for 11.6"),
        (modules(driver="open", kernel=(5, 4)), None, CUDA, None, "old kernel"),
        (modules(), None, CUDA, False, "the proprietary one is loaded"),
        (replace(modules(), driver=None), None, CUDA, False, "no driver is loaded"),
        (replace(modules(), driver=Absent("denied")), None, CUDA, None, "denied"),
        (replace(modules(driver="open"), kernel=Absent("no uname")), None, CUDA, None, "no uname"),
    ],
)
def test_dma_buf_takes_nccl_driver_and_kernel(
    direct: GpuDirect, version: Version | None, cuda: tuple[int, int], works: bool | None, word: str
) -> None:
    found = kernel_support(direct, NONE, version, cuda)
    assert (found.works, word in found.why) == (works, True)


def test_dma_buf_can_be_switched_off_and_a_module_then_still_counts() -> None:
    off = fixtures.having("NCCL_DMABUF_ENABLE", "0")
    assert kernel_support(modules(driver="open"), off, None, CUDA).works is False
    assert kernel_support(modules(NVIDIA_PEERMEM, driver="open"), off, None, CUDA).works


def test_modules_that_could_not_be_looked_for_are_unknown_unless_dma_buf_works() -> None:
    blind = replace(modules(), peer_memory=Absent("no /sys"))
    assert kernel_support(blind, NONE, None, CUDA).works is None
    assert kernel_support(replace(blind, driver="open"), NONE, None, CUDA).works


@each_row(
    ("name", "has"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA GB200", True),
        ("NVIDIA RTX 6000 Ada Generation", True),
        ("NVIDIA GeForce RTX 4090", False),
        ("NVIDIA TITAN RTX", False),
        ("NVIDIA GB10", False),
    ],
)
def test_a_product_has_gpudirect_or_has_not(name: str, has: bool) -> None:
    assert supported(Gpu(0, name)) == has


@each_row(
    ("text", "version", "level"),
    [
        ("SYS", None, "SYS"),
        ("sys", None, None),
        ("2", None, "PXB"),
        ("4", None, "SYS"),
        ("P2C", NEWEST, "P2C"),
        ("P2C", OLD, None),
        ("-1", None, None),
    ],
)
def test_the_level_is_read_as_nccl_reads_levels(text: str, version: Version | None, level: str | None) -> None:
    found = user_level(fixtures.having("NCCL_NET_GDR_LEVEL", text), "NCCL_NET_GDR_LEVEL", version)
    assert (found.path.name if found else None) == level
    assert found is None or str(found) == f"NCCL_NET_GDR_LEVEL={text}"


@each_row(
    ("name", "value", "version", "level"),
    [
        ("HOME", "/root", OLD, PathType.PXB),
        ("HOME", "/root", (2, 28, 9), PathType.PXB),
        ("HOME", "/root", (2, 29, 2), PathType.P2C),
        ("HOME", "/root", None, PathType.P2C),
        ("NCCL_NET_GDR_C2C", "0", None, PathType.PXB),
        ("NCCL_NET_GDR_C2C", "no", None, PathType.PXB),
        ("NCCL_NET_GDR_LEVEL", "PHB", None, PathType.PHB),
    ],
)
def test_the_default_level_is_pxb_and_p2c_since_2_29(
    name: str, value: str, version: Version | None, level: PathType
) -> None:
    assert gdr_level(fixtures.having(name, value), version).path is level


def four(far: tuple[int, ...] = (), links: NvLinks | Absent = UNLINKED) -> tuple[Topology, dict[str, Gpu]]:
    gpus = fixtures.gpus()
    topology = machine_topology(fixtures.pci(far=far), gpus, links, fixtures.fabric())
    return topology, {f"GPU{gpu.index}": gpu for gpu in gpus.all}


def one(made: tuple[Direct, ...], gpu: str, nic: str) -> Direct:
    return next(direct for direct in made if (direct.gpu, direct.nic) == (gpu, nic))


def test_a_nic_below_the_gpus_switch_is_near_enough_and_one_across_the_host_bridge_is_not() -> None:
    topology, gpus = four(far=(3,))
    made = decide(topology, gpus, topology.nics, NONE, NEW)
    assert one(made, "GPU0", "mlx5_0") == Direct(
        "GPU0", "mlx5_0", True, True, PathType.PIX, "mlx5_0 is at PIX, within PXB"
    )
    lost = one(made, "GPU3", "mlx5_3")
    assert (lost.receives, lost.sends, lost.path, lost.relay) == (False, False, PathType.PHB, "")
    assert lost.why == "mlx5_3 is across the host bridge (PHB or NODE), the default level is PXB"


def test_over_nvlink_the_relays_path_decides() -> None:
    topology, gpus = four(far=(3,), links=SWITCHED)
    made = decide(topology, gpus, topology.nics, NONE, NEW)
    relayed = one(made, "GPU3", "mlx5_0")
    assert (relayed.receives, relayed.path, relayed.relay) == (True, PathType.PIX, "GPU0")
    assert relayed.why == "mlx5_0 is at PIX through GPU0 (PXN), within PXB"


@each_row(
    ("settings", "version"),
    [(fixtures.having("NCCL_PXN_DISABLE", "1"), NEW), (NONE, (2, 11, 4))],
    ids=["off", "too old"],
)
def test_without_pxn_the_gpus_own_path_decides(settings: Settings, version: Version) -> None:
    topology, gpus = four(far=(3,), links=SWITCHED)
    direct = one(decide(topology, gpus, topology.nics, settings, version), "GPU3", "mlx5_0")
    assert (direct.receives, direct.relay) == (False, "")


@each_row(("level", "receives"), [("PHB", True), ("SYS", True), ("PIX", False), ("phb", False)])
def test_a_level_set_by_the_user_replaces_the_default(level: str, receives: bool) -> None:
    topology, gpus = four(far=(3,))
    made = decide(topology, gpus, topology.nics, fixtures.having("NCCL_NET_GDR_LEVEL", level), NEW)
    assert one(made, "GPU3", "mlx5_3").receives is receives


def grace() -> tuple[Topology, dict[str, Gpu]]:
    gpus = Gpus((replace(fixtures.gpus(1).all[0], name="NVIDIA GH200 480GB"),), "550.127.08", CUDA)
    topology = machine_topology(fixtures.pci(1, far=(0,)), gpus, Absent("none"), fixtures.fabric(count=1))
    return topology, {"GPU0": gpus.all[0]}


@each_row(
    ("version", "settings", "receives"),
    [
        (OLD, NONE, False),
        ((2, 26, 2), NONE, False),
        ((2, 26, 2), fixtures.having("NCCL_NET_GDR_C2C", "1"), True),
        (NEW, NONE, True),
        (NEW, fixtures.having("NCCL_NET_GDR_C2C", "0"), False),
        (NEW, fixtures.having("NCCL_NET_GDR_LEVEL", "PXB"), True),
        (NEWEST, NONE, True),
        (NEWEST, fixtures.having("NCCL_NET_GDR_C2C", "0"), False),
        (NEWEST, fixtures.having("NCCL_NET_GDR_LEVEL", "PXB"), False),
    ],
)
def test_a_grace_reaches_the_nics_of_its_cpu(version: Version, settings: Settings, receives: bool) -> None:
    topology, gpus = grace()
    assert topology.paths["GPU0", "mlx5_0"] is PathType.P2C
    (direct,) = decide(topology, gpus, ["mlx5_0"], settings, version)
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
    topology, gpus = four(links=SWITCHED if links else Absent("none"))
    gpus = {name: replace(gpu, compute=compute or Absent("not told")) for name, gpu in gpus.items()}
    settings = fixtures.having("NCCL_NET_GDR_READ", value) if value else NONE
    direct = one(decide(topology, gpus, topology.nics, settings, version), "GPU0", "mlx5_0")
    assert (direct.receives, direct.sends) == (True, sends)


def test_the_only_gpu_sends_directly_whatever_its_age() -> None:
    gpu = replace(fixtures.gpus(1).all[0], compute=(7, 5))
    topology = machine_topology(fixtures.pci(1), Gpus((gpu,), "550", CUDA), Absent("none"), fixtures.fabric(count=1))
    assert decide(topology, {"GPU0": gpu}, ["mlx5_0"], NONE)[0].sends is True


def test_a_distance_that_nobody_knows_decides_nothing() -> None:
    topology, gpus = four()
    blind = replace(topology, paths=dict.fromkeys(topology.paths, None), relays={})
    assert {(d.receives, d.sends) for d in decide(blind, gpus, topology.nics, NONE)} == {(None, None)}


def test_soft_devices_are_at_no_distance() -> None:
    fabric = Fabric((fixtures.device(fixtures.port(0), pci=None),))
    topology = machine_topology(fixtures.pci(), fixtures.gpus(), Absent("none"), fabric)
    assert topology.path("GPU0", "mlx5_0") is None
