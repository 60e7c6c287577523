"""A machine that has no name, of its parts: ``8 x L40S, 2 sockets, no P2P, 4 NICs x 200 Gb/s roce``.

Only the GPUs must be said. The rest is what is usual of such a box, and `source` names each part that was not said:
boards of SXM GPUs are switched, bridges are there where they are said, more than four GPUs sit on two sockets, of AMD.
"""

import re
from collections.abc import Iterator, Sequence
from typing import cast, get_args

from ncclprobe.errors import UsageError
from ncclprobe.expect.system import Network, NodeSystem, Processor
from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.gpus import GpuProduct
from ncclprobe.model.values import replace

EXAMPLE = "8 x L40S, 2 sockets, no P2P, 4 NICs x 200 Gb/s roce"
_GPUS = re.compile(r"(\d{1,3})\s*x\s*(\S.*)", re.IGNORECASE)
_SOCKETS = re.compile(r"(\d) sockets?", re.IGNORECASE)
_NICS = re.compile(r"(\d{1,2}) nics? ?x ?(\d{1,4})(?: ?gb/s| ?g)?(?: ([a-z]+))?", re.IGNORECASE)
_ONE_SOCKET = 4
_MOST_GPUS = 16


def is_composed(name: str) -> bool:
    """Whether `name` says parts, not a machine type."""
    return _GPUS.match(name) is not None


def composed(text: str) -> NodeSystem:
    """The machine that `text` describes. Raises UsageError for a part or a GPU that is not understood."""
    first, *parts = (part.strip() for part in text.split(","))
    found = _GPUS.fullmatch(first)
    if found is None or not 0 < int(found[1]) <= _MOST_GPUS:
        raise UsageError(f"{text[:80]!r}: begin with 1 to {_MOST_GPUS} GPUs, as in '{EXAMPLE}'")
    product, count = _product(found[2]), int(found[1])
    system = _with_links(_box(product, count), product)
    for part in parts:
        system = _with(system, part, product)
    guessed = ", ".join(_assumed(parts, product, count))
    return replace(system, source="its parts as they were said" + (f"; assumed: {guessed}" if guessed else ""))


def _box(product: GpuProduct, count: int) -> NodeSystem:
    return NodeSystem(
        name=f"{count} x {product.name.removeprefix('NVIDIA ')}",
        gpu=product.name,
        compute_capability=product.compute_capability,
        gpus=count,
        pcie_GBps=product.c2c_GBps or product.nccl_pcie_GBps or gpus.nccl_pcie_GBps(3, 16),
        p2p=product.p2p is not False or product.c2c_GBps is not None,
        processor="arm" if product.c2c_GBps else "amd",
        sockets=1 if count <= _ONE_SOCKET else 2,
        source="",
    )


def _with_links(system: NodeSystem, product: GpuProduct) -> NodeSystem:
    """Add the NVLinks of a board; bridges are there only where they are said."""
    if not product.nvlinks or product.wiring not in ("board", "rack") or system.gpus < 2:
        return system
    return replace(
        system,
        nvlinks=product.nvlinks,
        nvlink_GBps=product.nccl_nvlink_GBps,
        fabric="nvswitch",
        domain_gpus=system.gpus,
        nvls=product.nvls,
    )


def _with(system: NodeSystem, part: str, product: GpuProduct) -> NodeSystem:
    """`system` with one more part. Raises UsageError."""
    words = part.lower()
    if words in ("p2p", "no p2p"):
        return replace(system, p2p=words == "p2p")
    if words == "nvlink bridges":
        return _bridged(system, product)
    if words in get_args(Processor):
        return replace(system, processor=cast(Processor, words))
    if sockets := _SOCKETS.fullmatch(words):
        return replace(system, sockets=max(1, int(sockets[1])))
    if nics := _NICS.fullmatch(words):
        network = nics[3] or "ib"
        if network in get_args(Network) and int(nics[1]) and int(nics[2]):
            rdma = network not in ("sockets", "tcpx", "tcpxo")
            known = cast(Network, network)
            return replace(system, nics=int(nics[1]), nic_gbps=float(nics[2]), network=known, gdr=rdma)
    raise UsageError(f"--machine: {part[:60]!r} is no part of a box; as in '{EXAMPLE}', or 'NVLink bridges', or 'amd'")


def _bridged(system: NodeSystem, product: GpuProduct) -> NodeSystem:
    if not product.nvlinks or product.wiring != "bridge":
        raise UsageError(f"--machine: no NVLink bridge fits {product.name}")
    return replace(system, nvlinks=product.nvlinks, nvlink_GBps=product.nccl_nvlink_GBps, fabric="pairs", domain_gpus=2)


def _assumed(parts: Sequence[str], product: GpuProduct, count: int) -> Iterator[str]:
    """What was not said, and is taken to be usual."""
    said = " ".join(parts).lower()
    if "socket" not in said:
        yield "one socket" if count <= _ONE_SOCKET else "two sockets"
    if count > _ONE_SOCKET and not set(said.split()) & set(get_args(Processor)) and not product.c2c_GBps:
        yield "processors of AMD"
    if "p2p" not in said and not product.c2c_GBps:
        known = {True: "P2P", False: "no P2P, as the stock driver has it", None: "P2P"}
        yield known[product.p2p]


def _product(text: str) -> GpuProduct:
    """The one GPU that is meant. Raises UsageError with those that may be."""
    wanted = _folded(text)
    table = gpus.table()
    exact = {gpu.name: gpu for name, gpu in table.items() if wanted == _folded(name)}
    if any(gpu.name.startswith(f"{name} ") and gpu.nvlinks for name in exact for gpu in table.values()):
        exact = {}  # NVIDIA H100 alone is several products, with NVLink and without
    within = exact or {gpu.name: gpu for name, gpu in table.items() if wanted and wanted in _folded(name)}
    if len(within) == 1:
        return next(iter(within.values()))
    if not within:
        raise UsageError(f"--machine: no GPU is called {text[:40]!r}; give the name that nvidia-smi -L prints")
    raise UsageError(f"--machine: {text[:40]!r} may be {' or '.join(sorted(within)[:6])}")


def _folded(name: str) -> str:
    """A name without what every name has: ``rtx4090`` for NVIDIA GeForce RTX 4090."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())
