"""What a host or container has too little of: memory of each kind, descriptors, room for a pod; a host that is gone."""

import re
from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import (
    CUDA_SIGNS,
    FAILED,
    JOB,
    LIMIT,
    NODE,
    UNPROVEN,
    blame_hosts,
    blame_no_rank,
    cuda_errors,
    demoted,
    each,
    failed,
    following,
    hosts,
    kernel_line_ranks,
    warned,
)
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.outcome import lived_on, worked_before
from ncclprobe.logs.texts import between, number
from ncclprobe.logs.torch_lines import TIMED_OUT
from ncclprobe.model.errors import NCCL_NO_MEMORY
from ncclprobe.model.findings import Finding

_OPENS = "unable to open shared memory object"
_SHM = (
    "failed to extend /dev/shm",
    "failed to create shared memory file",
    "insufficient shared memory",
    "out of shared memory",
    _OPENS,
    "Error while creating shared memory segment",
    "unable to write to file </torch_",
    "Call to posix_fallocate failed",
    "Call to ftruncate failed",
    "exceeds memory available in /dev/shm",
    "mm_iface failed to allocate receive FIFO",
)


@cause(
    code="shm-too-small",
    signs=_SHM,
    doctor="host.shm",
    bad=lambda: [
        "n1:7:7 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12cd to 33030532 bytes, "
        "error: No space left on device (28)"
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO fallocate: Failed to extend /dev/shm/nccl-Ab12cd to 33030532 bytes, error: Interrupted "
        "system call (4) - retrying"
    ],
)
def shared_memory_full(log: JobLog) -> Iterator[Finding]:
    """/dev/shm is too small.

    Right: /dev/shm had enough space for all shared memory.
    Why: ranks on one host without peer access, and the workers of torch's data loaders, share memory in /dev/shm. By
    default a container gets 64 MB, and files left by killed jobs also use this space.
    Fix: use `docker run --shm-size=16g` or `--ipc=host`, or in Kubernetes an emptyDir with `medium: Memory` at
    /dev/shm. Remove /dev/shm/nccl-* files of earlier jobs.
    """
    for event in log.having(*_SHM):
        if demoted(event):
            continue
        if _OPENS not in event.text:
            yield said(log, event, "/dev/shm is full", **LIMIT)
        elif not any(log.having(*_FILES)):  # shm_open(3) fails for want of descriptors, and hardly ever of room
            unopened = "a shared memory object cannot be opened"
            yield said(log, event, unopened, codes=("fd-limit", "shm-too-small"), **JOB)


_REFUSED = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Unable to allocate",
    "std::bad_alloc",
    "cannot allocate memory for thread-local data",
    "[Errno 12] Cannot allocate memory",
)
"""A program's text for memory that it did not get, on a full host or at a limit of its own (ulimit -v)."""
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
    "exceeded K8s pod memory limits",
    "TERM_MEMLIMIT: job killed",
    "PBS: job killed: mem ",
    *_REFUSED,
)
_LIMITS = (
    "CONSTRAINT_MEMCG",
    "cgroup",
    "OOMKilled",
    "OOM Killed",
    "oom_kill event",
    "memory limits",
    "Out Of Memory",
    "job killed",
)
"""The job reached a limit of its own; otherwise all that runs on the host shares the fault."""
_REPORT_LINES = 3
"""The kernel's report begins with the process that asked; a little below it shows whether a limit was reached."""
_NO_MEMORY = ("CUDA out of memory", '"OOMKilled":false', '"OOMKilled": false')
_ALLOCATED = re.compile(r"Unable to allocate (?!(?:[\d.]{1,12} ?(?:[KMGT]i?B|bytes)|memory|array)\b)")
"""Something other than memory, such as a scheduler's resources or a device's registers."""


