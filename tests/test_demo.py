"""What a newcomer meets first: the demos."""

from pathlib import Path

import pytest

from ncclprobe.commands import main
from ncclprobe.commands.demo import DEMOS
from tests.each_row import each_row

NAMED = {
    "hang": ("explain", "rank 1 on n1", "train.py:73", "timeout-straggler"),
    "slow-nic": ("doctor", "out of n2 rail 1 (eth1)", "confirmed with 3 other partners", "run.pairs"),
    "bad-env": ("doctor", "NCCL_IB_DISABLE=1", "NCCL_IB_TIMEOUT", "NCCL_P2P_DISABLE", "eno1"),
    "sick-node": ("doctor", "mlx5_3:1", "200 Gb/s", "GPU3", "pci.link"),
}
"""Each demo: its command, and what that must say of what was planted."""


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


def test_every_demo_is_tried_and_its_files_can_be_kept_and_give_the_same_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert DEMOS.keys() == NAMED.keys()
    assert main(["demo", "sick-node", "--keep", str(tmp_path / "kept")]) == 0
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "kept" / "sick-node.jsonl")]) == 4
    assert "pci.link" in capsys.readouterr().out
