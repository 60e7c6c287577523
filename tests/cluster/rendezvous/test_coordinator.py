"""Rank 0 accepts every node, keeps what it brings, and bounds what one connection can cost."""

import asyncio
import contextlib
import os
import socket
import stat
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rendezvous_lab import TOKEN, arrive, hello, judged, soon, until, whole_run

from ncclprobe import wire
from ncclprobe.cluster.rendezvous import coordinator as module
from ncclprobe.cluster.rendezvous import messages
from ncclprobe.cluster.rendezvous.coordinator import Coordinator, bind_listener
from ncclprobe.cluster.rendezvous.messages import Leave, Refused
from ncclprobe.cluster.rendezvous.reach import Worker
from ncclprobe.facts.reach import Flood
from ncclprobe.model import bounds
from ncclprobe.wire import WireError
from tests.awaited import awaited
from tests.each_row import each_row

Peer = Callable[[int], Awaitable[None]]
LATE = "late: left because rank 0 had not answered in time"


@asynccontextmanager
async def listening(folder: Path, nnodes: int) -> AsyncIterator[tuple[Coordinator, int]]:
    async with Coordinator(TOKEN, nnodes, folder, soon(200)) as coordinator:
        yield coordinator, await coordinator.listen(0)


@awaited
async def test_all_nodes_come_are_asked_and_leave_together(tmp_path: Path) -> None:
    captures = {rank: f'{{"node": "n{rank}", "odd": "\N{SNOWMAN}"}}\n' * 5000 for rank in (1, 2)}
    captures[3] = "x" * messages.CHUNK_CHARS

    async with listening(tmp_path, 4) as (coordinator, port):
        runs = [whole_run(port, hello(rank, listeners=({"port": rank},)), text) for rank, text in captures.items()]
        (gathering, samples), *leaves = await asyncio.gather(judged(coordinator), *runs)
        peers = coordinator.peers
    assert (gathering.expected, gathering.troubles) == (3, ())
    assert samples == {f"id of {rank}": {"paths": {"name": f"n{rank}"}} for rank in captures}
    assert leaves == [Leave(rank, "bye") for rank in captures]
    assert [(peer.hello.node_rank, peer.extra, peer.hello.listeners) for peer in peers] == [
        (rank, False, ({"port": rank},)) for rank in captures
    ]
    assert {peer.hello.node_rank: peer.capture.read_text() for peer in peers} == captures
    assert {stat.S_IMODE(peer.capture.stat().st_mode) for peer in peers} == {0o600}
    assert {peer.address for peer in peers} == {"127.0.0.1"}


@awaited
async def test_who_is_not_there_at_the_deadline_is_not_waited_for(tmp_path: Path) -> None:
    async with listening(tmp_path, 3) as (coordinator, port):
        counts: list[int] = []
        worker = await arrive(port, hello(1))
        gathering = await coordinator.gather(soon(0.3), counts.append)
        with pytest.raises(Refused, match="too late"):
            await arrive(port, hello(2))
        worker.close()
        ranks = [peer.hello.node_rank for peer in coordinator.peers]
    assert (gathering.expected, ranks, {*counts} - {0}) == (2, [1], {1})
    assert gathering.waited_s < 3
    assert len(list(tmp_path.iterdir())) == 1


@awaited
async def test_a_flood_is_named_and_kept_out_once_nodes_are_waited_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FROM_ONE_ADDRESS", 0)
    async with listening(tmp_path, 2) as (coordinator, port):
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        gathering = await coordinator.gather(soon(0.3))
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", port)
        for _, writer in crowd:
            writer.transport.abort()
    assert gathering.floods == (Flood("127.0.0.1", 3),)


@awaited
async def test_two_hosts_of_one_rank_are_both_kept_and_the_missing_one_is_not_waited_for_long(tmp_path: Path) -> None:
    async with listening(tmp_path, 5) as (coordinator, port):
        runs = [whole_run(port, hello(rank, name)) for rank, name in ((1, "a"), (1, "b"), (7, "c"), (0, "d"))]
        (gathering, samples), *leaves = await asyncio.gather(judged(coordinator, 20), *runs)
        peers = coordinator.peers
    assert gathering.waited_s < 15
    assert {peer.hello.name: peer.extra for peer in peers if peer.hello.node_rank != 1} == {"c": True, "d": True}
    assert [peer.extra for peer in peers if peer.hello.node_rank == 1] == [False, True]
    assert (len(samples), [leave.exit_code for leave in leaves]) == (4, [1, 1, 7, 0])


