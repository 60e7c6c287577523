"""The child that looks at data paths, and only reads."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.host.path_child import PathChild
from ncclprobe.model.errors import Failed, Missing, TimedOut

PATIENCE_S = 30.0


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


def test_a_file_is_known_by_its_size_head_tail_and_a_sample(tmp_path: Path) -> None:
    whole = os.urandom(1 << 20)
    head = bytes([whole[0] ^ 1]) + whole[1:]
    for name, data in {"a": whole, "b": whole, "head": head, "tail": whole[:-1] + b"\n\n"}.items():
        (tmp_path / name).write_bytes(data)
    digests = {name: content(tmp_path / name)["digest"] for name in ("a", "b", "head", "tail")}
    assert digests["a"] == digests["b"]
    assert len(set(digests.values())) == 3
    assert content(tmp_path / "a")["hashed_bytes"] < 200_000


def test_a_folder_is_known_by_its_names_and_their_kinds(tmp_path: Path, child: PathChild) -> None:
    (tmp_path / "a").touch()
    before = child.ask("content", PATIENCE_S)
    assert before == {"entries": 1, "digest": before["digest"], "cut": False}
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    assert child.ask("content", PATIENCE_S) != before


def test_a_pipe_is_not_opened_and_what_is_missing_is_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Failed, match="neither a file nor a folder"):
        content(tmp_path / "pipe")
    with pytest.raises(Missing):
        content(tmp_path / "none")


def test_the_files_below_a_path_are_read_and_their_rate_is_plausible(tmp_path: Path, child: PathChild) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "large").write_bytes(os.urandom(3 << 20))
    (tmp_path / "small").write_bytes(b"x" * 100)
    seen = child.ask("rate", PATIENCE_S)
    assert seen["nbytes"] == (3 << 20) + 100
    assert 0 < seen["seconds"] < 10
    assert seen["resident"] is None or 0 <= seen["resident"] <= 1


def test_too_little_data_is_said_and_not_measured(tmp_path: Path, child: PathChild) -> None:
    (tmp_path / "small").write_bytes(b"x" * 100)
    assert "contain only 100 bytes" in child.ask("rate", PATIENCE_S)["why"]


def test_links_out_of_the_path_are_not_read_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x" * (2 << 20))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    child = PathChild(str(tmp_path / "data"))
    try:
        assert "contain only 0 bytes" in child.ask("rate", PATIENCE_S)["why"]
    finally:
        child.close()
    assert os.listdir(tmp_path / "data") == ["link"]  # noqa: PTH208


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
    with pytest.raises(Failed, match="stat: the process that examines it did not start within 0 s"):
        child.ask("stat", 0.0)
    assert child.ask("stat", PATIENCE_S)["kind"] == "folder"
