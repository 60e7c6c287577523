"""One node of a mesh as a process of its own: FOLDER ME NODES SECONDS MANNER ADDRESS…

The nodes meet in files: each writes its listeners, waits for those of all, plans, walks, and writes what it saw.
MANNER ``stop``: this one freezes once its listeners are known.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from ncclprobe.cluster.mesh.listeners import MeshInterface, reserve_listeners
from ncclprobe.cluster.mesh.plan import plan_mesh
from ncclprobe.cluster.mesh.walk import walk
from ncclprobe.facts.reach import MeshListener
from ncclprobe.model.values import asdict

TOKEN = b"the token of this run"


async def meet(folder: Path, what: str, count: int, until: float) -> dict[int, object]:
    while len(found := list(folder.glob(f"{what}.*.json"))) < count and time.monotonic() < until:
        await asyncio.sleep(0.02)
    return {int(path.name.split(".")[1]): json.loads(path.read_text()) for path in found}


def write(folder: Path, what: str, me: int, value: object) -> None:
    beside = folder / f"{what}.{me}.part"
    beside.write_text(json.dumps(value))
    beside.replace(folder / f"{what}.{me}.json")


async def main(folder: Path, me: int, nodes: int, seconds: float, manner: str, *addresses: str) -> None:
    roles = [MeshInterface(f"nccl{place}", f"eth{place}", address) for place, address in enumerate(addresses)]
    listeners = reserve_listeners(roles, me, f"n{me}")
    listeners.listen(TOKEN)
    write(folder, "listeners", me, listeners.addresses)
    if manner == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    known = await meet(folder, "listeners", nodes, time.monotonic() + 30)
    every = {node: [MeshListener(*row) for row in rows] for node, rows in known.items()}
    began = time.monotonic()
    seen = await walk(plan_mesh(every)[me], listeners, began + seconds)
    write(folder, "paths", me, {**asdict(seen), "seconds": time.monotonic() - began})
    await meet(folder, "paths", nodes, began + seconds)
    listeners.close()


if __name__ == "__main__":
    _folder, _me, _nodes, _seconds, _manner, *_addresses = sys.argv[1:]
    asyncio.run(main(Path(_folder), int(_me), int(_nodes), float(_seconds), _manner, *_addresses))
