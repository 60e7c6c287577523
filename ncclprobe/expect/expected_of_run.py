"""What the rows of a run over NCCL should reach, from what each of its nodes is.

Every node's own facts are used for that node: a few hundred bytes of each reach rank 0 before anything is measured
(:class:`Described`), and a replay takes them from the captures. A collective is as slow as its slowest node, so of
nodes that differ the least is expected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.expect.expected import expectation
from ncclprobe.expect.pinned import NOTHING, Pinned, pinned
from ncclprobe.expect.predict import LATEST
from ncclprobe.expect.recognise import expectation_context
from ncclprobe.expect.system import NcclVersion, NodeSystem, Shape
from ncclprobe.expect.tables import machines
from ncclprobe.model.measurement import Band, Conditions, Expectation
from ncclprobe.model.pair_results import PAIRS
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, replace
from ncclprobe.ops import OPS

_MOST_NAMED = 3


class Described(Struct, frozen=True):
    """One node as expectations see it. `system`: null where nothing can be expected, and `why` says so.

    `machine`: the name of the type that was recognised; `nccl`: the version on that node; `settings`: those that leave
    NCCL less to choose.
    """

    system: NodeSystem | None
    machine: str | None = None
    why: str = ""
    nccl: NcclVersion | None = None
    settings: Pinned = NOTHING


class Expecting(Struct, frozen=True):
    """Bands for the rows of a run, and what the reader must know of where they come from (empty: nothing).

    `node_bands`: of each node by itself, for the rungs of a ladder.
    """

    bands: tuple[Band, ...] = ()
    note: str = ""
    node_bands: tuple[Band, ...] = ()


def describe(facts: Mapping[type, Any]) -> Described:
    """A node by its facts."""
    here = expectation_context(facts)
    if isinstance(here.system, Absent):
        return Described(None, why=here.system.why)
    machine = here.machine.name if here.machine else None
    return Described(here.system, machine, here.why, here.nccl, pinned(here.settings, here.nccl or LATEST))


def expecting(
    ops: Sequence[str], sizes: Sequence[int], itemsize: int, shape: Shape, nodes: Mapping[str, Described]
) -> Expecting:
    """The bands of a run of `ops` at `sizes` (bytes asked for) over `nodes`, in the order of `shape`."""
    if reason := _unfit(shape, nodes):
        return Expecting(note=f"nothing is expected: {reason}")
    kinds = _distinct(nodes.values())
    found = tuple(_bands(ops, sizes, itemsize, shape, kinds))
    return Expecting(found, _note(found, nodes, kinds), tuple(_node_bands(sizes, itemsize, shape, kinds)))


def _node_bands(sizes: Sequence[int], itemsize: int, shape: Shape, kinds: Sequence[Described]) -> Iterator[Band]:
    """Bands of an all_reduce over the ranks of one node, where there are several nodes of several ranks."""
    if shape.nodes > 1:
        for gpus in sorted({gpus for gpus in shape.gpus if gpus > 1}):
            like = Conditions(gpus, 1, "float32", "sum", "in", "queued", "nccl")
            for band in _bands(("all_reduce",), sizes, itemsize, Shape((gpus,)), kinds):
                yield replace(band, like=like)


def expecting_pairs(nbytes: int, shape: Shape, nodes: Mapping[str, Described]) -> Expecting:
    """The band of one transfer of `nbytes` between two ranks of the run, on different nodes where there are several.

    A rank of one node sends to one of another: its NIC's rate, of which healthy machines reach a published share.
    """
    found = expecting(("sendrecv",), (nbytes,), 1, Shape((1, 1)) if shape.nodes > 1 else Shape((2,)), nodes)
    return Expecting(tuple(replace(band, op=PAIRS) for band in found.bands), found.note)


def _unfit(shape: Shape, nodes: Mapping[str, Described]) -> str:
    """Why nothing can be expected of these nodes; empty: something can."""
    if not nodes:
        return "no node said what it is"
    most = max(shape.gpus)
    for name, node in nodes.items():
        if node.system is None:
            return f"{name}: {node.why}"
        if most > node.system.gpus:
            return f"{most} ranks on {name}, a machine of {node.system.gpus} GPUs"
    return ""


def _distinct(nodes: Iterable[Described]) -> list[Described]:
    found: list[Described] = []
    for node in nodes:
        if node not in found:
            found.append(node)
    return found


def _bands(
    ops: Sequence[str], sizes: Sequence[int], itemsize: int, shape: Shape, kinds: Sequence[Described]
) -> Iterator[Band]:
    """One band per operation and printed size of which anything is expected: that of the slowest kind of node."""
    for op in ops:
        printed = dict.fromkeys(OPS[op].shape(nbytes, shape.ranks, itemsize).nbytes for nbytes in sizes)
        for nbytes in filter(None, printed):
            each = [_expected(op, nbytes, itemsize, shape, kind) for kind in kinds]
            known = [expected for expected in each if expected]
            if known and len(known) == len(each):
                yield Band(op, nbytes, nbytes, min(known, key=lambda expected: expected.value))


def _expected(op: str, nbytes: int, itemsize: int, shape: Shape, kind: Described) -> Expectation | None:
    machine = machines.find(kind.machine) if kind.machine else None
    assert kind.system
    version, settings = kind.nccl or LATEST, kind.settings
    return expectation(
        op, nbytes, shape, kind.system, machine=machine, version=version, settings=settings, itemsize=itemsize
    )


def _note(bands: Sequence[Band], nodes: Mapping[str, Described], kinds: Sequence[Described]) -> str:
    if not bands:
        return ""
    judged = any(band.expectation.worst != "unjudged" for band in bands)
    how = "judged without --expect" if judged else "expected without --expect, and too loosely known to judge by"
    text = f"{how}: {kinds[0].why}" + (f"; with {kinds[0].settings}" if kinds[0].settings else "")
    if len(kinds) == 1:
        return text
    others = [f"{name}: {node.why}" for name, node in nodes.items() if node != kinds[0]][:_MOST_NAMED]
    return f"{text}; nodes differ, and the slowest is expected of all ({'; '.join(others)})"
