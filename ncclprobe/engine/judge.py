"""From facts to verdicts, a status and an exit code.

The rules that make a verdict trustworthy: a check whose facts are absent is UNKNOWN and never PASS; a required check
that is UNKNOWN makes the whole run inconclusive; a consequence of a failure that another check already explains is
SKIP; a check that raises spoils only its own verdict.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ncclprobe.engine.collect import Facts, add_choices, arguments, of_node, prescriptions
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.nvidia_smi import UNTOLD
from ncclprobe.facts.process import Process, Stack, stack_of
from ncclprobe.host.capture import NOT_SHOWN
from ncclprobe.model.errors import NotCaptured, ParseError, Unlearned
from ncclprobe.model.findings import (
    UNSEEN,
    WORTH_SAYING,
    ExitCode,
    Finding,
    Related,
    Severity,
    Status,
    Suppression,
    Verdict,
    severity_of,
)
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import Check, Need
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks, Snapshot, learned
from ncclprobe.model.values import Struct, grouped, replace

_MOST_DIFFERENT = 256
"""Different facts for which a check's verdicts are cached: if this many nodes differ, the next one will too."""


def _all_facts(snapshots: Sequence[Snapshot], job: Job, run: Facts, need: Need) -> Any:
    """Return the argument of a comparison. Nodes whose fact is absent are included only if the check accepts that."""
    if need.fact is Job:
        return job
    if need.of in ("run", "job", "files"):
        return of_node(run, need)
    if need.of == "ranks":
        return Ranks({s.node: {r: of_node(facts, need) for r, facts in s.ranks.items()} for s in snapshots})
    said = {s.node: of_node(s.facts, need) for s in snapshots}
    known = {node: fact for node, fact in said.items() if need.accepts_absent or not isinstance(fact, Absent)}
    return Every(known) if known or not said else next(iter(said.values()))


def judge(
    snapshots: Sequence[Snapshot], checks: Sequence[Check], job: Job, run: Facts | None = None
) -> tuple[Verdict, ...]:
    """Return the verdicts of every check on every node, in the order of `checks`, node by node; then the comparisons.

    `run`: the facts of a measuring run, for the checks that judge it.
    """
    snapshots = add_choices(snapshots, checks)
    known, alone = Judged(), [check for check in checks if not check.compares]
    own = [
        verdict
        for snapshot in one_job_snapshots(snapshots, job)
        for verdict in _node_verdicts(snapshot, alone, job, known)
    ]
    by_key = {check.key: check for check in checks}
    joint = compare(snapshots, checks, job, run)
    # The cause of a finding is one as grave or worse on the same subject of the same node. What follows from it, that
    # the subject could not be looked at or that the node differs from others in it, names it and has no remedy of its
    # own.
    verdicts = (*own, *(_drop_explained(by_key[each.key], each, own) for each in joint))
    causes: dict[tuple[str | None, str], list[tuple[int, Related]]] = {}
    for v in verdicts:
        for f in v.findings if v.node is not None and v.status in (Status.WARN, Status.FAIL) else ():
            causes.setdefault((v.node, f.subject), []).append((_GRAVEST.index(f.severity), Related(v.id, f.subject)))
    return tuple(_following(v, causes) if v.findings and causes else v for v in verdicts)


def _node_verdicts(snapshot: Snapshot, checks: Sequence[Check], job: Job, known: "Judged") -> Sequence[Verdict]:
    """Return the verdicts of single-node checks on this node: a worker's, and the rest."""
    if len(snapshot.said) in (0, len(checks)):
        return snapshot.said or judge_node(snapshot, checks, job, known)
    said = {verdict.key: verdict for verdict in snapshot.said}
    rest = judge_node(snapshot, [check for check in checks if check.key not in said], job, known)
    said |= {verdict.key: verdict for verdict in rest}
    return [said[check.key] for check in checks]


