"""Reports with one of each part, of which it is kept what every form shows: of a page all that is drawn, too."""

import re
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

from report import samples
from report.html import made

from ncclprobe.model.causes import (
    Answer,
    Cause,
    Consequence,
    JobVerdict,
    LastSeen,
    Moment,
    NotUnderstood,
    RankClass,
    RankState,
    Suspect,
)
from ncclprobe.model.findings import (
    NOTHING_TO_SET,
    Evidence,
    Finding,
    Related,
    Severity,
    Status,
    fail,
    note,
    seen,
    warn,
)
from ncclprobe.model.measurement import Expectation, FirstCall, Retest, TimeStats, Transport
from ncclprobe.model.pair_results import Blamed, RailWay
from ncclprobe.model.report import Excerpt, NodeEnvironment, NodeRow, Report, Setting
from ncclprobe.model.values import replace
from ncclprobe.report import causes, delivery, text

_APART = re.compile(r"<script.*?</script>|<style.*?</style>|<head>.*?</head>", re.DOTALL)
_FORMS = ("html", "markdown", "junit", "prometheus")
_TEXTS = ("text", "verbose", "narrow", "quiet", "markdown")
_ONLY = {"sweep": ("html",), "whole": ("html",), "many pairs": ("text",), "condition": _TEXTS}
"""What is shown of large reports."""
STATES = ("ok", "dead", "late", "unusable", "wrong", "untried")


def _way(src: int, dst: int, rail: int, state: Any, **more: Any) -> RailWay:
    names = [f"n{node} rail {rail} (mlx5_{rail}:1)" for node in (src, dst)]
    rate = None if state in ("dead", "untried") else 48.0 - 6 * src + dst
    chosen = [f"n{node} mlx5_{rail}:1 GID {3 + node % 2}, RoCE v2, MTU 4096" for node in (src, dst)]
    way = RailWay(
        src=f"n{src}", dst=f"n{dst}", src_rail=rail, dst_rail=rail, src_end=names[0], dst_end=names[1], state=state,
        tests=2, GBps=rate, latency_us=None if rate is None else 2.0 + src, src_choices=chosen[0],
        dst_choices=chosen[1], why="" if state == "ok" else f"n{src}: no answer; n{dst}: port {state}")  # fmt: skip
    return replace(way, **more)


_WAYS = tuple(
    _way(src, dst, rail, STATES[rail] if 1 in (src, dst) else "ok")
    for rail in (5, 0, 1, 2, 3, 4) for src, dst in permutations(range(3), 2)
)  # fmt: skip
_OF_RAILS = (
    fail("n0 rail 0,2-3", "sends 40 %", nodes=("n0",)), warn("n2 rail 0", "is far", nodes=("n2",)),
    note("n2 rail 1", "is new", nodes=("n2",)), fail("n0 rail 1 -> n2 rail 1", "is dead", nodes=("n0", "n2")),
    fail("n0 rail 1 <-> n2 rail 1", "is dead", nodes=("n0", "n2")), warn("n1", "is late", nodes=("n1",)))  # fmt: skip
_BAND = Expectation(400.0, 300.0, "GB/s", "published", "links", "a paper")
_ROWS = tuple(
    replace(made.row(op, 1 << power, place), busbw_GBps=40.0 * power, algbw_GBps=30.0 * power, **more)
    for power in (10, 14, 11)
    for op, place, more in (
        ("all_reduce", "in", {"expectation": replace(_BAND, value=100.0 * power), "launch_bound": power > 10}),
        ("all_reduce", "out", {"wrong": power - 10, "interval_us": None, "expectation": replace(_BAND, unit="us")}),
        ("all_reduce", "in", {"dtype": "int8", "expectation": replace(_BAND, threshold=0.0), "status": "unjudged"}),
        ("all_gather", "out", {"mode": "graph", "ranks": power, "backend": "gloo", "expectation": None, "wrong": None}),
    )
)  # fmt: skip
_ODD = (
    replace(_ROWS[0], nbytes=0), replace(_ROWS[0], nbytes=1 << 20, busbw_GBps=0.0),
    replace(_ROWS[0], nbytes=1 << 21, busbw_GBps=float("inf"), interval_us=(0.0, 5.0)),
    replace(_ROWS[0], nbytes=1 << 22, time_us=TimeStats(9.0), retest=Retest(0.9, 1100.0, None, 5)),
    replace(_ROWS[0], op="broadcast", nbytes=0), replace(_ROWS[1], status="warn", nbytes=1 << 23),
    replace(_ROWS[1], status="inconclusive", inconclusive_why="too noisy", nbytes=1 << 24),
    *(replace(_ROWS[0], nbytes=1 << 12, ranks=n, dtype=f"t{n}") for n in range(2, 11)))  # fmt: skip
