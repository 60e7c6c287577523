"""`nvidia-smi nvlink -s`: which NVLinks of each GPU are up, and how fast: a second opinion on what NVML says."""

import re
from collections.abc import Mapping, Sequence

from ncclprobe.errors import ParseError
from ncclprobe.facts.blocks import blocks, lines
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

_GPU = re.compile(r"GPU ([0-9]{1,4}): (.*)")
_LINK = re.compile(r"Link ([0-9]{1,4}): (?:<inactive>|([0-9]{1,5}(?:\.[0-9]{1,6})?) GB/s)")


class GpuLinks(Struct, frozen=True):
    """One GPU. `links` maps a link's number to its speed per direction in GB/s, None where it is inactive.

    `complaint` is what was printed in place of links, such as that all are inactive.
    """

    name: str
    uuid: str
    links: Mapping[int, float | None]
    complaint: str = ""


class NvlinkStatus(Struct, frozen=True):
    """The GPUs that were listed, by index. Those without NVLink are not, so a machine without any has none."""

    gpus: Mapping[int, GpuLinks]


@collector
def nvlink_status(host: Host) -> NvlinkStatus:
    """Read ``nvidia-smi nvlink -s``, which prints nothing and exits with 0 where no GPU has NVLink."""
    return parse(host.ask("run", "nvidia-smi", "nvlink", "-s"))


def parse(text: str) -> NvlinkStatus:
    """Return all GPUs in `text`, which may be empty. Raises ParseError for any other text without a GPU, or with one
    twice.
    """
    found = blocks(lines(text), _GPU)
    gpus = {int(heading[1]): _gpu(heading[2], body) for heading, body in found}
    if len(gpus) < len(found):
        raise ParseError("nvidia-smi nvlink -s: a GPU comes twice: two outputs may be interleaved")
    if not gpus and text.strip():
        raise ParseError(f"not the output of nvidia-smi nvlink -s: {text.strip()[:80]!r}")
    return NvlinkStatus(gpus)


def _gpu(heading: str, body: Sequence[str]) -> GpuLinks:
    name, _, rest = heading.partition(" (UUID: ")
    uuid, _, behind = rest.partition(")")
    links: dict[int, float | None] = {}
    for line in body:
        if match := _LINK.fullmatch(line):
            if int(match[1]) in links:
                raise ParseError(f"nvidia-smi nvlink -s: link {match[1]} of {name} comes twice")
            links[int(match[1])] = float(match[2]) if match[2] else None
        elif line.startswith("Link "):
            raise ParseError(f"nvidia-smi nvlink -s: {line[:80]!r}")
    complaint = next((line for line in (behind.strip(), *body) if line.startswith("NVML: ")), "")
    return GpuLinks(name, uuid, links, complaint)
