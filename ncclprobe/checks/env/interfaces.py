"""Which interfaces NCCL's bootstrap and sockets take, and gloo's, and whether these lead to the other nodes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from ncclprobe.checks.env import (
    IDENTITY_GROUP,
    IFNAME_GROUP,
    as_evidence,
    evidence,
    jobs_fail,
    jobs_note,
    jobs_warn,
    loaded,
)
from ncclprobe.checks.env.fixtures import (
    DOCKER_HOST,
    NO_NCCL,
    PLAIN,
    PLAIN_HOST,
    TWO_NETS,
    TWO_NODES,
    having,
    hcas,
    over,
    setting,
)
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import CommIdHost, comm_id_host
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Evidence, Finding, fail, note, seen, warn
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job, unlearned
from ncclprobe.nccl.gloo import Device, interface_address, named
from ncclprobe.nccl.hcas import MAX_INTERFACES, parse_selector
from ncclprobe.nccl.interfaces import Choice, find_by, same_subnet

UNSEEN = Absent("not looked at")
_OVERLAY = r"(flannel|tailscale|wg|cilium_|weave|tunl|vxlan)[\w.]*"
"""Names of networks laid over others: they reach other nodes, at a fraction of the rate."""
_INWARD = r"lo|docker\d{0,3}|virbr\d{0,3}|lxcbr\d{0,3}|cni0"
"""Names of interfaces that reach no other node, whatever their addresses are."""
_USES = ("the interface that NCCL's bootstrap uses", "one of NCCL's socket devices")


@applies
def ifname_set(settings: Settings) -> bool:
    """if NCCL_SOCKET_IFNAME is set."""
    return bool(settings.get("NCCL_SOCKET_IFNAME"))


@applies
def others_named(settings: Settings) -> bool:
    """if a variable of UCX, NVSHMEM or Open MPI names devices."""
    return any(settings.get(name) for name in (*_OF_OTHERS, _NVSHMEM))


_OF_OTHERS = {
    "UCX_NET_DEVICES": ("ports", "interfaces", "all"),
    "NVSHMEM_HCA_LIST": ("ports", "devices"),
    "OMPI_MCA_btl_openib_if_include": ("ports", "devices"),
    "HCOLL_MAIN_IB": ("ports", "devices"),
    "OMPI_MCA_btl_tcp_if_include": ("interfaces",),
    "OMPI_MCA_oob_tcp_if_include": ("interfaces",),
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": ("interfaces", "beginnings"),
    "TP_SOCKET_IFNAME": ("interfaces",),
}
"""Variables that name devices, and what each takes: UCX a port (``mlx5_0:1``) and not its device."""
_NVSHMEM = "NVSHMEM_REMOTE_TRANSPORT"
_ANY_NAME = "*?[^"
"""Characters of patterns and lists of what is left out, which are not names."""


@check(
    group=IFNAME_GROUP,
    bad=lambda: [(setting("UCX_NET_DEVICES", "mlx5_20:1"), PLAIN_HOST, hcas(8))],
    good=lambda: [(having(UCX_NET_DEVICES="mlx5_0:1,eth0", OMPI_MCA_btl_tcp_if_include="eth0"), PLAIN_HOST, hcas(8))],
    applies=others_named,
)
def other_libraries(
    settings: Settings, interfaces: Interfaces | Absent, fabric: Fabric | Absent, launch: Launch | Absent = UNSEEN
) -> Iterator[Finding]:
    """A variable of UCX, NVSHMEM, Open MPI or TensorPipe names a device that this node does not have.

    Right: This node has the devices that variables of UCX, NVSHMEM, Open MPI and TensorPipe name.
    Why: UCX names a device with its port (mlx5_0:1). If UCX does not find the device, it fails or uses TCP, and so do
    NIXL and Open MPI on top of it. NVSHMEM then finds no NIC, Open MPI's TCP transport ends the job, and torch's RPC
    does not start. NCCL reads none of these variables.
    Fix: name devices of this node (`ucx_info -d`, `ip link`), or unset the variable.
    """
    if settings.get(_NVSHMEM) == "none" and isinstance(launch, Launch) and launch.several_nodes:
        message = "is none, so NVSHMEM reaches no other node"
        yield jobs_fail(_NVSHMEM, message, evidence(settings, _NVSHMEM))
    here = {"all": {"all"}}
    if not isinstance(fabric, Absent):
        here |= {"ports": {port.name for port in fabric.ports}, "devices": {port.device for port in fabric.ports}}
    if not isinstance(interfaces, Absent):
        here["interfaces"] = {*interfaces.by_name}
    told, unseen_names = False, False
    unseen = [fact for fact in (interfaces, fabric) if isinstance(fact, Absent)]
    for name, kinds in _OF_OTHERS.items():
        known = {word for kind in kinds for word in here.get(kind, ())}
        listed = [word.strip() for word in (settings.get(name) or "").split(",")]
        missing = [word for word in listed if word and word not in known and not {*word} & {*_ANY_NAME}]
        if "beginnings" in kinds:
            missing = [word for word in missing if not any(each.startswith(word) for each in known)]
        missing = [word for word in missing if not _network_matches(word, interfaces)]
        shown = [word for word in missing if not unseen or _would_show(word, kinds, here)]
        unseen_names = unseen_names or bool(missing and not shown)
        if shown:
            told = True
            port = f"; to name a port, write {shown[0]}:1" if shown[0] in here.get("devices", ()) else ""
            message = f"names {', '.join(shown[:3])}, which this node does not have{port}"
            yield jobs_warn(name, message, evidence(settings, name))
    if unseen_names and not told and settings.get(_NVSHMEM) != "none":
        raise Unlearned(unseen[0].why)


_OF_DEVICES = r"(?:mlx\d|bnxt_re|irdma|rocep?|ibp|hfi1|rdmap|efa)[\w]*"


def _would_show(word: str, kinds: Sequence[str], here: Mapping[str, set[str]]) -> bool:
    """Return whether what is known of the node would hold `word`: names of RDMA devices and of interfaces differ."""
    of_device = bool(re.fullmatch(_OF_DEVICES, word.partition(":")[0]))
    return ("ports" in here and "ports" in kinds) if of_device else ("interfaces" in here and "interfaces" in kinds)


def _network_matches(word: str, interfaces: Interfaces | Absent) -> bool:
    """Return whether `word` is a network, as 10.0.0.0/16 of Open MPI, in which an interface has an address."""
    try:
        network = ip_network(word, strict=False)
    except ValueError:
        return False
    own = () if isinstance(interfaces, Absent) else interfaces.addresses
    return "/" in word and any(ip_address(each.address.partition("%")[0]) in network for each in own)


@applies
def gloo_ifname_set(environment: Environment) -> bool:
    """if GLOO_SOCKET_IFNAME is set."""
    return len(environment.get("GLOO_SOCKET_IFNAME") or "") > 1


@applies
def in_several_nodes(launch: Launch, job: Job) -> bool:
    """in jobs of several nodes on GPUs."""
    return launch.several_nodes and job.backend == "nccl"


def chosen(settings: Settings, interfaces: Interfaces, software: Software | Absent) -> Choice:
    """Return the interfaces NCCL would use, the bootstrap's first."""
    return find_by(interfaces.addresses, settings, loaded(software))


