"""The network that a communicator uses: the first plugin that starts, otherwise NCCL's own InfiniBand, otherwise
sockets.

Source: src/plugin/net.cc ncclNetInit and src/plugin/plugin_open.cc (v2.30.7): NCCL_NET_PLUGIN's libraries in order, or
``libnccl-net.so``, then IB and Socket; NCCL_NET excludes all networks with another name, and if none is left, each
communicator fails with "Failed to initialize any NET plugin", on one node too. Names of networks are those in the
plugins' sources.

NCCL uses EFA's ports through AWS's plugin and libfabric; its own transport does not support them. Source: aws-ofi-nccl,
README.md and src/nccl_ofi_net.cpp (its network name, the provider it requests). The kernel shows EFA's link layer as
``Unknown`` (drivers/infiniband/core/sysfs.c, link_layer_show), ibv_devinfo as Unspecified.

The settings that a vendor prescribes for its network are right there, though they are a mistake elsewhere. The data is
``vendors.csv`` in this folder: for each vendor a row with its source and date, then a row per variable with the values
in its documents (``*``: any), over all their editions. `must`: every edition has it, and a job must set it.
"""

import csv
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.machine import Machine, System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.plugins import Linking, Plugin, Plugins
from ncclprobe.facts.software import Software, Version, reaches
from ncclprobe.model.errors import ParseError, Unlearned
from ncclprobe.model.nccl_selection import Choices, Decision, HcaChoice, InterfaceChoice, NetworkChoice
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, grouped, replace
from ncclprobe.nccl.hcas import LAYERS, fast, gbps, select_by

T = TypeVar("T")
_MOST_DIFFERENT = 64
"""The most different facts for which a part is cached: if more nodes differ, the next one will too."""


class NetworkFacts(Struct, frozen=True):
    """The facts of a node."""

    facts: Mapping[type, Any]

    def need(self, kind: type[T]) -> T:
        """Return the fact of this type. Raises Unlearned if it is absent."""
        fact = self.maybe(kind)
        if isinstance(fact, Absent):
            raise Unlearned(fact.why)
        return fact

    def maybe(self, kind: type[T]) -> T | Absent:
        fact: T | Absent = self.facts.get(kind, Absent(f"{kind.__name__} was never collected"))
        return fact

    @property
    def settings(self) -> Settings:
        return self.need(Settings)

    @property
    def version(self) -> Version | None:
        """Return the version of NCCL that a job would load; None (the newest known) if there is none."""
        software = self.maybe(Software)
        return software.nccl_version if isinstance(software, Software) else None

    @property
    def gpus(self) -> Gpus:
        """Return the GPUs that NVML can read."""
        gpus = self.need(Gpus)
        return replace(gpus, all=tuple(gpu for gpu in gpus.all if not gpu.lost))

    def set(self, *names: str) -> str:
        """Return the `names` that are set: ``NCCL_IB_HCA=mlx5 (environment)``; empty: none."""
        rows = [self.settings.effective[name] for name in names if self.settings.get(name)]
        return ", ".join(f"{row.name}={row.value} ({row.origin})" for row in rows)


class Choosing:
    """A cache of parts chosen from nodes' facts.

    Nodes of a fleet share equal facts, which are compared by identity; a part depends only on the facts that it used.
    """

    def __init__(self) -> None:
        self._made: dict[Any, list[tuple[Mapping[type, Any], Any]]] = {}

    def part(self, decide: Callable[[NetworkFacts], Decision[T]], facts: Mapping[type, Any]) -> Decision[T]:
        """Return the result of `decide` for these facts."""
        before = self._made.setdefault(decide, [])
        for asked, made in before:
            if all(_same(kind, facts.get(kind), fact) for kind, fact in asked.items()):
                return cast(Decision[T], made)
        watched = _Watched(facts)
        chosen = part(decide, NetworkFacts(watched))
        if len(before) < _MOST_DIFFERENT:
            before.append((watched.asked, chosen))
        return chosen


