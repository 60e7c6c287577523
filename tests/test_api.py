"""The Python API: five questions that answer with values, print nothing and change nothing."""

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from ncclprobe import api
from ncclprobe.host import own_child
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
    "expect captured": lambda: api.expect(capture=HGX, sizes=[1 << 30]),
    "explain": lambda: api.explain([LEFT]),
    "load": lambda: api.load(SICK),
    "judge": lambda: api.judge(LOG, machine="dgx-h100"),
    "compare": lambda: api.compare(SICK, SICK),
    "baseline": lambda: api.baseline(LOG),
    "capture": lambda: api.capture(),
    "accept": lambda: api.accept(level="quick", backend="gloo"),
}


@each_row("ask", ASKED.values(), ids=ASKED)
def test_a_question_prints_nothing_changes_nothing_and_can_be_asked_twice(
    ask: Callable[[], Any], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ncclprobe.toml").write_text("is read by no question")
    before = dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]
    first, second = ask(), ask()
    assert type(first) is type(second)
    assert first.to_dict().keys() == second.to_dict().keys()
    assert "\n" not in repr(first)
    assert len(repr(first)) < 200
    assert (dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]) == before
    assert capfd.readouterr() == ("", "")


SICK_MACHINE = ROOT / "tests" / "captures" / "sick" / "ib-down.jsonl"
OPTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"expect_gpus": 9}, ["--expect-gpus", "9"]),
    ({"select": ["ib.*", "env.*"]}, ["--select", "ib.*", "--select", "env.*"]),
    ({"ignore": ["ib.*", "env.*"]}, ["--ignore", "ib.*", "--ignore", "env.*"]),
    ({"backend": "gloo"}, ["--backend", "gloo"]),
    ({"one_job": True}, ["--one-job"]),
]


