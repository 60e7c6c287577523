"""What can go wrong that can be made here, with the cause it has by construction."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from ncclprobe.model.values import Struct, field
from tests.lab import Lab, faults

Launcher = Literal["torchrun", "plain", "srun", "mpirun", "library"]
RANKS = 4


class Case(Struct, frozen=True):
    """One job. `code` is its cause, empty: it is healthy; `unknown`: what is recorded does not say it.

    `ranks` are those at fault. `fault` is train.py's word, or the function of libnccl that is called. `per_rank`:
    variables by rank.
    """

    name: str
    code: str
    ranks: tuple[int, ...] = ()
    fault: str = "none"
    launcher: Launcher = "torchrun"
    hosts: int = 1
    env: dict[str, str] = field(default_factory=dict)
    per_rank: dict[int, dict[str, str]] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    around: Callable[[Lab], AbstractContextManager[Any]] = lambda lab: nullcontext()
    leaves_out: tuple[int, ...] = ()
    deadline_s: float = 60.0


@contextmanager
def _stranger(lab: Lab, port: int = 29500) -> Iterator[None]:
    """Something that is not of the job calls the master's port, once it listens."""
    call = (
        "import socket, time\n"
        "for _ in range(600):\n"
        "    try:\n"
        f"        s = socket.create_connection(('127.0.0.1', {port}), 1)\n"
        "        s.sendall(b'GET / HTTP/1.1\\r\\nHost: n0\\r\\n\\r\\n'); s.settimeout(5); s.recv(99); break\n"
        "    except OSError:\n"
        "        time.sleep(0.05)\n"
    )
    job = lab.hosts[0].start([sys.executable, "-c", call])
    try:
        yield
    finally:
        job.kill()


def _loopback_names(lab: Lab) -> AbstractContextManager[Any]:
    """The name of rank 0's host is a loopback address there: torch 2.13 listens on another all the same."""
    return faults.names(lab.hosts[0], "127.0.1.1 n0", *[line for line in lab.names() if not line.endswith(" n0")])


def _peers_blocked(lab: Lab) -> AbstractContextManager[Any]:
    """Every port but the master's."""
    return faults.rules(lab.hosts[0], ["tcp dport != 29500 tcp flags & (fin|syn|rst|ack) == syn drop"], "in")


def _taken(lab: Lab) -> AbstractContextManager[Any]:
    return faults.taken(lab.hosts[0], 29500)


def _filtered(lab: Lab) -> AbstractContextManager[Any]:
    return faults.filtered(lab.hosts[0], port=29500)


_DESYNC = ("other-operation", "other-size", "other-type", "other-order", "skips-one", "one-more")
_CRASH = ("raises", "exits", "killed", "segfault", "host-memory")
_GLOO = {"GLOO_SOCKET_IFNAME": "eth0"}
_SHORT = {"TORCH_STORE_TIMEOUT": "8"}

