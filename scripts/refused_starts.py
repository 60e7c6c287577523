#!/usr/bin/env python3
"""Records how published releases of NCCL fail to start above a driver that refuses, without a GPU.

    scripts/refused_starts.py [RELEASE…]        2.18.3 to 2.32.3; writes tests/data/refused_starts.jsonl.gz

The library is NVIDIA's, out of its wheels (scripts/oracle_wheels.py), and so are its lines. The driver is our own
(tests/cuda_stand_in/refusing_driver.c): its cuInit returns one of CUDA's codes. Nothing goes further than that.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from child import fail
from gpu_stages import processes
from oracle_wheels import library

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests" / "cuda_stand_in" / "refusing_driver.c"
RECORDED = ROOT / "tests" / "data" / "refused_starts.jsonl.gz"
RELEASES = ("2.18.3", "2.21.5", "2.23.4", "2.27.7", "2.28.9", "2.30.7", "2.31.2", "2.32.3")
CODES = (2, 3, 34, 36, 46, 100, 101, 304, 802, 803, 804, 999)
"""Of cudaError_t, as cuInit returns them too."""
OLD_DRIVER = 11000
"""What cuDriverGetVersion reports with code 0: older than any runtime in these wheels."""
_RANK = SOURCE.with_name("refused_rank.py")
_START_S, _COMPILE_S, AT_ONCE = 60.0, 60.0, 6
_HOST = "n0"


def main() -> int:
    """Record every code with every release, one process each."""
    releases = sys.argv[1:] or RELEASES
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        driver = work / "libcuda.so.1"
        command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(SOURCE), "-o", str(driver)]
        try:
            subprocess.run(command, check=True, timeout=_COMPILE_S)
            (work / "libcuda.so").symlink_to(driver.name)  # as older releases call it
            asked = [(release, library(release), code) for release in releases for code in (*CODES, 0)]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                rows = [*pool.map(lambda each: record(work, *each), asked)]
        except (OSError, subprocess.SubprocessError) as error:
            fail(str(error))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    RECORDED.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(rows)} starts of {len(releases)} releases: {RECORDED}")
    return 0


def record(work: Path, release: str, path: Path, code: int) -> dict[str, object]:
    """One start, and its lines without this machine's name."""
    shown = {"LD_LIBRARY_PATH": str(work), "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "lo"}
    shown |= {"FAKE_CUDA_INIT": str(code), **({} if code else {"FAKE_CUDA_DRIVER": str(OLD_DRIVER)})}
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "FAKE_"))}
    log = work / f"{release}-{code}.log"
    ended = processes.run([sys.executable, "-I", "-S", _RANK, path], log, {**env, **shown}, _START_S)
    if ended.code != 1 or "NCCL WARN" not in ended.text:
        fail(f"NCCL {release} above code {code}: {ended}")
    text = ended.text.replace(f"{os.uname().nodename}:", f"{_HOST}:").replace(str(path.parent), "/opt/nccl")
    return {"nccl": release, "cuda": code, "exit_code": ended.code, "log": text.replace(str(work), "/opt/cuda")}


if __name__ == "__main__":
    sys.exit(main())
