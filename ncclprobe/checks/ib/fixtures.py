"""Small machines for the examples of the checks: four GPUs, each with a NIC behind its own PCI switch."""

from collections.abc import Collection
from ipaddress import IPv6Address
from typing import Any

from ncclprobe.facts.infiniband import Fabric, Gid, Port, Rate, RdmaDevice
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.facts.software import Software
from ncclprobe.model.report import Setting
from ncclprobe.model.values import replace

NDR, EDR = Rate(400, 4, "NDR"), Rate(100, 4, "EDR")
_LINK = PcieLink(32.0, 16, 32.0, 16)
_GPU, _NIC = Identity(0x030200, 0x10DE, 0x2330), Identity(0x020700, 0x15B3, 0x1021)

PLAIN = Settings()
ONE_NODE, TWO_NODES = Launch("torchrun", nnodes=1), Launch("torchrun", nnodes=2)
NO_NCCL = Software({})


def having(name: str, value: str) -> Settings:
    """Return settings that contain only `name`."""
    return Settings({name: Setting(name, value, "environment")})


def gpus(count: int = 4, name: str = "NVIDIA H100 80GB HBM3") -> Gpus:
    """Return `count` GPUs, each on a root bus of its own."""
    every = (Gpu(n, name, pci=f"00000000:{n + 1:X}1:00.0", compute=(9, 0)) for n in range(count))
    return Gpus(tuple(every), driver="550.127.08", cuda=(12, 4))


def pci(count: int = 4, far: Collection[int] = (), moved: Collection[int] = ()) -> Pci:
    """Return GPU n and mlx5_n behind one switch, two of them to a NUMA node.

    `far`: NICs that have a root port of their own; `moved`: NICs that are on the other NUMA node besides.
    """
    found = []
    for n in range(count):
        bus, numa = f"pci0000:{n + 1:x}0", n * 2 // count
        above = (f"0000:{n + 1:x}0:01.0", f"0000:{n + 1:x}0:02.0", f"0000:{n + 1:x}0:03.0")
        place = (f"0000:{n + 1:x}0:09.0",) if n in far or n in moved else above
        found.append(Device(f"0000:{n + 1:x}1:00.0", _GPU, PciPosition(bus, above), _LINK, numa))
        nic = PciPosition(f"{bus[:-1]}8" if n in moved else bus, place)
        found.append(Device(f"0000:{n + 1:x}2:00.0", _NIC, nic, _LINK, 1 - numa if n in moved else numa))
    return Pci({device.address: device for device in found})


def port(number: int, rate: Rate = NDR, **changes: Any) -> Port:
    """Return port 1 of mlx5_`number`, up."""
    return replace(Port(f"mlx5_{number}", 1, "ACTIVE", "LinkUp", rate), **changes)


def device(only: Port, **changes: Any) -> RdmaDevice:
    """Return the NIC of one port, of the same board as all others."""
    address = f"0000:{int(only.device.removeprefix('mlx5_')) + 1:x}2:00.0"
    return replace(RdmaDevice(only.device, (only,), address, "28.39.1002", "MT_0000000838", "MT4129"), **changes)


def fabric(*others: Port, count: int = 4) -> Fabric:
    """Return `count` NICs at 400 Gb/s, but for the ports given."""
    ports = {f"mlx5_{n}": port(n) for n in range(count)} | {p.device: p for p in others}
    return Fabric(tuple(device(each) for each in ports.values()))


def gid(index: int, address: str, kind: str = "RoCE v2", netdev: str | None = None) -> Gid:
    """Return one entry of a GID table; `address` may be an IPv4 one."""
    mapped = address if ":" in address else f"::ffff:{address}"
    return Gid(index, IPv6Address(mapped), kind, netdev)


def roce(number: int, address: str, rate: Rate = NDR, **changes: Any) -> Port:
    """Return a RoCE port as the kernel shows it once its interface has this IPv4 address; empty: none."""
    name = f"eth{number}"
    pairs = [("fe80::1", kind) for kind in ("IB/RoCE v1", "RoCE v2")]
    pairs += [(address, kind) for kind in ("IB/RoCE v1", "RoCE v2") if address]
    table = tuple(gid(n, where, kind, name) for n, (where, kind) in enumerate(pairs))
    return port(number, rate, **{"link_layer": "Ethernet", "gids": table, **changes})


def interfaces(*mtus: int, prefix: str = "10.{}.0.5") -> Interfaces:
    """eth0, eth1 … with these MTUs, each with an address of its own /24."""
    return Interfaces(tuple(_interface(n, mtu, prefix.format(n)) for n, mtu in enumerate(mtus)))


def _interface(number: int, mtu: int, address: str) -> Interface:
    name = f"eth{number}"
    own = Address(name, "inet", address, "255.255.255.0", running=True)
    return Interface(name, number + 2, frozenset({"up", "running"}), mtu, 400000, "mlx5_core", (own,), virtual=False)
