"""Who has come to the store at which a job's ranks meet: cases of which it is kept what `attach` says."""

from collections.abc import Iterator, Mapping
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
from tests.localise.mixed import Draw
from tests.localise.standing import C10D, NOTHING, OWN, STOPPED, kept

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
SERVER = (LISTENS, accepted(ASKS[0]))


def init(
    states: Mapping[int, LiveRank], world: int | None, calls: tuple[tuple[Connection, Connection], ...] = (),
    sockets: tuple[Connection, ...] | Absent = (), master: JobStore = MASTER, mesh: tuple[Connection, ...] = (),
    records: FlightRecords = NOTHING, after: Any = None, own: Mapping[int, dict[str, Any]] | None = None,
    stacks: tuple[tuple[FlightFrame, ...], ...] = (), absent: tuple[int, ...] = (),
) -> JobState:  # fmt: skip
    """Return how a job of one node stands whose ranks were seen so. `own`: what single ranks were started with."""
    launch = Launch("environment", world_size=world, master_addr="10.0.0.5", master_port=29500)
    own, twins = own or {}, {n: each["twins"] for n, each in (own or {}).items() if "twins" in each}
    starts = {n: {"rank": n} | {k: v for k, v in own.get(n, {}).items() if k != "twins"} for n in states}
    launches = {n: replace(launch, **start) for n, start in starts.items()}
    each_of = launches.items()
    ranks = tuple(JobProcess(100 + n, 1, "python", each.rank, each, twins=twins.get(n, ())) for n, each in each_of)
    first, second = (tuple(both[at] for both in calls) + mesh for at in (0, 1))
    later = tuple(replace(each, time_s=each.time_s + 1, **(after or {})) for each in states.values())
    servers = ("",) * len(ranks)
    looks = JobLooks(
        JobLook(tuple(states.values()), records, servers, stacks, connections=first),
        JobLook(later, records, servers, stacks, connections=second),
    )
    masters = replace(master, sockets=sockets), replace(master, port=29501, sockets=())
    return stand({"n1": (LocalRanks(ranks, absent), looks)}, {"n1": Meetings(masters)})


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
    yield "nobody listens", init(away, 2)
    yield "an address of IPv6", init(away, 2, (), (LISTENS,), replace(MASTER, resolved="::1", source="::1"))
    yield "no name", init(away, 2, master=replace(AWAY, resolved=Absent("")))
    yield "a number beyond the world", init({0: SLEEPS, 2: WAITS}, 2, (ASKS,), SERVER)
    imports, works = {0: SLEEPS, 1: replace(SLEEPS, native=False)}, {"cpu_s": 5.9, "faults": 9000}
    yield "at work before init", init(imports, 2, (ASKS,), SERVER, after=works)
    asks = replace(SLEEPS, switches=2000)
    locked = replace(WAITS, call="flock", file="/data/lock, which process 77 holds")
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
    yield "another port", init(three, 3, (ASKS, COME), SERVER, own=port)
    yield "another store", init(three, 3, (ASKS, COME, joined), SERVER, own=port)
    yield "another world, set anew", init(three, 3, (ASKS, COME), SERVER, records=called, own=world)
    yield "another world, connected", init(three, 3, ((call(100),) * 2, COME), (), AWAY, mesh=MESH, own=world)
    yield "spawned: two are young", spawned(PYTHON_SLEEPS, *(replace(SLEEPS, age_s=9.0),) * 2)
    yield "spawned: all sleep", spawned(*(PYTHON_SLEEPS,) * 3)


HELD = replace(LISTENS, pid=0, stranger="4711 (python3)")
ELSEWHERE = (replace(MASTER, resolved=each, source=each) for each in ("127.0.0.1", "fd00::5", Absent("")))
MASTERS = (MASTER, MASTER, MASTER, *ELSEWHERE, AWAY, AWAY, replace(AWAY, source=Absent("")))
HOSTS = (("127.0.0.1",), ("127.0.0.2", "10.0.0.5"), ("[fd00::5]",), ("[::]",), ("[fd00::6]", "[fd00::5]"),
         ("10.0.0.9",), ("127.0.0.2", "127.0.0.1"), ("10.0.0.5", "[fd00::5]"))  # fmt: skip
SOCKETS: tuple[tuple[Connection, ...] | Absent, ...] = (
    SERVER, (*SERVER, STRANGER), (*SERVER, STRANGER, replace(STRANGER, peer="10.0.0.8:9")), (), (HELD,),
    (LISTENS, HELD),
    *[tuple(replace(LISTENS, local=f"{host}:29500", pid=pid) for host in hosts) for pid in (100, 0) for hosts in HOSTS],
    Absent("another network namespace"),
)  # fmt: skip
OWN_START: tuple[dict[str, Any], ...] = (
    *[{}] * 9, {"world_size": 4}, {"world_size": 5}, {"world_size": None}, {"master_port": 29501}, {"rank": 7},
    {"master_addr": "10.0.0.6"}, {"twins": (77, 78)},
)  # fmt: skip
STATES = (*[SLEEPS, WAITS] * 3, PYTHON_SLEEPS, replace(WAITS, call="flock"), replace(SLEEPS, state="Z"), STOPPED, BUSY)
CALLED = ({"hostname": "10.0.0.5", "port": "29500"}, {"hostname": "n9", "port": "29500"}, {"hostname": "n9"}, {},
          {"init_method": "tcp://10.0.0.6:29500?rank=0?"}, {"init_method": "tcp://tcp://n1"})  # fmt: skip
