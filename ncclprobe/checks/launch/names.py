"""MASTER_ADDR and this node's own name, and nodes that are one machine or look like one."""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network

from ncclprobe.checks import IMAGE, JOB, several
from ncclprobe.checks.env.fixtures import PLAIN, gpus
from ncclprobe.checks.launch import (
    MASTER_GROUP,
    NAMES_GROUP,
    RANKS_GROUP,
    TWO_NODES,
    given_a_master,
    is_master,
    launched_on_several_nodes,
    own_addresses,
    sent_to_a_master,
)
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.names import HOSTS, HostsEntry, Master, Names, OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.ports import Listener, Ports
from ncclprobe.facts.rank import OwnGpus, RankProcess
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Sources, fail, note, seen, warn
from ncclprobe.model.hostlist import fold, fold_ranks
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks
from ncclprobe.model.values import grouped, replace
from ncclprobe.nccl.gloo import Device, Refused, hostname_address, named
from ncclprobe.nccl.interfaces import find_by
from ncclprobe.nccl.values import read_setting

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
    group=MASTER_GROUP,
    bad=lambda: [(Master("node0", ("10.0.0.1",), 3.2),)],
    good=lambda: [(Master("node0", ("10.0.0.1",), 0.002),)],
    required=True,
    applies=given_a_master,
)
def master_resolve(master: Master) -> Iterator[Finding]:
    """MASTER_ADDR does not resolve on this node, or only slowly.

    Right: MASTER_ADDR resolves on this node.
    Why: every rank first resolves the name. If that fails, torch retries until its timeout and does not report the
    cause (pytorch#150532).
    Fix: use an IP address, or a name that resolves on every node.
    """
    call = f"getaddrinfo({master.name})"
    if master.failure:
        yield fail(master.name, master.failure, **JOB, evidence=call)
    elif master.seconds > _SLOW_S:
        message = f"took {master.seconds:.1f} s to resolve; each rank waits that long, and longer under load"
        yield warn(master.name, message, blame="node", action="fix-image", evidence=call)


@check(
    group=MASTER_GROUP,
    bad=lambda: [(Master("node0", ("127.0.1.1",)), TWO_NODES)],
    good=lambda: [(Master("node0", ("10.0.0.1",)), TWO_NODES)],
    required=True,
    requires="launch.master/master-resolve",
    applies=given_a_master,
)
def master_loopback(master: Master, launch: Launch) -> Iterator[Finding]:
    """MASTER_ADDR is a loopback address in a job on several nodes.

    Right: MASTER_ADDR is an address that other nodes can reach.
    Why: Debian and Ubuntu put "127.0.1.1 <hostname>" into /etc/hosts, so rank 0 on that node announces an address that
    every other node takes for its own. The other nodes then wait for a rank that never joins.
    Fix: remove the host's own name from the 127.0.x.x line of /etc/hosts, or set MASTER_ADDR to rank 0's IP address.
    """
    if launch.several_nodes and master.loopback:
        message = (
            f"resolves to {', '.join(master.loopback)}, which no other node can reach (the job has "
            f"{launch.nnodes} nodes)"
        )
        call = f"getaddrinfo({master.name})"
        if master.name.partition(".")[0] == "localhost" or master.name in master.loopback:  # on every host
            remedy = "MASTER_ADDR=<an address of rank 0's host that the other nodes can reach>"
            yield fail(master.name, message, **JOB, evidence=call, remedy=remedy)
        else:
            yield fail(master.name, message, blame="node", action="fix-image", evidence=call)


