"""The torch and NCCL that a job started from this interpreter would load, found without running any of their code.

Everyone who can run the job may read it. It holds for this interpreter and these variables: a job that another script
starts, with modules loaded or in a container, may load others.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from ncclprobe.facts.field import attempt, learn
from ncclprobe.facts.loader import Elf, Loader, choose, elf, libraries, usr
from ncclprobe.host import Host
from ncclprobe.model.errors import Failed, HostError, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace

Version = tuple[int, int, int]
"""NCCL's major, minor, patch: (2, 29, 7)."""

NCCL = "libnccl.so.2"
_TORCH_CUDA = "libtorch_cuda.so"
_WRITTEN = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[-+].*)?")
_NAMED_INSIDE, _WRITTEN_INSIDE = "NCCL version ", "NCCL version 2."
_FIRST_LONG_CODE = 10_000  # 2.9.0 is 20900; 2.8.4, the last of the old form, is 2804
_VERSIONED = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_FURTHER_FOLDERS = ("/usr/local/lib", "/usr/local/cuda/lib64", "/usr/local/nccl/lib", "/usr/local/nvidia/lib64")
_WHEEL_FOLDER = "nvidia/nccl/lib"


class NcclLibrary(Struct, frozen=True):
    """One libnccl on this machine. `source` is the wheel or file it was found in.

    `version` is None if neither a wheel, the file's name nor its constants show it; `path` is the file, if known.
    """

    version: Version | None
    source: str
    path: str = ""


class Mapped(Struct, frozen=True, tag=True):
    """The libnccl that a torch process maps, and why: ``DT_RPATH``, ``LD_LIBRARY_PATH``, ``LD_PRELOAD`` …

    ``static``: `path` contains NCCL. Without a torch for CUDA: the file that a program without its own search path
    maps.
    """

    path: str
    why: str


class Torch(Struct, frozen=True, tag=True):
    """The installed torch: its folder, and the CUDA version it was built for (None: a build without CUDA)."""

    folder: str
    cuda: str | Absent | None


class Software(Struct, frozen=True):
    """`packages`: installed distributions. `nccl`: every libnccl found; the one a job would map first, then wheels.

    `mapped` None: the loader would find none. `torch` None: not installed.
    """

    packages: dict[str, str]
    nccl: tuple[NcclLibrary, ...] = ()
    mapped: Mapped | Absent | None = None
    torch: Torch | Absent | None = None

    @property
    def nccl_version(self) -> Version | None:
        """Return the version that a job most likely loads, or None if unknown or no libnccl was found."""
        return self.nccl[0].version if self.nccl else None


@collector
def software(host: Host, loader: Loader | Absent) -> Software:
    """Read this interpreter's wheels, torch's links and the libraries in the loader's folders. Needs no privileges."""
    known = Loader() if isinstance(loader, Absent) else loader
    packages = json.loads(host.ask("packages"))
    torch = attempt(lambda: _torch(host))
    needer = attempt(lambda: _cuda_library(host, torch))
    mapped = attempt(lambda: _mapped(host, loader, torch, needer))
    files = list(
        _files(host, [*(needer.rpath if isinstance(needer, Elf) else ()), *known.folders(), *_FURTHER_FOLDERS])
    )
    first, *others = (*_order_libraries(packages, files, mapped), None)
    return Software(
        packages=packages,
        nccl=tuple(each for each in (_read_version(host, first), *others) if each),
        mapped=mapped,
        torch=torch,
    )


def _read_version(host: Host, library: NcclLibrary | None) -> NcclLibrary | None:
    """Replace the version of the library to be mapped by the one among its constants: a wheel's file may be swapped."""
    if library is None or not library.path:
        return library
    found = learn(host, version_text, "elf_texts", library.path, _WRITTEN_INSIDE)
    return library if isinstance(found, Absent) else replace(library, version=found)


