"""Which ranks took part in a run, with what, and which of them were lost."""

from ncclprobe.errors import OUT_OF_MEMORY, NotCaptured
from ncclprobe.facts.run.asked import Ending
from ncclprobe.facts.run.samples import any_of, last
from ncclprobe.host import Host
from ncclprobe.model.measurement import Fingerprint, FirstCall
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field


class Participants(Struct, frozen=True):
    """Who measures, and with what.

    `kind`: how the ranks were started; `hosts`: of each rank, or rank 0's alone before all have met; `versions`: of
    torch and the library; `fallback`: why the times are no verdict on NCCL here (another backend though none was
    named, ranks that share a GPU), empty: they are.
    `gpus`: of each rank the identity of its GPU (PCI address or UUID; in older logs NVML's index), empty with gloo.
    `pids`: of each rank its process if it is on rank 0's host, else 0.
    """

    kind: str
    ranks: int
    hosts: tuple[str, ...]
    backend: str = "gloo"
    versions: dict[str, str | None] = field(default_factory=dict)
    nnodes: int | None = None
    fallback: str = ""
    gpus: tuple[int | str, ...] = ()
    pids: tuple[int, ...] = ()

    @property
    def nodes(self) -> int:
        """Return how many hosts there are."""
        return len(set(self.hosts))


@collector
def participants(host: Host) -> Participants:
    """Read what was last said of the ranks."""
    return last(host, "participants", Participants)


FAILED = "it failed "
"""How it begins what a rank says of itself that left for an error, and that nobody told to leave."""


class LostRank(Struct, frozen=True):
    """A rank that ended, fell silent or stood still: where, in which phase it was last seen, and what was seen."""

    rank: int
    host: str
    phase: str
    why: str

    @property
    def shortage(self) -> str:
        """Return what memory it lacked, if it left for that."""
        return self.why.partition(OUT_OF_MEMORY)[2].removesuffix(")")


class DifferingSetting(Struct, frozen=True):
    """A variable that means something else to some ranks than to others: what, with the ranks."""

    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]


class RankSettings(Struct, frozen=True):
    """The settings in which ranks differ, as they told before the first call."""

    differing: tuple[DifferingSetting, ...]


@collector
def rank_settings(host: Host) -> RankSettings:
    """Read in what the ranks' settings differ."""
    return RankSettings(last(host, "rank_settings", tuple[DifferingSetting, ...], "the ranks told no settings"))


class Arrivals(Struct, frozen=True):
    """Which ranks came to the start of a run: `expected` is the world size, `missing` the ranks never heard of.

    They were waited for `waited_s` of `allowed_s`. The processes of those that are `running` were still there, on the
    host of rank 0, when the wait was over.
    """

    expected: int
    missing: tuple[int, ...] = ()
    waited_s: float = 0.0
    allowed_s: float = 0.0
    running: tuple[int, ...] = ()

    @property
    def lost(self) -> tuple[int, ...]:
        """Return the ranks that will not come: a process that runs may, and any may before the wait is over."""
        waited = self.waited_s >= self.allowed_s
        return tuple(rank for rank in self.missing if rank not in self.running) if waited else ()


@collector
def arrivals(host: Host, ending: Ending | Absent) -> Arrivals:
    """Read what the watchdog saw of the start; without it, say why the run ended before."""
    why = f": {ending.why}" if isinstance(ending, Ending) and ending.why else ""
    return last(host, "arrivals", Arrivals, f"the ranks had not met when the run ended{why}")


class Attendance(Struct, frozen=True):
    """Which ranks stayed to the end of a run.

    `lost` are those that something can be said against. `stalled` is for a run that hangs without a rank to blame: the
    phase that all ranks entered, and none left. Empty: that did not happen.
    """

    ranks: int
    lost: tuple[LostRank, ...] = ()
    stalled: str = ""


@collector
def attendance(host: Host, arrivals: Arrivals | Absent, participants: Participants | Absent) -> Attendance:
    """Read what the watchdog saw of the end; ranks that the run went on without are lost as well.

    All ranks are taken to have stayed where they met and the watchdog saw none leave. Before they met, only a rank that
    was lost tells anything.
    """
    left_behind = any_of(host, "lost", LostRank)
    seen = any_of(host, "attendance", Attendance)
    if not seen and not left_behind and isinstance(arrivals, Absent):
        raise NotCaptured(arrivals.why)
    ranks = participants.ranks if isinstance(participants, Participants) else 0
    found = seen[-1] if seen else Attendance(arrivals.expected if isinstance(arrivals, Arrivals) else ranks)
    last_word = {lost.rank: lost for lost in (*left_behind, *found.lost, *left_behind)}
    return Attendance(found.ranks, tuple(last_word.values()), found.stalled)


class FirstCalls(Struct, frozen=True):
    """What the first calls of a job cost."""

    cost: FirstCall


@collector
def first_calls(host: Host) -> FirstCalls:
    """Read the times of the first calls."""
    return FirstCalls(last(host, "first_call", FirstCall))


class MeasuredOn(Struct, frozen=True):
    """On what machine and software the run measured, by rank 0's node."""

    fingerprint: Fingerprint


@collector
def measured_on(host: Host) -> MeasuredOn:
    """Read the fingerprint."""
    return MeasuredOn(last(host, "fingerprint", Fingerprint))
