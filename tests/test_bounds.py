"""What outsiders choose the size of: taken up to its bound, and refused beyond it in one line, before it costs much."""

import json
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report.samples import HEALTHY

from ncclprobe import signals
from ncclprobe.checks.launch.meeting import rank_silent
from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands import doctor, main, nodes
from ncclprobe.engine import doctor as doctors
from ncclprobe.engine import site
from ncclprobe.expect.strict import document
from ncclprobe.facts import driver
from ncclprobe.facts.cpu import cpu_list
from ncclprobe.facts.launcher import detect
from ncclprobe.facts.rank import RankProcess
from ncclprobe.facts.reach import RollCall
from ncclprobe.host import elf
from ncclprobe.host.capture import load, parse
from ncclprobe.host.deadlines import until
from ncclprobe.host.run_log import RunLog
from ncclprobe.model import bounds, training
from ncclprobe.model.errors import NcclprobeError, UsageError
from ncclprobe.model.hostlist import expand
from ncclprobe.model.snapshot import Every, Ranks, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.nccl_tests.reader import parse_text
from ncclprobe.report import json as as_json
from ncclprobe.session.ranks.identity import identify
from tests.each_row import each_row

PACKAGE = Path(bounds.__file__).parent.parent
HGX = Path(__file__).with_name("captures") / "hgx-h100.jsonl"
TABLE = (Path(__file__).parent / "data" / "nccl_tests" / "all_reduce.txt").read_text(encoding="utf-8")
JOB = {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_every_bound_is_held_somewhere() -> None:
    """Their values are kept in tests/data/command_values/bounds.txt."""
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    names = [name for name in vars(bounds) if name.isupper()]
    assert [name for name in names if f"bounds.{name}" not in code] == []


def ranks(number: int) -> str:
    rows = [json.dumps({"ask": ["env"], "said": "{}", "rank": rank}) for rank in range(number)]
    return "\n".join([json.dumps({"capture": 1, "node": "n0"}), *rows])


def chain(folder: Path, length: int) -> None:
    for number in range(length + 1):
        rows: list[dict[str, Any]] = [{"capture": 1, "node": "n"}]
        rows += [{"like": f"{number + 1}.jsonl"}] if number < length else []
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    load(folder / "0.jsonl")


def likes(folder: Path, number: int) -> None:
    (folder / "other.jsonl").write_text('{"capture": 1, "node": "n"}\n')
    (folder / "0.jsonl").write_text('{"capture": 1, "node": "n"}\n' + '{"like": "other.jsonl"}\n' * number)
    load(folder / "0.jsonl")


def report_with(**changes: Any) -> None:
    as_json.parse(as_json.render(replace(HEALTHY, measurements=(replace(ROW, **changes),))), "r.json")


def site_files(folder: Path, number: int) -> None:
    for each in range(number):
        (folder / f"c{each}.py").touch()
    site._folder_checks(str(folder))


def world(**counts: int) -> None:
    given = {name: str(count) for name, count in counts.items()}
    if problems := detect({**JOB, **given}).problems:
        raise UsageError(problems[0].message)


def rows_of_nccl_tests(number: int) -> None:
    lines = TABLE.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if re.match(r"\s*\d+\s+\d+\s+float", line))
    parse_text("".join([*lines[:at], *[lines[at]] * number]), "log")


def line_of_nccl_tests(length: int) -> None:
    row = re.compile(r"(?m)^(\s*\d+\s+\d+\s+float.*)$")
    if not parse_text(row.sub(lambda match: match[1].strip().rjust(length), TABLE), "log")[0].rows:
        raise UsageError("no row was read")


Refusing = Callable[[Path, int], object]
LIMITS: dict[str, tuple[int, Refusing]] = {
    # what the bound is for the test, and what must take so many and refuse one more
    "CAPTURE_RANKS": (bounds.CAPTURE_RANKS, lambda folder, n: parse(ranks(n), "a")),
    "LIKES": (3, chain),
    "LIKES, side by side": (3, likes),
    "REPORT_DIGITS": (10, lambda folder, n: report_with(nbytes=int("1" * n))),
    "SERIES_REPORTS": (2, lambda folder, n: report(folder, n)),
    "TOML_CHARACTERS": (50, lambda folder, n: document("# x\n".ljust(n), "t.toml")),
    "TOML_LINE": (50, lambda folder, n: document("#".ljust(n, "x") + "\n# y\n", "t.toml")),
    "LISTED_NUMBERS": (10, lambda folder, n: cpu_list(f"0-3,{4}-{n - 1}")),
    "IMEX_NODES": (5, lambda folder, n: driver.nodes("10.0.0.1  # a node\n\n" * n)),
    "SITE_FILES": (3, site_files),
    "HOST_NAMES": (20, lambda folder, n: expand(f"a,n[1-{n - 1}]")),
    "HOST_NAMES, two lists": (20, lambda folder, n: expand(f"n[1-10],m[1-{n - 10}]")),
    "JOB_RANKS": (bounds.JOB_RANKS, lambda folder, n: world(WORLD_SIZE=n, NNODES=64)),
    "NODE_RANKS": (bounds.NODE_RANKS, lambda folder, n: world(WORLD_SIZE=n * 2, LOCAL_WORLD_SIZE=n)),
    "JOB_RANKS of a grid": (16, lambda folder, n: training.parse(f"tp={n}")),
    "NCCL_TESTS_ROWS": (3, lambda folder, n: rows_of_nccl_tests(n)),
    "NCCL_TESTS_LINE": (200, lambda folder, n: line_of_nccl_tests(n)),
    "MOST_GBPS": (1000, lambda folder, n: report_with(busbw_GBps=float(n), algbw_GBps=1.0)),
    "BYTES": (1 << 20, lambda folder, n: report_with(nbytes=n)),
}


