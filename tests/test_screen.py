"""What another user can name or write must steer neither the reader's terminal nor a runner, nor break the program."""

import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.report.delivery import harmless
from tests.each_row import each_row


def ncclprobe(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "ncclprobe", *map(str, argv)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100)


@each_row(
    ("text", "shown"),
    [
        ("bad ##[add-mask]x", "bad #\\x23[add-mask]x"),
        ("bad ##vso[task.complete]", "bad #\\x23vso[task.complete]"),
        ("a\n  ::stop-commands::pwn", "a\n  \\x3a:stop-commands::pwn"),
        ("\x1b]0;pwn\x07", "\\x1b]0;pwn\\x07"),
        ("::1 and c10d::Work stay\n", "::1 and c10d::Work stay\n"),
        ("\x1b[31mred", "\\x1b[31mred"),
    ],
)
def test_what_steers_a_terminal_or_a_runner_is_escaped(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_colours_of_ours_stay_and_nothing_else_does() -> None:
    assert harmless("\x1b[1;31mFAIL\x1b[0m\x1b]0;x\x07", styled=True) == "\x1b[1;31mFAIL\x1b[0m\\x1b]0;x\\x07"


def test_a_log_cannot_give_commands_to_a_runner(tmp_path: Path) -> None:
    words = " ".join(f"{'x' * number} ::stop-commands::pwn" for number in (3, 7, 11, 15, 19))
    text = f"[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: bad ##[add-mask]CAUSE {words}\n"
    (tmp_path / "x.log").write_text(text)
    said = ncclprobe("explain", tmp_path / "x.log").stdout
    assert "CAUSE" in said
    assert "##[" not in said
    assert not [line for line in said.splitlines() if line.lstrip().startswith("::")]


@pytest.mark.parametrize("argv", [("fleet", "--fleet"), ("fleet", "job"), ("explain",)])
def test_a_name_that_is_too_long_is_wrong_usage(argv: tuple[str, ...]) -> None:
    done = ncclprobe(*argv, "a" * 300)
    assert done.returncode == 2
    assert "bug" not in done.stderr
