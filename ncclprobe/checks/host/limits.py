"""What bites only in larger jobs: open files, threads, and clocks that cannot be compared."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.facts.cgroup import Cgroup, PidsLimit
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.process import Process, ResourceLimit
from ncclprobe.facts.system import TimeSync
from ncclprobe.model.findings import Finding, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from ncclprobe.units import plural

_SMALL_WORLD = 64
_FILES_PER_RANK = 16  # 1024 files have been too few for more than 64 ranks

TWO_NODES = Launch("torchrun", 0, 16, 0, 8, 2, 0)
LARGE = Launch("torchrun", 0, 512, 0, 8, 64, 0)


def files(soft: int | None, hard: int | None) -> Process:
    """Return a process with this limit on open files, for examples."""
    return Process(ResourceLimit(soft, hard), ResourceLimit(None, None), (0, 1), (0,), frozenset(), True, {})


@applies
def large_job(launch: Launch, job: Job) -> bool:
    """in jobs of more than 64 ranks, and not with --local."""
    return not job.local and (launch.world_size or 1) > _SMALL_WORLD


@applies
def several_nodes(launch: Launch, job: Job) -> bool:
    """in jobs of several nodes, and not with --local."""
    return not job.local and launch.several_nodes


@check(
    bad=lambda: [(files(1024, 4096), LARGE)],
    good=lambda: [(files(None, None), LARGE)],
    applies=large_job,
)
def nofile(process: Process, launch: Launch) -> Iterator[Finding]:
    """The limit on open files is too low for a job of this size.

    Right: The limit on open files is high enough for a job of this size.
    Why: each connection of the bootstrap, of NET/Socket and of gloo is an open file. NCCL raises the limit itself, but
    only in the process whose thread gathers all ranks, and to the hard limit at most (setFilesLimit in
    src/bootstrap.cc, v2.30.7); the others end in "Too many open files".
    Fix: LimitNOFILE=1048576 in the unit of slurmd or containerd, --ulimit nofile=1048576 for docker, ulimit -n before
    the job.
    """
    soft, hard = process.nofile
    needed = _FILES_PER_RANK * (launch.world_size or 1)
    if soft is None or soft >= needed:
        return
    message = f"soft limit {soft}, hard limit {hard or 'none'}; {launch.world_size} ranks may need {needed}"
    evidence = "getrlimit(RLIMIT_NOFILE)"
    if hard is None or hard >= needed:
        yield note("RLIMIT_NOFILE", f"{message}; any process may raise its own", evidence=evidence)
    else:
        yield warn("RLIMIT_NOFILE", message, blame="image", action="fix-image", evidence=evidence)


_THREADS_PER_RANK = 256
"""Of torch with NCCL on a GPU: proxies, watchdogs, autograd, OpenMP and data loading make some 150 to 250."""
_FREE = Cgroup(None, None)


@check(
    since="0.2",
    bad=lambda: [(replace(files(65536, 65536), nproc=ResourceLimit(1024, 1024)), LARGE, _FREE)],
    good=lambda: [(files(65536, 65536), LARGE, _FREE)],
)
def threads(process: Process, launch: Launch, cgroup: Cgroup | Absent) -> Iterator[Finding]:
    """The limit on processes and threads is too low for the ranks of this node.

    Right: The ranks of this node may start as many threads as they need.
    Why: a thread that cannot be started ends its rank, in NCCL's proxy ("Resource temporarily unavailable"), in
    OpenBLAS or in a data loader, minutes into the job. RLIMIT_NPROC counts all threads of the user on the host and does
    not hold for root; pids.max counts those of the container or the job.
    Fix: ulimit -u unlimited, or LimitNPROC and TasksMax=infinity in the unit of slurmd or containerd; --pids-limit=-1
    for docker, podPidsLimit of the kubelet.
    """
    ranks = launch.local_world_size or 1
    needed = _THREADS_PER_RANK * ranks
    blamed: dict[str, Any] = {"blame": "image", "action": "fix-image"}
    soft, free = process.nproc.soft, process.first_user_namespace and "sys_resource" in process.capabilities
    if soft is not None and soft < needed and not free:
        message = f"soft limit {soft}; {plural(ranks, 'rank')} may need {needed} threads"
        yield warn("RLIMIT_NPROC", message, evidence="getrlimit(RLIMIT_NPROC)", **blamed)
    limit = cgroup.pids if isinstance(cgroup, Cgroup) else None
    if isinstance(limit, PidsLimit):
        left = limit.most - (0 if isinstance(limit.used, Absent) else limit.used)
        if left < needed:
            message = f"{left} of {limit.most} are left; {plural(ranks, 'rank')} may need {needed} threads"
            yield warn("pids.max", message, evidence=seen(f"{limit.group}/pids.max", str(limit.most)), **blamed)


@check(bad=lambda: [(TimeSync(False),)], good=lambda: [(TimeSync(True),)], applies=several_nodes)
def timesync(sync: TimeSync) -> Iterator[Finding]:
    """No service synchronises this node's clock.

    Right: This node's clock is synchronised.
    Why: no NCCL job breaks by a wrong clock; but logs of several nodes, and timeouts that are set by wall clock, can
    then not be compared, and that is how a hang is found.
    Fix: `systemctl enable --now chronyd` (or systemd-timesyncd); `chronyc tracking` shows the offset.
    """
    if not sync.synchronized:
        message = "no service synchronises the kernel's clock"
        yield warn(
            "clock", message, blame="image", action="fix-image", evidence=seen("timedatectl", "NTPSynchronized=no")
        )
