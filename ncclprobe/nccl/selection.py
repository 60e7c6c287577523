"""NCCL's choices on one node, from its facts: interfaces, HCAs, GIDs, GPUDirect, GPU transports, NVLS.

The rules are those of :mod:`ncclprobe.nccl`, for the NCCL that a job would load and a job with a rank on every GPU. A
network plugin decides for itself: if NCCL would find one, the text at the HCAs mentions it.

CUDA gives a job the GPUs of CUDA_VISIBLE_DEVICES that can compute. Source: CUDA programming guide, environment
variables: a list is read up to the first entry that names no GPU, by number or by the unique beginning of a UUID, all
of one kind. CUDA_DEVICE_ORDER is assumed to be NVML's, by PCI address.

Connections: src/transport/net_ib/connect.cc:12-62 and 345-480 (v2.30.7: the parameters, ncclIbQpRtr, ncclIbQpRts),
init.cc:142 and 441 (relaxed ordering, adaptive routing). Each end reads its own variables for device, GID, P_Key index,
timeout and retry count. An end's packets have its own service level and traffic class: since 2.26 because the sending
end states them for both (connect.cc:760 and 1615), and before because each end used its own. Both use the smaller path
MTU and the larger number of queue pairs (connect.cc:885 and 759).
"""

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TypeVar

from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.names import CommIdHost, comm_id_host
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.errors import ParseError, Unlearned
from ncclprobe.model.nccl_selection import (
    Choices,
    Decision,
    DirectChoice,
    GidChoice,
    HcaChoice,
    InterfaceChoice,
    NetworkChoice,
    NvlsChoice,
    PeerChoice,
)
from ncclprobe.model.rails import RailMemory, RailPort
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import grouped, replace
from ncclprobe.nccl.gpudirect import (
    NEAR_BY_DEFAULT,
    Direct,
    KernelSupport,
    PeerTransport,
    decide,
    has_dma_buf,
    kernel_support,
    maker,
    nvls,
    p2p_level,
    peer_transports,
    supported,
)
from ncclprobe.nccl.hcas import LAYERS, MAX_INTERFACES, Pick, Selection, fast, gbps, pick, select_by, wish
from ncclprobe.nccl.interfaces import Choice, find_by, same_subnet
from ncclprobe.nccl.networks import Choosing, NetworkFacts, efa_ports, fast_nics, hca_choice, network, part, refused
from ncclprobe.nccl.paths import PathType, Topology, machine_topology
from ncclprobe.nccl.values import read_setting

LIST = "CUDA_VISIBLE_DEVICES"


def usable_gpus(gpus: Gpus, environment: Environment | Absent) -> Decision[str]:
    """Return the GPUs on which a rank of a job can run; refused if there are none."""
    text = None if isinstance(environment, Absent) else environment.get(LIST)
    if text is not None and "MIG-" in text.upper():
        return Decision(None, f"{LIST}={text} names parts of GPUs")
    seen = gpus.all if text is None else visible(text, gpus)
    able = tuple(f"GPU{gpu.index}" for gpu in seen if not gpu.lost and gpu.compute_mode != "prohibited")
    if seen and all(gpu.mig is True for gpu in seen):
        return Decision(None, "MIG splits them, and CUDA shows a process only one instance")
    if able:
        return Decision(able, "every GPU" if text is None else f"{LIST}={text}")
    if not seen:
        return Decision((), f"{LIST}={text!r} shows none: CUDA sees no GPU", refused=True, subject=LIST)
    why = seen[0].lost or "its compute mode is prohibited"
    return Decision((), f"none can compute: GPU{seen[0].index}: {why}", refused=True, subject=f"GPU{seen[0].index}")


