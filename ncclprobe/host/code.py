"""What a job runs: a digest of a folder of code, its commit, and the distributions that Python would import.

Nothing of the files leaves this module but one digest over all of them. Git is not run: a repository's own settings may
name programs for it to start. Links are not followed, and each limit that ends the walk is told.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any

from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed

_METADATA = re.compile(r"([\w.-]+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_ENDINGS = """
    py pyi pyx pth sh bash slurm sbatch yaml yml json toml cfg ini conf txt md cu cuh c cc cpp h hpp rs go so cmake
    jinja j2 patch
"""
_SUFFIXES = frozenset(f".{ending}" for ending in _ENDINGS.split())
"""Of what counts as code. Data, logs and check-points differ between nodes for good reasons."""
_NAMES = frozenset(("Makefile", "Dockerfile", "CMakeLists.txt", "hostfile"))
_SKIPPED = frozenset(("__pycache__", "node_modules", "wandb", "logs", "outputs", "checkpoints"))
_MOST_SECONDS = 15.0
_CHUNK = 1 << 20
_COMMIT = r"[0-9a-f]{40}(?:[0-9a-f]{24})?"


def tree(folder: str) -> dict[str, Any]:
    """Return digest, number and bytes of the code files below `folder`, its commit, and why the walk ended early.

    `unread` counts files and folders that could not be read. Raises OSError if `folder` itself cannot be.
    """
    import hashlib  # which costs every start milliseconds, and is used where --code is given

    root, ends = Path(folder), time.monotonic() + _MOST_SECONDS
    os.scandir(root).close()
    digest, files, nbytes, unread, cut = hashlib.sha256(), 0, 0, 0, ""
    for path, size in _code(root):
        if files >= bounds.CODE_FILES or nbytes + size > bounds.CODE_BYTES or time.monotonic() > ends:
            cut = f"the walk ended after {files} files and {nbytes} bytes"
            break
        content = _digest(path)
        unread += content is None
        digest.update(f"{path.relative_to(root)}\0".encode(errors="surrogateescape") + (content or b"?"))
        files, nbytes = files + 1, nbytes + size
    return {"digest": digest.hexdigest(), "files": files, "bytes": nbytes, "unread": unread, "cut": cut} | {
        "commit": _commit(root)
    }


def _code(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield code files and their sizes, in the order of their paths. Raises Failed beyond so many folders."""
    waiting, seen = [root], 0
    while waiting:
        folder, seen = waiting.pop(), seen + 1
        if seen > bounds.CODE_FOLDERS:
            raise Failed(f"{root}: more than {bounds.CODE_FOLDERS} folders; name the folder of the code alone")
        below: list[Path] = []
        for path in _entries(folder):
            try:
                status = path.lstat()
            except OSError:
                continue
            if S_ISDIR(status.st_mode) and path.name not in _SKIPPED and not (path / "pyvenv.cfg").exists():
                below.append(path)
            elif S_ISLNK(status.st_mode) or (S_ISREG(status.st_mode) and _counts(path)):
                yield path, min(status.st_size, bounds.CODE_FILE_BYTES)
        waiting += reversed(below)


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder but for hidden things, which hold settings and secrets; nothing of a closed one."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if not entry.name.startswith("."))
    except OSError:
        return []


def _counts(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES or path.name in _NAMES


def _digest(path: Path) -> bytes | None:
    """Return a digest of a file's first bytes, or of where a link leads; None if it cannot be read."""
    import hashlib

    try:
        if path.is_symlink():
            return hashlib.sha256(os.fsencode(path.readlink())).digest()
        content, left = hashlib.sha256(), bounds.CODE_FILE_BYTES
        with path.open("rb") as file:
            while left > 0 and (chunk := file.read(min(_CHUNK, left))):
                content.update(chunk)
                left -= len(chunk)
        return content.digest()
    except OSError:
        return None


def _commit(root: Path) -> str:
    """Return the commit that is checked out in the repository around `root`; empty if there is none to be seen."""
    for folder in (root, *root.parents):
        git = folder / ".git"
        with contextlib.suppress(OSError, UnicodeError):
            if git.is_file():  # a worktree: "gitdir: /path"
                git = folder / git.read_text(encoding="utf-8")[: bounds.GIT_REF].removeprefix("gitdir: ").strip()
            if (git / "HEAD").is_file():
                return _resolved(git, _head(git / "HEAD"))
    return ""


def _head(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(bounds.GIT_REF).strip()


def _resolved(git: Path, head: str) -> str:
    if re.fullmatch(_COMMIT, head):
        return head
    ref = head.removeprefix("ref: ")
    common = git / _head(git / "commondir") if (git / "commondir").is_file() else git
    if not ref.startswith("refs/") or ".." in ref:
        return ""
    for place in (git, common):
        if (place / ref).is_file():
            found = _head(place / ref)
            return found if re.fullmatch(_COMMIT, found) else ""
    with (common / "packed-refs").open(encoding="utf-8") as file:
        rows = (line.split() for line in file.read(bounds.GIT_REFS_BYTES).splitlines())
        return next((row[0] for row in rows if row[1:] == [ref] and re.fullmatch(_COMMIT, row[0])), "")


def distributions(wanted: Collection[str] = ()) -> dict[str, str]:
    """Return the versions of installed distributions by name, those `wanted` or all, without importing any."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for match in (_METADATA.fullmatch(entry.name) for entry in entries):
                name = match[1].lower().replace("_", "-") if match else ""
                if match and (not wanted or name in wanted):
                    versions.setdefault(name, match[2])  # the first on the path is the one that imports
    return dict(sorted(versions.items())[: bounds.DISTRIBUTIONS])


def interpreter() -> dict[str, Any]:
    """Return Python's version and every installed distribution."""
    return {"python": ".".join(map(str, sys.version_info[:3])), "distributions": distributions()}
