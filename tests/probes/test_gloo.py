"""Every collective on three real ranks, one of them this process: what is honest verifies, what is not does not."""

import itertools
import json
import os
import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conftest import ROOT
from launching import Launcher

torch = pytest.importorskip("torch")
import torch.distributed as dist

from ncclprobe.host.live import LiveHost
from ncclprobe.model.ops import DTYPES, OPS, REDOPS
from ncclprobe.model.values import asdict
from ncclprobe.probes import collectives
from ncclprobe.probes.plan import Plan
from ncclprobe.probes.sweep import run
from ncclprobe.session.ranks.identity import RankIdentity
from ncclprobe.session.ranks.store import Exchange
from tests.each_row import some

KiB = 1 << 10
RANKS = 3  # an odd number, by which few sizes can be divided
Rows = list[dict[str, Any]]
OTHERS = """
import json, os, pathlib, sys
from probes.test_gloo import measure
for rank in (1, 2):
    if not os.fork():
        pathlib.Path(sys.argv[1] + str(rank)).write_text(json.dumps(measure(rank, sys.argv[1])))
        os._exit(0)
sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in "12"))
"""


def one_rank_is_missing(tensor: torch.Tensor, op: Any, _group: None) -> None:
    """The last rank's contribution to a sum is lost."""
    if dist.get_rank() == RANKS - 1:
        tensor.zero_()
    dist.distributed_c10d.all_reduce(tensor, op)


def shares_in_reverse(
    output: torch.Tensor, own: torch.Tensor, _group: None, original: Callable[..., Any] = collectives._all_gather
) -> None:
    """All shares arrive, in the wrong order."""
    original(output, own)
    output.copy_(output.view(RANKS, -1).flip(0).flatten())


def share_of_a_neighbour(
    output: torch.Tensor,
    whole: torch.Tensor,
    op: Any,
    _group: None,
    original: Callable[..., Any] = collectives._reduce_scatter,
) -> None:
    """Each rank ends with the share of the one before."""
    original(output, whole.roll(output.numel()), op)


def nothing_is_exchanged(output: torch.Tensor, own: torch.Tensor, group: None) -> None:
    """Every rank keeps what it had."""
    output.copy_(own)


def from_another_root(tensor: torch.Tensor, root: int, _group: None) -> None:
    """Rank 1 sends instead of the root."""
    dist.distributed_c10d.broadcast(tensor, 1)


def one_element_late(tensor: torch.Tensor, root: int, op: Any, _group: None) -> None:
    """The result lies one element too far."""
    dist.distributed_c10d.reduce(tensor, root, op)
    tensor.copy_(tensor.roll(1))


def gathered_in_reverse(own: torch.Tensor, shares: list[torch.Tensor] | None, root: int, _group: None) -> None:
    """The root puts the shares in the wrong order."""
    dist.distributed_c10d.gather(own, shares[::-1] if shares else None, root)


def scattered_in_reverse(own: torch.Tensor, shares: list[torch.Tensor] | None, root: int, _group: None) -> None:
    """The root deals the shares in the wrong order."""
    dist.distributed_c10d.scatter(own, shares[::-1] if shares else None, root)


def received_without_its_last_element(batch: list[dist.P2POp]) -> list[Any]:
    """The last element arrives as zero on rank 0."""
    works = dist.distributed_c10d.batch_isend_irecv(batch)
    for work in works:
        work.wait()
    if dist.get_rank() == 0:
        batch[1].tensor[-1] = 0
    return []


SABOTAGES: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "all_reduce": (dist, "all_reduce", one_rank_is_missing),
    "all_gather": (collectives, "_all_gather", shares_in_reverse),
    "reduce_scatter": (collectives, "_reduce_scatter", share_of_a_neighbour),
    "all_to_all": (dist, "all_to_all_single", nothing_is_exchanged),
    "broadcast": (dist, "broadcast", from_another_root),
    "reduce": (dist, "reduce", one_element_late),
    "gather": (dist, "gather", gathered_in_reverse),
    "scatter": (dist, "scatter", scattered_in_reverse),
    "sendrecv": (dist, "batch_isend_irecv", received_without_its_last_element),
}


