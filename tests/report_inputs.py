"""Made-up reports whose answers are kept: the test over time, the state of a node, and all forms in words."""

import functools
import itertools
import math
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import fake_rails
from fake_site import KEY
from fake_site import capture as site_capture
from fleet.made import DAY_S, DOWN, FIRST_S, day_of, days, filled, lost_by_all, on, readings
from report import samples
from report.html import made
from report_lines import lines
from report_pages import pages

from ncclprobe.checks.rail.fixtures import World, only
from ncclprobe.checks.trend import history as trends
from ncclprobe.engine.doctor import rail_ways
from ncclprobe.facts.reach import Rails
from ncclprobe.fleet import drift, node_health, shared, store
from ncclprobe.fleet.extract import told
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.errors import unknown
from ncclprobe.model.findings import (
    ONCE,
    Action,
    Blame,
    Certainty,
    Related,
    Severity,
    Status,
    Verdict,
    fail,
    note,
    warn,
)
from ncclprobe.model.fleet import Drift, NodeCourse, NodeReport, Number, Reading, Series, Sum
from ncclprobe.model.measurement import FirstCall, Mismatch
from ncclprobe.model.pair_results import Aside, Inside, Localisation, LostPair, PairRow, RailWay, WrongBytes
from ncclprobe.model.report import LaunchRow, NodeEnvironment, Report, Scope
from ncclprobe.model.snapshot import Absent, Snapshot, unlearned
from ncclprobe.model.traffic import LadderRow
from ncclprobe.model.units import whole_words
from ncclprobe.model.values import replace
from ncclprobe.redact import identifiers
from ncclprobe.redact.redactor import Redactor
from ncclprobe.report import causes, delivery, digest, markdown, nodes, rows, text
from ncclprobe.report.fleet import shared_words
from ncclprobe.report.html import legible
from ncclprobe.report.rails import MOST_NODES

Rows = Iterator[tuple[str, object]]
FORMS = Path(__file__).parent / "data" / "redact" / "forms.txt"
_LOSSES = {
    "steady": [0.0] * 40, "5 %": [0.0] * 60 + [0.05] * 20, "30 %, repaired": [0.0] * 60 + [0.3] * 20 + [0.0] * 5,
    "an odd day": [0.0] * 60 + [0.9] + [0.0] * 20, "half a repair": [0.0] * 40 + [0.4] * 10 + [0.12] * 12,
    "a rest of 2 %": [0.0] * 40 + [0.4] * 10 + [0.02] * 12, "since the 5th": [0.0] * 4 + [0.1] * 10,
    "since the 10th": [0.0] * 9 + [0.1] * 10, "since the 12th": [0.0] * 11 + [0.1] * 10,
    "early, repaired": [0.0] * 6 + [0.1] * 8 + [0.0] * 8, "slowly": [0.0] * 20 + [0.004 * day for day in range(25)],
    "always 12 %": [0.12] * 11, "always 3 %": [0.03] * 11}  # fmt: skip
_BESIDE: Mapping[str, Mapping[str, Any]] = {
    "only": {}, "siblings": {"siblings": 391.0, "spread": 0.01}, "one partner": {"partners": ("n2",)},
    "partners": {"partners": ("n2", "n3", "n4")}, "noisy": {"noise": 0.06}}  # fmt: skip


def _summary(at: Drift) -> object:
    usual = (at.tests, at.count, at.mean, at.squares, at.shared, at.accepted, len(at.first), len(at.waiting))
    sums = [(each.state, each.height, each.tests, each.lost, each.most, (each.since_s or 0.0) - FIRST_S, each.odds)
            for each in (at.own, at.siblings)]  # fmt: skip
    return usual, at.recent, sums, [(each.spells, each.partners) for each in (at.own, at.siblings)]


def _course(of: Sequence[Reading], sums: int = 1, at: Drift | None = None) -> object:
    """Where a course changes its state, and how it ends."""
    found = [at or Drift()]
    for each in of:
        found.append(drift.step(found[-1], each, sums))
    changes = [
        (number, later.own.state, later.siblings.state)
        for number, (earlier, later) in enumerate(itertools.pairwise(found))
        if (earlier.own.state, earlier.siblings.state) != (later.own.state, later.siblings.state)
    ]
    return changes, _summary(found[-1])


