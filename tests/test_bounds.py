"""What outsiders choose the size of: refused in one line, and before it costs anything."""

import json
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from report.samples import HEALTHY

from ncclprobe import signals
from ncclprobe.checks.launch.meeting import rank_silent
from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import doctor, main, nodes
from ncclprobe.engine import doctor as doctors
from ncclprobe.facts.launcher import detect
from ncclprobe.facts.rank import RankProcess
from ncclprobe.facts.reach import RollCall
from ncclprobe.host import elf
from ncclprobe.host.capture import parse
from ncclprobe.host.deadlines import until
from ncclprobe.host.run_log import RunLog
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.snapshot import Every, Ranks, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.session.ranks.identity import identify
from tests.each_row import each_row

PACKAGE = Path(bounds.__file__).parent.parent
HGX = Path(__file__).with_name("captures") / "hgx-h100.jsonl"


def test_every_bound_is_held_somewhere_and_says_of_what_it_is() -> None:
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    names = [name for name in vars(bounds) if name.isupper()]
    assert [name for name in names if f"bounds.{name}" not in code] == []


def ranks(number: int) -> str:
    rows = [json.dumps({"ask": ["env"], "said": "{}", "rank": rank}) for rank in range(number)]
    return "\n".join([json.dumps({"capture": 1, "node": "n0"}), *rows])


def test_a_capture_of_more_ranks_than_any_node_runs_is_refused() -> None:
    assert len(parse(ranks(bounds.CAPTURE_RANKS), "a").ranks) == bounds.CAPTURE_RANKS
    with pytest.raises(UsageError, match="rows of more than 1024 ranks"):
        parse(ranks(bounds.CAPTURE_RANKS + 1), "a")


HUGE: list[dict[str, str]] = [
    {"RANK": "0", "WORLD_SIZE": "20000000", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "20000000"},
    {"RANK": "0", "WORLD_SIZE": "999999999", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "99999999", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
     "OMPI_COMM_WORLD_LOCAL_SIZE": "99999999"},
    {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
     "SLURM_NTASKS": "999999999", "SLURM_NNODES": "999999999", "SLURM_STEP_TASKS_PER_NODE": "1(x999999999)",
     "SLURM_STEP_NODELIST": "n[0-999999998]"},
]  # fmt: skip


