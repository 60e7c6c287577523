"""What a person mistypes: one line that names the thing, exit code 2, as tests/data/wrong-inputs.md shows it."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from ncclprobe import commands
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "data" / "wrong-inputs.md"
ROWS = [
    tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:3])
    for line in PAGE.read_text().splitlines()
    if line.startswith("| `ncclprobe ")
]
_ELSEWHERE = re.compile(
    r"[0-9.]+ [KMGT]iB that|with \d+ CPUs, can run at most \d+ ranks|'|(?<=not TOML: ).*|(?<=report: ).*"
)
"""What another machine, Python or library says in other words."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are not what a command wants."""
    made = tmp_path_factory.mktemp("wrong")
    (made / "broken.json").write_text("{\n")
    (made / "text.txt").write_text("hello\n")
    (made / "folder").mkdir()
    (made / "empty").touch()
    (made / "bad.toml").write_text("[[expect]]\nop = 3\n")
    (made / "other.toml").write_text('[[accept]]\nid = "x"\n')
    shutil.copy(ROOT / "reports" / "four-hosts-one-bad-nic.json", made / "run.json")
    shutil.copy(ROOT / "tests" / "captures" / "hgx-h100.jsonl", made / "node.jsonl")
    os.mkfifo(made / "pipe")
    return made


@pytest.mark.timeout(300)
@each_row(("command", "answer"), ROWS, ids=[row[0].strip("`").removeprefix("ncclprobe ") for row in ROWS])
def test_a_wrong_input_has_one_clear_line(
    command: str, answer: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(ROWS) >= 120
    if Path("/dev/nvidia0").exists() and "nccl" in command.split():
        pytest.skip("this machine has a GPU")
    monkeypatch.chdir(folder)
    code = commands.main(shlex.split(command.strip("`"))[1:])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert _ELSEWHERE.sub("#", line) == _ELSEWHERE.sub("#", f"ncclprobe: {answer}")
