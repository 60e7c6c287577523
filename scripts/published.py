"""Published runs as the expectation sees them: which links the machine of a row has, as far as the row says.

They stand in a folder as ``tests/data/published`` does, whose README says what its two tables hold.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from ncclprobe.expect.system import Network, NodeSystem, NvlinkFabric, Shape
from ncclprobe.expect.tables import gpus, machines
from ncclprobe.model.values import Struct, replace

OPS = {"alltoall": "all_to_all"}
PUBLISHED = Path(__file__).resolve().parent.parent / "tests" / "data" / "published"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")
_NICS = re.compile(r"(\d+)x ?(\d+)Gb")
_ONE_NIC = re.compile(r"(\d+)(?:GbE| Gb/s)")
_NETWORKS: Mapping[str, Network] = {
    "TCPXO": "tcpxo",
    "TCPX": "tcpx",
    "IPoIB": "sockets",
    "TCP": "sockets",
    "sockets": "sockets",
    "EFA": "efa",
    "Slingshot": "slingshot",
    "RoCE": "roce",
    "Omni-Path": "opa",
    "IB": "ib",
    "InfiniBand": "ib",
    "4xEDR": "ib",
    "2xEDR": "ib",
}
_WORD = re.compile(r"[\w-]+")
_FORCED = re.compile(r"(?:NCCL_ALGO=|algo |\(|^|[ ;])(Ring|NVLSTree|Tree)\b")
"""In a row's settings alone: a note may advise what was not done."""
_ALIASES = {
    "NVIDIA A100-SXM4 (ND A100 v4)": "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4 (40/80GB not stated)": "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4": "NVIDIA A100-SXM4-40GB",
    "Tesla V100-SXM2": "Tesla V100-SXM2-32GB",
    "Tesla V100 32GB class (name not in the result file)": "Tesla V100-PCIE-32GB",
}
NO_NVLS = ("no NVLS", "NVLS_ENABLE=0", "NVLS off", "NVLS disabled", "int8", "f8e4m3", "f8e5m2")
MEANT = {
    "TCP sockets (no TCPXO)": "TCPXO 8x200Gb",
    "RoCE 1x200Gb": "RoCE 4x200Gb",
    "4x200Gb": "IB 4x200Gb",
}
"""What a sick run should have used: its own words are those of the fault."""


class Row(Struct, frozen=True):
    """One published number. `nbytes` and `time_us` are null where the row has none, `family` is who published it."""

    system: NodeSystem
    shape: Shape
    op: str
    nbytes: int | None
    busbw_GBps: float
    time_us: float | None
    nccl: tuple[int, int, int] | None
    healthy: str
    kind: str
    sweep: str
    family: str
    settings: str
    note: str
    forced: str | None = None

    @property
    def label(self) -> str:
        """Which machine, how many of them."""
        return f"{self.system.name}, {self.shape.nodes}x{self.shape.gpus[0]}"


def _cells(folder: Path) -> Iterator[dict[str, str]]:
    """Yield each result with what is known of its run."""
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
        runs = {row["run"]: row for row in csv.DictReader(file)}
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        for result in csv.DictReader(file):
            yield {**runs[result["run"]], **result}


def outliers(folder: Path) -> frozenset[tuple[str, int]]:
    """Sweeps and sizes whose time stands out of its own sweep: a first call, an interruption."""
    return frozenset((row["sweep_id"], int(row["size_bytes"])) for row in _cells(folder) if row["stands_out"])


def kept(folder: Path) -> list[Row]:
    """All rows but the outliers of healthy runs."""
    odd = outliers(folder)
    return [row for row in rows(folder) if (row.sweep, row.nbytes) not in odd or row.healthy == "no"]


def rows(folder: Path) -> Iterator[Row]:
    """The collectives among the published rows whose GPU is known. Copies and latencies are not collectives."""
    for cells in _cells(folder):
        found = _row(cells)
        if found:
            yield found


