"""``ncclprobe compare`` and ``baseline``: what is slower beyond noise, and what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.run.rows import ROW, bandwidth
from ncclprobe.commands import main
from ncclprobe.commands.bandwidth import parse
from ncclprobe.engine.diagnose import MEASURED, ask
from ncclprobe.engine.judge import judge
from ncclprobe.expect.baselines import load
from ncclprobe.facts.run.samples import Expected, Notes, Participants
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Status, Verdict, fail, warn
from ncclprobe.model.measurement import Expectation, Fingerprint, Judged, Measurement, SkippedRow, TimeStats
from ncclprobe.model.report import NodeEnvironment, Report, Setting, Tool
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
SET_ON = {
    name: NodeEnvironment({"nccl": version, "torch": None}, tuple(
        Setting(each, value, "environment") for each, value in (
            ("NCCL_ALGO", name), ("NCCL_PROTO", None), ("MASTER_PORT", version), ("ROLE_WORLD_SIZE", version),
            ("LOCAL_WORLD_SIZE", version), ("TORCHELASTIC_RUN_ID", name), ("WORLD_SIZE", version),
            (f"NCCL_{name}", "1"),
        )))
    for name, version in (("old", "2.26"), ("new", "2.28"))
}  # fmt: skip
ERROR = "n0: Test NCCL failure common.cu:44 'internal error'\n"


def text(*rows: Measurement, lines: int = 0, more: str = "") -> str:
    """A log of nccl-tests, without its last lines."""
    whole = render_text(report(), rows).splitlines(keepends=True)
    return "".join(whole[: len(whole) - lines]) + more


COMPARED: dict[str, tuple[Report | str, Report | str]] = {
    # A row is slower only beyond its noise.
    **{f"{busbw} GB/s of 100, within {half:.0%}": (report(row(100)), report(row(busbw, half)))
        for busbw, half in ((100, 0.01), (95, 0.01), (70, 0.01), (70, 0.4), (150, 0.01))},
    "measured otherwise": (report(row(100)), report(row(50, mode="blocking"))),
    "another reduction": (report(row(100)), report(row(100, redop="max"))),
    "findings, environment, fingerprint": (
        report(row(100), checks=(GONE,), environment={"n0": NodeEnvironment({"nccl": "2.26"})}),
        report(row(100), checks=(FRESH,), environment={"n0": NodeEnvironment({"nccl": "2.28"})},
               fingerprint=Fingerprint({"gpu": "7 x NVIDIA H100"})),
    ),
    "within noise, of several sizes": (report(*NOISY, *(row(100, nbytes=1 << n) for n in (3, 10, 20))), report(*NOISY)),
    "a new failure": (report(row(100)), report(row(100), **FAILED)),
    "an old failure": (report(row(100), **FAILED), report(row(100), **FAILED)),
    "a warning that fails now": (report(row(100), checks=(FRESH,)), report(row(100), **FAILED)),
    "a failure that warns now": (report(row(100), **FAILED), report(row(100), checks=(FRESH,))),
    "two new failures": (report(row(100)), report(row(100), **{**FAILED, "checks": (SICK, replace(SICK, node="n1"))})),
    "pairs": (PAIRS.read_text(), PAIRS.read_text()),
    "reports without rows": (report(), report()), "a failure without rows": (report(), report(**FAILED)),
    "a finding of rows and one without": (report(row(100), checks=(GONE,)), report(checks=(FRESH,))),
    "wrong data, whatever its rate": (report(row(100)), report(row(200, wrong=1))),
    "wrong data before": (report(row(100, wrong=2)), report(row(100, wrong=1))),
    "cut by a signal, with a row less": (report(row(100), row(100, nbytes=8)), report(row(100), **CUT)),
    "cut by a signal, with all rows": (report(row(100)), report(row(100), **CUT)),
    "a row was left out": (report(row(100), row(100, nbytes=8)),
                           report(row(100), skipped_rows=(SkippedRow("all_reduce", 8, "time", "x"),))),
    "one slower, one faster, one unsure": (
        report(*(row(100, nbytes=1 << n) for n in (10, 20, 22, 24))),
        report(*(row(busbw, half, nbytes=1 << n) for n, busbw, half in
                 ((10, 70, 0.01), (20, 150, 0.01), (22, 70, 0.4), (24, 101, 0.01)))),
    ),
    "settings of two nodes": (report(row(100), environment={"n0": SET_ON["old"], "n1": SET_ON["old"]}),
                              report(row(100), environment={"n0": SET_ON["new"], "n1": SET_ON["old"]})),
    "settings": (report(environment={"n0": SET_ON["old"]}), report(environment={"n0": SET_ON["new"]})),
    "settings of a run and a baseline": (text(row(91.75)), report(row(91.75), environment={"n0": SET_ON["new"]})),
    "other settings in the fingerprint": (report(row(100), fingerprint=replace(MACHINE, software={"settings": "none"})),
        report(row(100), fingerprint=replace(MACHINE, topology="def", software={"settings": "NCCL_ALGO=Ring"}))),
    "without a fingerprint": (report(row(100), fingerprint=None), report(row(100))),
    "many new findings": (report(row(100)),
                          report(row(100), checks=tuple(replace(GONE, node=f"n{n}") for n in range(25)))),
    # Runs of nccl-tests.
    "nccl-tests and ours": (text(row(91.75)), report(row(91.75))),
    "nccl-tests and ours, slower": (text(row(91.75)), report(SLOW)),
    "a shorter sweep": (text(WHOLE, LONGER), text(WHOLE)), "a longer sweep": (text(WHOLE), text(WHOLE, LONGER)),
    "a sweep without its end": (text(WHOLE, LONGER), text(WHOLE, lines=4)),
    "a sweep that failed": (text(WHOLE, LONGER), text(WHOLE, lines=4, more=ERROR)),
    "a sweep with wrong data": (text(WHOLE, LONGER), text(replace(WHOLE, wrong=5), lines=4)),
    "one of two sweeps was cut": (text(WHOLE) + text(LONGER), text(WHOLE, lines=4) + text(LONGER)),
    "one of two sweeps failed": (text(WHOLE) + text(LONGER), text(WHOLE) + text(LONGER, lines=4, more=ERROR)),
}  # fmt: skip


MODEL = Expectation(400.0, 350.0, "GB/s", "model", "links", "model")
LOW = report(row(20.0, nbytes=1 << 30))
OWN = report(replace(ROW, busbw_GBps=91.75, time_us=replace(ROW.time_us, mean=20.0)))
BASELINES: dict[str, tuple[Files, str]] = {
    "three runs": ({f"{n}.json": report(row(100.0 + n), row(200.0, nbytes=1 << 21)) for n in range(3)}, ""),
    "its report expected more": ({"a.json": report(row(100, expectation=MODEL, status="pass"))}, ""),
    "its report expected more, accepted": ({"a.json": report(row(100, expectation=MODEL, status="pass"))},
                                           "--accept-low"),
    **{
        f"its report expected more by a {basis}": (
            {"a.json": report(row(100, expectation=replace(MODEL, basis=basis), status="pass"))}, "--machine dgx-h100"
        )
        for basis in ("model", "published", "datasheet", "user", "baseline")
    },
    "its report knows too little": ({"a.json": report(row(100, expectation=replace(MODEL, threshold=0.0)))}, ""),
    "a machine by name expects more": ({"a.json": LOW}, "--machine dgx-h100"),
    "gloo, of a machine by name": ({"a.json": report(row(20.0, nbytes=1 << 30, backend="gloo"))}, "--machine dgx-h100"),
    "uneven, of a machine by name": ({"a.json": report(row(20.0, nbytes=1 << 30, ranks=9, nodes=2))},
                                     "--machine dgx-h100"),
    "small, of a machine by name": ({"a.json": report(row(20.0, nbytes=8))}, "--machine dgx-h100"),
    "some rows are refused": ({"a.json": report(row(100), row(100, nbytes=1 << 21, wrong=3))}, ""),
    "a copy counts once": ({"a.json": report(row(100)), "b.json": report(row(100))}, ""),
    "one has no rows": ({"a.json": report(), "b.json": report(row(100))}, ""),
    "one does not name its machine": ({"a.json": report(row(100), fingerprint=None), "b.json": report(row(101))}, ""),
    "none names its machine": ({"a.json": report(row(100), fingerprint=None)}, ""),
    "nccl-tests' JSON": ({"a.json": render_json(OWN, OWN.measurements)}, ""),
    "nccl-tests' table": ({"a.log": render_text(OWN, OWN.measurements)}, ""),
    "an error ended it": (
        {"b.json": render_json(report(), (WHOLE,)).replace('"errors": [\n  ""', '"errors": [\n  "CUDA failure"')}, ""
    ),
    **{repr(wrong): ({"x": wrong}, "") for wrong in ("", "hello\n", "\x00\x01")},
    "no collective": ({"pairs.json": PAIRS.read_text(), "b.json": report()}, ""),
}  # fmt: skip


def test_a_baseline_with_numbers_that_no_run_has_is_refused(tmp_path: Path, capsys: Capsys) -> None:
    code, said = ran(tmp_path, capsys, "baseline", {"a.json": report(row(100))}, "-o", "-")
    assert (code, json.loads(said)["schema"]) == (0, "ncclprobe.baseline/1")
    for changes in ({"nbytes": 10**400}, {"busbw_GBps": 1e-320}, {"nodes": 0}, {"noise": 0.9999999}):
        document = json.loads(said)
        document["rows"][0].update(changes)
        code, refusal = ran(
            tmp_path, capsys, "compare", {"site.json": json.dumps(document), "b.json": report(row(100))}
        )
        assert (code, refusal.endswith("row 1: a number is out of range")) == (2, True), changes
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
        (MACHINE, Fingerprint({"gpu": "8 x NVIDIA A100"}), 0, False,
         "no baseline: | gpu: 8 x NVIDIA H100 -> 8 x NVIDIA A100 (baseline -> now)", ""),
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
