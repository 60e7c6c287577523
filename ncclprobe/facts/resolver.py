"""What MASTER_ADDR and this node's own name resolve to on this node."""

import json
from ipaddress import ip_address

from ncclprobe.errors import Failed, TimedOut
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.system import System
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class Master(Struct, frozen=True):
    """The rendezvous address. `name` is empty where no launcher gave one; `failure` says why it did not resolve."""

    name: str = ""
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    failure: str = ""

    @property
    def loopback(self) -> tuple[str, ...]:
        """Return those of the addresses that only this very node can reach."""
        return tuple(a for a in self.addresses if ip_address(a.partition("%")[0]).is_loopback)


@collector
def resolver(host: Host, launch: Launch) -> Master:
    """Resolve MASTER_ADDR by getaddrinfo(3). Not resolving is knowledge: the job would not find its rank 0 either."""
    if not launch.master_addr:
        return Master()
    try:
        seen = json.loads(host.ask("resolve", launch.master_addr))
    except (Failed, TimedOut) as error:
        return Master(launch.master_addr, failure=str(error))
    return Master(launch.master_addr, tuple(seen["addresses"]), seen["seconds"])


class OwnName(Struct, frozen=True):
    """What getaddrinfo(3) answers for this host's own name, in its order. `failure`: why it answers nothing.

    `name` is empty where it was not asked, in jobs of one node.
    """

    name: str = ""
    addresses: tuple[str, ...] = ()
    failure: str = ""


@collector
def own_name(host: Host, launch: Launch, system: System) -> OwnName:
    """Resolve the host's own name, as gloo does (and torchrun on rank 0), in jobs of several nodes."""
    return resolve_own(host, system.hostname) if launch.several_nodes else OwnName()


def resolve_own(host: Host, name: str) -> OwnName:
    """Ask for `name`. Not resolving is knowledge: gloo then listens on 127.0.0.1. Raises TimedOut."""
    try:
        seen = json.loads(host.ask("resolve", name))
    except Failed as error:
        return OwnName(name, failure=str(error))
    return OwnName(name, tuple(seen["addresses"]))
