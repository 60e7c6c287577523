"""NICs' byte counters: read before and after a measurement, never polled.

Ethernet bytes are in ``/sys/class/net/<name>/statistics`` (Documentation/ABI/testing/sysfs-class-net-statistics). RDMA
bytes bypass the kernel and appear only in the port's own counters,
``/sys/class/infiniband/<device>/ports/<n>/counters``, which count in units of four bytes
(Documentation/ABI/stable/sysfs-class-infiniband: port_xmit_data, port_rcv_data).
"""

import json
from collections.abc import Mapping
from typing import Literal

from ncclprobe.facts.infiniband import counters
from ncclprobe.host import Host
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

NET, RDMA = "/sys/class/net", "/sys/class/infiniband"
_WORD = 4
_WRAP = 1 << 32
"""Some drivers keep 32 bits, which wrap after 4 GiB: a third of a second at 100 Gb/s."""
_LOOPBACK = "lo"

NicKind = Literal["ethernet", "rdma"]


class Count(Struct, frozen=True):
    """Bytes that one NIC has sent and received since its counters were last reset."""

    sent: int
    received: int


class Traffic(Struct, frozen=True):
    """The byte counters of all NICs of a node, by name (``eth1``, ``mlx5_0:1``). Absent: unreadable."""

    ethernet: Mapping[str, Count | Absent] = field(default_factory=dict)
    rdma: Mapping[str, Count | Absent] = field(default_factory=dict)

    def of(self, kind: NicKind) -> Mapping[str, Count | Absent]:
        """Return the counts of one kind of counter."""
        return self.ethernet if kind == "ethernet" else self.rdma


def read(host: Host, look: int = 0) -> Traffic:
    """Read all counters of this network namespace; unreadable ones hold the reason.

    Each `look` is a separate question in a capture.
    """
    ethernet = {
        name: _count(host, f"{NET}/{name}/statistics", ("tx_bytes", "rx_bytes"), 1, look)
        for name in _names(host, NET)
        if name != _LOOPBACK
    }
    rdma = {
        f"{device}:{port}": _count(
            host, f"{RDMA}/{device}/ports/{port}/counters", ("port_xmit_data", "port_rcv_data"), _WORD, look
        )
        for device in _names(host, RDMA)
        for port in _names(host, f"{RDMA}/{device}/ports")
    }
    return Traffic(ethernet, rdma)


def _names(host: Host, folder: str) -> list[str]:
    """List a folder; empty if it is missing or cannot be listed."""
    try:
        names = json.loads(host.ask("list", folder))
    except (HostError, ValueError):
        return []
    return sorted(name for name in names if name != "bonding_masters")


def _count(host: Host, folder: str, names: tuple[str, str], unit: int, look: int) -> Count | Absent:
    try:
        found = dict(counters(host.ask("counters", folder, look) if look else host.ask("files", folder)))
    except Missing:
        return Absent("its driver keeps no counters", "Missing")
    except (HostError, ParseError) as error:
        return Absent(str(error), type(error).__name__)
    if not all(name in found for name in names):
        return Absent(f"{folder} has no {' and '.join(names)}", "Missing")
    sent, received = (found[name] * unit for name in names)
    return Count(sent, received)


def moved(before: Traffic, after: Traffic, kind: NicKind) -> dict[str, Count | Absent]:
    """Return the bytes each NIC moved in between; Absent for a counter that was reset or wrapped more than once."""
    found: dict[str, Count | Absent] = {}
    first = before.of(kind)
    for name, last in after.of(kind).items():
        begun = first.get(name, Absent("it was not there before"))
        if isinstance(last, Absent) or isinstance(begun, Absent):
            found[name] = last if isinstance(last, Absent) else begun
            continue
        unit = _WORD if kind == "rdma" else 1
        sent, received = _growth(begun.sent, last.sent, unit), _growth(begun.received, last.received, unit)
        reset = "its counter was reset in the meantime"
        found[name] = Absent(reset) if sent is None or received is None else Count(sent, received)
    return found


def _growth(before: int, after: int, unit: int) -> int | None:
    """Return a counter's growth; None if it fell in a way that a 32-bit wrap does not explain.

    Only a counter past half of 32 bits is assumed to have wrapped; one that fell from less was reset.
    """
    if after >= before:
        return after - before
    wrap = _WRAP * unit
    return after + wrap - before if wrap // 2 <= before < wrap else None
