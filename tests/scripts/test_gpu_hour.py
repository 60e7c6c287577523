"""The first hour on a GPU, as far as it can be played without one: stages end, results stay, rehearsals say so."""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow  # once before an hour on a GPU
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True, scope="module")
def _scripts() -> Iterator[None]:
    """The scripts' folder on the path, as the scripts have it."""
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


def stages(name: str) -> ModuleType:
    return importlib.import_module(f"gpu_stages.{name}")


def hour(*arguments: object, program: Path = SCRIPTS / "gpu_hour.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


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
import subprocess, sys, time
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


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Three stages of our own, of which one breaks and one hangs: the folder of results, and how it ended."""
    folder = tmp_path_factory.mktemp("stages")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    driver = folder / "driver.py"
    driver.write_text(DRIVER.format(scripts=str(SCRIPTS), folder=str(folder)))
    out = folder / "out"
    return out, hour(out, "--rehearse", program=driver)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def statuses(stage: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in stage["steps"]}


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_stage_that_breaks_or_hangs_does_not_stop_the_next(played: tuple[Path, Any]) -> None:
    out, done = played
    assert done.returncode == 1, done.stderr
    one, two, three = (summary(out / f"stage{number}") for number in (1, 2, 3))
    assert statuses(one) == {"first": "good"}
    assert "exit 1" in one["ended"]
    assert "no more of this" in one["ended"]
    assert statuses(two) == {"before": "good"}
    assert "was killed at its deadline after 9." in two["ended"]
    assert two["ended"].endswith("in step 'for ever'; 1 processes were left and killed")
    assert statuses(three) == {"differs": "bad", "refuses": "refused", "fails": "failed", "goes on": "good"}
    assert three["ended"] == ""


def test_a_finished_stage_and_a_written_step_are_not_played_again(played: tuple[Path, Any]) -> None:
    out, _ = played
    again = hour(out, "--rehearse", "--stage", "1,3", program=out.parent / "driver.py")
    assert "stage 3: finished earlier" in again.stdout
    assert (out / "stage3" / "goes on" / "played").read_text() == "."
    assert (out / "stage1" / "first" / "played").read_text() == "."
    assert again.returncode == 1  # stage 1 broke again


def test_the_whole_summary_says_what_was_replaced_what_was_not_run_and_what_differs(played: tuple[Path, Any]) -> None:
    text = (played[0] / "summary.md").read_text()
    assert "rehearsed without a GPU" in text
    for words in ("a GPU by nothing", "Not run here", "7 is not 8", "there is no such thing here", "KeyError"):
        assert words in text
    assert "| 3. works |" in text


def test_a_program_that_ignores_everything_is_killed_at_its_deadline(tmp_path: Path) -> None:
    processes = stages("processes")
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(99)"
    )
    ended = processes.run([sys.executable, "-c", stubborn], tmp_path / "log", os.environ, 1.0)
    assert ended.code is None
    assert "was killed at its deadline" in str(ended)
    good = processes.run([sys.executable, "-c", "print(3)"], tmp_path / "log", os.environ, 30.0)
    assert (good.code, good.text) == (0, "3\n")


def test_a_rehearsal_of_the_machine_ends_well(tmp_path: Path) -> None:
    started = time.monotonic()
    done = hour(tmp_path / "out", "--rehearse", "--stage", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = json.loads((tmp_path / "out" / "summary.json").read_text())["stages"]
    found = statuses(stage)
    assert {found[name] for name in ("capture", "capture, redacted")} == {"good"}
    assert found["replay of capture"] == "good", stage
    assert stage["seconds"] <= time.monotonic() - started
    assert "libnvidia-ml.so.1 by tests/fake_nvml.c" in (tmp_path / "out" / "summary.md").read_text()