@check(
    group=NAMES_GROUP,
    bad=lambda: [(NODE0, DEBIANS, UNASKED, HERE, Environment({}), Job("gloo"))],
    good=lambda: [(NODE0, DEBIANS, UNASKED, HERE, Environment({"GLOO_SOCKET_IFNAME": "eth0"}), Job("gloo"))],
    requires="launch.master/master-loopback",
    applies=launched_on_several_nodes,
)
def fqdn(
    system: System, names: Names, own: OwnName | Absent, interfaces: Interfaces, environment: Environment, job: Job
) -> Iterator[Finding]:
    """This node's own name does not resolve to an address that other nodes can reach.

    Right: This node's own name resolves to an address that others can reach.
    Why: without GLOO_SOCKET_IFNAME gloo listens on the address to which its host's name resolves, or on 127.0.0.1 if
    that is not an address of the host. torchrun announces that name for rank 0. Debian's /etc/hosts resolves it to
    127.0.1.1, so the other nodes connect to themselves (pytorch#150532). In many frameworks torch creates gloo groups
    in addition to NCCL's.
    Fix: give the name its real address in /etc/hosts, or set GLOO_SOCKET_IFNAME and torchrun --local-addr.
    """
    if named(environment.get("GLOO_SOCKET_IFNAME") or ""):
        return
    entries = names.entries(system.hostname)
    evidence = seen(HOSTS, line=entries[0].line) if entries else f"getaddrinfo({system.hostname})"
    if isinstance(own, OwnName) and own.name:
        device = hostname_address(interfaces, own.name, own.addresses)
        if isinstance(device, Refused):
            tell, group = (fail, "a gloo group") if job.backend == "gloo" else (warn, "gloo groups of this job")
            message = f"{device.why}, so {group} cannot be created here"
            yield tell(system.hostname, message, **IMAGE, evidence=evidence)
        elif isinstance(device, Device) and device.loopback:
            yield _loopback(system.hostname, _leads(device, own), evidence, job)
    elif entries and all(ip_address(entry.address).is_loopback for entry in entries):
        message = f"resolves to {entries[0].address} here, which no other node can reach"
        if names.sources[:1] not in ((), ("files",)):
            yield note(
                system.hostname, f"{message}, unless {names.sources[0]} returns another answer", evidence=evidence
            )
        else:
            yield _loopback(system.hostname, message, evidence, job)


def _leads(device: Device, own: OwnName) -> str:
    if not device.fallback:
        return f"resolves to {device.address} here, which no other node can reach"
    where = (
        f"resolves to {', '.join(own.addresses)}, which is not an address of this node"
        if own.addresses
        else "does not resolve here"
    )
    return f"{where}, so gloo listens on {device.address}, which no other node can reach"


def _loopback(hostname: str, message: str, evidence: Sources, job: Job) -> Finding:
    """Return a warning to gloo; under NCCL a note: what it does to the job's gloo groups is launch.gloo-group's."""
    if job.backend == "gloo":
        return warn(hostname, message, **IMAGE, evidence=evidence)
    return note(hostname, f"{message}; this affects gloo and torchrun, not NCCL", evidence=evidence)


