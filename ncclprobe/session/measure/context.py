"""One rank of a run, and what it measures with."""

import socket
from collections.abc import Callable, Iterable
from typing import Any

from ncclprobe.host import Host
from ncclprobe.model.traffic import GroupRow, StepRow
from ncclprobe.model.values import Struct
from ncclprobe.session.measure.node_snapshot import NodeSnapshot
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.agreement import RunConfig
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange
from ncclprobe.session.watchdog.watchdog import Watchdog

TORCH_SLACK_S = 30.0
"""torch's own deadlines come so much after ours, so that ours names the rank."""
_LONGEST_BUDGETS = 4.0
"""A row of a size that the user did not ask for takes no longer than so many budgets."""


def plan_of(
    options: Options,
    identity: RankIdentity,
    config: RunConfig,
    device: str,
    *,
    sizes: tuple[int, ...] = (),
    group: Any = None,
) -> Any:
    """Return the probes.plan.Plan of one rank. `sizes`: in place of those that the options say.

    `group`: torch's process group to measure; null: the default one.
    """
    from ncclprobe.probes.plan import Plan

    return Plan(
        ops=options.ops,
        sizes=sizes or options.sizes_for(config.backend),
        rank=identity.rank,
        ranks=identity.ranks,
        nodes=config.nodes,
        backend=config.backend,
        device=device,
        dtype=options.dtype,
        redop=options.redop,
        iters=options.iters,
        warmup=options.warmup,
        batches=options.batches,
        precision=options.precision,
        budget_s=options.budget_s,
        longest_s=_LONGEST_BUDGETS * options.budget_s if options.open_end else options.phase_timeout_s / 2,
        mode=options.mode or "queued",
        group=group,
    )


class RankContext(Struct, frozen=True):
    """One rank that has met the others, and what it measures with.

    `device` is torch's name, `gpu` the identity of the GPU, if it uses one. `sizes` of collectives are empty where the
    options say them. `hosts` are those of all ranks on rank 0, elsewhere this rank's. `look` is None on all but one
    rank of each node, `recorder` on all but rank 0.
    """

    options: Options
    identity: RankIdentity
    host: Host
    config: RunConfig
    device: str
    gpu: str | None
    sizes: tuple[int, ...]
    hosts: tuple[str, ...]
    look: NodeSnapshot | None
    exchange: Exchange
    watchdog: Watchdog
    recorder: Recorder | None

    @property
    def node(self) -> NodeSnapshot:
        """Return the snapshot of this rank's node, or an empty one where another rank has it."""
        return self.look or NodeSnapshot(socket.gethostname())

    @property
    def set_phase(self) -> Callable[[str], None]:
        """Return what tells the watchdog of the next step."""
        return self.watchdog.set_phase

    def record(self, rows: Iterable[GroupRow | StepRow]) -> None:
        """Record rows of training as they come."""
        for row in rows:
            if self.recorder:
                self.recorder.add_trained(row)

    def note(self, text: str) -> None:
        """Note `text` in the report, if there is any."""
        if text and self.recorder:
            self.recorder.note(text)

    def plan(self) -> Any:
        """Return the probes.plan.Plan of this run."""
        return plan_of(self.options, self.identity, self.config, self.device, sizes=self.sizes)
