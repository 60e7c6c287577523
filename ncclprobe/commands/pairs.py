"""``ncclprobe pairs``, ``torchrun -m ncclprobe.pairs``: send-recv between all pairs of ranks, and who is slow."""

import argparse
from collections.abc import Sequence

from ncclprobe.commands import arguments, hosts, measuring
from ncclprobe.commands.measuring import bytes_of
from ncclprobe.localise.pairs import rounds
from ncclprobe.model.errors import UsageError
from ncclprobe.session.options import Options

_ABOUT = """\
Measure send-recv between pairs of ranks, and name the node, NIC, direction or pair that is slow. Between nodes, rank i
of one node is paired with rank i of another; on a single node, all its ranks are paired. Anything that looks slow is
retested with other partners before it is named. SIZE is in bytes, or a number with a binary K, M or G."""


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; return the exit code. Raises UsageError, on rank 0 only."""
    return measuring.main(argv, parse)


def parse(argv: Sequence[str]) -> Options:
    """Parse `argv`. Raises UsageError."""
    given = _parser().parse_args(argv)
    begin = bytes_of("-b", given.begin)
    largest = bytes_of("-e", given.end) if given.end else None
    if begin < 1:
        raise UsageError(f"-b {given.begin} must be above zero; try -b 8")
    if largest is not None and largest < begin:
        raise UsageError(f"-b {given.begin} is above -e {given.end}: give the smaller size to -b")
    asked = (begin,) if largest is None else (begin, largest)
    return measuring.made("pairs", argv, given, ("pairs",), pair_sizes=asked)


def _parser() -> argparse.ArgumentParser:
    parser = measuring.parser("pairs", _ABOUT)
    add = parser.add_argument
    add("--rounds", type=arguments.count, metavar="N",
        help=f"Measure N rounds of pairs (default: all pairs with up to {rounds.ALL_PAIRS} ranks, "
        f"otherwise {rounds.SOME_ROUNDS} "
        "rounds).")  # fmt: skip
    add("-b", dest="begin", default="8", metavar="SIZE",
        help="Measure the latency with messages of this size (default: %(default)s).")  # fmt: skip
    add("-e", dest="end", metavar="SIZE",
        help="Measure the bandwidth with messages of this size (default: 64M with NCCL, 4M with gloo).")  # fmt: skip
    measuring.judging(parser)
    measuring.limits(parser)
    measuring.reporting(parser)
    hosts.options(parser)
    return parser