_LINE, _END = Evidence("n0.log", 12, "exitcode: -9"), Evidence("n1.log", 3, "step 7 " + "x" * 400 + " is gone")
_SUSPECTS = (
    Suspect(3, "n1", "step 7", 1.7e9, "n1.log", 9, 12.4, 7, 9), Suspect(4),
    Suspect(5, "", "a", None, "b", 1, -1.0, 9, 9), Suspect(6, "n2", "exitcode: -9", None, "n0.log", 12, 0.0, 9, 8),
)  # fmt: skip
_CAUSE = Cause(
    "rank-crashed", "log.rank-ended/exited", "narrowed", "ranks 2 and 3 exited", ranks=(2, 3), nodes=("n0", "n1"),
    evidence=(_LINE, _END, _LINE, _END), blame="job", action="fix-job", could_be=("oom", "rank-crashed"),
    suspects=_SUSPECTS, collect=("run `dmesg`", "set A=1", "set B=2"), doctor="host.oom", checked=" (it failed on "
                                                                                                  "n1)",
    consequences=tuple(Consequence("log.x", f"followed {n}", (n,), ("n0",), (_LINE,), n) for n in range(5)),
)  # fmt: skip
_CAUSES = (
    _CAUSE, replace(_CAUSE, confidence="unknown", suspects=(), could_be=(), remedy="read it"),
    replace(_CAUSE, confidence="named", could_be=(), blame="node", action="repair", ranks=(1,), doctor="ib.state"),
    replace(_CAUSE, confidence="named", blame="unknown", action="restart", suspects=(), consequences=()),
    replace(_CAUSE, blame="unknown", action="retest", message="rank 7 of n9 exited", ranks=(7,), nodes=("n9",)),
)  # fmt: skip
_MOMENTS = (
    Moment(1.7e9, 3, "n1", "began", _LINE), Moment(1.7e9 + 9, None, "n0", "said", _END, "log.x"),
    Moment(1.7e9 + 4, 2, "", "ended", _LINE, "log.y"), Moment(1.7e9 + 2, None, "", "late", Evidence("a", 1, "b")),
    Moment(1.7e9 + 12, 3, "n1", "ended", Evidence("n1.log", 4, "c")))  # fmt: skip
_RANKS = (
    RankState(4, "n1", 104, Evidence("n1.log", 4, "timeout 7"), "all_reduce", "failed"),
    RankState(2, "n0", 102, Evidence("n0.log", 2, "timeout 9"), "all_reduce", "failed"),
    RankState(0, "n0", 100, None, "", "no log"), RankState(1, "", None, _LINE, "all_reduce", "failed"))  # fmt: skip
_JOB = replace(made.causes(), causes=_CAUSES, timeline=_MOMENTS, ranks=_RANKS, notes=("a remark",), not_understood=(
    NotUnderstood("n0.log", 1, 3, "y" * 200), NotUnderstood("n1.log", 2, None, "z")))  # fmt: skip
_SEEN = (
    LastSeen(Evidence("n0.log", 9, "step 7"), (0, 1), ("n0.log",), 7, 1.7e9),
    LastSeen(Evidence("n1.log", 8, "waits"), (), ("n1.log", "n2.log"), None, 1.7e9 + 60))  # fmt: skip
_OPEN = replace(_JOB, causes=(), timeline=(), outcome="unknown", status=Status.PASS, exit_code=0, not_understood=(),
                last_seen=_SEEN, stands=("rank 3 is behind", "rank 4 is silent"))  # fmt: skip
_CLASSES = (
    RankClass("stuck outside", (3, 2), ("n4", "n1"), ("n4:7",), "ranks 2 and 3 exited"),
    RankClass("waiting", (), (), ("n1:7", "n1:8"), "wait in all_reduce"), RankClass("working", (0,), ("n0",), (),
          "work"))  # fmt: skip
