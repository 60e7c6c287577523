"""What MASTER_ADDR resolves to on this node."""

import json
from ipaddress import ip_address

from ncclprobe.errors import Failed, TimedOut
from ncclprobe.facts.launcher import Launch
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
