"""The HCAs that NCCL takes, the GID index on each RoCE port, and whether these are the intended ones."""

from collections import Counter
from collections.abc import Iterator

from ncclprobe.checks.env import GID_GROUP, HCA_GROUP, evidence, jobs_fail, jobs_note, jobs_warn, loaded, written
from ncclprobe.checks.env.fixtures import (
    ETH0,
    NO_NCCL,
    ONE_NODE,
    PLAIN,
    TWO_NODES,
    USUAL,
    fabric,
    gpus,
    hcas,
    port,
    roce,
    setting,
)
from ncclprobe.facts.infiniband import Fabric, Port, Rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Sources, fail, note
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped, replace
from ncclprobe.nccl.hcas import (
    MAX_HCAS,
    Pick,
    Selection,
    Selector,
    Wish,
    advised,
    as_listed,
    caught_besides,
    parse_selector,
    pick,
    roce_version,
    select,
    select_by,
    wish,
)
from ncclprobe.nccl.networks import efa_ports
from ncclprobe.nccl.values import read_setting


def downed(device: str, number: int = 1) -> Port:
    return port(device, number, state="DOWN", physical="Polling")


TEN = ("mlx5_1", *(f"mlx5_{n}" for n in (0, 10, 11)))
MANAGED = fabric(port("mlx5_0"), port("mlx5_1", rate=Rate(25, 1, "EDR"), link_layer="Ethernet"))
PARTITIONED = Fabric(
    tuple(
        replace(device, ports=tuple(replace(port, pkeys=((0, 0xFFFF), (1, 0x8001))) for port in device.ports))
        for device in hcas(2).devices
    )
)
UNSAID = Absent("no text describes it")
_NAME = 0x7FFF
"""The bits of a P_Key that name the partition."""
_CUT = "the pasted texts do not show every NIC"
BY_ETH0 = Routes((Route("0.0.0.0/0", "eth0", "10.0.0.1"),), ())


@applies
def pkey_set(job: Job, settings: Settings) -> bool:
    """to jobs on GPUs if NCCL_IB_PKEY is set and NCCL's own InfiniBand transport is in use."""
    return job.backend == "nccl" and bool(settings.get("NCCL_IB_PKEY")) and not over_sockets(settings)


@applies
def hca_list(job: Job, settings: Settings) -> bool:
    """to jobs on GPUs if NCCL_IB_HCA is set and NCCL's own InfiniBand transport is in use."""
    return job.backend == "nccl" and bool(settings.get("NCCL_IB_HCA")) and not over_sockets(settings)


def over_sockets(settings: Settings) -> bool:
    """Return whether settings keep NCCL off its own InfiniBand transport."""
    other = (settings.get("NCCL_NET") or "ib").lower() != "ib"
    return other or read_setting(settings, "NCCL_IB_DISABLE", 0) != 0


def selection(fabric: Fabric, settings: Settings, software: Software | Absent) -> Selection:
    """Return the ports that NCCL takes here."""
    return select_by(fabric, settings, loaded(software))


@check(
    group=HCA_GROUP,
    bad=lambda: [(setting("NCCL_IB_PKEY", "0x8001"), PARTITIONED, NO_NCCL)],
    good=lambda: [(setting("NCCL_IB_PKEY", "1"), PARTITIONED, NO_NCCL)],
    applies=pkey_set,
)
def pkey(settings: Settings, fabric: Fabric, software: Software | Absent) -> Iterator[Finding]:
    """NCCL_IB_PKEY is not a valid index in the ports' partition tables.

    Right: NCCL_IB_PKEY is a valid index in every port's partition table.
    Why: NCCL expects the index of a P_Key, not the key itself. If there is no key at that index, no connection is
    possible and ibv_modify_qp fails with "Invalid argument" (src/transport/net_ib/connect.cc:17).
    Fix: set the index of the job's key in /sys/class/infiniband/*/ports/*/pkeys, or unset the variable. Since NCCL
    2.31.2 you can set the key itself with NCCL_IB_PKEY_VALUE.
    """
    index = read_setting(settings, "NCCL_IB_PKEY", 0)
    for each in selection(fabric, settings, software).taken:
        table = {} if isinstance(each.pkeys, Absent) else dict(each.pkeys)
        if each.link_layer == "InfiniBand" and table and index not in table:
            places = [str(place) for place, key in table.items() if key & _NAME == index & _NAME]
            hint = f"; this value is the key at index {' and '.join(places)}" if places else ""
            message = (
                f"is {settings.get('NCCL_IB_PKEY')!r}, but the partition table of {each.name} is empty at that index"
            )
            yield jobs_fail("NCCL_IB_PKEY", message + hint, evidence(settings, "NCCL_IB_PKEY"))
            return


