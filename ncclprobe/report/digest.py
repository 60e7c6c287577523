"""A report in few words: its headline and its conclusion; findings and gaps merged over nodes and subjects."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ncclprobe.model.findings import Action, Blame, Finding, Severity, Status, nodes_of, own_node
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import first_of, shorten
from ncclprobe.model.measurement import Judged
from ncclprobe.model.report import Report
from ncclprobe.model.units import plural
from ncclprobe.model.values import grouped, replace

_LOUDEST_FIRST = (Severity.FAIL, Severity.WARN, Severity.NOTE)
_MOST_CHARACTERS = 200

MOST_NAMED = 3
OF_SOCKETS = ("env.transport/transport", "ib.perm")
"""Checks that warn if one node runs well but several would use sockets."""
_WHOSE: Mapping[Blame, str] = {
    "node": "{node} {is_} at fault",
    "link": "A link of {node} is at fault",
    "fabric": "The network between the nodes is at fault",
    "image": "The image or the system settings on {node} are at fault",
    "job": "The job's settings are at fault",
    "unknown": "It is unknown what is at fault",
}
_NEXT: Mapping[Action, str] = {
    "fix-job": "; correct them",
    "fix-image": "; correct them",
    "retest": "; test again before you act",
    "repair": "; repair it",
    "restart": "; restart it",
    "none": "",
}
_AS_MOST = "read from "
"""How most findings are known; this is not mentioned."""
_VERBS = ("is", "are", "has", "have")
_SENTENCE_ENDS, _BRACKETS = r";|\. ", r",? \([^()]*\)"
_SAYS = rf"(?:{'|'.join(_VERBS)}) [A-Za-z]+$|\S+ +\S+ +\S"
"""A verb with a word that is not a value, or three words."""
_COMMAND = r"`([^`]{4,200})`"
_LINK = r"^([a-z][a-z0-9_]{1,30}[0-9](?::[0-9]{1,3})?)$|\(([a-z][a-z0-9_]{1,30}[0-9](?::[0-9]{1,3})?)\)$"
"""The port or interface that a subject names: ``mlx5_3:1``, ``n2 rail 5 (mlx5_5:1)``."""
_SETTING = r"(?<![\w`$-])[A-Z][A-Z0-9_]{3,40}=[^\s`<>…;)]{1,1000}"


class Problem(NamedTuple):
    """A finding of the check `id` on each of `nodes`; empty: it concerns the job, or names its nodes itself.

    `subjects`: all subjects of the same finding; `finding` is the first one's. `consequences`: one line each:
    ``nvl.links GPU6: not looked at: GPU is lost``.
    """

    id: str
    finding: Finding
    nodes: tuple[str, ...]
    subjects: tuple[str, ...]
    consequences: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Return the subjects on one line: ``GPU[4-7]``."""
        return folded(self.subjects) if len(self.subjects) > 1 else self.subjects[0]


class Gap(NamedTuple):
    """Checks that could not look: their ids, whether one of them is required, on which nodes and why."""

    ids: tuple[str, ...]
    required: bool
    nodes: tuple[str, ...]
    why: str


def blame_of(problem: Problem) -> str:
    """Describe whose fault a problem is; with several subjects no single link is named."""
    several = len(problem.subjects) > 1
    return blamed(replace(problem.finding, subject="") if several else problem.finding, problem.nodes)


def blamed(finding: Finding, nodes: Sequence[str] = ()) -> str:
    """Describe whose fault it is, how certain that is, and what to do: ``n5 is at fault (seen once); repair it``.

    `nodes`: those on which it was found, unless the finding names nodes itself. The certainty is omitted if it was
    simply read.
    """
    names = finding.nodes or nodes
    whose = _WHOSE[finding.blame].format(node=folded(names) or "this node", is_="are" if len(names) > 1 else "is")
    found = re.search(_LINK, finding.subject) if finding.blame == "link" and len(names) == 1 else None
    if found and finding.subject != names[0]:
        whose = f"The link {found[1] or found[2]} of {names[0]} is at fault"
    whose = whose if names else f"{whose[0].upper()}{whose[1:]}"  # names keep their spelling
    sure = "" if finding.confidence.how.startswith(_AS_MOST) else f" ({finding.confidence.how})"
    step = _NEXT[finding.action]
    if finding.action in ("fix-job", "fix-image") and finding.blame not in ("job", "image"):
        step = f"; correct {'their' if finding.blame == 'node' and len(names) > 1 else 'its'} settings"
    return f"{whose}{sure}{step}."


