"""What NCCL's Inspector wrote of a job, in the form of its README: who was late, and nodes' own numbers."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.made import DAY_S, FIRST_S
from ncclprobe.commands import main
from ncclprobe.fleet import inspector, store
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row


def line(rank: int, number: int, exec_us: float, **changes: Any) -> dict[str, Any]:
    """One line as version 4.0 writes it."""
    header = {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 8, "nnodes": 1}
    meta = {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": 1e6 * FIRST_S, "hostname": "n1", "pid": 100 + rank}  # fmt: skip
    perf = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1 << 30, "coll_exec_time_us": exec_us,
            "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 200.0, "coll_busbw_gbs": 350.0}  # fmt: skip
    for part in (header, meta, perf):
        part.update({name: value for name, value in changes.items() if name in part})
    return {"header": header, "metadata": meta, "coll_perf": perf}


def written(folder: Path, late: Mapping[int, float], collectives: int = 60, ranks: int = 8, **changes: Any) -> Path:
    """The files of a job, one a process, in which so often a rank comes 10 ms late."""
    rng = random.Random(3)
    folder.mkdir(exist_ok=True)
    rows: dict[int, list[str]] = {rank: [] for rank in range(ranks)}
    for number in range(collectives):
        last = next((rank for rank, share in late.items() if rng.random() < share), None)
        for rank in range(ranks):
            wait_us = 10_000.0 if last is not None and rank != last else 0.0
            row = line(rank, number, 3000.0 * (1 + rng.gauss(0, 0.03)) + wait_us, n_ranks=ranks, **changes)
            rows[rank].append(json.dumps(row))
    for rank, lines in rows.items():
        (folder / f"n1-pid{rank}.log").write_text("\n".join((*lines, "")))
    return folder


def test_the_rank_for_which_the_others_wait_is_named(tmp_path: Path) -> None:
    job = inspector.read(sorted(written(tmp_path / "job", {5: 0.9}).glob("*")), 60.0)
    ((found,),) = (job.communicators,)
    ((late,),) = (found.late,)
    assert (late.rank, late.host, found.compared) == (5, "n1", 60)
    assert 0.8 < late.share <= 1.0
    assert late.waited_s == pytest.approx(0.01 * 60 * late.share, rel=0.1)


@each_row(
    ("late", "changes"),
    [
        ({}, {}),
        ({1: 0.2, 5: 0.3}, {}),  # now the one, now the other
        ({5: 0.9}, {"coll": "Broadcast"}),  # its root ends before the others
        ({5: 0.9}, {"collectives": 15}),
    ],
)
def test_who_is_not_always_last_is_not_named(late: dict[int, float], changes: dict[str, Any], tmp_path: Path) -> None:
    job = inspector.read(sorted(written(tmp_path / "job", late, **changes).glob("*")), 60.0)
    assert [each.late for each in job.communicators] == [()]


def test_a_rank_whose_file_is_missing_leaves_nothing_to_compare(tmp_path: Path) -> None:
    files = sorted(written(tmp_path / "job", {5: 0.9}).glob("*"))[:-1]
    (found,) = inspector.read(files, 60.0).communicators
    assert (found.compared, found.collectives, found.late) == (0, 60, ())


def test_numbers_of_one_node_are_its_own_and_those_of_several_nobodys(tmp_path: Path) -> None:
    job = inspector.read(sorted(written(tmp_path / "job", {}).glob("*")), 60.0)
    (told,) = job.told
    ((number, reading),) = told.numbers.items()
    assert (told.node, number.called, reading.value) == ("n1", "AllReduce 1 GiB in a job", 350.0)
    assert told.time_s == FIRST_S
    assert inspector.read(sorted(written(tmp_path / "two", {}, nnodes=2).glob("*")), 60.0).told == ()


def test_the_command_tells_and_adds_a_job_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: FIRST_S + DAY_S)
    folder, path = written(tmp_path / "job", {5: 1.0}), tmp_path / "fleet.db"
    assert main(["fleet", "job", str(folder), "--fleet", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0x7f8c496ae9f661: 8 ranks on 1 node, 60 of 60 collectives compared",
        "  rank 5 (n1): the others waited for it in 100 % of them, 0.600 s in all",
        f"1 node added: {path}",
    ]
    (folder / "older").mkdir()
    (folder / "n1-pid0.log").write_text((folder / "n1-pid0.log").read_text() + "{}\n")
    assert main(["fleet", "job", str(folder), "--fleet", str(path), "--json"]) == 0
    grown = json.loads(capsys.readouterr().out)
    assert (grown["odd"], grown["added"]) == (1, False)
    assert main(["fleet", "job", str(folder), "--fleet", str(path)]) == 0
    counted = f"1 node not added: this job is there already, and counts once, in {path}"
    assert capsys.readouterr().out.splitlines()[-2:] == ["1 line not understood", counted]
    with store.opened(path, 30.0) as fleet:
        assert [each.tests for each in fleet.standings()] == [1]


def test_collectives_beyond_the_bound_are_counted_as_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclprobe.model.bounds.INSPECTOR_COLLECTIVES", 50)
    folder = written(tmp_path / "job", {5: 1.0})
    assert main(["fleet", "job", str(folder), "--fleet", str(tmp_path / "fleet.db")]) == 0
    out = capsys.readouterr().out
    assert "80 lines left out: the first 50 collectives of 4,096 communicators are compared" in out


@each_row(
    "bad",
    [
        "not JSON",
        "{}",
        json.dumps(line(9, 1, 3000.0)),
        json.dumps(line(1, 1, -1.0)),
        json.dumps(line(1, 1, 1e300)),
        json.dumps(line(1, 1, 3000.0, hostname="")),
        json.dumps(line(1, 1, 3000.0)).replace("3000.0", "NaN"),
        "\x00" * 200_000,
    ],
)
def test_what_is_none_of_the_inspectors_is_counted_and_alone_refused(bad: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "job", {5: 0.9})
    (folder / "other").write_text(bad)
    job = inspector.read(sorted(folder.glob("*")), 60.0)
    assert job.odd >= 1
    assert len(job.communicators[0].late) == 1
    with pytest.raises(UsageError, match="no line is of NCCL's Inspector"):
        inspector.read([folder / "other"], 60.0)


def test_a_name_of_a_host_forges_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "job", {5: 1.0}, hostname="n1\n  rank 0 (n0): waited\x1b[31m", nnodes=2)
    assert main(["fleet", "job", str(folder), "--fleet", str(tmp_path / "fleet.db")]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out


@each_row(
    ("argv", "why"),
    [
        (["job"], "fleet job: name the files, or folders, that NCCL's Inspector wrote"),
        (["job", "missing.log"], "missing.log: cannot be read"),
        (["job", "."], ".: 0 files"),
        (["job", ".", "--exit-code"], "judges nothing"),
    ],
)
def test_wrong_usage_is_one_line(
    argv: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", *argv]) == 2
    assert why in capsys.readouterr().err
