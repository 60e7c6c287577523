"""Reports of reports/ that cost little are made again, and are as they were."""

import re
import shlex
from pathlib import Path

import pytest

from ncclprobe.commands import main

REPORTS = Path(__file__).parents[2] / "reports"
PAGE = REPORTS / "expect.md"
AGAIN = "make them again, and read the difference: scripts/examples cheap"
FORMS = {"xml": "--junit", "md": "--markdown", "prom": "--prometheus", "html": "--html"}
RENDERED = [
    (name, suffix)
    for name in ("doctor-planted-setting", "eight-hosts-two-faults", "sweep-2-ranks")
    for suffix in FORMS
    if (REPORTS / f"{name}.{suffix}").exists()
]
BLOCKS = re.findall(r"```\n\$ ncclprobe ([^\n]*)\n(.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(("argv", "said"), BLOCKS, ids=[argv for argv, _ in BLOCKS])
def test_the_page_of_expectations_says_what_expect_says(
    argv: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(shlex.split(argv)) == 0
    assert capsys.readouterr().out == said, AGAIN


def test_the_page_has_machines() -> None:
    assert len(BLOCKS) > 10


@pytest.mark.parametrize(("name", "suffix"), RENDERED)
def test_another_form_of_a_kept_report_is_what_report_makes_of_it(
    name: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / f"made.{suffix}"
    main(["report", str(REPORTS / f"{name}.json"), "-q", FORMS[suffix], str(made)])
    capsys.readouterr()
    assert made.read_text(encoding="utf-8") == (REPORTS / f"{name}.{suffix}").read_text(encoding="utf-8"), AGAIN
