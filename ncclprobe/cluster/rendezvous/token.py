"""Find the secret by which the processes of one run prove to each other that they belong to it.

The first of these that exists: a random one through torchrun's store; NCCLPROBE_TOKEN; munge, in a Slurm job; a file of
this user in a home that the nodes share; one that node 0 makes and prints if the nodes are started by hand. Without
any,
no node can prove anything, and the report states it.

With munge, as in Slurm itself, a key is agreed on with a process of the same user on another node. The caller draws it
and has its node's munged seal it for its own user. The answerer's munged opens it only for that user (munge(1),
--restrict-uid), once (munged(8) refuses replays), and reports who sealed it.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.reach import Proof
from ncclprobe.host import files, opener
from ncclprobe.host.command import abandon, found, start
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import Struct
from ncclprobe.wire import SECRET_BYTES, Key, WireError

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
            raise WireError("stranger", f"has a credential that munge on this node rejects: {trouble}")
        if int(match[1]) != os.geteuid():
            raise WireError("stranger", f"is of user {match[1]}, but this run is of user {os.geteuid()}")
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
    return run_command(_seal_command(), b"", time.monotonic() + PATIENCE_S)[0] == 0


def _seal_command() -> tuple[str, ...]:
    return "munge", f"--restrict-uid={os.geteuid()}"


async def _run(argv: Sequence[str], text: bytes, deadline: float) -> tuple[int, bytes, str]:
    try:
        return await run_in_thread(lambda: run_command(argv, text, deadline), deadline)
    except TimeoutError:
        return -1, b"", "no answer"


def run_command(argv: Sequence[str], text: bytes, deadline: float) -> tuple[int, bytes, str]:
    """Run a command that reads `text`; return its exit code, its output, and its last words."""
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


VARIABLE = "NCCLPROBE_TOKEN"
TRUST = "--trust-network"
LEAST_CHARACTERS = 16
"""A caller's proof lets the answerer try tokens offline: 16 random letters and digits withstand that."""

_ROUNDS = 100_000  # of PBKDF2 over a token that a person may have chosen: about 30 ms, once
_FILE = Path(".config", "ncclprobe", "token")
_SHARED = frozenset(
    {
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "virtiofs", "afs", "panfs", "pvfs2"),
        *("wekafs", "gfs2", "ocfs2", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs", "fuse.sshfs", "fuse.moosefs"),
    }
)
"""File systems that several machines mount, as /proc/self/mountinfo calls them."""


class Token(Struct, frozen=True):
    """The proof that a process belongs to the run.

    `mark` is made of facts that every process of the run knows, and every stranger as well: it only keeps runs apart.
    `key` proves; None: the nodes have no secret, or `by_store`: torchrun's store will hand one out. `origin`: its
    source.
    `trusted`: --trust-network. `made`: text of a secret made here for the other nodes.
    """

    mark: bytes
    key: Key | None
    origin: str
    trusted: bool = False
    by_store: bool = False
    made: str = ""

    def __repr__(self) -> str:
        return f"Token({self.origin})"

    @property
    def unproven(self) -> bool:
        """Whether the nodes can prove nothing to each other, and no option waives the proof."""
        return self.key is None and not self.by_store

    @property
    def local(self) -> bytes:
        """Secret of the socket on which the ranks of one node meet; the kernel identifies its peers."""
        return self.key if isinstance(self.key, bytes) else self.mark

    @property
    def proof(self) -> Proof:
        """The report's statement about the proof."""
        return Proof(self.origin, not self.unproven and not self.trusted, self.trusted)


def find_token(variables: Mapping[str, str | None], launch: Launch, *, trust: bool = False) -> Token:
    """Return this run's token. Raises UsageError if the user's own is too weak, or missing.

    MASTER_ADDR is not part of the mark: one node may call rank 0 by name and another by number.
    """
    mark = _mark(launch)
    if launch.agent_store:
        return Token(mark, None, "random, through torchrun's store", by_store=True)
    if given := variables.get(VARIABLE):
        return Token(mark, derive_key(given), VARIABLE)
    if trust:
        return Token(mark, mark, f"none ({TRUST}): every process on this network may be part of the run", trusted=True)
    if launch.several_nodes:
        if variables.get("SLURM_JOB_ID") and is_here():
            return Token(mark, Munge(mark), "munge")
        if secret := home_secret(Path(variables.get("HOME") or "/")):
            return Token(mark, hmac.digest(secret, mark, hashlib.sha256), f"~/{_FILE}")
        if launch.kind == "options":
            return _made_by_hand(mark, launch)
    return Token(mark, None, "none")


def _mark(launch: Launch) -> bytes:
    known = json.dumps([launch.run_id, os.getuid(), launch.master_port or 0])
    return hashlib.sha256(f"ncclprobe {known}".encode()).digest()


def derive_key(given: str) -> bytes:
    """Derive the key from a token that a person gave. Raises UsageError if it is too short."""
    if len(given) < LEAST_CHARACTERS:
        raise UsageError(
            f"{VARIABLE} has {len(given)} characters, and a secret of fewer than {LEAST_CHARACTERS} can be "
            f"guessed; set it to the output of `openssl rand -hex 16`, the same on every node"
        )
    text = given.encode("utf-8", "surrogateescape")
    return hashlib.pbkdf2_hmac("sha256", text, b"ncclprobe", _ROUNDS, SECRET_BYTES)


def _made_by_hand(mark: bytes, launch: Launch) -> Token:
    if launch.node_rank:
        raise UsageError(
            f"{VARIABLE} is not set: start this node with the command that node 0 prints, or, if only trusted "
            f"users can reach these hosts, give {TRUST} on every node"
        )
    text = secrets.token_hex(LEAST_CHARACTERS)
    return Token(mark, derive_key(text), "made by node 0, for this run", made=text)


def home_secret(home: Path) -> bytes | None:
    """Return the secret in this user's file; make one if the home is on a file system that nodes share.

    None: no file. Raises UsageError if the file could be another's, or others can read it.
    """
    path = home / _FILE
    try:
        if not path.exists():
            if not is_shared(home):
                return None
            write_secret(path)
        return _read_secret(path)
    except OSError:  # a home that root may not write (root_squash), a full disk: as if there were none
        return None


def write_secret(path: Path) -> None:
    """Write a new secret atomically, unless another node was faster. Raises OSError."""
    files.make_folder(path.parent, 0o700)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def _read_secret(path: Path) -> bytes:
    """Read the secret. Raises OSError, and UsageError unless the file belongs only to this user."""
    with opener.place(path, follow=False) as end:
        handle = end.open(os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        fit = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if not fit:
            raise UsageError(
                f"{path}: other users can read it or may have written it: remove it, and a new one is created"
            )
        text = file.read(4 * SECRET_BYTES).strip()
    if len(text) < 2 * LEAST_CHARACTERS:
        raise UsageError(
            f"{path}: contains no secret of {2 * LEAST_CHARACTERS} characters: remove it, and a new one is created"
        )
    return text


def is_shared(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether `path` is on a file system that several machines mount: proc_pid_mountinfo(5)."""
    try:
        place, lines = str(path.resolve()), mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    best = ("", "")
    for line in lines:
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        point = words[4].replace("\\040", " ") if len(words) > 4 else ""
        inside = point and (place == point or place.startswith(point.rstrip("/") + "/"))
        if inside and len(point) >= len(best[0]):
            best = point, rest.split(" ")[0]
    return best[1] in _SHARED
