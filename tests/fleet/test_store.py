"""The file: a report counts once, in whatever order reports come, and nobody's report is lost."""

import contextlib
import errno
import math
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleet.made import DAY_S, DOWN, FIRST_S, day_of
from ncclprobe.fleet import child, drift, store
from ncclprobe.fleet.extract import told
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Finding
from ncclprobe.model.fleet import Added, Drift, NodeStanding
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json

ROOT = Path(__file__).resolve().parents[2]
ADDED = Added(FIRST_S, "root@n1", "/var/r.json", "ncclprobe accept")
SOON_S, DEADLINE_S = 0.2, 60.0
WRITER = """
import sys
from fleet.test_store import put
from fleet.made import day_of
from pathlib import Path
for day in range(int(sys.argv[3])):
    put(Path(sys.argv[1]), day_of(sys.argv[2], day), patience_s=60.0)
    print(day, flush=True)
"""


def put(path: Path, *reports: Report, patience_s: float = DEADLINE_S) -> list[bool]:
    with store.opened(path, patience_s, create=True) as fleet:
        return [fleet.add(told(each, "r"), f"{each.nodes[0].name} {each.started}", ADDED) for each in reports]


def stands(path: Path) -> dict[str, NodeStanding]:
    with store.opened(path, DEADLINE_S) as fleet:
        return {each.name: each for each in fleet.standings()}


def writer(path: Path, node: str, days: int) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    argv = [sys.executable, "-c", WRITER, str(path), node, str(days)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)


def days(*found: Sequence[Finding], rates: Sequence[float] = ()) -> list[Report]:
    rates = rates or [391.0] * len(found)
    return [day_of("n1", day, *each, rate=rate) for day, (each, rate) in enumerate(zip(found, rates, strict=True))]


def test_a_report_counts_once(tmp_path: Path) -> None:
    path, (one, two) = tmp_path / "fleet.db", days([], [DOWN])
    assert put(path, one, two, one) == [True, True, False]
    assert put(path, two) == [False]
    assert stands(path)["n1"].tests == 2


def test_the_order_in_which_reports_come_changes_nothing(tmp_path: Path) -> None:
    made = days(*[[]] * 40, *[[DOWN]] * 3, rates=[391.0 + day % 3 for day in range(30)] + [340.0] * 13)
    put(tmp_path / "a.db", *made)
    put(tmp_path / "b.db", *made[::2], *reversed(made[1::2]))
    assert stands(tmp_path / "a.db") == stands(tmp_path / "b.db")
    assert stands(tmp_path / "a.db")["n1"].state == "failing"
    for path in (tmp_path / "a.db", tmp_path / "b.db"):
        with store.opened(path, DEADLINE_S) as fleet:
            history = fleet.history("n1", 5)
            assert history
            ((series,),) = (history.series,)
            assert (series.drift.own.state, series.drift.own.since_s) == ("degraded", FIRST_S + 30 * DAY_S)


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


def test_the_order_in_which_the_reports_of_a_fleet_come_changes_nothing(tmp_path: Path) -> None:
    made = fleet_of(28, 0.12)
    orders = [made, sorted(made, key=lambda each: each.nodes[0].name), random.Random(1).sample(made, 280)]
    found = []
    for place, order in enumerate(orders):
        put(tmp_path / f"{place}.db", *order)
        with store.opened(tmp_path / f"{place}.db", DEADLINE_S) as fleet:
            found.append((fleet.standings(), [fleet.history(f"n{node}", 0) for node in range(10)], fleet.unsettled))
    assert found[0] == found[1] == found[2]
    assert {each.name: each.state for each in found[0][0] if each.state != "ok"} == {"n3": "degraded"}
    assert found[0][2] == 0


