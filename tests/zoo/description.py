"""What is said of a machine of the zoo, from which every answer of its capture follows."""

from collections.abc import Mapping, Sequence

from ncclprobe.model.values import Struct, field


class GpuModel(Struct, frozen=True):
    """One kind of GPU: `chip` its PCI device id, `capability` CUDA's; of NVLink what NVML gives.

    `pcie` is the generation, 0 where NVML tells none (chip to chip). `fabric`: it registers with NVSwitches, and NVML
    tells so. `recovery`: NVLink 5, whose counters are others.
    """

    name: str
    chip: int
    capability: tuple[int, int]
    memory_gib: int
    pcie: int
    links: int = 0
    link_mbps: int = 0
    link_version: int = 0
    ecc: bool = True
    mig: bool = False
    fabric: bool = False
    recovery: bool = False
    graphics: bool = False
    watts: int = 400


class NicModel(Struct, frozen=True):
    """One kind of NIC. `pcie` is generation and width; `hca` what hca_type says, empty for one without RDMA."""

    chip: tuple[int, int]
    driver: str
    pcie: tuple[int, int]
    hca: str = ""
    board: str = ""
    firmware: str = ""
    class_code: int = 0x020000


class Nic(Struct, frozen=True):
    """One port. `rdma` is its RDMA device, `netdev` its interface; either may be empty.

    `rate` is the text of the port's rate file, `layer` its link layer, `address` an IPv4 address with its prefix.
    `place` is its name in the PCI tree.
    """

    model: NicModel
    rdma: str = ""
    netdev: str = ""
    rate: str = ""
    layer: str = "InfiniBand"
    speed_mbps: int = -1
    mtu: int = 1500
    address: str = ""

    @property
    def place(self) -> str:
        return self.rdma or self.netdev


class Switch(Struct, frozen=True):
    """A PCI switch, and what is below each of its ports: a device, functions of one card (``a+b``), or a switch."""

    below: tuple["str | Switch", ...]
    ids: tuple[int, int] = (0x1000, 0xC030)
    board: tuple[int, int] = (0x1000, 0x0144)


class Root(Struct, frozen=True):
    """A root bus (``0000:17``), its NUMA node, and what is below each of its root ports.

    `flat`: devices sit on the bus itself, as in many virtual machines.
    """

    bus: str
    numa: int
    below: tuple[str | Switch, ...]
    flat: bool = False


class Processors(Struct, frozen=True):
    """`nodes`: the CPUs of each NUMA node, in the kernel's list format; `distances` between different ones."""

    model: str
    nodes: Mapping[int, str]
    distance: int = 20
    arch: str = "x86_64"
    memory_gib: int = 2048
    virtual: bool = False
    governor: str = "performance"


class Software(Struct, frozen=True):
    """`nccl` is the wheel's version, `system_nccl` that of a distribution's package; empty where there is none.

    `plugins` are NCCL's plugins by folder; `cached` those of which the loader's cache knows.
    """

    driver: str = ""
    cuda: int = 0
    open_driver: bool = True
    fabric_manager: bool = False
    torch: str = ""
    torch_cuda: str = ""
    nccl: str = ""
    system_nccl: str = ""
    python: str = "/usr/local/lib/python3.12/dist-packages"
    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cached: tuple[str, ...] = ()


class Firmware(Struct, frozen=True):
    """The files of /sys/class/dmi/id; without a vendor there are none. `tree` is the device tree's model."""

    vendor: str = ""
    product: str = ""
    board: str = ""
    asset_tag: str = ""
    bios: str = "American Megatrends International, LLC."
    tree: str = ""


class Machine(Struct, frozen=True):
    """One machine. `sources` say where each part of its shape is from; `words` are those of nvidia-smi's matrix.

    `remotes`: for each GPU where its links lead, in order: another GPU, ``npuN``, or ``switch`` for NVSwitches.
    `p2p`: NVML's word for pairs of GPUs that NVLink does not join. `cluster`: it is part of a multi-node NVLink domain.
    `root`: the capture was taken by root. `like`: a capture that this one is a variant of.
    """

    name: str
    title: str
    sources: tuple[str, ...]
    processors: Processors
    tree: tuple[Root, ...]
    firmware: Firmware
    software: Software = Software()
    gpu: GpuModel | None = None
    words: Mapping[tuple[str, str], str] = field(default_factory=dict)
    nics: tuple[Nic, ...] = ()
    remotes: tuple[tuple[str, ...], ...] = ()
    p2p: str = "OK"
    cluster: bool = False
    distribution: str = "Ubuntu 22.04.5 LTS"
    kernel: str = "5.15.0-1066-nvidia"
    peer_memory: bool = False
    root: bool = True
    like: str = ""

    @property
    def gpus(self) -> int:
        """How many there are."""
        return sum(name.startswith("GPU") for name in self.columns)

    @property
    def columns(self) -> list[str]:
        """The devices of the matrix, GPUs first."""
        return [one for one, other in self.words if one == other]


def nvlinked(model: GpuModel, gpus: int) -> tuple[tuple[str, ...], ...]:
    """Every link of every GPU leads to NVSwitches."""
    return (("switch",) * model.links,) * gpus


def words(gpus: int, nics: Sequence[str] = (), among: str = "", **groups: Sequence[str]) -> dict[tuple[str, str], str]:
    """The words of nvidia-smi's matrix by pair of names: `among` the GPUs, otherwise of the first group with both.

    A group is a text of names. What is in no group is apart: SYS.
    """
    names = [*(f"GPU{n}" for n in range(gpus)), *nics]
    known = [(word, set(group.split())) for word, members in groups.items() for group in members]

    def word(one: str, other: str) -> str:
        if one == other:
            return "X"
        if among and one.startswith("GPU") and other.startswith("GPU"):
            return among
        return next((word for word, group in known if {one, other} <= group), "SYS")

    return {(one, other): word(one, other) for one in names for other in names}