def _gbps(port: Port) -> float:
    return port.rate.gbps if isinstance(port.rate, Rate) else 0.0


@check(
    group=HCA_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_HCA", "mlx4"), hcas(8), TWO_NODES, NO_NCCL)],
    good=lambda: [(setting("NCCL_IB_HCA", "mlx5"), hcas(8), TWO_NODES, NO_NCCL)],
    required=True,
    applies=hca_list,
)
def hca_match(
    settings: Settings, fabric: Fabric, launch: Launch | Absent, software: Software | Absent
) -> Iterator[Finding]:
    """NCCL_IB_HCA, or an entry of it, matches no port.

    Right: Every entry of NCCL_IB_HCA matches a port.
    Why: NCCL silently ignores a name that matches no port. If no port is left, it uses sockets, at a tenth of the rate
    or less (src/transport/net_ib/init.cc:470).
    Fix: spell devices as in /sys/class/infiniband, without spaces: =mlx5_0:1,mlx5_1:1.
    """
    picked, shown = selection(fabric, settings, software), evidence(settings, "NCCL_IB_HCA")
    names = ", ".join(p.name for p in fabric.ports) or "no RDMA device"
    if fabric.cut and picked.unmatched:
        raise Unlearned(_CUT, "NotCaptured")
    if not (picked.taken or picked.down or picked.closed or picked.unknown):
        alone = isinstance(launch, Launch) and launch.nnodes == 1
        whole = select(fabric)
        lost = bool(whole.taken or whole.unknown)  # without any port the list takes nothing away
        if not lost and efa_ports(fabric):
            message = f"is {settings.get('NCCL_IB_HCA')!r}, but EFA's plugin does not read it and uses every device"
            yield jobs_note("NCCL_IB_HCA", message, shown)
            return
        several = isinstance(launch, Launch) and launch.several_nodes
        message = f"{settings.get('NCCL_IB_HCA')!r} matches no port on this node; the node has {names}"
        tell = jobs_note if alone or not (lost or several) else jobs_fail if lost else jobs_warn
        yield tell("NCCL_IB_HCA", message, shown)
        return
    for entry in picked.unmatched:
        tell = jobs_note if picked.selector.exclude else jobs_warn
        yield tell("NCCL_IB_HCA", f"{as_listed(entry)!r} matches no port; the node has {names}", shown)


@check(
    group=HCA_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_HCA", "mlx5_1"), fabric(*map(port, TEN)))],
    good=lambda: [(setting("NCCL_IB_HCA", "mlx5"), fabric(*map(port, TEN)))],
    applies=hca_list,
)
def hca_prefix(settings: Settings, fabric: Fabric) -> Iterator[Finding]:
    """An entry of NCCL_IB_HCA also matches devices that it does not name.

    Right: Every entry of NCCL_IB_HCA matches only the device that it names.
    Why: unless the list starts with =, an entry matches every name that begins with it, so mlx5_1 also selects mlx5_10
    (nccl#236).
    Fix: write = before the first name, after a ^ if the list starts with one. Then give the full name of every device.
    """
    selector = parse_selector(settings.get("NCCL_IB_HCA") or "", MAX_HCAS)
    remedy = f"NCCL_IB_HCA={'^' * selector.exclude}={','.join(_full_names(selector, fabric))}"
    for entry in dict.fromkeys(selector.entries):
        others = caught_besides(entry, fabric, selector)
        if others:
            verb = "excludes" if selector.exclude else "selects"
            message = f"{as_listed(entry)} also {verb} {', '.join(others)}"
            yield jobs_warn("NCCL_IB_HCA", message, evidence(settings, "NCCL_IB_HCA"), remedy)


