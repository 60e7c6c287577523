"""What a run was asked to measure, and how it ended: what is missing can only be told by what was asked."""

from typing import Literal

from ncclprobe.facts.run.samples import any_of, last
from ncclprobe.host import Host
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field
from ncclprobe.ops import OPS

What = Literal["collectives", "pairs", "copies", "affinity", "training", "ladder"]


class Asked(Struct, frozen=True, kw_only=True):
    """What this run was asked for; the first sample of every run log.

    `what`: the parts of the run, in the order in which they are measured.
    `sizes` are in bytes, of collectives those asked for; `itemsize` is of one element. `groups`, `steps`: which groups
    and training strategies. `nic_traffic`: whether to find out which NICs carry the bytes. `backend`: null where the
    user named none. `expect`, `baseline`: the files to judge by; `require_judged`: numbers without a verdict are not
    enough. `notes`: how the request was understood. `accepts`: whether the node itself is fit was asked too, as the
    doctor is asked; a node without a GPU is then judged for NCCL, unless the user named gloo.
    """

    what: tuple[What, ...] = ("collectives",)
    ops: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    itemsize: int = 4
    groups: bool = False
    steps: tuple[str, ...] = ()
    nic_traffic: bool = False
    backend: str | None = None
    expect: str | None = None
    baseline: str | None = None
    require_judged: bool = False
    notes: tuple[str, ...] = ()
    accepts: bool = False

    def rows(self, ranks: int) -> frozenset[tuple[str, int, str]]:
        """The rows to be measured with so many ranks: operation, printed size, place."""
        if "collectives" not in self.what:
            return frozenset()
        shapes = ((op, OPS[op].shape(nbytes, ranks, self.itemsize).nbytes) for op in self.ops for nbytes in self.sizes)
        return frozenset((op, nbytes, place) for op, nbytes in shapes if nbytes for place in OPS[op].places)


@collector
def asked(host: Host) -> Asked:
    """Read the request."""
    return last(host, "asked", Asked)


class Ending(Struct, frozen=True):
    """Whether the run came to its end. `why`: what cut it short; empty: nothing did."""

    why: str = ""


@collector
def ending(host: Host) -> Ending:
    """Read the end of the log."""
    return Ending(last(host, "end", str))


class Skipped(Struct, frozen=True):
    """What was asked for and left out, each with its cause."""

    rows: tuple[SkippedRow, ...] = ()


@collector
def skipped(host: Host) -> Skipped:
    """Read what was left out; known to be nothing where the run left nothing out."""
    return Skipped(any_of(host, "skipped", SkippedRow))


class Notes(Struct, frozen=True):
    """Notes on the run for its reader, in addition to the verdicts, in the order in which they arose."""

    texts: tuple[str, ...] = field(default=())


@collector
def notes(host: Host) -> Notes:
    """Read the notes."""
    return Notes(any_of(host, "note", str))
