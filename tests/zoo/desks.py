"""PCIe servers, workstations and a laptop."""

from zoo import parts
from zoo.description import Firmware, Machine, Nic, NicModel, Processors, Root, Software, Switch

_TWO_BY_24 = {0: "0-23,48-71", 1: "24-47,72-95"}


def _management(model: NicModel = parts.X550, name: str = "eno1", speed: int = 10000) -> Nic:
    return Nic(model, netdev=name, speed_mbps=speed, address="10.0.0.11/24")


L40S_8 = Machine(
    name="l40s-8",
    title="PCIe server with 8 L40S: a switch for each pair, no RDMA",
    sources=(
        "the whole matrix and CPU lists: an 8-GPU PCIe server in vLLM's NUMA-aware all-reduce README; the same words: "
        "ASUS ESC8000A (voipmonitor/rtx6kpro)",
    ),
    processors=Processors("INTEL(R) XEON(R) GOLD 6542Y", _TWO_BY_24, 21, memory_gib=1024),
    tree=(
        *(Root(f"0000:{0x10 + 0x28 * n:02x}", n // 2, (Switch((f"GPU{2 * n}", f"GPU{2 * n + 1}")),)) for n in range(4)),
        Root("0000:f0", 0, ("eno1",)),
    ),
    firmware=Firmware("Supermicro", "SYS-421GE-TNRT", "X13DEG-OA"),
    software=Software("570.133.20", 12080, torch="2.7.0+cu128", torch_cuda="12.8", nccl="2.26.2"),
    gpu=parts.L40S,
    nics=(_management(),),
    kernel="6.8.0-60-generic",
    distribution="Ubuntu 24.04.2 LTS",
    matrix="""
             GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7
        GPU0    X  PIX NODE NODE  SYS  SYS  SYS  SYS
        GPU1  PIX    X NODE NODE  SYS  SYS  SYS  SYS
        GPU2 NODE NODE    X  PIX  SYS  SYS  SYS  SYS
        GPU3 NODE NODE  PIX    X  SYS  SYS  SYS  SYS
        GPU4  SYS  SYS  SYS  SYS    X  PIX NODE NODE
        GPU5  SYS  SYS  SYS  SYS  PIX    X NODE NODE
        GPU6  SYS  SYS  SYS  SYS NODE NODE    X  PIX
        GPU7  SYS  SYS  SYS  SYS NODE NODE  PIX    X
    """,
)

A100_BRIDGED = Machine(
    name="a100-bridged",
    title="4 A100 PCIe in two pairs joined by NVLink bridges, one dual-port RoCE card",
    sources=(
        "12 links within a pair, none across: NVIDIA's A100 80GB PCIe sheet; pairs beside other cards: posts with 3 "
        "and 4 RTX A6000 (NV4 there)",
        "a root port per card and NIC, so NODE and SYS: luigifcruz/stelline hardware/asus-esc8000a-e12.md",
        "RoCE port as in leptonai/gpud's ibstat test data (MT4125 at 100, Ethernet)",
    ),
    processors=Processors("AMD EPYC 7543 32-Core Processor", {0: "0-31", 1: "32-63"}, 32, memory_gib=512),
    tree=(
        Root("0000:00", 0, ("GPU0",)),
        Root("0000:20", 0, ("GPU1",)),
        Root("0000:80", 1, ("GPU2",)),
        Root("0000:a0", 1, ("GPU3",)),
        Root("0000:40", 0, ("mlx5_0+mlx5_1",)),
        Root("0000:60", 0, ("eno1",)),
    ),
    firmware=Firmware("ASUSTeK COMPUTER INC.", "ESC8000A-E11", "KMPG-D32 Series"),
    software=Software("550.127.08", 12040, torch="2.6.0+cu124", torch_cuda="12.4", nccl="2.21.5", system_nccl="2.21.5"),
    gpu=parts.A100_PCIE,
    nics=(
        *(
            Nic(
                parts.CONNECTX_6,
                f"mlx5_{n}",
                f"ens1f{n}np{n}",
                "100 Gb/sec (4X EDR)",
                "Ethernet",
                100000,
                9000,
                address,
            )
            for n, address in enumerate(("10.1.0.11/24", "10.2.0.11/24"))
        ),
        _management(),
    ),
    remotes=tuple((f"GPU{peer}",) * 12 for peer in (1, 0, 3, 2)),
    peer_memory=True,
    matrix="""
             GPU0 GPU1 GPU2 GPU3 mlx5_0 mlx5_1
        GPU0    X NV12  SYS  SYS   NODE   NODE
        GPU1 NV12    X  SYS  SYS   NODE   NODE
        GPU2  SYS  SYS    X NV12    SYS    SYS
        GPU3  SYS  SYS NV12    X    SYS    SYS
        mlx5_0 NODE NODE SYS SYS      X    PIX
        mlx5_1 NODE NODE SYS SYS    PIX      X
    """,
)

H100_NVL_2 = Machine(
    name="h100-nvl-2",
    title="2 H100 NVL, joined by NVLink bridges",
    sources=(
        "600 GB/s between the two: NVIDIA's H100 NVL sheet, 12 links are derived from it and not seen",
        "a root port each on one socket: luigifcruz/stelline hardware/asus-esc8000a-e12.md",
    ),
    processors=Processors("AMD EPYC 9354 32-Core Processor", {0: "0-31", 1: "32-63"}, 32, memory_gib=768),
    tree=(
        Root("0000:00", 0, ("GPU0",)),
        Root("0000:20", 0, ("GPU1",)),
        Root("0000:60", 1, ("eno1",)),
    ),
    firmware=Firmware("Dell Inc.", "PowerEdge R7625", "0MTGYH", bios="Dell Inc."),
    software=Software("570.133.20", 12080, torch="2.7.0+cu128", torch_cuda="12.8", nccl="2.26.2"),
    gpu=parts.H100_NVL,
    nics=(_management(),),
    remotes=(("GPU1",) * 12, ("GPU0",) * 12),
    matrix="""
             GPU0 GPU1
        GPU0    X NV12
        GPU1 NV12    X
    """,
)

RTX_4090_2 = Machine(
    name="rtx4090-2",
    title="Workstation with 2 RTX 4090, which have no P2P",
    sources=(
        "PHB, NUMA affinity N/A: a two-GPU desktop matrix in a multi-GPU training tutorial",
        "no P2P: NVIDIA/nccl-tests#287. NVML's word is that of 2 L4 (stas00/ml-engineering network/debug/README.md)",
    ),
    processors=Processors("AMD Ryzen 9 5900X 12-Core Processor", {0: "0-23"}, memory_gib=128),
    tree=(Root("0000:00", -1, ("GPU0", "GPU1", "enp5s0")),),
    firmware=Firmware("ASUS", "System Product Name", "ROG CROSSHAIR VIII HERO"),
    software=Software("580.82.07", 13000, torch="2.8.0+cu128", torch_cuda="12.8", nccl="2.27.3"),
    gpu=parts.RTX_4090,
    nics=(_management(parts.R8169, "enp5s0", 2500),),
    p2p="CNS",
    kernel="6.8.0-85-generic",
    distribution="Ubuntu 24.04.3 LTS",
    root=False,
    matrix="""
             GPU0 GPU1
        GPU0    X  PHB
        GPU1  PHB    X
    """,
)

LAPTOP = Machine(
    name="laptop",
    title="A laptop without a GPU of NVIDIA, by its user",
    sources=("what a machine without driver refuses: this project's own capture of one",),
    processors=Processors("13th Gen Intel(R) Core(TM) i7-1360P", {0: "0-15"}, memory_gib=32, governor="powersave"),
    tree=(Root("0000:00", -1, ("wlp0s20f3",), flat=True),),
    firmware=Firmware("LENOVO", "21HDCTO1WW", "21HDCTO1WW", bios="LENOVO"),
    software=Software(torch="2.8.0+cpu", python="/usr/local/lib/python3.12/site-packages"),
    nics=(Nic(parts.WIFI, netdev="wlp0s20f3", address="192.168.1.23/24"),),
    kernel="6.14.0-33-generic",
    distribution="Ubuntu 24.04.3 LTS",
    root=False,
)

ALL = (L40S_8, A100_BRIDGED, H100_NVL_2, RTX_4090_2, LAPTOP)