def problems(report: Report) -> list[Problem]:
    """Return every finding once, ordered by cost: what stops a job, then what slows it and by how much, then risks.

    Subjects with equal findings on the same nodes are merged into one problem; ranks also across nodes.
    """
    where: dict[tuple[str, Finding], list[str]] = {}
    known = {(verdict.id, finding.subject) for verdict in report.checks for finding in verdict.findings}
    for verdict in report.checks:
        for finding in verdict.findings:
            caused = finding.related and not finding.remedy
            if bool(caused) and all((each.id, each.subject) in known for each in finding.related):
                continue
            where.setdefault((verdict.id, finding), []).extend(own_node(verdict))
    groups: dict[tuple[object, ...], tuple[Finding, dict[str, None], dict[str, None]]] = {}
    for (name, finding), nodes in where.items():
        _, on_nodes, subjects = groups.setdefault(_likeness(name, finding, nodes), (finding, {}, {}))
        on_nodes.update(dict.fromkeys(nodes))
        subjects[finding.subject] = None
    so = _consequences(report)
    found = []
    for key, (first, on_nodes, subjects) in groups.items():
        name = str(key[0])
        follows = dict.fromkeys(line for subject in subjects for line in so.get((name, subject), ()))
        found.append(Problem(name, first, tuple(on_nodes), tuple(subjects), tuple(follows)))
    return sorted(found, key=lambda problem: _cost(problem.finding))


