"""Files that are written: whole, under nobody else's control, readable by whom they are for. Logs that are read."""

import gzip
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from ncclprobe.commands import explain
from ncclprobe.host import files, job_files
from ncclprobe.host.run_log import RunLog
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is another user's")
NOBODY = 65534


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
    (tmp_path / "capture").chmod(0o666)  # it takes the place of one that all could read
    files.write(tmp_path / "capture", "new", private=True)
    assert (mode(tmp_path / "capture"), (tmp_path / "capture").read_text()) == (0o600, "new")


def test_nothing_is_left_beside_a_file_that_could_not_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    for path in (tmp_path / "out", tmp_path / "none" / "out"):
        with pytest.raises(UsageError, match="cannot be written"):
            files.write(path, "x")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    victim = tmp_path / "victim"
    victim.write_text("kept")
    monkeypatch.setattr(files.os, "urandom", bytes)  # a stranger who guessed the name of the partial file: zeros
    (tmp_path / f".new.{bytes(8).hex()}").symlink_to(victim)
    with pytest.raises(UsageError, match="cannot be written"):
        files.write(tmp_path / "new", "x")
    assert victim.read_text() == "kept"
    for error in (KeyboardInterrupt(), OSError(28, "No space left on device")):
        monkeypatch.setattr(files.os, "rename", mock.Mock(side_effect=error))
        with pytest.raises((KeyboardInterrupt, UsageError)):
            files.write(tmp_path / "other", "x")
    assert not list(tmp_path.glob(".other.*"))


@needs_root
def test_a_link_of_another_user_is_not_followed_in_a_name_or_a_folder_and_ones_own_is(tmp_path: Path) -> None:
    victim, link, folder = tmp_path / "victim", tmp_path / "link", tmp_path / "folder"
    victim.write_text("kept")
    for each, target in ((link, victim), (folder, tmp_path)):
        each.symlink_to(target)
        os.lchown(each, NOBODY, NOBODY)
    for write in (lambda path: files.write(path, "x"), RunLog):
        for path in (link, folder / "victim") if write is not RunLog else (folder / "victim",):
            with pytest.raises(UsageError, match="another user made a link in this path"):
                write(path)
    assert victim.read_text() == "kept"
    os.lchown(link, 0, 0)
    files.write(link, "new")
    assert (victim.read_text(), link.is_symlink()) == ("new", True)


@needs_root
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
        os.lchown(path, NOBODY, NOBODY)
    RunLog(path).close()
    assert victim.read_text() == "kept"
    assert (path.is_symlink(), mode(path), path.stat().st_uid) == (False, 0o600, 0)


def test_a_pipe_is_written_to_and_stays_one_and_none_keeps_a_writer_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="cannot be written"):
        files.write(pipe, "x")  # no process reads it
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write(pipe, "x")
        assert os.read(reader, 10) == b"x"
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        if os.geteuid() == 0:
            os.chown(pipe, NOBODY, NOBODY)
            with pytest.raises(UsageError, match="a pipe of another user"):
                files.write(pipe, "x")
    finally:
        os.close(reader)


def test_a_file_is_read_and_known_again_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ("n" * 250)
    files.write(path, "abc")
    assert files.read(path, limit=3) == files.read_start(path, limit=9) == "abc"
    with pytest.raises(UsageError, match="larger than 0 KiB"):
        files.read(path, limit=2)
    with pytest.raises(UsageError, match="not a folder"):
        files.trusted_folder(path)
    with pytest.raises(UsageError, match="cannot be written: 'utf-8' codec"):
        files.write(path, "\udcff")
    monkeypatch.setattr(files.bounds, "REPORT_BYTES", 3)
    files.refuse_other(path, "abc".__eq__)
    files.refuse_other(tmp_path / "none" / "x", bool)
    for text in (b"abcd", b"\xff"):  # more than a report can have is none of ours
        path.write_bytes(text)
        with pytest.raises(UsageError, match="not overwritten"):
            files.refuse_other(path, "abcd".__eq__)
    path.write_bytes(b" \n")
    files.refuse_other(path, "abc".__eq__)


def blocks(path: Path) -> bytes:
    (file,) = job_files.named([str(path)])
    return b"".join(job_files.Blocks(file))


