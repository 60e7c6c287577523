"""Pipelines: who computes and hands on what in which order, and how long stages stand idle.

The schedule is 1F1B (Narayanan et al. 2019, "PipeDream"; Megatron-LM's default without interleaving): a stage runs as
many forward passes ahead as there are stages behind it, then one backward and one forward in turn, then the rest.
"""

from collections.abc import Sequence
from typing import Literal

from ncclprobe.model.values import Struct
from ncclprobe.training.workload import BACKWARD, FORWARD


class Pass(Struct, frozen=True):
    """One pass of one micro-batch through one stage."""

    way: Literal["forward", "backward"]
    micro_batch: int


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """Return what `stage` does, in order. Raises ValueError for a stage that is not one of `stages`."""
    if not 0 <= stage < stages or micro_batches < 1:
        raise ValueError(f"stage {stage} of {stages} with {micro_batches} micro-batches is no pipeline")
    ahead = min(stages - 1 - stage, micro_batches)
    order = [Pass("forward", number) for number in range(ahead)]
    for number in range(micro_batches - ahead):
        order += [Pass("forward", ahead + number), Pass("backward", number)]
    return (*order, *(Pass("backward", number) for number in range(micro_batches - ahead, micro_batches)))


def bubble_overhead(stages: int, micro_batches: int) -> float:
    """Return idle time over useful time of an ideal pipeline: (p - 1) / m."""
    return (stages - 1) / micro_batches


def bubble_idle(stages: int, micro_batches: int) -> float:
    """Return the share of a step in which a stage of an ideal pipeline stands idle: (p - 1) / (m + p - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def predict(stages: int, micro_batches: int, compute_s: float, hand_on_s: float) -> float:
    """Return the seconds of a step of stages that compute `compute_s` in all; each hand-over takes `hand_on_s`."""
    lengths = {"forward": compute_s * FORWARD / micro_batches, "backward": compute_s * BACKWARD / micro_batches}
    plans: list[Sequence[Pass]] = [one_f_one_b(stage, stages, micro_batches) for stage in range(stages)]
    arrived: dict[tuple[int, Pass], float] = {}
    link_free: dict[tuple[int, str], float] = {}
    now, done = [0.0] * stages, [0] * stages
    while any(done[stage] < len(plans[stage]) for stage in range(stages)):
        for stage in range(stages):
            if done[stage] == len(plans[stage]):
                continue
            each = plans[stage][done[stage]]
            source = stage - 1 if each.way == "forward" else stage + 1
            if 0 <= source < stages and (stage, each) not in arrived:
                continue  # in 1F1B another stage can always go on
            now[stage] = max(now[stage], arrived.get((stage, each), 0.0)) + lengths[each.way]
            done[stage] += 1
            to = stage + 1 if each.way == "forward" else stage - 1
            if 0 <= to < stages:
                begins = max(now[stage], link_free.get((stage, each.way), 0.0))
                link_free[stage, each.way] = arrived[to, each] = begins + hand_on_s
    return max(now)
