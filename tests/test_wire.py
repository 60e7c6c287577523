"""Conversations between two processes of a run: what is ours gets through, what is not is named, nothing hangs."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe import wire
from ncclprobe.wire import Wire, WireError
from tests.awaited import awaited
from tests.each_row import each_row

TOKEN = b"the token of this run"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


@asynccontextmanager
async def served(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    held: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await handler(reader, writer)

    server = await asyncio.start_server(handle, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()
        await asyncio.sleep(0.01)


def ours(then: Callable[[Wire], Awaitable[None]], troubles: list[WireError] | None = None) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            talk = await wire.accept(reader, writer, TOKEN, soon())
            await then(talk)
        except WireError as error:
            if troubles is not None:
                troubles.append(error)
        finally:
            writer.close()

    return handle


def saying(text: bytes, stay_s: float = 0.0) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(text)
            await asyncio.sleep(stay_s)
        writer.close()

    return handle


async def echo(talk: Wire) -> None:
    while True:
        await talk.send(await talk.receive(soon()), soon())


async def trouble(port: int, token: bytes = TOKEN, host: str = "127.0.0.1", **details: Any) -> WireError:
    with pytest.raises(WireError) as caught:
        await wire.connect(host, port, token, soon(1.0), **details)
    return caught.value


@each_row("host", ["127.0.0.1", "::1"])
@awaited
async def test_what_is_said_is_heard_in_order(host: str) -> None:
    async with served(ours(echo), host) as port:
        talk = await wire.connect(host, port, TOKEN, soon())
        for message in ({}, {"n": 1, "text": "\N{SNOWMAN}" * 100_000}, {"deep": [[{}]]}):
            await talk.send(message, soon())
            assert await talk.receive(soon()) == message
        talk.close()


@awaited
async def test_another_token_is_a_stranger_to_both_sides_and_ones_own_words_are_not_taken_from_the_other() -> None:
    troubles: list[WireError] = []
    async with served(ours(echo, troubles)) as port:
        assert (await trouble(port, b"another")).kind == "stranger"
        await asyncio.sleep(0.05)
    assert [error.kind for error in troubles] in (["stranger"], ["reset"])
    async with served(forged(b"{}", 1, speaker=b"caller")) as port:
        assert (await trouble(port)).kind == "stranger"


GREETING = b"ncclprobe/2 token " + b"0" * 32 + b"\n"


@each_row(
    ("handler", "kind", "words"),
    [
        (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "foreign", "HTTP/1.1 400"),
        (saying(b"ncclprobe/1 " + b"0" * 39), "foreign", "ncclprobe/1"),
        (saying(b"ncclprobe/2 token short"), "foreign", "short"),
        (saying(b"\x16\x03\x01\x00\x1b[31m" * 10), "foreign", r"\x16"),
        (saying(b""), "hung-up", "closed the connection without a message"),
        (saying(b"", stay_s=3.0), "silent", "said nothing"),
        (saying(GREETING, stay_s=3.0), "silent", "said nothing"),
        (saying(GREETING + b"\xff" * 100, stay_s=3.0), "too-big", "announced"),
        (saying(GREETING + b"\0" * 100, stay_s=3.0), "stranger", "token"),
    ],
)
@awaited
async def test_whoever_answers_is_told_apart(handler: Handler, kind: str, words: str) -> None:
    async with served(handler) as port:
        error = await trouble(port)
        assert (error.kind, words in str(error)) == (kind, True), error
        assert str(error).isprintable()


def test_a_port_where_nobody_listens_one_that_never_answers_and_a_foreign_own_address_are_told_apart() -> None:
    with contextlib.ExitStack() as stack:
        held, full, *crowd = [stack.enter_context(socket.socket()) for _ in range(6)]
        held.bind(("127.0.0.1", 0))
        assert asyncio.run(trouble(held.getsockname()[1])).kind == "refused"
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # a queue without a place answers nobody
        for each in crowd:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert asyncio.run(trouble(full.getsockname()[1])).kind == "filtered"
        for options in ((), wire.segments_of(536)):
            away = trouble(full.getsockname()[1], source="192.0.2.1", options=options)
            assert asyncio.run(away).kind == "address"


STOPPED = """
import asyncio, time
from ncclprobe import wire
async def handle(r, w):
    await wire.accept(r, w, b"the token of this run", time.monotonic() + 20)
    await asyncio.sleep(20)
async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(20)
asyncio.run(main())
"""


@pytest.mark.slow
def test_a_peer_that_stops_within_a_conversation_is_silent_at_the_deadline() -> None:
    async def run(port: int) -> None:
        talk = await wire.connect("127.0.0.1", port, TOKEN, soon())
        child.send_signal(signal.SIGSTOP)

        async def talk_on() -> None:
            while True:
                await talk.send({"x": os.urandom(200_000).hex()}, soon(0.5))

        for waits in (talk_on(), talk.receive(soon(0.2))):
            with pytest.raises(WireError) as caught:
                await waits
            assert caught.value.kind == "silent"
        talk.close()

    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            asyncio.run(run(int(child.stdout.readline())))
        finally:
            child.kill()


def forged(message: bytes, number: int, speaker: bytes = b"answerer") -> Handler:
    """A peer that knows the token, and sends `message` deflated and signed as frame `number`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = (await reader.readline())[len(b"ncclprobe/2 ") : -1]
        nonce = b"token " + b"0" * 32
        writer.write(b"ncclprobe/2 " + nonce + b"\n")
        for index, body in ((0, zlib.compress(b"{}")), (number, zlib.compress(message))):
            signed = speaker + theirs + nonce + index.to_bytes(8, "big") + body
            mac = wire.hmac.digest(TOKEN, signed, hashlib.sha256)
            writer.write(len(body).to_bytes(4, "big") + mac + body)
        await asyncio.sleep(1)
        writer.close()

    return handle


async def heard_of(handler: Handler, limit: int = 1000) -> dict[str, Any] | str:
    async with served(handler) as port:
        talk = await wire.connect("127.0.0.1", port, TOKEN, soon())
        try:
            return await talk.receive(soon(1.0), limit)
        except WireError as error:
            return error.kind
        finally:
            talk.close()


@each_row(
    ("message", "number", "heard"),
    [
        (b'{"a": 1}', 1, {"a": 1}),
        (b'{"a": 1}', 0, "garbled"),  # a frame that was heard before, or out of its order
        (b"[1]", 1, "garbled"),
        (b"not json", 1, "garbled"),
        (b'{"a": NaN}', 1, "garbled"),
        (b"[" * 100_000, 1, "too-big"),
        (b'{"a":' * 150, 1, "garbled"),
        (json.dumps({"a": "0" * 10_000_000}).encode(), 1, "too-big"),
    ],
)
def test_only_whole_objects_within_their_bounds_are_taken(message: bytes, number: int, heard: Any) -> None:
    assert asyncio.run(heard_of(forged(message, number))) == heard


@given(st.lists(st.binary(max_size=200), max_size=4), st.booleans())
@awaited
async def test_no_bytes_end_in_anything_but_a_named_trouble(pieces: list[bytes], greet: bool) -> None:
    troubles: list[WireError] = []
    async with served(ours(echo, troubles)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError):
            writer.write((b"ncclprobe/2 token " + b"a" * 32 + b"\n") * greet + b"".join(pieces))
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 5)
        writer.close()
        for _ in range(100):
            if troubles:
                break
            await asyncio.sleep(0.01)
    assert troubles
