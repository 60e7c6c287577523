"""Spoilt input of every reader ends in a value or a refusal of ours; scripts/fuzz.py runs a hundred thousand."""

import random
import signal
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts")]

import fuzz
import fuzz_readers

from ncclprobe.model.errors import UsageError
from ncclprobe.model.registry import Collector, discover
from tests.each_row import each_row

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
    assert all("ZeroDivisionError in test_fuzz.py" in defect for defect in found.defects)
    assert 0 < len(found.defects) < 20
