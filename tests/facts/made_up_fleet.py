"""What reports tell of nodes, and what becomes of it: `texts-fleet.txt` keeps it in all words."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from typing import Any

from fleet.made import DAY_S, DOWN, FIRST_S, day_of, days, on

from ncclprobe.fleet import drift, extract, node_health, shared
from ncclprobe.model import bounds
from ncclprobe.model.findings import Certainty, Finding, Severity, Status, Verdict, fail, warn
from ncclprobe.model.fleet import Drift, Fault, NodeCourse, NodeEvent, NodeReport, Number, Reading, Series, Sum
from ncclprobe.model.pair_results import PairRow, RailWay
from ncclprobe.model.report import NodeEnvironment
from ncclprobe.model.values import replace
from tests.report import samples

_DAY = day_of("n1", 0)
_ROW = _DAY.measurements[0]
_PAIR = PairRow(src=0, dst=1, src_end="n1 rail 0", dst_end="n2 rail 0", nbytes=1 << 26, latency_nbytes=8, GBps=48.0,
                latency_us=2.0, time_us=1.0, min_us=1.0, max_us=1.0, samples_us=(1.0,))  # fmt: skip
_WAY = RailWay(src="n1", dst="n2", src_rail=2, dst_rail=2, src_end="n1 rail 2 (a:1)", dst_end="n2 rail 2", state="ok",
               tests=1, GBps=48.0)  # fmt: skip
_SMALL = {"nbytes": 1 << 20, "busbw_GBps": 90.0}
_RATE = Number("", "all_reduce 1 GiB", "GB/s", "8 ranks, NCCL 2.28")


def _numbers(**more: Any) -> object:
    told = extract.told(replace(_DAY, **more), "r.json")
    return [(each.node, number.part, number.name, number.how, reading.value, round(reading.noise, 6), reading.partners)
            for each in told for number, reading in each.numbers.items()]  # fmt: skip


def _collectives(*changes: Mapping[str, Any]) -> object:
    return _numbers(measurements=tuple(replace(_ROW, **each) for each in changes))


def _between(*pairs: Mapping[str, Any], kind: str = "pairs") -> object:
    nodes = tuple(replace(_DAY.nodes[0], name=name) for name in ("n1", "n2", "n3", "n4", "n5"))
    row: Any = _PAIR if kind == "pairs" else _WAY
    return _numbers(nodes=nodes, **{kind: tuple(replace(row, **each) for each in pairs)})


def _with(name: str, kind: str = "rail 0", **more: Any) -> dict[str, Any]:
    return {"dst_end": f"{name} {kind}", **more}


def _weight(*given: Any) -> str:
    severity, blame, action, level = given
    (node,) = extract.told(day_of("n1", 0, Finding(severity, "x", "y", blame, action, Certainty(level, ""))), "r.json")
    return node.faults[0].weight


def _told(**changes: Any) -> object:
    return [(each.node, each.faults, each.looked, each.unknown, each.machine, each.boot, len(each.counters), each.gpus)
            for each in extract.told(replace(_DAY, **changes), "r.json")]  # fmt: skip


def _refused(names: Sequence[str], time_s: float) -> None:
    extract.refuse([NodeReport(name, time_s) for name in names], "r.json", 1.8e9)


def _standing(tests: Sequence[NodeReport], series: Sequence[Series] = ()) -> object:
    course = functools.reduce(node_health.step, tests, NodeCourse())
    found = node_health.standing("n1", course, series)
    events = [(each.time_s, each.what) for each in node_health.events(tests, series)]
    return found.state, found.since_s, found.evidence, len(course.faults), events


def _fell(*spells: tuple[float, float, float], how: str = "8 ranks, NCCL 2.28", since: float | None = None) -> Series:
    sum_ = Sum("degraded", 9.0, 5, -0.2, -0.2, FIRST_S + since * DAY_S) if since is not None else Sum()
    own = replace(sum_, spells=tuple((FIRST_S + a * DAY_S, FIRST_S + b * DAY_S, lost) for a, b, lost in spells))
    return Series(replace(_RATE, how=how), Drift(12, 12, 6.0, own=own), FIRST_S, FIRST_S + 40 * DAY_S)


def _unjudged(count: int, name: str, *waiting: float) -> Series:
    return replace(_fell(), number=replace(_RATE, name=name), drift=Drift(count, count, 6.0, waiting=waiting))


def _many(day: int, count: int, boot: str = "", **counters: int) -> NodeReport:
    """Return what a day tells: so many faults to watch, whose check looked, and counters."""
    faults = tuple(Fault("c", f"s{n}", Severity.WARN, "node", "unsure", "m") for n in range(count))
    return NodeReport("n1", FIRST_S + day * DAY_S, faults, ("c",), boot=boot, counters=counters)


def _days(*of: Any) -> object:
    tests = [(*extract.told(day_of("n1", at, *found), "r.json"), f"{at}.json") for at, *found in of]
    return [(each.state, *each.words, each.source) for each in node_health.days(tests, []).values()]


def _ends(*offs: Sequence[float]) -> object:
    """Return how a course ends whose logarithms are so far off."""
    end = drift.course(
        Reading(FIRST_S + day * DAY_S, math.exp(6.0 + off), 0.05) for day, off in enumerate(chain(*offs))
    )
    own = end.own
    return end.count, len(end.waiting), round(own.height, 4), round(own.lost, 4), own.since_s, own.state, own.spells


def _hot(*subjects: str) -> list[Finding]:
    return [warn(each, "too hot", blame="node", action="repair") for each in subjects]


def _counted(*counts: int) -> list[NodeReport]:
    return [
        NodeReport("n1", FIRST_S + day * DAY_S, boot="a", counters={"x": count}) for day, count in enumerate(counts)
    ]


def rows() -> Mapping[str, tuple[Callable[..., object], Sequence[Any]]]:
    """Return functions with their arguments, by name."""
    many = [fail(f"GPU{n}", "is lost", blame="node") for n in range(bounds.FLEET_FAULTS + 1)]
    ended = Verdict("run.pairs", "n1", Status.UNKNOWN, "x", why="ended by SIGTERM in phase 'start'", required=True)
    trend = Verdict("trend.rate", "n1", Status.FAIL, "slower", findings=(DOWN,))
    two, nodes = [replace(_DAY.nodes[0], name=name) for name in ("n1", "n2")], _DAY.nodes
    forged = fail("mlx5_0\nn9  failing", "bad \x1b[2J" + "x" * 999, blame="node")
    return {
        "numbers of collectives": (_collectives, [({},), (_SMALL, {}), ({}, _SMALL), (_SMALL, {
            "status": "inconclusive"}), ({"wrong": 3},), ({"nodes": 2, "ranks": 16},), ({"busbw_GBps": 0.0},), ({
            "place": "out", "busbw_GBps": 9.0}, {"place": "in"}), ({"place": "in"}, {"place": "out",
            "busbw_GBps": 9.0}), ({"op": "reduce", "redop": "max"}, {"op": "reduce"}), ({"redop": None},), ({
            "precision": None},), ({"mode": "graph"}, {}), ({"dtype": "bfloat16"}, {}), ({"backend": "gloo"}, {}), ({
            "precision": 9.0},), ({"busbw_GBps": bounds.MOST_GBPS * 2},)]),
        "numbers of copies": (lambda changes: _numbers(measurements=(),
            copies=(replace(samples.COPY, **{"node": "n1", **changes}),)), [{}, {"status": "inconclusive"},
            {"GBps": 0.0}, {"GBps": -1.0}, {"numa": 1}, {"numa": 0}, {"concurrent": True}, {"peer": "GPU4"},
            {"samples": 0}, {"device": "GPU4\nn9"}, {"node": "n9"}, {"kind": "d2h", "nbytes": 8}]),
        "conditions of numbers": (lambda machine, software: _numbers(
            fingerprint=machine and replace(_DAY.fingerprint, machine=machine, software=software)), [(None, {}), (
            {"gpu": "A", "product": "B", "cpu": "C"}, {"nccl": "2", "driver": "5", "torch": "3"}), ({"cpu": "C"}, {})]),
        "numbers between nodes": (_between, [({},), ({"both": True},), ({"inside": True},), ({"step": 1},),
            ({"GBps": 0.0},), ({"GBps": -1.0},), ({}, {"GBps": 40.0}), ({}, _with("n3")), ({}, _with("n3", GBps=40.0),
            _with("n4", GBps=20.0), _with("n5", GBps=30.0)), ({}, _with("n3", "rail 1"))]),
        "numbers of rails": (lambda *changes: _between(*changes, kind="rails"), [({},), ({"state": "dead"},),
            ({"GBps": None},), ({"GBps": 0.0},), ({}, _with("n3"), _with("n4", GBps=20.0))]),
        "weights of findings": (_weight, [*product((Severity.FAIL, Severity.WARN),
            ("node", "link", "fabric", "image", "job"), ("repair", "retest"), ("high", "low"))]),
        "what a report tells": (lambda changes: _told(**changes), [{}, {"nodes": ()}, {"nodes": nodes * 2},
            {"nodes": (replace(nodes[0], name=""), *nodes)}, {"started": "yesterday"}, *({"nodes": (*nodes,
            replace(nodes[0], name="x" * (bounds.NAME_CHARACTERS + more)))} for more in (0, 1)), {"files": ("a",)},
            {"status": Status.UNKNOWN, "checks": (ended,)}, {"status": Status.UNKNOWN, "checks": (*_DAY.checks, ended)},
            {"status": Status.FAIL, "checks": (ended,)}, {"status": Status.UNKNOWN,
            "checks": (replace(ended, why="the time was over"),)}, {"checks": (trend,)},
            {"checks": (trend, *day_of("n1", 0, DOWN).checks)}, {"checks": day_of("n1", 0, *_hot("a")).checks}, {
            "checks": (Verdict("run.x", "n1", Status.FAIL, "", findings=(DOWN,)),)}, {"checks": (Verdict("run.x", "n1",
            Status.FAIL, "", findings=(DOWN, replace(DOWN, nodes=("n2", "n9")))),), "nodes": tuple(two)}, {
            "checks": day_of("n1", 0, replace(DOWN, severity=Severity.NOTE)).checks},
            {"nodes": (replace(nodes[0], status=Status.UNKNOWN),)}, {"environment": {}},
            {"checks": day_of("n1", 0, forged).checks}, {"environment": {"n1": NodeEnvironment({"driver": "550\n560",
            "kernel": "", "NIC firmware": "28", "cuda": "13", "distribution": "Rocky", "torch": "2"}, boot="b\n",
            gpus="g", counters={"a": 0, "b": -1, "c": bounds.BYTES, "d": bounds.BYTES + 1})}}]),
        "how many faults and numbers": (lambda faults, copies: [(len(each.faults), len(each.numbers))
            for each in extract.told(replace(day_of("n1", 0, *many[:faults]), copies=tuple(
            replace(samples.COPY, node="n1", device=f"GPU{n}") for n in range(copies))), "r")], [
            (bounds.FLEET_FAULTS, bounds.FLEET_NUMBERS - 1), (bounds.FLEET_FAULTS + 1, bounds.FLEET_NUMBERS)]),
        "reports that are refused": (_refused, [(("n1",), 1.8e9 + bounds.FLEET_AHEAD_S), (("n1",), 1.8e9 +
            bounds.FLEET_AHEAD_S + 1), (("n1",), bounds.FLEET_SINCE_S), (("n1",), bounds.FLEET_SINCE_S - 1), ((
            "host-0a1b2c3d4e5f", "n1"), 1.7e9), (("host-0a1b2c3d4e5f",), 1.7e9)]),
        "what changed on machines": (shared.change, [([({"a": old, "k": "6"}, {"a": new, "k": "6", "z": "1"}) for old,
                                                       new in pairs],) for pairs in (
            ("12", "12", "11"), ("12", "11"), ("12",), ("12", "12", "34", "34"), (), ("12", "12", "12", "34"))]),
        "states of a node": (_standing, [([NodeReport("n1", 9.0, tuple(Fault("c", f"s{n}", Severity.FAIL, "node", "bad",
            "m" * 9) for n in range(bounds.FLEET_FAULTS + 1))), NodeReport("n1", 10.0, (Fault("c", "s999",
            Severity.FAIL, "node", "bad", "m"),), boot="a", counters={"x": 1})],), (days(_hot("b")),), (days(_hot("b",
            "a")),), (days(_hot("b"), _hot("b", "a"), _hot("c", "b", "a")),), (days([warn("x" * 99, "m" * 199,
            blame="node", action="repair"), *_hot("b")]),), (days(*[_hot("b"), []] * 70),), (days(_hot("b"), *[[]] * 29,
            _hot("b")),), (days(_hot("b"), *[[]] * 31, _hot("b")),), (_counted(0, 1, 1, 2, 3),), (_counted(*range(
            70)),), (_counted(1, 1),), (days([], _hot("b")), [_fell(since=1)]), (days([], _hot("b"), []), [_fell(
            since=1)]), (days(_hot("a", "b", "c"), []), [_fell(since=0)]), (days([], [], _hot("a")), [_fell(since=1),
            replace(_fell(since=1), number=replace(_RATE, part="rail 3"))]), (days([], []), [_fell((0, 1, -0.1), (2, 3,
            -0.2), (4, 5, -0.3))]), (days([], []), [_fell((0, 1, -0.1), (2, 3, -0.2))]), (days([]), [_fell(), replace(
            _fell(how="8 ranks, NCCL 2.30"), first_s=FIRST_S + DAY_S)]), (days([]), [replace(_fell(how="8 ranks"),
            first_s=FIRST_S + DAY_S), _fell()]), (days(*[[]] * 72), [_fell(), replace(_fell(), last_s=0.0)]), (days(
            _hot("a"), [], _hot("b"), _hot("a", "b")),), (days([], [], []), [_unjudged(3, "a"), _unjudged(5, "b"),
            replace(_fell(), drift=Drift(12, 12))]), (days([]), [_unjudged(0, "a", 0.1, 0.2), _unjudged(1, "b")]), (
            days([], []), [_fell(*((day, day + 1, -0.1) for day in (0, 2, 4, 6)))]), (days([], []), [_fell(*((day, day +
            0.5, -0.1) for day in (-9, 9, 10)))]), (days([]), [replace(_fell(), changed=("x" * 300, "y" * 99))]), (days(
            []), [replace(_fell(since=0), changed=("x" * 300, "y" * 99, "z"))]), (days([]), [replace(_fell(since=0),
            drift=Drift(12, 12, 6.0, own=Sum("degraded", 9.0, 5, -0.2, -0.2)))]), ([_many(0, bounds.FLEET_FAULTS),
            _many(1, 1, "a", x=0), _many(2, 7, "a", x=1)],), ([_many(0, bounds.FLEET_FAULTS - 1), *(_many(day, 0, "a",
            x=day, y=max(0, day - 1)) for day in range(4))],), ([_many(0, bounds.FLEET_FAULTS), *(_many(day, 0, "a",
            x=day) for day in range(1, 5))],)]),
        "days of a node": (_days, [((0, DOWN), (0.25,)), ((0,), (0.25, DOWN)), ((0, DOWN), (0.25, *_hot("a"))),
            ((0, *_hot("a")), (0.25, DOWN)), ((0, *_hot("a")), (1, *_hot("a")))]),
        "courses of a number": (_ends, [([0.0] * 12, [-0.09], [-0.061] * 120), ([0.0] * 12, [-0.09], [-0.061] * 120, [
            0.3] * 2), ([0.0] * 13, [-0.4] * 8), ([0.0] * 12, *[[*[-0.5] * 4, *[0.0] * 4]] * 20)]),
        "events that were accepted": (lambda at: [each.what for each in node_health.events(days([]),
            [_fell((0, 1, -0.1))], [NodeEvent(FIRST_S + at * DAY_S, "accepted")])], [(1,), (2,)]),
        "partners of a loss": (lambda *names: drift.course([Reading(FIRST_S + day * DAY_S, 300.0 if day > 19 else 391.0,
            0.005, partners=((names[day % len(names)],) if names else ())) for day in range(30)]).own,
            [(), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")]),
        "accepted again": (lambda count: [*(each.spells for each in (functools.reduce(lambda at, n: replace(
            drift.accepted(at, float(n)), own=Sum("degraded", 9.0, 5, -0.2, -0.2, since_s=None if n % 2 else 3.0,
            spells=drift.accepted(at, float(n)).own.spells)), range(count),
            Drift(own=Sum("degraded", since_s=1.0))).own,))], [(1,), (3,), (20,)]),
        "days of reports": (on, [0.0, 1.5]),
    }  # fmt: skip
