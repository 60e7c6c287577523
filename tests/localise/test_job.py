"""How a running job stands, from two looks at its ranks: the sentences, and what is not in the kept cases."""

import json
from types import SimpleNamespace
from typing import Any

from ncclprobe.checks.job.ranks import apart, inside
from ncclprobe.facts.files.ras import RasAnswer
from ncclprobe.facts.job.ranks import JobLook, JobLooks, JobProcess, LocalRanks
from ncclprobe.facts.launcher import Launch
from ncclprobe.host import py_spy
from ncclprobe.logs.job import activity, merged, reasons, stand
from ncclprobe.logs.job.activity import RankView
from ncclprobe.logs.job.calls import confirmed, launched
from ncclprobe.model.causes import RankClass
from ncclprobe.model.units import agreeing
from ncclprobe.model.values import replace
from tests.each_row import each_row, some
from tests.localise.standing import (
    C10D,
    GONE,
    IDLE,
    NOTHING,
    OWN,
    PYTHON,
    SLEEPS,
    STOPPED,
    UNSEEN,
    in_call,
    in_stacks,
    later,
    of_two,
)
from tests.localise.standing_cases import rows


@each_row(
    ("first", "second", "name", "words"),
    [
        (SLEEPS, later(SLEEPS), "stuck outside", "is sleeping (nanosleep)"),
        (SLEEPS, later(SLEEPS, switches=27, ran_s=0.02), "slow, not stuck", "is at work (0.0 cores, between sleeps)"),
        (IDLE, later(IDLE), "stuck outside", "is waiting for a lock or for another thread (futex)"),
        (STOPPED, later(STOPPED), "stuck outside", "is stopped by a signal"),
        (IDLE, GONE, "dead or gone", "has ended (process 102)"),
        (UNSEEN, UNSEEN, "cannot tell", "is not known: process 102: permission denied"),
        (IDLE, later(IDLE, cpu_s=5.9, faults=9000), "slow, not stuck", "is at work (0.9 cores)"),
        (IDLE, later(IDLE, moved_bytes=300_000_000), "slow, not stuck", "is at work (0.0 cores, 300 MB/s"),
        (IDLE, later(IDLE, cpu_s=5.04, queued_s=0.5), "slow, not stuck", "(0.0 cores, waiting for a processor)"),
        (IDLE, later(IDLE, held_s=0.8), "slow, not stuck", "held back by the quota of its cgroup"),
        (IDLE, later(IDLE, cpu_s=5.9), "slow, not stuck", "reads and writes nothing: an endless loop or long work"),
    ],
)
def test_a_rank_for_which_others_wait_is_stuck_only_if_it_does_nothing(
    first: Any, second: Any, name: str, words: str
) -> None:
    found = of_two(first, second)
    assert {each.name: each.ranks for each in found.classes} == {name: (2,), "waiting": (0, 1)}
    assert words in found.classes[0].doing
    waits = "2 of 3 ranks have been waiting for 31 s in all_reduce #2 (group 0 (default_pg)) for rank 2 on n1"
    assert found.answer.message == waits
    assert found.answer.word == {"slow, not stuck": "SLOW", "cannot tell": "CANNOT TELL"}.get(name, "STUCK")


SAID = {
    "another call": "rank 1 called all_gather",
    "stopped, all are in the call": "for rank 2",
    "a call that torch does not record": "have been waiting for 12 s in monitored_barrier (train.py:40) for rank 2",
    "in backward, {}": "2 of 3 ranks have been waiting for 40 s in backward (train.py:41)",
    "a wait in C: one is in a queue": "waiting for 40 s in a wait (train.py:139) for rank 2 on n1",
    "a further call of a thread": "; rank 0 is also in barrier (train.py:51, thread saver)",
    "a receive from one in a collective": "rank 1 receives from rank 0, which is in broadcast for 20 s: ",
    "other arguments beside a further call": "ranks gave gather different arguments (rank 0 dst=0, rank 1 dst=1)",
    "records without lines": "(train.py:50)",
    "a node that was not looked at": "",
    "absent": "",
    "at work": "; rank 0 is at train.py:",
}


def test_the_answer_names_the_call_and_who_is_waited_for_and_nobody_is_blamed_without_a_look() -> None:
    found = dict(rows())
    assert {
        name: found[name].answer.message for name, said in SAID.items() if said not in found[name].answer.message
    } == {}
    assert found["a node that was not looked at"].answer.word == "CANNOT TELL"
    circle = found["recv [{'src': '1', 'tag': '0'}, {'src': '2', 'tag': '0'}, {'src': '0', 'tag': '0'}]"]
    assert (
        "waiting for each other in a circle for 20 s: rank 0 in recv (train.py:12) from rank 1" in circle.answer.message
    )
    assert "tag" not in circle.answer.message


