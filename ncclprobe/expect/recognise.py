"""Recognise the machine type: the only one that fits the facts, or none and why.

The facts show what the machine has now (:mod:`ncclprobe.expect.visible`); a type has what it should have
(:mod:`ncclprobe.expect.tables.machines`).

Firmware that names the type (AWS, NVIDIA's own machines) decides, and the visible parts are compared with the type's. A
cloud whose firmware gives only the cloud's name leaves the types that the GPUs fit. There, parts may be missing,
because parts fail and none is added, but no more than half of them: half a machine is another product. If no firmware
names the type, every part must be present except NVLinks that are down. The expected links are the recognised type's,
or those that are visible.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ncclprobe.expect import assumed
from ncclprobe.expect.composed import composed, product_called
from ncclprobe.expect.system import NcclVersion, NodeSystem
from ncclprobe.expect.tables import gpus as gpu_table
from ncclprobe.expect.tables.machines import MachineType, Match, named, table
from ncclprobe.expect.visible import Facts, nics_of, nvlink_fabric, system_of
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Machine as Firmware
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import GpuFabric, Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import UsageError
from ncclprobe.model.layout import first_of
from ncclprobe.model.snapshot import Absent, learned
from ncclprobe.model.values import Struct, field, replace

_NVLINKS = "NVLinks of a GPU"
_NO_RDMA = (None, "sockets", "slingshot")
"""Networks whose NICs cannot be told apart for certain from the machine's other NICs."""
_FROM_HERE = ("nics", "nic_gbps", "network", "gdr", "nic_path", "processor", "sockets")


class MachineFacts(Struct, frozen=True):
    """The facts that tell types apart. None: unknown; `unknown` lists what and why.

    `gpus` includes those on the PCI bus that a container may not be given. `nvlinks` are those up on the GPU with the
    fewest. `nics` are those that serve GPUs, whether their port is up or not.
    """

    cloud: str = ""
    vendor: str = ""
    product: str = ""
    cpu: str = ""
    gpu_names: tuple[str, ...] = ()
    gpus: int | None = None
    nvlinks: int | None = None
    nics: int | None = None
    nic_gbps: float | None = None
    unknown: tuple[str, ...] = ()


class TypeDifference(Struct, frozen=True):
    """One property that differs from the type. `seen` None: unknown."""

    what: str
    seen: str | int | float | None
    expected: str | int | float

    def __str__(self) -> str:
        """Return ``NICs: 7, expected 8``."""
        seen = "not known" if self.seen is None else f"{self.seen:g}" if isinstance(self.seen, float) else self.seen
        expected = f"{self.expected:g}" if isinstance(self.expected, float) else self.expected
        return f"{self.what}: {seen}, expected {expected}"


class Recognised(Struct, frozen=True):
    """The only type that fits, or None. `candidates` are names: one, several (ambiguous), or none.

    `differs`: how this machine differs from the type (a NIC that fell out). `why` is one sentence for the reader.
    """

    machine: MachineType | None
    candidates: tuple[str, ...] = ()
    differs: tuple[TypeDifference, ...] = ()
    why: str = ""


def seen(facts: Facts, firmware: Firmware | Absent) -> MachineFacts:
    """Collect the identifying facts of a machine."""
    said = firmware if isinstance(firmware, Firmware) else Firmware()
    nics = nics_of(facts)
    names = sorted({gpu.name for gpu in facts.gpus.all if gpu.name}) if isinstance(facts.gpus, Gpus) else []
    links = nvlink_fabric(facts)[1] if isinstance(facts.nvlinks, NvLinks) else None
    missing = {"firmware": firmware, "GPUs": facts.gpus, "NVLinks": facts.nvlinks, "RDMA devices": facts.fabric}
    return MachineFacts(
        cloud=said.cloud,
        vendor=said.dmi.vendor,
        product=said.dmi.product,
        cpu=facts.cpus.model if isinstance(facts.cpus, Cpus) else "",
        gpu_names=tuple(names),
        gpus=_gpus(facts),
        nvlinks=links,
        nics=nics.count + nics.idle if nics.count + nics.idle or not isinstance(facts.fabric, Absent) else None,
        nic_gbps=nics.gbps,
        unknown=tuple(f"{name}: {fact.why}" for name, fact in missing.items() if isinstance(fact, Absent)),
    )


