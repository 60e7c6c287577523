"""Our stand-in of NCCL moves and reduces as NCCL's header says, refuses what it lacks, and never waits for ever.

Ranks without torch, above our stand-in of CUDA (tests/cuda_stand_in). Nothing here is about NCCL itself.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from gpu_stages import processes
from stand_in import build

PLACES = [Path("/usr/local/cuda/include"), Path("/usr/include")]
DEADLINE_S = 90.0
Play = Callable[..., list[dict[str, Any]]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    installed = [path / "nvidia" / "cu13" / "include" for path in map(Path, sys.path)]
    include = build.headers([*PLACES, *installed])
    if missing := [*build.missing_tools(), *([] if include else [build.HEADERS])]:
        pytest.skip(f"needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("stand-in")
    build.build(folder, include)
    return folder


@pytest.fixture
def play(library: Path, tmp_path: Path) -> Play:
    """Play a scene on so many ranks; what each said, with its output as ``log``."""

    def run(scene: str, ranks: int, fails: bool = False, **env: str) -> list[dict[str, Any]]:
        folder = tmp_path / f"{scene}-{ranks}-{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        shown = {**os.environ, "FAKE_NVML_GPUS": "4", "LD_LIBRARY_PATH": str(library), "WORLD_SIZE": str(ranks), **env}
        command = [sys.executable, build.SOURCES / "rank.py", scene, library, folder]
        started = [
            processes.start(command, folder / f"rank{rank}.log", {**shown, "RANK": str(rank)}) for rank in range(ranks)
        ]
        ends = processes.wait(started, DEADLINE_S)
        assert fails or [end.code for end in ends] == [0] * ranks, "\n".join(end.text for end in ends)
        places = [folder / f"said.{rank}" for rank in range(ranks)]
        said = [json.loads(place.read_text()) if place.exists() else {} for place in places]
        return [{**each, "log": end.text} for each, end in zip(said, ends, strict=True)]

    return run


def wrong(said: list[dict[str, Any]]) -> list[str]:
    return [f"rank {rank}: {what}" for rank, each in enumerate(said) for what, right in each.items() if right is False]


@pytest.mark.parametrize(
    ("scene", "ranks", "rows"),
    [
        ("reductions", 2, 53),
        ("reductions", 3, 54),
        ("movements", 3, 56),
        ("points", 3, 3),
        ("splits", 3, 3),
        ("graphs", 2, 2),
        ("refusals", 2, 12),
    ],
)
def test_what_is_moved_and_refused_is_right(play: Play, scene: str, ranks: int, rows: int) -> None:
    said = play(scene, ranks)
    assert [len(each) - 1 for each in said] == [rows] * ranks
    assert wrong(said) == []


def test_other_operations_do_not_end_and_hand_out_no_data(play: Play) -> None:
    said = play("differs", 3, FAKE_NCCL_DEADLINE="4")
    assert wrong(said) == []
    assert "rank 1 calls AllGather of 25 float32" in said[0]["log"]


def test_a_communicator_can_be_aborted(play: Play) -> None:
    assert wrong(play("aborts", 2, FAKE_NCCL_DEADLINE="20")) == []


def test_what_is_planted_happens_on_its_rank_only(play: Play) -> None:
    one = {"FAKE_NCCL_RANK": "1", "FAKE_NCCL_DEADLINE": "4"}
    healthy = play("one_sum", 2)
    assert [(each["right"], each["state"], each["cuda"]) for each in healthy] == [(True, 0, 0)] * 2
    late = play("one_sum", 2, FAKE_NCCL="late1.5@1", **one)
    assert [each["right"] and each["seconds"] > 1.0 for each in late] == [True, True]
    hangs = play("one_sum", 2, FAKE_NCCL="hang@1", **one)
    assert [(each["right"], each["state"]) for each in hangs] == [(False, 3)] * 2
    fails = play("one_sum", 2, FAKE_NCCL="abort@1", **one)
    assert [each["right"] for each in fails] == [False, False]
    assert ["FAKE_NCCL strikes here" in each["log"] for each in fails] == [False, True]
    assert [each["version"] for each in play("version", 2, FAKE_NCCL="version=22304", **one)] == [22304] * 2


def test_an_error_of_cuda_strikes_the_operation_and_all_that_follows(play: Play) -> None:
    said = play("one_sum", 2, FAKE_CUDA_FAULT="700@1", FAKE_CUDA_FAULT_RANK="1", FAKE_NCCL_DEADLINE="4")
    assert [(each["cuda"], each["right"]) for each in said] == [(0, False), (700, False)]


def test_the_version_is_of_no_release_and_an_unknown_fault_is_refused(play: Play) -> None:
    assert all(each["version"] % 100 == 99 for each in play("version", 2))
    said = play("version", 2, fails=True, FAKE_NCCL="explode@1")
    assert all("explode@1 is not known" in each["log"] for each in said)


def test_a_missing_rank_ends_the_wait_of_the_others(play: Play) -> None:
    said = play("one_sum", 1, fails=True, WORLD_SIZE="2", FAKE_NCCL_DEADLINE="2")
    assert "the communicator was not made" in said[0]["log"]
