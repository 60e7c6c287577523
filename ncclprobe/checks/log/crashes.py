"""A rank that ended for reasons of its own: exceptions, signals, the out-of-memory killer, faults of its kernels."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.launchers import signal_of_launcher
from ncclprobe.checks.log.lines import CUDA_SIGNS, JOB, NODE, UNPROVEN, cuda_errors, demoted, failed
from ncclprobe.facts.files import messages
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.findings import Finding
from ncclprobe.units import whole_words

_NOT_OWN = (
    "DistBackendError", "DistNetworkError", "DistStoreError", "DistError",
    "NCCL", "nccl", "gloo", "Gloo", "c10d", "c10::", "onnection", "ocket", "imed out", "imeout", "roken pipe",
    "ChildFailedError", "ProcessExitedException", "ProcessRaisedException", "CalledProcessError", "Rendezvous",
    "CUDA error", "CUDA driver", "CUDA failure", "CUDA out", "CUDA runtime", "CUDA unknown", "CUDA GPUs",
    "CUDA-capable", "CUDA init", "CUDA version", "CUDA call", "cudaGetDeviceCount", "CUBLAS",
    "CUDNN_STATUS", "OutOfMemory", "out of memory", "KeyboardInterrupt", "SystemExit",
    "SignalException", "SIGTERM", "onitoredBarrier", "between collectives", "ddress already in use", "Name or service",
    "name resolution", "Too many open files", "shared memory", "received signal", "collective operation",
    "DDP expects same model", "torch_shm", "TCPStore", "HashStore", "FileStore", "key-value store", "rendezvous",
    "ncclSystemError", "libnccl", "rror: NVML", "RayTaskError", "ActorDiedError",
    "WorkerCrashed", "ActorUnavailable", "EOFError", "Broken", "all workers",
    "NVIDIA driver", "exited with non-zero status", "DEADLINE_EXCEEDED", "UNAVAILABLE: ", "HorovodInternalError",
    "orovod has been shut down",
    "root cause", "tack trace", "background process", "reader raises an exception", "queue.Empty", "unexpected pos",
)  # fmt: skip
"""Texts of exceptions that other checks name, or that only say that another process has ended."""
_OWN_ALL_THE_SAME = ("expected, but not set", "HTTP", "requests.", "urllib", "huggingface", "Hugging Face")
"""Of the program's own environment, or of its own connections to somewhere else."""
_OF_PROGRAMS = (
    "ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "NameError", "AssertionError",
    "NotImplementedError", "ModuleNotFoundError", "ZeroDivisionError", "UnicodeDecodeError",
)  # fmt: skip
"""Types of exceptions by which no library of the job says that a peer, a network or a device failed."""
_IGNORED = "Exception ignored in"
_LAST_LINES = 60


def _own_exceptions(log: JobLog) -> Iterator[LogEvent]:
    """Yield exceptions that a rank's own program raised, and that ended it."""
    failure = failed(log) or any(event.level == "ROOT CAUSE" for event in log.events)
    for event in log.events:
        if not _is_own(event) or _ignored(log, event):
            continue
        if failure or event.line > log.streams[event.stream].nlines - _LAST_LINES:
            yield event


def _ignored(log: JobLog, event: LogEvent) -> bool:
    """Return whether Python says shortly before that it ignores the exception: at the end of a process it may."""
    return any(
        other.stream == event.stream and 0 <= event.line - other.line <= _LAST_LINES for other in log.having(_IGNORED)
    )


def _is_own(event: LogEvent) -> bool:
    """Return whether a line is an exception, with its traceback or in torchrun's summary, of the program itself."""
    summary = event.level == "ROOT CAUSE" and event.text.startswith("exitcode: 1, ") and "Error" in event.text
    if event.level != "EXCEPTION" and not summary:
        return False
    if (found := messages.said(event.text, event.level)) and found.codes:
        return "rank-crashed" in found.codes
    if event.text.partition(":")[0].rpartition(".")[2] in _OF_PROGRAMS:
        return True
    foreign = any(text in event.text for text in _NOT_OWN)
    return not foreign or any(text in event.text for text in _OWN_ALL_THE_SAME)


def _roots(log: JobLog) -> set[int]:
    """Return the ranks that torchrun saw fail first."""
    return {event.rank for event in log.events if event.level == "ROOT CAUSE" and event.rank is not None}


