#!/usr/bin/env python3
"""Runs a program with torch's CUDA build and NVIDIA's NCCL on a machine without a GPU.

    scripts/torch_on_cpu.py --source TREE_OR_ARCHIVE [--tag v2.30.7-1]           build what is missing
    scripts/torch_on_cpu.py [--gpus 8] [--hostname NAME --host N] -- COMMAND…    run COMMAND there; `python` is torch's
    scripts/torch_on_cpu.py --torch 2.6.0 …                                      with that release of torch

    NCCL_NTHREADS=64 NCCL_MAX_NCHANNELS=2 scripts/torch_on_cpu.py -- \\
        python -m torch.distributed.run --nproc-per-node 2 -m ncclprobe.bandwidth --backend nccl -b 8 -e 4M

NCCL is built as scripts/nccl_on_cpu.py says. torch comes from its wheels (5 GB, in ~/.cache/ncclprobe/on_cpu). The two
settings of NCCL make it some 5 times as fast. Needs root: the devices of the GPUs are in a mount namespace, with
--hostname in a UTS namespace too. What the stand-in of CUDA decides by itself: tests/cuda_stand_in/README.md.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from child import fail
from on_cpu import build, machine, torch_env


def main() -> int:
    """Build what is missing, and run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", type=Path, metavar="TREE_OR_ARCHIVE", help="NCCL's, to build what is missing")
    parser.add_argument("--tag", default=build.RELEASES[0], help="NCCL's release (%(default)s)")
    parser.add_argument(
        "--torch",
        default=torch_env.TORCH,
        metavar="VERSION",
        help=f"torch's release (%(default)s; tried: {', '.join(torch_env.RELEASES)})",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="of the machine (%(default)s)")
    parser.add_argument("--hostname", default="", metavar="NAME", help="of the machine, where it is not this one's")
    parser.add_argument("--host", type=int, default=0, metavar="N", help="tells the GPUs' UUIDs of hosts apart")
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    args = parser.parse_args()
    try:
        if args.source:
            build.build(args.source.resolve(), args.tag, args.jobs)
        elif not build.cached(args.tag):
            parser.error(f"NCCL {args.tag} is not built, or our sources changed since: give --source")
        python = torch_env.make(args.tag, args.torch)
    except (build.BuildError, OSError, ValueError, subprocess.SubprocessError) as error:
        fail(str(error))
    if not args.command:
        print(python)
        return 0
    if problem := machine.impossible():
        fail(problem)
    with tempfile.TemporaryDirectory() as out:
        own = environment(args.tag, python, Path(out), args.gpus, args.host)
        return subprocess.call(machine.inside(args.command, args.hostname), env=own)


def environment(tag: str, python: Path, out: Path, gpus: int, host: int = 0) -> dict[str, str]:
    """Our environment, in which FAKE_* decide, with what a program needs there; a file of it is written to `out`."""
    shown = machine.variables(build.folder(tag) / "lib", out, gpus, host)
    path = os.pathsep.join([str(python / "bin"), os.environ.get("PATH", os.defpath)])
    asked = {name: value for name, value in os.environ.items() if name.startswith(("FAKE_", "NCCL_SOCKET_IFNAME"))}
    return {**os.environ, **shown, "NCCL_SOCKET_IFNAME": "lo", **asked, "PATH": path}


if __name__ == "__main__":
    sys.exit(main())
