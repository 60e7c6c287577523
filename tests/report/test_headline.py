"""What is said in one line: the headline, whose fault it is, the verdict, and the line that is pasted after a run."""

from typing import Any

from ncclprobe.checks.env.fixtures import nccl
from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.checks.sync.settings import nccl_version
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import NOTHING_TO_SET, Finding, Related, Status, Verdict, fail, note, warn
from ncclprobe.model.measurement import Fingerprint, Judged, Measurement, SkippedRow
from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology
from ncclprobe.model.pair_results import PairRow
from ncclprobe.model.report import LaunchRow, NodeRow, Report, Scope, Tool
from ncclprobe.model.snapshot import Every
from ncclprobe.model.traffic import CopyRow, LadderRow
from ncclprobe.model.values import replace
from ncclprobe.report import digest, html, junit, markdown, text
from ncclprobe.report.digest import headline, verdict_line
from ncclprobe.report.text import accepted_line, quiet, render
from tests.each_row import each_row

from . import samples

SLOW = fail("mlx5_3:1", "runs at 200 Gb/s")
V29, V27 = nccl(2, 29, 7), nccl(2, 27, 3)
UNJUDGED = replace(samples.ROW, status="unjudged", expectation=None)
PASSED = replace(samples.ROW, status="pass")


def of(*found: Finding, nodes: int = 0, id: str = "gpu.count", node: str | None = None) -> Report:
    """A report with these findings of one check, on so many nodes."""
    verdict = Verdict(id, node, Status.FAIL, "t", findings=found)
    rows = tuple(NodeRow(f"n{n}", n, f"n{n}", Status.FAIL) for n in range(nodes))
    return replace(samples.HEALTHY, status=Status.FAIL, checks=(verdict,), nodes=rows or samples.HEALTHY.nodes)


def test_what_stops_a_job_comes_before_what_slows_it_and_that_before_risks() -> None:
    slow, slower = (replace(SLOW, subject=name, loss=loss) for name, loss in (("a", 0.1), ("b", 0.6)))
    stops, risk = fail("c", "is missing"), warn("d", "may break")
    costly = replace(slower, severity=risk.severity, subject="e")
    verdict = samples.verdict(Status.FAIL, risk, slow, costly, slower, stops)
    assert [p.subject for p in digest.problems(samples.report(verdict))] == ["c", "b", "a", "e", "d"]


def test_one_finding_of_several_subjects_or_nodes_is_one_problem_with_a_folded_list() -> None:
    lanes = [("n0", fail(f"GPU{n}", "x8 of 16 lanes", evidence=f"/sys/{n}")) for n in (4, 5, 6, 7)]
    ports = [(node, fail(port, "is DOWN")) for node, port in (("n0", "a:1"), ("n1", "a:1"), ("n2", "b:1"))]
    rows = [
        ([*lanes, ("n0", fail("GPU0", "x4 of 16 lanes"))], [("GPU[4-7]", ("n0",)), ("GPU0", ("n0",))]),
        ([(f"n{n}", note(f"rank {2 * n}", "has two processors")) for n in (0, 1)], [("rank [0,2]", ("n0", "n1"))]),
        (ports, [("a:1", ("n0", "n1")), ("b:1", ("n2",))]),
    ]
    for found, wanted in rows:
        report = samples.report(*(samples.verdict(Status.FAIL, each, node=node) for node, each in found))
        assert [(each.subject, each.nodes) for each in digest.problems(report)] == wanted


@each_row(
    ("message", "told"),
    [
        ("is lost, as NVML says (nvmlDeviceGetMemoryInfo: GPU is lost)", "GPU6 is lost, as NVML says"),
        ("NVML nvmlDeviceGetMemoryInfo: GPU is lost", "GPU6: NVML nvmlDeviceGetMemoryInfo: GPU is lost"),
        ("is -1: NCCL makes buffers of -1 bytes; see param.cc", "GPU6 is -1: NCCL makes buffers of -1 bytes"),
        ("Xid 79: fallen off the bus; 1 hour ago", "GPU6: Xid 79: fallen off the bus"),
        ("no connection on 7 of 7 paths (eth0): filtered", "GPU6: no connection on 7 of 7 paths: filtered"),
        ("goes over sockets (eth0, (lo)) and not over mlx5_0: X", "GPU6: goes over sockets and not over mlx5_0: X"),
        ("0 usable, 8 expected: see NVML. Drain it.", "GPU6: 0 usable, 8 expected: see NVML"),
        ("is missing", "GPU6 is missing"),
        ("is down; a: b", "GPU6 is down"),
        ("it failed (rank 1: CUDA error: bad); it was last seen", "GPU6: it failed (rank 1: CUDA error: bad)"),
    ],
)
def test_a_headline_is_the_first_sentence_that_says_something(message: str, told: str) -> None:
    id = "run.rank-lost" if "rank 1" in message else "gpu.count"
    assert headline(of(fail("GPU6", message), id=id)) == told


