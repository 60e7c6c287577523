"""The line that `accept` and `bandwidth` print to be pasted: never more than was measured."""

from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.model.findings import Status, Verdict, fail
from ncclprobe.model.measurement import Fingerprint, SkippedRow
from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology
from ncclprobe.model.pair_results import PairRow
from ncclprobe.model.report import LaunchRow, NodeRow, Report, Scope, Tool
from ncclprobe.model.traffic import CopyRow, LadderRow
from ncclprobe.model.values import replace
from ncclprobe.report import text
from ncclprobe.report.text import accepted_line
from tests.each_row import each_row, some

H100 = Fingerprint({"gpu": "8 x NVIDIA H100 80GB HBM3"}, software={"backend": "nccl"})
GLOO = Fingerprint({"gpu": "8 x NVIDIA H100 80GB HBM3"}, software={"backend": "gloo"})
JUDGED = replace(ROW, nbytes=1 << 30, busbw_GBps=98.0, expectation=BAND, status="pass")
PAIR = PairRow(
    src=0, dst=1, src_end="a", dst_end="b", nbytes=4 << 20, latency_nbytes=8, latency_us=1.0, GBps=20.0, time_us=1.0,
    min_us=1.0, max_us=1.0, samples_us=(1.0,),
)  # fmt: skip
COPY = CopyRow(
    node="n0", rank=0, kind="h2d", device="GPU0", nbytes=1, GBps=53.0, min_GBps=52.0, max_GBps=54.0, samples=7,
    why="PCIe Gen5 x16 carries 63.01 GB/s, 0.86 of it payload", status="pass",
)  # fmt: skip


def report(ranks: int = 8, nodes: int = 1, **more: object) -> Report:
    own: dict[str, object] = {
        "tool": Tool("ncclprobe", "0"),
        "started": "",
        "duration_s": 1.0,
        "command": "ncclprobe accept",
        "status": Status.PASS,
        "exit_code": 0,
        "launch": LaunchRow("self", nodes, ranks),
        "nodes": tuple(NodeRow(f"n{rank}", rank, f"n{rank}", Status.PASS) for rank in range(nodes)),
        "fingerprint": H100,
    }
    return Report(**(own | more))  # type: ignore[arg-type]


def pairs(slow: int = 0, both: int = 3) -> tuple[PairRow, ...]:
    """28 pairs of 8 ranks, so many of them slow one way, and rows that are none of the one-way rows."""
    ways = [(src, dst) for src in range(8) for dst in range(8) if src != dst]
    slow_ways = {(0, dst) for dst in range(1, 1 + slow)}
    rows = [replace(PAIR, src=s, dst=d, GBps=10.0 if (s, d) in slow_ways else 20.0) for s, d in ways]
    return (*rows, *[replace(PAIR, both=True, GBps=1.0)] * both, replace(PAIR, step=1, GBps=1.0))


def built(*widths: int | None, most: int = 16) -> dict[str, NodeTopology]:
    """A node whose GPUs have links of these widths."""
    gpus = [DeviceRow(f"GPU{n}", "H100", None, 0, None, width, most) for n, width in enumerate(widths)]
    return {"n0": NodeTopology(gpus=tuple(gpus), nics=(), numa=(), paths=None)}


def copies(slow: int = 0) -> tuple[CopyRow, ...]:
    return tuple(
        replace(COPY, device=f"GPU{gpu}", kind=kind, status="fail" if gpu < slow else "pass")
        for gpu in range(8)
        for kind in ("h2d", "d2h")
    )


def test_a_good_node_is_one_line() -> None:
    said = accepted_line(report(measurements=(JUDGED,), pairs=pairs(), copies=copies(), topology=built(*[16] * 8)))
    assert said == (
        "8 × H100 on n0: all_reduce 1 GiB: busbw 98 GB/s (algbw 52.4), 98 % of expected (bands.toml); "
        "28 of 28 pairs within 2 %; PCIe 8 of 8 x16; PASS (exit 0)"
    )


def test_what_is_slow_is_counted_and_slow_pairs_are_below_the_usual_one() -> None:
    said = accepted_line(
        report(measurements=(JUDGED,), pairs=pairs(slow=2), copies=copies(slow=1), topology=built(*[16] * 8))
    )
    assert said.endswith("26 of 28 pairs within 2 %; 1 of 8 GPUs slow to copy; PCIe 8 of 8 x16; PASS (exit 0)")


def test_a_pair_that_is_slow_both_ways_is_one_pair() -> None:
    rows = [replace(row, GBps=10.0) if {row.src, row.dst} == {0, 1} else row for row in pairs()]
    assert "27 of 28 pairs" in accepted_line(report(pairs=tuple(rows)))


def test_widths_are_those_that_were_read_and_not_what_copies_passed() -> None:
    assert accepted_line(report(copies=copies(), topology=built(8, *[16] * 7))).endswith(
        "PCIe 7 of 8 x16 (1 x8); PASS (exit 0)"
    )
    assert accepted_line(report(copies=copies())).endswith("PCIe widths not known; PASS (exit 0)")
    unread = accepted_line(report(copies=copies(), topology=built(None, *[16] * 7)))
    assert unread.endswith("PCIe widths not known; PASS (exit 0)")
    two = tuple(row for row in copies() if row.device in ("GPU6", "GPU7"))
    assert accepted_line(report(ranks=2, copies=two, topology=built(8, *[16] * 7))).endswith(
        "PCIe 2 of 2 x16; PASS (exit 0)"
    )


