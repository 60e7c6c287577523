"""`ncclprobe deploy`: the launch files come with the package, and nothing of the user's is written over."""

import os
import stat
from pathlib import Path

import pytest

from ncclprobe.commands import main
from ncclprobe.commands.deploy import FILES

PACKAGED = Path(__file__).resolve().parent.parent / "ncclprobe" / "deploy"


@pytest.mark.parametrize("launcher", FILES)
def test_the_files_of_a_launcher_are_written_and_named(
    launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    assert main(["deploy", launcher, "-o", str(folder)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert said == [str(folder / Path(name).name) for name in FILES[launcher]]
    for name in FILES[launcher]:
        written = folder / Path(name).name
        assert written.read_bytes() == (PACKAGED / name).read_bytes()
        runs = bool(written.stat().st_mode & stat.S_IXUSR)
        assert runs == written.read_bytes().startswith(b"#!")


def test_every_file_of_the_package_is_of_a_launcher() -> None:
    there = {str(path.relative_to(PACKAGED)) for path in PACKAGED.rglob("*") if path.is_file()}
    assert there == {name for names in FILES.values() for name in names}


def test_a_file_that_was_changed_is_not_written_over_and_an_equal_one_is_no_obstacle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "slurm", "-o", str(tmp_path)]) == main(["deploy", "slurm", "-o", str(tmp_path)]) == 0
    (tmp_path / "slurm_prolog").write_text("mine\n")
    (tmp_path / "slurm_batch").unlink()
    assert main(["deploy", "slurm", "-o", str(tmp_path)]) == 2
    assert "slurm_prolog: is there and differs" in capsys.readouterr().err
    assert (tmp_path / "slurm_prolog").read_text() == "mine\n"
    assert not (tmp_path / "slurm_batch").exists()


@pytest.mark.parametrize("argv", [[], ["pbs"], ["slurm", "-o", os.devnull]])
def test_what_cannot_be_written_is_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", *argv]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
