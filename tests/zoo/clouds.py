"""Instances of public clouds, and other virtual machines."""

from zoo import parts
from zoo.description import Firmware, Machine, Nic, Processors, Root, Software, Switch, meshed, nvlinked

_H100_52 = {0: "0-51,104-155", 1: "52-103,156-207"}


def _without_nics(word: str, gpus: int) -> str:
    """A matrix of GPUs alone, which all have the same word."""
    names = [f"GPU{n}" for n in range(gpus)]
    rows = [[name, *("X" if one == name else word for one in names)] for name in names]
    return "\n".join(" ".join(line) for line in (names, *rows))


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
    processors=Processors("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", _H100_52, memory_gib=1872, virtual=True),
    tree=(
        *(
            Root(
                f"0000:{0x01 + 0x30 * n:02x}",
                n // 2,
                (Switch((f"GPU{2 * n}", f"GPU{2 * n + 1}", f"eth{2 * n + 1}", f"eth{2 * n + 2}")),),
            )
            for n in range(4)
        ),
        Root("0000:00", 0, ("eth0",), flat=True),
    ),
    firmware=Firmware("Google", "Google Compute Engine", "Google Compute Engine", bios="Google"),
    software=Software(
        "550.127.08",
        12040,
        fabric_manager=True,
        torch="2.6.0+cu124",
        torch_cuda="12.4",
        nccl="2.21.5",
        plugins={"/usr/local/nvidia/lib64": ("libnccl-net.so", "libnccl-tuner.so")},
        cached=("/usr/local/nvidia/lib64/libnccl-net.so",),
    ),
    gpu=parts.H100,
    nics=tuple(
        Nic(parts.GVNIC, netdev=f"eth{n}", speed_mbps=200000, mtu=8244, address=f"10.{n}.0.11/24") for n in range(9)
    ),
    remotes=nvlinked(parts.H100, 8),
    kernel="6.6.72+",
    distribution="Container-Optimized OS from Google",
    matrix=_without_nics("NV18", 8),
)

P4D = Machine(
    name="aws-p4d",
    title="AWS p4d.24xlarge: 8 A100 40 GB, 4 EFA of 100 Gb/s",
    sources=(
        "GPU matrix, CPU lists, NUMA nodes: aws/aws-k8s-tester test_sysinfo.sh.data/p4d.24xlarge (without NIC columns)",
        "two GPUs and an EFA per switch, PCIe at 8 GT/s: the topology file of aws/aws-ofi-nccl",
        "device names, zero GUIDs, firmware 0.0.0.0: an ibv_devinfo from a p4d pod; rate and link layer of its ports: "
        "drivers/infiniband/hw/efa/efa_verbs.c of the kernel",
        "words between GPUs and EFAs follow from that tree; no matrix with them was found",
    ),
    processors=Processors(
        "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz",
        {0: "0-23,48-71", 1: "24-47,72-95"},
        21,
        memory_gib=1152,
        virtual=True,
    ),
    tree=(
        *(
            Root(f"0000:{0x10 + 0x10 * n:02x}", n // 2, (Switch((f"GPU{2 * n}", f"GPU{2 * n + 1}", name)),))
            for n, name in enumerate(("rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27"))
        ),
        Root("0000:c0", 1, tuple(f"nvswitch{n}" for n in range(6)), flat=True),
        Root("0000:00", 0, ("eth0",), flat=True),
    ),
    firmware=Firmware("Amazon EC2", "p4d.24xlarge", "p4d.24xlarge", bios="Amazon EC2"),
    software=Software(
        "550.127.08",
        12040,
        fabric_manager=True,
        torch="2.6.0+cu124",
        torch_cuda="12.4",
        nccl="2.21.5",
        plugins={"/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu": ("libnccl-net.so", "libnccl-ofi-tuner.so")},
        cached=("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so",),
    ),
    gpu=parts.A100_40,
    nics=(
        *(Nic(parts.EFA, f"rdmap{bus}s27", rate="100 Gb/sec (4X EDR)", layer="Unknown") for bus in (16, 32, 144, 160)),
        Nic(parts.ENA, netdev="eth0", mtu=9001, address="10.0.0.11/20"),
    ),
    remotes=nvlinked(parts.A100_40, 8),
    kernel="6.1.115-126.197.amzn2023.x86_64",
    distribution="Amazon Linux 2023.6.20241121",
    matrix=meshed(
        "NV12",
        8,
        """
        rdmap16s27 rdmap32s27 rdmap144s27 rdmap160s27
        PIX  NODE SYS  SYS
        PIX  NODE SYS  SYS
        NODE PIX  SYS  SYS
        NODE PIX  SYS  SYS
        SYS  SYS  PIX  NODE
        SYS  SYS  PIX  NODE
        SYS  SYS  NODE PIX
        SYS  SYS  NODE PIX
        X    NODE SYS  SYS
        NODE X    SYS  SYS
        SYS  SYS  X    NODE
        SYS  SYS  NODE X
        """,
    ),
)

VM_PHB = Machine(
    name="vm-phb",
    title="A rented virtual machine with 4 RTX PRO 6000 on one flat bus: everything is PHB",
    sources=(
        "the whole matrix and CPU list: a post on a 4x RTX PRO 6000 rented box (all PHB, 120 CPUs on one NUMA node)",
        "virtio NIC, a DMI by QEMU: this project's own guest",
    ),
    processors=Processors("AMD EPYC-Genoa Processor", {0: "0-119"}, memory_gib=480, virtual=True),
    tree=(Root("0000:00", 0, ("ens3", "GPU0", "GPU1", "GPU2", "GPU3"), flat=True),),
    firmware=Firmware("QEMU", "Standard PC (Q35 + ICH9, 2009)", "", bios="SeaBIOS"),
    software=Software("580.82.07", 13000, torch="2.8.0+cu128", torch_cuda="12.8", nccl="2.27.3"),
    gpu=parts.PRO_6000,
    nics=(Nic(parts.VIRTIO, netdev="ens3", mtu=1450, address="10.0.0.11/24"),),
    kernel="6.8.0-85-generic",
    distribution="Ubuntu 24.04.3 LTS",
    matrix=_without_nics("PHB", 4),
)

ONE_GPU = Machine(
    name="one-gpu",
    title="AWS g5.8xlarge: one A10G, no RDMA",
    sources=(
        "matrix and CPU list: aws/aws-k8s-tester test_sysinfo.sh.data/g5.8xlarge",
        "ENA, DMI: aws/karpenter-provider-aws; DMI product name is the instance type",
    ),
    processors=Processors("AMD EPYC 7R32", {0: "0-31"}, memory_gib=128, virtual=True),
    tree=(Root("0000:00", -1, ("eth0", "GPU0"), flat=True),),
    firmware=Firmware("Amazon EC2", "g5.8xlarge", "g5.8xlarge", bios="Amazon EC2"),
    software=Software("550.127.08", 12040, torch="2.6.0+cu124", torch_cuda="12.4", nccl="2.21.5"),
    gpu=parts.A10G,
    nics=(Nic(parts.ENA, netdev="eth0", mtu=9001, address="10.0.0.11/20"),),
    kernel="6.1.115-126.197.amzn2023.x86_64",
    distribution="Amazon Linux 2023.6.20241121",
    matrix="GPU0\nGPU0 X",
)

ALL = (A3_MEGA, P4D, VM_PHB, ONE_GPU)
