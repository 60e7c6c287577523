"""What a rank waits for by its stack, and the advice that belongs to it."""

import json
import re
from pathlib import Path

from ncclprobe.checks.job.ranks import apart, inside, outside
from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.meeting import Connection
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import JobState
from ncclprobe.facts.job.stacks import LiveFrame, ThreadPlace
from ncclprobe.host import polls, py_spy
from ncclprobe.logs.job import activity, reasons
from ncclprobe.logs.job.activity import RankView
from ncclprobe.model.causes import RankClass
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row, some
from tests.localise.test_job import GONE, IDLE, IN_ALL_REDUCE, SLEEPS, classes, later, looked

OWN = FlightFrame("step", "/home/u/train.py", 12)
PYTHON, PACKAGES = "/usr/lib/python3.11", "/v/lib/python3.11/site-packages"
C10D = f"{PACKAGES}/torch/distributed/distributed_c10d.py"


def stuck_in(*frames: tuple[str, str], state: LiveRank = IDLE, own: FlightFrame = OWN) -> JobState:
    """Return how a job stands whose rank 2 does not join an all_reduce: it is in these frames of libraries."""
    stack = (*(FlightFrame(name, path, 1) for name, path in frames), own)
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (stack,) * 2}
    states = {rank: (IDLE, later(IDLE, still_s=40.0)) for rank in (0, 1)} | {2: (state, later(state, still_s=40.0))}
    return looked(states, stacks=stacks)


@each_row(
    ("frames", "waits", "advice"),
    [
        ([("wait", f"{PYTHON}/threading.py"), ("get", f"{PYTHON}/queue.py")], "another thread must put", "exception"),
        ([("Condition.wait", f"{PYTHON}/threading.py"), ("Queue.put", f"{PYTHON}/queue.py")], "must empty", "empties"),
        ([("Condition.wait", f"{PYTHON}/threading.py"), ("Event.wait", f"{PYTHON}/threading.py")], "event", "set it"),
        ([("Condition.wait", f"{PYTHON}/threading.py")], "a condition", "notify it"),
        ([("join", f"{PYTHON}/threading.py")], "the end of a thread", "that thread"),
        ([("_recv", f"{PYTHON}/multiprocessing/connection.py"), ("get", f"{PYTHON}/multiprocessing/queues.py")],
         "another process must put", "fills this queue"),
        ([("recv", f"{PYTHON}/multiprocessing/connection.py")], "a message from another process", "other end"),
        ([("SemLock.__enter__", f"{PYTHON}/multiprocessing/synchronize.py")], "a lock that processes share", "killed"),
        ([("wait", f"{PYTHON}/multiprocessing/synchronize.py")], "another process must set", "must set it"),
        ([("map", f"{PYTHON}/multiprocessing/pool.py")], "a worker pool", "workers"),
        ([("join", f"{PYTHON}/multiprocessing/process.py")], "the end of a process", "pstree"),
        ([("Popen._try_wait", f"{PYTHON}/subprocess.py")], "a program that it has started", "pstree"),
        ([("Cmd.cmdloop", f"{PYTHON}/cmd.py"), ("trace_dispatch", f"{PYTHON}/bdb.py")], "a debugger", "breakpoint()"),
        ([("FileBaton.wait", f"{PACKAGES}/torch/utils/file_baton.py")], "an extension build", "-name lock"),
        ([("acquire", f"{PACKAGES}/filelock/_api.py")], "a lock file", "fuser"),
        ([("_try_get_data", f"{PACKAGES}/torch/utils/data/dataloader.py")], "its data loader", "num_workers=0"),
        ([("readinto", f"{PYTHON}/socket.py"), ("urlopen", f"{PYTHON}/urllib/request.py")], "HTTP server", "curl"),
        ([("recv", f"{PACKAGES}/redis/connection.py")], "a network reply", "timeout"),
        ([("select", f"{PYTHON}/selectors.py"), ("run", f"{PYTHON}/asyncio/runners.py")], "(asyncio)", "the task"),
        ([], "is waiting for a lock or for another thread", "py-spy dump"),
    ],
)  # fmt: skip
def test_a_rank_in_a_known_library_says_what_it_waits_for_and_what_to_do(
    frames: list[tuple[str, str]], waits: str, advice: str
) -> None:
    found = stuck_in(*frames)
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}
    (finding,) = outside.run(found)
    assert waits in finding.message
    assert ", train.py:12 in step" in finding.message
    assert advice in finding.remedy
    assert "start the missing" not in finding.remedy


