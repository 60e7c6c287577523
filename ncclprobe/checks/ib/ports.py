"""Ports that are down, slow or closed to us, and the addresses and packet sizes below those of RoCE."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from ncclprobe.checks import IMAGE, NODE
from ncclprobe.checks.ib import (
    LOSSES_GROUP,
    ROCE_GROUP,
    SYSFS,
    Group,
    active,
    distances,
    groups,
    kind,
    listed,
    rdma_job,
    rdma_or_soft_job,
    serving,
    single_node,
    taken,
    typical,
)
from ncclprobe.checks.ib.fixtures import PLAIN, TWO_NODES, device, fabric, gpus, having, interfaces, pci, port, roce
from ncclprobe.expect.tables.machines import named as machine_named
from ncclprobe.facts.infiniband import Fabric, Gid, Port, Rate
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.kernel_log import Event, KernelLog
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.ports import Ipv4Settings, Sysctls
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Blame, Certainty, Finding, fail, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, unlearned
from ncclprobe.nccl.hcas import MAX_HCAS, fast, gbps, parse_selector
from ncclprobe.nccl.paths import Topology

_CAUSES = {
    "Polling": "no cable is connected, or the other end does not respond",
    "Disabled": "the port was switched off",
    "LinkUp": "the link is up, but no subnet manager has configured the port",
}
_TRAINING = ("LinkErrorRecovery", "PortConfigurationTraining", "Phy Test")  # drivers/infiniband/core/sysfs.c
_NO_MANAGER: dict[str, Any] = {"state": "INIT", "physical": "LinkUp"}
UNNAMED = Absent("no text names a machine")
HOURS, SETTLED_S = 12, 600.0
"""How far back a link's history counts, and how long after a boot its going up and down is normal."""


def path(of: Port) -> str:
    """Return the port's folder."""
    return f"{SYSFS}/{of.device}/ports/{of.number}"


@check(
    slows=True,
    bad=lambda: [(fabric(port(0, **_NO_MANAGER)), PLAIN, Launch(), pci(), gpus())],
    good=lambda: [(fabric(), PLAIN, Launch(), pci(), gpus())],
    required=True,
    applies=rdma_job,
)
def state(
    fabric: Fabric, settings: Settings, launch: Launch | Absent, pci: Pci | Absent, gpus: Gpus | Absent
) -> Iterator[Finding]:
    """A port that should carry the GPUs' data is down.

    Right: Every port that should carry the GPUs' data is up.
    Why: NCCL uses only active ports and does not mention the others (src/transport/net_ib/init.cc). The GPUs of a port
    that is down share their neighbours' NICs, and a job with nodes that have fewer NICs than others hangs or is slow.
    Fix: if the port is Polling, reseat or replace the cable, and check the end at the switch. If it is in INIT, start
    the subnet manager, or let it manage this port. To continue without the port, exclude it with NCCL_IB_HCA on every
    node; this hides the loss.
    """
    ports = taken(fabric, settings)
    yield from _unread(ports, "state", [port for port in ports if isinstance(port.state, Absent)])
    shown = len(gpus.all) if isinstance(gpus, Gpus) else 0
    rails = _short_of(ports, fabric, distances(pci, gpus, fabric), shown)
    left_out = any(port.state == "ACTIVE" and port not in ports for port in fabric.ports)  # env.hca names the list
    stranded = not active(ports) and not left_out and isinstance(launch, Launch) and launch.several_nodes
    dark = len(ports) if not shown and {port.state for port in fabric.ports} == {"DOWN"} else 0
    for each in ports:
        if isinstance(each.state, Absent) or (each.state == "ACTIVE" and each.physical not in _TRAINING):
            continue
        tell, message, blame = _down(each, rails.get(each.device), stranded, dark)
        sources = (seen(f"{path(each)}/state", _seen(each)), f"{path(each)}/phys_state")
        yield tell(each.name, message, blame=blame, action="repair", evidence=sources)


