"""Who has come to the store at which a job's ranks meet, from two looks at its ranks."""

import gzip
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ncclprobe.checks.log.flight import recorded
from ncclprobe.engine.running import kept, stands
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.facts.job.meeting import Agent, Connection, JobStore, Meetings, agent
from ncclprobe.facts.job.process_state import LiveRank
from ncclprobe.facts.job.ranks import JobLook, JobLooks, JobProcess, JobState, LocalRanks
from ncclprobe.facts.launcher import Launch
from ncclprobe.logs.job import of_agents, stand
from ncclprobe.logs.job.arguments import address
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row, some

RECORDED = Path(__file__).resolve().parents[1] / "data" / "attach-init"
NOTHING = FlightRecords(())
SLEEPS = LiveRank("S", 5.0, "hrtimer_nanosleep", "nanosleep", native=True, age_s=65.0, time_s=1000.0)
WAITS = LiveRank("S", 5.0, "poll", "poll", switches=7, age_s=65.0, time_s=1000.0, still_s=50.0)
PYTHON_SLEEPS = replace(WAITS, call="nanosleep")
MASTER = JobStore("10.0.0.5", 29500, "10.0.0.5", "10.0.0.5")
AWAY = replace(MASTER, source="10.0.0.6")
LISTENS = Connection(100, "0.0.0.0:29500", "0.0.0.0:0", "listening")
OTHER = "rank 1 cannot connect to 10.0.0.5:29500: "
COME_ALONE = "in init: rank 0 of 2 has arrived at 10.0.0.5:29500"
NO_PROCESS = "rank 1 has not connected: no process of it on this node"


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
MESH = (Connection(100, "10.0.0.5:1", "10.0.0.5:2"), Connection(101, "10.0.0.5:2", "10.0.0.5:1"))


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
) -> JobState:
    """Return how a job of one node stands whose ranks were seen so. `own`: what single ranks were started with."""
    launch = Launch("environment", world_size=world, master_addr="10.0.0.5", master_port=29500)
    of = own or {}
    ranks = tuple(JobProcess(100 + n, 1, "python", n, replace(launch, rank=n, **of.get(n, {}))) for n in states)
    first, second = (tuple(both[at] for both in calls) + mesh for at in (0, 1))
    later = tuple(replace(each, time_s=each.time_s + 1, **(after or {})) for each in states.values())
    servers = ("",) * len(ranks)
    looks = JobLooks(
        JobLook(tuple(states.values()), records, servers, connections=first),
        JobLook(later, records, servers, connections=second),
    )
    masters = replace(master, sockets=sockets), replace(master, port=29501, sockets=())
    return stand({"n1": (LocalRanks(ranks), looks)}, {"n1": Meetings(masters)})


def test_ranks_with_another_store_or_world_are_named_with_what_the_others_have() -> None:
    three, server = {0: SLEEPS, 1: WAITS, 2: SLEEPS}, (LISTENS, accepted(ASKS[0]))
    port, world = {2: {"master_port": 29501}}, {0: {"world_size": 4}}
    joined = replace(call(102), peer="10.0.0.5:29501")
    rows = [
        (init(three, 3, (ASKS, COME), server, own=port), (2,),
         "rank 2 cannot connect to 10.0.0.5:29501: nobody listens there; ranks 0-1 meet at 10.0.0.5:29500"),
        (init(three, 3, (ASKS, COME, (joined,) * 2), server, own=port), (2,),
         "ranks 0-1 of 3 have arrived at 10.0.0.5:29500 50 s ago; rank 2 has joined another store, 10.0.0.5:29501"),
        (init(three, 3, (ASKS, COME), server, own=world), (0,),
         "in init for 60 s: rank 0 was started with WORLD_SIZE=4, ranks 1-2 with 3; ranks 1-2 are waiting for 3 ranks"),
    ]  # fmt: skip
    assert len(rows) >= 3
    for found, ranks, words in rows:
        assert (found.answer.word, found.classes[0].name, found.classes[0].ranks) == ("STUCK", "not arrived", ranks)
        assert words in found.answer.message
    busy = {0: replace(SLEEPS, state="R", call="running"), 1: WAITS, 2: SLEEPS}
    called = recorded(dict.fromkeys(range(3), "all_reduce@960"), backend="gloo")
    others = [
        init(busy, 3, (ASKS, COME), server, own=world),
        init({n: replace(each, age_s=6.0) for n, each in three.items()}, 3, (ASKS, COME), server, own=world),
        init(three, 3, (ASKS, COME), server, records=called, own=world),  # the program has set it anew
        init(three, 3, ((call(100),) * 2, COME), (), AWAY, mesh=MESH, own=world),
    ]
    assert not [each.answer for each in others if "WORLD_SIZE" in each.answer.message]


