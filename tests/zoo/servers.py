"""Bare metal with several GPUs."""

from zoo import parts
from zoo.description import Firmware, Machine, Nic, NicModel, Processors, Root, Software, Switch, meshed, nvlinked

_MACHINES = "vendors' data sheets and NVIDIA/deepops roles/nvidia-dgx (product names, GPUs, NICs)"
_PLX8 = ((0x10B5, 0x8796), (0x10B5, 0x8796))
_GEN4 = ((0x1000, 0xC010), (0x1000, 0xA096))
_NDR, _HDR, _EDR = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)", "100 Gb/sec (4X EDR)"


def _ib(number: int, model: NicModel, rate: str, netdev: str = "") -> Nic:
    speed = int(rate.split()[0]) * 1000
    return Nic(model, f"mlx5_{number}", netdev or f"ib{number}", rate, speed_mbps=speed, mtu=2044)


def _management(model: NicModel = parts.X550, name: str = "eno1", address: str = "10.0.0.11/24") -> Nic:
    return Nic(model, netdev=name, speed_mbps=10000, address=address)


DGX_1V = Machine(
    name="dgx-1v",
    title="NVIDIA DGX-1 with 8 V100: hybrid cube mesh, 4 EDR",
    sources=(
        "NVLink words: Oneflow-Inc/DLPerf DeepSpeed/Megatron-LM/README.md; aws/aws-k8s-tester p3.16xlarge has the same",
        "a NIC and two GPUs below one switch, PHB to the other two of the socket: general knowledge of the DGX-1; in "
        "those posts two host bridges per socket give NODE",
        _MACHINES,
    ),
    processors=Processors(
        "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", {0: "0-19,40-59", 1: "20-39,60-79"}, 21, memory_gib=512
    ),
    tree=(
        Root(
            "0000:00",
            0,
            (Switch(("GPU0", "GPU1", "mlx5_0"), *_PLX8), Switch(("GPU2", "GPU3", "mlx5_1"), *_PLX8), "enp1s0f0"),
        ),
        Root("0000:80", 1, (Switch(("GPU4", "GPU5", "mlx5_2"), *_PLX8), Switch(("GPU6", "GPU7", "mlx5_3"), *_PLX8))),
    ),
    firmware=Firmware("NVIDIA", "DGX-1 with V100-32", "DGX-1 with V100-32"),
    software=Software("535.183.01", 12020, False, torch="2.4.0+cu121", torch_cuda="12.1", nccl="2.20.5"),
    gpu=parts.V100_32,
    nics=(
        *(_ib(n, parts.CONNECTX_4, _EDR) for n in range(4)),
        _management(name="enp1s0f0"),
    ),
    remotes=tuple(
        tuple(f"GPU{peer}" for peer in map(int, row))
        for row in ("123344", "022355", "011336", "001227", "005677", "114667", "245577", "344566")
    ),
    peer_memory=True,
    kernel="5.4.0-192-generic",
    distribution="Ubuntu 20.04.6 LTS",
    matrix="""
             GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 mlx5_0 mlx5_1 mlx5_2 mlx5_3
        GPU0    X  NV1  NV1  NV2  NV2  SYS  SYS  SYS    PIX    PHB    SYS    SYS
        GPU1  NV1    X  NV2  NV1  SYS  NV2  SYS  SYS    PIX    PHB    SYS    SYS
        GPU2  NV1  NV2    X  NV2  SYS  SYS  NV1  SYS    PHB    PIX    SYS    SYS
        GPU3  NV2  NV1  NV2    X  SYS  SYS  SYS  NV1    PHB    PIX    SYS    SYS
        GPU4  NV2  SYS  SYS  SYS    X  NV1  NV1  NV2    SYS    SYS    PIX    PHB
        GPU5  SYS  NV2  SYS  SYS  NV1    X  NV2  NV1    SYS    SYS    PIX    PHB
        GPU6  SYS  SYS  NV1  SYS  NV1  NV2    X  NV2    SYS    SYS    PHB    PIX
        GPU7  SYS  SYS  SYS  NV1  NV2  NV1  NV2    X    SYS    SYS    PHB    PIX
        mlx5_0 PIX PIX  PHB  PHB  SYS  SYS  SYS  SYS      X    PHB    SYS    SYS
        mlx5_1 PHB PHB  PIX  PIX  SYS  SYS  SYS  SYS    PHB      X    SYS    SYS
        mlx5_2 SYS SYS  SYS  SYS  PIX  PIX  PHB  PHB    SYS    SYS      X    PHB
        mlx5_3 SYS SYS  SYS  SYS  PHB  PHB  PIX  PIX    SYS    SYS    PHB      X
    """,
)