def _seen(port: Port) -> str:
    return f"{port.state}/{port.physical}" if isinstance(port.physical, str) else str(port.state)


def _down(port: Port, rail: bool | None, stranded: bool, dark: int) -> tuple[Callable[..., Finding], str, Blame]:
    """Return how bad it is, in what words, and whose. `rail`: GPUs lack this port, certainly or probably; None: no.

    `stranded`: the job goes to other nodes, and no port is active. `dark`: so many ports are there, and none is up,
    and GPUs are not known; 0: otherwise.
    """
    cause = _CAUSES.get(str(port.physical), "the driver's messages in the kernel log may give the reason")
    if port.state == "ACTIVE":
        return warn, f"is active, but its link is in {port.physical}", "link"
    if port.physical == "LinkUp" and port.link_layer == "InfiniBand" and port.state in ("INIT", "ARMED"):
        return fail, f"is {port.state}: {cause}", "fabric"
    if stranded:
        return fail, f"is {_seen(port)}: {cause}. No port is active, so NCCL falls back to sockets", "link"
    if dark:
        which = f"None of the {dark} ports is up" if dark > 1 else "There is no other port"
        return warn, f"is {_seen(port)}: {cause}. {which}", "link"
    if rail is not None:
        others = "its siblings" if rail else "others of its kind"
        return fail if rail else warn, f"is {_seen(port)}: {cause}; {others} are up", "link"
    return note, f"is {_seen(port)}; it is unknown whether it should be up", "link"


def _short_of(ports: Sequence[Port], fabric: Fabric, topology: Topology, gpus: int) -> Mapping[str, bool]:
    """Return the NICs that are down and that GPUs lack, and whether that is certain.

    A board without a port that is up does not serve the GPUs. `gpus`: how many are shown; 0: unknown.
    """
    up = fast(active(ports))
    boards = {kind(fabric, port) for port in up}
    down = [p for p in ports if p.state != "ACTIVE" and not isinstance(p.state, Absent) and kind(fabric, p) in boards]
    working = {port.device for port in up}
    found = groups(topology, sorted({*working, *(port.device for port in down)}))
    near = [group for group in found if group.nics]
    return _missing_by_distance(near, working) if near else _missing_by_count(ports, up, down, fabric, gpus)


def _missing_by_distance(near: Sequence[Group], working: Set[str]) -> dict[str, bool]:
    """Return the nearest NICs of GPUs with fewer working ones than usual; certain if most GPUs have enough."""
    usual = typical([group for group in near if group.share(working)], working)
    short = [group for group in near if group.share(working) < usual]
    certain = 2 * sum(len(group.gpus) for group in short) < sum(len(group.gpus) for group in near)
    return dict.fromkeys({nic for group in short for nic in group.nics} - working, certain)


def _missing_by_count(
    ports: Sequence[Port], up: Sequence[Port], down: Sequence[Port], fabric: Fabric, gpus: int
) -> dict[str, bool]:
    """If distances are unknown (a VM with a flat bus): a board has as many as it has GPUs, and most are up."""
    size, lit = (Counter(kind(fabric, port) for port in which) for which in (ports, up))
    rails = {kind: max(gpus or number, 4) for kind, number in size.items()}  # without GPUs shown: as many as there are
    of = {port.device: kind(fabric, port) for port in down}
    lacking = [p for p in down if lit[k := of[p.device]] < rails[k] <= size[k] < 2 * lit[k]]
    return dict.fromkeys((port.device for port in lacking), False)


def _unread(ports: Sequence[Port], what: str, unread: Sequence[Port]) -> Iterator[Finding]:
    """Yield a note that names the ports nothing is known of. Raises Unlearned if that is all of them."""
    if not unread:
        return
    reasons = {v.why for port in unread for v in (port.state, port.rate, port.gids) if isinstance(v, Absent)}
    why = "; ".join(sorted(reasons))
    if len(unread) == len(ports):
        raise Unlearned(f"no port's {what} could be read: {why}")
    names = listed([port.name for port in unread])
    yield note(names, f"the {what} could not be read: {why}", evidence=SYSFS)


