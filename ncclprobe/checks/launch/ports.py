"""The port of the rendezvous, and the ports that everything else takes as it comes. No check connects to find out."""

from collections.abc import Iterator

from ncclprobe.checks.launch import BY_HAND, TWO_NODES, is_master, of_several_nodes, part_of_a_job
from ncclprobe.errors import Unlearned
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import Master
from ncclprobe.facts.ports import Listener, Ports
from ncclprobe.facts.sysctls import ROOT, Sysctls
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace

_LARGEST_BACKLOG = 4096  # the kernel's own default of somaxconn since Linux 5.4
_PORTS_PER_PEER = 4
_NARROW = 1024

_ETH0 = Address("eth0", "inet", "10.0.0.5", "255.255.255.0", running=True)
HERE = Interfaces((Interface("eth0", 2, frozenset({"up", "running"}), 1500, addresses=(_ETH0,)),))
MASTER = Master("node0", ("10.0.0.5",), 0.002)
TAKEN = Ports((Listener("0.0.0.0", 29500),), 0)
USUAL = Sysctls((32768, 60999), (), 4096, 212992, 212992, (4096, 131072, 6291456), (4096, 16384, 4194304))


@applies
def before_the_launch(launch: Launch, master: Master, job: Job) -> bool:
    """before a job starts, where MASTER_ADDR and MASTER_PORT are set and no torchrun listens there itself."""
    given = bool(master.name) and launch.master_port is not None
    listened = launch.kind == "torchrun" or job.running or job.met
    return given and not listened and not job.local


@check(
    bad=lambda: [(BY_HAND, MASTER, HERE, TAKEN)],
    good=lambda: [(BY_HAND, MASTER, HERE, Ports((Listener("0.0.0.0", 22),), 0))],
    required=True,
    requires="launch.master-resolve",
    applies=before_the_launch,
)
def port_free(launch: Launch, master: Master, interfaces: Interfaces, ports: Ports) -> Iterator[Finding]:
    """Another process already listens on MASTER_PORT.

    Right: MASTER_PORT is free.
    Why: rank 0 listens there on all addresses, of both families; one other listener on any of them makes that fail
    with "address already in use", or connects the ranks to that program.
    Fix: choose another MASTER_PORT, or end what is left of an earlier job on this node (ss -ltnp).
    """
    port = launch.master_port
    if port is None or not is_master(launch, master, interfaces):
        return
    addresses = sorted({listener.address for listener in ports.on(port)})
    if addresses:
        message = f"{port} already has a listener at {', '.join(addresses)}, unless this job itself runs already"
        evidence = ("/proc/net/tcp", "/proc/net/tcp6")
        yield fail("MASTER_PORT", message, blame="job", action="fix-job", evidence=evidence)


@check(
    bad=lambda: [(replace(BY_HAND, master_port=40123), USUAL)],
    good=lambda: [(BY_HAND, USUAL)],
    requires="launch.port-free",
    applies=before_the_launch,
)
def port_ephemeral(launch: Launch, sysctls: Sysctls) -> Iterator[Finding]:
    """MASTER_PORT is in the range of ephemeral ports, which the kernel gives to any connection.

    Right: MASTER_PORT is outside the range of ephemeral ports.
    Why: any connection that starts between now and rank 0's turn may be given this port, and rank 0 then cannot listen
    on it: a job that fails once in a while, and never twice in the same way (ip_local_port_range in the kernel's
    Documentation/networking/ip-sysctl.rst; zeekctl#41).
    Fix: choose a MASTER_PORT below the range, such as 29500, or reserve it: `sysctl -w
    net.ipv4.ip_local_reserved_ports=PORT`.
    """
    if isinstance(sysctls.ephemeral_ports, Absent):
        raise Unlearned(sysctls.ephemeral_ports.why)
    first, last = sysctls.ephemeral_ports
    reserved = () if isinstance(sysctls.reserved_ports, Absent) else sysctls.reserved_ports
    port = launch.master_port or 0
    if first <= port <= last and not any(low <= port <= high for low, high in reserved):
        message = f"{port} lies in the range of ephemeral ports, {first} to {last}, and is not reserved"
        evidence = f"{ROOT}/ipv4/ip_local_port_range"
        yield warn("MASTER_PORT", message, blame="job", action="fix-job", evidence=evidence)


@check(
    bad=lambda: [(TWO_NODES, replace(USUAL, ephemeral_ports=(60000, 60999)), Ports((), 0))],
    good=lambda: [(TWO_NODES, USUAL, Ports((), 0))],
    applies=of_several_nodes,
)
def ports_enough(launch: Launch, sysctls: Sysctls, ports: Ports | Absent) -> Iterator[Finding]:
    """The range of ephemeral ports is too small for a job of this size.

    Right: The range of ephemeral ports is large enough for a job of this size.
    Why: NCCL lets the kernel choose the port of every listener (src/bootstrap.cc:413, src/transport/net_socket.cc:424),
    and every connection takes one; when they run out, connecting fails with "Cannot assign requested address".
    Fix: `sysctl -w net.ipv4.ip_local_port_range='32768 60999'`, the kernel's default, or wider.
    """
    if isinstance(sysctls.ephemeral_ports, Absent):
        raise Unlearned(sysctls.ephemeral_ports.why)
    first, last = sysctls.ephemeral_ports
    reserved = () if isinstance(sysctls.reserved_ports, Absent) else sysctls.reserved_ports
    blocked = sum(max(0, min(high, last) - max(low, first) + 1) for low, high in reserved)
    count = last - first + 1 - blocked
    needed = max(_NARROW, _PORTS_PER_PEER * ((launch.world_size or 1) - 1))
    waiting = ports.time_wait if isinstance(ports, Ports) and isinstance(ports.time_wait, int) else 0
    message = (
        f"{first} to {last} are {count} ports without the reserved ones; {launch.world_size} ranks may need {needed}"
    )
    evidence = f"{ROOT}/ipv4/ip_local_port_range"
    if count < needed:
        yield warn("ephemeral ports", message, blame="image", action="fix-image", evidence=evidence)
    elif count - waiting < needed:
        message += f", and {waiting} closed connections still hold one (TIME_WAIT)"
        yield note("ephemeral ports", message, evidence=(evidence, "/proc/net/sockstat"))


@check(
    bad=lambda: [(replace(TWO_NODES, world_size=1024), replace(USUAL, somaxconn=128))],
    good=lambda: [(TWO_NODES, replace(USUAL, somaxconn=128))],
    applies=part_of_a_job,
)
def somaxconn(launch: Launch, sysctls: Sysctls) -> Iterator[Finding]:
    """The kernel's queue of waiting connections is too short for a job of this size.

    Right: The kernel's queue of waiting connections is long enough for a job of this size.
    Why: all ranks connect to rank 0 within a moment. NCCL asks for a queue of 16384 (src/misc/socket.cc:148) and gets
    somaxconn of it; a connection that finds it full gets no answer, and is tried again after a second and more.
    Fix: `sysctl -w net.core.somaxconn=4096`, the default since Linux 5.4, or more, in the job's network namespace.
    """
    if isinstance(sysctls.somaxconn, Absent):
        raise Unlearned(sysctls.somaxconn.why)
    needed = min(launch.world_size or 1, _LARGEST_BACKLOG)
    if sysctls.somaxconn < needed:
        message = f"is {sysctls.somaxconn}, and {launch.world_size} ranks connect at once"
        evidence = f"{ROOT}/core/somaxconn"
        yield warn("net.core.somaxconn", message, blame="image", action="fix-image", evidence=evidence)
