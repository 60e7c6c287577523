"""Who has come to the store at which a job's ranks meet: cases of which it is kept what `attach` says."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame, FlightRecords
from ncclprobe.facts.job.meeting import Agent, Connection, JobStore, Meetings, agent
from ncclprobe.facts.job.process_state import LiveRank
from ncclprobe.facts.job.ranks import JobLook, JobLooks, JobProcess, JobState, LocalRanks
from ncclprobe.facts.job.stacks import LiveFrame
from ncclprobe.facts.launcher import Launch
from ncclprobe.logs.job import of_agents, stand
from ncclprobe.logs.job.arguments import address
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.localise.standing import NOTHING, kept

SLEEPS = LiveRank("S", 5.0, "hrtimer_nanosleep", "nanosleep", native=True, age_s=65.0, time_s=1000.0)
WAITS = LiveRank("S", 5.0, "poll", "poll", switches=7, age_s=65.0, time_s=1000.0, still_s=50.0)
PYTHON_SLEEPS = replace(WAITS, call="nanosleep")
BUSY = replace(SLEEPS, state="R", call="running")
MASTER = JobStore("10.0.0.5", 29500, "10.0.0.5", "10.0.0.5")
AWAY = replace(MASTER, source="10.0.0.6")
LISTENS = Connection(100, "0.0.0.0:29500", "0.0.0.0:0", "listening")
STRANGER = Connection(100, "10.0.0.5:29500", "10.0.0.9:777")
MESH = (Connection(100, "10.0.0.5:1", "10.0.0.5:2"), Connection(101, "10.0.0.5:2", "10.0.0.5:1"))
Rows = Iterator[tuple[str, object]]


def call(pid: int, local: str = "", state: str = "established", acknowledged: int = 0) -> Connection:
    """Return a connection of a rank to the store."""
    return Connection(pid, local or f"10.0.0.5:4{pid}", "10.0.0.5:29500", state, acknowledged_bytes=acknowledged)


def accepted(connection: Connection) -> Connection:
    """Return the store's end of a connection."""
    return Connection(100, connection.peer, connection.local)


ASKS = (call(100, acknowledged=80_000), call(100, acknowledged=82_000))
COME = (call(101), call(101))
TRIES = (call(101, state="connecting"), call(101, state="connecting"))
SHUT = (call(101, state="closed by its peer"),) * 2
SERVER = (LISTENS, accepted(ASKS[0]))


def init(
    states: Mapping[int, LiveRank],
    world: int | None,
    calls: tuple[tuple[Connection, Connection], ...] = (),
    sockets: tuple[Connection, ...] | Absent = (),
    master: JobStore = MASTER,
    mesh: tuple[Connection, ...] = (),
    records: FlightRecords = NOTHING,
    after: Any = None,
    own: Mapping[int, dict[str, int]] | None = None,
    stacks: tuple[tuple[FlightFrame, ...], ...] = (),
) -> JobState:
    """Return how a job of one node stands whose ranks were seen so. `own`: what single ranks were started with."""
    launch = Launch("environment", world_size=world, master_addr="10.0.0.5", master_port=29500)
    of = own or {}
    ranks = tuple(JobProcess(100 + n, 1, "python", n, replace(launch, rank=n, **of.get(n, {}))) for n in states)
    first, second = (tuple(both[at] for both in calls) + mesh for at in (0, 1))
    later = tuple(replace(each, time_s=each.time_s + 1, **(after or {})) for each in states.values())
    servers = ("",) * len(ranks)
    looks = JobLooks(
        JobLook(tuple(states.values()), records, servers, stacks, connections=first),
        JobLook(later, records, servers, stacks, connections=second),
    )
    masters = replace(master, sockets=sockets), replace(master, port=29501, sockets=())
    return stand({"n1": (LocalRanks(ranks), looks)}, {"n1": Meetings(masters)})


def spawned(*states: LiveRank, mesh: tuple[Connection, ...] = ()) -> JobState:
    """Return how processes without numbers stand that another one has started."""
    ranks = tuple(JobProcess(100 + n, 1, "python", None, Launch()) for n in range(len(states)))
    later = tuple(replace(each, time_s=each.time_s + 1) for each in states)
    first, second = (JobLook(look, NOTHING, ("",) * len(ranks), connections=mesh) for look in (states, later))
    return stand({"n1": (LocalRanks(ranks), JobLooks(first, second))})


