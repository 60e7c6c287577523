"""``ncclprobe copies``, ``torchrun -m ncclprobe.copies``: measure the links inside a node."""

import argparse
from collections.abc import Sequence

from ncclprobe.commands import measuring
from ncclprobe.session.options import Options

_ABOUT = """\
Measure copies between host and GPU and between GPUs, for each GPU by itself and for all at once, by NUMA node, and
judge them by the bandwidth of the links. Without a GPU, copies within the host's memory are measured. One rank is
enough."""


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; return the exit code. Raises UsageError, on rank 0 only."""
    return measuring.main(argv, parse)


def parse(argv: Sequence[str]) -> Options:
    """Parse `argv`. Raises UsageError."""
    return measuring.made("copies", argv, _parser().parse_args(argv), ("copies",))


def _parser() -> argparse.ArgumentParser:
    parser = measuring.parser("copies", _ABOUT)
    measuring.judging(parser, files=False)
    measuring.limits(parser)
    measuring.reporting(parser)
    return parser
