"""What the command line of ``ncclprobe bandwidth`` asks for, checked before torch is imported or a rank is met."""

import argparse
import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from ncclprobe import stats
from ncclprobe.commands import arguments, training_options
from ncclprobe.errors import UsageError
from ncclprobe.expect.site import bands
from ncclprobe.localise.pairs import rounds
from ncclprobe.model.measurement import Mode
from ncclprobe.ops import DTYPES, OPS, REDOPS, sizes
from ncclprobe.session.measure.intra_node import Aside
from ncclprobe.session.options import Options
from ncclprobe.units import parse_size, size

_ABOUT = """\
Measure collectives across ranks, judge the numbers, report. Works under torchrun, srun and mpirun, with RANK and
WORLD_SIZE set by hand, and by itself with --nproc. SIZE is bytes, or a number with a binary K, M or G."""

_MORE = """\
examples:
  torchrun --nproc-per-node=gpu -m ncclprobe.bandwidth --op all_reduce,all_gather -e 1G
  ncclprobe bandwidth --nproc 8 --expect bands.toml --json report.json

bands.toml, a file for --expect:
  [[expect]]
  op = "all_reduce"
  nbytes = "1G"          # the table's size; or min_bytes and max_bytes, a range
  busbw_GBps = 360.0     # 1e9 bytes per second
  threshold_GBps = 330.0 # what still passes; or tolerance = 0.1, a share of busbw_GBps
  source = "acceptance test of 2026-03-02"
  why = "median of 20 nodes"

exit codes:
  0  every rank came and stayed, the data was right, and nothing is slower than expected
  1  ncclprobe itself is broken; never a verdict
  2  wrong usage, or a file that cannot be read or written
  3  inconclusive: nothing failed, but the run was cut short, something asked for was not measured, a number was too
     noisy to judge, or with --require-judged, --expect or --baseline nothing judged the numbers
  4  something fails, or with --fail-on warn warns"""


_END, _GROUPS_END = "128M", "16M"
_PRECISION, _BUDGET_S = 0.02, 2.0
_ITERS = 20
_MOST_CHARACTERS = 32
_MOST_CALLS = 10**7
"""Calls are prepared before they are timed, so more would fill a node's memory first."""


def parse(argv: Sequence[str]) -> Options:
    """The options in `argv`. Raises UsageError for what no sweep could be made of."""
    given = _parser().parse_args(argv)
    for option, number in (("-n", given.iters), ("-w", given.warmup), ("--batches", given.batches)):
        if (number or 0) > _MOST_CALLS:
            raise UsageError(
                f"{option} {str(number)[:_MOST_CHARACTERS]}: at most {_MOST_CALLS} can be timed in one run"
            )
    _known("--dtype", given.dtype, DTYPES)
    _known("--redop", given.redop, REDOPS)
    if given.warmup < 0:
        raise UsageError(f"-w {given.warmup}: must be at least 0")
    asked = training_options.asked(given)
    pair_end, given.end = given.end, given.end or (_GROUPS_END if asked or given.aside else _END)
    steps = _pair_sizes(given, pair_end) if given.pairs is not None else _steps(given)
    if asked or given.aside:
        steps = (_bytes("-e", given.end),)
    ops = _ops(given.op)
    rows = len(steps) * sum(len(OPS[op].places) for op in ops)
    ours: dict[str, Any] = {
        "command": "bandwidth",
        "argv": tuple(argv),
        "ops": ops,
        "sizes": steps,
        "training": asked,
        "aside": asked_within(given),
        "notes": _missed_end(given, steps) if given.pairs is None and not asked and not given.aside else (),
        "mode": _mode(given),
        "select": tuple(given.select),
        "ignore": tuple(given.ignore),
        **_sampling(given, rows),
    }
    given_as_named = {field.name: getattr(given, field.name) for field in fields(Options) if field.name not in ours}
    return Options(**ours, **given_as_named)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("bandwidth", _ABOUT, _MORE)
    _what_to_measure(parser)
    training_options.arguments(parser)
    intra_node_arguments(parser)
    _how_to_judge(parser)
    arguments.arguments(parser)
    return parser


