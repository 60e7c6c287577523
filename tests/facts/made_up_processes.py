"""Folders of processes as the kernel shows them, and what is made of each: `texts-processes.txt` keeps it."""

import ctypes
import io
import json
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import starmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pynvml

from ncclprobe.host import (
    command,
    deadlines,
    files,
    limited_child,
    live,
    nvml_child,
    nvml_server,
    path_rate,
    processes,
    py_spy,
    rank_servers,
    settings,
    tcp_sockets,
    waits,
)
from ncclprobe.host.live import LiveHost
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, TimedOut
from tests.facts.made_up import TEXTS

Files = Mapping[str, str | bytes]
_POLL, _SELECT, _PATH, _END = 0x100, 0x200, 0x300, 4090
_MEMORY = bytearray(8192)
_MEMORY[_POLL : _POLL + 24] = struct.pack("=i4xi4xi4x", 6, 5, 0)
_MEMORY[_SELECT : _SELECT + 3] = bytes((0x41, 0x02, 0xFF))
_MEMORY[_PATH : _PATH + 8], _MEMORY[_END : _END + 9] = b"/data/x\0", b"/abcdefg\0"
_OPEN: Files = {"fd/0": "->pipe:[1]", "fd/5": "->socket:[9]", "fd/6": "->/data/file", "fd/9": "->socket:[8]",
                "fdinfo/3": "pos: 0\ntfd:        6 events: 19\n", "mem": bytes(_MEMORY),
                "fdinfo/4": "pos:\t0\ntfd:        9 events: 19\ntfd:        5 events: 1 data: 7\n"}  # fmt: skip
_LOCKS = TEXTS["/proc/locks"]
_WAITS_77 = _LOCKS.replace("4243", "77")
_STAT = [str(number) for number in range(40)]


@contextmanager
def _shown(files: Files, **instead: Any) -> Iterator[str]:
    """Give the folder of a process 77 with these files; `instead` are names of processes.py and what they are."""
    with tempfile.TemporaryDirectory() as root, ExitStack() as changes:
        for name, value in instead.items():
            changes.enter_context(mock.patch(f"ncclprobe.host.{name.replace('__', '.')}", value))
        for name, text in files.items():
            place = Path(root, "77", name)
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(text, bytes):
                place.write_bytes(text)
            elif text.startswith("->"):
                place.symlink_to(text[2:])
            else:
                place.write_text(text)
        yield f"{root}/77"


def _waiting(syscall: str, machine: str = "x86_64", locks: str = "", *users: int) -> object:
    message = bytes(4) + struct.pack("!2H", 29500, 0) + bytes((10, 0, 0, 1)) + bytes(60)
    with _shown(
        {**_OPEN, "syscall": syscall}, waits__os__uname=lambda: SimpleNamespace(machine=machine),
        waits___locks=lambda: locks, waits__sockets=lambda states: [(socket.AF_INET, 9, memoryview(message))],
        waits___opened=lambda folder: {"/data/file"} if folder in {f"/proc/{user}/fd" for user in users} else set(),
    ) as path:  # fmt: skip
        return waits.waits(path)


def _still(sched: str, fields: int = 40, lag: float | None = 2.5) -> object:
    time = SimpleNamespace(monotonic=lambda: 100.0)
    with _shown({"sched": sched}, processes___scheduler_lag_s=lambda cpu, look: lag, processes__time=time) as path:
        return processes.still_s(path, _STAT[:fields], 0)


def _age(start: int) -> float:
    with mock.patch("time.clock_gettime", return_value=1000.0):
        return processes.age_s(start)


def _group(lines: str, files: Files) -> object:
    with _shown(files) as path, mock.patch.object(processes, "_CGROUPS", Path(path)):
        return processes.group_state.__wrapped__(lines, 0)


def _of(read: Callable[[str], object]) -> Callable[..., object]:
    def of_files(**files: str) -> object:
        with _shown(files) as path:
            return read(path)

    return lambda files: of_files(**files)


def _connection(state: int, *attributes: tuple[int, bytes]) -> object:
    message = bytes((2, state, 0, 0)) + struct.pack("!2H", 4711, 29500) + b"\x0a\0\0\1" + bytes(12) + b"\x0a\0\0\2"
    message += bytes(28) + struct.pack("=2I", 3, 5) + bytes(8)
    for kind, data in attributes:
        message += (struct.pack("=HH", 4 + len(data), kind) + data).ljust((len(data) + 7) & ~3, b"\0")
    return tcp_sockets.connection_of(socket.AF_INET, memoryview(message))