def one_job_snapshots(snapshots: Sequence[Snapshot], job: Job) -> list[Snapshot]:
    """Return `snapshots` as nodes of one job: without a launcher, nodes judged together are assumed to run together.

    With --local they are not, nor if each is judged by itself. Snapshots of one machine's network are one node,
    examined more than once.
    """
    several = together(snapshots, job)
    wide: dict[int, Launch] = {}
    return [each if each.said else widened(each, several, wide) for each in snapshots]


def together(snapshots: Sequence[Snapshot], job: Job) -> int:
    """Return the number of distinct networks of the job's nodes; 1: each is judged by itself."""
    networks = {each.node: _network(each) for each in snapshots}
    several = len({network if None not in network else node for node, network in networks.items()})
    return 1 if job.local or job.apart else several


def widened(snapshot: Snapshot, several: int, wide: dict[int, Launch]) -> Snapshot:
    """Return `snapshot` in a job of `several` nodes, if its launcher does not report their number.

    `wide`: a cache, so that equal facts stay identical and their verdicts are known.
    """
    launch = snapshot.facts.get(Launch)
    known = not isinstance(launch, Launch) or launch.nnodes is not None or launch.world_size is not None
    if several == 1 or not isinstance(launch, Launch) or known:
        return snapshot
    changed = wide.setdefault(id(launch), replace(launch, nnodes=several))
    return replace(snapshot, facts={**snapshot.facts, Launch: changed})


def _network(snapshot: Snapshot) -> Stack:
    gap = Absent("not asked")
    return stack_of(snapshot.facts.get(System, gap), snapshot.facts.get(Process, gap))


_GRAVEST = (Severity.FAIL, Severity.WARN, Severity.NOTE)


def _following(verdict: Verdict, causes: Mapping[tuple[str | None, str], list[tuple[int, Related]]]) -> Verdict:
    found = tuple(_link_to_cause(verdict, finding, causes) for finding in verdict.findings)
    return verdict if found == verdict.findings else replace(verdict, findings=found)


def _link_to_cause(
    verdict: Verdict, finding: Finding, causes: Mapping[tuple[str | None, str], list[tuple[int, Related]]]
) -> Finding:
    if verdict.node is not None and not finding.message.startswith(UNSEEN):
        return finding
    nodes = (verdict.node,) if verdict.node is not None else finding.nodes
    subjects = finding.subject.split(", ")
    grave = [
        [cause for number, cause in causes.get((node, subject), ()) if number <= _GRAVEST.index(finding.severity)]
        for node in nodes
        for subject in subjects
    ]
    if not grave or not all(grave):
        return finding
    return replace(finding, related=(*finding.related, *dict.fromkeys(each[0] for each in grave)), remedy="")


def _drop_explained(check: Check, verdict: Verdict, own: Sequence[Verdict]) -> Verdict:
    """Drop findings of a comparison that the check it requires already reports on the same subject and nodes."""
    if not (check.requires and verdict.findings):
        return verdict
    failed = {
        (each.node, finding.subject)
        for each in own
        if each.key == check.requires and each.status is Status.FAIL
        for finding in each.findings
    }
    left = tuple(each for each in verdict.findings if not _said_before(each, failed))
    if left == verdict.findings:
        return verdict
    if not left:
        why = f"explained by {check.cause_id}"
        return check.titled(replace(verdict, status=Status.SKIP, why=why, findings=()))
    return check.titled(replace(verdict, status=worst(left), findings=left))


def _said_before(finding: Finding, failed: Collection[tuple[str | None, str]]) -> bool:
    """Return whether each of its nodes failed with the same subject, which a comparison names after its nodes."""
    subject = finding.subject.rpartition(" ")[2]
    return bool(finding.nodes) and all((node, subject) in failed for node in finding.nodes)


