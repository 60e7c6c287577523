"""What a host lets a job have: the cases in which a setup only looks wrong, and those that name the wrong thing."""

from typing import Any

from ncclprobe.checks import host
from ncclprobe.checks.host import (
    EIGHT,
    FOUR,
    GIB,
    HIGH,
    LOW,
    MIB,
    NCCL_2_27,
    NEW_DRIVER,
    NIC,
    PLAIN,
    SMALL,
    SRUN,
    TORCHRUN,
    TWO_SOCKETS,
    allowed,
    ranks_here,
    user,
)
from ncclprobe.engine.judge import judge as judge_all
from ncclprobe.facts.cgroup import Cgroup, Quota
from ncclprobe.facts.cpu import Cpus, Scaling
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import TimeSync
from ncclprobe.facts.memory import Memory, MemoryPolicy
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.process import Container, JobUser, Memlock, OpenFiles, Process, SharedMemory
from ncclprobe.model.findings import Finding, Severity, Status, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases.host import BUSY, HIDDEN, TINY
from tests.each_row import each_row

NO_GPUS = Absent("no NVIDIA driver here")


def say(check: Check, *facts: Any) -> list[tuple[str, str]]:
    return [(finding.severity.value, finding.subject) for finding in check.run(*facts)]


def judge(check: Check, *facts: Any, job: Job | None = None) -> Verdict:
    (verdict,) = judge_all([Snapshot("n", {type(fact): fact for fact in facts})], [check], job or Job())
    return verdict


@each_row(
    ("launch", "gpus", "job", "ranks"),
    [
        (TORCHRUN, NO_GPUS, Job(), 4),
        (Launch(), FOUR, Job(), 4),
        (Launch(visible_gpus="1,3"), FOUR, Job(), 2),
        (Launch(visible_gpus=""), FOUR, Job(), 1),
        (Launch(visible_gpus="MIG-1,MIG-2"), FOUR, Job(), 4),
        (replace(TORCHRUN, visible_gpus="1"), FOUR, Job(), 4),
        (Launch(), FOUR, Job("gloo"), 1),
        (Launch(), NO_GPUS, Job(), 1),
    ],
)
def test_the_ranks_of_a_node_are_the_launchers_or_one_per_gpu(
    launch: Launch, gpus: Gpus | Absent, job: Job, ranks: int
) -> None:
    assert ranks_here(launch, gpus, job) == ranks


def test_one_process_alone_needs_neither_processors_nor_quota() -> None:
    narrow = Cgroup(Quota(0.5, "/sys/fs/cgroup", host.QUIET), None)
    for job in (Job(), Job("gloo")):
        one = Gpus(FOUR.all[:1], "570.86.15", (12, 8))
        assert judge(host.affinity, allowed(0), TWO_SOCKETS, Launch(), one, job=job).status is Status.SKIP
        assert judge(host.cpu_quota, narrow, Launch(), one, job=job).status is Status.SKIP


@each_row(
    ("cpus", "launch", "expected"),
    [
        ((0, 1, 2), TORCHRUN, "fail"),  # fewer processors than ranks
        ((0, 1, 2, 3), TORCHRUN, "warn"),
        ((0, 1, 2), SRUN, "warn"),
        ((0, 1, 2), Launch(), "warn"),
        ((0, 1, 2, 3), Launch(), "note"),  # an interactive allocation: who knows how the job will be started
        ((0, 1, 2, 3), SRUN, None),
    ],
)
def test_how_bad_few_processors_are_depends_on_who_shares_them(
    cpus: tuple[int, ...], launch: Launch, expected: str | None
) -> None:
    found = say(host.affinity, allowed(*cpus), TWO_SOCKETS, NO_GPUS, replace(launch, local_world_size=4), Job())
    assert [severity for severity, _ in found] == ([expected] if expected else [])


def test_the_shell_of_salloc_on_one_core_of_many_is_a_note() -> None:
    shell = Launch("slurm", 0, 1, 0, 1, 1, 0)
    seen = judge(host.affinity, allowed(0), TWO_SOCKETS, FOUR, shell)
    assert [(f.severity.value, f.subject) for f in seen.findings] == [("note", "rank 0")]


def test_a_small_machine_is_not_a_narrow_mask() -> None:
    assert say(host.affinity, allowed(0, 1), TINY, HIDDEN, TORCHRUN, Job("gloo")) == [("note", "processors")]


def test_a_rank_of_its_own_may_use_another_gpu_than_the_first() -> None:
    assert say(host.affinity, allowed(*HIGH), TWO_SOCKETS, FOUR, SRUN, Job()) == []
    near_none = replace(FOUR, all=FOUR.all[:2])
    assert [severity for severity, _ in say(host.affinity, allowed(*HIGH), TWO_SOCKETS, near_none, SRUN, Job())] == [
        "warn",
        "warn",
    ]


def test_gpus_whose_processors_are_not_known_are_named_and_the_others_judged() -> None:
    mixed = Gpus((FOUR.all[2], Gpu(3, "NVIDIA H200", cpus=()), Gpu(4, lost="GPU is lost")), "570.86.15", (12, 8))
    found = say(host.affinity, allowed(*LOW), TWO_SOCKETS, mixed, TORCHRUN, Job())
    assert found == [("warn", "GPU2"), ("note", "GPU3")]


def test_processors_are_listed_as_the_kernel_does() -> None:
    (finding,) = host.affinity.run(allowed(0, 1, 5), TWO_SOCKETS, NO_GPUS, TORCHRUN, Job())
    assert finding.seen.endswith(": 0-1,5")


