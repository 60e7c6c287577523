"""What the kernel knows of a TCP connection, by the offsets of struct tcp_info (include/uapi/linux/tcp.h).

The struct only ever grew, so that an offset holds for every kernel; one that knows less returns fewer bytes.
"""

import socket
import sys
from dataclasses import dataclass

from ncclprobe.wire import Wire

_PMTU, _TOTAL_RETRANS, _BYTES_ACKED, _SEGS_OUT, _MIN_RTT, _NBYTES = 60, 100, 120, 136, 148, 152
_NO_RTT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """`path_mtu` in bytes; `resent` of `segments` that this side sent; the shortest round trip that the kernel saw.

    `acked_bytes` is how much of what was sent has arrived at the other side's kernel. The kernel's round trips do not
    wait for a process to be scheduled. None: this kernel does not say.
    """

    path_mtu: int | None = None
    resent: int | None = None
    segments: int | None = None
    rtt_s: float | None = None
    acked_bytes: int | None = None


def tcp_info(talk: Wire) -> TcpInfo:
    """Of this conversation, now."""
    return parse(talk.option(socket.IPPROTO_TCP, socket.TCP_INFO, _NBYTES) or b"")


def parse(said: bytes) -> TcpInfo:
    """What getsockopt(TCP_INFO) returned."""
    micros = _at(said, _MIN_RTT)
    return TcpInfo(
        path_mtu=_at(said, _PMTU) or None,
        resent=_at(said, _TOTAL_RETRANS),
        segments=_at(said, _SEGS_OUT),
        rtt_s=None if micros is None or micros == _NO_RTT else max(1, micros) / 1e6,
        acked_bytes=_at(said, _BYTES_ACKED, 8),
    )


def _at(said: bytes, offset: int, nbytes: int = 4) -> int | None:
    field = said[offset : offset + nbytes]
    return int.from_bytes(field, sys.byteorder) if len(field) == nbytes else None