@cause(
    code="rank-crashed",
    echoes=("=",),
    signs=("Traceback (most recent call last)", "Root Cause (first observed failure)", _IGNORED),
    bad=lambda: [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 12, in <module>\n'
        "[rank3]:     main()\n[rank3]: ValueError: batch 17 holds no tokens\n"
    ],
    good=lambda: [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 12, in <module>\n'
        "[rank3]:     main()\n[rank3]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system "
        "error\n"
    ],
)
def program_raised(log: JobLog) -> Iterator[Finding]:
    """A rank's own program raised an exception.

    Right: No rank's program raised an exception of its own.
    Why: one rank that ends by itself leaves the others in a collective that it will never join; they say so minutes
    later, and louder.
    Fix: correct what the exception says on that rank; its frame stands in the same line.
    """
    found = list(_own_exceptions(log))
    roots = _roots(log)
    first = [event for event in found if event.rank in roots] or found
    for event in first:
        place = f" at {event.place}" if event.place else ""
        whose = UNPROVEN if any(text in event.text for text in _OF_STORAGE) else JOB
        yield said(log, event, f"the program raised {whole_words(event.text, 120)}{place}", **whose)


_OF_STORAGE = (*(f"[Errno {errno}]" for errno in (5, 28, 30, 107, 116, 121)), "Stale file handle")
"""What a program alone does not bring about: EIO, ENOSPC, EROFS, ENOTCONN, ESTALE and EREMOTEIO of a file system."""
_LOST_BEFORE = ("remote process exited or there was a network error", "due to async NCCL error")


_SEGFAULT = (
    "Segmentation fault",
    "Fatal Python error",
    "Caught signal 11",
    "Signal: Segmentation fault",
    "Bus error",
    "double free or corruption",
    "free(): invalid",
    "malloc(): ",
    "stack smashing detected",
    "Floating point exception",
    "Illegal instruction",
    "is killed by signal: Killed",
    "died unexpectedly",
    "exited unexpectedly",
)
_DUMPED = ("Fatal Python error: Aborted",)
_OF_RAY = ("actor died unexpectedly", "worker died unexpectedly")
"""Which does not know how; the table of messages has it."""


@cause(
    code="rank-crashed",
    signs=_SEGFAULT,
    echoes=("oom", "gpu-hw-error", "shm-too-small"),
    bad=lambda: ["*** Process received signal ***\n[n1:7] Signal: Segmentation fault (11)"],
    good=lambda: ["[rank1]: loss 2"],
)
def segmentation_fault(log: JobLog) -> Iterator[Finding]:
    """A rank's process crashed.

    Right: No rank's process crashed.
    Why: native code of the rank touched memory that is not its own: an extension built for another torch, a library
    found twice, or a fault of it; the others then lose the connection to this rank.
    Fix: the stack beneath the line, or `python -X faulthandler` and a core dump, names the library.
    """
    for event in log.having(*_SEGFAULT):
        summary = event.level in ("ROOT CAUSE", "FAILURE") or signal_of_launcher(event.text) is not None
        summary = summary or event.text.startswith(("task ", "tasks "))
        summary = summary or any(text in event.text for text in (*_DUMPED, *_OF_RAY))
        if not summary and not _lost_others_before(log, event):
            yield said(log, event, "the process crashed", **UNPROVEN)


def _lost_others_before(log: JobLog, event: LogEvent) -> bool:
    """Return whether the same rank had lost its communicator shortly before it crashed: it did not begin."""
    return any(
        (other.stream, other.rank, other.host) == (event.stream, event.rank, event.host)
        and 0 < event.line - other.line <= _LAST_LINES
        for other in log.having(*_LOST_BEFORE)
    )


_HOST_OOM = (
    "Out of memory: Kill",
    "oom-kill",
    "oom_kill",
    "oom_reaper",
    "OOMKilled",
    "OOM Killed",
    "killed due to memory pressure",
    "running low on memory",
    "Out Of Memory",
    "Memory cgroup out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Unable to allocate",
    "std::bad_alloc",
    "cannot allocate memory for thread-local data",
    "[Errno 12] Cannot allocate memory",
    "exceeded K8s pod memory limits",
)
_LIMITS = ("CONSTRAINT_MEMCG", "cgroup", "OOMKilled", "OOM Killed", "oom_kill event", "memory limits", "Out Of Memory")
"""The job reached a limit of its own; else all that runs on the host shares the fault."""
_NO_MEMORY = ("CUDA out of memory", "Unable to allocate resources", '"OOMKilled":false', '"OOMKilled": false')