def not_stuck() -> dict[str, JobState]:
    """Return jobs that are past init, or only just in it."""
    both, server = {0: SLEEPS, 1: SLEEPS}, SERVER
    called = recorded({0: "all_reduce@960", 1: "all_reduce@960"}, backend="gloo")
    fresh = (call(100, acknowledged=2_000), call(100, acknowledged=4_000))
    silent = (call(100, acknowledged=80_000), call(100, acknowledged=80_000))
    return {
        "for two seconds": init({0: SLEEPS}, 2, (fresh,), server),
        "it asks nothing": init({0: SLEEPS}, 2, (silent,), server),
        "all have come": init({0: SLEEPS}, 2, (ASKS,), (*server, STRANGER)),
        "both connected, and C++ sleeps": init(both, 2, (COME, (call(100),) * 2), (), AWAY),
        "connected with each other": init({0: WAITS, 1: SLEEPS}, 2, ((call(100),) * 2,), (), AWAY, mesh=MESH),
        "they have called collectives": init(both, 2, (ASKS,), server, records=called),
        "none of them tries anything": init({0: PYTHON_SLEEPS, 1: PYTHON_SLEEPS}, 2, (), ()),
        "another network namespace": init({0: SLEEPS}, 2, (ASKS,), Absent("another network namespace")),
        "one second after its imports": init({1: replace(SLEEPS, age_s=6.0)}, 2),
    }


def _of_two() -> Iterator[tuple[str, JobState]]:
    """A rank that does not come, or comes elsewhere."""
    both, alone, away = {0: SLEEPS, 1: WAITS}, {0: SLEEPS}, {1: SLEEPS}
    for age_s in (45.0, 44.0, 36.0, 34.0, 16.0, 14.0):
        yield f"alone for {age_s}", init({0: replace(SLEEPS, age_s=age_s)}, 2, (ASKS,), SERVER)
    yield "alone", init(alone, 2, (ASKS,), SERVER)
    yield "the other sleeps", init({0: SLEEPS, 1: PYTHON_SLEEPS}, 2, (ASKS,), SERVER)
    yield "the third is missing", init(both, 3, (ASKS, COME), SERVER)
    yield "two are missing", init(alone, 3, (ASKS,), SERVER)
    yield "one of two is missing", init(alone, 3, (ASKS,), (*SERVER, STRANGER))
    yield "nobody listens", init(away, 2)
    for local in ("127.0.0.1:29500", "[fd00::5]:29500", "[::]:29500"):
        yield f"it listens on {local}", init(away, 2, (), (replace(LISTENS, local=local),))
    yield "an address of IPv6", init(away, 2, (), (LISTENS,), replace(MASTER, resolved="::1", source="::1"))
    yield "another program listens", init(away, 2, (), (replace(LISTENS, pid=0),))
    yield (
        "another program is known",
        init({1: WAITS}, 2, (COME,), (replace(LISTENS, pid=0, stranger="4711 (python3)"),)),
    )
    yield "nothing answers", init({1: WAITS}, 2, (TRIES,), master=AWAY)
    yield "it closes the connection", init(away, 2, (SHUT,), master=AWAY)
    yield "it refuses", init(away, 2, master=AWAY)
    yield "it is not called", init({0: SLEEPS, 1: SLEEPS}, 2, (ASKS,), SERVER)
    yield "of an unknown number", init(both, None, (ASKS, COME), SERVER)
    yield "no route", init(away, 2, master=replace(AWAY, source=Absent("")))
    yield "no name", init(away, 2, master=replace(AWAY, resolved=Absent("")))
    yield "a number beyond the world", init({0: SLEEPS, 2: WAITS}, 2, (ASKS,), SERVER)
    yield (
        "at work before init",
        init({0: SLEEPS, 1: replace(SLEEPS, native=False)}, 2, (ASKS,), SERVER, after={"cpu_s": 5.9, "faults": 9000}),
    )
    asks, locked = (
        replace(SLEEPS, switches=2000),
        replace(WAITS, call="flock", file="/data/lock, which process 77 holds"),
    )
    for name, states in {"a lock": {0: asks, 1: asks, 2: locked}, "all": {0: asks, 1: asks}}.items():
        yield f"a store that is a file, {name}", init(states, len(states), after={"switches": 2100})
    yield "rank 0 does not serve it yet", init({0: PYTHON_SLEEPS, 1: SLEEPS, 2: SLEEPS}, 3)
    yield "a rank 0 whose store is elsewhere", init({0: SLEEPS, 1: SLEEPS}, 2, master=AWAY)


