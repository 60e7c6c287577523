"""Two ends of a rail in two processes, above a stand-in for the verbs library that can be given faults."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_verbs
import pytest
from fake_verbs import QUICK, Channel, both, channels, device, infiniband

from ncclprobe.host import own_child
from ncclprobe.model.rails import RailOutcome, RailPort, RailTest
from ncclprobe.model.values import replace
from ncclprobe.probes.verbs import abi, pair
from ncclprobe.probes.verbs import library as verbs_library
from ncclprobe.probes.verbs.library import Library, VerbsError
from ncclprobe.probes.verbs.pair import run_rail
from ncclprobe.probes.verbs.traffic import Stream
from tests.each_row import each_row, some

LEFT = RailPort(device="left", gid_index=3, timeout=6, retry_count=1)
RIGHT = replace(LEFT, device="right")
ALL = ("out", "in")
WORD = replace(QUICK, round_trips=0, directions=("out",))
"""The shortest test that writes."""
SLOW = pytest.mark.slow  # two processes each: every way to fail has one row that runs every time
Pair = tuple[RailOutcome, RailOutcome]
Ends = Callable[..., Pair]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_verbs.build(tmp_path_factory.mktemp("verbs"))


@pytest.fixture
def ends(library: Path, tmp_path: Path) -> Ends:
    """Tests the rail between two devices, and returns what both ends saw."""

    def test(
        left: str = device("left", 1), right: str = device("right", 2), one: RailPort = LEFT, other: RailPort = RIGHT,
        test: RailTest = QUICK,
    ) -> Pair:  # fmt: skip
        with fake_verbs.variables(fake_verbs.environment(library, tmp_path, left, right)):
            return asyncio.run(both(one, other, test))

    return test


def kinds(outcome: RailOutcome) -> list[tuple[str, str, str | None]]:
    return [(failure.step, failure.kind, failure.direction) for failure in outcome.failures]


def arrived(outcome: RailOutcome) -> dict[str, float]:
    return {each.direction: each.arrived_bytes / each.checked_bytes for each in outcome.arrivals}


# A healthy rail.


@pytest.mark.parametrize("pairs", [pytest.param(1, marks=SLOW), 3])
def test_a_healthy_rail_carries_every_byte_both_ways(ends: Ends, pairs: int) -> None:
    one, other = (replace(port, queue_pairs=pairs) for port in (LEFT, RIGHT))
    left, right = ends(one=one, other=other, test=replace(QUICK, directions=(*ALL, "both")))
    assert (left.failures, right.failures, left.events) == ((), (), ())
    assert {pair.ece for end in (left, right) if end.own for pair in end.own.queue_pairs} == {None}
    assert [len(end.half_round_trip_us) for end in (left, right)] == [18, 0]
    assert [[stream.direction for stream in end.streams] for end in (left, right)] == [["out", "both"], ["in", "both"]]
    assert {stream.nbytes for end in (left, right) for stream in end.streams} == {24 * (64 << 10)}
    assert (arrived(left), arrived(right)) == ({"in": 1.0, "both": 1.0}, {"out": 1.0, "both": 1.0})
    assert all(stream.GBps > 0 and stream.work_s <= stream.seconds for stream in left.streams)


@pytest.mark.parametrize(
    ("left", "right", "gid_index", "peer"),
    [
        (
            device("left", 1), device("right", 2, mtu=4), 3,
            {"device": "right", "link_layer": "Ethernet", "state": "ACTIVE", "gid": "00000000000000000000ffff0a000002",
             "gid_type": "RoCE v2", "active_mtu": 2048, "rate_gbps": 400.0, "pkey": 0xFFFF},
        ),
        (infiniband("left", 7), infiniband("right", 9), 0, {"lid": 9, "link_layer": "InfiniBand", "gid_type": "IB"}),
    ],
)  # fmt: skip
def test_each_end_knows_what_the_other_one_read_from_its_port(
    ends: Ends, left: str, right: str, gid_index: int, peer: dict[str, object]
) -> None:
    one, other = (replace(port, gid_index=gid_index) for port in (LEFT, RIGHT))
    here, there = ends(left, right, one, other, test=WORD)
    assert (here.failures, here.own, here.peer) == ((), there.peer, there.own)
    assert {name: getattr(here.peer, name) for name in peer} == peer


@pytest.mark.parametrize(
    ("one", "test"),
    [
        (replace(LEFT, adaptive_routing=True, relaxed_ordering=True), replace(WORD, messages=9)),
        pytest.param(replace(LEFT, relaxed_ordering=True), replace(WORD, messages=9), marks=SLOW),
        (replace(LEFT, memory="cuda", gpu=0), WORD),
        pytest.param(replace(LEFT, memory="cuda-dmabuf", gpu=0), WORD, marks=SLOW),
    ],
)
def test_a_stream_ends_and_has_arrived_however_it_is_sent(ends: Ends, one: RailPort, test: RailTest) -> None:
    left, right = ends(one=one, other=replace(RIGHT, memory=one.memory, gpu=one.gpu), test=test)
    assert (left.failures, right.failures, arrived(right)) == ((), (), {"out": 1.0})


@each_row(("came", "turns"), [([0, abi.WC_RECEIVED], 1), ([abi.WC_RECEIVED, 0], 2)])
def test_what_comes_in_after_the_last_write_is_no_part_of_the_work_of_writing(came: list[int], turns: int) -> None:
    polls = iter([[(opcode, 0)] for opcode in came])
    region = {"data": SimpleNamespace(address=0), "data_mr": SimpleNamespace(contents=SimpleNamespace(lkey=1))}
    port = SimpleNamespace(test=replace(QUICK, messages=1), queue_pairs=[1], region_bytes=1 << 20, asked=LEFT, **region)
    calls = {"send": lambda *_: None, "expect": lambda *_: None, "completions": lambda: next(polls)}
    traffic: Any = SimpleNamespace(port=port, peer=SimpleNamespace(address=0, rkey=1), **calls)
    stream = Stream(traffic, writes=True, reads=True)
    written = stream.run("both", 5.0)
    assert written
    assert (len(stream.turns), written.nbytes) == (turns, 64 << 10)


# What the network does.


def test_of_a_way_that_is_dead_the_data_of_the_other_tells(ends: Ends) -> None:
    """Whatever leaves the left port is lost: its writes, and its acknowledgements of what reaches it."""
    left, right = ends(device("left", 1, "drop"))
    assert kinds(left) == [("latency", "completion", None), ("write", "completion", "out"), ("write", "peer", "in")]
    assert kinds(right) == [("latency", "peer", None), ("write", "peer", "out"), ("write", "completion", "in")]
    assert {failure.status for failure in left.failures if failure.kind == "completion"} == {12}
    assert (arrived(right), arrived(left)["in"] > 0) == ({"out": 0.0}, True)


@pytest.mark.parametrize(
    ("left", "right", "other"),
    [
        (device("left", 1), device("right", 2), replace(RIGHT, gid_index=2)),
        (device("left", 1), device("right", 2), replace(RIGHT, gid_index=1)),
        pytest.param(device("left", 1, pkey0="8001"), device("right", 2, pkey0="8002"), RIGHT, marks=SLOW),
        (device("left", 1, pkey0="1"), device("right", 2, pkey0="1"), RIGHT),
        pytest.param(device("left", 1), device("right", 2, state=1), RIGHT, marks=SLOW),
    ],
)
def test_addresses_that_do_not_meet_are_acknowledged_no_way(ends: Ends, left: str, right: str, other: RailPort) -> None:
    """But with a link-local GID on one end, which rxe and NICs answer to: both know each other's addresses."""
    here, there = ends(left, right, LEFT, other, test=replace(QUICK, round_trips=0))
    if other.gid_index == 1:
        assert (here.failures, there.failures) == ((), ())
        return
    assert kinds(here) == [("write", "completion", "out"), ("write", "peer", "in")]
    assert kinds(there) == [("write", "peer", "out"), ("write", "completion", "in")]
    assert here.failures[0].status == there.failures[1].status == 12
    assert {**arrived(here), **arrived(there)} == {"in": 0.0, "out": 0.0}


