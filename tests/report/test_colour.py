"""Colour is for a person at a terminal: not for a file, and not for the pseudo-terminal that mpirun gives its ranks."""

import fcntl
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.each_row import each_row

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
    process = subprocess.Popen([*DOCTOR, *argv], stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.DEVNULL,
                               env=variables(**own), start_new_session=True, preexec_fn=take)  # fmt: skip
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


ROWS = {
    "a terminal": ({}, True, (), True),
    "not ours alone": ({}, False, (), True),
    "mpirun's": (MPIRUN, False, (), False),
    "a rank's own": (MPIRUN, True, (), True),
    "srun --pty": (SLURM_PTY, True, (), True),
    "NO_COLOR wins": ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, (), False),
    "FORCE_COLOR": ({**MPIRUN, "FORCE_COLOR": "1"}, False, (), True),
    "--no-color": ({}, True, ("--no-color",), False),
}


@pytest.mark.slow
@each_row(("own", "controlling", "argv", "coloured"), ROWS.values(), ids=ROWS)
def test_a_terminal_is_coloured_where_a_person_looks_at_it(
    own: dict[str, str], controlling: bool, argv: tuple[str, ...], coloured: bool
) -> None:
    assert ("\x1b[" in on_terminal(controlling=controlling, argv=argv, **own)) is coloured


@pytest.mark.slow
def test_a_file_gets_colour_only_by_force() -> None:
    for own, coloured in (({}, False), ({"FORCE_COLOR": "1"}, True)):
        done = subprocess.run(DOCTOR, env=variables(**own), capture_output=True, text=True, timeout=60)
        assert ("\x1b[" in done.stdout) is coloured
