"""What the checks of the node itself must object to, and what they must accept."""

from ncclprobe.checks.host import (
    DOCKER,
    EIGHT,
    FOUR,
    FREE,
    GIB,
    HIGH,
    LARGE,
    LOW,
    MIB,
    NCCL_2_21,
    NCCL_2_27,
    NEW_DRIVER,
    NIC,
    OFF,
    PLAIN,
    SMALL,
    SRUN,
    STALE,
    TORCHRUN,
    TWO_NODES,
    TWO_SOCKETS,
    allowed,
    user,
)
from ncclprobe.facts.cgroup import Cgroup, MemoryLimit, PidsLimit, Quota, Throttling
from ncclprobe.facts.cpu import Cpus, NumaNode, Scaling
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.memory import Memory, MemoryPolicy
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.process import JobUser, Memlock, OpenFiles, Process, ResourceLimit, Segment, SharedMemory
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

ONE = Gpus((Gpu(0, "NVIDIA H200"),), driver="570.86.15", cuda=(12, 8))
ROOMY = SharedMemory(64 * GIB, 60 * GIB)
TINY = Cpus((0, 1), "Intel Xeon", (NumaNode(0, (0, 1), (10,)),))
HIDDEN = Gpus(tuple(Gpu(n, "NVIDIA H200") for n in range(4)), "570.86.15", (12, 8))
_NO_GPUS = Absent("no NVIDIA driver here")
_SOME_NEAR = Gpus((FOUR.all[2], Gpu(3, "NVIDIA H200", cpus=()), Gpu(4, lost="GPU is lost")), "570.86.15", (12, 8))
_FOUR_RANKS = Launch(local_world_size=4)
ONE_PER_NODE = Launch("slurm", 0, 2, 0, 1, 2, 0)
BUSY = Throttling(1000, 400, 12.0)
ROOTS = OpenFiles(1048576, 1048576)
LOW_USER, HIGH_USER = (
    JobUser("1000", {"RLIMIT_NOFILE": (files, "SLURM_RLIMIT_NOFILE"), "RLIMIT_MEMLOCK": (locked, "limits.conf:3")})
    for files, locked in ((ResourceLimit(512, 512), ResourceLimit(65536, 65536)), (ResourceLimit(None, None),) * 2)
)


def _pids(most: int, used: int = 0) -> Cgroup:
    return Cgroup(None, None, PidsLimit(most, "/sys/fs/cgroup", used))


def _few(uid: int, capabilities: frozenset[str], first: bool = True) -> Process:
    """Return a process with a low RLIMIT_NPROC."""
    return replace(
        user(), nproc=ResourceLimit(200, 200), uid=uid, capabilities=capabilities, first_user_namespace=first
    )