class _Watched(dict[type, Any]):
    """Facts that record which of them were used."""

    def __init__(self, facts: Mapping[type, Any]) -> None:
        super().__init__(facts)
        self.asked: dict[type, Any] = {}

    def get(self, kind: type, default: Any = None) -> Any:
        self.asked[kind] = super().get(kind)
        return super().get(kind, default)


def _same(kind: type, one: Any, other: Any) -> bool:
    """Return whether two facts are equal. Only the architecture of the system counts; settings are few."""
    if kind is System and isinstance(one, System) and isinstance(other, System):
        return one.machine == other.machine
    return one is other or (kind is Settings and bool(one == other))


def part(decide: Callable[[NetworkFacts], Decision[T]], known: NetworkFacts) -> Decision[T]:
    try:
        return decide(known)
    except (Unlearned, ParseError) as gap:
        return Decision(None, str(gap))


def refused(subject: str, why: str) -> Decision[Any]:
    return Decision((), f"{why}, so NCCL does not start", refused=True, subject=subject)


_NETWORK = "libfabric"
"""In the plugin's network name for NCCL_NET, "AWS Libfabric" (and "Libfabric" in newer ones)."""


def efa_ports(fabric: Fabric) -> tuple[Port, ...]:
    """Return the ports, including down ones, with a link layer that only a plugin supports."""
    return tuple(port for port in fabric.ports if isinstance(port.link_layer, str) and port.link_layer not in LAYERS)


def ofi_plugin_named(settings: Settings) -> bool:
    """Return whether the network plugin is named by path, so that the loader's folders do not matter."""
    return any(path.startswith("/") for path in (settings.get("NCCL_NET_PLUGIN") or "").split(","))


def other_provider(settings: Settings) -> bool:
    """Return whether settings make libfabric use providers other than EFA's."""
    provider = (settings.get("FI_PROVIDER") or "").lower()  # strcasecmp (libfabric src/fabric.c)
    return bool(provider) and ("efa" in provider.removeprefix("^").split(",")) is provider.startswith("^")


_OF_THE_KERNEL = frozenset({"tcp", "sockets", "udp", "net", "ofi_rxm", "ofi_rxd"})
"""Providers of libfabric that use kernel sockets (fi_provider(7)), and the layers above them."""


def over_kernel(settings: Settings) -> bool:
    """Return whether settings leave libfabric only kernel-socket providers: ``tcp;ofi_rxm``."""
    listed = {name for each in (settings.get("FI_PROVIDER") or "").split(",") for name in each.split(";") if name}
    return bool(listed) and listed <= _OF_THE_KERNEL


