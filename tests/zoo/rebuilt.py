"""A healthy server around the ports that ibstat printed somewhere, so that all checks can look at them."""

from collections.abc import Sequence

from ncclprobe.model.values import replace
from zoo import changes, parts
from zoo.changes import Change
from zoo.description import Firmware, Machine, Nic, Processors, Root
from zoo.ibstat import Adapter


def with_ports(name: str, adapters: Sequence[Adapter]) -> tuple[Machine, tuple[Change, ...]]:
    """A machine without GPUs with the ports that ibstat has printed, and what makes their state that of the text."""
    known = [(adapter, port) for adapter in adapters for port in adapter.ports if port.number == 1]
    nics = tuple(
        Nic(
            replace(parts.CONNECTX_7, hca=adapter.type or "", board=adapter.type or ""),
            adapter.name,
            f"net{number}",
            f"{port.rate_gbps or 0:g} Gb/sec (4X)",
            port.link_layer or "InfiniBand",
            mtu=9000,
            address=f"10.{number}.0.11/24",
        )
        for number, (adapter, port) in enumerate(known)
    )
    roots = tuple(Root(f"{number:04x}:00", 0, (nic.place,)) for number, nic in enumerate(nics))
    processors, firmware = Processors("Some server", {0: "0-63"}), Firmware("Some vendor", "Server", "Board")
    states = {"Active": "4: ACTIVE", "Down": "1: DOWN", "Initializing": "2: INIT", "ACTIVE": "4: ACTIVE"}
    physical = {"LinkUp": "5: LinkUp", "Polling": "2: Polling", "Disabled": "3: Disabled"}
    folders = {adapter.name: (f"/sys/class/infiniband/{adapter.name}/ports/1", port) for adapter, port in known}
    told = [changes.file(f"{at}/state", states[port.state or "Active"]) for at, port in folders.values()]
    told += [
        changes.file(f"{at}/phys_state", physical[port.physical_state or "LinkUp"]) for at, port in folders.values()
    ]
    return Machine(name, name, (), processors, roots, firmware, nics=nics), tuple(told)