class Judged:
    """Cached verdicts by facts. Nodes of a fleet share equal facts, and a check is a pure function of them.

    Facts are distinguished by identity, which costs nothing; an entry keeps its facts alive, so that no other gets
    their ids.
    """

    def __init__(self) -> None:
        self._said: dict[str, dict[tuple[Any, ...], tuple[Sequence[Any], Verdict]]] = {}

    def judge(self, check: Check, node: str, look: Callable[[Need], Any]) -> Verdict:
        """Return `check`'s verdict on `node`; `look` finds its facts."""
        needs = (*check.applies.needs, *check.needs) if check.applies else check.needs
        facts = [look(need) for need in needs]
        key = tuple([fact if isinstance(fact, Absent) else id(fact) for fact in facts])
        said = self._said.setdefault(check.key, {})
        if key not in said:
            if len(said) >= _MOST_DIFFERENT:
                return _judge_one(check, node, look)
            said[key] = facts, _judge_one(check, node, look)
        return said_of(node, said[key][1])


def said_of(node: str, verdict: Verdict) -> Verdict:
    """Return `verdict` for `node`; spelled out, because `replace` takes four times as long."""
    v = verdict
    return v if v.node == node else Verdict(v.id, node, v.status, v.title, v.why, v.required, v.findings, v.part)


def judge_node(
    snapshot: Snapshot, checks: Sequence[Check], job: Job, known: Judged | None = None
) -> tuple[Verdict, ...]:
    """Return the verdicts of single-node checks on this node. `known`: the cache from others."""
    own, known = [c for c in checks if not c.compares], known or Judged()
    (snapshot,) = add_choices([snapshot], own)
    look = partial(of_node, {**snapshot.facts, Job: job})
    cost = learned(snapshot.facts, AttainableRate)
    first = {c.key: _add_cost(c, known.judge(c, snapshot.node, look), cost) for c in own}
    told = {c.key: _skip_if_explained(c, first) for c in own}
    loud = [told[c.key] for c in own if not c.last]
    others = [told[c.key] for c in own if c.key != _COSTS]
    said = {c.key: _drop_repeated(c, told[c.key], others if c.key == _COSTS else loud) for c in own}
    prescribed = prescriptions(snapshot.facts) if any(map(_warns_of_a_setting, said.values())) else {}
    verdicts = tuple(c.titled(_excuse_prescribed(c, said[c.key], prescribed)) for c in own)
    return tuple(map(_excuse_unshown, verdicts)) if snapshot.pasted else verdicts


_UNREAD = re.compile(f"^{UNSEEN}|could not be read$|{NOT_SHOWN}")
"""How a note says that the texts do not show a subject."""


def _excuse_unshown(verdict: Verdict) -> Verdict:
    """Make a verdict on pasted texts advisory, if they do not show what it needs."""
    blank = [each for each in verdict.findings if each.severity is Severity.NOTE and _UNREAD.search(each.message)]
    if blank and verdict.status is Status.PASS:
        why = blank[0].message.removeprefix(UNSEEN)
        seen = tuple(each for each in verdict.findings if each not in blank)
        return replace(verdict, status=Status.UNKNOWN, required=False, why=why, findings=seen)
    unseen = NOT_SHOWN in verdict.why or UNTOLD in verdict.why
    why = NOT_SHOWN if UNTOLD in verdict.why else verdict.why
    return replace(verdict, required=verdict.required and not unseen, why=why)


_COSTS = "env.transport/cost"
"""The check that states the cost of each setting, unless another check objects to the setting."""


def _add_cost(check: Check, verdict: Verdict, cost: AttainableRate | None) -> Verdict:
    """Add the cost of settings to a verdict, and raise its severity accordingly; never lower it.

    Only for checks of what makes transfers slower (``slows``): others object to something else about a setting.
    """
    named = cost and any(f.subject in cost.settings for f in verdict.findings)
    if cost is None or not named or verdict.key == _COSTS or not check.slows:
        return verdict
    findings = tuple(_costing(f, cost) if f.subject in cost.settings else f for f in verdict.findings)
    return replace(verdict, status=worst(findings), findings=findings)


def _costing(finding: Finding, cost: AttainableRate) -> Finding:
    lost = cost.lost(finding.subject)
    if lost < WORTH_SAYING:
        return finding
    grave = min(finding.severity, severity_of(lost), key=_GRAVEST.index)
    action = "fix-job" if grave is not Severity.NOTE and finding.action == "none" else finding.action
    return replace(finding, severity=grave, action=action, message=f"{finding.message}; {cost.cost(finding.subject)}")


