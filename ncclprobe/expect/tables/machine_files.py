"""A machine type as TOML, read strictly: :mod:`.machines` says what its keys mean."""

import sys
from collections.abc import Mapping
from typing import Any, get_args

from ncclprobe.errors import UsageError
from ncclprobe.expect.strict import KeySchema, document, table
from ncclprobe.expect.system import Network, NicPath, NvlinkFabric, Processor
from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.gpus import GpuProduct
from ncclprobe.expect.tables.machine_types import ALGORITHMS, Latency, MachineType, Match, NodeLinks, Published
from ncclprobe.ops import OPS

_TEXT = KeySchema("text", required=True)
_MACHINE = {
    "name": _TEXT,
    "vendor": _TEXT,
    "board": KeySchema("text"),
    "title": KeySchema("text"),
    "note": KeySchema("text"),
    "match": KeySchema("table", required=True),
    "links": KeySchema("table", required=True),
    "published": KeySchema("tables"),
    "latency": KeySchema("tables"),
}
_MATCH = {
    "gpu_names": KeySchema("texts", required=True),
    "cloud": KeySchema("text", among=("aws", "azure", "gcp", "oracle")),
    "vendor": KeySchema("text"),
    "products": KeySchema("texts"),
    "cpus": KeySchema("texts"),
    "elsewhere": KeySchema("flag"),
    "twins": KeySchema("texts"),
    "by_name_only": KeySchema("text"),
}
_LINKS = {
    "gpus": KeySchema("whole", required=True),
    "fabric": KeySchema("text", required=True, among=get_args(NvlinkFabric)),
    "source": _TEXT,
    "nvlinks": KeySchema("whole"),
    "domain_gpus": KeySchema("whole"),
    "nvls": KeySchema("flag"),
    "pcie_GBps": KeySchema("number"),
    "p2p": KeySchema("flag"),
    "nics": KeySchema("whole"),
    "nic_gbps": KeySchema("number"),
    "network": KeySchema("text", among=get_args(Network)),
    "gdr": KeySchema("flag"),
    "nic_path": KeySchema("text", among=get_args(NicPath)),
    "processor": KeySchema("text", among=get_args(Processor)),
    "sockets": KeySchema("whole"),
    "network_total_gbps": KeySchema("number"),
    "unverified": KeySchema("texts"),
}
_RUN = {
    "op": KeySchema("text", required=True, among=tuple(OPS)),
    "gpus": KeySchema("whole", required=True),
    "nodes": KeySchema("whole", required=True),
    "source": _TEXT,
    "why": _TEXT,
}
_PUBLISHED = _RUN | {
    "min_bytes": KeySchema("size", required=True),
    "below_bytes": KeySchema("size"),
    "busbw_GBps": KeySchema("number", required=True),
    "threshold_GBps": KeySchema("number"),
    "algorithm": KeySchema("text", among=ALGORITHMS),
}
_LATENCY = _RUN | {
    "max_bytes": KeySchema("size", required=True),
    "time_us": KeySchema("number", required=True),
    "high_us": KeySchema("number"),
}
_LINE_OVER_NCCL = 63.0 / 48.0
"""A PCIe slot's line rate over what NCCL counts it for (Gen5 x16)."""


def from_toml(text: str, path: str) -> MachineType:
    """Return one type. Raises UsageError naming `path`, the key and the reason."""
    said = table(document(text, path), _MACHINE, path)
    match = _match(said["match"], f"{path}: match")
    known = gpus.table()
    for name in match.gpu_names:
        if name not in known:
            raise UsageError(f"{path}: match: gpu_names: {name!r} is not in the table of GPUs")
    gpu = known[match.gpu_names[0]]
    links = _links(said["links"], gpu, f"{path}: links")
    machine = MachineType(
        name=said["name"],
        vendor=said["vendor"],
        gpu=gpu.name,
        match=match,
        links=links,
        board=said.get("board", ""),
        published=tuple(
            _published(entry, links, gpu, f"{path}: published {n}")
            for n, entry in enumerate(said.get("published", ()), start=1)
        ),
        latencies=tuple(
            _latency(entry, links, f"{path}: latency {n}") for n, entry in enumerate(said.get("latency", ()), start=1)
        ),
        title=said.get("title", ""),
        note=said.get("note", ""),
    )
    _refuse_overlaps(machine.published, path)
    return machine


def _match(entry: Mapping[str, Any], where: str) -> Match:
    said = table(entry, _MATCH, where)
    telling = [key for key in ("cloud", "vendor", "products", "cpus", "elsewhere") if said.get(key)]
    if said.get("by_name_only") and telling:
        raise UsageError(f"{where}: by_name_only and {telling[0]} exclude each other")
    if not said.get("by_name_only") and not telling:
        raise UsageError(f"{where}: GPUs alone tell no machine: give cloud, products or cpus, or why by_name_only")
    return Match(**said)


