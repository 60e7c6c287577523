"""The ranks of a job on a node, two snapshots of each rank's and its GPU's activity, and the state of
all nodes' ranks.
"""

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from typing import TypeVar

from ncclprobe.facts import traffic
from ncclprobe.facts.field import attempt
from ncclprobe.facts.files.flight_child import read
from ncclprobe.facts.files.flight_records import FlightDump, FlightFrame, FlightRecords, read_dump, records
from ncclprobe.facts.files.ras import RasAnswer, read_answer
from ncclprobe.facts.job.gpus import LiveGpu, gpus, xids
from ncclprobe.facts.job.meeting import LOOPBACK, Agent, Connection, Meetings, agent, decoded, meetings
from ncclprobe.facts.job.process_state import LOADER, Child, LiveRank, suspects
from ncclprobe.facts.job.spawned import members, numbering
from ncclprobe.facts.job.stacks import C10D, ThreadPlace, ThreadStack, stack
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.launcher import TORCH, Launch, detect
from ncclprobe.facts.traffic import Traffic
from ncclprobe.host import SAMPLE, Host
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.host.rank_servers import PIPE
from ncclprobe.model import bounds
from ncclprobe.model.causes import JobVerdict, RankClass
from ncclprobe.model.errors import HostError, OutOfTime
from ncclprobe.model.hostlist import fold_ranks
from ncclprobe.model.registry import collector
from ncclprobe.model.report import when
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import USER_HZ
from ncclprobe.model.values import Struct, field, grouped, replace

_NAMES = (TORCH[0], "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PET_NODE_RANK")
"""A process without any of these was not started as a rank, or its program set RANK itself; --pid finds it."""


class AskedJob(Struct, frozen=True):
    """Command-line options: the process (0: none), whether to read stacks, and whether to write to torch's pipe."""

    pid: int = 0
    stacks: bool = False
    dumps: bool = False


class JobProcess(Struct, frozen=True):
    """One rank. `start` is its start time in ticks since boot, which shows whether its pid was reused.

    `rank` is None if its environment does not have it. `job` is the same for all ranks of one job. `twins` are other
    processes that were started with the same rank number.
    """

    pid: int
    start: int
    name: str
    rank: int | None
    launch: Launch
    job: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    twins: tuple[int, ...] = ()


