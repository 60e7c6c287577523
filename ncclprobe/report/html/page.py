"""Assemble the page: the template gets data that is cut to what a browser and a reader can handle."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ncclprobe.model.findings import Status
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.units import plural, size
from ncclprobe.report.digest import copyable, gaps, headline, launcher, looked, none_judged
from ncclprobe.report.html import charts, findings, fleet, legible, matrix, tables
from ncclprobe.report.html.findings import Cards
from ncclprobe.report.html.legible import breaks, folded, lasting, micros, rate, sentence, typed
from ncclprobe.report.html.tables import ORDER, Row, rows, where
from ncclprobe.report.pairs import words

HERE = Path(__file__).resolve().parent
MOST_ROWS = 400
"""Rows of the table of checks that are in the page itself; the filter has more."""
MOST_FILTERED = 20_000
MOST_BLIND = 30
MOST_MEASURED = 500
MOST_LISTED = 60
MOST_SETTINGS = 200
_LONGEST_HEADLINE = 240


def page(report: Report) -> str:
    """Render `report` as HTML."""
    found, cards = rows(report), findings.cards(report)
    data = _about(report, found) | _found(report, found, cards) | _measured(report) | _nodes(report, found, cards)
    return filled("page.html.j2", "page.js", data)


def expected(headline: str, notes: Sequence[str], rows: Sequence[Measurement]) -> str:
    """Render the page of expected rows, which were not measured."""
    shown = {"headline": headline, "notes": notes, "rows": rows, "charts": charts.charts(rows)[0]}
    return filled("expected.html.j2", "page.js", shown)


def filled(template: str, script: str, data: Mapping[str, Any]) -> str:
    """Render `template` with `data`, in the layout of all pages, with this script."""
    text = (HERE / script).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    style = Markup((HERE / "style.css").read_text(encoding="utf-8"))
    rules = f"'sha256-{digest}'"  # what the page's policy calls the script that may run
    return _environment().get_template(template).render(data, style=style, script=Markup(text), script_rules=rules)


@cache
def _environment() -> Environment:
    """Return the template environment, which escapes everything."""
    made = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=legible.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "rate": rate,
        "micros": micros,
        "lasting": lasting,
        "size": size,
        "plural": plural,
        "fold": folded,
        "breaks": breaks,
        "typed": typed,
        "sentence": sentence,
        "copyable": copyable,
        "launcher": launcher,
    }
    return made


_VERDICTS = {
    "pass": "All required checks ran, and nothing failed.",
    "warn": "Nothing failed, but some findings cost speed or safety.",
    "unknown": "Inconclusive: nothing failed, but not everything required could be judged.",
    "skip": "Nothing was judged.",
}
_UNJUDGED = (
    "There is nothing to compare these numbers with. If this run is known to be healthy, save it as a baseline with "
    "`ncclprobe baseline REPORT.json -o site.json`, and judge later runs with `{command} --baseline site.json`"
)
_UNKEPT = (
    "There is nothing to compare these numbers with, because baselines contain only collectives. Compare the nodes."
)
_NOTHING = {
    "pass": "No check failed or gave a warning, and all required checks ran.",
    "unknown": "Nothing failed, but nothing was judged either; the notes show what is missing.",
    "fail": "The run failed as a whole; the details follow.",
}


def _verdict(report: Report, found: Sequence[Row]) -> str:
    """Describe the run in one sentence, with how much of the fleet is concerned."""
    unjudged = none_judged(report)
    if unjudged and report.status is Status.PASS:
        return ""  # the headline says it
    failing = [row for row in found if row.kind == "fail"]
    bad, sick = {row.id for row in failing}, {name for row in failing for name in row.nodes}
    if report.status is not Status.FAIL or not bad:
        return _VERDICTS.get(report.status.value, "This run failed.")
    of = f", on {len(sick):,} of {plural(len(report.nodes), 'node')}"
    of = of if len(report.nodes) > 1 and all(row.nodes for row in failing) else ""
    return f"{plural(len(bad), 'check')} {'fails' if len(bad) == 1 else 'fail'}{of}."


def _nothing(report: Report) -> tuple[str, str]:
    """Return heading and text if there is no finding: good news only if something was judged."""
    said = _NOTHING.get(report.status.value, _VERDICTS["warn"])
    if report.status is Status.PASS and none_judged(report):
        words = _UNJUDGED if report.measurements else _UNKEPT
        return "Nothing found wrong; speed not judged", words.format(command=report.command)
    if report.status is Status.SKIP:
        return "Nothing was judged", "No check had anything to judge, and no number was judged."
    return ("Nothing to do" if report.status is Status.PASS else "No finding to act on"), said


def _about(report: Report, found: Sequence[Row]) -> dict[str, Any]:
    order = ("fail", "unknown", "warn", "pass", "skip")
    counted = [(state, report.coverage[state]) for state in order if report.coverage.get(state, 0) > 0]
    return {
        "report": report,
        "unsaid": report.status is Status.PASS and bool(none_judged(report)),
        "headline": headline(report, _LONGEST_HEADLINE),
        "verdict": _verdict(report, found),
        "when": looked(report),
        "words_of": {"pass": "ok", "skip": "–"},
        "nothing": _nothing(report),
        "coverage": counted,
        "covered": sum(number for _, number in counted),
        "named": folded((node.name for node in report.nodes), 120),
    }


def _found(report: Report, found: Sequence[Row], cards: Cards) -> dict[str, Any]:
    unseen = sorted(gaps(report), key=lambda each: (not each.required, -len(each.nodes) * len(each.ids)))
    places = {node.name: n for n, node in enumerate(report.nodes)}
    counts = [(kind, sum(row.kind == kind for row in found)) for kind in ORDER]
    everywhere = len(report.nodes)
    words = {
        "unjudged": ("not judged", "no expectation is certain enough to judge them by"),
        "inconclusive": ("too noisy to judge", "their interval is wider than the band"),
    }
    counted = [(sum(row.status == state for row in report.measurements), *said) for state, said in words.items()]
    return {
        "cards": cards.cards,
        "hidden": cards.hidden,
        "shown_places": findings.SHOWN_PLACES,
        "unjudged": [each for each in counted if each[0]],
        "blind": unseen[:MOST_BLIND],
        "more_blind": len(unseen) - MOST_BLIND,
        "most_listed": MOST_LISTED,
        "rows": [(row, where(row, everywhere), cards.anchors.get(row.key)) for row in found[:MOST_ROWS]],
        "more_rows": max(0, len(found) - MOST_ROWS),
        "beyond_filter": max(0, len(found) - MOST_FILTERED),
        "kinds_of_row": [(kind, number) for kind, number in counts if number],
        "table": legible.data(
            {
                "names": list(places),
                "on": [_spans(row.nodes, places) for row in found[:MOST_ROWS]],
                "said": [row.message[:300] if row.key in cards.anchors else "" for row in found[:MOST_ROWS]],
                "more": [_cells(row, everywhere, places) for row in found[MOST_ROWS:MOST_FILTERED]],
            }
        ),
    }


def _spans(names: Sequence[str], places: dict[str, int]) -> list[list[int]]:
    """Return the positions of the nodes `names`, as first and last of each run."""
    told = sorted(places[name] for name in names if name in places)
    runs = (list(run) for _, run in groupby(enumerate(told), key=lambda pair: pair[1] - pair[0]))
    return [[run[0][1], run[-1][1]] for run in runs]


def _cells(row: Row, everywhere: int, places: dict[str, int]) -> list[Any]:
    """Return a row beyond those in the page, in the order of the page's template row that page.js fills."""
    why = (row.evidence, row.see_also, row.remedy, row.blame)
    texts = (row.title, where(row, everywhere), row.subject, row.message, *why)
    short = (legible.printable(text.replace("`", ""), 300) for text in texts)  # the script makes no code of it
    return [row.kind, row.id, *short, _spans(row.nodes, places)]


