"""Cases of running jobs by their connections and GPUs, for `tests.localise.standing_cases`."""

from itertools import product

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.ranks import Connection
from ncclprobe.facts.job.stacks import LiveFrame
from ncclprobe.facts.kernel_log import Event
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.localise.standing import (
    C10D,
    IDLE,
    IN_ALL_REDUCE,
    OWN,
    STOPPED,
    WAITS,
    Rows,
    both,
    in_call,
    in_stacks,
    looked,
    of_two,
    recorded_as,
)

SENDS = Connection(100, "10.77.1.1:40", "10.77.1.3:50", unacknowledged_bytes=9000, retransmits=6, heard_s=12.0)
RECEIVES = Connection(102, "10.77.1.3:50", "10.77.1.1:40")
WELL = LiveGpu(0, "00000000:5E:00.0", (100,), 100, 1980, 1980, 310_000, (), 64)
IN_C = (replace(OWN, line=139),)


def inside() -> Rows:
    """Calls that all ranks are in."""
    for second in (999, 991, 989, 985, 971, 969):
        for backend in ("gloo", "nccl"):
            calls = f"all_reduce@{second - 5} all_reduce*@{second}"
            yield f"all in one call since {second}, {backend}", recorded_as(calls, calls, backend=backend)
    for change in ({}, {"acknowledged_bytes": 1}, {"unacknowledged_bytes": 0}, {"retransmits": 0}, {"heard_s": 2.0},
                   {"retransmits": 0, "probes": 3}, {"peer": "10.9.9.9:443"}, {"state": "connecting"}):  # fmt: skip
        after = replace(SENDS, **change)  # type: ignore[arg-type]
        ends = ((replace(SENDS, peer=after.peer), RECEIVES), (after, RECEIVES))
        for second in (985, 992):
            calls = [f"all_reduce@980 all_reduce*@{second}"] * 3
            yield f"nothing arrives: {change}, {second}", recorded_as(*calls, wires=ends, backend="nccl")
        yield f"nothing arrives, without records: {change}", looked(dict.fromkeys(range(3), WAITS), wires=ends)
    for sent in (500, 66_000, 500_000):
        passes = replace(SENDS, retransmits=0, acknowledged_bytes=sent)
        calls = ["all_reduce@900 all_reduce*@905"] * 3
        yield f"{sent} bytes pass", recorded_as(*calls, wires=((SENDS, RECEIVES), (passes, RECEIVES)), backend="nccl")
    ends = (SENDS, RECEIVES)
    yield "nothing arrives, and one is stopped", looked({0: WAITS, 1: WAITS, 2: both(STOPPED)}, wires=(ends, ends))
    calls = ["all_reduce@970 all_reduce*@971"] * 2
    yield "silent, and not examined", recorded_as(*calls, world=3, wires=((SENDS,), (SENDS,)))
    given = (LiveFrame("all_reduce", C10D, 9, {}), LiveFrame("all_reduce", C10D, 1, {"group": "given"}), OWN)
    for name, stack in {"no group": in_call("all_reduce"), "a group": given, "a wait": IN_C}.items():
        yield f"all in one call, {name}", in_stacks(stack, stack, still_s=40.0)
    for function, still_s in product(("recv", "all_reduce"), (1.0, 5.0, 14.0, 16.0, 29.0, 31.0, None)):
        stack = (replace(IN_ALL_REDUCE[0], name=function), IN_ALL_REDUCE[1])
        yield f"all in {function} for {still_s}", in_stacks(stack, stack, still_s=still_s)

    peer = (Connection(102, "10.0.0.1:9", "10.9.9.7:443", heard_s=63.0, inode=7),)
    yield "the peer of a rank", of_two(replace(IDLE, call="recvfrom", file="socket:[7]"), wires=((), peer))
    asleep = replace(IDLE, state="D", wchan="folio_wait_bit_common", call="read", file="/data/shard", still_s=None)
    yield "D for an unknown time", looked({0: WAITS, 1: both(asleep)})
    calls = ["all_reduce@980 all_reduce*@985"] * 2
    for xids in ((Event(50.0, "xid", "0000:5e:00", "79"),), Absent("kernel.dmesg_restrict is 1")):
        yield f"a GPU, {xids}", recorded_as(*calls, gpus=((WELL,), (WELL,), xids), backend="nccl")
        yield f"a GPU of one rank, {xids}", looked({0: WAITS}, gpus=((WELL,), (WELL,), xids))
    pieces = both(replace(IDLE, state="R"), cpu_s=5.1, faults=60)
    waits = recorded({0: "all_reduce@700", **dict.fromkeys((1, 2), "all_reduce@700 barrier*@710")}, backend="gloo")
    yield "a loop that touches new memory", looked({0: pieces, 1: WAITS, 2: WAITS}, waits)
