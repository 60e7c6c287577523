"""``ncclprobe fleet``: what is added, refused, shown and drawn as a page, and with which exit code."""

import contextlib
import json
import os
import random
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.made import DAY_S, DOWN, FIRST_S, day_of, filled
from ncclprobe.commands import main
from ncclprobe.fleet import store
from ncclprobe.model.fleet import Day, NodeDays, NodeReport, NodeStanding
from ncclprobe.model.outcomes import EXIT_CODE, OUTCOMES
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import json as as_json
from ncclprobe.report.fleet import iso
from ncclprobe.report.html import days as page
from tests.each_row import each_row

UNSETTLED = replace(DOWN, action="retest")


class Fleet:
    """A store in a folder, and what the command prints."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.path, self._capsys = folder, folder / "fleet.db", capsys
        self.err = ""

    def files(self, *reports: Report) -> list[str]:
        """Write reports, each to a file."""
        paths = [str(self.folder / f"{report.nodes[0].name}-{report.started[:10]}.json") for report in reports]
        for path, report in zip(paths, reports, strict=True):
            as_json.write(report, path)
        return paths

    def __call__(self, *argv: str, code: int = 0) -> list[str]:
        """Run the command; returns what it printed."""
        assert main(["fleet", "--fleet", str(self.path), *argv]) == code
        out, self.err = self._capsys.readouterr()
        return out.splitlines()

    def json(self, *argv: str, code: int = 0) -> dict[str, Any]:
        return dict(json.loads("\n".join(self(*argv, "--json", "-", code=code))))

    def events(self, node: str) -> list[str]:
        return [each["what"] for each in self.json("node", node)["events"]]


@pytest.fixture
def fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("time.time", lambda: as_seconds(20))
    return Fleet(tmp_path, capsys)


def as_seconds(day: float) -> float:
    return FIRST_S + day * DAY_S


def degraded(node: str) -> list[Report]:
    return [day_of(node, day, rate=391.0 if day < 14 else 330.0, driver="550.54.15" if day < 14 else "560.28.03")
            for day in range(20)]  # fmt: skip


def test_nodes_of_which_the_same_is_said_are_one_line_and_of_many_false_alarms_are_told(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(fleet.path, *(day_of(f"n{node}", node / 9) for node in range(4)))
    monkeypatch.setattr("time.time", lambda: as_seconds(40))
    assert [line.split()[:3] for line in fleet()[1:2]] == [["n[0-3]", "unknown", "2026-03-01"]]
    monkeypatch.setattr("time.time", lambda: as_seconds(20))
    filled(fleet.path, *(day_of(f"n{node}", 2, DOWN) for node in range(4)))
    assert [line.split()[0] for line in fleet() if "failing" in line] == ["n[0-3]", "0"]
    fleet.path = fleet.folder / "large.db"
    filled(fleet.path, *(day_of(f"n{node}", 19) for node in range(90)))
    assert fleet()[0] == "90 ok · false alarms to expect: 0.01 a month"


def test_a_report_that_cannot_count_is_refused_in_one_line_and_keeps_no_other_from_being_added(fleet: Fleet) -> None:
    (fleet.folder / "log").write_text("NCCL WARN\n")
    clock = "; set that machine's clock"
    rows = [
        ([str(fleet.folder / "log")], "for the log of a job, run"),
        (fleet.files(day_of("n1", 20 + 301 / DAY_S)), f"began at 2026-03-21 04:05 UTC, in the future{clock}"),
        (fleet.files(replace(day_of("n2", 0), started="1999-12-31T23:59:59+00:00")), f"before the year 2000{clock}"),
        (fleet.files(Redactor("key").report(day_of("n3", 0))), "its names are pseudonyms; add the report that is not"),
    ]
    for files, why in rows:
        assert fleet("add", *files, code=2) == []
        assert len(fleet.err.splitlines()) == 1
        assert why in fleet.err
        assert not fleet.path.exists()
    one, redacted = day_of("n1", 0), Redactor("key").report(day_of("n3", 0))
    both = replace(one, nodes=(*one.nodes, *redacted.nodes), started="2000-01-01T00:00:01+00:00")
    good = fleet.files(both, day_of("n4", 20 + 299 / DAY_S))
    assert fleet("add", *rows[0][0], *good, code=2) == [f"2 reports added to {fleet.path}"]
    assert len(fleet.err.splitlines()) == 1


def test_a_node_that_is_accepted_begins_anew_and_who_did_so_is_kept(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(fleet.path, *degraded("n3")[:19])
    assert [each.startswith("degraded: all_reduce 1 GiB: 391 → 330 ") for each in fleet.events("n3")] == [False, True]
    assert fleet("accept", "n3", "-q") == ["n3: ok"]
    filled(fleet.path, degraded("n3")[19])  # of before
    assert fleet("-q") == ["1 ok"]
    driver, before, accepted = fleet.events("n3")
    assert (driver, before) == ("driver 550.54.15 → 560.28.03", "degraded: all_reduce 1 GiB (-16 %)")
    assert accepted.startswith("accepted by ")
    assert "degraded: all_reduce 1 GiB: 391 → 330" in accepted
    monkeypatch.setattr("time.time", lambda: as_seconds(50))
    filled(fleet.path, *(day_of("n3", day, rate=330.0) for day in range(21, 40)))
    assert fleet("-q") == ["1 ok"]
    filled(fleet.path, *(day_of("n3", day, rate=200.0) for day in range(40, 49)))
    assert fleet("-q") == ["0 ok · 1 degraded"]


def test_a_node_that_is_forgotten_is_there_no_more_and_may_be_added_again(fleet: Fleet) -> None:
    fleet("add", *fleet.files(*degraded("n3"), day_of("n1", 19)))
    assert fleet("forget", "n3", "-q") == ["1 ok"]
    fleet("node", "n3", code=2)
    assert fleet.err == "ncclprobe: 'n3' is not a known node of this store; `ncclprobe fleet --json -` lists all\n"
    again = fleet("add", *fleet.files(*degraded("n3"), day_of("n1", 19)))
    assert again == [f"20 reports added to {fleet.path}, 1 there already"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_report_of_another_user_is_added_where_that_is_trusted(fleet: Fleet) -> None:
    (path,) = fleet.files(day_of("n1", 19))
    os.chown(path, 4711, -1)
    assert fleet("add", path, code=2) == []
    why = "belongs to uid 4711, which is neither you nor root; --trust adds it anyway"
    assert fleet.err == f"ncclprobe: {path}: {why}\n"
    assert fleet("add", path, "--trust") == [f"1 report added to {fleet.path}"]


def test_nodes_that_are_not_shown_are_counted_and_too_many_are_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclprobe.report.fleet._MOST_LINES", 1)
    filled(fleet.path, *(day_of(f"n{node}", node / 9, UNSETTLED) for node in range(3)), day_of("n9", 1, DOWN))
    shown = fleet()
    assert [line.split()[:2] for line in shown if line.startswith("n")][1:] == [["n9", "failing"]]
    assert "and 3 nodes more, none of them worse; --json has all" in shown
    monkeypatch.setattr("ncclprobe.model.bounds.FLEET_NODES", 4)
    fleet("add", *fleet.files(day_of("n1", 2), day_of("n3", 3)), code=2)
    assert "5 nodes in one store; 4 at most" in fleet.err
    assert "; 1 of 2 reports are in it" in fleet.err


def test_who_interrupts_is_told_how_many_are_added(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    add, files = store.Store.add, fleet.files(day_of("n1", 0), day_of("n2", 1))

    def adds_one(self: store.Store, told: Sequence[NodeReport], *more: Any) -> bool:
        if told[0].node == "n2":
            raise KeyboardInterrupt
        return add(self, told, *more)

    monkeypatch.setattr(store.Store, "add", adds_one)
    fleet("add", *files, code=130)
    assert fleet.err.splitlines()[0] == "ncclprobe: 1 of 2 reports are in the store"


def test_late_reports_for_which_there_was_no_time_are_told(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise sqlite3.OperationalError("interrupted")

    filled(fleet.path, day_of("n1", 1), day_of("n1", 0))
    monkeypatch.setattr(store.Store, "_settle", interrupted)
    assert fleet("-q") == ["1 ok"]
    late = "1 number from late reports left out: raise --timeout, or let it write to the file"
    assert fleet.err == f"ncclprobe: {late}\n"
    assert fleet("-q", "--exit-code", code=3) == ["1 ok"]  # as far as it was looked at


def test_a_folder_of_reports_is_added_and_a_damaged_row_is_told(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.files(day_of("n1", 0), day_of("n2", 1))
    seen, connect = [], sqlite3.connect
    monkeypatch.setattr("sqlite3.connect", lambda path, timeout, **more: seen.append(timeout) or connect(path, **more))
    assert fleet("add", str(fleet.folder), "--timeout", "5e8") == [f"2 reports added to {fleet.path}"]
    assert 1e6 < seen[0] < 2_147_483  # what SQLite can wait
    monkeypatch.undo()
    monkeypatch.setattr("time.time", lambda: as_seconds(20))
    with contextlib.closing(sqlite3.connect(fleet.path)) as connection:
        connection.execute("UPDATE nodes SET standing = '{' WHERE name = 'n2'")
        connection.commit()
    assert fleet("-q") == ["1 ok"]
    assert (
        fleet.err
        == "ncclprobe: the row of n2 is damaged and left out; `ncclprobe fleet forget n2` lets it be added again\n"
    )
    monkeypatch.setattr("ncclprobe.model.bounds.FLEET_REPORTS", 1)
    fleet("add", str(fleet.folder), code=2)
    assert "2 reports; give 1 at most" in fleet.err


def test_every_outcome_of_the_table_is_made_and_a_store_without_a_node_is_unknown(fleet: Fleet) -> None:
    days = {"clean": [day_of("n1", 19)], "named": degraded("n1"), "untold": [day_of("n1", 19, UNSETTLED)]}
    for name, reports in days.items():
        fleet.path, outcome = fleet.folder / f"{name}.db", OUTCOMES["fleet"][name]
        filled(fleet.path, *reports)
        for argv in ((), ("--json", "-"), ("-q",), ("node", "n1")):
            fleet(*argv, code=outcome.code)
            fleet(*argv, EXIT_CODE, code=outcome.under.get(EXIT_CODE, outcome.code))
    fleet.path = fleet.folder / "empty.db"
    filled(fleet.path)
    fleet(code=0)
    fleet(EXIT_CODE, code=3)


def test_a_nic_whose_firmware_changed_is_told_from_reports_of_the_doctor(fleet: Fleet) -> None:
    healthy, other = fleet.folder / "healthy.jsonl", fleet.folder / "other.jsonl"
    healthy.write_bytes((Path(__file__).parents[1] / "captures" / "hgx-h100.jsonl").read_bytes())
    firmware = {"ask": ["read", "/sys/class/infiniband/mlx5_3/fw_ver"], "said": "28.45.1020\n"}
    head = {"capture": 1, "node": "hgx-h100", "origin": "synthetic"}
    other.write_text("\n".join(map(json.dumps, (head, {"like": healthy.name}, firmware))))
    for day, capture in enumerate((healthy, other)):
        path = str(fleet.folder / f"{day}.json")
        main(["doctor", str(capture), "--no-config", "--json", path, "-q"])
        as_json.write(replace(as_json.read(path), started=iso(as_seconds(day))), path)
    fleet("add", str(fleet.folder / "0.json"), str(fleet.folder / "1.json"))
    assert fleet.events("hgx-h100") == ["NIC firmware 28.39.1002 → 28.39.1002 (mlx5_[0-2,4-7]), 28.45.1020 (mlx5_3)"]


def test_a_renamed_node_is_offered_and_made_one(fleet: Fleet) -> None:
    both = [day_of("n3", 0), day_of("n33", 1)]
    filled(fleet.path, *(replace(r, environment={n: replace(e, boot="b") for n, e in r.environment.items()})
                         for r in both))  # fmt: skip
    assert fleet("-q") == ["2 ok"]
    same = "n33 has the boot of n3, which is older: `ncclprobe fleet rename n3 n33` merges them"
    assert fleet.err == f"ncclprobe: {same}\n"
    assert fleet("rename", "n3", "n33", "-q") == ["n33: ok"]
    assert fleet("-q") == ["1 ok"]
    assert fleet.err == ""


NOW_S = FIRST_S + 30 * DAY_S
MARKUP = "</script><img src=x onerror=alert(1)>"


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return dict(json.loads(found[1]))


def large(nodes: int, sick: float) -> list[NodeDays]:
    """Nodes of 90 days, of which this share of days, and of nodes today, is not ok."""
    rng, today, found = random.Random(1), int(NOW_S // DAY_S), []
    for number in range(nodes):
        ill, tested = rng.random() < sick, dict[int, Day]()
        for back in range(90):
            state = "failing" if (ill and back < 5) or rng.random() < sick else "ok"
            words = (f"ib.state mlx5_{rng.randrange(8)}:1: is DOWN; its siblings are ACTIVE",) if state != "ok" else ()
            source = f"/shared/ncclprobe/new/gpu-node-{number:04}-{back:02}.json"
            tested[today - back] = Day(state, words, NOW_S - back * DAY_S, source)  # type: ignore[arg-type]
        why = "ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE (5 tests)" if ill else ""
        stands = NodeStanding(f"gpu-node-{number:04}", "failing" if ill else "ok", NOW_S - 5 * DAY_S if ill else None,
                              why, 90, NOW_S)  # fmt: skip
        found.append(NodeDays(stands, tested))
    return found


def test_each_day_has_its_worst_state_and_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    filled(path, *(day_of("n7", day, *([DOWN] if day in (20, 21) else [])) for day in range(18, 24)))
    with store.opened(path, 30.0) as fleet:
        (found,) = (each.days for each in fleet.days(FIRST_S + 19 * DAY_S))
    assert [found[day].state for day in sorted(found)] == ["ok", "failing", "failing", "ok", "ok"]
    assert (min(found), found[min(found) + 1].source) == (FIRST_S // DAY_S + 19, "/r/2.json")


def test_the_command_writes_a_page_with_the_worst_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: FIRST_S + 24 * DAY_S)
    path, written = tmp_path / "fleet.db", tmp_path / "fleet.html"
    filled(path, *(day_of("n1", day) for day in range(20, 24)), day_of("n7", 23, DOWN))
    assert main(["fleet", "page", "--html", str(written), "--fleet", str(path)]) == 0
    assert capsys.readouterr().out == f"2 nodes written to {written}\n"
    assert main(["fleet", "page", "--html", str(written), "--fleet", str(path), "--exit-code", "-q"]) == 4
    found = data(written.read_text())
    assert found["names"] == ["n7", "n1"]
    (cell,) = found["cells"].values()
    assert f'<a href="{found["texts"][cell[0]]}">' in written.read_text()  # the report on the node that is not ok
    assert [row.strip() for row in found["rows"]] == ["0", "5555"]
    assert [found["texts"][cell[0]], found["texts"][cell[2]]] == [
        "/r/4.json", "ib.state mlx5_3:1: is DOWN; its siblings are ACTIVE"]  # fmt: skip
    before = path.read_bytes()
    assert main(["fleet", "page", "--html", str(path), "--fleet", str(path)]) == 2
    assert "is not overwritten, because this command also reads it" in capsys.readouterr().err
    assert path.read_bytes() == before


@each_row("sick", [0.02, 1.0])
def test_two_thousand_nodes_of_ninety_days_are_below_a_megabyte_and_a_half(sick: float) -> None:
    text = page.render(large(2000, sick), NOW_S, 90, "/shared/fleet.db")
    assert len(text.encode()) < 1_500_000
    assert len(data(text)["rows"]) == 2000


def test_names_and_findings_with_markup_stay_data() -> None:
    (node,) = large(1, 1.0)
    day = Day("failing", (MARKUP,), NOW_S, MARKUP)
    stands = NodeStanding(MARKUP, "failing", NOW_S, MARKUP, 1, NOW_S)
    text = page.render([NodeDays(stands, dict.fromkeys(node.days, day))], NOW_S, 90, MARKUP)
    assert "<img" not in text
    assert data(text)["texts"] == [MARKUP]
