"""Where a store is: SQLite plays back a journal that it finds there, so nobody else may be able to leave one."""

import contextlib
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclprobe.fleet import store
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="run as root: another user leaves the files")


def made(folder: Path) -> Path:
    """Return a new store in a folder of its owner's."""
    path = folder / "fleet.db"
    with store.opened(path, 5.0, create=True):
        pass
    return path


def hot_journal(path: Path, victim: Path) -> None:
    """Leave a journal that names `victim` as its super-journal, which SQLite removes after it has rolled back."""
    page = 4096
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    head = magic + struct.pack(">IIIII", 0, 0, path.stat().st_size // page, 512, page)
    last = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    path.with_name(f"{path.name}-journal").write_bytes(head.ljust(512, b"\0") + last)


def refusal(path: Path, *, create: bool = False) -> str:
    with pytest.raises(UsageError) as refused, store.opened(path, 5.0, create=create):
        pass
    return str(refused.value)


def test_a_journal_that_names_another_file_is_refused_and_the_file_stays_which_sqlite_itself_would_remove(
    tmp_path: Path,
) -> None:
    path, victim = made(tmp_path), tmp_path / "victim"
    victim.write_text("precious")
    hot_journal(path, victim)
    assert "names another file for SQLite to remove" in refusal(path)
    assert victim.read_text() == "precious"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM nodes").fetchall()
    assert not victim.exists()


def test_a_journal_of_a_writer_that_was_killed_is_rolled_back(tmp_path: Path) -> None:
    """What must not be refused: SQLite's own journal, of this user, after a crash."""
    path = made(tmp_path)
    killed = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('PRAGMA cache_size = 1'); c.execute('BEGIN IMMEDIATE');"
        "c.executemany('INSERT INTO texts (text) VALUES (?)', [('x' * 3000 + str(n),) for n in range(400)]);"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(path)], timeout=60, check=False)
    assert path.with_name("fleet.db-journal").stat().st_size
    with store.opened(path, 5.0) as fleet:
        assert fleet.names() == []
    assert not path.with_name("fleet.db-journal").exists()


def beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def write_ahead(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


OPEN = "lets other users write to it"
CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder open to all": (lambda path: path.parent.chmod(0o777), f"its mode 0777 {OPEN}"),
    "a sticky folder": (lambda path: path.parent.chmod(0o1777), f"its mode 1777 {OPEN}"),
    "a store open to all": (lambda path: path.chmod(0o666), f"its mode 0666 {OPEN}"),
    "two names": (lambda path: os.link(path, beside(path, " too")), "has another name too"),
    "a journal that is a link": (lambda path: beside(path, "-journal").symlink_to(path), "not a regular file"),
    "a journal that is a pipe": (lambda path: os.mkfifo(beside(path, "-journal")), "not a regular file"),
    "write-ahead": (write_ahead, "is in WAL mode"),
    "shared memory": (lambda path: beside(path, "-shm").touch(), "is in WAL mode"),
}


@each_row("change, why", CHANGES.values(), ids=CHANGES)
def test_a_place_where_others_could_leave_a_journal_is_refused(
    change: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    path = made(tmp_path)
    change(path)
    assert why in refusal(path)


def test_a_store_is_not_made_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert f"{OPEN}; keep it where only its owner writes" in refusal(tmp_path / "f.db", create=True)
    assert not (tmp_path / "f.db").exists()


def test_a_folder_above_that_others_may_exchange_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open" / "own").mkdir(parents=True)
    path = made(tmp_path / "open" / "own")
    (tmp_path / "open").chmod(0o777)
    assert f"{tmp_path}/open: not trusted" in refusal(path)


@needs_root
@each_row("whose", ["fleet.db-journal", "."])
def test_a_file_or_folder_of_another_user_is_refused(whose: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    path.with_name("fleet.db-journal").touch()
    os.chown(tmp_path / whose, NOBODY, NOBODY)
    assert f"uid {NOBODY} owns it" in refusal(path)


@needs_root
def test_root_acts_as_the_owner_of_a_store_and_is_root_again_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "owned"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == 0 and each != Path("/tmp") and each.is_relative_to("/tmp"):
            each.chmod(0o755)
    groups = os.getgroups()
    with store.opened(folder / "fleet.db", 5.0, create=True):
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (NOBODY, NOBODY, [])
    assert (os.geteuid(), os.getegid(), os.getgroups()) == (0, 0, groups)
    assert (folder / "fleet.db").stat().st_uid == NOBODY
    assert (folder / "fleet.db").stat().st_mode & 0o777 == 0o644
