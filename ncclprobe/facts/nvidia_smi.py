"""Whether nvidia-smi answers: the canary of a wedged driver; and what it tells of GPUs where NVML cannot be asked."""

import csv
import re
from collections.abc import Mapping

from ncclprobe import bounds
from ncclprobe.errors import Failed, ParseError, TimedOut
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct


class Smi(Struct, frozen=True):
    """`gpus` is the number it lists; `wedged` says how it failed to come back, empty if it did."""

    gpus: int = 0
    wedged: str = ""


@collector
def nvidia_smi(host: Host) -> Smi:
    """Return ``nvidia-smi -L``. Not coming back is knowledge, not absence: the driver is wedged."""
    try:
        return Smi(gpus=count(host.ask("run", "nvidia-smi", "-L")))
    except TimedOut as error:
        return Smi(wedged=str(error))


def count(text: str) -> int:
    """Return the number of GPUs in ``nvidia-smi -L``. Raises ParseError where it lists none: it says so with an exit
    code.
    """
    listed = re.findall(r"^GPU \d+: ", text, re.MULTILINE)
    if not listed:
        raise ParseError(f"nvidia-smi -L: {text[:120]!r}")
    return len(listed)


_BASIC = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "memory.used", "compute_mode")
FIELDS = (  # nvidia-smi --help-query-gpu; a driver that lacks one of them refuses all: then the basic ones are asked
    *_BASIC,
    *(
        "persistence_mode",
        "compute_cap",
        "mig.mode.current",
        "mig.mode.pending",
        "ecc.mode.current",
        "ecc.mode.pending",
    ),
    *("ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total"),
    *("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max"),
)


def query(host: Host) -> list[dict[str, str]]:
    """Return what nvidia-smi tells of each GPU, by field. Raises HostError and ParseError."""
    try:
        return rows(host.ask("run", "nvidia-smi", f"--query-gpu={','.join(FIELDS)}", _FORM), FIELDS)
    except Failed:
        return rows(host.ask("run", "nvidia-smi", f"--query-gpu={','.join(_BASIC)}", _FORM), _BASIC)


_FORM = "--format=csv,noheader,nounits"


def rows(text: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """Return lines of ``--format=csv,noheader,nounits``. Raises ParseError for one of another length, or for none."""
    found = list(csv.reader(text.splitlines()[: bounds.NVML_DEVICES], skipinitialspace=True))
    if not found or any(len(row) != len(fields) for row in found):
        raise ParseError(f"nvidia-smi --query-gpu: {text[:120]!r}")
    return [dict(zip(fields, map(str.strip, row), strict=True)) for row in found]


def cell(row: Mapping[str, str], name: str) -> str | Absent:
    """Return a field's text; Absent, in NVML's words, for ``[N/A]``, ``[Not Supported]`` and other reasons."""
    text = row.get(name, "[not asked]")
    plain = text.strip("[]")
    if plain == "N/A":
        plain, text = "Not Supported", "[]"
    return Absent(f"nvidia-smi {name}: {plain}", "Failed") if text.startswith("[") else text


def cuda_version(text: str) -> tuple[int, int]:
    """Return the CUDA version in ``nvidia-smi --version``: "CUDA Version", since driver 610 "CUDA UMD version"."""
    match = re.search(r"^CUDA (?:UMD )?[Vv]ersion *: (\d{1,3})\.(\d{1,3})$", text, re.MULTILINE)
    if not match:
        raise ParseError(f"nvidia-smi --version: {text[:120]!r}")
    return int(match[1]), int(match[2])
