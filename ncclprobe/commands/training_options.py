"""The options ``--groups`` and ``--workload``: what they ask for, checked before ranks meet."""

import argparse
import difflib
import re

from ncclprobe.commands.arguments import count, positive
from ncclprobe.errors import UsageError
from ncclprobe.ops import DTYPES
from ncclprobe.session.measure.training import Training
from ncclprobe.training import groups
from ncclprobe.training.workload import STRATEGIES, Model, Strategy
from ncclprobe.units import parse_size

_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_MOST_LAYERS, _MOST_MICRO_BATCHES, _MOST_BUCKETS = 1000, 1000, 10_000
"""Of a replay: more calls than this would not be a step that anybody waits for."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to `parser`, in a section of their own."""
    add = parser.add_argument_group("the traffic of real training, instead of single collectives").add_argument
    add("--groups", metavar="tp=N,…", help="the communicators of a hybrid-parallel job, of tp, cp, dp and pp: each "
        "kind alone, then all at once; -e is the size (default: 16M)")  # fmt: skip
    add("--workload", metavar="NAME[,NAME]", help=f"replay a step's collectives: all, or of {', '.join(STRATEGIES)}")
    add("--params", type=_count, default=25_000_000, metavar="N", help="parameters, such as 25M or 7B (default: 25M)")
    add("--layers", type=count, default=8, metavar="N", help="equal layers (default: %(default)s)")
    add("--tokens", type=count, default=2048, metavar="N",
        help="in one micro-batch of one rank (default: %(default)s)")  # fmt: skip
    add("--micro-batches", type=count, default=4, metavar="N", help="in one step (default: %(default)s)")
    add("--bucket", metavar="SIZE", help="of DDP and ZeRO (default: 25M for ddp, 500 million elements for zero3)")
    add("--compute", type=positive, metavar="SECONDS", help="of one rank in one step (default: 6 operations per "
        "parameter and token at this device's measured rate, at most 1)")  # fmt: skip


def asked(given: argparse.Namespace) -> Training | None:
    """What `given` asks for; None: nothing of it. Raises UsageError for what no replay could be made of."""
    if given.groups is None and given.workload is None:
        return None
    if given.pairs is not None:
        raise UsageError("--pairs and --groups or --workload: give one at a time")
    if given.layers > _MOST_LAYERS or given.micro_batches > _MOST_MICRO_BATCHES:
        raise UsageError(
            f"--layers {given.layers} --micro-batches {given.micro_batches}: at most {_MOST_LAYERS} and "
            f"{_MOST_MICRO_BATCHES} are replayed"
        )
    if given.params < given.layers:
        raise UsageError(f"--params {given.params} are fewer than --layers {given.layers}")
    bucket = parse_size(given.bucket) if given.bucket else None
    if bucket is not None and bucket < 1:
        raise UsageError(f"--bucket {given.bucket}: a bucket holds at least a byte; try 25M")
    if bucket and given.params * DTYPES[given.dtype] > _MOST_BUCKETS * bucket:
        raise UsageError(f"--bucket {given.bucket} makes more than {_MOST_BUCKETS} calls of a step; try 25M")
    model = Model(given.params, given.layers, DTYPES[given.dtype], given.tokens, given.micro_batches, bucket)
    grid = groups.parse(given.groups) if given.groups is not None else None
    return Training(grid, _strategies(given.workload), model, given.compute)


def _strategies(text: str | None) -> tuple[Strategy, ...]:
    if text is None or text == "all":
        return STRATEGIES if text else ()
    names = dict.fromkeys(text.split(","))
    for name in names:
        if name not in STRATEGIES:
            near = difflib.get_close_matches(name, STRATEGIES, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(STRATEGIES)}, or all"
            raise UsageError(f"--workload {name!r} is unknown; {hint}")
    return tuple(each for each in STRATEGIES if each in names)


def _count(text: str) -> int:
    """A number of parameters, with a decimal suffix, for argparse."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([KMBGT]?)", text, re.ASCII)
    number = round(float(found[1]) * _DECIMAL[found[2]]) if found else 0
    if not 0 < number <= 10**15:
        raise argparse.ArgumentTypeError(f"{text} is no number of parameters, such as 25M or 7B")
    return number
