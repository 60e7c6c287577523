"""torch's own offer to write a rank's flight records: a byte into a pipe, and a file that it then writes.

`TORCH_NCCL_DEBUG_INFO_PIPE_FILE` names the pipe, PATH and rank and ``.pipe`` (DumpPipe in ProcessGroupNCCL.hpp); the
thread that watches the heartbeat looks at it once a second, and writes the file of `TORCH_FR_DUMP_TEMP_FILE`, PATH and
rank (DebugInfoWriter), at first after some seconds in which torch looks up the names of its stacks. Only a pipe, and a
file, of the rank's own user are touched, and no link is followed.
"""

import base64
import errno
import math
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ncclprobe.host.processes import environment, stat_or_none
from ncclprobe.model import bounds
from ncclprobe.model.errors import Denied, Failed, Missing, TimedOut
from ncclprobe.model.units import USER_HZ

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_ANSWER_S, _STEP_S = 12.0, 0.05
_STOP = b"."
"""The last byte of a pickle."""


def ask_dump(pid: str, rank: str) -> str:
    """Return the flight records that process `pid` writes when it is asked, in base64. Raises the HostError that says
    why there are none."""
    own = environment(int(pid))
    if not own.get(PIPE):
        raise Missing(f"process {pid}: {PIPE} is not set")
    user = Path(f"/proc/{pid}").stat().st_uid
    files = [_in_its_view(pid, path) for path in _dumps(own, rank)]
    before, said = {path: _written(path, user) for path in files}, _said(pid)
    _write(_in_its_view(pid, f"{own[PIPE]}{rank}.pipe"), user)
    end = time.monotonic() + _ANSWER_S
    size = -1
    while time.monotonic() < end:
        time.sleep(_STEP_S)
        for path in files:
            found = _written(path, user)
            if found and found != before[path]:
                if found[1] == size and (data := _read(path, user)).endswith(_STOP):
                    if _said(pid) >= said + len(data):
                        return base64.b64encode(data).decode()
                    before[path] = found
                size = found[1]
    raise TimedOut(f"process {pid}: it wrote no flight records within {_ANSWER_S:g} s")


def _said(pid: str) -> float:
    """Return how many bytes a process has written so far, endlessly many where that is not told.

    Jobs of a user that name no file write to the same, in a home that all nodes see: one that wrote too few is another.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return math.inf
    return float(next((line.split()[1] for line in lines if line.startswith("wchar:")), math.inf))


def left_dump(pid: str, rank: str) -> str:
    """Return the path of flight records that process `pid` has written by itself. Raises Missing where it has not."""
    user = Path(f"/proc/{pid}").stat().st_uid
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    began_s = time.time() - up_s + int((stat_or_none(f"/proc/{pid}") or ["0"] * 20)[19]) / USER_HZ
    for path in _dumps(environment(int(pid)), rank):
        found = _written(_in_its_view(pid, path), user)
        if found and found[0] / 1e9 >= began_s:
            return path
    raise Missing(f"process {pid}: it has written no flight records")


def _dumps(own: Mapping[str, str], rank: str) -> Iterator[str]:
    """Yield where torch may write: to the file that is named, or where its releases do by themselves."""
    if named := next((own[name] for name in _FILES if own.get(name)), ""):
        yield f"{named}{rank}"
        return
    home = own.get("HOME") or "/tmp"
    for folder in (own.get("XDG_CACHE_HOME") or f"{home}/.cache", f"{home}/.cache"):
        yield from (f"{folder}/torch/{name}_trace_rank_{rank}" for name in ("comm_lib", "nccl"))
    yield f"/tmp/nccl_trace_rank_{rank}"


def _in_its_view(pid: str, path: str) -> str:
    """Return how a path of a process is reached from here: it may be in a container."""
    return f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}"


def _written(path: str, user: int) -> tuple[int, int] | None:
    """Return when a file of this user was written, in ns, and its size; None where there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) and found.st_uid == user else None


def _write(path: str, user: int) -> None:
    """Write one byte to a pipe. Raises HostError for what is none, or of another user, or not read."""
    try:
        _pipe_of(os.lstat(path), path, user)
    except FileNotFoundError:
        raise Missing(f"{path}: there is no such pipe") from None
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise Failed(f"{path}: torch does not read it") from None
        raise
    try:
        _pipe_of(os.fstat(pipe), path, user)
        os.write(pipe, b"1")
    except BlockingIOError:
        raise Failed(f"{path}: torch does not read it, and it is full") from None
    finally:
        os.close(pipe)


def _pipe_of(found: os.stat_result, path: str, user: int) -> None:
    if not stat.S_ISFIFO(found.st_mode) or found.st_uid != user:
        raise Denied(f"{path}: no pipe of the rank's own user")


def _read(path: str, user: int) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != user:
            raise Denied(f"{path}: no file of the rank's own user")
        data = opened.read(bounds.JOB_DUMP_BYTES + 1)
    if len(data) > bounds.JOB_DUMP_BYTES:
        raise Failed(f"{path}: longer than {bounds.JOB_DUMP_BYTES >> 20} MiB")
    return data
