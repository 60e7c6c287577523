"""No command does more work than it did: calls of ncclprobe's own functions are counted, because times are noise."""

import json
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts")]

import calls

KEPT = json.loads(calls.KEPT.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("situation", calls.SITUATIONS)
def test_a_command_calls_no_more_functions_than_are_kept(situation: str) -> None:
    now = calls.counted(situation)
    grown = calls.grown(now, KEPT[situation])
    assert now[""] <= calls.ALLOWED * KEPT[situation][""], (
        f"{now['']:,} calls, {KEPT[situation]['']:,} are kept:{''.join(grown)}\n"
        "make it cheaper; or where the work is wanted, say why in the commit and keep it: scripts/calls.py --write"
    )


def test_the_function_that_grew_is_named_and_noise_within_two_percent_is_not() -> None:
    before = {"": 1000, "host/capture:ask": 900, "model/values:asdict": 100}
    assert calls.grown({**before, "": 1020}, before) == []
    now = {"": 1500, "host/capture:ask": 900, "engine/typed:check": 480, "model/values:asdict": 120}
    assert calls.grown(now, before) == ["\n  engine/typed:check: +480", "\n  model/values:asdict: +20"]