@cause(
    code="oom",
    signs=_HOST_OOM,
    doctor="host.oom",
    bad=lambda: ["[ 912.1] Out of memory: Killed process 77 (python) total-vm:904112kB, anon-rss:812000kB"],
    good=lambda: ["[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"],
)
def host_memory_full(log: JobLog) -> Iterator[Finding]:
    """The host's or container's memory is full, and a rank was killed.

    Right: No rank was killed because memory ran out.
    Why: the kernel kills the process that uses the most memory, such as a rank that loads a checkpoint, or its data
    loaders. The process itself writes nothing, and the others lose the connection to it.
    Fix: give the job more memory (Slurm --mem, Kubernetes limits), use fewer data-loader workers, or load checkpoints
    on one rank or with mmap=True.
    """
    for event in log.having(*_HOST_OOM):
        if not (any(text in event.text for text in _NO_MEMORY) or _ALLOCATED.search(event.text[:512])):
            may = "may have" in event.text
            message = "the host's memory was full, and a process was killed"
            message = "host memory could not be allocated" if any(w in event.text for w in _REFUSED) else message
            message = "a process ended, perhaps at the memory limit of its pod" if may else message
            texts = (event.text, *(other.text for other in following(log, event, _REPORT_LINES)))
            whose = JOB if any(limit in text for limit in _LIMITS for text in texts) else UNPROVEN
            codes = ("oom", "rank-crashed") if may else ()
            found = said(log, event, message, ranks=kernel_line_ranks(log, event), codes=codes, **whose)
            yield _add_ray_node(log, event, found) if "running low on memory" in event.text else found


def _add_ray_node(log: JobLog, event: LogEvent, found: Finding) -> Finding:
    """Return Ray's report of full memory with the node that it names there, or in the line beneath."""
    texts = (event.text, *(other.text for other in following(log, event, 2)))
    host = next((ip for text in texts if (ip := between(text, "the node (IP: ", ","))), "")
    return blame_hosts(found, host) if host else found


_OF_RAY = "ray.exceptions."
"""Before the name of an exception that speaks of a host's memory."""
_OOM = ("CUDA out of memory", "OutOfMemoryError", "HIP out of memory",
        "RESOURCE_EXHAUSTED: Out of memory", "OUT_OF_DEVICE_MEMORY")  # fmt: skip
_BEGIN_BLAS = ("CUBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_ALLOC_FAILED")
_BLAS = ("oom", "cuda-driver-mismatch", "rank-crashed")
"""The last of a rank one of whose kernels failed before: nothing runs any more in its process."""


@cause(
    code="oom",
    signs=(*_OOM, *_BEGIN_BLAS, *NCCL_NO_MEMORY, *CUDA_SIGNS),
    doctor="gpu.busy",
    bad=lambda: ["[rank2]: RuntimeError: CUDA error: out of memory"],
    good=lambda: ["n1:7:7 [0] NCCL INFO Cuda failure 2 'out of memory'"],
)
def gpu_memory_full(log: JobLog) -> Iterator[Finding]:
    """A GPU's memory is full.

    Right: No GPU ran out of memory.
    Why: the rank fails at the allocation, and the others wait in the next collective. NCCL needs a few hundred MB per
    communicator for its own buffers, in addition to what the framework reserves.
    Fix: use a smaller batch or more sharding, and check `nvidia-smi` for leftover processes. To reduce NCCL's buffers,
    use fewer process groups, or a lower NCCL_MAX_CTAS or NCCL_BUFFSIZE.
    """
    for event in log.having(*_OOM):
        tried = any(words in event.text for words in ("CUDA out of memory. ", "Error", "HIP out", "OUT_OF_DEVICE"))
        caught = event.level == "WARN" and (warned(event) or not event.place)  # the program goes on with less
        caught = caught and not _could_not_go_on(log, event)
        if not demoted(event) and not caught and tried and _OF_RAY not in event.text:
            yield said(log, event, _full(event.text), **JOB)
    yield from each(log, _BEGIN_BLAS, "cuBLAS could not start on a GPU, usually for lack of memory", codes=_BLAS, **JOB)
    nvls = {event.text for event in cuda_errors(log, "out of memory") if "nvls" in event.place}
    for event in cuda_errors(log, "out of memory"):
        if event.text.strip() not in nvls and "OutOfMemoryError" not in event.text:
            yield said(log, event, "a GPU's memory is full", **JOB)
    yield from each(log, NCCL_NO_MEMORY, "a GPU has no memory left for NCCL's buffers", **JOB)


