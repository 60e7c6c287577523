"""Exchange framed, bounded, authenticated JSON between two processes of one run; every wait has a deadline.

The caller sends ``ncclprobe/2 token NONCE``, the answerer the same with a nonce of its own, 16 random bytes each. All
that follows is frames: length (4 bytes, big-endian), HMAC-SHA256, body (a JSON object, deflated). The HMAC is keyed
with
the run's key and covers the speaker, both nonces and the number of the frame, so that no frame can be forged, replayed,
reordered or sent back. The caller proves the key with its first frame, and the answerer signs nothing before: a
stranger
that connects learns a random number. ``munge`` in place of ``token``: after the greetings the caller sends a credential
(length, text) that holds the connection's key, and that only the same user on a node of the cluster can open. Only that
key is encrypted.

A deadline is on time.monotonic(). Sizes are limited before anything is allocated, decompressed or parsed.
"""

import asyncio
import contextlib
import errno
import hashlib
import hmac
import json
import math
import re
import secrets
import socket
import time
import zlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from ncclprobe.model import bounds
from ncclprobe.model.errors import NcclprobeError

T = TypeVar("T")
Kind = Literal[
    "refused",
    "filtered",
    "unreachable",
    "address",
    "denied",
    "reset",
    "hung-up",
    "late",
    "silent",
    "foreign",
    "stranger",
    "too-big",
    "garbled",
]


SMALL_SEGMENT = 536
"""Bytes of TCP payload that every IPv4 network carries in one packet (RFC 9293, 3.7.1)."""

SocketOptions = Sequence[tuple[int, int, int]]
"""(level, name, value) for setsockopt(2)."""
SECRET_BYTES = 32
"""Length of a key that one side sends to the other: see :meth:`Wire.seal`."""

_GREETING = b"ncclprobe/2 "
_BY_TOKEN, _BY_CREDENTIAL = b"token", b"munge"
_NONCE_BYTES = 16
_GREETING_BYTES = len(_GREETING) + len(_BY_TOKEN) + 1 + 2 * _NONCE_BYTES + 1
_MAC_BYTES = 32
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
STRANGERS_PATIENCE_S = 1.0
"""Wait for a greeting if something else may listen: leave within a second (docs/threat-model.md)."""
_BY_ERRNO: dict[int, Kind] = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EADDRNOTAVAIL: "address",
    errno.EINVAL: "address",  # a link-local address without its scope
    errno.EPERM: "denied",
    errno.EACCES: "denied",
}


class WireError(NcclprobeError):
    """A failed connection. ``kind`` is how it failed; the message describes it, and quotes what was received.

    refused: no process listens, or a firewall rejects. filtered: no answer at all to connecting. unreachable: no route,
    or
    a router reports so. address: this side's own address is unusable. denied: this host's own firewall or policy.
    reset:
    closed by the other side in the middle of a conversation. late: it left because this side had not answered in time.
    hung-up: closed before it greeted, as a process with too many callers does. silent: connected, then nothing until
    the
    deadline. foreign: something else answers. stranger: another run of ncclprobe, with another token. too-big, garbled:
    the
    message is not one of ours.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


class Credentials(Protocol):
    """Key agreement with another process of the same user, instead of a shared token."""

    async def offer(self, deadline: float) -> tuple[bytes, bytes]:
        """Return a single-use credential, and the key in it. Raises WireError."""

    async def key(self, credential: bytes, deadline: float) -> bytes:
        """Return the key in the caller's `credential`. Raises WireError (stranger) if it belongs to another user."""


Key = bytes | Credentials


