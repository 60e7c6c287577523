"""Looks at paths that may never answer, and writes small files there: in a child process, one per path.

A dead NFS or FUSE server holds every process that asks it, so this one asks nothing of a data path. A child that is
late is killed and not waited for; where the kernel does not let it die before its server is back (a FUSE request that
the server has taken), it is left to the kernel. The child answers one JSON request after another
(:class:`~ncclprobe.host.limited_child.LimitedChild`), and touches nothing but folders with a name of ours, which says
host, process and second: whatever a killed run left there, the next run on that host removes.

Quotas of this user and its group where a path is are asked with quotactl_fd(2), Linux 5.14 and newer. File systems
without quotas refuse the question at once. A file server's quotas are behind a protocol of their own (rquotad, lfs
quota) which is not spoken; some servers show them as the size of the file system (CephFS, ZFS, project quotas of XFS),
which statvfs(3) then has.
"""

import ctypes
import hashlib
import json
import os
import random
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ncclprobe.host import path_rate
from ncclprobe.host.command import as_host_error
from ncclprobe.host.limited_child import LimitedChild, framed, requests
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, Failed, HostError, TimedOut

_QUOTACTL_FD = 443
"""The same number on all architectures: it is younger than the common table."""
_GETQUOTA, _KINDS = 0x800007, {"user": 0, "group": 1}
_QUOTA_BLOCK = 1024
"""Of limits: QIF_DQBLKSIZE."""
_NUMBERS = ("bhardlimit", "bsoftlimit", "curspace", "ihardlimit", "isoftlimit", "curinodes", "btime", "itime")


class _Block(ctypes.Structure):
    """``struct if_dqblk`` of linux/quota.h."""

    _fields_ = [*((name, ctypes.c_uint64) for name in _NUMBERS), ("valid", ctypes.c_uint32)]


def quotas(path: str) -> list[dict[str, Any]]:
    """Return the hard limits that are set there, with what is used of them. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        whose = {"user": os.geteuid(), "group": os.getegid()}
        asked = {kind: _asked(fd, kind, number) for kind, number in whose.items()}
    finally:
        os.close(fd)
    return [
        {
            "kind": kind,
            "limit_bytes": block.bhardlimit * _QUOTA_BLOCK,
            "used_bytes": block.curspace,
            "limit_files": block.ihardlimit,
            "used_files": block.curinodes,
        }
        for kind, block in asked.items()
        if block and (block.bhardlimit or block.ihardlimit)
    ]


def _asked(fd: int, kind: str, number: int) -> _Block | None:
    block, command = _Block(), _GETQUOTA << 8 | _KINDS[kind]
    libc = ctypes.CDLL(None, use_errno=True)
    words = (_QUOTACTL_FD, fd, command, number)
    failed = libc.syscall(*map(ctypes.c_long, words), ctypes.byref(block))
    return None if failed else block


_BLOCK = 64 << 10
_SAMPLES, _SAMPLE_BYTES = 16, 4 << 10
_OURS = re.compile(
    r"\.ncclprobe-(?P<host>[A-Za-z0-9_.-]{1,64})-(?P<pid>[0-9]{1,10}\.[0-9]{1,12})-(?P<time>[0-9]{1,12})"
)
_FILE_OF_OURS = re.compile(r"(?:marker|manifest|COMPLETE|spare|shard-[0-9]{1,5})(?:\.new)?|" + path_rate.RATE_FILE)
_HIDDEN = re.compile(r"\.fuse_hidden[0-9a-f]{1,32}|\.nfs[0-9a-f]{1,40}")
"""What libfuse and NFS make of a file that is removed while a handle of it is open; libfuse forgets some of them."""
_OLD_S = 86_400
"""A folder of another host is of no run that still lives: runs take minutes."""
_MOST_FILES = 4096
_REMOVALS, _REMOVE_AGAIN_S = 20, 0.1
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 0.5


class PathChild:
    """Asks about one path, in a child that starts with the first request and is killed when one is late."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._child = LimitedChild(__name__)

    def ask(self, what: str, patience_s: float, **more: Any) -> dict[str, Any]:
        """Return what the child's `what` returns. Raises the HostError that says why not.

        To start, it is given `patience_s` of its own: a busy machine is no path that does not answer.
        """
        if not self._child.started:
            try:
                self._child.ask(json.dumps({"do": "start", "path": self._path}).encode(), patience_s)
            except TimedOut:
                why = f"the process that would look did not start within {max(0.0, patience_s):.3g} s"
                raise Failed(f"{self._path}: {what}: {why}") from None
        request = json.dumps({"do": what, "path": self._path, **more}).encode()
        try:
            answer = json.loads(self._child.ask(request, patience_s))
        except TimedOut:
            raise TimedOut(f"{self._path}: {what}: no answer within {max(0.0, patience_s):.3g} s") from None
        if "refused" in answer:
            raise REFUSALS[answer["refused"]](answer["why"])
        said: dict[str, Any] = answer["said"]
        return said

    def close(self) -> None:
        """Kill the child."""
        self._child.close()


