"""The child that looks at data paths, and only reads; and how fast it reads them."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.host import path_child, path_rate
from ncclprobe.host.path_child import PathChild
from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed, Missing, TimedOut

PATIENCE_S, BLOCK, MIB = 30.0, 64 << 10, 1 << 20


@pytest.fixture
def child(tmp_path: Path) -> Iterator[PathChild]:
    made = PathChild(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def content(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Asks about files of the folder, each in a child of its own."""
    started: list[PathChild] = []

    def ask(name: str, what: str = "content") -> Any:
        started.append(PathChild(str(tmp_path / name)))
        return started[-1].ask(what, PATIENCE_S)

    yield ask
    for each in started:
        each.close()


def test_a_file_is_known_by_its_size_head_tail_and_a_sample(tmp_path: Path, content: Callable[[str], Any]) -> None:
    whole = os.urandom(MIB)
    head, sampled = bytes([whole[0] ^ 1]) + whole[1:], whole[:BLOCK] + bytes(MIB - 2 * BLOCK) + whole[-BLOCK:]
    for name, data in {"a": whole, "b": whole, "c": head, "d": whole[:-1] + b"\n\n", "e": sampled}.items():
        (tmp_path / name).write_bytes(data)
    digests = [content(name)["digest"] for name in "abcde"]
    assert (digests[0] == digests[1], len(set(digests))) == (True, 4)
    sizes = {0: 0, 7: 7, BLOCK: BLOCK, BLOCK + 1: BLOCK + 1, 2 * BLOCK: 2 * BLOCK, 2 * BLOCK + 1: 2 * BLOCK + 16 * 4096}
    for size, hashed in sizes.items():
        (tmp_path / "sized").write_bytes(bytes(size))
        found = path_child.content_of(str(tmp_path / "sized"))
        assert {**found, "digest": len(found["digest"])} == {
            "entries": 0, "digest": 16, "cut": False, "hashed_bytes": hashed
        }  # fmt: skip


def test_a_folder_is_known_by_its_names_and_their_kinds(
    tmp_path: Path, child: PathChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    before = child.ask("content", PATIENCE_S)
    assert before == {"entries": 1, "digest": before["digest"], "cut": False}
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    assert child.ask("content", PATIENCE_S) != before
    (tmp_path / "b").touch()
    monkeypatch.setattr(bounds, "LISTED_ENTRIES", 2)
    assert path_child.content_of(str(tmp_path)) == child.ask("content", PATIENCE_S)
    (tmp_path / "c").touch()  # of more entries than are listed, two nodes may list others
    assert path_child.content_of(str(tmp_path)) == {"entries": 2, "digest": "", "cut": True}


def test_a_path_is_told_with_its_kind_owner_and_access_and_a_pipe_is_not_opened(
    tmp_path: Path, content: Callable[..., Any]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    me = {"uid": os.getuid(), "gid": (tmp_path / "file").stat().st_gid, "user": os.geteuid()}
    assert content("link", "stat") == {
        "kind": "file", "real": str(tmp_path / "file"), "mode": "0640", "nbytes": 5, "read": True, "enter": False, **me
    }  # fmt: skip
    assert (content("", "stat")["kind"], content("", "stat")["enter"]) == ("folder", True)
    assert content("pipe", "stat")["kind"] == "other"
    with pytest.raises(Failed, match="neither a file nor a folder"):
        content("pipe")
    with pytest.raises(Missing):
        content("none")
    with pytest.raises(Failed, match="embedded null byte"):
        content("a\0b")


def test_the_files_below_a_path_are_read_and_their_rate_is_plausible(tmp_path: Path, child: PathChild) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "large").write_bytes(os.urandom(3 * MIB))
    (tmp_path / "small").write_bytes(b"x" * 100)
    seen = child.ask("rate", PATIENCE_S)
    assert seen["nbytes"] == 3 * MIB + 100
    assert 0 < seen["seconds"] < 10
    assert seen["resident"] is None or 0 <= seen["resident"] <= 1


def test_what_is_read_is_bounded_and_no_link_or_hidden_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_rate, "_TURN_S", 60.0)
    (tmp_path / "elsewhere").write_bytes(bytes(2 * MIB))
    data = tmp_path / "data"
    data.mkdir()
    (data / "link").symlink_to(tmp_path / "elsewhere")
    (data / ".hidden").write_bytes(bytes(2 * MIB))
    (data / "empty").touch()
    few = "the files there contain only {} bytes: too few to measure reads"
    assert path_rate.rate(str(data)) == {"why": few.format(0)}
    assert sorted(each.name for each in data.iterdir()) == [".hidden", "empty", "link"]
    (data / "file").write_bytes(bytes(MIB - 1))
    assert path_rate.rate(str(data)) == {"why": few.format(MIB - 1)}
    (data / "file").write_bytes(bytes(MIB))
    assert path_rate.rate(str(data))["nbytes"] == path_rate.rate(str(data / "file"))["nbytes"] == MIB
    assert path_rate.rate(str(data))["resident"] is not None  # which an empty file would leave unknown
    (data / "file").unlink()
    for number in range(70):  # of these 64 are read
        (data / f"f{number:02}").write_bytes(bytes(MIB // 32 if number < 63 else 1))
    assert path_rate.rate(str(data))["nbytes"] == 63 * MIB // 32  # "empty" is one of those that are found
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(65 * MIB)
    assert path_rate.rate(str(tmp_path / "sparse"))["nbytes"] == 64 * MIB
    deep = tmp_path / "deep"
    for depth in range(10):
        deep = deep / str(depth)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(bytes(MIB))
    assert "why" in path_rate.rate(str(tmp_path / "deep"))
    assert path_rate.rate(str(tmp_path / "deep" / "0" / "1"))["nbytes"] == MIB


def test_a_child_that_is_late_is_killed_and_the_next_question_has_a_new_one(child: PathChild) -> None:
    with pytest.raises(Failed, match="stat: the process that examines it did not start within 0 s"):
        child.ask("stat", -1.0)  # which is no path that does not answer
    child.ask("stat", PATIENCE_S)
    first = child._child._process
    assert first
    os.kill(first.pid, signal.SIGSTOP)
    with pytest.raises(TimedOut, match=r"stat: no answer within 0\.1 s"):
        child.ask("stat", 0.1)
    assert first.poll() == -signal.SIGKILL
    assert child.ask("stat", PATIENCE_S)["kind"] == "folder"
