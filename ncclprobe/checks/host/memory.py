"""Memory: what NCCL shares through /dev/shm, what it may lock, and what is left of the machine's."""

from collections.abc import Iterator

from ncclprobe.checks.gpu import gpu_job
from ncclprobe.checks.host import ranks_here
from ncclprobe.errors import Unlearned
from ncclprobe.facts.cgroup import Cgroup, MemoryLimit
from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.limits import Memlock, Segment, SharedMemory
from ncclprobe.facts.memory import Memory
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.process import Container, Process, ResourceLimit
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.units import plural, size

MIB, GIB = 1 << 20, 1 << 30
_DOCKERS_DEFAULT = 64 * MIB
_LITTLE_LEFT = 0.1  # of all memory: a judgement, for a node that should be idle

EIGHT = Gpus(tuple(Gpu(i, "NVIDIA A100-SXM4-80GB") for i in range(8)), driver="535.104.05", cuda=(12, 2))
NEW_DRIVER = Gpus(EIGHT.all, driver="570.86.15", cuda=(12, 8))
NCCL_2_21 = Software({}, (NcclLibrary((2, 21, 5), "nvidia-nccl-cu12"),))
NCCL_2_27 = Software({}, (NcclLibrary((2, 27, 3), "nvidia-nccl-cu12"),))
NIC = Fabric((RdmaDevice("mlx5_0"),))
PLAIN, OFF = Settings(), Settings({"NCCL_SHM_DISABLE": Setting("NCCL_SHM_DISABLE", "1", "environment")})
NO_CUMEM = Settings({"NCCL_CUMEM_HOST_ENABLE": Setting("NCCL_CUMEM_HOST_ENABLE", "0", "environment")})
SMALL = SharedMemory(64 * MIB, 64 * MIB)
STALE = Segment("nccl-Ab12Cd", 9 * MIB, 86400.0, held=False)
DOCKER = Container("docker", "/.dockerenv")


def user(*capabilities: str, first_user_namespace: bool = True) -> Process:
    """Return a process with these capabilities, for examples."""
    limit = ResourceLimit(1 << 20, 1 << 20)
    return Process(limit, limit, tuple(range(64)), (0,), frozenset(capabilities), first_user_namespace, {})


@applies
def rdma(fabric: Fabric, job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), where there are RDMA devices."""
    return job.backend == "nccl" and bool(fabric.devices)


@applies
def in_a_container(container: Container, job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), in a container."""
    return job.backend == "nccl" and bool(container.kind)


def _may_use_cumem(gpus: Gpus | Absent, software: Software, settings: Settings) -> bool:
    """Return whether this NCCL keeps shared buffers in cuMem host memory, unless it finds that not to work.

    src/misc/cudawrap.cc (v2.30.7): from 2.24 on with a driver for CUDA 12.6. Raises Unlearned where the driver decides
    and is not known.
    """
    version = software.nccl_version or ()
    if version < (2, 24) or settings.get("NCCL_CUMEM_HOST_ENABLE") == "0":
        return False
    if isinstance(gpus, Absent):
        raise Unlearned(f"/dev/shm is small, and whether NCCL avoids it is up to the driver: {gpus.why}")
    return gpus.cuda >= (12, 6)


def _too_small(memory: SharedMemory, ranks: int) -> bool:
    """Return whether `ranks` ranks cannot count on /dev/shm."""
    return memory.total_bytes <= _DOCKERS_DEFAULT or memory.available_bytes < _DOCKERS_DEFAULT * ranks


def _room(memory: SharedMemory) -> str:
    return f"{size(memory.available_bytes)} free of {size(memory.total_bytes)}"


