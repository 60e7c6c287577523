"""InfiniBand and RoCE between ranks: queue pairs not made, completions with errors, ports that went down.

Queue pairs that could not be made: GIDs, rails, link layers, devices that differ between nodes.
"""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence, said
from ncclprobe.checks.log.lines import JOB, LINK, NODE, RETEST, demoted, each, peer_fields
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.nccl_lines import (
    STATUS_NAMES,
    Completion,
    QpRefusal,
    completion,
    qp_refusal,
    rails_differ,
    types_differ,
    used,
    without_address,
)
from ncclprobe.logs.outcome import worked_before
from ncclprobe.logs.texts import between
from ncclprobe.model.findings import Finding

_COMPLETION = ("Got completion",)
_ROCE, _GID_INDEX = ("NET/IB : Using",), "NCCL_IB_GID_INDEX set by environment"
_UCX_RETRIES = "ransport retry count"
"""UCX's text for it, and libibverbs' text for the status (ibv_wc_status_str), in any program."""
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


ERROR_12 = "NET/IB : Got completion from peer 10.0.0.2<40211> with status=12 opcode=32616 len=0 vendor err 129 (Send)"


@cause(
    signs=(*_COMPLETION, " mtu ", _UCX_RETRIES, *_ROCE, _GID_INDEX),
    doctor="ib.state",
    echoes=_DEAD_PEER,
    bad=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {ERROR_12}"],
    good=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=5 "
        "opcode=0 len=0 vendor err 249 (Recv)"
    ],
)
def no_acknowledgement(log: JobLog) -> Iterator[Finding]:
    """An RDMA peer does not acknowledge (error 12, retries exceeded).

    Right: Every RDMA message was acknowledged.
    Why: the NIC repeats a message for NCCL_IB_TIMEOUT x NCCL_IB_RETRY_CNT and then gives up. The peer's process or port
    is gone, its GID has no path from here, or the network loses packets. NCCL's line is the same in all three cases.
    Fix: run `ib_write_bw -d HCA` between these two devices, and check `ibstat` and the kernel log on both hosts. For
    RoCE, also check the GIDs of both ends (`show_gids`) and the switches' drop counters.
    """
    for event in log.having(_UCX_RETRIES):
        device = between(event.text, f"{_UCX_RETRIES} exceeded on ", " ") or between(event.text, "local_nic: ", ",")
        message = f"retries exceeded on {device or 'a device'}"
        yield said(log, event, message, codes=("ib-link-error", "ib-no-path", "rank-crashed"), **RETEST)
    events = list(_completions(log, _RETRY_EXCEEDED))
    mtus = {between(event.text, " mtu ", " ") for event in log.having(" mtu ") if "qpn" in event.text}
    one_peer = len({each.peer for _, each in events}) == 1 and len({event.host for event, _ in events}) > 2
    bare = _gids_without_address(log) if events else ()
    for event, found in events:
        left = ("mtu", "ib-no-path", "ib-link-error") if len(mtus) > 1 else _unanswered_codes(found, one_peer)
        if bare and (without_address(found.local_gid, found.remote_gid) or not found.local_gid):
            details = {**JOB, "codes": bare, "remedy": _CHOOSE}
            yield said(log, event, f"{_words(found)}, {_BARE}", **details, **peer_fields(log, found.peer))
            continue
        details = {**RETEST, "codes": left}
        yield said(log, event, _words(found), **details, **peer_fields(log, found.peer))


_BARE = "addressed by a link-local GID, which has no IP address and is often RoCE v1"
_CHOOSE = (
    "`show_gids` on both hosts; unset NCCL_IB_GID_INDEX (NCCL 2.21 and newer choose a RoCE v2 row themselves), or set "
    "the index of the v2 row with the IPv4 address, the same on all hosts."
)


