"""One rank of a run, and everything it measures with."""

import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ncclprobe.host import Host
from ncclprobe.model.values import Struct
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import RankIdentity, RunConfig
from ncclprobe.session.ranks.store import Exchange
from ncclprobe.session.watchdog.watchdog import Watchdog

if TYPE_CHECKING:
    from ncclprobe.probes.plan import Plan

TORCH_SLACK_S = 30.0
"""Margin between our deadlines and torch's own, in seconds, so that ours names the rank first."""
_LONGEST_BUDGETS = 4.0
"""A row of a size that the user did not ask for takes at most this many budgets."""


class RankContext(Struct, frozen=True):
    """One rank that has joined the others, and its means of measuring.

    `device` is torch's name, `gpu` the identity of the GPU, if it uses one. `sizes` of collectives are empty if the
    options give them. `hosts` are those of all ranks on rank 0, elsewhere only this rank's. `look` is None on all but
    one rank of each node, `recorder` on all but rank 0.
    """

    options: Options
    identity: RankIdentity
    host: Host
    config: RunConfig
    device: str
    hosts: tuple[str, ...]
    look: NodeSnapshot | None
    exchange: Exchange
    set_phase: Callable[[str], None]
    watchdog: Watchdog
    recorder: Recorder | None
    gpu: str | None = None
    sizes: tuple[int, ...] = ()

    @property
    def node(self) -> NodeSnapshot:
        """Return the snapshot of this rank's node, or an empty one if another rank has it."""
        return self.look or NodeSnapshot(socket.gethostname())

    def record(self, found: Iterable[Struct]) -> None:
        """Record samples as they arrive; rank 0 only."""
        for each in found:
            if self.recorder:
                self.recorder.record(each)

    def note(self, text: str) -> None:
        """Add a note to the report, if `text` is not empty; rank 0 only."""
        if text and self.recorder:
            self.recorder.note(text)

    def plan(self) -> "Plan":
        """Return the plan of this rank's collectives."""
        from ncclprobe.probes.plan import Plan  # and with it torch

        options, config = self.options, self.config
        return Plan(
            ops=options.ops,
            sizes=self.sizes or options.sizes_for(config.backend),
            rank=self.identity.rank,
            ranks=self.identity.ranks,
            nodes=config.nodes,
            backend=config.backend,
            device=self.device,
            dtype=options.dtype,
            redop=options.redop,
            iters=options.iters,
            warmup=options.warmup,
            batches=options.batches,
            precision=options.precision,
            budget_s=options.budget_s,
            longest_s=_LONGEST_BUDGETS * options.budget_s if options.open_end else options.phase_timeout_s / 2,
            mode=options.mode or "queued",
        )
