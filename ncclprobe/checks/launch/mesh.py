"""Whether all nodes connect to each other on ports that the kernel chooses, and whether those who met are the job's."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ncclprobe.checks import JOB, several
from ncclprobe.checks.launch import MESH_GROUP, PORT_GROUP
from ncclprobe.facts.reach import Flood, Gathering, MeshListener, Path, Paths, Proof
from ncclprobe.localise.reach import Suspect, blame
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Certainty, Finding, Severity, fail, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped, replace

Pair = tuple[str, str]
ByRole = dict[str, Suspect[str]]
"""One suspect, by the role of the interface that its paths use."""

DEFAULT = "default"
_NCCL, _GLOO = "nccl", "gloo"  # roles begin so
_CONNECTED = ("ok", "stalled-out", "stalled-back")
_UNTRIED = "late"
_UNKNOWN = (_UNTRIED, "hung-up")
_TRIES = 2
"""So often a call that gets no answer is made, if there is time."""
MOST_SUSPECTS = 20  # that are reported one by one
_MEANINGS = {
    "refused": "a firewall there rejects it, or the listener is gone",
    "filtered": "no answer; a firewall drops the packets, or there is no route",
    "unreachable": "no host there has the address, or a router rejects it",
    "address": "this node's own address cannot be used",
    "denied": "this node's own firewall or policy forbids it",
    "reset": "the other side closed the connection",
    "hung-up": "the listener there closed the connection before it answered, because it had too many callers",
    "silent": "the connection opens, but no data arrives; the process there is stopped, or larger packets are lost",
    "wrong-peer": "another node answers, so two nodes have this address",
    "foreign": "another program answers",
    "stranger": "another run of ncclprobe answers",
}


class Try(NamedTuple):
    """One path with the names of its ends."""

    one: str
    other: str
    path: Path

    @property
    def pair(self) -> Pair:
        """Return the two nodes, the connecting one first."""
        return self.one, self.other


def tries(every: Every[Paths], lost: Collection[int] = ()) -> list[Try]:
    """Return all paths that were tried, except those to `lost` nodes and those that prove nothing about a node.

    The latter are: paths that the run had no time for; paths that ended before the other side greeted; failures and
    times while strangers flood one of the two.
    """
    by_rank = {paths.me: node for node, paths in every.items()}
    flooded = {paths.me for _, paths in every.items() if paths.floods}
    return [
        Try(node, by_rank.get(row.to) or paths.names.get(row.to) or f"node {row.to}", _steady(row, paths.me, flooded))
        for node, paths in every.items()
        for row in paths.rows
        if not _says_nothing(row, flooded) and row.to not in lost and paths.me not in lost
    ]


def _says_nothing(row: Path, flooded: Collection[int]) -> bool:
    return row.outcome in _UNKNOWN or (row.to in flooded and row.outcome != "ok")


def _steady(row: Path, me: int, flooded: Collection[int]) -> Path:
    """Return `row` without what a flood at either end changes."""
    return replace(row, rate_gbps=None, rtt_s=None) if {me, row.to} & {*flooded} else row


def by_role(found: Iterable[Try]) -> dict[str, list[Try]]:
    """Group paths by the role of their interface."""
    return grouped((each.path.role, each) for each in found)


def suspects_of(tried: Mapping[str, Collection[Pair]], failed: Mapping[str, Collection[Pair]]) -> list[ByRole]:
    """Return what explains the paths that failed, by role: each suspect once, the one with most paths first."""
    found: dict[tuple[str, tuple[str, ...]], ByRole] = {}
    for role, pairs in failed.items():
        for each in blame(tried[role], pairs):
            found.setdefault((each.kind, each.nodes), {})[role] = each
    return sorted(found.values(), key=lambda suspects: -max(len(each.pairs) for each in suspects.values()))


def one_of(suspects: ByRole) -> Suspect[str]:
    """Return one of them: kind and nodes are the same in all roles."""
    return next(iter(suspects.values()))


def subject(suspect: Suspect[str]) -> str:
    """Name the nodes of `suspect`."""
    if suspect.kind in ("pair", "direction"):
        return (" <-> " if suspect.kind == "pair" else " -> ").join(suspect.nodes)
    return fold(suspect.nodes) or "all nodes"


def counted(suspects: ByRole, failed: Collection[Path], how: str = "") -> str:
    """Say how many paths failed, at which end, and by which interfaces, and `how`: ``7 of 7 paths into n3 (eth0)``."""
    suspect, total = one_of(suspects), sum(each.tests for each in suspects.values())
    where = {
        "everything": "between all nodes",
        "split": f"between {subject(suspect)} and the others",
        "node": f"into and out of {subject(suspect)}",
        "pair": f"between {' and '.join(suspect.nodes)}",
        "direction": f"from {' to '.join(suspect.nodes)}",
    }
    place = where.get(suspect.kind, f"{suspect.kind} {subject(suspect)}")
    by = " and ".join(dict.fromkeys(path.interface for path in failed))
    share = {("pair", 2): "both paths", ("direction", 1): "the path"}.get((suspect.kind, total))
    return f"{share or f'{len(failed)} of {total} paths'} {place} ({by}{how})"


def confirmed(suspect: Suspect[str], times: int) -> Certainty:
    """Return how certain `suspect` is: confirmed by several other nodes, or seen only between two."""
    partners = _partners(suspect)
    with_whom = f"with {partners} other nodes" if partners > 1 else "only between these two"
    how = f"tried {plural(times, 'time')} {with_whom if suspect.nodes else 'between all'}"
    return Certainty("high" if partners > 1 and times > 1 else "medium", how)


def _partners(suspect: Suspect[str]) -> int:
    """Return how many other nodes found it."""
    return len({node for pair in suspect.pairs for node in pair} - set(suspect.nodes))


def example(*rows: tuple[int, int, str, str]) -> Every[Paths]:
    """Three nodes that reach each other, but for `rows`: from, to, role, outcome."""
    names = {rank: f"n{rank}" for rank in range(3)}
    changed = {(one, other, role): outcome for one, other, role, outcome in rows}
    roles = list(dict.fromkeys(["nccl0", *(role for _, _, role, _ in rows)]))
    return Every(
        {
            names[me]: Paths(
                me,
                names,
                tuple(MeshListener(role, _nic(role), _address(role, me), 40000 + me) for role in roles),
                tuple(
                    replace(healthy(role, me, to), outcome=changed.get((me, to, role), "ok"), tries=2)
                    for role in roles
                    for to in names
                    if to != me
                ),
            )
            for me in names
        }
    )


def healthy(role: str, me: int, to: int) -> Path:
    """Return a path that works, for examples."""
    address, source = _address(role, to), _address(role, me)
    return Path(to, role, _nic(role), source, address, "ok", "", 1, 2e-4, 1500, 9.0, 0, 11600)


def _nic(role: str) -> str:
    return "eth0" if role == DEFAULT else f"eth{int(role[-1]) + (1 if role.startswith(_NCCL) else 5)}"


def _address(role: str, rank: int) -> str:
    net = 0 if role == DEFAULT else int(role[-1]) + (1 if role.startswith(_NCCL) else 5)
    return f"10.{net}.0.{rank + 1}"


HEALTHY = example()
ALL_STAYED: Every[Gathering | Absent] = Every({"n0": Gathering(2, 1.0)})
_ONE_PAIR = example((0, 1, "nccl0", "silent"), (1, 0, "nccl0", "silent"))
ONLY_DEFAULT = example((0, 2, "nccl0", "filtered"), (1, 2, "nccl0", "filtered"), (0, 2, "default", "ok"))
ONLY_NCCL = example((0, 2, "default", "filtered"), (0, 2, "nccl0", "ok"))


@check(
    group=MESH_GROUP,
    bad=lambda: [(_ONE_PAIR, ALL_STAYED)],
    good=lambda: [(HEALTHY, ALL_STAYED)],
    required=True,
    requires="sync.identity/address-twice",
    applies=several,
)
def tcp_mesh(paths: Every[Paths], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """Nodes cannot connect to each other.

    Right: All nodes can connect to each other.
    Why: NCCL and gloo listen on ports that the kernel chooses (src/bootstrap.cc:413), so an open MASTER_PORT is not
    enough. If a single pair cannot connect, all ranks wait until they time out, and the message names no rank
    (nccl#388, horovod#1408).
    Fix: allow TCP on all ports (net.ipv4.ip_local_port_range) between the nodes of a job, in both directions. If a node
    cannot connect to any other, check its link, address and firewall (ip addr, nft list ruleset).
    """
    found = _known(paths, gatherings)
    needed = [each for each in found if each.path.role.startswith(_NCCL)] or found
    connected = _connected(each for each in found if each.path.role == DEFAULT)
    reported = list(_findings(needed, lambda each: each.pair not in connected))
    if not reported:
        _refuse_gaps(paths)
    yield from reported
    if len(needed) < len(found):
        by_nccl = _connected(needed)
        by_default = [each for each in found if each.path.role == DEFAULT]
        for finding in _findings(by_default, lambda each: each.pair in by_nccl):
            message = (
                f"{finding.message}; NCCL's own interfaces connect, so only traffic on the default route is affected"
            )
            yield replace(finding, severity=Severity.WARN, message=message)
        of_gloo = [each for each in found if each.path.role.startswith(_GLOO)]
        for finding in _findings(of_gloo, lambda each: each.pair in by_nccl):
            message = f"{finding.message}; NCCL's own interfaces connect, but gloo groups of this job cannot"
            yield replace(finding, severity=Severity.WARN, message=message)


@check(
    group=MESH_GROUP,
    bad=lambda: [(ONLY_DEFAULT, ALL_STAYED)],
    good=lambda: [(ONLY_NCCL, ALL_STAYED)],
    required=True,
    requires="sync.identity/address-twice",
    applies=several,
)
def tcp_mesh_iface(paths: Every[Paths], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """Nodes can connect to each other, but not on the interface that NCCL uses.

    Right: All nodes can connect to each other on the interface that NCCL uses.
    Why: NCCL does not follow the default route: it binds to the interface that NCCL_SOCKET_IFNAME or its own order
    selects. So ping, ssh and MASTER_PORT may work while NCCL hangs (nccl#1580).
    Fix: set NCCL_SOCKET_IFNAME=<the interface of the default route>, or allow TCP on the interface that the finding
    names, and make sure that it is on the same network on all nodes.
    """
    found = _known(paths, gatherings)
    connected = _connected(each for each in found if each.path.role == DEFAULT)
    ours = [each for each in found if each.path.role.startswith(_NCCL)]
    for each in _findings(ours, lambda each: each.pair in connected):
        yield replace(each, remedy="")  # the default route works, so the interface is what is to change


def _known(paths: Every[Paths], gatherings: Every[Gathering | Absent]) -> list[Try]:
    """Return all paths that were tried. Raises Unlearned if none was, though there were nodes to call.

    Nodes that rank 0 lost are left out: sync.nodes reports them.
    """
    lost = [each for _, seen_by in gatherings.items() if isinstance(seen_by, Gathering) for each in seen_by.lost]
    found = tries(paths, {each.node_rank for each in lost if each.node_rank is not None})
    if not found and any(each.rows for _, each in paths.items()):
        _refuse_gaps(paths)
        raise Unlearned("rank 0 lost contact with the nodes whose paths were being tested")
    return found


def _refuse_gaps(paths: Every[Paths]) -> None:
    """Refuse to pass if some paths were not tried. Raises Unlearned."""
    rows = [row for _, each in paths.items() for row in each.rows]
    if late := sum(row.outcome == _UNTRIED for row in rows):
        raise Unlearned(f"{late} of {len(rows)} paths were not tested: the run was out of time")
    if once := sum(_unanswered_once(row) for row in rows):
        raise Unlearned(
            f"{once} of {len(rows)} paths gave no answer and were tested only once: the run was out of time"
        )
    flooded = {each.me for _, each in paths.items() if each.floods}
    if unheard := sum(_says_nothing(row, flooded) for row in rows):
        why = "the listeners there had too many callers (see launch.port)"
        raise Unlearned(f"{unheard} of {len(rows)} paths ended before the other node could answer: {why}")
    idle = [node for node, each in paths.items() if not each.rows and len(paths) > 1]
    if idle and not any(each.unopened for _, each in paths.items()):
        raise Unlearned(f"{fold(idle)} had no node to connect to: no other node has the same interfaces")
    deaf = {node: each.unopened for node, each in paths.items() if each.unopened and not each.listeners}
    if deaf:
        why = "; ".join(f"{role}: {reason}" for role, reason in next(iter(deaf.values())).items())
        raise Unlearned(f"{fold(deaf)} could listen on none of its interfaces ({why}), so no node connected to it")


def _connected(found: Iterable[Try]) -> set[Pair]:
    return {each.pair for each in found if each.path.outcome in _CONNECTED}


def _findings(found: Iterable[Try], counts: Callable[[Try], bool]) -> Iterator[Finding]:
    """Report each suspect once, for those failures of `found` that count."""
    roles = by_role(found)
    tried = {role: {each.pair for each in rows} for role, rows in roles.items()}
    failed = {
        role: {each.pair: each.path for each in rows if each.path.outcome not in _CONNECTED and counts(each)}
        for role, rows in roles.items()
    }
    of_each = [
        (each, [failed[role][pair] for role, suspect in each.items() for pair in suspect.pairs])
        for each in suspects_of(tried, failed)
    ]
    found_suspects = [each for each, paths in of_each if _is_witnessed(one_of(each), paths)]
    for each, paths in of_each[:MOST_SUSPECTS]:
        if each in found_suspects:
            yield _finding(each, paths)
    if more := found_suspects[MOST_SUSPECTS:]:
        nodes = {node for each in more for node in one_of(each).nodes}
        message = f"{len(more)} more nodes or pairs have paths that fail"
        yield fail(fold(nodes), message, action="retest", evidence="connections to listeners of ncclprobe")


def _is_witnessed(suspect: Suspect[str], failed: Collection[Path]) -> bool:
    """Return whether the node failed with two others, was tried again, or was refused: one silence is not evidence."""
    return _partners(suspect) > 1 or not all(map(_unanswered_once, failed))


def _unanswered_once(row: Path) -> bool:
    return row.outcome in ("filtered", "silent") and row.tries < _TRIES


def _finding(suspects: ByRole, failed: list[Path]) -> Finding:
    suspect = one_of(suspects)
    outcomes = Counter(path.outcome for path in failed).most_common()
    main = outcomes[0][0]
    counts = ", ".join(f"{outcome} {number}" for outcome, number in outcomes) if len(outcomes) > 1 else main
    path = next(path for path in failed if path.outcome == main)
    meaning = _MEANINGS.get(main, "the answer is not from ncclprobe")
    detail = f": {path.detail}" if path.detail else ""
    return fail(
        subject(suspect),
        f"no connection on {counted(suspects, failed, f', {counts}')}: {meaning}",
        nodes=suspect.nodes,
        confidence=confirmed(suspect, min(path.tries for path in failed)),
        evidence=seen(f"connect from {path.source} to {path.address}", f"{main}{detail}"),
        remedy=_command_for_node(suspect, failed),
        **_whose(suspect, main),
    )


def _command_for_node(suspect: Suspect[str], failed: list[Path]) -> str:
    """Return what to type on the one node that fails with all, by one interface; otherwise nothing."""
    nics = {path.interface for path in failed}
    if not suspect.at_one_node or len(suspect.nodes) != 1 or len(nics) != 1:
        return ""
    nic = next(iter(nics))
    look = f"`ip addr show {nic}`; `ip -s link show {nic}`; `nft list ruleset`"
    allow = "allow TCP on all ports (net.ipv4.ip_local_port_range) from and to the other nodes"
    return f"on {suspect.nodes[0]}, run {look}, and {allow}"


def _whose(suspect: Suspect[str], outcome: str) -> dict[str, Any]:
    """Return blame and action. One direction of a node that fails with all is a firewall rule, not a broken link."""
    if outcome == "wrong-peer":
        return {"blame": "fabric", "action": "fix-image"}
    if suspect.kind == "everything":
        return {"blame": "fabric", "action": "fix-job"}
    by_rule = suspect.one_way or outcome in ("refused", "denied", "address")
    return {"blame": "node" if suspect.at_one_node else "fabric", "action": "fix-image" if by_rule else "repair"}


_MOST_TOLD = 5
_PROVED = Proof("NCCLPROBE_TOKEN", proved=True)
_TRUSTED = Proof("none", proved=False, trusted=True)
_ALONE = Absent("only rank 0 knows")


@applies
def met(proofs: Every[Proof | Absent]) -> bool:
    """if the nodes of a job met."""
    return any(isinstance(each, Proof) for _, each in proofs.items())


@check(
    bad=lambda: [(Every({"n0": _TRUSTED, "n1": _TRUSTED}),)],
    good=lambda: [(Every({"n0": _PROVED, "n1": _ALONE}),)],
    required=True,
    applies=met,
)
def unproven(proofs: Every[Proof | Absent]) -> Iterator[Finding]:
    """The nodes did not prove that they belong to the job.

    Right: The nodes proved to each other that they belong to the job.
    Why: any process that reaches MASTER_PORT could send a healthy report for a dead node, or a bad report for a healthy
    node. Then no exit code would be reliable.
    Fix: set NCCLPROBE_TOKEN to the same secret on every node, for example the output of `openssl rand -hex 16` (with
    mpirun: -x NCCLPROBE_TOKEN). If nobody else can reach these hosts, add --trust-network instead.
    """
    known = {node: each for node, each in proofs.items() if isinstance(each, Proof)}
    if not any(each.proved or each.trusted for each in known.values()):
        remedy = "set NCCLPROBE_TOKEN to the same secret on every node (openssl rand -hex 16), or add --trust-network"
        raise Unlearned(f"the nodes have no secret, so no node proved that it belongs to the job; {remedy}")
    if any(each.trusted for each in known.values()):
        message = "no node had to prove that it belongs to the job, so any process on this network could have joined"
        yield warn("--trust-network", message, **JOB, evidence="the command line")


CALM: Every[Gathering | Absent] = Every({"n0": Gathering(2, 1.0), "n1": _ALONE})
CROWD = (Flood("10.0.0.99", 7900),)


@check(
    group=PORT_GROUP,
    bad=lambda: [(CALM, Every({"n0": replace(HEALTHY.by_node["n0"], floods=CROWD)}))],
    good=lambda: [(CALM, Every({"n0": _ALONE}))],
    applies=met,
)
def port_flooded(gatherings: Every[Gathering | Absent], paths: Every[Paths | Absent]) -> Iterator[Finding]:
    """Other programs flood this run's ports with connections.

    Right: No other program floods this run's ports with connections.
    Why: the job will use the same port, and torch's store answers every caller. Nodes that get no answer time out, and
    no message gives the reason. In this report, everything that could not be tested during the flood is unknown.
    Fix: stop the programs at the addresses that the finding names (a port scanner, an earlier job), choose another
    MASTER_PORT, or configure a firewall that admits only the job's nodes.
    """
    hubs = {node: each.floods for node, each in gatherings.items() if isinstance(each, Gathering)}
    meshes = {node: each.floods for node, each in paths.items() if isinstance(each, Paths)}
    for subject, ports in (("MASTER_PORT", hubs), ("ports between nodes", meshes)):
        calls: Counter[str] = Counter()
        for flood in (flood for floods in ports.values() for flood in floods):
            calls[flood.address] += flood.connections
        if not calls:
            continue
        listed = first_of((f"{address} ({count})" for address, count in calls.most_common()), _MOST_TOLD)
        where = fold([node for node, floods in ports.items() if floods])
        message = f"unknown callers used all connections on {where} and were disconnected: {listed}"
        evidence = seen(f"listeners of {where}", f"{sum(calls.values())} connections")
        yield warn(subject, message, action="retest", evidence=evidence)
