"""Completion: made of every parser, and what real shells make of it."""

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ncclprobe.commands import COMMANDS, completion
from tests.each_row import each_row

DEADLINE_S = 60.0
CASES = {
    "ncclprobe doc": ["doctor"],
    "ncclprobe --v": ["--version"],
    "ncclprobe doctor --expect-g": ["--expect-gpus"],
    "ncclprobe doctor --backend ": ["nccl", "gloo"],
    "ncclprobe doctor --local a": ["a file.jsonl", "again.jsonl"],
    "ncclprobe doctor --json aga": ["again.jsonl"],
    "ncclprobe doctor --keep f": ["folder"],
    "ncclprobe doctor --timeout ": [],
    "ncclprobe explain ib.sta": ["ib.state"],
    "ncclprobe explain aga": ["again.jsonl"],
    "ncclprobe bandwidth --select run.band": ["run.bandwidth"],
    "ncclprobe fleet add aga": ["again.jsonl"],
    "ncclprobe completion ": ["bash", "zsh", "fish"],
    "ncclprobe checks ": [],
}
"""What is typed, and what may follow in a folder with two files and a folder."""


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write the completion of a shell beside what may be completed."""
    assert completion.main([shell]) == 0
    path = folder / "completion"
    path.write_text(capsys.readouterr().out)
    for name in ("a file.jsonl", "again.jsonl"):
        (folder / name).touch()
    (folder / "folder").mkdir()
    return path


@each_row("shell", ["bash", "zsh", "fish"])
def test_it_has_every_command_and_every_option_that_help_shows(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, missing, seen = script(shell, tmp_path, capsys).read_text(), [], 0
    for name in COMMANDS:
        parser = importlib.import_module(f"ncclprobe.commands.{name}")._parser()
        shown = set(re.findall(r"^ {2}(?:-\w[^,]*, )?(--[a-z][\w-]*)", parser.format_help(), re.MULTILINE))
        seen += len(shown)
        of_command = [line for line in text.split("\n") if name in line] if shell != "zsh" else [text]
        spelt = {f"-l {each[2:]} " if shell == "fish" else each for each in shown}
        missing += [(name, each) for each in spelt if not any(each in f"{line} " for line in of_command)]
    assert not missing
    assert seen > 150


def test_bash_completes_words_options_values_files_and_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("bash", tmp_path, capsys)
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    play = (
        'source ./completion\nwhile IFS= read -r line; do read -ra COMP_WORDS <<<"$line"\n'
        '[[ $line = *" " ]] && COMP_WORDS+=("")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()\n'
        "_shtab_ncclprobe 2>/dev/null\n"
        '(IFS="|"; echo "${COMPREPLY[*]}"); done\n'
    )
    done = subprocess.run([bash, "--norc", "-c", play], input="".join(f"{line}\n" for line in CASES), cwd=tmp_path,
                          capture_output=True, text=True, timeout=DEADLINE_S)  # fmt: skip
    assert done.stderr == ""
    found = [line.split("|") if line else [] for line in done.stdout.split("\n")[:-1]]
    assert {line: sorted(words) for line, words in zip(CASES, found, strict=True)} == {
        line: sorted(words) for line, words in CASES.items()
    }