def _consequences(report: Report) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the consequences of each cause, by the id and subject of its finding."""
    found: dict[tuple[str, str], list[str]] = {}
    for verdict in report.checks:
        for finding in verdict.findings:
            for cause in finding.related if not finding.remedy else ():
                line = f"{verdict.id} {finding.line}"
                found.setdefault((cause.id, cause.subject), []).append(line)
    return found


def _likeness(name: str, f: Finding, nodes: Sequence[str]) -> tuple[object, ...]:
    """Return the key by which findings are merged into one problem: a rank belongs to the job, on whatever node."""
    where = () if f.subject.startswith("rank ") else tuple(nodes)
    said = (f.severity, f.message, f.blame, f.action, f.confidence, f.remedy, f.nodes, f.related, f.loss)
    return (name, *said, *where)


def _cost(finding: Finding) -> tuple[int, bool, float]:
    """Return a sort key: what stops a job before what slows it, ordered by lost share; among warnings speed first."""
    stops = finding.severity is Severity.FAIL
    return _LOUDEST_FIRST.index(finding.severity), (finding.loss is None) is not stops, -(finding.loss or 0.0)


def copyable(remedy: str) -> list[str]:
    """Return the commands and settings of a remedy, ready to be typed."""
    commands = [each for each in re.findall(_COMMAND, remedy) if " " in each]
    return list(dict.fromkeys((*commands, *(each.rstrip(".,:") for each in re.findall(_SETTING, remedy)))))


def headline(report: Report, width: int = 0) -> str:
    """Return the result in a line: what is wrong, where, the costliest first; `width` 0: not shortened."""
    text = _headline(report)
    return shorten(text, width) if width else text


def _headline(report: Report) -> str:
    wrong = [problem for problem in problems(report) if problem.finding.severity is not Severity.NOTE]
    blind = [gap for gap in gaps(report) if gap.required]
    missing = [f"{folded(report.missing_nodes)} did not report"] if report.missing_nodes else []
    if report.status in (Status.FAIL, Status.WARN) and wrong:
        loudest = [problem for problem in wrong if problem.finding.severity is wrong[0].finding.severity]
        about = {frozenset(f"{on(p.nodes, report)} {p.subject}".split()): p for p in reversed(loudest)}
        worst = [problem for problem in loudest if problem in about.values()]  # of one device the costliest alone
        return "; ".join([*missing, first_of([_summarise(problem, report) for problem in worst], MOST_NAMED, "; ")])
    over_gloo = report.fingerprint is not None and report.fingerprint.software.get("backend") == "gloo"
    r = report
    rows = (r.measurements, r.pairs, r.copies, r.groups, r.steps, r.ladder)
    measured = any(rows) and not over_gloo
    needs_driver = report.scope.backend == "nccl" and not (report.scope.driver or measured or _is_rails_report(report))
    if report.status is Status.UNKNOWN and needs_driver:
        return "no GPU was found, so this node can only run gloo jobs; if it is meant for them, add --backend gloo"
    stopped = [signal + gap.why.partition(signal)[2] for gap in blind if (signal := "ended by SIG") in gap.why]
    if report.status is Status.UNKNOWN and stopped:
        return f"INTERRUPTED: {stopped[0]}"
    if report.status is Status.UNKNOWN and (missing or blind):
        first = [f"{', '.join(blind[0].ids[:MOST_NAMED])} could not be done: {blind[0].why}"] if blind else []
        return "; ".join((*missing, *first))
    failing = sum(row.status == "fail" for row in report.measurements)
    if report.status is Status.FAIL and failing:
        return f"{failing} of {plural(len(report.measurements), 'measured row')} fail"
    if " --judge " in f"{report.command} " and report.notes:
        return report.notes[0]
    if unjudged := none_judged(report) or none_applies(report):
        return unjudged
    noted = [_summarise(each, report) for each in problems(report) if "could not be read" not in each.finding.message]
    if report.scope.pasted and report.status is Status.PASS and noted:
        return f"nothing failed; notes: {first_of(noted, MOST_NAMED, '; ')}"
    return {Status.PASS: "nothing wrong was found", Status.SKIP: "nothing was judged"}.get(report.status, "see below")


def _summarise(problem: Problem, report: Report) -> str:
    """Return a problem's headline, or its first sentence: ``n5: no connection on 7 of 7 paths into n5``.

    Text in brackets and after a semicolon is dropped. A bare value or name is not a sentence (``is -1``, ``Xid 79``).
    """
    where, subject = on(problem.finding.nodes or problem.nodes, report), problem.subject
    message = problem.finding.message
    begins = (message[: found.start()] for found in re.finditer(_SENTENCE_ENDS, message))
    whole = (each for each in begins if re.match(_SAYS, each) and each.count("(") == each.count(")"))
    sentence = _strip_brackets(_strip_brackets(next(whole, message)))  # one may stand in another
    joint = " " if sentence.split(" ")[0] in _VERBS else ": "
    told = sentence if sentence.startswith(subject) else f"{subject}{joint}{sentence}"
    told = problem.finding.headline or told
    return f"{where} {told}" if where and where not in told and not where.startswith("all ") else told


def _strip_brackets(text: str) -> str:
    """Remove brackets that follow a statement."""
    return re.sub(_BRACKETS, lambda found: "" if re.match(_SAYS, text[: found.start()]) else found[0], text)


def launcher(kind: str) -> str:
    """Return how ranks were started, in the user's words: ``--nproc``, ``by hand``, ``torchrun``."""
    return {"self": "--nproc", "environment": "by hand", "options": "--nnodes"}.get(kind, kind)


def looked(report: Report) -> str:
    """Return when the machines were examined; for captures, when they were taken."""
    times = sorted(report.taken.values())
    if not times:
        return when(report.started)
    last = f" to {when(times[-1])}" if times[-1] != times[0] else ""
    return f"captured {when(times[0])}{last}"


def when(started: str) -> str:
    """Format an ISO 8601 time: ``2026-11-22 09:48:41 UTC``."""
    return re.sub(r"(\+00:00|Z)$", " UTC", started.replace("T", " ", 1))


