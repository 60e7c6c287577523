"""How a running job stands by what Python's stacks and its children show, where torch has recorded nothing."""

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.meeting import Connection
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import JobState
from ncclprobe.model.units import agreeing
from ncclprobe.model.values import replace
from tests.each_row import each_row, some
from tests.localise.test_job import (
    IDLE,
    IN_ALL_REDUCE,
    IN_LOADER,
    SLEEPS,
    WAIT_OF_51,
    classes,
    later,
    looked,
    waits_for_2,
)


def test_stacks_name_the_rank_where_torch_has_recorded_nothing() -> None:
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (IN_LOADER,) * 2}
    five_later = later(IDLE, 5.0)
    found = looked(dict.fromkeys(range(3), (IDLE, five_later)), stacks=stacks)
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}
    assert found.classes[0].doing.endswith("in recv, train.py:12 in step")


def test_stacks_in_different_calls_wait_for_each_other_where_all_are_in_one() -> None:
    gathers = (replace(IN_ALL_REDUCE[0], name="all_gather"), replace(IN_ALL_REDUCE[1], line=50))
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (gathers,) * 2, 2: (IN_ALL_REDUCE,) * 2}
    states = dict.fromkeys(range(3), (IDLE, later(IDLE)))
    found = looked(states, stacks=stacks)
    assert classes(found) == {"desync": (1,), "waiting": (0, 2)}
    assert "rank 1 in all_gather (train.py:50)" in found.answer.message
    assert looked(states, stacks=stacks, world=6).answer.word == "CANNOT TELL"
    ends = Connection(100, "127.0.0.1:5", "127.0.0.1:9"), Connection(101, "127.0.0.1:9", "127.0.0.1:5")
    sent = replace(ends[0], acknowledged_bytes=1 << 20), ends[1]
    for after, word in ((ends, "STUCK"), (sent, "CANNOT TELL")):  # rank 1 may still get what rank 0 has sent before
        assert looked(states, stacks=stacks, wires=(ends, after)).answer.word == word


def test_ranks_that_receive_are_missing_in_the_collective_of_fewer() -> None:
    receives = (replace(IN_ALL_REDUCE[0], name="recv"), replace(IN_ALL_REDUCE[1], line=50))
    stacks = {0: (receives,) * 2, 1: (receives,) * 2, 2: (IN_ALL_REDUCE,) * 2}
    found = looked(dict.fromkeys(range(3), (IDLE, later(IDLE))), stacks=stacks)
    assert classes(found) == {"desync": (0, 1), "waiting": (2,)}


def test_waiting_ranks_that_woke_between_the_looks_prove_nothing_by_their_stacks() -> None:
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_LOADER,) * 2}
    woke = later(IDLE, 5.0, switches=9)
    found = looked({0: (IDLE, woke), 1: (IDLE, woke)}, stacks=stacks)
    assert found.answer.word == "CANNOT TELL"


def test_the_child_whose_end_a_rank_awaits_is_named_and_no_idle_worker() -> None:
    idle = Child("S", 3.0, "do_poll", "poll", pipes=("pipe:[9]",), pid=60, name="pt_data_worker")
    shell = Child("S", 0.1, "do_wait", "wait4", awaits=78, pid=77, name="sh")
    reader = Child("S", 0.1, "fifo_open", "open", pid=78, name="cat")
    waits = replace(IDLE, call="wait4", wchan="do_wait", awaits=77, pipes=("pipe:[9]",), children=(idle, shell, reader))
    (outside, _) = waits_for_2(waits, later(waits)).classes
    wanted = "is waiting for a process that it has started (wait4); its process 78 (cat) is opening a file (open)"
    assert outside.doing == wanted


@each_row(
    ("name", "call", "file", "named"),
    [
        ("pt_data_worker", "futex", "", True),
        ("pt_data_worker", "poll", "pipe:[9]", False),
        ("pt_data_worker", "read", "pipe:[9]", False),  # for the rank's next order
        ("pt_data_worker", "read", "pipe:[5]", True),
        ("sh", "futex", "", False),
    ],
)
def test_a_worker_that_waits_for_a_lock_or_at_a_pipe_of_its_own_is_named(
    name: str, call: str, file: str, named: bool
) -> None:
    worker = Child("S", 0.1, "", call, file, pipes=("pipe:[9]",), pid=60, name=name)
    polls = replace(IDLE, call="poll", pipes=("pipe:[9]",), children=(worker,))
    (outside, _) = waits_for_2(polls, later(polls)).classes
    assert ("its process 60" in outside.doing) is named