def test_advice_names_the_process_that_it_is_about() -> None:
    child = "is waiting for a program that it has started; its process 60 (sh) is opening a FIFO"
    for processes, doing, kind, words in some(
        [
            (("n1:7",), "is waiting for the end of a thread", "thread-end", "`py-spy dump --pid 7`"),
            (("n1:7",), child, "program", "`pstree -ap 60`"),
            (("n1:7",), "is waiting for a program that it has started", "program", "`pstree -ap 7`"),
            (("n1:7", "n1:8"), "are stopped by a signal", "stopped", "`kill -CONT 7 8`"),
            (("n1:7",), "is waiting; its process 60 (sh) is stopped by a signal", "stopped", "`kill -CONT 60`"),
            (("n1:7", "n2:7"), "are stopped by a signal", "stopped", "`kill -CONT PID`"),
            (("n1:7",), "rank 2 in all_gather", "lone-call", "Only rank 2 makes the call"),
        ]
    ):
        nodes = tuple(dict.fromkeys(each[:2] for each in processes))
        assert words in reasons.advice(RankClass("stuck outside", (2,), nodes, processes, doing, (), kind))[1]


def test_advice_about_one_call_is_given_only_if_all_ranks_are_in_it_and_about_links_only_with_gpus() -> None:
    same, other = [in_call("broadcast", src=str(rank)) for rank in range(2)], in_call("all_reduce")
    advice = [finding.remedy for stacks in (same, [same[0], other]) for finding in apart.run(in_stacks(*stacks))]
    assert ["the same src" in each for each in advice] == [True, False]
    (finding,) = inside.run(in_stacks(other, other, still_s=40.0))
    assert ("Sizes and types" in finding.remedy, "Xid" in finding.remedy) == (True, False)


def test_a_frame_beyond_the_programs_innermost_one_says_nothing_of_its_wait() -> None:
    stack = (OWN, replace(OWN, filename=f"{PYTHON}/queue.py", name="get"))
    rank = RankView(2, "n1", first=IDLE, second=later(IDLE), stacks=(stack, stack))
    assert "queue" not in activity.doing(rank, "idle").text


def test_ranks_that_wait_in_different_calls_stay_apart() -> None:
    waits = [
        RankClass("waiting", (rank,), doing=f"is waiting in all_reduce #{51 + rank % 2} for 9") for rank in range(4)
    ]
    assert [each.ranks for each in merged(iter(waits))] == [(0, 2), (1, 3)]


def test_why_stacks_were_not_read_is_said() -> None:
    found = dict(rows())["stacks that were not read"]
    assert "py-spy is not installed" in found.answer.prepare
    assert any("py-spy is not installed" in each.text for row in found.classes for each in row.evidence)


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


def test_what_ras_said_at_one_of_two_looks_alone_confirms_nothing() -> None:
    once, again = RasAnswer("a", launched=((1, 5), (2, 5), (3, 5))), RasAnswer("b", launched=((1, 5), (2, 6), (4, 9)))
    rows = [(GONE, once), (once, GONE), (GONE, GONE), (once, again)]
    looks: list[Any] = [SimpleNamespace(first=SimpleNamespace(ras=a), second=SimpleNamespace(ras=b)) for a, b in rows]
    assert [confirmed(each) for each in looks] == [None, None, None, again]
    assert [launched(each) for each in looks] == [frozenset(), frozenset(), frozenset(), frozenset({2})]


def test_a_rank_that_has_ended_is_missing_though_its_number_is_not_known() -> None:
    ranks = tuple(JobProcess(100 + n, 1, "python", None, Launch()) for n in range(2))
    states = JobLook((IDLE, IDLE), NOTHING, ("no server",) * 2)
    both = JobLooks(states, replace(states, processes=(later(IDLE),) * 2))
    found = stand({"n1": (LocalRanks(ranks, gone=1), both)})
    said = "2 of 3 ranks were examined: 1 of 3 ranks no longer have a process"
    assert (found.answer.word, found.answer.message) == ("STUCK", said)
    assert stand({"n1": (LocalRanks(ranks), both)}).answer.word == "CANNOT TELL"
