"""What a process may use: limits, control groups of both versions, /dev/shm and its leftovers, the kind of box."""

import grp
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from conftest import answers

from ncclprobe.engine.collect import collect
from ncclprobe.facts import cgroup, cpu, machine, memory, process
from ncclprobe.facts.cgroup import V1, V2, MemoryLimit, Quota, Throttling
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.machine import Dmi, identify
from ncclprobe.facts.memory import Memory, MemoryPolicy
from ncclprobe.host import Question, user_limits
from ncclprobe.model.errors import Denied, Missing, ParseError
from ncclprobe.model.registry import Collector
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

NOTHING = Missing("not there")


def learn(collector: Collector, said: dict[Question, Any], *others: Collector) -> Any:
    return collect(answers(said), [collector, *others])[collector.produces]


STATUS = "Name:\tx\nUid:\t1000\t0\t0\t0\nCapEff:\t0000000000004000\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t0\n"
PROCESS: dict[Question, Any] = {
    ("read", "/proc/self/status"): STATUS,
    ("read", "/proc/self/uid_map"): "         0          0 4294967295\n",
    ("rlimit", "RLIMIT_NOFILE"): [1024, 1048576],
    ("rlimit", "RLIMIT_NPROC"): [None, None],
    **{("link", f"/proc/self/ns/{kind}"): f"{kind}:[402653183{n}]" for n, kind in enumerate(("ipc", "mnt", "net"))},
    ("link", "/proc/self/ns/pid"): Denied("no"),
}


def test_a_process_knows_its_limits_processors_and_namespaces() -> None:
    seen = learn(process.process, PROCESS)
    assert learn(process.open_files, PROCESS) == process.OpenFiles(1024, 1048576)
    assert seen.nproc == (None, None)
    assert (seen.cpus, seen.memory_nodes, seen.capabilities) == ((0, 1, 2, 3, 8), (0,), frozenset({"ipc_lock"}))
    assert seen.first_user_namespace
    assert seen.uid == 1000
    assert seen.namespaces["net"] == 4026531832
    assert isinstance(seen.namespaces["pid"], Absent)


def environment(**variables: str) -> Collector:
    return Collector(run=lambda host: Environment(variables), produces=Environment)


@each_row(
    ("variables", "said", "kind"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {("stat", "/.dockerenv"): {}}, "kubernetes"),
        ({"APPTAINER_CONTAINER": "/x.sif"}, {}, "apptainer"),
        ({}, {("stat", "/.dockerenv"): {}}, "docker"),
        ({"container": "podman"}, {("stat", "/run/.containerenv"): {}}, "podman"),
        ({"container": "lxc"}, {}, "lxc"),
        ({}, {("read", "/proc/1/cgroup"): "0::/kubepods/besteffort/pod1\n"}, "kubernetes"),
        ({}, {("read", "/proc/1/cgroup"): "4:memory:/docker/0123\n"}, "docker"),
        ({}, {("read", "/proc/1/cgroup"): "0::/init.scope\n"}, ""),
        ({}, {("read", "/proc/1/cgroup"): Denied("hidden")}, ""),
    ],
)
def test_a_container_is_known_by_its_marks(variables: dict[str, str], said: dict[Question, Any], kind: str) -> None:
    nowhere: dict[Question, Any] = {("stat", path): NOTHING for path in ("/.dockerenv", "/run/.containerenv")}
    assert learn(process.container, nowhere | said, environment(**variables)).kind == kind


def test_memlock_counts_a_capability_only_in_the_first_user_namespace() -> None:
    said = PROCESS | {("rlimit", "RLIMIT_MEMLOCK"): [65536, None]}
    assert learn(process.memlock, said, process.process) == process.Memlock(65536, exempt=True)
    inside = said | {("read", "/proc/self/uid_map"): "0 1000 1\n"}
    assert learn(process.memlock, inside, process.process) == process.Memlock(65536, exempt=False)
    without = said | {("read", "/proc/self/status"): STATUS.replace("4000", "3fff")}
    assert not learn(process.memlock, without, process.process).exempt


def job_user(variables: dict[str, str], lines: Any = NOTHING) -> process.JobUser:
    said = PROCESS | {("user_limits", "2000"): lines}
    found: process.JobUser = learn(process.job_user, said, process.process, environment(**variables))
    return found