def _warns_of_a_setting(verdict: Verdict) -> bool:
    return verdict.status is Status.WARN and any(f.subject.isupper() for f in verdict.findings)


def _excuse_prescribed(check: Check, verdict: Verdict, prescribed: Mapping[str, str]) -> Verdict:
    """Turn warnings about settings that the network's vendor prescribes into notes."""
    if not _warns_of_a_setting(verdict) or (check.last and check.key != _COSTS) or not prescribed:
        return verdict
    findings = tuple(
        replace(f, severity=Severity.NOTE, message=f"{f.message}; {prescribed[f.subject]}")
        if f.severity is Severity.WARN and f.subject in prescribed
        else f
        for f in verdict.findings
    )
    return replace(verdict, status=worst(findings), findings=findings)


def _drop_repeated(check: Check, verdict: Verdict, others: Sequence[Verdict]) -> Verdict:
    """Drop findings of a ``last`` check that others report on the same subject, as severe or worse."""
    if not (check.last and verdict.findings):
        return verdict
    grave = [each for each in others if each.status in (Status.WARN, Status.FAIL)]
    said = {(f.subject, f.severity): each.id for each in grave for f in each.findings}
    by = [said.get((f.subject, Severity.FAIL)) or said.get((f.subject, f.severity)) for f in verdict.findings]
    left = tuple(finding for finding, name in zip(verdict.findings, by, strict=True) if not name)
    if not left:
        why = f"explained by {by[0]}"
        return replace(verdict, status=Status.SKIP, why=why, findings=())
    return replace(verdict, status=worst(left), findings=left)


def compare(
    snapshots: Sequence[Snapshot], checks: Sequence[Check], job: Job, run: Facts | None = None
) -> tuple[Verdict, ...]:
    """Return the verdicts of the checks over :class:`Every` node and over the run, each judged once.

    `snapshots` need only the facts that these checks use.
    """
    joint = [c for c in checks if c.compares]
    snapshots = add_choices(snapshots, joint)
    first = {c.key: _compare_one(c, snapshots, job, run or {}) for c in joint}
    return tuple(c.titled(_skip_if_explained(c, first)) for c in joint)


def _compare_one(check: Check, snapshots: Sequence[Snapshot], job: Job, run: Facts) -> Verdict:
    """Judge one comparison. If the known facts agree but some node's fact is unknown, that is not agreement."""
    verdict = _judge_one(check, None, partial(_all_facts, snapshots, job, run))
    needed = [need for need in check.needs if need.of == "nodes" and not need.accepts_absent]
    facts = ((of_node(each.facts, need), each.node) for each in snapshots for need in needed)
    gaps = grouped((fact, node) for fact, node in facts if isinstance(fact, Absent))
    if verdict.status not in (Status.PASS, Status.WARN, Status.FAIL) or not gaps:
        return verdict
    told = [replace(gap, why=f"unknown on {fold(dict.fromkeys(nodes))}: {gap.why}") for gap, nodes in gaps.items()]
    if verdict.status is not Status.PASS:  # what was found stands, and is not all that there may be
        return replace(verdict, why="; ".join(each.why for each in told))
    return _unknown(verdict, told, check.privilege)


