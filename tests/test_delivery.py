"""What a command ends with where an output did not take its report: every format, and every command that prints."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session.records import ROW_OK, bands, recorder

from ncclprobe.commands import main
from ncclprobe.host import files
from ncclprobe.model.errors import UsageError
from ncclprobe.report import json as as_json
from ncclprobe.report.delivery import FORMATS
from ncclprobe.session.measure.node_snapshot import write_captures
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parents[1]
CAPTURE = ROOT / "tests/captures/build-vm.jsonl"
LOST = (2, 2, 2)
"""What commands end with whose reports, of 0, 3 and 4, got nowhere."""
STDOUT = ("full", "closed", "left")


@contextlib.contextmanager
def printing_to(kind: str) -> Iterator[None]:
    """Have a standard output that takes all, is full, was closed, or has lost its reader."""
    reading, writing = os.pipe()
    os.close(reading)
    whole, full = io.StringIO(), open("/dev/full", "w")  # noqa: SIM115, PTH123 - closed below
    pipe = os.fdopen(writing, "w")
    before, sys.stdout = sys.stdout, {"full": full, "closed": None, "left": pipe, "well": whole}[kind]  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout = before
        for each in (full, pipe):
            with contextlib.suppress(OSError):
                each.close()


def full_disk(path: Path, _text: str, **_: object) -> None:
    raise UsageError(f"{path}: cannot be written: no space left")


TABLE = {
    # standard output, what is on it, the file that is asked for too: the codes of reports of 0, 3 and 4
    ("full", "text", None): LOST,
    ("closed", "text", None): LOST,
    ("left", "text", None): (0, 3, 4),  # `… | head`: its reader has seen enough
    **{(stdout, each, None): LOST for stdout in STDOUT for each in FORMATS},
    **{(stdout, "text", "good"): (0, 3, 4) for stdout in STDOUT},
    **{(stdout, each, "good"): (2, 2, 4) for stdout in STDOUT for each in ("json", "html")},
    ("well", "text", "bad"): (2, 2, 4),
    ("well", "json", "bad"): (2, 2, 4),
    ("full", "text", "bad"): LOST,
    ("well", "text", "good"): (0, 3, 4),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Reports of 0, 3 and 4."""
    folder = tmp_path_factory.mktemp("reports")
    path = folder / "0.json"
    with printing_to("well"):
        assert main(["doctor", str(CAPTURE), "--json", str(path)]) in (0, 3, 4)
    made: dict[str, Any] = json.loads(path.read_text())
    for code, status in ((0, "pass"), (3, "unknown"), (4, "fail")):
        (folder / f"{code}.json").write_text(json.dumps({**made, "exit_code": code, "status": status}))
        assert as_json.read(str(folder / f"{code}.json")).exit_code == code
    return {code: folder / f"{code}.json" for code in (0, 3, 4)}


@each_row(("stdout", "shown", "file"), TABLE)
def test_a_4_that_got_anywhere_stays_4_and_a_report_that_got_nowhere_is_2(
    stdout: str, shown: str, file: str | None, reports: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    junit = tmp_path / "r.xml"
    argv = [*([] if shown == "text" else [f"--{shown}", "-"]), *(["--junit", str(junit)] if file else [])]
    if file == "bad":
        monkeypatch.setattr(files, "write", full_disk)
    codes = []
    for path in reports.values():
        with printing_to(stdout):
            codes.append(main(["report", str(path), *argv]))
        assert junit.exists() == (file == "good")
        junit.unlink(missing_ok=True)
    assert tuple(codes) == TABLE[stdout, shown, file]


PRINTS = [
    *(["doctor", str(CAPTURE)], ["doctor", str(CAPTURE), "--json", "-"], ["capture", "-o", "-"]),
    *(["checks"], ["checks", "--json", "-"], ["explain", "env.value"], ["completion", "bash"]),
    *(["report", "--schema"], ["expect", "--machine", "dgx-h100"]),
]


@each_row("stdout", ["full", "closed"])
@each_row("argv", PRINTS, ids=" ".join)
def test_what_was_asked_for_and_is_lost_is_2_for_every_command(
    argv: list[str], stdout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with printing_to(stdout):
        assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ncclprobe: standard output cannot be written")


def test_captures_that_cannot_be_kept_are_said_and_are_2_but_for_a_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h.jsonl").mkdir()
    for judged_by, code in (((), 2), (bands(1000), 4)):
        record = recorder(tmp_path / "report.json", judged_by)
        record.add(ROW_OK)
        record.lose_files(write_captures(tmp_path, [("h", "{}\n")]))
        assert record.close() == code
        assert f"ncclprobe: {tmp_path}/h.jsonl" in capsys.readouterr().err