def _what_to_measure(parser: argparse.ArgumentParser) -> None:
    add, count = parser.add_argument, arguments.count
    add("--op", default="all_reduce", metavar="NAME[,NAME]", help=f"all, or of {', '.join(OPS)} (default: %(default)s)")
    add("--pairs", type=count, nargs="?", const=0, metavar="ROUNDS",
        help="instead: send-recv between the ranks, node with node (rank i with rank i) or all ranks of one node, all "
        f"pairs up to {rounds.ALL_PAIRS}, else so many rounds ({rounds.SOME_ROUNDS}); -b is the latency's size, -e the "
        "bandwidth's (default: 64M with NCCL, 4M with gloo)")  # fmt: skip
    add("-b", dest="begin", default="8", metavar="SIZE", help="smallest message (default: %(default)s)")
    add("-e", dest="end", metavar="SIZE", help=f"largest message (default: {_END})")
    add("-f", dest="factor", type=int, default=4, metavar="N", help="factor between sizes (default: %(default)s)")
    _how_often(parser)
    add("-w", dest="warmup", type=int, default=5, metavar="N",
        help="untimed calls per size, before all (default: %(default)s)")  # fmt: skip
    add("--dtype", default="float32", metavar="TYPE", help=f"of {', '.join(DTYPES)} (default: %(default)s)")
    add("--redop", default="sum", metavar="OP", help=f"of {', '.join(REDOPS)} (default: %(default)s)")
    add("--mode", choices=("queued", "blocking"),
        help="calls back to back, or one by one (default: queued; gloo is always blocking)")  # fmt: skip
    add("--graph", action="store_true", help="NCCL only: a batch is one launch of a CUDA graph that holds its calls")
    add("--backend", choices=("nccl", "gloo"),
        help="default: nccl with a GPU per rank; where there is no GPU, gloo, which is inconclusive "
        "unless asked for by name")  # fmt: skip
    add("--nproc", type=count, metavar="N", help="start N ranks on this node")


def _how_often(parser: argparse.ArgumentParser) -> None:
    add, count = parser.add_argument, arguments.count
    add("--precision", type=_share, metavar="PERCENT",
        help=f"calls until a row's median is known within ± so much (default: {_PRECISION:.0%}%), or …")  # fmt: skip
    add("--budget", dest="budget_s", type=arguments.positive, metavar="SECONDS",
        help=f"… so much time has gone into it (default: {_BUDGET_S:g}, or what "
        "half of --timeout leaves for each row)")  # fmt: skip
    add("-n", dest="iters", type=count, metavar="N",
        help=f"instead, as nccl-tests does: timed calls per batch, and {stats.MIN_SAMPLES} batches")  # fmt: skip
    add("--batches", type=count, metavar="N", help=f"instead: batches per row, of {_ITERS} calls")


def _how_to_judge(parser: argparse.ArgumentParser) -> None:
    add, positive = parser.add_argument, arguments.positive
    add("--expect", metavar="FILE", help="judge by these bands: TOML as below, or an earlier JSON report")
    add("--baseline", metavar="PATH",
        help="judge by what the command baseline kept of this machine: its file, or a folder of them")  # fmt: skip
    add("--repeat", type=int, choices=range(4), default=1, metavar="N",
        help="measure what is too slow up to N times more; it fails if it stays so (default: %(default)s)")  # fmt: skip
    add("--tolerance", type=bands.parse_tolerance, default=bands.TOLERANCE, metavar="SHARE",
        help="how far below its expectation a number may lie if FILE does not say (default: %(default)s)")  # fmt: skip
    add("--require-judged", action="store_true",
        help="exit 3 where nothing judges the numbers; without it only where FILE or PATH judges none")  # fmt: skip
    arguments.selection(parser)
    add("--keep", type=arguments.folder, metavar="DIR", help="leave run.jsonl and the nodes' captures in this folder")
    add("--timeout", dest="timeout_s", type=positive, default=120.0, metavar="SECONDS",
        help="of the whole run, importing torch included (default: %(default)g)")  # fmt: skip
    add("--phase-timeout", dest="phase_timeout_s", type=positive, default=60.0, metavar="SECONDS",
        help="of one batch, or of one step of meeting (default: %(default)g)")  # fmt: skip


