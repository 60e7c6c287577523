"""What the engine makes of findings that checks of this file are given: rows of `FUNCTIONS`, kept word for word."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, permutations
from typing import Any

from report import samples

from ncclprobe.engine import captures, diagnose, promises
from ncclprobe.engine.explain import add_verdicts
from ncclprobe.engine.judge import conclude, judge, selected, suppress
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.process import Process, ResourceLimit
from ncclprobe.facts.run.samples import Participants, RunRequest
from ncclprobe.host.capture import NOT_SHOWN
from ncclprobe.model.causes import Cause
from ncclprobe.model.errors import ParseError, Unlearned
from ncclprobe.model.findings import UNSEEN, Evidence, Finding, Severity, Status, Verdict, fail, note, warn
from ncclprobe.model.registry import Check, applies, check
from ncclprobe.model.report import AttainableRate, NodeRow, Setting
from ncclprobe.model.snapshot import Absent, Every, Job, Snapshot
from ncclprobe.model.values import Struct, replace
from tests import test_captures, test_cited, test_typed

Rows = Iterator[tuple[str, object]]


class First(Struct, frozen=True):
    """What the first check finds, or raises."""

    findings: tuple[Finding, ...] = ()
    error: Exception | None = None


class Second(First, frozen=True):
    """What the second check finds."""


class Joint(First, frozen=True):
    """What the comparison finds, if this is the first node's."""


def _say(fact: First) -> Iterator[Finding]:
    if fact.error:
        raise fact.error
    yield from fact.findings


def first(fact: First) -> Iterator[Finding]:
    yield from _say(fact)


def second(fact: Second) -> Iterator[Finding]:
    yield from _say(fact)


def joint(facts: Every[Joint]) -> Iterator[Finding]:
    yield from _say(next(iter(facts.by_node.values())))


def spans(launch: Launch) -> Iterator[Finding]:
    yield note("job", f"spans {launch.nnodes} nodes, {launch.several_nodes}")


def lacks(asked: RunRequest, who: Participants) -> Iterator[Finding]:
    yield from [fail("x", who.kind)] * asked.groups


def made(run: Callable[..., Iterator[Finding]], required: bool = False) -> Check:
    """Return the check that `run` makes, with a title and a remedy of its own."""
    name = run.__name__
    run.__doc__ = f"The {name} is wrong.\n\nRight: The {name} is right.\nWhy: reasons.\nFix: mend {name}."
    return replace(check(bad=tuple, good=tuple, required=required)(run), id=f"made.{name}")


@applies
def never(job: Job) -> bool:
    """on no machine at all."""
    return False


@applies
def groups(asked: RunRequest) -> bool:
    """if groups were to be measured."""
    return asked.groups


@applies
def where_known(asked: RunRequest, who: Participants | Absent) -> bool:
    """if it is known who measured."""
    return not isinstance(who, Absent)


FIRST, SECOND, JOINT, SPANS, LACKS = made(first, required=True), *map(made, (second, joint, spans, lacks))
WALL = fail("wall", "is red")
_RATE = AttainableRate(80.0, 100.0, 2, {"NCCL_A": 99.0, "NCCL_B": 98.0, "NCCL_C": 90.0, "NCCL_D": 91.0, "NCCL_E": 50.0})


_LINE = re.compile(r", line \d+")


def _told(verdicts: Sequence[Verdict]) -> object:
    """Return verdicts with all that is said, each as one line."""
    for each in verdicts:
        head = f"{each.id} {each.node} {each.status.value} {each.required} {each.title!r} {_LINE.sub('', each.why)!r}"
        found = [
            f"{f.severity.value} {f.subject}: {f.message}; {f.remedy!r} {f.action} {f.see_also!r}"
            for f in each.findings
        ]
        yield from (head, *(f"  {each}" for each in found))


def _judged(*nodes: Sequence[Any], checks: Sequence[Check] = (FIRST, SECOND, JOINT), pasted: bool = False,
            job: Job | None = None) -> object:  # fmt: skip
    """Return what is judged of nodes with these facts."""
    told = [{First if isinstance(fact, Absent) else type(fact): fact for fact in facts} for facts in nodes]
    seen = [Snapshot(f"n{number}", facts, pasted=pasted) for number, facts in enumerate(told)]
    return list(_told(judge(seen, checks, job or Job())))


def _ways(*findings: Finding, then: Sequence[Finding] = (), across: Sequence[Finding] = ()) -> Sequence[Any]:
    return First(findings), Second(tuple(then)), Joint(tuple(across))


