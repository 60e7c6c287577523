"""How a probe is declared: one collective, bound to torch, with what its receive buffer must hold.

A probe binds one collective to torch, once per place in memory, so that the measuring loop has nothing left to do but
to call; it also states what the receive buffer must hold afterwards, so that the data can be verified.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ncclprobe.model.values import Struct

Call = Callable[[], object]
ROOT = 0
"""The rank that broadcast and scatter send from, reduce and gather send to (nccl-tests' ``-r`` default)."""


class BufferView(Struct, frozen=True):
    """Where one call sends from and receives to: flat views of one data type. In place, they overlap.

    `rank` and `ranks` are those of `group`, null: the default one.
    """

    send: torch.Tensor
    recv: torch.Tensor
    rank: int
    ranks: int
    redop: dist.ReduceOp.RedOpType
    group: dist.ProcessGroup | None = None

    def member(self, rank: int) -> int:
        """Return the rank in the whole job of the group's member `rank`, which torch asks for."""
        return rank if self.group is None else int(dist.get_global_rank(self.group, rank))


class Part(Struct, frozen=True):
    """`count` elements of a receive buffer: what rank `source` sends from its element `start` on.

    A `source` of None is the reduction over all ranks, of the elements from `start` on.
    """

    source: int | None
    start: int
    count: int


class Probe(Struct, frozen=True):
    """One collective: `run` binds a call to a slot, `result` says what that call must leave in `view.recv`.

    `result` takes rank, ranks and the count that nccl-tests prints; the parts lie one after another.
    """

    name: str
    run: Callable[[BufferView], Call]
    result: Callable[[int, int, int], Sequence[Part]]


def probe(result: Callable[[int, int, int], Sequence[Part]]) -> Callable[[Callable[[BufferView], Call]], Probe]:
    """Declare that the function binds the collective it is named after."""

    def declare(run: Callable[[BufferView], Call]) -> Probe:
        return Probe(name=run.__name__, run=run, result=result)

    return declare
