"""What the kernel shows of processes and their sockets: of this very process, and of ones that wait for something."""

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

from ncclprobe.host import live, processes, tcp_sockets
from ncclprobe.model.errors import Missing
from tests.each_row import each_row


def start_of(pid: int) -> int:
    return int((processes.stat_or_none(f"/proc/{pid}") or [])[19])


@contextmanager
def python(code: str, *argv: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-S", "-c", code, *argv], **options) as child:
        try:
            yield child
        finally:
            child.kill()


def seen_in(pid: int, call: str) -> dict[str, Any]:
    """Return what a process does once it is in a call."""
    end = time.monotonic() + 20
    while (at := processes.state_of_process(pid, start_of(pid)))["call"] != call and time.monotonic() < end:
        time.sleep(0.05)
    assert at["call"] == call
    return at


def test_a_process_is_known_by_its_start_and_not_by_its_number_alone() -> None:
    start = start_of(os.getpid())
    assert processes.state_of_process(os.getpid(), start)["state"] in "RS"
    with pytest.raises(Missing, match="its number is of another"):
        processes.state_of_process(os.getpid(), start + 1)
    with pytest.raises(Missing, match=r"it has ended$"):
        processes.state_of_process(999999999, start)


def test_the_control_group_that_ranks_share_is_read_once_per_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_CGROUPS", tmp_path)
    held = []
    for micros, look in ((500_000, 0), (700_000, 0), (700_000, 1)):
        (tmp_path / "cpu.stat").write_text(f"throttled_usec {micros}\n")
        held.append(processes.group_state("0::/own\n", look)["held_s"])
    assert held == [0.5, 0.5, 0.7]


def test_no_value_of_a_variable_is_told_that_may_not_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"RANK": "0", "API_TOKEN": "hunter2", "MASTER_ADDR": "user:hunter2@n1"}
    monkeypatch.setattr(processes, "_pids", lambda: [1])
    monkeypatch.setattr(processes, "environment", lambda _: environ)
    (only,) = processes.ranks_here(0, ["RANK"], {"RANK", "MASTER_ADDR"})["processes"]
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
    assert processes.ranks_here(0, ["RANK"], set())["processes"] == [{"pid": 70, "agent": None}]


def test_a_file_that_blocks_is_left_to_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(processes, "_pids", lambda: [1])
    monkeypatch.setattr(processes, "BLOCKED_S", 0.01)
    monkeypatch.setattr(processes, "environment", lambda _: never.wait(20) and {})
    answer = processes.ranks_here(0, ["RANK"], set())
    never.set()
    assert "no answer within 0.01 s" in answer["late"][0]


def test_a_process_that_has_ended_and_is_not_waited_for_is_listed_with_its_state() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        listed = processes.ranks_here(os.getpid(), ["RANK"], [])
    assert [each["state"] for each in listed["processes"] if each["pid"] == ended.pid] == ["Z"]


def test_what_threads_of_a_program_run_is_counted_without_its_first() -> None:
    start, over, ran = start_of(os.getpid()), threading.Event(), []
    thread = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(over.is_set, True)])
    thread.start()
    began = time.monotonic()
    for _ in range(2):
        ran.append(processes.state_of_process(os.getpid(), start)["others_ran_s"])
        time.sleep(0.3)
    took_s = time.monotonic() - began
    over.set()
    thread.join()
    assert 0.01 < ran[1] - ran[0] < took_s + 0.1


# Sockets.


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
    assert (found[own]["peer"], found[own]["pid"]) == (its, os.getpid())
    assert found[own]["unacknowledged_bytes"] > 0
    assert found[its]["unread_bytes"] > 0
    with pytest.raises(Missing, match="no rank whose sockets can be read"):
        tcp_sockets.connections(["999999999"])


def test_where_a_process_would_send_and_who_listens_at_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        port = server.getsockname()[1]
        rows = json.loads(tcp_sockets.at_port(port, [str(os.getpid())]))
        assert [each["state"] for each in rows] == ["listening", "established"]
        assert rows[0]["pid"] == os.getpid()
        nobody = json.loads(tcp_sockets.at_port(port, []))
        assert {each["pid"] for each in nobody} == {0}
        assert [each.get("stranger", "").split()[:1] for each in nobody] == [[str(os.getpid())], []]
        with python("input()", stdin=subprocess.PIPE) as child:
            assert not json.loads(tcp_sockets.at_port(port, [str(child.pid)]))[0]["stranger"]  # its parent listens
    assert live.LiveHost(set(), lambda _: False).ask("route", "127.0.0.1") == "127.0.0.1"


# What a process waits for.


def test_of_real_processes_the_lock_s_holder_and_the_fifo_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.fifo")
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); print(flush=True)\n"
        "fcntl.flock(file, fcntl.LOCK_EX); open(sys.argv[2])"
    )
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with python(code, str(tmp_path / "lock"), str(tmp_path / "in.fifo"), stdout=subprocess.PIPE) as child:
            at = seen_in(child.pid, "flock")
            assert (at["file"], at["holder"]) == (str(tmp_path / "lock"), os.getpid())
            with python("input()", stdin=-1, stdout=-1, pass_fds=[held.fileno()]) as heir:
                held.close()
                at = seen_in(child.pid, "flock")
            kept = at.get("holder", 0), at.get("taker", 0), at.get("users")
            assert kept in ((0, os.getpid(), [heir.pid]), (heir.pid, 0, None))  # without /proc/locks: its only user
            assert seen_in(child.pid, "open")["file"] == str(tmp_path / "in.fifo")


SERVES = "socket.create_server(('127.0.0.1', 0))"
LISTENS = "a socket that listens at 127.0.0.1:"


@each_row(
    ("program", "call", "listens", "file"),
    [
        (f"s = {SERVES}; s.settimeout(60); s.accept()", "poll", True, LISTENS),
        (f"s = {SERVES}; s.accept()", "accept", True, LISTENS),
        (f"import select; select.select([{SERVES}], [], [])", "select", True, LISTENS),
        ("import select; p = select.poll(); p.register(0); p.poll()", "poll", False, "pipe:["),
        (f"import select; e = select.epoll(); e.register({SERVES}.detach()); e.poll()", "epoll_wait", True, LISTENS),
    ],
)
def test_of_a_process_that_waits_for_input_the_file_is_named_and_whether_it_takes_connections(
    program: str, call: str, listens: bool, file: str
) -> None:
    with python(f"import socket\n{program}", stdin=subprocess.PIPE) as child:
        at = seen_in(child.pid, call)
    assert at.get("listens", False) is listens
    assert at["file"].startswith(file)


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
        stood = [processes.state_of_process(each.pid, start_of(each.pid))["still_s"] for each in sleeping]
        most = time.monotonic() - began
    finally:
        for each in sleeping:
            each.kill()
            each.wait()
    if stood == [None] * len(stood):
        pytest.skip("this kernel does not say when a thread last ran")
    assert all(0.5 < each < most + 0.2 for each in stood if each is not None), (stood, most)
    assert os.sched_getaffinity(0) == usual
