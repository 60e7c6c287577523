"""Agree on a key with a process of the same user on another node of the cluster, by munge, as Slurm itself does.

The caller draws a key and has the munged of its node seal it for its own user; the answerer's munged opens it for that
user alone (munge(1), --restrict-uid), once (munged(8) refuses replays), and says who sealed it.
"""

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import subprocess
import time
from collections.abc import Sequence

from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.host.command import abandon, found, start
from ncclprobe.wire import SECRET_BYTES, WireError

PATIENCE_S = 5.0
_AT_ONCE = 4  # processes: every caller of the port may have credentials looked at
_OPENED = re.compile(rf"UID:\s+(\d{{1,10}})\n\n([0-9a-f]{{{2 * SECRET_BYTES}}})")


class Munge:
    """Credentials of this user. `mark` is mixed into every key: runs of one user stay apart."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def offer(self, deadline: float) -> tuple[bytes, bytes]:
        """Return a credential, and the key in it. Raises WireError (denied)."""
        secret = secrets.token_hex(SECRET_BYTES)
        async with self._places:
            code, credential, trouble = await _run(_seal_command(), secret.encode(), deadline)
        if code or not credential:
            raise WireError("denied", f"munge on this node: {trouble}")
        return credential.strip(), self._mixed(secret)

    async def key(self, credential: bytes, deadline: float) -> bytes:
        """Return the key in a caller's `credential`. Raises WireError (stranger)."""
        async with self._places:
            code, opened, trouble = await _run(("unmunge", "--numeric", "--keys=UID"), credential, deadline)
        match = _OPENED.fullmatch(opened.decode(errors="replace"))
        if code or not match:
            raise WireError("stranger", f"has a credential that munge does not take here: {trouble}")
        if int(match[1]) != os.geteuid():
            raise WireError("stranger", f"is of user {match[1]}, and this run of user {os.geteuid()}")
        return self._mixed(match[2])

    def _mixed(self, secret: str) -> bytes:
        return hmac.digest(bytes.fromhex(secret), b"munge" + self._mark, hashlib.sha256)


def is_here() -> bool:
    """Return whether munge seals a credential on this machine."""
    try:
        if not (found("munge") and found("unmunge")):
            return False
    except OSError:
        return False
    return _ask(_seal_command(), b"", time.monotonic() + PATIENCE_S)[0] == 0


def _seal_command() -> tuple[str, ...]:
    return "munge", f"--restrict-uid={os.geteuid()}"


async def _run(argv: Sequence[str], text: bytes, deadline: float) -> tuple[int, bytes, str]:
    try:
        return await run_in_thread(lambda: _ask(argv, text, deadline), deadline)
    except TimeoutError:
        return -1, b"", "no answer"


def _ask(argv: Sequence[str], text: bytes, deadline: float) -> tuple[int, bytes, str]:
    """Return the exit code of a command that reads `text`, what it prints, and its last words."""
    left_s = max(0.001, min(PATIENCE_S, deadline - time.monotonic()))
    try:
        process = start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return -1, b"", str(error)
    try:
        out, err = process.communicate(text, left_s)
    except (OSError, subprocess.SubprocessError) as error:
        return -1, b"", str(error)
    finally:
        abandon(process)
    words = " ".join(err.decode(errors="replace").split())
    return process.returncode, out, words[:200] or f"exit code {process.returncode}"
