"""Machines with a fault of a NIC, a GPU, a link or a bus."""

import zoo
from ncclprobe.model.errors import TimedOut
from ncclprobe.model.values import replace
from zoo import changes as so
from zoo.sick.plant import plant

_HGX = zoo.MACHINES["hgx-h100"]
_PORT, _PEERMEM = "/sys/class/infiniband/mlx5_3/ports/1", "/sys/module/nvidia_peermem/version"
_CLIENTS = [f"/sys/kernel/mm/memory_peers/{client}/version" for client in ("nv_mem", "nv_mem_nc")]
_LINK_DOWN = "mlx5_core 0000:5c:00.0: Port: 1 Link DOWN"

RDMA = (
    plant(
        "ib-down",
        "a port without a cable",
        "fail ib.state mlx5_3:1",
        so.file(f"{_PORT}/state", "1: DOWN"),
        so.file(f"{_PORT}/phys_state", "2: Polling"),
    ),
    plant("ib-init", "a port without subnet manager", "fail ib.state mlx5_3:1", so.file(f"{_PORT}/state", "2: INIT")),
    replace(
        plant(
            "ib-one-lane",
            "a port on one lane",
            "fail ib.rate mlx5_3:1",
            so.file(f"{_PORT}/rate", "100 Gb/sec (1X NDR)"),
        ),
        also=("warn ib.gdr GPU3",),
    ),
    plant(
        "ib-half-rate",
        "a port at HDR beside seven at NDR",
        "fail ib.rate mlx5_3:1",
        so.file(f"{_PORT}/rate", "200 Gb/sec (4X HDR)"),
    ),
    plant(
        "uverbs-closed",
        "/dev/infiniband/uverbs4 does not open",
        "fail ib.perm mlx5_4",
        so.closed("/dev/infiniband/uverbs4"),
    ),
    plant(
        "ib-flaps",
        "a link that went down four times",
        "warn ib.losses mlx5_3",
        so.log(*((860000.0 + 1000 * n, _LINK_DOWN) for n in range(4))),
    ),
    replace(
        plant("no-peermem", "no GPUDirect module", "warn ib.gdr GPUDirect RDMA", so.gone(_PEERMEM, *_CLIENTS)),
        like="dgx-1v",
    ),
    replace(
        plant("roce-mtu", "MTU 1500 on one RoCE port", "warn ib.roce mlx5_0:1", so.interface("ens1f0np0", mtu=1500)),
        like="a100-bridged",
    ),
    plant("nic-numa", "a NIC on NUMA node -1", "note ib.gdr mlx5_2", so.device(_HGX, "mlx5_2", "numa_node", "-1")),
)

_HANGS = TimedOut("nvidia-smi -L: no answer within 60 s")
_XID = "NVRM: Xid (PCI:0000:5b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_REFUSED = {"clusterUuid": [0] * 16, "status": 3, "cliqueId": 0, "state": 3, "version": 0x02000024, "healthMask": 2}

GPUS = (
    plant(
        "smi-hangs",
        "nvidia-smi does not come back",
        "fail gpu.smi-canary nvidia-smi",
        so.says(_HANGS, "run", "nvidia-smi", "-L"),
    ),
    plant("gpu-lost", "a GPU that NVML has lost", "fail gpu.count GPU6", so.lost(6)),
    plant("xid-79", "Xid 79 an hour ago", "fail gpu.errors GPU3", so.log((860600.0, _XID))),
    plant(
        "remap-pending",
        "a row of memory to be remapped",
        "warn gpu.errors GPU1",
        so.gpu(1, "nvmlDeviceGetRemappedRows", [0, 1, 1, 0]),
    ),
    plant(
        "gpu-busy",
        "somebody else's process on a GPU",
        "warn gpu.busy GPU4",
        so.gpu(4, "nvmlDeviceGetComputeRunningProcesses", [42 << 30]),
        so.gpu(4, "nvmlDeviceGetMemoryInfo", {"total": 80 << 30, "free": 37 << 30, "used": 43 << 30}),
    ),
    plant(
        "gpu-hot",
        "a GPU that its heat holds back",
        "warn gpu.clocks GPU2",
        so.gpu(2, "nvmlDeviceGetCurrentClocksEventReasons", 0x49),
    ),
    plant(
        "gpu-capped",
        "a GPU limited to 200 of 700 W",
        "warn gpu.clocks GPU5",
        so.gpu(5, "nvmlDeviceGetEnforcedPowerLimit", 200_000),
    ),
    plant(
        "gpu-was-hot",
        "a GPU that heat has held back for an hour and a half since the driver was loaded",
        "warn gpu.clocks GPU6",
        so.says(
            '{"referenceTime": 1700000000000000, "violationTime": 5400000000000}',
            "nvml",
            "nvmlDeviceGetViolationStatus",
            6,
            1,
        ),
    ),
    plant(
        "gpu-replays",
        "a GPU whose PCIe link repeats packets",
        "warn gpu.errors GPU3",
        so.gpu(3, "nvmlDeviceGetPcieReplayCounter", 184_467),
    ),
    plant(
        "gpu-ecc",
        "two uncorrectable errors of a GPU's memory since its reset",
        "fail gpu.errors GPU1",
        so.says("2", "nvml", "nvmlDeviceGetTotalEccErrors", 1, 1, 0),
        so.says("2", "nvml", "nvmlDeviceGetTotalEccErrors", 1, 1, 1),
    ),
    plant(
        "gpu-sram",
        "a GPU whose SRAM NVIDIA replaces",
        "fail gpu.errors GPU1",
        so.gpu(1, "nvmlDeviceGetSramEccErrorStatus", {"bThresholdExceeded": 1}),
    ),
    plant("gpu-ecc-off", "ECC off on one GPU", "warn gpu.mode GPU6", so.gpu(6, "nvmlDeviceGetEccMode", [0, 0])),
    plant("gpu-other", "an H200 among H100s", "warn gpu.model GPU2", so.gpu(2, "nvmlDeviceGetName", "NVIDIA H200 NVL")),
    plant("gpu-mig-next", "MIG after the next reset", "warn gpu.mode GPU5", so.gpu(5, "nvmlDeviceGetMigMode", [0, 1])),
    plant("gpu-mig", "a GPU left in MIG mode", "warn gpu.mode GPU5", so.gpu(5, "nvmlDeviceGetMigMode", [1, 1])),
    plant(
        "gpu-prohibited",
        "a GPU on which nobody may compute",
        "fail gpu.mode GPU5",
        so.gpu(5, "nvmlDeviceGetComputeMode", 2),
    ),
)