def _gids_without_address(log: JobLog) -> tuple[str, ...]:
    """Return the codes for a RoCE job whose GIDs are all link-local, which is sure if somebody chose their index; none
    if it had worked over them.

    InfiniBand's GIDs begin this way too. RoCE's do if an index without an address is taken, and reach no further than
    one switch. NCCL prints the two halves of a GID as the processor reads them: ``GID 0 (80FE/…``.
    """
    roce = any(each.link == "RoCE" for event in log.having(*_ROCE) for each in used(event.text))
    own = [event.text for event in log.having(" mtu ") if " GID " in event.text]
    ends = [f for _, f in _completions(log, _RETRY_EXCEEDED) if f.local_gid]
    bare = all("(80FE/" in text for text in own) and all(without_address(f.local_gid, f.remote_gid) for f in ends)
    if not roce or not bare or not (own or ends) or any(worked_before(log, e) for e in log.having(*_COMPLETION)):
        return ()
    forced = any(True for _ in log.having(_GID_INDEX))
    return ("ib-gid",) if forced else ("ib-gid", "ib-no-path", "ib-link-error", "rank-crashed")


def _unanswered_codes(found: Completion, one_peer: bool) -> tuple[str, ...]:
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
    good=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {ERROR_12}"],
)
def flushed(log: JobLog) -> Iterator[Finding]:
    """An RDMA request was flushed, or its receiver was not ready.

    Right: No RDMA request was flushed.
    Why: after the first error of a queue pair, all its other requests get status 5. Status 13 means that the peer is
    alive but does not receive. Status 9 together with an access violation that a NIC reports means that the memory may
    not be written. The line does not give the reason.
    Fix: look for the first completion with another status, on this rank or the peer.
    """
    refused = _LENGTH if any(True for _ in log.having(_VIOLATION)) else ()
    for event, found in _completions(log, _FLUSHED, _RNR, *refused):
        yield consequence(log, event, _words(found), **peer_fields(log, found.peer))


_ACS_HINTS = ("ACS is enabled which would break GPU Direct RDMA", "ACS is enabled, which breaks the GPU Direct RDMA")


@cause(
    code="p2p-broken-acs-iommu",
    signs=(*_COMPLETION, "HINT: ", "IO_PAGE_FAULT", "DMAR: ", "AMD-Vi: "),
    doctor="pci.acs",
    bad=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=4 "
        "opcode=0 len=0 vendor err 81 (Recv)"
    ],
    good=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {ERROR_12}"],
)
def device_access_broken(log: JobLog) -> Iterator[Finding]:
    """ACS, the IOMMU or virtualisation prevents devices from accessing each other's memory.

    Right: No device was denied access to another's memory.
    Why: with GPUDirect the NIC reads and writes GPU memory over PCIe. If a switch redirects that access to the CPU
    (ACS), or the IOMMU translates it, it fails with status 4, 8, 10 or 11. A page fault then appears in the kernel log.
    Fix: turn ACS off on the PCIe bridges (`lspci -vvv | grep ACSCtl` then shows SrcValid-), or boot with `iommu=pt`. To
    confirm the cause, start once with NCCL_NET_GDR_LEVEL=LOC.
    """
    hinted = any(True for _ in log.having(*_ACS_HINTS))
    for event, found in _completions(log, *_ACCESS):
        local = found.status in (4, 8)
        codes = ("p2p-broken-acs-iommu", "kernel-pin-failure") if local else ("p2p-broken-acs-iommu", "rank-crashed")
        named = hinted and found.status == 4
        details = {**NODE, "codes": () if named else codes}
        yield said(log, event, _words(found), **details, **peer_fields(log, found.peer))
    for event in log.having("IO_PAGE_FAULT", "DMAR: [DMA", "DMAR: DRHD: handling fault"):
        yield said(log, event, "the IOMMU denied a device access to memory", **NODE)