def _full_names(selector: Selector, fabric: Fabric) -> list[str]:
    """Return the entries of a list; for one that names no device, those that begin with it."""
    names = [device.name for device in fabric.devices]
    found = list[str]()
    for entry in selector.entries:
        begun = [name for name in names if name.startswith(entry.prefix)]
        own = [entry.prefix] if entry.prefix in begun or not begun else begun
        found += [as_listed(replace(entry, prefix=name)) for name in own]
    return list(dict.fromkeys(found))


@check(
    group=HCA_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_HCA", "=mlx5_0,mlx5_1,mlx5_3"), hcas(4), gpus(4), NO_NCCL, ONE_NODE)],
    good=lambda: [(setting("NCCL_IB_HCA", "=mlx5_0,mlx5_1"), hcas(4), gpus(4), NO_NCCL, ONE_NODE)],
    requires="env.hca/hca-match",
    applies=hca_list,
)
def hca_dup(
    settings: Settings,
    fabric: Fabric,
    gpus: Gpus | Absent,
    software: Software | Absent,
    launch: Launch | Absent,
    described: NamedMachine | Absent = UNSAID,
) -> Iterator[Finding]:
    """NCCL_IB_HCA names a device twice, omits one, or is too long.

    Right: NCCL_IB_HCA names every NIC of a GPU once.
    Why: a list that repeats one NIC usually omits another, whose GPU then sends through its neighbour's NIC. In a job
    on several nodes, half of the NICs give at most half of the rate. NCCL reads 32 entries and silently ignores the
    rest.
    Fix: name every NIC of a GPU once.
    """
    picked, shown = selection(fabric, settings, software), evidence(settings, "NCCL_IB_HCA")
    yield from _lost_entries(picked, shown)
    alive = None if isinstance(gpus, Absent) else sum(not gpu.lost for gpu in gpus.all)
    left = _left_out(picked, fabric, software, described)
    used = len(picked.taken or picked.unknown)
    rails = _rails(picked, fabric, software, described)
    if rails:
        message = f"selects {used} of another kind but none of the {len(rails)} NICs {first_of(rails, 3)}"
        yield jobs_fail("NCCL_IB_HCA", message, shown)
        return
    board = used in (4, 8, 16) and 2 * len(left) < used  # as many as a node has GPUs; the others serve storage
    if fabric.cut:
        raise Unlearned(_CUT, "NotCaptured")
    if not used or not left or (used >= alive if alive is not None else board):
        return
    several = isinstance(launch, Launch) and launch.several_nodes
    alone = isinstance(launch, Launch) and launch.nnodes == 1
    if alive is None or (alive <= used + len(left) and alive % used):
        for_gpus = f" for {alive} GPUs" if alive else ""
        message = f"selects {plural(used, 'NIC')}{for_gpus} but omits {', '.join(left)} of the same kind"
        yield jobs_warn("NCCL_IB_HCA", message, shown)
    else:
        message = f"selects only {used} of {used + len(left)} equally fast NICs for {alive} GPUs"
        most = isinstance(described, NamedMachine) and 3 * used <= len(left) and not alone  # else its cost decides
        tell = jobs_fail if most else jobs_warn if several and used <= len(left) else jobs_note
        yield tell("NCCL_IB_HCA", message, shown)


