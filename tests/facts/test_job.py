"""Which processes are ranks of a job, by their variables or as a program started them, and what two looks read."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ncclprobe.engine import running
from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job import stacks
from ncclprobe.facts.job.gpus import gpus
from ncclprobe.facts.job.ranks import AskedJob, LocalRanks, local_ranks
from ncclprobe.facts.kernel_log import OF_GPUS
from ncclprobe.host import SAMPLE
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import HostError, OutOfTime, ParseError, TimedOut
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row

QUESTION = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PET_NODE_RANK")


def process(pid: int, rank: int | None, parent: int = 1, *, library: bool | None = True, **more: Any) -> dict[str, Any]:
    """Return a process as the machine tells of it; `more`: variables."""
    own = {} if rank is None else {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    variables = {**own, "MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", **more}
    return {
        **{"pid": pid, "parent": parent, "start": pid, "name": "python", "user": 1000, "library": library},
        "python": library is not None,
        "variables": {name: value for name, value in variables.items() if value},
    }


def found(*given: dict[str, Any], pid: int = 0, env: dict[str, str] | None = None, **more: Any) -> LocalRanks:
    said = json.dumps({"time_s": 1.0, "processes": given, **more})
    answers: Any = {("ranks", pid, *QUESTION): said, ("env",): json.dumps(env or {})}
    return local_ranks.run(Replay(answers | {(SAMPLE, "attach"): json.dumps({"pid": pid})}, older=False), AskedJob(pid))


def told(ranks: LocalRanks) -> str:
    """Return pid and number of each rank, and what else is known."""
    more = {"absent": ranks.absent, "others": [each[0] for each in ranks.others], "gone": ranks.gone or (),
            "hidden": ranks.hidden or (), "agents": [each.pid for each in ranks.agents],
            "twins": [pid for each in ranks.ranks for pid in each.twins]}  # fmt: skip
    words = [f"{each.pid}:{'-' if each.rank is None else each.rank}" for each in ranks.ranks]
    return " ".join([*words, *(f"{name} {value}" for name, value in more.items() if value not in ((), []))])


BY_HAND = {"LOCAL_WORLD_SIZE": "", "LOCAL_RANK": ""}
OTHER, AGENT = process(30, 0, MASTER_PORT="29501"), {"agent": {"nnodes": "2"}}
TASK = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7"}
LAUNCHED = process(9, None, SLURM_PROCID="0", SLURM_STEP_ID="0", SLURM_NTASKS="2") | AGENT
SPAWNED, PAIR = [process(11, None, 10), process(12, None, 10)], [process(10, 0, 9), process(11, 1, 9)]
THREE = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": ""}  # and rank 3 was never started
OF_ONE = [process(10 + n, n, 9, MASTER_PORT=str(29500 + n), **THREE) for n in range(3)]
FIRST, STARTER = process(10, 0, **BY_HAND), process(10, None) | {"variables": {}}
STEPS = [process(10, 0, SLURM_JOB_ID="1"), process(30, 0, MASTER_PORT="29501", SLURM_JOB_ID="2")]


def second(**changes: Any) -> dict[str, Any]:
    """Return rank 1 of FIRST's job, with another master."""
    return process(11, 1, **{**BY_HAND, "MASTER_PORT": "29501", **changes})


def of_four(pid: int, rank: int, master: str = "n1", local: str = "") -> dict[str, Any]:
    return process(pid, rank, MASTER_ADDR=master, LOCAL_RANK=local, WORLD_SIZE="4", LOCAL_WORLD_SIZE="")