def _of_three() -> Iterator[tuple[str, JobState]]:
    """Ranks with another store or world, and processes without numbers."""
    three = {0: SLEEPS, 1: WAITS, 2: SLEEPS}
    port, world = {2: {"master_port": 29501}}, {0: {"world_size": 4}}
    joined = (replace(call(102), peer="10.0.0.5:29501"),) * 2
    called = recorded(dict.fromkeys(range(3), "all_reduce@960"), backend="gloo")
    young = {n: replace(each, age_s=6.0) for n, each in three.items()}
    yield "another port", init(three, 3, (ASKS, COME), SERVER, own=port)
    yield "another store", init(three, 3, (ASKS, COME, joined), SERVER, own=port)
    yield "another world", init(three, 3, (ASKS, COME), SERVER, own=world)
    yield "another world, at work", init({0: BUSY, 1: WAITS, 2: SLEEPS}, 3, (ASKS, COME), SERVER, own=world)
    yield "another world, fresh", init(young, 3, (ASKS, COME), SERVER, own=world)
    yield "another world, set anew", init(three, 3, (ASKS, COME), SERVER, records=called, own=world)
    yield "another world, connected", init(three, 3, ((call(100),) * 2, COME), (), AWAY, mesh=MESH, own=world)
    for name, states, mesh in (
        ("one sleeps", (PYTHON_SLEEPS, SLEEPS, SLEEPS), ()),
        ("one is at work", (replace(PYTHON_SLEEPS, state="R", call="running"), SLEEPS, SLEEPS), ()),
        ("two are young", (PYTHON_SLEEPS, *(replace(SLEEPS, age_s=9.0),) * 2), ()),
        ("all try", (SLEEPS,) * 3, ()),
        ("all sleep", (PYTHON_SLEEPS,) * 3, ()),
        ("they are connected", (PYTHON_SLEEPS, SLEEPS, SLEEPS), MESH),
    ):
        yield f"spawned: {name}", spawned(*states, mesh=mesh)


def _agents() -> Iterator[tuple[str, JobState]]:
    """Agents of torchrun that have started no rank."""
    listens = replace(LISTENS, pid=7)
    for given, calls, sockets in (
        (Agent(7, 2, 0, "10.0.0.5", 29500, 60), (), (listens,)),
        (Agent(7, 3, 0, "10.0.0.5", 29500, 60), (), (listens, accepted(call(8, "10.0.0.6:5")))),
        (Agent(7, 2, 0, "10.0.0.5", 29500, 60), (), (listens, accepted(call(8, "10.0.0.6:5")))),
        (Agent(7, 2, 1, "10.0.0.5", 29500, 60), (), ()),
        (Agent(7, 2, 1, "10.0.0.5", 29500, 60), (call(7),), (LISTENS,)),
        (Agent(7, 2, 0, "10.0.0.5", 29500, 3), (), (listens,)),
        (Agent(7, 1, 0, "", 29500, 60), (), ()),
    ):
        met = Meetings((replace(MASTER, sockets=sockets),), calls)
        yield f"{given} {len(calls)} {len(sockets)}", of_agents({"n1": (LocalRanks((), agents=(given,)), met)})


def rows() -> Rows:
    """Yield all cases with what is kept of them."""
    seconds, calls = (
        {"native": SLEEPS, "polls": WAITS, "python": PYTHON_SLEEPS},
        {"come": COME, "tries": TRIES, "shut": SHUT},
    )
    for (how, second), to, seen, world in product(seconds.items(), (*calls, "none"), ((), SERVER), (2, None)):
        both = (*([ASKS] if seen else []), *([calls[to]] if to in calls else []))
        for switches in (7, 9, 207):
            found = init({0: SLEEPS, 1: second}, world, both, seen, after={"switches": switches})
            yield f"{how}, {to}, {'asked' if seen else 'alone'} of {world}, {switches}", kept(found)
    for made in (_of_two(), _of_three(), _agents(), not_stuck().items()):
        yield from ((name, kept(found)) for name, found in made)
    for values in ({"hostname": "n1", "port": "29500"}, {"init_method": "tcp://n1:29500?rank=0"},
                   {"init_method": "file:///shared/x"}, {}):  # fmt: skip
        yield f"a store of {values}", [address([LiveFrame("f", "/venv/torch/distributed/rendezvous.py", 1, values)])]
    for options, variables in (
        ({"nnodes": "2:4", "rdzv_endpoint": "h:1"}, {}),
        ({"master_addr": "h"}, {"PET_NNODES": "3"}),
    ):
        yield f"an agent with {options}", [agent(7, 1.0, options, variables)]
