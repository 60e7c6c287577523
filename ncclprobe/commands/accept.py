"""``ncclprobe accept``, ``torchrun -m ncclprobe.accept``: is this node, or this job, good? One launch, one report."""

import argparse
from collections.abc import Sequence
from typing import Any

from ncclprobe.commands import arguments, measuring
from ncclprobe.facts.run.asked import What
from ncclprobe.ops import default_sizes
from ncclprobe.session.options import LARGEST, Options

_ABOUT = """\
Accept a node or a job: check every machine as `ncclprobe doctor` does, then measure copies inside nodes, all_reduce at
8 bytes and at the sizes that can be judged, and all pairs of ranks, in one launch and one report. It starts one rank
per GPU, or two with --backend gloo, and also works under torchrun, srun and mpirun. The last line can be pasted into a
ticket."""

_MORE = """\
examples:
  ncclprobe accept
  srun --ntasks-per-node=8 ncclprobe accept --json accept.json --ladder
  torchrun --nproc-per-node=gpu -m ncclprobe.accept --minutes 5"""

_LEAST_MINUTES, _MOST_MINUTES = 0.5, 24 * 60.0
_GLOO_RANKS = 2
_PHASE_SHARE = 6.0
"""One phase may last this part of the time: what hangs is named while there is time for the rest."""


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; returns the exit code. Raises UsageError, on rank 0 only."""
    return measuring.main(argv, parse)


def parse(argv: Sequence[str]) -> Options:
    """The options in `argv`. Raises UsageError."""
    given = _parser().parse_args(argv)
    seconds = min(60 * given.minutes, given.timeout or float("inf"))
    sizes = default_sizes(8, LARGEST["nccl"])
    own: dict[str, Any] = {
        "sizes": sizes,
        "open_end": True,
        "only_judged": True,
        "transport": True,
        "repeat": 1,
        "gloo_ranks": _GLOO_RANKS,
        "timeout_s": seconds,
        "phase_timeout_s": seconds / _PHASE_SHARE,
        "budget_s": min(2.0, seconds / 4 / len(sizes)),
    }
    what: tuple[What, ...] = ("copies", "collectives", "pairs")
    return measuring.made("accept", argv, given, (*what, "ladder") if given.ladder else what, **own)


def _parser() -> argparse.ArgumentParser:
    parser = measuring.parser("accept", _ABOUT, _MORE)
    parser.add_argument("--minutes", type=_minutes, default=3.0, metavar="N",
        help="End within so many minutes, even if the job hangs (default: %(default)g).")  # fmt: skip
    parser.add_argument("--ladder", action="store_true",
        help="Also climb from one rank to its node to all nodes (with gloo two ranks come between), and say what "
        "speed-up a training step has on each rung.")  # fmt: skip
    parser.add_argument("--timeout", type=arguments.positive, metavar="SECONDS",
        help="End the whole run after so many seconds, if that is sooner (default: --minutes).")  # fmt: skip
    measuring.judging(parser)
    measuring.reporting(parser)
    return parser


def _minutes(text: str) -> float:
    """How many minutes, for argparse."""
    number = arguments.positive(text)
    if not _LEAST_MINUTES <= number <= _MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"{text} minutes: give {_LEAST_MINUTES:g} to {_MOST_MINUTES:g}")
    return number