def _links(entry: Mapping[str, Any], gpu: GpuProduct, where: str) -> NodeLinks:
    said = table(entry, _LINKS, where)
    fabric, count = said["fabric"], said["gpus"]
    nvlinks = said.pop("nvlinks", gpu.nvlinks if fabric != "none" else 0)
    if fabric == "none" and (nvlinks or said.get("domain_gpus")):
        raise UsageError(f"{where}: fabric is none, and yet there are NVLinks")
    if fabric != "none" and not 0 < nvlinks <= gpu.nvlinks:
        raise UsageError(f"{where}: nvlinks {nvlinks}: {gpu.name} has {gpu.nvlinks}")
    slot = gpu.nccl_pcie_GBps or gpu.c2c_GBps
    if "pcie_GBps" not in said and slot is None:
        raise UsageError(f"{where}: pcie_GBps is missing, and the table of GPUs does not know the slot of {gpu.name}")
    for pair in (("nic_gbps", "nics"), ("nics", "network")):
        if pair[0] in said and pair[1] not in said:
            raise UsageError(f"{where}: {pair[0]} without {pair[1]}")
    domain = said.pop("domain_gpus", {"none": 0, "pairs": 2}.get(fabric, count))
    if fabric != "none" and domain < (2 if fabric == "pairs" else count):
        raise UsageError(f"{where}: domain_gpus {domain} is less than one machine's")
    return NodeLinks(
        nvlinks=nvlinks,
        domain_gpus=domain,
        nvls=said.pop("nvls", gpu.nvls and fabric == "nvswitch"),
        pcie_GBps=float(said.pop("pcie_GBps", slot)),
        p2p=said.pop("p2p", gpu.p2p is not False or gpu.c2c_GBps is not None),
        unverified=_fields(said.pop("unverified", ()), where),
        **said,
    )


def _fields(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    for name in names:
        if name not in _LINKS:
            raise UsageError(f"{where}: unverified: {name!r} is no key of links")
    return names


def _published(entry: Mapping[str, Any], links: NodeLinks, gpu: GpuProduct, where: str) -> Published:
    said = table(entry, _PUBLISHED, where)
    row = Published(max_bytes=said.pop("below_bytes", sys.maxsize) - 1, **said)
    _refuse_ranks(row.gpus, row.ranks, links, where)
    if row.min_bytes > row.max_bytes:
        raise UsageError(f"{where}: min_bytes {row.min_bytes} is not below below_bytes {row.max_bytes + 1}")
    if row.threshold_GBps is not None and row.threshold_GBps > row.busbw_GBps:
        raise UsageError(f"{where}: threshold_GBps {row.threshold_GBps:g} is above busbw_GBps {row.busbw_GBps:g}")
    most = most_GBps(row, links, gpu)
    if row.busbw_GBps > most:
        told = f" with {row.algorithm}" if row.algorithm else "; name the algorithm where one reaches it"
        raise UsageError(f"{where}: busbw_GBps {row.busbw_GBps:g} is above the {most:.4g} that the links allow{told}")
    return row


def _latency(entry: Mapping[str, Any], links: NodeLinks, where: str) -> Latency:
    row = Latency(**table(entry, _LATENCY, where))
    _refuse_ranks(row.gpus, row.gpus * row.nodes, links, where)
    if row.high_us is not None and row.high_us < row.time_us:
        raise UsageError(f"{where}: high_us {row.high_us:g} is below time_us {row.time_us:g}")
    return row


def _refuse_ranks(per_node: int, ranks: int, links: NodeLinks, where: str) -> None:
    if per_node > links.gpus:
        raise UsageError(f"{where}: gpus {per_node}: the machine has {links.gpus}")
    if ranks < 2:
        raise UsageError(f"{where}: one rank has no other rank to exchange data with")


def most_GBps(row: Published, links: NodeLinks, gpu: GpuProduct) -> float:
    """Return the bus bandwidth that no healthy machine exceeds in `row`'s case.

    Inside a node or NVLink domain a ring moves busbw over each GPU's links; NVLS moves (n+1)/n buffers where the ring
    moves 2(n-1)/n, so its busbw may be 2(n-1)/(n+1) times as much. Between nodes busbw x (n-g)/(n-1) has to pass the
    NICs of a node at least (n ranks, g of one node), which a ring does not reach and a tree may; SHARP halves it.
    """
    ranks = row.ranks
    wire = links.nvlinks * gpu.nvlink_GBps or links.pcie_GBps * _LINE_OVER_NCCL
    switched = row.op == "all_reduce" and row.algorithm in ("nvls", "nvlstree")
    inside = wire * 2 * (ranks - 1) / (ranks + 1) if switched else wire
    if row.nodes == 1 or ranks <= links.domain_gpus:
        return inside
    nodes_of_domain = max(1, min(links.domain_gpus, ranks) // links.gpus)
    domain = min(row.gpus * nodes_of_domain, ranks - 1)
    line = (links.nics or 0) * (links.nic_gbps or 0.0) / 8 * nodes_of_domain
    over_nics = (ranks - 1) / (ranks - domain)
    if row.op == "all_to_all":
        return line / domain * over_nics
    if row.op == "all_reduce" and row.algorithm == "sharp":
        return min(inside * 2, line * 2)
    return min(inside, line * (over_nics if row.algorithm in ("tree", "nvlstree", "nvls") else 1.0))


def _refuse_overlaps(rows: tuple[Published, ...], path: str) -> None:
    """Two numbers for one case would leave open which is meant."""
    for n, row in enumerate(rows, start=1):
        for later, other in enumerate(rows[n:], start=n + 1):
            if row.overlaps(other):
                raise UsageError(f"{path}: published {n} and {later} both speak for {row.op}; keep one per size")
