"""Which ports of which HCAs NCCL's own InfiniBand transport takes, and what becomes of the others.

Source: src/transport/net_ib/init.cc:300 ncclIbInitDevices (v2.30.7); in prose docs/how/nccl-selection.md. Not modelled:
fusing ports into virtual devices (NCCL_IB_MERGE_NICS, NCCL_NET_MERGE_LEVEL), and ConnectX-8's Data Direct, which takes
the same ports by another name (``mlx5_0_dma``).
"""

from collections.abc import Sequence

from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.lists import MAX_HCAS, Entry, Selector, parse_selector
from ncclprobe.nccl.values import read_setting

LAYERS = ("InfiniBand", "Ethernet")
"""Link layers that NCCL knows. EFA's is neither: it takes a plugin."""

_PCI_ORDER = (2, 29, 7)
_MORE_DEVICES, _FEWER = (2, 19), 16  # MAX_IB_DEVS of src/transport/net_ib.cc (v2.18.3)


class Selection(Struct, frozen=True):
    """What NCCL_IB_HCA, or its absence, selects on this machine.

    `taken`: the ports NCCL uses, in its order. `down`: selected, of a layer that it knows, and not ACTIVE: dropped
    without a word. `closed`: selected, but this process may not open the device. `unknown`: selected, and the state
    could not be read. `beyond`: active ones that the limit (32; 16 before 2.19) cut off. `unmatched`: entries that fit
    no port at all.
    """

    selector: Selector
    taken: tuple[Port, ...] = ()
    down: tuple[Port, ...] = ()
    closed: tuple[Port, ...] = ()
    unknown: tuple[Port, ...] = ()
    beyond: tuple[Port, ...] = ()
    unmatched: tuple[Entry, ...] = ()


def select(fabric: Fabric, text: str = "", version: Version | None = None, pci_order: bool = True) -> Selection:
    """Return the ports that NCCL_IB_HCA=`text` leaves; an empty text takes all. `pci_order`:
    NCCL_IB_DEVICE_PCI_ORDER.
    """
    limit = MAX_HCAS if reaches(version, _MORE_DEVICES) else _FEWER
    selector = parse_selector(text, limit)
    devices = list(fabric.devices)
    if pci_order and reaches(version, _PCI_ORDER):
        devices.sort(key=lambda device: device.pci if isinstance(device.pci, str) else "~")
    ports = [(device, port) for device in devices for port in device.ports if _layer_fits(port)]
    chosen = [(device, port) for device, port in ports if selector.takes(port.device, port.number)]
    opened = [port for device, port in chosen if _opens(device)]
    active = [port for port in opened if port.state == "ACTIVE"]
    everything = [(port.device, port.number) for port in fabric.ports]
    return Selection(
        selector=selector,
        taken=tuple(active[:limit]),
        down=tuple(port for port in opened if isinstance(port.state, str) and port.state != "ACTIVE"),
        closed=tuple(port for device, port in chosen if not _opens(device)),
        unknown=tuple(port for port in opened if isinstance(port.state, Absent)),
        beyond=tuple(active[limit:]),
        unmatched=tuple(
            entry for entry in selector.entries if not any(entry.matches(*each, selector.exact) for each in everything)
        ),
    )


def select_by(fabric: Fabric, settings: Settings, version: Version | None) -> Selection:
    """Return the ports that these settings select: NCCL_IB_HCA, in the order of NCCL_IB_DEVICE_PCI_ORDER."""
    ordered = read_setting(settings, "NCCL_IB_DEVICE_PCI_ORDER", 1, version) != 0
    return select(fabric, settings.get("NCCL_IB_HCA") or "", version, ordered)


def _layer_fits(port: Port) -> bool:
    return isinstance(port.link_layer, Absent) or port.link_layer in LAYERS


def _opens(device: RdmaDevice) -> bool:
    """Return whether a device opens; unknown counts as yes: another check reports those that do not."""
    return device.opens is not False


def gbps(port: Port) -> float | None:
    """Return the port's rate, None where it is not known."""
    return port.rate.gbps if isinstance(port.rate, Rate) else None


def fast(ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports with at least half the rate of the fastest: those that are there for the GPUs, not for
    management.
    """
    best = max((rate for port in ports if (rate := gbps(port)) is not None), default=0.0)
    return tuple(port for port in ports if (rate := gbps(port)) is None or 2 * rate >= best)


def caught_besides(entry: Entry, fabric: Fabric, selector: Selector) -> tuple[str, ...]:
    """Return the devices that `entry` takes as a prefix although a device has exactly its name; none where `=` leads
    the list.

    ``mlx5_1`` also means mlx5_10 and mlx5_11, where there is a mlx5_1.
    """
    names = [device.name for device in fabric.devices]
    if selector.exact or entry.prefix not in names:
        return ()
    meant = {other.prefix for other in selector.entries}
    return tuple(name for name in names if name.startswith(entry.prefix) and name not in meant)


def written(entry: Entry) -> str:
    """Return the entry as it stands in the list, without rail and plane."""
    return entry.prefix if entry.port < 0 else f"{entry.prefix}:{entry.port}"
