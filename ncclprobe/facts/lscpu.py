"""`lscpu`: the CPUs of each NUMA node, where sysfs is not at hand."""

import re
from collections.abc import Mapping

from ncclprobe.errors import ParseError
from ncclprobe.facts.blocks import fields, lines
from ncclprobe.model.values import Struct

_NODE = re.compile(r"numa node([0-9]{1,4}) cpu\(s\)")
_LIST = re.compile(r"(?:[0-9]{1,6}(?:-[0-9]{1,6})?(?:,|$))*")


class Lscpu(Struct, frozen=True):
    """The CPUs of each NUMA node by its number, and all that are online, in the kernel's list format (0-5,24-29).

    A node without CPUs has an empty list; `online` is None where the text does not say it, as when only the lines of
    NUMA nodes were kept. `incomplete` says how many nodes are missing of those announced.
    """

    numa: Mapping[int, str]
    online: str | None = None
    incomplete: tuple[str, ...] = ()


def parse(text: str) -> Lscpu:
    """Return what the tool says in English. Raises ParseError where it names no NUMA node, or something else
    than CPUs.
    """
    reported_lines = fields(lines(text))
    numa = {int(match[1]): value for key, value in reported_lines.items() if (match := _NODE.fullmatch(key))}
    online = reported_lines.get("on-line cpu(s) list")
    if not numa:
        raise ParseError(f"no NUMA node in the output of lscpu: {text.strip()[:120]!r}")
    for cpus in (*numa.values(), online or ""):
        if not _LIST.fullmatch(cpus):
            raise ParseError(f"lscpu: {cpus[:80]!r} is no list of CPUs")
    announced = reported_lines.get("numa node(s)", "")
    whole = not re.fullmatch("[0-9]{1,4}", announced) or int(announced) <= len(numa)
    return Lscpu(numa, online, () if whole else (f"{len(numa)} NUMA nodes of {announced}",))