@each_row(
    ("processes", "pid", "wanted"),
    [
        # The topmost process of an environment that has torch, or that still imports it, is the rank.
        ([process(10, 0, library=None), process(11, 0, 10), process(12, 0, 11), process(20, 1)], 0, "11:0 20:1"),
        ([process(10, 0, library=False), process(20, 1)], 0, "10:0 20:1"),
        ([process(10, None, library=None, **TASK)], 0, ""),  # a shell of a Slurm task
        ([process(10, 0)], 0, "10:0 absent (1,)"),
        ([process(10, 0), {**process(31, 1), "name": "pt_data_worker"}], 0, "10:0 absent (1,)"),  # outlived its rank
        # Of two jobs none is taken, but the one that was named, by a rank or by what it has started.
        ([process(10, 0), OTHER], 0, "10:0 absent (1,) others ['10', '30']"),
        ([process(10, 0), OTHER], 30, "30:0 absent (1,)"),
        ([process(10, 0), process(31, 0, 30, MASTER_PORT="29501"), OTHER], 31, "30:0 absent (1,)"),
        # Processes without variables are ranks only of one that is named; helpers and loaders of theirs are not.
        (SPAWNED, 0, ""),
        ([process(10, None, library=False), *SPAWNED], 10, "11:- 12:-"),
        ([process(10, None), *SPAWNED, process(13, 0, 11), process(14, None, 12)], 10, "11:- 12:-"),
        ([process(9, None, library=None), process(20, None, 9), process(21, 0, 20), process(22, 1, 20),
          process(23, None, 9)], 9, "21:0 22:1"),
        # An agent of torchrun is never a rank, nor is what has started it.
        ([LAUNCHED, *PAIR], 0, "10:0 11:1"), ([LAUNCHED, *PAIR], 9, "10:0 11:1"), ([LAUNCHED, *PAIR], 10, "10:0 11:1"),
        ([LAUNCHED], 0, "agents [9]"),
        ([STARTER, process(11, None, 10) | AGENT | {"variables": {}}], 10, "agents [11]"),
        ([STARTER], 10, "10:-"),
        # Ranks with different masters are one job only if they complete each other.
        ([FIRST, second()], 0, "10:0 11:1"),
        ([process(10, 0), process(11, 1, MASTER_PORT="29501")], 0, "10:0 11:1"),
        (OF_ONE, 0, "10:0 11:1 12:2"),
        ([FIRST, process(11, 0, MASTER_PORT="29501", **BY_HAND)], 0, "10:0 others ['10', '11']"),  # the same rank
        ([FIRST, second() | {"user": 1001}], 0, "10:0 others ['10', '11']"),
        ([FIRST, second() | {"start": 30010}], 0, "10:0 others ['10', '11']"),  # 300 s later
        ([FIRST, second() | {"start": 30009}], 0, "10:0 11:1"),
        ([FIRST, second(WORLD_SIZE="3")], 0, "10:0 others ['10', '11']"),
        ([FIRST, second(LOCAL_WORLD_SIZE="1")], 0, "10:0 others ['10', '11']"),
        ([*OF_ONE[:2], process(12, 2, 9, MASTER_PORT="29502", MASTER_ADDR="n2", **THREE)], 0,
         "10:0 others ['10', '11', '12']"),
        # A rank without a process is absent where its node is known to be this one.
        ([of_four(10, 0, "127.0.0.1")], 0, "10:0 absent (1, 2, 3)"),
        ([of_four(10, 1, "localhost"), of_four(11, 3, "localhost")], 0, "10:1 11:3 absent (0, 2)"),
        ([of_four(10, 0, local="0"), of_four(11, 2, local="2")], 0, "10:0 11:2 absent (1,)"),
        ([of_four(10, 0, local="0"), of_four(11, 2, local="1")], 0, "10:0 11:2"),  # every second rank is elsewhere
        ([of_four(10, 0), of_four(11, 2)], 0, "10:0 11:2"),
        # Two processes that were started with one number: not a worker, one that has outlived another, or a program.
        ([process(10, 0, 5), process(12, 0, 5)], 0, "10:0 absent (1,) twins [12]"),
        ([process(10, 0, 5), process(12, 0, 10)], 0, "10:0 absent (1,)"),
        ([process(10, 0, 5), process(12, 0, 1)], 0, "10:0 absent (1,)"),
        ([process(10, 0, 5), {**process(12, 0, 5), "program": "tail.py"}], 0, "10:0 absent (1,)"),
        ([process(10, 0, 5), process(12, 0, 5, library=False)], 0, "10:0 absent (1,)"),
    ])  # fmt: skip
def test_the_ranks_of_a_job_are_found_among_processes(processes: list[dict[str, Any]], pid: int, wanted: str) -> None:
    assert told(found(*processes, pid=pid)) == wanted


