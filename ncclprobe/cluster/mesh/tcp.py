"""Read the kernel's view of a TCP connection, by the offsets of struct tcp_info (include/uapi/linux/tcp.h).

The struct only ever grew, so that an offset holds for every kernel; an older one returns fewer bytes.
"""

import socket
import sys

from ncclprobe.model.values import Struct
from ncclprobe.wire import Wire

_PMTU, _TOTAL_RETRANS, _BYTES_ACKED, _SEGS_OUT, _MIN_RTT, _NBYTES = 60, 100, 120, 136, 148, 152
_NO_RTT = 0xFFFFFFFF


class TcpInfo(Struct, frozen=True):
    """`path_mtu` in bytes; `resent` of `segments` that this side sent; the shortest round trip that the kernel saw.

    `acked_bytes` have arrived at the other side's kernel. The kernel's round trips do not wait for a process to be
    scheduled. None: this kernel does not say.
    """

    path_mtu: int | None = None
    resent: int | None = None
    segments: int | None = None
    rtt_s: float | None = None
    acked_bytes: int | None = None


def tcp_info(connection: Wire) -> TcpInfo:
    """Return the kernel's current view of this connection."""
    return parse(connection.option(socket.IPPROTO_TCP, socket.TCP_INFO, _NBYTES) or b"")


def parse(answer: bytes) -> TcpInfo:
    """Parse the bytes that getsockopt(TCP_INFO) returned."""
    micros = _at(answer, _MIN_RTT)
    return TcpInfo(
        path_mtu=_at(answer, _PMTU) or None,
        resent=_at(answer, _TOTAL_RETRANS),
        segments=_at(answer, _SEGS_OUT),
        rtt_s=None if micros is None or micros == _NO_RTT else max(1, micros) / 1e6,
        acked_bytes=_at(answer, _BYTES_ACKED, 8),
    )


def _at(answer: bytes, offset: int, nbytes: int = 4) -> int | None:
    field = answer[offset : offset + nbytes]
    return int.from_bytes(field, sys.byteorder) if len(field) == nbytes else None