@check(
    slows=True,
    bad=lambda: [(fabric(port(1, Rate(100, 1, "NDR"))), PLAIN, pci(), gpus(), UNNAMED)],
    good=lambda: [(fabric(), PLAIN, pci(), gpus(), UNNAMED)],
    required=True,
    applies=rdma_job,
)
def rate(
    fabric: Fabric,
    settings: Settings,
    pci: Pci | Absent,
    gpus: Gpus | Absent,
    described: NamedMachine | Absent = UNNAMED,
) -> Iterator[Finding]:
    """A port is slower than its siblings or than its machine's NICs, or runs on one lane.

    Right: All ports of a kind run at the same rate.
    Why: NCCL spreads its channels evenly over the NICs, so the slowest port sets the pace of every collective.
    Fix: reseat or replace the cable, and compare both ends with those of a healthy port (ibstat, mlxlink).
    """
    ports = active(taken(fabric, settings))
    yield from _unread(ports or fabric.ports, "rate", [p for p in ports or fabric.ports if isinstance(p.rate, Absent)])
    near = serving(groups(distances(pci, gpus, fabric), [device.name for device in fabric.devices]))
    selector = parse_selector(settings.get("NCCL_IB_HCA") or "", MAX_HCAS)
    named = () if selector.exclude else [entry.prefix for entry in selector.entries]
    for each in ports:
        if not isinstance(each.rate, Rate):
            continue
        siblings = [r for p in ports if kind(fabric, p) == kind(fabric, each) and (r := gbps(p)) is not None]
        best, runs = max(siblings), f"{each.rate.gbps:g} Gb/s ({each.rate.lanes}X {each.rate.generation or 'SDR'})"
        blamed: dict[str, Any] = {"blame": "link", "action": "repair", "evidence": seen(f"{path(each)}/rate", runs)}
        if each.rate.lanes == 1 and each.link_layer == "InfiniBand":
            message = f"runs at {runs} on one lane; InfiniBand cables have four lanes, or two when split"
            yield fail(each.name, message, **blamed)
        elif each.rate.gbps < best and 2 * siblings.count(best) > len(siblings):
            message = (
                f"runs at {runs}, but {siblings.count(best)} of {len(siblings)} ports of its kind at {best:g} Gb/s"
            )
            used = each.device in near or (not near and each.device in named)
            tell = fail if used else note if near else warn
            yield tell(each.name, message, **blamed)
    yield from _all_slow(ports, described)


def _all_slow(ports: Sequence[Port], described: NamedMachine | Absent) -> Iterator[Finding]:
    """Yield that every port is slower than the NICs of the machine that a text names. If the board's maker does not
    decide which NICs it has, that is a warning at most.
    """
    machine = machine_named(described.type) if isinstance(described, NamedMachine) and described.type else None
    rates = {gbps(each) for each in ports}
    if machine is None or not machine.links.nic_gbps or len(rates) != 1 or 2 * len(ports) < (machine.links.nics or 0):
        return
    (runs,) = rates
    usual = machine.links.nic_gbps
    if runs and runs < 0.9 * usual:
        message = (
            f"all {len(ports)} ports run at {runs:g} Gb/s; the NICs of {machine.name} usually run at {usual:g} Gb/s"
        )
        tell = fail if 2 * runs <= usual and "nics" not in machine.links.unverified else warn
        where = seen(f"{path(ports[0])}/rate", f"{runs:g} Gb/s")
        remedy = "compare the cables, the switch ports and the link settings of the cards with this rate (mlxlink)"
        yield tell("NICs", message, blame="link", action="repair", evidence=where, remedy=remedy)


FABRIC_CLOSED = Fabric((device(port(0)), device(port(1), verbs="uverbs1", opens=False)))


