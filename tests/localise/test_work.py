"""What is work between two looks at a rank, and which bytes are not its program's."""

from types import SimpleNamespace
from typing import Any

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightRecords
from ncclprobe.facts.files.ras import RasAnswer
from ncclprobe.facts.job.meeting import Connection
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import JobLook, JobLooks, JobProcess, JobState, LocalRanks
from ncclprobe.facts.launcher import Launch
from ncclprobe.logs.job import stand
from ncclprobe.logs.job.calls import confirmed, launched
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

UNASKED = Absent("it was not asked")
IDLE = LiveRank("S", 5.0, "futex_do_wait", "futex", switches=7, time_s=1000.0)
BARRIER = {0: "all_reduce@960", 1: "all_reduce@960 barrier*@970", 2: "all_reduce@960 barrier*@970"}
DOWNLOAD = Connection(100, "10.0.0.1:40000", "10.9.9.9:80")
READS_9 = replace(IDLE, call="recvfrom", file="socket:[9]")
CHILD = Child("S", 1.0, pid=500, name="aria2c")


def job(
    connections: tuple[Connection, ...] = (),
    received: int = 0,
    records: FlightRecords | None = None,
    states: dict[int, LiveRank] | None = None,
    later_of: dict[int, dict[str, Any]] | None = None,
    ras: Absent = UNASKED,
    **after: Any,
) -> JobState:
    """Return how three ranks of one node stand, each of whose connections receives so many bytes in a second."""
    states = states or dict.fromkeys(range(3), IDLE)
    launch = Launch("torchrun", world_size=3, local_world_size=3, master_addr="10.0.0.1", master_port=29500)
    ranks = tuple(JobProcess(100 + n, 1, "python", n, replace(launch, local_rank=n)) for n in states)
    records = recorded(BARRIER, backend="gloo") if records is None else records
    second = tuple(replace(each, received_bytes=each.received_bytes + received) for each in connections)
    of = later_of or {}
    later = tuple(replace(each, time_s=1001.0, **after, **of.get(n, {})) for n, each in states.items())
    looks = JobLooks(
        JobLook(tuple(states.values()), records, ("",) * 3, connections=connections),
        JobLook(later, records, ("",) * 3, ras=ras, connections=second),
    )
    return stand({"n1": (LocalRanks(ranks), looks)})


def test_what_a_rank_receives_on_a_socket_of_its_own_is_work() -> None:
    loopback = (
        replace(DOWNLOAD, local="127.0.0.1:1", peer="127.0.0.1:2"),
        Connection(500, "127.0.0.1:2", "127.0.0.1:1"),
    )
    with_child = {0: replace(IDLE, children=(CHILD,)), 1: IDLE, 2: IDLE}
    rows = [
        job((DOWNLOAD,), 5_000_000),
        job((DOWNLOAD,), 20_000),
        job((replace(DOWNLOAD, pid=500),), 200_000, states=with_child),
        job(loopback, 200_000, states=with_child),
        job((replace(DOWNLOAD, inode=9),), 40, states={0: READS_9, 1: IDLE, 2: IDLE}),
    ]  # fmt: skip
    assert len(rows) >= 4
    assert [each.answer.word for each in rows] == ["SLOW"] * len(rows)
    assert all("/s received" in each.classes[0].doing and each.classes[0].ranks == (0,) for each in rows)


def test_bytes_of_other_ranks_the_store_and_ras_are_no_work_of_a_program() -> None:
    of_ranks = (Connection(100, "10.0.0.1:1", "10.0.0.1:2"), Connection(101, "10.0.0.1:2", "10.0.0.1:1"))
    own_store = (Connection(100, "10.0.0.1:7", "10.0.0.1:8"), Connection(100, "10.0.0.1:8", "10.0.0.1:7"))
    rows = [
        job((DOWNLOAD,), 0),
        job((DOWNLOAD,), 500),  # a heartbeat
        job((replace(DOWNLOAD, inode=8),), 40, states={0: READS_9, 1: IDLE, 2: IDLE}),
        job((replace(DOWNLOAD, inode=9),), 0, states={0: READS_9, 1: IDLE, 2: IDLE}),
        job((replace(DOWNLOAD, inode=9, peer="10.0.0.2:29500"),), 40, states={0: READS_9, 1: IDLE, 2: IDLE}),
        job(of_ranks, 5_000_000),
        job(own_store, 5_000_000),
        job((replace(DOWNLOAD, peer="10.0.0.2:29500"),), 5_000_000),
        job((replace(DOWNLOAD, local="10.0.0.1:29500"),), 5_000_000),
        job((replace(DOWNLOAD, peer="10.0.0.2:28028"),), 5_000_000),
    ]
    assert len(rows) >= 7
    assert [(each.answer.word, each.classes[0].ranks) for each in rows] == [("STUCK", (0,))] * len(rows)


def test_a_job_that_does_nothing_between_the_looks_is_not_working() -> None:
    nothing = recorded(dict.fromkeys(range(3), ""), backend="gloo")
    long_ago = recorded(dict.fromkeys(range(3), "all_reduce@970 all_reduce@975"), backend="gloo")
    lately = recorded(dict.fromkeys(range(3), "all_reduce@980 all_reduce@998"), backend="gloo")
    spins = {"cpu_s": 5.9, "state": "R"}
    rows = [
        (job(records=nothing), "CANNOT TELL"),
        (job(records=long_ago), "CANNOT TELL"),
        (job(records=nothing, **spins), "CANNOT TELL"),  # a wait for its GPU
        (job(records=lately), "WORKING"),
        (job(records=nothing, cpu_s=5.9, faults=9000), "WORKING"),
        (job(records=nothing, moved_bytes=1 << 20), "WORKING"),
    ]
    assert len(rows) >= 6
    assert [found.answer.word for found, _ in rows] == [wanted for _, wanted in rows]


