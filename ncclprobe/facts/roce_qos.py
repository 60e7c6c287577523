"""How RoCE ports mark and slow their traffic: traffic class, and congestion control (ECN) by priority.

NVIDIA's driver (MLNX_OFED, DOCA) shows both in sysfs: ``tc/N/traffic_class`` of a device, and ``ecn/roce_np/enable``
and ``ecn/roce_rp/enable`` of its interface, a file with 0 or 1 for each priority (docs.nvidia.com, MLNX_OFED, "Explicit
Congestion Notification" and "Quality of Service"). The kernel's own driver has neither. Which priorities are paused
(PFC) takes netlink or a vendor's tool, and is not looked at.
"""

import json
from collections.abc import Mapping

from ncclprobe.errors import ParseError
from ncclprobe.facts.field import learn
from ncclprobe.facts.infiniband import ROOT, Fabric, Port
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

_LONGEST_TEXT = 200


class RoceMarks(Struct, frozen=True):
    """Of one port. `traffic_class`: the text of the driver's file, empty where none is forced.

    `slows` and `notifies`: the priorities on which the port lowers its rate (reaction point), and tells the sender of
    marked packets (notification point). Absent in a field: the driver does not show it.
    """

    traffic_class: str | Absent
    slows: tuple[int, ...] | Absent
    notifies: tuple[int, ...] | Absent


class RoceQos(Struct, frozen=True):
    """Each RoCE port's marks, by the port's name."""

    ports: Mapping[str, RoceMarks] = field(default_factory=dict)


@collector
def roce_qos(host: Host, fabric: Fabric) -> RoceQos:
    """Read what the driver shows of every port of hardware over Ethernet; open to every user."""
    ports = [port for device in fabric.devices if device.pci is not None for port in device.ports]
    return RoceQos({port.name: _marks(host, port) for port in ports if port.link_layer == "Ethernet"})


def _marks(host: Host, port: Port) -> RoceMarks:
    gids = () if isinstance(port.gids, Absent) else port.gids
    netdev = next((gid.netdev for gid in gids if gid.netdev), "")
    slows, notifies = (_enabled(host, netdev, side) for side in ("roce_rp", "roce_np"))
    path = f"{ROOT}/{port.device}/tc/{port.number}/traffic_class"
    return RoceMarks(learn(host, lambda text: text.strip()[:_LONGEST_TEXT], "read", path), slows, notifies)


def _enabled(host: Host, netdev: str, side: str) -> tuple[int, ...] | Absent:
    if not netdev:
        return Absent("no interface of this network namespace belongs to the port")
    return learn(host, priorities, "files", f"/sys/class/net/{netdev}/ecn/{side}/enable")


def priorities(text: str) -> tuple[int, ...]:
    """Return the priorities whose file says 1. Raises ParseError."""
    try:
        said = json.loads(text)
        return tuple(sorted(int(name) for name, value in said.items() if value == "1"))
    except (ValueError, AttributeError, RecursionError):
        raise ParseError(f"ecn: {text[:80]!r}") from None
