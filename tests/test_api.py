"""The Python API: five questions that answer with values, print nothing and change nothing."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from report.html import made

from ncclprobe import api
from ncclprobe.commands import main
from ncclprobe.host import own_child
from ncclprobe.model.values import replace
from ncclprobe.report import delivery
from ncclprobe.report import json as as_json
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parent.parent
HGX = ROOT / "tests" / "captures" / "hgx-h100.jsonl"
SICK = ROOT / "reports" / "four-hosts-one-bad-nic.json"
LOG = ROOT / "tests" / "data" / "nccl_tests" / "all_reduce.txt"
LEFT = ROOT / "tests" / "data" / "failures" / "crash-raises"


def test_importing_it_loads_neither_torch_nor_a_command() -> None:
    loads = "import json, sys; from ncclprobe import api; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True, timeout=60).stdout
    loaded = json.loads(out)
    assert not {"torch", "argparse", "asyncio", "subprocess"} & {*loaded}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("ncclprobe.")}
    assert rooms == {"api", "model"}


ASKED: dict[str, Callable[[], Any]] = {
    "doctor": lambda: api.doctor([HGX], backend="nccl"),
    "doctor here": lambda: api.doctor(backend="gloo", select=["host.*"]),
    "expect": lambda: api.expect("dgx-h100", nodes=2, sizes=[1 << 30]),
    "expect captured": lambda: api.expect(capture=HGX, sizes=[1 << 30]), "explain": lambda: api.explain([LEFT]),
    "load": lambda: api.load(SICK), "judge": lambda: api.judge(LOG, machine="dgx-h100"),
    "compare": lambda: api.compare(SICK, SICK), "baseline": lambda: api.baseline(LOG), "capture": lambda: api.capture(),
    "accept": lambda: api.accept(level="quick", backend="gloo"),
}  # fmt: skip


@each_row("ask", ASKED.values(), ids=ASKED)
def test_a_question_prints_nothing_changes_nothing_and_can_be_asked_twice(
    ask: Callable[[], Any], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ncclprobe.toml").write_text("is read by no question")
    before = dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]
    caplog.clear()
    with caplog.at_level("INFO", "ncclprobe"):
        first, second = ask(), ask()
    name = str(ask.__code__.co_names[1])
    (seconds,) = {*re.findall(r" in (\d+\.\d) s$", caplog.messages[-1])}
    assert caplog.messages[-1] == f"{name}: {second!r} in {seconds} s"
    assert float(seconds) < 60
    assert type(first) is type(second)
    assert first.to_dict().keys() == second.to_dict().keys()
    assert "\n" not in repr(first)
    assert len(repr(first)) < 200
    assert (dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]) == before
    assert capfd.readouterr() == ("", "")


SICK_MACHINE = ROOT / "tests" / "captures" / "sick" / "ib-down.jsonl"


SICK_LOGS = ROOT / "tests" / "data" / "failures" / "nccl-no-interface"
OPTIONS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("doctor", {}, []), ("doctor", {"expect_gpus": 9}, ["--expect-gpus", "9"]),
    ("doctor", {"select": ["ib.*", "env.*"]}, ["--select", "ib.*", "--select", "env.*"]),
    ("doctor", {"select": "env.*"}, ["--select", "env.*"]),
    ("doctor", {"ignore": ["ib.*", "env.*"]}, ["--ignore", "ib.*", "--ignore", "env.*"]),
    ("doctor", {"backend": "gloo"}, ["--backend", "gloo"]), ("doctor", {"one_job": True}, ["--one-job"]),
    ("doctor", {"config": "site.toml"}, ["--config", "site.toml"]), ("explain", {}, []),
    ("explain", {"ignore": ["log.*"]}, ["--ignore", "log.*"]),
    ("explain", {"select": ["log.rank-ended"]}, ["--select", "log.rank-ended"]),
    ("explain", {"config": "site.toml"}, ["--config", "site.toml"]),
]  # fmt: skip


@each_row(("command", "asked", "words"), OPTIONS)
@pytest.mark.slow
@pytest.mark.every_time
def test_the_doctor_and_explain_give_the_report_that_the_command_writes(
    command: str, asked: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accepted = '[[ignore]]\ncheck = "{}"\nreason = "known"\n'
    Path("site.toml").write_text(accepted.format("ib.state") + accepted.format("log.rank-ended"))
    read, ask = ([HGX, SICK_MACHINE], api.doctor) if command == "doctor" else ([LEFT, SICK_LOGS], api.explain)
    own = [] if "config" in asked else ["--no-config"]
    assert main([command, *map(str, read), *words, "-q", *own, "--json", "report.json"]) in (0, 3, 4)
    wrote, made = api.load("report.json"), ask(read, **asked)
    for name in ("checks", "topology", "areas", "causes", "suppressed", "exit_code"):
        assert getattr(made, name) == getattr(wrote, name), name


LINES: dict[str, Callable[[], Any]] = {
    "attach --timeout 60 --quiet": lambda: api.attach(),
    "attach --pid 7 --stacks --timeout 9 --quiet": lambda: api.attach(pid=7, stacks=True, timeout_s=9),
    "accept --level full --timeout 180 --quiet": lambda: api.accept(),
    "accept --level quick --backend gloo --expect-gpus 8 --timeout 1.5 --quiet": lambda: api.accept(
        level="quick", backend="gloo", expect_gpus=8, timeout_s=1.5
    ),
    "bandwidth --op all_reduce --timeout 120 --quiet": lambda: api.bandwidth(),
    "bandwidth --op all_gather,broadcast -e 64 --expect x.toml --nproc 2 --backend nccl --timeout 120": lambda: (
        api.bandwidth(
            ["all_gather", "broadcast"], largest=64, nproc=2, backend="nccl", expect="x.toml", progress=lambda _: None
        )
    ),
    "pairs --timeout 120 --quiet": lambda: api.pairs(),
    "pairs --nproc 4 --backend gloo --timeout 30 --quiet": lambda: api.pairs(nproc=4, backend="gloo", timeout_s=30),
    "copies --timeout 120 --quiet": lambda: api.copies(),
    "copies --nproc 1 --backend gloo --timeout 5 --quiet": lambda: api.copies(nproc=1, backend="gloo", timeout_s=5),
}


@each_row(("line", "ask"), LINES.items(), ids=LINES)
def test_what_measures_is_started_as_the_command_that_was_asked_for(
    line: str, ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(entry: str, *words: str, stderr: object) -> None:
        assert entry == "ncclprobe.start:program"
        started.extend(words)
        raise api.ProbeError("it is not started here")

    monkeypatch.setattr(own_child, "start_own", start)
    with pytest.raises(api.ProbeError, match="not started here"):
        ask()
    place = started.index("--json")
    assert started[place - 1] == "--no-config"
    assert " ".join([*started[: place - 1], *started[place + 2 :]]) == line


REPORT = f"import shutil, sys; shutil.copy({str(SICK)!r}, sys.argv[sys.argv.index('--json') + 1])"
ENDS: dict[str, tuple[str, type[Exception] | None, str]] = {
    "a report": (REPORT, None, ""),
    "wrong usage": ("import sys; print('ncclprobe: no such\\nncclprobe: option', file=sys.stderr); sys.exit(2)",
                    api.UsageError, "^option$"),
    "a bug": ("import sys; print('it broke', file=sys.stderr); sys.exit(1)", api.ProbeError, "^it broke$"),
    "nothing": ("import sys; sys.exit(5)", api.ProbeError, "^copies ended with exit code 5$"),
    "no end": ("import time; time.sleep(600)", api.OutOfTime, r"^copies did not end within 0\.2 s$"),
}  # fmt: skip


@each_row(("script", "error", "why"), ENDS.values(), ids=ENDS)
def test_a_command_ends_with_its_report_or_says_why_not(
    script: str, error: type[Exception] | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_entry: str, *words: str, stderr: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", script, *words], stderr=stderr, start_new_session=True)

    monkeypatch.setattr(own_child, "start_own", start)
    monkeypatch.setattr(api, "_ENDING_S", 0.1 if error is api.OutOfTime else 60.0)
    if error is None:
        assert api.copies(timeout_s=0.2) == api.load(SICK)
        return
    with pytest.raises(error, match=why):
        api.copies(timeout_s=0.2)


def test_the_numbers_of_expect_are_those_of_the_command(tmp_path: Path) -> None:
    words = ["--machine", "dgx-h100", "--nodes", "3", "--gpus-per-node", "4", "--op", "all_gather,broadcast"]
    main(["expect", *words, "-b", "1M", "-e", "1M", "--json", str(tmp_path / "table.json")])
    table = json.loads((tmp_path / "table.json").read_text())
    made = api.expect("dgx-h100", nodes=3, gpus_per_node=[4], ops=["all_gather", "broadcast"], sizes=[1 << 20])
    found = json.loads(json.dumps(made.to_dict()))
    assert len(found["lines"]) == 2
    keys = ("op", "nbytes", "expectation")
    assert [[each[key] for key in keys] for each in found["lines"]] == [
        [each[key] for key in keys] for each in table["rows"]
    ]


def test_what_is_expected_has_a_source_and_a_threshold() -> None:
    found = api.expect("dgx-h100", nodes=2, ops=["all_reduce", "all_gather"], sizes=[1 << 30, 8])
    assert (found.machine, {line.op for line in found.lines}) == ("DGX H100", {"all_reduce", "all_gather"})
    assert all(line.expectation.value > 0 and line.expectation.source for line in found.lines)
    line, *more = api.expect("dgx-h100", nodes=2, ops="all_gather", sizes=1 << 30).lines  # type: ignore[arg-type]
    assert (line.op, line.nbytes, more) == ("all_gather", 1 << 30, [])
    nothing = api.expect(capture=ROOT / "tests" / "captures" / "laptop.jsonl")
    assert (nothing.machine, nothing.lines, bool(nothing.why)) == (None, (), True)


@each_row("format", get_args(api.Format))
@pytest.mark.slow
@pytest.mark.every_time
def test_a_report_is_rendered_as_the_commands_do(format: api.Format) -> None:
    report, why = api.load(SICK), api.explain(str(LEFT))
    assert api.render(report, format) == delivery.rendered(report, format)
    assert {*get_args(api.Format)} == {"text", *delivery.FORMATS}
    assert why.causes[0].code in api.render(why, "json")
    assert "Traceback" not in api.render(why)


WRONG: dict[str, Callable[[], Any]] = {
    "no capture": lambda: api.doctor(["no such file"]),
    "a check that is none": lambda: api.doctor([HGX], select=["gpu.nonsense"]),
    "a backend that is none": lambda: api.doctor(backend="mpi"),  # type: ignore[arg-type]
    "no time": lambda: api.doctor(timeout_s=0),
    "time without an end": lambda: api.explain([LEFT], timeout_s=float("nan")),
    "no machine": lambda: api.expect("dgx-z900"),
    "two machines": lambda: api.expect("dgx-h100", capture=HGX),
    "no operation": lambda: api.expect("dgx-h100", nodes=2, ops=["all"]),
    "a number for a path": lambda: api.doctor(3),  # type: ignore[arg-type]
    "no size": lambda: api.expect("dgx-h100", nodes=2, sizes=[0]),
    "too many GPUs": lambda: api.expect("dgx-h100", nodes=2, gpus_per_node=[9]),
    "no file": lambda: api.explain([]),
    "no file there": lambda: api.explain(["no/such/file"]),
    "no report": lambda: api.load(HGX),
    "no format": lambda: api.render(api.load(SICK), "word"),  # type: ignore[arg-type]
    "a text for seconds": lambda: api.doctor(timeout_s="60"),  # type: ignore[arg-type]
    "a text for a number of nodes": lambda: api.expect("dgx-h100", nodes="4"),  # type: ignore[arg-type]
    "no node": lambda: api.expect("dgx-h100", nodes=0),
    "a fraction for a size": lambda: api.expect("dgx-h100", sizes=[1.5]),  # type: ignore[list-item]
    "a number for a pattern": lambda: api.doctor([HGX], select=[3]),  # type: ignore[list-item]
    "a number for a machine": lambda: api.expect(3),  # type: ignore[arg-type]
    "a text for a report": lambda: api.load(3),  # type: ignore[arg-type]
    "no process": lambda: api.attach(pid=999_999_999),
    "a number for progress": lambda: api.copies(progress=5),  # type: ignore[arg-type]
    "no configuration": lambda: api.doctor([HGX], config="no such file"),
    "a long list of paths": lambda: api.explain([*["x" * 9] * 9, 3]),  # type: ignore[list-item]
    "a long text for seconds": lambda: api.doctor(timeout_s="9" * 99),  # type: ignore[arg-type]
    "a long format": lambda: api.render(api.load(SICK), "w" * 99),  # type: ignore[arg-type]
    "a long backend": lambda: api.doctor(backend="w" * 99),  # type: ignore[arg-type]
    "a text, a path and a number": lambda: api.doctor([HGX, "x", 3]),  # type: ignore[list-item]
    "nothing for seconds": lambda: api.doctor(timeout_s=None),  # type: ignore[arg-type]
    "65 sizes": lambda: api.expect("dgx-h100", sizes=[8] * 65),
    "a size beyond all": lambda: api.expect("dgx-h100", sizes=[8, (1 << 62) + 1]),
    "a long operation": lambda: api.expect("dgx-h100", ops=["x" * 99]),
    "a long machine and a capture": lambda: api.expect("x" * 99, capture=HGX),
    "nothing for sizes": lambda: api.expect("dgx-h100", sizes=None),  # type: ignore[arg-type]
}


"""What each answers is in tests/data/command_values/wrong-asks.txt."""


def test_what_fails_can_be_asked_for_and_a_status_prints_as_its_word() -> None:
    report = api.doctor(str(ROOT / "tests" / "captures" / "sick" / "gpu-x8.jsonl"))
    found = [each for check in report.checks for each in check.findings if each.severity == "fail"]
    failures = report.failures()
    assert [each.message for each in failures] == [each.message for each in found]
    assert all(each.check and each.node == report.nodes[0].name and each.severity == "fail" for each in failures)
    assert failures[0].to_dict()["check"] == failures[0].check
    assert f"{api.Status.FAIL} {api.Severity.WARN!s}" == "fail warn"


def test_the_first_example_of_the_page_runs_and_a_capture_is_saved_and_judged_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (tmp_path / "node0.jsonl").write_bytes(HGX.read_bytes())
    (tmp_path / "report.json").write_bytes(SICK.read_bytes())
    (tmp_path / "logs").symlink_to(LEFT)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], found)
    assert found["why"].causes
    assert found["outlook"].lines
    assert found["report"].status is api.Status.FAIL
    taken = api.capture()
    assert repr(taken) == f"<Capture of {taken.node}: {len(taken.text)} characters>"
    taken.save("here.jsonl")
    assert [node.name for node in api.doctor("here.jsonl", backend="gloo").nodes] == [taken.node]


def test_rows_of_a_log_are_judged_compared_and_merged_by_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is given beside a file changes the answer."""
    monkeypatch.chdir(tmp_path)
    given: list[dict[str, Any]] = [{"machine": "dgx-h100"}, {"machine": "dgx-h100", "nodes": 2}, {"capture": HGX}, {}]
    judged = [api.judge(LOG, **each) for each in given]
    assert {row.status for row in judged[0].rows} <= {"pass", "warn", "fail", "unjudged", "inconclusive"}
    assert judged[0].to_dict()["exit_code"] == judged[0].exit_code
    assert [each.exit_code for each in judged] == [4, 4, 4, 0]
    assert len({str(each.to_dict()["rows"]) for each in judged}) == 3  # the capture is of the same machine
    assert api.compare(LOG, LOG).to_dict()["rows"]
    for name, slow in (("usual", 1.0), ("slower", 1.3)):
        rows = tuple(made.row("all_reduce", 1 << power, slow=slow) for power in (26, 27, 28))
        as_json.write(replace(made.sweep(), measurements=rows), f"{name}.json")
    codes = [api.compare("usual.json", "slower.json", tolerance=each).exit_code for each in (0.1, 0.5)]
    assert (codes, api.compare(LOG, LOG).exit_code) == ([4, 0], 0)
    assert repr(api.compare("usual.json", "slower.json")) == "<Comparison of 3 rows: 3 worse, exit 4>"
    with caplog.at_level("INFO", "ncclprobe"), pytest.raises(api.UsageError):
        api.load(LOG)
    assert caplog.messages[-1].startswith(f"load: UsageError: {LOG}: not ")
    unjudged = tuple(replace(row, expectation=None, status="unjudged", busbw_GBps=100.0) for row in rows)
    as_json.write(replace(made.sweep(), measurements=unjudged), "low.json")
    asked: list[dict[str, Any]] = [{}, {"machine": "dgx-h100"}, {"machine": "dgx-h100", "accept_low": True}]
    assert [len(api.baseline("low.json", **each).rows) for each in asked] == [3, 0, 3]


