"""1,024 nodes, one in a hundred slow, dead or babbling: the others are all heard, in bounded memory."""

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rendezvous_lab import TOKEN, soon, until

from ncclprobe.cluster.rendezvous.coordinator import Coordinator
from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.facts.reach import Gathering

pytestmark = pytest.mark.slow

NODES = 1024
GATHERING_S = 240.0  # nothing is timed: on a machine that is shared by twenty others all of it takes so long
HELPERS = 2
GOOD = NODES - 1 - (NODES - 1) // 100
CAPTURE_BYTES = 100_000
HERE = Path(__file__).resolve().parent


async def gathered(spool: Path) -> tuple[Gathering, int, int, int, list[int]]:
    process = psutil.Process()
    before = process.memory_info().rss
    async with Coordinator(TOKEN, NODES, spool, soon(GATHERING_S)) as coordinator:
        port = await coordinator.listen(0)
        crowds = []
        for first in range(0, NODES, NODES // HELPERS):
            numbers = map(str, (port, first or 1, NODES // HELPERS - (not first), CAPTURE_BYTES))
            command = [sys.executable, str(HERE / "crowd.py"), *numbers]
            environment = {"PYTHONPATH": f"{HERE.parents[2]}"}
            crowds.append(await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment))
        try:
            peak = 0

            def all_settled() -> bool:
                nonlocal peak
                peak = max(peak, process.memory_info().rss - before)
                return sum(peer.settled for peer in coordinator.peers) == GOOD

            await until(all_settled, GATHERING_S, 0.2)
            gathering = await coordinator.gather(soon(0.1))
            samples = await coordinator.mesh(
                {peer.hello.id: {"to": peer.hello.name} for peer in coordinator.peers}, soon(GATHERING_S)
            )
            leaves = {peer.hello.id: Leave(peer.hello.node_rank) for peer in coordinator.peers}
            await coordinator.leave(leaves, soon(20))
            told = [int((await crowd.communicate())[0]) for crowd in crowds]
        finally:
            for crowd in crowds:
                if crowd.returncode is None:
                    crowd.kill()
                    await crowd.wait()
        return gathering, len(coordinator.peers), len(samples), peak, told


@pytest.mark.timeout(300)
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NODES + 512, reason="ulimit -Hn is too low")
def test_one_per_cent_of_bad_peers_costs_the_others_nothing(tmp_path: Path) -> None:
    gathering, peers, samples, grown, told = asyncio.run(gathered(tmp_path))
    assert (peers, samples, sum(told)) == (GOOD, GOOD, GOOD)
    sizes = {path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {CAPTURE_BYTES}
    assert {trouble.kind for trouble in gathering.troubles} >= {"foreign"}
    assert grown < CAPTURE_BYTES * GOOD / 2
