"""nccl-tests' JSON and tables: what its versions wrote is read, what we write is read back, nothing hostile hurts."""
# ruff: noqa: E501 - the tables of nccl-tests are wide

import contextlib
import json
import re
from typing import Any

import pytest
from conftest import fact_rows
from hypothesis import example, given
from hypothesis import strategies as st

from ncclprobe.expect.log_findings import average
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import NodeRow, Report, Tool
from ncclprobe.nccl_tests import parse_json, parse_text
from ncclprobe.nccl_tests.rows import Line, Setup, measurement, op_name, version
from tests.each_row import each_row

RANKS = "".join(f"#  Rank {n:2d} Group  0 Pid   1000 on  node{n // 4} device {n % 4:2d} [0000:07:00] NVIDIA H100\n"
                for n in range(8))  # fmt: skip
START = "# Collective test starting: {}_perf\n# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
NEW = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)\n"
)
END = "# Out of bounds values : {} {}\n# Avg bus bandwidth    : 64.27\n#\n"
ALL_REDUCE = "  67108864      16777216     float     sum      -1   1090.5   61.54  107.69      0   1083.5   61.94  108.39      0\n"


def one(text: str) -> tuple[Measurement, ...]:
    (run,) = parse_text(text, "log")
    return run.rows


def test_both_placements_of_a_line_are_rows() -> None:
    (run,) = parse_text(START.format("all_reduce") + RANKS + NEW + ALL_REDUCE + END.format(0, "OK"), "log")
    out, within = run.rows
    assert (out.op, out.nbytes, out.place, out.ranks, out.nodes, out.wrong) == ("all_reduce", 1 << 26, "out", 8, 2, 0)
    assert (out.dtype, out.redop, out.iters, out.mode, out.backend) == ("float32", "sum", 20, "queued", "nccl")
    assert out.busbw_GBps == pytest.approx(107.69, rel=1e-3)
    assert within.place == "in"
    assert within.busbw_GBps == pytest.approx(108.39, rel=1e-3)
    assert run.fingerprint is not None
    assert run.fingerprint.machine == {"gpu": "4 x NVIDIA H100"}


def test_lines_of_launchers_and_of_nccl_do_not_disturb() -> None:
    text = START.format("all_reduce") + RANKS + NEW + "node0:12:34 [0] NCCL INFO Channel 00/08\n" + ALL_REDUCE
    marked = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    assert one(marked) == one(text)
    assert one("".join(f"0: {line}\n" for line in text.splitlines())) == one(text)


def test_per_iteration_columns_and_time_stamps_are_passed_over() -> None:
    header = "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp\n"
    row = "67108864 16777216 float sum -1 1090.5 61.54 107.69 0 1000 1200 1190 3.1 1083.5 61.94 108.39 0 990 1100 1099 2.0 2026-06-01 10:11:12\n"
    assert [r.busbw_GBps for r in one(START.format("all_reduce") + RANKS + header + row)] == pytest.approx(
        [107.69, 108.39], rel=1e-3
    )


def test_an_old_table_has_an_error_and_no_root() -> None:
    header = "#       size         count      type   redop     time   algbw   busbw     error     time   algbw   busbw     error\n"
    row = "  67108864      16777216     float     sum   1090.5   61.54  107.69     2e-07   1083.5   61.94  108.39     0e+00\n"
    rows = one(START.format("all_reduce") + RANKS + header + row)
    assert [r.wrong for r in rows] == [None, 0]


def test_in_place_marked_na_is_not_verified_and_a_size_of_nothing_is_no_row() -> None:
    text = START.format("alltoall") + RANKS + NEW
    text += "           0             0     float    none      -1    10.00    0.00    0.00       0    10.00    0.00    0.00    N/A\n"
    text += "    67108864       2097152     float    none      -1   1000.0   67.11   58.72       0   1000.0   67.11   58.72    N/A\n"
    rows = one(text)
    assert [(r.op, r.place, r.wrong) for r in rows] == [("all_to_all", "out", 0), ("all_to_all", "in", None)]


def test_a_blank_out_of_place_leaves_the_row_in_place() -> None:
    blank = "    67108864      16777216     float     sum      -1" + " " * 32 + "   1083.5   61.94  108.39       0\n"
    assert [r.place for r in one(START.format("all_reduce") + RANKS + NEW + blank)] == ["in"]


