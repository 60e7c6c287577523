"""The store: a report counts once, nobody's is lost, and nobody else may leave a journal for SQLite to play back."""

import contextlib
import errno
import math
import os
import random
import resource
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleet.made import DAY_S, DOWN, FIRST_S, day_of, filled
from ncclprobe.fleet import child, drift, store
from ncclprobe.model.errors import UsageError
from ncclprobe.model.fleet import Drift, NodeStanding
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
WRITER = """
import sys
from fleet.made import day_of, filled
from pathlib import Path
for day in range(int(sys.argv[3])):
    filled(Path(sys.argv[1]), day_of(sys.argv[2], day))
    print(day, flush=True)
"""


def stands(path: Path) -> dict[str, NodeStanding]:
    with store.opened(path, DEADLINE_S) as fleet:
        return {each.name: each for each in fleet.standings()}


def fleet_of(days: int, lost: float, nodes: int = 10) -> list[Report]:
    """All nodes lose a share on day 15, with a driver; n3 loses 20 % more on day 18, and has a second rate then."""
    rng, made = random.Random(8), []
    for day in range(days):
        for node in range(nodes):
            ill = day >= 18 and node == 3
            rate = 391.0 * math.exp(rng.gauss(0, 0.02)) * (1 - lost * (day >= 15)) * (1 - 0.2 * ill)
            one = day_of(f"n{node}", day + node / 100, rate=rate, driver="560" if day >= 15 else "550")
            more = [replace(each, op="all_gather") for each in one.measurements if ill]
            made.append(replace(one, measurements=(*one.measurements, *more)))
    return made


def test_a_report_counts_once_in_whatever_order_the_reports_of_a_fleet_come(tmp_path: Path) -> None:
    made = [*fleet_of(28, 0.12), *(day_of("n5", 28 + day, DOWN) for day in range(3))]
    orders = [made, sorted(made, key=lambda each: each.nodes[0].name), random.Random(1).sample(made, 283)]
    found = []
    for place, order in enumerate(orders):
        assert filled(tmp_path / f"{place}.db", *order, order[3]) == [True] * 283 + [False]
        assert filled(tmp_path / f"{place}.db", order[9]) == [False]
        with store.opened(tmp_path / f"{place}.db", DEADLINE_S) as fleet:
            found.append((fleet.standings(), [fleet.history(f"n{node}", 0) for node in range(11)], fleet.unsettled))
    assert found[0] == found[1] == found[2]
    standings, histories, unsettled = found[0]
    assert {each.name: each.state for each in standings if each.state != "ok"} == {"n3": "degraded", "n5": "failing"}
    assert {each.name: each.tests for each in standings} == {f"n{node}": 28 + 3 * (node == 5) for node in range(10)}
    assert histories[3].series[0].drift.own.since_s == FIRST_S + 18.03 * DAY_S
    assert (unsettled, histories[9].added, histories[10]) == (0, (), None)


