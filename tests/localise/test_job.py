"""How a running job stands, from two looks at its ranks."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncclprobe.checks.job.ranks import outside
from ncclprobe.checks.log.flight import recorded
from ncclprobe.engine.running import kept, stands
from ncclprobe.facts.files.flight_records import FlightFrame, FlightRecords
from ncclprobe.facts.files.ras import RasAnswer, read_answer
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import Connection, JobLook, JobLooks, JobProcess, JobState, LocalRanks
from ncclprobe.facts.job.stacks import ThreadPlace
from ncclprobe.facts.launcher import Launch
from ncclprobe.logs.job import stand
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row, some

RECORDED = Path(__file__).resolve().parents[1] / "data" / "on_cpu"
NOW_S = 1000.0
NOTHING = FlightRecords(())
IDLE = LiveRank("S", 5.0, "futex_do_wait", "futex", switches=7, time_s=NOW_S)
SLEEPS = LiveRank("S", 5.0, "hrtimer_nanosleep", "nanosleep", switches=7, time_s=NOW_S)
STOPPED = LiveRank("T", 5.0, "do_signal_stop", time_s=NOW_S)
ENDED = LiveRank("Z", 5.0, time_s=NOW_S)
GONE = Absent("process 102: it has ended", "Missing")
UNSEEN = Absent("process 102: permission denied", "Denied")
WAIT_OF_51 = {0: "all_reduce@960 all_reduce*@970", 1: "all_reduce@960 all_reduce*@970", 2: "all_reduce@960"}
IN_ALL_REDUCE = (
    FlightFrame("all_reduce", "/v/torch/distributed/distributed_c10d.py", 3000),
    FlightFrame("step", "/home/u/train.py", 40),
)
IN_LOADER = (FlightFrame("recv", "/usr/lib/python3.11/connection.py", 3), FlightFrame("step", "/home/u/train.py", 12))


def later(state: LiveRank, after_s: float = 1.0, **changes: Any) -> LiveRank:
    """Return a state some time later."""
    return replace(state, time_s=state.time_s + after_s, **changes)


def looked(
    states: Mapping[int, tuple[LiveRank | Absent, LiveRank | Absent]],
    first: FlightRecords = NOTHING,
    second: FlightRecords | None = None,
    stacks: Mapping[int, tuple[tuple[FlightFrame, ...], tuple[FlightFrame, ...]]] | None = None,
    world: int = 0,
    absent: tuple[int, ...] = (),
    ras: tuple[RasAnswer | Absent, RasAnswer | Absent] = (GONE, GONE),
    wires: tuple[tuple[Connection, ...], tuple[Connection, ...]] = ((), ()),
    silent: tuple[int, ...] = (),
    of_children: Mapping[int, tuple[FlightFrame, ...]] | None = None,
    gpus: tuple[tuple[LiveGpu, ...], tuple[LiveGpu, ...], Any] = ((), (), ()),
    port: int | None = None,
    threads: tuple[tuple[ThreadPlace, ...], ...] = (),
) -> JobState:
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
    second_look = replace(looks.second, of_children=of_children or {}, gpus=gpus[1], threads=threads)
    looks = replace(looks, first=replace(looks.first, gpus=gpus[0]), second=second_look, xids=gpus[2])
    return stand({"n1": (LocalRanks(ranks, absent), looks)})


def waits_for_2(first: LiveRank | Absent, second: LiveRank | Absent) -> JobState:
    waiting = (IDLE, later(IDLE))
    return looked({0: waiting, 1: waiting, 2: (first, second)}, recorded(WAIT_OF_51, backend="gloo"))


def classes(found: JobState) -> dict[str, tuple[int, ...]]:
    return {each.name: each.ranks for each in found.classes}


@each_row(
    ("state", "stacks", "name"),
    [
        (IDLE, None, "cannot tell"),
        (IDLE, IN_ALL_REDUCE, "cannot tell"),
        (IDLE, IN_LOADER, "stuck outside"),
        (SLEEPS, None, "stuck outside"),
        (STOPPED, None, "stuck outside"),
    ],
)
def test_a_rank_whose_server_is_late_is_not_accused_of_a_lock_that_may_be_of_the_call(
    state: LiveRank, stacks: tuple[FlightFrame, ...] | None, name: str
) -> None:
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (state, later(state))}
    read = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (stacks,) * 2} if stacks else None
    found = looked(states, recorded(WAIT_OF_51, backend="gloo"), stacks=read, silent=(2,))
    assert classes(found) == {name: (2,), "waiting": (0, 1)}


@each_row(("silent", "name"), [((), "stuck outside"), ((2,), "cannot tell")])
def test_a_rank_that_spins_is_not_accused_where_it_may_do_so_in_the_call(silent: tuple[int, ...], name: str) -> None:
    spins = replace(IDLE, state="R", call="running")
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (spins, later(spins, cpu_s=6.0))}
    waits = {rank: calls.replace("970", "770").replace("960", "760") for rank, calls in WAIT_OF_51.items()}
    found = looked(states, recorded(waits, backend="nccl"), silent=silent)
    assert classes(found) == {name: (2,), "waiting": (0, 1)}


def test_records_that_name_a_rank_which_is_not_here_break_nothing() -> None:
    waiting = (IDLE, later(IDLE))
    found = looked({0: waiting}, recorded({0: "all_reduce*@900", 1: "all_reduce*@900"}), world=2)
    assert classes(found) == {"stuck inside": (0, 1)}


@each_row(
    ("first", "second", "name", "words"),
    [
        (SLEEPS, later(SLEEPS), "stuck outside", "is sleeping (nanosleep)"),
        (SLEEPS, later(SLEEPS, switches=27, ran_s=0.02), "slow, not stuck", "is at work (0.0 cores, between sleeps)"),
        (SLEEPS, later(SLEEPS, switches=27, ran_s=0.004), "stuck outside", "is sleeping (nanosleep)"),
        (SLEEPS, later(SLEEPS, switches=9, ran_s=0.02), "stuck outside", "is sleeping (nanosleep)"),
        (IDLE, later(IDLE), "stuck outside", "is waiting for a lock or for another thread (futex)"),
        (STOPPED, later(STOPPED), "stuck outside", "is stopped by a signal"),
        (IDLE, GONE, "dead or gone", "has ended (process 102)"),
        (IDLE, ENDED, "dead or gone", "has ended (process 102)"),
        (UNSEEN, UNSEEN, "cannot tell", "is not known: process 102: permission denied"),
        (IDLE, later(IDLE, cpu_s=5.9, faults=9000), "slow, not stuck", "is at work (0.9 cores)"),
        (IDLE, later(IDLE, moved_bytes=300_000_000), "slow, not stuck", "is at work (0.0 cores, 300 MB/s"),
        (
            IDLE,
            later(IDLE, cpu_s=5.04, queued_s=0.5),
            "slow, not stuck",
            "is at work (0.0 cores, waiting for a processor)",
        ),
        (IDLE, later(IDLE, cpu_s=5.01, queued_s=0.5), "stuck outside", "is waiting for a lock"),
        (IDLE, later(IDLE, cpu_s=5.08), "stuck outside", "is waiting for a lock"),
        (IDLE, later(IDLE, held_s=0.8), "slow, not stuck", "held back by the quota of its cgroup"),
        (IDLE, later(IDLE, cpu_s=5.9), "slow, not stuck", "reads and writes nothing: an endless loop or long work"),
    ],
)
def test_a_rank_for_which_others_wait_is_stuck_only_if_it_does_nothing(
    first: Any, second: Any, name: str, words: str
) -> None:
    found = waits_for_2(first, second)
    assert classes(found) == {name: (2,), "waiting": (0, 1)}
    assert words in found.classes[0].doing
    assert (
        found.answer.message
        == "2 of 3 ranks have been waiting for 31 s in all_reduce #2 (group 0 (default_pg)) for rank 2 on n1"
    )
    assert found.answer.word == {"slow, not stuck": "SLOW", "cannot tell": "CANNOT TELL"}.get(name, "STUCK")


def test_a_loop_is_stuck_when_others_have_waited_for_three_minutes() -> None:
    texts = {0: "all_reduce@700 all_reduce*@710", 1: "all_reduce@700 all_reduce*@710", 2: "all_reduce@700"}
    loop = (IDLE, later(IDLE, cpu_s=5.9))
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: loop}
    assert classes(looked(states, recorded(texts, backend="gloo")))["stuck outside"] == (2,)
    other = (IN_LOADER[1], IN_LOADER[0])
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (IN_LOADER, other)}
    assert "stuck outside" not in classes(looked(states, recorded(texts, backend="gloo"), stacks=stacks))


@each_row(("cpu_s", "name"), [(3.0, "slow, not stuck"), (0.08, "slow, not stuck"), (0.01, "stuck outside")])
def test_a_child_at_work_is_work_of_its_rank(cpu_s: float, name: str) -> None:
    compiler = Child("S", 3.0, pid=7, name="cc1plus")
    found = waits_for_2(
        replace(IDLE, children=(compiler,)), later(IDLE, children=(replace(compiler, cpu_s=3.0 + cpu_s, queued_s=0.4),))
    )
    assert classes(found)[name] == (2,)


def test_a_worker_that_cannot_go_on_is_named_and_its_pipe() -> None:
    worker = Child(
        "D", 3.0, "nfs_wait_on_request", "read", "/data/7.tar", pipes=("pipe:[9]",), pid=4242, name="pt_data_worker"
    )
    polls = LiveRank("S", 5.0, "do_poll", "poll", pipes=("pipe:[9]",), children=(worker,), time_s=NOW_S)
    (outside, _) = waits_for_2(polls, later(polls)).classes
    wanted = "its process 4242 (pt_data_worker), which shares a pipe with it, is in uninterruptible sleep"
    assert f"is waiting for input (poll); {wanted} (nfs_wait_on_request, /data/7.tar)" in outside.doing


def test_no_rank_is_named_for_whom_others_wait_no_longer_than_usual() -> None:
    texts = dict.fromkeys((0, 1), "all_reduce@900 all_reduce@950 all_reduce*@998") | {
        2: "all_reduce@900 all_reduce@950"
    }
    found = looked(dict.fromkeys(range(3), (IDLE, later(IDLE))), recorded(texts, backend="gloo"))
    assert found.answer.word == "SLOW"


def test_ranks_that_move_between_the_looks_stand_nowhere() -> None:
    first = recorded({0: "all_reduce all_reduce*", 1: "all_reduce"}, backend="gloo")
    second = recorded({0: "all_reduce all_reduce all_reduce*", 1: "all_reduce all_reduce"}, backend="gloo")
    found = looked(dict.fromkeys(range(2), (IDLE, later(IDLE))), first, second)
    assert (found.answer.word, classes(found)) == ("WORKING", {"working": (0, 1)})


def test_ranks_in_other_collectives_wait_for_each_other() -> None:
    texts = {
        0: "all_reduce@970 all_reduce*@971",
        1: "all_reduce@970 all_gather*@971",
        2: "all_reduce@970 all_reduce*@971",
    }
    found = looked(dict.fromkeys(range(3), (IDLE, later(IDLE))), recorded(texts, backend="gloo"))
    assert (found.answer.word, classes(found)) == ("STUCK", {"desync": (1,), "waiting": (0, 2)})
    assert "rank 1 called all_gather" in found.answer.message


def test_ranks_that_wait_in_groups_whose_members_are_not_known_wait_for_each_other() -> None:
    texts = dict.fromkeys(range(3), "all_reduce@970 all_reduce*@971") | {1: "all_reduce@970 1/all_reduce*@971"}
    dumps = recorded(texts, backend="gloo").dumps
    unknown = [[replace(g, ranks=(), desc=g.desc or "undefined") for g in each.groups] for each in dumps]
    records = tuple(replace(each, groups=tuple(own)) for each, own in zip(dumps, unknown, strict=True))
    found = looked(dict.fromkeys(range(3), (IDLE, later(IDLE))), FlightRecords(records))
    assert (found.answer.word, classes(found)) == ("STUCK", {"desync": (1,), "waiting": (0, 2)})


def test_a_rank_that_is_stopped_in_a_call_holds_up_all_that_are_in_it() -> None:
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (STOPPED, later(STOPPED))}
    texts = dict.fromkeys(range(3), "all_reduce@970 all_reduce*@971")
    found = looked(states, recorded(texts, backend="gloo"))
    assert classes(found) == {"stuck inside": (2,), "waiting": (0, 1)}
    assert "for rank 2" in found.answer.message


def test_a_rank_that_answers_nothing_is_named_by_its_silence() -> None:
    texts = {0: "all_reduce@970 all_reduce*@971", 1: "all_reduce@970 all_reduce*@971"}
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (STOPPED, later(STOPPED))}
    found = looked(states, recorded(texts, world=3, backend="gloo"))
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}


@each_row(("second", "name"), [(999, "working"), (985, "cannot tell"), (965, "stuck inside")])
def test_a_collective_with_all_ranks_in_it_stands_after_half_a_minute(second: int, name: str) -> None:
    texts = dict.fromkeys(range(2), f"all_reduce@{second - 5} all_reduce*@{second}")
    found = looked(dict.fromkeys(range(2), (IDLE, later(IDLE))), recorded(texts))
    assert classes(found) == {name: (0, 1)}


def test_without_records_a_rank_is_named_that_waits_for_a_lock_or_a_pipe_and_none_works() -> None:
    locked = replace(IDLE, call="flock", file="/data/lock", holder=77)
    fifo = replace(IDLE, call="open", wchan="wait_for_partner", file="/run/in.fifo")
    full = replace(IDLE, call="write", file="pipe:[7]")
    rows = [
        (locked, IDLE, 20.0, "STUCK"),
        (fifo, IDLE, 20.0, "STUCK"),
        (full, IDLE, 20.0, "STUCK"),
        (locked, IDLE, 5.0, "CANNOT TELL"),
        (replace(locked, holder=0), IDLE, 20.0, "CANNOT TELL"),
        (replace(fifo, wchan=""), IDLE, 20.0, "CANNOT TELL"),
        (replace(full, file="/dev/null"), IDLE, 20.0, "CANNOT TELL"),
        (replace(full, call="read"), IDLE, 20.0, "CANNOT TELL"),
        (locked, replace(IDLE, state="R"), 20.0, "CANNOT TELL"),
    ]
    wrong = []
    for state, other, still_s, word in rows:
        busy = later(other, cpu_s=other.cpu_s + (other.state == "R"), faults=9000 * (other.state == "R"))
        found = looked({0: (other, busy), 1: (IDLE, later(IDLE)), 2: (state, later(state, still_s=still_s))})
        if found.answer.word != word or (word == "STUCK" and found.classes[0].ranks != (2,)):
            wrong.append((state.call, still_s, found.answer.word))
    assert not wrong


def test_a_rank_that_waits_for_requests_is_not_accused() -> None:
    serves = replace(IDLE, call="poll", file="a socket that listens at 127.0.0.1:8000", listens=True)
    for state, word in ((serves, "CANNOT TELL"), (replace(serves, listens=False), "STUCK")):
        states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (state, later(state))}
        found = looked(states, recorded(WAIT_OF_51, backend="gloo"))
        assert found.answer.word == word
        assert found.classes[0].ranks == (2,)
    serving = looked({**states, 2: (serves, later(serves))}, recorded(WAIT_OF_51, backend="gloo"))
    wanted = "is waiting for requests (poll of a socket that listens at 127.0.0.1:8000)"
    assert serving.classes[0].doing == wanted


def test_ranks_of_a_node_that_was_not_looked_at_are_not_judged() -> None:
    states = dict.fromkeys(range(2), (IDLE, later(IDLE)))
    texts = dict.fromkeys(range(2), "all_reduce@970 all_reduce*@971")
    found = looked(states, recorded(texts, world=4, backend="gloo"), world=4)
    assert (found.answer.word, classes(found)) == ("CANNOT TELL", {"cannot tell": (2, 3), "waiting": (0, 1)})
    assert found.classes[0].doing == "were not examined: attach on its node too"


def test_without_records_and_stacks_a_stopped_rank_is_named_and_no_other() -> None:
    states = {0: (IDLE, later(IDLE)), 1: (SLEEPS, later(SLEEPS)), 2: (STOPPED, later(STOPPED))}
    found = looked(states, silent=(0, 1, 2))
    assert classes(found)["stuck outside"] == (2,)
    assert {0, 1} <= {rank for each in found.classes if each.name == "cannot tell" for rank in each.ranks}
    assert "--prepare" in found.answer.prepare


def test_a_job_that_starts_or_ends_is_not_stuck_for_its_absent_ranks() -> None:
    at_work = (IDLE, later(IDLE, cpu_s=5.9, faults=9000))
    assert looked({0: at_work}, world=2, absent=(1,)).answer.word == "WORKING"
    assert looked({0: (IDLE, later(IDLE))}, world=2, absent=(1,)).answer.word == "STUCK"


def test_ranks_that_all_do_nothing_outside_of_any_call_are_stuck_after_minutes() -> None:
    texts = dict.fromkeys(range(2), "all_reduce@600 all_reduce@610")
    states = dict.fromkeys(range(2), (SLEEPS, later(SLEEPS)))
    assert classes(looked(states, recorded(texts))) == {"stuck outside": (0, 1)}
    texts = dict.fromkeys(range(2), "all_reduce@600 all_reduce@800")  # they pause as long now and then
    assert classes(looked(states, recorded(texts))) == {"working": (0, 1)}


def counts(*launched: int) -> RasAnswer:
    """Return what RAS says of ranks, each of its own process, that have launched so many operations."""
    ranks = [
        {"rank": n, "host": "h", "pid": 100 + n, "collective_counts": {"AllReduce": count, "AllGather": 3}}
        for n, count in enumerate(launched)
    ]
    comm = {"hash": "0xae94423cfbb2ef4a", "ranks": ranks, "missing_ranks": []}
    return read_answer("NCCL RAS", json.dumps({"nccl_version": "2.29.1", "communicators": [comm]}).encode())


def test_nccls_own_counts_name_the_rank_that_has_launched_less_and_does_not_go_on() -> None:
    spins = (IDLE, later(IDLE, cpu_s=5.9))  # the host waits for its GPU
    states = {0: spins, 1: spins, 2: (SLEEPS, later(SLEEPS, still_s=42.0))}
    found = looked(states, ras=(counts(51, 51, 50), counts(51, 51, 50)))
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}
    where = "2 of 3 ranks are waiting in AllReduce #51 (communicator ae94423cfbb2ef4a) for rank 2 on n1"
    assert (found.answer.word, found.answer.message) == ("STUCK", where)
    fresh = states | {2: (SLEEPS, later(SLEEPS, still_s=2.0))}
    assert looked(fresh, ras=(counts(51, 51, 50), counts(51, 51, 50))).answer.word == "SLOW"


@each_row(
    ("before", "after", "name"),
    [
        ((51, 51, 50), (52, 52, 51), "working"),
        ((51,) * 3, (57,) * 3, "working"),
        ((51, 51, 51), (51, 51, 50), "cannot tell"),
        ((51,) * 3, (51,) * 3, "cannot tell"),
    ],
)
def test_counts_that_grow_are_work_and_those_that_agree_accuse_no_rank(
    before: tuple[int, ...], after: tuple[int, ...], name: str
) -> None:
    states = dict.fromkeys(range(3), (SLEEPS, later(SLEEPS, still_s=42.0)))
    assert set(classes(looked(states, ras=(counts(*before), counts(*after))))) == {name}


@each_row(
    ("name", "word", "message"),
    [
        ("healthy", "WORKING", "4 of 4 ranks were examined, and none is waiting for a rank that makes no progress"),
        (
            "sleeps",
            "STUCK",
            "3 of 4 ranks are waiting in AllReduce #41 (communicator fe0116e64fcfca9a) for rank 2 on vm",
        ),
        ("other-operation", "STUCK", "rank 2 launched AllGather #1, which no other rank has"),
        ("stopped", "STUCK", "4 of 4 ranks were examined: rank 2 is stopped by a signal"),
    ],
)
def test_looks_at_jobs_of_real_nccl_say_who_is_waited_for(tmp_path: Path, name: str, word: str, message: str) -> None:
    """Four ranks of torch 2.12 and NCCL 2.30.7 on a processor, unprepared: the real RAS and /proc say it all."""
    (tmp_path / "vm.jsonl").write_bytes(gzip.decompress((RECORDED / f"attach-{name}.jsonl.gz").read_bytes()))
    found = stands(kept([str(tmp_path / "vm.jsonl")])).facts[JobState]
    assert isinstance(found, JobState)
    assert (found.answer.word, found.answer.message) == (word, message)
    assert [each.name for each in found.classes if 2 not in each.ranks] in ([], ["waiting"])


def test_looks_at_two_nodes_name_the_rank_that_neither_node_shows_alone(tmp_path: Path) -> None:
    """Two torchrun nodes of two gloo ranks, each in its own namespace of processes, looked at a second apart."""
    paths = [tmp_path / f"n{node}.jsonl" for node in (0, 1)]
    for path in paths:
        path.write_bytes(gzip.decompress((RECORDED.parent / f"attach-2-nodes-{path.name}.gz").read_bytes()))
    words = []
    for looks in (paths[:1], paths):
        found = stands(kept([str(path) for path in looks])).facts[JobState]
        assert isinstance(found, JobState)
        words.append((found.answer.word, found.answer.message.partition("))")[0], classes(found)))
    waits = "ranks have been waiting for 24 s in all_reduce #41 (group 0 (default_pg"
    assert words == [
        ("CANNOT TELL", f"2 of 4 {waits}", {"cannot tell": (2, 3), "waiting": (0, 1)}),
        ("STUCK", f"3 of 4 {waits}", {"stuck outside": (2,), "waiting": (0, 1, 3)}),
    ]


def test_a_look_at_a_job_of_which_one_direction_is_dropped_names_both_ends(tmp_path: Path) -> None:
    """Three gloo ranks, unprepared, between ranks 0 and 2 of which nftables drops what rank 0 sends."""
    kept_look = (RECORDED.parent / "attach-one-direction.jsonl.gz").read_bytes()
    (tmp_path / "vm.jsonl").write_bytes(gzip.decompress(kept_look))
    found = stands(kept([str(tmp_path / "vm.jsonl")])).facts[JobState]
    assert isinstance(found, JobState)
    assert (found.answer.word, classes(found)) == ("STUCK", {"stuck inside": (0, 2), "waiting": (1,)})
    assert "rank 0 sends to rank 2 over d0 (10.77.1.1:39433 to 10.77.1.1:57160)" in found.classes[0].doing


def test_a_rank_that_ended_where_the_kernel_killed_for_want_of_memory_says_so() -> None:
    killed = (IDLE, later(IDLE, oom_kills=1))
    found = looked({0: killed, 1: killed, 2: (IDLE, ENDED)}, recorded(WAIT_OF_51, backend="gloo"))
    assert found.classes[0].doing == "has ended (process 102); its cgroup counts 1 kill because memory ran out"
    assert looked({0: killed}, world=2, absent=(1,)).classes[0].doing.endswith("counts 1 kill because memory ran out")


def test_time_without_memory_between_the_looks_is_evidence() -> None:
    (outside, _) = waits_for_2(replace(SLEEPS, memory_s=7.0), later(SLEEPS, memory_s=7.6)).classes
    assert "0.6 s without memory" in outside.evidence[0].text
    (outside, _) = waits_for_2(replace(SLEEPS, memory_s=7.0), later(SLEEPS, memory_s=7.0)).classes
    assert "memory" not in outside.evidence[0].text


@each_row(("swapped", "said"), [(3 << 30, True), (1 << 20, False)])
def test_a_rank_in_swap_is_told_as_that(swapped: int, said: bool) -> None:
    (outside, _) = waits_for_2(SLEEPS, later(SLEEPS, swapped_bytes=swapped)).classes
    assert ("3 GiB of it in swap" in outside.evidence[0].text) == said


IN_BACKWARD = (
    FlightFrame("_engine_run_backward", "/v/torch/autograd/graph.py", 840),
    FlightFrame("step", "/home/u/train.py", 41),
)


@each_row(
    ("first", "changes", "word"),
    [
        (IDLE, {}, "STUCK"),
        (IDLE, {"cpu_s": 5.9, "faults": 9000}, "CANNOT TELL"),  # the backward pass computes
    ],
)
def test_ranks_idle_in_backward_wait_for_the_gradients_of_others(
    first: LiveRank, changes: dict[str, Any], word: str
) -> None:
    still = replace(first, still_s=40.0)
    states = {0: (still, later(still, **changes)), 1: (SLEEPS, later(SLEEPS)), 2: (still, later(still, **changes))}
    stacks = {0: (IN_BACKWARD,) * 2, 1: (IN_LOADER,) * 2, 2: (IN_BACKWARD,) * 2}
    found = looked(states, stacks=stacks)
    assert found.answer.word == word
    if word == "STUCK":
        assert classes(found) == {"stuck outside": (1,), "waiting": (0, 2)}
        assert "2 of 3 ranks have been waiting for 40 s in backward (train.py:41)" in found.answer.message


def test_the_job_is_at_fault_only_for_what_its_program_does() -> None:
    disk = replace(SLEEPS, state="D", wchan="nfs_wait_on_request")
    lock = replace(IDLE, call="flock", wchan="locks_lock_inode_wait", file="/data/lock", holder=100)
    rows = [
        (SLEEPS, "job", "the named line"),
        (STOPPED, "unknown", "kill -CONT"),
        (replace(STOPPED, state="t", tracer=9), "unknown", "the debugger"),
        (disk, "unknown", "storage is at fault"),
        (replace(IDLE, frozen=True), "unknown", "container runtime"),
        (lock, "job", "End the process that holds the lock"),
        (replace(lock, holder=0, taker=100), "job", "Find the process that still has the file open"),
    ]
    assert len(rows) >= 6
    for state, blame, remedy in rows:
        (finding,) = outside.run(waits_for_2(state, later(state)))
        assert (finding.blame, remedy in finding.remedy, bool(remedy)) == (blame, True, bool(finding.remedy)), state


def test_who_holds_a_lock_and_which_fifo_is_opened_are_named() -> None:
    lock = replace(IDLE, call="flock", file="/data/lock", holder=100)
    left = replace(lock, holder=0, taker=100)
    fifo = replace(IDLE, call="open", wchan="wait_for_partner", file="/data/in.fifo")
    rows = [
        (lock, "is waiting for the lock on a file (flock of /data/lock, which rank 0 holds)"),
        (replace(lock, holder=4711), "(flock of /data/lock, which process 4711 holds)"),
        (replace(lock, holder=0), "(flock of /data/lock)"),
        (replace(left, users=(4711, 102)),
         "(flock of /data/lock; rank 0 took the lock and no longer has the file open: a process that inherited it "
         "keeps the lock; the file is open in process 4711, rank 2)"),
        (left, "(flock of /data/lock; rank 0 took the lock, but may not have the file open now)"),
        (fifo, "is opening a FIFO whose other end nobody opens (open of /data/in.fifo)"),
        (replace(fifo, wchan="nfs_open"), "is opening a file (open of /data/in.fifo)"),
    ]  # fmt: skip
    for state, text in some(rows):
        assert waits_for_2(state, later(state)).classes[0].doing.endswith(text)


def test_a_worker_of_a_data_loader_that_sleeps_is_named() -> None:
    worker = Child("S", 3.0, "hrtimer_nanosleep", "nanosleep", pipes=("pipe:[9]",), pid=42, name="pt_data_worker")
    polls = replace(IDLE, call="poll", pipes=("pipe:[9]",), children=(worker,))
    assert (
        waits_for_2(polls, later(polls))
        .classes[0]
        .doing.endswith("its process 42 (pt_data_worker), which shares a pipe with it, is sleeping (nanosleep)")
    )
    idle = replace(polls, children=(replace(worker, call="poll"),))
    assert "its process" not in waits_for_2(idle, later(idle)).classes[0].doing


def test_other_nodes_of_the_job_are_asked_for_and_what_was_done_is_not() -> None:
    launch = Launch("torchrun", rank=0, world_size=4, local_rank=0, local_world_size=1, nnodes=2)
    process = JobProcess(100, 1, "python", 0, launch)
    looks = JobLooks(JobLook((IDLE,), servers=("no server",)), JobLook((later(IDLE),), servers=("no server",)))
    done = JobLooks(replace(looks.first, servers=("",)), replace(looks.second, servers=("",)))
    slurm = replace(process, settings={"SLURM_JOB_ID": "4711"})
    command = "`srun --jobid=4711 --overlap -N 2 --ntasks-per-node=1 ncclprobe attach"
    by_hand = replace(slurm, launch=replace(launch, kind="environment", nnodes=None))
    by_hand = replace(by_hand, settings={"SLURM_JOB_ID": "4711", "SLURM_STEP_NUM_NODES": "2"})
    one_node = replace(process, launch=replace(launch, nnodes=1))
    rows = [
        (slurm, looks, (f"1 of 2 nodes of job 4711 were examined: {command}", "--prepare", "--stacks"), ()),
        (by_hand, looks, (f"1 of 2 nodes of job 4711 were examined: {command}",), ()),
        (process, looks, ("1 of 2 nodes were examined: attach on each",), ("srun",)),
        (one_node, looks, ("--prepare",), ("nodes",)),
        (one_node, done, ("--stacks",), ("--prepare",)),  # its server answers
    ]
    assert len(rows) >= 4
    for rank, seen, wanted, unwanted in rows:
        answer = stand({"n1": (LocalRanks((rank,)), seen)}).answer
        assert all(words in answer.prepare for words in wanted), answer.prepare
        assert not any(words in answer.prepare for words in unwanted), answer.prepare
        assert (answer.sources == "worker server: 1 of 1 ranks answer") == (seen is done)


IN_INIT = (
    FlightFrame("_create_c10d_store", "/lib/torch/distributed/rendezvous.py", 189),
    FlightFrame("init_process_group", "/lib/torch/distributed/distributed_c10d.py", 1759),
    FlightFrame("main", "/home/me/train.py", 7),
)


@each_row(
    ("native", "age_s", "word"),
    [
        (True, 60.0, "STUCK"),
        (True, 7.0, "SLOW"),  # the others may still be on their way
        (False, 60.0, "CANNOT TELL"),  # it woke, and not to try again: it may be at work
    ],
)
def test_ranks_that_try_again_to_reach_their_store_wait_in_init(native: bool, age_s: float, word: str) -> None:
    """They wake every second or so to do so, so that they do not seem to wait."""
    tries = replace(SLEEPS, native=native, age_s=age_s, still_s=0.3)
    again = later(tries, switches=8)
    found = looked(
        {0: (SLEEPS, later(SLEEPS)), 1: (tries, again), 2: (tries, again)},
        stacks={0: (IN_LOADER,) * 2, 1: (IN_INIT,) * 2, 2: (IN_INIT,) * 2},
    )
    assert found.answer.word == word, found.answer.message
    if word == "STUCK":
        assert classes(found) == {"stuck outside": (0,), "waiting": (1, 2)}
        assert "2 of 3 ranks have been waiting for 55 s in init_process_group (train.py:7)" in found.answer.message