def test_a_program_that_holds_the_port_and_a_wrong_number_are_named() -> None:
    held = replace(LISTENS, pid=0, stranger="4711 (python3)")
    rows = [
        (init({1: WAITS}, 2, (COME,), (held,)),
         "process 4711 (python3) listens at 10.0.0.5:29500, and is not a rank of this job"),
        (init({0: SLEEPS, 2: WAITS}, 2, (ASKS,), (LISTENS, accepted(ASKS[0]))),
         "process 102 has RANK=2, which is not below WORLD_SIZE=2"),
    ]  # fmt: skip
    for found, words in some(rows):
        assert (found.answer.word, words in found.answer.message) == ("STUCK", True), found.answer


def test_a_rank_that_waits_in_init_is_told_with_those_that_have_not_come() -> None:
    both, alone = {0: SLEEPS, 1: WAITS}, {0: SLEEPS}
    server = (LISTENS, accepted(ASKS[0]))
    stranger = Connection(100, "10.0.0.5:29500", "10.0.0.9:777")
    rows: list[tuple[JobState, str, str]] = [
        (init(alone, 2, (ASKS,), server), "STUCK", f"{COME_ALONE} 41 s ago; {NO_PROCESS}"),
        (init({0: replace(SLEEPS, age_s=45.0)}, 2, (ASKS,), server), "STUCK", f"{COME_ALONE}; {NO_PROCESS}"),
        (init(both, 2, (ASKS,), server), "STUCK", "rank 1 has not connected: it is waiting for input (poll)"),
        (init({0: SLEEPS, 1: PYTHON_SLEEPS}, 2, (ASKS,), server), "STUCK", "rank 1 has not connected: it is sleeping"),
        (init(both, 3, (ASKS, COME), server), "STUCK", "ranks 0-1 of 3 have arrived"),
        (init(alone, 3, (ASKS,), server), "STUCK", "ranks 1-2 have not connected: no process of it on this node"),
        (init(alone, 3, (ASKS,), (*server, stranger)), "STUCK", "1 of ranks 1-2 has not connected"),
        (init({1: SLEEPS}, 2), "STUCK", f"{OTHER}nobody listens there; no process of rank 0 is on this node"),
        (init({1: SLEEPS}, 2, (), (replace(LISTENS, local="127.0.0.1:29500"),)), "STUCK", "listens on 127.0.0.1 only"),
        (init({1: SLEEPS}, 2, (), (LISTENS,), replace(MASTER, resolved="::1", source="::1")), "STUCK",
         "it listens on 0.0.0.0 only, an address of IPv4"),
        (init({1: SLEEPS}, 2, (), (replace(LISTENS, local="[fd00::5]:29500"),)), "STUCK", "an address of IPv6"),
        (init({1: SLEEPS}, 2, (), (replace(LISTENS, pid=0),)), "STUCK", f"{OTHER}another program listens there"),
        (init({1: WAITS}, 2, (TRIES,), master=AWAY), "STUCK", f"{OTHER}nothing answers"),
        (init({1: SLEEPS}, 2, (SHUT,), master=AWAY), "STUCK", f"{OTHER}what listens there closes the connection"),
        (init({1: SLEEPS}, 2, master=AWAY), "STUCK", f"{OTHER}it refuses"),
        (init({0: SLEEPS, 1: SLEEPS}, 2, (ASKS,), server), "STUCK", f"{OTHER}it listens there, and is not called"),
        (init(both, None, (ASKS, COME), server), "STUCK", "ranks 0-1 have arrived at 10.0.0.5:29500 50 s ago; another"
         " rank has not connected: rank 0 still asks how many have"),
        (init({1: SLEEPS}, 2, master=replace(AWAY, source=Absent("")), ), "STUCK", "this node has no route to it"),
        (init({1: SLEEPS}, 2, master=replace(AWAY, resolved=Absent(""))), "STUCK", "10.0.0.5 cannot be resolved"),
    ]  # fmt: skip
    unknown = next(found for found, _, words in rows if " another" in words and not found.classes[0].ranks)
    assert unknown.classes[0].doing.startswith("has not connected")
    wrong = [
        (found.answer.word, found.answer.message, words)
        for found, word, words in rows
        if (found.answer.word, words in found.answer.message) != (word, True)
    ]
    assert len(rows) >= 16
    assert not wrong