NAMES: Mapping[str, tuple[str, ...]] = {
    "ofi": ("AWS Libfabric", "Libfabric"),  # aws-ofi-nccl src/nccl_ofi_interface_nvidia.cpp, and since 1.15
    "tcpx": ("GPUDirectTCPX",),  # GPUDirectTCPX_v7; GKE, gpudirect-tcpx/nccl-config.yaml
    "tcpxo": ("FasTrak",),  # GKE, gpudirect-tcpxo/README.md
    "gib": ("gIB",),  # GKE, gpudirect-rdma/nccl-rdma-installer.yaml
    "sharp": ("IBext", "SHARP"),  # nccl-rdma-sharp-plugins src/ib_plugin.c: IBext_v8 …
    "ucx": ("UCX",),  # the same, src/ucx_plugin.c
}
"""Names of plugins' networks, by flavour; a version may follow. Other plugins' network names are unknown."""
_VERSIONED = ("tcpx", "sharp", "ucx")
_OVER_HCAS = ("sharp", "ucx", "gib")
"""Plugins that use the same ports as NCCL's own transport."""
_IFNAMES = {"tcpx": "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "tcpxo": "NCCL_FASTRAK_IFNAME"}
_FEWEST_GVE = 4
_HSN = re.compile(r"hsn[0-9]{1,2}")
_DEFAULT = "libnccl-net.so"
_NONE, _STATIC = "none", "static_plugin"


class NetworkLibrary(Struct, frozen=True):
    """One library that NCCL would open for a network.

    `plugin` None: the loader does not find it. `broken`: why it cannot be loaded. `anywhere`: the loader's path could
    not be read, so the library may be anywhere.
    """

    name: str
    plugin: Plugin | None = None
    broken: str = ""
    anywhere: bool = False

    def may_be(self, network: str) -> bool:
        """Return whether its network may have this name."""
        if self.plugin is None:
            return self.anywhere
        wanted = network.lower()
        if self.plugin.names:
            return wanted in map(str.lower, self.plugin.names)
        known = NAMES.get(self.plugin.flavour)
        if known is None:
            return wanted not in ("ib", "socket")
        names = [name.lower() for name in known]
        return wanted in names or (self.plugin.flavour in _VERSIONED and wanted.startswith(tuple(names)))


def asked_plugins(known: NetworkFacts) -> tuple[NetworkLibrary, ...]:
    """Return the libraries that NCCL opens for a network, in order."""
    text = known.settings.get("NCCL_NET_PLUGIN")
    names = [_DEFAULT] if text is None else [name for name in text.split(",") if name]
    if names[:1] == [_NONE] or (text or "").lower() == _NONE:
        return ()
    return tuple(_requested_plugin(name, known) for name in names)


def _requested_plugin(name: str, known: NetworkFacts) -> NetworkLibrary:
    every = known.need(Plugins).all
    if name.startswith("/"):
        found = next((each for each in every if each.path == name), None)
    else:
        files = (name, f"libnccl-net-{name}.so")
        ready = [each for each in every if each.reachable]
        found = next((p for file in files for p in ready if PurePosixPath(p.path).name == file), None)
    if found is None:
        usual = "/" not in name and (name.startswith("libnccl") or not name.endswith(".so"))
        return NetworkLibrary(name, anywhere=not usual or name.lower() == _STATIC)
    return NetworkLibrary(
        name, found, _load_failure(found, known.maybe(Linking)) or _unfit_reason(found, known.version)
    )


_TAKES: dict[tuple[int, ...], tuple[int, float]] = {
    (2, 30, 3): (6, math.inf),  # 12, and what later releases add
    (2, 28, 3): (6, 11),
    (2, 26, 2): (6, 10),
    (2, 24, 3): (5, 9),
    (2, 20, 3): (5, 8),
    (2, 19): (5, 7),
    (2, 13, 4): (4, 6),
    (2, 12, 7): (4, 5),
    (2, 8): (4, 4),
    (2, 6): (3, 3),
}
"""First release, and the oldest and newest plugin interfaces that it accepts (src/net.cc, src/plugin/net.cc: what it
looks up by dlsym, in every release's source).
"""


def _unfit_reason(plugin: Plugin, version: Version | None) -> str:
    """Return why this NCCL accepts none of the plugin's interfaces; empty: it accepts one, or none is known."""
    oldest, newest = next((each for since, each in _TAKES.items() if reaches(version, since)), (0, math.inf))
    if not plugin.interfaces or any(oldest <= each <= newest for each in plugin.interfaces):
        return ""
    library = f"NCCL {'.'.join(map(str, version))}" if version else "the newest NCCL"
    offered = ", ".join(f"v{each}" for each in plugin.interfaces)
    up_to = "and later" if newest == math.inf else f"to v{newest}"
    return f"it offers ncclNetPlugin {offered}, and {library} takes v{oldest} {up_to}"


def _load_failure(plugin: Plugin, linking: Linking | Absent) -> str:
    """Return why the plugin cannot be loaded; empty if no reason is known."""
    libraries = linking.libraries if isinstance(linking, Linking) and linking.plugin == plugin.path else ()
    for each in libraries:
        if each.needed_by == plugin.path and not each.path:
            return f"it needs {each.name}, which the loader cannot find"
        if each.needed_by == plugin.path and each.lacks:
            return f"{each.path} lacks {', '.join(each.lacks)}"
    return ""


def network(
    known: NetworkFacts, hcas: Decision[HcaChoice], sockets: Decision[InterfaceChoice]
) -> Decision[NetworkChoice]:
    """Return NCCL's network. `hcas` and `sockets` are the devices of its own two networks."""
    wanted = known.settings.get("NCCL_NET") or ""
    passed = [known.set("NCCL_NET", "NCCL_NET_PLUGIN")]
    for asked in asked_plugins(known):
        if wanted and not asked.may_be(wanted):
            names = (asked.plugin.names or NAMES.get(asked.plugin.flavour)) if asked.plugin else None
            passed += [f"the network of {asked.name} is called {' or '.join(names)}" if names else _missing(asked)]
            continue
        taken = _plugin_network(asked, known, sockets)
        if not isinstance(taken, str):
            return taken
        passed += [taken]
    for own in _own_networks(hcas, sockets, wanted, known):
        if own.chosen != () or own.refused:
            passed += [_missing_plugin(known)] if own.chosen and own.chosen[0].name == "Socket" and not wanted else []
            reasons = [why for why in passed if why] or [own.why]
            return replace(own, why="; ".join(dict.fromkeys(reasons)))
        passed += [own.why]
    if wanted.lower() not in ("", "ib", "socket") and not known.need(Plugins).shown:
        return Decision(None, f"{known.set('NCCL_NET')}: the plugins of the node are not known")
    return refused("NCCL_NET", "; ".join(filter(None, passed)) or "no network is left")


def _missing_plugin(known: NetworkFacts) -> str:
    """Return which plugin this node's devices need; empty: none, or it was found."""
    if any(asked.plugin for asked in asked_plugins(known)):
        return ""
    if any(port.state == "ACTIVE" for port in efa_ports(known.need(Fabric))) or _slingshot(known):
        return "the loader finds no OFI plugin (libnccl-net.so)"
    return "the loader finds none of Google's plugins (libnccl-net.so)" if _gve(known) else ""


def _missing(asked: NetworkLibrary) -> str:
    return "" if asked.plugin or asked.name == _DEFAULT else f"the loader finds no {asked.name}"


def _plugin_network(
    asked: NetworkLibrary, known: NetworkFacts, sockets: Decision[InterfaceChoice]
) -> Decision[NetworkChoice] | str:
    """Return the plugin's network, or why it is skipped."""
    plugin = asked.plugin
    if plugin is None:
        if asked.anywhere:
            return Decision(None, f"the plugin {asked.name} is asked first, and what it takes is not known")
        return _missing(asked)
    if asked.broken:
        return f"{plugin.path} cannot be loaded: {asked.broken}"
    flavour = plugin.flavour or next((name for name, each in _IFNAMES.items() if known.settings.get(each)), "")
    if flavour == "ofi" and over_kernel(known.settings):
        why = f"{known.set('FI_PROVIDER')}: {plugin.path} goes through the kernel"
        return replace(_socket_network(sockets, known, plugin.path), why=why) if sockets.chosen else Decision(None, why)
    over = part(partial(_plugin_devices, flavour), known)
    if over.chosen is None:
        return Decision(None, f"the network plugin {plugin.path} is asked first: {over.why}")
    if not over.chosen:
        return f"the network plugin {plugin.path} finds no device: {over.why}"
    chosen = replace(_choice(NAMES[flavour][0], over.chosen, plugin.path), version=plugin.told())
    return Decision((chosen,), f"the plugin {plugin.path}")


def _plugin_devices(flavour: str, known: NetworkFacts) -> Decision[HcaChoice]:
    """Return the devices that a plugin uses; None: unknown."""
    if flavour in _OVER_HCAS:
        ports = select_by(known.need(Fabric), known.settings, known.version).taken
        return Decision(tuple(map(hca_choice, ports)), known.set("NCCL_IB_HCA") or "no port is active")
    if variable := _IFNAMES.get(flavour):
        named = (known.settings.get(variable) or "").split(",")
        rows = tuple(HcaChoice(i.name, _gbps(i), variable) for i in known.need(Interfaces).all if i.name in named)
        return Decision(rows or None, f"{variable} names {'them' if rows else 'no interface of this node'}")
    if flavour != "ofi":
        return Decision(None, "what it takes is not known")
    if other_provider(known.settings) and known.settings.get("FI_PROVIDER") != "cxi":
        return Decision(None, f"{known.set('FI_PROVIDER')}: what that has is not known")
    ports, slingshot = efa_ports(known.need(Fabric)), _slingshot(known)
    active = slingshot or tuple(hca_choice(port) for port in ports if port.state == "ACTIVE")
    if active or ports:
        return Decision(active, "no EFA device is active")
    return Decision(None, "what libfabric has is not known")


def _slingshot(known: NetworkFacts) -> tuple[HcaChoice, ...]:
    """Return the interfaces of HPE's Slingshot, which are not RDMA devices of the kernel."""
    return tuple(
        HcaChoice(i.name, _gbps(i), "Slingshot, up")
        for i in known.need(Interfaces).all
        if i.running and (i.driver.startswith("cxi") or _HSN.fullmatch(i.name))
    )


def fast_nics(known: NetworkFacts) -> Decision[HcaChoice]:
    """Return the active devices for GPU traffic: RDMA ports, EFA, Slingshot, Google's data NICs."""
    fabric = known.need(Fabric)
    ours = [port for device in fabric.devices if device.pci is not None for port in device.ports]
    usable = [port for port in ours if port.state == "ACTIVE" and port.link_layer in LAYERS]
    efa = [port for port in efa_ports(fabric) if port.state == "ACTIVE"]
    rows = (*map(hca_choice, (*fast(usable), *efa)), *(() if usable or efa else (*_slingshot(known), *_gve(known))))
    return Decision(rows, "ACTIVE devices" if rows else "no RDMA device is ACTIVE, and no Slingshot NIC was found")


def _gve(known: NetworkFacts) -> tuple[HcaChoice, ...]:
    """Return Google's NICs for GPUs (A3 High and Mega): every gVNIC but the first, if there are about four more."""
    found = [i for i in known.need(Interfaces).all if i.driver == "gve" and i.running]
    return tuple(HcaChoice(i.name, _gbps(i), "gVNIC, up") for i in found[1:]) if len(found) > _FEWEST_GVE else ()


def _gbps(interface: Interface) -> float | None:
    return interface.speed_mbps / 1000 if interface.speed_mbps else None


def hca_choice(port: Port) -> HcaChoice:
    """Describe a port that is used."""
    return HcaChoice(port.name, gbps(port), f"{port.state}, {port.link_layer}")


def _own_networks(
    hcas: Decision[HcaChoice], sockets: Decision[InterfaceChoice], wanted: str, known: NetworkFacts
) -> Iterator[Decision[NetworkChoice]]:
    """Yield NCCL's own networks in order; without devices, those that would have none."""
    if wanted.lower() in ("", "ib"):
        rows = None if hcas.chosen is None else (_choice("IB", hcas.chosen, ""),) if hcas.chosen else ()
        yield Decision(rows, hcas.why)
    if wanted.lower() in ("", "socket"):
        yield _socket_network(sockets, known)


def _socket_network(
    sockets: Decision[InterfaceChoice], known: NetworkFacts, plugin: str = ""
) -> Decision[NetworkChoice]:
    """Return sockets as a network: NCCL's own, or a plugin's whose libfabric uses the kernel."""
    names = tuple(each.name for each in sockets.chosen or ())
    rates = [_gbps(i) for i in known.need(Interfaces).all if i.name in names]
    taken = (NetworkChoice("Socket", plugin, names, _total(rates), sockets.why),) if names else ()
    return Decision(None if sockets.chosen is None else taken, sockets.why, sockets.refused, sockets.subject)


def _choice(name: str, devices: Sequence[HcaChoice], plugin: str) -> NetworkChoice:
    rate = _total([device.rate_gbps for device in devices])
    return NetworkChoice(name, plugin, tuple(device.port for device in devices), rate, devices[0].why)


def _total(rates: Sequence[float | None]) -> float | None:
    """Return the rate of all devices together; None if one is unknown."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


TITLES: Mapping[str, str] = {
    "tcpxo": "Google's GPUDirect-TCPXO",
    "tcpx": "Google's GPUDirect-TCPX",
    "gib": "Google's gIB",
    "efa": "AWS for EFA",
    "cxi": "HPE for Slingshot",
    "oci": "Oracle for its RDMA network",
    "azure": "Azure for its InfiniBand",
    "sharp": "NVIDIA for SHARP",
}
_BEGINNINGS = {
    "tcpxo": ("NCCL_FASTRAK_",),
    "tcpx": ("NCCL_GPUDIRECTTCPX_",),
    "efa": ("FI_EFA_",),
    "cxi": ("FI_CXI_",),
    "oci": ("RX_QUEUE_LEN", "IB_RX_QUEUE_LEN"),
    "sharp": ("SHARP_",),
}
"""Prefixes of variables that only one vendor prescribes."""
_VALUES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "tcpxo": (("NCCL_NET", "fastrak"),),
    "gib": (("NCCL_NET", "gib"), ("NCCL_TUNER_CONFIG_PATH", "/usr/local/gib"), ("NCCL_IB_FIFO_TC", "84")),
    "efa": (("FI_PROVIDER", "efa"), ("NCCL_NET_PLUGIN", "/opt/amazon"), ("NCCL_TUNER_PLUGIN", "/opt/amazon")),
    "cxi": (("FI_PROVIDER", "cxi"), ("NCCL_SOCKET_IFNAME", "hsn")),
    "oci": (("NCCL_IB_TC", "41"),),
    "azure": (("NCCL_TOPO_FILE", "/opt/microsoft"),),
    "sharp": (("NCCL_ALGO", "collnet"),),
}
"""Prefixes of values that indicate the same."""
_ANY_CASE = ("NCCL_PROTO", "NCCL_ALGO", "OFI_", "FI_")
"""Prefixes of variables whose readers ignore case."""
_CLOUDS = {"oracle": "oci", "azure": "azure"}
_NETWORKS = {"FasTrak": "tcpxo", "GPUDirectTCPX": "tcpx", "gIB": "gib", "AWS Libfabric": "efa"}


def of_another(vendor: str, network: str) -> bool:
    """Return whether a value of NCCL_NET is the network of another vendor's plugin. Slingshot shares AWS's."""
    owner = next((own for name, own in _NETWORKS.items() if _plain(name) == network), vendor)
    return owner != vendor and (owner, vendor) != ("efa", "cxi")


class _Prescription(Struct, frozen=True):
    """One variable of one vendor. `values` empty: any; `must`: every edition has it."""

    vendor: str
    name: str
    values: tuple[str, ...]
    must: bool

    def allows(self, text: str | None) -> bool:
        """Return whether the vendor prescribes this value; a value that is not recorded counts as prescribed."""
        if text is None or text in self.values or not self.values:
            return text is None or _plain(text) != _NONE or text in self.values
        return (self.name == "NCCL_NET" or self.name.startswith(_ANY_CASE)) and _plain(text) in map(_plain, self.values)

    def leaves(self, text: str | None) -> bool:
        """Return whether another value still includes the prescribed one: in a list of algorithms, or as a size."""
        listed, excludes = set(_plain(text or "").removeprefix("^").split(",")), (text or "").startswith("^")
        given = [set(_plain(each).split(",")) for each in self.values]
        within = any(each.isdisjoint(listed) if excludes else each <= listed for each in given)
        return not self.must and (within or self.name.endswith(("BUFFSIZE", "CHUNKSIZE", "CHUNK_SIZE")))


class Compared(Struct, frozen=True):
    """A node's settings against the vendors' prescriptions: conforming names, deviating names, and missing names."""

    right: Mapping[str, str]
    other: tuple[tuple[Setting, _Prescription], ...]
    missing: tuple[_Prescription, ...]


def _plain(text: str) -> str:
    return text.strip().lower()


@cache
def _table() -> tuple[Mapping[str, str], tuple[_Prescription, ...]]:
    data = pkgutil.get_data("ncclprobe.nccl", "vendors.csv")
    _, *rows = csv.reader((data or b"").decode().splitlines())
    sources = {vendor: values for vendor, _, values, need in rows if need == "source"}
    made = (
        _Prescription(vendor, name, () if values == "*" else tuple(values.split("|")), need == "must")
        for vendor, name, values, need in rows
        if need != "source"
    )
    return sources, tuple(made)


def source(vendor: str) -> str:
    """Return the source of a vendor's prescriptions."""
    return _table()[0][vendor]


def in_use(settings: Settings, machine: Machine | Absent, choices: Choices) -> tuple[str, ...]:
    """Return the vendors whose network this job is configured for: by its plugin, by the cloud, or by
    their settings.
    """
    taken = choices.network.chosen or ()
    elsewhere = bool(taken) and taken[0].name == "IB"  # no plugin of these reaches NCCL's own network
    found = {name for name in TITLES if any(_marks(name, settings)) and not (elsewhere and name in _PLUGINS_ALONE)}
    over = _NETWORKS.get(taken[0].name, "") if taken else ""
    found |= {"cxi" if over == "efa" and any(d.startswith("hsn") for d in taken[0].devices) else over} - {""}
    cloud = _CLOUDS.get(machine.cloud, "") if isinstance(machine, Machine) else ""
    found |= {cloud} if cloud and taken and taken[0].name == "IB" else set()
    built = network_of(machine)
    found = {built} if built else found
    found -= {"efa"} if "cxi" in found else set()
    asked = settings.get("SHARP_COLL_ENABLE_SAT") not in (None, "0")
    turned_off = settings.get("NCCL_COLLNET_ENABLE") == "0" and not asked
    found -= {"sharp"} if turned_off else set()
    return tuple(name for name in TITLES if name in found)


_OF_TYPES = {
    **dict.fromkeys(("p4d", "p5", "p6"), "efa"),
    **dict.fromkeys(("a3-high", "a3-edge"), "tcpx"),
    **dict.fromkeys(("a3-ultra", "a4"), "gib"),
    **{"a3-mega": "tcpxo", "bm.gpu": "oci", "standard_nd": "azure"},
}
"""Networks of machine types, by prefix."""


_PLUGINS_ALONE = ("tcpxo", "tcpx", "efa", "cxi")
"""Vendors whose network only their plugin reaches."""


def network_of(machine: Machine | Absent) -> str:
    """Return the vendor of a machine's GPU network, by the name of its type; empty: none, or unknown."""
    name = machine.instance_type if isinstance(machine, Machine) else ""
    return next((vendor for begin, vendor in _OF_TYPES.items() if name.startswith(begin)), "")


def named_network(settings: Settings) -> bool:
    """Return whether settings are for a network that only a vendor's plugin reaches, not NCCL's own transport."""
    return any(any(_marks(name, settings)) for name in _PLUGINS_ALONE)


def _marks(vendor: str, settings: Settings) -> Iterator[bool]:
    yield any(name.startswith(_BEGINNINGS.get(vendor, ("\0",))) for name in settings.effective)
    yield vendor == "efa" and "/opt/amazon/" in (settings.get("LD_LIBRARY_PATH") or "")
    if vendor == "sharp" and settings.get("NCCL_COLLNET_ENABLE") in (None, "0"):
        return  # the algorithm alone is not used
    for name, begins in _VALUES.get(vendor, ()):
        text = _plain(settings.get(name) or "")
        yield text == begins if begins.isdecimal() else text.removeprefix("=").startswith(begins)


def compared(settings: Settings, vendors: Sequence[str]) -> Compared:
    """Compare the settings with these vendors' prescriptions. If two prescribe one variable, both values are right."""
    by_name = grouped((each.name, each) for each in _table()[1] if each.vendor in vendors)
    right: dict[str, str] = {}
    other, missing = [], []
    for name, rows in by_name.items():
        entry = settings.effective.get(name)
        if entry is None or entry.value == "":  # which NCCL and libfabric take for one that is not set
            missing += [row for row in rows if row.must]
        elif allowing := next((row for row in rows if row.allows(entry.value)), None):
            right[name] = allowing.vendor
        else:
            other += [(entry, rows[0])]
    return Compared(right, tuple(other), tuple(missing))
