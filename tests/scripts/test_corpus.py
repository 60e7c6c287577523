"""The corpus of real texts beside the checkout, through the command that judges it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import ROOT


def test_every_text_of_the_corpus_is_read_exactly_or_refused_rightly(shared: Callable[[str], Path]) -> None:
    command = [sys.executable, ROOT / "scripts" / "corpus.py", shared("corpus/topo")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
