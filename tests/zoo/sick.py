"""Machines of the zoo with one fault each: what is planted, and what must be found.

scripts/zoo writes them to tests/captures/sick, as ``like`` files: the healthy machine but for the rows that the fault
changes. A finding is written ``severity id subject``, as scripts/golden prints it.
"""

from dataclasses import dataclass

import zoo
from ncclprobe.errors import Missing, TimedOut
from zoo import changes
from zoo.changes import Change

CAPTURES = zoo.CAPTURES / "sick"
_HGX, _A100, _H200, _BRIDGED = (
    zoo.MACHINES[name] for name in ("hgx-h100", "dgx-a100", "hgx-h200", "a100-bridged")
)
_PORT = "/sys/class/infiniband/mlx5_3/ports/1"
_GROUP = "/sys/fs/cgroup/user.slice/user-0.slice/session-4.scope"
_CARDS = [f"GPU{n}" for n in range(8)] + [f"mlx5_{n}" for n in range(8)]
_ALL_BUT_3 = "=mlx5_0,mlx5_1,mlx5_2,mlx5_4,mlx5_5,mlx5_6,mlx5_7"
_COMPUTE = "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9"
_PEER_MEMORY = (
    "/sys/module/nvidia_peermem/version",
    *(f"/sys/kernel/mm/memory_peers/{client}/version" for client in ("nv_mem", "nv_mem_nc")),
)
_XID_79 = "NVRM: Xid (PCI:0000:5b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
_MASTER = {"MASTER_ADDR": "hgx-h100", "MASTER_PORT": "29500"}
_FOUND_MASTER = changes.resolves("hgx-h100", "10.0.0.11")
_LOOPBACK_HOSTS = "127.0.0.1 localhost\n127.0.1.1 hgx-h100\n"


@dataclass(frozen=True)
class Plant:
    """One fault: `finding` must be found; `also` are its other true consequences above a note, and nothing else is.

    `renamed`: in all questions and answers the first name is the second.
    """

    name: str
    like: str
    planted: str
    finding: str
    changes: tuple[Change, ...]
    also: tuple[str, ...] = ()
    renamed: tuple[str, str] = ("", "")


def _environment() -> list[Plant]:
    two = (changes.torchrun(2, **_MASTER), _FOUND_MASTER)
    return [
        _plant("ib-disable-word", "NCCL_IB_DISABLE=true", "fail env.bool-word NCCL_IB_DISABLE",
              changes.variables(NCCL_IB_DISABLE="true")),
        _plant("ib-disable-conf", "NCCL_IB_DISABLE=true in /etc/nccl.conf", "fail env.bool-word NCCL_IB_DISABLE",
              changes.file("/etc/nccl.conf", "NCCL_IB_DISABLE=true")),
        _plant("ib-disable", "NCCL_IB_DISABLE=1 on two nodes", "fail env.ib-disable NCCL_IB_DISABLE",
              *two, changes.variables(NCCL_IB_DISABLE="1")),
        _plant("conf-spaces", "spaces around = in /etc/nccl.conf", "fail env.conf-files NCCL_NET",
              changes.file("/etc/nccl.conf", "NCCL_NET = IB")),
        _plant("misspelt", "NCCL_IB_TIMEUOT", "warn env.unknown-var NCCL_IB_TIMEUOT",
              changes.variables(NCCL_IB_TIMEUOT="22")),
        _plant("out-of-range", "NCCL_IB_TIMEOUT=60", "fail env.range NCCL_IB_TIMEOUT",
              changes.variables(NCCL_IB_TIMEOUT="60")),
        _plant("p2p-off", "NCCL_P2P_DISABLE=1", "warn env.p2p-off NCCL_P2P_DISABLE",
              changes.variables(NCCL_P2P_DISABLE="1")),
        _plant("hca-hole", "NCCL_IB_HCA without mlx5_3", "warn env.hca-dup NCCL_IB_HCA",
              changes.variables(NCCL_IB_HCA=_ALL_BUT_3)),
        _plant("hca-prefix", "dgx-a100", "NCCL_IB_HCA=mlx5_1,… with a storage port mlx5_10",
              "warn env.hca-prefix NCCL_IB_HCA", (changes.variables(NCCL_IB_HCA=_COMPUTE),),
              renamed=("mlx5_5", "mlx5_10")),
        _plant("ifname-no-match", "NCCL_SOCKET_IFNAME=ens3", "fail env.ifname-match NCCL_SOCKET_IFNAME",
              changes.variables(NCCL_SOCKET_IFNAME="ens3")),
        _plant("gid-link-local", "a100-bridged", "NCCL_IB_GID_INDEX=1 on two nodes", "fail env.gid-index mlx5_0:1",
              (changes.torchrun(2), changes.variables(NCCL_IB_GID_INDEX="1")), ("fail env.gid-index mlx5_1:1",)),
    ]  