class LocalRanks(Struct, frozen=True):
    """The ranks of the job on this node, by rank; `absent` local ranks have no process.

    `others` are the jobs on this node if it is unclear which one is meant: see OF_A_JOB. `hidden` Python processes
    belong to other users. `late`: processes whose environment could not be read, and why. `agents` of torchrun have
    started no rank. `gone`: the number of further ranks that have exited, if their numbers are unknown.
    """

    ranks: tuple[JobProcess, ...]
    absent: tuple[int, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    hidden: int = 0
    late: tuple[str, ...] = ()
    time_s: float = 0.0
    agents: tuple[Agent, ...] = ()
    gone: int = 0


class _Process(Struct, frozen=True):
    pid: int
    parent: int
    start: int
    name: str
    user: int
    library: bool | None
    python: bool
    variables: dict[str, str]
    agent: dict[str, str] | None = None
    age_s: float = 0.0
    owner: str = ""
    program: str = ""
    state: str = ""


class _Answer(Struct, frozen=True):
    time_s: float
    processes: tuple[_Process, ...]
    hidden: int = 0
    late: tuple[str, ...] = ()


@collector
def asked_job(host: Host) -> AskedJob:
    """Read the options of the command line."""
    try:
        return AskedJob(**json.loads(host.ask(SAMPLE, "attach")))
    except HostError:
        return AskedJob()


@collector
def local_ranks(host: Host, asked: AskedJob) -> LocalRanks:
    """Find the ranks of the job on this node."""
    answer: _Answer = decoded(host.ask("ranks", asked.pid, *_NAMES), _Answer)
    jobs = _join_parts(_jobs(answer.processes), answer.processes)
    if not jobs and not asked.pid and not any(each.agent is not None for each in answer.processes):
        jobs, answer = _spawned(host, answer)
    if asked.pid:
        own = {job: ranks for job, ranks in jobs.items() if _is_related(asked.pid, ranks, answer.processes)}
        beneath = _jobs(answer.processes, asked.pid)
        helpers = _many(own) < _many(beneath) and all(each.rank is None for ranks in beneath.values() for each in ranks)
        jobs = beneath if helpers or not own else own
    elif len(jobs) > 1:
        jobs = _own_step_job(jobs, attempt(lambda: host.ask("env"))) or jobs
    jobs = {job: _ranks_of_launcher(host, ranks, answer.processes, asked) or ranks for job, ranks in jobs.items()}
    ranks, ended, gone = _assign_numbers(host, next(iter(jobs.values()), ()), answer.processes, asked.stacks)
    return LocalRanks(
        ranks,
        tuple(sorted({*_absent_ranks(ranks), *ended})),
        tuple(_job_row(each, answer) for each in jobs.values()) if len(jobs) > 1 else (),
        answer.hidden,
        answer.late,
        answer.time_s,
        () if ranks else tuple(_agents(answer.processes, asked.pid)),
        gone,
    )


def _spawned(host: Host, before: _Answer) -> tuple[dict[str, tuple[JobProcess, ...]], _Answer]:
    """Return the jobs whose ranks have no variables: children of one process, the first of which serves a store.

    If none serves a store, rank 0 may never have reached init_process_group. Then return, without numbers, the children
    of a process with torch. Also return all processes, or `before` if they could not be listed.
    """
    said = attempt(lambda: host.ask("ranks", _EVERY))
    if isinstance(said, Absent):
        return {}, before
    answer: _Answer = decoded(said, _Answer)
    by_parent = grouped((each.parent, each) for each in answer.processes if each.library and each.agent is None)
    found, unnumbered, own = {}, {}, {each.pid for each in answer.processes if each.library}
    for parent, children in [*by_parent.items()][: bounds.NODE_RANKS]:
        jobs = _jobs(children, parent) if len(children) > 1 else {}
        ranks, *_ = _assign_numbers(host, tuple(chain.from_iterable(jobs.values())), answer.processes)
        if ranks and ranks[0].rank is not None:
            found[ranks[0].job] = ranks
        elif len(ranks) > 1 and parent in own:
            unnumbered[f"{ranks[0].job} {parent}"] = ranks
    return found or unnumbered, replace(answer, hidden=before.hidden, late=before.late)


def _assign_numbers(
    host: Host, ranks: tuple[JobProcess, ...], processes: Sequence[_Process], stacks: bool = False
) -> tuple[tuple[JobProcess, ...], tuple[int, ...], int]:
    """Assign numbers to ranks without them, from their program's variables or their order of start, if known.

    Also return the numbers of ranks that have exited, or how many more have if their numbers are unknown.
    """
    if len(ranks) < 2 or any(each.rank is not None for each in ranks):
        return ranks, (), 0
    of_job = members(host, sorted(_pids(ranks)))
    ranks = tuple(each for each in ranks if each.pid in of_job)
    by_start = sorted(ranks, key=lambda each: (each.start, each.pid))
    parents = {each.pid: each.parent for each in processes}
    parent, first = parents[by_start[0].pid], by_start[0].start
    ended = [(each.start, each.pid) for each in processes if each.state == "Z" and each.python]
    ended = [each for each in ended if parents[each[1]] == parent and abs(each[0] - first) < _TOGETHER_TICKS]
    started = [pid for _, pid in sorted([*ended, *((each.start, each.pid) for each in ranks)])]
    found = numbering(host, _pids(by_start), started, parent, stacks)
    address, _, port = found.address.rpartition(":")
    meets = {"kind": "environment", "master_addr": address, "master_port": int(port)} if address else {}
    if not found.numbers:
        age_s = min(each.age_s for each in processes if each.pid in _pids(ranks))
        here = address.startswith(_OWN) and age_s >= _STARTED_S
        return ranks, (), max(found.world - len(ranks), 0) if here else 0
    by_start = [each for each in by_start if each.pid in found.numbers]
    launches = [
        replace(each.launch, rank=n, local_rank=n, world_size=found.world or None, **meets)
        for each in by_start
        for n in [found.numbers[each.pid]]
    ]
    made = [replace(each, rank=of.rank, launch=of) for each, of in zip(by_start, launches, strict=True)]
    return tuple(sorted(made, key=lambda each: each.rank or 0)), found.ended, 0


def _ranks_of_launcher(
    host: Host, ranks: Sequence[JobProcess], processes: Sequence[_Process], asked: AskedJob
) -> tuple[JobProcess, ...]:
    """Return the processes that the only rank of a job on this node has started, if they are the ranks: its variables
    are then those of its node, and each of them has set its own; empty: they are not.
    """
    if len(ranks) != 1 or ranks[0].rank is None:
        return ()
    bare = [replace(each, variables={k: v for k, v in each.variables.items() if k not in TORCH}) for each in processes]
    own = [each for each in bare if each.pid != ranks[0].pid]
    beneath = tuple(chain.from_iterable(_jobs(own, ranks[0].pid).values()))
    store, own_calls = f":{ranks[0].launch.master_port}", attempt(lambda: _connections(host, 0, (ranks[0].pid,)))
    joined = not isinstance(own_calls, Absent) and any(each.peer.endswith(store) for each in own_calls)
    if len(beneath) < 2 or joined:  # it is a rank itself, and has workers that meet each other
        return ()
    found, *_ = _assign_numbers(host, beneath, processes, asked.stacks)
    return found if len(found) > 1 and found[0].rank is not None else ()


def _own_step_job(jobs: dict[str, tuple[JobProcess, ...]], env: str | Absent) -> dict[str, tuple[JobProcess, ...]]:
    """Return the job in whose Slurm allocation this command runs, if exactly one matches."""
    variables: dict[str, str | None] = {} if isinstance(env, Absent) else decoded(env, dict[str, str | None])
    own = variables.get(SLURM_JOB)
    found = {job: ranks for job, ranks in jobs.items() if own and ranks[0].settings.get(SLURM_JOB) == own}
    return found if len(found) == 1 else {}


def _agents(processes: Sequence[_Process], named: int) -> Iterator[Agent]:
    """Yield torchrun's agents on this node; with `named`, only an agent that is this process or that it has started."""
    above = {each.pid: each.parent for each in processes}
    for each in processes:
        if each.agent is not None and (not named or named in (each.pid, *_ancestors(each.pid, above))):
            yield agent(each.pid, each.age_s, each.agent, each.variables)


@collector
def places_met(host: Host, here: LocalRanks) -> Meetings:
    """Examine the stores where the job's ranks, or agents without ranks, rendezvous."""
    launches = [each.launch for each in here.ranks]
    places = [(each.master_addr, each.master_port) for each in launches if each.master_addr and each.master_port]
    places += [(each.address, each.port) for each in here.agents if each.address]
    return meetings(host, places[: bounds.NODE_RANKS], _pids(here.ranks), [each.pid for each in here.agents])


def _jobs(processes: Sequence[_Process], named: int = 0) -> dict[str, tuple[JobProcess, ...]]:
    """Group the ranks by job; with `named`, use what this process has started, or itself, whatever the variables."""
    launches = {each.pid: detect(each.variables) for each in processes}
    chosen = _started_by(named, processes) if named else [p for p in processes if launches[p.pid].rank is not None]
    chosen = [each for each in chosen if each.agent is None]
    by_rank = grouped(((_job(p, launches[p.pid]), -p.pid if named else launches[p.pid].rank or 0), p) for p in chosen)
    jobs: dict[str, list[JobProcess]] = {}
    for (job, _), of_rank in by_rank.items():
        if (found := _rank_process(of_rank)) is not None:
            launch = launches[found.pid]
            twins = () if named else tuple(_twins(found, of_rank))
            made = JobProcess(found.pid, found.start, found.name, launch.rank, launch, job, found.variables, twins)
            jobs.setdefault(job, []).append(made)
    return {job: tuple(sorted(each, key=lambda r: (r.rank is None, r.rank, r.pid))) for job, each in jobs.items()}


def _join_parts(
    jobs: dict[str, tuple[JobProcess, ...]], processes: Sequence[_Process]
) -> dict[str, tuple[JobProcess, ...]]:
    """Join the parts of a job whose ranks were given different masters, such as a wrong port."""
    parents = {each.pid: each.parent for each in processes}
    found: dict[str, tuple[JobProcess, ...]] = {}

    def kind(job: str) -> tuple[str, int]:
        starters = {parents[each.pid] for each in jobs[job]}
        return job.partition(" environment")[0], starters.pop() if len(starters) == 1 else 0

    for parts in grouped((kind(job), job) for job in jobs).values():
        ranks = sorted((each for job in parts for each in jobs[job]), key=lambda each: each.rank or 0)
        if len(parts) > 1 and all(map(_is_part, map(jobs.__getitem__, parts))) and _form_one_job(ranks, parents):
            found[ranks[0].job] = tuple(ranks)
        else:
            found |= {job: jobs[job] for job in parts}
    return found


def _is_part(ranks: Sequence[JobProcess]) -> bool:
    """Return whether hand-started ranks are fewer than their environment announces for this node."""
    of = ranks[0].launch
    return of.kind == "environment" and len(ranks) < (of.local_world_size or of.world_size or 0)


def _form_one_job(ranks: Sequence[JobProcess], parents: Mapping[int, int]) -> bool:
    """Return whether ranks with different masters form one job: a whole world, or children of one process."""
    numbers, launches = [each.rank for each in ranks], [each.launch for each in ranks]
    whole = numbers == list(range(len(ranks))) and {each.world_size for each in launches} == {len(ranks)}
    above = {parents[each.pid] for each in ranks}
    by_one = (
        len(above) == 1
        and above != {1}
        and (len({each.master_addr for each in launches}) == 1 or len({each.master_port for each in launches}) == 1)
    )
    apart_ticks = max(each.start for each in ranks) - min(each.start for each in ranks)
    return len({*numbers}) == len(ranks) and (whole or by_one) and apart_ticks < _TOGETHER_TICKS


def _started_by(named: int, processes: Sequence[_Process]) -> Sequence[_Process]:
    """Return the topmost torch or NCCL processes that `named` started; their children are workers and helpers."""
    above = {each.pid: each.parent for each in processes}
    of_agents = {pid for each in processes if each.agent is not None for pid in _ancestors(each.pid, above)}
    beneath = [each for each in processes if named in _ancestors(each.pid, above) and each.agent is None]
    with_library = {each.pid for each in beneath if each.library}
    tops = [each for each in beneath if each.library and not _ancestors(each.pid, above) & with_library]
    return tops or [each for each in processes if each.pid == named and named not in of_agents]


def _many(jobs: Mapping[str, Sequence[JobProcess]]) -> int:
    return sum(map(len, jobs.values()))


def _job(process: _Process, launch: Launch) -> str:
    where = f"{launch.master_addr}:{launch.master_port}" if launch.master_addr else ""
    return " ".join(filter(None, (f"user {process.user}", launch.kind, launch.run_id, where)))


def _rank_process(processes: Sequence[_Process]) -> _Process | None:
    """Return the rank among the processes with its environment: the topmost that has mapped torch or NCCL.

    Its children, such as workers of a data loader, have the same environment; a shell or launcher above it maps
    neither. If none has mapped them, return a Python process that may still import them; a launcher that is not Python
    is not a rank. A worker that has outlived its rank, and still holds its sockets, is not the rank.
    """
    processes = [each for each in processes if each.name != LOADER]
    for chosen in ([p for p in processes if p.library], [p for p in processes if p.python and p.library is not False]):
        here = {p.pid for p in chosen}
        above = {p.pid: p.parent for p in processes}
        top = [p for p in chosen if not _ancestors(p.pid, above) & here]
        if top:
            return min(top, key=lambda p: p.start)
    starting = [p for p in processes if p.python and "RANK" in p.variables]
    return min(starting, key=lambda p: p.start) if starting else None


def _twins(rank: _Process, processes: Sequence[_Process]) -> Iterator[int]:
    """Yield the processes beside a rank that were started with its number and run the same program.

    Children of the rank do not count, and neither do orphaned workers of another rank.
    """
    above = {each.pid: each.parent for each in processes}
    for each in processes:
        own = each.library and each.pid != rank.pid and not _ancestors(each.pid, above) & above.keys()
        if own and 1 not in (each.parent, rank.parent) and (each.name, each.program) == (rank.name, rank.program):
            yield each.pid


def _ancestors(pid: int, above: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    while (pid := above.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


def _is_related(pid: int, ranks: Sequence[JobProcess], processes: Sequence[_Process]) -> bool:
    """Return whether `pid` is a rank of this job, or an ancestor or descendant of one."""
    above, own = {p.pid: p.parent for p in processes}, {each.pid for each in ranks}
    return pid in own or bool(_ancestors(pid, above) & own) or any(pid in _ancestors(each, above) for each in own)


def _absent_ranks(ranks: Sequence[JobProcess]) -> tuple[int, ...]:
    """Return the local ranks that the launcher started, according to the others, and that have no process."""
    numbers = [(each.rank, each.launch.local_rank) for each in ranks]
    bases = {rank - local for rank, local in numbers if rank is not None and local is not None}
    count = next((each.launch.local_world_size for each in ranks if each.launch.local_world_size), 0)
    if not count:
        return _absent_by_hand(ranks, bases)
    if len(bases) != 1:
        return ()
    (base,) = bases
    return tuple(n for n in range(base, base + min(count, bounds.NODE_RANKS)) if n not in {rank for rank, _ in numbers})


def _absent_by_hand(ranks: Sequence[JobProcess], bases: Collection[int]) -> tuple[int, ...]:
    """Return the missing ranks of a job whose number of local ranks is unknown.

    All ranks are local if they rendezvous at the loopback. Otherwise, only ranks between two known ones can be missing,
    if the known local ranks are consistent.
    """
    known = {each.rank for each in ranks if each.rank is not None}
    if not known or not all(each.launch.kind == "environment" for each in ranks):
        return ()
    if all((each.launch.master_addr or "").startswith(_OWN) for each in ranks):
        return tuple(n for n in range(min(ranks[0].launch.world_size or 0, bounds.NODE_RANKS)) if n not in known)
    between = len(bases) == 1 and all(each.launch.local_rank is not None for each in ranks)
    return tuple(n for n in range(min(known), max(known)) if n not in known) if between else ()


OF_A_JOB = ("--pid", "user", "ranks", "command", "since (UTC)", "master")


def _job_row(ranks: Sequence[JobProcess], answer: _Answer) -> tuple[str, ...]:
    """Return a job as a row of OF_A_JOB."""
    first = ranks[0]
    at = next((each for each in answer.processes if each.pid == first.pid), None)
    master = f"{first.launch.master_addr}:{first.launch.master_port}" if first.launch.master_addr else "–"
    numbers = fold_ranks([each.rank for each in ranks if each.rank is not None]).rpartition(" ")[2] or str(len(ranks))
    owner, program, since = ("–",) * 3
    if at is not None:
        owner, program, since = at.owner or str(at.user), at.program or at.name, when(answer.time_s - at.age_s)
    return str(first.pid), owner, numbers, program, since, master


K = TypeVar("K")
T = TypeVar("T")
BETWEEN_S, UNTIMED_S = 1.0, 5.0
_OWN = (*LOOPBACK, "localhost")
_TOGETHER_TICKS = 300 * USER_HZ
"""The ranks of one job start within this time."""
_STARTED_S = 10.0
"""For this long after one rank has started, others may still be starting."""
SLURM_JOB = "SLURM_JOB_ID"
_RAS, _RAS_DEFAULT = "NCCL_RAS_ADDR", "localhost:28028"
_AT_ONCE, _MOST_CHILDREN = 16, 6
_EVERY = -1
"""In place of a pid that this process waits for: any process that it has started."""
_RECORDS = {PIPE, "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}


class JobLook(Struct, frozen=True):
    """One snapshot of the ranks, in their order. `servers`: why a rank's records are unknown; empty: they are known.

    `stacks` are those of the first threads, innermost frame first, if they were requested. `of_children`, in the second
    snapshot, are the stacks of stuck children. `ras` is NCCL's RAS report, `traffic` the counters of the node's NICs,
    `gpus` NVML's state. `threads` are the positions of the other threads of each program whose stacks were read.
    """

    processes: tuple[LiveRank | Absent, ...] = ()
    records: FlightRecords = FlightRecords(())
    servers: tuple[str, ...] = ()
    stacks: tuple[tuple[FlightFrame, ...] | Absent, ...] = ()
    ras: RasAnswer | Absent = Absent("it was not asked")
    connections: tuple[Connection, ...] | Absent = Absent("they were not asked for")
    traffic: Traffic = Traffic()
    of_children: Mapping[int, tuple[FlightFrame, ...]] = field(default_factory=dict)
    gpus: tuple[LiveGpu, ...] | Absent = Absent("they were not asked for")
    threads: tuple[tuple[ThreadPlace, ...], ...] = ()


class JobLooks(Struct, frozen=True):
    """Two snapshots of a node's ranks: a second apart, or longer if nothing shows how long a rank has waited.

    `interfaces` maps the node's addresses to interfaces. `xids` are from this boot; they are read if NVML answers.
    """

    first: JobLook
    second: JobLook
    interfaces: Mapping[str, str] | Absent = Absent("they were not asked for")
    xids: tuple[Event, ...] | Absent = Absent("there is no GPU here")


@collector
def looks(host: Host, here: LocalRanks, asked: AskedJob) -> JobLooks:
    """Take two snapshots of every rank of the job on this node."""
    if here.others:
        return JobLooks(JobLook(), JobLook())
    with LimitedChild("ncclprobe.facts.files.flight_child") as child:
        return _both_looks(host, here, asked, cache(lambda said: _decode_records(child, said)))


def _both_looks(host: Host, here: LocalRanks, asked: AskedJob, dump: Callable[[str], FlightDump | str]) -> JobLooks:
    first = _look(host, here.ranks, 1, asked, dump)  # a rank that stands says the same at both: it is read once
    timed = first.records.dumps or any(isinstance(p, LiveRank) and p.still_s is not None for p in first.processes)
    host.ask("wait", str(BETWEEN_S if timed else UNTIMED_S))
    second = _look(host, here.ranks, 2, asked, dump)
    interfaces = attempt(lambda: _interfaces(host.ask("psutil", "net_if_addrs")))
    if isinstance(second.gpus, Absent):
        return JobLooks(first, second, interfaces)
    return JobLooks(first, second, interfaces, attempt(lambda: xids(host)))


def _look(
    host: Host, ranks: Sequence[JobProcess], number: int, asked: AskedJob, dump: Callable[[str], FlightDump | str]
) -> JobLook:
    # Writing its records down is work of a rank: between the states of both looks nothing of it must lie.
    at_once = bounds.NODE_RANKS if asked.dumps else _AT_ONCE  # torch is waited for, of all ranks together
    answers = _each(ranks, lambda rank: _records(host, rank, 1, asked), at_once) if number == 1 else []
    states = [_learn_in_time(lambda at=rank: _state(host, at, number)) for rank in ranks]  # type: ignore[misc]
    children = [child.pid for state in states if isinstance(state, LiveRank) for child in state.children]
    answers = answers or _each(ranks, lambda rank: _records(host, rank, number, asked), at_once)
    found = [
        (rank, _rank_records(rank, dump(said)) if isinstance(said, str) else said.why)
        for rank, said in zip(ranks, answers, strict=True)
    ]
    stacks = _each(ranks[: bounds.JOB_STACKS], lambda rank: stack(host, rank.pid, number)) if asked.stacks else []
    return JobLook(
        tuple(states),
        records((_dump_name(rank), each) for rank, each in found if isinstance(each, FlightDump)),
        tuple("" if isinstance(each, FlightDump) else each for _, each in found),
        tuple(each if isinstance(each, Absent) else each.frames for each in stacks),
        attempt(lambda: read_answer(f"NCCL RAS, look {number}", _ras_answer(host, ranks, number).encode())),
        attempt(lambda: _connections(host, number, (*_pids(ranks), *children))),
        traffic.read(host, number),
        dict(_children_stacks(host, states, stacks)) if number > 1 else {},
        attempt(lambda: gpus(host, _pids(ranks), number)),
        tuple(() if isinstance(each, Absent) else each.others for each in stacks),
    )


def _children_stacks(
    host: Host, states: Sequence[LiveRank | Absent], stacks: Sequence[ThreadStack | Absent]
) -> Iterator[tuple[int, tuple[FlightFrame, ...]]]:
    """Yield the stacks of processes that ranks outside a collective have started, first of those that cannot go on."""
    held = [
        child.pid
        for state, of in zip(states, stacks, strict=False)
        if isinstance(state, LiveRank) and not _in_collective(of)
        for child in [*dict.fromkeys((*suspects(state), *filter(_is_python, state.children)))][:_MOST_CHILDREN]
    ]
    read = zip(held, _each(held, lambda pid: stack(host, pid, 2)), strict=True)
    yield from ((pid, found.frames) for pid, found in read if isinstance(found, ThreadStack) and found.frames)


def _in_collective(found: ThreadStack | Absent) -> bool:
    return isinstance(found, ThreadStack) and any(frame.filename.endswith(C10D) for frame in found.frames)


def _is_python(child: Child) -> bool:
    return child.name.startswith(("python", "pt_"))


def _records(host: Host, rank: JobProcess, number: int, asked: AskedJob) -> str | Absent:
    """Return a rank's flight records, as JSON or base64, or why they are unknown."""
    said = _learn_in_time(lambda: host.ask("server", rank.pid, "fr_trace_json", number))
    if isinstance(said, str) or rank.rank is None:
        return said
    if asked.dumps:
        written = _learn_in_time(lambda: host.ask("dump", rank.pid, rank.rank or 0, number))
        return Absent(f"{said.why}; {written.why}", said.refused) if isinstance(written, Absent) else written
    if number == 1 or not rank.settings.keys() & _RECORDS:
        return said
    left = _learn_in_time(lambda: host.ask("left_dump", rank.pid, rank.rank or 0))
    lies = "" if isinstance(left, Absent) else f"; it has written flight records: `ncclprobe explain {left}`"
    pipe = f"; --dumps asks for its records through its {PIPE}" if PIPE in rank.settings else ""
    return Absent(f"{said.why}{lies}{pipe}", said.refused)


def _decode_records(child: LimitedChild, said: str) -> FlightDump | str:
    """Decode flight records: JSON in this process, a pickle in the child that reads those of files."""
    if said[:1] in ("{", "["):
        return read(said)
    try:
        return read_dump(child, base64.b64decode(said, validate=True))
    except ValueError:
        return read(said)


def _rank_records(rank: JobProcess, found: FlightDump | str) -> FlightDump | str:
    """Return a rank's records, or why there are none: records that another job left in its file accuse nobody."""
    if isinstance(found, str):
        return f"its records were not read: {found}"
    world, groups = rank.launch.world_size or bounds.JOB_RANKS, [group.ranks for group in found.groups if group.ranks]
    if rank.rank is None or all(rank.rank in ranks and max(ranks) < world for ranks in groups):
        return found
    return f"these are not records of rank {rank.rank}, but of {fold_ranks({*chain(*groups)})}"


def _learn_in_time(learn: Callable[[], T]) -> T | Absent:
    """Run `learn`, or return Absent with the reason. Raises OutOfTime: our own timeout must not accuse a rank."""
    found = attempt(learn)
    if isinstance(found, Absent) and found.refused == OutOfTime.__name__:
        raise OutOfTime(found.why)
    return found


def _interfaces(text: str) -> Mapping[str, str]:
    rows: Mapping[str, tuple[_Address, ...]] = decoded(text, dict[str, tuple[_Address, ...]])
    return {each.address.partition("%")[0]: name for name, addresses in rows.items() for each in addresses}


def _ras_answer(host: Host, ranks: Sequence[JobProcess], number: int) -> str:
    address = next((each.settings[_RAS] for each in ranks if each.settings.get(_RAS)), _RAS_DEFAULT)
    return host.ask("ras", address, number, *_pids(ranks))


def _pids(ranks: Sequence[JobProcess]) -> list[int]:
    return [each.pid for each in ranks[: bounds.NODE_RANKS]]


def _dump_name(rank: JobProcess) -> str:
    return f"records of rank_{rank.rank}" if rank.rank is not None else f"records of process {rank.pid}, rank"


def _each(things: Sequence[K], learn: Callable[[K], T], at_once: int = _AT_ONCE) -> list[T]:
    """Run `learn` for each thing, several in parallel, because a stopped process answers late."""
    if not things:
        return []
    with ThreadPoolExecutor(min(at_once, len(things))) as pool:
        return list(pool.map(learn, things))


def _connections(host: Host, number: int, pids: Sequence[int]) -> tuple[Connection, ...]:
    return decoded(host.ask("connections", number, *pids), tuple[Connection, ...])


def _state(host: Host, rank: JobProcess, number: int) -> LiveRank:
    return decoded(host.ask("process", rank.pid, rank.start, number), LiveRank)


class _Address(Struct, frozen=True):
    address: str


class JobState(Struct, frozen=True):
    """The ranks in classes, and a one-line verdict. `waiting` ranks wait for others in the call `where`."""

    classes: tuple[RankClass, ...]
    answer: JobVerdict
    where: str = ""
    waiting: tuple[int, ...] = ()
