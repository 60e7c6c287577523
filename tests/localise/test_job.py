"""How a running job stands, from two looks at its ranks: the sentences, and what is not in the kept cases."""

import json
from types import SimpleNamespace
from typing import Any

from ncclprobe.facts.files.ras import RasAnswer
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import JobLook, JobLooks, JobProcess, LocalRanks
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.launcher import Launch
from ncclprobe.host import py_spy
from ncclprobe.logs.job import activity, stand
from ncclprobe.logs.job.activity import RankView
from ncclprobe.logs.job.calls import confirmed, launched
from ncclprobe.logs.job.gpus import gpus_of
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.units import USER_HZ
from ncclprobe.model.values import replace
from tests.localise.meeting import not_stuck
from tests.localise.standing import C10D, GONE, IDLE, NOTHING, OWN, PYTHON, UNSEEN, later


def test_ranks_that_are_past_init_or_only_just_in_it_are_not_called_stuck_there() -> None:
    rows = not_stuck()
    stuck = [name for name, found in rows.items() if found.answer.word == "STUCK" and "init" in found.answer.message]
    assert (stuck, len(rows)) == ([], 9)


def test_a_frame_beyond_the_programs_innermost_one_says_nothing_of_its_wait() -> None:
    stack = (OWN, replace(OWN, filename=f"{PYTHON}/queue.py", name="get"))
    rank = RankView(2, "n1", first=IDLE, second=later(IDLE), stacks=(stack, stack))
    assert "queue" not in activity.doing(rank, "idle").text


STILL = LiveRank("S", 0.0, "futex_do_wait", "futex", time_s=1000.0)
CHILD = Child("S", 0.0, pid=7, name="cc1plus")
COMPUTES: dict[str, Any] = {"cpu_s": 0.1}


def view(change: dict[str, Any], after_s: float = 1.0, first: LiveRank = STILL, **more: Any) -> RankView:
    """Return a rank in which this has changed between the looks; `children` are what they have computed."""
    given = change | ({"children": (replace(CHILD, cpu_s=change["children"]),)} if "children" in change else {})
    return RankView(2, "n1", PROCESS, replace(first, children=(CHILD,)), later(first, after_s, **given), **more)


PROCESS = JobProcess(100, 1, "python", 2, Launch())
AT: tuple[tuple[str, RankView], ...] = (
    *(("busy", view(each)) for each in (
        {"moved_bytes": 65_536}, {"others_ran_s": 0.02}, {"held_s": 0.01}, {"children": 0.02},
        {"cpu_s": 0.5, "faults": 100}, COMPUTES | {"faults": 20}, COMPUTES | {"children": 0.02},
        {"cpu_s": 0.02, "queued_s": 0.08}, {"switches": 3, "ran_s": 0.005}, {"switches": 20, "ran_s": 0.01})),
    *(("idle", view(each)) for each in (
        {}, {"moved_bytes": 65_535}, {"others_ran_s": 0.019}, {"held_s": 0.0}, {"children": 0.019}, {"cpu_s": 0.099},
        {"faults": 99}, {"cpu_s": 0.02, "queued_s": 0.079}, {"cpu_s": 0.019, "queued_s": 0.9}, {"frozen": True},
        {"switches": 2, "ran_s": 0.005}, {"switches": 3, "ran_s": 0.0049}, {"switches": 20, "ran_s": 0.0099},
        {"state": "R"}, {"state": "T"})),
    *(("spins", view(each)) for each in (
        COMPUTES | {"faults": 19}, COMPUTES | {"children": 0.019}, {"cpu_s": 0.5, "faults": 99})),
    *((what, view({"moved_bytes": n}, s)) for what, n, s in (
        ("busy", 5 * 65_536, 5.0), ("idle", 5 * 65_536 - 1, 5.0), ("busy", 66, 0.0), ("idle", 65, 0.0))),
    ("idle", view({"switches": 3, "ran_s": 0.005}, 1.1)),
    ("busy", view({}, hears=True)), ("busy", view({}, received_bytes=4096)), ("idle", view({}, received_bytes=4095)),
    ("idle", view({}, 2.0, received_bytes=4096)), ("spins", view({}, first=replace(STILL, state="R"))),
    ("idle", view({"state": "S"}, first=replace(STILL, state="R"))), ("gone", view({"state": "Z"})),
    *(("stopped", view({"state": state}, first=replace(STILL, state="T"))) for state in "Tt"),
    ("stopped", view({}, first=replace(STILL, frozen=True))), ("gone", view({"state": "X"})),
    ("gone", RankView(2, "n1", None, STILL, STILL)), ("gone", RankView(2, "n1", PROCESS, STILL, GONE)),
    ("unseen", RankView(2, "n1", PROCESS, STILL, UNSEEN)), ("unseen", RankView(2, "n1", PROCESS, UNSEEN, STILL)),
)  # fmt: skip
"""What a rank does at each threshold and just beside it."""


