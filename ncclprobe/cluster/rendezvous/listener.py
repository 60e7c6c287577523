"""Open rank 0's listener: the job's own port, on every address, for IPv4 and IPv6 as torch's store has it."""

import contextlib
import errno
import os
import resource
import socket

from ncclprobe.errors import NcclprobeError
from ncclprobe.wire import keep_small

BACKLOG = 4096  # what Linux allows since 5.4 (net.core.somaxconn)
_OTHER_FILES = 256


class CannotListen(NcclprobeError):
    """The port cannot be had. ``kind``: taken, denied (below 1024), or address."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def bind_listener(port: int) -> socket.socket:
    """Return a socket that listens on `port` (0: any) of every address. Raises CannotListen."""
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise _cannot(port, error) from None
    try:
        return _bound(socket.AF_INET, "0.0.0.0", port)  # a kernel without IPv6
    except OSError as error:
        raise _cannot(port, error) from None


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(family))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the last run's TIME_WAITs
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        keep_small(sock)  # so that what nodes know arrives where large packets are lost, and the mesh can say so
        sock.bind((address, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
        undo.pop_all()
    return sock


def _cannot(port: int, error: OSError) -> CannotListen:
    kinds = {errno.EADDRINUSE: "taken", errno.EACCES: "denied"}
    words = {"taken": "another process listens on it", "denied": "this user may not"}
    kind = kinds.get(error.errno or 0, "address")
    return CannotListen(kind, f"cannot listen on port {port}: {words.get(kind) or os.strerror(error.errno or 0)}")


def room_for(connections: int) -> int:
    """Raise the soft limit as far as needed; return how many connections this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if now == resource.RLIM_INFINITY else max(0, min(connections, now - _OTHER_FILES))