@awaited
async def test_a_node_that_comes_again_is_one_node_and_twins_beyond_a_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_EXTRA", 0)

    async with listening(tmp_path, 3) as (coordinator, port):
        (await arrive(port, hello(1), "first\n")).close()
        workers = [await arrive(port, hello(1), "second\n")]
        workers += [await arrive(port, hello(9, f"twin{number}")) for number in range(3)]
        with pytest.raises(Refused, match="too many nodes use a rank"):
            await arrive(port, hello(9, "twin3"))
        await coordinator.gather(soon(0.2))
        for worker in workers:
            worker.close()
        assert [(peer.capture.read_text(), peer.extra) for peer in coordinator.peers] == [
            ("second\n", False),
            *[("{}\n", True)] * 3,
        ]


@awaited
async def test_a_node_lost_after_its_capture_came_costs_nobody_time(tmp_path: Path) -> None:
    async with listening(tmp_path, 3) as (coordinator, port):
        lost, run = await arrive(port, hello(1)), asyncio.ensure_future(whole_run(port, hello(2)))
        await until(lambda: len([peer for peer in coordinator.peers if peer.settled]) == 2)
        lost.close()
        started = time.monotonic()
        _, samples = await judged(coordinator, 100)
        await run
        took_s = time.monotonic() - started
        gone = [bool(peer.lost) for peer in coordinator.peers][:1]
    assert (list(samples), gone) == (["id of 2"], [True])
    assert took_s < 50, "it waited for the lost node"


@awaited
async def test_a_node_that_leaves_because_rank_0_is_late_says_so_and_does_not_look_dead(tmp_path: Path) -> None:
    async with listening(tmp_path, 3) as (coordinator, port):
        late, dead = await arrive(port, hello(1)), await arrive(port, hello(2))
        await late.give_up()
        late.close()
        dead.close()
        await until(lambda: all(peer.lost for peer in coordinator.peers))
        assert [peer.lost for peer in coordinator.peers] == [LATE, "reset: hung up"]


