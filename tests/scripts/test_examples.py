"""Reports of reports/ that cost little are made again, and are as they were."""

import re
import shlex
from pathlib import Path

import pytest

from ncclprobe.commands import main
from tests.each_row import each_row

REPORTS = Path(__file__).parents[2] / "reports"
PAGES = {name: (REPORTS / name).read_text(encoding="utf-8") for name in ("expect.md", "screens.md")}
AGAIN = "make them again, and read the difference: scripts/examples cheap"
FORMS = {"xml": "--junit", "md": "--markdown", "prom": "--prometheus", "html": "--html"}
RENDERED = [
    (name, suffix)
    for name in ("doctor-planted-setting", "eight-hosts-two-faults", "sweep-2-ranks", "attach-three-nodes")
    for suffix in FORMS
    if (REPORTS / f"{name}.{suffix}").exists()
]
BLOCK = re.compile(r"```\n\$ ncclprobe ([^\n]*)\n(.*?)```\n", re.DOTALL)
BLOCKS = [block for page in PAGES.values() for block in BLOCK.findall(page)]


@each_row(("argv", "said"), BLOCKS, ids=[argv for argv, _ in BLOCKS])
def test_pages_of_what_commands_say_are_as_they_say_it(
    argv: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(REPORTS.parent)
    code = main(shlex.split(argv))
    told = re.sub(r"\A(.* )[0-9-]{10} [0-9:]{8} UTC\n", r"\1TIME\n", capsys.readouterr().out)
    assert told == said, AGAIN
    assert code == (4 if "(exit 4)" in said else 0)


def test_the_pages_have_commands() -> None:
    assert all(len(BLOCK.findall(page)) > 5 for page in PAGES.values())


@each_row(("name", "suffix"), RENDERED)
def test_another_form_of_a_kept_report_is_what_report_makes_of_it(
    name: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / f"made.{suffix}"
    main(["report", str(REPORTS / f"{name}.json"), "-q", FORMS[suffix], str(made)])
    capsys.readouterr()
    assert made.read_text(encoding="utf-8") == (REPORTS / f"{name}.{suffix}").read_text(encoding="utf-8"), AGAIN
