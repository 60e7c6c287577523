"""The known facts of a machine by type, and why others could not be learned.

Also one fact of all nodes or ranks of a job, as a comparison takes it, and how a majority is counted.

A check with a parameter annotated ``Every[Fabric]`` is judged once for the job instead of once per node, and so is one
with ``Ranks[Seat]``. Nodes whose fact is unknown are never dropped silently: if the rest agrees, the engine makes the
verdict UNKNOWN and names them. ``Every[Fabric | Absent]`` passes them as they are.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Verdict
from ncclprobe.model.values import Struct, field, grouped

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Every(Struct, Generic[T], frozen=True):
    """One fact of every node, by node name, in the order of the nodes."""

    by_node: Mapping[str, T]

    def __len__(self) -> int:
        return len(self.by_node)

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield each node's name and fact."""
        yield from self.by_node.items()


class Ranks(Struct, Generic[T], frozen=True):
    """One fact of every rank that reported: by node, then by rank."""

    by_node: Mapping[str, Mapping[int, T]]

    def items(self) -> Iterator[tuple[str, int, T]]:
        """Yield each rank's node, number and fact."""
        for node, ranks in self.by_node.items():
            for rank, fact in ranks.items():
                yield node, rank, fact


class Vote(Struct, Generic[K], frozen=True):
    """Values grouped by the nodes that have them, the largest group first."""

    groups: Mapping[K, tuple[str, ...]] = field(default_factory=dict)

    @property
    def agreed(self) -> bool:
        """Return whether all values are equal."""
        return len(self.groups) <= 1

    @property
    def settled(self) -> bool:
        """Return whether more than half have one value, so that the others are outliers."""
        sizes = [len(group) for group in self.groups.values()]
        return bool(sizes) and 2 * sizes[0] > sum(sizes)

    @property
    def usual(self) -> K:
        """Return the value of the largest group. Raises IndexError if there are no values."""
        return next(iter(self.groups))

    @property
    def outliers(self) -> tuple[str, ...]:
        """Return the nodes that differ from the majority; empty without a majority."""
        groups = list(self.groups.values()) if self.settled else []
        return tuple(node for group in groups[1:] for node in group)


def vote(values: Mapping[str, K]) -> Vote[K]:
    """Group nodes by their value, the largest group first."""
    groups = grouped((each, node) for node, each in values.items())
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    return Vote({value: tuple(nodes) for value, nodes in ranked})


class Absent(Struct, frozen=True, tag=True):
    """A fact that could not be learned. ``refused`` is the name of the HostError behind it, if there was one."""

    why: str
    refused: str = ""


def unlearned(gaps: Iterable[Absent]) -> Unlearned:
    """Combine the reasons into one error for a check; it keeps the refusal if all share the same."""
    all_of = list(gaps)
    refused = {gap.refused for gap in all_of}
    return Unlearned("; ".join(dict.fromkeys(gap.why for gap in all_of)), refused.pop() if len(refused) == 1 else "")


def learned(facts: Mapping[type, Any], kind: type[T]) -> T | None:
    """Return the fact of this type; None: it could not be learned, or nothing asked for it."""
    fact = facts.get(kind)
    return fact if isinstance(fact, kind) else None


class Job(Struct, frozen=True):
    """The job that the user is about to run, as described on the command line. Checks take it like any other fact.

    `expect_nics`: each node must have this many fast NICs in NCCL's network. `local`: examine only this node, whatever
    the launcher sets. `met`: the ranks of a measuring run have joined, so that the listener on its port is its own rank
    0. `mixed_gpus`: nodes have different numbers of GPUs on purpose. `apart`: the nodes are judged each by itself, not
    as one job.
    """

    backend: Literal["nccl", "gloo"] = "nccl"
    expect_gpus: int | None = None
    expect_nics: int | None = None
    local: bool = False
    mixed_gpus: bool = False
    met: bool = False
    apart: bool = False


class Snapshot(Struct, frozen=True):
    """All facts of one node, by type. A value is the fact itself or ``Absent``.

    `ranks`: the own facts of each rank of this node that reported. `answers`: the node's answers by question, so that a
    report can quote what findings cite; empty if they are not kept. `taken`: when its capture was taken, in ISO 8601;
    empty: it was examined now, or the time is unknown. `pasted`: it is made from pasted texts, which show a part of a
    machine. `cut`: how much of its capture is left, if that was cut. `said`: what its own checks found, if a worker
    judged it; it then has only the facts that comparisons and reports use.
    """

    node: str
    facts: Mapping[type, Any]
    ranks: Mapping[int, Mapping[type, Any]] = field(default_factory=dict)
    answers: Mapping[tuple[str | int, ...], Any] = field(default_factory=dict)
    taken: str = ""
    pasted: bool = False
    cut: str = ""
    said: tuple[Verdict, ...] = ()