def _measured(report: Report) -> dict[str, Any]:
    plots, more = charts.charts(report.measurements)
    heat = matrix.maps(report.pairs, report.localisation)
    signs = {kind: f'class="{kind}"' for kind in ("confirmed", "suspected", "unmeasured")} | {"cleared": "•"}
    return {
        "drawn": {kind for kind, sign in signs.items() if any(sign in each.picture for each in heat)},
        "charts": plots,
        "more_charts": more,
        "measured": report.measurements[:MOST_MEASURED],
        "more_measured": len(report.measurements) - MOST_MEASURED,
        "maps": heat,
        "crowded": any(each.ends > matrix.SIDE_BY_SIDE for each in heat),
        "said": _said_of_pairs(report),
        "worst": matrix.worst(report.pairs),
        "ways": sum(not row.step for row in report.pairs),
        "tables": tables.tables(report),
        "fingerprint": tables.fingerprint(report),
    }


def _said_of_pairs(report: Report) -> list[tuple[str, str]]:
    """Return the results of the round-robin besides its findings, and why ranks were excluded."""
    if not report.localisation:
        return []
    found = any(verdict.id == "run.pairs" and verdict.findings for verdict in report.checks)
    said = [each for each in words(report.localisation) if not (found and each[0] == "fail")]
    said += [("note", f"{each.end}: {each.why}") for each in report.localisation.excluded_ranks]
    return said[:MOST_LISTED]


def _nodes(report: Report, found: Sequence[Row], cards: Cards) -> dict[str, Any]:
    kinds, more_kinds, more_nodes = fleet.kinds(report, found, cards.anchors)
    shown, hidden = fleet.tiles(report)
    groups, ungrouped = fleet.groups(report, cards.cards)
    settings = tables.settings(report.environment)
    choices, unshown = tables.equal_choices(report)
    return {
        "tiles": shown,
        "hidden_tiles": hidden,
        "tiles_named": len(shown) <= fleet.NAMED_TILES,
        "groups": groups,
        "ungrouped": ungrouped,
        "ailing": len(report.nodes) + len(report.missing_nodes) > 1 and any(each.why for each in groups),
        "kinds": kinds,
        "more_kinds": more_kinds,
        "more_nodes": more_nodes,
        "versions": tables.versions(report.environment),
        "settings": settings[:MOST_SETTINGS],
        "more_settings": len(settings) - MOST_SETTINGS,
        "choices": choices,
        "choices_left": unshown,
    }
