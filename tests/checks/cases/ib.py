"""What the checks of InfiniBand and RoCE must object to, and what they must accept."""

from functools import partial
from typing import Any

from ncclprobe.checks.ib.fixtures import (
    NDR,
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
from ncclprobe.checks.ib.interfaces import DOWN, rails
from ncclprobe.checks.ib.ports import BOTH, FLUX, SAME, downs, routed, sysctls_of, troubled
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Rate, RdmaDevice
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.ports import Ipv4Settings
from ncclprobe.facts.routes import Route, Routes, Rule
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

HDR = Rate(200, 4, "HDR")
PEERMEM = GpuDirect({"/sys/module/nvidia_peermem/version": "550.127.08"}, (5, 15))


def nccl(*version: int) -> Software:
    """Return the software of a job that loads this NCCL."""
    major, minor, patch = version
    return Software({}, (NcclLibrary((major, minor, patch), "nvidia-nccl-cu12"),))


_only = partial(fabric, count=0)
_NO_SYSFS, _NO_DRIVER = Absent("no sysfs"), Absent("no driver")
_CLOSED = GpuDirect({}, (5, 15), "proprietary")
_OPEN = GpuDirect({}, (6, 8), "open")
_SWITCHED = NvLinks(((NvLink(0, "active", remote="switch", remote_pci=""),),) * 4)
_DOWN: dict[str, Any] = {"state": "DOWN", "physical": "Polling"}
_KEPT_APART = Ipv4Settings(1, 2)
_BY_SOURCE = tuple(Rule(100 + n, f"{100 + n}", f"10.0.0.{n}/32") for n in range(2))


_UNREAD = Absent("permission denied")
_CARD = next(each for each in pci().devices.values() if each.identity.kind == "nic")
_UNPLACED = Pci({**pci().devices, _CARD.address: replace(_CARD, place=Absent("timed out", "TimedOut"))})
_FLAT = Pci({name: replace(each, place=_UNREAD) for name, each in pci().devices.items()})
_BLIND = Pci({name: replace(each, numa_node=_UNREAD) for name, each in _FLAT.devices.items()})
_HOMELESS = Pci({**pci().devices, "0000:12:00.0": replace(pci().devices["0000:12:00.0"], numa_node=-1)})
_IDLE = [replace(port(n, **_DOWN), device=f"mlx5_{n}b") for n in range(4)]
_SECOND_PORTS = [replace(device(port(n)), name=idle.device, ports=(idle,)) for n, idle in enumerate(_IDLE)]
_SOFT = RdmaDevice("rxe0", (replace(roce(0, "10.0.0.5"), device="rxe0"),), None, opens=False)
_UNTYPED = (gid(0, "10.0.0.5", None),)  # type: ignore[arg-type]
_MANAGEMENT = fabric(roce(4, "", Rate(25, 1, "EDR")))
_ELSEWHERE = replace(
    downs(1, 2, 3), events=tuple(replace(event, device="0000:99:00.0") for event in downs(1, 2, 3).events)
)
_AT_BOOT = replace(
    downs(0.1, 0.11, 0.12), uptime_s=700.0,
    events=tuple(replace(event, at_s=200.0) for event in downs(0.1, 0.11, 0.12).events),
)  # fmt: skip
_gdr = rows_of(
    fabric=fabric(), settings=PLAIN, direct=PEERMEM, gpus=gpus(), pci=pci(), nvlinks=BARE, software=NO_NCCL,
    launch=Launch(), machine=METAL,
)  # fmt: skip
_gpu_near = rows_of(fabric=fabric(), settings=PLAIN, pci=pci(), gpus=gpus(), machine=METAL)
_state = rows_of(fabric=fabric(), settings=PLAIN, launch=Launch(), pci=pci(), gpus=gpus())
_rate = rows_of(fabric=fabric(), settings=PLAIN, pci=pci(), gpus=gpus(), described=NamedMachine())
_roce_mtu = rows_of(
    fabric=_only(roce(0, "10.0.0.5"), roce(1, "10.1.0.5")), settings=PLAIN, found=interfaces(1500), routes=routed()
)
_same_subnet = rows_of(
    fabric=BOTH, settings=PLAIN, found=SAME, routes=routed(), sysctls=sysctls_of(eth0=FLUX, eth1=FLUX)
)
_roce_v2 = rows_of(fabric=_only(roce(0, "")), settings=PLAIN, launch=TWO_NODES)
_ONE_LANE = fabric(port(0, Rate(50, 1, "HDR")), count=1)
_FOUR = "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"
_ALL_DOWN, _ALL_UNREAD = (fabric(*(port(n, **each) for n in range(4))) for each in (_DOWN, {"state": _UNREAD}))
_DOUBLED = Fabric((*fabric().devices, *_SECOND_PORTS))
_DGX = NamedMachine("DGX H100")
_TROUBLES = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
_WELL = tuple(map(troubled, (0, 2, 3)))
_UNCOUNTED = [replace(each, **{name: _UNREAD}) for each, name in zip(_WELL, ("counters", "hw_counters"), strict=False)]
_BUSY = replace(troubled(1, out_of_sequence=60_000), counters=(("port_rcv_packets", 10**11),))
_BLIND_SYSCTLS = Ipv4Settings(_UNREAD, _UNREAD)
_LOOSE = (Ipv4Settings(1, 1), Ipv4Settings(0, 2))
_TRAINING = ("LinkErrorRecovery", "PortConfigurationTraining", "Phy Test")
CASES: Cases = {
    "ib.gdr/gdr": [
        _gdr("WARN image: GPUDirect RDMA", NOTHING, fabric(port(0, Rate(100, 4), link_layer="Ethernet"), count=0)),
        _gdr("NOTE node: GPU3", pci(far=(3,)), having("NCCL_TOPO_FILE", "/t.xml")), _gdr(TWO_NODES),
        _gdr("NOTE unknown: GPU0", _UNPLACED), _gdr("WARN node: GPU3", pci(far=(3,))),
        _gdr("WARN image: GPUDirect RDMA", replace(PEERMEM, driver="proprietary"), nccl(2, 21, 5)),
        _gdr("WARN job: GPUDirect RDMA", having("NCCL_DMABUF_ENABLE", "0"), _OPEN),
        _gdr("WARN job: NCCL_NET_GDR_LEVEL", having("NCCL_NET_GDR_LEVEL", "LOC")),
        _gdr("WARN job: NCCL_NET_GDR_READ", having("NCCL_NET_GDR_READ", "0")), _gdr(_OPEN, nccl(2, 21, 5), TWO_NODES),
        _gdr("FAIL image: GPUDirect RDMA", _CLOSED, _SWITCHED, TWO_NODES), _gdr(pci(far=(3,)), _SWITCHED, TWO_NODES),
        _gdr("NOTE unknown: GPU2 and GPU3", pci(far=(2, 3))), _gdr("NOTE unknown: GPUDirect RDMA", pci=_UNREAD),
        _gdr("UNKNOWN: whether this old kernel has DMA-BUF for RDMA cannot be seen", GpuDirect({}, (4, 18), "open")),
        _gdr(replace(PEERMEM, driver="proprietary"), nccl(2, 23, 4)), _gdr(NOTHING, gpus(4, "NVIDIA GeForce RTX 4090")),
        _gdr(_MANAGEMENT, TWO_NODES, nvlinks=_UNREAD, machine=_UNREAD), _gdr(pci(far=(0, 1, 2, 3)), TWO_NODES),
        _gdr(pci(far=(3,)), TWO_NODES, GUEST), _gdr(having("NCCL_NET_GDR_LEVEL", "SYS"), pci(far=(3,)), TWO_NODES),
        _gdr(_only(port(0, Rate(25, 1), link_layer="Ethernet")), NOTHING),
    ],
    "ib.gdr/gpu-near": [
        _gpu_near("WARN node: GPU3", pci(far=(3,))), _gpu_near("WARN node: GPU1", fabric(port(1, Rate(25, 1, "EDR")))),
        _gpu_near("WARN node: GPU3", fabric(count=3)), _gpu_near("WARN node: GPU3", having("NCCL_IB_HCA", "^mlx5_3")),
        _gpu_near("UNKNOWN: the PCI tree does not show the distance between GPUs and NICs", _BLIND, machine=_UNREAD),
        _gpu_near(_MANAGEMENT, machine=_UNREAD), _gpu_near(pci(far=(0, 1, 2, 3))), _gpu_near(fabric(count=2)),
        _gpu_near(pci(far=(3,)), GUEST), _gpu_near(fabric(count=1), gpus(1)), _gpu_near(_UNPLACED),
        _gpu_near(fabric(port(1, state=Absent("timed out", "TimedOut")))),
    ],
    "ib.gdr/numa": [
        ("UNKNOWN: no NIC's NUMA node could be read", fabric(), PLAIN, _BLIND, gpus(), _UNREAD),
        ("NOTE unknown: mlx5_0", fabric(), PLAIN, _HOMELESS, gpus(), _UNREAD), (fabric(), PLAIN, pci(), gpus(), METAL),
        (fabric(count=1), PLAIN, pci(), gpus(), METAL), (fabric(), PLAIN, pci(moved=(2, 3)), gpus(2), METAL),
    ],
    "ib.state": [
        _state("NOTE link: mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1", _ALL_DOWN, launch=_UNREAD),
        _state("NOTE unknown: mlx5_1:1 and mlx5_2:1", fabric(port(1, state=Absent("b")), port(2, state=Absent("a")))),
        _state("NOTE link: mlx5_0:1, mlx5_1:1, mlx5_2:1", fabric(*(port(n, **_DOWN) for n in range(3))),
            having("NCCL_IB_HCA", "^mlx5_3"), TWO_NODES),
        _state("WARN link: mlx5_0:1", fabric(port(0, **_DOWN), count=1), gpus=_NO_DRIVER),
        _state("WARN link: mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1", _ALL_DOWN, gpus=_NO_DRIVER),
        *(_state("FAIL link: mlx5_1:1", fabric(port(1, state="DOWN", physical=each)))
            for each in ("Disabled", _UNREAD)),
        _state("FAIL link: mlx5_2:1", fabric(port(2, **_DOWN)), TWO_NODES), _state(fabric(port(4, **_DOWN)), TWO_NODES),
        _state("WARN link: mlx5_2:1", fabric(port(2, **_DOWN)), pci=_NO_SYSFS),
        *(_state("WARN link: mlx5_1:1", fabric(port(1, physical=each))) for each in _TRAINING),
        _state("FAIL link: mlx5_0:1", fabric(port(0, **_DOWN), count=1), TWO_NODES),
        _state("WARN link: mlx5_0:1, mlx5_1:1, mlx5_2:1", fabric(*(port(n, **_DOWN) for n in range(3))), TWO_NODES),
        _state("FAIL link: mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1", _ALL_DOWN, TWO_NODES),
        *(_state("FAIL fabric: mlx5_1:1", fabric(port(1, state=each))) for each in ("INIT", "ARMED")),
        _state("WARN link: mlx5_2:1", fabric(port(2, **_DOWN)), _FLAT), _state(fabric(port(3, **_DOWN)), gpus(3)),
        _state("NOTE link: mlx5_5:1", fabric(port(5, **_DOWN), count=5), TWO_NODES),
        _state("NOTE link: mlx5_0b:1, mlx5_1b:1, mlx5_2b:1, mlx5_3b:1", _DOUBLED, TWO_NODES),
        _state("NOTE link: mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1", _ALL_DOWN),
        _state("NOTE link: mlx5_5:1", fabric(port(5, state="INIT", link_layer="Ethernet")), TWO_NODES),
        _state("NOTE link: mlx5_4:1", fabric(port(4, **_DOWN)), pci=_UNREAD), _state(fabric(port(0, **_DOWN), count=1)),
        _state("UNKNOWN: no port's state could be read: permission denied", _ALL_UNREAD),
        _state("NOTE unknown: mlx5_2:1", fabric(port(2, state=_UNREAD))),
        _state(fabric(port(2, **_DOWN)), having("NCCL_IB_HCA", "^mlx5_2")),
        _state(Fabric((device(port(0, **_DOWN, link_layer="Unspecified")),)), TWO_NODES),
    ],
    "ib.rate": [
        *(_rate(fabric(*(port(n, HDR) for n in range(4))), NamedMachine(each)) for each in ("g2-standard-96", "")),
        _rate("FAIL link: NICs", fabric(*(port(n, HDR) for n in range(4))), _DGX),
        _rate("WARN link: NICs", fabric(*(port(n, Rate(200.1, 4)) for n in range(4))), _DGX),
        *(_rate(fabric(*(port(n, rate) for n in range(count)), count=count), _DGX)
            for count, rate in ((4, NDR), (3, HDR), (4, Rate(360, 4)))),
        _rate("FAIL link: mlx5_1:1", fabric(port(1, HDR))), _rate("NOTE link: mlx5_4:1", fabric(port(4, HDR))),
        _rate("WARN link: mlx5_1:1", fabric(port(1, HDR)), pci=_NO_SYSFS), _rate(fabric(port(0, HDR), port(1, HDR))),
        _rate("FAIL link: mlx5_1:1", fabric(port(1, HDR)), having("NCCL_IB_HCA", _FOUR), pci=_NO_SYSFS),
        _rate("WARN link: mlx5_1:1", fabric(port(1, HDR)), having("NCCL_IB_HCA", "mlx5"), pci=_NO_SYSFS),
        _rate("FAIL link: mlx5_0:1", _ONE_LANE, pci=_NO_SYSFS, gpus=_NO_DRIVER),
        _rate("UNKNOWN: no port's rate could be read", fabric(*(port(n, _UNREAD) for n in range(4)))),
        _rate("NOTE unknown: mlx5_2:1", fabric(port(2, _UNREAD))), _rate(fabric(port(0, Rate(200, 2, "NDR")), count=1)),
        _rate(Fabric((*fabric(count=3).devices, device(port(3, HDR), board="MT_0000000223")))),
        _rate(fabric(port(0, Rate(25, 1, "EDR"), link_layer="Ethernet"), count=1)),
        _rate(fabric(port(1, Rate(10, 4), **_DOWN))),
    ],
    "ib.perm": [
        ("UNKNOWN: permission denied", Fabric((device(port(0, **_DOWN), opens=_UNREAD),)), PLAIN, TWO_NODES),
        ("FAIL image: mlx5_1", Fabric((device(port(0)), device(port(1), verbs=_UNREAD, opens=False))), PLAIN, Launch()),
        ("FAIL image: /dev/infiniband", Fabric((device(port(0), verbs="", opens=False),)), PLAIN, TWO_NODES),
        ("FAIL image: /dev/infiniband", Fabric((_SOFT,)), PLAIN, TWO_NODES),
        ("UNKNOWN: permission denied", Fabric((device(port(0), opens=_UNREAD),)), PLAIN, TWO_NODES),
        (Fabric((_SOFT, *fabric(roce(0, "10.0.0.5")).devices)), PLAIN, TWO_NODES), (fabric(), PLAIN, TWO_NODES),
        (Fabric((device(port(0), verbs="uverbs0", opens=False),)), PLAIN, ONE_NODE),
    ],
    "ib.losses/flap-history": [
        (fabric(), having("NCCL_IB_HCA", "^mlx5_1"), downs(0.5, 3, 11)),
        (fabric(), PLAIN, downs(2, 9)), (fabric(), PLAIN, downs(20, 30, 40, 50)), (fabric(), PLAIN, _ELSEWHERE),
        (Fabric(()), PLAIN, _ELSEWHERE), (fabric(), PLAIN, _AT_BOOT),
    ],
    "ib.losses/losses": [
        (fabric(troubled(1, out_of_sequence=20_000), troubled(0, out_of_sequence=3_000), *_WELL[1:]), PLAIN),
        (fabric(_BUSY, *(troubled(n, out_of_sequence=5_000) for n in (0, 2, 3))), PLAIN),
        *(("WARN link: mlx5_1:1", fabric(troubled(1, **{each: 10_000}), *_WELL), PLAIN) for each in _TROUBLES),
        *((fabric(troubled(1, out_of_sequence=20_000), *each), PLAIN) for each in (_WELL[:1], _UNCOUNTED)),
        (fabric(*(troubled(n, out_of_sequence=400_000) for n in range(4))), PLAIN),
    ],
    "ib.roce/roce-v2": [
        _roce_v2("NOTE unknown: mlx5_1:1", _only(roce(0, "10.0.0.5"), roce(1, "", gids=_UNREAD))), _roce_v2(ONE_NODE),
        _roce_v2("WARN node: mlx5_0:1", Launch()), _roce_v2("NOTE unknown: mlx5_4:1", _MANAGEMENT),
        _roce_v2(
            "WARN node: mlx5_0:1", fabric(roce(0, "", gids=(gid(0, "10.0.0.5", "IB/RoCE v1"),)), count=0), Launch()),
        _roce_v2("UNKNOWN: permission denied", _only(roce(0, "", gids=_UNREAD))),
        _roce_v2("UNKNOWN: the GID tables, or the types", _only(roce(0, "", gids=_UNTYPED))),
        _roce_v2(fabric(roce(1, "", Rate(25, 1, "EDR")), count=1)),
        _roce_v2(_only(roce(0, "10.0.0.5"), roce(1, "", Rate(25, 1, "EDR")))),
    ],
    "ib.roce/roce-mtu": [
        *(_roce_mtu("WARN node: mlx5_0:1, mlx5_1:1", interfaces(each, each)) for each in (700, 400)),
        _roce_mtu("NOTE unknown: mlx5_1:1", _only(roce(0, "10.0.0.5"), roce(1, "", gids=_UNREAD)), interfaces(9000)),
        _roce_mtu("WARN node: mlx5_1:1", interfaces(9000, 4000), routes=routed(Route("0.0.0.0/0", "eth1"))),
        _roce_mtu("WARN node: mlx5_1:1", interfaces(9000, 2200), routes=_UNREAD), _roce_mtu(interfaces(4200, 9000)),
        _roce_mtu("UNKNOWN: the ports' interfaces are not visible here: they may be in another network namespace",
            _only(roce(0, "", gids=_UNREAD)), interfaces(9000), routes=_UNREAD),
        _roce_mtu(_MANAGEMENT, interfaces(1500, 1500, 1500, 1500, 1500), routes=_UNREAD),
        _roce_mtu(fabric(roce(4, "10.0.0.5"))), _roce_mtu(_only(roce(0, "10.0.0.5", Rate(25, 1, "EDR")))),
    ],
    "ib.roce/odd-interface": [
        ("WARN node: eth0, eth1", Interfaces((*DOWN.all[1:], replace(DOWN.all[0], flags=frozenset())))),
        (Interfaces(tuple(replace(each, flags=frozenset({"up"})) for each in rails().all)),),
        ("WARN node: eth0", rails(mtu=1500)), ("WARN node: eth0", rails(addresses=())), (Interfaces(DOWN.all[-3:]),),
    ],
    "ib.roce/same-subnet": [
        _same_subnet(sysctls=_UNREAD), _same_subnet(sysctls_of(eth0=_BLIND_SYSCTLS, eth1=_BLIND_SYSCTLS)),
        *(_same_subnet("WARN node: eth0 and eth1", sysctls_of(eth0=_KEPT_APART, eth1=each)) for each in _LOOSE),
        _same_subnet("WARN node: eth0 and eth1", Routes((), Absent("no ip"))),
        _same_subnet(sysctls_of(eth0=_KEPT_APART, eth1=_KEPT_APART)),
        _same_subnet(Routes((), _BY_SOURCE), sysctls_of(eth0=FLUX, eth1=_KEPT_APART)),
        _same_subnet(interfaces(9000, 9000), sysctls_of()),
    ],
    "ib.gdr/nics-by-text": [
        ("WARN node: NICs", _DGX, fabric(roce(7, ""), count=7)),
        ("WARN node: NICs", NamedMachine("a3-ultragpu-8g"), fabric(*(roce(n, "") for n in range(7)), count=8)),
        *((NamedMachine(each), fabric(count=1)) for each in ("no such machine", "a3-highgpu-8g", "g2-standard-96")),
        (_DGX, fabric(*(roce(n, "") for n in range(8)), count=0)),
    ],
    "ib.gdr/gdr-by-text": [
        ("WARN image: GPUDirect RDMA", NamedMachine(rdma=True, nodes=1), NOTHING, PLAIN),
        (NamedMachine(rdma=True, nodes=2), _OPEN, having("NCCL_DMABUF_ENABLE", "0")),  # env.transport says it
    ],
}  # fmt: skip
