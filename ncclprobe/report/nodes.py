"""Lists of nodes for a batch system: ``good``, ``bad``, ``unsure`` and ``missing``, each folded on one line.

A program may take a node in ``bad`` out of service, so the rule is narrow (docs/deploy.md): a failing finding that is
settled and blames the node itself or its links. A finding that asks for a retest is not settled. Whether jobs may use a
node is another question: a user's wrong setting does not make a node bad, and a node is good only if all required
checks ran.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ncclprobe.model.findings import OF_THE_RUN, Finding, Status, Verdict, weight
from ncclprobe.model.hostlist import fold
from ncclprobe.model.report import Report

NAMES = ("good", "bad", "unsure", "missing")

_HOST = re.compile(r"[A-Za-z0-9_]([\w.-]{0,251}[A-Za-z0-9_])?", re.ASCII)


class _Lists(NamedTuple):
    """The text of each list by name, and the nodes left out because their names are not valid host names."""

    texts: dict[str, str]
    left_out: tuple[str, ...]


def lists(report: Report) -> _Lists:
    """Return the four lists of `report`."""
    names = sort(report)
    every = dict.fromkeys(name for each in names.values() for name in each)
    odd = tuple(name for name in every if not _HOST.fullmatch(name))
    return _Lists({kind: _fold_hosts(each) for kind, each in names.items()}, odd)


def recognises(text: str) -> bool:
    """Return whether `text` is one of these lists: host names on one line."""
    return re.fullmatch(r"[A-Za-z0-9_.,\[\]-]+\n", text) is not None


def sort(report: Report) -> dict[str, tuple[str, ...]]:
    """Return which nodes are good, bad, unsure and missing, each in the report's order."""
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    found["missing"] += report.missing_nodes
    said, of_all = _group_by_node(report)
    for node in report.nodes:
        kinds = {weight(finding) for finding in said[node.name][1]} | of_all
        if "bad" in kinds:
            found["bad"].append(node.name)
        elif "unsure" in kinds or (node.status is Status.UNKNOWN or any(_blind(said[node.name][0]))):
            found["unsure"].append(node.name)
        else:
            found["good"].append(node.name)
    return {name: tuple(dict.fromkeys(each)) for name, each in found.items()}


def _group_by_node(report: Report) -> tuple[dict[str, tuple[list[Verdict], list[Finding]]], set[str]]:
    """Return the verdicts and findings of each node, and the weights of findings that name no node."""
    said: dict[str, tuple[list[Verdict], list[Finding]]] = defaultdict(lambda: ([], []))
    of_all: set[str] = set()
    for verdict in report.checks:
        of_run = verdict.id.startswith(OF_THE_RUN)
        if of_run and verdict.status is Status.UNKNOWN and verdict.required:
            of_all.add("unsure")
        elif verdict.node and not of_run:
            said[verdict.node][0].append(verdict)
        for finding in verdict.findings:
            named = finding.nodes or (() if of_run or verdict.node is None else (verdict.node,))
            for name in named:
                said[name][1].append(finding)
            if not named and weight(finding):  # which node it is about is not known: all are in doubt, none is bad
                of_all.add("unsure")
    return said, of_all


def _blind(verdicts: Iterable[Verdict]) -> Iterator[bool]:
    for verdict in verdicts:
        explained = verdict.status is Status.SKIP and verdict.why.startswith("explained by")
        yield verdict.required and (explained or verdict.status is Status.UNKNOWN)


def _fold_hosts(names: Iterable[str]) -> str:
    """Fold valid host names into one line; others are left out."""
    text = fold(name for name in names if _HOST.fullmatch(name))
    return f"{text}\n" if text else ""
