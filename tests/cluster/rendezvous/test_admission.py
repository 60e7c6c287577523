"""Callers that have not proved the key hold a place only until it is needed, and never keep a node out."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rendezvous_lab import until

from ncclprobe.cluster.admission import Admission, Caller
from tests.awaited import awaited


@asynccontextmanager
async def admission(room: int = 20, quota: int = 8, prove: bytes = b"secret") -> AsyncIterator[tuple[Admission, int]]:
    """An admission whose callers are proved as soon as they send `prove`, and then get an echo of it."""

    async def serve(caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(100) == prove:
            made.proved(caller)
            writer.write(prove)
            await reader.read()

    made = Admission(serve, room, quota)
    sock = socket.create_server(("127.0.0.1", 0), backlog=512)
    sock.setblocking(False)
    made.listen(sock)
    try:
        yield made, sock.getsockname()[1]
    finally:
        made.close()
        await made.gone()


async def call(port: int, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def prove(port: int, source: str = "127.0.0.1") -> asyncio.StreamWriter:
    reader, writer = await call(port, source)
    writer.write(b"secret")
    assert await asyncio.wait_for(reader.read(100), 10.0) == b"secret"
    return writer


async def come_and_go(port: int, source: str = "127.0.0.1") -> None:
    node = await prove(port, source)
    node.transport.abort()


def leave(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.transport.abort()


@awaited
async def test_an_address_over_its_quota_loses_its_oldest_caller_and_is_named_and_a_node_gets_in() -> None:
    async with admission() as (made, port):
        crowd = [await call(port, "127.0.0.9") for _ in range(8)]
        await asyncio.sleep(0.05)
        assert (made.callers, made.floods) == (8, ())
        crowd += [await call(port, "127.0.0.9") for _ in range(22)]
        await until(lambda: sum(flood.connections for flood in made.floods) == 22)
        assert await crowd[0][0].read() == b""
        assert (made.floods[0].address, made.callers) == ("127.0.0.9", 8)
        await come_and_go(port)
        await come_and_go(port, "127.0.0.9")  # at the address of the flood too
        leave(*(writer for _, writer in crowd))


@awaited
async def test_many_addresses_fill_the_room_and_the_oldest_of_all_makes_place() -> None:
    async with admission() as (made, port):
        crowd = [await call(port, f"127.0.0.{number}") for number in range(2, 42)]
        await until(lambda: len(made.floods) == 8)
        assert made.floods[0].connections == 1
        await come_and_go(port)
        leave(*(writer for _, writer in crowd))


@awaited
async def test_who_proved_the_key_is_never_hung_up_on() -> None:
    async with admission() as (made, port):
        nodes = [await prove(port, f"127.0.1.{number}") for number in range(1, 21)]
        reader, writer = await call(port, "127.0.0.9")  # the room is full of nodes
        assert await reader.read() == b""
        assert made.callers == 20
        leave(*nodes, writer)


@awaited
async def test_callers_that_left_while_they_waited_cost_nothing() -> None:
    async with admission() as (made, port):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)):
                pass
        await asyncio.sleep(0.05)
        assert (made.callers, made.floods) == (0, ())


@awaited
async def test_a_process_without_descriptors_waits_and_goes_on() -> None:
    async with admission() as (made, port):
        (sock,) = made._sockets
        refused = [OSError(errno.EMFILE, "too many open files")] * 3

        class Short:
            def __getattr__(self, name: str) -> object:
                return getattr(sock, name)

            def accept(self) -> object:
                if refused:
                    raise refused.pop()
                return sock.accept()

        short = Short()
        asyncio.get_running_loop().remove_reader(sock)
        made._sockets = {short}  # type: ignore[arg-type]
        asyncio.get_running_loop().add_reader(sock, made._accept, short)
        await come_and_go(port)
        assert not refused


@awaited
async def test_stopping_to_listen_keeps_who_is_there() -> None:
    async with admission() as (made, port):
        node = await prove(port)
        made.stop()
        with pytest.raises(OSError, match=r"refused|Connect"):
            await call(port)
        assert made.callers == 1
        node.transport.abort()
