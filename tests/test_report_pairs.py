"""Pairs in the report: a matrix where it fits, else the worst, and the localisation in words; what options ask for."""

from itertools import permutations

import pytest

from ncclprobe.commands.pairs import parse
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Mismatch
from ncclprobe.model.pair_results import (
    Aside,
    Blamed,
    Inside,
    Localisation,
    LostPair,
    PairRow,
    WrongBytes,
)
from ncclprobe.model.values import replace
from ncclprobe.report.pairs import blocks
from tests.each_row import each_row

SLOW = Blamed("out of n1", "node", ("n1",), None, "out", 0.1, 0.999, 8, 8, 2, 3)


def row(src: int, dst: int, *, both: bool = False, step: int = 0, rate: float = 2.0) -> PairRow:
    return PairRow(
        src=src, dst=dst, src_end=f"n{src}", dst_end=f"n{dst}", nbytes=4 << 20, latency_nbytes=8, latency_us=12.5,
        GBps=rate, time_us=100.0, min_us=90.0, max_us=110.0, samples_us=(100.0,) * 5, both=both, step=step,
    )  # fmt: skip


def shown(rows: list[PairRow], found: Localisation | None = None) -> str:
    return "\n".join(line for block in blocks(rows, found, 200) for line in block)


def test_a_matrix_has_a_line_per_sender_and_a_dash_for_what_was_not_measured() -> None:
    text = shown([row(0, 1, rate=1.5), row(1, 0, rate=3.0), row(1, 2), row(2, 1), row(0, 1, step=1, rate=9.0)])
    _, bandwidth = text.split("bandwidth of 4 MiB")
    lines = [line.split() for line in bandwidth.splitlines()[1:5]]
    assert lines == [["from\\to", "0", "1", "2"], ["0", "-", "1.50", "-"], ["1", "3.00", "-", "2.00"],
                     ["2", "-", "2.00", "-"]]  # fmt: skip
    assert "9.00" not in text
    assert "0 is n0, 1 is n1, 2 is n2" in text


def test_beyond_sixteen_ranks_the_slowest_directions_are_listed_instead() -> None:
    rows = [row(src, dst, rate=0.25 if (src, dst) == (3, 7) else 2.0) for src, dst in permutations(range(17), 2)]
    text = shown(rows)
    assert "from\\to" not in text
    assert text.splitlines()[1].strip() == "n3 to n7: 0.250 GB/s, latency 12.5 us"
    assert len(text.splitlines()) == 11


def test_who_is_confirmed_cleared_and_lost_is_said_in_words() -> None:
    lost = LostPair("n2", "n3", "timed out")
    text = shown([], Localisation(4, "node", (SLOW,), cleared=("into n0",), lost=(lost, lost), tests=36, steps=1))
    assert "confirmed: out of n1 (node): 10 % of the usual bandwidth" in text
    assert "slow once, but not when retested: into n0" in text
    assert text.count("lost: n2 to n3") == 1
    assert "nobody" not in text


def test_what_is_slow_inside_nodes_and_who_was_set_aside_is_said_in_words() -> None:
    slow = Inside("rank 4 with rank 5 inside n1", "pair", "n1", (4, 5), 0.25, 20.0, 3)
    first = Mismatch(4, 9, 0, "7", "6", "0x07", "0x06")
    aside = (Aside(2, "n2 (eth0)", "timed out"), Aside(3, "rank 3", "silent", gone=True))
    found = Localisation(
        4, "nobody", tests=3, intra_node=(slow,),
        excluded_ranks=aside,
        wrong=(WrongBytes(0, 4, "n0", "n4", 12, first),), complete=False,
    )  # fmt: skip
    text = shown([], found)
    assert "confirmed: rank 4 with rank 5 inside n1 (pair): 25 % of its peers' bandwidth, 3 of 3 times" in text
    assert "set aside: n2 (eth0) (rank 2), rank 3, which is gone" in text
    assert "wrong bytes: n0 to n4" in text
    assert "the run ended before all pairs were measured" in text


def test_a_rank_that_plays_inside_and_between_is_called_by_its_end_in_the_fabric() -> None:
    inside = replace(row(0, 1), src_end="rank 0 on n0", dst_end="rank 1 on n0", inside=True)
    assert "0 is n0, 1 is rank 1 on n0, 2 is n2" in shown([row(0, 2), row(2, 0), inside])
    many = [row(src, dst) for src, dst in permutations(range(17), 2)]
    text = shown([*many, replace(inside, GBps=9.0)])
    assert "the slowest of 1 direction between 17 ranks, inside nodes, 4 MiB:" in text


def test_nothing_is_shown_of_pairs_that_nobody_asked_for() -> None:
    assert shown([]) == ""


def test_pairs_have_a_latencys_size_and_a_bandwidths() -> None:
    assert (parse([]).rounds, parse([]).pair_sizes) == (None, (8,))
    asked = parse(["--rounds", "3", "-b", "16", "-e", "1M"])
    assert (asked.rounds, asked.pair_sizes, asked.notes) == (3, (16, 1 << 20), ())


@each_row("argv", [["--rounds", "0"], ["--rounds", "-1"], ["--rounds", "x"], ["-b", "0"]])
def test_no_rounds_and_no_bytes_are_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(argv)
