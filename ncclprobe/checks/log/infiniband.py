"""InfiniBand and RoCE between ranks: completions with errors, and ports that went down."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import JOB, LINK, NODE, RETEST, demoted, of_peer
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.nccl_lines import STATUS_NAMES, Completion, completion, rails_differ, types_differ
from ncclprobe.facts.files.texts import between
from ncclprobe.model.findings import Finding

_COMPLETION = ("Got completion",)
_UCX_RETRIES = "Transport retry count exceeded"
_RETRY_EXCEEDED, _FLUSHED, _RNR = 12, 5, 13
_ACCESS = (4, 8, 10, 11)
_LENGTH = (1, 9)
_DEVICE = (2, 7, 19, 20, 21)
_DEAD_PEER = ("ib-link-error", "rank-crashed", "oom", "gpu-hw-error", "gpu-arch-unsupported")


def _completions(log: JobLog, *statuses: int) -> Iterator[tuple[LogEvent, Completion]]:
    for event in log.having(*_COMPLETION):
        found = None if demoted(event) else completion(event.text)
        if found and found.status in statuses:
            yield event, found


def _words(found: Completion) -> str:
    """Return ``error 12 (RETRY_EXC_ERR) on mlx5_0 from 10.0.0.2``."""
    words = f"completion with error {found.status} ({STATUS_NAMES.get(found.status, 'unknown')})"
    words += f" on {found.hca}" if found.hca else ""
    return f"{words} from {found.peer}" if found.peer else words


_ERROR_12 = "NET/IB : Got completion from peer 10.0.0.2<40211> with status=12 opcode=32616 len=0 vendor err 129 (Send)"


@cause(
    signs=(*_COMPLETION, " mtu ", _UCX_RETRIES),
    doctor="ib.state",
    echoes=_DEAD_PEER,
    bad=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {_ERROR_12}"],
    good=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=5 "
        "opcode=0 len=0 vendor err 249 (Recv)"
    ],
)
def no_acknowledgement(log: JobLog) -> Iterator[Finding]:
    """An RDMA peer does not acknowledge: error 12, retries exceeded.

    Right: Every RDMA message was acknowledged.
    Why: the NIC repeats a message for NCCL_IB_TIMEOUT x NCCL_IB_RETRY_CNT and gives up: the peer's process or port has
    gone, its GID has no path from here, or the network loses packets. The line is the same for all of them.
    Fix: `ib_write_bw -d HCA` between just these two devices; `ibstat` and the kernel log on both hosts; RoCE: the GIDs
    of both ends (`show_gids`) and the switches' counters of discarded packets.
    """
    for event in log.having(_UCX_RETRIES):
        device = between(event.text, f"{_UCX_RETRIES} on ", " ")
        message = f"retries exceeded on {device or 'a device'}"
        yield said(log, event, message, codes=("ib-link-error", "ib-no-path", "rank-crashed"), **RETEST)
    events = list(_completions(log, _RETRY_EXCEEDED))
    mtus = {between(event.text, " mtu ", " ") for event in log.having(" mtu ") if "qpn" in event.text}
    one_peer = len({each.peer for _, each in events}) == 1 and len({event.host for event, _ in events}) > 2
    for event, found in events:
        left = ("mtu", "ib-no-path", "ib-link-error") if len(mtus) > 1 else _of_unanswered(found, one_peer)
        details = {**RETEST, "codes": left}
        yield said(log, event, _words(found), **details, **of_peer(log, found.peer))


def _of_unanswered(found: Completion, one_peer: bool) -> tuple[str, ...]:
    """Return what an unanswered message can be, the likelier first: by its GIDs, and whether all name one peer."""
    if types_differ(found.local_gid, found.remote_gid):
        return ("ib-gid", "ib-no-path", "ib-link-error")
    if rails_differ(found.local_gid, found.remote_gid):
        return ("ib-cross-rail", "ib-no-path", "ib-link-error")
    if one_peer:
        return ("rank-crashed", "ib-link-error", "ib-no-path")
    return ("ib-link-error", "ib-no-path", "rank-crashed")


_VIOLATION = "access violation"


@cause(
    signs=(*_COMPLETION, _VIOLATION),
    bad=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=5 "
        "opcode=0 len=0 vendor err 249 (Recv)"
    ],
    good=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {_ERROR_12}"],
)
def flushed(log: JobLog) -> Iterator[Finding]:
    """An RDMA request was flushed, or its receiver was not ready.

    Right: No RDMA request was flushed.
    Why: status 5 is what all other requests of a queue pair get after its first error; status 13 says that the peer
    lives and does not receive. Status 9 with an access violation that a NIC reports is of memory that may not be
    written, and the line does not say why.
    Fix: look for the first completion with another status, on this rank or the peer.
    """
    refused = _LENGTH if any(True for _ in log.having(_VIOLATION)) else ()
    for event, found in _completions(log, _FLUSHED, _RNR, *refused):
        yield consequence(log, event, _words(found), **of_peer(log, found.peer))


_ACS_HINTS = ("ACS is enabled which would break GPU Direct RDMA", "ACS is enabled, which breaks the GPU Direct RDMA")


@cause(
    code="p2p-broken-acs-iommu",
    signs=(*_COMPLETION, "HINT: ", "IO_PAGE_FAULT", "DMAR: ", "AMD-Vi: "),
    doctor="pci.acs",
    bad=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=4 "
        "opcode=0 len=0 vendor err 81 (Recv)"
    ],
    good=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {_ERROR_12}"],
)
def device_access_broken(log: JobLog) -> Iterator[Finding]:
    """Devices cannot reach each other's memory: ACS, the IOMMU or virtualisation is between them.

    Right: No device was refused another's memory.
    Why: with GPUDirect the NIC reads and writes the GPU over PCIe; where a switch redirects that to the processor
    (ACS), or the IOMMU translates it, the access fails: status 4, 8, 10 or 11, and a page fault in the kernel log.
    Fix: switch ACS off on the PCIe bridges (`lspci -vvv | grep ACSCtl` shows SrcValid-), or `iommu=pt`; to confirm,
    start once with NCCL_NET_GDR_LEVEL=LOC.
    """
    hinted = any(True for _ in log.having(*_ACS_HINTS))
    for event, found in _completions(log, *_ACCESS):
        local = found.status in (4, 8)
        codes = ("p2p-broken-acs-iommu", "kernel-pin-failure") if local else ("p2p-broken-acs-iommu", "rank-crashed")
        named = hinted and found.status == 4
        details = {**NODE, "codes": () if named else codes}
        yield said(log, event, _words(found), **details, **of_peer(log, found.peer))
    for event in log.having("IO_PAGE_FAULT", "DMAR: [DMA", "DMAR: DRHD: handling fault"):
        yield said(log, event, "the IOMMU refused a device's access to memory", **NODE)


@cause(
    signs=(*_COMPLETION, _VIOLATION),
    bad=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=1 "
        "opcode=0 len=0 vendor err 105 (Recv)"
    ],
    good=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {_ERROR_12}"],
)
def message_of_another_size(log: JobLog) -> Iterator[Finding]:
    """A peer sent more than was expected.

    Right: All RDMA messages had the size that was expected.
    Why: the two ranks run different collectives, sizes, or settings that divide a collective differently
    (NCCL_ALGO, NCCL_PROTO, NCCL_BUFFSIZE). Where a NIC reports an access violation it is not the size but the memory.
    Fix: compare the variables that start with NCCL_ on both hosts; start again with TORCH_DISTRIBUTED_DEBUG=DETAIL to
    see which rank called what.
    """
    violated = any(True for _ in log.having(_VIOLATION))
    for event, found in _completions(log, *_LENGTH):
        details = {**JOB, "codes": ("collective-desync", "env-mismatch")}
        if not violated:
            yield said(log, event, _words(found), **details, **of_peer(log, found.peer))


_EVENTS = (
    "port error",
    "catastrophic error",
    "Link down",
    "link down",
    "Link Down",
    "async fatal",
)
_NIC = ("NET/IB", "mlx5", "mlx4", "bnxt_re", "bnxt_en", "irdma", "ionic", "rdmavt", "hfi1")


@cause(
    code="ib-link-error",
    signs=(*_EVENTS, *_COMPLETION, "Port module event", "Cable unplugged"),
    doctor="ib.flap-history",
    bad=lambda: ["n1:7:9 [0] transport/net_ib.cc:100 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error"],
    good=lambda: ["n1:7:9 [0] transport/net_ib.cc:100 NCCL WARN NET/IB : mlx5_3:1 Got async event : port active"],
)
def port_went_down(log: JobLog) -> Iterator[Finding]:
    """A port of an RDMA NIC went down, or the NIC failed.

    Right: No RDMA port went down.
    Why: the NIC itself reports it; the peers then see error 12 on every queue pair to that port.
    Fix: `ibstat` and `mlxlink -d DEVICE -m` on this host: reseat or replace the cable or transceiver, look at the
    switch's port, and keep the host out of jobs until the counters rest.
    """
    for event in log.having(*_EVENTS, "Port module event", "Cable unplugged"):
        if any(name in event.text for name in _NIC) and "Cable plugged" not in event.text:
            port = between(event.text, "NET/IB : ", " ")
            port = port if ":" in port else between(event.text, "mlx5_core ", ": ")
            message = f"{port or 'a port of a NIC'} went down or failed"
            yield said(log, event, message, **LINK)
    for event, found in _completions(log, *_DEVICE):
        details = {**NODE, "codes": ("ib-link-error", "ib-no-path")}
        yield said(log, event, _words(found), **details, **of_peer(log, found.peer))
