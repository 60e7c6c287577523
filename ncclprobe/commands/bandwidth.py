"""``ncclprobe bandwidth``, ``torchrun -m ncclprobe.bandwidth``: collectives over sizes, judged and reported."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ncclprobe.commands import arguments, hosts, measuring
from ncclprobe.commands.arguments import known
from ncclprobe.commands.measuring import bytes_of
from ncclprobe.model import stats
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Mode
from ncclprobe.model.ops import DTYPES, OPS, REDOPS, default_sizes, sizes
from ncclprobe.model.units import size
from ncclprobe.session.options import LARGEST, Options

_ABOUT = """\
Measure collectives across ranks and judge their bandwidth. It starts one rank per GPU, or --nproc ranks, and also works
under torchrun, srun and mpirun, or with RANK and WORLD_SIZE set by hand. SIZE is in bytes, or a number with a binary K,
M or G."""

_MORE = """\
bands.toml, a file for --expect:
  [[expect]]
  op = "all_reduce"
  nbytes = "1G"          # as in the table; or a range: min_bytes, max_bytes
  busbw_GBps = 360.0     # 1e9 bytes per second
  threshold_GBps = 330.0 # lowest that passes; or tolerance = 0.1, a fraction
  source = "acceptance test of 2026-03-02"
  why = "median of 20 nodes\""""

