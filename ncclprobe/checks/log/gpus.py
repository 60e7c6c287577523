"""GPUs and the driver: faults, two ranks on one GPU, what DCGM and nvidia-smi say, drivers that do not fit.

Sources for what tools say: dcgmlib/dcgm_errors.h of NVIDIA's DCGM (the texts of `dcgmi diag` and `dcgmi health`);
`nvidia-smi -q`; NCCL 2.31's documentation ("Diagnostics") and src/ras/diagnostics_xid.cc, whose lines begin with
"NCCL DIAG".
"""

import re
from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import (
    CUDA_SIGNS,
    IMAGE,
    JOB,
    NODE,
    UNPROVEN,
    blame_hosts,
    cuda_errors,
    demoted,
    each,
    informed,
    kernel_line_ranks,
    preceding,
)
from ncclprobe.facts.kernel_log import HARMLESS_XIDS, LINK_XIDS
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.nccl_lines import used
from ncclprobe.logs.texts import between, number
from ncclprobe.logs.torch_lines import ranks_in
from ncclprobe.model.findings import Finding, Severity

_FAULTS = (
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error",
    "hardware stack error",
    "Invalid access of peer GPU memory over nvlink",
    "GPU is lost",
    "Unable to determine the device handle for GPU",
    "Unable to determine the device handle for gpu",
)
_NONE = "No devices were found"
_KERNEL = ("NVRM: Xid", "SXid", "fallen off the bus", "GPU has fallen off", "RmInitAdapter failed")
_NAMED_BEFORE, _OF_ONE_MESSAGE = "NVRM: The NVIDIA GPU ", 3
"""A message of the driver in several lines, which names the GPU in its first (kernel-open/nvidia/nv-pci.c)."""
_BUS_FATAL = ("Uncorrected (Fatal)", "Uncorrectable (Fatal)")
_LIVED_WITH = ("Non-fatal", "Nonfatal", "No user action")
_DIAGNOSED = ("ECC: uncorrected volatile errors on rank(s)", "NVLink: inactive link(s) on rank(s)")
_LINK = {
    **NODE,
    "remedy": "`nvidia-smi nvlink -e` names the link with growing errors. Drain the host, and reset the GPUs at both "
    "ends of the link (all GPUs of the host if it has NVSwitches). If the error returns, reseat or replace the "
    "bridge, baseboard or GPU.",
}
"""NVIDIA's GPU debug guidelines, Xid 74: a link has two ends, and its connection is examined before a GPU is replaced.
"""
_OF_SWITCH = re.compile(r"SXid \(PCI:([0-9A-Fa-f:.]{4,20})\): {0,2}(\d{1,6})")
_SWITCH = {
    **NODE,
    "remedy": "drain this host and restart it, because a reset of the GPUs does not reset the NVSwitches. If the "
    "error returns, have the baseboard repaired. `nvidia-smi nvlink -e` and the fabric manager's log name the link",
}
"""NVIDIA's fabric manager guide: a fatal SXid needs all GPUs and NVSwitches of the host to be reset."""


