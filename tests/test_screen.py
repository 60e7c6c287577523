"""What another user can name or write must steer neither the reader's terminal nor a runner, nor break the program."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast

import pytest

from ncclprobe.commands import Screen, main
from ncclprobe.report.delivery import harmless
from tests.each_row import each_row


def ncclprobe(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "ncclprobe", *map(str, argv)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100)


@each_row(
    ("text", "shown"),
    [
        ("bad ##[add-mask]x", "bad #\\u0023[add-mask]x"),
        ("bad ##vso[task.complete]", "bad #\\u0023vso[task.complete]"),
        ("a\n  ::stop-commands::pwn", "a\n  \\u003a:stop-commands::pwn"),
        ("a\x9b2J\u202eb", "a\\u009b2J\\u202eb"),
        ("::1 and c10d::Work stay, ## too\n", "::1 and c10d::Work stay, ## too\n"),
    ],
)
def test_what_steers_a_runner_is_spelled_out_on_both_streams(text: str, shown: str) -> None:
    stream = io.StringIO()
    print(text, end="", file=cast(TextIO, Screen(stream)))
    assert stream.getvalue() == shown


def test_what_steers_a_terminal_is_escaped_but_for_colours_of_ours() -> None:
    assert harmless("\x1b]0;pwn\x07 \x1b[31mred") == "\\x1b]0;pwn\\x07 \\x1b[31mred"
    assert harmless("\x1b[1;31mFAIL\x1b[0m\x1b]0;x\x07", styled=True) == "\x1b[1;31mFAIL\x1b[0m\\x1b]0;x\\x07"


def test_a_log_cannot_give_commands_to_a_runner(tmp_path: Path) -> None:
    words = " ".join(f"{'x' * number} ::stop-commands::pwn" for number in (3, 7, 11, 15, 19))
    text = f"[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: bad ##[add-mask]CAUSE {words}\n"
    (tmp_path / "x.log").write_text(text)
    said = ncclprobe("explain", tmp_path / "x.log").stdout
    assert "CAUSE" in said
    assert "##[" not in said
    assert not [line for line in said.splitlines() if line.lstrip().startswith("::")]


def test_a_foreign_report_cannot_give_commands_to_a_runner_in_any_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steering = "a##[add-mask]b ##vso[c]\n::error::d \x9b2J"
    (tmp_path / "x.log").write_text("[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: boom\n")
    main(["explain", str(tmp_path / "x.log"), "--json", str(tmp_path / "r.json")])
    foreign = json.loads((tmp_path / "r.json").read_text())
    foreign["notes"] = [steering]
    foreign["checks"][0]["title"] = foreign["tool"]["version"] = steering
    (tmp_path / "r.json").write_text(json.dumps(foreign))
    (tmp_path / "##[error]x.json").write_text('{"schema": "##[error]y"}')
    said = []
    capsys.readouterr()
    for form in (("--json", "-"), ("--html", "-"), ("--junit", "-"), ("--markdown", "-"), ("-v",)):
        main(["report", str(tmp_path / "r.json"), *form])
        said += capsys.readouterr()
    main(["report", str(tmp_path / "##[error]x.json")])
    said += capsys.readouterr()
    assert len([text for text in said if "add-mask" in text or "error]" in text]) >= 5
    assert [text for text in said if "##[" in text or "##vso[" in text or "\x9b" in text] == []
    assert [line for text in said for line in text.splitlines() if line.lstrip().startswith("::")] == []
    assert json.loads(said[0])["notes"] == [steering]


@pytest.mark.parametrize("argv", [("fleet", "--fleet"), ("fleet", "job"), ("explain",)])
def test_a_name_that_is_too_long_is_wrong_usage(argv: tuple[str, ...]) -> None:
    done = ncclprobe(*argv, "a" * 300)
    assert done.returncode == 2
    assert "bug" not in done.stderr