def _lost_entries(picked: Selection, shown: Sources) -> Iterator[Finding]:
    """Yield the entries that are listed twice, or that NCCL ignores because the list is too long."""
    for entry, times in Counter(picked.selector.entries).items():
        if times > 1:
            yield jobs_warn("NCCL_IB_HCA", f"{as_listed(entry)} is listed {times} times", shown)
    if dropped := picked.selector.dropped:
        message = f"has more than {len(picked.selector.entries)} entries: {', '.join(dropped)} are ignored"
        yield jobs_warn("NCCL_IB_HCA", message, shown)


def _left_out(
    picked: Selection, fabric: Fabric, software: Software | Absent, described: NamedMachine | Absent
) -> list[str]:
    """Return ports that are up, or not known to be down, and as fast as the fastest that are taken.

    If no rate is known, those count that are called like the others: rdma0 and rdma1, and not eth0.
    """
    chosen = picked.taken or picked.unknown
    best, names = max(map(_gbps, chosen), default=0.0), {p.name for p in chosen}
    kinds = {_kind(p, described) for p in chosen}
    every = select(fabric, "", loaded(software))
    others = [p for p in (every.taken if picked.taken else every.unknown) if p.name not in names]
    return [p.name for p in others if (_gbps(p) >= best if best else _kind(p, described) in kinds)]


def _kind(port: Port, described: NamedMachine | Absent) -> tuple[object, str]:
    """Return a port's layer, and the letters of its interface or device."""
    netdevs = {} if isinstance(described, Absent) else described.netdevs
    return port.link_layer, netdevs.get(port.device, port.device).rstrip("0123456789")


_RAILS = 4


def _rails(
    picked: Selection, fabric: Fabric, software: Software | Absent, described: NamedMachine | Absent
) -> list[str]:
    """Return the ports of the most usual kind, if there are four or more and the list takes none of them, but fewer."""
    chosen = picked.taken or picked.unknown
    every = select(fabric, "", loaded(software))
    kinds = grouped((_kind(port, described), port.name) for port in every.taken or every.unknown)
    most = max(kinds.values(), key=len, default=[])
    few = 0 < len(chosen) <= len(most) / 4
    return list(most) if len(most) >= _RAILS and few and not {port.name for port in chosen} & {*most} else []


@check(
    group=HCA_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_HCA", "=mlx5_0,mlx5_1"), fabric(port("mlx5_0"), downed("mlx5_1")), NO_NCCL)],
    good=lambda: [(setting("NCCL_IB_HCA", "mlx5"), fabric(port("mlx5_0"), downed("mlx5_1")), NO_NCCL)],
    required=True,
    requires="ib.state",
    applies=hca_list,
)
def hca_down(settings: Settings, fabric: Fabric, software: Software | Absent) -> Iterator[Finding]:
    """A port that NCCL_IB_HCA names is not up.

    Right: Every port that NCCL_IB_HCA names is up.
    Why: NCCL silently drops the port, so this node has fewer NICs than the others. At best this costs the port's share
    of the bandwidth (src/transport/net_ib/init.cc:361).
    Fix: repair the link. Do not remove the port from the list: that only hides the lost NIC.
    """
    picked, shown = selection(fabric, settings, software), evidence(settings, "NCCL_IB_HCA")
    if picked.unknown and not picked.taken and not picked.down:
        names, why = ", ".join(p.name for p in picked.unknown), picked.unknown[0].state
        raise Unlearned(f"the state of {names} could not be read: {why.why if isinstance(why, Absent) else why}")
    if picked.unknown:
        names = ", ".join(p.name for p in picked.unknown)
        yield note(names, "the state could not be read", evidence=shown)
    up = {p.device for p in picked.taken}
    named = () if picked.selector.exclude else picked.selector.entries
    for down in picked.down:
        asked = any(e.prefix == down.device and (e.port == down.number or down.device not in up) for e in named)
        if asked:
            message = f"is named by NCCL_IB_HCA but its state is {down.state}"
            message += f" ({down.physical})" if isinstance(down.physical, str) else ""
            others = [port.name for port in fabric.ports if port.state == "ACTIVE" and port not in picked.taken]
            message += (
                f"; the variable omits {', '.join(others[:3])}, which {'is' if len(others) == 1 else 'are'} up"
                if others
                else ""
            )
            state = f"/sys/class/infiniband/{down.device}/ports/{down.number}/state"
            yield fail(down.name, message, blame="link", action="repair", evidence=(*shown, state))
        else:
            yield note(down.name, f"is {down.state}, so NCCL does not use it", evidence=shown)


