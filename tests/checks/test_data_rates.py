"""Rates of data paths: who is named, what is only told, and what is unknown."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.data.rates import baseline, doubtful, rate
from ncclprobe.checks.data.seen import content, path
from ncclprobe.commands import main
from ncclprobe.expect.baselines import expected_paths, keep_path_rates, path_expectations
from ncclprobe.facts.data_paths import Content, DataPath, DataPaths, DataRates, Look
from ncclprobe.model.errors import Unlearned, UsageError
from ncclprobe.model.findings import Finding, Severity, Status, Verdict, warn
from ncclprobe.model.measurement import PathRate
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.snapshot import Absent, Every, Job
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row

LOOK = Look("folder", "/", 0, 0, "0755", 0, 4096, 1.0, True, True, True, 10, 5, 0, 0, read_only=False)
SEEN = DataPath("/data", "read", Absent("not asked"), LOOK)
FS = "nfs4 fs1:/data"


def row(per_s: float, **changes: Any) -> PathRate:
    made = PathRate("/data", "read", nbytes=10**8, count=100, seconds=1e8 / per_s, resident=0.0, file_system=FS)
    return replace(made, **changes)


def found(rows: Mapping[str, tuple[PathRate, ...]], nodes: int = 0) -> list[Finding]:
    paths = Every({f"n{n}": DataPaths((SEEN,), 1 << 26) for n in range(nodes or len(rows))})
    if len(rows) > 1 and not any(each.together for some in rows.values() for each in some):
        rows = {node: (*some, replace(some[0], together=True)) for node, some in rows.items()}
    return list(rate.run(Every({node: DataRates(each) for node, each in rows.items()}), paths))


def loud(each: list[Finding]) -> list[tuple[Severity, tuple[str, ...]]]:
    return [(one.severity, one.nodes) for one in each if one.severity is not Severity.NOTE]


def test_a_node_at_a_third_of_the_others_is_named_and_one_at_a_half_is_not() -> None:
    four = {"n0": (row(9e8),), "n1": (row(3e8),), "n2": (row(9e8),), "n3": (row(4.5e8),)}
    assert loud(found(four)) == [(Severity.WARN, ("n1",))]
    assert "sequential reads reach 300 MB/s on n1; the others reach 900 MB/s" in [each.message for each in found(four)]


def test_the_better_of_two_turns_counts() -> None:
    assert loud(found({"n0": (row(9e8),), "n1": (row(2e8), row(8e8))})) == []
    assert doubtful({0: (row(9e8),), 1: (row(2e8),), 2: (row(9e8),)}) == [1]


def test_a_node_with_another_file_system_is_not_called_slow_beside_the_others() -> None:
    other = row(1e8, file_system="nfs4 fs2:/old")
    assert loud(found({"n0": (row(9e8),), "n1": (other,), "n2": (row(9e8),)})) == []


def test_a_pause_among_many_opens_names_no_node() -> None:
    opens = {"kind": "open", "nbytes": 10**5}
    well, paused, slow = (
        row(1.0, **opens, seconds=seconds, typical_s=typical_s)
        for seconds, typical_s in ((0.05, 5e-4), (0.5, 5e-4), (0.5, 5e-3))
    )
    assert loud(found({"n0": (well,), "n1": (paused,), "n2": (well,)})) == []
    assert loud(found({"n0": (well,), "n1": (slow,), "n2": (well,)})) == [(Severity.WARN, ("n1",))]


def test_what_came_from_a_nodes_memory_makes_no_other_node_slow() -> None:
    fast = row(9e9, resident=1.0)
    three = found({"n0": (fast,), "n1": (row(4e8),), "n2": (row(4e8),)})
    assert loud(three) == []
    assert any("from the memory of n0" in each.message for each in three)


def test_all_at_once_against_one_is_told_and_blames_no_node() -> None:
    four = {f"n{n}": (row(9e8), row(2e8, together=True, at_once=4)) for n in range(4)}
    said = found(four)
    assert loud(said) == []
    words = "all 4 at once: 200 MB/s each, 800 MB/s in all: the server, or the way to it, gives no more"
    assert any(words in each.message for each in said)


def test_a_path_that_gives_no_answer_fails_on_its_node_or_is_the_servers() -> None:
    bad = row(1.0, failed=True, why="no answer within 11 s")
    (one,) = [each for each in found({"n0": (row(9e8),), "n1": (bad,)}) if each.severity is Severity.FAIL]
    assert (one.nodes, one.blame) == (("n1",), "node")
    (every,) = [each for each in found({"n0": (bad,), "n1": (bad,)}) if each.severity is Severity.FAIL]
    assert every.blame == "fabric"


def test_what_was_asked_and_not_measured_is_not_healthy() -> None:
    with pytest.raises(Unlearned, match="not every rate was measured from n2 apart"):
        found({"n0": (row(9e8),), "n1": (row(9e8),)}, nodes=3)
    lost = {"n0": (row(9e8), row(9e8, together=True)), "n1": (row(9e8),)}
    with pytest.raises(Unlearned, match="not every rate was measured from n1 at once"):
        found(lost)
    with pytest.raises(Unlearned, match="too little to measure"):
        found({"n0": (row(1.0, why="1 byte: too little to measure"),)})


def test_a_baseline_of_another_server_or_number_of_nodes_judges_nothing() -> None:
    paths = Every({"n0": DataPaths((SEEN,), 1 << 26)})
    rates: Every[DataRates | Absent] = Every({"n0": DataRates((row(1e8),))})
    site = report(row(9e8, node="n0"))
    for changes in ({"file_system": "nfs4 fs2:/data"}, {"at_once": 4}, {"together": True}):
        (expected,) = expectation_of(site)
        with pytest.raises(Unlearned, match="in the baseline"):
            list(baseline.run(rates, paths, Job(path_rates=(replace(expected, **changes),))))


@each_row("late", ["look", "content"])
def test_a_path_for_which_no_time_was_left_is_unknown_and_fails_on_no_node(late: str) -> None:
    gap = Absent("stat: no answer within 0 s, which was all that --timeout left", "OutOfTime")
    row_ = replace(SEEN, content=Content(1, "ab", cut=False))
    paths = Every({"n0": DataPaths((row_,)), "n1": DataPaths((replace(row_, **{late: gap}),))})
    for check in (path, content):
        with pytest.raises(Unlearned, match="no time to look on n1"):
            list(check.run(paths))


def test_a_round_of_all_that_never_came_is_not_healthy() -> None:
    paths = Every({f"n{n}": DataPaths((SEEN,), 1 << 26) for n in range(2)})
    with pytest.raises(Unlearned, match="longer --timeout"):
        list(rate.run(Every({f"n{n}": DataRates((row(9e8),)) for n in range(2)}), paths))


def report(*rows: PathRate) -> Report:
    return Report(
        tool=Tool("ncclprobe", "0"), started="2026-01-02T03:04:05+00:00", duration_s=1.0, command="",
        status=Status.PASS, exit_code=0, path_rates=rows,
    )  # fmt: skip


def expectation_of(*reports: Report) -> Any:
    return path_expectations(keep_path_rates([each.path_rates for each in reports])[0], "site.json")


def test_a_baseline_is_the_median_of_nodes_and_of_runs_and_knows_its_noise() -> None:
    runs = [
        report(row(rate, node="n0"), row(2 * rate, node="n1"), row(9e9, node="n2", resident=1.0)) for rate in (4e8, 5e8)
    ]
    (expected,) = expectation_of(*runs)
    assert (expected.per_s, expected.runs) == (pytest.approx(6.75e8), 2)
    assert expected.noise > 0.1


def test_reports_become_a_baseline_file_that_the_doctor_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_json.write(report(row(9e8, node="n0"), row(9e8, node="n1")), str(tmp_path / "run.json"))
    site = str(tmp_path / "site.json")
    assert main(["baseline", str(tmp_path / "run.json"), "-o", site]) == 0
    assert "/data: sequential reads, a node apart: 900 MB/s -20 %  1 run" in capsys.readouterr().out
    (expected,) = expected_paths(site)
    assert (expected.per_s, expected.noise, expected.file_system) == (9e8, 0.2, FS)
    changed = json.loads(Path(site).read_text())
    changed["paths"][0]["per_s"] = -1
    Path(site).write_text(json.dumps(changed))
    with pytest.raises(UsageError, match="out of its range"):
        expected_paths(site)


def test_a_run_with_a_slow_node_is_no_baseline_of_that_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Verdict("data.rate", None, Status.WARN, "", findings=(warn("/data", "slow", nodes=("n1",)),))
    as_json.write(replace(report(row(9e8, node="n0")), checks=(said,)), str(tmp_path / "run.json"))
    assert main(["baseline", str(tmp_path / "run.json"), "-o", str(tmp_path / "site.json")]) == 3
    capsys.readouterr()


@each_row(
    ("argv", "words"),
    [
        (["--path-rates"], "--path-rates needs --path"),
        (["--path", "/", "--path-bytes", "4M"], "give that as well"),
        (["--path", "/", "--path-rates", "--path-bytes", "1"], "is not between 1 MiB and 64 GiB"),
        (["--path", "/", "--baseline", "x.json"], "give that as well"),
        (["--path", "/", "--path-rates", "--baseline", "/nowhere/x.json"], "/nowhere/x.json"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--local", *argv]) == 2
    assert words in capsys.readouterr().err
