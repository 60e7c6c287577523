"""The limits that the host or container sets for a job, and how many ranks share them.

Open files, threads and clocks; processors: which a rank may use, how fast they run, which NUMA node its memory is on;
memory: what NCCL shares through /dev/shm, what it may lock, and how much of the machine's is left.
"""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks import IMAGE, JOB
from ncclprobe.checks.gpu import gpu_job
from ncclprobe.expect.tables.machines import named as machine_named
from ncclprobe.facts.cgroup import Cgroup, MemoryLimit, PidsLimit, Quota, Throttling
from ncclprobe.facts.cpu import POLICY, Cpus, NumaNode, Scaling
from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine, TimeSync
from ncclprobe.facts.memory import Memory, MemoryPolicy
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.process import (
    Container,
    JobUser,
    Memlock,
    OpenFiles,
    Process,
    ResourceLimit,
    Segment,
    SharedMemory,
)
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import NOTHING_TO_SET, Evidence, Finding, fail, note, seen, warn
from ncclprobe.model.hostlist import fold_numbers
from ncclprobe.model.registry import CheckGroup, applies, check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job, unlearned
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import replace
from ncclprobe.nccl.selection import visible

LIMITS_GROUP = CheckGroup("limits", "A limit of the user or container is too low for a job")
SHM_GROUP = CheckGroup("shm", "/dev/shm does not have the space that NCCL needs")
CPU_GROUP = CheckGroup("cpu", "Ranks do not get enough CPU time or local memory")


def ranks_here(launch: Launch, gpus: Gpus | Absent, job: Job) -> int:
    """Return the ranks that this node gets: the launcher's number, otherwise one per visible GPU, otherwise one."""
    if launch.local_world_size:
        return launch.local_world_size
    if job.backend != "nccl" or isinstance(gpus, Absent):
        return 1
    listed = launch.visible_gpus
    if listed is None or launch.rank is not None or "MIG-" in listed.upper():  # each rank's own, or parts of GPUs
        return len(gpus.all)
    return max(1, len(visible(listed, gpus)))


@applies
def exchanging(launch: Launch, gpus: Gpus | Absent, job: Job) -> bool:
    """if ranks exchange data: several here, or on several nodes."""
    started_alone = replace(launch, local_world_size=None)  # the doctor may be one process per node
    return launch.several_nodes or max(ranks_here(each, gpus, job) for each in (launch, started_alone)) > 1


_SMALL_WORLD = 64
_FILES_PER_RANK = 16  # 1024 files have been too few for more than 64 ranks
_FEWEST_FILES = 1024

TWO_NODES = Launch("torchrun", 0, 16, 0, 8, 2, 0)
LARGE = Launch("torchrun", 0, 512, 0, 8, 64, 0)


@applies
def several_nodes(launch: Launch, job: Job) -> bool:
    """in jobs of several nodes, and not with --local."""
    return not job.local and launch.several_nodes


@check(
    group=LIMITS_GROUP,
    bad=lambda: [(OpenFiles(1024, 4096), LARGE, Job(), JobUser())],
    good=lambda: [(OpenFiles(None, None), LARGE, Job(), JobUser())],
)
def nofile(limit: OpenFiles, launch: Launch, job: Job, user: JobUser | Absent) -> Iterator[Finding]:
    """The limit on open files is too low for a job of this size.

    Right: The limit on open files is high enough for a job of this size.
    Why: each connection of the bootstrap, of NET/Socket and of gloo is an open file. NCCL raises the limit itself, but
    only in the process that collects all ranks, and at most to the hard limit (setFilesLimit in src/bootstrap.cc,
    v2.30.7). The other processes fail with "Too many open files". With a limit below 1024, the usual minimum, a rank
    may fail at startup: CUDA opens dozens of files for each GPU, and torch, NCCL and data loaders open more. A prolog
    runs as root, so the limits of the job's user are read from Slurm (SLURM_RLIMIT_NOFILE), or from limits.conf(5) for
    a login of that user.
    Fix: set LimitNOFILE=1048576 in the unit of slurmd or containerd, --ulimit nofile=1048576 for docker, or ulimit -n
    before the job.
    """
    theirs = _job_limit(user, "RLIMIT_NOFILE", ResourceLimit(limit.soft, limit.hard))
    if isinstance(theirs, Finding):
        yield theirs
        return
    (soft, hard), evidence = theirs
    ranks = 1 if job.local else launch.world_size or 1
    needed = _FILES_PER_RANK * ranks if ranks > _SMALL_WORLD else _FEWEST_FILES
    if soft is None or soft >= needed:
        return
    whose = f"{ranks} ranks" if ranks > _SMALL_WORLD else "one rank"
    highest = "" if evidence.startswith("SLURM_") else f", hard limit {hard or 'none'}"
    message = f"soft limit {soft}{highest}; {whose} may need {needed}"
    if soft >= _FEWEST_FILES and (hard is None or hard >= needed):
        yield note("RLIMIT_NOFILE", f"{message}; any process may raise its own limit", evidence=evidence)
    else:
        yield warn("RLIMIT_NOFILE", message, **IMAGE, evidence=evidence)


