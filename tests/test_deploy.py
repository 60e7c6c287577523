"""`ncclprobe deploy`: the launch files come with the package, and nothing of the user's is written over."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from ncclprobe.commands import main
from ncclprobe.commands.deploy import FILES, launch_text, summary
from tests.each_row import each_row

PACKAGED = Path(__file__).resolve().parent.parent / "ncclprobe" / "deploy"


@each_row("launcher", FILES)
def test_the_files_of_a_launcher_are_written_and_named(
    launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    assert main(["deploy", launcher, str(folder)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert said == [str(folder / Path(name).name) for name in FILES[launcher]]
    for name in FILES[launcher]:
        written, about = folder / Path(name).name, summary(launch_text(name))
        assert written.read_bytes() == (PACKAGED / name).read_bytes()
        assert bool(written.stat().st_mode & stat.S_IXUSR) == written.read_bytes().startswith(b"#!")
        assert (len(about) > 30, about.count("(")) == (True, about.count(")"))


def test_every_file_of_the_package_is_of_a_launcher() -> None:
    there = {str(path.relative_to(PACKAGED)) for path in PACKAGED.rglob("*") if path.is_file()}
    assert there == {name for names in FILES.values() for name in names}


CODES = {0: True, 1: True, 2: True, 3: True, 4: False, 127: True, 137: True}


def batch(*argv: str, env: dict[str, str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = ["/bin/sh", str(PACKAGED / "slurm_batch"), *argv]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


@each_row("bad", [False, True])
@each_row("code", CODES)
def test_a_batch_script_stops_the_job_for_a_verdict_alone(code: int, bad: bool, tmp_path: Path) -> None:
    lists = tmp_path / "ncclprobe-7.nodes"
    lists.mkdir()
    (lists / "bad").write_text("of an earlier start\n")
    write_bad = f"mkdir -p {lists}; echo n2 > {lists}/bad" if bad else ":"
    doctor = f'case "$*" in *doctor*) {write_bad}; exit {code};; esac; echo the job is started'
    for name, body in {"scontrol": "echo n1", "srun": doctor}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}
    ended = batch("train", env=env, cwd=tmp_path)
    starts = CODES[code] and not bad
    assert ended.returncode == (0 if starts else 4)
    assert ("the job is started" in ended.stdout) is starts
    assert ("starting anyway" in ended.stdout) is (starts and code != 0)


@each_row(("argv", "env"), [(["train"], {}), ([], {"SLURM_JOB_NODELIST": "n1"})])
def test_a_batch_script_that_sbatch_did_not_start_says_how(
    argv: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    ended = batch(*argv, env={"PATH": os.environ["PATH"], **env}, cwd=tmp_path)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "sbatch --nodes=N slurm_batch COMMAND" in ended.stderr


def test_a_file_that_was_changed_is_not_written_over_and_an_equal_one_is_no_obstacle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "slurm", "-o", str(tmp_path)]) == main(["deploy", "slurm", "-o", str(tmp_path)]) == 0
    (tmp_path / "slurm_prolog").write_text("mine\n")
    (tmp_path / "slurm_batch").unlink()
    assert main(["deploy", "slurm", "-o", str(tmp_path)]) == 2
    said = f"ncclprobe: {tmp_path}/slurm_prolog exists and differs; move it away, or give another folder\n"
    assert capsys.readouterr().err == said
    assert (tmp_path / "slurm_prolog").read_text() == "mine\n"
    assert not (tmp_path / "slurm_batch").exists()
