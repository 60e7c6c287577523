"""The PCI bus: addresses from the tree's shape, and the files of every function.

Shapes of the files: the guest and the machine captured for real beside these (root ports, a switch, e1000e and virtio
functions), and the kernel's drivers/pci/pci-sysfs.c, drivers/pci/pcie/aer.c. Identifiers of NVIDIA's GPUs: the list of
supported chips in open-gpu-kernel-modules' README; NVSwitches', NICs' and switches': pci.ids.
"""

from collections.abc import Iterator
from itertools import count

from ncclprobe.model.values import Struct
from zoo.answers import Answers
from zoo.description import Machine, Nic, Root, Switch

DEVICES = "/sys/bus/pci/devices"
BRIDGE = 0x060400
_SPEEDS = {
    0: "Unknown", 1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe",
}  # fmt: skip
_ROOT_PORTS = {"x86_64": (0x8086, 0x352A), "aarch64": (0x10DE, 0x22B1), "ppc64le": (0x1014, 0x04C1)}
_CORRECTABLE = "RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF TOTAL_ERR_COR"
_UNCORRECTABLE = (
    "Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP ECRC UnsupReq ACSViol UncorrIntErr BlockedTLP "
    "AtomicOpBlocked TLPBlockedErr PoisonTLPBlocked"
)
_PARTS = ("npu", 0x068001, (0x1014, 0x04EA)), ("nvswitch", 0x068000, (0x10DE, 0x22A3))


class Function(Struct, frozen=True):
    """One function of the bus; `below` are the numbers of the first and last bus below a bridge."""

    path: str
    numa: int
    ids: tuple[int, int]
    class_code: int = BRIDGE
    board: tuple[int, int] = (0, 0)
    driver: str = "pcieport"
    pcie: tuple[int, int] = (5, 16)
    idle: bool = False
    below: tuple[int, int] = (0, 0)
    acs: bool = False

    @property
    def address(self) -> str:
        return self.path.rpartition("/")[2]


def functions(machine: Machine) -> dict[str, Function]:
    """Every function: devices by their name, bridges by their address."""
    return {name: function for root in machine.tree for name, function in _below_root(machine, root)}


def _below_root(machine: Machine, root: Root) -> Iterator[tuple[str, Function]]:
    top, domain = f"pci{root.bus}", root.bus.partition(":")[0]
    buses = count(int(root.bus.partition(":")[2], 16) + 1)
    for slot, element in enumerate(root.below, start=1):
        port = f"{top}/{root.bus}:{slot:02x}.0"
        if root.flat:
            assert isinstance(element, str)
            yield element, _device(machine, element, port, root.numa)
            continue
        inside = list(_element(machine, element, port, root.numa, domain, buses))
        ids = _ROOT_PORTS[machine.processors.arch]
        yield port, _bridge(port, root.numa, ids, (0, 0), inside)
        yield from inside


def _element(
    machine: Machine, element: str | Switch, path: str, numa: int, domain: str, buses: Iterator[int]
) -> Iterator[tuple[str, Function]]:
    """What hangs on a port: one device with its functions, or a switch with all that is below it."""
    bus = next(buses)
    if isinstance(element, str):
        for function, name in enumerate(element.split("+")):
            yield name, _device(machine, name, f"{path}/{domain}:{bus:02x}:00.{function}", numa)
        return
    up, inner = f"{path}/{domain}:{bus:02x}:00.0", next(buses)
    everything = []
    for slot, below in enumerate(element.below):
        port = f"{up}/{domain}:{inner:02x}:{slot:02x}.0"
        inside = list(_element(machine, below, port, numa, domain, buses))
        everything += [(port, _bridge(port, numa, element.ids, element.board, inside)), *inside]
    yield up, _bridge(up, numa, element.ids, element.board, everything, acs=False)
    yield from everything


def _bridge(
    path: str, numa: int, ids: tuple[int, int], board: tuple[int, int], inside: list[tuple[str, Function]],
    acs: bool = True,
) -> Function:  # fmt: skip
    buses = [int(function.address.split(":")[1], 16) for _, function in inside]
    return Function(path, numa, ids, board=board, below=(min(buses), max(buses)), acs=acs)


def _device(machine: Machine, name: str, path: str, numa: int) -> Function:
    if name.startswith("GPU") and machine.gpu:
        model, width = machine.gpu, 16 if machine.gpu.pcie else 0
        code = 0x030000 if model.graphics else 0x030200
        return Function(path, numa, (0x10DE, model.chip), code, (0x10DE, 0), "nvidia", (model.pcie, width), idle=True)
    nic = next((nic for nic in machine.nics if nic.place == name), None)
    if nic:
        m = nic.model
        return Function(path, numa, m.chip, nic_class(nic), m.chip, m.driver, m.pcie)
    code, ids = next((code, ids) for start, code, ids in _PARTS if name.startswith(start))
    return Function(path, numa, ids, code, (0, 0), "nvidia-nvswitch" if code == 0x068000 else "", (4, 2))


