"""The machines: bare metal with several GPUs, instances of clouds, PCIe servers, workstations and a laptop.

GPUs: names as NVML prints them, chips, memory, PCIe and NVLink from vendors' sheets and the list of supported chips in
NVIDIA/open-gpu-kernel-modules' README (V100: pci.ids), capabilities from developer.nvidia.com/cuda-gpus. Speeds of
links as ``nvidia-smi nvlink -s`` prints them: Azure/azurehpc-health-checks' and leptonai/gpud's test data (A100: 25),
stas00/ml-engineering network/README.md (26.562 and 53.125), posts of DGX-1 (V100: 25.781). NVML's versions of links:
NVML_NVLINK_VERSION_… of nvml.h. The 12 links of an H100 NVL are derived from its 600 GB/s, not seen. NICs: pci.ids, and
ibstat in leptonai/gpud's test data (MT4129 with 28.39.1002); other firmware and board names stand for any.
"""

from collections.abc import Sequence

from ncclprobe.model.values import replace
from zoo.description import (
    Firmware,
    GpuModel,
    Machine,
    Nic,
    NicModel,
    Processors,
    Root,
    Software,
    Switch,
    nvlinked,
    words,
)

V100_32 = GpuModel(
    "Tesla V100-SXM2-32GB", 0x1DB5, (7, 0), 32, pcie=3, links=6, link_mbps=25781, link_version=2, watts=300
)
A100_80 = GpuModel("NVIDIA A100-SXM4-80GB", 0x20B2, (8, 0), 80, 4, 12, 25000, 5, mig=True)
A100_40 = GpuModel("NVIDIA A100-SXM4-40GB", 0x20B0, (8, 0), 40, 4, 12, 25000, 5, mig=True)
A100_PCIE = GpuModel("NVIDIA A100 80GB PCIe", 0x20B5, (8, 0), 80, 4, 12, 25000, 5, mig=True, watts=300)
H100 = GpuModel("NVIDIA H100 80GB HBM3", 0x2330, (9, 0), 80, 5, 18, 26562, 6, mig=True, fabric=True, watts=700)
H100_NVL = GpuModel("NVIDIA H100 NVL", 0x2321, (9, 0), 94, 5, 12, 26562, 6, mig=True)
H200 = GpuModel("NVIDIA H200", 0x2335, (9, 0), 141, 5, 18, 26562, 6, mig=True, fabric=True, watts=700)
B200 = GpuModel("NVIDIA B200", 0x2901, (10, 0), 180, 5, 18, 53125, 7, mig=True, fabric=True, recovery=True, watts=1000)
GB200 = GpuModel(
    "NVIDIA GB200", 0x2941, (10, 0), 186, 0, 18, 53125, 7, mig=True, fabric=True, recovery=True, watts=1200
)
L40S = GpuModel("NVIDIA L40S", 0x26B9, (8, 9), 48, 4, watts=350)
A10G = GpuModel("NVIDIA A10G", 0x2237, (8, 6), 24, 4, watts=300)
PRO_6000 = GpuModel("NVIDIA RTX PRO 6000 Blackwell Server Edition", 0x2BB5, (12, 0), 96, 5, mig=True, watts=600)
RTX_4090 = GpuModel("NVIDIA GeForce RTX 4090", 0x2684, (8, 9), 24, 4, ecc=False, graphics=True, watts=450)

CONNECTX_4 = NicModel((0x15B3, 0x1013), "mlx5_core", (3, 16), "MT4115", "MT_2180110032", "12.28.2006")
CONNECTX_5 = NicModel((0x15B3, 0x1019), "mlx5_core", (4, 16), "MT4121", "IBM0000000002", "16.28.2006")
CONNECTX_6 = NicModel((0x15B3, 0x101B), "mlx5_core", (4, 16), "MT4123", "MT_0000000223", "20.35.2000")
CONNECTX_7 = NicModel((0x15B3, 0x1021), "mlx5_core", (5, 16), "MT4129", "MT_0000000838", "28.39.1002")
EFA = NicModel((0x1D0F, 0xEFA0), "efa", (3, 16), firmware="0.0.0.0", class_code=0x020000)
ENA = NicModel((0x1D0F, 0xEC20), "ena", (0, 0))
GVNIC = NicModel((0x1AE0, 0x0042), "gve", (0, 0))
VIRTIO = NicModel((0x1AF4, 0x1041), "virtio_net", (0, 0))
X550 = NicModel((0x8086, 0x1563), "ixgbe", (3, 4))
TG3 = NicModel((0x14E4, 0x1657), "tg3", (2, 4))
R8169 = NicModel((0x10EC, 0x8125), "r8169", (2, 1))
WIFI = NicModel((0x8086, 0x2725), "iwlwifi", (2, 1))