def report(folder: Path, number: int) -> None:
    file = folder / "r.json"
    file.write_text(as_json.render(HEALTHY))
    if main(["report", *[str(file)] * number]) == 2:
        raise UsageError("refused")


@each_row("name", LIMITS)
def test_what_is_as_large_as_its_bound_is_taken_and_what_is_larger_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, work = LIMITS[name]
    known = name.partition(",")[0].partition(" ")[0]
    if bound != getattr(bounds, known):
        monkeypatch.setattr(bounds, known, bound)
    fits, larger = tmp_path / "fits", tmp_path / "larger"
    fits.mkdir()
    larger.mkdir()
    work(fits, bound)
    with pytest.raises((NcclprobeError, ValueError)) as caught:
        work(larger, bound + 1)
    assert "\n" not in str(caught.value)


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
    assert not nodes.has_peers(launch, doctor._parser().parse_args([]))
    many = replace(detect({}), local_world_size=20_000_000)
    here = RankProcess(0, 1, None, None, (), {}, 1)
    (found,) = rank_silent.run(Every({"n0": many}), Ranks({"n0": {0: here}}), Every({"n0": RollCall(1)}))
    assert "of 20000000 ranks" in found.message


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that reads rows refuses the file in one line, finds nothing in it to use, or judges it."""
    other = path.with_name("other.json")
    other.write_text(as_json.render(replace(HEALTHY, measurements=(ROW,))))
    for command in (
        ["compare", str(path), str(path)],
        ["compare", str(other), str(path)],
        ["baseline", str(path), "-o", "-"],
        ["expect", "--machine", "dgx-h100", "--judge", str(path)],
    ):
        code, said = main(command), capsys.readouterr()
        assert code in ((0, 2, 3, 4) if command[0] == "expect" else (2, 3)), command
        assert code != 2 or len(said.err.splitlines()) == 1


@each_row(
    "changes",
    [
        *({"time_us": replace(ROW.time_us, mean=us, median=us)} for us in (1e-320, 0.0, 1e-300, 1e300)),
        *({"busbw_GBps": rate, "algbw_GBps": rate} for rate in (0.0, 1e-320, 1e30)),
    ],
)
def test_a_report_whose_row_took_no_time_or_has_no_rate_divides_nothing_by_zero(
    changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(as_json.render(replace(HEALTHY, measurements=(replace(ROW, **changes),))))
    refused(path, capsys)
    assert "time_us" not in changes or main(["report", str(path)]) == 2


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


def test_work_hands_on_what_it_returns_and_raises_and_is_left_behind_at_the_deadline() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        until(time.monotonic() - 1, lambda: never.wait(60))
    never.set()
    assert until(time.monotonic() + 60, lambda: 7) == until(float("inf"), lambda: 7) == 7
    with pytest.raises(UsageError, match="no such"):
        until(time.monotonic() + 60, lambda: parse("", "no such"))


def test_captures_that_take_longer_than_the_timeout_are_not_judged_and_that_is_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", str(HGX), "--timeout", "1e-9"]) == 3
    assert capsys.readouterr().err == "ncclprobe: no time was left to judge within --timeout; nothing was judged\n"


def test_a_run_begins_with_its_process_and_before_it_imports_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_BEGAN", [])
    before = time.monotonic()
    assert before <= signals.began() <= signals.began()
    signals.begin()
    began = signals.began()
    assert before <= began == signals.began() <= time.monotonic()
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


def test_a_process_that_may_take_no_memory_or_gets_no_answer_says_so_and_gives_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "observed", lambda *_: (Snapshot("n0", {}), {}))
    assert main(["doctor", "--local", "--timeout", "30", "-q"]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN")

    def full(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(doctor, "main", full)
    assert main(["doctor"]) == 3
    assert capsys.readouterr().err.startswith("ncclprobe: no memory is left to this process")


@each_row("option", ["--json", "--junit", "--markdown", "--prometheus"])
def test_half_a_surrogate_pair_in_a_capture_reaches_no_file(option: str, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in HGX.read_text().splitlines()]
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
