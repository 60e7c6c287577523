"""What to measure next on idle nodes, and what one pair at a time tells of its two nodes."""

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from report.samples import report

from fleet.made import DAY_S, FIRST_S, SOFTWARE, on
from fleet.test_told import pair
from ncclprobe.commands import main
from ncclprobe.fleet import drift, store
from ncclprobe.fleet.told import told
from ncclprobe.localise.pairs.rounds import Seen, least_seen
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.fleet import Added, Drift, Reading
from ncclprobe.model.measurement import Fingerprint
from ncclprobe.model.pair_results import PairRow
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from tests.each_row import each_row

NAMES = [f"n{number}" for number in range(1, 17)]
PRINT = Fingerprint({"gpu": "8 x NVIDIA H100"}, None, SOFTWARE)


def pair_of(one: str, other: str, rate: float, day: float) -> Report:
    """The report of a job that measured this pair alone."""
    rows: tuple[PairRow, ...] = (pair(one, other, rate), pair(other, one, rate))
    nodes = [Verdict("ib.state", name, Status.PASS, "fine") for name in (one, other)]
    return replace(report(*nodes, status=Status.PASS, pairs=rows, started=on(day)), fingerprint=PRINT)


def played(rounds: int, sick: str, since: int, seed: int = 1) -> tuple[int | None, set[str]]:
    """Return after how many rounds of the plan `sick`, at 60 % from round `since` on, is degraded, and who else was."""
    rng, seen, tests = random.Random(seed), dict[tuple[str, str], tuple[int, float]](), dict[tuple[str, str], Drift]()
    others: set[str] = set()
    for number in range(rounds):
        (planned,) = least_seen(NAMES, seen, 1)
        for one, other in planned:
            seen[one, other] = seen.get((one, other), (0, 0.0))[0] + 1, float(number)
            rate = 48.0 * (0.6 if sick in (one, other) and number >= since else 1.0) * (1 + rng.gauss(0, 0.02))
            for node in told(pair_of(one, other, rate, number / 24), "test"):
                for which, reading in node.numbers.items():
                    key = node.node, which.name
                    tests[key] = drift.step(tests.get(key, Drift()), reading, 2)
        found = {node for (node, _), test in tests.items() if test.own.state == "degraded"}
        others |= found - {sick}
        if sick in found:
            return number - since + 1, others
    return None, others


def test_each_pair_comes_once_before_any_comes_twice() -> None:
    seen: Seen = {}
    for number in range(15):
        (planned,) = least_seen(NAMES, seen, 1)
        assert sorted(name for pair in planned for name in pair) == sorted(NAMES)
        seen = {**seen, **{pair: (seen.get(pair, (0, 0.0))[0] + 1, float(number)) for pair in planned}}
    assert len(seen) == 120
    assert {often for often, _ in seen.values()} == {1}


def test_rounds_of_one_plan_have_no_pair_twice_and_an_odd_node_rests() -> None:
    rounds = least_seen(NAMES[:5], {}, 5)
    assert max(Counter(pair for each in rounds for pair in each).values()) == 1
    assert [len(each) for each in rounds] == [2] * 5


def test_a_slow_nic_is_found_within_a_few_rounds_and_no_partner_is_blamed() -> None:
    found = [played(40, "n7", 20, seed) for seed in range(5)]
    assert all(rounds is not None and rounds <= 5 for rounds, _ in found)
    assert all(not others for _, others in found)


def test_a_healthy_node_with_one_partner_alone_is_watched_and_not_blamed(tmp_path: Path) -> None:
    """Either of two may be the slow one, however often they are measured with each other."""
    with store.opened(tmp_path / "fleet.db", 30.0, create=True) as fleet:
        for day in range(40):
            of = pair_of("n1", "n2", 48.0 if day < 20 else 29.0, day)
            fleet.add(told(of, "test"), str(day), Added(0.0, "", "", "pairs"))
        assert {each.state for each in fleet.standings()} == {"watch"}
        for day in range(40, 44):  # now the others say which of the two it is
            for one, other, rate in (("n1", f"n{day}", 29.0), ("n2", f"n{day + 10}", 48.0)):
                of = pair_of(one, other, rate, day)
                fleet.add(told(of, "test"), f"{day} {one}", Added(0.0, "", "", "pairs"))
        states = {each.name: each.state for each in fleet.standings()}
    assert (states["n1"], states["n2"]) == ("degraded", "ok")