DGX_A100 = Machine(
    name="dgx-a100",
    title="NVIDIA DGX A100 with 8 A100 80 GB: NVSwitch, 8 HDR for compute and 2 for storage, 8 NUMA nodes",
    sources=(
        "8 NUMA nodes, 10 HDR: NVIDIA/deepops nhc.conf.example-dgxa100",
        "two GPUs PXB to their own NICs, SYS to all others: the groups of XueSongTap's 8xA100 post; that a DGX A100 "
        "has two NICs in each, its CPU lists, and that storage has a dual-port card of its own: general knowledge",
        "six NVSwitches on the bus: NVIDIA's sheet; two levels of Broadcom switches: NCCL graph/topo.cc fuses them",
        _MACHINES,
    ),
    processors=Processors(
        "AMD EPYC 7742 64-Core Processor",
        {n: f"{16 * n}-{16 * n + 15},{16 * n + 128}-{16 * n + 143}" for n in range(8)},
        32,
    ),
    tree=(
        *(
            Root(f"0000:{bus:02x}", node, (Switch(tuple(Switch((name,), *_GEN4) for name in names), *_GEN4),))
            for bus, node, names in (
                (0x00, 3, ("GPU0", "GPU1", "mlx5_0", "mlx5_1")),
                (0x40, 1, ("GPU2", "GPU3", "mlx5_2", "mlx5_3")),
                (0x80, 7, ("GPU4", "GPU5", "mlx5_6", "mlx5_7")),
                (0xA0, 5, ("GPU6", "GPU7", "mlx5_8", "mlx5_9")),
            )
        ),
        Root("0000:c0", 4, (Switch(tuple(f"nvswitch{n}" for n in range(6)), *_GEN4),)),
        Root("0000:e0", 0, ("mlx5_4+mlx5_5", "eno1")),
    ),
    firmware=Firmware("NVIDIA", "DGXA100 920-23687-2530-000", "DGXA100"),
    software=Software("535.183.01", 12020, fabric_manager=True, torch="2.4.0+cu121", torch_cuda="12.1", nccl="2.20.5"),
    gpu=parts.A100_80,
    nics=(*(_ib(n, parts.CONNECTX_6, _HDR) for n in range(10)), _management()),
    remotes=nvlinked(parts.A100_80, 8),
    peer_memory=True,
    matrix=meshed(
        "NV12",
        8,
        """
        mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9
        PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS
        PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS
        SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS
        SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS
        SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS
        SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS
        SYS SYS SYS SYS SYS SYS SYS SYS PXB PXB
        SYS SYS SYS SYS SYS SYS SYS SYS PXB PXB
        X   PXB SYS SYS SYS SYS SYS SYS SYS SYS
        PXB X   SYS SYS SYS SYS SYS SYS SYS SYS
        SYS SYS X   PXB SYS SYS SYS SYS SYS SYS
        SYS SYS PXB X   SYS SYS SYS SYS SYS SYS
        SYS SYS SYS SYS X   PIX SYS SYS SYS SYS
        SYS SYS SYS SYS PIX X   SYS SYS SYS SYS
        SYS SYS SYS SYS SYS SYS X   PXB SYS SYS
        SYS SYS SYS SYS SYS SYS PXB X   SYS SYS
        SYS SYS SYS SYS SYS SYS SYS SYS X   PXB
        SYS SYS SYS SYS SYS SYS SYS SYS PXB X
        """,
    ),
)

_SAPPHIRE = Processors("Intel(R) Xeon(R) Platinum 8480C", {0: "0-55,112-167", 1: "56-111,168-223"}, 21)
_DGX_H100_SOURCES = (
    "each GPU PIX to one NIC, NODE to those of its socket, SYS to the others: the shape of a real 8x H200 matrix "
    "(dw-flyingw/GLM-5.2-FP8 topo.txt)",
    "CPU lists: Google's A3 Ultra, the same processors (mlcommons/training_results_v5.0)",
    _MACHINES,
)


