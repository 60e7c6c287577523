"""The communicators of a hybrid-parallel job: which ranks talk to each other along which axis.

Ranks are numbered as Megatron-LM numbers them (megatron/core/parallel_state.py, order "tp-cp-ep-dp-pp"): neighbours in
tensor parallelism are neighbours in rank, pipeline stages are the farthest apart. So a launcher that fills one node
after the other keeps tensor-parallel groups, which talk most, inside nodes.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Literal, get_args

from ncclprobe import bounds
from ncclprobe.errors import UsageError, unknown
from ncclprobe.layout import first_of
from ncclprobe.model.values import Struct

Kind = Literal["tp", "cp", "dp", "pp"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Tensor, context, data and pipeline parallelism, from the innermost to the outermost."""

OPERATION: Mapping[Kind, str] = {"tp": "all_reduce", "cp": "all_gather", "dp": "all_reduce", "pp": "sendrecv"}
"""What a group of each kind mostly does: activations summed, keys and values gathered, gradients summed, activations
handed to the next stage."""


class Grid(Struct, frozen=True):
    """How many ranks lie along each axis; ``tp=8,dp=4`` has 32 ranks."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """Return how many ranks that makes."""
        return prod(self.along(kind) for kind in KINDS)

    def along(self, kind: Kind) -> int:
        """Return the length of one axis."""
        return int(getattr(self, kind))

    def groups(self, kind: Kind) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ only along `kind`, in the order of their first rank."""
        strides = _strides(self)
        others = [[place * strides[axis] for place in range(self.along(axis))] for axis in KINDS if axis != kind]
        starts = sorted(sum(place) for place in product(*others))
        own = [place * strides[kind] for place in range(self.along(kind))]
        return tuple(tuple(start + offset for offset in own) for start in starts)

    def __str__(self) -> str:
        """Return the grid as it is written: ``tp=2,dp=2``."""
        return ",".join(f"{kind}={self.along(kind)}" for kind in KINDS if self.along(kind) > 1) or "dp=1"


def _strides(grid: Grid) -> dict[Kind, int]:
    """Return how far apart in rank neighbours along each axis are."""
    strides: dict[Kind, int] = {}
    step = 1
    for kind in KINDS:
        strides[kind] = step
        step *= grid.along(kind)
    return strides


def parse(text: str) -> Grid:
    """Return the grid in ``tp=8,pp=2,dp=4``, in whatever order. Raises UsageError naming what is wrong with it."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        kind, _, number = (word.strip() for word in part.partition("="))
        if kind not in KINDS:
            raise UsageError(f"--groups {text}: {unknown(kind or part, 'kind of group', KINDS)}")
        if kind in sizes:
            raise UsageError(f"--groups {text}: {kind} is given twice")
        if not (number.isascii() and number.isdecimal() and len(number) < 8 and int(number) > 0):
            raise UsageError(f"--groups {text}: {kind}={number} must be a whole number above zero, such as {kind}=2")
        sizes[kind] = int(number)
    grid = Grid(**sizes)
    if grid.ranks > bounds.JOB_RANKS:
        raise UsageError(f"--groups {text}: {grid.ranks} ranks are more than any job has")
    return grid


def fit(grid: Grid, ranks: int) -> Grid:
    """Return `grid` if it makes up the world of `ranks`. Raises UsageError saying what would."""
    if grid.ranks == ranks:
        return grid
    others = grid.ranks // grid.dp
    hint = f"; dp={ranks // others} would" if ranks % others == 0 else f"; {ranks} is no multiple of {others}"
    raise UsageError(f"--groups {grid} is {grid.ranks} ranks and this job has {ranks}: it must make up the world{hint}")


def problems(groups: Sequence[Sequence[int]], ranks: int) -> tuple[str, ...]:
    """Return what keeps `groups` from being a partition of the ranks 0 … `ranks` - 1, one line each."""
    seen: dict[int, int] = {}
    for group in groups:
        for rank in group:
            seen[rank] = seen.get(rank, 0) + 1
    missing = [rank for rank in range(ranks) if rank not in seen]
    twice = sorted(rank for rank, times in seen.items() if times > 1)
    foreign = sorted(rank for rank in seen if not 0 <= rank < ranks)
    sizes = sorted({len(group) for group in groups})
    found = [f"{what}: ranks {first_of(which, 8)}" for what, which in (
        ("in no group", missing), ("in more than one", twice), ("not in this job", foreign)) if which]  # fmt: skip
    return (*found, *([f"groups of unequal size: {first_of(sizes, 8)}"] if len(sizes) > 1 else ()))


def crossing(groups: Sequence[Sequence[int]], hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return those of `groups` whose ranks are not all on one of the `hosts` (by rank)."""
    return tuple(tuple(group) for group in groups if len({hosts[rank] for rank in group}) > 1)


def advice(grid: Grid, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return what is unwise about `grid` on these `hosts` (by rank), a sentence each; empty where nothing is."""
    across = crossing(grid.groups("tp"), hosts) if grid.tp > 1 else ()
    if not across:
        return ()
    most = max(hosts.count(host) for host in set(hosts))
    larger = f": a group of {grid.tp} is larger than a node of {most}" if grid.tp > most else ""
    return (
        f"{len(across)} of {len(grid.groups('tp'))} tensor-parallel groups cross nodes (ranks {first_of(across[0], 8)} "
        f"first){larger}; every layer then waits for the network. Keep tp within a node, and number ranks node by node",
    )