CASES: tuple[Case, ...] = (
    *(Case(f"desync-{fault}", "collective-desync", (2,), fault, launcher="plain") for fault in _DESYNC),
    Case("desync-ends-early", "collective-desync", (2,), "ends-early"),
    Case("desync-crossed-groups", "collective-desync", (0, 1), "crossed", launcher="plain"),
    Case("desync-torchrun", "collective-desync", (2,), "other-operation"),
    Case("straggler", "timeout-straggler", (2,), "late", launcher="plain"),
    Case("straggler-torchrun", "timeout-straggler", (2,), "late"),
    Case("stopped", "timeout-straggler", (2,), "stopped", launcher="plain"),
    *(Case(f"crash-{fault}", "rank-crashed", (2,), fault) for fault in _CRASH),
    Case("crash-plain", "rank-crashed", (2,), "raises", launcher="plain"),
    Case("crash-killed-plain", "rank-crashed", (2,), "killed", launcher="plain"),
    Case("crash-srun", "rank-crashed", (2,), "raises", launcher="srun", hosts=2),
    Case("crash-mpirun", "rank-crashed", (2,), "killed", launcher="mpirun", hosts=2),
    Case("files-opened", "fd-limit", (2,), "files-opened"),
    Case("master-nobody", "master-unreachable", (), launcher="plain", leaves_out=(0,), env=_SHORT),
    Case("master-wrong-address", "master-unreachable", (), launcher="plain",
         env={"MASTER_ADDR": "10.77.0.99", **_SHORT}),
    Case("master-filtered", "port-blocked", (), launcher="plain", hosts=2, around=_filtered, env=_SHORT),
    Case("master-unresolved", "dns-unresolved", (), launcher="plain",
         env={"MASTER_ADDR": "head.cluster.invalid", **_SHORT}),
    Case("master-port-taken", "addr-in-use", (), launcher="plain", around=_taken, env=_SHORT),
    Case("master-port-taken-torchrun", "addr-in-use", (), around=_taken, env=_SHORT),
    Case("master-port-privileged", "port-privileged", (), launcher="plain", env={"MASTER_PORT": "80", **_SHORT},
         prefix=("setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-net_bind_service", "--inh-caps=-all")),
    Case("world-size", "world-size-mismatch", (3,), launcher="plain", per_rank={3: {"WORLD_SIZE": "5"}}),
    Case("rank-twice", "world-size-mismatch", (3,), launcher="plain", per_rank={3: {"RANK": "2"}}),
    Case("rank-never-came", "world-size-mismatch", (), launcher="plain", leaves_out=(3,), env=_SHORT),
    Case("gloo-iface-missing", "gloo-iface", (), env={"GLOO_SOCKET_IFNAME": "ib0"}),
    Case("gloo-iface-syntax", "gloo-iface", (), env={"GLOO_SOCKET_IFNAME": "^docker0,lo"}),
    Case("gloo-iface-one-rank", "gloo-iface", (2,), launcher="plain", per_rank={2: {"GLOO_SOCKET_IFNAME": "eth7"}}),
    Case("healthy-name-is-loopback", "", launcher="plain", hosts=2, around=_loopback_names),
    Case("peers-blocked", "peer-unreachable", (), launcher="plain", hosts=2, around=_peers_blocked, env=_GLOO),
    Case("stranger", "", launcher="plain", around=_stranger),
    Case("nccl-no-interface", "iface-missing", fault="ncclGetUniqueId", launcher="library",
         env={"NCCL_SOCKET_IFNAME": "ib0"}),
    Case("nccl-no-interface-comm-id", "iface-missing", fault="ncclGetUniqueId", launcher="library",
         env={"NCCL_COMM_ID": "10.99.0.1:29500"}),
    Case("nccl-no-gpu", "cuda-driver-mismatch", fault="ncclCommInitRank", launcher="library"),
    Case("healthy-torchrun", ""),
    Case("healthy-torchrun-2-hosts", "", hosts=2, env=_GLOO),
    Case("healthy-plain", "", launcher="plain"),
    Case("healthy-recorded", "", fault="recorded"),
    Case("healthy-srun", "", launcher="srun", hosts=2, env=_GLOO),
    Case("healthy-mpirun", "", launcher="mpirun", hosts=2, env=_GLOO),
    Case("healthy-cpp-log", "", env={"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    Case("healthy-library", "", fault="ncclGetUniqueId", launcher="library"),
)  # fmt: skip


LIBRARY = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
unique = (ctypes.c_char * 128)()
result = nccl.ncclGetUniqueId(ctypes.byref(unique))
if sys.argv[2] == "ncclCommInitRank" and result == 0:
    class Id(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_char * 128)]
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
    comm = ctypes.c_void_p()
    result = nccl.ncclCommInitRank(ctypes.byref(comm), 1, Id.from_buffer_copy(unique), 0)
nccl.ncclGetErrorString.restype = ctypes.c_char_p
if result:
    print(f"NCCL failure: {nccl.ncclGetErrorString(result).decode()}", file=sys.stderr)
    sys.exit(1)
"""
"""The program that calls libnccl, whose path is its first argument, as far as it goes without a GPU."""
