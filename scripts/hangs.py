"""Stop or slow real gloo jobs in many ways, look at each with `ncclprobe attach`, and print what it said.

    python scripts/hangs.py [--only sleep,fifo] [--mode server,stacks,bare] [--out DIR] [--settle SECONDS]

Each job has three ranks; rank 1 of them does what is named, after some steps. A healthy job must not be called stuck,
and no rank may be named that is not the one. With --out the looks are kept, for `ncclprobe explain` and for tests.
"""

import argparse
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ncclprobe.commands.attach import PREPARE

RANKS, VICTIM, STEPS = 3, 1, 6
RANK, STEP = 0, 0
LONG_S = 10**6
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


def _endless(_: int) -> int:
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0


class Stopped:
    """A data set whose worker stops itself."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> int:
        return _endless(at)


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
    import torch
    import torch.distributed as dist

    dist.all_gather([torch.zeros(8) for _ in range(RANKS)], torch.zeros(8))
    time.sleep(LONG_S)


def other_order() -> None:
    """Call two collectives in the other order than the others."""
    import torch
    import torch.distributed as dist

    dist.broadcast(torch.zeros(8), 0)


def other_group() -> None:
    """Call the collective of a group of which the other member does not come."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(8), group=GROUPS[0])


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
    import torch
    import torch.distributed as dist

    dist.recv(torch.zeros(8), 0)


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
EXPECTED = {
    "another collective": "desync",
    "another order": "desync",
    "another group": "desync",
    "left": "dead or gone",
    "no message": "desync",
    "end of its data": "desync",
}
START_S = 100.0
SETTLE_S = {"while True": 65.0}
"""A loop that may be work is called stuck when others have waited for a minute."""
GROUPS: list[object] = []


def rank(way: str, server: bool, path: Path) -> None:
    """Be one rank of a job."""
    import torch
    import torch.distributed as dist

    global RANK, STEP
    RANK = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=store(path), rank=RANK, world_size=RANKS)
    GROUPS[:] = [dist.new_group([VICTIM, RANKS - 1])]
    if server:
        sys.path.append(str(path.parent))
        GROUPS.append(importlib.import_module("prepared"))
    data = torch.ones(1 << 22 if way == "large tensors" else 8)
    for STEP in range(LONG_S):
        if way in HEALTHY:
            HEALTHY[way]()
        elif STEP == STEPS and (RANK == VICTIM or way == "left"):
            HANGS[way]()
        dist.all_reduce(data)
        if STEP == STEPS - 1:
            print("ready", flush=True)
            dist.broadcast(data, 0)


def started(way: str, server: bool) -> list[subprocess.Popen[str]]:
    """Return the ranks of a job, once they have made their first steps. Raises TimeoutError."""
    folder = tempfile.mkdtemp()
    (Path(folder) / "prepared.py").write_text(PREPARE)
    name = {"MASTER_ADDR": Path(folder).name, "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}  # what tells it from others
    sizes = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    own = [sys.executable, __file__, "--rank", way, "--store", f"{folder}/port", *(["--server"] if server else [])]
    ranks = [
        subprocess.Popen(
            own,
            env={**os.environ, **name, **sizes, "RANK": str(n), "LOCAL_RANK": str(n)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for n in range(RANKS)
    ]
    deadline = time.monotonic() + START_S
    for each in ranks:
        assert each.stdout
        if not select.select([each.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            ended(ranks)
            raise TimeoutError(f"{way}: a rank made no step within {START_S:g} s")
        each.stdout.readline()
    return ranks


def store(path: Path) -> object:
    """Return the store of a job, whose port its first rank writes to `path`."""
    from torch.distributed import TCPStore

    if RANK == 0:
        first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        path.with_suffix(".new").write_text(str(first.port))
        path.with_suffix(".new").rename(path)
        return first
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return TCPStore("127.0.0.1", int(path.read_text()), is_master=False)


def settled(ranks: list[subprocess.Popen[str]], seconds: float) -> None:
    """Let a job stand for so long, if it does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(each.poll() is None for each in ranks):
        time.sleep(0.1)


def ended(ranks: list[subprocess.Popen[str]]) -> None:
    """End a job, with all that it has started."""
    for each in ranks:
        try:
            os.killpg(each.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            each.wait()
            assert each.stdout
            each.stdout.close()


def looked(ranks: list[subprocess.Popen[str]], mode: str, keep: Path | None) -> tuple[dict[str, object], float]:
    """Return the report on a job, and how long it took."""
    command = [sys.executable, "-m", "ncclprobe", "attach", "--pid", str(ranks[0].pid), "--json", "-", "--no-config"]
    command += ["--stacks"] if mode != "bare" else []
    command += ["--keep", str(keep)] if keep else []
    began = time.monotonic()
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if said.returncode:
        return {
            "standing": {"word": "REFUSED", "message": said.stderr.strip()},
            "classes": [],
        }, time.monotonic() - began
    return json.loads(said.stdout), time.monotonic() - began


def judged(way: str, report: dict[str, object]) -> tuple[str, str]:
    """Return whether the answer is right, and the answer in words."""
    standing, classes = report["standing"], report["classes"]
    assert isinstance(standing, dict)
    assert isinstance(classes, list)
    found = {(each["name"], *each["ranks"]): each["doing"] for each in classes}
    rest = [f"{name} {ranks}: {text}" for (name, *ranks), text in found.items() if name not in ("waiting", "working")]
    text = f"{standing['word']}: {'; '.join(rest) or standing['message']}"
    bad = [ranks for (name, *ranks) in found if name in ("stuck outside", "stuck inside", "desync", "dead or gone")]
    if way in HEALTHY:
        return "WRONG" if standing["word"] == "STUCK" or bad else "right", text
    if any(ranks != [VICTIM] for ranks in bad):
        return "WRONG RANK", text
    wanted = EXPECTED.get(way, "stuck outside")
    return "right" if standing["word"] == "STUCK" and (wanted, VICTIM) in found else "missed", text


def main() -> int:
    """Run the ways that were asked for; return 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank")
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--only", default=",".join((*HANGS, *HEALTHY)))
    parser.add_argument("--mode", default="server")
    parser.add_argument("--settle", type=float, default=12.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.rank:
        rank(options.rank, options.server, options.store)
        return 0
    wrong = 0
    for way in options.only.split(","):
        for mode in options.mode.split(","):
            ranks = started(way, mode == "server")
            try:
                settled(ranks, max(options.settle, SETTLE_S.get(way, 0.0)))
                keep = options.out / f"{way} {mode}".replace(" ", "-") if options.out else None
                report, seconds = looked(ranks, mode, keep)
            finally:
                ended(ranks)
            verdict, text = judged(way, report)
            wrong += verdict.startswith("WRONG")
            print(f"{way:<26} {mode:<7} {verdict:<10} {seconds:4.1f} s  {text}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
