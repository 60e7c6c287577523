"""Cases of running jobs by their connections and GPUs, for `tests.localise.standing_cases`."""

from itertools import product

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.process_state import Child
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
    later,
    looked,
    of_two,
    recorded_as,
)

SENDS = Connection(100, "10.77.1.1:40", "10.77.1.3:50", unacknowledged_bytes=9000, retransmits=6, heard_s=12.0)
RECEIVES = Connection(102, "10.77.1.3:50", "10.77.1.1:40")
WELL = LiveGpu(0, "00000000:5E:00.0", (100,), 100, 1980, 1980, 310_000, (), 64)
SLOWED = ("hw-thermal-slowdown",)
XID = Event(50.0, "xid", "0000:5e:00", "79")
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


def devices() -> Rows:
    """What sockets and GPUs show."""
    reads = replace(IDLE, call="recvfrom", file="socket:[7]")
    worker = Child("S", 3.0, "", "read", "socket:[8]", pipes=("pipe:[9]",), pid=4242, name="pt_data_worker")
    polls = replace(IDLE, call="poll", pipes=("pipe:[9]",), children=(worker,))
    peers = tuple(Connection(102, "10.0.0.1:9", f"10.9.9.{n}:443", heard_s=63.0, inode=n) for n in (7, 8))
    for name, state in (("rank", reads), ("worker", polls)):
        yield f"the peer of a {name}", of_two(state, wires=((), peers))
        for came in (4000, 5000):
            bytes_in = tuple(replace(each, received_bytes=came, inode=9) for each in peers[:1])
            yield f"a {name} of which a socket got {came}", of_two(state, wires=((), bytes_in))
        yield f"a {name} that hears", of_two(state, wires=((), (replace(peers[0], received_bytes=9),)))
    for peer in ("10.9.9.7:29500", "10.9.9.7:443"):
        wire = (Connection(102, "10.0.0.1:9", peer, heard_s=63.0, inode=7),)
        yield f"polls {peer}", of_two(replace(IDLE, call="poll", file="socket:[7]"), wires=((), wire), port=29500)
    for first, still_s in (("D", 12.0), ("D", 8.0), ("D", None), ("S", 12.0)):
        state = replace(
            IDLE, state="D", wchan="folio_wait_bit_common", call="read", file="/data/shard", still_s=still_s
        )
        yield f"{first}, then D for {still_s}", looked({0: WAITS, 1: (replace(state, state=first), later(state))})
    lost = Absent("NVML: GPU is lost")
    slowed = replace(WELL, reasons=SLOWED, clock_MHz=345)
    calls = ["all_reduce@980 all_reduce*@985"] * 2
    of_other = replace(WELL, index=1, pci="00000000:5D:00.0", pids=(101,))
    for name, first_, last, xids in (
        ("Xid 79", WELL, WELL, (XID,)),
        ("Xid 31", WELL, WELL, (replace(XID, code="31"),)),
        ("an old Xid", WELL, WELL, (replace(XID, at_s=0.001),)),
        ("an Xid of another GPU", WELL, WELL, (replace(XID, device="0000:5f:00"),)),
        ("off the bus", WELL, WELL, (replace(XID, kind="lost", code=""),)),
        ("lost", WELL, replace(WELL, pci=lost, pids=lost), ()),
        ("denied", WELL, replace(WELL, pci=Absent("NVML: Insufficient Permissions")), ()),
        ("slowed", replace(WELL, reasons=SLOWED), slowed, ()),
        ("slowed since", WELL, slowed, ()),
        ("slowed a little", replace(WELL, reasons=SLOWED), replace(slowed, clock_MHz=1500), ()),
        ("idle clocks", replace(WELL, reasons=("gpu-idle",)), replace(slowed, reasons=("gpu-idle",)), ()),
        ("no kernel log", WELL, WELL, Absent("kernel.dmesg_restrict is 1")),
        ("NVLink", WELL, replace(WELL, nvlink_KiB=1088), ()),
    ):
        gpus = ((first_, of_other), (last, of_other), xids)
        yield f"a GPU: {name}", recorded_as(*calls, gpus=gpus, backend="nccl")
        yield f"a GPU, without records: {name}", looked({0: WAITS}, gpus=gpus)
    one, two = replace(WELL, pids=(100, 101)), of_other
    for name, seen, xids in (
        ("Xid of the first", (one, two), (XID,)),
        ("Xid of the second", (one, two), (replace(XID, device="0000:5d:00"),)),
        ("two ranks on one", (one,), (XID,)),
        ("the second is lost", (one, replace(two, pci=lost, pids=lost)), ()),
        ("no clocks", (replace(one, clock_MHz=0, most_MHz=0, reasons=SLOWED), two), ()),
    ):
        before = tuple(replace(gpu, reasons=SLOWED) for gpu in (one, two)[: len(seen)])
        yield f"GPUs: {name}", recorded_as(*calls, gpus=(before, seen, xids), backend="nccl")