def measure(rank: int, store_file: str) -> dict[str, Any]:
    """Measure plans, honest and sabotaged, as this rank."""
    store = dist.FileStore(store_file, RANKS)
    seat = RankIdentity("environment", rank, RANKS, rank, RANKS, nnodes=1, address="", port=0)
    host, exchange = LiveHost((), lambda name: False), Exchange(store, seat, deadline_s=60)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    small = {"sizes": (8, 1000, 64 * KiB), "iters": 2, "warmup": 1, "footprint_bytes": 256 * KiB}
    brief = {"sizes": (4 * KiB,), "iters": 1, "warmup": 0, "batches": 1, "rounds": 0}

    def rows(*ops: str, **changes: Any) -> Rows:
        plan = Plan(ops=ops, rank=rank, ranks=RANKS, backend="gloo", **(small | changes))
        return [asdict(row) for row in run(plan, exchange, lambda phase: None, host=host)]

    said: dict[str, Any] = {"sweep": rows(*OPS, iters=4)}
    said["types"] = [row for dtype in DTYPES for row in rows(*OPS, dtype=dtype, **brief)]
    reductions = tuple(op.name for op in OPS.values() if op.reduces)
    said["reductions"] = [
        row
        for redop, dtype in itertools.product(REDOPS, DTYPES)
        for row in rows(*reductions, dtype=dtype, redop=redop, **brief)
    ]
    said["adaptive"] = rows("all_reduce", "broadcast", precision=0.3, budget_s=0.5, dtype="float64")
    said["sabotaged"] = []
    for name, (where, attribute, replacement) in SABOTAGES.items():
        with patch.object(where, attribute, replacement):
            said["sabotaged"] += rows(name, sizes=(64 * KiB,))
    dist.barrier()
    dist.destroy_process_group()
    return said


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What every rank measured; this process is the first."""
    lab = Launcher(tmp_path_factory.mktemp("ranks"))
    path = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))), "GLOO_SOCKET_IFNAME": "lo"}
    store = str(lab.folder / "store")
    others = lab.start(["-c", OTHERS, store], path)
    with patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": "lo"}):
        own = measure(0, store)
    assert others.wait() == 0, others.err
    return [own, *(json.loads(Path(f"{store}{rank}").read_text()) for rank in (1, 2))]


def measured(rows: Rows) -> Rows:
    return some(row for row in rows if "place" in row)


def skipped(rows: Rows) -> Rows:
    return [row for row in rows if "why" in row]


def test_all_operations_verify_at_all_sizes_in_all_places_and_times_are_consistent(said: Rows) -> None:
    rows = measured(said[0]["sweep"])
    expected = {
        (op.name, place, op.shape(nbytes, RANKS, 4).nbytes)
        for op in OPS.values()
        for place in op.places
        for nbytes in (8, 1000, 64 << 10)
    }
    assert {(row["op"], row["place"], row["nbytes"]) for row in rows} == {row for row in expected if row[2]}
    for row in rows:
        times = row["time_us"]
        assert (row["wrong"], *row["mismatches"]) == (0,)
        assert row["issue_us"] == pytest.approx(times["mean"])  # blocking
        assert 0 < times["min"] <= times["median"] <= times["p95"] <= times["max"]
        assert row["algbw_GBps"] == pytest.approx(row["nbytes"] / times[times["headline"]] / 1e3)
        assert row["slowest_rank"] in range(RANKS)
        assert (row["mode"], row["backend"], row["library"]["name"]) == ("blocking", "gloo", "gloo")
    assert {row["slowest_rank"] for row in measured(said[1]["sweep"])} == {1}, "another rank reports itself"
    for answers in said:
        left_out = [(row["op"], row["nbytes"]) for row in skipped(answers["sweep"])]
        assert left_out == [(op.name, 8) for op in OPS.values() if op.divided]


def test_all_types_and_reductions_verify_that_gloo_has_and_what_it_refuses_is_skipped_in_its_words(said: Rows) -> None:
    types, reductions = said[0]["types"], said[0]["reductions"]
    assert skipped(types) == []
    assert {(row["dtype"], row["op"]) for row in types} == {(dtype, op) for dtype in DTYPES for op in OPS}
    assert {row["redop"] for row in measured(reductions)} == set(REDOPS)
    assert [row for row in measured(types) + measured(reductions) if row["wrong"] != 0] == []
    integers = [dtype for dtype in DTYPES if "int" in dtype]
    for answers in said:
        refusals = skipped(answers["reductions"])
        assert len(refusals) == len(integers) * len([op for op in OPS.values() if op.reduces])
        assert all("can't be cast" in row["why"] for row in refusals)


def test_every_sabotaged_operation_has_wrong_elements_and_each_rank_shows_its_first(said: Rows) -> None:
    rows = measured(said[0]["sabotaged"])
    assert {row["op"] for row in rows} == set(OPS)
    for row in rows:
        assert row["wrong"], row["op"]
        seen = [wrong["rank"] for wrong in row["mismatches"]]
        assert seen == sorted(set(seen))
        assert set(seen) <= set(range(RANKS))
    [row] = [row for row in rows if row["op"] == "sendrecv"]
    [wrong] = row["mismatches"]
    assert (row["wrong"], wrong["rank"], wrong["offset"], wrong["source"]) == (1, 0, (64 << 10) // 4 - 1, RANKS - 1)
    assert (wrong["got"], wrong["got_bits"]) == ("0.0", "0x00000000")
    assert struct.pack(">f", float(wrong["expected"])).hex() == wrong["expected_bits"].removeprefix("0x")


def test_an_asked_precision_decides_alike_on_all_ranks_and_all_times_and_arrivals_are_kept(said: Rows) -> None:
    rows = [measured(answers["adaptive"]) for answers in said]
    assert len({tuple((row["iters"], row["batches"]) for row in own) for own in rows}) == 1
    for row in rows[0]:
        samples, batches = row["samples"], row["batches"]
        assert batches >= 5
        assert row["interval_us"][0] <= row["time_us"]["median"] <= row["interval_us"][1]
        assert row["precision_asked"] == 0.3
        assert (len(samples["by_rank"]), len(samples["by_batch"])) == (RANKS, batches)
        assert [len(each) for each in samples["each"]] == [batches] * RANKS
        assert sum(samples["by_batch"]) / batches == pytest.approx(row["time_us"]["mean"], rel=1e-3)
        assert (row["skew"]["rounds"] > 0, len(row["skew"]["late_us"])) == (True, RANKS)
        assert row["skew"]["transfer_us"] > 0