def test_processes_of_others_are_counted_and_a_slurm_step_means_its_own_job() -> None:
    assert told(found(process(10, 0), hidden=3)) == "10:0 absent (1,) hidden 3"
    assert told(found(*STEPS, env={"SLURM_JOB_ID": "2"})) == "30:0 absent (1,)"
    for own in ({}, {"SLURM_JOB_ID": "3"}):
        assert told(found(*STEPS, env=own)) == "10:0 absent (1,) others ['10', '30']"


def test_of_several_jobs_a_table_says_whose_they_are_and_what_they_run() -> None:
    own = {**process(10, 0), "owner": "ada", "program": "train.py", "age_s": 60.0}
    lines = running.jobs(found(own, process(11, 1, 10), {**OTHER, "program": "finetune.py"}))
    assert [line.split() for line in lines[:3]] == [
        ["--pid", "user", "ranks", "command", "since", "(UTC)", "master"],
        ["10", "ada", "0-1", "train.py", "1969-12-31", "23:59", "n1:29500"],
        ["30", "1000", "0", "finetune.py", "1970-01-01", "00:00", "n1:29501"],
    ]
    assert running.jobs(found(own)) == []


def of_spawned(
    *processes: dict[str, Any],
    connections: list[dict[str, Any]],
    pid: int = 9,
    told: Mapping[int, dict[str, int]] | None = None,
    groups: str = "",
) -> LocalRanks:
    """Return the ranks that are found among processes without variables, with these connections.

    `told` are the numbers in variables of processes whose stacks are read, `groups` the ranks of the recorded group.
    """
    said = json.dumps({"time_s": 1.0, "processes": processes})
    own = sorted(each["pid"] for each in processes if each["parent"] == 9 and each.get("state") != "Z")
    kept = {"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": groups}}, "entries": []}
    answers = {
        ("ranks", pid, *QUESTION): said if pid else json.dumps({"time_s": 1.0, "processes": []}),
        ("ranks", -1): said,
        **{("connections", 0, *asked): json.dumps(connections) for asked in (own, own[:3], own[1:])},
        ("connections", 0, 9): json.dumps([each for each in connections if each["pid"] == 9]),
        ("at_port", 29500, 11): json.dumps([{"pid": 11, "local": "[::]:29500", "peer": "", "state": "listening"}]),
        ("at_port", 40011, 11): json.dumps([]),
        **{("numbers", each): json.dumps(numbers) for each, numbers in (told or {}).items()},
        **({("server", own[0], "fr_trace_json", 0): json.dumps(kept)} if groups else {}),
    }
    return local_ranks.run(Replay(answers, older=False), AskedJob(pid, stacks=told is not None))


def meets(pid: int, *others: int) -> list[dict[str, Any]]:
    """Return the connections of `pid`, which serves a store, with itself and `others`."""
    ends = [(each, f"127.0.0.1:{40000 + each}") for each in (pid, *others)]
    return [
        {"pid": owner, "local": local, "peer": peer}
        for each, end in ends
        for owner, local, peer in ((each, end, "127.0.0.1:29500"), (pid, "127.0.0.1:29500", end))
    ]


PARENT, CHILDREN = process(9, None), [process(n, None, 9) for n in (12, 11, 13)]
SHELL, HELPER = process(9, None, library=False), process(14, None, 9)
NODE, OF_NODE = process(9, 0, 1, WORLD_SIZE="1"), [process(n, 0, 9, WORLD_SIZE="1") for n in (11, 12, 13)]
MESH = [{"pid": a, "local": f"127.0.0.1:{a}", "peer": f"127.0.0.1:{b}"} for a, b in ((12, 13), (13, 12))]
ALL, NUMBERED, BARE = meets(11, 12, 13), "11:0 12:1 13:2", "11:- 12:- 13:-"
OWN: dict[int, dict[str, int]] = {each: {"rank": each - 11} for each in (11, 12, 13)}
TWO = [{**process(n, None, 9), "age_s": 60.0} for n in (11, 13)]
ZOMBIE = {**process(12, None, 9, library=False), "state": "Z", "python": True}
BETWEEN, MET = [TWO[0], ZOMBIE, TWO[1]], meets(11, 13)
JOINED = {"pid": 9, "local": "10.0.0.1:40000", "peer": "n1:29500"}
OF_TWO = {11: {"rank": 1, "world_size": 3}, 13: {"rank": 2, "world_size": 3}, 9: {"world_size": 3}}
SECOND_NODE = {11: {"rank": 2, "world": 4}, 13: {"rank": 3, "world": 4}, 9: {"world": 4}}


