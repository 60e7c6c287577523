"""What the checks of variables, their values and files must object to, and what they must accept."""

from typing import Any

from ncclprobe.checks.env import UNPRICED
from ncclprobe.checks.env.choices import FAST, NO_NIC, OVER_SOCKETS, STARTS
from ncclprobe.checks.env.files import CUDA, CUDA_12, CUDART, ETC, OURS, PACKAGES, PLUGIN, SYSTEM, TREE, WHEEL
from ncclprobe.checks.env.fixtures import (
    ALONE,
    LINK_LOCAL,
    LO,
    NO_NCCL,
    ONE_NODE,
    PLAIN,
    TWO_NODES,
    V1,
    V2,
    fabric,
    gpus,
    having,
    linked,
    nccl,
    roce,
    setting,
)
from ncclprobe.checks.env.job import LIST
from ncclprobe.checks.env.values import ANY, ROCE, THREE, TURNED
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.nccl_conf import SYSTEM_FILE, ConfFile, NamedFiles, Settings, TopologyFile
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.plugins import Linking, Plugins, SharedLibrary
from ncclprobe.facts.software import Mapped, Software, Torch
from ncclprobe.model.nccl_selection import Decision, InterfaceChoice, NetworkChoice
from ncclprobe.model.report import AttainableRate, Setting
from ncclprobe.model.snapshot import Absent, Every, Job
from ncclprobe.model.values import replace
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
    settings=setting("NCCL_NET_PLUGIN", "/none/libnccl-net.so"),
    named_files=NamedFiles(),
    plugins=Plugins(),
    loader=Loader(),
)
_nccl = rows_of(software=Software({}), launch=ALONE, job=Job())
_OF_SHELLS, _BY_CALL = ("export", "set", "setenv", "declare"), ("all", "COLL", "init,CALL", "P2P")
_PIPED, _BUFFERS = ("slurm", "openmpi", "pmi"), ("BUFFSIZE", "LL_BUFFSIZE", "LL128_BUFFSIZE")
_SHADOWED = replace(CUDART, others=("/usr/lib/libcudart.so.12",), why="LD_LIBRARY_PATH")
_LIBC = SharedLibrary("libc.so.6", _NET, "/lib/libc.so.6", "", ("GLIBC_2.38",))
_AT_HOME = Settings({}, (), (ConfFile("/root/.nccl.conf"),), other_home="/home/me/.nccl.conf")
_OLD_FIRST = Software(PACKAGES, (*SYSTEM, WHEEL), Mapped(SYSTEM[0].path, "LD_LIBRARY_PATH"), CUDA)
_NO_FOLDER = NamedFiles(folders={_FR: ("/none", False)})
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
CASES: Cases = {
    "env.start/start": [
        ("FAIL image: interfaces", replace(STARTS, bootstrap=_NOTHING, sockets=_NOTHING), Interfaces((LO,)), PLAIN)
    ],
    "env.transport/transport": [
        ("FAIL job: NCCL_NET", OVER_SOCKETS, setting("NCCL_NET", "Socket"), TWO_NODES, Job(local=True), UNPRICED),
        ("WARN job: NCCL_IB_DISABLE", OVER_SOCKETS, setting("NCCL_IB_DISABLE", "1"), ALONE, Job(), UNPRICED),
        ("FAIL image: /dev/infiniband", _CLOSED, PLAIN, ALONE, Job(expect_nics=8), UNPRICED),
        ("FAIL image: libnccl-net.so", ON_IB, PLAIN, ALONE, Job(expect_nics=8), UNPRICED),
        (OVER_SOCKETS, setting("NCCL_NET", "Socket"), TWO_NODES, Job(), AttainableRate(870.0, 870.0, 2, {}, True)),
        (ON_IB, PLAIN, TWO_NODES, Job(), UNPRICED),
        (ON_IB, PLAIN, TWO_NODES, Job(expect_nics=1), UNPRICED),
    ],
    "env.files/conf-files": [
        ("WARN job: NCCL_DEBUG", setting("NCCL_DEBUG", " INFO", ETC)),
        ("FAIL job: NCCL_DEBUG", setting("NCCL_DEBUG ", " INFO", ETC)),
        ("WARN job: NCCL_DEBUG", setting("  #NCCL_DEBUG", "INFO", ETC)),
        *(("WARN job: NCCL_DEBUG", setting(f"{each} NCCL_DEBUG", "INFO", ETC)) for each in _OF_SHELLS),
        ("WARN job: NCCL_IB_HCA", Settings(skipped=(Setting("setenv NCCL_IB_HCA mlx5_0", None, ETC),))),
        ("WARN job: NCCL_NET", Settings(skipped=(Setting("NCCL_NET: IB", None, ETC), Setting("[nccl]", None, ETC)))),
        ("FAIL job: NCCL_CONF_FILE", Settings({}, (), (ConfFile("/etc/job.conf", _MISSING), ConfFile(SYSTEM_FILE)))),
        ("WARN job: /etc/nccl.conf", Settings({}, (), (ConfFile(SYSTEM_FILE, Absent("permission denied", "Denied")),))),
        ("WARN job: /home/me/.nccl.conf", _AT_HOME),
        (setting("NCCL_DEBUG", "INFO", ETC),),
        (setting("NCCL_DEBUG", "INFO"),),
        (Settings({}, (), (ConfFile("/root/.nccl.conf", _MISSING), ConfFile(SYSTEM_FILE))),),
    ],
    "env.files/topo-file": [
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
        _plugin_path("FAIL job: /none/libnccl-net.so", _libraries("/none/libnccl-net.so", False)),
        _plugin_path("WARN job: NCCL_TUNER_PLUGIN", setting("NCCL_TUNER_PLUGIN", "libnccl-tuner-x.so")),
        _plugin_path("WARN job: libnope.so", setting("NCCL_NET_PLUGIN", "libnope.so"), _libraries("libnope.so", False)),
        _plugin_path(setting("NCCL_NET_PLUGIN", PLUGIN.path), _libraries(PLUGIN.path, True)),
        _plugin_path(setting("NCCL_NET_PLUGIN", "none")),
        _plugin_path(setting("NCCL_NET_PLUGIN", "libours.so"), _libraries("libours.so", True)),
        _plugin_path(having(NCCL_NET_PLUGIN="")),
        _plugin_path(PLAIN),
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
        (setting("NCCL_HOSTID", "node0"), TWO_NODES),
        (setting("NCCL_HOSTID", "node", "/etc/nccl.conf:3"), ONE_NODE),
    ],
    "env.torch-timeouts": [
        ("NOTE job: NCCL_RAS_ENABLE", setting("NCCL_RAS_ENABLE", "0")),
        (setting("NCCL_RAS_ENABLE", "1"),),
        ("WARN job: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", setting("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10")),
        ("WARN job: NCCL_ASYNC_ERROR_HANDLING", setting("NCCL_ASYNC_ERROR_HANDLING", "0")),
        (setting("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"),),
        (PLAIN,),
    ],
    "env.start/nccl": [
        _nccl("FAIL image: libnccl.so.2", Software({}, torch=Torch("/venv/torch", "13.0"))),
        _nccl("WARN image: torch", replace(_CPU, nccl=SYSTEM, mapped=Mapped(SYSTEM[0].path, "x"))),
        _nccl("NOTE unknown: libnccl.so.2", Job(local=True)),
        _nccl("UNKNOWN: neither torch nor libnccl.so.2 is in this environment"),
        _nccl("FAIL image: torch", _CPU),
        _nccl("FAIL image: libnccl.so.2", TWO_NODES),
        _nccl("WARN image: /usr/lib/libnccl.so.2.19.3", _OLD_FIRST),
        _nccl(Software({}, SYSTEM, Mapped(SYSTEM[0].path, "/etc/ld.so.cache")), ONE_NODE),
        _nccl("NOTE unknown: libnccl.so.2", Launch("options"), Job(local=True)),
        _nccl(Job(local=True)),
    ],
    "env.start/torch-driver": [(Software({}), CUDA_12)],
    "env.libraries/libraries": [
        ("NOTE unknown: libcudart.so.12", Linking((_SHADOWED, OURS))),
        ("FAIL image: libcudart.so.12", Linking((replace(CUDART, path="", why=""), OURS))),
        ("WARN image: libfabric.so.1", Linking((CUDART, OURS, replace(_OFI, path="", why="")), _NET)),
        ("WARN image: libc.so.6", Linking((CUDART, _LIBC), _NET)),
        (Linking((CUDART, OURS, _OFI), _NET),),
        (Linking(),),
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
        _file(NamedFiles(folders={_FR: ("/tmp", True)}), ALONE),
        _file(),
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
        (setting(_STREAMS, "1"), torch("2.13.0")),
        (setting(_TRACE, "200"), torch("2.6.0+cu124")),
        *((setting("TORCH_FR_BUFFER_SIZE", "200"), each) for each in (torch("2.9.1+cu128"), torch())),
        ("WARN job: NCCL_LL_THRESHOLD", setting("NCCL_LL_THRESHOLD", "0"), NO_NCCL),
        ("WARN job: NCCL_IB_CUDA_SUPPORT", setting("NCCL_IB_CUDA_SUPPORT", "1"), nccl(2, 21, 5)),
        (setting("NCCL_ASYNC_ERROR_HANDLING", "1"), NO_NCCL),
        (setting("NCCL_IB_ROCE_VERSION_NUM", "2"), nccl(2, 20, 5)),
    ],
    "env.value/bool-word": [
        ("FAIL job: NCCL_NVLS_ENABLE", setting("NCCL_NVLS_ENABLE", "yes"), nccl(2, 27, 7)),
        ("WARN job: NCCL_P2P_DISABLE", setting("NCCL_P2P_DISABLE", "yes"), nccl(2, 32, 3)),
        (setting("NCCL_DEBUG", "INFO"), NO_NCCL),
        (setting("NCCL_IB_DISABLE", "false"), nccl(2, 32, 3)),
    ],
    "env.value/number-text": [
        # A unit leaves a few bytes; other words leave the number.
        *((f"FAIL job: NCCL_{each}", setting(f"NCCL_{each}", text)) for each in _BUFFERS for text in ("8M", "16MiB")),
        ("FAIL job: NCCL_P2P_NET_CHUNKSIZE", setting("NCCL_P2P_NET_CHUNKSIZE", "512K")),
        ("WARN job: NCCL_BUFFSIZE", setting("NCCL_BUFFSIZE", "8388608 # 8 MiB")),
        ("WARN job: NCCL_IB_TIMEOUT", setting("NCCL_IB_TIMEOUT", "22s")),
        (setting("NCCL_BUFFSIZE", "4194304"),),
    ],
    "env.value/range": [
        ("WARN job: NCCL_IB_RETRY_CNT", setting("NCCL_IB_RETRY_CNT", "10")),
        *((f"FAIL job: NCCL_{each}", setting(f"NCCL_{each}", text)) for each in _BUFFERS for text in ("-1", "0")),
        ("WARN job: NCCL_P2P_NET_CHUNKSIZE", setting("NCCL_P2P_NET_CHUNKSIZE", "-1")),
        (setting("NCCL_IB_TC", "-1"),),
        (setting("NCCL_IB_RETRY_CNT", "abc"),),
    ],
    "env.name/noop": [
        ("WARN job: NCCL_MAX_NCHANNELS", setting("NCCL_MAX_NCHANNELS", "1"), NO_NCCL),
        ("WARN job: NCCL_MAX_CTAS", setting("NCCL_MAX_CTAS", "1"), NO_NCCL),
        ("WARN job: NCCL_NTHREADS", setting("NCCL_NTHREADS", "64"), NO_NCCL),
        ("WARN job: NCCL_BUFFSIZE", setting("NCCL_BUFFSIZE", "65536"), NO_NCCL),
        ("FAIL job: NCCL_LL128_BUFFSIZE", setting("NCCL_LL128_BUFFSIZE", "16"), NO_NCCL),
        (having(NCCL_MAX_NCHANNELS="8", NCCL_MIN_NCHANNELS="4", NCCL_BUFFSIZE="8388608"), NO_NCCL),
        (having(NCCL_P2P_NET_CHUNKSIZE="131072", NCCL_IB_RETRY_CNT="7", NCCL_MAX_CTAS="-2"), NO_NCCL),
        (setting("NCCL_IB_TIMEOUT", "20"), nccl(2, 21, 5)),
        (setting("NCCL_IB_TIMEOUT", "abc"), nccl(2, 29, 7)),
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
        ("FAIL job: GLOO_DEVICE_TRANSPORT", setting("GLOO_DEVICE_TRANSPORT", "UDP")),
        ("WARN job: TORCH_NCCL_ASYNC_ERROR_HANDLING", setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "9")),
        ("WARN job: NCCL_P2P_LEVEL", setting("NCCL_P2P_LEVEL", "nvl")),
        (setting("NCCL_P2P_LEVEL", "NVL"),),
        (setting("NCCL_NET_GDR_LEVEL", "3"),),
        (setting("NCCL_DEBUG", "info"),),
        (setting("NCCL_DEBUG", ""),),
    ],
    "env.debug/debugging": [("WARN job: TORCH_DISTRIBUTED_DEBUG", setting("TORCH_DISTRIBUTED_DEBUG", "detail"))],
    "env.forced-algo": [
        _algo("WARN job: NCCL_ALGO", setting("NCCL_ALGO", "Ring")),
        _algo("WARN job: NCCL_ALGO; FAIL job: NCCL_ALGO", setting("NCCL_ALGO", "Tree")),
        _algo("FAIL job: NCCL_ALGO", setting("NCCL_ALGO", "allreduce:NVLS"), bare(8), ONE_NODE),
        _algo("WARN job: NCCL_PROTO", setting("NCCL_PROTO", "LL128")),
        _algo("NOTE job: NCCL_PROTO; WARN job: NCCL_PROTO", setting("NCCL_PROTO", "^LL"), bare(8)),
        _algo(
            "WARN job: NCCL_PROTO; FAIL job: NCCL_ALGO", having(NCCL_ALGO="allreduce:NVLS", NCCL_PROTO="LL"), ONE_NODE
        ),
        _algo("WARN job: NCCL_ALGO", setting("NCCL_ALGO", "Ring,Tree")),
        _algo("WARN job: NCCL_ALGO", setting("NCCL_ALGO", "^NVLS,NVLSTree"), ONE_NODE),
        # A list of several excludes and does not force.
        _algo("NOTE job: NCCL_ALGO", setting("NCCL_ALGO", "Ring,Tree"), bare(8)),
        _algo("NOTE job: NCCL_PROTO", setting("NCCL_PROTO", "^LL128"), bare(8)),
        *(_algo("NOTE job: NCCL_PROTO; WARN job: NCCL_PROTO", settings=setting("NCCL_PROTO", text)) for text in _LISTS),
        _algo(setting("NCCL_ALGO", "allreduce:tree,ring")),
        _algo(setting("NCCL_PROTO", "allreduce:Simple")),
        _algo(setting("NCCL_PROTO", "^LL")),
        _algo(setting("NCCL_ALGO", ""), nccl(2, 21, 5)),
    ],
    "env.danger/danger-knob": [
        ("WARN job: NCCL_CHUNK_SIZE", setting("NCCL_CHUNK_SIZE", "2097152")),
        (setting("NCCL_CHUNK_SIZE", "131072"),),
    ],
    "env.gid/gid-uniform": [
        ("FAIL job: nodes", Every({"n0": ROCE, "n1": _SIXTH}), Every(dict.fromkeys(("n0", "n1"), THREE)), ANY),
        ("FAIL image: nodes", Every({"n0": ROCE, "n1": _SIXTH}), Every(dict.fromkeys(("n0", "n1"), PLAIN)), ANY),
        (Every({"n0": ROCE, "n1": TURNED}), Every(dict.fromkeys(("n0", "n1"), PLAIN)), ANY),
    ],
}
