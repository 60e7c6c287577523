"""Files that are written: whole, under nobody else's control, readable by whom they are for."""

import gzip
import os
import stat
from pathlib import Path

import pytest

from ncclprobe.commands import explain
from ncclprobe.host import files, job_files
from ncclprobe.host.run_log import RunLog
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_capture_is_its_owners_and_a_report_is_by_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write(tmp_path / "capture", "x", private=True)
        files.write(tmp_path / "report", "x")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "capture"), mode(tmp_path / "report")) == (0o600, 0o644)


def test_a_private_file_takes_the_place_of_one_that_all_could_read(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_text("old")
    path.chmod(0o666)
    files.write(path, "new", private=True)
    assert (mode(path), path.read_text()) == (0o600, "new")


def test_nothing_is_left_beside_a_file_that_could_not_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        files.write(tmp_path / "out", "x")
    with pytest.raises(UsageError, match="cannot be written"):
        files.write(tmp_path / "none" / "out", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_partial_file_is_never_one_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    monkeypatch.setattr(files.os, "urandom", bytes)  # a stranger who guessed the name: zeros
    (tmp_path / f".out.{bytes(8).hex()}").symlink_to(victim)
    with pytest.raises(UsageError, match="cannot be written"):
        files.write(tmp_path / "out", "x")
    assert victim.read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_link_of_another_user_is_not_followed_and_ones_own_is(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("kept")
    link.symlink_to(victim)
    os.lchown(link, 65534, 65534)
    with pytest.raises(UsageError, match="another user made a link in this path"):
        files.write(link, "x")
    assert victim.read_text() == "kept"
    os.lchown(link, 0, 0)
    files.write(link, "new")
    assert (victim.read_text(), link.is_symlink()) == ("new", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_root_writes_through_no_folder_that_is_a_link_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    victim, link = tmp_path / "real" / "victim", tmp_path / "link"
    victim.write_text("kept")
    link.symlink_to(tmp_path / "real")
    os.lchown(link, 65534, 65534)
    for write in (lambda path: files.write(path, "x"), RunLog):
        with pytest.raises(UsageError, match="another user made a link in this path"):
            write(link / "victim")
    assert victim.read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
@each_row("kind", ["link", "pipe", "file"])
def test_a_run_log_takes_the_place_of_what_another_user_left_at_its_name(tmp_path: Path, kind: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "run.jsonl"
    victim.write_text("kept")
    if kind == "pipe":
        os.mkfifo(path, 0o666)
    elif kind == "file":
        path.touch(0o666)
    else:
        path.symlink_to(victim)  # one of ours: what another user made is refused
    if kind != "link":
        os.lchown(path, 65534, 65534)
    RunLog(path).close()
    assert victim.read_text() == "kept"
    assert (path.is_symlink(), mode(path), path.stat().st_uid) == (False, 0o600, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pipe of another user")
def test_a_pipe_of_another_user_and_one_that_no_process_reads_keep_no_writer_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="cannot be written"):
        files.write(pipe, "x")
    os.chown(pipe, 65534, 65534)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(UsageError, match="a pipe of another user"):
            files.write(pipe, "x")
    finally:
        os.close(reader)


def blocks(path: Path) -> bytes:
    (file,) = job_files.named([str(path)])
    return b"".join(job_files.Blocks(file))


def test_a_log_that_is_a_device_or_a_pipe_without_a_writer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "x.log"
    os.mkfifo(pipe)
    monkeypatch.setattr(job_files, "PIPE_S", 0)
    with pytest.raises(UsageError, match="not a regular file; give a log, or - for standard input"):
        blocks(pipe)
    ends = os.pipe()  # as a shell's <(…) is named
    with pytest.raises(UsageError, match="no process wrote anything"):
        blocks(Path(f"/dev/fd/{ends[0]}"))
    for end in ends:
        os.close(end)
    with pytest.raises(UsageError, match="a device"):
        blocks(Path("/dev/zero"))
    with pytest.raises(UsageError, match=r"1 file .*/dev/zero: cannot be read: a device"):
        explain.main(["/dev/zero"])
    with pytest.raises(UsageError, match=r"/proc/kmsg: cannot be read: a file of /proc"):
        explain.main(["/proc/kmsg"])
    assert job_files.named([str(tmp_path / "*.log")]) == ()  # of a pattern, as of a folder, no pipe is read


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_in_a_folder_of_logs_a_users_link_to_what_is_anothers_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, owner, maker in (("shadow", 0, 65534), ("own", 65534, 65534), ("roots", 65534, 0)):
        (tmp_path / name).write_text("x")
        os.chown(tmp_path / name, owner, owner)
        (folder / name).symlink_to(tmp_path / name)
        os.lchown(folder / name, maker, maker)
    assert [Path(file.name).name for file in job_files.named([str(folder)])] == ["own", "roots"]
    (asked,) = job_files.named([str(folder / "shadow")])  # by its own name it is
    assert (asked.nbytes, asked.once) == (1, False)


def test_a_log_that_inflates_without_an_end_is_cut_where_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    (file,) = job_files.named([str(path)])
    blocks = job_files.Blocks(file)
    taken = iter(blocks)
    assert len(next(taken)) == job_files.BLOCK
    now = job_files.time.monotonic()
    monkeypatch.setattr(job_files.time, "monotonic", lambda: now + 100.0)
    assert list(taken) == []
    assert "took longer than 60 s" in blocks.cut


def test_a_zst_without_a_library_that_reads_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_files, "_ZSTD", (("no_such_library", "open"),))
    path = tmp_path / "x.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(16))
    (file,) = job_files.named([str(path)])
    with pytest.raises(UsageError, match=r"x\.log\.zst: is compressed with zstd, .*: pip install zstandard"):
        list(job_files.Blocks(file))


def test_standard_input_that_is_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files.sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        explain.main(["-"])


def test_a_pipe_into_which_a_log_is_written_is_read_whole() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"rank 0: lost\n")
    os.close(writer)
    try:
        assert blocks(Path(f"/dev/fd/{reader}")) == b"rank 0: lost\n"
    finally:
        os.close(reader)


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write(pipe, "x")
        assert os.read(reader, 10) == b"x"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