def work() -> Rows:
    """What counts as work of a rank by its sockets, and by what ranks heard of each other."""
    download, child = Connection(100, "10.0.0.1:40000", "10.9.9.9:80"), Child("S", 1.0, pid=500, name="aria2c")
    barrier = recorded({0: "all_reduce@960", **dict.fromkeys((1, 2), "all_reduce@960 barrier*@970")}, backend="gloo")
    reads = replace(IDLE, call="recvfrom", file="socket:[9]")
    parent = replace(IDLE, children=(child,))
    loopback = replace(download, local="127.0.0.1:1", peer="127.0.0.1:2"), Connection(500, "127.0.0.1:2", "127.0.0.1:1")
    ranks = Connection(100, "10.0.0.1:1", "10.0.0.1:2"), Connection(101, "10.0.0.1:2", "10.0.0.1:1")
    store = Connection(100, "10.0.0.1:7", "10.0.0.1:8"), Connection(100, "10.0.0.1:8", "10.0.0.1:7")
    for name, ends, received, first in (
        ("a download", (download,), 5_000_000, IDLE),
        ("more than a heartbeat", (download,), 4200, IDLE),
        ("a heartbeat", (download,), 4000, IDLE),
        ("nothing", (download,), 0, IDLE),
        ("a download of a child", (replace(download, pid=500),), 200_000, parent),
        ("from a child", loopback, 200_000, parent),
        ("on its socket", (replace(download, inode=9),), 40, reads),
        ("on another socket", (replace(download, inode=8),), 40, reads),
        ("nothing on its socket", (replace(download, inode=9),), 0, reads),
        ("of the store on its socket", (replace(download, inode=9, peer="10.0.0.2:29500"),), 40, reads),
        ("of another rank", ranks, 5_000_000, IDLE),
        ("of its own store", store, 5_000_000, IDLE),
        ("of the store", (replace(download, peer="10.0.0.2:29500"),), 5_000_000, IDLE),
        ("of the store here", (replace(download, local="10.0.0.1:29500"),), 5_000_000, IDLE),
        ("of RAS", (replace(download, peer="10.0.0.2:28028"),), 5_000_000, IDLE),
    ):
        second = tuple(replace(each, received_bytes=received) for each in ends)
        yield (
            f"received: {name}",
            looked({0: both(first), 1: WAITS, 2: WAITS}, barrier, wires=(ends, second), port=29500),
        )
    spins = {"cpu_s": 5.9, "state": "R"}
    for calls in ("", "all_reduce@970 all_reduce@975", "all_reduce@980 all_reduce@998"):
        for after in ({}, spins, {"cpu_s": 5.9, "faults": 9000}, {"moved_bytes": 1 << 20}):
            yield f"between calls {calls}: {after}", recorded_as(calls, calls, calls, state=both(IDLE, **after))
    naps, nothing = replace(IDLE, call="nanosleep", still_s=0.3), recorded(dict.fromkeys(range(3), ""), backend="gloo")
    pairs = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))
    ends = tuple(Connection(100 + n, f"10.0.0.1:{n}", f"10.0.0.1:{m}", heard_s=0.4) for n, m in pairs)
    own = Connection(100, "10.0.0.1:0", "10.0.0.1:0", heard_s=0.4)
    missing = Absent("", "Missing")
    for name, mesh, state, ras in (
        ("each other", ends, naps, missing),
        ("long ago", tuple(replace(each, heard_s=40.0) for each in ends), naps, missing),
        ("the store of rank 0", (own, *(each for each in ends if ":0" in each.local + each.peer)), naps, missing),
        ("each other, with RAS", ends, naps, Absent("", "Denied")),
        ("each other, and stood still", ends, replace(naps, still_s=40.0), missing),
        ("each other, still for how long is unknown", ends, replace(naps, still_s=None), missing),
        ("two of three", ends[:1], naps, missing),
        ("each other, and spin", ends, replace(naps, state="R"), missing),
        ("nobody", (), naps, missing),
    ):
        states = dict.fromkeys(range(3), both(state, cpu_s=5.0 + 0.9 * (state.state == "R")))
        yield f"they heard {name}", looked(states, nothing, wires=(mesh, mesh), ras=(missing, ras))
    for faults, cpu_s in ((0, 5.9), (9000, 5.9), (0, 5.1), (60, 5.1)):
        waits = recorded({0: "all_reduce@700", **dict.fromkeys((1, 2), "all_reduce@700 barrier*@710")}, backend="gloo")
        loops = both(replace(IDLE, state="R"), cpu_s=cpu_s, faults=faults)
        yield f"a loop, {faults} faults, {cpu_s}", looked({0: loops, 1: WAITS, 2: WAITS}, waits)
    ended = replace(IDLE, state="Z")
    for calls in ("all_reduce@960 all_reduce@970", "all_reduce@960 all_reduce*@970"):
        yield (
            f"one has ended: {calls}",
            looked({0: WAITS, 1: both(ended)}, recorded({0: calls}, world=4, backend="gloo"), world=3),
        )