def test_the_job_s_user_has_the_limits_that_slurm_hands_on_otherwise_those_of_limits_conf() -> None:
    lines = [["a:1", 0, "-", "nofile", "512"], ["a:2", 2, "soft", "nofile", "700"], ["a:3", 1, "soft", "nofile", "9"],
             ["b:1", 0, "hard", "memlock", "unlimited"], ["b:2", 0, "soft", "memlock", "64"],
             ["b:3", 2, "soft", "nproc", "1"], ["b:4", 2, "soft", "nofile", "many"]]  # fmt: skip
    prolog = {"SLURM_JOB_UID": "2000"}
    found = job_user(prolog, lines).limits
    assert found == {"RLIMIT_NOFILE": ((700, 512), "a:2"), "RLIMIT_MEMLOCK": ((65536, None), "b:2")}
    told = job_user(prolog | {"SLURM_RLIMIT_NOFILE": "U4096", "SLURM_RLIMIT_MEMLOCK": "18446744073709551615"}, lines)
    files, locked = told.limits["RLIMIT_NOFILE"], told.limits["RLIMIT_MEMLOCK"]
    assert (files, locked) == (
        ((4096, 4096), "SLURM_RLIMIT_NOFILE=U4096"),
        ((None, None), "SLURM_RLIMIT_MEMLOCK=18446744073709551615"),
    )
    assert job_user(prolog | {"SLURM_RLIMIT_NOFILE": "many"}) == process.JobUser("2000")
    assert job_user({}, lines) == job_user({"SLURM_JOB_UID": "1000"}, lines) == process.JobUser()


def test_the_lines_of_limits_conf_that_hold_for_a_user_are_answered_without_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = pwd.getpwuid(os.getuid())
    own = grp.getgrgid(me.pw_gid).gr_name
    (tmp_path / "limits.d").mkdir()
    (tmp_path / "limits.conf").write_text(f"# {me.pw_name} - nofile 1\n{me.pw_name} soft nofile 2\nother - nofile 3\n")
    other = f"@{own} - nofile 4\n@no-such hard nofile 5\n{me.pw_uid}:{me.pw_uid} - memlock 6\n{me.pw_name} -\n"
    (tmp_path / "limits.d" / "20.conf").write_text(other)
    monkeypatch.setattr(user_limits, "FOLDER", tmp_path)
    text = user_limits.lines_of(str(me.pw_uid))
    assert [row[1:] for row in json.loads(text)] == [
        [2, "soft", "nofile", "2"], [1, "-", "nofile", "4"], [2, "-", "memlock", "6"]]  # fmt: skip
    assert f'"{me.pw_name}"' not in text
    for nobody in ("4294967000", "x", "9" * 40):
        with pytest.raises(Missing):
            user_limits.lines_of(nobody)


MEMINFO = "MemTotal:  1024 kB\nMemFree:  1 kB\nMemAvailable:  512 kB\nHugePages_Total:  0\n"


def test_memory_that_is_left_counts_what_the_kernel_can_drop() -> None:
    said = {("read", "/proc/meminfo"): MEMINFO + "SwapTotal:  8 kB\nSwapFree:  4 kB\n"}
    assert learn(memory.memory, said) == Memory(1 << 20, 1 << 19, 8192, 4096)
    assert memory.meminfo(MEMINFO).swap_total_bytes == 0
    with pytest.raises(ParseError, match="MemAvailable"):
        memory.meminfo("MemTotal: 1024 kB\n")


@each_row(
    ("line", "expected"),
    [
        ("7ffe8c4c0000 default stack anon=3 N0=3 kernelpagesize_kB=4", MemoryPolicy()),
        ("7ffe8c4c0000 bind:1 stack anon=3", MemoryPolicy("bind", (1,))),
        ("7ffe8c4c0000 bind=static:0-1,3 stack anon=3", MemoryPolicy("bind", (0, 1, 3))),
        ("7ffe8c4c0000 prefer (many):2 stack anon=3", MemoryPolicy("prefer", (2,))),
        ("7ffe8c4c0000 local stack anon=3", MemoryPolicy("local")),
    ],
)
def test_the_memory_policy_is_that_of_the_stack(line: str, expected: MemoryPolicy) -> None:
    said = {("lines", "/proc/self/numa_maps", memory.STACK): line + "\n"}
    assert learn(memory.memory_policy, said) == expected


