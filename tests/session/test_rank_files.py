"""What ranks leave behind: files for whoever started them, and a word about torchrun's traceback below our report."""

import json
from pathlib import Path

import pytest

from ncclprobe.session.ranks.rank_files import explain_exit
from tests.each_row import each_row

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "8"}


@each_row("local_rank", ["0", "1", ""])
def test_every_rank_tells_torchrun_and_one_of_each_node_the_reader(
    local_rank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, own = tmp_path / "error.json", TORCHRUN | ({"LOCAL_RANK": local_rank} if local_rank else {})
    explain_exit(3, own | {"TORCHELASTIC_ERROR_FILE": str(path)})
    told = json.loads(path.read_text())["message"]
    assert told["message"] == "none: that is the verdict UNKNOWN (inconclusive) above, not a crash"
    assert told["extraInfo"]["py_callstack"] == told["message"]
    line = 'ncclprobe: torchrun will now print "exitcode  : 3": that is the verdict UNKNOWN (inconclusive) above, '
    assert capsys.readouterr().err == f"{line}not a crash\n" * (local_rank != "1")
    explain_exit(3, own | {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "gone" / "error.json")})
