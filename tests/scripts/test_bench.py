"""The benchmarks run; what they find depends on the machine and is no test."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "scripts/bench.py"


def test_all_comparisons_run_and_say_what_they_compared(tmp_path: Path) -> None:
    result = tmp_path / "bench.json"
    process = subprocess.Popen(
        [sys.executable, BENCH, "--pairs", "2", "--sizes", "64K", "--rows", "20", "--json", result],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    found = json.loads(result.read_text())
    assert [(row["nbytes"], row["ranks"], row["pairs"]) for row in found["ratios"]] == [(64 << 10, 2, 2)]
    assert found["overhead"]["bare_us"] > 0
    assert "fake group, host time per call" in printed
    assert "64 KiB: reported / by hand" in printed
    (asked,) = found["asked"]
    assert asked["precision"] > 0
    assert 0 <= asked["reached"] <= 1
    assert "of rows came to it" in printed
    quiet = [row for row in found["made_up"] if row["noise"].startswith("quiet")]
    assert min(row["right"] for row in quiet) > 0.95
