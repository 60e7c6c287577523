"""Reports of which it is kept what is said of each in a line: pasted, quiet, as a headline, in lists and by "
"GitHub."""

from collections.abc import Iterator, Mapping
from typing import Any

from report import samples

from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.model.findings import Status, Verdict, fail, note, warn
from ncclprobe.model.fleet import NodeStanding
from ncclprobe.model.measurement import Fingerprint, Judged, SkippedRow
from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology
from ncclprobe.model.pair_results import Localisation, PairRow
from ncclprobe.model.report import LaunchRow, NodeRow, Report, Scope, Tool
from ncclprobe.model.traffic import CopyRow, LadderRow
from ncclprobe.model.values import replace
from ncclprobe.report import digest, fleet, html, junit, markdown, nodes, prometheus, text

H100 = Fingerprint({"gpu": "8 x NVIDIA H100 80GB HBM3"}, software={"backend": "nccl"})
GLOO = replace(H100, software={"backend": "gloo"})
JUDGED = replace(ROW, nbytes=1 << 30, busbw_GBps=98.0, expectation=BAND, status="pass")
PAIR = PairRow(
    src=0, dst=1, src_end="a", dst_end="b", nbytes=4 << 20, latency_nbytes=8, latency_us=1.0, GBps=20.0, time_us=1.0,
    min_us=1.0, max_us=1.0, samples_us=(1.0,))  # fmt: skip
COPY = CopyRow(
    node="n0", rank=0, kind="h2d", device="GPU0", nbytes=1, GBps=53.0, min_GBps=52.0, max_GBps=54.0, samples=7,
    why="PCIe Gen5 x16 carries 63.01 GB/s, 0.86 of it payload", status="pass")  # fmt: skip
WAYS = [(src, dst) for src in range(8) for dst in range(8) if src != dst]
FURTHER = (*[replace(PAIR, both=True, GBps=1.0)] * 3, replace(PAIR, step=1, GBps=1.0))
"""Rows that are none of the one-way rows."""
RUNG = LadderRow(rung="rank", ranks=1, groups=8, slowest=(0,), step_bytes=1, step_us=1.0, samples_us=(1.0,) * 9,
                 nbytes=1, speedup=1.0, efficiency=1.0)  # fmt: skip
LADDER = (RUNG, replace(RUNG, rung="node", ranks=8, speedup=7.9, efficiency=0.9875))


def accepted(ranks: int = 8, nodes: int = 1, **more: Any) -> Report:
    names = tuple(NodeRow(f"n{rank}", rank, f"n{rank}", Status.PASS) for rank in range(nodes))
    own: dict[str, Any] = {"status": Status.PASS, "exit_code": 0, "fingerprint": H100, **more}
    return Report(tool=Tool("ncclprobe", "0"), started="", duration_s=1.0, nodes=names,
                  launch=LaunchRow("self", nodes, ranks), **{"command": "ncclprobe accept", **own})  # fmt: skip


def pairs(*slow: tuple[int, int]) -> tuple[PairRow, ...]:
    """28 pairs of 8 ranks, of which these ways are slow."""
    return (*(replace(PAIR, src=s, dst=d, GBps=10.0 if (s, d) in slow else 20.0) for s, d in WAYS), *FURTHER)


def built(*widths: int | None) -> dict[str, NodeTopology]:
    """A node whose GPUs have links of these widths."""
    gpus = [DeviceRow(f"GPU{n}", "H100", None, 0, None, width, 16) for n, width in enumerate(widths)]
    return {"n0": NodeTopology(gpus=tuple(gpus), nics=(), numa=(), paths=None)}


def copies(slow: int = 0) -> tuple[CopyRow, ...]:
    both = [(gpu, kind) for gpu in range(8) for kind in ("h2d", "d2h")]
    return tuple(replace(COPY, device=f"GPU{gpu}", kind=kind, status="fail" if gpu < slow else "pass")
                 for gpu, kind in both)  # fmt: skip


