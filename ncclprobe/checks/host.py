"""What the host or container lets a job have."""

from collections.abc import Iterator

from ncclprobe.checks.gpu import gpu_job
from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.limits import Memlock, SharedMemory
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model import Finding, Setting, fail, warn
from ncclprobe.registry import applies, check
from ncclprobe.units import size

MIB, GIB = 1 << 20, 1 << 30

EIGHT = Gpus(tuple(Gpu(i, "NVIDIA A100-SXM4-80GB") for i in range(8)), driver="535.104.05", cuda=(12, 2))
ONE = Gpus((Gpu(0, "NVIDIA H200"),), driver="570.86.15", cuda=(12, 8))
NEW_DRIVER = Gpus(EIGHT.all, driver="570.86.15", cuda=(12, 8))
NCCL_2_21 = Software({}, (NcclLibrary((2, 21, 5), "nvidia-nccl-cu12"),))
NCCL_2_27 = Software({}, (NcclLibrary((2, 27, 3), "nvidia-nccl-cu12"),))
NIC = Fabric((RdmaDevice("mlx5_0"),))
PLAIN, OFF = Settings(), Settings({"NCCL_SHM_DISABLE": Setting("NCCL_SHM_DISABLE", "1", "environment")})


@applies
def rdma(fabric: Fabric) -> bool:
    """where there are RDMA devices."""
    return bool(fabric.devices)


@check(
    bad=[
        (SharedMemory(64 * MIB, 64 * MIB), EIGHT, Launch(), NCCL_2_21, PLAIN),
        (SharedMemory(800 * MIB, 800 * MIB), EIGHT, Launch(), NCCL_2_21, PLAIN),
    ],
    good=[
        (SharedMemory(64 * GIB, 60 * GIB), EIGHT, Launch(), NCCL_2_21, PLAIN),
        (SharedMemory(64 * MIB, 64 * MIB), NEW_DRIVER, Launch(), NCCL_2_27, PLAIN),
        (SharedMemory(64 * MIB, 64 * MIB), ONE, Launch(), NCCL_2_21, PLAIN),
        (SharedMemory(64 * MIB, 64 * MIB), EIGHT, Launch(), NCCL_2_21, OFF),
    ],
    required=True,
    applies=gpu_job,
)
def shm(memory: SharedMemory, gpus: Gpus, launch: Launch, software: Software, settings: Settings) -> Iterator[Finding]:
    """/dev/shm is too small for NCCL's shared-memory transport.

    Why: docker gives a container 64 MiB; ranks of one node that exchange data through /dev/shm then die in
    "unable to allocate shared memory" or with a bus error (nccl#342, #525). NCCL >= 2.24 on a driver for CUDA >= 12.6
    keeps these buffers in cuMem host memory instead, where NCCL_CUMEM_HOST_ENABLE is not 0.
    Fix: docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory at /dev/shm.
    """
    ranks = launch.local_world_size or len(gpus.all)
    version = software.nccl_version or ()
    cumem_host = version >= (2, 24) and gpus.cuda >= (12, 6) and settings.get("NCCL_CUMEM_HOST_ENABLE") != "0"
    if ranks < 2 or cumem_host or settings.get("NCCL_SHM_DISABLE") == "1":
        return
    free = memory.available_bytes
    if memory.total_bytes <= 64 * MIB or free < 64 * MIB * ranks:
        message = f"{size(free)} free of {size(memory.total_bytes)}, for {ranks} ranks of this node"
        yield fail("/dev/shm", message, blame="image", action="fix-image", evidence="statvfs /dev/shm")
    elif free < GIB:
        message = f"{size(free)} free of {size(memory.total_bytes)}: data loaders share it with {ranks} ranks"
        yield warn("/dev/shm", message, blame="image", action="fix-image", evidence="statvfs /dev/shm")


@check(
    bad=[(Memlock(65536), NIC), (Memlock(1 * GIB), NIC)],
    good=[(Memlock(None), NIC), (Memlock(65536, exempt=True), NIC)],
    required=True,
    applies=rdma,
)
def memlock(memlock: Memlock, fabric: Fabric) -> Iterator[Finding]:
    """The limit on locked memory is too low for RDMA.

    Why: every buffer that a NIC reads or writes is registered, and so locked; beyond the limit ibv_reg_mr fails with
    "Cannot allocate memory" (nccl-tests#206). limits.conf does not reach services, so slurmd's jobs keep its 8 MiB.
    Fix: LimitMEMLOCK=infinity in the unit of slurmd or containerd, --ulimit memlock=-1 for docker, or CAP_IPC_LOCK.
    """
    if memlock.soft_bytes is None or memlock.exempt or memlock.soft_bytes >= 16 * GIB:
        return
    tell = fail if memlock.soft_bytes < 64 * MIB else warn
    message = f"{size(memlock.soft_bytes)}, with {len(fabric.devices)} RDMA devices; NCCL registers gigabytes"
    yield tell("RLIMIT_MEMLOCK", message, blame="image", action="fix-image", evidence="getrlimit(RLIMIT_MEMLOCK)")
