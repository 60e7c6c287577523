"""A small machine on disk: a /sys that our collectors read, and a host that reads below its root."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ncclprobe.host import live

BRIDGE, GPU_3D, ETHERNET, INFINIBAND, NVSWITCH = 0x060400, 0x030200, 0x020000, 0x020700, 0x068000
IDS = {BRIDGE: (0x10B5, 0x8796), GPU_3D: (0x10DE, 0x2330), NVSWITCH: (0x10DE, 0x22A3)}
NIC_IDS = (0x15B3, 0x1021)
GEN4, GEN5 = "16.0 GT/s PCIe", "32.0 GT/s PCIe"
ACS_OFFSET = 0x148


class Below:
    """Answers from the files below `root`, as LiveHost would from those of the machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[str | int, ...]] = []

    def ask(self, *question: str | int) -> str:
        self.asked.append(question)
        kind, path, *rest = map(str, question)
        return live.within(5.0, lambda: live.SOURCES[kind](f"{self.root}{path}", *rest), " ".join(map(str, question)))


class Sysfs:
    """Builds the tree. PCI functions are named by their path from the root bus: ``pci0000:40/0000:40:01.0/…``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Below(root)
        self._functions: dict[str, tuple[int, tuple[int, int], int | None]] = {}

    def write(self, path: str, content: str | bytes) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def numa(self, nodes: Mapping[int, range]) -> None:
        """NUMA nodes with their CPUs."""
        cpus, system = [cpu for range_ in nodes.values() for cpu in range_], "/sys/devices/system"
        self.write(f"{system}/cpu/online", f"0-{len(cpus) - 1}\n")
        self.write("/proc/cpuinfo", "".join(f"processor\t: {cpu}\nmodel name\t: Fast CPU\n\n" for cpu in cpus))
        self.write("/proc/meminfo", "MemTotal: 8388608 kB\n")
        self.write(f"{system}/node/online", f"0-{len(nodes) - 1}\n")
        for node, members in nodes.items():
            folder = f"{system}/node/node{node}"
            self.write(f"{folder}/cpulist", f"{members[0]}-{members[-1]}\n")
            self.write(f"{folder}/meminfo", f"Node {node} MemTotal: 4194304 kB\n")
            self.write(f"{folder}/distance", " ".join("10" if other == node else "20" for other in nodes) + "\n")

    def pci(
        self, path: str, class_code: int = BRIDGE, ids: tuple[int, int] | None = None, board: tuple[int, int] = (0, 0),
        numa: int = 0, cpus: range = range(2), speed: str = GEN4, width: int = 16, acs: int | None = None,
    ) -> str:  # fmt: skip
        """Add a function and give its address. `acs`: the control register of a port that has the capability."""
        vendor, device = ids or IDS.get(class_code, NIC_IDS)
        address = path.rpartition("/")[2]
        folder = f"/sys/devices/{path}"
        self.link(f"/sys/bus/pci/devices/{address}", f"../../../devices/{path}")
        self._functions[path] = (class_code, (vendor, device), acs)
        uevent = f"PCI_CLASS={class_code:04X}\nPCI_ID={vendor:04X}:{device:04X}\n"
        uevent += f"PCI_SUBSYS_ID={board[0]:04X}:{board[1]:04X}\nPCI_SLOT_NAME={address}\n"
        texts = {
            "uevent": uevent, "numa_node": str(numa), "local_cpulist": f"{cpus[0]}-{cpus[-1]}",
            "current_link_speed": speed, "max_link_speed": speed, "current_link_width": str(width),
            "max_link_width": str(width), "iommu_group/type": "identity",
            **{f"aer_dev_{kind}": f"BadTLP 0\nTOTAL_ERR_{kind} 0" for kind in ("correctable", "nonfatal", "fatal")},
            "resource": "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
            "0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n" + f"{' '.join(['0x' + '0' * 16] * 3)}\n" * 5,
        }  # fmt: skip
        for name, text in texts.items():
            self.write(f"{folder}/{name}", f"{text.rstrip()}\n")
        return address

    def finish(self) -> Below:
        """Write the config spaces, whose bus numbers only the whole tree tells. Gives the host."""
        for path, (class_code, ids, acs) in self._functions.items():
            below = [_bus(other) for other in self._functions if other.startswith(f"{path}/")]
            self.write(f"/sys/devices/{path}/config", config_space(class_code, ids, _bus(path), below, acs))
        return self.host


def _bus(path: str) -> int:
    return int(path.rpartition("/")[2].split(":")[1], 16)


def config_space(class_code: int, ids: tuple[int, int], bus: int, below: list[int], acs: int | None = None) -> bytes:
    """4096 bytes by the PCI specification: header type 1 with bus numbers for a bridge, then AER and maybe ACS."""
    config = bytearray(4096)
    config[0:4] = ids[0].to_bytes(2, "little") + ids[1].to_bytes(2, "little")
    config[0x09:0x0C] = class_code.to_bytes(3, "little")
    if class_code == BRIDGE:
        config[0x0E] = 1
        config[0x18:0x1B] = bytes((bus, min(below, default=0), max(below, default=0)))
    config[0x100:0x104] = ((ACS_OFFSET if acs is not None else 0) << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    if acs is not None:
        config[ACS_OFFSET : ACS_OFFSET + 4] = (1 << 16 | 0x000D).to_bytes(4, "little")
        config[ACS_OFFSET + 4 : ACS_OFFSET + 6] = (0x7F).to_bytes(2, "little")
        config[ACS_OFFSET + 6 : ACS_OFFSET + 8] = acs.to_bytes(2, "little")
    return bytes(config)


def two_sockets(tree: Sysfs) -> dict[str, str]:
    """Per socket: a switch with a GPU and a NIC, and a second level with a GPU; a NIC on a root port of its own.

    Gives addresses by name. The second socket's GPUs are GPU2 and GPU3.
    """
    names = {}
    tree.numa({0: range(2), 1: range(2, 4)})
    for socket, bus in enumerate((0x10, 0x80)):
        add = partial(tree.pci, numa=socket, cpus=range(2 * socket, 2 * socket + 2))

        def at(offset: int, slot: int = 0, bus: int = bus) -> str:
            return f"0000:{bus + offset:02x}:{slot:02x}.0"

        root = f"pci0000:{bus:02x}/{at(0, 1)}"
        up = f"{root}/{at(1)}"
        ports = [f"{up}/{at(2, slot)}" for slot in range(3)]
        deep = f"{ports[2]}/{at(5)}"
        for bridge in (root, up, *ports, deep, f"{deep}/{at(6)}"):
            add(bridge, acs=0 if bridge == root else 0x1D if bridge in ports else None)
        names[f"GPU{2 * socket}"] = add(f"{ports[0]}/{at(3)}", GPU_3D)
        names[f"mlx5_{2 * socket}"] = add(f"{ports[1]}/{at(4)}", INFINIBAND, width=8)
        names[f"GPU{2 * socket + 1}"] = add(f"{deep}/{at(6)}/{at(7)}", GPU_3D)
        lonely = f"pci0000:{bus + 0x20:02x}/{at(0x20, 1)}"
        add(lonely)
        names[f"mlx5_{2 * socket + 1}"] = add(f"{lonely}/{at(0x21)}", ETHERNET)
    tree.pci("pci0000:10/0000:10:1f.0", 0x060100, (0x8086, 0x1BC1))  # an ISA bridge, which is nobody's business
    return names