def _job_limit(user: JobUser | Absent, name: str, own: ResourceLimit) -> tuple[ResourceLimit, str] | Finding:
    """Return the limit of those who run the job and its source; a note if it is not known."""
    if isinstance(user, Absent) or user.uid is None:
        return own, f"getrlimit({name})"
    message = (
        f"is unknown for the job's user {user.uid}, because ncclprobe runs as another user; run ncclprobe in "
        "a job step to see it"
    )
    return user.limits.get(name, note(name, message, evidence=f"SLURM_JOB_UID={user.uid}"))


_THREADS_PER_RANK = 256
"""Threads of torch with NCCL on a GPU: proxies, watchdogs, autograd, OpenMP and data loading make some 150 to 250."""
_LEAST_PER_RANK = 32
"""With one thread for OpenMP, one communicator and no data loading, a rank has as many, and cannot start with fewer."""
FREE = Cgroup(None, None)


@check(
    group=LIMITS_GROUP,
    bad=lambda: [(replace(user(), nproc=ResourceLimit(1024, 1024)), LARGE, FREE, EIGHT, Job())],
    good=lambda: [(user(), LARGE, FREE, EIGHT, Job())],
)
def threads(
    process: Process, launch: Launch, cgroup: Cgroup | Absent, gpus: Gpus | Absent, job: Job
) -> Iterator[Finding]:
    """The limit on processes and threads is too low for the ranks on this node.

    Right: The ranks on this node can start as many threads as they need.
    Why: if a thread cannot be started, the rank exits minutes into the job: in NCCL's proxy ("Resource temporarily
    unavailable"), in OpenBLAS or in a data loader. RLIMIT_NPROC counts all threads of the user on the host. It does not
    apply to root, or to a process with CAP_SYS_RESOURCE or CAP_SYS_ADMIN in the machine's first user namespace
    (copy_process in kernel/fork.c). pids.max counts the threads of the container or the job.
    Fix: set ulimit -u unlimited, or LimitNPROC=infinity and TasksMax=infinity in the unit of slurmd or containerd,
    --pids-limit=-1 for docker, or the kubelet's podPidsLimit.
    """
    ranks = ranks_here(launch, gpus, job)
    needed, least = _THREADS_PER_RANK * ranks, _LEAST_PER_RANK * ranks
    asked = f"{plural(ranks, 'rank')} need {least} threads to start, and up to {needed} later"
    mighty = process.uid == 0 or process.capabilities & {"sys_resource", "sys_admin"}
    soft, exempt = process.nproc.soft, process.first_user_namespace and mighty
    limit = cgroup.pids if isinstance(cgroup, Cgroup) else cgroup
    if soft is not None and soft < needed and not exempt:
        message = f"soft limit {soft}; {asked}"
        yield (fail if soft < least else warn)("RLIMIT_NPROC", message, evidence="getrlimit(RLIMIT_NPROC)", **IMAGE)
    elif isinstance(limit, Absent):
        raise Unlearned(limit.why, limit.refused)
    if isinstance(limit, PidsLimit) and limit.left < needed:
        message = f"{limit.left} of {limit.most} threads are left; {asked}"
        tell = fail if limit.left < least else warn
        yield tell("pids.max", message, evidence=seen(f"{limit.group}/pids.max", str(limit.most)), **IMAGE)


@applies
def nics_counted(named: NamedMachine | Absent) -> bool:
    """to pasted texts that say how many NICs a container gets."""
    return isinstance(named, NamedMachine) and bool(named.given)