def test_idle_ranks_that_lately_heard_from_each_other_go_on() -> None:
    naps = replace(IDLE, call="nanosleep", still_s=0.3)
    mesh = [
        Connection(100 + n, f"10.0.0.1:{n}", f"10.0.0.1:{m}", heard_s=0.4) for n in range(3) for m in range(3) if n != m
    ]
    own = Connection(100, "10.0.0.1:0", "10.0.0.1:0", heard_s=0.4)

    def of(*connections: Connection, ras: str = "Missing", state: LiveRank = naps, cpu_s: float = 5.0) -> str:
        states = dict.fromkeys(range(3), state)
        nothing = recorded(dict.fromkeys(range(3), ""), backend="gloo")
        return job(connections, records=nothing, states=states, ras=Absent("", ras), cpu_s=cpu_s).answer.word

    ends = mesh[0], mesh[2], mesh[1], mesh[4], mesh[3], mesh[5]
    assert of(*ends) == "WORKING"
    silent = [replace(each, heard_s=40.0) for each in ends]
    to_store = [each for each in ends if "10.0.0.1:0" in (each.local, each.peer)]
    rows = [
        of(*silent),
        of(own, *to_store),  # rank 0 serves it, and is connected with itself
        of(*ends, ras="Denied"),  # NCCL's RAS talks for ever
        of(*ends, state=replace(naps, still_s=40.0)),
        of(*ends, state=replace(naps, still_s=None)),
        of(*ends[:1]),  # the other two heard nothing
        of(*ends, cpu_s=5.9, state=replace(naps, state="R")),
        of(),
    ]
    assert len(rows) >= 8
    assert rows == ["CANNOT TELL"] * len(rows)


def test_a_rank_that_has_ended_is_missing_though_its_number_is_not_known() -> None:
    ranks = tuple(JobProcess(100 + n, 1, "python", None, Launch()) for n in range(2))
    states = JobLook((IDLE, IDLE), FlightRecords(()), ("no server",) * 2)
    both = JobLooks(states, replace(states, processes=(replace(IDLE, time_s=1001.0),) * 2))
    found = stand({"n1": (LocalRanks(ranks, gone=1), both)})
    assert found.answer.word == "STUCK"
    assert found.answer.message == "2 of 3 ranks were examined: 1 of 3 ranks no longer have a process"
    assert stand({"n1": (LocalRanks(ranks), both)}).answer.word == "CANNOT TELL"


def test_another_thread_of_the_program_that_computes_is_work() -> None:
    rows = [(0.03, "SLOW"), (0.1, "SLOW"), (0.01, "STUCK"), (0.0, "STUCK")]
    assert [job(later_of={0: {"others_ran_s": ran_s}}).answer.word for ran_s, _ in rows] == [word for _, word in rows]


def test_only_ranks_that_were_looked_at_are_blamed_and_only_for_a_call_that_is_open() -> None:
    gone = LiveRank("Z", 5.0, time_s=1000.0)
    ended = recorded({0: "all_reduce@960 all_reduce@970"}, world=4, backend="gloo")
    found = job(records=ended, states={0: IDLE, 1: gone})
    assert found.answer.message.startswith(
        "1 of 3 ranks has been waiting for 31 s after all_reduce #2 (group 0 (default_pg)), which has ended"
    )
    assert found.answer.message.endswith("for rank 1 on n1")
    still = recorded({0: "all_reduce@960 all_reduce*@970"}, world=4, backend="gloo")
    assert "has been waiting for 31 s in all_reduce #2" in job(records=still, states={0: IDLE, 1: gone}).answer.message


def test_a_loop_is_told_from_work_by_new_memory_for_its_processor_time() -> None:
    waits = {0: "all_reduce@700", **dict.fromkeys((1, 2), "all_reduce@700 barrier*@710")}
    records = recorded(waits, backend="gloo")
    states = {0: replace(IDLE, state="R"), 1: IDLE, 2: IDLE}
    rows = [
        ({"cpu_s": 5.9, "faults": 0}, "STUCK"),
        ({"cpu_s": 5.9, "faults": 9000}, "SLOW"),
        ({"cpu_s": 5.1, "faults": 0}, "STUCK"),  # a node with more to do than it can
        ({"cpu_s": 5.1, "faults": 60}, "SLOW"),
    ]
    assert len(rows) >= 4
    lately = {0: "all_reduce@800", **dict.fromkeys((1, 2), "all_reduce@800 barrier*@840")}  # it may evaluate
    assert job(records=recorded(lately, backend="gloo"), states=states, later_of={0: rows[0][0]}).answer.word == "SLOW"
    for after, word in rows:
        found = job(records=records, states=states, later_of={0: after})
        assert (found.answer.word, found.classes[0].ranks) == (word, (0,)), after


def test_what_ras_said_at_one_of_two_looks_alone_confirms_nothing() -> None:
    once, again = RasAnswer("a", launched=((1, 5), (2, 5), (3, 5))), RasAnswer("b", launched=((1, 5), (2, 6), (4, 9)))
    rows = [(UNASKED, once), (once, UNASKED), (UNASKED, UNASKED), (once, again)]
    looks: list[Any] = [SimpleNamespace(first=SimpleNamespace(ras=a), second=SimpleNamespace(ras=b)) for a, b in rows]
    assert [confirmed(each) for each in looks] == [None, None, None, again]
    assert [launched(each) for each in looks] == [frozenset(), frozenset(), frozenset(), frozenset({2})]
