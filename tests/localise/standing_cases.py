"""Cases of running jobs, of which tests/data/command_values/standing.txt keeps what `attach` says.

To add one, add a row, run `scripts/golden.py standing`, and read what it kept.
"""

from typing import Any

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.process_state import LiveRank
from ncclprobe.facts.job.ranks import Connection
from ncclprobe.facts.job.stacks import LiveFrame, ThreadPlace
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.localise.mixed import STATES
from tests.localise.standing import (
    C10D,
    IDLE,
    IN_ALL_REDUCE,
    IN_LOADER,
    OWN,
    PACKAGES,
    PYTHON,
    SLEEPS,
    WAITS,
    Rows,
    both,
    counts,
    in_call,
    in_stacks,
    later,
    looked,
    of_two,
    recorded_as,
    stuck_in,
)  # fmt: skip
from tests.localise.standing_wires import inside

IN_BACKWARD = (FlightFrame("_engine_run_backward", f"{PACKAGES}/torch/autograd/graph.py", 840), replace(OWN, line=41))
IN_INIT = (FlightFrame("_create_c10d_store", f"{PACKAGES}/torch/distributed/rendezvous.py", 189),
           FlightFrame("init_process_group", C10D, 1759), replace(OWN, name="main", line=7))  # fmt: skip


def rows() -> Rows:
    """Yield all cases."""
    for kind in (_missing, _at_work, inside, _records, _in_records, _stacks, _reasons):
        yield from kind()


def _missing() -> Rows:
    """A rank for which two others wait, by the state of its process."""
    for name, (state, change) in STATES.items():
        if isinstance(state, LiveRank) and not isinstance(change, Absent):
            yield f"missing: {name}", of_two(state, later(state, **change))
            for still_s in (20.0, 8.0):
                seen = {0: WAITS, 1: WAITS, 2: both(state, **change, still_s=still_s)}
                yield f"without records, for {still_s} s: {name}", looked(seen)


def _at_work() -> Rows:
    """A loop of the rank that others wait for, just below the limit of its time and just above it."""
    loop = both(IDLE, cpu_s=5.9)
    for waits in (179, 181):
        calls = f"all_reduce@{1000 - waits - 10} all_reduce"
        texts = {0: f"{calls}*@{1000 - waits}", 1: f"{calls}*@{1000 - waits}", 2: calls}
        yield f"a loop for {waits} s", of_two(*loop, texts=texts)
        stacks = {0: (IN_ALL_REDUCE,) * 2, 1: (IN_ALL_REDUCE,) * 2, 2: (IN_LOADER, IN_LOADER[::-1])}
        yield f"a loop for {waits} s in another line", of_two(*loop, texts=texts, stacks=stacks)


def _records() -> Rows:
    """What torch and NCCL have recorded of the calls of ranks."""
    reduces, gathers = "all_reduce@970 all_reduce*@971", "all_reduce@970 all_gather*@971"
    yield "another call", recorded_as(reduces, gathers, reduces)
    yield "a rank that is not here", looked({0: WAITS}, recorded(dict.fromkeys((0, 1), "all_reduce*@900")), world=2)
    for second in (610, 800, 945, 935):
        calls = [f"all_reduce@600 all_reduce@{second}"] * 2
        yield f"outside of calls since {second}", recorded_as(*calls, state=both(SLEEPS), backend="nccl")
    calls_610 = recorded(dict.fromkeys(range(2), "all_reduce@600 all_reduce@610"))
    yield "a lock outside of calls", looked({0: WAITS, 1: both(SLEEPS)}, calls_610)
    for said, state, switches in (
        ("all_reduce@940 all_reduce@960 all_reduce@980", IDLE, 7),
        ("all_reduce@958 all_reduce@959 all_reduce@979 all_reduce@980", IDLE, 7),
        ("all_reduce@988 all_reduce@989 all_reduce@990", SLEEPS, 7),
        ("all_reduce@988 all_reduce@989 all_reduce@990", SLEEPS, 9),
        ("all_reduce@983 all_reduce@984 all_reduce@984.5", SLEEPS, 9),
        ("all_reduce@995 all_reduce@996 all_reduce@996.5", SLEEPS, 7),
        ("all_reduce@995 all_reduce@996 all_reduce@997.5", SLEEPS, 7),
    ):
        before, last = said.rpartition(" ")[::2]
        texts = {0: f"{before} {last.replace('@', '*@')}", 1: f"{before} {last.replace('@', '*@')}", 2: before}
        yield f"a pause: {said}, {switches}", of_two(state, later(state, switches=switches), texts=texts)
    asleep = dict.fromkeys(range(3), both(SLEEPS, still_s=42.0))
    yield "RAS, one went back", looked(asleep, ras=(counts(51, 51, 51), counts(51, 51, 50)))


