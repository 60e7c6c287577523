"""A client of NCCL's RAS, the server that every process of a job with NCCL 2.24 and later runs on its node.

All ranks of a node listen on one port, those of another job too (SO_REUSEPORT), and the kernel chooses who answers. So
no port is called on which no rank of this job listens, and nothing is asked of a connection that is not a rank's own
(src/ras/client_support.cc, client.cc; the protocol is lines of text).
"""

import re
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ncclprobe.host.processes import ESTABLISHED, LISTENING, same_network, sockets
from ncclprobe.model.errors import Denied, Failed, Missing, TimedOut

_ADDRESS = re.compile(r"\[?([^\[\]]*?)\]?:([0-9]{1,5})")
_MOST_BYTES, _MOST_LINE = 64 << 20, 1024
_ANSWER_S, _TRIES, _LAST_PORT = 3.0, 4, 65535


def ask_ras(address: str, pids: Collection[str]) -> str:
    """Return the state of the job whose ranks are `pids`, as JSON (NCCL 2.28.7) or text. Raises HostError."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > _LAST_PORT:
        raise Missing(f"{address!a} is no address: NCCL_RAS_ADDR is HOST:PORT")
    host, port = found[1], int(found[2])
    _same_network(pids)
    listening = {inode for _, inode, _ in sockets([LISTENING], port)}
    if not listening:
        raise Missing(f"no process listens on port {port}: NCCL before 2.24 has no RAS, NCCL_RAS_ENABLE=0 turns it off")
    if not _own(listening, pids):
        raise Denied(f"on port {port} no rank of this job listens, but another program: it is not asked")
    deadline = time.monotonic() + _ANSWER_S
    for _ in range(_TRIES):
        try:
            with socket.create_connection((host, port), _left(deadline)) as connection:
                answer = _asked(connection, deadline, pids)
        except TimeoutError:
            raise TimedOut(f"NCCL's RAS on port {port}: no answer within {_ANSWER_S:g} s") from None
        if answer is not None:
            return answer
    raise Missing(f"on port {port} another job answers too, and none of this one's ranks did")


def _asked(connection: socket.socket, deadline: float, pids: Collection[str]) -> str | None:
    """Return what the server of one of `pids` says; None: it is of another process."""
    hello = _said(connection, b"CLIENT PROTOCOL 2\n", deadline)
    if not hello.startswith(b"SERVER PROTOCOL "):
        raise Failed(f"port {connection.getpeername()[1]}: {hello[:60]!a} is not what NCCL's RAS answers")
    port, own = connection.getpeername()[1], connection.getsockname()[1]
    if not _own({inode for _, inode, _ in sockets([ESTABLISHED], port, own)}, pids):
        return None
    _said(connection, b"TIMEOUT 1\n", deadline)
    _said(connection, b"SET FORMAT json\n", deadline)  # an older server answers with an error, and in text
    connection.sendall(b"VERBOSE STATUS\n")
    found = bytearray()
    while chunk := _received(connection, 1 << 18, deadline):
        found += chunk
        if len(found) > _MOST_BYTES:
            raise Failed(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
    return found.decode(errors="replace")


def _said(connection: socket.socket, line: bytes, deadline: float) -> bytes:
    """Return the line that answers `line`."""
    connection.sendall(line)
    found = bytearray()
    while not found.endswith(b"\n") and len(found) < _MOST_LINE and (more := _received(connection, 1, deadline)):
        found += more
    return bytes(found)


def _received(connection: socket.socket, most: int, deadline: float) -> bytes:
    connection.settimeout(_left(deadline))
    return connection.recv(most)


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _same_network(pids: Collection[str]) -> None:
    """Do nothing if the first of `pids` that can be read is in this network namespace. Raises Denied or Missing."""
    for pid in pids:
        with suppress(OSError):
            return same_network(Path(f"/proc/{pid}"))
    raise Missing("no rank whose sockets can be read")


def _own(inodes: Collection[int], pids: Collection[str]) -> bool:
    """Return whether one of `pids` has one of these sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in pids:
        with suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(fd.readlink()) in wanted:
                        return True
    return False