WHOLE = {"measurements": (JUDGED,), "topology": built(*[16] * 8)}
ALONE = SkippedRow("pairs", None, "alone", "one GPU, so there is no link between GPUs to measure")
OF_ONE = tuple(replace(COPY, kind=kind, GBps=rate) for kind, rate in (("h2d", 55.3), ("d2h", 54.9), ("device", 2e3)))
UNABLE = {"fingerprint": None, "skipped_rows": (SkippedRow("copies", None, "unable", "no torch"),),
          "status": Status.FAIL, "exit_code": 4}  # fmt: skip
MISSING = Verdict("gpu.count", "n0", Status.FAIL, "", findings=(fail("GPUs", "none usable"),))
SMALL, LARGE = replace(JUDGED, nbytes=8, busbw_GBps=200.0), replace(ROW, nbytes=1 << 32, busbw_GBps=500.0)
OVER_GLOO = {
    "ranks": 2, "fingerprint": GLOO, "measurements": (replace(ROW, nbytes=4 << 20, busbw_GBps=1.23),), "pairs": (PAIR,),
    "copies": (replace(COPY, kind="host", device="cpu", status="unjudged"),)}  # fmt: skip
_LEVEL = Localisation(8, "node", level_GBps={"one way": 30.0})
_RUNGS = (*LADDER, replace(RUNG, rung="pair", ranks=2, speedup=1.9), replace(RUNG, rung="job", speedup=None))
_THREE = (JUDGED, replace(JUDGED, busbw_GBps=99.0), replace(JUDGED, busbw_GBps=97.0))
_WIDER = built(16, 8, 4, 16, 4, 32, 16, 8)
_BROAD = {"n0": replace(_WIDER["n0"], gpus=tuple(replace(each, pcie_max_width=32) if n == 5 else each
                                                 for n, each in enumerate(_WIDER["n0"].gpus or ())))}  # fmt: skip
_TWO_GPUS = {"n0": replace(built(16)["n0"], gpus=(DeviceRow("GPU0", "NVIDIA A100", None, 0, None), DeviceRow(
    "GPU1", "NVIDIA H100 80GB", None, 0, None), DeviceRow("GPU2", "NVIDIA H100 80GB", None, 0, None)))}  # fmt: skip
