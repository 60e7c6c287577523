"""The smaller scripts: counts of calls, the environment, and the oracle."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import calls

KEPT = json.loads(calls.KEPT.read_text())
CACHE = Path(os.environ.get("NCCLPROBE_ORACLE") or Path.home() / ".cache" / "ncclprobe" / "oracle")


@pytest.mark.slow
@pytest.mark.parametrize("situation", calls.SITUATIONS)
def test_a_command_calls_no_more_functions_than_are_kept(situation: str) -> None:
    """Calls are counted, because times are noise."""
    now = calls.counted(situation)
    grown = calls.grown(now, KEPT[situation])
    assert now[""] <= calls.ALLOWED * KEPT[situation][""], (
        f"{now['']:,} calls, {KEPT[situation]['']:,} are kept:{''.join(grown)}\n"
        "make it cheaper; or if the work is wanted, say why in the commit and keep it: scripts/calls.py --write"
    )


@pytest.mark.slow
def test_an_environment_that_is_a_link_to_another_trees_is_left_alone(tmp_path: Path) -> None:
    """A worktree whose .venv led to that of the clone: `venv --clear` emptied the clone's."""
    for name in ("scripts", "pyproject.toml", "constraints.txt"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "ncclprobe.json").write_text('{"python": "x", "version": "3", "path": [], "pins": "", "extras": []}')
    (tmp_path / ".venv").symlink_to(theirs)
    command = [sys.executable, str(tmp_path / "scripts" / "environment.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "is a link to" in done.stderr.splitlines()[-1]) == (1, True)
    assert [path.name for path in theirs.iterdir()] == ["ncclprobe.json"]


def test_nccl_chooses_and_reads_what_we_predict() -> None:
    """What we say NCCL would do is what the real libnccl of one release does. All of them: scripts/oracle.py --all."""
    releases = sorted(path.parent.name for path in CACHE.glob("2.*/libnccl.so.2"))
    if not releases:
        pytest.skip(f"no libnccl in {CACHE} (or $NCCLPROBE_ORACLE): scripts/oracle.py 2.27.7 fetches one")
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, timeout=10).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    release = next((name for name in releases if name.startswith("2.27.")), releases[0])
    line = [sys.executable, str(ROOT / "scripts/oracle.py"), "--offline", "--cache", str(CACHE), release]
    done = subprocess.run([*line, "--worlds", "8", "--cases", "25"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"200 cases, 0 disagree", done.stderr)
