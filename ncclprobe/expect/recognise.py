"""Which machine type this is: exactly one that fits the facts, or none and why. Never the first of several.

Firmware that names the type (AWS, NVIDIA's own machines) decides, and whatever else is seen is compared with what the
type should have. A cloud whose firmware gives only its own name leaves the types that its GPUs fit; there, parts may be
missing, because parts fail and none appears, but no more than half of them: half a machine is another product. Where
no firmware speaks, everything has to be there but NVLinks that are down.
"""

from collections.abc import Iterable

from ncclprobe.expect.observed import Facts, nics_of, nvlink_fabric
from ncclprobe.expect.system import NodeSystem
from ncclprobe.expect.tables.machine_types import MachineType, Match
from ncclprobe.expect.tables.machines import table
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.machine import Machine as Firmware
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace

_NVLINKS = "NVLinks of a GPU"
_NO_RDMA = (None, "sockets", "slingshot")
"""Networks whose NICs are not told for certain from others of the machine."""
_FROM_HERE = ("nics", "nic_gbps", "network", "gdr", "nic_path", "processor", "sockets")


class Seen(Struct, frozen=True):
    """What types are told apart by. None: not known; `unknown` says what and why.

    `gpus` counts those on the PCI bus too, which a container may not be given. `nvlinks` are those up of the GPU with
    the fewest, `nics` those that serve GPUs, whether their port is up or not.
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
    """One thing that is not as the type has it. `seen` None: not known."""

    what: str
    seen: str | int | float | None
    expected: str | int | float

    def __str__(self) -> str:
        """Return ``NICs: 7, expected 8``."""
        seen = "not known" if self.seen is None else f"{self.seen:g}" if isinstance(self.seen, float) else self.seen
        return f"{self.what}: {seen}, expected {_text(self.expected)}"


class Recognised(Struct, frozen=True):
    """The one type that fits, or None. `candidates` are its names: one, several (ambiguous), or none.

    `differs`: how this machine differs from the type (a NIC that fell out). `why` is one sentence for a reader.
    """

    machine: MachineType | None
    candidates: tuple[str, ...] = ()
    differs: tuple[TypeDifference, ...] = ()
    why: str = ""


def seen(facts: Facts, firmware: Firmware | Absent) -> Seen:
    """Return what a machine's facts say."""
    said = firmware if isinstance(firmware, Firmware) else Firmware()
    nics = nics_of(facts)
    names = sorted({gpu.name for gpu in facts.gpus.all if gpu.name}) if isinstance(facts.gpus, Gpus) else []
    links = nvlink_fabric(facts)[1] if isinstance(facts.nvlinks, NvLinks) else None
    missing = {"firmware": firmware, "GPUs": facts.gpus, "NVLinks": facts.nvlinks, "RDMA devices": facts.fabric}
    return Seen(
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
    """Return NVML's count or the PCI bus's, whichever is more."""
    by_nvml = len(facts.gpus.all) if isinstance(facts.gpus, Gpus) else None
    by_pci = len(facts.pci.of("gpu")) if isinstance(facts.pci, Pci) else None
    return max((count for count in (by_nvml, by_pci) if count is not None), default=None)


def recognise(facts: Seen, types: Iterable[MachineType] | None = None) -> Recognised:
    """Return the type that fits, of `types` or all that are known; a site's own before ours."""
    known = list(table().values() if types is None else types)
    possible = [machine for machine in known if _host_fits(machine.match, facts)]
    if not possible:
        return Recognised(None, why=_unrecognised(facts))
    judged = [(machine, differences(machine, facts)) for machine in possible]
    exact = [machine for machine, differs in judged if not differs]
    fitting = exact or [machine for machine, differs in judged if _bearable(machine, differs)]
    if not fitting:
        return Recognised(None, why=_nearest(judged))
    fitting = [machine for machine in fitting if machine.origin] or fitting  # a site knows its machines
    if len(fitting) > 1 or fitting[0].match.twins:
        names = tuple(sorted({m.name for m in fitting} | {t for m in fitting for t in m.match.twins}))
        return Recognised(None, names, why=f"ambiguous: {' or '.join(names)} fit; --machine says which")
    differs = differences(fitting[0], facts)
    why = f"{fitting[0].name}" + (f", though {'; '.join(map(str, differs))}" if differs else "")
    return Recognised(fitting[0], (fitting[0].name,), differs, why)


def should_be(found: Recognised, here: NodeSystem | Absent) -> NodeSystem | Absent:
    """Return the machine as it should be: as its type, but for what no source states of the type; that is as `here`
    seen.

    Of a board of any maker the NICs are the maker's choice, so they are those that are here.
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


def _host_fits(match: Match, facts: Seen) -> bool:
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
    """Return whether a DMI name is `words`, or begins with them: ``DGXA100 920-23687-2530-000`` is a ``DGXA100``."""
    wanted = words.split()
    return product.split()[: len(wanted)] == wanted


def differences(machine: MachineType, facts: Seen) -> tuple[TypeDifference, ...]:
    """Return how a machine differs from a type. What no source states of the type is not compared."""
    links, match = machine.links, machine.match
    found = []
    if facts.gpu_names and not set(facts.gpu_names) <= set(match.gpu_names):
        found.append(TypeDifference("GPUs", ", ".join(facts.gpu_names), " or ".join(match.gpu_names)))
    if facts.gpus != links.gpus:
        found.append(TypeDifference("GPUs", facts.gpus, links.gpus))
    if facts.nvlinks is not None and facts.nvlinks != links.nvlinks and _alike(machine, facts):
        found.append(TypeDifference(_NVLINKS, facts.nvlinks, links.nvlinks))
    if links.nics is not None and links.network not in _NO_RDMA and "nics" not in links.unverified:
        if facts.nics != links.nics:
            rate = f" of {links.nic_gbps:g} Gb/s" if links.nic_gbps else ""
            found.append(TypeDifference(f"NICs{rate}", facts.nics, links.nics))
        if links.nic_gbps is not None and facts.nic_gbps is not None and facts.nic_gbps != links.nic_gbps:
            found.append(TypeDifference("Gb/s of a NIC", facts.nic_gbps, links.nic_gbps))
    return tuple(found)


def _alike(machine: MachineType, facts: Seen) -> bool:
    """Return whether the GPUs seen are the type's; the links of another product are another matter."""
    return bool(facts.gpu_names) and set(facts.gpu_names) <= set(machine.match.gpu_names)


def _bearable(machine: MachineType, differs: Iterable[TypeDifference]) -> bool:
    """Return whether these differences are this type with something wrong, not another type."""
    match = machine.match
    if match.products:
        return all(isinstance(d.expected, int | float) for d in differs)
    return all(_lost(d) and (match.cloud or d.what == _NVLINKS) for d in differs)


def _lost(difference: TypeDifference) -> bool:
    seen, expected = difference.seen, difference.expected
    if isinstance(seen, str) or isinstance(expected, str) or difference.what == "Gb/s of a NIC":
        return False
    return seen is None or expected / 2 < seen < expected


def _nearest(judged: Iterable[tuple[MachineType, tuple[TypeDifference, ...]]], most: int = 3) -> str:
    """Return the types that differ least, each with how."""
    ranked = sorted(judged, key=lambda pair: (_far(pair[1]), pair[0].name))
    least = [pair for pair in ranked if _far(pair[1]) == _far(ranked[0][1])]
    told = [f"{machine.name} ({'; '.join(map(str, differs))})" for machine, differs in least[:most]]
    return f"no machine type fits; nearest: {', '.join(told)}" + (", …" if len(least) > most else "")


def _far(differs: Iterable[TypeDifference]) -> float:
    return sum(map(_distance, differs))


def _distance(difference: TypeDifference) -> float:
    """Return how far two things are apart: 1 plus the share by which they differ, 2 for names and what is not known."""
    seen, expected = difference.seen, difference.expected
    if isinstance(seen, str) or isinstance(expected, str) or seen is None:
        return 2.0
    return 1 + abs(seen - expected) / max(seen, expected, 1)


def _unrecognised(facts: Seen) -> str:
    """Return why no type is possible at all."""
    if facts.unknown and not facts.gpu_names:
        return f"no machine type fits; not known: {'; '.join(facts.unknown)}"
    gpus = ", ".join(facts.gpu_names) or "no GPU"
    host = " ".join(filter(None, (facts.vendor, facts.product))) or "firmware that names nothing"
    return f"no machine type has {host} with {facts.gpus or 0} of {gpus}"


def _text(value: str | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
