"""Reports: what was written is read back, foreign files are refused, and text says what matters first."""

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Related, Status, Verdict, fail, note, seen, warn
from ncclprobe.model.measurement import Expectation, FirstCall, Library, Measurement, Retest, TimeStats
from ncclprobe.model.report import NodeRow, Report, Tool, digest
from ncclprobe.model.values import replace
from ncclprobe.report import html as as_html
from ncclprobe.report import json as as_json
from ncclprobe.report import junit as as_junit
from ncclprobe.report import markdown as as_markdown
from ncclprobe.report import rows
from ncclprobe.report import text as as_text
from tests.each_row import each_row

HEALTHY = Report(
    tool=Tool("ncclprobe", "0.1.0"),
    started="2026-11-21T00:00:00+00:00",
    duration_s=0.5,
    command="ncclprobe doctor",
    status=Status.PASS,
    exit_code=0,
    nodes=(NodeRow("n0", 0, "n0", Status.PASS),),
    checks=(Verdict("env.value", "n0", Status.PASS, "A word"),),
    coverage={"pass": 1, "warn": 0, "fail": 0, "skip": 0, "unknown": 0},
)
ROW = Measurement(
    op="all_reduce",
    place="in",
    mode="blocking",
    backend="gloo",
    library=Library("gloo", "2.13.0"),
    dtype="float32",
    redop="sum",
    nbytes=1 << 20,
    count=1 << 18,
    ranks=2,
    nodes=1,
    iters=20,
    batches=5,
    footprint_bytes=64 << 20,
    time_us=TimeStats(1234.5, stdev=123.45),
    precision=0.1,
    issue_us=1.0,
    slowest_rank=1,
    algbw_GBps=0.849,
    busbw_GBps=0.849,
    wrong=0,
    expectation=Expectation(2.0, 1.5, "GB/s", "user", "because", "me"),
    status="fail",
)


def with_findings(*findings: object, hostile: str = "") -> Report:
    verdicts = [Verdict("a.b", "n0", Status.FAIL, "t", findings=tuple(findings))]  # type: ignore[arg-type]
    unknown = Verdict("c.d", "n0", Status.UNKNOWN, "t", why="permission denied" + hostile, required=True)
    changes = {"checks": (*verdicts, unknown), "status": Status.FAIL, "exit_code": 4}
    return _replace(changes)


def _replace(changes: dict[str, object]) -> Report:
    return replace(HEALTHY, **changes)  # type: ignore[arg-type]


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    checks = (Verdict("a.b", None, Status.FAIL, "t"),)
    report = _replace({"measurements": (ROW,), "checks": checks, "status": Status.FAIL, "exit_code": 4})
    as_json.write(report, str(tmp_path / "r.json"))
    assert as_json.read(str(tmp_path / "r.json")) == report
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_json_carries_real_types_and_the_contracts_keys() -> None:
    row = json.loads(as_json.render(_replace({"measurements": (ROW,)})))["measurements"][0]
    assert (row["nbytes"], row["wrong"], row["time_us"]["median"]) == (1 << 20, 0, None)
    assert row["transport"] == {"network": None, "gdr": None, "algorithm": None, "protocol": None, "channels": None}
    top = json.loads(as_json.render(HEALTHY))
    assert top["schema"] == "ncclprobe.report/1"
    assert set(top) >= {"tool", "started", "duration_s", "command", "status", "exit_code", "launch", "nodes"}


def test_the_schema_describes_every_key() -> None:
    described = as_json.schema()["$defs"]["Report"]["properties"]
    assert set(described) == set(json.loads(as_json.render(HEALTHY)))