def test_a_log_that_is_a_device_or_a_pipe_without_a_writer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()  # as a shell's <(…) is named
    try:
        os.write(writer, b"rank 0: lost\n")
        os.close(writer)
        assert blocks(Path(f"/dev/fd/{reader}")) == b"rank 0: lost\n"
    finally:
        os.close(reader)
    pipe = tmp_path / "x.log"
    os.mkfifo(pipe)
    monkeypatch.setattr(job_files, "PIPE_S", 0)
    with pytest.raises(UsageError, match="not a regular file; give a log, or - for standard input"):
        blocks(pipe)
    ends = os.pipe()
    with pytest.raises(UsageError, match="no process wrote anything"):
        blocks(Path(f"/dev/fd/{ends[0]}"))
    for end in ends:
        os.close(end)
    with pytest.raises(UsageError, match="a device"):
        blocks(Path("/dev/zero"))
    for path, why in (("/dev/zero", r"1 file .*/dev/zero: cannot be read: a device"),
                      ("/proc/kmsg", r"/proc/kmsg: cannot be read: a file of /proc")):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            explain.main([path])
    assert job_files.named([str(tmp_path / "*.log")]) == ()  # of a pattern, as of a folder, no pipe is read
    with pytest.raises(UsageError, match="no longer a regular file"):
        list(job_files.Blocks(job_files.JobFile(str(pipe), found=True)))
    monkeypatch.chdir(tmp_path)
    os.mkfifo("-")  # which standard input is not
    assert job_files.named(["-"]) == (job_files.JobFile("-", 0, True, False),) == (job_files.JobFile("-", once=True),)
    monkeypatch.setattr(job_files.sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        explain.main(["-"])


def test_logs_are_named_once_in_natural_order_rotated_ones_before_the_last_and_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a10.log", "a9.log", "x.log", "x.log.1", "x.log.10", "x.log.2.gz", "b.log.gz"]
    for name in names:
        (tmp_path / name).write_text("x" * len(name))
    wanted = ["a9.log", "a10.log", "b.log.gz", "x.log.10", "x.log.2.gz", "x.log.1", "x.log"]
    found = job_files.named([str(tmp_path)])
    assert [Path(file.name).name for file in found] == wanted
    assert [(file.nbytes, file.once, file.found) for file in found] == [(len(name), False, True) for name in wanted]
    again = job_files.named([str(tmp_path / "x.log"), str(tmp_path), str(tmp_path / "[a]*.log")])
    assert (len(again), again[0].found, again[0].patience_s > 60) == (len(names), False, True)
    assert job_files.named([f"{tmp_path}*"]) == found  # a folder that a pattern names
    monkeypatch.setattr(job_files, "MOST_FILES", len(names))
    assert len(job_files.named([str(tmp_path)])) == len(names)
    monkeypatch.setattr(job_files, "MOST_FILES", len(names) - 1)
    with pytest.raises(UsageError, match=f"more than {len(names) - 1} files"):
        job_files.named([str(tmp_path)])
    for argument in ("none", "*.none", "a\0b"):
        with pytest.raises(UsageError, match=r"no such file or folder|cannot be read"):
            job_files.named([str(tmp_path / argument)])


@needs_root
def test_in_a_folder_of_logs_a_users_link_to_what_is_anothers_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, owner, maker in (("shadow", 0, NOBODY), ("own", NOBODY, NOBODY), ("roots", NOBODY, 0)):
        (tmp_path / name).write_text("x")
        os.chown(tmp_path / name, owner, owner)
        (folder / name).symlink_to(tmp_path / name)
        os.lchown(folder / name, maker, maker)
    (folder / "dangling").symlink_to(tmp_path / "gone")
    assert [Path(file.name).name for file in job_files.named([str(folder)])] == ["own", "roots"]
    (asked,) = job_files.named([str(folder / "shadow")])  # by its own name it is
    assert (asked.nbytes, asked.once) == (1, False)


def test_a_log_that_inflates_without_an_end_is_cut_where_its_time_or_its_room_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    (file,) = job_files.named([str(path)])
    read = job_files.Blocks(file)
    taken = iter(read)
    assert len(next(taken)) == job_files.BLOCK
    now = job_files.time.monotonic()
    with monkeypatch.context() as later:
        later.setattr(job_files.time, "monotonic", lambda: now + 100.0)
        assert list(taken) == []
    assert read.cut == f"took longer than 60 s; only {job_files.BLOCK} bytes were read"
    for most, cut in ((job_files.BLOCK, "holds more than 0 GiB; the rest was not read"), (8 << 20, "")):
        monkeypatch.setattr(job_files, "MOST_INFLATED", most)
        read = job_files.Blocks(file)
        assert (sum(map(len, read)), read.cut) == (2 * job_files.BLOCK if cut else 8 << 20, cut)
    path.write_bytes(path.read_bytes()[:-200])
    read = job_files.Blocks(file)
    assert sum(map(len, read)) == read.nbytes
    assert read.cut.startswith(f"ends early or is damaged after {read.nbytes} bytes of text: ")


def test_a_log_that_breaks_off_says_why_and_how_much_of_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(16))
    (file,) = job_files.named([str(tmp_path / "x.zst")])
    raw = mock.MagicMock()
    raw.__enter__.return_value.peek.return_value = b"rank"
    raw.__enter__.return_value.read.side_effect = reads = [b"rank 0", OSError(5, "Input/output error")]
    with monkeypatch.context() as changed:
        changed.setattr(job_files, "_open", lambda name, found: raw)
        read = job_files.Blocks(file)
        assert (list(read), read.cut) == ([b"rank 0"], "could be read only up to 6 bytes: Input/output error")
        raw.__enter__.return_value.read.side_effect = reads[1:]
        with pytest.raises(UsageError, match=r"x\.zst: cannot be read: Input/output error$"):
            list(job_files.Blocks(file))
    inflated = mock.MagicMock()
    inflated.__enter__.return_value.read.side_effect = [b"rank", NotImplementedError("odd frame")]
    library = SimpleNamespace(open=lambda raw, mode: inflated, ZstdError=NotImplementedError)
    monkeypatch.setattr(job_files, "_ZSTD", (("zstandard", "open"),))
    monkeypatch.setitem(sys.modules, "zstandard", library)
    read = job_files.Blocks(file)
    assert (list(read), read.cut) == ([b"rank"], "ends early or is damaged after 4 bytes of text: odd frame")


def test_a_zst_without_a_library_that_reads_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_files, "_ZSTD", (("no_such_library", "open"),))
    path = tmp_path / "x.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(16))
    with pytest.raises(UsageError, match=r"x\.log\.zst: is compressed with zstd, .*: pip install zstandard"):
        blocks(path)
    path.write_bytes("rank 0: gelöscht".encode("utf-16"))
    assert blocks(path).decode() == "rank 0: gelöscht"
