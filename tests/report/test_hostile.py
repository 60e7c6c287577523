"""Reports that are no reports, or want to be something else: refused in one line, or shown as they are."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import main
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import replace
from ncclprobe.report import delivery
from ncclprobe.report import json as as_json
from tests.each_row import each_row

from .samples import HEALTHY, SICK, fleet, hostile

WHOLE = as_json.render(SICK)
PLAIN = json.loads(as_json.render(HEALTHY))


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
        (WHOLE[: len(WHOLE) // 2], "not a complete ncclprobe.report/1 report"),
        ("", "not a complete"),
        ("null", "not a complete"),
        (
            '{"schema": "ncclprobe.report/0"}',
            r"its schema is ncclprobe.report/0; this version reads ncclprobe.report/1",
        ),
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
        (json.dumps({**PLAIN, "command": "x" * 10**6, "started": 5}), "not a complete"),
    ],
)
def test_what_is_no_whole_report_of_this_schema_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path / "r.json", text.encode())


@each_row("data", [b"\xff\xfe{\x00}\x00", b"\x89PNG\r\n", b"\x00" * 64], ids=["utf-16", "png", "zeros"])
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    refusal(tmp_path / "r.json", data)


@given(st.integers(0, len(WHOLE) - 3))
def test_wherever_a_report_is_cut_it_is_refused(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    refusal(tmp_path_factory.getbasetemp() / "cut.json", WHOLE[:end].encode())


def test_millions_of_empty_lists_are_refused_before_they_are_looked_at(tmp_path: Path) -> None:
    many = WHOLE.replace("{", '{"x": [' + "[]," * 5_000_000 + "[]],", 1)
    assert "more than 5000000 lists and objects" in refusal(tmp_path / "many.json", many.encode())


def test_a_report_is_not_replaced_by_a_picture_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.json").write_text(WHOLE)
    assert main(["report", "r.json", "--markdown", "./r.json"]) == 2
    assert "this command also reads it" in capsys.readouterr().err
    assert main(["report", "r.json", "-q", "--json", "r.json"]) == 2
    assert Path("r.json").read_text() == WHOLE


def test_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # takes no room on the disk
    done = _report(path, memory=512 << 20)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("1024 MiB; a report has at most 256")


FORMATS = [f"--{name}" for name in delivery.FORMATS if name not in ("json", "html")]


@pytest.mark.slow
@each_row("option", [*FORMATS, "--json"])
def test_a_hostile_report_is_shown_as_text_in_every_format(tmp_path: Path, option: str) -> None:
    source = hostile()
    cleaned = as_json.render(hostile(source.command.replace("\ud800", "")))
    (tmp_path / "r.json").write_text(cleaned)
    done = _report(tmp_path / "r.json", option, "-")
    assert done.returncode == 4, done.stderr
    assert not any(c in done.stdout for c in "\x1b\x00\r")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_ten_thousand_nodes_are_rendered_in_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(as_json.render(fleet(10_000, 2)))
    done = _report(tmp_path / "r.json", *(f"{name}={tmp_path}/x{name}" for name in FORMATS), "-q", memory=1 << 30)
    assert done.returncode == 4, done.stderr[-500:]
    assert len(done.stdout) <= 81
    assert (tmp_path / "x--markdown").stat().st_size <= 900_000


def _report(path: Path, *argv: str, memory: int = 0) -> "subprocess.CompletedProcess[str]":
    def limit() -> Any:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    command = [sys.executable, "-m", "ncclprobe", "report", str(path), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=limit if memory else None)


@each_row(
    "changes",
    [
        {"interval_us": [0.0, 5.0]},
        {"interval_us": [9.0, 5.0]},
        {"nbytes": 10**400},
        {"nbytes": -1},
        {"nodes": 0},
        {"ranks": 10**9},
        {"busbw_GBps": 1e308},
        {"iters": 1 << 63},
        {"time_us": {"mean": 0.0}},
    ],
    ids=str,
)
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