def conclusion(report: Report) -> str:
    """Return the last sentence, with the exit code: whether jobs can start, of what kind and on which nodes."""
    of = f"{'NCCL' if report.scope.backend == 'nccl' else report.scope.backend} jobs{_extent(report)}"
    if _is_rails_report(report):
        of = f"NCCL over rails{_extent(report)}; `ncclprobe doctor` checks everything else"
    alone = any(check.key in OF_SOCKETS and check.status is Status.WARN for check in report.checks)
    number = report.coverage.get("warn", 0)
    said = {
        Status.PASS: f"Ready for {of}.",
        Status.WARN: f"Ready for {of}{' on this node only' * alone}, with {plural(number, 'warning')} above.",
        Status.FAIL: f"Not ready for {of}: fix the failures above first.",
        Status.UNKNOWN: f"Could not confirm readiness for {of}: the required checks above are unknown.",
    }.get(report.status, "Nothing was judged.")
    if report.scope.apart and report.status is Status.PASS:
        said = f"Each of {len(report.nodes)} nodes is ready for NCCL jobs."
    if report.scope.apart and report.status in (Status.WARN, Status.FAIL):
        loud = sum(node.status is report.status for node in report.nodes)
        which = f"{loud} of {len(report.nodes)} nodes"
        failing = f"{which} {'is' if loud == 1 else 'are'} not ready for NCCL jobs: fix the failures above first."
        said = failing if report.status is Status.FAIL else f"Ready for NCCL jobs. {which} with warnings above."
    if report.status is Status.UNKNOWN and none_applies(report):
        said = "Nothing was judged: the selected checks do not apply here."
    if report.scope.pasted and report.status in (Status.PASS, Status.WARN):
        ready = f"{plural(number, 'warning')} above" if report.status is Status.WARN else "Nothing fails"
        said = f"{ready}. What the pasted texts do not show was not judged."
    if report.scope.pasted and report.status is Status.UNKNOWN and not _required_unknown(report):
        said = "The pasted texts do not show enough to judge."
    if report.status is Status.PASS and (unjudged := none_judged(report)):
        said = f"{unjudged[0].upper()}{unjudged[1:]}."
    return f"{said} (exit {report.exit_code})"


def _required_unknown(report: Report) -> bool:
    return any(check.required and check.status is Status.UNKNOWN for check in report.checks)


def _is_rails_report(report: Report) -> bool:
    """Return whether `ncclprobe rails` wrote the report, which examines no GPU."""
    return report.command.split(" ")[1:2] == ["rails"]


def _extent(report: Report) -> str:
    nodes = f" of {len(report.nodes):,} nodes" if len(report.nodes) > 1 else ""
    if report.scope.backend == "nccl" and report.scope.gpus:
        return f" on {plural(report.scope.gpus, 'GPU')}{nodes}"
    return f" on {plural(len(report.nodes), 'node')}" if report.nodes else ""


def counts(report: Report) -> str:
    """Return the number of checks in each status, and how many numbers were judged."""
    order = ("fail", "warn", "unknown", "pass", "skip")
    said = ", ".join(f"{report.coverage[s]} {s}" for s in order if report.coverage.get(s)) or "nothing checked"
    return said + (f"; {_measured(report)}, {judged(report).rows} judged" if judged(report).of else "")


def none_applies(report: Report) -> str:
    """Return why nothing was judged if none of the requested checks applies; otherwise empty."""
    if not report.checks or any(check.status is not Status.SKIP for check in report.checks):
        return ""
    return f"nothing was judged: {report.checks[0].id}: {report.checks[0].why}"


def none_judged(report: Report) -> str:
    """Return how much was measured if none of it was judged; otherwise empty."""
    found = judged(report)
    return f"{_measured(report)} measured, none judged" if found.of and not found.rows else ""


def _measured(report: Report) -> str:
    """Count the numbers; only those of collectives are rows, and a pair has several."""
    found = judged(report).of
    return plural(found, "row" if found == len(report.measurements) else "number")


def judged(report: Report) -> Judged:
    """Return how many numbers were judged; for older reports this is counted from their rows."""
    states = [*(row.status for row in report.measurements), *(row.status for row in report.copies)]
    return report.judged or Judged(sum(state != "unjudged" for state in states), len(states))


