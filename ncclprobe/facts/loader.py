"""Find where the dynamic loader looks for a shared library, and which of several it takes: ld.so(8).

Everyone may read the cache and list the folders. In programs that gain privileges the loader ignores the variables.
"""

import json
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import attempt
from ncclprobe.host import Host
from ncclprobe.model.errors import Denied, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

READS = frozenset({"LD_PRELOAD", "LD_LIBRARY_PATH"})
"""Variables read here: their values may be recorded."""

LIBRARIES = "libnccl*"
"""NCCL and its plugins: what is looked for in a folder, always at once, so that each folder is listed once."""

CACHED = ("libnccl", "libcudnn.so.")
"""Beginnings of the names that are looked for in the loader's cache, at once, so that it is read once."""

DEFAULT_FOLDERS = (  # Debian's multiarch, Red Hat's and the plain layout; /lib is /usr/lib wherever there is a CUDA
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)


class Loader(Struct, frozen=True):
    """`preload`: files that are mapped before any other. `library_path`: LD_LIBRARY_PATH's folders.

    `cached`: (name, file) of the libraries that ldconfig found, of NCCL, its plugins and cuDNN, the preferred first.
    """

    preload: tuple[str, ...] = ()
    library_path: tuple[str, ...] = ()
    cached: tuple[tuple[str, str], ...] | Absent = ()

    def folders(self) -> tuple[str, ...]:
        """Return every folder that has a library of NCCL by its bare name, in the loader's order."""
        files = () if isinstance(self.cached, Absent) else self.cached
        own = [str(PurePosixPath(file).parent) for name, file in files if name.startswith("libnccl")]
        return tuple(dict.fromkeys(map(usr, (*self.library_path, *own, *DEFAULT_FOLDERS))))


class Elf(NamedTuple):
    """A library's own entries: what it needs, and its search path for that (elf(5)).

    `needs_versions`: the versions of symbols it asks of each library; `versions`: those it defines.
    """

    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    needs_versions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    versions: tuple[str, ...] = ()


class Step(NamedTuple):
    """One place where the loader looks: its name for people, and the folders or files there."""

    name: str
    folders: tuple[str, ...]


@collector
def loader(host: Host, environment: Environment | Absent) -> Loader:
    """Read two variables and /etc/ld.so.cache, open to every user."""
    variables = {} if isinstance(environment, Absent) else environment.variables
    return Loader(
        preload=tuple(filter(None, re.split(r"[\s:]+", variables.get("LD_PRELOAD") or ""))),
        library_path=tuple(filter(None, re.split("[:;]", variables.get("LD_LIBRARY_PATH") or ""))),
        cached=attempt(lambda: _cached(host)),
    )


def _cached(host: Host) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(file)) for name, file in json.loads(host.ask("ld_cache", *CACHED)))


def elf(text: str, path: str) -> Elf:
    """Return the host's answer for the library at `path`, with ``$ORIGIN`` written out. Raises ParseError."""
    try:
        seen = json.loads(text)
        paths = [tuple(_origin(folder, path) for folder in filter(None, seen[key].split(":"))) for key in _PATHS]
        asked = {str(name): tuple(map(str, versions)) for name, versions in seen.get("needs_versions", {}).items()}
        own = tuple(map(str, seen.get("versions", ())))  # which captures of older tools lack
        return Elf(tuple(map(str, seen["needed"])), paths[0], paths[1], tuple(asked.items()), own)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ParseError(f"{path}: no dynamic section: {text[:80]!r}") from None


_PATHS = ("rpath", "runpath")


def _origin(folder: str, path: str) -> str:
    """Return a folder of a library's own search path, relative to that library's folder."""
    origin = str(PurePosixPath(path).parent)
    parts: list[str] = []
    for part in re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: origin, folder).split("/"):
        if part == ".." and parts and parts[-1] not in ("", ".."):
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts) or "/"


def steps(loader: Loader, needer: Elf | None = None) -> tuple[Step, ...]:
    """Return the loader's folders for the needs of `needer` (None: a program without a path of its own), in order.

    A DT_RPATH precedes LD_LIBRARY_PATH, and is void if there is a DT_RUNPATH, which follows it.
    """
    own = needer or Elf((), (), ())
    return (
        Step("DT_RPATH", own.rpath if not own.runpath else ()),
        Step("LD_LIBRARY_PATH", loader.library_path),
        Step("DT_RUNPATH", own.runpath),
    )


def choose(host: Host, name: str, loader: Loader, needer: Elf | None = None) -> tuple[str, str] | None:
    """Return the file that the loader maps for `name`, a library of NCCL, and what makes it; None if it finds none.

    Raises the HostError of a folder that does not answer: the loader would wait for it, too.
    """
    for file in loader.preload:
        if PurePosixPath(file).name.startswith(name):
            return file, "LD_PRELOAD"
    for step in steps(loader, needer):
        for folder in step.folders:
            if name in libraries(host, folder):
                return f"{folder}/{name}", step.name
    for soname, file in () if isinstance(loader.cached, Absent) else loader.cached:
        if soname == name:
            return file, "/etc/ld.so.cache"
    for folder in DEFAULT_FOLDERS:
        if name in libraries(host, folder):
            return f"{folder}/{name}", "the loader's default folders"
    return None


def usr(path: str) -> str:
    """Return one name for a folder that has two since /lib is a link to /usr/lib."""
    return f"/usr{path}" if path.startswith(("/lib/", "/lib64")) else path


def libraries(host: Host, folder: str) -> Sequence[str]:
    """Return NCCL's libraries in a folder; none if it is not there, or closed, which the loader passes over."""
    try:
        return list(map(str, json.loads(host.ask("list", folder, LIBRARIES))))
    except (Missing, Denied):
        return ()