def _share(text: str) -> float:
    """A share of up to one half, in percent (``2%``, ``2``), for argparse."""
    number = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?) ?%?", text)
    percent = float(number[1]) if number else 0.0
    if not 0 < percent <= 50:
        raise argparse.ArgumentTypeError(f"{text} is no percentage above 0 and up to 50, such as 2%")
    return percent / 100


def _sampling(given: argparse.Namespace, rows: int) -> dict[str, Any]:
    """How often each of so many rows is measured: as a precision asks, or a fixed number of times.

    Where nobody said how long a row may take, all of them together take no more than half of --timeout.
    """
    fixed = given.iters or given.batches
    if fixed and (given.precision or given.budget_s):
        asked = "--precision" if given.precision else "--budget"
        number = "-n" if given.iters else "--batches"
        raise UsageError(f"{number} fixes the number of calls, and {asked} asks for as many as it takes; give one")
    return {
        "iters": given.iters or _ITERS,
        "batches": given.batches or stats.MIN_SAMPLES,
        "precision": None if fixed else given.precision or _PRECISION,
        "budget_s": given.budget_s or min(_BUDGET_S, given.timeout_s / 2 / max(rows, 1)),
    }


def _mode(given: argparse.Namespace) -> Mode | None:
    """How calls are timed, as far as it was said."""
    if given.graph and given.mode:
        raise UsageError(f"--graph and --mode {given.mode}: a graph is a mode of its own; give one")
    if given.graph and given.backend == "gloo":
        raise UsageError("--graph needs NCCL: a CUDA graph cannot hold a call of gloo")
    return "graph" if given.graph else given.mode


def _ops(text: str) -> tuple[str, ...]:
    names = tuple(OPS) if text == "all" else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        _known("--op", name, OPS)
    return names


def _known(option: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        near = difflib.get_close_matches(given, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
        raise UsageError(f"{option} {given!r} is unknown; {hint}")


def _steps(given: argparse.Namespace) -> tuple[int, ...]:
    begin, end = _bytes("-b", given.begin), _bytes("-e", given.end)
    if begin > end:
        raise UsageError(f"-b {given.begin} is above -e {given.end}: give the smaller size to -b")
    return sizes(begin, end, given.factor)


def _pair_sizes(given: argparse.Namespace, end: str | None) -> tuple[int, ...]:
    """The latency's size, and the bandwidth's where it was said. Raises UsageError."""
    begin, largest = _bytes("-b", given.begin), _bytes("-e", end) if end else None
    if begin < 1 or (largest is not None and largest < begin):
        raise UsageError(f"--pairs -b {given.begin} -e {end}: a byte or more, and -e no smaller than -b")
    return (begin,) if largest is None else (begin, largest)


def _bytes(option: str, text: str) -> int:
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"{option} {text[:_MOST_CHARACTERS]}… is too long for a size, such as 64M")
    return parse_size(text)


def _missed_end(given: argparse.Namespace, steps: tuple[int, ...]) -> tuple[str, ...]:
    """A remark where the largest size is not the one that was asked for."""
    if steps[-1] == parse_size(given.end):
        return ()
    asked = f"-e {given.end} is not on the steps from {given.begin} by {given.factor}"
    return (f"sizes end at {size(steps[-1])}: {asked}",)


def intra_node_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to `parser`, in a section of their own."""
    group = parser.add_argument_group("within a node, instead of collectives")
    add = group.add_mutually_exclusive_group().add_argument
    add("--copies", dest="aside", action="store_const", const="copies",
        help="between host and GPU and between GPUs, each alone and all together, by NUMA node; without a GPU the "
        "host's own memory")  # fmt: skip
    add("--affinity", dest="aside", action="store_const", const="affinity",
        help="all_reduce with each rank's processors as they are and as its GPU's place asks for, in turn")  # fmt: skip
    parser.add_argument("--no-road", dest="road", action="store_false",
        help="leave out the passes that find out which way the bytes went")  # fmt: skip


def asked_within(given: argparse.Namespace) -> Aside | None:
    """What `given` asks for. Raises UsageError where it asks for something else too."""
    others = {"--pairs": given.pairs, "--groups": given.groups, "--workload": given.workload}
    for name, value in others.items():
        if given.aside and value is not None:
            raise UsageError(f"--{given.aside} and {name}: give one at a time")
    aside: Aside | None = given.aside
    return aside