@each_row(
    "text",
    ["", "{}", "[]", "not json", '{"schema": "other/1"}', "[" * 100_000],
    ids=["empty", "object", "list", "text", "foreign", "deep"],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        as_json.read(str(tmp_path / "r.json"))
    assert "\n" not in str(caught.value)


def test_a_truncated_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(as_json.render(HEALTHY)[:-40])
    with pytest.raises(UsageError, match="not a complete"):
        as_json.read(str(tmp_path / "r.json"))


def test_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(as_json.render(_replace({"schema": "ncclprobe.report/9"})))
    with pytest.raises(UsageError, match=r"ncclprobe\.report/9"):
        as_json.read(str(tmp_path / "r.json"))


@each_row("folder", ["file", "missing"])
def test_a_path_that_cannot_be_written_is_refused_and_no_folder_is_made(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        as_json.write(HEALTHY, str(tmp_path / folder / "r.json"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        seen = reader.submit(pipe.read_text)
        as_json.write(HEALTHY, str(pipe))
        assert json.loads(seen.result(timeout=10))["exit_code"] == 0
    assert pipe.is_fifo()


def test_problems_come_first_and_the_verdict_last() -> None:
    report = with_findings(note("x", "by the way"), warn("y", "hm"), fail("z", "broken", remedy="mend it"))
    lines = as_text.render(report).splitlines()
    order = [line.split()[0] for line in lines if line.startswith(("FAIL", "WARN", "NOTE", "unknown"))]
    assert order[:5] == ["FAIL", "FAIL", "WARN", "unknown", "NOTE"]
    assert lines[2].split() == ["FAIL", "z:", "broken"]
    assert lines[-1].startswith("Not ready for NCCL jobs")
    assert lines[-1].endswith("(exit 4)")
    assert any("fix:   mend it" in line for line in lines)
    assert "unknown c.d (required)" in lines


def test_a_healthy_report_has_no_problem_in_it() -> None:
    text = as_text.render(HEALTHY)
    assert "FAIL" not in text
    assert "WARN" not in text
    assert text.splitlines()[-2:] == ["checks: 1 pass (-v names them)", "Ready for NCCL jobs on 1 node. (exit 0)"]


def test_hostile_text_cannot_steer_the_terminal() -> None:
    report = with_findings(fail("\x1b[2Jeth0", "is \x9b31m odd\r\n", evidence="\x00"), hostile="\x1b]0;x\x07")
    for text in (as_text.render(report), as_text.quiet(report)):
        assert not any(c in text for c in "\x1b\x9b\x00\x07\r")
        assert "\\x1b" in text


@each_row("width", [40, 80, 200])
def test_lines_fit_the_terminal_where_words_allow(width: int) -> None:
    report = with_findings(fail("eth0", "word " * 80, evidence="seen " * 40, remedy="fix " * 40))
    body = [line for line in as_text.render(report, width=width).splitlines() if line.startswith(" ")]
    body = [line for line in body if "https://" not in line]  # an address is copied whole
    assert max(map(len, body)) <= width


@each_row("message", ["short", "long " * 40])
def test_the_quiet_line_is_whole_in_a_log_and_fits_a_terminal(message: str) -> None:
    line = as_text.quiet(with_findings(fail("eth0", message), warn("eth1", message)))
    assert line.startswith(f"FAIL a.b eth0: {message}")
    assert line.endswith(" (on n0, +1 more, exit 4)\n")
    short = as_text.shortened(line, 80)
    assert len(short.rstrip("\n")) <= 80
    assert short.endswith(" (on n0, +1 more, exit 4)\n")


@each_row("width", [80, rows.ROOM_FOR_ALL])
def test_a_measured_row_stands_under_its_header_with_what_was_expected(width: int) -> None:
    *about, names, units = rows.header(ROW, width).splitlines()
    assert " ".join(about) == "gloo 2.13.0, 2 ranks on 1 node, blocking, float32, 20 calls x 5 batches, 64 MiB buffers"
    row = rows.row(ROW, width)
    ends = row.index("0.8490") + 6, row.rindex("0.8490") + 6
    assert ends == (names.index("algbw") + 5, names.index("busbw") + 5)
    assert units[: ends[1]].endswith("(GB/s)")
    assert max(map(len, (row, names, units, *about))) <= width


def test_a_narrow_row_holds_what_is_judged_and_a_wide_one_everything() -> None:
    narrow, wide = (" ".join(rows.row(ROW, width).split()) for width in (80, 120))
    assert narrow == "all_reduce 1 MiB in 1234.50 10 0.8490 0.8490 2 fail, not 1.5"
    assert wide == "all_reduce 1 MiB in 1234.50 10 1.00 100 0.8490 0.8490 2 fail, not 1.5"


@each_row(
    ("changes", "words"),
    [
        ({"status": "inconclusive"}, "inconclusive, not 1.5"),
        ({"status": "unjudged", "launch_bound": True, "issue_us": 1200.0}, "unjudged, launch-bound"),
        ({"status": "fail", "wrong": 3}, "fail, not 1.5, 3 wrong"),
        ({"status": "pass"}, "pass"),
    ],
)
def test_a_row_says_what_its_number_is_worth(changes: dict[str, object], words: str) -> None:
    assert rows.row(replace(ROW, **changes), width=100).endswith(f" {words}")  # type: ignore[arg-type]


def test_a_row_that_was_measured_again_says_what_came_of_it() -> None:
    again = replace(ROW, status="fail", retest=Retest(0.9, 1100.0, None, 5))
    assert " ".join(rows.row(again, width=120).split()).endswith("fail, not 1.5, 0.9 when retested")


def test_a_verdict_of_many_words_stays_in_its_column() -> None:
    long = replace(ROW, op="reduce_scatter", status="inconclusive", wrong=3, launch_bound=True)
    first, *further = rows.row(long, 80).splitlines()
    assert further, "there is no room for all of it in one line"
    assert all(len(line) <= 80 for line in (first, *further))
    assert all(line.startswith(" " * first.index("inconclusive")) for line in further)


@each_row(
    ("value", "shown"),
    [(1.8e-06, "0.000002"), (2.0e-05, "0.000020"), (0.001234, "0.001234"), (0.1356, "0.1356"), (1.2, "1.200"),
     (483.24, "483.2"), (9999.9, "10000")],
)  # fmt: skip
def test_rates_of_a_column_have_one_unit_and_no_exponent(value: float, shown: str) -> None:
    assert rows.rate(value) == shown


def test_another_operation_stands_apart() -> None:
    table = rows.table((ROW, ROW, replace(ROW, op="broadcast", redop=None)), 80)
    assert [line.startswith("\n") for line in table] == [False, False, False, True]


def test_a_precision_that_was_asked_for_stands_above_the_rows() -> None:
    assert ", ±2 % asked for, " in rows.header(replace(ROW, precision_asked=0.02))


def test_what_the_first_calls_cost_is_one_line() -> None:
    cost = FirstCall(1.25, 3, 0.214, 0, 4e-6, 0.0213, 1)
    line = (
        "first calls: process group 1.25 s, collective 214 ms (second call 4 us), pairs 21.3 ms (of the slowest rank)"
    )
    assert line in " ".join(as_text.render(_replace({"first_call": cost})).split())
    assert "first calls" not in as_text.render(HEALTHY)


def test_evidence_is_a_source_its_line_and_what_stands_there() -> None:
    finding = fail("NCCL_ALGO", "is odd", evidence=("NVML", "", seen("/etc/nccl.conf", "NCCL_ALGO=Ring", 3)))
    assert [(each.source, each.line, each.text) for each in finding.evidence] == [
        ("NVML", None, ""),
        ("/etc/nccl.conf", 3, "NCCL_ALGO=Ring"),
    ]
    assert finding.seen == "NVML; /etc/nccl.conf:3: NCCL_ALGO=Ring"


@each_row("render", [as_text.render, as_markdown.render, as_junit.render, as_html.render])
def test_every_format_for_people_names_the_related_findings(render: Callable[[Report], str]) -> None:
    finding = fail("all_reduce 64 MiB", "is slow", related=(Related("ib.mtu", "mlx5_3:1"),))
    assert "mlx5_3:1" in render(with_findings(finding))
    assert "mlx5_3:1" not in render(with_findings(replace(finding, related=())))


def test_a_large_report_has_one_digest_however_it_is_laid_out() -> None:
    told = {"b": ["x" * 300] * 1000, "a": {"é": [1.5, None, "y" * 70_000]}}
    other = {"a": told["a"], "b": told["b"]}
    plain = hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()
    assert {digest(json.dumps(told)), digest(json.dumps(other, indent=2)), digest(" []")} == {plain, digest("[]")}


def test_what_one_reason_keeps_from_looking_is_named_up_to_twelve_and_all_of_it_with_v() -> None:
    def shown(advisory: int, verbose: bool, *required: str) -> str:
        some = [Verdict(f"a.b{n}", "n1", Status.UNKNOWN, "", why="not root") for n in range(advisory)]
        must = [Verdict(each, "n1", Status.UNKNOWN, "", why="not root", required=True) for each in required]
        made = replace(HEALTHY, checks=(*some, *must, Verdict("a.c", "n1", Status.PASS, "")), status=Status.UNKNOWN)
        return " ".join(as_text.render(made, verbose=verbose, width=400).split())

    assert "unknown a.b0, " in shown(12, verbose=False)
    assert "a.b11" in shown(12, verbose=False)
    assert "unknown 13 advisory checks" in shown(13, verbose=False)
    assert "a.b12" in shown(13, verbose=True)
    assert "unknown d.e (required) and 2 advisory checks" in shown(2, False, "d.e")
    assert "a.b1" not in shown(2, False, "d.e")
    assert "unknown a.b0, a.b1" in shown(2, True, "d.e")
    assert ("-v names them" in shown(1, verbose=False), "-v names them" in shown(1, verbose=True)) == (True, False)


def test_a_verdict_has_its_colour_and_a_pass_that_nothing_judged_has_that_of_what_was_skipped() -> None:
    def last(report: Report) -> str:
        return as_text.render(report, style=lambda text, status: f"<{status}>{text}").rstrip().rpartition("<")[2]

    assert last(replace(HEALTHY, measurements=())).startswith("pass>")
    assert last(replace(HEALTHY, measurements=(replace(ROW, status="unjudged", expectation=None),))).startswith("skip>")
    assert last(replace(HEALTHY, status=Status.FAIL)).startswith("fail>")