@check(
    bad=lambda: [(FABRIC_CLOSED, PLAIN, Launch())],
    good=lambda: [(FABRIC_CLOSED, having("NCCL_IB_HCA", "=mlx5_0"), Launch())],
    applies=rdma_or_soft_job,
)
def perm(fabric: Fabric, settings: Settings, launch: Launch | Absent) -> Iterator[Finding]:
    """This process cannot open an RDMA device.

    Right: This process can open every RDMA device.
    Why: NCCL skips a device that it cannot open, and uses TCP if it can open none. A job on a node with fewer NICs than
    the other nodes hangs (nccl#2428). A container sees all devices below /sys, but can open only those passed to it.
    Fix: give the job the devices: --device=/dev/infiniband with docker, or a device plugin's resource for every NIC in
    Kubernetes. Otherwise check the node's udev rules and the job's device cgroup. If there is no uverbs device file at
    all, load ib_uverbs.
    """
    wanted = {port.device for port in active(taken(fabric, settings))}
    devices = [device for device in fabric.devices if device.name in wanted]
    known = [device for device in devices if isinstance(device.opens, bool)]
    dark = [each.opens for each in devices or fabric.devices if isinstance(each.opens, Absent)]
    if dark and len(dark) == len(devices or fabric.devices):
        raise unlearned(dark)
    some = any(device.opens for device in known)
    several = isinstance(launch, Launch) and launch.several_nodes
    tell = fail if some or several else note if single_node(launch) else warn
    if known and not some:
        names = listed([each.name for each in known])
        nodes = any(isinstance(each.verbs, str) and each.verbs for each in known)
        cause = "this process cannot open any device there" if nodes else "there is no uverbs device"
        message = f"{cause}, so NCCL skips {names} and uses sockets between nodes"
        yield tell("/dev/infiniband", message, **IMAGE, evidence="open /dev/infiniband/uverbs*")
        return
    for each in known:
        if not each.opens:
            node = f"/dev/infiniband/{each.verbs}" if isinstance(each.verbs, str) and each.verbs else ""
            message = f"this process cannot open {node}" if node else "has no device file below /dev/infiniband"
            rest = ", but it can open other devices" if node else ", but others have one"
            evidence = f"open {node}" if node else "/sys/class/infiniband_verbs"
            yield tell(each.name, message + rest, **IMAGE, evidence=evidence)


def downs(*hours_ago: float) -> KernelLog:
    now = 360_000.0
    return KernelLog(
        tuple(Event(now - 3600 * h, "mlx5", "0000:22:00.0", "link-down") for h in sorted(hours_ago, reverse=True)), now
    )


@check(
    group=LOSSES_GROUP,
    slows=True,
    bad=lambda: [(fabric(), PLAIN, downs(0.5, 3, 11))],
    good=lambda: [(fabric(), PLAIN, downs())],
    privilege="root, kernel.dmesg_restrict=0, or membership of adm or systemd-journal",
    applies=rdma_job,
)
def flap_history(fabric: Fabric, settings: Settings, log: KernelLog) -> Iterator[Finding]:
    """A port has gone down repeatedly in the last twelve hours.

    Right: No port has gone down repeatedly in the last twelve hours.
    Why: a flapping link stalls its queue pairs until they time out (NCCL retries for minutes), and the whole job waits
    each time. Older events do not count, so a repaired port is not reported.
    Fix: clean or replace the cable and transceiver. If several ports flap at the same time, suspect their switch.
    """
    owners = {device.pci: device.name for device in fabric.devices if isinstance(device.pci, str)}
    wanted = {port.device for port in taken(fabric, settings)}
    since = max(log.uptime_s - 3600 * HOURS, SETTLED_S)
    recent = [event for event in log.events if event.code == "link-down" and event.at_s >= since]
    for name, times in Counter(owners.get(event.device) for event in recent).items():
        if name in wanted and times >= 3:
            message = f"its link went down {times} times in the last {HOURS} h"
            evidence = seen(log.source or "kernel log", "mlx5_core … Link down")
            yield warn(str(name), message, blame="link", action="repair", evidence=evidence)


