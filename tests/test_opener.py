"""Whatever another user can name is opened part by part, so that nothing replaces it between the look and the use."""

import os
import stat
from pathlib import Path

import pytest

from ncclprobe.host import files, opener
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes links of another user: run the tests as root")
OTHER, THIRD = 65534, 12345


def _text(path: str | Path, **how: bool) -> str:
    with os.fdopen(opener.opened(path, os.O_RDONLY, **how)) as file:
        return file.read()


def test_links_of_ones_own_are_followed_however_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("here")
    (tmp_path / "a/up").symlink_to("../a/./b")
    (tmp_path / "whole").symlink_to(tmp_path / "a/up/file")
    monkeypatch.chdir(tmp_path / "a/b")
    ways = (
        f"{tmp_path}/a/up/file", f"{tmp_path}/whole", "../up/file", "./file", "../../whole",
        f"/..//{tmp_path}//a/up/../b/file",
    )  # fmt: skip
    assert [_text(way) for way in ways] == ["here"] * len(ways)


def test_a_circle_of_links_a_missing_folder_and_a_name_too_long_are_errors_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    for way in ("round", "none/file", "x" * 300, "\0"):
        with pytest.raises(OSError, match=r"^\[Errno"):
            opener.opened(tmp_path / way, os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        opener.opened("", os.O_RDONLY)
    with pytest.raises(UsageError, match="round: cannot be read: "):
        files.trusted_folder(tmp_path / "round")


def test_a_link_of_the_kernel_is_followed_to_what_is_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("open")
    with (tmp_path / "file").open() as file:
        assert _text(Path(f"/proc/self/fd/{file.fileno()}")) == "open"


def test_a_root_of_ones_own_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box/etc").mkdir(parents=True)
    (tmp_path / "box/etc/name").write_text("inside")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/name").write_text("outside")
    (tmp_path / "box/link").symlink_to("/etc/name")
    (tmp_path / "box/up").symlink_to("../../../etc/name")
    for way in ("/link", "/up", "/../etc/name", "etc/name"):
        with opener.place(way, root=str(tmp_path / "box")) as end, os.fdopen(end.open(os.O_RDONLY)) as file:
            assert file.read() == "inside"


def test_what_has_become_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a log")
    (tmp_path / "secret").write_text("secret")
    with opener.place(tmp_path / "log") as end:
        (tmp_path / "log").unlink()
        (tmp_path / "log").symlink_to("secret")
        with pytest.raises(OSError, match="symbolic links"):
            end.open(os.O_RDONLY)


@needs_root
def test_no_folder_is_made_through_a_link_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "theirs").symlink_to("private")
    os.lchown(tmp_path / "theirs", OTHER, OTHER)
    (tmp_path / "file").touch()
    longest = f"{'d' * 200}/" * 20  # as long as no program can open
    longest = longest[: 4096 - len(f"{tmp_path}/")].rstrip("/").ljust(4096 - len(f"{tmp_path}/"), "d")
    for way in ("theirs/new", "theirs/new/deep", "theirs", "file", "file/new", "d/" * 2500, "x" * 300, longest):
        with pytest.raises(OSError, match=r"^\[Errno"):
            files.make_folder(tmp_path / way)
    assert [*(tmp_path / "private").iterdir()] == []
    files.make_folder(tmp_path / "new/deep", 0o700)
    files.make_folder(tmp_path / "new/deep")
    assert stat.S_IMODE((tmp_path / "new/deep").stat().st_mode) == 0o700


def test_a_path_without_links_is_that_of_what_was_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "out").mkdir()

    def swapped(*_: object) -> None:
        (tmp_path / "out").rename(tmp_path / "theirs")
        (tmp_path / "out").symlink_to("private")

    monkeypatch.setattr(files, "refuse_makers", swapped)
    assert files.without_links(tmp_path / "out/fleet.db") == tmp_path / "theirs/fleet.db"


def test_a_folder_that_is_replaced_on_the_way_does_not_redirect_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with opener.place(tmp_path / "out/report.json") as end:
        (tmp_path / "out").rename(tmp_path / "moved")
        (tmp_path / "out").symlink_to("elsewhere")
        os.close(end.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    assert (tmp_path / "moved/report.json").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


@needs_root
@each_row(
    ("owner", "maker", "read"),
    [
        pytest.param(0, 0, True, id="roots-link-to-roots-file"),
        pytest.param(OTHER, 0, True, id="roots-link-to-a-users-file"),
        pytest.param(OTHER, OTHER, True, id="a-users-link-to-a-file-of-the-same-user"),
        pytest.param(0, OTHER, False, id="a-users-link-to-roots-file"),
        pytest.param(THIRD, OTHER, False, id="a-users-link-to-a-third-users-file"),
    ],
)
def test_root_reads_through_a_link_only_what_its_maker_owns(tmp_path: Path, owner: int, maker: int, read: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("text")
    os.chown(folder / "file", owner, -1)
    (tmp_path / "last").symlink_to(folder / "file")
    (tmp_path / "inner").symlink_to(folder)
    for link in ("last", "inner"):
        os.chown(tmp_path / link, maker, -1, follow_symlinks=False)
    for way in ("last", "inner/file"):
        if read:
            assert _text(tmp_path / way) == "text"
        else:
            with pytest.raises(PermissionError, match=f"in this path .uid {OTHER}"):
                opener.opened(tmp_path / way, os.O_RDONLY)


def test_a_copy_is_of_a_whole_file_of_the_folder_that_is_not_too_large(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "to").mkdir()
    os.mkfifo(tmp_path / "in/pipe")
    for name in ("in/deep/file", "out"):
        (tmp_path / name).write_text("1234")
    assert opener.copy_below(tmp_path / "in", f"{tmp_path}/in/deep/file", tmp_path / "to", 4).read_text() == "1234"
    assert (tmp_path / "to/deep/file").exists()
    for name, limit in (("in/deep/file", 3), ("out", 4), ("in/pipe", 4)):
        with pytest.raises(PermissionError):
            opener.copy_below(tmp_path / "in", str(tmp_path / name), tmp_path / "to", limit)
    with pytest.raises(PermissionError, match=f"uid {THIRD}"):
        opener.Place(0, "x", frozenset({OTHER + 2, THIRD, OTHER + 1})).refuse_makers({OTHER + 1})


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with opener.place(tmp_path / "a/b/new") as end:
            os.close(end.open(os.O_WRONLY | os.O_CREAT))
        with pytest.raises(FileNotFoundError):
            opener.opened(tmp_path / "a/none/x", os.O_RDONLY)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
    assert stat.S_IMODE((tmp_path / "a/b/new").stat().st_mode) == 0o600