STATES_OF_CALLS = ("established", "established", "connecting", "connecting", "closed by its peer")
AGENTS = tuple(
    Agent(pid, nodes, place, "10.0.0.5", 29500, age_s)
    for pid, nodes, place, age_s in ((7, 2, 0, 60.0), (7, 3, 1, 60.0), (7, None, 0, 60.0), (8, 1, 0, 60.0),
                                     (8, 2, 0, 20.0), (8, 2, 0, 19.9))
)  # fmt: skip


MORE = (53, 54, 59, 66, 72, 85, 86, 97, 106, 108, 227, 228, 229, 241, 282, 302, 321, 459, 467, 504)
"""The cases that decide what no other one decides, besides the first."""


def mixed(case: str) -> JobState:
    """Return how a job stands whose ranks, store and connections are drawn at random."""
    draw = Draw(case)
    count, serves = draw.choice((2, 3, 3, 4, 4)), draw.odd(0.6)
    numbers = sorted(draw.sample(range(count), count - draw.odd(0.3)))
    usual, age_s = draw.choice(STATES), draw.choice((5.9, 6.0, 7.0, 24.9, 25.0, 65.0, 65.0, None))
    states, calls, stacks = {}, [], []
    for n in numbers:
        seen = SLEEPS if serves and n == 0 else usual if draw.odd(0.5) else draw.choice(STATES)
        still_s, own_age_s = draw.choice((None, 5.9, 6.0, 19.9, 20.0, 50.0)), draw.choice((age_s, age_s, 65.0, 30.0))
        states[n] = replace(seen, still_s=still_s, age_s=own_age_s)
        port = draw.choice((29500, 29500, 29500, 29501))
        both = (draw.choice(STATES_OF_CALLS),) * 2
        of_call = (*both, draw.choice(STATES_OF_CALLS))
        ends = [replace(call(100 + n, state=each), peer=f"10.0.0.5:{port}") for each in of_call]
        pair = ends[:2] if draw.odd(0.7) else ends[1:]
        asked = draw.choice((1840, 1841, 79_000, 80_000))
        first = (replace(ASKS[1], acknowledged_bytes=asked), ASKS[1])
        calls += [first] if serves and n == 0 else [tuple(pair)] * draw.odd(0.7)
        create = LiveFrame("_create", "/venv/torch/distributed/rendezvous.py", 1, draw.choice(CALLED))
        stacks.append((create, FlightFrame("init_process_group", C10D, 7), OWN))
    records = recorded({numbers[-1]: draw.choice(("a@960", ""))}, world=count) if draw.odd(0.08) else NOTHING
    after = draw.choice(({}, {}, {}, {"switches": 27}, {"switches": 26}, {"native": False}, {"native": True}))
    world, own = draw.choice((count, count, count, None, count + 1)), {n: draw.choice(OWN_START) for n in numbers}
    sockets, master = draw.choice(SOCKETS[:3] if serves and draw.odd(0.8) else SOCKETS), draw.choice(MASTERS)
    mesh, read = MESH if draw.odd(0.1) else (), tuple(stacks) if draw.odd(0.4) else ()
    if draw.odd(0.1):
        states = {at: replace(each, native=draw.odd(0.5)) for at, each in states.items()}
        return spawned(*states.values(), mesh=mesh or tuple(draw.wires(numbers)[0]) * draw.odd(0.3))
    absent = tuple(n for n in range(count) if n not in numbers and draw.odd(0.4))
    return init(states, world, tuple(calls), sockets, master, mesh, records, after, own, read, absent)


def mixed_agents(case: str) -> JobState:
    """Return how a job stands whose agents have started no rank: drawn at random, on two nodes."""
    draw, nodes = Draw(case), {}
    for node in ("n1", "n2"):
        agents = tuple(draw.sample(AGENTS, draw.choice((1, 1, 2))))
        hosts = draw.sample(range(5, 9), draw.choice((0, 1, 2, 3)))
        calls = tuple(call(draw.choice((7, 8)), f"10.0.0.{n}:{n}", draw.choice(STATES_OF_CALLS)) for n in hosts)
        ends = draw.choice(((LISTENS,), (HELD, LISTENS), ()))
        listens = tuple(replace(each, pid=draw.choice((0, 7, 8))) for each in ends)
        sockets = (*listens, *(replace(accepted(each), state=draw.choice(STATES_OF_CALLS)) for each in calls))
        master = replace(draw.choice(MASTERS), sockets=Absent("") if draw.odd(0.1) else sockets)
        master = replace(master, port=29501) if draw.odd(0.05) else master
        nodes[node] = LocalRanks((), agents=agents, time_s=draw.choice((1000.0, 1001.0))), Meetings((master,), calls)
    return of_agents(nodes)


def rows() -> Rows:
    """Yield all cases with what is kept of them."""
    for made, numbers in ((mixed, (*range(50), *MORE)), (mixed_agents, (*range(8), 12, 19, 25))):
        for case in (f"{made.__name__} {number}" for number in numbers):
            yield case, kept(made(case))
    for rows_of in (_of_two(), _of_three(), not_stuck().items()):
        yield from ((name, kept(found)) for name, found in rows_of)
    for values in ({"hostname": "n1", "port": "29500"}, {"init_method": "tcp://n1:29500?rank=0"},
                   {"init_method": "file:///shared/x"}, {}):  # fmt: skip
        yield f"a store of {values}", [address([LiveFrame("f", "/venv/torch/distributed/rendezvous.py", 1, values)])]
    given = ({"nnodes": "2:4", "rdzv_endpoint": "h:1"}, {}), ({"master_addr": "h"}, {"PET_NNODES": "3"})
    for options, variables in given:
        yield f"an agent with {options}", [agent(7, 1.0, options, variables)]
