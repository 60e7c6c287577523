"""The collectives as nccl-tests counts them: bytes, rounding and bus factors. Without torch, so any room may import it.

Every rule here is from nccl-tests a0b82b2 (2.19.6): the ``GetCollByteCount`` and ``GetBw`` functions of each
``src/<collective>.cu``, ``doc/PERFORMANCE.md`` for the meaning of the factors. Sizes are bytes, GB is 1e9 bytes.
"""

from collections.abc import Callable

from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Place
from ncclprobe.model.units import size
from ncclprobe.model.values import Struct

DTYPES: dict[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
"""Bytes per element of every supported data type. nccl-tests defaults to float."""

REDOPS = ("sum", "prod", "min", "max", "avg")
"""The reductions, by nccl-tests' names for ``-o``."""

_ALIGNMENT = 16
"""Shares of a divided buffer are multiples of this many bytes (nccl-tests since 29f4114, December 2024)."""


class CallShape(Struct, frozen=True):
    """What one call transfers, per rank. `nbytes` and `count` are what nccl-tests prints for it.

    Buffers are `send_bytes` and `recv_bytes` long. In place, rank r sends from byte r x `send_offset` of the one buffer
    and receives at byte r x `recv_offset`.
    """

    nbytes: int
    count: int
    send_bytes: int
    recv_bytes: int
    send_offset: int
    recv_offset: int


def _one(ranks: int) -> float:
    """Return 1: each link carries the buffer once (or, for sendrecv, counts in one direction)."""
    return 1.0


def _others(ranks: int) -> float:
    """Return the share that travels: a rank keeps its own part."""
    return (ranks - 1) / ranks


def _there_and_back(ranks: int) -> float:
    """Return the bus factor of a reduction: a reduce-scatter, then an all-gather."""
    return 2 * (ranks - 1) / ranks


class Op(Struct, frozen=True):
    """One collective: its byte counts and bandwidth factors.

    `divided`: the requested size is divided among ranks; `sends_all` and `receives_all` mark the side on which a rank
    holds all shares rather than one. `places`: what torch offers, in the order measured. `reduces`: takes a reduction.
    `rooted`: has a root. `direct`: pairs of ranks send to each other, without one of NCCL's algorithms. `bus_factor`
    converts algorithm to bus bandwidth for n ranks; `counted` is the part of the printed size that the algorithm
    bandwidth counts.
    """

    name: str
    places: tuple[Place, ...]
    bus_factor: Callable[[int], float]
    divided: bool = False
    sends_all: bool = False
    receives_all: bool = False
    reduces: bool = False
    rooted: bool = False
    direct: bool = False
    counted: Callable[[int], float] = _one

    def shape(self, nbytes: int, ranks: int, itemsize: int) -> CallShape:
        """Return the call for `nbytes` requested bytes, `ranks` ranks and elements of `itemsize` bytes.

        A size too small to give every rank an aligned share becomes 0, as nccl-tests prints it.
        """
        count = nbytes // itemsize
        if not self.divided:
            whole = count * itemsize
            return CallShape(whole, count, whole, whole, send_offset=0, recv_offset=0)
        share_count = count // ranks // (_ALIGNMENT // itemsize) * (_ALIGNMENT // itemsize)
        share = share_count * itemsize
        return CallShape(
            nbytes=share * ranks,
            count=share_count,
            send_bytes=share * ranks if self.sends_all else share,
            recv_bytes=share * ranks if self.receives_all else share,
            send_offset=0 if self.sends_all else share,
            recv_offset=0 if self.receives_all else share,
        )

    def bandwidth(self, shape: CallShape, ranks: int, seconds: float) -> tuple[float, float]:
        """Return algorithm and bus bandwidth in GB/s of one call that took `seconds`."""
        algbw = shape.nbytes * self.counted(ranks) / seconds / 1e9
        return algbw, algbw * self.bus_factor(ranks)


OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("all_reduce", ("in",), _there_and_back, reduces=True),
        Op("all_gather", ("out", "in"), _others, divided=True, receives_all=True),
        Op("reduce_scatter", ("out", "in"), _others, divided=True, sends_all=True, reduces=True),
        Op("all_to_all", ("out",), _others, divided=True, sends_all=True, receives_all=True, direct=True),
        Op("broadcast", ("in",), _one, rooted=True),
        Op("reduce", ("in",), _one, reduces=True, rooted=True),
        Op("gather", ("out",), _others, divided=True, receives_all=True, rooted=True, direct=True),
        Op("scatter", ("out",), _others, divided=True, sends_all=True, rooted=True, direct=True),
        Op("sendrecv", ("out",), _one, direct=True),
    )
}
"""The supported operations by name, in the order in which ``--op all`` runs them.

To add one: a row here, a probe of that name in ``probes/collectives.py``, the least bytes that it moves in
``nccl/nic_traffic.py``; tests name a missing part.
"""
DIRECT_OPS = tuple(op.name for op in OPS.values() if op.direct)

HYPERCUBE = Op("hypercube", (), _one, divided=True, receives_all=True, counted=_others)
"""The tenth of nccl-tests, for reading its reports: torch has no such call."""


def sizes(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from `begin` to `end` bytes, each `factor` times the previous one, and `end` (``-b -e -f``).

    Raises UsageError if no sweep results.
    """
    if begin < 1:
        raise UsageError(f"-b {begin}: the smallest message must have at least one byte; try -b 8")
    if begin > end:
        raise UsageError(f"-b {size(begin)} is above -e {size(end)}: give the smaller size to -b")
    if factor < 2:
        raise UsageError(f"-f {factor}: a step factor below 2 never reaches -e; try -f 2")
    steps = [begin]
    while steps[-1] * factor <= end:
        steps.append(steps[-1] * factor)
    return tuple(dict.fromkeys((*steps, end)))


def default_sizes(begin: int, end: int) -> tuple[int, ...]:
    """Return the default sizes: the largest first, because these can be judged, and few small ones."""
    chosen = (1 << 30, 256 << 20, 64 << 20, 4 << 20, 64 << 10, 8)
    return tuple(nbytes for nbytes in chosen if begin <= nbytes <= end)
