"""Be one rank of a real job of torch that hangs, or goes on, in a named way; :mod:`hangs` starts and judges them.

    python scripts/hang_rank.py WAY PATH [--server]        a rank, whose number is in RANK
    python scripts/hang_rank.py WAY PATH --helper          what some ways need beside the ranks

PATH is a file in a folder of the job: rank 0 writes there at which port its store listens.
"""

import argparse
import ctypes
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS, VICTIM, STEPS = 3, 1, 6
RANK, STEP, DEVICE = 0, 0, "cpu"
LONG_S = 10**6
START_S = 100.0
PATH = Path()
GROUPS: list[Any] = []
Way = Callable[[], object]


def deadlock() -> None:
    """Let two threads take two locks in opposite order."""
    one, other = threading.Lock(), threading.Lock()

    def take(first: threading.Lock, second: threading.Lock) -> None:
        with first:
            time.sleep(0.3)
            with second:
                pass

    threading.Thread(target=take, args=(other, one), daemon=True).start()
    take(one, other)


def loop() -> None:
    """Loop for ever."""
    while True:
        pass


class Stopped:
    """A data set whose worker stops itself."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> int:
        os.kill(os.getpid(), signal.SIGSTOP)
        return at


def loader() -> None:
    """Wait for a worker of a data loader that is stopped."""
    from torch.utils.data import DataLoader

    next(iter(DataLoader(Stopped(), num_workers=1)))


def dead_worker() -> None:
    """Wait for a queue whose only writer has been killed."""
    import multiprocessing

    queue: multiprocessing.Queue[int] = multiprocessing.get_context("fork").Queue()
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(LONG_S,))
    worker.start()
    assert worker.pid
    os.kill(worker.pid, signal.SIGKILL)
    queue.get()


def fifo() -> None:
    """Read a FIFO that nobody writes to."""
    path = Path(tempfile.mkdtemp()) / "data.fifo"
    os.mkfifo(path)
    path.read_bytes()


def pipe() -> None:
    """Read a pipe that nobody writes to."""
    os.read(os.pipe()[0], 1)


def silent_server() -> None:
    """Receive from a server that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).recv(1)


def file_lock() -> None:
    """Wait for the lock on a file that another process holds."""
    import fcntl

    path = Path(tempfile.mkdtemp()) / "lock"
    holder = path.open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    fcntl.flock(path.open("w"), fcntl.LOCK_EX)


def polled_file() -> None:
    """Look for a file ten times in a second."""
    while not Path("/nonexistent/ready").exists():
        time.sleep(0.1)


def handler() -> None:
    """Hang in the handler of an exception."""
    try:
        raise ValueError("a step went wrong")
    except ValueError:
        time.sleep(LONG_S)


def debugger() -> None:
    """Wait for a person at a debugger."""
    import pdb

    read, _ = os.pipe()
    pdb.Pdb(stdin=os.fdopen(read), stdout=sys.stderr).set_trace()


def missing_key() -> None:
    """Wait for a key of the store that no rank sets."""
    import torch.distributed as dist

    dist.distributed_c10d._get_default_store().get("never set")


def other_call() -> None:
    """Call another collective than the others."""
    import torch.distributed as dist

    dist.all_gather([zeros(8) for _ in range(RANKS)], zeros(8))
    finished()
    time.sleep(LONG_S)


def other_order() -> None:
    """Call two collectives in the other order than the others."""
    import torch.distributed as dist

    dist.broadcast(zeros(8), 0)
    finished()


def other_group() -> None:
    """Call the collective of a group of which the other member does not come."""
    import torch.distributed as dist

    dist.all_reduce(zeros(8), group=GROUPS[0])
    finished()


LOCK = threading.Lock()


class Guarded(Stopped):
    """A data set that takes a lock of its program."""

    def __getitem__(self, at: int) -> int:
        with LOCK:
            return at


def forked_lock() -> None:
    """Wait for a worker that was forked while another thread held the lock that it wants."""
    from torch.utils.data import DataLoader

    def hold() -> None:
        with LOCK:
            time.sleep(2.0)

    threading.Thread(target=hold).start()
    time.sleep(0.2)
    next(iter(DataLoader(Guarded(), num_workers=1)))


def signal_handler() -> None:
    """Want a lock in a signal's handler that the interrupted program holds."""

    def save(number: int, frame: object) -> None:
        with LOCK:
            pass

    signal.signal(signal.SIGUSR1, save)
    with LOCK:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(1.0)