@cause(
    code="gpu-hw-error",
    signs=(*_FAULTS, *_KERNEL, *_DIAGNOSED, *_BUS_FATAL, _NAMED_BEFORE, _NONE),
    doctor="gpu.errors",
    bad=lambda: ["[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"],
    good=lambda: ["[ 812.1] NVRM: Xid (PCI:0000:5e:00): 43, pid=9, Ch 00000010"],
)
def gpu_failed(log: JobLog) -> Iterator[Finding]:
    """A GPU, its memory or an NVLink failed.

    Right: No line reports that a GPU, its memory or an NVLink failed.
    Why: after an uncorrected ECC error, an NVLink error or the loss of a GPU from the bus, the GPU's process cannot
    continue, and the others wait for it. A restart on the same GPU fails again.
    Fix: check `nvidia-smi -q -d ECC,ROW_REMAPPER` and the kernel log on this host. Drain it and reset the GPU
    (`nvidia-smi --gpu-reset`). If the error returns, have the GPU repaired.
    """
    for event in log.having(*_FAULTS):
        if not demoted(event):
            yield said(log, event, "a GPU reports a hardware fault", **NODE)
    for event in log.having(_NONE):
        if event.text.strip() == _NONE:
            yield said(log, event, "nvidia-smi finds no GPU", **NODE)
    for event in log.having(*_KERNEL):
        xid = _xid(event)
        if any(text in event.text for text in _LIVED_WITH) or xid in HARMLESS_XIDS:
            continue
        if switch := _OF_SWITCH.search(event.text[:512]):
            what = f"NVSwitch {switch[1]} reports SXid {switch[2]}, so NVLink between GPUs of this host fails"
            yield said(log, event, what, **_SWITCH)
            continue
        whose = _LINK if xid in LINK_XIDS else NODE
        gpu = _gpu(log, event)
        what = f"Xid {xid}{f' of {gpu}' if gpu else ''}" if xid else f"a failure of {gpu or 'a GPU or NVSwitch'}"
        yield said(log, event, f"the driver reports {what}", ranks=kernel_line_ranks(log, event), **whose)
    gpus = {bus for event in log.having(*_BUS_FATAL, *_KERNEL) if (bus := _gpus_bus(event))}
    for event in log.having(*_BUS_FATAL):
        if any(bus in event.text for bus in gpus):
            yield said(log, event, "PCIe lost the connection to a GPU", **NODE)
    for event in log.having(*_DIAGNOSED):
        ranks = ranks_in(between(event.text, "on rank(s) ", " ("))
        yield said(log, event, "NCCL's diagnostics report a fault in a GPU or NVLink", peers=ranks, **NODE)


def _gpu(log: JobLog, event: LogEvent) -> str:
    """Return ``GPU 0000:5e:00`` that the driver names in a line, or in the first of its message; empty: none."""
    before = [each.text for each in preceding(log, event, _OF_ONE_MESSAGE) if each.host == event.host]
    places = [(event.text, "(PCI:", ")"), (event.text, "NVRM: GPU ", ": ")]
    places += [(text, _NAMED_BEFORE, " ") for text in (event.text, *reversed(before))]
    found = next((bus for text, start, end in places if (bus := between(text, start, end).strip())), "")
    return f"GPU {found}" if found.count(":") >= 2 else ""


def _gpus_bus(event: LogEvent) -> str:
    """Return the PCI bus of the GPU that the driver speaks of, such as ``0000:5e:``; empty: it names none."""
    of_driver = between(event.text, "nvidia ", " ") or between(event.text, "(PCI:", ")")
    return of_driver[: of_driver.rfind(":") + 1]


def _xid(event: LogEvent) -> str:
    """Return the number of ``NVRM: Xid (PCI:0000:5e:00): 79, …``, or of the Xid that caused it; empty: none."""
    cause = number(between(event.text, "caused by previous Xid "))
    found = number(between(between(event.text, "NVRM: Xid (", ""), "): ")) if cause is None else cause
    return str(found) if found is not None else ""


_USING = ("Bootstrap : Using", "Bootstrap: Using")
_SAME_GPU = (
    "Duplicate GPU detected",
    "Multiple Ranks are using the same GPU",
    "Multiple ranks detected using the same GPU",
)


_REFUSED = "invalid usage (run with"
"""What NCCL returns for it; releases that allow it say Init COMPLETE."""
_BUSY = ("all CUDA-capable devices are busy or unavailable", "CUDA-capable device(s) is/are busy or unavailable")
"""Up to CUDA 11, and since (tests/data/refused_starts.jsonl.gz)."""


_MIG = ("MIG-", "MIG device", "MIG mode")
_WHOLE = "turn MIG off on this host (`nvidia-smi -mig 0`), or give each rank an instance of another GPU"
_IDENTITY = (
    "unset NCCL_HOSTID, or give every host its own. Also compare `cat /proc/sys/kernel/random/boot_id` "
    "and `hostname` on the hosts"
)


