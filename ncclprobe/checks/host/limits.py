"""What bites only in larger jobs: open files, and clocks that cannot be compared."""

from collections.abc import Iterator

from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.process import Process, ResourceLimit
from ncclprobe.facts.system import TimeSync
from ncclprobe.model.findings import Finding, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Job

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
    good=lambda: [(files(65536, 65536), LARGE), (files(None, None), LARGE), (files(1024, 1048576), LARGE)],
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
