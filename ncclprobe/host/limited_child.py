"""A child process that parses hostile bytes, with limits on memory and time.

Each child runs one service. Requests and answers are bytes, prefixed with their length. A child that is late, dies or
exceeds its limit is killed, and the next request starts a new one.
"""

import contextlib
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ncclprobe.host.command import abandon, as_host_error
from ncclprobe.host.own_child import start_own
from ncclprobe.model.errors import Failed, HostError, TimedOut

LENGTH = struct.Struct("<Q")
MAX_ANSWER_BYTES = 64 << 20


def framed(data: bytes) -> bytes:
    """Prefix `data` with its length."""
    return LENGTH.pack(len(data)) + data


class LimitedChild:
    """Sends requests to `serve` of a module, which runs in a child that the first request starts."""

    def __init__(self, module: str, most_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._module, self._most_bytes = module, most_bytes
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LimitedChild":
        """Return itself; the first request starts the child."""
        return self

    def __exit__(self, *ended: object) -> None:
        """Kill the child."""
        self.close()

    @property
    def started(self) -> bool:
        """Return whether a child was started and is not known to have exited."""
        return self._process is not None

    def ask(self, request: bytes, patience_s: float) -> bytes:
        """Return the answer to `request`.

        Raises TimedOut if the child takes longer, Failed if the request killed it or the answer is too long.
        """
        deadline = time.monotonic() + patience_s
        self._process = self._process or _start(self._module)
        try:
            _send(self._process, framed(request), deadline)
            (length,) = LENGTH.unpack(_receive(self._process, LENGTH.size, deadline))
            if length > self._most_bytes:
                raise Failed(f"the answer is longer than {self._most_bytes >> 20} MiB")
            return _receive(self._process, length, deadline)
        except BaseException:  # Ctrl-C included: a late answer must not meet another request
            self.close()
            raise

    def close(self) -> None:
        """Kill the child, if there is one."""
        if self._process:
            abandon(self._process)
            self._process = None


def _start(module: str) -> "subprocess.Popen[bytes]":
    try:
        process = start_own(f"{module}:serve", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise as_host_error(error, sys.executable) from None
    assert process.stdin
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _send(process: "subprocess.Popen[bytes]", data: bytes, deadline: float) -> None:
    assert process.stdin
    pipe, rest = process.stdin.fileno(), memoryview(data)
    while rest:
        if not select.select([], [pipe], [], max(0.0, deadline - time.monotonic()))[1]:
            raise TimedOut("not taken in time")
        try:
            rest = rest[os.write(pipe, rest[: 1 << 20]) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise _death(process) from None


def _receive(process: "subprocess.Popen[bytes]", size: int, deadline: float) -> bytes:
    assert process.stdout
    pipe, got = process.stdout.fileno(), bytearray()
    while len(got) < size:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimedOut("reading it took too long")
        chunk = os.read(pipe, min(1 << 20, size - len(got)))
        if not chunk:
            raise _death(process)
        got += chunk
    return bytes(got)


def _death(process: "subprocess.Popen[bytes]") -> HostError:
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0.5)
        if code < 0:
            return Failed(f"the process that was asked was ended by {signal.Signals(-code).name}")
        return Failed(f"the process that was asked ended with code {code}")
    return Failed("the process that was asked does not answer")


def serve_limited(work: Callable[[bytes], bytes], max_bytes: int, memory_bytes: int) -> None:
    """Answer requests on standard input until it closes; runs only in the child.

    Its address space is limited to `memory_bytes`; it cannot write files or start processes. Once it serves, any audit
    event of Python (an import, an opened file, a call of ``exec``) ends it.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    work(b"")  # whatever is imported at the first use, is imported now
    sys.addaudithook(_refuse)
    for request in requests(asked, max_bytes):
        answer = work(request)
        del request
        answers.write(LENGTH.pack(len(answer)))
        answers.write(answer)
        answers.flush()


def requests(stream: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Yield the requests until the stream ends or one is too long."""
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        if length > max_bytes:
            return
        yield stream.read(length)


def _refuse(event: str, arguments: object) -> None:
    """Exit on any audit event except creating an array."""
    if event != "array.__new__":
        os._exit(86)