def test_several_runs_in_one_log_are_several_runs() -> None:
    gather = "    67108864       2097152     float    none      -1   1000.0   67.11   58.72       0   1000.0   67.11   58.72       0\n"
    text = START.format("all_reduce") + RANKS + NEW + ALL_REDUCE + END.format(0, "OK")
    text += START.format("all_gather") + RANKS + NEW + gather + END.format(3, "FAILED")
    first, second = parse_text(text, "log")
    assert (first.rows[0].op, second.rows[0].op) == ("all_reduce", "all_gather")
    assert (first.failed, second.failed) == ("", "Out of bounds values : 3 FAILED")
    assert second.rows[0].wrong is None


def test_an_operation_that_nobody_named_is_found_by_its_numbers_where_only_one_fits() -> None:
    assert one(RANKS + NEW + ALL_REDUCE)[0].op == "all_reduce"
    row = "67108864 2097152 float none -1 1000.0 67.11 58.72 {0} 1000.0 67.11 58.72 {1}\n"
    assert one(RANKS + NEW + row.format("0", "0"))[0].op == "all_gather"
    assert one(RANKS + NEW + row.format("0", "N/A"))[0].op == "all_to_all"
    (run,) = parse_text(RANKS + NEW + row.format("N/A", "N/A"), "log")
    assert (run.rows[0].op, "all_gather or all_to_all" in run.missing) == ("unknown", True)
    exchange = "67108864 67108864 uint8 sum -1 1000.0 67.11 67.11 0 1000.0 67.11 67.11 N/A\n"  # no all_reduce of two
    (run,) = parse_text(NEW + exchange, "log")
    assert (run.rows[0].op, "give --op" in run.missing) == ("unknown", True)


def test_numbers_of_another_operation_are_shown_as_printed_and_lack_agreement() -> None:
    (run,) = parse_text(START.format("reduce") + RANKS + NEW + ALL_REDUCE, "log")
    assert "is printed, and reduce over 8 ranks would be" in run.missing
    assert [(row.ranks, row.busbw_GBps) for row in run.rows] == [(0, 107.69), (0, 108.39)]


@each_row("text", ["", "hello\n", NEW, "a: CUDA error: 700\n", "1 2 3\n", NEW + "8 2 float sum -1 x x x x x x x x\n"])
def test_a_text_without_rows_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_text(text, "log")


def test_ranks_are_told_by_the_factor_where_no_device_is_listed() -> None:
    assert one(START.format("all_reduce") + NEW + ALL_REDUCE)[0].ranks == 8


def test_rows_below_a_gigabyte_a_second_tell_their_ranks_too() -> None:
    slow = "1073741824 268435456 float sum -1 1121937 0.96 1.44 0 1120530 0.96 1.44 0\n"
    assert [(row.op, row.ranks) for row in one(NEW + slow)] == [("all_reduce", 4)] * 2


def test_a_tag_before_each_piece_of_a_row_is_no_part_of_its_numbers() -> None:
    tagged = ALL_REDUCE.replace("      -1   ", "      -1[0]   ").replace("      0   ", "      0[0]   ", 1)
    assert tagged.count("[0]") == 2
    assert one("[0]" + NEW + "[0]" + tagged) == one(NEW + ALL_REDUCE)
    with pytest.raises(UsageError):
        one("[1]" + NEW + "[1]" + tagged)  # another process wrote into the row


def test_an_old_all_gather_prints_its_bus_bandwidth_twice() -> None:
    header = "# size count type time algbw busbw error time algbw busbw error\n"
    rows = dict.fromkeys(("all_gather", "broadcast"), "8589934592 {} float 100000 {} {} 0e+00 100000 {} {} 0e+00\n")
    old = rows["all_gather"].format(1 << 28, *["75.16"] * 4)  # 8 GiB in 0.1 s, 7/8 of it from others
    assert one(START.format("all_gather") + RANKS + header + old)[0].busbw_GBps == pytest.approx(75.16, rel=1e-3)
    broadcast = START.format("broadcast") + RANKS + header + rows["broadcast"].format(1 << 31, *["75.16"] * 4)
    assert [run.missing[:27] for run in parse_text(broadcast, "log")] == ["its numbers do not agree: 7"]


