"""Where bytes went in a run, and what it measured besides collectives: copies, affinity, groups and training steps."""

from ncclprobe.facts.run.samples import any_of, every, last
from ncclprobe.host import Host
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.registry import collector
from ncclprobe.model.traffic import AffinityRow, CopyRow, GroupRow, LadderRow, OperationTraffic, StepRow
from ncclprobe.model.values import Struct, field


class NicTraffic(Struct, frozen=True):
    """Which NICs carried the bytes of which operation; empty: nothing was to leave a node."""

    rows: tuple[OperationTraffic, ...]


@collector
def nic_traffic(host: Host) -> NicTraffic:
    """Read what the NICs counted."""
    return NicTraffic(last(host, "nic_traffic", tuple[OperationTraffic, ...], "no NIC was counted"))


class Copies(Struct, frozen=True):
    """The copies within nodes that were measured, without verdicts. At least one."""

    rows: tuple[CopyRow, ...]


@collector
def copies(host: Host) -> Copies:
    """Read the copies."""
    return Copies(last(host, "copies", tuple[CopyRow, ...], "no copy was measured"))


class ExpectedCopies(Struct, frozen=True):
    """What the run expected of copies, by node and kind (``host``, ``d2d``); a node that is left out: of none."""

    nodes: dict[str, dict[str, Expectation]] = field(default_factory=dict)


@collector
def expected_copies(host: Host) -> ExpectedCopies:
    """Read what the run expected of copies."""
    found = any_of(host, "expected_copies", ExpectedCopies)
    return found[-1] if found else ExpectedCopies()


class Affinities(Struct, frozen=True):
    """The ranks whose processors were compared with others; empty: every rank already has the right ones."""

    rows: tuple[AffinityRow, ...]


@collector
def affinities(host: Host) -> Affinities:
    """Read the comparison."""
    return Affinities(last(host, "affinity", tuple[AffinityRow, ...], "no affinity was compared"))


class Groups(Struct, frozen=True):
    """The groups of a hybrid-parallel job that were measured, a row per kind. At least one."""

    rows: tuple[GroupRow, ...]


@collector
def groups(host: Host) -> Groups:
    """Read the groups."""
    return Groups(every(host, "group", GroupRow, "no group was measured"))


class Steps(Struct, frozen=True):
    """The training steps that were replayed; empty: none."""

    rows: tuple[StepRow, ...]


@collector
def steps(host: Host) -> Steps:
    """Read the steps."""
    return Steps(any_of(host, "step", StepRow))


class Ladder(Struct, frozen=True):
    """The rungs from one rank to the whole job, without verdicts. At least one."""

    rows: tuple[LadderRow, ...]


@collector
def ladder(host: Host) -> Ladder:
    """Read the rungs."""
    return Ladder(every(host, "rung", LadderRow, "no rung of the ladder was measured"))