@check(
    group=HCA_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_HCA", "=mlx5_0,mlx5_1"), MANAGED, BY_ETH0, Interfaces((ETH0,)), NO_NCCL)],
    good=lambda: [(PLAIN, MANAGED, BY_ETH0, Interfaces((ETH0,)), NO_NCCL)],
    applies=hca_list,
)
def hca_mgmt(
    settings: Settings,
    fabric: Fabric,
    routes: Routes | Absent,
    interfaces: Interfaces | Absent,
    software: Software | Absent,
) -> Iterator[Finding]:
    """NCCL_IB_HCA includes a NIC that serves management or storage.

    Right: NCCL_IB_HCA includes no NIC that serves management or storage.
    Why: NCCL spreads its channels over all its NICs. A NIC that has half the rate, or that carries other traffic, slows
    all of them.
    Fix: exclude the NIC, such as with NCCL_IB_HCA=^mlx5_2, or list the GPUs' own NICs after =.
    """
    picked, shown = selection(fabric, settings, software), evidence(settings, "NCCL_IB_HCA")
    best = max((_gbps(p) for p in picked.taken), default=0.0)
    default = set() if isinstance(routes, Absent) else set(routes.default_interfaces)
    functions = (
        {i.pci for i in interfaces.all if i.name in default and i.pci} if isinstance(interfaces, Interfaces) else set()
    )
    places = {device.name: device.pci for device in fabric.devices}
    for slow in picked.taken:
        if not settings.get("NCCL_IB_HCA") or not _gbps(slow) or 2 * _gbps(slow) >= best:
            continue
        route = "; the default route uses it" if places.get(slow.device) in functions else ""
        yield jobs_warn(slow.name, f"runs at {_gbps(slow):g} Gb/s, but the fastest NIC at {best:g} Gb/s{route}", shown)


_VARIABLES = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")


@applies
def roce_job(job: Job, settings: Settings, fabric: Fabric) -> bool:
    """to jobs on GPUs if NCCL uses RoCE ports."""
    off = read_setting(settings, "NCCL_IB_DISABLE", 0) != 0
    return job.backend == "nccl" and not off and bool(_roce_ports(select(fabric, settings.get("NCCL_IB_HCA") or "")))


def _roce_ports(picked: Selection) -> list[Port]:
    """Return the RoCE ports that NCCL takes; if no state is known, those that it takes if they are up."""
    taken = picked.taken or tuple(port for port in picked.unknown if port.link_layer == "Ethernet")
    return [port for port in taken if port.link_layer != "InfiniBand"]


@check(
    group=GID_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IB_GID_INDEX", "0"), fabric(roce("mlx5_3", *USUAL)), TWO_NODES, NO_NCCL)],
    good=lambda: [(PLAIN, fabric(roce("mlx5_3", *USUAL)), TWO_NODES, NO_NCCL)],
    required=True,
    applies=roce_job,
)
def gid_index(
    settings: Settings, fabric: Fabric, launch: Launch | Absent, software: Software | Absent
) -> Iterator[Finding]:
    """The GID that NCCL uses on a RoCE port does not lead to the other nodes.

    Right: The GID that NCCL uses on every RoCE port leads to the other nodes.
    Why: NCCL does not check NCCL_IB_GID_INDEX. If it is not set, NCCL before 2.21 uses index 0, which is link-local
    RoCE v1. The queue pairs of two nodes then cannot connect, and ibv_modify_qp or the first message times out
    (nccl#769, nccl#426). Since 2.21 NCCL searches for RoCE v2 over IPv4.
    Fix: with NCCL 2.21 or newer, unset NCCL_IB_GID_INDEX. With an older NCCL, set it to the index of the RoCE v2 GID
    for an IPv4 address.
    """
    version = loaded(software)
    wanted = wish(settings, version)
    picked = select(fabric, settings.get("NCCL_IB_HCA") or "", version)
    ports = [(each, pick(each, wanted, version)) for each in _roce_ports(picked)]
    unread = [each.name for each, found in ports if found is None]
    if len(unread) == len(ports):
        table = ports[0][0].gids if ports else ()
        why = f": {table.why}" if isinstance(table, Absent) else ""
        raise Unlearned(f"the GID tables of {', '.join(unread)} could not be read{why}")
    if unread:
        yield note(
            ", ".join(unread), "the GID table could not be read", evidence="/sys/class/infiniband/*/ports/*/gids"
        )
    for each, found in ports:
        if found:
            yield from _judged(each, found, settings, launch, written(version))
    yield from _range(settings, wanted)