def version_text(text: str) -> Version:
    """Find a version such as "NCCL version 2.30.7+cuda13.3" in the host's texts of a library. Raises ParseError."""
    try:
        texts = [str(each).removeprefix(_NAMED_INSIDE) for each in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        raise ParseError(f"texts of a library: {text[:80]!r}") from None
    match = next(filter(None, map(_WRITTEN.fullmatch, texts)), None)
    if match is None:
        raise ParseError(f"none of {len(texts)} texts of the library is an NCCL version")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _torch(host: Host) -> Torch | None:
    """Find torch's folder, and its CUDA version in torch/version.py."""
    try:
        folder = str(PurePosixPath(host.ask("module", "torch")).parent)
    except Missing:
        return None
    return Torch(folder, learn(host, torch_cuda, "read", f"{folder}/version.py"))


def torch_cuda(text: str) -> str | None:
    """Parse the CUDA version in torch/version.py, written by torch's build. Raises ParseError."""
    match = re.search(r"^cuda(?::[^=\n]*)? = (?:None|'(\d{1,3}(?:\.[^'\n]{0,40})?)')$", text, re.MULTILINE)
    if not match:
        raise ParseError(f"torch/version.py: no cuda in {text[:80]!r}")
    return match[1]


def _cuda_library(host: Host, torch: Torch | Absent | None) -> Elf | None:
    """Return the dynamic section of torch's CUDA library; None if there is none, so that NCCL is not needed."""
    if isinstance(torch, Absent):
        raise Failed(f"which torch is installed is not known: {torch.why}")
    if torch is None:
        return None
    path = f"{torch.folder}/lib/{_TORCH_CUDA}"
    try:
        return elf(host.ask("elf", path), path)
    except Missing:
        return None


def _mapped(
    host: Host, loader: Loader | Absent, torch: Torch | Absent | None, needer: Elf | Absent | None
) -> Mapped | None:
    if isinstance(loader, Absent):
        raise Failed(f"the loader's search path is unknown: {loader.why}")
    if isinstance(needer, Absent):
        raise Failed(f"what {_TORCH_CUDA} needs is not known: {needer.why}")
    if isinstance(torch, Torch) and needer and not any(name.startswith("libnccl.so") for name in needer.needed):
        return Mapped(f"{torch.folder}/lib/{_TORCH_CUDA}", "static")
    found = choose(host, NCCL, loader, needer)
    return Mapped(*found) if found else None


def _files(host: Host, folders: Sequence[str]) -> Iterator[NcclLibrary]:
    """Yield every libnccl in `folders`, by its versioned name, otherwise by the name that the loader requests."""
    for folder in dict.fromkeys(map(usr, folders)):
        names = _names(host, folder)
        versioned = [match for match in map(_VERSIONED.fullmatch, names) if match]
        for match in versioned:
            yield NcclLibrary(parse_version(match[1]), f"{folder}/{match[0]}", f"{folder}/{match[0]}")
        if NCCL in names and not versioned:
            yield NcclLibrary(None, f"{folder}/{NCCL}", f"{folder}/{NCCL}")


def _names(host: Host, folder: str) -> list[str]:
    try:
        return [name for name in libraries(host, folder) if name.startswith("libnccl.so")]
    except HostError:  # a folder that does not answer: what would be mapped is then not known, and says so
        return []


def _order_libraries(
    packages: dict[str, str], files: Sequence[NcclLibrary], mapped: Mapped | Absent | None
) -> Iterator[NcclLibrary]:
    """Yield the library to be mapped, then wheels, then files; each once, a wheel's file with its version."""
    wheels = [NcclLibrary(parse_version(v), name) for name, v in packages.items() if name.startswith("nvidia-nccl")]
    own = [file for file in files if _WHEEL_FOLDER in file.path]
    if len(wheels) == 1 and len(own) == 1:
        wheels = [NcclLibrary(wheels[0].version, wheels[0].source, own[0].path)]
        files = [file for file in files if file is not own[0]]
    found = [*wheels, *files]
    if isinstance(mapped, Mapped):
        first = next((library for library in found if _is_mapped(library.path, mapped.path)), None)
        yield first or NcclLibrary(None, f"{mapped.path} ({mapped.why})", mapped.path)
        found = [library for library in found if library is not first]
    yield from found


def _is_mapped(path: str, mapped: str) -> bool:
    """Return whether `path` is the mapped file: `libnccl.so.2` is a link to the versioned name next to it."""
    path, mapped = usr(path), usr(mapped)
    return path == mapped or (PurePosixPath(mapped).name == NCCL and path.startswith(f"{mapped}."))


def parse_version(text: str | int) -> Version:
    """Parse a version: "2.29.7", "2.29.7+cuda13.0", "v2.29.7-1", "2.30", or the integer code 22907.

    The code is major*1000 + minor*100 + patch before 2.9 and major*10000 + minor*100 + patch since. Raises ParseError.
    """
    written = str(text).strip()
    if re.fullmatch(r"\d{4,6}", written):
        code = int(written)
        scale = 10_000 if code >= _FIRST_LONG_CODE else 1_000
        return code // scale, code % scale // 100, code % 100
    match = _WRITTEN.fullmatch(written)
    if match is None:
        raise ParseError(f"NCCL version {written[:40]!r} is neither like 2.29.7 nor a code like 22907")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def reaches(version: Version | None, first: tuple[int, ...]) -> bool:
    """Return whether `version` is `first` or later. None is the newest version, which has everything."""
    return version is None or version >= first