@each_row(("asked", "words"), OPTIONS)
def test_the_doctor_gives_the_report_that_the_command_writes(
    asked: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    from ncclprobe.commands import main

    path, captures = tmp_path / "report.json", [HGX, SICK_MACHINE]
    assert main(["doctor", *map(str, captures), *words, "-q", "--no-config", "--json", str(path)]) in (0, 3, 4)
    wrote, made = api.load(path), api.doctor(captures, **asked)
    assert (made.checks, made.topology, made.areas, made.exit_code) == (
        wrote.checks,
        wrote.topology,
        wrote.areas,
        wrote.exit_code,
    )


@each_row(("asked", "words"), [OPTIONS[0], ({"ignore": ["log.*"]}, ["--ignore", "log.*"]),
                               ({"select": ["log.rank-ended"]}, ["--select", "log.rank-ended"])])  # fmt: skip
def test_explain_gives_the_causes_that_the_command_writes(
    asked: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    from ncclprobe.commands import main

    path = tmp_path / "report.json"
    main(["explain", str(LEFT), *words, "-q", "--no-config", "--json", str(path)])
    wrote, made = api.load(path), api.explain(LEFT, **asked)
    assert (made.causes, made.checks, made.exit_code) == (wrote.causes, wrote.checks, wrote.exit_code)


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


def test_the_numbers_of_expect_are_those_of_the_command(tmp_path: Path) -> None:
    from ncclprobe.commands import main

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


def test_why_a_job_failed_is_a_report_with_causes() -> None:
    report = api.explain([LEFT])
    assert report.causes
    assert report.causes[0].code in api.render(report, "json")
    assert "Traceback" not in api.render(report)


def test_what_is_expected_has_a_source_and_a_threshold() -> None:
    found = api.expect("dgx-h100", nodes=2, ops=["all_reduce", "all_gather"], sizes=[1 << 30, 8])
    assert (found.machine, {line.op for line in found.lines}) == ("DGX H100", {"all_reduce", "all_gather"})
    assert all(line.expectation.value > 0 and line.expectation.source for line in found.lines)
    nothing = api.expect(capture=ROOT / "tests" / "captures" / "laptop.jsonl")
    assert (nothing.machine, nothing.lines) == (None, ())
    assert nothing.why


def test_the_formats_of_the_api_are_those_of_the_commands() -> None:
    assert {*get_args(api.Format)} == {"text", *delivery.FORMATS}


@pytest.mark.parametrize("format", get_args(api.Format))
def test_a_report_is_rendered_as_the_commands_do(format: api.Format) -> None:
    for module in {"html": ["jinja2"], "junit": ["junitparser"], "prometheus": ["prometheus_client"]}.get(format, []):
        pytest.importorskip(module)
    report = api.load(SICK)
    assert api.render(report, format) == delivery.rendered(report, format)
    if format == "json":
        assert as_json.parse(api.render(report, format), "again") == report


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
    "no configuration": lambda: api.doctor([HGX], config="no such file"),
}


@each_row("ask", WRONG.values(), ids=WRONG)
def test_what_cannot_be_asked_is_a_usage_error_in_one_line(ask: Callable[[], Any]) -> None:
    with pytest.raises(api.UsageError) as raised:
        ask()
    assert "\n" not in str(raised.value)


def test_one_path_as_a_text_is_one_path() -> None:
    capture = ROOT / "tests" / "captures" / "hgx-h100.jsonl"
    one, several = (api.doctor(given, config=None) for given in (str(capture), [capture]))
    assert [node.name for node in one.nodes] == [node.name for node in several.nodes]
    log = ROOT / "tests" / "data" / "failures" / "nccl-no-interface"
    assert api.explain(str(log)).causes


def test_one_pattern_operation_or_size_is_one() -> None:
    assert {verdict.id.partition(".")[0] for verdict in api.doctor(HGX, select="env.*").checks} == {"env"}
    line, *more = api.expect("dgx-h100", nodes=2, ops="all_gather", sizes=1 << 30).lines  # type: ignore[arg-type]
    assert (line.op, line.nbytes, more) == ("all_gather", 1 << 30, [])


def test_what_fails_can_be_asked_for_and_a_status_prints_as_its_word() -> None:
    sick = ROOT / "tests" / "captures" / "sick" / "gpu-x8.jsonl"
    report = api.doctor(sick)
    found = [each for check in report.checks for each in check.findings if each.severity == "fail"]
    failures = report.failures()
    assert [each.message for each in failures] == [each.message for each in found]
    assert all(each.check and each.node == report.nodes[0].name and each.severity == "fail" for each in failures)
    assert failures[0].to_dict()["check"] == failures[0].check
    assert f"{api.Status.FAIL} {api.Severity.WARN!s}" == "fail warn"


def test_a_deadline_that_is_over_is_said() -> None:
    with pytest.raises(api.OutOfTime, match="no time was left"):
        api.doctor([HGX], timeout_s=1e-9)


def test_every_function_has_types_and_says_what_it_raises() -> None:
    asked = {name for name in api.__all__ if name.islower()}
    assert asked > {"accept", "attach", "baseline", "capture", "compare", "copies", "judge", "pairs"}
    for name in asked:
        function = getattr(api, name)
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())
        assert "UsageError" in inspect.getdoc(function).partition("Raises ")[2]
    for name in asked - {"baseline", "compare", "load", "render"}:
        assert "timeout_s" in inspect.signature(getattr(api, name)).parameters


def test_the_first_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_capture_is_saved_and_judged_anywhere(tmp_path: Path) -> None:
    taken = api.capture()
    taken.save(tmp_path / "here.jsonl")
    assert [node.name for node in api.doctor(tmp_path / "here.jsonl", backend="gloo").nodes] == [taken.node]


def test_rows_of_a_log_are_judged_and_compared_as_the_commands_do() -> None:
    judgement = api.judge(LOG, machine="dgx-h100")
    assert {row.status for row in judgement.rows} <= {"pass", "warn", "fail", "unjudged", "inconclusive"}
    assert judgement.to_dict()["exit_code"] == judgement.exit_code
    assert api.compare(LOG, LOG).exit_code == 0
    assert api.compare(LOG, LOG).to_dict()["rows"]


def test_a_command_that_ends_without_a_report_says_why() -> None:
    with pytest.raises(api.UsageError, match="no such process"):
        api.attach(pid=999_999_999)


def test_long_work_tells_how_far_it_is_and_is_ended_by_what_that_raises() -> None:
    told: list[str] = []
    report = api.copies(nproc=1, backend="gloo", progress=told.append)
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
    with pytest.raises(api.UsageError, match="progress: give a function, not 5"):
        api.copies(progress=5)  # type: ignore[arg-type]


def test_what_is_asked_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "ncclprobe"):
        api.load(SICK)
    assert caplog.messages[-1].startswith("load: <Report of ")


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