class Wire:
    """One authenticated connection. Not for two concurrent tasks in one direction."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, speakers: tuple[bytes, bytes], key: bytes
    ) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._out, self._in = speakers
        self._sent = self._received = 0

    def option(self, level: int, name: int, nbytes: int) -> bytes | None:
        """Return getsockopt(2), the kernel's view of the connection; None if the kernel does not show it."""
        try:
            value: bytes = self._writer.get_extra_info("socket").getsockopt(level, name, nbytes)
        except (OSError, AttributeError):
            return None
        return value

    @property
    def peer(self) -> str:
        """The other side's address; empty if the connection no longer has one."""
        name = self._writer.get_extra_info("peername")
        return str(name[0]) if name else ""

    async def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Send `message`. Raises WireError: reset; silent if the other side accepts no more."""
        body = zlib.compress(json.dumps(message, allow_nan=False).encode(), 1)
        mac = self._mac(self._out, self._sent, body)
        self._sent += 1
        self._writer.write(len(body).to_bytes(4, "big") + mac + body)
        await _await_until(deadline, self._writer.drain(), "took nothing more")

    async def receive(self, deadline: float, limit: int = bounds.MESSAGE_BYTES) -> dict[str, Any]:
        """Return the next message, of at most `limit` bytes of JSON. Raises WireError."""
        head = await _await_until(deadline, self._reader.readexactly(4 + _MAC_BYTES), "said nothing")
        nbytes = int.from_bytes(head[:4], "big")
        if nbytes > limit:
            raise WireError("too-big", f"announced {nbytes} bytes; at most {limit} are taken")
        body = await _await_until(
            deadline, self._reader.readexactly(nbytes), f"stopped within a message of {nbytes} bytes"
        )
        if not hmac.compare_digest(head[4:], self._mac(self._in, self._received, body)):
            if self._received:
                raise WireError("garbled", "sent a message with a wrong signature")
            raise WireError("stranger", "has another token: it belongs to another run, or has another NCCLPROBE_TOKEN")
        self._received += 1
        return _message(body, limit)

    async def send_filler(self, filler: bytes, deadline: float) -> None:
        """Send meaningless bytes outside any frame; the other side must :meth:`discard` as many."""
        self._writer.write(filler)
        await _await_until(deadline, self._writer.drain(), "took nothing more")

    async def discard(self, nbytes: int, deadline: float) -> None:
        """Receive and discard `nbytes` of filler."""
        while nbytes > 0:
            taken = await _await_until(
                deadline, self._reader.read(min(nbytes, 1 << 20)), f"stopped {nbytes} bytes early"
            )
            if not taken:
                raise WireError("reset", "hung up within a stream")
            nbytes -= len(taken)

    def seal(self, secret: bytes) -> bytes:
        """Encrypt or decrypt `secret` (SECRET_BYTES) with this connection's key.

        One pad per connection: never use it for a second secret.
        """
        pad = hmac.digest(self._key, b"seal" + min(self._in, self._out), hashlib.sha256)
        return bytes(one ^ other for one, other in zip(secret, pad, strict=True))

    def close(self) -> None:
        """Hang up. Never waits."""
        transport = self._writer.transport
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            (transport.abort if transport.get_write_buffer_size() else transport.close)()

    def _mac(self, speaker: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(self._key, speaker + number.to_bytes(8, "big") + body, hashlib.sha256)


async def connect(
    address: str,
    port: int,
    key: Key,
    deadline: float,
    source: str = "",
    *,
    options: SocketOptions = (),
    patience_s: float = STRANGERS_PATIENCE_S,
) -> Wire:
    """Connect to `address`, from `source` if given, and authenticate. Raises WireError of any kind.

    `options` are set before the first packet: with :func:`segments_of` SMALL_SEGMENT, packets pass both ways even if
    larger
    ones are lost. `patience_s` is for the greeting: our own process on a busy node may take longer than a stranger is
    allowed.
    """
    return await hail(*await _call(address, port, deadline, source, options), key, deadline, patience_s)


async def hail(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    key: Key,
    deadline: float,
    patience_s: float = STRANGERS_PATIENCE_S,
) -> Wire:
    """Authenticate as the caller, over an open connection. On failure close it and raise WireError."""
    try:
        mine = _greet(writer, key)
        theirs = await _answer(reader, min(deadline, time.monotonic() + patience_s))
        _refuse_other_way(mine, theirs)
        if not isinstance(key, bytes):
            credential, key = await key.offer(deadline)
            writer.write(len(credential).to_bytes(4, "big") + credential)
        wire = _wire(reader, writer, key, mine + theirs, calling=True)
        await wire.send({}, deadline)
        await wire.receive(deadline, limit=64)
    except BaseException:  # cancelled as well: what was opened goes with it, and the error goes on
        writer.transport.abort()
        raise
    return wire


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: Key, deadline: float) -> Wire:
    """Authenticate as the answerer, over an accepted connection. On failure close it and raise WireError."""
    try:
        theirs = await _receive_greeting(reader, deadline)
        mine = _greet(writer, key)
        _refuse_other_way(mine, theirs)
        if not isinstance(key, bytes):
            key = await key.key(await _credential(reader, deadline), deadline)
        wire = _wire(reader, writer, key, theirs + mine, calling=False)
        await wire.receive(deadline, limit=64)
        await wire.send({}, deadline)
    except WireError as error:
        if error.kind == "stranger":
            writer.write(bytes(4 + _MAC_BYTES))  # a frame that no key signs: the caller is to know that it is one
            writer.transport.close()
        else:
            writer.transport.abort()
        raise
    except BaseException:  # cancelled as well: what was opened goes with it, and the error goes on
        writer.transport.abort()
        raise
    return wire


def _greet(writer: asyncio.StreamWriter, key: Key) -> bytes:
    """Send the greeting; return the part that is signed later: this side's kind of proof, and its nonce."""
    way = _BY_TOKEN if isinstance(key, bytes) else _BY_CREDENTIAL
    said = way + b" " + secrets.token_hex(_NONCE_BYTES).encode()
    writer.write(_GREETING + said + b"\n")
    return said


def _refuse_other_way(mine: bytes, theirs: bytes) -> None:
    ways = [said.partition(b" ")[0].decode() for said in (mine, theirs)]
    if ways[0] != ways[1]:
        raise WireError("stranger", f"authenticates with a {ways[1]}, but this node with a {ways[0]}")


