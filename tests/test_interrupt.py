"""A signal to ncclprobe as a program: no traceback, 128 + its number, at any moment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclprobe.signals import NO_MEMORY
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parents[1]
SAID = "ncclprobe: interrupted; nothing was judged\n"
SLOW = """\
import pathlib, time
pathlib.Path(__file__).with_name("there").touch()
for _ in range(1000):  # a signal in the moment before a sleep begins is handled when that one ends
    time.sleep(0.1)
"""
DEADLINE_S = 60.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "argv", "slow"),
    [
        (signal.SIGINT, ["ncclprobe", "doctor", "--backend", "gloo"], "argparse"),
        (signal.SIGTERM, ["ncclprobe.doctor", "--backend", "gloo"], "msgspec"),
        (signal.SIGHUP, ["ncclprobe", "doctor", "--backend", "gloo"], "psutil"),  # the command runs, and imports it
        (None, ["ncclprobe", "checks"], "argparse"),  # SIGHUP, ignored as under nohup
    ],
)
def test_a_signal_during_an_import_prints_no_traceback_and_one_that_is_ignored_stays_so(
    number: signal.Signals | None, argv: list[str], slow: str, tmp_path: Path
) -> None:
    (tmp_path / f"{slow}.py").write_text(SLOW if number else SLOW.replace("1000", "10") + "raise SystemExit(7)\n")
    own = [] if number else ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    started = subprocess.Popen(
        [*own, sys.executable, "-m", *argv],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end_s = time.monotonic() + DEADLINE_S
    while not (tmp_path / "there").exists():
        assert time.monotonic() < end_s, "it was not imported"
        time.sleep(0.01)
    started.send_signal(number or signal.SIGHUP)
    out, err = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == (128 + number if number else 7)
    assert not number or (out, err) == ("", SAID)


ASKED = """\
import os, signal, sys, time
from ncclprobe import signals
signals.take_over()
{body}
signals.run(main, [])
"""
NO_START = """
class Finder:
 def find_spec(self, name, *_):
  if name == "msgspec": raise {}
sys.meta_path.insert(0, Finder())
from ncclprobe import start
start.program()
"""
LATE = "ncclprobe: --timeout ran out, and something kept this process; nothing was judged\n"


@each_row(
    ("body", "code", "said"),
    [
        ("def main(argv): return 3", 3, ""),
        ("class A:\n def __del__(self): raise MemoryError\ndef main(argv):\n A()\n return 0", 0, ""),
        *(
            (f"def main(argv):\n signals.end_by({seconds})\n return signal.getitimer(0)[0] > 0", code, "")
            for seconds, code in (("9e6", 1), ("1e7", 0), ("float('inf')", 0))
        ),
        *(
            (NO_START.format(error), code, f"ncclprobe: {why}; nothing was judged\n")
            for error, code, why in (
                ("MemoryError", 3, NO_MEMORY),
                ("ImportError('x.so: failed to map segment')", 3, NO_MEMORY),
                ("ImportError('x.so: Cannot allocate memory')", 3, NO_MEMORY),
                ("ImportError('no x')", 1, "cannot start: no x"),
            )
        ),
        ("def main(argv): sys.exit(2)", 2, ""),
        ("def main(argv): os.kill(os.getpid(), signal.SIGTERM)", 143, SAID),
        # what was made is removed, and a second signal does not wait for that
        ("def main(argv):\n try: os.kill(os.getpid(), 15)\n finally: print('removed', flush=True)", 143, SAID),
        ("def main(argv):\n try: os.kill(os.getpid(), 15)\n finally: os.kill(os.getpid(), 2)", 143, SAID),
        ("def main(argv):\n try: os.kill(os.getpid(), 1)\n finally: time.sleep(100)", 129, SAID),
        # an exception that comes up in a callback comes to nothing: the process ends all the same
        (
            "class A:\n def __del__(self): os.kill(os.getpid(), 15); time.sleep(.1)\n"
            "def main(argv):\n a = A()\n del a\n time.sleep(100)",
            143,
            SAID,
        ),
        # what a thread keeps for ever ends a few seconds after the timeout
        ("def main(argv):\n signals.end_by(0.2)\n time.sleep(100)", 3, LATE),
    ],
)
def test_a_program_ends_with_its_code_or_its_signal(body: str, code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(body=body)],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, said)


def test_importing_the_command_changes_no_handler() -> None:
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in ending]
    import ncclprobe.commands
    import ncclprobe.start  # noqa: F401

    assert [signal.getsignal(number) for number in ending] == before
