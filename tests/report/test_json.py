"""JSON reports by the schema that is shipped, and every other form of them on standard output and in files."""

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands import bandwidth, main, report
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.facts.run.samples import Participants
from ncclprobe.host.run_log import FILE
from ncclprobe.model.errors import UsageError
from ncclprobe.model.report import Report, digest
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report import delivery, nodes
from ncclprobe.report import json as as_json
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.ranks.rank_files import FOLDER
from tests.each_row import each_row

from .samples import HEALTHY, INCONCLUSIVE, ROW, SICK, fleet, hostile

SHIPPED = json.loads(as_json.SCHEMA_FILE.read_text())
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)
EXAMPLES = sorted((Path(__file__).parents[2] / "reports").glob("*.json"))
CAPTURE = Path(__file__).parents[1] / "captures" / "hgx-h100.jsonl"
WHOLE, PLAIN = as_json.render(SICK), json.loads(as_json.render(HEALTHY))


def test_what_is_shipped_and_shown_is_what_the_types_say(capsys: pytest.CaptureFixture[str]) -> None:
    again = "python -m ncclprobe report --schema > ncclprobe/report/schema.json"
    assert as_json.schema() == SHIPPED, f"make it again: {again}"
    VALIDATOR.check_schema(SHIPPED)
    assert report.main(["--schema"]) == 0
    assert capsys.readouterr().out == as_json.SCHEMA_FILE.read_text()
    assert set(SHIPPED["$defs"]["Report"]["properties"]) == PLAIN.keys()


