"""What is remembered of other nodes changes nothing: neither what is learned of one, nor what is said of it."""

import pytest
import zoo
from fleets.captures import capture
from zoo import findings

from ncclprobe.engine.collect import Traces, capture_facts, collect
from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.judge import Judged, judge, judge_node, one_job_snapshots, shares
from ncclprobe.facts.machine import System
from ncclprobe.facts.pci import Pci
from ncclprobe.host.capture import Replay, load, parse
from ncclprobe.model.findings import Finding, Severity, Status, Verdict
from ncclprobe.model.registry import Collector, collector, discover
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.each_row import each_row, some

COLLECTORS = discover("ncclprobe.facts", Collector)
MODEL = zoo.CAPTURES / "hgx-h200.jsonl"


@pytest.fixture(scope="module")
def machines() -> list[Replay]:
    """Every captured machine, well or sick, some of them twice."""
    paths = findings.captures()
    return [load(path) for path in (*paths, *paths[:4])]


def test_every_machine_is_learned_of_as_if_it_were_the_only_one(machines: list[Replay]) -> None:
    traces = Traces()
    for host in some(machines):
        assert repr(collect(host, COLLECTORS, traces=traces)) == repr(collect(host, COLLECTORS)), host.node


def test_every_machine_is_judged_as_if_it_were_the_only_one(machines: list[Replay]) -> None:
    traces, known = Traces(), Judged()
    checks = every_check()
    for host in some(machines):
        snapshot = capture_facts(host, COLLECTORS, traces)
        assert judge_node(snapshot, checks, Job(), known) == judge_node(snapshot, checks, Job())


def test_nodes_that_answer_the_same_share_their_facts_and_no_others() -> None:
    traces = Traces()
    one, other = (collect(parse(capture(MODEL, n), f"n{n}"), COLLECTORS, traces=traces) for n in (1, 2))
    assert one[Pci] is other[Pci]
    assert one[System].hostname == "n1"
    assert other[System].hostname == "n2"


def test_a_machine_of_a_fleet_differs_in_nothing_that_is_judged() -> None:
    checks = every_check()
    same = [capture_facts(parse(capture(MODEL, n), f"n{n}"), COLLECTORS) for n in (0, 70000)]
    said = [[(v.id, v.status, v.why) for v in judge_node(snapshot, checks, Job())] for snapshot in same]
    assert said[0] == said[1]


def test_a_refusal_is_remembered_apart_from_an_answer_and_from_another_refusal() -> None:
    @collector
    def uptime(host: Replay) -> str:
        """The text itself."""
        return host.ask("read", "/proc/uptime")

    traces = Traces()
    row = '{"capture": 1, "node": "n", "tool": "0.0.0"}\n{"ask": ["read", "/proc/uptime"], %s}\n'
    rows = ('"said": "Missing"', '"refused": "Missing", "why": "gone"', '"refused": "Denied", "why": "gone"')
    learned = [collect(parse(row % each, "c"), [uptime], traces=traces)[str] for each in (*rows, *rows)]
    assert learned[:3] == ["Missing", Absent("gone", "Missing"), Absent("gone", "Denied")]
    assert learned[3:] == learned[:3]


def verdict(node: str | None, *found: Finding, status: Status = Status.PASS, required: bool = False) -> Verdict:
    return Verdict("a.b", node, status, "", required=required, findings=found)


@each_row(
    ("said", "codes"),
    [
        ([verdict(None, required=True)], (0, 0)),
        ([verdict(None, Finding(Severity.FAIL, "x", "y", nodes=("n1",)), status=Status.FAIL)], (0, 4)),
        ([verdict(None, Finding(Severity.FAIL, "x", "y", blame="job", nodes=("n1",)), status=Status.FAIL)], (4, 4)),
        ([verdict(None, Finding(Severity.FAIL, "x", "y"), status=Status.FAIL)], (4, 4)),
        ([verdict(None, Finding(Severity.FAIL, "x", "y", nodes=("gone",)), status=Status.FAIL)], (4, 4)),
        ([verdict(None), verdict(None, status=Status.UNKNOWN, required=True)], (3, 3)),
        ([verdict(None), verdict(None, status=Status.UNKNOWN)], (0, 0)),
        ([verdict(None, status=Status.SKIP)], (3, 3)),
        ([], (3, 3)),
    ],
)
def test_where_only_comparisons_are_selected_a_node_leaves_by_what_they_say_of_it(
    said: list[Verdict], codes: tuple[int, int]
) -> None:
    each = shares(("n0", "n1"), said, "fail")
    assert (each["n0"].exit_code, each["n1"].exit_code) == codes


def test_a_comparison_that_found_something_and_did_not_see_every_node_calls_no_node_healthy() -> None:
    found = Finding(Severity.FAIL, "x", "y", nodes=("n1",))
    said = replace(verdict(None, found, status=Status.FAIL), why="not known of n0: it printed nothing")
    each = shares(("n0", "n1"), [said], "fail")
    assert (each["n0"].exit_code, each["n1"].exit_code) == (3, 4)


def test_a_fleet_is_judged_as_its_nodes_are_one_by_one() -> None:
    traces, checks = Traces(), [c for c in every_check() if not c.compares]
    snapshots = [capture_facts(parse(capture(MODEL, n), f"n{n}"), COLLECTORS, traces) for n in range(3)]
    alone = [Snapshot(s.node, collect(parse(capture(MODEL, n), s.node), COLLECTORS)) for n, s in enumerate(snapshots)]
    apart = [v for snapshot in one_job_snapshots(alone, Job()) for v in judge_node(snapshot, checks, Job())]
    assert list(judge(snapshots, checks, Job())) == apart