def _launch() -> list[Plant]:
    by_hand = changes.by_hand(**{**_MASTER, "MASTER_PORT": "40123"})
    listener = "   1: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21874 1\n"
    return [
        _plant("master-loopback", "the node's name is 127.0.1.1 in /etc/hosts", "fail launch.master-loopback hgx-h100",
              changes.torchrun(2, **_MASTER), changes.resolves("hgx-h100", "127.0.1.1"),
              changes.file("/etc/hosts", _LOOPBACK_HOSTS)),
        _plant("master-unknown", "MASTER_ADDR that nobody knows", "fail launch.master-resolve hgx-h100",
              changes.torchrun(2, **_MASTER), changes.resolves("hgx-h100")),
        _plant("port-ephemeral", "MASTER_PORT=40123", "warn launch.port-ephemeral MASTER_PORT",
              by_hand, _FOUND_MASTER),
        _plant("port-taken", "somebody listens on MASTER_PORT", "fail launch.port-free MASTER_PORT",
              changes.by_hand(**{**_MASTER, "MASTER_PORT": "29500"}), _FOUND_MASTER, changes.listens(listener)),
        _plant("half-set", "RANK without WORLD_SIZE", "fail launch.vars WORLD_SIZE", changes.variables(RANK="0")),
    ]  


def _rdma() -> list[Plant]:
    down = (changes.file(f"{_PORT}/state", "1: DOWN"), changes.file(f"{_PORT}/phys_state", "2: Polling"))
    return [
        _plant("ib-down", "a port without a cable", "fail ib.state mlx5_3:1", *down),
        _plant("ib-init", "a port without subnet manager", "fail ib.state mlx5_3:1",
              changes.file(f"{_PORT}/state", "2: INIT")),
        _plant("ib-one-lane", "a port at 1X", "fail ib.rate mlx5_3:1",
              changes.file(f"{_PORT}/rate", "100 Gb/sec (1X NDR)")),
        _plant("ib-half-rate", "a port at HDR", "fail ib.rate mlx5_3:1",
              changes.file(f"{_PORT}/rate", "200 Gb/sec (4X HDR)")),
        _plant("uverbs-closed", "/dev/infiniband/uverbs4 may not be opened", "fail ib.perm mlx5_4",
              changes.closed("/dev/infiniband/uverbs4")),
        _plant("ib-flaps", "a link that goes down every hour", "warn ib.flap-history mlx5_3",
              changes.log(*((860000.0 + 1000 * n, "mlx5_core 0000:5c:00.0: Port: 1 Link DOWN") for n in range(4)))),
        _plant("memlock", "8 MiB of locked memory", "fail host.memlock RLIMIT_MEMLOCK"),
        _plant("no-peermem", "dgx-1v", "nvidia_peermem is not loaded", "fail ib.gdr GPUs", (changes.gone(*_PEER_MEMORY),)),
        _plant("roce-mtu", "a100-bridged", "MTU 1500 on a RoCE port", "warn ib.roce-mtu mlx5_0:1",
              (changes.interface("ens1f0np0", mtu=1500),)),
        _plant("nic-numa", "a NIC on NUMA node -1", "note ib.numa mlx5_2",
              changes.device(_HGX, "mlx5_2", "numa_node", "-1")),
    ]  


