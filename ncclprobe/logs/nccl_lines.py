"""What single lines of NCCL say: connections that failed, completions with errors, interfaces and devices in use.

The format strings are those of NCCL 2.4 to 2.30 (src/include/socket.h, src/misc/socket.cc, src/os/linux.cc,
src/misc/ibvwrap.cc, src/transport/net_ib*). Every function takes a message without its prefix, looks for literal texts
and reads on from there; none uses a regular expression.
"""

from ncclprobe.logs.texts import address_of, between, number
from ncclprobe.model.values import Struct

ERRNOS = {
    "Invalid argument": 22,
    "Cannot allocate memory": 12,
    "Bad address": 14,
    "No data available": 61,
    "Network is unreachable": 101,
    "Connection timed out": 110,
    "Connection refused": 111,
    "No route to host": 113,
    "Operation not supported": 95,
    "Permission denied": 13,
    "Operation not permitted": 1,
    "No such device": 19,
}
"""Linux's numbers by strerror's words: releases print the one, the other or both."""

CONTAINER_PORTS = (
    "docker",
    "veth",
    "br-",
    "virbr",
    "cni",
    "flannel",
    "cali",
    "lxc",
    "lxdbr",
    "podman",
    "cilium",
    "kube",
)
TUNNELS = (
    "tun",
    "tap",
    "wg",
    "tailscale",
    "zt",
    "ppp",
    "ipip",
    "ip6tnl",
    "sit",
    "gre",
    "utun",
    "nebula",
    "vxlan",
    "nordlynx",
    "CloudflareWARP",
)
"""How names of interfaces begin that every host has for itself, and of those that lead through a tunnel."""

LINK_LOCAL, LINK_LOCAL_V6 = "169.254.", "fe80:"
"""How addresses begin that a host gives itself, as those of its management controller's USB network: RFC 3927, 4291."""

MET_WITH = "Message truncated : received "
INFO_DIFFERS = "mismatch in info from procs"
_ASKED = "Failed to malloc "
MIXED_UP = (MET_WITH, INFO_DIFFERS, _ASKED)
"""What ranks of different releases say of each other's structures: all 20 pairs of five releases were played."""
_MOST_ASKED = 1 << 36  # bytes: what NCCL asks of a host's memory at once is far below that
_MOST_STRUCT = 1 << 20  # bytes: no struct that NCCL exchanges while ranks meet comes near

_STATUSES = {  # enum ibv_wc_status, src/include/ibvcore.h
    "LOC_LEN_ERR": 1,
    "LOC_QP_OP_ERR": 2,
    "LOC_PROT_ERR": 4,
    "WR_FLUSH_ERR": 5,
    "BAD_RESP_ERR": 7,
    "LOC_ACCESS_ERR": 8,
    "REM_INV_REQ_ERR": 9,
    "REM_ACCESS_ERR": 10,
    "REM_OP_ERR": 11,
    "RETRY_EXC_ERR": 12,
    "RNR_RETRY_EXC_ERR": 13,
    "FATAL_ERR": 19,
    "RESP_TIMEOUT_ERR": 20,
    "GENERAL_ERR": 21,
}
STATUS_NAMES = {number: name for name, number in _STATUSES.items()}


class Completion(Struct, frozen=True):
    """A work completion with an error. `status` is verbs' number; `peer` an address or host; GIDs as printed.

    `hca` and the GIDs are empty in releases that do not print them.
    """

    status: int
    peer: str = ""
    hca: str = ""
    local_gid: str = ""
    remote_gid: str = ""


class QpRefusal(Struct, frozen=True):
    """ibv_modify_qp refused. `errno` by number or words; None: neither is known. Devices and GIDs since 2.24."""

    errno: int | None
    error: str
    device: str = ""
    local_gid: str = ""
    remote_gid: str = ""


class FailedConnection(Struct, frozen=True):
    """A TCP connection that NCCL gave up or may try again; `peer` is empty in 2.16 to 2.26's short forms."""

    peer: str
    error: str
    final: bool


class Used(Struct, frozen=True):
    """An interface with its address, or an HCA's port with its link layer (IB, RoCE)."""

    name: str
    address: str = ""
    link: str = ""


def completion(text: str) -> Completion | None:
    """Parse ``Got completion … with error 12, …`` or ``… status=IBV_WC_RETRY_EXC_ERR(12) …``."""
    if "Got completion" not in text:
        return None
    status = number(between(text, "with error "))
    if status is None:
        status = number(between(text, "status="))
    if status is None:
        status = number(between(between(text, "status="), "(", ")"))
    if status is None:
        return None
    remote = between(text, "remoteGids", " hca").strip() or between(text, "remoteGid ", " ")
    return Completion(
        status,
        address_of(between(text, "from peer ", " with")),
        between(text, " hca ", " "),
        between(text, "localGid ", " ").removesuffix("remoteGids"),
        remote.split(" ")[0],
    )


