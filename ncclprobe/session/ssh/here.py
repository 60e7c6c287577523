"""The caller's side of ``--hosts``: one ssh per host, its hello, its order, and its outcome.

ssh is the system's, with the user's own configuration; it may not prompt (BatchMode). It only starts processes, which
rendezvous as under any launcher. One thread watches all of them. A host that fails never delays the others.
"""

import contextlib
import os
import selectors
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from ncclprobe import __version__
from ncclprobe.facts.reach import HostFailure
from ncclprobe.host.command import abandon, start
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.units import printable
from ncclprobe.session.ssh.there import MARK, ORDER_BYTES, Hello, Order, Outcome

_HELLO_SHARE = 0.25
"""Share of a command's time that a host may take to answer; its ssh may use half of that to connect."""
_LOOK_S = 0.1
_WORDS = 300
_NOT_CONNECTED = 255  # ssh(1), EXIT STATUS
_ENTRY = "ncclprobe.session.ssh.there"


class Call:
    """One host. `hello`: set once it has answered; `outcome`: once its order is done; `failure`: if it failed."""

    def __init__(self, host: str, selector: selectors.BaseSelector) -> None:
        self.host = host
        self.hello: Hello | None = None
        self.outcome: Outcome | None = None
        self.failure: HostFailure | None = None
        self.ordered = False
        self.began = 0.0
        self._selector = selector
        self._process: subprocess.Popen[bytes] | None = None
        self._out, self._err = bytearray(), bytearray()
        self._heard = self._complained = 0
        self._last: deque[str] = deque(maxlen=2)

    @property
    def open(self) -> bool:
        """Return whether something is still expected: a hello, or the outcome of an order."""
        done = self.outcome if self.ordered else self.hello
        return self._process is not None and done is None and self.failure is None

    @property
    def present(self) -> bool:
        """Return whether the host has answered and not failed."""
        return self.hello is not None and self.failure is None

    def start(self, python: str, hello_s: float) -> None:
        """Start ssh. Raises UsageError if it is not installed."""
        self.began = time.monotonic()
        try:
            pipe = subprocess.PIPE
            self._process = start(command(self.host, python, hello_s), stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise UsageError(f"--hosts: ssh cannot be started: {error.strerror}") from None
        for stream, take in ((self._process.stdout, self._take_out), (self._process.stderr, self._take_err)):
            assert stream
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (self, take))

    def order(self, order: Order) -> None:
        """Send the host its order. Raises UsageError if it is too large."""
        text = msgspec.json.encode(order) + b"\n"
        if len(text) > ORDER_BYTES:
            raise UsageError(f"--hosts: {len(text)} bytes of options and files; at most {ORDER_BYTES} are passed on")
        assert self._process
        assert self._process.stdin
        self.ordered = True
        with contextlib.suppress(BrokenPipeError):  # then its end is seen
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def fail(self, kind: str, words: str = "") -> None:
        """Give up on this host, with the last words of it or of ssh."""
        said = "; ".join(each for each in (words, *self._last) if each)
        self.failure = HostFailure(self.host, kind, said[-_WORDS:] or "it printed nothing")
        self.close()

    def close(self) -> None:
        """End ssh, and with it the processes on the host: their standard input ends."""
        if self._process is None:
            return
        for stream in (self._process.stdout, self._process.stderr):
            with contextlib.suppress(KeyError, ValueError):  # it has ended, or was closed before
                self._selector.unregister(stream)  # type: ignore[arg-type]
        abandon(self._process)

    @property
    def over(self) -> bool:
        """Return whether ssh has exited although something was expected."""
        return self.open and self._process is not None and self._process.poll() is not None

    def give_up(self) -> None:
        """Report how ssh exited, once all its output was read."""
        code = self._process.returncode if self._process else None
        kind = "lost" if self.ordered else "ssh" if code == _NOT_CONNECTED else "absent"
        self.fail(kind, "" if self._last and kind != "lost" else f"exit code {code}")

    def _take_out(self, text: bytes) -> str:
        """Read the host's output; only lines with our mark count."""
        self._out += text
        self._heard += len(text)
        most = bounds.REPORT_BYTES + bounds.KEPT_BYTES if self.ordered else bounds.SSH_LINES_BYTES
        if self._heard > most:
            self.fail("lost" if self.ordered else "absent", f"it printed more than {most >> 20} MiB")
        while b"\n" in text and b"\n" in self._out and self.failure is None:
            line, _, rest = bytes(self._out).partition(b"\n")
            self._out, text = bytearray(rest), rest
            _, mark, message = line.partition(MARK)
            if mark:
                self._understand(message)
        return ""

    def _understand(self, message: bytes) -> None:
        try:
            if self.ordered:
                self.outcome = msgspec.json.decode(message, type=Outcome)
            else:
                self.hello = msgspec.json.decode(message, type=Hello)
        except msgspec.DecodeError as error:
            self.fail("lost" if self.ordered else "absent", f"its answer is not understood: {error}")
            return
        if self.hello and self.hello.version != __version__:
            self._last.clear()
            self.fail("version", f"it has ncclprobe {self.hello.version}, and this is {__version__}")

    def _take_err(self, text: bytes) -> str:
        """Keep the last words of ssh or of the host, and return the complete lines among them."""
        self._complained += len(text)
        self._err += text
        lines, _, rest = bytes(self._err).rpartition(b"\n")
        self._err = bytearray(rest[-_WORDS:])
        found = [printable(each.decode(errors="replace").strip()) for each in lines.split(b"\n")]
        self._last += [each for each in found if each]
        return "\n".join(found) if self._complained <= bounds.SSH_LINES_BYTES else ""


