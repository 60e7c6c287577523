"""Ranks with different settings or versions of NCCL, and faults of one release."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import CUDA_SIGNS, IMAGE, JOB, cuda_errors, demoted, each, failed
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.nccl_lines import MET_WITH, MIXED_UP, of_another_build, other_length
from ncclprobe.logs.outcome import ABORTED, aborted
from ncclprobe.logs.texts import between
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import grouped

_SET = (" set by environment to ",)
_EQUAL = frozenset({
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CROSS_NIC", "NCCL_NET",
    "NCCL_IB_DISABLE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_COLLNET_ENABLE",
    "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL",
    "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_MNNVL_ENABLE", "NCCL_PXN_DISABLE",
    "NCCL_SOCKET_FAMILY",
})  # fmt: skip
"""Both ends of a connection, or all ranks of a communicator, have to have the same value."""

_READ_LATER = frozenset({"NCCL_SHM_DISABLE", "NCCL_NET", "NCCL_IB_DISABLE"})
"""Ranks that do without read these later, or not at all."""
_READ_FIRST = frozenset({"NCCL_SOCKET_FAMILY", "NCCL_CUMEM_ENABLE"})
"""Ranks that do without read these at the latest when they begin a communicator."""
_SPOILING = frozenset({"NCCL_BUFFSIZE"})
"""Where these differ a job may come to its end with wrong data, and no error (2.23 to 2.30, played over sockets)."""
_BEGUN, _COMPLETE, _CUDA = "Init START", "Init COMPLETE", "Cuda failure"
_DIAGNOSED = "NCCL environment: mismatch across"

Process = tuple[str, int | None]


def _settings(log: JobLog) -> dict[str, dict[Process, tuple[str, LogEvent]]]:
    """Return of each variable what each process says that it is set to, with the line."""
    found: dict[str, dict[Process, tuple[str, LogEvent]]] = {}
    for event in log.having(*_SET):
        name = event.text.partition(" set by")[0].split()[-1] if event.host else ""
        if name in _EQUAL:
            value = between(event.text, _SET[0]).strip().rstrip(".")
            found.setdefault(name, {})[event.host, event.pid] = (value, event)
    for event in log.having(_BEGUN, _COMPLETE):  # by then it has read, and said, all that is set
        complete = _COMPLETE in event.text
        for name, values in found.items():
            if event.host and (name in _READ_FIRST if not complete else name not in _READ_LATER):
                values.setdefault((event.host, event.pid), ("not set", event))
    return found


_HUNG = "n2:8:9 [0] net_socket.cc:1 NCCL WARN NET/Socket : socket progress error\nn2:8:8 RuntimeError: NCCL error"


@cause(
    code="env-mismatch",
    signs=(*_SET, _DIAGNOSED, _BEGUN, _COMPLETE, _CUDA, ABORTED),
    doctor="sync.env",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to Simple\n"
        f"n2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to LL\n{_HUNG}"
    ],
    good=lambda: [
        f"n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
        f"n2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to LL\n{_HUNG}"
    ],
)
def settings_differ(log: JobLog) -> Iterator[Finding]:
    """Ranks run with different NCCL settings.

    Right: All ranks say the same of every setting that has to be equal.
    Why: each rank computes by itself how a collective is divided; ranks with different algorithms, protocols, buffers
    or transports wait for messages that the others never send, or get more than they expect. With another NCCL_BUFFSIZE
    they may end with wrong data and no error.
    Fix: set the variable on all hosts or on none: in mpirun with -x, in sbatch with --export, in Kubernetes in every
    pod; /etc/nccl.conf of single hosts counts as well.
    """
    wrong = failed(log) or aborted(log) or any(event.level == "WARN" for event in log.having(_CUDA))
    for event in log.having(_DIAGNOSED) if wrong else ():
        yield said(log, event, "NCCL's diagnostics report settings that differ between ranks", **JOB)
    for name, values in _settings(log).items():
        by_value = grouped(values.values()) if wrong or name in _SPOILING else {}
        for value, (event, *_) in by_value.items() if len(by_value) > 1 else ():
            if value != "not set":
                message = f"{name} is {value} here and something else on other ranks"
                yield said(log, event, message, subject=name, **JOB)


_VERSIONS = (
    "Mismatched NCCL version detected",
    "Mismatched NCCL git versions detected",
    "NCCL version mismatch with remote peer",
)


@cause(
    code="version-mismatch",
    signs=(*_VERSIONS, "NCCL version ", *MIXED_UP, "Init START"),
    doctor="sync.versions",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.18.3+cuda12.2\nn2:8:8 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
        "n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 264 bytes instead of 256"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.18.3+cuda12.2\nn2:8:8 [0] NCCL INFO NCCL version 2.21.5+cuda12.4"
    ],
)
def nccl_versions_differ(log: JobLog) -> Iterator[Finding]:
    """Ranks run different versions of NCCL.

    Right: All ranks run the same version of NCCL.
    Why: what ranks send each other while they meet are structures of one release; another release reads them with
    another length.
    Fix: one image on all hosts; `ncclprobe doctor` on each says which version a job loads, from the file itself (torch
    tells what it was compiled with); look for another libnccl.so.2 in LD_LIBRARY_PATH.
    """
    yield from each(log, _VERSIONS, "ranks run different versions of NCCL", **IMAGE)
    if len(log.versions.get("nccl", ())) > 1 and (failed_to_meet(log) or _in_one_communicator(log)):
        named = (e for e in log.having(_VERSION) if "error" not in e.text)
        for version, (event, *_) in grouped((between(e.text, _VERSION, "+"), e) for e in named).items():
            if version[:1].isdecimal():
                yield said(log, event, f"NCCL {version} here and another on other ranks", **IMAGE)


def failed_to_meet(log: JobLog) -> bool:
    """Return whether ranks got another release's structure, or another message, while they met."""
    return any(of_another_build(event.text) for event in log.having(*MIXED_UP))


