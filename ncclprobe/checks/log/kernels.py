"""Kernels of the program that failed on a GPU, by CUDA's words and by the driver's."""

from collections.abc import Iterator
from itertools import islice

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import CUDA_SIGNS, JOB, UNPROVEN, cuda_errors, demoted, failed
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.texts import between, number
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.values import replace

_KERNEL, _ASSERTED = "a kernel of the program failed", 1024
"""Lines: every thread of a block prints this about itself."""
_KERNEL_FAULTS = (
    "an illegal memory access",
    "device-side assert triggered",
    "an illegal instruction was encountered",
    "misaligned address",
    "the launch timed out and was terminated",
    "operation not supported on global/shared address space",
    "invalid program counter",
)


@cause(
    code="rank-crashed",
    signs=(*CUDA_SIGNS, *_KERNEL_FAULTS[:2], "Assertion `"),
    echoes=("gpu-hw-error",),
    bad=lambda: ["[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered"],
    good=lambda: ["[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered"],
)
def kernel_faulted(log: JobLog) -> Iterator[Finding]:
    """A kernel of the program failed on a GPU.

    Right: No kernel failed on a GPU.
    Why: CUDA reports a kernel's fault at a later call, often NCCL's next one. After that this process cannot run
    anything on the GPU, and the other ranks wait.
    Fix: to find the call, start again with CUDA_LAUNCH_BLOCKING=1 or under `compute-sanitizer`. Look for indices out of
    range (labels, tokens), and for buffers that are freed while a collective uses them.
    """
    lines = {(event.stream, event.line): event for event in cuda_errors(log, *_KERNEL_FAULTS)}
    lines |= {(e.stream, e.line): e for e in log.having(*_KERNEL_FAULTS[:2]) if not demoted(e)}
    for event in lines.values():
        near = (e for e in log.having("Assertion `") if e.stream == event.stream)
        before = [e for e in near if 0 <= event.line - e.line <= _ASSERTED]
        asserted = before[:1] if _KERNEL_FAULTS[1] in event.text else []
        which = between(asserted[0].text, "Assertion `", "`") if asserted else ""
        found = said(log, event, f"{_KERNEL}: its assertion `{which}` failed" if which else _KERNEL, **JOB)
        yield replace(found, evidence=(*map(log.evidence, asserted), *found.evidence))
    of_kernels = (event for event in log.having("Assertion `") if "block: [" in event.text)
    for event in islice(of_kernels, not lines):  # of a log that ends before CUDA reports it
        which = between(event.text, "Assertion `", "`")
        yield said(log, event, f"{_KERNEL}: its assertion `{which}` failed", **JOB)


_LIBRARIES = (
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
)


@cause(
    signs=(*CUDA_SIGNS, *_LIBRARIES),
    echoes=("gpu-hw-error", "oom"),
    doctor="gpu.errors",
    bad=lambda: ["[rank1]: RuntimeError: CUDA error: unspecified launch failure"],
    good=lambda: ["[rank1]: RuntimeError: CUDA error: device-side assert triggered"],
)
def launch_failed(log: JobLog) -> Iterator[Finding]:
    """A kernel failed or CUDA did not start, and CUDA gives no reason.

    Right: No kernel failed without a reason.
    Why: "unspecified launch failure", "unknown error" and their cuBLAS and cuDNN variants can come from a kernel that
    reads invalid memory or from a failing GPU. "initialization error" can come from a process that was forked after
    CUDA started, or from a driver or GPU that does not start.
    Fix: read the kernel log of this host. Xid 48, 63, 74, 79, 94 or 95 points to the GPU, 13 or 31 to the program.
    """
    lines = {(e.stream, e.line): e for e in log.having(*_LIBRARIES) if not demoted(e)}
    errors = ("unspecified launch failure", "'unknown error'", "CUDA error: unknown error")
    for event in (lines | {(e.stream, e.line): e for e in cuda_errors(log, *errors)}).values():
        yield said(log, event, "a kernel failed", codes=("rank-crashed", "gpu-hw-error"), **UNPROVEN)
    for event in cuda_errors(log, "initialization error"):
        yield said(log, event, "CUDA does not initialise", codes=("rank-crashed", "gpu-hw-error"), **UNPROVEN)


_WILD_XIDS = (13, 31)
"""Graphics engine exception and MMU fault, both of the program's own kernels: docs.nvidia.com/deploy/xid-errors."""


@cause(
    code="rank-crashed",
    signs=("NVRM: Xid (",),
    echoes=("gpu-hw-error", "rank-crashed"),
    bad=lambda: ["[ 812.1] NVRM: Xid (PCI:0000:5e:00): 31, pid=9, name=python, Ch 00000010, intr 00000000. MMU Fault"],
    good=lambda: [
        "[ 812.1] NVRM: Xid (PCI:0000:5e:00): 31, pid=9, name=python, Ch 00000010, MMU Fault\n"
        "[rank0]: step 7 loss 2\nTraining finished successfully"
    ],
)
def driver_saw_a_wild_access(log: JobLog) -> Iterator[Finding]:
    """The GPU driver reported that a program accessed memory that it does not own.

    Right: The GPU driver reported no access to memory that the job does not own.
    Why: Xid 31 means that the program accessed a page that it has not mapped. Xid 13 means an index or instruction out
    of range. The GPU is healthy, and the process that the line names gets "illegal memory access" at its next call.
    Fix: run that process's program under `compute-sanitizer`. Look for indices out of range, and for buffers that are
    freed while a kernel or a collective uses them.
    """
    kernels_alone = not (log.ranks or log.versions or any(stream.finished for stream in log.streams))
    for event in log.having("NVRM: Xid (") if kernels_alone or failed(log) else ():
        xid, pid = number(between(event.text, "): ")), number(between(event.text, "pid="))
        if xid in _WILD_XIDS:
            here = [rank for rank in log.ranks.values() if not event.host or rank.host in ("", event.host)]
            ranks = tuple(rank.rank for rank in here if rank.pid == pid is not None)
            if ranks or pid is None or not here or any(rank.pid is None for rank in here):
                yield said(
                    log, event, f"the driver reports Xid {xid}, an invalid access by the program", ranks=ranks, **JOB
                )
            else:  # another job's, or numbered in another namespace
                message = f"the driver reports Xid {xid} for process {pid}, which no log of this job names"
                yield said(log, event, message, severity=Severity.WARN, **UNPROVEN)