_SOON = 40


def _could_not_go_on(log: JobLog, event: LogEvent) -> bool:
    """Return whether no step was made after an error that a rank caught, and the job failed: it had left the others."""
    soon = any(other.level in ("EXCEPTION", "FATAL") for other in following(log, event, _SOON))
    return not lived_on(log, event) and (soon or (event.step is not None and failed(log)))


def _full(text: str) -> str:
    """Return whose memory is full, and who has most of it: if more is free than was asked for, a limit is reached."""
    gpu = number(between(text, "GPU ")) if "Tried to allocate" in text else None
    whose = "a GPU's memory" if gpu is None else f"the memory of GPU {gpu}"
    asked = _gib(between(text, "Tried to allocate "))
    free = _gib(between(text, "of which "))
    others = len(_OF_OTHERS.findall(text))
    more = f", {others} processes besides this one" if others else ""
    if asked is None or free is None or free - asked < _SPARE_GIB:
        return f"{whose} is full{more}"
    return (
        f"the process may not use more of a GPU's memory, although {free:.0f} GiB are free: it has its own limit "
        "(set_per_process_memory_fraction, max_split_size_mb), or its MIG instance has one"
    )


_SPARE_GIB = 1.0
_OF_OTHERS = re.compile(r"\bProcess \d{1,10} has \S{1,12} [GMK]iB memory in use")


def _gib(text: str) -> float | None:
    """Return the size that a text begins with, such as ``3.91 GiB``; None: it is none."""
    value, _, rest = text.partition(" ")
    unit = {"G": 1.0, "M": 2.0**-10, "K": 2.0**-20}.get(rest[:1])
    return float(value) * unit if unit and value.replace(".", "", 1).isdecimal() else None


_FILES = ("Too many open files", "too many open files")


@cause(
    code="fd-limit",
    signs=_FILES,
    doctor="host.limits",
    bad=lambda: ["OSError: [Errno 24] Too many open files: '/data/x'"],
    good=lambda: ["open files (-n) 1048576"],
)
def file_descriptors(log: JobLog) -> Iterator[Finding]:
    """A process reached its limit on open files.

    Right: No process ran out of file descriptors.
    Why: every peer, channel and data-loader worker uses descriptors. In many shells and containers the limit is 1,024.
    Fix: set `ulimit -n 1048576` in the job, `docker run --ulimit nofile=1048576`, or LimitNOFILE of slurmd or
    containerd.
    """
    yield from each(log, _FILES, "a process has no file descriptors left", **JOB)


_GONE, _LOST = "Node failure on ", "DUE TO NODE FAILURE"
_NOT_READY = " status is now: NodeNotReady"
_PANIC = "Kernel panic - not syncing"


@cause(
    code="rank-crashed",
    signs=(_GONE, _LOST, _NOT_READY, _PANIC),
    bad=lambda: [
        "srun: error: Node failure on node-7\nsrun: Job step aborted: Waiting up to 32 seconds for job step to "
    ],
    good=lambda: ["slurmstepd: error: *** STEP 7.0 ON node-7 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"],
)
def node_failed(log: JobLog) -> Iterator[Finding]:
    """Slurm or Kubernetes lost a host of the job, or its kernel panicked.

    Right: The scheduler lost no host of the job, and no kernel panicked.
    Why: a scheduler marks a host as failed if its slurmd or kubelet no longer responds, because the host crashed, lost
    power or lost its network. Its ranks end without a message, and the others lose the connection to them.
    Fix: look for the reason with `scontrol show node HOST` or `kubectl describe node HOST`, on the host's console and
    in its kernel log. Exclude the host (`--exclude=HOST`, `kubectl cordon HOST`).
    """
    for event in log.having(_GONE):
        yield said(log, event, "Slurm lost this host", **NODE)
    for event in log.having(_PANIC):
        yield said(log, event, "the kernel of a host panicked, which ends every process there", **NODE)
    for event in log.having(_LOST):
        yield blame_no_rank(said(log, event, "Slurm lost a host of the job", **NODE))
    for event in log.having(_NOT_READY) if failed(log) else ():
        host = event.text.partition(_NOT_READY)[0].rpartition(" ")[2]
        yield blame_hosts(said(log, event, "Kubernetes lost this host: it is not ready", **NODE), host, ranks=())