@check(
    bad=lambda: [(SMALL, EIGHT, Launch(), NCCL_2_21, PLAIN, Job())],
    good=lambda: [(SMALL, EIGHT, Launch(), NCCL_2_21, OFF, Job())],
    required=True,
    applies=gpu_job,
)
def shm(
    memory: SharedMemory, gpus: Gpus | Absent, launch: Launch, software: Software, settings: Settings, job: Job
) -> Iterator[Finding]:
    """/dev/shm is too small for NCCL's shared-memory transport.

    Right: /dev/shm is large enough for NCCL's shared-memory transport.
    Why: docker gives a container 64 MiB; ranks of one node that exchange data through /dev/shm then die in
    "unable to allocate shared memory" or with a bus error (nccl#342, nccl#525). NCCL >= 2.24 on a driver for CUDA >=
    12.6 keeps these buffers in cuMem host memory instead, where NCCL_CUMEM_HOST_ENABLE is not 0.
    Fix: docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory at /dev/shm.
    """
    ranks = ranks_here(launch, gpus, job)
    if isinstance(gpus, Absent) and launch.local_world_size is None:
        raise Unlearned(f"how many ranks share it is not known: {gpus.why}")
    roomy = memory.available_bytes >= GIB and not _too_small(memory, ranks)
    if ranks < 2 or roomy or settings.get("NCCL_SHM_DISABLE") == "1" or _may_use_cumem(gpus, software, settings):
        return
    blamed = {"blame": "image", "action": "fix-image", "evidence": "statvfs /dev/shm"}
    if _too_small(memory, ranks):
        yield fail("/dev/shm", f"{_room(memory)}, for {ranks} ranks of this node", **blamed)
    elif memory.available_bytes < GIB:
        yield warn("/dev/shm", f"{_room(memory)}: data loaders share it with {ranks} ranks", **blamed)


@check(
    bad=lambda: [(SharedMemory(8 * GIB, 100 * MIB, segments=(STALE,)),)],
    good=lambda: [(SharedMemory(8 * GIB, 7 * GIB, segments=(STALE,)),)],
    applies=gpu_job,
)
def shm_stale(memory: SharedMemory) -> Iterator[Finding]:
    """Files of ended NCCL jobs fill /dev/shm.

    Right: No files of ended NCCL jobs fill /dev/shm.
    Why: NCCL removes its files in /dev/shm once all peers have them, but a rank that is killed before that leaves its
    own; they hold memory until they are deleted, and the next job runs out (nccl#525).
    Fix: `rm /dev/shm/nccl-*`, as their owner or root, while no NCCL job runs on this node.
    """
    if memory.segments is None:
        raise Unlearned("which files of NCCL are in /dev/shm could not be seen")
    left = [segment for segment in memory.segments if segment.held is False]
    unsure = [segment for segment in memory.segments if segment.held is None]
    if left:
        short = memory.available_bytes < GIB
        total = size(sum(segment.nbytes for segment in left))
        message = f"{plural(len(left), 'file')} of NCCL with {total} that no process has mapped; {_room(memory)}"
        tell = warn if short else note
        blamed = {"blame": "node", "action": "repair"} if short else {}
        yield tell("/dev/shm", message, evidence=[f"/dev/shm/{s.name}" for s in left[:4]], **blamed)
    if unsure and memory.available_bytes < GIB:
        count = plural(len(unsure), "file")
        message = f"{count} of NCCL may be left over: not every process that might use them can be seen"
        yield note("/dev/shm", message, evidence=[f"/dev/shm/{s.name}" for s in unsure[:4]])


@check(
    slows=True,
    bad=lambda: [(Memlock(65536), NIC, user())],
    good=lambda: [(Memlock(None), NIC, user())],
    required=True,
    applies=rdma,
)
def memlock(memlock: Memlock, fabric: Fabric, process: Process | Absent) -> Iterator[Finding]:
    """The limit on locked memory is too low for RDMA.

    Right: The limit on locked memory is high enough for RDMA.
    Why: every buffer that a NIC reads or writes is registered, and so locked; beyond the limit ibv_reg_mr fails with
    "Cannot allocate memory" (nccl-tests#206). limits.conf does not reach services, so slurmd's jobs keep its 8 MiB.
    CAP_IPC_LOCK lifts the limit, but only in the machine's first user namespace: not in a rootless container (mlock(2),
    can_do_mlock in mm/mlock.c).
    Fix: LimitMEMLOCK=infinity in the unit of slurmd or containerd, --ulimit memlock=-1 for docker, or CAP_IPC_LOCK
    (securityContext.capabilities.add: [IPC_LOCK] in Kubernetes).
    """
    if memlock.soft_bytes is None or memlock.exempt or memlock.soft_bytes >= 16 * GIB:
        return
    tell = fail if memlock.soft_bytes < 64 * MIB else warn
    message = f"{size(memlock.soft_bytes)}, with {plural(len(fabric.devices), 'RDMA device')}; NCCL registers gigabytes"
    if isinstance(process, Process) and "ipc_lock" in process.capabilities:
        message += "; CAP_IPC_LOCK is held, but only in a user namespace, where it does not lift the limit"
    yield tell("RLIMIT_MEMLOCK", message, blame="image", action="fix-image", evidence="getrlimit(RLIMIT_MEMLOCK)")


