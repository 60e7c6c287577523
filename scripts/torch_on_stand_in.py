#!/usr/bin/env python3
"""Runs a program with torch's CUDA build above our own stand-ins of CUDA and NCCL, on a machine without a GPU.

    scripts/torch_on_stand_in.py [--torch 2.12.0] -- COMMAND…  run COMMAND there; `python` is torch's

    scripts/torch_on_stand_in.py -- python -m torch.distributed.run --nproc-per-node 2 \\
        -m ncclprobe.bandwidth --backend nccl -b 8 -e 4M

It is not NCCL: nothing that it says or decides shows what NCCL says or decides (tests/cuda_stand_in/README.md). The
first run installs torch's wheels (5 GB, in --folder) and compiles our sources. Needs g++ and root: the devices of the
GPUs are in a mount namespace.
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
from stand_in import build, machine, torch_env

TORCH = "2.12.0"
NOT_NCCL = "torch_on_stand_in.py: this is our stand-in, not NCCL: nothing here shows what NCCL says or decides"


def main() -> int:
    """Make the environment if it is missing, and run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", default=TORCH, metavar="VERSION", help="torch's release (%(default)s)")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="of the machine (%(default)s)")
    usual = Path.home() / ".cache" / "ncclprobe" / "stand_in"
    parser.add_argument("--folder", type=Path, default=usual, metavar="FOLDER", help="keeps environments (%(default)s)")
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    args = parser.parse_args()
    if missing := build.missing_tools():
        fail(f"needs {', '.join(missing)}")
    try:
        python = torch_env.make(args.folder.resolve(), args.torch)
    except (build.BuildError, OSError, subprocess.SubprocessError) as error:
        fail(str(error))
    if problem := machine.impossible():
        fail(problem)
    print(NOT_NCCL, file=sys.stderr)
    if not args.command:
        print(python)
        return 0
    with tempfile.TemporaryDirectory() as work:
        shown = machine.variables(python / "stand-in", Path(work), args.gpus)
        asked = {name: value for name, value in os.environ.items() if name.startswith("FAKE_")}
        path = os.pathsep.join([str(python / "bin"), os.environ.get("PATH", os.defpath)])
        return subprocess.call(machine.inside(args.command), env={**os.environ, **shown, **asked, "PATH": path})


if __name__ == "__main__":
    sys.exit(main())
