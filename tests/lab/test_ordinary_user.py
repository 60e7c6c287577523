"""What the doctor says where it may see or do less: each loss is unknown, with what would help; nothing is a bug."""

import json
import os
import shutil
from functools import cache
from typing import Any

import pytest

from ncclprobe.signals import NO_MEMORY

from .situations import SITUATIONS, TOOLS, Situation, doctor

_MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
_WHY_NOT = f"{', '.join(_MISSING)} are missing" if _MISSING else "" if os.geteuid() == 0 else "needs root, to be less"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "each situation can be had here")]


def report(situation: Situation, backend: str) -> dict[str, Any]:
    done = doctor(situation, backend)
    if done.returncode == 99:
        pytest.skip(f"this kernel, or this container, has no such situation: {done.stderr.strip()}")
    assert "Traceback" not in done.stderr
    assert situation.memory or "Exception" not in done.stderr  # Python itself may have no memory to keep quiet
    if situation.memory and not done.stdout:
        assert (done.returncode, "nothing was judged" in done.stderr) == (3, True), done.stderr
        pytest.skip("so little memory that this time nothing could be judged, as was said")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return found


@cache
def as_root(backend: str) -> dict[str, str]:
    return statuses(report(SITUATIONS[0], backend))


def statuses(found: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in found["checks"]}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_for_a_job_on_gpus_what_is_lost_is_unknown_and_says_what_would_help(situation: Situation) -> None:
    found = report(situation, "nccl")
    assert found["exit_code"] in (3, 4)  # a machine without a GPU is inconclusive, and one with GPUs may be sick
    whys = {check["id"]: check["why"] for check in found["checks"] if check["status"] == "unknown"}
    if situation.memory:  # which of its readings finds no room is another one each time
        assert [why for why in whys.values() if NO_MEMORY in why or "not asked, because " in why]
    else:
        assert {name: words for name, words in situation.unknown.items() if words not in whys.get(name, "")} == {}
    gained = {name for name, status in statuses(found).items() if status == "pass"} - {
        name for name, status in as_root("nccl").items() if status in ("pass", "skip")
    }
    assert gained == set()


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_for_a_job_without_gpus_the_exit_code_is_by_what_was_lost(situation: Situation) -> None:
    found = report(situation, "gloo")
    lost = {name for name, status in as_root("gloo").items() if status == "pass"} - {
        name for name, status in statuses(found).items() if status == "pass"
    }
    assert {statuses(found)[name] for name in lost} <= {"unknown", "skip", "warn"}
    if as_root("gloo")["host.oom"] == "pass" and found["coverage"]["fail"] == 0:
        assert found["exit_code"] == situation.code
