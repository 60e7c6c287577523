"""Processors: which a rank may use, how much of their time, how fast they run, and where its memory lies."""

from collections.abc import Iterator

from ncclprobe.checks.host import exchanging, ranks_here
from ncclprobe.errors import Unlearned
from ncclprobe.facts.cgroup import Cgroup, Quota, Throttling
from ncclprobe.facts.cpu import POLICY, Cpus, NumaNode, Scaling
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.memory import MemoryPolicy
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.process import Process, ResourceLimit
from ncclprobe.model.findings import NOTHING_TO_SET, Evidence, Finding, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job

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
    return Process(limit, limit, cpus, memory_nodes, frozenset(), True, {})


@applies
def sets_its_clock(scaling: Scaling) -> bool:
    """where the kernel sets the clock of the processors."""
    return bool(scaling.governor)


@check(
    slows=True,
    bad=lambda: [(allowed(0), TWO_SOCKETS, FOUR, SRUN, Job())],
    good=lambda: [(allowed(*range(16)), TWO_SOCKETS, FOUR, SRUN, Job())],
    required=True,
    applies=exchanging,
)
def affinity(process: Process, cpus: Cpus, gpus: Gpus | Absent, launch: Launch, job: Job) -> Iterator[Finding]:
    """Ranks may use too few processors, or none near their GPU.

    Right: Ranks may use enough processors, near their GPUs.
    Why: a rank keeps about four threads busy: its own, autograd's, and NCCL's two proxies (src/proxy.cc). Crowded onto
    a core or two they wait for each other, which has cost a factor of 30 (Primus; nccl#1017). Far from the GPU, every
    copy crosses between the sockets.
    Fix: srun --cpus-per-task=N (srun does not take it over from sbatch since Slurm 22.05), mpirun --bind-to none, a
    container without a narrow --cpuset-cpus; torchrun's ranks share what torchrun was given.
    """
    ranks, few = ranks_here(launch, gpus, job), len(process.cpus)
    shared = launch.kind in _SHARED_MASK
    allowed = seen("/proc/self/status", f"Cpus_allowed_list: {_listed(process.cpus)}")
    if few < _BUSY_THREADS * (ranks if shared else 1):
        yield _crowded(process, cpus, launch, ranks, one_rank=not shared, evidence=allowed)
    if job.backend == "nccl" and isinstance(gpus, Gpus):
        yield from _far(process, gpus, shared, allowed)


def _crowded(
    process: Process, cpus: Cpus, launch: Launch, ranks: int, *, one_rank: bool, evidence: Evidence
) -> Finding:
    count = len(process.cpus)
    message = f"{count} of {len(cpus.online)} for {'one rank' if one_rank else f'{ranks} ranks'}, as this was started"
    ranked = one_rank and launch.rank is not None and launch.kind != "options"
    subject = f"rank {launch.rank}" if ranked else "processors"
    if set(cpus.online) <= set(process.cpus):
        remedy = f"{NOTHING_TO_SET}: start fewer ranks on such a machine, or take one with more processors."
        return note(subject, f"{message}: this machine has no more", evidence=evidence, remedy=remedy)
    if one_rank and launch.local_world_size == 1:  # the doctor, not a rank: it may have been started otherwise
        return note(subject, f"{message}; ranks that are started this way get no more", evidence=evidence)
    if launch.kind == "single" and count >= ranks:  # a shell: how the job will be started is not known
        return note(subject, f"{message}; ranks keep about {_BUSY_THREADS} threads busy each", evidence=evidence)
    tell = fail if launch.kind == "torchrun" and count < ranks else warn
    return tell(subject, message, blame="job", action="fix-job", evidence=evidence)


def _far(process: Process, gpus: Gpus, shared: bool, evidence: Evidence) -> Iterator[Finding]:
    """Yield GPUs that none of the processors is near to. A process of its own rank may use any one of them."""
    alive = [gpu for gpu in gpus.all if not gpu.lost]
    known = {gpu.index: gpu.cpus for gpu in alive if isinstance(gpu.cpus, tuple) and gpu.cpus}
    far = [index for index, near in known.items() if not set(near) & set(process.cpus)]
    if far and (shared or len(far) == len(known)):
        for index in far:
            message = f"is near processors {_listed(known[index])}, of which this process may use none"
            yield warn(f"GPU{index}", message, blame="job", action="fix-job", evidence=evidence)
    unknown = [f"GPU{gpu.index}" for gpu in alive if gpu.index not in known]
    if unknown:
        yield note(", ".join(unknown), "which processors are near is not known", evidence="NVML")


