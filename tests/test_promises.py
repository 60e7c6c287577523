"""Promises between parts that the tests of each part do not see: what is asked for arrives, and the right thing is
named.
"""

import argparse
import contextlib
import json
import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import zoo
from fleet.made import day_of

from ncclprobe import api, page
from ncclprobe.commands import arguments, main
from ncclprobe.engine.collect import capture_facts
from ncclprobe.engine.diagnose import every_check
from ncclprobe.host import files
from ncclprobe.host.capture import load
from ncclprobe.model.causes import Cause
from ncclprobe.model.errors import UsageError
from ncclprobe.model.rails import RailPort
from ncclprobe.model.registry import Collector, discover
from ncclprobe.nccl.selection import gpu_rails
from tests.each_row import each_row


def test_every_address_that_a_report_prints_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    addresses = sorted({page(check.id) for check in every_check()})
    assert len(addresses) > 60
    for address in addresses:
        assert main(["explain", address]) == 0
        assert capsys.readouterr().out.rstrip().endswith(address)


def test_a_large_report_reaches_a_slow_reader_whole(tmp_path: Path) -> None:
    pipe, text, got = tmp_path / "pipe", "x" * (1 << 20), []
    os.mkfifo(pipe)

    def read() -> None:
        with pipe.open(encoding="utf-8") as stream:
            time.sleep(0.3)
            got.append(stream.read())

    reader = threading.Thread(target=read)
    reader.start()
    files.write(pipe, text)
    reader.join(20.0)
    assert [len(each) for each in got] == [len(text)]


def test_a_fleet_that_is_locked_keeps_a_job_no_longer_than_was_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.db"
    given = argparse.Namespace(fleet=path, json=None)
    arguments.keep_in_fleet(given, day_of("n1", 0), 30.0)
    assert path.exists(), capsys.readouterr().err
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        arguments.keep_in_fleet(given, day_of("n1", 1), 1.0)
    assert time.monotonic() - began < 15.0
    assert "this report was not added" in capsys.readouterr().err


@each_row(("machine", "gpus"), [("dgx-1v", [0, 2, 4, 6]), ("hgx-h200", [3, 3, 3, 0, 2, 1, 7, 4, 6, 5])])
def test_a_rail_is_measured_with_the_first_of_the_gpus_beside_its_nic(machine: str, gpus: list[int]) -> None:
    facts = capture_facts(load(zoo.CAPTURES / f"{machine}.jsonl"), discover("ncclprobe.facts", Collector))
    found = gpu_rails(facts, [RailPort(device=f"mlx5_{number}") for number in range(len(gpus))])
    assert [port and port.gpu for port in found] == gpus


def cause(folder: Path, text: str) -> Cause:
    (folder / "job.log").write_text(text)
    return api.explain([folder / "job.log"]).causes[0]


def oom(asked: str, free: str, more: str = "", gpu: str = "GPU 1") -> str:
    free = f" of which {free} is free." if free else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. "
        f"{gpu} has a total capacity of 79.11 GiB{free}{more}"
    )


LIMIT = (
    "the process may not use more of a GPU's memory, although {} GiB are free: it has its own limit "
    "(set_per_process_memory_fraction, max_split_size_mb), or its MIG instance has one"
)
FULL = "the memory of GPU 1 is full"


@each_row(
    ("line", "named"),
    [
        (oom("20.00 MiB", "", gpu="GPU 3"), "the memory of GPU 3 is full"),
        ("RuntimeError: CUDA out of memory. See GPU 3 of the dashboard", "a GPU's memory is full"),
        (oom("2.00 GiB", "2.99 GiB"), FULL), (oom("512.00 MiB", "1.49 GiB"), FULL),
        (oom("512.00 MiB", "1.51 GiB"), LIMIT.format(2)), (oom("900.00 KiB", "1020.00 MiB"), FULL),
        (oom("2.00 GiB", "40.00 GiB"), LIMIT.format(40)),
        (oom("2.00 GiB", "1.00 GiB", " Process 7 has 30.00 GiB memory in use. Process 8 has 9.00 GiB memory in use."),
         f"{FULL}, 2 processes besides this one"),
    ],
)  # fmt: skip
def test_the_gpu_whose_memory_is_full_is_the_one_that_torch_names(line: str, named: str, tmp_path: Path) -> None:
    assert cause(tmp_path, f"[rank0]: {line}\n").message == named


def test_of_a_merged_log_the_host_of_the_line_is_named_and_what_dcgm_did_not_find_is_no_fault(tmp_path: Path) -> None:
    line = "n7:77:77 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found"
    assert cause(tmp_path, json.dumps({"host": "collector", "log": line}) + "\n").nodes == ("n7",)
    for said, named in (("Detected XID 79 for GPU 3", True), ("Detected 0 XID errors for GPU 3", False)):
        (tmp_path / "job.log").write_text(f"{said}\n")
        assert ("gpu-hw-error" in [each.code for each in api.explain([tmp_path / "job.log"]).causes]) == named, said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's folder")
@each_row(("owner", "trusted"), [(0, True), (65534, False)])
def test_below_a_sticky_folder_code_is_run_only_if_root_owns_that(owner: int, trusted: bool, tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "shared" / "own"
    own.mkdir(parents=True, mode=0o755)
    shared.chmod(0o1777)
    os.chown(shared, owner, owner)
    with contextlib.nullcontext() if trusted else pytest.raises(UsageError, match="shared"):
        assert files.trusted_folder(own) == own
