"""Below our report torchrun prints a traceback of its own: our last line says what its exit code means."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_lab import Lab

from ncclprobe.session.ranks.rank_files import FOLDER
from ncclprobe.session.ranks.torchrun import explanation

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "RANK": "8"}
AGENT = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]


def test_each_code_is_explained_where_torchrun_has_started_us() -> None:
    said = {code: explanation(code, TORCHRUN) for code in range(6)}
    assert said[0] == said[5] == ""
    assert said[4] == 'torchrun will now print "exitcode  : 4": that is the verdict FAIL above, not a crash'
    assert "wrong usage" in said[2]
    assert "inconclusive" in said[3]
    assert "fault of ncclprobe" in said[1]
    assert "FAIL or WARN" in explanation(4, TORCHRUN, fail_on="warn")


@pytest.mark.parametrize(
    "variables", [{}, {"RANK": "0"}, TORCHRUN | {"LOCAL_RANK": "1"}, TORCHRUN | {FOLDER: "/tmp/ours"}]
)
def test_nothing_is_explained_to_another_launcher_by_another_rank_or_under_our_own_nproc(
    variables: dict[str, str],
) -> None:
    assert explanation(4, variables) == ""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.clear()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["ncclprobe.bandwidth", "--backend", "gloo", "--op", "all_reduse"], 2),
        (["ncclprobe.doctor", "--backend", "gloo", "--select", "env.bool-word"], 4),
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
