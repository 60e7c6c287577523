"""Logs that cannot be read, among those that can: the answer comes from the others and names what is left out."""

import os
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import main

NO_INTERFACE = "node1:1:1 [0] NCCL WARN Bootstrap : no socket interface found\n"


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files and folders that no one may open: root may open all."""
    names: set[str] = set()

    def guarded(real: Any) -> Any:
        def call(path: Any = ".", *args: Any, **more: Any) -> Any:
            if not isinstance(path, int) and Path(os.fsdecode(path)).name in names:
                raise PermissionError(13, "Permission denied", os.fsdecode(path))
            return real(path, *args, **more)

        return call

    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    return names


@pytest.mark.parametrize("closed", ["rank2.log", "locked"])
def test_one_that_cannot_be_read_is_named_and_the_others_answer(
    closed: str, shut: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.log").write_text(NO_INTERFACE)
    (tmp_path / "locked").mkdir()
    shut.add(closed)
    assert main(["explain", str(tmp_path), "--no-color"]) == 0
    said = capsys.readouterr()
    assert "iface-missing" in said.out
    assert closed in said.out
    assert "Permission denied" in " ".join(said.out.split())  # however the lines are broken


def test_a_closed_folder_alone_is_named(shut: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "locked").mkdir()
    shut.add("locked")
    assert main(["explain", str(tmp_path / "locked")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("locked: cannot be read: Permission denied")
