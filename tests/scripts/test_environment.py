"""The environment that scripts/ make for themselves."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_environment_that_is_a_link_to_another_trees_is_left_alone(tmp_path: Path) -> None:
    """A worktree whose .venv led to that of the clone: `venv --clear` emptied the clone's."""
    for name in ("scripts", "pyproject.toml", "constraints.txt"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    stamp = {"python": "x", "version": "3", "path": ["/other"], "pins": "", "extras": []}
    (theirs / "ncclprobe.json").write_text(json.dumps(stamp))
    (theirs / "kept").touch()
    (tmp_path / ".venv").symlink_to(theirs)
    command = [sys.executable, str(tmp_path / "scripts" / "environment.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "is a link to" in done.stderr.splitlines()[-1]
    assert sorted(path.name for path in theirs.iterdir()) == ["kept", "ncclprobe.json"]
