"""Reports of reports/ that cost little are made again, and are as they were."""

import re
import shlex
from pathlib import Path

import pytest

from ncclprobe.commands import main

PAGE = Path(__file__).parents[2] / "reports" / "expect.md"
BLOCKS = re.findall(r"```\n\$ ncclprobe ([^\n]*)\n(.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(("argv", "said"), BLOCKS, ids=[argv for argv, _ in BLOCKS])
def test_the_page_of_expectations_says_what_expect_says(
    argv: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(shlex.split(argv)) == 0
    assert capsys.readouterr().out == said, "make the page again: scripts/examples expect"


def test_the_page_has_machines() -> None:
    assert len(BLOCKS) > 10
