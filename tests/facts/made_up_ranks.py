"""Processes of jobs, and what threads of theirs wait for: `texts-ranks.txt` keeps which of them are ranks."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ncclprobe.engine import running
from ncclprobe.facts.job import stacks
from ncclprobe.facts.job.ranks import AskedJob, LocalRanks, local_ranks
from ncclprobe.host import SAMPLE
from ncclprobe.host.capture import Replay
from ncclprobe.model.errors import HostError, Missing
from ncclprobe.model.snapshot import Absent

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


def found(*given: dict[str, Any], pid: int = 0, env: object = {}, **more: Any) -> LocalRanks:
    said = json.dumps({"time_s": 1.0, "processes": given, **more})
    answers: Any = {("ranks", pid, *QUESTION): said, ("env",): env if isinstance(env, HostError) else json.dumps(env)}
    return local_ranks.run(Replay(answers | {(SAMPLE, "attach"): json.dumps({"pid": pid})}, older=False), AskedJob(pid))


def told(ranks: LocalRanks) -> object:
    """Return each rank with what is known of its launch, and the other fields that are not as usual."""
    usual = LocalRanks(())
    own = [(each.pid, each.rank, each.start, each.name, each.job, each.twins,
            sorted({"RANK", "SLURM_JOB_ID"} & {*each.settings}),
            *(getattr(each.launch, name) for name in ("world_size", "local_rank", "master_addr", "master_port")))
           for each in ranks.ranks]  # fmt: skip
    fields = ("absent", "others", "hidden", "late", "agents", "gone")
    return own, [(name, getattr(ranks, name)) for name in fields if getattr(ranks, name) != getattr(usual, name)]


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


def of_spawned(
    *processes: dict[str, Any], connections: list[dict[str, Any]], pid: int = 9,
    told: Mapping[int, dict[str, int]] | None = None, groups: str = "",
) -> LocalRanks:  # fmt: skip
    """Return the ranks that are found among processes without variables, with these connections.

    `told` are the numbers in variables of processes whose stacks are read, `groups` the ranks of the recorded group.
    """
    said = json.dumps({"time_s": 1.0, "processes": processes})
    own = sorted(each["pid"] for each in processes if each["parent"] == 9 and each.get("state") != "Z")
    kept = {
        "version": "2.10", "pg_config": {each: {"name": each, "desc": "", "ranks": each} for each in groups.split("|")},
        "entries": []}  # fmt: skip
    answers = {
        ("ranks", pid, *QUESTION): said if pid else json.dumps({"time_s": 1.0, "processes": []}),
        ("ranks", -1): said,
        **{("connections", 0, *asked): json.dumps(connections) for asked in (own, own[:3], own[1:])},
        ("connections", 0, 9): json.dumps([each for each in connections if each["pid"] == 9]),
        ("at_port", 29500, 11): json.dumps([{"pid": 11, "local": "[::]:29500", "peer": "", "state": "listening"}]),
        ("at_port", 40011, 11): json.dumps([each | {"local": "", "peer": ""} for each in IN_VAIN]),
        **{("numbers", each): json.dumps(numbers) for each, numbers in (told or {}).items()},
        **({("server", own[0], "fr_trace_json", 0): json.dumps(kept)} if groups else {}),
    }
    return local_ranks.run(Replay(answers, older=False), AskedJob(pid, stacks=told is not None))


def meets(pid: int, *others: int, at: str = "127.0.0.1:29500") -> list[dict[str, Any]]:
    """Return the connections of `pid`, which serves a store, with itself and `others`."""
    ends = [(each, f"127.0.0.1:{40000 + each}") for each in (pid, *others)]
    return [
        {"pid": owner, "local": local, "peer": peer}
        for each, end in ends
        for owner, local, peer in ((each, end, at), (pid, at, end))
    ]


PARENT, CHILDREN = process(9, None), [process(n, None, 9) for n in (12, 11, 13)]
SHELL, HELPER = process(9, None, library=False), process(14, None, 9)
NODE, OF_NODE = process(9, 0, 1, WORLD_SIZE="1"), [process(n, 0, 9, WORLD_SIZE="1") for n in (11, 12, 13)]
MESH = [{"pid": a, "local": f"127.0.0.1:{a}", "peer": f"127.0.0.1:{b}"} for a, b in ((12, 13), (13, 12))]
IN_VAIN = {"pid": 11, "state": "established"}, {"pid": 12, "state": "listening"}  # nobody serves a store there
ALL = meets(11, 12, 13)
OWN: dict[int, dict[str, int]] = {each: {"rank": each - 11} for each in (11, 12, 13)}
TWO = [{**process(n, None, 9), "age_s": 60.0} for n in (11, 13)]
ZOMBIE = {**process(12, None, 9, library=False), "state": "Z", "python": True}
BETWEEN, MET = [TWO[0], ZOMBIE, TWO[1]], meets(11, 13)
JOINED = {"pid": 9, "local": "10.0.0.1:40000", "peer": "n1:29500"}
OF_TWO = {11: {"rank": 1, "world_size": 3}, 13: {"rank": 2, "world_size": 3}, 9: {"world_size": 3}}
SECOND_NODE = {11: {"rank": 2, "world": 4}, 13: {"rank": 3, "world": 4}, 9: {"world": 4}}


def gpu_row(**more: Any) -> str:
    """Return what the child of NVML tells of a GPU."""
    row = {"index": 0, "pci": "00000000:5E:00.0", "pids": [10], "busy_percent": 100, "clock_MHz": 345}
    return json.dumps([{**row, "most_MHz": 1980, "power_mW": 120500, "reasons": 0x40, "nvlink_KiB": [7, 9], **more}])


def thread(tid: int, *frames: tuple[str, str], name: str | None = None, **values: str) -> dict[str, Any]:
    own = [{"name": name, "filename": file, "line": 1, "values": values} for name, file in frames]
    return {"os_thread_id": tid, "thread_name": name, "frames": own}


THREADING, TRAIN = "/usr/lib/python3.11/threading.py", "/home/u/train.py"
JOINS = thread(7, ("join", THREADING), ("main", TRAIN))
EVENT = thread(7, ("wait", THREADING), ("main", TRAIN))
CALLS = thread(8, ("all_reduce", f"/v/site-packages{stacks.C10D}"), ("work", TRAIN), name="saver")
ASIDE, POLLS = thread(9, ("poll", "/home/u/log.py")), thread(10, ("poll", "/home/u/other.py"))
TQDM = thread(11, ("run", "/usr/lib/python3.11/site-packages/tqdm/_monitor.py"))


def _stack(*threads: dict[str, Any]) -> object:
    read = stacks.stack(Replay({("stacks", 7, 1): json.dumps(threads)}, older=False), 7, 1)
    return read if isinstance(read, Absent) else ([each.name for each in read.frames], [*map(str, read.others)])


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    return {
        "ranks among processes": (lambda processes, pid: told(found(*processes, pid=pid)), [([process(10, 0,
            library=None), process(11, 0, 10), process(12, 0, 11), process(20, 1)], 0), ([process(10, 0, library=False),
            process(20, 1)], 0), ([process(10, None, library=None, **TASK)], 0), ([process(10, 0)], 0), ([process(10,
            0), {**process(31, 1), "name": "pt_data_worker"}], 0), ([process(10, 0), OTHER], 0), ([process(10, 0),
            OTHER], 30), ([process(10, 0), process(31, 0, 30, MASTER_PORT="29501"), OTHER], 31), (SPAWNED, 0), ([
            process(10, None, library=False), *SPAWNED], 10), ([process(10, None), *SPAWNED, process(13, 0, 11),
            process(14, None, 12)], 10), ([process(9, None, library=None), process(20, None, 9), process(21, 0, 20),
            process(22, 1, 20), process(23, None, 9)], 9), ([LAUNCHED, *PAIR], 0), ([LAUNCHED, *PAIR], 9), ([LAUNCHED,
            *PAIR], 10), ([LAUNCHED], 0), ([STARTER, process(11, None, 10) | AGENT | {"variables": {}}], 10), ([
            STARTER], 10), ([FIRST, second()], 0), ([process(10, 0), process(11, 1, MASTER_PORT="29501")], 0), (OF_ONE,
            0), ([FIRST, process(11, 0, MASTER_PORT="29501", **BY_HAND)], 0), ([FIRST, second() | {"user": 1001}], 0),
            ([FIRST, second() | {"start": 30010}], 0), ([FIRST, second() | {"start": 30009}], 0), ([FIRST, second(
            WORLD_SIZE="3")], 0), ([FIRST, second(LOCAL_WORLD_SIZE="1")], 0), ([*OF_ONE[:2], process(12, 2, 9,
            MASTER_PORT="29502", MASTER_ADDR="n2", **THREE)], 0), ([of_four(10, 0, "127.0.0.1")], 0), ([of_four(10, 1,
            "localhost"), of_four(11, 3, "localhost")], 0), ([of_four(10, 0, local="0"), of_four(11, 2, local="2")], 0),
            ([of_four(10, 0, local="0"), of_four(11, 2, local="1")], 0), ([of_four(10, 0), of_four(11, 2)], 0), ([
            process(10, 0, 5), process(12, 0, 5)], 0), ([process(10, 0, 5), process(12, 0, 10)], 0), ([process(10, 0,
            5), process(12, 0, 1)], 0), ([process(10, 0, 5), {**process(12, 0, 5), "program": "tail.py"}], 0), ([
            process(10, 0, 5), process(12, 0, 5, library=False)], 0), ([process(9, None, library=None), *PAIR, process(
            12, None, 9)], 9), ([LAUNCHED, {**LAUNCHED, "pid": 8}], 9), ([LAUNCHED, {**LAUNCHED, "pid": 8}], 0), ([
            LAUNCHED, {**LAUNCHED, "pid": 8, "parent": 9}], 9), ([{**LAUNCHED, "parent": 5}, process(5, None,
            library=None)], 5), ([{**LAUNCHED, "age_s": 9.0}], 9), ([{**process(9, 0, 5, library=False), "start": 99},
            process(10, 0, 5, library=False)], 0), ([of_four(10, 0, local="0"), of_four(11, 2, local="2"), of_four(12,
            3)], 0), ([of_four(10, 0, local="0"), process(11, 2, WORLD_SIZE="4", LOCAL_WORLD_SIZE="",
            TORCHELASTIC_RUN_ID="a")], 0), *(([of_four(10, 1, name), of_four(11, 3, name)], 0) for name in ("127.0.0.5",
            "::1", "[::1]", "n2")), ([process(10, 0, TORCHELASTIC_RUN_ID="a"), process(11, 1, MASTER_PORT="29501",
            TORCHELASTIC_RUN_ID="a")], 0), *(([process(10 + n, n, parent(n), MASTER_PORT=str(29500 + n), **THREE) for
            n in range(3)], 0) for parent in (lambda n: 9 + n % 2, lambda n: 1)), ([process(10, 0, MASTER_ADDR="",
            MASTER_PORT=""), OTHER], 0), ([process(10, 0), {**OTHER, "owner": "ada", "program": "x.py", "age_s": 60.0}],
            0), ([process(10, 7)], 0), ([process(12, 1), process(10, 0)], 0), ([process(10, 0, SLURM_JOB_ID="1"),
            process(11, 1, SLURM_JOB_ID="2")], 0), ([FIRST, second(), {**second(), "pid": 12, "start": 12}], 0), ([
            FIRST, second() | {"start": 29998}], 0), ([process(10, 0, 5), {**process(12, 0, 5), "name": "x"}], 0), ([
            process(10, 0, 1), process(12, 0, 5)], 0), *(([process(10, 1, 5, MASTER_ADDR=one, **THREE), process(11, 3,
            5, MASTER_ADDR=other, **THREE)], 0) for one, other in (("127.0.0.1", "n2"), ("localhost", "127.0.0.1"),
            ("", ""))), *(([process(10, 0, 5, **BY_HAND), process(11, rank, parent, MASTER_PORT="29501", **{**BY_HAND,
            "WORLD_SIZE": world})], 0) for rank in (0, 1, 2) for parent in (5, 6) for world in ("", "2", "3")), ([
            process(10, 0), process(11, 1), process(12, 2), second()], 0), ([FIRST, second() | {"start": 40011}], 0), ([
            process(9, None, library=None), process(10, 0, 9), process(11, 1, 8)], 9), ([process(10, 0, 11), process(11,
            1, 10)], 0), ([process(10, 0), process(11, 5, LOCAL_RANK="1")], 0), ([process(10, 0, WORLD_SIZE="",
            LOCAL_WORLD_SIZE=""), OTHER], 0), ([process(10, 0, LOCAL_RANK=""), process(11, 1)], 0), ([process(10 + n, n,
            WORLD_SIZE="9", LOCAL_WORLD_SIZE="9") for n in (0, 2, 3, 4, 5, 6, 7)], 0), *(([process(pid, n, parent,
            MASTER_PORT=port, WORLD_SIZE=world, LOCAL_WORLD_SIZE="") for pid, n, parent, port in ((10, 0, 5, "29500"),
            (11, 1, 6, "29500"), (12, 2, 5, "29501"), (13, 3, 6, "29501"))], 0) for world in ("4", "8")), ([process(pid,
            None, MASTER_ADDR="127.0.0.1", **{**TASK, "SLURM_PROCID": n, "SLURM_STEP_NUM_TASKS": "4"}) for pid, n in ((
            10, "0"), (12, "2"))], 0), *(([{**process(10, 0, library=library), "python": python}, process(11, 0, 10,
            library=False)], 0) for library, python in ((None, True), (False, False), (False, True))), ([process(10,
            None, library=False, **TASK)], 0), ([process(10, 0, 5), process(11, 1, 5), process(12, 3, 5, WORLD_SIZE="6",
            LOCAL_WORLD_SIZE="6"), OTHER], 0)]),
        "tables of jobs": (lambda *processes: running.jobs(found(*processes)), [(process(10, 0), process(11, 1, 10)),
            ({**process(10, 0), "owner": "ada", "program": "train.py", "age_s": 60.0}, process(11, 1, 10),
            {**OTHER, "program": "finetune.py"}), (process(10, 0, MASTER_ADDR=""), OTHER)]),
        "ranks of Slurm steps": (lambda env, more: told(found(*STEPS, env=env, **more)), [({"SLURM_JOB_ID": "2"}, {}),
            ({}, {}), ({"SLURM_JOB_ID": "3"}, {}), (Missing("no"), {}),
            ({"SLURM_JOB_ID": "1"}, {"hidden": 3, "late": ["7: x"]})]),
        "ranks of a program": (lambda parent, children, connections, more: told(of_spawned(parent, *children,
            connections=connections, **more)), [(PARENT, CHILDREN, ALL, {}), (PARENT, CHILDREN, ALL, {"pid": 0}),
            (PARENT, CHILDREN, meets(11), {}), (PARENT, CHILDREN, meets(12, 11, 13), {}), (PARENT, CHILDREN, meets(12,
            11, 13), {"pid": 0}), (PARENT, CHILDREN, [], {}), (PARENT, CHILDREN, [*meets(11), *meets(12)], {}), (PARENT,
            CHILDREN, [], {"pid": 0}), (SHELL, CHILDREN, [], {"pid": 0}), (PARENT, [*CHILDREN, HELPER], [*ALL, *MESH],
            {}), (PARENT, [*CHILDREN, HELPER], ALL, {}), (PARENT, [*CHILDREN, HELPER], [], {"told": {**OWN, 9: {
            "world": 3}}}), (PARENT, [*CHILDREN, HELPER], [], {"told": {**OWN, 9: {"world": 4}}}), (NODE, OF_NODE, ALL,
            {}), (NODE, OF_NODE, [], {}), (NODE, OF_NODE, [*ALL, JOINED], {}), (PARENT, BETWEEN, MET, {}), (PARENT, TWO,
            MET, {"told": {11: {"r": 0, "world": 3}, 13: {"r": 2, "world": 3}, 9: {"r": 2, "world": 3}}}), (PARENT,
            BETWEEN, [], {"told": {11: {"rank": 0}, 13: {"rank": 2}}}), (PARENT, TWO, MET, {"told": {each: {"rank": 0,
            "world_size": 3} for each in (11, 13)}}), (PARENT, TWO, [], {"told": OF_TWO}), (PARENT, TWO, [], {"told": {
            **OF_TWO, 9: {}}}), (PARENT, TWO, [], {"told": SECOND_NODE}), (PARENT, TWO, MET, {"groups": "[0, 1, 2]"}),
            (PARENT, [{**each, "age_s": 10.0} for each in TWO], MET, {"groups": "[0, 1, 2]"}), (PARENT, [{**each,
            "age_s": 9.9} for each in TWO], MET, {"groups": "[0, 1, 2]"}), (PARENT, TWO, MET, {"groups": "[0, 1]"}),
            (PARENT, TWO, MET, {}), (PARENT, [*CHILDREN, process(15, None, 9) | AGENT], ALL, {"pid": 0}), (PARENT, [{
            **each, "start": 40 - each["pid"]} for each in CHILDREN], meets(13, 11, 12), {}), (PARENT, [{**each,
            "start": 5} for each in CHILDREN], ALL, {}), *((PARENT, [TWO[0], {**ZOMBIE, **change}, TWO[1]], MET, {}) for
            change in ({"python": False}, {"parent": 1}, {"start": 30010}, {"start": 30011}, {"start": 40011}, {
            "state": "S"}, {"start": 1})), (PARENT, CHILDREN, meets(11, 12, 13, at="[::1]:29500"), {}), (PARENT, TWO,
            meets(11, at="[::1]:29500"), {"groups": "[0, 1, 2]"}), (PARENT, TWO, meets(11, 13, at="10.0.0.1:29500"), {
            "groups": "[0, 1, 2]"}), (PARENT, [TWO[0], {**TWO[1], "age_s": 5.0}], MET, {"groups": "[0, 1, 2]"}), (
            PARENT, TWO, [], {"told": {11: {"rank": 0}, 13: {"rank": 1}}}), (PARENT, TWO, [], {"told": {11: {"rank": 1},
            13: {"rank": 0}}}), (PARENT, TWO, MET, {"told": {11: {"rank": 1}, 13: {"rank": 0}}}), (PARENT, TWO, [], {
            "told": {11: {"rank": 0, "r": 5}, 13: {"rank": 0, "r": 6}}}), (PARENT, TWO, [], {"told": {11: {"rank": 4,
            "world": 8}, 13: {"rank": 5, "world": 8}, 9: {"world": 8, "rank": 1}}}), (PARENT, TWO, [], {"told": {11: {
            "rank": 0, "world": 2, "world_size": 4}, 13: {"rank": 1}}}), (PARENT, TWO, [], {"told": {11: {"rank": 0,
            "world": 9}, 13: {"rank": 8}, 9: {"world": 9}}}), (PARENT, [*CHILDREN, HELPER], [*ALL, {"pid": 12,
            "local": "127.0.0.1:12", "peer": "127.0.0.1:99"}], {}), (PARENT, [*CHILDREN, HELPER], [*ALL, {"pid": 12,
            "local": "127.0.0.1:12", "peer": "127.0.0.1:77"}, {"pid": 14, "local": "127.0.0.1:77",
            "peer": "127.0.0.1:12"}], {}), (PARENT, [*CHILDREN, HELPER], [*ALL, *MESH[:1]], {}), (PARENT, CHILDREN, [
            *meets(11, 12), *meets(11, 12, 13, at="127.0.0.1:5")], {}), (PARENT, [CHILDREN[0], {**CHILDREN[1],
            "name": "pt_data_worker"}], [], {"pid": 0}), (PARENT, [*CHILDREN, process(19, None), process(21, None, 19),
            process(22, None, 19)], ALL, {"pid": 0}), (NODE, OF_NODE, [*ALL, {**JOINED, "peer": "n1:443"}], {}), (NODE,
            OF_NODE, [*ALL, JOINED, {**JOINED, "peer": "n1:443"}], {}), (NODE, OF_NODE[:2], meets(11, 12), {}), (NODE,
            OF_NODE[:1], meets(11), {}), (PARENT, TWO, MET, {"told": OF_TWO, "groups": "[0, 1, 2, 3, 4]"}), (PARENT,
            BETWEEN, MET, {"groups": "[0, 1]"}), (PARENT, TWO, MET, {"groups": "[0, 1]|[0, 1, 2, 3]|[0]"}), (PARENT,
            TWO, [], {"told": {11: {"rank": 0, "world": 3, "world_size": 4}, 13: {"rank": 2}, 9: {"world": 3}}}),
            (PARENT, [*TWO, HELPER], [*MET, {"pid": 11, "local": "127.0.0.1:11", "peer": "127.0.0.1:13"}, {"pid": 13,
            "local": "127.0.0.1:13", "peer": "127.0.0.1:11"}], {}), (PARENT, [*CHILDREN, HELPER], [*ALL, *MESH, {
            "pid": 14, "local": "127.0.0.1:14", "peer": "127.0.0.1:99"}], {}), (PARENT, CHILDREN, [*meets(11), *meets(
            12, at="127.0.0.1:5")], {}), (PARENT, CHILDREN, meets(11)[::-1], {}), (PARENT, CHILDREN, meets(11,
            at="127.0.0.1:5"), {})]),
        "the thread that decides": (lambda threads: _stack(*threads), [*(([thread(7, (call, file), ("main", TRAIN)),
            ASIDE],) for call in ("join", "result", "shutdown", "_shutdown", "get") for file in (THREADING,
            "/usr/lib/python3.11/concurrent/futures/_base.py", "/usr/lib/python3.11/queue.py",
            "/usr/lib/python3.11/concurrent/futures/thread.py", "/usr/lib/python3.11/x.py")), ([CALLS, ASIDE],), ([],),
            ([thread(7), ASIDE, CALLS],), ([CALLS, thread(7)],), ([thread(7, ("join", TRAIN), ("x", THREADING)),
            ASIDE],), ([thread(7, ("wait", THREADING), ("Thread.join", THREADING)), ASIDE],), ([thread(7, ("wait",
            THREADING), ("join", TRAIN)), ASIDE],), ([JOINS, thread(9), ASIDE],), ([EVENT, thread(8, ("a", TRAIN),
            ("all_reduce", stacks.C10D)), CALLS],), ([thread(7, ("join", THREADING), self="t2"), thread(9, ("run",
            TRAIN), self="t3"), CALLS],), ([thread(7, ("a", THREADING)), TQDM],), ([JOINS, ASIDE, CALLS],), ([JOINS,
            ASIDE],), ([EVENT, ASIDE],), ([EVENT, ASIDE, CALLS],), ([JOINS, ASIDE, POLLS],), ([JOINS, TQDM],), ([thread(
            7, ("forward", TRAIN)), CALLS],), ([thread(7, ("join", THREADING), self="t2"), CALLS, thread(9,
            ("run", TRAIN), self="t2")],)]),
    }  # fmt: skip