def visible(text: str, gpus: Gpus) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA selects by its list `text`, in that order."""
    found: list[Gpu] = []
    for word in map(str.strip, text.split(",")):
        named = [gpu for gpu in gpus.all if _names(word, gpu)]
        if len(named) != 1:
            break
        found += named
    return tuple(found)


def _names(word: str, gpu: Gpu) -> bool:
    return gpu.uuid.startswith(word) if word.startswith("GPU-") else word == str(gpu.index)


_GID_VARIABLES = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")
T = TypeVar("T")
CLOSED = "this process may not open the device"
_STEPS = {
    "ib": "its name begins with ib, which NCCL prefers over all others",
    "subnet": "the first in the subnet of NCCL_COMM_ID",
    "docker": "there is none but docker's and lo",
    "lo": "there is none but lo",
    "virbr": "there is none but virbr",
}


def choose(snapshot: Snapshot, others: Choosing | None = None) -> Choices:
    """Return NCCL's choices on this node; a part is None, with its reason, if the facts do not decide it.

    `others`: the cache of choices on other nodes of the job.
    """
    known, choosing = NetworkFacts(snapshot.facts), others or Choosing()

    def made(decide: Callable[[NetworkFacts], Decision[T]]) -> Decision[T]:
        return choosing.part(decide, snapshot.facts)

    return Choices(
        nccl=".".join(map(str, known.version)) if known.version else None,
        bootstrap=made(_bootstrap),
        sockets=made(_sockets),
        hcas=made(_hcas),
        hcas_left_out=made(_left_out),
        gids=made(_gids),
        gpudirect=made(_gpudirect),
        p2p=made(_p2p),
        nvls=_nvls(known),
        gpus=made(_gpus),
        network=made(_network),
        fast_nics=made(fast_nics),
    )


def _gpus(known: NetworkFacts) -> Decision[str]:
    return usable_gpus(known.need(Gpus), known.maybe(Environment))


def _network(known: NetworkFacts) -> Decision[NetworkChoice]:
    return network(known, part(_hcas, known), part(_sockets, known))


# Interfaces.


def _bootstrap(known: NetworkFacts) -> Decision[InterfaceChoice]:
    """Return one interface: that of NCCL_COMM_ID's subnet, otherwise the first of NCCL's search."""
    try:
        addresses, address = known.need(Interfaces).addresses, _comm_id(known)
    except ValueError as refusal:
        return refused("NCCL_COMM_ID", f"{known.set('NCCL_COMM_ID')}: {refusal}")
    if address is None:
        return _searched(find_by(addresses, known.settings, known.version, limit=1), known)
    near = [each for each in addresses if same_subnet(each, address, known.version)][:1]
    if not near:
        return refused("NCCL_COMM_ID", f"{known.set('NCCL_COMM_ID')}: no interface is in its subnet")
    return _searched(Choice(tuple(near), "subnet"), known)


def _sockets(known: NetworkFacts) -> Decision[InterfaceChoice]:
    """Return the interfaces of NET/Socket: at most 16, each with its first address."""
    addresses = known.need(Interfaces).addresses
    try:
        address = None if len(known.settings.get("NCCL_SOCKET_IFNAME") or "") > 1 else _comm_id(known)
    except ValueError as refusal:
        return refused("NCCL_COMM_ID", f"{known.set('NCCL_COMM_ID')}: {refusal}")
    found = find_by(addresses, known.settings, known.version, comm_id_address=address, limit=MAX_INTERFACES)
    return _searched(found, known)


def _searched(found: Choice, known: NetworkFacts) -> Decision[InterfaceChoice]:
    why = known.set("NCCL_SOCKET_IFNAME") if found.step == "env" else _STEPS.get(found.step, "")
    if not why:
        why = f"what {found.step} leaves, in the kernel's order" if found.interfaces else "no interface is left"
    if not found.interfaces:
        return refused("NCCL_SOCKET_IFNAME" if found.step == "env" else "interfaces", why)
    return Decision(tuple(InterfaceChoice(i.name, i.address, found.step, why) for i in found.interfaces), why)


def _comm_id(known: NetworkFacts) -> str | None:
    """Return the address in NCCL_COMM_ID; None: not set.

    Raises ValueError if NCCL rejects it or the host does not resolve, and Unlearned if it was not resolved.
    """
    text = known.settings.get("NCCL_COMM_ID")
    if text is None:
        return None
    host = comm_id_host(text)
    try:
        return str(ip_address(host))
    except ValueError:
        found = known.maybe(CommIdHost)
    if isinstance(found, Absent) or found.name != host:
        raise Unlearned(f"{known.set('NCCL_COMM_ID')} decides, and what its host resolves to is not known")
    if not found.addresses:
        raise ValueError(found.failure or f"{host} does not resolve")
    return found.addresses[0]


# HCAs and their GIDs.


def _selection(known: NetworkFacts) -> Selection:
    return select_by(known.need(Fabric), known.settings, known.version)


def _why_ib_is_off(known: NetworkFacts) -> str:
    """Return why NCCL's own InfiniBand transport is not used; empty: no reason."""
    wanted = known.settings.get("NCCL_NET") or "ib"
    if wanted.lower() != "ib":
        return f"{known.set('NCCL_NET')} keeps to that network"
    if read_setting(known.settings, "NCCL_IB_DISABLE", 0) != 0:
        return f"{known.set('NCCL_IB_DISABLE')} turns NET/IB off"
    return ""


