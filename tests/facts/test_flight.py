"""Dumps of torch's flight recorder: each release's keys, real ones, which rank wrote them, and ones made to harm."""

import gzip
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ncclprobe.facts.files import flight_child, flight_records
from ncclprobe.facts.files.flight_child import MAX_ENTRIES, dump, read
from ncclprobe.facts.files.flight_records import FlightDump, is_dump, read_dump, read_dumps
from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job.ranks import AskedJob
from ncclprobe.host import limited_child
from ncclprobe.host.limited_child import MAX_ANSWER_BYTES, LimitedChild
from ncclprobe.model.errors import Denied, Failed, HostError, TimedOut
from ncclprobe.model.values import replace
from tests.each_row import each_row
from tests.facts.hostile_pickles import hostile, mutated
from tests.facts.made_up_looks import Asked, here_of
from tests.facts.made_up_records import ENTRY, GOOD, of, whole

RECORDED = sorted((Path(__file__).resolve().parents[1] / "data" / "failures").glob("*/fr_trace_rank_*.gz"))
CHILD = "ncclprobe.facts.files.flight_child"


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_child, "MAX_TABLE", 2)
    names = [{"process_group": (str(n), ""), "profiling_name": f"nccl:{n}"} for n in range(3)]
    assert (len(of(*names)), of(*names).left_out) == (2, 1)
    calls = [{"profiling_name": f"nccl:{n}"} for n in range(3)]
    assert (len(of(*calls)), of(*calls).left_out) == (2, 1)
    stacks = [{"frames": [ENTRY["frames"][0] | {"line": n}]} for n in range(3)]
    assert list(of(*stacks).column("stack")) == [1, 0, 0]  # the first is that of no stack
    entries = [{**ENTRY, "collective_seq_id": number} for number in range(MAX_ENTRIES + 7)]
    found = dump(whole("2.10", entries=entries))
    assert (len(found), found.left_out, found.column("seq")[-1]) == (MAX_ENTRIES, 7, MAX_ENTRIES + 6)


def test_every_dump_that_torch_wrote_is_read() -> None:
    packed = [(str(path), gzip.decompress(path.read_bytes())) for path in RECORDED]
    found = read_dumps(packed)
    assert (found.unread, found.unplaced, len(packed) > 60) == ((), (), True)
    assert {(each.version, each.left_out) for each in found.dumps} == {("2.10", 0)}
    assert all(map(len, found.dumps))
    assert all(is_dump(data[:4096]) for _, data in packed)


def test_what_a_rank_says_twice_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str | bytes] = []
    monkeypatch.setattr(looks, "read", lambda text: (taken.append(text), "it is not read")[1])
    said = {("server", pid, "fr_trace_json", look): text
            for pid, look, text in ((10, 1, "a"), (11, 1, "b"), (10, 2, "a"), (11, 2, "c"))}  # fmt: skip
    both = looks.looks.run(Asked(said), here_of(0, 1), AskedJob())
    assert taken == ["a", "b", "c"]
    assert {both.first.servers, both.second.servers} == {("its records were not read: it is not read",) * 2}


# Harm.


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
    reasons = {"os.system": "it asks for posix.system: a dump holds only data, so this may be an attack",
               "an index that wants 32 GiB": "reading it takes more than 512 MiB"}  # fmt: skip
    assert found == reasons.get(name, found)


def test_damage_of_any_sort_is_refused_or_read(child: LimitedChild) -> None:
    dice = random.Random(18)
    for _ in range(300):
        assert isinstance(read_dump(child, mutated(GOOD, dice)), FlightDump | str)


def test_an_entry_that_is_deeper_than_any_of_torch_ends_nothing() -> None:
    deep = json.dumps({"entries": [ENTRY, {**ENTRY, "input_sizes": 0}]})
    found = read(deep.replace(": 0}]}", f": {'[' * 900}{']' * 900}}}]}}"))
    assert isinstance(found, str) or (len(found), found.left_out) == (1, 1)


def test_a_dump_that_is_too_long_or_an_answer_that_is_nonsense_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answering(LimitedChild):
        def __init__(self, answer: bytes | HostError) -> None:
            self.answer = answer

        def ask(self, request: bytes, patience_s: float) -> bytes:
            if isinstance(self.answer, HostError):
                raise self.answer
            return self.answer

    good = msgspec.msgpack.encode(of({}))
    assert read_dump(Answering(good), b"x") == of({})
    assert read_dump(Answering(TimedOut("late")), b"x") == "late"
    for nonsense in (b"\xc1", msgspec.msgpack.encode(replace(of({}), seq=b"")),
                     msgspec.msgpack.encode(replace(of({}), calls=()))):  # fmt: skip
        assert "the process that was asked answered nonsense" in str(read_dump(Answering(nonsense), b"x"))
    for module in (flight_child, flight_records):
        monkeypatch.setattr(module, "MAX_DUMP_BYTES", len(GOOD))
    assert (isinstance(read(GOOD), FlightDump), read(GOOD + b"x")) == (True, "it is longer than 0 MiB")
    assert read_dump(Answering(good), GOOD + b"x") == "it is longer than 0 MiB"


# The child itself.

OURS, MOST = "facts.child_for_tests", 1 << 20


@each_row(
    ("request_", "why"),
    [(b"open", "code 86"), (b"exec", "code 86"), (b"import", "code 86"), (b"memory", "ended with code"),
     (b"long", "64 MiB"), (b"x" * (MOST + 1), "ended with code 0"),
     (b"closes", "the process that was asked does not answer")])  # fmt: skip
def test_a_child_cannot_open_run_import_or_grow_and_the_next_request_has_another(request_: bytes, why: str) -> None:
    with LimitedChild(OURS) as child:
        with pytest.raises(Failed, match=why):
            child.ask(request_, 30.0)
        assert (child.started, child.ask(b"echo", 30.0), child.started) == (False, b"echo", True)
    assert not child.started


def test_a_child_has_memory_for_its_work_arrays_and_limits_on_all_else() -> None:
    with LimitedChild(OURS) as child:
        assert child.ask(b"some", 30.0) == b"\0"
        assert child.ask(b"array", 30.0) == bytes(3)
        assert child.ask(b"limits", 30.0) == b"0 0 0 0 268435456 268435456"
        assert child.ask(b"x" * MOST, 30.0) == b"x" * MOST
    with LimitedChild(OURS, 100) as child:
        assert child.ask(b"x" * 100, 30.0) == b"x" * 100
        with pytest.raises(Failed, match="the answer is longer than 0 MiB"):
            child.ask(b"x" * 101, 30.0)
    assert MAX_ANSWER_BYTES == 64 << 20


def test_a_child_that_is_late_killed_or_does_not_start_is_told_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with LimitedChild(OURS) as child:
        with pytest.raises(TimedOut, match="reading it took too long"):
            child.ask(b"sleep", 0.3)
        for sent, why in ((signal.SIGSTOP, "not taken in time"), (signal.SIGKILL, "was ended by SIGKILL")):
            child.ask(b"echo", 30.0)
            assert child._process
            os.kill(child._process.pid, sent)
            with pytest.raises(TimedOut if sent is signal.SIGSTOP else Failed, match=why):
                child.ask(b"x" * MOST, 0.5 if sent is signal.SIGSTOP else 30.0)
        assert child.ask(b"echo", 30.0) == b"echo"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(limited_child, "start_own", refuse)
    with LimitedChild(OURS) as child, pytest.raises(Denied):
        child.ask(b"echo", 30.0)
