"""Collectives and pairs on real ranks: what is honest verifies, what is sabotaged does not."""

import struct
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from ncclprobe.model.ops import DTYPES, OPS, REDOPS
from probes.gloo_ranks import printed
from tests.each_row import some

RANKS = 3  # an odd number, by which few sizes can be divided
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What every rank printed, by rank."""
    return printed("gloo_rank.py", RANKS, str(RANKS), tmp_path_factory.mktemp("store") / "file")


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
        assert (row["wrong"], row["mismatches"]) == (0, [])
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


def one_way(rows: Rows, inside: bool) -> list[tuple[int, int]]:
    pairs = [row for row in rows if not row["both"] and not row["step"] and row["inside"] is inside]
    return sorted((row["src"], row["dst"]) for row in pairs)


@pytest.mark.slow
def test_a_pair_that_hangs_is_named_and_its_two_ranks_connect_anew_and_play_on(tmp_path: Path) -> None:
    silent, deaf = 2, 1
    said = printed("gloo_pairs.py", 5, "h,h,h,h,h", tmp_path / "store", "silent", silent, deaf)
    found, rows = said[0]["found"], said[0]["rows"]
    lost = {(each["src"], each["dst"]) for each in found["lost"]}
    assert lost == {(f"rank {silent}", f"rank {deaf}"), (f"rank {deaf}", f"rank {silent}")}
    assert [each["lost"] for each in said] == [rank == deaf for rank in range(5)]
    played = {(row["src"], row["dst"]) for row in rows if not row["both"] and not row["step"]}
    assert played == {pair for pair in permutations(range(5), 2) if {*pair} != {silent, deaf}}
    assert found["excluded_ranks"] == []
    assert all(row["GBps"] > 0 and row["latency_us"] > 0 and len(row["samples_us"]) == 5 for row in rows)


@pytest.mark.slow
def test_three_nodes_of_two_ranks_play_alone_inside_and_between_and_a_wrong_byte_is_named(tmp_path: Path) -> None:
    said = printed("gloo_pairs.py", 6, "a,a,b,b,c,c", tmp_path / "store", "flip", 0, 4)
    found, rows = said[0]["found"], said[0]["rows"]
    assert one_way(rows, inside=True) == [(rank, rank ^ 1) for rank in range(6)]
    assert one_way(rows, inside=False) == [pair for pair in permutations(range(6), 2) if (pair[0] - pair[1]) % 2 == 0]
    assert {(each["src"], each["dst"], each["first"]["offset"]) for each in found["wrong"]} == {(0, 4, 5)}
    first = found["wrong"][0]["first"]
    assert int(first["expected_bits"], 16) ^ int(first["got_bits"], 16) == 1
    assert found["wrong"][0]["wrong"] == len(range(5, 65536, 1021))
    assert (found["lost"], found["excluded_ranks"]) == ([], [])
