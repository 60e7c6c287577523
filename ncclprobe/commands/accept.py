"""``ncclprobe accept``, ``torchrun -m ncclprobe.accept``: is this node, or this job, good? One launch, one report."""

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from ncclprobe.commands import arguments, hosts, measuring
from ncclprobe.engine.diagnose import Question
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.run.samples import What
from ncclprobe.model.errors import NO_TORCH, UsageError
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.ops import OPS, default_sizes
from ncclprobe.model.values import Struct, replace
from ncclprobe.session.measure import single_rank
from ncclprobe.session.options import LARGEST, Options
from ncclprobe.session.ranks import rank_files
from ncclprobe.session.ranks.identity import choose_backend, devices

_ABOUT = """\
Accept or reject a node or a job: check every machine as `ncclprobe doctor` does, then measure copies inside nodes,
collectives and all pairs of ranks, in one launch and one report. It starts one rank per GPU, or two ranks with gloo
if there is no GPU. It also works under torchrun, srun and mpirun. What cannot be measured here is listed. The first
and last lines of the report are the same; paste either into a ticket."""


class _Level(Struct, frozen=True):
    """Thoroughness: time limit in seconds, parts, operations with their sizes, and precision of a row."""

    seconds: float
    what: tuple[What, ...] = ("copies", "collectives", "pairs")
    ops: tuple[str, ...] = ("all_reduce",)
    only_judged: bool = True
    precision: float = 0.02
    row_s: float = 2.0


LEVELS: Mapping[str, _Level] = MappingProxyType(
    {
        "quick": _Level(20.0, what=()),
        "full": _Level(180.0),
        "long": _Level(1800.0, ops=tuple(OPS), only_judged=False, precision=0.005, row_s=10.0),
    }
)
_GLOO_RANKS = 2
_PHASE_SHARE = 6.0
"""One phase may last this fraction of the time, so that a hang is named while there is time for the rest."""


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; return the exit code. Raises UsageError, on rank 0 only."""
    return measuring.main(argv, parse, _accept_one_node)


def parse(argv: Sequence[str]) -> Options:
    """Parse `argv`. Raises UsageError."""
    given = _parser().parse_args(argv)
    if given.expect_gpus and given.backend == "gloo":
        raise UsageError("--expect-gpus and --backend gloo cannot be used together: gloo uses no GPU; leave one out")
    level = LEVELS[given.level]
    if given.ladder and not level.what:
        raise UsageError(
            f"--ladder and --level {given.level} cannot be used together, because that level measures nothing; leave "
            "one out"
        )
    seconds = min(level.seconds, given.timeout or level.seconds)
    sizes = default_sizes(8, LARGEST["nccl"])
    rows = len(sizes) * sum(len(OPS[op].places) for op in level.ops)
    own: dict[str, Any] = {
        "ops": level.ops,
        "sizes": sizes,
        "open_end": True,
        "only_judged": level.only_judged,
        "precision": level.precision,
        "transport": True,
        "repeat": 1,
        "accepts": True,
        "timeout_s": seconds,
        "phase_timeout_s": seconds / _PHASE_SHARE,
        "budget_s": min(level.row_s, seconds / 4 / rows),
    }
    options = measuring.made("accept", argv, given, (*level.what, "ladder") if given.ladder else level.what, **own)
    return _single_rank_options(options) if _is_only_rank() else options


def _is_only_rank() -> bool:
    """Return whether this is the only rank, started by this command."""
    return rank_files.FOLDER in os.environ and os.environ.get("WORLD_SIZE") == "1"


def _single_rank_options(options: Options) -> Options:
    """Reduce `options` to what one rank can do, and name the parts that are left out."""
    gpu = options.backend != "gloo"
    why = (
        "one GPU, so there is no link between GPUs to measure"
        if gpu
        else "one rank, so there is no traffic between ranks to measure"
    )
    left_out = tuple(SkippedRow(part, None, "alone", why) for part in options.what if part != "copies")
    return replace(options, what=("copies",), left_out=left_out)


def _accept_one_node(options: Options, question: Question, launch: Launch) -> int:
    """Start ranks on this node, or only inspect it, and say what is missing here. Raises UsageError."""
    look = partial(single_rank.look, options, question, launch.kind, backend=options.backend or "nccl")
    if not options.what:
        return look(why="")
    if not has_torch():
        return look(why=NO_TORCH)
    here = devices(measuring.this_host())
    try:
        backend = choose_backend(options.backend, launch.kind, 1, here)[0]
    except UsageError as error:
        return look(why=str(error))
    if options.backend == "nccl" and not measuring.may_have_gpus(here):
        return look(why="no GPU is visible")
    ranks = options.nproc or (max(here.shown, 1) if backend == "nccl" else _GLOO_RANKS)
    return measuring.start_ranks(options, question, launch, ranks, lambda why: look(why=why))


def has_torch() -> bool:
    """Return whether torch is installed, without importing it, which takes seconds."""
    return importlib.util.find_spec("torch") is not None


def _parser() -> argparse.ArgumentParser:
    parser = measuring.parser("accept", _ABOUT)
    add = parser.add_argument
    times = ", ".join(f"{name} {level.seconds / 60:g} min" for name, level in LEVELS.items() if level.seconds >= 60)
    add("--level", choices=LEVELS, default="full",
        help=f"Choose how much to do: quick {LEVELS['quick'].seconds:g} s (measures nothing), {times} (all operations "
        "at all sizes) (default: %(default)s).")  # fmt: skip
    add("--expect-gpus", type=arguments.count, metavar="N", help="Fail if fewer than N GPUs are usable.")
    add("--ladder", action="store_true",
        help="Also measure a training step on one rank, on one node and on all nodes (with gloo also on two ranks), "
        "and show the speed-up.")  # fmt: skip
    add("--timeout", type=arguments.positive, metavar="SECONDS",
        help="End the whole run after this many seconds, if that is less (default: the time of "
        "--level).")  # fmt: skip
    measuring.judging(parser)
    measuring.reporting(parser)
    hosts.options(parser)
    return parser