def _taken(known: NetworkFacts) -> tuple[Port, ...]:
    return () if _why_ib_is_off(known) else _selection(known).taken


def _hcas(known: NetworkFacts) -> Decision[HcaChoice]:
    off, named = _why_ib_is_off(known), known.set("NCCL_IB_HCA")
    if not off and known.need(Fabric).cut:
        return Decision(None, "the pasted texts do not show every NIC")
    rows = tuple(map(hca_choice, _taken(known)))
    why = off or named or "NCCL_IB_HCA is not set: every active port"
    if not off and not rows:
        why = f"no port is left; {named}" if named else "no active InfiniBand or Ethernet port"
    return Decision(rows, why)


def _left_out(known: NetworkFacts) -> Decision[HcaChoice]:
    off, found = _why_ib_is_off(known), _selection(known)
    kept = () if off else found.taken
    rows = [
        HcaChoice(p.name, gbps(p), off or _why_not(p, found, known)) for p in known.need(Fabric).ports if p not in kept
    ]
    return Decision(tuple(rows), "not for NCCL's own transport" if rows else "no other port exists")


def _why_not(port: Port, found: Selection, known: NetworkFacts) -> str:
    if isinstance(port.link_layer, str) and port.link_layer not in LAYERS:
        return f"link layer {port.link_layer}, which NCCL's own transport does not support"
    if port in found.down:
        return f"state {port.state}"
    if port in found.closed:
        return CLOSED
    if port in found.unknown:
        return "its state could not be read"
    return "beyond the most that NCCL takes" if port in found.beyond else known.set("NCCL_IB_HCA")


def _gids(known: NetworkFacts) -> Decision[GidChoice]:
    ports = [port for port in _taken(known) if port.link_layer != "InfiniBand"]
    wanted = wish(known.settings, known.version)
    rows = tuple(_gid(port, pick(port, wanted, known.version), known) for port in ports)
    return Decision(
        rows, known.set(*_GID_VARIABLES) or "NCCL_IB_GID_INDEX is not set" if rows else "no RoCE port is taken"
    )


def _gid(port: Port, found: Pick | None, known: NetworkFacts) -> GidChoice:
    if found is None:
        return GidChoice(port.name, None, None, None, "its GID table or link layer could not be read")
    reasons = {
        "setting": known.set("NCCL_IB_GID_INDEX"),
        "version": "index 0: NCCL searches since 2.21",
        "search": known.set(*_GID_VARIABLES[1:]) or "NCCL's search for RoCE v2 over IPv4",
    }
    if found.gid is None:
        return GidChoice(port.name, found.index, None, None, f"{reasons[found.by]}; the entry is empty")
    better = "" if found.gid.ipv4 or found.by != "search" else ", which found no better one"
    return GidChoice(port.name, found.index, found.gid.text, found.gid.type, reasons[found.by] + better)


def choose_rails(snapshot: Snapshot) -> Decision[RailPort]:
    """Return the parameters with which NCCL would connect each port, in order; None if the facts do not decide it."""
    return part(_rails, NetworkFacts(snapshot.facts))


def _rails(known: NetworkFacts) -> Decision[RailPort]:
    taken = _taken(known)
    efa = "" if taken else ", ".join(port.device for port in efa_ports(known.need(Fabric)))
    if efa:
        why = f"no active InfiniBand or Ethernet port; EFA ({efa}) has no reliable connections, so it is not tested"
        return Decision((), why)
    return Decision(rail_ports(taken, known.settings, known.version), _hcas(known).why)


def crossing(snapshot: Snapshot) -> str:
    """Return why a job on such nodes sends from one rail to another; empty: no known reason.

    Rings stay on their rail unless NCCL_CROSS_NIC=1, and PXN (src/graph/paths.cc:668) hands data to the GPU of the
    right rail over NVLink, unless it is off or there is none.
    """
    known = NetworkFacts(snapshot.facts)
    try:
        if read_setting(known.settings, "NCCL_CROSS_NIC", 2, known.version) == 1:
            return known.set("NCCL_CROSS_NIC")
        if read_setting(known.settings, "NCCL_PXN_DISABLE", 0, known.version) == 1:
            return known.set("NCCL_PXN_DISABLE")
        linked = any(row for row in known.need(NvLinks).gpus if not isinstance(row, Absent))
        several = len(known.gpus.all) > 1 and not _links_unread(known)
    except (Unlearned, ParseError):
        return ""
    return "its GPUs have no NVLink, which PXN needs" if several and not linked else ""


