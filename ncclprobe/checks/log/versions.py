"""Ranks with different settings or versions of NCCL, and faults of one release."""

from collections.abc import Iterator
from typing import NamedTuple

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import CUDA_SIGNS, IMAGE, JOB, demoted, each, failed
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.nccl_lines import MET_WITH, MIXED_UP, is_build_mismatch, other_length
from ncclprobe.logs.outcome import ABORTED, aborted
from ncclprobe.logs.texts import between
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import grouped
from ncclprobe.nccl.parameters import table

_SET = " set by environment to "
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
"""If these differ, a job may end normally with wrong data, and no error (2.23 to 2.30, played over sockets)."""
_BEGUN, _COMPLETE, _CUDA = "Init START", "Init COMPLETE", "Cuda failure"
_DIAGNOSED = "NCCL environment: mismatch across"

Process = tuple[str, int | None]


def _settings(log: JobLog) -> dict[str, dict[Process, tuple[str, LogEvent]]]:
    """Return for each variable the value that each process reports, with the line."""
    found: dict[str, dict[Process, tuple[str, LogEvent]]] = {}
    for event in log.having(_SET):
        name = event.text.partition(" set by")[0].split()[-1] if event.host else ""
        if name in _EQUAL:
            value = between(event.text, _SET).strip().rstrip(".")
            found.setdefault(name, {})[event.host, event.pid] = (value, event)
    for event in log.having(_BEGUN, _COMPLETE):  # by then it has read, and said, all that is set
        complete = _COMPLETE in event.text
        for name, values in found.items():
            if event.host and (name in _READ_FIRST if not complete else name not in _READ_LATER):
                values.setdefault((event.host, event.pid), ("not set", event))
    return found


HUNG = "n2:8:9 [0] net_socket.cc:1 NCCL WARN NET/Socket : socket progress error\nn2:8:8 RuntimeError: NCCL error"


@cause(
    code="env-mismatch",
    signs=(_SET, _DIAGNOSED, _BEGUN, _COMPLETE, _CUDA, ABORTED),
    doctor="sync.env",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to Simple\n"
        f"n2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to LL\n{HUNG}"
    ],
    good=lambda: [
        f"n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
        f"n2:8:8 [0] NCCL INFO NCCL_PROTO set by environment to ll\n{HUNG}"
    ],
)
def settings_differ(log: JobLog) -> Iterator[Finding]:
    """Ranks have different NCCL settings.

    Right: All ranks report the same value for every setting that must be equal.
    Why: each rank computes on its own how to divide a collective. Ranks with different algorithms, protocols, buffers
    or transports wait for messages that the others never send, or get more data than they expect. If NCCL_BUFFSIZE
    differs, they may get wrong data without an error.
    Fix: set the variable on all hosts or on none, with -x in mpirun, --export in sbatch, or in every pod in Kubernetes.
    Also compare /etc/nccl.conf on the hosts.
    """
    wrong = failed(log) or aborted(log) or any(event.level == "WARN" for event in log.having(_CUDA))
    for event in log.having(_DIAGNOSED) if wrong else ():
        yield said(log, event, "NCCL's diagnostics report settings that differ between ranks", **JOB)
    for name, values in _settings(log).items():
        any_case = table()[name].any_case
        each_value = ((value.lower() if any_case else value, (value, event)) for value, event in values.values())
        by_value = grouped(each_value) if wrong or name in _SPOILING else {}
        for (value, event), *_ in by_value.values() if len(by_value) > 1 else ():
            if value != "not set":
                message = f"{name} is {value} on this rank but different on others"
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
    """Ranks run different NCCL versions.

    Right: All ranks run the same NCCL version.
    Why: while ranks join, they exchange structures whose length depends on the NCCL release, so a different release
    misreads them.
    Fix: use the same image on all hosts. `ncclprobe doctor` on each host reads the version from the library that a job
    would load (torch reports only the version that it was compiled with). Look for another libnccl.so.2 in
    LD_LIBRARY_PATH.
    """
    yield from each(log, _VERSIONS, "ranks run different NCCL versions", **IMAGE)
    if len(log.versions.get("nccl", ())) > 1 and (failed_to_meet(log) or _shares_communicator(log)):
        named = (e for e in log.having(_VERSION) if "error" not in e.text)
        for version, (event, *_) in grouped((between(e.text, _VERSION, "+"), e) for e in named).items():
            if version[:1].isdecimal():
                yield said(log, event, f"this rank runs NCCL {version}, but others run another version", **IMAGE)


def failed_to_meet(log: JobLog) -> bool:
    """Return whether ranks got another release's structure, or another message, while they met."""
    return any(is_build_mismatch(event.text) for event in log.having(*MIXED_UP))


