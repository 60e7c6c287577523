"""``ncclprobe affinity``, ``torchrun -m ncclprobe.affinity``: what the ranks' processors cost."""

import argparse
from collections.abc import Sequence

from ncclprobe.commands import measuring
from ncclprobe.commands.arguments import known
from ncclprobe.commands.measuring import bytes_of
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import DTYPES
from ncclprobe.session.options import Options

_ABOUT = """\
Measure all_reduce with each rank on its current processors and on those of its GPU's NUMA node, in turn, and say how to
bind the ranks. SIZE is in bytes, or a number with a binary K, M or G."""


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; returns the exit code. Raises UsageError, on rank 0 only."""
    return measuring.main(argv, parse)


def parse(argv: Sequence[str]) -> Options:
    """Return the options in `argv`. Raises UsageError."""
    given = _parser().parse_args(argv)
    known("--dtype", "data type", given.dtype, DTYPES)
    nbytes = bytes_of("-e", given.end)
    if not nbytes:
        raise UsageError(f"-e {given.end}: there is nothing to send; give a size above zero, such as 16M")
    return measuring.made("affinity", argv, given, ("affinity",), sizes=(nbytes,))


def _parser() -> argparse.ArgumentParser:
    parser = measuring.parser("affinity", _ABOUT)
    add = parser.add_argument
    add("-e", dest="end", default="16M", metavar="SIZE", help="Use messages of this size (default: %(default)s).")
    add("--dtype", default="float32", metavar="TYPE",
        help=f"Use elements of this type: {', '.join(DTYPES)} (default: %(default)s).")  # fmt: skip
    measuring.limits(parser)
    measuring.reporting(parser)
    return parser