def _drift_inputs() -> Rows:
    """Courses of a number: alone, beside siblings, with partners, of several sums, accepted, and on a new driver."""
    for name, losses in _LOSSES.items():
        for beside, more in _BESIDE.items():
            yield f"{name}, {beside}", _course(list(readings(random.Random(name), losses, **more)))
        yield f"{name}, 4 sums", _course(list(readings(random.Random(name), losses)), sums=4)
    for beside, more in list(_BESIDE.items())[:2]:
        before = drift.course(readings(random.Random(6), [0.0] * 40 + [0.2] * 20, **more))
        after = drift.accepted(before, 1e9)
        for name, losses in (("kept", [0.2] * 30), ("lost more", [0.2] * 2 + [0.3] * 8), ("gained", [0.0] * 20)):
            days_after = list(readings(random.Random(7), losses, **more))
            yield f"accepted, {name}, {beside}", (_summary(after), _course(days_after, at=after))
    at = drift.course(readings(random.Random(9), [0.0] * 30, siblings=391.0, spread=0.01))
    for name, begun in (("same", at), ("new driver", replace(at, recent=()))):
        yield f"{name}, no siblings yet", _summary(drift.step(begun, Reading(FIRST_S, 300.0)))
    for count in (8, 9, 12):
        beside_all = drift.Siblings({node: (5.0 + node / 50, 5.1 + node**2 / 90) for node in range(count)})
        yield f"{count} siblings", [beside_all.beside(node) for node in (0, count // 2, count - 1, 99)]
    yield "scatter", [drift.scatter(count, squares) for count in (0, 5, 100) for squares in (0.0, 0.01, 1.0)]


_RATE = Number("", "all_reduce 1 GiB", "GB/s", "8 ranks")
_HOT = warn("GPU2", "too hot", blame="node", action="repair")
_UNSETTLED = replace(DOWN, action="retest")
_JOB = fail("NCCL_IB_HCA", "names no device", blame="job")
_DAY = day_of("n1", 0)
_TESTS: Mapping[str, Sequence[NodeReport]] = {
    "nothing": [], "a day": days([]), "down": days([], [DOWN], [DOWN]), "not looked": days([DOWN], None),
    "mended": days([DOWN], None, []), "twice": days(*[[DOWN], []] * 2), "flapping": days(*[[DOWN], []] * 3),
    "flapping, down": days(*[[DOWN], []] * 3, [DOWN]), "flapped": days(*[[DOWN], []] * 3, *[[]] * 24),
    "flapped long ago": days(*[[DOWN], []] * 3, *[[]] * 31), "unsettled": days([_UNSETTLED], [_HOT, _UNSETTLED]),
    "hot": days([_HOT]), "a job's": days([_JOB]), "hot, a job's": days([replace(_HOT, blame="job")]),
    "hot, an image's": days([replace(_HOT, blame="image")]), "hot, a link's": days([replace(_HOT, blame="link")]),
    "hot, to be tested again": days([replace(_HOT, action="retest")]),
    "hot, a note": days([replace(_HOT, severity=Severity.NOTE)]),
    "two faults": days([DOWN, _HOT], [DOWN, fail("GPU2", "is lost", blame="node", action="repair")]),
    "not looked at": told(replace(_DAY, nodes=(replace(_DAY.nodes[0], status=Status.UNKNOWN),)), "r"),
    "new driver": [*days([], []), *told(day_of("n1", 2, driver="560.28.03"), "r")],
    **{f"counts {name}": [NodeReport("n1", FIRST_S + day * DAY_S, boot=boot, counters={
        "mlx5_3:1 link_downed": count} if look else {}) for day, (boot, count, look) in enumerate(each)] for name,
        each in {"up": [("a", 2, 1), ("a", 3, 1), ("a", 3, 1), ("a", 7, 1), ("a", 8, 1)], "up twice": [("a", 2, 1),
        ("a", 3, 1), ("a", 7, 1)], "boots": [("a", 0, 1), ("b", 9, 1), ("c", 18, 1), ("d", 27, 1), ("e", 36, 1)],
        "back": [("a", 9, 1), ("a", 1, 1), ("a", 0, 1), ("a", 0, 1)], "unread": [("a", 0, 1), ("a", 0, 0), ("a", 0, 1),
        ("a", 0, 0), ("a", 5, 1)],}.items()}}  # fmt: skip


def _lost(loss: float, since: int, count: int, *changed: str, **more: Any) -> Series:
    course = drift.course(readings(random.Random(1), [0.0] * since + [loss] * count, noise=0.005))
    return replace(Series(_RATE, course, FIRST_S, FIRST_S + (since + count) * DAY_S, changed), **more)


def _health_inputs() -> Rows:
    """The state of a node by its tests and its numbers, now and a month later, what happened, and each of its days."""
    twice = _lost(0.3, 20, 12)
    series = {
        "no number": [], "as usual": [_lost(0.0, 10, 3)], "lost": [_lost(0.2, 20, 12, "driver 550 → 560")],
        "lost twice": [_lost(0.3, 20, 12), _lost(0.1, 20, 20, number=replace(_RATE, name="all_gather 1 GiB"))],
        "measured no more": [_lost(0.3, 20, 12, last_s=FIRST_S)],
        "by both sums": [replace(twice, drift=replace(twice.drift, siblings=twice.drift.own))],
        "other software": [_lost(0.2, 20, 12), _lost(0.0, 1, 2, number=replace(_RATE, how="8 ranks, NCCL 2.30"))],
    }  # fmt: skip
    for name, tests in _TESTS.items():
        course = functools.reduce(node_health.step, tests, NodeCourse())
        for number, of in series.items():
            now = node_health.standing("n1", course, of)
            ages = [node_health.aged(now, FIRST_S + day * DAY_S) for day in (-400, 20, 29.9, 30.1, 61, 400)]
            later = [(each.state, *each.evidence.split()) for each in (ages if number == "no number" else ages[3:4])]
            seen = [(each.time_s - FIRST_S, *each.what.split()) for each in node_health.events(tests, of)]
            of_days = node_health.days([(each, "r") for each in tests], of) if tests else {}
            by_day = [(day, each.state, each.words) for day, each in of_days.items()]
            yield f"{name}, {number}", (now, now.evidence.split(), later, seen, by_day[-3:])
    for lost in (0.04, 0.05, 0.3):
        for count, all_of in ((2, 2), (3, 3), (4, 5), (7, 9), (9, 10)):
            fell = {f"n{n}": [(0, 100.0), (1, 100.0 * (1 - lost))] for n in range(count)}
            held = {f"m{n}": [(0, 100.0), (1, 100.0)] for n in range(all_of - count)}
            yield f"{count} of {all_of} lose {lost}", shared.loss("x", "GB/s", 1, {**fell, **held})
    for since in (2, 3, 4, 10, 17, 18, 19):
        rng = random.Random(since)
        means = [(day, 394.0 * (1 - 0.08 * (day >= since)) * math.exp(rng.gauss(0, 0.003))) for day in range(20)]
        yield f"a step on day {since}", (shared.step(means), shared.step(means[:-1]), shared.step(means[since - 2 :]))
    for came, since in ((5, 5), (4, 5), (5, 4), (2, 5)):
        course = node_health.step(NodeCourse(), told(day_of("n1", came, _HOT), "f")[0])
        sum_ = Sum("degraded", 9.0, 5, -0.2, since_s=FIRST_S + since * DAY_S)
        of = [Series(_RATE, Drift(12, 12, 6.0, recent=(300.0,), own=sum_), 0.0, course.last_s)]
        yield f"hot on {came}, lost on {since}", node_health.standing("n1", course, of).evidence.split()


def _fallen(node: str, count: int, since: float, driver: float = 99, **changes: Any) -> list[Report]:
    """A report a day, whose rate falls on one day and whose driver changes on one."""
    drivers = ["560" if day >= driver else "550" for day in range(count)]
    return [day_of(node, day + 0.5, rate=340.0 if day >= since else 391.0, driver=drivers[day], **changes)
            for day in range(count)]  # fmt: skip


def _beside(nodes: int, count: int, driver: float = 99) -> list[Report]:
    return [
        day_of(f"n{node}", day + node / 100, rate=391.0 + node, driver="560" if day >= driver else "550")
        for day in range(count)
        for node in range(nodes)
    ]


def _rolled_out() -> Iterator[Report]:
    """Two nodes a day get a driver that costs a tenth."""
    rng = random.Random(5)
    for day, node in itertools.product(range(30), range(6)):
        lost = day >= 15 + node // 2
        rate = 394.0 * (1 - 0.1 * lost) * math.exp(rng.gauss(0, 0.01))
        yield day_of(f"w{node}", day + node / 100, rate=rate, driver="560" if lost else "550")


def _booted(node: str, day: float, boot: str, gpus: str = "") -> Report:
    report = day_of(node, day)
    return replace(report, environment={node: replace(report.environment[node], boot=boot, gpus=gpus)})


def _in_pairs(days: int, since: int) -> list[Report]:
    """Return a report a day of three nodes in pairs, of which n3 becomes slow."""
    ways = [*itertools.permutations(("n1", "n2", "n3"), 2)]
    made = (tuple(_pair(*way, 20.0 if day >= since and "n3" in way else 48.0) for way in ways) for day in range(days))
    return [replace(_on("n1", "n2", "n3", pairs=pairs), started=on(day)) for day, pairs in enumerate(made)]


def _with_another(report: Report) -> Report:
    """Return a report with a second rate, which loses twice as much."""
    (row,) = report.measurements
    return replace(report, measurements=(row, replace(row, op="reduce", busbw_GBps=2 * row.busbw_GBps - 394.0)))


_REPAIRED = [day_of(f"w{node}", 20 + day + node / 100, rate=394.0) for day in range(6) for node in range(6)]
_STORES: Mapping[str, Callable[[], Iterable[Report]]] = {
    "a driver": lambda: _fallen("n1", 40, 30, 30), "a driver the day before": lambda: _fallen("n1", 40, 31, 30),
    "a driver earlier": lambda: _fallen("n1", 40, 31, 28),
    "other software": lambda: [*_fallen("n1", 30, 99), *_fallen("n1", 40, 0, software={"nccl": "2.29.1"})[30:]],
    "a driver of its own": lambda: [*_beside(4, 30), *_fallen("slow", 30, 20, 20)],
    "a driver of most": lambda: [*_beside(4, 30, 20), *_fallen("slow", 30, 20, 20)],
    "siblings": lambda: [*_beside(10, 12), *_fallen("slow", 12, 0)],
    "siblings of another driver": lambda: [*_beside(10, 12), *_fallen("slow", 12, 0, 0)],
    "all lose": lambda: lost_by_all(6, 20, 10, 0.10), "none loses": lambda: lost_by_all(6, 30, 99, 0.0),
    "a new driver": lambda: lost_by_all(6, 30, 15, 0.0),
    "all are repaired": lambda: [*lost_by_all(6, 20, 10, 0.10), *_REPAIRED],
    "one of them loses": lambda: [*lost_by_all(6, 20, 99, 0.0), *_fallen("w9", 20, 10)],
    "two nodes lose": lambda: lost_by_all(2, 30, 15, 0.10), "all lose 2 %": lambda: lost_by_all(6, 30, 15, 0.02),
    "all lose on the last day": lambda: lost_by_all(6, 16, 15, 0.10), "a roll-out": _rolled_out,
    "one boot": lambda: [_booted("a", 0, "b1"), _booted("b", 1, "b1")],
    "the same GPUs": lambda: [_booted("a", 0, "b1", "g1"), _booted("b", 1, "b2", "g1")],
    "both": lambda: [_booted("a", 0, "b1", "g1"), _booted("b", 1, "b1", "g1")],
    "neither": lambda: [_booted("a", 0, "b1", "g1"), _booted("b", 1, "b2", "g2")],
    "no GPUs known": lambda: [_booted("a", 0, "b1"), _booted("b", 1, "b2")],
    "no boot known": lambda: [_booted("a", 0, ""), _booted("b", 1, "")],
    "two at once": lambda: [_booted("a", 0, "b1"), _booted("b", 1, "b1"), _booted("a", 2, "b1")],
    "GPUs exchanged": lambda: [_booted("a", 0, "b1", "g1"), _booted("a", 1, "b2", "g2"), _booted("b", 2, "b3", "g2")],
    "GPUs lent": lambda: [_booted("a", 0, "b1", "g1"), _booted("a", 1, "b2", "g2"), _booted("b", 2, "b3", "g1")],
    "names against their order": lambda: [_booted("z", 0, "b1"), _booted("a", 1, "b1")],
    "a node that was always slow": lambda: [*lost_by_all(4, 20, 10, 0.1), *(
        day_of("slow", day + 0.5, rate=200.0 if day < 10 else 170.0) for day in range(20)), *_fallen("w9", 20, 99, 10)],
    "two numbers": lambda: map(_with_another, lost_by_all(4, 20, 10, 0.1)),
    "a driver of three": lambda: [*_beside(3, 30, 20), *_fallen("slow", 30, 20, 20)],
    "a driver of two": lambda: [*_beside(2, 30, 20), *_fallen("slow", 30, 20, 20)],
    "two partners": lambda: _in_pairs(26, 15),
    "two partners, late": lambda: (made := _in_pairs(26, 15))[:8] + made[9:20] + made[8:9] + made[20:],
    "firmware known late": lambda: [*_fallen("n1", 30, 30), *(replace(each, environment={"n1": NodeEnvironment(
        {"driver": "560", "NIC firmware": "28"})}) for each in _fallen("n1", 40, 30)[30:])],
    "late": lambda: [day_of("n7", day, *([DOWN] if day in (1, 2) else [])) for day in (0, 3, 1, 2)],
    "back and forth": lambda: [day_of("n7", day, *([DOWN] if day in (2, 9, 16) else [])) for day in range(21)],
    "down since": lambda: [day_of("n7", day, *([DOWN] if day > 5 else [])) for day in range(10)],
    "repaired": lambda: [day_of("n7", day, rate=340.0 if 25 <= day < 33 else 391.0) for day in range(39)],
    "not repaired": lambda: [day_of("n7", day, rate=340.0 if day >= 25 else 391.0) for day in range(34)]}  # fmt: skip


def _stores_inputs() -> Rows:
    """What a store of these reports tells of its nodes, of all of them, and to a report that is not yet in it."""
    for name, made_of in _STORES.items():
        *reports, newest = made_of()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fleet.db"
            filled(path, *reports)
            with store.opened(path, 60.0) as kept:
                seen = kept.preview(told(newest, "r.json"))[newest.nodes[0].name]
            filled(path, newest)
            with store.opened(path, 60.0) as kept:
                states = [(each.name, each.state, each.since_s and each.since_s - FIRST_S, *each.evidence.split())
                          for each in kept.standings()]  # fmt: skip
                of_all = [(each, *each.changed, *shared_words(each).split()) for each in kept.shared()]
                found = [(each.severity, each.subject, each.blame, *each.message.split())
                         for check in (trends.rate, trends.flapping) for each in check.run(seen)]  # fmt: skip
                yield name, (states, of_all, kept.renamed(), found)


def _pair(src: str, dst: str, rate: float) -> PairRow:
    return PairRow(src=0, dst=1, src_end=f"{src} rail 0", dst_end=f"{dst} rail 0", nbytes=1 << 26, latency_nbytes=8,
                   latency_us=2.0, GBps=rate, time_us=1.0, min_us=1.0, max_us=1.0, samples_us=(1.0,))  # fmt: skip


def _way(src: str, dst: str) -> RailWay:
    return RailWay(src=src, dst=dst, src_rail=2, dst_rail=2, src_end=f"{src} rail 2 (mlx5_2:1)", tests=1, GBps=48.0,
                   dst_end=f"{dst} rail 2", state="dead" if dst == "n5" else "ok")  # fmt: skip


def _on(*names: str, **rows: Any) -> Report:
    """A healthy report on nodes of these names."""
    return samples.report(*(samples.verdict(Status.PASS, node=name) for name in names), status=Status.PASS, **rows)


def _told_inputs() -> Rows:
    """What reports of each kind tell of their nodes: numbers, faults with their weight, versions."""
    names = ("n1", "n2", "n3", "n10", "n5")
    ways = list(itertools.permutations(names, 2))
    of_run = replace(_JOB, blame="node", nodes=("n1",))
    reports = {
        **{"day": day_of("n1", 0, DOWN, _HOT, _UNSETTLED, _JOB), "sick": samples.SICK, "sweep": made.sweep()},
        **{"pairs": made.pairs(), "moved": made.moved(), "fleet": made.fleet(4), "copies": made.whole()},
        **{f"blame {each}": day_of("n1", 0, replace(DOWN, blame=each)) for each in get_args(Blame)},
        "a sick partner": _on(*names, pairs=tuple(_pair(a, b, 20.0 if "n3" in (a, b) else 48.0) for a, b in ways)),
        "two partners": _on(*names[:3], pairs=tuple(_pair(a, b, 48.0) for a, b in ways if {a, b} <= {*names[:3]})),
        "one partner": _on("n1", "n2", pairs=(_pair("n1", "n2", 48.0), _pair("n2", "n1", 47.0))),
        "rails": _on(*names, rails=tuple(_way(a, b) for a, b in ways)),
        "of a run": samples.report(samples.verdict(Status.FAIL, of_run, id="run.pairs"),
                                   samples.verdict(Status.PASS, node="n1")),
        "of a run of one": samples.report(samples.verdict(Status.FAIL, _JOB, of_run, id="run.bandwidth")),
        "counted": day_of("n1", 0, environment={"n1": NodeEnvironment(
            {"driver": "550"}, boot="1d82", counters={"mlx5_3:1 link_downed": 7, "GPU3 ECC": -1})})}  # fmt: skip
    for name, report in reports.items():
        yield name, told(replace(report, nodes=report.nodes[:5]), "r.json")


_MARK = re.compile(r"<script.*?</script>|<style.*?</style>|<[^>]+>", re.DOTALL)


def _words(shown: str) -> list[list[str]]:
    return [line.split() for line in shown.splitlines() if line.strip()]


_LADDER = LadderRow(
    rung="rank", ranks=1, groups=8, slowest=(0,), step_bytes=250_000_000, step_us=41_000.0, samples_us=(41_000.0,) * 5,
    nbytes=64 << 20, speedup=1.0, efficiency=1.0)  # fmt: skip
_JOB_RUNG = replace(
    _LADDER, rung="job", ranks=16, groups=1, step_us=52_000.0, busbw_GBps=48.0, best_GBps=49.0, speedup=12.6,
    efficiency=0.79, interval=(0.76, 0.81), expectation=samples.BAND)  # fmt: skip
_NOTHING = Localisation(
    4, "nobody", all_slow=True, tests=12, steps=1, slow_rails={2: 0.4}, lost=(LostPair("n2", "n3", "timed out"),) * 2,
    cleared=("into n0",), complete=False,
    intra_node=(Inside("rank 4 with rank 5 inside n1", "pair", "n1", (4, 5), 0.25, 20.0, 3),),
    excluded_ranks=(Aside(2, "n2 (eth0)", "timed out"), Aside(3, "rank 3", "silent", gone=True)),
    wrong=(WrongBytes(0, 4, "n0", "n4", 12, Mismatch(4, 9, 0, "7", "6", "0x07", "0x06")),))  # fmt: skip
_BAD = End("n1", 2)
_FOUND = (
    fail("out of n1 rail 2 (mlx5_2:1)", "sends 40 % of the usual", nodes=("n1",)),
    fail("n0 rail 1 <-> n3 rail 1", "is dead", nodes=("n0", "n3")),
    warn("n2 rail 0-1", "is far", nodes=("n2",)))  # fmt: skip


def _rails(nodes: int, count: int, **changes: Any) -> Report:
    """A report of the rails of a made-up fleet."""
    seen = fake_rails.played(World(fake_rails.names(nodes), count, **changes))
    ways = rail_ways([Snapshot(node, {Rails: each}) for node, each in seen.items()])
    return replace(samples.HEALTHY, rails=ways)


_COST = FirstCall(1.25, 3, 0.214, 0, 4e-6, 0.0213, 1)


_IN_ALL_FORMS = ("sick", "cut", "whole", "causes", "pairs", "ladder")


def _wording_inputs() -> Rows:
    """Reports in all their words, some in each form: what is kept of commands has only names and numbers."""
    moved, caused = made.moved(), made.causes()
    reports = {
        **{"healthy": samples.HEALTHY, "sick": samples.SICK, "cut": samples.INCONCLUSIVE, "whole": made.whole()},
        **{"causes": caused, "pairs": made.pairs(4), "moved": moved, "large": samples.fleet(40, 3)},
        "ladder": replace(moved, pairs=(), localisation=None, ladder=(_LADDER, _JOB_RUNG), first_call=_COST),
        "dead rail": _rails(4, 4, carries=only(_BAD)),
        "slow rail": replace(
            _rails(4, 4, carries=only(_BAD, share=0.4, into=False)),
            checks=tuple(samples.verdict(Status.FAIL, each, node=None, id=f"x.{n}") for n, each in enumerate(_FOUND)),
        ),
        "many rails": _rails(2, 12),
        "many nodes": _rails(MOST_NODES + 6, 2, carries=only(End("n29", 1))),
        "all slow": replace(made.pairs(3), localisation=_NOTHING),
        "no cause": replace(caused, causes=(), status=Status.PASS, exit_code=0),
    }
    for name, report in reports.items():
        yield f"{name}, verbose", _words(text.render(report, verbose=True))
        yield f"{name}, narrow", _words(text.render(report, width=60))
        lines = (text.quiet(report), digest.headline(report), digest.verdict_line(report))
        yield f"{name}, quiet", _words("\n".join(lines))
        for form in delivery.FORMATS:
            if form != "json" and name in _IN_ALL_FORMS:
                yield f"{name}, {form}", _words(_MARK.sub("\n", delivery.rendered(report, form)))
        if report.files:
            yield f"{name}, causes", _words(causes.render(report, verbose=True) + causes.quiet(report))


_SCOPES = {
    "usual": Scope(), "8 GPUs": Scope(gpus=8), "gloo": Scope("gloo"), "apart": Scope(apart=True),
    "pasted": Scope(pasted=True), "no driver": Scope(driver=False)}  # fmt: skip


_SLOW = fail("mlx5_3:1", "runs at 200 Gb/s")
_REMEDIES = (
    "reset it (`nvidia-smi --gpu-reset -i N`), or reboot.",
    "unset it, or name the function: NCCL_ALGO=allreduce:tree,ring.", "look at `numactl` and FOO.")  # fmt: skip


def _blame_inputs() -> Rows:
    """Whose fault a finding is and what to do, by its blame, action, certainty and nodes; the link at fault."""
    for blame, action in itertools.product(get_args(Blame), get_args(Action)):
        found = replace(_SLOW, blame=blame, action=action)
        once, of_two = replace(found, confidence=ONCE), replace(found, nodes=("n3", "n4"))
        lines = (
            digest.blamed(found), digest.blamed(once, ("n0",)), digest.blamed(of_two),
            digest.blamed(found, ("a", "b")))  # fmt: skip
        yield f"{blame}, {action}", [line.split() for line in lines]
    for subjects in (("n2 rail 5 (mlx5_5:1)",), ("mlx5_3:1",), ("rank 5",), ("mlx5_3:1", "mlx5_4:1")):
        problem = digest.Problem("x.y", fail(subjects[0], "is slow", nodes=("n2",), blame="link"), (), subjects)
        yield " ".join(subjects), digest.blame_of(problem).split()
    half = note("GPU6", "not looked at", related=(Related("gpu.count", "GPU6"), Related("x.y", "z")))
    lost = samples.report(samples.verdict(Status.FAIL, fail("GPU6", "is lost"), half, id="gpu.count"))
    yield "caused by one of two", [each.finding.message.split() for each in digest.problems(lost)]
    yield "to copy", [digest.copyable(each) for each in _REMEDIES]
    for advisory, required, verbose in ((12, 0, False), (13, 0, False), (13, 0, True), (2, 1, False), (2, 1, True)):
        blind = [samples.verdict(Status.UNKNOWN, id=f"a.b{n}", why="not root", required=n < required)
                 for n in range(advisory + required)]  # fmt: skip
        report = samples.report(*blind, samples.verdict(Status.PASS, id="a.c"), status=Status.UNKNOWN)
        yield f"{advisory} advisory, {required}, {verbose}", _words(text.render(report, verbose=verbose, width=400))


def _sayings_inputs() -> Rows:
    """The lines about a whole report by its status, its scope, its nodes and how it was started; durations; numbers."""
    for (name, scope), status, count in itertools.product(_SCOPES.items(), Status, (1, 3)):
        found = {"fail": (fail("x", "is wrong"),), "warn": (warn("x", "may be wrong"),)}.get(status.value, ())
        checks = [samples.verdict(status, *found, node=f"n{n}", why="not read", required=n == 0) for n in range(count)]
        report = replace(
            samples.report(*checks, status=Status.PASS), status=status, exit_code=4 if found else 0, scope=scope
        )
        lines = (digest.headline(report), digest.conclusion(report), digest.counts(report), digest.verdict_line(report))
        yield f"{name}, {status}, {count}", [line.split() for line in lines]
    for kind in ("single", "self", "environment", "options", "slurm", "torchrun"):
        for world, nnodes in ((None, None), (1, 1), (16, 2)):
            launched = replace(samples.HEALTHY, launch=LaunchRow(kind, nnodes, world))
            yield f"{kind} of {world}", text.render(launched).splitlines()[0].split()
    seconds = (-1.0, math.nan, 0.0, 0.004, 0.96, 1.0, 9.64, 59.9, 60.0, 61.4, 3599.6, 3600.0, 3720.0, 86399.0, 1e6)
    yield "durations", [legible.lasting(each).split() for each in seconds]
    numbers = (None, 0.0, 1e-7, 0.0123, 0.9994, 9.999, 98.76, 999.6, 12345.6, 4.2e6)
    yield "numbers", [f"{legible.rate(each)} | {legible.micros(each)}".split() for each in numbers]
    coded = ("`a", "a`", "`a`", "a``b", "", "plain", "x" * 2000, "a\nb|c", "@all *b*", "1. a", "- a", "#1", "a_b <c>")
    yield "rates", [rows.rate(each) for each in (1.8e-06, 9.9e-05, 1e-4, 0.1356, 1.2, 483.24, 999.94, 999.95)]
    cut = (("one two", 7), ("one two", 6), ("one two", 4), ('a "bcd"', 5), ("abcdef", 3))
    yield "cut", [whole_words(each, most).split() for each, most in cut]
    yield "Markdown", [f"{markdown.code(each)[:90]} | {markdown.text(each)[:90]}".split() for each in coded]
    said = (
        "http://quux7.zorg.ai:80/x", "quux.zorg.ai failed", "to quux.zorg.ai:29500", "//quux.zorg.ai is gone",
        "torch.nn.Module", "libnccl.so.2.28", "gpu-node-0042.dc1", "gpu-0042.zorg.net", "quux7.zorg.net:1",
        "rank-0.log", "a-b.zorg.com and c1.d.internal", "r07u12n03 lost", "node-001, node-2", "mlx5_0.port1",
    )  # fmt: skip
    yield "hosts", [list(identifiers.hosts(each)) for each in said]
    names = ("ib.state", "ib.rate", "gpu.count", "gpu.clocks", "env.value")
    asked = (("ib.stat", "check", names, "`x` lists all"), ("zzz", "backend", ("nccl", "gloo")),
             ("ib.", "check", names), ("gpu.cuont", "check", names), ("\x1b[2J", "word", ("a",)),
             ("--loc", "option", ("--local",), "", ("--local", "--log")))  # fmt: skip
    yield "unknown", [str(unknown(*each)).split() for each in asked]
    gaps = (Absent("a", "Denied"), Absent("b", "Denied"), Absent("a", "Missing"))
    yield "gaps", [unlearned(gaps[:count]).refused for count in (1, 2, 3)]
    yield "ticks", [legible.micros_tick(each).split() for each in (0.5, 1.0, 999.0, 1e3, 5e3, 1e6, 2.5e6)]


_LANES = samples.LOST_LANES
_LISTED: Mapping[str, Sequence[Verdict]] = {
    **{f"blame {each}": [samples.verdict(Status.FAIL, replace(_LANES, blame=each))] for each in get_args(Blame)},
    "a warning": [samples.verdict(Status.FAIL, replace(_LANES, severity=Severity.WARN))],
    "to be tested again": [samples.verdict(Status.FAIL, replace(_LANES, action="retest"))],
    "once": [samples.verdict(Status.FAIL, replace(_LANES, confidence=ONCE))],
    "measured once": [samples.verdict(Status.FAIL, replace(_LANES, confidence=Certainty("low", "measured once")))],
    "a comparison": [samples.verdict(Status.FAIL, replace(_LANES, nodes=("n0",)), node=None)],
    "a comparison, n1": [samples.verdict(Status.FAIL, replace(_LANES, nodes=("n1",)), node=None)],
    "measured": [samples.verdict(Status.FAIL, fail("all_reduce", "slow", action="retest"), id="run.bandwidth")],
    "measured again": [samples.verdict(Status.FAIL, replace(_LANES, blame="node", nodes=("n1",)), id="run.pairs")],
    "blind": [samples.verdict(Status.UNKNOWN, why="permission denied", required=True)],
    "explained": [samples.verdict(Status.SKIP, why="explained by gpu.driver", required=True)],
    "explained, of a run": [samples.verdict(Status.SKIP, why="explained by gpu.driver", id="run.x", required=True)],
    "failed, and explained": [samples.verdict(Status.FAIL, why="explained by gpu.driver", required=True)],
    "a note of all": [samples.verdict(Status.PASS, note("a", "b"), node=None)],
    "does not apply": [samples.verdict(Status.SKIP, why="applies only to x", required=True)],
    "too noisy": [samples.verdict(Status.UNKNOWN, id="run.bandwidth", why="too noisy", required=True)],
    "a gap": [samples.verdict(Status.UNKNOWN, why="denied")]}  # fmt: skip


def _lists_inputs() -> Rows:
    """In which list n0 is, beside a healthy n1; and the annotations of a run on GitHub."""
    for name, verdicts in _LISTED.items():
        own = [samples.verdict(Status.PASS, id="a.b", node=node) for node in ("n0", "n1")]
        report = samples.report(*verdicts, *own)
        yield name, (nodes.sort(report), [line.split() for line in markdown.annotations(report)])
    for name, report in (("sick", samples.SICK), ("cut", samples.INCONCLUSIVE), ("whole", made.whole())):
        yield name, (nodes.sort(report), [line.split() for line in markdown.annotations(report)])


def _redactions_inputs() -> Rows:
    """What is left of each text with something to hide, and of the answers of a site that wants to hide."""
    lines = [line.split(" :: ")[0] for line in FORMS.read_text(encoding="utf-8").splitlines()]
    for number, line in enumerate(dict.fromkeys(lines)):
        yield f"{number}", Redactor(KEY).text(line.replace("\\n", "\n")).split()
    for number, line in enumerate(Redactor(KEY).capture(site_capture()).splitlines()):
        yield f"answer {number}", line.split()
    for number, line in enumerate((FORMS.parent / "near.txt").read_text(encoding="utf-8").splitlines()):
        yield f"near {number}", _redacted(line).replace('"', "'").split()


def _redacted(line: str) -> str:
    """Redact the rows of a capture, the command of a report, or a text."""
    if line.startswith("{"):
        return Redactor(KEY).capture(line.replace(" // ", "\n"))
    if line.startswith("ncclprobe"):
        return Redactor(KEY).report(replace(samples.SICK, command=line)).command
    return Redactor(KEY).text(line.replace("\\n", "\n"))


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "drift": _drift_inputs, "health": _health_inputs, "told": _told_inputs, "stores": _stores_inputs,
    "wording": _wording_inputs, "sayings": _sayings_inputs, "blame": _blame_inputs, "node-lists": _lists_inputs,
    "pages": pages, "lines": lines, "redactions": _redactions_inputs}  # fmt: skip
