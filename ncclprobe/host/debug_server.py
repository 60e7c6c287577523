"""torch's own worker server in a rank: the only port of a job that is spoken to, and only the one that is its.

`torch.distributed.debug.start_debug_server` and `elastic.control_plane.worker_main` start it: HTTP, whose handlers
answer JSON without the interpreter's lock (torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp, Handlers.cpp).
The port is the one on which a thread called ``pt_workerserver`` waits in accept(2), so that no store or peer is called.
"""

import os
import re
import socket
import struct
import time
from pathlib import Path

from ncclprobe.host.processes import LISTENING, same_network, sockets
from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed, Missing, TimedOut

_THREAD = "pt_workerserver"
_ACCEPT = {"x86_64": ("43", "288"), "aarch64": ("202", "242")}
_MOST_BYTES = bounds.ANSWER_BYTES
_ANSWER_S = 1.0


def ask_server(pid: str, path: str) -> str:
    """Return what the worker server of process `pid` answers, JSON as it came. Raises the HostError that says why not.

    Missing: it has no such server. TimedOut: it does not answer, as of a process that is stopped.
    """
    kind, address = _address(pid)
    deadline = time.monotonic() + _ANSWER_S
    with socket.socket(kind, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(_ANSWER_S)
            connection.connect(address)
            connection.sendall(f"POST /handler/{path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            head, _, body = _received(connection, deadline).partition(b"\r\n\r\n")
        except TimeoutError:
            raise TimedOut(f"the worker server of process {pid}: no answer within {_ANSWER_S:g} s") from None
    if not re.match(rb"HTTP/1\.[01] 200 ", head):
        raise Failed(f"the worker server of process {pid}: {path}: {head[:60]!a}")
    return body.decode(errors="replace")


def _received(connection: socket.socket, deadline: float) -> bytes:
    found = bytearray()
    while (left_s := deadline - time.monotonic()) > 0:
        connection.settimeout(left_s)
        chunk = connection.recv(1 << 18)
        if not chunk:
            return bytes(found)
        found += chunk
        if len(found) > _MOST_BYTES:
            raise Failed(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
    raise TimeoutError


def _address(pid: str) -> tuple[int, tuple[str, int] | str]:
    """Return the address on which the server of `pid` listens."""
    process = Path(f"/proc/{pid}")
    threads = [each for each in (process / "task").iterdir() if _THREAD in (each / "comm").read_text()]
    if not threads:
        raise Missing(f"process {pid} runs no worker server of torch")
    same_network(process)
    for thread in threads:
        words = (thread / "syscall").read_text().split()
        if words[0] in _ACCEPT.get(os.uname().machine, ()):
            inode = (process / "fd" / str(int(words[1], 16))).readlink().name.removeprefix("socket:[").rstrip("]")
            if address := _listening(process / "net", inode):
                return address
    raise Missing(f"process {pid}: its worker server listens on no port that is known")


def _listening(net: Path, inode: str) -> tuple[int, tuple[str, int] | str] | None:
    """Return the local address of the listening socket with this inode (sock_diag(7), proc_net(5))."""
    for kind, own, message in sockets([LISTENING]):
        if str(own) == inode:
            return kind, ("::1" if kind == socket.AF_INET6 else "127.0.0.1", struct.unpack_from("!H", message, 4)[0])
    for line in (net / "unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) > 7 and words[6] == inode:
            return socket.AF_UNIX, words[7]
    return None
