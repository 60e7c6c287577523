"""Whether the nodes of a job find rank 0, and whether they all describe the same job."""

from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from ncclprobe.checks import IMAGE, JOB, several
from ncclprobe.checks.launch import MASTER_GROUP, RANKS_GROUP, TWO_NODES, VARS_GROUP
from ncclprobe.checks.majority import unlike
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import Master
from ncclprobe.facts.rank import RankProcess
from ncclprobe.facts.reach import Reach, RollCall
from ncclprobe.model import bounds
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, fail, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks, vote
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped, replace

_HANDSHAKE = "check that all nodes run the same ncclprobe and that there is no proxy between them"
_LAYERS: Mapping[str, tuple[str, str, str, str]] = {
    "resolve": (
        "the name did not resolve",
        "job",
        "fix-job",
        "give rank 0's IP address, or a name that resolves on this node",
    ),
    "route": (
        "there is no route to it",
        "node",
        "fix-image",
        "compare the output of `ip route get` with that of a healthy node, or use an address of rank 0 to "
        "which this node has a route",
    ),
    "refused": (
        "no process listens there, or a firewall rejects it",
        "job",
        "fix-job",
        "check that the address is that of rank 0, that the doctor also runs there on this port (ss -ltn), "
        "and that no firewall rejects it",
    ),
    "filtered": (
        "no answer; a firewall drops the packets, no host has the address, or that host is down",
        "unknown",
        "retest",
        "check that the address is that of rank 0 and that the host is up (ping), then allow TCP to this "
        "port on that host and on the path",
    ),
    "unreachable": (
        "the network reports it unreachable; no host has the address, or a router rejects it",
        "unknown",
        "retest",
        "check that the address is that of rank 0, and that this interface is on a network that reaches it",
    ),
    "address": (
        "this node's own address cannot be used",
        "node",
        "fix-image",
        "compare the output of `ip addr` with that of a healthy node; a link-local address needs its scope "
        "(fe80::1%eth0)",
    ),
    "denied": (
        "this node's own firewall or policy forbids it",
        "image",
        "fix-image",
        "allow outgoing TCP (nft list ruleset; network policies of the container)",
    ),
    "reset": (
        "the other side closed the connection",
        "job",
        "fix-job",
        "check which process listens on that port (ss -ltnp on that host); choose another MASTER_PORT if it is not "
        "part of this job",
    ),
    "foreign": (
        "another program listens there",
        "job",
        "fix-job",
        "choose a MASTER_PORT that is free on rank 0's node, or end the program that listens there (ss -ltnp)",
    ),
    "stranger": (
        "another run of ncclprobe, or one with a different token, answers there",
        "job",
        "fix-job",
        "set the same NCCLPROBE_TOKEN on all nodes. If another job uses this port, choose another MASTER_PORT",
    ),
    "too-big": ("the answer is not from ncclprobe", "job", "fix-job", _HANDSHAKE),
    "garbled": ("the answer is not from ncclprobe", "job", "fix-job", _HANDSHAKE),
}

_CROWDED = ("silent", "reset", "filtered")
"""What else a listener with too many callers may look like."""

AT = Reach("node0", 29500, "ok", "", ("10.0.0.1",), "10.0.0.1", "10.0.0.5", "eth0", 1, 0.004, ("ok",))
_FOREIGN = replace(AT, outcome="foreign", detail="it sent 'SSH-2.0-OpenSSH_9.2'", seen=("foreign",))


@applies
def sent_to_another(launch: Launch, master: Master, job: Job) -> bool:
    """in jobs of several nodes, if MASTER_ADDR resolves to more than a loopback address; not on rank 0's node."""
    elsewhere = len(master.addresses) > len(master.loopback)
    return not job.local and launch.spans_by_launcher and elsewhere and launch.node_rank != 0


@check(
    group=MASTER_GROUP,
    bad=lambda: [(_FOREIGN,)],
    good=lambda: [(AT,)],
    required=True,
    requires="launch.master/route",
    applies=sent_to_another,
)
def master_reach(reach: Reach) -> Iterator[Finding]:
    """This node cannot reach rank 0.

    Right: This node can reach rank 0.
    Why: every rank connects to MASTER_ADDR:MASTER_PORT first. Whether no process listens, a firewall drops the
    connection, or another program answers, torch reports only "timed out" after minutes. If the port accepts the
    connection but sends nothing, rank 0 may run on a busy host, so the result is unknown.
    Fix: the finding names the step that failed (name, route, connection or answer) and what to do.
    """
    if reach.outcome == "ok":
        return
    where = _endpoint(reach.target, reach.port)
    if reach.outcome == "hung-up" or ("hung-up" in reach.seen and reach.outcome in _CROWDED):
        raise Unlearned(
            f"{where} closed the connection before it answered: it has too many callers, or another program listens "
            "there"
        )
    if reach.outcome == "silent":
        raise Unlearned(
            f"{where} accepts the connection but does not answer ({reach.tries} tries in {reach.seconds:.0f} s): the "
            "process there is busy, stopped, or another program. Check which process listens (ss -ltnp on that "
            "host), and try again"
        )
    unknown = ("failed", "unknown", "retest", "")
    meaning, blame, action, remedy = _LAYERS.get(reach.outcome, unknown)
    source = f" from {reach.source}" + (f" ({reach.interface})" if reach.interface else "") if reach.source else ""
    detail = f"{reach.detail}; " if reach.detail else ""
    tries = f"{reach.tries} tries in {reach.seconds:.0f} s" if reach.tries != 1 else f"1 try, {reach.seconds:.1f} s"
    earlier = [outcome for outcome in reach.seen if outcome != reach.outcome]
    before = f"; before that: {', '.join(earlier)}" if earlier else ""
    yield fail(
        where,
        f"{reach.outcome}{source}: {meaning} ({detail}{tries}{before})",
        blame=blame,
        action=action,
        evidence=f"connect to {_endpoint(reach.address, reach.port)}"
        if reach.address
        else f"getaddrinfo({reach.target})",
        remedy=remedy,
    )


