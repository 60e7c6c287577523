"""Settings that overrule NCCL: transports switched off or chosen, algorithms and protocols chosen by hand."""

from collections.abc import Iterator, Sequence

from ncclprobe.checks.env import (
    DANGER_GROUP,
    LIBRARIES_GROUP,
    TRANSPORT_GROUP,
    evidence,
    jobs_fail,
    jobs_note,
    jobs_warn,
    loaded,
    nccl_job,
)
from ncclprobe.checks.env.fixtures import (
    ALONE,
    NO_NCCL,
    PLAIN,
    TWO_NODES,
    fabric,
    gpus,
    having,
    hcas,
    linked,
    port,
    setting,
)
from ncclprobe.checks.env.hcas import over_sockets
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.plugins import Plugin, Plugins
from ncclprobe.facts.software import Software, Version
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.units import plural
from ncclprobe.nccl.algorithms import ALGORITHMS, PROTOCOLS, Pin, forces_ll128, parse_pin, stranded
from ncclprobe.nccl.gpudirect import gdr_level, nearest_nics, nvls, supported, user_level
from ncclprobe.nccl.hcas import select
from ncclprobe.nccl.networks import efa_ports, ofi_plugin_named, other_provider
from ncclprobe.nccl.paths import PathType, device_topology
from ncclprobe.nccl.values import read_level, read_setting

OFI = Plugin("/opt/amazon/ofi-nccl/lib/libnccl-net.so", "net", "ofi", reachable=True)
UNSEEN = Absent("not looked at")
EFA = fabric(port("rdmap79s0", link_layer="Unknown"))


@applies
def efa_job(job: Job, fabric: Fabric) -> bool:
    """to jobs on GPUs if there are EFA devices."""
    return job.backend == "nccl" and bool(efa_ports(fabric))


