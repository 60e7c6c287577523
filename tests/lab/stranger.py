"""A process on the nodes' network that is not of the job: ``stranger.py ATTACK …``, until it is killed.

``hold ADDRESS PID COUNT``: COUNT sockets held open to every port, but the meeting's, that the host of PID listens on.
``crowd ADDRESS PORT COUNT [SOURCE …]``: so many connections to one port, made again as they are hung up on.
``seat ADDRESS PORT RANK``: hand in a capture as this node, with the token that anyone can derive.
``impostor PORT ADDRESS VICTIM_PORT``: be node 0 first, take a capture, send its node calling there, dismiss it with 0.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import resource
import select
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

MEETING = 29500
FOREVER_S = 600.0


def label(port: int) -> bytes:
    """What keeps runs apart: job, user and port are no secret."""
    return hashlib.sha256(f"ncclprobe {json.dumps(['', os.getuid(), port])}".encode()).digest()


def listening(pid: str) -> set[int]:
    """The TCP ports on which a host listens, as a port scan finds them."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A"}


def call(address: str, port: int, source: str = "") -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    sock.setblocking(False)
    if source:
        sock.bind((source, 0))
    with contextlib.suppress(BlockingIOError):
        sock.connect((address, port))
    return sock


def hold(address: str, pid: str, count: int, ports: set[int], sources: Sequence[str] = ("",)) -> None:
    """Keep `count` sockets open to each of `ports`, or to each that the host of `pid` opens but the meeting's.

    They come from each of `sources` in turn.
    """
    source = cycle(sources)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    held: dict[int, int] = {}
    poll = select.epoll()
    by_handle: dict[int, tuple[int, socket.socket]] = {}
    end_s = time.monotonic() + FOREVER_S
    told = False
    print("ready", flush=True)
    while time.monotonic() < end_s:
        for port in ports or listening(pid) - {MEETING}:
            for _ in range(min(200, count - held.get(port, 0))):
                sock = call(address, port, next(source))
                held[port] = held.get(port, 0) + 1
                by_handle[sock.fileno()] = port, sock
                poll.register(sock, select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
        for handle, _ in poll.poll(0.005):
            port, sock = by_handle.pop(handle)
            if not told:
                told = True
                print("hung up on", flush=True)
            poll.unregister(handle)
            held[port] -= 1
            sock.close()


async def seat(address: str, port: int, rank: int) -> None:
    """Come as node `rank`, again and again until it is let in."""
    from ncclprobe import wire
    from ncclprobe.cluster.rendezvous.messages import Hello
    from ncclprobe.cluster.rendezvous.reach import Worker
    from ncclprobe.model.errors import NcclprobeError

    while True:
        with contextlib.suppress(NcclprobeError, OSError):
            soon = time.monotonic() + 5.0
            worker = Worker(await wire.connect(address, port, label(port), soon))
            capture = sys.stdin.read() if not sys.stdin.isatty() else ""
            await worker.join(Hello("stranger", rank, f"n{rank}"), capture or '{"capture": 1}\n', soon)
            await worker.clock(soon)
            print("let in", flush=True)
            await worker.next_instruction(time.monotonic() + FOREVER_S)
        await asyncio.sleep(0.2)


async def impostor(port: int, address: str, victim_port: int) -> None:
    """Be node 0: let a node in, send it calling `address`, and tell it that all is well."""
    from ncclprobe.cluster.rendezvous.coordinator import Coordinator
    from ncclprobe.cluster.rendezvous.messages import Leave

    end = time.monotonic() + FOREVER_S
    call = {"to": 0, "role": "default", "address": address, "port": victim_port}
    plan = {"me": 1, "names": {}, "calls": [call], "rates": []}
    async with Coordinator(label(port), 2, Path(tempfile.mkdtemp()), end) as coordinator:
        await coordinator.listen(port)
        print("ready", flush=True)
        while not coordinator.peers:
            await coordinator.gather(time.monotonic() + 5.0)
        for peer in coordinator.peers:
            print("took", len(peer.capture.read_text()), flush=True)
        soon = time.monotonic() + 5.0
        await coordinator.mesh({peer.hello.id: {"plan": plan, "seconds": 5.0} for peer in coordinator.peers}, soon)
        await coordinator.leave({peer.hello.id: Leave(0) for peer in coordinator.peers}, time.monotonic() + 2.0)
        print("dismissed", flush=True)
        await asyncio.sleep(FOREVER_S)


if __name__ == "__main__":
    _attack, *_given = sys.argv[1:]
    if _attack == "hold":
        hold(_given[0], _given[1], int(_given[2]), set())
    elif _attack == "crowd":
        hold(_given[0], "", int(_given[2]), {int(_given[1])}, _given[3:] or ("",))
    elif _attack == "seat":
        asyncio.run(seat(_given[0], int(_given[1]), int(_given[2])))
    else:
        asyncio.run(impostor(int(_given[0]), _given[1], int(_given[2])))