def _in_one_communicator(log: JobLog) -> bool:
    """Return whether processes with different versions began one communicator, which never works."""
    said_by = {(event.host, event.pid): between(event.text, _VERSION, "+") for event in log.having(_VERSION)}
    began: dict[str, set[str]] = {}
    for event in log.having("Init START"):
        if (version := said_by.get((event.host, event.pid))) and (name := between(event.text, "commId ", " ")):
            began.setdefault(name, set()).add(version)
    return any(len(versions) > 1 for versions in began.values())


@cause(
    signs=(*MIXED_UP, "NCCL version "),
    doctor="sync.versions",
    echoes=("version-mismatch", "nccl-bug-2.19-bootstrap", "foreign-connection"),
    bad=lambda: ["n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 264 bytes instead of 256"],
    good=lambda: ["n1:7:9 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 1347703880 bytes instead of 256"],
)
def structure_of_another_length(log: JobLog) -> Iterator[Finding]:
    """Ranks that meet send each other structures of different builds.

    Right: Ranks that met sent each other structures of one build.
    Why: they run different builds of NCCL, or they belong to different jobs that use one port.
    Fix: compare the "NCCL version" lines of all ranks, and end ranks left over from an earlier start.
    """
    for event in log.having(*MIXED_UP):
        if of_another_build(event.text) and not demoted(event):
            codes = ("version-mismatch", "world-size-mismatch", "nccl-lib-mismatch")
            yield said(log, event, "ranks that meet are of different builds or jobs", codes=codes, **IMAGE)


_TOO_OLD = (
    "NCCL library is too old",
    "NCCL library version is too old",
    "NCCL library is not backwards compatible",
    "compiled with too old version of NCCL",
)
_LOADER = ("undefined symbol: nccl", "libnccl.so.2: cannot open", "libnccl.so: cannot open", "libnccl.so.2: undefined")


