"""The interfaces that the nodes of a job use, by settings and NCCL's rules."""

import re

from ncclprobe.checks.env import loaded
from ncclprobe.checks.ib.selection import taken
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.interfaces import find_by

ENDS_HERE = re.compile(
    r"(virbr|vmnet|lxcbr|lxdbr|podman|nerdctl|cbr|tmfifo_net|kube-ipvs|nodelocaldns)\d*"
    r"|docker.*|cni[\d-].*|br-[0-9a-f]{12}|(veth|cali|lxc)[0-9a-f_]{5,}.*|usb\d+|lo"
)
"""Interfaces of container engines, hypervisors, DPUs and management boards, which end on this machine.

A container's own end of a veth pair is called eth0; one that is called veth or cali is the machine's.
"""


_TO_MANAGEMENT = ("cdc_ether", "cdc_eem", "cdc_ncm", "cdc_subset", "rndis_host")
"""Drivers of networks over USB: a board management controller's, with the same address on every machine."""


def leads_out(interface: Interface) -> bool:
    """Return whether other nodes may be reached by it."""
    inward = interface.loopback or interface.kind == "dummy" or interface.driver in _TO_MANAGEMENT
    return not (inward or ENDS_HERE.fullmatch(interface.name))


def sockets(found: Interfaces, settings: Settings, software: Software | Absent) -> tuple[Interface, ...]:
    """Return the interfaces that NCCL's sockets use and that lead to other nodes, in NCCL's order."""
    by_name = found.by_name
    chosen = find_by(found.addresses, settings, loaded(software)).interfaces
    return tuple(by_name[each.name] for each in chosen if leads_out(by_name[each.name]))


def data_interfaces(
    found: Interfaces, settings: Settings, software: Software | Absent, fabric: Fabric | Absent | None
) -> dict[str, Interface]:
    """Return the interfaces that carry a job's data on this node, by use: NCCL's sockets, and those of RoCE ports.

    With HCAs only the first of the sockets matters: the bootstrap's.
    """
    ports = taken(fabric, settings) if isinstance(fabric, Fabric) else ()
    chosen = sockets(found, settings, software)[: 1 if ports else None]
    by_name = found.by_name
    owners = {p.name: gid.netdev for p in ports if isinstance(p.gids, tuple) for gid in p.gids if gid.netdev}
    return {
        **{f"socket device {place}": each for place, each in enumerate(chosen)},
        **{f"RoCE port {port}": by_name[name] for port, name in owners.items() if name in by_name},
    }
