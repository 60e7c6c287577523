"""Colour is for a person at a terminal: not for a file, and not for the pseudo-terminal that mpirun gives its ranks."""

import os
import pty
import sys
from pathlib import Path

import pytest

from ncclprobe.model.layout import unstyled
from ncclprobe.report import delivery
from tests.each_row import each_row

MPIRUN = {"OMPI_COMM_WORLD_RANK": "0"}
BOTH = {"NO_COLOR": "1", "FORCE_COLOR": "1"}
ROWS: dict[str, tuple[dict[str, str], str, bool, bool]] = {
    "a terminal": ({}, "own", False, True),
    "not ours alone": ({}, "another's", False, True),
    "mpirun's": (MPIRUN, "another's", False, False),
    "MPICH's": ({"PMI_RANK": "0"}, "another's", False, False),
    "a rank's own": (MPIRUN, "own", False, True),
    "srun --pty": ({"SLURM_PROCID": "0", "PMIX_RANK": "0"}, "own", False, True),
    "NO_COLOR wins": (BOTH, "own", False, False),
    "FORCE_COLOR": ({**MPIRUN, "FORCE_COLOR": "1"}, "another's", False, True),
    "--no-color": ({}, "own", True, False),
    "a file": ({}, "file", False, False),
    "a file by force": ({"FORCE_COLOR": "1"}, "file", False, True),
}


@each_row(("own", "stdout", "no_color", "coloured"), ROWS.values(), ids=ROWS)
def test_a_terminal_is_coloured_where_a_person_looks_at_it(
    own: dict[str, str], stdout: str, no_color: bool, coloured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal of another session has no group in the foreground for us."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    reader, terminal = pty.openpty()
    with open(tmp_path / "out", "w") as file, os.fdopen(terminal, "w") as screen:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", file if stdout == "file" else screen)
        if stdout == "own":
            monkeypatch.setattr(os, "tcgetpgrp", lambda _: 1)
        style = delivery.style(no_color)
    os.close(reader)
    assert (style is not unstyled) is coloured
    shown = [style("x", status) for status in ("fail", "warn", "unknown", "pass", "note")]
    codes = ["1;31", "1;33", "1;35", "32", "1"] if coloured else []
    assert shown == ([f"\x1b[{code}mx\x1b[0m" for code in codes] or ["x"] * 5)
