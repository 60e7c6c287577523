"""Rank 0 accepts every node, keeps what it brings, and bounds what one connection can cost."""

import asyncio
import contextlib
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rendezvous_lab import TOKEN, arrive, hello, judged, soon, until, whole_run

from ncclprobe import wire
from ncclprobe.cluster.rendezvous import coordinator as coordinator_module
from ncclprobe.cluster.rendezvous.coordinator import CannotListen, Coordinator
from ncclprobe.cluster.rendezvous.messages import Leave, Refused
from ncclprobe.cluster.rendezvous.reach import Worker
from ncclprobe.facts.reach import Gathering
from ncclprobe.model import bounds
from ncclprobe.wire import WireError
from tests.each_row import each_row

Peer = Callable[[int], Awaitable[None]]


def with_coordinator(folder: Path, nnodes: int, scene: Callable[[Coordinator, int], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Coordinator(TOKEN, nnodes, folder, soon(30)) as coordinator:
            return await scene(coordinator, await coordinator.listen(0))

    return asyncio.run(run())


def test_all_nodes_come_are_asked_and_leave_together(tmp_path: Path) -> None:
    captures = {rank: f'{{"node": "n{rank}", "odd": "\N{SNOWMAN}"}}\n' * 5000 for rank in (1, 2, 3)}

    async def scene(coordinator: Coordinator, port: int) -> Any:
        runs = [whole_run(port, hello(rank, listeners=({"port": rank},)), text) for rank, text in captures.items()]
        (gathering, samples), *leaves = await asyncio.gather(judged(coordinator), *runs)
        return gathering, samples, leaves, coordinator.peers

    gathering, samples, leaves, peers = with_coordinator(tmp_path, 4, scene)
    assert (gathering.expected, gathering.troubles) == (3, ())
    assert samples == {f"id of {rank}": {"paths": {"name": f"n{rank}"}} for rank in captures}
    assert leaves == [Leave(rank, "bye") for rank in captures]
    assert [(peer.hello.node_rank, peer.extra, peer.hello.listeners) for peer in peers] == [
        (rank, False, ({"port": rank},)) for rank in captures
    ]
    assert {peer.hello.node_rank: peer.capture.read_text() for peer in peers} == captures
    assert {stat.S_IMODE(peer.capture.stat().st_mode) for peer in peers} == {0o600}
    assert {peer.address for peer in peers} == {"127.0.0.1"}


def test_who_is_not_there_at_the_deadline_is_not_waited_for(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Any:
        worker = await arrive(port, hello(1))
        gathering = await coordinator.gather(soon(0.3))
        with pytest.raises(Refused, match="too late"):
            await arrive(port, hello(2))
        worker.close()
        return gathering, [peer.hello.node_rank for peer in coordinator.peers]

    gathering, ranks = with_coordinator(tmp_path, 3, scene)
    assert (gathering.expected, ranks) == (2, [1])
    assert gathering.waited_s < 3
    assert len(list(tmp_path.iterdir())) == 1


def test_two_hosts_of_one_rank_are_both_kept_and_the_missing_one_is_not_waited_for_long(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Any:
        runs = [whole_run(port, hello(rank, name)) for rank, name in ((1, "a"), (1, "b"), (7, "c"), (0, "d"))]
        (gathering, samples), *leaves = await asyncio.gather(judged(coordinator, 20), *runs)
        return gathering, samples, leaves, coordinator.peers

    gathering, samples, leaves, peers = with_coordinator(tmp_path, 5, scene)
    assert gathering.waited_s < 15
    assert {peer.hello.name: peer.extra for peer in peers if peer.hello.node_rank != 1} == {"c": True, "d": True}
    assert [peer.extra for peer in peers if peer.hello.node_rank == 1] == [False, True]
    assert (len(samples), [leave.exit_code for leave in leaves]) == (4, [1, 1, 7, 0])


def test_a_node_that_comes_again_after_its_connection_broke_is_one_node(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Any:
        first = await arrive(port, hello(1), "first\n")
        first.close()
        second = await arrive(port, hello(1), "second\n")
        await coordinator.gather(soon(0.2))
        second.close()
        return [(peer.capture.read_text(), peer.extra) for peer in coordinator.peers]

    assert with_coordinator(tmp_path, 3, scene) == [("second\n", False)]


def test_a_node_lost_after_its_capture_came_costs_nobody_time(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Any:
        lost, run = await arrive(port, hello(1)), asyncio.ensure_future(whole_run(port, hello(2)))
        await until(lambda: len([peer for peer in coordinator.peers if peer.settled]) == 2)
        lost.close()
        started = time.monotonic()
        _, samples = await judged(coordinator, 100)
        await run
        return samples, time.monotonic() - started, [bool(peer.lost) for peer in coordinator.peers][:1]

    samples, took_s, lost = with_coordinator(tmp_path, 3, scene)
    assert (list(samples), lost) == (["id of 2"], [True])
    assert took_s < 50, "it waited for the lost node"


def test_a_node_that_leaves_because_rank_0_is_late_says_so_and_does_not_look_dead(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Any:
        late, dead = await arrive(port, hello(1)), await arrive(port, hello(2))
        await late.give_up()
        late.close()
        dead.close()
        await until(lambda: all(peer.lost for peer in coordinator.peers))
        return [peer.lost.partition(":")[0] for peer in coordinator.peers]

    assert with_coordinator(tmp_path, 3, scene) == ["late", "reset"]


async def connected(port: int, text: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    return reader, writer


async def babbles(port: int) -> None:
    reader, writer = await connected(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with contextlib.suppress(OSError):
        await reader.read()
    writer.transport.abort()


async def says_nothing(port: int) -> None:
    reader, writer = await connected(port)
    with contextlib.suppress(OSError):
        await reader.read()
    writer.transport.abort()


async def hangs_up(port: int) -> None:
    _, writer = await connected(port)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def has_another_token(port: int) -> None:
    with pytest.raises(WireError, match="token"):
        await wire.connect("127.0.0.1", port, b"another", soon())


async def sends_too_much(port: int) -> None:
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    with contextlib.suppress(WireError):  # the coordinator need not read it all before it hangs up
        await task.send({"hello": os.urandom(200_000).hex()}, soon())
    await refusal_of(task)


async def sends_no_hello(port: int) -> None:
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    await task.send({"hello": {"node_rank": "one"}}, soon())
    await refusal_of(task)


async def stops_half_way(port: int) -> None:
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    await task.send({"hello": {"id": "x", "node_rank": 1, "name": "n1"}}, soon())
    await task.receive(soon())
    await task.send({"capture": "the first half", "more": True}, soon())
    await refusal_of(task)


async def sends_without_end(port: int) -> None:
    task = await wire.connect("127.0.0.1", port, TOKEN, soon())
    await task.send({"hello": {"id": "x", "node_rank": 1, "name": "n1"}}, soon())
    await task.receive(soon())
    with contextlib.suppress(WireError):
        while True:
            await task.send({"capture": " " * 100_000, "more": True}, soon())
    task.close()


@each_row(("greets", "rank"), [(False, None), (True, 1)])
def test_who_is_still_connected_and_has_not_come_is_told(greets: bool, rank: int | None, tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Gathering:
        if greets:
            task = await wire.connect("127.0.0.1", port, TOKEN, soon())
            await task.send({"hello": {"id": "x", "node_rank": 1, "name": "n1"}}, soon())
            await task.receive(soon())
            hang_up = task.close
        else:
            hang_up = (await asyncio.open_connection("127.0.0.1", port))[1].close
        gathering = await coordinator.gather(soon(0.2))
        hang_up()
        return gathering

    gathering = with_coordinator(tmp_path, 2, scene)
    assert [(each.kind, each.node_rank) for each in gathering.troubles] == [("silent", rank)]


async def refusal_of(task: wire.Wire) -> None:
    with contextlib.suppress(WireError):
        await task.receive(soon())
    task.close()


@each_row(
    ("peer", "kind", "rank"),
    [
        (babbles, "foreign", None),
        (says_nothing, "silent", None),
        (hangs_up, "reset", None),
        (has_another_token, "stranger", None),
        (sends_too_much, "too-big", None),
        (sends_no_hello, "garbled", None),
        (stops_half_way, "silent", 1),
        (sends_without_end, "too-big", 1),
    ],
)
def test_each_way_of_not_coming_is_told_apart(
    peer: Peer, kind: str, rank: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_module, "_HELLO_S", 0.3)
    monkeypatch.setattr(coordinator_module, "_TRANSFER_S", 0.5 if kind == "silent" else 5.0)
    monkeypatch.setattr(bounds, "SENT_CAPTURE_CHARACTERS", 3_000_000)

    async def scene(coordinator: Coordinator, port: int) -> Gathering:
        await peer(port)
        await until(lambda: coordinator._troubles)
        return await coordinator.gather(soon(0.0))

    gathering = with_coordinator(tmp_path, 2, scene)
    assert [(each.peer, each.kind, each.node_rank) for each in gathering.troubles] == [("127.0.0.1", kind, rank)]
    assert not list(tmp_path.iterdir())


def test_a_capture_that_the_disk_does_not_take_is_said(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Gathering:
        with pytest.raises(WireError):
            await arrive(port, hello(1))
        return await coordinator.gather(soon(0.2))

    (trouble,) = with_coordinator(tmp_path / "absent", 2, scene).troubles
    assert "No such file" in trouble.detail


def test_a_caller_that_stays_silent_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> float:
        _, writer = await connected(port)
        run = asyncio.ensure_future(whole_run(port, hello(1)))
        await coordinator.mesh(
            {peer.hello.id: {} for peer in (await coordinator.gather(soon()), coordinator.peers)[1]}, soon()
        )
        started = time.monotonic()
        await coordinator.leave({peer.hello.id: Leave(0) for peer in coordinator.peers}, soon(20))
        await run
        writer.transport.abort()
        return time.monotonic() - started

    assert with_coordinator(tmp_path, 2, scene) < 5


def test_too_few_descriptors_for_all_nodes_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "room_for", lambda wanted: 5)

    async def scene(coordinator: Coordinator, port: int) -> Gathering:
        return await coordinator.gather(soon(0.0))

    (trouble,) = with_coordinator(tmp_path, 100, scene).troubles
    assert (trouble.kind, "ulimit -n" in trouble.detail) == ("descriptors", True)


def test_a_port_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        async def scene(coordinator: Coordinator, port: int) -> Any:
            return await Coordinator(TOKEN, 2, tmp_path, soon()).listen(other.getsockname()[1])

        with pytest.raises(CannotListen, match="another process listens") as caught:
            with_coordinator(tmp_path, 2, scene)
    assert caught.value.kind == "taken"


def test_calls_by_ipv6_and_ipv4_reach_the_same_port(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Any:
        tasks = [await wire.connect(address, port, TOKEN, soon()) for address in ("127.0.0.1", "::1")]
        for task in tasks:
            task.close()
        return len(tasks)

    assert with_coordinator(tmp_path, 2, scene) == 2


def test_the_clocks_of_one_machine_agree(tmp_path: Path) -> None:
    async def scene(coordinator: Coordinator, port: int) -> Any:
        worker = Worker(await wire.connect("127.0.0.1", port, TOKEN, soon()))
        await worker.join(hello(1), "{}\n", soon())
        seen = await worker.clock(soon())
        worker.close()
        return seen

    seen = with_coordinator(tmp_path, 2, scene)
    assert 0 < seen.rtt_s < 2
    assert abs(seen.offset_s) <= seen.rtt_s


def test_a_clock_that_is_ahead_has_a_positive_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "time", _Late())

    async def scene(coordinator: Coordinator, port: int) -> Any:
        worker = Worker(await wire.connect("127.0.0.1", port, TOKEN, soon()))
        await worker.join(hello(1), "{}\n", soon())
        seen = await worker.clock(soon())
        worker.close()
        return seen

    assert 100 < with_coordinator(tmp_path, 2, scene).offset_s < 140


class _Late:
    """The clock of a coordinator that is two minutes behind."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time() -> float:
        return time.time() - 120


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["hello", "capture", "more", "ping", "ready", "samples", "refused", "go"])
hellos = st.fixed_dictionaries({"id": st.just("x"), "node_rank": st.integers(-1, 9), "name": st.text(max_size=5)})
whole = st.sampled_from([{"capture": "\ud800", "more": False}, {"capture": "{}", "more": True}, {"ping": 1}])
said = st.lists(st.dictionaries(keys, json_values | hellos, max_size=3) | whole, max_size=5)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.builds(lambda who: {"hello": who}, hellos) | st.just({}), rest=said)
def test_no_message_of_a_member_breaks_the_hub(
    first: dict[str, Any], rest: list[dict[str, Any]], tmp_path: Path
) -> None:
    failures: list[dict[str, Any]] = []

    async def scene(coordinator: Coordinator, port: int) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        task = await wire.connect("127.0.0.1", port, TOKEN, soon())
        with contextlib.suppress(WireError):
            for message in (first, *rest):
                await task.send(message, soon())
        task.close()
        await until(lambda: not coordinator._admission.callers)
        return await whole_and_well(coordinator, port)

    for left in tmp_path.iterdir():
        left.unlink()
    assert with_coordinator(tmp_path, 4, scene)
    assert not failures


async def whole_and_well(coordinator: Coordinator, port: int) -> bool:
    worker = await arrive(port, hello(3, "well"))
    await until(lambda: any(peer.hello.name == "well" and peer.settled for peer in coordinator.peers))
    worker.close()
    json.dumps([trouble.detail for trouble in (await coordinator.gather(soon(0.0))).troubles])
    return True