def _shares_communicator(log: JobLog) -> bool:
    """Return whether processes with different versions began one communicator, which never works."""
    said_by = {(event.host, event.pid): between(event.text, _VERSION, "+") for event in log.having(_VERSION)}
    began: dict[str, set[str]] = {}
    for event in log.having("Init START"):
        if (version := said_by.get((event.host, event.pid))) and (name := between(event.text, "commId ", " ")):
            began.setdefault(name, set()).add(version)
    return any(len(versions) > 1 for versions in began.values())


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
    """The NCCL found at run time differs from the one that the program was built for.

    Right: The NCCL found at run time is the one that the program was built for.
    Why: the loader uses the first libnccl.so.2 in LD_LIBRARY_PATH, the program's run path and ld.so.cache. An older
    system library lacks functions that a newer torch calls.
    Fix: run `ldd $(python -c 'import torch; print(torch.__path__[0])')/lib/libtorch_cuda.so | grep nccl`. Remove the
    other folder from LD_LIBRARY_PATH, or install the nvidia-nccl wheel that torch requires.
    """
    for event in log.having(*_TOO_OLD, *_LOADER):
        if "/Plugin" not in event.text and not demoted(event):
            yield said(
                log, event, "the NCCL found at run time differs from the one that the program was built for", **IMAGE
            )


_VERSION = "NCCL version "


def _release(log: JobLog) -> tuple[int, int, int] | None:
    """Return the only NCCL version of a job; None: none or several are named."""
    versions = log.versions.get("nccl", ())
    parts = versions[0].split(".") if len(versions) == 1 else []
    return (int(parts[0]), int(parts[1]), int(parts[2])) if len(parts) == 3 else None


def _has_version_between(log: JobLog, first: tuple[int, int, int], fixed: tuple[int, int, int]) -> bool:
    """Return whether the job's NCCL is `first` or newer, and older than the release that has the mend."""
    release = _release(log)
    return release is not None and first <= release < fixed


class _Bug(NamedTuple):
    """A fault of the releases from `first` on and before `fixed`; `says` are texts of its lines, `places` of files."""

    code: str
    first: tuple[int, int, int]
    fixed: tuple[int, int, int]
    says: tuple[str, ...]
    message: str
    remedy: str
    places: tuple[str, ...] = ()


_BUGS = (
    _Bug(
        "nccl-bug-2.19-bootstrap", (2, 19, 0), (2, 21, 5), (MET_WITH,),
        "NCCL 2.19 and 2.20 can mix up messages while ranks connect",
        "use NCCL 2.21.5 or newer (`pip install nvidia-nccl-cu12==2.21.5`), the same on all hosts",
    ),
    _Bug(
        "nccl-bug-2.25-sm120", (2, 24, 0), (2, 26, 2), ("ncclMaxSharedMem",),
        "NCCL 2.25 requests more shared memory than a GPU of compute capability 12 has",
        "use NCCL 2.26.2 or newer (`pip install -U nvidia-nccl-cu12`)",
    ),
    _Bug(
        "nccl-bug-2.27-cumem-host", (2, 24, 0), (2, 29, 0), ("invalid argument", "not permitted", "not supported'"),
        "CUDA does not let ranks share host memory, for example in a container that forbids NUMA calls",
        "set NCCL_CUMEM_HOST_ENABLE=0 on all ranks. Or start the container with `--cap-add SYS_NICE` and a "
            "seccomp profile that allows get_mempolicy and mbind",
        ("transport/shm.cc", "include/alloc.h", "allocator.cc"),
    ),
)  # fmt: skip
"""Release notes of 2.21.5, 2.26.2 and 2.29 name what they mend."""


@cause(
    code="nccl-bug-2.19-bootstrap",
    signs=(MET_WITH, "ncclMaxSharedMem", _VERSION, *CUDA_SIGNS),
    doctor="host.shm",
    echoes=("env-mismatch",),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.19.3+cuda12.3\n"
        "n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 3072 bytes instead of 256"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
        "n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 3072 bytes instead of 256"
    ],
)
def known_bugs(log: JobLog) -> Iterator[Finding]:
    """The job hit a known bug in this NCCL release.

    Right: No job hit a known bug in its release.
    Why: NCCL 2.19 and 2.20 can mix up messages on slow networks while ranks connect. NCCL 2.25 requests more shared
    memory than GPUs of compute capability 12 have. NCCL 2.24 to 2.28 share host memory through CUDA even if a container
    forbids it.
    Fix: use the release, or the setting, that the finding names.
    """
    for bug in _BUGS:
        for event in log.having(*bug.says) if _has_version_between(log, bug.first, bug.fixed) else ():
            of_cuda = any(sign in event.text for sign in CUDA_SIGNS) and "OS call" not in event.text
            of_place = not bug.places or (of_cuda and event.place.startswith(bug.places) and not demoted(event))
            met = MET_WITH not in bug.says or (other_length(event.text) and not demoted(event))
            if of_place and met:
                yield said(log, event, bug.message, codes=(bug.code,), remedy=bug.remedy, **IMAGE)
