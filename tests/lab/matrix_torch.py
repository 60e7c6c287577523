"""The same faults without ncclprobe: what torch's own `init_process_group` and one all_reduce need and say."""

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from ncclprobe.model.values import Struct

from .hosts import Lab
from .matrix import PORT, Row, Setup
from .processes import Completed, Running
from .run import ended

TIMEOUT_S, BOUND_S = 60, 120.0
HOSTS = 3
SCRIPT = f"""
import datetime, sys, time
import torch
import torch.distributed as dist
print("begins", time.monotonic(), flush=True)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={TIMEOUT_S}))
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), flush=True)
"""
SAME_FAULTS = {
    "MASTER_PORT is filtered on rank 0's node": "port filtered",
    "MASTER_PORT is refused by a firewall on rank 0's node": "port refused",
    "new connections to one node's ephemeral ports are refused": "ephemeral ports refused",
    "MASTER_ADDR is a loopback address on one node": "loopback name",
    "a node is missing": "node missing",
}
_DECORATION = re.compile(r"^\[(rank\d+|[WEI]\d{4} [\d:.]+ \d* ?\S*)\]:?\[?[^\]]*\]?\s*|\x1b\[[\d;]*m")
_NOISE = re.compile(
    r"^\s*(frame #|File |Exception raised from|\^|~|Traceback|<omitting)|^\s*$"
    r"|hostname of the client socket cannot be retrieved"  # said in every run here: no name server
)


class Native(Struct, frozen=True):
    """How torch took one fault: from the end of its import to the end of the last process, and that one's last words.

    `seconds` counts only what the process group costs, because the import of torch costs what it costs on any day.
    """

    name: str
    seconds: float
    timed_out: bool
    last_words: str


def play(row: Row) -> Native:
    """torch under the fault of `row`."""
    with Lab(hosts=HOSTS, nics=row.nics) as lab:
        setup = Setup(lab, lab.hosts[HOSTS // 2])
        row.make(setup)
        jobs: dict[str, Running] = {}
        for host in lab.hosts:
            if host.name not in setup.absent:
                rank = str(host.number - 1)
                env = {"RANK": rank, "WORLD_SIZE": str(HOSTS), "MASTER_ADDR": "n0", "MASTER_PORT": str(PORT)}
                env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
                jobs[host.name] = host.start([sys.executable, "-c", SCRIPT], env)
        done = ended(jobs, time.monotonic() + BOUND_S)
        last = max(done.values(), key=lambda each: each.seconds - _import_s(jobs, done, each))
        seconds = last.seconds - _import_s(jobs, done, last)
        return Native(row.name, seconds, last.timed_out, last_words(last))


def _import_s(jobs: dict[str, Running], done: dict[str, Completed], one: Completed) -> float:
    """How long that process needed before it began."""
    job = next(jobs[name] for name, each in done.items() if each is one)
    said = re.search(r"begins ([\d.]+)", one.out)
    return float(said[1]) - job.began_s if said else 0.0


def last_words(done: Completed) -> str:
    """The last line that tells something, without torch's decoration."""
    lines = [line for line in done.err.splitlines() if not _NOISE.search(line)]
    if not lines:
        return "nothing" if done.timed_out else done.out.strip().splitlines()[-1]
    return _DECORATION.sub("", lines[-1]).strip()[:300]


def play_all(rows: list[Row]) -> list[Native]:
    """All of them at once: they wait most of the time."""
    with ThreadPoolExecutor(len(rows)) as pool:
        return list(pool.map(play, rows))
