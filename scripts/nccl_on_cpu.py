#!/usr/bin/env python3
"""Builds NVIDIA's NCCL for a machine without a GPU: its own sources above a stand-in of CUDA (tests/cuda_stand_in).

    scripts/nccl_on_cpu.py --source TREE_OR_ARCHIVE --tag v2.30.7-1 [--jobs N]

The source is an unpacked tree, an archive of one, or a clone of github.com/NVIDIA/nccl that has the tag. CUDA's headers
come from NVIDIA's wheels (15 MB). Built and tried are eight releases (on_cpu/build.py); torch runs above the newest.
What was built stays in ~/.cache/ncclprobe/on_cpu, by release and by what our own sources were; nothing of NVIDIA's
comes into the repository. Needs g++ and binutils, x86-64. Prints the folder.
"""

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from child import fail
from on_cpu import build


def main() -> int:
    """Build, or find what was built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True, metavar="TREE_OR_ARCHIVE")
    parser.add_argument("--tag", default=build.RELEASES[0], help="the release, as its tag is named (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    args = parser.parse_args()
    if not args.source.exists():
        parser.error(f"--source {args.source} does not exist: name a tree, an archive or a clone of NVIDIA/nccl")
    begun = time.monotonic()
    try:
        print(build.build(args.source.resolve(), args.tag, args.jobs) / "lib")
    except (build.BuildError, OSError, ValueError) as error:
        fail(str(error))
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
