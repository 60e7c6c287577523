"""What the checks of variables that name devices and transports must object to, and what they must accept."""

from ncclprobe.checks.env.choices import ANY, STARTS
from ncclprobe.checks.env.fixtures import (
    ALONE,
    DOCKER_HOST,
    ETH0,
    LINK_LOCAL,
    LO,
    NO_NCCL,
    ONE_NODE,
    PLAIN,
    PLAIN_HOST,
    PRIVATE,
    TWO_NETS,
    TWO_NODES,
    USUAL,
    V1,
    V2,
    fabric,
    gpus,
    having,
    hcas,
    interface,
    linked,
    nccl,
    over,
    port,
    roce,
    setting,
)
from ncclprobe.checks.env.hcas import BY_ETH0, MANAGED, PARTITIONED, TEN, downed
from ncclprobe.checks.env.transports import EFA, OFI
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.names import CommIdHost
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.plugins import Plugins
from ncclprobe.facts.routes import Routes
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of
from tests.checks.cases.env_values import ON_IB, bare

BOND0 = interface("bond0", 6, "10.2.0.5", virtual=True, kind="bond")
_BARE = roce("mlx5_3", (LINK_LOCAL, V1), (LINK_LOCAL, V2))


def _hca(text: str) -> Settings:
    return setting("NCCL_IB_HCA", text)


def _at(address: str) -> Settings:
    return setting("NCCL_COMM_ID", address)


def _board(name: str, address: str) -> Interface:
    """Return a network over USB."""
    return replace(interface(name, 2, address), driver="cdc_ether")


_gid_index = rows_of(settings=PLAIN, fabric=fabric(roce("mlx5_3", *USUAL)), launch=TWO_NODES, software=NO_NCCL)
_ifname_match = rows_of(
    settings=setting("NCCL_SOCKET_IFNAME", "lo"), interfaces=PLAIN_HOST, launch=ALONE, software=NO_NCCL, fabric=hcas(8)
)
_comm_id = rows_of(settings=_at("[fd00::1"), interfaces=PLAIN_HOST, software=NO_NCCL, named_host=CommIdHost())
_gloo_mismatch = rows_of(
    environment=Environment({"GLOO_SOCKET_IFNAME": "^lo,docker"}),
    settings=PLAIN,
    interfaces=PLAIN_HOST,
    launch=ALONE,
    job=Job("gloo"),
    software=NO_NCCL,
)
WITH_STORAGE = fabric(*(port(f"mlx5_{n}") for n in range(8)), port("mlx5_8", link_layer="Ethernet"))

_DENIED = Absent("permission denied", "Denied")
_UNREAD = port("b", link_layer="Ethernet", gids=_DENIED)
_SHORT = fabric(roce("mlx5_3", *USUAL), roce("mlx5_4", *USUAL[:2], ("::ffff:10.0.0.2", V2)))
_HIDDEN = Absent("hidden")


def _gloo(names: str) -> Environment:
    return Environment({"GLOO_SOCKET_IFNAME": names})


