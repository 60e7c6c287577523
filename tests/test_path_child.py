"""The child that looks at data paths and writes there: in folders of ours, and nowhere else."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.host.path_child import PathChild
from ncclprobe.model.errors import Failed, HostError, Missing, TimedOut

PATIENCE_S = 30.0
PIDS = Path("/proc/self/ns/pid").stat().st_ino
DEAD = 2**22 + 1  # above the kernel's largest pid_max


@pytest.fixture
def child(tmp_path: Path) -> Iterator[PathChild]:
    made = PathChild(str(tmp_path))
    yield made
    made.close()


def content(path: Path) -> Any:
    made = PathChild(str(path))
    try:
        return made.ask("content", PATIENCE_S)
    finally:
        made.close()


def write(child: PathChild, host: str = "n0") -> Any:
    return child.ask("write", PATIENCE_S, host=host, text="text\n")


def test_a_file_is_known_by_its_size_head_tail_and_a_sample(tmp_path: Path) -> None:
    whole = os.urandom(1 << 20)
    head = bytes([whole[0] ^ 1]) + whole[1:]
    for name, data in {"a": whole, "b": whole, "head": head, "tail": whole[:-1] + b"\n\n"}.items():
        (tmp_path / name).write_bytes(data)
    digests = {name: content(tmp_path / name)["digest"] for name in ("a", "b", "head", "tail")}
    assert digests["a"] == digests["b"]
    assert len(set(digests.values())) == 3
    assert content(tmp_path / "a")["hashed_bytes"] < 200_000


def test_a_folder_is_known_by_its_names_without_ours(tmp_path: Path, child: PathChild) -> None:
    (tmp_path / "a").touch()
    before = child.ask("content", PATIENCE_S)
    made = write(child)
    assert child.ask("content", PATIENCE_S) == before == {"entries": 1, "digest": before["digest"], "cut": False}
    assert child.ask("clean", PATIENCE_S, folder=made["folder"]) == {"gone": True}
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    assert child.ask("content", PATIENCE_S) != before


def test_a_pipe_is_not_opened_and_what_is_missing_is_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Failed, match="neither a file nor a folder"):
        content(tmp_path / "pipe")
    with pytest.raises(Missing):
        content(tmp_path / "none")


def test_a_marker_is_written_found_and_removed(tmp_path: Path, child: PathChild) -> None:
    made = write(child)
    assert made["failed"] == ""
    assert set(made["seconds"]) == {"mkdir", "create", "fsync", "rename", "spare", "unlink"}
    assert os.listdir(tmp_path / made["folder"]) == ["marker"]  # noqa: PTH208
    asked: dict[str, Any] = {"folder": made["folder"], "name": "marker", "seconds": 0.0}
    assert child.ask("look", PATIENCE_S, **asked, digest="0")["outcome"] == "other"
    assert child.ask("look", PATIENCE_S, **{**asked, "name": "shard-1"}, digest="0")["outcome"] == "no-file"
    child.ask("clean", PATIENCE_S, folder=made["folder"])
    assert child.ask("look", PATIENCE_S, **asked, digest="0")["outcome"] == "no-folder"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["..", "data", "../.ncclprobe-n0-1.2-3", ".ncclprobe-n0-1.2-3/..", "/etc"])
def test_no_folder_but_ours_is_touched(tmp_path: Path, child: PathChild, folder: str) -> None:
    (tmp_path / "data").mkdir()
    for what, more in (("clean", {}), ("shard", {"name": "marker", "text": "x", "times": 1})):
        with pytest.raises(HostError, match="of ours"):
            child.ask(what, PATIENCE_S, folder=folder, **more)
    with pytest.raises(HostError, match="of ours"):
        child.ask("shard", PATIENCE_S, folder=".ncclprobe-n0-1.2-3", name="../x", text="x", times=1)
    assert (tmp_path / "data").is_dir()


def leave(at: Path, host: str = "n0", pid: int = DEAD, age_s: float = 5.0, pids: int = PIDS) -> Path:
    folder = at / f".ncclprobe-{host}-{pid}.{pids}-{int(time.time() - age_s)}"
    folder.mkdir()
    (folder / "marker").touch()
    return folder


def test_what_a_killed_run_left_is_removed_by_the_next_one_on_its_host(tmp_path: Path, child: PathChild) -> None:
    gone = [leave(tmp_path), leave(tmp_path, "n1", age_s=2 * 86_400)]
    kept = [leave(tmp_path, "n1"), leave(tmp_path, pid=os.getpid()), leave(tmp_path, pids=1)]
    made = write(child)
    assert sorted(made["swept"]) == sorted(each.name for each in gone)
    assert not any(each.exists() for each in gone)
    assert all(each.exists() for each in kept)


def test_what_is_not_ours_in_a_folder_of_ours_stays(tmp_path: Path, child: PathChild) -> None:
    folder = leave(tmp_path)
    (folder / "thesis.tex").touch()
    (tmp_path / ".ncclprobe-notes").mkdir()
    assert write(child)["swept"] == []
    assert (folder / "thesis.tex").exists()
    assert (tmp_path / ".ncclprobe-notes").exists()


def test_a_link_with_our_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "marker").touch()
    (tmp_path / "shared" / f".ncclprobe-n0-{DEAD}.{PIDS}-5").symlink_to(tmp_path / "elsewhere")
    child = PathChild(str(tmp_path / "shared"))
    assert write(child)["swept"] == []
    child.close()
    assert (tmp_path / "elsewhere" / "marker").exists()


def test_a_child_that_is_late_is_killed_and_the_next_question_has_a_new_one(child: PathChild) -> None:
    child.ask("stat", PATIENCE_S)
    first = child._child._process
    assert first
    os.kill(first.pid, signal.SIGSTOP)
    with pytest.raises(TimedOut, match="stat: no answer within"):
        child.ask("stat", 0.1)
    assert first.poll() == -signal.SIGKILL
    assert child.ask("stat", PATIENCE_S)["kind"] == "folder"


def test_a_child_that_does_not_start_in_time_is_no_path_that_does_not_answer(child: PathChild) -> None:
    with pytest.raises(Failed, match="stat: the process that would look did not start within 0 s"):
        child.ask("stat", 0.0)
    assert child.ask("stat", PATIENCE_S)["kind"] == "folder"
