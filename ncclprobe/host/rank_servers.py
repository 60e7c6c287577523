"""The servers inside ranks that may be queried: NCCL's RAS, torch's worker server, and its pipe for flight records.

RAS: all ranks of a node with NCCL 2.24 and later listen on one port, those of another job too (SO_REUSEPORT), and the
kernel chooses which one answers. Only the address of a rank's own listening socket is used, whatever address the rank's
environment names, and no question is sent over a connection to another process (src/ras/client_support.cc, client.cc;
the protocol is lines of text).

torch's server is started by `torch.distributed.debug.start_debug_server` and `elastic.control_plane.worker_main`: HTTP,
whose handlers answer JSON without the interpreter's lock (torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp,
Handlers.cpp). Its port is the one that a thread called ``pt_workerserver`` waits on in accept(2), so no store or peer
is contacted.

torch also writes a rank's flight records on request: a byte into a pipe makes it write a file.
`TORCH_NCCL_DEBUG_INFO_PIPE_FILE` names the pipe, PATH and rank and ``.pipe`` (DumpPipe in ProcessGroupNCCL.hpp). The
thread that watches the heartbeat checks it once a second, and writes the file of `TORCH_FR_DUMP_TEMP_FILE`, PATH and
rank (DebugInfoWriter), the first time after some seconds, because torch looks up the names of its stacks. Only a pipe,
and a file, of the rank's own user are touched, reached through no link of another user.
"""

import base64
import errno
import math
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ncclprobe.host import opener
from ncclprobe.host.processes import environment, stat_or_none
from ncclprobe.host.tcp_sockets import ESTABLISHED, LISTENING, same_network, sockets, sockets_of
from ncclprobe.host.waits import text_or_empty
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, Missing, TimedOut
from ncclprobe.model.units import USER_HZ

_MOST_LINE = 1024
_ADDRESS = re.compile(r"\[?([^\[\]]*?)\]?:([0-9]{1,5})")
_RAS_S, _RAS_BYTES, _TRIES, _LAST_PORT = 3.0, 64 << 20, 4, 65535
_THREAD = "pt_workerserver"
ACCEPT_CALLS = {"x86_64": ("43", "288"), "aarch64": ("202", "242")}
_WORKER_S, _WORKER_BYTES = 1.0, bounds.ANSWER_BYTES


