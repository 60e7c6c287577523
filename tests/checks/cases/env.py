"""What the checks of variables, files and devices must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.env import UNPRICED
from ncclprobe.checks.env.choices import ANY, FAST, NO_NIC, OVER_SOCKETS, STARTS, TCPX
from ncclprobe.checks.env.files import CUDA, CUDA_12, CUDART, ETC, OURS, PACKAGES, PLUGIN, SYSTEM, TREE, WHEEL
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
from ncclprobe.checks.env.job import LIST
from ncclprobe.checks.env.transports import EFA, OFI
from ncclprobe.checks.env.values import ANY as UNASKED
from ncclprobe.checks.env.values import ROCE, THREE, TURNED
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.machine import Machine, NamedMachine
from ncclprobe.facts.names import CommIdHost
from ncclprobe.facts.nccl_conf import SYSTEM_FILE, ConfFile, NamedFiles, Settings, TopologyFile
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.plugins import Linking, Plugin, Plugins, SharedLibrary
from ncclprobe.facts.routes import Routes
from ncclprobe.facts.software import Mapped, Software, Torch
from ncclprobe.model.nccl_selection import Decision, HcaChoice, InterfaceChoice, NetworkChoice
from ncclprobe.model.report import AttainableRate, Setting
from ncclprobe.model.snapshot import Absent, Every, Job
from ncclprobe.model.values import replace
from ncclprobe.nccl.selection import CLOSED
from tests.checks.cases import Cases, rows_of

_NOTHING: Decision[InterfaceChoice] = Decision((), "no interface is left, so NCCL does not start", True, "interfaces")
_IB = Decision((NetworkChoice("IB", "", ("mlx5_0:1",), 400.0, "ACTIVE, InfiniBand"),), "every active port")
ON_IB = replace(STARTS, network=_IB, fast_nics=FAST)
_CLOSED = replace(OVER_SOCKETS, fast_nics=NO_NIC)
_CPU = Software({"torch": "2.13.0+cpu"}, torch=Torch("/venv/torch", None))
_NET = "/opt/amazon/ofi-nccl/lib/libnccl-net.so"
_OFI = SharedLibrary("libfabric.so.1", _NET, "/opt/amazon/efa/lib/libfabric.so.1", "LD_LIBRARY_PATH")
_SIXTH = fabric(roce("mlx5_0", (LINK_LOCAL, V1), (LINK_LOCAL, V2), ("2001:db8::1", V1), ("2001:db8::1", V2)))


def bare(count: int) -> NvLinks:
    """Return GPUs without NVLink."""
    return NvLinks(((),) * count)


_MISSING = Absent("no such file", "Missing")
_topo_file = rows_of(settings=setting("NCCL_TOPO_FILE", "/t.xml"), named_files=NamedFiles(_MISSING), pci=TREE)


def _libraries(path: str, there: bool) -> NamedFiles:
    return NamedFiles(libraries={path: there})


def torch(version: str = "") -> Software:
    """Return an installation with this torch, or with one that is not known."""
    return replace(nccl(2, 30, 7), packages={"torch": version} if version else {})


def _visible(*must: str, seen: str, launch: Any = ALONE, gpus: Any = gpus(8), job: Job = Job()) -> tuple[Any, ...]:  # noqa: B008 - frozen
    return (*must, Environment({LIST: seen}), launch, gpus, job)


_UNKNOWN = Absent("no driver")
_FR, _TRACE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_STREAMS = "TORCH_NCCL_AVOID_RECORD_STREAMS"
_NONE = NamedFiles(folders={"NCCL_DEBUG_FILE": ("/none", False)})
_WRONG_LISTS = ("0,1,1,3", "0,1,9", "0,1,x", "GPU-0000,GPU-9c1d")
_NO_GPU = ("", " ", "-1", "NoDevFiles", "-1,0")
_LISTS = ("LL128,Simple;allreduce:LL,Simple", "LL128,Simple;allreduce:LL")
_STRANGE = ("NCCL_SOCKET_IFNAMES", "NCCL_ENTIRELY_NEW")
_file = rows_of(settings=PLAIN, named_files=NamedFiles(), launch=TWO_NODES)
_algo = rows_of(settings=PLAIN, gpus=gpus(8), links=linked(8), launch=TWO_NODES, software=NO_NCCL)
_plugin_path = rows_of(
    settings=setting("NCCL_NET_PLUGIN", "/none/libnccl-net.so"), named_files=NamedFiles(), plugins=Plugins(),
    loader=Loader(),
)  # fmt: skip
_nccl = rows_of(software=Software({}), launch=ALONE, job=Job())
_OF_SHELLS, _BY_CALL = ("export", "set", "setenv", "declare"), ("all", "COLL", "init,CALL", "P2P")
_PIPED, _BUFFERS = ("slurm", "openmpi", "pmi"), ("BUFFSIZE", "LL_BUFFSIZE", "LL128_BUFFSIZE")
_SHADOWED = replace(CUDART, others=("/usr/lib/libcudart.so.12",), why="LD_LIBRARY_PATH")
_LIBC = SharedLibrary("libc.so.6", _NET, "/lib/libc.so.6", "", ("GLIBC_2.38",))
_AT_HOME = Settings({}, (), (ConfFile("/root/.nccl.conf"),), other_home="/home/me/.nccl.conf")
_OLD_FIRST = Software(PACKAGES, (*SYSTEM, WHEEL), Mapped(SYSTEM[0].path, "LD_LIBRARY_PATH"), CUDA)
_NO_FOLDER = NamedFiles(folders={_FR: ("/none", False)})
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


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
    environment=Environment({"GLOO_SOCKET_IFNAME": "^lo,docker"}), settings=PLAIN, interfaces=PLAIN_HOST, launch=ALONE,
    job=Job("gloo"), software=NO_NCCL,
)  # fmt: skip
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
_vendor = rows_of(settings=PLAIN, machine=Machine(), choices=STARTS, interfaces=ANY, launch=TWO_NODES)

_TYPES = ("ndv2", "P3DN", "ndv4", "p4d", "p4de", "ndv5", "p5", "p5e", "p5en", "p6", "v100", "a100", "h100", "h200")
_TYPES += ("h800", "b200", "b300", "gb200", "gb300")
_FOUND = ("NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
_NEITHER = having(NCCL_IB_DISABLE="1", NCCL_P2P_DISABLE="1")
_DMABUF_OFF = having(NCCL_DMABUF_ENABLE="0")
_LESS = {name: value for name, value in TCPX.items() if name != "NCCL_ALGO"}
_ONE_OF_EIGHT = (("FAIL job: NCCL_IB_HCA", TWO_NODES), ("NOTE job: NCCL_IB_HCA", ONE_NODE))
_UNKNOWN_NICS = replace(ON_IB, fast_nics=Decision(None, "not looked at"))
_COLLNET, _ON_SOCKETS = having(NCCL_COLLNET_ENABLE="1"), having(NCCL_NET="Socket")
_ON_ITS_CARD = replace(ETH0, pci=MANAGED.devices[1].pci)
_NO_SHARP = (replace(PLUGIN, reachable=False), replace(PLUGIN, flavour="ofi"), replace(PLUGIN, kind="tuner"))
_SHUT = Decision((HcaChoice("mlx5_0:1", 400.0, "is down"), HcaChoice("mlx5_1:1", 400.0, CLOSED)), "")


def _unreached(folder: str) -> Plugin:
    """Return a plugin that the loader does not find."""
    return replace(OFI, path=f"/{folder}/libnccl-net.so", reachable=False)


CASES: Cases = {
    "env.start/start": [
        ("FAIL image: interfaces", replace(STARTS, bootstrap=_NOTHING, sockets=_NOTHING), Interfaces((LO,)), PLAIN)
    ],
    "env.transport/transport": [
        ("FAIL image: libnccl-net.so", _UNKNOWN_NICS, PLAIN, ALONE, Job(expect_nics=8), UNPRICED),
        ("WARN image: /dev/infiniband", replace(OVER_SOCKETS, hcas_left_out=_SHUT), PLAIN, ALONE, Job(), UNPRICED),
        ("FAIL job: NCCL_NET", OVER_SOCKETS, setting("NCCL_NET", "Socket"), TWO_NODES, Job(local=True), UNPRICED),
        ("WARN job: NCCL_IB_DISABLE", OVER_SOCKETS, setting("NCCL_IB_DISABLE", "1"), ALONE, Job(), UNPRICED),
        ("FAIL image: /dev/infiniband", _CLOSED, PLAIN, ALONE, Job(expect_nics=8), UNPRICED),
        ("FAIL image: libnccl-net.so", ON_IB, PLAIN, ALONE, Job(expect_nics=8), UNPRICED),
        (OVER_SOCKETS, setting("NCCL_NET", "Socket"), TWO_NODES, Job(), AttainableRate(870.0, 870.0, 2, {}, True)),
        (ON_IB, PLAIN, TWO_NODES, Job(), UNPRICED), (ON_IB, PLAIN, TWO_NODES, Job(expect_nics=1), UNPRICED),
    ],
    "env.files/conf-files": [
        ("WARN job: NCCL_DEBUG", Settings({}, (Setting("NCCL_DEBUG", None, ETC),))),
        ("WARN job: NCCL_DEBUG", setting("NCCL_DEBUG", " INFO", ETC)),
        ("FAIL job: NCCL_DEBUG", setting("NCCL_DEBUG ", " INFO", ETC)),
        ("WARN job: NCCL_DEBUG", setting("  #NCCL_DEBUG", "INFO", ETC)),
        *(("WARN job: NCCL_DEBUG", setting(f"{each} NCCL_DEBUG", "INFO", ETC)) for each in _OF_SHELLS),
        ("WARN job: NCCL_IB_HCA", Settings(skipped=(Setting("setenv NCCL_IB_HCA mlx5_0", None, ETC),))),
        ("WARN job: NCCL_NET", Settings(skipped=(Setting("NCCL_NET: IB", None, ETC), Setting("[nccl]", None, ETC)))),
        ("FAIL job: NCCL_CONF_FILE", Settings({}, (), (ConfFile("/etc/job.conf", _MISSING), ConfFile(SYSTEM_FILE)))),
        ("WARN job: /etc/nccl.conf", Settings({}, (), (ConfFile(SYSTEM_FILE, Absent("permission denied", "Denied")),))),
        ("WARN job: /home/me/.nccl.conf", _AT_HOME), (setting("NCCL_DEBUG", "INFO", ETC),),
        (setting("NCCL_DEBUG", "INFO"),),
        (Settings({}, (), (ConfFile("/root/.nccl.conf", _MISSING), ConfFile(SYSTEM_FILE))),),
    ],
    "env.files/topo-file": [
        *(_topo_file("FAIL job: NCCL_TOPO_FILE", NamedFiles(Absent("no", each))) for each in ("Denied", "Failed")),
        _topo_file("UNKNOWN: NCCL_TOPO_FILE: late", NamedFiles(Absent("late", "TimedOut"))),
        _topo_file("FAIL job: NCCL_TOPO_FILE", setting("NCCL_TOPO_FILE", "/none.xml")),
        _topo_file("FAIL job: NCCL_TOPO_FILE", NamedFiles(TopologyFile("/t.xml", whole=False))),
        _topo_file("FAIL job: NCCL_GRAPH_FILE", setting("NCCL_GRAPH_FILE", "/g.xml"), NamedFiles(graph=_MISSING)),
        _topo_file("FAIL job: NCCL_GRAPH_FILE", setting("NCCL_GRAPH_FILE", "/g.xml"), NamedFiles(graph="is not whole")),
        _topo_file("FAIL job: NCCL_TOPO_FILE", NamedFiles(TopologyFile("/t.xml", version="9"))),
        _topo_file(NamedFiles(TopologyFile("/t.xml")), pci=Absent("no PCI tree")),
        _topo_file(setting("NCCL_GRAPH_FILE", "/g.xml"), NamedFiles(graph="")),
        _topo_file(NamedFiles(TopologyFile("/t.xml", addresses=("ffff:ff:01.0",)))),
    ],
    "env.libraries/plugin-path": [
        *(_plugin_path(_COLLNET, Plugins((replace(PLUGIN, kind=each),))) for each in ("", "net")), _plugin_path(PLAIN),
        *(_plugin_path("NOTE job: NCCL_COLLNET_ENABLE", _COLLNET, Plugins((each,))) for each in _NO_SHARP),
        _plugin_path("FAIL job: /none/libnccl-net.so", _libraries("/none/libnccl-net.so", False)),
        _plugin_path("WARN job: NCCL_TUNER_PLUGIN", setting("NCCL_TUNER_PLUGIN", "libnccl-tuner-x.so")),
        _plugin_path("WARN job: libnope.so", setting("NCCL_NET_PLUGIN", "libnope.so"), _libraries("libnope.so", False)),
        _plugin_path(setting("NCCL_NET_PLUGIN", PLUGIN.path), _libraries(PLUGIN.path, True)),
        _plugin_path(setting("NCCL_NET_PLUGIN", "none")), _plugin_path(having(NCCL_NET_PLUGIN="")),
        _plugin_path(setting("NCCL_NET_PLUGIN", "libours.so"), _libraries("libours.so", True)),
    ],
    "env.visible": [
        (Environment({}), ALONE, gpus(8), Job()),
        *(_visible("FAIL job: CUDA_VISIBLE_DEVICES", seen=text) for text in _WRONG_LISTS),
        _visible("WARN job: CUDA_VISIBLE_DEVICES", seen="0,1,GPU-0002"),
        _visible("FAIL job: CUDA_VISIBLE_DEVICES", seen="GPU-000", gpus=gpus(2)),  # it begins several UUIDs
        _visible("FAIL job: CUDA_VISIBLE_DEVICES", seen="0,1,2,3", job=Job(expect_gpus=8)),
        *(_visible("FAIL job: CUDA_VISIBLE_DEVICES", seen=text, launch=ONE_NODE) for text in ("", "NoDevFiles")),
        *(_visible("FAIL job: CUDA_VISIBLE_DEVICES", seen=text, launch=_UNKNOWN, gpus=_UNKNOWN) for text in _NO_GPU),
        _visible(seen="0,1,2,3,4,5,6,7", launch=ONE_NODE),
        *(_visible(seen=text) for text in ("GPU-0000,GPU-0001", "GPU-0001", "MIG-9a0c/3/0", "0,1")),
        *(_visible(seen=text, gpus=_UNKNOWN) for text in ("GPU-9c1d", "0,1")),
        _visible(seen="3", job=Job(expect_gpus=8)),
        *(_visible(seen=text, launch=_UNKNOWN, job=Job("gloo")) for text in _NO_GPU),
    ],
    "env.identity/hostid": [
        (setting("NCCL_HOSTID", "node0"), TWO_NODES), (setting("NCCL_HOSTID", "node", "/etc/nccl.conf:3"), ONE_NODE),
    ],
    "env.torch-timeouts": [
        ("NOTE job: NCCL_RAS_ENABLE", setting("NCCL_RAS_ENABLE", "0")), (setting("NCCL_RAS_ENABLE", "1"),),
        ("WARN job: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", setting("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10")),
        ("WARN job: NCCL_ASYNC_ERROR_HANDLING", setting("NCCL_ASYNC_ERROR_HANDLING", "0")),
        ("NOTE job: TORCH_NCCL_TRACE_BUFFER_SIZE", setting("TORCH_NCCL_TRACE_BUFFER_SIZE", "0")), (PLAIN,),
        ("NOTE job: TORCH_FR_BUFFER_SIZE", setting("TORCH_FR_BUFFER_SIZE", "0")),
    ],
    "env.start/nccl": [
        _nccl("FAIL image: libnccl.so.2", Software({}, torch=Torch("/venv/torch", "13.0"))), _nccl(Job(local=True)),
        _nccl("WARN image: torch", replace(_CPU, nccl=SYSTEM, mapped=Mapped(SYSTEM[0].path, "x"))),
        _nccl("NOTE unknown: libnccl.so.2", Job(local=True)), _nccl("FAIL image: torch", _CPU),
        _nccl("UNKNOWN: neither torch nor libnccl.so.2 is in this environment"),
        _nccl("FAIL image: libnccl.so.2", TWO_NODES), _nccl("WARN image: /usr/lib/libnccl.so.2.19.3", _OLD_FIRST),
        _nccl(Software({}, SYSTEM, Mapped(SYSTEM[0].path, "/etc/ld.so.cache")), ONE_NODE),
        _nccl("NOTE unknown: libnccl.so.2", Launch("options"), Job(local=True)),
    ],
    "env.start/torch-driver": [(Software({}), CUDA_12)],
    "env.libraries/libraries": [
        ("NOTE unknown: libcudart.so.12", Linking((replace(_SHADOWED, why="LD_PRELOAD"), OURS))),
        ("NOTE unknown: libcudart.so.12", Linking((_SHADOWED, OURS))),
        ("FAIL image: libcudart.so.12", Linking((replace(CUDART, path="", why=""), OURS))),
        ("WARN image: libfabric.so.1", Linking((CUDART, OURS, replace(_OFI, path="", why="")), _NET)),
        ("WARN image: libc.so.6", Linking((CUDART, _LIBC), _NET)), (Linking((CUDART, OURS, _OFI), _NET),), (Linking(),),
    ],
    "env.debug/debug-file": [
        _file("NOTE unknown: TORCH_FR_DUMP_TEMP_FILE", NamedFiles(folders={_FR: ("/x", _UNKNOWN)})),
        _file(_NONE, ALONE),  # it writes nothing
        _file(f"WARN job: {_PIPE}", setting(_PIPE, "/none/p"), NamedFiles(folders={_PIPE: ("/none", False)})),
        _file("WARN job: NCCL_DEBUG_FILE", having(NCCL_DEBUG="WARN", NCCL_DEBUG_FILE="/tmp/nccl.%h")),
        _file("WARN job: NCCL_DEBUG_FILE", having(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/none/%h.%p"), _NONE, ALONE),
        _file("WARN job: TORCH_FR_DUMP_TEMP_FILE", setting(_FR, "/none/dump_"), _NO_FOLDER, ALONE),
        # A killed rank would lose lines in a pipe.
        *(_file("NOTE job: NCCL_DEBUG", having(NCCL_DEBUG="INFO"), Launch(each, 0, 16, 0, 8, 2)) for each in _PIPED),
        _file("NOTE job: NCCL_DEBUG", having(NCCL_DEBUG="WARN"), Launch("pytorchjob", 0, 16, 0, 8, 2)),
        _file(having(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/tmp/nccl.%h.%p")),
        _file(having(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/tmp/nccl.log"), ALONE),
        _file(having(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="stdout")),
        _file(NamedFiles(folders={_FR: ("/tmp", True)}), ALONE), _file(),
    ],
    "env.debug/debug-storm": [
        *(("WARN job: NCCL_DEBUG_SUBSYS", having(NCCL_DEBUG="info", NCCL_DEBUG_SUBSYS=each)) for each in _BY_CALL),
        ("WARN job: NCCL_DEBUG_SUBSYS", having(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="^INIT")),
        (having(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET"),),
        (having(NCCL_DEBUG="WARN", NCCL_DEBUG_SUBSYS="ALL"),),
    ],
    "env.name/unknown-var": [
        # a newer one may read them
        *(("NOTE unknown: " + name, setting(name, "1"), nccl(2, 99, 1)) for name in _STRANGE),
        ("WARN job: TORCH_NCCL_TRACE_BUFER_SIZE", setting("TORCH_NCCL_TRACE_BUFER_SIZE", "1"), nccl(2, 99, 1)),
        ("WARN job: NCCL_DEBUG", setting("NCCL_DEBUG ", "INFO"), nccl(2, 27, 5)),
        ("WARN job: NCCL_TIMEOUT", setting("NCCL_TIMEOUT", "1800"), NO_NCCL),
        ("WARN job: NCCL_ENABLE_FAST_PATH", setting("NCCL_ENABLE_FAST_PATH", "1"), NO_NCCL),
        (setting("NCCL_RUN_RAS_DIAGNOSTICS", "1"), nccl(2, 32, 3)),
    ],
    "env.name/retired-var": [
        ("WARN job: TORCH_NCCL_AVOID_RECORD_STREAMS", setting(_STREAMS, "1"), torch("2.15.1")),
        ("NOTE job: TORCH_NCCL_AVOID_RECORD_STREAMS", setting(_STREAMS, "1"), torch()),
        ("NOTE job: TORCH_NCCL_TRACE_BUFFER_SIZE", setting(_TRACE, "200"), torch("2.9.1+cu128")),
        # it was added in 2.8
        ("NOTE job: TORCH_FR_BUFFER_SIZE", setting("TORCH_FR_BUFFER_SIZE", "200"), torch("2.6.0+cu124")),
        (setting(_STREAMS, "1"), torch("2.13.0")), (setting(_TRACE, "200"), torch("2.6.0+cu124")),
        *((setting("TORCH_FR_BUFFER_SIZE", "200"), each) for each in (torch("2.9.1+cu128"), torch())),
        ("WARN job: NCCL_LL_THRESHOLD", setting("NCCL_LL_THRESHOLD", "0"), NO_NCCL),
        ("WARN job: NCCL_IB_CUDA_SUPPORT", setting("NCCL_IB_CUDA_SUPPORT", "1"), nccl(2, 21, 5)),
        (setting("NCCL_ASYNC_ERROR_HANDLING", "1"), NO_NCCL),
        (setting("NCCL_IB_ROCE_VERSION_NUM", "2"), nccl(2, 20, 5)),
    ],
    "env.value/bool-word": [
        ("FAIL job: NCCL_NVLS_ENABLE", setting("NCCL_NVLS_ENABLE", "yes"), nccl(2, 27, 7)),
        ("WARN job: NCCL_P2P_DISABLE", setting("NCCL_P2P_DISABLE", "yes"), nccl(2, 32, 3)),
        (setting("NCCL_DEBUG", "INFO"), NO_NCCL), (setting("NCCL_IB_DISABLE", "false"), nccl(2, 32, 3)),
    ],
    "env.value/number-text": [
        # A unit leaves a few bytes; other words leave the number.
        *((f"FAIL job: NCCL_{each}", setting(f"NCCL_{each}", text)) for each in _BUFFERS for text in ("8M", "16MiB")),
        ("FAIL job: NCCL_P2P_NET_CHUNKSIZE", setting("NCCL_P2P_NET_CHUNKSIZE", "512K")),
        ("WARN job: NCCL_BUFFSIZE", setting("NCCL_BUFFSIZE", "8388608 # 8 MiB")),
        ("WARN job: NCCL_IB_TIMEOUT", setting("NCCL_IB_TIMEOUT", "22s")), (setting("NCCL_BUFFSIZE", "4194304"),),
    ],
    "env.value/range": [
        ("WARN job: NCCL_IB_RETRY_CNT", setting("NCCL_IB_RETRY_CNT", "10")),
        *((f"FAIL job: NCCL_{each}", setting(f"NCCL_{each}", text)) for each in _BUFFERS for text in ("-1", "0")),
        ("WARN job: NCCL_P2P_NET_CHUNKSIZE", setting("NCCL_P2P_NET_CHUNKSIZE", "-1")),
        (setting("NCCL_IB_TC", "-1"),), (setting("NCCL_IB_RETRY_CNT", "abc"),),
    ],
    "env.name/noop": [
        ("WARN job: NCCL_MAX_NCHANNELS", setting("NCCL_MAX_NCHANNELS", "1"), NO_NCCL),
        ("WARN job: NCCL_MAX_CTAS", setting("NCCL_MAX_CTAS", "1"), NO_NCCL),
        ("WARN job: NCCL_NTHREADS", setting("NCCL_NTHREADS", "64"), NO_NCCL),
        ("WARN job: NCCL_BUFFSIZE", setting("NCCL_BUFFSIZE", "65536"), NO_NCCL),
        ("FAIL job: NCCL_LL128_BUFFSIZE", setting("NCCL_LL128_BUFFSIZE", "16"), NO_NCCL),
        (having(NCCL_MAX_NCHANNELS="8", NCCL_MIN_NCHANNELS="4", NCCL_BUFFSIZE="8388608"), NO_NCCL),
        (having(NCCL_P2P_NET_CHUNKSIZE="131072", NCCL_IB_RETRY_CNT="7", NCCL_MAX_CTAS="-2"), NO_NCCL),
        (setting("NCCL_IB_TIMEOUT", "20"), nccl(2, 21, 5)), (setting("NCCL_IB_TIMEOUT", "abc"), nccl(2, 29, 7)),
    ],
    "env.name/overruled": [
        ("WARN job: NCCL_MIN_NCHANNELS", having(NCCL_MIN_NCHANNELS="16", NCCL_MAX_NCHANNELS="8"), NO_NCCL),
        ("WARN job: NCCL_NTHREADS", setting("NCCL_NTHREADS", "100"), NO_NCCL),
        ("WARN job: NCCL_NTHREADS", setting("NCCL_NTHREADS", "32"), NO_NCCL),
        (having(NCCL_MIN_NCHANNELS="16", NCCL_MAX_NCHANNELS="-2"), NO_NCCL),
        (setting("NCCL_MIN_NCHANNELS", "16"), NO_NCCL),
    ],
    "env.value/unknown-text": [
        ("FAIL job: TORCH_NCCL_DUMP_ON_TIMEOUT", setting("TORCH_NCCL_DUMP_ON_TIMEOUT", "maybe")),
        ("FAIL job: GLOO_DEVICE_TRANSPORT", setting("GLOO_DEVICE_TRANSPORT", "UDP")), (setting("NCCL_DEBUG", "info"),),
        ("WARN job: TORCH_NCCL_ASYNC_ERROR_HANDLING", setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "9")),
        ("WARN job: NCCL_P2P_LEVEL", setting("NCCL_P2P_LEVEL", "nvl")), (setting("NCCL_P2P_LEVEL", "NVL"),),
        (setting("NCCL_NET_GDR_LEVEL", "3"),), (setting("NCCL_DEBUG", ""),),
    ],
    "env.debug/debugging": [("WARN job: TORCH_DISTRIBUTED_DEBUG", setting("TORCH_DISTRIBUTED_DEBUG", "detail"))],
    "env.forced-algo": [
        _algo("WARN job: NCCL_ALGO", setting("NCCL_ALGO", "Tree"), bare(8), software=Absent("?")),
        _algo("WARN job: NCCL_ALGO", setting("NCCL_ALGO", "Ring")),
        _algo("WARN job: NCCL_ALGO; FAIL job: NCCL_ALGO", setting("NCCL_ALGO", "Tree")),
        _algo("FAIL job: NCCL_ALGO", setting("NCCL_ALGO", "allreduce:NVLS"), bare(8), ONE_NODE),
        _algo("WARN job: NCCL_PROTO", setting("NCCL_PROTO", "LL128")),
        _algo("NOTE job: NCCL_PROTO; WARN job: NCCL_PROTO", setting("NCCL_PROTO", "^LL"), bare(8)),
        _algo(
            "WARN job: NCCL_PROTO; FAIL job: NCCL_ALGO", having(NCCL_ALGO="allreduce:NVLS", NCCL_PROTO="LL"), ONE_NODE),
        _algo("WARN job: NCCL_ALGO", setting("NCCL_ALGO", "Ring,Tree")),
        _algo("WARN job: NCCL_ALGO", setting("NCCL_ALGO", "^NVLS,NVLSTree"), ONE_NODE),
        # A list of several excludes and does not force.
        _algo("NOTE job: NCCL_ALGO", setting("NCCL_ALGO", "Ring,Tree"), bare(8)),
        _algo("NOTE job: NCCL_PROTO", setting("NCCL_PROTO", "^LL128"), bare(8)),
        *(_algo("NOTE job: NCCL_PROTO; WARN job: NCCL_PROTO", settings=setting("NCCL_PROTO", text)) for text in _LISTS),
        _algo(setting("NCCL_ALGO", "allreduce:tree,ring")), _algo(setting("NCCL_PROTO", "allreduce:Simple")),
        _algo(setting("NCCL_PROTO", "^LL")), _algo(setting("NCCL_ALGO", ""), nccl(2, 21, 5)),
    ],
    "env.danger/danger-knob": [
        ("WARN job: NCCL_CHUNK_SIZE", setting("NCCL_CHUNK_SIZE", "2097152")), (setting("NCCL_CHUNK_SIZE", "131072"),),
    ],
    "env.files/topo-name": [
        *(("WARN job: NCCL_TOPO_FILE", setting("NCCL_TOPO_FILE", f"/x/{each}-t.xml"), gpus(8, "Z")) for each in _TYPES),
        ("WARN job: NCCL_TOPO_FILE", setting("NCCL_TOPO_FILE", "/p5.xml"), Absent("?"), NamedMachine("DGX A100")),
        (setting("NCCL_TOPO_FILE", "/p4d/topo.xml"), gpus(8)),
    ],
    "env.name/withheld": [
        *((f"NOTE job: {each}", NamedMachine(withheld=(each,))) for each in _FOUND),
        ("WARN job: NCCL_DEBUG, NCCL_ALGO", NamedMachine(withheld=("NCCL_DEBUG", "NCCL_ALGO"))),
    ],
    "env.transport/cost": [
        ("WARN job: NCCL_IB_DISABLE", AttainableRate(459.0, 459.0, 1), _NEITHER, hcas(8), gpus(8), TWO_NODES),
        ("NOTE job: NCCL_IB_DISABLE", AttainableRate(8.7, 8.7, 2, {}, True), _NEITHER, hcas(8), gpus(8), TWO_NODES),
    ],
    "env.gid/gid-uniform": [
        ("FAIL job: nodes", Every({"n0": ROCE, "n1": _SIXTH}), Every(dict.fromkeys(("n0", "n1"), THREE)), UNASKED),
        ("FAIL image: nodes", Every({"n0": ROCE, "n1": _SIXTH}), Every(dict.fromkeys(("n0", "n1"), PLAIN)), UNASKED),
        (Every({"n0": ROCE, "n1": TURNED}), Every(dict.fromkeys(("n0", "n1"), PLAIN)), UNASKED),
    ],
    "env.hca/pkey": [
        ("FAIL job: NCCL_IB_PKEY", setting("NCCL_IB_PKEY", "7"), PARTITIONED, NO_NCCL),
        (setting("NCCL_IB_PKEY", "0"), PARTITIONED, NO_NCCL),
        (setting("NCCL_IB_PKEY", "7"), hcas(2), NO_NCCL),  # tables that are not known
    ],
    "env.ifname/other-libraries": [
        ("WARN job: UCX_NET_DEVICES", setting("UCX_NET_DEVICES", "mlx5_9:1"), _HIDDEN, hcas(8)),
        *(("UNKNOWN: hidden", setting("UCX_NET_DEVICES", each), _HIDDEN, UNPRICED) for each in ("mlx5_9:1", "eth9")),
        ("WARN job: NVSHMEM_HCA_LIST", setting("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_20:1"), PLAIN_HOST, hcas(8))
    ],
    "env.gid/gid-index": [
        _gid_index("NOTE job: NCCL_IB_ADDR_RANGE", having(NCCL_IB_ADDR_RANGE="10.0.0.0/8", NCCL_IB_GID_INDEX="3")),
        _gid_index("FAIL job: mlx5_4:1", setting("NCCL_IB_GID_INDEX", "3"), _SHORT, ALONE),
        _gid_index("NOTE unknown: b:1", fabric(roce("a", *USUAL), _UNREAD)), _gid_index(ONE_NODE, nccl(2, 20, 5)),
        _gid_index("UNKNOWN: b:1", fabric(_UNREAD)), _gid_index("FAIL job: mlx5_3:1", nccl(2, 20, 5)),
        _gid_index("WARN job: NCCL_IB_ADDR_RANGE", setting("NCCL_IB_ADDR_RANGE", "192.168.192.0/33")),
        _gid_index("WARN job: mlx5_3:1", setting("NCCL_IB_GID_INDEX", "2")), _gid_index(fabric(_BARE), ONE_NODE),
        _gid_index("FAIL job: mlx5_3:1", setting("NCCL_IB_GID_INDEX", "9"), ALONE), _gid_index(fabric(_BARE), ALONE),
        _gid_index("FAIL job: mlx5_3:1", setting("NCCL_IB_GID_INDEX", "0"), ALONE),
        _gid_index("WARN job: mlx5_3:1", setting("NCCL_IB_ROCE_VERSION_NUM", "1")),
        _gid_index("FAIL job: mlx5_3:1", fabric(_BARE)), _gid_index(setting("NCCL_IB_GID_INDEX", "3"), nccl(2, 20, 5)),
        _gid_index(setting("NCCL_IB_GID_INDEX", "1"), fabric(roce("rxe0", (LINK_LOCAL, V2), (PRIVATE, V2))), ALONE),
    ],
    "env.hca/hca-match": [
        ("FAIL job: NCCL_IB_HCA", _hca("^mlx5"), hcas(8), TWO_NODES, NO_NCCL),
        ("WARN job: NCCL_IB_HCA", _hca("mlx5_0"), Fabric(), TWO_NODES, NO_NCCL),
        (_hca("mlx5_0"), fabric(downed("mlx5_0")), TWO_NODES, NO_NCCL), (_hca("mlx5_0"), EFA, TWO_NODES, NO_NCCL),
        (_hca("mlx5_0"), Fabric(), ONE_NODE, NO_NCCL), (_hca("mlx5_0"), Fabric(), ALONE, NO_NCCL),
    ],
    "env.hca/hca-prefix": [
        ("WARN job: NCCL_IB_HCA", _hca("^mlx5_1"), fabric(*map(port, TEN))), (_hca("=mlx5_1"), fabric(*map(port, TEN))),
        (_hca("mlx5_1"), hcas(8)), (_hca("mlx5_0,mlx5_1,mlx5_10,mlx5_11"), fabric(*map(port, TEN))),
    ],
    "env.hca/hca-dup": [
        *((*_hca_dup(must, _hca("=mlx5_0"), hcas(8), on), NamedMachine("DGX H100")) for must, on in _ONE_OF_EIGHT),
        _hca_dup(_hca("^=mlx5_16"), hcas(17), TWO_NODES, gpus=Absent("?")), _hca_dup(_hca("=mlx5_0"), hcas(8)),
        _hca_dup("FAIL job: NCCL_IB_HCA", _hca("=mlx5_8"), WITH_STORAGE), _hca_dup(hcas(6), TWO_NODES),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca("mlx5_0,mlx5_1,mlx5_1,mlx5_3"), gpus(4)), _hca_dup(gpus(4)),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca(",".join(f"nic{n:02}x" for n in range(34))), gpus(4)),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca("=mlx5_0"), hcas(8), TWO_NODES), _hca_dup(hcas(6), gpus(4)),
        _hca_dup("WARN job: NCCL_IB_HCA", _hca("=mlx5_0,mlx5_1,mlx5_2"), TWO_NODES, gpus=Absent("?")),
        _hca_dup(hcas(5), TWO_NODES, gpus=Absent("?")), _hca_dup(_hca("^mlx5_3"), gpus(3)),
        _hca_dup(_hca("mlx5_0:1,mlx5_0:2"), fabric(port("mlx5_0"), port("mlx5_0", 2)), gpus(2)),
    ],
    "env.hca/hca-down": [
        ("FAIL link: mlx5_0:2", _hca("mlx5_0:1,mlx5_0:2"), fabric(port("mlx5_0"), downed("mlx5_0", 2)), NO_NCCL),
        ("NOTE unknown: mlx5_1:1", _hca("mlx5"), fabric(port("mlx5_0"), port("mlx5_1", state=_DENIED)), NO_NCCL),
        ("FAIL link: mlx5_7:1", _hca("=mlx5_0,mlx5_7"), fabric(*hcas(2).ports, downed("mlx5_7")), NO_NCCL),
        ("UNKNOWN: mlx5_0:1", _hca("mlx5_0"), fabric(port("mlx5_0", state=_DENIED)), NO_NCCL),
        ("FAIL link: mlx5_1:1", _hca("mlx5_1:1"), fabric(port("mlx5_0"), port("mlx5_1", state="INIT")), NO_NCCL),
        (_hca("=mlx5_0"), fabric(port("mlx5_0"), downed("mlx5_1")), NO_NCCL),
        (_hca("^mlx5_1"), fabric(port("mlx5_0"), downed("mlx5_1")), NO_NCCL),
        (_hca("mlx5_0"), fabric(port("mlx5_0"), downed("mlx5_0", 2)), NO_NCCL),
    ],
    "env.hca/hca-mgmt": [
        ("WARN job: mlx5_1:1", _hca("mlx5"), MANAGED, BY_ETH0, Interfaces((_ON_ITS_CARD,)), NO_NCCL),
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
        _ifname_match(ONE_NODE), _ifname_match(Fabric()),
    ],
    "env.identity/comm-id": [
        _comm_id("FAIL job: NCCL_COMM_ID", _at("far:9"), CommIdHost("far", ("192.168.7.7", "10.0.0.5"))),
        (*_comm_id("FAIL job: NCCL_COMM_ID", _at("127.0.0.1:9999"), named_host=ANY), TWO_NODES),
        _comm_id("UNKNOWN: is not recorded", Settings({"NCCL_COMM_ID": Setting("NCCL_COMM_ID", None, "x")})),
        _comm_id("UNKNOWN: the resolver was not asked", _at("far:9999")), _comm_id("FAIL job: NCCL_COMM_ID"),
        _comm_id("UNKNOWN: hidden", _at("far:9999"), named_host=_HIDDEN),
        _comm_id("UNKNOWN: hidden", _at("10.0.0.1:9999"), interfaces=_HIDDEN),
        _comm_id("FAIL job: NCCL_COMM_ID", _at(":9999")), _comm_id(_at("10.0.0.1:9999"), named_host=ANY),
        _comm_id("FAIL job: NCCL_COMM_ID", _at("192.168.7.7:9999"), nccl(2, 27, 7)),
        _comm_id("FAIL job: NCCL_COMM_ID", _at("here"), CommIdHost("here", failure="not known")),
        _comm_id("FAIL job: NCCL_COMM_ID", _at("far:9999"), nccl(2, 27, 7), CommIdHost("far", ("192.168.7.7",))),
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
        _ifname_virtual(PLAIN_HOST), _ifname_virtual(setting("NCCL_SOCKET_IFNAME", "=eth0")),
        _ifname_virtual(setting("NCCL_SOCKET_IFNAME", "bond0"), Interfaces((LO, ETH0, BOND0))),
        _ifname_virtual(over("")), _ifname_virtual(Interfaces((LO, _board("usb0", "192.168.1.7"), ETH0))),
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
        (PLAIN, hcas(8), TWO_NODES), (PLAIN, Fabric(), TWO_NODES),
    ],
    "env.transport/p2p-off": [
        ("WARN job: NCCL_P2P_LEVEL", setting("NCCL_P2P_LEVEL", "LOC"), gpus(8), linked(8), NO_NCCL),
        (setting("NCCL_P2P_DISABLE", "1"), gpus(2, "NVIDIA GeForce RTX 4090"), bare(2), NO_NCCL),
        (setting("NCCL_P2P_DISABLE", "1"), gpus(1), linked(1), NO_NCCL),
        (setting("NCCL_NVLS_ENABLE", "0"), gpus(8), bare(8), NO_NCCL),
    ],
    "env.transport/gdr-off": [
        ("WARN job: NCCL_DMABUF_ENABLE", _DMABUF_OFF, ANY, ANY, ANY, TWO_NODES, NO_NCCL, GpuDirect()),
        ("WARN job: NCCL_NET_GDR_LEVEL", setting("NCCL_NET_GDR_LEVEL", "0"), ANY, ANY, ANY, TWO_NODES, NO_NCCL),
        (setting("NCCL_NET_GDR_LEVEL", "LOC"), ANY, ANY, ANY, ONE_NODE, NO_NCCL),
        (setting("NCCL_NET_GDR_LEVEL", "LOC"), ANY, ANY, Fabric(), TWO_NODES, NO_NCCL),
        (having(NCCL_NET_GDR_LEVEL="LOC", NCCL_NET="Socket"), ANY, ANY, ANY, TWO_NODES, NO_NCCL),
    ],
    "env.libraries/efa": [
        ("WARN job: libnccl-net.so", PLAIN, EFA, Plugins(tuple(map(_unreached, "ab"))), TWO_NODES),
        (PLAIN, EFA, Plugins((_unreached("a"), OFI)), TWO_NODES), (PLAIN, EFA, Plugins(), ONE_NODE),
        ("WARN job: libnccl-net.so", PLAIN, EFA, Plugins(), TWO_NODES), (PLAIN, EFA, Plugins(), ALONE),
        ("WARN job: FI_PROVIDER", setting("FI_PROVIDER", "tcp"), EFA, Plugins((OFI,)), TWO_NODES),
        (setting("FI_PROVIDER", "efa"), EFA, Plugins((OFI,)), TWO_NODES),
    ],
    "env.vendor": [
        _vendor("FAIL job: NCCL_NET", _ON_SOCKETS, Machine(instance_type="standard_nd96isr_h100_v5")),
        _vendor("NOTE job: NCCL_ALGO", having(**_LESS)), (*_vendor(having(**_LESS)), NamedMachine(sources=True)),
        _vendor("FAIL job: UCX_TLS", having(NCCL_PLUGIN_P2P="ucx", UCX_TLS="tcp,cuda_copy")),
        _vendor("FAIL job: NCCL_IB_DISABLE; NOTE job: NCCL_IB_TC", having(NCCL_IB_DISABLE="1"), ON_IB, machine=_ORACLE),
        _vendor("FAIL job: NCCL_NET_PLUGIN, FI_PROVIDER", _SWAPPED, launch=ANY),
        _vendor("WARN job: NCCL_IB_TC", having(NCCL_IB_TC="106"), ON_IB, machine=_ORACLE),
    ],
}  # fmt: skip