def test_a_kernel_without_numa_has_no_policy() -> None:
    assert learn(memory.memory_policy, {("lines", "/proc/self/numa_maps", memory.STACK): NOTHING}) == MemoryPolicy()


def test_a_machine_that_does_not_set_its_clock_says_so() -> None:
    files: dict[Question, Any] = {
        ("read", f"{cpu.POLICY}/scaling_driver"): "intel_pstate\n",
        ("read", f"{cpu.POLICY}/scaling_governor"): "performance\n",
    }
    assert learn(cpu.cpufreq, files) == cpu.Scaling("intel_pstate", "performance")
    assert learn(cpu.cpufreq, dict.fromkeys(files, NOTHING)) == cpu.Scaling()
    assert isinstance(learn(cpu.cpufreq, dict.fromkeys(files, Denied("no"))), Absent)


def test_a_clock_is_synchronized_or_not_or_not_known() -> None:
    ask = ("run", "timedatectl", "show", "--property=NTPSynchronized")
    assert learn(machine.timesync, {ask: "NTPSynchronized=yes\n"}).synchronized
    assert not learn(machine.timesync, {ask: "NTPSynchronized=no\n"}).synchronized
    assert isinstance(learn(machine.timesync, {ask: NOTHING}), Absent)
    assert isinstance(learn(machine.timesync, {ask: ""}), Absent)


