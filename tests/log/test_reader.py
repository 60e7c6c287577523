"""Logs of every form become events: who wrote them, when, in which line. Nothing that a log holds stops the reader."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.host.job_files import Blocks, JobFile, named
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.logs.job_log import JobLog, SignIndex
from ncclprobe.logs.prefix import cleaned
from ncclprobe.logs.read import looked_at
from ncclprobe.logs.reader import LEAST, MOST_ALIKE, Chunks, read
from ncclprobe.logs.sieve import Sieve, Whole
from tests.log.events import SUMMARY, WARN

SAID = "Bootstrap : no socket interface found"


def log(**texts: str | bytes) -> JobLog:
    encoded = {name: text.encode() if isinstance(text, str) else text for name, text in texts.items()}
    return read(((name, [text]) for name, text in encoded.items()), ("no socket interface",))


def test_half_lines_of_two_writers_are_two_lines() -> None:
    mixed = "step 7  n1:1:1 [0] NCCL INFO Channel 00 n2:5:5 [1] NCCL WARN no socket interface"
    said = [(each.host, each.text) for each in cleaned(mixed.encode())]
    assert said == [("", "step 7"), ("n1", "Channel 00"), ("n2", "no socket interface")]
    bar = "  0%|          | 0/100 [00:00<?, ?it/s, loss=3.1][rank1]: torch.OutOfMemoryError: CUDA out of memory."
    assert [each.rank for each in cleaned(bar.encode())] == [None, 1]
    (whole,) = cleaned(b"  0%|          | 0/100 [00:00<?, ?it/s]")
    assert whole.text.endswith("?it/s]")


def test_lines_alike_are_kept_a_few_times_and_those_searched_for_more_often() -> None:
    many = "".join(f"an error number {n}\n" for n in range(1000)) + f"{WARN}\n" * 100
    found = log(a=many)
    assert len(found.events) == MOST_ALIKE + 100
    assert found.ranks == {}


def test_a_line_of_ten_megabytes_is_read_where_it_says_something() -> None:
    found = log(a=b"x" * (10 << 20) + b" no socket interface \n" + WARN.encode())
    assert [("no socket interface" in e.text, len(e.text) <= 4096, e.line) for e in found.events] == [
        (True, True, 1),
        (True, True, 2),
    ]


def test_line_numbers_hold_across_blocks() -> None:
    filler = b"step 1 loss 2.0\n" * (3 * LEAST // 16)
    (event,) = log(a=filler + WARN.encode() + b"\n" + filler).events
    assert event.line == 3 * LEAST // 16 + 1


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_in_any_blocks_are_read(blocks: list[bytes]) -> None:
    found = read([("a", blocks)], ("no socket interface",))
    whole = read([("a", [b"".join(blocks)])], ("no socket interface",))
    assert found.events == whole.events
    assert found.streams[0].nlines == b"".join(blocks).count(b"\n") + (not b"".join(blocks).endswith(b"\n")) * bool(
        b"".join(blocks)
    )


LINES = st.sampled_from(
    [WARN.encode(), b"loss 1", SUMMARY[:200].encode(), SUMMARY.encode(), b"[rank3]:", b"\xff\xfe", b"{"]
)


@given(st.lists(LINES, max_size=6), st.data())
def test_a_log_with_bytes_changed_or_cut_is_read_on(lines: list[bytes], data: st.DataObject) -> None:
    text = bytearray(b"\n".join(lines))
    for _ in range(data.draw(st.integers(0, 4)) if text else 0):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(text[: data.draw(st.integers(0, len(text)))])
    for event in read([("a", [cut])], ("no socket interface",)).events:
        assert event.line >= 1
        assert len(event.text) <= 4096
        assert event.rank is None or event.rank >= 0


@given(
    st.text(alphabet=st.sampled_from("abexW<\"' .:no"), max_size=80),
    st.lists(st.text(alphabet="abexWno <", min_size=1), max_size=5),
)
def test_a_sieve_finds_every_line_that_holds_a_text(block: str, texts: list[str]) -> None:
    data = block.replace(".", "\n").encode()
    sieve = Sieve(texts)
    found = {data[begin:end] for begin, end, _ in sieve.lines(data)}
    for line in data.split(b"\n"):
        holds = any(text.encode() in line for text in texts)
        assert Whole(texts).holds(line) == holds
        assert line in found or not holds


def test_logs_that_processes_share_are_read_for_all_signs_also_after_one_that_took_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(LimitedChild):
        def ask(self, request: bytes, patience_s: float) -> bytes:
            return super().ask(request, 0.0 if b"late" in request else patience_s)

    monkeypatch.setattr("ncclprobe.logs.read.LimitedChild", Late)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    paths = [tmp_path / f"{name}.log" for name in ("late0", "late1", *"abcd")]
    for path in paths:
        path.write_text("quux 7 is ready\n")
    found = looked_at([JobFile(str(path), nbytes=20 << 20) for path in paths], ("quux",))
    log = found.facts[JobLog]
    assert [log.streams[event.stream].name for event in log.events] == [*map(str, paths[2:])]
    assert [each.text for each in found.not_understood] == ["could not be read: reading it took too long"] * 2


def test_chunks_hold_every_byte_once() -> None:
    data = b"".join(b"%d\n" % n for n in range(900_000))
    found = Chunks(data[at : at + 100_000] for at in range(0, len(data), 100_000))
    made = list(found)
    assert b"".join(chunk.data[: chunk.own] for chunk in made) == data
    assert len(made) > 1
    assert (found.nlines, found.nbytes, data.endswith(found.tail)) == (900_000, len(data), True)
    assert len(found.tail) > 200_000


def test_files_folders_and_patterns_are_found_once_and_rotated_logs_in_their_order(tmp_path: Path) -> None:
    for name in ("rank10.log", "rank2.log", "job.log", "job.log.1", "job.log.2.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith("gz") else b"x")
    found = [Path(file.name).name for file in named([str(tmp_path), str(tmp_path / "*.log")])]
    assert found == ["job.log.2.gz", "job.log.1", "job.log", "rank2.log", "rank10.log"]


def test_a_compressed_log_that_ends_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(WARN.encode() * 4000)
    path = tmp_path / "a.log.gz"
    path.write_bytes(whole[: len(whole) // 2])
    blocks = Blocks(JobFile(str(path)))
    list(blocks)
    assert "ends early" in blocks.cut


@given(st.lists(st.text("ab1298 :", max_size=12), max_size=8), st.lists(st.text("ab1298 :", min_size=1, max_size=4)))
def test_the_index_finds_what_a_search_of_every_line_finds(texts: list[str], signs: list[str]) -> None:
    found = SignIndex(texts).having(tuple(signs))
    assert found == [number for number, text in enumerate(texts) if any(sign in text for sign in signs)]


def test_long_lines_are_cut_shorter_where_there_are_very_many() -> None:
    found = read(
        [("a", [b"".join(b"no socket interface %d " % n + b"x" * 4000 + b"\n" for n in range(4000))])], ("no socket",)
    )
    assert sum(len(event.text) for event in found.events) < 8_000_000
    assert len(found.events) == 4000


SAYS = (
    "NCCL WARN x", "error", "an Error", "ERROR", "Traceback", "it failed", "Failed", "FAILED", "failure",
    "Failure", "Timed out", "timed out", "Timeout", "timeout", "fatal", "Fatal", "FATAL", "abort", "Abort", "Killed",
    "killed", "terminate called", "exitcode", "Exitcode", "exit code", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT",
    "SIGBUS", "exception: x", "Exception: x", "what(): x", "CANCELLED", "died", "marked dead", "is dead", "SIGINT",
    "is terminated", "Missing ranks", "Exit with status 7", "ABORT", "BAD TERMINATION", "RUNNING AT n1", "Hangup",
    "not accessible", "non-zero status", "low on resource", "(stopped sending heartbeats)", "not enough slots",
    "are waiting for remainder", "unable to reliably start", "lost communication", "Peer host id: 7", "SIGHUP",
    "can't open file", "panic", "--- Logging error ---", "Command not found", "Received signal", "Forwarding signal",
    "does not exist", "expired", "Expired", "undefined symbol", "Incompatible", "No space left", "not permitted",
    "not allowed", "not installed", "not implemented", "not loaded", "not responding", "exhausted", "hangup",
    "already in use", "is required", "cannot x", "can't x", "unable to x", "Unable to x", "could not x", "no such x",
    "No such x", "not found", "Not found", "not detected", "not supported", "refused", "Refused", "denied", "Denied",
    "exceeds", "invalid x", "Invalid x", "insufficient", "not enough", "preempted", "Interruption", "unreachable",
    "NULL value", "Bus error", "bus error", "Segmentation", "marked as dead", "Unauthorized", "mismatch", "Mismatch",
    "corrupt", "Corrupt", "a WARN x", "Powering off", "<warn>", "unavailable", "exceeded", "Evicted", "restart",
    "Attempt", "requeue", "Resuming", "Restoring trial 7", "as expected here", "will be retried", "NCCL version 2.27.3",
    "- Init START", "- Init COMPLETE", "Bootstrap : Using", "Bootstrap: Using", "NET/Socket : Using", "NET/IB : Using",
    "torch version 2", "PyTorch version 2", "world size", "world_size", "World size", "World Size", "WORLD_SIZE",
    "GLOBAL_RANK: 1", "MPI size: 2")  # fmt: skip


def test_each_word_of_a_failure_or_of_the_job_keeps_its_line_wherever_it_stands() -> None:
    work = "zeta is at work\n" * 130
    found = {word: [each.line for each in log(a=f"{work}zeta {word}\n{work}").events] for word in (*SAYS, "loss")}
    assert [word for word, lines in found.items() if lines != [131]] == ["loss"]
    (told,) = log(a=f"{'-' * 74}\nzeta was started as it has to be on 7 hosts\n{'-' * 74}\n{work}").events
    assert (told.line, told.text) == (2, "zeta was started as it has to be on 7 hosts")


def test_text_of_two_bytes_a_character_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(("\ufeff" + WARN).encode("utf-16-le"))
    assert read([("a", Blocks(JobFile(str(path))))], ("no socket",)).events[0].text == SAID
