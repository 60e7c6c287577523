"""On which of its interfaces a node is to be reached: those that NCCL would use, and that of the default route."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from ncclprobe.cluster.mesh.listeners import Road
from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.paths import Door
from ncclprobe.facts.reach import Reach
from ncclprobe.facts.routes import Routes
from ncclprobe.facts.software import Software
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.nccl.interfaces import find_by

_MOST_DOORS = 17  # NCCL uses up to 16 interfaces (MAX_IFS), and there is the default road
_LONGEST = 64


def roads(snapshot: Snapshot, backend: str, reach: Reach | None = None) -> list[Road]:
    """The roads of a node. An interface that NCCL would take is not listed once more as ``default``.

    The default road is that of the default route; where there is none, the one on which rank 0 was reached. For gloo it
    is the interface that GLOO_SOCKET_IFNAME names.
    """
    interfaces, settings = snapshot.facts.get(Interfaces), snapshot.facts.get(Settings)
    if not isinstance(interfaces, Interfaces) or not isinstance(settings, Settings):
        return []
    software = snapshot.facts.get(Software)
    version = software.nccl_version if isinstance(software, Software) else None
    found: list[Road] = []
    if backend == "nccl":
        chosen = find_by(interfaces.addresses, settings, version).interfaces
        found = [Road(f"nccl{number}", each.name, each.address) for number, each in enumerate(chosen)]
    usual = next(_usual(interfaces, settings, snapshot.facts.get(Routes), reach), None)
    if usual and usual.name not in {road.interface for road in found}:
        found.append(Road("default", usual.name, usual.address))
    return [road for road in found if road.interface != "lo"]


def _usual(
    interfaces: Interfaces, settings: Settings, routes: Routes | Absent | None, reach: Reach | None
) -> Iterator[Address]:
    """Candidates for the default road, the best first."""
    running = [each for each in interfaces.addresses if each.running]
    names = [name for name in (settings.get("GLOO_SOCKET_IFNAME") or "").split(",") if name]
    if isinstance(routes, Routes):
        everywhere = [road for road in routes.main if ip_network(road.destination).prefixlen == 0]
        names += [road.interface for road in sorted(everywhere, key=lambda road: road.metric)]
    names += [reach.interface] if reach else []
    for name in names:
        yield from (each for each in running if each.name == name)
    yield from (each for each in running if each.name != "lo")


def as_doors(said: Sequence[Mapping[str, Any]]) -> tuple[Door, ...]:
    """The listeners that another node told of; what cannot be one is left out, and what are too many."""
    doors = []
    for each in said[:_MOST_DOORS]:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            door = Door(str(each["road"]), str(each["interface"]), str(each["address"]), int(each["port"]))
            ip_address(door.address.partition("%")[0])
            if 0 < door.port < 1 << 16 and max(map(len, door[:3])) <= _LONGEST:
                doors.append(door)
    return tuple(doors)
