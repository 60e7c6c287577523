"""Memory that cannot be registered for a device: most often for the limit on what may be locked."""

import re
from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import (
    JOB,
    LIMIT,
    NODE,
    UNPROVEN,
    demoted,
    each,
    following,
)
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.texts import between
from ncclprobe.model.findings import Finding

_REGISTER = ("Call to ibv_reg_mr", "Call to ibv_reg_dmabuf_mr")
_CREATE = ("Call to ibv_create_cq failed", "Call to ibv_create_qp failed", "Call to ibv_alloc_pd failed")
_ENOMEM = "Cannot allocate memory"
_OF_UCX = ("ibv_reg_mr(address", "ibv_reg_mr_iova2(address")
_ULIMIT = "ulimit -l"
_LOCKED = ("RLIMIT_MEMLOCK", "memlock limit", _ULIMIT)
_LIMIT = ("locked memory", "locked-in-memory", "unlimited")
_IN_TABLE = re.compile(
    r"\s{0,8}(?:max |MEMLOCK {1,8}max |-l: )?locked(?:-in-| )memory(?: address space| size)?"
    r"(?: {0,16}\(kbytes(?:, -l)?\))? {1,32}(unlimited|\d{1,20})\b",
    re.IGNORECASE,
)
"""As ``ulimit -a`` of several shells, ``/proc/PID/limits`` and prlimit have it; of two the first is in force."""
_IN_A_LINE = re.compile(r"\W{0,4}ulimit -l ?[:=] ?(unlimited|\d{1,20})\b")
_RAISED = re.compile(r"ulimit -\w{1,8} (?:unlimited|hard)\b")


def _registrations(log: JobLog, signs: tuple[str, ...]) -> Iterator[tuple[LogEvent, str]]:
    """Yield failed calls with what the line gives as their error, empty in releases that print none."""
    for event in log.having(*signs):
        if "failed" in event.text and not demoted(event):
            yield event, between(event.text, "failed with error ", " errno").strip()


