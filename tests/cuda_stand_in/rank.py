"""One rank of NCCL alone, without torch: ``rank.py FILE OPERATION[:COUNT] …``; RANK and WORLD_SIZE say who it is.

FILE takes rank 0's unique id to the others. OPERATION is all_reduce, all_gather, reduce_scatter, broadcast or
sendrecv, of COUNT floats, whose result is looked at; sleep:SECONDS; or abort. Exit status: 0 all was right, 3 NCCL
refused, 4 data was wrong.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

FLOAT, SUM = 7, 0
LATE_S = 60.0
cuda, nccl = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libnccl.so.2")
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Rank:
    def __init__(self, path):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.comm, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cudaSetDevice(int(os.environ.get("LOCAL_RANK", self.rank)))
        begun = time.monotonic()
        self.call("CommInitRank", ctypes.byref(self.comm), self.size, self.unique_id(path), self.rank)
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

    def unique_id(self, path):
        found = UniqueId()
        if self.rank == 0:
            self.call("GetUniqueId", ctypes.byref(found))
            path.with_suffix(".part").write_bytes(bytes(found))
            path.with_suffix(".part").rename(path)
        until = time.monotonic() + LATE_S
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return UniqueId.from_buffer_copy(path.read_bytes())

    def buffer(self, count):
        at = ctypes.c_void_p()
        if cuda.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(4 * count)):
            sys.exit(3)
        return at, (ctypes.c_float * count).from_address(at.value)

    def play(self, operation, count):
        own = count * self.size if operation == "reduce_scatter" else count
        whole = count * self.size if operation == "all_gather" else count
        (source, given), (target, got) = self.buffer(own), self.buffer(whole)
        given[:] = [self.rank + 1 + i % 97 for i in range(own)]
        n, tail = ctypes.c_size_t(count), (self.comm, self.stream)
        if operation == "all_reduce":
            self.call("AllReduce", source, target, n, FLOAT, SUM, *tail)
        elif operation == "all_gather":
            self.call("AllGather", source, target, n, FLOAT, *tail)
        elif operation == "reduce_scatter":
            self.call("ReduceScatter", source, target, n, FLOAT, SUM, *tail)
        elif operation == "broadcast":
            self.call("Broadcast", source, target, n, FLOAT, 0, *tail)
        else:
            self.call("GroupStart")
            self.call("Send", source, n, FLOAT, (self.rank + 1) % self.size, *tail)
            self.call("Recv", target, n, FLOAT, (self.rank - 1) % self.size, *tail)
            self.call("GroupEnd")
        self.wait(operation)
        wrong = sum(value != self.expected(operation, count, i) for i, value in enumerate(got))
        self.say(f"{operation}: {wrong} wrong of {whole}")
        if wrong:
            sys.exit(4)

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


def main():
    rank = Rank(Path(sys.argv[1]))
    for word in sys.argv[2:]:
        operation, _, count = word.partition(":")
        if operation == "sleep":
            time.sleep(float(count))
        elif operation == "abort":
            rank.call("CommAbort", rank.comm)
            return
        else:
            rank.play(operation, int(count))
    rank.call("CommFinalize", rank.comm)
    rank.call("CommDestroy", rank.comm)
    rank.say("done")


if __name__ == "__main__":
    main()