def _judging_inputs() -> Rows:
    """The worst finding decides; what a check lacks, raises, requires or follows from another."""
    usual = (fail("a", "x"), warn("b", "y"), note("c", "z", remedy="look"))
    for number in range(4):
        for each in permutations(usual, number):
            yield f"finds {' '.join(f.severity.value for f in each)}", _judged(_ways(*each))
    gaps = {"denied": Absent("permission denied", "Denied"), "not asked": Absent("not held", "NotCaptured"),
            "gone": Absent("not there", "Missing"), "odd": Absent("a text", "ParseError")}  # fmt: skip
    errors = {"breaks": KeyError("no such colour"), "does not know": Unlearned("no colour was seen"),
              "cannot read": ParseError("no number"), "is refused": Unlearned("no", refused="NotCaptured")}  # fmt: skip
    for name, gap in gaps.items():
        for privilege in ("", "root"):
            rule = replace(FIRST, privilege=privilege)
            yield f"{name} {privilege}", _judged([gap], checks=[rule, replace(rule, required=False)])
    for name, error in errors.items():
        facts = (First(error=error), Second(error=error), Joint(error=error))
        yield name, _judged(facts, facts)
    yield "does not apply", _judged(_ways(WALL), checks=[replace(FIRST, applies=never)])
    needs = replace(SECOND, requires="made.first")
    for name, cause in (("fails", WALL), ("warns", warn("wall", "is pink")), ("notes", note("wall", "is white"))):
        for then in (WALL, warn("door", "is shut")):
            yield f"required {name}, {then.subject}", _judged(_ways(cause, then=[then]), checks=[FIRST, needs])
    unseen = [
        note("wall", f"{UNSEEN}it is gone"), note("door", f"{UNSEEN}it is gone"), note("wall", "is painted twice"),
    ]  # fmt: skip
    for name, given in (
        ("fails", [WALL]), ("warns", [warn("wall", "x")]), ("notes", [note("wall", "x")]),
        ("twice", [warn("wall", "x"), WALL]), ("both", [WALL, fail("door", "x")]), ("nothing", [])):  # fmt: skip
        across = [replace(kind(subject, "differs"), nodes=nodes) for kind in (fail, warn) for subject, nodes in (
            ("wall", ("n0",)), ("wall", ("n1",)), ("wall", ("n0", "n1")), ("wall", ()), ("door", ("n0",)),
            ("wall, door", ("n0",)), ("n0 wall", ("n0",)))]  # fmt: skip
        for other in ([], [fail("wall", "x")]):
            nodes = (_ways(*given, then=unseen, across=across), _ways(*other))
            yield f"follows, {name}, {len(other)} on n1", _judged(*nodes)
            rules = (FIRST, SECOND, replace(JOINT, requires="made.first"))
            yield f"said before, {name}, {len(other)} on n1", _judged(*nodes, checks=rules)
    only = _ways(WALL, across=[replace(fail("n0 wall", "differs"), nodes=("n0",))])
    yield "nothing is left to say", _judged(only, only, checks=(FIRST, replace(JOINT, requires="made.first")))
    costly = [
        kind(f"NCCL_{name}", "x", action=action)
        for kind in (fail, warn, note)
        for name in "ABCDEF"
        for action in ("none", "restart")
    ]
    for slows in (True, False):
        yield f"costs, slows {slows}", _judged((First(tuple(costly)), _RATE), checks=[replace(FIRST, slows=slows)])
        yield f"costs nothing, slows {slows}", _judged((First((WALL,)), _RATE), checks=[replace(FIRST, slows=slows)])
    texts = [
        f"{UNSEEN}no text", "the ring could not be read", f"so {NOT_SHOWN}", "it could not be read twice", "is white",
    ]  # fmt: skip
    for each in [[one] for one in texts] + [texts, texts[::-1], texts[1:3]]:
        for more in ((), (warn("x", texts[0]),), (fail("x", texts[0]),)):
            found = [*(note(f"s{number}", text) for number, text in enumerate(each)), *more]
            yield f"pasted {len(each)} {each[0][:9]} {len(more)}", _judged(_ways(*found), checks=[FIRST], pasted=True)
    yield "pasted, not shown", _judged([Absent(NOT_SHOWN, "NotCaptured")], checks=[FIRST], pasted=True)