def _gpus() -> list[Plant]:
    hangs = TimedOut("nvidia-smi -L: no answer within 60 s, even killed")
    return [
        _plant("smi-hangs", "nvidia-smi does not come back", "fail gpu.smi-canary nvidia-smi",
              changes.says(hangs, "run", "nvidia-smi", "-L")),
        _plant("gpu-lost", "a GPU that NVML has lost", "fail gpu.count GPU6", changes.lost(6)),
        _plant("xid-79", "Xid 79 an hour ago", "fail gpu.xid GPU3", changes.log((860600.0, _XID_79))),
        _plant("remap-pending", "a row to be remapped at the next reset", "warn gpu.remap GPU1",
              changes.gpu(1, "nvmlDeviceGetRemappedRows", [0, 1, 1, 0])),
        _plant("gpu-busy", "somebody else's process on a GPU", "warn gpu.busy GPU4",
              changes.gpu(4, "nvmlDeviceGetComputeRunningProcesses", [42 << 30]),
              changes.gpu(4, "nvmlDeviceGetMemoryInfo", {"total": 80 << 30, "free": 37 << 30, "used": 43 << 30})),
        _plant("gpu-hot", "a GPU held back by its heat", "warn gpu.throttle GPU2",
              changes.gpu(2, "nvmlDeviceGetCurrentClocksEventReasons", 0x48)),
        _plant("gpu-mig", "a GPU left in MIG mode", "warn gpu.mig GPU5",
              changes.gpu(5, "nvmlDeviceGetMigMode", [1, 1])),
        _plant("gpu-prohibited", "a GPU in compute mode prohibited", "fail gpu.compute-mode GPU5",
              changes.gpu(5, "nvmlDeviceGetComputeMode", 2)),
        _plant("gpu-x8", "a GPU on 8 PCIe lanes", "fail pci.gpu-width GPU3",
              changes.gpu(3, "nvmlDeviceGetCurrPcieLinkWidth", 8),
              changes.device(_HGX, "GPU3", "current_link_width", "8")),
        _plant("nic-x8", "a NIC on 8 PCIe lanes", "fail pci.nic-link mlx5_3",
              changes.device(_HGX, "mlx5_3", "current_link_width", "8")),
        _plant("acs", "ACS on the lower ports of the PCI switches", "warn pci.acs PCIe switches", changes.acs(_HGX)),
        _plant("iommu", "an IOMMU that translates", "warn pci.iommu IOMMU",
              *(changes.device(_HGX, name, "iommu_group/type", "DMA-FQ") for name in _CARDS)),
        _plant("nvlink-down", "a link of a GPU is inactive", "fail nvl.links GPU5", changes.link(5, 7, 0, 0)),
        _plant("nvlink-slow", "a link of a GPU at half rate", "fail nvl.rate GPU5", changes.link(5, 7, 2, 13281)),
        _plant("fm-version", "a fabric manager of another version", "warn nvl.fm-service nv-fabricmanager",
              changes.says("Fabric Manager version is : 550.90.07\n", "run", "nv-fabricmanager", "--version")),
        _plant("fabric-waits", "a GPU that has not yet joined the fabric", "warn nvl.fabric GPU2",
              changes.gpu(2, "nvmlDeviceGetGpuFabricInfoV", {"clusterUuid": [0] * 16, "status": 0, "cliqueId": 0,
                                                             "state": 2, "version": 0x02000024, "healthMask": 2})),
        _plant("no-imex", "gb200-tray", "no IMEX channel, on two trays", "fail nvl.imex /dev/nvidia-caps-imex-channels",
              (changes.torchrun(2), changes.says(Missing("not there"), "list", "/dev/nvidia-caps-imex-channels",
                                                 "channel*"))),
    ]  


def _host() -> list[Plant]:
    size = {"total": 64 << 20, "available": 64 << 20}
    return [
        _plant("shm-small", "/dev/shm of 64 MiB with NCCL 2.21", "fail host.shm /dev/shm",
              changes.says(zoo.json.dumps(size), "statvfs", "/dev/shm")),
        _plant("one-socket", "a cpuset of the second socket", "warn host.affinity GPU0", changes.torchrun(1),
              changes.cpuset("56-111,168-223"), also=tuple(f"warn host.affinity GPU{n}" for n in (1, 2, 3))),
        _plant("cpu-quota", "a quota of 4 processors", "warn host.cpu-quota cpu quota", changes.torchrun(1),
              changes.file(f"{_GROUP}/cpu.max", "400000 100000")),
        _plant("governor", "a governor that keeps the clock low", "warn host.governor governor",
              changes.file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_cpufreq"),
              changes.file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")),
    ]  