_TROUBLES = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
"""Counters of packets that were lost or late (drivers/infiniband/hw/mlx5/counters.c)."""
_MANY, _TIMES_MORE = 10_000, 10
_SINCE = Certainty("low", "since the driver was loaded")


def troubled(number: int, **counted: int) -> Port:
    return port(
        number, counters=(("port_rcv_packets", 10**9),), hw_counters=(*(dict.fromkeys(_TROUBLES, 5) | counted).items(),)
    )


@check(
    group=LOSSES_GROUP,
    slows=True,
    bad=lambda: [(fabric(troubled(0), troubled(1, local_ack_timeout_err=20_000), troubled(2), troubled(3)), PLAIN)],
    good=lambda: [(fabric(*map(troubled, range(4))), PLAIN)],
    applies=rdma_job,
)
def losses(fabric: Fabric, settings: Settings) -> Iterator[Finding]:
    """A port has lost or retransmitted far more packets than its siblings.

    Right: No port has lost or retransmitted far more packets than its siblings.
    Why: RDMA retransmits everything after a lost packet, and NCCL's call waits for it. A bad cable, or a switch port
    with different PFC or ECN settings, affects only its own rail. Adaptive routing reorders packets on all rails, which
    is not loss.
    Fix: check the cable and transceiver, and compare the switch port's PFC and ECN settings and drop counters with
    those of its neighbours.
    """
    ports = active(taken(fabric, settings))
    for name in _TROUBLES:
        shares = {each.name: share for each in ports if (share := _share(each, name)) is not None}
        for each in ports:
            others = [share for other, share in shares.items() if other != each.name]
            count = 0 if isinstance(each.hw_counters, Absent) else dict(each.hw_counters).get(name, 0)
            if len(others) >= 2 and count >= _MANY and shares.get(each.name, 0.0) > _TIMES_MORE * max(others):
                message = f"{name} is {count}, more than {_TIMES_MORE} times the share of any other port"
                evidence = seen(f"{path(each)}/hw_counters/{name}", str(count))
                yield warn(each.name, message, blame="link", action="retest", confidence=_SINCE, evidence=evidence)


def _share(port: Port, name: str) -> float | None:
    """Return a counter's share of the packets received; None if either is unknown, or hardly any were received."""
    if isinstance(port.counters, Absent) or isinstance(port.hw_counters, Absent):
        return None
    count, packets = dict(port.hw_counters).get(name), dict(port.counters).get("port_rcv_packets", 0)
    return count / packets if count is not None and packets >= _MANY else None


_HEADERS = 96
"""Bytes that RoCE takes of an interface's MTU (iboe_get_mtu in Linux, include/rdma/ib_addr.h)."""

_SIZES = (4096, 2048, 1024, 512, 256)  # enum ib_mtu
_NO_SYSCTL = Absent("not read")
FLUX = Ipv4Settings(0, 0)


def _rails(fabric: Fabric, settings: Settings) -> tuple[Port, ...]:
    """Return the Ethernet ports that are there for the GPUs: no slow ones, none beside active InfiniBand ports."""
    ports = active(taken(fabric, settings))
    infiniband = any(port.link_layer == "InfiniBand" for port in ports)
    return () if infiniband else tuple(port for port in fast(ports) if port.link_layer == "Ethernet")


def _interface(port: Port, found: Interfaces) -> Interface | None:
    """Return the interface that the port's GIDs belong to: that of its bond, if it is a member of one."""
    table = port.gids if not isinstance(port.gids, Absent) else ()
    names = {entry.netdev for entry in table if entry.netdev}
    return next((interface for interface in found.all if interface.name in names), None)