def test_a_loop_with_pauses_says_what_it_asks_for() -> None:
    own = LiveFrame("step", "/home/u/train.py", 12, {"asks": "polls-file", "asked": "os.path.exists, line 11"})
    found = stuck_in(state=SLEEPS, own=own)
    (finding,) = outside.run(found)
    assert finding.message == "is polling for a file in a loop (os.path.exists, line 11), train.py:12 in step"
    assert "should write this file" in finding.remedy
    assert found.classes[0].reason == "polls-file"


def test_ranks_that_wait_in_a_circle_are_all_named_with_their_lines() -> None:
    def of(*peers: dict[str, str]) -> JobState:
        stacks = {rank: (in_call("recv" if "src" in each else "send", each),) * 2 for rank, each in enumerate(peers)}
        return looked(dict.fromkeys(stacks, (IDLE, later(IDLE, still_s=20.0))), stacks=stacks)

    tag = {"tag": "0"}
    found = of({"src": "1"} | tag, {"src": "2"} | tag, {"src": "0"} | tag)
    assert (classes(found), found.classes[0].reason) == ({"desync": (0, 1, 2)}, "p2p-circle")
    circle = "have been waiting for each other in a circle for 20 s: rank 0 in recv (train.py:12) from rank 1"
    assert circle in found.answer.message
    assert "tag" not in found.answer.message
    (finding,) = apart.run(found)
    assert "batch_isend_irecv" in finding.remedy
    assert of({"dst": "1"}, {"dst": "0"}).classes[0].reason == "p2p-circle"
    for other in (of({"src": "1"}, {"dst": "0"}), of({"src": "1"}, {"dst": "2"}, {"src": "1"})):
        assert "circle" not in other.answer.message


def test_a_receive_from_a_rank_that_went_on_to_a_collective_is_told_with_it() -> None:
    states = dict.fromkeys(range(4), (IDLE, later(IDLE, still_s=20.0)))
    calls = [("broadcast", {}), ("recv", {"src": "0"}), ("recv", {"src": "1"}), ("broadcast", {})]
    stacks = {rank: (in_call(*call),) * 2 for rank, call in enumerate(calls)}
    found = looked(states, stacks=stacks)
    assert classes(found) == {"desync": (0, 1, 2), "waiting": (3,)}
    assert found.answer.message.startswith("rank 1 receives from rank 0, which is in broadcast for 20 s: ")
    assert found.classes[0].reason == "p2p-unmatched"
    records = recorded({0: "broadcast*@970", 3: "broadcast*@970", 1: "all_reduce@900", 2: "all_reduce@900"})
    assert classes(looked(states, records, stacks=stacks)) == {"desync": (0, 1, 2), "waiting": (3,)}


def test_a_child_that_has_ended_is_named_only_if_the_rank_may_wait_for_it() -> None:
    helper = Child("Z", 0.1, pid=60, name="python")
    state = replace(IDLE, children=(helper,))
    for frames, named in (
        ([("get", f"{PYTHON}/queue.py")], False),
        ([("get", f"{PYTHON}/multiprocessing/queues.py")], True),
    ):
        assert ("its process 60" in stuck_in(*frames, state=state).classes[0].doing) is named