def _together_inputs() -> Rows:
    """How many nodes a job has, if its launcher does not say: those that are judged together, each machine once."""
    launches = {"alone": [Launch()], "two": [Launch(), Launch()], "one says": [Launch("torchrun", nnodes=1), Launch()],
                "a world": [Launch("environment", 0, 2), Launch("options", nnodes=2)], "three": [Launch()] * 3,
                "unknown": [Absent("no"), Launch()]}  # fmt: skip
    for name, own in launches.items():
        for job in (Job(), Job(local=True), Job(apart=True)):
            nodes = [Snapshot(f"n{at}", {Launch: each}) for at, each in enumerate(own)]
            yield f"{name}, {job.local} {job.apart}", list(_told(judge(nodes, [SPANS], job)))
    for machines in (
        "aa",
        "aab",
        "ab",
        "aA",
        "aa-",
        "--",
        "-",
    ):  # a capital: a container with a network of its own there
        facts = [{Launch: Launch(), **({} if each == "-" else {
            System: System("node", "6.8.0", "x86_64", "Ubuntu 22.04", each.lower()),
            Process: Process(ResourceLimit(None, None), (0,), (0,), frozenset(), True, {"net": ord(each)}),
        })} for each in machines]  # fmt: skip
        nodes = [Snapshot(f"n{at}", each) for at, each in enumerate(facts)]
        yield machines, list(_told(judge(nodes, [SPANS], Job())))


def _of_runs_inputs() -> Rows:
    """What a run lacks is unknown and required, and judged once, of no node; what nobody asked for is skipped."""
    who, gap = Participants("self", 2, ("n0",) * 2), Absent("not captured", "NotCaptured")
    for asked in (RunRequest(), RunRequest(groups=True), gap, None):
        for joined in (who, gap, Absent("denied", "Denied"), None):
            run = {kind: fact for kind, fact in ((RunRequest, asked), (Participants, joined)) if fact}
            for condition in (None, groups, where_known):
                nodes = [[Snapshot(f"n{at}", {}) for at in range(count)] for count in (0, 1, 2)]
                told = [list(_told(judge(each, [replace(LACKS, applies=condition)], Job(), run))) for each in nodes]
                yield f"{asked and type(asked).__name__} {joined} {condition and condition.words}"[:90], told


def _suppressed_inputs() -> Rows:
    """Which checks patterns select, which findings they hide, and what is then concluded."""
    verdict = Verdict("made.first", "n0", Status.FAIL, "t", findings=(WALL, warn("door=2", "x"), note("wall", "y")))
    others = [
        replace(verdict, findings=()), replace(verdict, id="ib.state"),
        replace(verdict, status=Status.PASS, findings=(note("wall", "z"),))]  # fmt: skip
    for patterns in (["made.*=wall"], ["made.first=door=2"], ["made.first=d*", "made.first=w*"], ["*=*"],
                     ["made.first"], ["ib.state=wall"], ["made.f=wall"], ["made.first=wal"], []):  # fmt: skip
        kept, left_out = suppress([verdict, *others], patterns)
        yield f"{patterns}", (list(_told(kept)), [f"{each.id} {each.subject} {each.reason}" for each in left_out])
        chosen = [selected([FIRST, replace(SECOND, part="x")], *given) for given in ((patterns,), ((), patterns))]
        yield f"select and ignore {patterns}", [[each.key for each in own] for own in chosen]
    every = [Verdict("a.b", "n", status, "t", required=required) for status in Status for required in (True, False)]
    for count in range(3):
        for few in combinations_with_replacement(every, count):
            ends = [conclude(few, on, inconclusive=sure) for on in ("fail", "warn") for sure in (False, True)]
            name = " ".join(f"{v.status.value}{'!' * v.required}" for v in few)
            yield f"conclude {name}", [f"{status.value}/{code:d}" for status, code in ends]


def _one_job_inputs() -> Rows:
    """Which captures are of one job, when their settings are not judged, and how a report speaks of its nodes."""
    for number, nodes in enumerate(test_captures.NODES):
        yield f"{number}", captures.is_one_job(nodes)
    question = diagnose.ask(diagnose.Judging(), ("doctor",), Job())
    told = {name: Settings({name: Setting(name, "1", "environment")} if name else {}) for name in ("NCCL_A", "")}
    for own in ([], ["NCCL_A"], [""], ["", ""], ["", "NCCL_A"], ["NCCL_A", ""], ["", None], [None, ""], [None]):
        for pasted in (range(len(own)), range(1)):
            nodes = [Snapshot(f"n{at}", {Settings: told[name]} if name is not None else {}, pasted=at in pasted)
                     for at, name in enumerate(own)]  # fmt: skip
            report = captures.judge_snapshots(question, nodes, one_job=True)
            checks = {each.id.partition(".")[0] for each in report.checks}
            yield f"settings {own}, {len(pasted)} pasted", (sorted(checks), report.notes, report.missing_nodes)
    words = "This node is red, this machine too; of this machine type, This machine is not"
    said = samples.verdict(Status.FAIL, fail("x", words, remedy=words), why=words)
    for names in (("n1",), ("n1", "n2"), ()):
        rows = tuple(NodeRow(name, 0, name, Status.FAIL) for name in names)
        report = captures.spoken(replace(samples.report(replace(said, title=words)), nodes=rows))
        yield f"spoken of {names}", list(_told(report.checks))


