"""Rates of data paths: who measures what and when, what a node refuses, and what it measures."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ncclprobe.cluster.gather.data import PathWork, RateRounds, RateWork, kinds_of, turns_of, worked_alone
from ncclprobe.cluster.rendezvous.messages import DataOrder, RateOrder
from ncclprobe.facts.data_paths import AskedPath, DataPath, DataPaths, Look
from ncclprobe.model.measurement import PathRate
from ncclprobe.model.snapshot import Absent, Snapshot
from tests.each_row import each_row

PATIENCE_S = 30.0
LOOK = Look("folder", "/", 0, 0, "0755", 0, 4096, 1.0, True, True, True, 10, 5, 0, 0, read_only=False)
READ = {"/data": ("read", "random", "open")}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    for number in range(80):
        (made / f"small-{number:02}").write_bytes(bytes(100))
    (made / "a-large").write_bytes(os.urandom(2 << 20))
    return made


@pytest.fixture
def work(data: Path) -> Iterator[RateWork]:
    asked = (AskedPath(str(data)), AskedPath(str(data), "checkpoint"))
    made = RateWork(PathWork(asked[1:], 0, "n0", asked), asked, 4 << 20)
    yield made
    made.paths.close()


def measured(work: RateWork, *orders: RateOrder) -> list[PathRate]:
    said = work.follow(DataOrder("rate", PATIENCE_S, rates=orders))["rates"]
    return [PathRate(**each) for each in said]


@each_row(("nodes", "size"), [(1, 1), (2, 1), (8, 1), (9, 2), (64, 8), (65, 8), (1024, 8)])
def test_no_more_than_eight_nodes_measure_at_once_and_each_has_its_turn(nodes: int, size: int) -> None:
    turns = turns_of(range(nodes))
    assert max(map(len, turns)) == size
    assert [rank for turn in turns for rank in turn] == list(range(nodes))


def test_a_path_is_written_before_what_was_written_is_read() -> None:
    asked = [AskedPath("/out", "checkpoint"), AskedPath("/data"), AskedPath("/both"), AskedPath("/both", "write")]
    assert kinds_of(asked) == {
        "/out": ("write", "read"),
        "/data": ("read", "random", "open"),
        "/both": ("read", "random", "open", "write"),
    }


Asked = list[tuple[set[int], tuple[RateOrder, ...]]]


def played(nodes: int, per_s: Mapping[int, float], seconds: float = PATIENCE_S) -> tuple[Asked, RateRounds]:
    """What node 0 asks of nodes that read so many MB/s; 100 where nothing is said."""
    asked: Asked = []

    async def ask(orders: Mapping[int, DataOrder], deadline: float) -> dict[int, Sequence[PathRate]]:
        assert deadline <= max(end, time.monotonic())
        if orders:
            asked.append((set(orders), next(iter(orders.values())).rates))
        return {
            rank: [
                PathRate(o.path, o.kind, o.at_once, o.together, 10**8, 100, 100 / per_s.get(rank, 100.0), 0.0)
                for o in order.rates
                if o.kind != "find"
            ]
            for rank, order in orders.items()
        }

    rounds, end = RateRounds(READ, range(nodes)), time.monotonic() + seconds
    asyncio.run(rounds.run(ask, end))
    return asked, rounds


def test_every_node_finds_its_files_then_measures_apart_then_all_at_once() -> None:
    asked, rounds = played(3, {})
    assert [sorted(ranks) for ranks, _ in asked] == [[0, 1, 2], [0], [1], [2], *[[0, 1, 2]] * 3]
    assert [order.kind for _, orders in asked for order in orders] == [
        "find", *["read", "random", "open"] * 3, "read", "random", "open",
    ]  # fmt: skip
    assert [order.together for _, orders in asked[-3:] for order in orders] == [True] * 3
    assert {len(rows) for rows in rounds.rows.values()} == {6}


def test_who_looks_slow_is_measured_again_before_all_are_at_once() -> None:
    asked, _ = played(4, {2: 40.0})
    assert [ranks for ranks, orders in asked if len(orders) == 3] == [{0}, {1}, {2}, {3}, {2}, {2}]


def test_no_two_nodes_and_no_two_turns_begin_at_one_place() -> None:
    orders: list[RateOrder] = []

    async def ask(asked: Mapping[int, DataOrder], _: float) -> dict[int, Sequence[PathRate]]:
        orders.extend(each for order in asked.values() for each in order.rates if each.kind != "find")
        return {}

    asyncio.run(RateRounds(READ, range(20)).run(ask, time.monotonic() + PATIENCE_S))
    assert len({each.place for each in orders}) == len(orders) == 20 * 6
    assert max(each.at_once for each in orders if not each.together) == 3


def test_a_node_alone_has_no_round_of_all() -> None:
    asked, _ = played(1, {})
    assert [len(orders) for _, orders in asked] == [1, 3]


def test_without_time_no_turn_begins() -> None:
    asked, _ = played(3, {}, seconds=0.0)
    assert not [orders for _, orders in asked if not any(o.kind == "find" or o.together for o in orders)]


def test_what_is_read_opened_and_written_is_within_its_bounds(work: RateWork, data: Path) -> None:
    work.follow(DataOrder("write", PATIENCE_S))
    rows = measured(work, *(RateOrder(str(data), kind) for kind in ("find", "read", "random", "open", "write")))
    assert [row.kind for row in rows] == ["read", "random", "open", "write"]
    assert not any(row.why or row.failed for row in rows)
    read, samples, opened, written = rows
    assert 1 << 20 <= read.nbytes <= 4 << 20
    assert 0 < samples.count <= 16
    assert 0 < opened.count <= 64
    assert written.nbytes <= 4 << 20
    assert all(row.per_s > 0 for row in rows)
    work.follow(DataOrder("clean", PATIENCE_S))
    assert not [each for each in data.iterdir() if each.name.startswith(".")]


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    asked = (AskedPath(str(tmp_path), "checkpoint"),)
    work = RateWork(PathWork(asked, 0, "n0", asked), asked, 4 << 20)
    try:
        work.follow(DataOrder("write", PATIENCE_S))
        rows = measured(work, RateOrder(str(tmp_path), "write"), RateOrder(str(tmp_path), "read"))
        assert [(row.kind, row.why) for row in rows] == [("write", ""), ("read", "")]
        assert rows[1].nbytes >= 1 << 20
    finally:
        work.paths.close()
    assert list(tmp_path.iterdir()) == []


def test_a_node_measures_no_path_and_no_kind_but_its_own(work: RateWork, data: Path) -> None:
    elsewhere = str(data.parent)
    assert measured(work, *(RateOrder(elsewhere, kind) for kind in ("find", "read", "write", "open"))) == []
    asked = (AskedPath(elsewhere, "write"),)
    writer = RateWork(PathWork(asked, 0, "n0", asked), asked, 4 << 20)
    try:
        assert measured(writer, *(RateOrder(elsewhere, kind) for kind in ("find", "read", "random", "open"))) == []
        assert measured(writer, RateOrder(elsewhere, "write")) == []  # no folder of ours is there
    finally:
        writer.paths.close()


def test_a_path_with_too_little_in_it_says_so_and_one_that_is_gone_has_failed(tmp_path: Path) -> None:
    few, gone = tmp_path / "few", tmp_path / "gone"
    few.mkdir()
    (few / "a").write_bytes(b"a")
    asked = (AskedPath(str(few)), AskedPath(str(gone)))
    work = RateWork(PathWork((), 0, "n0", asked), asked, 4 << 20)
    try:
        little, single, missing = measured(
            work, RateOrder(str(few), "read"), RateOrder(str(few), "open"), RateOrder(str(gone), "read")
        )
    finally:
        work.paths.close()
    assert ("too little" in little.why, "a single file" in single.why) == (True, True)
    assert (little.failed, missing.failed, missing.per_s) == (False, True, 0.0)


def test_a_node_without_others_measures_once_and_leaves_nothing(data: Path) -> None:
    rows = (DataPath(str(data), "read", Absent("not asked"), LOOK), DataPath(str(data), "write", Absent("-"), LOOK))
    paths = DataPaths(rows, rate_bytes=2 << 20)
    samples = worked_alone(Snapshot("n0", {DataPaths: paths}), time.monotonic() + PATIENCE_S)
    assert [row.kind for row in samples["data_rates"].rows] == ["read", "random", "open", "write"]
    assert not [each for each in data.iterdir() if each.name.startswith(".")]
