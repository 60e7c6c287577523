#!/usr/bin/env python3
"""Our search and cost model beside NCCL's own code, by a machine's topology and by what its owner would type.

    .venv/bin/python scripts/topologies.py    make reports/expected-topologies.md

The communicators are those of tests/data/nccl. A machine by its topology has the links that NCCL was given; the same
machine as it is typed (``--machine``) has those of the table or of its parts, and the page says which of them differ.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts")]

from expect.nccl_vectors import Communicator, communicators, differences, searched, shown
from tables import table

from ncclprobe.engine.outlook import machine_of
from ncclprobe.expect.system import NcclVersion, NodeSystem
from ncclprobe.expect.tuner import cost
from ncclprobe.expect.tuner.search import graphs
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, asdict, replace

REPORT = ROOT / "reports" / "expected-topologies.md"
WITHIN, ENOUGH = 0.01, 0.975
"""Times count as equal within a hundredth; the goal is 390 of 400 communicators."""
NAMED = {"name", "gpu", "source", "domain_gpus"}
"""Fields that are words, or follow from others."""
DRAWN = "drawn at random, after the rules were made"
"""Boxes that few people have: slots, bridges and NICs anywhere. Their graphs alone are compared."""
H100, A100, L40S = "8 x H100 80GB HBM3", "8 x A100-SXM4-40GB", "8 x L40S"
TYPED: Mapping[str, str] = {
    "aws-p4d-24xlarge": "p4d.24xlarge",
    "azure-nd40rs-v2": "Standard_ND40rs_v2",
    "azure-nd96asr-v4": "Standard_ND96asr_v4",
    "azure-nd96isr-h100-v5": "Standard_ND96isr_H100_v5",
    "dgx-1v": "DGX-1V",
    "dgx-b200": "DGX B200",
    "dgx-h100": "DGX H100",
    "gb300-nvl72": "GB300 NVL72",
    "oci-bm-gpu-b300-8": "BM.GPU.B300.8",
    "icelake-2xa100-pcie-host11": "2 x A100 80GB PCIe, 2 sockets, skl, 2 x EDR, no GDR",
    "pcie-8xl40s-2switch-spr": f"{L40S}, spr, 2 x NDR",
    "pcie-2xrtx4090-amd": "2 x RTX 4090",
    "h100-4nic": f"{H100}, spr, 4 x NDR",
    "h100-4nic-pxb-amd": f"{H100}, 4 x NDR",
    "h100-16nic200": f"{H100}, spr, 16 x HDR",
    "h100-8nic200": f"{H100}, spr, 8 x HDR",
    "h100-8nic100": f"{H100}, spr, 8 x EDR",
    "h100-32nic100": f"{H100}, 32 x EDR",
    "h100-nogdr": f"{H100}, spr, 8 x NDR, no GDR",
    "h100-phb": f"{H100}, spr, 8 x NDR, NICs at PHB",
    "h100-1nic": f"{H100}, spr, 1 x NDR",
    "h100-amd-lat75": f"{H100}, 8 x NDR",
    "b200-4nic": "8 x B200, emr, 4 x NDR",
    "b200-16nic": "8 x B200, emr, 16 x HDR",
    "a100-8nic-alone": f"{A100}, 8 x HDR",
    "a100-1nic": f"{A100}, 1 x HDR",
    "a100-16": "a2-megagpu-16g",
    "v100-16": "DGX-2",
    "a100-4mesh": "4 x A100-SXM4-40GB, mesh, 2 x HDR",
    "h100-4mesh": "4 x H100 80GB HBM3, mesh, spr, 4 x NDR",
    "v100-4mesh": "4 x V100-SXM2, skl, 2 sockets, 2 x EDR",
    "a100-2bridge": "2 x A100 80GB PCIe, bridges, skl, 1 x HDR",
    "a100-4bridge": "4 x A100 80GB PCIe, bridges, skl, 2 sockets, 2 x HDR",
    "l40s-4-1switch": "4 x L40S, spr, 1 x HDR",
    "l40s-8-1socket": f"{L40S}, spr, 1 socket, 2 x NDR",
    "l40s-8-2s-amd": f"{L40S}, 2 x HDR",
    "l40s-8-2s-skl": f"{L40S}, skl, 2 x EDR",
    "oci-h100": "BM.GPU.H100.8",
    "oci-h100-k8s": "BM.GPU.H100.8",
    "oci-b4": "BM.GPU.B4.8",
    "oci-a100": "BM.GPU.A100-v2.8",
    "aws-p4de": "p4de.24xlarge",
    "aws-g5": "g5.48xlarge",
    "azure-nc96": "Standard_NC96ads_A100_v4",
    "rtx-8-2s-amd-roots": "8 x RTX 4090",
    "rtx-8-2s-spr-roots": "8 x RTX 4090, spr",
    "rtx-4-1s-amd-roots": "4 x RTX 4090",
    "rtx-4-1s-skl-roots": "4 x RTX 4090, skl",
}
"""What the owner of each machine would type. Half a rack of two trays is none that anyone has."""


class Score(Struct, frozen=True):
    """One communicator of one release: whether graphs, tables and choices are NCCL's, and how many times are."""

    equal: bool
    near: int
    times: int