@check(
    group=LIMITS_GROUP,
    bad=lambda: [(NamedMachine("p5.48xlarge", given={"vpc.amazonaws.com/efa": 1}), Settings())],
    good=lambda: [(NamedMachine("p4d.24xlarge", given={"vpc.amazonaws.com/efa": 4}), Settings())],
    applies=nics_counted,
)
def nics_given(named: NamedMachine, settings: Settings) -> Iterator[Finding]:
    """A container gets fewer NICs than its machine has.

    Right: A container gets all NICs of its GPUs.
    Why: NCCL uses only the NICs that it sees in the container. A p5.48xlarge has 32 EFA devices at 100 Gb/s, and each
    device that the pod does not request costs its share of the bandwidth between nodes.
    Fix: request as many devices as the machine has for these GPUs, in `limits` and `requests`.
    """
    machine = machine_named(named.type) if named.type else None
    if machine is None or not machine.links.nics or machine.links.network in (None, "sockets", "tcpx", "tcpxo"):
        return
    share = min(1.0, (named.gpus or machine.links.gpus) / machine.links.gpus)
    wanted, given = max(1, round(share * machine.links.nics)), sum(named.given.values())
    if not given and (machine.links.network != "efa" or (named.nodes < 2 and settings.get("FI_PROVIDER") != "efa")):
        return
    if given < 0.9 * wanted:
        names = ", ".join(named.given)
        message = f"the container gets {given} of the {wanted} NICs that {machine.name} has for its GPUs"
        tell = fail if given <= wanted / 2 else warn
        yield tell(names, message, **JOB, evidence="resources of the container")


@check(bad=lambda: [(TimeSync(False),)], good=lambda: [(TimeSync(True),)], applies=several_nodes)
def timesync(sync: TimeSync) -> Iterator[Finding]:
    """No service synchronises this node's clock.

    Right: This node's clock is synchronised.
    Why: a wrong clock does not break an NCCL job. But hangs are found by comparing the logs of several nodes, and
    without synchronised clocks their times cannot be compared.
    Fix: run `systemctl enable --now chronyd` (or systemd-timesyncd). `chronyc tracking` shows the offset.
    """
    if not sync.synchronized:
        message = "no service synchronises the kernel's clock"
        yield warn("clock", message, **IMAGE, evidence=seen("timedatectl", "NTPSynchronized=no"))


MIB, GIB = 1 << 20, 1 << 30
_DOCKERS_DEFAULT = 64 * MIB
_LITTLE_LEFT = 0.1  # of all memory: a judgement, for a node that should be idle
_RANK_BYTES = 2 * GIB
ALONE = Launch()
UNNAMED = Absent("no text names a machine")

EIGHT: Gpus = Gpus(tuple(Gpu(i, "NVIDIA A100-SXM4-80GB") for i in range(8)), driver="535.104.05", cuda=(12, 2))
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
    return Process(limit, tuple(range(64)), (0,), frozenset(capabilities), first_user_namespace, {})


@applies
def rdma(fabric: Fabric, job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), if there are RDMA devices."""
    return job.backend == "nccl" and bool(fabric.devices)


@applies
def may_use_rdma(fabric: Fabric | Absent, job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), unless there are no RDMA devices."""
    return job.backend == "nccl" and (isinstance(fabric, Absent) or bool(fabric.devices))