@each_row(
    ("parent", "children", "connections", "more", "wanted"),
    [
        # As they began, if the first of them serves the store.
        (PARENT, CHILDREN, ALL, {}, NUMBERED),
        (PARENT, CHILDREN, ALL, {"pid": 0}, NUMBERED),  # no process was named
        (PARENT, CHILDREN, meets(11), {}, NUMBERED),  # the others have not come yet
        (PARENT, CHILDREN, meets(12, 11, 13), {}, BARE),  # another began first than rank 0
        (PARENT, CHILDREN, meets(12, 11, 13), {"pid": 0}, BARE),
        (PARENT, CHILDREN, [], {}, BARE),
        (PARENT, CHILDREN, [*meets(11), *meets(12)], {}, BARE),  # which one is the store is not known
        (PARENT, CHILDREN, [], {"pid": 0}, BARE),  # rank 0 may never have reached init
        (SHELL, CHILDREN, [], {"pid": 0}, ""),  # programs that a shell started are no ranks of one job
        # Helpers beside the ranks are none.
        (PARENT, [*CHILDREN, HELPER], [*ALL, *MESH], {}, NUMBERED),
        (PARENT, [*CHILDREN, HELPER], ALL, {}, f"{NUMBERED} 14:3"),  # in init
        (PARENT, [*CHILDREN, HELPER], [], {"told": {**OWN, 9: {"world": 3}}}, NUMBERED),
        (PARENT, [*CHILDREN, HELPER], [], {"told": {**OWN, 9: {"world": 4}}}, f"{BARE} 14:-"),
        # A launcher may have the variables of its node.
        (NODE, OF_NODE, ALL, {}, NUMBERED), (NODE, OF_NODE, [], {}, "9:0 absent (1,)"),
        (NODE, OF_NODE, [*ALL, JOINED], {}, "9:0 absent (1,)"),
        # A rank that has ended is counted, and the others keep their numbers.
        (PARENT, BETWEEN, MET, {}, "11:0 13:2 absent (1,)"),
        (PARENT, TWO, MET, {"told": {11: {"r": 0, "world": 3}, 13: {"r": 2, "world": 3}, 9: {"r": 2, "world": 3}}},
         "11:0 13:2 absent (1,)"),
        (PARENT, BETWEEN, [], {"told": {11: {"rank": 0}, 13: {"rank": 2}}}, "11:0 13:2 absent (1,)"),
        (PARENT, TWO, MET, {"told": {each: {"rank": 0, "world_size": 3} for each in (11, 13)}}, "11:0 13:1"),
        (PARENT, TWO, [], {"told": OF_TWO}, "11:1 13:2 absent (0,)"),  # it had the store
        (PARENT, TWO, [], {"told": {**OF_TWO, 9: {}}}, "11:1 13:2"),
        (PARENT, TWO, [], {"told": SECOND_NODE}, "11:2 13:3"),
        (PARENT, TWO, MET, {"groups": "[0, 1, 2]"}, "11:- 13:- gone 1"),
        (PARENT, [{**each, "age_s": 10.0} for each in TWO], MET, {"groups": "[0, 1, 2]"}, "11:- 13:- gone 1"),
        (PARENT, [{**each, "age_s": 9.9} for each in TWO], MET, {"groups": "[0, 1, 2]"}, "11:- 13:-"),
        (PARENT, TWO, MET, {"groups": "[0, 1]"}, "11:0 13:1"), (PARENT, TWO, MET, {}, "11:0 13:1"),
    ])  # fmt: skip
def test_ranks_that_a_program_has_started_itself_are_numbered_if_that_is_known(
    parent: Any, children: list[Any], connections: list[Any], more: dict[str, Any], wanted: str
) -> None:
    known = of_spawned(parent, *children, connections=connections, **more)
    assert told(known) == wanted
    if wanted == NUMBERED and parent is PARENT and connections:
        assert {each.launch.master_port for each in known.ranks} == {29500}


