"""RDMA devices, as the kernel shows them under /sys/class/infiniband."""

import json
from dataclasses import dataclass

from ncclprobe.errors import Missing
from ncclprobe.host import Host
from ncclprobe.registry import collector

ROOT = "/sys/class/infiniband"


@dataclass(frozen=True, slots=True)
class Fabric:
    """Names of the RDMA devices (``mlx5_0``, ``rdmap0s0``)."""

    devices: tuple[str, ...] = ()


@collector
def infiniband(host: Host) -> Fabric:
    """Every device the kernel shows."""
    try:
        return Fabric(tuple(json.loads(host.ask("list", ROOT))))
    except Missing:  # no ib_core module: known to be empty, not unknown
        return Fabric()