def _row(cells: dict[str, str]) -> Row | None:
    collective, gpu = cells["collective"], _ALIASES.get(cells["gpu"], cells["gpu"])
    if collective not in COLLECTIVES or gpu not in gpus.table() or cells["kind"] not in ("sweep", "peak"):
        return None
    if not cells["nodes"] or not cells["busbw_GBps"] or float(cells["busbw_GBps"]) <= 0:
        return None
    if float(cells["busbw_GBps"]) < 1 and cells["time_computed"]:
        return None  # a time computed from two decimals
    per_node, nodes = int(cells["gpus_per_node"]), int(cells["nodes"])
    system = _system(gpus.table()[gpu], cells, per_node)
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", cells["nccl_version"])
    return Row(
        system,
        Shape((per_node,) * nodes),
        OPS.get(collective, collective),
        int(float(cells["size_bytes"])) if cells["size_bytes"] else None,
        float(cells["busbw_GBps"]),
        float(cells["latency_us"]) if cells["latency_us"] else None,
        (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None,
        cells["healthy"],
        cells["kind"],
        cells["sweep_id"],
        family(cells["source_url"]),
        cells["settings"],
        cells["note"],
        _forced(cells["settings"]),
    )


def _forced(settings: str) -> str | None:
    """The algorithm that the run was held to, or that its publisher says it took; null: NCCL's own choice."""
    if "NCCL_TREE_THRESHOLD=0" in settings:
        return "Ring"
    found = _FORCED.search(settings)
    return found[1] if found else None


def family(url: str) -> str:
    """Who published it: the owner and name of a repository, the host of a page, or what the text says of its origin.

    In one repository of MLPerf's results every submitter is another publisher.
    """
    if submitted := re.match(r"https://github\.com/(mlcommons/[^/]+)/blob/\w+/([^/]+)/", url):
        return f"{submitted[1]}: {submitted[2]}"
    found = re.match(r"https?://github\.com/([^/]+/[^/]+?)(?:/(?:issues|pull)/(\d+))?(?:/|$|#)", url)
    if found:
        return f"{found[1]}#{found[2]}" if found[2] else found[1]
    host = re.match(r"https?://([^/]+)", url)
    if host:
        return host[1]
    _, _, origin = url.partition("); ")
    return origin[:60] or url.partition(" (")[0][:60]


def _system(gpu: gpus.GpuProduct, cells: dict[str, str], per_node: int) -> NodeSystem:
    fabric, nodes = cells["fabric"], int(cells["nodes"])
    text, sick = f"{fabric} {cells['machine']} {cells['settings']}", cells["healthy"] == "no"
    joined = _joined(gpu, fabric, cells["machine"])
    whole = _whole(gpu, cells, per_node)
    racks = re.search(r"(\d+) racks", text)
    rack = per_node * nodes // (int(racks[1]) if racks else 1) if "MNNVL" in fabric else whole
    system = NodeSystem(
        name=cells["machine"],
        gpu=gpu.name,
        compute_capability=gpu.compute_capability,
        gpus=whole,
        nvlinks=gpu.nvlinks if joined != "none" else 0,
        nvlink_GBps=gpu.nccl_nvlink_GBps if joined != "none" else 0.0,
        fabric=joined,
        domain_gpus=rack if joined != "none" else 0,
        nvls=joined == "nvswitch" and gpu.nvls and not any(word in text for word in NO_NVLS),
        pcie_GBps=gpu.c2c_GBps or gpu.nccl_pcie_GBps or 12.0,
        p2p=(gpu.p2p is not False or "P2P" in fabric) and "no P2P" not in text and "P2P disabled" not in text,
        processor="arm" if gpu.c2c_GBps else "amd" if "EPYC" in text else "unknown",
        sockets=2 if "dual" in text or "across sockets" in text else 1,
        gdr=sick or "no GDR" not in text,
        source="the row itself",
    )
    return _with_nics(system, MEANT.get(fabric, fabric) if sick else fabric, nodes)


def _joined(gpu: gpus.GpuProduct, fabric: str, machine: str) -> NvlinkFabric:
    if "PCIe" in fabric and "NVSwitch" not in fabric:
        return "none"
    if "bridge" in fabric or "NVLink pair" in machine:
        return "pairs"
    if not gpu.nvlinks or gpu.wiring == "bridge":
        return "none"
    if "mesh" in fabric:
        return "mesh"
    if gpu.name.startswith("Tesla V100-SXM2"):
        return "mesh" if "Jean Zay" in machine or "2x4" in machine else "cube-mesh"
    return "nvswitch" if gpu.compute_capability >= 80 or "SXM3" in gpu.name else "mesh"


def _whole(gpu: gpus.GpuProduct, cells: dict[str, str], per_node: int) -> int:
    """GPUs of the node: where the row says that a part of them took part, all of them."""
    stated = re.search(r"of (\d+) GPUs|of (\d+)\)|^(\d+)x ", cells["machine"])
    number = int(next(filter(None, stated.groups()))) if stated else per_node
    if int(cells["nodes"]) > 1:
        return per_node  # its NICs are given as those in use
    return max(per_node, number if number <= 16 else per_node)


def _with_nics(system: NodeSystem, fabric: str, nodes: int) -> NodeSystem:
    """`system` with the NICs that `fabric` says, else those of the machine type that the row names."""
    if nodes < 2:
        return system
    words = _WORD.findall(fabric)
    network = next((kind for word, kind in _NETWORKS.items() if word in words), None)
    several, one = _NICS.search(fabric), _ONE_NIC.search(fabric)
    if several:
        return replace(system, nics=int(several[1]), nic_gbps=float(several[2]), network=network)
    if "2xEDR" in words or "4xEDR" in words:
        return replace(system, nics=int(fabric[fabric.index("x") - 1]), nic_gbps=100.0, network="ib")
    if network == "sockets":
        return replace(system, nics=1, nic_gbps=float(one[1]) if one else 100.0, network=network, gdr=False)
    if fabric == "IB NDR":
        return replace(system, nics=system.gpus, nic_gbps=400.0, network="ib")
    named = _types().get(system.name)
    if named is None or "racks" not in fabric:
        return system
    return replace(system, nics=named.nics, nic_gbps=named.nic_gbps, network=named.network)


@cache
def _types() -> Mapping[str, NodeSystem]:
    """The machine types by their names."""
    return {machine.name: machine.system() for machine in machines.table().values()}
