"""A child process that calls the verbs library for one end of a rail, so that a driver that hangs holds no one else.

The library is loaded there alone. A child that is late is killed with its group and not waited for: what it called last
stands in memory that both share.
"""

import asyncio
import contextlib
import mmap
import os
import signal
import socket
import subprocess
from typing import Literal

import msgspec

from ncclprobe import bounds
from ncclprobe.host.command import abandon
from ncclprobe.host.limited_child import LENGTH, framed
from ncclprobe.host.own_child import start_own
from ncclprobe.probes.verbs.library import VerbsError
from ncclprobe.probes.verbs.messages import BROKEN, PLACE_BYTES, Answer, Request

START_S = 90.0
"""For starting: where Python lies on a file server, and all nodes begin together, it takes its time."""
GRACE_S = 3.0
"""Beyond the time that the child itself watches: until then it can say more than that it was late."""


class VerbsChild:
    """Does one request after another. Raises VerbsError: hangs, died; then it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._place: mmap.mmap | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def start(self, patience_s: float) -> None:
        """Start the process, where it has not been, and wait until it answers. Raises VerbsError."""
        if self._process or self._ended:
            return
        self._streams = await asyncio.open_unix_connection(sock=self._popen())
        try:
            await asyncio.wait_for(_answer(self._streams[0]), patience_s)
        except (asyncio.TimeoutError, TimeoutError):
            self.close()
            why = f"a Python process did not start within {patience_s:.0f} s, so the NIC was not asked"
            raise VerbsError("late", why) from None
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            raise self._lost("died") from None

    def _popen(self) -> socket.socket:
        """Start the process; return this side of the socket. Raises VerbsError."""
        ours, theirs = socket.socketpair()
        descriptor = os.memfd_create("ncclprobe-rail")
        os.ftruncate(descriptor, PLACE_BYTES)
        self._place = mmap.mmap(descriptor, PLACE_BYTES)
        serve, number = "ncclprobe.probes.verbs.server:serve", str(descriptor)
        try:
            self._process = start_own(serve, number, stdin=theirs.fileno(), pass_fds=(descriptor,))
        except OSError as error:
            ours.close()
            raise VerbsError("died", f"no process could be started: {error.strerror}") from None
        finally:
            theirs.close()
            os.close(descriptor)
        return ours

    async def ask(self, request: Request) -> Answer:
        """Return what came of `request`, within its seconds and a few more."""
        if not self._streams:
            raise VerbsError("died", "the process that calls the verbs library has ended before")
        reader, writer = self._streams
        try:
            writer.write(framed(msgspec.json.encode(request)))
            return await asyncio.wait_for(_answer(reader), request.seconds + GRACE_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise self._lost("hangs") from None
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            raise self._lost("died") from None
        except BaseException:  # a late answer must not meet another request
            self.close()
            raise

    def stop(self) -> None:
        """End the step that is under way: its answer comes soon, with what there is."""
        if self._streams:
            self._streams[1].write(framed(msgspec.json.encode(Request(do="stop"))))

    def close(self) -> None:
        """Kill the process with its group, and wait no longer than dying takes."""
        if self._streams:
            self._streams[1].transport.abort()
            self._streams = None
        self._ended = True
        if self._process:
            abandon(self._process)
            self._process = None  # its number may be another's now

    def _lost(self, kind: Literal["hangs", "died"]) -> VerbsError:
        assert self._process
        assert self._place
        call = self._place[:].rstrip(b"\0").decode(errors="replace") or "its start"
        ended = _ending(self._process) if kind == "died" else ""
        self.close()
        if ended == f"exit code {BROKEN}":
            return VerbsError("channel", f"broke after {call}: a bug of ncclprobe, not of this machine", call=call)
        if kind == "died":
            return VerbsError("died", f"the process ended at {call}: {ended}", call=call)
        return VerbsError("hangs", f"{call} does not return: the NIC's driver may be wedged", call=call)


async def _answer(reader: asyncio.StreamReader) -> Answer:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > bounds.RAIL_MESSAGE_BYTES:
        raise ConnectionError(f"an answer of {length} bytes")
    return msgspec.json.decode(await reader.readexactly(length), type=Answer)


def _ending(process: "subprocess.Popen[bytes]") -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0.5)
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return "it cannot end"