@check(
    group=IFNAME_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_SOCKET_IFNAME", "lo"), PLAIN_HOST, TWO_NODES, NO_NCCL, hcas(8))],
    good=lambda: [(setting("NCCL_SOCKET_IFNAME", "eth"), PLAIN_HOST, TWO_NODES, NO_NCCL, hcas(8))],
    required=True,
    applies=ifname_set,
)
def ifname_match(
    settings: Settings,
    interfaces: Interfaces | Absent,
    launch: Launch | Absent,
    software: Software | Absent,
    fabric: Fabric | Absent,
) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME matches no interface that can reach the other nodes.

    Right: NCCL_SOCKET_IFNAME matches an interface that can reach the other nodes.
    Why: if the variable is set, NCCL has no fallback. Without a match it exits with "Bootstrap : no socket interface
    found" (src/misc/socket.cc:193, src/os/linux.cc:389). Over lo it cannot reach any other node.
    Fix: name an interface that is up and has an address, or exclude the others with one leading ^.
    """
    wanted = settings.get("NCCL_SOCKET_IFNAME") or ""
    origin = as_evidence(settings.effective["NCCL_SOCKET_IFNAME"])
    if len(wanted) == 1:
        yield note(
            "NCCL_SOCKET_IFNAME", f"{wanted!r} is a single character, which NCCL treats as not set", evidence=origin
        )
        return
    if isinstance(interfaces, Absent):
        if not all(re.fullmatch(_INWARD, name) for name in wanted.removeprefix("=").split(",")):
            raise unlearned(fact for fact in (interfaces, launch) if isinstance(fact, Absent))
        if not (isinstance(launch, Launch) and launch.nnodes == 1):
            words = "is the loopback interface" if wanted.removeprefix("=") == "lo" else "does not lead to other nodes"
            message = f"{wanted!r} {words}. A job on several nodes cannot start"
            several = isinstance(launch, Launch) and launch.several_nodes
            yield (jobs_fail if several else jobs_warn)("NCCL_SOCKET_IFNAME", message, origin)
        return
    found = chosen(settings, interfaces, software).interfaces
    usable = [i.name for i in interfaces.all if i.running and i.addresses and not i.loopback]
    instead = f"this node has {', '.join(usable) or 'no interface that is up and has an address'}"
    blamed: dict[str, Any] = {"blame": "job", "action": "fix-job", "evidence": origin}
    if not found:
        down = isinstance(interfaces.by_name.get(wanted.removeprefix("=")), Interface)
        why = "is down or has no address" if down else "matches no interface"
        yield fail("NCCL_SOCKET_IFNAME", f"{wanted!r} {why}; {instead}", **blamed)
    elif all(interfaces.by_name[c.name].loopback for c in found):
        message = f"{wanted!r} selects only loopback; {instead}"
        if isinstance(launch, Launch) and launch.several_nodes:
            yield fail("NCCL_SOCKET_IFNAME", message, **blamed)
        elif isinstance(launch, Absent) or (
            launch.nnodes is None and isinstance(fabric, Fabric) and fabric.ports and usable
        ):
            yield warn("NCCL_SOCKET_IFNAME", f"{message}. A job on several nodes cannot start", **blamed)


@applies
def comm_id_set(settings: Settings) -> bool:
    """if NCCL_COMM_ID is set."""
    return "NCCL_COMM_ID" in settings.effective


@check(
    group=IDENTITY_GROUP,
    bad=lambda: [(setting("NCCL_COMM_ID", ""), PLAIN_HOST, NO_NCCL, CommIdHost())],
    good=lambda: [(setting("NCCL_COMM_ID", "node1:9999"), PLAIN_HOST, NO_NCCL, CommIdHost("node1", ("10.0.0.5",)))],
    required=True,
    applies=comm_id_set,
)
def comm_id(
    settings: Settings,
    interfaces: Interfaces | Absent,
    software: Software | Absent,
    named_host: CommIdHost | Absent,
    launch: Launch | Absent = UNSEEN,
) -> Iterator[Finding]:
    """NCCL_COMM_ID is not an address that NCCL can start from.

    Right: NCCL_COMM_ID is an address in the subnet of one of this node's interfaces.
    Why: if the variable is set, even to an empty value, NCCL's bootstrap uses it as the root's address. It refuses to
    start if the value is not an address, if the name does not resolve ("Invalid NCCL_COMM_ID", src/bootstrap.cc
    bootstrapNetInit), or if no interface is in its subnet ("No usable listening interface found").
    Fix: with torch, unset it: MASTER_ADDR and torch's store replace it. Without torch, set an address and port, such as
    NCCL_COMM_ID=10.0.0.1:9999.
    """
    entry = settings.effective["NCCL_COMM_ID"]
    if entry.value is None:
        raise Unlearned("the value of NCCL_COMM_ID is not recorded")
    try:
        host = comm_id_host(entry.value)
    except ValueError as refusal:
        yield jobs_fail("NCCL_COMM_ID", f"is {entry.value!r}, which NCCL refuses: {refusal}", as_evidence(entry))
        return
    try:
        address = str(ip_address(host))
    except ValueError:
        if isinstance(named_host, Absent) or named_host.name != host:
            why = named_host.why if isinstance(named_host, Absent) else "the resolver was not asked"
            raise Unlearned(f"it is unknown if {host} resolves: {why}") from None
        if not named_host.addresses:
            message = f"is {entry.value!r}, but this host name does not resolve here, so NCCL does not start"
            shown = (as_evidence(entry), seen("getaddrinfo", named_host.failure))
            yield jobs_fail("NCCL_COMM_ID", message, shown)
            return
        address = named_host.addresses[0]
    if ip_address(address).is_loopback and isinstance(launch, Launch) and launch.several_nodes:
        message = f"is {entry.value}, which no other node can reach ({launch.nnodes or 'several'} nodes in the job)"
        yield jobs_fail("NCCL_COMM_ID", message, as_evidence(entry))
        return
    if isinstance(interfaces, Absent):
        raise Unlearned(interfaces.why, interfaces.refused)
    version = loaded(software)
    if not any(same_subnet(each, address, version) for each in interfaces.addresses):
        message = f"is {entry.value}, but no interface of this node is in that subnet, so NCCL does not start"
        yield jobs_fail("NCCL_COMM_ID", message, as_evidence(entry))


@check(
    group=IFNAME_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_SOCKET_IFNAME", "cni"), DOCKER_HOST, over("IB"), NO_NCCL)],
    good=lambda: [(PLAIN, DOCKER_HOST, over("IB"), NO_NCCL)],
    required=True,
    requires="env.ifname/ifname-match",
    applies=in_several_nodes,
)
def ifname_virtual(
    settings: Settings, interfaces: Interfaces, choices: Choices, software: Software | Absent
) -> Iterator[Finding]:
    """NCCL uses an interface that does not reach the other nodes, or reaches them only slowly.

    Right: NCCL uses only interfaces that reach other nodes for its sockets.
    Why: NCCL excludes only docker*, lo and virbr*, and listens on the first remaining interface. Container bridges
    (cni0, br-…) have the same addresses on every node, so ranks connect to themselves (horovod#310,
    pytorch-operator#332). A USB network to the management board reaches no other node. A list of your own replaces
    NCCL's: ^docker0 allows lo, which comes first (src/os/linux.cc:411 excludes only ::1). The bootstrap uses only the
    first interface (src/bootstrap.cc:124); sockets that carry data use all of them.
    Fix: set NCCL_SOCKET_IFNAME==eth0 with the interface's full name, or set NCCL_SOCKET_IFNAME=^docker,lo,cni,br-,veth
    and add every other virtual interface.
    """
    names = list(dict.fromkeys(i.name for i in chosen(settings, interfaces, software).interfaces))
    shown = evidence(settings, "NCCL_SOCKET_IFNAME") or ("NCCL_SOCKET_IFNAME is not set", "/sys/class/net")
    overlays = {name for name in names if re.fullmatch(_OVERLAY, name)}
    outward = [name for name in names if interfaces.by_name[name].leads_out and name not in overlays]
    remedy = f"NCCL_SOCKET_IFNAME=={outward[0]}" if outward else ""
    for position, name in enumerate(names):
        here = interfaces.by_name[name].loopback or interfaces.by_name[name].ends_here
        if not here and name not in overlays:
            continue
        tell = jobs_fail if here else jobs_warn
        if position and not choices.over_sockets:  # another network's data goes elsewhere
            tell = jobs_note
        reach = "does not lead to other nodes" if here else "is an overlay network"
        yield tell(name, f"is {_USES[position > 0]}, but it {reach}", shown, remedy)


@check(
    group=IFNAME_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_SOCKET_IFNAME", "eth"), TWO_NETS, TWO_NODES, NO_NCCL)],
    good=lambda: [(setting("NCCL_SOCKET_IFNAME", "=eth1"), TWO_NETS, TWO_NODES, NO_NCCL)],
    requires="env.ifname/ifname-match",
    applies=ifname_set,
)
def ifname_ambiguous(
    settings: Settings, interfaces: Interfaces, launch: Launch | Absent, software: Software | Absent
) -> Iterator[Finding]:
    """An entry of NCCL_SOCKET_IFNAME also matches interfaces that it does not name.

    Right: Every entry of NCCL_SOCKET_IFNAME matches only the interface that it names.
    Why: unless the list starts with =, an entry matches every name that begins with it. eth1 also selects eth10, and
    eth selects interfaces in different networks. The bootstrap uses the first match, and sockets use all matches
    (nccl#1580).
    Fix: write = before the first name, and give the full name of every interface.
    """
    selector = parse_selector(settings.get("NCCL_SOCKET_IFNAME") or "", MAX_INTERFACES)
    meant = [e.prefix.lstrip("^=") for e in selector.entries if selector.exclude or e.prefix[:1] != "^"]
    head = "^" * selector.exclude + "=" * selector.exact
    remedy = f"NCCL_SOCKET_IFNAME={head}{','.join(meant)}" if meant else ""
    for entry in selector.entries:
        if entry.prefix[:1] in ("^", "="):
            message = (
                f"{entry.prefix!r} is read as a name: {entry.prefix[0]} is special only as the first character of the "
                "list"
            )
            yield jobs_warn("NCCL_SOCKET_IFNAME", message, evidence(settings, "NCCL_SOCKET_IFNAME"), remedy)
    if selector.exact or selector.exclude:
        return
    names = list(dict.fromkeys(i.name for i in chosen(settings, interfaces, software).interfaces))
    by_name = interfaces.by_name
    shown = evidence(settings, "NCCL_SOCKET_IFNAME")
    listed = {entry.prefix for entry in selector.entries}
    for entry in selector.entries:
        caught = [
            name for name in names if name.startswith(entry.prefix) and (name not in listed or name == entry.prefix)
        ]
        others = [name for name in caught if name != entry.prefix]
        if entry.prefix in by_name and others:
            message = f"{entry.prefix!r} also selects {', '.join(others)}"
            yield jobs_warn("NCCL_SOCKET_IFNAME", message, shown, f"NCCL_SOCKET_IFNAME=={entry.prefix}")
        elif len(_networks([by_name[name] for name in caught])) > 1:
            several = isinstance(launch, Launch) and launch.several_nodes
            message = f"{entry.prefix!r} selects {', '.join(caught)}, which are in different networks"
            yield (jobs_warn if several else jobs_note)("NCCL_SOCKET_IFNAME", message, shown)


def _leads_nowhere(interface: Interface) -> bool:
    """Return whether an interface that is not loopback reaches no other node: a bridge of containers, or no carrier."""
    return not interface.loopback and (interface.ends_here or not interface.running)


def _networks(interfaces: Sequence[Interface]) -> set[str]:
    """Return the IPv4 networks of the interfaces' first addresses."""
    first = [next((a for a in i.addresses if a.family == "inet" and a.netmask), None) for i in interfaces]
    return {str(ip_interface(f"{a.address}/{a.netmask}").network) for a in first if a}


@check(
    group=IFNAME_GROUP,
    bad=lambda: [
        (
            Environment({"GLOO_SOCKET_IFNAME": "eth1"}),
            having(NCCL_SOCKET_IFNAME="=eth0", GLOO_SOCKET_IFNAME="eth1"),
            TWO_NETS,
            TWO_NODES,
            Job(),
            NO_NCCL,
        )
    ],
    good=lambda: [
        (
            Environment({"GLOO_SOCKET_IFNAME": "eth0"}),
            setting("NCCL_SOCKET_IFNAME", "eth"),
            TWO_NETS,
            TWO_NODES,
            Job(),
            NO_NCCL,
        )
    ],
    applies=gloo_ifname_set,
)
def gloo_mismatch(
    environment: Environment,
    settings: Settings,
    interfaces: Interfaces | Absent,
    launch: Launch | Absent,
    job: Job,
    software: Software | Absent,
) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME names no interface on this node, or one that is not in NCCL's network.

    Right: GLOO_SOCKET_IFNAME names interfaces on this node, in NCCL's network.
    Why: gloo expects full names, separated by commas. It does not support NCCL's ^, = and prefixes: it looks for
    interfaces with these names, and creating a gloo group fails (gloo transport/tcp/device.cc).
    Fix: give the full name of an interface, the same one that NCCL_SOCKET_IFNAME selects.
    """
    shown = seen("environment", f"GLOO_SOCKET_IFNAME={environment.get('GLOO_SOCKET_IFNAME')}")
    names = named(environment.get("GLOO_SOCKET_IFNAME") or "")
    if isinstance(interfaces, Absent):
        yield from _name_findings(names, interfaces, launch, shown)
        return
    chosen_by_name = {name: interface_address(interfaces, name) for name in names}
    unusable = [name for name, found in chosen_by_name.items() if not isinstance(found, Device)]
    tell, whose = (jobs_fail, "a gloo group") if job.backend == "gloo" else (jobs_warn, "gloo groups of this job")
    if unusable:
        usable = sorted({a.name for a in interfaces.addresses if "up" in interfaces.by_name[a.name].flags})
        wrong = ", ".join(repr(name) for name in unusable)
        message = (
            f"{wrong} is not an interface of this node that is up and has an address; this node has {', '.join(usable)}"
        )
        yield jobs_fail("GLOO_SOCKET_IFNAME", f"{message}, so {whose} cannot be created", shown)
    inward = [each for each in map(interfaces.by_name.get, names) if each and _leads_nowhere(each)]
    if inward and not unusable and not (isinstance(launch, Launch) and launch.nnodes == 1):
        message = ", ".join(f"{each.name} {'is down' if not each.running else 'ends here'}" for each in inward)
        yield tell("GLOO_SOCKET_IFNAME", f"{message}: other nodes cannot reach {whose} through it", shown)
        return
    several = isinstance(launch, Launch) and launch.several_nodes
    if several and all(isinstance(found, Device) and found.loopback for found in chosen_by_name.values()):
        message = "is the loopback interface, which no other node can reach (see launch.gloo-group)"
        yield jobs_warn("GLOO_SOCKET_IFNAME", message, shown)
    elif several and not unusable and settings.get("NCCL_SOCKET_IFNAME"):
        ours = {i.name for i in chosen(settings, interfaces, software).interfaces}
        if ours and not ours & set(names):
            message = f"selects {', '.join(names)}, but NCCL_SOCKET_IFNAME selects {', '.join(sorted(ours))}"
            both = (shown, *evidence(settings, "NCCL_SOCKET_IFNAME"))
            yield jobs_warn("GLOO_SOCKET_IFNAME", message, both)


def _name_findings(
    names: Sequence[str], interfaces: Absent, launch: Launch | Absent, shown: Evidence
) -> Iterator[Finding]:
    """Yield what is wrong with names alone. Raises Unlearned if nothing is."""
    signed = [name for name in names if name.startswith(("^", "="))]
    alone = isinstance(launch, Launch) and launch.nnodes == 1
    if signed:
        message = f"{signed[0]!r} is read as a name: gloo does not support ^, = or prefixes of names"
        yield jobs_fail("GLOO_SOCKET_IFNAME", message, shown)
    elif not alone and names and all(re.fullmatch(_INWARD, name) for name in names):
        message = f"{', '.join(names)} does not lead to other nodes, so gloo groups of several nodes cannot be created"
        yield jobs_warn("GLOO_SOCKET_IFNAME", message, shown)
    else:
        raise Unlearned(interfaces.why, interfaces.refused)