def gpu_rails(snapshot: Snapshot, ports: Sequence[RailPort]) -> tuple[RailPort | None, ...]:
    """Return each of `ports` with the memory of the nearest GPU that it may read and write; None: no such GPU.

    NCCL registers by DMA-BUF if it can, and otherwise by address, which needs a peer-memory module
    (src/transport/net.cc, src/init.cc dmaBufSupported).
    """
    known, nearest = NetworkFacts(snapshot.facts), dict[str, int]()
    rows = part(_gpudirect, known).chosen or ()
    for row in rows:
        if row.receives:
            nearest |= {nic: int(row.gpu.removeprefix("GPU")) for nic in row.nics if nic not in nearest}
    if not nearest:
        return (None,) * len(ports)
    memory: RailMemory = (
        "cuda-dmabuf" if has_dma_buf(known.need(GpuDirect), known.settings, known.version, known.gpus.cuda) else "cuda"
    )
    return tuple(
        replace(port, memory=memory, gpu=nearest[port.device]) if port.device in nearest else None for port in ports
    )


# GPUs.


def _distances(known: NetworkFacts, nics: Sequence[str]) -> Topology:
    """Return the distances between the GPUs and these RDMA devices."""
    devices = known.need(Fabric).devices if nics else ()
    used = Fabric(tuple(device for device in devices if device.name in nics))
    return machine_topology(known.need(Pci), known.gpus, known.need(NvLinks), used)


def _links_unread(known: NetworkFacts) -> str:
    """Return why a GPU's NVLinks are unknown; empty: they are known."""
    every = known.need(NvLinks).gpus
    rows = [every[gpu.index] for gpu in known.gpus.all if gpu.index < len(every)]
    gaps = [row for row in rows if isinstance(row, Absent)]
    states = [link.state for row in rows if not isinstance(row, Absent) for link in row]
    return next((gap.why for gap in (*gaps, *states) if isinstance(gap, Absent)), "")


def _file(known: NetworkFacts) -> str:
    given = known.set("NCCL_TOPO_FILE")
    return f"; {given} may give NCCL another topology" if given else ""


def _gpudirect(known: NetworkFacts) -> Decision[DirectChoice]:
    gpus = known.gpus
    nics = list(dict.fromkeys(port.device for port in fast(_taken(known))))
    if not nics:
        return Decision((), "NET/IB takes no port")
    direct = known.maybe(GpuDirect)
    gdr = (
        KernelSupport(None, direct.why)
        if isinstance(direct, Absent)
        else kernel_support(direct, known.settings, known.version, gpus.cuda)
    )
    topology = _distances(known, nics)
    able = {f"GPU{gpu.index}": gpu for gpu in gpus.all if f"GPU{gpu.index}" in topology.gpus}
    made = decide(topology, able, nics, known.settings, known.version)
    rows = (_nearest(topology, [each for each in made if each.gpu == name]) for name in able)
    unread = _links_unread(known)
    return Decision(
        tuple(_apply_support(row, able[row.gpu], gdr.works, gdr.why, unread) for row in rows), gdr.why + _file(known)
    )


def _nearest(topology: Topology, made: Sequence[Direct]) -> DirectChoice:
    """Return a GPU's nearest NIC; a relay (PXN) counts as farther than any path within a switch."""

    def rank(each: Direct) -> PathType:
        path = topology.paths[each.gpu, each.nic]
        return PathType.PXN if each.relay else PathType.SYS if path is None else path

    best = min(made, key=rank)
    nics = tuple(each.nic for each in made if (rank(each), each.receives) == (rank(best), best.receives))
    path = best.path.name if best.path is not None else None
    why = best.why.removeprefix(f"{best.nic} is ")
    return DirectChoice(best.gpu, nics, best.receives, best.sends, path, best.relay or None, why)


