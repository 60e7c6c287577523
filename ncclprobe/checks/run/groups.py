"""Whether the groups of a hybrid-parallel job fit the nodes."""

from collections.abc import Iterator

from ncclprobe.checks.run.conditions import groups_of_ranks
from ncclprobe.facts.run.samples import Groups
from ncclprobe.model.findings import Finding, fail, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.traffic import GroupRow
from ncclprobe.model.values import replace
from ncclprobe.units import plural

_WITHIN = GroupRow(
    kind="tp", op="all_reduce", nbytes=1 << 20, size=8, groups=2, crossing=0, slowest=tuple(range(8)), alone_us=80.0,
    alone_busbw_GBps=23.0,
)  # fmt: skip
_TORN = replace(_WITHIN, problems=("in no group: ranks 3",))


@check(
    bad=lambda: [(Groups((_TORN,)),)],
    good=lambda: [(Groups((_WITHIN,)),)],
    applies=groups_of_ranks,
)
def groups(measured: Groups) -> Iterator[Finding]:
    """A tensor-parallel group crosses nodes, or the groups are no partition of the ranks.

    Right: No tensor-parallel group crosses nodes.
    Why: tensor parallelism sums activations four times per layer and waits for each; between nodes that is several
    times slower than within one, and it is the one kind of group that nothing hides.
    Fix: keep tp no larger than a node, and number ranks node by node (torchrun does; srun with --distribution=block).
    """
    for row in measured.rows:
        layout = f"{plural(row.groups, 'group')} of {row.size} ranks, {row.crossing} over several hosts"
        evidence = seen(f"{row.kind} groups", f"{layout}; alone {row.alone_us:.1f} us")
        for problem in row.problems:
            yield fail(f"{row.kind} groups", problem, blame="job", action="fix-job", evidence=evidence)
        for advised in row.advice:
            yield warn(f"{row.kind} groups", advised, blame="job", action="fix-job", evidence=evidence)
