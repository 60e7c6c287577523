"""Flight records that torch writes when a byte comes through its pipe: what is written to, and what is read."""

import base64
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.facts.job import ranks as looks
from ncclprobe.facts.job.ranks import AskedJob, JobProcess, LocalRanks
from ncclprobe.facts.launcher import Launch
from ncclprobe.host import rank_servers
from ncclprobe.host.capture import Replay
from ncclprobe.host.rank_servers import ask_dump, left_dump
from ncclprobe.model.errors import Denied, Failed, HostError, Missing, TimedOut

ENTRY = {"profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg"), "collective_seq_id": 51,
         "state": "started", "time_created_ns": 5, "frames": []}  # fmt: skip
DUMP = pickle.dumps({"version": "2.10", "entries": [ENTRY], "pg_config": {"0": {"ranks": "[0, 1, 2, 3]"}}}, 2)
TORCH = """
import os, sys, time
pipe, path, text, waits = sys.argv[1:5]
os.mkfifo(pipe, 0o666)
reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
while not os.read(reads, 128):
    time.sleep(0.02)
with open(path, "wb") as file:
    file.write(bytes.fromhex(text)[:5])
    file.flush()
    time.sleep(float(waits))
    file.write(bytes.fromhex(text)[5:])
time.sleep(60)
"""


