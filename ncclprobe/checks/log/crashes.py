"""A rank that ended for reasons of its own: exceptions, signals, the out-of-memory killer, faults of its kernels."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import CUDA_SIGNS, JOB, NODE, cuda_errors, demoted, failed
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.texts import between, number
from ncclprobe.model.findings import Finding
from ncclprobe.model.values import replace

_NOT_OWN = (
    "Dist", "NCCL", "nccl", "gloo", "Gloo", "c10d", "onnection", "ocket", "imed out", "imeout", "roken pipe",
    "ChildFailedError", "ProcessExitedException", "ProcessRaisedException", "CalledProcessError", "Rendezvous",
    "CUDA ", "cudaGetDeviceCount", "CUBLAS", "OutOfMemory", "out of memory", "KeyboardInterrupt", "SystemExit",
    "SignalException", "SIGTERM", "onitoredBarrier", "between collectives", "ddress already in use", "Name or service",
    "name resolution", "Too many open files", "shared memory", "received signal", "collective operation",
    "DDP expects same model", "torch_shm", "TCPStore", "HashStore", "FileStore", "key-value store", "rendezvous",
    "ncclSystemError", "libnccl", "undefined symbol", "rror: NVML", "RayTaskError", "ActorDiedError",
    "WorkerCrashed", "ActorUnavailable", "EOFError", "Broken", "all workers",
)  # fmt: skip
"""Texts of exceptions that other checks name, or that only say that another process has ended."""
_OWN_ALL_THE_SAME = ("expected, but not set", "HTTP", "requests.", "urllib", "huggingface", "Hugging Face")
"""Of the program's own environment, or of its own connections to somewhere else."""
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
    foreign = any(text in event.text for text in _NOT_OWN)
    return not foreign or any(text in event.text for text in _OWN_ALL_THE_SAME)


def _roots(log: JobLog) -> set[int]:
    """Return the ranks that torchrun saw fail first."""
    return {event.rank for event in log.events if event.level == "ROOT CAUSE" and event.rank is not None}


@cause(
    code="rank-crashed",
    signs=("Traceback (most recent call last)", "Root Cause (first observed failure)", _IGNORED),
    bad=lambda: [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 12, in <module>\n'
        "[rank3]:     main()\n[rank3]: ValueError: batch 17 holds no tokens\n",
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "optim.py", line 12, in step\n'
        "[rank3]: AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel "
        "communication collective. Device: 3, node: n1\n",
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "ckpt.py", line 12, in load\n'
        "[rank3]: RuntimeError: cannot restore step 100: unexpected key\n",
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 77)\n  error_file: /tmp/e/error.json\n"
        '  traceback : Traceback (most recent call last):\n    File "train.py", line 12, in main\n'
        "  ValueError: batch 17 holds no tokens\n========\n",
    ],
    good=lambda: [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "train.py", line 12, in <module>\n'
        "[rank3]:     main()\n[rank3]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system "
        "error\n",
        "Traceback (most recent call last):\n  File \"hub.py\", line 1, in get\nKeyError: 'etag'\nretrying\n"
        + "step: loss 2\n" * 200,
        "Exception ignored in: <function Pool.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "pool.py", line 1, in __del__\nAttributeError: _state\n',
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
        yield said(log, event, f"the program raised {event.text[:120]}{place}", **JOB)


_KILLED, _SEGV, _BUS, _ABORTED, _TERMINATED = 9, 11, 7, 6, 15
_WORDS = {4: "SIGILL", _KILLED: "SIGKILL", _SEGV: "SIGSEGV", _BUS: "SIGBUS", 8: "SIGFPE"}


def _signal(event: LogEvent) -> int | None:
    """Return the signal of ``exitcode: -9, …`` or of a shell's 137."""
    code = number(between(event.text, "exitcode: "))
    if code is None:
        return None
    return -code if code < 0 else code - 128 if 128 < code < 160 else None


@cause(
    code="rank-crashed",
    signs=(
        "Root Cause (first observed failure)",
        "exited on signal",
        "exits with return code = -",
        "failed (exitcode: -",
        "terminated with signal ",
        "died with <Signals.",
    ),
    echoes=("oom", "gpu-hw-error", "shm-too-small"),
    bad=lambda: [
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 77)\n  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 77\n========\n",
        "mpirun noticed that process rank 3 with PID 0 on node n2 exited on signal 11 (Segmentation fault).",
        "[ERROR] [launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return code = -9",
        "E0102 03:04:05.000000 77 api.py:1] failed (exitcode: -11) local_rank: 1 (pid: 78) of binary: /usr/bin/python",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
    ],
    good=lambda: [
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : -15 (pid: 77)\n  error_file: <N/A>\n"
        "  traceback : Signal 15 (SIGTERM) received by PID 77\n========\n",
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : -6 (pid: 77)\n  error_file: <N/A>\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 77\n========\n",
    ],
)
def killed_by_a_signal(log: JobLog) -> Iterator[Finding]:
    """A rank was ended by a signal before any other failed.

    Right: No rank was ended by a signal of its own.
    Why: SIGKILL comes from the out-of-memory killer or a person, SIGSEGV and SIGBUS from the program; SIGABRT is how
    torch's watchdog ends a rank after another failed, SIGTERM how a launcher does.
    Fix: SIGKILL: `dmesg -T | grep -i oom` on that host and the memory of the job's control group; SIGSEGV: a core dump
    or `python -X faulthandler`; SIGBUS: room in /dev/shm.
    """
    for event in log.events:
        signal = _signal(event) if event.level == "ROOT CAUSE" else _of_launcher(event.text)
        if signal in _WORDS:
            codes = ("shm-too-small", "rank-crashed") if signal == _BUS else ()
            yield said(log, event, f"was ended by {_WORDS[signal]}", codes=codes, peers=_mpi_rank(event.text), **JOB)