def _endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


NODE1 = replace(TWO_NODES, rank=8, node_rank=1)
NO_PROCESSES: Ranks[RankProcess | Absent] = Ranks({})
PROCESS = RankProcess(0, 2, None, None, (), {}, 0)


@check(
    group=RANKS_GROUP,
    bad=lambda: [(Every({"n0": TWO_NODES, "n1": replace(NODE1, rank=0)}), NO_PROCESSES)],
    good=lambda: [(Every({"n0": TWO_NODES, "n1": NODE1}), NO_PROCESSES)],
    required=True,
    applies=several,
)
def rank_twice(launches: Every[Launch], processes: Ranks[RankProcess | Absent]) -> Iterator[Finding]:
    """Several nodes claim to be the same node or rank of the job.

    Right: Every node and rank of the job has its own number.
    Why: the second node or rank replaces the first in the rendezvous or is rejected, and all ranks wait for the missing
    number.
    Fix: give each node its own --node-rank (NODE_RANK), and do not set RANK by hand inside srun or mpirun.
    """
    claims: dict[str, dict[str, None]] = {}
    for node, launch in launches.items():
        if launch.node_rank is not None:
            claims.setdefault(f"node rank {launch.node_rank}", {})[node] = None
    for node, rank in _ranks(launches, processes):
        claims.setdefault(f"rank {rank}", {})[node] = None
    by_nodes = grouped((tuple(nodes), claim) for claim, nodes in claims.items() if len(nodes) > 1)
    for each, claimed in by_nodes.items():
        more = f"; also {fold(claimed[1:])}" if claimed[1:] else ""
        message = f"is claimed by {len(each)} nodes: {fold(each)}{more}"
        origins = {dict(launches.by_node[node].origins).get("node_rank", "RANK") for node in each}
        evidence = [f"{origin} of these nodes" for origin in sorted(origins)]
        yield fail(claimed[0], message, **JOB, nodes=each, evidence=evidence)


def _ranks(launches: Every[Launch], processes: Ranks[RankProcess | Absent]) -> Iterator[tuple[str, int]]:
    for node, launch in launches.items():
        if launch.rank is not None:
            yield node, launch.rank
    for node, rank, _ in processes.items():
        yield node, rank


@check(
    group=VARS_GROUP,
    bad=lambda: [(Every({"n0": TWO_NODES, "n1": replace(NODE1, world_size=8)}),)],
    good=lambda: [(Every({"n0": TWO_NODES, "n1": NODE1}),)],
    required=True,
    applies=several,
)
def world_agree(launches: Every[Launch]) -> Iterator[Finding]:
    """Nodes disagree on the size or the port of the job.

    Right: Nodes agree on the size and the port of the job.
    Why: rank 0 waits for as many ranks as its own WORLD_SIZE. A node with a different number is rejected as one too
    many, or waits for ranks that were never started.
    Fix: give all nodes the same --nnodes, WORLD_SIZE and MASTER_PORT. Under Slurm, take them from srun's variables.
    """
    for field, name in (("world_size", "WORLD_SIZE"), ("nnodes", "nnodes"), ("master_port", "MASTER_PORT")):
        values = {node: getattr(each, field) for node, each in launches.items() if _is_known(each, field)}
        sources = Counter(dict(launches.by_node[node].origins).get(field, name) for node in values)
        subject = next(iter(sources)) if len(sources) == 1 else name
        evidence = [f"{source} of {number} nodes" for source, number in sources.most_common(3)]
        yield from unlike(vote(values), what=f"{subject} is", subject=subject, tell=fail, evidence=evidence, **JOB)


def _is_known(launch: Launch, field: str) -> bool:
    """Whether the launcher gave it. Nodes with different numbers of GPUs may well derive different numbers of nodes."""
    origin = dict(launch.origins).get(field, "")
    return getattr(launch, field) is not None and not origin.startswith("as many")


THERE = Master("node0", ("10.0.0.1",))
ELSEWHERE = Master("node0", ("10.9.0.1",))
NOBODY: Every[Reach | Absent] = Every({})