_EVICTED = ("The node was low on resource", "pod is evicted successfully")
_PLACED = "Successfully assigned "


@cause(
    code="ended-from-outside",
    signs=(*_EVICTED, _PLACED),
    echoes=("oom",),
    bad=lambda: [
        "3m  Warning  Evicted  pod/w-0  The node was low on resource: ephemeral-storage.\n"
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.9]:7"
    ],
    good=lambda: ["3m  Warning  Evicted  pod/w-0  The node was low on resource: ephemeral-storage.\nstep 7 loss 2"],
)
def pod_evicted(log: JobLog) -> Iterator[Finding]:
    """Kubernetes evicted a pod because its node was low on memory or disk space.

    Right: No pod of a failed job was evicted.
    Why: when a node runs low on resources, the kubelet ends the pods that exceed their requests most. The other ranks
    wait for the pod's ranks, or lose their connections.
    Fix: run `kubectl describe node` for that node. Add what the pod needs (ephemeral-storage, memory) to its requests,
    and move caches and checkpoints to a volume.
    """
    placed = {pod: event.text.rpartition(" to ")[2] for event in log.having(_PLACED) if (pod := _pod(event.text))}
    for event in log.having(*_EVICTED) if failed(log) else ():
        pod = _pod(event.text)
        if _is_foreign_pod(log, pod):
            continue
        host = event.host or placed.get(pod, "").strip()
        what = between(event.text, "low on resource: ", ". ").rstrip(".")
        message = f"Kubernetes evicted {pod or 'a pod'}" + (f": its node was low on {what}" if what else "")
        yield blame_hosts(said(log, event, message, **NODE), *filter(None, (host,)))


_SILENT, _ANSWERS = " not responding, ", "nfs: server "
_BLOCKED = "blocked for more than "


@cause(
    code="timeout-straggler",
    signs=(_SILENT, _ANSWERS, _BLOCKED),
    bad=lambda: [
        "[ 812.1] nfs: server 10.0.0.9 not responding, still trying\n"
        "[rank1]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation"
    ],
    good=lambda: [
        "[ 812.1] nfs: server 10.0.0.9 not responding, still trying\n[ 818.1] nfs: server 10.0.0.9 OK\n"
        "[rank1]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation"
    ],
)
def storage_stalled(log: JobLog) -> Iterator[Finding]:
    """The kernel waits for a file server, or a process is blocked in the kernel.

    Right: No host of a failed job waited for a file server.
    Why: a read or write to a server that does not respond blocks a rank in a state that no signal can interrupt. The
    others wait for it in the next collective (fs/nfs and net/sunrpc, kernel/hung_task.c).
    Fix: run `ls` on the mount on that host, and check the server's log and network. `cat /proc/PID/stack` of a blocked
    process shows what it waits for.
    """
    if not failed(log):
        return
    for event in log.having(_SILENT):
        server = between(event.text, _ANSWERS, " ")
        if server and not _answered(log, event, server) and not _long_over(log, event):
            yield said(log, event, f"the file server {server} does not respond", **UNPROVEN)
    for event in log.having(_BLOCKED):
        name = between(event.text, "task ", ":")
        if name and "seconds" in event.text and not _long_over(log, event):
            codes = ("timeout-straggler", "rank-crashed", "gpu-hw-error")
            yield said(
                log,
                event,
                f"{name} is blocked in the kernel, for example on a disk or a file server",
                codes=codes,
                **UNPROVEN,
            )