@cause(
    signs=(*_COMPLETION, _VIOLATION),
    bad=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=1 "
        "opcode=0 len=0 vendor err 105 (Recv)"
    ],
    good=lambda: [f"n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN {ERROR_12}"],
)
def message_of_another_size(log: JobLog) -> Iterator[Finding]:
    """A peer sent more data than expected.

    Right: All RDMA messages had the expected size.
    Why: the two ranks use different collectives, sizes, or settings that divide a collective differently (NCCL_ALGO,
    NCCL_PROTO, NCCL_BUFFSIZE). If a NIC reports an access violation, the memory is at fault, not the size.
    Fix: compare the variables that start with NCCL_ on both hosts. Start again with TORCH_DISTRIBUTED_DEBUG=DETAIL to
    see which rank called what.
    """
    violated = any(True for _ in log.having(_VIOLATION))
    for event, found in _completions(log, *_LENGTH):
        details = {**JOB, "codes": ("collective-desync", "env-mismatch")}
        if not violated:
            yield said(log, event, _words(found), **details, **peer_fields(log, found.peer))


_EVENTS = (
    "port error",
    "catastrophic error",
    "Link down",
    "link down",
    "Link Down",
    "async fatal",
    "init_one failed with error",
    "firmware internal error",
    "Health issue observed",
)
_NIC = ("NET/IB", "mlx5", "mlx4", "bnxt_re", "bnxt_en", "irdma", "ionic", "rdmavt", "hfi1")


@cause(
    code="ib-link-error",
    signs=(*_EVENTS, *_COMPLETION, "Port module event", "Cable unplugged"),
    doctor="ib.losses",
    bad=lambda: ["n1:7:9 [0] transport/net_ib.cc:100 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error"],
    good=lambda: ["n1:7:9 [0] transport/net_ib.cc:100 NCCL WARN NET/IB : mlx5_3:1 Got async event : port active"],
)
def port_went_down(log: JobLog) -> Iterator[Finding]:
    """A port of an RDMA NIC went down, or the NIC failed.

    Right: No RDMA port went down.
    Why: the NIC itself reports the event. Its peers then see error 12 on every queue pair to that port.
    Fix: run `ibstat` and `mlxlink -d DEVICE -m` on this host. Reseat or replace the cable or transceiver, check the
    switch port, and keep the host out of jobs until the counters stop growing.
    """
    for event in log.having(*_EVENTS, "Port module event", "Cable unplugged"):
        if any(name in event.text for name in _NIC) and "Cable plugged" not in event.text:
            port = between(event.text, "NET/IB : ", " ")
            port = port if ":" in port else between(event.text, "mlx5_core ", ": ")
            message = f"{port or 'a port of a NIC'} went down or failed"
            yield said(log, event, message, **LINK)
    for event, found in _completions(log, *_DEVICE):
        details = {**NODE, "codes": ("ib-link-error", "ib-no-path")}
        yield said(log, event, _words(found), **details, **peer_fields(log, found.peer))


_MODIFY = ("Call to ibv_modify_qp failed",)
_NO_TYPE = "failed in ncclIbRoceGetVersionNum"
_INVALID, _NO_DATA, _NO_DEVICE, _NET_UNREACHABLE, _TIMED_OUT, _NO_ROUTE = 22, 61, 19, 101, 110, 113
REFUSAL = "n1:7:9 [0] misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with "


def _refusals(log: JobLog) -> Iterator[tuple[LogEvent, QpRefusal]]:
    for event in log.having(*_MODIFY):
        found = qp_refusal(event.text)
        if found and not demoted(event):
            yield event, found