def serve() -> None:
    """Answer requests of standard input until it closes."""
    sys.stdout.flush()
    with os.fdopen(os.dup(0), "rb") as stream, os.fdopen(os.dup(1), "wb") as answers:
        for request in requests(stream, bounds.PLAN_BYTES):
            answers.write(framed(json.dumps(_answer(json.loads(request))).encode()))
            answers.flush()


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    what, path = asked.pop("do"), asked.pop("path")
    try:
        return {"said": _WORK[what](path, **asked)}
    except (OSError, HostError, ValueError) as error:
        refusal = as_host_error(error, path)
        return {"refused": type(refusal).__name__, "why": str(refusal)}


# Looking.


def _stat(path: str) -> dict[str, Any]:
    """Return what it is, whose, what this user may do with it, and the space of its file system."""
    time.sleep(random.uniform(0, 0.1))  # all nodes of a job begin together
    seen, space = os.stat(path), os.statvfs(path)  # noqa: PTH116
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "folder"}.get(stat.S_IFMT(seen.st_mode), "other")
    rights = {name: os.access(path, way) for name, way in (("read", os.R_OK), ("write", os.W_OK), ("enter", os.X_OK))}
    return {
        "kind": kind,
        "real": os.path.realpath(path),
        "uid": seen.st_uid,
        "gid": seen.st_gid,
        "mode": f"{stat.S_IMODE(seen.st_mode):04o}",
        "user": os.geteuid(),
        "nbytes": seen.st_size,
        "mtime_s": seen.st_mtime,
        **rights,
        "total_bytes": space.f_blocks * space.f_frsize,
        "available_bytes": space.f_bavail * space.f_frsize,
        "inodes": space.f_files,
        "available_inodes": space.f_favail,
        "read_only": bool(space.f_flag & os.ST_RDONLY),
        "quotas": quotas(path) if kind == "folder" and rights["read"] else [],
    }


def _content(path: str) -> dict[str, Any]:
    """Return a hash of a file's head, tail and a sample, or of a folder's names; of at most so many entries."""
    mode = os.stat(path).st_mode  # noqa: PTH116
    if stat.S_ISDIR(mode):
        return _listing(path)
    if stat.S_ISREG(mode):
        return _sample(path)
    raise Failed(f"{path}: neither a file nor a folder")


def _listing(path: str) -> dict[str, Any]:
    """Names and kinds, sorted. Sizes would cost one request each to the server."""
    with os.scandir(path) as entries:
        first = [
            f"{entry.name}{'/' * entry.is_dir(follow_symlinks=False)}"
            for entry in islice((e for e in entries if not _OURS.fullmatch(e.name)), bounds.LISTED_ENTRIES + 1)
        ]
    cut = len(first) > bounds.LISTED_ENTRIES
    names = sorted(first[: bounds.LISTED_ENTRIES], key=os.fsencode)
    digest = hashlib.sha256(b"\0".join(map(os.fsencode, names))).hexdigest()[:16]
    return {"entries": len(names), "digest": "" if cut else digest, "cut": cut}


