"""What every value type promises, and how one fact of all nodes is judged: who differs, and who leaves with what."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ncclprobe.engine.judge import judge, shares
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.pci import Pci
from ncclprobe.localise.pairs.samples import End, Sample
from ncclprobe.model.errors import NotCaptured
from ncclprobe.model.findings import Evidence, Finding, Severity, Status, Verdict, fail, warn
from ncclprobe.model.nccl_selection import Decision, InterfaceChoice, NvlsChoice
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks, Snapshot
from ncclprobe.model.values import Struct, asdict, replace
from tests.each_row import each_row, some

DENIED = Absent("permission denied", "Denied")
FINDING = warn("mlx5_0:1", "is DOWN", blame="link", action="repair", evidence=(Evidence("/sys/x", 3, "1: DOWN"),))
VERDICT = Verdict("ib.state", "n1", Status.WARN, "a port is down", findings=(FINDING,))
SAMPLE = Sample(End("a", "x"), End("b", "x"), 2.0)
VALUES = [DENIED, FINDING, VERDICT, Job(), Decision((NvlsChoice(None, "no GPU"),), "two"), SAMPLE]


@each_row("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_equal_by_their_fields_hash_accordingly_and_cannot_be_changed(value: Any) -> None:
    same = copy.deepcopy(value)
    assert same == value
    assert len({same, value}) == 1
    for name in some(type(value).__match_args__):
        with pytest.raises(AttributeError):
            setattr(value, name, "other")


def test_values_differ_by_any_field_and_by_their_type_and_by_a_mapping() -> None:
    assert Absent("a") != Absent("b")
    assert Absent("a", "Denied") != Absent("a", "Missing")
    assert Absent("a", "b") != ("a", "b")
    assert NvlsChoice(None, "no GPU") != Decision(None, "no GPU")
    assert Settings(effective={}) == Settings()
    with pytest.raises(TypeError, match="unhashable"):
        hash(Settings())
    nan = float("nan")
    assert Decision((nan,), "") == Decision((nan,), "")
    assert Decision((nan,), "") != Decision((float("nan"),), "")


def test_replacing_makes_another_value_and_refuses_what_making_refuses() -> None:
    other = replace(FINDING, severity=Severity.FAIL)
    assert (other.severity, FINDING.severity) == (Severity.FAIL, Severity.WARN)
    assert replace(other, severity=Severity.WARN) == FINDING
    with pytest.raises(TypeError):
        replace(DENIED, because="no such field")
    with pytest.raises(ValueError, match="is not a rate"):
        replace(SAMPLE, GBps=-1.0)


def test_a_default_mapping_belongs_to_one_value_and_what_is_not_known_is_not_false() -> None:
    assert Absent("")  # as an empty answer is
    assert Absent("") != ""
    assert Pci().devices == {}
    assert Pci().devices is not Pci().devices
    assert Snapshot("n1", {}).ranks is not Snapshot("n1", {}).ranks


def test_a_value_as_json_has_every_field_by_its_name_in_order_and_reads_back() -> None:
    choice = Decision((InterfaceChoice("eth0", "10.0.0.1", "socket", "the first"),), "found")
    rows = '[{"name":"eth0","address":"10.0.0.1","step":"socket","why":"the first"}]'
    text = f'{{"chosen":{rows},"why":"found","refused":false,"subject":""}}'
    assert msgspec.json.encode(choice).decode() == text
    assert json.dumps(asdict(choice), separators=(",", ":")) == text
    assert msgspec.json.decode(text, type=Decision[InterfaceChoice]) == choice
    assert msgspec.json.decode(msgspec.json.encode(VERDICT), type=Verdict) == VERDICT
    with pytest.raises(msgspec.ValidationError, match="severity"):
        msgspec.convert({"severity": "sad"}, Finding)
    denied = {"type": "Absent", "why": "permission denied", "refused": "Denied"}
    assert asdict(Every({"n1": DENIED})) == {"by_node": {"n1": denied}}
    assert asdict(Decision((DENIED,), "")) == {"chosen": (denied,), "why": "", "refused": False, "subject": ""}


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


UNREAD = Absent("permission denied")


@each_row(
    ("counts", "details", "status", "said"),
    [
        ((8, 7, 8), {}, Status.FAIL, "[8, 7, 8]"), ((8, 8), {}, Status.PASS, ""),
        ((8, UNREAD, 8, UNREAD), {"required": True}, Status.UNKNOWN, "unknown on n[1,3]: permission denied"),
        ((8, UNREAD, 7), {}, Status.FAIL, "[8, 7]"), ((UNREAD, UNREAD), {}, Status.UNKNOWN, "permission denied"),
        ((8, UNREAD), {"annotation": Every[Count | Absent]}, Status.FAIL, "[8, None]"),
        ((8, 8), {"annotation": Ranks[Count]}, Status.FAIL, "[0, 1]")])  # fmt: skip
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
