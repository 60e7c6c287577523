"""What single lines of torch say: collectives that timed out, ranks of a watchdog's line, stores that waited.

Texts of torch 1.10 to 2.13: ProcessGroupNCCL.cpp, TraceUtils.h, TCPStore.cpp, socket.cpp and
torch/distributed/distributed_c10d.py, torch/distributed/elastic/multiprocessing/errors. Literal texts, no regular
expressions.
"""

from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.values import Struct

TIMED_OUT = "Watchdog caught collective operation timeout"


class TimedOutWork(Struct, frozen=True):
    """A collective that a watchdog gave up: its number in its group, operation, elements and limit.

    `group` is the process group as torch names it; empty before 2.3. `nelements` is empty where a release prints a
    shape, which then stands in `shape`.
    """

    rank: int | None
    seq: int | None
    op: str
    nelements: int | None = None
    shape: str = ""
    timeout_ms: int | None = None
    group: str = ""


class Progress(Struct, frozen=True):
    """How far a rank's group came when its watchdog ended it: numbers of collectives; None: not said."""

    rank: int | None
    group: str
    enqueued: int | None
    completed: int | None


class Waited(Struct, frozen=True):
    """A store that waited for ranks: how many came, and how many were to come."""

    came: int
    wanted: int


class Signal(Struct, frozen=True):
    """One failure of torchrun's summary. `exitcode` is negative for a signal."""

    rank: int | None
    host: str
    exitcode: int | None
    message: str


def watchdog_rank(text: str) -> int | None:
    """Return the rank of ``[Rank 3]``, ``[PG 0 Rank 3]`` or ``[PG ID 0 PG GUID 0(default_pg) Rank 3]``."""
    return number(between(text, "[Rank ")) if "[Rank " in text else number(between(between(text, "[PG "), " Rank "))


def watchdog_group(text: str) -> str:
    """Return the process group of the same prefixes; empty: none is said."""
    return between(text, "[PG ", " Rank ") if "[PG " in text else ""


def timed_out_work(text: str) -> TimedOutWork | None:
    """Return the collective of a watchdog's line, in any release's form."""
    if TIMED_OUT not in text:
        return None
    work = between(text, "WorkNCCL(")
    shape = between(work, "TensorShape=[", "]")
    return TimedOutWork(
        watchdog_rank(text),
        number(between(work, "SeqNum=")),
        between(work, "OpType=", ",").split(")")[0],
        number(between(work, "NumelIn=")),
        shape,
        number(between(work, "Timeout(ms)=")),
        watchdog_group(text),
    )


def progress(text: str) -> Progress | None:
    """Return how far a rank came: ``last enqueued NCCL work: 5, last completed NCCL work: 4.`` and newer forms."""
    said = text.replace("Last enqueued", "last enqueued")
    if "last enqueued" not in said:
        return None
    enqueued = between(said, "last enqueued NCCL work: ") or between(said, "last enqueued work: ")
    completed = between(said, "last completed NCCL work: ") or between(said, "last completed work: ")
    return Progress(watchdog_rank(text), watchdog_group(text), number(enqueued), number(completed))


def waited(text: str) -> Waited | None:
    """Return how many ranks a TCPStore or torch's store-based barrier waited for when it gave up."""
    if "clients joined" in text:
        came = between(text, "waiting for clients. ")
        return _waited(number(came), number(between(came, "/")))
    if "store based barrier" in text and "imed out" in text:
        came = between(text, "num_workers_joined=") or between(text, "worker_count=")
        return _waited(number(came), number(between(text, "world_size=")))
    return None


def _waited(came: int | None, wanted: int | None) -> Waited | None:
    return None if came is None or wanted is None else Waited(came, wanted)


def ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks of ``0, 1, 3``, as torch joins them; other words are left out."""
    found = (number(word.strip()) for word in text[:4096].split(","))
    return tuple(rank for rank in found if rank is not None)