@each_row(
    ("versions", "told"),
    [
        ({"n0": V29, "n1": V27}, "NCCL 2.29.7 on n0, NCCL 2.27.3 on n1"),
        ({"n0": V29, "n1": V29, "n2": V27}, "NCCL 2.27.3 on n2, NCCL 2.29.7 on the others"),
        ({"n0": V29, "n1": V29, "n2": Software({})}, "no libnccl on n2, NCCL 2.29.7 on the others"),
    ],
)
def test_a_comparison_says_in_its_headline_what_differs_and_how(versions: dict[str, Software], told: str) -> None:
    assert headline(of(*nccl_version.run(Every(versions)), nodes=len(versions), id="sync.versions")) == told


def test_a_headline_names_each_culprit_once_on_its_node() -> None:
    found = (fail("NCCL_ALGO", "differs", nodes=("n1",)), fail("n1 rail 2 (eth1)", "is slow", nodes=("n1",)))
    assert headline(of(*found, nodes=2, id="sync.env")) == "n1 NCCL_ALGO: differs; n1 rail 2 (eth1) is slow"
    own = samples.verdict(Status.FAIL, fail("mlx5_0:1", "is DOWN: the cable is out"), node="n2", id="ib.state")
    compared = fail("n2 mlx5_0:1", "is DOWN, and ACTIVE on 7 other nodes", nodes=("n2",))
    healthy = samples.verdict(Status.PASS, node="n1")
    report = samples.report(own, samples.verdict(Status.FAIL, compared, node=None, id="sync.network"), healthy)
    assert headline(report) == "n2 mlx5_0:1 is DOWN: the cable is out"
    assert digest.conclusion(report) == "Not ready for NCCL jobs on 2 nodes: fix the failures above first. (exit 4)"


def test_a_machine_without_a_driver_is_told_what_to_ask_for_if_nothing_was_measured_on_gpus() -> None:
    report = samples.report(samples.verdict(Status.UNKNOWN, required=True), status=Status.UNKNOWN)
    blind = replace(report, scope=Scope(driver=False))
    rails = replace(blind, command="ncclprobe rails --nnodes 2")
    assert ["--backend gloo" in headline(each) for each in (blind, report, rails)] == [True, False, False]
    assert digest.conclusion(rails).startswith("Could not confirm readiness for NCCL over rails")
    by_gloo = Fingerprint(software={"backend": "gloo"})
    for rows in ("measurements", "pairs", "copies", "groups", "steps", "ladder"):
        row: dict[str, Any] = {rows: (ROW,)}
        told = headline(replace(blind, **row)), headline(replace(blind, fingerprint=by_gloo, **row))
        assert ["no GPU" in each for each in told] == [False, True], rows


@each_row("before", ["", "the ranks had not met when the run ended: "])
def test_a_run_that_a_signal_ended_begins_with_interrupted(before: str) -> None:
    why = f"{before}ended by SIGTERM in phase 'pairs'"
    unmeasured = samples.verdict(Status.UNKNOWN, id="run.data", why="no row was measured", required=True)
    cut = samples.verdict(Status.UNKNOWN, id="run.rank-lost", why=why, required=True)
    report = samples.report(unmeasured, cut, status=Status.UNKNOWN)
    assert headline(report) == "INTERRUPTED: ended by SIGTERM in phase 'pairs'"


def test_a_note_of_what_cannot_be_changed_is_for_the_curious() -> None:
    idle = note("processors", "this machine has no more", remedy=f"{NOTHING_TO_SET}: take another machine")
    useful = note("processors", "few of many", remedy="give ranks more")
    report = samples.report(samples.verdict(Status.PASS, idle, useful), status=Status.PASS)
    assert "this machine has no more" not in render(report)
    assert "few of many" in render(report)
    assert "this machine has no more" in render(report, verbose=True)


