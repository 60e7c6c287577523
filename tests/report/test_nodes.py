"""Lists of nodes: who is bad, who is only doubted, and that nobody is bad by anybody else's fault."""

from ncclprobe.model.findings import ONCE, Certainty, Finding, Severity, Status, Verdict, fail, warn
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import nodes
from tests.each_row import each_row

from .samples import HEALTHY, INCONCLUSIVE, LOST_LANES, SICK, fleet, hostile, report, verdict


def kind(*findings: Finding, id: str = "pci.width", node: str | None = "n0") -> str:
    """In which list n0 stands, where n1 is healthy."""
    other = verdict(Status.PASS, node="n1")
    own = (verdict(Status.PASS),) if node is None else ()
    made = report(verdict(Status.FAIL, *findings, id=id, node=node), *own, other)
    return next(name for name, names in nodes.sort(made).items() if "n0" in names)


@each_row(
    ("finding", "expected"),
    [
        (replace(LOST_LANES, blame="node"), "bad"),
        (LOST_LANES, "bad"),
        (replace(LOST_LANES, blame="job"), "good"),
        (replace(LOST_LANES, blame="image"), "good"),
        (replace(LOST_LANES, severity=Severity.WARN), "good"),
        (replace(LOST_LANES, blame="fabric"), "unsure"),
        (replace(LOST_LANES, blame="unknown"), "unsure"),
        (replace(LOST_LANES, action="retest"), "unsure"),
        (replace(LOST_LANES, confidence=ONCE), "unsure"),
        (replace(LOST_LANES, confidence=Certainty("low", "measured once")), "unsure"),
    ],
    ids=["node", "link", "job", "image", "warning", "fabric", "unknown", "retest", "once", "measured once"],
)
def test_only_a_fault_of_its_own_that_is_settled_makes_a_node_bad(finding: Finding, expected: str) -> None:
    assert kind(finding) == expected


def test_a_comparison_makes_the_nodes_it_names_bad_and_no_others() -> None:
    named = replace(LOST_LANES, nodes=("n0",))
    assert kind(named, node=None) == "bad"
    assert kind(replace(named, nodes=("n1",)), node=None) == "good"


def test_a_measured_fault_that_names_nobody_leaves_all_in_doubt() -> None:
    made = report(
        verdict(Status.FAIL, fail("all_reduce 1 MiB", "slow", action="retest"), id="run.bandwidth"),
        verdict(Status.PASS, node="n1"),
    )
    assert nodes.sort(made) == {"good": (), "bad": (), "unsure": ("n0", "n1"), "missing": ()}


def test_a_slow_node_that_was_measured_again_is_bad_and_the_one_that_reported_it_is_not() -> None:
    slow = fail("n1", "slow", blame="node", action="repair", confidence=Certainty("high", "measured again"),
                nodes=("n1",))  # fmt: skip
    made = report(verdict(Status.FAIL, slow, id="run.pairs"), verdict(Status.PASS, node="n1"))
    assert nodes.sort(made)["bad"] == ("n1",)
    assert nodes.sort(made)["good"] == ("n0",)


@each_row(
    "blind",
    [
        verdict(Status.UNKNOWN, why="permission denied", required=True),
        verdict(Status.SKIP, why="explained by gpu.driver", required=True),
        verdict(Status.UNKNOWN, id="run.bandwidth", why="too noisy", required=True),
    ],
    ids=["unknown", "explained", "measured"],
)
def test_a_node_that_was_not_looked_at_is_never_good(blind: Verdict) -> None:
    assert nodes.sort(report(blind))["unsure"] == ("n0",)
    assert nodes.sort(INCONCLUSIVE)["unsure"] == ("n0",)


def test_a_gap_that_nobody_must_fill_and_a_check_that_does_not_apply_leave_a_node_good() -> None:
    made = report(verdict(Status.UNKNOWN, why="denied"), verdict(Status.SKIP, why="applies only to x", required=True),
                  verdict(Status.WARN, warn("x", "y", blame="node")), status=Status.PASS)  # fmt: skip
    assert nodes.sort(made)["good"] == ("n0",)


@each_row("made", [HEALTHY, SICK, fleet(2048, 2), hostile()], ids=["healthy", "sick", "fleet", "hostile"])
def test_every_node_stands_in_one_list_folded_on_a_line_or_empty(made: Report) -> None:
    texts = nodes.lists(made).texts
    assert set(texts) == set(nodes.NAMES)
    assert all(text.count("\n") == bool(text) for text in texts.values())
    assert nodes.sort(SICK) == {"good": (), "bad": ("n0",), "unsure": ("n1", "n2"), "missing": ("n3", "n4")}
    assert nodes.lists(fleet(40, 2)).texts["bad"] == "gpu-[00000,00010,00020,00030]\n"


@each_row("name", ["@all", "n0#2", "a,b", "n[0-9]", "a b", "-w", "$(x)", "n0\n"])
def test_a_name_that_no_host_has_stands_in_no_list_and_is_told(name: str) -> None:
    found = nodes.lists(report(verdict(Status.PASS, node=name), verdict(Status.PASS, node="n1"), status=Status.PASS))
    assert found.texts["good"] == "n1\n"
    assert found.left_out == (name,)
