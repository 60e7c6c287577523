"""How a running job stands, from two looks at its ranks: the builders, and the cases whose answers are kept.

tests/data/command_values/standing.txt has what is said of each case; tests/localise/test_job.py asserts the rest.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks.job.ranks import absent, apart, gone, inside, outside, untold
from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame, FlightRecords
from ncclprobe.facts.files.ras import RasAnswer, read_answer
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.process_state import LiveRank
from ncclprobe.facts.job.ranks import Connection, JobLook, JobLooks, JobProcess, JobState, LocalRanks
from ncclprobe.facts.job.stacks import LiveFrame, ThreadPlace
from ncclprobe.facts.launcher import Launch
from ncclprobe.logs.job import stand
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

NOW_S = 1000.0
NOTHING = FlightRecords(())
IDLE = LiveRank("S", 5.0, "futex_do_wait", "futex", switches=7, time_s=NOW_S)
SLEEPS = LiveRank("S", 5.0, "hrtimer_nanosleep", "nanosleep", switches=7, time_s=NOW_S)
STOPPED = LiveRank("T", 5.0, "do_signal_stop", time_s=NOW_S)
GONE = Absent("process 102: it has ended", "Missing")
UNSEEN = Absent("process 102: permission denied", "Denied")
WAIT_OF_51 = {0: "all_reduce@960 all_reduce*@970", 1: "all_reduce@960 all_reduce*@970", 2: "all_reduce@960"}
PYTHON, PACKAGES = "/usr/lib/python3.11", "/v/lib/python3.11/site-packages"
C10D = f"{PACKAGES}/torch/distributed/distributed_c10d.py"
OWN = FlightFrame("step", "/home/u/train.py", 12)
IN_ALL_REDUCE = (FlightFrame("all_reduce", C10D, 3000), replace(OWN, line=40))
IN_LOADER = (FlightFrame("recv", f"{PYTHON}/connection.py", 3), OWN)
Both = tuple[LiveRank | Absent, LiveRank | Absent]
Stack = tuple[FlightFrame, ...]
Rows = Iterator[tuple[str, JobState]]


def later(state: LiveRank, after_s: float = 1.0, /, **changes: Any) -> LiveRank:
    """Return a state some time later."""
    return replace(state, time_s=state.time_s + after_s, **changes)


def both(state: LiveRank, after_s: float = 1.0, /, **changes: Any) -> Both:
    """Return a rank at both looks."""
    return state, later(state, after_s, **changes)


WAITS = both(IDLE)


def looked(
    states: Mapping[int, Both], first: FlightRecords = NOTHING, second: FlightRecords | None = None,
    stacks: Mapping[int, tuple[Stack, Stack]] | None = None, world: int = 0, absent: tuple[int, ...] = (),
    ras: tuple[RasAnswer | Absent, RasAnswer | Absent] = (GONE, GONE),
    wires: tuple[tuple[Connection, ...], tuple[Connection, ...]] = ((), ()), silent: tuple[int, ...] = (),
    gpus: tuple[tuple[LiveGpu, ...], tuple[LiveGpu, ...], Any] = ((), (), ()), port: int | None = None,
    threads: tuple[tuple[ThreadPlace, ...], ...] = (),
) -> JobState:  # fmt: skip
    """Return how a job stands whose ranks, all on one node, were seen so."""
    launch = Launch("torchrun", world_size=world or len(states), local_world_size=len(states), master_port=port)
    ranks = tuple(JobProcess(100 + rank, 1, "python", rank, replace(launch, local_rank=rank)) for rank in states)
    servers = tuple("no answer within 1 s" if rank in silent else "" for rank in states)
    read = [tuple(both[at] for both in stacks.values()) if stacks else () for at in (0, 1)]
    looks = JobLooks(
        JobLook(tuple(both[0] for both in states.values()), first, servers, read[0], ras[0], wires[0]),
        JobLook(tuple(both[1] for both in states.values()), second or first, servers, read[1], ras[1], wires[1]),
        {"10.77.1.1": "eth1"},
    )
    second_look = replace(looks.second, gpus=gpus[1], threads=threads)
    looks = replace(looks, first=replace(looks.first, gpus=gpus[0]), second=second_look, xids=gpus[2])
    return stand({"n1": (LocalRanks(ranks, absent), looks)})


def of_two(*of_2: LiveRank | Absent, texts: Mapping[int, str] = WAIT_OF_51, **more: Any) -> JobState:
    """Return how three ranks stand of which two wait in a recorded call; the third one was seen so."""
    states = {0: WAITS, 1: WAITS, 2: (*of_2, *([later(of_2[0])] if len(of_2) == 1 else []))}  # type: ignore[arg-type]
    return looked(states, recorded(texts, backend=more.pop("backend", "gloo")), **more)  # type: ignore[arg-type]


def recorded_as(*texts: str, state: Both = WAITS, **more: Any) -> JobState:
    """Return how idle ranks stand of which each has recorded these calls."""
    records = recorded(dict(enumerate(texts)), world=more.get("world", 0), backend=more.pop("backend", "gloo"))
    return looked(dict.fromkeys(range(len(texts)), state), records, **more)


def in_stacks(*stacks: Stack, still_s: float | None = 20.0, states: Sequence[Both] = (), **more: Any) -> JobState:
    """Return how ranks stand whose stacks were the same at both looks; the first have other states."""
    ranks = range(len(stacks))
    own = {rank: states[rank] if rank < len(states) else both(IDLE, still_s=still_s) for rank in ranks}
    return looked(own, stacks={rank: (stacks[rank],) * 2 for rank in ranks}, **more)


def stuck_in(*frames: tuple[str, str], state: LiveRank = IDLE, own: FlightFrame = OWN) -> JobState:
    """Return how a job stands whose rank 2 does not join an all_reduce: it is in these frames of libraries."""
    stack = (*(FlightFrame(name, path, 1) for name, path in frames), own)
    states = [*[both(IDLE, still_s=40.0)] * 2, both(state, still_s=40.0)]
    return in_stacks(IN_ALL_REDUCE, IN_ALL_REDUCE, stack, states=states)


def in_call(name: str, **values: str) -> Stack:
    """Return the stack of a program in a call of torch with these arguments."""
    return LiveFrame(name, C10D, 9, values), OWN


def counts(*launched: int) -> RasAnswer:
    """Return what RAS says of ranks, each of its own process, that have launched so many operations."""
    ranks = [
        {"rank": n, "host": "h", "pid": 100 + n, "collective_counts": {"AllReduce": count, "AllGather": 3}}
        for n, count in enumerate(launched)
    ]
    comm = {"hash": "0xae94423cfbb2ef4a", "ranks": ranks, "missing_ranks": []}
    return read_answer("NCCL RAS", json.dumps({"nccl_version": "2.29.1", "communicators": [comm]}).encode())


def kept(found: JobState) -> dict[str, object]:
    """Return what is said of a job, in all words but those of the advice."""
    checks = (gone, absent, outside, apart, inside, untold)
    findings = [(check.id, each) for check in checks for each in check.run(found)]
    answer = found.answer
    rows = [f"{e.name}:{e.ranks}:{e.nodes}:{e.processes}:{e.reason}: {e.doing}" for e in found.classes]
    return {
        "answer": (f"{answer.word}: {answer.message} ({answer.looked_s} s, {answer.calls} calls, {answer.sources})"),
        "rows": rows,
        "seen": [f"{each.source}: {each.text}" for row in found.classes for each in row.evidence],
        "findings": [f"{name}:{e.severity.value}:{e.blame}:{e.action}: {e.remedy}" for name, e in findings],
        "where": f"{found.where} {found.waiting} {answer.prepare}",
    }
