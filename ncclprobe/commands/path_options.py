"""What a command line says of data paths, and what a run needs for them."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import get_args

from ncclprobe import bounds
from ncclprobe.errors import UsageError, unknown
from ncclprobe.facts.data_paths import AskedPath, AskedPaths, Use
from ncclprobe.units import parse_size, size

_PATH_BYTES = 64 << 20
_LONGEST_PATH = 4095  # PATH_MAX, without its end


def options(parser: argparse.ArgumentParser) -> None:
    """Add which paths are looked at, and how fast they are to be."""
    add = parser.add_argument
    add("--path", type=data_path, action="append", default=[], dest="paths", metavar="PATH[:USE]",
        help="Look at what every node sees at this path, which a job uses to `read` (default), to `write`, or as a "
        "folder for `checkpoint`s; the last two write small files there and remove them. May be given several "
        "times.")  # fmt: skip
    add("--path-rates", action="store_true",
        help="Also measure each path: sequential and random reads and opens of small files where a job reads, writes "
        "with fsync where it writes, reads of what was written where it keeps checkpoints; on each node apart, at most "
        "8 at once, then on all at once.")  # fmt: skip
    add("--path-bytes", type=_rate_bytes, metavar="SIZE",
        help="Move at most so much in one measurement of one node, which also ends after a second (default: "
        f"{_PATH_BYTES >> 20}M).")  # fmt: skip
    add("--baseline", metavar="PATH",
        help="Judge rates of paths, measured now or held by captures, by this file of `ncclprobe "
        "baseline`.")  # fmt: skip


def refuse(given: argparse.Namespace) -> None:
    """Refuse what makes no sense together. Raises UsageError."""
    if given.paths and (given.captures or len(given.paths) > bounds.DATA_PATHS):
        why = "and captures exclude each other" if given.captures else f"may be given {bounds.DATA_PATHS} times"
        raise UsageError(f"--path {why}")
    if (given.path_rates or given.path_bytes) and not given.paths:
        raise UsageError("--path-rates needs --path: name what is to be measured")
    if given.path_bytes and not given.path_rates:
        raise UsageError("--path-bytes bounds what --path-rates measures; give that as well")
    if given.baseline and not (given.path_rates or given.captures):
        raise UsageError("--baseline judges what --path-rates measures; give that as well, or captures that hold it")


def asked(given: argparse.Namespace) -> AskedPaths:
    """Return what is to be looked at."""
    return AskedPaths(tuple(dict.fromkeys(given.paths)), (given.path_bytes or _PATH_BYTES) if given.path_rates else 0)


def shared(given: argparse.Namespace) -> Sequence[str]:
    """Return these options as every node must be given them."""
    words = [word for each in given.paths for word in ("--path", f"{each.path}:{each.use}")]
    return [*words, *(["--path-rates", "--path-bytes", str(asked(given).rate_bytes)] if given.path_rates else [])]


def data_path(text: str) -> AskedPath:
    """Parse a path and its use, for argparse."""
    path, colon, use = text.rpartition(":")
    for known in get_args(Use):
        if colon and use == known:
            return AskedPath(_absolute(path), known)
    if colon and re.fullmatch(r"[A-Za-z]{1,20}", use):  # a path that ends so takes its use behind it
        raise argparse.ArgumentTypeError(f"{unknown(use, 'use of a path', get_args(Use))}, as in {path[:80]}:read")
    return AskedPath(_absolute(text))


def _absolute(path: str) -> str:
    if not path or len(path) > _LONGEST_PATH or not path.isprintable():
        raise argparse.ArgumentTypeError(f"{ascii(path)[:80]} is no path")
    return os.path.abspath(path)  # noqa: PTH100 - asks no file system, which may hang


def _rate_bytes(text: str) -> int:
    """Parse a size within bounds, for argparse."""
    try:
        nbytes = parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not bounds.LEAST_RATE_BYTES <= nbytes <= bounds.MOST_RATE_BYTES:
        least, most = size(bounds.LEAST_RATE_BYTES), size(bounds.MOST_RATE_BYTES)
        raise argparse.ArgumentTypeError(f"{ascii(text)[:40]} is not between {least} and {most}")
    return nbytes
