"""The first hour on a GPU, as far as it can be played without one: stages end, results stay, rehearsals say so."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow  # once before an hour on a GPU
SCRIPTS = Path(__file__).parents[2] / "scripts"
DRIVER = """
import sys
sys.path[:0] = [{scripts!r}]
import gpu_stages
gpu_stages.__path__.append({folder!r})
import gpu_hour
gpu_hour._MARGIN_S = 0.5
gpu_hour.STAGES = {{
    1: gpu_hour.Stage("breaks", "breaking", 20.0),
    2: gpu_hour.Stage("hangs", "hanging", 9.0),
    3: gpu_hour.Stage("works", "working", 20.0),
}}
sys.exit(gpu_hour.main())
"""
HEAD = """
import signal, subprocess, sys, time
from gpu_stages.steps import Outcome, Refused
REPLACED, NOT_RUN = ("a GPU by nothing",), ("everything",)
def write(context, folder, *words):
    with (folder / "played").open("a") as stream:
        stream.write(".")
    return Outcome({"words": " ".join(words)})
"""
MODULES = {
    "breaking": """
def run_steps(context, log):
    log.run("first", write, "a", "b")
    sys.exit("no more of this")
""",
    "hanging": """
def wait(context, folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (folder / "pid").write_text(str(child.pid))
    time.sleep(1000)
def run_steps(context, log):
    log.run("before", write, least_s=0.1)
    log.run("for ever", wait, least_s=0.1)
""",
    "working": """
def differ(context, folder):
    return Outcome({"seen": 7}, ("7 is not 8",))
def refuse(context, folder):
    raise Refused("there is no such thing here")
def fail(context, folder):
    return {}["nothing"]
def run_steps(context, log):
    log.run("differs", differ)
    log.run("refuses", refuse)
    log.run("fails", fail)
    log.run("goes on", write)
""",
}


def hour(*arguments: object, program: Path = SCRIPTS / "gpu_hour.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(program), *map(str, arguments), "--rehearse"]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def statuses(stage: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in stage["steps"]}


def test_a_stage_that_breaks_or_hangs_does_not_stop_the_next_and_none_is_played_twice(tmp_path: Path) -> None:
    """Three stages of our own, of which one breaks and one hangs."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(HEAD + text)
    driver, out = tmp_path / "driver.py", tmp_path / "out"
    driver.write_text(DRIVER.format(scripts=str(SCRIPTS), folder=str(tmp_path)))
    done = hour(out, program=driver)
    assert done.returncode == 1, done.stderr
    one, two, three = (summary(out / f"stage{number}") for number in (1, 2, 3))
    assert statuses(one) == {"first": "good"}
    assert "exit 1" in one["ended"]
    assert "no more of this" in one["ended"]
    assert statuses(two) == {"before": "good"}
    assert "was killed at its deadline after 9." in two["ended"]
    assert two["ended"].endswith("in step 'for ever'; 1 processes were left and killed")
    left = int((out / "stage2" / "for ever" / "pid").read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE
    assert statuses(three) == {"differs": "bad", "refuses": "refused", "fails": "failed", "goes on": "good"}
    assert three["ended"] == ""
    text = (out / "summary.md").read_text()
    told = ("rehearsed without a GPU", "a GPU by nothing", "Not run here", "7 is not 8", "there is no such thing here")
    assert [words for words in (*told, "KeyError", "| 3. works |") if words not in text] == []

    again = hour(out, "--stage", "1,3", program=driver)
    assert "stage 3: finished earlier" in again.stdout
    assert [(out / at / "played").read_text() for at in ("stage3/goes on", "stage1/first")] == [".", "."]
    assert again.returncode == 1  # stage 1 broke again


def test_a_rehearsal_of_the_machine_ends_well(tmp_path: Path) -> None:
    started = time.monotonic()
    done = hour(tmp_path, "--stage", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = summary(tmp_path)["stages"]
    found = statuses(stage)
    assert {found[name] for name in ("capture", "capture, redacted", "replay of capture")} == {"good"}, stage
    assert stage["seconds"] <= time.monotonic() - started
    assert "libnvidia-ml.so.1 by tests/fake_nvml.c" in (tmp_path / "summary.md").read_text()