_UNJUDGED = replace(JUDGED, status="unjudged", expectation=None)
_SLOW = fail("mlx5_3:1", "runs at 200 Gb/s")
LINES: Mapping[str, dict[str, Any]] = {
    "good": {**WHOLE, "pairs": pairs(), "copies": copies()},
    "slow pairs and copies": {**WHOLE, "pairs": pairs((0, 1), (0, 2)), "copies": copies(1)},
    "two slow copies": {**WHOLE, "copies": copies(2), "status": Status.FAIL, "exit_code": 4},
    **{f"a pair at {rate}": {"pairs": (replace(PAIR, GBps=rate), *pairs()[1:])} for rate in (19.59, 19.6)},
    "pairs within": {"pairs": tuple(replace(each, inside=each.src < 2, GBps=each.GBps / (1 + (each.src > 1)))
                                    for each in pairs())},
    "pairs that were located": {"pairs": pairs(), "localisation": _LEVEL},
    "widths of many kinds": {"copies": copies(), "topology": _WIDER},
    "wider links": {"copies": copies(), "topology": _BROAD}, "widths that were not": {"copies": copies()},
    "of the two that copied": {"ranks": 2, "copies": copies()[12:], "topology": built(8, *[16] * 7)},
    "a ladder": {"pairs": pairs(), "ladder": LADDER, "topology": built(16)},
    "a ladder of three": {"pairs": pairs(), "ladder": _RUNGS},
    "the largest judged row": {"measurements": (LARGE, JUDGED, SMALL)},
    "the faster of two rows": {"measurements": _THREE},
    "rows of others": {"measurements": (replace(JUDGED, op="broadcast"), replace(LARGE, op="gather"))},
    "others before all_reduce": {"measurements": (replace(LARGE, op="broadcast"), JUDGED)},
    "rows that are not judged": {"measurements": (replace(LARGE, status="unjudged", expectation=BAND), SMALL)},
    "gloo": OVER_GLOO, "nothing": {"ranks": 4, "fingerprint": None},
    "nothing on GPUs": {"ranks": 4, "fingerprint": None, "topology": _TWO_GPUS},
    "no ranks": {"ranks": None, "fingerprint": Fingerprint({}, software={"backend": "nccl"})}, "no nodes": {"nodes": 0},
    "two nodes": {"ranks": 16, "nodes": 2, "copies": (replace(COPY, status="unjudged"),)},
    "one GPU": {"ranks": 1, "copies": OF_ONE, "topology": built(16),
                "skipped_rows": (ALONE, replace(ALONE, op="collectives"))},
    "one GPU, far": {"ranks": 1, "copies": tuple(replace(each, near=n > 0) for n, each in enumerate(OF_ONE))},
    "one GPU and an unable one": {"skipped_rows": (replace(ALONE, cause="unable", why="no torch; x"), ALONE)},
    "a look without a GPU": {**UNABLE, "scope": Scope(gpus=None, driver=False)},
    "a look for gloo": {**UNABLE, "scope": Scope("gloo", None, driver=True)},
    "GPUs that are missing": {"fingerprint": None, "checks": (MISSING,), "scope": Scope(gpus=None, driver=False)},
    "GPUs that are asked for": {"fingerprint": None, "scope": Scope(gpus=8, driver=False)},
    **{name: {"fingerprint": Fingerprint({"gpu": f"8 x {name}"}, software={"backend": "nccl"})} for name in (
        "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "NVIDIA GB200", "NVIDIA L40S", "Tesla V100-SXM2-16GB",
        "NVIDIA Graphics", "H100 x 2, x A100", "RTX 4090 L40S")},
    "bandwidth": {"command": "ncclprobe bandwidth -n 5", "measurements": (JUDGED,)},
    "bandwidth of nothing": {"command": "ncclprobe bandwidth"}, "no command": {"command": ""},
    "judged before": {"command": "ncclprobe expect --judge x", "notes": ("2 of 3 rows are slow", "more")},
    "judged without a note": {"command": "ncclprobe expect --judge x"},
    "stopped": {"status": Status.UNKNOWN, "exit_code": 3, "checks": tuple(samples.verdict(Status.UNKNOWN,
        id=f"run.x{n}", why=f"{n}, ended by SIG{n} in phase {n}", required=True) for n in range(2))},
    "stopped, and failed": {"status": Status.FAIL, "exit_code": 4, "checks": (
        samples.verdict(Status.UNKNOWN, id="run.x", why="ended by SIGTERM", required=True),)},
    "pasted, noted": {"scope": Scope(pasted=True), "checks": (samples.verdict(Status.PASS, note("a", "is b"), note(
        "c", "could not be read"), note("GPU0", "links have errors"), note("GPU1", "has seen Xid 79")),)},
    "noted": {"checks": (samples.verdict(Status.WARN, note("a", "is b")),), "status": Status.WARN},
    "pasted, unknown": {"scope": Scope(pasted=True), "status": Status.UNKNOWN, "exit_code": 3},
    "apart": {"scope": Scope(apart=True), "nodes": 3, "status": Status.FAIL, "exit_code": 4},
    **{f"{count} of three apart, {status}": {"scope": Scope(apart=True), "status": status, "rows": tuple(
        NodeRow(f"n{n}", n, f"n{n}", status if n < count else Status.PASS) for n in range(3))}
       for count in (1, 2) for status in (Status.FAIL, Status.WARN)},
    "gloo on GPUs": {"scope": Scope("gloo", gpus=8)},
    "judged by itself": {"judged": Judged(0, 3), "measurements": (JUDGED,)},
    "skipped": {"status": Status.SKIP, "checks": (samples.verdict(Status.SKIP, why="only for x"),)},
    "taken": {"taken": {"n1": "2026-11-22T10:00:00+00:00", "n0": "2026-11-23T10:00:00Z", "n2": "2026-11-21T10:00:00Z"}},
    "taken at once": {"taken": dict.fromkeys(("n1", "n0"), "2026-11-22T10:00:00+00:00")},
    **{f"{subject} of the {blame}": {"status": Status.FAIL, "exit_code": 4, "nodes": 2, "checks": (samples.verdict(
        Status.FAIL, fail(subject, words, blame=blame, action="repair", nodes=where), id="ib.x", node=None),)} for
        subject, words, blame, where in (("n1", "is down; a", "link", ("n1",)), ("mlx5_0:1", "are odd (x); b", "link",
        ("n1",)), ("a", "has b", "node", ("n0", "n1")), ("GPU0", "Xid 79; b c d", "node", ()),
        ("n1 rail 2 (mlx5_2:1)", "have fewer", "link", ("n1",)))},
    "lists": {"nodes": 4, "checks": (samples.verdict(Status.FAIL, fail("a", "b", blame="node", nodes=("n1",)),
        node="n0", id="run.pairs"), samples.verdict(Status.FAIL, fail("a", "b", blame="node"), node="n0",
        id="run.rows"), samples.verdict(Status.UNKNOWN, node="n2", id="run.x", why="x"), samples.verdict(Status.UNKNOWN,
        node="n2", id="ib.x", why="x"), samples.verdict(Status.FAIL, why="explained by a.b", node="n3",
        required=True))},
    "lists of one": {"nodes": 3, "checks": (samples.verdict(Status.FAIL, fail("a", "b", blame="node", nodes=("n1",)),
        node="n0"), samples.verdict(Status.FAIL, note("a", "b"), node=None), samples.verdict(Status.FAIL, fail("a",
        "b"), node= "n2"), samples.verdict(Status.SKIP, why="explained by a.b", node="n0", required=True))},
    **{f"{count} rows, {status}": {"measurements": (_UNJUDGED,) * count + more, "status": status, "exit_code": code}
       for count, more, status, code in ((2, (), Status.PASS, 0), (1, (), Status.FAIL, 4), (1, (), Status.UNKNOWN, 3),
           (1, (JUDGED,), Status.PASS, 0), (0, (replace(JUDGED, status="inconclusive"),), Status.PASS, 0))},
    "ranks": {"nodes": 2, "status": Status.WARN, "checks": tuple(
        samples.verdict(Status.WARN, warn(f"rank {2 * n}", "has two processors"), node=f"n{n}") for n in (0, 1))},
    "ports": {"nodes": 3, "status": Status.FAIL, "checks": tuple(samples.verdict(Status.FAIL, fail(port, "is DOWN"),
        node=node) for node, port in (("n0", "a:1"), ("n1", "a:1"), ("n2", "b:1")))},
    **{f"no driver, {name}": {"scope": Scope(driver=False), "status": Status.UNKNOWN, "exit_code": 3, "checks": (
        samples.verdict(Status.UNKNOWN, required=True),), "command": "x y", **more} for name, more in {"rails": {
        "command": "ncclprobe rails"}, "nothing": {}, **{rows: {rows: (JUDGED,)} for rows in ("measurements", "pairs",
        "copies", "groups", "steps", "ladder")}, "gloo": {"fingerprint": GLOO, "measurements": (JUDGED,)}}.items()},
    "costs": {"status": Status.FAIL, "exit_code": 4, "checks": (samples.verdict(
        Status.FAIL, warn("d", "may break"), replace(_SLOW, loss=0.1), replace(
        warn("e", "runs at 200 Gb/s"), loss=0.6), replace(_SLOW, subject="b", loss=0.6), fail("c", "is missing")),)},
    "once for a device": {"nodes": 3, "status": Status.FAIL, "checks": (samples.verdict(Status.FAIL, fail("mlx5_0:1",
        "is DOWN: the cable is out"), node="n2", id="ib.state"), samples.verdict(Status.FAIL, fail("n2 mlx5_0:1",
        "is DOWN, and ACTIVE on 7", nodes=("n2",)), node=None, id= "sync.net"))},
    **{words: {"status": Status.FAIL, "checks": (samples.verdict(Status.FAIL, fail("GPU6", words)),)} for words in (
        "is lost, as NVML says (nvmlDeviceGetMemoryInfo: GPU is lost)", "NVML nvmlDeviceGetMemoryInfo: GPU is lost",
        "is -1: NCCL makes buffers of -1 bytes; see param.cc", "Xid 79: fallen off the bus; 1 hour ago",
        "is down; a: b", "no connection on 7 of 7 paths (eth0): filtered",
        "goes over sockets (eth0, (lo)) and not over mlx5_0: X", "is missing",
        "0 usable, 8 expected: see NVML. Drain it.", "it failed (rank 1: CUDA error: bad); it was last seen")},
    **{f"{count} annotations": {"status": Status.WARN, "checks": tuple(
        samples.verdict(Status.WARN, warn("a", f"b{n}"), id=f"c.d{n}") for n in range(count))} for count in (10, 11)},
}  # fmt: skip


