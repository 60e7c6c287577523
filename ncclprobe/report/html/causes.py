"""Show why a job failed, as a page: causes, and a timeline of its ranks."""

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from ncclprobe.model.causes import Cause, Moment, RankState
from ncclprobe.model.hostlist import fold, fold_numbers
from ncclprobe.model.report import Excerpt, Report
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report.causes import LABELS, blamed, class_rows, headline, looked, suspected, who
from ncclprobe.report.html.findings import page_of
from ncclprobe.report.html.page import filled

MOST_LANES = 64
MOST_DOTS = 60
MOST_RANKS = 400
_WIDTH, _LEFT, _ROW, _TOP = 1100.0, 150.0, 22.0, 34.0
_NO_CLOCK = (
    "No common clock: some lines have no time. Each row has its own lines in order; lines that are "
    "aligned vertically were not written at the same time."
)
_DIGITS = re.compile(r"[0-9]+")
_CLASS_STATES = dict.fromkeys(("not arrived", "dead or gone", "desync", "stuck outside", "stuck inside"), "fail")
_CLASS_STATES |= {"slow, not stuck": "warn", "cannot tell": "unknown", "waiting": "pass", "working": "pass"}
_STATES = {"named": "fail", "narrowed": "warn", "unknown": "unknown"}


class _Dot(Struct, frozen=True):
    """One moment of a lane."""

    x: float
    state: str
    r: float
    title: str


class _Lane(Struct, frozen=True):
    """The log lines of one rank, or of a host's own processes, over time."""

    name: str
    y: float
    first: float
    last: float
    dots: tuple[_Dot, ...]


def page(report: Report) -> str:
    """Render `report` as HTML."""
    lanes, more, scale, ticks, divergence = _timeline(report)
    return filled("causes.html.j2", "page.js", {
        "report": report, "headline": headline(report), "states": _STATES, "who": who, "labels": LABELS,
        "suspected": suspected, "looked": looked, "class_rows": class_rows, "class_states": _CLASS_STATES,
        "blamed": blamed, "lanes": lanes, "more_lanes": more, "scale": scale, "ticks": ticks,
        "divergence": divergence, "width": _WIDTH, "height": _TOP + _ROW * len(lanes) + 14,
        "shown_ranks": _ranks(report), "more_ranks": max(0, len(report.ranks) - MOST_RANKS),
        "pages": lambda cause: page_of(cause.id), "excerpts": lambda cause: _excerpts(cause, report),
    })  # fmt: skip


def _ranks(report: Report) -> list[tuple[str, str, RankState]]:
    """Return the ranks with their hosts; those with equal state, collective and last line (ignoring numbers) share a
    row.
    """
    ranks = [(each, each.last_event.text if each.last_event else "") for each in report.ranks[:MOST_RANKS]]
    groups = grouped(((each.state, each.last_collective, _DIGITS.sub("0", said)), each) for each, said in ranks)
    return [
        (
            fold_numbers(each.rank for each in group),
            f"{group[0].host}:{group[0].pid}"
            if not group[1:] and group[0].pid
            else fold(each.host for each in group if each.host),
            group[0],
        )
        for group in groups.values()
    ]


def _excerpts(cause: Cause, report: Report) -> list[Excerpt]:
    """Return the lines around those that a cause cites."""
    cited = {f"{each.source}:{each.line}" for each in cause.evidence}
    return [each for each in report.excerpts if each.title in cited]


def _timeline(report: Report) -> tuple[list[_Lane], int, str, list[tuple[float, str]], float | None]:
    """Return lanes, the number left out, the axis, its ticks, and the point at which ranks first diverge.

    Unless every line has a time, there is no common axis: each lane has its own lines from left to right.
    """
    by_lane = grouped((_name(moment), (number, moment)) for number, moment in enumerate(report.timeline))
    names = sorted(by_lane, key=lambda name: (not any(m.id for _, m in by_lane[name]), by_lane[name][0][0]))
    times = [m.time_s for m in report.timeline if m.time_s is not None]
    timed = len(times) == len(report.timeline) and len(set(times)) > 1
    most = min(max(map(len, by_lane.values()), default=1), MOST_DOTS)
    low, high = (min(times), max(times)) if timed else (0.0, float(most))
    place = {number: place for lane in by_lane.values() for place, (number, _) in enumerate(lane)}

    def across(number: int, moment: Moment) -> float:
        at = moment.time_s if timed and moment.time_s is not None else min(place[number], high)
        return round(_LEFT + (_WIDTH - _LEFT - 50) * (at - low) / (high - low), 1)

    first = {str(each) for cause in report.causes[:1] for each in cause.evidence}
    drawn = sorted(
        names[:MOST_LANES], key=lambda name: (by_lane[name][0][1].rank is None, by_lane[name][0][1].rank or 0)
    )
    lanes = [_lane(name, row, [(across(n, m), m) for n, m in by_lane[name]], first) for row, name in enumerate(drawn)]
    cause = [across(n, m) for n, m in enumerate(report.timeline) if timed and str(m.evidence) in first]
    began = datetime.fromtimestamp(low, timezone.utc) if timed else None
    scale = f"Seconds since {began:%Y-%m-%d %H:%M:%S} UTC." if began else _NO_CLOCK
    steps = [low + (high - low) * part / 5 for part in range(6)] if timed else []
    ticks = [
        (round(_LEFT + (_WIDTH - _LEFT - 50) * part / 5, 1), f"{step - low:.4g}") for part, step in enumerate(steps)
    ]
    return lanes, max(len(names) - MOST_LANES, 0), scale, ticks, min(cause, default=None)


def _lane(name: str, row: int, moments: Sequence[tuple[float, Moment]], first: set[str]) -> _Lane:
    dots = [
        _Dot(x, "fail" if str(m.evidence) in first else "warn" if m.id else "note",
             6 if str(m.evidence) in first else 4, f"{m.text}: {m.evidence}"[:400])
        for x, m in moments[:MOST_DOTS]
    ]  # fmt: skip
    return _Lane(name, _TOP + _ROW * row, min(x for x, _ in moments), max(x for x, _ in moments), tuple(dots))


def _name(moment: Moment) -> str:
    rank = f"rank {moment.rank}" if moment.rank is not None else ""
    return " · ".join(filter(None, (rank, moment.host))) or "no rank"
