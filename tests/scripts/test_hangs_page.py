"""The page of what attach says of jobs that hang: what is counted, and by what an answer is judged."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import hangs
import hangs_page

from tests.each_row import each_row


def row(way: str, mode: str, verdict: str = "right", said: str = "STUCK: stuck outside [1]: sleeps") -> dict[str, Any]:
    return {"way": way, "mode": mode, "verdict": verdict, "place": False, "seconds": 2.0, "said": said, "load": 1.0}


def test_ways_of_each_mode_are_counted_and_of_two_answers_the_later() -> None:
    rows = [
        row("sleep", "server", "cannot tell"),
        row("sleep", "server"),
        row("sleep", "stacks", said="STUCK: stuck outside [1]: sleeps (nanosleep), x.py:1 in <lambda>"),
        row("fifo", "server", "WRONG RANK"),
        row("fast", "server", said="WORKING"),
        row("sigstop", "ras"),
    ]
    page = hangs_page.page(rows)
    assert "| class and rank right | 27 of 30 | 1 of 2 | 0 of 0 | 1 of 1 | 0 of 0 |" in page
    assert "| a wrong rank | never | 1 of 2 |" in page
    assert "| line, or what it waits for | 23 of 30 | 0 of 2 | 0 of 0 | 1 of 1 |" in page
    assert "| healthy jobs of which nothing is said | 10 of 10 | 1 of 1 |" in page
    assert "counted as then: sleep; of their 1 first answers 0 were right" in page
    assert "| sigstop | stuck outside | right, 2.0 s |  |" in page


def report(word: str, *classes: tuple[str, list[int]], doing: str = "sleeps") -> dict[str, Any]:
    rows = [{"name": name, "ranks": ranks, "doing": doing, "evidence": []} for name, ranks in classes]
    return {"standing": {"word": word, "message": ""}, "classes": rows}


@each_row(
    ("way", "found", "verdict"),
    [
        ("sleep", report("STUCK", ("stuck outside", [1]), ("waiting", [0, 2])), "right"),
        ("sleep", report("STUCK", ("stuck outside", [2])), "WRONG RANK"),
        ("sleep", report("STUCK", ("stuck outside", [0, 1])), "WRONG RANK"),
        ("sleep", report("STUCK", ("desync", [1])), "missed"),
        ("sleep", report("CANNOT TELL", ("cannot tell", [0, 1, 2])), "cannot tell"),
        ("throttled cgroup", report("SLOW", ("slow, not stuck", [1])), "right"),
        ("one direction dropped", report("STUCK", ("stuck inside", [0, 1])), "right"),
        ("one direction dropped", report("STUCK", ("stuck inside", [0, 2])), "WRONG RANK"),
        ("fast", report("STUCK", ("stuck outside", [1])), "WRONG"),
        ("fast", report("SLOW", ("slow, not stuck", [1])), "right"),
    ],
)
def test_an_answer_is_right_only_with_the_class_and_the_rank(way: str, found: dict[str, Any], verdict: str) -> None:
    assert hangs.judged(way, found)[0] == verdict


def test_the_line_of_another_rank_is_no_line_of_the_one_that_hangs() -> None:
    doing = "opens a file (open), x.py:2 in fifo"
    assert hangs.placed("fifo", report("STUCK", ("stuck outside", [1]), doing=doing))
    assert not hangs.placed("fifo", report("STUCK", ("stuck outside", [0]), doing=doing))