def test_a_consequence_stands_under_its_cause_and_not_by_itself() -> None:
    lost = fail("GPU6", "is lost", remedy="drain the node", blame="node")
    follows = note("GPU6", "not looked at: GPU is lost", related=(Related("gpu.count", "GPU6"),))
    report = of(lost, node="n0")
    checks = (*report.checks, Verdict("nvl.links", "n0", Status.PASS, "t", findings=(follows,)))
    report = replace(report, exit_code=4, checks=checks)
    for shown in (render(report), markdown.render(report)):
        assert shown.count("not looked at: GPU is lost") == 1
        assert "explain nvl.links" not in shown
    assert "      so:    nvl.links GPU6: not looked at: GPU is lost" in render(report)
    alone = render(replace(report, checks=checks[1:]))  # its cause was ignored, and it is not lost with it
    assert "NOTE  nvl.links  GPU6" in alone


@each_row(
    ("rows", "status", "code", "said"),
    [
        ((UNJUDGED, UNJUDGED), Status.PASS, 0, "2 rows measured, none judged; "),
        ((UNJUDGED,), Status.FAIL, 4, "FAIL  1 row measured, none judged; "),
        ((UNJUDGED,), Status.UNKNOWN, 3, "UNKNOWN  1 row measured, none judged; "),
        ((), Status.PASS, 0, "PASS  "),
        ((PASSED, UNJUDGED), Status.PASS, 0, "PASS  "),
        ((replace(UNJUDGED, status="inconclusive"),), Status.PASS, 0, "PASS  "),
    ],
)
def test_rows_that_nothing_judged_stand_in_place_of_the_pass(
    rows: tuple[Measurement, ...], status: Status, code: int, said: str
) -> None:
    line = verdict_line(replace(samples.HEALTHY, measurements=rows, status=status, exit_code=code))
    assert line.startswith(said)
    assert line.endswith(f"(exit {code})")
    assert ("PASS" in line) is said.startswith("PASS")


@each_row(
    ("changes", "said"),
    [
        ({"measurements": (UNJUDGED, UNJUDGED)}, "2 rows measured, none judged"),
        ({"command": "ncclprobe pairs", "judged": Judged(0, 8)}, "8 numbers measured, none judged"),
        ({"command": "ncclprobe accept --level 1", "judged": Judged(0, 8)}, "8 numbers measured, none judged"),
    ],
)
def test_numbers_that_nothing_judged_are_no_pass_in_any_format(changes: dict[str, Any], said: str) -> None:
    report = replace(samples.HEALTHY, **changes)
    assert headline(report) == said
    for shown in (render(report), quiet(report), junit.render(report), markdown.render(report), html.render(report)):
        assert said in shown
        assert "PASS" not in shown
    lines = render(report).splitlines()
    assert said in lines[0 if "accept" in report.command else 2]
    assert "<skipped" in junit.render(report).partition("</testsuite>")[0]


# The line that `accept` and `bandwidth` print to be pasted: never more than was measured.


