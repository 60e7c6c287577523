"""``ncclprobe compare``: what is slower beyond noise, what is new, and what must not be called either."""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import main
from ncclprobe.commands.compare import compared, side
from ncclprobe.model.findings import ExitCode, Status, Verdict, fail, warn
from ncclprobe.model.measurement import Fingerprint, Measurement, TimeStats
from ncclprobe.model.report import NodeEnvironment, Report, Tool
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row
from tests.nccl_tests_texts import render_json, render_text

CAPTURES = Path(__file__).parent / "captures"


def row(busbw: float, half: float = 0.01, **changes: Any) -> Measurement:
    interval = (20 * (1 - half), 20 * (1 + half))
    return replace(ROW, busbw_GBps=busbw, time_us=TimeStats(20.0), interval_us=interval, **changes)


def report(*rows: Measurement, **changes: Any) -> Report:
    return replace(
        Report(
            tool=Tool("ncclprobe", "0"), started="2026-01-02T03:04:05+00:00", duration_s=1.0, command="",
            status=Status.PASS, exit_code=0, measurements=rows,
            fingerprint=Fingerprint({"gpu": "8 x NVIDIA H100"}, None, {"torch": "2.7"}),
        ),
        **changes,
    )  # fmt: skip


def compare(tmp_path: Path, old: Report, new: Report, *options: str) -> int:
    as_json.write(old, str(tmp_path / "old.json"))
    as_json.write(new, str(tmp_path / "new.json"))
    return main(["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json"), *options])


@each_row(
    ("busbw", "half", "change", "code"),
    [
        (100, 0.01, "same", 0),
        (95, 0.01, "same", 0),
        (70, 0.01, "slower", 4),
        (70, 0.4, "unsure", 3),
        (150, 0.01, "faster", 0),
    ],
)
def test_a_row_is_slower_only_beyond_its_noise(
    tmp_path: Path, busbw: float, half: float, change: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, report(row(100)), report(row(busbw, half)), "--json", "-") == code
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert found["change"] == change
    assert found["low"] < found["share"] < found["high"]


def test_a_comparison_fits_80_columns_and_says_names_and_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = [row(100, 0.4, op="reduce_scatter", nbytes=1 << n, place="out") for n in (20, 29)]
    gone = [row(100, nbytes=1 << n) for n in (3, 10, 20)]
    assert compare(tmp_path, report(*long, *gone), report(*long)) == 0
    said = capsys.readouterr().out
    head, *lines = said.splitlines()
    assert "2026-01-02 03:04:05 UTC" in head
    assert max(map(len, lines[1:])) <= 80
    assert said.count("within noise") == 3
    assert "only in the old: all_reduce 8 B to 1 MiB, 3 sizes (float32, in place" in said


def test_rows_measured_in_other_ways_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path, report(row(100)), report(row(50, mode="blocking"))) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing to compare" in said
    assert "only in the new: all_reduce 1 MiB (float32, in place, 8 ranks, blocking, nccl)" in said


def test_findings_environment_and_fingerprint_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = Verdict("ib.state", "n0", Status.WARN, "t", findings=(warn("mlx5_0:1", "is down"),))
    fresh = Verdict("nvl.links", "n0", Status.WARN, "t", findings=(warn("GPU3", "lost a link"),))
    old = report(row(100), checks=(gone,), environment={"n0": NodeEnvironment({"nccl": "2.26"})})
    new = report(
        row(100),
        checks=(fresh,),
        environment={"n0": NodeEnvironment({"nccl": "2.28"})},
        fingerprint=Fingerprint({"gpu": "7 x NVIDIA H100"}),
    )
    assert compare(tmp_path, old, new) == 0
    said = capsys.readouterr().out
    assert "new: warn nvl.links on n0: GPU3: lost a link" in said
    assert "fixed: warn ib.state on n0: mlx5_0:1: is down" in said
    assert "changed: gpu: 8 x NVIDIA H100 -> 7 x NVIDIA H100" in said
    assert "changed: nccl: 2.26 -> 2.28" in said


def test_a_new_failure_fails_and_an_old_one_does_not(tmp_path: Path) -> None:
    sick = Verdict("nvl.links", "n0", Status.FAIL, "t", findings=(fail("GPU3", "lost a link"),))
    failed = report(row(100), checks=(sick,), status=Status.FAIL, exit_code=4)
    assert compare(tmp_path, report(row(100)), failed) == 4
    assert compare(tmp_path, failed, failed) == 0
    looked, worse = report(), report(checks=(sick,), status=Status.FAIL, exit_code=4)
    assert (compare(tmp_path, looked, looked), compare(tmp_path, looked, worse)) == (0, 4)


def test_wrong_data_fails_and_its_rate_counts_for_nothing(tmp_path: Path) -> None:
    assert compare(tmp_path, report(row(100)), report(row(200, wrong=1))) == 4