@check(
    group=TRANSPORT_GROUP,
    slows=True,
    bad=lambda: [(having(NCCL_NET="IB", NCCL_IB_DISABLE="1"), hcas(8), ALONE)],
    good=lambda: [(setting("NCCL_NET", "IB"), hcas(8), TWO_NODES)],
    applies=nccl_job,
)
def net_unpinned(settings: Settings, fabric: Fabric, launch: Launch | Absent) -> Iterator[Finding]:
    """NCCL_NET names a network that is missing, or is not set, so NCCL can silently fall back to sockets.

    Right: NCCL_NET rules out a silent fallback to sockets.
    Why: without NCCL_NET NCCL uses the first network that starts. If a node loses its NICs, the job silently falls back
    to sockets. With NCCL_NET set, NCCL reports "Failed to initialize any NET plugin" instead.
    Fix: for jobs on several nodes with HCAs, set NCCL_NET=IB, or the plugin's name.
    """
    network, several = settings.get("NCCL_NET"), isinstance(launch, Launch) and launch.spans_by_launcher
    off = read_setting(settings, "NCCL_IB_DISABLE", 0) != 0
    picked = select(fabric, settings.get("NCCL_IB_HCA") or "")
    ports = () if off else picked.taken or picked.unknown
    if network and network.lower() == "ib" and not ports:
        why = "NCCL_IB_DISABLE switches it off" if off else "NCCL can use no port on this node"
        yield jobs_fail(
            "NCCL_NET",
            f"allows only IB, but {why}",
            evidence(settings, "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
            "unset NCCL_NET, or bring the HCAs up",
        )
    elif not network and several and ports:
        yield jobs_note(
            "NCCL_NET", "is not set, so a node that loses its HCAs would silently use sockets", "environment"
        )


@check(
    group=TRANSPORT_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_P2P_DISABLE", "1"), gpus(8), linked(8), NO_NCCL)],
    good=lambda: [(PLAIN, gpus(8), linked(8), NO_NCCL)],
    applies=nccl_job,
)
def p2p_off(
    settings: Settings, gpus: Gpus, nvlinks: NvLinks | Absent, software: Software | Absent, pci: Pci | Absent = UNSEEN
) -> Iterator[Finding]:
    """A fast transport between the GPUs on this node is switched off.

    Right: All fast transports between the GPUs on this node are switched on.
    Why: without P2P the NVLinks carry nothing, and every byte goes through host memory. Without NVLS an all-reduce
    cannot use the reduction inside the NVSwitches. People turn these off to find a fault and forget to turn them on
    again.
    Fix: unset the variable. If the job then fails, the variable was hiding a fault. Find that fault.
    """
    alive = [gpu.index for gpu in gpus.all if not gpu.lost]
    if len(alive) < 2:
        return
    version = loaded(software)
    level = settings.get("NCCL_P2P_LEVEL")
    closed = read_setting(settings, "NCCL_P2P_DISABLE", 0) == 1
    name = "NCCL_P2P_DISABLE" if closed else "NCCL_P2P_LEVEL"
    joined = _nvlinked(nvlinks)
    closed = closed or (level is not None and read_level(level, version) in (("LOC",) if joined else _NO_PCIE))
    if closed and joined:
        yield jobs_warn(name, "stops GPUs from using the NVLinks that connect them", evidence(settings, name))
    elif closed and (near := _pair_behind_switch(gpus, nvlinks, pci)):
        message = f"sends traffic between GPUs through host memory, although {near} are below the same PCIe switch"
        yield jobs_warn(name, message, evidence(settings, name))
    elif closed:
        yield jobs_note(name, "sends traffic between GPUs through host memory", evidence(settings, name))
    if closed and read_setting(settings, "NCCL_SHM_DISABLE", 0) == 1:
        both = evidence(settings, name, "NCCL_SHM_DISABLE")
        yield jobs_warn(
            "NCCL_SHM_DISABLE", f"and {name} leave only the network for traffic between GPUs of one node", both
        )
    if read_setting(settings, "NCCL_NVLS_ENABLE", 2, version) == 0 and nvls(gpus, nvlinks, PLAIN, version).available:
        shown = evidence(settings, "NCCL_NVLS_ENABLE")
        yield jobs_warn("NCCL_NVLS_ENABLE", "is 0, so this node's NVLink SHARP is not used", shown)
    alone = read_setting(settings, "NCCL_SHM_DISABLE", 0) == 1 and not closed and not joined
    if alone and (far := _apart(gpus, nvlinks, pci)):
        message = f"sends data between GPUs that share no switch over the network, such as {far}"
        yield jobs_warn("NCCL_SHM_DISABLE", message, evidence(settings, "NCCL_SHM_DISABLE"))
        return
    for name, off, cost in _ABILITIES:
        needs_links = name not in _WITHOUT_LINKS
        if not closed and read_setting(settings, name, 1 - off, version) == off and (joined or not needs_links):
            yield jobs_note(name, f"is {off}: {cost}", evidence(settings, name))


@check(
    group=TRANSPORT_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_NET_GDR_LEVEL", "LOC"), UNSEEN, UNSEEN, hcas(8), TWO_NODES, NO_NCCL)],
    good=lambda: [(setting("NCCL_NET_GDR_LEVEL", "PHB"), UNSEEN, UNSEEN, hcas(8), TWO_NODES, NO_NCCL)],
    applies=nccl_job,
)
def gdr_off(
    settings: Settings,
    gpus: Gpus | Absent,
    pci: Pci | Absent,
    fabric: Fabric | Absent,
    launch: Launch | Absent,
    software: Software | Absent,
    direct: GpuDirect | Absent = UNSEEN,
) -> Iterator[Finding]:
    """A setting stops NICs from accessing GPU memory that they could reach.

    Right: No setting stops NICs from accessing GPU memory that they can reach.
    Why: if the level is below the distance between a GPU and its NIC (`nvidia-smi topo -m`), every byte to another node
    passes through host memory. With LOC or 0 no NIC is near enough (src/graph/paths.cc ncclTopoCheckGdr). Without
    DMA-BUF (NCCL_DMABUF_ENABLE=0) GPUDirect RDMA needs the module nvidia-peermem.
    Fix: unset NCCL_NET_GDR_LEVEL and NCCL_DMABUF_ENABLE.
    """
    version = loaded(software)
    asked = user_level(settings, "NCCL_NET_GDR_LEVEL", version)
    idle = isinstance(launch, Launch) and launch.nnodes == 1
    if idle or (isinstance(fabric, Fabric) and not fabric.ports) or over_sockets(settings):
        return
    modules = UNSEEN if isinstance(direct, Absent) else direct.peer_memory
    if (
        read_setting(settings, "NCCL_DMABUF_ENABLE", 1, version) == 0
        and not isinstance(modules, Absent)
        and not modules
    ):
        message = "is 0 and no peer-memory module is loaded, so GPUDirect RDMA is not possible"
        yield jobs_warn("NCCL_DMABUF_ENABLE", message, evidence(settings, "NCCL_DMABUF_ENABLE"))
    if asked is None:
        return
    usual = gdr_level(PLAIN, version).path
    nearest = nearest_nics(gpus, pci, fabric)
    far = [path for path in nearest if asked.path < path <= usual]
    shown = evidence(settings, "NCCL_NET_GDR_LEVEL")
    if far:
        places = ", ".join(sorted({path.name for path in far}))
        message = f"prevents GPUDirect RDMA for {len(far)} of {plural(len(nearest), 'GPU')}: their NICs are at {places}"
        yield jobs_warn("NCCL_NET_GDR_LEVEL", message, shown)
    elif asked.path is PathType.LOC and not nearest:
        message = f"is {settings.get('NCCL_NET_GDR_LEVEL')!r}, so no NIC is near enough for GPUDirect RDMA"
        yield jobs_warn("NCCL_NET_GDR_LEVEL", message, shown)


_NO_PCIE = ("LOC", "NVL", "NVB", "C2C")
"""Levels of P2P that leave none to GPUs that only PCIe joins."""
_ABILITIES = (
    ("NCCL_CUMEM_ENABLE", 0, "NVLink SHARP and registered buffers need cuMem memory"),
    ("NCCL_SHM_DISABLE", 1, "GPUs without P2P exchange data over the network"),
    ("NCCL_P2P_DIRECT_DISABLE", 1, "GPUs of one process do not use each other's memory directly"),
    ("NCCL_P2P_USE_CUDA_MEMCPY", 1, "copy engines move the data between GPUs, which is slower for small messages"),
    ("NCCL_CHECK_POINTERS", 1, "each call checks its pointers"),
    ("NCCL_NET_GDR_READ", 0, "data that a GPU sends to another node passes through host memory"),
    ("NCCL_DMABUF_ENABLE", 0, "GPUDirect RDMA then needs the module nvidia-peermem"),
    ("NCCL_PXN_DISABLE", 1, "a GPU does not send through another GPU's NIC, so traffic leaves its rail"),
)
"""What a setting takes from NCCL, at a cost that is not known."""
_WITHOUT_LINKS = ("NCCL_SHM_DISABLE", "NCCL_CHECK_POINTERS")
"""Of these, what concerns machines without NVLink too."""


def _pair_behind_switch(gpus: Gpus, nvlinks: NvLinks | Absent, pci: Pci | Absent) -> str:
    """Return two GPUs that PCIe switches join; empty: none are known to be, or they have no P2P, as GeForce."""
    return _pair(gpus, nvlinks, pci, (PathType.PIX, PathType.PXB)) if all(map(supported, gpus.all)) else ""


def _apart(gpus: Gpus, nvlinks: NvLinks | Absent, pci: Pci | Absent) -> str:
    """Return two GPUs that are farther apart than NCCL uses P2P by itself."""
    return _pair(gpus, nvlinks, pci, (PathType.PHB, PathType.SYS))


def _pair(gpus: Gpus, nvlinks: NvLinks | Absent, pci: Pci | Absent, at: Sequence[PathType]) -> str:
    paths = {} if isinstance(pci, Absent) else device_topology(pci, gpus, nvlinks, {}).paths
    return next((" and ".join(pair) for pair, path in paths.items() if pair[0] < pair[1] and path in at), "")


def _nvlinked(nvlinks: NvLinks | Absent) -> bool:
    rows = () if isinstance(nvlinks, Absent) else nvlinks.gpus
    links = [link for row in rows if not isinstance(row, Absent) for link in row]
    return any(link.state == "active" and link.remote in ("gpu", "switch") for link in links)


@check(
    group=LIBRARIES_GROUP,
    slows=True,
    bad=lambda: [(PLAIN, EFA, Plugins((Plugin(OFI.path, "net", "ofi", reachable=False),)), TWO_NODES)],
    good=lambda: [(PLAIN, EFA, Plugins((OFI,)), TWO_NODES)],
    requires="env.transport/transport",
    applies=efa_job,
)
def efa(settings: Settings, fabric: Fabric, plugins: Plugins, launch: Launch | Absent) -> Iterator[Finding]:
    """EFA devices are present, but NCCL's plugin for them is incomplete.

    Right: NCCL's plugin for the EFA devices is complete.
    Why: NCCL supports EFA only through the OFI plugin. If the loader cannot find the plugin, or a setting selects
    another libfabric provider, NCCL silently uses TCP.
    Fix: install aws-ofi-nccl, put its folder on LD_LIBRARY_PATH, and unset FI_PROVIDER (or set it to efa).
    """
    several = isinstance(launch, Launch) and launch.several_nodes
    tell = jobs_warn if several else jobs_note
    found = [plugin for plugin in plugins.all if plugin.kind == "net" and plugin.flavour == "ofi"]
    devices = ", ".join(port.device for port in efa_ports(fabric))
    if not found:
        yield tell("libnccl-net.so", f"no OFI plugin was found for {devices}", "the loader's and the usual folders")
    elif not ofi_plugin_named(settings) and not any(plugin.reachable for plugin in found):
        message = "the loader does not search the folder of the OFI plugin"
        yield tell("libnccl-net.so", message, found[0].path)
    if other_provider(settings):
        message = f"is {settings.get('FI_PROVIDER')!r}, so libfabric does not use EFA"
        yield tell("FI_PROVIDER", message, evidence(settings, "FI_PROVIDER"))


_REMEDIES = {
    "NCCL_ALGO": "",  # the check's own
    "NCCL_PROTO": "unset it, or exclude only the faulty protocol, such as NCCL_PROTO=^LL128 (the names are LL, LL128 "
    "and Simple)",
}
_OF_NCCL = Job()
_WRONG_RESULTS_BYTES = 1 << 20  # nccl#2408: sums came out wrong from here on


@check(
    slows=True,
    bad=lambda: [(setting("NCCL_ALGO", "Rng"), gpus(8), linked(8), TWO_NODES, NO_NCCL, Job())],
    good=lambda: [(PLAIN, gpus(8), linked(8), TWO_NODES, NO_NCCL, Job())],
)
def forced_algo(
    settings: Settings,
    gpus: Gpus | Absent,
    nvlinks: NvLinks | Absent,
    launch: Launch | Absent,
    software: Software | Absent,
    job: Job = _OF_NCCL,
) -> Iterator[Finding]:
    """NCCL_ALGO or NCCL_PROTO overrides NCCL's choice, or leaves a collective without an algorithm.

    Right: NCCL is free to choose algorithm and protocol.
    Why: NCCL chooses by message size, and a choice that is fast at one size is slow at others. From a list NCCL still
    chooses, but it never uses what the list omits, such as NVLS on NVSwitches. Since 2.24 a collective that has no
    algorithm left fails when it is called: NCCL_ALGO=Tree leaves none for broadcast, all-gather and reduce-scatter.
    Without a protocol it fails in every release ("no algorithm/protocol available", src/enqueue.cc). If a setting names
    LL128, or excludes all other protocols, NCCL uses it even on machines where it is not safe, and it may corrupt data
    (env.rst).
    Fix: unset it, or name the function: NCCL_ALGO=allreduce:tree,ring.
    """
    version = loaded(software)
    read = {"NCCL_ALGO": ALGORITHMS, "NCCL_PROTO": PROTOCOLS}
    pins = {name: parse_pin(settings.get(name) or "", choices, version) for name, choices in read.items()}
    for name, choices in read.items():
        if job.backend != "nccl":
            if pins[name].error:
                message = f"NCCL rejects it: {pins[name].error}. gloo does not read it"
                yield jobs_note(name, message, evidence(settings, name), _REMEDIES[name])
        elif pins[name].error:
            automatic = (settings.get(name) or "").lower() == "auto"  # Oracle's word; before 2.24 NCCL ignored it
            message = f"NCCL rejects it: {pins[name].error}"
            tell = jobs_warn if automatic else jobs_fail
            yield tell(name, message, evidence(settings, name), _REMEDIES[name])
        elif pins[name].every_function:
            yield _said(name, pins[name], choices, settings, gpus, nvlinks, version)
        if pins[name].ignored:
            message = f"ignores {', '.join(pins[name].ignored)}"
            yield jobs_warn(name, message, evidence(settings, name), _REMEDIES[name])
    if job.backend != "nccl" or any(pin.error for pin in pins.values()):
        return
    yield from _forced_ll128(pins["NCCL_PROTO"], settings, _nvlinked(nvlinks))
    lacking = _lacking(settings, gpus, nvlinks, launch, software)
    left = stranded(pins["NCCL_ALGO"], pins["NCCL_PROTO"], lacking, version)
    if left and any(pin.kept for pin in pins.values()):
        spoilt = not all(pins["NCCL_PROTO"].kept.get(each, True) for each in left)
        name = "NCCL_PROTO" if spoilt or not pins["NCCL_ALGO"].kept else "NCCL_ALGO"
        message = f"leaves no algorithm for {', '.join(left)}: such calls will fail"
        unsure = (
            version is None and isinstance(software, Absent) and "AllReduce" not in left
        )  # before 2.24 it falls back
        tell = jobs_warn if unsure else jobs_fail
        yield tell(name, message, evidence(settings, "NCCL_ALGO", "NCCL_PROTO"), _REMEDIES[name])


def _forced_ll128(pin: Pin, settings: Settings, joined: bool) -> Iterator[Finding]:
    """Say that LL128 is allowed by hand. NCCL allows it itself over NVLink, and who lists all protocols chose none."""
    if forces_ll128(pin):
        message = "forces LL128 even if NCCL would not use it"
        usual = {"LL128", "Simple"} if joined else {*PROTOCOLS}
        tell = jobs_note if all(left >= usual for left in pin.kept.values()) else jobs_warn
        yield tell("NCCL_PROTO", message, evidence(settings, "NCCL_PROTO"), _REMEDIES["NCCL_PROTO"])


def _said(
    name: str,
    pin: Pin,
    choices: Sequence[str],
    settings: Settings,
    gpus: Gpus | Absent,
    nvlinks: NvLinks | Absent,
    version: Version | None,
) -> Finding:
    """Return what a list for every collective leaves to NCCL: one choice, or several without those that it excludes."""
    shown, text = evidence(settings, name), settings.get(name)
    if all(len(left) < 2 for left in pin.kept.values()):
        harmless = all(left == {"Simple"} for left in pin.kept.values())  # large messages take it anyway
        return (jobs_note if harmless else jobs_warn)(
            name, f"{text!r} forces one choice on every collective at every size", shown, _REMEDIES[name]
        )
    out = [one for one in choices if not any(one in left for left in pin.kept.values())]
    message = f"{text!r} excludes {', '.join(out)} from every collective; NCCL chooses among the rest by size"
    if not out:
        message = f"{text!r} gives each collective its own list; NCCL chooses from the list by size"
    if "NVLS" in out and isinstance(gpus, Gpus) and nvls(gpus, nvlinks, settings, version).available:
        return jobs_warn(name, f"{message}. This node's NVLink SHARP is not used", shown, _REMEDIES[name])
    return jobs_note(name, message, shown, _REMEDIES[name])


def _lacking(
    settings: Settings,
    gpus: Gpus | Absent,
    nvlinks: NvLinks | Absent,
    launch: Launch | Absent,
    software: Software | Absent,
) -> frozenset[str]:
    """Return algorithms that this machine is known not to have (src/graph/tuning.cc:490)."""
    nodes = None if isinstance(launch, Absent) else launch.nnodes
    collnet = read_setting(settings, "NCCL_COLLNET_ENABLE", 0) != 0
    lacking = {"CollNetDirect", "CollNetChain"} if not collnet else set()
    if nodes == 1:
        lacking.add("NVLSTree")
    if isinstance(gpus, Gpus) and nvls(gpus, nvlinks, settings, loaded(software)).available is False:
        lacking |= {"NVLS", "NVLSTree"}
    return frozenset(lacking)


@check(
    group=DANGER_GROUP,
    slows=True,
    bad=lambda: [(setting("NCCL_IGNORE_DISABLED_P2P", "1"),)],
    good=lambda: [(setting("NCCL_IGNORE_DISABLED_P2P", "0"),)],
    applies=nccl_job,
)
def danger_knob(settings: Settings) -> Iterator[Finding]:
    """A setting can make results wrong, or hides a fault.

    Right: No setting that can make results wrong or hide a fault is in use.
    Why: with NCCL_CHUNK_SIZE at 1 MiB or more, all-reduce was faster but returned wrong sums (nccl#2408).
    NCCL_IGNORE_DISABLED_P2P lets a job start although the driver denies P2P over NVLink; the job then runs slowly.
    Fix: unset the variable, and repair what it hides.
    """
    size = read_setting(settings, "NCCL_CHUNK_SIZE", 0)
    if size >= _WRONG_RESULTS_BYTES:
        yield jobs_warn(
            "NCCL_CHUNK_SIZE",
            f"is {size} bytes: all-reduce may return wrong sums",
            evidence(settings, "NCCL_CHUNK_SIZE"),
        )
    elif size:
        yield jobs_note(
            "NCCL_CHUNK_SIZE",
            f"is {size} bytes; this variable is not documented",
            evidence(settings, "NCCL_CHUNK_SIZE"),
        )
    if read_setting(settings, "NCCL_IGNORE_DISABLED_P2P", 0) > 0:
        shown = evidence(settings, "NCCL_IGNORE_DISABLED_P2P")
        yield jobs_warn("NCCL_IGNORE_DISABLED_P2P", "hides that the driver denies P2P over NVLink", shown)