@cause(
    code="nccl-lib-mismatch",
    signs=(*_TOO_OLD, *_LOADER),
    doctor="sync.versions",
    bad=lambda: [
        "ImportError: /opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: "
        "ncclCommRegister"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO NET/Plugin: libnccl-net.so: undefined symbol: ncclNetPlugin_v8"],
)
def another_library(log: JobLog) -> Iterator[Finding]:
    """The NCCL that is found at run time is not the one that the program was built for.

    Right: The NCCL that was found is the one that the program was built for.
    Why: the loader takes the first libnccl.so.2 of LD_LIBRARY_PATH, the program's run path and ld.so.cache; an older
    one of the system lacks functions that a newer torch calls.
    Fix: `ldd $(python -c 'import torch; print(torch.__path__[0])')/lib/libtorch_cuda.so | grep nccl`; take the other
    folder out of LD_LIBRARY_PATH, or install the nvidia-nccl wheel that torch asks for.
    """
    for event in log.having(*_TOO_OLD, *_LOADER):
        if "/Plugin" not in event.text and not demoted(event):
            yield said(log, event, "another NCCL is found than the program was built for", **IMAGE)


_VERSION = "NCCL version "


def _release(log: JobLog) -> tuple[int, int, int] | None:
    """Return the only NCCL version of a job; None: none or several are named."""
    versions = log.versions.get("nccl", ())
    parts = versions[0].split(".") if len(versions) == 1 else []
    return (int(parts[0]), int(parts[1]), int(parts[2])) if len(parts) == 3 else None


def _between(log: JobLog, first: tuple[int, int, int], fixed: tuple[int, int, int]) -> bool:
    """Return whether the job's NCCL is `first` or newer, and older than the release that has the mend."""
    release = _release(log)
    return release is not None and first <= release < fixed


_REVERSE = ("Failed to find reverse path from remNode",)


@cause(
    code="nccl-bug-2.5-multi-nic",
    signs=(*_REVERSE, _VERSION),
    bad=lambda: [
        "NCCL version 2.5.6+cuda10.1\n"
        "n1:7:7 [0] graph/paths.cc:60 NCCL WARN Failed to find reverse path from remNode id 1 type 4 nlinks 2 to node "
        "id 0 type 2"
    ],
    good=lambda: [
        "NCCL version 2.8.4+cuda11.0\n"
        "n1:7:7 [0] graph/paths.cc:60 NCCL WARN Failed to find reverse path from remNode 1/2 nlinks 2 to node 0/1"
    ],
)
def several_nics_of_2_5(log: JobLog) -> Iterator[Finding]:
    """NCCL 2.5 fails on a machine with several NICs.

    Right: No job met the fault of NCCL 2.5 with several NICs.
    Why: the first release with a graph of the machine loses the way back from a NIC where several are attached
    (src/graph/paths.cc of 2.5); 2.6 builds the graph anew.
    Fix: use NCCL 2.6 or newer; to go on, NCCL_IB_HCA with one NIC.
    """
    for event in log.having(*_REVERSE) if _between(log, (2, 5, 0), (2, 6, 0)) else ():
        yield said(log, event, "a fault of NCCL 2.5 with several NICs", **IMAGE)


@cause(
    code="nccl-bug-2.19-bootstrap",
    signs=(MET_WITH, _VERSION),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.19.3+cuda12.3\n"
        "n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 3072 bytes instead of 256"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
        "n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 3072 bytes instead of 256"
    ],
)
def reordered_bootstrap_of_2_19(log: JobLog) -> Iterator[Finding]:
    """NCCL 2.19 and 2.20 can mix up messages while ranks connect.

    Right: No job met the fault of NCCL 2.19's bootstrap.
    Why: the exchange of connections and the barrier after it used one tag, so that a rank could take the one for the
    other on a slow network; 2.21.5's release notes name the fix ("packet reordering issue causing bootstrap mismatch").
    Fix: use NCCL 2.21.5 or newer (`pip install nvidia-nccl-cu12==2.21.5`), the same on all hosts.
    """
    for event in log.having(MET_WITH) if _between(log, (2, 19, 0), (2, 21, 5)) else ():
        if other_length(event.text) and not demoted(event):
            yield said(log, event, "a fault of NCCL 2.19 and 2.20 while ranks connect", **IMAGE)


_SPEED = ("KV Convert to int : could not find value of 'Unknown",)


@cause(
    code="nccl-bug-2.19-linkspeed",
    signs=(*_SPEED, _VERSION),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.19.3+cuda12.3\n"
        "n1:7:7 [0] NCCL INFO KV Convert to int : could not find value of 'Unknown speed' in dictionary, falling back "
        "to 60\nn1:7:7 [0] init.cc:1 NCCL WARN Watchdog caught\nRuntimeError: NCCL error: internal error"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.19.3+cuda12.3\n"
        "n1:7:7 [0] NCCL INFO KV Convert to int : could not find value of 'Unknown speed' in dictionary, falling back "
        "to 60\n"
    ],
)
def unknown_link_speed_of_2_19(log: JobLog) -> Iterator[Finding]:
    """NCCL 2.19 lays out ranks differently where PCIe speeds are unknown.

    Right: No job met the fault of NCCL 2.19 with unknown PCIe speeds.
    Why: where /sys gives no speed (virtual machines, some bridges), releases to 2.19.3 read an uninitialised number, so
    that ranks may find different topologies and wait for each other; 2.19.4's release notes name the fix.
    Fix: use NCCL 2.19.4 or newer; else NCCL_TOPO_FILE with speeds written in.
    """
    if _between(log, (2, 18, 0), (2, 19, 4)) and failed(log):
        for event in log.having(*_SPEED):
            codes = ("nccl-bug-2.19-linkspeed", "vm-topology")
            yield said(log, event, "PCIe speeds are unknown, which NCCL to 2.19.3 reads wrongly", codes=codes, **IMAGE)
            return


_SHARED = ("ncclMaxSharedMem",)


