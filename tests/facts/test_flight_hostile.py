"""Flight-recorder dumps that somebody wrote to do harm: refused with the reason, and nothing of them runs."""

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclprobe.facts.files.flight_child import MAX_ENTRIES, answer, read
from ncclprobe.facts.files.flight_records import FlightDump, read_dump
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.model.errors import Failed, TimedOut
from tests.each_row import each_row
from tests.facts.hostile_pickles import hostile, mutated

CHILD = "ncclprobe.facts.files.flight_child"
ENTRY = {
    "record_id": 0,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 1,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[8]],
    "state": "scheduled",
}
GOOD = pickle.dumps({"version": "2.4", "entries": [ENTRY]}, 2)


@pytest.fixture(scope="module")
def child() -> Iterator[LimitedChild]:
    with LimitedChild(CHILD) as found:
        yield found


@each_row("name", hostile(Path("/")))
def test_a_hostile_dump_is_refused_or_holds_no_entry_and_runs_nothing(
    name: str, child: LimitedChild, tmp_path: Path
) -> None:
    found = read_dump(child, hostile(tmp_path / "mark")[name])
    assert isinstance(found, str) or not len(found)
    assert not (tmp_path / "mark").exists()
    after = read_dump(child, GOOD)
    assert isinstance(after, FlightDump), "the next dump is read"
    assert len(after) == 1


def test_the_reason_names_what_a_hostile_dump_asks_for(child: LimitedChild, tmp_path: Path) -> None:
    found = read_dump(child, hostile(tmp_path / "mark")["os.system"])
    assert found == "it asks for posix.system: a dump holds only data, so this may be an attack"


def test_a_dump_that_needs_more_memory_than_its_limit_is_refused(child: LimitedChild) -> None:
    found = read_dump(child, hostile(Path("/"))["an index that wants 32 GiB"])
    assert found == "reading it takes more than 512 MiB"


def test_damage_of_any_sort_is_refused_or_read(child: LimitedChild) -> None:
    dice = random.Random(18)
    for _ in range(300):
        assert isinstance(read_dump(child, mutated(GOOD, dice)), FlightDump | str)


def test_entries_that_torch_would_not_write_are_left_out_and_counted(child: LimitedChild) -> None:
    odd = [None, {}, {**ENTRY, "collective_seq_id": -1}, {**ENTRY, "input_sizes": [["a"]]}, {**ENTRY, "frames": 7}]
    odd.insert(0, {**ENTRY, "record_id": "first"})
    found = read_dump(child, pickle.dumps({"entries": [*odd, ENTRY]}, 2))
    assert isinstance(found, FlightDump)
    assert (len(found), found.left_out) == (1, 6)


def test_of_more_entries_than_the_bound_the_newest_are_read() -> None:
    entries = [{**ENTRY, "collective_seq_id": number} for number in range(MAX_ENTRIES + 7)]
    with LimitedChild(CHILD) as child:
        found = read_dump(child, pickle.dumps({"entries": entries}, 2))
    assert isinstance(found, FlightDump)
    assert (len(found), found.left_out, found.column("seq")[-1]) == (MAX_ENTRIES, 7, MAX_ENTRIES + 6)


def test_what_is_no_dump_says_so() -> None:
    assert b"no flight recorder" in answer(pickle.dumps({"weights": [1]}, 2))
    assert b"damaged or cut" in answer(GOOD[:-9])


@each_row(
    "text",
    [
        GOOD.decode("latin-1"),
        "[" * 100_000,
        json.dumps({"entries": [ENTRY], "pg_config": {"0": {"ranks": "[" + "9" * 5000 + "]"}}})[:-1],
        '{"entries": [' + "{}," * 10 + "1e999]}",
        '{"entries": 7}',
    ],
)
def test_a_text_is_no_pickle_and_what_is_no_dump_of_torch_is_refused(text: str) -> None:
    assert isinstance(read(text), str)


def test_an_entry_that_is_deeper_than_any_of_torch_ends_nothing() -> None:
    deep = json.dumps({"entries": [ENTRY, {**ENTRY, "input_sizes": 0}]}).replace(
        ": 0}]}", f": {'[' * 900}{']' * 900}}}]}}"
    )
    found = read(deep)
    assert isinstance(found, str) or (len(found), found.left_out) == (1, 1)
    good = read(json.dumps({"entries": [ENTRY]}))
    assert isinstance(good, FlightDump)
    assert len(good) == 1


def test_a_child_that_is_late_is_ended_and_the_next_request_has_another() -> None:
    with LimitedChild("facts.child_for_tests") as child:
        with pytest.raises(TimedOut):
            child.ask(b"sleep", 0.3)
        assert child.ask(b"echo", 30.0) == b"echo"


@each_row("request_", [b"open", b"exec", b"memory", b"import"])
def test_a_child_cannot_open_run_import_or_grow(request_: bytes) -> None:
    with LimitedChild("facts.child_for_tests") as child, pytest.raises(Failed):
        child.ask(request_, 30.0)


def test_an_answer_that_is_too_long_is_not_taken() -> None:
    with LimitedChild("facts.child_for_tests") as child, pytest.raises(Failed, match="longer than"):
        child.ask(b"long", 30.0)
