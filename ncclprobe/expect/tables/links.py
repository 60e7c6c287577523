"""Links: what one carries by its standard, what NCCL counts it for, and what runs have reached on it.

The data is ``links.csv`` in this folder. All speeds are 1e9 bytes per second in one direction.
"""

import csv
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from ncclprobe.model.values import Struct


class LinkKind(Struct, frozen=True):
    """One kind of link. None is not known.

    `line_GBps` is what the standard gives after its coding, `nccl_GBps` what NCCL counts, `low_GBps` to `high_GBps`
    what healthy machines reached, measured as `measured` says, `latency_us` the lowest and highest seen.
    """

    name: str
    category: str
    generation: str
    width: str
    line_GBps: float | None
    nccl_GBps: float | None
    low_GBps: float | None
    high_GBps: float | None
    latency_us: tuple[float, float] | None
    measured: str
    source: str
    note: str


@cache
def table() -> Mapping[str, LinkKind]:
    """Return every link by its name."""
    data = pkgutil.get_data(__package__, "links.csv") or b""
    rows = [_link(row) for row in csv.DictReader(data.decode().splitlines())]
    links = {link.name: link for link in rows}
    if len(links) < len(rows):
        raise ValueError("links.csv: a name comes twice")
    return MappingProxyType(links)


def _link(row: Mapping[str, str]) -> LinkKind:
    line, low, high = _number(row["line_GBps"]), _number(row["low_GBps"]), _number(row["high_GBps"])
    if low is not None and high is not None and low > high:
        raise ValueError(f"links.csv: {row['name']}: {low} to {high}")
    first, last = _number(row["latency_low_us"]), _number(row["latency_high_us"])
    return LinkKind(
        name=row["name"],
        category=row["category"],
        generation=row["generation"],
        width=row["width"],
        line_GBps=line,
        nccl_GBps=_number(row["nccl_GBps"]),
        low_GBps=low,
        high_GBps=high,
        latency_us=(first, last) if first is not None and last is not None else None,
        measured=row["measured"],
        source=row["source"],
        note=row["note"],
    )


def _number(cell: str) -> float | None:
    return float(cell) if cell else None