def test_what_comes_late_again_and_again_is_put_in_its_place_from_where_the_courses_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day late, three weeks late, of a node that was accepted, and after a node was forgotten: as if in order."""
    made = fleet_of(40, 0.12, 9)
    late = [made[9 * day + node] for day, node in ((38, 4), (37, 2), (36, 3), (12, 5), (35, 6))]
    at_s, last = FIRST_S + 39.5 * DAY_S, made[9 * 39 + 3]  # of n3
    steps, step = [0], drift.step

    def counted(*of: Any) -> Drift:
        steps[0] += 1
        return step(*of)

    monkeypatch.setattr(drift, "step", counted)
    found, taken = [], []
    for path, held in ((tmp_path / "order.db", []), (tmp_path / "late.db", late)):
        filled(path, *(each for each in made if each not in held and (each is not last or not held)))
        for each in held:
            filled(path, each)
            steps[0] = 0
            stands(path)
            taken.append(steps[0])
        with store.opened(path, DEADLINE_S) as fleet:
            fleet.accept("n3", "me", at_s)
        filled(path, *([last] if held else []))
        filled(path, *(day_of(f"n{node}", day, rate=300.0, driver="560") for day in (40, 41, 42) for node in (3, 4)))
        filled(path, day_of("n4", 40.5, rate=344.0, driver="560"))
        stands(path)
        with store.opened(path, DEADLINE_S) as fleet:
            fleet.forget("n8")
            *others, own = (fleet.history(f"n{node}", 0) for node in (0, 1, 2, 4, 5, 6, 7, 3))
            assert own
            found.append((fleet.standings(), others, own.series, own.events[:2], fleet.unsettled))
    assert found[0] == found[1]
    assert found[0][-1] == 0
    whole, *later = taken
    assert whole > 300
    assert [taken < whole / 2 for taken in later] == [True, True, False, True]


def test_what_all_nodes_lose_with_a_driver_is_no_nodes_own_loss_on_any_day(tmp_path: Path) -> None:
    made = fleet_of(28, 0.12, 16)
    for day in range(28):
        filled(tmp_path / "fleet.db", *made[16 * day : 16 * day + 16])
        found = {name: each for name, each in stands(tmp_path / "fleet.db").items() if each.state != "ok"}
        assert set(found) <= {"n3"} if day >= 18 else not found
    assert "(-19 %" in found["n3"].evidence


def test_a_late_report_is_not_lost_where_there_is_no_time_to_put_it_in_its_place(tmp_path: Path) -> None:
    path, made = tmp_path / "fleet.db", fleet_of(4, 0.0)
    filled(path, *made[::-1])
    with store.opened(path, DEADLINE_S) as fleet:
        fleet._patience_s = 0.0
        fleet.settle()
        assert fleet.unsettled == 1
    assert stands(path)["n3"].tests == 4


def test_a_clock_that_is_more_than_a_day_behind_is_said(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    filled(path, day_of("n1", 10), day_of("n2", 3))
    rows = [(day_of("n1", 8.9), True), (day_of("n1", 9.1), False), (day_of("n2", 2.5), False), (day_of("n3", 0), False)]
    for report, behind in rows:
        said = ""
        try:
            child.add(msgspec.json.encode(report), path, "r.json", 30.0)
        except UsageError as error:
            said = str(error)
        late = "n1 has a clock that is behind: it dates this report 2026-03-10 01:36 UTC, and its newest report is of "
        assert said == (f"{late}2026-03-11 04:00 UTC; set the clock" if behind else ""), said


def test_a_node_goes_on_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    rates = [391.0 if day < 22 else 330.0 for day in range(6, 32)]
    for name, each in (("old", tmp_path / "one.db"), ("new", path)):
        reports = [day_of(name, day, rate=rate) for day, rate in enumerate(rates, 6)]
        filled(each, *(day_of("old", day, rate=440.0) for day in range(6)), *reports[:2])
        with store.opened(each, DEADLINE_S) as fleet:
            fleet.accept(name, "me", FIRST_S + 7.5 * DAY_S)
        filled(each, *reports[2:])
    wanted = stands(tmp_path / "one.db")["old"]
    assert wanted.since_s == FIRST_S + 22 * DAY_S
    with store.opened(path, DEADLINE_S) as fleet:
        fleet.rename("old", "new")
        assert fleet.names() == ["new"]
        assert fleet.standings() == [replace(wanted, name="new")]
        history = fleet.history("new", 50)
        assert history
        assert len(history.added) == 32
        fleet.rename("new", "newest")
        assert [each.name for each in fleet.standings()] == ["newest"]


def test_what_is_done_to_a_node_that_is_not_there_or_has_that_name_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "fleet.db", *(day_of(f"n{n}", n, DOWN) for n in range(3)))
    with store.opened(tmp_path / "fleet.db", DEADLINE_S) as fleet:
        before = fleet.standings(), [fleet.history(name, 9) for name in ("n0", "n1", "n2", "no", "x")]
        fleet.accept("no", "me", FIRST_S)
        fleet.forget("no")
        fleet.rename("no", "x")
        fleet.rename("no", "n1")
        fleet.rename("n1", "n1")
        assert before == (fleet.standings(), [fleet.history(name, 9) for name in ("n0", "n1", "n2", "no", "x")])


@each_row("day, counts", [(30, True), (31, False)])
def test_a_node_is_a_sibling_for_thirty_days_in_whatever_order_reports_come(
    day: int, counts: bool, tmp_path: Path
) -> None:
    for since in (day + 0.5, day - 0.5):  # other nodes are measured on the same day, or not
        made = [day_of(f"m{n}", at) for at in (0, since) for n in range(8)]
        made = [*made[: 8 if since < day else 16], day_of("n1", day + 0.75)]
        for number, order in enumerate((made, made[::-1])):
            filled(path := tmp_path / f"{since}-{number}.db", *order)
            stands(path)
            with store.opened(path, DEADLINE_S) as fleet:
                history = fleet.history("n1", 0)
            assert history
            assert (history.series[0].drift.siblings_first is not None) == counts, (since, number)


def test_a_row_that_is_damaged_is_left_out_and_the_others_are_shown(tmp_path: Path) -> None:
    rows = ["standing = x'ff00', course = '['", "standing = '{'", 'course = \'{"tests": 3, "last\'']
    for number, damage in enumerate(rows):
        path = tmp_path / f"{number}.db"
        filled(path, day_of("n1", 0), day_of("n2", 0.1), day_of("n3", 0.2))
        changed(path, f"UPDATE nodes SET {damage} WHERE name = 'n2'")
        with store.opened(path, DEADLINE_S) as fleet:
            assert [each.name for each in fleet.standings()] == ["n1", "n3"]
            assert [*fleet.damaged] == ["n2"]
            assert [each.standing.name for each in fleet.days(0.0)] == ["n1", "n3"]
        filled(path, day_of("n2", 1))  # is made anew from its reports
        with store.opened(path, DEADLINE_S) as fleet:
            assert [each.name for each in fleet.standings()] == ["n1", "n2", "n3"]
            fleet.forget("n2")
            fleet.standings()
            assert [*fleet.damaged] == []


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_reports_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    path, env = tmp_path / "fleet.db", {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    for more in range(1, 4):
        argv = [sys.executable, "-c", WRITER, str(path), f"victim{more}", "10000"]
        victim = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        assert victim.stdout
        said = [victim.stdout.readline() for _ in range(2 + more)]
        victim.send_signal(signal.SIGKILL)
        victim.wait(DEADLINE_S)
        said += victim.stdout.readlines()
        victim.stdout.close()
        told_of = len(said) - (not said[-1].endswith("\n"))
        assert filled(path, day_of("n1", more)) == [True]
        assert told_of <= stands(path)[f"victim{more}"].tests <= told_of + 1
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        missing = "SELECT count(*) FROM reports WHERE id NOT IN (SELECT report FROM tests)"
        assert connection.execute(missing).fetchone() == (0,)


def test_a_full_disk_leaves_whole_reports(tmp_path: Path) -> None:
    path, files = tmp_path / "fleet.db", [tmp_path / f"{day}.json" for day in range(30)]
    for file, report in zip(files, (day_of("n1", day, DOWN) for day in range(30)), strict=True):
        as_json.write(report, str(file))
    filled(path, *(day_of(f"m{node}", 0) for node in range(40)))
    full = path.stat().st_size
    argv = [sys.executable, "-m", "ncclprobe", "fleet", "add", "--fleet", str(path), *map(str, files)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S,
                          env={**os.environ, "PYTHONPATH": str(ROOT)},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (full, full)))  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert stands(path)["m0"].tests == 1
    assert filled(path, *(day_of("n1", day) for day in range(2))) == [True, True]


def test_a_writer_that_does_not_end_is_waited_for_no_longer_than_was_asked_and_told_from_what_cannot_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(number: int) -> None:
        raise OSError(number, os.strerror(number))

    path, (one, two) = tmp_path / "fleet.db", (day_of("n1", day) for day in range(2))
    filled(path, one)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        with pytest.raises(UsageError, match=r"another writer has held it for 0\.2 s; try again"):
            filled(path, two, patience_s=0.2)
        assert time.monotonic() - begun < DEADLINE_S
        for number in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EAGAIN):
            monkeypatch.setattr("fcntl.lockf", lambda *_, number=number: refuses(number))
            why = "another writer has held it" if number == errno.EAGAIN else "is on a file system without locks"
            with pytest.raises(UsageError, match=why):
                filled(path, two, patience_s=0.1)
        monkeypatch.undo()
        other.execute("ROLLBACK")
    assert filled(path, two) == [True]


def test_one_report_is_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, (one, two) = tmp_path / "fleet.db", (day_of("n1", day) for day in range(2))
    filled(path, one)
    monkeypatch.setattr("ncclprobe.fleet.drift.step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        filled(path, two)
    monkeypatch.undo()
    assert stands(path)["n1"].tests == 1
    assert filled(path, two) == [True]


def refused(path: Path, why: str) -> None:
    before = path.read_bytes() if path.is_file() else b""
    for create in (False, True):
        with pytest.raises(UsageError, match=why), store.opened(path, DEADLINE_S, create=create) as fleet:
            fleet.standings()
    assert not path.is_file() or path.read_bytes() == before


def changed(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def test_what_is_no_store_of_ours_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a report? " * 500)
    changed(tmp_path / "other.db", "CREATE TABLE passwords (word TEXT)")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("text", "is not a store of `ncclprobe fleet`; nothing was changed"),
        ("other.db", "is not a store of `ncclprobe fleet`; nothing was changed"), (".", "not a regular file"),
        ("pipe", "not a regular file")):  # fmt: skip
        refused(tmp_path / name, why)
    with pytest.raises(UsageError, match="`ncclprobe fleet add REPORT` creates one"):
        stands(tmp_path / "no")
    assert not (tmp_path / "no").exists()


@each_row(
    ("statement", "why"),
    [
        ("PRAGMA user_version = 2", "is a store of schema 2; this ncclprobe reads 3"),
        ("CREATE TRIGGER t AFTER INSERT ON tests BEGIN DELETE FROM reports; END", "is damaged: its tables are not"),
        ("DROP TABLE readings", "is damaged: its tables are not those of a store"),
        ("UPDATE nodes SET standing = '{\"name\": 3}'", "is damaged: "),
        ("UPDATE nodes SET standing = x'ff00'", "is damaged: ")])  # fmt: skip
def test_a_store_that_was_changed_is_refused(tmp_path: Path, statement: str, why: str) -> None:
    filled(tmp_path / "fleet.db", day_of("n1", 0))
    changed(tmp_path / "fleet.db", statement)
    refused(tmp_path / "fleet.db", why)


def test_what_msgspec_refuses_is_damage_before_0_21_as_well_where_it_is_no_value_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OlderError(Exception):
        pass

    def refuse(*_: object) -> None:
        raise OlderError("no")

    filled(tmp_path / "fleet.db", day_of("n1", 0))
    monkeypatch.setattr(msgspec, "MsgspecError", OlderError)
    monkeypatch.setattr(msgspec, "convert", refuse)
    with pytest.raises(UsageError, match="is damaged: no"), store.opened(tmp_path / "fleet.db", DEADLINE_S) as fleet:
        fleet.history("n1", 3)


@each_row("at", range(0, 100, 4))
def test_a_damaged_file_is_one_line_or_still_read(tmp_path: Path, at: int) -> None:
    path = tmp_path / "fleet.db"
    filled(path, *(day_of("n1", day, DOWN) for day in range(30)))
    data = bytearray(path.read_bytes())
    begin = len(data) * at // 100
    data[begin : begin + 512] = random.Random(at).randbytes(512)
    path.write_bytes(data)
    with contextlib.suppress(UsageError), store.opened(path, DEADLINE_S) as fleet:
        fleet.standings()
        fleet.history("n1", 3)
    with contextlib.suppress(UsageError):
        filled(path, day_of("n1", 99))


def test_a_hostile_store_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "fleet.db", *(day_of("n1", day) for day in range(5)))
    monkeypatch.setattr(store, "_AT_A_TIME", 1)
    with (
        pytest.raises(UsageError, match=r"did not answer within 1e-09 s; give --timeout more"),
        store.opened(tmp_path / "fleet.db", 1e-9) as fleet,
    ):
        fleet.standings()


NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="run as root: another user leaves the files")


def new_store(folder: Path) -> Path:
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
    assert str(refused.value).startswith(str(path.parent.parent)), "it begins with the file or folder"
    return str(refused.value)


def test_a_journal_that_names_another_file_is_refused_and_the_file_stays_which_sqlite_itself_would_remove(
    tmp_path: Path,
) -> None:
    path, victim = new_store(tmp_path), tmp_path / "victim"
    victim.write_text("precious")
    hot_journal(path, victim)
    assert "names another file for SQLite to remove" in refusal(path)
    assert victim.read_text() == "precious"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM nodes").fetchall()
    assert not victim.exists()


def test_a_journal_of_a_writer_that_was_killed_is_rolled_back(tmp_path: Path) -> None:
    """What must not be refused: SQLite's own journal, of this user, after a crash."""
    path = new_store(tmp_path)
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
    "shared memory": (lambda path: beside(path, "-shm").touch(), "is in WAL mode")}  # fmt: skip


@each_row("change, why", CHANGES.values(), ids=CHANGES)
def test_a_place_where_others_could_leave_a_journal_is_refused(
    change: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    path = new_store(tmp_path)
    change(path)
    assert why in refusal(path)


def test_a_store_is_not_made_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert f"{OPEN}; keep it where only its owner writes" in refusal(tmp_path / "f.db", create=True)
    assert not (tmp_path / "f.db").exists()


def test_a_folder_above_that_others_may_exchange_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open" / "own").mkdir(parents=True)
    path = new_store(tmp_path / "open" / "own")
    (tmp_path / "open").chmod(0o777)
    assert f"{tmp_path}/open: not trusted" in refusal(path)


@needs_root
@each_row("whose", ["fleet.db-journal", "."])
def test_a_file_or_folder_of_another_user_is_refused(whose: str, tmp_path: Path) -> None:
    path = new_store(tmp_path)
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