def _gpus(facts: Facts) -> int | None:
    """Return NVML's count or the PCI bus's, whichever is higher."""
    by_nvml = len(facts.gpus.all) if isinstance(facts.gpus, Gpus) else None
    by_pci = len(facts.pci.of("gpu")) if isinstance(facts.pci, Pci) else None
    return max((count for count in (by_nvml, by_pci) if count is not None), default=None)


def recognise(facts: MachineFacts, types: Iterable[MachineType] | None = None) -> Recognised:
    """Return the type that fits, among `types` or all known ones; a site's own take precedence."""
    known = list(table().values() if types is None else types)
    possible = [machine for machine in known if _host_fits(machine.match, facts)]
    if not possible:
        return Recognised(None, why=_unrecognised(facts))
    judged = [(machine, differences(machine, facts)) for machine in possible]
    exact = [machine for machine, differs in judged if not differs]
    fitting = exact or [machine for machine, differs in judged if _are_faults(machine, differs)]
    if not fitting:
        return Recognised(None, why=_nearest(judged))
    fitting = [machine for machine in fitting if machine.origin] or fitting  # a site knows its machines
    if len(fitting) > 1 or fitting[0].match.twins:
        names = tuple(sorted({m.name for m in fitting} | {t for m in fitting for t in m.match.twins}))
        return Recognised(None, names, why=f"ambiguous: {' and '.join(names)} fit; choose one with --machine")
    differs = differences(fitting[0], facts)
    why = f"{fitting[0].name}" + (f", though {'; '.join(map(str, differs))}" if differs else "")
    return Recognised(fitting[0], (fitting[0].name,), differs, why)


def should_be(found: Recognised, here: NodeSystem | Absent) -> NodeSystem | Absent:
    """Return the machine as its type should be; fields that no source states are as seen (`here`).

    For a board that any maker uses, the NICs are the maker's choice, so they are those present.
    """
    if found.machine is None:
        return here
    links, known = found.machine.links, found.machine.system()
    if isinstance(here, Absent):
        return known
    unsaid = [name for name in _FROM_HERE if name in links.unverified]
    if links.nics is None or links.nic_gbps is None:
        unsaid += [name for name in ("nics", "nic_gbps", "network") if name not in unsaid]
    return replace(known, **{name: getattr(here, name) for name in unsaid})


def _host_fits(match: Match, facts: MachineFacts) -> bool:
    """Return whether firmware and processor allow this type."""
    if match.by_name_only:
        return False
    if match.elsewhere and (facts.cloud or not facts.vendor or facts.vendor == "NVIDIA"):
        return False
    return (
        (not match.cloud or match.cloud == facts.cloud)
        and (not match.vendor or match.vendor == facts.vendor)
        and (not match.products or any(_begins(facts.product, product) for product in match.products))
        and (not match.cpus or any(word in facts.cpu.split() for word in match.cpus))
        and (bool(match.products) or not facts.gpu_names or set(facts.gpu_names) <= set(match.gpu_names))
        and (bool(match.products) or bool(facts.gpu_names))
    )


def _begins(product: str, words: str) -> bool:
    """Return whether a DMI name begins with `words`: ``DGXA100 920-23687-2530-000`` is a ``DGXA100``."""
    wanted = words.split()
    return product.split()[: len(wanted)] == wanted


def differences(machine: MachineType, facts: MachineFacts) -> tuple[TypeDifference, ...]:
    """Return how a machine differs from a type. Properties that no source states are not compared."""
    links, match = machine.links, machine.match
    found = []
    alike = set(facts.gpu_names) <= set(match.gpu_names)
    if not alike:
        found.append(TypeDifference("GPUs", ", ".join(facts.gpu_names), " or ".join(match.gpu_names)))
    if facts.gpus != links.gpus:
        found.append(TypeDifference("GPUs", facts.gpus, links.gpus))
    if facts.nvlinks is not None and facts.nvlinks != links.nvlinks and alike and facts.gpu_names:
        found.append(TypeDifference(_NVLINKS, facts.nvlinks, links.nvlinks))
    if links.nics is not None and links.network not in _NO_RDMA and "nics" not in links.unverified:
        if facts.nics != links.nics:
            rate = f"{links.nic_gbps:g} Gb/s " if links.nic_gbps else ""
            found.append(TypeDifference(f"{rate}NICs", facts.nics, links.nics))
        if links.nic_gbps is not None and facts.nic_gbps is not None and facts.nic_gbps != links.nic_gbps:
            found.append(TypeDifference("Gb/s per NIC", facts.nic_gbps, links.nic_gbps))
    return tuple(found)


