"""MASTER_ADDR and this node's own name: what they resolve to, and which way that leads."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network

from ncclprobe.checks.launch import (
    TWO_NODES,
    given_a_master,
    is_master,
    of_several_nodes,
    own_addresses,
    sent_to_a_master,
)
from ncclprobe.errors import Unlearned
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import HOSTS, HostsEntry, Master, Names, OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.ports import Listener, Ports
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.facts.software import Software
from ncclprobe.facts.system import System
from ncclprobe.model.findings import Finding, Sources, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from ncclprobe.nccl.gloo import Device, Refused, named, of_hostname
from ncclprobe.nccl.interfaces import find_by

_SLOW_S = 1.0
_OVERLAYS = ("bridge", "vxlan", "wireguard")  # DEVTYPE of what containers and private networks are made of

NODE0 = System("node0", "6.8.0", "x86_64", "Ubuntu 22.04", None)
DEBIANS = Names((HostsEntry("127.0.0.1", ("localhost",), 1), HostsEntry("127.0.1.1", ("node0",), 2)))
NO_SOFTWARE = Software({})
UNASKED = Absent("not asked")


def interface(name: str, index: int, address: str, kind: str = "", virtual: bool = False) -> Interface:
    """Return a running interface with one IPv4 address of a /24, for examples."""
    own = Address(name, "inet", address, "255.255.255.0", running=True)
    return Interface(name, index, frozenset({"up", "running"}), 1500, addresses=(own,), virtual=virtual, kind=kind)


_LOCALHOST = Address("lo", "inet", "127.0.0.1", "255.0.0.0", running=True)
LO = Interface("lo", 1, frozenset({"up", "running", "loopback"}), 65536, addresses=(_LOCALHOST,))
ETH0 = interface("eth0", 3, "10.0.0.5")
CNI0 = interface("cni0", 2, "10.244.1.1", kind="bridge", virtual=True)
FAR = Master("node0", ("10.9.0.1",), 0.002)
HERE = Interfaces((LO, ETH0))
RULES: tuple[()] = ()
ROUTED = Routes((Route("10.0.0.0/24", "eth0"), Route("0.0.0.0/0", "eth0", "10.0.0.1")), RULES)


@check(
    bad=lambda: [(Master("node0", ("10.0.0.1",), 3.2),)],
    good=lambda: [(Master("node0", ("10.0.0.1",), 0.002),)],
    required=True,
    applies=given_a_master,
)
def master_resolve(master: Master) -> Iterator[Finding]:
    """MASTER_ADDR does not resolve on this node, or only slowly.

    Right: MASTER_ADDR resolves on this node.
    Why: every rank looks it up before anything else; where it fails torch retries until its timeout and does not name
    the cause (pytorch#150532).
    Fix: use an IP address, or a name that DNS or /etc/hosts of every node knows.
    """
    call = f"getaddrinfo({master.name})"
    if master.failure:
        yield fail(master.name, master.failure, blame="job", action="fix-job", evidence=call)
    elif master.seconds > _SLOW_S:
        message = f"took {master.seconds:.1f} s to resolve; each rank waits that long, and more under load"
        yield warn(master.name, message, blame="node", action="fix-image", evidence=call)


@check(
    bad=lambda: [(Master("node0", ("127.0.1.1",)), TWO_NODES)],
    good=lambda: [(Master("node0", ("10.0.0.1",)), TWO_NODES)],
    required=True,
    requires="launch.master-resolve",
    applies=given_a_master,
)
def master_loopback(master: Master, launch: Launch) -> Iterator[Finding]:
    """MASTER_ADDR is a loopback address in a job of several nodes.

    Right: MASTER_ADDR is an address that other nodes can reach.
    Why: Debian and Ubuntu put "127.0.1.1 <hostname>" into /etc/hosts, so on that node rank 0 announces an address
    that every other node takes for itself; they then wait for a rank that never comes.
    Fix: take the host's own name off the 127.0.x.x line of /etc/hosts, or give rank 0's IP address.
    """
    if launch.several_nodes and master.loopback:
        message = f"resolves to {', '.join(master.loopback)}, which no other of the {launch.nnodes} nodes can reach"
        call = f"getaddrinfo({master.name})"
        if master.name.partition(".")[0] == "localhost" or master.name in master.loopback:  # on every host
            remedy = "MASTER_ADDR=<the address of rank 0's host that the other nodes reach>"
            yield fail(master.name, message, blame="job", action="fix-job", evidence=call, remedy=remedy)
        else:
            yield fail(master.name, message, blame="node", action="fix-image", evidence=call)


@check(
    bad=lambda: [(NODE0, DEBIANS, UNASKED, HERE, Environment({}), Job("gloo"))],
    good=lambda: [(NODE0, DEBIANS, UNASKED, HERE, Environment({"GLOO_SOCKET_IFNAME": "eth0"}), Job("gloo"))],
    requires="launch.master-loopback",
    applies=of_several_nodes,
)
def fqdn(
    system: System, names: Names, own: OwnName | Absent, interfaces: Interfaces, environment: Environment, job: Job
) -> Iterator[Finding]:
    """This node's own name leads to no address that other nodes can reach.

    Right: This node's own name leads to an address that others can reach.
    Why: without GLOO_SOCKET_IFNAME gloo listens on the address of its host's name, and on 127.0.0.1 where the name
    leads to no address of the host; torchrun announces that name for rank 0. Where it is 127.0.1.1, as Debian writes
    into /etc/hosts, the other nodes connect to themselves (pytorch#150532). torch makes gloo groups in addition to
    NCCL's in many frameworks.
    Fix: give the name its real address in /etc/hosts, or set GLOO_SOCKET_IFNAME, and torchrun --local-addr.
    """
    if named(environment.get("GLOO_SOCKET_IFNAME") or ""):
        return
    entries = names.entries(system.hostname)
    evidence = seen(HOSTS, line=entries[0].line) if entries else f"getaddrinfo({system.hostname})"
    if isinstance(own, OwnName) and own.name:
        device = of_hostname(interfaces, own.name, own.addresses)
        if isinstance(device, Refused):
            tell, group = (fail, "a gloo group") if job.backend == "gloo" else (warn, "gloo groups of this job")
            message = f"{device.why}: {group} cannot be made here"
            yield tell(system.hostname, message, blame="image", action="fix-image", evidence=evidence)
        elif isinstance(device, Device) and device.loopback:
            yield _loopback(system.hostname, _leads(device, own), evidence, job)
    elif entries and all(ip_address(entry.address).is_loopback for entry in entries):
        message = f"is {entries[0].address} here, which no other node can reach"
        if names.sources[:1] not in ((), ("files",)):
            yield note(system.hostname, f"{message}, if {names.sources[0]} has no other answer", evidence=evidence)
        else:
            yield _loopback(system.hostname, message, evidence, job)


def _leads(device: Device, own: OwnName) -> str:
    if not device.fallback:
        return f"is {device.address} here, which no other node can reach"
    where = (
        f"leads to {', '.join(own.addresses)}, no address of this node" if own.addresses else "does not resolve here"
    )
    return f"{where}: gloo listens on {device.address} instead, which no other node can reach"


def _loopback(hostname: str, message: str, evidence: Sources, job: Job) -> Finding:
    """Return a warning to gloo; under NCCL a note: what it does to the job's gloo groups is launch.gloo-group's."""
    if job.backend == "gloo":
        return warn(hostname, message, blame="image", action="fix-image", evidence=evidence)
    return note(hostname, f"{message}; that hurts gloo and torchrun, not NCCL", evidence=evidence)


@check(
    bad=lambda: [(FAR, Interfaces((CNI0, ETH0)), ROUTED, Settings(), NO_SOFTWARE, Job())],
    good=lambda: [(FAR, Interfaces((CNI0, ETH0)), ROUTED, Settings(), NO_SOFTWARE, Job("gloo"))],
    required=True,
    requires="launch.master-resolve",
    applies=sent_to_a_master,
)
def route(
    master: Master,
    interfaces: Interfaces,
    routes: Routes,
    settings: Settings,
    software: Software | Absent,
    job: Job,
) -> Iterator[Finding]:
    """No route leads to MASTER_ADDR, or it does not leave by the interface that NCCL uses.

    Right: The route to MASTER_ADDR leaves by the interface that NCCL uses.
    Why: NCCL's bootstrap takes the first interface that is none of ib*, docker*, lo or virbr* after ib*
    (src/misc/socket.cc:190), so the bridge of a container network may come before the NIC, and no other node can reach
    it. A network of its own for NCCL, apart from that of MASTER_ADDR, is common, and fine.
    Fix: NCCL_SOCKET_IFNAME=<the interface named>, or exclude the other: ^docker,lo,cni.
    """
    if master.failure:
        raise Unlearned(f"MASTER_ADDR does not resolve: {master.failure}")
    elsewhere = {a.partition("%")[0] for a in master.addresses if a not in master.loopback} - own_addresses(interfaces)
    leaves_by = {route.interface: address for address in sorted(elsewhere) if (route := routes.leaving(address))}
    if elsewhere and not leaves_by:
        if isinstance(routes.rules, Absent) or routes.policy:
            raise Unlearned("the main table has no route to MASTER_ADDR, and which other table applies is not known")
        message = f"{', '.join(sorted(elsewhere))}: no route leads there"
        yield fail(master.name, message, blame="node", action="fix-image", evidence="/proc/net/route")
    chosen = _bootstrap(interfaces, settings, software) if job.backend == "nccl" else None
    if not leaves_by or chosen is None or chosen.name in leaves_by or "" in leaves_by:
        return
    message = f"is the interface of NCCL's bootstrap, but the route to {master.name} leaves by {', '.join(leaves_by)}"
    evidence = seen("/proc/net/route", next(iter(leaves_by.values())))
    if chosen.kind in _OVERLAYS:
        yield warn(
            chosen.name, f"{message}: a {chosen.kind} of this node", blame="job", action="fix-job", evidence=evidence
        )
    elif shared := _shared_subnet(chosen, [each for each in interfaces.all if each.name in leaves_by]):
        yield warn(
            chosen.name,
            f"{message}, which is in {shared} too: the kernel sends what NCCL binds to one by the other",
            blame="image",
            action="fix-image",
            evidence=evidence,
            remedy=_TWO_IN_ONE.format(chosen=chosen.name, other=next(iter(leaves_by))),
        )
    else:
        yield note(chosen.name, message, evidence=evidence)


_TWO_IN_ONE = (
    "routing: give {chosen} and {other} subnets of their own, or a table and a rule each (`ip rule add from ADDRESS "
    "table N`) with net.ipv4.conf.all.arp_ignore=1 and arp_announce=2; or use one: NCCL_SOCKET_IFNAME={other}"
)


def _shared_subnet(chosen: Interface, others: Sequence[Interface]) -> str:
    """Return the IPv4 subnet that an interface has in common with another one; empty: none."""

    def subnets(each: Interface) -> set[str]:
        found = (a for a in each.addresses if a.family == "inet")
        return {str(ip_network(f"{a.address}/{a.netmask}", strict=False)) for a in found}

    return next(iter(sorted(subnets(chosen).intersection(*map(subnets, others)))), "") if others else ""


def _bootstrap(interfaces: Interfaces, settings: Settings, software: Software | Absent) -> Interface | None:
    """Return the interface that NCCL takes for its bootstrap; None with NCCL_COMM_ID, which decides otherwise."""
    if settings.get("NCCL_COMM_ID"):
        return None
    version = software.nccl_version if isinstance(software, Software) else None
    found = find_by(interfaces.addresses, settings, version, limit=1).interfaces
    return next((interfaces.by_name.get(choice.name) for choice in found), None)


@applies
def called_node_0(launch: Launch, master: Master, job: Job) -> bool:
    """to node 0 of several that were started by hand, by srun or by mpirun, where MASTER_ADDR resolves."""
    by_name = launch.kind in (
        "options",
        "environment",
        "slurm",
        "openmpi",
        "pmi",
    )  # a pod's service has an address of its own
    others = len(master.addresses) > len(master.loopback)
    return not job.local and by_name and launch.several_nodes and launch.node_rank == 0 and others


@check(
    bad=lambda: [(Master("node0", ("10.9.0.1",)), Interfaces((ETH0,)))],
    good=lambda: [(Master("node0", ("10.0.0.5",)), Interfaces((ETH0,)))],
    requires="launch.master-resolve",
    applies=called_node_0,
)
def master_here(master: Master, interfaces: Interfaces) -> Iterator[Finding]:
    """This node is node 0 by its number, and MASTER_ADDR is another machine.

    Right: MASTER_ADDR is node 0.
    Why: node 0 listens at MASTER_ADDR; a node 0 elsewhere waits for all others, and they wait for it. The same
    command line pasted on each node does that.
    Fix: give each node its own --node-rank (NODE_RANK), 0 where MASTER_ADDR is.
    """
    elsewhere = set(master.addresses) - set(master.loopback)
    if not elsewhere & own_addresses(interfaces):
        message = f"leads to {', '.join(sorted(elsewhere))}, which is no address of this node, though it is node 0"
        yield warn(master.name, message, blame="job", action="fix-job", evidence=f"getaddrinfo({master.name})")


_LO_DOWN = replace(LO, flags=LO.flags - {"up", "running"})


@check(bad=lambda: [(Interfaces((_LO_DOWN, ETH0)),)], good=lambda: [(HERE,)])
def loopback(interfaces: Interfaces) -> Iterator[Finding]:
    """The loopback device is down.

    Right: The loopback device is up.
    Why: Linux carries what a host sends to any address of its own over lo: rank 0 does not reach the store at
    MASTER_ADDR that it has opened itself, nor NCCL's bootstrap its root, and both wait to their timeouts.
    Fix: `ip link set lo up`, in the job's own network namespace where it has one.
    """
    for each in interfaces.all:
        if each.loopback and "up" not in each.flags:
            message = "is down: no process of this node reaches one of its own addresses"
            yield fail(each.name, message, blame="node", action="fix-image", evidence=f"getifaddrs(3): {each.name}")


_BOTH = Master("localhost", ("::1", "127.0.0.1"))
_SPLIT = Ports((Listener("::1", 29500), Listener("0.0.0.0", 29500)), 0)
_ONE = Launch("environment", 0, 8, 0, 8, 1, 0, "localhost", 29500)


@check(
    bad=lambda: [(_BOTH, _ONE, Interfaces((ETH0,)), _SPLIT)],
    good=lambda: [(Master("localhost", ("127.0.0.1",)), _ONE, Interfaces((ETH0,)), _SPLIT)],
    applies=given_a_master,
)
def ipv6_split(master: Master, launch: Launch, interfaces: Interfaces, ports: Ports) -> Iterator[Finding]:
    """MASTER_ADDR leads to one listener by IPv4 and to another by IPv6.

    Right: MASTER_ADDR leads to one listener.
    Why: torch's store listens on both families with one socket, and on IPv4 alone where the port is taken in IPv6
    (torch/csrc/distributed/c10d/socket.cpp); ranks that try the IPv6 address first then talk to another program
    (strands#2600).
    Fix: give MASTER_ADDR as an IPv4 address, or choose a MASTER_PORT that is free for IPv4 and IPv6 (ss -ltn).
    """
    families = {ip_address(address.partition("%")[0]).version for address in master.addresses}
    if len(families) < 2 or launch.master_port is None or not is_master(launch, master, interfaces):
        return
    listeners = ports.on(launch.master_port)
    by_family = {ip_address(listener.address).version: listener.address for listener in listeners}
    if len(by_family) > 1:
        message = f"port {launch.master_port} has a listener on {by_family[4]} and another on {by_family[6]}"
        evidence = ("/proc/net/tcp", "/proc/net/tcp6")
        yield warn(master.name, message, blame="job", action="fix-job", evidence=evidence)
