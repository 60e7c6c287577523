"""Pairs on real ranks: two that never get through, which ends no other rank's part; wrong bytes; own collectives."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.localise.pairs.rounds import place_ranks
from ncclprobe.localise.pairs.samples import End
from probes.gloo_ranks import printed

RANKS, SILENT, DEAF = 5, 2, 1


def played(store: Path, hosts: str, planted: str, one: int, other: int) -> list[dict[str, Any]]:
    """What every rank printed, by rank."""
    return printed("gloo_pairs.py", len(hosts.split(",")), hosts, store, planted, one, other)


@pytest.mark.slow
def test_a_pair_that_hangs_is_named_and_its_two_ranks_connect_anew_and_play_on(tmp_path: Path) -> None:
    said = played(tmp_path / "store", ",".join("h" * RANKS), "silent", SILENT, DEAF)
    found, rows = said[0]["found"], said[0]["rows"]
    lost = {(each["src"], each["dst"]) for each in found["lost"]}
    assert lost == {(f"rank {SILENT}", f"rank {DEAF}"), (f"rank {DEAF}", f"rank {SILENT}")}
    assert [each["lost"] for each in said] == [rank == DEAF for rank in range(RANKS)]
    one_way = {(row["src"], row["dst"]) for row in rows if not row["both"] and not row["step"]}
    assert one_way == {pair for pair in permutations(range(RANKS), 2) if {*pair} != {SILENT, DEAF}}
    assert found["excluded_ranks"] == []
    assert all(row["GBps"] > 0 and row["latency_us"] > 0 and len(row["samples_us"]) == 5 for row in rows)


@pytest.mark.slow
def test_three_nodes_of_two_ranks_play_alone_inside_and_between_and_a_wrong_byte_is_named(tmp_path: Path) -> None:
    said = played(tmp_path / "store", "a,a,b,b,c,c", "flip", 0, 4)
    found, rows = said[0]["found"], said[0]["rows"]
    first = [(row["src"], row["dst"]) for row in rows if not row["both"] and not row["step"] and row["inside"]]
    assert sorted(first) == [(rank, rank ^ 1) for rank in range(6)]
    across = [(row["src"], row["dst"]) for row in rows if not row["both"] and not row["step"] and not row["inside"]]
    assert sorted(across) == sorted(pair for pair in permutations(range(6), 2) if (pair[0] - pair[1]) % 2 == 0)
    assert {(each["src"], each["dst"], each["first"]["offset"]) for each in found["wrong"]} == {(0, 4, 5)}
    first_bits = found["wrong"][0]["first"]
    assert int(first_bits["expected_bits"], 16) ^ int(first_bits["got_bits"], 16) == 1
    assert found["wrong"][0]["wrong"] == len(range(5, 65536, 1021))
    assert (found["lost"], found["excluded_ranks"]) == ([], [])


def test_ranks_of_one_node_play_for_themselves_and_ranks_of_several_by_rail() -> None:
    assert place_ranks(["h", "h"]).ends == (End("rank 0"), End("rank 1"))
    assert place_ranks(["a", "a", "b", "b"]).ends == (End("a", 0), End("a", 1), End("b", 0), End("b", 1))
