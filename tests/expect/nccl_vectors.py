"""What NCCL's own code made of known machines: tests/data/nccl."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner import cost
from ncclprobe.expect.tuner.cost import FUNCTIONS
from ncclprobe.expect.tuner.search import Graph, Graphs, graphs
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace

FOLDER = Path(__file__).resolve().parents[1] / "data" / "nccl"
OPS = {name: op for op, name in FUNCTIONS.items()}


class Choice(Struct, frozen=True):
    """What NCCL took for one call."""

    nbytes: int
    algorithm: str
    protocol: str
    channels: int
    time_us: float


class Function(Struct, frozen=True):
    """One collective: latency and algorithm bandwidth of each algorithm and protocol, and the choices."""

    op: str
    table: dict[str, tuple[float, float]]
    choices: tuple[Choice, ...]


class Communicator(Struct, frozen=True):
    """One communicator of the `releases` that agree on it."""

    releases: tuple[NcclVersion, ...]
    name: str
    kind: str
    system: NodeSystem
    shape: Shape
    latency_us: float
    graphs: Graphs
    functions: tuple[Function, ...]


@cache
def communicators() -> Sequence[Communicator]:
    """All of them."""
    systems = json.loads((FOLDER / "systems.json").read_text(encoding="utf-8"))
    lines = (FOLDER / "communicators.jsonl").read_text(encoding="utf-8").splitlines()
    return [_communicator(json.loads(line), systems) for line in lines]


def _communicator(row: dict[str, Any], systems: dict[str, Any]) -> Communicator:
    known = systems[row["system"]]
    plain = {"name": row["system"], "gpu": "", "source": known["source"], **known["system"]}
    found = {kind: _graph(values, row["latency_us"]) for kind, values in row["graphs"].items()}
    return Communicator(
        releases=tuple(_version(text) for text in row["nccl"]),
        name=row["system"],
        kind=known["kind"],
        system=msgspec.convert(plain, NodeSystem),
        shape=Shape((row["gpus"],) * row["nodes"]),
        latency_us=row["latency_us"],
        graphs=Graphs(**found, source="NCCL"),
        functions=tuple(_function(each, name) for each in row["functions"] for name in each["names"]),
    )


def _version(text: str) -> NcclVersion:
    major, minor, patch = map(int, text.split("."))
    return major, minor, patch


def _graph(values: Sequence[Any], latency_us: float) -> Graph:
    pattern, channels, intra, inter, type_intra, type_inter, same = values
    return Graph(
        pattern=pattern,
        channels=channels,
        bw_intra=intra,
        bw_inter=inter,
        type_intra=type_intra,
        type_inter=type_inter,
        same_channels=bool(same),
        latency_inter_us=latency_us,
    )


def _function(row: dict[str, Any], name: str) -> Function:
    choices = (
        Choice(nbytes, *taken.split("/"), channels, time_us) for nbytes, taken, channels, time_us in row["choices"]
    )
    table = {cell: (latency, bandwidth) for cell, (latency, bandwidth) in row["table"].items()}
    return Function(OPS[name], table, tuple(choices))


def release_settings(release: NcclVersion) -> list[Communicator]:
    """Those that NCCL's tables are known of."""
    return [each for each in communicators() if release in each.releases and each.functions]


def searched(each: Communicator, release: NcclVersion) -> Graphs:
    """What our own search finds, with the latency that the plugin says."""
    found = graphs(each.system, each.shape, release)
    assert not isinstance(found, Absent), found.why
    late = {"latency_inter_us": each.latency_us}
    nvls = replace(found.nvls, **late) if found.nvls else None
    return replace(found, ring=replace(found.ring, **late), tree=replace(found.tree, **late), nvls=nvls)


def differences(
    each: Communicator, found: Graphs, function: Function, release: NcclVersion, within: float
) -> list[str]:
    """What differs by more than `within`, in words."""
    where = f"{each.name} {each.shape.gpus[0]}x{each.shape.nodes} {function.op}"
    cells = {
        f"{cell.algorithm}/{cell.protocol}": (cell.latency_us, cell.algbw_GBps)
        for cell in cost.cells(found, each.system, each.shape, function.op, release)
        if cell.algbw_GBps
    }
    wrong = [f"{where}: {name}" for name in cells.keys() ^ function.table.keys()]
    for name in cells.keys() & function.table.keys():
        pairs = zip(cells[name], function.table[name], strict=True)
        if any(abs(ours - theirs) > within * theirs for ours, theirs in pairs):
            wrong.append(f"{where}: {name} is {cells[name]}, NCCL's {function.table[name]}")
    for choice in function.choices:
        best = cost.best(found, each.system, each.shape, function.op, choice.nbytes, release)
        assert best is not None
        ours = best.algorithm, best.protocol, best.channels
        theirs = choice.algorithm, choice.protocol, choice.channels
        if ours != theirs or abs(math.log(best.time_us / choice.time_us)) > within:
            wrong.append(f"{where} of {choice.nbytes}: {ours} in {best.time_us}, NCCL {theirs} in {choice.time_us}")
    return wrong


def shown(found: Graphs) -> list[object]:
    """What counts of the graphs: how many switches lie between two GPUs does not."""
    return [_parameters(each) for each in (found.ring, found.tree, found.nvls) if each]


def _parameters(graph: Graph) -> tuple[object, ...]:
    near = {"PXB": "PIX"}
    words = (near.get(word, word) for word in (graph.type_intra, graph.type_inter))
    speeds = (round(speed, 3) for speed in (graph.bw_intra, graph.bw_inter))
    return graph.pattern, graph.channels, *speeds, *words, graph.same_channels


def same_channels(each: Communicator, release: NcclVersion) -> bool:
    """Whether our own search finds NCCL's graphs."""
    return shown(searched(each, release)) == shown(each.graphs)
