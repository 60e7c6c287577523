"""Run nvidia-smi: it hangs if the driver is wedged, and provides the data on GPUs if NVML is unavailable."""

import re
from typing import TYPE_CHECKING

from ncclprobe.facts.field import learn
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import ParseError, TimedOut
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


class Smi(Struct, frozen=True):
    """`gpus`: the number of GPUs listed. `wedged`: how the command failed to return; empty if it returned."""

    gpus: int = 0
    wedged: str = ""


@collector
def nvidia_smi(host: Host) -> Smi:
    """Run ``nvidia-smi -L``. A timeout is a fact: the driver is wedged."""
    try:
        return Smi(gpus=count(host.ask("run", "nvidia-smi", "-L")))
    except TimedOut as error:
        return Smi(wedged=str(error))


def count(text: str) -> int:
    """Count the GPUs of ``nvidia-smi -L``. Raises ParseError for none, which nvidia-smi reports by its exit code."""
    listed = re.findall(r"^GPU \d+: ", text, re.MULTILINE)
    if not listed:
        raise ParseError(f"nvidia-smi -L: {text[:120]!r}")
    return len(listed)


UNTOLD = "nvidia-smi -q does not report"
ASK = ("run", "nvidia-smi", "-q", "-x")
ASK_COMPUTE = ("run", "nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
_REASONS = (  # in place of a value; NVML's own words, but for the last three
    *("GPU is lost", "GPU requires restart", "Insufficient Permissions", "Not Supported", "Unknown Error"),
    *("GPU requires reset", "Requested functionality has been deprecated", "ERR!"),
)


def query(host: Host) -> "tuple[str, list[Element]]":
    """Return the driver's version and each GPU's element, by index. Raises HostError and ParseError."""
    root = log(host.ask(*ASK))
    gpus = root.findall("gpu")[: bounds.NVML_DEVICES]
    if not gpus:
        raise ParseError("nvidia-smi -q -x: no GPU")
    return root.findtext("driver_version", ""), gpus


def log(text: str) -> "Element":
    """Parse ``nvidia-smi -q -x`` into a tree (nvsmi_device_v12.dtd). Raises ParseError for anything else."""
    from xml.etree import ElementTree  # where NVML answers it is not needed

    try:
        if "<!ENTITY" in text:  # nvidia-smi names a document type, and declares nothing
            raise ValueError("entities")
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise ParseError(f"nvidia-smi -q -x: {text[:80]!r}: {error}") from None
    if root.tag != "nvidia_smi_log":
        raise ParseError(f"nvidia-smi -q -x: begins with {root.tag[:40]!r}")
    return root


def cell(gpu: "Element", *paths: str) -> str | Absent:
    """Return the text at the first existing path of `paths`; Absent, in NVML's words, if it holds a reason instead."""
    text = next((found for path in paths if (found := gpu.findtext(path)) is not None), None)
    if text is None:
        return Absent(f"{UNTOLD} {paths[0]}", "Missing")
    plain = text.strip(" []")
    reason = "Not Supported" if plain == "N/A" else plain
    return Absent(f"nvidia-smi {paths[0]}: {reason}", "Failed") if reason in _REASONS else plain


def capabilities(host: Host, count: int) -> tuple[tuple[int, int] | Absent, ...]:
    """Return the compute capability of each of `count` GPUs. ``-q`` lacks it, as do drivers before 510."""

    def parse(text: str) -> tuple[tuple[int, int], ...]:
        found = [line.strip().split(".") for line in text.splitlines()]
        if len(found) != count or not all(len(each) == 2 and "".join(each).isdecimal() for each in found):
            raise ParseError(f"nvidia-smi --query-gpu=compute_cap: {text[:80]!r}")
        return tuple((int(major), int(minor)) for major, minor in found)

    told = learn(host, parse, *ASK_COMPUTE)
    return (told,) * count if isinstance(told, Absent) else told


def uncorrected(gpu: "Element", since: str) -> int | Absent:
    """Return the sum of all uncorrectable memory errors that the GPU reports.

    `since`: ``volatile`` or ``aggregate``. Up to Turing one number is the total of the double-bit errors.
    """
    kinds = [each.tag for each in gpu.iterfind(f"ecc_errors/{since}/*") if "uncorrectable" in each.tag]
    paths = [f"ecc_errors/{since}/{kind}" for kind in kinds or ["double_bit/total"]]
    told = [cell(gpu, path) for path in paths]
    numbers = [int(each) for each in told if isinstance(each, str) and each.isdecimal()]
    return sum(numbers) if numbers else next(each for each in told if isinstance(each, Absent))


def cuda_version(text: str) -> tuple[int, int]:
    """Parse the CUDA version of ``nvidia-smi --version``: "CUDA Version", since driver 610 "CUDA UMD version"."""
    match = re.search(r"^CUDA (?:UMD )?[Vv]ersion *: (\d{1,3})\.(\d{1,3})$", text, re.MULTILINE)
    if not match:
        raise ParseError(f"nvidia-smi --version: {text[:120]!r}")
    return int(match[1]), int(match[2])