def test_what_a_rank_does_is_told_by_the_threshold_of_each_number() -> None:
    assert [(at, what) for at, (what, rank) in enumerate(AT) if activity.activity(rank) != what] == []
    for words, rank in (
        ("0.5 cores", view({"cpu_s": 1.0}, 2.0)),
        ("0.1 cores", view(COMPUTES | {"switches": 3, "ran_s": 0.005})),
        ("0.1 cores, between sleeps", view({"cpu_s": 0.09, "switches": 3, "ran_s": 0.005})),
        ("0.0 cores, waiting for a processor", view({"queued_s": 0.2}, 2.0)),
        ("0.0 cores", view({"queued_s": 0.19}, 2.0)),
        ("0.0 cores, 1 MB/s read and written", view({"moved_bytes": 2_000_000}, 2.0)),
        ("0.0 cores", view({"moved_bytes": 1_999_999}, 2.0)),
        ("0.0 cores, 4 KiB/s received, held back by the quota of its cgroup",
         view({"held_s": 0.1}, 2.0, received_bytes=8192)),
        ("66.0 cores, 66 MB/s read and written", view({"cpu_s": 0.066, "moved_bytes": 66_000}, 0.0)),
    ):  # fmt: skip
        assert activity.doing(rank, "busy").text == f"is at work ({words})"


GPU = LiveGpu(0, "00000000:5E:00.0", (100,), 100, 1980, 1980, 310_000, (), 64)
WORDS = "GPU0: busy 100 % of the time, {} MHz of 1980, 310 W, 1 MiB over NVLink between the two samples"
THERMAL = "hw-thermal-slowdown"


def gpu_of(first: LiveGpu, second: LiveGpu, *events: Event) -> tuple[str, str]:
    """Return what is said of the GPU of a rank that began one second after its host."""
    looks = JobLooks(JobLook((IDLE,), gpus=(first,)), JobLook((IDLE,), gpus=(second,)), xids=events)
    return gpus_of(LocalRanks((replace(PROCESS, start=USER_HZ),)), looks)[100]


def test_what_the_gpu_of_a_rank_does_and_why_it_may_hold_the_rank_up() -> None:
    more = replace(GPU, nvlink_KiB=64 + 1024)
    for clock_MHz, reasons, since, trouble in (
        (991, (THERMAL,), (THERMAL,), ""), (990, (), (), ""), (990, (THERMAL,), (), ""),
        (990, (THERMAL,), (THERMAL,), f"its GPU0 is held at 990 of 1980 MHz ({THERMAL})"),
        (345, (THERMAL,), (THERMAL, "gpu-idle"), f"its GPU0 is held at 345 of 1980 MHz ({THERMAL})"),
    ):  # fmt: skip
        found = gpu_of(replace(GPU, reasons=reasons), replace(more, clock_MHz=clock_MHz, reasons=since))
        assert found == (WORDS.format(clock_MHz), trouble)
    xids = [Event(at_s, kind, device, code) for at_s, kind, device, code in (
        (0.99, "xid", "0000:5e:00", "48"), (1.0, "xid", "0000:5e:00", "79"), (9.0, "xid", "0000:5e:00.0", "79"),
        (2.0, "lost", "0000:5e:00", ""), (2.0, "xid", "0000:5f:00", "95"), (2.0, "xid", "?", "94"),
        (2.0, "xid", "0000:5e:00", "31"))]  # fmt: skip
    assert gpu_of(GPU, more, *xids)[1] == "its GPU0 fell off the bus; its GPU0 has had Xid 79"
    lost = LiveGpu(0, Absent("NVML: GPU is lost"))
    assert gpu_of(GPU, lost) == ("GPU0: NVML: GPU is lost", "its GPU0 does not answer (NVML: GPU is lost)")


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
