"""One stage of a pipeline: receive, compute, hand on, in the order of 1F1B."""

import torch
import torch.distributed as dist

from ncclprobe.model.values import Struct
from ncclprobe.ops import DTYPES
from ncclprobe.probes.plan import Plan
from ncclprobe.probes.work import Work
from ncclprobe.training.pipeline import Pass, one_f_one_b
from ncclprobe.training.workload import BACKWARD, FORWARD, Model


class Stage(Struct):
    """This rank's stage. Forward and backward have a group each.

    NCCL runs the calls of one communicator between two ranks one after the other; activations going forth and gradients
    coming back on the same one could wait for each other for ever.
    """

    rank: int
    stages: int
    micro_batches: int
    out: torch.Tensor
    into: torch.Tensor
    forth: dist.ProcessGroup
    back: dist.ProcessGroup

    @classmethod
    def open(cls, plan: Plan, model: Model) -> "Stage":
        """Make both groups, on all ranks, and the buffers."""
        count = max(1, model.activation_bytes // DTYPES[plan.dtype])
        out, into = (torch.zeros(count, dtype=getattr(torch, plan.dtype), device=plan.device) for _ in range(2))
        forth, back = (dist.new_group(list(range(plan.ranks))) for _ in range(2))
        return cls(plan.rank, plan.ranks, model.micro_batches, out, into, forth, back)

    def shift(self) -> None:
        """Hand on once in each direction, on every stage: to the next forward, to the one before backward."""
        for step, group in ((1, self.forth), (-1, self.back)):
            to_next = 0 <= self.rank + step < self.stages
            from_previous = 0 <= self.rank - step < self.stages
            sending = dist.isend(self.out, self.rank + step, group) if to_next else None
            _wait(dist.irecv(self.into, self.rank - step, group) if from_previous else None)
            _wait(sending)

    def play(self, work: Work, chunks: float, overlap: bool) -> None:
        """Run one step: `chunks` products in all.

        With overlap the next message is received while this pass computes, and sends are not waited for. Without,
        sending and receiving the next are done together before going on, as they must be: if each only sent, two
        neighbours would wait for each other to receive.
        """
        order = one_f_one_b(self.rank, self.stages, self.micro_batches)
        coming, sent = self._receive(order, 0), list[dist.Work]()
        for number, each in enumerate(order):
            _wait(coming)
            if overlap:
                coming = self._receive(order, number + 1)
            work.do(chunks * _share(each) / self.micro_batches)
            sending = self._send(each)
            if not overlap:
                coming = self._receive(order, number + 1)
                _wait(sending)
            elif sending is not None:
                sent.append(sending)
        for sending in sent:
            _wait(sending)

    def _receive(self, order: tuple[Pass, ...], number: int) -> dist.Work | None:
        """Begin to receive what the pass at `number` needs, if there is one and it needs anything."""
        if number == len(order):
            return None
        step, group = self._way(order[number])
        return dist.irecv(self.into, self.rank - step, group) if 0 <= self.rank - step < self.stages else None

    def _send(self, each: Pass) -> dist.Work | None:
        step, group = self._way(each)
        return dist.isend(self.out, self.rank + step, group) if 0 <= self.rank + step < self.stages else None

    def _way(self, each: Pass) -> tuple[int, dist.ProcessGroup]:
        return (1, self.forth) if each.way == "forward" else (-1, self.back)


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def _share(each: Pass) -> float:
    return FORWARD if each.way == "forward" else BACKWARD
