"""A rank above the stand-in of NCCL, without torch: ``rank.py SCENE LIBRARY FOLDER``; it writes FOLDER/said.RANK."""

import ctypes
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TYPES = ("b", "B", "i", "I", "q", "Q", "e", "f", "d", "bfloat16")
"""As `struct` names them, in NCCL's order."""
COUNT = 300_007
"""No multiple of anything; with 8 bytes each it is more than one piece of a reduction."""
PATIENCE_S = 60.0
IN_PROGRESS = 7


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", c_char * 128),)


class Config(ctypes.Structure):
    """The first fields of NCCL's, and room for the others."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", c_int),
        *((f"other_{number}", c_int) for number in range(40)),
    )


class Library:
    """NCCL's functions; `call` returns the code, and `must` takes no other than success."""

    def __init__(self, folder: Path) -> None:
        self.cuda = ctypes.CDLL(str(folder / "libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)
        self.nccl = ctypes.CDLL(str(folder / "libnccl.so.2"))
        self.nccl.ncclCommInitRankConfig.argtypes = [POINTER(c_void_p), c_int, UniqueId, c_int, c_void_p]
        self.nccl.ncclGetLastError.restype = c_char_p

    def call(self, name: str, *arguments: Any) -> int:
        wide = [c_size_t(each) if isinstance(each, int) and each > 1 << 20 else each for each in arguments]
        return int(getattr(self.nccl, f"nccl{name}")(*wide))

    def must(self, name: str, *arguments: Any) -> None:
        code = self.call(name, *arguments)
        assert not code, f"{name}: {code}: {self.nccl.ncclGetLastError(None).decode()}"

    def wait(self) -> int:
        return int(self.cuda.cudaStreamSynchronize(None))

    def state(self, comm: c_void_p) -> int:
        found = c_int()
        self.must("CommGetAsyncError", comm, byref(found))
        return found.value

    def join(self, folder: Path, blocking: bool = True) -> c_void_p:
        """A communicator of all ranks; rank 0 leaves its unique id in the folder."""
        unique, comm, place = UniqueId(), c_void_p(), folder / "id"
        if RANK == 0:
            self.must("GetUniqueId", byref(unique))
            (folder / "id.new").write_bytes(bytes(unique))
            (folder / "id.new").replace(place)
        until = time.monotonic() + PATIENCE_S
        while not place.exists() and time.monotonic() < until:
            time.sleep(0.01)
        unique = UniqueId.from_buffer_copy(place.read_bytes())
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 0, int(blocking))
        code = self.call("CommInitRankConfig", byref(comm), RANKS, unique, RANK, byref(config))
        assert code == (0 if blocking else IN_PROGRESS), code
        while self.state(comm) == IN_PROGRESS and time.monotonic() < until:
            time.sleep(0.01)
        return comm


def packed(values: Sequence[float], kind: str) -> "ctypes.Array[c_char]":
    """The values as the library reads them."""
    if kind == "bfloat16":
        data = b"".join(struct.pack("<f", value)[2:] for value in values)
    else:
        data = struct.pack(f"<{len(values)}{kind}", *(value if kind in "efd" else int(value) for value in values))
    return ctypes.create_string_buffer(data, len(data))


def unpacked(data: "ctypes.Array[c_char]", kind: str) -> list[float]:
    if kind != "bfloat16":
        return list(struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data.raw))
    raw = data.raw
    return [struct.unpack("<f", b"\0\0" + raw[at : at + 2])[0] for at in range(0, len(raw), 2)]