_TORCH, _SPAWN = "/p/torch/distributed", "/p/torch/multiprocessing/spawn"
_OF_CALLS = ("src", "dst", "group_src", "group_dst", "tag", "ranks", "group_name", "init_method", "world_size", "rank",
             "backend", "hostname", "port", "key", "other")  # fmt: skip


def _frame(file: str, values: Mapping[str, str | None] | None, arguments: int = 0, name: str = "f") -> dict[str, Any]:
    own = [{"name": name, "repr": text, "arg": number < arguments}
           for number, (name, text) in enumerate((values or {}).items())]  # fmt: skip
    return {"name": name, "filename": file, "line": 1, "locals": own if values is not None else None}


def _numbered(*frames: Any) -> object:
    said = [{"os_thread_id": 8, "frames": []}, {"os_thread_id": 7, "frames": frames}]
    with mock.patch.object(py_spy, "dump", return_value=json.dumps(said)):
        return py_spy.numbers("7")


def _stacks(asked: tuple[str, str, int] | None, *frames: Any) -> object:
    said = [{"os_thread_id": 7, "thread_name": "MainThread", "frames": frames}, {"os_thread_id": 8, "frames": []}]
    with (
        mock.patch.object(py_spy, "dump", return_value=json.dumps(said)),
        mock.patch.object(py_spy.polls, "asked", side_effect=lambda pid, own: asked and (*asked[:2], len(own))),
    ):
        return json.loads(py_spy.stacks("7"))


def _dumped(program: str, *said: str) -> object:
    answers = iter(said)
    with mock.patch.multiple(
        py_spy,
        installed=lambda: program or None,
        run=lambda argv, patience_s: (answer := next(answers)) and f"{argv} {patience_s} {answer}",
    ):
        return _refused(py_spy.dump, "7")


def _refused(work: Callable[..., object], *given: Any) -> object:
    try:
        return work(*given)
    except HostError as error:
        return f"{type(error).__name__}: {error}"


def _conf(line: str) -> str:
    return LiveHost({"NCCL_DEBUG", "NCCL_ALGO", "http_proxy"}, lambda name: name.startswith("NCCL"))._conf_line(line)


def _called(host: str, family: socket.AddressFamily) -> object:
    message = bytes(4) + struct.pack("!2H", 29500, 1) + socket.inet_pton(family, host).ljust(64, b"\7")
    return rank_servers.address_to_call(family, memoryview(message))


def _delegated(target: str, *question: str) -> object:
    with mock.patch(f"ncclprobe.host.{target}", side_effect=lambda *given, **more: f"{given} {more}"):
        return LiveHost((), bool).ask(*question)


def _resident(*pages: tuple[int, int] | None) -> object:
    extents = [path_rate.Extent(3, 0, number) for number, _ in enumerate(pages)]
    with mock.patch("os.posix_fadvise"), mock.patch.object(path_rate, "_resident_pages", side_effect=pages):
        return path_rate.drop_pages(extents)


def _of_port(most: int, *pids: str) -> object:
    """What is told of three sockets at a port: of process 7, of its parent 5 and of a stranger 9."""
    open_files = {"7": [71], "5": [51], "9": [91], "self": [99]}
    told = [(1, 71), (10, 51), (10, 91)]
    messages = [(socket.AF_INET, inode, memoryview(bytes((2, state)) + bytes(70))) for state, inode in told]
    with mock.patch.multiple(
        tcp_sockets, sockets_of=lambda pid, most=None: open_files.get(pid, []), same_network=lambda process: None,
        sockets=lambda *given: messages, parent_of=lambda pid: {"7": "5", "5": "0"}.get(pid, ""),
        _text=lambda pid, name: f"name-{pid}\n", os=SimpleNamespace(listdir=lambda path: ["self", "7", "9", "8"]),
    ), mock.patch.object(tcp_sockets.bounds, "JOB_CONNECTIONS", most):  # fmt: skip
        rows = [*json.loads(tcp_sockets.at_port(29500, pids)), *json.loads(tcp_sockets.connections(pids))]
    return [(each["pid"], each["inode"], each["state"], each.get("stranger")) for each in rows]


def _no_library(why: str, searched: str = "") -> object:
    own = {"LD_LIBRARY_PATH": searched}
    with mock.patch("ctypes.CDLL", side_effect=OSError(why)), mock.patch.dict("os.environ", own, clear=True):
        return _refused(nvml_child.refuse_without_library)


def _field(kind: int, said: int = 0) -> object:
    values = SimpleNamespace(dVal=0.5, uiVal=1, ulVal=2, ullVal=3, sllVal=-4, siVal=-5, usVal=6)
    value = SimpleNamespace(nvmlReturn=said, valueType=kind, value=values)
    library = nvml_server.Library()
    return library._attempt(lambda: nvml_server.field_value(library, value))


