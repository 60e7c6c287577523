"""`ncclprobe report` and the options that all reporting commands have: every format, and refusals before any work."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclprobe.commands import bandwidth, report
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.facts.run.samples import Participants
from ncclprobe.host.run_log import FILE
from ncclprobe.model.errors import UsageError
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report import delivery, nodes
from ncclprobe.report import json as as_json
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.ranks.rank_files import FOLDER
from tests.each_row import each_row

from .samples import HEALTHY, INCONCLUSIVE, ROW, SICK, hostile

OTHERS = [name for name in delivery.FORMATS if name not in ("json", "html")]


@each_row("made", [HEALTHY, INCONCLUSIVE, SICK], ids=["healthy", "inconclusive", "sick"])
def test_a_saved_report_is_rendered_in_every_format_with_its_own_exit_code(tmp_path: Path, made: Report) -> None:
    source, lists = tmp_path / "saved.json", tmp_path / "lists"
    lists.mkdir()
    (lists / "bad").write_text("n7\n")
    as_json.write(made, str(source))
    options = [word for name in OTHERS for word in (f"--{name}", str(tmp_path / f"made.{name}"))]
    again = ["--json", str(tmp_path / "again.json"), "--nodes-out", str(lists)]
    assert report.main([str(source), "-q", *options, *again]) == made.exit_code
    assert as_json.read(str(tmp_path / "again.json")) == made
    assert [(tmp_path / f"made.{name}").read_text() for name in OTHERS] == [
        delivery.rendered(made, name) for name in OTHERS
    ]
    assert {path.name: path.read_text() for path in lists.iterdir()} == nodes.lists(made).texts


@each_row("name", [*OTHERS, "json"])
def test_a_format_on_standard_output_is_all_there_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_json.write(SICK, str(tmp_path / "saved.json"))
    assert report.main([str(tmp_path / "saved.json"), f"--{name}", "-"]) == 4
    assert capsys.readouterr().out == delivery.rendered(SICK, name)


def test_redaction_holds_in_every_format_and_a_name_that_no_host_has_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, lists = str(tmp_path / "saved.json"), ["--nodes-out", str(tmp_path)]
    row = replace(HEALTHY.nodes[0], name="gpu-secret", hostname="gpu-secret")
    named = [replace(verdict, node="gpu-secret") for verdict in HEALTHY.checks]
    as_json.write(replace(HEALTHY, nodes=(row,), checks=tuple(named)), path)
    for written in (*([f"--{name}", "-"] for name in OTHERS), lists):
        report.main([path, *written, "--redact-key", "a long word"])
    assert "secret" not in capfd.readouterr().out + (tmp_path / "good").read_text()
    assert (tmp_path / "good").read_text()
    as_json.write(hostile("a\x1bb c"), path)
    report.main([path, "-q", *lists])
    assert "in no list, because no host has this name" in capfd.readouterr().err


@each_row(
    ("argv", "words"),
    [
        (["--json", "-", "--junit", "-"], "--json and --junit: only one of them can be written to standard output"),
        (["--markdown", "a", "--junit", "a"], "--junit and --markdown: only one of them can be written to a"),
        (["--markdown", "a", "--junit", "./a"], "--junit and --markdown: only one of them can be written to a"),
        (["--markdown", "github"], "GITHUB_STEP_SUMMARY is not set"),
        (["--junit", "/no/such/x"], "because the folder /no/such does not exist"),
        (["--nodes-out", "/no/such/x"], "because the folder /no/such does not exist"),
        (["--nodes-out", "/etc/passwd"], "not a folder"),
        (["--nodes-out", "piped"], "unsure: .*pipe"),
        (["--nodes-out", "foldered"], "unsure: .*folder"),
        *(([option, path], why) for option in ("--json", "--junit", "--nodes-out")
          for path, why in (("x" * 300, "File name too long"), ("loop/x", "cannot be"))),
        *([(["--json", "loop"], "its links form a loop")] if sys.version_info < (3, 13) else []),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_in_one_line(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for name, make in (("piped", os.mkfifo), ("foldered", os.mkdir)):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "unsure")
    parses: list[Callable[[list[str]], object]] = [report.main, bandwidth.parse]
    for parse in parses:
        with pytest.raises(UsageError, match=words) as caught:
            parse(argv)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_saved_verdict_cannot_be_asked_to_be_another_and_two_formats_may_go_nowhere() -> None:
    with pytest.raises(UsageError, match="--fail-on is not a known option"):
        report.main(["saved.json", "--fail-on", "warn"])
    assert bandwidth.parse(["--json", "/dev/null", "--junit", "/dev/null"]).output.files["junit"] == "/dev/null"


@each_row("alone", [False, True])
def test_a_github_job_gets_a_summary_beside_others_and_annotations_or_is_told_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], alone: bool
) -> None:
    as_json.write(SICK, str(tmp_path / "saved.json"))
    argv = [str(tmp_path / "saved.json"), "--markdown", "github"]
    (tmp_path / "summary").write_text("of another command\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    report.main([*argv, *(["--json", "-"] if alone else [])])
    assert (tmp_path / "summary").read_text().startswith("of another command\n## FAIL")
    annotated = ["::error title=" in text for text in capsys.readouterr()]
    assert annotated == [not alone, alone]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert report.main(argv) == 4  # which was printed
    assert "cannot be written" in capsys.readouterr().err


def recorder(*argv: str) -> Recorder:
    """Of two hosts that were asked for with `argv`."""
    asked = bandwidth.parse(argv)
    return Recorder(asked, ask(asked.judging, argv, Job(), MEASURED), Participants("environment", 2, ("h0", "h1")))


def test_a_sweep_writes_every_format_when_its_record_is_closed(tmp_path: Path) -> None:
    argv = [word for name in (*OTHERS, "json") for word in (f"--{name}", str(tmp_path / f"made.{name}"))]
    record = recorder(*argv, "-q", "--nodes-out", str(tmp_path))
    record.meet()
    record.open()
    record.add(replace(ROW, expectation=None, status="unjudged"))
    assert [path.name for path in tmp_path.iterdir()] == ["made.json"]
    code = record.close()
    assert code == as_json.read(str(tmp_path / "made.json")).exit_code
    assert all((tmp_path / f"made.{name}").stat().st_size for name in OTHERS)
    assert (tmp_path / "unsure").read_text() == "h[0-1]\n"


def test_a_sweep_shows_a_format_alone_writes_none_for_another_process_and_says_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = recorder("--markdown", "-")
    record.add(ROW)
    record.close()
    assert capsys.readouterr().out.startswith("## ")
    (tmp_path / "gone").mkdir()
    record = recorder("-q", "--markdown", str(tmp_path / "gone" / "x"))
    (tmp_path / "gone").rmdir()
    assert record.close() == 2
    monkeypatch.setenv(FOLDER, str(tmp_path))
    recorder("--markdown", str(tmp_path / "x.md")).close()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
