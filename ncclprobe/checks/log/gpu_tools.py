"""What DCGM and nvidia-smi say of GPUs that failed. Kernel lines (Xid, SXid) are those of :mod:`gpus`.

Sources: dcgmlib/dcgm_errors.h of NVIDIA's DCGM (the texts of `dcgmi diag` and `dcgmi health`); `nvidia-smi -q`.
"""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.gpus import HARMLESS_XIDS
from ncclprobe.checks.log.lines import NODE
from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.findings import Finding

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
