"""Below our report torchrun prints a traceback of its own: our last line says what its exit code means."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_lab import Lab

from ncclprobe.session.ranks.rank_files import FOLDER, explain_exit, explanation

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "RANK": "8"}
AGENT = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]


def test_each_code_is_explained_where_torchrun_has_started_us() -> None:
    said = {code: explanation(code, TORCHRUN) for code in range(6)}
    assert said[0] == said[5] == ""
    assert said[4] == "the verdict FAIL above, not a crash"
    assert "wrong usage" in said[2]
    assert "inconclusive" in said[3]
    assert "fault of ncclprobe" in said[1]
    assert "FAIL or WARN" in explanation(4, TORCHRUN, fail_on="warn")


@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}, TORCHRUN | {FOLDER: "/tmp/ours"}])
def test_nothing_is_explained_to_another_launcher_or_under_our_own_nproc(variables: dict[str, str]) -> None:
    assert explanation(4, variables) == ""


@pytest.mark.parametrize("local_rank", ["0", "1"])
def test_every_rank_tells_torchrun_and_one_of_each_node_the_reader(
    local_rank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "error.json"
    explain_exit(3, TORCHRUN | {"LOCAL_RANK": local_rank, "TORCHELASTIC_ERROR_FILE": str(path)})
    told = json.loads(path.read_text())["message"]
    assert told["message"] == "none: that is the verdict UNKNOWN (inconclusive) above, not a crash"
    assert told["extraInfo"]["py_callstack"] == told["message"]
    assert ("will now print" in capsys.readouterr().err) is (local_rank == "0")


def test_where_torchruns_file_cannot_be_written_the_reader_is_spared_that(tmp_path: Path) -> None:
    explain_exit(3, TORCHRUN | {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "gone" / "error.json")})


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["ncclprobe.bandwidth", "--backend", "gloo", "--op", "all_reduse"], 2),
        (["ncclprobe.doctor", "--backend", "gloo", "--select", "env.value"], 4),
    ],
    ids=["wrong usage", "a failing setting"],
)
def test_torchruns_exitcode_is_announced_just_above_it(lab: Lab, argv: list[str], code: int) -> None:
    process = lab.start([*AGENT, *argv], {"NCCL_IB_DISABLE": "true"} if "ncclprobe.doctor" in argv else {})
    assert process.wait() == 1
    (line,) = re.findall(r"^ncclprobe: torchrun will now print .*$", process.err, re.MULTILINE)
    assert f'"exitcode  : {code}"' in line
    below = process.err.partition(line)[2]
    assert f"exitcode  : {code} " in below
    assert "ncclprobe: " not in below
    assert re.fullmatch(r"\s+traceback : none: that is the .* above, not a crash", below.rstrip().splitlines()[-2])
