"""Rows of ours as nccl-tests would print them: input for the tests of what reads such logs."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ncclprobe.model.measurement import Measurement
from ncclprobe.model.ops import OPS
from ncclprobe.model.report import Report

OURS, VERSION = "measured by ncclprobe with", 3
from ncclprobe.nccl_tests.rows import DTYPES, program

_NAMES = {ours: theirs for theirs, (ours, _) in reversed(DTYPES.items())}
_HEAD = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}"


def groups(rows: Sequence[Measurement]) -> list[tuple[Measurement, ...]]:
    """`rows` in groups of which nccl-tests would make one file each."""

    def table_of(row: Measurement) -> tuple[object, ...]:
        return row.op, row.ranks, row.nodes, row.mode

    order = list(dict.fromkeys(map(table_of, rows)))
    kept = sorted(rows, key=lambda row: order.index(table_of(row)))
    return [tuple(group) for _, group in groupby(kept, table_of)]


def render_json(report: Report, rows: Sequence[Measurement]) -> str:
    """`rows`, one group of them, as a version 3 file."""
    first, wrong, rates = rows[0], sum(row.wrong or 0 for row in rows), [row.busbw_GBps for row in rows]
    document = {
        **{"version": VERSION, "args": [program(first.op)], "errors": [""], "results": [*map(_result, _lines(rows))]},
        "nccl_version": _code(first.library.version) if first.backend == "nccl" else 0,
        "config": {
            **{"nthreads": 1, "ngpus": 1, "iterations": _most(rows), "aggregated_iterations": 1},
            **{"graph": int(first.mode == "graph"), "blocking_collectives": _bool(first.mode == "blocking")},
            "devices": [{"rank": rank, "hostname": host} for rank, host in enumerate(_hosts(report, first))],
        },
        "out_of_bounds": {"count": wrong, "okay": _bool(not wrong)},
        "average_bus_bandwidth": {"bandwidth": round(sum(rates) / len(rates), 6), "okay": "unchecked"},
        "ncclprobe": {"backend": first.backend, "version": first.library.version},
    }
    return json.dumps(document, indent=1) + "\n"


def _most(rows: Sequence[Measurement]) -> int:
    return max(row.iters * row.batches for row in rows)


def _factor(rows: Sequence[Measurement]) -> int:
    """Return the -f of a sweep: by how much its sizes grow, to the nearest whole number, where the last two tell."""
    sizes = sorted({row.nbytes for row in rows if row.nbytes})
    return max(2, round(sizes[-1] / sizes[-2])) if len(sizes) > 1 else 2


def _hosts(report: Report, row: Measurement) -> list[str]:
    """The host of each rank: as many ranks on each node as come out even, in the order of nodes."""
    names = [node.hostname for node in report.nodes[: row.nodes]]
    names += [f"node{index}" for index in range(len(names), row.nodes)]
    each = -(-row.ranks // row.nodes)
    return [names[rank // each] for rank in range(row.ranks)]


def _lines(rows: Sequence[Measurement]) -> list[dict[str, Measurement]]:
    """Out of place and in place of one size are one line."""
    lines: dict[tuple[object, ...], dict[str, Measurement]] = {}
    for row in rows:
        lines.setdefault((row.nbytes, row.dtype, row.redop), {})[row.place] = row
    return list(lines.values())


def _result(line: dict[str, Measurement]) -> dict[str, Any]:
    row = next(iter(line.values()))
    what = {
        "size": row.nbytes, "count": row.count, "type": _NAMES.get(row.dtype, row.dtype),
        "redop": row.redop or "none"}  # fmt: skip
    return {**what, "out_of_place": _body(line.get("out")), "in_place": _body(line.get("in"))}


def _body(row: Measurement | None) -> dict[str, Any] | None:
    if row is None:
        return None
    times = {"time": row.time_us.typical, "alg_bw": row.algbw_GBps, "bus_bw": row.busbw_GBps}
    wrong = None if row.wrong is None else float(row.wrong)
    return {**{name: round(value, 6) for name, value in times.items()}, "nwrong": wrong}


def render_text(report: Report, rows: Sequence[Measurement]) -> str:
    """`rows`, one group of them, as the table that nccl-tests prints. Out of place is blank where it was not timed."""
    first, name, sizes = rows[0], program(rows[0].op), [row.nbytes for row in rows]
    wrong = sum(row.wrong or 0 for row in rows)
    code = _code(first.library.version) if first.backend == "nccl" else 0
    lines = [
        *([f"# nccl-tests version 2.19.6 nccl-headers={code} nccl-library={code}"] if code else []),
        f"# Collective test starting: {name}",
        *([f"# {OURS} {first.backend} {first.library.version}"] if first.backend != "nccl" else []),
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: "
        f"{_factor(rows)}(factor) warmup iters: 0 iters: {_most(rows)} agg iters: 1 validation: "
        f"{int(any(row.wrong is not None for row in rows))} graph: {int(first.mode == 'graph')} unalign: 0",
        *(["# Blocking Enabled: wait after each inner iteration (-m), no barrier"] * (first.mode == "blocking")),
        *("#", "# Using devices"),
        *(
            f"#  Rank {rank:2d} Group  0 Pid {0:6d} on {host:>10} device {0:2d} [0000:00:00] {first.backend}"
            for rank, host in enumerate(_hosts(report, first))
        ),
        "#", f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}           out-of-place                       in-place",
        _HEAD.format("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2),
        _HEAD.format("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2),
        *map(_text_line, _lines(rows)), f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {sum(r.busbw_GBps for r in rows) / len(rows):g} ",
        *("#", f"# Collective test concluded: {name}", ""),
    ]  # fmt: skip
    return "\n".join(lines)


def _text_line(line: dict[str, Measurement]) -> str:
    row = next(iter(line.values()))
    head = f"{row.nbytes:12d}  {row.count:12d}  {_NAMES.get(row.dtype, row.dtype):>8}  {row.redop or 'none':>6}"
    bodies = [_text_body(line[place]) if place in line else " " * 32 for place in ("out", "in")]
    if "in" not in line:  # nccl-tests has no such line, so what reads it needs the words
        bodies[1] = _text_body(line["out"], repeated=True)
    return f"{head}  {_root(row):6d}{''.join(bodies)}"


def _text_body(row: Measurement, *, repeated: bool = False) -> str:
    wrong = "   N/A" if row.wrong is None or repeated else f"{row.wrong:6d}"
    if repeated:
        return f"  {0:7.2f}  {0:6.2f}  {0:6.2f}  {wrong}"
    return f"  {row.time_us.typical:7.2f}  {row.algbw_GBps:6.2f}  {row.busbw_GBps:6.2f}  {wrong}"


def _root(row: Measurement) -> int:
    return 0 if row.op in OPS and OPS[row.op].rooted else -1


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _code(version: str) -> int:
    """22809 of ``2.28.9``."""
    major, minor, patch = map(int, version.partition("+")[0].split("."))
    return major * 10_000 + minor * 100 + patch