def test_the_ladder_says_what_more_ranks_bring() -> None:
    one = LadderRow(rung="rank", ranks=1, groups=8, slowest=(0,), step_bytes=1, step_us=1.0,
                    samples_us=(1.0,) * 9, nbytes=1, speedup=1.0, efficiency=1.0)  # fmt: skip
    node = replace(one, rung="node", ranks=8, speedup=7.9, efficiency=0.9875)
    assert "; ladder 8 ranks 7.9 x (99 %); PCIe" in accepted_line(
        report(pairs=pairs(), ladder=(one, node), topology=built(16))
    )


def test_the_largest_judged_row_speaks_and_not_the_fastest_or_the_unjudged() -> None:
    small = replace(JUDGED, nbytes=8, busbw_GBps=200.0)
    unjudged = replace(ROW, nbytes=1 << 32, busbw_GBps=500.0)
    assert "busbw 98 GB/s (algbw 52.4), 98 % of expected" in accepted_line(
        report(measurements=(unjudged, JUDGED, small))
    )


def test_of_gloo_nothing_is_said_of_gpus() -> None:
    row = replace(ROW, nbytes=4 << 20, busbw_GBps=1.23)
    host = replace(COPY, kind="host", device="cpu", status="unjudged")
    said = accepted_line(report(ranks=2, fingerprint=GLOO, measurements=(row,), pairs=(PAIR,), copies=(host,)))
    assert said == (
        "2 ranks on n0, gloo: all_reduce 4 MiB: busbw 1.23 GB/s (algbw 52.4), not judged; 1 pair at 20 GB/s; "
        "2 numbers measured, none judged (exit 0)"
    )


def test_what_was_not_measured_is_said() -> None:
    assert accepted_line(report(ranks=4, fingerprint=None)) == "n0: checked, nothing measured; PASS (exit 0)"
    several = accepted_line(report(ranks=16, nodes=2, copies=(replace(COPY, status="unjudged"),)))
    assert several == (
        "16 × H100 on 2 nodes: no collective measured; no pair measured; PCIe widths not known; "
        "1 number measured, none judged (exit 0)"
    )


def test_a_model_is_known_by_its_short_name() -> None:
    names = {"NVIDIA A100-SXM4-80GB": "A100", "NVIDIA GeForce RTX 4090": "RTX 4090", "NVIDIA GB200": "GB200",
             "NVIDIA L40S": "L40S", "Tesla V100-SXM2-16GB": "V100", "NVIDIA Graphics": "Graphics"}  # fmt: skip
    for name, short in some(names.items()):
        found = Fingerprint({"gpu": f"8 x {name}"}, software={"backend": "nccl"})
        assert accepted_line(report(fingerprint=found)).startswith(f"8 × {short} on n0: ")


def test_of_one_gpu_its_copies_are_said_and_that_there_is_nothing_between_gpus() -> None:
    alone = SkippedRow("pairs", None, "alone", "one GPU, so there is no link between GPUs to measure")
    ways = tuple(replace(COPY, kind=kind, GBps=rate) for kind, rate in (("h2d", 55.3), ("d2h", 54.9), ("device", 2e3)))
    one = report(ranks=1, copies=ways, skipped_rows=(alone, replace(alone, op="collectives")), topology=built(16))
    assert accepted_line(one) == (
        "1 × H100 on n0: 55.3 GB/s to the GPU, 54.9 back; PCIe 1 of 1 x16; "
        "one GPU, so there is no link between GPUs to measure; PASS (exit 0)"
    )


@each_row(
    ("scope", "said"),
    [
        (Scope(gpus=None, driver=False), "n0: nothing measured: no torch; no GPU, so gloo jobs only; FAIL (exit 4)"),
        (Scope("gloo", None, driver=True), "n0: nothing measured: no torch; FAIL (exit 4)"),
    ],
)
def test_a_look_alone_says_why_nothing_was_measured(scope: Scope, said: str) -> None:
    why = SkippedRow("copies", None, "unable", "no torch")
    bare = report(fingerprint=None, skipped_rows=(why,), scope=scope, status=Status.FAIL, exit_code=4)
    assert accepted_line(bare) == said


def test_a_node_whose_gpus_are_missing_is_no_node_for_gloo_jobs() -> None:
    missing = Verdict("gpu.count", "n0", Status.FAIL, "", findings=(fail("GPUs", "none usable"),))
    said = accepted_line(report(fingerprint=None, checks=(missing,), scope=Scope(gpus=None, driver=False)))
    assert "no GPU" not in said


@each_row(("command", "places"), [("accept", (0, -1)), ("bandwidth -n 5", (-1,)), ("pairs", ())])
def test_the_line_is_the_first_and_the_last_of_accept_and_the_last_of_bandwidth(
    command: str, places: tuple[int, ...]
) -> None:
    made = report(command=f"ncclprobe {command}", measurements=(JUDGED,))
    lines = text.render(made).splitlines()
    assert [lines[place] for place in places] == [accepted_line(made)] * len(places)
    assert lines.count(accepted_line(made)) == len(places)
    assert text.accepted_begins(made) is (0 in places)
