"""A running job: a current or captured look at this node, and the state of the job."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclprobe.engine.collect import capture_facts
from ncclprobe.facts.files.ras import RasStatus
from ncclprobe.facts.job.meeting import Meetings
from ncclprobe.facts.job.ranks import OF_A_JOB, JobLooks, JobState, LocalRanks
from ncclprobe.facts.machine import system
from ncclprobe.host.capture import Replay, load
from ncclprobe.logs.job import of_agents, stand
from ncclprobe.logs.job.calls import confirmed
from ncclprobe.logs.read import JobFiles
from ncclprobe.model.errors import UsageError
from ncclprobe.model.layout import table
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.units import plural

_MOST_JOBS = 20


def jobs(here: LocalRanks | Absent) -> list[str]:
    """Return a table of a node's jobs, if it is unclear which one is meant."""
    if isinstance(here, Absent) or not here.others:
        return []
    return table([OF_A_JOB, *here.others[:_MOST_JOBS]])


def collectors() -> tuple[Collector, ...]:
    """Return the collectors for a running job on one node, and for the node's name."""
    return (*discover("ncclprobe.facts", Collector, {"job"}), system)


def stands(snapshots: Sequence[Snapshot]) -> JobFiles:
    """Return the state of the job that was examined on these nodes. Raises UsageError if no rank was found."""
    nodes: dict[str, tuple[LocalRanks, JobLooks]] = {}
    agents: dict[str, tuple[LocalRanks, Meetings]] = {}
    meetings: dict[str, Meetings] = {}
    for snapshot in snapshots:
        here, looks = snapshot.facts[LocalRanks], snapshot.facts[JobLooks]
        for fact in (here, looks):
            if isinstance(fact, Absent):
                raise UsageError(f"{snapshot.node}: ranks cannot be examined: {fact.why}")
        if here.others:
            some = ", ".join(row[0] for row in here.others[:_MOST_JOBS])
            raise UsageError(f"{snapshot.node} runs {len(here.others)} jobs; choose one with --pid, one of {some}")
        met = snapshot.facts.get(Meetings, Meetings())
        meetings[snapshot.node] = met = Meetings() if isinstance(met, Absent) else met
        if here.ranks:
            nodes[snapshot.node] = here, looks
        elif here.agents:
            agents[snapshot.node] = here, met
    if agents and not nodes:
        kind = f"{plural(len(agents), 'node')} with a torchrun agent but no rank"
        return JobFiles({JobState: of_agents(agents)}, (kind,))
    if not nodes:
        raise UsageError(_none(snapshots))
    number = sum(len(here.ranks) for here, _ in nodes.values())
    kind = f"{plural(number, 'rank')} of a running job on {plural(len(nodes), 'node')}"
    facts: dict[type, object] = {JobState: stand(nodes, meetings)}
    if answers := [each for _, looks in nodes.values() if (each := confirmed(looks)) is not None]:
        facts[RasStatus] = RasStatus(tuple(answers))
    return JobFiles(facts, (kind,))


def _none(snapshots: Sequence[Snapshot]) -> str:
    hidden = sum(snapshot.facts[LocalRanks].hidden for snapshot in snapshots)
    where = ", ".join(snapshot.node for snapshot in snapshots)
    others = f"; {hidden} Python processes of other users run there; attach as the job's user or as root"
    return f"no rank of a job was found on {where}{others if hidden else ''}; --pid PID names one that sets RANK itself"


def kept(paths: Sequence[str]) -> tuple[Snapshot, ...]:
    """Return the snapshots of a running job among these captures. Raises UsageError for an unreadable one."""
    found = [load(Path(path)) for path in paths]
    return tuple(capture_facts(each, collectors()) for each in found if _is_of_job(each))


def _is_of_job(capture: Replay) -> bool:
    answers: Mapping[tuple[str | int, ...], object] = capture.answers
    return any(question[0] == "ranks" for question in answers)
