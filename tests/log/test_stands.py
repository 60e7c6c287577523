"""How far each rank came, of a job that stands still and gives no cause."""

import json
from pathlib import Path
from typing import Any

from ncclprobe.commands import explain
from tests.each_row import each_row

CLOSING = "2026-11-20 08:20:00 INFO train: training finished after 90 iterations\n"


def hang(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    for name, text in files.items():
        (folder / name).write_text(text)
    explain.main([*(str(folder / name) for name in files), "--json", str(folder / "report.json"), "-q", "--exit-code"])
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def trained(first: int, last: int, seconds: int, begin: int = 0) -> str:
    times = (begin + seconds * (step - first) for step in range(first, last))
    clock = (f"2026-11-20 {8 + at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}" for at in times)
    return "".join(f"{when} INFO step {step} loss 2.1\n" for step, when in zip(range(first, last), clock, strict=True))


def test_of_a_job_that_stands_still_it_is_said_how_far_each_rank_came(tmp_path: Path) -> None:
    files = {f"rank{rank}.log": trained(0, 30 if rank != 5 else 23, 10) for rank in range(8)}
    report = hang(tmp_path, files)
    assert (report["outcome"], report["causes"], report["exit_code"]) == ("unknown", [], 0)
    assert report["stands"] == ["rank 5 reached step 22, but others reached 29"]
    assert [(each["ranks"], each["step"]) for each in report["last_seen"]] == [([5], 22), ([0, 1, 2, 3, 4, 6, 7], 29)]


def test_hosts_that_number_their_lines_are_told_apart_and_may_have_nothing_of_nccl(tmp_path: Path) -> None:
    said = "2026-11-20T08:00:{:02} - {} - levanter.checkpoint - INFO :: Saved checkpoint for step {}\n"
    text = "".join(said.format(n, n, 100) for n in range(4)) + "".join(said.format(9 + n, n, 200) for n in (0, 1, 3))
    assert hang(tmp_path, {"all.log": text})["stands"] == ["rank 2 reached step 100, but others reached 200"]


@each_row(("after", "slow"), [(90, True), (14, False)])
def test_a_job_whose_steps_take_longer_and_longer_is_slow_since_one(tmp_path: Path, after: int, slow: bool) -> None:
    report = hang(tmp_path, {"train.log": trained(0, 20, 10) + trained(20, 30, after, 200)})
    assert [each.startswith("slow since step 21 ") for each in report["stands"]] == [True] * slow


@each_row(
    ("text", "stands"),
    [
        (
            "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/5\n",
            "1 of 5 ranks wrote a line. There is none from ranks 1-4",
        ),
        ("world size: 8\nBuilding extension module softmax_cuda...\n", "according to its last line, kernels are"),
        (
            "".join(f"[1,{rank}]<stderr>:rank {rank} MPI size: 4\n" for rank in range(4))
            + "".join(f"[1,{rank}]<stderr>:Loaded engine\n" for rank in (0, 1, 3)),
            "the log of rank 2 ends at a different line from most: ",
        ),
    ],
)
def test_without_steps_the_last_lines_tell_where_a_job_stands(tmp_path: Path, text: str, stands: str) -> None:
    assert hang(tmp_path, {"a.log": text})["stands"][0].startswith(stands)


def test_a_process_that_did_not_end_the_initialisation_is_told_where_there_is_no_step(tmp_path: Path) -> None:
    begun = "n1:{0}:{0} [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    done = "n1:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 7 commId 0xa - Init COMPLETE\n"
    report = hang(tmp_path, {"train.log": begun.format(7) + begun.format(9) + done})
    assert report["stands"][0].startswith("1 of 2 processes that write NCCL lines did not report")
    assert "n1:9" in report["stands"][0]


def test_a_job_that_ended_well_stands_nowhere(tmp_path: Path) -> None:
    files = {f"rank{rank}.log": trained(0, 30 if rank else 20, 10) for rank in range(4)}
    files["rank0.log"] += CLOSING
    assert (report := hang(tmp_path, files))["outcome"] == "ended-well"
    assert (report["stands"], report["last_seen"]) == ([], [])
