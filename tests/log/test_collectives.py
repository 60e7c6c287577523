"""The line of the program that made a call. Where ranks parted is among the kept values (tests/log/parted.py)."""

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.collectives import CameLate, NotEntered, Parted, caller, judge
from tests.log.parted import RECORDS


def test_who_differs_who_did_not_come_and_who_came_late_are_told_apart() -> None:
    (parted,) = judge(recorded(RECORDS["the few that differ"]))
    assert isinstance(parted, Parted)
    assert (parted.how, parted.other_ranks, parted.usual.seq, parted.tied) == ("operation", (2,), 2, False)
    assert parted.others[0].caller == FlightFrame("step", "train.py", 11)
    (absent,) = judge(recorded(RECORDS["one did not come"]))
    assert isinstance(absent, NotEntered)
    assert (absent.missing, absent.waiting, absent.undumped) == ((2,), (0, 1), ())
    # Rank 1's clock is an hour ahead: only differences of one clock count.
    (late,) = judge(recorded({0: "a@1 b!@2", 1: "a@3601 b*@3672", 2: "a@1 b!@2"}, timeout_s=60))
    assert isinstance(late, CameLate)
    assert (late.rank, late.late_s, late.waiting) == (1, 70.0, (0, 2))
    assert judge(recorded(RECORDS["sizes that may differ"])) == ()


def test_the_caller_is_the_programs_own_frame() -> None:
    torch = FlightFrame("all_reduce", "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 1)
    library = FlightFrame("reduce", "/v/lib/python3.11/site-packages/deepspeed/comm/comm.py", 2)
    own = FlightFrame("step", "/opt/job/train.py", 3)
    assert caller((torch, library, own)) == own
    assert caller((torch, library)) == library
    assert caller((torch,)) == torch
    elsewhere = FlightFrame("all_reduce", "/opt/site/torch/distributed/distributed_c10d.py", 1)
    assert caller((FlightFrame("wrapper", "/opt/site/typing_extensions.py", 4), elsewhere, own)) == own
    assert caller(()) is None
    run, script = (FlightFrame("<module>", path, 9) for path in ("<frozen runpy>", "/v/bin/train"))
    package = FlightFrame("fit", "/v/lib/python3.11/site-packages/acme/fit.py", 4)
    queue = FlightFrame("get", "/usr/lib/python3.11/queue.py", 5)
    for stack, wanted in (
        ((torch, FlightFrame("step", "/home/u/torch/train.py", 3)), 1),  # a program's own folder of that name
        ((queue, library, package, script), 2),  # an installed program: its package, by its script
        ((queue, package, run), 1),
        ((queue, FlightFrame("f", "<string>", 3)), 1),
    ):
        assert caller(stack) == stack[wanted]