@check(
    group=ROCE_GROUP,
    bad=lambda: [(fabric(roce(0, "10.0.0.5"), roce(1, ""), count=0), PLAIN, TWO_NODES)],
    good=lambda: [(fabric(roce(0, "10.0.0.5"), count=0), PLAIN, TWO_NODES)],
    required=True,
    applies=rdma_job,
)
def roce_v2(fabric: Fabric, settings: Settings, launch: Launch | Absent) -> Iterator[Finding]:
    """An Ethernet port has no routable RoCE v2 address.

    Right: Every Ethernet port in use has a routable RoCE v2 address.
    Why: NCCL looks for a RoCE v2 GID with an IPv4 address. If there is none, it uses GID 0, which is link-local and
    RoCE v1 (src/transport/net_ib/connect.cc). Queue pairs then fail with "ibv_modify_qp failed with error 110"
    (nccl#426, #769).
    Fix: give the port's interface an IP address. NCCL_IB_GID_INDEX cannot select a GID that does not exist.
    """
    ports = [port for port in active(taken(fabric, settings)) if port.link_layer == "Ethernet"]
    rails = _rails(fabric, settings)
    verdicts = {port.name: _routable(port.gids) for port in ports}
    if rails and all(verdicts[port.name] is None for port in rails):
        tables = [port.gids for port in rails if isinstance(port.gids, Absent)]
        raise unlearned(tables or [Absent("the GID tables, or the types of their entries, could not be read")])
    tell = fail if isinstance(launch, Launch) and launch.several_nodes else warn
    for each in ports:
        if verdicts[each.name]:
            continue
        sources = {"evidence": (f"{path(each)}/gids", f"{path(each)}/gid_attrs/types")}
        if verdicts[each.name] is None:
            yield note(each.name, "its GIDs or their types could not be read", **sources)
        elif each not in rails or single_node(launch):
            yield note(each.name, "has no routable RoCE v2 GID, and it is unknown whether it needs one", **sources)
        else:
            message = "has only link-local RoCE v2 GIDs: its interface has no IP address"
            yield tell(each.name, message, **NODE, **sources)


def _routable(table: Sequence[Gid] | Absent) -> bool | None:
    """Return whether a GID is RoCE v2 and not link-local; None if the table, or its types, are unknown."""
    if isinstance(table, Absent):
        return None
    kinds = {entry.type for entry in table if not entry.link_local}
    return True if "RoCE v2" in kinds else None if None in kinds else False


def routed(*found: Route) -> Routes:
    return Routes(found, ())


@check(
    group=ROCE_GROUP,
    slows=True,
    bad=lambda: [(fabric(roce(0, "10.0.0.5"), count=0), PLAIN, interfaces(1500), routed())],
    good=lambda: [(fabric(roce(0, "10.0.0.5"), count=0), PLAIN, interfaces(1500), routed(Route("0.0.0.0/0", "eth0")))],
    applies=rdma_job,
)
def roce_mtu(fabric: Fabric, settings: Settings, found: Interfaces, routes: Routes | Absent) -> Iterator[Finding]:
    """An interface's MTU is too small for 4096-byte RoCE packets.

    Right: Every RoCE interface's MTU is large enough for 4096-byte packets.
    Why: RoCE uses the largest power of two that fits into the interface's MTU as its packet size. With an MTU of 1500
    that is 1024 bytes, which needs four times as many headers and as much work as 4096. NCCL uses the smaller size of
    the two ends, so one such port also slows its peers.
    Fix: run `ip link set dev INTERFACE mtu 9000` (4200 is enough) on all nodes, and set the same MTU on the switches
    between them.
    """
    default = () if isinstance(routes, Absent) else routes.default_interfaces
    rails = [port for port in _rails(fabric, settings) if (gbps(port) or 0) >= 100]
    owners = {port.name: _interface(port, found) for port in rails}
    if rails and not any(owners.values()):
        raise Unlearned("the ports' interfaces are not visible here: they may be in another network namespace")
    sizes = {name: _packet(owner.mtu) for name, owner in owners.items() if owner and owner.mtu}
    for each in rails:
        owner, size = owners[each.name], sizes.get(each.name, 0)
        if owner is None:
            yield note(each.name, "its interface is not visible here", evidence=f"{path(each)}/gid_attrs/ndevs")
        elif size < 4096:
            shorter = size < max(sizes.values())
            message = f"{owner.name} has MTU {owner.mtu}, so RoCE packets have {size} bytes"
            more = f", but {max(sizes.values())} on other ports" if shorter else ""
            managed = owner.name in default and not shorter
            tell = note if managed or (size == 2048 and not shorter) else warn
            evidence = (f"/sys/class/net/{owner.name}/mtu", f"RoCE headers take {_HEADERS} bytes of it")
            yield tell(each.name, message + more, **NODE, evidence=evidence)