# Two looks at the ranks.

HERE = LocalRanks((found(process(10, 0)).ranks[0],))
WAIT: dict[tuple[str | int, ...], str | HostError] = {("wait", "5.0"): "", ("wait", "1.0"): ""}


def looked(said: Mapping[tuple[str | int, ...], str | HostError], here: LocalRanks = HERE, **asked: bool) -> Any:
    return looks.looks.run(Replay({**WAIT, **said}, older=True), here, AskedJob(**asked))  # type: ignore[arg-type]


def test_what_a_rank_says_twice_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str | bytes] = []
    monkeypatch.setattr(looks, "read", lambda text: (taken.append(text), "it is not read")[1])
    said = {("server", 10, "fr_trace_json", 1): "a", ("server", 11, "fr_trace_json", 1): "b"}
    said |= {("server", 10, "fr_trace_json", 2): "a", ("server", 11, "fr_trace_json", 2): "c"}
    both = looked(said, found(process(10, 0), process(11, 1)))
    assert taken == ["a", "b", "c"]
    assert {both.first.servers, both.second.servers} == {("its records were not read: it is not read",) * 2}


def test_stacks_of_processes_that_a_rank_started_are_read_if_they_cannot_go_on() -> None:
    frames = [{"name": "recv", "filename": "connection.py", "line": 3}]
    children = [{"state": state, "cpu_s": 1.0, "pid": pid, "name": "w"} for state, pid in (("S", 60), ("D", 61))]
    state = json.dumps({"state": "S", "cpu_s": 1.0, "time_s": 9.0, "children": children})
    said = {("process", 10, 10, look): state for look in (1, 2)}
    for pid in (10, 60, 61):
        said |= {("stacks", pid, look): json.dumps([{"os_thread_id": pid, "frames": frames}]) for look in (1, 2)}
    both = looked(said, stacks=True)
    assert [dict(look.of_children).keys() for look in (both.first, both.second)] == [set(), {61}]
    assert not looked(said).second.of_children


class Asked(Replay):
    """Remembers what is asked of ranks, and at which look."""

    def __init__(self, said: Mapping[tuple[str | int, ...], str]) -> None:
        super().__init__({**WAIT, **said}, older=True)
        self.asked: list[tuple[str, int]] = []

    def ask(self, *question: str | int) -> str:
        """Answer from the capture."""
        if question[0] in ("server", "process", "wait", "dump"):
            self.asked.append((str(question[0]), int(question[-1]) if question[0] != "wait" else 0))
        return super().ask(*question)


def test_records_are_written_down_only_where_they_are_missing_and_not_between_both_looks() -> None:
    unnumbered = replace(HERE, ranks=(replace(HERE.ranks[0], rank=None),))
    usual = [("server", 1), ("process", 1), ("wait", 0), ("process", 2), ("server", 2)]
    served = {("server", 10, "fr_trace_json", look): "[]" for look in (1, 2)}
    for here, said, dumps, wanted in (
        (HERE, {}, False, usual), (HERE, served, True, usual), (unnumbered, {}, True, usual),
        (HERE, {}, True, [usual[0], ("dump", 1), *usual[1:], ("dump", 2)]),
    ):  # fmt: skip
        host = Asked(said)
        looks.looks.run(host, here, AskedJob(dumps=dumps))
        assert host.asked == wanted


def test_a_look_that_timeout_cuts_accuses_no_rank() -> None:
    for question in (("server", 10, "fr_trace_json", 2), ("process", 10, 10, 2)):
        with pytest.raises(OutOfTime):
            looked({question: OutOfTime("all that --timeout left")})
        assert looked({question: TimedOut("no answer within 1 s")}).second.servers


def gpu_row(**more: Any) -> str:
    """Return what the child of NVML tells of a GPU."""
    row = {"index": 0, "pci": "00000000:5E:00.0", "pids": [10], "busy_percent": 100, "clock_MHz": 345}
    return json.dumps([{**row, "most_MHz": 1980, "power_mW": 120500, "reasons": 0x40, "nvlink_KiB": [7, 9], **more}])