_PRECISION, _BUDGET_S = 0.02, 2.0
_ITERS = 20
_BEGIN, _FACTOR = "8", 4
_MOST_CHARACTERS = 32
_MOST_CALLS = 10**7
"""Calls are prepared before they are timed, so more would fill a node's memory first."""


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; return the exit code. Raises UsageError, on rank 0 only."""
    return measuring.main(argv, parse)


def parse(argv: Sequence[str]) -> Options:
    """Parse `argv`. Raises UsageError for options that make no sweep."""
    given = _parser().parse_args(argv)
    for option, number in (("-n", given.iters), ("-w", given.warmup), ("--batches", given.batches)):
        if (number or 0) > _MOST_CALLS:
            raise UsageError(
                f"{option} {str(number)[:_MOST_CHARACTERS]}: at most {_MOST_CALLS} can be timed in one run"
            )
    known("--dtype", "data type", given.dtype, DTYPES)
    known("--redop", "reduction", given.redop, REDOPS)
    steps, ops = _sweep_sizes(given), arguments.operations(given.op)
    rows = len(steps) * sum(len(OPS[op].places) for op in ops)
    own: dict[str, Any] = {"ops": ops, "sizes": steps, "open_end": given.end is None, "mode": _mode(given)}
    return measuring.made("bandwidth", argv, given, ("collectives",), **own, **_sampling(given, rows))


def _parser() -> argparse.ArgumentParser:
    parser = measuring.parser("bandwidth", _ABOUT, _MORE)
    _what_to_measure(parser)
    _how_often(parser)
    measuring.judging(parser)
    parser.add_argument("--repeat", type=arguments.whole, choices=range(4), default=1, metavar="N",
        help="Retest a slow row up to N times; it fails only if it stays slow (default: 1).")  # fmt: skip
    measuring.limits(parser)
    measuring.reporting(parser)
    hosts.options(parser)
    return parser


def _what_to_measure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--op", default="all_reduce", metavar="NAME[,NAME]",
        help=f"Measure these operations: all, or some of {', '.join(OPS)} (default: %(default)s).")  # fmt: skip
    largest = " or ".join(f"{size(nbytes)} with {name}" for name, nbytes in LARGEST.items())
    add("-b", dest="begin", metavar="SIZE",
        help=f"Set the smallest message (default: {_BEGIN}; without -b, -e and "
        "-f, a few sizes).")  # fmt: skip
    add("-e", dest="end", metavar="SIZE", help=f"Set the largest message (default: {largest}).")
    add("-f", dest="factor", type=arguments.count, metavar="N",
        help=f"Make each size N times the previous one (default: {_FACTOR}).")  # fmt: skip
    add("--dtype", default="float32", metavar="TYPE",
        help=f"Use elements of this type: {', '.join(DTYPES)} (default: %(default)s).")  # fmt: skip
    add("--redop", default="sum", metavar="OP",
        help=f"Reduce with this operator: {', '.join(REDOPS)} (default: %(default)s).")  # fmt: skip
    add("--no-transport-detection", dest="transport", action="store_false",
        help="Skip the untimed passes that detect transports and NIC traffic.")  # fmt: skip


def _how_often(parser: argparse.ArgumentParser) -> None:
    add, count = parser.add_argument, arguments.count
    add("--precision", type=_parse_percent, metavar="PERCENT",
        help="Stop a row when the 95 %% interval of its median is within ±PERCENT "
        f"(default: {_PRECISION:.0%}%).")  # fmt: skip
    add("--budget", dest="budget_s", type=arguments.positive, metavar="SECONDS",
        help=f"Stop a row after this many seconds and {stats.MIN_SAMPLES} batches (default: {_BUDGET_S:g}, or less "
        "if all rows would take more than half of --timeout).")  # fmt: skip
    add("-n", dest="iters", type=count, metavar="N",
        help=f"Make {stats.MIN_SAMPLES} batches of N calls instead of measuring until "
        "--precision is reached; show the mean.")  # fmt: skip
    add("--batches", type=count, metavar="N",
        help=f"Make N batches per row, each of -n calls (default: {_ITERS}), instead of --precision.")  # fmt: skip
    add("-w", dest="warmup", type=arguments.whole, default=5, metavar="N",
        help="Make N untimed calls per row first (default: %(default)s).")  # fmt: skip
    add("--mode", choices=("queued", "blocking"),
        help="Launch calls back to back, or wait for each (default: queued; gloo always waits).")  # fmt: skip
    add("--graph", action="store_true", help="Launch each batch as one CUDA graph; NCCL only.")


def _parse_percent(text: str) -> float:
    """Parse a share of up to one half, in percent (``2%``, ``2``), for argparse."""
    number = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?) ?%?", text)
    percent = float(number[1]) if number else 0.0
    if not 0 < percent <= 50:
        raise arguments.invalid(text, "a percentage above 0 and at most 50, such as 2%")
    return percent / 100


def _sampling(given: argparse.Namespace, rows: int) -> dict[str, Any]:
    """Return how often each of `rows` rows is measured: to a precision, or a fixed number of times.

    Without --budget all rows together take at most half of --timeout.
    """
    fixed = given.iters or given.batches
    if fixed and (given.precision or given.budget_s):
        asked = "--precision" if given.precision else "--budget"
        number = "-n" if given.iters else "--batches"
        raise UsageError(
            f"{number} and {asked} cannot be used together: the first fixes the number of calls, the second measures "
            "until the result is precise; give only one"
        )
    return {
        "iters": given.iters or _ITERS,
        "batches": given.batches or stats.MIN_SAMPLES,
        "precision": None if fixed else given.precision or _PRECISION,
        "budget_s": given.budget_s or min(_BUDGET_S, given.timeout_s / 2 / max(rows, 1)),
    }


def _mode(given: argparse.Namespace) -> Mode | None:
    """Return how calls are timed, if the options set it."""
    if given.graph and given.mode:
        raise UsageError(f"--graph and --mode {given.mode} cannot be used together; give one")
    if given.graph and given.backend == "gloo":
        raise UsageError("--graph needs NCCL: a CUDA graph cannot contain calls of gloo")
    if given.backend == "gloo" and given.mode == "queued":
        raise UsageError("--mode queued needs NCCL, because gloo waits for each call; leave it out")
    return "graph" if given.graph else given.mode


def _sweep_sizes(given: argparse.Namespace) -> tuple[int, ...]:
    """Return the sizes in measuring order. Without an end they are NCCL's, which include gloo's."""
    begin, element = bytes_of("-b", given.begin or _BEGIN), DTYPES[given.dtype]
    end = bytes_of("-e", given.end) if given.end is not None else LARGEST["nccl"]
    if begin > end:
        largest = given.end or size(end)
        raise UsageError(f"-b {given.begin or _BEGIN} is above -e {largest}: give the smaller size to -b")
    if begin < element:
        raise UsageError(f"-b {given.begin}: less than one {given.dtype}; give -b {element} or more")
    if given.factor is None and given.begin is None and given.end is None:
        return default_sizes(begin, end)
    factor = _FACTOR if given.factor is None else given.factor
    open_at = LARGEST["gloo"]
    between = sizes(begin, open_at, factor) if given.end is None and begin <= open_at else ()
    return tuple(sorted({*sizes(begin, end, factor), *between}))