@cause(
    code="memlock",
    signs=(*_REGISTER, *_CREATE, *_LOCKED, *_LIMIT, *_OF_UCX),
    doctor="host.limits",
    bad=lambda: [
        "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    ],
    good=lambda: ["n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Bad address"],
)
def locked_memory(log: JobLog) -> Iterator[Finding]:
    """The limit on locked memory prevents memory registration.

    Right: No registration failed because of the limit on locked memory.
    Why: RDMA locks every page that it uses. Many container runtimes and sshd set `ulimit -l` to 64 kB by default, and
    then even the first buffers and queues fail with ENOMEM.
    Fix: use `ulimit -l unlimited` in the job, `docker run --ulimit memlock=-1`, or `LimitMEMLOCK=infinity` for
    containerd, slurmd or sshd. To confirm, run `ulimit -l` inside a job.
    """
    for event in log.having(*_OF_UCX):
        if event.text.endswith(_ENOMEM) and not _unlimited(log, event.host):
            yield said(log, event, f"UCX's ibv_reg_mr failed: {_ENOMEM}", **LIMIT)
    for event, error in _registrations(log, (*_REGISTER, *_CREATE)):
        if (error.startswith(_ENOMEM) or not error) and _unlimited(log, event.host):
            continue
        if error.startswith(_ENOMEM):
            yield said(log, event, f"{_call(event)} failed: {error}", **LIMIT)
        elif not error and _said_low(log, event.host):
            yield said(log, event, f"{_call(event)} failed, and the limit on locked memory is low", **LIMIT)
        elif not error and any(call in event.text for call in _CREATE):
            yield said(log, event, f"{_call(event)} failed", codes=("memlock", "ib-device-not-in-container"), **JOB)


@cause(
    signs=(*_REGISTER, *_CREATE, *_LOCKED, *_LIMIT),
    doctor="host.limits",
    bad=lambda: [
        "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
        "$ ulimit -l\nunlimited"
    ],
    good=lambda: [
        "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
        "$ ulimit -l\n64"
    ],
)
def refused_without_a_limit(log: JobLog) -> Iterator[Finding]:
    """Memory cannot be registered although locked memory is not limited.

    Right: No registration failed without a limit on locked memory.
    Why: the limit is the usual reason for ENOMEM, but that host has no limit. The firmware, the IOMMU and the driver
    return the same error, and the line does not show which one did.
    Fix: read the kernel log of that host at that minute. Run `cat /proc/PID/limits` for the rank itself, because its
    limit may differ from the shell's. To confirm the cause, start once with NCCL_NET_GDR_LEVEL=LOC.
    """
    for event, error in _registrations(log, (*_REGISTER, *_CREATE)):
        if (error.startswith(_ENOMEM) or not error) and _unlimited(log, event.host):
            refused = f"{_call(event)} failed ({error or 'no error is printed'}), although locked memory is not limited"
            yield consequence(log, event, refused, **UNPROVEN)


def _unlimited(log: JobLog, host: str) -> bool:
    """Return whether all answers of a host show no limit on locked memory; an answer without a host is its own."""
    found = [*_answers(log, host)]
    return bool(found) and all(found)


def _said_low(log: JobLog, host: str) -> bool:
    """Return whether an answer of a host, or a program, shows that the limit on locked memory is low."""
    told = (
        e for e in log.having(*_LOCKED) if not (_asks(e.text) or _IN_A_LINE.match(e.text) or _RAISED.search(e.text))
    )
    return any(True for _ in told) or not all(_answers(log, host))


def _asks(text: str) -> bool:
    return text.rstrip(" '\"").endswith(_ULIMIT)


def _answers(log: JobLog, host: str) -> Iterator[bool]:
    """Yield of each answer of a host, or of what runs on it, to what the limit is, whether there is none."""
    for event in log.having(*_LIMIT, _ULIMIT):
        if event.host not in ("", host):
            continue
        if found := _IN_TABLE.match(event.text) or _IN_A_LINE.match(event.text):
            yield found[1] == "unlimited"
        elif _asks(event.text):
            yield any(each.text.strip() == "unlimited" for each in following(log, event, 1))


def _call(event: LogEvent) -> str:
    return between(event.text, "Call to ", " ") or "a registration"


@cause(
    code="kernel-pin-failure",
    signs=(*_REGISTER, *_LOCKED, "OS call failed or operation not supported on this OS", "microsoft-standard", "WSL2"),
    doctor="ib.gdr",
    bad=lambda: ["n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Bad address"],
    good=lambda: [
        "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
    ],
)
def pinning_failed(log: JobLog) -> Iterator[Finding]:
    """The kernel cannot pin memory for a device.

    Right: The kernel pinned all memory that ranks registered.
    Why: EFAULT or EINVAL for GPU memory means that no module translates it for the NIC, because nvidia-peermem is not
    loaded or belongs to another driver. For host memory it means that the kernel or sandbox does not support pinning
    (gVisor, some virtual machines).
    Fix: check `lsmod | grep nvidia_peermem`, and run `modprobe nvidia-peermem` after the NIC's driver is loaded. Or use
    the open kernel modules with DMA-BUF. To confirm the cause, start once with NCCL_NET_GDR_LEVEL=LOC.
    """
    for event, error in _registrations(log, ("Call to ibv_reg_mr",)):
        if error and not error.startswith(_ENOMEM):
            yield said(log, event, f"{_call(event)} failed: {error}", **NODE)
        elif not error and not _said_low(log, event.host):
            yield said(log, event, "memory cannot be registered", codes=("kernel-pin-failure", "memlock"), **NODE)
    if not any(True for _ in log.having("microsoft-standard", "WSL2")):
        signs = ("OS call failed or operation not supported on this OS",)
        yield from each(log, signs, "the kernel refused to pin host memory for a GPU", **NODE)