_ENDED_ITSELF = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n"
    "  rank      : 3 (local_rank: 1)\n  exitcode  : 3 (pid: 77)\n  error_file: <N/A>\n"
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n========\n"
)


@cause(
    code="rank-crashed",
    signs=("Root Cause (first observed failure)",),
    echoes=("oom", "gpu-hw-error", "shm-too-small", "collective-desync"),
    bad=lambda: [_ENDED_ITSELF],
    good=lambda: [
        _ENDED_ITSELF.replace(": 3 (pid", ": 1 (pid"),
        _ENDED_ITSELF.replace(": 3 (pid", ": -15 (pid"),
        _ENDED_ITSELF.replace(": 3 (pid", ": 137 (pid"),
    ],
)
def exited(log: JobLog) -> Iterator[Finding]:
    """A rank ended itself with an exit code of its own.

    Right: No rank ended itself with an exit code of its own.
    Why: Python ends with 1 after an exception, which it prints; another code is the program's own, of sys.exit or
    os._exit, or of a usage error (2). The launcher then ends the other ranks.
    Fix: look for this exit code in the program and at what the rank printed last.
    """
    for event in log.events:
        code = number(between(event.text, "exitcode: ")) if event.level == "ROOT CAUSE" else None
        if code is not None and code > 1 and _signal(event) is None:
            yield said(log, event, f"ended itself with exit code {code}", **JOB)


def _of_launcher(text: str) -> int | None:
    """Return the signal that mpirun, DeepSpeed, torch's spawn or torchrun's own log name."""
    if "exited on signal " in text:
        return number(between(text, "exited on signal "))
    for start in ("exits with return code = -", "failed (exitcode: -"):
        if start in text:
            return number(between(text, start))
    name = between(text, "terminated with signal ", " ").strip(".") or between(text, "died with <Signals.", ":")
    return next((signal for signal, word in _WORDS.items() if word == name), None)


def _mpi_rank(text: str) -> tuple[int, ...]:
    rank = number(between(text, "process rank "))
    return () if rank is None else (rank,)


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
)
_DUMPED = ("Fatal Python error: Aborted",)


@cause(
    code="rank-crashed",
    signs=_SEGFAULT,
    echoes=("oom", "gpu-hw-error", "shm-too-small"),
    bad=lambda: [
        "[rank1]: Fatal Python error: Segmentation fault",
        "[rank1]: RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed.",
        "[n1:7 :0:9] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)",
        "*** Process received signal ***\n[n1:7] Signal: Segmentation fault (11)",
    ],
    good=lambda: ["[rank1]: Fatal Python error: Aborted", "[rank1]: loss 2"],
)
def segmentation_fault(log: JobLog) -> Iterator[Finding]:
    """A rank's process crashed.

    Right: No rank's process crashed.
    Why: native code of the rank touched memory that is not its own: an extension built for another torch, a library
    found twice, or a fault of it; the others then lose the connection to this rank.
    Fix: the stack beneath the line, or `python -X faulthandler` and a core dump, names the library.
    """
    for event in log.having(*_SEGFAULT):
        summary = event.level in ("ROOT CAUSE", "FAILURE") or _of_launcher(event.text) is not None
        if not summary and not any(text in event.text for text in _DUMPED):
            yield said(log, event, "the process crashed", **JOB)