def test_a_slow_partner_and_usual_numbers_with_others_leave_a_healthy_node_watched() -> None:
    """That others were measured with it says nothing; that it was low with them would."""
    test, rng = Drift(), random.Random(3)
    for number in range(60):
        partner = "n2" if number < 20 or number % 3 else f"n{3 + number % 2}"
        loss = 0.6 if number >= 20 and partner == "n2" else 1.0
        rate = 48.0 * loss * (1 + rng.gauss(0, 0.01))
        test = drift.step(test, Reading(FIRST_S + number * DAY_S, rate, 0.005, partners=(partner,)), 2)
        assert test.own.state != "degraded", number
    assert test.own.state == "watch"


def test_pairs_that_come_late_keep_their_partners(tmp_path: Path) -> None:
    reports = [pair_of("n1", f"n{2 + day % 4}", 48.0 if day < 20 else 29.0, day) for day in range(30)]
    found = []
    for order in (reports, reports[::-1]):
        with store.opened(tmp_path / f"{len(found)}.db", 30.0, create=True) as fleet:
            for each in order:
                fleet.add(told(each, "test"), each.started, Added(0.0, "", "", "pairs"))
            found.append([(each.name, each.state, each.evidence) for each in fleet.standings()])
    assert found[0] == found[1]
    assert found[0][0][1] == "degraded"


def test_the_command_plans_what_was_measured_together_least(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.db"
    with store.opened(path, 30.0, create=True) as fleet:
        for number, (one, other) in enumerate((("n1", "n2"), ("n3", "n4"), ("n1", "n3"), ("n2", "n4"))):
            fleet.add(told(pair_of(one, other, 48.0, 1), "test"), str(number), Added(0.0, "", "", "pairs"))
    plan = ["fleet", "plan", "--idle", "n[1-4]", "--fleet", str(path)]
    assert main(plan) == 0
    assert capsys.readouterr().out == "n1,n4  never\nn2,n3  never\n"
    assert main([*plan, "--minutes", "2", "--json"]) == 0
    rounds = json.loads(capsys.readouterr().out)["rounds"]
    assert [[each["seen"] for each in pairs] for pairs in rounds] == [[0, 0], [1, 1]]
    assert rounds[1][0]["last"].startswith("2026-03-02T04:00")


def test_a_run_of_many_nodes_counts_for_no_pair(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(100)]
    looked = (Verdict("ib.state", name, Status.PASS, "fine") for name in names)
    rows = tuple(pair(one, other, 48.0) for one, other in pairwise(names))
    many = report(*looked, status=Status.PASS, pairs=rows)
    with store.opened(tmp_path / "fleet.db", 30.0, create=True) as fleet:
        fleet.add(told(replace(many, started=on(1)), "test"), "many", Added(0.0, "", "", "accept"))
        fleet.add(told(pair_of("n1", "n2", 48.0, 2), "test"), "two", Added(0.0, "", "", "pairs"))
        nodes = [Verdict("ib.state", name, Status.PASS, "fine") for name in ("n1", "n3")]
        looked = told(report(*nodes, status=Status.PASS, started=on(3)), "only looked at")
        fleet.add(looked, "looked", Added(0.0, "", "", ""))
        assert fleet.together(names) == {("n1", "n2"): (1, FIRST_S + 2 * DAY_S)}


def test_a_plan_makes_no_store_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mistyped.db"
    assert main(["fleet", "plan", "--idle", "n[1-2]", "--fleet", str(path)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("n1,n2  never\n", f"ncclprobe: {path} is not there yet: no pair was measured\n")
    assert not path.exists()


@each_row(
    ("argv", "why"),
    [
        (["plan"], "takes --idle NODES"),
        (["plan", "--idle", "n1"], "1 node; give 2 to 2,000"),
        (["plan", "--idle", "n[1-3000]"], "3,000 nodes; give 2 to 2,000"),
        (["plan", "--idle", "n[1-4", "--minutes", "1"], "--idle: "),
        (["--idle", "n[1-4]"], "are for `ncclprobe fleet plan`"),
        (["plan", "--idle", "n[1-4]", "--exit-code"], "it judges nothing"),
    ],
)
def test_a_plan_of_nothing_is_refused(
    argv: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", *argv]) == 2
    assert why in capsys.readouterr().err


def test_times_of_a_plan_are_those_of_reports() -> None:
    assert on(1.0).startswith("2026-03-02T04:00")
    assert told(pair_of("n1", "n2", 1.0, 1), "test")[0].time_s == FIRST_S + DAY_S
