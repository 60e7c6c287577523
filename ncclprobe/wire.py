"""Exchange framed, bounded, authenticated JSON between two processes of one run; each wait has a deadline.

The caller sends ``ncclprobe/1 NONCE``, the answerer the same with a nonce of its own, 16 random bytes each. All that
follows is frames: length (4 bytes, big-endian), HMAC-SHA256, body (a JSON object, deflated). The HMAC is keyed with the
run's token and covers the speaker, both nonces and the number of the frame, so that no frame can be forged, replayed,
reordered or sent back. Each side proves the token before the other trusts a message. Nothing is encrypted.

A deadline is a time.monotonic(). Sizes are limited before anything is allocated, decompressed or parsed.
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
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, TypeVar

from ncclprobe.errors import NcclprobeError

T = TypeVar("T")
Kind = Literal[
    "refused",
    "filtered",
    "unreachable",
    "address",
    "denied",
    "reset",
    "silent",
    "foreign",
    "stranger",
    "too-big",
    "garbled",
]

MAX_MESSAGE_BYTES = 64 << 20
"""The largest JSON text of one message: a capture of a node with 8 GPUs is below 1 MiB."""

SMALL_SEGMENT = 536
"""Bytes of TCP payload that every IPv4 network carries in one packet (RFC 9293, 3.7.1)."""

_GREETING = b"ncclprobe/1 "
_NONCE_BYTES = 16
_GREETING_BYTES = len(_GREETING) + 2 * _NONCE_BYTES + 1
_MAC_BYTES = 32
_INT_DIGITS = 18  # fits 64 bits, as do all counters of the kernel that we pass on
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_STRANGERS_PATIENCE_S = 1.0  # contract, Manners: leave within a second where the answer is not ours
_BY_ERRNO: dict[int, Kind] = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "filtered",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EADDRNOTAVAIL: "address",
    errno.EINVAL: "address",  # a link-local address without its scope
    errno.EPERM: "denied",
    errno.EACCES: "denied",
}


class WireError(NcclprobeError):
    """A connection that failed. ``kind`` says in which way, the message in words, and quotes what was received.

    refused: no process listens, or a firewall says so. filtered: no answer at all to connecting. unreachable: no route,
    or a router says so. address: this side's own address is unusable. denied: this host's own firewall or policy.
    reset: connected, then closed by the other side. silent: connected, then nothing until the deadline. foreign:
    something else answers. stranger: another run of ncclprobe, with another token. too-big, garbled: the message is
    none of ours.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