def _packet(mtu: int) -> int:
    """Return the largest packet of RoCE that fits an interface's MTU, 0 if none does."""
    return next((size for size in _SIZES if size + _HEADERS <= mtu), 0)


def sysctls_of(**found: Ipv4Settings) -> Sysctls:
    return Sysctls(_NO_SYSCTL, _NO_SYSCTL, found)


SAME = interfaces(9000, 9000, prefix="10.0.0.{}")
BOTH = fabric(roce(0, "10.0.0.0"), roce(1, "10.0.0.1"), count=0)


@check(
    group=ROCE_GROUP,
    slows=True,
    bad=lambda: [(BOTH, PLAIN, SAME, routed(), sysctls_of(eth0=FLUX, eth1=FLUX))],
    good=lambda: [(fabric(*BOTH.ports, count=4), PLAIN, SAME, routed(), sysctls_of(eth0=FLUX, eth1=FLUX))],
    applies=rdma_job,
)
def same_subnet(
    fabric: Fabric, settings: Settings, found: Interfaces, routes: Routes | Absent, sysctls: Sysctls | Absent
) -> Iterator[Finding]:
    """Several RoCE interfaces share a subnet, and no rule separates their traffic.

    Right: Each RoCE interface has its own subnet, or rules separate their traffic.
    Why: Linux answers ARP for an address on any interface and sends over the first matching route. Packets for one NIC
    then arrive at or leave through another (nccl#1580), where RDMA does not work.
    Fix: give each NIC its own subnet, or set net.ipv4.conf.INTERFACE.arp_ignore=1 and arp_announce=2 for each, or add a
    routing rule for each address (ip rule).
    """
    shared: dict[str, list[str]] = defaultdict(list)
    for each in _rails(fabric, settings):
        owner = _interface(each, found)
        for subnet in owner.subnets if owner else ():
            if owner and owner.name not in shared[subnet]:
                shared[subnet].append(owner.name)
    for subnet, names in shared.items():
        if len(names) < 2:
            continue
        by_rule = None if isinstance(routes, Absent) or isinstance(routes.rules, Absent) else routes.policy
        loose = [name for name in names if _answers_for_others(sysctls, name)]
        if by_rule or loose == []:
            continue
        evidence = (f"arp_ignore and arp_announce of {listed(loose)}", "ip rule")
        message = f"are all in {subnet} without arp_ignore=1 and arp_announce=2"
        doubt = "; it is unknown whether there are routing rules" if by_rule is None else " or routing rules"
        yield warn(listed(names), message + doubt, **NODE, evidence=evidence)


def _answers_for_others(sysctls: Sysctls | Absent, name: str) -> bool:
    """Return whether the interface answers ARP for others' addresses, or announces them; not known: it does not."""
    kept = None if isinstance(sysctls, Absent) else sysctls.interfaces.get(name)
    if kept is None:
        return False
    return not (_reaches(kept.arp_ignore, 1) and _reaches(kept.arp_announce, 2))


def _reaches(value: int | Absent, least: int) -> bool:
    return isinstance(value, Absent) or value >= least
