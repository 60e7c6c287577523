"""Convert one line of nccl-tests to one of our rows: names, units and arithmetic."""

import math
from collections.abc import Mapping, Sequence

from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Fingerprint, Library, Measurement, Mode, Place, TimeStats
from ncclprobe.model.ops import HYPERCUBE, OPS, CallShape, Op
from ncclprobe.model.units import size
from ncclprobe.model.values import Struct, field

DTYPES = {
    "float": ("float32", 4),
    "double": ("float64", 8),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "char": ("int8", 1),
    "int": ("int32", 4),
    "int8": ("int8", 1),
    "uint8": ("uint8", 1),
    "int32": ("int32", 4),
    "uint32": ("uint32", 4),
    "int64": ("int64", 8),
    "uint64": ("uint64", 8),
    "f8e4m3": ("f8e4m3", 1),
    "f8e5m2": ("f8e5m2", 1),
    "fp8_e4m3": ("f8e4m3", 1),
    "fp8_e5m2": ("f8e5m2", 1),
    "float16": ("float16", 2),
    "float32": ("float32", 4),
    "float64": ("float64", 8),
}
"""Its data types (test_typenames, src/common.cu): our name and the bytes per element. ``char`` and ``int`` are old,
``fp8_…`` are rccl-tests', and programs like it write out the bits."""
_THEIRS = {"all_to_all": "alltoall"}
KNOWN: dict[str, Op] = {**OPS, HYPERCUBE.name: HYPERCUBE}
_SPELLED = {name.replace("_", ""): name for name in KNOWN}
_APART = 0.05
"""Tolerance between printed bandwidths and those from size and time: all are rounded."""
_SURE_GBps = 1.0  # below this two decimals say too little to compare with


class Log(Struct, frozen=True):
    """A log's facts on a run beside its rows: the header's line, the command, and NCCL's variables that were set.

    `hosts` are the GPUs of each, `average` and `wrong` the bus bandwidth and the wrong values of the summary. `network`
    and `nics` are those that NCCL reports to use; empty and 0: unknown. `unfinished` is the size of a last row that has
    no end; 0: all have one. `empty` rows moved nothing; the summary counts them. `unread` are rows that another writer
    broke, each with its line; `shared` is a GPU that several ranks have, with the ranks. `unchecked`: the program was
    told not to look at the data. `no_multicast`: NCCL reports that NVSwitches cannot add for it.
    `died`: the test itself reports that it failed.
    taken for granted.
    """

    line: int = 0
    command: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    average: float | None = None
    wrong: int = 0
    network: str = ""
    nics: int = 0
    unfinished: int = 0
    empty: int = 0
    unread: tuple[str, ...] = ()
    shared: str = ""
    unchecked: bool = False
    no_multicast: bool = False
    died: bool = False
    guessed: bool = False
    about: str = ""


class Run(Struct, frozen=True):
    """One run: its rows, its own start time (otherwise empty), its machine, and the file that it was read from.

    `failed`: why its numbers do not measure health, in its own words: wrong data, or an error that ended it; empty if
    not.
    `missing`: what it lacks to be judged: rows, its operation, its ranks (0), or agreement of its numbers with them;
    empty if
    nothing. `cut`: its output has no end, so that rows may be missing.
    """

    source: str
    started: str
    rows: tuple[Measurement, ...]
    fingerprint: Fingerprint | None = None
    failed: str = ""
    missing: str = ""
    cut: bool = False
    log: Log = field(default_factory=Log)


class Setup(Struct, frozen=True):
    """What all rows of a run share. `version` is the library's: NCCL's, unless ncclprobe wrote the rows of another."""

    op: str
    ranks: int
    nodes: int
    mode: Mode
    iters: int
    version: str
    library: str = "nccl"


class Line(Struct, frozen=True):
    """One placement of one line, as printed. `cpu`: the time is the host's time to enqueue a call (``-C``)."""

    nbytes: int
    count: int
    dtype: str
    redop: str
    place: Place
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None
    cpu: bool = False


def op_name(program: str) -> str:
    """Return the operation that ``/path/all_reduce_perf`` (or ``…_perf_mpi``) measures; empty if it is no
    such program.
    """
    name, perf, _ = program.replace("\\", "/").rpartition("/")[2].partition("_perf")
    letters = name.lower().replace("_", "").replace("-", "")
    return _SPELLED.get(letters, name) if perf and letters.isalpha() else ""


def program(op: str) -> str:
    """Return the name of nccl-tests' program for our `op`."""
    return f"{_THEIRS.get(op, op)}_perf"


