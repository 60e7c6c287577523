"""What single lines of torch say: collectives that timed out, ranks of a watchdog's line, stores that waited.

Texts of torch 1.10 to 2.13: ProcessGroupNCCL.cpp, TraceUtils.h, TCPStore.cpp, socket.cpp and
torch/distributed/distributed_c10d.py, torch/distributed/elastic/multiprocessing/errors. Literal texts, no regular
expressions.

Which collective each rank was in when watchdogs gave up, and who was in none: from torch's lines of all ranks.
"""

from collections.abc import Iterable, Mapping

from ncclprobe.logs.texts import between, number
from ncclprobe.model.values import Struct, grouped

TIMED_OUT = "Watchdog caught collective operation timeout"


class TimedOutWork(Struct, frozen=True):
    """A collective that a watchdog gave up: its number in its group, operation and elements.

    `group` is the process group as torch names it; empty before 2.3. `nelements` is empty if a release prints a
    shape, which then stands in `shape`.
    """

    rank: int | None
    seq: int | None
    op: str
    nelements: int | None = None
    shape: str = ""
    group: str = ""

    def __str__(self) -> str:
        """Return ``ALLREDUCE number 7``, or only its operation if a release prints no number."""
        return f"{self.op} number {self.seq}" if self.seq is not None else self.op


class Progress(Struct, frozen=True):
    """Progress of a rank's group when its watchdog ended it: numbers of collectives; None: unknown."""

    rank: int | None
    group: str
    enqueued: int | None
    completed: int | None


class Waited(Struct, frozen=True):
    """A store that waited for ranks: how many joined, and how many were expected."""

    came: int
    wanted: int


def watchdog_rank(text: str) -> int | None:
    """Return the rank of ``[Rank 3]``, ``[PG 0 Rank 3]`` or ``[PG ID 0 PG GUID 0(default_pg) Rank 3]``."""
    return number(between(text, "[Rank ")) if "[Rank " in text else number(between(between(text, "[PG "), " Rank "))


def watchdog_group(text: str) -> str:
    """Return the process group of the same prefixes; empty: the prefixes name none."""
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
        watchdog_group(text),
    )


def progress(text: str) -> Progress | None:
    """Return the progress of a rank: ``last enqueued NCCL work: 5, last completed NCCL work: 4.`` and newer forms."""
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


_MOST_RANKS = 1 << 20
_FEW_MISSING = 7
"""Ranks that must report for each that does not, if the number of ranks is unknown: 7 of 8 on one host."""
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED", "UNKNOWN")
_EQUAL_ELEMENTS = (
    "ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE"
)  # fmt: skip
"""Operations to which every rank passes the same number of elements; scatter, gather and all-to-all may differ."""


class Hang(Struct, frozen=True):
    """One process group whose watchdogs gave up. `works` is the first collective that each rank gave up.

    `late` are ranks that had not called it although others had: by their own counts, or because they logged nothing.
    """

    group: str
    works: Mapping[int, TimedOutWork]
    late: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    @property
    def differ(self) -> str:
        """Return in words how the ranks' collectives differ; empty: they do not."""
        works = [work for work in self.works.values() if not work.op.startswith(_POINT_TO_POINT)]
        ops = sorted({work.op for work in works})
        if len(ops) > 1:
            return "operations differ: " + ", ".join(ops)
        sizes = {(work.nelements, work.shape) for work in works if work.op in _EQUAL_ELEMENTS}
        numbers = sorted({work.seq for work in works if work.seq is not None})
        if len(sizes) > 1 and len(numbers) < 2:
            return f"sizes of {ops[0]} differ"
        if len(numbers) > 1:
            return f"some are at collective {numbers[0]}, others at {numbers[-1]}"
        return ""

    @property
    def odd(self) -> tuple[int, ...]:
        """Return the ranks that called another operation, or size, than most did; empty: none is of most."""
        by_kind = grouped(((work.op, work.nelements, work.shape), rank) for rank, work in self.works.items())
        usual = max(by_kind.values(), key=len, default=[])
        return (
            tuple(sorted(rank for rank in self.works if rank not in usual)) if 2 * len(usual) > len(self.works) else ()
        )

    @property
    def certain(self) -> bool:
        """Return whether operations or sizes differ, and not only numbers, in one group: before 2.3 none is named."""
        return bool(self.group) and "differ" in self.differ


def hangs(
    works: Iterable[TimedOutWork], progresses: Iterable[Progress], world_size: int | None = None
) -> tuple[Hang, ...]:
    """Return each process group's hang, the default group first. Works without a rank are left out."""
    of: dict[str, dict[int, TimedOutWork]] = {}
    for work in works:
        if work.rank is not None:
            of.setdefault(work.group, {}).setdefault(work.rank, work)
    came: dict[str, dict[int, Progress]] = {}
    for each in progresses:
        if each.rank is not None:
            came.setdefault(each.group, {})[each.rank] = each
    return tuple(_hang(group, found, came.get(group, {}), world_size) for group, found in sorted(of.items()))


def _hang(group: str, works: Mapping[int, TimedOutWork], came: Mapping[int, Progress], size: int | None) -> Hang:
    furthest = max((work.seq for work in works.values() if work.seq is not None), default=None)
    late = [
        rank
        for rank, each in came.items()
        if furthest is not None and each.enqueued is not None and each.enqueued < furthest
    ]
    everyone = range(size) if size and size <= _MOST_RANKS and _is_default(group) else _up_to_highest(group, works)
    silent = tuple(rank for rank in everyone if rank not in works)
    return Hang(group, works, tuple(sorted(late)), silent if len(silent) <= len(works) else ())


def _up_to_highest(group: str, works: Mapping[int, TimedOutWork]) -> range:
    """Return the ranks of a job whose size no line names, if nearly all up to the highest gave up; otherwise none."""
    ranks = range(max(works, default=0) + 1)
    missing = len(ranks) - len(works)
    return ranks if _is_default(group) and missing <= len(works) // _FEW_MISSING else range(0)


def _is_default(group: str) -> bool:
    """Return whether a group holds all ranks: torch names it 0 or default_pg, and before 2.3 not at all."""
    return not group or group == "0" or "default_pg" in group
