"""Which processes of a node are ranks of a job, by the environment that their launcher gave them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ncclprobe import bounds
from ncclprobe.errors import HostError, ParseError
from ncclprobe.facts.launcher import TORCH, Launch, detect
from ncclprobe.host import SAMPLE, Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field

_NAMES = (TORCH[0], "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PET_NODE_RANK")
"""A process without any of these was not started as a rank, or its program has set RANK itself: --pid finds it."""


class AskedJob(Struct, frozen=True):
    """What the command line says: which process, 0: none; whether stacks are to be read."""

    pid: int = 0
    stacks: bool = False


class JobProcess(Struct, frozen=True):
    """One rank. `start` is the tick since boot at which it began, by which its number is known not to be of another.

    `rank` is None where its environment does not say it. `job` tells the ranks of one job from those of another.
    """

    pid: int
    start: int
    name: str
    rank: int | None
    launch: Launch
    job: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


class LocalRanks(Struct, frozen=True):
    """The ranks of the job on this node, by rank; `absent` local ranks have no process.

    `others` are further jobs here, in words: which one is meant is not known. `hidden` Python processes are of other
    users. `late`: processes whose environment could not be read, and why.
    """

    ranks: tuple[JobProcess, ...]
    absent: tuple[int, ...] = ()
    others: tuple[str, ...] = ()
    hidden: int = 0
    late: tuple[str, ...] = ()
    time_s: float = 0.0


class _Process(Struct, frozen=True):
    pid: int
    parent: int
    start: int
    name: str
    user: int
    library: bool | None
    python: bool
    variables: dict[str, str]


class _Answer(Struct, frozen=True):
    time_s: float
    processes: tuple[_Process, ...]
    hidden: int = 0
    late: tuple[str, ...] = ()


@collector
def asked_job(host: Host) -> AskedJob:
    """Read what the command line says."""
    try:
        return AskedJob(**json.loads(host.ask(SAMPLE, "attach")))
    except HostError:
        return AskedJob()


@collector
def local_ranks(host: Host, asked: AskedJob) -> LocalRanks:
    """Find the ranks of the job that runs here."""
    answer = decoded(host.ask("ranks", asked.pid, *_NAMES), _Answer)
    jobs = _jobs(answer.processes)
    if asked.pid:
        own = {job: ranks for job, ranks in jobs.items() if _of(asked.pid, ranks, answer.processes)}
        beneath = _jobs(answer.processes, asked.pid)
        helpers = _many(own) < _many(beneath) and all(each.rank is None for ranks in beneath.values() for each in ranks)
        jobs = beneath if helpers or not own else own
    ranks = next(iter(jobs.values()), ())
    return LocalRanks(
        ranks,
        _absent(ranks),
        tuple(_in_words(each) for each in jobs.values()) if len(jobs) > 1 else (),
        answer.hidden,
        answer.late,
        answer.time_s,
    )


def decoded(text: str, kind: Any) -> Any:
    """Return the value of type `kind` that a JSON text holds. Raises ParseError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ParseError(f"{error}: {text[:80]!r}") from None


def _jobs(processes: Sequence[_Process], named: int = 0) -> dict[str, tuple[JobProcess, ...]]:
    """Return the ranks of each job; with `named` what this process has started, whatever the variables, or itself."""
    by_rank: dict[tuple[str, int], list[_Process]] = {}
    launches = {each.pid: detect(each.variables) for each in processes}
    for each in _started_by(named, processes) if named else processes:
        launch = launches[each.pid]
        if named or launch.rank is not None:
            by_rank.setdefault((_job(each, launch), -each.pid if named else launch.rank or 0), []).append(each)
    jobs: dict[str, list[JobProcess]] = {}
    for (job, _), of_rank in by_rank.items():
        if (found := _itself(of_rank)) is not None:
            launch = launches[found.pid]
            made = JobProcess(found.pid, found.start, found.name, launch.rank, launch, job, found.variables)
            jobs.setdefault(job, []).append(made)
    return {job: tuple(sorted(each, key=lambda r: (r.rank is None, r.rank, r.pid))) for job, each in jobs.items()}


def _started_by(named: int, processes: Sequence[_Process]) -> Sequence[_Process]:
    """Return the topmost processes with torch or NCCL that `named` has started: their own are workers and helpers."""
    above = {each.pid: each.parent for each in processes}
    beneath = [each for each in processes if named in _ancestors(each.pid, above)]
    with_library = {each.pid for each in beneath if each.library}
    tops = [each for each in beneath if each.library and not _ancestors(each.pid, above) & with_library]
    return tops or [each for each in processes if each.pid == named]


def _many(jobs: Mapping[str, Sequence[JobProcess]]) -> int:
    return sum(map(len, jobs.values()))


def _job(process: _Process, launch: Launch) -> str:
    where = f"{launch.master_addr}:{launch.master_port}" if launch.master_addr else ""
    return " ".join(filter(None, (f"user {process.user}", launch.kind, launch.run_id, where)))


def _itself(processes: Sequence[_Process]) -> _Process | None:
    """Return the rank among the processes with its environment: of those that have mapped torch or NCCL the topmost.

    Its children, such as workers of a data loader, have the same; a shell or launcher before it maps neither. Where
    none has mapped them, a Python that may still import them; a launcher that is none, and no rank, has neither.
    """
    for chosen in ([p for p in processes if p.library], [p for p in processes if p.python and p.library is not False]):
        here = {p.pid for p in chosen}
        above = {p.pid: p.parent for p in processes}
        top = [p for p in chosen if not _ancestors(p.pid, above) & here]
        if top:
            return min(top, key=lambda p: p.start)
    starting = [p for p in processes if p.python and "RANK" in p.variables]
    return min(starting, key=lambda p: p.start) if starting else None


def _ancestors(pid: int, above: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    while (pid := above.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


def _of(pid: int, ranks: Sequence[JobProcess], processes: Sequence[_Process]) -> bool:
    """Return whether `pid` is a rank of this job, has started one, or was started by one."""
    above, own = {p.pid: p.parent for p in processes}, {each.pid for each in ranks}
    return pid in own or bool(_ancestors(pid, above) & own) or any(pid in _ancestors(each, above) for each in own)


def _absent(ranks: Sequence[JobProcess]) -> tuple[int, ...]:
    """Return the ranks that the launcher has started here, as far as the others say, and that have no process."""
    numbers = [(each.rank, each.launch.local_rank) for each in ranks]
    bases = {rank - local for rank, local in numbers if rank is not None and local is not None}
    count = next((each.launch.local_world_size for each in ranks if each.launch.local_world_size), 0)
    if len(bases) != 1:
        return ()
    (base,) = bases
    return tuple(n for n in range(base, base + min(count, bounds.NODE_RANKS)) if n not in {rank for rank, _ in numbers})


def _in_words(ranks: Sequence[JobProcess]) -> str:
    first = ranks[0]
    return f"{len(ranks)} ranks of {first.job or 'a job'} (--pid {first.pid})"
