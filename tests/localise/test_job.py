"""How a running job stands, from two looks at its ranks: the sentences, and what is not in the kept cases."""

import json
from types import SimpleNamespace
from typing import Any

from ncclprobe.facts.files.ras import RasAnswer
from ncclprobe.facts.job.ranks import JobLook, JobLooks, JobProcess, LocalRanks
from ncclprobe.facts.launcher import Launch
from ncclprobe.host import py_spy
from ncclprobe.logs.job import activity, stand
from ncclprobe.logs.job.activity import RankView
from ncclprobe.logs.job.calls import confirmed, launched
from ncclprobe.model.values import replace
from tests.localise.meeting import not_stuck
from tests.localise.standing import C10D, GONE, IDLE, NOTHING, OWN, PYTHON, later


def test_ranks_that_are_past_init_or_only_just_in_it_are_not_called_stuck_there() -> None:
    rows = not_stuck()
    stuck = [name for name, found in rows.items() if found.answer.word == "STUCK" and "init" in found.answer.message]
    assert (stuck, len(rows)) == ([], 9)


def test_a_frame_beyond_the_programs_innermost_one_says_nothing_of_its_wait() -> None:
    stack = (OWN, replace(OWN, filename=f"{PYTHON}/queue.py", name="get"))
    rank = RankView(2, "n1", first=IDLE, second=later(IDLE), stacks=(stack, stack))
    assert "queue" not in activity.doing(rank, "idle").text


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
