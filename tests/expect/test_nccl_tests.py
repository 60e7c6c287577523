"""nccl-tests' JSON and tables: what its versions wrote is read, what we write is read back, nothing hostile hurts."""
# ruff: noqa: E501 - the tables of nccl-tests are wide

import contextlib
import json
from typing import Any

import pytest
from conftest import fact_rows
from hypothesis import example, given
from hypothesis import strategies as st

from ncclprobe.expect.log_findings import average
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.nccl_tests import Run, parse_json, parse_text
from ncclprobe.nccl_tests.rows import Line, Setup, measurement, op_name, version
from tests.each_row import each_row

RANKS = "".join(f"#  Rank {n:2d} Group  0 Pid   1000 on  node{n // 4} device {n % 4:2d} [0000:07:00] NVIDIA H100\n"
                for n in range(8))  # fmt: skip
ALONE = RANKS.splitlines(keepends=True)[0]
START = "# Collective test starting: {}_perf\n# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
HEAD = START.format("all_reduce") + RANKS
NEW = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)\n"
)
END = "# Out of bounds values : {} {}\n# Avg bus bandwidth    : 64.27\n#\n"
ALL_REDUCE = "  67108864      16777216     float     sum      -1   1090.5   61.54  107.69      0   1083.5   61.94  108.39      0\n"
NO_BUS = ALL_REDUCE.replace("107.69", "0.00").replace("108.39", "0.00")
GATHER = "67108864 2097152 float none -1 1000.0 67.11 58.72 {} 1000.0 67.11 58.72 {}\n"
NOTHING = "0 0 float sum -1 10.00 0.00 0.00 0 10.00 0.00 0.00 0\n"
ITERATIONS = NEW.splitlines()[0].replace("#wrong", "#wrong i_min i_max i_p99 i_cv%") + " timestamp\n"
PER_ITERATION = "67108864 16777216 float sum -1 1090.5 61.54 107.69 0 1000 1200 1190 3.1 1083.5 61.94 108.39 0 990 1100 1099 2.0 2026-06-01 10:11:12\n"
OLD = "# size count type redop time algbw busbw error time algbw busbw error\n"
OLD_GATHER = "# size count type time algbw busbw error time algbw busbw error\n"
TWICE = (
    "8589934592 {} float 100000 75.16 75.16 0e+00 100000 75.16 75.16 0e+00\n"  # 8 GiB in 0.1 s, 7/8 of it from others
)
SPENT = NEW.replace(" time ", " cputime ")
BLANK = "67108864 16777216 float sum -1" + " " * 32 + "1083.5 61.94 108.39 0\n"
TAGGED = ALL_REDUCE.replace("      -1   ", "      -1[0]   ").replace("      0   ", "      0[0]   ", 1)
ONE_RANK = (
    "# Collective test starting: all_reduce_perf\n"
    "#  Rank  0 Group  0 Pid   1141 on         vm device  0 [0000:00:06] NVIDIA H100 80GB HBM3\n"
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n"
    "  2147483648     536870912     float     sum      -1  1421.27  1511.0    0.00    N/A     0.44   5e+06    0.00    N/A\n"
    "  4294967296    1073741824     float     sum      -1  2838.46  1513.1    0.00    N/A     1.25   3e+06    0.00    N/A\n"
)
"""Rows of nccl-tests 2.19.6 on one H100, where an all_reduce in place has nothing to do."""
BOTH, PLAIN = "out 107.7/0 in 108.4/0", "all_reduce 8/2 queued 20: out 107.7/0 in 108.4/0"
UNSAID = "it does not say which operation was measured"


def told(run: Run) -> str:
    """Operation, ranks, nodes, mode, iterations; bus bandwidth and wrong elements by place; and what went wrong."""
    row = run.rows[0]
    rows = " ".join(f"{each.place} {each.busbw_GBps:.1f}/{each.wrong}" for each in run.rows)
    wrong = [f"{name} {said}" for name, said in (("failed", run.failed), ("missing", run.missing)) if said]
    return "; ".join([f"{row.op} {row.ranks}/{row.nodes} {row.mode} {row.iters}: {rows}", *wrong])


