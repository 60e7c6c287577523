"""The line of the program that made a call. Where ranks parted is among the kept values (tests/log/parted.py)."""

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.collectives import caller


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
