"""Colour is for a person at a terminal: not for a file, and not for the pseudo-terminal that mpirun gives its ranks."""

import fcntl
import os
import pty
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest

DOCTOR = [sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "--select", "env.value", "--local"]
SLURM_PTY = {"SLURM_PROCID": "0", "PMI_RANK": "0"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}


def variables(**own: str) -> dict[str, str]:
    drop = ("NCCL", "SLURM", "OMPI", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **own}


def on_terminal(*, controlling: bool, argv: tuple[str, ...] = (), **own: str) -> str:
    """What the doctor writes to a pseudo-terminal."""
    reader, terminal = pty.openpty()
    take = (lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)) if controlling else None
    process = subprocess.Popen(
        [*DOCTOR, *argv],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env=variables(**own),
        start_new_session=True,
        preexec_fn=take,
    )
    os.close(terminal)
    found = b""
    with os.fdopen(reader, "rb", buffering=0) as file:
        try:
            while part := file.read(4096):
                found += part
        except OSError:  # EIO: all who could write have left
            pass
    process.wait(timeout=60)
    assert b"exit " in found
    return found.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "controlling", "coloured"),
    [
        ({}, True, True),
        ({}, False, True),
        (MPIRUN, False, False),
        (MPIRUN, True, True),
        (SLURM_PTY, True, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({**MPIRUN, "FORCE_COLOR": "1"}, False, True),
    ],
    ids=["a terminal", "not ours alone", "mpirun's", "a rank's own", "srun --pty", "NO_COLOR wins", "FORCE_COLOR"],
)
def test_a_terminal_is_coloured_where_a_person_looks_at_it(
    own: dict[str, str], controlling: bool, coloured: bool
) -> None:
    assert ("\x1b[" in on_terminal(controlling=controlling, **own)) is coloured


@pytest.mark.slow
def test_no_color_leaves_a_terminal_plain() -> None:
    assert "\x1b[" not in on_terminal(controlling=True, argv=("--no-color",))


@pytest.mark.slow
def test_a_file_gets_colour_only_by_force() -> None:
    for own, coloured in (({}, False), ({"FORCE_COLOR": "1"}, True)):
        done = subprocess.run(DOCTOR, env=variables(**own), capture_output=True, text=True, timeout=60)
        assert ("\x1b[" in done.stdout) is coloured


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_what_mpirun_writes_to_a_file_has_no_colour(tmp_path: Path) -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = tmp_path / "out"
    with path.open("wb") as file:
        command = ["mpirun", "--oversubscribe", "-np", "1", *DOCTOR]
        done = subprocess.run(
            command, env=variables(**root), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode in (0, 3), done.stderr
    assert "(exit " in path.read_text()
    assert "\x1b[" not in path.read_text()