def _judge_one(check: Check, node: str | None, look: Callable[[Need], Any]) -> Verdict:
    blank = Verdict(check.id, node, Status.UNKNOWN, check.title, required=check.required, part=check.part)
    try:
        if check.applies:
            given, missing = arguments(check.applies.needs, look)
            if missing:
                return _unknown_for_gaps(check, blank, missing)
            if not check.applies.run(*given):
                return replace(blank, status=Status.SKIP, why=f"applies only {check.applies.words}")
        given, missing = arguments(check.needs, look)
        if missing:
            return _unknown_for_gaps(check, blank, missing)
        findings = tuple(check.run(*given))
        return replace(blank, status=worst(findings), findings=tuple(_add_remedy(f, check) for f in findings))
    except (Unlearned, ParseError) as gap:  # a fact does not say, or says what cannot be read
        refused = gap.refused if isinstance(gap, Unlearned) else ""
        return _unknown(blank, [Absent(str(gap), refused)], check.privilege)
    except Exception as error:  # noqa: BLE001 - one check's bug must not take the other verdicts with it
        import traceback  # of a check that is broken, and costs a millisecond of every start

        where = traceback.extract_tb(error.__traceback__)[-1]
        why = f"the check itself failed: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return replace(blank, why=why)


def _unknown_for_gaps(check: Check, blank: Verdict, missing: Sequence[Absent]) -> Verdict:
    """Return UNKNOWN for lack of facts. A missing measurement that was requested is required, whatever the check
    declares.
    """
    verdict = _unknown(blank, missing, check.privilege)
    return replace(verdict, required=True) if check.of_run else verdict


def _unknown(blank: Verdict, missing: Sequence[Absent], privilege: str) -> Verdict:
    why = "; ".join(dict.fromkeys(fact.why for fact in missing))
    if privilege and any(fact.refused == "Denied" for fact in missing):
        why += f" (needs {privilege})"
    never_asked = all(fact.refused == NotCaptured.__name__ for fact in missing)
    return replace(blank, status=Status.UNKNOWN, why=why, required=blank.required and not never_asked)


def _add_remedy(finding: Finding, check: Check) -> Finding:
    return finding if finding.remedy else replace(finding, remedy=check.fix)


def worst(findings: Iterable[Finding]) -> Status:
    """Return the status of a check with these findings."""
    severities = {finding.severity for finding in findings}
    if Severity.FAIL in severities:
        return Status.FAIL
    return Status.WARN if Severity.WARN in severities else Status.PASS