def read(text: str) -> str:
    try:
        return " | ".join(map(told, parse_text(text, "log")))
    except UsageError as refused:
        return f"refused: {refused}"


TEXTS = {
    "both placements": (HEAD + NEW + ALL_REDUCE + END.format(0, "OK"), PLAIN),
    "a line of NCCL": (HEAD + NEW + "node0:12:34 [0] NCCL INFO Channel 00/08\n" + ALL_REDUCE, PLAIN),
    "mpirun": ("".join(f"[1,0]<stdout>:{line}\n" for line in (HEAD + NEW + ALL_REDUCE).splitlines()), PLAIN),
    "columns of iterations and a stamp": (HEAD + ITERATIONS + PER_ITERATION, PLAIN),
    "an old table has an error and no root": (
        HEAD + OLD + "67108864 16777216 float sum 1090.5 61.54 107.69 2e-07 1083.5 61.94 108.39 0e+00\n",
        "all_reduce 8/2 queued 20: out 107.7/None in 108.4/0",
    ),
    "not verified in place, and a size of nothing": (
        START.format("alltoall") + RANKS + NEW + "0 0 float none -1 10.00 0.00 0.00 0 10.00 0.00 0.00 N/A\n" + GATHER.format(0, "N/A"),
        "all_to_all 8/2 queued 20: out 58.7/0 in 58.7/None",
    ),
    "blank out of place": (HEAD + NEW + BLANK, "all_reduce 8/2 queued 20: in 108.4/0"),
    "two runs": (
        HEAD + NEW + ALL_REDUCE + END.format(0, "OK") + START.format("all_gather") + RANKS + NEW + GATHER.format(0, 0) + END.format(3, "FAILED"),
        f"{PLAIN} | all_gather 8/2 queued 20: out 58.7/None in 58.7/None; failed Out of bounds values : 3 FAILED",
    ),
    "graph": (HEAD.replace("graph: 0", "graph: 3") + NEW + ALL_REDUCE, PLAIN.replace("queued", "graph")),
    "blocking": (HEAD + "# Blocking Enabled: wait\n" + NEW + ALL_REDUCE, PLAIN.replace("queued", "blocking")),
    "the time of the host": (HEAD + SPENT + ALL_REDUCE.replace("1090.5", "9.1"), PLAIN),
    "a line that is too long": (HEAD + NEW + "x" * (bounds.NCCL_TESTS_LINE + 1) + "\n" + ALL_REDUCE, PLAIN),
    # Operations and ranks that nobody named.
    "all_reduce by its numbers": (RANKS + NEW + ALL_REDUCE, "all_reduce 8/2 queued 1: " + BOTH),
    "all_gather by its numbers": (RANKS + NEW + GATHER.format(0, 0), "all_gather 8/2 queued 1: out 58.7/0 in 58.7/0"),
    "all_to_all by its numbers": (RANKS + NEW + GATHER.format(0, "N/A"), "all_to_all 8/2 queued 1: out 58.7/0 in 58.7/None"),
    "either": (
        RANKS + NEW + GATHER.format("N/A", "N/A"),
        f"unknown 8/2 queued 1: out 58.7/None in 58.7/None; missing {UNSAID}, and it may be all_gather or all_to_all: give --op all_gather",
    ),
    "either, and a word above": ("our alltoall\n" + RANKS + NEW + GATHER.format("N/A", "N/A"), "all_to_all 8/2 queued 1: out 58.7/None in 58.7/None"),
    "no all_reduce of two": (
        NEW + "67108864 67108864 uint8 sum -1 1000.0 67.11 67.11 0 1000.0 67.11 67.11 N/A\n",
        f"unknown 0/1 queued 1: out 67.1/0 in 67.1/None; missing {UNSAID}, and its numbers fit none: give --op NAME",
    ),
    "ranks by the factor": (START.format("all_reduce") + NEW + ALL_REDUCE, "all_reduce 8/1 queued 20: " + BOTH),
    "ranks below a gigabyte a second": (
        NEW + "1073741824 268435456 float sum -1 1121937 0.96 1.44 0 1120530 0.96 1.44 0\n", "all_reduce 4/1 queued 1: out 1.4/0 in 1.4/0"
    ),
    "numbers of another operation": (
        START.format("reduce") + RANKS + NEW + ALL_REDUCE,
        f"reduce 0/2 queued 20: {BOTH}; missing its numbers do not agree: 107.69 GB/s is printed, and reduce over 8 ranks would be 61.54 in 1090.5 us",
    ),
    "no bus bandwidth of eight ranks": (
        HEAD + NEW + NO_BUS,
        "all_reduce 0/2 queued 20: out 0.0/0 in 0.0/0; missing its numbers do not agree: 0 GB/s is printed, and all_reduce over 8 ranks would be 107.7 in 1090.5 us",
    ),
    "a start that failed adds no ranks": (HEAD + "node0: Test NCCL failure\n" + HEAD + NEW + ALL_REDUCE, PLAIN),
    "a tag before each piece of a row": ("[0]" + NEW + "[0]" + TAGGED, "all_reduce 8/1 queued 1: " + BOTH),
    "an old all_gather prints its bus bandwidth twice": (
        START.format("all_gather") + RANKS + OLD_GATHER + TWICE.format(1 << 28), "all_gather 8/2 queued 20: out 75.2/0 in 75.2/0"
    ),
    "a broadcast does not": (
        START.format("broadcast") + RANKS + OLD_GATHER + TWICE.format(1 << 31),
        "broadcast 0/2 queued 20: out 75.2/0 in 75.2/0; missing its numbers do not agree: 75.16 GB/s is printed, and broadcast over 8 ranks would be 85.9 in 100000 us",
    ),
    "four runs of one rank at once": (
        "".join(part * 4 for part in (START.format("all_reduce"), ALONE, NEW, NO_BUS, END.format(0, "OK"))),
        "all_reduce 1/1 queued 20: out 0.0/0 in 0.0/0 out 0.0/0 in 0.0/0 out 0.0/0 in 0.0/0 out 0.0/0 in 0.0/0; missing rank 0 is listed twice: "
        "several runs wrote into this log at once, because each process runs by itself (nccl-tests built without MPI=1)",
    ),
    # What is refused.
    **{
        repr(text[-40:]): (text, "refused: log: contains no nccl-tests table (a header with size, count, type … and rows below it)")
        for text in ("", "hello\n", NEW, "a: CUDA error: 700\n", "1 2 3\n", NEW + "8 2 float sum -1 x x x x x x x x\n")
    },
    "another process in the row": ("[1]" + NEW + "[1]" + TAGGED, "refused: log: line 3: '0[0]' is not a number"),
    "a size of 19 digits": (NEW + ALL_REDUCE.replace("67108864", "6" * 19), f"refused: log: line 3: {'6' * 19!r} is not a size or count"),
    "four starts at once": (
        "".join(part * 4 for part in (START.format("all_reduce"), ALONE, NEW)),
        "refused: log: rank 0 is listed twice: several runs wrote into this log at once, because each process runs by itself (nccl-tests built without MPI=1)",
    ),
}  # fmt: skip