def version(code: int) -> str:
    """Return ``2.28.9`` for 22809, as NCCL_VERSION_CODE packs it (before 2.9: 2804 is 2.8.4)."""
    big = code >= 10_000
    major, rest = divmod(code, 10_000 if big else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def measurement(line: Line, setup: Setup) -> Measurement | None:
    """Convert `line` to a row; None if nothing was moved (size 0) or timed. Raises ValueError for nonsense."""
    _refuse_nonsense(line, setup)
    if not line.nbytes or not line.time_us:
        return None
    if line.time_us < bounds.LEAST_TIME_US:
        raise ValueError(f"{line.time_us:g} us is not a measured time")
    mean_us, algbw, busbw = _speeds(line, setup)
    fine = bounds.LEAST_TIME_US <= mean_us <= bounds.MOST_TIME_US
    if not (fine and algbw <= bounds.MOST_GBPS and busbw <= bounds.MOST_GBPS):
        raise ValueError(f"{line.nbytes} bytes in {line.time_us:g} us is impossible")
    return Measurement(
        op=setup.op,
        place=line.place,
        mode=setup.mode,
        backend=setup.library,
        library=Library(setup.library, setup.version),
        dtype=DTYPES[line.dtype][0],
        redop=None if line.redop in ("none", "") else line.redop,
        nbytes=line.nbytes,
        count=line.count,
        ranks=setup.ranks,
        nodes=setup.nodes,
        iters=setup.iters,
        batches=1,
        footprint_bytes=0,
        time_us=TimeStats(mean_us),
        issue_us=line.time_us if line.cpu else 0.0,
        slowest_rank=-1,
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        wrong=line.wrong,
    )


def _refuse_nonsense(line: Line, setup: Setup) -> None:
    """Raise ValueError for what no run can print."""
    if line.dtype not in DTYPES:
        raise ValueError(f"data type {line.dtype[:20]!r} is not one of nccl-tests")
    numbers = (line.time_us, line.algbw, line.busbw)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a time or bandwidth is negative or not a number")
    if not (
        0 <= line.nbytes <= bounds.BYTES and 0 <= line.count <= bounds.BYTES and 0 <= setup.ranks <= bounds.JOB_RANKS
    ):
        raise ValueError("a size, a count or the number of ranks is out of range")
    if line.wrong is not None and line.wrong < 0:
        raise ValueError("the number of wrong elements is negative")


class Contradiction(ValueError):
    """The bandwidths of a line are not those of the operation over so many ranks."""


def is_old(op: Op, line: Line) -> bool:
    """Return whether `line` has the bus bandwidth twice, as old versions print it for these operations."""
    return op.name in ("all_gather", "reduce_scatter") and line.algbw == line.busbw


def _speeds(line: Line, setup: Setup) -> tuple[float, float, float]:
    """Return microseconds, algorithm and bus bandwidth: from the time, which is printed with more digits.

    Only the printed numbers exist if the time is the host's (``-C``), the operation has a rule of its own (alltoallv),
    or the
    ranks are unknown (0). Raises Contradiction if the two do not agree.
    """
    op = KNOWN.get(setup.op)
    if line.cpu and line.algbw > 0:
        return line.nbytes / line.algbw / 1e3, line.algbw, line.busbw
    if op is None or not setup.ranks:
        return line.time_us, line.algbw, line.busbw
    shape = CallShape(line.nbytes, line.count, line.nbytes, line.nbytes, 0, 0)
    algbw, busbw = op.bandwidth(shape, setup.ranks, line.time_us * 1e-6)
    # one digit is printed from 1e6 GB/s on (`3e+06`), which one rank reaches in place, if nothing is to be done
    for printed, derived in ((line.algbw, busbw if is_old(op, line) else algbw), (line.busbw, busbw)):
        most = max(printed, derived if line.algbw > _SURE_GBps else 0.0)  # both 0: they were not printed at all
        rounded = 10.0 ** math.floor(math.log10(printed)) / 2 if printed >= 1e6 else 0.0
        if most > _SURE_GBps and abs(printed - derived) > _APART * most + rounded:
            raise Contradiction(
                f"{printed:g} GB/s is printed, and {setup.op} over {setup.ranks} ranks would be {derived:.4g} in "
                f"{line.time_us:g} us"
            )
    return line.time_us, algbw, busbw


def wrong_data(said: int, rows: Sequence[Measurement]) -> str:
    """Describe the wrong data that summary and rows report: a run that was cut short has no summary. Empty if none."""
    if said:
        return f"Out of bounds values : {said} FAILED"
    bad = [row for row in rows if row.wrong]
    return f"{bad[0].wrong} values of {bad[0].op} {size(bad[0].nbytes)} were wrong" if bad else ""


def refused(path: str, where: str, error: Exception) -> UsageError:
    """Return the UsageError for `error` in a line of `path`."""
    return UsageError(f"{path}: {where}: {error}")
