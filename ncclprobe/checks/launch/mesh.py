"""Whether every node can connect to every other on ports that the kernel chose, as those of NCCL are."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ncclprobe.checks import several
from ncclprobe.errors import Unlearned
from ncclprobe.facts.paths import MeshListener, Path, Paths
from ncclprobe.facts.reach import Gathering, Trouble
from ncclprobe.localise.reach import Suspect, blame
from ncclprobe.model.findings import Certainty, Finding, Severity, fail, seen
from ncclprobe.model.fleet import Every
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

Pair = tuple[str, str]
Roads = dict[str, Suspect[str]]
"""One culprit as each road shows it."""

DEFAULT = "default"
_CONNECTED = ("ok", "stalled-out", "stalled-back")
_UNTRIED = "late"
MOST_CULPRITS = 20  # that are told one by one
_SAID = {
    "refused": "a firewall there rejects it, or the listener is gone",
    "filtered": "no answer: a firewall drops it, or the network does not lead there",
    "unreachable": "no host there has the address, or a router rejects it",
    "address": "this node's own address cannot be used",
    "denied": "this node's own firewall or policy forbids it",
    "reset": "connected, then closed",
    "silent": "connected, then nothing: the process there is stopped, or larger packets are lost",
    "wrong-peer": "another node answers: two nodes have this address",
    "foreign": "something else answers",
    "stranger": "another run of ncclprobe answers",
}


class Try(NamedTuple):
    """One path with the names of its ends."""

    one: str
    other: str
    path: Path

    @property
    def pair(self) -> Pair:
        """From where to where."""
        return self.one, self.other


def tries(every: Every[Paths], lost: Collection[int] = ()) -> list[Try]:
    """All paths that were tried, but those to nodes that are `lost`.

    What the run had no time for is not among them: that says nothing of anybody.
    """
    by_rank = {paths.me: node for node, paths in every.items()}
    return [
        Try(node, by_rank.get(row.to) or paths.names.get(row.to) or f"node {row.to}", row)
        for node, paths in every.items()
        for row in paths.rows
        if row.outcome != _UNTRIED and row.to not in lost and paths.me not in lost
    ]


def by_road(found: Iterable[Try]) -> dict[str, list[Try]]:
    """The same by road, in the order in which roads came."""
    roads: dict[str, list[Try]] = {}
    for each in found:
        roads.setdefault(each.path.role, []).append(each)
    return roads


def culprits(tried: Mapping[str, Collection[Pair]], failed: Mapping[str, Collection[Pair]]) -> list[Roads]:
    """Who explains what failed of what was tried, road by road: each once, the greatest first."""
    found: dict[tuple[str, tuple[str, ...]], Roads] = {}
    for road, pairs in failed.items():
        for each in blame(tried[road], pairs):
            found.setdefault((each.kind, each.nodes), {})[road] = each
    return sorted(found.values(), key=lambda roads: -max(len(each.pairs) for each in roads.values()))


def one_of(roads: Roads) -> Suspect[str]:
    """Kind and nodes are the same on all roads."""
    return next(iter(roads.values()))


def subject(culprit: Suspect[str]) -> str:
    """It, in as few words as possible."""
    if culprit.kind in ("pair", "direction"):
        return (" <-> " if culprit.kind == "pair" else " -> ").join(culprit.nodes)
    return fold(culprit.nodes) or "all nodes"


def counted(roads: Roads, failed: Collection[Path]) -> str:
    """How many paths failed of how many, where, and by which interfaces: ``7 of 7 paths into n3 (eth0)``."""
    culprit, total = one_of(roads), sum(each.tests for each in roads.values())
    where = {
        "everything": "between all nodes",
        "split": f"between {subject(culprit)} and the others",
        "node": f"into and out of {subject(culprit)}",
        "pair": f"between {' and '.join(culprit.nodes)}",
        "direction": f"from {' to '.join(culprit.nodes)}",
    }
    place = where.get(culprit.kind, f"{culprit.kind} {subject(culprit)}")
    by = " and ".join(dict.fromkeys(path.interface for path in failed))
    share = {("pair", 2): "both paths", ("direction", 1): "the path"}.get((culprit.kind, total))
    return f"{share or f'{len(failed)} of {total} paths'} {place} ({by})"


def confirmed(culprit: Suspect[str], times: int) -> Certainty:
    """How sure that is: several others agree, or the two know it of each other alone."""
    partners = len({node for pair in culprit.pairs for node in pair} - set(culprit.nodes))
    with_whom = f"with {partners} other nodes" if partners > 1 else "between these two alone"
    how = f"tried {times} time{'' if times == 1 else 's'} {with_whom if culprit.nodes else 'between all'}"
    return Certainty("high" if partners > 1 and times > 1 else "medium", how)


def of_one_node(culprit: Suspect[str]) -> bool:
    """Whether it is one node's, with several others: what is left may be anybody's between the two."""
    return culprit.kind in ("node", "into", "out of")


def _example(*rows: tuple[int, int, str, str]) -> Every[Paths]:
    """Three nodes that reach each other, but for `rows`: from, to, road, outcome."""
    names = {rank: f"n{rank}" for rank in range(3)}
    changed = {(one, other, road): outcome for one, other, road, outcome in rows}
    roads = list(dict.fromkeys(["nccl0", *(road for _, _, road, _ in rows)]))
    return Every(
        {
            names[me]: Paths(
                me,
                names,
                tuple(MeshListener(road, _nic(road), _address(road, me), 40000 + me) for road in roads),
                tuple(
                    replace(healthy(road, me, to), outcome=changed.get((me, to, road), "ok"), tries=2)
                    for road in roads
                    for to in names
                    if to != me
                ),
            )
            for me in names
        }
    )


def healthy(road: str, me: int, to: int) -> Path:
    """A path that works, for examples."""
    address, source = _address(road, to), _address(road, me)
    return Path(to, road, _nic(road), source, address, "ok", "", 1, 2e-4, 1500, 9.0, 0, 11600)


def _nic(road: str) -> str:
    return "eth0" if road == DEFAULT else f"eth{int(road[-1]) + 1}"


def _address(road: str, rank: int) -> str:
    return f"10.{0 if road == DEFAULT else int(road[-1]) + 1}.0.{rank + 1}"


HEALTHY = _example()
_ALL_STAYED: Every[Gathering | Absent] = Every({"n0": Gathering(2, 1.0)})
_LOST_ONE: Every[Gathering | Absent] = Every({"n0": Gathering(2, 1.0, lost=(Trouble("10.0.0.3", "reset", "", 2),))})
_DEAD = _example(*((a, b, "nccl0", "filtered") for a, b in ((0, 2), (1, 2), (2, 0), (2, 1))))
_ONE_WAY = _example((0, 2, "nccl0", "refused"), (1, 2, "nccl0", "refused"))
_ONE_PAIR = _example((0, 1, "nccl0", "silent"), (1, 0, "nccl0", "silent"))
_BESIDE = _example((0, 2, "nccl0", "filtered"), (1, 2, "nccl0", "filtered"), (0, 2, "default", "ok"))
_ASIDE = _example((0, 2, "default", "filtered"), (0, 2, "nccl0", "ok"))


@check(
    bad=lambda: [(_DEAD, _ALL_STAYED), (_ONE_WAY, _ALL_STAYED), (_ONE_PAIR, _ALL_STAYED), (_ASIDE, _ALL_STAYED)],
    good=lambda: [
        (HEALTHY, _ALL_STAYED),
        (_example((0, 1, "nccl0", "stalled-out")), _ALL_STAYED),
        (_DEAD, _LOST_ONE),
        (_BESIDE, _ALL_STAYED),
    ],
    required=True,
    requires="sync.address-twice",
    applies=several,
)
def tcp_mesh(paths: Every[Paths], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """Nodes cannot connect to each other.

    Right: All nodes can connect to each other.
    Why: NCCL and gloo listen on ports that the kernel chooses (src/bootstrap.cc:413), so an open MASTER_PORT is not
    enough; where one pair cannot connect, all ranks wait until they time out, and the message names none
    (nccl#388, horovod#1408).
    Fix: let TCP through on all ports (net.ipv4.ip_local_port_range) between the nodes of a job, in both directions;
    on a node that fails with all, look at its link, address and firewall (ip addr, nft list ruleset).
    """
    found = _known(paths, gatherings)
    needed = [each for each in found if each.path.role != DEFAULT] or found
    connected = _connected(each for each in found if each.path.role == DEFAULT)
    told = list(_findings(needed, lambda each: each.pair not in connected))
    if not told:
        _refuse_gaps(paths)
    yield from told
    if len(needed) < len(found):
        spared = _connected(needed)
        aside = [each for each in found if each.path.role == DEFAULT]
        for finding in _findings(aside, lambda each: each.pair in spared):
            message = f"{finding.message}; NCCL's own interfaces connect, so this hurts what goes by the default route"
            yield replace(finding, severity=Severity.WARN, message=message)


@check(
    bad=lambda: [(_BESIDE, _ALL_STAYED)],
    good=lambda: [(HEALTHY, _ALL_STAYED), (_DEAD, _ALL_STAYED), (_ASIDE, _ALL_STAYED)],
    required=True,
    requires="sync.address-twice",
    applies=several,
)
def tcp_mesh_iface(paths: Every[Paths], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """Nodes can connect to each other, but not on the interface that NCCL uses.

    Right: All nodes can connect to each other on the interface that NCCL uses.
    Why: NCCL does not take the way that the default route would: it binds to the interface that NCCL_SOCKET_IFNAME or
    its own order chooses, so ping, ssh and MASTER_PORT may work where it hangs (nccl#1580).
    Fix: NCCL_SOCKET_IFNAME=<the interface of the default route>, or let TCP through on the interface named and see that
    all nodes have it on one network.
    """
    found = _known(paths, gatherings)
    connected = _connected(each for each in found if each.path.role == DEFAULT)
    yield from _findings([each for each in found if each.path.role != DEFAULT], lambda each: each.pair in connected)


def _known(paths: Every[Paths], gatherings: Every[Gathering | Absent]) -> list[Try]:
    """All paths that were tried. Raises Unlearned where none was, though there were nodes to call.

    Nodes that rank 0 lost are sync.node-lost's: they cannot be reached, which says nothing of the network.
    """
    hubs = [each for _, each in gatherings.items() if isinstance(each, Gathering)]
    found = tries(paths, {each.node_rank for hub in hubs for each in hub.lost if each.node_rank is not None})
    if not found and any(each.rows for _, each in paths.items()):
        raise Unlearned("the run had no time to try any path between nodes")
    return found


def _refuse_gaps(paths: Every[Paths]) -> None:
    """Raises Unlearned where some paths could not be tried, so that nothing found is no proof."""
    late = sum(row.outcome == _UNTRIED for _, each in paths.items() for row in each.rows)
    every = sum(len(each.rows) for _, each in paths.items())
    if late:
        raise Unlearned(f"{late} of {every} paths were not tried: the run had no more time")
    idle = [node for node, each in paths.items() if not each.rows and len(paths) > 1]
    if idle and not any(each.unopened for _, each in paths.items()):
        raise Unlearned(f"{fold(idle)} had no node to call: no other node has the same interfaces")
    deaf = {node: each.unopened for node, each in paths.items() if each.unopened and not each.listeners}
    if deaf:
        why = "; ".join(f"{road}: {reason}" for road, reason in next(iter(deaf.values())).items())
        raise Unlearned(f"{fold(deaf)} could listen on none of its interfaces ({why}), so no node called it")


def _connected(found: Iterable[Try]) -> set[Pair]:
    return {each.pair for each in found if each.path.outcome in _CONNECTED}


def _findings(found: Iterable[Try], counts: Callable[[Try], bool]) -> Iterator[Finding]:
    """One finding per culprit, for those failures of `found` that count."""
    roads = by_road(found)
    tried = {road: {each.pair for each in rows} for road, rows in roads.items()}
    failed = {
        road: {each.pair: each.path for each in rows if each.path.outcome not in _CONNECTED and counts(each)}
        for road, rows in roads.items()
    }
    together = culprits(tried, failed)
    for each in together[:MOST_CULPRITS]:
        yield _finding(each, [failed[road][pair] for road, culprit in each.items() for pair in culprit.pairs])
    if more := together[MOST_CULPRITS:]:
        nodes = {node for each in more for node in one_of(each).nodes}
        message = f"{len(more)} more nodes or pairs have paths that fail"
        yield fail(fold(nodes), message, action="retest", evidence="connections to listeners of ncclprobe")


def _finding(roads: Roads, failed: list[Path]) -> Finding:
    culprit = one_of(roads)
    outcomes = Counter(path.outcome for path in failed).most_common()
    main = outcomes[0][0]
    said = ", ".join(f"{outcome} {number}" for outcome, number in outcomes) if len(outcomes) > 1 else main
    path = next(path for path in failed if path.outcome == main)
    detail = f": {path.detail}" if path.detail else ""
    return fail(
        subject(culprit),
        f"no connection on {counted(roads, failed)}: {said}: {_SAID.get(main, 'the answer is not from ncclprobe')}",
        nodes=culprit.nodes,
        confidence=confirmed(culprit, min(path.tries for path in failed)),
        evidence=seen(f"connect from {path.source} to {path.address}", f"{main}{detail}"),
        **_whose(culprit, main),
    )


def _whose(culprit: Suspect[str], outcome: str) -> dict[str, Any]:
    """Whose fault, and what to do. One direction of a node that fails with all is a rule there, not a broken link."""
    if outcome == "wrong-peer":
        return {"blame": "fabric", "action": "fix-image"}
    if culprit.kind == "everything":
        return {"blame": "fabric", "action": "fix-job"}
    by_rule = culprit.kind in ("into", "out of", "direction") or outcome in ("refused", "denied", "address")
    return {"blame": "node" if of_one_node(culprit) else "fabric", "action": "fix-image" if by_rule else "repair"}
