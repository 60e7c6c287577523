"""What the checks of InfiniBand and RoCE must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.ib.fixtures import (
    NO_NCCL,
    ONE_NODE,
    PLAIN,
    TWO_NODES,
    device,
    fabric,
    gid,
    gpus,
    having,
    interfaces,
    pci,
    port,
    roce,
)
from ncclprobe.checks.ib.gdr import BARE, GUEST, METAL, NOTHING
from ncclprobe.checks.ib.ports import BOTH, FLUX, SAME, downs, routed, sysctls_of, troubled
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Rate
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.ports import Ipv4Settings
from ncclprobe.facts.routes import Routes, Rule
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

HDR = Rate(200, 4, "HDR")
PEERMEM = GpuDirect({"/sys/module/nvidia_peermem/version": "550.127.08"}, (5, 15))


def nccl(*version: int) -> Software:
    """Return the software of a job that loads this NCCL."""
    major, minor, patch = version
    return Software({}, (NcclLibrary((major, minor, patch), "nvidia-nccl-cu12"),))


_OPEN = GpuDirect({}, (6, 8), "open")
_SWITCHED = NvLinks(((NvLink(0, "active", remote="switch", remote_pci=""),),) * 4)
_DOWN: dict[str, Any] = {"state": "DOWN", "physical": "Polling"}
_KEPT_APART = Ipv4Settings(1, 2)
_BY_SOURCE = tuple(Rule(100 + n, f"{100 + n}", f"10.0.0.{n}/32") for n in range(2))


_CARD = next(each for each in pci().devices.values() if each.identity.kind == "nic")
_UNPLACED = Pci({**pci().devices, _CARD.address: replace(_CARD, place=Absent("timed out", "TimedOut"))})
CASES = {
    "ib.gdr/gdr": Cases(
        bad=[
            (
                "WARN image: GPUDirect RDMA",
                fabric(),
                PLAIN,
                replace(PEERMEM, driver="proprietary"),
                gpus(),
                pci(),
                BARE,
                nccl(2, 21, 5),
                Launch(),
                METAL,
            ),
            (
                "WARN job: GPUDirect RDMA",
                fabric(),
                having("NCCL_DMABUF_ENABLE", "0"),
                _OPEN,
                gpus(),
                pci(),
                BARE,
                NO_NCCL,
                Launch(),
                METAL,
            ),
            ("WARN node: GPU3", fabric(), PLAIN, PEERMEM, gpus(), pci(far=(3,)), BARE, NO_NCCL, Launch(), METAL),
            (
                "WARN job: NCCL_NET_GDR_LEVEL",
                fabric(),
                having("NCCL_NET_GDR_LEVEL", "LOC"),
                PEERMEM,
                gpus(),
                pci(),
                BARE,
                NO_NCCL,
                Launch(),
                METAL,
            ),
            (
                "WARN job: NCCL_NET_GDR_READ",
                fabric(),
                having("NCCL_NET_GDR_READ", "0"),
                PEERMEM,
                gpus(),
                pci(),
                BARE,
                NO_NCCL,
                Launch(),
                METAL,
            ),
        ],
        good=[
            (fabric(), PLAIN, PEERMEM, gpus(), pci(), BARE, NO_NCCL, TWO_NODES, METAL),
            (fabric(), PLAIN, _OPEN, gpus(), pci(), BARE, nccl(2, 21, 5), TWO_NODES, METAL),
            (fabric(), PLAIN, NOTHING, gpus(4, "NVIDIA GeForce RTX 4090"), pci(), BARE, NO_NCCL, Launch(), METAL),
            (fabric(), PLAIN, PEERMEM, gpus(), pci(far=(3,)), _SWITCHED, NO_NCCL, TWO_NODES, METAL),
            (fabric(), PLAIN, PEERMEM, gpus(), pci(far=(0, 1, 2, 3)), BARE, NO_NCCL, TWO_NODES, METAL),
            (fabric(), PLAIN, PEERMEM, gpus(), pci(far=(3,)), BARE, NO_NCCL, TWO_NODES, GUEST),
            (
                fabric(),
                having("NCCL_NET_GDR_LEVEL", "SYS"),
                PEERMEM,
                gpus(),
                pci(far=(3,)),
                BARE,
                NO_NCCL,
                TWO_NODES,
                METAL,
            ),
            (
                fabric(port(0, Rate(25, 1), link_layer="Ethernet"), count=0),
                PLAIN,
                NOTHING,
                gpus(),
                pci(),
                BARE,
                NO_NCCL,
                Launch(),
                METAL,
            ),
        ],
    ),
    "ib.gdr/gpu-near": Cases(
        bad=[
            ("WARN node: GPU3", fabric(), PLAIN, pci(far=(3,)), gpus(), METAL),
            ("WARN node: GPU1", fabric(port(1, Rate(25, 1, "EDR"))), PLAIN, pci(), gpus(), METAL),
        ],
        good=[
            (fabric(), PLAIN, pci(far=(0, 1, 2, 3)), gpus(), METAL),
            (fabric(count=2), PLAIN, pci(), gpus(), METAL),
            (fabric(), PLAIN, pci(far=(3,)), gpus(), GUEST),
            (fabric(count=1), PLAIN, pci(), gpus(1), METAL),
            (fabric(), PLAIN, _UNPLACED, gpus(), METAL),
            (fabric(port(1, state=Absent("timed out", "TimedOut"))), PLAIN, pci(), gpus(), METAL),
        ],
    ),
    "ib.gdr/numa": Cases(
        good=[
            (fabric(), PLAIN, pci(), gpus(), METAL),
            (fabric(count=1), PLAIN, pci(), gpus(), METAL),
            (fabric(), PLAIN, pci(moved=(2, 3)), gpus(2), METAL),
        ]
    ),
    "ib.state": Cases(
        bad=[
            ("FAIL link: mlx5_2:1", fabric(port(2, **_DOWN)), PLAIN, TWO_NODES, pci(), gpus()),
            ("WARN link: mlx5_2:1", fabric(port(2, **_DOWN)), PLAIN, Launch(), Absent("no sysfs"), gpus()),
            ("WARN link: mlx5_1:1", fabric(port(1, physical="LinkErrorRecovery")), PLAIN, Launch(), pci(), gpus()),
            ("FAIL link: mlx5_0:1", fabric(port(0, **_DOWN), count=1), PLAIN, TWO_NODES, pci(), gpus()),
        ],
        good=[
            (fabric(port(2, **_DOWN)), having("NCCL_IB_HCA", "^mlx5_2"), Launch(), pci(), gpus()),
            (fabric(port(4, **_DOWN)), PLAIN, TWO_NODES, pci(), gpus()),
            (fabric(port(3, **_DOWN)), PLAIN, Launch(), pci(), gpus(3)),
            (fabric(port(0, **_DOWN), count=1), PLAIN, Launch(), pci(), gpus()),
            (Fabric((device(port(0, **_DOWN, link_layer="Unspecified")),)), PLAIN, TWO_NODES, pci(), gpus()),
        ],
    ),
    "ib.rate": Cases(
        bad=[
            ("FAIL link: mlx5_1:1", fabric(port(1, HDR)), PLAIN, pci(), gpus()),
            ("WARN link: mlx5_1:1", fabric(port(1, HDR)), PLAIN, Absent("no sysfs"), gpus()),
            (
                "FAIL link: mlx5_0:1",
                fabric(port(0, Rate(50, 1, "HDR")), count=1),
                PLAIN,
                Absent("no sysfs"),
                Absent("no driver"),
            ),
        ],
        good=[
            (fabric(port(4, HDR)), PLAIN, pci(), gpus()),
            (fabric(port(0, HDR), port(1, HDR)), PLAIN, pci(), gpus()),
            (fabric(port(0, Rate(200, 2, "NDR")), count=1), PLAIN, pci(), gpus()),
            (fabric(port(0, Rate(25, 1, "EDR"), link_layer="Ethernet"), count=1), PLAIN, pci(), gpus()),
            (fabric(port(1, Rate(10, 4), **_DOWN)), PLAIN, pci(), gpus()),
        ],
    ),
    "ib.perm": Cases(
        bad=[("FAIL image: /dev/infiniband", Fabric((device(port(0), verbs="", opens=False),)), PLAIN, TWO_NODES)],
        good=[
            (fabric(), PLAIN, TWO_NODES),
            (Fabric((device(port(0), verbs="uverbs0", opens=False),)), PLAIN, ONE_NODE),
        ],
    ),
    "ib.losses/flap-history": Cases(
        good=[
            (fabric(), PLAIN, downs(2, 9)),
            (fabric(), PLAIN, downs(20, 30, 40, 50)),
        ]
    ),
    "ib.losses/losses": Cases(
        bad=[],
        good=[
            (fabric(*(troubled(n, out_of_sequence=400_000) for n in range(4))), PLAIN),
            (fabric(), PLAIN),
        ],
    ),
    "ib.roce/roce-v2": Cases(
        bad=[
            ("WARN node: mlx5_0:1", fabric(roce(0, ""), count=0), PLAIN, Launch()),
            (
                "WARN node: mlx5_0:1",
                fabric(roce(0, "", gids=(gid(0, "10.0.0.5", "IB/RoCE v1"),)), count=0),
                PLAIN,
                Launch(),
            ),
        ],
        good=[
            (fabric(roce(1, "", Rate(25, 1, "EDR")), count=1), PLAIN, TWO_NODES),
            (fabric(roce(0, "10.0.0.5"), roce(1, "", Rate(25, 1, "EDR")), count=0), PLAIN, TWO_NODES),
            (fabric(roce(0, ""), count=0), PLAIN, ONE_NODE),
        ],
    ),
    "ib.roce/roce-mtu": Cases(
        bad=[
            (
                "WARN node: mlx5_1:1",
                fabric(roce(0, "10.0.0.5"), roce(1, "10.1.0.5"), count=0),
                PLAIN,
                interfaces(9000, 4000),
                routed(),
            )
        ],
        good=[
            (fabric(roce(0, "10.0.0.5"), roce(1, "10.1.0.5"), count=0), PLAIN, interfaces(4200, 9000), routed()),
            (fabric(roce(4, "10.0.0.5")), PLAIN, interfaces(1500), routed()),
            (fabric(roce(0, "10.0.0.5", Rate(25, 1, "EDR")), count=0), PLAIN, interfaces(1500), routed()),
        ],
    ),
    "ib.roce/same-subnet": Cases(
        bad=[
            (
                "WARN node: eth0 and eth1",
                BOTH,
                PLAIN,
                SAME,
                Routes((), Absent("no ip")),
                sysctls_of(eth0=FLUX, eth1=FLUX),
            )
        ],
        good=[
            (BOTH, PLAIN, SAME, routed(), sysctls_of(eth0=_KEPT_APART, eth1=_KEPT_APART)),
            (BOTH, PLAIN, SAME, Routes((), _BY_SOURCE), sysctls_of(eth0=FLUX, eth1=_KEPT_APART)),
            (BOTH, PLAIN, interfaces(9000, 9000), routed(), sysctls_of()),
        ],
    ),
}
