"""The rounds of --path among many nodes, each a thread of this process instead of a machine: who sees what of whom."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.data.rates import rate
from ncclprobe.checks.data.seen import shared, write
from ncclprobe.cluster.gather import data
from ncclprobe.cluster.gather.data import PathWork, RateWork
from ncclprobe.cluster.rendezvous.messages import DataOrder
from ncclprobe.facts.data_paths import AskedPath, DataPath, DataPaths, DataRates, DataWrites, Look, Mount
from ncclprobe.host import path_child
from ncclprobe.model.errors import REFUSALS
from ncclprobe.model.findings import Severity
from ncclprobe.model.snapshot import Absent, Every

NODES, LOCAL = 18, 7
PATH = "/shared"
LOOK = Look("folder", PATH, 0, 0, "0755", 0, 4096, 1.0, True, True, True, 1 << 40, 1 << 39, 0, 0, read_only=False)


class InThisProcess:
    """Does what the child of a path does, without the process: in the folder that this node has at the path."""

    folder = Path()

    def __init__(self, _: str) -> None:
        self._folder = str(InThisProcess.folder)

    def ask(self, what: str, patience_s: float, **more: Any) -> Any:
        answer = path_child._answer({"do": what, "path": self._folder, **more})
        if "refused" in answer:
            raise REFUSALS[answer["refused"]](answer["why"])
        return answer["said"]

    def close(self) -> None:
        """There is nothing to end."""


class Peers:
    """What node 0 has of the coordinator: the others follow their orders, each on a thread."""

    def __init__(self, works: Mapping[str, RateWork]) -> None:
        self.works = works
        self.at_once: list[int] = []

    async def order(self, _: str, orders: Mapping[str, DataOrder], deadline: float) -> dict[str, Any]:
        if any(order.do == "rate" and order.rates[0].kind != "find" for order in orders.values()):
            self.at_once.append(len(orders))
        follow = [asyncio.to_thread(self.works[key].follow, order) for key, order in orders.items()]
        return dict(zip(orders, await asyncio.gather(*follow), strict=True))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, DataWrites], dict[int, DataRates], Any]:
    """Eighteen nodes, of which one has a folder of its own where the others share one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "PathChild", InThisProcess)
        patch.setattr(data, "_WAIT_S", 1.0)
        return play(tmp_path_factory.mktemp("paths"))


def play(tmp_path: Path) -> tuple[dict[int, DataWrites], dict[int, DataRates], Any]:
    folders = {rank: tmp_path / ("local" if rank == LOCAL else "shared") for rank in range(NODES)}
    asked, works = (AskedPath(PATH, "checkpoint"),), {}
    for rank, folder in folders.items():
        folder.mkdir(exist_ok=True)
        InThisProcess.folder = folder
        works[rank] = RateWork(PathWork(asked, rank, f"n{rank}", asked), asked, 1 << 20)
    peers: Any = Peers({f"id{rank}": work for rank, work in works.items()})
    names, ids = {rank: f"n{rank}" for rank in works}, {rank: f"id{rank}" for rank in works if rank}
    rounds = data.Rounds(works[0], peers, names, ids)

    async def run() -> dict[int, DataWrites]:
        return await rounds.run(time.monotonic() + 100.0)

    wrote = asyncio.run(run())
    assert [each.name for folder in tmp_path.iterdir() for each in folder.iterdir()] == []
    return wrote, rounds.rated, peers


def test_among_eighteen_nodes_the_one_with_a_folder_of_its_own_is_named(played: Any) -> None:
    wrote, rated, _ = played
    looks = DataPath(PATH, "checkpoint", Mount(PATH, "nfs4", "fs1:/shared"), LOOK)
    paths = Every({f"n{rank}": DataPaths((looks,), 1 << 20) for rank in range(NODES)})
    writes: Every[DataWrites | Absent] = Every({f"n{rank}": each for rank, each in wrote.items()})
    assert len(writes) == NODES
    said = [each for each in shared.run(writes, paths) if each.severity is Severity.FAIL]
    assert {each.nodes for each in said} == {(f"n{LOCAL}",)}
    assert list(write.run(writes, paths)) == []
    rates: Every[DataRates | Absent] = Every({f"n{rank}": each for rank, each in rated.items()})
    assert not [found for found in rate.run(rates, paths) if found.severity is Severity.FAIL]
    assert {(row.kind, row.together) for row in rated[3].rows} >= {("write", False), ("read", False), ("write", True)}


def test_among_eighteen_nodes_each_looks_for_fewer_than_all_and_at_most_three_measure_at_once(played: Any) -> None:
    wrote, _, peers = played
    assert max(sum(sight.name == "marker" for sight in each.rows[0].sights) for each in wrote.values()) == 16
    assert set(peers.at_once) <= {1, 2, 3, NODES - 1}