def qp_refusal(text: str) -> QpRefusal | None:
    """Parse ``Call to ibv_modify_qp failed with …``, in any release's form."""
    rest = between(text, "Call to ibv_modify_qp failed")
    if not rest:
        return None
    error = next((words for words in ERRNOS if words in rest), "")
    errno = number(between(rest, "with ")) or number(between(rest, " errno ")) or ERRNOS.get(error)
    return QpRefusal(
        errno,
        error,
        between(rest, "on dev ", ","),
        _gid(rest, "local GID "),
        _gid(rest, "remote GID "),
    )


def _gid(text: str, name: str) -> str:
    """Return the last GID of this name: ``local GID index 3, local GID fe80::1`` names the index first."""
    found = text.rpartition(name)[2].split(",")[0].split(" ")[0] if name in text else ""
    return found if ":" in found else ""


def failed_connection(text: str) -> FailedConnection | None:
    """Return the connection that a line reports as failed, for any release since 2.4."""
    error = next((words for words in ERRNOS if words in text), "")
    if "exceeded error retry count" in text or "exceeded retries" in text or "exceeded timeouts" in text:
        error = error or ("Connection timed out" if "timeouts" in text else "Connection refused")
        return FailedConnection(_peer(text), error, final=True)
    if "Call to connect failed : " in text:  # until 2.3, which name no peer
        return FailedConnection("", error, final=True)
    if "Call to " in text and " failed : " in text and error == "Connection refused":  # recv and send
        call = between(text, "Call to ", " failed : ")
        peer = between(call, " from ") or between(call, " to ")
        return FailedConnection(address_of(peer), error, final=True)
    if "onnect to " in text and (" failed : " in text or ") errno " in text):
        return FailedConnection(_peer(text), error, final=True)
    if "socketPollConnect to " in text or "ncclOsSocketPollConnect to " in text:
        return FailedConnection(address_of(between(text, "PollConnect to ", " ")), error, final=True)
    if "connect" in text and ", retrying" in text and error:
        return FailedConnection(_peer(text), error, final=False)
    return None


def _peer(text: str) -> str:
    return address_of(between(text, "onnect to ", " "))


def is_build_mismatch(text: str) -> bool:
    """Return whether a rank that met another read what another release, or another message, has in that place."""
    if INFO_DIFFERS in text:  # 2.27 and newer: a garbled offset beside equal numbers of ranks
        one, _, other = between(text, "nranks ", ",").partition(" vs ")
        return one == other
    asked = number(between(text, _ASKED))
    return other_length(text) if asked is None else not 0 <= asked < _MOST_ASKED


def other_length(text: str) -> bool:
    """Return whether it got a length that another structure of NCCL may have: of another build, or another message."""
    return 0 < (number(between(text, MET_WITH)) or 0) < _MOST_STRUCT


def used(text: str) -> tuple[Used, ...]:
    """Return what ``Bootstrap : Using …``, ``NET/Socket : Using …`` or ``NET/IB : Using …`` names, in order."""
    if "Using" not in text:
        return ()
    found = []
    for word in between(text, "Using").partition(";")[0].replace("[", " [").split():
        name, colon, rest = word.rpartition("]")[2].partition(":")
        if colon and name and "<" in rest:
            found.append(Used(name, rest.partition("<")[0]))
        elif colon and name and "/" in rest:
            found.append(Used(f"{name}:{rest.partition('/')[0]}", link=rest.partition("/")[2]))
    return tuple(found)


def rails_differ(local: str, remote: str) -> bool:
    """Return whether two RoCE v2 GIDs are of different IPv4 networks of 24 bits, as rails usually are."""
    if not (local.startswith("::ffff:") and remote.startswith("::ffff:")):
        return False
    return local.rpartition(".")[0] != remote.rpartition(".")[0]


def types_differ(local: str, remote: str) -> bool:
    """Return whether one GID is link-local (RoCE v1, or no IP address) and the other is an IPv4 address's."""
    return bool(local and remote) and local.startswith(LINK_LOCAL_V6) != remote.startswith(LINK_LOCAL_V6)


def without_address(local: str, remote: str) -> bool:
    """Return whether both GIDs are link-local: on RoCE, of no IP address, and known to no router between the hosts."""
    return local.startswith(LINK_LOCAL_V6) and remote.startswith(LINK_LOCAL_V6)