def values_of(rank: int, count: int, kind: str = "f") -> list[float]:
    """What a rank gives: small, so that no type rounds or overflows."""
    pattern = [float(1 + (rank + at) % 3) for at in range(6)]
    return (pattern * (count // 6 + 1))[:count]


def mean(values: Sequence[float], kind: str) -> float:
    return sum(values) / len(values) if kind in ("e", "f", "d", "bfloat16") else sum(values) // len(values)


def product(values: Sequence[float]) -> float:
    found = 1.0
    for each in values:
        found *= each
    return found


def reduced(operator: int, kind: str, count: int) -> list[float]:
    """What a reduction over all ranks gives, computed here."""
    each = [*zip(*(values_of(rank, count) for rank in range(RANKS)), strict=True)]
    known: dict[tuple[float, ...], float] = {}
    for values in set(each):
        known[values] = (sum, product, max, min, lambda given: mean(given, kind))[operator](values)
    exact = unpacked(packed([*known.values()], kind), kind)  # a mean of three may need rounding, to the type's
    rounded = dict(zip(known, exact, strict=True))
    return [rounded[values] for values in each]


def reductions(library: Library, comm: c_void_p) -> Iterator[tuple[str, bool]]:
    """Each type with each operator: all_reduce in and out of place; then what other reductions give."""
    for number, kind in enumerate(TYPES):
        for operator in range(5):
            count = COUNT if (kind, operator) in (("d", 0), ("bfloat16", 1)) else 25
            source = packed(values_of(RANK, count), kind)
            target = packed([0] * count, kind)
            library.must("AllReduce", source, target, c_size_t(count), number, operator, comm, None)
            library.must("AllReduce", source, source, c_size_t(count), number, operator, comm, None)
            library.wait()
            wanted = reduced(operator, kind, count)
            yield f"all_reduce {kind} {operator}", unpacked(target, kind) == wanted == unpacked(source, kind)
    for root in range(RANKS):
        source, target = packed(values_of(RANK, 25), "f"), packed([7] * 25, "f")
        library.must("Reduce", source, target, c_size_t(25), 7, 0, root, comm, None)
        library.wait()
        yield f"reduce to {root}", unpacked(target, "f") == (reduced(0, "f", 25) if root == RANK else [7] * 25)
    source, target = packed(values_of(RANK, 5 * RANKS), "f"), packed([0] * 5, "f")
    library.must("ReduceScatter", source, target, c_size_t(5), 7, 0, comm, None)
    library.wait()
    yield "reduce_scatter", unpacked(target, "f") == reduced(0, "f", 5 * RANKS)[5 * RANK : 5 * RANK + 5]


def movements(library: Library, comm: c_void_p) -> Iterator[tuple[str, bool]]:
    """What moves data and reduces none, for sizes from nothing to more than a socket holds."""
    for count in (0, 1, 25, COUNT):
        every = [values_of(rank, count) for rank in range(RANKS)]
        whole = [value for each in every for value in each]
        shared = [value for rank in range(RANKS) for value in values_of(rank + RANK, count)]
        size = c_size_t(count)

        def got(target: Any) -> list[float]:
            library.wait()
            return unpacked(target, "f")

        own, wide, many = packed(every[RANK], "f"), packed([7] * count * RANKS, "f"), packed(shared, "f")
        library.must("AllGather", own, wide, size, 7, comm, None)
        yield f"all_gather {count}", got(wide) == whole
        library.must("AlltoAll", many, wide, size, 7, comm, None)
        wanted = [value for rank in range(RANKS) for value in values_of(rank + RANK, count)]
        yield f"all_to_all {count}", got(wide) == wanted
        for root in range(RANKS):
            target, wide = packed([7] * count, "f"), packed([7] * count * RANKS, "f")
            library.must("Broadcast", own, target, size, 7, root, comm, None)
            yield f"broadcast {count} {root}", got(target) == every[root]
            target = packed(every[RANK], "f")
            library.must("Bcast", target, size, 7, root, comm, None)
            yield f"bcast {count} {root}", got(target) == every[root]
            library.must("Gather", own, wide, size, 7, root, comm, None)
            yield f"gather {count} {root}", got(wide) == (whole if root == RANK else [7] * count * RANKS)
            target = packed([7] * count, "f")
            library.must("Scatter", many, target, size, 7, root, comm, None)
            yield f"scatter {count} {root}", got(target) == values_of(RANK + root, count)


def points(library: Library, comm: c_void_p) -> Iterator[tuple[str, bool]]:
    """Each rank sends two messages to each, itself too, in one group."""
    out = [[packed(values_of(RANK + peer + turn, COUNT), "f") for turn in range(2)] for peer in range(RANKS)]
    into = [[packed([0] * COUNT, "f") for _ in range(2)] for _ in range(RANKS)]
    library.must("GroupStart")
    for peer in range(RANKS):
        for turn in range(2):
            library.must("Send", out[peer][turn], c_size_t(COUNT), 7, peer, comm, None)
            library.must("Recv", into[peer][turn], c_size_t(COUNT), 7, peer, comm, None)
    library.must("GroupEnd")
    library.wait()
    for peer in range(RANKS):
        wanted = [values_of(RANK + peer + turn, COUNT) for turn in range(2)]
        yield f"messages from {peer}", [unpacked(each, "f") for each in into[peer]] == wanted


def splits(library: Library, comm: c_void_p) -> Iterator[tuple[str, bool]]:
    """All ranks in the opposite order; then without the last."""
    child, place, ranks = c_void_p(), c_int(), c_int()
    library.must("CommSplit", comm, 3, -RANK, byref(child), None)
    library.must("CommUserRank", child, byref(place))
    library.must("CommCount", child, byref(ranks))
    yield "split in the opposite order", (place.value, ranks.value) == (RANKS - 1 - RANK, RANKS)
    target = packed(values_of(RANK, 25), "f")
    library.must("Bcast", target, c_size_t(25), 7, 0, child, None)
    library.wait()
    yield "broadcast in a child", unpacked(target, "f") == values_of(RANKS - 1, 25)
    last = RANK == RANKS - 1
    library.must("CommSplit", comm, -1 if last else 0, 0, byref(child), None)
    yield "who has no color gets none", last == (not child.value)
    if child.value:
        library.must("CommDestroy", child)


def graphs(library: Library, comm: c_void_p) -> Iterator[tuple[str, bool]]:
    """A captured sum is played as often as the graph is launched."""
    stream, graph, ready = c_void_p(), c_void_p(), c_void_p()
    target = packed([1] * 25, "f")
    library.cuda.cudaStreamCreateWithFlags(byref(stream), 1)
    library.cuda.cudaStreamBeginCapture(stream, 1)
    library.must("AllReduce", target, target, c_size_t(25), 7, 0, comm, stream)
    library.cuda.cudaStreamEndCapture(stream, byref(graph))
    yield "a capture plays nothing", unpacked(target, "f") == [1] * 25
    library.cuda.cudaGraphInstantiateWithFlags(byref(ready), graph, c_size_t(0))
    for _ in range(2):
        library.cuda.cudaGraphLaunch(ready, stream)
    library.cuda.cudaStreamSynchronize(stream)
    yield "two launches, two sums", unpacked(target, "f") == [RANKS**2] * 25


def refusals(library: Library, comm: c_void_p) -> Iterator[tuple[str, bool]]:
    """What must be refused, with the code of NCCL's header and a line that names it."""
    source, target = packed([1] * 32, "f"), packed([2] * 32, "f")
    inside = ctypes.byref(source, 4)
    few, other = c_size_t(8), c_void_p()
    library.cuda.cudaStreamCreateWithFlags(byref(other), 1)
    for what, code, words, arguments in (
        ("AllReduce", 4, "type 10", (source, target, few, 10, 0, comm, None)),
        ("AllReduce", 4, "operator 5", (source, target, few, 7, 5, comm, None)),
        ("AllReduce", 4, "overlap", (source, inside, few, 7, 0, comm, None)),
        ("AllGather", 4, "overlap", (source, inside, few, 7, comm, None)),
        ("Broadcast", 4, "rank 9", (source, target, few, 7, 9, comm, None)),
        ("AllReduce", 4, "too many", (source, target, c_size_t(1 << 60), 7, 0, comm, None)),
        ("AllReduce", 4, "not a communicator", (source, target, few, 7, 0, c_void_p(8), None)),
        ("GroupEnd", 5, "was not begun", ()),
        ("CommInitRank", 4, "unique id", (byref(c_void_p()), RANKS, UniqueId(), RANK)),
    ):
        found = library.call(what, *arguments)
        said = library.nccl.ncclGetLastError(None).decode()
        yield f"{what}: {words}: {found}: {said}", found == code and words in said
    library.must("GroupStart")
    for stream in (None, other):
        library.must("Send", source, few, 7, 0, comm, stream)
    yield "a group over two streams", library.call("GroupEnd") == 5
    library.must("GroupStart")
    library.must("Send", source, few, 7, RANK, comm, None)
    yield "a send to the own rank without a receive", library.call("GroupEnd") == 5
    yield "nothing was changed", unpacked(target, "f") == [2] * 32


def differs(library: Library, comm: c_void_p) -> Iterator[tuple[str, bool]]:
    """Rank 1 calls another operation than the others: it does not end, and no data is handed out."""
    target = packed([7] * 25 * RANKS, "f")
    if RANK == 1:
        library.must("AllGather", packed([1] * 25, "f"), target, c_size_t(25), 7, comm, None)
    else:
        library.must("AllReduce", packed([1] * 25, "f"), target, c_size_t(25), 7, 0, comm, None)
    begun = time.monotonic()
    library.wait()
    took = time.monotonic() - begun
    yield f"the deadline ends it: {took}", took > 1.0
    yield "the communicator failed", library.state(comm) == 3
    yield "no data was handed out", 1.0 not in unpacked(target, "f")[25 * (RANK == 1) :][: 25 if RANK != 1 else None]


def one_sum(library: Library, comm: c_void_p) -> Iterator[tuple[str, Any]]:
    """One sum, whatever is planted: how long it took, the state, and whether it is right."""
    target, begun = packed([1] * 25, "f"), time.monotonic()
    library.must("AllReduce", target, target, c_size_t(25), 7, 0, comm, None)
    code = library.wait()
    yield "cuda", code
    yield "seconds", time.monotonic() - begun
    yield "state", library.state(comm)
    yield "right", unpacked(target, "f") == [RANKS] * 25


def aborts(library: Library, comm: c_void_p) -> Iterator[tuple[str, Any]]:
    """Rank 0 calls what no other rank does, and aborts."""
    target = packed([1] * 25, "f")
    if RANK == 0:
        library.must("AllReduce", target, target, c_size_t(25), 7, 0, comm, None)
        library.must("CommAbort", comm)
        yield "it ends", library.wait() == 0
        yield "its data is as it was", unpacked(target, "f") == [1] * 25
        yield "the communicator is no more", library.call("CommCount", comm, byref(c_int())) == 4


def version(library: Library, comm: c_void_p) -> Iterator[tuple[str, Any]]:
    found = c_int()
    library.must("GetVersion", byref(found))
    yield "version", found.value


SCENES: dict[str, Callable[[Library, c_void_p], Iterator[tuple[str, Any]]]] = {
    scene.__name__: scene
    for scene in (reductions, movements, points, splits, graphs, refusals, differs, one_sum, aborts, version)
}


def main() -> None:
    scene, folder = SCENES[sys.argv[1]], Path(sys.argv[3])
    library = Library(Path(sys.argv[2]))
    comm = library.join(folder, blocking=scene is not movements)
    said = dict(scene(library, comm))
    (folder / f"said.{RANK}").write_text(json.dumps(said))
    library.call("CommDestroy", comm)


if __name__ == "__main__":
    main()