@each_row(("text", "wanted"), TEXTS.values(), ids=TEXTS)
def test_a_table_is_read(text: str, wanted: str) -> None:
    assert read(text) == wanted


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


CONFIG: dict[str, Any] = {
    "nthreads": 1, "ngpus": 1, "iterations": 20, "aggregated_iterations": 1, "graph": 0, "blocking_collectives": "false",
    "devices": [{"rank": n, "group": 0, "hostname": "a", "device_info": "NVIDIA H100"} for n in range(8)],
}  # fmt: skip
RESULT: dict[str, Any] = {
    "size": 67108864, "count": 16777216, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": None,
    "in_place": {"time": 1083.5, "alg_bw": 61.94, "bus_bw": 108.39, "nwrong": 0.0}, "actual_iterations": 20,
    "experiment_name": "",
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "version": 3, "start_time": "2026-06-01 10:00:00", "args": ["./build/all_reduce_perf", "-J", "x"], "env": ["SECRET=1"],
    "nccl_version": 22809, "config": CONFIG, "results": [RESULT], "out_of_bounds": {"count": 0, "okay": "true"},
    "average_bus_bandwidth": {"bandwidth": 1.0, "okay": "unchecked"}, "errors": [""],
}  # fmt: skip


def changed(**parts: Any) -> str:
    return json.dumps({**DOCUMENT, **parts})


