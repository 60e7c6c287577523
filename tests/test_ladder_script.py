"""``accept --ladder -- CMD``: the user's own script on one rank, a node, all; how it ends, and that nothing stays."""

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launcher

from ncclprobe.checks.run.ranks import NO_SCRIPT, TWO, ladder
from ncclprobe.commands.accept import parse
from ncclprobe.facts.run.samples import Asked, Expected, ScriptRungs
from ncclprobe.model.errors import Unlearned, UsageError
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.report import LaunchRow, Report, Tool
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.traffic import ScriptRung
from ncclprobe.model.training import scaled
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report import markdown, text
from ncclprobe.report.html import tables
from ncclprobe.session.measure.script import metric_of, of_rank

need_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
ONE = ScriptRung(rung="rank", ranks=1, nodes=1, seconds=60.0)
NODE = replace(ONE, rung="node", ranks=8, seconds=75.0)
SCRIPT = """\
import json, os, sys, time
import beside_the_script
own = dict(os.environ)
rank, world = int(own["RANK"]), int(own["WORLD_SIZE"])
print("own", json.dumps(own), flush=True)
if "fail" in sys.argv and world > 1 and rank == 1:
    sys.exit("no room for two")
if world > 1 and {"fail", "hang"} & {*sys.argv}:
    time.sleep(600)
print(f"step 1 rate: 3.0\\nstep 2 rate: {1000 * world ** 0.5:,.1f} samples/s")
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Launcher]:
    found = Launcher(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside_the_script.py").touch()
    yield found
    found.clear()


def command(lab: Launcher, *options: str, script: tuple[str, ...] = ()) -> list[str]:
    own = ["-m", "ncclprobe", "accept", "--backend", "gloo", "--nproc", "2", "--json", str(lab.report_path), "--ladder"]
    return [*own, *options, "--", sys.executable, str(lab.folder / "train.py"), *script]


@pytest.mark.slow
@need_torch
def test_a_script_is_run_on_one_rank_and_on_two_with_torchruns_variables(lab: Launcher) -> None:
    keep = lab.folder / "keep"
    argv = command(lab, "--ladder-metric", "rate", "--keep", str(keep))
    run = lab.start(argv, {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), "here"])})
    assert run.wait(120.0) == 0, run.err
    report = as_json.read(str(lab.report_path))
    rows = [(row.rung, row.ranks, row.nodes, row.ended, row.metric, row.by) for row in report.script]
    assert rows == [("rank", 1, 1, "well", 1000.0, "metric"), ("node", 2, 1, "well", 1414.2, "metric")]
    assert report.script[1].speedup == pytest.approx(1.4142)
    assert report.script[1].efficiency == pytest.approx(0.7071)
    assert "; script on" not in run.out.splitlines()[0]
    assert "script on 2 ranks 1.41 x (71 %)" in run.out.splitlines()[0]
    assert run.out.splitlines()[0] == run.out.splitlines()[-1]
    logs = {path.name: path.read_text() for path in keep.glob("ladder-*.log")}
    assert sorted(logs) == ["ladder-node-rank0.log", "ladder-node-rank1.log", "ladder-rank-rank0.log"]
    assert {path.stat().st_mode & 0o777 for path in keep.glob("ladder-*.log")} == {0o600}
    own = json.loads(logs["ladder-node-rank1.log"].partition("own ")[2].partition("\n")[0])
    assert (own["RANK"], own["WORLD_SIZE"], own["LOCAL_RANK"], own["LOCAL_WORLD_SIZE"]) == ("1", "2", "1", "2")
    assert not [name for name in own if name.startswith(("TORCHELASTIC", "NCCLPROBE", "TORCH_NCCL_ASYNC"))]
    assert own["PYTHONPATH"].endswith(":here")  # it is the user's own command, which is protected from nothing
    assert "PYTHONSAFEPATH" not in own
    assert lab.left() == []


@pytest.mark.slow
@need_torch
def test_a_script_that_fails_on_two_ranks_is_named_and_ends_the_others(lab: Launcher) -> None:
    run = lab.start(command(lab, "--timeout", "100", script=("fail",)))
    assert run.wait(90.0) == 4, run.err  # long before the time of the rung is over
    (found,) = [f for v in as_json.read(str(lab.report_path)).checks for f in v.findings if v.id == "run.ladder"]
    assert found.subject.startswith("rank 1 on ")
    assert found.message.endswith(" on 2 ranks of 1 node: no room for two")
    assert "ended with exit code 1 after" in found.message
    assert "ladder-node-rank1.log" in found.remedy
    assert lab.left() == []


@pytest.mark.slow
@need_torch
def test_a_script_that_does_not_end_is_not_known_to_fail(lab: Launcher) -> None:
    run = lab.start(command(lab, "--timeout", "40", script=("hang",)))
    assert run.wait(60.0) == 3, run.err
    report = as_json.read(str(lab.report_path))
    assert [row.ended for row in report.script] == ["well", "late"]
    assert "the script had not ended after" in run.out
    assert lab.left() == []


@pytest.mark.slow
@need_torch
def test_a_signal_ends_the_script_too(lab: Launcher) -> None:
    run = lab.start(command(lab, "--keep", str(lab.folder / "keep"), script=("hang",)))
    began = lab.folder / "keep" / "ladder-node-rank1.log"
    lab.until(lambda: began.exists() and b"own" in began.read_bytes(), "the second rung did not begin")
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait(60.0) == 3, run.err
    assert "INTERRUPTED: ended by SIGTERM" in run.out
    lab.until(lambda: lab.left() == [], "a process stayed")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--ladder", "--"], "the script is given so"),
        (["--", "python3", "x.py"], "the script is given so"),
        (["--ladder", "--ladder-metric", "loss"], "the script is given so"),
        (["--ladder", "--ladder-per-rank", "--", "python3"], "give that too"),
        (["--ladder", "--", "torchrun", "train.py"], "starts ranks itself"),
        (["--ladder", "--", "/usr/bin/srun", "train.py"], "starts ranks itself"),
        (["--ladder", "--", "no-such-program-of-ours"], "there is no such program"),
        (["--ladder", "--level", "long", "--", "python3"], "measures that alone"),
        (["--ladder", "--require-judged", "--", "python3"], "shown and not judged"),
        (["--ladder", "--expect-gpus", "8", "--backend", "gloo", "--", "python3"], "leave one out"),
    ],
)
def test_what_cannot_be_meant_is_refused(argv: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(argv)


def test_options_of_the_script_are_its_own_and_its_time_may_be_any() -> None:
    asked = parse(["--ladder", "--timeout", "7000", "--", "python3", "t.py", "--ladder", "--json", "--", "x"])
    assert asked.what == ("script",)
    assert asked.script[1:] == ("t.py", "--ladder", "--json", "--", "x")
    assert asked.script[0].endswith("/python3")
    assert (asked.timeout_s, asked.phase_timeout_s) == (7000.0, 7000.0)
    assert not asked.output.files
    assert parse(["--ladder", "--", "python3"]).timeout_s == 1800.0


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("rate 5\nrate: 7 a\nother 9", 7.0),
        ("rate = 1,234.5 tok/s", 1234.5),
        ("rate\t2.5e3", 2500.0),
        ("rate 5 rate 6", 6.0),
        ("rate 5\nrate soon", 5.0),
        ("rate: -3", None),
        ("rate: 0", None),
        ("rate: 1e999", None),
        ("ratio 5", None),
        ("8607 rate", 8607.0),
        ("step 7: 1,024.5 rate, loss 2", 1024.5),
        ("step 7, rate soon", None),
        ("rate 12.5k", 12500.0),
        ("v1.2rate", None),
        ("", None),
    ],
)
def test_the_last_number_behind_the_text_counts(output: str, found: float | None) -> None:
    assert metric_of(output.encode().splitlines(keepends=True), "rate") == found


def test_what_a_launcher_set_is_taken_away_and_the_rungs_ranks_are_told() -> None:
    hosts = ("a", "a", "b", "b")
    outer = {"SLURM_PROCID": "3", "SLURM_JOB_ID": "7", "OMPI_COMM_WORLD_SIZE": "4", "WORLD_SIZE": "4", "HOME": "/h"}
    whole = of_rank(outer, hosts, (0, 1, 2, 3), 3)
    assert whole == {
        **{"SLURM_JOB_ID": "7", "HOME": "/h", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
        **{"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"},
    }
    alone = of_rank(outer, hosts, (0,), 0)
    assert (alone["WORLD_SIZE"], alone["LOCAL_WORLD_SIZE"], alone["GROUP_WORLD_SIZE"]) == ("1", "1", "1")


def test_speed_up_is_by_time_by_the_jobs_number_or_by_that_of_a_rank() -> None:
    by_time = scaled((ONE, NODE))
    assert (by_time[1].efficiency, by_time[1].speedup) == (pytest.approx(0.8), pytest.approx(6.4))
    whole = scaled((replace(ONE, metric=10.0, by="metric"), replace(NODE, metric=60.0, by="metric")))
    assert (whole[1].efficiency, whole[1].speedup) == (pytest.approx(0.75), pytest.approx(6.0))
    each = [replace(row, metric=m, by="metric per rank") for row, m in ((ONE, 10.0), (NODE, 9.0))]
    assert scaled(each)[1].speedup == pytest.approx(7.2)
    assert scaled((replace(ONE, by="metric"), replace(NODE, metric=60.0, by="metric")))[1].speedup is None
    assert scaled((replace(ONE, ended="late"), NODE))[1].speedup is None
    assert scaled((ONE, replace(NODE, ended="badly")))[1].speedup is None


def judged(*rows: ScriptRung) -> list[Finding]:
    return list(ladder.run(Absent("x"), ScriptRungs(rows), Expected(), TWO, Asked(what=("script",))))


def test_a_rung_that_failed_fails_and_one_that_cannot_be_compared_is_unknown() -> None:
    assert judged(ONE, NODE) == []
    bad = replace(NODE, ended="badly", rank=5, host="n0", code=-9, said="")
    (found,) = judged(ONE, bad)
    assert (found.severity, found.subject, found.blame) == (Severity.FAIL, "rank 5 on n0", "job")
    assert found.message == "the script ended with SIGKILL after 75 s, on 8 ranks of 1 node"
    with pytest.raises(Unlearned, match="had not ended after 75 s on 8 ranks of 1 node"):
        judged(ONE, replace(NODE, ended="late"))
    with pytest.raises(
        Unlearned, match="printed no number right after or before the text of --ladder-metric, on 1 rank of 1 node"
    ):
        judged(replace(ONE, by="metric"), replace(NODE, by="metric", metric=1.0))
    with pytest.raises(Unlearned, match="started on no rung"):
        list(ladder.run(NO_SCRIPT, Absent("started on no rung"), Expected(), TWO, Asked(what=("script",))))


def test_every_format_has_the_table() -> None:
    report = Report(
        tool=Tool("ncclprobe", "0"),
        started="",
        duration_s=1.0,
        command="ncclprobe accept",
        status=Status.PASS,
        exit_code=0,
        launch=LaunchRow("self", 1, 8),
        nodes=(),
        script=scaled((ONE, NODE)),
    )
    said = text.render(report, width=80)
    assert " one node      8      1     75.0        -    6.40 x         80%   well" in said
    assert "compared by wall time, with its start" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "6.40 x" in markdown.render(report)
    (table,) = [each for each in tables.tables(report) if each.title.startswith("The own script")]
    assert table.rows[1][:4] == ("one node", "8", "1", "75.0")
