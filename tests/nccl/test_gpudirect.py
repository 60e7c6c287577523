"""Between GPUs, and between a GPU and a NIC, by NCCL's rules: levels, peers, multicast, GPUDirect RDMA and relays.

Each rule is a row here; all releases, settings and distances are in tests/data/command_values/{gpudirect,peers}.txt.
"""

from typing import Any

from ncclprobe.checks.ib import fixtures
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, GpuFabric, Gpus
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.gpudirect import Level, decide, gdr_level, maker, nvls, p2p_level, supported, user_level
from ncclprobe.nccl.paths import PathType, Topology, machine_topology

NONE, CUDA = fixtures.PLAIN, (12, 4)
LOC, NVL, _, _, PIX, PXB, P2C, _, PHB, SYS = PathType
SWITCHED = NvLinks(((NvLink(0, "active", remote="switch", remote_pci=""),),) * 4)
UNLINKED = Absent("none")
OLD = (2, 21, 5)


def having(**variables: str) -> Settings:
    """Settings of NCCL, named without their prefix."""
    found: dict[str, Any] = {}
    for name, value in variables.items():
        found |= fixtures.having(f"NCCL_{name}", value).effective
    return replace(NONE, effective=found)


def test_products_and_processors_are_known_by_their_names() -> None:
    products = {
        **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA GB200", "NVIDIA RTX 6000 Ada Generation"), True),
        **dict.fromkeys(("NVIDIA GeForce RTX 4090", "NVIDIA TITAN RTX", "NVIDIA GB10"), False),
    }
    assert {name: supported(Gpu(0, name)) for name in products} == products
    makers = {
        ("AMD EPYC 9534 64-Core Processor", "x86_64"): "amd",
        **dict.fromkeys((("INTEL(R) XEON(R) 8570", "x86_64"), ("Intel(R) Xeon(R) 8480C", "x86_64")), "intel"),
        ("ZHAOXIN KaiSheng KH-40000@2.2GHz", "x86_64"): "zhaoxin",
        ("POWER9, altivec supported", "ppc64le"): "power",
        **{("", "aarch64"): "arm", ("", "x86_64"): ""},
    }
    assert {name: maker(Cpus((0,), name[0], ()), name[1]) for name in makers} == makers


def test_a_level_is_named_as_it_was_set_and_disabling_beats_it() -> None:
    found = user_level(having(NET_GDR_LEVEL="2"), "NCCL_NET_GDR_LEVEL", None)
    assert (str(found), found and found.path) == ("NCCL_NET_GDR_LEVEL=2", PXB)
    assert user_level(having(NET_GDR_LEVEL="P2C"), "NCCL_NET_GDR_LEVEL", OLD) is None
    assert [gdr_level(NONE, version).path for version in ((2, 28, 9), (2, 29, 2))] == [PXB, P2C]
    assert [p2p_level(NONE, None, "amd", gpus).path for gpus in (2, 3)] == [SYS, PXB]
    both = having(P2P_LEVEL="SYS", P2P_DISABLE="1")
    assert p2p_level(both, None, "amd", 2) == Level(LOC, "NCCL_P2P_DISABLE=1")


LINKED, BRIDGED = (NvLink(0, "active", remote="switch"),), (NvLink(0, "active", remote="gpu"),)


def hgx(count: int = 8, cuda: tuple[int, int] = CUDA, **changes: Any) -> Gpus:
    made = GpuFabric("completed")
    every = (replace(Gpu(n, "NVIDIA H100", compute=(9, 0), mig=False, fabric=made), **changes) for n in range(count))
    return Gpus(tuple(every), "550.127.08", cuda)


def four(far: tuple[int, ...] = (), links: NvLinks | Absent = UNLINKED) -> tuple[Topology, dict[str, Gpu]]:
    gpus = fixtures.gpus()
    topology = machine_topology(fixtures.pci(far=far), gpus, links, fixtures.fabric())
    return topology, {f"GPU{gpu.index}": gpu for gpu in gpus.all}


def test_switches_join_gpus_if_each_known_row_has_one() -> None:
    rows = [((LINKED,) * 8, True), ((LINKED,) * 7, True), ((LINKED,) * 7 + (BRIDGED,), False), ((UNLINKED,) * 8, None)]
    rows += [((LINKED,) * 7 + ((),), False), ((), False), ((LINKED,) * 9, True)]
    assert [nvls(hgx(), NvLinks(links), NONE).available for links, _ in rows] == [joined for _, joined in rows]


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
