"""Every collective on real ranks: what is honest verifies, what is sabotaged does not."""

import struct
from typing import Any

import pytest

from ncclprobe.model.ops import DTYPES, OPS, REDOPS
from probes.gloo_ranks import printed
from tests.each_row import some


@pytest.fixture(scope="module")
def ranks() -> int:
    """How many processes: an odd number, by which few sizes can be divided."""
    return 3


@pytest.fixture(scope="module")
def said(ranks: int, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank printed, by rank."""
    store = tmp_path_factory.mktemp("store") / "file"
    return printed("gloo_rank.py", ranks, str(ranks), store)


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "place" in row]


def skipped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "why" in row]


def test_all_operations_verify_at_all_sizes_in_all_places(said: list[dict[str, Any]], ranks: int) -> None:
    rows = measured(said[0]["sweep"])
    expected = {
        (op.name, place, op.shape(nbytes, ranks, 4).nbytes)
        for op in OPS.values()
        for place in op.places
        for nbytes in (8, 1000, 64 << 10)
    }
    assert {(row["op"], row["place"], row["nbytes"]) for row in rows} == {row for row in expected if row[2]}
    assert [row for row in rows if row["wrong"] != 0] == []


def test_times_are_positive_and_consistent_with_the_bandwidths(said: list[dict[str, Any]], ranks: int) -> None:
    for row in some(measured(said[0]["sweep"])):
        assert row["issue_us"] == pytest.approx(row["time_us"]["mean"])  # blocking
        assert row["time_us"]["min"] > 0
        assert row["time_us"]["min"] <= row["time_us"]["median"] <= row["time_us"]["p95"] <= row["time_us"]["max"]
        assert row["algbw_GBps"] == pytest.approx(row["nbytes"] / row["time_us"][row["time_us"]["headline"]] / 1e3)
        assert row["slowest_rank"] in range(ranks)
        assert (row["mode"], row["backend"], row["library"]["name"]) == ("blocking", "gloo", "gloo")


def test_sizes_that_cannot_be_shared_are_said_on_every_rank(said: list[dict[str, Any]]) -> None:
    for answers in some(said):
        assert [row["op"] for row in skipped(answers["sweep"])] == [op.name for op in OPS.values() if op.divided]
        assert {row["nbytes"] for row in skipped(answers["sweep"])} == {8}


def test_all_types_verify_in_all_operations(said: list[dict[str, Any]]) -> None:
    rows = said[0]["types"]
    assert skipped(rows) == []
    assert {(row["dtype"], row["op"]) for row in rows} == {(dtype, op) for dtype in DTYPES for op in OPS}
    assert [row for row in rows if row["wrong"] != 0] == []


def test_all_reductions_verify_in_all_types_that_gloo_has_them_for(said: list[dict[str, Any]]) -> None:
    rows = said[0]["reductions"]
    assert {row["redop"] for row in measured(rows)} == set(REDOPS)
    assert [row for row in measured(rows) if row["wrong"] != 0] == []


def test_what_gloo_refuses_is_skipped_with_its_own_words_on_every_rank(said: list[dict[str, Any]]) -> None:
    integers = [dtype for dtype in DTYPES if "int" in dtype]
    for answers in some(said):
        refusals = skipped(answers["reductions"])
        assert len(refusals) == len(integers) * len([op for op in OPS.values() if op.reduces])
        assert all("can't be cast" in row["why"] for row in refusals)


def test_another_rank_than_0_reports_itself(said: list[dict[str, Any]]) -> None:
    assert {row["slowest_rank"] for row in measured(said[1]["sweep"])} == {1}


def test_every_sabotaged_operation_has_wrong_elements(said: list[dict[str, Any]]) -> None:
    rows = measured(said[0]["sabotaged"])
    assert {row["op"] for row in rows} == set(OPS)
    assert [row["op"] for row in rows if not row["wrong"]] == []


def test_one_wrong_element_of_one_rank_is_counted_as_one(said: list[dict[str, Any]]) -> None:
    [row] = [row for row in said[0]["sabotaged"] if row["op"] == "sendrecv"]
    assert row["wrong"] == 1


def test_a_wrong_element_is_shown_with_rank_offset_bits_and_who_sent_it(said: list[dict[str, Any]], ranks: int) -> None:
    [row] = [row for row in said[0]["sabotaged"] if row["op"] == "sendrecv"]
    [wrong] = row["mismatches"]
    assert (wrong["rank"], wrong["offset"], wrong["source"]) == (0, (64 << 10) // 4 - 1, ranks - 1)
    assert (wrong["got"], wrong["got_bits"]) == ("0.0", "0x00000000")
    assert struct.pack(">f", float(wrong["expected"])).hex() == wrong["expected_bits"].removeprefix("0x")


def test_every_rank_that_received_something_wrong_shows_its_first(said: list[dict[str, Any]], ranks: int) -> None:
    for row in measured(said[0]["sabotaged"]):
        seen = [wrong["rank"] for wrong in row["mismatches"]]
        assert seen == sorted(set(seen))
        assert set(seen) <= set(range(ranks))
    assert [row["mismatches"] for row in measured(said[0]["sweep"]) if row["mismatches"]] == []


def test_an_asked_precision_decides_alike_on_all_ranks(said: list[dict[str, Any]]) -> None:
    rows = [measured(answers["adaptive"]) for answers in said]
    assert len({tuple((row["iters"], row["batches"]) for row in own) for own in rows}) == 1
    for row in rows[0]:
        assert row["batches"] >= 5
        assert row["interval_us"][0] <= row["time_us"]["median"] <= row["interval_us"][1]
        assert row["precision_asked"] == 0.3


def test_times_of_every_rank_and_batch_are_kept(said: list[dict[str, Any]], ranks: int) -> None:
    for row in some(measured(said[0]["adaptive"])):
        samples = row["samples"]
        assert (len(samples["by_rank"]), len(samples["by_batch"])) == (ranks, row["batches"])
        assert [len(each) for each in samples["each"]] == [row["batches"]] * ranks
        assert sum(samples["by_batch"]) / row["batches"] == pytest.approx(row["time_us"]["mean"], rel=1e-3)


def test_arrivals_are_noted_for_every_rank(said: list[dict[str, Any]], ranks: int) -> None:
    for row in some(measured(said[0]["adaptive"])):
        assert row["skew"]["rounds"] > 0
        assert len(row["skew"]["late_us"]) == ranks
        assert row["skew"]["transfer_us"] > 0
