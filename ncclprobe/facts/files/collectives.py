"""Which collective each rank was in when watchdogs gave up, and who was in none: from torch's lines of all ranks."""

from collections.abc import Iterable, Mapping

from ncclprobe.facts.files.torch_lines import Progress, TimedOutWork
from ncclprobe.model.values import Struct

_MOST_RANKS = 1 << 20
_FEW_MISSING = 7
"""Ranks that have to speak for each that does not, where nothing says how many there are: 7 of 8 on one host."""
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED", "UNKNOWN")
_EQUAL_ELEMENTS = ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER",
                   "_REDUCE_SCATTER_BASE")  # fmt: skip
"""Of these every rank passes equally many elements; scatter, gather and all-to-all may differ."""


class Hang(Struct, frozen=True):
    """One process group whose watchdogs gave up. `works` is the first collective that each rank gave up.

    `late` are ranks that had not called it although others had: by their own counts, or because they said nothing.
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
        by_kind: dict[object, list[int]] = {}
        for rank, work in self.works.items():
            by_kind.setdefault((work.op, work.nelements, work.shape), []).append(rank)
        usual = max(by_kind.values(), key=len, default=[])
        return (
            tuple(sorted(rank for rank in self.works if rank not in usual)) if 2 * len(usual) > len(self.works) else ()
        )

    @property
    def certain(self) -> bool:
        """Return whether operations or sizes differ, and not numbers alone, in one group: before 2.3 none is named."""
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
    """Return the ranks of a job whose size no line names, if nearly all up to the highest gave up: else none."""
    ranks = range(max(works, default=0) + 1)
    missing = len(ranks) - len(works)
    return ranks if _is_default(group) and missing <= len(works) // _FEW_MISSING else range(0)


def _is_default(group: str) -> bool:
    """Return whether a group holds all ranks: torch names it 0 or default_pg, and before 2.3 not at all."""
    return not group or group == "0" or "default_pg" in group
