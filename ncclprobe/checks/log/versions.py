"""Ranks with different settings or versions of NCCL, and libraries that are not those that were built for."""

from collections.abc import Iterator, Mapping

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import IMAGE, JOB, demoted, each, failed
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.nccl_lines import MET_WITH, other_length
from ncclprobe.facts.files.texts import between
from ncclprobe.model.findings import Finding

_SET = (" set by environment to ",)
_EQUAL = frozenset({
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CROSS_NIC", "NCCL_NET",
    "NCCL_IB_DISABLE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_COLLNET_ENABLE",
    "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL",
    "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_MNNVL_ENABLE", "NCCL_PXN_DISABLE",
})  # fmt: skip
"""Both ends of a connection, or all ranks of a communicator, have to have the same value."""

_READ_LATER = frozenset({"NCCL_SHM_DISABLE", "NCCL_NET", "NCCL_IB_DISABLE"})
"""Ranks that do without read these later, or not at all."""
_COMPLETE, _CUDA = "Init COMPLETE", "Cuda failure"
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
    for event in log.having(_COMPLETE):  # by then it has read, and said, all that is set
        for name, values in found.items():
            if event.host and name not in _READ_LATER:
                values.setdefault((event.host, event.pid), ("not set", event))
    return found


_HUNG = "n2:8:9 [0] net_socket.cc:1 NCCL WARN NET/Socket : socket progress error\nn2:8:8 RuntimeError: NCCL error"


@cause(
    code="env-mismatch",
    signs=(*_SET, _DIAGNOSED, _COMPLETE, _CUDA),
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
    or transports wait for messages that the others never send, or get more than they expect.
    Fix: set the variable on all hosts or on none: in mpirun with -x, in sbatch with --export, in Kubernetes in every
    pod; /etc/nccl.conf of single hosts counts as well.
    """
    if not failed(log) and not any(event.level == "WARN" for event in log.having(_CUDA)):
        return
    for event in log.having(_DIAGNOSED):
        yield said(log, event, "NCCL's diagnostics report settings that differ between ranks", **JOB)
    for name, values in _settings(log).items():
        if len({value for value, _ in values.values()}) > 1:
            yield from _differing(log, name, values)


def _differing(log: JobLog, name: str, values: Mapping[Process, tuple[str, LogEvent]]) -> Iterator[Finding]:
    shown = {"not set"}
    for value, event in values.values():
        if value not in shown:
            shown.add(value)
            yield said(log, event, f"{name} is {value} here and something else on other ranks", subject=name, **JOB)


_VERSIONS = (
    "Mismatched NCCL version detected",
    "Mismatched NCCL git versions detected",
    "NCCL version mismatch with remote peer",
)


@cause(
    code="version-mismatch",
    signs=(*_VERSIONS, "NCCL version ", MET_WITH),
    doctor="sync.nccl-version",
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
    if len(log.versions.get("nccl", ())) > 1 and failed_to_meet(log):
        shown: set[str] = set()
        for event in log.having("NCCL version "):
            version = between(event.text, "NCCL version ", "+")
            if version not in shown and version[:1].isdecimal() and "error" not in event.text:
                shown.add(version)
                yield said(log, event, f"NCCL {version} here and another on other ranks", **IMAGE)


def failed_to_meet(log: JobLog) -> bool:
    """Return whether ranks got a structure of another length while they met."""
    return any(other_length(event.text) for event in log.having(MET_WITH))


@cause(
    signs=(MET_WITH, "NCCL version "),
    doctor="sync.nccl-version",
    echoes=("version-mismatch", "nccl-bug-2.19-bootstrap", "foreign-connection"),
    bad=lambda: ["n2:8:8 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 264 bytes instead of 256"],
    good=lambda: ["n1:7:9 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 1347703880 bytes instead of 256"],
)
def structure_of_another_length(log: JobLog) -> Iterator[Finding]:
    """Ranks that meet send each other structures of different lengths.

    Right: Ranks that met sent each other structures of one length.
    Why: they run different builds of NCCL, or they belong to different jobs that use one port.
    Fix: compare the "NCCL version" lines of all ranks, and end ranks left over from an earlier start.
    """
    for event in log.having(MET_WITH):
        if other_length(event.text) and not demoted(event):
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
    doctor="sync.nccl-version",
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
