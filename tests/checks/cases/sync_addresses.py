"""What the checks that addresses, racks and settings agree must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import (
    DOCKER0,
    ETH0,
    ETH1,
    LO,
    NO_NCCL,
    PLAIN,
    having,
    interface,
    nccl,
    over,
    setting,
)
from ncclprobe.checks.nvl import CLUSTER, TRAY
from ncclprobe.checks.sync.addresses import ANY, NO_FABRICS, OVER_SOCKETS, TOGETHER, TWO, UNSET
from ncclprobe.checks.sync.links import HOSTS, PLAINS, UNSEEN
from ncclprobe.checks.sync.settings import RING, SYSTEMS, booted
from ncclprobe.facts.driver import Imex
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Every, Job
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

_OTHER = Interfaces((LO, interface("eth0", 2, "10.0.0.6"), DOCKER0))
_LINK_LOCAL = interface("eth0", 2, "169.254.3.1")
_LIST = Imex(("10.0.0.5", "10.0.0.6"), "READY")
_LISTS = Every({"n0": _LIST, "n1": _LIST})
_ELSEWHERE = setting("NCCL_IB_TC", "106", "/etc/nccl.conf:3")
_NEW: Every[Software | Absent] = Every({"n0": nccl(2, 29, 7), "n1": NO_NCCL})


def _rack_of(begin: str) -> Gpus:
    """Return a tray of another cluster."""
    other = replace(CLUSTER, cluster=f"{begin}1111-ffee-4d0d-8f9a-1d2c3b4a5968")
    return replace(TRAY, all=tuple(replace(gpu, fabric=other) for gpu in TRAY.all))


_THREE_RACKS = Every({"n0": TRAY, "n1": TRAY, "n2": _rack_of("1111"), "n3": _rack_of("2222")})
_OTHER_RACK, _SAME_ID = _rack_of("1111"), Every(dict.fromkeys(("n0", "n1"), having(NCCL_HOSTID="node")))
_address_twice = rows_of(
    interfaces=Every({"n0": Interfaces((ETH0, ETH1)), "n1": Interfaces((*_OTHER.all, ETH1))}), systems=TWO,
    processes=TOGETHER, settings=UNSET, software=ANY, fabrics=NO_FABRICS,
    choices=Every(dict.fromkeys(("n0", "n1"), over(""))),
)  # fmt: skip
_rack = rows_of(gpus=Every({"n0": TRAY, "n1": TRAY}), services=UNSEEN, interfaces=HOSTS, settings=PLAINS, software=ANY)


def _listing(*nodes: str) -> Every[Imex]:
    """Return two nodes whose IMEX lists these addresses."""
    return Every(dict.fromkeys(("n0", "n1"), replace(_LIST, nodes=nodes)))


def _third(odd: Settings, usual: Settings) -> Every[Settings]:
    """Return the settings of four nodes, of which the third is odd: it is mended on that node."""
    return Every({"n0": usual, "n1": usual, "n2": odd, "n3": usual})


_SIZE, _SIZE_OF_FILE = having(NCCL_BUFFSIZE="1048576"), setting("NCCL_BUFFSIZE", "1048576", "/etc/nccl.conf:3")
_UNREAD, _DETAIL = Settings({"NCCL_ALGO": Setting("NCCL_ALGO", None, "environment")}), "TORCH_DISTRIBUTED_DEBUG"
_NOT_READY = Every({"n0": replace(_LIST, state="UNKNOWN"), "n1": replace(_LIST, state="DOWN")})
_UV = Every({"n0": having(GLOO_DEVICE_TRANSPORT="UV"), "n1": PLAIN})
_FOREIGN = _listing("10.0.0.6", "10.0.0.7")
CASES: Cases = {
    "sync.identity/address-twice": [
        _address_twice("FAIL fabric: 10.1.0.5 on n0 n1"),
        _address_twice(interfaces=Every(dict.fromkeys(("n0", "n1"), Interfaces((_LINK_LOCAL,)))), choices=OVER_SOCKETS),
        _address_twice(choices=Every(dict.fromkeys(("n0", "n1"), over("AWS Libfabric")))),
    ],
    "sync.location/rack": [
        _rack("WARN job: n[2-3] on n2 n3", gpus=_THREE_RACKS), _rack(services=_listing("tray1", "tray2")), _rack(),
        _rack("FAIL image: n0 on n0", services=_listing("fd00::1", "10.0.0.6")), _rack(services=_LISTS),
        _rack("FAIL image: n[0-1] on n0 n1", services=_NOT_READY), _rack("FAIL image: n0 on n0", services=_FOREIGN),
        _rack("WARN job: n2 on n2", gpus=Every({"n0": TRAY, "n1": TRAY, "n2": _OTHER_RACK})),
        _rack("FAIL image: nodes", services=Every({"n0": _LIST, "n1": replace(_LIST, nodes=("10.0.0.6",))})),
        _rack("FAIL image: n1 on n1", services=Every({"n0": _LIST, "n1": replace(_LIST, state="INITIALIZING")})),
        _rack(gpus=Every({"n0": TRAY, "n1": _OTHER_RACK})),
    ],
    "sync.env": [
        (_third(having(FOO_BAR="1"), PLAIN), ANY, Job()), ("FAIL job: GLOO_DEVICE_TRANSPORT", _UV, ANY, Job("gloo")),
        (_third(having(NCCL_DEBUG="info"), having(NCCL_DEBUG="INFO")), ANY, Job()),
        ("NOTE job: NCCL_TOPO_FILE on n2", _third(having(NCCL_TOPO_FILE="/A"), having(NCCL_TOPO_FILE="/a")), ANY,
            Job()),
        ("NOTE job: NCCL_TIMEOUT on n2", _third(having(NCCL_TIMEOUT="1"), PLAIN), ANY, Job()),
        ("FAIL job: NCCL_ALGO on n2", _third(_UNREAD, RING), ANY, Job()),
        ("FAIL job: NCCL_PROTO on n2", _third(having(NCCL_PROTO=" LL"), having(NCCL_PROTO="LL")), ANY, Job()),
        (_third(having(NCCL_PROTO="simple"), having(NCCL_PROTO="Simple")), ANY, Job()),
        (_third(having(**{_DETAIL: "INFO"}), having(**{_DETAIL: "OFF"})), ANY, Job()),
        (f"FAIL job: {_DETAIL} on n2", _third(having(**{_DETAIL: "detail"}), PLAIN), ANY, Job()),
        *(("FAIL job: NCCL_BUFFSIZE on n2", _third(*each), ANY, Job()) for each in ((_SIZE, PLAIN), (PLAIN, _SIZE))),
        ("FAIL image: NCCL_BUFFSIZE on n2", _third(_SIZE_OF_FILE, PLAIN), ANY, Job()),
        ("FAIL job: NCCL_ALGO on n2", Every({"n0": RING, "n1": RING, "n2": PLAIN}), ANY, Job()),
        ("WARN image: NCCL_IB_TC on n0", Every({"n0": _ELSEWHERE, "n1": PLAIN, "n2": PLAIN}), ANY, Job()),
        (Every({"n0": having(NCCL_SOCKET_IFNAME="eth0"), "n1": having(NCCL_SOCKET_IFNAME="ens3")}), ANY, Job()),
        (Every({"n0": having(NCCL_IB_TIMEOUT="20"), "n1": PLAIN}), _NEW, Job()),
        (Every({"n0": having(NCCL_BUFFSIZE="0x400000"), "n1": having(NCCL_BUFFSIZE="4194304")}), ANY, Job()),
        (Every({"n0": RING, "n1": PLAIN}), ANY, Job("gloo")),
    ],
    "sync.identity/hostid": [
        ("FAIL job: NCCL_HOSTID on n0 n1", _SAME_ID, Every({})), (Every({"n0": PLAIN, "n1": PLAIN}), SYSTEMS),
        (_SAME_ID, Every(dict.fromkeys(("n0", "n1"), booted("a")))),
    ],
}  # fmt: skip