def _skip_if_explained(check: Check, verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return `check`'s verdict, or SKIP if the failure of the check that it requires explains it."""
    verdict, cause = verdicts[check.key], verdicts.get(check.requires)
    if cause and cause.status is Status.FAIL and verdict.status in (Status.WARN, Status.FAIL, Status.UNKNOWN):
        return replace(verdict, status=Status.SKIP, why=f"explained by {check.cause_id}", findings=())
    return verdict


def selected(checks: Sequence[Check], select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Check, ...]:
    """Return the checks whose id or key matches one of `select` (empty: all) and no whole-check pattern of `ignore`."""
    whole = [pattern for pattern in ignore if "=" not in pattern]
    return tuple(c for c in checks if (not select or _matches(c, select)) and not _matches(c, whole))


def _matches(check: Check, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in (check.id, check.key))


def suppress(verdicts: Sequence[Verdict], ignore: Sequence[str]) -> tuple[tuple[Verdict, ...], tuple[Suppression, ...]]:
    """Drop the findings that ``id=subject`` patterns name; also return the list of what was dropped."""
    pairs = [tuple(pattern.split("=", 1)) for pattern in ignore if "=" in pattern]
    kept, left_out = [], []
    for verdict in verdicts:
        hidden = [
            f
            for f in verdict.findings
            if any(fnmatch.fnmatchcase(verdict.id, i) and fnmatch.fnmatchcase(f.subject, s) for i, s in pairs)
        ]
        if hidden:
            left_out += [Suppression(verdict.id, f.subject, "--ignore") for f in hidden]
            findings = tuple(f for f in verdict.findings if f not in hidden)
            # It passes only because some are suppressed: the title says so.
            status = worst(findings)
            passes = status is Status.PASS and verdict.status is not Status.PASS
            verdict = replace(
                verdict,
                findings=findings,
                status=status,
                title=f"Suppressed: {verdict.title}" * passes or verdict.title,
            )
        kept.append(verdict)
    return tuple(kept), tuple(left_out)


def conclude(verdicts: Sequence[Verdict], fail_on: str = "fail", inconclusive: bool = False) -> tuple[Status, ExitCode]:
    """Return the status of a run and the exit code for a gate (docs/reference/exit-codes.md).

    `inconclusive`: the caller knows that something required is missing: a node, or a verdict on a number.
    """
    found = {verdict.status for verdict in verdicts}
    blind = any(v.status is Status.UNKNOWN and v.required for v in verdicts)
    return _conclude(found, fail_on, inconclusive or blind)


def _conclude(found: Collection[Status], fail_on: str, inconclusive: bool) -> tuple[Status, ExitCode]:
    found = {*found}
    if Status.FAIL in found:
        return Status.FAIL, ExitCode.FAIL
    if Status.WARN in found and fail_on == "warn":
        return Status.WARN, ExitCode.FAIL
    if inconclusive or not found & {Status.PASS, Status.WARN}:
        return Status.UNKNOWN, ExitCode.INCONCLUSIVE
    return (Status.WARN if Status.WARN in found else Status.PASS), ExitCode.OK


class Share(Struct, frozen=True):
    """A node's share of a run: its own verdicts, and others' findings about it or about the whole job.

    `worst`: the first failing finding, with the id of its check.
    """

    status: Status
    exit_code: ExitCode
    worst: tuple[str, Finding] | None = None


def shares(
    nodes: Collection[str], verdicts: Sequence[Verdict], fail_on: str, *, apart: bool = False
) -> dict[str, Share]:
    """Return each node's share of the verdicts, in one pass over all of them.

    A finding stops every node if the job is to blame, or if it names none of the nodes present: a comparison that
    cannot name a node, a node that never arrived (docs/reference/exit-codes.md). What a comparison could not learn
    concerns the report on all nodes. A node without verdicts of its own, because only comparisons were selected, shares
    in these: see :func:`_compared`. Nodes that are judged `apart` share nothing.
    """
    found: dict[str, set[Status]] = {node: set() for node in (*nodes, _EVERYBODY)}
    first: dict[str, tuple[int, str, Finding]] = {}
    here = {*nodes}
    for number, verdict in enumerate(verdicts):
        own = {verdict.node} if verdict.node and verdict.node in found else set()
        for node in own:
            found[node].add(verdict.status)
        for finding in verdict.findings:
            concerned = found.keys() & set(finding.nodes)
            if not apart and (finding.blame == "job" or not (verdict.node or here & set(finding.nodes))):
                concerned.add(_EVERYBODY)
            for node in concerned:
                found[node].add(worst([finding]))
            for node in concerned | own if finding.severity is Severity.FAIL else ():
                first.setdefault(node, (number, verdict.id, finding))
    blind = {v.node for v in verdicts if v.status is Status.UNKNOWN and v.required}
    bare = {*nodes} - {verdict.node for verdict in verdicts}
    for node in bare:
        # A comparison that found something has looked at these nodes too, and found nothing, unless `why` names them as
        # unknown.
        joint = [verdict for verdict in verdicts if verdict.node is None]
        looked = {Status.PASS for v in joint if v.status in (Status.PASS, Status.WARN, Status.FAIL) and not v.why}
        found[node] |= looked | {v.status for v in joint if v.status in (Status.UNKNOWN, Status.SKIP)}
    blind |= bare if None in blind else set()
    return {node: _share(node, found, first, fail_on, node in blind) for node in nodes}


_EVERYBODY = ""


def _share(
    node: str,
    found: Mapping[str, set[Status]],
    worst: Mapping[str, tuple[int, str, Finding]],
    fail_on: str,
    blind: bool,
) -> Share:
    status, code = _conclude(found[node] | found[_EVERYBODY], fail_on, blind)
    first = min((worst[name] for name in (node, _EVERYBODY) if name in worst), default=None, key=lambda each: each[0])
    return Share(status, code, first and first[1:])


def coverage(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Count the verdicts by status; every status is present, even at zero."""
    counts = Counter(verdict.status for verdict in verdicts)
    return {status.value: counts[status] for status in Status}
