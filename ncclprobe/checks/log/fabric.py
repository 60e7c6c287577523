"""NVSwitch and NVLink between GPUs: the fabric manager, IMEX channels, NVLS."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import CUDA_SIGNS, NODE, cuda_errors, demoted, each, following, informed
from ncclprobe.logs.job_log import JobLog
from ncclprobe.model.findings import Finding

_NOT_READY = ("system not yet initialized", "GPU fabric is not ready within")
_APART = ("don't match with driver version", "doesn't match driver version", "does not match driver version")
_NOT_STARTED = ("Failed to start nvidia-fabricmanager", "Failed to start NVIDIA fabric manager")
"""The fabric manager's words when it is not of the driver's version, and systemd's."""
BIND = "Failed to bind NVLink SHARP (NVLS) Multicast memory"
_NVLINK_OFF = "P2P is disabled between NVLINK connected GPUs"
_UNKNOWN_STATE = ("invalid argument", "present state", "operation not supported", "unknown error", "not permitted")


@cause(
    code="fabric-manager",
    signs=(*CUDA_SIGNS, *_NOT_READY, *_APART, *_NOT_STARTED, BIND),
    doctor="nvl.fabric",
    bad=lambda: ["[rank0]: RuntimeError: CUDA error: system not yet initialized"],
    good=lambda: [f"n1:7:7 [0] transport/nvls.cc:376 NCCL WARN {BIND} of size 2097152 : CUDA error 2 'out of memory'."],
)
def fabric_not_ready(log: JobLog) -> Iterator[Finding]:
    """The NVSwitch fabric is not ready, or its manager is not running or has the wrong version.

    Right: No GPU waits for its NVSwitch fabric.
    Why: on machines with NVSwitches, CUDA cannot start until the fabric manager has configured them. If the manager is
    not running, or its version differs from the driver's, CUDA fails with "system not yet initialized", or NVLS cannot
    be bound.
    Fix: run `systemctl status nvidia-fabricmanager` and `nvidia-smi -q | grep -A3 Fabric` on this host. Install the
    manager with exactly the driver's version and restart it.
    """
    yield from each(log, _NOT_READY, "the NVSwitch fabric is not ready", **NODE)
    yield from each(
        log, _APART, "the fabric manager does not run, because its version differs from the driver's", **NODE
    )
    if not any(log.having(*_APART)):
        yield from each(log, _NOT_STARTED, "the fabric manager did not start", **NODE)
    for event in log.having(BIND):
        if not demoted(event) and any(words in event.text for words in _UNKNOWN_STATE):
            yield said(log, event, "NVLS memory cannot be bound, because the fabric refuses it", **NODE)


@cause(
    signs=(_NVLINK_OFF,),
    doctor="nvl.links",
    bad=lambda: [
        f"n1:7:7 [0] graph/paths.cc:396 NCCL WARN {_NVLINK_OFF} 0 and 1. This should not be the case given their "
        "connectivity, and is probably due to a hardware issue."
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO P2P is disabled between connected GPUs 0 and 1. You can repress this message with "
        "NCCL_IGNORE_DISABLED_P2P=1."
    ],
)
def nvlink_without_peer_access(log: JobLog) -> Iterator[Finding]:
    """GPUs that NVLink connects cannot access each other's memory.

    Right: All GPUs that NVLink connects can access each other's memory.
    Why: the driver allows peer access over NVLink unless links are down, the fabric manager has not joined the GPU, or
    MIG is on.
    Fix: run `nvidia-smi nvlink -s`, `nvidia-smi topo -p2p r` and `systemctl status nvidia-fabricmanager` on this host.
    """
    codes = ("gpu-hw-error", "fabric-manager", "mig")
    yield from each(
        log, (_NVLINK_OFF,), "NVLink connects two GPUs, but peer access between them is off", codes=codes, **NODE
    )


_IMEX = ("Check the IMEX c", "nvidia-caps-imex-channels", "IMEX channel")


_IMEX_HINT = ("IMEX (NVLink fabric) service is not running",)


@cause(
    code="imex-missing",
    signs=(*_IMEX, *_IMEX_HINT, "MNNVL", *CUDA_SIGNS),
    doctor="nvl.fabric",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 0\n"
        "n1:7:9 [0] transport/p2p.cc:240 NCCL WARN Cuda failure 800 'operation not permitted'"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 0"],
)
def no_imex_channel(log: JobLog) -> Iterator[Finding]:
    """No IMEX channel exists for NVLink between hosts.

    Right: Every rank of an NVLink domain that spans hosts has an IMEX channel.
    Why: GPUs on different hosts open each other's memory through fabric handles. These require the nvidia-imex service
    on all hosts and a channel device in each container.
    Fix: check that `nvidia-imex-ctl -N` shows the domain READY on all hosts. Give containers
    /dev/nvidia-caps-imex-channels/channel0 (a ComputeDomain in Kubernetes). To confirm the cause, start once with
    NCCL_MNNVL_ENABLE=0.
    """
    for event in log.having(*_IMEX, "MNNVL is not supported on this system"):
        if not demoted(event):
            yield said(log, event, "NVLink between hosts has no IMEX channel", **NODE)
    for event in cuda_errors(log, "operation not permitted") if any(True for _ in log.having("MNNVL 1")) else ():
        if event.place.startswith(("transport/p2p", "transport.cc", "allocator", "mem_manager")):
            yield said(log, event, "a GPU's memory cannot be shared over NVLink between hosts", **NODE)
    message = "NCCL attributes the error to the IMEX service"
    yield from informed(log, _IMEX_HINT, message, codes=("imex-missing", "fabric-manager"), **NODE)


@cause(
    code="nvls-slots",
    signs=(*CUDA_SIGNS, BIND),
    bad=lambda: ["n1:7:7 [0] transport/nvls.cc:245 NCCL WARN Cuda failure 2 'out of memory'"],
    good=lambda: ["n1:7:7 [0] NCCL INFO NVLS multicast support is available on dev 0"],
)
def nvls_used_up(log: JobLog) -> Iterator[Finding]:
    """The NVSwitches' multicast groups are used up.

    Right: Every NVLS group could be created.
    Why: each communicator with NVLS uses multicast groups of the NVSwitches, and GPU memory for them. Many
    communicators, or processes left by an earlier job, use them up.
    Fix: to continue now, set NCCL_NVLS_ENABLE=0. Use fewer communicators with NVLS, and end leftover processes
    (`nvidia-smi`). If that does not help, restart the fabric manager.
    """
    for event in cuda_errors(log, "out of memory"):
        if "nvls" in event.place:
            yield said(log, event, "no multicast group is left for NVLS", **NODE)
    for event in log.having(BIND):
        rest = (event, *following(log, event, 2))
        if not demoted(event) and any("out of memory" in each_line.text for each_line in rest):
            yield said(log, event, "no multicast memory is left for NVLS", **NODE)