def test_who_asks_a_store_that_is_a_file_is_not_taken_for_one_who_cannot_connect() -> None:
    asks = replace(SLEEPS, switches=2000)
    locked = replace(WAITS, call="flock", file="/data/lock, which process 77 holds")
    found = init({0: asks, 1: asks, 2: locked}, 3, after={"switches": 2100})
    wanted = (
        "in init: ranks 0-1 of 3 have arrived at their store, a file 21 s ago; rank 2 has not connected: it is waiting"
    )
    assert (found.answer.word, found.answer.message[: len(wanted)]) == ("STUCK", wanted)
    assert {each.name: each.ranks for each in found.classes} == {"not arrived": (2,), "waiting": (0, 1)}
    assert init({0: asks, 1: asks}, 2, after={"switches": 2100}).answer.word != "STUCK"


def test_ranks_that_cannot_connect_wait_for_a_rank_0_that_does_not_listen_yet() -> None:
    found = init({0: PYTHON_SLEEPS, 1: SLEEPS, 2: SLEEPS}, 3)
    assert [(each.name, each.ranks) for each in found.classes] == [("not arrived", (0,)), ("waiting", (1, 2))]
    assert "nobody listens there, for rank 0 does not serve it yet" in found.classes[1].doing
    # A rank 0 that cannot serve its store, because that is elsewhere, is not at fault.
    elsewhere = init({0: SLEEPS, 1: SLEEPS}, 2, master=AWAY)
    assert [(each.name, each.ranks) for each in elsewhere.classes] == [("not arrived", (0, 1))]


def test_ranks_that_are_past_init_or_only_just_in_it_are_not_called_stuck_there() -> None:
    both, server = {0: SLEEPS, 1: SLEEPS}, (LISTENS, accepted(ASKS[0]))
    sleeper = {0: WAITS, 1: SLEEPS}
    called = recorded({0: "all_reduce@960", 1: "all_reduce@960"}, backend="gloo")
    fresh = (call(100, acknowledged=2_000), call(100, acknowledged=4_000))
    silent = (call(100, acknowledged=80_000), call(100, acknowledged=80_000))
    gone = Connection(100, "10.0.0.5:29500", "10.0.0.9:777")
    rows = [
        init({0: SLEEPS}, 2, (fresh,), server),  # two seconds
        init({0: SLEEPS}, 2, (silent,), server),  # asks nothing
        init({0: SLEEPS}, 2, (ASKS,), (*server, gone)),  # all have come
        init(both, 2, (COME, (call(100),) * 2), (), AWAY),  # both connected, and C++ sleeps
        init(sleeper, 2, ((call(100),) * 2,), (), AWAY, mesh=MESH),  # connected with each other
        init(both, 2, (ASKS,), server, records=called),  # has called collectives
        init({0: PYTHON_SLEEPS, 1: PYTHON_SLEEPS}, 2, (), ()),  # none of them tries anything
        init({0: SLEEPS}, 2, (ASKS,), Absent("another network namespace")),
        init({1: replace(SLEEPS, age_s=6.0)}, 2),  # one second after its imports
    ]
    assert len(rows) >= 9
    assert not [each.answer for each in rows if each.answer.word == "STUCK" and "init" in each.answer.message]


def test_a_rank_at_work_before_init_is_slow() -> None:
    found = init({0: SLEEPS, 1: replace(SLEEPS, native=False)}, 2, (ASKS,), (LISTENS, accepted(ASKS[0])),
                 after={"cpu_s": 5.9, "faults": 9000})  # fmt: skip
    assert (found.answer.word, found.classes[0].ranks) == ("SLOW", (1,))


@each_row(
    ("given", "calls", "sockets", "words"),
    [
        (Agent(7, 2, 0, "10.0.0.5", 29500, 60), (), (replace(LISTENS, pid=7),), "is waiting for 1 of 2 nodes"),
        (Agent(7, 3, 0, "10.0.0.5", 29500, 60), (), (replace(LISTENS, pid=7), accepted(call(8, "10.0.0.6:5"))),
         "is waiting for 1 of 3 nodes"),
        (Agent(7, 2, 1, "10.0.0.5", 29500, 60), (), (), "cannot connect to 10.0.0.5:29500: nobody listens there"),
        (Agent(7, 2, 1, "10.0.0.5", 29500, 60), (call(7),), (LISTENS,), "has joined at 10.0.0.5:29500, and is waiting"),
        (Agent(7, 2, 0, "10.0.0.5", 29500, 3), (), (replace(LISTENS, pid=7),), "SLOW"),
        (Agent(7, 1, 0, "", 29500, 60), (), (), "SLOW"),
    ],
)  # fmt: skip
def test_an_agent_without_ranks_says_which_nodes_it_waits_for(
    given: Agent, calls: tuple[Connection, ...], sockets: tuple[Connection, ...], words: str
) -> None:
    met = Meetings((replace(MASTER, sockets=sockets),), calls)
    found = of_agents({"n1": (LocalRanks((), agents=(given,)), met)})
    assert words in (found.answer.word if words == "SLOW" else found.answer.message)
    assert found.answer.word == ("SLOW" if words == "SLOW" else "STUCK")
    assert found.classes[0].processes == ("n1:7",)


