"""What is in scripts/ is linted and typed as a folder, and no script stands in the way of a folder of tests."""

from conftest import ROOT

SCRIPTS = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]


def test_python_has_its_suffix_without_which_neither_ruff_nor_mypy_would_see_it() -> None:
    first = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in SCRIPTS if path.suffix != ".py"}
    assert not {name for name, line in first.items() if line.startswith("#!") and "python" in line}


def test_no_script_has_the_name_of_a_folder_of_tests() -> None:
    """Both are on sys.path when a script uses the zoo or the fleets, and when a test loads a script."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert not folders & {path.stem for path in SCRIPTS if path.suffix == ".py"}
