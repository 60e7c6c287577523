"""What ranks leave behind: files for whoever started them, and a word about torchrun's traceback below our report."""

import json
from pathlib import Path

import pytest

from ncclprobe.session.ranks.rank_files import FOLDER, RankFile, RankState, explain_exit, explanation, read_state
from tests.each_row import each_row

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "RANK": "8"}


def test_the_last_phase_and_the_last_words_are_found(tmp_path: Path) -> None:
    rank_file = RankFile(str(tmp_path), 1, "n1")
    assert read_state(tmp_path, 1, "?") == RankState(1, "n1")
    rank_file.set_phase("all_reduce 16 MiB in place batch 1 of 5")
    rank_file.set_phase("verdict")
    assert read_state(tmp_path, 1, "?") == RankState(1, "n1", "verdict")
    rank_file.signalled("SIGTERM")
    rank_file.leave("rank 0 has fallen silent " + "é" * 5000, 3)
    found = read_state(tmp_path, 1, "?")
    assert (found.phase, found.exit_reason[:6], found.exit_code, found.signal) == ("verdict", "rank 0", 3, "SIGTERM")
    (tmp_path / "rank.2").write_text('{"rank": 1, "ho')
    for rank in (0, 2):
        assert read_state(tmp_path, rank, "n0") == RankState(rank, "n0", "start")


@each_row(
    ("code", "variables", "fail_on", "said"),
    [
        (0, TORCHRUN, "fail", ""),
        (1, TORCHRUN, "fail", "the fault of ncclprobe named above"),
        (2, TORCHRUN, "fail", "the wrong usage named above, not a crash"),
        (3, TORCHRUN, "fail", "the verdict UNKNOWN (inconclusive) above, not a crash"),
        (4, TORCHRUN, "fail", "the verdict FAIL above, not a crash"),
        (4, TORCHRUN, "warn", "the verdict FAIL or WARN above, not a crash"),
        (5, TORCHRUN, "fail", ""),
        # Nothing is explained to another launcher, or under our own --nproc.
        *((4, other, "fail", "") for other in ({}, {"RANK": "0"}, TORCHRUN | {FOLDER: "/tmp/ours"})),
    ],
)
def test_each_code_is_explained_where_torchrun_has_started_us(
    code: int, variables: dict[str, str], fail_on: str, said: str
) -> None:
    assert explanation(code, variables, fail_on=fail_on) == said


@each_row("local_rank", ["0", "1"])
def test_every_rank_tells_torchrun_and_one_of_each_node_the_reader(
    local_rank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, own = tmp_path / "error.json", TORCHRUN | {"LOCAL_RANK": local_rank}
    explain_exit(3, own | {"TORCHELASTIC_ERROR_FILE": str(path)})
    told = json.loads(path.read_text())["message"]
    assert told["message"] == "none: that is the verdict UNKNOWN (inconclusive) above, not a crash"
    assert told["extraInfo"]["py_callstack"] == told["message"]
    line = 'ncclprobe: torchrun will now print "exitcode  : 3": that is the verdict UNKNOWN (inconclusive) above, '
    assert capsys.readouterr().err == f"{line}not a crash\n" * (local_rank == "0")
    explain_exit(3, own | {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "gone" / "error.json")})
