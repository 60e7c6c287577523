"""What NCCL's own code made of known machines: tests/data/nccl."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tuner.cost import FUNCTIONS
from ncclprobe.expect.tuner.graphs import Graph, Graphs
from ncclprobe.model.values import Struct

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