def ask_ras(address: str, pids: Collection[str]) -> str:
    """Query RAS for the job with ranks `pids`; JSON (NCCL 2.28.7) or text. Raises HostError."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > _LAST_PORT:
        raise Missing(f"{address!a} is not an address: NCCL_RAS_ADDR is HOST:PORT")
    port = int(found[2])
    _check_network(pids)
    listening = {inode: address_to_call(family, message) for family, inode, message in sockets([LISTENING], port)}
    if not listening:
        raise Missing(f"no process listens on port {port}: NCCL before 2.24 has no RAS, NCCL_RAS_ENABLE=0 turns it off")
    inode = _own(listening, pids)
    if inode is None:
        raise Denied(f"on port {port} another program listens, not a rank of this job: it was not asked")
    deadline = time.monotonic() + _RAS_S
    for _ in range(_TRIES):
        try:
            with socket.create_connection(listening[inode], _left(deadline)) as connection:
                answer = _ask_rank(connection, deadline, pids)
        except TimeoutError:
            raise TimedOut(f"NCCL's RAS on port {port}: no answer within {_RAS_S:g} s") from None
        if answer is not None:
            return answer
    raise Missing(f"on port {port} another job answers too, and none of this job's ranks did")


def _ask_rank(connection: socket.socket, deadline: float, pids: Collection[str]) -> str | None:
    """Return the answer of a server in one of `pids`; None: it belongs to another process."""
    hello = _exchange(connection, b"CLIENT PROTOCOL 2\n", deadline)
    if not hello.startswith(b"SERVER PROTOCOL "):
        raise Failed(f"port {connection.getpeername()[1]}: {hello[:60]!a} is not what NCCL's RAS answers")
    port, own = connection.getpeername()[1], connection.getsockname()[1]
    if _own({inode for _, inode, _ in sockets([ESTABLISHED], port, own)}, pids) is None:
        return None
    _exchange(connection, b"TIMEOUT 1\n", deadline)
    _exchange(connection, b"SET FORMAT json\n", deadline)  # an older server answers with an error, and in text
    connection.sendall(b"VERBOSE STATUS\n")
    return _read_to_end(connection, _RAS_BYTES, deadline).decode(errors="replace")


def _exchange(connection: socket.socket, line: bytes, deadline: float) -> bytes:
    """Send `line` and return the line that answers it."""
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


def _check_network(pids: Collection[str]) -> None:
    """Check that the first readable of `pids` is in this network namespace. Raises Denied or Missing."""
    for pid in pids:
        with suppress(OSError):
            return same_network(Path(f"/proc/{pid}"))
    raise Missing("no rank whose sockets can be read")


def _own(inodes: Collection[int], pids: Collection[str]) -> int | None:
    """Return one of these sockets that one of `pids` has open; None: no such socket."""
    return next((inode for pid in pids for inode in sockets_of(pid) if inode in inodes), None)


def _read_to_end(connection: socket.socket, most: int, deadline: float) -> bytes:
    """Read until the other end closes. Raises TimeoutError, and Failed for too much data."""
    found = bytearray()
    while chunk := _received(connection, 1 << 18, deadline):
        found += chunk
        if len(found) > most:
            raise Failed(f"its answer is longer than {most >> 20} MiB")
    return bytes(found)


def address_to_call(family: int, message: memoryview) -> tuple[str, int]:
    """Return the address for connecting to a listening socket: its own, as another socket may share the port."""
    host = socket.inet_ntop(family, bytes(message[8 : 12 if family == socket.AF_INET else 24]))
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), struct.unpack_from("!H", message, 4)[0]


def ask_server(pid: str, path: str) -> str:
    """Return the unchanged JSON answer of the worker server in process `pid`. Raises the HostError with the reason.

    Missing: the process has no such server. TimedOut: it does not answer, for example because it is stopped.
    """
    kind, address = _address(pid)
    deadline = time.monotonic() + _WORKER_S
    with socket.socket(kind, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(_WORKER_S)
            if isinstance(address, str):
                _connect(connection, pid, address)
            else:
                connection.connect(address)
            connection.sendall(f"POST /handler/{path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            head, _, body = _read_to_end(connection, _WORKER_BYTES, deadline).partition(b"\r\n\r\n")
        except TimeoutError:
            raise TimedOut(f"the worker server of process {pid}: no answer within {_WORKER_S:g} s") from None
    if not re.match(rb"HTTP/1\.[01] 200 ", head):
        raise Failed(f"the worker server of process {pid}: {path}: {head[:60]!a}")
    return body.decode(errors="replace")


def _address(pid: str) -> tuple[int, tuple[str, int] | str]:
    """Return the address that the server in `pid` listens on."""
    process = Path(f"/proc/{pid}")
    threads = [each for each in (process / "task").iterdir() if _THREAD in text_or_empty(f"{each}/comm")]
    if not threads:
        raise Missing(f"process {pid} runs no worker server of torch")
    same_network(process)
    for thread in threads:
        words = text_or_empty(f"{thread}/syscall").split()
        if words and words[0] in ACCEPT_CALLS.get(os.uname().machine, ()):
            inode = (process / "fd" / str(int(words[1], 16))).readlink().name.removeprefix("socket:[").rstrip("]")
            if address := _listening(process / "net", inode):
                return address
    raise Missing(f"process {pid}: the port of its worker server is unknown")


def _connect(connection: socket.socket, pid: str, name: str) -> None:
    """Connect to the Unix socket that process `pid` calls `name`. Raises Denied if another process answers.

    The name may lead elsewhere by now: a socket of another user is not used, and the kernel names the listening process
    (SO_PEERCRED in unix(7)). ``@`` begins an abstract name (proc_pid_net(5)).
    """
    if name.startswith("@"):
        connection.connect(f"\0{name[1:]}")
    else:
        with _place_in_process(pid, name) as end:
            handle = end.open(os.O_PATH)
            try:
                found = os.fstat(handle)
                if not stat.S_ISSOCK(found.st_mode) or found.st_uid != _user(pid):
                    raise Denied(f"process {pid}: {name!a} is not a socket of its user: it was not contacted")
                connection.connect(f"/proc/self/fd/{handle}")
            finally:
                os.close(handle)
    listener = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    if listener != int(pid):
        raise Denied(f"process {pid}: process {listener} listens on {name!a}: it was not asked")


def _listening(net: Path, inode: str) -> tuple[int, tuple[str, int] | str] | None:
    """Return the local address of the listening socket with this inode (sock_diag(7), proc_net(5))."""
    for kind, own, message in sockets([LISTENING]):
        if str(own) == inode:
            return kind, address_to_call(kind, message)
    for line in (net / "unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) > 7 and words[6] == inode:
            return socket.AF_UNIX, words[7]
    return None


PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_ANSWER_S, _STEP_S = 12.0, 0.05
_STOP = b"."
"""The last byte of a pickle."""


def ask_dump(pid: str, rank: str) -> str:
    """Make process `pid` write its flight records and return them in base64. Raises the HostError with the reason."""
    own = environment(int(pid))
    if not own.get(PIPE):
        raise Missing(f"process {pid}: {PIPE} is not set")
    files = [*dump_files(own, rank)]
    before, said = {path: _written(pid, path) for path in files}, _used_s(pid)
    _write(pid, f"{own[PIPE]}{rank}.pipe")
    end = time.monotonic() + _ANSWER_S
    size = -1
    while time.monotonic() < end:
        time.sleep(_STEP_S)
        for path in files:
            found = _written(pid, path)
            if found and found != before[path]:
                if found[1] == size and (data := _read(pid, path)).endswith(_STOP):
                    if _used_s(pid) >= said + len(data):
                        return base64.b64encode(data).decode()
                    before[path] = found
                size = found[1]
    raise TimedOut(f"process {pid}: it wrote no flight records within {_ANSWER_S:g} s")


def _used_s(pid: str) -> float:
    """Return how many bytes a process has written so far; infinity if that is unknown.

    Jobs of a user that name no file write to the same one, in a home that all nodes see: if it wrote too few bytes, the
    file is another job's.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return math.inf
    return float(next((line.split()[1] for line in lines if line.startswith("wchar:")), math.inf))


