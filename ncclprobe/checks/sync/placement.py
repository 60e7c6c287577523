"""Where the nodes of a job stand: whether they are close to each other, as far as anything tells."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks import JOB
from ncclprobe.checks.sync import describe, named
from ncclprobe.facts.placement import GROUP, HOST, OWN, REGION, SLURM, ZONE, Placement
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, note, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped

Placements = Mapping[str, Placement]


def below(*leaves: str) -> Every[Placement | Absent]:
    """Return nodes below these leaf switches, whose switch above is the same."""
    up = PlacementLevel("switch", "s0", SLURM)
    levels = [(up, PlacementLevel("leaf switch", each, SLURM)) for each in leaves]
    return Every({f"n{i}": Placement(each) for i, each in enumerate(levels)})


@applies
def told(placements: Every[Placement | Absent]) -> bool:
    """if several nodes were looked at, and one is told where it stands (NCCLPROBE_PLACEMENT, Slurm, a cloud)."""
    return len(placements) > 1 and any(isinstance(each, Placement) and each.levels for _, each in placements.items())


@check(
    slows=True,
    bad=lambda: [(below("s1", "s1", "s2"),)],
    good=lambda: [(below("s1", "s1", "s1"),)],
    applies=told,
)
def placement(placements: Every[Placement | Absent]) -> Iterator[Finding]:
    """Nodes of the job are far from each other.

    Right: No node of the job is in another zone or placement group than the others, or below a switch by itself.
    Why: between zones and placement groups of a cloud are more switches, a longer way and less bandwidth, and EFA and
    InfiniBand do not reach everywhere. All that a node below its own switch sends and receives goes over uplinks, which
    it shares with other jobs: that it is slow may be the fabric's load and not its own fault.
    Fix: nothing is broken. Where the rate matters, start the nodes in one zone and one cluster placement group (AWS),
    with one compact placement policy (GCP), in one scale set with a single placement group (Azure). Slurm: ask for one
    switch, and how long to wait for it: sbatch --switches=1@10:00.
    """
    known = {node: each for node, each in placements.items() if isinstance(each, Placement) and each.levels}
    found = [*_apart(known), *_alone({node: each.tree for node, each in known.items()}), *_shared(known)]
    yield from found
    silent = [node for node, _ in placements.items() if node not in known]
    if silent and not found:
        raise Unlearned(f"nothing tells where {fold(silent)} stand{'s' if len(silent) == 1 else ''}; {OWN} would")


def _apart(known: Placements) -> Iterator[Finding]:
    """Yield the outermost of region, zone and placement group in which nodes differ."""
    for kind in (REGION, ZONE, GROUP):
        told = {node: level for node, each in known.items() if (level := each.get(kind))}
        ballot = vote({node: level.name for node, level in told.items()})
        if not ballot.agreed:
            nodes = ballot.outliers or tuple(told)
            message = f"not in one {kind}: {describe(ballot)}"
            yield warn(named(nodes), message, nodes=nodes, evidence=_sources(told.values()), **JOB)
            return


def _alone(trees: Mapping[str, tuple[PlacementLevel, ...]]) -> Iterator[Finding]:
    """Yield nodes that have a switch or block to themselves, from the outermost level in, each node once."""
    told = {node: tree for node, tree in trees.items() if tree}
    depth = max(map(len, told.values()), default=0)
    said: set[str] = set()
    for inner in range(depth - 1, -1, -1):  # levels further in; nodes may have more or fewer of those outside
        outside = {node: tree[: len(tree) - inner] for node, tree in told.items() if len(tree) > inner}
        groups = grouped((tuple(each.name for each in levels), node) for node, levels in outside.items())
        alone = [nodes[0] for nodes in groups.values() if len(nodes) == 1 and nodes[0] not in said]
        if not alone or len(groups) == 1:
            continue
        said |= {*alone}
        levels = {node: told[node][len(told[node]) - inner - 1] for node in alone}
        others = [(names[-1], len(nodes)) for names, nodes in groups.items() if len(nodes) > 1]
        yield _by_itself(levels, others, len(groups))


def _by_itself(levels: Mapping[str, PlacementLevel], others: Sequence[tuple[str, int]], groups: int) -> Finding:
    """Return what is said of `levels`, a node's own; a warning where all others share one: they nearly fitted."""
    alone, kind = tuple(levels), next(iter(levels.values())).kind
    more: dict[str, Any] = {"nodes": alone, "evidence": _sources(levels.values())}
    if groups == 2 and len(alone) == 1:
        ((other, count),) = others
        message = f"alone below {kind} {levels[alone[0]].name}; the other {plural(count, 'node')} are below {other}"
        return warn(named(alone), message, **JOB, **more)
    where = first_of([f"{node} below {level.name}" for node, level in levels.items()], 4)
    return note(named(alone), f"each alone below its {kind}, of {groups} that the job has: {where}", **more)


def _shared(known: Placements) -> Iterator[Finding]:
    """Yield the physical hosts that several nodes are on: they share its NICs."""
    hosts = vote({node: level.name for node, each in known.items() if (level := each.get(HOST))})
    for host, nodes in hosts.groups.items():
        if len(nodes) > 1:
            levels = [level for node in nodes if (level := known[node].get(HOST))]
            yield note(named(nodes), f"share the physical host {host}", nodes=nodes, evidence=_sources(levels))


def _sources(levels: Iterable[PlacementLevel]) -> str:
    return ", ".join(sorted({level.source for level in levels}))