def _are_faults(machine: MachineType, differs: Iterable[TypeDifference]) -> bool:
    """Return whether these differences are faults of this type, rather than signs of another type."""
    match = machine.match
    if match.products:
        return all(isinstance(d.expected, int | float) for d in differs)
    return all(_lost(d) and (match.cloud or d.what == _NVLINKS) for d in differs)


def _lost(difference: TypeDifference) -> bool:
    seen, expected = difference.seen, difference.expected
    if isinstance(seen, str) or isinstance(expected, str) or difference.what == "Gb/s per NIC":
        return False
    return seen is None or expected / 2 < seen < expected


def _nearest(judged: Iterable[tuple[MachineType, tuple[TypeDifference, ...]]], most: int = 3) -> str:
    """Describe the types with the fewest differences."""
    ranked = sorted(judged, key=lambda pair: (_far(pair[1]), pair[0].name))
    least = [pair for pair in ranked if _far(pair[1]) == _far(ranked[0][1])]
    told = [f"{machine.name} ({'; '.join(map(str, differs))})" for machine, differs in least]
    return f"no machine type fits; nearest: {first_of(told, most)}"


def _far(differs: Iterable[TypeDifference]) -> float:
    return sum(map(_distance, differs))


def _distance(difference: TypeDifference) -> float:
    """Return the distance of two values: 1 plus their relative difference, 2 for names and unknown values."""
    seen, expected = difference.seen, difference.expected
    if isinstance(seen, str) or isinstance(expected, str) or seen is None:
        return 2.0
    return 1 + abs(seen - expected) / max(seen, expected, 1)


def _unrecognised(facts: MachineFacts) -> str:
    """Return why no type is possible."""
    if facts.unknown and not facts.gpu_names:
        return f"no machine type fits; not known: {'; '.join(facts.unknown)}"
    gpus = f"{facts.gpus or 0} of {', '.join(facts.gpu_names)}" if facts.gpu_names else "no GPU"
    host = " ".join(filter(None, (facts.vendor, facts.product)))
    return f"no machine type has {host} with {gpus}" if host else f"the firmware names no machine, which has {gpus}"


_FACTS = {
    "gpus": Gpus,
    "nvlinks": NvLinks,
    "pci": Pci,
    "fabric": Fabric,
    "interfaces": Interfaces,
    "cpus": Cpus,
    "peers": PeerAccess,
    "gpudirect": GpuDirect,
}
assert set(_FACTS) == {*Facts.__struct_fields__}


class ExpectationContext(Struct, frozen=True):
    """The basis of expectations: `system`, or why there is none; `machine`, the recognised type.

    `why` is one sentence for the reader, `nccl` the version found there, `settings` what NCCL would read there.
    """

    system: NodeSystem | Absent
    machine: MachineType | None = None
    why: str = ""
    nccl: NcclVersion | None = None
    settings: Settings = field(default_factory=Settings)


def expectation_context(known: Mapping[type, Any]) -> ExpectationContext:
    """Build the context from the facts of one node, by type.

    A recognised type defines its machine, so that a NIC that fell out counts as lost. An unknown machine is taken as
    its links are now, because nothing else is known.
    """
    facts = _facts_of(known)
    if (told := _context_of_text(known)) is not None:
        return told
    found = recognise(seen(facts, known.get(Firmware, Absent("was not asked"))))
    software, settings = learned(known, Software), learned(known, Settings) or Settings()
    version = software.nccl_version if software else None
    if found.machine:
        differs = "; ".join(map(str, found.differs))
        why = f"this is {found.machine.name}" + (f", but for {differs}" if differs else "")
        return ExpectationContext(should_be(found, system_of(facts)), found.machine, why, version, settings)
    why = f"{found.why}; taken by its links as they are now"
    context = ExpectationContext(system_of(facts), None, why, version, settings)
    return _add_usual_nics(_add_board_links(context, facts), facts) if NamedMachine in known else context


def _facts_of(known: Mapping[type, Any]) -> Facts:
    """Return the facts that an expectation is based on. NICs of which a text shows only some do not count."""
    facts = Facts(**{name: known.get(kind, Absent("was not asked")) for name, kind in _FACTS.items()})
    cut = isinstance(facts.fabric, Fabric) and facts.fabric.cut
    return replace(facts, fabric=Absent("the pasted texts do not show every NIC")) if cut else facts