@cause(
    code="rank-crashed",
    signs=_HOST_OOM,
    doctor="host.oom",
    bad=lambda: ["[ 912.1] Out of memory: Killed process 77 (python) total-vm:904112kB, anon-rss:812000kB"],
    good=lambda: ["[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"],
)
def host_memory_full(log: JobLog) -> Iterator[Finding]:
    """The host's or container's memory is full, and a rank was killed.

    Right: No rank was killed for want of memory.
    Why: the kernel ends the process that uses most: a rank that loads a checkpoint, or its data loaders; it writes
    nothing itself, and the others lose the connection to it.
    Fix: more memory for the job (Slurm --mem, Kubernetes limits), fewer data-loader workers, checkpoints loaded by one
    rank or with mmap=True.
    """
    for event in log.having(*_HOST_OOM):
        if not any(text in event.text for text in _NO_MEMORY):
            may = "may have" in event.text
            message = "the host's memory was full, and a process was killed"
            message = "a process ended, perhaps at the memory limit of its pod" if may else message
            yield said(log, event, message, **(JOB if any(text in event.text for text in _LIMITS) else UNPROVEN))


_KERNEL_FAULTS = (
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "an illegal instruction was encountered",
    "misaligned address",
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
    Why: CUDA reports the fault of a kernel at some later call, often NCCL's next one; after it nothing runs any more in
    this process, and the other ranks wait.
    Fix: start again with CUDA_LAUNCH_BLOCKING=1 to see the call, or `compute-sanitizer`; look for indices out of range
    (labels, tokens), and buffers that are freed while a collective uses them.
    """
    lines = {(event.stream, event.line): event for event in cuda_errors(log, *_KERNEL_FAULTS)}
    lines |= {(e.stream, e.line): e for e in log.having(*_KERNEL_FAULTS[:2]) if not demoted(e)}
    for event in lines.values():
        before = [e for e in log.having("Assertion `") if e.stream == event.stream and e.line <= event.line]
        which = between(before[-1].text, "Assertion `", "`") if before and _KERNEL_FAULTS[1] in event.text else ""
        what = f"a kernel of the program failed: its assertion `{which}` does not hold" if which else ""
        yield said(log, event, what or "a kernel of the program failed", **JOB)


_LIBRARIES = (
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
)


@cause(
    signs=(*CUDA_SIGNS, *_LIBRARIES),
    echoes=("gpu-hw-error", "oom"),
    doctor="gpu.xid",
    bad=lambda: ["[rank1]: RuntimeError: CUDA error: unspecified launch failure"],
    good=lambda: ["[rank1]: RuntimeError: CUDA error: device-side assert triggered"],
)
def launch_failed(log: JobLog) -> Iterator[Finding]:
    """A kernel failed on a GPU, and CUDA does not say why.

    Right: No kernel failed without a reason.
    Why: "unspecified launch failure", "unknown error" and what cuBLAS and cuDNN make of them come from a kernel that
    reads wild memory as well as from a GPU that fails.
    Fix: the kernel log of this host: an Xid of 48, 63, 74, 79, 94 or 95 is the GPU, 13 or 31 the program.
    """
    lines = {(e.stream, e.line): e for e in log.having(*_LIBRARIES) if not demoted(e)}
    errors = ("unspecified launch failure", "'unknown error'", "CUDA error: unknown error")
    for event in (lines | {(e.stream, e.line): e for e in cuda_errors(log, *errors)}).values():
        yield said(log, event, "a kernel failed", codes=("rank-crashed", "gpu-hw-error"), **NODE)


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
    """A GPU's driver saw a program touch memory that is not its own.

    Right: The driver saw no kernel of the job touch memory that is not its own.
    Why: Xid 31 is a page that the program has not mapped, Xid 13 an index or instruction out of range; the GPU is well,
    and the process that the line names gets "illegal memory access" at its next call.
    Fix: `compute-sanitizer` on the program of that process; look for indices out of range and for buffers that are
    freed while a kernel or a collective uses them.
    """
    kernels_alone = not (log.ranks or log.versions or any(stream.finished for stream in log.streams))
    for event in log.having("NVRM: Xid (") if kernels_alone or failed(log) else ():
        xid, pid = number(between(event.text, "): ")), number(between(event.text, "pid="))
        if xid in _WILD_XIDS:
            ranks = tuple(r.rank for r in log.ranks.values() if r.pid == pid is not None and r.host in ("", event.host))
            yield said(log, event, f"the driver reports Xid {xid}: the program's own access", ranks=ranks, **JOB)