def test_a_path_with_a_smaller_mtu_carries_small_messages_and_loses_large_ones_unless_asked_for(ends: Ends) -> None:
    asked, _ = ends(device("left", 1, "path_mtu=1024"), one=replace(LEFT, mtu=1024), test=WORD)
    assert (asked.failures, asked.own and asked.own.mtu) == ((), 1024)
    left, right = ends(device("left", 1, "path_mtu=1024"))
    assert left.half_round_trip_us
    assert kinds(left) == [("write", "completion", "out")]
    assert (left.failures[0].status, arrived(right), arrived(left)) == (12, {"out": 0.0}, {"in": 1.0})


def test_one_changed_byte_is_found_and_its_place_told(ends: Ends) -> None:
    """The writes go round a region of 8 messages, so the 21st lies at the fifth place."""
    left, right = ends(device("left", 1, "corrupt=20"), test=WORD)
    (arrival,) = right.arrivals
    assert (arrival.wrong_bytes, arrival.offset) == (1, 4 * (64 << 10) + (32 << 10))
    assert (arrival.expected ^ arrival.found, left.failures, right.failures) == (1, (), ())


def test_a_slow_rail_is_slow_and_no_failure(ends: Ends) -> None:
    left, right = ends(device("left", 1, "rate=0.02"))
    (out,), (back,) = left.streams, right.streams
    assert (left.failures, right.failures) == ((), ())
    assert out.GBps < min(0.021, back.GBps)
    left, right = ends(device("left", 1, ece=7), device("right", 2, ece=3), test=WORD)
    used = [end.own and end.own.queue_pairs[0].ece for end in (left, right)]
    assert (used, left.failures) == ([(0x15B3, 3, 0)] * 2, ()), "what both offer beyond the standard"


