"""Machines of one or more nodes, made up, as NCCL's topology files: what ranks of NCCL choose on them is recorded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

Links = Callable[[int, int], dict[int, int]]
"""Of GPU n of so many: how many NVLinks to each peer; -1 is a switch."""
_CPUS = {
    "spr": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"',
    "skl": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"',
    "bdw": 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"',
    "amd": 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17"',
    "arm": 'arch="arm64"',
}
_CUBE = ((0, 1, 1, 2, 2, 0, 0, 0), (1, 0, 2, 1, 0, 2, 0, 0), (1, 2, 0, 2, 0, 0, 1, 0), (2, 1, 2, 0, 0, 0, 0, 1))
_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}


def switched(count: int) -> Links:
    """All links of a GPU go to switches."""
    return lambda number, gpus: {-1: count}


def mesh(count: int) -> Links:
    """So many links from each GPU to each other."""
    return lambda number, gpus: {peer: count for peer in range(gpus) if peer != number}


def pairs(count: int) -> Links:
    """Two and two are bridged."""
    return lambda number, gpus: {number ^ 1: count} if number ^ 1 < gpus else {}


def cube(number: int, gpus: int) -> dict[int, int]:
    """The hybrid cube mesh of a DGX-1."""
    row = _CUBE[number % 4] if number < 4 else (*_CUBE[number % 4][4:], *_CUBE[number % 4][:4])
    return {peer: count for peer, count in enumerate(row) if count}


def none(number: int, gpus: int) -> dict[int, int]:
    """No NVLink."""
    return {}


@dataclass(frozen=True)
class Topology:
    """`product`: of which GPU, as `ncclprobe expect --gpu` calls it; null: NVLink joins them all, and any will do.

    `below`: how many GPUs hang below one PCIe switch, 0: each at a root port; `levels` of switches. `p2p`: whether the
    driver lets GPUs reach each other over PCIe. `nics` of a node are spread over its switches, or its root ports.
    """

    name: str
    sm: int
    gpus: int
    cpu: str
    links: Links = none
    sockets: int = 2
    below: int = 1
    levels: int = 1
    pcie: int = 5
    product: str | None = None
    p2p: bool = True
    nodes: int = 1
    nics: int = 0
    nic_gbps: int = 400
    gdr: bool = True

    @property
    def buses(self) -> tuple[str, ...]:
        """The address of each GPU."""
        return tuple(f"0000:{0x11 + 6 * number:02x}:00.0" for number in range(self.gpus))

    def xml(self) -> str:
        """The file."""
        each, step = -(-self.gpus // self.sockets), self.below or 1
        slots = sum(-(-min(each, self.gpus - begin) // step) for begin in range(0, self.gpus, each))
        share, numbers = max(1, self.nics // slots), iter(range(self.nics))
        lines = ['<system version="1">']
        for numa in range(min(self.sockets, self.gpus)):
            lines.append(f'<cpu numaid="{numa}" affinity="ffffffff" {_CPUS[self.cpu]}>')
            own = range(numa * each, min((numa + 1) * each, self.gpus))
            for begin in range(own.start, own.stop, step):
                nics = list(islice(numbers, share))
                lines += self._slots(own[begin - own.start : begin - own.start + step], nics)
            lines.append("</cpu>")
        return "\n".join([*lines, "</system>", ""])

    def _slots(self, numbers: Sequence[int], nics: Sequence[int]) -> Iterator[str]:
        speed = f'link_speed="{_SPEEDS[self.pcie]}" link_width="16"'
        depth = self.levels if self.below else 0
        for level in range(depth):
            above = f"0000:{int(self.buses[numbers[0]][5:7], 16) - depth + level:02x}:00.0"
            yield f'<pci busid="{above}" class="0x060400" vendor="0x1000" device="0xc030" {speed}>'
        for number in numbers:
            yield f'<pci busid="{self.buses[number]}" class="0x030200" vendor="0x10de" device="0xffff" {speed}>'
            yield f'<gpu dev="{number}" sm="{self.sm}" rank="{number}" gdr="1">'
            for peer, count in self.links(number, self.gpus).items():
                target, kind = ("0000:f0:00.0", "0x068000") if peer < 0 else (self.buses[peer], "0x030200")
                yield f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'
            yield "</gpu></pci>"
        for nic in nics:
            name = f'name="mlx5_{nic}" dev="{nic}" speed="{self.nic_gbps * 1000}" port="1" guid="{nic + 1:#x}"'
            yield f'<pci busid="0000:{0xA0 + nic:02x}:00.0" class="0x020000" vendor="0x15b3" device="0x1021" {speed}>'
            yield f'<nic><net {name} latency="0" maxconn="65536" gdr="{int(self.gdr)}"/></nic></pci>'
        yield "</pci>" * depth


_L40S, _T4, _PRO, _4090 = "L40S", "T4", "RTX PRO 6000", "RTX 4090"
TOPOLOGIES = (
    *(Topology(f"h100-{n}-spr", 90, n, "spr", switched(18)) for n in (2, 3, 4, 5, 6, 7, 8)),
    *(Topology(f"h100-{n}-amd", 90, n, "amd", switched(18)) for n in (2, 4, 8)),
    Topology("h100-8-roots", 90, 8, "spr", switched(18), below=0),
    Topology("h100-4-mesh", 90, 4, "amd", mesh(6)),
    Topology("gh200-4-mesh", 90, 4, "arm", mesh(6), sockets=4, below=0),
    *(Topology(f"b200-{n}", 100, n, "spr", switched(18)) for n in (2, 3, 4, 5, 6, 8)),
    *(Topology(f"a100-{n}", 80, n, "amd", switched(12), below=2, pcie=4) for n in (2, 4, 8)),
    Topology("a100-4-mesh", 80, 4, "amd", mesh(4), sockets=4, pcie=4),
    Topology("a100-2-pairs", 80, 2, "skl", pairs(12), sockets=1, pcie=4),
    Topology("a100-4-pairs", 80, 4, "amd", pairs(12), pcie=4, below=2, product="A100 80GB PCIe"),
    Topology("v100-8-cube", 70, 8, "bdw", cube, below=2, pcie=3),
    Topology("v100-4-mesh", 70, 4, "bdw", mesh(2), sockets=1, below=2, pcie=3),
    Topology("v100-16", 70, 16, "skl", switched(6), below=2, pcie=3),
    Topology("v100-4-pcie", 70, 4, "skl", below=2, pcie=3, product="V100 PCIe"),
    *(
        Topology(f"l40s-4-switch-{cpu}", 89, 4, cpu, sockets=1, below=4, pcie=4, product=_L40S)
        for cpu in ("spr", "amd")
    ),
    *(Topology(f"l40s-8-switches-{cpu}", 89, 8, cpu, below=4, pcie=4, product=_L40S) for cpu in ("spr", "amd", "skl")),
    Topology("l40s-4-two-levels", 89, 4, "spr", sockets=1, below=2, levels=2, pcie=4, product=_L40S),
    *(Topology(f"l40s-4-roots-{cpu}", 89, 4, cpu, sockets=1, below=0, pcie=4, product=_L40S) for cpu in ("spr", "amd")),
    *(Topology(f"l40s-2-sockets-{cpu}", 89, 2, cpu, below=0, pcie=4, product=_L40S) for cpu in ("spr", "amd")),
    Topology("t4-4-roots", 75, 4, "skl", below=0, pcie=3, product=_T4),
    Topology("t4-8-switches", 75, 8, "bdw", below=4, pcie=3, product=_T4),
    *(Topology(f"pro6000-{n}", 120, n, "amd", below=0, product=_PRO) for n in (2, 4, 8)),
    Topology("rtx4090-4", 89, 4, "amd", sockets=1, below=0, pcie=4, product=_4090, p2p=False),
    *(Topology(f"h100-{n}-2-nodes", 90, n, "spr", switched(18), nodes=2, nics=n) for n in (1, 2, 4, 8)),
    Topology("h100-8-2-nodes-amd", 90, 8, "amd", switched(18), below=2, nodes=2, nics=4),
    Topology("h100-2-4-nodes", 90, 2, "spr", switched(18), nodes=4, nics=2),
    Topology("b200-4-2-nodes", 100, 4, "spr", switched(18), nodes=2, nics=4, nic_gbps=800),
    *(
        Topology(f"a100-{n}-2-nodes", 80, n, "amd", switched(12), below=2, pcie=4, nodes=2, nics=nics, nic_gbps=200)
        for n, nics in ((2, 1), (4, 4), (8, 8))
    ),
    Topology("v100-8-2-nodes", 70, 8, "bdw", cube, below=2, pcie=3, nodes=2, nics=4, nic_gbps=100),
    Topology("l40s-4-2-nodes", 89, 4, "spr", sockets=1, below=4, pcie=4, product=_L40S, nodes=2, nics=1, nic_gbps=200),
    Topology("l40s-4-2-nodes-roots", 89, 4, "amd", below=0, pcie=4, product=_L40S, nodes=2, nics=4, nic_gbps=200),
    Topology("l40s-2-3-nodes", 89, 2, "spr", below=0, pcie=4, product=_L40S, nodes=3, nics=2, nic_gbps=100),
    Topology("t4-2-2-nodes", 75, 2, "skl", below=0, pcie=3, product=_T4, nodes=2, nics=1, nic_gbps=100, gdr=False),
)

_P2P = ({"NCCL_P2P_LEVEL": "PXB"}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_P2P_DISABLE": "1"})
_TREE = {"NCCL_ALGO": "allreduce:Tree", "NCCL_PROTO": "^LL128"}
_NVLS = {"NCCL_NVLS_ENABLE": "2"}
_HOPPER = 90


def settings_of(each: Topology) -> list[dict[str, str]]:
    """With which settings a machine is played: those of P2P where NVLink does not join all GPUs of the only node."""
    switched = -1 in each.links(0, each.gpus)
    joined = switched or len(each.links(0, each.gpus)) >= each.gpus - 1
    alone = each.nodes == 1
    nvls = [_NVLS] if switched and each.sm >= _HOPPER and each.gpus > 1 else []
    return [{}, *(_P2P if alone and not joined else ()), *([_TREE] if alone and each.gpus <= 4 else []), *nvls]
