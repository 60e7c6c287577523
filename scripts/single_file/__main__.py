"""What runs first in ncclprobe.pyz: unpack what this Python needs into a folder of its user, and start from there.

msgspec and psutil are compiled, and no library can be loaded out of an archive; so the first start unpacks the files of
this interpreter and processor, and later ones find them. The folder must belong to the user alone: who can write to it
decides what root runs. Python 3.6 can parse this, so that it can say that it is too old.
"""

import contextlib
import os
import shutil
import stat
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NoReturn, Tuple  # noqa: UP035 - 3.6 has no tuple[...]

DIGEST = "@DIGEST@"
OLDEST = (3, 10)
VARIABLE = "NCCLPROBE_CACHE"


def main() -> None:
    """Start the program from unpacked files, for this process and those that it starts."""
    if sys.version_info < OLDEST:
        refuse(f"Python {sys.version.split()[0]} is older than 3.10: start this file with a newer one")
    folder = str(unpacked(Path(__file__).parent))
    sys.path[0] = folder
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{rest}" if rest else folder
    try:
        import msgspec  # noqa: F401 - the first library that is compiled
    except ImportError as error:
        refuse(f"{error} (where {folder} is mounted noexec, set {VARIABLE} to a folder elsewhere)")
    from ncclprobe.start import program

    program()


def refuse(line: str) -> NoReturn:
    """Leave with one line and 2: nothing was judged."""
    sys.stderr.write(f"ncclprobe: {line}; nothing was judged\n")
    raise SystemExit(2)


def unpacked(archive: Path) -> Path:
    """Return the folder with the files for this interpreter and processor, unpacked now or earlier."""
    parts = wanted(archive)
    base = cache()
    folder = base / f"{DIGEST}-{parts[1]}"
    try:
        own(base)
        if not folder.is_dir():
            unpack(archive, parts, base, folder)
        own(folder)
    except OSError as error:
        refuse(f"{base} cannot be written ({error.strerror or error}): set {VARIABLE} to a folder of yours")
    return folder


def wanted(archive: Path) -> Tuple[str, str, str]:  # noqa: UP006
    """Return the parts to unpack: what fits any Python, this one on this processor, and this processor."""
    machine = os.uname().machine
    exact = f"cp{sys.version_info[0]}{sys.version_info[1]}-{machine}"
    with zipfile.ZipFile(archive) as file:
        has = {name.partition("/")[0] for name in file.namelist()}
    if exact not in has:
        refuse(f"this file has nothing for {exact}: {', '.join(sorted(each for each in has if each[:2] == 'cp'))}")
    return "any", exact, f"abi3-{machine}"


def cache() -> Path:
    """Return where programs are unpacked: as the user says, else in the user's cache, else a private folder of /tmp."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).absolute()
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - pathlib's raises
    if home.is_absolute() and writable(home):
        return home / "ncclprobe"
    return Path(tempfile.gettempdir(), f"ncclprobe-{os.geteuid()}")


def writable(path: Path) -> bool:
    """Return whether `path` can be written, or, where it is missing, the nearest folder above it."""
    there = next(each for each in (path, *path.parents) if each.exists())
    return os.access(str(there), os.W_OK | os.X_OK)


def own(folder: Path) -> None:
    """Make `folder` where it is missing; refuse a link, and a folder that another user owns or may write to."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        refuse(
            f"{folder} is not a folder of this user alone (owner {found.st_uid}, {stat.filemode(found.st_mode)}): "
            f"remove it, or set {VARIABLE} to a folder of yours"
        )


def unpack(archive: Path, parts: Tuple[str, ...], base: Path, folder: Path) -> None:  # noqa: UP006
    """Unpack beside `folder` and move there at once, so that no start finds half of it."""
    beside = Path(tempfile.mkdtemp(prefix="unpacking-", dir=str(base)))
    try:
        with zipfile.ZipFile(archive) as file:
            for name in file.namelist():
                part, _, inner = name.partition("/")
                if part in parts:
                    to = beside / inner
                    to.parent.mkdir(parents=True, exist_ok=True)
                    to.write_bytes(file.read(name))
        beside.rename(folder)
    except OSError:
        shutil.rmtree(str(beside), ignore_errors=True)
        if not folder.is_dir():  # else another start was faster
            raise


if __name__ == "__main__":
    main()
