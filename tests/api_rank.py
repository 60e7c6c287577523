"""One rank of a gloo job that asks ncclprobe.api, and prints what it got as one JSON document.

Run by test_api_ranks.py as ``python api_rank.py RANK RANKS FOLDER``. Rank 0 says in FOLDER where the job's store is.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ncclprobe import api

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "examples"))
import train

RANK, RANKS, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
SHORT: dict[str, Any] = {"sizes": (1024, 65536), "budget_s": 0.05, "timeout_s": 60.0}


def store() -> dist.TCPStore:
    """The store of the job, at a port that the kernel has chosen."""
    place = FOLDER / "port"
    if RANK == 0:
        served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (FOLDER / "port.new").write_text(str(served.port))
        (FOLDER / "port.new").replace(place)
        return served
    while not place.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(place.read_text()), is_master=False, wait_for_workers=False)


def state() -> dict[str, Any]:
    """What a call must leave as it was."""
    world = dist.distributed_c10d._world
    return {
        "environment": dict(os.environ),
        "groups": sorted(world.pg_names.values()),
        "count": world.group_count,
        "ranks": len(world.pg_group_ranks),
        "threads": sorted(t.name for t in threading.enumerate() if not t.name.startswith("Dummy")),  # idle readers
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "folder": str(Path.cwd()),
    }


def refused(ask: Callable[[], Any]) -> list[str]:
    """The class and the words of what `ask` raises."""
    try:
        ask()
    except api.NcclprobeError as error:
        return [type(error).__name__, str(error)]
    return []


def summary(report: api.Report) -> dict[str, Any]:
    rows = [[each.op, each.nbytes, each.ranks, each.wrong] for each in report.measurements]
    launched = [report.command, report.launch.world_size, len(report.nodes)]
    return {"text": api.render(report, "json"), "rows": rows, "launched": launched}


def leaves_in_the_middle() -> None:
    """Rank 1 fails in its first timed call; the others are in it."""
    from ncclprobe.probes import sweep

    def broken(*_: Any, **__: Any) -> Any:
        raise api.UsageError("this rank broke")

    whole = sweep.time_batch
    sweep.time_batch = broken if RANK == 1 else whole  # type: ignore[assignment]
    try:
        api.bandwidth(**SHORT)
    finally:
        sweep.time_batch = whole


def stands_still() -> None:
    """Rank 1 stays in its first timed call until the others have given up."""
    from ncclprobe.probes import sweep

    def waits(*_: Any, **__: Any) -> Any:
        while not all((FOLDER / f"gave up.{rank}").exists() for rank in (0, 2)):
            time.sleep(0.05)
        raise api.UsageError("this rank stood still")

    whole = sweep.time_batch
    sweep.time_batch = waits if RANK == 1 else whole  # type: ignore[assignment]
    try:
        api.bandwidth(**{**SHORT, "timeout_s": 4.0})
    finally:
        sweep.time_batch = whole
        (FOLDER / f"gave up.{RANK}").touch()


def main() -> dict[str, Any]:
    said: dict[str, Any] = {"without a job": refused(lambda: api.bandwidth(**SHORT))}
    dist.init_process_group("gloo", store=store(), rank=RANK, world_size=RANKS)
    part = dist.new_group([1, 2])
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    before = state()
    said["example"] = train.fast_enough()
    said["first"] = summary(api.bandwidth(**SHORT))
    said["again"] = summary(api.bandwidth(("all_gather", "broadcast"), **{**SHORT, "sizes": ["1K", "64K"]}))
    said["sizes"] = [refused(lambda: api.bandwidth(sizes=[each])) for each in ("64X", 0, True, 1.5, None)]  # noqa: B023
    if RANK in (1, 2):
        said["part"] = summary(api.bandwidth(("reduce",), group=part, **SHORT))
    else:
        said["part"] = refused(lambda: api.bandwidth(group=part, **SHORT))
    said["other options"] = refused(lambda: api.bandwidth(**{**SHORT, "sizes": (1024 << RANK,)}))
    said["wrong on one"] = refused(lambda: api.bandwidth(("all_red" if RANK == 1 else "all_reduce",), **SHORT))
    said["one leaves"] = refused(leaves_in_the_middle)
    said["one stands still"] = refused(stands_still)
    if RANK != 1:
        said["one stays away"] = refused(lambda: api.bandwidth(**{**SHORT, "timeout_s": 1.5}))
    until = time.monotonic() + 30.0
    while state() != before and time.monotonic() < until:
        time.sleep(0.1)  # a thread that waited for a rank that stood still ends when it has noticed
    said["unchanged"] = {name: was == now for (name, was), now in zip(before.items(), state().values(), strict=True)}
    dist.all_reduce(tensor)
    said["sum"] = tensor.item()
    dist.destroy_process_group()
    return said


if __name__ == "__main__":
    told = main()
    (FOLDER / f"said.{RANK}").write_text(json.dumps(told))
