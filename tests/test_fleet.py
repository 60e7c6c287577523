"""One fact of all nodes: how comparisons are judged, and who is said to differ."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.engine.judge import judge, shares
from ncclprobe.model.errors import NotCaptured
from ncclprobe.model.findings import Finding, Status, Verdict, fail
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks, Snapshot, vote
from ncclprobe.model.values import Struct
from tests.each_row import each_row


class Count(Struct, frozen=True):
    number: int


def comparison(annotation: Any = Every[Count], **details: Any) -> Any:
    def counts(counts: annotation) -> Iterator[Finding]:
        """Counts differ.

        Why: because.
        Fix: count again.
        """
        said = [None if isinstance(c, Absent) else c.number for *_, c in counts.items()]
        if len(set(said)) > 1:
            yield fail("count", f"{said}", nodes=("n1",))

    return check(bad=tuple, good=tuple, **details)(counts)


def fleet(*counts: int | Absent) -> list[Snapshot]:
    return [
        Snapshot(f"n{i}", {Count: c if isinstance(c, Absent) else Count(c)}, {i: {Count: Count(i)}})
        for i, c in enumerate(counts)
    ]


def judged(*counts: int | Absent, annotation: Any = Every[Count], **details: Any) -> Any:
    return judge(fleet(*counts), [comparison(annotation, **details)], Job())


DENIED = Absent("permission denied")


@each_row(
    ("counts", "details", "status", "said"),
    [
        ((8, 7, 8), {}, Status.FAIL, "[8, 7, 8]"),
        ((8, 8), {}, Status.PASS, ""),
        ((8, DENIED, 8, DENIED), {"required": True}, Status.UNKNOWN, "unknown on n[1,3]: permission denied"),
        ((8, DENIED, 7), {}, Status.FAIL, "[8, 7]"),
        ((DENIED, DENIED), {}, Status.UNKNOWN, "permission denied"),
        ((8, DENIED), {"annotation": Every[Count | Absent]}, Status.FAIL, "[8, None]"),
        ((8, 8), {"annotation": Ranks[Count]}, Status.FAIL, "[0, 1]"),
    ],
)
def test_a_comparison_is_one_verdict_of_no_node_by_what_is_known_of_all(
    counts: tuple[Any, ...], details: dict[str, Any], status: Status, said: str
) -> None:
    (verdict,) = judged(*counts, **details)
    assert (verdict.node, verdict.status, verdict.required) == (None, status, "required" in details)
    assert (verdict.findings[0].message if verdict.findings else verdict.why) == said


def test_a_fact_that_an_older_capture_lacks_is_advisory() -> None:
    (verdict,) = judged(8, Absent("not asked", NotCaptured.__name__), required=True)
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, False)


def test_a_cause_among_comparisons_silences_its_consequence() -> None:
    cause = comparison()

    def late(counts: Every[Count]) -> Iterator[Finding]:
        """Late.

        Why: because.
        Fix: hurry.
        """
        yield fail("count", "differs as well")

    late_check = check(bad=tuple, good=tuple, requires=cause.id)(late)
    assert [v.status for v in judge(fleet(8, 7), [cause, late_check], Job())] == [Status.FAIL, Status.SKIP]


@each_row(
    ("said", "settled", "outliers"),
    [
        ("aaaa", True, ()),
        ("aaba", True, ("n2",)),
        ("aaabc", True, ("n3", "n4")),
        ("aabc", False, ()),
        ("aabb", False, ()),
        ("ab", False, ()),
        ("a", True, ()),
        ("", False, ()),
    ],
)
def test_a_node_is_an_outlier_only_where_more_than_half_agree(
    said: str, settled: bool, outliers: tuple[str, ...]
) -> None:
    ballot = vote({f"n{i}": each for i, each in enumerate(said)})
    assert (ballot.settled, ballot.outliers, ballot.agreed) == (settled, outliers, len(set(said)) <= 1)
    assert not said or ballot.usual == "a"


def found(node: str | None, **details: Any) -> Verdict:
    return Verdict("x.y", node, Status.FAIL, "t", findings=(fail("it", "is wrong", **details),))


@each_row(
    ("verdict", "concerned"),
    [
        (found("n0", blame="node"), {"n0"}),
        (found("n0", blame="job"), {"n0", "n1"}),
        (found(None, blame="node", nodes=("n1",)), {"n1"}),
        (found(None, blame="fabric"), {"n0", "n1"}),
        (found(None, blame="job", nodes=("n1",)), {"n0", "n1"}),
        (found(None, blame="unknown", nodes=("n7",)), {"n0", "n1"}),  # it never came: nobody can start
    ],
)
def test_a_node_leaves_with_what_concerns_it_or_the_whole_job(verdict: Verdict, concerned: set[str]) -> None:
    both = [verdict, *(Verdict("x.z", node, Status.PASS, "t") for node in ("n0", "n1"))]
    found = shares(("n0", "n1"), both, "fail")
    assert {node for node, share in found.items() if share.exit_code == 4} == concerned
