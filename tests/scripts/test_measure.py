"""The pure parts of the scripts that measure: what they read, how they judge a run, what their tables say."""

import contextlib
import importlib.util
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model.findings import ExitCode, Status, Verdict, warn
from ncclprobe.model.pair_results import Blamed, Localisation
from ncclprobe.model.report import Report, Tool
from ncclprobe.model.values import replace

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str) -> ModuleType:
    """A script as a module; its options are not read."""
    loader = SourceFileLoader(f"script_{name}", str(SCRIPTS / f"{name}.py"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


measure = script("measure")
links, precise, slowness, tables = measure.links, measure.precise, measure.slowness, sys.modules["tables"]

ONE_WAY = {
    "start": {"version": "iperf 3.12"},
    "intervals": [],
    "end": {
        "sum_sent": {"seconds": 1.000107, "bytes": 12987112, "bits_per_second": 103885780.2215163, "sender": True},
        "sum_received": {"seconds": 1.005844, "bytes": 12038672, "bits_per_second": 95749814.0864786, "sender": True},
    },
}
"""What iperf3 3.12 said of a link shaped to 100 Mbit/s, less what nobody reads; below with --bidir."""
BOTH_WAYS = {
    "end": {
        "sum_received": {"bytes": 11620200, "bits_per_second": 91881532.58446956},
        "sum_received_bidir_reverse": {"bytes": 11526080, "bits_per_second": 91137320.79406576},
    }
}


def test_what_arrived_is_read_not_what_was_sent() -> None:
    assert links.received_mbits(json.dumps(ONE_WAY)) == [pytest.approx(95.75, abs=0.01)]


def test_both_directions_of_a_bidirectional_test_are_read() -> None:
    assert links.received_mbits(json.dumps(BOTH_WAYS)) == pytest.approx([91.88, 91.14], abs=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"end": {}}',
        '{"end": {"sum_received": 3}}',
        '{"end": {"sum_received": {"bits_per_second": 0}}}',
        '{"error": "unable to connect to server: Connection refused"}',
    ],
)
def test_no_answer_of_iperf3_is_never_a_rate(text: str) -> None:
    with pytest.raises(measure.LabError, match="iperf3"):
        links.received_mbits(text)