def _typed_inputs() -> Rows:
    """The first value of a fact that is not what its type says."""
    for number, value in enumerate(test_typed.VALUES):
        yield f"{number}", test_typed.wrong(value)


def _broken_inputs() -> Rows:
    """Which promises a check breaks; and what reports say of the causes that checks of the doctor find."""
    text = "The wall is wrong.\n\nRight: {}\nWhy: {}\nFix: {}"
    whole = ("The wall is right.", "a reason that is longer than forty letters, as it must be", "mend it.")
    told, good = Finding(Severity.FAIL, "x", "y", "node", "repair", evidence=(Evidence("z"),)), First()
    bad = {"whole": told, "a note": replace(told, severity=Severity.NOTE), "no subject": replace(told, subject=""),
           "no message": replace(told, message=""), "no evidence": replace(told, evidence=()),
           "nobody": replace(told, blame="unknown", action="none"), "to do": replace(told, blame="unknown"),
           "to blame": replace(told, action="none")}  # fmt: skip
    for name, finding in bad.items():
        yield f"finds {name}", list(promises.broken(_promising(text.format(*whole), [First((finding,))], [good])))
    for name, words in {"no right": ("", *whole[1:]), "no why": (whole[0], "", whole[2]), "no fix": (*whole[:2], ""),
                        "40": (whole[0], "w" * 39 + ".", whole[2]), "41": (whole[0], "w" * 40 + ".", whole[2]),
                        "same": ("The wall is wrong.", *whole[1:])}.items():  # fmt: skip
        yield name, list(promises.broken(_promising(text.format(*words), [First((told,))], [good])))
    mixed = First((replace(told, severity=Severity.NOTE), replace(told, severity=Severity.WARN)))
    raising = [[First(error=KeyError(name))] for name in "xy"]
    for name, worse, better in (("no bad", [], [good]), ("no good", [mixed], []), ("raises", *raising),
                                ("good objects", [mixed], [good, mixed])):  # fmt: skip
        yield name, list(promises.broken(_promising(text.format(*whole), worse, better)))
    rule = _promising(text.format(*whole), [mixed], [good])
    for id in ("a.b", "A.b", "a", "a.b-c", "a.b_c", "a.b.c", "9.b"):
        yield f"id {id}", list(promises.broken(replace(rule, id=id)))
    yield "never", list(promises.broken(replace(rule, applies=never)))
    yield "no need", list(promises.broken(replace(rule, needs=(), run=lambda: ())))
    yield "no need, raises", list(promises.broken(replace(rule, needs=(), run=lambda: 1 / 0)))
    blind = tuple(replace(need, accepts_absent=True) for need in rule.needs)
    yield "passes unlooked", list(promises.broken(replace(rule, needs=blind, run=lambda _: iter(()))))
    causes = [Cause("c", "log.x", "named", "m", doctor=doctor) for doctor in ("", "made.first", "no.check")]
    kinds = (Status.PASS, Status.FAIL, Status.PASS, Status.WARN, Status.SKIP, Status.UNKNOWN, Status.FAIL, Status.FAIL)
    at = (None, "n1", "n1", "n2", "n2", "n3", "n4", "n5")
    said = [Verdict("made.first", node, status, "t", findings=(fail("x", f"m{n}"), fail("x", "z")) if n % 2 else ())
            for n, (node, status) in enumerate(zip(at, kinds, strict=True))]  # fmt: skip
    for name, sources in {"none": {}, "one": {"r.json": said}, "two": {"r.json": said[:2], "captures": said[3:]},
                          "other": {"r.json": [replace(said[0], id="other")]}}.items():  # fmt: skip
        yield f"causes, {name}", [each.checked for each in add_verdicts(causes, sources)]


def _promising(text: str, bad: Sequence[First], good: Sequence[First]) -> Check:
    def wall(fact: First) -> Iterator[Finding]:
        yield from _say(fact)

    wall.__doc__ = text
    rule = check(bad=lambda: [(each,) for each in bad], good=lambda: [(each,) for each in good])(wall)
    return replace(rule, id="made.wall")


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "judging": _judging_inputs, "together": _together_inputs, "of-runs": _of_runs_inputs,
    "suppressed": _suppressed_inputs, "one-job": _one_job_inputs, "typed": _typed_inputs, "excerpts": test_cited.cited,
    "broken": _broken_inputs,
}  # fmt: skip