def _standings(*states: str) -> list[NodeStanding]:
    return [NodeStanding(f"n{n}", state, None if n % 3 == 2 else 1e9 - 1e6 * n, f"for {n % 4}", 7 + n, 1e9)
            for n, state in enumerate(states)]  # fmt: skip


_XML = junit.render(samples.HEALTHY)
_PAGE = html.render(samples.HEALTHY)
_OURS = (
    *(_XML, _XML.replace("testsuites", "suites"), _XML.replace('name="ncclprobe"', 'name="x"'), _XML[:-9], f" {_XML}"),
    *(_PAGE, f"{_PAGE}</html>", _PAGE[:-9], _PAGE.replace(" · ncclprobe", ""), markdown.render(samples.SICK)),
    *(
        "## a\n\nncclprobe b\n", "## a\n\nx b\n", "# a\n\nncclprobe b", "## a\nncclprobe b",
        "## a\n\nncclprobe b\nzeta\n",
    ),
    *("n[0-3],m1\n", "n1", "n1\n\n", "a b\n", "", prometheus.render(samples.SICK), "ncclprobe_x 1\ny 2"),
)  # fmt: skip


def lines() -> Iterator[tuple[str, object]]:
    """Yield what is said of each report in a line, and of nodes of a fleet in some."""
    for name, changes in LINES.items():
        rows = changes.get("rows")
        report = accepted(**{key: value for key, value in changes.items() if key != "rows"})
        report = replace(report, nodes=rows) if rows else report
        said = (text.accepted_line(report), text.quiet(report), digest.headline(report), digest.conclusion(report))
        said += (
            digest.verdict_line(report),
            digest.looked(report),
            *(digest.blame_of(each) for each in digest.problems(report)),
        )
        begins = text.accepted_begins(report), text.accepted_ends(report)
        yield name, ([each.split() for each in (*said, *markdown.annotations(report))], begins, nodes.sort(report))
    forms = (html, junit, markdown, nodes, prometheus)
    yield "recognised", [[form.recognises(said) for form in forms] for said in _OURS]
    every = _standings("ok", "degraded", "failing", "unknown", "flapping", "ok", "degraded", "failing", "unknown", "ok")
    for name, some in (("all", every), ("ok", _standings("ok", "ok")), ("none", []), ("many", every * 9)):
        shown = (*fleet.lines(some, 70), fleet.counts(some))
        yield f"fleet, {name}", ([each.split() for each in shown], fleet.as_json(some, [], 4))
