"""Conversations between two processes of a run: what is ours gets through, what is not is named, nothing hangs."""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import socket
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
from ncclprobe.model import bounds
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


def ours(
    then: Callable[[Wire], Awaitable[None]], troubles: list[WireError] | None = None, key: wire.Key = TOKEN
) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            talk = await wire.accept(reader, writer, key, soon())
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


async def heard(troubles: list[WireError], words: str = "") -> None:
    """Wait until the other side has had a trouble that begins with these words."""
    end_s = soon()
    while not any(str(each).startswith(words) for each in troubles):
        assert time.monotonic() < end_s, troubles
        await asyncio.sleep(0.01)


async def trouble(port: int, token: wire.Key = TOKEN, host: str = "127.0.0.1", **details: Any) -> WireError:
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
        (saying(b"ncclprobe/2 token short"), "foreign", "is not ncclprobe; it sent 'ncclprobe/2 token short'"),
        (saying(GREETING.replace(b"0", b"g")), "foreign", "gggg"),
        (saying(GREETING.replace(b"token", b"other")), "foreign", "other"),
        (saying(GREETING.replace(b"token", b"munge")), "stranger", "with a munge, but this node with a token"),
        (saying(GREETING + b"\0\0\0\x40" + b"\0" * 40, stay_s=0.2), "reset", "hung up within a message"),
        (saying(GREETING + b"\0\0\0\x41" + b"\0" * 40, stay_s=3.0), "too-big", "announced 65 bytes; at most 64 "),
        (saying(GREETING, stay_s=0.2), "reset", "hung up"),
        (saying(GREETING + b"\0\0\0\x09" + b"\0" * 40, stay_s=3.0), "silent", "within a message of 9 bytes"),
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


ERRNOS = {
    errno.ECONNREFUSED: "refused", errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable", errno.EADDRNOTAVAIL: "address", errno.EINVAL: "address", errno.EPERM: "denied",
    errno.EACCES: "denied", errno.EIO: "unreachable",
}  # fmt: skip


@each_row(
    ("error", "source", "kind", "why"),
    [
        *((OSError(number, f"no {number}"), "", kind, f"no {number}") for number, kind in ERRNOS.items()),
        (OSError(errno.EIO, "no"), "10.0.0.1", "unreachable", "no"),
        (OSError(errno.ETIMEDOUT, "no"), "", "filtered", ""),
        (OSError("no such name"), "10.0.0.1", "address", "no such name"),
        (OSError("no such name"), "", "unreachable", "no such name"),
    ],
)
def test_how_the_kernel_refuses_to_connect_says_who_did(
    error: OSError, source: str, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(asyncio, "open_connection", refused)
    found = asyncio.run(trouble(7, host="n1", source=source))
    assert (found.kind, str(found)) == (kind, f"n1 port 7: {why}" if why else "no answer from n1 port 7")


class Ticket:
    """A credential that only its own user can open."""

    def __init__(self, sealed: bytes = b"sealed", key: bytes = b"k" * 32) -> None:
        self.sealed, self.own = sealed, key

    async def offer(self, deadline: float) -> tuple[bytes, bytes]:
        return self.sealed, self.own

    async def key(self, credential: bytes, deadline: float) -> bytes:
        if credential != b"sealed":
            raise WireError("stranger", "it is of another user")
        return self.own


@awaited
async def test_a_credential_holds_the_key_and_another_users_or_a_token_is_a_stranger() -> None:
    troubles: list[WireError] = []
    async with served(ours(echo, troubles, Ticket())) as port:
        talk = await wire.connect("127.0.0.1", port, Ticket(), soon())
        await talk.send({"a": 1}, soon())
        assert await talk.receive(soon()) == {"a": 1}
        talk.close()
        long = f"announced a credential of {bounds.CREDENTIAL_BYTES + 1} bytes"
        other = "authenticates with a token, but this node with a munge"
        for key, kind, said in (
            (Ticket(b"other"), "stranger", "it is of another user"),
            (Ticket(b"x" * bounds.CREDENTIAL_BYTES), "stranger", "it is of another user"),
            (Ticket(b"x" * (bounds.CREDENTIAL_BYTES + 1)), "reset", long),
            (Ticket(key=b"l" * 32), "stranger", "has another token: it belongs to another run, or has another NCCLPR"),
            (TOKEN, "stranger", other),
        ):
            assert (await trouble(port, key)).kind == kind, said
            await heard(troubles, said)


@awaited
async def test_a_secret_is_sealed_for_the_other_side_and_filler_is_no_message() -> None:
    secret = bytes(range(wire.SECRET_BYTES))
    taken: list[object] = []

    async def take(talk: Wire) -> None:
        await talk.discard(3_000_000, soon())
        taken.extend([await talk.receive(soon()), talk.peer])
        await talk.send({"sealed": talk.seal(secret).hex()}, soon())
        await talk.discard(10, soon())

    troubles: list[WireError] = []
    async with served(ours(take, troubles)) as port:
        talk = await wire.connect("127.0.0.1", port, TOKEN, soon(), options=wire.segments_of(wire.SMALL_SEGMENT))
        await talk.send_filler(b"x" * 3_000_000, soon())
        await talk.send({"a": 1}, soon())
        sealed = bytes.fromhex((await talk.receive(soon()))["sealed"])
        assert (talk.seal(sealed), sealed != secret) == (secret, True)
        assert (taken, talk.peer) == ([{"a": 1}, "127.0.0.1"], "127.0.0.1")
        segment = talk.option(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 4)
        assert segment is not None
        assert 400 < int.from_bytes(segment, sys.byteorder) <= wire.SMALL_SEGMENT
        assert (talk.option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 4) or b"\0")[0] > 0
        assert talk.option(socket.IPPROTO_TCP, 9999, 4) is None
        with pytest.raises(WireError, match=r"^stopped 5 bytes early$"):
            await talk.discard(5, soon(0.1))
        await talk.send_filler(b"x" * 9, soon())
        talk.close()
        await heard(troubles, "hung up within a stream")
    assert [each.kind for each in troubles] == ["reset"]