@cause(
    code="nccl-bug-2.25-sm120",
    signs=(*_SHARED, _VERSION, *CUDA_SIGNS),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.25.1+cuda12.8\n"
        "n1:7:7 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n"
        "n1:7:7 [0] enqueue.cc:1457 NCCL WARN Cuda failure 1 'invalid argument'"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.27.3+cuda12.8\n"
        "n1:7:7 [0] enqueue.cc:1457 NCCL WARN cudaArch 1200 ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856"
    ],
)
def shared_memory_of_sm120(log: JobLog) -> Iterator[Finding]:
    """NCCL 2.25 asks for more shared memory than a Blackwell GPU of compute capability 12 has.

    Right: No job met the fault of NCCL 2.25 on compute capability 12.
    Why: 2.25.1 notes that its kernels want more shared memory than the device gives, goes on, and every launch fails;
    2.26.2's release notes name the fix ("shared memory usage on recent Blackwell GPUs").
    Fix: use NCCL 2.26.2 or newer (`pip install -U nvidia-nccl-cu12`).
    """
    for event in log.having(*_SHARED) if _between(log, (2, 24, 0), (2, 26, 2)) else ():
        yield said(log, event, "NCCL 2.25 wants more shared memory than this GPU has", **IMAGE)


_FALLS_BACK = ("cuMem host allocations do not appear to be working",)


@cause(
    code="nccl-bug-2.26-cumem-asymmetric",
    signs=(*_FALLS_BACK, _VERSION, "Init START"),
    doctor="host.shm",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.26.5+cuda12.9\n"
        "n1:7:7 [0] NCCL INFO cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based "
        "implementation.\n"
        "n1:7:7 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 7 commId 0x9 - Init "
        "START\n"
        "n1:8:8 [1] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 8 commId 0x9 - Init "
        "START\nRuntimeError: NCCL error: internal error"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.26.5+cuda12.9\n"
        "n1:7:7 [0] NCCL INFO cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based "
        "implementation.\n"
        "n1:7:7 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 7 commId 0x9 - Init "
        "START\nRuntimeError: NCCL error: internal error"
    ],
)
def host_memory_differs_between_ranks(log: JobLog) -> Iterator[Finding]:
    """Ranks of one host share memory in different ways.

    Right: All ranks of a host share memory in the same way.
    Why: from 2.26.3 on each rank tries by itself whether CUDA can allocate shared host memory, and falls back to
    /dev/shm alone; a rank whose NUMA node is closed to it then expects what its neighbour does not make.
    Fix: NCCL_CUMEM_HOST_ENABLE=0 on all ranks; or let the container use NUMA (`--cap-add SYS_NICE`).
    """
    if not (_between(log, (2, 24, 0), (2, 28, 0)) and failed(log)):
        return
    fell = {(event.host, event.pid) for event in log.having(*_FALLS_BACK)}
    began = {(event.host, event.pid) for event in log.having("Init START")}
    if began - fell and {host for host, _ in fell} & {host for host, _ in began - fell}:
        for event in log.having(*_FALLS_BACK):
            yield said(log, event, "only some ranks of this host share memory by CUDA", **IMAGE)


@cause(
    code="nccl-bug-2.27-cumem-host",
    signs=(*CUDA_SIGNS, _VERSION),
    doctor="host.shm",
    echoes=("env-mismatch",),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.27.3+cuda12.8\n"
        "n1:7:7 [0] transport/shm.cc:590 NCCL WARN Cuda failure 1 'invalid argument'"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
        "n1:7:7 [0] transport/shm.cc:590 NCCL WARN Cuda failure 1 'invalid argument'"
    ],
)
def shared_host_memory_by_cuda(log: JobLog) -> Iterator[Finding]:
    """NCCL shares host memory by CUDA where the container does not let it.

    Right: No job met the fault of shared host memory by CUDA.
    Why: with CUDA 12.6 and newer, NCCL from 2.24 on shares memory between ranks by CUDA's host allocations, which need
    NUMA calls that many containers forbid; the test that 2.26.3 brought does not find every case.
    Fix: NCCL_CUMEM_HOST_ENABLE=0 on all ranks; or `--cap-add SYS_NICE` and a seccomp profile that allows
    get_mempolicy and mbind.
    """
    if not _between(log, (2, 24, 0), (2, 29, 0)):
        return
    for event in cuda_errors(log, "invalid argument", "not permitted", "not supported'"):
        if (
            event.place.startswith(("transport/shm.cc", "include/alloc.h", "allocator.cc"))
            and "OS call" not in event.text
        ):
            yield said(log, event, "CUDA refuses host memory that ranks are to share", **IMAGE)
