"""Baselines: what is kept of several runs, what is refused, and which machine is the same."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect import baselines
from ncclprobe.expect.baselines import Origin, Print, Site, bands, keep, load, parse, render
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Fingerprint, Measurement, TimeStats, changes
from ncclprobe.model.values import replace
from ncclprobe.nccl_tests import Run
from tests.each_row import each_row

MACHINE = Fingerprint({"gpu": "8 x NVIDIA H100"}, "abc", {"nccl": "2.28.9", "os": "a"})


def row(busbw: float, **changes: Any) -> Measurement:
    return replace(ROW, busbw_GBps=busbw, time_us=TimeStats(20.0), **changes)


def run(*rows: Measurement, name: str = "a.json", fingerprint: Fingerprint | None = MACHINE, failed: str = "") -> Run:
    return Run(name, "2026-01-02", rows, fingerprint, failed)


def site(*runs: Run) -> Site:
    return Site("ncclprobe 0", "2026-01-02", Print(MACHINE.machine), [Origin("a", "b")], list(keep(runs).rows))


def test_runs_of_two_machines_are_refused_and_ways_of_measuring_kept_apart() -> None:
    other = Fingerprint({"gpu": "8 x NVIDIA A100"}, "d", {"nccl": "2.27.3", "os": "b"})
    with pytest.raises(UsageError, match=r"b\.json: not .*: gpu: 8 x NVIDIA H100 -> 8 x .* A100; .*; nccl.*27\.3$"):
        keep([run(row(100)), run(row(100), name="b.json", fingerprint=other)])
    assert len(keep([run(row(100), row(50, mode="blocking"), row(100, ranks=4))]).rows) == 3


def test_a_baseline_is_read_back_and_speaks_for_rows_measured_alike() -> None:
    (band,) = bands(parse(render(site(run(row(100)))), "site.json"), "site.json")
    assert (band.covers(row(1)), band.covers(row(1, ranks=16))) == (True, False)
    assert band.expectation.basis == "baseline"


@each_row(
    ("runs", "words", "threshold", "confidence"),
    [
        (1, "1 run of this site, less the 20% that is noise", 80.0, "medium"),
        (2, "the median of 2 runs of this site, less the 10% that is noise", 90.0, "medium"),
        (4, "the median of 4 runs of this site, less the 10% that is noise", 90.0, "medium"),
        (5, "the median of 5 runs of this site, less the 5% that is noise", 95.0, "high"),
    ],
)
def test_more_runs_leave_less_to_noise(runs: int, words: str, threshold: float, confidence: str) -> None:
    (band,) = bands(site(*(run(row(100), name=f"{number}.json") for number in range(runs))), "site.json", "; but x")
    found = band.expectation
    assert (found.value, found.threshold) == pytest.approx((100.0, threshold))
    assert (found.why, found.source, found.confidence) == (f"{words}; but x", "site.json", confidence)


def spoilt_file(**changes: Any) -> str:
    document = json.loads(render(site(run(row(100)))))
    document["rows"][0].update(changes)
    return json.dumps(document)


@each_row(
    "text",
    [
        *("", "{}", "[" * 100_000, spoilt_file()[:300]),
        *(spoilt_file(colour="red"), spoilt_file(place="beside"), spoilt_file(mad_GBps=float("nan"))),
        *(spoilt_file(busbw_GBps=rate) for rate in (-1, 0, "100", float("nan"))),
        spoilt_file().replace('"noise"', '"noise": 0.1, "noise"'),
        spoilt_file().replace("baseline/1", "baseline/2"),
        *(spoilt_file(**{name: 0}) for name in ("nbytes", "runs", "nodes")),
        *(spoilt_file(nbytes=1 << 63), spoilt_file(runs=1 << 31), spoilt_file(ranks=1 << 31)),
        *(spoilt_file(nodes=9, ranks=8), spoilt_file(noise=0.999), spoilt_file(noise=-0.1)),
    ],
)
def test_a_file_that_is_not_exactly_a_baseline_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^site\.json: "):
        parse(text, "site.json")


def test_numbers_at_the_end_of_their_range_are_read_and_several_files_in_order(tmp_path: Path) -> None:
    ends = (
        {"nbytes": 1}, {"nbytes": (1 << 63) - 1}, {"runs": (1 << 31) - 1}, {"ranks": (1 << 31) - 1}, {"noise": 0.998},
    )  # fmt: skip
    for changes_ in (*ends, {"nodes": 8, "ranks": 8}, {"noise": 0}):
        assert parse(spoilt_file(**changes_), "site.json").rows, changes_
    with pytest.raises(UsageError, match=f"{tmp_path}: contains no baseline; write one with `ncclprobe baseline"):
        load(f"{tmp_path}")
    for number, name in enumerate(("b.json", "a.json", "c.txt")):
        (tmp_path / name).write_text(spoilt_file(runs=1 + number))
    found = {Path(path).name: each.rows[0].runs for path, each in load(f"{tmp_path}").items()}
    assert list(found.items()) == [("a.json", 2), ("b.json", 1)]
    assert list(load(f"{tmp_path}/c.txt")) == [f"{tmp_path}/c.txt"]


@given(st.text())
def test_no_text_is_a_surprise(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text, "site.json")


OLD = Fingerprint({"gpu": "8 x NVIDIA H100", "cpu": "96 x Xeon"}, "abc", {"torch": "2.7", "nccl": "2.26.2"})
LOST = Fingerprint({"gpu": "7 x NVIDIA H100", "cpu": "96 x Xeon"}, "def", {"torch": "2.8", "nccl": "2.26.2"})


@each_row(
    ("old", "new", "same", "changed", "unknown"),
    [
        (OLD, LOST, False,
         ("gpu: 8 x NVIDIA H100 -> 7 x NVIDIA H100", "topology: abc -> def", "torch: 2.7 -> 2.8"), ()),
        (OLD, Fingerprint(OLD.machine, "abc", {"torch": "2.9"}), True, ("torch: 2.7 -> 2.9",), ("nccl",)),
        (OLD, Fingerprint({"gpu": "8 x NVIDIA H100"}), True, (), ("cpu", "topology", "torch", "nccl")),
        (Fingerprint(), Fingerprint(), False, (), ()),
        (OLD, None, False, (), ("gpu", "cpu", "topology", "torch", "nccl")),
        (OLD, Fingerprint({"product": "DGX H100"}), False, (), ("gpu", "cpu", "topology", "torch", "nccl", "product")),
    ],
)  # fmt: skip
def test_each_part_that_changed_is_named_with_both_values_and_what_one_side_does_not_know_is_no_change(
    old: Fingerprint, new: Fingerprint | None, same: bool, changed: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    assert (baselines.same_machine(old, new), changes(old, new)) == (same, changed)
    assert baselines.unknown_parts(old, new) == unknown


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    digest_of = baselines.digest_of
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})