def _in_records() -> Rows:
    """What records show of ranks that are in a call of another group, came late, or are in a further call."""
    for name, texts in {
        "groups that wait for each other": ("1=0,1/x*@970", "2=0,1/y*@970"),
        "receives that wait for each other": ("a@960 recv_0<-1*@970", "a@960 recv_1<-0*@970"),
        "a receive that waits": ("a@960", "a@960 recv_1<-0*@970"),
        "another size": ("all_reduce:8*@970", "all_reduce:16*@970", "all_reduce:8*@970"),
        "another order": ("all_reduce*@970 broadcast?@971", "broadcast*@970 all_reduce?@971"),
        "one scheduled": ("all_reduce*@970", "all_reduce?@970"),
        "one gave up": ("a@1 b!@300", "a@1 b*@970", "a@1 b!@300"),
    }.items():
        yield f"records: {name}", recorded_as(*texts, backend="nccl")
    for name in ("barrier", "_sync_buffers", "all_reduce"):
        stack = (FlightFrame(name, f"{PACKAGES}/torch/nn/parallel/distributed.py" if name[0] == "_" else C10D, 9), OWN)
        read: Any = {0: ((), ()), 1: ((), ()), 2: (stack, stack)}
        yield f"records, and the missing one in {name}", of_two(IDLE, stacks=read)
        yield f"records, and the missing one late in {name}", of_two(IDLE, stacks=read, silent=(2,))
    yield "in init, and one has no process", in_stacks(IN_INIT, IN_INIT, world=3, absent=(2,))


def _stacks() -> Rows:
    """What stacks show where torch has recorded nothing."""
    for native, age_s in ((True, 60.0), (True, 13.0), (True, 7.0), (False, 60.0)):
        tries = replace(SLEEPS, native=native, age_s=age_s, still_s=0.3)
        states_ = [both(SLEEPS), *[both(tries, switches=8)] * 2]
        yield f"they try to join, {native}, {age_s}", in_stacks(IN_LOADER, IN_INIT, IN_INIT, states=states_)
    for odd in ((0,), (0, 1)):
        calls = [in_call("all_gather_object") if rank in odd else IN_BACKWARD for rank in range(5)]
        yield f"{len(odd)} in a call beside backward", in_stacks(*calls)
    builds = (FlightFrame("FileBaton.wait", f"{PACKAGES}/torch/utils/file_baton.py", 1), OWN)
    states_ = [both(IDLE, still_s=40.0), both(IDLE), both(IDLE, cpu_s=9.0, faults=9999)]
    yield "an extension is built beside one at work", in_stacks(IN_ALL_REDUCE, builds, (OWN,), states=states_)
    reads, accepts = replace(IDLE, call="recvfrom", file="socket:[7]"), replace(IDLE, call="accept", listens=True)
    pair = (Connection(101, "127.0.0.1:5", "127.0.0.1:9", inode=7), Connection(100, "127.0.0.1:9", "127.0.0.1:5"))
    for own in (accepts, replace(accepts, listens=False)):
        states = {0: both(own, still_s=30.0), 1: both(reads, still_s=30.0)}
        yield f"one reads from one that accepts, {own.listens}", looked(states, wires=(pair, pair))