def command(host: str, python: str, hello_s: float) -> list[str]:
    """Return the command line of the only connection to `host`. It does not leave a shared connection behind."""
    alive = ("ServerAliveInterval=10", "ServerAliveCountMax=3")
    options = ("BatchMode=yes", f"ConnectTimeout={max(int(hello_s / 2), 1)}", "ControlMaster=no", *alive)
    settings = [word for each in options for word in ("-o", each)]
    return ["ssh", "-T", *settings, "--", host, f"exec {shlex.quote(python)} -m {_ENTRY}"]


class Calls:
    """All hosts, in order. `say` prints a line that the first present host writes on standard error."""

    def __init__(self, hosts: Sequence[str], python: str, say: Callable[[str], None]) -> None:
        self._python, self._say = python, say
        self._selector = selectors.DefaultSelector()
        self.all = [Call(host, self._selector) for host in hosts]

    def __enter__(self) -> "Calls":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for call in self.all:
            call.close()
        self._selector.close()

    def greet(self, timeout_s: float, progress: Callable[[str], None]) -> list[Call]:
        """Call every host, a limited number at a time, and return those that answer. Raises UsageError without ssh.

        `timeout_s`: of the whole command.
        """
        hello_s = _HELLO_SHARE * timeout_s
        waiting, called = deque(self.all), list[Call]()
        while waiting or any(call.open for call in called):
            while waiting and sum(call.open for call in called) < bounds.SSH_AT_ONCE:
                called.append(waiting.popleft())
                called[-1].start(self._python, hello_s)
            self._turn()
            for call in called:
                if call.open and time.monotonic() - call.began > hello_s:
                    call.fail("silent", f"no answer within {hello_s:g} s, a quarter of --timeout")
            progress(f"calling the hosts: {sum(call.present for call in called)} of {len(self.all)} answered")
        return [call for call in self.all if call.present]

    def outcomes(self, calls: Sequence[Call], deadline: float) -> None:
        """Wait until all `calls` have completed their orders, or failed."""
        while any(call.open for call in calls) and time.monotonic() < deadline:
            self._turn(calls[0])
        for call in calls:
            if call.open:
                call.fail("lost", "it had not ended when --timeout ran out")

    def _turn(self, loud: Call | None = None) -> None:
        """Read available output. A host is given up if its ssh had already exited, and nothing was left to read."""
        over = [each for each in self.all if each.over]
        ready = self._selector.select(_LOOK_S)
        for key, _ in ready:
            call, take = key.data
            if call.failure:  # since this turn began
                continue
            text = os.read(key.fd, 1 << 16)
            if not text:
                self._selector.unregister(key.fileobj)
            elif (lines := take(text)) and call is loud:
                self._say(lines)
        heard = {key.data[0] for key, _ in ready}
        for each in over:
            if each not in heard and each.open:
                each.give_up()
