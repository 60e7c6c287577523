"""Which processes are ranks, what the kernel shows of them, and what torch's worker server answers."""

import ctypes
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.engine import running
from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job import stacks
from ncclprobe.facts.job.gpus import gpus
from ncclprobe.facts.job.ranks import AskedJob, LocalRanks, local_ranks
from ncclprobe.facts.kernel_log import OF_GPUS
from ncclprobe.host import SAMPLE, live, processes, rank_servers, tcp_sockets, waits
from ncclprobe.host.capture import Replay
from ncclprobe.host.rank_servers import ask_server
from ncclprobe.model.errors import Failed, HostError, Missing, OutOfTime, ParseError, TimedOut
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row, some

QUESTION = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PET_NODE_RANK")


def process(pid: int, rank: int | None, parent: int = 1, *, library: bool | None = True, **more: Any) -> dict[str, Any]:
    """Return a process as the machine tells of it; `more`: variables."""
    own = {} if rank is None else {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    variables = {**own, "MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", **more}
    return {
        "pid": pid,
        "parent": parent,
        "start": pid,
        "name": "python",
        "user": 1000,
        "library": library,
        "python": library is not None,
        "variables": {name: value for name, value in variables.items() if value},
    }


def found(*given: dict[str, Any], pid: int = 0, **more: Any) -> LocalRanks:
    said = json.dumps({"time_s": 1.0, "processes": given, **more})
    host = Replay({("ranks", pid, *QUESTION): said, (SAMPLE, "attach"): json.dumps({"pid": pid})}, older=False)
    return local_ranks.run(host, AskedJob(pid))


def pids(ranks: LocalRanks) -> list[tuple[int, int | None]]:
    return [(each.pid, each.rank) for each in ranks.ranks]


def test_a_rank_is_the_topmost_process_of_its_environment_that_has_torch() -> None:
    shell, rank, worker = process(10, 0, library=None), process(11, 0, 10), process(12, 0, 11)
    assert pids(found(shell, rank, worker, process(20, 1))) == [(11, 0), (20, 1)]


def test_a_rank_that_still_imports_torch_is_one() -> None:
    assert pids(found(process(10, 0, library=False), process(20, 1))) == [(10, 0), (20, 1)]


def test_a_shell_of_a_slurm_task_is_no_rank() -> None:
    task = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7"}
    assert pids(found(process(10, None, library=None, **task))) == []


def test_a_local_rank_without_a_process_is_absent() -> None:
    assert found(process(10, 0)).absent == (1,)
    assert found(process(10, 0), process(11, 1)).absent == ()


def test_of_two_jobs_none_is_taken_and_each_is_named() -> None:
    other = process(30, 0, MASTER_PORT="29501")
    both = found(process(10, 0), other)
    assert len(both.others) == 2
    assert both.others[1] == ("30", "1000", "0", "python", "1970-01-01 00:00", "n1:29501")
    assert pids(found(process(10, 0), other, pid=30)) == [(30, 0)]
    assert pids(found(process(10, 0), process(31, 0, 30, MASTER_PORT="29501"), other, pid=31)) == [(30, 0)]


def test_of_several_jobs_a_table_says_whose_they_are_and_what_they_run() -> None:
    own = {**process(10, 0), "owner": "ada", "program": "train.py", "age_s": 60.0}
    other = {**process(30, 0, MASTER_PORT="29501"), "owner": "bob", "program": "finetune.py"}
    lines = running.jobs(found(own, process(11, 1, 10, MASTER_PORT="29500"), other))
    assert [line.split() for line in lines[:2]] == [
        ["--pid", "user", "ranks", "command", "since", "(UTC)", "master"],
        ["10", "ada", "0-1", "train.py", "1969-12-31", "23:59", "n1:29500"],
    ]
    assert running.jobs(found(own)) == []
    rows = [
        (["/usr/bin/python3", "-u", "/home/u/train.py", "--token", "secret"], "train.py"),
        (["python", "-m", "pkg.train"], "pkg.train"),
        (["python", "-c", "print(1)"], "-c"),
        (["/opt/bin/solver", "in.dat"], "solver"),
        ([], ""),
        ([""], ""),
    ]
    assert [processes.program(words) for words, _ in rows] == [name for _, name in rows]


def test_processes_that_someone_names_are_ranks_without_any_variable() -> None:
    spawned = [process(11, None, 10), process(12, None, 10)]
    assert pids(found(*spawned)) == []
    assert pids(found(process(10, None, library=False), *spawned, pid=10)) == [(11, None), (12, None)]


def test_what_a_rank_without_variables_has_started_is_no_rank() -> None:
    parent, spawned = process(10, None), [process(11, None, 10), process(12, None, 10)]
    helper, worker = (
        process(13, 0, 11),
        process(14, None, 12),
    )  # a server of rank 0, whose program has set RANK; a loader
    assert pids(found(parent, *spawned, helper, worker, pid=10)) == [(11, None), (12, None)]
    agent, ranks, aside = process(20, None, 9), [process(21, 0, 20), process(22, 1, 20)], process(23, None, 9)
    assert pids(found(process(9, None, library=None), agent, *ranks, aside, pid=9)) == [(21, 0), (22, 1)]


def test_processes_of_others_are_counted() -> None:
    assert found(process(10, 0), hidden=3).hidden == 3


# What the kernel shows, of this very process.


def test_a_process_is_known_by_its_start_and_not_by_its_number_alone() -> None:
    start = int(processes.stat_or_none("/proc/self")[19])  # type: ignore[index]
    assert processes._process(os.getpid(), start)["state"] in "RS"
    with pytest.raises(Missing, match="its number is of another"):
        processes._process(os.getpid(), start + 1)


@each_row(
    ("lines", "files"),
    [
        ("0::/job\n", {"job/memory.events": "low 0\noom_kill 2\n", "job/cgroup.events": "frozen 1\n",
                       "job/cpu.stat": "throttled_usec 500000\n",
                       "job/memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull total=9\n"}),
        ("3:freezer:/job\n2:memory:/job\n1:cpu:/job\n", {
            "memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n", "freezer/job/freezer.state": "FROZEN\n",
            "cpu/job/cpu.stat": "throttled_time 500000000\n"}),
    ],
)  # fmt: skip
def test_what_the_cgroup_of_a_rank_tells(
    lines: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    processes._cgroup.cache_clear()
    monkeypatch.setattr(processes, "_CGROUPS", tmp_path)
    found = processes._cgroup(lines, 0)
    assert {name: found[name] for name in ("frozen", "held_s", "oom_kills")} == {
        "frozen": True,
        "held_s": 0.5,
        "oom_kills": 2,
    }
    assert found.get("memory_s") == (1.5 if lines.startswith("0") else None)
    next(tmp_path.rglob("cpu.stat")).write_text("throttled_usec 700000\nthrottled_time 700000000\n")
    assert processes._cgroup(lines, 0)["held_s"] == 0.5
    assert processes._cgroup(lines, 1)["held_s"] == 0.7


def test_no_value_of_a_variable_is_told_that_may_not_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"RANK": "0", "API_TOKEN": "hunter2", "MASTER_ADDR": "user:hunter2@n1"}
    monkeypatch.setattr(processes, "_pids", lambda: [1])
    monkeypatch.setattr(processes, "environment", lambda _: environ)
    (only,) = processes._ranks(0, ["RANK"], {"RANK", "MASTER_ADDR"})["processes"]
    assert "hunter2" not in json.dumps(only)
    assert only["variables"]["RANK"] == "0"


def test_ranks_in_a_container_may_be_of_process_2_and_threads_of_the_kernel_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stat(path: str) -> list[str]:
        flags = str(0x208040 if path == "/proc/9" else 0x400000)
        return ["S", "2", "0", "0", "0", "-1", flags, *["0"] * 14, "python"]

    monkeypatch.setattr(processes, "_pids", lambda: [2, 9, 70])
    monkeypatch.setattr(processes, "stat_or_none", stat)
    monkeypatch.setattr(processes, "environment", lambda pid: {"RANK": "0"} if pid > 2 else {})
    monkeypatch.setattr(processes, "_candidate", lambda pid, *_: {"pid": pid})
    assert processes._ranks(0, ["RANK"], set())["processes"] == [{"pid": 70, "agent": None}]


def test_a_file_that_blocks_is_left_to_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(processes, "_pids", lambda: [1])
    monkeypatch.setattr(processes, "BLOCKED_S", 0.01)
    monkeypatch.setattr(processes, "environment", lambda _: never.wait(20) and {})
    answer = processes._ranks(0, ["RANK"], set())
    never.set()
    assert "no answer within 0.01 s" in answer["late"][0]


# torch's worker server, played by a thread of this process with the name of its thread.


@contextmanager
def server(answer: bytes | None, host: str = "::") -> Iterator[str]:
    """Play a worker server that answers every call with `answer`; None: with nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        named = threading.Event()

        def serve() -> None:
            ctypes.CDLL(None).prctl(15, b"pt_workerserver", 0, 0, 0)
            named.set()
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(answer) if answer is not None else connection.recv(1)

        playing = threading.Thread(target=serve, daemon=True)
        playing.start()
        named.wait(10)
        _until_it_accepts()
        yield str(os.getpid())
        listening.shutdown(socket.SHUT_RDWR)
        playing.join(10)


def _until_it_accepts() -> None:
    import time

    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            rank_servers._address(str(os.getpid()))
        except Missing:
            time.sleep(0.01)
        else:
            return


def test_what_threads_of_a_program_run_is_counted_and_not_what_those_of_libraries_do() -> None:
    names, start = ("train", "pt_nccl_watchdg", "NCCL Service 0"), int((processes.stat_or_none("/proc/self") or [])[19])

    def computes(name: str, over: threading.Event) -> None:
        ctypes.CDLL(None).prctl(15, name.encode())
        while not over.is_set():
            sum(range(1000))

    grew = []
    for name in names:
        over = threading.Event()
        thread = threading.Thread(target=computes, args=(name, over))
        thread.start()
        time.sleep(0.05)
        before = processes._process(os.getpid(), start)["others_ran_s"]
        time.sleep(0.3)
        grew.append(processes._process(os.getpid(), start)["others_ran_s"] - before)
        over.set()
        thread.join()
    assert grew[0] > 0.01
    assert max(grew[1:]) < 0.01


def test_the_worker_server_is_asked_at_the_port_on_which_its_thread_waits() -> None:
    with server(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}") as pid:
        assert ask_server(pid, "fr_trace_json") == "{}"
    with server(b"HTTP/1.1 200 OK\r\n\r\n{}", host="127.0.0.9") as pid:
        assert ask_server(pid, "fr_trace_json") == "{}"  # 127.0.0.1 at this port may be another user's


def test_another_answer_than_the_one_asked_for_is_refused() -> None:
    with server(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n") as pid, pytest.raises(Failed, match="302"):
        ask_server(pid, "fr_trace_json")


def test_a_server_that_answers_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_servers, "_WORKER_S", 0.05)
    with server(None) as pid, pytest.raises(TimedOut, match=r"no answer within 0\.05 s"):
        ask_server(pid, "fr_trace_json")


def test_an_answer_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_servers, "_WORKER_BYTES", 1000)
    with server(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000) as pid, pytest.raises(Failed, match="longer than"):
        ask_server(pid, "fr_trace_json")


def test_what_a_rank_says_twice_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str | bytes] = []
    monkeypatch.setattr(looks, "read", lambda text: (taken.append(text), "it is not read")[1])
    ranks = found(process(10, 0), process(11, 1))
    said = {("server", 10, "fr_trace_json", 1): "a", ("server", 11, "fr_trace_json", 1): "b", ("wait", "5.0"): ""}
    said |= {("server", 10, "fr_trace_json", 2): "a", ("server", 11, "fr_trace_json", 2): "c"}
    both = looks.looks.run(Replay(said, older=True), ranks, AskedJob())
    assert taken == ["a", "b", "c"]
    assert {both.first.servers, both.second.servers} == {("its records were not read: it is not read",) * 2}


def test_stacks_of_processes_that_a_rank_started_are_read_if_they_cannot_go_on() -> None:
    frames = [{"name": "recv", "filename": "connection.py", "line": 3}]
    children = [{"state": state, "cpu_s": 1.0, "pid": pid, "name": "w"} for state, pid in (("S", 60), ("D", 61))]
    state = json.dumps({"state": "S", "cpu_s": 1.0, "time_s": 9.0, "children": children})
    said = {("process", 10, 10, look): state for look in (1, 2)} | {("wait", "5.0"): ""}
    for pid in (10, 60, 61):
        said |= {("stacks", pid, look): json.dumps([{"os_thread_id": pid, "frames": frames}]) for look in (1, 2)}
    found_here = LocalRanks((found(process(10, 0)).ranks[0],))
    seen_both = looks.looks.run(Replay(said, older=True), found_here, AskedJob(stacks=True))
    assert [dict(look.of_children).keys() for look in (seen_both.first, seen_both.second)] == [set(), {61}]
    assert not looks.looks.run(Replay(said, older=True), found_here, AskedJob()).second.of_children


def test_no_records_are_written_down_between_what_the_kernel_shows_at_both_looks() -> None:
    asked: list[tuple[str, int]] = []

    class Order(Replay):
        def ask(self, *question: str | int) -> str:
            if question[0] in ("server", "process", "wait"):
                asked.append((str(question[0]), int(question[-1]) if question[0] != "wait" else 0))
            return super().ask(*question)

    here = LocalRanks((found(process(10, 0)).ranks[0],))
    looks.looks.run(Order({("wait", "5.0"): ""}, older=True), here, AskedJob())
    assert asked == [("server", 1), ("process", 1), ("wait", 0), ("process", 2), ("server", 2)]


@each_row("question", [("server", 11, "fr_trace_json", 2), ("process", 11, 11, 2)])
def test_a_look_that_timeout_cuts_accuses_no_rank(question: tuple[str | int, ...]) -> None:
    ranks, cut = found(process(10, 0), process(11, 1)), OutOfTime("all that --timeout left")
    said: dict[tuple[str | int, ...], str | HostError] = {("wait", "5.0"): "", question: cut}
    with pytest.raises(OutOfTime):
        looks.looks.run(Replay(said, older=True), ranks, AskedJob())
    late = Replay(said | {question: TimedOut("no answer within 1 s")}, older=True)
    assert looks.looks.run(late, ranks, AskedJob()).second.servers


def test_a_process_without_a_worker_server_is_not_called() -> None:
    with socket.create_server(("127.0.0.1", 0)), pytest.raises(Missing, match="runs no worker server"):
        ask_server(str(os.getpid()), "fr_trace_json")


# What NVML says of the GPUs of the ranks.


def gpu_row(**more: Any) -> dict[str, Any]:
    """Return what the child of NVML tells of a GPU."""
    row = {"index": 0, "pci": "00000000:5E:00.0", "pids": [10], "busy_percent": 100, "clock_MHz": 345}
    return {**row, "most_MHz": 1980, "power_mW": 120500, "reasons": 0x40, "nvlink_KiB": [7, 9], **more}


def test_gpus_are_asked_at_both_looks_and_the_kernel_for_xids_where_there_are_gpus() -> None:
    refused = {"refused": "Denied", "why": "Insufficient Permissions"}
    line = [50.0, "NVRM: Xid (PCI:0000:5e:00): 79, pid=9, GPU has fallen off the bus."]
    said: dict[tuple[str | int, ...], str] = {("wait", "5.0"): ""}
    said |= {("nvml", "gpusOf", 1, "10"): json.dumps([gpu_row()])}
    said |= {("nvml", "gpusOf", 2, "10"): json.dumps([gpu_row(nvlink_KiB=[refused, 9], power_mW=refused)])}
    said |= {("kernel_log", OF_GPUS): json.dumps({"lines": [line, [51.0, "NVRM: loading"]]})}
    here = LocalRanks((found(process(10, 0)).ranks[0],))
    both = looks.looks.run(Replay(said, older=True), here, AskedJob())
    (first,), (second,) = both.first.gpus, both.second.gpus
    assert (first.pids, first.nvlink_KiB, first.reasons) == ((10,), 16, ("hw-thermal-slowdown",))
    assert second.nvlink_KiB == second.power_mW == Absent("NVML: Insufficient Permissions", "Denied")
    assert [(each.kind, each.code) for each in both.xids] == [("xid", "79")]
    without = looks.looks.run(Replay({("wait", "5.0"): ""}, older=True), here, AskedJob())
    assert isinstance(without.second.gpus, Absent)
    assert without.xids == Absent("there is no GPU here")


@each_row("text", ["[{}]", "7", "nonsense", '[{"index": -1}]'])
def test_nonsense_of_nvml_is_a_reason_and_no_gpu(text: str) -> None:
    with pytest.raises(ParseError):
        gpus(Replay({("nvml", "gpusOf", 1, "10"): text}, older=True), [10], 1)


# The connections of this very process.


@each_row(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_says_what_its_peer_has_not_taken(family: socket.AddressFamily, address: str) -> None:
    server = socket.create_server((address, 0), family=family)
    with server, socket.create_connection(server.getsockname()[:2]) as sends, server.accept()[0] as reads:
        sends.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                sends.send(b"x" * 65536)
        found = {each["local"]: each for each in json.loads(tcp_sockets.connections([str(os.getpid())]))}
        host = address if family == socket.AF_INET else "[::1]"
        own, its = (f"{host}:{each.getsockname()[1]}" for each in (sends, reads))
    assert found[own]["peer"] == its
    assert found[own]["unacknowledged_bytes"] > 0
    assert found[its]["unread_bytes"] > 0


def test_sockets_that_cannot_be_read_are_missing_and_not_none() -> None:
    with pytest.raises(Missing, match="no rank whose sockets can be read"):
        tcp_sockets.connections(["999999999"])


def test_an_agent_of_torchrun_is_never_a_rank_and_its_program_is_not_read() -> None:
    words = ["/v/bin/python", "-u", "/v/bin/torchrun", "--nnodes=2", "--node-rank", "1", "-m", "train", "--nnodes", "9"]
    rows = [
        (words, {"nnodes": "2", "node_rank": "1"}),
        (["python", "-m", "torch.distributed.run", "--standalone", "x.py", "--master-port", "1"], {}),
        (["python", "train.py", "--rdzv-backend", "c10d"], None),
        (["bash"], None),
    ]
    assert [processes.agent_options(given) for given, _ in rows] == [wanted for _, wanted in rows]
    launched = process(9, None, SLURM_PROCID="0", SLURM_STEP_ID="0", SLURM_NTASKS="2") | {"agent": {"nnodes": "2"}}
    ranks = [process(10, 0, 9), process(11, 1, 9)]
    for pid in (0, 9, 10):
        known = found(launched, *ranks, pid=pid)
        assert (pids(known), known.agents, known.others) == ([(10, 0), (11, 1)], (), ())
    alone = found(launched)
    assert (pids(alone), [each.pid for each in alone.agents]) == ([], [9])


def test_ranks_that_call_their_master_otherwise_are_one_job_only_if_they_complete_each_other() -> None:
    by_hand = {"LOCAL_WORLD_SIZE": "", "LOCAL_RANK": ""}
    first, other = process(10, 0, **by_hand), process(11, 1, MASTER_PORT="29501", **by_hand)
    assert pids(found(first, other)) == [(10, 0), (11, 1)]
    assert pids(found(process(10, 0), process(11, 1, MASTER_PORT="29501"))) == [(10, 0), (11, 1)]
    three = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": ""}  # and rank 3 was never started
    of_one = [process(10 + n, n, 9, MASTER_PORT=str(29500 + n), **three) for n in range(3)]
    assert pids(found(*of_one)) == [(10, 0), (11, 1), (12, 2)]
    rows = [
        process(11, 0, MASTER_PORT="29501", **by_hand),  # the same rank
        process(11, 1, MASTER_PORT="29501", **by_hand) | {"user": 1001},
        process(11, 1, MASTER_PORT="29501", **by_hand) | {"start": 10**6},
        process(11, 1, MASTER_PORT="29501", **by_hand, WORLD_SIZE="3"),
        process(11, 1, MASTER_PORT="29501", LOCAL_RANK="", LOCAL_WORLD_SIZE="1"),
    ]
    assert all(len(found(first, each).others) == 2 for each in rows)
    assert len(rows) >= 5
    elsewhere = process(12, 2, 9, MASTER_PORT="29502", MASTER_ADDR="n2", **three)  # nothing of it is the same
    assert len(found(*of_one[:2], elsewhere).others) == 3


def test_where_a_process_would_send_and_who_listens_at_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        port = server.getsockname()[1]
        rows = json.loads(tcp_sockets.at_port(port, [str(os.getpid())]))
        assert [each["state"] for each in rows] == ["listening", "established"]
        assert rows[0]["pid"] == os.getpid()
        nobody = json.loads(tcp_sockets.at_port(port, []))
        assert {each["pid"] for each in nobody} == {0}
        assert [each.get("stranger", "").split()[:1] for each in nobody] == [[str(os.getpid())], []]
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        with child:
            assert not json.loads(tcp_sockets.at_port(port, [str(child.pid)]))[0]["stranger"]  # its parent listens
    assert live.LiveHost(set(), lambda _: False).ask("route", "127.0.0.1") == "127.0.0.1"


def test_a_sleep_of_c_is_told_from_one_of_python() -> None:
    natives = []
    for code in ("import time; time.sleep(60)", "import ctypes; ctypes.CDLL(None).usleep(60_000_000)"):
        with subprocess.Popen([sys.executable, "-c", f"print(flush=True); {code}"], stdout=subprocess.PIPE) as child:
            assert child.stdout
            child.stdout.readline()
            deadline = time.monotonic() + 10
            while (seen := waits.waits(f"/proc/{child.pid}"))["call"] != "nanosleep":
                assert time.monotonic() < deadline, seen
            natives.append(seen["native"])
            child.kill()
    assert natives == [False, True]


def test_a_rank_without_a_process_is_absent_where_its_node_is_known_to_be_this_one() -> None:
    def by_hand(pid: int, rank: int, master: str = "n1", local: str = "") -> dict[str, Any]:
        return process(pid, rank, MASTER_ADDR=master, LOCAL_RANK=local, WORLD_SIZE="4") | {
            "variables": {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": master, "MASTER_PORT": "1"}
            | ({"LOCAL_RANK": local} if local else {})
        }

    rows = [
        (found(by_hand(10, 0, "127.0.0.1")).absent, (1, 2, 3)),
        (found(by_hand(10, 1, "localhost"), by_hand(11, 3, "localhost")).absent, (0, 2)),
        (found(by_hand(10, 0, local="0"), by_hand(11, 2, local="2")).absent, (1,)),
        (found(by_hand(10, 0, local="0"), by_hand(11, 2, local="1")).absent, ()),  # every second rank is elsewhere
        (found(by_hand(10, 0), by_hand(11, 2)).absent, ()),
    ]
    assert [absent for absent, _ in rows] == [wanted for _, wanted in rows]


def test_inside_a_step_of_slurm_its_own_job_is_the_one_that_is_meant() -> None:
    first, other = process(10, 0, SLURM_JOB_ID="1"), process(30, 0, MASTER_PORT="29501", SLURM_JOB_ID="2")

    def of(own: dict[str, str | None]) -> LocalRanks:
        said = json.dumps({"time_s": 1.0, "processes": [first, other]})
        answers: Any = {("ranks", 0, *QUESTION): said, ("env",): json.dumps(own)}
        return local_ranks.run(Replay(answers, older=False), AskedJob())

    assert pids(of({"SLURM_JOB_ID": "2"})) == [(30, 0)]
    assert [len(of(own).others) for own in ({}, {"SLURM_JOB_ID": "3"}, {"SLURM_JOB_ID": None})] == [2, 2, 2]


def test_the_thread_for_which_the_first_waits_is_read() -> None:
    def stack(tid: int, *frames: tuple[str, str]) -> dict[str, Any]:
        return {"os_thread_id": tid, "frames": [{"name": name, "filename": file, "line": 1} for name, file in frames]}

    joins = stack(7, ("join", "/usr/lib/python3.11/threading.py"), ("main", "/home/u/train.py"))
    event = stack(7, ("wait", "/usr/lib/python3.11/threading.py"), ("main", "/home/u/train.py"))
    collective = stack(8, ("all_reduce", f"/v{stacks.C10D}"), ("work", "/home/u/train.py"))
    aside = stack(9, ("poll", "/home/u/log.py"))
    computes = stack(7, ("forward", "/home/u/train.py"))
    rows = [
        ([joins, aside, collective], "all_reduce"),
        ([joins, aside], "poll"),
        ([event, aside], "wait"),
        ([event, aside, collective], "all_reduce"),
        ([joins, aside, stack(10, ("poll", "/home/u/other.py"))], "join"),
        ([joins, stack(11, ("run", "/usr/lib/python3.11/site-packages/tqdm/_monitor.py"))], "join"),
        ([computes, collective], "forward"),
    ]
    for threads, name in some(rows):
        found = stacks.stack(Replay({("stacks", 7, 1): json.dumps(threads)}, older=False), 7, 1)
        assert isinstance(found, stacks.ThreadStack)
        assert found.frames[0].name == name


def test_a_worker_that_has_outlived_its_rank_is_not_the_rank() -> None:
    """It has the sockets of its rank, so that the others see no end of it."""
    worker = {**process(31, 1), "name": "pt_data_worker"}
    known = found(process(10, 0), worker)
    assert (pids(known), known.absent) == ([(10, 0)], (1,))


def test_a_number_that_two_processes_were_started_with_names_both() -> None:
    beside = [
        (process(12, 0, 5), (12,)),
        (process(12, 0, 10), ()),  # a worker of the rank
        (process(12, 0, 1), ()),  # one that has outlived another
        ({**process(12, 0, 5), "program": "tail.py"}, ()),
        (process(12, 0, 5, library=False), ()),
    ]
    for other, twins in some(beside):
        assert found(process(10, 0, 5), other).ranks[0].twins == twins


def test_what_has_started_an_agent_of_torchrun_is_not_a_rank() -> None:
    starter = process(10, None) | {"variables": {}}
    agent = process(11, None, 10) | {"agent": {"nnodes": "2", "rdzv_endpoint": "127.0.0.1:29400"}, "variables": {}}
    both = found(starter, agent, pid=10)
    assert (both.ranks, [each.pid for each in both.agents]) == ((), [11])
    assert pids(found(starter, pid=10)) == [(10, None)]


def test_who_holds_a_lock_is_read_from_what_the_kernel_lists() -> None:
    text = (
        "1: POSIX  ADVISORY  READ 77 00:1b:5 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 4242 fd:01:77 0 EOF\n"
        "2: -> FLOCK  ADVISORY  WRITE 4243 fd:01:77 0 EOF\n"
        "3: OFDLCK ADVISORY  WRITE -1 fd:01:78 0 EOF\n"
        "3: -> POSIX  ADVISORY  WRITE 4244 fd:01:78 0 EOF\n"
    )
    rows = [(4243, 4242), (4244, 0), (4242, 0), (77, 0), (9, 0)]
    assert [waits.lock_holder(pid, text) for pid, _ in rows] == [holder for _, holder in rows]
    assert [waits.lock_holder(1, each) for each in ("", "1: ->", "garbage", "1: -> FLOCK A W 1\n1: F A W x")] == [0] * 4


def test_of_real_processes_the_lock_s_holder_and_the_fifo_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.fifo")
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); print(flush=True)\n"
        "fcntl.flock(file, fcntl.LOCK_EX); open(sys.argv[2])"
    )
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, "-S", "-c", code, str(tmp_path / "lock"), str(tmp_path / "in.fifo")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            try:
                at = seen_in(child.pid, "flock")
                assert (at["file"], at["holder"]) == (str(tmp_path / "lock"), os.getpid())
                with subprocess.Popen([*command[:3], "input()"], stdin=-1, stdout=-1, pass_fds=[held.fileno()]) as heir:
                    held.close()
                    at = seen_in(child.pid, "flock")
                    heir_pid = heir.pid
                    heir.kill()
                kept = at.get("holder", 0), at.get("taker", 0), at.get("users")
                assert kept in ((0, os.getpid(), [heir_pid]), (heir_pid, 0, None))  # without /proc/locks: its only user
                assert seen_in(child.pid, "open")["file"] == str(tmp_path / "in.fifo")
            finally:
                child.kill()


def test_of_a_process_that_waits_for_input_the_file_is_named_and_whether_it_takes_connections() -> None:
    serves = "socket.create_server(('127.0.0.1', 0))"
    programs = {
        f"s = {serves}; s.settimeout(60); s.accept()": ("poll", True, "a socket that listens at 127.0.0.1:"),
        f"s = {serves}; s.accept()": ("accept", True, "a socket that listens at 127.0.0.1:"),
        f"import select; select.select([{serves}], [], [])": (
            "select", True, "a socket that listens at 127.0.0.1:"),
        "import select; p = select.poll(); p.register(0); p.poll()": ("poll", False, "pipe:["),
        f"import select; e = select.epoll(); e.register({serves}.detach()); e.poll()": (
            "epoll_wait", True, "a socket that listens at 127.0.0.1:"),
    }  # fmt: skip
    wrong = []
    for program, (call, listens, file) in programs.items():
        command = [sys.executable, "-S", "-c", f"import socket\n{program}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            try:
                at = seen_in(child.pid, call)
            finally:
                child.kill()
        if at.get("listens", False) is not listens or not at["file"].startswith(file):
            wrong.append((program, at))
    assert not wrong


def test_how_long_a_process_stood_is_the_same_on_every_processor() -> None:
    """The clocks of two processors' schedulers are seconds apart on a machine whose hypervisor takes time."""
    usual = os.sched_getaffinity(0)
    began, sleeping = time.monotonic(), []
    for processor in sorted(usual)[:4]:
        os.sched_setaffinity(0, {processor})
        sleeping.append(subprocess.Popen(["sleep", "60"]))
    os.sched_setaffinity(0, usual)
    try:
        time.sleep(2.5)
        starts = [int(processes.stat_or_none(f"/proc/{each.pid}")[19]) for each in sleeping]  # type: ignore[index]
        stood = [processes._process(each.pid, start)["still_s"] for each, start in zip(sleeping, starts, strict=True)]
        most = time.monotonic() - began
    finally:
        for each in sleeping:
            each.kill()
            each.wait()
    if stood == [None] * len(stood):
        pytest.skip("this kernel does not say when a thread last ran")
    assert all(0.5 < each < most + 0.2 for each in stood if each is not None), (stood, most)
    assert os.sched_getaffinity(0) == usual


def seen_in(pid: int, call: str) -> dict[str, Any]:
    """Return what a process does once it is in a call."""
    start = int(processes.stat_or_none(f"/proc/{pid}")[19])  # type: ignore[index]
    end = time.monotonic() + 20
    while (at := processes._process(pid, start))["call"] != call and time.monotonic() < end:
        time.sleep(0.05)
    assert at["call"] == call
    return at


def test_a_process_that_has_ended_and_is_not_waited_for_is_listed_with_its_state() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        listed = processes._ranks(os.getpid(), ["RANK"], [])
    assert [each["state"] for each in listed["processes"] if each["pid"] == ended.pid] == ["Z"]