def _sample(path: str) -> dict[str, Any]:
    with Path(path).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest, nbytes = hashlib.sha256(str(size).encode()), 0
        for at, length in _places(size):
            block = os.pread(file.fileno(), length, at)
            digest.update(block)
            nbytes += len(block)
    return {"entries": 0, "digest": digest.hexdigest()[:16], "cut": False, "hashed_bytes": nbytes}


def _places(size: int) -> Iterator[tuple[int, int]]:
    """Head and tail, and between them the same places on every node."""
    yield 0, _BLOCK
    if size > _BLOCK:
        yield max(_BLOCK, size - _BLOCK), _BLOCK
    if size > 2 * _BLOCK:
        places = random.Random(size)  # every node must draw the same ones
        for at in sorted(places.randrange(_BLOCK, size - _BLOCK) for _ in range(_SAMPLES)):
            yield at, _SAMPLE_BYTES


# Writing, in a folder of ours.


def _write(path: str, host: str, text: str) -> dict[str, Any]:
    """Make a folder of ours with a marker in it: create, write, fsync, rename, unlink; return how long each took.

    Raises nothing for a step that fails: `failed` names it, and what was made is in `folder`.
    """
    swept = _sweep(path, host)
    folder = f".ncclprobe-{_plain(host)}-{os.getppid()}.{_pids()}-{int(time.time())}"
    inside, steps = Path(path, folder), _Steps()
    steps.do("mkdir", lambda: inside.mkdir(mode=0o755))
    steps.do("create", lambda: _put(inside / "marker", text, steps))
    steps.do("spare", lambda: (inside / "spare").touch(exist_ok=False))
    steps.do("unlink", lambda: (inside / "spare").unlink())
    made = folder if "mkdir" in steps.seconds else ""
    return {"folder": made, "swept": swept, "seconds": steps.seconds, "failed": steps.failed, "why": steps.why}


class _Steps:
    """Does one thing after another until one fails, and keeps how long each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.failed = self.why = ""

    def do(self, name: str, work: Callable[[], object]) -> None:
        if self.failed:
            return
        started = time.monotonic()
        try:
            work()
        except OSError as error:
            self.failed, self.why = self.failed or name, error.strerror or str(error)
        else:
            self.seconds[name] = round(time.monotonic() - started, 6)


def _put(path: Path, text: str, steps: _Steps) -> None:
    """Write a file as frameworks do: whole under another name, to the disk, then renamed. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    with new.open("x", encoding="ascii") as file:
        file.write(text)
        file.flush()
        steps.do("fsync", lambda: os.fsync(file.fileno()))
    steps.do("rename", lambda: new.replace(path))
    if steps.failed:
        raise OSError(steps.why)


def _look(path: str, folder: str, name: str, digest: str, seconds: float) -> dict[str, Any]:
    """Wait for a file of another node's, at most `seconds`; return when it was there, and whether whole.

    Looked for by name first; where that stays without success, in the listing too, which caches refresh at other times.
    """
    if not _OURS.fullmatch(folder) or not _FILE_OF_OURS.fullmatch(name):
        raise Failed(f"{folder[:80]}/{name[:80]}: no name of ours")
    began, pause, outcome = time.monotonic(), _FIRST_LOOK_S, "absent"
    while True:
        outcome = _seen(Path(path, folder), name, digest)
        waited = time.monotonic() - began
        if outcome == "ok" or waited >= seconds:
            return {"outcome": outcome, "seconds": round(waited, 3)}
        time.sleep(min(pause * random.uniform(0.5, 1.0), max(0.0, seconds - waited)))
        pause = min(2 * pause, _LAST_LOOK_S)