json_values = st.recursive(
    st.none() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["end", "sum_received", "bits_per_second", "error"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(max_size=50) | json_values.map(json.dumps))
def test_whatever_iperf3_says_is_a_rate_above_zero_or_refused(text: str) -> None:
    with contextlib.suppress(measure.LabError):
        assert 0 < min(links.received_mbits(text)) < float("inf")


def test_a_ratio_is_the_median_of_pairs_within_its_interval() -> None:
    found = tables.ratio([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert (found.median, found.pairs) == (1.0, 3)
    assert 0.5 <= found.low <= found.median <= found.high <= 1.5
    with pytest.raises(ValueError, match="zip"):
        tables.ratio([1.0], [1.0, 2.0])


def test_a_table_keeps_its_columns_whatever_a_cell_holds() -> None:
    head, _, row, empty = tables.table(["a", "b"], [("x|y", "one\ntwo")])
    assert (head, row, empty) == ("| a | b |", r"| x\|y | one two |", "")
    with pytest.raises(ValueError, match="3 cells below 2 headings"):
        list(tables.table(["a", "b"], [(1, 2, 3)]))


def rates(all_reduce: float) -> dict[str, float]:
    return dict.fromkeys((*links.THEIRS, *links.OURS), 100.0) | {"all_reduce": all_reduce}


def test_rounds_become_one_row_for_each_link_and_number() -> None:
    rounds = [links.Round(mbits, n % 2 == 0, rates(50.0)) for mbits in (100, 500) for n in range(3)]
    lines = list(measure.links_report(rounds))
    assert (
        "| 100 | all_reduce | 3 | 50.0 | iperf3 both ways | 100.0 | 0.500 [0.500, 0.500] | 0.500 [0.500, 0.500] |"
        in lines
    )
    assert (
        "| 500 | pairs one way | 3 | 100.0 | iperf3 one way | 100.0 | 1.000 [1.000, 1.000] | 0.200 [0.200, 0.200] |"
        in lines
    )
    assert sum(line.startswith("| 100 |") for line in lines) == len(links.OURS) + 3


def test_what_the_bench_found_becomes_a_row() -> None:
    spread = {"median": 2.0, "low": 1.5, "high": 2.5, "smallest": 1.0, "largest": 3.0}
    left = {"nbytes": 4096, "ranks": 2, "pairs": 5, "time": spread, "reached": 0.8, "precision": 0.018}
    left |= {"ours": 0.005, "fixed": 0.04, "ours_s": 1.25, "fixed_s": 0.5}
    [row] = precise.read(json.dumps({"ratios": [], "asked": [left]}), precise.Link(100))
    lines = list(measure.precision_report([row]))
    wanted = "| 100 Mbit/s | 4 KiB | 5 | 1.25 | 0.5 | 2.000 [1.500, 2.500] | 80% | ±1.8% | 0.5% | 4.0% |"
    assert wanted in lines
    assert str(precise.Link()) == "loopback"


NODE = slowness.Blame("node", ("n2",))
OUT = slowness.Blame("node", ("n2",), None, "out")
INNOCENT = slowness.Blame("pair", ("n0", "n1"))


@pytest.mark.parametrize(
    ("wanted", "blamed", "verdict"),
    [
        (NODE, [NODE], "named"),
        (NODE, [OUT], "placed"),
        (NODE, [NODE, OUT], "named"),
        (NODE, [], "nobody"),
        (NODE, [NODE, INNOCENT], "others"),
        (None, [], "quiet"),
        (None, [NODE], "others"),
    ],
)
def test_a_run_is_worth_what_it_blames(wanted: Any, blamed: list[Any], verdict: str) -> None:
    assert slowness.verdict(wanted, blamed) == verdict


def test_culprits_are_read_from_a_report() -> None:
    culprit = Blamed("n2 rail 1", "rail", ("n2",), 1, "both", 0.4, 1.0, 12, 12, 4, 3)
    late = warn("rank 5", "on host n2 comes late to collectives")
    checks = (Verdict("run.straggler", "n0", Status.WARN, "", findings=(late,)),)
    empty = Report(
        tool=Tool("ncclprobe", "0"),
        started="",
        duration_s=1.0,
        command="ncclprobe",
        status=Status.PASS,
        exit_code=ExitCode.OK,
    )
    report = replace(empty, localisation=Localisation(4, "rail", culprits=(culprit,)), checks=checks)
    assert slowness.blames(report, cards=2) == (slowness.Blame("rail", ("n2",), 1), slowness.LATE)
    assert slowness.blames(empty) == ()
    assert [str(each) for each in (NODE, OUT, INNOCENT)] == ["node: n2", "node: out of n2", "pair: n0 with n1"]


def test_runs_are_counted_by_what_they_are_worth_and_one_that_failed_says_why() -> None:
    planted = slowness.bad_nic()
    named = slowness.Play((planted.wanted,), (4,), 10.0)
    missed = slowness.Play((), (0,), 12.0)
    quiet = slowness.PLANTS[0]
    lines = list(measure.slow_report([(planted, named), (planted, named), (planted, missed), (quiet, "no tbf here")]))
    counted = "| 3 | 2 | 0 | 1 | 0 | – | 0, 4 | 10.0 | rail: n2 rail 1 (2) / nobody (1) |"
    assert f"| {planted.name} | pairs {counted}" in lines
    assert "| nothing | pairs | 0 | – | – | – | 0 | 0 |  | – |  |" in lines
    assert "Not run: nothing, pairs: no tbf here" in lines


def test_every_plant_is_of_hosts_that_there_are_and_told_apart() -> None:
    names = {f"n{number}" for number in range(slowness.HOSTS)}
    assert all(set(plant.wanted.nodes) <= names for plant in slowness.PLANTS if plant.wanted)
    assert len({(plant.name, plant.how) for plant in slowness.PLANTS}) == len(slowness.PLANTS)
    assert any(plant.wanted is None for plant in slowness.PLANTS)


def test_ranks_of_one_host_stand_together() -> None:
    assert measure.slowness.begin.__module__ == "tests.lab.ranks"
    ranks = sys.modules["tests.lab.ranks"]
    assert ranks.seats(2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    seat = ranks.variables(3, 4, 1, 2)
    assert (seat["RANK"], seat["LOCAL_RANK"], seat["GLOO_SOCKET_IFNAME"]) == ("3", "1", "eth1")


@pytest.mark.parametrize(
    "argv", [[], ["links", "--mbits", "-1"], ["slow", "--repeats", "0"], ["precision", "--pairs", "x"]]
)
def test_nonsense_is_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        measure.parse(argv)
    assert caught.value.code == 2
