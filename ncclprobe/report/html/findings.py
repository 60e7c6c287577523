"""Findings as cards: one per check and remedy, costliest first, with why it matters and what to type."""

import re
from collections.abc import Sequence

from ncclprobe import page
from ncclprobe.model.findings import OF_THE_RUN, Finding, Severity
from ncclprobe.model.report import CheckNote, Excerpt, Report
from ncclprobe.model.units import plural
from ncclprobe.model.values import Struct, grouped, replace
from ncclprobe.report import digest
from ncclprobe.report.digest import Problem
from ncclprobe.report.html.legible import folded, rate

MOST_CARDS = 40
MOST_PLACES = 60
SHOWN_PLACES = 10
"""Places of one card that are initially visible."""
_SHORT = 60
_MOST_EXCERPTS = 6
_GPU, _ASKED_OF = re.compile(r"GPU(\d{1,3})"), re.compile(r"nvml\w{1,60} (\d{1,3})")
_ID = re.compile(r"[a-z0-9-]{1,40}\.[a-z0-9-]{1,60}")


class _Place(Struct, frozen=True):
    """One finding of a card: subject and nodes, cost, and evidence."""

    subject: str
    message: str
    nodes: str
    cost: str
    seen: tuple[str, ...]
    see_also: str
    raw: tuple[Excerpt, ...] = ()


class Card(Struct, frozen=True):
    """Findings of one check with the same remedy. `names`: all nodes; `places`: the costliest of `number` findings."""

    kind: str
    id: str
    anchor: str
    head: str
    names: tuple[str, ...]
    cost: str
    places: tuple[_Place, ...]
    number: int
    remedy: str
    blame: str
    title: str
    about: CheckNote | None
    page: str

    @property
    def evidence(self) -> bool:
        """Return whether there is evidence to show."""
        return any(place.seen or place.raw for place in self.places)

    @property
    def alone(self) -> _Place | None:
        """Return the finding of this card, if there is only one."""
        return self.places[0] if self.number == 1 else None


class Cards(Struct, frozen=True):
    """All cards, the number of findings not shown, and the anchors of those shown.

    Anchors are keyed by the kind, id, subject and message of the row.
    """

    cards: tuple[Card, ...]
    hidden: int
    anchors: dict[tuple[str, str, str, str], str]


def cards(report: Report) -> Cards:
    """Return the failures and warnings of `report`, costliest first."""
    loud = [each for each in digest.problems(report) if each.finding.severity is not Severity.NOTE]
    groups = grouped(((each.finding.severity, each.id, each.finding.remedy), each) for each in loud)
    number: dict[str, int] = {}
    made: list[Card] = []
    anchors: dict[tuple[str, str, str, str], str] = {}
    for group in list(groups.values())[:MOST_CARDS]:
        number[group[0].id] = number.get(group[0].id, 0) + 1
        suffix = f"-{number[group[0].id]}" if number[group[0].id] > 1 else ""
        made.append(_card(group, report, f"finding-{group[0].id}{suffix}"))
        for each in group[:MOST_PLACES]:
            kind, message = each.finding.severity.value, each.finding.message
            anchors |= {(kind, each.id, subject, message): made[-1].anchor for subject in each.subjects}
    hidden = sum(map(len, groups.values())) - sum(len(card.places) for card in made)
    return Cards(tuple(made), hidden, anchors)


def _card(group: Sequence[Problem], report: Report, anchor: str) -> Card:
    first = group[0]
    finding = first.finding
    names = tuple(dict.fromkeys(name for each in group for name in _names(each)))
    places = tuple(_place(each, report) for each in group[:MOST_PLACES])
    worst = max((each.finding for each in group), key=lambda each: each.loss or 0.0)
    told = finding if len(group) == len(first.subjects) == 1 else replace(finding, subject="")
    by = next(v for v in report.checks if v.id == first.id and finding in v.findings)
    about = report.explained.get(by.key)
    title = about.title if about else by.title
    return Card(
        finding.severity.value, first.id, anchor, _head(group, names, title, len(report.nodes)), names,
        _cost(worst, "up to " if group[1:] else ""), places, len(group),
        finding.remedy, _describe_blame(told, names), title, about, page_of(first.id),
    )  # fmt: skip


def _names(problem: Problem) -> tuple[str, ...]:
    """Return the nodes of a problem; a finding on a measurement concerns only the nodes that it names."""
    return problem.finding.nodes or (() if problem.id.startswith(OF_THE_RUN) else problem.nodes)


def page_of(check: str) -> str:
    """Return the address of a check's page; empty if the text is not an id."""
    return page(check) if _ID.fullmatch(check) else ""


def _describe_blame(finding: Finding, names: Sequence[str]) -> str:
    """Describe whose fault it is; too many nodes to repeat are called `these nodes`."""
    if len(folded(names)) <= _SHORT:
        return digest.blamed(replace(finding, nodes=()), names)
    said = digest.blamed(replace(finding, nodes=()))
    return said.replace("This node is", "These nodes are").replace("this node", "these nodes")


def _head(group: Sequence[Problem], names: Sequence[str], title: str, everywhere: int) -> str:
    where = folded(names)
    where = f"all {everywhere:,} nodes" if everywhere > 1 and len(names) == everywhere else where
    where = where if len(where) <= _SHORT else plural(len(names), "node")
    subject = group[0].subject if len(group) == 1 else title
    known = where in subject.split() or subject == folded(names)
    return subject if not names or everywhere < 2 or known else f"{subject} on {where}"


def _place(problem: Problem, report: Report) -> _Place:
    finding, names = problem.finding, _names(problem)
    sources, where = {each.source for each in finding.evidence}, {*finding.nodes, *problem.nodes}
    gpu = _GPU.fullmatch(finding.subject)
    mine = [each for each in report.excerpts if each.source in sources and (not each.node or each.node in where)]
    of_another = [each for each in mine if gpu and (asked := _ASKED_OF.fullmatch(each.title)) and asked[1] != gpu[1]]
    return _Place(
        problem.subject, finding.message, folded(names) if len(report.nodes) > 1 else "", _cost(finding),
        tuple(map(str, finding.evidence)), finding.see_also,
        tuple([each for each in mine if each not in of_another][:_MOST_EXCERPTS]),
    )  # fmt: skip


def _cost(finding: Finding, most: str = "") -> str:
    """Describe what a finding costs: ``loses 43.1 GB/s, 90 %``; empty if no rate was compared."""
    share = "" if finding.loss is None else f"{100 * finding.loss:.3g} %"
    told = [f"{rate(finding.lost_GBps)} GB/s" if finding.lost_GBps else "", share]
    return f"loses {most}{', '.join(filter(None, told))}" if any(told) else ""