def test_a_thread_that_is_in_a_further_call_of_its_rank_is_named() -> None:
    saves = FlightFrame("save", "/home/u/train.py", 51)
    saver = ThreadPlace("saver", saves, frames=(in_call("barrier", {})[0], saves))
    states = dict.fromkeys(range(2), (IDLE, later(IDLE, still_s=20.0)))
    reduces, gathers = (in_call(name, {}) for name in ("all_reduce", "all_gather"))
    found = looked(states, stacks={0: (reduces,) * 2, 1: (gathers,) * 2}, threads=((saver,), ()))
    assert "; rank 0 is also in barrier (train.py:51, thread saver)" in found.answer.message
    assert classes(found) == {"desync": (0, 1)}
    (finding,) = apart.run(found)
    assert "in one thread" in finding.remedy
    waits = looked(states, stacks={0: (reduces,) * 2, 1: ((OWN,),) * 2}, threads=((), (saver,)))
    assert waits.classes[0].reason == "lock-in-collective"
    puts = replace(saver, frames=(FlightFrame("put", f"{PYTHON}/queue.py", 3), saves))
    waits = looked(states, stacks={0: (reduces,) * 2, 1: ((OWN,),) * 2}, threads=((), (puts,)))
    assert waits.classes[0].reason == "lock-of-thread"
    assert "; saver in train.py:51 in save, is waiting for room in a queue" in waits.classes[0].doing


def test_the_forward_of_a_wrapped_model_is_a_collective() -> None:
    buffers = (FlightFrame("_sync_buffers", f"{PACKAGES}/torch/nn/parallel/distributed.py", 9), OWN)
    states = dict.fromkeys(range(3), (IDLE, later(IDLE, still_s=20.0)))
    barrier = (in_call("barrier", {}),) * 2
    found = looked(states, stacks={0: (buffers,) * 2, 1: barrier, 2: barrier})
    assert classes(found) == {"desync": (0,), "waiting": (1, 2)}
    assert found.classes[0].reason == "in-forward"


def test_ranks_of_different_calls_in_records_are_shown_with_the_lines_of_their_stacks() -> None:
    texts = {0: "all_reduce@960 all_reduce*@970", 1: "all_reduce@960 all_gather*@970"}
    lines = {0: (in_call("all_reduce", {}),) * 2, 1: ((in_call("all_gather", {})[0], replace(OWN, line=50)),) * 2}
    made = recorded(texts)
    bare = replace(made, dumps=tuple(replace(each, stacks=tuple(() for _ in each.stacks)) for each in made.dumps))
    found = looked(dict.fromkeys(lines, (IDLE, later(IDLE, still_s=20.0))), bare, stacks=lines)
    assert "(train.py:12)" in found.answer.message
    assert "(train.py:50)" in found.answer.message


def test_of_the_workers_of_a_pool_the_one_in_the_program_is_named() -> None:
    pool = (
        FlightFrame("wait", f"{PYTHON}/threading.py", 3),
        FlightFrame("map", f"{PYTHON}/multiprocessing/pool.py", 4),
    )
    begins = (
        FlightFrame("_bootstrap", f"{PYTHON}/multiprocessing/process.py", 9),
        FlightFrame("main", OWN.filename, 1),
    )
    idle = (FlightFrame("get", f"{PYTHON}/multiprocessing/queues.py", 3), *begins)
    tokenize = (FlightFrame("tokenize", "/home/u/data.py", 7), *begins)
    workers = [Child("S", 0.1, "", call, pid=pid, name="python") for call, pid in (("read", 60), ("nanosleep", 61))]
    waits = replace(IDLE, children=tuple(workers))
    states = {0: (IDLE, later(IDLE, still_s=40.0)), 1: (waits, later(waits, still_s=40.0))}
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: ((*pool, OWN),) * 2}
    found = looked(states, stacks=stacks, of_children={60: idle, 61: tokenize}).classes[0]
    assert "its process 61 (python) is sleeping (nanosleep), data.py:7 in tokenize" in found.doing
    assert ("process 60" in found.doing, found.reason) == (False, "sleep")
    filler, other = (replace(workers[1], pid=pid, pipes=(f"pipe:[{pipe}]",)) for pid, pipe in ((61, 5), (60, 6)))
    gets = replace(IDLE, call="read", file="pipe:[5]", children=(other, filler))
    of_queue = (FlightFrame("get", f"{PYTHON}/multiprocessing/queues.py", 4), OWN)
    states, stacks = states | {1: (gets, later(gets, still_s=40.0))}, stacks | {1: (of_queue,) * 2}
    found = looked(states, stacks=stacks, of_children=dict.fromkeys((60, 61), tokenize)).classes[0]
    assert ("process 60" in found.doing, "process 61" in found.doing) == (False, True)