@each_row(
    ("text", "several"),
    [
        ("is at work", "are at work"),
        ("waits for rank 1", "wait for rank 1"),
        ("no longer has a process", "no longer have a process"),
        ("keeps a CPU busy but reads and writes nothing", "keep a CPU busy but read and write nothing"),
        ("hash", "hash"),
    ],
)
def test_the_verb_follows_the_number_of_ranks(text: str, several: str) -> None:
    assert (agreeing(text, 1), agreeing(text, 3), agreeing(several, 3)) == (text, several, several)


def test_a_worker_that_sleeps_and_ran_between_the_looks_may_go_on() -> None:
    worker = Child(
        "S", 0.1, "hrtimer_nanosleep", "nanosleep", pipes=("pipe:[9]",), pid=60, name="pt_data_worker", ran_s=1
    )
    polls = replace(IDLE, call="poll", pipes=("pipe:[9]",), children=(worker,))
    for ran_s, name in ((1.001, "slow, not stuck"), (1.0, "stuck outside")):
        (first, _) = waits_for_2(polls, later(polls, children=(replace(worker, ran_s=ran_s),))).classes
        assert first.name == name


def test_the_line_of_a_worker_that_cannot_go_on_is_told() -> None:
    worker = Child("D", 3.0, "nfs_wait", "read", "/data/shard", pid=60, name="pt_data_worker")
    polls = replace(IDLE, call="poll", children=(worker,))
    states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (polls, later(polls))}
    found = looked(states, recorded(WAIT_OF_51, backend="gloo"), of_children={60: IN_LOADER})
    wanted = (
        "its process 60 (pt_data_worker) is in uninterruptible sleep (nfs_wait, /data/shard), in recv, train.py:12 in"
    )
    assert wanted in found.classes[0].doing


@each_row(("call", "named"), [("write", True), ("poll", False)])
def test_who_does_not_read_the_pipe_that_a_rank_writes_to_is_named(call: str, named: bool) -> None:
    reader = Child("S", 0.1, "hrtimer_nanosleep", "nanosleep", pipes=("pipe:[9]",), pid=60, name="tee")
    writes = replace(IDLE, call=call, file="pipe:[9]", pipes=("pipe:[9]",), children=(reader,))
    (outside, _) = waits_for_2(writes, later(writes)).classes
    assert ("its process 60 (tee), which shares a pipe with it, is sleeping" in outside.doing) is named


def test_a_rank_whose_stack_is_in_another_call_made_another_call() -> None:
    receives = (FlightFrame("recv", IN_ALL_REDUCE[0].filename, 2000), FlightFrame("step", "/home/u/train.py", 12))
    for stack, name in ((receives, "desync"), (IN_LOADER, "stuck outside"), (IN_ALL_REDUCE, "stuck outside")):
        stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (stack,) * 2}
        found = looked(
            dict.fromkeys(range(3), (IDLE, later(IDLE))), recorded(WAIT_OF_51, backend="gloo"), stacks=stacks
        )
        assert classes(found) == {name: (2,), "waiting": (0, 1)}
    assert classes(waits_for_2(IDLE, later(IDLE)))["stuck outside"] == (2,)


def test_stacks_tell_of_a_call_that_torch_does_not_record() -> None:
    barrier = (replace(IN_ALL_REDUCE[0], name="monitored_barrier"), IN_ALL_REDUCE[1])
    texts = dict.fromkeys(range(3), "all_reduce@970 all_reduce@971")
    states = {0: (IDLE, later(IDLE, still_s=28.0)), 1: (IDLE, later(IDLE, still_s=12.0)), 2: (SLEEPS, later(SLEEPS))}
    stacks = {0: (barrier,) * 2, 1: (barrier,) * 2, 2: (IN_LOADER,) * 2}
    found = looked(states, recorded(texts, backend="gloo"), stacks=stacks)
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}
    assert "have been waiting for 12 s in monitored_barrier (train.py:40) for rank 2" in found.answer.message
    assert looked(states, recorded(texts, backend="gloo")).answer.word == "CANNOT TELL"