def verdict_line(report: Report) -> str:
    """Return the run in one line of at most 80 characters: status, counts, exit code.

    Numbers without a verdict come first: a PASS in front of them would seem to be theirs.
    """
    if unjudged := none_judged(report):
        lead = "" if report.status is Status.PASS else f"{report.status.value.upper()}  "
        loud = ", ".join(
            f"{report.coverage[s]} {s}" for s in ("fail", "warn", "unknown", "pass") if report.coverage.get(s)
        )
        return f"{lead}{unjudged}; {loud or 'nothing checked'}  (exit {report.exit_code})"
    return f"{report.status.value.upper()}  {counts(report)}  (exit {report.exit_code})"


def transport(report: Report) -> str:
    """Return NCCL's transport, as shown among the areas; empty: it was not examined."""
    return next((area.values for area in report.areas if area.name == "transport"), "")


def node_states(report: Report) -> dict[str, str]:
    """Return each node with its own state: that of its row, or missing.

    A comparison that fails stops the whole job, so that all nodes of the report fail. Here a node fails only if a
    finding names it, as long as every failure names a node: otherwise all would be red. If no number was judged, no
    node has passed.
    """
    worst: dict[str, Status] = {}
    for verdict in report.checks:
        if verdict.status is Status.UNKNOWN and verdict.required:
            _worsen(worst, own_node(verdict), Status.UNKNOWN)
        for finding in verdict.findings:
            if finding.severity is not Severity.NOTE:
                _worsen(worst, nodes_of(verdict, finding), Status(finding.severity.value))
    failures = [(v, f) for v in report.checks for f in v.findings if f.severity is Severity.FAIL]
    clear = bool(failures) and all(nodes_of(*each) for each in failures)
    own = {
        node.name: worst.get(node.name, Status.PASS) if clear and node.status is Status.FAIL else node.status
        for node in report.nodes
    }
    if report.status is Status.PASS and none_judged(report):
        own = {name: Status.SKIP if state is Status.PASS else state for name, state in own.items()}
    return {name: state.value for name, state in own.items()} | dict.fromkeys(report.missing_nodes, "missing")


_WORSE = (Status.FAIL, Status.UNKNOWN, Status.WARN)


def _worsen(worst: dict[str, Status], nodes: Sequence[str], status: Status) -> None:
    for node in nodes:
        worst[node] = min(worst.get(node, status), status, key=_WORSE.index)


def gaps(report: Report) -> list[Gap]:
    """Return what is unknown, by its first reason and by nodes; required checks first."""
    where: dict[tuple[str, str, bool], list[str]] = {}
    whole: dict[str, str] = {}
    for verdict in report.checks:
        if verdict.status is Status.UNKNOWN:
            key = (verdict.why.split("; ")[0], verdict.id, verdict.required)
            whole.setdefault(key[0], verdict.why)
            where.setdefault(key, []).extend([verdict.node] if verdict.node else [])
    groups = grouped(((why, required, tuple(nodes)), name) for (why, name, required), nodes in where.items())
    found = [Gap(tuple(ids), required, nodes, whole[why]) for (why, required, nodes), ids in groups.items()]
    return sorted(found, key=lambda gap: not gap.required)


def passed(report: Report) -> dict[str, str]:
    """Return the checks that passed on every node where they ran, with their pass titles."""
    spoiled = {verdict.id for verdict in report.checks if verdict.status not in (Status.PASS, Status.SKIP)}
    fine = (verdict for verdict in report.checks if verdict.status is Status.PASS)
    found = grouped((verdict.id, verdict.title) for verdict in fine if verdict.id not in spoiled)
    return {name: "; ".join(dict.fromkeys(titles)) for name, titles in found.items()}


def yes(answer: bool | None) -> str:
    """Return the answer as a word."""
    return "unknown" if answer is None else "yes" if answer else "no"


def on(nodes: Sequence[str], report: Report) -> str:
    """Return the nodes concerned: ``n[0-3]``, ``all 8 nodes``; empty if the report has only one node."""
    if not nodes or len(report.nodes) < 2:
        return ""
    return f"all {len(nodes)} nodes" if len(nodes) == len(report.nodes) else folded(nodes)


def folded(nodes: Sequence[str]) -> str:
    """Fold the names into one line of bounded length."""
    text = fold(nodes)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({len(nodes)} nodes)"
