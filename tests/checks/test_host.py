"""What a host lets a job have: the cases in which a setup only looks wrong, and those that name the wrong thing."""

from typing import Any

from ncclprobe.checks import host
from ncclprobe.checks.host import (
    EIGHT,
    FOUR,
    GIB,
    MIB,
    NCCL_2_27,
    NEW_DRIVER,
    NIC,
    PLAIN,
    SMALL,
    TORCHRUN,
    TWO_SOCKETS,
    allowed,
    ranks_here,
    user,
)
from ncclprobe.engine.judge import judge as judge_all
from ncclprobe.facts.cgroup import Cgroup, Quota
from ncclprobe.facts.cpu import Scaling
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import TimeSync
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.process import Container, JobUser, Memlock, OpenFiles, SharedMemory
from ncclprobe.model.findings import Severity, Status, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row

NO_GPUS = Absent("no NVIDIA driver here")


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


def test_a_quota_that_cannot_be_seen_is_unknown() -> None:
    seen = judge(host.cpu_quota, Cgroup(Absent("not mounted here"), None), TORCHRUN, FOUR)
    assert (seen.status, seen.required, seen.why) == (Status.UNKNOWN, False, "not mounted here")


def test_a_machine_that_does_not_set_its_clock_is_not_asked_for_its_governor() -> None:
    assert judge(host.governor, Scaling()).status is Status.SKIP


def test_leftovers_that_could_not_be_looked_for_are_unknown() -> None:
    assert judge(host.shm_stale, SharedMemory(8 * GIB, 4 * GIB)).status is Status.UNKNOWN
    assert judge(host.shm_stale, SharedMemory(8 * GIB, 8 * GIB)).status is Status.PASS  # nothing fills it


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


def test_small_jobs_and_single_nodes_are_asked_for_neither_files_nor_clocks() -> None:
    assert judge(host.nofile, OpenFiles(1024, 1024), TORCHRUN, JobUser()).status is Status.PASS
    assert judge(host.timesync, TimeSync(False), TORCHRUN).status is Status.SKIP
    assert judge(host.timesync, TimeSync(False), host.TWO_NODES, job=Job(local=True)).status is Status.SKIP
    assert judge(host.timesync, TimeSync(False), host.TWO_NODES).status is Status.WARN
