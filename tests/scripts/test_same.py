"""What scripts/same.py counts as a difference between two commits, and what it does not."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts")]

import same

from tests.each_row import each_row

PAGE = "<html><style>b {}</style><h1>FAIL</h1><script>1</script><p>mlx5_3:1  is DOWN</p></html>"


def _said(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


@each_row(
    ("name", "base", "here"),
    [
        ("stdout", "1 check fails (0.41 s)\n", "1 check fails (0.3 s)\n"),
        ("file.json", '{"duration_s": 1.5}', '{"duration_s": 2}'),
        ("file.json", '{"started": "2026-11-22T10:00:00Z"}', '{"started": "2026-11-23T11:00:00Z"}'),
        ("file.prom", 'x_duration_seconds{command="doctor"} 1e-2\n', 'x_duration_seconds{command="doctor"} 3\n'),
        ("file.html", PAGE, PAGE.replace("b {}", "i {}")),
    ],
)
def test_times_and_style_are_no_difference(tmp_path: Path, name: str, base: str, here: str) -> None:
    folders = _said(tmp_path / "base", name, base), _said(tmp_path / "here", name, here)
    for folder in folders:
        same.plain({}, folder)
    assert (folders[0] / name).read_text() == (folders[1] / name).read_text()


def test_a_word_an_exit_code_and_a_missing_file_are_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, here = tmp_path / "base", tmp_path / "here"
    for top, word, code in ((base, "FAIL", "4"), (here, "WARN", "0")):
        _said(top / "doctor-a", "stdout", f"{word} mlx5_3:1\n")
        _said(top / "doctor-a", "exit", f"{code}\n")
        _said(top / "doctor-b", "exit", "0\n")
    _said(base / "doctor-b", "file.json", "{}")
    assert same.compare(base, here, 10) == 1
    said = capsys.readouterr().out
    assert "-FAIL mlx5_3:1\n+WARN mlx5_3:1" in said
    assert said.endswith("2 cases, 4 files; 3 files of 2 cases differ\n")