class Wire:
    """One authenticated connection. Not for two tasks at once in one direction."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: tuple[bytes, bytes], token: bytes
    ) -> None:
        self._reader, self._writer, self._token = reader, writer, token
        self._out, self._in = keys
        self._sent = self._received = 0

    def option(self, level: int, name: int, nbytes: int) -> bytes | None:
        """Return getsockopt(2), the kernel's view of the connection; None where the kernel does not say."""
        try:
            value: bytes = self._writer.get_extra_info("socket").getsockopt(level, name, nbytes)
        except (OSError, AttributeError):
            return None
        return value

    async def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Send `message`. Raises WireError: reset; silent where the other side takes nothing more."""
        body = zlib.compress(json.dumps(message, allow_nan=False).encode(), 1)
        mac = self._mac(self._out, self._sent, body)
        self._sent += 1
        self._writer.write(len(body).to_bytes(4, "big") + mac + body)
        await _by(deadline, self._writer.drain(), "took nothing more")

    async def receive(self, deadline: float, limit: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
        """Return the next message, of at most `limit` bytes of JSON. Raises WireError."""
        head = await _by(deadline, self._reader.readexactly(4 + _MAC_BYTES), "said nothing")
        nbytes = int.from_bytes(head[:4], "big")
        if nbytes > limit:
            raise WireError("too-big", f"announced {nbytes} bytes; at most {limit} are taken")
        body = await _by(deadline, self._reader.readexactly(nbytes), f"stopped within a message of {nbytes} bytes")
        if not hmac.compare_digest(head[4:], self._mac(self._in, self._received, body)):
            if self._received:
                raise WireError("garbled", "sent a message with a wrong signature")
            raise WireError("stranger", "has another token: it is of another run, or was given another NCCLPROBE_TOKEN")
        self._received += 1
        return _message(body, limit)

    async def send_filler(self, filler: bytes, deadline: float) -> None:
        """Send meaningless bytes outside any frame; the other side must :meth:`discard` as many."""
        self._writer.write(filler)
        await _by(deadline, self._writer.drain(), "took nothing more")

    async def discard(self, nbytes: int, deadline: float) -> None:
        """Receive and discard `nbytes` of filler."""
        while nbytes > 0:
            taken = await _by(deadline, self._reader.read(min(nbytes, 1 << 20)), f"stopped {nbytes} bytes early")
            if not taken:
                raise WireError("reset", "hung up within a stream")
            nbytes -= len(taken)

    def close(self) -> None:
        """Hang up. Never waits."""
        transport = self._writer.transport
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            (transport.abort if transport.get_write_buffer_size() else transport.close)()

    def _mac(self, speaker: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(self._token, speaker + number.to_bytes(8, "big") + body, hashlib.sha256)


async def connect(
    address: str, port: int, token: bytes, deadline: float, source: str = "", *, small: bool = False
) -> Wire:
    """Connect to `address`, from `source` if given, and authenticate. Raises WireError of any kind.

    `small`: in packets of SMALL_SEGMENT bytes both ways, which pass where larger ones are lost.
    """
    return await hail(*await _call(address, port, deadline, source, small), token, deadline)


async def hail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, deadline: float) -> Wire:
    """Authenticate as the caller, over an open connection. On failure close it and raise WireError."""
    try:
        nonce = secrets.token_hex(_NONCE_BYTES).encode()
        writer.write(_GREETING + nonce + b"\n")
        patience = min(deadline, time.monotonic() + _STRANGERS_PATIENCE_S)
        theirs = await _greeting(reader, patience)
        wire = _wire(reader, writer, token, nonce + theirs, calling=True)
        await wire.send({}, deadline)
        await wire.receive(deadline, limit=64)
    except BaseException:  # cancelled as well: what was opened goes with it, and the error goes on
        writer.transport.abort()
        raise
    return wire


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, deadline: float) -> Wire:
    """Authenticate as the answerer, over an accepted connection. On failure close it and raise WireError."""
    try:
        theirs = await _greeting(reader, deadline)
        nonce = secrets.token_hex(_NONCE_BYTES).encode()
        writer.write(_GREETING + nonce + b"\n")
        wire = _wire(reader, writer, token, theirs + nonce, calling=False)
        await wire.send({}, deadline)
        await wire.receive(deadline, limit=64)
    except BaseException:  # cancelled as well: what was opened goes with it, and the error goes on
        writer.transport.abort()
        raise
    return wire


async def _call(
    address: str, port: int, deadline: float, source: str, small: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async def calling() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not small:
            return await asyncio.open_connection(address, port, local_addr=(source, 0) if source else None)
        family, *_, to = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
        sock = socket.socket(family)
        try:
            sock.setblocking(False)
            keep_small(sock)
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


def keep_small(sock: socket.socket) -> None:
    """Make both sides of what `sock` connects to, or accepts, send small packets: TCP_MAXSEG, tcp(7)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)


async def _greeting(reader: asyncio.StreamReader, deadline: float) -> bytes:
    """Return the nonce of the other side's first line."""
    line = b""
    while len(line) < _GREETING_BYTES and line[: len(_GREETING)] == _GREETING[: len(line)]:
        more = await _by(deadline, reader.read(_GREETING_BYTES - len(line)), "said nothing")
        if not more:
            break
        line += more
    if match := re.fullmatch(_GREETING + rb"([0-9a-f]{%d})\n" % (2 * _NONCE_BYTES), line):
        return match[1]
    if not line:
        raise WireError("reset", "hung up without a word")
    raise WireError("foreign", f"is not ncclprobe: it says {line.decode(errors='replace')!a}")


def _wire(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes, nonces: bytes, *, calling: bool
) -> Wire:
    writer.transport.set_write_buffer_limits(0)  # what is sent has left this process, and may be hung up on
    with contextlib.suppress(OSError, AttributeError):  # a unix socket has no such option
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    caller, answerer = b"caller" + nonces, b"answerer" + nonces
    return Wire(reader, writer, (caller, answerer) if calling else (answerer, caller), token)


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
        raise WireError("garbled", f"sent {len(body)} bytes that are no message") from None
    if not isinstance(message, dict):
        raise WireError("garbled", "sent a message that is no JSON object")
    return message


def _no_number(text: str) -> None:
    raise ValueError(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # 1e999
        raise ValueError(text)
    return number


def _int(text: str) -> int:
    if len(text) > _INT_DIGITS:
        raise ValueError(text)
    return int(text)


async def _by(deadline: float, work: Awaitable[T], trouble: str) -> T:
    """Return what `work` returns. Raises WireError: silent at the deadline, reset where the other side hung up."""
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
