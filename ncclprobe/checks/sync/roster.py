"""Which nodes are missing, and how close to each other the others are, as far as known."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ncclprobe.checks import JOB
from ncclprobe.checks.launch import TWO_NODES
from ncclprobe.checks.majority import describe, named
from ncclprobe.checks.sync import LOCATION_GROUP, NODES_GROUP
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.placement import GROUP, HOST, OWN, REGION, SLURM, ZONE, Placement
from ncclprobe.facts.reach import Gathering, HostFailure, StartedHosts, Trouble
from ncclprobe.model import bounds
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import PlacementLevel
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped, replace

T = TypeVar("T")
_LEAST_WAIT_S = 3.0  # a launcher starts no thousand processes in less
_CLOCKS_S = 0.1  # by which the end of a wait may be taken too early
_MOST_CALLS = 5  # of strangers that a finding tells


def missing(launches: Every[Launch], came: Collection[int] = ()) -> tuple[str, ...]:
    """Return the nodes of the job that are not among `launches`: the scheduler's names, otherwise ``node 3``, otherwise
    ``?``.

    `came` are the ranks of those that arrived, whatever else is known about them.

    Most nodes' number of nodes counts. If nodes know neither their rank nor their name, the others are counted.
    """
    names = _names(launches)
    lacking = len(names) - len(launches)
    if lacking <= 0:
        return ()
    ranks = {launch.node_rank for _, launch in launches.items()}
    if None not in ranks:
        return tuple(name for rank, name in enumerate(names) if rank not in ranks and rank not in came)
    here = {name.partition(".")[0] for name, _ in launches.items()}
    absent = tuple(name for name in names if name.partition(".")[0] not in here)
    return absent if len(absent) == lacking else ("?",) * lacking


def _names(launches: Every[Launch]) -> tuple[str, ...]:
    """What to call each node, by its rank."""
    expected = _usual(launch.nnodes for _, launch in launches.items()) or 0
    names = _usual(launch.names for _, launch in launches.items()) or ()
    expected = min(expected, bounds.HOST_NAMES)
    return names if len(names) == expected else tuple(f"node {rank}" for rank in range(expected))


def _usual(values: Iterable[T | None]) -> T | None:
    """What most of those say that say anything."""
    counts = Counter(value for value in values if value)
    return counts.most_common(1)[0][0] if counts else None


_THREE = replace(TWO_NODES, nnodes=3, world_size=24, names=("n0", "n1", "n2"))
TWO_OF_THREE = Every({"n0": _THREE, "n2": replace(_THREE, rank=16, node_rank=2)})
_WAITED: Every[Gathering | Absent] = Every({"n0": Gathering(2, 60.0), "n2": Absent("only rank 0 knows")})


@applies
def gathered(gatherings: Every[Gathering | Absent]) -> bool:
    """if rank 0's node reports which nodes it waited for."""
    return any(isinstance(each, Gathering) for _, each in gatherings.items())