def _listed(cpus: tuple[int, ...]) -> str:
    """Return processors in the kernel's list format."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@check(
    slows=True,
    bad=lambda: [(Cgroup(Quota(2.0, "/sys/fs/cgroup", QUIET), None), TORCHRUN, FOUR, Job())],
    good=lambda: [(Cgroup(None, None), TORCHRUN, FOUR, Job())],
    applies=exchanging,
)
def cpu_quota(cgroup: Cgroup, launch: Launch, gpus: Gpus | Absent, job: Job) -> Iterator[Finding]:
    """A control group gives the ranks too little processor time.

    Right: No control group limits the ranks' processor time too much.
    Why: when the quota of a period (usually 100 ms) is used up, all threads of the group stand still until the next
    one: NCCL's proxy threads too, and with them every rank (Documentation/admin-guide/cgroup-v2.rst, cpu.max).
    Fix: raise the limit (docker --cpus, resources.limits.cpu in Kubernetes), or remove it and keep the request.
    """
    if isinstance(cgroup.cpu, Absent):
        raise Unlearned(cgroup.cpu.why)
    if cgroup.cpu is None:
        return
    ranks, quota, evidence = ranks_here(launch, gpus, job), cgroup.cpu.cpus, cgroup.cpu.group
    if quota < 2 * ranks:
        message = f"allows {quota:g} processors' time to {ranks} ranks, of which each polls on two threads at least"
        yield warn("cpu quota", message, blame="image", action="fix-image", evidence=evidence)
    throttling = cgroup.cpu.throttling
    if isinstance(throttling, Throttling) and throttling.throttled:
        message = f"has throttled its group in {throttling.throttled} of {throttling.periods} periods so far"
        yield note("cpu quota", message, evidence=f"{evidence}/cpu.stat")


@check(
    slows=True,
    bad=lambda: [(MemoryPolicy("bind", (1,)), allowed(*LOW), TWO_SOCKETS)],
    good=lambda: [(MemoryPolicy("bind", (0,)), allowed(*LOW), TWO_SOCKETS)],
)
def numa_bind(policy: MemoryPolicy, process: Process, cpus: Cpus) -> Iterator[Finding]:
    """Memory comes from a NUMA node that is far from the processors in use.

    Right: Memory comes from the NUMA nodes of the processors in use.
    Why: NCCL's host buffers then lie behind the link between the sockets, and each of its bytes crosses it twice.
    Fix: bind processors and memory together: numactl --cpunodebind=N --membind=N, or srun --mem-bind=local.
    """
    allowed_nodes = set(process.memory_nodes) or {node.id for node in cpus.numa}
    wanted = allowed_nodes & set(policy.nodes) if policy.nodes else allowed_nodes
    here = {node.id for node in cpus.numa if set(node.cpus) & set(process.cpus)}
    if not here or not wanted or any(_nearest(cpus, node) & here for node in wanted):
        return
    nodes, own = (", ".join(map(str, sorted(group))) for group in (wanted, here))
    message = f"memory comes from NUMA node {nodes}, the processors are on node {own}"
    allowed = (seen("/proc/self/numa_maps", f"policy {policy.mode}"), seen("/proc/self/status", "Mems_allowed_list"))
    yield warn("NUMA", message, blame="job", action="fix-job", evidence=allowed)


def _nearest(cpus: Cpus, wanted: int) -> set[int]:
    """Return the nodes with processors that are nearest to a node's memory: itself, where it has some."""
    node = next((node for node in cpus.numa if node.id == wanted), None)
    if node is None or len(node.distances) != len(cpus.numa):  # not online, or no distances: it is not known to be far
        return {other.id for other in cpus.numa}
    away = {other.id: far for other, far in zip(cpus.numa, node.distances, strict=True) if other.cpus}
    return {other for other, far in away.items() if far == min(away.values())}


@check(
    slows=True,
    bad=lambda: [(Scaling("acpi-cpufreq", "powersave"),)],
    good=lambda: [(Scaling("acpi-cpufreq", "schedutil"),)],
    applies=sets_its_clock,
)
def governor(scaling: Scaling) -> Iterator[Finding]:
    """The governor keeps the processors at their lowest clock.

    Right: The governor does not keep the processors at their lowest clock.
    Why: NCCL's proxy threads post every network transfer, so small messages take longer by the ratio of the clocks.
    Only with intel_pstate and amd-pstate in active mode does "powersave" adapt to the load
    (Documentation/admin-guide/pm/intel_pstate.rst).
    Fix: `cpupower frequency-set -g performance`, or a tuned profile that does it at boot.
    """
    if scaling.governor != "powersave":
        return
    evidence = f"{POLICY}/scaling_governor"
    if scaling.driver in _SAFE_POWERSAVE:
        message = f"powersave of {scaling.driver} adapts to the load; performance is faster"
        yield note("governor", message, evidence=evidence)
    else:
        message = f"powersave of {scaling.driver} keeps the lowest clock"
        yield warn("governor", message, blame="image", action="fix-image", evidence=evidence)