def test_the_rows_of_nothing_count_in_the_average_of_the_summary() -> None:
    nothing = "0 0 float sum -1 10.00 0.00 0.00 0 10.00 0.00 0.00 0\n"
    (run,) = parse_text(START.format("all_reduce") + RANKS + NEW + nothing + ALL_REDUCE, "log")
    assert (len(run.rows), run.log.empty) == (2, 2)
    assert not [*average(run.rows, 54.02, run.log.empty)]
    assert [*average(run.rows, 108.04, run.log.empty)]


@given(st.text())
def test_no_text_is_a_surprise(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_text(NEW + text, "log")
    with contextlib.suppress(UsageError):
        parse_json(text, "j")


words = st.sampled_from(
    ["67108864", "16777216", "float", "sum", "-1", "1090.5", "61.54", "N/A", "0", "nan", "1e999", "#", "-5"]
)


@given(st.lists(st.lists(words, min_size=1, max_size=16).map(" ".join), max_size=5).map("\n".join))
@example("67108864 67108864 67108864 67108864 67108864 67108864 67108864 67108864 1e999")
def test_no_row_is_a_surprise(rows: str) -> None:
    with contextlib.suppress(UsageError):
        for run in parse_text(START.format("all_reduce") + RANKS + NEW + rows, "log"):
            assert all(row.busbw_GBps >= 0 and row.nbytes > 0 for row in run.rows)


DOCUMENT: dict[str, Any] = {
    "version": 3,
    "start_time": "2026-06-01 10:00:00",
    "args": ["./build/all_reduce_perf", "-J", "x"],
    "env": ["SECRET=1"],
    "nccl_version": 22809,
    "config": {
        "nthreads": 1, "ngpus": 1, "iterations": 20, "aggregated_iterations": 1, "graph": 0,
        "blocking_collectives": "false",
        "devices": [{"rank": n, "group": 0, "hostname": "a", "device_info": "NVIDIA H100"} for n in range(8)],
    },
    "results": [
        {
            "size": 67108864, "count": 16777216, "type": "float", "redop": "sum", "root": "    -1",
            "out_of_place": None,
            "in_place": {"time": 1083.5, "alg_bw": 61.94, "bus_bw": 108.39, "nwrong": 0.0},
            "actual_iterations": 20, "experiment_name": "",
        }
    ],
    "out_of_bounds": {"count": 0, "okay": "true"},
    "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"},
    "errors": [""],
}  # fmt: skip


def changed(**parts: Any) -> str:
    return json.dumps({**DOCUMENT, **parts})


def test_one_rank_in_place_is_read_whose_bandwidth_has_one_digit() -> None:
    """Rows of nccl-tests 2.19.6 on one H100, where an all_reduce in place has nothing to do."""
    (run,) = parse_text(
        "# Collective test starting: all_reduce_perf\n"
        "#  Rank  0 Group  0 Pid   1141 on         vm device  0 [0000:00:06] NVIDIA H100 80GB HBM3\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw"
        "  #wrong \n"
        "  2147483648     536870912     float     sum      -1  1421.27  1511.0    0.00    N/A     0.44   5e+06    0.00"
        "    N/A\n"
        "  4294967296    1073741824     float     sum      -1  2838.46  1513.1    0.00    N/A     1.25   3e+06    0.00"
        "    N/A\n",
        "x",
    )
    assert [row.time_us.mean for row in run.rows if row.place == "in"] == [0.44, 1.25]


def test_json_with_its_quirks_is_read() -> None:
    run = parse_json(json.dumps(DOCUMENT), "j")
    (row,) = run.rows
    assert (row.op, row.place, row.ranks, row.wrong, row.library.version) == ("all_reduce", "in", 8, 0, "2.28.9")
    assert run.fingerprint is not None
    assert run.fingerprint.machine["gpu"] == "8 x NVIDIA H100"
    assert (
        parse_json(changed(config={**DOCUMENT["config"], "blocking_collectives": "true"}), "j").rows[0].mode
        == "blocking"
    )


@each_row(
    ("text", "words"),
    [
        (json.dumps(DOCUMENT)[:200], "not a complete JSON file"),
        (changed(version=4), "version 4"),
        (changed(args=["foo"]), "does not name the operation"),
        (changed(config={}), "does not show the number of ranks"),
        (
            changed(results=[{**DOCUMENT["results"][0], "in_place": {"time": "nan", "alg_bw": 1.0, "bus_bw": 1.0}}]),
            "not a number",
        ),
        (changed(results=[{**DOCUMENT["results"][0], "type": "quad"}]), "data type"),
        ('{"version": 3, "results": ' + "[" * 100_000, "not a complete JSON file"),
    ],
)
def test_json_that_is_not_whole_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_json(text, "j")


