"""A run's own temporary folder: gone when the run ends, and by the next run where it was killed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ncclprobe.host import scratch

HOLD = "from ncclprobe.host import scratch; import time; print(scratch.make().path, flush=True); time.sleep(100)"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def held(root: Path, *, alive: bool = False) -> tuple["subprocess.Popen[str]", Path]:
    """Return a process that has made a folder; it is killed unless it stays `alive`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], env={**os.environ, "TMPDIR": str(root)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    path = Path(process.stdout.readline().strip())
    if not alive:
        process.kill()
        process.communicate()
    return process, path


def age(path: Path) -> None:
    os.utime(path, (0, 0))


def test_a_folder_is_its_owners_alone_and_gone_with_all_that_is_in_it_when_its_block_ends(root: Path) -> None:
    with scratch.scratch() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a").mkdir()
        (folder / "a" / "file").write_text("text")
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_the_next_run_removes_the_old_folder_of_a_killed_one_and_not_that_of_one_that_runs(root: Path) -> None:
    (_, left), (living, kept), (_, young) = held(root), held(root, alive=True), held(root)
    age(left)
    age(kept)
    with scratch.scratch():
        assert [path.exists() for path in (left, kept, young)] == [False, True, True]  # a new one may not be locked yet
    living.kill()
    living.communicate()


def test_folders_of_other_names_and_links_are_not_touched_and_ours_are_if_nobody_holds_them(root: Path) -> None:
    others = [root / f"ncclprobe-{name}" for name in ("scratch-results", "lab-1-abcdef", "scratch-ABCDEFGH")]
    for elsewhere in others:
        elsewhere.mkdir()
        age(elsewhere)
    (root / "ncclprobe-scratch-abcdefgh").symlink_to(others[0])
    ours = [root / f"ncclprobe-scratch-{name}" for name in ("_0123456", "stranger")]
    for path in ours:
        path.mkdir()
        age(path)
    if os.geteuid() == 0:
        os.chown(ours[1], 65534, 65534)
    with scratch.scratch():
        assert all(each.exists() for each in others)
        assert [each.exists() for each in ours] == [False, os.geteuid() == 0]


@pytest.mark.slow
def test_a_child_that_inherits_the_lock_keeps_the_folder_after_its_parent() -> None:
    made = scratch.make()
    assert made.lock is not None
    child = subprocess.Popen(["sleep", "100"], pass_fds=[made.lock])
    os.close(made.lock)
    age(made.path)
    with scratch.scratch():
        assert made.path.exists()
    child.kill()
    child.wait()
    with scratch.scratch():
        assert not made.path.exists()