def test_a_debugger_that_waits_for_a_connection_is_stuck_and_a_server_is_not() -> None:
    accepts = replace(IDLE, call="accept", file="a socket that listens at 127.0.0.1:57291", listens=True)
    rows = [
        ("SocketPdb.__init__", accepts, "a debugger that waits for a connection (accept of a socket that listens at"),
        ("wait_for_debugger", replace(accepts, listens=False, file=""), "a debugger that waits for a connection (acc"),
        ("PDBDataset.serve", accepts, ""),
        ("Server.accept", accepts, ""),
    ]
    for name, state, words in some(rows):
        found = stuck_in(("accept", f"{PYTHON}/socket.py"), state=state, own=replace(OWN, name=name))
        assert (found.answer.word, words in found.classes[0].doing) == ("STUCK" if words else "CANNOT TELL", True)


def test_advice_names_the_process_that_it_is_about() -> None:
    child = "is waiting for a program that it has started; its process 60 (sh) is opening a FIFO"
    rows = [
        (("n1:7",), "is waiting for the end of a thread", "thread-end", "`py-spy dump --pid 7`"),
        (("n1:7",), child, "program", "`pstree -ap 60`"),
        (("n1:7",), "is waiting for a program that it has started", "program", "`pstree -ap 7`"),
        (("n1:7", "n1:8"), "are stopped by a signal", "stopped", "`kill -CONT 7 8`"),
        (("n1:7",), "is waiting; its process 60 (sh) is stopped by a signal", "stopped", "`kill -CONT 60`"),
        (("n1:7", "n2:7"), "are stopped by a signal", "stopped", "`kill -CONT PID`"),
        (("n1:7",), "rank 2 in all_gather", "lone-call", "Only rank 2 makes the call"),
    ]
    for processes, doing, kind, words in some(rows):
        nodes = tuple(dict.fromkeys(each[:2] for each in processes))
        assert words in reasons.advice(RankClass("stuck outside", (2,), nodes, processes, doing, (), kind))[1]


def test_one_rank_in_a_call_of_its_own_beside_backward_is_told_that_it_alone_makes_it() -> None:
    backward = (FlightFrame("_engine_run_backward", f"{PACKAGES}/torch/autograd/graph.py", 9), replace(OWN, line=51))
    gathers = in_call("all_gather_object", {})
    rows = [((0,), "lone-call"), ((0, 1), "in-backward")]
    for odd, reason in some(rows):
        stacks = {rank: (gathers if rank in odd else backward,) * 2 for rank in range(5)}
        found = looked(dict.fromkeys(stacks, (IDLE, later(IDLE, still_s=20.0))), stacks=stacks)
        assert (classes(found)["desync"], found.classes[0].reason) == (odd, reason)


def test_the_function_nearest_to_the_program_says_what_it_waits_for() -> None:
    inner = [("poll", f"{PYTHON}/multiprocessing/connection.py"), ("next", f"{PACKAGES}/torch/utils/data/loader.py")]
    (finding,) = outside.run(stuck_in(*inner))
    assert "is waiting for its data loader" in finding.message
    beyond = replace(OWN, filename=f"{PYTHON}/queue.py", name="get")  # outside of the program's innermost frame
    stack = (OWN, beyond)
    rank = RankView(2, "n1", first=IDLE, second=later(IDLE), stacks=(stack, stack))
    assert "queue" not in activity.doing(rank, "idle").text


