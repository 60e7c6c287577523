"""Nodes at addresses of their own on the loopback: all find one another, and each trouble has its own name."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ncclprobe import wire
from ncclprobe.checks.launch.mesh import tries
from ncclprobe.cluster.mesh import walk as module
from ncclprobe.cluster.mesh.listeners import CHUNK_BYTES, FILLER, Listeners, MeshInterface, reserve_listeners
from ncclprobe.cluster.mesh.plan import plan_mesh
from ncclprobe.cluster.mesh.walk import walk
from ncclprobe.facts.reach import MeshListener, Paths
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import replace
from tests.awaited import awaited
from tests.each_row import each_row, some

TOKEN = b"the token of this run"
GREETING = b"ncclprobe/2 token " + b"a" * 32 + b"\n"


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def address(node: int, role: int = 0) -> str:
    return f"127.77.{role}.{node + 1}"


def listening(me: int, *interfaces: MeshInterface) -> Listeners:
    listeners = reserve_listeners(interfaces, me, f"n{me}")
    listeners.listen(TOKEN)
    return listeners


@asynccontextmanager
async def mesh(nodes: int, roles: int = 1) -> AsyncIterator[list[Listeners]]:
    places = [[MeshInterface(f"nccl{k}", f"eth{k}", address(me, k)) for k in range(roles)] for me in range(nodes)]
    opened = [listening(me, *interfaces) for me, interfaces in enumerate(places)]
    try:
        yield opened
    finally:
        for listeners in opened:
            listeners.close()
        await asyncio.sleep(0.05)


async def walk_all(opened: Sequence[Listeners], seconds: float = 30.0) -> list[Paths]:
    plans = plan_mesh({listeners.me: listeners.addresses for listeners in opened})
    return list(await asyncio.gather(*(walk(plans[it.me], it, soon(seconds)) for it in opened)))


def outcomes(seen: Paths) -> dict[int, tuple[str, int]]:
    return {row.to: (row.outcome, row.tries) for row in seen.rows}


@each_row(("nodes", "roles"), [(2, 1), (3, 2), (8, 1)])
@awaited
async def test_healthy_nodes_see_one_another_at_the_first_try(nodes: int, roles: int) -> None:
    async with mesh(nodes, roles) as opened:
        every = await walk_all(opened)
    for seen in some(every):
        assert len(seen.rows) == (nodes - 1) * roles
        assert {(row.outcome, row.tries, row.detail) for row in seen.rows} == {("ok", 1, "")}
        assert all(row.rtt_s and row.rtt_s < 1 and row.path_mtu and row.segments for row in seen.rows)
        assert {row.source for row in seen.rows} == {address(seen.me, role) for role in range(roles)}
        for role in range(roles):
            streamed = [row for row in seen.rows if row.role == f"nccl{role}" and row.rate_gbps]
            assert len(streamed) == min(2, nodes - 1)


@awaited
async def test_a_node_that_closed_its_door_is_refused_twice_by_all_and_is_the_culprit() -> None:
    async with mesh(4) as opened:
        plans = plan_mesh({listeners.me: listeners.addresses for listeners in opened})
        opened[2].close()
        every = [await walk(plans[it.me], it, soon()) for it in opened if it.me != 2]
    assert all(outcomes(seen)[2] == ("refused", 2) for seen in every)
    assert {(seen.me, row.to) for seen in every for row in seen.rows if row.outcome != "ok"} == {(0, 2), (1, 2), (3, 2)}
    assert all(sum(row.rate_gbps is not None for row in seen.rows) == 2 for seen in every)


async def against(
    listener: MeshListener, own: Listeners, seconds: float = 20.0, token: bytes = TOKEN, thorough: bool = False
) -> Paths:
    plan = plan_mesh({own.me: own.addresses, 1: [listener]})[own.me]
    return await walk(replace(plan, thorough=thorough), replace(own, key=token), soon(seconds))


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def beside(handler: Handler, seconds: float = 20.0, thorough: bool = False) -> Paths:
    """What node 0 sees of a node 1 that is `handler`."""
    server = await asyncio.start_server(handler, address(1), 0)
    port = server.sockets[0].getsockname()[1]
    async with mesh(1) as (own,):
        seen = await against(MeshListener("nccl0", "eth0", address(1), port), own, seconds, thorough=thorough)
    server.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.05)
    return seen


def saying(text: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    return handle


@each_row(
    ("text", "outcome"), [(b"SSH-2.0-OpenSSH_9.2\r\n", "foreign"), (b"\xff" * 100_000, "foreign"), (b"", "silent")]
)
def test_what_is_no_node_of_ours_is_said_and_given_up(text: bytes, outcome: str) -> None:
    assert outcomes(asyncio.run(beside(saying(text)))) == {1: (outcome, 2)}


def test_our_own_deadline_is_late_and_nobodys_fault() -> None:
    seen = asyncio.run(beside(saying(b""), seconds=0.3))
    assert outcomes(seen) == {1: ("late", 1)}
    assert tries(Every({"node 0": seen})) == []
    assert outcomes(asyncio.run(beside(saying(b""), seconds=-1))) == {1: ("late", 0)}


HANGS = "hangs"


def odd(answers: Mapping[str, Any], until: int = 99) -> Handler:
    """Node 1, which up to its connection number `until` answers some questions otherwise, or hangs at them."""
    calls = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        other, nbytes, streams = answers if calls <= until else {}, 0, False
        with contextlib.suppress(wire.WireError), contextlib.closing(writer.transport):
            talk = await wire.accept(reader, writer, TOKEN, soon())
            await talk.send({"node": 1, "name": "n1"}, soon())
            while True:
                asked = await talk.receive(soon())
                what = "echo" if "echo" in asked else asked["do"]
                if other.get(what) == HANGS:
                    await asyncio.sleep(5)
                elif what == "give":
                    await talk.send_filler(FILLER, soon())
                    continue
                elif what == "take":
                    await talk.discard(CHUNK_BYTES, soon())
                    nbytes += CHUNK_BYTES
                    if streams:
                        continue
                elif what == "stream":
                    nbytes, streams = 0, True
                said = {"echo": asked, "stream": {"go": True}, "done": {"nbytes": nbytes, "seconds": 0.5}}
                await talk.send(other.get(what, said.get(what, {})), soon())

    return handle


@each_row(
    ("answers", "until", "thorough", "expected", "rate"),
    [
        ({}, 99, False, ("ok", 1, "", None), True),
        ({"echo": {"echo": 9}}, 99, False, ("garbled", 2, "does not answer the question it was sent", None), False),
        ({"echo": HANGS}, 99, False, ("silent", 2, "said nothing", None), False),
        ({"take": HANGS}, 99, False, ("stalled-out", 2, "said nothing", None), False),
        ({"take": HANGS}, 1, False, ("ok", 2, "", None), True),
        ({"take": HANGS}, 1, True, ("stalled-out", 1, "said nothing", 1280), False),  # small packets pass
        ({"take": HANGS}, 99, True, ("ok", 1, "said nothing", None), False),  # neither do: it is slow, a stream tells
        ({"give": HANGS}, 99, False, ("stalled-back", 2, "", None), False),
        ({"done": {"nbytes": 1, "seconds": 0.5}}, 99, False, ("ok", 1, "", None), False),
        ({"done": {"nbytes": 8 << 20, "seconds": 0.0}}, 99, False, ("ok", 1, "", None), False),
        ({"stream": HANGS}, 99, False, ("ok", 1, "", None), False),
        ({"done": HANGS}, 99, False, ("ok", 1, "", None), True),  # what was acknowledged by then is its rate
        ({"done": HANGS}, 99, True, ("ok", 1, "", None), False),  # unless all of it had to arrive
    ],
)
def test_what_a_node_does_not_answer_as_it_should_is_told_apart(
    answers: dict[str, Any], until: int, thorough: bool, expected: tuple[str, int, str, int | None], rate: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("TRY_S", "LARGE_S", "STREAM_S", "WHOLE_S", "_SIZE_S", "_QUEUE_S"):
        monkeypatch.setattr(module, name, 0.6)
    (row,) = asyncio.run(beside(odd(answers, until), 10.0, thorough)).rows
    outcome, number, words, passes = expected
    assert (row.outcome, row.tries, row.passes, words in row.detail) == (outcome, number, passes, True), row
    assert (row.rate_gbps is not None) is rate, row
    if row.rate_gbps and "done" not in answers:  # whole chunks in half a second, at most 8 MiB
        chunks = row.rate_gbps * 0.5e9 / 8 / CHUNK_BYTES
        assert chunks == pytest.approx(round(chunks))
        assert chunks <= 32
    assert not row.refused


@awaited
async def test_another_node_another_token_or_an_own_address_that_is_gone_is_told_apart() -> None:
    async with mesh(3) as opened:
        own = replace(opened[0], addresses=(opened[0].addresses[0]._replace(address="192.0.2.1"),))
        (other,) = (await against(opened[2].addresses[0], opened[0])).rows
        (stranger,) = (await against(opened[1].addresses[0], opened[0], token=b"another")).rows
        (gone,) = (await against(opened[1].addresses[0], own)).rows
        (six,) = (await against(MeshListener("nccl0", "eth0", "fd00::1", 4), opened[0])).rows
    assert (other.outcome, other.tries, other.detail) == ("wrong-peer", 2, "node 2, n2, answers there")
    assert (stranger.outcome, stranger.tries) == ("stranger", 2)
    assert (gone.outcome, gone.tries) == ("address", 2)
    assert (six.outcome, six.detail) == ("unreachable", "from 127.77.0.1: IPv4 and IPv6 cannot connect")


@awaited
async def test_an_interface_whose_address_is_not_there_is_said_and_the_others_open() -> None:
    roles = [MeshInterface("nccl0", "eth0", "192.0.2.1"), MeshInterface("default", "lo", "127.0.0.1")]
    own = listening(0, *roles)
    seen = await walk(plan_mesh({0: own.addresses})[0], own, soon())
    own.close()
    assert [listener.role for listener in seen.listeners] == ["default"]
    assert seen.unopened == {"nccl0": "Cannot assign requested address"}


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@awaited
async def test_ipv6_is_walked_like_ipv4() -> None:
    opened = [listening(me, MeshInterface("nccl0", "lo", "::1")) for me in range(2)]
    every = await walk_all(opened)
    for listeners in opened:
        listeners.close()
    await asyncio.sleep(0.05)
    assert [outcomes(seen) for seen in every] == [{1: ("ok", 1)}, {0: ("ok", 1)}]


async def caller(listener: MeshListener) -> wire.Wire:
    """One who wants to stream."""
    connection = await wire.connect(listener.address, listener.port, TOKEN, soon())
    await connection.receive(soon())
    await connection.send({"do": "stream"}, soon())
    return connection


@awaited
async def test_a_door_takes_one_stream_at_a_time_and_hangs_up_as_it_closes() -> None:
    async with mesh(1) as (listeners,):
        first, second = [await caller(listeners.addresses[0]) for _ in range(2)]
        assert await first.receive(soon()) == {"go": True}
        with pytest.raises(wire.WireError, match="said nothing"):
            await second.receive(soon(0.2))
        await first.send({"do": "take"}, soon())
        await first.send_filler(FILLER, soon())
        await first.send({"do": "done"}, soon())
        assert (await first.receive(soon()))["nbytes"] == CHUNK_BYTES
        third = await caller(listeners.addresses[0])  # the second's turn ends with its conversation
        second.close()
        assert await third.receive(soon()) == {"go": True}
        listeners.close()
        with pytest.raises(wire.WireError) as caught:
            await third.receive(soon())
        assert caught.value.kind == "reset"
        for connection in (first, third):
            connection.close()


@each_row("text", [b"", b"GET / HTTP/1.0\r\n\r\n", GREETING + b"\xff" * 500])
@awaited
async def test_callers_that_say_nothing_or_nonsense_keep_nobody_out(text: bytes) -> None:
    async with mesh(2) as opened:
        listener = opened[1].addresses[0]
        crowd = [await asyncio.open_connection(listener.address, listener.port) for _ in range(50)]
        for _, writer in crowd:
            writer.write(text)
        every = await walk_all(opened)
        for _, writer in crowd:
            writer.transport.abort()
    assert [outcomes(seen) for seen in every] == [{1: ("ok", 1)}, {0: ("ok", 1)}]


@awaited
async def test_a_stream_that_never_gets_its_turn_ends_with_the_run_and_is_not_slow() -> None:
    async with mesh(2) as opened:
        held = await caller(opened[1].addresses[0])
        assert await held.receive(soon()) == {"go": True}
        (row,) = (await against(opened[1].addresses[0], opened[0], seconds=1.0)).rows
        held.close()
    assert (row.outcome, row.rate_gbps) == ("ok", None)
