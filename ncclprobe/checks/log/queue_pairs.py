"""Queue pairs that could not be made: GIDs, rails, link layers, devices that differ between nodes."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import IMAGE, JOB, NODE, RETEST, demoted, each
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.nccl_lines import QpRefusal, qp_refusal, rails_differ, types_differ, used
from ncclprobe.facts.files.texts import between
from ncclprobe.model.findings import Finding

_MODIFY = ("Call to ibv_modify_qp failed",)
_GID_INDEX = "NCCL_IB_GID_INDEX set by environment"
_NO_TYPE = "failed in ncclIbRoceGetVersionNum"
_INVALID, _NO_DATA, _NO_DEVICE, _NET_UNREACHABLE, _TIMED_OUT, _NO_ROUTE = 22, 61, 19, 101, 110, 113
_REFUSAL = "n1:7:9 [0] misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with "


def _refusals(log: JobLog) -> Iterator[tuple[LogEvent, QpRefusal]]:
    for event in log.having(*_MODIFY):
        found = qp_refusal(event.text)
        if found and not demoted(event):
            yield event, found


@cause(
    code="ib-gid",
    signs=(*_MODIFY, _GID_INDEX, "Call to ibv_query_gid failed", _NO_TYPE, "NET/IB : Using", " LID "),
    doctor="env.gid-index",
    echoes=("nccl-bug-roce-lid",),
    bad=lambda: [
        f"n1:7:9 [0] NCCL INFO {_GID_INDEX} to 3.\n"
        "n1:7:9 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument"
    ],
    good=lambda: [f"n1:7:9 [0] NCCL INFO {_GID_INDEX} to 3."],
)
def wrong_gid(log: JobLog) -> Iterator[Finding]:
    """The GID that a RoCE port uses does not lead to the peer.

    Right: No queue pair was refused for its GID.
    Why: NCCL_IB_GID_INDEX picks a row of the port's GID table: RoCE v1 or v2, IPv4 or IPv6, VLAN or not. The kernel
    refuses a queue pair whose ends are of different kinds, or whose row is empty; rows of another network namespace
    cannot be read in a container, at which some releases give up (NVIDIA/nccl issue 1573).
    Fix: `show_gids` on both hosts; unset NCCL_IB_GID_INDEX (NCCL 2.21 and newer choose a RoCE v2 row themselves) or set
    the index of the v2 row with the IPv4 address, the same on all hosts.
    """
    forced = any(True for _ in log.having(_GID_INDEX))
    for event, found in _refusals(log):
        differ = types_differ(found.local_gid, found.remote_gid)
        if found.errno in (_INVALID, _NO_DATA, _NO_DEVICE) or differ:
            named = differ or (found.errno == _INVALID and forced)
            codes = () if named else ("ib-gid", "ib-hca-wrong", "ib-no-path")
            yield said(log, event, _refusal_words(found), codes=codes, **JOB)
    yield from each(log, ("Call to ibv_query_gid failed",), "the row of the GID table cannot be read", **JOB)
    foreign = ("ib-gid", "ib-device-not-in-container")
    yield from each(log, (_NO_TYPE,), "the kind of a row of the GID table cannot be read", codes=foreign, **JOB)


def _refusal_words(found: QpRefusal) -> str:
    words = f"no queue pair on {found.device}" if found.device else "no queue pair"
    ends = f": {found.local_gid} to {found.remote_gid}" if found.local_gid and found.remote_gid else ""
    error = found.error or (f"errno {found.errno}" if found.errno else "refused")
    return f"{words}{ends}: {error}"


@cause(
    signs=(*_MODIFY, "not cross-rail connected"),
    doctor="sync.subnet-prefix",
    echoes=("ib-link-error",),
    bad=lambda: [
        f"{_REFUSAL}110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, "
        "local GID ::ffff:10.1.0.1, remote GID ::ffff:10.2.0.2"
    ],
    good=lambda: [
        "n1:7:9 [0] NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state "
        "INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.1, remote GID ::ffff:10.1.0.2, retrying 1/34 "
        "after 100 msec of sleep"
    ],
)
def no_path_between_ports(log: JobLog) -> Iterator[Finding]:
    """No path leads from one RDMA port to another.

    Right: A path leads between all RDMA ports that ranks connected.
    Why: the kernel resolves the peer's address before a queue pair is ready; it times out where rails are networks of
    their own that no router joins and NCCL pairs NICs of different rails, or where just these two ports do not see
    each other.
    Fix: `ping -I INTERFACE PEER` from the port's interface, of the same rail and of another. Only the same rail
    answers: route between rails, or NCCL_CROSS_NIC=0 and equal NCCL_IB_HCA order. Neither: the cabling or VLAN.
    """
    for event, found in _refusals(log):
        if found.errno in (_TIMED_OUT, _NET_UNREACHABLE, _NO_ROUTE):
            rails = rails_differ(found.local_gid, found.remote_gid) or not found.local_gid
            first = ("ib-cross-rail", "ib-no-path") if rails else ("ib-no-path", "ib-cross-rail")
            if not types_differ(found.local_gid, found.remote_gid):
                old = not found.local_gid  # up to 2.20 NCCL takes GID 0, of RoCE v1, where no index is set
                details = {**RETEST, "codes": ("ib-gid", *first) if old else (*first, "ib-gid")}
                yield said(log, event, _refusal_words(found), **details)


@cause(
    code="nccl-bug-roce-lid",
    signs=(*_MODIFY, "NET/IB : Using", " LID "),
    bad=lambda: [
        "n1:7:9 [0] NCCL INFO NET/IB : Using [0]irdma0:1/RoCE ; OOB eth0:10.0.0.1<0>\n"
        "n1:7:9 [0] NCCL INFO NET/IB: Dev 0 Port 1 qpn 9 mtu 5 LID 1\n"
        "n1:7:9 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument"
    ],
    good=lambda: [
        "n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>\n"
        "n1:7:9 [0] NCCL INFO NET/IB: Dev 0 Port 1 qpn 9 mtu 5 LID 1\n"
        "n1:7:9 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument"
    ],
)
def roce_card_with_a_lid(log: JobLog) -> Iterator[Finding]:
    """NCCL takes a RoCE card for InfiniBand because its LID is not 0.

    Right: No RoCE card was taken for InfiniBand.
    Why: releases to 2.11 tell RoCE from InfiniBand by the port's LID alone (ncclIbConnect in src/transport/net_ib.cc:
    LID 0 means RoCE); cards whose driver reports LID 1 get no GID, and their queue pairs are refused.
    Fix: use NCCL 2.12 or newer, which asks for the link layer; else NCCL_IB_DISABLE=1 to go on over sockets.
    """
    using = {event.host: {each_used.link for each_used in used(event.text)} for event in log.having("NET/IB : Using")}
    roce = {host for host, links in using.items() if links == {"RoCE"}}
    lids = {event.host for event in log.having(" LID ") if between(event.text, " LID ", " ") not in ("", "0")}
    for event, found in _refusals(log):
        if event.host in roce & lids and found.errno == _INVALID:
            yield said(log, event, "a RoCE card with a LID is taken for InfiniBand", **IMAGE)


_INCOMPATIBLE = (
    "Attempted to connect incompatible devices",
    "Attempted to merge incompatible devices",
    "device is incompatible with the local",
    "net devices with different link_layer",
    "with different link_layer properties",
)


@cause(
    code="ib-hca-wrong",
    signs=_INCOMPATIBLE,
    doctor="env.hca-mgmt",
    bad=lambda: [
        "n1:7:9 [0] transport/net_ib.cc:1522 NCCL WARN NET/IB : Attempted to connect incompatible devices: "
        "[0]mlx5_0:1/IB and [0]mlx5_4:1/RoCE. Try selecting NICs of only one link type using NCCL_IB_HCA"
    ],
    good=lambda: ["n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"],
)
def link_layers_mixed(log: JobLog) -> Iterator[Finding]:
    """NCCL pairs an InfiniBand port with an Ethernet port.

    Right: No InfiniBand port was paired with an Ethernet port.
    Why: hosts often have Ethernet NICs for storage or management in addition to InfiniBand NICs; NCCL uses every active
    port that NCCL_IB_HCA lets pass.
    Fix: list the compute NICs alone, on all hosts, for example `NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3`, or exclude
    the others, `NCCL_IB_HCA=^mlx5_bond_0`.
    """
    message = "an InfiniBand port is paired with an Ethernet port"
    yield from each(log, _INCOMPATIBLE, message, **JOB)


_COUNTS = ("Detected mixed local Net device counts", "has a different number of devices")


@cause(
    code="ib-hca-mismatch",
    signs=(*_COUNTS, "local Net devices (max"),
    doctor="sync.nic-count",
    bad=lambda: [
        "n1:7:9 [0] init.cc:1339 NCCL WARN Detected mixed local Net device counts across ranks (min 7, max 8). Set "
        "NCCL_IGNORE_NET_MISMATCH=1 to continue."
    ],
    good=lambda: [
        "n1:7:9 [0] NCCL INFO Detected mixed local Net device counts across ranks (min 7, max 8). Ignoring due to "
        "NCCL_IGNORE_NET_MISMATCH."
    ],
)
def devices_differ(log: JobLog) -> Iterator[Finding]:
    """Nodes use different numbers of RDMA devices.

    Right: All nodes use equally many RDMA devices.
    Why: NCCL lays its channels over the NICs of both ends; a node that lacks one (a dead NIC, a control group, another
    NCCL_IB_HCA) does not fit to the others, and NCCL 2.30 and newer refuse to start.
    Fix: compare the "NET/IB : Using" lines of all hosts; bring the missing port back, or set the same NCCL_IB_HCA.
    """
    found = tuple(each(log, _COUNTS, "nodes use different numbers of RDMA devices", **NODE))
    yield from found
    for event in log.having("local Net devices (max") if found else ():
        count = between(event.text, " has ", " ")
        yield said(log, event, f"has {count} network devices, other ranks more", **NODE)
