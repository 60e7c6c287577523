"""Choose the interfaces on which a node is reached: NCCL's, gloo's, and that of the default route."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from ncclprobe import bounds
from ncclprobe.cluster.mesh.listeners import MeshInterface
from ncclprobe.cluster.mesh.plan import check_other
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.facts.names import OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.reach import MeshListener, Reach
from ncclprobe.facts.routes import Routes
from ncclprobe.facts.software import Software
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.nccl.gloo import Device, devices, named
from ncclprobe.nccl.interfaces import find_by

_MAX_GLOO = 4  # of its devices; more than one are for bandwidth, and rare


def mesh_interfaces(snapshot: Snapshot, backend: str, reach: Reach | None = None) -> list[MeshInterface]:
    """Return the interfaces of a node by role. One that NCCL would take is not listed again as ``default``.

    The default interface is that of the default route; where there is none, the one on which rank 0 was reached. For
    gloo it is what its groups would listen on first. An address that only gloo groups would take is ``gloo0``, ….
    """
    interfaces, settings = snapshot.facts.get(Interfaces), snapshot.facts.get(Settings)
    if not isinstance(interfaces, Interfaces) or not isinstance(settings, Settings):
        return []
    software = snapshot.facts.get(Software)
    version = software.nccl_version if isinstance(software, Software) else None
    gloos = _gloo_devices(snapshot, interfaces)
    found: list[MeshInterface] = []
    if backend == "nccl":
        selected = find_by(interfaces.addresses, settings, version).interfaces
        found = [MeshInterface(f"nccl{number}", each.name, each.address) for number, each in enumerate(selected)]
    fallback = next(_fallback_candidates(interfaces, snapshot.facts.get(Routes), reach), None)
    if backend == "gloo" and gloos:
        found.append(MeshInterface("default", gloos[0].interface, gloos[0].address))
    elif fallback and fallback.name not in {each.interface for each in found}:
        found.append(MeshInterface("default", fallback.name, fallback.address))
    for number, device in enumerate(gloos):
        if device.address not in {each.address for each in found}:
            found.append(MeshInterface(f"gloo{number}", device.interface, device.address))
    return [each for each in found if each.interface != "lo"]


def _gloo_devices(snapshot: Snapshot, interfaces: Interfaces) -> list[Device]:
    """Return what a gloo group of this node would listen on and other nodes may reach; none where it is not known."""
    environment, own = snapshot.facts.get(Environment), snapshot.facts.get(OwnName)
    ifname = (environment.get("GLOO_SOCKET_IFNAME") or "") if isinstance(environment, Environment) else ""
    known = own if isinstance(own, OwnName) else OwnName()
    if not named(ifname) and not known.name:
        return []
    chosen = devices(interfaces, ifname, known.name, known.addresses)[:_MAX_GLOO]
    return [each for each in chosen if isinstance(each, Device) and not each.loopback]


def _fallback_candidates(
    interfaces: Interfaces, routes: Routes | Absent | None, reach: Reach | None
) -> Iterator[Address]:
    """Yield candidates for the default interface, the best first."""
    running = [each for each in interfaces.addresses if each.running]
    names: list[str] = []
    if isinstance(routes, Routes):
        everywhere = [route for route in routes.main if ip_network(route.destination).prefixlen == 0]
        names += [route.interface for route in sorted(everywhere, key=lambda route: route.metric)]
    names += [reach.interface] if reach else []
    for name in names:
        yield from (each for each in running if each.name == name)
    yield from (each for each in running if each.name != "lo")


def parse_listeners(announced: Sequence[Mapping[str, Any]]) -> tuple[MeshListener, ...]:
    """Parse the listeners that another node announced; drop malformed ones, and those beyond the limit.

    An address that no other node can have, such as a loopback one, is malformed.
    """
    listeners = []
    for each in announced[: bounds.LISTENERS]:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            listener = MeshListener(str(each["role"]), str(each["interface"]), str(each["address"]), int(each["port"]))
            check_other(listener.address)
            if 0 < listener.port < 1 << 16 and max(map(len, listener[:3])) <= bounds.LISTENER_CHARACTERS:
                listeners.append(listener)
    return tuple(listeners)
