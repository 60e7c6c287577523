"""The collectives, bound to torch. Byte counts are those of ncclprobe.model.ops.

A probe binds one collective to torch, once per view, so that the measuring loop only has to call. It also states what
the receive buffer must hold afterwards, for verification.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ncclprobe.model.values import Struct

Call = Callable[[], object]
ROOT = 0
"""Root of broadcast, scatter, reduce and gather (nccl-tests' ``-r`` default)."""


class BufferView(Struct, frozen=True):
    """Buffers of one call: flat views of one data type; in place, they overlap.

    `rank` and `ranks` are relative to `group`; None is the default group.
    """

    send: torch.Tensor
    recv: torch.Tensor
    rank: int
    ranks: int
    redop: dist.ReduceOp.RedOpType
    group: dist.ProcessGroup | None = None

    def member(self, rank: int) -> int:
        """Return the global rank of the group's `rank`, which torch asks for."""
        return rank if self.group is None else int(dist.get_global_rank(self.group, rank))


class Slice(Struct, frozen=True):
    """`count` elements of a receive buffer: what rank `source` sends, from its element `start`.

    `source` None: the reduction over all ranks, from element `start`.
    """

    source: int | None
    start: int
    count: int


class Probe(Struct, frozen=True):
    """One collective: `run` binds a call to a view, `result` states what that call must leave in `view.recv`.

    `result` takes rank, ranks and the count that nccl-tests prints; its parts are consecutive.
    """

    name: str
    run: Callable[[BufferView], Call]
    result: Callable[[int, int, int], Sequence[Slice]]


def probe(result: Callable[[int, int, int], Sequence[Slice]]) -> Callable[[Callable[[BufferView], Call]], Probe]:
    """Declare that the function binds the collective that it is named after."""

    def declare(run: Callable[[BufferView], Call]) -> Probe:
        return Probe(name=run.__name__, run=run, result=result)

    return declare


# torch 2.13 renamed both (pytorch#186123) and warns of the old names.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _one_from_each(rank: int, ranks: int, count: int) -> list[Slice]:
    return [Slice(source, 0, count) for source in range(ranks)]


@probe(result=lambda rank, ranks, count: [Slice(None, 0, count)])
def all_reduce(at: BufferView) -> Call:
    """Reduce over all ranks; every rank gets the result."""
    return partial(dist.all_reduce, at.recv, at.redop, at.group)


@probe(result=_one_from_each)
def all_gather(at: BufferView) -> Call:
    """Concatenate the shares of all ranks, in rank order, on every rank."""
    return partial(_all_gather, at.recv, at.send, at.group)


@probe(result=lambda rank, ranks, count: [Slice(None, rank * count, count)])
def reduce_scatter(at: BufferView) -> Call:
    """Reduce over all ranks; each rank gets its share of the result."""
    return partial(_reduce_scatter, at.recv, at.send, at.redop, at.group)


@probe(result=lambda rank, ranks, count: [Slice(source, rank * count, count) for source in range(ranks)])
def all_to_all(at: BufferView) -> Call:
    """Send the n-th share of every rank to rank n."""
    return partial(dist.all_to_all_single, at.recv, at.send, group=at.group)


@probe(result=lambda rank, ranks, count: [Slice(ROOT, 0, count)])
def broadcast(at: BufferView) -> Call:
    """Copy the root's buffer to every rank."""
    return partial(dist.broadcast, at.recv, at.member(ROOT), at.group)


@probe(result=lambda rank, ranks, count: [Slice(None, 0, count)] if rank == ROOT else [])
def reduce(at: BufferView) -> Call:
    """Reduce over all ranks to the root; the other ranks' results are undefined."""
    return partial(dist.reduce, at.recv, at.member(ROOT), at.redop, at.group)


@probe(result=lambda rank, ranks, count: _one_from_each(rank, ranks, count) if rank == ROOT else [])
def gather(at: BufferView) -> Call:
    """Concatenate the shares of all ranks, in rank order, on the root."""
    shares = list(at.recv.view(at.ranks, -1).unbind()) if at.rank == ROOT else None
    return partial(dist.gather, at.send, shares, at.member(ROOT), at.group)


@probe(result=lambda rank, ranks, count: [Slice(ROOT, rank * count, count)])
def scatter(at: BufferView) -> Call:
    """Send the n-th share of the root's buffer to rank n."""
    shares = list(at.send.view(at.ranks, -1).unbind()) if at.rank == ROOT else None
    return partial(dist.scatter, at.recv, shares, at.member(ROOT), at.group)


@probe(result=lambda rank, ranks, count: [Slice((rank - 1) % ranks, 0, count)])
def sendrecv(at: BufferView) -> Call:
    """Send round a ring: every rank to the next, receiving from the previous one, in one batch."""
    to_next = dist.P2POp(dist.isend, at.send, at.member((at.rank + 1) % at.ranks), at.group)
    from_previous = dist.P2POp(dist.irecv, at.recv, at.member((at.rank - 1) % at.ranks), at.group)
    return partial(_exchange, [to_next, from_previous])


def _exchange(batch: Sequence[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(list(batch)):
        work.wait()
