"""What DCGM, nvidia-smi and NCCL's own diagnostics say of GPUs. Kernel lines (Xid, SXid) are those of :mod:`gpus`.

Sources: dcgmlib/dcgm_errors.h of NVIDIA's DCGM (the texts of `dcgmi diag` and `dcgmi health`); `nvidia-smi -q`;
NCCL 2.31's documentation ("Diagnostics") and src/ras/diagnostics_xid.cc, whose lines begin with "NCCL DIAG".
"""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.gpus import HARMLESS_XIDS
from ncclprobe.checks.log.lines import NODE
from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.values import replace

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


@cause(
    code="gpu-hw-error",
    signs=(*_DCGM, _NVLINK, _XID),
    doctor="gpu.xid",
    bad=lambda: ["Detected XID 79 for GPU 3"],
    good=lambda: ["GPU 3 is running at PCI link width 8X, which is below the minimum allowed link generation of 16"],
)
def dcgm_found_a_fault(log: JobLog) -> Iterator[Finding]:
    """DCGM found a GPU, an NVLink or an NVSwitch that failed.

    Right: DCGM names no GPU, NVLink or NVSwitch that failed.
    Why: its diagnosis and its health watches read the same counters and Xids as the driver writes, or ran a test that
    gave a wrong result: a job on this GPU ends, or computes wrongly.
    Fix: drain the host, reset the GPU (`nvidia-smi --gpu-reset -i N`), run `dcgmi diag -r 3`, and have it repaired if
    the error returns.
    """
    for event in log.having(*_DCGM, _NVLINK, _XID):
        xid = number(between(event.text, _XID))
        if str(xid) in HARMLESS_XIDS or "Detected 0 " in event.text:
            continue
        gpu = number(between(event.text, "GPU ")) if " GPU " in f" {event.text}" else None
        where = "a GPU or NVSwitch" if gpu is None else f"GPU {gpu}"
        yield said(log, event, f"DCGM reports a fault of {where}", **NODE)


_RECOVERY = "GPU Recovery Action"
_YES = ("Remapping Failure Occurred", "Drain and Reset Recommended", "Reset Required")


@cause(
    code="gpu-hw-error",
    signs=(_RECOVERY, *_YES),
    doctor="gpu.remap",
    bad=lambda: ["    GPU Recovery Action                   : Reset"],
    good=lambda: ["        Remapping Failure Occurred        : No"],
)
def nvidia_smi_wants_a_reset(log: JobLog) -> Iterator[Finding]:
    """nvidia-smi says that a GPU has to be reset or repaired.

    Right: nvidia-smi asks for no reset or repair of a GPU.
    Why: the driver asks for a reset after an error that it cannot mend while the GPU runs; rows of memory that could
    not be remapped stay broken.
    Fix: drain the host, then `nvidia-smi --gpu-reset -i N`, or a reboot where it says so; a remapping failure is a
    repair.
    """
    for event in log.having(_RECOVERY, *_YES):
        key, colon, value = event.text.strip().partition(":")
        asked = value.strip()
        grave = asked == "Yes" if key.strip() in _YES else key.strip() == _RECOVERY and asked not in ("None", "N/A", "")
        if colon and grave:
            yield said(log, event, f"nvidia-smi says {key.strip()}: {asked}", **NODE)


_DIAG_P2P, _DIAG_NET = "peer accesses passed verification", "% off median"


@cause(
    code="gpu-hw-error",
    signs=("NCCL DIAG",),
    doctor="gpu.xid",
    bad=lambda: [
        "node0:24563 NCCL DIAG [INFO] Xid 79 detected 1 time on host node3. The NVIDIA Xid catalog recommends",
    ],
    good=lambda: [
        "node0:24563 NCCL DIAG [INFO] Xid 43 detected 1 time on host node3. Restart the affected application.",
    ],
)
def nccl_diagnosed(log: JobLog) -> Iterator[Finding]:
    """NCCL's own diagnostics found a GPU, a path between GPUs or a NIC that is not as it should be.

    Right: NCCL's diagnostics found nothing.
    Why: they read the driver's Xids, write and read between every two GPUs, and measure each NIC beside the others,
    before the job's own traffic; NCCL goes on whatever they find.
    Fix: look at the host or pair that the line names: its kernel log, `nvidia-smi topo -p2p n`, `ibstat`.
    """
    for event in log.having("NCCL DIAG"):
        text = between(event.text, "[INFO]").strip()
        xid = number(between(text, "Xid ")) if " detected " in text and text.startswith(("Xid ", "SXid ")) else None
        if xid is not None and not (text.startswith("X") and str(xid) in HARMLESS_XIDS):
            host = between(text, "on host ", " ").rstrip(".")
            message = f"NCCL's diagnostics report {text.partition(' ')[0]} {xid}"
            yield _on(host, said(log, event, message, **NODE))
        elif _DIAG_P2P in text:
            codes = ("p2p-broken-acs-iommu", "gpu-hw-error")
            yield said(log, event, "GPUs of a host read or write each other's memory wrongly", codes=codes, **NODE)
        elif _DIAG_NET in text and (number(between(text, "): ")) or 0) < (number(between(text, "median ")) or 0):
            rank = number(between(text, " rank "))
            message = f"the NIC of rank {rank} is slower than the others"
            details = {**NODE, "codes": ("ib-link-error", "gdr-off", "gpu-hw-error"), "severity": Severity.WARN}
            yield said(log, event, message, ranks=() if rank is None else (rank,), **details)


def _on(host: str, found: Finding) -> Finding:
    """Return a finding as one of the host that its line names, and not of the one that wrote it."""
    at = found.occurrence
    own = replace(at, hosts=(host,), ranks=()) if at and host else at
    return replace(found, occurrence=own, nodes=(host,) if host else found.nodes)