@awaited
async def test_a_peer_that_stops_within_a_conversation_is_silent_at_the_deadline() -> None:
    async def stops(_: Wire) -> None:
        await asyncio.sleep(5)

    async with served(ours(stops)) as port:
        talk = await wire.connect("127.0.0.1", port, TOKEN, soon())
        for work, words in (
            (lambda: talk.receive(soon(0.1)), "said nothing"),
            (lambda: talk.send({"x": os.urandom(8_000_000).hex()}, soon(0.3)), "took nothing more"),
            (lambda: talk.send_filler(b"x" * 8_000_000, soon(0.2)), "took nothing more"),
        ):
            with pytest.raises(WireError) as caught:
                await work()
            assert (caught.value.kind, str(caught.value)) == ("silent", words)
        talk.close()


def forged(message: bytes, number: int, speaker: bytes = b"answerer") -> Handler:
    """A peer that knows the token, and sends `message`, deflated if it is a text, signed as frame `number`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = (await reader.readline())[len(b"ncclprobe/2 ") : -1]
        nonce = b"token " + b"0" * 32
        writer.write(b"ncclprobe/2 " + nonce + b"\n")
        for index, body in (
            (0, zlib.compress(b"{}")),
            (number, message if message[0] == 255 else zlib.compress(message)),
        ):
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
            return f"{error.kind}: {error}"
        finally:
            talk.close()


NO_MESSAGE = "garbled: sent {} bytes that are not a message"
TOO_BIG = "too-big: sent a message of more than 1000 bytes"


@each_row(
    ("message", "number", "heard"),
    [
        (b'{"a": 1}', 1, {"a": 1}),
        # a frame that was heard before, or out of its order
        (b'{"a": 1}', 0, "garbled: sent a message with a wrong signature"),
        (b"[1]", 1, "garbled: sent a message that is not a JSON object"), (b"\xff" * 9, 1, NO_MESSAGE.format(9)),
        *(
            (text, 1, NO_MESSAGE.format(len(zlib.compress(text))))
            for text in (
                b"not json", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a":' * 150, b'{"a": "\\ud800"}',
                b'{"a": "\\uDFFF"}', b'{"a": %s}' % (b"9" * (bounds.WHOLE_DIGITS + 1)),
            )
        ),
        (b'{"a": %s}' % (b"9" * bounds.WHOLE_DIGITS), 1, {"a": int("9" * bounds.WHOLE_DIGITS)}),
        (b'{"a": 1.5e3, "b": "\\ud83d\\ude00"}', 1, {"a": 1500.0, "b": "\U0001f600"}),
        (json.dumps({"a": "0" * 991}).encode(), 1, {"a": "0" * 991}),
        (json.dumps({"a": "0" * 992}).encode(), 1, TOO_BIG),
        (b"[" * 100_000, 1, TOO_BIG),
        (json.dumps({"a": "0" * 10_000_000}).encode(), 1, "too-big: announced 9750 bytes; at most 1000 are taken"),
    ],
)  # fmt: skip
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
        await heard(troubles)
