"""``ncclprobe workload``, ``torchrun -m ncclprobe.workload``: the collectives of a training step, and groups."""

import argparse
import re
from collections.abc import Sequence

from ncclprobe.commands import measuring
from ncclprobe.commands.arguments import count, invalid, known
from ncclprobe.commands.measuring import bytes_of
from ncclprobe.model import training
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import DTYPES
from ncclprobe.model.training import STRATEGIES, Model, Strategy
from ncclprobe.session.options import Options, Training

_ABOUT = """\
Replay the collectives of one training step with simulated compute, with and without overlap, and measure the
communicators of a hybrid-parallel job. SIZE is in bytes, or a number with a binary K, M or G."""
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_MOST_LAYERS, _MOST_MICRO_BATCHES = 1000, 1000
"""Limits of a replay: more calls would take too long for one step."""


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; return the exit code. Raises UsageError, on rank 0 only."""
    return measuring.main(argv, parse)


def parse(argv: Sequence[str]) -> Options:
    """Parse `argv`. Raises UsageError for options that make no replay."""
    given = _parser().parse_args(argv)
    known("--dtype", "data type", given.dtype, DTYPES)
    nbytes = bytes_of("-e", given.end)
    return measuring.made("workload", argv, given, ("training",), sizes=(nbytes,), training=_training(given))


def _parser() -> argparse.ArgumentParser:
    parser = measuring.parser("workload", _ABOUT)
    add = parser.add_argument
    add("steps", nargs="?", metavar="NAME[,NAME]", help="Replay a step of each of these: all, or some of "
        f"{', '.join(STRATEGIES)} (default: all; none if only --groups is given).")  # fmt: skip
    add("--params", type=_count, default=5_000_000, metavar="N",
        help="Give the model N parameters, such as 25M or 7B (default: 5M).")  # fmt: skip
    add("--layers", type=count, default=8, metavar="N", help="Give the model N equal layers (default: %(default)s).")
    add("--tokens", type=count, default=1024, metavar="N",
        help="Give each micro-batch of a rank N tokens (default: %(default)s).")  # fmt: skip
    add("--micro-batches", type=count, default=2, metavar="N",
        help="Split a step into N micro-batches (default: %(default)s).")  # fmt: skip
    add("--groups", metavar="tp=N,…", help="Measure the communicators of a hybrid-parallel job (tp, dp, pp): each "
        "kind by itself, then all at once.")  # fmt: skip
    add("-e", dest="end", default="16M", metavar="SIZE",
        help="Use messages of this size in --groups (default: %(default)s).")  # fmt: skip
    add("--dtype", default="float32", metavar="TYPE",
        help=f"Use elements of this type: {', '.join(DTYPES)} (default: %(default)s).")  # fmt: skip
    measuring.limits(parser)
    measuring.reporting(parser)
    return parser


def _training(given: argparse.Namespace) -> Training:
    """Return the requested training. Raises UsageError for options that make no replay."""
    if given.layers > _MOST_LAYERS or given.micro_batches > _MOST_MICRO_BATCHES:
        raise UsageError(
            f"--layers {given.layers} --micro-batches {given.micro_batches}: at most {_MOST_LAYERS} and "
            f"{_MOST_MICRO_BATCHES} are replayed"
        )
    if given.params < given.layers:
        raise UsageError(f"--params {given.params} is less than --layers {given.layers}")
    model = Model(given.params, given.layers, DTYPES[given.dtype], given.tokens, given.micro_batches)
    grid = training.parse(given.groups) if given.groups is not None else None
    names = given.steps or ("all" if grid is None else "")
    return Training(grid, _strategies(names), model)


def _strategies(text: str) -> tuple[Strategy, ...]:
    if text in ("", "all"):
        return STRATEGIES if text else ()
    names = dict.fromkeys(text.split(","))
    for name in names:
        known("NAME", "strategy", name, STRATEGIES)
    return tuple(each for each in STRATEGIES if each in names)


def _count(text: str) -> int:
    """Parse a number of parameters, with a decimal suffix, for argparse."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([KMBGT]?)", text, re.ASCII)
    number = round(float(found[1]) * _DECIMAL[found[2]]) if found else 0
    if not 0 < number <= 10**15:
        raise invalid(text, "a number of parameters, such as 25M or 7B")
    return number
