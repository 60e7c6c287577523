"""The first hour on a GPU, as far as it can be played without one: stages end, results stay, rehearsals say so."""

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
PYTHON_PATH = {**os.environ, "PYTHONPATH": f"{SCRIPTS.parent}:{SCRIPTS}"}


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
    return out, hour(out, "--rehearse", "--pack", folder / "back", program=driver)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def statuses(stage: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in stage["steps"]}


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


def test_nothing_that_a_stage_started_outlives_it(played: tuple[Path, Any]) -> None:
    pid = int((played[0] / "stage2" / "for ever" / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_stage_ends_with_the_command_that_started_it(played: tuple[Path, Any], tmp_path: Path) -> None:
    command = [sys.executable, played[0].parent / "driver.py", tmp_path / "out", "--rehearse", "--stage", "2"]
    program = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, start_new_session=True)
    pid = tmp_path / "out" / "stage2" / "for ever" / "pid"
    assert stages("processes").wait_until(lambda: pid.exists() and pid.read_text(), 30.0)
    program.kill()
    program.wait()
    left = int(pid.read_text())
    assert stages("processes").wait_until(lambda: stages("observing").state(left) in ("", "Z"), 4.0)


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


def test_results_come_back_as_few_files(played: tuple[Path, Any]) -> None:
    back = played[0].parent / "back"
    assert sorted(path.name for path in back.iterdir()) == [
        "stage1.tar.gz", "stage2.tar.gz", "stage3.tar.gz", "summary.md",
    ]  # fmt: skip
    with tarfile.open(back / "stage3.tar.gz") as archive:
        assert "stage3/steps.jsonl" in archive.getnames()


def test_a_rehearsal_is_never_taken_for_the_real_hour(played: tuple[Path, Any]) -> None:
    done = hour(played[0], program=played[0].parent / "driver.py")
    assert done.returncode == 2
    assert "holds a rehearsal" in done.stderr


@pytest.mark.parametrize("numbers", ["9", "x", "1,9", ""])
def test_a_stage_that_does_not_exist_is_refused(tmp_path: Path, numbers: str) -> None:
    done = hour(tmp_path / "out", "--stage", numbers)
    assert done.returncode == 2
    assert "give numbers from 1 to 7" in done.stderr


def test_results_are_not_written_into_the_repository() -> None:
    done = hour(SCRIPTS / "out", "--rehearse")
    assert done.returncode == 2
    assert not (SCRIPTS / "out").exists()


def test_every_stage_ends_within_ten_minutes_and_says_what_a_rehearsal_leaves_out() -> None:
    gpu_hour = importlib.import_module("gpu_hour")
    for stage in gpu_hour.STAGES.values():
        module = stages(stage.module)
        assert 0 < stage.deadline_s < 600
        assert module.REPLACED
        assert module.NOT_RUN
        assert callable(module.run_steps)


def test_the_largest_files_are_left_out_where_not_all_fit(tmp_path: Path) -> None:
    packing = stages("packing")
    stage = tmp_path / "stage9"
    stage.mkdir()
    (stage / "small").write_text("x" * 1000)
    (stage / "large").write_bytes(os.urandom(200_000))
    archive, left = packing.pack(stage, tmp_path / "back", most_bytes=100_000)
    assert archive.stat().st_size <= 100_000
    assert left == ("stage9/large (200000 bytes)",)
    with tarfile.open(archive) as packed:
        assert sorted(packed.getnames()) == ["stage9/left-out.txt", "stage9/small"]


def test_more_files_than_come_back_are_refused(tmp_path: Path) -> None:
    packing = stages("packing")
    with pytest.raises(ValueError, match="more than 8"):
        packing.pack_all([tmp_path] * 9, [], tmp_path / "back")


def test_a_half_line_of_steps_is_dropped(tmp_path: Path) -> None:
    steps = stages("steps")
    line = {"name": "one", "status": "good", "seconds": 1.0, "why": [], "found": {}}
    (tmp_path / "steps.jsonl").write_text(json.dumps(line) + '\n{"name": "tw')
    assert [step.name for step in steps.read(tmp_path)] == ["one"]


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


# What stage 2 looks at.


class RasServer(threading.Thread):
    """Answers as NCCL's RAS: OK to each setting, then the status, then it hangs up (src/ras/client_support.cc)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("localhost", 0))
        self.port = int(self.server.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                with connection, connection.makefile("r") as stream:
                    form = "text"
                    for line in stream:
                        words = line.split()
                        form = words[2] if words[:2] == ["set", "format"] else form
                        if words[-1] == "status":
                            connection.sendall(f"status as {form}\n".encode())
                            break
                        connection.sendall(b"OK\n")


def test_ras_is_asked_in_its_own_words_and_a_silent_port_is_said() -> None:
    observing = stages("observing")
    server = RasServer()
    server.start()
    answers = {kind: observing.ras(server.port, question) for kind, question in observing.QUESTIONS.items()}
    assert answers == {"txt": b"OK\nstatus as text\n", "json": b"OK\nOK\nstatus as json\n"}
    server.server.close()
    assert observing.ras(1, "verbose status\n") == b"(Connection refused)\n"


def test_a_process_without_a_handler_is_not_signalled() -> None:
    observing = stages("observing")
    import signal

    assert not observing.takes(os.getpid(), signal.SIGUSR1)
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert observing.takes(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not observing.takes(2**22 + 1, signal.SIGUSR1)
    assert observing.state(os.getpid()) == "R"


def test_the_kernels_view_names_every_thread() -> None:
    text = stages("observing").kernel_view(os.getpid())
    assert f"== task {os.getpid()}\n" in text
    assert "VmRSS" in text


def test_a_silent_port_answers_no_caller() -> None:
    job = stages("failure_job")
    port = job.silent_port()
    with socket.socket() as caller:
        caller.settimeout(0.5)
        with pytest.raises(TimeoutError):
            caller.connect(("127.0.0.1", port))
    for kept in job._silent:
        kept.close()


def test_a_job_whose_rank_is_killed_leaves_its_records(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{SCRIPTS.parent}:{SCRIPTS}",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "gpu_stages.failure_job", "sigkill", str(tmp_path), "gloo"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    codes = json.loads((tmp_path / "end.json").read_text())["codes"]
    assert codes == [1, -9, 1]
    job = json.loads((tmp_path / "job.json").read_text())
    assert (job["cause"], job["victim"], job["backend"]) == ("rank-crashed", 1, "gloo")
    entries = json.loads((tmp_path / "rank1.before.fr.json").read_text())["entries"]
    assert [entry["profiling_name"] for entry in entries] == ["gloo:all_reduce"] * 2
    assert (tmp_path / "rank0.before.fr.pickle").stat().st_size > 100
    assert "step 3: sigkill" in (tmp_path / "rank1.log").read_text()
    assert "failure_rank.py" in (tmp_path / "rank0.stacks.txt").read_text()
    assert not list(tmp_path.glob("*.dumped"))


def test_every_fault_is_played_by_a_rank_or_by_the_environment() -> None:
    faults, rank = stages("faults"), stages("failure_rank")
    assert len(faults.BY_NAME) == len(faults.FAULTS)
    for fault in faults.FAULTS:
        by_rank = fault.name in rank.FAULTS
        by_setting = bool(fault.variables or fault.everywhere or fault.network)
        assert by_rank != (by_setting or fault.name == "healthy"), fault.name
        assert bool(fault.cause) == (fault.name != "healthy")


def test_what_is_kept_of_an_hour_has_no_name_of_the_machine(tmp_path: Path) -> None:
    out, job = tmp_path / "out", tmp_path / "out" / "stage2" / "sigkill"
    capture = out / stages("keep").CAPTURE
    for folder in (job, capture.parent):
        folder.mkdir(parents=True)
    capture.write_text('{"capture": 1, "node": "gpubox17", "origin": "real"}\n')
    (job / "end.json").write_text("{}")
    (job / "rank0.nccl.log").write_text("gpubox17:12:12 [0] NCCL INFO Bootstrap : Using eth0:10.31.7.9<0>\n")
    (job / "rank0.soon.fr.pickle").write_bytes(b"\x80\x02}q\x00\xff.")
    (job / "rank1.soon.fr.pickle").write_bytes(b"\x80\x02X gpubox17 q\x00.")
    done = hour(out, "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    assert "left out: sigkill/rank1.soon.fr.pickle: names in pickled bytes" in done.stdout
    kept = {path.name: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert sorted(kept) == ["end.json", "machine.jsonl", "rank0.nccl.log", "rank0.soon.fr.pickle"]
    assert kept["rank0.soon.fr.pickle"] == b"\x80\x02}q\x00\xff."
    assert not [name for name, text in kept.items() if b"gpubox17" in text or b"10.31.7.9" in text]
    assert b"NCCL INFO Bootstrap : Using eth0:" in kept["rank0.nccl.log"]


# A rehearsal.


def test_a_rehearsal_of_the_machine_ends_well(tmp_path: Path) -> None:
    started = time.monotonic()
    done = hour(tmp_path / "out", "--rehearse", "--stage", "3", "--pack", tmp_path / "back")
    assert done.returncode == 0, done.stdout + done.stderr
    (stage,) = json.loads((tmp_path / "out" / "summary.json").read_text())["stages"]
    found = statuses(stage)
    assert {found[name] for name in ("capture", "capture, redacted")} == {"good"}
    assert found["replay of capture"] == "good", stage
    assert stage["seconds"] <= time.monotonic() - started
    assert "libnvidia-ml.so.1 by tests/fake_nvml.c" in (tmp_path / "back" / "summary.md").read_text()