def _apply_support(row: DirectChoice, gpu: Gpu, works: bool | None, why: str, unread: str) -> DirectChoice:
    """Apply the machine's GPUDirect support to `row`, and note unknown NVLinks. A module cannot allow what the level
    forbids.
    """
    if not supported(gpu) or (works is None and row.receives is False):
        return row
    if not works:
        return replace(row, receives=works, sends=works, why=why)
    if unread and not row.sends:
        return replace(row, receives=row.receives or None, sends=None, why=f"{row.why}; NVLinks not known: {unread}")
    return row


def _p2p(known: NetworkFacts) -> Decision[PeerChoice]:
    gpus, unread = known.gpus, _links_unread(known)
    if unread:
        raise Unlearned(f"NVLinks not known: {unread}")
    many = len(gpus.all) > 2 and reaches(known.version, NEAR_BY_DEFAULT)  # then no processor makes a difference
    cpu = "" if many else maker(known.need(Cpus), known.need(System).machine)
    level = p2p_level(known.settings, known.version, cpu, len(gpus.all))
    found = peer_transports(_distances(known, ()), known.maybe(PeerAccess), known.settings, level, known.version)
    by_transport = grouped((replace(link, one="", other=""), (link.one, link.other)) for link in found)
    rows = tuple(_peers(link, pairs) for link, pairs in by_transport.items())
    if broken := [row for row in rows if row.refused]:
        pair = " and ".join(broken[0].pairs[0])
        return Decision(rows, f"{pair}: {broken[0].why}", refused=True, subject=pair)
    return Decision(rows, (str(level) if rows else "one GPU has no peer") + _file(known))


def _peers(link: PeerTransport, pairs: Sequence[tuple[str, str]]) -> PeerChoice:
    path = link.path.name if link.path is not None else None
    why = f"{link.why}, and NCCL then fails to start" if link.broken else link.why
    return PeerChoice(tuple(pairs), link.transport, path, link.broken, why)


def _nvls(known: NetworkFacts) -> NvlsChoice:
    try:
        return nvls(known.need(Gpus), known.maybe(NvLinks), known.settings, known.version)
    except Unlearned as gap:
        return NvlsChoice(None, str(gap))


_TIMEOUTS: tuple[tuple[Version, int], ...] = (((2, 23, 4), 20), ((2, 14, 3), 18))
_OLD_TIMEOUT = 14
MOST_QUEUE_PAIRS = 128  # NCCL_IB_MAX_QPS of src/transport/net_ib/common.h
_AUTOMATIC = -2


def rail_ports(taken: Sequence[Port], settings: Settings, version: Version | None) -> tuple[RailPort, ...]:
    """Return one end's parameters for each port that NCCL uses, in order.

    The path MTU is left open: it is the smaller active MTU of the two ports, which only a connection knows. If the GID
    table could not be read, the index is 0. Ports that NCCL fuses into one device (NCCL_IB_MERGE_NICS) are listed
    separately: queue pair n of a connection still goes from port n to port n.
    """
    wanted = wish(settings, version)

    def number(name: str, default: int) -> int:
        return read_setting(settings, name, default, version)

    common = RailPort(
        device="",
        pkey_index=number("NCCL_IB_PKEY", 0),
        service_level=_unless_negative(number("NCCL_IB_SL", -1)),
        traffic_class=_unless_negative(number("NCCL_IB_TC", -1)),
        timeout=number("NCCL_IB_TIMEOUT", default_timeout(version)),
        retry_count=number("NCCL_IB_RETRY_CNT", 7),
        queue_pairs=max(1, min(number("NCCL_IB_QPS_PER_CONNECTION", 1), MOST_QUEUE_PAIRS)),
        relaxed_ordering=number("NCCL_IB_PCI_RELAXED_ORDERING", 2) in (1, 2),
    )
    adaptive, found = number("NCCL_IB_ADAPTIVE_ROUTING", _AUTOMATIC), []
    for port in taken:
        chosen = pick(port, wanted, version)
        routed = port.link_layer == "InfiniBand" if adaptive == _AUTOMATIC else adaptive != 0
        index = chosen.index if chosen else 0
        found.append(replace(common, device=port.device, port=port.number, gid_index=index, adaptive_routing=routed))
    return tuple(found)


def default_timeout(version: Version | None) -> int:
    """Return the default of NCCL_IB_TIMEOUT."""
    return next((timeout for since, timeout in _TIMEOUTS if reaches(version, since)), _OLD_TIMEOUT)


def _unless_negative(value: int) -> int | None:
    return None if value < 0 else value
