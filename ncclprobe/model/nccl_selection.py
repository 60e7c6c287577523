"""NCCL's choices on a node, and the node's devices, as a report contains both (docs/reference/report.md).

Frozen values without behaviour, as in :mod:`ncclprobe.model`. Devices are spelled as NCCL spells them, paths are its
words (NVL, PIX, PXB, PHB, SYS …), and None means that the facts do not decide it.
"""

from typing import Any, Generic, TypeVar

from ncclprobe.model.values import Struct

T = TypeVar("T")


class Decision(Struct, Generic[T], frozen=True):
    """One part of the choice. `chosen` None: the facts do not decide it. `why`: the missing or the deciding fact.

    `refused`: NCCL, or CUDA before it, does not start because of this part; `subject` is then what to change
    (``NCCL_NET``, ``GPU0-GPU1``).
    """

    chosen: tuple[T, ...] | None
    why: str
    refused: bool = False
    subject: str = ""


NOT_CHOSEN: Decision[Any] = Decision(None, "an older report does not say")


class NetworkChoice(Struct, frozen=True):
    """The network that a communicator uses (``IB``, ``Socket``, ``AWS Libfabric``), and its devices.

    `plugin`: its file; empty: built into NCCL. `rate_gbps`: of all devices together; None: unknown. `version`: from the
    plugin's file: its own name, its interface to NCCL, its version.
    """

    name: str
    plugin: str
    devices: tuple[str, ...]
    rate_gbps: float | None
    why: str
    version: str = ""


class InterfaceChoice(Struct, frozen=True):
    """An interface that NCCL uses. `step`: which of its attempts found it (:mod:`ncclprobe.nccl.interfaces`)."""

    name: str
    address: str
    step: str
    why: str


class HcaChoice(Struct, frozen=True):
    """A port (``mlx5_0:1``) that NCCL's own InfiniBand transport uses or leaves out."""

    port: str
    rate_gbps: float | None
    why: str


class GidChoice(Struct, frozen=True):
    """The GID table entry of a RoCE port for its connections. `address` None: the entry is empty, or unknown."""

    port: str
    index: int | None
    address: str | None
    type: str | None
    why: str


class DirectChoice(Struct, frozen=True):
    """Whether NICs directly write (`receives`) and read (`sends`) a GPU's memory.

    `nics` are the equally near ones. `path` is compared with NCCL's level; it is the relay's, if one is used.
    """

    gpu: str
    nics: tuple[str, ...]
    receives: bool | None
    sends: bool | None
    path: str | None
    relay: str | None
    why: str


class PeerChoice(Struct, frozen=True):
    """Pairs of GPUs with the same transport. `transport` is P2P, SHM or NET; `refused`: NCCL fails because of them."""

    pairs: tuple[tuple[str, str], ...]
    transport: str | None
    path: str | None
    refused: bool
    why: str


class NvlsChoice(Struct, frozen=True):
    """Whether NCCL reduces inside the NVSwitches."""

    available: bool | None
    why: str


class Choices(Struct, frozen=True):
    """What NCCL would choose. `nccl`: the version whose rules apply; None: none was found, so the newest known.

    `gpus`: those that CUDA shows to a job in this environment. `fast_nics`: devices that are up and faster than kernel
    sockets, whether or not the network uses them.
    """

    nccl: str | None
    bootstrap: Decision[InterfaceChoice]
    sockets: Decision[InterfaceChoice]
    hcas: Decision[HcaChoice]
    hcas_left_out: Decision[HcaChoice]
    gids: Decision[GidChoice]
    gpudirect: Decision[DirectChoice]
    p2p: Decision[PeerChoice]
    nvls: NvlsChoice
    gpus: Decision[str] = NOT_CHOSEN
    network: Decision[NetworkChoice] = NOT_CHOSEN
    fast_nics: Decision[HcaChoice] = NOT_CHOSEN

    @property
    def over_sockets(self) -> bool:
        """Return whether NCCL's sockets carry the data; with another network they serve only its bootstrap."""
        return any(network.name == "Socket" for network in self.network.chosen or ())

    @property
    def refused(self) -> tuple[tuple[str, Decision[Any]], ...]:
        """Return the parts that stop NCCL from starting, with their names."""
        parts = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return tuple((name, part) for name, part in parts if isinstance(part, Decision) and part.refused)


class DeviceRow(Struct, frozen=True):
    """A GPU or NIC, and the CPUs near it (``0-47,96-143``). `numa` -1: the firmware does not report it.

    `pcie_width`: current PCIe lanes, `pcie_max_width` the most that device and slot allow; None: unknown.
    """

    name: str
    model: str
    pci: str | None
    numa: int | None
    cpus: str | None
    pcie_width: int | None = None
    pcie_max_width: int | None = None


class NumaRow(Struct, frozen=True):
    """A NUMA node and its CPUs."""

    id: int
    cpus: str


class NodeTopology(Struct, frozen=True):
    """The devices of a node, and NCCL's path type from each GPU to each GPU and NIC, without relays.

    None for devices or paths: unknown, for the reason `why`.
    """

    gpus: tuple[DeviceRow, ...] | None = None
    nics: tuple[DeviceRow, ...] | None = None
    numa: tuple[NumaRow, ...] | None = None
    paths: dict[str, dict[str, str | None]] | None = None
    why: str = ""