def _seen(folder: Path, name: str, digest: str) -> str:
    """Return ``ok``, or what stands in the way; ``other``: it is cut, or old. See facts/data_paths.py, Sight."""
    try:
        with (folder / name).open("rb", buffering=0) as file:
            text = file.read(bounds.SHARD_BYTES + 1)
    except PermissionError:
        return "denied"
    except OSError:
        return _listed(folder, name)
    return "ok" if digested(text) == digest else "other"


def _listed(folder: Path, name: str) -> str:
    try:
        return "unopened" if name in os.listdir(folder) else "no-file"  # noqa: PTH208
    except PermissionError:
        return "denied"
    except OSError:
        return "no-folder"


def digested(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _shard(path: str, folder: str, name: str, text: str, times: int) -> dict[str, Any]:
    """Write a file of ours into a folder of ours, another node's perhaps: `text`, so many `times`."""
    if not _OURS.fullmatch(folder) or not _FILE_OF_OURS.fullmatch(name):
        raise Failed(f"{folder[:80]}/{name[:80]}: no name of ours")
    steps = _Steps()
    whole = text * times
    steps.do("write", lambda: _put(Path(path, folder, name), whole, steps))
    return {"digest": digested(whole.encode()), "seconds": steps.seconds, "failed": steps.failed, "why": steps.why}


def _rate(path: str, kind: str, folder: str, **bounded: Any) -> dict[str, Any]:
    """Measure once how fast the path is; see path_rate.py."""
    if folder and not _OURS.fullmatch(folder):
        raise Failed(f"{folder[:80]}: no folder of ours")
    return path_rate.rate(path, kind, folder, **bounded)


def _clean(path: str, folder: str) -> dict[str, Any]:
    """Remove a folder of ours; return whether it is gone."""
    if not _OURS.fullmatch(folder):
        raise Failed(f"{folder[:80]}: no folder of ours")
    return {"gone": _remove(Path(path, folder))}


def _sweep(path: str, host: str) -> list[str]:
    """Remove what killed runs left: of this host where that process lives no more, of others after a day."""
    swept = []
    with os.scandir(path) as entries:
        ours = [e.name for e in islice(entries, bounds.LISTED_ENTRIES) if _OURS.fullmatch(e.name)]
    for name in ours:
        if _is_left(name, host) and _remove(Path(path, name)):
            swept.append(name)
    return swept[:16]


def _is_left(name: str, host: str) -> bool:
    match = _OURS.fullmatch(name)
    assert match
    pid, _, pids = match["pid"].partition(".")
    here = match["host"] == _plain(host) and pids == str(_pids())
    return (here and not Path("/proc", pid).exists()) or time.time() - int(match["time"]) > _OLD_S


def _pids() -> int:
    """Return this process's PID namespace: containers of one host name may share a path and not their numbers."""
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116


def _remove(folder: Path) -> bool:
    """Remove files of our names and then the folder. What another has put there stays, and the folder with it.

    Tried again, because a file that a process has open still is kept under another name until it is closed.
    """
    for _ in range(_REMOVALS):
        if _removed(folder):
            return True
        time.sleep(_REMOVE_AGAIN_S)
    return False


def _removed(folder: Path) -> bool:
    try:
        if folder.is_symlink():
            return False
        for name in islice(os.listdir(folder), _MOST_FILES):  # noqa: PTH208
            if _FILE_OF_OURS.fullmatch(name) or _HIDDEN.fullmatch(name):
                (folder / name).unlink(missing_ok=True)
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _plain(host: str) -> str:
    """Return a host's name as it may stand in a file's."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", host)[:64] or "host"


_WORK: dict[str, Callable[..., dict[str, Any]]] = {
    "start": lambda _path: {},
    "stat": _stat,
    "content": _content,
    "write": _write,
    "look": _look,
    "shard": _shard,
    "rate": _rate,
    "clean": _clean,
}