def test_a_quota_that_cannot_be_seen_is_unknown() -> None:
    seen = judge(host.cpu_quota, Cgroup(Absent("not mounted here"), None), TORCHRUN, FOUR)
    assert (seen.status, seen.required, seen.why) == (Status.UNKNOWN, False, "not mounted here")


def test_a_group_that_was_stopped_is_worth_a_note() -> None:
    busy = Cgroup(Quota(64.0, "/sys/fs/cgroup", BUSY), None)
    assert say(host.cpu_quota, busy, TORCHRUN, FOUR, Job()) == [("note", "cpu quota")]


@each_row(
    ("policy", "process"),
    [
        (MemoryPolicy("bind", (7,)), allowed(*LOW)),  # a node that this process may not use: the kernel refuses that
        (MemoryPolicy("local"), allowed(*LOW)),
        (MemoryPolicy(), allowed(*LOW, memory_nodes=())),
    ],
)
def test_memory_is_far_only_where_that_is_known(policy: MemoryPolicy, process: Process) -> None:
    assert say(host.numa_bind, policy, process, TWO_SOCKETS) == []


def test_a_kernel_without_numa_has_nothing_far_away() -> None:
    assert say(host.numa_bind, MemoryPolicy("bind", (1,)), allowed(0), Cpus((0,), "x", ())) == []


def test_a_machine_that_does_not_set_its_clock_is_not_asked_for_its_governor() -> None:
    assert judge(host.governor, Scaling()).status is Status.SKIP
    assert say(host.governor, Scaling("intel_cpufreq", "powersave")) == [("warn", "governor")]
    assert say(host.governor, Scaling("intel_pstate", "powersave")) == [("note", "governor")]


def test_leftovers_that_could_not_be_looked_for_are_unknown() -> None:
    assert judge(host.shm_stale, SharedMemory(8 * GIB, 8 * GIB)).status is Status.UNKNOWN


def test_leftovers_with_room_to_spare_are_a_note() -> None:
    assert say(host.shm_stale, SharedMemory(8 * GIB, 7 * GIB, segments=(host.STALE,))) == [("note", "/dev/shm")]


def test_memlock_says_when_a_capability_is_held_in_vain() -> None:
    (finding,) = host.memlock.run(Memlock(8 * MIB), NIC, user("ipc_lock", first_user_namespace=False), JobUser())
    assert "does not lift the limit" in finding.message
    (finding,) = host.memlock.run(Memlock(8 * MIB), NIC, Absent("not there"), JobUser())
    assert "does not lift the limit" not in finding.message


def test_memlock_is_for_gpu_jobs_with_rdma() -> None:
    for found in (host.nofile.run(OpenFiles(9, 9), host.LARGE, Job(), JobUser("1000")),
                  host.memlock.run(Memlock(65536), NIC, user(), JobUser("1000"))):  # fmt: skip
        (finding,) = found
        assert (finding.severity, "is unknown for the job's user 1000" in finding.message) == (Severity.NOTE, True)
    assert judge(host.memlock, Memlock(65536), NIC, user(), JobUser(), job=Job("gloo")).status is Status.SKIP
    assert judge(host.memlock, Memlock(65536), Fabric(), user(), JobUser()).status is Status.SKIP


def test_a_failure_of_dev_shm_is_one_finding_and_not_two() -> None:
    facts = (SMALL, EIGHT, Launch(), NCCL_2_27, PLAIN, host.DOCKER, user())
    old, new = (
        judge_all([Snapshot("n", {type(fact): fact for fact in (*facts, gpus)})], [host.shm, host.caps], Job())
        for gpus in (EIGHT, NEW_DRIVER)
    )
    assert [verdict.status for verdict in old] == [Status.FAIL, Status.PASS]
    assert [verdict.status for verdict in new] == [Status.PASS, Status.WARN]


def test_outside_of_containers_nobody_refuses_numa_calls() -> None:
    facts = (Container(), user(), SMALL, NEW_DRIVER, Launch(), NCCL_2_27, PLAIN)
    assert judge(host.caps, *facts).status is Status.SKIP


def test_swap_and_caches_are_no_warning() -> None:
    swapped = Memory(64 * GIB, 32 * GIB, 8 * GIB, 1 * GIB)
    job = (Launch(), EIGHT, Job())
    assert say(host.oom, swapped, Absent("not mounted here"), *job) == [("note", "swap")]
    full = Cgroup(None, host.MemoryLimit(64 * GIB, "/sys/fs/cgroup", 64 * GIB))
    assert say(host.oom, replace(swapped, swap_free_bytes=8 * GIB), full, *job) == [("note", "memory")]


def severities(findings: list[Finding]) -> set[Severity]:
    return {finding.severity for finding in findings}


def test_a_soft_limit_that_anybody_may_raise_is_a_note() -> None:
    assert severities(list(host.nofile.run(OpenFiles(1024, None), host.LARGE, Job(), JobUser()))) == {Severity.NOTE}
    assert severities(list(host.nofile.run(OpenFiles(1024, 1024), host.LARGE, Job(), JobUser()))) == {Severity.WARN}


def test_small_jobs_and_single_nodes_are_asked_for_neither_files_nor_clocks() -> None:
    assert judge(host.nofile, OpenFiles(1024, 1024), TORCHRUN, JobUser()).status is Status.PASS
    assert judge(host.timesync, TimeSync(False), TORCHRUN).status is Status.SKIP
    assert judge(host.timesync, TimeSync(False), host.TWO_NODES, job=Job(local=True)).status is Status.SKIP
    assert judge(host.timesync, TimeSync(False), host.TWO_NODES).status is Status.WARN
