"""What nodes say, by majority: which nodes differ, in words, and which nodes are machines of one kind."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from ncclprobe.facts.machine import Machine, System
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.findings import Finding, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent, Every, Job, Vote

T = TypeVar("T")
K = TypeVar("K")
_MOST_GROUPS = 5  # in a message
_LONGEST = 60  # letters of a value in a headline


@applies
def several_with_gpus(nodes: Every[System | Absent], job: Job) -> bool:
    """to jobs on GPUs (--backend nccl), if several nodes were examined."""
    return job.backend == "nccl" and len(nodes) > 1


def describe(ballot: Vote[K], say: Callable[[K], str] = str) -> str:
    """Name the nodes that differ: ``1 of 64 nodes differs (n3: 7 GPUs; the others: 8 GPUs)``.

    If no value has the majority, say so.
    """
    groups = list(ballot.groups.items())
    total = sum(len(nodes) for _, nodes in groups)
    clear = ballot.settled
    shown = groups[1 if clear else 0 :]
    parts = [f"{fold(nodes)}: {say(value)}" for value, nodes in shown[:_MOST_GROUPS]]
    if more := sum(len(nodes) for _, nodes in shown[_MOST_GROUPS:]):
        parts.append(f"{more} more nodes with other values")
    if not clear:
        return f"no majority among {total} nodes ({'; '.join(parts)})"
    count = len(ballot.outliers)
    differ = "differs" if count == 1 else "differ"
    return f"{count} of {total} nodes {differ} ({'; '.join(parts)}; the others: {say(groups[0][0])})"


def differing(
    ballot: Vote[K], say: Callable[[K], str] = str, what: str = "", before: str = "", after: str = ""
) -> dict[str, Any]:
    """Return message, headline and nodes of a finding about nodes that differ.

    `say` words a value, and names its kind if `what` is empty; `before` and `after` frame the message.
    """
    shown = list(ballot.groups.items())[: _MOST_GROUPS if len(ballot.groups) <= _MOST_GROUPS else _MOST_GROUPS - 1]
    groups = [(value, fold(nodes)) for value, nodes in shown]
    if ballot.settled:
        groups = [*groups[1:], (groups[0][0], "the others")]
    told = [f"{_cut(say(value))} on {nodes}" for value, nodes in groups]
    if len(ballot.groups) > len(shown):
        told.append("other values on more nodes")
    headline = f"{what} {', '.join(told)}".strip()
    message = f"{before}{describe(ballot, say)}{after}"
    return {"message": message, "headline": headline, "nodes": ballot.outliers}


def unlike(
    ballot: Vote[K], say: Callable[[K], str] = str, what: str = "", *, subject: str = "",
    tell: Callable[..., Finding] = warn, before: str = "", after: str = "", **details: Any,
) -> Iterator[Finding]:  # fmt: skip
    """Yield what :func:`differing` returns if nodes differ, as a finding on them, or on `subject`."""
    if not ballot.agreed:
        told = differing(ballot, say, what, before, after)
        yield tell(subject or named(ballot.outliers), **told, **details)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def kinds(machines: Every[Machine | Absent], gpus: Every[Gpus | Absent]) -> dict[str, tuple[str, str]]:
    """Return each node's kind: its product and its GPUs. What is not known of a node is taken from most others."""
    values = {node: (_product(machine), _models(gpus.by_node.get(node))) for node, machine in machines.items()}
    usual = [kind for kind, _ in Counter(values.values()).most_common()]
    full = {kind: next((known for known in usual if all(known) and _fits(kind, known)), kind) for kind in usual}
    return {node: full[kind] for node, kind in values.items()}


def _fits(kind: tuple[str, str], known: tuple[str, str]) -> bool:
    return all(not mine or mine == theirs for mine, theirs in zip(kind, known, strict=True))


def _product(machine: Machine | Absent) -> str:
    return "" if isinstance(machine, Absent) else f"{machine.dmi.vendor} {machine.dmi.product}".strip()


def _models(gpus: Gpus | Absent | None) -> str:
    known = gpus.all if isinstance(gpus, Gpus) else ()
    return " and ".join(sorted({gpu.name for gpu in known if gpu.name}))


def split_by_kind(values: Mapping[str, T], kind: Mapping[str, object]) -> list[dict[str, T]]:
    """Split values by kind of machine; a kind with one node is left out."""
    parts: dict[object, dict[str, T]] = {}
    for node, value in values.items():
        parts.setdefault(kind.get(node), {})[node] = value
    return [part for part in parts.values() if len(part) > 1]


def named(nodes: Collection[str]) -> str:
    """Return the subject of a finding about whole nodes."""
    return fold(nodes) or "nodes"
