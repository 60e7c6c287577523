"""``api.bandwidth`` inside a real gloo job of three ranks: what each rank gets, and what is left as it was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.model.findings import ExitCode
from ncclprobe.report import json as as_json

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("api_rank.py")
RANKS = 3


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank got, in one job, because torch takes seconds to start."""
    folder = tmp_path_factory.mktemp("job")
    command = (sys.executable, "-W", "ignore", str(PROGRAM))
    ranks = [
        subprocess.Popen([*command, str(rank), str(RANKS), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    try:
        ended = [rank.communicate(timeout=110) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    errors = [err.decode() for _, err in ended]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, errors
    outs = [out.decode() for out, _ in ended]
    return [
        {**json.loads((folder / f"said.{rank}").read_text()), "stdout": outs[rank], "stderr": errors[rank]}
        for rank in range(RANKS)
    ]


def test_every_rank_gets_the_same_report(said: list[dict[str, Any]]) -> None:
    for name in ("first", "again"):
        assert len({each[name]["text"] for each in said}) == 1
    report = as_json.parse(said[1]["first"]["text"], "first")
    assert report.exit_code in (ExitCode.OK, ExitCode.INCONCLUSIVE, ExitCode.FAIL)
    assert {verdict.id for verdict in report.checks} >= {"run.bandwidth", "run.rank-lost", "run.init", "host.shm"}
    assert said[0]["first"]["launched"] == ["ncclprobe api.bandwidth", RANKS, 1]


def test_it_measures_what_is_asked_for_and_the_data_is_right(said: list[dict[str, Any]]) -> None:
    assert said[0]["first"]["rows"] == [["all_reduce", 1024, 3, 0], ["all_reduce", 65536, 3, 0]]
    assert {(op, wrong) for op, _, _, wrong in said[2]["again"]["rows"]} == {("all_gather", 0), ("broadcast", 0)}


def test_sizes_are_bytes_or_as_on_the_command_line_and_nothing_else(said: list[dict[str, Any]]) -> None:
    assert [nbytes for op, nbytes, _, _ in said[0]["again"]["rows"] if op == "broadcast"] == [1024, 65536]
    for each in said:
        assert {kind for kind, _ in each["sizes"]} == {"UsageError"}
        assert each["sizes"][-1] == ["UsageError", "sizes: None is neither a number of bytes nor a text such as 64K"]


def test_a_group_of_some_ranks_is_measured_by_itself(said: list[dict[str, Any]]) -> None:
    assert said[1]["part"] == said[2]["part"]
    assert said[1]["part"]["rows"] == [["reduce", 1024, 2, 0], ["reduce", 65536, 2, 0]]
    assert said[0]["part"][0] == "UsageError"


def test_what_is_wrong_on_one_rank_is_an_error_on_all(said: list[dict[str, Any]]) -> None:
    for each in said:
        assert each["without a job"][0] == "UsageError"
        assert each["other options"] == said[0]["other options"]
        assert "other options than rank 0" in each["other options"][1]
        assert each["wrong on one"] == ["UsageError", "ops: all_red is no operation; did you mean all_reduce?"]


def test_a_rank_that_leaves_stands_still_or_stays_away_ends_the_call_on_the_others(said: list[dict[str, Any]]) -> None:
    assert said[0]["one stands still"][0] == said[2]["one stands still"][0] == "ProbeError"
    assert [said[rank]["one stands still"][1][:21] for rank in (0, 2)] == 2 * ["rank 1 left no word, "]
    assert [each["one leaves"][0] for each in said] == ["ProbeError", "UsageError", "ProbeError"]
    assert said[0]["one stays away"][0] == said[2]["one stays away"][0] == "ProbeError"
    assert "no answer from rank 1" in said[0]["one stays away"][1]


def test_the_callers_job_is_as_it_was(said: list[dict[str, Any]]) -> None:
    for each in said:
        assert all(each["unchanged"].values()), each["unchanged"]
        assert each["sum"] == RANKS**2


def test_the_example_of_the_documentation_decides_alike_and_alone_prints(said: list[dict[str, Any]]) -> None:
    assert len({each["example"] for each in said}) == 1
    assert "all_reduce" in said[0]["stdout"]
    assert [each["stdout"] for each in said[1:]] == [""] * (RANKS - 1)
    assert not [each["stderr"] for each in said if "ncclprobe" in each["stderr"]]