def body(**parts: Any) -> str:
    return changed(results=[{**RESULT, "in_place": {**RESULT["in_place"], **parts}}])


@each_row(
    ("text", "wanted"),
    [
        (changed(), "all_reduce 8/1 queued 20: in 108.4/0"),
        (changed(config={**CONFIG, "blocking_collectives": "true"}), "all_reduce 8/1 blocking 20: in 108.4/0"),
        (changed(config={**CONFIG, "graph": 1, "aggregated_iterations": 2}), "all_reduce 8/1 graph 40: in 108.4/0"),
        (changed(out_of_bounds={"count": 2}), "all_reduce 8/1 queued 20: in 108.4/0; failed Out of bounds values : 2 FAILED"),
        (changed(errors=["a", "", "b"]), "all_reduce 8/1 queued 20: in 108.4/0; failed a; b"),
        (body(nwrong="N/A"), "all_reduce 8/1 queued 20: in 108.4/None"),
        (body(time=None, cpu_time=9.0), "all_reduce 8/1 queued 20: in 108.4/0"),
        (json.dumps(DOCUMENT)[:200], "not a complete JSON file"),
        (changed(version=4), "version 4"),
        (changed(args=["foo"]), "does not name the operation"),
        (changed(config={}), "does not show the number of ranks"),
        (body(time="nan"), "not a number"),
        (body(nwrong=-1), "the number of wrong elements is negative"),
        (changed(results=[{**RESULT, "type": "quad"}]), "data type"),
        (changed(results=[{"size": 1, "count": 1, "type": "float"}] * (bounds.NCCL_TESTS_ROWS + 1)), "more than"),
        ('{"version": 3, "results": ' + "[" * 100_000, "not a complete JSON file"),
    ],
)  # fmt: skip
def test_json_is_read_with_its_quirks_or_refused(text: str, wanted: str) -> None:
    if wanted[:4] != "all_":
        with pytest.raises(UsageError, match=wanted):
            parse_json(text, "j")
        return
    run = parse_json(text, "j")
    assert told(run) == wanted
    assert (run.started, run.rows[0].library.version, run.rows[0].library.name) == (
        "2026-06-01 10:00:00",
        "2.28.9",
        "nccl",
    )
    assert run.fingerprint is not None
    assert (run.fingerprint.machine["gpu"], run.fingerprint.software) == ("8 x NVIDIA H100", {"nccl": "2.28.9"})


def test_json_of_ours_names_gloo_and_a_node_of_impossible_size_has_no_fingerprint() -> None:
    own = parse_json(changed(ncclprobe={"backend": "gloo", "version": "2.7"}), "j").rows[0]
    assert (own.library.name, own.library.version, own.backend) == ("gloo", "2.7", "gloo")
    assert parse_json(changed(config={**CONFIG, "ngpus": 1025}, results=[]), "j").fingerprint is None


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


@each_row(("size", "time"), [(10**400, 1000.0), (1 << 63, 1000.0), (-8, 1000.0), (8, 1e-300), (1 << 30, 1e-3)])
def test_a_number_that_no_machine_can_reach_is_refused(size: int, time: float) -> None:
    line = Line(size, 1, "float", "sum", "out", time, 0.0, 0.0, 0)
    with pytest.raises(ValueError, match=r"out of range|is impossible|is printed|not a measured time"):
        measurement(line, Setup("all_reduce", 8, 1, "queued", 20, "unknown"))
