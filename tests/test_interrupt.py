"""A signal to ncclprobe as a program: no traceback, 128 + its number, at any moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SAID = "ncclprobe: interrupted; nothing was judged\n"
SLOW = """\
import pathlib, time
pathlib.Path(__file__).with_name("there").touch()
for _ in range(1000):  # a signal in the moment before a sleep begins is handled when that one ends
    time.sleep(0.1)
"""
DEADLINE_S = 60.0
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def program(folder: Path, *argv: str, ignore: bool = False) -> "subprocess.Popen[str]":
    """The doctor, or another command, in which what is imported from `folder` is slow."""
    own = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"] if ignore else []
    return subprocess.Popen(
        [*own, sys.executable, *argv],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_there(folder: Path) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not (folder / "there").exists():
        assert time.monotonic() < end_s, "it was not imported"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "module", "slow"),
    [
        (ENDING[0], "ncclprobe", "argparse"),
        (ENDING[1], "ncclprobe.doctor", "msgspec"),
        (ENDING[2], "ncclprobe", "ncclprobe_slow"),
    ],
)
def test_a_signal_during_an_import_prints_no_traceback(
    number: signal.Signals, module: str, slow: str, tmp_path: Path
) -> None:
    (tmp_path / f"{slow}.py").write_text(SLOW)
    if slow == "ncclprobe_slow":  # where the command runs, deep in its own imports
        (tmp_path / "psutil.py").write_text(f"import {slow}")
    started = program(tmp_path, "-m", module, *(["doctor"] if module == "ncclprobe" else []), "--backend", "gloo")
    until_there(tmp_path)
    started.send_signal(number)
    out, err = started.communicate(timeout=DEADLINE_S)
    assert (started.returncode, out, err) == (128 + number, "", SAID)


@pytest.mark.slow
def test_a_signal_that_is_ignored_stays_so_as_under_nohup(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text(SLOW.replace("1000", "10") + "raise SystemExit(7)\n")
    started = program(tmp_path, "-m", "ncclprobe", "checks", ignore=True)
    until_there(tmp_path)
    started.send_signal(signal.SIGHUP)
    started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 7


ASKED = """\
import os, signal, sys
from ncclprobe import signals
signals.take_over()
{body}
signals.run(main, [])
"""


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("def main(argv): return 3", 3, ""),
        ("def main(argv): sys.exit(2)", 2, ""),
        ("def main(argv): os.kill(os.getpid(), signal.SIGTERM)", 143, SAID),
        # what was made is removed, and a second signal does not wait for that
        ("def main(argv):\n try: os.kill(os.getpid(), 15)\n finally: print('removed', flush=True)", 143, SAID),
        ("def main(argv):\n try: os.kill(os.getpid(), 15)\n finally: os.kill(os.getpid(), 2)", 143, SAID),
        # an exception that comes up in a callback comes to nothing: the process ends all the same
        (
            "import time\nclass A:\n def __del__(self): os.kill(os.getpid(), 15); time.sleep(.1)\n"
            "def main(argv):\n a = A()\n del a\n time.sleep(100)",
            143,
            SAID,
        ),
    ],
)
def test_a_program_ends_with_its_code_or_its_signal(body: str, code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(body=body)],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, said)


def test_importing_the_command_changes_no_handler() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    import ncclprobe.commands
    import ncclprobe.start  # noqa: F401

    assert [signal.getsignal(number) for number in ENDING] == before


def test_what_a_thread_keeps_for_ever_ends_a_few_seconds_after_the_timeout() -> None:
    body = "import threading\ndef main(argv):\n signals.end_by(0.2)\n threading.Event().wait()"
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(body=body)],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "--timeout ran out" in done.stderr
