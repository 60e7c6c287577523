"""GPUs by NVML's name: links, slot, memory, and NCCL's figures for them.

The data is ``gpus.csv`` in this folder. An empty cell is unknown. "NVIDIA H100" without a suffix is several products,
and has only what all of them have in common.

The number and speed of a product's NVLinks, and what decides which are used, are looked up only by NVML's name.
"""

import csv
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Literal, cast, get_args

from ncclprobe.model.values import Struct

Wiring = Literal["board", "bridge", "system", "rack"]
DataConfidence = Literal["high", "medium", "low"]

NCCL_PCIE_GBPS_PER_LANE = {1: 3 / 16, 2: 6 / 16, 3: 12 / 16, 4: 24 / 16, 5: 48 / 16, 6: 96 / 16}
"""NCCL's figure per lane and generation: width x rate / 80, the rate 15 for Gen1, doubling (src/graph/topo.h)."""


class GpuProduct(Struct, frozen=True):
    """One product. Speeds are 1e9 bytes per second in one direction; None: unknown.

    It has `nvlinks` with `nvlink_GBps` of payload each; `nccl_nvlink_GBps` is one as NCCL counts it. `wiring` is what
    decides how many are used: *board*, its baseboard uses every link; *bridge*, the bridges that are mounted; *system*,
    boards differ, and a virtual machine may have part of one; *rack*, switches outside the machine; empty: no NVLink,
    or unknown. `pcie_generation` and `pcie_width` are the slot's maximum, `c2c_GBps` the link to a Grace in its place.
    `p2p`: whether the stock driver lets it reach other GPUs over PCIe. `nvls`: the NVSwitches of its generation can
    reduce.
    """

    name: str
    aliases: tuple[str, ...]
    pci_ids: tuple[str, ...]
    compute_capability: int
    nvlinks: int
    nvlink_GBps: float
    nccl_nvlink_GBps: float
    wiring: Wiring | None
    nvlink_source: str
    pcie_generation: int | None
    pcie_width: int | None
    c2c_GBps: float | None
    p2p: bool | None
    nvls: bool
    source: str
    note: str
    confidence: DataConfidence

    @property
    def nccl_pcie_GBps(self) -> float | None:
        """Return the slot's rate as NCCL counts it; None if it has no slot."""
        if self.pcie_generation is None or self.pcie_width is None:
            return None
        return nccl_pcie_GBps(self.pcie_generation, self.pcie_width)

    @property
    def alone(self) -> bool:
        """Return whether neither a slot nor C2C is known: it is one chip with its processor."""
        return self.pcie_generation is None and self.c2c_GBps is None


def nccl_pcie_GBps(generation: int, width: int) -> float:
    """Return a slot's rate as NCCL counts it: 24 for Gen4 x16, though 26 is reached. Unknown generations
    count as Gen3.
    """
    return NCCL_PCIE_GBPS_PER_LANE.get(generation, NCCL_PCIE_GBPS_PER_LANE[3]) * width


@cache
def table() -> Mapping[str, GpuProduct]:
    """Return every product, keyed by NVML's name and by each alias."""
    gpus = products()
    named = {gpu.name: gpu for gpu in gpus}
    for gpu in gpus:
        for alias in gpu.aliases:
            if alias in named:
                raise ValueError(f"gpus.csv: {alias!r} names {named[alias].name} and {gpu.name}")
            named[alias] = gpu
    return MappingProxyType(named)


@cache
def products() -> tuple[GpuProduct, ...]:
    """Return every product once, in table order."""
    data = pkgutil.get_data(__package__, "gpus.csv") or b""
    gpus = tuple(_gpu(row) for row in csv.DictReader(data.decode().splitlines()))
    if len({gpu.name for gpu in gpus}) < len(gpus):
        raise ValueError("gpus.csv: a name appears twice")
    return gpus


def _gpu(row: Mapping[str, str]) -> GpuProduct:
    name = row["name"]
    if row["wiring"] not in ("", *get_args(Wiring)) or row["confidence"] not in get_args(DataConfidence):
        raise ValueError(f"gpus.csv: {name}: wiring {row['wiring']!r}, confidence {row['confidence']!r}")
    return GpuProduct(
        name=name,
        aliases=_words(row["aliases"]),
        pci_ids=_words(row["pci_ids"]),
        compute_capability=int(row["compute_capability"]),
        nvlinks=int(row["nvlinks"] or 0),
        nvlink_GBps=_number(row["nvlink_GBps"]) or 0.0,
        nccl_nvlink_GBps=_number(row["nccl_nvlink_GBps"]) or 0.0,
        wiring=cast(Wiring, row["wiring"]) if row["wiring"] else None,
        nvlink_source=row["nvlink_source"],
        pcie_generation=int(row["pcie_generation"]) if row["pcie_generation"] else None,
        pcie_width=int(row["pcie_width"]) if row["pcie_width"] else None,
        c2c_GBps=_number(row["c2c_GBps"]),
        p2p={"yes": True, "no": False, "": None}[row["p2p"]],
        nvls={"yes": True, "no": False}[row["nvls"]],
        source=row["source"],
        note=row["note"],
        confidence=cast(DataConfidence, row["confidence"]),
    )


def _words(cell: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in cell.split(";"))))


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


@cache
def nvlink_products() -> Mapping[str, GpuProduct]:
    """Return every product whose NVLinks are known, by name."""
    return MappingProxyType({gpu.name: gpu for gpu in products() if gpu.wiring is not None})
