"""``ncclprobe compare`` and ``baseline``: what is slower beyond noise, and what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.run.rows import ROW, bandwidth
from ncclprobe.commands import main
from ncclprobe.commands.bandwidth import parse
from ncclprobe.commands.compare import compared, side
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.engine.judge import judge
from ncclprobe.expect.baselines import load
from ncclprobe.facts.run.samples import Expected, Notes, Participants
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Status, Verdict, fail, warn
from ncclprobe.model.measurement import Expectation, Fingerprint, Judged, Measurement, TimeStats
from ncclprobe.model.report import NodeEnvironment, Report, Tool
from ncclprobe.model.snapshot import Job
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report.html import render
from ncclprobe.session.measure.expectations import compare_with, fingerprint_of
from ncclprobe.session.measure.recorder import Recorder
from tests.each_row import each_row
from tests.nccl_tests_texts import render_json, render_text

ROOT = Path(__file__).resolve().parent.parent
CAPTURES, PAIRS = ROOT / "tests" / "captures", ROOT / "reports" / "four-hosts-one-bad-nic.json"
MACHINE = Fingerprint({"gpu": "8 x NVIDIA H100"}, "abc", {"nccl": "2.28.9"})
Capsys = pytest.CaptureFixture[str]
Files = dict[str, Report | str]


def row(busbw: float, half: float = 0.01, **changes: Any) -> Measurement:
    interval = (20 * (1 - half), 20 * (1 + half))
    return replace(ROW, busbw_GBps=busbw, time_us=TimeStats(20.0), interval_us=interval, **changes)


def report(*rows: Measurement, **changes: Any) -> Report:
    return replace(
        Report(
            tool=Tool("ncclprobe", "0"), started="2026-01-02T03:04:05+00:00", duration_s=1.0, command="",
            status=Status.PASS, exit_code=0, measurements=rows, fingerprint=MACHINE,
        ),
        **changes,
    )  # fmt: skip


def ran(folder: Path, capsys: Capsys, command: str, files: Files, *options: str) -> tuple[int, str]:
    """Run a command on reports, or on texts, in files of `folder`; return its code and what it printed."""
    for name, each in files.items():
        if isinstance(each, Report):
            as_json.write(each, str(folder / name))
        else:
            (folder / name).write_text(each)
    words = [command, *(str(folder / name) for name in files), *options]
    code = main([word.replace("FOLDER", str(folder)) for word in words])
    told = capsys.readouterr()
    return code, " ".join((told.out + told.err).replace(f"{folder}/", "").split())


SICK = Verdict("nvl.links", "n0", Status.FAIL, "t", findings=(fail("GPU3", "lost a link"),))
GONE = Verdict("ib.state", "n0", Status.WARN, "t", findings=(warn("mlx5_0:1", "is down"),))
FRESH = Verdict("nvl.links", "n0", Status.WARN, "t", findings=(warn("GPU3", "lost a link"),))
FAILED = {"checks": (SICK,), "status": Status.FAIL, "exit_code": 4}
CUT = {"status": Status.UNKNOWN, "exit_code": 3}
WHOLE = row(91.75, algbw_GBps=52.43)
LONGER = replace(WHOLE, nbytes=1 << 21, count=1 << 19, time_us=TimeStats(40.0))
SLOW = replace(row(45.9, algbw_GBps=26.2), time_us=TimeStats(40.0), interval_us=(39.8, 40.2))
NOISY = [row(100, 0.4, op="reduce_scatter", nbytes=1 << n, place="out") for n in (20, 29)]
ERROR = "n0: Test NCCL failure common.cu:44 'internal error'\n"


def text(*rows: Measurement, lines: int = 0, more: str = "") -> str:
    """A log of nccl-tests, without its last lines."""
    whole = render_text(report(), rows).splitlines(keepends=True)
    return "".join(whole[: len(whole) - lines]) + more


COMPARED: dict[str, tuple[Report | str, Report | str, int, str]] = {
    # A row is slower only beyond its noise.
    **{
        f"{busbw} GB/s of 100, within {half:.0%}": (
            report(row(100)), report(row(busbw, half)), code, f'"change": "{change}"'
        )
        for busbw, half, change, code in (
            (100, 0.01, "same", 0), (95, 0.01, "same", 0), (70, 0.01, "slower", 4), (70, 0.4, "unsure", 3),
            (150, 0.01, "faster", 0),
        )
    },
    "measured otherwise": (
        report(row(100)), report(row(50, mode="blocking")), 3,
        "nothing to compare | only in the new: all_reduce 1 MiB (float32, in place, 8 ranks, blocking, nccl)",
    ),
    "another reduction": (
        report(row(100)), report(row(100, redop="max")), 3, "only in the new: all_reduce 1 MiB (float32 max, in place, "
    ),
    "findings, environment, fingerprint": (
        report(row(100), checks=(GONE,), environment={"n0": NodeEnvironment({"nccl": "2.26"})}),
        report(row(100), checks=(FRESH,), environment={"n0": NodeEnvironment({"nccl": "2.28"})},
               fingerprint=Fingerprint({"gpu": "7 x NVIDIA H100"})), 0,
        "new: warn nvl.links on n0: GPU3: lost a link | fixed: warn ib.state on n0: mlx5_0:1: is down"
        " | changed: gpu: 8 x NVIDIA H100 -> 7 x NVIDIA H100 | changed: nccl: 2.26 -> 2.28",
    ),
    "within noise, of several sizes": (
        report(*NOISY, *(row(100, nbytes=1 << n) for n in (3, 10, 20))), report(*NOISY), 0,
        "2026-01-02 03:04:05 UTC | within noise | only in the old: all_reduce 8 B to 1 MiB, 3 sizes (float32, in place",
    ),
    "a new failure": (report(row(100)), report(row(100), **FAILED), 4, ""),
    "an old failure": (report(row(100), **FAILED), report(row(100), **FAILED), 0, ""),
    "reports without rows": (report(), report(), 0, ""),
    "a failure without rows": (report(), report(**FAILED), 4, ""),
    "wrong data, whatever its rate": (report(row(100)), report(row(200, wrong=1)), 4, ""),
    "cut by a signal, with a row less": (report(row(100), row(100, nbytes=8)), report(row(100), **CUT), 3, ""),
    "cut by a signal, with all rows": (report(row(100)), report(row(100), **CUT), 0, ""),
    # Runs of nccl-tests.
    "nccl-tests and ours": (text(row(91.75)), report(row(91.75)), 0, ""),
    "nccl-tests and ours, slower": (text(row(91.75)), report(SLOW), 4, ""),
    "a shorter sweep": (text(WHOLE, LONGER), text(WHOLE), 0, "only in the old: all_reduce 2 MiB"),
    "a sweep without its end": (
        text(WHOLE, LONGER), text(WHOLE, lines=4), 3, "was cut short or is inconclusive, so rows that it lacks may be"
    ),
    "a sweep that failed": (
        text(WHOLE, LONGER), text(WHOLE, lines=4, more=ERROR), 4, "new.log: n0: Test NCCL failure"
    ),
    "a sweep with wrong data": (
        text(WHOLE, LONGER), text(replace(WHOLE, wrong=5), lines=4), 4,
        "new.log: 5 values of all_reduce 1 MiB were wrong",
    ),
}  # fmt: skip


@each_row(("old", "new", "code", "words"), COMPARED.values(), ids=COMPARED)
def test_what_is_slower_beyond_noise_new_or_wrong_fails(
    old: Report | str, new: Report | str, code: int, words: str, tmp_path: Path, capsys: Capsys
) -> None:
    files = {
        f"{name}.{'log' if isinstance(each, str) else 'json'}": each for name, each in (("old", old), ("new", new))
    }
    options = ("--json", "-") if words.startswith('"change"') else ()
    got, said = ran(tmp_path, capsys, "compare", files, *options)
    assert got == code
    assert all(each in said for each in words.split(" | ")), said
    if options:
        (found,) = json.loads(said)["rows"]
        assert found["low"] < found["share"] < found["high"]


def test_two_captures_are_compared_port_by_port_and_one_differs_from_itself_in_nothing() -> None:
    """More of them are in tests/data/command_values/compare.txt."""
    healthy = side(str(CAPTURES / "hgx-h100.jsonl"))
    assert len(healthy.environment) > 500
    sick = compared(healthy, side(str(CAPTURES / "sick" / "ib-down.jsonl")), 0.0)
    assert ("mlx5_3:1 state: ACTIVE -> DOWN" in sick.changed, sick.exit_code) == (True, ExitCode.FAIL)
    same = compared(healthy, healthy, 0.0)
    assert (same.changed, same.new_findings, same.exit_code) == ((), (), ExitCode.OK)


SITE = ("-o", "FOLDER/site.json")
MODEL = Expectation(400.0, 350.0, "GB/s", "model", "links", "model")
LOW = report(row(20.0, nbytes=1 << 30))
OWN = report(replace(ROW, busbw_GBps=91.75, time_us=replace(ROW.time_us, mean=20.0)))
BASELINES: dict[str, tuple[Files, tuple[str, ...], int, list[float], str]] = {
    "three runs": (
        {f"{n}.json": report(row(100.0 + n), row(200.0, nbytes=1 << 21)) for n in range(3)}, (), 0, [101, 200],
        "2 rows of 3 runs written to",
    ),
    "its report expected more": (
        {"a.json": report(row(100, expectation=MODEL, status="pass"))}, (), 3, [],
        "this machine should reach 350 at least"
    ),
    "a machine by name expects more": (
        {"a.json": LOW}, ("--machine", "dgx-h100"), 3, [], "20 GB/s, and this machine should reach"
    ),
    "some rows are refused": (
        {"a.json": report(row(100), row(100, nbytes=1 << 21, wrong=3))}, (), 0, [100], "3 elements were wrong"
    ),
    "a copy counts once": ({"a.json": report(row(100)), "b.json": report(row(100))}, (), 0, [100], "counted once"),
    "nccl-tests' JSON": ({"a.json": render_json(OWN, OWN.measurements)}, (), 0, [91.75], "1 row of one run written"),
    "nccl-tests' table": ({"a.log": render_text(OWN, OWN.measurements)}, (), 0, [91.75], "1 row of one run written"),
    "an error ended it": (
        {"b.json": render_json(report(), (WHOLE,)).replace('"errors": [\n  ""', '"errors": [\n  "CUDA failure"')},
        (), 3, [], "CUDA failure",
    ),
    **{repr(wrong): ({"x": wrong}, (), 2, [], "x") for wrong in ("", "{", '{"a": 1}', "hello\n", "\x00\x01")},
    "no collective": (
        {"pairs.json": PAIRS.read_text()}, (), 2, [],
        "contains no collective; give reports of `ncclprobe bandwidth`, or logs of nccl-tests",
    ),
}  # fmt: skip


@each_row(("files", "options", "code", "kept", "words"), BASELINES.values(), ids=BASELINES)
def test_runs_are_kept_under_the_fingerprint_of_their_machine_or_refused(
    files: Files, options: tuple[str, ...], code: int, kept: list[float], words: str,
    tmp_path: Path, capsys: Capsys,
) -> None:  # fmt: skip
    got, said = ran(tmp_path, capsys, "baseline", files, *options, *SITE)
    assert (got, words in said) == (code, True), said
    assert (tmp_path / "site.json").exists() == bool(kept)
    if kept:
        (site,) = load(str(tmp_path / "site.json")).values()
        assert [each.busbw_GBps for each in site.rows] == pytest.approx(kept, rel=1e-3)
        assert not isinstance(next(iter(files.values())), Report) or site.print() == MACHINE


def test_a_baseline_goes_to_standard_output_brings_its_own_noise_and_pairs_are_not_compared(
    tmp_path: Path, capsys: Capsys
) -> None:
    code, said = ran(tmp_path, capsys, "baseline", {"a.json": report(row(100))}, "-o", "-")
    assert (code, json.loads(said)["schema"]) == (0, "ncclprobe.baseline/1")
    for busbw, wanted in ((85.0, 0), (70.0, 4)):
        assert ran(tmp_path, capsys, "compare", {"site.json": said, "b.json": report(row(busbw))}, "-q")[0] == wanted
    for changes in ({"nbytes": 10**400}, {"busbw_GBps": 1e-320}, {"nodes": 0}, {"noise": 0.9999999}):
        document = json.loads(said)
        document["rows"][0].update(changes)
        code, refusal = ran(
            tmp_path, capsys, "compare", {"site.json": json.dumps(document), "b.json": report(row(100))}
        )
        assert (code, refusal.endswith("row 1: a number is out of range")) == (2, True), changes
    code, told = ran(tmp_path, capsys, "compare", {"a.json": PAIRS.read_text(), "b.json": PAIRS.read_text()})
    assert (code, "pairs and copies are not compared" in told) == (3, True)
    unjudged = replace(as_json.read(str(PAIRS)), status=Status.PASS, exit_code=0, checks=(), judged=Judged(0, 78))
    assert "ncclprobe baseline" not in render(unjudged)
    assert "baselines contain only collectives" in render(unjudged)


class Record(Recorder):
    """A recorder that shows what it was told."""

    def __init__(self) -> None:
        asked = parse(["--baseline", "sites"])
        who = Participants("single", 8, ("n0",) * 8, "nccl")
        super().__init__(asked, ask(asked.judging, (), Job(), MEASURED), who)
        self.meet()

    def judged(self, GBps: float) -> Verdict:
        self.add(replace(ROW, busbw_GBps=GBps, wrong=0))
        (verdict,) = judge((), [bandwidth], Job(), self.facts())
        return verdict


NO_LIMIT = replace(MACHINE, software={"settings": "none"})
SET = fingerprint_of({}, Participants("torchrun", 2, ("n0", "n0"), "nccl", settings={"NCCL_MAX_NCHANNELS": "1"}))


@each_row(
    ("kept", "now", "bands", "passes", "note", "slow"),
    [
        (MACHINE, replace(MACHINE, software={"nccl": "2.29.1"}), 1, True, "was taken: nccl: 2.28.9 -> 2.29.1", ""),
        (NO_LIMIT, replace(MACHINE, software=SET.software), 1, True, "", "settings: none -> NCCL_MAX_NCHANNELS=1"),
        (
            MACHINE, Fingerprint({"gpu": "8 x NVIDIA A100"}), 0, False,
            "no baseline: | gpu: 8 x NVIDIA H100 -> 8 x NVIDIA A100 (baseline -> now)", "",
        ),
        (None, MACHINE, 1, True, "does not name its machine", ""),
    ],
)  # fmt: skip
def test_a_folder_gives_the_baseline_of_this_machine_and_says_what_changed_and_none_is_no_pass(
    kept: Fingerprint | None, now: Fingerprint, bands: int, passes: bool, note: str, slow: str,
    tmp_path: Path, capsys: Capsys,
) -> None:  # fmt: skip
    (tmp_path / "sites").mkdir()
    with pytest.raises(UsageError, match="contains no baseline"):
        load(str(tmp_path / "sites"))
    assert (
        ran(tmp_path, capsys, "baseline", {"a.json": report(row(100), fingerprint=kept)}, "-o", "FOLDER/sites/s.json")[
            0
        ]
        == 0
    )
    record, folder = Record(), str(tmp_path / "sites")
    compare_with(record, load(folder), folder, now)
    facts = record.facts()
    assert len(facts[Expected].bands) == bands
    assert (record.judged(100.0).status is Status.PASS) == passes
    assert all(each in "".join(facts[Notes].texts[:1]) for each in note.split(" | "))
    assert not slow or slow in record.judged(10.0).findings[0].message
