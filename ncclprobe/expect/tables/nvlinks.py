"""How many NVLinks a product has, how fast, and who decides which of them are used.

A view of :mod:`.gpus` by the name that NVML gives and no other: "NVIDIA H100" alone is several
products, and stands in no row here.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.gpus import Wiring
from ncclprobe.model.values import Struct


class Product(Struct, frozen=True):
    """One kind of GPU with NVLink; `link_GBps` is 1e9 bytes of payload per second, link and direction."""

    name: str
    links: int
    link_GBps: float
    wiring: Wiring
    source: str


@cache
def products() -> Mapping[str, Product]:
    """Return every product whose NVLinks are known, by its name."""
    return MappingProxyType(
        {
            gpu.name: Product(gpu.name, gpu.nvlinks, gpu.nvlink_GBps, gpu.wiring, gpu.nvlink_source)
            for gpu in gpus.products()
            if gpu.wiring is not None
        }
    )