# What the device and its driver do.

CUDA, DMABUF = (replace(LEFT, memory=memory, gpu=0) for memory in ("cuda", "cuda-dmabuf"))


def slow(*values: object) -> object:
    return pytest.param(*values, marks=SLOW)


@pytest.mark.parametrize(
    ("fault", "port", "kind", "call", "words"),
    [
        ("memlock=100000", LEFT, "refused", "ibv_reg_mr", "limit of locked memory"),
        ("refuse=ibv_open_device:13", LEFT, "refused", "ibv_open_device", "/dev/infiniband"),
        ("refuse=ibv_modify_qp:110", LEFT, "refused", "ibv_modify_qp", "no path to the peer's GID was found"),
        slow("refuse=ibv_create_qp:12", LEFT, "refused", "ibv_create_qp", "limit of locked memory"),
        slow("refuse=ibv_modify_qp:22", LEFT, "refused", "ibv_modify_qp", "the port does not support this"),
        slow("no_peer_memory", CUDA, "refused", "ibv_reg_mr", "peer memory"),
        ("refuse=ibv_reg_dmabuf_mr:95", DMABUF, "refused", "ibv_reg_dmabuf_mr", "DMA-BUF"),
        ("crash=ibv_post_send", LEFT, "died", "ibv_post_send", "SIGABRT"),
        ("", replace(LEFT, gid_index=9), "missing", "ibv_query_gid", "the GID at index 9 is empty"),
        slow("", replace(LEFT, device="absent"), "missing", "", "the verbs library has left, right"),
        slow("", replace(LEFT, gid_index=99), "missing", "ibv_query_gid", "the table has 16 entries"),
        slow("", replace(LEFT, pkey_index=64), "missing", "", "the table has 8 entries"),
        slow("", replace(LEFT, memory="cuda", gpu=4), "refused", None, "CUDA_ERROR_INVALID_DEVICE"),
        ("status=10:0x8a:3", LEFT, "completion", "", "completion with error 10 ("),
    ],
)
def test_what_a_device_refuses_or_lacks_is_told_with_its_reason(
    ends: Ends, fault: str, port: RailPort, kind: str, call: str | None, words: str
) -> None:
    left, right = ends(device("left", 1, fault), one=port, test=WORD)
    failure = left.failures[0]
    assert words in failure.text
    assert (failure.kind, failure.call) == (kind, failure.call if call is None else call)
    first = right.failures[0]
    if kind == "completion":
        assert len(left.failures) == 1
        assert (str(failure.status) in words, "vendor syndrome 0x8a" in failure.text) == (True, True)
        assert (first.kind, first.status) == ("completion", 5) or first.kind == "peer"
    else:
        assert [each.kind for each in right.failures] == ["peer"]