_STANDING = JobVerdict("STUCK", "2 ranks are waiting", "2026-11-23T14:03:11Z", 1.5, "export A=1", 7, "2 of 4 ranks")
_STUCK = replace(_JOB, standing=_STANDING, classes=_CLASSES)
_LANES = replace(
    samples.LOST_LANES, evidence=(seen("/sys", "8", 3), *(seen(f"/sys/{n}", "") for n in range(4))), loss=0.3
)
_FOUND = (
    _LANES, replace(_LANES, subject="GPU4"), replace(_LANES, subject="GPU5", message="x4 of 16 lanes", loss=0.6),
    warn("eth0", "may be slow", remedy="look at `ethtool eth0` and set MTU=9000", related=(Related("a.b", "c"),),
         evidence=("NVML", "", seen("/etc/nccl.conf", "NCCL_ALGO=Ring", 3))),
    fail("mlx5_0:1 and mlx5_1:1", "differ", remedy="reseat it"), replace(_LANES, subject="GPU6", remedy="other"),
    note("GPU0", "is new"), note("cpus", "no more", remedy=f"{NOTHING_TO_SET}: take another"),
    Finding(Severity.WARN, "GPU1", "is old", "node", "none", lost_GBps=4.0))  # fmt: skip
_NODES = tuple(NodeRow(f"n{n}", n, f"n{n}", Status.FAIL if n < 2 else Status.PASS) for n in range(4))
_BOARD = replace(made.board(), gpus=(made.board().gpus or ())[:3], nics=(made.board().nics or ())[:2])
_TOLD = {f"n{n}": NodeEnvironment({"driver": "550" if n == 2 else "560", "nccl": None if n else "2.27"},
    (Setting("NCCL_ALGO", None if n == 1 else "Ring", "/etc"), *(
        Setting(f"SLURM{own}", str(n), "env") for own in ("_PROCID", "_LOCALID", "_NODEID", "_TASK_PID", "_NODENAME")),
    *([Setting("RANK", str(n), "env"), Setting("ONLY", "1", "x")] if n == 3 else []))) for n in range(4)}  # fmt: skip
_FLEET = samples.report(
    samples.verdict(Status.FAIL, *_FOUND), samples.verdict(Status.FAIL, *_FOUND[:2], node="n1"),
    samples.verdict(Status.PASS, node="n3", id="a.b"), samples.verdict(Status.PASS, node="n2", id="a.b"),
    samples.verdict(Status.FAIL, fail("n2", "differs", blame="job", nodes=("n0", "n1", "n2", "n3")), node=None, id=
          "x.y"),
    *(samples.verdict(Status.UNKNOWN, node=f"n{n % 3}", id=f"u.c{n}", why="denied", required=n % 2 == 0)
      for n in range(11)),
    samples.verdict(Status.WARN, node="n3", id="no.finding", why="edited"),
    nodes=_NODES, environment=_TOLD, missing_nodes=("n4", "n5"), first_call=FirstCall(1.25, 3, 0.214, 0, 4e-6, None, 1),
    topology={f"n{n}": replace(_BOARD, nics=None) if n == 3 else _BOARD for n in range(4)}, taken={"n1":
          "2026-11-22T10:00:00Z",
    "n0": "2026-11-23T10:00:00Z"}, excerpts=tuple(Excerpt("/sys", node, title, ("a", "8"), 2, (1,), "")
    for node, title in (("n0", "GPU3"), ("n9", "y"), ("", "nvidia-smi -q -i GPU4"))))  # fmt: skip
_PAIRS = made.pairs(5)
_FIVE = _PAIRS.localisation
assert _FIVE
_WHO = (Blamed("n1", "node", ("n1",), None, "both", 0.0, 0.7, 8, 8, 2, 1), Blamed("x", "pair", ("n2", "n4"), None,
      "both", 0.5,
        0.6, 1, 1, 1, 0), Blamed("y", "rail", ("n0",), 0, "into", 0.4, 0.5, 2, 2, 1, 1), Blamed("z", "node", (), 1,
              "out", 0.3, 0.4,
        2, 2, 1, 1))  # fmt: skip
_OF_ENDS = tuple(replace(_WHO[0], nodes=(node,), rail=rail, direction=way)
                 for node, rail, way in (("n1", 1, "out"), ("n0", None, "into"), ("n3", 1, "both")))  # fmt: skip
_IB = Transport("IB mlx5_0, mlx5_1", True, "RING", "LL128", 16)
_TREE, _NO_GDR = replace(_IB, algorithm="TREE", protocol="LL"), replace(_IB, gdr=False)
_TRANSPORTS = (_TREE, _IB, _IB, _NO_GDR, Transport("Socket eth0"), Transport())