MOUNTS2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNTS1 = (
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "32 31 0:29 /docker/1 /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "36 31 0:33 /docker/1 /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
GROUPS1 = "4:memory:/docker/1\n2:cpuacct,cpu:/docker/1\n1:name=systemd:/\n0::/\n"
SLURM = "0::/system.slice/slurmstepd.scope/job_7/step_0/task_0\n"
STEP = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


def test_the_narrowest_limit_of_all_levels_holds() -> None:
    seen = learn(
        cgroup.cgroup,
        {
            ("read", "/proc/self/cgroup"): SLURM,
            ("read", "/proc/self/mountinfo"): MOUNTS2,
            **levels({f"{STEP}/step_0": ("max 100000", "68719476736"), STEP: ("800000 100000", "137438953472")}),
            ("read", f"{STEP}/cpu.stat"): "usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 1500000\n",
            ("read", f"{STEP}/step_0/memory.current"): "1048576\n",
        },
    )
    assert seen.cpu == Quota(8.0, STEP, Throttling(10, 3, 1.5))
    assert seen.memory == MemoryLimit(64 << 30, f"{STEP}/step_0", 1 << 20)


def levels(held: dict[str, tuple[str, str]]) -> dict[Question, Any]:
    """Every level of SLURM, of which only `held` have files."""
    step = f"{STEP}/step_0"
    folders = [f"{step}/task_0", step, STEP, *(STEP.rsplit("/", n)[0] for n in (1, 2, 3))]
    said: dict[Question, Any] = {}
    for folder in folders:
        cpu, memory = held.get(folder, (NOTHING, NOTHING))
        said |= {("read", f"{folder}/cpu.max"): cpu, ("read", f"{folder}/memory.max"): memory}
        said[("read", f"{folder}/pids.max")] = held.get(f"{folder} pids", NOTHING)
    return said


def test_a_hierarchy_without_limits_has_none() -> None:
    said = {("read", "/proc/self/cgroup"): SLURM, ("read", "/proc/self/mountinfo"): MOUNTS2, **levels({})}
    assert learn(cgroup.cgroup, said) == cgroup.Cgroup(None, None)


def test_version_1_in_a_container_is_read_at_its_mount() -> None:
    cpu, memory = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"
    seen = learn(
        cgroup.cgroup,
        {
            ("read", "/proc/self/cgroup"): GROUPS1,
            ("read", "/proc/self/mountinfo"): MOUNTS1,
            ("read", f"{cpu}/cpu.cfs_quota_us"): "150000\n",
            ("read", f"{cpu}/cpu.cfs_period_us"): "100000\n",
            ("read", f"{cpu}/cpu.stat"): "nr_periods 10\nnr_throttled 3\nthrottled_time 2000000000\n",
            ("read", f"{memory}/memory.limit_in_bytes"): "9223372036854771712\n",
        },
    )
    assert seen.cpu == Quota(1.5, cpu, Throttling(10, 3, 2.0))
    assert seen.memory is None


def test_a_hierarchy_that_is_not_mounted_here_is_not_known() -> None:
    said: dict[Question, Any] = {("read", "/proc/self/cgroup"): "0::/\n", ("read", "/proc/self/mountinfo"): ""}
    seen = learn(cgroup.cgroup, said)
    assert isinstance(seen.cpu, Absent)
    assert isinstance(seen.memory, Absent)


def test_in_a_hybrid_hierarchy_version_1_has_the_controllers() -> None:
    found = cgroup.places(GROUPS1, MOUNTS1)
    assert {name: found[name].names for name in ("cpu", "memory")} == {"cpu": V1, "memory": V1}
    assert cgroup.places("0::/\n", MOUNTS2)["cpu"] == (V2, ("/sys/fs/cgroup",))


@each_row("text", ["100000", "x 100000", "100000 0", "", "-5 100000"])
def test_what_is_no_quota_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        cgroup.quota(text)


SHM: dict[Question, Any] = {
    ("statvfs", "/dev/shm"): {"total": 1 << 30, "available": 1 << 20},
    ("stat", "/dev/shm"): {"device": 27, "bytes": 60, "age_s": 1.0, "mine": False},
    ("list", "/dev/shm", "nccl-*"): ["nccl-aaaaaa", "nccl-bbbbbb", "nccl-gone"],
    ("stat", "/dev/shm/nccl-aaaaaa"): {"device": 27, "bytes": 9637892, "age_s": 86400.0, "mine": True},
    ("stat", "/dev/shm/nccl-bbbbbb"): {"device": 27, "bytes": 4096, "age_s": 0.5, "mine": False},
    ("stat", "/dev/shm/nccl-gone"): NOTHING,
    ("mapped", "/dev/shm/nccl-"): {"paths": ["/dev/shm/nccl-bbbbbb"], "hidden": 12},
    ("link", "/proc/self/ns/pid"): "pid:[4026531836]",
}


def test_a_leftover_is_told_from_a_file_in_use() -> None:
    seen = learn(process.shared_memory, SHM)
    assert (seen.total_bytes, seen.available_bytes, seen.device) == (1 << 30, 1 << 20, 27)
    assert [(s.name, s.held) for s in seen.segments] == [("nccl-bbbbbb", True), ("nccl-aaaaaa", False)]


@each_row(
    ("mine", "hidden", "everyone", "held"),
    [(True, 5, True, False), (False, 0, True, False), (False, 5, True, None), (True, 0, False, None)],
)
def test_a_leftover_is_one_only_where_nobody_can_be_hidden(
    mine: bool, hidden: int, everyone: bool, held: bool | None
) -> None:
    assert process.is_held("/dev/shm/nccl-x", mine, {"paths": [], "hidden": hidden}, everyone) is held


def test_an_empty_shm_asks_nobody() -> None:
    said: dict[Question, Any] = {("statvfs", "/dev/shm"): {"total": 1, "available": 1}}
    assert learn(process.shared_memory, said).segments is None
    assert learn(process.shared_memory, said | {("list", "/dev/shm", "nccl-*"): []}).segments == ()


def test_device_nodes_are_listed_and_never_opened() -> None:
    seen = learn(
        process.devices,
        {
            ("list", "/dev", "nvidia*"): ["nvidia0", "nvidia-caps", "nvidiactl"],
            ("access", "/dev/nvidia0"): {"read": True, "write": True},
            ("access", "/dev/nvidiactl"): {"read": True, "write": False},
            ("list", "/dev/nvidia-caps-imex-channels", "channel*"): NOTHING,
            ("list", "/dev/infiniband", "*"): Denied("no"),
        },
    )
    assert [(n.path, n.usable) for n in seen.nvidia] == [("/dev/nvidia0", True), ("/dev/nvidiactl", False)]
    assert seen.imex_channels == ()
    assert isinstance(seen.infiniband, Absent)


VIRTUAL, BARE = "flags\t\t: fpu sse hypervisor lahf\n", "flags\t\t: fpu sse lahf\n"


@each_row(
    ("dmi", "cpuinfo", "expected"),
    [
        (Dmi("Amazon EC2", "p5.48xlarge"), VIRTUAL, ("aws", "p5.48xlarge", True)),
        (Dmi("Amazon EC2", "g4dn.metal"), BARE, ("aws", "g4dn.metal", False)),
        (Dmi("Amazon EC2", "c7g.metal"), "", ("aws", "c7g.metal", False)),
        (Dmi("Amazon EC2", "g5g.16xlarge"), "", ("aws", "g5g.16xlarge", True)),
        (Dmi("Google", "Google Compute Engine"), VIRTUAL, ("gcp", "", True)),
        (
            Dmi("Microsoft Corporation", "Virtual Machine", asset_tag="7783-7084-3265-9085-8269-3286-77"),
            VIRTUAL,
            ("azure", "", True),
        ),
        (Dmi("Oracle Corporation", "ORACLE SERVER X9", asset_tag="OracleCloud.com"), BARE, ("oracle", "", False)),
        (Dmi("NVIDIA", "DGXH100"), BARE, ("", "", False)),
        (Dmi("QEMU", "Standard PC (Q35 + ICH9, 2009)"), VIRTUAL, ("", "", True)),
        (Dmi("NVIDIA", "GB200 NVL"), "processor\t: 0\n", ("", "", None)),
        (Dmi("Supermicro", "SYS-821GE.2"), BARE, ("", "", False)),
        (Dmi("Amazon EC2", "unnamed"), VIRTUAL, ("aws", "", True)),
        (Dmi("Microsoft Corporation", "Surface"), "processor\t: 0\n", ("", "", None)),
        (Dmi("Microsoft Corporation", "Virtual Machine"), "processor\t: 0\n", ("", "", True)),
        (Dmi("Acme", "Virtual Machine"), "processor\t: 0\n", ("", "", None)),
        (Dmi("Acme", "node.metal"), VIRTUAL, ("", "", True)),
        (Dmi(), VIRTUAL, ("", "", True)),
    ],
)
def test_a_machine_is_known_by_its_firmware(dmi: Dmi, cpuinfo: str, expected: tuple[object, ...]) -> None:
    seen = identify(dmi, cpuinfo, "")
    assert (seen.cloud, seen.instance_type, seen.virtual) == expected


def test_firmware_is_read_field_by_field_or_from_the_device_tree() -> None:
    said: dict[Question, Any] = {
        ("read", f"{machine.DMI}/sys_vendor"): "NVIDIA\n",
        ("read", f"{machine.DMI}/product_name"): "DGXH100\n",
        ("read", f"{machine.DMI}/board_name"): Denied("no"),
    }
    assert learn(machine.machine, said).dmi == Dmi("NVIDIA", "DGXH100")
    tree = {("read", f"{machine.DMI}/sys_vendor"): NOTHING, ("read", machine.DEVICE_TREE): "8335-GTW\0"}
    assert learn(machine.machine, tree).dmi == Dmi(product="8335-GTW")


def test_the_fewest_threads_that_any_level_allows_hold() -> None:
    said = {("read", "/proc/self/cgroup"): SLURM, ("read", "/proc/self/mountinfo"): MOUNTS2}
    said |= levels({f"{STEP} pids": "1024\n", f"{STEP.rsplit('/', 1)[0]} pids": "4096\n"})
    said[("read", f"{STEP}/pids.current")] = "1000\n"
    assert learn(cgroup.cgroup, said).pids == cgroup.PidsLimit(1024, STEP, 1000)
    said[("read", f"{STEP.rsplit('/', 1)[0]}/pids.current")] = "4090\n"
    fuller = learn(cgroup.cgroup, said).pids
    assert (fuller.most, fuller.left) == (4096, 6)


@each_row("said", [["7", None], [{}, 7], [1.5, 2], [True, 7], [7], 7, "77"])
def test_limits_that_are_no_numbers_are_refused(said: object) -> None:
    with pytest.raises(ParseError, match="RLIMIT_NPROC"):
        process.process.run(answers(PROCESS | {("rlimit", "RLIMIT_NPROC"): said}))
