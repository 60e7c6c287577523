"""Small helpers for the tests of a rendezvous: a coordinator with its workers, and listeners that are none of ours."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ncclprobe import wire
from ncclprobe.cluster.rendezvous.coordinator import Coordinator
from ncclprobe.cluster.rendezvous.messages import Hello, Leave
from ncclprobe.cluster.rendezvous.reach import Worker
from ncclprobe.model.errors import NcclprobeError

TOKEN = b"the token of this run"


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def hello(rank: int, name: str = "", **details: Any) -> Hello:
    return Hello(id=f"id of {name or rank}", node_rank=rank, name=name or f"n{rank}", **details)


async def arrive(port: int, who: Hello, capture: str = "{}\n", token: bytes = TOKEN) -> Worker:
    """A node that has handed over its capture and is ready for a plan."""
    worker = Worker(await wire.connect("127.0.0.1", port, token, soon()))
    try:
        await worker.join(who, capture, soon())
        await worker.clock(soon())
    except NcclprobeError:
        worker.close()
        raise
    return worker


async def whole_run(port: int, who: Hello, capture: str = "{}\n") -> Leave:
    """A node from its arrival to its leave; it measures nothing but its plan."""
    worker = await arrive(port, who, capture)
    try:
        await worker.report({"paths": await worker.next_instruction(soon())}, soon())
        leave = await worker.next_instruction(soon())
        assert isinstance(leave, Leave)
        return leave
    finally:
        worker.close()


async def judged(coordinator: Coordinator, within_s: float = 5.0) -> Any:
    """Rank 0 from gathering to leaving: every peer's plan is its own name, and its exit code its node rank."""
    gathering = await coordinator.gather(soon(within_s))
    samples = await coordinator.mesh(
        {peer.hello.id: {"name": peer.hello.name} for peer in coordinator.peers}, soon(within_s)
    )
    await coordinator.leave({peer.hello.id: Leave(peer.hello.node_rank, "bye") for peer in coordinator.peers}, soon(2))
    return gathering, samples


@asynccontextmanager
async def saying(text: bytes, stay_s: float = 0.0, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """The port of a service that is none of ours: says `text` to whoever connects, and hangs up after `stay_s`."""
    tasks: set[asyncio.Task[None]] = set()

    async def task(writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(text)
            await asyncio.sleep(stay_s)
        finally:
            writer.transport.abort()

    def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(task(writer)))

    server = await asyncio.start_server(admit, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


async def until(true: Callable[[], object], within_s: float = 5.0, every_s: float = 0.01) -> None:
    """Wait for something that another task does."""
    deadline = soon(within_s)
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(every_s)