def test_a_baseline_brings_its_own_noise(tmp_path: Path) -> None:
    as_json.write(report(row(100)), str(tmp_path / "a.json"))
    assert main(["baseline", str(tmp_path / "a.json"), "-o", str(tmp_path / "site.json")]) == 0
    for busbw, code in ((85.0, 0), (70.0, 4)):
        as_json.write(report(row(busbw)), str(tmp_path / "b.json"))
        assert main(["compare", str(tmp_path / "site.json"), str(tmp_path / "b.json"), "-q"]) == code


def test_a_run_of_nccl_tests_is_compared_with_ours(tmp_path: Path) -> None:
    slow = replace(row(91.75), busbw_GBps=45.9, algbw_GBps=26.2, time_us=TimeStats(40.0), interval_us=(39.8, 40.2))
    (tmp_path / "old.log").write_text(render_text(report(), (row(91.75),)))
    for new, code in ((row(91.75), 0), (slow, 4)):
        as_json.write(report(new), str(tmp_path / "b.json"))
        assert main(["compare", str(tmp_path / "old.log"), str(tmp_path / "b.json"), "-q"]) == code


def nccl_tests_log(tmp_path: Path, name: str, *rows: Measurement, more: str = "", lines: int = 0) -> str:
    text = render_text(report(), rows).splitlines(keepends=True)
    (tmp_path / name).write_text("".join(text[: len(text) - lines]) + more)
    return str(tmp_path / name)


@each_row(
    ("changes", "more", "lines", "code", "words"),
    [
        ({}, "", 0, 0, "only in the old: all_reduce 2 MiB"),  # a shorter sweep, and a whole one
        ({}, "", 4, 3, "was cut short or is inconclusive, so rows that it lacks may be"),
        (
            {},
            "n0: Test NCCL failure common.cu:44 'internal error'\n",
            4,
            4,
            "note: {new}: n0: Test NCCL failure",
        ),
        ({"wrong": 5}, "", 4, 4, "note: {new}: 5 values of all_reduce 1 MiB were wrong"),
    ],
)
def test_a_run_of_nccl_tests_that_broke_off_does_not_pass(
    tmp_path: Path, changes: dict[str, Any], more: str, lines: int, code: int, words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    longer = row(91.75, algbw_GBps=52.43)
    old = nccl_tests_log(tmp_path, "old.log", longer, replace(longer, nbytes=1 << 21, count=1 << 19,
                                                              time_us=TimeStats(40.0)))  # fmt: skip
    new = nccl_tests_log(tmp_path, "new.log", replace(longer, **changes), more=more, lines=lines)
    assert main(["compare", old, new]) == code
    said = "".join(capsys.readouterr().out.split())  # a long path may be broken at the edge
    assert "".join(words.format(new=new).split()) in said


def test_an_error_that_ended_nccl_tests_is_read_from_its_json(tmp_path: Path) -> None:
    good = render_json(report(), (row(91.75, algbw_GBps=52.43),))
    (tmp_path / "a.json").write_text(good)
    (tmp_path / "b.json").write_text(good.replace('"errors": [\n  ""', '"errors": [\n  "CUDA failure"'))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 4
    assert main(["baseline", str(tmp_path / "b.json"), "-o", str(tmp_path / "site.json")]) == 3


def test_rows_that_differ_in_their_reduction_alone_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, report(row(100)), report(row(100, redop="max"))) == 3
    assert "only in the new: all_reduce 1 MiB (float32 max, in place, " in capsys.readouterr().out


def test_a_run_that_a_signal_ended_is_no_pass_for_the_rows_it_lacks(tmp_path: Path) -> None:
    cut = report(row(100), status=Status.UNKNOWN, exit_code=3)
    assert compare(tmp_path, report(row(100), row(100, nbytes=8)), cut) == 3
    assert compare(tmp_path, report(row(100)), cut) == 0


DEVICES = (
    ("ib-down", "mlx5_3:1 state: ACTIVE -> DOWN"),
    ("ib-half-rate", "mlx5_3:1 rate: 400 Gb/s over 4 lanes -> 200 Gb/s over 4 lanes"),
    ("gpu-x8", "GPU3 PCIe width: 16 -> 8"),
    ("nvlink-down", "GPU5 NVLink 7 state: active -> inactive"),
)


@each_row(("sick", "changed"), DEVICES)
def test_two_captures_are_compared_port_by_port_and_gpu_by_gpu(sick: str, changed: str) -> None:
    healthy = side(str(CAPTURES / "hgx-h100.jsonl"))
    found = compared(healthy, side(str(CAPTURES / "sick" / f"{sick}.jsonl")), 0.0)
    assert changed in found.changed, found.changed
    assert (len(found.changed) <= 4, found.exit_code) == (True, ExitCode.FAIL)


def test_a_capture_differs_from_itself_in_nothing() -> None:
    healthy = side(str(CAPTURES / "hgx-h100.jsonl"))
    found = compared(healthy, healthy, 0.0)
    assert len(healthy.environment) > 500
    assert (found.changed, found.new_findings, found.exit_code) == ((), (), ExitCode.OK)
