"""The devices of a node: each state, setting and error counter under its own name, for comparing two captures."""

from collections.abc import Iterator, Mapping
from typing import Any

from ncclprobe.facts.infiniband import Fabric, Rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.facts.pci import Pci, PcieLink
from ncclprobe.model.snapshot import Absent, learned
from ncclprobe.model.values import Struct

_OF_THE_MOMENT = frozenset(
    {"memory_used_bytes", "processes", "throttle", "temperature_C", "pcie_generation", "clock_MHz", "carrier_changes"}
)
"""Values that work and heat change from one minute to the next."""
_OF_LISTS = frozenset({"ports", "counters", "hw_counters", "index", "device", "number", "name", "link", "address"})
"""Fields that have their own lines, or that name the device."""
_ERRORS = ("err", "retr", "timeout", "discard", "down", "recover", "sequence", "dropped")


def states(facts: Mapping[type, Any]) -> dict[str, str]:
    """Return the states of each port, GPU, NVLink, interface and PCIe device as texts: ``mlx5_0:1 state``."""
    return {f"{name} {what}".rstrip(): text for name, what, text in _all(facts)}


def _all(facts: Mapping[type, Any]) -> Iterator[tuple[str, str, str]]:
    for device in (learned(facts, Fabric) or Fabric()).devices:
        yield from _fields(device.name, device)
        for port in device.ports:
            yield from _fields(port.name, port)
            for counters in (port.counters, port.hw_counters):
                for name, count in () if isinstance(counters, Absent) else counters:
                    if any(word in name for word in _ERRORS):
                        yield port.name, name, str(count)
    gpus, links = learned(facts, Gpus), learned(facts, NvLinks)
    for gpu in gpus.all if gpus else ():
        yield from _fields(f"GPU{gpu.index}", gpu)
    for index, rows in enumerate(links.gpus if links else ()):
        for link in () if isinstance(rows, Absent) else rows:
            yield from _fields(f"GPU{index} NVLink {link.link}", link)
    for interface in (learned(facts, Interfaces) or Interfaces(())).all:
        yield from _fields(interface.name, interface)
    names = gpus.names if gpus else {}
    for pci in (learned(facts, Pci) or Pci()).devices.values():
        shown = names.get(pci.address, pci.address)
        if isinstance(pci.link, PcieLink):  # an idle GPU lowers its speed
            yield shown, "PCIe width", str(pci.link.width)
            yield shown, "PCIe at best", f"{pci.link.max_speed_gtps} GT/s x{pci.link.max_width}"
        yield shown, "PCIe requests", _words(pci.settings)
        yield shown, "NUMA node", _words(pci.numa_node)


def _fields(name: str, value: Struct) -> Iterator[tuple[str, str, str]]:
    for field in value.__struct_fields__:
        if field not in _OF_THE_MOMENT | _OF_LISTS:
            yield name, field.replace("_", " ").replace("pcie", "PCIe"), _words(getattr(value, field))


def _words(value: Any) -> str:
    if isinstance(value, Absent):
        return f"not known ({value.why})"
    if isinstance(value, Rate):
        return f"{value.gbps:g} Gb/s over {value.lanes} lanes"
    if isinstance(value, GpuFabric):
        return f"{value.state}, status {value.status}"
    if isinstance(value, (tuple, frozenset)):
        each = [_words(one) for one in (sorted(value) if isinstance(value, frozenset) else value)]
        return ", ".join(each) or "none"
    return getattr(value, "text", None) or (getattr(value, "address", None) or str(value))
