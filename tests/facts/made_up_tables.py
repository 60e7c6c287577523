"""Tables and JSON of nccl-tests: `texts-tables.txt` keeps what is read of each, or why it is refused.

All that is read of a row of `TEXTS` is in `command_values/tables.txt`, too.
"""
# ruff: noqa: E501 - the tables of nccl-tests are wide

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ncclprobe.model import bounds
from ncclprobe.nccl_tests import Run, parse_json, parse_text
from ncclprobe.nccl_tests.context import Context, assigned
from ncclprobe.nccl_tests.operation import Given, named_ops
from ncclprobe.nccl_tests.rows import DTYPES, Line, Log, Setup, measurement, op_name, program, version

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
TABLE = NEW + ALL_REDUCE
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
TEXTS: Mapping[str, str] = {
    "both placements": HEAD + NEW + ALL_REDUCE + END.format(0, "OK"),
    "a line of NCCL": HEAD + NEW + "node0:12:34 [0] NCCL INFO Channel 00/08\n" + ALL_REDUCE,
    "mpirun": "".join(f"[1,0]<stdout>:{line}\n" for line in (HEAD + NEW + ALL_REDUCE).splitlines()),
    "columns of iterations and a stamp": HEAD + ITERATIONS + PER_ITERATION,
    "an old table has an error and no root": HEAD + OLD + "67108864 16777216 float sum 1090.5 61.54 107.69 2e-07 1083.5 61.94 108.39 0e+00\n",
    "not verified in place, and a size of nothing": START.format("alltoall") + RANKS + NEW + "0 0 float none -1 10.00 0.00 0.00 0 10.00 0.00 0.00 N/A\n" + GATHER.format(0, "N/A"),
    "blank out of place": HEAD + NEW + BLANK,
    "two runs": HEAD + NEW + ALL_REDUCE + END.format(0, "OK") + START.format("all_gather") + RANKS + NEW + GATHER.format(0, 0) + END.format(3, "FAILED"),
    "graph": HEAD.replace("graph: 0", "graph: 3") + NEW + ALL_REDUCE,
    "blocking": HEAD + "# Blocking Enabled: wait\n" + NEW + ALL_REDUCE,
    "the time of the host": HEAD + SPENT + ALL_REDUCE.replace("1090.5", "9.1"),
    "a line that is too long": HEAD + NEW + "x" * (bounds.NCCL_TESTS_LINE + 1) + "\n" + ALL_REDUCE,
    "all_reduce by its numbers": RANKS + NEW + ALL_REDUCE,
    "all_gather by its numbers": RANKS + NEW + GATHER.format(0, 0),
    "all_to_all by its numbers": RANKS + NEW + GATHER.format(0, "N/A"),
    "either": RANKS + NEW + GATHER.format("N/A", "N/A"),
    "either, and a word above": "our alltoall\n" + RANKS + NEW + GATHER.format("N/A", "N/A"),
    "no all_reduce of two": NEW + "67108864 67108864 uint8 sum -1 1000.0 67.11 67.11 0 1000.0 67.11 67.11 N/A\n",
    "ranks by the factor": START.format("all_reduce") + NEW + ALL_REDUCE,
    "ranks below a gigabyte a second": NEW + "1073741824 268435456 float sum -1 1121937 0.96 1.44 0 1120530 0.96 1.44 0\n",
    "numbers of another operation": START.format("reduce") + RANKS + NEW + ALL_REDUCE,
    "no bus bandwidth of eight ranks": HEAD + NEW + NO_BUS,
    "a start that failed adds no ranks": HEAD + "node0: Test NCCL failure\n" + HEAD + NEW + ALL_REDUCE,
    "a tag before each piece of a row": "[0]" + NEW + "[0]" + TAGGED,
    "an old all_gather prints its bus bandwidth twice": START.format("all_gather") + RANKS + OLD_GATHER + TWICE.format(1 << 28),
    "a broadcast does not": START.format("broadcast") + RANKS + OLD_GATHER + TWICE.format(1 << 31),
    "four runs of one rank at once": "".join(part * 4 for part in (START.format("all_reduce"), ALONE, NEW, NO_BUS, END.format(0, "OK"))),
    **{repr(text[-40:]): text for text in ("", "hello\n", NEW, "a: CUDA error: 700\n", "1 2 3\n",
        NEW + "8 2 float sum -1 x x x x x x x x\n")},
    "another process in the row": "[1]" + NEW + "[1]" + TAGGED,
    "a size of 19 digits": NEW + ALL_REDUCE.replace("67108864", "6" * 19),
    "four starts at once": "".join(part * 4 for part in (START.format("all_reduce"), ALONE, NEW)),
}  # fmt: skip
_ROW = "67108864 16777216 float sum -1 1090.5 61.54 107.69 {} 1083.5 61.94 108.39 0\n"
_LISTED = "#  Rank {:2d} Group {:2d} Pid   1000 on  node{} device {:2d} [{}] NVIDIA H100\n"
_MORE = {
    **{f"ended by {line[:30]}": HEAD + TABLE + line + "\n" for line in (
        "n0: Test NCCL failure common.cu:1 'unhandled system error'", "srun: error: n0: task 0: Killed", "bash: x: not found",
        "n0: CUDA error: 700", "./a: error while loading shared libraries: libnccl.so.2")},
    "thousands": HEAD + TABLE.replace("67108864", "67,108,864").replace("16777216", "16,777,216"),
    "decimal commas": HEAD + TABLE.replace(".", ","),
    "wrapped rows": HEAD + "".join(f"{line[:90]}\n{line[90:]}\n" for line in (TABLE * 3).splitlines()),
    "one wrapped row": HEAD + NEW + f"{ALL_REDUCE[:90]}\n{ALL_REDUCE[90:]}" + ALL_REDUCE,
    "a word cut in two": HEAD + NEW + f"{ALL_REDUCE[:52]}\n{ALL_REDUCE[52:]}" + ALL_REDUCE,
    "many broken rows": HEAD + NEW + "".join(_ROW.format(f"x{n}") for n in range(5)) + ALL_REDUCE,
    "wrong elements": HEAD + NEW + _ROW.format("3*") + _ROW.format("1e999") + END.format(3, "FAILED"),
    "wrong elements, no end": HEAD + NEW + _ROW.format("7") + _ROW.format("5"),
    "wrong in all": HEAD + TABLE + END.format(2, "FAILED"),
    "wrong in all and in a row": HEAD + TABLE + _ROW.format("7") + END.format(7, "FAILED"),
    "an old error": HEAD + OLD + "67108864 16777216 float sum 1090.5 61.54 107.69 0 1083.5 61.94 108.39 1\n",
    "a root": START.format("broadcast") + RANKS + NEW + "67108864 16777216 float none 3 1000.0 67.11 67.11 0 1000.0 67.11 67.11 0\n",
    "time of the host and another": HEAD + NEW.replace("time", "cputime", 1) + ALL_REDUCE.replace("1090.5", "9.1"),
    "a header of one placement": HEAD + "# size count type redop root time algbw busbw #wrong\n" + ALL_REDUCE,
    "a row without a header": HEAD + ALL_REDUCE,
    "no tables, an error": HEAD + "n0: Test NCCL failure common.cu:1 'unhandled cuda error'\nn0:1:1 [0] NCCL WARN Cuda failure 2\n",
    "no tables, one error": HEAD + "n0:1:1 [0] NCCL WARN NET/IB failed\nn0: CUDA error: 700\n",
    "two programs": HEAD + TABLE + "./reduce_perf -b 8\n" + END.format(0, "OK") + "./broadcast_perf\n" + RANKS + TABLE,
    "two tables": HEAD + TABLE + END.format(0, "OK") + TABLE,
    "a second header in one": HEAD + TABLE + TABLE,
    "settings of two runs": "export NCCL_ALGO=Ring\nNCCL_PROTO=LL ./a\n" + HEAD + TABLE + END.format(0, "OK") + START.format("reduce") + TABLE,
    "two groups": "".join(_LISTED.format(n, n // 4, n // 4, n % 4, "0000:07:00") for n in range(8)) + "".join(_LISTED.format(n, 1, 1, n, "0000:08:00") for n in range(4)) + TABLE,
    "a list with gaps": START.format("all_reduce") + _LISTED.format(0, 0, 0, 0, "x") + _LISTED.format(3, 0, 0, 3, "x") + TABLE,
    "a list of half": START.format("all_reduce") + "mpirun -np 8 ./a\n" + "".join(_LISTED.format(n, 0, 0, n, "x") for n in range(4)) + TABLE,
    "a list of three": START.format("all_reduce") + "".join(_LISTED.format(n, 0, 0, n, "x") for n in range(3)) + TABLE,
    "one GPU of three ranks": START.format("all_reduce") + "".join(_LISTED.format(n, 0, 0, 0, "0000:07:00") for n in range(8)) + TABLE,
    "buses without names": START.format("all_reduce") + "".join(_LISTED.format(n, 0, 0, 0, "0x00:00") for n in range(8)) + TABLE,
    "hosts behind": "".join(f"# Rank {n} Pid 7 device {n} [0x07] NVIDIA H100 (n{n // 4})\n" for n in range(8)) + TABLE,
    "no hosts": "".join(f"# Rank {n} device {n} [0x07] NVIDIA {'AB'[n % 2]}\n" for n in range(8)) + TABLE,
    "versions": "# nccl-tests version 2.17 nccl-headers=22700 nccl-library=22809\n" + HEAD + TABLE,
    "a version in words": HEAD + "NCCL version 2.27.3+cuda12.9\n" + TABLE,
    "not validated": HEAD.replace("validation: 1", "validation: 0") + "NVLS multicast support is not available\n" + TABLE,
    "Markdown": HEAD + "".join(f"| {' | '.join(line.split())} |\n" for line in (TABLE).splitlines()),
    "CSV": HEAD + "".join(",".join(line.strip("# ").split()) + "\n" for line in (TABLE).splitlines()),
    "nested marks": HEAD + "".join(f"2026-06-01T10:00:00.1Z stdout F n0: [1,0]<stdout>:{line}\n" for line in (TABLE).splitlines()),
    "an impossible row": HEAD + TABLE + "67108864 16777216 quad sum -1 1090.5 61.54 107.69 0 1083.5 61.94 108.39 0\n",
    "rows of two operations": RANKS + NEW + ALL_REDUCE + GATHER.format(0, "N/A"),
    "one rank, a word above": "our all_reduce\n" + ALONE + NEW + NO_BUS,
    "a factor above 1 and one below": TABLE + GATHER.format(0, 0).replace(" none ", " sum "),
    "broken rows alone": HEAD + NEW + "".join(_ROW.format(f"x{n}") for n in range(3)),
    "a tag before words": "[0]" + HEAD.replace("\n", "\n[0]") + " says [0] and [0] more\n" + TABLE,
    "two wrapped rows": HEAD + "".join(f"{line[:90]}\n{line[90:]}\n" for line in (NEW + ALL_REDUCE * 2).splitlines()),
    "started again without an end": HEAD + TABLE + START.format("reduce") + RANKS + TABLE.replace("107.69", "61.54").replace("108.39", "61.94"),
    "a program that is not known": HEAD + "./other_perf -b 8\n" + TABLE,
    "a failure and wrong elements": HEAD + TABLE + "n0: Test NCCL failure common.cu:1 'unhandled system error'\n" + END.format(3, "FAILED"),
    "two libraries": "# nccl-tests version 2.17 nccl-headers=22700 nccl-library=22809\nNCCL version 2.27.3+cuda12.9\n" + HEAD + TABLE,
    "a list of five on three nodes": START.format("all_reduce") + "mpirun -np 5 ./a\n" + "".join(_LISTED.format(n, 0, n // 2, n % 2, f"x{n}") for n in (0, 1, 2, 4)) + TABLE,
    "a last row that is cut": HEAD + TABLE + "33554432 8388608 float sum -1 10",
    "words that are no ranks": HEAD + TABLE.replace("16777216", "x"),
    **{f"{n} ranks, {redop}, root {root}, {count}, {out} and {own}": f"mpirun -np {n} ./a\n{NEW}67108864 {count} float {redop} "
       f"{root} 1000.0 67.11 {bus} {out} 1000.0 67.11 {bus} {own}\n" for n, count, bus in ((1, 16777216, "0.00"),
       (8, 16777216, 67.11), (8, 2097152, 58.72), (8, 16777216, 117.44), (2, 8388608, 33.55), (2, 16777216, 67.11))
       for redop in ("none", "sum") for root in (-1, 0) for out, own in ((0, 0), (0, "N/A"), ("N/A", "N/A"), ("N/A", 0))},
    **{f"{name[:40]!r}, a row of {alg}, {bus}": f"{name}{NEW}1073741824 268435456 float sum -1 {time} {alg} {bus} 0 {time} {alg} {bus} 0\n"
       for name in ("", START.format("all_reduce"), START.format("reduce_scatter")) for time, alg, bus in (
       ("1121937", 0.96, 1.44), ("1121937", 0.96, 0.84), ("10737.4", "100.0", 187.5), ("10737.4", "100.0", 199.9),
       ("10737.4", "100.0", 99.9), ("10737.4", "100.0", "100.0"), ("0.00", "inf", "inf"), ("10737.4", "100.0", 50.0))},
    "all kinds of one table": RANKS + NEW + "67108864 8388608 float none -1 1000.0 67.11 58.72 0 1000.0 67.11 58.72 0\n" * 2,
}  # fmt: skip


def told(run: Run) -> object:
    """Return what is read of a run, without fields that are as usual."""
    rows = [(row.op, row.place, row.mode, row.iters, row.ranks, row.nodes, row.dtype, row.redop, row.nbytes, row.count, row.time_us.mean,
             row.issue_us, f"{row.algbw_GBps:.2f}", f"{row.busbw_GBps:.2f}", row.wrong, row.library.version) for row in run.rows]  # fmt: skip
    log = [
        (name, getattr(run.log, name))
        for name in Log.__struct_fields__
        if getattr(run.log, name) != getattr(Log(), name)
    ]
    own = run.fingerprint and (run.fingerprint.machine, run.fingerprint.software)
    return [each for each in (run.failed, run.missing, run.cut, run.started) if each], own, rows, log


def _context(*lines: str) -> object:
    found = Context()
    for line in lines:
        found.take(line)
    own = [
        (name, getattr(found, name))
        for name in Context.__struct_fields__
        if getattr(found, name) != getattr(Context(), name)
    ]
    return own, found.error, found.failure(ended=True), found.failure(ended=False)


def _line(*given: Any, dtype: str = "float", redop: str = "sum", cpu: bool = False, wrong: int | None = 0) -> object:
    nbytes, time, algbw, busbw, op, ranks = given
    found = measurement(
        Line(nbytes, 4, dtype, redop, "in", time, algbw, busbw, wrong, cpu), Setup(op, ranks, 1, "queued", 1, "2")
    )
    return found and (found.dtype, found.redop, found.time_us.mean, found.issue_us, found.algbw_GBps, found.busbw_GBps)


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
    """Return the document with other parts."""
    return json.dumps({**DOCUMENT, **parts})


def _config(**parts: Any) -> str:
    return changed(config={**CONFIG, **parts})


def _body(**parts: Any) -> str:
    return changed(results=[{**RESULT, "in_place": {**RESULT["in_place"], **parts}}])


_TWO_GROUPS = [{"rank": n, "group": n // 4, "hostname": f"n{n // 2}", "device_info": f"H{n // 2}"} for n in range(6)]


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    every = TEXTS | _MORE
    return {
        "tables of nccl-tests": (lambda name: [*map(told, parse_text(every[name], "log"))], [(name,) for name in every]),
        "tables with what is known of them": (lambda text, *given: [*map(told, parse_text(text, "log", Given(*given)))], [
            (RANKS + NEW + GATHER.format("N/A", "N/A"), "all_to_all"), (RANKS + NEW + ALL_REDUCE, "reduce"), (NEW + ALL_REDUCE, "", 8),
            (NEW + ALL_REDUCE, "all_reduce", 4), (HEAD + NEW + ALL_REDUCE, "reduce", 7), (NEW + NOTHING, "all_reduce", bounds.JOB_RANKS + 1)]),
        "surroundings of a table": (_context, [
            ("  mpirun -np 16 -x NCCL_ALGO=Ring ./a" + " x" * 99,), ("srun --ntasks=8 ./a", "mpiexec -n 4 ./b"), ("srun -N 2 ./a",),
            ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]mlx5_0:2/RoCE",), ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB",),
            ("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB",), *((f"NET/OFI Selected provider is efa, fabric is efa (found {n} nics)",) for n in (3, 4, 5)),
            *((f"NCCL INFO Using network {name}",) for name in ("Socket", "AWS Libfabric", "OFI", "FasTrak", "GPUDirectTCPX", "IB")),
            ("NCCL INFO Assigned NET plugin Socket to comm", "NCCL INFO Using network IB"),
            ("export NCCL_ALGO=Ring", "NCCL_ALGO=Tree ./a", "n0 NCCL INFO NCCL_PROTO set by environment to LL.", "$ export NCCL_PROTO=Simple"),
            ("  n0: Test CUDA failure common.cu:1 'unhandled cuda error'" + " y" * 99, "n0 NCCL WARN Cuda failure 1", "n0: Test NCCL failure x"),
            ("n0 NCCL WARN Call to a failed", "n0 NCCL WARN Call to b failed", "n0: Test NCCL failure 'internal error'", "n0 NCCL WARN NET/IB c"),
            ("srun: error: n0: exited", "srun: error: n1: exited"), ("ssh: connect: refused", "n0: CUDA error: 1"), ("srun: fine", "a srun: error"),
            ("n0 NCCL WARN Missing x", "n0 NCCL WARN the size mismatch", "NCCL runtime error", "NCCL Error 2")]),
        "settings of a command": (assigned, [
            ("-x NCCL_A=1 -x NCCL_B='2'",), ("export NCCL_A=1 NCCL_B=2",), ("# NCCL_A=1",), ("# $ NCCL_A=1 ./a",), ("we set NCCL_A=1, and",), ("",),
            ("  NCCL_A=1 FOO=2 NCCL_B=3 ./a NCCL_C=4",), ("mpirun -x NCCL_A=1 NCCL_B=2",), ("$ NCCL_A=1, NCCL_B=2",), ("FOO=1 NCCL_A=2 ./a",)]),
        "operations in a line": (lambda line: sorted(named_ops(line)), [
            ("all reduce and AllGather",), ("all-to-all",), ("alltoallv reduce_scatters",), ("ReduceScatter, send_recv",), ("reduce gather scatter",),
            ("a broadcast hypercube",)]),
        "names of programs": (lambda name: op_name(name), [(each,) for each in (
            "/a/all_reduce_perf", "C:\\x\\AllReduce_perf.exe", "all-gather_perf_mpi", "x_perf_perf", "a1_perf", "all_reduce", "alltoall_perf",
            "alltoallv_perf", "HYPERCUBE_perf", "reduce_scatter_perf", "_perf", "sendrecv_perf")]),
        "programs": (program, [("all_to_all",), ("all_reduce",)]),
        "codes of versions": (version, [22809, 2804, 21805, 10000, 9999, 23001]),
        "data types of lines": (lambda name: (_line(8, 1.0, 0.0, 0.0, "unknown", 0, dtype=name), DTYPES[name]), [(name,) for name in DTYPES]),
        "numbers of lines": (lambda row, more: _line(*row, **more), [
            *(((8, 1000.0, 0.01, 0.01, "all_reduce", 8), more) for more in (
                {}, {"dtype": "q" * 30}, {"wrong": -1}, {"wrong": None}, {"redop": "none"}, {"redop": ""}, {"redop": "max"})),
            *((row, {}) for row in (
                (0, 1.0, 0.0, 0.0, "reduce", 2), (8, 0.0, 0.0, 0.0, "reduce", 2), (8, bounds.LEAST_TIME_US / 2, 0.0, 0.0, "reduce", 2),
                (8, 1.0, -1.0, 0.0, "reduce", 2), (8, 1.0, 0.0, float("nan"), "reduce", 2), (8, float("inf"), 0.0, 0.0, "reduce", 2),
                (-8, 1.0, 0.0, 0.0, "reduce", 2), (8, 1.0, 0.0, 0.0, "reduce", -1), (1 << 30, 1e-3, 0.0, 0.0, "reduce", 2),
                (1 << 30, 1e3, bounds.MOST_GBPS * 2, 5.0, "odd", 2), (1 << 30, 1e3, 5.0, bounds.MOST_GBPS * 2, "odd", 2),
                (1 << 30, 1e3, 7.0, 9.0, "odd", 2), (1 << 30, 1e3, 7.0, 9.0, "reduce", 0), (1 << 30, 1e3, 1073.7, 1879.0, "all_reduce", 8),
                (1 << 30, 1e3, 1073.7, 1700.0, "all_reduce", 8), (1 << 30, 1e3, 1120.0, 1879.0, "all_reduce", 8), (1 << 30, 1e3, 1073.7, 0.0, "all_reduce", 8),
                (1 << 30, 1e3, 939.5, 939.5, "all_gather", 8), (1 << 30, 1e3, 939.5, 939.5, "broadcast", 8), (1 << 30, 2e6, 0.9, 1.2, "all_reduce", 8),
                (1 << 31, 0.44, 5e6, 0.0, "all_reduce", 1), (1 << 31, 0.44, 4e6, 0.0, "all_reduce", 1))),
            *(((1 << 20, 9.0, algbw, 20.0, "all_reduce", 8), {"cpu": True}) for algbw in (10.0, 0.0))]),
        "JSON of nccl-tests": (lambda text: told(parse_json(text, "j")), [(each,) for each in (
            changed(), _config(blocking_collectives="true"), _config(blocking_collectives=True), _config(graph=1, aggregated_iterations=2),
            _config(graph=1, blocking_collectives="true"), _config(nthreads=2, ngpus=3), _config(iterations=0), _config(ngpus=1025), _config(ngpus=0),
            _config(ngpus=1024), _config(devices=_TWO_GROUPS), _config(devices=_TWO_GROUPS[::-1]), changed(config={}), changed(out_of_bounds={"count": 2}),
            changed(errors=["a", "", "b"]), changed(errors=["a" * 170, "b", "c", "d"]), changed(errors=["a"], out_of_bounds={"count": 2}),
            *(_body(nwrong=said) for said in ("N/A", "nan", None, 3, "2", -1, "x")), _body(time=None, cpu_time=9.0), _body(time=7.0, cpu_time=9.0),
            _body(time=None), _body(time="nan"), _body(time="1083.5"), _body(alg_bw=None), _body(bus_bw="x"), _body(bus_bw=90.0),
            *(changed(results=[{**RESULT, **each}]) for each in ({"type": "quad"}, {"type": " float ", "redop": " none "}, {"in_place": None},
                                                                 {"out_of_place": RESULT["in_place"]}, {"size": 0})),
            changed(version=0), changed(version=1), changed(version=4), changed(args=["foo"]), changed(args=[]), changed(nccl_version=0),
            changed(nccl_version=-1), changed(nccl_version=2804), changed(out_of_bounds=None, results=[]), json.dumps(DOCUMENT)[:200], "[]", "",
            '{"version": 3, "results": ' + "[" * 100_000, changed(ncclprobe={"backend": "gloo", "version": "2.7"}), changed(ncclprobe={"backend": "gloo"}),
            *(changed(results=[{"size": 1, "count": 1, "type": "float"}] * (bounds.NCCL_TESTS_ROWS + more)) for more in (0, 1)))]),
    }  # fmt: skip
