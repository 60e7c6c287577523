"""A fleet as a page that works offline: nodes by day, worst first; a click shows the findings of that day."""

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from ncclprobe.model.fleet import STATES, NodeDays
from ncclprobe.model.report import when
from ncclprobe.model.units import printable
from ncclprobe.report.fleet import counts
from ncclprobe.report.html.page import filled

DAY_S = 86400.0
_MOST_TOLD = 60
_DETAILS = 900_000
"""Characters of findings, worst nodes first: with 2,000 nodes the page stays below 1.5 MB."""


def render(nodes: Sequence[NodeDays], now_s: float, days: int, store: str) -> str:
    """Render the page of the last `days` days; `store` is the source file."""
    worst = sorted(nodes, key=lambda each: (STATES.index(each.standing.state), each.standing.since_s or 0.0,
                                            each.standing.name))  # fmt: skip
    first = int(now_s // DAY_S) - days + 1
    ill = [each for each in worst if each.standing.state != "ok"]
    return filled("days.html.j2", "days.js", {
        "counts": counts([each.standing for each in nodes]), "ill": [_line(each) for each in ill[:_MOST_TOLD]],
        "more": max(len(ill) - _MOST_TOLD, 0), "now": when(now_s), "store": store, "states": STATES, "days": days,
        "data": Markup(_script_json(_data(worst, first, days))),
    })  # fmt: skip


def _line(node: NodeDays) -> tuple[str, str, str, str, str, str]:
    """Return a row of the table; its last fields are the file of the newest report on the node, and its address."""
    found, source = node.standing, node.days[max(node.days)].source if node.days else ""
    since = when(found.since_s) if found.since_s is not None else "–"
    place = quote(source) if source != "-" else ""  # a colon is quoted too: it is never another kind of address
    return printable(found.name), found.state, since, printable(found.evidence), PurePath(source).name, place


def _script_json(data: dict[str, Any]) -> str:
    """Encode JSON so that it cannot end a script element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _data(nodes: Sequence[NodeDays], first: int, days: int) -> dict[str, Any]:
    """Return a letter per node and day, and by row and day the findings: file, minute of the day, texts."""
    texts, cells, left = dict[str, int](), dict[str, list[int]](), _DETAILS

    def number(text: str) -> int:
        nonlocal left
        left -= len(text) + 8 if text not in texts else 0
        return texts.setdefault(printable(text), len(texts))

    for row, node in enumerate(nodes):
        for day, each in sorted(node.days.items(), reverse=True):
            if each.state != "ok" and first <= day < first + days and left > 0:
                minute = int(each.time_s % DAY_S) // 60
                cells[f"{row},{day - first}"] = told = [number(each.source), minute, *map(number, each.words)]
                left -= 12 + 4 * len(told)
    return {
        "first": first,
        "names": [printable(node.standing.name) for node in nodes],
        "rows": ["".join(_letter(node, first + day) for day in range(days)) for node in nodes],
        "texts": list(texts),
        "cells": cells,
    }


def _letter(node: NodeDays, day: int) -> str:
    """Return the index of the day's state in STATES; a blank if the node was not tested."""
    return str(STATES.index(node.days[day].state)) if day in node.days else " "