def _one_bus_id(log: JobLog) -> Iterator[tuple[LogEvent, tuple[int, ...]]]:
    """Yield the first line and the ranks of each communicator all of whose ranks on a host open the same GPU."""
    of_host: dict[tuple[str, str], list[LogEvent]] = {}
    for event in log.having("Init START"):
        if event.host and event.rank is not None and " busId " in event.text:
            of_host.setdefault((event.host, between(event.text, "commId ", " ")), []).append(event)
    for events in of_host.values():
        ranks = tuple(sorted({event.rank for event in events if event.rank is not None}))
        if len(ranks) > 1 and len({between(event.text, "busId ", " ") for event in events}) == 1:
            yield events[0], ranks


def _machines_of(log: JobLog, ranks: tuple[int, ...]) -> set[str]:
    """Return the names of these ranks' hosts; if they share one, as `localhost`, their addresses if these differ."""
    names = {log.ranks[rank].host for rank in ranks if rank in log.ranks} - {""}
    own = [_addresses_of(log, rank) for rank in ranks]
    if len(names) > 1 or len(own) < 2 or not all(own) or set.intersection(*own):
        return names
    return set.union(*own)


def _addresses_of(log: JobLog, rank: int) -> set[str]:
    return {each.address for event in log.having(*_USING) if event.rank == rank for each in used(event.text)}


@cause(
    code="duplicate-gpu",
    signs=(*_SAME_GPU, *_MIG, *_BUSY, *_USING, "Init START", _REFUSED),
    doctor="launch.ranks",
    bad=lambda: [
        "n1:7:7 [0] init.cc:900 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO Multiple ranks on the same GPU detected and allowed. Disabling NVLS."],
)
def two_ranks_on_one_gpu(log: JobLog) -> Iterator[Finding]:
    """Two ranks use one GPU, or NCCL believes that they do.

    Right: Every rank has its own GPU.
    Why: each rank must choose its GPU by its local rank. Otherwise all ranks get the first visible GPU, and NCCL
    refuses two ranks on one GPU (src/init.cc). MIG instances on one GPU share a bus id. NCCL treats hosts as one if
    they share an NCCL_HOSTID, or a name and boot id, as cloned machines do.
    Fix: call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the process group is created, and start no
    more ranks per host than it has GPUs (--nproc-per-node).
    """
    mig = any(True for _ in log.having(*_MIG))
    for event in log.having(*_SAME_GPU):
        if not demoted(event):
            yield _sharing(log, event, mig=mig)
    refused = any(log.having(_REFUSED)) and not any(rank.init_complete for rank in log.ranks.values())
    for event, ranks in _one_bus_id(log) if refused and not mig and not any(log.having(*_SAME_GPU)) else ():
        words = f"ranks {', '.join(map(str, ranks))} opened one GPU, {between(event.text, 'busId ', ' ')}"
        yield said(log, event, words, ranks=ranks, peers=ranks, **JOB)
    held = "a GPU is held by another process, in exclusive mode, or does not initialise"
    yield from each(log, _BUSY, held, codes=("duplicate-gpu", "gpu-hw-error"), **UNPROVEN)


def _sharing(log: JobLog, event: LogEvent, *, mig: bool) -> Finding:
    """Return why two ranks seem to share a GPU: its instances, machines with one identity, or the ranks themselves."""
    first, second = number(between(event.text, ": rank ")), number(between(event.text, "and rank "))
    ranks = tuple(rank for rank in (first, second) if rank is not None)
    machines = _machines_of(log, ranks)
    words = " and ".join(f"rank {rank}" for rank in ranks) or "two ranks"
    found = said(log, event, f"{words} use the same GPU", peers=ranks, **JOB)
    if mig:
        details = {**JOB, "codes": ("mig",), "remedy": _WHOLE}
        found = said(log, event, "two ranks use MIG instances of the same GPU", peers=ranks, **details)
    elif len(machines) > 1:
        details = {**JOB, "codes": ("host-identity",), "remedy": _IDENTITY}
        found = said(log, event, f"{' and '.join(sorted(machines))} look like one host", peers=ranks, **details)
    return found


