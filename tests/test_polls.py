"""What a loop with pauses asks for, by the source of the program."""

import os
from pathlib import Path

import pytest

from ncclprobe.host import polls
from tests.each_row import some

HELPER = """\
def wait_until(ready):
    while not ready():
        time.sleep(0.5)
wait_until(
    lambda: os.path.exists(path))
"""


def asked(tmp_path: Path, source: str, *lines: int) -> tuple[str, str, int] | None:
    (tmp_path / "train.py").write_text(source)
    return polls.asked(str(os.getpid()), [(str(tmp_path / "train.py"), line) for line in lines])


def test_the_head_of_the_loop_and_the_lines_near_its_pause_show_what_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        ("while not os.path.exists(p):\n    time.sleep(1)", (2,), ("polls-file", "os.path.exists", 1)),
        ("while not w.is_completed(): sleep(1)", (1,), ("polls-work", "is_completed", 1)),
        ("while True:\n    if store.check(k): break\n    time.sleep(1)", (3,), ("polls-key", "store.check", 2)),
        ("while True:\n  try:\n    q.get_nowait()\n  except Empty:\n    sleep(1)", (5,),
         ("polls-queue", "get_nowait", 3)),
        (HELPER, (3, 4), ("polls-file", "os.path.exists", 5)),
        (HELPER, (3,), None),
        ("def f():\n    time.sleep(9)\nwhile os.path.exists(p): f()", (2,), None),  # no loop of this function
        ("for i in n:\n    time.sleep(1)\n    while not p.exists(): sleep(2)", (2,), None),  # another loop asks
        ("while True:\n    time.sleep(1)\n" + "    step()\n" * 40 + "    p.exists()", (2,), None),  # a loop that works
        ("while not p.exists():\n    step()", (2,), None),  # no pause
        ("model.load(store.get('key'))", (1,), ("store-key", "store.get", 1)),
        ("while not p.exists():\n    time.sleep(1)", (7,), None),  # the file has changed
    ]  # fmt: skip
    for source, lines, wanted in some(rows):
        assert asked(tmp_path, source, *lines) == wanted, source
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(rows[0][0])
    assert polls.asked(str(os.getpid()), [("train.py", 2)]) == rows[0][2]


def test_what_cannot_be_read_asks_for_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    for path in (tmp_path / "fifo.py", tmp_path, tmp_path / "none.py", Path("/dev/zero"), Path("a\0b")):
        assert polls.asked(str(os.getpid()), [(str(path), 1)]) is None