@check(
    group=MASTER_GROUP,
    bad=lambda: [(Every({"n0": THERE, "n1": THERE, "n2": ELSEWHERE}), NOBODY)],
    good=lambda: [(Every({"n0": THERE, "n1": THERE}), NOBODY)],
    required=True,
    applies=several,
)
def master_agree(masters: Every[Master], reaches: Every[Reach | Absent]) -> Iterator[Finding]:
    """MASTER_ADDR resolves to different addresses on different nodes.

    Right: MASTER_ADDR resolves to the same address on all nodes.
    Why: each node uses its own DNS and /etc/hosts. A stale entry sends it to a host that is not rank 0 of this job,
    where it waits or joins another job.
    Fix: compare the output of `getent ahosts <MASTER_ADDR>` on the nodes that the finding names, or set MASTER_ADDR to
    rank 0's IP address.
    """
    values = {node: _others(master) for node, master in masters.items()}
    known = {node: addresses for node, addresses in values.items() if addresses}
    hosts = _hosts(set(known.values()))
    ballot = vote({node: next(host for host in hosts if addresses <= host) for node, addresses in known.items()})
    tries = [reach.outcome for _, reach in reaches.items() if isinstance(reach, Reach)]
    tell = warn if tries and set(tries) == {"ok"} else fail
    names = Counter(masters.by_node[node].name for node in known)
    subject = next(iter(names)) if len(names) == 1 else "MASTER_ADDR"
    all_the_same = "; all of them reached rank 0 nevertheless" if tell is warn else ""
    more = {"tell": tell, "after": all_the_same, **(IMAGE if len(names) == 1 else JOB)}
    more["evidence"] = [f"getaddrinfo({name})" for name, _ in names.most_common(3)]
    yield from unlike(ballot, lambda host: " or ".join(sorted(host)), f"{subject} is", subject=subject, **more)


def _others(master: Master) -> frozenset[str]:
    """What `master` resolved to, without what only its own node can reach: that is launch.master's."""
    addresses = {address.partition("%")[0] for address in master.addresses}
    return frozenset(address for address in addresses if not ip_address(address).is_loopback)


def _hosts(answers: set[frozenset[str]]) -> list[frozenset[str]]:
    """The addresses of each host: addresses of one answer belong together, such as its IPv4 and its IPv6 one."""
    hosts: list[frozenset[str]] = []
    for answer in answers:
        apart = [host for host in hosts if not host & answer]
        together = [host for host in hosts if host & answer]
        hosts = [*apart, answer.union(*together)]
    return hosts


FIRST, _SECOND = replace(PROCESS, local_rank=0), replace(PROCESS, local_rank=1)
_LACKING = Ranks({"n0": {0: FIRST, 1: _SECOND}, "n1": {2: FIRST}})
OF_TWO: Every[Launch] = Every({f"n{i}": replace(TWO_NODES, local_world_size=2) for i in range(2)})


@applies
def several_ranks(launches: Every[Launch], job: Job) -> bool:
    """if a node has several ranks, and not with --local."""
    return not job.local and any((launch.local_world_size or 1) > 1 for _, launch in launches.items())


@check(
    group=RANKS_GROUP,
    bad=lambda: [(OF_TWO, _LACKING, Every({}))],
    good=lambda: [(OF_TWO, Ranks({"n0": {0: FIRST, 1: _SECOND}, "n1": {2: FIRST, 3: _SECOND}}), Every({}))],
    applies=several_ranks,
)
def rank_silent(
    launches: Every[Launch], processes: Ranks[RankProcess], rolls: Every[RollCall | Absent]
) -> Iterator[Finding]:
    """Ranks were started on a node but did not report.

    Right: All ranks that were started on a node reported.
    Why: a rank that hangs in its first import, on a wedged GPU or on a dead file system makes all others wait, and NCCL
    does not name it. If other ranks on one node reported to their first rank, those of every node should have reported.
    Fix: check that rank's log, stack (`py-spy dump --pid PID`) and GPU.
    """
    called = {node for node, roll in rolls.items() if isinstance(roll, RollCall)}
    if not called and not any(len(ranks) > 1 for ranks in processes.by_node.values()):
        raise Unlearned("one rank of each node reported, and it is unknown whether the others run")
    for node, launch in launches.items():
        collected = processes.by_node.get(node, {})
        started = min(launch.local_world_size or 0, bounds.NODE_RANKS)
        silent = started - len(collected)
        if silent <= 0 or (called and node not in called):
            continue
        here = {process.local_rank for process in collected.values() if isinstance(process, RankProcess)}
        numbers = sorted(set(range(started)) - here)
        which = fold(f"local rank {number}" for number in numbers) if len(numbers) == silent else plural(silent, "rank")
        message = f"{silent} of {launch.local_world_size} ranks did not report to local rank 0 of {node}"
        reported = ", ".join(map(str, sorted(n for n in here if n is not None)))
        evidence = seen("local ranks that reported", reported or "none")
        yield fail(f"{node} {which}", message, nodes=(node,), action="retest", evidence=evidence)