async def babbles(port: int, text: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(OSError):
            writer.write(text)
            await reader.read()
    finally:
        writer.transport.abort()


async def says_nothing(port: int) -> None:
    await babbles(port, b"")


async def hangs_up(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def has_another_token(port: int) -> None:
    with pytest.raises(WireError, match="token"):
        await wire.connect("127.0.0.1", port, b"another", soon())


async def begins(port: int, *messages: dict[str, Any], name: str = "n1") -> wire.Wire:
    """A node that has said its name, and these messages."""
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    await task.send({"hello": {"id": "x", "node_rank": 1, "name": name}}, soon())
    await task.receive(soon())
    for message in messages:
        await task.send(message, soon())
    return task


async def sends_too_much(port: int) -> None:
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    with contextlib.suppress(WireError):  # the coordinator need not read it all before it hangs up
        await task.send({"hello": os.urandom(200_000).hex()}, soon())
    await refusal_of(task)


async def sends_no_hello(port: int) -> None:
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    await task.send({"hello": {"node_rank": "one"}}, soon())
    await refusal_of(task)


async def has_a_long_name(port: int) -> None:
    (await begins(port, name="n" * bounds.NAME_CHARACTERS)).close()
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    await task.send({"hello": {"id": "x", "node_rank": 1, "name": "n" * (bounds.NAME_CHARACTERS + 1)}}, soon())
    await refusal_of(task)


async def stops_half_way(port: int) -> None:
    await refusal_of(await begins(port, {"capture": "the first half", "more": True}))


async def sends_without_end(port: int) -> None:
    task = await begins(port)
    with contextlib.suppress(WireError):
        while True:
            await task.send({"capture": " " * 100_000, "more": True}, soon())
    task.close()


async def refusal_of(task: wire.Wire) -> None:
    try:
        with contextlib.suppress(WireError):
            await task.receive(soon())
    finally:
        task.close()


@each_row(
    ("peer", "kinds", "rank"),
    [
        (babbles, ["foreign"], None), (says_nothing, ["silent"], None), (hangs_up, ["reset"], None),
        (has_another_token, ["stranger"], None), (sends_too_much, ["too-big"], None),
        (sends_no_hello, ["garbled"], None), (has_a_long_name, ["reset", "garbled"], 1),
        (stops_half_way, ["silent"], 1), (sends_without_end, ["too-big"], 1),
    ],
)  # fmt: skip
@awaited
async def test_each_way_of_not_coming_is_told_apart(
    peer: Peer, kinds: list[str], rank: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HELLO_S", 0.3)
    monkeypatch.setattr(module, "_TRANSFER_S", 0.5 if kinds == ["silent"] else 5.0)
    monkeypatch.setattr(bounds, "SENT_CAPTURE_CHARACTERS", 3_000_000)

    async with listening(tmp_path, 2) as (coordinator, port):
        await peer(port)
        await until(lambda: len(coordinator._troubles) == len(kinds))
        gathering = await coordinator.gather(soon(0.0))
    ranks = [None if rank is None else 1] * len(kinds)
    assert [(each.peer, each.kind) for each in gathering.troubles] == [("127.0.0.1", kind) for kind in kinds]
    assert [each.node_rank for each in gathering.troubles] == ranks
    assert not list(tmp_path.iterdir())


@each_row(("greets", "rank", "words"), [(False, None, "sent nothing that"), (True, 1, "sent an incomplete capture")])
@awaited
async def test_who_is_still_connected_and_has_not_come_is_told(
    greets: bool, rank: int | None, words: str, tmp_path: Path
) -> None:
    async with listening(tmp_path, 2) as (coordinator, port):
        hang_up = (await begins(port)).close if greets else (await asyncio.open_connection("127.0.0.1", port))[1].close
        gathering = await coordinator.gather(soon(0.2))
        hang_up()
        (trouble,) = gathering.troubles
    assert (trouble.kind, trouble.node_rank, words in trouble.detail) == ("silent", rank, True)


@awaited
async def test_a_capture_that_the_disk_does_not_take_is_said(tmp_path: Path) -> None:
    async with listening(tmp_path / "absent", 2) as (coordinator, port):
        with pytest.raises(WireError):
            await arrive(port, hello(1))
        (trouble,) = (await coordinator.gather(soon(0.2))).troubles
    assert (trouble.kind, trouble.detail) == ("too-big", "cannot keep its capture: No such file or directory")


@awaited
async def test_a_caller_that_stays_silent_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with listening(tmp_path, 2) as (coordinator, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        run = asyncio.ensure_future(whole_run(port, hello(1)))
        await coordinator.gather(soon())
        await coordinator.mesh({peer.hello.id: {} for peer in coordinator.peers}, soon())
        started = time.monotonic()
        await coordinator.leave({peer.hello.id: Leave(0) for peer in coordinator.peers}, soon(20))
        await run
        writer.transport.abort()
        assert time.monotonic() - started < 5


@each_row(("room", "kinds"), [(98, ["descriptors"]), (99, [])])
@awaited
async def test_too_few_descriptors_for_all_nodes_is_said(
    room: int, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "room_for", lambda wanted: room)

    async with listening(tmp_path, 100) as (coordinator, _):
        troubles = (await coordinator.gather(soon(0.0))).troubles
    assert [each.kind for each in troubles if "raise ulimit -n" in each.detail] == kinds


def test_a_port_takes_both_families_and_can_be_had_again_at_once() -> None:
    with bind_listener(0) as first:
        port = first.getsockname()[1]
        first.setblocking(True)
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, port)) as caller, first.dup():
                first.accept()[0].close()
                caller.recv(1)
    bind_listener(port).close()


class _Late:
    """The clock of a coordinator that is two minutes behind."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time() -> float:
        return time.time() - 120


@each_row(("clock", "ahead_s"), [(time, 0.0), (_Late, 120.0)])
@awaited
async def test_the_clock_of_a_node_is_compared_with_rank_0s(
    clock: Any, ahead_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", clock)

    async with listening(tmp_path, 2) as (_, port):
        worker = Worker(await wire.connect("127.0.0.1", port, TOKEN, soon()))
        await worker.join(hello(1), "{}\n", soon())
        seen = await worker.clock(soon())
        worker.close()
    assert 0 < seen.rtt_s < 2
    assert seen.offset_s == pytest.approx(ahead_s, abs=seen.rtt_s)