_VENDORS = "vendors' data sheets and NVIDIA/deepops roles/nvidia-dgx (product names, GPUs, NICs)"
_PLX8 = ((0x10B5, 0x8796), (0x10B5, 0x8796))
_GEN4 = ((0x1000, 0xC010), (0x1000, 0xA096))
_NDR, _HDR, _EDR = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)", "100 Gb/sec (4X EDR)"
_CUDA_12_1 = Software("535.183.01", 12020, torch="2.4.0+cu121", torch_cuda="12.1", nccl="2.20.5")
_CUDA_12_4 = Software("550.127.08", 12040, torch="2.6.0+cu124", torch_cuda="12.4", nccl="2.21.5")
_CUDA_12_8 = Software("570.133.20", 12080, torch="2.7.0+cu128", torch_cuda="12.8", nccl="2.26.2")
_CUDA_13 = Software("580.82.07", 13000, torch="2.8.0+cu128", torch_cuda="12.8", nccl="2.27.3")
_JAMMY = {"kernel": "6.8.0-1025-nvidia", "distribution": "Ubuntu 24.04.2 LTS"}
_AMAZON = {"kernel": "6.1.115-126.197.amzn2023.x86_64", "distribution": "Amazon Linux 2023.6.20241121"}
_NOBLE = {"kernel": "6.8.0-85-generic", "distribution": "Ubuntu 24.04.3 LTS"}


def _ib(number: int, model: NicModel, rate: str) -> Nic:
    speed = int(rate.split()[0]) * 1000
    return Nic(model, f"mlx5_{number}", f"ib{number}", rate, speed_mbps=speed, mtu=2044)


def _management(model: NicModel = X550, name: str = "eno1", speed: int = 10000) -> Nic:
    return Nic(model, netdev=name, speed_mbps=speed, address="10.0.0.11/24")