def _descend(most: int) -> object:
    children = {"/x/task/1/children": "60 61 ", "/x/task/2/children": "70", "/proc/60/task/60/children": "62"}
    with _shown(
        {}, processes__text_or_empty=lambda path: children.get(path, ""), processes__bounds__JOB_CHILDREN=most,
        processes__stat_or_none=lambda own: None if own.endswith("61") else [*_STAT, own],
        processes__activity=lambda own, stat: {},
    ):  # fmt: skip
        return list(processes.children("/x", ["1", "2"]))


def _ran(script: str) -> str:
    with mock.patch("ncclprobe.model.bounds.ANSWER_BYTES", 10 if "?" not in script else 1000):
        try:
            return command.run(["sh", "-c", script], 10.0)
        except HostError as error:
            return f"{type(error).__name__}: {error}"


def _late(patience_s: float) -> str | None:
    try:
        return deadlines.within(patience_s, lambda: time.sleep(0.5), "x")
    except TimedOut as error:
        return str(error)


def _patience(*question: str) -> object:
    host = LiveHost((), bool)
    with mock.patch.object(host, "_ask", side_effect=lambda kind, rest, asked, patience_s: (patience_s, asked)):
        return host.ask(*question)


def _said_by_child(said: str, started: bool = False) -> object:
    """What is told of a child's answer; without one, what it was asked."""
    child = processes.ProcessChild({"b", "a"})
    child._child._process = mock.Mock() if started else None
    with mock.patch.object(processes.LimitedChild, "ask", side_effect=lambda request, patience_s: said or json.dumps(
        {"said": [json.loads(request), patience_s]})):  # fmt: skip
        return _refused(child.ask, "ranks", ("1", "RANK"), 1.5)


def _with(place: str, instead: Any, work: Callable[..., object], *given: Any) -> object:
    with mock.patch(f"ncclprobe.host.{place}", instead):
        return work(*given)


_PROCESSES: Mapping[int, tuple[str, str, int, Any, str]] = {
    1: ("systemd", "S", 0, {"RANK": "9", "X": "1"}, ""), 2: ("python", "S", 0, {"RANK": "8"}, ""),
    5: ("python3", "S", 1, {"A": "u:p@h"}, "python torchrun --nnodes=2 x.py"), 9: ("pt_main_thread", "Z", 5, {}, ""),
    6: ("python", "R", 5, {"RANK": "0", "A": "b", "B": "c"}, "python x.py"), 7: ("bash", "S", 6, {"WORLD": ""}, ""),
    8: ("python", "S", 6, {"X": ""}, ""), 20: ("python", "S", 1, Denied("x"), ""),
    21: ("bash", "S", 1, Denied("x"), ""), 22: ("python", "S", 1, Missing("x"), ""),
    30: ("bash", "S", 20, {}, "bash torchrun x"), **dict.fromkeys(range(40, 57), ("slow", "D", 1, Failed("held"), "")),
}  # fmt: skip


def _ranks(root: int, *names: str) -> object:
    """Which of these processes may be ranks; 2 is a thread of the kernel, 8 this process, and 31 has ended."""

    def stat(path: str) -> list[str] | None:
        own = _PROCESSES.get(pid := int(path.rpartition("/")[2]))
        return own and [own[1], str(own[2]), *"0000", str(0x200040 * (pid == 2)), *_STAT[7:], own[0]]

    def environment(pid: int) -> Mapping[str, str]:
        if isinstance(own := _PROCESSES[pid][3], HostError):
            raise own
        return own

    with mock.patch.multiple(
        processes, _pids=lambda: [*_PROCESSES, 31], stat_or_none=stat, environment=environment, time=mock.Mock(),
        _words_or_none=lambda pid: _PROCESSES[pid][4].split(" "), os=mock.Mock(getpid=lambda: 8, getppid=lambda: 1),
        _candidate=lambda pid, stat, parent, kept: {"pid": pid, "stat": [*stat[:2], stat[-1]], "of": parent} | kept,
    ):  # fmt: skip
        found = processes.ranks_here(root, names, {"A", "RANK"})
    return found["processes"], found["hidden"], len(found["late"]), found["late"][:1]


def _datagram(kind: int, data: bytes) -> bytes:
    return (struct.pack("=IHHII", 16 + len(data), kind, 0, 0, 0) + data).ljust((19 + len(data)) & ~3, b"\0")


def _hidden(path: str, shown: bool = True) -> object:
    """Why a path is not shown where each folder has a file system of its own."""
    with mock.patch.multiple(live.Path, stat=lambda own: SimpleNamespace(st_dev=str(own)), exists=lambda own: shown):
        return live.hidden(path)