@applies
def in_a_container(container: Container, job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), in a container."""
    return job.backend == "nccl" and bool(container.kind)


def _may_use_cumem(gpus: Gpus | Absent, software: Software, settings: Settings) -> bool:
    """Return whether this NCCL keeps shared buffers in cuMem host memory, unless it finds that not to work.

    src/misc/cudawrap.cc (v2.30.7): from 2.24 on with a driver for CUDA 12.6. Raises Unlearned if the driver decides
    and is not known.
    """
    version = software.nccl_version or ()
    if version < (2, 24) or settings.get("NCCL_CUMEM_HOST_ENABLE") == "0":
        return False
    if isinstance(gpus, Absent):
        raise Unlearned(f"/dev/shm is small, and whether NCCL avoids it depends on the driver: {gpus.why}")
    return gpus.cuda >= (12, 6)


def _too_small(memory: SharedMemory, ranks: int) -> bool:
    """Return whether `ranks` ranks cannot count on /dev/shm."""
    return memory.total_bytes <= _DOCKERS_DEFAULT or memory.available_bytes < _DOCKERS_DEFAULT * ranks


_POOLS = {(2, 28): 34_210_176, (2, 27): 33_030_528, (0,): 10_486_112}
"""From a release on: the bytes of struct ncclProxyOpsPool, compiled; of those between 2.23 and 2.27 the least is held.
A rank makes one with its first connection over a network, in /dev/shm wherever its buffers are, and fallocate takes all
of it at once (proxyProgressInit in src/proxy.cc, ncclOsShmOpen in src/os/linux.cc, v2.30.7).
"""


def _pools(launch: Launch, software: Software, ranks: int) -> int:
    """Return the bytes in /dev/shm without which no rank of this node can send to another node."""
    version = software.nccl_version or (0,)
    return launch.several_nodes * ranks * next(nbytes for first, nbytes in _POOLS.items() if version >= first)


def _room(memory: SharedMemory) -> str:
    return f"{size(memory.available_bytes)} free of {size(memory.total_bytes)}"


@check(
    group=SHM_GROUP,
    bad=lambda: [(SMALL, EIGHT, Launch(), NCCL_2_21, PLAIN, Job())],
    good=lambda: [(SMALL, EIGHT, Launch(), NCCL_2_21, OFF, Job())],
    required=True,
    applies=gpu_job,
)
def shm(
    memory: SharedMemory,
    gpus: Gpus | Absent,
    launch: Launch | Absent,
    software: Software | Absent,
    settings: Settings,
    job: Job,
) -> Iterator[Finding]:
    """/dev/shm is too small for NCCL.

    Right: /dev/shm is large enough for NCCL.
    Why: docker gives a container only 64 MiB. Ranks on one node that exchange data through /dev/shm then fail with
    "unable to allocate shared memory" or a bus error (nccl#342, nccl#525). NCCL >= 2.24 on a driver for CUDA >= 12.6
    keeps these buffers in cuMem host memory instead, unless NCCL_CUMEM_HOST_ENABLE is 0. A rank's send queue to other
    nodes stays in /dev/shm, and since 2.28 it takes 33 MiB for each rank: "Error while creating shared memory segment".
    Fix: use docker run --shm-size=8g or --ipc=host, or in Kubernetes an emptyDir with medium: Memory at /dev/shm.
    """
    blamed: dict[str, Any] = {"blame": "image", "action": "fix-image", "evidence": "statvfs /dev/shm"}
    if isinstance(launch, Absent) or isinstance(software, Absent):
        if memory.available_bytes > _DOCKERS_DEFAULT:
            raise unlearned(fact for fact in (launch, software) if isinstance(fact, Absent))
        yield warn("/dev/shm", f"{_room(memory)}: too small for NCCL if several ranks share it", **blamed)
        return
    ranks = ranks_here(launch, gpus, job)
    if isinstance(gpus, Absent) and launch.local_world_size is None:
        raise Unlearned(f"the number of ranks that share it is unknown: {gpus.why}")
    if memory.available_bytes < (pools := _pools(launch, software, ranks)):
        put = f"{plural(ranks, 'rank')} put{'s' * (ranks == 1)} {size(pools)} there to reach other nodes"
        yield fail("/dev/shm", f"{_room(memory)}, and {put}", **blamed)
        return
    roomy = memory.available_bytes >= GIB and not _too_small(memory, ranks)
    if ranks < 2 or roomy or settings.get("NCCL_SHM_DISABLE") == "1" or _may_use_cumem(gpus, software, settings):
        return
    if _too_small(memory, ranks):
        yield fail("/dev/shm", f"{_room(memory)}, for {ranks} ranks on this node", **blamed)
    else:
        yield warn("/dev/shm", f"{_room(memory)}; {ranks} ranks and their data loaders share it", **blamed)


_EMPTY = 0.9
"""A file system with so much of it free is not full of files of ended jobs, whichever it holds."""


@check(
    group=SHM_GROUP,
    bad=lambda: [(SharedMemory(8 * GIB, 100 * MIB, segments=(STALE,)),)],
    good=lambda: [(SharedMemory(8 * GIB, 7 * GIB, segments=(STALE,)),)],
    applies=gpu_job,
)
def shm_stale(memory: SharedMemory) -> Iterator[Finding]:
    """Files left by earlier NCCL jobs fill /dev/shm.

    Right: No files left by earlier NCCL jobs fill /dev/shm.
    Why: NCCL removes its files in /dev/shm once all peers have opened them, but a rank that is killed before that
    leaves its files behind. They use memory until they are deleted, and the next job may run out of it (nccl#525).
    Fix: run `rm /dev/shm/nccl-*` as the files' owner or root, while no NCCL job runs on this node.
    """
    if memory.segments is None and memory.available_bytes >= _EMPTY * memory.total_bytes:
        return
    if memory.segments is None:
        raise Unlearned("NCCL's files in /dev/shm could not be listed")
    left = [segment for segment in memory.segments if segment.held is False]
    unsure = [segment for segment in memory.segments if segment.held is None]
    if left:
        short = memory.available_bytes < GIB
        total = size(sum(segment.nbytes for segment in left))
        message = f"has {plural(len(left), 'leftover NCCL file')} ({total}), mapped by no process; {_room(memory)}"
        tell = warn if short else note
        blamed = {"blame": "node", "action": "repair"} if short else {}
        yield tell("/dev/shm", message, evidence=[f"/dev/shm/{s.name}" for s in left[:4]], **blamed)
    if unsure and memory.available_bytes < GIB:
        count = plural(len(unsure), "NCCL file")
        message = f"{count} may be left over, but ncclprobe cannot see every process that might use them"
        yield note("/dev/shm", message, evidence=[f"/dev/shm/{s.name}" for s in unsure[:4]])


@check(
    group=LIMITS_GROUP,
    slows=True,
    bad=lambda: [(Memlock(65536), NIC, user(), JobUser())],
    good=lambda: [(Memlock(None), NIC, user(), JobUser())],
    required=True,
    applies=may_use_rdma,
)
def memlock(
    memlock: Memlock,
    fabric: Fabric | Absent,
    process: Process | Absent,
    user: JobUser | Absent,
    named: NamedMachine | Absent = UNNAMED,
) -> Iterator[Finding]:
    """The limit on locked memory is too low for RDMA.

    Right: The limit on locked memory is high enough for RDMA.
    Why: every buffer that a NIC reads or writes is registered, and so locked in memory. Above the limit ibv_reg_mr
    fails with "Cannot allocate memory" (nccl-tests#206). limits.conf does not apply to services, so jobs inherit
    slurmd's limit of 8 MiB. CAP_IPC_LOCK lifts the limit in the machine's first user namespace, but not in a rootless
    container (mlock(2), can_do_mlock in mm/mlock.c). A prolog runs as root, whose limits do not apply to the job's
    user: see `nofile`.
    Fix: set LimitMEMLOCK=infinity in the unit of slurmd or containerd, --ulimit memlock=-1 for docker, or CAP_IPC_LOCK
    (securityContext.capabilities.add: [IPC_LOCK] in Kubernetes).
    """
    theirs = _job_limit(user, "RLIMIT_MEMLOCK", ResourceLimit(memlock.soft_bytes, None))
    if isinstance(theirs, Finding):
        yield theirs
        return
    (soft, _), evidence = theirs
    own = evidence.startswith("getrlimit")
    if soft is None or soft >= 16 * GIB or (memlock.exempt and own):
        return
    machine = machine_named(named.type) if isinstance(named, NamedMachine) and named.type else None
    rdma = isinstance(named, NamedMachine) and named.rdma
    rdma = rdma or (machine is not None and machine.links.network in ("ib", "roce", "efa"))
    tell = fail if (isinstance(fabric, Fabric) or rdma) and soft < 64 * MIB else warn
    devices = f"on {machine.name}" if machine and rdma else f"{'and' if rdma else 'if'} RDMA is used"
    if isinstance(fabric, Fabric):
        devices = f"with {plural(len(fabric.devices), 'RDMA device')}"
    message = f"{size(soft)}, {devices}; NCCL needs gigabytes"
    if own and isinstance(process, Process) and "ipc_lock" in process.capabilities:
        message += "; this process has CAP_IPC_LOCK, but only in a user namespace, which does not lift the limit"
    yield tell("RLIMIT_MEMLOCK", message, **IMAGE, evidence=evidence)


@check(
    group=SHM_GROUP,
    bad=lambda: [(DOCKER, user(), SMALL, NEW_DRIVER, Launch(), NCCL_2_27, PLAIN, Job())],
    good=lambda: [
        (DOCKER, user(), SMALL, NEW_DRIVER, Launch(), NCCL_2_27, NO_CUMEM, Job()),  # host.shm's business
    ],
    requires="host.shm/shm",
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
    Why: NCCL >= 2.24 uses cuMem host memory instead of /dev/shm. That requires NUMA calls, which docker's seccomp
    profile blocks without CAP_SYS_NICE. NCCL then prints "cuMem host allocations do not appear to be working; falling
    back to a /dev/shm/ based implementation" (src/misc/cudawrap.cc:92; NCCL user guide, Troubleshooting, Shared
    memory).
    Fix: start the container with docker run --cap-add SYS_NICE, or enlarge /dev/shm with --shm-size=8g or --ipc=host.
    """
    ranks = ranks_here(launch, gpus, job)
    if "sys_nice" in process.capabilities or ranks < 2 or settings.get("NCCL_SHM_DISABLE") == "1":
        return
    if _may_use_cumem(gpus, software, settings) and _too_small(memory, ranks):
        message = (
            f"is missing in this {container.kind} container, and /dev/shm is small for {ranks} ranks: {_room(memory)}"
        )
        sources = (seen("/proc/self/status", "CapEff"), "statvfs /dev/shm", f"container by {container.sign}")
        yield warn("CAP_SYS_NICE", message, **IMAGE, evidence=sources)


@check(
    bad=lambda: [(Memory(256 * GIB, 20 * GIB), Cgroup(None, None), ALONE, Absent("not asked"), Job())],
    good=lambda: [(Memory(256 * GIB, 200 * GIB), Cgroup(None, None), ALONE, Absent("not asked"), Job())],
)
def oom(
    memory: Memory, cgroup: Cgroup | Absent, launch: Launch | Absent, gpus: Gpus | Absent, job: Job
) -> Iterator[Finding]:
    """Too little memory is free for the job, or allowed to it.

    Right: Enough memory is free for the job, and allowed to it.
    Why: pinned buffers and data loaders take gigabytes per rank, and CUDA and torch take at least 2 GiB of host memory
    per rank. If memory runs out, the kernel kills a rank or swaps, and all other ranks wait for it.
    Fix: `ps -eo pid,user,rss,comm --sort=-rss` and `ls -l /dev/shm` show what uses the memory. If the limit is too low,
    ask the scheduler for a whole node (srun --exclusive, --mem=0), or give the pod a limits.memory of at least 8Gi for
    each rank.
    """
    if memory.available_bytes < _LITTLE_LEFT * memory.total_bytes:
        message = f"only {size(memory.available_bytes)} of {size(memory.total_bytes)} are available"
        yield warn("memory", message, action="retest", evidence=seen("/proc/meminfo", "MemAvailable"))
    swapped = memory.swap_total_bytes - memory.swap_free_bytes
    if swapped > memory.swap_total_bytes / 2:
        yield note(
            "swap",
            f"{size(swapped)} of {size(memory.swap_total_bytes)} are in use",
            evidence=seen("/proc/meminfo", "SwapFree"),
        )
    limit = cgroup.memory if isinstance(cgroup, Cgroup) else None
    ranks = ranks_here(launch, gpus, job) if isinstance(launch, Launch) and job.backend == "nccl" else 0
    if isinstance(limit, MemoryLimit) and limit.nbytes < _RANK_BYTES * ranks:
        message = f"this control group is limited to {size(limit.nbytes)}, for {plural(ranks, 'rank')} on this node"
        yield warn("memory", message, **IMAGE, evidence=limit.group)
        return
    used = limit.used_bytes if isinstance(limit, MemoryLimit) else 0
    if isinstance(limit, MemoryLimit) and isinstance(used, int) and used > (1 - _LITTLE_LEFT) * limit.nbytes:
        # Caches count, and can be dropped: no warning.
        message = f"this control group uses {size(used)} of its {size(limit.nbytes)}, including caches"
        yield note("memory", message, evidence=limit.group)


_BUSY_THREADS = 4
_SHARED_MASK = ("torchrun", "single")  # whatever they start inherits this process's processors
_SAFE_POWERSAVE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")  # there it adapts, as any governor should

LOW, HIGH = tuple(range(32)), tuple(range(32, 64))
TWO_SOCKETS = Cpus(LOW + HIGH, "AMD EPYC 7763", (NumaNode(0, LOW, (10, 32)), NumaNode(1, HIGH, (32, 10))))
FOUR = Gpus(tuple(Gpu(n, "NVIDIA H200", cpus=LOW if n < 2 else HIGH) for n in range(4)), "570.86.15", (12, 8))
TORCHRUN = Launch("torchrun", 0, 4, 0, 4, 1, 0)
SRUN = Launch("slurm", 0, 4, 0, 4, 1, 0)
QUIET = Throttling(1000, 0, 0.0)


def allowed(*cpus: int, memory_nodes: tuple[int, ...] = (0, 1)) -> Process:
    """Return a process that may use these processors, for examples."""
    limit = ResourceLimit(1 << 20, 1 << 20)
    return Process(limit, cpus, memory_nodes, frozenset(), True, {})


@applies
def sets_its_clock(scaling: Scaling) -> bool:
    """if the kernel sets the clock of the processors."""
    return bool(scaling.governor)


@check(
    group=CPU_GROUP,
    slows=True,
    bad=lambda: [(allowed(0), TWO_SOCKETS, FOUR, SRUN, Job())],
    good=lambda: [(allowed(*range(16)), TWO_SOCKETS, FOUR, SRUN, Job())],
    required=True,
    applies=exchanging,
)
def affinity(process: Process, cpus: Cpus, gpus: Gpus | Absent, launch: Launch, job: Job) -> Iterator[Finding]:
    """Ranks may run on too few CPUs, or on none near their GPU.

    Right: Ranks may run on enough CPUs, including those near their GPUs.
    Why: a rank keeps about four threads busy: its own, autograd's, and NCCL's two proxies (src/proxy.cc). On one or two
    cores they wait for each other; one job ran 30 times slower (Primus; nccl#1017). On CPUs far from the GPU, every
    copy crosses the link between the sockets.
    Fix: use srun --cpus-per-task=N (since Slurm 22.05 srun does not inherit it from sbatch), mpirun --bind-to none, or
    a container without a narrow --cpuset-cpus. Ranks under torchrun share the CPUs of torchrun itself.
    """
    ranks, few = ranks_here(launch, gpus, job), len(process.cpus)
    shared = launch.kind in _SHARED_MASK
    allowed = seen("/proc/self/status", f"Cpus_allowed_list: {fold_numbers(process.cpus)}")
    if few < _BUSY_THREADS * (ranks if shared else 1):
        yield _crowded(process, cpus, launch, ranks, one_rank=not shared, evidence=allowed)
    if job.backend == "nccl" and isinstance(gpus, Gpus):
        yield from _far(process, gpus, shared, allowed)


def _crowded(
    process: Process, cpus: Cpus, launch: Launch, ranks: int, *, one_rank: bool, evidence: Evidence
) -> Finding:
    count = len(process.cpus)
    whose = "one rank" if one_rank else plural(ranks, "rank")
    message = f"{count} of {len(cpus.online)} CPUs for {whose}, because of the way it was launched"
    ranked = one_rank and launch.rank is not None and launch.kind != "options"
    subject = f"rank {launch.rank}" if ranked else "processors"
    if set(cpus.online) <= set(process.cpus):
        remedy = f"{NOTHING_TO_SET}: start fewer ranks on such a machine, or use one with more processors."
        return note(subject, f"{message}; this machine has no more", evidence=evidence, remedy=remedy)
    if one_rank and launch.local_world_size == 1:  # the doctor, not a rank: it may have been started otherwise
        return note(subject, f"{message}; ranks started this way get no more", evidence=evidence)
    if launch.kind == "single" and count >= ranks:  # a shell: how the job will be started is not known
        return note(subject, f"{message}; each rank keeps about {_BUSY_THREADS} threads busy", evidence=evidence)
    tell = fail if launch.kind == "torchrun" and count < ranks else warn
    return tell(subject, message, **JOB, evidence=evidence)


def _far(process: Process, gpus: Gpus, shared: bool, evidence: Evidence) -> Iterator[Finding]:
    """Yield GPUs that none of the processors is near to. A process of its own rank may use any one of them."""
    alive = [gpu for gpu in gpus.all if not gpu.lost]
    known = {gpu.index: gpu.cpus for gpu in alive if isinstance(gpu.cpus, tuple) and gpu.cpus}
    far = [index for index, near in known.items() if not set(near) & set(process.cpus)]
    if shared or len(far) == len(known):
        for index in far:
            message = f"is local to CPUs {fold_numbers(known[index])}, but this process may not run on any of them"
            yield warn(f"GPU{index}", message, **JOB, evidence=evidence)
    unknown = [f"GPU{gpu.index}" for gpu in alive if gpu.index not in known]
    if unknown:
        yield note(", ".join(unknown), "it is unknown which CPUs are near it", evidence="NVML")


@check(
    group=CPU_GROUP,
    slows=True,
    bad=lambda: [(Cgroup(Quota(2.0, "/sys/fs/cgroup", QUIET), None), TORCHRUN, FOUR, Job())],
    good=lambda: [(Cgroup(None, None), TORCHRUN, FOUR, Job())],
    applies=exchanging,
)
def cpu_quota(cgroup: Cgroup, launch: Launch, gpus: Gpus | Absent, job: Job) -> Iterator[Finding]:
    """A control group gives the ranks too little CPU time.

    Right: No control group limits the ranks' CPU time too much.
    Why: when the quota for a period (usually 100 ms) is used up, all threads of the group stop until the next period.
    NCCL's proxy threads stop too, and every rank waits for them (Documentation/admin-guide/cgroup-v2.rst, cpu.max).
    Fix: raise the limit (docker --cpus, resources.limits.cpu in Kubernetes), or remove it and set only a request.
    """
    if isinstance(cgroup.cpu, Absent):
        raise Unlearned(cgroup.cpu.why)
    if cgroup.cpu is None:
        return
    ranks, quota, evidence = ranks_here(launch, gpus, job), cgroup.cpu.cpus, cgroup.cpu.group
    if quota < 2 * ranks:
        message = (
            f"gives {ranks} ranks only {quota:g} CPU{'s' * (quota != 1)}, and each rank polls on at least two threads"
        )
        yield warn("cpu quota", message, **IMAGE, evidence=evidence)
    throttling = cgroup.cpu.throttling
    if isinstance(throttling, Throttling) and throttling.throttled:
        message = f"has throttled its control group in {throttling.throttled} of {throttling.periods} periods so far"
        yield note("cpu quota", message, evidence=f"{evidence}/cpu.stat")


@check(
    group=CPU_GROUP,
    slows=True,
    bad=lambda: [(MemoryPolicy("bind", (1,)), allowed(*LOW), TWO_SOCKETS)],
    good=lambda: [(MemoryPolicy("bind", (0,)), allowed(*LOW), TWO_SOCKETS)],
)
def numa_bind(policy: MemoryPolicy, process: Process, cpus: Cpus) -> Iterator[Finding]:
    """Memory comes from a NUMA node that is far from the CPUs in use.

    Right: Memory comes from the NUMA nodes of the CPUs in use.
    Why: NCCL's host buffers are then on the other side of the link between the sockets, and each byte crosses that link
    twice.
    Fix: bind CPUs and memory together: numactl --cpunodebind=N --membind=N, or srun --mem-bind=local.
    """
    allowed_nodes = set(process.memory_nodes) or {node.id for node in cpus.numa}
    wanted = allowed_nodes & set(policy.nodes) if policy.nodes else allowed_nodes
    here = {node.id for node in cpus.numa if set(node.cpus) & set(process.cpus)}
    if not here or not wanted or any(_nearest(cpus, node) & here for node in wanted):
        return
    nodes, own = (", ".join(map(str, sorted(group))) for group in (wanted, here))
    message = f"memory comes from NUMA node {nodes}, but the CPUs are on node {own}"
    allowed = (seen("/proc/self/numa_maps", f"policy {policy.mode}"), seen("/proc/self/status", "Mems_allowed_list"))
    yield warn("NUMA", message, **JOB, evidence=allowed)


def _nearest(cpus: Cpus, wanted: int) -> set[int]:
    """Return the nodes with processors that are nearest to a node's memory: itself, if it has some."""
    node = next((node for node in cpus.numa if node.id == wanted), None)
    if node is None or len(node.distances) != len(cpus.numa):  # not online, or no distances: it is not known to be far
        return {other.id for other in cpus.numa}
    away = {other.id: far for other, far in zip(cpus.numa, node.distances, strict=True) if other.cpus}
    return {other for other, far in away.items() if far == min(away.values())}


@check(
    group=CPU_GROUP,
    slows=True,
    bad=lambda: [(Scaling("acpi-cpufreq", "powersave"),)],
    good=lambda: [(Scaling("acpi-cpufreq", "schedutil"),)],
    applies=sets_its_clock,
)
def governor(scaling: Scaling) -> Iterator[Finding]:
    """The governor keeps the CPUs at their lowest clock.

    Right: The governor does not keep the CPUs at their lowest clock.
    Why: NCCL's proxy threads post every network transfer, so small messages slow down by the ratio of the clocks.
    "powersave" adapts to the load only with intel_pstate and amd-pstate in active mode
    (Documentation/admin-guide/pm/intel_pstate.rst).
    Fix: run `cpupower frequency-set -g performance`, or use a tuned profile that sets it at boot.
    """
    if scaling.governor != "powersave":
        return
    evidence = f"{POLICY}/scaling_governor"
    if scaling.driver in _SAFE_POWERSAVE:
        message = f"powersave of {scaling.driver} adapts to the load; the governor performance is faster"
        yield note("governor", message, evidence=evidence)
    else:
        message = f"powersave of {scaling.driver} keeps the CPUs at their lowest clock"
        yield warn("governor", message, **IMAGE, evidence=evidence)