@each_row(
    ("function", "still_s", "name"),
    [
        ("recv", 1.0, "desync"),
        ("all_reduce", 40.0, "stuck inside"),
        ("all_reduce", 5.0, "working"),
        ("all_reduce", None, "cannot tell"),
    ],
)
def test_all_ranks_in_one_call_by_their_stacks(function: str, still_s: float | None, name: str) -> None:
    stack = (replace(IN_ALL_REDUCE[0], name=function), IN_ALL_REDUCE[1])
    states = dict.fromkeys(range(2), (IDLE, later(IDLE, still_s=still_s)))
    assert classes(looked(states, stacks=dict.fromkeys(range(2), (stack, stack)))) == {name: (0, 1)}


def test_a_rank_for_which_others_wait_no_longer_than_a_step_may_take_is_slow() -> None:
    stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_LOADER,) * 2}
    for still_s, word in ((5.0, "SLOW"), (10.0, "STUCK")):
        states = {0: (IDLE, later(IDLE, still_s=still_s)), 1: (IDLE, later(IDLE))}
        assert looked(states, stacks=stacks).answer.word == word


def test_a_pause_that_came_back_before_and_a_rank_that_polls_are_given_time() -> None:
    rows = [
        ("all_reduce@940 all_reduce@960 all_reduce@980", IDLE, 7, "SLOW"),  # twice 20 s before
        ("all_reduce@958 all_reduce@959 all_reduce@979 all_reduce@980", IDLE, 7, "STUCK"),  # once
        ("all_reduce@988 all_reduce@989 all_reduce@990", SLEEPS, 7, "STUCK"),
        ("all_reduce@988 all_reduce@989 all_reduce@990", SLEEPS, 9, "SLOW"),  # it woke
        ("all_reduce@978 all_reduce@979 all_reduce@980", SLEEPS, 9, "STUCK"),
    ]
    for calls, state, switches, word in some(rows):
        before, last = calls.rpartition(" ")[::2]
        texts = {0: f"{before} {last.replace('@', '*@')}", 1: f"{before} {last.replace('@', '*@')}", 2: before}
        states = {0: (IDLE, later(IDLE)), 1: (IDLE, later(IDLE)), 2: (state, later(state, switches=switches))}
        assert looked(states, recorded(texts, backend="gloo")).answer.word == word, calls


def test_ranks_that_wait_for_a_lock_in_no_call_that_is_known_are_not_accused() -> None:
    texts = dict.fromkeys(range(2), "all_reduce@600 all_reduce@610")
    states = {0: (IDLE, later(IDLE)), 1: (SLEEPS, later(SLEEPS))}
    found = looked(states, recorded(texts))
    assert (found.answer.word, set(classes(found))) == ("CANNOT TELL", {"cannot tell"})


IN_C = (FlightFrame("step", "/home/u/train.py", 139),)
"""`work.wait()`: no frame of Python is within it."""


def test_ranks_that_wait_in_c_at_one_line_wait_for_those_that_are_elsewhere() -> None:
    waits = replace(IDLE, still_s=40.0)
    in_queue = (FlightFrame("wait", "/usr/lib/python3.11/threading.py", 320), FlightFrame("step", "/home/u/t.py", 7))

    def of(*stacks: tuple[FlightFrame, ...], state: LiveRank = waits, **after: int) -> JobState:
        states = {rank: (state, later(state, **after)) for rank in range(len(stacks))}
        return looked(states, stacks={rank: (stack,) * 2 for rank, stack in enumerate(stacks)})

    found = of(IN_C, IN_C, in_queue)
    assert classes(found) == {"stuck outside": (2,), "waiting": (0, 1)}
    assert found.answer.message == "2 of 3 ranks have been waiting for 40 s in a wait (train.py:139) for rank 2 on n1"
    others = [
        of(IN_C, IN_C, IN_C),  # all are there: nothing says for whom
        of(IN_C, in_queue, in_queue),  # few are
        of(IN_C, IN_C, in_queue, state=replace(waits, still_s=3.0)),
        of(IN_C, IN_C, in_queue, state=replace(waits, call="poll")),
        of(IN_C, IN_C, in_queue, switches=9),  # it woke
    ]
    assert len(others) >= 5
    assert not [each.answer for each in others if each.answer.word in ("STUCK", "WORKING")]
