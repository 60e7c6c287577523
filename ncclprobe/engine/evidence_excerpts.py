"""Excerpts of the sources that findings cite: a machine's original answers.

They let the reader of a report check its conclusions.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from ncclprobe.model.errors import HostError
from ncclprobe.model.findings import Evidence, Finding, Severity, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.report import CheckNote, Excerpt
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.model.units import plural

MOST = 60
"""Excerpts of one report."""
_MOST_LOOKED_AT = 300
"""Findings whose sources are searched for: each is compared with a thousand questions."""
_MOST_OF_ONE = 4
"""The most lines for one piece of evidence: NVML answers once per GPU."""
_MOST_LINES, _MOST_CHARACTERS, LONGEST_LINE = 24, 4000, 400
AROUND = 5
"""Lines before and after the cited one."""
_BRACES = r"\{([^{},]*),([^{}]*)\}"
_GPU = r"GPU(\d{1,3})(?!\d)"


def machine_excerpts(verdicts: Sequence[Verdict], snapshots: Sequence[Snapshot]) -> tuple[Excerpt, ...]:
    """Return the machines' answers that failures and warnings cite, failures first."""
    answers = {snapshot.node: snapshot.answers for snapshot in snapshots if snapshot.answers}
    loud = [(v, f) for v in verdicts for f in v.findings if f.severity is not Severity.NOTE]
    loud.sort(key=lambda each: each[1].severity is not Severity.FAIL)
    found: dict[tuple[str, str, str], Excerpt] = {}
    for verdict, finding in loud[:_MOST_LOOKED_AT] if answers else ():
        node = next((name for name in (*finding.nodes, verdict.node or "") if name in answers), "")
        for evidence in finding.evidence if node else ():
            for question in islice(_questions(evidence, finding, answers[node]), _MOST_OF_ONE):
                one = _excerpt(node, evidence, finding, question, answers[node][question])
                if one.lines:
                    found.setdefault((node, one.source, one.title), one)
        if len(found) >= MOST:
            break
    return tuple(islice(found.values(), MOST))


def _questions(evidence: Evidence, finding: Finding, answers: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield the questions that the evidence names, those about the finding's own device first."""
    gpu, device = re.search(_GPU, finding.subject), finding.subject.partition(":")[0]
    named = [question for question in answers if _cites(evidence.source, question)]
    for question in sorted(named, key=lambda each: f"/{device}" not in str(each[1:2])):
        other_gpu = gpu and question[0] == "nvml" and len(question) > 2 and question[2] != int(gpu[1])
        if not other_gpu:
            yield question


def _cites(source: str, question: Sequence[str | int]) -> bool:
    """Return whether a piece of evidence names this question: its path, command, call or function."""
    kind, *rest = question
    words = " ".join(map(str, rest))
    if source in (words, f"{kind} {words}") or (source, kind) in _NAMED:
        return True
    if kind == "run":
        return words in source or source == str(rest[0])
    first = str(rest[0]) if rest else ""
    if kind in ("resolve", "rlimit"):
        return source == f"{'getaddrinfo' if kind == 'resolve' else 'getrlimit'}({first})"
    if kind == "nvml":
        return source.startswith(first) and not source[len(first) : len(first) + 1].isalnum()
    return kind in _OF_PATHS and first.startswith("/") and _names(source.partition(" (")[0], first)


_NAMED = {("environment", "env"), ("/dev/kmsg", "kernel_log")}
_OF_PATHS = ("read", "lines", "files", "bytes", "conf", "list", "stat")


def _names(pattern: str, path: str) -> bool:
    """Return whether `pattern`, a path with the shell's ``*`` and ``{a,b}``, matches `path`."""
    if pattern == path:
        return True
    if not pattern.startswith("/") or pattern.count("*") > 3 or " " in pattern:
        return False
    braces = re.search(_BRACES, pattern)
    if braces:
        choices = (braces[1], *braces[2].split(","))
        return any(_names(f"{pattern[: braces.start()]}{each}{pattern[braces.end() :]}", path) for each in choices)
    return "*" in pattern and fnmatchcase(path, pattern)


def _excerpt(node: str, evidence: Evidence, finding: Finding, question: Sequence[str | int], answer: object) -> Excerpt:
    title = " ".join(map(str, question if question[0] in ("nvml", "resolve", "rlimit", "statvfs") else question[1:2]))
    title = " ".join(map(str, question[1:])) if question[0] == "run" else title or str(question[0])
    if isinstance(answer, HostError):
        return Excerpt(evidence.source, node, title, (f"refused: {answer}"[:LONGEST_LINE],))
    lines = _lines(str(question[0]), str(answer), finding, evidence)
    cited = _cited_positions(lines, evidence) or _gpu_section(lines, finding)
    first = max(0, min(cited) - AROUND) if cited else 0
    numbered = question[0] in ("read", "conf") and len(lines) > 1
    shown: list[str] = []
    for line in lines[first : first + _MOST_LINES]:
        if sum(map(len, shown)) > _MOST_CHARACTERS:
            break
        line = line.expandtabs(4)
        shown.append(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…")
    left = len(lines) - len(shown)
    places = tuple(at - first for at in cited if first <= at < first + len(shown))
    cut = f"{plural(left, 'other line')} not shown" if left else ""
    return Excerpt(evidence.source, node, title, tuple(shown), first + 1 if numbered else 0, places, cut)


def _lines(kind: str, answer: str, finding: Finding, evidence: Evidence) -> list[str]:
    """Return the lines of an answer; of the environment only the variables that the finding names."""
    if kind == "env":
        named = f"{evidence.text} {finding.subject} {finding.message}"
        told = json.loads(answer)
        return [f"{name}={value}" for name, value in told.items() if re.search(rf"\b{re.escape(name)}\b", named)]
    if kind == "kernel_log":
        return [f"[{time:.6f}] {text}" for time, text in json.loads(answer).get("lines", ())]
    if answer[:1] == "{" and len(answer) > 120:
        told = json.loads(answer)
        return [f"{name}: {json.dumps(value)}" for name, value in told.items()]
    return answer.splitlines()


def _cited_positions(lines: Sequence[str], evidence: Evidence) -> list[int]:
    """Return the positions of the cited lines: by number, otherwise by the parts of the evidence's text."""
    if evidence.line is not None:
        return [evidence.line - 1] if 0 < evidence.line <= len(lines) else []
    parts = [part.strip() for part in evidence.text.split("…") if len(part.strip()) > 2]
    return [at for at, line in enumerate(lines) if parts and all(part in line for part in parts)]


def _gpu_section(lines: Sequence[str], finding: Finding) -> list[int]:
    """Return the position of the line that begins nvidia-smi's section on the finding's GPU."""
    gpu = re.search(_GPU, finding.subject)
    return [at for at, line in enumerate(lines) if gpu and line.startswith(f"GPU {gpu[1]}:")][:1]


def explained(verdicts: Sequence[Verdict], checks: Sequence[Check]) -> dict[str, CheckNote]:
    """Return for each check that fails or warns what holds if it passes, and why it matters."""
    loud = {v.key for v in verdicts for f in v.findings if f.severity is not Severity.NOTE}
    return {check.key: CheckNote(check.title, check.right, check.why) for check in checks if check.key in loud}