_SWAPPED = Memory(64 * GIB, 32 * GIB, 8 * GIB, 1 * GIB)
_FULL = Cgroup(None, MemoryLimit(64 * GIB, "/sys/fs/cgroup", 64 * GIB))
_ROOM = Memory(256 * GIB, 200 * GIB)
_threads = rows_of(process=user(), launch=Launch(), cgroup=FREE, gpus=EIGHT, job=Job())
_shm = rows_of(memory=SMALL, gpus=NEW_DRIVER, launch=Launch(), software=NCCL_2_21, settings=PLAIN, job=Job())
_memlock = rows_of(memlock=Memlock(65536), fabric=NIC, process=user(), user=JobUser(), named=NamedMachine())
_NOT_SHOWN, _TWO_RANKS = Absent("not in the text"), Launch(local_world_size=2)
_OF_RDMA = (*map(NamedMachine, ("p5.48xlarge", "DGX H100", "a3-ultragpu-8g")), NamedMachine(rdma=True))
_FEW = (("FAIL", 16, 0), ("FAIL", 4, 2), ("WARN", 17, 0), ("WARN", 28, 0), ("WARN", 7, 2))
_NO_NVML = Absent("no NVML")
CASES: Cases = {
    "host.limits/nofile": [
        ("WARN image: RLIMIT_NOFILE", OpenFiles(512, 512), Launch(), Job(), JobUser()),
        ("WARN image: RLIMIT_NOFILE", OpenFiles(64, 4096), Launch(), Job(local=True), JobUser()),
        ("WARN image: RLIMIT_NOFILE", ROOTS, Launch(), Job(local=True), LOW_USER),
        ("WARN image: RLIMIT_NOFILE", OpenFiles(1024, 1024), LARGE, Job(), JobUser()),
        ("NOTE unknown: RLIMIT_NOFILE", OpenFiles(1024, None), LARGE, Job(), JobUser()),
        (OpenFiles(65536, 65536), LARGE, Job(), JobUser()), (OpenFiles(1024, 1048576), LARGE, Job(), JobUser()),
        (OpenFiles(1024, 4096), LARGE, Job(local=True), JobUser()), (OpenFiles(1024, 1024), Launch(), Job(), JobUser()),
        (OpenFiles(64, 64), Launch(), Job(), HIGH_USER), (OpenFiles(64, 64), Launch(), Job(), JobUser("1000")),
    ],
    "host.limits/threads": [
        _threads("WARN image: pids.max", Launch(visible_gpus="mig-0a/1/0"), _pids(1024)),  # a part of one of eight GPUs
        _threads("WARN image: pids.max", Launch(visible_gpus="0,1"), _pids(511)),
        _threads(replace(user(), nproc=ResourceLimit(None, None))), _threads(_few(1000, frozenset({"sys_resource"}))),
        _threads("FAIL image: pids.max", _pids(256, used=14)), _threads("WARN image: pids.max", _pids(1024)),
        _threads("FAIL image: pids.max", Launch("mpi", 3, 16, visible_gpus="3"), _pids(300, used=100)),
        _threads("FAIL image: RLIMIT_NPROC", _few(1000, frozenset())),
        _threads("FAIL image: RLIMIT_NPROC", _few(0, frozenset({"sys_admin"}), first=False)),
        _threads(_few(0, frozenset())),  # root in docker
        _threads(_few(1000, frozenset({"sys_admin"}))), _threads(Launch(visible_gpus="3"), _pids(300, used=20)),
        _threads(_pids(1024), gpus=_NO_NVML), _threads(_pids(1024), Job("gloo")), _threads(LARGE, _pids(4096)),
        _threads("UNKNOWN: /sys is hidden", Cgroup(None, None, Absent("/sys is hidden"))),
    ],
    "host.shm/shm": [
        _shm(SharedMemory(GIB, GIB), EIGHT), _shm("WARN image: /dev/shm", SharedMemory(800 * MIB, 800 * MIB), EIGHT),
        *(_shm("WARN image: /dev/shm", **{name: Absent("hidden")}) for name in ("software", "launch")), _shm(NCCL_2_27),
        _shm("UNKNOWN: hidden", SharedMemory(8 * GIB, 8 * GIB), software=Absent("hidden")), _shm(ROOMY, EIGHT),
        _shm("UNKNOWN: hidden", SharedMemory(8 * GIB, 8 * GIB), launch=Absent("hidden")), _shm(ONE_PER_NODE, NCCL_2_27),
        _shm("UNKNOWN: whether NCCL avoids it depends on", NCCL_2_27, _FOUR_RANKS, gpus=_NO_GPUS), _shm(ONE),
        _shm("FAIL image: /dev/shm", Launch("torchrun", 0, 8, 0, 8, 1), gpus=_NO_NVML),
        _shm("FAIL image: /dev/shm", SharedMemory(4 * MIB, 4 * MIB), ONE_PER_NODE),
        _shm("FAIL image: /dev/shm", SharedMemory(250 * MIB, 250 * MIB), TWO_NODES, NCCL_2_27),
        _shm(SharedMemory(253 * MIB, 253 * MIB), TWO_NODES, NCCL_2_27),
        _shm(ROOMY, Launch("torchrun", 0, 8, 0, 8, 1), NCCL_2_27, gpus=_NO_NVML),
    ],
    "host.shm/shm-stale": [
        ("UNKNOWN: could not be listed", SharedMemory(10 * GIB, 9 * GIB - 1)), (SharedMemory(10 * GIB, 9 * GIB),),
        ("NOTE unknown: /dev/shm", SharedMemory(8 * GIB, 7 * GIB, segments=(STALE,))),
        (SharedMemory(8 * GIB, 100 * MIB, segments=(Segment("nccl-Xy", 9 * MIB, 4.0, held=True),)),),
        (SharedMemory(8 * GIB, 100 * MIB, segments=(Segment("nccl-Xy", 9 * MIB, 86400.0, held=None),)),),
        (SharedMemory(8 * GIB, 100 * MIB, segments=()),),
    ],
    "host.limits/memlock": [
        *(_memlock("FAIL image: RLIMIT_MEMLOCK", each, fabric=_NOT_SHOWN) for each in _OF_RDMA),
        *(_memlock("WARN image: RLIMIT_MEMLOCK", NamedMachine(each), fabric=_NOT_SHOWN)
            for each in ("", "a3-highgpu-8g")),
        _memlock("FAIL image: RLIMIT_MEMLOCK", Memlock(None, exempt=True), LOW_USER),  # ours is lifted, and not theirs
        _memlock("WARN image: RLIMIT_MEMLOCK", Memlock(1 * GIB)),
        _memlock("FAIL image: RLIMIT_MEMLOCK", Memlock(None), LOW_USER),
        _memlock("FAIL image: RLIMIT_MEMLOCK", user("ipc_lock", first_user_namespace=False)),
        _memlock(Memlock(65536, exempt=True), user("ipc_lock")), _memlock(HIGH_USER), _memlock(JobUser("1000")),
    ],
    "host.shm/caps": [
        ("WARN image: CAP_SYS_NICE", DOCKER, user(), SMALL, NEW_DRIVER, _TWO_RANKS, NCCL_2_27, PLAIN, Job()),
        (DOCKER, user(), SMALL, NEW_DRIVER, _TWO_RANKS, NCCL_2_27, OFF, Job()),
        (DOCKER, user("sys_nice"), SMALL, NEW_DRIVER, Launch(), NCCL_2_27, PLAIN, Job()),
        (DOCKER, user(), ROOMY, NEW_DRIVER, Launch(), NCCL_2_27, PLAIN, Job()),
        (DOCKER, user(), SMALL, ONE, Launch(), NCCL_2_27, PLAIN, Job()),
    ],
    "host.oom": [
        (_ROOM, Cgroup(None, MemoryLimit(64 * GIB, "/sys/fs/cgroup", Absent("denied"))), Launch(), EIGHT, Job()),
        ("WARN image: memory", _ROOM, Cgroup(None, MemoryLimit(GIB, "/sys/fs/cgroup", 0)), Launch(), EIGHT, Job()),
        ("WARN image: memory", _ROOM, Cgroup(None, MemoryLimit(8 * GIB, "/sys/fs/cgroup", 0)), LARGE, _NO_NVML, Job()),
        ("NOTE unknown: swap", _SWAPPED, Absent("not mounted here"), Launch(), EIGHT, Job()),
        ("NOTE unknown: memory", replace(_SWAPPED, swap_free_bytes=8 * GIB), _FULL, Launch(), EIGHT, Job()),
        (_ROOM, Cgroup(None, MemoryLimit(64 * GIB, "/sys/fs/cgroup", 63 * GIB)), Launch(), EIGHT, Job()),
        (_ROOM, Cgroup(None, MemoryLimit(GIB, "/sys/fs/cgroup", 0)), Launch(), EIGHT, Job("gloo")),
        (Memory(256 * GIB, 200 * GIB, 8 * GIB, 1 * GIB), Absent("not mounted here"), Launch(), EIGHT, Job()),
    ],
    "host.cpu/affinity": [
        ("WARN job: processors", allowed(0, 1, 2), TWO_SOCKETS, _NO_GPUS, Launch("torchrun", 0, 1, 0, 1, 1, 0), Job()),
        ("WARN job: processors", allowed(0, 1, 2), TWO_SOCKETS, _NO_GPUS, replace(SRUN, kind="options"), Job()),
        ("FAIL job: processors; WARN job: GPU2, GPU3", allowed(0, 1), TWO_SOCKETS, FOUR, TORCHRUN, Job()),
        ("WARN job: processors, GPU2, GPU3", allowed(*range(8)), TWO_SOCKETS, FOUR, TORCHRUN, Job()),
        ("WARN job: GPU2, GPU3", allowed(*LOW), TWO_SOCKETS, FOUR, Launch(), Job()),
        ("WARN job: GPU0, GPU1", allowed(*HIGH), TWO_SOCKETS, replace(FOUR, all=FOUR.all[:2]), SRUN, Job()),
        ("WARN job: GPU2; NOTE unknown: GPU3", allowed(*LOW), TWO_SOCKETS, _SOME_NEAR, TORCHRUN, Job()),
        ("FAIL job: processors", allowed(0, 1, 2), TWO_SOCKETS, _NO_GPUS, TORCHRUN, Job()),
        ("WARN job: processors", allowed(0, 1, 2, 3), TWO_SOCKETS, _NO_GPUS, TORCHRUN, Job()),
        ("WARN job: rank 0", allowed(0, 1, 2), TWO_SOCKETS, _NO_GPUS, SRUN, Job()),
        ("WARN job: processors", allowed(0, 1, 2), TWO_SOCKETS, _NO_GPUS, _FOUR_RANKS, Job()),
        ("FAIL job: processors", allowed(0, 1, 5), TWO_SOCKETS, _NO_GPUS, TORCHRUN, Job()),
        # An interactive allocation: who knows how the job will be started.
        ("NOTE unknown: processors", allowed(0, 1, 2, 3), TWO_SOCKETS, _NO_GPUS, _FOUR_RANKS, Job()),
        ("NOTE unknown: rank 0", allowed(0), TWO_SOCKETS, FOUR, Launch("slurm", 0, 1, 0, 1, 1, 0), Job()),
        ("NOTE unknown: processors", allowed(0, 1), TINY, HIDDEN, TORCHRUN, Job("gloo")),
        (allowed(0, 1, 2, 3), TWO_SOCKETS, _NO_GPUS, SRUN, Job()), (allowed(*HIGH), TWO_SOCKETS, FOUR, SRUN, Job()),
        (allowed(*LOW, *HIGH), TWO_SOCKETS, FOUR, TORCHRUN, Job()), (allowed(0, 1), TINY, HIDDEN, TORCHRUN, Job()),
        (allowed(0, 1, 32, 33), TWO_SOCKETS, FOUR, Launch(), Job()),
        (allowed(0), TWO_SOCKETS, FOUR, ONE_PER_NODE, Job()),
        (allowed(*range(8)), TWO_SOCKETS, _NO_NVML, Launch("torchrun", 0, 2, 0, 2, 1, 0), Job("gloo")),
    ],
    "host.cpu/cpu-quota": [
        ("NOTE unknown: cpu quota", Cgroup(Quota(64.0, "/sys/fs/cgroup", BUSY), None), TORCHRUN, FOUR, Job()),
        (Cgroup(Quota(16.0, "/sys/fs/cgroup", BUSY), None), TORCHRUN, FOUR, Job()),
    ],
    "host.cpu/numa-bind": [
        ("WARN job: NUMA", MemoryPolicy(), allowed(*LOW, memory_nodes=(1,)), TWO_SOCKETS),
        (MemoryPolicy(), allowed(*LOW), TWO_SOCKETS),
        (MemoryPolicy("bind", (7,)), allowed(*LOW), TWO_SOCKETS),  # not allowed: the kernel refuses that
        (MemoryPolicy("local"), allowed(*LOW), TWO_SOCKETS),
        (MemoryPolicy(), allowed(*LOW, memory_nodes=()), TWO_SOCKETS),
        (MemoryPolicy("bind", (1,)), allowed(0), Cpus((0,), "x", ())),  # a kernel without NUMA
    ],
    "host.cpu/governor": [
        ("WARN image: governor", Scaling("intel_cpufreq", "powersave")),
        *(("NOTE unknown: governor", Scaling(f"amd{dash}pstate{dash}epp", "powersave")) for dash in "-_"),
        ("NOTE unknown: governor", Scaling("intel_pstate", "powersave")), (Scaling("acpi-cpufreq", "ondemand"),),
    ],
    "host.limits/nics-given": [
        *((f"{how} job: efa", NamedMachine("p5.48xlarge", gpus=gpus, given={"efa": n}), PLAIN)
            for how, n, gpus in _FEW),
        ("FAIL job: efa", NamedMachine("p5.48xlarge", nodes=2, given={"efa": 0}), PLAIN),
        *((NamedMachine("p5.48xlarge", gpus=gpus, given={"efa": n}), PLAIN) for n, gpus in ((29, 0), (8, 2), (0, 0))),
        *((NamedMachine(each, nodes=2, given={"nic": 1}), PLAIN)
            for each in ("a3-highgpu-8g", "a3-megagpu-8g", "none")),
        (NamedMachine("DGX H100", gpus=16, nodes=2, given={"nic": 0}), PLAIN),
    ],
}  # fmt: skip
