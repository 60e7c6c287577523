"""What a newcomer meets first: README.md, its picture, and the demos."""

import html
import importlib
import re
from pathlib import Path

import pytest
import tomllib

from ncclprobe.commands import main
from ncclprobe.commands.demo import DEMOS
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
NAMED = {
    "hang": ("explain", "rank 1 on n1", "train.py:73", "timeout-straggler"),
    "slow-nic": ("doctor", "out of n2 rail 1 (eth1)", "confirmed with 3 other partners", "run.pairs"),
    "bad-env": ("doctor", "NCCL_IB_DISABLE=1", "NCCL_IB_TIMEOUT", "NCCL_P2P_DISABLE", "eno1"),
    "sick-node": ("doctor", "mlx5_3:1", "200 Gb/s", "GPU3", "pci.link"),
}
"""Each demo: its command, and what that must say of what was planted."""
MOST_BYTES = 200_000
UNPUBLISHED = {"PyPI": r"pip install '?ncclprobe|pypi\.org|shields\.io", "docs": r"readthedocs\.io"}
"""What README.md may say only once scripts/release has put it there, as `published` in pyproject.toml states."""


@each_row("name", NAMED)
def test_a_demo_runs_the_command_that_it_shows_and_leaves_nothing(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", name]) == 0
    printed = capsys.readouterr().out
    command, *said = NAMED[name]
    assert printed.startswith(f"$ ncclprobe {command} ")
    assert [each for each in said if each not in printed] == []
    assert "unknown" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())


def test_every_demo_is_tried_and_all_are_small() -> None:
    assert DEMOS.keys() == NAMED.keys()
    held = [path.stat().st_size for path in (ROOT / "ncclprobe" / "demo").rglob("*") if path.is_file()]
    assert len(held) > 9
    assert sum(held) < MOST_BYTES


def test_the_files_of_a_demo_can_be_kept_and_give_the_same_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["demo", "sick-node", "--keep", str(tmp_path / "kept")]) == 0
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "kept" / "sick-node.jsonl")]) == 4
    assert "pci.link" in capsys.readouterr().out


def test_the_picture_shows_what_the_demos_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    picture = importlib.import_module("picture")
    drawn = picture.PICTURE.read_text(encoding="utf-8")
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    rows: dict[str, str] = {}
    for line, text in re.findall(r'clip-path="url\(#demo-line-(\d+)\)">([^<]*)<', drawn):
        rows[line] = rows.get(line, "") + html.unescape(text).replace("\xa0", " ")
    shown = [row.strip() for row in rows.values() if row.strip()]
    wanted = []
    for demo, lines in picture.DEMOS.items():
        main(["demo", demo])
        wanted += [f"$ ncclprobe demo {demo}", *capsys.readouterr().out.splitlines()[lines], "…"]
    assert shown == [line.strip() for line in wanted if line.strip()], "draw it again: scripts/picture.py"
    assert len(shown) > 20


@each_row("page", ["README.md", "docs/index.md"])
def test_the_first_page_has_the_install_line_and_the_picture(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    above = text.splitlines()[:16]
    assert any("demo.svg" in line for line in above)
    assert any("pip install" in line for line in above)


def test_llms_txt_names_pages_that_are_there() -> None:
    named = re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8"))
    made = ("checks/index.md", "variables/index.md", "commands/index.md")
    assert len(named) > 9
    assert [name for name in named if name not in made and not (ROOT / "docs" / name).exists()] == []


def test_the_questions_of_people_are_answered() -> None:
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    asked = re.findall(r"^### (.+)\n(.+)$", text, re.MULTILINE)
    assert len(asked) >= 24
    assert [question for question, answer in asked if not question.endswith("?") or len(answer) < 30] == []
    for words in ("--shm-size", "Watchdog timeout: which rank", "--redact", "without internet", "libnccl-net", "AMD"):
        assert words in text


def claimed(text: str, published: set[str]) -> list[str]:
    return [name for name, words in UNPUBLISHED.items() if name not in published and re.search(words, text)]


def test_readme_and_docs_claim_no_index_and_no_page_that_no_release_has_published() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    published = set(project["tool"]["ncclprobe"]["published"])
    assert published <= UNPUBLISHED.keys()
    text = README.read_text(encoding="utf-8")
    pages = [README, *(page for page in (ROOT / "docs").rglob("*.md") if "maintainers" not in page.parts)]
    found = {page.name: names for page in pages if (names := claimed(page.read_text(encoding="utf-8"), published))}
    assert found == {}
    assert len(pages) > 15
    assert ("There is no release yet" in text) is ("PyPI" not in published)
    address = project["project"]["urls"].get("Repository")
    assert address is None or f"git+{address}" in text or "PyPI" in published


def test_a_claim_is_seen() -> None:
    assert claimed("pip install ncclprobe", set()) == ["PyPI"]
    assert claimed("see https://ncclprobe.readthedocs.io/en/stable", {"PyPI"}) == ["docs"]
    assert claimed("pip install '.[torch]'", set()) == []


def test_readme_is_short_and_names_what_starts_a_checkout() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80
    for name in ("scripts/preflight", "scripts/test"):
        assert any(line.startswith(f"{name} ") for line in lines), name
