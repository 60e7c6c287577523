"""What would explain trouble of a job whose log names none: ranks that may not meet, and paths that are slow."""

import re
from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import JOB, failed, hosts, informed, rdma_found
from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.texts import between, number
from ncclprobe.model.findings import Finding, Severity

_BOOTSTRAP = "Bootstrap : Using"
_INTERFACE = re.compile(r"Using ?(?:\[\d{1,3}\])?([\w.@-]{1,32}):([0-9a-fA-F.:]{3,45})<")
_VIRTUAL = re.compile(r"(?:veth|docker|virbr|br-|cni|lxc|cali|flannel|cilium|tun|tap|wg|lo)")
_BARRIER = "store_based_barrier_key"


def _begun(first: str, second: str) -> str:
    """Return the first lines of two hosts, for examples."""
    line = "n{0}:7:7 [0] NCCL INFO Bootstrap : Using {1}:10.0.0.{0}<0>\n"
    return line.format(0, first) + line.format(1, second)


@cause(
    code="iface-wrong-veth",
    signs=(_BOOTSTRAP, _BARRIER),
    doctor="env.ifname",
    bad=lambda: [_begun("eth0", "veth1a2b")],
    good=lambda: [_begun("eth0", "eth0")],
)
def ranks_may_not_meet(log: JobLog) -> Iterator[Finding]:
    """Ranks use interfaces that others may not reach, although no line reports a failure.

    Right: All ranks use the same kind of interface, and no extra workers joined.
    Why: NCCL uses the first interface that is up. If that interface exists only within its host, or is on a different
    network from the others, all ranks wait without an error. If there are more workers than ranks, the extra ones
    belong to another job that uses the same store.
    Fix: set NCCL_SOCKET_IFNAME on every host to the interface that the other hosts use. If there are too many workers,
    give each job its own port or `--rdzv-id`.
    """
    if failed(log):
        return
    using = {e.host: (found[1], found[2], e) for e in log.having(_BOOTSTRAP) if (found := _INTERFACE.search(e.text))}
    real = sorted({name for name, _, _ in using.values() if not _VIRTUAL.match(name)})
    for host, (name, address, event) in using.items() if real else ():
        if _VIRTUAL.match(name):
            message = f"{host} uses {name} ({address}) which may be unreachable from {real[0]} of the others"
            remedy = f"NCCL_SOCKET_IFNAME={real[0]} on every node"
            yield said(log, event, message, severity=Severity.WARN, remedy=remedy, **JOB)
    for event in log.having(_BARRIER):
        came, wanted = (number(between(event.text, name)) for name in ("worker_count=", "world_size="))
        if came and wanted and came > wanted:
            message = f"{came} workers joined a barrier for {wanted} ranks"
            codes = ("world-size-mismatch",)
            yield said(log, event, message, codes=codes, severity=Severity.WARN, **JOB)


_SOCKET, _NO_DEVICE = "Using network Socket", "NET/IB : No device found"
_NO_VERBS = ("Failed to open libibverbs.so", "Failed to load libibverbs")
_NO_PROVIDER = "No eligible providers were found"
_SET = " set by environment to "
_IB_OFF = f"NCCL_IB_DISABLE{_SET}1"
_COSTLY = {
    _IB_OFF: ("slow-socket-fallback", "NCCL_IB_DISABLE=1 stops NCCL from using InfiniBand and RoCE"),
    f"NCCL_P2P_DISABLE{_SET}1": (
        "nccl-setting",
        "NCCL_P2P_DISABLE=1 sends data through the host that NVLink could carry",
    ),
    f"NCCL_SHM_DISABLE{_SET}1": ("nccl-setting", "NCCL_SHM_DISABLE=1 sends data over the network even within a host"),
    f"NCCL_NVLS_ENABLE{_SET}0": ("nvls", "NCCL_NVLS_ENABLE=0 turns off reductions in the NVSwitches"),
    f"NCCL_MNNVL_ENABLE{_SET}0": ("nccl-setting", "NCCL_MNNVL_ENABLE=0 turns off NVLink between nodes"),
    f"NCCL_NET_GDR_LEVEL{_SET}LOC": ("gdr-off", "NCCL_NET_GDR_LEVEL=LOC turns GPUDirect RDMA off"),
    f"NCCL_NET_GDR_LEVEL{_SET}0": ("gdr-off", "NCCL_NET_GDR_LEVEL=0 turns GPUDirect RDMA off"),
    f"NCCL_NET_GDR_READ{_SET}0": ("gdr-off", "NCCL_NET_GDR_READ=0 turns off GPUDirect RDMA for sending"),
}
"""Settings that cost bandwidth, by NCCL's line of them: the code, and what each does."""


@cause(
    code="slow-socket-fallback",
    signs=(_SOCKET, _NO_DEVICE, *_NO_VERBS, _NO_PROVIDER, *_COSTLY),
    doctor="env.transport",
    bad=lambda: ["n1:7:7 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1."],
    good=lambda: ["n1:7:7 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVL."],
)
def slow_path(log: JobLog) -> Iterator[Finding]:
    """NCCL uses a slower path than it could, because of a setting or a missing driver.

    Right: No setting or missing driver keeps NCCL from its fastest paths.
    Why: NCCL continues without an error over sockets, without GPUDirect or without NVLink, at a fraction of the rate.
    Fix: unset the variable that the line names. If NCCL uses sockets, find out why it found no RDMA device: check
    `ibv_devinfo` in the container, libibverbs, and the plugin's provider.
    """
    if failed(log):
        return
    for line, (code, message) in _COSTLY.items():
        event = next((each for each in log.having(line) if each.text.partition(line)[2][:1] in ("", ".")), None)
        if event is not None:
            remedy = f"unset {line.partition(_SET)[0]}, unless it works around a fault"
            yield said(log, event, message, codes=(code,), severity=Severity.WARN, remedy=remedy, **JOB)
    if len(hosts(log)) > 1 and not rdma_found(log) and next(log.having(_IB_OFF), None) is None:
        code, why = _why_no_rdma(log)
        yield from informed(log, (_SOCKET,), f"sockets are used: {why}", codes=(code,), severity=Severity.WARN)


def _why_no_rdma(log: JobLog) -> tuple[str, str]:
    """Return why a job without an RDMA device has none, by code and in words."""
    if next(log.having(*_NO_VERBS), None):
        return "libibverbs-missing", "libibverbs is not in the image"
    if next(log.having(_NO_PROVIDER), None):
        return "efa-no-provider", "libfabric has no EFA provider"
    return "slow-socket-fallback", "NCCL finds no RDMA device"
