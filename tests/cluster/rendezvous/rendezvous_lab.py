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


async def arrive(port: int, who: Hello, capture: str = "{}\n", patience_s: float = 10.0) -> Worker:
    """A node that has handed over its capture and is ready for a plan."""
    end = soon(patience_s)
    worker = Worker(await wire.connect("127.0.0.1", port, TOKEN, end, patience_s=patience_s))
    try:
        await worker.join(who, capture, end)
        await worker.clock(end)
    except NcclprobeError:
        worker.close()
        raise
    return worker


async def whole_run(port: int, who: Hello, capture: str = "{}\n", patience_s: float = 10.0) -> Leave:
    """A node from its arrival to its leave; it measures nothing but its plan."""
    worker = await arrive(port, who, capture, patience_s)
    try:
        await worker.report({"paths": await worker.next_instruction(soon(patience_s))}, soon(patience_s))
        leave = await worker.next_instruction(soon(patience_s))
        assert isinstance(leave, Leave)
        return leave
    finally:
        worker.close()


async def judged(coordinator: Coordinator, within_s: float = 5.0, mesh_s: float = 0.0) -> Any:
    """Rank 0 from gathering to leaving: every peer's plan is its own name, and its exit code its node rank."""
    gathering = await coordinator.gather(soon(within_s))
    plans = {peer.hello.id: {"name": peer.hello.name} for peer in coordinator.peers}
    samples = await coordinator.mesh(plans, soon(mesh_s or within_s))
    leaves = {peer.hello.id: Leave(peer.hello.node_rank, "bye") for peer in coordinator.peers}
    await coordinator.leave(leaves, soon(mesh_s or 2))
    return gathering, samples


@asynccontextmanager
async def saying(text: bytes, stay_s: float = 0.0) -> AsyncIterator[int]:
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

    server = await asyncio.start_server(admit, "127.0.0.1", 0)
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