def nic_class(nic: Nic) -> int:
    """InfiniBand ports have a class of their own."""
    return 0x020700 if nic.rdma and nic.layer == "InfiniBand" else nic.model.class_code


_CAPABILITIES, _EXPRESS = 0x34, 0x60
_CONTROL, _NIC_CONTROL = 0x2930, 0x5930  # PCI_EXP_DEVCTL: MaxReadReq, MaxPayload, relaxed ordering


def describe(machine: Machine, here: Answers) -> None:
    """Every function's files: uevent for all, link and errors for devices, the config space for bridges."""
    here.folder(DEVICES)
    for function in functions(machine).values():
        folder = f"{DEVICES}/{function.address}"
        here.link(folder, f"../../../devices/{function.path}")
        here.write(f"{folder}/uevent", _uevent(function))
        here.write(f"{folder}/config", _config(function)[: 4096 if machine.root else 64])
        _link(here, folder, function, machine.processors.virtual)
        if function.class_code != BRIDGE:
            _device_files(machine, here, folder, function)


def _uevent(function: Function) -> str:
    (vendor, chip), (board_vendor, board) = function.ids, function.board
    driver = f"DRIVER={function.driver}\n" if function.driver else ""
    return (
        f"{driver}PCI_CLASS={function.class_code:04X}\nPCI_ID={vendor:04X}:{chip:04X}\n"
        f"PCI_SUBSYS_ID={board_vendor:04X}:{board:04X}\nPCI_SLOT_NAME={function.address}\n"
    )


def _link(here: Answers, folder: str, function: Function, virtual: bool) -> None:
    """Width and speed. A virtual function, or a guest's, has none to tell."""
    generation, width = function.pcie
    if function.class_code == 0x068001 or (virtual and not width):
        return
    best = _SPEEDS[generation]
    here.write(f"{folder}/current_link_speed", _SPEEDS[1] if function.idle and generation else best)
    here.write(f"{folder}/max_link_speed", best)
    for name in ("current_link_width", "max_link_width"):
        here.write(f"{folder}/{name}", str(width))


def _device_files(machine: Machine, here: Answers, folder: str, function: Function) -> None:
    nodes = machine.processors.nodes
    here.write(f"{folder}/numa_node", str(function.numa))
    here.write(f"{folder}/local_cpulist", nodes.get(function.numa) or everyone(machine))
    if not machine.processors.virtual:
        here.write(f"{folder}/iommu_group/type", "identity")
        for kind, names in (
            ("correctable", _CORRECTABLE), ("nonfatal", f"{_UNCORRECTABLE} TOTAL_ERR_NONFATAL"),
            ("fatal", f"{_UNCORRECTABLE} TOTAL_ERR_FATAL")):  # fmt: skip
            here.write(f"{folder}/aer_dev_{kind}", "".join(f"{name} 0\n" for name in names.split()))
    if function.class_code >> 16 == 0x03 and machine.gpu:
        here.write(f"{folder}/resource", _bars(bar1_bytes(machine)))


def everyone(machine: Machine) -> str:
    """All CPUs, in the kernel's list format."""
    return ",".join(filter(None, machine.processors.nodes.values()))


def bar1_bytes(machine: Machine) -> int:
    """BAR 1: as large as the memory, to the next power of two, on servers' GPUs; 256 MiB on others."""
    assert machine.gpu
    return 1 << 28 if machine.gpu.graphics else 1 << (machine.gpu.memory_gib * (1 << 30) - 1).bit_length()


def _bars(bar1: int) -> str:
    unused = " ".join([f"0x{0:016x}"] * 3)
    first = f"0x{0xA0000000:016x} 0x{0xA0FFFFFF:016x} 0x{0x40200:016x}"
    second = f"0x{0x380000000000:016x} 0x{0x380000000000 + bar1 - 1:016x} 0x{0x14220C:016x}"
    return "\n".join((first, second, *[unused] * 11)) + "\n"


def _config(function: Function) -> bytes:
    """The header, bus numbers of a bridge, PCIe settings, and behind AER the access control of a port, switched off.

    Settings in the form of lspci on servers: MaxPayload 256, MaxReadReq 512 of GPUs and 4096 of NICs, relaxed ordering.
    """
    config = bytearray(4096)
    config[0:4] = function.ids[0].to_bytes(2, "little") + function.ids[1].to_bytes(2, "little")
    config[0x09:0x0C] = function.class_code.to_bytes(3, "little")
    if function.class_code == BRIDGE:
        config[0x0E] = 1
        config[0x18:0x1B] = bytes((int(function.address.split(":")[1], 16), *function.below))
    config[_CAPABILITIES] = _EXPRESS
    config[_EXPRESS] = 0x10
    control = _NIC_CONTROL if function.class_code >> 16 == 2 else _CONTROL
    config[_EXPRESS + 8 : _EXPRESS + 10] = control.to_bytes(2, "little")
    config[0x100:0x104] = ((0x148 if function.acs else 0) << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    if function.acs:
        config[0x148:0x14C] = (1 << 16 | 0x000D).to_bytes(4, "little")
        config[0x14C] = 0x5F
    return bytes(config)