@pytest.mark.slow
@pytest.mark.every_time
def test_long_work_tells_how_far_it_is_and_is_ended_by_what_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    with caplog.at_level("INFO", "ncclprobe"):
        report = api.copies(nproc=1, backend="gloo", progress=told.append)
    assert caplog.messages[-1].startswith("copies: <Report of ")
    assert report.copies
    assert [line for line in told if line.startswith("copies")], told

    def enough(line: str) -> None:
        raise RuntimeError(line)

    for ask in (partial(api.doctor, HGX), partial(api.explain, LEFT)):
        told.clear()
        ask(progress=told.append)
        assert [line for line in told if line.startswith("read ")], ask
        with pytest.raises(RuntimeError):
            ask(progress=enough)
    with pytest.raises(RuntimeError):
        api.copies(nproc=1, backend="gloo", progress=enough)
    with pytest.raises(api.OutOfTime, match=r"^no time was left to judge within --timeout$"):
        api.doctor([HGX], timeout_s=1e-9)


EXAMPLES = {"gate.py": ([str(HGX)], 0, "<Report of"), "notebook.py": ([], 0, "NCCL found no usable interface")}


@each_row("name", EXAMPLES)
def test_an_example_is_short_and_runs(name: str) -> None:
    argv, code, said = EXAMPLES[name]
    path = ROOT / "docs" / "examples" / name
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 20
    command = [sys.executable, str(path), *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, said in done.stdout) == (code, True), done.stderr