@check(
    group=MASTER_GROUP,
    bad=lambda: [(FAR, Interfaces((CNI0, ETH0)), ROUTED, Settings(), NO_SOFTWARE, Job())],
    good=lambda: [(FAR, Interfaces((CNI0, ETH0)), ROUTED, Settings(), NO_SOFTWARE, Job("gloo"))],
    required=True,
    requires="launch.master/master-resolve",
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
    """There is no route to MASTER_ADDR, or it does not use the interface that NCCL uses.

    Right: The route to MASTER_ADDR uses the interface that NCCL uses.
    Why: NCCL's bootstrap prefers ib*, then uses the first interface other than docker*, lo or virbr*
    (src/misc/socket.cc:190). A container network's bridge may be listed before the NIC, and no other node can reach it.
    It is common and fine if NCCL uses a different network from MASTER_ADDR.
    Fix: set NCCL_SOCKET_IFNAME=<the right interface>, or exclude the others: NCCL_SOCKET_IFNAME=^docker,lo,cni.
    """
    if master.failure:
        raise Unlearned(f"MASTER_ADDR does not resolve: {master.failure}")
    elsewhere = {a.partition("%")[0] for a in master.addresses if a not in master.loopback} - own_addresses(interfaces)
    leaves_by = {route.interface: address for address in sorted(elsewhere) if (route := routes.leaving(address))}
    if elsewhere and not leaves_by:
        if isinstance(routes.rules, Absent) or routes.policy:
            raise Unlearned("the main table has no route to MASTER_ADDR, and it is unknown which other table applies")
        message = f"resolves to {', '.join(sorted(elsewhere))}, to which there is no route"
        yield fail(master.name, message, blame="node", action="fix-image", evidence="/proc/net/route")
    chosen = _bootstrap(interfaces, settings, software) if job.backend == "nccl" else None
    if leaves_by and chosen is not None and chosen.name not in leaves_by and "" not in leaves_by:
        yield _aside(chosen, leaves_by, master, interfaces)


def _aside(chosen: Interface, leaves_by: Mapping[str, str], master: Master, interfaces: Interfaces) -> Finding:
    """Say of the bootstrap's interface that routes leave by others: `leaves_by` has the address that each leads to."""
    message = (
        f"is the interface that NCCL's bootstrap uses, but the route to {master.name} leaves through "
        f"{', '.join(leaves_by)}"
    )
    evidence = seen("/proc/net/route", next(iter(leaves_by.values())))
    if chosen.kind in _OVERLAYS:
        message += f"; it is a {chosen.kind} on this node"
        return warn(chosen.name, message, **JOB, evidence=evidence)
    if shared := _shared_subnet(chosen, [each for each in interfaces.all if each.name in leaves_by]):
        message += f", which is also in {shared}: the kernel sends NCCL's traffic for one interface over the other"
        remedy = _TWO_IN_ONE.format(chosen=chosen.name, other=next(iter(leaves_by)))
        return warn(chosen.name, message, **IMAGE, evidence=evidence, remedy=remedy)
    return note(chosen.name, message, evidence=evidence)


_TWO_IN_ONE = (
    "give {chosen} and {other} separate subnets, or give each its own routing table and rule (`ip rule "
    "add from ADDRESS table N`) with net.ipv4.conf.all.arp_ignore=1 and arp_announce=2. Or use only one "
    "of them: NCCL_SOCKET_IFNAME={other}"
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
    """to node 0 of several that were started by hand, srun or mpirun, if MASTER_ADDR resolves."""
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
    group=MASTER_GROUP,
    bad=lambda: [(Master("node0", ("10.9.0.1",)), Interfaces((ETH0,)))],
    good=lambda: [(Master("node0", ("10.0.0.5",)), Interfaces((ETH0,)))],
    requires="launch.master/master-resolve",
    applies=called_node_0,
)
def master_here(master: Master, interfaces: Interfaces) -> Iterator[Finding]:
    """This node is node 0, but MASTER_ADDR is another machine.

    Right: MASTER_ADDR is node 0.
    Why: node 0 must listen at MASTER_ADDR. If MASTER_ADDR is another machine, node 0 waits for all others, and they
    wait for it. This happens if the same command line is pasted on each node.
    Fix: give each node its own --node-rank (NODE_RANK): 0 for the node at MASTER_ADDR.
    """
    elsewhere = set(master.addresses) - set(master.loopback)
    if not elsewhere & own_addresses(interfaces):
        message = (
            f"resolves to {', '.join(sorted(elsewhere))}, which is not an address of this node, although this is node 0"
        )
        yield warn(master.name, message, **JOB, evidence=f"getaddrinfo({master.name})")


_LO_DOWN = replace(LO, flags=LO.flags - {"up", "running"})


@check(group=NAMES_GROUP, bad=lambda: [(Interfaces((_LO_DOWN, ETH0)),)], good=lambda: [(HERE,)])
def loopback(interfaces: Interfaces) -> Iterator[Finding]:
    """The loopback device is down.

    Right: The loopback device is up.
    Why: Linux uses lo for everything that a host sends to its own addresses. If lo is down, rank 0 cannot reach its own
    store at MASTER_ADDR, NCCL's bootstrap cannot reach its root, and both wait until they time out.
    Fix: run `ip link set lo up`, in the job's network namespace if it has its own.
    """
    for each in interfaces.all:
        if each.loopback and "up" not in each.flags:
            message = "is down, so no process on this node can reach the node's own addresses"
            yield fail(each.name, message, blame="node", action="fix-image", evidence=f"getifaddrs(3): {each.name}")


BOTH = Master("localhost", ("::1", "127.0.0.1"))
SPLIT = Ports((Listener("::1", 29500), Listener("0.0.0.0", 29500)), 0)
ONE = Launch("environment", 0, 8, 0, 8, 1, 0, "localhost", 29500)


@check(
    group=MASTER_GROUP,
    bad=lambda: [(BOTH, ONE, Interfaces((ETH0,)), SPLIT)],
    good=lambda: [(Master("localhost", ("127.0.0.1",)), ONE, Interfaces((ETH0,)), SPLIT)],
    applies=given_a_master,
)
def ipv6_split(master: Master, launch: Launch, interfaces: Interfaces, ports: Ports) -> Iterator[Finding]:
    """MASTER_ADDR leads to one listener over IPv4 and to another over IPv6.

    Right: MASTER_ADDR leads to the same listener over IPv4 and IPv6.
    Why: torch's store listens on IPv4 and IPv6 with one socket, or only on IPv4 if the IPv6 port is taken
    (torch/csrc/distributed/c10d/socket.cpp). Ranks that try the IPv6 address first then connect to another program
    (strands#2600).
    Fix: set MASTER_ADDR to an IPv4 address, or choose a MASTER_PORT that is free on IPv4 and IPv6 (ss -ltn).
    """
    families = {ip_address(address.partition("%")[0]).version for address in master.addresses}
    if len(families) < 2 or launch.master_port is None or not is_master(launch, master, interfaces):
        return
    listeners = ports.on(launch.master_port)
    by_family = {ip_address(listener.address).version: listener.address for listener in listeners}
    if len(by_family) > 1:
        message = f"port {launch.master_port} has a listener on {by_family[4]} and another on {by_family[6]}"
        evidence = ("/proc/net/tcp", "/proc/net/tcp6")
        yield warn(master.name, message, **JOB, evidence=evidence)


def host_of(hostname: str, boot_id: str | None) -> System:
    return System(hostname, "6.8.0", "x86_64", "Ubuntu 22.04", boot_id)


APART = Every({"n0": host_of("n0", "a"), "n1": host_of("n1", "b")})


@applies
def several_ranks(processes: Ranks[RankProcess], job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), if several ranks reported."""
    return job.backend == "nccl" and len(list(processes.items())) > 1


@check(
    group=RANKS_GROUP,
    bad=lambda: [(Every({"n0": host_of("gpu", "a"), "n1": host_of("gpu", "a")}),)],
    good=lambda: [(Every({"n0": host_of("gpu", "a"), "n1": host_of("gpu", "b")}),)],
    applies=several,
)
def hostname_unique(systems: Every[System]) -> Iterator[Finding]:
    """Several nodes of the job are the same machine, or have the same host name.

    Right: Every node of the job is a separate machine with its own host name.
    Why: NCCL distinguishes machines by host name and boot id (src/misc/utils.cc:117). Two agents started on one machine
    share its GPUs and NICs. NCCL treats virtual machines that were cloned with their boot id as one machine, and tries
    shared memory between them (nccl-tests#64).
    Fix: start one agent per machine (check the host file or --nodes). If containers are meant to be separate nodes,
    give each its own NCCL_HOSTID.
    """
    hostnames = grouped((system.hostname, node) for node, system in systems.items())
    machines = grouped((system.boot_id, node) for node, system in systems.items() if system.boot_id)
    seen = ("uname(2)", "/proc/sys/kernel/random/boot_id")
    for nodes in machines.values():
        names = {systems.by_node[node].hostname for node in nodes}
        if len(nodes) > len(names):  # some of them share both
            message = (
                f"have the same boot id and the host name {', '.join(sorted(names)[:3])}, so NCCL treats them as one "
                "machine"
            )
            yield warn(fold(nodes), message, **JOB, nodes=tuple(nodes), evidence=seen)
        elif len(nodes) > 1:
            message = "run on one machine under different names, so NCCL uses the network between them"
            yield note(fold(nodes), message, evidence=seen)
    for name, nodes in hostnames.items():
        if len({systems.by_node[node].boot_id for node in nodes}) > 1:
            yield note(name, f"is the host name of {len(nodes)} machines: {fold(nodes)}", evidence=seen)


def process_of(local_rank: int, shm: int = 26, ipc: int = 39, visible: tuple[str, ...] | None = None) -> RankProcess:
    return RankProcess(local_rank, 2, visible, None, (0, 1), {"ipc": ipc, "mnt": 32}, shm)


@check(
    group=RANKS_GROUP,
    slows=True,
    bad=lambda: [(Ranks({"n0": {0: process_of(0), 1: process_of(1, shm=44, ipc=77)}}), APART)],
    good=lambda: [(Ranks({"n0": {0: process_of(0)}, "n1": {1: process_of(0, shm=44)}}), APART)],
    requires="sync.identity/hostid",
    applies=several_ranks,
)
def container_split(processes: Ranks[RankProcess], systems: Every[System | Absent]) -> Iterator[Finding]:
    """Ranks on one machine are in containers that do not share memory.

    Right: All ranks of a machine share memory.
    Why: these ranks have the same identity for NCCL. It checks only /dev/shm before it tries shared memory and CUDA IPC
    between them, which fail or crash across IPC or mount namespaces (nccl#324).
    Fix: run all ranks of a machine in one container, give all containers --ipc=host, or give each its own NCCL_HOSTID.
    """
    here: dict[str, dict[int, RankProcess]] = {}
    on: dict[str, set[str]] = {}
    for node, rank, process in processes.items():
        if isinstance(process, RankProcess):
            identity = _identity(node, process, systems.by_node.get(node))
            here.setdefault(identity, {})[rank] = process
            on.setdefault(identity, set()).add(node)
    for identity, ranks in here.items():
        split = [what for what, numbers in _surroundings(ranks).items() if len(numbers) > 1]
        if split:
            message = f"are on one machine but do not share {' and '.join(split)}"
            nodes = tuple(sorted(on[identity]))
            seen = ("/proc/self/ns", "st_dev of /dev/shm")
            yield warn(fold_ranks(ranks), message, **JOB, nodes=nodes, evidence=seen)


def _identity(node: str, process: RankProcess, system: System | Absent | None) -> str:
    """Return what distinguishes machines for NCCL; if the boot id is not known, the node."""
    if process.host_id:
        return process.host_id
    return f"{system.hostname} {system.boot_id}" if isinstance(system, System) and system.boot_id else node


def _surroundings(ranks: dict[int, RankProcess]) -> dict[str, set[int]]:
    """Return IPC namespaces and /dev/shm of the ranks, as far as they are known."""
    found: dict[str, set[int]] = {"their IPC namespace": set(), "/dev/shm": set()}
    for process in ranks.values():
        for what, inode in zip(found, (process.namespaces.get("ipc"), process.shm_device), strict=True):
            if isinstance(inode, int):
                found[what].add(inode)
    return found


EIGHT_GPUS: Every[Gpus | Absent] = Every({"n0": gpus(8), "n1": gpus(8)})
NOTHING_SET: Every[Settings | Absent] = Every({"n0": PLAIN})


NO_OWN_GPUS: Ranks[OwnGpus | Absent] = Ranks({"n0": {}})


def two(one: RankProcess, other: RankProcess) -> Ranks[RankProcess]:
    return Ranks({"n0": {0: one, 1: other}})


@check(
    group=RANKS_GROUP,
    bad=lambda: [(two(process_of(0), process_of(0)), EIGHT_GPUS, NOTHING_SET, NO_OWN_GPUS)],
    good=lambda: [(two(process_of(0), process_of(1)), EIGHT_GPUS, NOTHING_SET, NO_OWN_GPUS)],
    applies=several_ranks,
)
def dup_gpu(
    processes: Ranks[RankProcess],
    gpus: Every[Gpus | Absent],
    settings: Every[Settings | Absent],
    own: Ranks[OwnGpus | Absent],
) -> Iterator[Finding]:
    """Two ranks would use the same GPU.

    Right: Every rank has its own GPU.
    Why: NCCL fails at startup with "Duplicate GPU detected" (src/init.cc:1050), unless NCCL_MULTI_RANK_GPU_ENABLE is
    set. A rank uses the visible device whose index is its local rank, or the only device that it sees.
    Fix: start one rank per GPU: use --nproc-per-node=gpu or srun --gpus-per-task=1, and
    torch.cuda.set_device(LOCAL_RANK).
    """
    users: dict[str, list[tuple[str, int]]] = {}
    for node, rank, process in processes.items():
        known, given = gpus.by_node.get(node), settings.by_node.get(node)
        allowed = isinstance(given, Settings) and read_setting(given, "NCCL_MULTI_RANK_GPU_ENABLE", 0) != 0
        ours = {gpu.index: gpu.uuid for gpu in known.all} if isinstance(known, Gpus) else {}
        # Fewer GPUs than ranks: each rank may be confined to one of its own, and calls it 0 (Slurm, ConstrainDevices).
        names = ours if len(ours) >= len(processes.by_node[node]) else {}
        seen_alone = own.by_node.get(node, {}).get(rank)
        if isinstance(seen_alone, OwnGpus):
            names = dict(enumerate(seen_alone.uuids))
        if isinstance(process, RankProcess) and not allowed and (gpu := _gpu(process, names)):
            users.setdefault(gpu, []).append((node, rank))
    for gpu, ranks in users.items():
        if len(ranks) > 1:
            nodes = tuple(dict.fromkeys(node for node, _ in ranks))
            message = f"would be used by {fold_ranks(rank for _, rank in ranks)} of {fold(nodes)}"
            seen = "LOCAL_RANK and CUDA_VISIBLE_DEVICES of each rank"
            yield fail(gpu, message, **JOB, nodes=nodes, evidence=seen)


def _gpu(process: RankProcess, uuids: Mapping[int, str]) -> str:
    """Return the UUID of the GPU that a rank would use, given those that the numbers mean; empty if unknown."""
    if process.local_rank is None:
        return ""
    listed = process.visible
    if listed is not None and process.local_rank >= len(listed) != 1:
        return ""  # env.visible's business
    if listed is None:
        entry = "0" if len(uuids) == 1 else str(process.local_rank)
    else:
        entry = listed[0] if len(listed) == 1 else listed[process.local_rank]
    if entry.isdecimal():
        return uuids.get(int(entry), "")
    return next((uuid for uuid in uuids.values() if uuid.startswith(entry)), entry)  # CUDA takes a beginning
