"""Many nodes in one process: ``crowd.py PORT FIRST COUNT CAPTURE_BYTES``. Every hundredth one misbehaves.

Prints how many were told to leave with their own node rank as exit code.
"""

import asyncio
import contextlib
import os
import sys

from rendezvous_lab import TOKEN, hello, soon

from ncclprobe import wire
from ncclprobe.cluster.rendezvous.coordinator import room_for
from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.cluster.rendezvous.reach import Worker, find
from ncclprobe.model.errors import NcclprobeError

PATIENCE_S = 230.0


async def node(port: int, rank: int, nbytes: int) -> bool:
    deadline = soon(PATIENCE_S)
    task, reach = await find("127.0.0.1", port, TOKEN, deadline)
    if task is None:
        print(rank, reach, file=sys.stderr)
        return False
    worker = Worker(task)
    try:
        await worker.join(hello(rank), os.urandom(nbytes // 2).hex(), deadline)
        await worker.clock(deadline)
        await worker.report({"paths": await worker.next_instruction(deadline)}, deadline)
        leave = await worker.next_instruction(deadline)
        return isinstance(leave, Leave) and leave.exit_code == rank
    except NcclprobeError as error:
        print(rank, repr(error), file=sys.stderr)
        return False
    finally:
        worker.close()


async def misbehaving(port: int, rank: int) -> bool:
    """Babbles, says nothing, or stops within its capture, and stays."""
    with contextlib.suppress(NcclprobeError, OSError):
        if rank // 100 % 3 == 2:
            task = await wire.connect("127.0.0.1", port, TOKEN, soon(30))
            await task.send({"hello": {"id": str(rank), "node_rank": rank, "name": "slow"}}, soon(30))
            await task.receive(soon(PATIENCE_S))
            await task.send({"capture": "x", "more": True}, soon(30))
            await asyncio.sleep(PATIENCE_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if rank // 100 % 3 == 1:
            writer.write(os.urandom(1 << 20))
        await reader.read()
        writer.transport.abort()
    return False


async def main(port: int, first: int, count: int, nbytes: int) -> None:
    room_for(count)
    ranks = range(first, first + count)
    good = [asyncio.ensure_future(node(port, rank, nbytes)) for rank in ranks if rank % 100]
    bad = [asyncio.ensure_future(misbehaving(port, rank)) for rank in ranks if rank % 100 == 0]
    print(sum(await asyncio.gather(*good)), flush=True)
    for each in bad:
        each.cancel()
    await asyncio.gather(*bad, return_exceptions=True)


asyncio.run(main(*map(int, sys.argv[1:])))