def test_a_lock_in_a_handler_a_debugger_and_standard_input_are_told_apart() -> None:
    handler = LiveFrame("on_signal", "/home/u/train.py", 8, {"signal": "12"})
    rows = [
        (IDLE, handler, "inside a signal handler"),
        (replace(IDLE, call="read", file="pipe:[7]", stdin=True), OWN, "is reading its standard input"),
        (replace(IDLE, call="read", file="pipe:[7]"), OWN, "reading data that does not arrive (read of pipe:[7])"),
        (SLEEPS, handler, "is sleeping (nanosleep)"),
    ]
    for state, own, words in some(rows):
        assert words in stuck_in(state=state, own=own).classes[0].doing


def test_other_threads_are_named_if_one_may_have_to_act() -> None:
    gets = (FlightFrame("get", f"{PYTHON}/queue.py", 1), OWN)
    waits = (LiveFrame("receive", "/home/u/train.py", 5, {"work": "work", "tag": "31", "src": "1"}),)
    joined = (ThreadPlace("MainThread", FlightFrame("main", "/home/u/train.py", 14), first=True),)
    reads = (ThreadPlace("reader", FlightFrame("read", "/home/u/data.py", 7)),)
    rows = [
        (gets, (), "no other thread of the program is left"),
        (gets, reads, "; reader in data.py:7 in read"),
        (
            waits,
            joined,
            "is waiting for a thread, which is waiting for a torch.distributed operation from rank 1",
        ),
    ]
    for stack, threads, words in some(rows):
        rank = RankView(2, "n1", first=IDLE, second=later(IDLE), stacks=(stack, stack), threads=threads)
        assert words in activity.doing(replace(rank, process=looked_process()), "idle").text


def test_a_rank_at_the_end_of_its_program_is_stuck_and_those_that_have_ended_are_not_blamed() -> None:
    stack = (FlightFrame("_shutdown", f"{PYTHON}/threading.py", 1590),)
    states: dict[int, tuple[LiveRank | Absent, LiveRank | Absent]] = {0: (IDLE, later(IDLE)), 1: (IDLE, GONE)}
    found = looked(states, stacks={0: (stack, stack), 1: ((), ())})
    assert {each.name: each.ranks for each in found.classes} == {"stuck outside": (0,), "working": (1,)}
    (finding,) = outside.run(found)
    assert "the end of its program" in finding.message
    assert "daemon=True" in finding.remedy


def looked_process() -> object:
    from ncclprobe.facts.job.ranks import JobProcess
    from ncclprobe.facts.launcher import Launch

    return JobProcess(102, 1, "python", 2, Launch("torchrun"))


def in_call(name: str, values: dict[str, str]) -> tuple[FlightFrame, ...]:
    return LiveFrame(name, C10D, 9, values), OWN


@each_row(
    ("name", "values", "words", "advice"),
    [
        ("broadcast", [{"src": "1", "group_src": "1"}, {"src": "0", "group_src": "0"}], "rank 0 src=1; rank 1 src=0",
         "the same src"),
        ("new_group", [{"ranks": "[0, 1]", "group_name": "2"}, {"ranks": "[0, 1]", "group_name": "1"}],
         "rank 0 its group 2; rank 1 its group 1", "same groups in the same order"),
        ("init_process_group", [{"init_method": "file:///a"}, {"init_method": "file:///b"}],
         "init_method=file:///a", "the same init_method"),
        ("all_reduce", [{"group": "given"}, {"group": "default"}], "rank 1 in the default group, rank 0 in a group of",
         "the same group"),
        ("recv", [{"src": "2"}, {"dst": "0"}, {"src": "1"}], "rank 0 receives from rank 2, which sends nothing to it",
         "src, dst and tag"),
        ("recv", [{"src": "1", "tag": "5"}, {"dst": "0", "tag": "4"}], "receives tag 5 from rank 1, which sends tag 4",
         "the same tag"),
        ("init_process_group", [{"rank": "1"}, {"rank": "1"}], "the same rank=1", "each its own rank"),
    ],
)  # fmt: skip
def test_ranks_in_one_call_with_different_arguments_are_all_in_it_and_none_is_blamed(
    name: str, values: list[dict[str, str]], words: str, advice: str
) -> None:
    stacks = {rank: (in_call(name, given),) * 2 for rank, given in enumerate(values)}
    found = looked(dict.fromkeys(stacks, (IDLE, later(IDLE, still_s=20.0))), stacks=stacks)
    desync = (0,) if name == "recv" else tuple(stacks)
    assert classes(found)["desync"] == desync
    assert words in found.answer.message
    (finding,) = apart.run(found)
    assert advice in finding.remedy
    if name == "recv":
        return
    same = {rank: (in_call(name, values[0] | {"rank": str(rank)}),) * 2 for rank in stacks}
    assert "different" not in looked(dict.fromkeys(same, (IDLE, later(IDLE, still_s=20.0))), stacks=same).answer.message