@each_row("made", [HEALTHY, SICK, INCONCLUSIVE, fleet(3, 4)], ids=["healthy", "sick", "cut", "fleet"])
def test_a_report_is_valid_and_read_back_as_it_was_written(made: Report, tmp_path: Path) -> None:
    VALIDATOR.validate(json.loads(as_json.render(made)))
    as_json.write(made, str(tmp_path / "r.json"))
    assert as_json.read(str(tmp_path / "r.json")) == made
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@each_row("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_valid(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_text()))


def test_what_is_written_while_a_sweep_still_runs_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    asked = bandwidth.parse(["--json", str(path), "-q"])
    record = Recorder(asked, ask(asked.judging, (), Job(), MEASURED), Participants("environment", 2, ("h0", "h1")))
    record.open()
    record.add(ROW)
    partial = json.loads(path.read_text())
    VALIDATOR.validate(partial)
    assert (partial["status"], partial["exit_code"], len(partial["measurements"])) == ("unknown", 3, 0)
    assert as_json.read(str(path)).exit_code == 3


@each_row(
    ("change", "valid"),
    [
        ({"schema": "ncclprobe.report/2"}, False),
        ({"exit_code": 1}, False),
        ({"exit_code": "0"}, False),
        ({"status": "great"}, False),
        ({"nodes": None}, False),
        ({"checks": [{"id": "x"}]}, False),
        ({"duration_s": "1.5"}, False),
        ({"later": {"x": 1}}, True),  # a newer version may add keys
    ],
)
def test_what_is_no_report_is_not_valid(change: dict[str, Any], valid: bool) -> None:
    assert VALIDATOR.is_valid({**PLAIN, **change}) is valid


def test_a_path_that_cannot_be_written_is_refused_and_no_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "missing"):
        with pytest.raises(UsageError, match="cannot be written"):
            as_json.write(HEALTHY, str(tmp_path / folder / "r.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        seen = reader.submit(pipe.read_text)
        as_json.write(HEALTHY, str(pipe))
        assert json.loads(seen.result(timeout=10))["exit_code"] == 0
    assert pipe.is_fifo()


def test_a_large_report_has_one_digest_however_it_is_laid_out() -> None:
    told = {"b": ["x" * 300] * 1000, "a": {"é": [1.5, None, "y" * 70_000]}}
    other = {"a": told["a"], "b": told["b"]}
    plain = hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()
    assert {digest(json.dumps(told)), digest(json.dumps(other, indent=2)), digest(" []")} == {plain, digest("[]")}


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        as_json.read(str(path))
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 400
    return said


@each_row(
    ("text", "words"),
    [
        (WHOLE[: len(WHOLE) // 2], "not a complete ncclprobe.report/1 report"), ("", "not a complete"),
        ("[" * 100_000, ""),
        ('{"schema": "ncclprobe.report/0"}', "its schema is ncclprobe.report/0; this version reads ncclprobe.report/1"),
        ('{"schema": "\x7f\\u001b[2J"}', "its schema is"),
        (json.dumps({k: v for k, v in PLAIN.items() if k != "schema"}), "missing required field `schema`"),
        ('{"schema": "ncclprobe.report/1", "schema": "ncclprobe.report/1"}', "the key schema appears twice"),
        (WHOLE.replace('"exit_code": 4', '"exit_code": 4, "exit_code": 0', 1), "the key exit_code appears twice"),
        (WHOLE.replace('"duration_s": 1.5', '"duration_s": NaN', 1), "not a complete"),
        (WHOLE.replace('"duration_s": 1.5', '"duration_s": 1e999', 1), "not a complete"),
        (WHOLE.replace('"duration_s": 1.5', '"duration_s": null', 1), "not a complete"),
        (WHOLE.replace('"exit_code": 4', '"exit_code": ' + "9" * 6000, 1), "not a complete"),
        (WHOLE.replace('"exit_code": 4', '"exit_code": 0', 1), "contradicts status fail"),
        (json.dumps({**json.loads(WHOLE), "status": "pass", "exit_code": 0}), "contradicts status pass"),
        (json.dumps({**PLAIN, "missing_nodes": ["n2"]}), "missing node n2 contradicts status pass"),
        (json.dumps({"schema": "ncclprobe.report/1", "x": "y"}), "missing required field"),
        ('{"schema": "ncclprobe.report/1", "checks": ' + "[" * 100_000, "not a complete"),
        (json.dumps({**PLAIN, "command": "x" * 10**6, "started": 5}), "not a complete"), (b"\xff\xfe{\x00}\x00", ""),
        (b"\x89PNG\r\n", ""), (b"\x00" * 64, ""),
        (WHOLE.replace("{", '{"x": [' + "[]," * 5_000_000 + "[]],", 1), "more than 5000000 lists and objects"),
    ],
    ids=map(str, range(22)))  # fmt: skip
def test_what_is_no_whole_report_of_this_schema_is_refused_in_one_line(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    assert words in refusal(tmp_path / "r.json", text.encode() if isinstance(text, str) else text)


@given(st.integers(0, len(WHOLE) - 3))
def test_wherever_a_report_is_cut_it_is_refused(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    refusal(tmp_path_factory.getbasetemp() / "cut.json", WHOLE[:end].encode())


@each_row(
    "changes",
    [
        {"interval_us": [0.0, 5.0]}, {"interval_us": [9.0, 5.0]}, {"nbytes": 10**400}, {"nbytes": -1}, {"nodes": 0},
        {"ranks": 10**9}, {"busbw_GBps": 1e308}, {"busbw_GBps": -1.0}, {"iters": 1 << 63}, {"time_us": {"mean": 0.0}},
    ],
    ids=str)  # fmt: skip
def test_a_number_that_nobody_can_have_measured_is_refused(
    tmp_path: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(as_json.render(replace(HEALTHY, measurements=(ROW,))))
    document["measurements"][0].update(changes)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    for command in (["report", str(path)], ["compare", str(path), str(path)], ["baseline", str(path), "-o", "-"]):
        assert main(command) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@each_row(
    ("text", "said"),
    [
        (CAPTURE.read_text(), "a capture; `ncclprobe doctor"),
        ("node1:1:1 [0] NCCL INFO cudaDriverVersion 12080\n", "for the log of a job, run `ncclprobe explain"),
        ("[1, 2]\n", "a report is a file that --json wrote"),
        ("{}\n", "give what --json wrote"),
    ],
    ids=["capture", "log", "list", "object"],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text(text)
    more = (["baseline"], ["expect", "--machine", "dgx-h100", "--judge"]) if "capture;" in said else ()
    for argv in (["report"], *more):
        assert main([*argv, str(tmp_path / "x")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_the_folder_that_keep_filled_is_judged_as_its_captures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.jsonl").write_text(CAPTURE.read_text())
    codes = [main(["doctor", "-q", str(path)]) for path in (tmp_path, tmp_path / "node.jsonl")]
    one, other = capsys.readouterr().out.splitlines()
    assert (codes[0], one) == (codes[1], other)


def run_report(path: Path, *argv: str, memory: int = 0) -> "subprocess.CompletedProcess[str]":
    def limit() -> Any:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    command = [sys.executable, "-m", "ncclprobe", "report", str(path), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=limit if memory else None)


def test_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "r.json").open("wb") as file:
        file.truncate(1 << 30)  # takes no room on the disk
    done = run_report(tmp_path / "r.json", memory=512 << 20)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("1024 MiB; a report has at most 256")


@each_row("form", delivery.FORMATS)
def test_a_hostile_report_is_shown_as_text_in_every_format(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = hostile()
    (tmp_path / "r.json").write_text(as_json.render(hostile(source.command.replace("\ud800", ""))))
    assert main(["report", str(tmp_path / "r.json"), f"--{form}", "-"]) == 4
    assert not any(c in capsys.readouterr().out for c in "\x1b\x00\r")


@pytest.mark.slow
def test_ten_thousand_nodes_are_rendered_in_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(as_json.render(fleet(10_000, 2)))
    forms = [name for name in delivery.FORMATS if name not in ("json", "html")]
    files = (f"--{name}={tmp_path}/x-{name}" for name in forms)
    done = run_report(tmp_path / "r.json", *files, "-q", memory=1 << 30)
    assert done.returncode == 4, done.stderr[-500:]
    assert len(done.stdout) <= 81
    assert (tmp_path / "x-markdown").stat().st_size <= 900_000


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
    ])  # fmt: skip
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