@check(
    bad=lambda: [(DOCKER, user(), SMALL, NEW_DRIVER, Launch(), NCCL_2_27, PLAIN, Job())],
    good=lambda: [
        (DOCKER, user(), SMALL, NEW_DRIVER, Launch(), NCCL_2_27, NO_CUMEM, Job()),  # host.shm's business
    ],
    requires="host.shm",
    applies=in_a_container,
)
def caps(
    container: Container,
    process: Process,
    memory: SharedMemory,
    gpus: Gpus,
    launch: Launch,
    software: Software,
    settings: Settings,
    job: Job,
) -> Iterator[Finding]:
    """The container lacks CAP_SYS_NICE, and its /dev/shm is small.

    Right: The container has CAP_SYS_NICE or a /dev/shm that is large enough.
    Why: NCCL >= 2.24 avoids /dev/shm by cuMem host memory, which needs NUMA calls; docker's seccomp profile refuses
    them without CAP_SYS_NICE. NCCL then says "cuMem host allocations do not appear to be working; falling back to a
    /dev/shm/ based implementation" (src/misc/cudawrap.cc:92; NCCL user guide, Troubleshooting, Shared memory).
    Fix: docker run --cap-add SYS_NICE, or give /dev/shm its size: --shm-size=8g or --ipc=host.
    """
    ranks = ranks_here(launch, gpus, job)
    if "sys_nice" in process.capabilities or ranks < 2 or settings.get("NCCL_SHM_DISABLE") == "1":
        return
    if _may_use_cumem(gpus, software, settings) and _too_small(memory, ranks):
        message = (
            f"is not held in this {container.kind} container, and /dev/shm is small: {_room(memory)}, {ranks} ranks"
        )
        sources = (seen("/proc/self/status", "CapEff"), "statvfs /dev/shm", f"container by {container.sign}")
        yield warn("CAP_SYS_NICE", message, blame="image", action="fix-image", evidence=sources)


@check(
    bad=lambda: [(Memory(256 * GIB, 20 * GIB), Cgroup(None, None))],
    good=lambda: [(Memory(256 * GIB, 200 * GIB), Cgroup(None, None))],
)
def oom(memory: Memory, cgroup: Cgroup | Absent) -> Iterator[Finding]:
    """Little memory is free before the job has started.

    Right: Enough memory is free.
    Why: pinned buffers and data loaders take gigabytes per rank; the kernel then kills a rank, or swaps, and all other
    ranks wait for it.
    Fix: `ps -eo pid,user,rss,comm --sort=-rss` and `ls -l /dev/shm` show what holds it; or ask the scheduler for a
    whole node (srun --exclusive).
    """
    if memory.available_bytes < _LITTLE_LEFT * memory.total_bytes:
        message = f"{size(memory.available_bytes)} of {size(memory.total_bytes)} are available"
        yield warn("memory", message, action="retest", evidence=seen("/proc/meminfo", "MemAvailable"))
    swapped = memory.swap_total_bytes - memory.swap_free_bytes
    if swapped > memory.swap_total_bytes / 2:
        yield note(
            "swap",
            f"{size(swapped)} of {size(memory.swap_total_bytes)} are in use",
            evidence=seen("/proc/meminfo", "SwapFree"),
        )
    limit = cgroup.memory if isinstance(cgroup, Cgroup) else None
    used = limit.used_bytes if isinstance(limit, MemoryLimit) else 0
    if isinstance(limit, MemoryLimit) and isinstance(used, int) and used > (1 - _LITTLE_LEFT) * limit.nbytes:
        # Caches count, and can be dropped: no warning.
        message = f"{size(used)} of {size(limit.nbytes)} allowed to this control group, caches included"
        yield note("memory", message, evidence=limit.group)