def _reasons() -> Rows:
    """Why a rank does not go on, by the functions of libraries that it is in."""
    of = f"{PYTHON}/multiprocessing"
    condition = ("Condition.wait", f"{PYTHON}/threading.py")
    for frames in (
        [("wait", f"{PYTHON}/threading.py"), ("get", f"{PYTHON}/queue.py")], [condition],
        [condition, ("Queue.put", f"{PYTHON}/queue.py")], [condition, ("Event.wait", f"{PYTHON}/threading.py")],
        [("join", f"{PYTHON}/threading.py")],
        [("_recv", f"{of}/connection.py"), ("get", f"{of}/queues.py")], [("recv", f"{of}/connection.py")],
        [("SemLock.__enter__", f"{of}/synchronize.py")], [("wait", f"{of}/synchronize.py")], [("map", f"{of}/pool.py")],
        [("join", f"{of}/process.py")], [("Popen._try_wait", f"{PYTHON}/subprocess.py")], [],
        [("Cmd.cmdloop", f"{PYTHON}/cmd.py"), ("trace_dispatch", f"{PYTHON}/bdb.py")],
        [("FileBaton.wait", f"{PACKAGES}/torch/utils/file_baton.py")], [("acquire", f"{PACKAGES}/filelock/_api.py")],
        [("_try_get_data", f"{PACKAGES}/torch/utils/data/dataloader.py")],
        [("recv", f"{PACKAGES}/redis/connection.py")],
        [("readinto", f"{PYTHON}/socket.py"), ("urlopen", f"{PYTHON}/urllib/request.py")],
        [("select", f"{PYTHON}/selectors.py"), ("run", f"{PYTHON}/asyncio/runners.py")],
        [("poll", f"{of}/connection.py"), ("next", f"{PACKAGES}/torch/utils/data/loader.py")],
    ):  # fmt: skip
        yield f"in {'/'.join(name for name, _ in frames)} of {frames[-1:]}", stuck_in(*frames)
    asks = LiveFrame("step", "/home/u/train.py", 12, {"asks": "polls-file", "asked": "os.path.exists, line 11"})
    yield "a loop with pauses", stuck_in(state=SLEEPS, own=asks)
    handler = LiveFrame("on_signal", "/home/u/train.py", 8, {"signal": "12"})
    for state in (IDLE, SLEEPS):
        yield f"in a handler, {state.call}", stuck_in(state=state, own=handler)
    accepts = replace(IDLE, call="accept", file="a socket that listens at 127.0.0.1:57291", listens=True)
    attached = replace(accepts, listens=False, file="")
    named = {"SocketPdb.__init__": accepts, "wait_for_debugger": attached, "PDBDataset.serve": accepts}
    for name, state in named.items():
        own = replace(OWN, name=name)
        yield f"accepts in {name}", stuck_in(("accept", f"{PYTHON}/socket.py"), state=state, own=own)
    saves = FlightFrame("save", "/home/u/train.py", 51)
    saver = ThreadPlace("saver", saves, frames=(in_call("barrier")[0], saves))
    puts = replace(saver, frames=(FlightFrame("put", f"{PYTHON}/queue.py", 3), saves))
    reduces = in_call("all_reduce")
    yield "a further call of a thread", in_stacks(reduces, in_call("all_gather"), threads=((saver,), ()))
    yield "a lock, and a thread in a call", in_stacks(reduces, (OWN,), threads=((), (saver,)))
    yield "a lock, and a thread in a queue", in_stacks(reduces, (OWN,), threads=((), (puts,)))
    gets = (FlightFrame("get", f"{PYTHON}/queue.py", 1), OWN)
    work = (LiveFrame("receive", "/home/u/train.py", 5, {"work": "work", "tag": "31", "src": "1"}),)
    joined = ThreadPlace("MainThread", FlightFrame("main", "/home/u/train.py", 14), first=True)
    reads = ThreadPlace("reader", FlightFrame("read", "/home/u/data.py", 7))
    for stack, threads in ((gets, ()), (gets, (reads,)), (work, (joined,)), (gets, (reads,) * 5)):
        yield f"{stack[0].name} beside {len(threads)} threads", in_stacks(reduces, stack, threads=((), threads))
