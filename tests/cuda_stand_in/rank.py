"""One rank of NCCL alone, without torch: ``rank.py FILE WORD …``; RANK and WORLD_SIZE say who it is.

FILE takes rank 0's unique id to the others. WORD is init, where it is not the first; all_reduce, all_gather,
reduce_scatter, broadcast or sendrecv, with :COUNT of floats or :COUNT:double, whose result is looked at;
pairs, one number from each rank to each other, or choose:OPERATION:BYTES: handed over and never run;
sleep:SECONDS; or an end: abort, kill, stop, segfault, raise, exit; kill-in:SECONDS and the like while the rank goes on,
kill-within:SECONDS so long after the next operation was begun.
With ``1,2!`` before it only those ranks play it. Exit status: 0 all was right, 3 NCCL refused, 4 data was wrong.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

SUM = 0
TYPES = {"": (7, ctypes.c_float), "double": (8, ctypes.c_double)}
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv")
LATE_S = float(os.environ.get("RANK_WAITS_S", "60"))
cuda, nccl = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libnccl.so.2")
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Rank:
    def __init__(self, path):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.comm, self.stream, self.path = ctypes.c_void_p(), ctypes.c_void_p(), path
        self.strike, self.wrong = None, False

    def init(self):
        if code := cuda.cudaSetDevice(int(os.environ.get("LOCAL_RANK", self.rank))):
            self.say(f"cudaSetDevice: error {code}")
            sys.exit(3)
        begun = time.monotonic()
        self.call("CommInitRank", ctypes.byref(self.comm), self.size, self.unique_id(), self.rank)
        cuda.cudaStreamCreate(ctypes.byref(self.stream))
        self.say(f"init {time.monotonic() - begun:.2f} s")

    def say(self, text):
        print(f"rank {self.rank}: {text}", flush=True)

    def call(self, name, *arguments):
        code = getattr(nccl, f"nccl{name}")(*arguments)
        if code:
            last = nccl.ncclGetLastError(self.comm).decode()
            self.say(f"nccl{name}: {nccl.ncclGetErrorString(code).decode()}: {last.strip()}")
            sys.exit(3)

    def unique_id(self):
        found, path = UniqueId(), self.path
        if self.rank == 0:
            self.call("GetUniqueId", ctypes.byref(found))
            path.with_suffix(".part").write_bytes(bytes(found))
            path.with_suffix(".part").rename(path)
        until = time.monotonic() + LATE_S
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return UniqueId.from_buffer_copy(path.read_bytes())

    def buffer(self, count, number):
        at, kind = ctypes.c_void_p(), number * count
        if code := cuda.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(ctypes.sizeof(kind))):
            self.say(f"cudaMalloc: {code}")
            sys.exit(3)
        return at, kind.from_address(at.value)

    def play(self, operation, count, kind=""):
        code, number = TYPES[kind]
        own = count * self.size if operation == "reduce_scatter" else count
        whole = count * self.size if operation == "all_gather" else count
        (source, given), (target, got) = self.buffer(own, number), self.buffer(whole, number)
        given[:] = [self.rank + 1 + i % 97 for i in range(own)]
        n, tail = ctypes.c_size_t(count), (self.comm, self.stream)
        if operation == "all_reduce":
            self.call("AllReduce", source, target, n, code, SUM, *tail)
        elif operation == "all_gather":
            self.call("AllGather", source, target, n, code, *tail)
        elif operation == "reduce_scatter":
            self.call("ReduceScatter", source, target, n, code, SUM, *tail)
        elif operation == "broadcast":
            self.call("Broadcast", source, target, n, code, 0, *tail)
        else:
            self.call("GroupStart")
            self.call("Send", source, n, code, (self.rank + 1) % self.size, *tail)
            self.call("Recv", target, n, code, (self.rank - 1) % self.size, *tail)
            self.call("GroupEnd")
        if self.strike:
            self.strike.start()
        self.wait(operation)
        wrong = sum(value != self.expected(operation, count, i) for i, value in enumerate(got))
        self.say(f"{operation}: {wrong} wrong of {whole}")
        self.wrong |= bool(wrong)

    def pairs(self):
        """Connect each rank with each other."""
        (source, _), n = self.buffer(1, ctypes.c_float), ctypes.c_size_t(1)
        cuda.cudaStreamBeginCapture(self.stream, 2)
        self.call("GroupStart")
        for peer in range(self.size):
            if peer != self.rank:
                self.call("Send", source, n, 7, peer, self.comm, self.stream)
                self.call("Recv", self.buffer(1, ctypes.c_float)[0], n, 7, peer, self.comm, self.stream)
        self.call("GroupEnd")
        self.throw_away()

    def choose(self, operation, nbytes):
        """Hand a call over while a graph is captured, which is thrown away: NCCL chooses, and moves nothing."""
        at, _ = self.buffer(1, ctypes.c_float)
        share = self.size if operation in ("all_gather", "reduce_scatter") else 1
        n, tail = ctypes.c_size_t(nbytes // 4 // share), (self.comm, self.stream)
        cuda.cudaStreamBeginCapture(self.stream, 2)
        if operation == "all_gather":
            self.call("AllGather", at, at, n, 7, *tail)
        elif operation == "broadcast":
            self.call("Broadcast", at, at, n, 7, 0, *tail)
        else:
            self.call("AllReduce" if operation == "all_reduce" else "ReduceScatter", at, at, n, 7, SUM, *tail)
        self.throw_away()

    def throw_away(self):
        graph = ctypes.c_void_p()
        cuda.cudaStreamEndCapture(self.stream, ctypes.byref(graph))
        cuda.cudaGraphDestroy(graph)

    def wait(self, operation):
        error, until = ctypes.c_int(), time.monotonic() + LATE_S
        while cuda.cudaStreamQuery(self.stream):
            self.call("CommGetAsyncError", self.comm, ctypes.byref(error))
            if error.value or time.monotonic() > until:
                self.say(f"{operation}: error {error.value}: {nccl.ncclGetLastError(self.comm).decode().strip()}")
                self.call("CommAbort", self.comm)
                sys.exit(3)
            time.sleep(0.001)

    def expected(self, operation, count, i):
        ranks = self.size * (self.size + 1) // 2
        return {
            "all_reduce": ranks + self.size * (i % 97),
            "reduce_scatter": ranks + self.size * ((self.rank * count + i) % 97),
            "all_gather": i // count + 1 + i % count % 97,
            "broadcast": 1 + i % 97,
            "sendrecv": (self.rank - 1) % self.size + 1 + i % 97,
        }[operation]


def end(rank, how, seconds=""):
    if seconds:
        how, _, when = how.partition("-")
        strike = threading.Timer(float(seconds), end, (rank, how))
        if when == "within":
            rank.strike = strike
        else:
            strike.start()
    elif how == "abort":
        rank.call("CommAbort", rank.comm)
        rank.say("aborted")
        os._exit(0)
    elif how == "raise":
        raise ValueError("loss is not a number")
    elif how == "exit":
        os._exit(5)
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segfault": signal.SIGSEGV}[how])


def main():
    rank, words = Rank(Path(sys.argv[1])), sys.argv[2:]
    for word in words if any(word.endswith("init") for word in words) else ["init", *words]:
        who, _, what = word.rpartition("!")
        if who and str(rank.rank) not in who.split(","):
            continue
        name, *more = what.split(":")
        if name == "init":
            rank.init()
        elif name == "sleep":
            time.sleep(float(*more))
        elif name == "pairs":
            rank.pairs()
        elif name == "choose":
            rank.choose(more[0], int(more[1]))
        elif name in OPERATIONS:
            rank.play(name, int(more[0]), *more[1:])
        else:
            end(rank, name, *more)
    rank.call("CommFinalize", rank.comm)
    rank.call("CommDestroy", rank.comm)
    rank.say("done")
    sys.exit(4 if rank.wrong else 0)


if __name__ == "__main__":
    main()
