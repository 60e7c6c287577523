"""A machine that has no name, of its parts: ``8 x L40S, 2 sockets, no P2P, 4 NICs x 200 Gb/s roce``.

Only the GPUs must be said. The rest is what is usual of such a box, and `source` names each part that was not said:
boards of SXM GPUs are switched, those of V100 and GH200 wired, bridges are there where they are said, more than four
GPUs sit on two sockets, of AMD.
"""

import re
from collections.abc import Iterator, Sequence
from typing import cast, get_args

from ncclprobe.errors import UsageError
from ncclprobe.expect.system import Network, NicPath, NodeSystem, NvlinkFabric, Processor
from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.gpus import GpuProduct
from ncclprobe.model.values import replace

EXAMPLE = "8 x L40S, 2 sockets, no P2P, 4 NICs x 200 Gb/s roce"
_MORE = "'NVLink bridges', 'NVLink bridges of 4', 'no NVLink', 'NICs at PXB', 'amd'"
_GPUS = re.compile(r"(\d{1,3})\s*x\s*(\S.*)", re.IGNORECASE)
_SOCKETS = re.compile(r"(\d) sockets?", re.IGNORECASE)
_NICS = re.compile(r"(\d{1,2}) nics? ?x ?(\d{1,4})(?: ?gb/s| ?g)?(?: ([a-z]+))?", re.IGNORECASE)
_BRIDGES = re.compile(r"nvlink bridges(?: of ([24]))?")
_PATH = re.compile(r"nics at (pix|pxb|phb|node|sys)")
_ONE_SOCKET = 4
_DGX_1, _MESH = 8, 4
"""GPUs whose boards differ: eight are wired as a DGX-1's, up to four each to each."""
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
    product, count = product_called(found[2]), int(found[1])
    system = with_links(_box(product, count), product)
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


def with_links(system: NodeSystem, product: GpuProduct) -> NodeSystem:
    """Add the NVLinks of a board; bridges are there only where they are said."""
    if not product.nvlinks or system.gpus < 2:
        return system
    if product.wiring in ("board", "rack"):
        return _laid(system, product, "nvswitch", system.gpus, nvls=product.nvls)
    if product.wiring == "system" and system.gpus == _DGX_1:
        return _laid(system, product, "cube-mesh", system.gpus)
    if product.wiring == "system" and system.gpus <= _MESH:
        return _laid(system, product, "mesh", system.gpus)
    return system


def _laid(
    system: NodeSystem, product: GpuProduct, fabric: NvlinkFabric, together: int, *, nvls: bool = False
) -> NodeSystem:
    return replace(
        system,
        nvlinks=product.nvlinks,
        nvlink_GBps=product.nccl_nvlink_GBps,
        fabric=fabric,
        domain_gpus=together,
        nvls=nvls,
    )


def _with(system: NodeSystem, part: str, product: GpuProduct) -> NodeSystem:
    """`system` with one more part. Raises UsageError."""
    words = part.lower()
    if words in ("p2p", "no p2p"):
        return replace(system, p2p=words == "p2p")
    if bridges := _BRIDGES.fullmatch(words):
        return _bridged(system, product, int(bridges[1] or 2))
    if words == "no nvlink":
        return replace(system, nvlinks=0, nvlink_GBps=0.0, fabric="none", domain_gpus=0, nvls=False)
    if path := _PATH.fullmatch(words):
        return replace(system, nic_path=cast(NicPath, path[1].upper()))
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
    raise UsageError(f"--machine: {part[:60]!r} is no part of a box; as in '{EXAMPLE}', or {_MORE}")


def _bridged(system: NodeSystem, product: GpuProduct, together: int) -> NodeSystem:
    """`system` with a bridge over every two GPUs, or over every four. Raises UsageError."""
    if not product.nvlinks or product.wiring != "bridge" or product.nvlinks % (together - 1):
        raise UsageError(f"--machine: no NVLink bridge fits {together} GPUs of {product.name}")
    if system.gpus % together:
        raise UsageError(f"--machine: {system.gpus} GPUs do not divide into bridges of {together}")
    return _laid(system, product, "pairs" if together == 2 else "mesh", together)


def _assumed(parts: Sequence[str], product: GpuProduct, count: int) -> Iterator[str]:
    """What was not said, and is taken to be usual."""
    said = " ".join(parts).lower()
    if "socket" not in said:
        yield "one socket" if count <= _ONE_SOCKET else "two sockets"
    if count > _ONE_SOCKET and not set(said.split()) & set(get_args(Processor)) and not product.c2c_GBps:
        yield "processors of AMD"
    if product.wiring == "system" and (1 < count <= _MESH or count == _DGX_1) and "nvlink" not in said:
        yield "NVLinks as on a DGX-1" if count == _DGX_1 else "NVLinks from each GPU to each"
    if _NICS.search(said) and "nics at" not in said:
        yield "NICs below the GPUs' PCIe switches"
    if "p2p" not in said and not product.c2c_GBps:
        known = {True: "P2P", False: "no P2P, as the stock driver has it", None: "P2P"}
        yield known[product.p2p]


def product_called(text: str, flag: str = "--machine") -> GpuProduct:
    """The GPU that is meant, by the words of its name or of an alias. Raises UsageError with those that may be."""
    wanted = _words(text)
    found = [gpu for gpu in gpus.products() if _words(gpu.name, "") == _words(text, "") and not _several(gpu)]
    if wanted and not found:
        found = [gpu for gpu in gpus.products() if any(_has(name, wanted) for name in (gpu.name, *gpu.aliases))]
    if not found:
        raise UsageError(f"{flag}: no GPU is called {text[:40]!r}; give the name that nvidia-smi -L prints")
    if len({_links(gpu) for gpu in found}) > 1:
        raise UsageError(f"{flag}: {text[:40]!r} may be {' or '.join(sorted(gpu.name for gpu in found)[:6])}")
    return found[0]


def _several(gpu: GpuProduct) -> bool:
    """Whether NVML gives this name to several products, with NVLink and without: NVIDIA H100."""
    return not gpu.wiring and any(each.name.startswith(f"{gpu.name} ") and each.nvlinks for each in gpus.products())


def _links(gpu: GpuProduct) -> tuple[object, ...]:
    """All that a machine takes from its GPUs: where products differ in memory alone, either is meant."""
    slot = gpu.nccl_pcie_GBps, gpu.c2c_GBps, gpu.p2p
    return gpu.compute_capability, gpu.nvlinks, gpu.nccl_nvlink_GBps, gpu.wiring, gpu.nvls, *slot


def _has(name: str, wanted: Sequence[str]) -> bool:
    words = _words(name)
    return all(each in words or (each.isalpha() and any(w.startswith(each) for w in words)) for each in wanted)


def _words(name: str, between: str = " ") -> Sequence[str]:
    """The words of a name without what every name has: rtx, 4090 of NVIDIA GeForce RTX 4090."""
    return re.sub(r"[^a-z0-9]+", between, re.sub(r"nvidia|geforce|tesla", "", name.lower())).split()