H100 = Fingerprint({"gpu": "8 x NVIDIA H100 80GB HBM3"}, software={"backend": "nccl"})
GLOO = replace(H100, software={"backend": "gloo"})
JUDGED = replace(ROW, nbytes=1 << 30, busbw_GBps=98.0, expectation=BAND, status="pass")
PAIR = PairRow(
    src=0, dst=1, src_end="a", dst_end="b", nbytes=4 << 20, latency_nbytes=8, latency_us=1.0, GBps=20.0, time_us=1.0,
    min_us=1.0, max_us=1.0, samples_us=(1.0,),
)  # fmt: skip
COPY = CopyRow(
    node="n0", rank=0, kind="h2d", device="GPU0", nbytes=1, GBps=53.0, min_GBps=52.0, max_GBps=54.0, samples=7,
    why="PCIe Gen5 x16 carries 63.01 GB/s, 0.86 of it payload", status="pass",
)  # fmt: skip
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
    "copies": (replace(COPY, kind="host", device="cpu", status="unjudged"),),
}  # fmt: skip
BUSBW = "all_reduce 1 GiB: busbw 98 GB/s (algbw 52.4), 98 % of expected (bands.toml)"
NONE = "8 × H100 on n0: no collective measured"
LINES: dict[str, tuple[dict[str, Any], str]] = {
    "good": ({**WHOLE, "pairs": pairs(), "copies": copies()},
             f"8 × H100 on n0: {BUSBW}; 28 of 28 pairs within 2 %; PCIe 8 of 8 x16; PASS (exit 0)"),
    "slow pairs and copies": (
        {**WHOLE, "pairs": pairs((0, 1), (0, 2)), "copies": copies(1)}, f"8 × H100 on n0: {BUSBW}; "
        "26 of 28 pairs within 2 %; 1 of 8 GPUs slow to copy; PCIe 8 of 8 x16; PASS (exit 0)"),
    "a pair that is slow both ways": (
        {"pairs": pairs((0, 1), (1, 0))}, f"{NONE}; 27 of 28 pairs within 2 %; PASS (exit 0)"),
    "widths that were read": (
        {"copies": copies(), "topology": built(8, *[16] * 7)},
        f"{NONE}; no pair measured; PCIe 7 of 8 x16 (1 x8); PASS (exit 0)"),
    "widths that were not": (
        {"copies": copies()}, f"{NONE}; no pair measured; PCIe widths not known; PASS (exit 0)"),
    "a width that was not": (
        {"copies": copies(), "topology": built(None, *[16] * 7)},
        f"{NONE}; no pair measured; PCIe widths not known; PASS (exit 0)"),
    "of the two that copied": (
        {"ranks": 2, "copies": copies()[12:], "topology": built(8, *[16] * 7)},
        "2 × H100 on n0: no collective measured; no pair measured; PCIe 2 of 2 x16; PASS (exit 0)"),
    "a ladder": (
        {"pairs": pairs(), "ladder": LADDER, "topology": built(16)},
        f"{NONE}; 28 of 28 pairs within 2 %; ladder 8 ranks 7.9 x (99 %); PCIe 1 of 1 x16; PASS (exit 0)"),
    "the largest judged row": (
        {"measurements": (LARGE, JUDGED, SMALL)},
        f"8 × H100 on n0: {BUSBW}; no pair measured; PASS (exit 0)"),
    "gloo": (OVER_GLOO, "2 ranks on n0, gloo: all_reduce 4 MiB: busbw 1.23 GB/s (algbw 52.4), not judged; "
             "1 pair at 20 GB/s; 2 numbers measured, none judged (exit 0)"),
    "nothing": ({"ranks": 4, "fingerprint": None}, "n0: checked, nothing measured; PASS (exit 0)"),
    "two nodes": (
        {"ranks": 16, "nodes": 2, "copies": (replace(COPY, status="unjudged"),)},
        "16 × H100 on 2 nodes: no collective measured; no pair measured; PCIe widths not known; "
        "1 number measured, none judged (exit 0)"),
    "one GPU": (
        {"ranks": 1, "copies": OF_ONE, "skipped_rows": (ALONE, replace(ALONE, op="collectives")),
         "topology": built(16)},
        f"1 × H100 on n0: 55.3 GB/s to the GPU, 54.9 back; PCIe 1 of 1 x16; {ALONE.why}; PASS (exit 0)"),
    "a look without a GPU": (
        {**UNABLE, "scope": Scope(gpus=None, driver=False)},
        "n0: nothing measured: no torch; no GPU, so gloo jobs only; FAIL (exit 4)"),
    "a look for gloo": (
        {**UNABLE, "scope": Scope("gloo", None, driver=True)}, "n0: nothing measured: no torch; FAIL (exit 4)"),
    "GPUs that are missing": (
        {"fingerprint": None, "checks": (MISSING,), "scope": Scope(gpus=None, driver=False)},
        "n0: checked, nothing measured; PASS (exit 0)"),
    **{name: ({"fingerprint": Fingerprint({"gpu": f"8 x {name}"}, software={"backend": "nccl"})},
              f"8 × {short} on n0: checked, nothing measured; PASS (exit 0)")
       for name, short in {
           "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA GeForce RTX 4090": "RTX 4090", "NVIDIA GB200": "GB200",
           "NVIDIA L40S": "L40S", "Tesla V100-SXM2-16GB": "V100", "NVIDIA Graphics": "Graphics"}.items()},
}  # fmt: skip


@each_row(("changes", "said"), LINES.values(), ids=LINES)
def test_the_line_says_what_was_measured_and_no_more(changes: dict[str, Any], said: str) -> None:
    assert accepted_line(accepted(**changes)) == said


@each_row(("command", "places"), [("accept", (0, -1)), ("bandwidth -n 5", (-1,)), ("pairs", ())])
def test_the_line_is_the_first_and_the_last_of_accept_and_the_last_of_bandwidth(
    command: str, places: tuple[int, ...]
) -> None:
    made = accepted(command=f"ncclprobe {command}", measurements=(JUDGED,))
    lines = render(made).splitlines()
    assert [lines[place] for place in places] == [accepted_line(made)] * len(places)
    assert lines.count(accepted_line(made)) == len(places)
    assert text.accepted_begins(made) is (0 in places)
