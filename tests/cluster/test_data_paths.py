"""What a node writes and looks for at data paths when node 0 says so, and what it refuses."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclprobe.cluster.gather.data import PathWork, watched, worked_alone
from ncclprobe.cluster.rendezvous.messages import DataOrder, Marker
from ncclprobe.facts.data_paths import UNWRITTEN, AskedPath, DataPath, DataPaths, Look
from ncclprobe.model.snapshot import Absent, Snapshot

PATIENCE_S = 30.0
LOOK = Look("folder", "/", 0, 0, "0755", 0, 4096, 1.0, True, True, True, 10, 5, 0, 0, read_only=False)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    made = tmp_path / "shared"
    made.mkdir()
    return made


@pytest.fixture
def nodes(shared: Path) -> Iterator[list[PathWork]]:
    made = [PathWork((AskedPath(str(shared), "checkpoint"),), rank, f"n{rank}") for rank in range(2)]
    yield made
    for each in made:
        each.close()


def wrote(node: PathWork, shared: Path) -> Marker:
    node.follow(DataOrder("write", PATIENCE_S))
    row = node.rows[str(shared)]
    return Marker(0, row.folder, "marker", row.digests["marker"])


def test_a_node_finds_anothers_marker_puts_its_shard_there_and_both_clean_up(
    nodes: list[PathWork], shared: Path
) -> None:
    marker = wrote(nodes[0], shared)
    wrote(nodes[1], shared)
    nodes[1].follow(DataOrder("look", PATIENCE_S, 5.0, {str(shared): (marker,)}, {str(shared): marker.folder}))
    row = nodes[1].rows[str(shared)]
    assert [sight.outcome for sight in row.sights] == ["ok"]
    assert (shared / marker.folder / "shard-1").stat().st_size == 64 * 4096
    for each in nodes:
        each.follow(DataOrder("clean", PATIENCE_S))
    assert list(shared.iterdir()) == []


def test_what_a_run_that_ends_early_wrote_is_removed_as_it_closes(nodes: list[PathWork], shared: Path) -> None:
    wrote(nodes[0], shared)
    nodes[0].close()
    assert list(shared.iterdir()) == []


def test_a_run_that_is_interrupted_while_it_looks_removes_its_folder_and_starts_no_child_again(
    nodes: list[PathWork], shared: Path
) -> None:
    wrote(nodes[0], shared)
    gone = Marker(1, ".ncclprobe-n1-1.2-3", "marker", "0")
    order = DataOrder("look", PATIENCE_S, 2.0, {str(shared): (gone, gone)})
    looking = threading.Thread(target=nodes[0].follow, args=(order,))
    looking.start()
    nodes[0].close()
    assert list(shared.iterdir()) == []
    looking.join(PATIENCE_S)
    assert not looking.is_alive()


@pytest.mark.parametrize("folder", ["../elsewhere", "..", "elsewhere", ""])
def test_a_node_writes_nowhere_but_in_folders_of_ours_at_its_own_paths(
    nodes: list[PathWork], shared: Path, folder: str
) -> None:
    elsewhere = shared.parent / "elsewhere"
    elsewhere.mkdir()
    (shared / "elsewhere").mkdir()
    marker = Marker(0, folder, "marker", "0")
    every = {str(shared): (marker,), str(elsewhere): (marker,)}
    nodes[1].follow(DataOrder("look", PATIENCE_S, 0.0, every, dict.fromkeys(every, folder)))
    row = nodes[1].rows[str(shared)]
    assert row.sights[0].outcome == "refused"
    assert all(sight.outcome.startswith(UNWRITTEN) for sight in row.sights[1:])
    assert list(elsewhere.iterdir()) == list((shared / "elsewhere").iterdir()) == []


def test_a_node_that_sees_nothing_of_others_does_not_wait_for_their_checkpoint(
    nodes: list[PathWork], shared: Path
) -> None:
    gone = Marker(0, ".ncclprobe-n0-1.2-3", "marker", "0")
    nodes[1].follow(DataOrder("look", PATIENCE_S, 0.0, {str(shared): (gone,)}))
    nodes[1].follow(DataOrder("look", PATIENCE_S, 1000.0, {str(shared): (gone,)}))
    assert [sight.outcome for sight in nodes[1].rows[str(shared)].sights] == ["no-folder", "no-folder"]


def test_a_node_alone_says_what_it_wrote_and_that_nothing_is_left(shared: Path) -> None:
    row = DataPath(str(shared), "checkpoint", Absent("not asked"), LOOK)
    samples = worked_alone(Snapshot("n0", {DataPaths: DataPaths((row,))}), time.monotonic() + PATIENCE_S)
    assert samples.keys() == {"data_writes"}
    written = samples["data_writes"]
    assert (written.rows[0].folder, written.rows[0].left, written.rows[0].failed) == ("", False, "")
    assert {"marker", "shard-0"} == set(written.rows[0].digests)
    assert list(shared.iterdir()) == []


def test_a_node_that_writes_to_no_path_writes_nothing() -> None:
    assert worked_alone(Snapshot("n0", {DataPaths: DataPaths()}), 0.0) == {}


def test_few_nodes_look_for_all_and_many_for_some_so_that_each_is_looked_for() -> None:
    assert watched(1, range(4)) == [2, 3, 0]
    seen = [watched(rank, range(100)) for rank in range(100)]
    assert max(map(len, seen)) == 16
    assert all(0 in each for each in seen[1:])
    assert {other for each in seen for other in each} == set(range(100))
    assert all(rank not in each for rank, each in enumerate(seen))
