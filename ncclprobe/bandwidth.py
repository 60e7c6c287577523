"""``torchrun -m ncclprobe.bandwidth``: measure collectives across ranks, judge the numbers, report.

Works under torchrun, srun and mpirun, with RANK and WORLD_SIZE set by hand, and by itself with ``--nproc N``.
Usage is settled before torch is imported; rank 0 alone speaks.
"""

import argparse
import difflib
import os
import socket
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from ncclprobe import output
from ncclprobe.errors import UsageError
from ncclprobe.expect import bands
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.host import Host
from ncclprobe.ops import DTYPES, OPS, REDOPS, sizes
from ncclprobe.report import json as as_json
from ncclprobe.session import selflaunch
from ncclprobe.session.ledger import Ledger, Party
from ncclprobe.session.rank import Rank, devices
from ncclprobe.session.seat import choose_backend, take_seat
from ncclprobe.units import parse_size

EXIT_USAGE = 2
ONE_RANK = (
    "one rank moves no byte between GPUs, so there was nothing to measure; start one rank per GPU: "
    "torchrun --nproc-per-node=gpu -m ncclprobe.bandwidth, or ncclprobe bandwidth --nproc N"
)
_FIRST_WORD_S = 1.0  # torchrun ends rank 0 as soon as another rank has ended: let it speak first


class _Parser(argparse.ArgumentParser):
    """A parser that leaves the speaking to main(): under a launcher every rank makes the same mistake."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see ncclprobe bandwidth --help")


def main(argv: Sequence[str]) -> int:
    """Measure, or start ranks that do; returns the exit code. Raises UsageError, on rank 0 only."""
    launch = detect(os.environ)
    try:
        options = _parser().parse_args(argv)
        _complete(options)
        expected = _expected(options.expect, options.tolerance)
        if options.nproc is not None and selflaunch.VERDICT_FILE not in os.environ:
            return _start_ranks(options, argv, launch)
        seat = take_seat(launch, os.environ)
        if seat is None or seat.ranks == 1:
            return _alone(options, argv, launch)
        host = _this_host()
        backend = choose_backend(options.backend, seat.kind, seat.local_ranks, devices(host))[0]
        return Rank(options, argv, seat, host, expected, backend).run()
    except UsageError:
        if launch.rank and not launch.problems:
            time.sleep(_FIRST_WORD_S)
            return EXIT_USAGE
        raise


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ncclprobe bandwidth", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--op", default="all_reduce", metavar="NAME[,NAME]", help=f"{', '.join(OPS)}, or all (%(default)s)")
    add("-b", dest="begin", default="8", metavar="SIZE", help="smallest message, with binary K, M, G (%(default)s)")
    add("-e", dest="end", default="128M", metavar="SIZE", help="largest message (%(default)s)")
    add("-f", dest="factor", type=int, default=4, metavar="N", help="each size is N times the one before (%(default)s)")
    add("-n", dest="iters", type=int, default=20, metavar="N", help="timed calls per batch (%(default)s)")
    add("-w", dest="warmup", type=int, default=5, metavar="N", help="untimed calls per size before all (%(default)s)")
    add(
        "--batches",
        type=int,
        default=5,
        metavar="N",
        help="batches per row, the samples of the statistics (%(default)s)",
    )
    add("--dtype", default="float32", metavar="TYPE", help=f"{', '.join(DTYPES)} (%(default)s)")
    add("--redop", default="sum", metavar="OP", help=f"{', '.join(REDOPS)} (%(default)s)")
    add("--mode", choices=("queued", "blocking"), help="calls back to back, or one by one (queued; gloo: blocking)")
    add("--backend", choices=("nccl", "gloo"), help="default: nccl with a GPU per rank, else gloo, which exits 3")
    add("--nproc", type=int, metavar="N", help="start N ranks on this node")
    add("--expect", metavar="FILE", help="judge by these bands: TOML, or an earlier JSON report")
    add("--tolerance", type=bands.parse_tolerance, default=bands.TOLERANCE, metavar="SHARE",
        help="how far below its expectation a number may lie where the file does not say (%(default)s)")  # fmt: skip
    add("--report-only", action="store_true", help="numbers that nothing judges are no reason for exit code 3")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="of the whole run (%(default)g)")
    add(
        "--phase-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="of one batch or one start-up step (%(default)g)",
    )
    output.arguments(parser)
    return parser


def _complete(options: argparse.Namespace) -> None:
    """Turn texts into values, refusing what no sweep could be made of. Raises UsageError."""
    names = list(OPS) if options.op == "all" else list(dict.fromkeys(options.op.split(",")))
    choices: list[tuple[str, str, Collection[str]]] = [("--op", name, OPS) for name in names]
    for option, given, known in (*choices, ("--dtype", options.dtype, DTYPES), ("--redop", options.redop, REDOPS)):
        if given not in known:
            near = difflib.get_close_matches(given, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise UsageError(f"{option} {given!r} is unknown; {hint}")
    options.ops = tuple(names)
    options.sizes = sizes(parse_size(options.begin), parse_size(options.end), options.factor)
    counts = (("-n", options.iters, 1), ("-w", options.warmup, 0), ("--batches", options.batches, 1))
    for option, number, least in (*counts, ("--nproc", options.nproc, 1)):
        if number is not None and number < least:
            raise UsageError(f"{option} {number}: must be at least {least}")
    for option, number in (("--timeout", options.timeout), ("--phase-timeout", options.phase_timeout)):
        if not 0 < number < float("inf"):
            raise UsageError(f"{option} {number:g}: must be a number of seconds above zero")


def _expected(path: str | None, tolerance: float) -> tuple[bands.Band, ...]:
    """What the file at `path` expects: an earlier report if it is JSON, else TOML. Raises UsageError."""
    if path is None:
        return ()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--expect {path}: cannot be read: {error}") from None
    if text.lstrip().startswith("{"):
        return bands.from_report(as_json.read(path), path, tolerance)
    return bands.from_toml(text, path, tolerance)


def _start_ranks(options: argparse.Namespace, argv: Sequence[str], launch: Launch) -> int:
    if launch.kind != "none":
        raise UsageError(f"--nproc starts ranks of its own, but {launch.kind} has started this one; leave --nproc out")
    if options.nproc == 1:
        return _alone(options, argv, launch)
    choose_backend(options.backend, "torchrun", options.nproc, devices(_this_host()))
    return selflaunch.launch(options.nproc, argv, options.timeout)


def _alone(options: argparse.Namespace, argv: Sequence[str], launch: Launch) -> int:
    ledger = Ledger(options, argv, Party(launch.kind, 1, (socket.gethostname(),), options.backend or "nccl"), ())
    ledger.doubt(ONE_RANK)
    return ledger.close()


def _this_host() -> Host:
    from ncclprobe.live import LiveHost
    from ncclprobe.nccl.parameters import looks_like_ours, table

    return LiveHost(table().keys(), looks_like_ours)


if __name__ == "__main__":
    from ncclprobe.__main__ import main as run

    sys.exit(run(["bandwidth", *sys.argv[1:]]))