def left_dump(pid: str, rank: str) -> str:
    """Return the path of flight records that process `pid` wrote by itself. Raises Missing if there are none."""
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    began_s = time.time() - up_s + int((stat_or_none(f"/proc/{pid}") or ["0"] * 20)[19]) / USER_HZ
    for path in dump_files(environment(int(pid)), rank):
        found = _written(pid, path)
        if found and found[0] / 1e9 >= began_s:
            return path
    raise Missing(f"process {pid}: it has written no flight records")


def dump_files(own: Mapping[str, str], rank: str) -> Iterator[str]:
    """Yield the files that torch may write: the configured one, or the default of its releases."""
    if named := next((own[name] for name in _FILES if own.get(name)), ""):
        yield f"{named}{rank}"
        return
    home = own.get("HOME") or "/tmp"
    for folder in (own.get("XDG_CACHE_HOME") or f"{home}/.cache", f"{home}/.cache"):
        yield from (f"{folder}/torch/{name}_trace_rank_{rank}" for name in ("comm_lib", "nccl"))
    yield f"/tmp/nccl_trace_rank_{rank}"


@contextmanager
def _place_in_process(pid: str, path: str) -> Iterator[opener.Place]:
    """Yield a path as process `pid` sees it, possibly in a container. Raises OSError, also for other users' links."""
    root = f"/proc/{pid}/{'root' if path.startswith('/') else 'cwd'}"
    with opener.place(path, root=root, follow=False) as end:
        end.refuse_makers({_user(pid)})
        yield end


def _user(pid: str) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def _written(pid: str, path: str) -> tuple[int, int] | None:
    """Return modification time in ns and size of a file of the rank's user; None if there is none."""
    try:
        with _place_in_process(pid, path) as end:
            found = end.stat()
    except OSError:
        return None
    whose = found is not None and stat.S_ISREG(found.st_mode) and found.st_uid == _user(pid)
    return (found.st_mtime_ns, found.st_size) if found and whose else None


def _write(pid: str, path: str) -> None:
    """Write one byte to a pipe. Raises HostError if it is not a pipe, belongs to another user, or has no reader."""
    try:
        with _place_in_process(pid, path) as end:
            _pipe_of(end.stat(), path, _user(pid))
            pipe = end.open(os.O_WRONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Missing(f"{path}: there is no such pipe") from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise Failed(f"{path}: torch does not read it") from None
        raise
    try:
        _pipe_of(os.fstat(pipe), path, _user(pid))
        os.write(pipe, b"1")
    except BlockingIOError:
        raise Failed(f"{path}: torch does not read it, and it is full") from None
    finally:
        os.close(pipe)


def _pipe_of(found: os.stat_result | None, path: str, user: int) -> None:
    if found is None:
        raise FileNotFoundError
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != user:
        raise Denied(f"{path}: not a pipe of the rank's own user")


def _read(pid: str, path: str) -> bytes:
    with _place_in_process(pid, path) as end, os.fdopen(end.open(os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != _user(pid):
            raise Denied(f"{path}: not a file of the rank's own user")
        data = opened.read(bounds.JOB_DUMP_BYTES + 1)
    if len(data) > bounds.JOB_DUMP_BYTES:
        raise Failed(f"{path}: longer than {bounds.JOB_DUMP_BYTES >> 20} MiB")
    return data