@check(
    group=NODES_GROUP,
    bad=lambda: [(TWO_OF_THREE, _WAITED)],
    good=lambda: [(Every({**TWO_OF_THREE.by_node, "n1": replace(_THREE, rank=8, node_rank=1)}), _WAITED)],
    required=True,
    requires="launch.ranks/rank-twice",
    applies=gathered,
)
def node_missing(launches: Every[Launch], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """Nodes of the job did not join.

    Right: All nodes of the job joined.
    Why: a job starts only with all of its nodes. The others wait for the missing node until the rendezvous times out,
    and no message names it.
    Fix: read the doctor's output on that node. If there is none, check that the node is up and that the launcher
    started a process there (squeue, scontrol show node, kubectl get pods).
    """
    gathering = next(each for _, each in gatherings.items() if isinstance(each, Gathering))
    names = dict(enumerate(_names(launches)))
    absent = missing(launches, gathering.came)
    troubled = {names.get(each.node_rank, ""): each for each in gathering.troubles if each.node_rank is not None}
    if set(absent) - set(troubled) and gathering.waited_s < max(_LEAST_WAIT_S, gathering.allowed_s - _CLOCKS_S):
        words = f"rank 0 waited no longer than {gathering.waited_s:.1f} s"
        allowed = (
            f" of {gathering.allowed_s:.0f}: the rest of its time had already passed" if gathering.allowed_s else ""
        )
        raise Unlearned(f"{fold(absent)} did not join, but {words}{allowed}")
    if absent and gathering.floods:
        raise Unlearned(f"{fold(absent)} did not join while other programs flooded rank 0's port: see launch.port")
    by_kind = grouped((troubled[name].kind if name in troubled else "", name) for name in absent)
    strangers = _calls([each for each in gathering.troubles if each.node_rank is None])
    for kind, nodes in by_kind.items():
        known = tuple(node for node in nodes if node != "?")
        if kind:
            message = f"reached rank 0, but then failed ({kind}): {troubled[nodes[0]].detail}"
            peers = ", ".join(sorted({troubled[node].peer for node in nodes})[:_MOST_CALLS])
            evidence = seen("rank 0's listener", f"from {peers}")
        else:
            message = f"{len(nodes)} of {len(names)} nodes did not reach rank 0 in {gathering.waited_s:.0f} s"
            evidence = seen("rank 0's listener", f"no connection from them; other connections: {strangers or 'none'}")
        yield fail(fold(known) or "nodes", message, nodes=known, action="retest", evidence=evidence)
    if not absent and strangers:  # they cost nothing, but may belong to another job that waits for them
        yield note("MASTER_PORT", f"other programs connected to rank 0: {strangers}", evidence="rank 0's listener")


def _calls(troubles: Collection[Trouble]) -> str:
    """Describe connections that failed."""
    calls = [f"{each.peer or 'rank 0'}: {each.kind} ({each.detail})" for each in troubles]
    return first_of(calls, _MOST_CALLS, "; ")


_UNHEARD = ("late", "reset", "silent")
"""How a flood affects a live node: it reports that rank 0 is late to it, or its report is not heard."""
_CUT = Gathering(1, 2.0, lost=(Trouble("10.77.0.2", "reset", "closed the connection", 1),))


@check(
    group=NODES_GROUP,
    bad=lambda: [(Every({"n0": TWO_NODES, "n1": replace(TWO_NODES, rank=8, node_rank=1)}), Every({"n0": _CUT}))],
    good=lambda: [(TWO_OF_THREE, _WAITED)],
    required=True,
    applies=gathered,
)
def node_lost(launches: Every[Launch], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """Nodes joined but were lost before the run was over.

    Right: No node was lost during the run.
    Why: a node that dies, hangs or loses its network within seconds while nearly idle will do the same in the job, and
    end it.
    Fix: check that node's console and kernel log (dmesg), and look for out-of-memory kills. Find out what stopped the
    process there: a scheduler's limit, a signal, or a dead file system.
    """
    gathering = next(each for _, each in gatherings.items() if isinstance(each, Gathering))
    names = dict(enumerate(_names(launches))) | {launch.node_rank: node for node, launch in launches.items()}
    by_kind = grouped((each.kind, each) for each in gathering.lost)
    alive = _UNHEARD if gathering.floods else ("late",)
    late = [each for kind in alive for each in by_kind.pop(kind, [])]
    if late and not by_kind:
        left = fold(dict.fromkeys(names.get(each.node_rank) or each.peer for each in late))
        flooded = ", which was flooded by unknown callers" if gathering.floods else ""
        raise Unlearned(f"{left} left too late to report it to rank 0{flooded}: raise --timeout and run it again")
    for kind, lost in by_kind.items():
        nodes = tuple(dict.fromkeys(names.get(each.node_rank) or each.peer for each in lost))
        message = f"reached rank 0 but was lost ({kind}): {lost[0].detail}"
        yield fail(
            fold(nodes), message, nodes=nodes, action="retest", evidence=f"rank 0's connection to {lost[0].peer}"
        )


_REFUSED = HostFailure("n1", "ssh", "root@n1: Permission denied (publickey).")
_HOSTS: Every[StartedHosts | Absent] = Every({"n0": StartedHosts(2, (_REFUSED,))})
_HOW = {
    "ssh": ("ssh did not connect: {}", "run `ssh -o BatchMode=yes {} true`, which must succeed without a prompt"),
    "absent": (
        "ncclprobe did not start there: {}",
        "install ncclprobe there, or give the path of a Python that has it with --remote-python PATH",
    ),
    "silent": ("did not answer: {}", "try `ssh {} true`; a login shell or a file system may hang there"),
    "version": ("not used: {}", "install the same version on all hosts"),
    "lost": ("ended before it reported: {}", "start ncclprobe on that host, and read its output"),
}


@applies
def started_over_ssh(hosts: Every[StartedHosts | Absent]) -> bool:
    """with --hosts or --hostfile."""
    return any(isinstance(each, StartedHosts) for _, each in hosts.items())


@check(
    group=NODES_GROUP,
    bad=lambda: [(_HOSTS,)],
    good=lambda: [(Every({"n0": StartedHosts(2)}),)],
    required=True,
    applies=started_over_ssh,
)
def host_unused(hosts: Every[StartedHosts | Absent]) -> Iterator[Finding]:
    """Hosts in --hosts did not take part.

    Right: ncclprobe was started on all hosts in --hosts.
    Why: if ncclprobe does not start on a host, nothing is known about that host, and the others are judged without it.
    Fix: test ssh in a terminal: `ssh -o BatchMode=yes HOST true` must succeed without a prompt.
    """
    started = [each for _, each in hosts.items() if isinstance(each, StartedHosts)]
    every = [each for one in started for each in one.failed]
    alike = grouped(((each.kind, each.words.replace(each.host, "HOST")), each) for each in every)
    for (kind, _), failed in alike.items():
        names, first = tuple(each.host for each in failed), failed[0]
        message, remedy = _HOW[kind]
        yield warn(
            fold(names),
            message.format(first.words),
            nodes=names,
            action="retest",
            evidence=seen(f"ssh {first.host}", first.words),
            remedy=remedy.format(first.host),
        )


Placements = Mapping[str, Placement]


def below(*leaves: str) -> Every[Placement | Absent]:
    """Return nodes below these leaf switches, whose switch above is the same."""
    up = PlacementLevel("switch", "s0", SLURM)
    levels = [(up, PlacementLevel("leaf switch", each, SLURM)) for each in leaves]
    return Every({f"n{i}": Placement(each) for i, each in enumerate(levels)})


@applies
def told(placements: Every[Placement | Absent]) -> bool:
    """if several nodes were examined, and the placement of one is known (NCCLPROBE_PLACEMENT, Slurm, a cloud)."""
    return len(placements) > 1 and any(isinstance(each, Placement) and each.levels for _, each in placements.items())


@check(
    group=LOCATION_GROUP,
    slows=True,
    bad=lambda: [(below("s1", "s1", "s2"),)],
    good=lambda: [(below("s1", "s1", "s1"),)],
    applies=told,
)
def placement(placements: Every[Placement | Absent]) -> Iterator[Finding]:
    """Nodes of the job are far from each other.

    Right: All nodes of the job are in the same zone and placement group, and none is the only node below its switch.
    Why: between a cloud's zones and placement groups there are more switches, longer paths and less bandwidth, and EFA
    and InfiniBand may not reach the node at all. If a node is the only one below a switch, all its traffic crosses
    uplinks that other jobs share. It may then be slow because of the fabric's load, without a fault of its own.
    Fix: nothing is broken. If the rate matters, start all nodes in one zone. Use one cluster placement group (AWS), one
    compact placement policy (GCP), or one scale set with a single placement group (Azure). With Slurm, request one
    switch and a maximum wait: sbatch --switches=1@10:00.
    """
    known = {node: each for node, each in placements.items() if isinstance(each, Placement) and each.levels}
    found = [*_apart(known), *_lone_nodes({node: each.tree for node, each in known.items()}), *_shared(known)]
    yield from found
    silent = [node for node, _ in placements.items() if node not in known]
    if silent and not found:
        raise Unlearned(f"the placement of {fold(silent)} is unknown; set {OWN} to give it")


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


def _lone_nodes(trees: Mapping[str, tuple[PlacementLevel, ...]]) -> Iterator[Finding]:
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
        yield _node_phrase(levels, others, len(groups))


def _node_phrase(levels: Mapping[str, PlacementLevel], others: Sequence[tuple[str, int]], groups: int) -> Finding:
    """Return a phrase about `levels`, a node's own; a warning if all others share one: they nearly fitted."""
    alone, kind = tuple(levels), next(iter(levels.values())).kind
    more: dict[str, Any] = {"nodes": alone, "evidence": _sources(levels.values())}
    if groups == 2 and len(alone) == 1:
        ((other, count),) = others
        message = (
            f"is the only node below {kind} {levels[alone[0]].name}; the other {plural(count, 'node')} are below "
            f"{other}"
        )
        return warn(named(alone), message, **JOB, **more)
    where = first_of([f"{node} below {level.name}" for node, level in levels.items()], 4)
    return note(named(alone), f"each is the only node below its {kind}; the job has {groups}: {where}", **more)


def _shared(known: Placements) -> Iterator[Finding]:
    """Yield the physical hosts that several nodes are on: they share its NICs."""
    hosts = vote({node: level.name for node, each in known.items() if (level := each.get(HOST))})
    for host, nodes in hosts.groups.items():
        if len(nodes) > 1:
            levels = [level for node in nodes if (level := known[node].get(HOST))]
            yield note(named(nodes), f"share the physical host {host}", nodes=nodes, evidence=_sources(levels))


def _sources(levels: Iterable[PlacementLevel]) -> str:
    return ", ".join(sorted({level.source for level in levels}))