def _rails(*below: Sequence[str | Switch], first: int = 0x10) -> tuple[Root, ...]:
    """A root bus for each of eight GPUs, four a socket, with a switch and what is `below` it."""
    return tuple(Root(f"0000:{first + 0x18 * n:02x}", n // 4, (Switch(tuple(each)),)) for n, each in enumerate(below))


def _pairs(of: str) -> list[str]:
    return [of.format(n) for n in range(8)]


_SOCKETS = [" ".join(f"GPU{n} mlx5_{n}" for n in range(first, first + 4)) for first in (0, 4)]

DGX_1V = Machine(
    name="dgx-1v", title="NVIDIA DGX-1 with 8 V100: hybrid cube mesh, 4 EDR",
    sources=(
        "NVLink words: Oneflow-Inc/DLPerf DeepSpeed/Megatron-LM/README.md; aws/aws-k8s-tester p3.16xlarge has the same",
        "a NIC and two GPUs below one switch, PHB to the other two of the socket: general knowledge of the DGX-1; in "
        "those posts two host bridges per socket give NODE",
        _VENDORS,
    ),
    processors=Processors(
        "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", {0: "0-19,40-59", 1: "20-39,60-79"}, 21, memory_gib=512
    ),
    tree=tuple(
        Root(
            f"0000:{0x80 * socket:02x}",
            socket,
            (
                *(
                    Switch((f"GPU{2 * n}", f"GPU{2 * n + 1}", f"mlx5_{n}"), *_PLX8)
                    for n in (2 * socket, 2 * socket + 1)
                ),
                *(() if socket else ("enp1s0f0",)),
            ),
        )
        for socket in (0, 1)
    ),
    firmware=Firmware("NVIDIA", "DGX-1 with V100-32", "DGX-1 with V100-32"),
    software=replace(_CUDA_12_1, open_driver=False), gpu=V100_32,
    nics=(*(_ib(n, CONNECTX_4, _EDR) for n in range(4)), _management(name="enp1s0f0")),
    remotes=tuple(
        tuple(f"GPU{peer}" for peer in row)
        for row in ("123344", "022355", "011336", "001227", "005677", "114667", "245577", "344566")
    ),
    peer_memory=True, kernel="5.4.0-192-generic", distribution="Ubuntu 20.04.6 LTS",
    words=words(
        8,
        [f"mlx5_{n}" for n in range(4)],
        NV1=["GPU0 GPU1", "GPU0 GPU2", "GPU1 GPU3", "GPU4 GPU5", "GPU4 GPU6", "GPU5 GPU7", "GPU2 GPU6", "GPU3 GPU7"],
        NV2=["GPU0 GPU3", "GPU0 GPU4", "GPU1 GPU2", "GPU1 GPU5", "GPU2 GPU3", "GPU4 GPU7", "GPU5 GPU6", "GPU6 GPU7"],
        PIX=[f"GPU{2 * n} GPU{2 * n + 1} mlx5_{n}" for n in range(4)],
        PHB=["GPU0 GPU1 GPU2 GPU3 mlx5_0 mlx5_1", "GPU4 GPU5 GPU6 GPU7 mlx5_2 mlx5_3"],
    ),
)  # fmt: skip

_OF_A_SWITCH = [(0x00, 3, 0, 0), (0x40, 1, 2, 2), (0x80, 7, 4, 6), (0xA0, 5, 6, 8)]
"""Of a DGX A100: bus, NUMA node, and the first GPU and NIC of two."""

DGX_A100 = Machine(
    name="dgx-a100",
    title="NVIDIA DGX A100 with 8 A100 80 GB: NVSwitch, 8 HDR for compute and 2 for storage, 8 NUMA nodes",
    sources=(
        "8 NUMA nodes, 10 HDR: NVIDIA/deepops nhc.conf.example-dgxa100",
        "two GPUs PXB to their own NICs, SYS to all others: the groups of XueSongTap's 8xA100 post; that a DGX A100 "
        "has two NICs in each, its CPU lists, and that storage has a dual-port card of its own: general knowledge",
        "six NVSwitches on the bus: NVIDIA's sheet; two levels of Broadcom switches: NCCL graph/topo.cc fuses them",
        _VENDORS,
    ),
    processors=Processors(
        "AMD EPYC 7742 64-Core Processor",
        {n: f"{16 * n}-{16 * n + 15},{16 * n + 128}-{16 * n + 143}" for n in range(8)},
        32,
    ),
    tree=(
        *(
            Root(f"0000:{bus:02x}", node, (Switch(tuple(Switch((each,), *_GEN4) for each in those), *_GEN4),))
            for bus, node, gpu, nic in _OF_A_SWITCH
            for those in [(f"GPU{gpu}", f"GPU{gpu + 1}", f"mlx5_{nic}", f"mlx5_{nic + 1}")]
        ),
        Root("0000:c0", 4, (Switch(tuple(f"nvswitch{n}" for n in range(6)), *_GEN4),)),
        Root("0000:e0", 0, ("mlx5_4+mlx5_5", "eno1")),
    ),
    firmware=Firmware("NVIDIA", "DGXA100 920-23687-2530-000", "DGXA100"),
    software=replace(_CUDA_12_1, fabric_manager=True), gpu=A100_80,
    nics=(*(_ib(n, CONNECTX_6, _HDR) for n in range(10)), _management()), remotes=nvlinked(A100_80, 8),
    peer_memory=True,
    words=words(
        8, [f"mlx5_{n}" for n in range(10)], "NV12",
        PXB=[f"GPU{gpu} GPU{gpu + 1} mlx5_{nic} mlx5_{nic + 1}" for _, _, gpu, nic in _OF_A_SWITCH],
        PIX=["mlx5_4 mlx5_5"],
    ),
)  # fmt: skip

HGX_H100 = Machine(
    name="hgx-h100", title="HGX H100: 8 H100 SXM, 8 NDR, a rail each",
    sources=(
        "each GPU PIX to one NIC, NODE to those of its socket, SYS to the others: the shape of a real 8x H200 matrix "
        "(dw-flyingw/GLM-5.2-FP8 topo.txt)",
        "CPU lists: Google's A3 Ultra, the same processors (mlcommons/training_results_v5.0)",
        _VENDORS,
    ),
    processors=Processors("Intel(R) Xeon(R) Platinum 8480C", {0: "0-55,112-167", 1: "56-111,168-223"}, 21),
    tree=(
        *_rails(*((f"GPU{n}", f"mlx5_{n}") for n in range(8))),
        Root("0000:f8", 1, (Switch(tuple(f"nvswitch{n}" for n in range(4))), "eno1")),
    ),
    firmware=Firmware("NVIDIA", "DGXH100", "DGXH100"), software=replace(_CUDA_12_4, fabric_manager=True), gpu=H100,
    nics=(*(_ib(n, CONNECTX_7, _NDR) for n in range(8)), _management()), remotes=nvlinked(H100, 8), peer_memory=True,
    words=words(8, _pairs("mlx5_{}"), "NV18", PIX=_pairs("GPU{0} mlx5_{0}"), NODE=_SOCKETS),
)  # fmt: skip

HGX_H100_USER = replace(
    HGX_H100, name="hgx-h100-user", title="The same HGX H100, looked at by an ordinary user",
    sources=("what nobody may see that root does: the guest's two captures",), root=False, like="hgx-h100",
)  # fmt: skip

_NICS_OF_H200 = ("3", "5", "4", "0 1 2", "7", "9", "8", "6")
"""Of each GPU."""

HGX_H200 = Machine(
    name="hgx-h200", title="HGX H200: 8 H200 SXM, 10 NICs whose numbers do not follow those of the GPUs",
    sources=("the whole matrix, CPU lists and NIC names: dw-flyingw/GLM-5.2-FP8 topo.txt", _VENDORS),
    processors=Processors("AMD EPYC 9534 64-Core Processor", {0: "0-63,128-191", 1: "64-127,192-255"}, 32),
    tree=(
        *_rails(
            *(
                (f"GPU{n}", *(("mlx5_0", "mlx5_1+mlx5_2") if n == 3 else (f"mlx5_{_NICS_OF_H200[n]}",)))
                for n in range(8)
            ),
            first=0x08,
        ),
        Root("0000:f0", 0, ("eno1",)),
    ),
    firmware=Firmware("Supermicro", "SYS-821GE-TNHR", "X13DEG-OAD"), software=replace(_CUDA_12_8, fabric_manager=True),
    gpu=H200, nics=(*(_ib(n, CONNECTX_7, _NDR) for n in range(10)), _management()), remotes=nvlinked(H200, 8),
    peer_memory=True,
    words=words(
        8, [f"mlx5_{n}" for n in range(10)], "NV18",
        PIX=[f"GPU{n} mlx5_{nics.replace(' ', ' mlx5_')}" for n, nics in enumerate(_NICS_OF_H200)],
        NODE=[
            "GPU0 GPU1 GPU2 GPU3 mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5",
            "GPU4 GPU5 GPU6 GPU7 mlx5_6 mlx5_7 mlx5_8 mlx5_9",
        ],
    ),
)  # fmt: skip

DGX_B200 = Machine(
    name="dgx-b200", title="NVIDIA DGX B200: 8 B200, 8 NDR, two levels of switches between a GPU and its NIC",
    sources=(
        "PXB to the own NIC, NODE and SYS to others, CPU lists: a B200 matrix in an nccl-tests issue, cut short there, "
        "with eight more NICs than the compute ones here",
        _VENDORS,
    ),
    processors=Processors("INTEL(R) XEON(R) PLATINUM 8570", {0: "0-55,112-167", 1: "56-111,168-223"}, 21),
    tree=(*_rails(*((Switch((f"GPU{n}",)), Switch((f"mlx5_{n}",))) for n in range(8))), Root("0000:f8", 1, ("eno1",))),
    firmware=Firmware("NVIDIA", "DGXB200", "DGXB200"), software=replace(_CUDA_12_8, fabric_manager=True), gpu=B200,
    nics=HGX_H100.nics, remotes=nvlinked(B200, 8), peer_memory=True, **_JAMMY,
    words=words(8, _pairs("mlx5_{}"), "NV18", PXB=_pairs("GPU{0} mlx5_{0}"), NODE=_SOCKETS),
)  # fmt: skip

GB200_TRAY = Machine(
    name="gb200-tray", title="GB200 NVL72, one compute tray: 2 Grace, 4 GPUs that are part of the rack's NVLink, 4 NDR",
    sources=(
        "NUMA nodes 2, 10, 18 and 26 for the GPUs' own memory: real GB200 matrices",
        "a PCI domain per GPU and per NIC, hence NODE and SYS: general knowledge. One posted matrix, from a job, "
        "says SYS for every NIC; it is not modelled",
        "what NVML and sysfs say of the GPU's PCIe link is not known; here they do not tell",
        _VENDORS,
    ),
    processors=Processors(
        "Neoverse-V2", {0: "0-71", 1: "72-143", **dict.fromkeys((2, 10, 18, 26), "")}, 40, "aarch64", memory_gib=960
    ),
    tree=tuple(
        Root(f"{domain}:00", numa, (name,))
        for numa, domain, name in (
            *((0, "0008", "GPU0"), (0, "0009", "GPU1"), (1, "0018", "GPU2"), (1, "0019", "GPU3")),
            *((0, "0000", "mlx5_0"), (0, "0002", "mlx5_1"), (1, "0010", "mlx5_2"), (1, "0012", "mlx5_3")),
            (0, "0005", "eno1"),
        )
    ),
    firmware=Firmware("NVIDIA", "GB200 NVL", "PG548"), software=_CUDA_12_8, gpu=GB200,
    nics=(*HGX_H100.nics[:4], _management()), remotes=nvlinked(GB200, 4), cluster=True, kernel="6.8.0-1025-nvidia-64k",
    distribution="Ubuntu 24.04.2 LTS",
    words=words(
        4, [f"mlx5_{n}" for n in range(4)], "NV18", NODE=["GPU0 GPU1 mlx5_0 mlx5_1", "GPU2 GPU3 mlx5_2 mlx5_3"]
    ),
)  # fmt: skip

POWER9 = Machine(
    name="power9", title="IBM AC922: 2 POWER9, 4 V100 with NVLink to each other in pairs and to their processor",
    sources=(
        "the whole matrix, NUMA nodes 0, 8 and 252 to 255: jdh4/della-gpu-A100 README.md (Traverse at Princeton)",
        "NVLink bridges to the processor are PCI functions of class 0x068001: NCCL graph/xml.cc and topo.cc",
        "an NVML of its time, without fields by link",
    ),
    processors=Processors(
        "POWER9, altivec supported", {0: "0-63", 8: "64-127", **dict.fromkeys(range(252, 256), "")}, 40, arch="ppc64le",
        memory_gib=256,
    ),
    tree=(
        Root("0004:00", 0, (Switch(("GPU0", "GPU1"), *_PLX8),)),
        Root("0035:00", 8, (Switch(("GPU2", "GPU3"), *_PLX8),)), Root("0003:00", 0, ("mlx5_0+mlx5_1",)),
        Root("0033:00", 8, ("mlx5_2+mlx5_3",)), Root("0006:00", 0, ("npu0",), flat=True),
        Root("0007:00", 8, ("npu1",), flat=True), Root("0005:00", 0, ("enP5p1s0f0",)),
    ),
    firmware=Firmware(tree="8335-GTX"), software=Software("450.80.02", 11000, False, system_nccl="2.8.4"), gpu=V100_32,
    nics=(*(_ib(n, CONNECTX_5, _EDR) for n in range(4)), _management(TG3, "enP5p1s0f0")),
    remotes=tuple((*(f"GPU{peer}",) * 3, *(f"npu{npu}",) * 3) for peer, npu in ((1, 0), (0, 0), (3, 1), (2, 1))),
    peer_memory=True, kernel="4.18.0-193.el8.ppc64le", distribution="Red Hat Enterprise Linux 8.2 (Ootpa)",
    words=words(
        4, [f"mlx5_{n}" for n in range(4)], NV3=["GPU0 GPU1", "GPU2 GPU3"], PIX=["mlx5_0 mlx5_1", "mlx5_2 mlx5_3"],
        NODE=["GPU0 GPU1 mlx5_0 mlx5_1", "GPU2 GPU3 mlx5_2 mlx5_3"],
    ),
)  # fmt: skip

A3_MEGA = Machine(
    name="gcp-a3-mega",
    title="GCP a3-megagpu-8g: 8 H100, 8 NICs of 200 Gb/s without RDMA (GPUDirect-TCPXO) and one for the host",
    sources=(
        "8+1 NICs of 200 Gb/s: cloud.google.com/compute/docs/gpus/gpu-network-bandwidth",
        "two GPUs and two NICs below one switch: the shape of A3 Ultra's matrix (mlcommons/training_results_v5.0); "
        "here the NICs have no RDMA device and so no column",
        "52 cores per socket: an 8xH100 matrix in stas00/ml-engineering training/performance/README.md",
        "plugin folder: GoogleCloudPlatform/container-engine-accelerators",
    ),
    processors=Processors(
        "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", {0: "0-51,104-155", 1: "52-103,156-207"}, memory_gib=1872,
        virtual=True,
    ),
    tree=(
        *(
            Root(f"0000:{0x01 + 0x30 * n:02x}", n // 2, (Switch(below),))
            for n in range(4)
            for below in [(f"GPU{2 * n}", f"GPU{2 * n + 1}", f"eth{2 * n + 1}", f"eth{2 * n + 2}")]
        ),
        Root("0000:00", 0, ("eth0",), flat=True),
    ),
    firmware=Firmware("Google", "Google Compute Engine", "Google Compute Engine", bios="Google"),
    software=replace(
        _CUDA_12_4, fabric_manager=True, plugins={"/usr/local/nvidia/lib64": ("libnccl-net.so", "libnccl-tuner.so")},
        cached=("/usr/local/nvidia/lib64/libnccl-net.so",),
    ),
    gpu=H100,
    nics=tuple(Nic(GVNIC, netdev=f"eth{n}", speed_mbps=200000, mtu=8244, address=f"10.{n}.0.11/24") for n in range(9)),
    remotes=nvlinked(H100, 8), kernel="6.6.72+", distribution="Container-Optimized OS from Google",
    words=words(8, (), "NV18"),
)  # fmt: skip

_EFA = ("rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27")

P4D = Machine(
    name="aws-p4d", title="AWS p4d.24xlarge: 8 A100 40 GB, 4 EFA of 100 Gb/s",
    sources=(
        "GPU matrix, CPU lists, NUMA nodes: aws/aws-k8s-tester test_sysinfo.sh.data/p4d.24xlarge (without NIC columns)",
        "two GPUs and an EFA per switch, PCIe at 8 GT/s: the topology file of aws/aws-ofi-nccl",
        "device names, zero GUIDs, firmware 0.0.0.0: an ibv_devinfo from a p4d pod; rate and link layer of its ports: "
        "drivers/infiniband/hw/efa/efa_verbs.c of the kernel",
        "words between GPUs and EFAs follow from that tree; no matrix with them was found",
    ),
    processors=Processors(
        "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", {0: "0-23,48-71", 1: "24-47,72-95"}, 21, memory_gib=1152,
        virtual=True,
    ),
    tree=(
        *(
            Root(f"0000:{0x10 + 0x10 * n:02x}", n // 2, (Switch((f"GPU{2 * n}", f"GPU{2 * n + 1}", name)),))
            for n, name in enumerate(_EFA)
        ),
        Root("0000:c0", 1, tuple(f"nvswitch{n}" for n in range(6)), flat=True),
        Root("0000:00", 0, ("eth0",), flat=True),
    ),
    firmware=Firmware("Amazon EC2", "p4d.24xlarge", "p4d.24xlarge", bios="Amazon EC2"),
    software=replace(
        _CUDA_12_4,
        fabric_manager=True,
        plugins={"/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu": ("libnccl-net.so", "libnccl-ofi-tuner.so")},
        cached=("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so",),
    ),
    gpu=A100_40,
    nics=(
        *(Nic(EFA, name, rate="100 Gb/sec (4X EDR)", layer="Unknown") for name in _EFA),
        Nic(ENA, netdev="eth0", mtu=9001, address="10.0.0.11/20"),
    ),
    remotes=nvlinked(A100_40, 8), **_AMAZON,
    words=words(
        8, _EFA, "NV12", PIX=[f"GPU{2 * n} GPU{2 * n + 1} {name}" for n, name in enumerate(_EFA)],
        NODE=["GPU0 GPU1 GPU2 GPU3 rdmap16s27 rdmap32s27", "GPU4 GPU5 GPU6 GPU7 rdmap144s27 rdmap160s27"],
    ),
)  # fmt: skip

VM_PHB = Machine(
    name="vm-phb", title="A rented virtual machine with 4 RTX PRO 6000 on one flat bus: everything is PHB",
    sources=(
        "the whole matrix and CPU list: a post on a 4x RTX PRO 6000 rented box (all PHB, 120 CPUs on one NUMA node)",
        "virtio NIC, a DMI by QEMU: this project's own guest",
    ),
    processors=Processors("AMD EPYC-Genoa Processor", {0: "0-119"}, memory_gib=480, virtual=True),
    tree=(Root("0000:00", 0, ("ens3", "GPU0", "GPU1", "GPU2", "GPU3"), flat=True),),
    firmware=Firmware("QEMU", "Standard PC (Q35 + ICH9, 2009)", "", bios="SeaBIOS"), software=_CUDA_13, gpu=PRO_6000,
    nics=(Nic(VIRTIO, netdev="ens3", mtu=1450, address="10.0.0.11/24"),), **_NOBLE, words=words(4, (), "PHB"),
)  # fmt: skip

ONE_GPU = Machine(
    name="one-gpu", title="AWS g5.8xlarge: one A10G, no RDMA",
    sources=(
        "matrix and CPU list: aws/aws-k8s-tester test_sysinfo.sh.data/g5.8xlarge",
        "ENA, DMI: aws/karpenter-provider-aws; DMI product name is the instance type",
    ),
    processors=Processors("AMD EPYC 7R32", {0: "0-31"}, memory_gib=128, virtual=True),
    tree=(Root("0000:00", -1, ("eth0", "GPU0"), flat=True),),
    firmware=Firmware("Amazon EC2", "g5.8xlarge", "g5.8xlarge", bios="Amazon EC2"), software=_CUDA_12_4, gpu=A10G,
    nics=(Nic(ENA, netdev="eth0", mtu=9001, address="10.0.0.11/20"),), **_AMAZON, words=words(1),
)  # fmt: skip

L40S_8 = Machine(
    name="l40s-8", title="PCIe server with 8 L40S: a switch for each pair, no RDMA",
    sources=(
        "the whole matrix and CPU lists: an 8-GPU PCIe server in vLLM's NUMA-aware all-reduce README; the same words: "
        "ASUS ESC8000A (voipmonitor/rtx6kpro)",
    ),
    processors=Processors("INTEL(R) XEON(R) GOLD 6542Y", {0: "0-23,48-71", 1: "24-47,72-95"}, 21, memory_gib=1024),
    tree=(
        *(Root(f"0000:{0x10 + 0x28 * n:02x}", n // 2, (Switch((f"GPU{2 * n}", f"GPU{2 * n + 1}")),)) for n in range(4)),
        Root("0000:f0", 0, ("eno1",)),
    ),
    firmware=Firmware("Supermicro", "SYS-421GE-TNRT", "X13DEG-OA"), software=_CUDA_12_8, gpu=L40S,
    nics=(_management(),), kernel="6.8.0-60-generic", distribution="Ubuntu 24.04.2 LTS",
    words=words(
        8, PIX=["GPU0 GPU1", "GPU2 GPU3", "GPU4 GPU5", "GPU6 GPU7"], NODE=["GPU0 GPU1 GPU2 GPU3", "GPU4 GPU5 GPU6 GPU7"]
    ),
)  # fmt: skip

A100_BRIDGED = Machine(
    name="a100-bridged", title="4 A100 PCIe in two pairs joined by NVLink bridges, one dual-port RoCE card",
    sources=(
        "12 links within a pair, none across: NVIDIA's A100 80GB PCIe sheet; pairs beside other cards: posts with 3 "
        "and 4 RTX A6000 (NV4 there)",
        "a root port per card and NIC, so NODE and SYS: luigifcruz/stelline hardware/asus-esc8000a-e12.md",
        "RoCE port as in leptonai/gpud's ibstat test data (MT4125 at 100, Ethernet)",
    ),
    processors=Processors("AMD EPYC 7543 32-Core Processor", {0: "0-31", 1: "32-63"}, 32, memory_gib=512),
    tree=(
        Root("0000:00", 0, ("GPU0",)), Root("0000:20", 0, ("GPU1",)), Root("0000:80", 1, ("GPU2",)),
        Root("0000:a0", 1, ("GPU3",)), Root("0000:40", 0, ("mlx5_0+mlx5_1",)), Root("0000:60", 0, ("eno1",)),
    ),
    firmware=Firmware("ASUSTeK COMPUTER INC.", "ESC8000A-E11", "KMPG-D32 Series"),
    software=replace(_CUDA_12_4, system_nccl="2.21.5"), gpu=A100_PCIE,
    nics=(
        *(
            Nic(CONNECTX_6, f"mlx5_{n}", f"ens1f{n}np{n}", _EDR, "Ethernet", 100000, 9000, at)
            for n, at in enumerate(("10.1.0.11/24", "10.2.0.11/24"))
        ),
        _management(),
    ),
    remotes=tuple((f"GPU{peer}",) * 12 for peer in (1, 0, 3, 2)), peer_memory=True,
    words=words(
        4, ["mlx5_0", "mlx5_1"], NV12=["GPU0 GPU1", "GPU2 GPU3"], PIX=["mlx5_0 mlx5_1"],
        NODE=["GPU0 GPU1 mlx5_0 mlx5_1"],
    ),
)  # fmt: skip

H100_NVL_2 = Machine(
    name="h100-nvl-2", title="2 H100 NVL, joined by NVLink bridges",
    sources=(
        "600 GB/s between the two: NVIDIA's H100 NVL sheet, 12 links are derived from it and not seen",
        "a root port each on one socket: luigifcruz/stelline hardware/asus-esc8000a-e12.md",
    ),
    processors=Processors("AMD EPYC 9354 32-Core Processor", {0: "0-31", 1: "32-63"}, 32, memory_gib=768),
    tree=(Root("0000:00", 0, ("GPU0",)), Root("0000:20", 0, ("GPU1",)), Root("0000:60", 1, ("eno1",))),
    firmware=Firmware("Dell Inc.", "PowerEdge R7625", "0MTGYH", bios="Dell Inc."), software=_CUDA_12_8, gpu=H100_NVL,
    nics=(_management(),), remotes=(("GPU1",) * 12, ("GPU0",) * 12), words=words(2, (), "NV12"),
)  # fmt: skip

RTX_4090_2 = Machine(
    name="rtx4090-2", title="Workstation with 2 RTX 4090, which have no P2P",
    sources=(
        "PHB, NUMA affinity N/A: a two-GPU desktop matrix in a multi-GPU training tutorial",
        "no P2P: NVIDIA/nccl-tests#287. NVML's word is that of 2 L4 (stas00/ml-engineering network/debug/README.md)",
    ),
    processors=Processors("AMD Ryzen 9 5900X 12-Core Processor", {0: "0-23"}, memory_gib=128),
    tree=(Root("0000:00", -1, ("GPU0", "GPU1", "enp5s0")),),
    firmware=Firmware("ASUS", "System Product Name", "ROG CROSSHAIR VIII HERO"), software=_CUDA_13, gpu=RTX_4090,
    nics=(_management(R8169, "enp5s0", 2500),), p2p="CNS", root=False, **_NOBLE, words=words(2, (), "PHB"),
)  # fmt: skip

LAPTOP = Machine(
    name="laptop", title="A laptop without a GPU of NVIDIA, by its user",
    sources=("what a machine without driver refuses: this project's own capture of one",),
    processors=Processors("13th Gen Intel(R) Core(TM) i7-1360P", {0: "0-15"}, memory_gib=32, governor="powersave"),
    tree=(Root("0000:00", -1, ("wlp0s20f3",), flat=True),),
    firmware=Firmware("LENOVO", "21HDCTO1WW", "21HDCTO1WW", bios="LENOVO"),
    software=Software(torch="2.8.0+cpu", python="/usr/local/lib/python3.12/site-packages"),
    nics=(Nic(WIFI, netdev="wlp0s20f3", address="192.168.1.23/24"),), kernel="6.14.0-33-generic",
    distribution="Ubuntu 24.04.3 LTS", root=False,
)  # fmt: skip

ALL = (
    *(DGX_1V, DGX_A100, HGX_H100, HGX_H100_USER, HGX_H200, DGX_B200, GB200_TRAY, POWER9),
    *(A3_MEGA, P4D, VM_PHB, ONE_GPU, L40S_8, A100_BRIDGED, H100_NVL_2, RTX_4090_2, LAPTOP))  # fmt: skip