def test_the_one_rank_with_another_argument_than_most_is_named() -> None:
    stacks = {rank: (in_call("broadcast", {"src": str(rank == 2)}),) * 2 for rank in range(3)}
    found = looked(dict.fromkeys(stacks, (IDLE, later(IDLE, still_s=20.0))), stacks=stacks)
    assert classes(found) == {"desync": (2,), "waiting": (0, 1)}


def test_other_arguments_of_some_ranks_are_told_if_others_are_in_a_further_call() -> None:
    calls = [("gather", {"dst": "0"}), ("gather", {"dst": "1"}), ("barrier", {})]
    stacks = {rank: (in_call(*call),) * 2 for rank, call in enumerate(calls)}
    found = looked(dict.fromkeys(stacks, (IDLE, later(IDLE, still_s=20.0))), stacks=stacks)
    assert "ranks gave gather different arguments (rank 0 dst=0, rank 1 dst=1)" in found.answer.message
    assert (classes(found)["desync"], found.classes[0].reason) == ((0, 1), "in-gather")


def test_advice_about_one_call_is_given_only_if_all_ranks_are_in_it() -> None:
    stacks = {0: (in_call("broadcast", {"src": "0"}),) * 2, 1: (in_call("all_reduce", {}),) * 2}
    (finding,) = apart.run(looked(dict.fromkeys(stacks, (IDLE, later(IDLE, still_s=20.0))), stacks=stacks))
    assert "the same src" not in finding.remedy


def test_a_rank_that_waits_for_a_key_while_another_works_is_slow() -> None:
    asks = replace(IDLE, call="poll", file="socket:[7]")
    wires = ((Connection(101, "127.0.0.1:5", "127.0.0.1:29500", inode=7),),) * 2
    for busy, word in some([({"cpu_s": 9.0, "faults": 9999}, "SLOW"), ({}, "CANNOT TELL")]):
        found = looked({0: (IDLE, later(IDLE, **busy)), 1: (asks, later(asks))}, wires=wires, port=29500)
        assert found.answer.word == word, found


def test_links_are_advised_only_if_there_are_gpus_or_tcp_shows_silence() -> None:
    states = dict.fromkeys(range(2), (IDLE, later(IDLE, still_s=40.0)))
    given = (LiveFrame("all_reduce", C10D, 9, {}), LiveFrame("all_reduce", C10D, 1, {"group": "given"}), OWN)
    rows = [(in_call("all_reduce", {}), "Sizes and types"), (given, "In a circle")]
    for stack, words in some(rows):
        (finding,) = inside.run(looked(states, stacks=dict.fromkeys(range(2), (stack, stack))))
        assert words in finding.remedy
        assert "Xid" not in finding.remedy


