"""Examine paths that may never answer, in one child process per path.

A dead NFS or FUSE server blocks every process that accesses it, so this process never touches a data path. A late child
is killed and not waited for. If the kernel cannot end it before its server is back (a FUSE request that the server has
accepted), it is left to the kernel. The child answers one JSON request after another
(:class:`~ncclprobe.host.limited_child.LimitedChild`), and only reads.
"""

import hashlib
import json
import os
import random
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

_BLOCK = 64 << 10
_SAMPLES, _SAMPLE_BYTES = 16, 4 << 10


class PathChild:
    """Asks about one path, in a child that the first request starts and that is killed if a request is late."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._child = LimitedChild(__name__)

    def ask(self, what: str, patience_s: float) -> dict[str, Any]:
        """Return the result of the child's `what`. Raises the HostError with the reason.

        Starting has its own `patience_s`: a busy machine does not mean that the path does not answer.
        """
        if not self._child.started:
            try:
                self._child.ask(json.dumps({"do": "start", "path": self._path}).encode(), patience_s)
            except TimedOut:
                why = f"the process that examines it did not start within {max(0.0, patience_s):.3g} s"
                raise Failed(f"{self._path}: {what}: {why}") from None
        request = json.dumps({"do": what, "path": self._path}).encode()
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
    what, path = asked["do"], asked["path"]
    try:
        return {"said": _WORK[what](path)}
    except (OSError, HostError, ValueError) as error:
        refusal = as_host_error(error, path)
        return {"refused": type(refusal).__name__, "why": str(refusal)}


def _stat(path: str) -> dict[str, Any]:
    """Return type, owner and mode of a path, and this user's access to it."""
    time.sleep(random.uniform(0, 0.1))  # all nodes of a job begin together
    seen = os.stat(path)  # noqa: PTH116
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "folder"}.get(stat.S_IFMT(seen.st_mode), "other")
    return {
        "kind": kind,
        "real": os.path.realpath(path),
        "uid": seen.st_uid,
        "gid": seen.st_gid,
        "mode": f"{stat.S_IMODE(seen.st_mode):04o}",
        "user": os.geteuid(),
        "nbytes": seen.st_size,
        "read": os.access(path, os.R_OK),
        "enter": os.access(path, os.X_OK),
    }


def content_of(path: str) -> dict[str, Any]:
    """Return a hash of a file's head, tail and a sample, or of a folder's names, up to a limit of entries."""
    mode = os.stat(path).st_mode  # noqa: PTH116
    if stat.S_ISDIR(mode):
        return _listing(path)
    if stat.S_ISREG(mode):
        return _sample(path)
    raise Failed(f"{path}: neither a file nor a folder")


def _listing(path: str) -> dict[str, Any]:
    """Return names and kinds, sorted. Sizes would cost the server one request each."""
    with os.scandir(path) as entries:
        first = [
            f"{entry.name}{'/' * entry.is_dir(follow_symlinks=False)}"
            for entry in islice(entries, bounds.LISTED_ENTRIES + 1)
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
    """Yield head and tail, and in between the same places on every node."""
    yield 0, _BLOCK
    if size > _BLOCK:
        yield max(_BLOCK, size - _BLOCK), _BLOCK
    if size > 2 * _BLOCK:
        places = random.Random(size)  # every node must draw the same ones
        for at in sorted(places.randrange(_BLOCK, size - _BLOCK) for _ in range(_SAMPLES)):
            yield at, _SAMPLE_BYTES


_WORK: dict[str, Callable[[str], dict[str, Any]]] = {
    "start": lambda _path: {},
    "stat": _stat,
    "content": content_of,
    "rate": path_rate.rate,
}