def report(*rows: Measurement) -> Report:
    nodes = tuple(NodeRow(f"node{n}", n, f"node{n}", Status.PASS) for n in range(2))
    return Report(
        tool=Tool("ncclprobe", "0"), started="2026-01-02T03:04:05+00:00", duration_s=1.0, command="",
        status=Status.PASS, exit_code=0, measurements=rows, nodes=nodes,
    )  # fmt: skip


def timed(op: str, place: str, nbytes: int = 1 << 26, us: float = 1083.5) -> Measurement:
    line = Line(nbytes, nbytes // 4 if op == "all_reduce" else nbytes // 32, "float",
                "sum" if op == "all_reduce" else "none", place, us, 0.0, 0.0, 0)  # type: ignore[arg-type]  # fmt: skip
    row = measurement(line, Setup(op, 8, 2, "queued", 20, "2.28.9"))
    assert row
    return row


def test_every_vector_of_nccl_tests_gives_its_bandwidths() -> None:
    types = {1: "int8", 2: "half", 4: "float", 8: "double"}
    checked = 0
    for row_ in fact_rows("nccl_tests_vectors.csv"):
        op = op_name(row_["coll"] + "_perf")
        vector = {name: float(value) for name, value in row_.items() if name != "coll"}
        setup = Setup(op, int(vector["nranks"]), 1, "queued", 1, "2")
        line = Line(int(vector["printed_size"]), int(vector["printed_count"]), types[int(vector["elt"])], "sum", "out", 1000.0,
                    vector["algbw_at_1ms"], vector["busbw_at_1ms"], 0)  # fmt: skip
        row = measurement(line, setup)
        if row:
            checked += 1
            assert row.algbw_GBps == pytest.approx(vector["algbw_at_1ms"], rel=1e-6)
            assert row.busbw_GBps == pytest.approx(vector["busbw_at_1ms"], rel=1e-6)
    assert checked > 500


@each_row(("code", "words"), [(22809, "2.28.9"), (2804, "2.8.4"), (21805, "2.18.5")])
def test_a_version_is_unpacked(code: int, words: str) -> None:
    assert version(code) == words


def test_runs_of_one_rank_each_that_wrote_at_once_are_not_one_run_of_many() -> None:
    alone = RANKS.splitlines(keepends=True)[0]
    row = ALL_REDUCE.replace("107.69", "0.00").replace("108.39", "0.00")
    parts = (START.format("all_reduce"), alone, NEW, row, END.format(0, "OK"))
    (run,) = parse_text("".join(part * 4 for part in parts), "log")
    assert re.match(r"rank 0 is listed twice.*without MPI", run.missing)
    with pytest.raises(UsageError, match=r"rank 0 is listed twice.*without MPI"):
        parse_text("".join(part * 4 for part in parts[:3]), "log")


def test_a_bus_bandwidth_of_nothing_is_no_bandwidth_of_four_ranks() -> None:
    row = ALL_REDUCE.replace("107.69", "0.00").replace("108.39", "0.00")
    (run,) = parse_text(START.format("all_reduce") + RANKS + NEW + row, "log")
    assert "0 GB/s is printed, and all_reduce over 8 ranks would be 107" in run.missing


def test_a_start_that_failed_adds_no_ranks_to_the_next() -> None:
    start = START.format("all_reduce") + RANKS
    assert {row.ranks for row in one(start + "node0: Test NCCL failure\n" + start + NEW + ALL_REDUCE)} == {8}


@each_row(("size", "time"), [(10**400, 1000.0), (1 << 63, 1000.0), (-8, 1000.0), (8, 1e-300), (1 << 30, 1e-3)])
def test_a_number_that_no_machine_can_reach_is_refused(size: int, time: float) -> None:
    line = Line(size, 1, "float", "sum", "out", time, 0.0, 0.0, 0)
    with pytest.raises(ValueError, match=r"out of range|is impossible|is printed|not a measured time"):
        measurement(line, Setup("all_reduce", 8, 1, "queued", 20, "unknown"))
