#!/usr/bin/env python3
"""Does NCCL choose what we predict? Asks the real libnccl of several releases, and compares.

    sudo .venv/bin/python scripts/oracle.py (--all | RELEASE…) [--cache DIR] [--worlds N] [--cases N] [--offline]

Without a GPU, ncclGetUniqueId reads NCCL's files and variables and looks for its bootstrap interface; what it says of
that is compared with ncclprobe.nccl and ncclprobe.facts.nccl_conf, in networks and environments made by hypothesis.
Needs root, iproute2, and NVIDIA's wheels, about 350 MB each, of which the libraries are kept in the cache. All networks
are namespaces that end with their process. --all also asks the newest release that is out, whose differences are
printed and not required. Exit status 1: a required release disagrees.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from oracle_ask import Tally, ask, plan
from oracle_wheels import CACHE, REQUIRED, cached, library, newest
from tables import table

EXAMPLES = 5
COLUMNS = ("NCCL", "networks", "cases", "chosen", "refused", "IFNAME", "COMM_ID", "files", "agree", "disagree")


def main() -> int:
    """Parse the command line, ask, and print."""
    args = _arguments()
    if problem := impossible():
        print(f"oracle: {problem}", file=sys.stderr)
        return 2
    planned = plan(args.worlds, args.cases)
    tallies, started = [], time.monotonic()
    for release in _releases(args):
        try:
            path = cached(args.cache).get(release) if args.offline else library(release, args.cache)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"oracle: {release}: {error}", file=sys.stderr)
            path = None
        if path is None:
            print(f"oracle: {release} is not at hand: left out", file=sys.stderr)
            continue
        tallies.append(ask(release, path, planned, args.workers))
        print(f"{release}: {tallies[-1].cases} cases, {tallies[-1].disagreeing} disagree", file=sys.stderr)
    print(report(tallies, time.monotonic() - started))
    return int(not tallies or any(t.disagreeing or t.broken for t in tallies if t.release in REQUIRED))


def impossible() -> str | None:
    """Why nothing can be asked here, or None."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    return None if shutil.which("ip") else "needs `ip`: install iproute2"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=f"as on the package index: {REQUIRED[0]}")
    parser.add_argument("--all", action="store_true", help="the usual releases and the newest")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the libraries are kept (%(default)s)")
    parser.add_argument("--worlds", type=int, default=60, help="networks per release (%(default)s)")
    parser.add_argument("--cases", type=int, default=50, help="cases per network (%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="networks at a time (%(default)s)")
    parser.add_argument("--offline", action="store_true", help="only what is cached")
    args = parser.parse_args()
    if not args.all and not args.releases:
        parser.error("name a release, or --all")
    if args.cache.resolve().is_relative_to(ROOT):
        parser.error("--cache is inside the repository: name a folder outside")
    return args


def _releases(args: argparse.Namespace) -> list[str]:
    if not args.all:
        return list(args.releases)
    latest = None if args.offline else newest()
    return list(dict.fromkeys([*REQUIRED, *([latest] if latest else []), *args.releases]))


def report(tallies: Sequence[Tally], seconds: float) -> str:
    """The table and the first examples of what differs, as Markdown."""
    lines = [
        f"In {seconds:.0f} s. {REQUIRED[0]} to {REQUIRED[-1]} must agree; a newer release is reported only.",
        "",
        *table(COLUMNS, [_row(tally) for tally in tallies]),
    ]
    for tally in tallies:
        if tally.differences or tally.broken:
            shown = [*map(str, tally.broken), *map(str, tally.differences)][:EXAMPLES]
            lines += ["", f"## {tally.release}: first differences", "", *(f"- `{line}`" for line in shown)]
    return "\n".join(lines) + "\n"


def _row(tally: Tally) -> tuple[str | int, ...]:
    kinds = tally.kinds
    counts = (kinds[k] for k in ("chosen", "refused", "with NCCL_SOCKET_IFNAME", "with NCCL_COMM_ID", "with files"))
    name = tally.release if tally.release in REQUIRED else f"{tally.release} (not required)"
    return name, tally.worlds, tally.cases, *counts, tally.cases - tally.disagreeing, tally.disagreeing


if __name__ == "__main__":
    sys.exit(main())
