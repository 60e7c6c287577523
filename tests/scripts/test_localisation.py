"""The benchmark of localising runs and says what it ran; how good the figures are is no test."""

import subprocess
import sys
from itertools import combinations
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/localisation.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100)


def test_fleets_and_recorded_pairs_are_searched(tmp_path: Path) -> None:
    rows = ["cluster,collective,gpus_per_node,node_a,node_b,last_busbw_GBps"]
    rows += [
        f"lab,sendrecv,1,{one},{other},{40 + number % 3}"
        for number, (one, other) in enumerate(combinations("abcdef", 2))
    ]
    pairs, out = tmp_path / "pairs.csv", tmp_path / "figures.md"
    pairs.write_text("\n".join(rows))
    few = ("--nodes", 8, "--seeds", 2, "--noise", "quiet", "--jobs", 1, "--no-smallest")
    done = run(*few, "--kind", "node", "pair", "--recorded", pairs, "--out", out)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "Fleets of 8 nodes with 2 rails, noise quiet, 2 seeds each" in text
    assert "| 8 | quiet | 2 | 0 | 0.0 % | 0.0 – 65.8 % | 0 | 7.0 |" in text
    assert "| lab, sendrecv, 1 GPUs per node | 15 | nobody | 6 of 6 | 15 of 15 | 0 |" in text


def test_recorded_pairs_that_are_not_there_are_said_to_be_skipped() -> None:
    done = run("--nodes", "--recorded", "no such file", "--no-smallest")
    assert done.returncode == 0, done.stderr
    assert "Recorded pairs: not run (no such file)." in done.stdout


def test_nonsense_is_refused() -> None:
    assert run("--seeds", 0).returncode == 2
    assert run("--nodes", 2).returncode == 2
