"""The ladder of ``ncclprobe accept --ladder``: what is played, how large, and within which time."""

from collections.abc import Sequence
from typing import Any

from ncclprobe.host import Host
from ncclprobe.model.traffic import LadderRow
from ncclprobe.session.measure.training import room_of
from ncclprobe.training import ladder

STEP_BYTES = {"nccl": 64 << 20, "gloo": 4 << 20}
"""Gradients of one step, by backend: of 16 and of 1 million parameters in float32."""
LARGEST = {"nccl": 1 << 30, "gloo": 4 << 20}
"""Of the all_reduce alone: with NCCL the size that can be judged, with gloo one that any network carries in time."""
_SHARE = 1 / 8
_SLACK_S = 30.0  # torch's own deadlines come so much later than ours, which name the rank
_BUFFERS = 6
"""So many messages must fit: the buffers of the steps of two rungs, and that of the all_reduce."""


def play(
    plan: Any, hosts: Sequence[str], host: Host, timeout_s: float, exchange: Any, set_phase: Any
) -> tuple[LadderRow, ...]:
    """Measure all rungs, on every rank, within a share of the run's `timeout_s`; return the rows on rank 0.

    `plan` is a probes.plan.Plan, `hosts` are those of all ranks, on rank 0. Raises ProbeError.
    """
    from ncclprobe.probes.ladder import LadderSizes, run

    rungs = ladder.plan(exchange.share(list(hosts)), pairs=plan.backend == "gloo")
    room = room_of(plan, host, exchange)

    def fitting(nbytes: int) -> int:
        return nbytes if room is None else max(1 << 20, min(nbytes, room // _BUFFERS // 512 * 512))

    sizes = LadderSizes(
        fitting(STEP_BYTES[plan.backend]), fitting(min(LARGEST[plan.backend], max(plan.sizes))), _SHARE * timeout_s
    )
    return run(plan, rungs, sizes, timeout_s + _SLACK_S, exchange, set_phase)