_hca_dup = rows_of(
    settings=_hca("=mlx5_0,mlx5_1,mlx5_2,mlx5_3"), fabric=hcas(4), gpus=gpus(8), software=NO_NCCL, launch=ONE_NODE
)
_ifname_virtual = rows_of(settings=PLAIN, interfaces=DOCKER_HOST, choices=over("Socket"), software=NO_NCCL)
_ORACLE = Machine(cloud="oracle")
_TAILSCALE = interface("tailscale0", 2, "100.64.0.7", virtual=True)
_ETH10 = Interfaces((LO, ETH0, interface("eth1", 3, "10.1.0.5"), interface("eth10", 12, "10.9.0.5")))
_SWAPPED = having(FI_PROVIDER="tcp", NCCL_NET_PLUGIN="none", FI_EFA_FORK_SAFE="1")
_vendor = rows_of(settings=PLAIN, machine=ANY, choices=STARTS, interfaces=ANY, launch=TWO_NODES)
CASES: Cases = {
    "env.hca/pkey": [
        ("FAIL job: NCCL_IB_PKEY", setting("NCCL_IB_PKEY", "7"), PARTITIONED, NO_NCCL),
        (setting("NCCL_IB_PKEY", "0"), PARTITIONED, NO_NCCL),
        (setting("NCCL_IB_PKEY", "7"), hcas(2), NO_NCCL),  # tables that are not known
    ],
    "env.ifname/other-libraries": [
        ("WARN job: NVSHMEM_HCA_LIST", setting("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_20:1"), PLAIN_HOST, hcas(8))
    ],
    "env.gid/gid-index": [
        _gid_index("FAIL job: mlx5_4:1", setting("NCCL_IB_GID_INDEX", "3"), _SHORT, ALONE),
        _gid_index("NOTE unknown: b:1", fabric(roce("a", *USUAL), _UNREAD)),
        _gid_index("UNKNOWN: b:1", fabric(_UNREAD)),
        _gid_index("WARN job: NCCL_IB_ADDR_RANGE", setting("NCCL_IB_ADDR_RANGE", "192.168.192.0/33")),
        _gid_index("WARN job: mlx5_3:1", setting("NCCL_IB_GID_INDEX", "2")),
        _gid_index("FAIL job: mlx5_3:1", setting("NCCL_IB_GID_INDEX", "9"), ALONE),
        _gid_index("FAIL job: mlx5_3:1", setting("NCCL_IB_GID_INDEX", "0"), ALONE),
        _gid_index("WARN job: mlx5_3:1", setting("NCCL_IB_ROCE_VERSION_NUM", "1")),
        _gid_index("FAIL job: mlx5_3:1", nccl(2, 20, 5)),
        _gid_index("FAIL job: mlx5_3:1", fabric(_BARE)),
        _gid_index(ONE_NODE, nccl(2, 20, 5)),
        _gid_index(setting("NCCL_IB_GID_INDEX", "3"), nccl(2, 20, 5)),
        _gid_index(setting("NCCL_IB_GID_INDEX", "1"), fabric(roce("rxe0", (LINK_LOCAL, V2), (PRIVATE, V2))), ALONE),
        _gid_index(fabric(_BARE), ONE_NODE),
        _gid_index(fabric(_BARE), ALONE),
    ],
    "env.hca/hca-match": [
        ("FAIL job: NCCL_IB_HCA", _hca("^mlx5"), hcas(8), TWO_NODES, NO_NCCL),
        ("WARN job: NCCL_IB_HCA", _hca("mlx5_0"), Fabric(), TWO_NODES, NO_NCCL),
        (_hca("mlx5_0"), fabric(downed("mlx5_0")), TWO_NODES, NO_NCCL),
        (_hca("mlx5_0"), EFA, TWO_NODES, NO_NCCL),
        (_hca("mlx5_0"), Fabric(), ONE_NODE, NO_NCCL),
        (_hca("mlx5_0"), Fabric(), ALONE, NO_NCCL),
    ],
    "env.hca/hca-prefix": [
        ("WARN job: NCCL_IB_HCA", _hca("^mlx5_1"), fabric(*map(port, TEN))),
        (_hca("=mlx5_1"), fabric(*map(port, TEN))),
        (_hca("mlx5_1"), hcas(8)),
        (_hca("mlx5_0,mlx5_1,mlx5_10,mlx5_11"), fabric(*map(port, TEN))),
    ],
    "env.hca/hca-dup": [
        _hca_dup("FAIL job: NCCL_IB_HCA", _hca("=mlx5_8"), WITH_STORAGE),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca("mlx5_0,mlx5_1,mlx5_1,mlx5_3"), gpus(4)),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca(",".join(f"nic{n:02}x" for n in range(34))), gpus(4)),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca("=mlx5_0"), hcas(8), TWO_NODES),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca("=mlx5_0,mlx5_1,mlx5_2"), TWO_NODES, gpus=Absent("?")),
        _hca_dup(_hca("=mlx5_0"), hcas(8)),
        _hca_dup(hcas(6), TWO_NODES),
        _hca_dup(hcas(5), TWO_NODES, gpus=Absent("?")),
        _hca_dup(gpus(4)),
        _hca_dup(hcas(6), gpus(4)),
        _hca_dup(_hca("mlx5_0:1,mlx5_0:2"), fabric(port("mlx5_0"), port("mlx5_0", 2)), gpus(2)),
        _hca_dup(_hca("^mlx5_3"), gpus(3)),
    ],
    "env.hca/hca-down": [
        ("NOTE unknown: mlx5_1:1", _hca("mlx5"), fabric(port("mlx5_0"), port("mlx5_1", state=_DENIED)), NO_NCCL),
        ("FAIL link: mlx5_7:1", _hca("=mlx5_0,mlx5_7"), fabric(*hcas(2).ports, downed("mlx5_7")), NO_NCCL),
        ("UNKNOWN: mlx5_0:1", _hca("mlx5_0"), fabric(port("mlx5_0", state=_DENIED)), NO_NCCL),
        ("FAIL link: mlx5_1:1", _hca("mlx5_1:1"), fabric(port("mlx5_0"), port("mlx5_1", state="INIT")), NO_NCCL),
        (_hca("=mlx5_0"), fabric(port("mlx5_0"), downed("mlx5_1")), NO_NCCL),
        (_hca("^mlx5_1"), fabric(port("mlx5_0"), downed("mlx5_1")), NO_NCCL),
        (_hca("mlx5_0"), fabric(port("mlx5_0"), downed("mlx5_0", 2)), NO_NCCL),
    ],
    "env.hca/hca-mgmt": [
        ("WARN job: mlx5_1:1", _hca("mlx5"), MANAGED, Routes((), ()), Interfaces(), NO_NCCL),
        (_hca("=mlx5_0"), MANAGED, BY_ETH0, Interfaces((ETH0,)), NO_NCCL),
        (having(NCCL_IB_HCA="mlx5"), hcas(8), BY_ETH0, Interfaces((ETH0,)), NO_NCCL),
    ],
    "env.ifname/ifname-match": [
        # NCCL takes it for not set
        _ifname_match("NOTE unknown: NCCL_SOCKET_IFNAME", setting("NCCL_SOCKET_IFNAME", "x")),
        _ifname_match("FAIL job: NCCL_SOCKET_IFNAME", TWO_NODES, interfaces=_HIDDEN),
        _ifname_match("UNKNOWN: hidden", setting("NCCL_SOCKET_IFNAME", "eth0"), interfaces=_HIDDEN),
        _ifname_match("FAIL job: NCCL_SOCKET_IFNAME", setting("NCCL_SOCKET_IFNAME", "ens3")),
        _ifname_match("WARN job: NCCL_SOCKET_IFNAME"),
        _ifname_match("FAIL job: NCCL_SOCKET_IFNAME", setting("NCCL_SOCKET_IFNAME", "^lo,eth"), TWO_NODES, Fabric()),
        _ifname_match(ONE_NODE),
        _ifname_match(Fabric()),
    ],
    "env.identity/comm-id": [
        (*_comm_id("FAIL job: NCCL_COMM_ID", _at("127.0.0.1:9999"), named_host=ANY), TWO_NODES),
        _comm_id("UNKNOWN: is not recorded", Settings({"NCCL_COMM_ID": Setting("NCCL_COMM_ID", None, "x")})),
        _comm_id("UNKNOWN: the resolver was not asked", _at("far:9999")),
        _comm_id("UNKNOWN: hidden", _at("far:9999"), named_host=_HIDDEN),
        _comm_id("UNKNOWN: hidden", _at("10.0.0.1:9999"), interfaces=_HIDDEN),
        _comm_id("FAIL job: NCCL_COMM_ID"),
        _comm_id("FAIL job: NCCL_COMM_ID", _at(":9999")),
        _comm_id("FAIL job: NCCL_COMM_ID", _at("192.168.7.7:9999"), nccl(2, 27, 7)),
        _comm_id("FAIL job: NCCL_COMM_ID", _at("here"), CommIdHost("here", failure="not known")),
        _comm_id("FAIL job: NCCL_COMM_ID", _at("far:9999"), nccl(2, 27, 7), CommIdHost("far", ("192.168.7.7",))),
        _comm_id(_at("10.0.0.1:9999"), named_host=ANY),
    ],
    "env.ifname/ifname-virtual": [
        _ifname_virtual("NOTE job: usb0", Interfaces((LO, ETH0, _board("usb0", "169.254.3.1"))), over("IB")),
        _ifname_virtual("FAIL job: docker0", setting("NCCL_SOCKET_IFNAME", "docker0")),
        _ifname_virtual("FAIL job: docker0, cni0", setting("NCCL_SOCKET_IFNAME", "^lo")),
        _ifname_virtual("WARN job: tailscale0", Interfaces((LO, _TAILSCALE, ETH0)), over("IB")),
        _ifname_virtual("FAIL job: lo", setting("NCCL_SOCKET_IFNAME", "^docker0"), PLAIN_HOST, over("IB")),
        _ifname_virtual("FAIL job: lo", Interfaces((LO,)), over("IB")),
        _ifname_virtual("FAIL job: tmfifo_net0", Interfaces((LO, interface("tmfifo_net0", 2, "192.168.100.2"), ETH0))),
        _ifname_virtual("FAIL job: usb0", Interfaces((LO, _board("usb0", "169.254.3.1"), ETH0)), over("IB")),
        _ifname_virtual("FAIL job: enp0s20u1", Interfaces((LO, _board("enp0s20u1", "16.1.15.2"), ETH0)), over("IB")),
        _ifname_virtual("FAIL job: usb0", Interfaces((LO, ETH0, _board("usb0", "169.254.3.1")))),
        _ifname_virtual(PLAIN_HOST),
        _ifname_virtual(setting("NCCL_SOCKET_IFNAME", "=eth0")),
        _ifname_virtual(setting("NCCL_SOCKET_IFNAME", "bond0"), Interfaces((LO, ETH0, BOND0))),
        _ifname_virtual(over("")),
        _ifname_virtual(Interfaces((LO, _board("usb0", "192.168.1.7"), ETH0))),
    ],
    "env.ifname/ifname-ambiguous": [
        ("WARN job: NCCL_SOCKET_IFNAME", setting("NCCL_SOCKET_IFNAME", "eth1"), _ETH10, ALONE, NO_NCCL),
        (setting("NCCL_SOCKET_IFNAME", "eth"), PLAIN_HOST, TWO_NODES, NO_NCCL),
        (setting("NCCL_SOCKET_IFNAME", "eth"), TWO_NETS, ALONE, NO_NCCL),
    ],
    "env.ifname/gloo-mismatch": [
        _gloo_mismatch("WARN job: GLOO_SOCKET_IFNAME", _gloo("lo"), TWO_NODES),
        _gloo_mismatch("FAIL job: GLOO_SOCKET_IFNAME", _gloo("=eth0"), interfaces=_HIDDEN),
        _gloo_mismatch("WARN job: GLOO_SOCKET_IFNAME", _gloo("docker0"), interfaces=_HIDDEN),
        _gloo_mismatch("UNKNOWN: hidden", _gloo("eth0"), interfaces=_HIDDEN),
        _gloo_mismatch("UNKNOWN: hidden", _gloo("docker0"), ONE_NODE, interfaces=_HIDDEN),
        _gloo_mismatch("FAIL job: GLOO_SOCKET_IFNAME"),
        _gloo_mismatch("FAIL job: GLOO_SOCKET_IFNAME", Environment({"GLOO_SOCKET_IFNAME": "eth"}), Job()),
        _gloo_mismatch(Environment({"GLOO_SOCKET_IFNAME": "eth0"}), TWO_NODES),
    ],
    "env.transport/net-unpinned": [
        ("FAIL job: NCCL_NET", setting("NCCL_NET", "IB"), Fabric(), Launch()),
        (PLAIN, hcas(8), TWO_NODES),
        (PLAIN, Fabric(), TWO_NODES),
    ],
    "env.transport/p2p-off": [
        ("WARN job: NCCL_P2P_LEVEL", setting("NCCL_P2P_LEVEL", "LOC"), gpus(8), linked(8), NO_NCCL),
        (setting("NCCL_P2P_DISABLE", "1"), gpus(2, "NVIDIA GeForce RTX 4090"), bare(2), NO_NCCL),
        (setting("NCCL_P2P_DISABLE", "1"), gpus(1), linked(1), NO_NCCL),
        (setting("NCCL_NVLS_ENABLE", "0"), gpus(8), bare(8), NO_NCCL),
    ],
    "env.transport/gdr-off": [
        ("WARN job: NCCL_NET_GDR_LEVEL", setting("NCCL_NET_GDR_LEVEL", "0"), ANY, ANY, ANY, TWO_NODES, NO_NCCL),
        (setting("NCCL_NET_GDR_LEVEL", "LOC"), ANY, ANY, ANY, ONE_NODE, NO_NCCL),
        (setting("NCCL_NET_GDR_LEVEL", "LOC"), ANY, ANY, Fabric(), TWO_NODES, NO_NCCL),
        (having(NCCL_NET_GDR_LEVEL="LOC", NCCL_NET="Socket"), ANY, ANY, ANY, TWO_NODES, NO_NCCL),
    ],
    "env.libraries/efa": [
        ("WARN job: libnccl-net.so", PLAIN, EFA, Plugins(), TWO_NODES),
        ("WARN job: FI_PROVIDER", setting("FI_PROVIDER", "tcp"), EFA, Plugins((OFI,)), TWO_NODES),
        (setting("FI_PROVIDER", "efa"), EFA, Plugins((OFI,)), TWO_NODES),
        (PLAIN, EFA, Plugins(), ONE_NODE),
        (PLAIN, EFA, Plugins(), ALONE),
    ],
    "env.vendor": [
        _vendor("FAIL job: UCX_TLS", having(NCCL_PLUGIN_P2P="ucx", UCX_TLS="tcp,cuda_copy")),
        _vendor("FAIL job: NCCL_IB_DISABLE; NOTE job: NCCL_IB_TC", having(NCCL_IB_DISABLE="1"), ON_IB, machine=_ORACLE),
        _vendor("FAIL job: NCCL_NET_PLUGIN, FI_PROVIDER", _SWAPPED, launch=ANY),
        _vendor("WARN job: NCCL_IB_TC", having(NCCL_IB_TC="106"), ON_IB, machine=_ORACLE),
    ],
}
