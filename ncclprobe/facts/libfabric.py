"""libfabric's own test program, fi_pingpong, where there are RDMA devices that nothing else can try (AWS's EFA)."""

import json

from ncclprobe.errors import Missing
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

FOLDERS = ("/opt/amazon/efa/bin", "/usr/local/bin", "/usr/bin")
"""Of Amazon's EFA installer, which comes with the provider; of one's own libfabric; of a distribution's."""


class Libfabric(Struct, frozen=True):
    """`ping_pong`: the path of fi_pingpong; empty: it is in none of the usual folders, or there is no device for it."""

    ping_pong: str = ""


@collector
def libfabric(host: Host, fabric: Fabric) -> Libfabric:
    """Look for the program, open to every user."""
    if not any(port.link_layer == "Unknown" for port in fabric.ports):  # so the kernel shows EFA's
        return Libfabric()
    found = (path for folder in FOLDERS if _is_there(host, path := f"{folder}/fi_pingpong"))
    return Libfabric(next(found, ""))


def _is_there(host: Host, path: str) -> bool:
    try:
        return bool(json.loads(host.ask("access", path))["read"])
    except Missing:
        return False