@each_row("variables", HUGE, ids=lambda v: next(iter(v)))
def test_a_job_of_more_ranks_than_any_is_one_problem_and_no_place_is_kept_for_them(variables: dict[str, str]) -> None:
    launch = detect({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", **variables})
    assert any("more than any job has" in problem.message for problem in launch.problems)
    with pytest.raises(UsageError):
        identify(launch, {})
    options = doctor._parser().parse_args([])
    assert not nodes.has_peers(launch, options)


def test_a_large_job_is_none_too_many() -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "131072", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}
    assert not detect({**variables, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}).problems


def test_the_ranks_of_a_node_that_were_not_heard_are_counted_without_a_place_for_each() -> None:
    launch = replace(detect({}), local_world_size=20_000_000)
    here = RankProcess(0, 1, None, None, (), {}, 1)
    (found,) = rank_silent.run(Every({"n0": launch}), Ranks({"n0": {0: here}}), Every({"n0": RollCall(1)}))
    assert "of 20000000 ranks" in found.message


ODD = [1e-320, 0.0, 1e-300, 1e300]


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that reads rows refuses the file in one line, finds nothing in it to use, or judges it."""
    other = path.with_name("other.json")
    other.write_text(as_json.render(replace(HEALTHY, measurements=(ROW,))))
    commands = (
        ["compare", str(path), str(path)],
        ["compare", str(other), str(path)],
        ["baseline", str(path), "-o", "-"],
        ["expect", "--machine", "dgx-h100", "--judge", str(path)],
    )
    for command in commands:
        code, said = main(command), capsys.readouterr()
        assert code in ((0, 2, 3, 4) if command[0] == "expect" else (2, 3)), command
        assert code != 2 or len(said.err.splitlines()) == 1


@each_row("time_us", ODD)
def test_a_report_whose_row_took_no_time_that_can_be_measured_divides_nothing_by_zero(
    time_us: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = replace(ROW, time_us=replace(ROW.time_us, mean=time_us, median=time_us))
    path = tmp_path / "odd.json"
    path.write_text(as_json.render(replace(HEALTHY, measurements=(row,))))
    refused(path, capsys)
    assert main(["report", str(path)]) == 2


@each_row("busbw", [0.0, 1e-320, 1e30])
def test_a_report_whose_row_has_no_rate_divides_nothing_by_zero(
    busbw: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(as_json.render(replace(HEALTHY, measurements=(replace(ROW, busbw_GBps=busbw, algbw_GBps=busbw),))))
    refused(path, capsys)


@each_row("number", ["1e-320", "0", "inf", "nan", "1e999", "-1"])
@each_row("form", ["txt", "json"])
def test_a_row_of_nccl_tests_that_took_no_time_divides_nothing_by_zero(
    form: str, number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"odd.{form}"
    written = (Path(__file__).parent / "data" / "nccl_tests" / f"all_reduce.{form}").read_text(encoding="utf-8")
    if form == "txt":
        line = re.compile(r"(?m)^(\s*\d+\s+\d+\s+float.*)$")
        path.write_text(line.sub(lambda row: re.sub(r"\d+\.\d+", number, row[1]), written))
    else:
        document: Any = json.loads(written)
        for result in document["results"]:
            for place in ("in_place", "out_of_place"):
                (result.get(place) or {}).update(time=number, alg_bw=number, bus_bw=number)
        path.write_text(json.dumps(document))
    assert number in path.read_text()
    refused(path, capsys)


def test_work_that_outlives_the_deadline_is_left_behind() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        until(time.monotonic() - 1, lambda: never.wait(60))
    never.set()


def test_work_hands_on_what_it_returns_and_raises() -> None:
    assert until(time.monotonic() + 60, lambda: 7) == until(float("inf"), lambda: 7) == 7
    with pytest.raises(UsageError, match="no such"):
        until(time.monotonic() + 60, lambda: parse("", "no such"))


def test_captures_that_take_longer_than_the_timeout_are_not_judged_and_that_is_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", str(HGX), "--timeout", "1e-9"]) == 3
    assert capsys.readouterr().err == "ncclprobe: no time was left to judge within --timeout; nothing was judged\n"


def test_a_run_begins_with_its_process_and_elsewhere_with_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_BEGAN", [])
    before = time.monotonic()
    assert before <= signals.began() <= signals.began()
    signals.begin()
    began = signals.began()
    assert before <= began == signals.began() <= time.monotonic()


def test_a_program_begins_its_run_before_it_imports_the_command() -> None:
    told = (
        "from ncclprobe import signals, start; import sys, time; signals.run = lambda *_: print("
        "signals.began() <= time.monotonic() and 'ncclprobe.engine.diagnose' not in sys.modules); start.program()"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


@each_row("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_run_log_with_a_number_that_is_none_is_refused_with_its_line(number: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    sample = '{"sample": {"rung": NUMBER}}'.replace("NUMBER", number)
    path.write_text(f'{{"capture": 1, "run": 1}}\n{{"sample": {{"note": "x"}}}}\n{sample}\n')
    with pytest.raises(UsageError, match=r"run\.jsonl:3: sample 'rung' contains a number"):
        RunLog.read(path)


def test_the_loaders_cache_is_read_with_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ld.so.cache"
    path.write_bytes(b"glibc-ld.so.cache1.1" + bytes(28))
    tracemalloc.start()
    try:
        assert elf.cached("lib", path=str(path)) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_process_that_may_take_no_memory_says_so_and_gives_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(doctor, "main", full)
    assert main(["doctor"]) == 3
    assert capsys.readouterr().err.startswith("ncclprobe: no memory is left to this process")


@each_row("option", ["--json", "--junit", "--markdown", "--prometheus"])
def test_half_a_surrogate_pair_in_a_capture_reaches_no_file(option: str, tmp_path: Path) -> None:
    lines = HGX.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        if row.get("ask") == ["env"]:
            row["said"] = json.dumps({**json.loads(row["said"]), "NCCL_IB_HCA": "mlx\ud800\x00", "NCCL_\udc80X": "a"})
    path, out = tmp_path / "c.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["doctor", str(path), "-q", option, str(out)]) == 4
    assert out.read_bytes().decode()


@each_row(("timeout_s", "look_s"), [(120.0, 108.0), (20.0, 18.0), (5.0, 4.0), (1.0, 0.5), (0.1, 0.05)])
def test_a_part_of_the_time_is_left_for_judging_what_was_seen(timeout_s: float, look_s: float) -> None:
    assert doctors.look_s(timeout_s) == pytest.approx(look_s)


def test_a_machine_that_does_not_answer_in_time_is_judged_by_what_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "observed", lambda *_: (Snapshot("n0", {}), {}))
    assert main(["doctor", "--local", "--timeout", "30", "-q"]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN")
