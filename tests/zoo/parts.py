"""GPUs and NICs that several machines have.

GPUs: names as NVML prints them, chips, memory, PCIe and NVLink from vendors' sheets and the list of supported chips in
NVIDIA/open-gpu-kernel-modules' README (V100: pci.ids), capabilities from developer.nvidia.com/cuda-gpus. Speeds of
links as ``nvidia-smi nvlink -s`` prints them: Azure/azurehpc-health-checks' and leptonai/gpud's test data (A100: 25),
stas00/ml-engineering network/README.md (26.562 and 53.125), posts of DGX-1 (V100: 25.781). NVML's versions of links:
NVML_NVLINK_VERSION_… of nvml.h. The 12 links of an H100 NVL are derived from its 600 GB/s, not seen. NICs: pci.ids, and
ibstat in leptonai/gpud's test data (MT4129 with 28.39.1002); other firmware and board names stand for any.
"""

from zoo.description import GpuModel, NicModel

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