def _asked_twice(patience_s: float, said: bytes | HostError, held: bool = False) -> object:
    """What NVML's child says to two questions, the second of which it could answer."""
    child = nvml_child.NvmlChild()
    assert not held or child._lock.acquire(timeout=0.0)
    with mock.patch.multiple(nvml_child, refuse_without_library=mock.Mock(), time=mock.Mock(monotonic=lambda: 5.0)):
        child._child.ask = mock.Mock(side_effect=[said, b'{"said": 2}'])  # type: ignore[method-assign]
        return [_refused(lambda: child.call("f", 1, patience_s=patience_s)) for _ in range(2)]


def _kinds(codes: Iterable[int]) -> object:
    library = nvml_server.Library()
    library.nvml = pynvml
    return [library._kind(code) for code in codes]


def _below(path: str) -> object:
    listed = [[each.removeprefix(path) for each in kind] for kind in path_rate.list_folder(path, 999)]
    return [(name.removeprefix(path), size) for name, size in path_rate.find_files(path)], listed


def _told_of_sockets(*answers: bytes) -> object:
    """What is read of the kernel's datagrams, and what it was asked."""
    asked = mock.MagicMock()
    asked.__enter__.return_value.recv.side_effect = answers
    with mock.patch.object(tcp_sockets.socket, "socket", return_value=asked):
        try:
            found: object = [bytes(each) for each in tcp_sockets.dumped(10, 6, 29500, 7)]
        except OSError as error:
            found = repr(error), error.filename
    return found, asked.__enter__.return_value.sendall.call_args[0]