def _rail(rank: int) -> str:
    return f"n{rank // 2} rail {rank % 2} (mlx5_{rank % 2}:1)" if rank % 2 else f"n{rank // 2} (mlx5_0:1)"


REPORTS: Mapping[str, Report] = {
    "rails": replace(samples.HEALTHY, rails=(*_WAYS, _way(0, 2, 1, "ok", dst_rail=2)), nodes=_NODES,
                     checks=(samples.verdict(Status.FAIL, *_OF_RAILS, node=None, id="rail.speed"),)),
    "one rail": replace(samples.HEALTHY, rails=(_way(0, 1, 0, "ok", GBps=None), _way(1, 0, 0, "dead"))),
    "rows": replace(samples.HEALTHY, measurements=_ROWS), "odd rows": replace(samples.HEALTHY, measurements=_ODD),
    "no rate": replace(samples.HEALTHY, measurements=_ODD[:1]), "job": _JOB,
    "job without a clock": replace(_JOB, timeline=tuple(replace(each, time_s=None) for each in _MOMENTS[:3]), ranks=()),
    "job at one time": replace(_JOB, timeline=(_MOMENTS[0], replace(_MOMENTS[2], time_s=1.7e9)), causes=_CAUSES[1:3]),
    "job without an end": _OPEN, "job that hangs": replace(_OPEN, stands=("rank 3 is behind",), last_seen=_SEEN[1:],
                              not_understood=_JOB.not_understood),
    "job of which nothing is known": replace(_OPEN, last_seen=(), stands=(), outcome="failed"),
    "job that ended well": replace(_OPEN, outcome="ended-well", ended_well=(_LINE, _END) * 2),
    **{f"condition of {when}": replace(_JOB, outcome="unknown", causes=_CAUSES[:1], answers=(
        Answer(when, "named", when == "failed" and known, _CAUSE.code, _CAUSE.message),))
       for when in ("failed", "hung", "slow") for known in (True, False)},
    **{f"standing, {word}": replace(_STUCK, standing=replace(_STANDING, word=word), causes=_CAUSES[:count])
       for word, count in (("STUCK", 2), ("SLOW", 0), ("CANNOT TELL", 4))},
    "standing, told": replace(_STUCK, standing=replace(_STANDING, message="rank 2, 3: ranks 2 and 3 exited"),
                              causes=(replace(_CAUSE, blame="node", action="repair"),)),
    "standing, what to do": replace(_STUCK, causes=(replace(_CAUSE, remedy="end it"),)), "fleet": _FLEET,
    "not judged": replace(samples.HEALTHY, measurements=(replace(samples.ROW, status="unjudged", expectation=None),)),
    "idle": replace(samples.HEALTHY, status=Status.SKIP, checks=()),
    "pairs": replace(_PAIRS, localisation=replace(_FIVE, culprits=_WHO[:1], suspects=_WHO[1:])),
    "pairs within": replace(_PAIRS, localisation=None, pairs=tuple(replace(each, inside=each.src < 2,
        src_end=f"rank {each.src} of a very long name", GBps=0.3 * each.GBps) for each in _PAIRS.pairs[3:])),
    "pairs of rails": replace(_PAIRS, localisation=replace(_FIVE, culprits=_OF_ENDS, suspects=()), pairs=tuple(
        replace(each, src_end=_rail(each.src), dst_end=_rail(each.dst)) for each in _PAIRS.pairs if not each.both)),
    "transports": replace(samples.HEALTHY, measurements=tuple(
        replace(_ROWS[0], nbytes=1 << 10 + n, transport=each) for n, each in enumerate(_TRANSPORTS))),
    **{"sweep": made.sweep(), "whole": made.whole(), "sick": samples.SICK, "many pairs": made.pairs(17)}}  # fmt: skip


def pages() -> Iterator[tuple[str, object]]:
    """Yield the lines of each report in each form."""
    for name, report in REPORTS.items():
        shown = causes if report.files else text
        forms = {form: delivery.rendered(report, form) for form in _FORMS}
        forms |= {"text": shown.render(report), "verbose": shown.render(report, verbose=True)}
        forms |= {"quiet": shown.quiet(report), "narrow": shown.render(report, width=60)}
        for form in _ONLY.get(name.partition(" of ")[0], forms):
            lines = _APART.sub("", forms[form]).splitlines()
            yield f"{name}, {form}", [line.split() for line in lines if line.strip()]