def test_what_comes_late_again_and_again_is_put_in_its_place_from_where_the_courses_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day late, three weeks late, of a node that was accepted, and after a node was forgotten: as if in order."""
    made = fleet_of(40, 0.12, 9)
    late = [made[9 * day + node] for day, node in ((38, 4), (37, 2), (36, 3), (12, 5), (35, 6))]
    at_s = FIRST_S + 39.5 * DAY_S
    steps, step = [0], drift.step

    def counted(*of: Any) -> Drift:
        steps[0] += 1
        return step(*of)

    monkeypatch.setattr(drift, "step", counted)
    found, taken = [], []
    for path, held in ((tmp_path / "order.db", []), (tmp_path / "late.db", late)):
        put(path, *(each for each in made if each not in held))
        for each in held:
            put(path, each)
            steps[0] = 0
            stands(path)
            taken.append(steps[0])
        with store.opened(path, DEADLINE_S) as fleet:
            fleet.accept("n3", "me", at_s)
        put(path, *(day_of(f"n{node}", day, rate=300.0, driver="560") for day in (40, 41, 42) for node in (3, 4)))
        put(path, day_of("n4", 40.5, rate=344.0, driver="560"))
        stands(path)
        with store.opened(path, DEADLINE_S) as fleet:
            fleet.forget("n8")
            found.append((fleet.standings(), [fleet.history(f"n{node}", 0) for node in range(8)], fleet.unsettled))
    assert found[0] == found[1]
    assert found[0][2] == 0
    whole, *later = taken
    assert whole > 300
    assert [taken < whole / 2 for taken in later] == [True, True, False, True]


def test_what_all_nodes_lose_with_a_driver_is_no_nodes_own_loss_on_any_day(tmp_path: Path) -> None:
    made = fleet_of(28, 0.12, 16)
    for day in range(28):
        put(tmp_path / "fleet.db", *made[16 * day : 16 * day + 16])
        found = {name: each for name, each in stands(tmp_path / "fleet.db").items() if each.state != "ok"}
        assert set(found) <= {"n3"} if day >= 18 else not found
    assert "(-19 %" in found["n3"].evidence


def test_a_late_report_is_not_lost_where_there_is_no_time_to_put_it_in_its_place(tmp_path: Path) -> None:
    path, made = tmp_path / "fleet.db", fleet_of(4, 0.0)
    put(path, *made[::-1])
    with store.opened(path, DEADLINE_S) as fleet:
        fleet._patience_s = 0.0
        fleet.settle()
        assert fleet.unsettled == 1
    assert stands(path)["n3"].tests == 4


def test_what_changed_with_the_loss_is_told_and_other_software_begins_anew(tmp_path: Path) -> None:
    before = [day_of("n1", day) for day in range(30)]
    driver = [day_of("n1", 30 + day, rate=340.0, driver="560.28.03") for day in range(10)]
    put(tmp_path / "driver.db", *before, *driver)
    found = stands(tmp_path / "driver.db")["n1"]
    assert found.state == "degraded"
    assert found.evidence.endswith("changed at the same time: driver 550.54.15 → 560.28.03")
    for since, named in ((31, True), (29, False)):  # the day before, and earlier
        sooner = [day_of("n1", day, driver="550.54.15" if day < since else "560.28.03") for day in range(32)]
        put(tmp_path / f"{since}.db", *sooner, *driver[2:])
        found = stands(tmp_path / f"{since}.db")["n1"]
        assert (found.state, "changed at the same time: driver 550.54.15 → 560.28.03" in found.evidence) == (
            "degraded",
            named,
        )
    nccl = [day_of("n1", 30 + day, rate=340.0, software={"nccl": "2.29.1"}) for day in range(10)]
    put(tmp_path / "nccl.db", *before, *nccl)
    assert stands(tmp_path / "nccl.db")["n1"].state == "ok"


def test_a_change_that_most_nodes_made_explains_no_single_one(tmp_path: Path) -> None:
    for others, named in ((0, True), (4, False)):
        path = tmp_path / f"{others}.db"
        for day in range(30):
            driver = "550.54.15" if day < 20 else "560.28.03"
            put(path, *(day_of(f"n{node}", day + node / 100, driver=driver) for node in range(others)))
            put(path, day_of("slow", day + 0.5, rate=391.0 if day < 20 else 330.0, driver=driver))
        found = stands(path)["slow"]
        assert (found.state, "changed at the same time: driver" in found.evidence) == ("degraded", named), (
            found.evidence
        )


def test_a_clock_that_is_more_than_a_day_behind_is_said(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    put(path, day_of("n1", 10), day_of("n2", 3))
    rows = [(day_of("n1", 8.9), True), (day_of("n1", 9.1), False), (day_of("n2", 2.5), False), (day_of("n3", 0), False)]
    assert len(rows) >= 4
    for report, behind in rows:
        said = ""
        try:
            child.add(msgspec.json.encode(report), path, "r.json", 30.0)
        except UsageError as error:
            said = str(error)
        assert ("n1 has a clock that is behind: it dates this report 2026-03-10" in said) == behind, said
        assert bool(said) == behind


def test_a_node_goes_on_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    before, after = [day_of("old", day) for day in range(20)], [day_of("new", 20 + d, rate=330.0) for d in range(10)]
    put(tmp_path / "one.db", *before, *(day_of("old", 20 + d, rate=330.0) for d in range(10)))
    wanted = stands(tmp_path / "one.db")["old"]
    put(path, *before, *after)
    with store.opened(path, DEADLINE_S) as fleet:
        fleet.rename("old", "new")
        assert fleet.names() == ["new"]
        assert fleet.standings() == [replace(wanted, name="new")]
        history = fleet.history("new", 50)
        assert history
        assert len(history.added) == 30
        fleet.rename("new", "newest")
        assert [each.name for each in fleet.standings()] == ["newest"]


def test_a_rename_is_offered_for_the_same_boot_or_gpus_under_another_name_later(tmp_path: Path) -> None:
    def booted(node: str, day: float, boot: str, gpus: str = "") -> Report:
        made = day_of(node, day)
        return replace(made, environment={node: replace(made.environment[node], boot=boot, gpus=gpus)})

    rows = [
        ([booted("a", 0, "b1"), booted("b", 1, "b1")], [("a", "b", "boot")]),
        ([booted("a", 0, "b1", "g1"), booted("b", 1, "b2", "g1")], [("a", "b", "GPUs")]),
        ([booted("a", 0, "b1", "g1"), booted("b", 1, "b2", "g2")], []),
        ([booted("a", 0, "b1", "g1"), booted("b", 1, "b1", "g1")], [("a", "b", "boot")]),
        ([booted("a", 0, "b1"), booted("b", 1, "b2")], []),
        ([booted("a", 0, ""), booted("b", 1, "")], []),
        ([booted("a", 0, "b1"), booted("b", 1, "b1"), booted("a", 2, "b1")], []),  # two at once: containers
    ]
    assert len(rows) >= 4
    for number, (reports, wanted) in enumerate(rows):
        put(tmp_path / f"{number}.db", *reports)
        with store.opened(tmp_path / f"{number}.db", DEADLINE_S) as fleet:
            assert fleet.renamed() == wanted


def test_a_row_that_is_damaged_is_left_out_and_the_others_are_shown(tmp_path: Path) -> None:
    rows = ["standing = x'ff00', course = '['", "standing = '{'", 'course = \'{"tests": 3, "last\'']
    for number, damage in enumerate(rows):
        path = tmp_path / f"{number}.db"
        put(path, day_of("n1", 0), day_of("n2", 0.1), day_of("n3", 0.2))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"UPDATE nodes SET {damage} WHERE name = 'n2'")
            connection.commit()
        with store.opened(path, DEADLINE_S) as fleet:
            assert [each.name for each in fleet.standings()] == ["n1", "n3"]
            assert [*fleet.damaged] == ["n2"]
            assert [each.standing.name for each in fleet.days(0.0)] == ["n1", "n3"]
        put(path, day_of("n2", 1))  # is made anew from its reports
        with store.opened(path, DEADLINE_S) as fleet:
            assert [each.name for each in fleet.standings()] == ["n1", "n2", "n3"]
            fleet.forget("n2")
            fleet.standings()
            assert [*fleet.damaged] == []


def test_a_node_is_held_to_its_siblings_at_the_same_fingerprint(tmp_path: Path) -> None:
    def fleet(path: Path, driver: str) -> NodeStanding:
        for day in range(12):
            put(path, *(day_of(f"n{node}", day + node / 100, rate=391.0 + node) for node in range(10)))
            put(path, day_of("slow", day + 0.5, rate=300.0, driver=driver))
        return stands(path)["slow"]

    found = fleet(tmp_path / "same.db", "550.54.15")
    assert found.state == "degraded"
    assert found.evidence.startswith("all_reduce 1 GiB: 396 of its siblings → 300 GB/s (-24 %, 11 tests)")
    assert fleet(tmp_path / "other.db", "560.28.03").state == "ok"


def test_provenance_is_kept(tmp_path: Path) -> None:
    put(tmp_path / "fleet.db", *days([], []))
    with store.opened(tmp_path / "fleet.db", DEADLINE_S) as fleet:
        history = fleet.history("n1", 1)
        assert history
        assert history.added == (ADDED,)
        assert fleet.history("n2", 1) is None


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    writers = [writer(path, node, 20) for node in ("n1", "n2", "n3")]
    assert [each.wait(DEADLINE_S) for each in writers] == [0, 0, 0]
    for each in writers:
        assert each.stdout
        each.stdout.close()
    assert {name: each.tests for name, each in stands(path).items()} == {"n1": 20, "n2": 20, "n3": 20}


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_reports_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    for more in range(1, 4):
        victim = writer(path, f"victim{more}", 10_000)
        assert victim.stdout
        said = [victim.stdout.readline() for _ in range(2 + more)]
        victim.send_signal(signal.SIGKILL)
        victim.wait(DEADLINE_S)
        said += victim.stdout.readlines()
        victim.stdout.close()
        told_of = len(said) - (not said[-1].endswith("\n"))
        assert put(path, day_of("n1", more)) == [True]
        assert told_of <= stands(path)[f"victim{more}"].tests <= told_of + 1
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        missing = "SELECT count(*) FROM reports WHERE id NOT IN (SELECT report FROM tests)"
        assert connection.execute(missing).fetchone() == (0,)


def test_a_full_disk_leaves_whole_reports(tmp_path: Path) -> None:
    path, files = tmp_path / "fleet.db", [tmp_path / f"{day}.json" for day in range(30)]
    for file, report in zip(files, days(*[[DOWN]] * 30), strict=True):
        as_json.write(report, str(file))
    put(path, *(day_of(f"m{node}", 0) for node in range(40)))
    full = path.stat().st_size
    argv = [sys.executable, "-m", "ncclprobe", "fleet", "add", "--fleet", str(path), *map(str, files)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S,
                          env={**os.environ, "PYTHONPATH": str(ROOT)},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (full, full)))  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert stands(path)["m0"].tests == 1
    assert put(path, *days([], [])) == [True, True]


def test_a_writer_that_does_not_end_is_waited_for_no_longer_than_was_asked(tmp_path: Path) -> None:
    path, (one, two) = tmp_path / "fleet.db", days([], [])
    put(path, one)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        with pytest.raises(UsageError, match=r"another writer has held it for 0\.2 s; try again"):
            put(path, two, patience_s=SOON_S)
        assert time.monotonic() - begun < DEADLINE_S
        other.execute("ROLLBACK")
    assert put(path, two) == [True]


def test_a_file_system_that_cannot_lock_is_told_from_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "fleet.db", *days([]))

    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with contextlib.closing(sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UsageError, match="another writer has held it"):
            put(tmp_path / "fleet.db", *days([DOWN]), patience_s=0.1)
        monkeypatch.setattr("fcntl.lockf", refuses)
        with pytest.raises(UsageError, match="is on a file system without locks"):
            put(tmp_path / "fleet.db", *days([DOWN]), patience_s=0.1)


def test_one_report_is_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, (one, two) = tmp_path / "fleet.db", days([], [])
    put(path, one)
    monkeypatch.setattr("ncclprobe.fleet.drift.step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        put(path, two)
    monkeypatch.undo()
    assert stands(path)["n1"].tests == 1
    assert put(path, two) == [True]


def refused(path: Path, why: str) -> None:
    before = path.read_bytes() if path.is_file() else b""
    for create in (False, True):
        with pytest.raises(UsageError, match=why), store.opened(path, DEADLINE_S, create=create) as fleet:
            fleet.standings()
    assert not path.is_file() or path.read_bytes() == before


def test_what_is_no_store_of_ours_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a report? " * 500)
    refused(tmp_path / "text", "is not a store of `ncclprobe fleet`; nothing was changed")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE passwords (word TEXT)")
    refused(tmp_path / "other.db", "is not a store of `ncclprobe fleet`; nothing was changed")
    refused(tmp_path, "not a regular file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")
    with (
        pytest.raises(UsageError, match="`ncclprobe fleet add REPORT` creates one"),
        store.opened(tmp_path / "no", 1.0),
    ):
        pass
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("PRAGMA user_version = 2", "is a store of schema 2; this ncclprobe reads 3"),
        ("CREATE TRIGGER t AFTER INSERT ON tests BEGIN DELETE FROM reports; END", "is damaged: its tables are not"),
        ("DROP TABLE readings", "is damaged: its tables are not those of a store"),
        ("UPDATE nodes SET standing = '{\"name\": 3}'", "is damaged: "),
        ("UPDATE nodes SET standing = x'ff00'", "is damaged: "),
    ],
)
def test_a_store_that_was_changed_is_refused(tmp_path: Path, statement: str, why: str) -> None:
    put(tmp_path / "fleet.db", *days([]))
    with contextlib.closing(sqlite3.connect(tmp_path / "fleet.db")) as connection:
        connection.execute(statement)
        connection.commit()
    refused(tmp_path / "fleet.db", why)


@pytest.mark.parametrize("at", range(0, 100, 4))
def test_a_damaged_file_is_one_line_or_still_read(tmp_path: Path, at: int) -> None:
    path = tmp_path / "fleet.db"
    put(path, *days(*[[DOWN]] * 30))
    data = bytearray(path.read_bytes())
    begin = len(data) * at // 100
    data[begin : begin + 512] = random.Random(at).randbytes(512)
    path.write_bytes(data)
    with contextlib.suppress(UsageError), store.opened(path, DEADLINE_S) as fleet:
        fleet.standings()
        fleet.history("n1", 3)
    with contextlib.suppress(UsageError):
        put(path, day_of("n1", 99))


def test_a_hostile_store_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "fleet.db", *days(*[[]] * 5))
    monkeypatch.setattr(store, "_AT_A_TIME", 1)
    with (
        pytest.raises(UsageError, match=r"did not answer within 1e-09 s; give --timeout more"),
        store.opened(tmp_path / "fleet.db", 1e-9) as fleet,
    ):
        fleet.standings()