_HOST_OOM = (
    "Out of memory: Kill",
    "oom-kill",
    "oom_kill",
    "oom_reaper",
    "OOMKilled",
    "OOM Killed",
    "Out Of Memory",
    "Memory cgroup out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Unable to allocate",
)


@cause(
    code="rank-crashed",
    signs=_HOST_OOM,
    doctor="host.oom",
    bad=lambda: [
        "[ 912.1] Out of memory: Killed process 77 (python) total-vm:904112kB, anon-rss:812000kB",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9.0. Some of your processes may have been killed by "
        "the cgroup out-of-memory handler.",
        "[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:113] . DefaultCPUAllocator: can't allocate memory",
    ],
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
        if "CUDA out of memory" not in event.text:
            yield said(log, event, "the host's memory was full, and a process was killed", **JOB)


_KERNEL_FAULTS = (
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "an illegal instruction was encountered",
    "misaligned address",
)


@cause(
    code="rank-crashed",
    signs=(*CUDA_SIGNS, "Assertion `"),
    echoes=("gpu-hw-error",),
    bad=lambda: [
        "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered",
        "[rank1]: RuntimeError: CUDA error: device-side assert triggered",
        "n1:7:9 [0] include/checks.h:18 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
    ],
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
    for event in cuda_errors(log, *_KERNEL_FAULTS):
        yield said(log, event, "a kernel of the program failed", **JOB)


@cause(
    signs=CUDA_SIGNS,
    echoes=("gpu-hw-error", "oom"),
    doctor="gpu.xid",
    bad=lambda: [
        "[rank1]: RuntimeError: CUDA error: unspecified launch failure",
        "n1:7:9 [0] include/checks.h:18 NCCL WARN Cuda failure 719 'unspecified launch failure'",
    ],
    good=lambda: ["[rank1]: RuntimeError: CUDA error: device-side assert triggered"],
)
def launch_failed(log: JobLog) -> Iterator[Finding]:
    """A kernel failed on a GPU, and CUDA does not say why.

    Right: No kernel failed without a reason.
    Why: "unspecified launch failure" and "unknown error" come from a kernel that reads wild memory as well as from a
    GPU that fails.
    Fix: the kernel log of this host: an Xid of 48, 63, 74, 79, 94 or 95 is the GPU, 13 or 31 the program.
    """
    for event in cuda_errors(log, "unspecified launch failure", "'unknown error'", "CUDA error: unknown error"):
        yield said(log, event, "a kernel failed", codes=("rank-crashed", "gpu-hw-error"), **NODE)


_ENDED = (
    "ChildFailedError",
    "Sending process",
    "closing signal SIGTERM",
    "Received 15 death signal",
    "got signal: 15",
    "SignalException",
    "terminate called after throwing",
    "ProcessExitedException",
    "CalledProcessError",
    "failed (exitcode: ",
    "unexpectedly failed with exitcode=",
    "sigkill_handler] Killing subprocess",
)


@cause(
    signs=(*_ENDED, "Root Cause (first observed failure)"),
    echoes=("*",),
    bad=lambda: [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "W0102 03:04:05.000000 77 api.py:900] Sending process 78 closing signal SIGTERM",
        "[rank1]: terminate called after throwing an instance of 'c10::DistBackendError'",
        "E0102 03:04:05.000000 77 api.py:1] failed (exitcode: -6) local_rank: 1 (pid: 78) of binary: /usr/bin/python",
        "[2026-01-02 03:04:05,000] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 78",
    ],
    good=lambda: ["[rank1]: loss 2"],
)
def ended_by_the_launcher(log: JobLog) -> Iterator[Finding]:
    """A launcher ended its ranks, or a rank aborted, after another failed.

    Right: No launcher ended its ranks.
    Why: launchers end all ranks of a host when one has failed; what they say names the victims with the culprit.
    Fix: look at the first failure, torchrun's "Root Cause".
    """
    for event in log.events:
        code = _signal(event)
        summary = event.level in ("ROOT CAUSE", "FAILURE") and code not in _WORDS
        ended = _of_launcher(event.text) not in _WORDS and any(text in event.text for text in _ENDED)
        if summary or (not demoted(event) and ended):
            found = consequence(log, event, "a rank was ended after another failed")
            yield _after_the_first(log, event, found) if event.level == "FAILURE" else found


def _after_the_first(log: JobLog, event: LogEvent, found: Finding) -> Finding:
    """Return `found` as if it stood beneath torchrun's first observed failure, which the summary lists last."""
    roots = [e.line for e in log.events if e.stream == event.stream and e.level == "ROOT CAUSE" and e.line > event.line]
    occurrence = found.occurrence
    return replace(found, occurrence=replace(occurrence, line=min(roots))) if occurrence and roots else found
