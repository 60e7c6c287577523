"""Baselines: what is kept of several runs, what is refused, and what a file must not hold."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect.baselines import Origin, Print, Site, bands, keep, parse, render
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Fingerprint, Measurement, TimeStats
from ncclprobe.model.values import replace
from ncclprobe.nccl_tests import Run
from tests.each_row import each_row

MACHINE = Fingerprint({"gpu": "8 x NVIDIA H100"}, "abc", {"nccl": "2.28.9"})


def row(busbw: float, **changes: Any) -> Measurement:
    return replace(ROW, busbw_GBps=busbw, time_us=TimeStats(20.0), **changes)


def run(*rows: Measurement, name: str = "a.json", fingerprint: Fingerprint | None = MACHINE, failed: str = "") -> Run:
    return Run(name, "2026-01-02", rows, fingerprint, failed)


def site(*runs: Run) -> Site:
    return Site("ncclprobe 0", "2026-01-02", Print(MACHINE.machine), [Origin("a", "b")], list(keep(runs).rows))


def test_several_runs_become_their_median_and_their_spread() -> None:
    (kept,) = keep([run(row(rate)) for rate in (90, 100, 101, 99, 102)]).rows
    assert (kept.busbw_GBps, kept.mad_GBps, kept.runs) == (100, 1, 5)
    assert kept.noise == 0.05


def test_noise_over_runs_widens_what_passes() -> None:
    (kept,) = keep([run(row(rate)) for rate in (80, 90, 100, 110, 120)]).rows
    assert kept.noise == pytest.approx(3 * 1.4826 * 10 / 100, abs=1e-3)


def test_one_run_says_little_of_the_next() -> None:
    (kept,) = keep([run(row(100))]).rows
    assert (kept.noise, kept.runs) == (0.2, 1)


@each_row(
    ("spoilt", "words"),
    [
        ({"wrong": 3}, "3 elements were wrong"),
        ({"status": "fail"}, "called it slow"),
        ({"status": "inconclusive"}, "called it inconclusive"),
        ({"precision": 0.9}, "too noisy"),
    ],
)
def test_what_is_not_fit_is_refused_and_said(spoilt: dict[str, Any], words: str) -> None:
    kept = keep([run(row(100, **spoilt))])
    assert kept.rows == ()
    assert words in kept.refused[0]


def test_a_run_that_failed_by_its_own_words_is_refused_whole() -> None:
    assert keep([run(row(100), failed="3 values were wrong")]).refused == ("a.json: 3 values were wrong",)


def test_a_sick_machine_is_not_made_the_norm_unless_asked_for() -> None:
    kept = keep([run(row(100))], lambda _: 300.0)
    assert kept.rows == ()
    assert "100 GB/s, and this machine should reach 300 at least" in kept.refused[0]
    kept = keep([run(row(100))], lambda _: 300.0, accept_low=True)
    assert len(kept.rows) == len(kept.flagged) == 1
    assert keep([run(row(100))], lambda _: None).refused == ()


def test_runs_of_two_machines_are_not_merged() -> None:
    other = replace(MACHINE, machine={"gpu": "8 x NVIDIA A100"})
    with pytest.raises(UsageError, match=r"b\.json: not of the same machine.*gpu: 8 x NVIDIA H100 -> 8 x NVIDIA A100"):
        keep([run(row(100)), run(row(100), name="b.json", fingerprint=other)])


def test_ways_of_measuring_are_kept_apart() -> None:
    assert len(keep([run(row(100), row(50, mode="blocking"), row(100, ranks=4))]).rows) == 3


def test_a_baseline_is_read_back_and_speaks_for_rows_measured_alike() -> None:
    read = parse(render(site(run(row(100)))), "site.json")
    (band,) = bands(read, "site.json")
    assert band.covers(row(1))
    assert not band.covers(row(1, ranks=16))
    assert band.expectation.basis == "baseline"
    assert band.expectation.threshold == pytest.approx(80.0)
    assert "1 run of this site, less the 20% that is noise" in band.expectation.why


def spoilt_file(**changes: Any) -> str:
    document = json.loads(render(site(run(row(100)))))
    document["rows"][0].update(changes)
    return json.dumps(document)


@each_row(
    "text",
    [
        "",
        "{}",
        "[" * 100_000,
        spoilt_file(colour="red"),
        spoilt_file(busbw_GBps=-1),
        spoilt_file(busbw_GBps=0),
        spoilt_file(noise=1.0),
        spoilt_file(busbw_GBps="100"),
        spoilt_file(busbw_GBps=float("nan")),
        spoilt_file(place="beside"),
        spoilt_file().replace('"noise"', '"noise": 0.1, "noise"'),
        spoilt_file().replace("baseline/1", "baseline/2"),
        spoilt_file()[:300],
    ],
)
def test_a_file_that_is_not_exactly_a_baseline_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^site\.json: "):
        parse(text, "site.json")


@given(st.text())
def test_no_text_is_a_surprise(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text, "site.json")