def test_of_a_programs_variables_only_those_leave_that_say_what_a_call_waits_for() -> None:
    def local(name: str, text: str, is_argument: bool = False) -> dict[str, object]:
        return {"name": name, "repr": text, "arg": is_argument}

    frames = [
        {"name": "broadcast", "filename": C10D, "line": 1, "locals": [local("src", "1"), local("tensor", "<Tensor>")]},
        {"name": "wrapper", "filename": C10D, "line": 2, "locals": [local("kwargs", '{"group": <ProcessGroup at 0>}')]},
        {"name": "wrapper", "filename": C10D, "line": 2, "locals": [local("args", "(1)"), local("kwargs", "{}")]},
        {"name": "wrapper", "filename": C10D, "line": 2, "locals": [local("args", "(1, ...)"), local("kwargs", "{}")]},
        {"name": "step", "filename": "/home/u/train.py", "line": 3,
         "locals": [local("token", '"secret"'), local("tag", "7"), local("w", "<_distributed_c10d.Work at 0>")]},
        {"name": "handle", "filename": "/home/u/train.py", "line": 4,
         "locals": [local("number", "12", True), local("frame", "<frame at 0x7>", True)]},
        {"name": "user_line", "filename": "/home/u/bdb.py", "line": 5,
         "locals": [local("self", "<Pdb at 0x7>", True), local("frame", "<frame at 0x7>", True)]},
    ]  # fmt: skip
    kept = [py_spy.kept_frame(frame) for frame in frames]
    assert [each.get("values") for each in kept] == [
        {"src": "1"}, {"group": "given"}, {"group": "default"}, None, {"tag": "7", "work": "w"}, {"signal": "12"}, None,
    ]  # fmt: skip
    assert "secret" not in json.dumps(kept)


def test_a_rank_that_may_wait_for_the_work_of_another_missing_one_is_slow() -> None:
    builds = (FlightFrame("FileBaton.wait", f"{PACKAGES}/torch/utils/file_baton.py", 1), OWN)
    rows = [(SLEEPS, OWN, "slow, not stuck"), (IDLE, builds, "slow, not stuck"), (IDLE, OWN, "stuck outside")]
    for state, stack, name in some(rows):
        stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (stack if isinstance(stack, tuple) else (stack,),) * 2, 2: ((OWN,),) * 2}
        states = {
            0: (IDLE, later(IDLE, still_s=40.0)),
            1: (state, later(state)),
            2: (IDLE, later(IDLE, cpu_s=9.0, faults=9999)),
        }
        found = looked(states, stacks=stacks)
        assert 1 in {rank for each in found.classes if each.name == name for rank in each.ranks}


def test_ranks_that_read_from_one_that_waits_for_another_to_connect_wait_for_it() -> None:
    reads, accepts = replace(IDLE, call="recvfrom", file="socket:[7]"), replace(IDLE, call="accept", listens=True)
    ends = (Connection(101, "127.0.0.1:5", "127.0.0.1:9", inode=7), Connection(100, "127.0.0.1:9", "127.0.0.1:5"))
    for own, word in some([(accepts, "STUCK"), (replace(accepts, listens=False), "CANNOT TELL")]):
        states = {0: (own, later(own, still_s=30.0)), 1: (reads, later(reads, still_s=30.0))}
        found = looked(states, wires=(ends, ends))
        assert found.answer.word == word
        if word == "STUCK":
            assert classes(found) == {"stuck outside": (0,), "waiting": (1,)}
        assert "a connection to rank 0 at 127.0.0.1:9" in str(found) or word == "STUCK"


def test_records_in_which_all_ranks_are_in_one_call_are_compared_by_their_stacks() -> None:
    texts = dict.fromkeys(range(2), "broadcast@970 broadcast*@971")
    stacks = {rank: (in_call("broadcast", {"src": str(rank)}),) * 2 for rank in range(2)}
    states = dict.fromkeys(range(2), (IDLE, later(IDLE, still_s=20.0)))
    assert classes(looked(states, recorded(texts, backend="gloo"), stacks=stacks)) == {"desync": (0, 1)}


def test_every_reason_that_the_package_gives_is_in_the_table_and_none_is_unused() -> None:
    folder = Path(reasons.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    words = {*re.findall(r'"([a-z0-9-]+)"', source)}
    given = {*re.findall(r'(?:Doing\([^\n]*, |reason = |reason=)"([a-z0-9-]+)"', source)}
    table = {*reasons.reasons()}
    polled = {f"polls-{kind}" for kind, _ in polls._ASKED}
    assert given | polled | {*reasons.HALTED, *reasons.LOCKS, *reasons.FOR_THREADS, *reasons.FOR_PROCESSES} <= table
    unused = {each.kind for each in reasons.reasons().values() if not (each.frames or each.kind.startswith("in-"))}
    assert unused - words - polled == set()