def uploader() -> None:
    """End, and wait for a thread that waits for a silent server."""
    threading.Thread(target=silent_server).start()
    sys.exit()


def full_pipe() -> None:
    """Print more than who started this rank reads."""
    while True:
        print("loss 0.123456789 " * 10)


def no_message() -> None:
    """Receive what no rank sends."""
    import torch.distributed as dist

    dist.recv(zeros(8), 0)
    finished()


def left() -> None:
    """End, while the others wait for a word of this rank in the store."""
    import torch.distributed as dist

    if RANK == VICTIM:
        os._exit(0)
    dist.distributed_c10d._get_default_store().get("word of rank 1")


def computing(seconds: float) -> None:
    """Compute with new memory for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum([bytearray(1 << 20)[0] for _ in range(10)])


def checkpoint() -> None:
    """Write a file for a minute."""
    end, path = time.monotonic() + 60, Path(tempfile.mkdtemp()) / "checkpoint"
    while time.monotonic() < end:
        with path.open("wb") as file:
            for _ in range(8):
                file.write(os.urandom(1 << 20))
                time.sleep(0.05)
        path.unlink()


def compiling() -> None:
    """Wait for compilers for a minute."""
    code = "import time; e = time.time() + 60\nwhile time.time() < e: compile('x = [1]\\n' * 5000, 'x', 'exec')"
    subprocess.run([sys.executable, "-c", code], check=False)


def other_size() -> None:
    """Make the same call as the others, with another size."""
    import torch.distributed as dist

    dist.all_reduce(zeros(1 << 16))
    finished()
    time.sleep(LONG_S)


def throttled() -> None:
    """Compute in a cgroup that has a hundredth of a processor."""
    group = CPU_GROUPS / f"ncclprobe-hangs-{os.getpid()}"
    group.mkdir()
    (group / "cpu.cfs_quota_us").write_text("1000")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    computing(LONG_S)


def store_gone() -> None:
    """Ask the store for a word when its process has been stopped."""
    os.kill(int(PATH.with_suffix(".helper").read_text()), signal.SIGSTOP)
    missing_key()


def frozen_files() -> None:
    """Read a file of a file system whose server answers no more."""
    with (PATH.parent / "frozen/data").open("rb", buffering=0) as file:
        ctypes.CDLL(None).umount2(os.fsencode(PATH.parent / "frozen"), 2)  # MNT_DETACH: it ends with this rank
        file.read(1 << 16)


# What some ways need beside the ranks.


def serve_store() -> None:
    """Be the store of the job, as torchrun's agent is."""
    from torch.distributed import TCPStore

    first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _write(PATH.with_suffix(".helper"), str(os.getpid()))
    _write(PATH, str(first.port))
    signal.pause()