def test_an_agent_is_known_by_its_options_and_by_torchruns_variables() -> None:
    assert agent(7, 1.0, {"nnodes": "2:4", "rdzv_endpoint": "h:1"}, {}) == Agent(7, 2, None, "h", 1, 1.0)
    assert agent(7, 1.0, {"master_addr": "h"}, {"PET_NNODES": "3"}) == Agent(7, 3, None, "h", 29500, 1.0)


@each_row(
    ("name", "message"),
    [
        ("wrongport", "rank 0 of 2 has arrived at 127.0.0.1:29611 30 s ago; rank 1 cannot connect to"),
        ("dns", "in init for 36 s: rank 1 cannot connect to nosuch.invalid:29618: the name nosuch.invalid cannot"),
        ("agent-static", "is waiting for 1 of 2 nodes; it has started no rank"),
        ("agent-client", "cannot connect to 127.0.0.1:29615: nobody listens there; it has started no rank"),
    ],
)  # fmt: skip
def test_looks_at_real_jobs_in_init_say_who_has_not_come(name: str, message: str, tmp_path: Path) -> None:
    """Torch 2.13 with gloo; the ranks of the first two have torch's worker server."""
    (tmp_path / "vm.jsonl").write_bytes(gzip.decompress((RECORDED / f"{name}.jsonl.gz").read_bytes()))
    found = stands(kept([str(tmp_path / "vm.jsonl")])).facts[JobState]
    assert isinstance(found, JobState)
    assert found.answer.word == "STUCK"
    assert message in found.answer.message


def spawned(*states: LiveRank, mesh: tuple[Connection, ...] = ()) -> JobState:
    """Return how processes without numbers stand that another one has started."""
    ranks = tuple(JobProcess(100 + n, 1, "python", None, Launch()) for n in range(len(states)))
    later = tuple(replace(each, time_s=each.time_s + 1) for each in states)
    first, second = (JobLook(look, NOTHING, ("",) * len(ranks), connections=mesh) for look in (states, later))
    return stand({"n1": (LocalRanks(ranks), JobLooks(first, second))})


def test_of_spawned_processes_the_one_that_does_not_try_to_join_is_named() -> None:
    found = spawned(PYTHON_SLEEPS, SLEEPS, SLEEPS)
    assert [(each.name, {*each.processes}) for each in found.classes] == [
        ("not arrived", {"n1:100"}), ("waiting", {"n1:101", "n1:102"})]  # fmt: skip
    assert found.answer.message.startswith("in init for 60 s: process 100 has not joined: it is sleeping (nanosleep)")
    busy = replace(PYTHON_SLEEPS, state="R", call="running")
    words = [
        spawned(*states, mesh=mesh).answer.word
        for states, mesh in (
            ((busy, SLEEPS, SLEEPS), ()),
            ((PYTHON_SLEEPS, *(replace(SLEEPS, age_s=9.0),) * 2), ()),
            ((SLEEPS,) * 3, ()),
            ((PYTHON_SLEEPS,) * 3, ()),
            ((PYTHON_SLEEPS, SLEEPS, SLEEPS), MESH),
        )
    ]
    assert words == ["SLOW", "SLOW", "CANNOT TELL", "CANNOT TELL", "CANNOT TELL"]


@each_row(
    ("values", "store"),
    [
        ({"hostname": "n1", "port": "29500"}, "n1:29500"),
        ({"init_method": "tcp://n1:29500?rank=0"}, "n1:29500"),
        ({"init_method": "file:///shared/x"}, ""),
        ({}, ""),
    ],
)
def test_the_store_of_a_call_is_where_its_arguments_say(values: dict[str, str], store: str) -> None:
    frame: Any = SimpleNamespace(filename="/venv/torch/distributed/rendezvous.py", values=values)
    assert address([frame]) == store