_DRIVER = (
    "CUDA driver version is insufficient for CUDA runtime version",
    "Driver/library version mismatch",
    "forward compatibility was attempted on non supported HW",
    "unsupported display driver / cuda driver combination",
    "the provided PTX was compiled with an unsupported toolchain",
    "API call is not supported in the installed CUDA driver",
    "NVIDIA driver on your system is too old",
    "CUDA Driver version found is",
    "CUDA some PFN functions not found in the library",
    "CUDA driver is a stub library",
    "CUDA driver is older than the minimum version",
    "couldn't communicate with the NVIDIA driver",
    "Failed to initialize NVML: Driver Not Loaded",
)


@cause(
    code="cuda-driver-mismatch",
    signs=_DRIVER,
    doctor="sync.versions",
    bad=lambda: [
        "n1:7:7 [0] include/checks.h:18 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime "
        "version'"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO cudaDriverVersion 12020"],
)
def driver_does_not_fit(log: JobLog) -> Iterator[Finding]:
    """The driver and the CUDA runtime are incompatible.

    Right: Every driver supports the CUDA runtime that ran on it.
    Why: a wheel or image contains its own CUDA runtime, which needs a driver that supports at least that release. If
    the driver's packages were updated without a reboot, the kernel module and the libraries do not match.
    Fix: run `nvidia-smi` on this host to see which CUDA release the driver supports. Install a torch built for that
    release, or update the driver. If the kernel module and libraries do not match, reload the module or reboot.
    """
    yield from each(log, _DRIVER, "the driver and the CUDA runtime are incompatible", **IMAGE)


_MAPPINGS = ("peer mapping resources exhausted", "peer-mapping (BAR1 P2P) resources are exhausted")


@cause(
    code="peer-limit",
    signs=(*CUDA_SIGNS, *_MAPPINGS),
    doctor="gpu.p2p",
    bad=lambda: [
        "n1:7:7 [0] transport/p2p.cc:400 NCCL WARN failed to peer with device 8(=8b000): 711 peer mapping resources "
        "exhausted"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO Could not enable P2P between dev 0(=7000) and dev 1(=8000)"],
)
def too_many_peers(log: JobLog) -> Iterator[Finding]:
    """A GPU has more PCIe peers than it can map.

    Right: Every GPU could map the memory of all its peers.
    Why: a GPU can map at most 8 peers over PCIe. Hosts with more GPUs on one PCIe tree exceed this limit.
    Fix: use at most 8 GPUs of one host in a process group, or set NCCL_P2P_LEVEL=PXB so that distant GPUs use shared
    memory.
    """
    yield from each(log, _MAPPINGS[:1], "a GPU has more peers than it can map", **JOB)
    yield from informed(log, _MAPPINGS[1:], "NCCL attributes the error to too many peer mappings", **JOB)


_PEERING = (
    "failed to open CUDA IPC handle",
    "cudaIpcOpenMemHandle failed",
    "cudaIpcGetMemHandle failed",
    "failed to peer with device",
    "peer access is not supported between these two devices",
    "UDS: Sending data over socket",
)
_UNSEEN = (
    "No CUDA GPUs are available",
    "Found no NVIDIA driver on your system",
    "No visible GPU devices",
    "could not select device driver",
    "nvmlDeviceGetHandleByPciBusId() failed: Not Found",
)
_HANDLE = ("invalid argument", "invalid device context", "invalid resource handle", "invalid device pointer")


@cause(
    signs=(*_PEERING, *_UNSEEN, *CUDA_SIGNS),
    doctor="launch.ranks",
    echoes=("host-identity", "mig", "peer-limit", "rank-crashed", "oom", "gpu-hw-error", "cuda-driver-mismatch"),
    bad=lambda: ["[rank1]: RuntimeError: CUDA error: invalid device ordinal"],
    good=lambda: [
        "n1:7:7 [0] transport/p2p.cc:400 NCCL WARN failed to peer with device 8(=8b000): 711 peer mapping resources "
        "exhausted"
    ],
)
def peer_memory_closed(log: JobLog) -> Iterator[Finding]:
    """A rank cannot open the memory of a GPU on its own host.

    Right: Every rank could open its peers' memory.
    Why: ranks in separate containers or control groups see only their own GPU, and cannot open another GPU's exported
    memory. PCIe switches with ACS, or a virtual machine, prevent it too.
    Fix: run all ranks of a host in one container, let them see all its GPUs, and choose by local rank (with Slurm use
    --gpus-per-node instead of --gpus-per-task). To confirm the cause, start once with NCCL_P2P_DISABLE=1.
    """
    for event in log.having(*_PEERING):
        if not demoted(event) and "peer mapping resources exhausted" not in event.text and not _asked_in_vain(event):
            codes = ("gpu-isolation", "p2p-broken-acs-iommu")
            yield said(log, event, "the memory of another GPU of this host cannot be opened", codes=codes, **JOB)
    for event in cuda_errors(log, *_HANDLE):
        if event.place.startswith(("transport/p2p", "transport.cc")):
            codes = ("gpu-isolation", "p2p-broken-acs-iommu")
            yield said(log, event, "the memory of another GPU of this host cannot be opened", codes=codes, **JOB)
    ordinals = cuda_errors(log, "invalid device ordinal", "no CUDA-capable device is detected")
    for event in (*ordinals, *log.having(*_UNSEEN)):
        codes = ("gpu-isolation", "world-size-mismatch")
        whose = JOB if "ordinal" in event.text else UNPROVEN
        yield said(log, event, "a rank cannot see a GPU that it should use, or a peer's GPU", codes=codes, **whose)


_NO_PEERS = (
    "peer access is not supported between these two devices",
    "peer access not supported between the given devices",
)


@cause(
    code="p2p-unsupported",
    signs=_NO_PEERS,
    doctor="gpu.p2p",
    bad=lambda: ["RuntimeError: CUDA error: peer access is not supported between these two devices"],
    good=lambda: [
        "n1:7:7 [0] transport/p2p.cc:400 NCCL WARN failed to peer with device 1(=8b000): 217 peer access is not "
        "supported between these two devices"
    ],
)
def no_peer_access(log: JobLog) -> Iterator[Finding]:
    """A program requests peer access between GPUs that do not support it.

    Right: No program requested peer access that its GPUs do not support.
    Why: some GPU models without NVLink, and GPUs behind different host bridges or in a virtual machine, cannot map each
    other's memory (cudaErrorPeerAccessUnsupported). NCCL then uses shared memory, but a program's own all_reduce kernel
    does not.
    Fix: run `nvidia-smi topo -p2p r` to see which pairs support it. Turn the program's own kernel off (vLLM and SGLang:
    --disable-custom-all-reduce; TensorRT-LLM: build the engine without custom all_reduce), or use GPUs with peer
    access.
    """
    for event in log.having(*_NO_PEERS):
        if not demoted(event) and event.level != "WARN":  # who warns of it goes on without
            yield said(log, event, "the program requests peer access between GPUs that do not support it", **JOB)


def _asked_in_vain(event: LogEvent) -> bool:
    """Return whether a program, and not NCCL, got the error that two GPUs have no peer access."""
    nccls = event.level == "WARN" and bool(event.host and event.pid)
    return not nccls and any(text in event.text for text in _NO_PEERS)


_DCGM = (
    "had uncorrectable memory errors",
    "had an uncontained error (XID 95)",
    "faulty memory elements on GPU",
    "A memory mismatch was detected on GPU",
    "a double-bit ECC error has occured on GPU",
    "Pending page retirements together with a DBE",
    "Detected a miscompare failure in the L1 cache",
    "was unsuccessfully written to in a peer-to-peer test",
    "unsuccessfully wrote data in a peer-to-peer test",
    "host-side PCIe replay violation",
    "Detected fatal NvSwitch SXID",
)
_NVLINK, _XID = "NvLink errors on GPU", "Detected XID "
_RECOVERY = "GPU Recovery Action"
_YES = ("Remapping Failure Occurred", "Drain and Reset Recommended", "Reset Required")


@cause(
    code="gpu-hw-error",
    signs=(*_DCGM, _NVLINK, _XID, _RECOVERY, *_YES),
    doctor="gpu.errors",
    bad=lambda: ["Detected XID 79 for GPU 3"],
    good=lambda: ["GPU 3 is running at PCI link width 8X, which is below the minimum allowed link generation of 16"],
)
def dcgm_found_a_fault(log: JobLog) -> Iterator[Finding]:
    """DCGM found a failed GPU, NVLink or NVSwitch, or nvidia-smi requests a reset or a repair.

    Right: DCGM and nvidia-smi report no failed GPU, NVLink or NVSwitch.
    Why: both read the driver's counters and Xids, and DCGM's diagnosis also runs tests. A job on this GPU fails or
    computes wrong results. The driver requests a reset after an error that it cannot correct while the GPU runs. Memory
    rows that could not be remapped stay broken.
    Fix: drain the host, and reset the GPU with `nvidia-smi --gpu-reset -i N` (or reboot, if nvidia-smi requests that).
    Then run `dcgmi diag -r 3`. If the error returns or a remapping failed, have the GPU repaired.
    """
    for event in log.having(*_DCGM, _NVLINK, _XID):
        xid = number(between(event.text, _XID))
        if str(xid) in HARMLESS_XIDS or "Detected 0 " in event.text:
            continue
        gpu = number(between(event.text, "GPU ")) if " GPU " in f" {event.text}" else None
        where = "a GPU or NVSwitch" if gpu is None else f"GPU {gpu}"
        yield said(log, event, f"DCGM reports a fault on {where}", **NODE)
    for event in log.having(_RECOVERY, *_YES):
        key, colon, value = event.text.strip().partition(":")
        asked = value.strip()
        grave = asked == "Yes" if key.strip() in _YES else key.strip() == _RECOVERY and asked not in ("None", "N/A", "")
        if colon and grave:
            yield said(log, event, f"nvidia-smi reports {key.strip()}: {asked}", **NODE)


_DIAG_P2P, _DIAG_NET = "peer accesses passed verification", "% off median"


@cause(
    code="gpu-hw-error",
    signs=("NCCL DIAG",),
    doctor="gpu.errors",
    bad=lambda: [
        "node0:24563 NCCL DIAG [INFO] Xid 79 detected 1 time on host node3. The NVIDIA Xid catalog recommends",
    ],
    good=lambda: [
        "node0:24563 NCCL DIAG [INFO] Xid 43 detected 1 time on host node3. Restart the affected application.",
    ],
)
def nccl_diagnosed(log: JobLog) -> Iterator[Finding]:
    """NCCL's own diagnostics found a faulty or slow GPU, path between GPUs, or NIC.

    Right: NCCL's diagnostics found no fault.
    Why: before the job's own traffic the diagnostics read the driver's Xids, write and read between every two GPUs, and
    compare the NICs with each other. NCCL continues whatever they find.
    Fix: on the host or pair that the line names, check the kernel log, `nvidia-smi topo -p2p n` and `ibstat`.
    """
    for event in log.having("NCCL DIAG"):
        text = between(event.text, "[INFO]").strip()
        xid = number(between(text, "Xid ")) if " detected " in text and text.startswith(("Xid ", "SXid ")) else None
        if xid is not None and not (text.startswith("X") and str(xid) in HARMLESS_XIDS):
            host = between(text, "on host ", " ").rstrip(".")
            message = f"NCCL's diagnostics report {text.partition(' ')[0]} {xid}"
            found = said(log, event, message, **NODE)
            yield blame_hosts(found, host, ranks=()) if host else found
        elif _DIAG_P2P in text:
            codes = ("p2p-broken-acs-iommu", "gpu-hw-error")
            yield said(
                log, event, "GPUs of a host read or write wrong data in each other's memory", codes=codes, **NODE
            )
        elif _DIAG_NET in text and (number(between(text, "): ")) or 0) < (number(between(text, "median ")) or 0):
            rank = number(between(text, " rank "))
            message = f"the NIC of rank {rank} is slower than the others"
            details = {**NODE, "codes": ("ib-link-error", "gdr-off", "gpu-hw-error"), "severity": Severity.WARN}
            yield said(log, event, message, ranks=() if rank is None else (rank,), **details)