async def _answer(reader: asyncio.StreamReader, deadline: float) -> bytes:
    """Return the answerer's greeting; a connection that ends before it does not identify the other side."""
    try:
        return await _receive_greeting(reader, deadline)
    except WireError as error:
        if error.kind == "reset":
            raise WireError("hung-up", str(error)) from None
        raise


async def _credential(reader: asyncio.StreamReader, deadline: float) -> bytes:
    head = await _await_until(deadline, reader.readexactly(4), "said nothing")
    nbytes = int.from_bytes(head, "big")
    if nbytes > bounds.CREDENTIAL_BYTES:
        raise WireError("too-big", f"announced a credential of {nbytes} bytes")
    return await _await_until(deadline, reader.readexactly(nbytes), "stopped within its credential")


async def _call(
    address: str, port: int, deadline: float, source: str, options: SocketOptions
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async def calling() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not options:
            return await asyncio.open_connection(address, port, local_addr=(source, 0) if source else None)
        family, *_, to = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
        sock = socket.socket(family)
        try:
            sock.setblocking(False)
            for option in options:
                sock.setsockopt(*option)
            if source:
                sock.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(sock, to)
        except BaseException:  # cancelled as well: what was opened goes with it, and the error goes on
            sock.close()
            raise
        return await asyncio.open_connection(sock=sock)

    try:
        return await asyncio.wait_for(calling(), _left(deadline))
    except (TimeoutError, asyncio.TimeoutError):
        raise WireError("filtered", f"no answer from {address} port {port}") from None
    except OSError as error:
        kind = _BY_ERRNO.get(error.errno or 0, "address" if source and not error.errno else "unreachable")
        raise WireError(kind, f"{address} port {port}: {error.strerror or error}") from None


def segments_of(nbytes: int) -> SocketOptions:
    """Return options that limit the TCP segments of a socket, and of its peers, to `nbytes`.

    tcp(7), TCP_MAXSEG: headers come on top; TCP options such as time stamps take their room from it.
    """
    return ((socket.IPPROTO_TCP, socket.TCP_MAXSEG, nbytes),)


async def _receive_greeting(reader: asyncio.StreamReader, deadline: float) -> bytes:
    """Receive the other side's greeting; return its kind of proof, and its nonce."""
    line = b""
    while len(line) < _GREETING_BYTES and line[: len(_GREETING)] == _GREETING[: len(line)]:
        more = await _await_until(deadline, reader.read(_GREETING_BYTES - len(line)), "said nothing")
        if not more:
            break
        line += more
    if match := re.fullmatch(_GREETING + rb"((?:token|munge) [0-9a-f]{%d})\n" % (2 * _NONCE_BYTES), line):
        return match[1]
    if not line:
        raise WireError("reset", "closed the connection without a message")
    raise WireError("foreign", f"is not ncclprobe; it sent {line.decode(errors='replace')!a}")


def _wire(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, greetings: bytes, *, calling: bool
) -> Wire:
    writer.transport.set_write_buffer_limits(0)  # what is sent has left this process, and may be hung up on
    with contextlib.suppress(OSError, AttributeError):  # a unix socket has no such option
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    caller, answerer = b"caller" + greetings, b"answerer" + greetings
    return Wire(reader, writer, (caller, answerer) if calling else (answerer, caller), key)


def _message(body: bytes, limit: int) -> dict[str, Any]:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(body, limit)
        if inflater.unconsumed_tail:
            raise WireError("too-big", f"sent a message of more than {limit} bytes")
        message = json.loads(text, parse_constant=_no_number, parse_float=_float, parse_int=_int)
        if _SURROGATE.search(text):
            json.dumps(message, ensure_ascii=False).encode()  # half a pair could not be written into any report
    except (zlib.error, ValueError, RecursionError):
        raise WireError("garbled", f"sent {len(body)} bytes that are not a message") from None
    if not isinstance(message, dict):
        raise WireError("garbled", "sent a message that is not a JSON object")
    return message


def _no_number(text: str) -> None:
    raise ValueError(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # 1e999
        raise ValueError(text)
    return number


def _int(text: str) -> int:
    if len(text) > bounds.WHOLE_DIGITS:
        raise ValueError(text)
    return int(text)


async def _await_until(deadline: float, work: Awaitable[T], trouble: str) -> T:
    """Await `work` until `deadline`. Raises WireError: silent at the deadline, reset if the other side hung up."""
    try:
        return await asyncio.wait_for(work, _left(deadline))
    except (TimeoutError, asyncio.TimeoutError):
        raise WireError("silent", trouble) from None
    except asyncio.IncompleteReadError as error:
        raise WireError("reset", "hung up" + (" within a message" if error.partial else "")) from None
    except OSError as error:
        raise WireError("reset", f"hung up: {error.strerror or error}") from None


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
