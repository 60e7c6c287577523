"""Small settings and machines for the examples of the checks of the environment."""

from ipaddress import IPv6Address
from typing import Any

from ncclprobe.facts.infiniband import Fabric, Gid, Port, Rate, RdmaDevice
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.nccl_selection import Choices, Decision, NetworkChoice, NvlsChoice
from ncclprobe.model.report import Setting
from ncclprobe.model.values import replace

ALONE, ONE_NODE = Launch(), Launch("torchrun", 0, 8, 0, 8, 1)
TWO_NODES = Launch("torchrun", 0, 16, 0, 8, 2)
NO_NCCL = Software({})
PLAIN = Settings()


def setting(name: str, value: str, origin: str = "environment") -> Settings:
    """Return settings that contain only `name`."""
    return Settings({name: Setting(name, value, origin)})


def having(**values: str) -> Settings:
    """Return settings with these environment variables."""
    return Settings({name: Setting(name, value, "environment") for name, value in values.items()})


def nccl(*version: int) -> Software:
    """Return the software of a job that loads this NCCL."""
    major, minor, patch = version
    return Software({}, (NcclLibrary((major, minor, patch), "nvidia-nccl-cu12"),))


def interface(name: str, index: int, address: str, virtual: bool = False, kind: str = "") -> Interface:
    """Return a running interface with one IPv4 address of a /24."""
    own = Address(name, "inet", address, "255.255.255.0", running=True)
    flags = frozenset({"up", "running"} | ({"loopback"} if name == "lo" else set()))
    return Interface(name, index, flags, 1500, addresses=(own,), virtual=virtual, kind=kind)


LO = interface("lo", 1, "127.0.0.1", virtual=True)
ETH0, ETH1 = interface("eth0", 2, "10.0.0.5"), interface("eth1", 3, "10.1.0.5")
DOCKER0 = interface("docker0", 4, "172.17.0.1", virtual=True, kind="bridge")
CNI0 = interface("cni0", 5, "10.244.0.1", virtual=True, kind="bridge")
PLAIN_HOST = Interfaces((LO, ETH0))
TWO_NETS = Interfaces((LO, ETH0, ETH1))
DOCKER_HOST = Interfaces((LO, ETH0, DOCKER0, CNI0))


def port(device: str, number: int = 1, **changes: Any) -> Port:
    """Return an InfiniBand port at 400 Gb/s, up."""
    return replace(Port(device, number, "ACTIVE", "LinkUp", Rate(400, 4, "NDR")), **changes)


def fabric(*ports: Port) -> Fabric:
    """Return a device per name, with the ports given."""
    names = dict.fromkeys(p.device for p in ports)
    devices = [
        RdmaDevice(n, tuple(p for p in ports if p.device == n), f"0000:{i:02x}:00.0") for i, n in enumerate(names)
    ]
    return Fabric(tuple(devices))


def hcas(count: int) -> Fabric:
    """mlx5_0, mlx5_1 …, each with one port that is up."""
    return fabric(*(port(f"mlx5_{n}") for n in range(count)))


_UNKNOWN: Decision[Any] = Decision(None, "not looked at")


def over(network: str) -> Choices:
    """Return choices with only the network known, and not even that if its name is empty."""
    parts = dict.fromkeys(("bootstrap", "sockets", "hcas", "hcas_left_out", "gids", "gpudirect", "p2p"), _UNKNOWN)
    devices = ("eth0",) if network == "Socket" else ("rdmap0s0",)
    taken = Decision((NetworkChoice(network, "", devices, None, ""),), "") if network else _UNKNOWN
    return Choices(nccl=None, nvls=NvlsChoice(None, ""), network=taken, **parts)


V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK_LOCAL, PRIVATE = "fe80::1", "::ffff:10.0.0.1"


def roce(device: str, *rows: tuple[str, str | None], **changes: Any) -> Port:
    """Return a RoCE port whose GID table begins with these addresses and types."""
    gids = tuple(Gid(n, IPv6Address(address), kind, "eth2") for n, (address, kind) in enumerate(rows))
    return port(device, link_layer="Ethernet", gids=gids, **changes)


USUAL = ((LINK_LOCAL, V1), (LINK_LOCAL, V2), (PRIVATE, V1), (PRIVATE, V2))


def gpus(count: int, name: str = "NVIDIA H100 80GB HBM3") -> Gpus:
    """Return `count` GPUs of compute capability 9.0."""
    return Gpus(tuple(Gpu(n, name, f"GPU-{n:04}", compute=(9, 0)) for n in range(count)), "550.127.08", (12, 4))


def linked(count: int, remote: Any = "switch") -> NvLinks:
    """Return an active NVLink on each of `count` GPUs."""
    return NvLinks(((NvLink(0, "active", remote=remote, remote_pci=""),),) * count)