def _range(settings: Settings, wanted: Wish) -> Iterator[Finding]:
    """Yield what is wrong with NCCL_IB_ADDR_RANGE: NCCL goes on without it and prints nothing."""
    text, shown = settings.get("NCCL_IB_ADDR_RANGE"), evidence(settings, "NCCL_IB_ADDR_RANGE")
    if text and wanted.within is None and wanted.index < 0:
        family = "IPv4" if wanted.family == "inet" else "IPv6"
        yield jobs_warn(
            "NCCL_IB_ADDR_RANGE",
            f"is {text!r}, which is not a valid {family} prefix, so NCCL accepts any address",
            shown,
        )
    elif text and wanted.index >= 0 and settings.get("NCCL_IB_GID_INDEX"):
        yield jobs_note("NCCL_IB_ADDR_RANGE", "has no effect: NCCL_IB_GID_INDEX already selects the GID", shown)


def _judged(port: Port, found: Pick, settings: Settings, launch: Launch | Absent, library: str) -> Iterator[Finding]:
    wrong = _wrong(found)
    if not wrong:
        return
    table = () if isinstance(port.gids, Absent) else port.gids
    better = advised(table)
    rules = [f"{name}={settings.get(name)}" for name in _VARIABLES[1:] if settings.get(name)]
    search = f"NCCL's search for {' and '.join(rules)}" if rules else "NCCL's search"
    why = {"setting": "NCCL_IB_GID_INDEX", "search": search, "version": f"{library}, which does not search for one"}
    instead = f"; index {better} is RoCE v2 over IPv4" if better is not None else "; the port has no better one"
    shown = f"/sys/class/infiniband/{port.device}/ports/{port.number}/gids/{found.index}"
    settled = evidence(settings, *_VARIABLES)
    several = isinstance(launch, Launch) and launch.several_nodes
    alone = isinstance(launch, Launch) and launch.nnodes == 1
    # What a port without any good GID means is ib.roce's to say, unless the job is known to need it.
    harmless = alone or (not several and better is None and found.by == "search")
    asked = several or (found.by == "setting" and better is not None)  # who sets it has several nodes
    leads_nowhere = found.gid is None or (asked and found.gid.link_local)  # v1 over IPv4 works within one segment
    tell = jobs_fail if leads_nowhere else jobs_warn
    message = f"GID {found.index}, chosen by {why.get(found.by, found.by)}, {wrong}{instead}"
    remedy = (
        ""
        if better is not None
        else "give the port's interface an IPv4 address, or give the container its network namespace (--network=host)"
    )
    yield (jobs_note if harmless else tell)(port.name, message, (*settled, shown), remedy)


def _wrong(found: Pick) -> str:
    """Return what is wrong with a GID, empty if nothing is known to be."""
    if found.gid is None:
        return "is empty"
    words = ["link-local"] if found.gid.link_local else []
    words += ["RoCE v1"] if roce_version(found.gid) == 1 else []
    return f"is {' '.join(words)}" if words else ""