@pytest.fixture
def torch(tmp_path: Path) -> Iterator[Any]:
    """Start what answers as torch's thread does, of rank 3."""
    started: list[subprocess.Popen[str]] = []

    def start(data: bytes = DUMP, waits: str = "0.2", **variables: str) -> str:
        own = {rank_servers.PIPE: f"{tmp_path}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_", **variables}
        argv = [sys.executable, "-c", TORCH, f"{tmp_path}/pipe_3.pipe", f"{tmp_path}/dump_3", data.hex(), waits]
        process = subprocess.Popen(argv, env=os.environ | own, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        process.stdout.readline()
        return str(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_records_are_read_when_torch_has_written_all_of_them(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dump_3").write_bytes(b"an old one.")
    monkeypatch.setattr(rank_servers.bounds, "JOB_DUMP_BYTES", len(DUMP))
    assert base64.b64decode(ask_dump(torch(), "3")) == DUMP
    monkeypatch.setattr(rank_servers.bounds, "JOB_DUMP_BYTES", len(DUMP) - 1)
    (tmp_path / "pipe_3.pipe").unlink()
    with pytest.raises(Failed, match=r"dump_3: longer than 0 MiB"):
        ask_dump(torch(), "3")


@pytest.mark.slow
def test_what_another_process_writes_to_the_same_file_is_not_this_ranks(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_servers, "_ANSWER_S", 1.0)
    pid, path = torch(waits="50"), tmp_path / "dump_3"
    other = threading.Timer(0.3, path.write_bytes, [DUMP])
    other.start()
    with pytest.raises(TimedOut):
        ask_dump(pid, "3")
    other.join()
    assert path.read_bytes() == DUMP


def test_without_the_variable_or_a_pipe_of_the_rank_nothing_is_written_to(torch: Any, tmp_path: Path) -> None:
    pid, pipe = torch(**{rank_servers.PIPE: ""}), tmp_path / "pipe_3.pipe"
    with pytest.raises(Missing, match="is not set"):
        ask_dump(pid, "3")
    pipe.unlink()
    pid = torch()
    pipe.rename(tmp_path / "aside")
    with pytest.raises(Missing, match="there is no such pipe"):
        ask_dump(pid, "3")
    pipe.write_text("a program's file")
    with pytest.raises(Denied, match="not a pipe of the rank's own user"):
        ask_dump(pid, "3")
    assert pipe.read_text() == "a program's file"
    pipe.unlink()
    pipe.symlink_to(tmp_path / "aside")
    with pytest.raises(Denied, match="not a pipe"):
        ask_dump(pid, "3")
    pipe.unlink()
    os.mkfifo(pipe)
    with pytest.raises(Failed, match="torch does not read it"):
        ask_dump(pid, "3")
    if os.geteuid() == 0:  # only root gives files away
        os.chown(pipe, 65534, 65534)
        with pytest.raises(Denied, match="not a pipe of the rank's own user"):
            ask_dump(pid, "3")


def test_a_full_pipe_is_not_read_by_torch(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reads = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(writes := os.open(tmp_path / "pipe", os.O_WRONLY), False)
    with suppress(BlockingIOError):
        while os.write(writes, b"1" * 4096):
            continue
    with pytest.raises(Failed, match="it is full"):
        rank_servers._write(str(os.getpid()), str(tmp_path / "pipe"))
    os.close(reads)
    os.close(writes)


@pytest.mark.slow
def test_a_dump_that_leads_elsewhere_is_not_read(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dump_3").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(rank_servers, "_ANSWER_S", 0.6)
    with pytest.raises(TimedOut, match=r"wrote no flight records within 0\.6 s"):
        ask_dump(torch(waits="0"), "3")
    assert (tmp_path / "elsewhere").exists()


def test_what_a_rank_has_written_by_itself_is_named_and_not_what_lay_there_before(torch: Any, tmp_path: Path) -> None:
    (tmp_path / "dump_3").write_bytes(DUMP)
    os.utime(tmp_path / "dump_3", (1e9, 1e9))
    pid = torch()
    with pytest.raises(Missing):
        left_dump(pid, "3")
    os.utime(tmp_path / "dump_3")
    assert left_dump(pid, "3") == f"{tmp_path}/dump_3"
    if os.geteuid() == 0:  # only root gives files away
        os.chown(tmp_path / "dump_3", 65534, 65534)
        with pytest.raises(Missing):
            left_dump(pid, "3")


RANK = JobProcess(10, 1, "python", 3, Launch("torchrun", world_size=4), settings={rank_servers.PIPE: "/tmp/p"})
WAIT = {("wait", "1.0"): "", ("wait", "5.0"): ""}


def looked(asked: AskedJob, **said: str | HostError) -> looks.JobLooks:
    answers: dict[tuple[str | int, ...], str | HostError] = {**WAIT, ("left_dump", 10, 3): "/tmp/d3"}
    answers |= {("dump", 10, 3, look): said.get("dump", "") for look in (1, 2)}
    answers |= {("server", 10, "fr_trace_json", look): Missing("no server") for look in (1, 2)}
    return looks.looks.run(Replay(answers, older=True), LocalRanks((RANK,)), asked)


def test_records_through_the_pipe_are_read_in_the_child_and_only_where_they_are_asked_for() -> None:
    found = looked(AskedJob(dumps=True), dump=base64.b64encode(DUMP).decode())
    (dump,) = found.second.records.dumps
    assert (dump.rank, list(dump.column("seq")), found.second.servers) == (3, [51], ("",))
    without = looked(AskedJob())
    assert not without.second.records.dumps
    wanted = "no server; it has written flight records: `ncclprobe explain /tmp/d3`; --dumps asks for its records"
    assert without.second.servers[0].startswith(wanted)
    late = looked(AskedJob(dumps=True), dump=TimedOut("it wrote none"))
    assert late.second.servers == ("no server; it wrote none",)


def test_a_hostile_dump_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    found = looked(AskedJob(dumps=True), dump=base64.b64encode(pickle.dumps(Attack())).decode())
    assert "this may be an attack" in found.second.servers[0]
    assert not (tmp_path / "made").exists()


def of_ranks(*ranks: int, entries: Any = (ENTRY,)) -> bytes:
    return pickle.dumps({"version": "2.10", "entries": [*entries], "pg_config": {"0": {"ranks": str([*ranks])}}}, 2)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DUMP[:60] + b".", "its records were not read: it is damaged or cut"),
        (b".", "its records were not read: it is damaged or cut"),
        (of_ranks(0, 1, 2, 3, entries=({"profiling_name": 7},)), "none of its 1 entries is in torch's format"),
        (of_ranks(0, 7), "these are not records of rank 3, but of ranks 0,7"),
        (of_ranks(*range(8)), "these are not records of rank 3, but of ranks 0-7"),  # the job has four
    ],
)
def test_records_that_cannot_be_this_ranks_are_none_and_accuse_nobody(data: bytes, why: str) -> None:
    found = looked(AskedJob(dumps=True), dump=base64.b64encode(data).decode())
    assert (why in found.second.servers[0], len(found.second.records.dumps)) == (True, 0)


def test_what_is_asked_for_is_in_the_kept_look_only_if_it_was() -> None:
    from argparse import Namespace

    from ncclprobe.commands.attach import asked_of

    assert json.dumps(asked_of(Namespace(pid=None, dumps=False), False)) == '{"pid": 0, "stacks": false}'
    assert asked_of(Namespace(pid=7, dumps=True), True) == {"pid": 7, "stacks": True, "dumps": True}