_CARDS = [f"{kind}{n}" for kind in ("GPU", "mlx5_") for n in range(8)]

BUSES = (
    plant(
        "gpu-x8",
        "a GPU on 8 of 16 PCIe lanes",
        "fail pci.link GPU3",
        so.gpu(3, "nvmlDeviceGetCurrPcieLinkWidth", 8),
        so.device(_HGX, "GPU3", "current_link_width", "8"),
    ),
    plant(
        "gpu-slot-x8",
        "a GPU in a slot of 8 lanes",
        "warn pci.link GPU3",
        so.gpu(3, "nvmlDeviceGetCurrPcieLinkWidth", 8),
        so.gpu(3, "nvmlDeviceGetMaxPcieLinkWidth", 8),
        so.device(_HGX, "GPU3", "current_link_width", "8"),
    ),
    plant(
        "gpu-slot-gen4",
        "a GPU in a slot of generation 4",
        "warn pci.link GPU3",
        so.gpu(3, "nvmlDeviceGetMaxPcieLinkGeneration", 4),
    ),
    plant(
        "nic-reads-small",
        "a NIC with MaxReadReq 512 and no relaxed ordering",
        "warn pci.settings mlx5_3",
        so.config(_HGX, "mlx5_3", 0x68, 0x2920),
    ),
    plant(
        "nic-x8",
        "a NIC on 8 of 16 PCIe lanes",
        "fail pci.link mlx5_3",
        so.device(_HGX, "mlx5_3", "current_link_width", "8"),
    ),
    plant("acs", "ACS at the lower ports of the PCI switches", "warn pci.acs PCIe switches", so.acs(_HGX)),
    plant(
        "iommu",
        "an IOMMU that translates",
        "warn pci.iommu IOMMU",
        *(so.device(_HGX, name, "iommu_group/type", "DMA-FQ") for name in _CARDS),
    ),
    plant(
        "gpu-fatal",
        "a fatal error of a GPU on the PCI bus",
        "warn pci.aer GPU3",
        so.device(_HGX, "GPU3", "aer_dev_fatal", "Undefined 0\nDLP 0\nSDES 1\nTOTAL_ERR_FATAL 1"),
    ),
    plant(
        "bar1-small",
        "a GPU with a window of 256 MiB",
        "warn pci.bar1 GPU3",
        so.gpu(3, "nvmlDeviceGetBAR1MemoryInfo", {"bar1Total": 256 << 20, "bar1Free": 0, "bar1Used": 0}),
    ),
    plant("nvlink-down", "an inactive NVLink", "fail nvl.links GPU5", so.link(5, 7, so.STATE, 0)),
    plant("nvlink-slow", "an NVLink at half its rate", "fail nvl.rate GPU5", so.link(5, 7, so.SPEED, 13281)),
    plant(
        "fm-version",
        "a fabric manager of another version",
        "warn nvl.fabric nv-fabricmanager",
        so.says("Fabric Manager version is : 550.90.07\n", "run", "nv-fabricmanager", "--version"),
    ),
    plant(
        "fabric-failed",
        "a GPU whose registration with the fabric failed",
        "fail nvl.fabric GPU2",
        so.gpu(2, "nvmlDeviceGetGpuFabricInfoV", _REFUSED),
    ),
    replace(
        plant(
            "no-imex",
            "no IMEX channel, on two trays",
            "fail nvl.fabric /dev/nvidia-caps-imex-channels",
            so.torchrun(2, ranks=4),
            so.says("[]", "list", "/dev/nvidia-caps-imex-channels", "channel*"),
        ),
        like="gb200-tray",
    ),
)
