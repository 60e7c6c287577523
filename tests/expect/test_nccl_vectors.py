"""Our tables, choices and channels beside those of NCCL's own code, release by release: tests/data/nccl."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner import cost
from ncclprobe.expect.tuner.search import Graph, Graphs, graphs
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace
from tests.each_row import each_row, some

FOLDER = Path(__file__).resolve().parents[1] / "data" / "nccl"
OPS = {name: op for op, name in cost.FUNCTIONS.items()}
MADE_AFTER = "constructed, after the rules were made"
IRREGULAR = {
    "h100-phb": "which of two root ports a ring comes back by is not counted",
    "h100-1nic": "which GPU the only NIC is near is not known",
    "a100-1nic": "which GPU the only NIC is near is not known",
    "a100-8nic-alone": "Ampere's trees want two GPUs near each NIC, which GPUs share a switch is not known",
}
"""Machines of which NodeSystem does not hold what the search depends on."""


class Communicator(Struct, frozen=True):
    """One communicator of the `releases` that agree on it.

    `functions`, of each operation: its table, latency and algorithm bandwidth of each algorithm and protocol; and its
    choices, each bytes, algorithm/protocol, channels, time.
    """

    releases: tuple[NcclVersion, ...]
    name: str
    kind: str
    system: NodeSystem
    shape: Shape
    latency_us: float
    graphs: Graphs
    functions: Mapping[str, Mapping[str, Any]]


@cache
def communicators() -> Sequence[Communicator]:
    systems = json.loads((FOLDER / "systems.json").read_text(encoding="utf-8"))
    lines = (FOLDER / "communicators.jsonl").read_text(encoding="utf-8").splitlines()
    return [_communicator(json.loads(line), systems) for line in lines]


def _communicator(row: dict[str, Any], systems: dict[str, Any]) -> Communicator:
    known = systems[row["system"]]
    plain = {"name": row["system"], "gpu": "", "source": known["source"], **known["system"]}
    names = ("pattern", "channels", "bw_intra", "bw_inter", "type_intra", "type_inter", "same_channels")
    found = {
        kind: Graph(**{**dict(zip(names, values, strict=True)), "same_channels": bool(values[-1])},
                    latency_inter_us=row["latency_us"])
        for kind, values in row["graphs"].items()
    }  # fmt: skip
    nccl = [list(map(int, text.split("."))) for text in row["nccl"]]
    functions = {OPS[name]: each for each in row["functions"] for name in each["names"]}
    return Communicator(
        msgspec.convert(nccl, tuple[NcclVersion, ...]), row["system"], known["kind"],
        msgspec.convert(plain, NodeSystem), Shape((row["gpus"],) * row["nodes"]), row["latency_us"],
        Graphs(**found, source="NCCL"), functions,
    )  # fmt: skip


def searched(each: Communicator, release: NcclVersion) -> Graphs:
    """What our own search finds, with the latency that the plugin says."""
    found = graphs(each.system, each.shape, release)
    assert not isinstance(found, Absent), found.why
    late = {"latency_inter_us": each.latency_us}
    nvls = replace(found.nvls, **late) if found.nvls else None
    return replace(found, ring=replace(found.ring, **late), tree=replace(found.tree, **late), nvls=nvls)


def differences(each: Communicator, found: Graphs, op: str, release: NcclVersion, within: float) -> list[str]:
    """What differs by more than `within`, in words."""
    where, function = f"{each.name} {each.shape.gpus[0]}x{each.shape.nodes} {op}", each.functions[op]
    table = function["table"]
    cells = {
        f"{cell.algorithm}/{cell.protocol}": (cell.latency_us, cell.algbw_GBps)
        for cell in cost.cells(found, each.system, each.shape, op, release)
        if cell.algbw_GBps
    }
    wrong = [f"{where}: {name}" for name in cells.keys() ^ table.keys()]
    for name in cells.keys() & table.keys():
        if any(abs(ours - theirs) > within * theirs for ours, theirs in zip(cells[name], table[name], strict=True)):
            wrong.append(f"{where}: {name} is {cells[name]}, NCCL's {table[name]}")
    for nbytes, taken, channels, time_us in function["choices"]:
        best = cost.best(found, each.system, each.shape, op, nbytes, release)
        assert best is not None
        ours, theirs = (f"{best.algorithm}/{best.protocol}", best.channels), (taken, channels)
        if ours != theirs or abs(math.log(best.time_us / time_us)) > within:
            wrong.append(f"{where} of {nbytes}: {ours} in {best.time_us}, NCCL {theirs} in {time_us}")
    return wrong


def same_channels(each: Communicator, release: NcclVersion) -> bool:
    """Whether our own search finds NCCL's graphs; how many switches lie between two GPUs does not count."""
    shown = [
        (graph.pattern, graph.channels, round(graph.bw_intra, 3), round(graph.bw_inter, 3), graph.same_channels,
         graph.type_intra.replace("PXB", "PIX"), graph.type_inter.replace("PXB", "PIX"))
        for found in (searched(each, release), each.graphs) for graph in (found.ring, found.tree, found.nvls) if graph
    ]  # fmt: skip
    return len(shown) % 2 == 0 and shown[: len(shown) // 2] == shown[len(shown) // 2 :]


RELEASES = sorted({release for each in communicators() for release in each.releases})
SHIPPED = {(2, 20, 5), (2, 21, 5), (2, 26, 2), (2, 27, 3), (2, 27, 5), (2, 28, 9), (2, 29, 7), (2, 30, 7)}


@each_row("release", RELEASES, ids=str)
def test_tables_and_choices_are_nccls_given_its_graphs_and_by_our_own_search(release: NcclVersion) -> None:
    assert set(RELEASES) >= SHIPPED, "the releases of every supported torch are here"
    for each in some(each for each in communicators() if release in each.releases and each.functions):
        found = searched(each, release)
        assert same_channels(each, release), each.name
        for op in each.functions:
            assert differences(each, each.graphs, op, release, within=1e-3) == []
            assert differences(each, found, op, release, within=1e-2) == []


def test_machines_that_came_after_the_rules_are_searched_as_nccl_does() -> None:
    later = [each for each in communicators() if each.kind == MADE_AFTER]
    assert {each.name for each in later if not same_channels(each, each.releases[0])} == IRREGULAR.keys()
    assert len(later) > 70
