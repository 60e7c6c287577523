"""``python -m ncclprobe.session.ssh.there``: one process on each host of ``--hosts``, started over ssh.

It prints a Hello, reads an Order from standard input, executes it, and prints an Outcome. Each of these is one line of
JSON. MARK begins its lines, because login shells may print others. The token is in the Order and not on a command line.
The caller keeps standard input open as long as it lives: when it closes, everything that was started here is killed.
"""

import contextlib
import os
import random
import select
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from ncclprobe import __version__, signals
from ncclprobe.host import files
from ncclprobe.host.command import abandon
from ncclprobe.host.own_child import start_own
from ncclprobe.host.scratch import scratch
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import Struct, field

MARK = b"ncclprobe-host "
ORDER_BYTES = 60 << 10
"""Size of an order: less than a pipe holds (pipe(7)), so that writing one never blocks."""
_PORTS = range(20_000, 30_000)  # below the ports that the kernel gives to connections
_TRIES = 50
_LOOK_S = 0.1
_REPORT, _KEPT = "report.json", "kept"


class Hello(Struct, frozen=True):
    """A host's first message. `address`: where the caller reached it; `port`: a free one. Unknown: empty, 0."""

    version: str
    gpus: int = 0
    port: int = 0
    address: str = ""


class Order(Struct, frozen=True):
    """What a host starts: the `words` of a command line, once for each of `ranks`, which are sets of variables.

    `files` are written before, by name; a word ``{name}`` becomes the path of one. `report`: the first process writes a
    report, which is returned. `keep`: captures are returned too.
    """

    words: tuple[str, ...]
    ranks: tuple[dict[str, str], ...]
    files: dict[str, str] = field(default_factory=dict)
    report: bool = False
    keep: bool = False


class Outcome(Struct, frozen=True):
    """The result of an order: exit codes, the report, and captures by file name; `left`: how many were too large."""

    codes: tuple[int, ...]
    report: str = ""
    kept: dict[str, str] = field(default_factory=dict)
    left: int = 0


def main() -> int:
    """Greet, obey, report; return the exit code, which carries no meaning: the Outcome does."""
    _print(hello())
    text = _line()
    if not text:  # the caller has no use for this host, or is gone
        return 0
    order = msgspec.json.decode(text, type=Order)
    with scratch() as folder:
        os.chdir(folder)  # it has no ncclprobe.toml
        codes = _run(order, folder)
        if codes is not None:
            kept, left = read_captures(folder / _KEPT) if order.keep else ({}, 0)
            _print(Outcome(codes, _text(folder / _REPORT), kept, left))
    return 0


def hello() -> Hello:
    """Return what this host says of itself before it is told what to do."""
    from ncclprobe.host.live import LiveHost
    from ncclprobe.session.ranks.identity import devices

    gpus = devices(LiveHost((), lambda _name: False)).shown
    reached = os.environ.get("SSH_CONNECTION", "").split()  # sshd(8): client, its port, server, its port
    address = reached[2] if len(reached) == 4 and not reached[2].startswith(("127.", "::1")) else ""
    return Hello(__version__, gpus, _free_port(), address)


def _free_port() -> int:
    """Return an unused port; 0: none was found."""
    kind = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    for port in random.sample(_PORTS, _TRIES):
        with contextlib.suppress(OSError), socket.socket(kind) as tried:
            tried.bind(("", port))
            return port
    return 0


def _print(value: Struct) -> None:
    sys.stdout.buffer.write(MARK + msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def _line() -> bytes:
    """Read the next line of standard input, unbuffered: later input is watched for the end. Empty: it closed."""
    text = bytearray()
    while not text.endswith(b"\n"):
        more = os.read(0, ORDER_BYTES)
        if not more or len(text) > ORDER_BYTES:
            return b""
        text += more
    return bytes(text)


def _run(order: Order, folder: Path) -> tuple[int, ...] | None:
    """Return the exit codes of what `order` starts, once all have exited; None: the caller is gone."""
    for name, text in order.files.items():
        files.write(folder / files.named_after(name), text, private=True)
    places = {f"{{{name}}}": str(folder / files.named_after(name)) for name in order.files}
    words = [places.get(word, word) for word in order.words]
    words += [f"--json={folder / _REPORT}"] if order.report else []
    words += [f"--keep={folder / _KEPT}"] if order.keep else []
    nowhere = os.open(os.devnull, os.O_WRONLY)  # standard output is for this process's own lines
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for variables in order.ranks:
            entry = ("ncclprobe.start:program", *words)
            processes.append(start_own(*entry, stdout=nowhere, stderr=None, variables=variables))
        while any(each.poll() is None for each in processes):
            if select.select([0], [], [], _LOOK_S)[0] and not os.read(0, 1 << 12):
                return None
        return tuple(each.returncode for each in processes)
    finally:
        os.close(nowhere)
        for each in processes:
            abandon(each)


def _text(path: Path) -> str:
    try:
        return files.read(path, limit=bounds.REPORT_BYTES)
    except UsageError:
        return ""


def read_captures(folder: Path) -> tuple[dict[str, str], int]:
    """Return the files of --keep, and how many are left out because the total would be too large."""
    found: dict[str, str] = {}
    paths, size = sorted(folder.glob("*.jsonl")), 0
    for path in paths:
        text = files.read(path, limit=bounds.CAPTURE_BYTES)
        size += len(text)
        if size <= bounds.KEPT_BYTES:
            found[path.name] = text
    return found, len(paths) - len(found)


if __name__ == "__main__":
    signals.begin()
    signals.take_over()
    signals.run(lambda _argv: main(), ())