@cause(
    code="ib-gid",
    signs=(*_MODIFY, _GID_INDEX, "Call to ibv_query_gid failed", _NO_TYPE),
    doctor="env.gid",
    bad=lambda: [
        f"n1:7:9 [0] NCCL INFO {_GID_INDEX} to 3.\n"
        "n1:7:9 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument"
    ],
    good=lambda: [f"n1:7:9 [0] NCCL INFO {_GID_INDEX} to 3."],
)
def wrong_gid(log: JobLog) -> Iterator[Finding]:
    """The peer cannot be reached from the GID that a RoCE port uses.

    Right: No queue pair was rejected because of its GID.
    Why: NCCL_IB_GID_INDEX selects an entry of the port's GID table: RoCE v1 or v2, IPv4 or IPv6, with or without a
    VLAN. The kernel refuses a queue pair whose two ends differ in kind, or whose entry is empty. A container cannot
    read entries of another network namespace, and some releases then give up (NVIDIA/nccl issue 1573).
    Fix: run `show_gids` on both hosts. Unset NCCL_IB_GID_INDEX (NCCL 2.21 and newer find a RoCE v2 entry themselves),
    or set it to the index of the v2 entry with the IPv4 address, the same on all hosts.
    """
    forced = any(True for _ in log.having(_GID_INDEX))
    for event, found in _refusals(log):
        differ = types_differ(found.local_gid, found.remote_gid)
        if found.errno in (_INVALID, _NO_DATA, _NO_DEVICE) or differ:
            named = differ or (found.errno == _INVALID and forced)
            codes = () if named else ("ib-gid", "ib-hca-wrong", "ib-no-path")
            yield said(log, event, _refusal_words(found), codes=codes, **JOB)
    yield from each(log, ("Call to ibv_query_gid failed",), "an entry of the GID table cannot be read", **JOB)
    foreign = ("ib-gid", "ib-device-not-in-container")
    yield from each(log, (_NO_TYPE,), "the type of an entry of the GID table cannot be read", codes=foreign, **JOB)


def _refusal_words(found: QpRefusal) -> str:
    words = f"no queue pair can be set up on {found.device}" if found.device else "no queue pair can be set up"
    ends = f": {found.local_gid} to {found.remote_gid}" if found.local_gid and found.remote_gid else ""
    error = found.error or (f"errno {found.errno}" if found.errno else "refused")
    return f"{words}{ends}: {error}"


@cause(
    signs=(*_MODIFY, "not cross-rail connected"),
    doctor="sync.network",
    echoes=("ib-link-error",),
    bad=lambda: [
        f"{REFUSAL}110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, "
        "local GID ::ffff:10.1.0.1, remote GID ::ffff:10.2.0.2"
    ],
    good=lambda: [
        "n1:7:9 [0] NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state "
        "INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.1, remote GID ::ffff:10.1.0.2, retrying 1/34 "
        "after 100 msec of sleep"
    ],
)
def no_path_between_ports(log: JobLog) -> Iterator[Finding]:
    """There is no path from one RDMA port to another.

    Right: There is a path between all RDMA ports that ranks connected.
    Why: the kernel resolves the peer's address before a queue pair is ready. It times out if NCCL pairs NICs of
    different rails and no router connects the rails. It also times out if only these two ports cannot reach each other.
    Fix: run `ping -I INTERFACE PEER` from the port's interface to a peer on the same rail and to a peer on another
    rail. If only the same rail answers, set up routes between the rails, or set NCCL_CROSS_NIC=0 and the same
    NCCL_IB_HCA order on all hosts. If neither answers, check the cabling and the VLAN.
    """
    for event, found in _refusals(log):
        if found.errno in (_TIMED_OUT, _NET_UNREACHABLE, _NO_ROUTE):
            rails = rails_differ(found.local_gid, found.remote_gid) or not found.local_gid
            first = ("ib-cross-rail", "ib-no-path") if rails else ("ib-no-path", "ib-cross-rail")
            if not types_differ(found.local_gid, found.remote_gid):
                old = not found.local_gid  # up to 2.20 NCCL takes GID 0, of RoCE v1, where no index is set
                details = {**RETEST, "codes": ("ib-gid", *first) if old else (*first, "ib-gid")}
                yield said(log, event, _refusal_words(found), **details)