def _rails(first: int, sockets: int = 2) -> tuple[Root, ...]:
    """A root bus per GPU, with the NIC of the same number behind one switch with it."""
    return tuple(
        Root(f"0000:{0x10 + 0x18 * n:02x}", n // 4, (Switch((f"GPU{n}", f"mlx5_{first + n}")),)) for n in range(8)
    )


def _rail_words(near: str) -> str:
    """The NICs' part of the matrix of eight such pairs."""
    names = [f"mlx5_{n}" for n in range(8)]
    rows = [[near if g == n else "NODE" if g // 4 == n // 4 else "SYS" for n in range(8)] for g in range(8)]
    among = [["X" if g == n else rows[g][n] for n in range(8)] for g in range(8)]
    return "\n".join(" ".join(line) for line in (names, *rows, *among))


HGX_H100 = Machine(
    name="hgx-h100",
    title="HGX H100: 8 H100 SXM, 8 NDR, a rail each",
    sources=_DGX_H100_SOURCES,
    processors=_SAPPHIRE,
    tree=(*_rails(0), Root("0000:f8", 1, (Switch(tuple(f"nvswitch{n}" for n in range(4))), "eno1"))),
    firmware=Firmware("NVIDIA", "DGXH100", "DGXH100"),
    software=Software("550.127.08", 12040, fabric_manager=True, torch="2.6.0+cu124", torch_cuda="12.4", nccl="2.21.5"),
    gpu=parts.H100,
    nics=(*(_ib(n, parts.CONNECTX_7, _NDR) for n in range(8)), _management()),
    remotes=nvlinked(parts.H100, 8),
    peer_memory=True,
    matrix=meshed("NV18", 8, _rail_words("PIX")),
)

HGX_H100_USER = Machine(
    name="hgx-h100-user",
    title="The same HGX H100, looked at by an ordinary user",
    sources=("what nobody may see that root does: the guest's two captures",),
    processors=HGX_H100.processors,
    tree=HGX_H100.tree,
    firmware=HGX_H100.firmware,
    software=HGX_H100.software,
    gpu=HGX_H100.gpu,
    nics=HGX_H100.nics,
    remotes=HGX_H100.remotes,
    peer_memory=True,
    matrix=HGX_H100.matrix,
    root=False,
    like="hgx-h100",
)

HGX_H200 = Machine(
    name="hgx-h200",
    title="HGX H200: 8 H200 SXM, 10 NICs whose numbers do not follow those of the GPUs",
    sources=("the whole matrix, CPU lists and NIC names: dw-flyingw/GLM-5.2-FP8 topo.txt", _MACHINES),
    processors=Processors("AMD EPYC 9534 64-Core Processor", {0: "0-63,128-191", 1: "64-127,192-255"}, 32),
    tree=(
        *(
            Root(f"0000:{0x08 + 0x18 * n:02x}", n // 4, (Switch((f"GPU{n}", *nics)),))
            for n, nics in enumerate(
                (
                    ("mlx5_3",),
                    ("mlx5_5",),
                    ("mlx5_4",),
                    ("mlx5_0", "mlx5_1+mlx5_2"),
                    ("mlx5_7",),
                    ("mlx5_9",),
                    ("mlx5_8",),
                    ("mlx5_6",),
                )
            )
        ),
        Root("0000:f0", 0, ("eno1",)),
    ),
    firmware=Firmware("Supermicro", "SYS-821GE-TNHR", "X13DEG-OAD"),
    software=Software("570.133.20", 12080, fabric_manager=True, torch="2.7.0+cu128", torch_cuda="12.8", nccl="2.26.2"),
    gpu=parts.H200,
    nics=(*(_ib(n, parts.CONNECTX_7, _NDR) for n in range(10)), _management()),
    remotes=nvlinked(parts.H200, 8),
    peer_memory=True,
    matrix=meshed(
        "NV18",
        8,
        """
        mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9
        NODE NODE NODE PIX  NODE NODE SYS  SYS  SYS  SYS
        NODE NODE NODE NODE NODE PIX  SYS  SYS  SYS  SYS
        NODE NODE NODE NODE PIX  NODE SYS  SYS  SYS  SYS
        PIX  PIX  PIX  NODE NODE NODE SYS  SYS  SYS  SYS
        SYS  SYS  SYS  SYS  SYS  SYS  NODE PIX  NODE NODE
        SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE NODE PIX
        SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE PIX  NODE
        SYS  SYS  SYS  SYS  SYS  SYS  PIX  NODE NODE NODE
        X    PIX  PIX  NODE NODE NODE SYS  SYS  SYS  SYS
        PIX  X    PIX  NODE NODE NODE SYS  SYS  SYS  SYS
        PIX  PIX  X    NODE NODE NODE SYS  SYS  SYS  SYS
        NODE NODE NODE X    NODE NODE SYS  SYS  SYS  SYS
        NODE NODE NODE NODE X    NODE SYS  SYS  SYS  SYS
        NODE NODE NODE NODE NODE X    SYS  SYS  SYS  SYS
        SYS  SYS  SYS  SYS  SYS  SYS  X    NODE NODE NODE
        SYS  SYS  SYS  SYS  SYS  SYS  NODE X    NODE NODE
        SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE X    NODE
        SYS  SYS  SYS  SYS  SYS  SYS  NODE NODE NODE X
        """,
    ),
)

DGX_B200 = Machine(
    name="dgx-b200",
    title="NVIDIA DGX B200: 8 B200, 8 NDR, two levels of switches between a GPU and its NIC",
    sources=(
        "PXB to the own NIC, NODE and SYS to others, CPU lists: a B200 matrix in an nccl-tests issue, cut short there, "
        "with eight more NICs than the compute ones here",
        _MACHINES,
    ),
    processors=Processors("INTEL(R) XEON(R) PLATINUM 8570", {0: "0-55,112-167", 1: "56-111,168-223"}, 21),
    tree=(
        *(
            Root(f"0000:{0x10 + 0x18 * n:02x}", n // 4, (Switch((Switch((f"GPU{n}",)), Switch((f"mlx5_{n}",)))),))
            for n in range(8)
        ),
        Root("0000:f8", 1, ("eno1",)),
    ),
    firmware=Firmware("NVIDIA", "DGXB200", "DGXB200"),
    software=Software("570.133.20", 12080, fabric_manager=True, torch="2.7.0+cu128", torch_cuda="12.8", nccl="2.26.2"),
    gpu=parts.B200,
    nics=(*(_ib(n, parts.CONNECTX_7, _NDR) for n in range(8)), _management()),
    remotes=nvlinked(parts.B200, 8),
    peer_memory=True,
    kernel="6.8.0-1025-nvidia",
    distribution="Ubuntu 24.04.2 LTS",
    matrix=meshed("NV18", 8, _rail_words("PXB")),
)

_GRACE_NODES = {0: "0-71", 1: "72-143", **dict.fromkeys((2, 10, 18, 26), "")}

GB200_TRAY = Machine(
    name="gb200-tray",
    title="GB200 NVL72, one compute tray: 2 Grace, 4 GPUs that are part of the rack's NVLink, 4 NDR",
    sources=(
        "NUMA nodes 2, 10, 18 and 26 for the GPUs' own memory: real GB200 matrices",
        "a PCI domain per GPU and per NIC, hence NODE and SYS: general knowledge. One posted matrix, from a job, "
        "says SYS for every NIC; it is not modelled",
        "what NVML and sysfs say of the GPU's PCIe link is not known; here they do not tell",
        _MACHINES,
    ),
    processors=Processors("Neoverse-V2", _GRACE_NODES, 40, arch="aarch64", memory_gib=960),
    tree=(
        Root("0008:00", 0, ("GPU0",)),
        Root("0009:00", 0, ("GPU1",)),
        Root("0018:00", 1, ("GPU2",)),
        Root("0019:00", 1, ("GPU3",)),
        Root("0000:00", 0, ("mlx5_0",)),
        Root("0002:00", 0, ("mlx5_1",)),
        Root("0010:00", 1, ("mlx5_2",)),
        Root("0012:00", 1, ("mlx5_3",)),
        Root("0005:00", 0, ("eno1",)),
    ),
    firmware=Firmware("NVIDIA", "GB200 NVL", "PG548"),
    software=Software("570.133.20", 12080, torch="2.7.0+cu128", torch_cuda="12.8", nccl="2.26.2"),
    gpu=parts.GB200,
    nics=(*(_ib(n, parts.CONNECTX_7, _NDR) for n in range(4)), _management()),
    remotes=nvlinked(parts.GB200, 4),
    cluster=True,
    kernel="6.8.0-1025-nvidia-64k",
    distribution="Ubuntu 24.04.2 LTS",
    matrix=meshed(
        "NV18",
        4,
        """
        mlx5_0 mlx5_1 mlx5_2 mlx5_3
        NODE NODE SYS  SYS
        NODE NODE SYS  SYS
        SYS  SYS  NODE NODE
        SYS  SYS  NODE NODE
        X    NODE SYS  SYS
        NODE X    SYS  SYS
        SYS  SYS  X    NODE
        SYS  SYS  NODE X
        """,
    ),
)

POWER9 = Machine(
    name="power9",
    title="IBM AC922: 2 POWER9, 4 V100 with NVLink to each other in pairs and to their processor",
    sources=(
        "the whole matrix, NUMA nodes 0, 8 and 252 to 255: jdh4/della-gpu-A100 README.md (Traverse at Princeton)",
        "NVLink bridges to the processor are PCI functions of class 0x068001: NCCL graph/xml.cc and topo.cc",
        "an NVML of its time, without fields by link",
    ),
    processors=Processors(
        "POWER9, altivec supported",
        {0: "0-63", 8: "64-127", **dict.fromkeys(range(252, 256), "")},
        40,
        arch="ppc64le",
        memory_gib=256,
    ),
    tree=(
        Root("0004:00", 0, (Switch(("GPU0", "GPU1"), *_PLX8),)),
        Root("0035:00", 8, (Switch(("GPU2", "GPU3"), *_PLX8),)),
        Root("0003:00", 0, ("mlx5_0+mlx5_1",)),
        Root("0033:00", 8, ("mlx5_2+mlx5_3",)),
        Root("0006:00", 0, ("npu0",), flat=True),
        Root("0007:00", 8, ("npu1",), flat=True),
        Root("0005:00", 0, ("enP5p1s0f0",)),
    ),
    firmware=Firmware(tree="8335-GTX"),
    software=Software("450.80.02", 11000, False, system_nccl="2.8.4"),
    gpu=parts.V100_32,
    nics=(
        *(_ib(n, parts.CONNECTX_5, _EDR) for n in range(4)),
        _management(parts.TG3, "enP5p1s0f0"),
    ),
    remotes=tuple((*(f"GPU{peer}",) * 3, *(f"npu{npu}",) * 3) for peer, npu in ((1, 0), (0, 0), (3, 1), (2, 1))),
    peer_memory=True,
    kernel="4.18.0-193.el8.ppc64le",
    distribution="Red Hat Enterprise Linux 8.2 (Ootpa)",
    matrix="""
             GPU0 GPU1 GPU2 GPU3 mlx5_0 mlx5_1 mlx5_2 mlx5_3
        GPU0    X  NV3  SYS  SYS   NODE   NODE    SYS    SYS
        GPU1  NV3    X  SYS  SYS   NODE   NODE    SYS    SYS
        GPU2  SYS  SYS    X  NV3    SYS    SYS   NODE   NODE
        GPU3  SYS  SYS  NV3    X    SYS    SYS   NODE   NODE
        mlx5_0 NODE NODE SYS SYS      X    PIX    SYS    SYS
        mlx5_1 NODE NODE SYS SYS    PIX      X    SYS    SYS
        mlx5_2 SYS  SYS NODE NODE   SYS    SYS      X    PIX
        mlx5_3 SYS  SYS NODE NODE   SYS    SYS    PIX      X
    """,
)

ALL = (DGX_1V, DGX_A100, HGX_H100, HGX_H100_USER, HGX_H200, DGX_B200, GB200_TRAY, POWER9)
