"""The pass in which NCCL speaks: a process and a log file each, ended at a deadline. A script stands in for NCCL."""

import contextlib
import sys
import time

import msgspec
import psutil
import pytest

from ncclprobe.model.ops import OPS
from ncclprobe.model.values import replace
from ncclprobe.nccl.log import Log
from ncclprobe.session.measure import nccl_debug
from ncclprobe.session.measure.nccl_debug import Task, run_task
from tests.each_row import each_row

TASK = Task(0, 2, "127.0.0.1", 1, "cpu", "float32", "sum", (("all_reduce", (1024,)),), 5.0)
SPEAKS = """
import os, sys, json
assert json.loads(sys.argv[1])["calls"] == [["all_reduce", [1024]]]
assert os.environ["NCCL_DEBUG"] == "INFO"
lines = ["Using network Socket", "NET/Socket : Using [0]eth1:10.1.0.1<0>",
         "Channel 00 : 0[7000] -> 1[7000] [send] via NET/Socket/0",
         "AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"]
with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
    file.write("".join(f"n0:1:1 [0] NCCL INFO {line}\\n" for line in lines))
"""
REFUSES = "import sys; sys.exit('CUDA error: out of memory')"
HANGS = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(77)"])
time.sleep(77)
"""


@each_row(
    ("script", "deadline_s", "why"),
    [(SPEAKS, 20.0, ""), (REFUSES, 20.0, "CUDA error: out of memory"), (HANGS, 0.5, "it had not ended after 0.5 s")],
)
def test_what_nccl_wrote_into_its_file_is_read_and_a_process_that_fails_or_hangs_says_why(
    script: str, deadline_s: float, why: str
) -> None:
    heard, said = run_task(TASK, (sys.executable, "-c", script), deadline_s)
    assert (said, heard is None) == (why, bool(why))
    if heard:
        assert (heard.network, heard.devices()) == ("Socket", ("eth1",))
        assert msgspec.convert(msgspec.to_builtins(heard), Log) == heard, "what a rank hands to rank 0"
    until = time.monotonic() + 5.0
    while time.monotonic() < until and _sleepers():
        time.sleep(0.05)
    assert not _sleepers(), "it ends with all its children"


def _sleepers() -> list[int]:
    """Processes of that script that still run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and any("time.sleep(77)" in word for word in line):
                found.append(process.pid)
    return found


def test_calls_without_room_beside_the_measured_rank_are_left_out_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One size too large would end the pass, and no row would have a transport."""
    pytest.importorskip("torch")
    from torch import device
    from torch.distributed import HashStore

    store, rooms = HashStore(), {0: 1 << 30, 1: 6 << 20}
    for rank, free in rooms.items():
        monkeypatch.setattr(nccl_debug, "gpu_free_bytes", lambda device, free=free: free)
        own = replace(TASK, rank=rank, ranks=2)
        store.set(f"room/{1 - rank}", str(rooms[1 - rank]))
        assert nccl_debug._room(own, store, device("cuda:0")) == 6 << 20
    assert nccl_debug._room(TASK, store, device("cpu")) is None
    calls = [("all_reduce", OPS["all_reduce"].shape(nbytes, 2, 4)) for nbytes in (8, 1 << 20, 4 << 20)]
    assert [shape.nbytes for _, shape in nccl_debug.fitting(calls, 6 << 20)] == [8, 1 << 20]
    assert nccl_debug.fitting(calls, None) == nccl_debug.fitting(calls, 8 << 20) == calls
    assert nccl_debug.fitting(calls, (8 << 20) - 1) == calls[:2]
    with pytest.raises(ValueError, match="no call of the sweep fits into the free memory, 1 B"):
        nccl_debug.fitting(calls, 1)