_FILE = struct.pack("=6Q10I", 2, 1 << 20, 2048, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
_FOLDER = struct.pack("=6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
_LOOKUP, _GETATTR, _OPEN, _READ, _INIT = 1, 3, 14, 15, 26
_ASYNC_READ, _NOT_KNOWN = 1, -38


def serve_frozen() -> None:
    """Be a file system in user space (linux/fuse.h) that opens its one file and never answers a read."""
    folder, libc = PATH.parent / "frozen", ctypes.CDLL(None, use_errno=True)
    folder.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"frozen", os.fsencode(folder), b"fuse", 6, options):  # MS_NOSUID, MS_NODEV
        raise OSError(ctypes.get_errno(), "mount of a file system in user space")
    _write(PATH.with_suffix(".helper"), str(os.getpid()))
    while True:
        request = os.read(device, 1 << 18)
        _, kind, unique, node = struct.unpack_from("=IIQQ", request)
        answers = {
            _LOOKUP: struct.pack("=4QII", 2, 0, 99, 99, 0, 0) + _FILE,
            _GETATTR: struct.pack("=QII", 99, 0, 0) + (_FOLDER if node == 1 else _FILE),
            _OPEN: struct.pack("=QII", 1, 0, 0),
            _INIT: struct.pack("=4I2H2I2H8I", 7, 31, 1 << 17, _ASYNC_READ, 12, 9, 1 << 17, 1, 32, 0, *([0] * 8)),
        }
        if kind != _READ:
            answer = answers.get(kind, b"")
            code = 0 if answer else _NOT_KNOWN
            os.write(device, struct.pack("=IiQ", 16 + len(answer), code, unique) + answer)


def _write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
LARGE = ("large tensors", "NIC at a hundredth")
HELPERS: dict[str, Way] = {"store gone": serve_store, "frozen file system": serve_frozen}
HANGS: dict[str, Way] = {
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda: time.sleep(LONG_S),
    "deadlock": deadlock,
    "gil held in C": lambda: ctypes.PyDLL(None).sleep(LONG_S),
    "while True": loop,
    "loader worker stopped": loader,
    "queue of a dead worker": dead_worker,
    "fifo": fifo,
    "pipe": pipe,
    "silent server": silent_server,
    "file lock": file_lock,
    "polls for a file": polled_file,
    "child process": lambda: subprocess.run(["sleep", str(LONG_S)], check=False),
    "exception handler": handler,
    "pdb": debugger,
    "store key": missing_key,
    "another collective": other_call,
    "another order": other_order,
    "another group": other_group,
    "left": left,
    "forked lock": forked_lock,
    "signal handler": signal_handler,
    "uploader at exit": uploader,
    "full pipe": full_pipe,
    "pipe of a grandchild": lambda: subprocess.check_output(["sh", "-c", f"sleep {LONG_S} & echo started"]),
    "no message": no_message,
    "end of its data": lambda: importlib.import_module("torch.distributed").barrier(),
    "signal wait": lambda: signal.pause(),
    "another size": other_size,
    "throttled cgroup": throttled,
    "store gone": store_gone,
    "frozen file system": frozen_files,
}
HEALTHY: dict[str, Way] = {
    "fast": lambda: None,
    "pauses": lambda: time.sleep(0.01),
    "all compute 1 s": lambda: computing(1.0),
    "all sleep 2 s": lambda: time.sleep(2.0),
    "rank 1 slower": lambda: computing(1.0) if RANK == VICTIM else None,
    "rank 1 waits 1 s for data": lambda: time.sleep(1.0) if RANK == VICTIM else None,
    "checkpoint of a minute": lambda: checkpoint() if RANK == VICTIM and STEP == STEPS else None,
    "compile of a minute": lambda: compiling() if RANK == VICTIM and STEP == STEPS else None,
    "evaluation of a minute": lambda: computing(60.0) if RANK == VICTIM and STEP == STEPS else None,
    "large tensors": lambda: None,
}


def zeros(count: int) -> Any:
    """Return numbers where this job's collectives take them from."""
    import torch

    return torch.zeros(count, device=DEVICE)


def rank(way: str, server: bool) -> None:
    """Be one rank of a job."""
    import torch
    import torch.distributed as dist

    global RANK, STEP, DEVICE
    RANK = int(os.environ["RANK"])
    if torch.cuda.is_available():
        DEVICE = f"cuda:{RANK}"
        torch.cuda.set_device(RANK)
    backend = "gloo" if DEVICE == "cpu" else "nccl"
    dist.init_process_group(backend, store=store(way), rank=RANK, world_size=RANKS)
    GROUPS[:] = [dist.new_group([VICTIM, RANKS - 1])]
    if server:
        sys.path.append(str(PATH.parent))
        GROUPS.append(importlib.import_module("prepared"))
    data = zeros(1 << 22 if way in LARGE else 8)
    for STEP in range(LONG_S):
        if way in HEALTHY:
            HEALTHY[way]()
        elif way in HANGS and STEP == STEPS and (RANK == VICTIM or way == "left"):
            HANGS[way]()
        dist.all_reduce(data)
        finished()
        if STEP == STEPS - 1:
            print("ready", flush=True)
            dist.broadcast(data, 0)


def finished() -> None:
    """Wait for what was launched on a GPU, as a program does that looks at its loss."""
    if DEVICE != "cpu":
        import torch

        torch.cuda.synchronize()


def store(way: str) -> Any:
    """Return the store of a job, whose port its first rank, or a helper, writes to PATH."""
    from torch.distributed import TCPStore

    host = os.environ.get("STORE_HOST", "127.0.0.1")
    if RANK == 0 and way != "store gone":
        first = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        _write(PATH, str(first.port))
        return first
    end = time.monotonic() + START_S
    while not PATH.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return TCPStore(host, int(PATH.read_text()), is_master=False)


def main() -> None:
    """Be a rank, or what a way needs beside the ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("way")
    parser.add_argument("path", type=Path)
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--helper", action="store_true")
    options = parser.parse_args()
    global PATH
    PATH = options.path
    HELPERS[options.way]() if options.helper else rank(options.way, options.server)


if __name__ == "__main__":
    main()
