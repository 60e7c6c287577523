"""How many NVLinks a product has, how fast, and who decides which of them are used.

The data is ``nvlinks.csv`` beside this file, by the name that NVML gives and no other: "NVIDIA H100" alone is several
products, and stands in no row.
"""

import csv
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal, cast, get_args

Wiring = Literal["board", "bridge", "system", "rack"]


@dataclass(frozen=True, slots=True)
class Product:
    """One kind of GPU with NVLink; `link_GBps` is 1e9 bytes of payload per second, link and direction.

    `wiring`: *board*, its baseboard uses every link; *bridge*, what bridges somebody put on; *system*, boards differ,
    and a virtual machine may have part of one; *rack*, switches outside the machine.
    """

    name: str
    links: int
    link_GBps: float
    wiring: Wiring
    source: str


@cache
def products() -> Mapping[str, Product]:
    """Every product of the table, by its name."""
    data = pkgutil.get_data("ncclprobe.expect", "nvlinks.csv") or b""
    rows = csv.DictReader(data.decode().splitlines())
    return MappingProxyType({row["name"]: _product(row) for row in rows})


def _product(row: Mapping[str, str]) -> Product:
    if row["wiring"] not in get_args(Wiring):
        raise ValueError(f"nvlinks.csv: {row['name']}: wiring {row['wiring']!r}")
    wiring = cast(Wiring, row["wiring"])
    return Product(row["name"], int(row["links"]), float(row["link_GBps"]), wiring, row["source"])