def _context_of_text(known: Mapping[type, Any]) -> ExpectationContext | None:
    """Return what pasted text names, if it does not show GPUs, or shows those of this type; None: it names nothing.

    The GPUs of a manifest do not reveal the network: such a machine is judged by what is inside it.
    """
    said, gpus, settings = learned(known, NamedMachine), learned(known, Gpus), learned(known, Settings) or Settings()
    if said is None:
        return None
    machine = named(said.type) if said.type else None
    if machine and (gpus is None or {gpu.name for gpu in gpus.all} <= {*machine.match.gpu_names}):
        return ExpectationContext(machine.system(), machine, f"the text names {machine.name}", None, settings)
    if gpus is not None or not said.gpu or said.gpus < 2:
        return None
    found, facts = _board(said), _facts_of(known)
    if found is None:
        return None
    if (nics := nics_of(facts)).count:
        shown = {"nics": nics.count, "nic_gbps": nics.gbps or 0.0, "network": nics.network, "gdr": True}
        found = replace(found, **shown)
    return ExpectationContext(found, None, f"the text names {said.gpus} x {found.gpu}", None, settings)


_ON_BOARDS = 8
_SOCKETED = ("", " sxm", " sxm4 80gb", " sxm2 32gb")
"""Suffixes that complete a short name such as h100 or a100, if a node has eight of them."""


def _board(said: NamedMachine) -> NodeSystem | None:
    name = product_named(said, said.gpus)
    return composed(f"{said.gpus} x {name}") if name else None


def product_named(said: NamedMachine, count: int) -> str:
    """Return NVML's name of the GPUs that a text names, by model or machine type; empty: none fits."""
    machine = named(said.type) if said.type else None
    if machine and machine.links.gpus == count:
        return machine.gpu
    for ending in _SOCKETED if count == _ON_BOARDS else ("",):
        try:
            return product_called(said.gpu + ending).name if said.gpu else ""
        except UsageError:
            continue
    return ""


def _add_board_links(context: ExpectationContext, facts: Facts) -> ExpectationContext:
    """Add the NVLinks of the board if texts show eight GPUs made for one, and no links."""
    system = context.system
    rows = () if isinstance(facts.nvlinks, Absent) else facts.nvlinks.gpus
    if isinstance(system, Absent) or system.gpus != _ON_BOARDS or not all(isinstance(row, Absent) for row in rows):
        return context
    product = gpu_table.table().get(system.gpu)
    if product is None or product.wiring != "board":
        return context
    board = composed(f"{system.gpus} x {system.gpu}")
    links = {name: getattr(board, name) for name in ("nvlinks", "nvlink_GBps", "fabric", "domain_gpus", "nvls", "p2p")}
    return replace(context, system=replace(system, **links), why=f"{context.why}; assumed: the NVLinks of its board")


def _add_usual_nics(context: ExpectationContext, facts: Facts) -> ExpectationContext:
    """Add NICs of the usual rate if texts name NICs but show neither rate nor state.

    A tray whose GPUs have joined a cluster of nodes belongs to a rack.
    """
    ports = facts.fabric.ports if isinstance(facts.fabric, Fabric) else ()
    system = context.system
    if isinstance(system, Absent) or system.nics:
        return context
    named = nics_of(facts).idle
    if not named or not all(isinstance(port.state, Absent) or isinstance(port.rate, Absent) for port in ports):
        return context
    try:
        usual = next(assumed.candidates(assumed.Node(system.gpu, system.gpus, 2)))
    except UsageError:
        return context
    found, why = usual.system, f"{context.why}; assumed: {usual.system.nic_gbps:g} Gb/s NICs"
    if found.domain_gpus > found.gpus:
        return (
            replace(context, system=found, machine=usual.machine, why=why)
            if _belong_to_cluster(facts.gpus)
            else context
        )
    network = system.network if system.network == "roce" else found.network
    nics = {"nics": named, "nic_gbps": found.nic_gbps, "network": network, "gdr": found.gdr}
    return replace(context, system=replace(system, **nics), why=why)


def _belong_to_cluster(gpus: Gpus | Absent) -> bool:
    known = gpus.all if isinstance(gpus, Gpus) else ()
    return any(isinstance(gpu.fabric, GpuFabric) and gpu.fabric.cluster.strip("0-") for gpu in known)
