"""Running jobs that are put together at random from what ranks may be in, of which all that `attach` says is kept.

A case is named by its themes and its number; "drawn" is what each rank was given. Limits are drawn from both sides.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks.log.flight import recorded
from ncclprobe.facts.files.flight_records import FlightFrame, FlightRecords
from ncclprobe.facts.job.gpus import LiveGpu
from ncclprobe.facts.job.process_state import Child, LiveRank
from ncclprobe.facts.job.ranks import Connection, JobLook, JobLooks, JobProcess, JobState, LocalRanks
from ncclprobe.facts.job.stacks import LiveFrame, ThreadPlace
from ncclprobe.facts.kernel_log import Event
from ncclprobe.facts.launcher import Launch
from ncclprobe.logs.job import stand
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.localise.standing import C10D, GONE, IDLE, IN_LOADER, OWN, PACKAGES, PYTHON, STOPPED, UNSEEN, counts, kept

Stack = tuple[FlightFrame, ...]
STILL_S = (None, 0.5, 2.9, 3.0, 8.9, 9.0, 9.9, 10.0, 14.9, 15.0, 29.9, 30.0, 40.0, 40.0, 61.0)
BUSY, SPINS = {"cpu_s": 5.9, "faults": 9000}, {"cpu_s": 5.9}
SLEEPS = replace(IDLE, call="nanosleep", wchan="hrtimer_nanosleep")
LOCK, LISTENS = replace(IDLE, call="flock", file="/data/lock"), "a socket that listens at 127.0.0.1:8000"
WORKER = Child("S", 3.0, "", "nanosleep", pipes=("pipe:[9]",), pid=4242, name="pt_data_worker", ran_s=1.0)
SHELL = Child("S", 3.0, "", "wait4", pid=4243, name="sh")
POLLS = replace(IDLE, call="poll", pipes=("pipe:[9]",), children=(WORKER, SHELL))
OF_QUEUE = replace(POLLS, call="read", file="pipe:[9]")
STATES: Mapping[str, tuple[LiveRank | Absent, Mapping[str, Any] | Absent]] = {
    "lock": (IDLE, {}), "woke": (IDLE, {"switches": 9}), "sleeps": (SLEEPS, {}),
    "naps": (replace(SLEEPS, native=True, age_s=65.0), {"switches": 9, "native": False}),
    "young": (replace(SLEEPS, native=True), {"switches": 9}), "pieces": (SLEEPS, {"switches": 27, "ran_s": 0.02}),
    "busy": (IDLE, BUSY), "spins": (replace(IDLE, state="R", call="running"), SPINS),
    "spins in a call": (IDLE, SPINS), "runs then waits": (replace(IDLE, state="R"), {"state": "S"}),
    "runs at last": (IDLE, {"state": "R"}), "in no call": (replace(IDLE, call="running"), {}),
    "stopped": (STOPPED, {}), "stopped since": (IDLE, {"state": "t", "tracer": 9}),
    "traced": (replace(STOPPED, state="t", tracer=9), {"state": "T"}), "frozen": (replace(IDLE, frozen=True), {}),
    "frozen since": (IDLE, {"frozen": True}), "thawed": (replace(IDLE, frozen=True), {"frozen": False}),
    "gone": (IDLE, GONE), "dead": (IDLE, {"state": "X"}), "unseen": (UNSEEN, UNSEEN), "unseen since": (IDLE, UNSEEN),
    "seen once": (UNSEEN, {}), "disk": (replace(IDLE, state="D", wchan="nfs_wait", file="/data/x", call="read"), {}),
    "disk, no call": (replace(IDLE, state="D", wchan="nfs_wait", call="futex"), {}),
    "disk at last": (replace(IDLE, call="read"), {"state": "D"}), "held lock": (replace(LOCK, holder=4711), {}),
    "own lock": (replace(LOCK, call="fcntl", holder=100, taker=101), {}),
    "left lock": (replace(LOCK, taker=101, users=(4242, 1, 2, 3, 4)), {}),
    "fifo": (replace(IDLE, call="open", wchan="wait_for_partner", file="/data/in.fifo"), {}),
    "fifo of a driver": (replace(IDLE, call="ioctl", wchan="wait_for_partner"), {}),
    "opens": (replace(IDLE, call="open", wchan="nfs_open", file="/data/in"), {}),
    "full pipe": (replace(IDLE, call="write", file="pipe:[7]"), {}),
    "full file": (replace(IDLE, call="write", file="/data/out"), {}),
    "stdin": (replace(IDLE, call="read", file="pipe:[7]", stdin=True), {}),
    "stdin, else": (replace(IDLE, stdin=True), {}), "selects": (replace(IDLE, call="select"), {}),
    "epoll": (replace(IDLE, call="epoll_wait", wchan="ep_poll"), {}),
    "serves": (replace(IDLE, call="accept", file=LISTENS, listens=True), {}),
    "serves, at work": (replace(IDLE, call="poll", listens=True), BUSY),
    "reads": (replace(IDLE, call="recvfrom", file="socket:[7]"), {}),
    "reads, woke": (replace(IDLE, call="recvfrom", file="socket:[7]"), {"switches": 8}),
    "reads the store": (replace(IDLE, call="poll", file="socket:[8]"), {}),
    "its worker naps": (POLLS, {"children": (SHELL, replace(WORKER, ran_s=1.01))}),
    "its worker woke": (POLLS, {"children": (SHELL, replace(WORKER, ran_s=1.01, call="poll"))}),
    "its worker is another": (POLLS, {"children": (SHELL, replace(WORKER, ran_s=0.5))}),
    "its worker computes": (POLLS, {"children": (SHELL, replace(WORKER, cpu_s=3.03))}),
    "its shell waits": (replace(POLLS, call="wait4", awaits=4243), {}),
    "its worker ended": (replace(OF_QUEUE, children=(replace(WORKER, state="Z"),)), {}),
    "its queue": (replace(OF_QUEUE, children=(WORKER, *(replace(WORKER, pid=pid) for pid in (4243, 4244)))), {}),
    "short of memory": (IDLE, {"memory_s": 0.1, "swapped_bytes": 64 << 20}),
    "memory ran out": (IDLE, {"oom_kills": 2}), "throttled": (IDLE, {"held_s": 0.1}),
    "throttled before": (replace(IDLE, held_s=9.0), {"held_s": 0.0}),
    "nameless": (replace(IDLE, call="", wchan=""), {}), "a sleep of no name": (replace(SLEEPS, call=""), {}),
    "a call of no name": (replace(IDLE, call="", wchan="frob_wait"), {}),
    "an answer": (replace(IDLE, call="connect", file="10.0.0.9:443"), {}),
    "a disk to write": (replace(IDLE, call="fsync", file="/data/x"), {}),
    "a signal": (replace(IDLE, call="pause"), {}), "a lost lock": (replace(LOCK, taker=100), {}),
}  # fmt: skip
USUAL_STATES = ("lock", "lock", "lock", "sleeps", "reads", "selects")


def _frames(*names: tuple[str, str], line: int = 12, **values: str) -> Stack:
    """Return functions of libraries, innermost first, in a line of the program."""
    return (*(LiveFrame(name, path, 9, values) for name, path in names), replace(OWN, line=line))


def _call(name: str, line: int = 40, **values: str) -> Stack:
    return _frames((name, C10D), line=line, **values)


def _loop(line: int, **values: str) -> Stack:
    return (LiveFrame("step", OWN.filename, line, values),)


OF_TORCH = f"{PACKAGES}/torch/distributed"
ELSEWHERE: Mapping[str, Stack] = {
    "loader": IN_LOADER, "queue": _frames(("get", f"{PYTHON}/queue.py")),
    "queue of processes": _frames(("get", f"{PYTHON}/multiprocessing/queues.py")), "own line": _loop(139),
    "lock file": _frames(("acquire", f"{PACKAGES}/filelock/_api.py")),
    "subprocess": _frames(("wait", f"{PYTHON}/subprocess.py")),
    "pool": _frames(("map", f"{PYTHON}/multiprocessing/pool.py")),
    "debugger": _frames(("accept", f"{PYTHON}/socket.py"), ("Remote.set_trace", "/home/u/tool.py")),
    "post mortem": _frames(("accept", f"{PYTHON}/socket.py"), ("post_mortem", "/home/u/tool.py")),
    "debugpy": _frames(("accept", f"{PYTHON}/socket.py"), ("wait_for_client", f"{PACKAGES}/debugpy/server/api.py")),
    "polls a file": _loop(12, asks="polls-file", asked="exists, line 11"),
    "polls a process": _loop(13, asks="polls-process", asked="poll()"),
    "in a handler": (LiveFrame("on_signal", OWN.filename, 8, {"signal": "12"}), replace(OWN, line=9)),
    "its end": (FlightFrame("_shutdown", f"{PYTHON}/threading.py", 1590),),
    "a package": (FlightFrame("sample", f"{PACKAGES}/zeta/serve.py", 7),),
    "torch": (FlightFrame("item", f"{PACKAGES}/torch/_tensor.py", 7),),
    "a folder called torch": (FlightFrame("run", "/opt/zeta/torch/train.py", 7),), "no stack": (),
}  # fmt: skip
WORK: Mapping[str, Stack] = {
    "work": _loop(12, work="work", src="1", tag="7"),
    "asks for work": _loop(12, asks="polls-work", asked="w.is_completed()"),
    "asked for work": _loop(12, asks="polls-work", work="work", dst="0"),
    "asks a file for work": _loop(12, asks="polls-file", work="work", dst="0"),
    "backward": _frames(("_engine_run_backward", f"{PACKAGES}/torch/autograd/graph.py")),
    "another engine": _frames(("run_backward", f"{PACKAGES}/torch/autograd/graph.py")),
    "backward elsewhere": _frames(("_engine_run_backward", "/home/u/zeta/graph.py")),
    "forward": _frames(("_sync_buffers", f"{PACKAGES}/torch/nn/parallel/distributed.py")),
    "rpc": _frames(("wait_all", f"{OF_TORCH}/rpc/api.py")), "utils": _frames(("_verify", f"{OF_TORCH}/utils.py")),
    "functional": _frames(("wait_tensor", f"{OF_TORCH}/_functional_collectives.py")), "call": _call("all_reduce"),
    "other line": _call("all_reduce", line=50), "barrier": _call("barrier"),
    "init": _call("init_process_group", line=7), "new group": _call("new_group", line=8),
    "given": _call("all_reduce", group="given"), "default": _call("all_reduce", group="default"),
    "no program": (FlightFrame("wait", C10D, 7),),
}  # fmt: skip
COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "all_reduce": (), "all_gather_object": (), "broadcast": ("src", "group_src"),
    "broadcast_object_list": ("src",), "scatter": ("src",), "scatter_object_list": ("group_src",),
    "reduce": ("dst", "group_dst"), "gather": ("group_dst",), "gather_object": ("dst",),
    "new_group": ("ranks", "group_name"),
    "init_process_group": ("init_method", "world_size", "group_name", "hostname", "port", "backend", "rank"),
}  # fmt: skip
P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
PLACES = [f"{kind} {name}" for kind, names in {"p2p": P2P, "call": COLLECTIVES, "work": WORK, "else": ELSEWHERE}.items()
          for name in names]  # fmt: skip
MANY = " ".join(f"a@{at}" for at in (10, 400, *range(500, 700)))
TEXTS = (
    "a@960 a*@970", "a@960 a*@970", "a@960", "a@960 b*@970", "a@960 a?@970", "a@960 a!@970", "a@960 a@970", "",
    "a@997 a@998 a*@998.5", "a@900 a@905 a*@969", "a@900 a@901 a@903 a*@988", "a@960 1=0,1/x*@970", "2=1,0/y*@972",
    "1=0,1/x@970 2=1,0/y*@971", "a@960 3=0,8/x*@970", "a:8*@960", "a:16*@960", "send_0->1*@960", "recv_1<-0*@960",
    "recv_0<-1*@950", "a@300 a@920", "a@300 a@310", "backward@960", "broadcast:8*@960", "all_to_all:8@960 a*@961",
    f"{MANY} a*@970", f"{MANY} a@970", "a@1 b!@2", "a@901 b*@962", "a@960 barrier*@970", "1=0,1/x*@960", "4/z*@960",
)  # fmt: skip


class Draw(random.Random):
    """What a case draws."""

    def odd(self, share: float) -> bool:
        return self.random() < share

    def state(self, name: str, still_s: float | None) -> tuple[LiveRank | Absent, LiveRank | Absent]:
        first, change = STATES[name]
        times: dict[str, Any] = {"still_s": still_s}
        if name == "young":
            times["age_s"] = self.choice((7.9, 8.1, 11.0, None))
        first = replace(first, **times) if isinstance(first, LiveRank) else first
        before = first if isinstance(first, LiveRank) else replace(IDLE, **times)
        if isinstance(change, Absent):
            return first, change
        return first, replace(before, **{"time_s": before.time_s + 1, **change})

    def states(self, numbers: Sequence[int], themes: Sequence[str]) -> dict[int, str]:
        if "states" in themes or self.odd(0.1):
            return dict(zip(numbers, self.choices([*STATES], k=len(numbers)), strict=True))
        usual = "reads" if "serves" in themes else self.choice(USUAL_STATES)
        odd = ["serves", "reads"] if "serves" in themes else [*STATES]
        share = 0.5 if "serves" in themes else 0.15
        return {n: self.choice(odd) if self.odd(share) else usual for n in numbers}

    def values(self, names: Sequence[str]) -> dict[str, str]:
        usual = {"ranks": "[0, 1]", "group_name": "5", "hostname": "h", "backend": "nccl", "init_method": "f" * 60}
        return {name: self.choice(("0", "1", "1" * 61)) if self.odd(0.2) else usual.get(name, "0") for name in names}

    def peer(self, numbers: Sequence[int], own: int, name: str) -> Stack:
        at = numbers.index(own)
        peer = numbers[(at + self.choice((1, 1, -1))) % len(numbers)] if self.odd(0.8) else self.choice((*numbers, 77))
        side = "src" if "recv" in name else "dst"
        values = {side: "x" if self.odd(0.05) else str(peer)} if self.odd(0.9) else {"peer": str(peer)}
        values |= {"dst": "7"} if self.odd(0.05) else {}
        return _call(name, **values, **({"tag": self.choice("0555x")} if self.odd(0.6) else {}))

    def place(self, name: str, numbers: Sequence[int], own: int) -> Stack:
        kind, _, what = name.partition(" ")
        if kind == "call":
            return _call(what, **self.values(COLLECTIVES[what]))
        return self.peer(numbers, own, what) if kind == "p2p" else (WORK if kind == "work" else ELSEWHERE)[what]

    def places(self, numbers: Sequence[int], themes: Sequence[str]) -> dict[int, str]:
        own = [name for name in PLACES if name.partition(" ")[0] in themes] or PLACES
        usual, second = self.choice(own), self.choice(own)
        odd = 0.0 if self.odd(0.2) else 0.4
        return {n: self.choice((second, second, self.choice(PLACES))) if self.odd(odd) else usual for n in numbers}

    def records(self, numbers: Sequence[int], world: int, themes: Sequence[str]) -> list[FlightRecords]:
        usual = self.choice(TEXTS)
        texts = {n: self.choice(TEXTS) if self.odd(0.3) else usual for n in sorted(numbers) if self.odd(0.9)}
        after = {n: f"{text} a@971" if self.odd(0.05) else text for n, text in texts.items() if self.odd(0.98)}
        backend, timeout_s = self.choice(("gloo", "nccl")), self.choice((60.0, 600.0))
        found = [recorded(each, world, backend, timeout_s) for each in (texts, after)]
        change: dict[str, Any] = {"ranks": ()} if "groups" in themes else {}
        change |= {"desc": "undefined"} if change and self.odd(0.7) else {}
        if self.odd(0.7) and not change:
            return found
        return [replace(each, dumps=tuple(self.bare(dump, change) for dump in each.dumps)) for each in found]

    def bare(self, dump: Any, change: dict[str, Any]) -> Any:
        groups = tuple(replace(group, **change) for group in dump.groups)
        return replace(dump, groups=groups, stacks=dump.stacks if change else tuple(() for _ in dump.stacks))

    def wires(self, numbers: Sequence[int]) -> tuple[tuple[Connection, ...], ...]:
        both: tuple[list[Connection], list[Connection]] = [], []
        for at in range(self.randrange(1, 6)):
            one, other = self.choice(numbers), self.choice((*numbers, 99))
            of, away = f"10.77.1.{one}:{40 + at}", f"10.77.1.{other}:{50 + at}"
            away = self.choice((away, away, away, away, "10.77.9.9:29500", "10.77.9.9:28028"))
            end = Connection(
                100 + one, of, away, self.choice(("established",) * 5 + ("connecting",)),
                self.choice((0, 9000, 9000)), retransmits=self.choice((0, 6, 8)), probes=self.choice((0, 0, 7)),
                heard_s=self.choice((0.4, 0.4, 8.9, 9.0, 12.0)), inode=7 + at % 2, acknowledged_bytes=500,
            )  # fmt: skip
            sent, got = self.choice((0, 0, 0, 1, 65_535, 65_536, 400_000)), self.choice((0, 0, 0, 40, 4095, 4096))
            both[0].append(end)
            both[1].append(replace(end, acknowledged_bytes=500 + sent, received_bytes=got))
            for look in both if other != 99 else ():
                look.append(Connection(100 + other, away, of, heard_s=1.0))
        return tuple(map(tuple, both))

    def gpus(self, count: int) -> tuple[LiveGpu, ...]:
        lost, denied = Absent("NVML: GPU is lost"), Absent("NVML: Insufficient Permissions")
        slowed = ("hw-thermal-slowdown", "sw-thermal-slowdown")
        of: dict[str, Sequence[Any]] = {
            "pci": (*["00000000:5E:00.0"] * 9, lost, denied, "?"), "busy_percent": (100, denied),
            "clock_MHz": (345, 990, 1980, denied), "most_MHz": (1980, 1980, 0, denied), "power_mW": (9000, denied),
            "nvlink_KiB": (64, 1088, denied), "reasons": (slowed, slowed[1:], (), denied),
        }  # fmt: skip
        pids: Sequence[Any] = ((), denied, *[(100 + at,) for at in range(count)], (100, 101))
        return tuple(
            LiveGpu(at, pids=self.choice(pids), **{name: self.choice(some) for name, some in of.items()})
            for at in range(count + self.odd(0.1))
        )

    def xids(self) -> tuple[Event, ...]:
        devices = ("0000:5e:00", "0000:5e:00.0", "0000:5f:00", "?")
        kinds = (("xid", "79"), ("xid", "31"), ("xid", "119"), ("lost", ""))
        of = [(self.choice((0.001, 50.0)), self.choice(devices), *self.choice(kinds)) for _ in range(3)]
        return tuple(Event(at_s, kind, device, code) for at_s, device, kind, code in of)

    def threads(self) -> tuple[ThreadPlace, ...]:
        saves, reads = FlightFrame("save", OWN.filename, 51), FlightFrame("read", OWN.filename, 52)
        places = (
            ThreadPlace("saver", saves, self.odd(0.2), _call("barrier", line=51)),
            ThreadPlace("reader", reads, self.odd(0.1), _frames(("get", f"{PYTHON}/queue.py"))),
            ThreadPlace("MainThread", FlightFrame("_shutdown", f"{PYTHON}/threading.py", 9), self.odd(0.7)),
        )
        return tuple(self.sample(places, self.choice((0, 0, 1, 2))))


FEW = 5
MORE: Mapping[str, tuple[int, ...]] = {
    "p2p": (6, 9, 12, 36, 68, 91, 157), "call": (19, 26), "work": (18, 25, 99), "else": (10, 24, 46, 132, 143),
    "any": (35,), "records": (8, 95), "records any": (7, 16, 21), "records work threads": (26, 48, 55, 159),
    "groups records threads": (7, 9, 11, 13, 28, 38, 48, 73, 98), "RAS": (8, 29, 54),
    "RAS records any": (5, 13, 14, 91), "wires": (145, 149),
    "wires records": (7, 8, 11, 32, 129, 146), "wires serves": (52, 102),
    "wires any": (11, 25), "GPUs records wires": (16, 47, 58, 66, 79), "GPUs any": (10, 31, 81),
    "threads any": (8, 32), "states": (118, 145), "states records": (42, 53), "nodes records any": (5, 13),
    "nodes RAS": (21,), "silent records any": (7, 8, 64, 85), "silent RAS": (15, 45, 52),
}  # fmt: skip
"""The themes, and which of their cases decide what no other one decides, besides the first few."""


def drawn(case: str) -> tuple[list[str], JobState]:
    """Return what each rank of a case was given, and how its job stands."""
    draw, themes = Draw(case), case.split()
    count = draw.choice((2, 3, 3, 4, 4, 5))
    spread, world = draw.odd(0.4), None if draw.odd(0.3) else count + draw.odd(0.1)
    numbers = draw.sample((16, 8, 0, 1, 24) if spread and not world else range(count), count - draw.odd(0.1))
    states, still_s = draw.states(numbers, themes), draw.choice(STILL_S)
    own = draw.odd(0.4)
    both = {n: draw.state(name, draw.choice(STILL_S) if own else still_s) for n, name in states.items()}
    places = draw.places(numbers, themes) if {*themes} & {"any", "p2p", "call", "work", "else", "threads"} else {}
    stacks = {n: draw.place(name, numbers, n) for n, name in places.items()}
    records = draw.records(numbers, count, themes) if "records" in themes else [recorded({})] * 2
    wires = draw.wires(numbers) if "wires" in themes or draw.odd(0.1) else ((), ())
    ras: list[Any] = [Absent("", draw.choice(("Missing", "Missing", "Denied")))] * 2
    if "RAS" in themes:
        launched = [51 - draw.odd(0.3) - draw.odd(0.2) if draw.odd(0.9) else 0 for _ in range(max(numbers) + 1)]
        ras = [counts(*launched), counts(*(each + draw.odd(0.04) for each in launched))]
        ras[1] = replace(ras[1], statements=tuple(replace(e, line=at) for at, e in enumerate(ras[1].statements)))
    gpus: list[Any] = [draw.gpus(count) if "GPUs" in themes else Absent("", "Missing") for _ in range(2)]
    nodes = {}
    for node in ("n1", "n2") if "nodes" in themes else ("n1",):
        here = [n for at, n in enumerate(numbers) if "nodes" not in themes or (at % 3 == 2) == (node == "n2")]
        looks = []
        for at in (0, 1):
            dumps = tuple(e for e in records[at].dumps if e.rank in here or (node == "n1" and draw.odd(0.02)))
            read = [stacks[n][::-1] if at and draw.odd(0.03) else stacks[n] for n in here if places]
            unread = Absent("py-spy: permission denied") if draw.odd(0.1) else ()
            silent = [f"no answer of {n}" if draw.odd(0.8 if "silent" in themes else 0.05) else "" for n in here]
            threads = tuple(draw.threads() for _ in here) if "threads" in themes else ()
            asleep = {4242: ELSEWHERE["queue"], 4243: draw.choice([*ELSEWHERE.values()]), 4244: ELSEWHERE["own line"]}
            looks.append(
                JobLook(tuple(both[n][at] for n in here), FlightRecords(dumps), tuple(silent),
                        tuple(each or unread for each in read), ras[at], wires[at], gpus=gpus[at], threads=threads,
                        of_children=asleep if draw.odd(0.5) else {})
            )  # fmt: skip
        ranks = _local(draw, here, node, world, count)
        addresses: Any = draw.choice(({"10.77.1.1": "eth1"}, {}, Absent("")))
        nodes[node] = ranks, JobLooks(*looks, addresses, draw.xids() if "GPUs" in themes else ())
    names = [f"{n}:{states[n]}:{places.get(n, '')}" for n in numbers]
    return names, stand(nodes)


def _local(draw: Draw, here: Sequence[int], node: str, world: int | None, count: int) -> LocalRanks:
    """Return the ranks of a node; the pids of two nodes may be the same."""
    launch = Launch(
        "torchrun", world_size=world, local_world_size=len(here), master_port=29500, nnodes=draw.choice((1, 3))
    )
    settings: Any = draw.choice(
        ({}, {}, {"SLURM_JOB_ID": "7"}, {"SLURM_STEP_NUM_NODES": "4"}, {"CUDA_VISIBLE_DEVICES": "1"})
    )
    ranks = tuple(
        JobProcess(100 + (at if node == "n2" else n), 1, "python", n,
                   replace(launch, local_rank=None if draw.odd(0.1) else at), settings=settings)
        for at, n in enumerate(here)
    )  # fmt: skip
    missing = [n for n in range(count) if n not in here and node == "n1" and world == count]
    return LocalRanks(ranks, tuple(missing), gone=int(draw.odd(0.02)))


def rows() -> Iterator[tuple[str, object]]:
    """Yield each case with all that is said of it."""
    for case in (f"{theme} {number}" for theme, more in MORE.items() for number in (*range(FEW), *more)):
        given, found = drawn(case)
        yield case, {"drawn": given, **kept(found)}
