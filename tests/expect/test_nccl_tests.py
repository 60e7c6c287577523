"""nccl-tests' JSON and tables: what its versions wrote is read, what we write is read back, nothing hostile hurts."""
# ruff: noqa: E501 - the tables of nccl-tests are wide

import contextlib
from collections.abc import Sequence

import pytest
from conftest import fact_rows
from hypothesis import example, given
from hypothesis import strategies as st

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect.log_findings import average, steps
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import replace
from ncclprobe.nccl_tests import parse_json, parse_text
from ncclprobe.nccl_tests.rows import Line, Setup, measurement, op_name, version
from tests.each_row import each_row
from tests.facts.made_up_tables import ALL_REDUCE, HEAD, NEW, NOTHING, ONE_RANK, RANKS, START


def test_the_rows_of_nothing_count_in_the_average_and_a_row_of_one_rank_has_its_time() -> None:
    """All that is read of a row is in tests/data/command_values/tables.txt."""
    (run,) = parse_text(HEAD + NEW + NOTHING + ALL_REDUCE, "log")
    assert (len(run.rows), run.log.empty) == (2, 2)
    assert not [*average(run.rows, 54.02, run.log.empty)]
    assert [*average(run.rows, 108.04, run.log.empty)]
    for time, rate in (("0.44", "5e+06"), ("1.53", "1e+06")):  # a bandwidth of one digit
        (alone,) = parse_text(ONE_RANK.replace("0.44   5e+06", f"{time}   {rate}"), "x")
        assert ([row.time_us.mean for row in alone.rows if row.place == "in"], alone.missing) == (
            [float(time), 1.25],
            "",
        )


@each_row(
    ("first", "rates", "found"),
    [
        (32, (10, 20, 9.9), "WARN: 64 MiB jumps to 20 GB/s, 2.0x more: its neighbours reach 10 and 9.9 GB/s"),
        (32, (3, 3, 5.9, 3), "WARN: 256 MiB drops to 3 GB/s, 2.0x less than the 5.9 GB/s of 128 MiB"),
        (32, (10, 10, 6.7, 6.6), "WARN: 256 MiB drops to 6.6 GB/s, 1.5x less than the 10 GB/s of 32 MiB"),
        (32, (20, 5, 4, 20), "WARN: 64 MiB to 128 MiB drops to 4 GB/s, 5.0x less than the 20 GB/s of 32 MiB"),
        (32, (10, 10, 7.6, 13), "WARN: 128 MiB drops to 7.6 GB/s, 1.3x less than the 10 GB/s of 32 MiB"),
        (32, (10, 10, 7.7, 13), ""), (32, (10, 10, 7.7, 20), ""), (1, (10, 5.01, 10), ""), (0.5, (10, 4, 10), ""),
        (1, (10, 5, 10), "WARN: 2 MiB drops to 5 GB/s, 2.0x less than the 10 GB/s of 1 MiB"), (32, (0, 0, 5), ""),
    ],
)  # fmt: skip
def test_a_drop_a_dip_and_a_jump_are_found_at_their_limits(first: float, rates: Sequence[float], found: str) -> None:
    sizes = [int(first * (1 << 20)) << at for at in range(len(rates))]
    rows = [replace(ROW, nbytes=size, busbw_GBps=rate) for size, rate in zip(sizes, rates, strict=True)]
    told = [str(each).replace("all_reduce of ", "").replace(" (in place)", "") for each in steps(rows)]
    assert told == ([found] if found else [])


words = st.sampled_from(
    ["67108864", "16777216", "float", "sum", "-1", "1090.5", "61.54", "N/A", "0", "nan", "1e999", "#", "-5"]
)
rows_ = st.lists(st.lists(words, min_size=1, max_size=16).map(" ".join), max_size=5).map("\n".join)


@given(rows_ | st.text())
@example("67108864 67108864 67108864 67108864 67108864 67108864 67108864 67108864 1e999")
def test_no_text_is_a_surprise(text: str) -> None:
    with contextlib.suppress(UsageError):
        for run in parse_text(START.format("all_reduce") + RANKS + NEW + text, "log"):
            assert all(row.busbw_GBps >= 0 and row.nbytes > 0 for row in run.rows)
    with contextlib.suppress(UsageError):
        parse_json(text, "j")


def test_every_vector_of_nccl_tests_gives_its_bandwidths() -> None:
    types = {1: "int8", 2: "half", 4: "float", 8: "double"}
    checked = 0
    for row_ in fact_rows("nccl_tests_vectors.csv"):
        vector = {name: float(value) for name, value in row_.items() if name != "coll"}
        setup = Setup(op_name(row_["coll"] + "_perf"), int(vector["nranks"]), 1, "queued", 1, "2")
        line = Line(int(vector["printed_size"]), int(vector["printed_count"]), types[int(vector["elt"])], "sum", "out", 1000.0,
                    vector["algbw_at_1ms"], vector["busbw_at_1ms"], 0)  # fmt: skip
        if row := measurement(line, setup):
            checked += 1
            assert row.algbw_GBps == pytest.approx(vector["algbw_at_1ms"], rel=1e-6)
            assert row.busbw_GBps == pytest.approx(vector["busbw_at_1ms"], rel=1e-6)
    assert checked > 500
    assert [version(code) for code in (22809, 2804, 21805)] == ["2.28.9", "2.8.4", "2.18.5"]
