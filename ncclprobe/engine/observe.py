"""Snapshots of machines: of this one, asked now, and of those that captures were taken of."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclprobe import bounds
from ncclprobe.engine.collect import Traces, collect, collect_rank
from ncclprobe.errors import HostError, UsageError
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.rank import together
from ncclprobe.host import Question
from ncclprobe.host.capture import Recorder, Replay, load
from ncclprobe.model.registry import Collector, modules
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace

Heard = dict[Question, str | HostError]


def recordable() -> set[str]:
    """Return the variables whose value may be recorded: those of the table, and those that a module of facts READS."""
    from ncclprobe.nccl.parameters import table

    read: set[str] = set().union(*(getattr(module, "READS", ()) for module in modules("ncclprobe.facts", {"machine"})))
    return {*table(), *read} - {"SLURM_EXPORT_ENV"}  # what `srun --export=ALL,TOKEN=…` was given


def observed(
    collectors: Sequence[Collector], deadline: float, given: Mapping[Question, str] | None = None
) -> tuple[Snapshot, Heard]:
    """Return this machine's facts, and every answer that made them.

    `deadline` is on time.monotonic(); `given` are samples that the command line holds.
    """
    with_live = _Live(deadline, given)
    try:
        facts = collect(with_live.host, collectors, at_once=True)
    finally:
        with_live.close()
    system = facts[System]
    node = "this node" if isinstance(system, Absent) else system.hostname
    answers = with_live.host.answers
    return Snapshot(node, facts, _own_rank(facts, collectors), answers), answers


def heard_by_rank(collectors: Sequence[Collector], deadline: float) -> Heard:
    """Return the answers that this process, a rank of its node, gets for itself; another rank speaks for the node."""
    with_live = _Live(deadline)
    try:
        collect_rank(with_live.host, collectors)
    finally:
        with_live.close()
    return with_live.host.answers


class _Live:
    """This machine behind a recorder."""

    def __init__(self, deadline: float, given: Mapping[Question, str] | None = None) -> None:
        from ncclprobe.host.live import LiveHost
        from ncclprobe.nccl.parameters import looks_like_ours

        self._live = LiveHost(recordable(), looks_like_ours, deadline, given)
        self.host = Recorder(self._live)

    def close(self) -> None:
        self._live.close()


def replayed(paths: Sequence[Path], collectors: Sequence[Collector]) -> list[Snapshot]:
    """Return the facts of captured machines, one per node. Raises UsageError."""
    snapshots: dict[str, Snapshot] = {}
    traces = Traces()
    for path in paths:
        host = load(path)
        if host.node in snapshots:
            raise UsageError(f"{path}: a second capture of node {host.node}; give one per node")
        snapshot = of_capture(host, collectors, traces)
        kept = len(paths) <= bounds.SHOWN_CAPTURES
        snapshots[host.node] = snapshot if kept else replace(snapshot, answers={})
    return list(snapshots.values())


def of_capture(host: Replay, collectors: Sequence[Collector], traces: Traces | None = None) -> Snapshot:
    """Return the facts of a captured node and of its ranks. `traces`: what was learned of the job's other nodes.

    The node has the GPUs of all its ranks, of which each may see its own alone.
    """
    whole = host.with_answers(together(host.answers, {rank: own.answers for rank, own in host.ranks.items()}))
    facts = collect(whole, collectors, traces=traces)
    others = {rank: collect_rank(own, collectors, traces) for rank, own in host.ranks.items()}
    first = facts if whole is host else facts | collect_rank(host, collectors, traces)
    return Snapshot(host.node, facts, {**_own_rank(first, collectors), **others}, whole.answers)


def _own_rank(facts: Mapping[type, object], collectors: Sequence[Collector]) -> dict[int, dict[type, object]]:
    """Return the rank that speaks for the node is one of its ranks, if a launcher made it one."""
    launch = facts.get(Launch)
    if not isinstance(launch, Launch) or launch.rank is None:
        return {}
    return {launch.rank: {c.produces: facts[c.produces] for c in collectors if c.of_rank}}