def typed(name: str) -> NodeSystem | None:
    """The machine as its owner types it; null where nothing says it."""
    found = machine_of(TYPED[name], None).system if name in TYPED else None
    return None if isinstance(found, Absent) else found


def scored(each: Communicator, system: NodeSystem, release: NcclVersion) -> Score:
    """Beside NCCL's own code. Of some communicators its graphs alone are known."""
    own = replace(each, system=system)
    choices = sum(len(function.choices) for function in each.functions)
    if max(each.shape.gpus) > system.gpus or isinstance(graphs(system, each.shape, release), Absent):
        return Score(False, 0, choices)
    found = searched(own, release)
    apart = [differences(own, found, function, release, WITHIN) for function in each.functions]
    near = [
        abs(best.time_us / choice.time_us - 1) <= WITHIN
        for function in each.functions
        for choice in function.choices
        if (best := cost.best(found, system, each.shape, function.op, choice.nbytes, release))
    ]
    return Score(shown(found) == shown(each.graphs) and not any(apart), sum(near), choices)


def differing(system: NodeSystem, other: NodeSystem) -> Iterator[str]:
    """The links in which two descriptions differ: what the topology has, then what was typed."""
    theirs = asdict(other)
    for name, value in asdict(system).items():
        if name not in NAMED and value != theirs[name]:
            yield f"{name} {value} / {theirs[name]}"


def _row(name: str, own: Sequence[Communicator]) -> tuple[tuple[object, ...], list[Score], list[Score]]:
    told = typed(name)
    pairs = [(each, release) for each in own for release in each.releases]
    topology = [scored(each, each.system, release) for each, release in pairs]
    table_ = [scored(each, told, release) for each, release in pairs] if told else []
    differs = "; ".join(differing(own[0].system, told)) if told else ""
    cells = name, own[0].kind, TYPED.get(name, ""), len(pairs), *map(_share, (topology, table_)), differs
    return cells, topology, table_


def _share(found: Sequence[Score]) -> str:
    return f"{sum(each.equal for each in found)} of {len(found)}" if found else ""


def _sums(what: str, found: Sequence[Score]) -> str:
    near, times = sum(each.near for each in found), sum(each.times for each in found)
    equal = sum(each.equal for each in found) / len(found)
    return (
        f"- {what}: equal in {_share(found)} ({equal:.1%}, goal {ENOUGH:.1%}); "
        f"{near / times:.1%} of {times} times within {WITHIN:.0%}"
    )


def report() -> str:
    """The page."""
    by_name: dict[str, list[Communicator]] = defaultdict(list)
    for each in communicators():
        by_name["drawn" if each.kind == DRAWN else each.name].append(each)
    rows = [_row(name, own) for name, own in sorted(by_name.items())]
    columns = "machine", "its topology", "as it is typed", "communicators", "by topology", "as typed", "what differs"
    lines = [
        "# Our search and cost model beside NCCL's own code",
        "",
        "Made by `scripts/topologies.py` from `tests/data/nccl`. A communicator is one number of nodes and of GPUs, of",
        "one release of NCCL. It is equal where graphs, tables and choices are NCCL's, all times within a hundredth.",
        "By topology: the links that NCCL was given. As typed: those of the machine table, or of a box of its parts.",
        "What differs: the topology's links / those of the machine as it is typed. How many switches lie between a GPU",
        "and its NIC (PIX, PXB) changes nothing in NCCL.",
        "",
        "The drawn boxes have slots, bridges and NICs anywhere, as few real ones do; of them the graphs alone are",
        "compared, and the sums leave them out. What is missed there: bridged pairs among eight GPUs, NICs on some of",
        "the GPUs' switches alone, no GPUDirect behind several switches. Of NC96ads A100, Azure's file has neither its",
        "bridges nor its slots; NCCL takes the graphs that Azure ships beside it (`--graphs`), so the table keeps what",
        "the machine has. The clouds' files after the rules taught three rules (63 of 76 were equal at first), the",
        "drawn boxes two (101 of 144); the table's B300.8, ND40rs and g5.48xlarge were mended by their topologies (as",
        "typed 91.6 % before). What an owner types was written by who knew the topology.",
        "",
        _sums("by topology", [score for cells, found, _ in rows if cells[1] != DRAWN for score in found]),
        _sums("as typed", [score for _, _, found in rows for score in found]),
        "",
        *table(columns, [cells for cells, _, _ in rows]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    REPORT.write_text(report())