def test_gpus_are_asked_at_both_looks_and_the_kernel_for_xids_where_there_are_gpus() -> None:
    refused = {"refused": "Denied", "why": "Insufficient Permissions"}
    lost = {"refused": "Odd", "why": "GPU is lost"}
    line = [50.0, "NVRM: Xid (PCI:0000:5e:00): 79, pid=9, GPU has fallen off the bus."]
    said = {("nvml", "gpusOf", 1, "10"): gpu_row(pci=lost, nvlink_KiB=[0, 0])}
    said |= {("nvml", "gpusOf", 2, "10"): gpu_row(nvlink_KiB=[refused, 9], power_mW=refused)}
    said |= {("kernel_log", OF_GPUS): json.dumps({"lines": [line, [51.0, "NVRM: loading"]]})}
    both = looked(said)
    (first,), (second,) = both.first.gpus, both.second.gpus
    assert (first.pids, first.nvlink_KiB, first.reasons, first.lost) == (
        *((10,), 0, ("hw-thermal-slowdown",), "NVML: GPU is lost"),
    )
    assert first.pci == Absent("NVML: GPU is lost", "Failed")
    assert second.nvlink_KiB == second.power_mW == Absent("NVML: Insufficient Permissions", "Denied")
    assert (second.busy_percent, second.clock_MHz, second.most_MHz, second.lost) == (100, 345, 1980, "")
    assert [(each.kind, each.code) for each in both.xids] == [("xid", "79")]
    without = looked({})
    assert isinstance(without.second.gpus, Absent)
    assert without.xids == Absent("there is no GPU here")
    for text in ("[{}]", "7", "nonsense", '[{"index": -1}]', gpu_row(busy_percent=-1)):
        with pytest.raises(ParseError):
            gpus(Replay({("nvml", "gpusOf", 1, "10"): text}, older=True), [10], 1)


def thread(tid: int, *frames: tuple[str, str], name: str | None = None, **values: str) -> dict[str, Any]:
    own = [{"name": name, "filename": file, "line": 1, "values": values} for name, file in frames]
    return {"os_thread_id": tid, "thread_name": name, "frames": own}


THREADING, TRAIN = "/usr/lib/python3.11/threading.py", "/home/u/train.py"
JOINS = thread(7, ("join", THREADING), ("main", TRAIN))
EVENT = thread(7, ("wait", THREADING), ("main", TRAIN))
CALLS = thread(8, ("all_reduce", f"/v/site-packages{stacks.C10D}"), ("work", TRAIN), name="saver")
ASIDE, POLLS = thread(9, ("poll", "/home/u/log.py")), thread(10, ("poll", "/home/u/other.py"))
TQDM = thread(11, ("run", "/usr/lib/python3.11/site-packages/tqdm/_monitor.py"))


@each_row(
    ("threads", "wanted", "others"),
    [
        ([JOINS, ASIDE, CALLS], "all_reduce",
         ["the first thread in train.py:1 in main", "a thread in log.py:1 in poll"]),
        ([JOINS, ASIDE], "poll", ["the first thread in train.py:1 in main"]),
        ([EVENT, ASIDE], "wait", ["a thread in log.py:1 in poll"]),
        ([EVENT, ASIDE, CALLS], "all_reduce", None),
        ([JOINS, ASIDE, POLLS], "join", None),
        ([JOINS, TQDM], "join", []),
        ([thread(7, ("forward", TRAIN)), CALLS], "forward", ["saver in all_reduce, train.py:1 in work"]),
        ([thread(7, ("join", THREADING), self="t2"), CALLS, thread(9, ("run", TRAIN), self="t2")], "run", None),
    ])  # fmt: skip
def test_the_thread_for_which_the_first_waits_is_read(
    threads: list[Any], wanted: str, others: list[str] | None
) -> None:
    read = stacks.stack(Replay({("stacks", 7, 1): json.dumps(threads)}, older=False), 7, 1)
    assert isinstance(read, stacks.ThreadStack)
    assert read.frames[0].name == wanted
    assert others is None or [str(each) for each in read.others] == others