_INFO = bytes((1, 0, 2, 3)) + bytes(48) + struct.pack("=2I", 700, 1500) + bytes(60) + struct.pack("=2Q", 9, 11)
_V1 = "3:freezer:/job\n2:memory:/job\n1:cpu:/job\n"
_RAN = {"schedstat": "1500000000 1 1"}


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    return {
        "names of system calls": (lambda machine: sorted(waits.SYSCALLS[machine].items()), [("x86_64",), ("aarch64",)]),
        "what a process waits for": (_waiting, [(syscall,) for syscall in ("", "running", "-1 0x0 0x0", "0 0x5 0x0",
            "0 0x0 0x1", "1 0x6", "7 0x100 0x3 0x0", "7 0x100 0x1", "7 0x110 1", "7 0x100 0x0", "7 0x108 0x40",
            "23 0xa 0x200", "23 0x7 0x200", "270 0x1 0x200", "23 0xffff 0x202", "232 0x4", "232 0x3", "281 0x8",
            "61 0x3c", "61 0xffffffffffffffff", "61 0x3fffff", "61 0x400000", "247 0x1 0x3c", "2 0x300",
            "257 0xff 0x300", "257 0x1 0xffa", "2 0xffffff", "35 0x7f 0x0", "230 0x0 0x0 0x7", "230 0x1 0x0",
            "230 0x0 0x1", "2 0xffffffffffffffff", "42 0x9", "43 0x5", "43 0x9",
            "288 0x5", "45 0x9", "202 0x1", "999 0x5", "72 0x9 0x7")]),
        "what it waits for on ARM": (lambda syscall: _waiting(syscall, "aarch64"), ["56 0x1 0x300", "101 0x7 0x0",
            "115 0x0 0x0", "115 0x1 0x0", "63 0x6", "73 0x100 0x2", "22 0x4", "95 0x1 0x3c"]),
        "what it waits for elsewhere": (lambda syscall: _waiting(syscall, "riscv64"), ["63 0x6"]),
        "who holds a lock": (lambda *more: _waiting("73 0x6 0x2", "x86_64", *more), [
            ("",), ("", 1), ("", 77), (_WAITS_77, 4242), (_WAITS_77,), (_WAITS_77, 1), (_LOCKS, 1)]),
        "who holds a lock by the kernel's list": (waits.lock_holder, [*((pid, _LOCKS) for pid in (4243, 4244, 4242, 9)),
            *((1, each) for each in ("1: ->", "garbage", "1: -> FLOCK A W 1\n1: F A W x", "1: -> F A 1\n1: F A W 9",
            "2: F A W 9 1\n2: F A W 8", "1: -> F A W 1\n1: F A 9\n1: F A W 8 x\n1: F A W 7",
            "1: -> F A W 1\n2: F A W 9\n1: -> F A 6 2\n1: F A W 5"))]),
        "counters of a process": (_of(lambda path: processes.activity(path, _STAT)), [
            {"io": "rchar: 5\nwchar: 7\nread_bytes: 1000\n", "schedstat": "1500000000 2500000000 9\n",
             "wchan": "ep_poll", "fd/4": "->pipe:[9]", "fd/5": "->pipe:[10]", "fd/6": "->/x"},
            {"wchan": "0\n", "schedstat": "7"}]),
        "how long it stood": (_still, [("x : 1\nse.exec_start     :      5000.250000\n",),
            ("se.exec_start: 5000\n", 37), ("",), ("se.exec_start: 5000\n", 36), ("se.exec_start: 0.0\n",),
            ("se.exec_start: 200000\n",), ("se.exec_start: 5000\n", 40, None)]),
        "what a thread ran": (_of(processes.ran_s), [*({"comm": comm, **_RAN} for comm in (
            "train", "pt_nccl_x", "NCCL Service 0", "cuda-x", "PT_GLOO_x", "xcuda", b"\xff")), {"comm": "train"}]),
        "threads": (_of(processes.threads), [{"task/10/comm": "", "task/9/comm": ""}, {}]),
        "numbers of a file": (_of(lambda path: processes.numbers(f"{path}/status")), [
            {"status": "Name:\tx\nTracerPid:\t7\nVmSwap:\t   12 kB\nodd\nlow 0\nno -1\n"}, {}]),
        "fields of a process": (_of(processes.stat_or_none), [
            *({"stat": f"77 (a) (b) {' '.join(_STAT[:count])}"} for count in (20, 21)), {}, {"stat": ""}]),
        "age of a process": (_age, [50_000, 99_999, 100_001]),
        "the control group of a rank": (_group, [("0::/job\n", {"job/memory.events": "low 0\noom_kill 2\n",
            "job/cgroup.events": "frozen 1\n", "job/cpu.stat": "throttled_usec 500000\n",
            "job/memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull total=9\n"}), (_V1, {
            "memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n", "freezer/job/freezer.state": "FROZEN\n",
            "cpu/job/cpu.stat": "throttled_time 500000000\n"}), (_V1, {"memory/memory.oom_control": "under_oom 0\n",
            "freezer/job/freezer.state": "THAWED\n", "cpu/cpu.stat": "nr_periods 0\n"}),
            ("0::/job\nodd\n", {"cgroup.events": "frozen 0\n"}), ("", {}),
            ("0::/a:b\n1:x\n", {"a:b/cpu.stat": "throttled_usec 500000\nthrottled_time 700000000\n",
                               "a:b/cgroup.events": "frozen 1\n", "a:b/freezer.state": "THAWED\n",
                               "a:b/memory.events": "oom_kill 3\n", "a:b/memory.oom_control": "oom_kill 4\n"}),
            ("0::/a\n", {"a/cgroup.events": "frozen 0\n", "a/freezer.state": "FROZEN\n", "a/memory.events": "",
                         "a/memory.oom_control": "oom_kill 4\n", "a/memory.pressure": "full total=7\n"})]),
        "programs": (lambda *words: (processes.program([*words]), processes.agent_options([*words])), [
            ("/usr/bin/python3", "-u", "/home/u/train.py", "--token", "secret"), ("python", "-m", "pkg.train"),
            ("python", "-c", "print(1)"), ("/opt/bin/solver", "in.dat"), (), ("",), ("bash",), ("x" * 300,),
            ("/v/bin/python", "-u", "/v/bin/torchrun", "--nnodes=2", "--node-rank", "1", "-m", "x", "--nnodes", "9"),
            ("python", "-m", "torch.distributed.run", "--standalone", "x.py", "--master-port", "1"),
            ("python", "-m", "torch.distributed.launch", "--no-python", "--rdzv-backend", "c10d", "--master_port"),
            ("python", *"abcd", "torchrun", "--nnodes=2"), ("python", *"abcde", "torchrun", "--nnodes=2"),
            ("python", "train.py", "--rdzv-backend", "c10d"), ("/v/bin/torchrun", "x.py"),
            ("python", "/v/bin/torchrun", "--rdzv-conf=a=b,c=d", "--rdzv_id", "7", "--nnodes"),
            ("python", "torchrun", "--rdzv-endpoint=u:p@h:1", "--max-restarts", "3", "--nproc-per-node=8", "x.py"),
            ("python", "torchrun", "--standalone=1", "--no-python", "--node_rank=3", "---nnodes=4", "-", "--nnodes=5"),
            ("python", "torchrun", *(f"--{name}={name}" for name in (*processes.AGENT_OPTIONS, "rdzv_id", "x"))),
            *(("python", "torchrun", f"--{name}", "--nnodes=2", "x") for name in (*processes.FLAGS, "max_restarts"))]),
        "stacks of threads": (py_spy.kept_frame, [_frame(*each) for each in (
            ("/t.py", {"src": "1", "peer": "x", "rank": "7", "w": "<torch.distributed.distributed_c10d.Work at 0x1>"}),
            (f"{_TORCH}/c10d.py", {"key": "'a'", "port": "None", "w": "distributed_c10d.Work at", "rank": "<x>"}),
            (f"{_TORCH}/c10d.py", {"args": "(<ProcessGroup at 0x1>)", "ranks": "[" + "1" * 200, "backend": None}),
            (f"{_TORCH}/c10d.py", {"kwargs": "{}"}), (f"{_TORCH}/c10d.py", {"args": "(1, ...)"}), ("/t.py", {}),
            ("/lib/threading.py", {"self": "<Event>", "src": "1"}), ("/filelock/x.py", {"lock_filename": "'/l'"}),
            ("/t.py", {"a": "2", "b": "<frame at 0x1>"}, 2), ("/t.py", {"a": "2", "b": "<frame at 0x1>"}, 1),
            ("/t.py", {"a": "x", "b": "<frame at 0x1>"}, 2), ("/t.py", {"args": "<ProcessGroup at 0x1>"}),
            (f"{_TORCH}/c10d.py", dict.fromkeys(_OF_CALLS, "7")), ("/t.py", dict.fromkeys((*_OF_CALLS, "peer"), "3")),
            ("/torch/utils/cpp_extension.py", {"build_directory": "'/b'", "src": "1"}))]),
        "numbers in variables": (_numbered, [(_frame("t.py", {"rank": "7"}), _frame("t.py", {"rank": "2", "token": "5",
            "world": "3"}, 0, "main")), (_frame("t.py", {"rank": "<Rank>"}), _frame(f"{_SPAWN}.py", {"i": "1"}, 0,
            "_wrap")), (_frame("t.py", {"i": "4", "r": "1" * 12}),), (_frame(f"{_SPAWN}.py", {"i": "1"}),), (_frame(
            "x.py", {"i": "1"}, 0, "_wrap"),), (_frame("t.py", {"rank": None}),), (_frame("t.py", None),),
            (_frame("t.py", dict.fromkeys((*py_spy.RANKS, *py_spy.WORLDS, "x"), "3")),)]),
        "errors of the system": (lambda error: repr(command.as_host_error(error, "x")), [
            FileNotFoundError(2, "no"), NotADirectoryError(20, "no"), PermissionError(13, "Permission denied"),
            PermissionError(1, "Operation not permitted"), PermissionError(), MemoryError(), ValueError("odd"),
            OSError(5, "Input/output error"), Missing("own")]),
        "variables of a process": (command.safe_environment, [{"PATH": "/a:b:./c::/d",
            "LD_LIBRARY_PATH": "/a;$ORIGIN/x:rel", "PYTHONINSPECT": "1", "X": "."}, {"PATH": "",
            "LD_LIBRARY_PATH": "/a;/b"}, {"PATH": ".:b", "PYTHONHOME": "x", "PYTHONPYCACHEPREFIX": "/a:"}]),
        "what a command says": (_ran, [(script,) for script in ("printf 1234567890", "printf 12345678901",
            "printf 12345; printf 123456 >&2", "echo a; echo b  c >&2; exit 3", "echo out; exit 1", "kill -9 $$",
            "printf '?%.0s' $(seq 400) >&2; exit 2")]),
        "late answers": (_late, [0.0625, -1.0]),
        "deadlines": (lambda: deadlines.QUESTION_S, [()]),
        "deadline of a question": (_patience, [("read", "/x"), ("run", "ip"), ("run", "nvidia-smi"), ("nvml", "gpusOf",
            "1"), ("nvml", "x"), ("uname",), *(tuple(kind.split()) for kind in deadlines.QUESTION_S)]),
        "settings": (settings.sanitised, [
            "INFO", "^docker,lo", "mlx5_0:1,mlx5_1:1", "http://me:pw@proxy:3128/", "s3://key:se@cret/rest@host/x",
            "user:pw@host:/x", "https://host/p?token=abc&x=y", "/dev/shm/nccl.%h.%p", "a\udcffb", ":pw@h", "/:pw@h",
            "k=u:p@h", "/a/u:p@h", "u@h", "a:b", "http://h/x?q=1?r=2", "h/x?q", "u:p@v:q@h:/x", "x=:p@h"]),
        "lines of a configuration": (_conf, ["NCCL_DEBUG=INFO=x", " NCCL_ALGO = Ring", "NCCL_NEW=7", "#NCCL_DEBUG=INFO",
            "# NCCL_DEBUG", "setenv NCCL_X 7", "OTHER=7", "OTHER 7", "export:NCCL_DEBUG:7", "OTHER: NCCL_ALGO",
            "\tNCCL_DEBUG=u:p@h\r", "NCCL_DEBUG", "", "http_proxy=http://u:p@h/", "setenv http_proxy h"]),
        "records of the ring": (lambda record: live.ring_line(record.encode()), ["6,1,2500000,-;a;b\n c",
            "6,1,7,-,caller=T1,x;m", "6,1;m", "6,1,7;m", "6,1,x,-;m", "6,1,7", "6,1,7,-;a\\x0ab"]),
        "rules of a firewall": (lambda said: _refused(live.statement_types, said), [
            '{"nftables": [{"rule": {"expr": [{"xt": 1, "match": 2}]}}, {"chain": {}}]}', "{}", "[]", "no",
            '{"nftables": 7}', '{"nftables": [{"rule": {}}]}', '{"nftables": [{"rule": {"expr": [7]}}]}', "[" * 99_999,
            '{"nftables": [7]}']),
        "who answers": (_delegated, [("nvml_child.NvmlChild.call", "nvml", "f", "0"), ("path_child.PathChild.ask",
            "data", "stat", "/x"), ("py_spy.stacks", "stacks", "7", "1"), ("py_spy.numbers", "numbers", "7"),
            ("elf.texts", "elf_texts", "/a", "b"), ("rank_servers.ask_dump", "dump", "7", "3", "1"),
            ("rank_servers.left_dump", "left_dump", "7", "3"), ("rank_servers.ask_server", "server", "7", "p", "1"),
            ("rank_servers.ask_ras", "ras", "a:1", "2", "9"), ("user_limits.lines_of", "user_limits", "7"),
            ("tcp_sockets.connections", "connections", "1", "10", "11"), ("tcp_sockets.at_port", "at_port", "29500",
            "10", "11"), ("elf.objects", "elf_objects", "/a", "b"), ("distributions.versions", "packages"),
            ("live.matching", "kernel_log", "p"), ("elf.cached", "ld_cache", "a", "b")]),
        "pages that stayed": (_resident, [((3, 10), (1, 30)), ((3, 10), None), (None,), ((0, 0),), ((10, 10),), ()]),
        "sockets at a port": (_of_port, [(9, "7"), (9, "9", "7"), (1, "7"), (9, "8", "7")]),
        "NVML that is not there": (_no_library, [("x: No such file",), ("wrong ELF class",), ("x", ":/a")]),
        "values of a field of NVML": (_field, [*((kind,) for kind in range(8)), (0, 3)]),
        "structures of NVML": (nvml_server.plain, [b"a\xff", [1, [b"x", 2.5]], ((7, b"y"),), None]),
        "answers of the child of NVML": (lambda said: _refused(nvml_child.decode_answer, said), [
            b'{"said": 1}', b'{"refused": "Missing"}', b"[1]", b"{}", b'{"refused": "Odd"}', b'{"refused": []}', b"x",
            b"[" * 99_999, b'["said"]']),
        "answers of the child of processes": (lambda asked: processes.answer_of(asked, ()), [
            {"do": "process", "of": ["x", "1"]}, {"do": "process", "of": ["999999999", "1", "2"]},
            {"do": "ranks", "of": []}, {"do": "ranks", "of": ["x", "y"]}]),
        "what a child of processes says": (_said_by_child, [
            ('{"said": {"a": [1]}}',), ('{"refused": "Denied", "why": "x"}',), ("", True), ("", False)]),
        "errors in the child of processes": (lambda error: _with("processes.state_of_process",
            mock.Mock(side_effect=error), processes.answer_of, {"do": "process", "of": ["7", "1"]}, ()), [
            OSError(5, "x"), Missing("x"), ValueError("x"), KeyError("x")]),
        "refusals of NVML": (lambda error: nvml_server.Library()._attempt(mock.Mock(side_effect=error), "f: "), [
            ImportError("x"), AttributeError("x"), TypeError("x"), ctypes.ArgumentError("x"), ValueError("x")]),
        "processes that may be ranks": (_ranks, [
            (0, "RANK"), (0,), (0, "X", "WORLD"), (5, "X"), (6, "X"), (20, "X"), (-1, "X"), (99, "X")]),
        "variables of a running process": (lambda said: _with("processes.bytes_of",
            lambda path: path[-9:].encode() + said, processes.environment, 77), [b"=1\0A=b=c\0D=\0odd\0\xff=1", b""]),
        "parents of processes": (lambda stat: _with("tcp_sockets._text", lambda *_: stat, tcp_sockets.parent_of, "7"), [
            ("7 (a) b) S 5 0",), ("7 (a) S",), ("",)]),
        "namespaces": (_of(lambda path: _refused(tcp_sockets.same_network, Path(path))), [{"ns/net": "->net:[1]"}]),
        "mounts over the kernel's files": (_hidden, [*((f"{folder}/x",) for folder in ("/proc/net", "/proc/sys",
            "/proc/7", "/sys/class", "/sys/bus", "/sys/devices", "/sys/module", "/sys/fs", "/dev", "/process")),
            ("/proc/7/x", False), ("/sys/fs/x", False), ("/proc", False)]),
        "questions to NVML's child": (_asked_twice, [(1.5, b'{"said": [1]}'), (1.5, b"x"), (0.01, b"", True),
            *((1.5, kind("x")) for kind in (TimedOut, Failed, Denied)), (-1.0, TimedOut("x")),
            (1.5, b'{"refused": "Missing", "why": "x"}')]),
        "kinds of NVML's errors": (_kinds, [(range(1, 10),), (range(10, 30),)]),
        "requests to a child": (lambda data, most: [*limited_child.requests(io.BytesIO(data), most)], [
            (limited_child.framed(b"ab") + limited_child.framed(b"") + limited_child.framed(b"abc")[:-1], most)
            for most in (3, 2, 1)]),
        "files below a path": (_of(_below), [{"b/1": "x", "a/z": "xy", "a/.h/2": "q", "c": "z", ".d": "q", "e": "",
            "a/l": "->c", "A/k": "k", "a/y/x/w": "wxyz"}]),
        "lengths of settings": (lambda name: len(settings.recorded(name, "x" * 99_999)), [
            ("A",), ("A_PATH",), ("PATHS",)]),
        "answers about sockets": (_told_of_sockets, [(_datagram(20, b"ab"), b"".join(starmap(_datagram, ((20, b"cdefg"),
            (20, b"h"), (3, b""), (20, b""))))), (_datagram(20, b"ab") + _datagram(2, struct.pack("=i", -13)),)]),
        "owners": (processes.owner, [0, 4294967290]),
        "system calls of a worker server": (rank_servers.ACCEPT_CALLS.get, ["x86_64", "aarch64", "riscv64"]),
        "questions in words": (live.spell_question, [
            *((kind, rest) for kind in ("kernel_log", "ld_cache", "read") for rest in ((), ("/a", "b")))]),
        "flight records": (lambda own: [*rank_servers.dump_files(own, "3")], [
            {}, {"HOME": "/h"}, {"HOME": "", "XDG_CACHE_HOME": "/c"}, {"XDG_CACHE_HOME": "", "HOME": "/h"},
            {"TORCH_FR_DUMP_TEMP_FILE": "/f_"}, {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/g_", "HOME": "/h"},
            {"TORCH_FR_DUMP_TEMP_FILE": "/f_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/g_"},
            {"TORCH_FR_DUMP_TEMP_FILE": "", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/g_"}]),
        "addresses to call": (_called, [*((host, socket.AF_INET) for host in ("0.0.0.0", "10.0.0.1")), *((host,
            socket.AF_INET6) for host in ("::", "fd00::7", "::ffff:10.0.0.1"))]),
        "stacks with what a loop polls": (_stacks, [(("file", "os.path.exists", 0), _frame("/t.py", None), _frame(
            "/lib/python3/x.py", None), *(_frame(f"/u{n}.py", None) for n in range(5))), (("file", "os.path.exists", 0),
            _frame("/lib/python3/x.py", None), _frame("/t.py", None)), (("file", "os.path.exists", 0), _frame(
            "<string>", None)), (None, _frame("/t.py", None)), (("store-key", "store.get", 0), _frame("/t.py", {
            "src": "1"}), _frame("/-packages/x.py", None)), (None,)]),
        "what py-spy says": (_dumped, [("", "x"), ("/p", "first", "second"), ("/p", "", "then"), ("/p", "", "")]),
        "files of captures": (files.named_after, ["n0", "a/b c#1.x-y", "é..", "n" * 101]),
        "children of a process": (_descend, [9, 2, 1, 0]),
        "what is read of files": (lambda *asked: [(at.fd, at.start, at.length) for at in path_rate.stretch(*asked)], [
            ([(3, 10), (4, 20)], start, amount) for start in (0, 5, 9, 10, 29) for amount in (1, 10, 30)]),
        "descendants": (processes.tree_of, [(1, {1: 0, 2: 1, 3: 2, 4: 0}), (9, {1: 0}), (1, {1: 1})]),
        "connections of a process": (_connection, [
            (1,), (2,), (8,), (5,), (1, (2, _INFO)), (1, (1, b"x"), (2, _INFO[:60])), (1, (1, b"xyz" * 3))]),
    }  # fmt: skip
