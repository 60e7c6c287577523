"""NVML's state of a running job's GPUs at one moment, and the kernel log's messages about them."""

import json
from collections.abc import Sequence
from typing import Any

from ncclprobe.facts.kernel_log import OF_GPUS, Event, events
from ncclprobe.facts.nvml import GONE, number, reasons, text
from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, ParseError
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_UNKNOWN = Absent("it was not asked")


class LiveGpu(Struct, frozen=True):
    """One GPU at one moment. `pids` are the ranks that compute on it; `nvlink_KiB` is its NVLink traffic so far.

    `busy_percent` covers the last second or less. Absent, with NVML's reason: unknown.
    """

    index: int
    pci: str | Absent = _UNKNOWN
    pids: tuple[int, ...] | Absent = _UNKNOWN
    busy_percent: int | Absent = _UNKNOWN
    clock_MHz: int | Absent = _UNKNOWN
    most_MHz: int | Absent = _UNKNOWN
    power_mW: int | Absent = _UNKNOWN
    reasons: tuple[str, ...] | Absent = _UNKNOWN
    nvlink_KiB: int | Absent = _UNKNOWN

    @property
    def lost(self) -> str:
        """Return NVML's words for a lost GPU; empty: it is present, or unknown."""
        why = self.pci.why if isinstance(self.pci, Absent) else ""
        return why if any(words in why for words in GONE) else ""


def gpus(host: Host, pids: Sequence[int], look: int) -> tuple[LiveGpu, ...]:
    """Return NVML's state of every GPU; only processes in `pids` are listed. Raises ParseError."""
    said = host.ask("nvml", "gpusOf", look, ",".join(map(str, pids)))
    try:
        rows = json.loads(said)
        return tuple(_gpu(row) for row in rows[: bounds.NVML_DEVICES])
    except (ValueError, LookupError, TypeError) as error:
        raise ParseError(f"NVML gpusOf: {said[:80]!r}: {error}") from None


def _gpu(row: dict[str, Any]) -> LiveGpu:
    return LiveGpu(number(row["index"]), **{name: _field(parse, row[name]) for name, parse in _FIELDS.items()})


def _field(parse: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return Absent(f"NVML: {text(value['why'])}", value["refused"] if value["refused"] in REFUSALS else "Failed")
    return parse(value)


def _both_ways(values: list[Any]) -> int | Absent:
    found = [_field(number, each) for each in values]
    return next((each for each in found if isinstance(each, Absent)), None) or sum(found)


_FIELDS = {
    "pci": text,
    "pids": lambda pids: tuple(map(number, pids)),
    **dict.fromkeys(("busy_percent", "clock_MHz", "most_MHz", "power_mW"), number),
    "reasons": reasons,
    "nvlink_KiB": _both_ways,
}


def xids(host: Host) -> tuple[Event, ...]:
    """Return this boot's kernel messages about failed GPUs."""
    lines = json.loads(host.ask("kernel_log", OF_GPUS))["lines"]
    return tuple(events((float(at), str(line)) for at, line in lines))
