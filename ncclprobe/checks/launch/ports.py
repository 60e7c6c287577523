"""The port of the rendezvous, the ephemeral ports, and the addresses that gloo groups listen on.

No check connects to find out. torch makes gloo groups with ``--backend gloo``, and frameworks make them in addition to
NCCL's groups, for work on the CPU: checkpoints, barriers, monitored barriers, schedulers.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_interface
from typing import Any

from ncclprobe.checks import IMAGE, JOB, several
from ncclprobe.checks.env.fixtures import LO, interface
from ncclprobe.checks.launch import (
    BY_HAND,
    LIMITS_GROUP,
    MESH_GROUP,
    PORT_GROUP,
    TWO_NODES,
    is_master,
    launched_on_several_nodes,
)
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.names import Master, OwnName
from ncclprobe.facts.ports import ROOT, Chain, Firewall, Listener, Ports, Sysctls
from ncclprobe.facts.process import Process, Stack, stack_of
from ncclprobe.facts.reach import Paths
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Evidence, Finding, fail, note, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import first_of
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job
from ncclprobe.model.values import Struct, field, replace
from ncclprobe.nccl.gloo import Chosen, Device, Node, devices, named, partings

_PORTS_PER_PEER = 4
_NARROW = 1024

_ETH0 = Address("eth0", "inet", "10.0.0.5", "255.255.255.0", running=True)
HERE = Interfaces((Interface("eth0", 2, frozenset({"up", "running"}), 1500, addresses=(_ETH0,)),))
MASTER = Master("node0", ("10.0.0.5",), 0.002)
TAKEN = Ports((Listener("0.0.0.0", 29500),), 0)
USUAL = Sysctls((32768, 60999), ())


@applies
def master_not_running(launch: Launch, master: Master, job: Job) -> bool:
    """before a job starts, if MASTER_ADDR and MASTER_PORT are set and no torchrun listens there itself."""
    given = bool(master.name) and launch.master_port is not None
    listened = launch.kind == "torchrun" or job.met
    return given and not listened and not job.local


@check(
    group=PORT_GROUP,
    bad=lambda: [(BY_HAND, MASTER, HERE, TAKEN)],
    good=lambda: [(BY_HAND, MASTER, HERE, Ports((Listener("0.0.0.0", 22),), 0))],
    required=True,
    requires="launch.master/master-resolve",
    applies=master_not_running,
)
def port_free(launch: Launch, master: Master, interfaces: Interfaces, ports: Ports) -> Iterator[Finding]:
    """Another process already listens on MASTER_PORT.

    Right: MASTER_PORT is free.
    Why: rank 0 listens there on all IPv4 and IPv6 addresses. If another process listens on any of them, rank 0 fails
    with "address already in use", or the ranks connect to that process.
    Fix: choose another MASTER_PORT, or end the process of an earlier job that still listens on this node (ss -ltnp).
    """
    port = launch.master_port
    if port is None or not is_master(launch, master, interfaces):
        return
    addresses = sorted({listener.address for listener in ports.on(port)})
    if addresses:
        taken = f"{port} already has a listener at {', '.join(addresses)}"
        message = f"{taken}; this may be the job itself if it is already running"
        evidence = ("/proc/net/tcp", "/proc/net/tcp6")
        yield fail("MASTER_PORT", message, **JOB, evidence=evidence)


@check(
    group=PORT_GROUP,
    bad=lambda: [(replace(BY_HAND, master_port=40123), USUAL)],
    good=lambda: [(BY_HAND, USUAL)],
    requires="launch.port/port-free",
    applies=master_not_running,
)
def port_ephemeral(launch: Launch, sysctls: Sysctls) -> Iterator[Finding]:
    """MASTER_PORT is in the range of ephemeral ports, which the kernel may give to any connection.

    Right: MASTER_PORT is outside the range of ephemeral ports.
    Why: a connection that opens before rank 0 starts may get this port, and rank 0 then cannot listen on it. Such a job
    fails only now and then (ip_local_port_range in the kernel's Documentation/networking/ip-sysctl.rst; zeekctl#41).
    Fix: choose a MASTER_PORT below the range, such as 29500, or reserve it: `sysctl -w
    net.ipv4.ip_local_reserved_ports=PORT`.
    """
    if isinstance(sysctls.ephemeral_ports, Absent):
        raise Unlearned(sysctls.ephemeral_ports.why)
    first, last = sysctls.ephemeral_ports
    reserved = () if isinstance(sysctls.reserved_ports, Absent) else sysctls.reserved_ports
    port = launch.master_port or 0
    if first <= port <= last and not any(low <= port <= high for low, high in reserved):
        message = f"{port} is in the range of ephemeral ports, {first} to {last}, and is not reserved"
        evidence = f"{ROOT}/ipv4/ip_local_port_range"
        yield warn("MASTER_PORT", message, **JOB, evidence=evidence)


@check(
    group=LIMITS_GROUP,
    bad=lambda: [(TWO_NODES, replace(USUAL, ephemeral_ports=(60000, 60999)), Ports((), 0))],
    good=lambda: [(TWO_NODES, USUAL, Ports((), 0))],
    applies=launched_on_several_nodes,
)
def ports_enough(launch: Launch, sysctls: Sysctls, ports: Ports | Absent) -> Iterator[Finding]:
    """The range of ephemeral ports is too small for a job of this size.

    Right: The range of ephemeral ports is large enough for a job of this size.
    Why: NCCL lets the kernel choose the port for every listener (src/bootstrap.cc:413,
    src/transport/net_socket.cc:424), and every connection uses one. When they run out, connecting fails with "Cannot
    assign requested address".
    Fix: run `sysctl -w net.ipv4.ip_local_port_range='32768 60999'`, which is the kernel's default, or set a wider
    range.
    """
    if isinstance(sysctls.ephemeral_ports, Absent):
        raise Unlearned(sysctls.ephemeral_ports.why)
    first, last = sysctls.ephemeral_ports
    reserved = () if isinstance(sysctls.reserved_ports, Absent) else sysctls.reserved_ports
    blocked = sum(max(0, min(high, last) - max(low, first) + 1) for low, high in reserved)
    count = last - first + 1 - blocked
    needed = max(_NARROW, _PORTS_PER_PEER * ((launch.world_size or 1) - 1))
    waiting = ports.time_wait if isinstance(ports, Ports) and isinstance(ports.time_wait, int) else 0
    message = f"{first} to {last} has {count} ports that are not reserved; {launch.world_size} ranks may need {needed}"
    evidence = f"{ROOT}/ipv4/ip_local_port_range"
    if count < needed:
        yield warn("ephemeral ports", message, **IMAGE, evidence=evidence)
    elif count - waiting < needed:
        message += f", and {waiting} closed connections still hold a port (TIME_WAIT)"
        yield note("ephemeral ports", message, evidence=(evidence, "/proc/net/sockstat"))


DROPS = Firewall((Chain("ip/filter/INPUT", "drop", 3),), ())
REJECTS = Firewall((Chain("inet/firewalld/filter_INPUT", "reject", 5),), ())
RULED = Firewall((Chain("ip/filter/INPUT", "accept", 2),), ())
OPEN = Firewall((Chain("ip/filter/INPUT"),), ())
UNTRIED: Every[Paths | Absent] = Every({})
UNCHOSEN: Every[Choices] = Every({})


@check(
    group=MESH_GROUP,
    bad=lambda: [(Every({"n0": OPEN, "n1": DROPS}), UNTRIED, UNCHOSEN)],
    good=lambda: [(Every({"n0": OPEN, "n1": OPEN}), UNTRIED, UNCHOSEN)],
    applies=several,
)
def firewall(
    firewalls: Every[Firewall | Absent], paths: Every[Paths | Absent], choices: Every[Choices]
) -> Iterator[Finding]:
    """A node's firewall blocks incoming connections that no rule allows.

    Right: No node's firewall blocks incoming connections, or nodes have connected to each other.
    Why: NCCL, gloo and torch listen on ports that the kernel chooses (src/bootstrap.cc:413). Rules for ssh and
    MASTER_PORT do not open these ports, and the other ranks wait until they time out. This check does not read the
    rules. If the doctor runs on all nodes at once, launch.mesh tests whether the rules allow the job's nodes.
    Fix: allow TCP on all ports from the network of the job's nodes, such as with `ufw allow from 10.0.0.0/24` or
    `firewall-cmd --zone=trusted --add-source=10.0.0.0/24`.
    """
    if any(isinstance(each, Paths) for _, each in paths.items()):
        return  # the nodes have tried, and launch.mesh says how it went
    unread, refuses = [], False
    for node, each in firewalls.items():
        ours = _families(choices.by_node.get(node))
        chains = each if isinstance(each, Absent) else each.chains
        for chain in () if isinstance(chains, Absent) else chains:
            if chain.name.partition("/")[0] not in ours:
                continue
            if chain.otherwise in ("drop", "reject"):
                refuses, letting_in = True, "it is unknown whether its rules allow the other nodes"
                message = f"{chain.otherwise}s connections that no rule allows; {letting_in}"
                yield warn(chain.name, message, **IMAGE, nodes=(node,), evidence="nft list chains; nft list chain")
            elif chain.rules != 0:
                why = chain.rules.why if isinstance(chain.rules, Absent) else f"{chain.name} has rules, not read here"
                unread.append(f"{node}: {why}")
        legacy = each if isinstance(each, Absent) else each.legacy
        if isinstance(chains, Absent) or isinstance(legacy, Absent):
            unread.append(f"{node}: {next(gap.why for gap in (chains, legacy) if isinstance(gap, Absent))}")
        elif ours & {table.partition("/")[0] for table in legacy}:
            unread.append(f"{node}: nft shows no rules of iptables-legacy")
    if unread and not refuses:  # what was found stands, and is not all that there may be
        raise Unlearned(first_of(unread, 3, "; "))
    if unread:
        yield note("firewall", f"could not be read completely: {first_of(unread, 3, '; ')}", evidence="nft list chains")


def _families(choices: Choices | None) -> set[str]:
    """Return the families of tables that a job's packets pass, by the address that NCCL's bootstrap uses."""
    found = choices.bootstrap.chosen if choices else None
    versions = {ip_address(each.address).version for each in found or ()} or {4, 6}
    every = {"inet": {4, 6}, "netdev": {4, 6}, "ip": {4}, "ipv4": {4}, "ip6": {6}, "ipv6": {6}}
    return {family for family, of in every.items() if of & versions}


VARIABLE = "GLOO_SOCKET_IFNAME"
THEIR_GROUPS = "gloo groups of this job"
_MOST_NODES = 128  # whose pairs are all compared


@applies
def between_nodes(names: Every[OwnName | Absent], job: Job) -> bool:
    """in jobs of several nodes that reported their own names, and not with --local."""
    return not job.local and sum(isinstance(each, OwnName) and bool(each.name) for _, each in names.items()) > 1


def names_of(*names: str) -> Every[OwnName | Absent]:
    return Every({f"n{i}": OwnName(f"n{i}", (name,) if name else ()) for i, name in enumerate(names)})


def ifnames(*values: str) -> Every[Environment | Absent]:
    return Every({f"n{i}": Environment({VARIABLE: value} if value else {}) for i, value in enumerate(values)})


def _system(number: int, boot_id: str) -> System:
    return System(f"n{number}", "6.8.0", "x86_64", "Ubuntu 22.04", boot_id)


HOSTS = Every({f"n{i}": Interfaces((LO, interface("eth0", 2, f"10.0.0.{5 + i}"))) for i in range(2)})
SYSTEMS: Every[System | Absent] = Every({f"n{i}": _system(i, f"boot{i}") for i in range(2)})
ANY: Every[Process | Absent] = Every({})


@check(
    bad=lambda: [(HOSTS, names_of("127.0.1.1", "127.0.1.1"), ifnames("", ""), SYSTEMS, ANY, Job("gloo"))],
    good=lambda: [(HOSTS, names_of("127.0.1.1", "127.0.1.1"), ifnames("eth0", "eth0"), SYSTEMS, ANY, Job("gloo"))],
    requires="env.ifname/gloo-mismatch",
    applies=between_nodes,
)
def gloo_group(
    interfaces: Every[Interfaces],
    names: Every[OwnName | Absent],
    environments: Every[Environment | Absent],
    systems: Every[System | Absent],
    processes: Every[Process | Absent],
    job: Job,
) -> Iterator[Finding]:
    """The nodes of this job cannot form a gloo group.

    Right: The nodes of this job can form a gloo group.
    Why: unless GLOO_SOCKET_IFNAME names interfaces, gloo listens on the address to which the host's own name resolves,
    or on 127.0.0.1 if that is not an address of the host. Of two ranks, the one with the greater address connects to
    the other. A rank that connects to a loopback address reaches its own host ("Connection refused", pytorch#150532),
    and IPv4 cannot connect to IPv6 ("ss1.ss_family == ss2.ss_family", gloo#399). Frameworks create gloo groups in
    addition to NCCL's.
    Fix: set GLOO_SOCKET_IFNAME=<the full name of the interface> on every node, or give each host's name its real
    address in /etc/hosts, in the same address family on all nodes.
    """
    chosen = _chosen(interfaces, names, environments)
    nodes = {
        node: Node(own, chosen[node])
        for node, own in interfaces.items()
        if chosen[node] and all(isinstance(each, Device) for each in chosen[node])  # refusals: their own nodes' checks
    }
    stacks = {node: stack_of(systems.by_node.get(node), processes.by_node.get(node)) for node in nodes}
    culprits = _culprits(nodes, stacks)
    for kind, found in culprits.items():
        ill = tuple(node for node in nodes if node in found.nodes)
        first = nodes[ill[0]]
        listens = ", ".join(each.address for each in _listens(first))
        set_here = [node for node in ill if named(_ifname(environments.by_node.get(node)) or "")]
        verb = "listen" if len(ill) > 1 else "listens"
        group = "a gloo group" if job.backend == "gloo" else THEIR_GROUPS
        message = f"{verb} on {listens}, {_MEANINGS[kind]}, so {group} cannot be created ({found.example})"
        yield (fail if job.backend == "gloo" else warn)(
            fold(ill),
            message,
            nodes=ill,
            evidence=_evidence(ill[0], first, environments),
            **(JOB if set_here else IMAGE),
        )
    if culprits:
        return
    yield from _some_only(nodes, environments, job)
    unknown = [node for node, found in chosen.items() if not found or any(isinstance(d, Absent) for d in found)]
    if unknown:
        raise Unlearned(f"the address that gloo would listen on is unknown for {fold(unknown)}")


class _Culprits(Struct):
    """The nodes that a reason applies to, and the reason for one pair of them, as an example."""

    example: str
    nodes: set[str] = field(default_factory=set)


def _culprits(nodes: dict[str, Node], stacks: dict[str, Stack]) -> dict[str, _Culprits]:
    """Return whose devices are certain not to be connected with others', by the kind of reason."""
    found: dict[str, _Culprits] = {}
    for pair in partings(_odd_first(nodes)):
        whose = stacks[pair.one], stacks[pair.other]
        known = None not in (*whose[0], *whose[1])
        if whose[0] == whose[1] if known else nodes[pair.one].interfaces == nodes[pair.other].interfaces:
            continue  # one machine and one network: its loopback leads from one to the other
        kind, ill = _blamed(nodes, pair.one, pair.other)
        found.setdefault(kind, _Culprits(pair.why)).nodes.update(ill)
    return found


def _odd_first(nodes: dict[str, Node]) -> dict[str, Node]:
    """Return as many nodes as are compared in pairs, first those whose devices are of a kind that few nodes have."""
    kinds = {name: tuple((each.version, each.loopback) for each in _listens(node)) for name, node in nodes.items()}
    count = Counter(kinds.values())
    return {name: nodes[name] for name in sorted(nodes, key=lambda name: count[kinds[name]])[:_MOST_NODES]}


def _chosen(
    interfaces: Every[Interfaces], names: Every[OwnName | Absent], environments: Every[Environment | Absent]
) -> dict[str, tuple[Chosen, ...]]:
    """Return the devices of gloo on each node; none if it could not be learned what they would be."""
    found = {}
    for node, own in interfaces.items():
        ifname, name = _ifname(environments.by_node.get(node)), names.by_node.get(node)
        known = name if isinstance(name, OwnName) else OwnName()
        learned = ifname is not None and bool(named(ifname) or known.name)
        found[node] = devices(own, ifname or "", known.name, known.addresses) if learned else ()
    return found


def _ifname(environment: Environment | Absent | None) -> str | None:
    return (environment.get(VARIABLE) or "") if isinstance(environment, Environment) else None


def _listens(node: Node) -> list[Device]:
    return [each for each in node.devices if isinstance(each, Device)]


def _blamed(nodes: dict[str, Node], one: str, other: str) -> tuple[str, set[str]]:
    """Return why a pair is parted, and whose doing that is: of a loopback address its node's, otherwise the fewer
    nodes'.
    """
    counts = {name: len(node.devices) for name, node in nodes.items()}
    if counts[one] != counts[other]:
        return "count", _fewer(counts, one, other)
    local = {name for name in (one, other) if any(each.loopback for each in _listens(nodes[name]))}
    families = {name: tuple(each.version for each in _listens(node)) for name, node in nodes.items()}
    if local:
        return "loopback", local
    return ("family", _fewer(families, one, other)) if families[one] != families[other] else ("shared", {one, other})


def _fewer(values: dict[str, Any], one: str, other: str) -> set[str]:
    """Return the node of a pair whose value fewer nodes have; both if neither is the rarer."""
    count = Counter(values.values())
    mine, theirs = count[values[one]], count[values[other]]
    return {one, other} if mine == theirs else {one if mine < theirs else other}


_MEANINGS = {
    "loopback": "which leads every node to itself",
    "family": "which is not in the other nodes' address family",
    "shared": "an address that other nodes also have",
    "count": "which is not as many addresses as the other nodes use",
}


def _evidence(node: str, found: Node, environments: Every[Environment | Absent]) -> Evidence:
    ifname = _ifname(environments.by_node.get(node)) or ""
    if named(ifname):
        return seen("environment", f"{VARIABLE}={ifname}")
    fallback = any(each.fallback for each in _listens(found))
    return seen("getaddrinfo of the host's own name", "no address of this host" if fallback else "")


def _some_only(nodes: dict[str, Node], environments: Every[Environment | Absent], job: Job) -> Iterator[Finding]:
    """Report GLOO_SOCKET_IFNAME on some nodes only if these then listen in another network than the others."""
    on = tuple(node for node in nodes if named(_ifname(environments.by_node.get(node)) or ""))
    off = [node for node in nodes if node not in on]
    if not on or not off or _networks(nodes, on) & _networks(nodes, off):
        return
    where = _listens(nodes[on[0]])[0].address, _listens(nodes[off[0]])[0].address
    group = "a gloo group" if job.backend == "gloo" else THEIR_GROUPS
    message = (
        f"is set only on {fold(on)}: {where[0]} there, but {where[1]} on {fold(off)}, which is in another network; "
        f"creating {group} may fail"
    )
    given = seen("environment", f"{VARIABLE}={_ifname(environments.by_node.get(on[0]))}")
    yield warn(VARIABLE, message, nodes=on, **JOB, evidence=given)


def _networks(nodes: dict[str, Node], of: Sequence[str]) -> set[str]:
    """Return the networks of what these nodes listen on first."""
    found = set()
    for name in of:
        address = _listens(nodes[name])[0].address
        for each in nodes[name].interfaces.addresses:
            if each.address == address and each.netmask:
                length = bin(int(ip_interface(each.netmask).ip)).count("1")
                found.add(str(ip_interface(f"{address.partition('%')[0]}/{length}").network))
    return found