@pytest.mark.parametrize(
    ("fault", "event"), [("vanish=3", "local catastrophic error"), slow("port_error=3", "port error")]
)
def test_a_device_that_fails_in_the_middle_says_so_itself(ends: Ends, fault: str, event: str) -> None:
    left, right = ends(device("left", 1, fault), test=WORD)
    assert left.failures[0].kind in ("event", "completion", "refused")
    assert (left.events, [failure.kind for failure in right.failures]) == ((event,), ["peer"])


HANGING = ("ibv_open_device", "ibv_modify_qp", "ibv_poll_cq")


def test_a_call_that_hangs_is_killed_and_named(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, because each takes its deadline, which must be long enough for a busy machine."""
    monkeypatch.setattr(pair, "GRACE_S", 0.5)
    test = replace(WORD, setup_seconds=6.0, seconds=1.0)
    sick = [device(f"left{n}", n, f"hang={call}") for n, call in enumerate(HANGING)]
    well = [device(f"right{n}", 16 + n) for n in range(len(HANGING))]

    async def all_of_them() -> list[Pair]:
        rails = ((replace(LEFT, device=f"left{n}"), replace(LEFT, device=f"right{n}")) for n in range(len(HANGING)))
        return await asyncio.gather(*(both(one, other, test) for one, other in rails))

    with fake_verbs.variables(fake_verbs.environment(library, tmp_path, *sick, *well)):
        outcomes = asyncio.run(all_of_them())
    assert [(left.failures[0].kind, left.failures[0].call) for left, _ in outcomes] == [("hangs", c) for c in HANGING]
    assert {right.failures[0].kind for _, right in outcomes} <= {"peer", "late"}


RENEWED = """
import ctypes, time
from ncclprobe.model.rails import RailPort, RailTest
from ncclprobe.probes.verbs import abi
from ncclprobe.probes.verbs.library import Library
from ncclprobe.probes.verbs.port import Port
from ncclprobe.probes.verbs.traffic import Traffic

test = RailTest(messages=4, message_bytes=4096)
left, right = (Port(Library(lambda call: None), RailPort(device=name, gid_index=3), test) for name in ("left", "right"))

def connected():
    for port in (left, right):
        port.create()
    ours, theirs = left.address(), right.address()
    left.connect(theirs)
    right.connect(ours)
    return Traffic(left, theirs, lambda call: None, lambda: False)

traffic = connected()
sge = abi.Sge(left.mailbox.address, 8, left.mailbox_mr.contents.lkey)
request = abi.SendWr(opcode=abi.RDMA_WRITE, send_flags=abi.SIGNALED, num_sge=1, sg_list=ctypes.addressof(sge))
request.remote_addr, request.rkey = traffic.peer.mailbox_address, traffic.peer.mailbox_rkey
traffic.send(0, request)
time.sleep(0.3)  # completed, and not polled
print(len(connected().completions()))
"""


def test_what_queue_pairs_that_are_gone_completed_is_not_taken_for_the_new_ones(library: Path, tmp_path: Path) -> None:
    with fake_verbs.variables(fake_verbs.environment(library, tmp_path, device("left", 1), device("right", 2))):
        done = subprocess.run([sys.executable, "-c", RENEWED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_child_that_meets_a_defect_of_ours_blames_no_end(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    call = "getattr(import_module(module), name)(*arguments)"
    broken = own_child._BEGIN.replace(call, f"import_module(module)._End._ping = None; {call}")
    monkeypatch.setattr(own_child, "_BEGIN", broken)
    for end in some(ends()):
        assert {failure.kind for failure in end.failures} <= {"channel", "peer"}
        assert "a bug of ncclprobe, not of this machine" in end.failures[0].text


# The other end, and what is not there.


@each_row(("how", "kind"), [(signal.SIGKILL, "died"), (signal.SIGSTOP, "hangs")])
def test_a_process_that_is_killed_or_stopped_is_told_by_its_own_end(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals, kind: str
) -> None:
    monkeypatch.setattr(pair, "GRACE_S", 1.0)
    started: list[int] = []

    class Noted(pair.VerbsChild):
        def _popen(self) -> socket.socket:
            ours = super()._popen()
            assert self._process
            started.append(self._process.pid)
            return ours

    async def strike(step: str) -> None:
        os.kill(started[1], how)  # the right end's: gather() starts the left one's first

    async def ends() -> list[RailOutcome]:
        here, there = channels()
        until, test = time.monotonic() + 100, replace(WORD, seconds=1.0)
        return await asyncio.gather(
            run_rail(LEFT, test, leads=True, channel=here, deadline=until),
            run_rail(RIGHT, test, leads=False, channel=there, deadline=until, before=strike),
        )

    monkeypatch.setattr(pair, "VerbsChild", Noted)
    settings = fake_verbs.environment(library, tmp_path, device("left", 1), device("right", 2))
    with fake_verbs.variables(settings):
        left, right = asyncio.run(ends())
    assert [failure.kind for failure in right.failures][:1] == [kind]
    assert {failure.kind for failure in left.failures} <= {"completion", "peer"}
    assert left.failures


def alone(library: Path, folder: Path, channel: Channel, patience_s: float) -> RailOutcome:
    """Test a rail whose other end is no more than `channel`."""
    with fake_verbs.variables(fake_verbs.environment(library, folder, device("left", 1))):
        return asyncio.run(run_rail(LEFT, QUICK, leads=True, channel=channel, deadline=time.monotonic() + patience_s))


# The library.


def test_a_library_without_devices_says_so_and_a_machine_without_it_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's libibverbs1 without RDMA gives an empty list, or, where the kernel has no part of it, none."""
    try:
        with Library(lambda call: None).devices() as devices:
            refusal = "" if all(devices.values()) else "a device without an address"
    except VerbsError as error:
        refusal = str(error)
    assert not refusal or refusal.startswith("no RDMA ")
    monkeypatch.setattr(verbs_library, "NAME", "libibverbs-that-is-not.so.1")
    with pytest.raises(VerbsError, match="no RDMA library in this image") as caught:
        Library(lambda call: None)
    assert caught.value.kind == "missing"


def test_a_process_keeps_near_its_nic_where_it_may(tmp_path: Path) -> None:
    """In a process of its own, as the child is. What it may not use, and what no one tells, changes nothing."""
    here, whole = min(os.sched_getaffinity(0)), " ".join(map(str, sorted(os.sched_getaffinity(0))))
    lists = {"unusable": "8191\n", "empty": "\n", "garbled": "no list", "near": f"{here},8191\n"}
    for name, near in lists.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "local_cpulist").write_text(near)
    code = "import os, sys; from ncclprobe.probes.verbs.port import keep_near\nfor name in sys.argv[1:]:\n"
    code += "    keep_near(name); print(*sorted(os.sched_getaffinity(0)))"
    folders = [str(tmp_path / name) for name in ("absent", *lists)]
    said = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [whole] * 4 + [str(here)]


def test_a_python_that_does_not_start_in_time_says_nothing_of_the_nic(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "START_S", 0.0)
    (failure,) = alone(library, tmp_path, channels()[0], 2.0).failures[:1]
    assert (failure.step, failure.kind, failure.call) == ("open", "late", "")
    monkeypatch.setattr(pair, "start_own", lambda *_, **__: os.open("", os.O_RDONLY))
    (failure,) = alone(library, tmp_path, channels()[0], 2.0).failures[:1]
    assert (failure.kind, failure.text) == ("died", "no process could be started: No such file or directory")
    with pytest.raises(VerbsError, match="had already ended") as ended:
        asyncio.run(pair.VerbsChild().ask(pair.Request(do="open")))
    assert ended.value.kind == "died"