_A_DAY_S = 86_400.0
"""No rank waits longer than so for another; and clocks of several zones differ by less."""


def _answered(log: JobLog, event: LogEvent, server: str) -> bool:
    """Return whether a server answered the same host again, after it had not."""
    back = (e for e in log.having(f"{_ANSWERS}{server} ") if e.text.rstrip().endswith(" OK"))
    return any(_same_host(each, event) and not _earlier(each, event) for each in back)


def _same_host(one: LogEvent, other: LogEvent) -> bool:
    return one.host == other.host or not (one.host and other.host)


def _earlier(one: LogEvent, other: LogEvent) -> bool:
    """Return whether one of two lines is known to be earlier: by its place in their log, otherwise by their times."""
    if one.stream == other.stream:
        return one.line < other.line
    return one.time_s is not None and other.time_s is not None and one.time_s < other.time_s


def _long_over(log: JobLog, event: LogEvent) -> bool:
    """Return whether a line is of so long before the first failure that who was stuck then had been missed before."""
    failures = [e.time_s for e in log.having(*FAILED) if e.time_s is not None and e.level != "INFO"]
    return event.time_s is not None and bool(failures) and event.time_s < min(failures) - _A_DAY_S


_UNPLACED = (" nodes are available: ", "FailedScheduling")
_MET = (TIMED_OUT, "- Init COMPLETE")
"""What ranks say when all were there: torch's watchdog watches no collective before (init_process_group)."""


@cause(
    code="world-size-mismatch",
    signs=(*_UNPLACED, _PLACED, *_MET),
    bad=lambda: [
        "2m  Warning  FailedScheduling  pod/w-1  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.\n"
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined."
    ],
    good=lambda: [
        "2m  Warning  FailedScheduling  pod/w-1  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.\n"
        "1m  Normal  Scheduled  pod/w-1  Successfully assigned default/w-1 to n4\n"
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined."
    ],
)
def pod_not_placed(log: JobLog) -> Iterator[Finding]:
    """Kubernetes finds no node for a pod of the job.

    Right: Every pod of a failed job was placed on a node.
    Why: if no node has enough resources for a pod, it stays Pending, and the ranks in the other pods wait for its ranks
    until they time out.
    Fix: run `kubectl describe pod` to see why each node was rejected (GPUs, memory, a taint, an affinity). Free
    resources or request less, and start all pods of a job at once (gang scheduling with Kueue or Volcano).
    """
    runs = bool(log.ranks) and not failed(log)
    if runs or any(True for _ in log.having(*_MET)) or worked_before(log, None):
        return
    placed = [*log.having(_PLACED)]
    for event in log.having(*_UNPLACED):
        pod = _pod(event.text)
        later = any(_pod(each.text) == pod or (not pod and not _earlier(each, event)) for each in placed)
        if "nodes are available: " in event.text and not later and not _is_foreign_pod(log, pod):
            short = event.text.partition("nodes are available: ")[2].partition(". preemption")[0].strip(". ")
            message = f"Kubernetes found no node for {pod or 'a pod'}: {short}"
            yield blame_no_rank(said(log, event, message, **JOB))


def _pod(text: str) -> str:
    """Return the pod of an event or of a kubelet's line, without its namespace; empty: none is named."""
    name = between(text, "pod/", " ") or between(text, 'pod="', '"') or between(text, _PLACED, " ")
    return name.rpartition("/")[2]


def _is_foreign_pod(log: JobLog, pod: str) -> bool:
    """Return whether a pod is none of the job's: its ranks name their pods as their hosts, all of another set."""
    known = hosts(log) & {_pod(event.text) for event in log.having(_PLACED, *_UNPLACED, *_EVICTED)}
    return bool(pod and known) and pod.rpartition("-")[0] not in {each.rpartition("-")[0] for each in known}
