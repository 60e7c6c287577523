"""Scripts: counts of calls, the environment, the oracle, fuzzing, planted faults, and the first hour on a GPU."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path[:0] = [str(SCRIPTS)]

import calls
import fuzz
import fuzz_readers
import mutate
from child import run

from ncclprobe.model.errors import UsageError
from ncclprobe.model.registry import Collector, discover
from tests.each_row import each_row

KEPT = json.loads(calls.KEPT.read_text())
CACHE = Path(os.environ.get("NCCLPROBE_ORACLE") or Path.home() / ".cache" / "ncclprobe" / "oracle")


@pytest.mark.slow
@pytest.mark.parametrize("situation", calls.SITUATIONS)
def test_a_command_calls_no_more_functions_than_are_kept(situation: str) -> None:
    """Calls are counted, because times are noise."""
    now = calls.counted(situation)
    grown = calls.grown(now, KEPT[situation])
    assert now[""] <= calls.ALLOWED * KEPT[situation][""], (
        f"{now['']:,} calls, {KEPT[situation]['']:,} are kept:{''.join(grown)}\n"
        "make it cheaper; or if the work is wanted, say why in the commit and keep it: scripts/calls.py --write"
    )


@pytest.mark.slow
def test_an_environment_that_is_a_link_to_another_trees_is_left_alone(tmp_path: Path) -> None:
    """A worktree whose .venv led to that of the clone: `venv --clear` emptied the clone's."""
    for name in ("scripts", "pyproject.toml", "constraints.txt"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "ncclprobe.json").write_text('{"python": "x", "version": "3", "path": [], "pins": "", "extras": []}')
    (tmp_path / ".venv").symlink_to(theirs)
    command = [sys.executable, str(tmp_path / "scripts" / "environment.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "is a link to" in done.stderr.splitlines()[-1]) == (1, True)
    assert [path.name for path in theirs.iterdir()] == ["ncclprobe.json"]


def test_nccl_chooses_and_reads_what_we_predict() -> None:
    """What we say NCCL would do is what the real libnccl of one release does. All of them: scripts/oracle.py --all."""
    releases = sorted(path.parent.name for path in CACHE.glob("2.*/libnccl.so.2"))
    if not releases:
        pytest.skip(f"no libnccl in {CACHE} (or $NCCLPROBE_ORACLE): scripts/oracle.py 2.27.7 fetches one")
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, timeout=10).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    release = next((name for name in releases if name.startswith("2.27.")), releases[0])
    line = [sys.executable, str(ROOT / "scripts/oracle.py"), "--offline", "--cache", str(CACHE), release]
    done = subprocess.run([*line, "--worlds", "8", "--cases", "25"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"200 cases, 0 disagree", done.stderr)


READERS = fuzz_readers.readers()
SLOW = {"report", "run.jsonl", "redacted capture", "explain FILE"}  # tens of milliseconds for each
STRICT = {
    "ld.so.cache",  # three in five in a longer run
    "machine of parts",  # nearly every other number or letter is another machine, or none
    "wire greeting",  # of a fixed length, and one line of it is checked as a whole
}
"""Of whose inputs less than half may be read."""


@pytest.fixture(autouse=True)
def signals_stay() -> object:
    before = signal.getsignal(signal.SIGVTALRM)
    yield
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.slow
@each_row("reader", READERS, ids=lambda reader: reader.name)
def test_spoilt_input_ends_in_a_value_or_a_refusal(reader: fuzz_readers.Reader) -> None:
    found = fuzz.tried(reader, 7, range(8 if reader.name in SLOW else 50))
    assert found.defects == []
    assert found.values >= found.inputs / 2 or reader.name in STRICT, "seeds that are read, and values of their kind"


def test_every_collector_has_a_reader_and_one_that_breaks_is_a_defect() -> None:
    modules = {each.run.__module__.rpartition(".")[2] for each in discover("ncclprobe.facts", Collector, {"machine"})}
    assert {f"facts/{module}" for module in modules} <= {reader.name for reader in READERS}

    def broken(draw: random.Random) -> object:
        raise (UsageError("no"), ZeroDivisionError("0"))[draw.random() < 0.5]

    found = fuzz.tried(fuzz_readers.Reader("broken", broken), 1, range(20))
    assert found.refusals + len(found.defects) == found.inputs == 20
    assert all("ZeroDivisionError in test_tools.py" in defect for defect in found.defects)
    assert 0 < len(found.defects) < 20


KINDS = {
    "a < b": "(a) <= (b)", "a == b": "(a) != (b)", "a and b or c": "((a and b) and (c))", "not a": "bool(a)",
    "max(a)": "min(a)", "Severity.FAIL": "Severity.WARN", "a if b else c": "(c if b else a)", "a[0]": "a[-1]",
    "7": "(7 + 1)", "0.5": "(0.5 * 1.25)",
}  # fmt: skip
EXAMPLES = "@check(bad=lambda: [gpus(8)], good=lambda: [gpus(9)])\ndef rule():\n    return 0.0, 77\n"


@each_row("old", KINDS)
def test_each_kind_of_fault_changes_one_expression(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutate.ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(f"é = 'é'; value = {old}\n", encoding="utf-8")
    first = next(mutate.faults_of(path))
    assert (first.old, first.new) in {(old, KINDS[old]), ("max", "min")}
    path.write_text(EXAMPLES)  # of a check, where nothing is planted, nor where nothing would change
    assert [fault.old for fault in mutate.faults_of(path)] == ["77"]


MODULE = "def f():\n    return [g() for _ in 'a']\n\ndef g():\n    return 70\n\ndef h(most=80):\n    return most + 90\n"
TESTS = """
from ncclprobe.one import f, g, h
G = g()
def test_f(): assert f() == [70]
def test_wrong(): assert f() == 71
def test_h(): assert h(1) > 10
def test_most(): assert h() == 170
"""


def test_what_each_test_calls_is_recorded_and_a_fault_is_caught_by_what_calls_it(tmp_path: Path) -> None:
    (tmp_path / "ncclprobe").mkdir()
    (tmp_path / "ncclprobe" / "__init__.py").touch()
    (tmp_path / "ncclprobe" / "one.py").write_text(MODULE)
    (tmp_path / "test_one.py").write_text(TESTS)
    run(mutate.pytest_in(tmp_path, {"TOUCHED_RECORD": f"{tmp_path}/record"}, ["test_one.py"]), deadline_s=60, sink=len)
    _, touched = mutate.parsed(json.dumps({**json.loads((tmp_path / "record").read_text()), "text": ""}))
    assert "ncclprobe/one.py:g" in touched.collected
    calls = {test.partition("::")[2]: sorted(name[-1] for name in called) for test, _, called in touched.tests}
    assert calls == {"test_f": ["f", "g"], "test_h": ["h"], "test_most": ["h"]}
    warm = mutate.Warm(tmp_path, ["test_one.py"])
    rows = [("70", "f", "caught"), ("80", "most", "caught"), ("90", "h", "survived"), ("90", "wrong", "survived")]
    found = []
    for old, test, _ in rows:
        at = MODULE.index(old)
        fault = mutate.Fault(Path("ncclprobe/one.py"), 0, at, at + 2, old, f"{old} + 1")
        found.append((old, test, mutate.outcome(tmp_path, warm, fault, [f"test_one.py::test_{test}"])))
    warm.close()
    assert found == rows


DRIVER = """
import sys
sys.path[:0] = [{scripts!r}]
import gpu_stages
gpu_stages.__path__.append({folder!r})
import gpu_hour
gpu_hour._MARGIN_S = 0.5
gpu_hour.STAGES = {{
    1: gpu_hour.Stage("hangs", "hanging", 9.0),
    2: gpu_hour.Stage("works", "working", 20.0),
}}
sys.exit(gpu_hour.main())
"""
HEAD = """
import signal, subprocess, time
from gpu_stages.steps import Outcome, Refused
REPLACED, NOT_RUN = ("a GPU by nothing",), ("everything",)
def write(context, folder):
    with (folder / "played").open("a") as stream:
        stream.write(".")
    return Outcome({}, ("7 is not 8",))
def wait(context, folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (folder / "pid").write_text(str(child.pid))
    time.sleep(1000)
def refuse(context, folder):
    raise Refused("there is no such thing here")
def run_steps(context, log):
"""
STAGES = {
    "hanging": '    log.run("before", write)\n    log.run("for ever", wait, least_s=0.1)\n',
    "working": '    log.run("differs", write)\n    log.run("refuses", refuse)\n',
}


def hour(*arguments: object, program: Path = SCRIPTS / "gpu_hour.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(program), *map(str, arguments), "--rehearse"]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def statuses(stage: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in stage["steps"]}


@pytest.mark.slow
def test_a_stage_that_hangs_does_not_stop_the_next_and_none_is_played_twice(tmp_path: Path) -> None:
    """Two stages of our own."""
    for name, text in STAGES.items():
        (tmp_path / f"{name}.py").write_text(HEAD + text)
    driver, out = tmp_path / "driver.py", tmp_path / "out"
    driver.write_text(DRIVER.format(scripts=str(SCRIPTS), folder=str(tmp_path)))
    done = hour(out, program=driver)
    assert done.returncode == 1, done.stderr
    one, two = (summary(out / f"stage{number}") for number in (1, 2))
    assert "was killed at its deadline after 9." in one["ended"]
    assert one["ended"].endswith("in step 'for ever'; 1 processes were left and killed")
    left = int((out / "stage1" / "for ever" / "pid").read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE
    assert (statuses(two), two["ended"]) == ({"differs": "bad", "refuses": "refused"}, "")
    text = (out / "summary.md").read_text()
    told = ("rehearsed without a GPU", "a GPU by nothing", "Not run here", "7 is not 8", "there is no such thing here")
    assert [words for words in told if words not in text] == []
    again = hour(out, "--stage", "2", program=driver)
    assert "stage 2: finished earlier" in again.stdout
    assert (out / "stage2" / "differs" / "played").read_text() == "."


@pytest.mark.slow
def test_a_rehearsal_of_the_machine_ends_well(tmp_path: Path) -> None:
    started = time.monotonic()
    done = hour(tmp_path, "--stage", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = summary(tmp_path)["stages"]
    found = statuses(stage)
    assert {found[name] for name in ("capture", "capture, redacted", "replay of capture")} == {"good"}, stage
    assert stage["seconds"] <= time.monotonic() - started
    assert "libnvidia-ml.so.1 by tests/fake_nvml.c" in (tmp_path / "summary.md").read_text()
