"""What can go wrong with NCCL alone, played by its own library on a processor (tests/cuda_stand_in/rank.py)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

from on_cpu import build

from ncclprobe.model.values import Struct, field, replace
from tests.lab import Lab, faults

ROOT_PORT = 29600


class NcclCase(Struct, frozen=True):
    """One job of `world` ranks of `words`, on hosts of as many each. `code` is its cause, empty: it is healthy.

    `ranks` are those at fault, empty: all, or none. `library`: the release of single ranks, where it is another.
    `during` is made once rank 0 has said `says`. `without` is a library of the GPU's driver that is not there.
    """

    name: str
    code: str
    ranks: tuple[int, ...] = ()
    words: tuple[str, ...] = ("all_reduce:1000", "all_reduce:3000")
    hosts: int = 1
    env: dict[str, str] = field(default_factory=dict)
    per_rank: dict[int, dict[str, str]] = field(default_factory=dict)
    library: dict[int, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    around: Callable[[Lab], AbstractContextManager[Any]] = lambda lab: nullcontext()
    during: Callable[[Lab], AbstractContextManager[Any]] | None = None
    says: str = "all_reduce: 0 wrong"
    leaves_out: tuple[int, ...] = ()
    without: str = ""
    files: dict[str, str] = field(default_factory=dict)
    debug: str = "INFO"
    world: int = 4
    deadline_s: float = 14.0


_STEP, _TWICE = "all_reduce:3000", ("all_reduce:1000", "sleep:3", "all_reduce:3000")
_CRASH, _LATE, _DESYNC, _SETTING = "rank-crashed", "timeout-straggler", "collective-desync", "nccl-setting"
_SIMPLE = {"NCCL_PROTO": "Simple"}
_SOON = {"RANK_WAITS_S": "8"}


def _all_hosts(fault: Callable[..., AbstractContextManager[Any]], *args: Any, **more: Any) -> Any:
    @contextmanager
    def made(lab: Lab) -> Iterator[None]:
        with ExitStack() as stack:
            for host in lab.hosts:
                stack.enter_context(fault(host, *args, **more))
            yield

    return made


def _first(fault: Callable[..., AbstractContextManager[Any]], *args: Any, **more: Any) -> Any:
    return lambda lab: fault(lab.hosts[0], *args, **more)


def _differs(name: str, value: str, hosts: int = 1, **env: str) -> NcclCase:
    """Rank 2 alone has another value."""
    plain = name.removeprefix("NCCL_").lower().replace("_", "-")
    words = ("all_reduce:3000", "all_reduce:200000", "sendrecv:3000")
    return NcclCase(f"differs-{plain}{'-2-hosts' * (hosts > 1)}", "env-mismatch", (2,), words, hosts=hosts,
                    env={**env, **_SOON}, per_rank={2: {name: value}}, deadline_s=30.0)  # fmt: skip


def _everywhere(name: str, code: str, **env: str) -> NcclCase:
    return NcclCase(name, code, env=env)


_PLUGIN = "int nothing_of_a_plugin;\n"
INTERFACES = (
    _everywhere("interface-missing", "iface-missing", NCCL_SOCKET_IFNAME="ib0"),
    NcclCase("interface-missing-on-one", "iface-missing", (2,), per_rank={2: {"NCCL_SOCKET_IFNAME": "ib0"}}),
    NcclCase("interface-loopback", "iface-loopback", hosts=2, env={"NCCL_SOCKET_IFNAME": "lo"}),
    NcclCase("interface-loopback-on-one", "iface-loopback", (2, 3), hosts=2,
             per_rank={n: {"NCCL_SOCKET_IFNAME": "lo"} for n in (2, 3)}),
    _everywhere("family-of-link-local-addresses", "", NCCL_SOCKET_FAMILY="AF_INET6"),
    _everywhere("comm-id-elsewhere", "iface-missing", NCCL_COMM_ID="10.99.0.1:29600"),
    _everywhere("comm-id-no-address", "dns-unresolved", NCCL_COMM_ID="here"),
    NcclCase("bridge-address", "iface-wrong-veth", hosts=2, env={"NCCL_SOCKET_IFNAME": "docker0"},
             around=_all_hosts(faults.bridge)),
    NcclCase("ports-dropped", "peer-unreachable", hosts=2, around=_first(faults.filtered), deadline_s=40.0),
    NcclCase("ports-refused", "peer-unreachable", hosts=2, around=_first(faults.refused, port=(1024, 65535)),
             deadline_s=75.0),
    NcclCase("ports-one-way", "peer-unreachable", hosts=2, around=_first(faults.filtered, to="out"), deadline_s=40.0),
    NcclCase("partition", "peer-unreachable", hosts=2, words=_TWICE, during=_first(faults.filtered, to="both")),
    NcclCase("cable-pulled", "peer-unreachable", hosts=2, words=_TWICE, during=_first(faults.link_down)),
    NcclCase("loss", "", hosts=2, around=_first(faults.lossy, 10), words=(_STEP, "sendrecv:3000"), deadline_s=60.0),
    NcclCase("mtu-black-hole", "peer-unreachable", hosts=2, around=_first(faults.mtu_black_hole), env=_SOON),
    NcclCase("same-identity", "host-identity", hosts=2,
             around=lambda lab: faults.same_identity(lab.hosts[1], lab.hosts[0])),
    NcclCase("names-unresolved", "", hosts=2, around=_all_hosts(faults.names)),
)  # fmt: skip
LIVES = (
    NcclCase("absent", "world-size-mismatch", (2,), leaves_out=(2,)),
    NcclCase("killed-before-init", _CRASH, (2,), ("2!kill", "init", _STEP)),
    NcclCase("killed-in-init", _CRASH, (2,), ("2!kill-in:1.5", "3!sleep:3", "init", _STEP)),
    NcclCase("root-killed-in-init", _CRASH, (0,), ("0!kill-in:1.5", "3!sleep:3", "init", _STEP)),
    NcclCase("stopped-before-init", _LATE, (2,), ("2!stop", "init", _STEP)),
    NcclCase("stopped-in-init", _LATE, (2,), ("2!stop-in:1.5", "3!sleep:3", "init", _STEP)),
    NcclCase("late-to-init", "", (), ("2!sleep:5", "init", _STEP)),
    NcclCase("killed-in-a-call", _CRASH, (2,), (_STEP, "2!sleep:1", "2!kill", _STEP), env=_SOON),
    NcclCase("killed-in-a-call-2-hosts", _CRASH, (2,), (_STEP, "2!sleep:1", "2!kill", _STEP), hosts=2, env=_SOON),
    NcclCase("root-killed-in-a-call", _CRASH, (0,), (_STEP, "0!sleep:1", "0!kill", _STEP), hosts=2, env=_SOON),
    NcclCase("segfault-in-a-call", _CRASH, (2,), (_STEP, "2!segfault", _STEP), hosts=2, env=_SOON),
    NcclCase("exits", _CRASH, (2,), (_STEP, "2!exit", _STEP), hosts=2, env=_SOON),
    NcclCase("raises", _CRASH, (2,), (_STEP, "2!raise", _STEP), hosts=2, env=_SOON),
    NcclCase("stopped-in-a-call", _LATE, (2,), (_STEP, "2!stop", _STEP), env=_SOON),
    NcclCase("stopped-in-a-call-2-hosts", _LATE, (2,), (_STEP, "2!stop", _STEP), hosts=2, env=_SOON),
    NcclCase("late-in-a-call", "", (), (_STEP, "2!sleep:4", _STEP)),
    NcclCase("aborts", _CRASH, (2,), (_STEP, "2!abort", _STEP), env=_SOON),
    *(NcclCase(f"aborts-in-a-call{name}", "wrong-data", (2,),
               (_STEP, "0!sleep:6", "2!abort-within:1", "all_reduce:200000"), hosts=hosts, env={**env, **_SOON},
               deadline_s=30.0)
      for name, hosts, env in (("", 1, _SIMPLE), ("-shm", 1, _SIMPLE | {"NCCL_P2P_DISABLE": "1"}),
                               ("-2-hosts", 2, _SIMPLE))),
    NcclCase("aborts-2-hosts", _CRASH, (2,), (_STEP, "2!abort", _STEP), hosts=2, env=_SOON),
)  # fmt: skip
CALLS = (
    NcclCase("skips-one", _DESYNC, (2,), (_STEP, "0,1,3!all_reduce:3000", "all_gather:3000"), env=_SOON),
    NcclCase("ends-early", _DESYNC, (2,), (_STEP, "0,1,3!all_reduce:3000"), env=_SOON),
    NcclCase("other-operation", _DESYNC, (2,), (_STEP, "0,1,3!all_reduce:3000", "2!broadcast:3000"), env=_SOON),
    NcclCase("other-count", _DESYNC, (2,), (_STEP, "0,1,3!all_reduce:300000", "2!all_reduce:3000"), env=_SOON),
    NcclCase("other-type", _DESYNC, (2,), (_STEP, "0,1,3!all_reduce:3000", "2!all_reduce:3000:double"), env=_SOON),
    NcclCase("other-count-2-hosts", _DESYNC, (2,), (_STEP, "0,1,3!all_reduce:300000", "2!all_reduce:3000"), hosts=2,
             env=_SOON),
)  # fmt: skip
WORLDS = (
    NcclCase("world-size-differs", "world-size-mismatch", (2,), per_rank={2: {"WORLD_SIZE": "5"}}),
    NcclCase("world-size-too-large", "world-size-mismatch", (), per_rank={n: {"WORLD_SIZE": "5"} for n in range(4)}),
    NcclCase("rank-twice", "world-size-mismatch", (2, 3), per_rank={3: {"RANK": "2"}}),
    NcclCase("rank-beyond", "world-size-mismatch", (4,), per_rank={3: {"RANK": "4"}}),
    NcclCase("same-gpu", "duplicate-gpu", (2, 3), per_rank={3: {"LOCAL_RANK": "2"}}),
    NcclCase("gpu-beyond", _CRASH, (3,), per_rank={3: {"LOCAL_RANK": "9"}}),
    NcclCase("stranger-on-the-port", "addr-in-use", env={"NCCL_COMM_ID": f"127.0.0.1:{ROOT_PORT}"},
             around=_first(faults.taken, ROOT_PORT)),
)  # fmt: skip
RELEASES = tuple(
    NcclCase(f"{tag}-on-{ranks[0]}", "version-mismatch", (), library=dict.fromkeys(ranks, tag))
    for tag in build.RELEASES
    for ranks in ((2,), (0,))
)
MACHINES = (
    NcclCase("no-nvml", "cuda-driver-mismatch", without="libnvidia-ml.so.1"),
    _everywhere("topology-file-missing", "topo-file", NCCL_TOPO_FILE="/opt/job/none.xml"),
    NcclCase("topology-file-broken", "topo-file", env={"NCCL_TOPO_FILE": "/opt/job/broken.xml"},
             files={"broken.xml": '<system version="1"><cpu numaid="0"'}),
    NcclCase("topology-file-other-version", "topo-file", env={"NCCL_TOPO_FILE": "/opt/job/other.xml"},
             files={"other.xml": '<system version="9"></system>\n'}),
    NcclCase("topology-file-of-no-gpus", "topo-file", env={"NCCL_TOPO_FILE": "/opt/job/other.xml"},
             files={"other.xml": '<system version="1"></system>\n'}),
    _everywhere("graph-file-missing", "graph-file", NCCL_GRAPH_FILE="/opt/job/none.xml"),
    NcclCase("graph-file-broken", "graph-file", env={"NCCL_GRAPH_FILE": "/opt/job/graph.xml"},
             files={"graph.xml": '<graphs version="1"><graph id="0"'}),
    NcclCase("small-shm", "shm-too-small", env={"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"},
             around=_first(faults.small_shm, 1 << 20)),
    NcclCase("small-shm-unused", "", around=_first(faults.small_shm, 4 << 20)),
    NcclCase("no-memory", "oom", env={"FAKE_NVML_MEMORY_MB": "513"}),
    NcclCase("little-memlock", "", prefix=("prlimit", "--memlock=65536")),
)  # fmt: skip
SETTINGS = (
    _everywhere("algorithm-unknown", _SETTING, NCCL_ALGO="Rnig"),
    _everywhere("protocol-unknown", _SETTING, NCCL_PROTO="LL256"),
    _everywhere("algorithm-impossible", _SETTING, NCCL_ALGO="CollnetChain"),
    _everywhere("protocol-none-left", _SETTING, NCCL_PROTO="^LL,LL128,Simple"),
    _everywhere("net-unknown", "plugin-missing", NCCL_NET="nosuch"),
    _everywhere("net-ib-without", "ib-device-not-in-container", NCCL_NET="IB"),
    _everywhere("ib-disabled", "", NCCL_IB_DISABLE="1"),
    _everywhere("channels-zero", "", NCCL_MAX_NCHANNELS="0"),
    _everywhere("threads-odd", "", NCCL_NTHREADS="100"),
    _everywhere("buffer-negative", "", NCCL_BUFFSIZE="-1"),
    _differs("NCCL_MAX_NCHANNELS", "1"),
    _differs("NCCL_MIN_NCHANNELS", "4", NCCL_MAX_NCHANNELS="4"),
    _differs("NCCL_ALGO", "Tree"),
    _differs("NCCL_PROTO", "Simple"),
    _differs("NCCL_PROTO", "Simple", hosts=2),
    _differs("NCCL_BUFFSIZE", "262144"),
    _differs("NCCL_LL_BUFFSIZE", "65536"),
    _differs("NCCL_NTHREADS", "128"),
    _differs("NCCL_P2P_DISABLE", "1"),
    _differs("NCCL_SHM_DISABLE", "1", NCCL_P2P_DISABLE="1"),
    _differs("NCCL_P2P_LEVEL", "LOC"),
    _differs("NCCL_CUMEM_ENABLE", "0"),
    NcclCase("net-unknown-on-one", "plugin-missing", (2,), hosts=2, per_rank={2: {"NCCL_NET": "nosuch"}}),
    _differs("NCCL_NSOCKS_PERTHREAD", "4", hosts=2),
    _differs("NCCL_SOCKET_NTHREADS", "4", hosts=2),
    _differs("NCCL_P2P_NET_CHUNKSIZE", "32768", hosts=2),
    _differs("NCCL_CROSS_NIC", "0", hosts=2),
    _differs("NCCL_COLLNET_ENABLE", "1"),
    _differs("NCCL_HOSTID", "elsewhere"),
)
PLUGINS = (
    _everywhere("plugin-missing", "plugin-missing", NCCL_NET_PLUGIN="nosuch"),
    _everywhere("plugin-missing-but-needed", "plugin-missing", NCCL_NET_PLUGIN="nosuch", NCCL_NET="Mellanox"),
    NcclCase("plugin-without-symbols", "plugin-mismatch", env={"NCCL_NET_PLUGIN": "/opt/job/libnccl-net-empty.so"},
             files={"libnccl-net-empty.so": _PLUGIN}),
    NcclCase("plugin-of-another-abi", "plugin-mismatch", env={"NCCL_NET_PLUGIN": "/opt/job/libnccl-net-old.so",
             "NCCL_NET": "Old"}, files={"libnccl-net-old.so": 'struct { const char* n; } ncclNetPlugin_v2 = {"Old"};'}),
    _everywhere("tuner-missing", "", NCCL_TUNER_PLUGIN="nosuch"),
)  # fmt: skip
HEALTHY = (
    NcclCase("healthy", ""),
    NcclCase("healthy-2-hosts", "", hosts=2),
    NcclCase("healthy-every-operation", "", words=tuple(
        f"{name}:3000" for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"))),
    NcclCase("healthy-shm", "", env={"NCCL_P2P_DISABLE": "1"}),
    NcclCase("healthy-all-subsystems", "", hosts=2, env={"NCCL_DEBUG_SUBSYS": "ALL"}),
    NcclCase("healthy-warn", "", hosts=2, debug="WARN"),
)  # fmt: skip


class Value(NamedTuple):
    """A value as somebody writes it, and what nccl/parameters.csv says that NCCL makes of it.

    `refused`: init or the first call fails. `shows`: what the log of rank 0 says of it; with ! before it: does not
    say. `since`, `until`: the releases of which that is said, the last not among them.
    """

    name: str
    value: str
    shows: str
    refused: bool = False
    since: tuple[int, ...] = ()
    until: tuple[int, ...] = (9,)

    @property
    def case(self) -> str:
        """The name of its case: of the releases before and after a change there is one."""
        return f"value {self.name}={self.value}"


_NET = "Failed to initialize any NET plugin"
VALUES = (
    Value("NCCL_ALGO", "Rnig", 'Unrecognized element token "Rnig"', True, since=(2, 24)),
    Value("NCCL_ALGO", "Rnig", "!NCCL WARN", until=(2, 24)),
    Value("NCCL_ALGO", "CollnetChain", "o algorithm/protocol available", True, since=(2, 24)),
    Value("NCCL_PROTO", "LL256", 'Unrecognized element token "LL256"', True, since=(2, 24)),
    Value("NCCL_NTHREADS", "100", "Invalid NCCL_NTHREADS 100 (must be a multiple of 32)"),
    Value("NCCL_NTHREADS", "1024", "Invalid NCCL_NTHREADS 1024 (maximum 512)"),
    Value("NCCL_NTHREADS", "abc", "!NCCL WARN"),
    Value("NCCL_LL128_NTHREADS", "10000", "Invalid NCCL_LL128_NTHREADS 10000"),
    Value("NCCL_CGA_CLUSTER_SIZE", "99", "NCCL_CGA_CLUSTER_SIZE"),
    Value("NCCL_WORK_FIFO_BYTES", "1000", "NCCL_WORK_FIFO_BYTES=1000 is being ignored"),
    Value("NCCL_SOCKET_NTHREADS", "99", "NCCL_SOCKET_NTHREADS is greater than the maximum allowed"),
    Value("NCCL_SOCKET_FAMILY", "AF_INET7", "NCCL_SOCKET_FAMILY set by environment to AF_INET7"),
    Value("NCCL_SOCKET_IFNAME", "ib0", "no socket interface found", True),
    Value("NCCL_OOB_NET_IFNAME", "ib0", "!NCCL_OOB_NET_IFNAME"),
    Value("NCCL_NET", "nosuch", _NET, True, since=(2, 27)),
    Value("NCCL_NET", "nosuch", "Error: network nosuch not found", True, until=(2, 27)),
    Value("NCCL_NET", "socket", "Using network Socket"),
    Value("NCCL_IB_DISABLE", "true", "NCCL_IB_DISABLE set by environment to 0"),
    Value("NCCL_BUFFSIZE", "4M", "NCCL_BUFFSIZE set by environment to 4."),
    Value("NCCL_P2P_LEVEL", "NVLINK", "!NCCL WARN"),
    Value("NCCL_P2P_DISABLE", "yes", "via P2P/"),
    Value("NCCL_MAX_NCHANNELS", "0", "NCCL_MAX_NCHANNELS set by environment to 0"),
    Value("NCCL_MIN_NCHANNELS", "99", "NCCL_MIN_NCHANNELS set by environment to 99"),
    Value("NCCL_NET_FORCE_MERGE", "nosuch", "!NCCL WARN"),
    Value("NCCL_NET_MERGE_POLICY", "NONE", "NCCL_NET_MERGE_POLICY", since=(2, 30, 7)),
    Value("NCCL_SOCKET_MAGIC", "abc", "NCCL_SOCKET_MAGIC", since=(2, 30, 7)),
    Value("NCCL_RINGS", "0 1", "!NCCL_RINGS"),
    Value("NCCL_SHARED_BUFF_COUNT", "4", "!NCCL_SHARED_BUFF_COUNT"),
    Value("NCCL_COMM_ID", "here", "Invalid NCCL_COMM_ID", True),
    Value("NCCL_NET_PLUGIN", "nosuch", "Using network Socket"),
    Value("NCCL_TUNER_PLUGIN", "nosuch", "!NCCL WARN"),
    Value("NCCL_CONF_FILE", "/none/nccl.conf", "!NCCL WARN"),
    Value("NCCL_DEBUG", "INFOS", "!NCCL INFO"),
    Value("NCCL_DEBUG_FILE", "/none/log.%h", "NCCL INFO"),
    Value("NCCL_DEBUG_SUBSYS", "INIT,NONSUCH", "NCCL_NTHREADS set by environment", since=(2, 30, 7)),  # ENV, by default
    Value("NCCL_DEBUG_SUBSYS", "INIT,NONSUCH", "Init COMPLETE", until=(2, 30)),
    Value("NCCL_RAS_ADDR", "nonsense", "RAS", since=(2, 24, 3)),
    Value("NCCL_THREAD_THRESHOLDS", "1,2,3", "!NCCL WARN"),
    Value("NCCL_LAUNCH_MODE", "BOTH", "!NCCL WARN"),
)
"""A wrong value of each variable of which the table says what it does, where no network device or GPU is needed."""
_OF_VALUES = tuple(
    NcclCase(name, "", env={name.removeprefix("value ").partition("=")[0]: name.partition("=")[2], "RANK_WAITS_S": "8"},
             words=("all_reduce:1000",), world=2, hosts=1 + ("SOCK" in name))
    for name in dict.fromkeys(value.case for value in VALUES)
)  # fmt: skip
_STEPS = ("all_reduce:1000", "all_reduce:3000", "all_gather:500")


def _unread(
    name: str,
    code: str,
    ranks: tuple[int, ...] = (),
    own: str = "",
    words: tuple[str, ...] = _STEPS,
    hosts: int = 1,
    prefix: tuple[str, ...] = (),
    **env: str,
) -> NcclCase:
    """One of those that were invented before the rules of `explain` were read. `own`: NAME=VALUE of its first rank."""
    variable, _, value = own.partition("=")
    return NcclCase(f"20-{name}", code, ranks, words, hosts=hosts, env={"RANK_WAITS_S": "6", **env}, prefix=prefix,
                    per_rank={ranks[0]: {variable: value}} if own else {}, deadline_s=25.0)  # fmt: skip


TWENTY = (
    _unread("buffer-differs", "env-mismatch", (2,), "NCCL_BUFFSIZE=262144", hosts=2, NCCL_PROTO="Simple"),
    _unread("p2p-off-on-one", "env-mismatch", (1,), "NCCL_P2P_DISABLE=1"),
    _unread("cumem-off-on-one", "env-mismatch", (0,), "NCCL_CUMEM_ENABLE=0"),
    _unread("address-space", "", prefix=("prlimit", "--as=3000000000")),
    _unread("other-type", _DESYNC, (2,), NCCL_PROTO="Simple",
            words=("all_reduce:1000", "2!all_reduce:3000:double", "0,1,3!all_reduce:3000")),
    _unread("leaves-early", _DESYNC, (3,), words=("all_reduce:1000", "all_gather:500", "0,1,2!all_reduce:3000"),
            hosts=2),
    _unread("raises-before-init", _CRASH, (2,), words=("2!raise", "init", *_STEPS)),
    _unread("root-killed-in-init", _CRASH, (0,), words=("0!kill-in:1.5", "3!sleep:4", "init", *_STEPS), hosts=2),
    _unread("gpu-lost", "gpu-hw-error", (1,), "FAKE_CUDA_FAULT=999@1"),
    _unread("illegal-address", _CRASH, (2,), "FAKE_CUDA_FAULT=700@2", hosts=2),
    _unread("ecc", "gpu-hw-error", (0,), "FAKE_CUDA_FAULT=214@2"),
    _unread("kernel-hangs", _LATE, (3,), "FAKE_CUDA_FAULT=hang@2"),
    replace(_unread("comm-id-port", "", NCCL_COMM_ID="127.0.0.1:29700"),
            per_rank={2: {"NCCL_COMM_ID": "127.0.0.1:29701"}}),
    _unread("p2p-denied", "gpu-hw-error", FAKE_NVML_P2P="0"),
    _unread("little-memory", "oom", (1,), "FAKE_NVML_MEMORY_MB=530"),
    _unread("family-on-one", "env-mismatch", (3,), "NCCL_SOCKET_FAMILY=AF_INET6", hosts=2),
    _unread("protocol-differs", "env-mismatch", (2,), "NCCL_PROTO=Simple"),
    _unread("no-gpu-on-one", _CRASH, (2,), "CUDA_VISIBLE_DEVICES="),
    _unread("second-without-one", _LATE, (3,), words=("init", "all_reduce:1000", "0,1,2!init", "all_reduce:3000")),
    _unread("gpu-held", _CRASH, (3,), FAKE_NVML_MODE="3", FAKE_NVML_BUSY="3"),
)  # fmt: skip
"""The list was committed before any of it was played, without the codes: reports/nccl-twenty.md says what was done, and
what was said at first sight. Two are no failure: rank.py hands the id over itself, so that NCCL_COMM_ID of one rank
counts for nothing.
"""
NCCL_CASES = (*INTERFACES, *LIVES, *CALLS, *WORLDS, *RELEASES, *MACHINES, *SETTINGS, *PLUGINS, *HEALTHY, *_OF_VALUES,
              *TWENTY)  # fmt: skip
