"""Find where the dynamic loader searches for a shared library, and which of several files it maps: ld.so(8).

Every user may read the cache and list the folders. The loader ignores the variables in programs that gain privileges.
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
"""Variables read here; their values may be recorded."""

LIBRARIES = "libnccl*"
"""NCCL and its plugins. A folder is always searched for all of them at once, so that it is listed only once."""

CACHED = ("libnccl", "libcudnn.so.")
"""Prefixes of the names looked up in the loader's cache, all at once, so that it is read only once."""

DEFAULT_FOLDERS = (  # Debian's multiarch, Red Hat's and the plain layout; /lib is /usr/lib wherever there is a CUDA
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)


class Loader(Struct, frozen=True):
    """`preload`: files that are mapped before all others. `library_path`: the folders of LD_LIBRARY_PATH.

    `cached`: (name, file) of ldconfig's entries for NCCL, its plugins and cuDNN, the preferred first.
    """

    preload: tuple[str, ...] = ()
    library_path: tuple[str, ...] = ()
    cached: tuple[tuple[str, str], ...] | Absent = ()

    def folders(self) -> tuple[str, ...]:
        """Return every folder that has a bare-named NCCL library, in the loader's order."""
        files = () if isinstance(self.cached, Absent) else self.cached
        own = [str(PurePosixPath(file).parent) for name, file in files if name.startswith("libnccl")]
        return tuple(dict.fromkeys(map(usr, (*self.library_path, *own, *DEFAULT_FOLDERS))))


class Elf(NamedTuple):
    """A library's dynamic section: the libraries it needs and its search path for them (elf(5)).

    `needs_versions`: the symbol versions that it requires of each library; `versions`: those that it defines.
    """

    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    needs_versions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    versions: tuple[str, ...] = ()


class Step(NamedTuple):
    """One step of the loader's search: its name for users, and its folders or files."""

    name: str
    folders: tuple[str, ...]


@collector
def loader(host: Host, environment: Environment | Absent) -> Loader:
    """Read two variables and /etc/ld.so.cache. Needs no privileges."""
    variables = {} if isinstance(environment, Absent) else environment.variables
    return Loader(
        preload=tuple(filter(None, re.split(r"[\s:]+", variables.get("LD_PRELOAD") or ""))),
        library_path=tuple(filter(None, re.split("[:;]", variables.get("LD_LIBRARY_PATH") or ""))),
        cached=attempt(lambda: _cached(host)),
    )


def _cached(host: Host) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(file)) for name, file in json.loads(host.ask("ld_cache", *CACHED)))


def elf(text: str, path: str) -> Elf:
    """Parse the host's answer for the library at `path` and expand ``$ORIGIN``. Raises ParseError."""
    try:
        seen = json.loads(text)
        paths = [tuple(_expand_origin(folder, path) for folder in filter(None, seen[key].split(":"))) for key in _PATHS]
        asked = {str(name): tuple(map(str, versions)) for name, versions in seen.get("needs_versions", {}).items()}
        own = tuple(map(str, seen.get("versions", ())))  # which captures of older tools lack
        return Elf(tuple(map(str, seen["needed"])), paths[0], paths[1], tuple(asked.items()), own)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ParseError(f"{path}: no dynamic section: {text[:80]!r}") from None


_PATHS = ("rpath", "runpath")


def _expand_origin(folder: str, path: str) -> str:
    """Expand ``$ORIGIN`` in a library's search path to that library's folder."""
    origin = str(PurePosixPath(path).parent)
    parts: list[str] = []
    for part in re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: origin, folder).split("/"):
        if part == ".." and parts and parts[-1] not in ("", ".."):
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts) or "/"


def steps(loader: Loader, needer: Elf | None = None) -> tuple[Step, ...]:
    """Return the loader's search order for libraries that `needer` needs (None: a program without its own search path).

    DT_RPATH precedes LD_LIBRARY_PATH. It is ignored if there is a DT_RUNPATH, which follows LD_LIBRARY_PATH.
    """
    own = needer or Elf((), (), ())
    return (
        Step("DT_RPATH", own.rpath if not own.runpath else ()),
        Step("LD_LIBRARY_PATH", loader.library_path),
        Step("DT_RUNPATH", own.runpath),
    )


def choose(host: Host, name: str, loader: Loader, needer: Elf | None = None) -> tuple[str, str] | None:
    """Return the file that the loader maps for `name`, an NCCL library, and the step that found it; None: not found.

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
    """Return the canonical name of a folder that has two since /lib became a link to /usr/lib."""
    return f"/usr{path}" if path.startswith(("/lib/", "/lib64")) else path


def libraries(host: Host, folder: str) -> Sequence[str]:
    """List NCCL's libraries in a folder; empty if it is missing or unreadable, because the loader skips it too."""
    try:
        return list(map(str, json.loads(host.ask("list", folder, LIBRARIES))))
    except (Missing, Denied):
        return ()
