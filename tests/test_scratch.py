"""A run's own temporary folder: gone when the run ends, and by the next run where it was killed."""

import os
import signal
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


def held(root: Path) -> "tuple[subprocess.Popen[str], Path]":
    """A process that has made a folder, and keeps it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], env={**os.environ, "TMPDIR": str(root)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


def killed(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def age(path: Path) -> None:
    os.utime(path, (0, 0))


def test_a_folder_is_its_owners_alone_and_gone_with_all_that_is_in_it_when_its_block_ends(root: Path) -> None:
    with scratch.scratch() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a").mkdir()
        (folder / "a" / "file").write_text("text")
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_the_next_run_removes_the_folder_of_a_killed_one_and_not_that_of_one_that_runs(root: Path) -> None:
    (dead, left), (living, kept) = held(root), held(root)
    killed(dead)
    age(left)
    age(kept)
    with scratch.scratch():
        assert not left.exists()
        assert kept.exists()
    killed(living)


@pytest.mark.slow
def test_a_folder_that_was_just_made_is_left_alone_for_it_may_not_be_locked_yet(root: Path) -> None:
    process, young = held(root)
    killed(process)
    with scratch.scratch():
        assert young.exists()


@pytest.mark.parametrize("name", ["ncclprobe-scratch-results", "ncclprobe-lab-1-abcdef", "ncclprobe-scratch-ABCDEFGH"])
def test_folders_of_other_names_and_links_are_not_touched(root: Path, name: str) -> None:
    elsewhere = root / name
    elsewhere.mkdir()
    age(elsewhere)
    (root / "ncclprobe-scratch-abcdefgh").symlink_to(elsewhere)
    with scratch.scratch():
        assert elsewhere.exists()


@pytest.mark.slow
def test_a_child_that_inherits_the_lock_keeps_the_folder_after_its_parent(root: Path) -> None:
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
