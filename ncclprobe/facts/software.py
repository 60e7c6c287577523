"""Which torch and NCCL a job started from this interpreter gets, without importing either."""

import json
import re
from dataclasses import dataclass

from ncclprobe.errors import Missing, ParseError
from ncclprobe.host import Host
from ncclprobe.registry import collector

Version = tuple[int, int, int]
"""NCCL's major, minor, patch: (2, 29, 7)."""

_WRITTEN = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[-+].*)?")
_FIRST_LONG_CODE = 10_000  # 2.9.0 is 20900; 2.8.4, the last of the old form, is 2804
_VERSIONED = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_SYSTEM_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")


@dataclass(frozen=True, slots=True)
class NcclLibrary:
    """One libnccl on this machine. `source` is the wheel or the file it was read from."""

    version: Version
    source: str


@dataclass(frozen=True, slots=True)
class Software:
    """`packages`: installed distributions. `nccl`: every libnccl found, the wheel that torch depends on first."""

    packages: dict[str, str]
    nccl: tuple[NcclLibrary, ...] = ()

    @property
    def nccl_version(self) -> Version | None:
        """The version a job most likely loads, or None where no libnccl was found."""
        return self.nccl[0].version if self.nccl else None


@collector
def software(host: Host) -> Software:
    """Wheels of this interpreter, then shared libraries in the system's folders."""
    packages = json.loads(host.ask("packages"))
    wheels = [NcclLibrary(parse_version(v), name) for name, v in packages.items() if name.startswith("nvidia-nccl")]
    return Software(packages, (*wheels, *_system_libraries(host)))


def _system_libraries(host: Host) -> list[NcclLibrary]:
    found = []
    for folder in _SYSTEM_FOLDERS:
        try:
            names = json.loads(host.ask("list", folder))
        except Missing:
            continue
        found += [
            NcclLibrary(parse_version(match[1]), f"{folder}/{match[0]}")
            for match in map(_VERSIONED.fullmatch, names)
            if match
        ]
    return found


def parse_version(text: str | int) -> Version:
    """The version in `text`: "2.29.7", "2.29.7+cuda13.0", "v2.29.7-1", "2.30", or the integer code 22907.

    The code is major*1000 + minor*100 + patch before 2.9 and major*10000 + minor*100 + patch since. Raises
    ParseError.
    """
    written = str(text).strip()
    if re.fullmatch(r"\d{4,6}", written):
        return _from_code(int(written))
    match = _WRITTEN.fullmatch(written)
    if match is None:
        raise ParseError(f"NCCL version {written[:40]!r} is neither like 2.29.7 nor a code like 22907")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _from_code(code: int) -> Version:
    scale = 10_000 if code >= _FIRST_LONG_CODE else 1_000
    return code // scale, code % scale // 100, code % 100


def reaches(version: Version | None, first: tuple[int, ...]) -> bool:
    """Whether `version` is `first` or later. None is the newest version known, which has everything."""
    return version is None or version >= first
